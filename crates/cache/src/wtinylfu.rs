//! `wtinylfu`: a small window decides nothing, a frequency sketch decides who enters the main cache.
//!
//! Source: Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM TOS 2017, with the
//! usual parts: a least-recently-used window of 1 %, a segmented main cache (80 % protected), a count-min sketch of
//! four-bit counters that are halved every ten accesses per page. Differs: room is made before it is known for whom,
//! so the oldest window page contests with the oldest page on probation at reclaim; the window holds at least 64 pages,
//! twice a usual reclaim batch; the first use of a prefetched page is its arrival; protected pages are kept by a visited
//! bit and a second chance instead of a move on every hit.
use crate::ghost::fingerprint;
use crate::managed::{Managed, Order};
use crate::table::{ListId, Table};
use crate::{CacheConfig, FrameId, PageAccess, ReclaimPolicy};
use alloc::{boxed::Box, vec, vec::Vec};
use types::prefetch::prefetch;

const WINDOW: ListId = 1;
const PROBATION: ListId = 2;
const PROTECTED: ListId = 3;
const VISITED: u8 = 0b0001;

struct WTinyLfu {
    table: Table,
    sketch: Sketch,
    window_pages: u32,
    main_pages: u32,
    protected_pages: u32,
    contests_won: u64,
    contests_lost: u64,
}

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    let capacity = config.capacity_pages;
    let window_pages = (capacity / 100).max(64).min(capacity.div_ceil(2));
    let main_pages = capacity - window_pages;
    Box::new(Managed::new(WTinyLfu {
        table: Table::new(capacity),
        sketch: Sketch::new(capacity),
        window_pages,
        main_pages,
        protected_pages: (u64::from(main_pages) * 8 / 10) as u32,
        contests_won: 0,
        contests_lost: 0,
    }))
}

impl WTinyLfu {
    fn main_len(&self) -> u32 {
        self.table.len(PROBATION) + self.table.len(PROTECTED)
    }
    fn main_tail(&self) -> Option<FrameId> {
        self.table.tail(PROBATION).or_else(|| self.table.tail(PROTECTED))
    }
    fn protect(&mut self, frame: FrameId) {
        self.table.push_head(PROTECTED, frame);
        while self.table.len(PROTECTED) > self.protected_pages
            && let Some(oldest) = self.table.tail(PROTECTED)
        {
            let list = if self.table.flag(oldest, VISITED) { PROTECTED } else { PROBATION };
            self.table.set_flag(oldest, VISITED, false);
            self.table.move_to_head(list, oldest);
        }
    }
}

impl Order for WTinyLfu {
    fn name(&self) -> &'static str {
        "wtinylfu"
    }
    fn table(&self) -> &Table {
        &self.table
    }
    fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }
    fn on_insert(&mut self, frame: FrameId, access: &PageAccess) {
        let print = fingerprint(access.block);
        self.table.set_word(frame, print);
        self.sketch.count(print);
        self.table.push_head(WINDOW, frame);
        // While the main cache has room, whatever overflows the window enters it.
        if self.table.len(WINDOW) > self.window_pages
            && self.main_len() < self.main_pages
            && let Some(oldest) = self.table.tail(WINDOW)
        {
            self.table.move_to_head(PROBATION, oldest);
        }
    }
    fn on_hit(&mut self, frame: FrameId, _access: &PageAccess, first_use: bool) {
        if first_use {
            return;
        }
        self.sketch.count(self.table.word(frame));
        match self.table.list(frame) {
            WINDOW => self.table.move_to_head(WINDOW, frame),
            PROTECTED => self.table.set_flag(frame, VISITED, true),
            _ => {
                self.table.unlink(frame);
                self.protect(frame);
            }
        }
    }
    fn on_return(&mut self, frame: FrameId, _access: &PageAccess) {
        self.sketch.count(self.table.word(frame));
        self.protect(frame);
    }
    /// The less frequent of the oldest window page and the oldest main page; the window page on a tie. A window that
    /// has become small is left alone.
    fn candidate(&mut self) -> Option<FrameId> {
        let (Some(new), Some(old)) = (self.table.tail(WINDOW), self.main_tail()) else {
            return self.table.tail(WINDOW).or_else(|| self.main_tail());
        };
        if self.table.len(WINDOW) <= self.window_pages / 2 {
            return Some(old);
        }
        if self.sketch.estimate(self.table.word(new)) <= self.sketch.estimate(self.table.word(old)) {
            self.contests_lost += 1;
            return Some(new);
        }
        self.contests_won += 1;
        self.table.move_to_head(PROBATION, new);
        Some(old)
    }
    fn foresee_hit(&self, frame: FrameId) {
        self.table.prefetch_neighbours(frame);
        self.sketch.foresee(self.table.word(frame));
    }
    fn foresee_insert(&self, access: &PageAccess, arrived: bool) {
        if !arrived {
            self.sketch.foresee(fingerprint(access.block));
        }
    }
    fn extra_bytes_per_page(&self) -> u32 {
        8
    }
    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        into.push(("contests_won", self.contests_won));
        into.push(("contests_lost", self.contests_lost));
    }
}

