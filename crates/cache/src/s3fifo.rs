//! `s3fifo`: three FIFO queues. Most pages that are used once never get past the small one.
//!
//! Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023. Small queue of a tenth of the
//! cache, main queue, ghost queue with as many entries as the main queue has pages. A page counts its uses up to
//! three. Leaving the small queue it goes to the main queue when it was used more than once since it arrived,
//! otherwise it leaves and becomes a ghost; a ghost that comes back enters the main queue, where each use buys one
//! more round. Differs: the first use of a prefetched page is its arrival.
use crate::ghost::{GhostQueue, Ghosts, fingerprint};
use crate::managed::{Managed, Order};
use crate::table::{HELD, ListId, Table};
use crate::{CacheConfig, FrameId, PageAccess, ReclaimPolicy};
use alloc::{boxed::Box, vec::Vec};

const SMALL: ListId = 1;
const MAIN: ListId = 2;
/// Two flag bits count uses.
const USES: u8 = 0b0011;

struct S3Fifo {
    table: Table,
    ghosts: Ghosts,
    small_pages: u32,
    ghost_hits: u64,
}

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    let capacity = config.capacity_pages;
    let small_pages = ((u64::from(capacity) * u64::from(config.small_queue_percent) / 100) as u32).max(1);
    Box::new(Managed::new(S3Fifo {
        table: Table::new(capacity),
        ghosts: Ghosts::new(capacity - small_pages),
        small_pages,
        ghost_hits: 0,
    }))
}

impl S3Fifo {
    fn set_uses(&mut self, frame: FrameId, uses: u8) {
        self.table.set_flag(frame, USES, false);
        self.table.set_flag(frame, uses, true);
    }
    fn uses(&self, frame: FrameId) -> u8 {
        self.table.flags(frame) & USES
    }
    /// The next page of the small queue that has to leave; pages with more than one use move to the main queue.
    fn small_candidate(&mut self) -> Option<FrameId> {
        while let Some(frame) = self.table.tail(SMALL) {
            if self.uses(frame) <= 1 {
                return Some(frame);
            }
            self.set_uses(frame, 0);
            self.table.move_to_head(MAIN, frame);
        }
        None
    }
    /// The next page of the main queue that has to leave; a use buys a round. Ends: every round uses up uses.
    fn main_candidate(&mut self) -> Option<FrameId> {
        while let Some(frame) = self.table.tail(MAIN) {
            let uses = self.uses(frame);
            if uses == 0 {
                return Some(frame);
            }
            self.set_uses(frame, uses - 1);
            self.table.move_to_head(MAIN, frame);
        }
        None
    }
}

impl Order for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
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
        let back = self.ghosts.take(print).is_some();
        self.ghost_hits += u64::from(back);
        self.table.push_head(if back { MAIN } else { SMALL }, frame);
    }
    #[inline]
    fn on_hit(&mut self, frame: FrameId, _access: &PageAccess, first_use: bool) {
        let uses = self.uses(frame);
        if !first_use && uses < 3 {
            self.set_uses(frame, uses + 1);
        }
    }
    fn on_return(&mut self, frame: FrameId, _access: &PageAccess) {
        self.set_uses(frame, 1);
        self.table.push_head(MAIN, frame);
    }
    fn on_evict(&mut self, frame: FrameId) {
        if matches!(self.table.list(frame), SMALL | HELD) {
            self.ghosts.push(GhostQueue::First, self.table.word(frame));
        }
    }
    fn candidate(&mut self) -> Option<FrameId> {
        if self.table.len(SMALL) >= self.small_pages
            && let Some(frame) = self.small_candidate()
        {
            return Some(frame);
        }
        self.main_candidate().or_else(|| self.small_candidate()).or_else(|| self.main_candidate())
    }
    /// A hit moves nothing.
    fn foresee_hit(&self, _frame: FrameId) {}
    fn foresee_insert(&self, access: &PageAccess, arrived: bool) {
        self.ghosts.foresee(fingerprint(access.block), arrived);
    }
    fn extra_bytes_per_page(&self) -> u32 {
        Ghosts::BYTES_PER_GHOST
    }
    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        into.push(("ghost_hits", self.ghost_hits));
        into.push(("ghosts", u64::from(self.ghosts.len(GhostQueue::First))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn s3(pages: u32) -> Box<dyn ReclaimPolicy> {
        build(&CacheConfig::new(pages))
    }
    fn reclaim(p: &mut dyn ReclaimPolicy, want: u32) -> Vec<u32> {
        let mut victims = Vec::new();
        p.reclaim(want, &mut |_| true, &mut victims);
        victims.iter().map(|f| f.0).collect()
    }

    #[test]
    fn a_scan_passes_through_the_small_queue_and_leaves_the_main_queue_alone() {
        let mut p = s3(20);
        for f in 0..10 {
            p.insert(FrameId(f), PageAccess::fine(u64::from(f)));
            p.touch(FrameId(f), PageAccess::fine(u64::from(f)));
            p.touch(FrameId(f), PageAccess::fine(u64::from(f)));
        }
        (10..20).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        let mut block = 100;
        for _ in 0..100 {
            for f in reclaim(&mut *p, 2) {
                assert!(f >= 10, "page {f} was used more than once");
                p.insert(FrameId(f), PageAccess::fine(block));
                block += 1;
            }
        }
    }

    #[test]
    fn a_page_that_comes_back_while_a_ghost_enters_the_main_queue() {
        let mut p = s3(10);
        (0..10).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        assert_eq!(reclaim(&mut *p, 1), vec![0]);
        p.insert(FrameId(0), PageAccess::fine(0));
        assert_eq!(reclaim(&mut *p, 9), vec![1, 2, 3, 4, 5, 6, 7, 8, 9], "0 is in the main queue now");
    }
}
