//! The recovery window of a restarted target: replays in transaction order, everything else afterwards.
//!
//! Every client that the store knew is waited for until it says it is done or the window closes. Each client sends
//! its replays one at a time in transaction order, so the next transaction to carry out is the lowest one offered as
//! soon as every client still expected has offered one.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rt::Rt;
use rt::sync::{Event, OneSender, oneshot};
use types::{ClientId, Duration, Instant, Transno};
use wire::{Flags, Header, Op};

pub(crate) struct Recovery {
    rt: Rt,
    deadline: Instant,
    window: Duration,
    state: Rc<State>,
}

struct State {
    active: Cell<bool>,
    /// Clients that have not said they are done.
    expected: RefCell<BTreeSet<ClientId>>,
    /// Replays offered, by transaction.
    offered: RefCell<BTreeMap<(Transno, ClientId), OneSender<()>>>,
    running: Cell<bool>,
    /// When a client last showed that it is at work.
    progress: Cell<Instant>,
    changed: Event,
    opened: Event,
}

/// The right to carry out one replay; the next one starts when it is dropped.
pub(crate) struct Turn(Option<Rc<State>>);
impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            state.running.set(false);
            state.next();
        }
    }
}

impl State {
    /// Starts the lowest replay when every expected client has offered one.
    fn next(&self) {
        if self.running.get() {
            return;
        }
        let mut offered = self.offered.borrow_mut();
        let with_offer: BTreeSet<ClientId> = offered.keys().map(|(_, c)| *c).collect();
        if !self.expected.borrow().iter().all(|c| with_offer.contains(c)) && self.active.get() {
            return;
        }
        if let Some((_, start)) = offered.pop_first() {
            self.running.set(true);
            start.send(());
        }
    }
}

impl Recovery {
    pub(crate) fn new(rt: Rt, expected: BTreeSet<ClientId>, window: Duration) -> Recovery {
        let now = rt.now();
        Recovery {
            rt,
            deadline: now + window,
            window,
            state: Rc::new(State {
                active: Cell::new(!expected.is_empty()),
                expected: RefCell::new(expected),
                offered: RefCell::default(),
                running: Cell::new(false),
                progress: Cell::new(now),
                changed: Event::new(),
                opened: Event::new(),
            }),
        }
    }
    pub(crate) fn is_active(&self) -> bool {
        self.state.active.get()
    }
    pub(crate) fn expects(&self, client: ClientId) -> bool {
        self.is_active() && self.state.expected.borrow().contains(&client)
    }
    pub(crate) fn client_done(&self, client: ClientId) {
        self.state.expected.borrow_mut().remove(&client);
        self.state.changed.notify();
        self.state.next();
    }
    /// A replayed request whose answer was remembered: the client goes on to its next.
    pub(crate) fn on_answered_again(&self, _header: &Header) {
        self.state.next();
    }
    /// Completes when every client is done or the window has closed; gives those that did not come back.
    pub(crate) async fn finished(&self) -> Vec<ClientId> {
        loop {
            let changed = self.state.changed.wait();
            if self.state.expected.borrow().is_empty() {
                return Vec::new();
            }
            // Whoever replays is waited for: the window closes on silence, at the latest after ten of them.
            let quiet = self.state.progress.get() + self.window / 2;
            let until = self.deadline.max(quiet).min(self.deadline + self.window * 9);
            let left = until.since(self.rt.now());
            if left.is_zero() {
                return std::mem::take(&mut *self.state.expected.borrow_mut()).into_iter().collect();
            }
            let _ = self.rt.timeout(left, changed).await;
        }
    }
    /// Ordinary service begins.
    pub(crate) fn open(&self) {
        self.state.active.set(false);
        self.state.opened.notify();
        self.state.next();
    }
    /// Waits until this request may be carried out: a replay in its order (lock replays at once), others when
    /// recovery is over.
    pub(crate) async fn turn(&self, header: &Header) -> Turn {
        if header.flags.has(Flags::REPLAY) {
            self.state.progress.set(self.rt.now());
            if header.op == Op::LockEnqueue {
                return Turn(None);
            }
            let (tx, rx) = oneshot();
            self.state.offered.borrow_mut().insert((header.transno, header.client), tx);
            self.state.next();
            let _ = rx.await;
            return Turn(Some(self.state.clone()));
        }
        while self.is_active() {
            let opened = self.state.opened.wait();
            if !self.is_active() {
                break;
            }
            opened.await;
        }
        Turn(None)
    }
}
