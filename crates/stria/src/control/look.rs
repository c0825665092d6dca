//! A look at every server at the same time: who answers within a moment, and what it says.
//!
//! A server that stands still takes a question and answers when it goes on. So that looks at it do not pile up in the slots
//! of its session, a server is asked one question of this kind at a time; who finds it being asked waits for its turn, as
//! long as its own time lasts.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ptlrpc::{Import, ImportState};
use rt::sync::{Semaphore, join_all, oneshot};
use serde_json::{Value, json};
use types::{Duration, FsError, OstIndex};
use wire::Op;
use wire::connect::{Param, ParamsReply, ParamsRequest};
use wire::ost::StatfsReply;

use super::shard::{Shard, import_facts};

/// How often a question that waits for its answer looks whether the server is still there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Who is being asked.
#[derive(Default)]
pub(super) struct Looks(RefCell<BTreeMap<String, Rc<Semaphore>>>);

impl Looks {
    /// The one place in which `whom` is asked.
    fn turn(&self, whom: &str) -> Rc<Semaphore> {
        let new = || Rc::new(Semaphore::new(1));
        self.0.borrow_mut().entry(whom.to_string()).or_insert_with(new).clone()
    }
}

/// What is asked of servers.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// Parameters that match this.
    pub pattern: &'a str,
    /// The state of the store, too.
    pub with_store: bool,
}

/// What came of a question.
pub(super) enum Answer {
    /// Parameters that match, and the state of the store of a server in service, if that was asked for ([`StatfsReply::state`]).
    Said(Vec<Param>, Option<u32>),
    /// There is a session, or was one when it was asked, and no answer in time.
    Silent,
    /// There is no session.
    Away,
}

/// A server that was looked at.
pub(super) struct Seen {
    pub import: Rc<Import>,
    /// `None`: the metadata server.
    pub ost: Option<OstIndex>,
    pub answer: Answer,
}

impl Seen {
    /// The parameters that it told.
    pub fn params(&self) -> &[Param] {
        match &self.answer {
            Answer::Said(params, _) => params,
            _ => &[],
        }
    }
    /// Whether there is a session with it, and it did not answer in time.
    pub fn is_silent(&self) -> bool {
        matches!(self.answer, Answer::Silent)
    }
}

/// Text of the wire, as far as it is text.
pub(super) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a server is in service, or waits for its clients after a restart.
pub(super) fn is_there(import: &Import) -> bool {
    matches!(import.state(), ImportState::Full | ImportState::Replaying)
}

/// Whether it was not tried yet: right after a mount nobody knows whether a server is there.
fn is_fresh(import: &Import) -> bool {
    import.state() == ImportState::Connecting && import.counters().0 == 0 && import.failure().is_none()
}

impl Shard {
    /// Asks every server of the cluster at the same time; takes `within` at most.
    pub(super) async fn look(self: &Rc<Self>, wanted: Wanted<'_>, within: Duration) -> Vec<Seen> {
        let osts = self.client.osts().all().into_iter().filter_map(|o| Some((Some(o.index()), o.import_if_any()?)));
        let all = std::iter::once((None, self.client.sessions().mdc())).chain(osts);
        let each = all.map(|(ost, import)| async move {
            let (rt, was_there) = (self.client.rt(), is_there(&import));
            let until = rt.now() + within;
            let answer = match rt.timeout(within, self.ask_params(&import, wanted.pattern)).await.flatten() {
                Some(params) => {
                    // A server that has begun to serve amid its recovery may tell this much later.
                    let store = self.ask_store(ost, &import, wanted.with_store);
                    Answer::Said(params, rt.timeout(until.since(rt.now()), store).await.flatten())
                }
                // Also when its session ended meanwhile.
                None if is_there(&import) || was_there => Answer::Silent,
                None => Answer::Away,
            };
            Seen { import, ost, answer }
        });
        join_all(each.collect()).await
    }

