//! How long a client waits for a server: as long as it took lately, and longer when the server asks for it.
//!
//! Two things are measured over a window of time: how long requests take, and how long a ping takes, which no queue of the server
//! holds up. Every request says how long its client will wait; a server that needs longer says so before (an early reply).
//! A server is dead when it leaves a ping without an answer, and an overdue request that it says nothing of is sent again over
//! a new connection. While bytes move, what is behind them is not waited for: a ping behind bulk that goes out, an answer behind bulk
//! that comes in. A link may need minutes for one message.
//! Source: Lustre's adaptive timeouts; parameters keep its names. Differs: a ping is not queued, so a busy server is told from
//! a dead one by it, and early replies are for requests only.
use std::cell::Cell;
use std::rc::Weak;

use frames::Bulk;
use types::{Duration, Instant, Xid};
use wire::{Header, Op};

use super::{Import, ImportState, NO_SLOT, Pending};

/// Parts into which the window of a measurement falls; the oldest goes as a whole.
const BINS: usize = 4;

/// Bounds of adaptive timeouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdaptiveTimeouts {
    /// `at_min`: nothing is waited for less. Default 5 s.
    pub min: Duration,
    /// `at_max`: nothing is waited for longer. Default 600 s.
    pub max: Duration,
    /// `at_history`: how long a slow answer is remembered. Default 600 s.
    pub history: Duration,
}

impl Default for AdaptiveTimeouts {
    fn default() -> AdaptiveTimeouts {
        AdaptiveTimeouts {
            min: Duration::from_secs(5),
            max: Duration::from_secs(600),
            history: Duration::from_secs(600),
        }
    }
}

/// The longest of what was measured lately.
#[derive(Clone, Copy, Default)]
pub(super) struct Estimate {
    bins: [Duration; BINS],
    begun: Instant,
}

impl Estimate {
    /// Takes a measurement.
    pub(super) fn note(&mut self, now: Instant, took: Duration, history: Duration) {
        let bin = history / BINS as u32;
        let mut passed = now.since(self.begun);
        for _ in 0..BINS {
            if passed < bin {
                break;
            }
            passed -= bin;
            self.bins.rotate_right(1);
            self.bins[0] = Duration::ZERO;
            self.begun = now;
        }
        self.bins[0] = self.bins[0].max(took);
    }
    /// The longest.
    pub(super) fn get(&self) -> Duration {
        self.bins.into_iter().max().unwrap_or_default()
    }
}

/// An import's measurements.
#[derive(Default)]
pub(super) struct Measured {
    service: Cell<Estimate>,
    ping: Cell<Estimate>,
    /// When the ping was sent whose answer, or anything else, has not come yet.
    asked: Cell<Option<Instant>>,
    /// When it was looked how far the connection is, as which of all connections, and how far it was.
    looked: Cell<(Instant, u64, rt::Moved)>,
    early_replies: Cell<u64>,
}

