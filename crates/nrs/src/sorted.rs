//! Request ids in the order of a key: inline while few, a B-tree when many. Equal keys stay in the order of arrival.
//!
//! Most objects hold no more requests than a client keeps in flight (8), and those sit beside the object's own fields;
//! one shared object may hold all requests of a server, and then every operation is O(log n).
use crate::prefetch::prefetch;
use alloc::{boxed::Box, collections::BTreeMap};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// Above this many entries the array becomes a tree, ..
const FEW_MAX: usize = 48;
/// .. which becomes an array again at this many, so that a queue around the limit does not flip back and forth.
const MANY_MIN: usize = 16;

#[derive(Debug)]
enum Store<K> {
    Few(SmallVec<[Item<K>; 8]>),
    Many(Box<Tree<K>>),
}

#[derive(Debug)]
struct Tree<K> {
    entries: BTreeMap<(K, u64), (u32, u32)>,
    /// Where each id stands in `entries`.
    keys: HashMap<u32, (K, u64), FxBuildHasher>,
    /// Grows with every insertion: keeps equal keys in the order of arrival.
    next: u64,
}

/// One request: where it sorts, which it is, and how many bytes it moves (so that serving it need not look it up).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item<K> {
    pub(crate) key: K,
    pub(crate) id: u32,
    pub(crate) bytes: u32,
}

/// A sorted multiset of requests.
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
    pub(crate) fn insert(&mut self, item: Item<K>) {
        match &mut self.store {
            Store::Few(few) if few.len() < FEW_MAX => {
                // From the back: streams arrive in ascending order.
                let at = few.iter().rposition(|e| e.key <= item.key).map_or(0, |i| i + 1);
                few.insert(at, item);
            }
            Store::Few(few) => {
                let mut tree = Box::new(Tree { entries: BTreeMap::new(), keys: HashMap::default(), next: 0 });
                few.drain(..).for_each(|item| tree.insert(item));
                tree.insert(item);
                self.store = Store::Many(tree);
            }
            Store::Many(tree) => tree.insert(item),
        }
    }
    /// The first request at or after `from`.
    pub(crate) fn peek_from(&self, from: K) -> Option<Item<K>> {
        match &self.store {
            Store::Few(few) => few.iter().find(|e| e.key >= from).copied(),
            Store::Many(tree) => tree.entries.range((from, 0)..).next().map(item_of),
        }
    }
    pub(crate) fn first(&self) -> Option<Item<K>> {
        match &self.store {
            Store::Few(few) => few.first().copied(),
            Store::Many(tree) => tree.entries.first_key_value().map(item_of),
        }
    }
    /// About the `nth` request, cheaply: a guess for whoever wants to fetch what belongs to it.
    pub(crate) fn about_nth(&self, nth: usize) -> Option<Item<K>> {
        match &self.store {
            Store::Few(few) => few.get(nth).copied(),
            Store::Many(_) => None,
        }
    }
    /// Fetches the place behind the last request, where most insertions go.
    pub(crate) fn prefetch_back(&self) {
        if let Store::Few(few) = &self.store
            && let Some(last) = few.last()
        {
            prefetch(last);
        }
    }
    /// Fetches the first requests.
    pub(crate) fn prefetch_front(&self) {
        if let Store::Few(few) = &self.store {
            few.iter().step_by(4).take(2).for_each(prefetch);
        }
    }
    pub(crate) fn last(&self) -> Option<Item<K>> {
        match &self.store {
            Store::Few(few) => few.last().copied(),
            Store::Many(tree) => tree.entries.last_key_value().map(item_of),
        }
    }
    /// The key of request `id`, if it is here.
    pub(crate) fn key_of(&self, id: u32) -> Option<K> {
        match &self.store {
            Store::Few(few) => few.iter().find(|e| e.id == id).map(|e| e.key),
            Store::Many(tree) => tree.keys.get(&id).map(|full| full.0),
        }
    }
    /// Takes out request `id`; answers whether it was there. O(log n).
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        match &mut self.store {
            Store::Few(few) => {
                let at = few.iter().position(|e| e.id == id);
                at.map(|at| few.remove(at)).is_some()
            }
            Store::Many(tree) => {
                let Some(full) = tree.keys.remove(&id) else { return false };
                tree.entries.remove(&full);
                if tree.entries.len() <= MANY_MIN {
                    let few = tree.entries.iter().map(item_of).collect();
                    self.store = Store::Few(few);
                }
                true
            }
        }
    }
}

fn item_of<K: Copy>((key, value): (&(K, u64), &(u32, u32))) -> Item<K> {
    Item { key: key.0, id: value.0, bytes: value.1 }
}

impl<K: Ord + Copy> Tree<K> {
    fn insert(&mut self, item: Item<K>) {
        self.keys.insert(item.id, (item.key, self.next));
        self.entries.insert((item.key, self.next), (item.id, item.bytes));
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
        let mut model: Vec<Item<u64>> = Vec::new();
        for id in 0..30_000u32 {
            // Grows to about 200 and shrinks again, over and over, so that it crosses both limits.
            let growing = id / 300 % 2 == 0;
            if rng.chance(if growing { 0.8 } else { 0.2 }) {
                let item = Item { key: rng.below(40), id, bytes: id * 3 };
                sorted.insert(item);
                let at = model.iter().rposition(|e| e.key <= item.key).map_or(0, |i| i + 1);
                model.insert(at, item);
            } else if !model.is_empty() {
                let item = model.remove(rng.below(model.len() as u64) as usize);
                assert_eq!(sorted.key_of(item.id), Some(item.key));
                assert!(sorted.remove(item.id) && !sorted.remove(item.id));
                assert_eq!(sorted.key_of(item.id), None);
            }
            let from = rng.below(45);
            assert_eq!(sorted.peek_from(from), model.iter().find(|e| e.key >= from).copied());
            assert_eq!(sorted.first(), model.first().copied());
            assert_eq!(sorted.last(), model.last().copied());
            assert_eq!(sorted.is_empty(), model.is_empty());
        }
    }
}
