//! `fgf_lru+ring`: fine-grain-first LRU whose coarse pages keep a ring of at least two readahead windows.
//!
//! Source: paper 000, with one change. Differs: the paper puts coarse pages at the reclaim end, where pages that were
//! just read ahead would leave before anybody used them. Here coarse pages have lists of their own with a size that
//! they keep while fine pages compete for the rest ([`crate::CacheConfig::ring_pages`]). Beyond that size coarse
//! pages leave first: those that have been used, oldest first, and only then those still waiting for their reader.
//! While the cache is not full nothing leaves, so the ring may be larger than its size.
use crate::managed::Managed;
use crate::two_list::{Placement, TwoList};
use crate::{CacheConfig, ReclaimPolicy};
use alloc::boxed::Box;

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    let lists = TwoList::new("fgf_lru+ring", config.capacity_pages, Placement::Ring);
    Box::new(Managed::new(lists.with_ring(config.ring_pages()).with_batch(config.batch_pages)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameId, PageAccess};
    use alloc::{vec, vec::Vec};

    const STRIPE: u32 = 1 << 20;

    fn ring(pages: u32, ring_pages: u32) -> Box<dyn ReclaimPolicy> {
        let mut config = CacheConfig::new(pages);
        config.coarse_ring_pages = ring_pages;
        build(&config)
    }
    fn reclaim(p: &mut dyn ReclaimPolicy, want: u32) -> Vec<u32> {
        let mut victims = Vec::new();
        p.reclaim(want, &mut |_| true, &mut victims);
        victims.iter().map(|f| f.0).collect()
    }

    #[test]
    fn coarse_pages_beyond_the_ring_leave_before_any_fine_page_and_the_ring_itself_stays() {
        let mut p = ring(32, 4);
        (0..16).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        (16..26).for_each(|f| p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE)));
        assert_eq!(reclaim(&mut *p, 6), vec![16, 17, 18, 19, 20, 21]);
        assert_eq!(reclaim(&mut *p, 2), vec![0, 1]);
    }

    #[test]
    fn used_coarse_pages_leave_before_prefetched_ones_that_wait_for_their_reader() {
        let mut p = ring(32, 4);
        (0..6).for_each(|f| p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE).ahead()));
        for f in [4, 5] {
            p.touch(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE));
        }
        assert_eq!(reclaim(&mut *p, 3), vec![4, 5, 0]);
    }

    #[test]
    fn the_automatic_ring_holds_two_windows_of_every_provided_stream_within_an_eighth_of_the_cache() {
        let mut config = CacheConfig::new(1 << 20);
        assert_eq!(config.ring_pages(), 2 * 1024 * 4);
        config.capacity_pages = 1 << 15;
        assert_eq!(config.ring_pages(), 4096);
        config.capacity_pages = 6000;
        assert_eq!(config.ring_pages(), 2048, "never below two windows");
        config.capacity_pages = 1000;
        assert_eq!(config.ring_pages(), 500, "a small cache keeps half of it for the rest");
    }
}