    /// What `ask` answers, which is asked when nobody else asks the same `whom`. It goes on when nobody waits for it any more:
    /// what was sent is under way, and the next has to know.
    async fn in_turn<T: 'static>(&self, whom: &str, ask: impl Future<Output = T> + 'static) -> Option<T> {
        let turn = self.looks.turn(whom);
        turn.acquire(1).await;
        let (answer, answered) = oneshot();
        self.client.rt().spawn(async move {
            answer.send(ask.await);
            turn.add(1);
        });
        // Without an answer only when the shard ends.
        answered.await
    }

    /// Parameters of a server; `None`: it is not there.
    async fn ask_params(self: &Rc<Self>, import: &Rc<Import>, pattern: &str) -> Option<Vec<Param>> {
        while is_fresh(import) {
            self.client.rt().sleep(LOOK_EVERY / 4).await;
        }
        if !is_there(import) {
            return None;
        }
        let question = ParamsRequest { pattern: pattern.into(), ..ParamsRequest::default() };
        let (me, asked) = (self.clone(), import.clone());
        let told = self.in_turn(import.target(), async move {
            me.present(&asked, asked.ask_in_recovery(Op::Params, &question)).await
        });
        match told.await? {
            Ok(ParamsReply { params, .. }) => Some(params),
            Err(FsError::NotConnected) => None,
            Err(e) => {
                tracing::debug!("parameters of {}: {e}", import.target());
                Some(Vec::new())
            }
        }
    }

    /// The state of the store of a server in service, if it is wanted.
    async fn ask_store(self: &Rc<Self>, ost: Option<OstIndex>, import: &Rc<Import>, wanted: bool) -> Option<u32> {
        if !wanted || import.state() != ImportState::Full {
            return None;
        }
        let op = if ost.is_some() { Op::OstStatfs } else { Op::MdtStatfs };
        let (me, asked, whom) = (self.clone(), import.clone(), format!("the store of {}", import.target()));
        let told = self.in_turn(&whom, async move {
            let told: Result<StatfsReply, FsError> = me.present(&asked, asked.ask(op, &())).await;
            told
        });
        told.await?.ok().map(|s| s.state)
    }

    /// The answer of a server, unless that goes away meanwhile: what it is asked here is not worth waiting for its return.
    pub(super) async fn present<A>(
        &self,
        import: &Import,
        answer: impl Future<Output = Result<A, FsError>>,
    ) -> Result<A, FsError> {
        let began = import.state();
        let mut answer = std::pin::pin!(answer);
        loop {
            match self.client.rt().timeout(LOOK_EVERY, answer.as_mut()).await {
                Some(answer) => return answer,
                None if !is_there(import) => return Err(FsError::NotConnected),
                // It was restarted between two looks: what a session sends is answered when the recovery is over.
                None if began == ImportState::Full && import.state() != began => return Err(FsError::NotConnected),
                None => {}
            }
        }
    }

    /// Asks for the cluster map, which may have changed, if that can be had within a time.
    pub(super) async fn look_at_map(self: &Rc<Self>, within: Duration) {
        if self.client.sessions().mdc().state() != ImportState::Full {
            return;
        }
        let me = self.clone();
        let asked = self.in_turn("the cluster map", async move {
            let mdc = me.client.sessions().mdc();
            me.present(&mdc, me.client.osts().refresh_map()).await
        });
        let refreshed = self.client.rt().timeout(within, asked).await.flatten();
        if !matches!(refreshed, Some(Ok(()))) {
            tracing::debug!("the cluster map is as it was known: {refreshed:?}");
        }
    }

    /// The answer to a tool that looks at all servers, and at what this client tells by the same pattern.
    pub(super) async fn look_for_tool(self: &Rc<Self>, pattern: &str, within: Duration) -> Value {
        let servers: Vec<Value> =
            self.look(Wanted { pattern, with_store: false }, within).await.iter().map(shown).collect();
        let glob = types::glob::Glob::new(pattern);
        let mut own = serde_json::Map::new();
        for parameter in self.own().into_iter().filter(|p| glob.matches(&p.path)) {
            let value = parameter.value(self);
            own.insert(parameter.path, json!(value));
        }
        json!({
            "fsname": text_of(&self.client.osts().map().fsname),
            "mount_point": self.facts.mount_point,
            "client": format!("{:016x}", self.client.sessions().id().0),
            "own": own,
            "servers": servers,
        })
    }
}

/// A server that was looked at, as tools read it.
fn shown(seen: &Seen) -> Value {
    let mut shown = import_facts(&seen.import);
    let params = seen.params().iter().map(|p| (text_of(&p.path), json!(text_of(&p.value))));
    shown["target"] = json!(seen.import.target());
    shown["nid"] = json!(seen.import.nid().to_string());
    shown["index"] = json!(seen.ost.map(|o| o.0));
    shown["answers"] = json!(matches!(seen.answer, Answer::Said(..)));
    shown["silent"] = json!(seen.is_silent());
    shown["params"] = Value::Object(params.collect());
    shown
}
