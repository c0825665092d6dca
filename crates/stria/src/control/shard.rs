//! The shard's side: answers what tools ask about a client and its cluster.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use client::Client;
use ptlrpc::Import;
use rt::sync::Semaphore;
use serde_json::{Value, json};
use types::FsError;

use super::Ask;
use super::look::{Answer, Looks, Seen, Wanted, text_of};
use super::params::NEEDS_ADMINISTRATOR;

/// Links of one file that `fid2path` shows.
const LINKS_SHOWN_MAX: u32 = 65_536;

/// How long tools wait for the cluster map as it is now.
pub(super) const MAP_WAIT: types::Duration = types::Duration::from_secs(2);

/// How long a server may take to answer a ping of `lctl`, or for its space.
const PING_WAIT: types::Duration = types::Duration::from_secs(5);

/// Pages of servers that `status` shows something of.
const STATUS_PAGES: &str = "{mdt,obdfilter}.*.{recovery_status,scrub,store_failure}";

/// How long a tool that looks at all servers gives them to answer.
fn within(request: &Value) -> types::Duration {
    request["within_ms"].as_u64().map_or(MAP_WAIT, types::Duration::from_millis).min(PING_WAIT)
}

/// What a daemon knows about itself.
#[derive(Clone, Default)]
pub struct Facts {
    /// Where it is mounted.
    pub mount_point: String,
    /// How requests travel, in words.
    pub transport: String,
    /// Roles of this process.
    pub roles: Vec<String>,
    /// OSTs that could not be served when it started, with a sentence each.
    pub away: Vec<(u16, String)>,
    /// The servers that this process starts.
    pub down: crate::daemon::Down,
    /// Where its metrics are served.
    pub metrics: Option<std::net::SocketAddr>,
    /// The cluster's directory, if it is on this host.
    pub dir: Option<String>,
}

/// Answers for a client.
pub struct Shard {
    pub(super) client: Rc<Client>,
    pub(super) facts: Facts,
    pub(super) looks: Looks,
    turns: Turns,
}

/// Users whose questions take turns.
#[derive(Default)]
struct Turns(RefCell<BTreeMap<u32, Rc<Semaphore>>>);

/// A user's turn, until this is dropped.
struct Turn<'a>(&'a Turns, u32, Rc<Semaphore>);

impl Turns {
    async fn take(&self, uid: u32) -> Turn<'_> {
        let turn = self.0.borrow_mut().entry(uid).or_insert_with(|| Rc::new(Semaphore::new(1))).clone();
        turn.acquire(1).await;
        Turn(self, uid, turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.2.add(1);
        let mut all = self.0.0.borrow_mut();
        // The table has one, this is the other: nobody waits.
        if Rc::strong_count(&self.2) == 2 {
            all.remove(&self.1);
        }
    }
}

impl Shard {
    /// For a client whose daemon knows `facts`.
    #[must_use]
    pub fn new(client: Rc<Client>, facts: Facts) -> Rc<Shard> {
        let shard = Rc::new(Shard { client, facts, looks: Looks::default(), turns: Turns::default() });
        let weak = Rc::downgrade(&shard);
        shard.client.osts().on_settings(Rc::new(move |settings| {
            if let Some(shard) = weak.upgrade() {
                shard.apply_settings(settings);
            }
        }));
        shard
    }

    /// Answers a question, in a task of its own: servers may take their time.
    pub fn take(self: &Rc<Self>, ask: Ask) {
        let me = self.clone();
        self.client.rt().spawn(async move {
            // What a user asks for keeps this thread busy, and those of servers: it is one thing at a time, whatever it costs.
            let _turn = if ask.privileged { None } else { Some(me.turns.take(ask.uid).await) };
            let asked = ask.request["do"].as_str().unwrap_or_default().to_string();
            let changes = matches!(
                asked.as_str(),
                "set_param"
                    | "keep_param"
                    | "drop_caches"
                    | "fid2path"
                    | "trace"
                    | "change_map"
                    | "ost_files"
                    | "changelog"
                    | "changelog_user"
                    | "set_quota"
            ) || asked == "quota" && super::quota::is_anothers(&ask.request, ask.uid);
            let answer = if changes && !ask.privileged {
                refusal("only root and the user who runs the daemon may do this", libc::EPERM)
            } else {
                me.answer(&asked, &ask.request).await
            };
            // The tool may have gone; its answer is nobody's then.
            let _ = ask.answer.send(answer);
        });
    }

