//! One parameter tree over a whole cluster: the client's own parameters, and those of every server, by name.
//!
//! Patterns are matched here, by one rule; servers are asked for everything, or told single names.
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, Osc};
use serde_json::{Value, json};
use types::glob::Glob;
use types::{FsError, MIB, parse_size};
use wire::Op;
use wire::connect::{ConfigReply, Lasting, ParamsReply, ParamsRequest, Setting};

use super::look::{Wanted, is_there, text_of};
use super::shard::{Shard, refusal};

/// Every parameter a server has: names have two to six parts.
const ALL: &str = "{*.*,*.*.*,*.*.*.*,*.*.*.*.*,*.*.*.*.*.*}";

/// How long questions about parameters wait for servers; all are asked at the same time.
const SERVERS_WAIT: types::Duration = types::Duration::from_secs(5);

/// Why a server refuses to be changed.
const NEEDS_ADMINISTRATOR: &str = "this mount has a client's key, and servers are changed with the administrator's key: mount with the cluster's DIR/keys/admin.key, or ask on its host";

/// One parameter as tools see it.
struct Param {
    value: String,
    writable: bool,
    /// The server that told it; `None`: the client has it.
    server: Option<String>,
}

/// Parameters in the order of their names. Targets of one process may answer the same name, hence the list.
type Tree = BTreeMap<String, Vec<Param>>;

