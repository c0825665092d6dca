//! One OST object as a client sees it: its cached pages, which of them are dirty, and how long it is known to be.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use cache::PageAccess;
use cache::frames::{Bulk, FRAME_BYTES, FrameRun, Segment};
use hashbrown::HashMap;
use ldlm::ResourceId;
use readahead::record::Call;
use rt::sync::{Event, Semaphore};
use rustc_hash::FxBuildHasher;
use types::{Extent, FsError, Instant, ObjectId, WallTime};

use crate::inode::Inode;
use crate::pages::{NewFrames, PageCache};

const PAGE: u64 = FRAME_BYTES as u64;
/// Pages in a block of the map.
const BLOCK: u64 = 64;

struct Cached {
    frame: FrameRun,
    id: u32,
}

/// 64 neighbouring pages; bit i of a mask is page i.
struct Block {
    pages: [Option<Cached>; BLOCK as usize],
    loading: u64,
    /// Of pages that are loading, the claim whose answer counts.
    claims: [u32; BLOCK as usize],
    dirty: u64,
    /// Dirty pages that took grant.
    granted: u64,
    writeback: u64,
    ahead: u64,
}

impl Block {
    fn new() -> Box<Block> {
        Box::new(Block {
            pages: [const { None }; BLOCK as usize],
            loading: 0,
            claims: [0; BLOCK as usize],
            dirty: 0,
            granted: 0,
            writeback: 0,
            ahead: 0,
        })
    }
    fn is_idle(&self) -> bool {
        self.loading | self.dirty | self.writeback == 0 && self.pages.iter().all(Option::is_none)
    }
}

/// An object's cache.
pub(crate) struct Object {
    pub(crate) id: ObjectId,
    /// Index of its OST in the client's table.
    pub(crate) ost: usize,
    pub(crate) inode: RefCell<Weak<Inode>>,
    /// Which stripe of the file it is.
    pub(crate) stripe: Cell<u16>,
    cache: Rc<PageCache>,
    blocks: RefCell<HashMap<u64, Box<Block>, FxBuildHasher>>,
    /// Blocks with dirty pages, in order.
    dirty_blocks: RefCell<BTreeMap<u64, u32>>,
    dirty_pages: Cell<usize>,
    writeback_pages: Cell<usize>,
    /// Known minimum size: no byte is known behind it.
    size: Cell<u64>,
    /// The part of it that the OST knows, as far as it has told: what is behind it is in dirty pages only.
    stored: Cell<u64>,
    pub(crate) mtime: Cell<WallTime>,
    pub(crate) blocks512: Cell<u64>,
    /// A load or a write-out ended.
    pub(crate) changed: Event,
    /// On its OST's list of dirty objects.
    pub(crate) listed: Cell<bool>,
    /// Until when no lock is asked for ahead of a reader: another client's stood in the way of one.
    pub(crate) no_lock_ahead_until: Cell<Instant>,
    /// The number of the next claim on pages to load.
    next_claim: Cell<u32>,
    /// Pages (first, one past the last) that a request under way changes at the OST.
    changes: RefCell<Vec<(u64, u64)>>,
    /// One append at a time: the locks that keep other clients away are shared by all programs of this one.
    pub(crate) appending: Semaphore,
}

/// Dirty pages taken for one write RPC.
#[derive(Default)]
pub(crate) struct WriteOut {
    pub(crate) extents: Vec<Extent>,
    pub(crate) bulk: Bulk,
    pub(crate) pages: Vec<u64>,
    /// How many of them took grant.
    pub(crate) granted: usize,
}

/// Dirty pages that were dropped, to be taken out of the books.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
#[must_use]
pub(crate) struct Dropped {
    pub(crate) dirty: usize,
    /// How many of them took grant.
    pub(crate) granted: usize,
}

/// A claim on pages to load. What it brings counts as long as nothing has changed or dropped the page since.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claimed {
    pub(crate) first: u64,
    pub(crate) end: u64,
    number: u32,
}

/// A change of pages at the OST by something that goes past the cache: a cut, a hole, zeros, an uncached write. While it
/// lasts nobody loads these pages or writes to them here: what was read before it would outlive it in the cache.
pub(crate) struct Change {
    object: Rc<Object>,
    pages: (u64, u64),
}
impl Drop for Change {
    fn drop(&mut self) {
        let mut changes = self.object.changes.borrow_mut();
        if let Some(i) = changes.iter().position(|c| *c == self.pages) {
            changes.swap_remove(i);
        }
        drop(changes);
        self.object.changed.notify();
    }
}

