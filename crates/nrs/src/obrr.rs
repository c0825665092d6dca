//! Object-based round robin: objects take turns; within a turn requests leave in the order of their offsets.
//!
//! Every object keeps its reads and its writes in two queues sorted by offset. Objects with work hang in one global
//! FIFO. The first of them is served from its last position upwards (and then from the lowest offset again) until its
//! quantum is used or it has no more work; with work left it goes to the tail. A turn starts in the direction that the
//! object's last turn did not end with, if there is work in both.
//!
//! With a region size, a turn also ends where the offset crosses into another region: the allocator of the store lays
//! an object out in such regions, so a turn then costs one seek. That version is the inner half of `obrr+`.
//!
//! What changes the end of the ring (a request for an object without the turn, an object that has had its turn) is taken
//! note of and carried out before it could make a difference; see `later`.
//!
//! What it does not decide: deadlines. In one object, a stream that is always ahead of the position can hold back a
//! request behind it for as long as the stream lasts; `deadline+obrr` bounds that.
//!
//! Source: paper 001, sections on OBRR and quanta. Differs: a quantum in bytes is kept as a deficit, so that objects
//! with large requests do not gain by overshooting; weights come from rules; regions are ours.
use crate::{
    Counters, NrsConfig, NrsPolicy, NrsRequest,
    chain::{List, NIL},
    groups::{Groups, Line},
    later::{Later, Note},
    places::{NOWHERE, Places},
    rules::Weights,
    sorted::{Arena, Item, Sorted},
};
use alloc::vec::Vec;
use types::{Instant, ObjectId, RequestId};

/// Requests in a turn when the configuration does not say: what clients keep in flight.
pub(crate) const OBRR_QUANTUM: u32 = 8;
/// The same for turns that end at regions: only bounds streams of tiny requests.
pub(crate) const REGION_QUANTUM: u32 = 256;
/// Marks keys of the write queue, which sorts behind the read queue.
const WRITE_BIT: u64 = 1 << 63;

/// With key and links a cache line.
#[derive(Debug, Default)]
struct Object {
    /// Where the last read and the last write ended, as keys.
    position: [u64; 2],
    /// Bytes that it may still be served, carried over its turns; below 0 after an overshoot.
    credit_bytes: i64,
    weight: u16,
    /// The direction of the current turn, or of the last one.
    writing: bool,
    /// Both queues: reads below [`WRITE_BIT`], writes from it on.
    queue: Sorted,
}

impl Object {
    fn has(&self, arena: &Arena<u64>, writing: bool) -> bool {
        let end = if writing { self.queue.last(arena) } else { self.queue.first(arena) };
        end.is_some_and(|item| is_write(item.key) == writing)
    }
    /// The next request of the current direction in elevator order.
    fn next(&self, arena: &Arena<u64>) -> Option<Item<u64>> {
        let in_direction = |item: &Item<u64>| is_write(item.key) == self.writing;
        let ahead = self.queue.peek_from(arena, self.position[usize::from(self.writing)]).filter(in_direction);
        ahead.or_else(|| self.queue.peek_from(arena, if self.writing { WRITE_BIT } else { 0 }).filter(in_direction))
    }
}

const fn is_write(key: u64) -> bool {
    key & WRITE_BIT != 0
}

/// A turn that was cut short because its object had no more work, kept until another object's turn begins.
#[derive(Clone, Copy, Debug)]
struct Interrupted {
    object: ObjectId,
    next_key: u64,
    turn: Turn,
}

/// What is still to be done at the end of the ring.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A request of the object that its queue does not hold yet, and the object's weight from now on (0 = as it was).
    Arrival(Item<u64>, u32),
    /// The object's turn is over: it goes to the tail.
    Tail,
}

/// How many turns ahead an object is fetched.
const FETCH_AHEAD: usize = 3;

/// What is left of the turn of the first object in the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    requests: u32,
    regions: u32,
    bytes: u64,
}

