//! The recovery window of a restarted target: replays in transaction order, everything else afterwards.
//!
//! Every client that the store knew is waited for until it says it is done or the window closes. Each client sends
//! its replays one at a time in transaction order, so the next transaction to carry out is the lowest one offered as
//! soon as every client still expected has offered one. Where replays of different clients are independent of each other, the
//! lowest one offered is carried out at once.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rt::Rt;
use rt::sync::{Event, OneSender, oneshot};
use types::{ClientId, Duration, Instant, Transno};
use wire::{Flags, Header, Op};

/// How long a restarted target waits before it begins without whoever can be done without: clients that live are back within a
/// second.
const BEGIN_AFTER: Duration = Duration::from_secs(2);

pub(crate) struct Recovery {
    rt: Rt,
    begun: Instant,
    deadline: Cell<Instant>,
    window: Duration,
    state: Rc<State>,
}

struct State {
    rt: Rt,
    active: Cell<bool>,
    /// Replays of different clients are independent of each other.
    independent: Cell<bool>,
    /// Clients that have nothing to replay, back or not.
    nothing_to_replay: RefCell<BTreeSet<ClientId>>,
    /// Clients that have not said they are done, and when each last showed that it is at work.
    expected: RefCell<BTreeMap<ClientId, Option<Instant>>>,
    /// Replays offered, by transaction.
    offered: RefCell<BTreeMap<(Transno, ClientId), OneSender<()>>>,
    /// Whose replay is being carried out.
    running: Cell<Option<ClientId>>,
    /// Replays of locks that are being carried out, each by its client: nobody's wait for another.
    locking: RefCell<BTreeMap<ClientId, usize>>,
    /// Ordinary service has begun, while somebody is still waited for.
    begun: Cell<bool>,
    changed: Event,
    opened: Event,
    /// An administrator does not want to wait any longer.
    aborted: Cell<bool>,
    /// Somebody did not come back: what it did may be missing.
    gap: Cell<bool>,
}

/// What administrators see of a recovery, and how they end it.
#[derive(Clone)]
pub struct RecoveryControl(Rc<Recovery>);

impl RecoveryControl {
    pub(crate) fn new(recovery: &Rc<Recovery>) -> RecoveryControl {
        RecoveryControl(recovery.clone())
    }
    /// Whether the target still waits for clients of before its restart.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.0.is_active()
    }
    /// Whether somebody did not come back: what it did, and what others knew of it, may not be true any more.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        self.0.has_gap()
    }
    /// Whether a client is waited for: it has not come back, or not told everything yet.
    #[must_use]
    pub fn expects(&self, client: ClientId) -> bool {
        self.0.expects(client)
    }
    /// Somebody did not come back to an earlier recovery, which did not come to its end.
    pub fn note_gap(&self) {
        self.0.state.gap.set(true);
    }
    /// Goes on without whoever has not come back; they are evicted. Who is replaying is heard to the end.
    pub fn abort(&self) {
        self.0.state.aborted.set(true);
        self.0.state.changed.notify();
    }
    /// How long it may still take, and how many clients are waited for; nothing when it is over.
    #[must_use]
    pub fn left(&self) -> (Duration, usize) {
        if !self.is_active() {
            return (Duration::ZERO, 0);
        }
        (self.0.deadline.get().since(self.0.rt.now()), self.0.state.expected.borrow().len())
    }
    /// State, time left and who is waited for, as `recovery_status` shows it.
    #[must_use]
    pub fn text(&self) -> String {
        let active = self.is_active();
        let mut text = format!("status: {}\n", if active { "RECOVERING" } else { "COMPLETE" });
        if active {
            let left = self.0.deadline.get().since(self.0.rt.now()).as_secs();
            if self.0.state.begun.get() {
                text += "service: begun\n";
            }
            text += &format!("recovery_duration: {}\ntime_remaining: {left}\n", self.0.window.as_secs());
            for (client, seen) in self.0.state.expected.borrow().iter() {
                let what = if seen.is_some() { "is replaying" } else { "has not come back" };
                text += &format!("waiting_for: {:016x} {what}\n", client.0);
            }
        }
        text
    }
}

/// The right to carry out a request. That of a replay knows whose lock is replayed, or else the next change's replay starts when it is dropped.
pub(crate) struct Turn(Option<(Rc<State>, Option<ClientId>)>);
impl Drop for Turn {
    fn drop(&mut self) {
        let Some((state, lock_of)) = self.0.take() else { return };
        // Its client has had no chance to offer the next one yet.
        if let Some(client) = lock_of.inspect(|client| state.lock_ended(*client)).or_else(|| state.running.take()) {
            state.note_progress(client);
        }
        state.changed.notify();
        state.next();
    }
}

