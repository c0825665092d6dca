//! The event engine: a virtual clock in nanoseconds and a queue of small `Copy` events, popped in (time, insertion) order.
//!
//! Single-threaded, no allocation per event, no closures: the world that owns the queue dispatches events with a `match`.
//! Deliberately not here: what events mean. The same queue drives the light worlds and can drive an executor's timers.
//! Events of one instant come out in the order in which they were scheduled, so one seed gives one history.
mod heap;
mod radix;

pub use heap::FourAryHeap;
pub use radix::RadixHeap;

/// One pending event. 16 bytes of key beside the payload; keep the payload at 8..16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Pending<E> {
    /// When it fires, virtual nanoseconds.
    pub time: u64,
    /// How many events were scheduled before it: breaks ties.
    pub seq: u64,
    /// What happens.
    pub event: E,
}

impl<E> Pending<E> {
    #[inline]
    fn key(&self) -> u128 {
        (u128::from(self.time) << 64) | u128::from(self.seq)
    }
}

/// Pending events beyond which the radix heap is faster than the 4-ary one.
pub const RADIX_FROM_PENDING: usize = 300_000;

/// Pending events below which the 4-ary heap is used again.
const HEAP_BELOW_PENDING: usize = RADIX_FROM_PENDING / 4;

enum Store<E> {
    Heap(FourAryHeap<E>),
    Radix(Box<RadixHeap<E>>),
}

/// The clock and its pending events. Time never goes back; scheduling into the past is a bug of the caller.
pub struct EventQueue<E> {
    store: Store<E>,
    now: u64,
    seq: u64,
    popped: u64,
    pending_max: usize,
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue::new()
    }
}

impl<E: Copy> EventQueue<E> {
    /// An empty queue at time 0.
    #[must_use]
    pub fn new() -> Self {
        EventQueue { store: Store::Heap(FourAryHeap::default()), now: 0, seq: 0, popped: 0, pending_max: 0 }
    }
    /// Virtual time of the event popped last, nanoseconds.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }
    /// Events popped so far.
    #[must_use]
    pub fn popped(&self) -> u64 {
        self.popped
    }
    /// Events waiting.
    #[must_use]
    pub fn pending(&self) -> usize {
        match &self.store {
            Store::Heap(h) => h.len(),
            Store::Radix(r) => r.len(),
        }
    }
    /// When the next event fires.
    #[inline]
    #[must_use]
    pub fn next_time(&self) -> Option<u64> {
        match &self.store {
            Store::Heap(h) => h.first_time(),
            Store::Radix(r) => r.first_time(),
        }
    }
    /// The most events that ever waited at once.
    #[must_use]
    pub fn pending_max(&self) -> usize {
        self.pending_max
    }
    /// Schedules `event` at `time` (virtual nanoseconds).
    ///
    /// # Panics
    /// When `time` lies before [`EventQueue::now`].
    #[inline]
    pub fn at(&mut self, time: u64, event: E) {
        assert!(time >= self.now, "an event was scheduled {} ns into the past", self.now - time);
        let item = Pending { time, seq: self.seq, event };
        self.seq += 1;
        match &mut self.store {
            Store::Heap(h) => {
                h.push(item);
                let n = h.len();
                self.pending_max = self.pending_max.max(n);
                if n > RADIX_FROM_PENDING {
                    self.turn_radix();
                }
            }
            Store::Radix(r) => {
                r.push(item);
                self.pending_max = self.pending_max.max(r.len());
            }
        }
    }
    /// Schedules `event` `delay` nanoseconds from now.
    #[inline]
    pub fn after(&mut self, delay: u64, event: E) {
        self.at(self.now.saturating_add(delay), event);
    }
    /// Takes the next event out and moves the clock to it.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let item = match &mut self.store {
            Store::Heap(h) => h.pop(),
            Store::Radix(r) => {
                let item = r.pop();
                if r.len() < HEAP_BELOW_PENDING {
                    self.turn_heap();
                }
                item
            }
        }?;
        self.now = item.time;
        self.popped += 1;
        Some((item.time, item.event))
    }

    #[cold]
    fn turn_heap(&mut self) {
        let Store::Radix(radix) = &mut self.store else { return };
        let mut heap = FourAryHeap::default();
        for item in radix.take_all() {
            heap.push(item);
        }
        self.store = Store::Heap(heap);
    }

    #[cold]
    fn turn_radix(&mut self) {
        let Store::Heap(heap) = &mut self.store else { return };
        let mut radix = RadixHeap::starting_at(self.now);
        for item in heap.take_all() {
            radix.push(item);
        }
        self.store = Store::Radix(Box::new(radix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Rng;

    #[test]
    fn events_of_one_instant_come_out_in_the_order_they_went_in() {
        let mut q = EventQueue::new();
        for i in 0..1000u32 {
            q.at(u64::from(i % 3), i);
        }
        let mut last = (0, 0);
        while let Some((t, e)) = q.pop() {
            assert!((t, e) >= last && t == u64::from(e % 3));
            last = (t, e);
        }
        assert_eq!(q.popped(), 1000);
    }

    #[test]
    fn both_heaps_give_the_same_history() {
        let (mut a, mut b) = (FourAryHeap::default(), RadixHeap::starting_at(0));
        let mut rng = Rng::new(5);
        let (mut seq, mut now) = (0, 0);
        for round in 0..20_000 {
            for _ in 0..rng.below(3) {
                let span = 1 << (1 + rng.below(30));
                let item = Pending { time: now + rng.below(span), seq, event: seq };
                seq += 1;
                a.push(item);
                b.push(item);
            }
            if round % 2 == 0 {
                let (x, y) = (a.pop(), b.pop());
                assert_eq!(x.map(|p| (p.time, p.seq)), y.map(|p| (p.time, p.seq)));
                now = x.map_or(now, |p| p.time);
            }
        }
        while let Some(x) = a.pop() {
            assert_eq!(Some((x.time, x.event)), b.pop().map(|p| (p.time, p.event)));
        }
        assert!(b.pop().is_none());
    }

    #[test]
    #[should_panic(expected = "into the past")]
    fn the_past_is_refused() {
        let mut q = EventQueue::new();
        q.at(10, ());
        q.pop();
        q.at(9, ());
    }

    #[test]
    fn growing_into_the_radix_heap_keeps_the_order() {
        let mut q = EventQueue::new();
        let mut rng = Rng::new(9);
        for i in 0..(RADIX_FROM_PENDING as u64 + 5000) {
            q.at(rng.below(1_000_000), i);
        }
        let mut last = (0, 0);
        let mut n = 0;
        while let Some((t, e)) = q.pop() {
            assert!(t > last.0 || (t == last.0 && (n == 0 || e > last.1)));
            last = (t, e);
            n += 1;
        }
        assert_eq!(n, RADIX_FROM_PENDING + 5000);
    }
}