/// Object-based round robin; see the module.
#[derive(Debug)]
pub(crate) struct Obrr {
    places: Places,
    objects: Groups<ObjectId, Object, Line>,
    /// What the objects' queues consist of.
    arena: Arena<u64>,
    later: Later<ObjectId, What>,
    ring: List,
    /// Of the first object in the ring, which is `turn_of`.
    turn: Option<Turn>,
    turn_of: ObjectId,
    /// Requests served in this turn.
    turn_served: usize,
    /// The object whose turn is probably next.
    next_turn: u32,
    interrupted: Option<Interrupted>,
    quantum_requests: u32,
    quantum_bytes: u64,
    /// Bytes in a region, a power of two; 0 = turns do not end at regions.
    region_bytes: u64,
    by_region: bool,
    weights: Weights,
    turns: u64,
}

impl Obrr {
    /// Paper 001's policy.
    pub(crate) fn new(config: &NrsConfig) -> Obrr {
        Obrr::with(config, false)
    }
    /// The version whose turns end at regions.
    pub(crate) fn by_region(config: &NrsConfig) -> Obrr {
        Obrr::with(config, true)
    }
    fn with(config: &NrsConfig, by_region: bool) -> Obrr {
        let mut policy = Obrr {
            places: Places::default(),
            objects: Groups::default(),
            arena: Arena::default(),
            later: Later::default(),
            ring: List::default(),
            turn: None,
            turn_of: ObjectId::default(),
            turn_served: 0,
            next_turn: NIL,
            interrupted: None,
            quantum_requests: 0,
            quantum_bytes: 0,
            region_bytes: 0,
            by_region,
            weights: Weights::default(),
            turns: 0,
        };
        policy.reconfigure(Instant::ZERO, config);
        policy
    }

    /// Carries out what was noted.
    fn catch_up(&mut self) {
        let arena = &self.arena;
        let notes = self.later.take(&self.objects, |object| object.queue.prefetch_back(arena));
        self.carry_out(notes);
    }

    fn carry_out(&mut self, notes: Vec<Note<ObjectId, What>>) {
        for note in &notes {
            let What::Arrival(item, weight) = note.what else {
                self.objects.push_back(&mut self.ring, note.guess);
                continue;
            };
            let new = || Object { weight: 1, position: [0, WRITE_BIT], writing: true, ..Object::default() };
            let (at, fresh) = self.objects.find_guessed(note.guess, note.key, new);
            self.places.set(RequestId(item.id), at);
            self.put(at, item, weight);
            if fresh {
                self.activate(at, item.key);
            }
        }
        self.later.done(notes);
    }

    fn later(&mut self, object: ObjectId, known: u32, what: What) {
        let arena = &self.arena;
        if self.later.add(&self.objects, object, known, what, |object| object.queue.prefetch_back(arena)) {
            let notes = self.later.take_ready();
            self.carry_out(notes);
        }
    }

    /// Puts a request into the queue of its object, which is `at`.
    fn put(&mut self, at: u32, item: Item<u64>, weight: u32) {
        let object = self.objects.get_mut(at);
        object.queue.insert(&mut self.arena, item);
        if weight > 0 {
            object.weight = u16::try_from(weight).expect("weights are at most 1000");
        }
    }

    /// The object whose turn begins: all that it has must be in its queue.
    fn front_for_turn(&mut self) -> Option<u32> {
        let front = self.ring.front().map(|at| self.objects.key(at));
        let goes_on = self.interrupted.map(|i| i.object);
        if front.is_none_or(|front| self.later.mentions(front)) || goes_on.is_some_and(|o| self.later.mentions(o)) {
            self.catch_up();
        }
        self.ring.front()
    }

    /// Fetches what turns that are near will look at, while the object `at` begins its own.
    fn prefetch_turns(&self, at: u32) {
        let mut ahead = at;
        for turns in 0..FETCH_AHEAD {
            let Some(next) = self.objects.next(ahead) else { return };
            ahead = next;
            if turns + 2 == FETCH_AHEAD {
                self.objects.get(ahead).queue.prefetch_front(&self.arena);
            }
        }
        self.objects.prefetch(ahead);
    }

