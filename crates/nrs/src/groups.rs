//! Requests grouped by what takes turns (objects, clients, buckets): a [`Chain`] with a key per member.
//!
//! A group that nobody has looked at for long lies in main memory, and so does the way to it. Who knows a little earlier
//! which key will be wanted asks step by step: [`Groups::prefetch_index`], then [`Groups::guess`], then
//! [`Groups::find_guessed`]; each fetches what the next one reads.
pub(crate) use crate::chain::Line;
use crate::{
    chain::{Chain, List, NIL},
    index::{Index, KeyHash},
};
use core::hash::Hash;

#[derive(Debug)]
#[repr(C)]
struct Keyed<K, G> {
    key: K,
    group: G,
}

/// Groups `G` by key `K`, each in at most one [`List`]; aligned as `A` is.
#[derive(Debug)]
pub(crate) struct Groups<K, G, A = ()> {
    index: Index,
    chain: Chain<Keyed<K, G>, A>,
}

impl<K, G, A> Default for Groups<K, G, A> {
    fn default() -> Self {
        Groups { index: Index::default(), chain: Chain::default() }
    }
}

impl<K: Hash + Eq + Copy, G, A> Groups<K, G, A> {
    /// Fetches what [`Groups::guess`] reads.
    pub(crate) fn prefetch_index(&self, hash: KeyHash) {
        self.index.prefetch(hash);
    }
    /// Where the group with this hash probably is, without looking at it; what is there is fetched. [`NIL`] when there
    /// is none.
    pub(crate) fn guess(&self, hash: KeyHash) -> u32 {
        let found = self.index.find(hash, |_| true);
        if let Some(at) = found {
            self.chain.prefetch(at);
        }
        found.unwrap_or(NIL)
    }
    /// As [`Groups::find_or_insert`], trying first what [`Groups::guess`] answered some time ago.
    pub(crate) fn find_guessed(&mut self, guess: u32, key: K, make: impl FnOnce() -> G) -> (u32, bool) {
        match self.chain.get_live(guess) {
            Some(group) if group.key == key => (guess, false),
            _ => self.find_or_insert(key, make),
        }
    }
    /// The group at `at`, if there is one now.
    pub(crate) fn get_live(&self, at: u32) -> Option<&G> {
        self.chain.get_live(at).map(|keyed| &keyed.group)
    }
    /// Index of the group of `key`, and whether it was made now.
    pub(crate) fn find_or_insert(&mut self, key: K, make: impl FnOnce() -> G) -> (u32, bool) {
        let hash = KeyHash::of(&key);
        if let Some(at) = self.index.find(hash, |at| self.chain.get(at).key == key) {
            return (at, false);
        }
        let at = self.chain.insert(Keyed { key, group: make() });
        self.index.insert(hash, at);
        (at, true)
    }
    /// Forgets the group at `at`, which hangs in no list.
    pub(crate) fn remove(&mut self, at: u32) {
        self.index.remove(KeyHash::of(&self.key(at)), at);
        self.chain.free(at);
    }
    pub(crate) fn get(&self, at: u32) -> &G {
        &self.chain.get(at).group
    }
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut G {
        &mut self.chain.get_mut(at).group
    }
    pub(crate) fn key(&self, at: u32) -> K {
        self.chain.get(at).key
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
