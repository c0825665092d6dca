//! Pages that go: reclaimed, cut off, under a lock that leaves.
use super::{BLOCK, Block, Dropped, Pages, bits, mask_of, page_range, undirty};
use crate::PAGE;
use alloc::vec::Vec;
use types::Extent;

/// What a drop took.
#[derive(Debug)]
#[must_use]
pub struct Gone<P> {
    /// The pages that were cached.
    pub pages: Vec<P>,
    /// Pages read ahead, or on their way, that nobody had used: their numbers, ascending.
    pub ahead: Vec<u64>,
    /// The dirty pages among them; [`crate::Target`] has taken them out of the books.
    pub dropped: Dropped,
}

impl<P> Pages<P> {
    /// The cache took a clean page away: what it was, and whether it was read ahead in vain.
    pub fn on_reclaimed(&mut self, page: u64) -> (Option<P>, bool) {
        if self.part(page).is_some() {
            // What is on its way for it may be older than what was written here.
            if !types::planted!("part-leaves-claim") {
                self.on_edge_changed(page);
            }
            self.on_whole(page);
        }
        let Some(b) = self.blocks.get_mut(&(page / BLOCK)) else { return (None, false) };
        let unused = b.ahead >> (page % BLOCK) & 1 == 1;
        let was = b.pages[(page % BLOCK) as usize].take();
        b.ahead &= !(1 << (page % BLOCK));
        if b.is_idle() {
            self.blocks.remove(&(page / BLOCK));
        }
        (was, unused)
    }
    /// What the OST has of a page may be something else: it goes, unless it is unwritten.
    pub fn on_outdated(&mut self, page: u64) -> Gone<P> {
        let unwritten = self.is_unwritten(Extent::at(page * PAGE, PAGE));
        self.drop_where(|key, _| if unwritten { 0 } else { mask_of(key, page, page + 1) })
    }
    /// What is on its way for a page does not count any more.
    pub fn on_edge_changed(&mut self, page: u64) {
        if let Some(b) = self.blocks.get_mut(&(page / BLOCK)).filter(|_| !types::planted!("edge-keeps-claim")) {
            b.loading &= !(1 << (page % BLOCK));
        }
    }
    /// These pages could not be written out: those that were not written to since go, and the object is as long as the OST
    /// says.
    pub fn on_not_written(&mut self, pages: &[u64]) -> Gone<P> {
        let mut all = Gone { pages: Vec::new(), ahead: Vec::new(), dropped: Dropped::default() };
        for page in pages.iter().filter(|_| !types::planted!("unwritten-kept")) {
            let gone = self.on_outdated(*page);
            all.pages.extend(gone.pages);
            all.ahead.extend(gone.ahead);
        }
        self.on_size(self.stored);
        all
    }
    /// Drops the clean pages that lie within the extent whole.
    #[must_use]
    pub fn drop_clean(&mut self, extent: Extent) -> Vec<P> {
        let (first, end) = (extent.start.div_ceil(PAGE), extent.end / PAGE);
        let mut gone = Vec::new();
        let parts = &mut self.parts;
        self.blocks.retain(|key, b| {
            let clean = mask_of(*key, first, end) & !(b.dirty | b.writeback | b.loading);
            b.ahead &= !clean;
            bits(b.partial & clean).for_each(|bit| _ = parts.remove(&(key * BLOCK + bit)));
            b.partial &= !clean;
            gone.extend(bits(clean).filter_map(|bit| b.pages[bit as usize].take()));
            !b.is_idle()
        });
        gone
    }
    pub(crate) fn drop_range(&mut self, first: u64, end: u64) -> Gone<P> {
        self.drop_where(|key, _| mask_of(key, first, end))
    }
    pub(crate) fn drop_uncovered(&mut self, extent: Extent, writing: &[Extent], all: &[Extent]) -> Gone<P> {
        let (first, end) = page_range(extent);
        let within = |key: u64, extents: &[Extent]| {
            extents.iter().fold(0, |mask, e| mask | mask_of(key, e.start.div_ceil(PAGE), whole_end(*e)))
        };
        self.drop_where(|key, b| {
            let unwritten = b.dirty | b.writeback;
            let stays = unwritten & within(key, writing) | !unwritten & within(key, all);
            mask_of(key, first, end) & !stays
        })
    }
    fn drop_where(&mut self, choose: impl Fn(u64, &Block<P>) -> u64) -> Gone<P> {
        let mut gone = Gone { pages: Vec::new(), ahead: Vec::new(), dropped: Dropped::default() };
        let (dirty_blocks, writeback_pages) = (&mut self.dirty_blocks, &mut self.writeback_pages);
        let parts = &mut self.parts;
        self.blocks.retain(|key, b| {
            let mask = choose(*key, b);
            if mask == 0 {
                return true;
            }
            gone.ahead.extend(bits((b.ahead | b.loading) & mask).map(|bit| key * BLOCK + bit));
            if !types::planted!("drop-keeps-claims") {
                b.loading &= !mask;
            }
            let dirty = (b.dirty & mask).count_ones();
            undirty(dirty_blocks, *key, dirty);
            gone.dropped.dirty += dirty as usize;
            gone.dropped.granted += (b.granted & mask).count_ones() as usize;
            *writeback_pages -= (b.writeback & mask).count_ones() as usize;
            bits(b.partial & mask).for_each(|bit| _ = parts.remove(&(key * BLOCK + bit)));
            for clears in [&mut b.dirty, &mut b.granted, &mut b.ahead, &mut b.writeback, &mut b.partial] {
                *clears &= !mask;
            }
            gone.pages.extend(bits(mask).filter_map(|bit| b.pages[bit as usize].take()));
            !b.is_idle()
        });
        self.dirty_pages -= gone.dropped.dirty;
        let blocks = &self.blocks;
        let unwritten = |page: u64, b: &Block<P>| (b.dirty | b.writeback) >> (page % BLOCK) & 1 == 1;
        self.tails.retain(|page, _| blocks.get(&(page / BLOCK)).is_some_and(|b| unwritten(*page, b)));
        gone.ahead.sort_unstable();
        gone
    }
}

/// One past the last page that the extent holds whole.
fn whole_end(extent: Extent) -> u64 {
    if extent.end == u64::MAX { u64::MAX } else { extent.end / PAGE }
}