    async fn answer(self: &Rc<Self>, asked: &str, request: &Value) -> Value {
        let text = |key: &str| request[key].as_str().unwrap_or_default().to_string();
        match asked {
            "status" => self.status_within(within(request)).await,
            "look" => self.look_for_tool(&text("pattern"), within(request)).await,
            "df" => self.df(request["lazy"] == true).await,
            "ping" => self.ping(&text("nid")).await,
            "osts" => {
                // One that registered a moment ago counts.
                self.look_at_map(MAP_WAIT).await;
                json!({"osts": self.client.osts().map().osts.iter().map(|o| o.ost.0).collect::<Vec<_>>()})
            }
            "map" => self.show_map().await,
            "change_map" => self.change_map(request).await,
            "ost_files" => self.ost_files(request).await,
            "changelog" => self.changelog(request).await,
            "changelog_user" => self.changelog_user(request).await,
            "quota" => self.quota(request).await,
            "set_quota" => self.set_quota(request).await,
            "get_param" => self.get_params(&text("pattern")).await,
            "set_param" => self.set_params(&text("pattern"), &text("value")).await,
            "keep_param" => self.keep_param(&text("pattern"), request["value"].as_str()).await,
            "kept_params" => self.kept_params().await,
            "fid2path" => self.fid2path(&text("fid")).await,
            "drop_caches" => {
                self.client.drop_caches().await;
                json!({})
            }
            "trace" => self.trace(&request["of"], request["from"].as_u64()).await,
            "sync" => match self.client.sync_all().await {
                Ok(()) => json!({}),
                Err(e) => refusal(&e.to_string(), e.errno()),
            },
            other => refusal(&format!("this daemon does not know '{other}'"), libc::ENOSYS),
        }
    }

