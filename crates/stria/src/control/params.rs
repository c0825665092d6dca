//! One parameter tree over a whole cluster: the client's own parameters, and those of every server, by name.
//!
//! Patterns are matched here, by one rule; servers are asked for everything, or told single names.
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};
use types::FsError;
use types::glob::Glob;
use types::params::ONLY_TELLS;
use wire::Op;
use wire::connect::{ConfigReply, Lasting, ParamsReply, ParamsRequest, Setting};

use super::look::{Wanted, is_there, text_of};
use super::shard::{Shard, refusal};

/// Every parameter a server has: names have two to six parts.
const ALL: &str = "{*.*,*.*.*,*.*.*.*,*.*.*.*.*,*.*.*.*.*.*}";

/// How long questions about parameters wait for servers; all are asked at the same time.
const SERVERS_WAIT: types::Duration = types::Duration::from_secs(5);

/// Why a server refuses to be changed.
pub(super) const NEEDS_ADMINISTRATOR: &str = "this mount has a client's key, and servers are changed with the administrator's key: mount with the cluster's DIR/keys/admin.key, or ask on its host";

/// One parameter as tools see it.
struct Param {
    value: String,
    writable: bool,
    /// The server that told it; `None`: the client has it.
    server: Option<String>,
}

/// Parameters in the order of their names. Targets of one process may answer the same name, hence the list.
type Tree = BTreeMap<String, Vec<Param>>;

impl Shard {
    pub(super) async fn get_params(self: &Rc<Self>, pattern: &str) -> Value {
        let (mut found, glob) = (Vec::new(), Glob::new(pattern));
        let (tree, silent) = self.tree().await;
        for (name, params) in tree {
            let Some(shown) = glob.matches_prefix(&name) else { continue };
            let whole = shown.len() == name.len();
            let mut last: Option<&str> = None;
            for p in &params {
                if last.replace(&p.value) != Some(&p.value) {
                    let (value, writable, server) = (&p.value, p.writable, &p.server);
                    found.push(
                        json!({"name": name, "value": value, "writable": writable, "whole": whole, "server": server}),
                    );
                }
            }
        }
        match found.is_empty() {
            true => refusal(&no_match(pattern, &silent), libc::ENOENT),
            false => json!({"params": found, "silent": silent}),
        }
    }

    /// Keeps a setting for good, after it was set, or forgets it (`value` is `None`).
    pub(super) async fn keep_param(&self, pattern: &str, value: Option<&str>) -> Value {
        let lasting = if value.is_some() { Lasting::Set } else { Lasting::Remove };
        let question = ParamsRequest { pattern: pattern.into(), value: value.map(Into::into), list: false, lasting };
        let answer: Result<ParamsReply, types::FsError> = self.client.sessions().mdc().ask(Op::Params, &question).await;
        match answer {
            Ok(reply) if reply.params.is_empty() && value.is_none() => refusal(
                &format!("no permanent setting has the pattern '{pattern}': 'get_param -P' lists them"),
                libc::ENOENT,
            ),
            Ok(_) => json!({"set": [pattern]}),
            Err(types::FsError::NoSpace) => {
                refusal("there are 1024 permanent settings: remove some (set_param -P -d)", libc::ENOSPC)
            }
            Err(types::FsError::NotPermitted) => refusal(NEEDS_ADMINISTRATOR, libc::EPERM),
            Err(e) => refusal(&format!("{pattern} cannot be kept: {e}"), e.errno()),
        }
    }

    /// The permanent settings of the cluster.
    pub(super) async fn kept_params(&self) -> Value {
        let map: Result<ConfigReply, types::FsError> = self.client.sessions().mdc().ask(Op::Config, &()).await;
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        match map {
            Ok(map) => {
                let shown: Vec<Value> = map
                    .settings
                    .iter()
                    .map(
                        |s| json!({"name": text(&s.pattern), "value": text(&s.value), "writable": true, "whole": true}),
                    )
                    .collect();
                json!({"params": shown})
            }
            Err(e) => refusal(&format!("permanent settings: {e}"), e.errno()),
        }
    }

    /// Sets what permanent settings say of this client's own parameters.
    pub(super) fn apply_settings(&self, settings: &[Setting]) {
        for s in settings {
            let glob = Glob::new(&String::from_utf8_lossy(&s.pattern));
            for own in self.own().into_iter().filter(|p| p.is_writable() && glob.matches(&p.path)) {
                if let Some(Err(e)) = own.set(self, String::from_utf8_lossy(&s.value).trim()) {
                    tracing::warn!("permanent setting of {}: {e}", own.path);
                }
            }
        }
    }

