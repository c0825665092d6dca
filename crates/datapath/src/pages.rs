//! One OST object at a client: which pages are there, dirty, on their way in or out, and how long it is known to be.
//!
//! - **Claims.** A load claims the pages that it fetches, under a number. Whatever drops or writes a page ends the claim, and
//!   an answer counts only while its number stands at the page.
//! - **Parts.** A page that is written to before anybody has read it is there in part: the bytes that were written, without a gap,
//!   and no others. It is written out like that, and whoever wants the rest loads it. For readers it is not cached.
//! - **Changes.** While a cut, a hole or an uncached write is under way nobody claims its pages or writes to them here.
//! - **Write-out.** A page that is being written is not taken again, so that two versions of it never race to the OST.
use crate::PAGE;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::Extent;

mod dropping;
mod due;
mod parts;
mod sizes;
pub use dropping::Gone;
pub use due::{Due, Flushing};
pub use parts::Part;
pub use sizes::Moment;

/// Pages in a block of the map.
const BLOCK: u64 = 64;

/// 64 neighbouring pages; bit i of a mask is page i.
#[derive(Debug)]
struct Block<P> {
    pages: [Option<P>; BLOCK as usize],
    loading: u64,
    /// Of pages that are loading, the claim whose answer counts.
    claims: [u32; BLOCK as usize],
    dirty: u64,
    /// Of dirty pages, how many flushes had begun when they became so.
    dirtied: [u32; BLOCK as usize],
    /// Of pages that are being written, the same of the version that is on its way.
    taken: [u32; BLOCK as usize],
    /// Dirty pages that took grant.
    granted: u64,
    writeback: u64,
    ahead: u64,
    /// Cached pages of which only some bytes are known.
    partial: u64,
}

impl<P> Block<P> {
    fn new() -> Box<Block<P>> {
        Box::new(Block {
            pages: [const { None }; BLOCK as usize],
            loading: 0,
            claims: [0; BLOCK as usize],
            dirty: 0,
            dirtied: [0; BLOCK as usize],
            taken: [0; BLOCK as usize],
            granted: 0,
            writeback: 0,
            ahead: 0,
            partial: 0,
        })
    }
    fn is_idle(&self) -> bool {
        self.loading | self.dirty | self.writeback == 0 && self.pages.iter().all(Option::is_none)
    }
}

/// One object. A page is a handle `P` that the driver gives meaning to.
#[derive(Debug)]
pub struct Pages<P> {
    blocks: HashMap<u64, Box<Block<P>>, FxBuildHasher>,
    /// Blocks with dirty pages, in order, and how many each has.
    dirty_blocks: BTreeMap<u64, u32>,
    dirty_pages: usize,
    writeback_pages: usize,
    /// Known minimum size: no byte is known behind it.
    size: u64,
    /// The part of it that the OST knows, as far as it has said: what is behind it is in dirty pages only.
    stored: u64,
    /// Bytes that the object reaches for sure while locks are held here: nobody else can cut them off. An answer that says
    /// less is older than what says this.
    assured: u64,
    /// Where the unwritten bytes of a page end, if that is within the page and behind what the OST knows. Of other pages the
    /// object's end says it.
    tails: BTreeMap<u64, u64>,
    /// Of pages that are there in part, which bytes are known.
    parts: HashMap<u64, Part, FxBuildHasher>,
    /// The page that was written to last, if it had no unwritten bytes before.
    fresh: Option<u64>,
    /// Grows with each cut of this client and each lock that it is given.
    moment: Moment,
    next_claim: u32,
    /// Flushes that have begun ([`Pages::due_now`]); goes round.
    flushes: u32,
    /// Pages (first, one past the last) that a request under way changes at the OST.
    changes: Vec<(u64, u64)>,
    /// It has its place in the order of write-out.
    pub(crate) listed: bool,
}

