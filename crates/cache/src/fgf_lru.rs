//! `fgf_lru`: fine-grain-first LRU, to the letter of paper 000.
//!
//! Source: paper 000. Requests of less than a stripe are fine, the others coarse; the read path flags each page. Fine
//! pages enter the inactive list at its head, coarse pages at the reclaim end; demotion from the active list follows
//! the same rule. List updates are batched as Linux batches them, and the flag travels with the page.
//!
//! Consequences that the paper does not discuss, kept here on purpose: among coarse pages the newest leaves first, so
//! pages read ahead may leave before they are used, and re-used coarse data is lost. `fgf_lru+ring` and `adaptive`
//! answer them.
use crate::managed::Managed;
use crate::two_list::{Placement, TwoList};
use crate::{CacheConfig, ReclaimPolicy};
use alloc::boxed::Box;

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    Box::new(Managed::new(lists(config)))
}

fn lists(config: &CacheConfig) -> TwoList {
    TwoList::new("fgf_lru", config.capacity_pages, Placement::Fgf).with_batch(config.batch_pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managed::Order as _;
    use crate::{FrameId, Grain, PageAccess};
    use alloc::{vec, vec::Vec};
    use types::Rng;

    const STRIPE: u32 = 1 << 20;

    fn fgf(pages: u32) -> Managed<TwoList> {
        Managed::new(lists(&CacheConfig::new(pages)))
    }
    fn fine(p: &mut dyn ReclaimPolicy, f: u32) {
        p.insert(FrameId(f), PageAccess::fine(u64::from(f)));
    }
    fn coarse(p: &mut dyn ReclaimPolicy, f: u32) {
        p.insert(FrameId(f), PageAccess::coarse(u64::from(f), STRIPE));
    }
    fn reclaim(p: &mut dyn ReclaimPolicy, want: u32) -> Vec<u32> {
        let mut victims = Vec::new();
        p.reclaim(want, &mut |_| true, &mut victims);
        victims.iter().map(|f| f.0).collect()
    }

    #[test]
    fn a_coarse_scan_does_not_evict_fine_pages() {
        let mut p = fgf(100);
        (0..60).for_each(|f| fine(&mut p, f));
        (60..100).for_each(|f| coarse(&mut p, f));
        for _ in 0..50 {
            for f in reclaim(&mut p, 8) {
                assert!(f >= 60, "fine page {f} left");
                coarse(&mut p, f);
            }
        }
    }

    #[test]
    fn coarse_pages_enter_at_the_reclaim_end_newest_first_out() {
        let mut p = fgf(8);
        fine(&mut p, 0);
        (1..4).for_each(|f| coarse(&mut p, f));
        fine(&mut p, 4);
        assert_eq!(reclaim(&mut p, 5), vec![3, 2, 1, 0, 4]);
    }

    #[test]
    fn a_demoted_coarse_page_goes_to_the_reclaim_end_and_a_demoted_fine_page_to_the_head() {
        let mut p = fgf(8);
        fine(&mut p, 0);
        coarse(&mut p, 1);
        for f in [0, 1] {
            let access = if f == 0 { PageAccess::fine(0) } else { PageAccess::coarse(1, STRIPE) };
            p.touch(FrameId(f), access);
        }
        fine(&mut p, 2);
        // Active: 1, 0 (oldest). Inactive: 2. One is demoted: 0, fine, to the head, so 2 is next. Then nothing is
        // demoted while the active list is not the longer one: 0. Then 1.
        assert_eq!(reclaim(&mut p, 3), vec![2, 0, 1]);
        fine(&mut p, 0);
        coarse(&mut p, 1);
        p.touch(FrameId(1), PageAccess::coarse(1, STRIPE));
        fine(&mut p, 3);
        p.touch(FrameId(3), PageAccess::fine(3));
        fine(&mut p, 4);
        p.touch(FrameId(4), PageAccess::fine(4));
        // Active: 4, 3, 1 (oldest). Inactive: 0. Demoting 1 puts it behind 0, demoting 3 before.
        assert_eq!(reclaim(&mut p, 3), vec![1, 0, 3]);
    }

    #[test]
    fn a_fine_use_makes_a_coarse_page_fine_and_a_coarse_use_leaves_a_fine_page_fine() {
        let mut p = fgf(8);
        coarse(&mut p, 0);
        p.touch(FrameId(0), PageAccess::fine(0));
        assert!(p.order().grain(FrameId(0)) == Grain::Fine);
        p.touch(FrameId(0), PageAccess::coarse(0, STRIPE));
        assert!(p.order().grain(FrameId(0)) == Grain::Fine);
    }

    #[test]
    fn batched_list_updates_never_lose_the_flag() {
        let mut rng = Rng::new(11);
        let mut p = fgf(64);
        let mut coarse_flag = [None; 64];
        for _ in 0..20_000 {
            let f = rng.below(64) as usize;
            match coarse_flag[f] {
                None => {
                    let is_coarse = rng.chance(0.5);
                    if is_coarse {
                        coarse(&mut p, f as u32)
                    } else {
                        fine(&mut p, f as u32)
                    }
                    coarse_flag[f] = Some(is_coarse);
                }
                Some(_) if rng.chance(0.2) => {
                    p.remove(FrameId(f as u32));
                    coarse_flag[f] = None;
                }
                Some(true) => p.touch(FrameId(f as u32), PageAccess::coarse(f as u64, STRIPE)),
                Some(false) => p.touch(FrameId(f as u32), PageAccess::fine(f as u64)),
            }
            if rng.chance(0.1) {
                reclaim(&mut p, 3).iter().for_each(|&v| coarse_flag[v as usize] = None);
            }
            for (f, flag) in coarse_flag.iter().enumerate() {
                if let Some(flag) = flag {
                    assert_eq!(p.order().grain(FrameId(f as u32)) == Grain::Coarse, *flag);
                }
            }
        }
    }

    #[test]
    fn batching_changes_no_answer() {
        for seed in 0..20 {
            let mut config = CacheConfig::new(128);
            let mut batched = build(&config);
            config.set("batch_pages", "1").unwrap();
            let mut single = build(&config);
            let mut rng = Rng::new(seed);
            let mut resident = [false; 128];
            for _ in 0..5_000 {
                let f = rng.below(128) as u32;
                let mut a = if rng.chance(0.5) { PageAccess::fine(1) } else { PageAccess::coarse(1, STRIPE) };
                a.readahead = rng.chance(0.2);
                let here = &mut resident[f as usize];
                for p in [&mut batched, &mut single] {
                    match (*here, f % 7) {
                        (false, _) => p.insert(FrameId(f), a),
                        (true, 0) => p.remove(FrameId(f)),
                        (true, _) => p.touch(FrameId(f), a),
                    }
                }
                *here = !*here || !f.is_multiple_of(7);
                if rng.chance(0.15) {
                    let victims = reclaim(&mut *batched, 5);
                    assert_eq!(victims, reclaim(&mut *single, 5), "seed {seed}");
                    victims.iter().for_each(|&v| resident[v as usize] = false);
                }
                assert_eq!(batched.resident(), single.resident());
            }
        }
    }
}