/// Readahead settings under `llite`, in MiB.
const READAHEAD_MB: [&str; 3] = ["max_read_ahead_mb", "max_read_ahead_per_file_mb", "max_read_ahead_whole_mb"];

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
            let mut names = Vec::new();
            self.own(&mut |name, _, writable| {
                if writable && glob.matches(&name) {
                    names.push(name);
                }
            });
            for name in names {
                if let Some(Err(e)) = self.set_own(&name, &String::from_utf8_lossy(&s.value)) {
                    tracing::warn!("permanent setting of {name}: {e}");
                }
            }
        }
    }

    pub(super) async fn set_params(self: &Rc<Self>, pattern: &str, value: &str) -> Value {
        let (tree, silent) = self.tree().await;
        let glob = Glob::new(pattern);
        let names: Vec<_> = tree.iter().filter(|(name, _)| glob.matches(name)).collect();
        if names.is_empty() {
            return refusal(&no_match(pattern, &silent), libc::ENOENT);
        }
        let mut set = Vec::new();
        for (name, params) in names {
            if !params.iter().any(|p| p.writable) {
                return refusal(&format!("{name} cannot be set: it only tells"), libc::EACCES);
            }
            let done = match self.set_own(name, value) {
                Some(done) => done.map_err(|e| (e, libc::EINVAL)),
                None => self.set_on_servers(name, value).await,
            };
            match done {
                Ok(()) => set.push(name.clone()),
                Err((e, errno)) => return refusal(&format!("{name} = {value}: {e}"), errno),
            }
        }
        json!({"set": set})
    }

    /// Every parameter by its name, and the servers that have a session and did not answer.
    async fn tree(self: &Rc<Self>) -> (Tree, Vec<String>) {
        let seen = self.look(Wanted { pattern: ALL, with_store: false }, SERVERS_WAIT).await;
        let mut tree = Tree::new();
        self.own(&mut |name, value, writable| {
            tree.entry(name).or_default().push(Param { value, writable, server: None });
        });
        for server in &seen {
            let target = server.import.target();
            for p in server.params() {
                let (value, server) = (text_of(&p.value), Some(target.to_string()));
                tree.entry(text_of(&p.path)).or_default().push(Param { value, writable: p.writable, server });
            }
        }
        let silent = seen.iter().filter(|s| s.is_silent()).map(|s| s.import.target().to_string());
        (tree, silent.collect())
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

    fn instance(&self) -> String {
        let map = self.client.osts().map();
        format!("{}-{:016x}", String::from_utf8_lossy(&map.fsname), self.client.sessions().id().0)
    }

    /// Name of an OST's client side, as in `osc.NAME.stats`.
    fn osc_name(&self, osc: &Osc) -> String {
        let fs = String::from_utf8_lossy(&self.client.osts().map().fsname).into_owned();
        format!("osc.{fs}-OST{:04x}-osc-{:016x}", osc.index().0, self.client.sessions().id().0)
    }

    pub(super) fn own(&self, add: &mut dyn FnMut(String, String, bool)) {
        let (_, rule) = self.client.sessions().jobs().rule();
        add("jobid_var".into(), rule.var.clone(), true);
        add("jobid_name".into(), rule.name.clone(), true);
        let at = self.client.sessions().timeouts();
        for (name, time) in [("at_min", at.min), ("at_max", at.max), ("at_history", at.history)] {
            add(name.into(), time.as_secs().to_string(), true);
        }
        let now = self.client.rt().wall();
        let llite = format!("llite.{}", self.instance());
        let (limit, policy) = (self.client.data().pages().limit_pages(), self.client.data().pages().policy_name());
        let mib = |pages: usize| (pages as u64 * 4096 / MIB).to_string();
        add(format!("{llite}.max_cached_mb"), mib(limit), true);
        for number in &client::NUMBERS {
            add(number.path(&self.instance()), number.text(&self.client), false);
        }
        add(format!("{llite}.max_cached_inodes"), self.client.meta().inodes_max().to_string(), true);
        add(format!("{llite}.inode_cache_stats"), inodes_text(&self.client), false);
        add(format!("{llite}.cache_policy"), policy.into(), true);
        for key in cache::CacheConfig::KEYS {
            add(format!("{llite}.cache_{key}"), self.client.data().pages().key(key).unwrap_or_default(), true);
        }
        add(format!("{llite}.cache_record"), self.client.data().pages().record(), true);
        add(format!("{llite}.readahead_policy"), self.client.data().readahead().policy().into(), true);
        add(format!("{llite}.readahead_record"), self.client.data().readahead().record(), true);
        for key in READAHEAD_MB {
            let bytes = self.client.data().readahead().setting(key).unwrap_or_default();
            add(format!("{llite}.{key}"), (bytes / MIB).to_string(), true);
        }
        for key in readahead::Config::KEYS.iter().filter(|k| k.alias_mb.is_empty()) {
            let value = self.client.data().readahead().setting(key.key).unwrap_or_default();
            add(format!("{llite}.readahead_{}", key.key), value.to_string(), true);
        }
        let stats =
            readahead_text(&self.client.data().readahead().stats(), self.client.data().readahead().held_bytes());
        add(format!("{llite}.read_ahead_stats"), stats, false);
        add(format!("{llite}.cache_stats"), cache_text(&self.client.data().pages().stats()), false);
        add(format!("{llite}.lost_files"), self.client.losses().text(), true);
        add(format!("{llite}.lost_changes"), self.client.losses().changes_text(), true);
        add(format!("{llite}.mount_point"), self.facts.mount_point.clone(), false);
        add(format!("{llite}.stats"), self.client.data().calls().text(now, self.client.data().pages().found()), true);
        add(format!("{llite}.latency_stats"), self.client.data().calls().latency_text(now), true);
        add(format!("{llite}.extents_stats"), self.client.data().calls().extents_text(now), true);
        add(format!("{llite}.offset_stats"), self.client.offsets().text(now), true);
        for osc in self.client.osts().all() {
            let name = self.osc_name(&osc);
            add(format!("{name}.active"), u8::from(osc.is_active()).to_string(), true);
            add(format!("{name}.max_rpcs_in_flight"), osc.rpcs_in_flight_max().to_string(), true);
            add(format!("{name}.max_pages_per_rpc"), osc.rpc_pages_max().to_string(), true);
            add(format!("{name}.max_dirty_mb"), (osc.dirty_max() / MIB).to_string(), true);
            add(
                format!("{name}.grant_shrink_interval"),
                (osc.grant_shrink_interval().as_millis() / 1000).to_string(),
                true,
            );
            for number in &client::OSC_NUMBERS {
                add(number.path(&name["osc.".len()..]), number.text(&osc), false);
            }
            add(format!("{name}.stats"), osc.stats_text(), true);
            add(format!("{name}.latency_stats"), osc.latency_stats_text(), true);
            add(format!("{name}.rpc_stats"), osc.rpc_stats_text(), true);
            if let Some(import) = osc.import_if_any() {
                add(format!("{name}.import"), import_text(&import), false);
            }
        }
        let map = self.client.osts().map();
        let mdc =
            format!("mdc.{}-mdc-{:016x}", String::from_utf8_lossy(&map.mdt_target), self.client.sessions().id().0);
        add(format!("{mdc}.import"), import_text(&self.client.sessions().mdc()), false);
    }

    fn set_timeout(&self, name: &str, text: &str) -> Result<(), String> {
        let time = types::Duration::from_secs(number(text, 1, 86_400)?);
        let mut at = self.client.sessions().timeouts();
        match name {
            "at_min" => at.min = time,
            "at_max" => at.max = time,
            _ => at.history = time,
        }
        self.client.sessions().set_timeouts(at)
    }

    /// Sets one of the client's own parameters; `None` when the name is not the client's.
    fn set_own(&self, name: &str, text: &str) -> Option<Result<(), String>> {
        let text = text.trim();
        match name {
            "jobid_var" => return Some(self.client.sessions().jobs().set_var(text)),
            "jobid_name" => return Some(self.client.sessions().jobs().set_name(text)),
            "at_min" | "at_max" | "at_history" => return Some(self.set_timeout(name, text)),
            _ => {}
        }
        let (node, key) = name.rsplit_once('.')?;
        if node == format!("llite.{}", self.instance()) {
            return Some(match key {
                "cache_policy" => self.client.data().pages().set_policy(text),
                "cache_record" => self.client.data().pages().set_record(text),
                key if cache_key(key).is_some() => self.client.data().pages().set_key(cache_key(key)?, text),
                "readahead_record" => self.client.data().readahead().set_record(text),
                "stats" | "latency_stats" | "extents_stats" => {
                    reset(text).map(|()| self.client.data().calls().reset(self.client.rt().wall()))
                }
                "offset_stats" => {
                    self.client.offsets().set(text);
                    Ok(())
                }
                "lost_files" if matches!(text, "0" | "clear") => {
                    self.client.losses().clear();
                    Ok(())
                }
                "lost_changes" if matches!(text, "0" | "clear") => {
                    self.client.losses().clear_changes();
                    Ok(())
                }
                "lost_files" | "lost_changes" => Err("write 0 or clear, which empties the list".into()),
                "readahead_policy" => self.client.data().readahead().set_policy(text),
                key if READAHEAD_MB.contains(&key) => self.client.data().readahead().set(key, text),
                key if key.starts_with("readahead_") => {
                    self.client.data().readahead().set(&key["readahead_".len()..], text)
                }
                "max_cached_mb" => megabytes(text, 4, 1 << 20).map(|b| self.client.data().set_cache_bytes(b)),
                "max_cached_inodes" => {
                    number(text, 1, 100_000_000).map(|n| self.client.meta().set_inodes_max(n as usize))
                }
                _ => Err("it cannot be set".into()),
            });
        }
        let osc = self.client.osts().all().into_iter().find(|o| self.osc_name(o) == node)?;
        Some(match key {
            "active" => number(text, 0, 1).map(|n| osc.set_active(n == 1)),
            "max_rpcs_in_flight" => number(text, 1, 256).map(|n| osc.set_rpcs_in_flight_max(n as usize)),
            "max_pages_per_rpc" => number(text, 1, 16_384).and_then(|n| set_rpc_pages(&osc, n as usize)),
            "max_dirty_mb" => megabytes(text, 1, 65_536).map(|b| osc.set_dirty_max(b)),
            "grant_shrink_interval" => {
                number(text, 1, 1 << 31).map(|n| osc.set_grant_shrink_interval(types::Duration::from_secs(n)))
            }
            "stats" | "latency_stats" | "rpc_stats" => reset(text).map(|()| osc.reset_stats()),
            _ => Err("it cannot be set".into()),
        })
    }
}