/// Count-min sketch: one word of sixteen four-bit counters per page. A block's four counters lie in one run of eight
/// words, so that counting costs one cache miss.
struct Sketch {
    words: Vec<u64>,
    counted: u32,
    halve_at: u32,
}

impl Sketch {
    fn new(capacity: u32) -> Sketch {
        let words = vec![0; capacity.next_multiple_of(8) as usize];
        Sketch { words, counted: 0, halve_at: capacity.saturating_mul(10) }
    }

    /// Word and shift of the four counters of a block: one in each quarter of its run.
    #[inline]
    fn places(&self, print: u32) -> [(usize, u32); 4] {
        let hash = (u64::from(print) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = (hash ^ (hash >> 29)).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        let runs = (self.words.len() / 8) as u64;
        let run = (((hash >> 32) * runs) >> 32) as usize * 8;
        [0, 1, 2, 3].map(|i| {
            let bits = (hash >> (5 * i)) as u32;
            (run + 2 * i + (bits & 1) as usize, (bits >> 1 & 15) * 4)
        })
    }

    /// Asks the CPU to fetch the counters of a block: they lie in one cache line or two.
    fn foresee(&self, print: u32) {
        let [(first, _), .., (last, _)] = self.places(print);
        prefetch(&self.words[first]);
        prefetch(&self.words[last]);
    }

    fn count(&mut self, print: u32) {
        for (word, shift) in self.places(print) {
            if (self.words[word] >> shift) & 15 < 15 {
                self.words[word] += 1 << shift;
            }
        }
        self.counted += 1;
        if self.counted >= self.halve_at {
            self.counted /= 2;
            self.words.iter_mut().for_each(|w| *w = (*w >> 1) & 0x7777_7777_7777_7777);
        }
    }

    fn estimate(&self, print: u32) -> u64 {
        self.places(print).map(|(word, shift)| (self.words[word] >> shift) & 15).into_iter().min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_does_not_displace_pages_that_are_used_more_often() {
        let mut p = build(&CacheConfig::new(1000));
        let mut block_in: Vec<u64> = (0..1000).collect();
        (0..1000).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        for _ in 0..3 {
            (0..900).for_each(|f| p.touch(FrameId(f), PageAccess::fine(u64::from(f))));
        }
        let (mut lost, mut victims) = (0, Vec::new());
        for block in 0..5_000 {
            if victims.is_empty() {
                p.reclaim(32, &mut |_| true, &mut victims);
                lost += victims.iter().filter(|f| block_in[f.0 as usize] < 900).count();
            }
            let frame = victims.pop().expect("all may leave");
            block_in[frame.0 as usize] = 10_000 + block;
            p.insert(frame, PageAccess::fine(10_000 + block));
        }
        assert!(lost < 45, "{lost} of 900 frequent pages left during a scan of five times the cache");
    }

    #[test]
    fn the_sketch_counts_to_fifteen_and_forgets_by_halves() {
        let mut s = Sketch::new(100);
        (0..20).for_each(|_| s.count(7));
        assert_eq!(s.estimate(7), 15);
        assert_eq!(s.estimate(8), 0);
        (20..1000).for_each(|i| s.count(1_000_000 + i % 3));
        assert_eq!(s.estimate(7), 7);
    }
}
