//! Who waits until when: a heap from which whoever stops waiting need not be taken out.
//!
//! An entry that is out of date is dropped when it comes first, and all of them are when they are the majority. Whoever
//! asks says what is out of date.
use alloc::{collections::BinaryHeap, vec::Vec};
use core::cmp::Reverse;
use types::Instant;

/// `(until, number)`, ascending; equal times by number. The first one is never out of date.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    /// How many wait.
    live: usize,
}

impl Waiting {
    /// `number` waits until `until`, as `is_live` knows already.
    pub(crate) fn insert(&mut self, until: Instant, number: u32, is_live: impl Fn(Instant, u32) -> bool) {
        self.live += 1;
        self.heap.push(Reverse((until, number)));
        if self.heap.len() > 2 * self.live + 64 {
            self.heap = self.sorted(is_live).into_iter().map(Reverse).collect();
        }
    }
    /// Somebody stopped waiting, as `is_live` knows already.
    pub(crate) fn leave(&mut self, is_live: impl Fn(Instant, u32) -> bool) {
        self.live -= 1;
        while self.first().is_some_and(|(until, number)| !is_live(until, number)) {
            self.heap.pop();
        }
    }
    /// The one who waits the shortest.
    pub(crate) fn first(&self) -> Option<(Instant, u32)> {
        self.heap.peek().map(|Reverse(first)| *first)
    }
    /// The one who waits the shortest, if until `now` at most; [`Waiting::leave`] has to be told then.
    pub(crate) fn ripe(&self, now: Instant) -> Option<u32> {
        self.first().filter(|(until, _)| *until <= now).map(|(_, number)| number)
    }
    /// All who wait, in order.
    pub(crate) fn sorted(&self, is_live: impl Fn(Instant, u32) -> bool) -> Vec<(Instant, u32)> {
        let mut all: Vec<_> = self.heap.iter().map(|Reverse(entry)| *entry).filter(|e| is_live(e.0, e.1)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn it_answers_as_an_ordered_set_does_whoever_leaves() {
        let mut rng = types::Rng::new(6);
        let (mut waiting, mut until_of) = (Waiting::default(), BTreeMap::new());
        let mut model: BTreeSet<(Instant, u32)> = BTreeSet::new();
        for _ in 0..40_000 {
            let number = rng.below(60) as u32;
            if let Some(until) = until_of.remove(&number) {
                assert!(model.remove(&(until, number)));
                waiting.leave(|at, n| until_of.get(&n) == Some(&at));
            } else {
                let until = Instant(rng.below(8));
                until_of.insert(number, until);
                model.insert((until, number));
                waiting.insert(until, number, |at, n| until_of.get(&n) == Some(&at));
                assert!(waiting.heap.len() <= 2 * model.len() + 64);
            }
            assert_eq!(waiting.first(), model.first().copied());
        }
        assert!(waiting.sorted(|at, n| until_of.get(&n) == Some(&at)).into_iter().eq(model));
    }
}