/// The key of the cache room that `cache_KEY` names.
fn cache_key(name: &str) -> Option<&str> {
    name.strip_prefix("cache_").filter(|key| cache::CacheConfig::KEYS.contains(key))
}

fn readahead_text(stats: &readahead::Stats, held_bytes: u64) -> String {
    let counters = stats.counters().map(|(name, value, unit)| format!("{name} {value} samples [{unit}]\n"));
    counters.concat() + &format!("held_bytes {held_bytes} samples [bytes]\n")
}

fn inodes_text(client: &Client) -> String {
    let [inodes, names, children, objects] = client.meta().remembered();
    let reclaimed = client.meta().inodes_reclaimed();
    format!("inodes: {inodes}\nnames: {names}\nchildren: {children}\nobjects: {objects}\nreclaimed: {reclaimed}\n")
}

fn cache_text(stats: &cache::Stats) -> String {
    stats.counters().map(|(name, value)| format!("{name}: {value}\n")).concat()
}

fn import_text(import: &ptlrpc::Import) -> String {
    let (sessions, sent, resent) = import.counters();
    let mut text = format!(
        "import:\n    target: {}\n    nid: {}\n    state: {:?}\n    sessions: {sessions}\n    rpcs: {sent}\n    resent: {resent}\n    in_flight: {}\n    last_committed: {}\n    service_time_ms: {}\n    patience_ms: {}\n    early_replies: {}\n",
        import.target(),
        import.nid(),
        import.state(),
        import.in_flight(),
        import.last_committed(),
        import.service_time().as_millis(),
        import.patience().as_millis(),
        import.early_replies()
    );
    if let Some(why) = import.failure() {
        text += &format!("    failure: {why}\n");
    }
    text
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

/// Statistics can only be set back.
fn reset(text: &str) -> Result<(), String> {
    if matches!(text, "0" | "clear") { Ok(()) } else { Err("write 0 or clear, which starts counting anew".into()) }
}

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let value: Option<u64> = text.parse().ok().filter(|n| (min..=max).contains(n));
    value.ok_or_else(|| format!("write a number from {min} to {max}"))
}

