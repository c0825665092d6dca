//! Rounds: every taker (a client, an object, a target) may be served at most a quantum of requests per round.
//!
//! A request is bound to a round when it is enqueued: to the taker's current round while its quantum lasts, then to the
//! next. Within a round takers are served in the order in which they entered it, and a taker's requests together, in the
//! order that the policy built on this gives them. The mechanism behind `crrn`, `orr` and `trr`.
//!
//! A request of a taker that is not being served is taken note of first and carried out before the next batch is begun, at
//! the latest; see `later`.
//!
//! Rounds are consecutive numbers, so they form a queue of lists and not a heap: every step is O(1) but the order within
//! a batch, which is sorted when its turn begins.
use crate::{
    Counters, NrsRequest,
    chain::{Chain, List, NIL},
    groups::{Groups, Line},
    later::{Later, Note},
    places::{NOWHERE, Places},
    sorted::{Arena, Item, Sorted},
};
use alloc::{collections::VecDeque, vec::Vec};
use core::{fmt::Debug, hash::Hash, num::NonZeroU64};
use types::RequestId;

/// Who takes turns, and in which order one taker's requests leave.
pub(crate) trait Shape: Send {
    /// What takes turns.
    type Taker: Hash + Eq + Copy + Debug + Send;
    /// Order within a batch; `seq` counts arrivals.
    type Order: Ord + Copy + Default + Debug + Send;
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
struct Batch {
    taker: u32,
    round: u64,
    queue: Sorted,
}

/// How many batches ahead one is fetched, ..
const FETCH_AHEAD: usize = 3;
/// .. and how many requests ahead, within a long batch.
const FETCH_REQUESTS_AHEAD: usize = 8;

/// The queue of rounds.
pub(crate) struct Rounds<S: Shape> {
    places: Places,
    later: Later<S::Taker, Item<S::Order>>,
    /// The batch that is being served, and whose it is: its requests are put into it at once.
    serving: Option<(u32, S::Taker)>,
    served: usize,
    takers: Groups<S::Taker, Taker, Line>,
    batches: Chain<Batch, Line>,
    /// What the batches' queues consist of.
    arena: Arena<S::Order>,
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
            places: Places::default(),
            later: Later::default(),
            serving: None,
            served: 0,
            takers: Groups::default(),
            batches: Chain::default(),
            arena: Arena::default(),
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
        self.catch_up();
        self.quantum = if quantum_requests == 0 { S::QUANTUM } else { quantum_requests };
    }
    /// A request some places ahead, or at the same place of the next batch.
    pub(crate) fn likely_soon(&self) -> Option<RequestId> {
        let front = self.rounds[0].front()?;
        let item = self.batches.get(front).queue.about_nth(&self.arena, FETCH_REQUESTS_AHEAD).or_else(|| {
            let next = self.batches.next(front)?;
            self.batches.get(next).queue.about_nth(&self.arena, self.served)
        })?;
        Some(RequestId(item.id))
    }
    pub(crate) fn queued(&self) -> usize {
        self.places.len()
    }
    pub(crate) fn holds(&self, id: RequestId) -> bool {
        self.places.get(id).is_some()
    }
    pub(crate) fn counters(&self) -> Counters {
        Counters { turns: self.turns, ..Counters::default() }
    }

    pub(crate) fn enqueue(&mut self, req: &NrsRequest) {
        let (key, order) = (S::taker(req), S::order(req, self.seq.get()));
        self.seq = self.seq.saturating_add(1);
        let item = Item { key: order, id: req.id.0, bytes: req.bytes };
        self.places.insert(req.id, NOWHERE);
        if let Some((batch, serving)) = self.serving
            && serving == key
        {
            // Whether its taker has something left to be served is asked before the next call.
            let at = self.batches.get(batch).taker;
            let taker = self.takers.get(at);
            if taker.batch != batch || taker.left == 0 {
                self.catch_up();
            }
            return self.put(at, key, item);
        }
        let batches = &self.batches;
        if self.later.add(&self.takers, key, NIL, item, |taker| batches.prefetch_live(taker.batch)) {
            let notes = self.later.take_ready();
            self.carry_out(notes);
        }
    }

