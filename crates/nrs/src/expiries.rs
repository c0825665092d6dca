//! The queue of dynamic deadlines: requests in the order of their expiries, which is the order in which they were given.
//!
//! A request that leaves is crossed out in a bit map, which stays in a CPU's caches at a million requests; the queue
//! itself is written at its end and read at its beginning only. What is crossed out goes when it comes first, or when it
//! is the majority.
use alloc::collections::VecDeque;
use types::{Instant, RequestId};

/// Requests are numbered by their places, from here on.
const FIRST_PLACE: u64 = 1;
/// How far ahead [`Expiries::compact`] names a request.
const MOVED_AHEAD: usize = 16;

/// The queue; see the module.
#[derive(Debug)]
pub(crate) struct Expiries {
    /// `(expiry, id)`, ascending; the first one has place `first`.
    entries: VecDeque<(Instant, u32)>,
    first: u64,
    /// A bit per place from `first / 64 * 64` on: crossed out.
    crossed: VecDeque<u64>,
}

impl Default for Expiries {
    fn default() -> Self {
        Expiries { entries: VecDeque::new(), first: FIRST_PLACE, crossed: VecDeque::new() }
    }
}

impl Expiries {
    /// Places in use, those crossed out included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
    /// The place of the first request.
    pub(crate) fn first_place(&self) -> u64 {
        self.first
    }
    /// The place whose low half is `low`: fewer than 2^32 are in use.
    pub(crate) fn place(&self, low: u32) -> u64 {
        self.first + u64::from(low.wrapping_sub(self.first as u32))
    }
    /// Adds a request that expires last, and answers its place.
    pub(crate) fn push(&mut self, expiry: Instant, id: RequestId) -> u64 {
        let place = self.first + self.entries.len() as u64;
        if self.crossed.is_empty() || place.is_multiple_of(64) {
            self.crossed.push_back(0);
        }
        self.entries.push_back((expiry, id.0));
        place
    }
    fn bit(&self, place: u64) -> (usize, u64) {
        let word = usize::try_from(place / 64 - self.first / 64).expect("the queue fits into memory");
        (word, 1 << (place % 64))
    }
    /// The request at `place` has left.
    pub(crate) fn cross_out(&mut self, place: u64) {
        let (word, bit) = self.bit(place);
        self.crossed[word] |= bit;
    }
    /// When the request at `place` expires.
    pub(crate) fn expiry(&self, place: u64) -> Instant {
        self.entries[usize::try_from(place - self.first).expect("the queue fits into memory")].0
    }
    /// The first request that has not left, and when it expires. What is crossed out before it goes.
    pub(crate) fn first(&mut self) -> Option<(Instant, RequestId)> {
        while let Some((expiry, id)) = self.entries.front().copied() {
            let (word, bit) = self.bit(self.first);
            if self.crossed[word] & bit == 0 {
                return Some((expiry, RequestId(id)));
            }
            self.entries.pop_front();
            self.first += 1;
            if self.first.is_multiple_of(64) {
                self.crossed.pop_front();
            }
        }
        self.crossed.clear();
        None
    }
    /// Drops what is crossed out. `moved` is told every request and its place from now on, and one that it will be told
    /// soon.
    pub(crate) fn compact(&mut self, mut moved: impl FnMut(RequestId, u64, Option<RequestId>)) {
        let (first, crossed) = (self.first, core::mem::take(&mut self.crossed));
        let mut place = first;
        self.entries.retain(|_| {
            let keep = crossed[(place / 64 - first / 64) as usize] & (1 << (place % 64)) == 0;
            place += 1;
            keep
        });
        let words = (first + self.entries.len() as u64).div_ceil(64) - first / 64;
        self.crossed.resize(usize::try_from(words).expect("the queue fits into memory"), 0);
        let soon = self.entries.iter().skip(MOVED_AHEAD).map(|(_, id)| Some(RequestId(*id)));
        let soon = soon.chain(core::iter::repeat(None));
        for ((place, (_, id)), soon) in (first..).zip(&self.entries).zip(soon) {
            moved(RequestId(*id), place, soon);
        }
    }
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.first += self.entries.len() as u64;
        self.entries.clear();
        self.crossed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, vec::Vec};

    #[test]
    fn places_stay_right_whoever_leaves_and_whenever_it_is_compacted() {
        let mut rng = types::Rng::new(12);
        let (mut expiries, mut place_of) = (Expiries::default(), BTreeMap::new());
        let mut model: Vec<(Instant, u32)> = Vec::new();
        for id in 0..60_000u32 {
            // Grows to about 300 and shrinks to nothing, over and over.
            if rng.chance(if id / 500 % 2 == 0 { 0.8 } else { 0.2 }) {
                let expiry = Instant(u64::from(id) / 3);
                place_of.insert(id, expiries.push(expiry, RequestId(id)) as u32);
                model.push((expiry, id));
            } else if !model.is_empty() {
                let (expiry, id) = model.remove(rng.below(model.len() as u64) as usize);
                let place = expiries.place(place_of.remove(&id).expect("it is there"));
                assert_eq!(expiries.expiry(place), expiry);
                expiries.cross_out(place);
            }
            if rng.chance(0.5) {
                assert_eq!(expiries.first(), model.first().map(|(expiry, id)| (*expiry, RequestId(*id))));
            }
            if rng.chance(0.01) {
                let mut moved = Vec::new();
                expiries.compact(|id, place, _| moved.push((id.0, place as u32)));
                assert!(moved.iter().map(|m| m.0).eq(model.iter().map(|m| m.1)));
                assert_eq!(expiries.len(), model.len());
                place_of = moved.into_iter().collect();
            }
        }
    }
}
