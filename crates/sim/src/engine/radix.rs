//! A radix heap: a monotone priority queue whose cost does not grow with the number of pending events.
//!
//! Bucket `b > 0` holds the items whose time differs from the last popped time first in bit `b - 1`; bucket 0 those of
//! that very instant. An item moves to lower buckets only, at most 64 times and in practice a handful.
//! Source: Ahuja, Mehlhorn, Orlin, Tarjan, "Faster algorithms for the shortest path problem", 1990.
//! Differs: items of one instant are ordered by `seq`: a bucket is redistributed in insertion order.
use super::Pending;

const BUCKETS: usize = 65;

/// A monotone heap: nothing may be pushed before the time popped last.
pub struct RadixHeap<E> {
    buckets: Vec<Vec<Pending<E>>>,
    /// Items of the instant `last`, descending by seq: popped from the end.
    ready: Vec<Pending<E>>,
    last: u64,
    len: usize,
}

impl<E: Copy> RadixHeap<E> {
    /// An empty heap that takes times from `now` on.
    #[must_use]
    pub fn starting_at(now: u64) -> Self {
        RadixHeap { buckets: (0..BUCKETS).map(|_| Vec::new()).collect(), ready: Vec::new(), last: now, len: 0 }
    }
    /// Items held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The least item's time; looks through a bucket.
    #[must_use]
    pub fn first_time(&self) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(self.last);
        }
        let lowest = self.buckets.iter().find(|bucket| !bucket.is_empty())?;
        lowest.iter().map(|item| item.time).min()
    }
    /// Adds an item, at or after the time popped last.
    #[inline]
    pub fn push(&mut self, item: Pending<E>) {
        debug_assert!(item.time >= self.last);
        let bucket = 64 - (item.time ^ self.last).leading_zeros() as usize;
        self.buckets[bucket].push(item);
        self.len += 1;
    }
    /// Takes the least item out.
    #[inline]
    pub fn pop(&mut self) -> Option<Pending<E>> {
        if self.ready.is_empty() && !self.refill() {
            return None;
        }
        self.len -= 1;
        self.ready.pop()
    }

    /// Everything held, in no order; the heap is empty afterwards.
    pub fn take_all(&mut self) -> Vec<Pending<E>> {
        self.len = 0;
        let mut all = core::mem::take(&mut self.ready);
        for bucket in &mut self.buckets {
            all.append(bucket);
        }
        all
    }

    /// Moves the items of the next instant to `ready`. Answers whether there are any.
    fn refill(&mut self) -> bool {
        if self.buckets[0].is_empty() {
            let Some(b) = self.buckets.iter().position(|b| !b.is_empty()) else { return false };
            let mut items = core::mem::take(&mut self.buckets[b]);
            self.last = items.iter().map(|p| p.time).min().unwrap_or(self.last);
            for item in &items {
                let to = 64 - (item.time ^ self.last).leading_zeros() as usize;
                self.buckets[to].push(*item);
            }
            items.clear();
            self.keep_capacity(b, items);
        }
        core::mem::swap(&mut self.ready, &mut self.buckets[0]);
        if self.ready.len() > 1 {
            self.ready.sort_unstable_by_key(|p| core::cmp::Reverse(p.seq));
        }
        true
    }

    /// Gives a bucket its emptied vector back unless it is far larger than what is pending.
    fn keep_capacity(&mut self, bucket: usize, items: Vec<Pending<E>>) {
        if items.capacity() <= self.len.max(1024) && self.buckets[bucket].capacity() == 0 {
            self.buckets[bucket] = items;
        }
    }
}
