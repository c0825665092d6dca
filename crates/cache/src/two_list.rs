//! The two lists of Linux, and the three places where a coarse page may enter them.
//!
//! Shared by `lru`, `fgf_lru`, `fgf_lru+ring`, `bypass` and `adaptive`, which differ only in [`Placement`].
//!
//! A page enters the inactive list. Its first use sets the referenced bit (a demand read is its own first use), the
//! next use activates it. Before a victim is taken, active pages are demoted until the active list is no longer than
//! the rest; an active page whose referenced bit is set gets a second chance at the active head instead, without the
//! bit. With a ring, coarse pages never become active: re-used ones go back to the ring's head. Victims come from the
//! inactive tail whatever their bit says, as Linux treats unmapped file pages.
//!
//! Flag (paper 000): a page remembers the granularity of its request. A fine use makes a coarse page fine; a coarse
//! use leaves a fine page fine, so that a scan across a hot range does not condemn it.
use crate::managed::Order;
use crate::table::{AHEAD, ListId, Table};
use crate::{FrameId, Grain, PageAccess};
use alloc::vec::Vec;

/// Where pages enter and where demoted pages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    /// All pages at the inactive head.
    Lru,
    /// Paper 000 to the letter: fine pages at the inactive head, coarse ones at the reclaim end.
    Fgf,
    /// Coarse pages in a ring of their own that keeps its last pages; see [`RingSize`].
    Ring,
}

/// What the coarse ring keeps while fine pages want its room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingSize {
    /// Pages of the whole ring below which nothing leaves it. Above it, used pages go to the reclaim end, oldest first.
    pub(crate) kept: u32,
    /// Pages fetched ahead and not yet used below which none of them leaves. Above it the newest leave: the oldest
    /// are next to be read, and giving those up would lose every page of every stream in turn.
    pub(crate) ahead: u32,
}

const ACTIVE: ListId = 1;
const INACTIVE: ListId = 2;
/// Coarse pages that were used.
const RING: ListId = 3;
/// Coarse pages fetched ahead that nobody has used yet.
const RING_AHEAD: ListId = 4;
/// Inserted, not yet linked into the lists above.
const BATCH: ListId = 5;

const REFERENCED: u8 = 0b0001;
const COARSE: u8 = 0b0010;

pub(crate) struct TwoList {
    name: &'static str,
    table: Table,
    pub(crate) placement: Placement,
    ring: RingSize,
    batch_pages: u32,
    /// Insertions so far, wrapping: the age of prefetched pages.
    inserted: u32,
}

impl TwoList {
    /// Empty lists over `capacity_pages` frames, without ring and batch.
    pub(crate) fn new(name: &'static str, capacity_pages: u32, placement: Placement) -> TwoList {
        TwoList {
            name,
            table: Table::new(capacity_pages),
            placement,
            ring: RingSize { kept: 0, ahead: 0 },
            batch_pages: 1,
            inserted: 0,
        }
    }

    /// Keeps a coarse ring ([`Placement::Ring`] only).
    pub(crate) fn with_ring(self, ring: RingSize) -> TwoList {
        TwoList { ring, ..self }
    }

    /// Links insertions in batches of `pages` pages.
    pub(crate) fn with_batch(self, pages: u32) -> TwoList {
        TwoList { batch_pages: pages, ..self }
    }

    /// At the reclaim end, whatever the placement: a page that should not have stayed.
    pub(crate) fn insert_last(&mut self, frame: FrameId, access: &PageAccess) {
        self.table.set_flag(frame, REFERENCED, !access.readahead);
        self.table.set_flag(frame, COARSE, access.grain == Grain::Coarse);
        self.table.push_tail(INACTIVE, frame);
    }

    /// Links what was inserted since the last time, in the order of insertion. Nothing that a caller can see depends
    /// on when this happens: hits, questions and reclaim drain first.
    fn drain(&mut self) {
        while let Some(frame) = self.table.tail(BATCH) {
            self.table.unlink(frame);
            self.place(frame);
        }
    }

