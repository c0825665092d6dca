//! A hash table from keys to slab indices that keeps 8 bytes per entry and no key: whoever asks compares the keys.
//!
//! Linear probing over one array, so that a look-up costs one cache line, which [`Index::prefetch`] fetches beforehand;
//! with 32 bits of the hash in each entry nearly every candidate is the right one. Nothing ever iterates over it, so its
//! order cannot show. Differs from `hashbrown`, whose look-up waits for two lines and tells nobody where they lie.
use crate::prefetch::prefetch;
use alloc::{vec, vec::Vec};
use core::hash::{BuildHasher, Hash};
use rustc_hash::FxBuildHasher;

/// A free entry: no slab index is this large.
const FREE: u64 = u64::MAX;
/// Entries of the smallest table.
const SLOTS_MIN: usize = 16;

/// A key's hash, to be computed once for several steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyHash(u32);

impl KeyHash {
    pub(crate) fn of(key: &impl Hash) -> KeyHash {
        // Which bits of the hash are good is the hasher's affair; a multiplication brings all of them to the top.
        KeyHash((FxBuildHasher.hash_one(key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32)
    }
}

/// The table; see the module.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// `hash << 32 | index`; the length is a power of two, or 0.
    slots: Vec<u64>,
    len: usize,
}

impl Index {
    fn mask(&self) -> usize {
        self.slots.len() - 1
    }
    /// Where the look-up of `hash` begins: its upper bits.
    fn home(&self, hash: KeyHash) -> usize {
        (hash.0 as usize).wrapping_mul(self.slots.len()) >> 32
    }
    /// Fetches what a look-up of `hash` reads first.
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        if let Some(slot) = self.slots.get(self.home(hash)) {
            prefetch(slot);
        }
    }
    /// The first index with this hash that `is_it`.
    pub(crate) fn find(&self, hash: KeyHash, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position(hash, &mut is_it).map(|at| self.slots[at] as u32)
    }
    fn position(&self, hash: KeyHash, is_it: &mut dyn FnMut(u32) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        while self.slots[at] != FREE {
            let slot = self.slots[at];
            if (slot >> 32) as u32 == hash.0 && is_it(slot as u32) {
                return Some(at);
            }
            at = (at + 1) & self.mask();
        }
        None
    }
    /// Adds `index`, which is not there.
    pub(crate) fn insert(&mut self, hash: KeyHash, index: u32) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        self.place(u64::from(hash.0) << 32 | u64::from(index));
        self.len += 1;
    }
    fn place(&mut self, slot: u64) {
        let mut at = self.home(KeyHash((slot >> 32) as u32));
        while self.slots[at] != FREE {
            at = (at + 1) & self.mask();
        }
        self.slots[at] = slot;
    }
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(SLOTS_MIN);
        for slot in core::mem::replace(&mut self.slots, vec![FREE; slots]) {
            if slot != FREE {
                self.place(slot);
            }
        }
    }
    /// Takes `index` out, which is there.
    pub(crate) fn remove(&mut self, hash: KeyHash, index: u32) {
        let mut hole = self.position(hash, &mut |other| other == index).expect("what is removed is in the index");
        // Closes the gap with what was pushed past it, so that no look-up ends too early.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask();
            let slot = self.slots[at];
            if slot == FREE {
                break;
            }
            let home = self.home(KeyHash((slot >> 32) as u32));
            if (at.wrapping_sub(home) & self.mask()) >= (at.wrapping_sub(hole) & self.mask()) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = FREE;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_finds_what_is_in_it_and_nothing_else_whatever_collides() {
        let mut rng = types::Rng::new(8);
        let (mut index, mut keys) = (Index::default(), Vec::new());
        let mut model: BTreeMap<u64, u32> = BTreeMap::new();
        for step in 0..60_000u32 {
            // Few keys and few hashes: long runs of colliding entries, around the end of the table too.
            let key = rng.below(1 + u64::from(step / 20_000) * 200 + 40);
            let hash = if key.is_multiple_of(3) { KeyHash(u32::MAX - (key as u32 % 4)) } else { KeyHash::of(&key) };
            let found = index.find(hash, |at| keys[at as usize] == key);
            assert_eq!(found, model.get(&key).copied());
            if let Some(at) = found {
                index.remove(hash, at);
                model.remove(&key);
            } else {
                keys.push(key);
                let at = keys.len() as u32 - 1;
                index.insert(hash, at);
                model.insert(key, at);
            }
            assert_eq!(index.len, model.len());
        }
    }
}