impl State {
    /// Starts the lowest replay when every expected client has offered one.
    fn next(&self) {
        if self.running.get().is_some() {
            return;
        }
        let mut offered = self.offered.borrow_mut();
        let with_offer: BTreeSet<ClientId> = offered.keys().map(|(_, c)| *c).collect();
        let (expected, silent) = (self.expected.borrow(), self.nothing_to_replay.borrow());
        let all_offered = expected.keys().all(|c| with_offer.contains(c) || silent.contains(c));
        if !self.independent.get() && !all_offered && self.active.get() {
            return;
        }
        let next = if types::planted!("replay-backwards") { offered.pop_last() } else { offered.pop_first() };
        if let Some(((_, client), start)) = next {
            self.running.set(Some(client));
            start.send(());
        }
    }
    /// Whose replay waits for its turn or has it.
    fn waiting(&self) -> BTreeSet<ClientId> {
        let locking = self.locking.borrow();
        self.offered.borrow().keys().map(|(_, c)| *c).chain(self.running.get()).chain(locking.keys().copied()).collect()
    }
    fn lock_ended(&self, client: ClientId) {
        let mut locking = self.locking.borrow_mut();
        match locking.get_mut(&client).filter(|n| **n > 1) {
            Some(n) => *n -= 1,
            None => drop(locking.remove(&client)),
        }
    }
    fn note_progress(&self, client: ClientId) {
        if let Some(at) = self.expected.borrow_mut().get_mut(&client) {
            *at = Some(self.rt.now());
        }
    }
}