    #[inline]
    fn place(&mut self, frame: FrameId) {
        match self.placement {
            Placement::Fgf if self.table.flag(frame, COARSE) => self.table.push_tail(INACTIVE, frame),
            Placement::Ring if self.table.flag(frame, COARSE) => {
                let list = if self.table.flag(frame, AHEAD) { RING_AHEAD } else { RING };
                self.table.push_head(list, frame);
            }
            _ => self.table.push_head(INACTIVE, frame),
        }
        self.spill();
    }

    /// What the ring may keep; after a change of placement it has no claim any more.
    fn ring_claim(&self) -> RingSize {
        if self.placement == Placement::Ring { self.ring } else { RingSize { kept: 0, ahead: 0 } }
    }

    fn ring_len(&self) -> u32 {
        self.table.len(RING) + self.table.len(RING_AHEAD)
    }

    /// Moves up to two used pages that the ring has no room for to where they would be without it. Two, because one
    /// insertion adds one: a ring that has shrunk gives its pages away bit by bit.
    #[inline]
    fn spill(&mut self) {
        for _ in 0..2 {
            if self.table.len(RING) == 0 || self.ring_len() <= self.ring_claim().kept {
                return;
            }
            if let Some(frame) = self.table.tail(RING) {
                match self.placement {
                    Placement::Lru => self.table.move_to_head(INACTIVE, frame),
                    Placement::Fgf | Placement::Ring => self.table.move_to_tail(INACTIVE, frame),
                }
            }
        }
    }

    /// The page that leaves because the ring is larger than what it keeps.
    fn ring_excess(&self) -> Option<FrameId> {
        let (used, ahead, claim) = (self.table.len(RING), self.table.len(RING_AHEAD), self.ring_claim());
        if used > 0 && used + ahead > claim.kept && self.placement == Placement::Ring {
            return self.table.tail(RING);
        }
        // A page that waited for a whole turnover of the cache has no reader any more.
        let oldest = self.table.tail(RING_AHEAD)?;
        if self.inserted.wrapping_sub(self.table.word(oldest)) > self.table.capacity() {
            return Some(oldest);
        }
        if ahead > claim.ahead.max(claim.kept) && self.placement == Placement::Ring {
            self.table.head(RING_AHEAD)
        } else {
            None
        }
    }

    fn ring_tail(&self) -> Option<FrameId> {
        self.table.tail(RING).or_else(|| self.table.tail(RING_AHEAD))
    }

    /// Takes a linked frame to where an insertion would put it now. Earlier insertions come before it.
    fn replace(&mut self, frame: FrameId) {
        self.drain();
        self.table.unlink(frame);
        self.place(frame);
    }

    /// With a ring no coarse page becomes active; those that were before the placement changed leave before fine ones
    /// as soon as they are the oldest.
    fn demote_coarse(&mut self) {
        while self.placement == Placement::Ring
            && let Some(frame) = self.table.tail(ACTIVE)
            && self.table.flag(frame, COARSE)
        {
            self.table.move_to_tail(INACTIVE, frame);
        }
    }

    /// Demotes the oldest active page without a referenced bit. Every second chance on the way uses up a hit.
    fn demote(&mut self) {
        while let Some(frame) = self.table.tail(ACTIVE) {
            if self.table.flag(frame, REFERENCED) {
                self.table.set_flag(frame, REFERENCED, false);
                self.table.move_to_head(ACTIVE, frame);
            } else if self.placement != Placement::Lru && self.table.flag(frame, COARSE) {
                return self.table.move_to_tail(INACTIVE, frame);
            } else {
                return self.table.move_to_head(INACTIVE, frame);
            }
        }
    }
}

