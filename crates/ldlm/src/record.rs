//! Calls to a server's namespace as values: taken down on a real server, they get identical answers in a fresh one.
//!
//! A log starts with the namespace (or is useless). It holds values, not bytes: only `wire` and the stores serialize.
use alloc::vec::Vec;
use types::{ClientId, Fid, HandleId, Instant};

use crate::LockMode;
use crate::flock::{FlockKind, FlockOutcome, FlockRange, FlockRequest};
use crate::lock::{
    Action, DenyReason, EnqueueOutcome, EnqueueRequest, InodeBits, LockCookie, LockDesc, LockPolicyData, ResourceId,
};
use crate::namespace::{Evicted, Expired, LockReplay, Namespace, NamespaceConfig};

/// One call that can change a namespace or that the driver acts upon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// [`Namespace::enqueue`]
    Enqueue(ClientId, EnqueueRequest),
    /// [`Namespace::cancel`]
    Cancel(ClientId, HandleId),
    /// [`Namespace::cancel_cookie`]
    CancelCookie(ClientId, LockCookie),
    /// [`Namespace::cancel_batch`]
    CancelBatch(ClientId, Vec<HandleId>),
    /// [`Namespace::convert`]
    Convert(ClientId, HandleId, LockMode, LockPolicyData),
    /// [`Namespace::narrow`]
    Narrow(ClientId, HandleId, InodeBits),
    /// [`Namespace::weaken`]
    Weaken(ClientId, HandleId, LockMode),
    /// [`Namespace::glimpse`]
    Glimpse(ClientId, ResourceId, u64),
    /// [`Namespace::on_progress`]
    Progress(ClientId, HandleId),
    /// [`Namespace::on_held_up`]
    HeldUp(ClientId),
    /// [`Namespace::on_overslept`]
    Overslept(Instant),
    /// [`Namespace::on_blocking_timeout`]
    Timeout,
    /// [`Namespace::repeat_callbacks`]
    RepeatCallbacks(ClientId),
    /// [`Namespace::reclaim`]
    Reclaim(usize),
    /// [`Namespace::recall_all`]
    RecallAll,
    /// [`Namespace::evict`]
    Evict(ClientId),
    /// [`Namespace::replay`]
    Replay(ClientId, LockReplay),
    /// [`Namespace::flock_set`]
    Flock(ClientId, FlockRequest),
    /// [`Namespace::flock_test`]
    FlockTest(ClientId, FlockRequest),
    /// [`Namespace::flock_cancel_wait`]
    FlockCancel(ClientId, LockCookie),
    /// [`Namespace::flock_drop_owner`]
    FlockDrop(ClientId, Fid, FlockKind, u64),
    /// [`Namespace::flock_replay`]
    FlockReplay(ClientId, FlockRange),
}

/// What a call answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Of an enqueue.
    Enqueue(EnqueueOutcome),
    /// Of a flock request.
    Flock(FlockOutcome),
    /// Of a flock test.
    FlockTest(Option<FlockRange>),
    /// Of a conversion.
    Convert(Result<LockDesc, DenyReason>),
    /// Of a replay.
    Replay(Result<HandleId, Option<LockDesc>>),
    /// Of a flock replay.
    FlockReplay(Result<(), DenyReason>),
    /// Of a timeout check.
    Expired(Vec<Expired>),
    /// Of an eviction.
    Evicted(Evicted),
    /// Whether, or how many.
    Count(usize),
    /// Nothing to say.
    None,
}

/// One line of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// When.
    pub now: Instant,
    /// What was asked.
    pub call: Call,
    /// What was answered.
    pub answer: Answer,
    /// What was to be sent.
    pub actions: Vec<Action>,
}