impl Recovery {
    pub(crate) fn new(rt: Rt, expected: BTreeSet<ClientId>, window: Duration) -> Recovery {
        let now = rt.now();
        Recovery {
            rt: rt.clone(),
            begun: now,
            deadline: Cell::new(now + window),
            window,
            state: Rc::new(State {
                rt,
                active: Cell::new(!expected.is_empty()),
                independent: Cell::new(false),
                nothing_to_replay: RefCell::default(),
                expected: RefCell::new(expected.into_iter().map(|c| (c, None)).collect()),
                offered: RefCell::default(),
                running: Cell::new(None),
                locking: RefCell::default(),
                begun: Cell::new(false),
                changed: Event::new(),
                opened: Event::new(),
                aborted: Cell::new(false),
                gap: Cell::new(false),
            }),
        }
    }
    /// Nobody's replay waits for another client's.
    pub(crate) fn with_independent_replays(self) -> Recovery {
        self.state.independent.set(true);
        self
    }
    /// Nobody's replay waits for these clients, which have nothing to replay.
    pub(crate) fn with_nothing_to_replay(self, clients: BTreeSet<ClientId>) -> Recovery {
        *self.state.nothing_to_replay.borrow_mut() = clients;
        self
    }
    pub(crate) fn is_active(&self) -> bool {
        self.state.active.get()
    }
    /// Whether a request has to wait for its turn.
    pub(crate) fn holds_up(&self, header: &Header) -> bool {
        self.is_active() && (!self.state.begun.get() || header.flags.has(Flags::REPLAY))
    }
    /// Those who are expected, when all others are done, none of these has come back, and there was time for it.
    pub(crate) fn all_missing(&self) -> Option<Vec<ClientId>> {
        let waited = self.rt.now().since(self.begun.max(self.rt.awake_since())) >= BEGIN_AFTER.min(self.window);
        let expected = self.state.expected.borrow();
        let missing = !expected.is_empty() && expected.values().all(Option::is_none);
        (waited && missing && !self.state.begun.get()).then(|| expected.keys().copied().collect())
    }
    /// Ordinary service begins, and goes on whoever comes back.
    pub(crate) fn open_without(&self) {
        self.state.begun.set(true);
        self.state.opened.notify();
    }
    pub(crate) fn expects(&self, client: ClientId) -> bool {
        self.is_active() && self.state.expected.borrow().contains_key(&client)
    }
    /// A client goes that has not replayed everything: later replays of others may rest on what it did.
    pub(crate) fn client_missing(&self, client: ClientId) {
        if self.expects(client) {
            self.state.gap.set(true);
        }
        self.client_done(client);
    }
    /// Whether somebody's transactions may be missing.
    pub(crate) fn has_gap(&self) -> bool {
        self.state.gap.get()
    }
    pub(crate) fn client_done(&self, client: ClientId) {
        self.state.expected.borrow_mut().remove(&client);
        // Whoever is gone offers nothing any more.
        self.state.offered.borrow_mut().retain(|(_, c), _| *c != client);
        self.state.changed.notify();
        self.state.next();
    }
    /// A replayed request whose answer was remembered: the client goes on to its next.
    pub(crate) fn on_answered_again(&self, _header: &Header) {
        self.state.next();
    }
    /// Clients that do not come back, as soon as they are late; they are to be evicted, and it is asked again. `None` when
    /// every client is done.
    ///
    /// A client is late when the window has closed and it has been silent for half a window. One whose replay waits for
    /// its turn, or has it, and one whose lock's replay is being carried out, is not silent: it waits for those who are. While the server itself stood still nobody was silent.
    /// After ten windows everyone is late.
    pub(crate) async fn next_late(&self) -> Option<Vec<ClientId>> {
        loop {
            let changed = self.state.changed.wait();
            if self.state.expected.borrow().is_empty() {
                return None;
            }
            let (limits, now) = (self.limits(), self.rt.now());
            let late: Vec<ClientId> = limits.iter().filter(|(_, at)| *at <= now).map(|(c, _)| *c).collect();
            if !late.is_empty() {
                return Some(late);
            }
            let next = limits.iter().map(|(_, at)| *at).min().unwrap_or(now);
            let _ = self.rt.timeout(next.since(now), changed).await;
        }
    }
    /// Whether a client is late at this moment.
    pub(crate) fn is_late(&self, client: ClientId) -> bool {
        let now = self.rt.now();
        self.limits().iter().any(|(c, at)| *c == client && *at <= now)
    }
    /// When each client that is waited for is late.
    fn limits(&self) -> Vec<(ClientId, Instant)> {
        let deadline = self.deadline.get();
        let last = deadline + self.window * 9;
        let (waiting, aborted) = (self.state.waiting(), self.state.aborted.get());
        let awake = Some(self.rt.awake_since()).filter(|at| *at > self.begun);
        let until = |client: &ClientId, at: &Option<Instant>| match (*at).max(awake) {
            _ if aborted && at.is_none() => self.begun,
            _ if waiting.contains(client) => last,
            Some(at) => deadline.max(at + self.window / 2).min(last),
            None => deadline,
        };
        self.state.expected.borrow().iter().map(|(c, at)| (*c, until(c, at))).collect()
    }
    /// Nobody could come back for so long: the window goes on behind that, for half of it at least.
    pub(crate) fn postpone(&self, by: Duration) {
        let half = self.rt.now() + self.window / 2;
        self.deadline.set((self.deadline.get() + by).max(half));
    }
    /// Why clients are late.
    pub(crate) fn why_late(&self) -> &'static str {
        if self.state.aborted.get() {
            "recovery was ended by an administrator"
        } else {
            "did not come back within the recovery window"
        }
    }
    /// A client is at work.
    pub(crate) fn note_progress(&self, client: ClientId) {
        self.state.note_progress(client);
    }
    /// Ordinary service begins.
    pub(crate) fn open(&self) {
        self.state.active.set(false);
        self.state.opened.notify();
        self.state.next();
    }
    /// Waits until this request may be carried out: a replay in its order (lock replays at once), others when
    /// recovery is over. `None` when it must not be: its client is gone, or has offered it again.
    pub(crate) async fn turn(&self, header: &Header) -> Option<Turn> {
        if header.flags.has(Flags::REPLAY) {
            self.note_progress(header.client);
            if header.op == Op::LockEnqueue {
                *self.state.locking.borrow_mut().entry(header.client).or_default() += 1;
                return Some(Turn(Some((self.state.clone(), Some(header.client)))));
            }
            let (tx, rx) = oneshot();
            self.state.offered.borrow_mut().insert((header.transno, header.client), tx);
            self.state.changed.notify();
            self.state.next();
            rx.await?;
            self.note_progress(header.client);
            return Some(Turn(Some((self.state.clone(), None))));
        }
        while self.holds_up(header) {
            let opened = self.state.opened.wait();
            if !self.holds_up(header) {
                break;
            }
            opened.await;
        }
        Some(Turn(None))
    }
}

#[cfg(test)]
mod tests {
    use simworld::TestWorld;
    use types::Xid;

    use super::*;

    const GONE: ClientId = ClientId(1);
    const HERE: ClientId = ClientId(2);