/// Dirty pages that were taken for one write RPC.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[must_use]
pub struct WriteOut {
    /// Their bytes as few extents; none reaches behind the object's end.
    pub extents: Vec<Extent>,
    /// Their numbers, ascending.
    pub pages: Vec<u64>,
    /// How many of them took grant.
    pub granted: usize,
}

/// What [`crate::Target::take`] gives.
#[derive(Debug)]
#[must_use]
pub(crate) struct Outgoing<P> {
    /// What is to be written; `None` when nothing was ready.
    pub out: Option<WriteOut>,
    /// Pages that lay behind the end and are gone.
    pub gone: Vec<P>,
}

/// Dirty pages that were dropped.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Dropped {
    /// Pages.
    pub dirty: usize,
    /// How many of them took grant.
    pub granted: usize,
}

/// A claim on pages to load. What it brings counts as long as nothing has changed or dropped the page since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// First page.
    pub first: u64,
    /// One past the last.
    pub end: u64,
    number: u32,
}

impl<P> Default for Pages<P> {
    fn default() -> Self {
        Pages {
            blocks: HashMap::default(),
            dirty_blocks: BTreeMap::new(),
            dirty_pages: 0,
            writeback_pages: 0,
            size: 0,
            stored: 0,
            assured: 0,
            tails: BTreeMap::new(),
            parts: HashMap::default(),
            fresh: None,
            moment: Moment::default(),
            next_claim: 1,
            flushes: 0,
            changes: Vec::new(),
            listed: false,
        }
    }
}

/// Questions.
impl<P> Pages<P> {
    /// Dirty pages that no write has taken.
    #[must_use]
    pub fn dirty_pages(&self) -> usize {
        self.dirty_pages
    }
    /// Dirty or being written.
    #[must_use]
    pub fn unwritten_pages(&self) -> usize {
        self.dirty_pages + self.writeback_pages
    }
    /// Pages that a load has claimed.
    #[must_use]
    pub fn loading_pages(&self) -> u64 {
        self.blocks.values().map(|b| u64::from(b.loading.count_ones())).sum()
    }
    /// Changes under way ([`Pages::on_change`]).
    #[must_use]
    pub fn changes(&self) -> usize {
        self.changes.len()
    }
    /// Nothing is known of any page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
    /// End of the unwritten bytes, for what a fresh size must not forget.
    #[must_use]
    pub fn unwritten_end(&self) -> u64 {
        if self.unwritten_pages() == 0 {
            return 0;
        }
        let last = |key: u64, unwritten: u64| key * BLOCK + u64::from(u64::BITS - unwritten.leading_zeros());
        let unwritten = self.blocks.iter().map(|(key, b)| (*key, b.dirty | b.writeback)).filter(|(_, m)| *m != 0);
        let end = unwritten.map(|(key, mask)| last(key, mask)).max().unwrap_or(0);
        let Some(page) = end.checked_sub(1) else { return 0 };
        let known = self.part(page).map(|part| page * PAGE + u64::from(part.end));
        self.size.min(known.or_else(|| self.tails.get(&page).copied()).unwrap_or(end * PAGE))
    }
    fn block(&self, page: u64) -> Option<&Block<P>> {
        self.blocks.get(&(page / BLOCK)).map(|b| &**b)
    }
    fn block_mut(&mut self, page: u64) -> &mut Block<P> {
        self.blocks.entry(page / BLOCK).or_insert_with(Block::new)
    }
    /// A cached page, all of it.
    #[must_use]
    pub fn get(&self, page: u64) -> Option<&P> {
        self.block(page)?.whole(page)
    }
    /// A cached page that somebody reads: it was not read ahead in vain.
    #[must_use]
    pub fn on_used(&mut self, page: u64) -> Option<&P> {
        let block = self.blocks.get_mut(&(page / BLOCK))?;
        block.ahead &= !(1 << (page % BLOCK));
        block.whole(page)
    }
    /// Whether a page is cached, all of it.
    #[must_use]
    pub fn is_cached(&self, page: u64) -> bool {
        self.get(page).is_some()
    }
    /// Whether a page is on its way.
    #[must_use]
    pub fn is_loading(&self, page: u64) -> bool {
        self.block(page).is_some_and(|b| b.loading >> (page % BLOCK) & 1 == 1)
    }
    /// Whether a page may leave the cache to make room.
    #[must_use]
    pub fn is_evictable(&self, page: u64) -> bool {
        self.block(page).is_none_or(|b| (b.dirty | b.writeback) >> (page % BLOCK) & 1 == 0)
    }
    /// Whether a page is dirty and no write has taken it.
    #[must_use]
    pub fn is_dirty(&self, page: u64) -> bool {
        self.block(page).is_some_and(|b| b.dirty >> (page % BLOCK) & 1 == 1)
    }
    /// Whether a page of the extent is dirty or being written.
    #[must_use]
    pub fn is_unwritten(&self, extent: Extent) -> bool {
        if self.unwritten_pages() == 0 {
            return false;
        }
        let (first, end) = page_range(extent);
        self.blocks.iter().any(|(key, b)| (b.dirty | b.writeback) & mask_of(*key, first, end) != 0)
    }
    /// Numbers of the cached pages, also of those that are there in part, in no order.
    pub fn cached(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().flat_map(|(key, b)| {
            let cached = b.pages.iter().enumerate().filter(|(_, p)| p.is_some());
            cached.map(move |(i, _)| key * BLOCK + i as u64)
        })
    }
}

