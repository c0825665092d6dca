//! Cuts of striped files: promised by clients, decided by the metadata server, finished here when the client does not.
use std::rc::Weak;

use cache::PageAccess;
use ptlrpc::{RecoveryControl, Request};
use types::{Duration, FsError, ObjectId};
use wire::Op;
use wire::ost::{AskCutCallback, AskCutReply, PromiseRequest};

use super::{Ost, answer};
use crate::store::{BLOCK_BYTES, BlockRange, Promise, TimeRule, Update};

/// How long the metadata server may take to answer one question.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause before something is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How often the block of a cut's new end is read again before it counts as damaged: a transfer may bring wrong bytes of a
/// block that is whole, and a cut that is given up is done on the other OSTs only. A removal is not given up: its file has other objects,
/// and whoever does not know that yet would write to this one.
const DAMAGED_READS_MAX: u32 = 40;
/// Pause before a removal is tried again that failed so often.
const DAMAGED_PAUSE: Duration = Duration::from_secs(10);

impl Ost {
    /// Takes up the promises of before. Whoever is known may come back and keep them; the others are in doubt from the start,
    /// and their objects are settled once recovery is over.
    pub(super) fn recall_promises(&self) {
        let me = self.me.clone();
        self.locks.promises.on_doubt(Box::new(move |object, promise| {
            if let Some(ost) = me.upgrade() {
                ost.rt.clone().spawn(settle_cut(me.clone(), object, promise));
            }
        }));
        let known = self.store.sessions();
        for (object, promise) in self.store.promises() {
            self.locks.promises.recall(object, promise);
            if !known.iter().any(|(c, _)| *c == promise.client) {
                self.locks.promises.doubt(object, &promise);
            }
        }
    }

    /// Recovery is over: who came back without the lock under which it promised has given it back.
    pub(super) fn recheck_promises(&self) {
        for (object, promise) in self.locks.promises.all_open() {
            if !self.locks.may_promise(object, &promise) {
                self.locks.promises.doubt(object, &promise);
            }
        }
        self.is_recovered.set(true);
        self.recovered.notify();
    }

    fn is_recovering(&self) -> bool {
        !self.is_recovered.get() && self.recovery.borrow().as_ref().is_some_and(RecoveryControl::is_active)
    }

    pub(super) async fn promise(&self, request: Request) {
        let reply = match request.decode::<PromiseRequest>() {
            Ok(ask) if ask.withdrawn => self.withdraw(&request, &ask).await,
            Ok(ask) => self.do_promise(&request, &ask).await,
            Err(e) => Err(e),
        };
        answer(request, &reply);
    }

    async fn do_promise(&self, request: &Request, ask: &PromiseRequest) -> Result<(), FsError> {
        let (client, object) = (request.client(), ask.object);
        let promise = Promise { client, number: ask.number, size: ask.size };
        if request.export.is_ended() {
            return Err(FsError::NotConnected);
        }
        if !promise.is_possible() {
            return Err(FsError::FileTooBig);
        }
        if !self.locks.may_promise(object, &promise) {
            return Err(FsError::Stale);
        }
        // What its client does not speak of any more may have been decided nevertheless.
        if let Some(earlier) = self.locks.promises.open(object).filter(|p| p.number != ask.number) {
            self.locks.promises.doubt(object, &earlier);
            self.locks.settled(object).await;
            // Meanwhile its session may have ended, which nobody tells a promise that is made from then on.
            if request.export.is_ended() {
                return Err(FsError::NotConnected);
            }
            if !self.locks.may_promise(object, &promise) {
                return Err(FsError::Stale);
            }
        }
        self.locks.promises.make(object, promise, self.store.last_committed())?;
        if types::planted!("promise-not-stored") {
            return Ok(());
        }
        if let Err(e) = self.store.set_promise(object, Some(promise)).await {
            self.locks.promises.end(object, &promise);
            return Err(e);
        }
        // With the lock it may have gone meanwhile.
        if self.locks.promises.open(object) == Some(promise) { Ok(()) } else { Err(FsError::Stale) }
    }

    /// A client knows that its cut was not decided, and does not ask for it any more.
    async fn withdraw(&self, request: &Request, ask: &PromiseRequest) -> Result<(), FsError> {
        let own = |p: &Promise| p.client == request.client() && p.number == ask.number;
        let Some(promise) = self.locks.promises.open(ask.object).filter(own) else { return Ok(()) };
        self.locks.promises.end(ask.object, &promise);
        // If this is lost, the metadata server knows of no such cut.
        self.store.set_promise(ask.object, None).await
    }

