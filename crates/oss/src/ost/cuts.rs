//! Cuts of striped files: promised by clients, decided by the metadata server, finished here when the client is gone.
use std::rc::Rc;

use cache::PageAccess;
use ptlrpc::Request;
use types::{Duration, FsError, ObjectId};
use wire::Op;
use wire::ost::{AskCutCallback, AskCutReply, PromiseRequest};

use super::{Ost, answer};
use crate::promises::Promise;
use crate::store::{BLOCK_BYTES, BlockRange, TimeRule, Update};

/// How long the metadata server may take to answer one question.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause before it is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How long an object stays in doubt. Locks on it are granted meanwhile and not told, so it is below the time in which a
/// holder has to answer a callback; a metadata server that is away for longer leaves the cut undone here.
const DOUBT_MAX: Duration = Duration::from_secs(20);

impl Ost {
    pub(super) fn promise(&self, request: Request) {
        let reply = request.decode().and_then(|ask: PromiseRequest| self.do_promise(&request, &ask));
        answer(request, &reply);
    }

    fn do_promise(&self, request: &Request, ask: &PromiseRequest) -> Result<(), FsError> {
        let (client, object) = (request.client(), ask.object);
        let promise = Promise { client, number: ask.number, size: ask.size };
        if ask.withdrawn {
            let own = |p: &Promise| p.client == client && p.number == ask.number;
            let settles = self.locks.promises.is_in_doubt(object);
            if let Some(p) = self.locks.promises.get(object).filter(own).filter(|_| !settles) {
                self.locks.promises.end(object, &p);
            }
            return Ok(());
        }
        if request.export.is_evicted() {
            return Err(FsError::NotConnected);
        }
        if !self.locks.may_promise(client, object, ask.size) {
            return Err(FsError::Stale);
        }
        self.locks.promises.make(object, promise)
    }

    /// A client that had promised a cut is gone: the metadata server says whether it was decided.
    pub(super) async fn settle_cut(self: Rc<Self>, object: ObjectId, promise: Promise) {
        let target = self.identity.target();
        match self.rt.timeout(DOUBT_MAX, self.ask_whether_cut(&promise)).await {
            Some(true) => match self.finish_cut(object, &promise).await {
                Ok(()) => tracing::info!(target, %object, client = %promise.client, size = promise.size,
                    "a cut whose client is gone was finished"),
                Err(FsError::NotFound) => {}
                Err(e) => tracing::error!(target, %object, client = %promise.client,
                    "a cut whose client is gone could not be finished: {e}"),
            },
            Some(false) => {}
            None => tracing::warn!(target, %object, client = %promise.client,
                "the metadata server does not say whether a cut was decided whose client is gone: it is not"),
        }
        self.locks.promises.end(object, &promise);
    }

    async fn ask_whether_cut(&self, promise: &Promise) -> bool {
        let ask = AskCutCallback { client: promise.client, number: promise.number };
        loop {
            let server = self.creators.latest().and_then(|c| self.exports.borrow().get(&c).cloned());
            if let Some(server) = server {
                let answer = server.callback(Op::OstAskCut, &ask, ANSWER_MAX).await;
                if let Ok(Ok(AskCutReply { decided })) = answer.map(|body| wire::decode(&body)) {
                    return decided && !types::planted!("cut-unfinished");
                }
            }
            self.rt.sleep(RETRY_PAUSE).await;
        }
    }

    /// Cuts the object as its client would have, unless a request of that client was under way and has done so.
    async fn finish_cut(&self, object: ObjectId, promise: &Promise) -> Result<(), FsError> {
        let _gate = self.gate.hold(object, BlockRange::new(promise.size / BLOCK_BYTES, u64::MAX)).await;
        if self.locks.promises.get(object) != Some(*promise) {
            return Ok(());
        }
        let attr = self.store.attr(object).await?;
        let (update, puts) = self.truncate(object, &attr, promise.size).await?;
        let now = self.rt.wall();
        let update = Update { mtime: TimeRule::AtLeast(now), ctime: now, ..update };
        self.put(object, puts, update, PageAccess::fine(0).written()).await?;
        Ok(())
    }

    /// A cut was carried out: with it the promise of it is kept.
    pub(super) fn kept_promise(&self, request: &Request, object: ObjectId, size: u64) {
        let kept = |p: &Promise| p.client == request.client() && p.size == size;
        if let Some(p) = self.locks.promises.get(object).filter(kept) {
            self.locks.promises.end(object, &p);
        }
    }
}
