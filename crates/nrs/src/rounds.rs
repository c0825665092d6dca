//! Rounds: every taker (a client, an object, a target) may be served at most a quantum of requests per round.
//!
//! A request is bound to a round when it is enqueued: to the taker's current round while its quantum lasts, then to the
//! next. Within a round takers are served in the order in which they entered it, and a taker's requests together, in the
//! order that the policy built on this gives them. The mechanism behind `crrn`, `orr` and `trr`.
//!
//! Rounds are consecutive numbers, so they form a queue of lists and not a heap: every step is O(1) but the order within
//! a batch, which is O(log of its size).
use crate::{
    Counters, NrsRequest,
    chain::{Chain, List},
    groups::Groups,
    slots::{NIL, Slots},
    sorted::{Item, Sorted},
};
use alloc::{collections::VecDeque, vec::Vec};
use core::{fmt::Debug, hash::Hash, num::NonZeroU64};
use types::RequestId;

/// Who takes turns, and in which order one taker's requests leave.
pub(crate) trait Shape: Send {
    /// What takes turns.
    type Taker: Hash + Eq + Copy + Debug + Send;
    /// Order within a batch; `seq` counts arrivals.
    type Order: Ord + Copy + Debug + Send;
    /// Requests per round when the configuration does not say.
    const QUANTUM: u32;
    fn taker(req: &NrsRequest) -> Self::Taker;
    fn order(req: &NrsRequest, seq: u64) -> Self::Order;
}

#[derive(Debug)]
struct Taker {
    /// The round that its next request joins, while `left` > 0.
    round: u64,
    left: u32,
    queued: u32,
    /// Its batch in `round`, or [`NIL`].
    batch: u32,
    /// Whether the list of idle takers names it.
    idle: bool,
}

/// One taker's requests in one round.
#[derive(Debug)]
struct Batch<O> {
    taker: u32,
    round: u64,
    queue: Sorted<O>,
}

#[derive(Clone, Copy, Debug)]
struct Node<O> {
    seq: NonZeroU64,
    batch: u32,
    order: O,
}

/// The queue of rounds.
pub(crate) struct Rounds<S: Shape> {
    nodes: Slots<Node<S::Order>>,
    takers: Groups<S::Taker, Taker>,
    batches: Chain<Batch<S::Order>>,
    /// Batches by round; the first list is round `current`.
    rounds: VecDeque<List>,
    current: u64,
    /// Takers without requests that are remembered only because they used part of their quantum in this round.
    idle: Vec<u32>,
    seq: NonZeroU64,
    quantum: u32,
    turns: u64,
}

impl<S: Shape> Rounds<S> {
    pub(crate) fn new(quantum_requests: u32) -> Self {
        let mut rounds = Rounds {
            nodes: Slots::default(),
            takers: Groups::default(),
            batches: Chain::default(),
            rounds: VecDeque::from([List::default()]),
            current: 0,
            idle: Vec::new(),
            seq: NonZeroU64::MIN,
            quantum: 0,
            turns: 0,
        };
        rounds.set_quantum(quantum_requests);
        rounds
    }
    /// Requests per taker and round from the next round on; 0 = the policy's default.
    pub(crate) fn set_quantum(&mut self, quantum_requests: u32) {
        self.quantum = if quantum_requests == 0 { S::QUANTUM } else { quantum_requests };
    }
    pub(crate) fn likely_next(&self) -> Option<RequestId> {
        let batch = self.rounds[0].front()?;
        self.batches.get(batch).queue.first().map(|item| RequestId(item.id))
    }
    pub(crate) fn queued(&self) -> usize {
        self.nodes.len()
    }
    pub(crate) fn holds(&self, id: RequestId) -> bool {
        self.nodes.get(id).is_some()
    }
    pub(crate) fn counters(&self) -> Counters {
        Counters { turns: self.turns, ..Counters::default() }
    }

    pub(crate) fn enqueue(&mut self, req: &NrsRequest) {
        let (current, quantum) = (self.current, self.quantum);
        let new = || Taker { round: current, left: quantum, queued: 0, batch: NIL, idle: false };
        let (at, _) = self.takers.find_or_insert(S::taker(req), new);
        let taker = self.takers.get_mut(at);
        assert!(taker.round >= current, "takers that sat out a round are forgotten when the next begins");
        if taker.left == 0 {
            (taker.round, taker.left, taker.batch) = (taker.round + 1, quantum, NIL);
        }
        taker.left -= 1;
        taker.queued += 1;
        if taker.batch == NIL {
            taker.batch = self.batches.insert(Batch { taker: at, round: taker.round, queue: Sorted::default() });
            let ahead = usize::try_from(taker.round - current).expect("no more rounds than queued requests");
            while self.rounds.len() <= ahead {
                self.rounds.push_back(List::default());
            }
            self.batches.push_back(&mut self.rounds[ahead], taker.batch);
            self.turns += 1;
        }
        let (batch, order) = (taker.batch, S::order(req, self.seq.get()));
        self.nodes.insert(req.id, Node { seq: self.seq, batch, order });
        self.seq = self.seq.saturating_add(1);
        self.batches.get_mut(batch).queue.insert(Item { key: order, id: req.id.0, bytes: req.bytes });
    }