    fn status(&self) -> Value {
        let map = self.client.osts().map();
        let text = |b: &wire::Bytes| String::from_utf8_lossy(b).into_owned();
        let oscs = self.client.osts().all();
        let osts: Vec<Value> = map
            .osts
            .iter()
            .map(|o| {
                let osc = oscs.get(usize::from(o.ost.0));
                let stats = osc.map(|o| o.stats()).unwrap_or_default();
                let mut shown = match osc.and_then(|o| o.import_if_any()) {
                    Some(import) => import_facts(&import),
                    _ => json!({"state": "none"}),
                };
                shown["index"] = json!(o.ost.0);
                shown["target"] = json!(text(&o.target));
                shown["nid"] = json!(text(&o.nid));
                shown["active"] = json!(osc.map_or(o.active, |osc| osc.is_active()));
                shown["closed"] = json!(map.closed.contains(&o.ost));
                shown["refused"] = json!(map.refused.iter().find(|r| r.ost == o.ost).map(|r| text(&r.why)));
                shown["read_rpcs"] = json!(stats.read_rpcs);
                shown["read_bytes"] = json!(stats.read_bytes);
                shown["write_rpcs"] = json!(stats.write_rpcs);
                shown["write_bytes"] = json!(stats.write_bytes);
                shown
            })
            .collect();
        let mut mdt = import_facts(&self.client.sessions().mdc());
        mdt["target"] = json!(text(&map.mdt_target));
        mdt["nid"] = json!(text(&map.mdt_nid));
        let pages = self.client.data().pages();
        let back = |ost: u16| map.osts.iter().any(|o| o.ost.0 == ost && o.active);
        let away: Vec<_> = self.facts.away.iter().filter(|(ost, _)| !back(*ost)).map(|(_, why)| why).collect();
        let ((hits, misses), policy) = (pages.found(), pages.policy_name());
        let (used, limit) = (pages.used_pages(), pages.limit_pages());
        json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "fsname": text(&map.fsname),
            "cluster": format!("{:016x}", map.cluster),
            "client": format!("{:016x}", self.client.sessions().id().0),
            "mount_point": self.facts.mount_point,
            "transport": self.facts.transport,
            "roles": self.facts.roles,
            "away": away,
            "refused": self.refused_osts(),
            "down": self.facts.down.lines(),
            "metrics": self.facts.metrics.map(|a| a.to_string()),
            "dir": self.facts.dir,
            "lost_bytes": self.client.losses().lost_bytes(),
            "mdt": mdt,
            "osts": osts,
            "cache": {"hits": hits, "misses": misses, "used_pages": used, "max_pages": limit, "policy": policy},
        })
    }

    /// OSTs that the cluster does not let in, with the reason, a sentence each.
    pub fn refused_osts(&self) -> Vec<String> {
        let map = self.client.osts().map();
        map.refused.iter().map(|r| format!("OST {} is not served: {}", r.ost.0, text_of(&r.why))).collect()
    }

    /// The answer to `status`, within a time: what is known here, and what servers said that answered until then.
    async fn status_within(self: &Rc<Self>, within: types::Duration) -> Value {
        // One that registered a moment ago counts.
        self.look_at_map(within / 3).await;
        let seen = self.look(Wanted { pattern: STATUS_PAGES, with_store: true }, within * 2 / 3).await;
        let mut status = self.status();
        for server in &seen {
            let target = match server.ost {
                None => Some(&mut status["mdt"]),
                Some(ost) => {
                    let osts = status["osts"].as_array_mut();
                    osts.and_then(|all| all.iter_mut().find(|o| o["index"] == json!(ost.0)))
                }
            };
            let Some(target) = target else { continue };
            target["silent"] = json!(server.is_silent());
            if let Answer::Said(_, Some(state)) = server.answer {
                target["store"] = json!(match state {
                    s if s >> 1 & 1 == 1 => "failed",
                    s if s >> 2 & 1 == 1 => "full",
                    _ => "good",
                });
            }
        }
        status["recovery"] = Value::Array(recoveries_of(&seen));
        let worth = |text: &str| text.contains("status: running") || !text.contains("\nfaults: 0\n");
        status["failures"] = Value::Array(pages_that(&seen, "store_failure", |text| !text.is_empty()));
        status["scrub"] = Value::Array(pages_that(&seen, "scrub", worth));
        status
    }

    /// Targets that still wait for clients of before their restart, each with what its `recovery_status` says.
    pub async fn recoveries(self: &Rc<Self>) -> Vec<Value> {
        let wanted = Wanted { pattern: "{mdt,obdfilter}.*.recovery_status", with_store: false };
        recoveries_of(&self.look(wanted, MAP_WAIT).await)
    }

    /// Every path of a FID, from the root of the file system.
    async fn fid2path(&self, text: &str) -> Value {
        let Some(fid) = types::Fid::parse(text) else {
            let why = format!("'{text}' is not a FID: write [0xSEQ:0xOID:0xVER], as path2fid prints it");
            return refusal(&why, libc::EINVAL);
        };
        let mut paths = Vec::new();
        for link in 0..LINKS_SHOWN_MAX {
            let question = wire::mdt::Fid2pathRequest { fid, link };
            let answer: Result<wire::mdt::BytesReply, FsError> =
                self.client.sessions().mdc().ask(wire::Op::MdtFid2path, &question).await;
            match answer {
                Ok(reply) => paths.push(String::from_utf8_lossy(&reply.value).into_owned()),
                Err(FsError::NotFound) if link > 0 => break,
                Err(FsError::Stale) => return refusal(&format!("no file has the id {fid}"), libc::ENOENT),
                Err(e) => return refusal(&format!("{fid}: {e}"), e.errno()),
            }
            if fid == types::Fid::ROOT {
                break;
            }
        }
        json!({"paths": paths, "mount_point": self.facts.mount_point})
    }

    /// What became of the requests of late, from the record with number `from` on, as an OST says it (`of` is its index), the
    /// metadata target (`mdt`) or this client (`client`).
    async fn trace(&self, of: &Value, from: Option<u64>) -> Value {
        let question = wire::ost::TraceRequest { from: from.unwrap_or(u64::MAX), version: trace::VERSION };
        let osc = || self.client.osts().all().into_iter().find(|o| Some(u64::from(o.index().0)) == of.as_u64());
        let import = match of.as_str() {
            Some("client") => return told(of, self.client.sessions().answer_trace(&question)),
            Some("mdt") => Ok(self.client.sessions().mdc()),
            _ => osc().ok_or(FsError::NotFound).and_then(|o| o.import()),
        };
        let answer = match import {
            Err(e) => Err(e),
            Ok(import) => {
                let asked = import.ask_in_recovery(wire::Op::OstTrace, &question);
                self.client.rt().timeout(PING_WAIT, asked).await.unwrap_or(Err(FsError::NotConnected))
            }
        };
        told(of, answer)
    }

    /// Asks a server of this file system whether it is there.
    async fn ping(&self, nid: &str) -> Value {
        let imports = self.client.osts().all().into_iter().filter_map(|o| o.import().ok());
        let imports: Vec<_> = std::iter::once(self.client.sessions().mdc()).chain(imports).collect();
        let wanted = rt::Nid::parse(nid).ok();
        let Some(import) = imports.iter().find(|i| wanted.as_ref().is_some_and(|w| i.nid().places().contains(w)))
        else {
            let mut known: Vec<String> = imports.iter().map(|i| i.nid().to_string()).collect();
            known.sort();
            known.dedup();
            let why = format!("no server of this file system has the address '{nid}'; there are: {}", known.join(", "));
            return refusal(&why, libc::EHOSTUNREACH);
        };
        let answer = self.client.rt().timeout(PING_WAIT, import.ask::<_, ()>(wire::Op::Ping, &())).await;
        match answer {
            Some(Ok(())) => json!({"nid": nid, "target": import.target()}),
            Some(Err(e)) => refusal(&format!("{nid}: {e}"), e.errno()),
            None => {
                let why = import.failure().map(|f| format!(" ({f})")).unwrap_or_default();
                refusal(&format!("{nid} does not answer{why}: is the server running?"), libc::ETIMEDOUT)
            }
        }
    }

    async fn df(self: &Rc<Self>, lazy: bool) -> Value {
        self.look_at_map(MAP_WAIT).await;
        let map = self.client.osts().map();
        let text = |b: &wire::Bytes| String::from_utf8_lossy(b).into_owned();
        let targets: Vec<Value> = self
            .client
            .statfs_each(lazy, Some(PING_WAIT))
            .await
            .into_iter()
            .map(|(ost, answer)| {
                let entry = ost.and_then(|o| map.osts.iter().find(|e| e.ost == o));
                let name = entry.map_or_else(|| text(&map.mdt_target), |e| text(&e.target));
                let mut shown = json!({"target": name, "index": ost.map_or(0, |o| o.0), "mdt": ost.is_none()});
                shown["active"] = json!(entry.is_none_or(|e| e.active));
                match answer {
                    Ok(s) => {
                        shown["total"] = json!(s.total);
                        shown["free"] = json!(s.free);
                        shown["available"] = json!(s.available);
                        shown["files"] = json!(s.files);
                        shown["files_free"] = json!(s.files_free);
                        let closed = ost.is_some_and(|o| map.closed.contains(&o));
                        shown["state"] = json!(s.state | u32::from(closed) << 4);
                    }
                    Err(e) => shown["down"] = json!(e.to_string()),
                }
                shown
            })
            .collect();
        json!({"targets": targets, "fsname": text(&map.fsname), "mount_point": self.facts.mount_point})
    }
}