impl Order for TwoList {
    fn name(&self) -> &'static str {
        self.name
    }
    fn table(&self) -> &Table {
        &self.table
    }
    fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    #[inline]
    fn on_insert(&mut self, frame: FrameId, access: &PageAccess) {
        self.table.set_flag(frame, REFERENCED, !access.readahead);
        self.table.set_flag(frame, COARSE, access.grain == Grain::Coarse);
        self.inserted = self.inserted.wrapping_add(1);
        self.table.set_word(frame, self.inserted);
        if self.batch_pages <= 1 {
            return self.place(frame);
        }
        self.table.push_head(BATCH, frame);
        if self.table.len(BATCH) >= self.batch_pages {
            self.drain();
        }
    }

    #[inline]
    fn on_hit(&mut self, frame: FrameId, access: &PageAccess, _first_use: bool) {
        let mut list = self.table.list(frame);
        if list == BATCH {
            self.drain();
            list = self.table.list(frame);
        }
        let became_fine = access.grain == Grain::Fine && self.table.flag(frame, COARSE);
        if became_fine {
            self.table.set_flag(frame, COARSE, false);
        }
        if self.placement == Placement::Ring && self.table.flag(frame, COARSE) {
            self.table.set_flag(frame, REFERENCED, true);
            self.replace(frame);
        } else if list == ACTIVE {
            self.table.set_flag(frame, REFERENCED, true);
        } else if self.table.flag(frame, REFERENCED) {
            self.table.set_flag(frame, REFERENCED, false);
            self.table.move_to_head(ACTIVE, frame);
        } else {
            self.table.set_flag(frame, REFERENCED, true);
            if became_fine || list == RING_AHEAD {
                self.replace(frame);
            }
        }
    }

    /// A held page was used: it is wanted, so it is active, whatever list it came from.
    fn on_return(&mut self, frame: FrameId, access: &PageAccess) {
        if access.grain == Grain::Fine {
            self.table.set_flag(frame, COARSE, false);
        }
        if self.placement == Placement::Ring && self.table.flag(frame, COARSE) {
            return self.place(frame);
        }
        self.table.set_flag(frame, REFERENCED, false);
        self.table.push_head(ACTIVE, frame);
    }

    fn candidate(&mut self) -> Option<FrameId> {
        self.drain();
        if let Some(frame) = self.ring_excess() {
            return Some(frame);
        }
        self.demote_coarse();
        let ring = self.ring_len();
        while self.table.len(ACTIVE) > self.table.len(INACTIVE) + ring {
            self.demote();
        }
        self.table.tail(INACTIVE).or_else(|| self.ring_tail()).or_else(|| {
            self.demote();
            self.table.tail(INACTIVE).or_else(|| self.ring_tail())
        })
    }

    fn grain(&self, frame: FrameId) -> Grain {
        if self.table.flag(frame, COARSE) { Grain::Coarse } else { Grain::Fine }
    }

    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        into.extend([
            ("active_pages", u64::from(self.table.len(ACTIVE))),
            ("inactive_pages", u64::from(self.table.len(INACTIVE) + self.table.len(BATCH))),
            ("ring_used_pages", u64::from(self.table.len(RING))),
            ("ring_ahead_pages", u64::from(self.table.len(RING_AHEAD))),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReclaimPolicy;
    use crate::managed::Managed;
    use types::Rng;

    #[test]
    fn changing_the_placement_at_any_time_loses_no_page_and_empties_a_ring_without_claim() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let lists = TwoList::new("test", 100, Placement::Ring).with_ring(RingSize { kept: 10, ahead: 30 });
            let mut p = Managed::new(lists.with_batch(1 + rng.below(15) as u32));
            let mut resident = [false; 100];
            for _ in 0..5_000 {
                let f = rng.below(100) as u32;
                let mut access = if rng.chance(0.6) { PageAccess::coarse(1, 1 << 20) } else { PageAccess::fine(1) };
                access.readahead = rng.chance(0.3);
                if resident[f as usize] {
                    p.touch(FrameId(f), access)
                } else {
                    p.insert(FrameId(f), access)
                }
                resident[f as usize] = true;
                if rng.chance(0.1) {
                    let mut victims = Vec::new();
                    p.reclaim(4, &mut |_| true, &mut victims);
                    victims.iter().for_each(|v| resident[v.0 as usize] = false);
                }
                if rng.chance(0.002) {
                    let mut lists = p.into_order();
                    lists.placement = [Placement::Lru, Placement::Fgf, Placement::Ring][rng.below(3) as usize];
                    p = Managed::new(lists);
                }
                assert_eq!(p.resident() as usize, resident.iter().filter(|r| **r).count());
            }
            let mut lists = p.into_order();
            lists.placement = Placement::Lru;
            let mut p = Managed::new(lists);
            for f in 0..100 {
                if resident[f as usize] {
                    p.remove(FrameId(f));
                }
                p.insert(FrameId(f), PageAccess::fine(2));
            }
            assert_eq!(p.order().table.len(RING), 0, "two pages went back with every insertion");
        }
    }
}
