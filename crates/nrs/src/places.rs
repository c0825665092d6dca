//! Where each queued request is: its place (the slab index of its object, batch or bucket) and its rank among the arrivals,
//! in 8 bytes per id. Ids are slab keys of the pipeline, so the id itself is the index; at a million queued requests the
//! table is small enough for a CPU's third-level cache, and everything else about a request stands in its queue only.
use crate::{REQUEST_ID_LIMIT, prefetch::prefetch};
use alloc::vec::Vec;
use types::RequestId;

const PLACE_BITS: u32 = REQUEST_ID_LIMIT.trailing_zeros();
/// The place of a request that has none yet.
pub(crate) const NOWHERE: u32 = REQUEST_ID_LIMIT - 1;
/// The entry of an id that is not queued.
const FREE: u64 = u64::MAX;
/// Ranks are below this; when they are used up, the queued requests are numbered afresh.
const RANK_LIMIT: u64 = (1 << (u64::BITS - PLACE_BITS)) - 1;

/// The table; see the module.
#[derive(Debug, Default)]
pub(crate) struct Places {
    entries: Vec<u64>,
    queued: usize,
    rank: u64,
}

impl Places {
    /// Requests in the table.
    pub(crate) fn len(&self) -> usize {
        self.queued
    }
    fn entry(&self, id: RequestId) -> Option<u64> {
        self.entries.get(id.0 as usize).copied().filter(|entry| *entry != FREE)
    }
    /// The place of `id`, if it is queued; [`NOWHERE`] when it was put in without one.
    pub(crate) fn get(&self, id: RequestId) -> Option<u32> {
        self.entry(id).map(|entry| entry as u32 & NOWHERE)
    }
    /// Takes `id` in, the last to arrive.
    ///
    /// # Panics
    /// When it is queued already, or not below the limit.
    pub(crate) fn insert(&mut self, id: RequestId, place: u32) {
        assert!(id.0 < REQUEST_ID_LIMIT, "request ids are slab keys below {REQUEST_ID_LIMIT}, got {}", id.0);
        if self.rank == RANK_LIMIT {
            self.renumber();
        }
        let index = id.0 as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, FREE);
        }
        let entry = &mut self.entries[index];
        assert!(*entry == FREE, "request {id} is queued twice");
        *entry = self.rank << PLACE_BITS | u64::from(place);
        self.rank += 1;
        self.queued += 1;
    }
    /// Notes where `id`, which is queued, is now.
    pub(crate) fn set(&mut self, id: RequestId, place: u32) {
        debug_assert!(place <= NOWHERE && self.entry(id).is_some());
        let entry = &mut self.entries[id.0 as usize];
        *entry = *entry & !u64::from(NOWHERE) | u64::from(place);
    }
    /// Takes `id` out and answers its place, if it is queued.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<u32> {
        let place = self.get(id)?;
        self.vacate(id);
        Some(place)
    }
    /// Takes out `id`, which is queued. Unlike [`Places::remove`] it does not wait for the memory that it clears.
    pub(crate) fn vacate(&mut self, id: RequestId) {
        let entry = &mut self.entries[id.0 as usize];
        debug_assert!(*entry != FREE, "request {id} is in the table");
        *entry = FREE;
        self.queued -= 1;
    }
    /// Fetches the entry of `id` for a use that is near.
    pub(crate) fn prefetch(&self, id: RequestId) {
        if let Some(entry) = self.entries.get(id.0 as usize) {
            prefetch(entry);
        }
    }
    /// All ids in the order of arrival.
    pub(crate) fn in_order(&self) -> Vec<RequestId> {
        let queued = self.entries.iter().zip(0u32..).filter(|(entry, _)| **entry != FREE);
        let mut order: Vec<(u64, u32)> = queued.map(|(entry, id)| (*entry >> PLACE_BITS, id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| RequestId(id)).collect()
    }
    /// Takes everything out: all ids in the order of arrival.
    pub(crate) fn take_in_order(&mut self) -> Vec<RequestId> {
        let ids = self.in_order();
        self.entries.clear();
        self.queued = 0;
        ids
    }

    #[cold]
    fn renumber(&mut self) {
        self.rank = 0;
        for id in self.in_order() {
            let entry = &mut self.entries[id.0 as usize];
            *entry = self.rank << PLACE_BITS | (*entry & u64::from(NOWHERE));
            self.rank += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_the_order_of_arrival_are_kept_when_ranks_run_out() {
        let mut places = Places { rank: RANK_LIMIT - 500, ..Places::default() };
        let mut rng = types::Rng::new(4);
        let mut model: Vec<(u32, u32)> = Vec::new();
        for _ in 0..2000 {
            let id = rng.below(100) as u32;
            if let Some(at) = model.iter().position(|m| m.0 == id) {
                assert_eq!(places.get(RequestId(id)), Some(model[at].1));
                if rng.chance(0.5) {
                    assert_eq!(places.remove(RequestId(id)), Some(model.remove(at).1));
                } else {
                    model[at].1 = id * 7;
                    places.set(RequestId(id), id * 7);
                }
            } else {
                assert_eq!(places.remove(RequestId(id)), None);
                places.insert(RequestId(id), NOWHERE);
                model.push((id, NOWHERE));
            }
            assert_eq!(places.len(), model.len());
            assert!(places.in_order().iter().map(|id| id.0).eq(model.iter().map(|m| m.0)));
        }
    }
}