/// Changes past the cache.
impl<P> Pages<P> {
    /// Whether a change of one of the pages is under way.
    #[must_use]
    pub fn is_changing(&self, first: u64, end: u64) -> bool {
        self.changes.iter().any(|c| c.0 < end && first < c.1)
    }
    /// Begins a change of pages; false when one of them is being changed, and it has to wait. The caller holds a lock over
    /// them.
    #[must_use]
    pub fn on_change(&mut self, first: u64, end: u64) -> bool {
        let free = !self.is_changing(first, end);
        if free {
            self.changes.push((first, end));
        }
        free
    }
    /// A change of these pages was answered, or nobody waits for it any more.
    pub fn on_changed(&mut self, first: u64, end: u64) {
        if let Some(i) = self.changes.iter().position(|c| *c == (first, end)) {
            self.changes.swap_remove(i);
        }
    }
}

/// Loads.
impl<P> Pages<P> {
    /// Claims the pages of `first..end` that are not cached, or only in part, and neither on their way nor being changed, as runs
    /// of at most `max` pages.
    #[must_use]
    pub fn on_missing(&mut self, first: u64, end: u64, max: u64) -> Vec<Claimed> {
        let number = self.next_claim;
        self.next_claim = number.wrapping_add(1);
        let mut runs: Vec<Claimed> = Vec::new();
        for page in first..end {
            let bit = page % BLOCK;
            let gated = self.is_changing(page, page + 1) && !types::planted!("claim-beside-change");
            let block = self.block_mut(page);
            if gated || block.whole(page).is_some() || block.loading >> bit & 1 == 1 {
                continue;
            }
            block.loading |= 1 << bit;
            block.claims[bit as usize] = number;
            match runs.last_mut() {
                Some(run) if run.end == page && run.end - run.first < max => run.end += 1,
                _ => runs.push(Claimed { first: page, end: page + 1, number }),
            }
        }
        runs
    }
    /// Ends a claim: what it did not bring will not come.
    pub fn on_unclaimed(&mut self, claim: Claimed) {
        for page in claim.first..claim.end {
            if let Some(b) = self.blocks.get_mut(&(page / BLOCK)) {
                if b.claims[(page % BLOCK) as usize] == claim.number {
                    b.loading &= !(1 << (page % BLOCK));
                }
                if b.is_idle() {
                    self.blocks.remove(&(page / BLOCK));
                }
            }
        }
    }
    /// A page of a claim arrived. Whether it is to be kept ([`Pages::on_put`]), with the bytes that are known in the place of those
    /// that came ([`Pages::part`]): whoever changed or dropped the page since it was claimed wins, be it that it was claimed anew.
    #[must_use]
    pub fn on_arrived(&mut self, claim: Claimed, page: u64) -> bool {
        let bit = page % BLOCK;
        let Some(b) = self.blocks.get_mut(&(page / BLOCK)) else { return false };
        if types::planted!("claim-number-ignored") && b.loading >> bit & 1 == 1 {
            b.claims[bit as usize] = claim.number;
        }
        if b.loading >> bit & 1 == 0 || b.claims[bit as usize] != claim.number {
            return types::planted!("arrival-always-kept")
                && b.dirty >> bit & 1 == 0
                && b.pages[bit as usize].is_none();
        }
        b.loading &= !(1 << bit);
        true
    }
    /// The page is cached as `handle` from now on, all of it; gives what it was before. `ahead`: nobody has asked for it yet.
    pub fn on_put(&mut self, page: u64, handle: P, ahead: bool) -> Option<P> {
        self.on_whole(page);
        let block = self.block_mut(page);
        if ahead {
            block.ahead |= 1 << (page % BLOCK);
        }
        block.pages[(page % BLOCK) as usize].replace(handle)
    }
}

