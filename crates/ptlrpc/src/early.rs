//! Early replies: a server that needs longer for a request than its client will wait says so before, and asks for more time.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use frames::Bulk;
use rt::Rt;
use types::{Duration, Instant};
use wire::{Flags, Header, Op};

use crate::export::Export;

/// No client is asked to wait for longer than this at once.
const PATIENCE_MAX: Duration = Duration::from_secs(600);

/// How often a client hears of a request at least: a server that takes no pings, because it has no memory for what stands before
/// them, is alive as well.
const EVERY: Duration = Duration::from_secs(2);

/// Requests of a session that are under way, by the time at which their clients must hear of them.
#[derive(Default)]
pub(crate) struct Early {
    due: RefCell<BTreeMap<(Instant, u64), (Header, Instant)>>,
    next: Cell<u64>,
    watched: Cell<bool>,
    /// What the client said last of how long it waits; zero: an earlier program, which knows no early replies.
    patience: Cell<Duration>,
    sent: Cell<u64>,
}

/// A request in the list above.
pub(crate) type Place = (Instant, u64);

fn patience_of(header: &Header) -> Option<Duration> {
    let told = !header.flags.has(Flags::BULK_CRC) && header.patience > 0;
    told.then(|| Duration::from_nanos(u64::from(header.patience) << 20))
}

impl Export {
    /// Early replies sent.
    #[must_use]
    pub fn early_replies(&self) -> u64 {
        self.early.sent.get()
    }
    /// Whether a request has been under way for `time` at `now`; one that asks for a lock is not meant, others may keep it waiting.
    #[must_use]
    pub fn is_kept_for(&self, time: Duration, now: Instant) -> bool {
        self.early.due.borrow().values().any(|(header, came)| now.since(*came) >= time && header.op != Op::LockEnqueue)
    }
    /// What a message says of its client's patience is remembered for those that cannot say it.
    pub(crate) fn note_patience(&self, header: &Header) {
        if let Some(patience) = patience_of(header) {
            self.early.patience.set(patience.min(PATIENCE_MAX));
        }
    }
    /// A request is under way from now on.
    pub(crate) fn under_way(self: &Rc<Self>, rt: &Rt, header: &Header) -> Option<Place> {
        let patience = patience_of(header).unwrap_or(self.early.patience.get()).min(PATIENCE_MAX);
        if patience.is_zero() {
            return None;
        }
        let (number, now) = (self.early.next.get(), rt.now());
        self.early.next.set(number + 1);
        let place = (now + (patience / 2).min(EVERY), number);
        self.early.due.borrow_mut().insert(place, (*header, now));
        if !self.early.watched.replace(true) {
            let (me, rt2) = (Rc::downgrade(self), rt.clone());
            rt.spawn(async move {
                while let Some(pause) = me.upgrade().and_then(|e| e.ask_for_time(&rt2)) {
                    rt2.sleep(pause).await;
                }
            });
        }
        Some(place)
    }
    /// A request is answered, wherever it stands by now.
    pub(crate) fn answered(&self, place: Option<Place>) {
        let Some((_, number)) = place else { return };
        let mut due = self.early.due.borrow_mut();
        if place.is_some_and(|p| due.remove(&p).is_none()) {
            due.retain(|(_, n), _| *n != number);
        }
    }
    /// Asks for more time for what is due; gives how long to wait until more is. `None`: nothing is under way.
    fn ask_for_time(&self, rt: &Rt) -> Option<Duration> {
        let now = rt.now();
        loop {
            let mut due = self.early.due.borrow_mut();
            let Some((&(at, number), &(header, since))) = due.first_key_value() else {
                self.early.watched.set(false);
                return None;
            };
            if at > now {
                return Some(at.since(now));
            }
            due.remove(&(at, number));
            // As long again as it has taken, but not less than was said before.
            let more =
                (now.since(since) * 2).max(self.early.patience.get()).clamp(Duration::from_secs(1), PATIENCE_MAX);
            due.insert((now + (more / 2).min(EVERY), number), (header, since));
            drop(due);
            let mut reply = header.reply(Ok(()));
            reply.flags = reply.flags.with(Flags::EARLY);
            reply.patience = u32::try_from(more.as_nanos() >> 20).unwrap_or(u32::MAX);
            self.early.sent.set(self.early.sent.get() + 1);
            if let Some(sink) = self.sink.borrow().clone() {
                sink.send(reply, Vec::new(), Bulk::new());
            }
        }
    }
}
