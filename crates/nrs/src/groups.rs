//! Requests grouped by what takes turns (objects, clients, buckets): a [`Chain`] with a key per member.
//!
//! The hash table holds 4-byte indices only, so that at 100,000 groups it stays in the CPU's second-level cache and a
//! lookup touches exactly the group that is wanted. Nothing ever iterates over the hash table.
use crate::chain::{Chain, List};
use core::hash::{BuildHasher, Hash};
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// Groups `G` by key `K`, each in at most one [`List`].
#[derive(Debug)]
pub(crate) struct Groups<K, G> {
    index: HashTable<u32>,
    chain: Chain<(K, G)>,
}

impl<K, G> Default for Groups<K, G> {
    fn default() -> Self {
        Groups { index: HashTable::new(), chain: Chain::default() }
    }
}

impl<K: Hash + Eq + Copy, G> Groups<K, G> {
    /// Index of the group of `key`, and whether it was made now.
    pub(crate) fn find_or_insert(&mut self, key: K, make: impl FnOnce() -> G) -> (u32, bool) {
        let hash = FxBuildHasher.hash_one(key);
        let chain = &self.chain;
        let is_it = |at: &u32| {
            // A candidate is nearly always the right one, and then all of it is used.
            chain.prefetch(*at);
            chain.get(*at).0 == key
        };
        if let Some(at) = self.index.find(hash, is_it) {
            return (*at, false);
        }
        let at = self.chain.insert((key, make()));
        self.index.insert_unique(hash, at, |at| FxBuildHasher.hash_one(self.chain.get(*at).0));
        (at, true)
    }
    /// Forgets the group at `at`, which hangs in no list.
    pub(crate) fn remove(&mut self, at: u32) {
        let hash = FxBuildHasher.hash_one(self.key(at));
        let entry = self.index.find_entry(hash, |other| *other == at);
        entry.expect("a live group is in the index").remove();
        self.chain.free(at);
    }
    pub(crate) fn get(&self, at: u32) -> &G {
        &self.chain.get(at).1
    }
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut G {
        &mut self.chain.get_mut(at).1
    }
    pub(crate) fn key(&self, at: u32) -> K {
        self.chain.get(at).0
    }
    /// See [`Chain::prefetch`].
    pub(crate) fn prefetch(&self, at: u32) {
        self.chain.prefetch(at);
    }
    /// See [`Chain::next`].
    pub(crate) fn next(&self, at: u32) -> Option<u32> {
        self.chain.next(at)
    }
    /// See [`Chain::push_back`].
    pub(crate) fn push_back(&mut self, list: &mut List, at: u32) {
        self.chain.push_back(list, at);
    }
    /// See [`Chain::push_front`].
    pub(crate) fn push_front(&mut self, list: &mut List, at: u32) {
        self.chain.push_front(list, at);
    }
    /// See [`Chain::insert_after`].
    pub(crate) fn insert_after(&mut self, list: &mut List, before: u32, at: u32) {
        self.chain.insert_after(list, before, at);
    }
    /// See [`Chain::unlink`].
    pub(crate) fn unlink(&mut self, list: &mut List, at: u32) {
        self.chain.unlink(list, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_list_keeps_its_order_through_any_pushes_and_unlinks() {
        let mut rng = types::Rng::new(3);
        let (mut groups, mut list) = (Groups::<u64, u64>::default(), List::default());
        let mut model: VecDeque<(u64, u32)> = VecDeque::new();
        for _ in 0..20_000 {
            let key = rng.below(50);
            let (at, fresh) = groups.find_or_insert(key, || key * 2);
            assert_eq!(fresh, model.iter().all(|m| m.0 != key));
            assert_eq!((groups.key(at), *groups.get(at)), (key, key * 2));
            if !fresh {
                groups.unlink(&mut list, at);
                groups.remove(at);
                model.retain(|m| m.0 != key);
            } else if rng.chance(0.4) {
                groups.push_back(&mut list, at);
                model.push_back((key, at));
            } else if rng.chance(0.5) && !model.is_empty() {
                let before = rng.below(model.len() as u64) as usize;
                groups.insert_after(&mut list, model[before].1, at);
                model.insert(before + 1, (key, at));
            } else {
                groups.push_front(&mut list, at);
                model.push_front((key, at));
            }
            assert_eq!(list.front(), model.front().map(|m| m.1));
            assert_eq!(list.is_empty(), model.is_empty());
        }
        while let Some(at) = list.front() {
            assert_eq!(Some((groups.key(at), at)), model.pop_front());
            groups.unlink(&mut list, at);
        }
        assert!(model.is_empty());
    }
}