    /// Recovery for two clients, one of which never comes; the other offers these replays one after the other and then
    /// may say that it is done. Gives who was late, and the time at the end in seconds.
    fn late(replays: &'static [u64], done: bool) -> (Vec<ClientId>, u64) {
        let world = TestWorld::new(1, 1 << 20);
        let recovery = Rc::new(Recovery::new(world.rt(), BTreeSet::from([GONE, HERE]), Duration::from_secs(30)));
        let of_here = recovery.clone();
        world.rt().spawn(async move {
            for transno in replays {
                let mut header = Header::request(Op::MdtCreate, HERE, Xid(*transno));
                (header.flags, header.transno) = (Flags::REPLAY, Transno(*transno));
                assert!(of_here.turn(&header).await.is_some());
            }
            if done {
                of_here.client_done(HERE);
            }
        });
        let late = world.run(async {
            let mut all = Vec::new();
            while let Some(late) = recovery.next_late().await {
                late.iter().for_each(|c| recovery.client_done(*c));
                all.extend(late);
            }
            all
        });
        (late, world.rt().now().0 / 1_000_000_000)
    }

    #[test]
    fn whoever_waited_for_a_late_client_is_not_late_when_its_own_turn_comes() {
        assert_eq!(late(&[7, 8], true), (vec![GONE], 30));
    }

    #[test]
    fn whoever_dies_behind_its_turn_is_late_half_a_window_later() {
        assert_eq!(late(&[7], false), (vec![GONE, HERE], 45));
    }

    #[test]
    fn whose_locks_replay_takes_long_is_not_late() {
        let world = TestWorld::new(1, 1 << 20);
        let recovery = Rc::new(Recovery::new(world.rt(), BTreeSet::from([HERE]), Duration::from_secs(30)));
        let (of_here, rt) = (recovery.clone(), world.rt());
        world.rt().spawn(async move {
            let mut header = Header::request(Op::LockEnqueue, HERE, Xid(7));
            header.flags = Flags::REPLAY;
            let turns = [of_here.turn(&header).await, of_here.turn(&header).await];
            rt.sleep(Duration::from_secs(50)).await;
            drop(turns);
        });
        assert_eq!(world.run(recovery.next_late()), Some(vec![HERE]));
        assert_eq!(world.rt().now().0 / 1_000_000_000, 65, "half a window after the last of them");
    }

    #[test]
    fn independent_replays_wait_for_nobody() {
        let world = TestWorld::new(1, 1 << 20);
        let recovery = Recovery::new(world.rt(), BTreeSet::from([GONE, HERE]), Duration::from_secs(30));
        let recovery = recovery.with_independent_replays();
        world.run(async {
            for transno in [7, 8] {
                let mut header = Header::request(Op::MdtCreate, HERE, Xid(transno));
                (header.flags, header.transno) = (Flags::REPLAY, Transno(transno));
                assert!(recovery.turn(&header).await.is_some());
            }
        });
        assert_eq!(world.rt().now(), recovery.begun, "although a client is missing that may offer lower ones");
    }

    #[test]
    fn replays_in_order_wait_for_nobody_who_has_none() {
        let world = TestWorld::new(1, 1 << 20);
        let recovery = Recovery::new(world.rt(), BTreeSet::from([GONE, HERE]), Duration::from_secs(30));
        let recovery = Rc::new(recovery.with_nothing_to_replay(BTreeSet::from([GONE])));
        let rt = world.rt();
        world.run(async {
            for (client, transno, goes) in [(HERE, 7, true), (HERE, 8, true), (ClientId(3), 9, false)] {
                if !goes {
                    // A third client is expected, and may offer a lower one.
                    recovery.state.expected.borrow_mut().insert(ClientId(4), None);
                }
                let mut header = Header::request(Op::OstWrite, client, Xid(transno));
                (header.flags, header.transno) = (Flags::REPLAY, Transno(transno));
                let turn = rt.timeout(Duration::from_secs(1), recovery.turn(&header)).await;
                assert_eq!(turn.is_some(), goes, "{transno}");
            }
        });
    }

    #[test]
    fn an_administrator_ends_the_wait_at_once_and_sees_who_was_waited_for() {
        let world = TestWorld::new(1, 1 << 20);
        let recovery = Rc::new(Recovery::new(world.rt(), BTreeSet::from([GONE, HERE]), Duration::from_secs(30)));
        recovery.note_progress(HERE);
        let control = RecoveryControl::new(&recovery);
        let shown = control.text();
        assert!(shown.starts_with("status: RECOVERING\nrecovery_duration: 30\ntime_remaining: 30\n"), "{shown}");
        assert!(shown.contains("0001 has not come back\n") && shown.contains("0002 is replaying\n"), "{shown}");
        let before = world.rt().now();
        control.abort();
        assert_eq!(world.run(recovery.next_late()), Some(vec![GONE]), "who is replaying is heard to the end");
        assert_eq!(world.rt().now(), before);
        recovery.client_done(GONE);
        recovery.client_done(HERE);
        assert_eq!(world.run(recovery.next_late()), None);
        recovery.open();
        assert_eq!(control.text(), "status: COMPLETE\n");
    }
}
