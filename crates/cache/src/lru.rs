//! `lru`: the page cache of Linux, and the baseline of paper 000.
//!
//! Source: Linux's active and inactive list with referenced bits. Differs: the active list gives a second chance by
//! the referenced bit, as the classic description has it; there are no mapped pages, so nothing on the inactive list
//! is rescued by its bit. Does not look at the grain.
use crate::managed::Managed;
use crate::two_list::{Placement, TwoList};
use crate::{CacheConfig, ReclaimPolicy};
use alloc::boxed::Box;

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    Box::new(Managed::new(TwoList::new("lru", config.capacity_pages, Placement::Lru)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameId, PageAccess};
    use alloc::{vec, vec::Vec};

    fn lru(pages: u32) -> Box<dyn ReclaimPolicy> {
        build(&CacheConfig::new(pages))
    }
    fn reclaim(p: &mut dyn ReclaimPolicy, want: u32) -> Vec<u32> {
        let mut victims = Vec::new();
        p.reclaim(want, &mut |_| true, &mut victims);
        victims.iter().map(|f| f.0).collect()
    }
    fn fill(p: &mut dyn ReclaimPolicy, frames: core::ops::Range<u32>) {
        frames.for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
    }

    #[test]
    fn pages_used_once_leave_in_the_order_of_arrival() {
        let mut p = lru(8);
        fill(&mut *p, 0..8);
        assert_eq!(reclaim(&mut *p, 8), vec![0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(p.resident(), 0);
    }

    #[test]
    fn a_page_used_twice_outlives_a_scan_of_pages_used_once() {
        let mut p = lru(8);
        fill(&mut *p, 0..8);
        p.touch(FrameId(1), PageAccess::fine(1));
        assert_eq!(reclaim(&mut *p, 7), vec![0, 2, 3, 4, 5, 6, 7]);
        fill(&mut *p, 2..8);
        assert_eq!(reclaim(&mut *p, 6), vec![2, 3, 4, 5, 6, 7]);
        assert_eq!(p.resident(), 1);
    }

    #[test]
    fn an_active_page_with_its_referenced_bit_gets_one_second_chance() {
        let mut p = lru(4);
        fill(&mut *p, 0..4);
        for f in 0..4 {
            p.touch(FrameId(f), PageAccess::fine(u64::from(f)));
        }
        p.touch(FrameId(0), PageAccess::fine(0));
        // All four are active, 0 is the oldest but was used again: 1 and 2 are demoted, then 1 leaves.
        assert_eq!(reclaim(&mut *p, 4), vec![1, 2, 3, 0]);
    }

    #[test]
    fn a_prefetched_page_needs_one_use_more_to_become_active() {
        let mut p = lru(4);
        p.insert(FrameId(0), PageAccess::fine(0).ahead());
        p.insert(FrameId(1), PageAccess::fine(1));
        p.touch(FrameId(0), PageAccess::fine(0));
        p.touch(FrameId(1), PageAccess::fine(1));
        fill(&mut *p, 2..4);
        assert_eq!(reclaim(&mut *p, 1), vec![0], "first use only sets the bit");
    }
}