    /// Carries out what was noted.
    fn catch_up(&mut self) {
        let batches = &self.batches;
        let notes = self.later.take(&self.takers, |taker| batches.prefetch_live(taker.batch));
        self.carry_out(notes);
    }

    fn carry_out(&mut self, notes: Vec<Note<S::Taker, Item<S::Order>>>) {
        for note in &notes {
            let taker = self.takers.get_live(note.guess);
            if let Some(batch) = taker.and_then(|taker| self.batches.get_live(taker.batch)) {
                batch.queue.prefetch_back(&self.arena);
            }
        }
        for note in &notes {
            self.put(note.guess, note.key, note.what);
        }
        self.later.done(notes);
    }

    /// Puts a request into its taker's batch of the round that its turn comes in.
    fn put(&mut self, guess: u32, key: S::Taker, item: Item<S::Order>) {
        let (current, quantum) = (self.current, self.quantum);
        let new = || Taker { round: current, left: quantum, queued: 0, batch: NIL, idle: false };
        let (at, _) = self.takers.find_guessed(guess, key, new);
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
        let batch = taker.batch;
        self.places.set(RequestId(item.id), batch);
        let queue = &mut self.batches.get_mut(batch).queue;
        match self.serving {
            Some((serving, _)) if serving == batch => queue.insert(&mut self.arena, item),
            _ => queue.append(&mut self.arena, item),
        }
    }

    pub(crate) fn dequeue(&mut self) -> Option<RequestId> {
        let batch = match self.serving {
            Some((batch, _)) => batch,
            None => self.begin()?,
        };
        let queue = &self.batches.get(batch).queue;
        let first = queue.first(&self.arena).expect("a linked batch is not empty");
        if let Some(item) = queue.about_nth(&self.arena, 3) {
            self.places.prefetch(RequestId(item.id));
        }
        self.leave(batch, first.id);
        self.places.vacate(RequestId(first.id));
        self.served += 1;
        if let Some(soon) = self.likely_soon() {
            self.places.prefetch(soon);
        }
        Some(RequestId(first.id))
    }

    /// Begins with the next batch, and answers it.
    fn begin(&mut self) -> Option<u32> {
        let front = self.rounds[0].front().map(|batch| self.takers.key(self.batches.get(batch).taker));
        if front.is_none_or(|taker| self.later.mentions(taker)) {
            self.catch_up();
        }
        while self.rounds[0].is_empty() && self.rounds.len() > 1 {
            self.advance();
        }
        let batch = self.rounds[0].front()?;
        self.batches.get_mut(batch).queue.sort(&mut self.arena);
        let number = self.batches.get(batch).taker;
        (self.serving, self.served) = (Some((batch, self.takers.key(number))), 0);
        let mut ahead = batch;
        for turns in 0..FETCH_AHEAD {
            let Some(next) = self.batches.next(ahead) else { break };
            ahead = next;
            if turns + 2 == FETCH_AHEAD {
                let Batch { queue, taker, .. } = self.batches.get(ahead);
                queue.prefetch_front(&self.arena);
                self.takers.prefetch(*taker);
            }
            self.batches.prefetch(ahead);
        }
        Some(batch)
    }

    /// Takes a request out, wherever it is; answers whether it was there.
    pub(crate) fn take(&mut self, id: RequestId) -> bool {
        self.catch_up();
        let Some(batch) = self.places.remove(id) else { return false };
        self.leave(batch, id.0);
        true
    }

    /// Takes a request out of its batch, and the batch out of its round when it is empty.
    fn leave(&mut self, number: u32, id: u32) {
        let batch = self.batches.get_mut(number);
        assert!(batch.queue.remove(&mut self.arena, id), "a request in the table is in its batch");
        let (at, round, emptied) = (batch.taker, batch.round, batch.queue.is_empty());
        let taker = self.takers.get_mut(at);
        taker.queued -= 1;
        if emptied {
            if taker.batch == number {
                taker.batch = NIL;
            }
            if self.serving.is_some_and(|(serving, _)| serving == number) {
                self.serving = None;
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
        self.catch_up();
        into.extend(self.places.take_in_order());
        self.serving = None;
        self.takers = Groups::default();
        (self.batches, self.arena) = (Chain::default(), Arena::default());
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
            fn likely_soon(&self) -> Option<types::RequestId> {
                self.0.likely_soon()
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