    /// Cuts the object as its client would have, or removes it, until that is on stable storage.
    async fn finish_cut(&self, object: ObjectId, promise: &Promise) -> Result<(), FsError> {
        if promise.removes() {
            self.remove(&[object], None).await?;
            return self.store.sync().await;
        }
        let _gate = self.gate.hold(ldlm::LOCAL, object, BlockRange::new(promise.size / BLOCK_BYTES, u64::MAX)).await;
        let attr = self.store.attr(object).await?;
        let (update, puts) = self.truncate(object, &attr, promise.size).await?;
        let now = self.rt.wall();
        let update = Update { mtime: TimeRule::AtLeast(now), ctime: now, keeps_promise: true, ..update };
        let cut = self.locks.marks.begin(object);
        self.put(object, puts, update, PageAccess::fine(0).written()).await?;
        drop(cut);
        self.store.sync().await
    }

    /// Whether the metadata server says that a cut was decided; `None`: it does not answer.
    async fn ask_whether_cut(&self, promise: &Promise) -> Option<bool> {
        let ask = AskCutCallback { client: promise.client, number: promise.number };
        let server = self.creators.latest().and_then(|c| self.exports.borrow().get(&c).cloned())?;
        let body = server.callback(Op::OstAskCut, &ask, ANSWER_MAX).await.ok()?;
        let AskCutReply { decided } = wire::decode(&body).ok()?;
        Some(decided && !types::planted!("cut-unfinished"))
    }

    /// One step towards settling a promise that is in doubt, after so many that found a damaged block. Whether it is settled.
    async fn try_to_settle(&self, object: ObjectId, promise: &Promise, damaged: &mut u32) -> bool {
        let target = self.identity.target();
        let Some(decided) = self.ask_whether_cut(promise).await else {
            if !self.doubts_told.replace(true) {
                tracing::warn!(target, %object, client = %promise.client,
                    "waits for the metadata server to say whether a cut was decided that its client did not finish");
            }
            return false;
        };
        let done = if decided { self.finish_cut(object, promise).await } else { Err(FsError::NotFound) };
        match done {
            Ok(()) if promise.removes() => {
                tracing::debug!(target, %object, client = %promise.client, "removed: its file has other objects");
            }
            Ok(()) => tracing::info!(target, %object, client = %promise.client, size = promise.size,
                "a cut that its client did not finish was finished"),
            Err(FsError::NoSpace | FsError::NoMemory | FsError::Overloaded) => return false,
            Err(FsError::Corrupt | FsError::Io) if *damaged < DAMAGED_READS_MAX => {
                *damaged += 1;
                return false;
            }
            Err(e) if e != FsError::NotFound && promise.removes() => {
                if *damaged == DAMAGED_READS_MAX {
                    *damaged += 1;
                    tracing::error!(target, %object, "its file has other objects, and it cannot be removed ({e}): it is tried again; \
                        'stria fsck' on the stopped cluster says what is damaged");
                }
                return false;
            }
            Err(e) => {
                if e != FsError::NotFound {
                    tracing::error!(target, %object, client = %promise.client,
                        "a cut that its client did not finish cannot be finished: {e}");
                }
                // If this is lost, it is asked for again, and the answer is the same.
                let _ = self.store.set_promise(object, None).await;
            }
        }
        self.locks.promises.end(object, promise);
        if self.locks.promises.in_doubt() == 0 {
            self.doubts_told.set(false);
        }
        true
    }
}

/// Finds out what becomes of a promise that is in doubt, and does it. The object waits meanwhile, however long it takes.
async fn settle_cut(ost: Weak<Ost>, object: ObjectId, promise: Promise) {
    let mut damaged = 0;
    loop {
        let Some(me) = ost.upgrade() else { return };
        let rt = me.rt.clone();
        if me.is_recovering() {
            // Its client's own cut may still come back, and what this is numbered as must not be one of a replay.
            let recovered = me.recovered.clone();
            drop(me);
            recovered.wait().await;
            continue;
        }
        if me.try_to_settle(object, &promise, &mut damaged).await {
            return;
        }
        drop(me);
        rt.sleep(if damaged < DAMAGED_READS_MAX { RETRY_PAUSE } else { DAMAGED_PAUSE }).await;
    }
}
