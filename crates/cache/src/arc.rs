//! `arc`: adaptive replacement between recency and frequency.
//!
//! Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. T1 holds pages used
//! once, T2 pages used more often, B1 and B2 the ghosts of both; p is the target size of T1 and moves by ghost hits.
//! Differs: pages are reclaimed before it is known which page needs the room, so the paper's tie rule (|T1| = p and
//! the new page is in B2) does not apply; the first use of a prefetched page is its arrival.
use crate::ghost::{GhostQueue, Ghosts, fingerprint};
use crate::managed::{Managed, Order};
use crate::table::{ListId, Table};
use crate::{CacheConfig, FrameId, PageAccess, ReclaimPolicy};
use alloc::{boxed::Box, vec::Vec};

const T1: ListId = 1;
const T2: ListId = 2;
const B1: GhostQueue = GhostQueue::First;
const B2: GhostQueue = GhostQueue::Second;

struct Arc {
    table: Table,
    ghosts: Ghosts,
    /// c of the paper.
    capacity: u32,
    /// p of the paper: pages that T1 should have, 0..=c.
    target: u32,
    ghost_hits: [u64; 2],
}

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    let capacity = config.capacity_pages;
    Box::new(Managed::new(Arc {
        table: Table::new(capacity),
        ghosts: Ghosts::new(capacity),
        capacity,
        target: 0,
        ghost_hits: [0; 2],
    }))
}

impl Arc {
    /// The paper's adaptation: a hit in B1 says T1 is too small, one in B2 that it is too large.
    fn adapt(&mut self, hit: GhostQueue) {
        self.ghost_hits[hit as usize] += 1;
        // The ghost that was hit is gone already; the paper counts it.
        let (b1, b2) = (self.ghosts.len(B1) + u32::from(hit == B1), self.ghosts.len(B2) + u32::from(hit == B2));
        match hit {
            B1 => self.target = (self.target + (b2 / b1).max(1)).min(self.capacity),
            B2 => self.target = self.target.saturating_sub((b1 / b2).max(1)),
        }
    }
}

impl Order for Arc {
    fn name(&self) -> &'static str {
        "arc"
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
        let hit = self.ghosts.take(print);
        if let Some(queue) = hit {
            self.adapt(queue);
        }
        self.table.push_head(if hit.is_some() { T2 } else { T1 }, frame);
    }
    #[inline]
    fn on_hit(&mut self, frame: FrameId, _access: &PageAccess, first_use: bool) {
        let list = if first_use { self.table.list(frame) } else { T2 };
        self.table.move_to_head(list, frame);
    }
    fn on_return(&mut self, frame: FrameId, _access: &PageAccess) {
        self.table.push_head(T2, frame);
    }
    /// Keeps |T1| + |B1| <= c; the pool keeps |B1| + |B2| <= c.
    fn on_evict(&mut self, frame: FrameId) {
        let queue = if self.table.list(frame) == T2 { B2 } else { B1 };
        if queue == B1 && self.table.len(T1) + self.ghosts.len(B1) > self.capacity {
            self.ghosts.drop_oldest(B1);
        }
        self.ghosts.push(queue, self.table.word(frame));
    }
    /// REPLACE of the paper.
    fn candidate(&mut self) -> Option<FrameId> {
        let from_t1 = self.table.len(T1) > self.target || self.table.len(T2) == 0;
        if from_t1 { self.table.tail(T1) } else { self.table.tail(T2) }
    }
    fn foresee_insert(&self, access: &PageAccess, arrived: bool) {
        self.ghosts.foresee(fingerprint(access.block), arrived);
    }
    fn extra_bytes_per_page(&self) -> u32 {
        Ghosts::BYTES_PER_GHOST
    }
    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        into.push(("recency_target_pages", u64::from(self.target)));
        into.push(("ghost_hits_recent", self.ghost_hits[0]));
        into.push(("ghost_hits_frequent", self.ghost_hits[1]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn reclaim(p: &mut dyn ReclaimPolicy, want: u32) -> Vec<u32> {
        let mut victims = Vec::new();
        p.reclaim(want, &mut |_| true, &mut victims);
        victims.iter().map(|f| f.0).collect()
    }
    fn target(p: &dyn ReclaimPolicy) -> u64 {
        let mut counters = Vec::new();
        p.counters(&mut counters);
        counters.iter().find(|c| c.0 == "recency_target_pages").unwrap().1
    }

    #[test]
    fn pages_used_twice_outlive_pages_used_once() {
        let mut p = build(&CacheConfig::new(8));
        (0..8).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        for f in [0, 1] {
            p.touch(FrameId(f), PageAccess::fine(u64::from(f)));
        }
        assert_eq!(reclaim(&mut *p, 8), vec![2, 3, 4, 5, 6, 7, 0, 1]);
    }

    #[test]
    fn a_ghost_hit_moves_the_target_towards_the_list_it_left() {
        let mut p = build(&CacheConfig::new(4));
        (0..4).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        reclaim(&mut *p, 1);
        p.insert(FrameId(0), PageAccess::fine(0));
        assert_eq!(target(&*p), 1, "0 was a ghost of T1");
        reclaim(&mut *p, 2);
        assert_eq!(reclaim(&mut *p, 1), vec![0], "T1 has its target of one page, so T2 gives");
        p.insert(FrameId(0), PageAccess::fine(0));
        assert_eq!(target(&*p), 0, "0 was a ghost of T2, B1 is the longer one");
    }
}
