//! `bypass`: `lru`, and large requests do not stay in the cache.
//!
//! Source: Lustre's later answer to the problem of paper 000, a size threshold (8 MiB by default) above which I/O
//! goes past the cache. The mechanism asks [`crate::ReclaimPolicy::admits`]; a page that is inserted all the same,
//! for instance because a reader already waits for it, goes to the reclaim end. A request that hits cached pages uses
//! them.
use crate::managed::{Managed, Order};
use crate::table::Table;
use crate::two_list::{Placement, TwoList};
use crate::{CacheConfig, FrameId, Grain, PageAccess, ReclaimPolicy};
use alloc::{boxed::Box, vec::Vec};

struct Bypass {
    lists: TwoList,
    bypass_bytes: u64,
}

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    let lists = TwoList::new("bypass", config.capacity_pages, Placement::Lru);
    Box::new(Managed::new(Bypass { lists, bypass_bytes: config.bypass_bytes }))
}

impl Order for Bypass {
    fn name(&self) -> &'static str {
        self.lists.name()
    }
    fn table(&self) -> &Table {
        self.lists.table()
    }
    fn table_mut(&mut self) -> &mut Table {
        self.lists.table_mut()
    }
    fn admits(&self, access: &PageAccess) -> bool {
        u64::from(access.request_bytes) < self.bypass_bytes
    }
    fn on_insert(&mut self, frame: FrameId, access: &PageAccess) {
        if self.admits(access) {
            self.lists.on_insert(frame, access);
        } else {
            self.lists.insert_last(frame, access);
        }
    }
    fn on_hit(&mut self, frame: FrameId, access: &PageAccess, first_use: bool) {
        self.lists.on_hit(frame, access, first_use);
    }
    fn on_return(&mut self, frame: FrameId, access: &PageAccess) {
        self.lists.on_return(frame, access);
    }
    fn candidate(&mut self) -> Option<FrameId> {
        self.lists.candidate()
    }
    fn grain(&self, frame: FrameId) -> Grain {
        self.lists.grain(frame)
    }
    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        self.lists.counters(into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn requests_of_the_threshold_and_above_are_not_admitted_and_leave_first_when_inserted() {
        let mut p = build(&CacheConfig::new(8));
        let big = PageAccess::coarse(9, 8 << 20);
        assert!(p.admits(&PageAccess::coarse(1, (8 << 20) - 1)));
        assert!(!p.admits(&big));
        (0..4).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        p.insert(FrameId(7), big);
        let mut victims = Vec::new();
        p.reclaim(2, &mut |_| true, &mut victims);
        assert_eq!(victims, vec![FrameId(7), FrameId(0)]);
    }

    #[test]
    fn advice_to_keep_a_page_outweighs_the_threshold() {
        let p = build(&CacheConfig::new(8));
        assert!(p.admits(&PageAccess::coarse(9, 8 << 20).advised(crate::Advice::Low)));
    }
}