    /// Puts an object that just got its first request into the ring.
    fn activate(&mut self, at: u32, key: u64) {
        let object = self.objects.key(at);
        match self.interrupted {
            Some(i) if i.object == object && i.next_key == key => {
                // Its turn was cut short only because this request was still on its way: go on where it stopped.
                self.objects.push_front(&mut self.ring, at);
                self.objects.get_mut(at).writing = is_write(key);
                (self.turn, self.turn_of, self.turn_served) = (Some(i.turn), object, 0);
                self.interrupted = None;
            }
            _ => self.objects.push_back(&mut self.ring, at),
        }
    }

    /// Starts the turn of object `at`.
    fn begin(&mut self, at: u32) -> Turn {
        self.turns += 1;
        self.interrupted = None;
        (self.turn_of, self.turn_served) = (self.objects.key(at), 0);
        self.next_turn = self.objects.next(at).unwrap_or(NIL);
        self.prefetch_turns(at);
        let (quantum_requests, quantum_bytes) = (self.quantum_requests, self.quantum_bytes);
        let object = self.objects.get_mut(at);
        let other = !object.writing;
        if object.has(&self.arena, other) {
            object.writing = other;
        }
        if quantum_bytes > 0 {
            // Debt beyond a quantum is forgiven: every turn serves at least one request.
            let share = i64::try_from(quantum_bytes.saturating_mul(u64::from(object.weight))).unwrap_or(i64::MAX);
            object.credit_bytes = object.credit_bytes.max(1 - share).saturating_add(share);
        }
        Turn {
            requests: quantum_requests.saturating_mul(u32::from(object.weight)),
            regions: u32::from(object.weight),
            bytes: self.region_bytes.saturating_mul(u64::from(object.weight)),
        }
    }

    /// Books the service of `served` on the turn of object `at`; `None` when the turn is over.
    fn spend(&mut self, at: u32, mut turn: Turn, served: &Item<u64>) -> Option<Turn> {
        let (region_bytes, by_bytes) = (self.region_bytes, self.quantum_bytes > 0);
        let object = self.objects.get_mut(at);
        turn.requests = turn.requests.saturating_sub(1);
        if by_bytes {
            object.credit_bytes -= i64::from(served.bytes);
        }
        if region_bytes > 0 {
            turn.bytes = turn.bytes.saturating_sub(u64::from(served.bytes));
            let next = object.next(&self.arena).map_or(object.position[usize::from(object.writing)], |item| item.key);
            if (next ^ served.key) >= region_bytes {
                turn.regions -= 1;
            }
            if turn.regions == 0 || turn.bytes == 0 {
                return None;
            }
        }
        (turn.requests > 0 && !(by_bytes && object.credit_bytes <= 0)).then_some(turn)
    }

    /// After a service: the object goes on, to the tail, or away.
    fn settle(&mut self, at: u32, left: Option<Turn>) {
        let object = self.objects.get(at);
        if object.queue.is_empty() {
            if let (true, Some(turn)) = (self.region_bytes > 0, left) {
                let next_key = object.position[usize::from(object.writing)];
                self.interrupted = Some(Interrupted { object: self.objects.key(at), next_key, turn });
            }
            self.forget(at);
            self.turn = None;
        } else if left.is_some() {
            self.turn = left;
        } else {
            self.turn = None;
            self.objects.unlink(&mut self.ring, at);
            self.later(self.objects.key(at), at, What::Tail);
        }
    }

    fn forget(&mut self, at: u32) {
        self.objects.unlink(&mut self.ring, at);
        self.objects.remove(at);
    }
}

impl NrsPolicy for Obrr {
    fn enqueue(&mut self, _now: Instant, req: &NrsRequest) {
        let key = req.extent.start.min(WRITE_BIT - 1) | if req.op.is_write() { WRITE_BIT } else { 0 };
        let item = Item { key, id: req.id.0, bytes: req.bytes };
        let weight = if self.weights.is_empty() { 0 } else { self.weights.of(req) };
        let has_turn = self.turn.is_some() && self.turn_of == req.object;
        let guess = match self.ring.front() {
            Some(front) if has_turn => front,
            _ => NIL,
        };
        self.places.insert(req.id, if has_turn { guess } else { NOWHERE });
        if has_turn {
            self.put(guess, item, weight);
        } else {
            self.later(req.object, guess, What::Arrival(item, weight));
        }
    }