    pub(crate) fn dequeue(&mut self) -> Option<RequestId> {
        while self.rounds[0].is_empty() && self.rounds.len() > 1 {
            self.advance();
        }
        let batch = self.rounds[0].front()?;
        if let Some(next) = self.batches.next(batch) {
            self.batches.prefetch(next);
        }
        let first = self.batches.get(batch).queue.first().expect("a linked batch is not empty");
        self.leave(batch, first.key, first.id);
        self.nodes.vacate(RequestId(first.id));
        if let Some(next) = self.likely_next() {
            self.nodes.prefetch(next);
        }
        Some(RequestId(first.id))
    }

    /// Takes a request out, wherever it is; answers whether it was there.
    pub(crate) fn take(&mut self, id: RequestId) -> bool {
        let Some(node) = self.nodes.remove(id) else { return false };
        self.leave(node.batch, node.order, id.0);
        true
    }

    /// Takes a request out of its batch, and the batch out of its round when it is empty.
    fn leave(&mut self, number: u32, order: S::Order, id: u32) {
        let batch = self.batches.get_mut(number);
        assert!(batch.queue.remove(order, id), "a request in the table is in its batch");
        let (at, round, emptied) = (batch.taker, batch.round, batch.queue.is_empty());
        let taker = self.takers.get_mut(at);
        taker.queued -= 1;
        if emptied {
            if taker.batch == number {
                taker.batch = NIL;
            }
            let ahead = usize::try_from(round - self.current).expect("no more rounds than queued requests");
            self.batches.unlink(&mut self.rounds[ahead], number);
            self.batches.free(number);
        }
        if taker.queued == 0 && !taker.idle {
            if taker.round > self.current {
                self.takers.remove(at);
            } else {
                taker.idle = true;
                self.idle.push(at);
            }
        }
    }

    pub(crate) fn drain(&mut self, into: &mut Vec<RequestId>) {
        into.extend(self.nodes.take_in_order(|node| node.seq.get()));
        self.takers = Groups::default();
        self.batches = Chain::default();
        self.rounds = VecDeque::from([List::default()]);
        self.idle.clear();
    }

    /// The next round begins: takers that sat out the last one start afresh.
    fn advance(&mut self) {
        self.rounds.pop_front();
        self.current += 1;
        let (current, takers) = (self.current, &mut self.takers);
        self.idle.retain(|at| {
            let taker = takers.get_mut(*at);
            if taker.queued > 0 {
                taker.idle = false;
                return false;
            }
            if taker.round < current {
                takers.remove(*at);
                return false;
            }
            true
        });
    }
}

/// Makes a policy of a [`Shape`]: the rounds serve, urgency is ignored.
macro_rules! rounds_policy {
    ($policy:ident, $shape:ty) => {
        impl $policy {
            pub(crate) fn new(config: &$crate::NrsConfig) -> $policy {
                $policy($crate::rounds::Rounds::new(config.quantum_requests))
            }
        }
        impl $crate::NrsPolicy for $policy {
            fn enqueue(&mut self, _now: types::Instant, req: &$crate::NrsRequest) {
                self.0.enqueue(req);
            }
            fn dequeue(&mut self, _now: types::Instant) -> Option<types::RequestId> {
                self.0.dequeue()
            }
            fn promote(&mut self, _now: types::Instant, id: types::RequestId, _serve_by: types::Instant) -> bool {
                self.0.holds(id)
            }
            fn cancel(&mut self, id: types::RequestId) -> bool {
                self.0.take(id)
            }
            fn drain(&mut self, into: &mut alloc::vec::Vec<types::RequestId>) {
                self.0.drain(into);
            }
            fn likely_next(&self) -> Option<types::RequestId> {
                self.0.likely_next()
            }
            fn queued(&self) -> usize {
                self.0.queued()
            }
            fn reconfigure(&mut self, _now: types::Instant, config: &$crate::NrsConfig) {
                self.0.set_quantum(config.quantum_requests);
            }
            fn counters(&self) -> $crate::Counters {
                self.0.counters()
            }
        }
    };
}
pub(crate) use rounds_policy;
