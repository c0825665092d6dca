//! What a flush is to write out, and how far it is.
//!
//! Each page that is dirty or on its way out knows how many flushes had begun when that version of it became dirty. A flush that promises
//! what was written before it began waits for these versions only: who goes on writing does not hold it up.
use super::{BLOCK, Pages, bits, mask_of, page_range};
use types::Extent;

/// What a flush is to write out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    extent: Extent,
    /// Versions of pages that became dirty after more flushes than these are not waited for.
    until: Option<u32>,
}

impl Due {
    /// Everything in an extent, also what becomes dirty while the flush is under way: what a lock that leaves needs.
    #[must_use]
    pub const fn all(extent: Extent) -> Due {
        Due { extent, until: None }
    }
    /// Where its pages are.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }
    /// Of some pages of a block, those whose version is waited for.
    fn among(&self, pages: u64, numbers: &[u32; BLOCK as usize]) -> u64 {
        let Some(until) = self.until else { return pages };
        // Numbers go round: half of them are earlier ones.
        let is_due = |bit: &u64| until.wrapping_sub(numbers[*bit as usize]) <= u32::MAX / 2;
        bits(pages).filter(is_due).fold(0, |mask, bit| mask | 1 << bit)
    }
}

/// How far a flush is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Flushing {
    /// All that was due is out, or was told as lost.
    Over,
    /// Ask for a place in the window, and for a write ([`crate::Target::on_place`]) when it is there.
    Ready,
    /// What is left is under way. Look again when a write of the object has ended, or pages of it were dropped.
    UnderWay,
}

impl<P> Pages<P> {
    /// A flush begins of what is dirty or under way in an extent now. Pages that somebody goes on writing to are due once.
    pub fn due_now(&mut self, extent: Extent) -> Due {
        let until = Some(self.flushes);
        self.flushes = self.flushes.wrapping_add(1);
        Due { extent, until }
    }
    /// The first page of a flush that is dirty and not being written.
    #[must_use]
    pub fn first_due(&self, due: Due) -> Option<u64> {
        let (first, end) = page_range(due.extent);
        self.dirty_blocks.range(first / BLOCK..=(end.saturating_sub(1)) / BLOCK).find_map(|(key, _)| {
            let b = self.blocks.get(key)?;
            let ready = due.among(b.dirty & !b.writeback & mask_of(*key, first, end), &b.dirtied);
            (ready != 0).then(|| key * BLOCK + u64::from(ready.trailing_zeros()))
        })
    }
    /// How far a flush is.
    pub fn flushing(&self, due: Due) -> Flushing {
        if self.first_due(due).is_some() {
            return Flushing::Ready;
        }
        if self.unwritten_pages() == 0 || types::planted!("flush-ends-under-way") {
            return Flushing::Over;
        }
        let (first, end) = page_range(due.extent);
        let under_way = self.blocks.iter().any(|(key, b)| {
            let mask = mask_of(*key, first, end);
            due.among(b.dirty & mask, &b.dirtied) | due.among(b.writeback & mask, &b.taken) != 0
        });
        if under_way { Flushing::UnderWay } else { Flushing::Over }
    }
}
