//! Where the bytes of objects lie on the medium, of which only requests are known. Requests do not say; the store's allocator,
//! asked in the order in which they go to the store, does.
use crate::{AllocKind, Allocator, RegionMap};
use core::cell::Cell;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::{Extent, ObjectId};

/// Bytes of a store's block.
const BLOCK_BYTES: u64 = 4096;

/// Most bytes of an object, as its requests tell of it.
const OBJECT_BYTES_MAX: u64 = 1 << 60;

/// What a request asks the store for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The object.
    pub object: ObjectId,
    /// Its bytes that the request touches.
    pub extent: Extent,
    /// How many of them, from the first one's block on, the store is asked for.
    pub stored: u64,
    /// They are written.
    pub write: bool,
}

/// Objects on a medium.
#[derive(Clone, Debug)]
pub struct Places {
    allocator: Allocator,
    objects: HashMap<ObjectId, RegionMap, FxBuildHasher>,
    /// Ends of objects that were there before the first request: it reads them.
    found: HashMap<ObjectId, u64, FxBuildHasher>,
    amid: bool,
}

impl Places {
    /// Of the objects that `requests` touch, in the order of their arrival.
    #[must_use]
    pub fn new(kind: AllocKind, requests: impl Iterator<Item = Asked>) -> Places {
        let mut first: HashMap<ObjectId, bool, FxBuildHasher> = HashMap::default();
        let mut found: HashMap<ObjectId, u64, FxBuildHasher> = HashMap::default();
        for r in requests {
            if !*first.entry(r.object).or_insert(r.write) {
                let end = found.entry(r.object).or_default();
                // What the store is asked for, not what is touched: a punch or a lock touches everything up to the end of offsets.
                let asked = (r.extent.start / BLOCK_BYTES * BLOCK_BYTES).saturating_add(r.stored);
                *end = (*end).max(asked.min(OBJECT_BYTES_MAX));
            }
        }
        Places { allocator: Allocator::new(kind), objects: HashMap::default(), found, amid: false }
    }
    /// Of requests that go on with what others began: an object whose first write is not at its beginning had been written up to
    /// there, so that no two objects lie behind each other by the order of these requests alone.
    #[must_use]
    pub fn amid(self) -> Places {
        Places { amid: true, ..self }
    }

    /// Where the blocks lie that `r` asks the store for: `piece(lba, len)` each; how many pieces.
    pub fn pieces(&mut self, r: &Asked, mut piece: impl FnMut(u64, u64)) -> u32 {
        let (start, len) = (r.extent.start / BLOCK_BYTES * BLOCK_BYTES, r.stored);
        let map = self.objects.entry(r.object).or_default();
        if let Some(end) = self.found.remove(&r.object) {
            // What was there lies in one piece, as in an emulated store.
            self.allocator.write(map, 0, end.next_multiple_of(BLOCK_BYTES), |_, _| {});
        }
        if self.amid && r.write && start > 0 && map.regions().is_empty() {
            self.allocator.write(map, 0, start, |_, _| {});
        }
        let count = Cell::new(0);
        let mut counted = |lba, len| {
            count.set(count.get() + 1);
            piece(lba, len);
        };
        if r.write {
            self.allocator.write(map, start, len, &mut counted);
            return count.get();
        }
        map.lookup(start, len, &mut counted);
        if count.get() == 0 {
            // It was written before anything was known of it.
            self.allocator.write(map, start, len, &mut counted);
        }
        count.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use types::{MIB, OstIndex};

    fn lbas(mut places: Places, at_mib: u64) -> Vec<u64> {
        let mut lbas = Vec::new();
        for object in 1..4 {
            let object = ObjectId::new(OstIndex(0), object);
            let r = Asked { object, extent: Extent::at(at_mib * MIB, MIB), stored: MIB, write: true };
            assert_eq!(places.pieces(&r, |lba, _| lbas.push(lba / MIB)), 1);
        }
        lbas
    }

    #[test]
    fn a_request_that_touches_everything_up_to_the_end_of_offsets_makes_no_object_of_that_size() {
        let object = ObjectId::new(OstIndex(0), 1);
        let all = Asked { object, extent: Extent::new(8192, u64::MAX), stored: 0, write: false };
        let read = Asked { extent: Extent::at(0, MIB), stored: MIB, ..all };
        let mut places = Places::new(AllocKind::Mballoc, [all, read].into_iter());
        let mut seen = Vec::new();
        assert_eq!(places.pieces(&read, |lba, len| seen.push((lba, len))), 1);
        places.pieces(&all, |lba, len| seen.push((lba, len)));
        assert!(seen[0] == (0, MIB) && seen[1..].iter().all(|(lba, len)| lba + len <= 2 * MIB), "{seen:?}");
    }

    #[test]
    fn objects_that_others_began_do_not_lie_behind_each_other() {
        let places = || Places::new(AllocKind::Mballoc, core::iter::empty());
        assert_eq!(lbas(places(), 0), [0, 1, 2]);
        assert_eq!(lbas(places().amid(), 0), [0, 1, 2], "what begins here, begins here");
        assert_eq!(lbas(places().amid(), 16), [16, 40, 64]);
    }
}