    fn dequeue(&mut self, _now: Instant) -> Option<RequestId> {
        let at = if self.turn.is_some() { self.ring.front()? } else { self.front_for_turn()? };
        let turn = match self.turn {
            Some(turn) => turn,
            None => self.begin(at),
        };
        let object = self.objects.get_mut(at);
        if object.next(&self.arena).is_none() {
            object.writing = !object.writing;
        }
        let served = object.next(&self.arena).expect("an object in the ring has work in one of its directions");
        let key = served.key;
        object.queue.remove(&mut self.arena, served.id);
        // Never past the last key of its direction: the write queue starts right behind the read queue.
        let end = (key & !WRITE_BIT).saturating_add(u64::from(served.bytes).max(1)).min(WRITE_BIT - 1);
        object.position[usize::from(is_write(key))] = end | (key & WRITE_BIT);
        self.turn_served += 1;
        if let Some(item) = object.queue.about_nth(&self.arena, 2) {
            self.places.prefetch(RequestId(item.id));
        }
        if let Some(soon) = self.likely_soon() {
            self.places.prefetch(soon);
        }
        let left = self.spend(at, turn, &served);
        self.settle(at, left);
        self.places.vacate(RequestId(served.id));
        Some(RequestId(served.id))
    }

    fn promote(&mut self, _now: Instant, id: RequestId, _serve_by: Instant) -> bool {
        self.places.get(id).is_some()
    }

    fn cancel(&mut self, id: RequestId) -> bool {
        self.catch_up();
        let Some(at) = self.places.remove(id) else { return false };
        let was_first = self.ring.front() == Some(at);
        let object = self.objects.get_mut(at);
        assert!(object.queue.remove(&mut self.arena, id.0), "a request in the table is in its object's queue");
        if object.queue.is_empty() {
            self.forget(at);
            if was_first {
                self.turn = None;
            }
        }
        true
    }

    fn drain(&mut self, into: &mut Vec<RequestId>) {
        into.extend(self.places.take_in_order());
        (self.objects, self.arena) = (Groups::default(), Arena::default());
        self.later.clear();
        self.ring = List::default();
        (self.turn, self.interrupted) = (None, None);
    }

    fn hasten(&mut self, id: RequestId) -> bool {
        self.catch_up();
        let Some(at) = self.places.get(id) else { return false };
        let front = self.ring.front();
        let object = self.objects.get_mut(at);
        let key = object.queue.key_of(&self.arena, id.0).expect("a request in the table is in its object's queue");
        let writing = is_write(key);
        object.position[usize::from(writing)] = key;
        if front == Some(at) && self.turn.is_some() {
            // In the turn under way: it is next.
            object.writing = writing;
            return true;
        }
        // The beginning of a turn changes the direction, as there is work in this one.
        object.writing = !writing;
        self.objects.unlink(&mut self.ring, at);
        match front {
            Some(front) if self.turn.is_some() => self.objects.insert_after(&mut self.ring, front, at),
            _ => self.objects.push_front(&mut self.ring, at),
        }
        true
    }

    /// The request at the same place of the next object's turn.
    fn likely_soon(&self) -> Option<RequestId> {
        let item =
            self.objects.get_live(self.next_turn)?.queue.about_nth(&self.arena, self.turn_served.saturating_sub(1))?;
        Some(RequestId(item.id))
    }

    fn queued(&self) -> usize {
        self.places.len()
    }

    fn reconfigure(&mut self, _now: Instant, config: &NrsConfig) {
        self.catch_up();
        let default = if self.by_region { REGION_QUANTUM } else { OBRR_QUANTUM };
        self.quantum_requests = if config.quantum_requests == 0 { default } else { config.quantum_requests };
        self.quantum_bytes = config.quantum_bytes;
        self.region_bytes = if self.by_region { config.region_bytes } else { 0 };
        self.weights = config.weights.clone();
    }

    fn counters(&self) -> Counters {
        Counters { turns: self.turns, ..Counters::default() }
    }
}
