//! One OST of one client: the window of its RPCs, its books, and which object is written out next.
//!
//! Every step that changes the books together with an object's pages is one call here, so that they cannot differ.
use crate::{Books, Gone, Outgoing, PAGE, Pages, Window};
use alloc::collections::VecDeque;
use types::Extent;

/// What one OST is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetLimits {
    /// Dirty bytes.
    pub dirty_bytes_max: u64,
    /// Bulk RPCs under way, without those that only urgent RPCs may be.
    pub rpcs_max: usize,
    /// Bulk RPCs beyond them that only urgent RPCs may be.
    pub urgent_rpcs: usize,
    /// Pages of one RPC, as long as the target takes that many ([`Target::on_rpc_bytes_offered`]).
    pub rpc_pages_max: usize,
}

impl TargetLimits {
    /// What a client begins with.
    pub const DEFAULT: TargetLimits =
        TargetLimits { dirty_bytes_max: 64 << 20, rpcs_max: 8, urgent_rpcs: 2, rpc_pages_max: 1024 };
    /// Range of the number of bulk RPCs under way.
    pub const RPCS: core::ops::RangeInclusive<usize> = 1..=256;
    /// Range of the number of pages of one RPC.
    pub const RPC_PAGES: core::ops::RangeInclusive<usize> = 1..=16384;
    /// Pages of one RPC that every target takes.
    pub const RPC_PAGES_ALWAYS: usize = 256;
}

/// One OST. `K` names an object to the driver.
#[derive(Debug)]
pub struct Target<K> {
    /// Dirty bytes and grant.
    pub books: Books,
    /// The places of bulk RPCs. Ask it for [`Window::next_admitted`] after every input of the target, too.
    pub window: Window,
    limits: TargetLimits,
    /// Pages of one RPC that the target takes.
    rpc_pages_offered: usize,
    /// Objects with dirty pages, oldest first.
    queue: VecDeque<K>,
}

impl<K> Target<K> {
    /// An OST with nothing under way.
    #[must_use]
    pub fn new(limits: TargetLimits) -> Target<K> {
        let window = Window::new(limits.rpcs_max, limits.urgent_rpcs);
        let (books, rpc_pages_offered) = (Books::new(limits.dirty_bytes_max), TargetLimits::RPC_PAGES_ALWAYS);
        Target { books, window, limits, rpc_pages_offered, queue: VecDeque::new() }
    }
    /// Bulk RPCs under way that are allowed.
    #[must_use]
    pub fn rpcs_max(&self) -> usize {
        self.limits.rpcs_max
    }
    /// Changes how many bulk RPCs may be under way, within [`TargetLimits::RPCS`]: more at once, fewer as they end.
    pub fn on_rpcs_max(&mut self, rpcs: usize) {
        let rpcs = rpcs.clamp(*TargetLimits::RPCS.start(), *TargetLimits::RPCS.end());
        let more = rpcs as isize - self.limits.rpcs_max as isize;
        self.window.on_resized(if types::planted!("window-only-grows") { more.max(0) } else { more });
        self.limits.rpcs_max = rpcs;
    }
    /// Pages of one RPC: what the client wants, and no more than the target takes.
    #[must_use]
    pub fn rpc_pages_max(&self) -> usize {
        if types::planted!("rpc-over-offer") {
            return self.limits.rpc_pages_max;
        }
        self.limits.rpc_pages_max.min(self.rpc_pages_offered)
    }
    /// Places of the window that RPCs have.
    #[must_use]
    pub fn places_taken(&self) -> u64 {
        let places = (self.limits.rpcs_max + self.limits.urgent_rpcs) as isize;
        u64::try_from(places - self.window.free()).unwrap_or(0)
    }
    /// Pages of one RPC that the target takes.
    #[must_use]
    pub fn rpc_pages_offered(&self) -> usize {
        self.rpc_pages_offered
    }
    /// The target said how many bytes it takes in one RPC; until then it is [`TargetLimits::RPC_PAGES_ALWAYS`] pages.
    pub fn on_rpc_bytes_offered(&mut self, bytes: u64) {
        let pages = usize::try_from(bytes / PAGE).unwrap_or(usize::MAX);
        self.rpc_pages_offered = pages.clamp(*TargetLimits::RPC_PAGES.start(), *TargetLimits::RPC_PAGES.end());
    }
    /// Changes the pages of one RPC, within [`TargetLimits::RPC_PAGES`].
    pub fn set_rpc_pages_max(&mut self, pages: usize) {
        self.limits.rpc_pages_max = pages.clamp(*TargetLimits::RPC_PAGES.start(), *TargetLimits::RPC_PAGES.end());
    }

