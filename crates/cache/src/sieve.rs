//! `sieve`: one queue, one visited bit, one hand.
//!
//! Source: Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024. New pages enter at the head. The hand moves from the
//! tail towards the head, clears visited bits and evicts the first page without one, where it stays. Hits move
//! nothing. Differs: the first use of a prefetched page is its arrival, not a hit.
use crate::managed::{Managed, Order};
use crate::table::{ListId, Table};
use crate::{CacheConfig, FrameId, PageAccess, ReclaimPolicy};
use alloc::boxed::Box;

const QUEUE: ListId = 1;
const VISITED: u8 = 0b0001;

struct Sieve {
    table: Table,
    /// Where the next search starts; `None`: at the tail.
    hand: Option<FrameId>,
}

pub(crate) fn build(config: &CacheConfig) -> Box<dyn ReclaimPolicy> {
    Box::new(Managed::new(Sieve { table: Table::new(config.capacity_pages), hand: None }))
}

impl Order for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }
    fn table(&self) -> &Table {
        &self.table
    }
    fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }
    #[inline]
    fn on_insert(&mut self, frame: FrameId, _access: &PageAccess) {
        self.table.push_head(QUEUE, frame);
    }
    #[inline]
    fn on_hit(&mut self, frame: FrameId, _access: &PageAccess, first_use: bool) {
        if !first_use {
            self.table.set_flag(frame, VISITED, true);
        }
    }
    /// A hit moves nothing.
    fn foresee_hit(&self, _frame: FrameId) {}
    fn on_return(&mut self, frame: FrameId, _access: &PageAccess) {
        self.table.set_flag(frame, VISITED, true);
        self.table.push_head(QUEUE, frame);
    }
    fn on_unlink(&mut self, frame: FrameId) {
        if self.hand == Some(frame) {
            self.hand = self.table.towards_head(frame);
        }
    }
    /// At most one round clears all bits, so the second finds a page.
    fn candidate(&mut self) -> Option<FrameId> {
        loop {
            let frame = self.hand.or_else(|| self.table.tail(QUEUE))?;
            if !self.table.flag(frame, VISITED) {
                self.hand = Some(frame);
                return Some(frame);
            }
            self.table.set_flag(frame, VISITED, false);
            self.hand = self.table.towards_head(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    #[test]
    fn the_hand_keeps_its_place_and_visited_pages_stay_where_they_are() {
        let mut p = build(&CacheConfig::new(8));
        (0..5).for_each(|f| p.insert(FrameId(f), PageAccess::fine(u64::from(f))));
        for f in [0, 2] {
            p.touch(FrameId(f), PageAccess::fine(u64::from(f)));
        }
        let mut victims = Vec::new();
        p.reclaim(2, &mut |_| true, &mut victims);
        assert_eq!(victims, vec![FrameId(1), FrameId(3)], "0 and 2 were visited");
        p.insert(FrameId(5), PageAccess::fine(5));
        victims.clear();
        p.reclaim(4, &mut |_| true, &mut victims);
        // The hand goes on from 4 to the head, then starts again at the tail.
        assert_eq!(victims, vec![FrameId(4), FrameId(5), FrameId(0), FrameId(2)]);
    }
}