impl Namespace {
    /// Carries out a call that is given as a value.
    pub fn apply(&mut self, now: Instant, call: &Call, out: &mut Vec<Action>) -> Answer {
        match call {
            Call::Enqueue(c, req) => Answer::Enqueue(self.enqueue(now, *c, req, out)),
            Call::Cancel(c, h) => Answer::Count(usize::from(self.cancel(now, *c, *h, out))),
            Call::CancelCookie(c, k) => Answer::Count(usize::from(self.cancel_cookie(now, *c, *k, out))),
            Call::CancelBatch(c, list) => Answer::Count(self.cancel_batch(now, *c, list, out)),
            Call::Convert(c, h, mode, data) => Answer::Convert(self.convert(now, *c, *h, *mode, *data, out)),
            Call::Narrow(c, h, keep) => Answer::Count(usize::from(self.narrow(now, *c, *h, *keep, out))),
            Call::Weaken(c, h, mode) => Answer::Count(usize::from(self.weaken(now, *c, *h, *mode, out))),
            Call::Glimpse(c, r, size) => Answer::Count(self.glimpse(*c, *r, *size, out) as usize),
            Call::Progress(c, h) => {
                self.on_progress(now, *c, *h);
                Answer::None
            }
            Call::HeldUp(c) => {
                self.on_held_up(now, *c);
                Answer::None
            }
            Call::Overslept(awake) => {
                self.on_overslept(*awake);
                Answer::None
            }
            Call::Timeout => Answer::Expired(self.on_blocking_timeout(now)),
            Call::RepeatCallbacks(c) => {
                self.repeat_callbacks(*c, out);
                Answer::None
            }
            Call::Reclaim(want) => Answer::Count(self.reclaim(now, *want, out)),
            Call::RecallAll => Answer::Count(self.recall_all(now, out)),
            Call::Evict(c) => Answer::Evicted(self.evict(now, *c, out)),
            Call::Replay(c, r) => Answer::Replay(self.replay(now, *c, r)),
            Call::Flock(c, req) => Answer::Flock(self.flock_set(*c, req, out)),
            Call::FlockTest(c, req) => Answer::FlockTest(self.flock_test(*c, req)),
            Call::FlockCancel(c, k) => Answer::Count(usize::from(self.flock_cancel_wait(*c, *k))),
            Call::FlockDrop(c, fid, kind, owner) => {
                self.flock_drop_owner(*c, *fid, *kind, *owner, out);
                Answer::None
            }
            Call::FlockReplay(c, range) => Answer::FlockReplay(self.flock_replay(*c, range)),
        }
    }
}

/// A namespace that takes everything down.
#[derive(Clone, Debug)]
pub struct Recorder {
    namespace: Namespace,
    log: Vec<Record>,
}

impl Recorder {
    /// A fresh namespace with an empty log.
    #[must_use]
    pub fn new(config: NamespaceConfig) -> Recorder {
        Recorder { namespace: Namespace::new(config), log: Vec::new() }
    }
    /// Carries out and takes down. The actions are also appended to `out`.
    pub fn call(&mut self, now: Instant, call: Call, out: &mut Vec<Action>) -> Answer {
        let mut actions = Vec::new();
        let answer = self.namespace.apply(now, &call, &mut actions);
        out.extend(actions.iter().copied());
        self.log.push(Record { now, call, answer: answer.clone(), actions });
        answer
    }
    /// The namespace, to look at.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
    /// The log so far.
    #[must_use]
    pub fn log(&self) -> &[Record] {
        &self.log
    }
}

/// Gives the calls of a log to a fresh namespace.
///
/// # Errors
/// The position of the first line that is answered differently, and the answer and actions it got now.
pub fn replay(config: NamespaceConfig, log: &[Record]) -> Result<Namespace, (usize, Answer, Vec<Action>)> {
    let mut namespace = Namespace::new(config);
    for (i, line) in log.iter().enumerate() {
        let mut actions = Vec::new();
        let answer = namespace.apply(line.now, &line.call, &mut actions);
        if answer != line.answer || actions != line.actions {
            return Err((i, answer, actions));
        }
    }
    Ok(namespace)
}
