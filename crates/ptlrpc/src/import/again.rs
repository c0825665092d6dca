//! Requests that a target had no room for (`FsError::Overloaded`), of which nothing was carried out, and those that change nothing and for
//! whose answer this client had no frames. They are sent again after a pause, each time under a number of its own, as long as somebody
//! waits for the answer.
//!
//! The slot stays taken meanwhile: a target that is too busy gets fewer requests of this client at a time, not more.
use std::rc::Rc;

use types::{Duration, Xid};
use wire::{Flags, Header};

use super::{Import, ImportState, Pending};

/// The first pause is at most this long; it doubles with every refusal.
const PAUSE_FIRST: Duration = Duration::from_millis(4);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest pause of a request that a lock callback waits for, which has a promise to keep.
const PAUSE_URGENT_MAX: Duration = Duration::from_millis(50);

impl Import {
    /// How long a request waits that was refused so often: half of the time is drawn, so that clients that were refused
    /// together do not come back together.
    pub(super) fn pause_after(&self, refusals: u32, flags: Flags) -> Duration {
        let most = if flags.has(Flags::URGENT) { PAUSE_URGENT_MAX } else { PAUSE_MAX };
        let half = (PAUSE_FIRST * (1 << refusals.min(16))).min(most) / 2;
        half + Duration::from_nanos(self.rt.random() % u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1))
    }

    /// The target had no room for a request, or we had none for its answer: it is sent again after a pause.
    pub(super) fn come_again(self: &Rc<Self>, mut p: Pending) {
        self.refused_requests.set(self.refused_requests.get() + 1);
        if p.waiter.as_ref().is_none_or(rt::sync::OneSender::is_abandoned) {
            return self.give_slot_back(p.header.slot_or_credits);
        }
        let xid = self.new_xid();
        p.header.xid = xid;
        (p.refusals, p.asleep) = (p.refusals.saturating_add(1), true);
        let pause = self.pause_after(p.refusals, p.header.flags);
        self.pending.borrow_mut().insert(xid, p);
        let (me, rt) = (Rc::downgrade(self), self.rt.clone());
        self.rt.spawn(async move {
            rt.sleep(pause).await;
            if let Some(me) = me.upgrade() {
                me.pause_ended(xid);
            }
        });
    }

    /// There were no frames for the bulk of an answer, of which nothing was kept. Only requests that change nothing are answered with
    /// bulk: they are carried out again.
    pub(super) fn on_skipped(self: &Rc<Self>, header: &Header) {
        self.note_committed(header.last_committed, false);
        let Some(p) = self.pending.borrow_mut().remove(&header.xid) else { return };
        self.note_answer(p.sent);
        tracing::debug!(target = self.config.target, op = ?header.op, bytes = header.bulk_len, "no frames for an answer: asked for again");
        self.come_again(p);
    }

    fn pause_ended(&self, xid: Xid) {
        let mut pending = self.pending.borrow_mut();
        let Some(p) = pending.get_mut(&xid) else { return };
        p.asleep = false;
        (p.sent, p.deadline) = (self.rt.now(), self.rt.now() + self.patience());
        if p.waiter.as_ref().is_none_or(rt::sync::OneSender::is_abandoned) {
            let slot = p.header.slot_or_credits;
            pending.remove(&xid);
            drop(pending);
            return self.give_slot_back(slot);
        }
        let (header, body, bulk) = (p.header, p.body.clone(), p.bulk.clone());
        drop(pending);
        // Without a session it goes with those that are sent again on the next connection.
        if self.state.get() == ImportState::Full {
            self.transmit(header, body, bulk);
        }
    }
}