/// Pages of a name that are so, each with its target.
fn pages_that(seen: &[Seen], name: &str, is: impl Fn(&str) -> bool) -> Vec<Value> {
    let mut found = Vec::new();
    for page in seen.iter().flat_map(Seen::params) {
        let (path, text) = (text_of(&page.path), text_of(&page.value));
        let mut parts = path.split('.');
        let target = parts.nth(1).unwrap_or_default();
        if parts.next() == Some(name) && is(&text) {
            found.push(json!({"target": target, "text": text}));
        }
    }
    found
}

fn recoveries_of(seen: &[Seen]) -> Vec<Value> {
    pages_that(seen, "recovery_status", |text| text.contains("RECOVERING"))
}

/// What somebody says of requests, as tools read it.
fn told(of: &Value, answer: Result<wire::ost::TraceReply, FsError>) -> Value {
    match answer {
        Err(e) => refusal(&format!("{} does not tell its trace: {e}", asked_of(of)), e.errno()),
        Ok(reply) => json!({
            "settings": String::from_utf8_lossy(&reply.settings),
            "total": reply.total,
            "lost": reply.lost,
            "version": reply.version,
            "records": hexadecimal(&reply.records),
        }),
    }
}

/// Who is asked for a trace, in words.
fn asked_of(of: &Value) -> String {
    match of.as_str() {
        Some("client") => "this client".into(),
        Some("mdt") => "the metadata target".into(),
        _ => format!("OST {}", of.as_u64().unwrap_or_default()),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]).map(char::from).collect()
}

/// A refusal as tools read it.
pub(super) fn refusal(text: &str, errno: i32) -> Value {
    json!({"error": text, "errno": errno})
}

/// What tools read where the metadata server did not carry something out, or did not answer: `what` it was about.
pub(super) fn refused(what: &str, e: FsError) -> Value {
    match e {
        FsError::NotPermitted => refusal(NEEDS_ADMINISTRATOR, libc::EPERM),
        FsError::NotSupported => refusal("the metadata server is of an earlier version", libc::EOPNOTSUPP),
        e => refusal(&format!("{what}: {e}"), e.errno()),
    }
}

pub(super) fn import_facts(import: &Import) -> Value {
    let (sessions, sent, resent) = import.counters();
    json!({
        "state": format!("{:?}", import.state()),
        "security": import.security(),
        "in_flight": import.in_flight(),
        "sessions": sessions,
        "rpcs": sent,
        "resent": resent,
        "last_committed": import.last_committed().0,
        "failure": import.failure(),
        "barred": import.is_barred(),
    })
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn questions_of_one_user_take_turns_and_those_of_others_do_not_wait_for_them() {
        let (turns, mut cx) = (Turns::default(), Context::from_waker(Waker::noop()));
        let (mut one, mut two, mut other) = (pin!(turns.take(7)), pin!(turns.take(7)), pin!(turns.take(8)));
        let std::task::Poll::Ready(first) = one.as_mut().poll(&mut cx) else { panic!("nobody was before") };
        assert!(two.as_mut().poll(&mut cx).is_pending());
        assert!(other.as_mut().poll(&mut cx).is_ready());
        drop(first);
        assert!(two.as_mut().poll(&mut cx).is_ready());
        assert!(turns.0.borrow().is_empty(), "nobody is remembered");
    }
}