impl Object {
    pub(crate) fn new(id: ObjectId, ost: usize, cache: Rc<PageCache>) -> Rc<Object> {
        Rc::new(Object {
            id,
            ost,
            inode: RefCell::new(Weak::new()),
            stripe: Cell::new(0),
            cache,
            blocks: RefCell::default(),
            dirty_blocks: RefCell::default(),
            dirty_pages: Cell::new(0),
            writeback_pages: Cell::new(0),
            size: Cell::new(0),
            stored: Cell::new(0),
            mtime: Cell::new(crate::inode::UNSET),
            blocks512: Cell::new(0),
            changed: Event::new(),
            listed: Cell::new(false),
            no_lock_ahead_until: Cell::new(Instant(0)),
            next_claim: Cell::new(1),
            changes: RefCell::default(),
            appending: Semaphore::new(1),
        })
    }
    /// What policies know a page by.
    pub(crate) fn block_id(&self, page: u64) -> u64 {
        cache::block_id(self.id.0.seq ^ u64::from(self.id.0.oid) << 20, page)
    }
    /// A request's access, to one of its pages.
    fn of_page(&self, page: u64, access: PageAccess) -> PageAccess {
        PageAccess { block: self.block_id(page), ..access }
    }
    pub(crate) fn resource(&self) -> ResourceId {
        ResourceId::extent(self.id.0)
    }
    pub(crate) fn size(&self) -> u64 {
        self.size.get()
    }
    /// The object was cut or extended to this size at its OST.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.set(size);
        self.stored.set(size);
    }
    /// The OST says how long the object is; what is not written out counts besides.
    pub(crate) fn told_size(&self, stored: u64) {
        self.stored.set(stored);
        self.size.set(stored.max(self.unwritten_end()));
    }
    /// Bytes up to `end` are in dirty pages.
    pub(crate) fn grow(&self, end: u64) {
        self.size.set(self.size.get().max(end));
    }
    /// The OST has carried out something that made the object at least this long.
    pub(crate) fn stored_to(&self, end: u64) {
        self.stored.set(self.stored.get().max(end));
        self.grow(end);
    }
    /// Whether somebody here has the file open.
    pub(crate) fn is_open(&self) -> bool {
        self.inode.borrow().upgrade().is_some_and(|i| i.opens.get() > 0)
    }
    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty_pages.get()
    }
    /// Dirty or being written.
    pub(crate) fn unwritten_pages(&self) -> usize {
        self.dirty_pages.get() + self.writeback_pages.get()
    }
    pub(crate) fn has_pages(&self) -> bool {
        !self.blocks.borrow().is_empty()
    }
    /// End of the last unwritten page, for what a fresh size must not forget.
    pub(crate) fn unwritten_end(&self) -> u64 {
        if self.unwritten_pages() == 0 {
            return 0;
        }
        let last = |key: u64, unwritten: u64| key * BLOCK + u64::from(u64::BITS - unwritten.leading_zeros());
        let blocks = self.blocks.borrow();
        let unwritten = blocks.iter().map(|(key, b)| (*key, b.dirty | b.writeback)).filter(|(_, pages)| *pages != 0);
        let end = unwritten.map(|(key, pages)| last(key, pages)).max().unwrap_or(0);
        self.size.get().min(end * PAGE)
    }

    /// Reference to a cached page.
    pub(crate) fn get(&self, page: u64, access: Option<PageAccess>) -> Option<FrameRun> {
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks.get_mut(&(page / BLOCK))?;
        let cached = block.pages[(page % BLOCK) as usize].as_ref()?;
        if let Some(access) = access {
            self.cache.touch(cached.id, self.of_page(page, access));
            block.ahead &= !(1 << (page % BLOCK));
        }
        Some(cached.frame.clone())
    }
    pub(crate) fn is_cached(&self, page: u64) -> bool {
        self.blocks.borrow().get(&(page / BLOCK)).is_some_and(|b| b.pages[(page % BLOCK) as usize].is_some())
    }
    /// How many pages of `first..end` are cached.
    pub(crate) fn cached_pages(&self, first: u64, end: u64) -> u64 {
        (first..end).filter(|p| self.is_cached(*p)).count() as u64
    }
    pub(crate) fn is_loading(&self, page: u64) -> bool {
        self.blocks.borrow().get(&(page / BLOCK)).is_some_and(|b| b.loading >> (page % BLOCK) & 1 == 1)
    }
    pub(crate) fn is_evictable(&self, page: u64) -> bool {
        let blocks = self.blocks.borrow();
        let Some(b) = blocks.get(&(page / BLOCK)) else { return true };
        (b.dirty | b.writeback) >> (page % BLOCK) & 1 == 0
    }
    /// The cache took the page away (it keeps its own books). Whether it was read ahead and never used.
    pub(crate) fn reclaimed(&self, page: u64) -> bool {
        let mut blocks = self.blocks.borrow_mut();
        let Some(b) = blocks.get_mut(&(page / BLOCK)) else { return false };
        let unused = b.ahead >> (page % BLOCK) & 1 == 1;
        b.pages[(page % BLOCK) as usize] = None;
        b.ahead &= !(1 << (page % BLOCK));
        if b.is_idle() {
            blocks.remove(&(page / BLOCK));
        }
        unused
    }
    /// Drops the clean pages that lie within the extent whole.
    pub(crate) fn drop_clean(&self, extent: Extent) {
        let (first, end) = (extent.start.div_ceil(PAGE), extent.end / PAGE);
        let mut gone = Vec::new();
        self.blocks.borrow_mut().retain(|key, b| {
            let clean = mask_of(*key, first, end) & !(b.dirty | b.writeback | b.loading);
            b.ahead &= !clean;
            for (i, p) in b.pages.iter_mut().enumerate() {
                if clean >> i & 1 == 1 {
                    gone.extend(p.take());
                }
            }
            !b.is_idle()
        });
        for cached in &gone {
            self.cache.remove(cached.id);
        }
    }

    /// Whether a change of one of the pages is under way.
    pub(crate) fn is_changing(&self, first: u64, end: u64) -> bool {
        self.changes.borrow().iter().any(|c| c.0 < end && first < c.1)
    }
    /// Waits until no change of the pages is under way.
    pub(crate) async fn settled(&self, first: u64, end: u64) {
        while self.is_changing(first, end) {
            self.changed.wait().await;
        }
    }
    /// Begins a change of the pages that the extent touches, after all others of them. The caller holds a lock over them.
    pub(crate) async fn change(self: &Rc<Self>, extent: Extent) -> Change {
        let pages = page_range(extent);
        self.settled(pages.0, pages.1).await;
        self.changes.borrow_mut().push(pages);
        Change { object: self.clone(), pages }
    }

    /// Claims the pages of `first..end` that are neither cached nor on their way nor being changed, as runs of at most
    /// `max` pages.
    pub(crate) fn claim_missing(&self, first: u64, end: u64, max: u64) -> Vec<Claimed> {
        let number = self.next_claim.get();
        self.next_claim.set(number.wrapping_add(1));
        let mut runs: Vec<Claimed> = Vec::new();
        let mut blocks = self.blocks.borrow_mut();
        for page in first..end {
            let bit = page % BLOCK;
            let block = blocks.entry(page / BLOCK).or_insert_with(Block::new);
            if block.pages[bit as usize].is_some() || block.loading >> bit & 1 == 1 || self.is_changing(page, page + 1)
            {
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
    /// Ends a claim without pages (failure, or nothing there).
    pub(crate) fn unclaim(&self, claim: Claimed) {
        let mut blocks = self.blocks.borrow_mut();
        for page in claim.first..claim.end {
            if let Some(b) = blocks.get_mut(&(page / BLOCK)) {
                if b.claims[(page % BLOCK) as usize] == claim.number {
                    b.loading &= !(1 << (page % BLOCK));
                }
                if b.is_idle() {
                    blocks.remove(&(page / BLOCK));
                }
            }
        }
        drop(blocks);
        self.changed.notify();
    }
    /// Ends a claim with a page. Whoever dropped the claim meanwhile (truncate, lost lock) wins: the frame is ignored, be
    /// it that the page was claimed anew since.
    pub(crate) fn arrived(self: &Rc<Self>, claim: Claimed, page: u64, frame: FrameRun, access: PageAccess) {
        let bit = page % BLOCK;
        {
            let mut blocks = self.blocks.borrow_mut();
            let Some(b) = blocks.get_mut(&(page / BLOCK)) else { return };
            if b.loading >> bit & 1 == 0 || b.claims[bit as usize] != claim.number {
                return;
            }
            b.loading &= !(1 << bit);
        }
        self.put(page, frame, access);
    }
    /// Caches a frame as the page's bytes. False when there is no room.
    fn put(self: &Rc<Self>, page: u64, frame: FrameRun, access: PageAccess) -> bool {
        let Some(id) = self.cache.insert(self, page, self.of_page(page, access)) else { return false };
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks.entry(page / BLOCK).or_insert_with(Block::new);
        if access.readahead {
            block.ahead |= 1 << (page % BLOCK);
        }
        if let Some(old) = block.pages[(page % BLOCK) as usize].replace(Cached { frame, id }) {
            drop(blocks);
            self.cache.remove(old.id);
        }
        true
    }

    /// Copies `data` to `at` within the page and marks it dirty. `whole`: the page needs no earlier bytes (it is
    /// covered entirely, or lies behind the end). Gives whether it was clean before; `None` when the page must be
    /// loaded first, `Err` when there is no frame.
    pub(crate) fn write_page(
        self: &Rc<Self>,
        page: u64,
        at: usize,
        data: &[u8],
        whole: bool,
        access: PageAccess,
        frames: &mut NewFrames,
    ) -> Result<Option<bool>, FsError> {
        let bit = page % BLOCK;
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks.entry(page / BLOCK).or_insert_with(Block::new);
        if let Some(cached) = &mut block.pages[bit as usize] {
            if !cached.frame.is_unique() {
                let mut fresh = frames.next().ok_or(FsError::NoMemory)?;
                let bytes = fresh.bytes_mut().expect("a fresh frame has one owner");
                if !(at == 0 && data.len() == FRAME_BYTES) {
                    bytes.copy_from_slice(cached.frame.bytes());
                }
                cached.frame = fresh;
            }
            let bytes = cached.frame.bytes_mut().expect("made unique above");
            bytes[at..at + data.len()].copy_from_slice(data);
            self.cache.touch(cached.id, self.of_page(page, access));
        } else {
            if !whole {
                return Ok(None);
            }
            let mut fresh = frames.next().ok_or(FsError::NoMemory)?;
            let bytes = fresh.bytes_mut().expect("a fresh frame has one owner");
            bytes[..at].fill(0);
            bytes[at..at + data.len()].copy_from_slice(data);
            bytes[at + data.len()..].fill(0);
            block.loading &= !(1 << bit);
            drop(blocks);
            if !self.put(page, fresh, access) {
                return Err(FsError::NoMemory);
            }
            blocks = self.blocks.borrow_mut();
        }
        let block = blocks.get_mut(&(page / BLOCK)).expect("the page was put above");
        block.ahead &= !(1 << bit);
        let was_clean = block.dirty >> bit & 1 == 0;
        if was_clean {
            block.dirty |= 1 << bit;
            self.dirty_pages.set(self.dirty_pages.get() + 1);
            *self.dirty_blocks.borrow_mut().entry(page / BLOCK).or_insert(0) += 1;
        }
        Ok(Some(was_clean))
    }

    /// A dirty page took grant.
    pub(crate) fn page_took_grant(&self, page: u64) {
        if let Some(b) = self.blocks.borrow_mut().get_mut(&(page / BLOCK)) {
            b.granted |= 1 << (page % BLOCK) & b.dirty;
        }
    }

    /// Whether a dirty page took grant.
    pub(crate) fn has_grant(&self, page: u64) -> bool {
        self.blocks.borrow().get(&(page / BLOCK)).is_some_and(|b| b.granted >> (page % BLOCK) & 1 == 1)
    }

    /// The first dirty page of the extent that is not being written.
    pub(crate) fn first_dirty(&self, extent: Extent) -> Option<u64> {
        let (first, end) = page_range(extent);
        let blocks = self.blocks.borrow();
        let dirty = self.dirty_blocks.borrow();
        dirty.range(first / BLOCK..=(end.saturating_sub(1)) / BLOCK).find_map(|(key, _)| {
            let b = blocks.get(key)?;
            let ready = b.dirty & !b.writeback & mask_of(*key, first, end);
            (ready != 0).then(|| key * BLOCK + u64::from(ready.trailing_zeros()))
        })
    }

    /// Takes up to `max` dirty pages of `extent` for a write RPC: those that took grant, or those that did not, as the
    /// first one did. What has grant was promised its space, and must not fail with what was not. Pages that are being
    /// written already are left for later, so that two versions of one page never race. Pages behind the object's end are
    /// dropped instead.
    pub(crate) fn take_dirty(&self, extent: Extent, max: usize) -> (Option<WriteOut>, Dropped) {
        let (first, end) = page_range(extent);
        let (mut out, mut dropped) = (WriteOut::default(), Dropped::default());
        let mut kind = None;
        let mut blocks = self.blocks.borrow_mut();
        let keys: Vec<u64> = self
            .dirty_blocks
            .borrow()
            .range(first / BLOCK..=(end.saturating_sub(1)) / BLOCK)
            .map(|(k, _)| *k)
            .collect();
        'all: for key in keys {
            let Some(block) = blocks.get_mut(&key) else { continue };
            let mut ready = block.dirty & !block.writeback;
            while ready != 0 {
                let bit = u64::from(ready.trailing_zeros());
                ready &= ready - 1;
                let page = key * BLOCK + bit;
                if page < first || page >= end {
                    continue;
                }
                let start = page * PAGE;
                let len = self.size.get().saturating_sub(start).min(PAGE);
                let granted = (block.granted >> bit & 1) as usize;
                if len > 0 && *kind.get_or_insert(granted) != granted {
                    continue;
                }
                block.dirty &= !(1 << bit);
                block.granted &= !(1 << bit);
                self.dirty_pages.set(self.dirty_pages.get() - 1);
                self.undirty(key);
                if len == 0 {
                    dropped.dirty += 1;
                    dropped.granted += granted;
                    if let Some(gone) = block.pages[bit as usize].take() {
                        self.cache.remove(gone.id);
                    }
                    continue;
                }
                out.granted += granted;
                block.writeback |= 1 << bit;
                self.writeback_pages.set(self.writeback_pages.get() + 1);
                let frame = block.pages[bit as usize].as_ref().expect("a dirty page is cached").frame.clone();
                out.bulk.push(Segment { run: frame, offset: 0, len: len as u32 });
                match out.extents.last_mut() {
                    Some(e) if e.end == start => e.end = start + len,
                    _ => out.extents.push(Extent::at(start, len)),
                }
                out.pages.push(page);
                if out.pages.len() == max {
                    break 'all;
                }
            }
        }
        ((!out.pages.is_empty()).then_some(out), dropped)
    }
    fn undirty(&self, key: u64) {
        let mut dirty = self.dirty_blocks.borrow_mut();
        if let Some(n) = dirty.get_mut(&key) {
            *n -= 1;
            if *n == 0 {
                dirty.remove(&key);
            }
        }
    }
    /// A write RPC ended.
    pub(crate) fn written(&self, pages: &[u64]) {
        let mut blocks = self.blocks.borrow_mut();
        for page in pages {
            if let Some(b) = blocks.get_mut(&(page / BLOCK)) {
                if b.writeback >> (page % BLOCK) & 1 == 1 {
                    b.writeback &= !(1 << (page % BLOCK));
                    self.writeback_pages.set(self.writeback_pages.get() - 1);
                }
                if b.is_idle() {
                    blocks.remove(&(page / BLOCK));
                }
            }
        }
        drop(blocks);
        self.changed.notify();
    }
    /// These pages could not be written out: whoever reads sees what the server has, here as elsewhere.
    pub(crate) fn not_written(self: &Rc<Self>, pages: &[u64]) {
        self.written(pages);
        for page in pages {
            self.forget_clean(*page);
        }
        self.told_size(self.stored.get());
    }
    /// Forgets a page, unless it was written anew.
    pub(crate) fn forget_clean(self: &Rc<Self>, page: u64) {
        let extent = Extent::at(page * PAGE, PAGE);
        if !self.is_unwritten(extent) {
            let dropped = self.drop_pages(extent, false);
            debug_assert_eq!(dropped, Dropped::default(), "a page that is written out");
        }
    }
    /// Whether a page of the extent is dirty or being written.
    pub(crate) fn is_unwritten(&self, extent: Extent) -> bool {
        if self.unwritten_pages() == 0 {
            return false;
        }
        self.any(extent, |b, mask| (b.dirty | b.writeback) & mask != 0)
    }
    /// Tells readahead of the file's opens about pages (ascending) that left the cache.
    pub(crate) fn tell_readahead(&self, pages: &[u64], call: fn(Extent) -> Call) {
        if pages.is_empty() {
            return;
        }
        let Some(inode) = self.inode.borrow().upgrade() else { return };
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            inode.tell_readahead(self.stripe.get(), Extent::at(run[0] * PAGE, run.len() as u64 * PAGE), call);
        }
    }
    fn any(&self, extent: Extent, test: impl Fn(&Block, u64) -> bool) -> bool {
        let (first, end) = page_range(extent);
        self.blocks.borrow().iter().any(|(key, b)| test(b, mask_of(*key, first, end)))
    }

    /// Drops every page of the extent, dirty ones too; pages on their way will not be kept. Gives the dirty pages dropped.
    /// Partial pages at the ends are dropped whole unless `zero_tail`, when bytes from `extent.start` to its page's end are
    /// zeroed instead.
    pub(crate) fn drop_pages(self: &Rc<Self>, extent: Extent, zero_tail: bool) -> Dropped {
        let (mut first, end) = page_range(extent);
        if zero_tail && !extent.start.is_multiple_of(PAGE) {
            self.zero_from(extent.start);
            first += 1;
        }
        self.drop_where(|key, _| mask_of(key, first, end))
    }
    /// [`Object::drop_pages`] of what no other lock covers: unwritten pages stay where one of `writing` does, others where
    /// one of `all` does.
    pub(crate) fn drop_uncovered(self: &Rc<Self>, extent: Extent, writing: &[Extent], all: &[Extent]) -> Dropped {
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
    fn drop_where(self: &Rc<Self>, choose: impl Fn(u64, &Block) -> u64) -> Dropped {
        let mut gone = Vec::new();
        let mut lost = Dropped::default();
        let mut ahead = Vec::new();
        {
            let mut blocks = self.blocks.borrow_mut();
            let mut empty = Vec::new();
            for (key, b) in blocks.iter_mut() {
                let mask = choose(*key, b);
                if mask == 0 {
                    continue;
                }
                ahead.extend(bits((b.ahead | b.loading) & mask).map(|bit| key * BLOCK + bit));
                b.loading &= !mask;
                let dirty = (b.dirty & mask).count_ones() as usize;
                for _ in 0..dirty {
                    self.undirty(*key);
                }
                lost.dirty += dirty;
                lost.granted += (b.granted & mask).count_ones() as usize;
                b.dirty &= !mask;
                b.granted &= !mask;
                b.ahead &= !mask;
                self.writeback_pages.set(self.writeback_pages.get() - (b.writeback & mask).count_ones() as usize);
                b.writeback &= !mask;
                for (i, p) in b.pages.iter_mut().enumerate() {
                    if mask >> i & 1 == 1
                        && let Some(cached) = p.take()
                    {
                        gone.push(cached);
                    }
                }
                if b.is_idle() {
                    empty.push(*key);
                }
            }
            for key in empty {
                blocks.remove(&key);
            }
        }
        self.dirty_pages.set(self.dirty_pages.get() - lost.dirty);
        for cached in &gone {
            self.cache.remove(cached.id);
        }
        self.changed.notify();
        ahead.sort_unstable();
        self.tell_readahead(&ahead, Call::LockLost);
        lost
    }
    fn zero_from(&self, offset: u64) {
        let (page, at) = (offset / PAGE, (offset % PAGE) as usize);
        let mut blocks = self.blocks.borrow_mut();
        let Some(block) = blocks.get_mut(&(page / BLOCK)) else { return };
        block.loading &= !(1 << (page % BLOCK));
        let slot = &mut block.pages[(page % BLOCK) as usize];
        let Some(cached) = slot else { return };
        if !cached.frame.is_unique() {
            let Some(mut fresh) = self.cache.pool().alloc_run(1) else {
                // No frame to copy to: a clean page may simply go, it is read again with its zeros.
                if block.dirty >> (page % BLOCK) & 1 == 0
                    && let Some(gone) = slot.take()
                {
                    self.cache.remove(gone.id);
                }
                return;
            };
            fresh.bytes_mut().expect("a fresh frame has one owner").copy_from_slice(cached.frame.bytes());
            cached.frame = fresh;
        }
        cached.frame.bytes_mut().expect("made unique above")[at..].fill(0);
    }
}

/// Pages that the extent touches: first, one past the last.
pub(crate) fn page_range(extent: Extent) -> (u64, u64) {
    (extent.start / PAGE, extent.end.div_ceil(PAGE))
}

/// One past the last page that the extent holds whole.
fn whole_end(extent: Extent) -> u64 {
    if extent.end == u64::MAX { u64::MAX } else { extent.end / PAGE }
}

/// Numbers of the bits that are set.
fn bits(mut mask: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
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
mod tests {
    use cache::frames::FramePool;
    use types::Fid;

    use super::*;

    fn object() -> Rc<Object> {
        let cache = PageCache::new(FramePool::new(16 << 20), 4 << 20, "lru", &cache::CacheConfig::new(1)).unwrap();
        Object::new(ObjectId(Fid::new(1, 1)), 0, cache)
    }
    fn frame(object: &Object, byte: u8) -> FrameRun {
        let mut run = object.cache.pool().alloc_run(1).unwrap();
        run.bytes_mut().unwrap().fill(byte);
        run
    }
    fn write(object: &Rc<Object>, page: u64, grant: bool) {
        let mut frames = NewFrames::new(object.cache.pool(), 1);
        assert_eq!(object.write_page(page, 0, &[7; 4096], true, PageAccess::fine(0), &mut frames), Ok(Some(true)));
        object.grow((page + 1) * PAGE);
        if grant {
            object.page_took_grant(page);
        }
    }
    fn byte_of(object: &Object, page: u64) -> Option<u8> {
        object.get(page, None).map(|f| f.bytes()[0])
    }

    #[test]
    fn what_an_older_claim_brings_is_ignored_although_the_page_was_claimed_anew() {
        let o = object();
        o.told_size(100 * PAGE);
        let access = PageAccess::fine(0);
        let old = o.claim_missing(10, 14, 64)[0];
        assert_eq!(o.drop_pages(Extent::new(11 * PAGE, 13 * PAGE), false), Dropped::default());
        let new = o.claim_missing(10, 14, 64)[0];
        assert_eq!((new.first, new.end), (11, 13));
        for page in 10..14 {
            o.arrived(old, page, frame(&o, 1), access);
        }
        assert_eq!([10, 11, 12, 13].map(|p| byte_of(&o, p)), [Some(1), None, None, Some(1)]);
        o.unclaim(old);
        assert!(o.is_loading(11) && o.is_loading(12), "the later claim goes on");
        o.arrived(new, 11, frame(&o, 2), access);
        o.unclaim(new);
        assert_eq!((byte_of(&o, 11), byte_of(&o, 12), o.is_loading(12)), (Some(2), None, false));
        // A page that was written, written out and reclaimed while a load of it was under way.
        let old = o.claim_missing(20, 21, 64)[0];
        write(&o, 20, false);
        let (out, _) = o.take_dirty(Extent::ALL, 10);
        o.written(&out.unwrap().pages);
        o.forget_clean(20);
        let new = o.claim_missing(20, 21, 64)[0];
        o.arrived(old, 20, frame(&o, 3), access);
        assert_eq!(byte_of(&o, 20), None);
        o.arrived(new, 20, frame(&o, 4), access);
        assert_eq!(byte_of(&o, 20), Some(4));
    }

    #[test]
    fn pages_that_are_being_changed_are_not_loaded_and_changes_of_one_page_take_turns() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let (o, rt) = (object(), world.rt());
        o.told_size(100 * PAGE);
        world.run(async {
            let change = o.change(Extent::new(5 * PAGE + 100, 7 * PAGE)).await;
            let runs: Vec<_> = o.claim_missing(3, 9, 64).iter().map(|c| (c.first, c.end)).collect();
            assert_eq!(runs, [(3, 5), (7, 9)]);
            let elsewhere = o.change(Extent::at(20 * PAGE, 1)).await;
            let wait = types::Duration::from_secs(1);
            assert!(rt.timeout(wait, o.change(Extent::from(6 * PAGE))).await.is_none());
            assert!(rt.timeout(wait, o.settled(0, 6)).await.is_none());
            assert!(rt.timeout(wait, o.settled(0, 5)).await.is_some());
            drop(change);
            o.settled(0, 10).await;
            drop(elsewhere);
            drop(o.change(Extent::from(6 * PAGE)).await);
            assert!(!o.is_changing(0, u64::MAX), "each change ends");
        });
    }

    #[test]
    fn dirty_pages_that_are_dropped_are_told_with_the_grant_that_they_took() {
        let o = object();
        for page in 0..8 {
            write(&o, page, page % 2 == 0);
        }
        // Being written and dirty anew: the write that is under way has its own account.
        let (out, _) = o.take_dirty(Extent::new(0, 2 * PAGE), 10);
        assert_eq!(out.map(|w| (w.pages, w.granted)), Some((vec![0], 1)), "the next page took none");
        write(&o, 0, false);
        assert_eq!(o.drop_pages(Extent::new(0, 3 * PAGE), false), Dropped { dirty: 3, granted: 1 });
        // Behind the end nothing is written: it goes, and is told.
        o.set_size(6 * PAGE);
        let (out, dropped) = o.take_dirty(Extent::ALL, 10);
        assert_eq!(out.map(|w| (w.pages, w.granted)), Some((vec![3, 5], 0)));
        assert_eq!(dropped, Dropped { dirty: 2, granted: 1 });
        let (out, _) = o.take_dirty(Extent::ALL, 10);
        assert_eq!(out.map(|w| (w.pages, w.granted)), Some((vec![4], 1)));
        assert_eq!((o.dirty_pages(), o.is_cached(6), o.is_cached(7)), (0, false, false));
    }

    #[test]
    fn pages_stay_when_another_lock_covers_them() {
        let o = object();
        o.told_size(100 * PAGE);
        for page in [1, 2, 3] {
            write(&o, page, true);
        }
        let claim = o.claim_missing(4, 7, 64)[0];
        for page in 4..7 {
            o.arrived(claim, page, frame(&o, 1), PageAccess::fine(0));
        }
        // Another write lock over page 2, on its way out, and half of page 3; a read lock over 5 and 6.
        let (writing, all) = ([Extent::new(2 * PAGE, 3 * PAGE + 7)], [Extent::new(5 * PAGE, 90 * PAGE)]);
        let dropped = o.drop_uncovered(Extent::new(0, 6 * PAGE), &writing, &all);
        assert_eq!(dropped, Dropped { dirty: 2, granted: 2 });
        let left: Vec<u64> = (0..10).filter(|p| o.is_cached(*p)).collect();
        assert_eq!((left, o.dirty_pages()), (vec![2, 5, 6], 1));
    }

    #[test]
    fn unwritten_pages_keep_no_size_alive_that_lies_behind_them() {
        let cache = PageCache::new(FramePool::new(16 << 20), 4 << 20, "lru", &cache::CacheConfig::new(1)).unwrap();
        let object = Object::new(ObjectId(Fid::new(1, 1)), 0, cache);
        let write = |page: u64, len: usize| {
            let mut frames = NewFrames::new(object.cache.pool(), 1);
            let done = object.write_page(page, 0, &vec![7; len], true, PageAccess::fine(0), &mut frames);
            object.grow(page * PAGE + len as u64);
            assert_eq!(done, Ok(Some(true)));
        };
        object.told_size(300_000);
        write(70, 4096);
        assert_eq!((object.size(), object.unwritten_end()), (300_000, 71 * PAGE));
        write(90, 100);
        assert_eq!((object.size(), object.unwritten_end()), (90 * PAGE + 100, 90 * PAGE + 100));
        let (out, dropped) = object.take_dirty(Extent::from(80 * PAGE), 10);
        let out = out.unwrap();
        assert_eq!(dropped, Dropped::default());
        assert_eq!(object.unwritten_end(), 90 * PAGE + 100, "on its way is not there yet");
        object.written(&out.pages);
        object.told_size(0);
        assert_eq!((object.size(), object.unwritten_end()), (71 * PAGE, 71 * PAGE));
    }
}
