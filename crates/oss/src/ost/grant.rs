//! Grant that comes back: clients are asked for what they do not need when space is short, and give some back by
//! themselves when they have been idle.
//!
//! Source: grant shrinking of the field's servers. Differs: a server that is short of space asks at once, before it
//! refuses a write for lack of space, instead of waiting until clients have been idle for long.
use std::cell::Cell;
use std::rc::Rc;

use ptlrpc::Request;
use rt::sync::{Event, join_all};
use types::{Duration, FsError, Instant, MIB};
use wire::Op;
use wire::ost::{AskGrantCallback, ShrinkGrantRequest};

use super::{Ost, answer};

/// How long clients have to give grant back before a write is refused without it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Clients are not asked again before this has passed.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// What an idle client may keep when others would like more grant.
const KEEP_BYTES: u64 = MIB;

/// Asking clients for grant.
#[derive(Default)]
pub(crate) struct Asks {
    /// Somebody asks.
    running: Cell<bool>,
    ended: Event,
    last: Cell<Option<Instant>>,
    /// A client wanted more grant, and there was none.
    short: Cell<bool>,
}

impl Ost {
    /// A client gives grant back.
    pub(super) fn shrink_grant(&self, request: Request) {
        let reply = request.decode().map(|ask: ShrinkGrantRequest| {
            // What another process granted is in no book any more.
            if ask.boot == request.export.boot() && !request.export.is_ended() {
                self.grants.borrow_mut().take_back(request.client(), request.header.xid, ask.bytes);
            }
        });
        answer(request, &reply);
    }

    /// A client wanted more grant and there was none.
    pub(super) fn note_short_of_grant(&self) {
        self.asks.short.set(true);
    }

    /// Asks for grant that others do not need, if somebody wanted some in vain.
    pub(super) fn relieve(self: &Rc<Self>) {
        if !self.asks.short.replace(false) || self.asks.running.get() || !self.may_ask() {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            me.take_grants_back(KEEP_BYTES).await;
        });
    }

    fn may_ask(&self) -> bool {
        let lately = self.asks.last.get().is_some_and(|at| self.rt.now().since(at) < ASK_AGAIN);
        !lately && self.grants.borrow().total() > 0
    }

    /// Asks every client for the grant that it does not need, but for `keep`, and waits until they have given it back, for
    /// [`PATIENCE`] at most. Whether anybody was asked.
    pub async fn take_grants_back(&self, keep: u64) -> bool {
        if self.asks.running.get() {
            self.asks.ended.wait().await;
            return true;
        }
        if !self.may_ask() {
            return false;
        }
        self.asks.running.set(true);
        let _asking = Asking(&self.asks);
        let holders: Vec<_> = {
            let (grants, exports) = (self.grants.borrow(), self.exports.borrow());
            let rich = grants.iter().filter(|(_, bytes)| *bytes > keep);
            rich.filter_map(|(client, _)| exports.get(&client).filter(|e| e.is_connected()).cloned()).collect()
        };
        let before = self.grants.borrow().total();
        let asked = holders.iter().map(|e| e.callback(Op::OstAskGrant, &AskGrantCallback { keep }, PATIENCE)).collect();
        let answers: Vec<Result<Vec<u8>, FsError>> = join_all(asked).await;
        self.asks.last.set(Some(self.rt.now()));
        let given = before.saturating_sub(self.grants.borrow().total());
        let silent = answers.iter().filter(|a| a.is_err()).count();
        tracing::info!(
            target = self.identity.target(),
            clients = answers.len(),
            silent,
            given,
            "asked for unused grant"
        );
        true
    }
}

/// While it lives, others wait for the answers that it waits for.
struct Asking<'a>(&'a Asks);
impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
        self.0.ended.notify();
    }
}