    /// A page of an object was written to; `was_clean` as [`Pages::on_written`] said. False: it has no grant, be it that another
    /// write made it dirty, and must be written out before the write is answered.
    #[must_use]
    pub fn on_written<P>(&mut self, pages: &mut Pages<P>, page: u64, was_clean: bool) -> bool {
        if !was_clean {
            return pages.has_grant(page);
        }
        let granted = self.books.on_dirtied();
        if granted {
            pages.on_granted(page);
        }
        granted
    }
    /// [`Target::on_written`] of a page that is to be written out at once although there may be grant.
    #[must_use]
    pub fn on_written_through<P>(&mut self, pages: &mut Pages<P>, page: u64, was_clean: bool) -> bool {
        if was_clean {
            self.books.on_dirtied_without_grant();
        }
        pages.has_grant(page)
    }
    /// Puts an object with dirty pages at the end of the order of write-out, unless it has its place there.
    pub fn on_dirty_object<P>(&mut self, key: K, pages: &mut Pages<P>) {
        if !pages.listed {
            pages.listed = true;
            self.queue.push_back(key);
        }
    }
    /// How many objects are in the order of write-out.
    #[must_use]
    pub fn listed(&self) -> usize {
        self.queue.len()
    }
    /// Takes the object that is to be written out next out of the order; say with [`Target::on_visited`] or
    /// [`Target::on_left`] where it goes.
    pub(crate) fn next_dirty(&mut self) -> Option<K> {
        self.queue.pop_front()
    }
    /// There was no place for more RPCs: the object stays the next one.
    pub(crate) fn on_left(&mut self, key: K) {
        if !types::planted!("object-forgotten") {
            self.queue.push_front(key);
        }
    }
    /// The object had its turn: it goes to the end, or out of the order when nothing of it is dirty.
    pub(crate) fn on_visited<P>(&mut self, key: K, pages: &mut Pages<P>) {
        if pages.dirty_pages() == 0 {
            pages.listed = false;
        } else {
            self.queue.push_back(key);
        }
    }
    /// Takes up to `max` dirty pages of `reach` for one write RPC. What lay behind the object's end was dropped instead.
    pub(crate) fn take<P>(&mut self, pages: &mut Pages<P>, reach: Extent, max: usize) -> Outgoing<P> {
        let (out, dropped, gone) = pages.take_dirty(reach, max);
        self.books.on_clean(dropped, true);
        Outgoing { out, gone }
    }
    /// Drops every page of `first..end`, dirty ones too; pages on their way will not be kept.
    pub fn discard<P>(&mut self, pages: &mut Pages<P>, first: u64, end: u64) -> Gone<P> {
        let gone = pages.drop_range(first, end);
        self.books.on_clean(gone.dropped, true);
        gone
    }
    /// [`Target::discard`] of what only a lock that goes covers: unwritten pages stay where a lock of `writing` covers them,
    /// others where one of `all` does.
    pub fn discard_uncovered<P>(
        &mut self,
        pages: &mut Pages<P>,
        extent: Extent,
        writing: &[Extent],
        all: &[Extent],
    ) -> Gone<P> {
        let gone = pages.drop_uncovered(extent, writing, all);
        self.books.on_clean(gone.dropped, true);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;
    use types::Instant;

    #[test]
    fn a_window_that_becomes_smaller_under_load_lets_nobody_in_until_so_many_have_ended() {
        let limits = TargetLimits { rpcs_max: 4, urgent_rpcs: 1, ..TargetLimits::DEFAULT };
        let mut t = Target::<()>::new(limits);
        assert_eq!((0..9).filter(|_| t.window.on_try()).count(), 4, "the fifth place is for urgent RPCs");
        t.on_rpcs_max(0);
        assert_eq!(t.rpcs_max(), 1);
        let urgent = t.window.on_ask(Rank::Urgent(Instant(1)), 0);
        assert_eq!(t.window.next_admitted(), None, "four are more than one and one more");
        (0..3).for_each(|_| t.window.on_end());
        assert_eq!(t.window.next_admitted(), Some((urgent, Rank::Urgent(Instant(1)))));
        (0..2).for_each(|_| t.window.on_end());
        assert!(t.window.on_try() && !t.window.on_try());
        t.on_rpcs_max(1000);
        assert_eq!((t.rpcs_max(), (0..999).filter(|_| t.window.on_try()).count()), (256, 255));
    }
}