/// Writes, and write-out.
impl<P> Pages<P> {
    /// A page is written whole: what is on its way for it does not count any more. [`Pages::on_put`] follows, unless it is cached.
    pub fn on_overwritten(&mut self, page: u64) {
        if !types::planted!("overwrite-keeps-claim") {
            self.block_mut(page).loading &= !(1 << (page % BLOCK));
        }
    }
    /// The bytes of a cached page were changed: it is dirty. Whether it was clean before, for [`crate::Target::on_written`].
    ///
    /// # Panics
    /// When the page is not cached.
    #[must_use]
    pub fn on_written(&mut self, page: u64) -> bool {
        let bit = page % BLOCK;
        let block = self.blocks.get_mut(&(page / BLOCK)).filter(|b| b.pages[bit as usize].is_some());
        let block = block.expect("who writes to a page has put it before");
        block.ahead &= !(1 << bit);
        let was_clean = block.dirty >> bit & 1 == 0;
        self.fresh = ((block.dirty | block.writeback) >> bit & 1 == 0).then_some(page);
        if was_clean || types::planted!("due-put-off") {
            block.dirtied[bit as usize] = self.flushes;
        }
        if was_clean {
            block.dirty |= 1 << bit;
            self.dirty_pages += 1;
            *self.dirty_blocks.entry(page / BLOCK).or_insert(0) += 1;
        }
        was_clean
    }
    /// A dirty page took grant.
    pub(crate) fn on_granted(&mut self, page: u64) {
        if let Some(b) = self.blocks.get_mut(&(page / BLOCK)) {
            b.granted |= 1 << (page % BLOCK) & b.dirty;
        }
    }
    /// Whether a dirty page took grant.
    #[must_use]
    pub fn has_grant(&self, page: u64) -> bool {
        self.block(page).is_some_and(|b| b.granted >> (page % BLOCK) & 1 == 1)
    }
    /// Takes up to `max` dirty pages of `extent`: those that took grant, or those that did not, as the first one did. What has
    /// grant was promised its space, and must not fail with what was not. Pages that are being written are left for later;
    /// pages behind the object's end are dropped. Of a page that is there in part, the bytes that are known are taken.
    pub(crate) fn take_dirty(&mut self, extent: Extent, max: usize) -> (Option<WriteOut>, Dropped, Vec<P>) {
        let (first, end) = page_range(extent);
        let (mut out, mut dropped, mut gone) = (WriteOut::default(), Dropped::default(), Vec::new());
        let mut kind = None;
        let range = first / BLOCK..=(end.saturating_sub(1)) / BLOCK;
        let keys: Vec<u64> = self.dirty_blocks.range(range).map(|(k, _)| *k).collect();
        'all: for key in keys {
            let Some(block) = self.blocks.get_mut(&key) else { continue };
            let busy = if types::planted!("write-out-races") { 0 } else { block.writeback };
            for bit in bits(block.dirty & !busy & mask_of(key, first, end)) {
                let (page, mask) = (key * BLOCK + bit, 1 << bit);
                let granted = (block.granted >> bit & 1) as usize;
                let valid = self.size.saturating_sub(page * PAGE).min(PAGE);
                let part = if block.partial & mask == 0 { None } else { self.parts.get(&page).cloned() };
                let part = part.filter(|_| !types::planted!("part-written-whole"));
                let bytes = part.as_ref().map_or(0..valid, |p| u64::from(p.start)..valid.min(u64::from(p.end)));
                if !bytes.is_empty() && *kind.get_or_insert(granted) != granted && !types::planted!("grant-mixed") {
                    continue;
                }
                block.dirty &= !mask;
                block.granted &= !mask;
                self.dirty_pages -= 1;
                undirty(&mut self.dirty_blocks, key, 1);
                if bytes.is_empty() {
                    dropped.dirty += 1;
                    dropped.granted += granted;
                    if block.partial & mask != 0 {
                        block.partial &= !mask;
                        block.loading &= !mask;
                        self.parts.remove(&page);
                    }
                    gone.extend(block.pages[bit as usize].take());
                    continue;
                }
                self.writeback_pages += usize::from(block.writeback & mask == 0);
                block.writeback |= mask;
                block.taken[bit as usize] = block.dirtied[bit as usize];
                if part.is_none() && self.tails.get(&page).is_some_and(|tail| *tail < page * PAGE + valid) {
                    // The object is to be longer: the page is written to its end.
                    self.tails.remove(&page);
                }
                out.granted += granted;
                out.pages.push(page);
                let taken = Extent::new(page * PAGE + bytes.start, page * PAGE + bytes.end);
                match out.extents.last_mut() {
                    Some(e) if e.end == taken.start => e.end = taken.end,
                    _ => out.extents.push(taken),
                }
                if out.pages.len() == max {
                    break 'all;
                }
            }
        }
        ((!out.pages.is_empty()).then_some(out), dropped, gone)
    }
    /// A write RPC ended.
    pub(crate) fn on_write_ended(&mut self, pages: &[u64]) {
        for page in pages {
            if let Some(b) = self.blocks.get_mut(&(page / BLOCK)) {
                if b.writeback >> (page % BLOCK) & 1 == 1 {
                    b.writeback &= !(1 << (page % BLOCK));
                    self.writeback_pages -= 1;
                }
                if b.is_idle() {
                    self.blocks.remove(&(page / BLOCK));
                }
            }
        }
    }
}

fn undirty(dirty_blocks: &mut BTreeMap<u64, u32>, key: u64, pages: u32) {
    if let Some(n) = dirty_blocks.get_mut(&key) {
        *n -= pages;
        if *n == 0 {
            dirty_blocks.remove(&key);
        }
    }
}

/// Pages that the extent touches: first, one past the last.
#[must_use]
pub const fn page_range(extent: Extent) -> (u64, u64) {
    (extent.start / PAGE, extent.end.div_ceil(PAGE))
}

/// Numbers of the bits that are set.
fn bits(mut mask: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let bit = (mask != 0).then(|| u64::from(mask.trailing_zeros()))?;
        mask &= mask - 1;
        Some(bit)
    })
}

fn mask_of(key: u64, first: u64, end: u64) -> u64 {
    let base = key * BLOCK;
    let from = first.saturating_sub(base).min(BLOCK);
    let to = end.saturating_sub(base).min(BLOCK);
    if from >= to {
        return 0;
    }
    let upto = |n: u64| if n == BLOCK { u64::MAX } else { (1u64 << n) - 1 };
    upto(to) & !upto(from)
}

#[cfg(test)]
mod tests;
