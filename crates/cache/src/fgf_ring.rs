//! `fgf_lru+ring`: fine-grain-first LRU whose coarse pages keep a ring of at least two readahead windows.
//!
//! Source: paper 000. Differs: the paper puts coarse pages at the reclaim end at once, where pages that were just read
//! ahead would leave before anybody used them. Here a coarse page first passes through a ring of the last two readahead
//! windows, and goes to the reclaim end when newer coarse pages push it out of the ring. Used pages are pushed out
//! first. Pages that still wait for their reader leave only when they have waited for a whole turnover of the cache,
//! or when there are more of them than `coarse_ahead_percent` of the cache: then the newest leave, since the oldest
//! are next to be read. Re-used coarse pages go back into the ring instead of becoming active: they cannot fill the
//! active list, where they would outlive fine pages.
use crate::managed::Managed;
use crate::two_list::{Placement, TwoList};
use crate::{CacheConfig, ReclaimPolicy};
use alloc::boxed::Box;

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    let lists = TwoList::new("fgf_lru+ring", config.capacity_pages, Placement::Ring);
    Box::new(Managed::new(lists.with_ring(config.ring_size()).with_batch(config.batch_pages)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameId, PageAccess};
    use alloc::{vec, vec::Vec};

    const STRIPE: u32 = 1 << 20;

    fn ring(pages: u32, ring_pages: u32, ahead_percent: u32) -> Box<dyn ReclaimPolicy> {
        let mut config = CacheConfig::new(pages);
        config.coarse_ring_pages = ring_pages;
        config.coarse_ahead_percent = ahead_percent;
        build(&config)
    }
    fn reclaim(p: &mut dyn ReclaimPolicy, want: u32) -> Vec<u32> {
        let mut victims = Vec::new();
        p.reclaim(want, &mut |_| true, &mut victims);
        victims.iter().map(|f| f.0).collect()
    }

    #[test]
    fn coarse_pages_beyond_the_ring_leave_before_any_fine_page_and_the_ring_itself_stays() {
        let mut p = ring(32, 4, 0);
        (0..16).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        (16..26).for_each(|f| p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE)));
        assert_eq!(reclaim(&mut *p, 6), vec![21, 20, 19, 18, 17, 16]);
        assert_eq!(reclaim(&mut *p, 2), vec![0, 1]);
    }

    #[test]
    fn used_coarse_pages_leave_before_prefetched_ones_that_wait_for_their_reader() {
        let mut p = ring(32, 2, 13);
        (0..6).for_each(|f| p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE).ahead()));
        for f in [4, 5] {
            p.touch(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE));
        }
        p.insert(FrameId(9), PageAccess::fine(9));
        // 13 % of 32 are 4 pages: 4 and 5 were used and go in the order of the reclaim end, the others wait.
        assert_eq!(reclaim(&mut *p, 3), vec![5, 4, 9]);
        (10..12).for_each(|f| p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE).ahead()));
        p.insert(FrameId(9), PageAccess::fine(9));
        assert_eq!(reclaim(&mut *p, 3), vec![11, 10, 9], "more than four wait: the newest go");
    }

    #[test]
    fn a_prefetched_page_without_a_reader_leaves_after_a_turnover_of_the_cache() {
        let mut p = ring(32, 2, 50);
        (0..8).for_each(|f| p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE).ahead()));
        (8..32).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        // Page 0 was the first of 32 insertions: 32 more came after it with the first of the loop, 33 with the second.
        for fine in 0.. {
            let victim = reclaim(&mut *p, 1)[0];
            if victim < 8 {
                assert_eq!((victim, fine), (0, 2));
                break;
            }
            p.insert(FrameId(victim), PageAccess::fine(100 + fine));
        }
        p.insert(FrameId(0), PageAccess::fine(200));
        assert_eq!(reclaim(&mut *p, 1), vec![1], "one more insertion, one more page");
    }

    #[test]
    fn a_re_used_coarse_page_goes_back_into_the_ring_and_does_not_become_active() {
        let mut p = ring(32, 2, 50);
        (0..4).for_each(|f| p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE)));
        p.insert(FrameId(4), PageAccess::fine(4));
        (0..3).for_each(|_| p.touch(FrameId(0), PageAccess::coarse(0, STRIPE)));
        // In the ring: 0 and 3. Pushed out: 1, then 2.
        assert_eq!(reclaim(&mut *p, 5), vec![2, 1, 4, 3, 0]);
    }

    #[test]
    fn the_ring_holds_two_readahead_windows_but_never_more_than_half_of_the_cache() {
        let mut config = CacheConfig::new(1 << 20);
        assert_eq!(config.ring_size().kept, 2 * 1024);
        assert_eq!(config.ring_size().ahead, 1 << 19);
        config.capacity_pages = 1000;
        assert_eq!(config.ring_size().kept, 500);
        config.set("coarse_ring_pages", "100").unwrap();
        assert_eq!(config.ring_size().kept, 100);
    }
}