/// Reads megabytes; a suffix makes it another size. Gives bytes.
fn megabytes(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let bare = text.bytes().all(|b| b.is_ascii_digit());
    let bytes = parse_size(text)?.saturating_mul(if bare { MIB } else { 1 });
    let fits = (min.saturating_mul(MIB)..=max.saturating_mul(MIB)).contains(&bytes);
    if fits { Ok(bytes) } else { Err(format!("write {min} to {max} (MiB)")) }
}

/// Pages of one bulk RPC; more than the OST takes would stay without effect.
fn set_rpc_pages(osc: &client::Osc, pages: usize) -> Result<(), String> {
    let most = osc.rpc_pages_offered();
    if pages > most {
        let (ost, mib) = (osc.index(), most as u64 * types::PAGE_BYTES as u64 / MIB);
        return Err(format!("{ost} takes {most} pages at most: its brw_size was {mib} MiB when this client connected"));
    }
    osc.set_rpc_pages_max(pages);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_with_their_range() {
        assert_eq!(number("8", 1, 256), Ok(8));
        assert_eq!(number("0", 1, 256).unwrap_err(), "write a number from 1 to 256");
        assert_eq!(megabytes("64", 1, 1024), Ok(64 << 20));
        assert_eq!(megabytes("1G", 1, 1024), Ok(1 << 30));
        assert!(megabytes("99999999999999999999", 1, 1024).is_err() && megabytes("0", 1, 1024).is_err());
        assert!(megabytes("18446744073709551615", 1, 1024).is_err());
    }
}