    pub(super) async fn set_params(self: &Rc<Self>, pattern: &str, value: &str) -> Value {
        let (tree, silent) = self.tree().await;
        let glob = Glob::new(pattern);
        let names: Vec<_> = tree.iter().filter(|(name, _)| glob.matches(name)).collect();
        let own = self.own();
        if names.is_empty() {
            return refusal(&no_match(pattern, &silent), libc::ENOENT);
        }
        let mut set = Vec::new();
        for (name, params) in names {
            if !params.iter().any(|p| p.writable) {
                return refusal(&format!("{name} cannot be set: it only tells"), libc::EACCES);
            }
            let done = match own.iter().find(|p| p.path == *name) {
                Some(own) => {
                    let done = own.set(self, value.trim()).unwrap_or_else(|| Err(ONLY_TELLS.into()));
                    done.map_err(|e| (e, libc::EINVAL))
                }
                None => self.set_on_servers(name, value).await,
            };
            match done {
                Ok(()) => set.push(name.clone()),
                Err((e, errno)) => return refusal(&format!("{name} = {value}: {e}"), errno),
            }
        }
        json!({"set": set})
    }

    /// Every parameter by its name, and the servers that did not answer or are away.
    async fn tree(self: &Rc<Self>) -> (Tree, Vec<String>) {
        let seen = self.look(Wanted { pattern: ALL, with_store: false }, SERVERS_WAIT).await;
        let mut tree = Tree::new();
        for own in self.own() {
            let (value, writable) = (own.value(self), own.is_writable());
            tree.entry(own.path).or_default().push(Param { value, writable, server: None });
        }
        for server in &seen {
            let target = server.import.target();
            for p in server.params() {
                let (value, server) = (text_of(&p.value), Some(target.to_string()));
                tree.entry(text_of(&p.path)).or_default().push(Param { value, writable: p.writable, server });
            }
        }
        let silent = seen.iter().filter(|s| s.is_silent()).map(|s| s.import.target().to_string());
        (tree, silent.chain(self.away()).collect())
    }

    /// Servers without a session, but for those that were given up.
    fn away(&self) -> Vec<String> {
        let osts = self.client.osts().all().into_iter().filter_map(|o| o.import().ok());
        let all = std::iter::once(self.client.sessions().mdc()).chain(osts);
        all.filter(|i| !is_there(i) && !i.is_out_of_service()).map(|i| i.target().to_string()).collect()
    }

    /// Imports of servers that are in service, or wait for their clients after a restart.
    fn servers(&self) -> Vec<Rc<ptlrpc::Import>> {
        let osts = self.client.osts().all().into_iter().filter_map(|o| o.import().ok());
        std::iter::once(self.client.sessions().mdc()).chain(osts).filter(|i| is_there(i)).collect()
    }

    async fn set_on_servers(&self, name: &str, value: &str) -> Result<(), (String, i32)> {
        let question = ParamsRequest { pattern: name.into(), value: Some(value.into()), ..ParamsRequest::default() };
        let mut told = false;
        for import in self.servers() {
            let answer: Result<ParamsReply, FsError> =
                self.present(&import, import.ask_in_recovery(Op::Params, &question)).await;
            match answer {
                Ok(reply) if !reply.error.is_empty() => {
                    let text = String::from_utf8_lossy(&reply.error).into_owned();
                    let text = text.strip_prefix(&format!("{name}: ")).map_or(text.clone(), ToString::to_string);
                    return Err((text, libc::EINVAL));
                }
                Ok(reply) => told |= !reply.params.is_empty(),
                Err(types::FsError::NotFound) => {}
                Err(types::FsError::NotPermitted) => return Err((NEEDS_ADMINISTRATOR.into(), libc::EPERM)),
                // This very setting may have given a target up.
                Err(_) if import.is_out_of_service() => {}
                Err(e) => return Err((e.to_string(), e.errno())),
            }
        }
        if told { Ok(()) } else { Err(("no server knows it any more".into(), libc::ENOENT)) }
    }
}

fn no_match(pattern: &str, silent: &[String]) -> String {
    match silent.is_empty() {
        true => format!("no parameter matches '{pattern}': 'stria list_param -R \"*\"' lists all"),
        false => format!(
            "no parameter of the servers that answer matches '{pattern}'; no answer came from {} ('stria status' says more)",
            silent.join(", ")
        ),
    }
}
