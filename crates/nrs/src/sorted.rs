//! Request ids in the order of a key: inline while few, a B-tree when many. Equal keys stay in the order of arrival.
//!
//! Most objects hold no more requests than a client keeps in flight (8), and those sit beside the object's own fields;
//! one shared object may hold all requests of a server, and then every operation is O(log n).
use alloc::{boxed::Box, collections::BTreeMap};
use smallvec::SmallVec;

/// Above this many entries the array becomes a tree, ..
const FEW_MAX: usize = 48;
/// .. which becomes an array again at this many, so that a queue around the limit does not flip back and forth.
const MANY_MIN: usize = 16;

#[derive(Debug)]
enum Store<K> {
    Few(SmallVec<[(K, u32); 8]>),
    Many(Box<Tree<K>>),
}

#[derive(Debug)]
struct Tree<K> {
    entries: BTreeMap<(K, u64), u32>,
    /// Grows with every insertion: keeps equal keys in the order of arrival.
    next: u64,
}

/// A sorted multiset of `(key, id)`.
#[derive(Debug)]
pub(crate) struct Sorted<K> {
    store: Store<K>,
}

impl<K> Default for Sorted<K> {
    fn default() -> Self {
        Sorted { store: Store::Few(SmallVec::new()) }
    }
}

impl<K: Ord + Copy> Sorted<K> {
    pub(crate) fn is_empty(&self) -> bool {
        match &self.store {
            Store::Few(few) => few.is_empty(),
            Store::Many(tree) => tree.entries.is_empty(),
        }
    }
    pub(crate) fn insert(&mut self, key: K, id: u32) {
        match &mut self.store {
            Store::Few(few) if few.len() < FEW_MAX => {
                // From the back: streams arrive in ascending order.
                let at = few.iter().rposition(|e| e.0 <= key).map_or(0, |i| i + 1);
                few.insert(at, (key, id));
            }
            Store::Few(few) => {
                let mut tree = Box::new(Tree { entries: BTreeMap::new(), next: 0 });
                for (key, id) in few.drain(..) {
                    tree.insert(key, id);
                }
                tree.insert(key, id);
                self.store = Store::Many(tree);
            }
            Store::Many(tree) => tree.insert(key, id),
        }
    }
    /// The first entry at or after `from`.
    pub(crate) fn peek_from(&self, from: K) -> Option<(K, u32)> {
        match &self.store {
            Store::Few(few) => few.iter().find(|e| e.0 >= from).copied(),
            Store::Many(tree) => tree.entries.range((from, 0)..).next().map(|(k, id)| (k.0, *id)),
        }
    }
    pub(crate) fn first(&self) -> Option<(K, u32)> {
        match &self.store {
            Store::Few(few) => few.first().copied(),
            Store::Many(tree) => tree.entries.first_key_value().map(|(k, id)| (k.0, *id)),
        }
    }
    pub(crate) fn last(&self) -> Option<(K, u32)> {
        match &self.store {
            Store::Few(few) => few.last().copied(),
            Store::Many(tree) => tree.entries.last_key_value().map(|(k, id)| (k.0, *id)),
        }
    }
    /// Takes out the entry `(key, id)`; answers whether it was there. O(log n + entries with the same key).
    pub(crate) fn remove(&mut self, key: K, id: u32) -> bool {
        match &mut self.store {
            Store::Few(few) => {
                let at = few.iter().position(|e| e.1 == id && e.0 == key);
                at.map(|at| few.remove(at)).is_some()
            }
            Store::Many(tree) => {
                let mut same = tree.entries.range((key, 0)..=(key, u64::MAX));
                let Some(full) = same.find(|e| *e.1 == id).map(|e| *e.0) else { return false };
                tree.entries.remove(&full);
                if tree.entries.len() <= MANY_MIN {
                    let few = tree.entries.iter().map(|(k, id)| (k.0, *id)).collect();
                    self.store = Store::Few(few);
                }
                true
            }
        }
    }
}

impl<K: Ord> Tree<K> {
    fn insert(&mut self, key: K, id: u32) {
        self.entries.insert((key, self.next), id);
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn it_answers_as_a_stably_sorted_list_does_at_every_size() {
        let mut rng = types::Rng::new(9);
        let mut sorted = Sorted::default();
        let mut model: Vec<(u64, u32)> = Vec::new();
        for step in 0..30_000u32 {
            // Grows to about 200 and shrinks again, over and over, so that it crosses both limits.
            let growing = step / 300 % 2 == 0;
            if rng.chance(if growing { 0.8 } else { 0.2 }) {
                let key = rng.below(40);
                sorted.insert(key, step);
                let at = model.iter().rposition(|e| e.0 <= key).map_or(0, |i| i + 1);
                model.insert(at, (key, step));
            } else if !model.is_empty() {
                let (key, id) = model.remove(rng.below(model.len() as u64) as usize);
                assert!(sorted.remove(key, id));
                assert!(!sorted.remove(key, id));
            }
            let from = rng.below(45);
            assert_eq!(sorted.peek_from(from), model.iter().find(|e| e.0 >= from).copied());
            assert_eq!(sorted.first(), model.first().copied());
            assert_eq!(sorted.last(), model.last().copied());
            assert_eq!(sorted.is_empty(), model.is_empty());
        }
    }
}
