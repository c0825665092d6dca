//! A table indexed by request id: what lets every policy find, unlink and forget a request in O(1).
//!
//! Ids are slab keys of the pipeline, so the id itself is the index: no hash, no free list, one cache line per lookup.
use crate::{REQUEST_ID_LIMIT, prefetch::prefetch};
use alloc::vec::Vec;
use types::RequestId;

/// "No request" in a link field.
pub(crate) const NIL: u32 = u32::MAX;

/// Values by request id.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    items: Vec<Option<T>>,
    occupied: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { items: Vec::new(), occupied: 0 }
    }
}

impl<T> Slots<T> {
    /// Ids that have a value.
    pub(crate) fn len(&self) -> usize {
        self.occupied
    }
    pub(crate) fn get(&self, id: RequestId) -> Option<&T> {
        self.items.get(id.0 as usize)?.as_ref()
    }
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        self.items.get_mut(id.0 as usize)?.as_mut()
    }
    /// Stores `value` under `id` and answers what was there.
    ///
    /// # Panics
    /// When `id` is not a slab key below the limit.
    pub(crate) fn put(&mut self, id: RequestId, value: T) -> Option<T> {
        assert!(id.0 < REQUEST_ID_LIMIT, "request ids are slab keys below {REQUEST_ID_LIMIT}, got {}", id.0);
        let index = id.0 as usize;
        if index >= self.items.len() {
            self.items.resize_with(index + 1, || None);
        }
        let old = self.items[index].replace(value);
        self.occupied += usize::from(old.is_none());
        old
    }
    /// Stores `value` under a free `id`.
    ///
    /// # Panics
    /// When `id` already has a value: the caller enqueued it twice.
    pub(crate) fn insert(&mut self, id: RequestId, value: T) {
        assert!(self.put(id, value).is_none(), "request {id} is queued twice");
    }
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<T> {
        let old = self.items.get_mut(id.0 as usize)?.take();
        self.occupied -= usize::from(old.is_some());
        old
    }
    /// Fetches the slot of `id` for a use that is near.
    pub(crate) fn prefetch(&self, id: RequestId) {
        if let Some(slot) = self.items.get(id.0 as usize) {
            prefetch(slot);
        }
    }
    /// All ids, in ascending order of `rank`, which is unique.
    pub(crate) fn ids_in_order(&self, rank: impl Fn(&T) -> u64) -> Vec<RequestId> {
        let number = |at: usize| u32::try_from(at).expect("ids are below the limit");
        let ranked = |(at, item): (usize, &Option<T>)| item.as_ref().map(|item| (rank(item), number(at)));
        let mut order: Vec<(u64, u32)> = self.items.iter().enumerate().filter_map(ranked).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| RequestId(id)).collect()
    }
}
