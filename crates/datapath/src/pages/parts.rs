//! Pages that are there in part: who writes some bytes of a page that is not cached does not wait for the others.
use super::{BLOCK, Block, Pages};

/// Bytes of a page: where they begin, and one past the last.
pub type Part = core::ops::Range<u32>;

impl<P> Block<P> {
    /// The page, if all of it is cached.
    pub(super) fn whole(&self, page: u64) -> Option<&P> {
        let is_part = self.partial >> (page % BLOCK) & 1 == 1 && !types::planted!("part-shown");
        self.pages[(page % BLOCK) as usize].as_ref().filter(|_| !is_part)
    }
}

impl<P> Pages<P> {
    /// Which bytes of a page are known, if it is there in part; behind the object's end as it was when they were written they are
    /// zeros, and known as well.
    #[must_use]
    pub fn part(&self, page: u64) -> Option<Part> {
        self.parts.get(&page).cloned()
    }
    /// A cached page, or the part of it that is there.
    #[must_use]
    pub fn held(&self, page: u64) -> Option<&P> {
        self.block(page)?.pages[(page % BLOCK) as usize].as_ref()
    }
    /// [`Pages::held`], to change its bytes.
    #[must_use]
    pub fn held_mut(&mut self, page: u64) -> Option<&mut P> {
        self.blocks.get_mut(&(page / BLOCK))?.pages[(page % BLOCK) as usize].as_mut()
    }
    /// Whether these bytes of a page can be written now: nothing of it is here, or all of it, or a part without a gap to them.
    /// Otherwise the page has to be loaded before.
    #[must_use]
    pub fn takes(&self, page: u64, bytes: &Part) -> bool {
        let touches = |known: &Part| bytes.start <= known.end && known.start <= bytes.end;
        self.parts.get(&page).is_none_or(touches) || types::planted!("part-with-gap")
    }
    /// These bytes of a page were changed: it is dirty. `fresh`: nothing of it was here before, [`Pages::on_put`] came just now
    /// with them, and with zeros for the others. `valid`: bytes of it that the object reached. Whether it was clean before, for
    /// [`crate::Target::on_written`].
    ///
    /// # Panics
    /// When nothing of the page is here.
    #[must_use]
    pub fn on_written_to(&mut self, page: u64, bytes: Part, fresh: bool, valid: u64) -> bool {
        let known = match self.part(page) {
            None if fresh => bytes,
            // All of it was known.
            None => return self.on_written(page),
            Some(known) => known.start.min(bytes.start)..known.end.max(bytes.end),
        };
        if valid == 0 || known.start == 0 && u64::from(known.end) >= valid {
            self.on_overwritten(page);
            self.on_whole(page);
        } else {
            self.parts.insert(page, known);
            self.block_mut(page).partial |= 1 << (page % BLOCK);
        }
        self.on_written(page)
    }
    /// All of a page is known, or nothing any more.
    pub(super) fn on_whole(&mut self, page: u64) {
        if self.parts.remove(&page).is_some()
            && let Some(b) = self.blocks.get_mut(&(page / BLOCK))
        {
            b.partial &= !(1 << (page % BLOCK));
        }
    }
}
