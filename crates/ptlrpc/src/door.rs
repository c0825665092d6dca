//! What stands between the network and the targets before a peer has proved anything: how many may wait at a time, how
//! long, and what is told about those who are turned away.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use rt::Rt;
use types::{Duration, Instant};

/// Connections in their handshake at a time. The one that has waited longest goes when another comes, so that slow
/// peers do not keep quick ones out.
pub(crate) const HANDSHAKES_MAX: usize = 64;
/// How long a handshake may take.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Longest body of a handshake message in bytes.
pub(crate) const HANDSHAKE_BODY_BYTES_MAX: u32 = 4096;
/// Refusals are told at most so often; how many there were is told then.
const TELL_EVERY: Duration = Duration::from_secs(10);

pub(crate) struct Door {
    rt: Rt,
    waiting: RefCell<VecDeque<Waiting>>,
    next: Cell<u64>,
    told: Cell<Option<Instant>>,
    silent: Cell<u64>,
    refused: Cell<u64>,
}

/// A connection in its handshake.
struct Waiting {
    number: u64,
    peer: String,
    hang_up: Box<dyn Fn()>,
}

/// A place among those who wait; given up when dropped.
pub(crate) struct Place<'a> {
    door: &'a Door,
    number: u64,
}

impl Door {
    pub(crate) fn new(rt: Rt) -> Door {
        Door {
            rt,
            waiting: RefCell::default(),
            next: Cell::new(0),
            told: Cell::new(None),
            silent: Cell::new(0),
            refused: Cell::new(0),
        }
    }

    /// Connections that ended before their session began.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// A connection of `peer` waits, which `hang_up` ends.
    pub(crate) fn enter(&self, peer: String, hang_up: Box<dyn Fn()>) -> Place<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        let mut waiting = self.waiting.borrow_mut();
        waiting.push_back(Waiting { number, peer, hang_up });
        let longest = if waiting.len() > HANDSHAKES_MAX { waiting.pop_front() } else { None };
        drop(waiting);
        if let Some(longest) = longest {
            self.turn_away(&longest.peer, &format!("{HANDSHAKES_MAX} others wait for their handshake"));
            (longest.hang_up)();
        }
        Place { door: self, number }
    }

    /// Counts a refusal and tells it, unless one was told a moment ago.
    pub(crate) fn turn_away(&self, peer: &str, why: &str) {
        self.refused.set(self.refused.get() + 1);
        let now = self.rt.now();
        if self.told.get().is_some_and(|t| now.since(t) < TELL_EVERY) {
            self.silent.set(self.silent.get() + 1);
            return;
        }
        self.told.set(Some(now));
        let others = self.silent.replace(0);
        tracing::warn!(peer, others_since_last = others, "connection refused: {why}");
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.door.waiting.borrow_mut().retain(|w| w.number != self.number);
    }
}
