//! Where the bytes of recorded objects lie on the medium. A trace does not say; the store's allocator, asked in the order in
//! which requests go to the store, does.
use devices::{AllocKind, Allocator, RegionMap};
use std::cell::Cell;
use std::collections::HashMap;
use trace::Record;
use types::ObjectId;

/// Bytes of a store's block.
const BLOCK_BYTES: u64 = 4096;

/// Objects on a medium.
pub(super) struct Places {
    alloc: Allocator,
    objects: HashMap<ObjectId, RegionMap>,
    /// Ends of objects that were there before the trace: it begins with a read of them.
    found: HashMap<ObjectId, u64>,
}

impl Places {
    /// Of the objects that `records` touch, in the order of their arrival.
    pub fn new<'a>(alloc: AllocKind, records: impl Iterator<Item = &'a Record>) -> Places {
        let mut first: HashMap<ObjectId, bool> = HashMap::new();
        let mut found: HashMap<ObjectId, u64> = HashMap::new();
        for r in records {
            if !*first.entry(r.object).or_insert(r.is_write()) {
                let end = found.entry(r.object).or_default();
                *end = (*end).max(r.end());
            }
        }
        Places { alloc: Allocator::new(alloc), objects: HashMap::new(), found }
    }

    /// Where the blocks lie that `r` asks the store for: `piece(lba, len)` each; how many pieces.
    pub fn pieces(&mut self, r: &Record, mut piece: impl FnMut(u64, u64)) -> u32 {
        let (start, len) = (r.offset / BLOCK_BYTES * BLOCK_BYTES, u64::from(r.stored));
        let map = self.objects.entry(r.object).or_default();
        if let Some(end) = self.found.remove(&r.object) {
            // What was there lies in one piece, as in an emulated store.
            self.alloc.write(map, 0, end.next_multiple_of(BLOCK_BYTES), |_, _| {});
        }
        let count = Cell::new(0);
        let mut counted = |lba, len| {
            count.set(count.get() + 1);
            piece(lba, len);
        };
        if r.is_write() {
            self.alloc.write(map, start, len, &mut counted);
            return count.get();
        }
        map.lookup(start, len, &mut counted);
        if count.get() == 0 {
            // It was written before the trace began.
            self.alloc.write(map, start, len, &mut counted);
        }
        count.get()
    }
}