impl Import {
    /// Sets the bounds of adaptive timeouts.
    pub fn set_timeouts(&self, timeouts: AdaptiveTimeouts) {
        self.timeouts.set(timeouts);
    }
    /// How long requests took at most lately.
    #[must_use]
    pub fn service_time(&self) -> Duration {
        self.measured.service.get().get()
    }
    /// How often the server asked for more time.
    #[must_use]
    pub fn early_replies(&self) -> u64 {
        self.measured.early_replies.get()
    }
    /// How long a request that is sent now is waited for.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let at = self.timeouts.get();
        (self.service_time() * 5 / 4 + at.min / 5).clamp(at.min, at.max.max(at.min))
    }
    /// The same as a header has it.
    pub(super) fn patience_told(&self) -> u32 {
        u32::try_from(self.patience().as_nanos() >> 20).unwrap_or(u32::MAX)
    }
    /// A request was answered that was sent then.
    pub(super) fn note_answer(&self, sent: Instant) {
        let (now, at) = (self.rt.now(), self.timeouts.get());
        let mut service = self.measured.service.get();
        service.note(now, now.since(sent), at.history);
        self.measured.service.set(service);
    }
    /// Something came from the server.
    pub(super) fn note_heard(&self) {
        let now = self.rt.now();
        if let Some(asked) = self.measured.asked.take() {
            let mut ping = self.measured.ping.get();
            ping.note(now, now.since(asked), self.timeouts.get().history);
            self.measured.ping.set(ping);
        }
        self.heard.set(now);
    }
    /// The server needs more time for a request.
    pub(super) fn on_early_reply(&self, header: &Header) {
        self.measured.early_replies.set(self.measured.early_replies.get() + 1);
        if let Some(p) = self.pending.borrow_mut().get_mut(&header.xid) {
            p.deadline = self.rt.now() + Duration::from_nanos(u64::from(header.patience) << 20);
        }
    }
    pub(super) fn send_ping(&self) {
        let mut ping = Header::request(Op::Ping, self.config.client, Xid(0));
        (ping.slot_or_credits, ping.patience) = (NO_SLOT, self.patience_told());
        self.transmit(ping, Vec::new(), Bulk::new());
    }
    /// Why the connection is of no use any more, if that is so; a silent server is asked.
    fn look_after_connection(&self) -> Option<String> {
        // A server that loses its power while we replay says nothing either.
        if !matches!(self.state.get(), ImportState::Full | ImportState::Replaying) {
            self.measured.asked.set(None);
            return None;
        }
        self.note_moving();
        let (now, at) = (self.rt.now(), self.timeouts.get());
        let mut overdue = None;
        let mut waiting = false;
        // Ordinary requests go out when the recovery is over: until then nobody lets them wait.
        let replaying = self.state.get() == ImportState::Replaying;
        let is_sent = |p: &&Pending| !p.asleep && (!replaying || p.header.slot_or_credits == NO_SLOT);
        for p in self.pending.borrow().values().filter(is_sent) {
            waiting = true;
            if p.deadline < now {
                overdue = Some((p.header.op, now.since(p.sent)));
            }
        }
        // Servers evict whom they do not hear of, also while it is they who take their time, or their answers.
        let said = now.since(self.spoken.get()) < self.config.ping_interval;
        if let Some(asked) = self.measured.asked.get() {
            let patience = (self.measured.ping.get().get() * 2 + at.min / 4).clamp(at.min / 2, at.max.max(at.min / 2));
            let silent = now.since(asked);
            if silent < patience && !said {
                self.send_ping();
            }
            return (silent >= patience).then(|| format!("no answer to a ping for {silent:?}"));
        }
        if let Some((op, since)) = overdue {
            return Some(format!("{op:?} is overdue after {since:?}, and the server did not ask for more time"));
        }
        let ask_after = if waiting { at.min / 2 } else { self.config.ping_interval };
        if now.since(self.heard.get()) >= ask_after || !said {
            self.measured.asked.set(Some(now));
            self.send_ping();
        }
        None
    }
    /// The time since the last look counts for nothing that is waited for when bytes moved on which it may wait. A request that is
    /// waited for longer than `at_max` waits for something else.
    fn note_moving(&self) {
        let Some(sink) = self.sink.borrow().clone() else { return };
        let (now, connection, moved) = (self.rt.now(), self.connects.get(), sink.moved());
        let (looked, of, before) = self.measured.looked.replace((now, connection, moved));
        let comes = moved.is_amid_bulk && moved.in_bytes > before.in_bytes;
        let goes = moved.waiting_bytes > 0 && moved.out_bytes > before.out_bytes;
        if of != connection || !(comes || goes) {
            return;
        }
        let (since, at_max) = (|t: Instant| now.since(t.max(looked)), self.timeouts.get().max);
        if let Some(asked) = self.measured.asked.get() {
            self.measured.asked.set(Some(asked + since(asked)));
        }
        for p in self.pending.borrow_mut().values_mut().filter(|p| now.since(p.sent) < at_max) {
            p.deadline = p.deadline + since(p.sent);
        }
    }
    fn looks_every(&self) -> Duration {
        (self.timeouts.get().min / 4).min(self.config.ping_interval / 2).max(Duration::from_millis(10))
    }
}

/// Pings a silent server and gives a dead connection up.
pub(super) async fn keep_alive(import: Weak<Import>) {
    loop {
        let Some(me) = import.upgrade() else { return };
        if me.state.get() == ImportState::Closed {
            return;
        }
        if let Some(why) = me.look_after_connection() {
            tracing::warn!(target = me.config.target, "{why}: connecting anew");
            me.measured.asked.set(None);
            if let Some(sink) = me.sink.borrow_mut().take() {
                sink.close();
            }
        }
        let (rt, pause) = (me.rt.clone(), me.looks_every());
        drop(me);
        rt.sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_remembered_for_the_length_of_the_history_and_no_longer() {
        let history = Duration::from_secs(600);
        let mut e = Estimate::default();
        let at = |s: u64| Instant(s * 1_000_000_000);
        e.note(at(1000), Duration::from_secs(30), history);
        for s in (1001..1440).step_by(7) {
            e.note(at(s), Duration::from_millis(3), history);
            assert_eq!(e.get(), Duration::from_secs(30), "{s}");
        }
        for s in (1440..1800).step_by(7) {
            e.note(at(s), Duration::from_millis(3), history);
        }
        assert_eq!(e.get(), Duration::from_millis(3));
        e.note(at(9000), Duration::from_millis(2), history);
        assert_eq!(e.get(), Duration::from_millis(2), "after a long silence");
    }
}
