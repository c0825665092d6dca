//! One OST object as a client sees it: the frames of its cached pages. Which pages are valid, dirty, on their way or being
//! changed, and how long the object is known to be, is the datapath room's ([`datapath::Pages`]); here bytes move.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use ::readahead::record::Call;
use cache::PageAccess;
use datapath::{Gone, Moment, Pages, WriteOut};
use frames::{Bulk, FRAME_BYTES, FrameRun, Segment};
use ldlm::{LockCookie, ResourceId};
use rt::sync::{Event, Semaphore};
use types::{Extent, FsError, Instant, ObjectId, Transno, WallTime};
use wire::lock::CUT_AMID;

pub(crate) use datapath::{Claimed, page_range};

use crate::in_use::InUse;
use crate::pages::{NewFrames, PageCache, PageOwner};

const PAGE: u64 = FRAME_BYTES as u64;

/// A cached page: its bytes, and its number in the page cache.
pub(crate) struct Cached {
    frame: FrameRun,
    id: u32,
}

/// A time that nothing has set: before every other.
pub(crate) const UNSET: WallTime = WallTime(i64::MIN);

/// The file that an object belongs to, as far as an object speaks to it.
pub(crate) trait OfFile: 'static {
    /// Whether a program has it open.
    fn is_open(&self) -> bool;
    /// Readahead of the file's opens hears of bytes of one of its objects that left the cache.
    fn tell_readahead(&self, stripe: u16, object: Extent, call: fn(Extent) -> Call);
}

/// An object's cache; `F`: the file.
pub(crate) struct Object<F> {
    pub(crate) id: ObjectId,
    /// Index of its OST in the client's table.
    pub(crate) ost: usize,
    pub(crate) inode: RefCell<Weak<F>>,
    /// Which stripe of the file it is.
    pub(crate) stripe: Cell<u16>,
    cache: Rc<PageCache>,
    pages: RefCell<Pages<Cached>>,
    pub(crate) mtime: Cell<WallTime>,
    pub(crate) blocks512: Cell<u64>,
    /// The last transaction of the OST that changed its data or size at this client's request.
    pub(crate) changed_by: Cell<Transno>,
    /// The lock over all of it under which that was.
    pub(crate) changed_under: Cell<Option<LockCookie>>,
    /// The lock over all of it since which nothing that others wrote before is missing on the OST's stable storage.
    pub(crate) others_synced_under: Cell<Option<LockCookie>>,
    /// The greatest mark of a cut that an answer brought.
    pub(crate) cut_mark: Cell<u64>,
    /// The lock that brought one last, and which.
    mark_with: Cell<Option<(LockCookie, u64)>>,
    /// How often this client made it shorter.
    cuts_here: Cell<u64>,
    /// No space is reserved behind its end, as long as the locks stay that are held there now.
    ends_bare: Cell<bool>,
    /// How often space was reserved in it, begun and ended.
    reservations: Cell<u64>,
    /// This client makes it shorter at its OST, and does not know yet whether that is done.
    being_cut: Cell<bool>,
    /// Pages (first, one past the last) that reads wait for: they stay until they were read, wherever the policy puts them.
    wanted: RefCell<Vec<(u64, u64)>>,
    /// A task writes out what DONTNEED named; with what was named since then.
    pub(crate) flush_advised: Cell<Option<Extent>>,
    /// A load, a write-out or a change ended.
    pub(crate) changed: Event,
    /// Until when no lock is asked for ahead of a reader: another client's stood in the way of one.
    pub(crate) no_lock_ahead_until: Cell<Instant>,
    /// One append at a time: the locks that keep other clients away are shared by all programs of this one.
    pub(crate) appending: Rc<Semaphore>,
}

/// A change of pages at the OST by something that goes past the cache: a cut, a hole, zeros, an uncached write. While it
/// lasts nobody loads these pages or writes to them here: what was read before it would outlive it in the cache.
pub(crate) struct Change<F> {
    object: Rc<Object<F>>,
    pages: (u64, u64),
}
impl<F> Drop for Change<F> {
    fn drop(&mut self) {
        self.object.pages.borrow_mut().on_changed(self.pages.0, self.pages.1);
        self.object.changed.notify();
    }
}

/// A cut of the object at its OST; one at a time, for it is a [`Change`], too.
pub(crate) struct Cutting<F>(Rc<Object<F>>);
impl<F> Drop for Cutting<F> {
    fn drop(&mut self) {
        self.0.being_cut.set(false);
        self.0.cuts_here.set(self.0.cuts_here.get() + 1);
        self.0.changed.notify();
    }
}

/// A read of pages that waits for some of them: until this goes none leaves to make room. A policy may put what is read in large
/// pieces where it leaves first (FGF-LRU does), and the first pages would be gone when the last ones come.
pub(crate) struct Wanted<'a, F> {
    object: &'a Object<F>,
    pages: (u64, u64),
}
impl<F> Drop for Wanted<'_, F> {
    fn drop(&mut self) {
        let mut wanted = self.object.wanted.borrow_mut();
        if let Some(at) = wanted.iter().position(|pages| *pages == self.pages) {
            wanted.swap_remove(at);
        }
    }
}

impl<F: OfFile> Object<F> {
    pub(crate) fn new(id: ObjectId, ost: usize, cache: Rc<PageCache>) -> Rc<Object<F>> {
        Rc::new(Object {
            id,
            ost,
            inode: RefCell::new(Weak::new()),
            stripe: Cell::new(0),
            cache,
            pages: RefCell::default(),
            mtime: Cell::new(UNSET),
            blocks512: Cell::new(0),
            changed_by: Cell::default(),
            changed_under: Cell::default(),
            others_synced_under: Cell::default(),
            cut_mark: Cell::default(),
            mark_with: Cell::default(),
            cuts_here: Cell::default(),
            ends_bare: Cell::default(),
            reservations: Cell::default(),
            being_cut: Cell::default(),
            wanted: RefCell::default(),
            flush_advised: Cell::default(),
            changed: Event::new(),
            no_lock_ahead_until: Cell::new(Instant(0)),
            appending: Rc::new(Semaphore::new(1)),
        })
    }
    /// A request's access, to one of its pages.
    fn of_page(&self, page: u64, access: PageAccess) -> PageAccess {
        PageAccess { block: self.block_id(page), ..access }
    }
    pub(crate) fn resource(&self) -> ResourceId {
        ResourceId::extent(self.id.0)
    }
    /// What the room knows of the pages, for a step that changes an OST's books as well. The borrow ends before anything else
    /// is called.
    pub(crate) fn with_pages<T>(&self, step: impl FnOnce(&mut Pages<Cached>) -> T) -> T {
        step(&mut self.pages.borrow_mut())
    }
    pub(crate) fn size(&self) -> u64 {
        self.pages.borrow().size()
    }
    /// The object was cut or extended to this size at its OST.
    pub(crate) fn set_size(&self, size: u64) {
        self.pages.borrow_mut().set_size(size);
    }
    /// It is being cut at its OST until this goes; what this client says of its size is of before or after.
    pub(crate) fn cutting(self: &Rc<Self>) -> Cutting<F> {
        self.being_cut.set(true);
        Cutting(self.clone())
    }
    /// A change of it that was sent under `lock`, the one over all of it, was answered.
    pub(crate) fn was_changed(&self, transaction: Transno, lock: Option<LockCookie>) {
        if transaction > self.changed_by.get() {
            self.changed_by.set(transaction);
            self.changed_under.set(lock);
        }
    }
    /// An answer told this mark of a cut.
    pub(crate) fn mark_told(&self, mark: u64) {
        if mark != CUT_AMID {
            self.cut_mark.set(self.cut_mark.get().max(mark));
        }
    }
    /// A lock came that will be held, and this mark of a cut with it; 0: none was told.
    pub(crate) fn mark_came(&self, lock: LockCookie, mark: u64) {
        self.mark_told(mark);
        if mark != 0 && mark != CUT_AMID {
            self.mark_with.set(Some((lock, mark)));
        }
    }
    /// The mark that a lock over its end brought: as long as that is held nobody else makes it shorter, so that the mark is that of now.
    pub(crate) fn mark_under(&self, lock: LockCookie) -> Option<u64> {
        self.mark_with.get().filter(|(with, _)| *with == lock).map(|(_, mark)| mark)
    }
    pub(crate) fn cuts_here(&self) -> u64 {
        self.cuts_here.get()
    }
    /// A lock came, with what the OST says that it takes. Whether others have reserved space behind its end meanwhile only an object that takes
    /// none tells; and of what was reserved here the OST may not have heard then.
    pub(crate) fn lock_came_with(&self, blocks512: u64) {
        self.ends_bare.set(blocks512 == 0 && self.reservations.get() == 0);
    }
    /// Space is being reserved in it, or that has ended.
    pub(crate) fn reserves(&self) {
        self.ends_bare.set(false);
        self.reservations.set(self.reservations.get() + 1);
    }
    pub(crate) fn reservations(&self) -> u64 {
        self.reservations.get()
    }
    /// It was cut, and so many [`Object::reservations`] had begun and ended before that.
    pub(crate) fn was_cut(&self, reservations: u64) {
        self.ends_bare.set(reservations == self.reservations.get());
    }
    /// Whether a cut to its own length, under a lock of what lies behind, would give nothing back.
    pub(crate) fn ends_bare(&self) -> bool {
        self.ends_bare.get()
    }
    /// Waits until no cut is on its way of which nobody here knows whether it is done.
    pub(crate) async fn not_being_cut(&self) {
        loop {
            let changed = self.changed.wait();
            if !self.being_cut.get() {
                return;
            }
            changed.await;
        }
    }
    /// What is known of its size, for answers to what is asked from now on.
    pub(crate) fn moment(&self) -> Moment {
        self.pages.borrow().moment()
    }
    /// Bytes up to `end` are in dirty pages.
    pub(crate) fn grow(&self, end: u64) {
        self.pages.borrow_mut().on_grown(end);
    }
    /// The OST has carried out something that made the object at least this long.
    pub(crate) fn stored_to(&self, end: u64) {
        self.pages.borrow_mut().on_stored(end);
    }
    /// It reaches to `end` for sure while locks are held that reach there.
    pub(crate) fn assured_to(&self, end: u64) {
        self.pages.borrow_mut().on_assured(end);
    }
    /// Bytes that the OST has, as far as it has said.
    pub(crate) fn stored(&self) -> u64 {
        self.pages.borrow().stored()
    }
    /// Bytes that it reaches for sure.
    pub(crate) fn assured(&self) -> u64 {
        self.pages.borrow().assured()
    }
    /// A lock goes; those that are left reach to `reach`.
    pub(crate) fn lock_gone(&self, reach: u64) {
        self.pages.borrow_mut().on_lock_gone(reach);
    }
    /// Whether somebody here has the file open.
    pub(crate) fn is_open(&self) -> bool {
        self.inode.borrow().upgrade().is_some_and(|i| i.is_open())
    }
    pub(crate) fn dirty_pages(&self) -> usize {
        self.pages.borrow().dirty_pages()
    }
    /// Dirty or being written.
    pub(crate) fn unwritten_pages(&self) -> usize {
        self.pages.borrow().unwritten_pages()
    }
    pub(crate) fn note_use(&self, into: &mut InUse) {
        let pages = self.pages.borrow();
        into.add("unwritten pages", pages.unwritten_pages() as u64);
        into.add("claimed pages", pages.loading_pages());
        into.add("changes of objects", pages.changes() as u64);
        into.add("reads that wait for pages", self.wanted.borrow().len() as u64);
        into.add_if("cuts of objects", self.being_cut.get());
        into.add_if("turns to append", self.appending.available() != 1);
    }
    pub(crate) fn has_pages(&self) -> bool {
        !self.pages.borrow().is_empty()
    }
    /// End of the last unwritten page, for what a fresh size must not forget.
    pub(crate) fn unwritten_end(&self) -> u64 {
        self.pages.borrow().unwritten_end()
    }

    /// Reference to a cached page.
    pub(crate) fn get(&self, page: u64, access: Option<PageAccess>) -> Option<FrameRun> {
        let Some(access) = access else { return self.pages.borrow().get(page).map(|c| c.frame.clone()) };
        let mut pages = self.pages.borrow_mut();
        let cached = pages.on_used(page)?;
        self.cache.touch(cached.id, self.of_page(page, access));
        Some(cached.frame.clone())
    }
    /// A write of so many of its pages ended.
    pub(crate) fn note_written_out(&self, pages: usize) {
        self.cache.note_written_out(pages);
    }
    pub(crate) fn is_cached(&self, page: u64) -> bool {
        self.pages.borrow().is_cached(page)
    }
    /// How many pages of `first..end` are cached.
    pub(crate) fn cached_pages(&self, first: u64, end: u64) -> u64 {
        let pages = self.pages.borrow();
        (first..end).filter(|p| pages.is_cached(*p)).count() as u64
    }
    pub(crate) fn is_loading(&self, page: u64) -> bool {
        self.pages.borrow().is_loading(page)
    }
    /// Drops the clean pages that lie within the extent whole.
    pub(crate) fn drop_clean(&self, extent: Extent) {
        let gone = self.pages.borrow_mut().drop_clean(extent);
        gone.into_iter().for_each(|cached| self.cache.remove(cached.id));
    }

    /// A read waits for these pages.
    pub(crate) fn wanted(&self, first: u64, end: u64) -> Wanted<'_, F> {
        self.wanted.borrow_mut().push((first, end));
        Wanted { object: self, pages: (first, end) }
    }
    /// Whether a change of one of the pages is under way.
    pub(crate) fn is_changing(&self, first: u64, end: u64) -> bool {
        self.pages.borrow().is_changing(first, end)
    }
    /// Waits until no change of the pages is under way.
    pub(crate) async fn settled(&self, first: u64, end: u64) {
        while self.is_changing(first, end) {
            self.changed.wait().await;
        }
    }
    /// Begins a change of the pages that the extent touches, after all others of them. The caller holds a lock over them.
    pub(crate) async fn change(self: &Rc<Self>, extent: Extent) -> Change<F> {
        let pages = page_range(extent);
        loop {
            let changed = self.changed.wait();
            if self.with_pages(|p| p.on_change(pages.0, pages.1)) {
                return Change { object: self.clone(), pages };
            }
            changed.await;
        }
    }

    /// Claims the pages of `first..end` that are neither cached nor on their way nor being changed, as runs of at most
    /// `max` pages.
    pub(crate) fn claim_missing(&self, first: u64, end: u64, max: u64) -> Vec<Claimed> {
        self.pages.borrow_mut().on_missing(first, end, max)
    }
    /// Ends a claim: what it did not bring will not come.
    pub(crate) fn unclaim(&self, claim: Claimed) {
        self.pages.borrow_mut().on_unclaimed(claim);
        self.changed.notify();
    }
    /// A page of a claim arrived. Whoever dropped the claim meanwhile (truncate, lost lock) wins.
    pub(crate) fn arrived(self: &Rc<Self>, claim: Claimed, page: u64, frame: FrameRun, access: PageAccess) {
        if self.with_pages(|p| p.on_arrived(claim, page))
            && let Some(frame) = self.merged(page, frame)
        {
            self.put(page, frame, access);
        }
    }
    /// The page as it arrived, but for the bytes that were written here before; `None` without a frame for them.
    fn merged(&self, page: u64, mut arrived: FrameRun) -> Option<FrameRun> {
        let pages = self.pages.borrow();
        let Some((known, held)) = pages.part(page).zip(pages.held(page)) else { return Some(arrived) };
        if !arrived.is_unique() {
            let mut copy = self.cache.pool().alloc_run(1)?;
            copy.bytes_mut().expect("a fresh frame has one owner").copy_from_slice(arrived.bytes());
            arrived = copy;
        }
        let known = known.start as usize..known.end as usize;
        let bytes = arrived.bytes_mut().expect("made unique above");
        bytes[known.clone()].copy_from_slice(&held.frame.bytes()[known]);
        Some(arrived)
    }
    /// Caches a frame as the page's bytes. False when there is no room.
    fn put(self: &Rc<Self>, page: u64, frame: FrameRun, access: PageAccess) -> bool {
        let me: Weak<Self> = Rc::downgrade(self);
        let Some(id) = self.cache.insert(me, page, self.of_page(page, access)) else { return false };
        if let Some(old) = self.with_pages(|p| p.on_put(page, Cached { frame, id }, access.readahead)) {
            self.cache.remove(old.id);
        }
        true
    }

    /// Whether the bytes of an extent that lie in a page can be written without loading it first.
    pub(crate) fn takes_within(&self, page: u64, extent: Extent) -> bool {
        let within = |at: u64| at.clamp(page * PAGE, (page + 1) * PAGE) - page * PAGE;
        self.pages.borrow().takes(page, &(within(extent.start) as u32..within(extent.end) as u32))
    }
    /// Copies `data` to `at` within the page and marks it dirty. Gives whether it was clean before; `None` when the page must be
    /// loaded first ([`Pages::takes`]), `Err` when there is no frame.
    pub(crate) fn write_page(
        self: &Rc<Self>,
        page: u64,
        at: usize,
        data: &[u8],
        access: PageAccess,
        frames: &mut NewFrames,
    ) -> Result<Option<bool>, FsError> {
        let mut pages = self.pages.borrow_mut();
        let part = at as u32..(at + data.len()) as u32;
        if !pages.takes(page, &part) {
            return Ok(None);
        }
        let mut fresh_page = false;
        if let Some(cached) = pages.held_mut(page) {
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
            fresh_page = true;
            let mut fresh = frames.next().ok_or(FsError::NoMemory)?;
            let bytes = fresh.bytes_mut().expect("a fresh frame has one owner");
            bytes[..at].fill(0);
            bytes[at..at + data.len()].copy_from_slice(data);
            bytes[at + data.len()..].fill(0);
            drop(pages);
            if !self.put(page, fresh, access) {
                return Err(FsError::NoMemory);
            }
            pages = self.pages.borrow_mut();
        }
        let valid = pages.size().saturating_sub(page * PAGE);
        Ok(Some(pages.on_written_to(page, part, fresh_page, valid.min(PAGE))))
    }

    /// The bytes of pages that were taken for a write RPC just now.
    pub(crate) fn bulk_of(&self, out: &WriteOut) -> Bulk {
        let pages = self.pages.borrow();
        let mut bulk = Bulk::new();
        for page in &out.pages {
            let valid = pages.size().saturating_sub(page * PAGE).min(PAGE) as u32;
            let bytes = pages.part(*page).map_or(0..valid, |part| part.start..part.end.min(valid));
            let run = pages.held(*page).expect("a dirty page is cached").frame.clone();
            bulk.push(Segment { run, offset: bytes.start, len: bytes.end - bytes.start });
        }
        bulk
    }
    /// Pages left the room: they leave the page cache as well, and readahead hears of those that nobody had used.
    pub(crate) fn forget(&self, gone: Gone<Cached>) {
        gone.pages.into_iter().for_each(|cached| self.cache.remove(cached.id));
        self.changed.notify();
        self.tell_readahead(&gone.ahead, Call::LockLost);
    }
    /// Pages that lay behind the end are gone.
    pub(crate) fn forget_cut_off(&self, gone: Vec<Cached>) {
        gone.into_iter().for_each(|cached| self.cache.remove(cached.id));
    }
    /// These pages could not be written out: whoever reads sees what the server has, here as elsewhere.
    pub(crate) fn not_written(&self, pages: &[u64]) {
        let gone = self.with_pages(|p| p.on_not_written(pages));
        self.forget(gone);
    }
    /// Forgets a page, unless it was written anew.
    pub(crate) fn forget_clean(&self, page: u64) {
        let gone = self.with_pages(|p| p.on_outdated(page));
        self.forget(gone);
    }
    /// Whether a page of the extent is dirty or being written.
    pub(crate) fn is_unwritten(&self, extent: Extent) -> bool {
        self.pages.borrow().is_unwritten(extent)
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
    /// Zeroes a cached page from `offset` to its end; what is on its way for the page does not count any more. Nothing of the
    /// page is dirty: who cuts has written everything out, and keeps writers away since.
    ///
    /// # Panics
    /// When there is no frame to copy to and the page is unwritten, so that it can neither stay nor go.
    pub(crate) fn zero_from(&self, offset: u64) {
        let (page, at) = (offset / PAGE, (offset % PAGE) as usize);
        let mut pages = self.pages.borrow_mut();
        pages.on_edge_changed(page);
        if pages.part(page).is_some() {
            drop(pages);
            return self.forget_clean(page);
        }
        let Some(cached) = pages.held_mut(page) else { return };
        if !cached.frame.is_unique() {
            let Some(mut fresh) = self.cache.pool().alloc_run(1) else {
                // No frame to copy to: a clean page may simply go, it is read again with its zeros.
                assert!(
                    !pages.is_unwritten(Extent::at(page * PAGE, PAGE)),
                    "page {page} is cut before it is written out"
                );
                drop(pages);
                return self.forget_clean(page);
            };
            fresh.bytes_mut().expect("a fresh frame has one owner").copy_from_slice(cached.frame.bytes());
            cached.frame = fresh;
        }
        cached.frame.bytes_mut().expect("made unique above")[at..].fill(0);
    }
}

impl<F: OfFile> PageOwner for Object<F> {
    fn block_id(&self, page: u64) -> u64 {
        cache::block_id(self.id.0.seq ^ u64::from(self.id.0.oid) << 20, page)
    }
    fn is_evictable(&self, page: u64) -> bool {
        let wanted = self.wanted.borrow().iter().any(|(first, end)| (*first..*end).contains(&page));
        !wanted && self.pages.borrow().is_evictable(page)
    }
    fn on_reclaimed(&self, page: u64) -> bool {
        self.pages.borrow_mut().on_reclaimed(page).1
    }
    fn on_unused(&self, pages: &[u64]) {
        self.tell_readahead(pages, Call::Reclaimed);
    }
}

#[cfg(test)]
mod tests {
    use datapath::{Answer, Due, Fate, Flushing, Target, TargetLimits};
    use frames::FramePool;
    use types::Fid;

    use super::*;

    struct NoFile;
    impl OfFile for NoFile {
        fn is_open(&self) -> bool {
            false
        }
        fn tell_readahead(&self, _stripe: u16, _object: Extent, _call: fn(Extent) -> Call) {}
    }
    type Object = super::Object<NoFile>;

    fn object() -> Rc<Object> {
        let cache = PageCache::new(FramePool::new(16 << 20), 4 << 20, "lru", &cache::CacheConfig::new(1)).unwrap();
        Object::new(ObjectId(Fid::new(1, 1)), 0, cache)
    }
    fn frame(object: &Object, byte: u8) -> FrameRun {
        let mut run = object.cache.pool().alloc_run(1).unwrap();
        run.bytes_mut().unwrap().fill(byte);
        run
    }
    fn write(object: &Rc<Object>, page: u64, len: usize) {
        let mut frames = NewFrames::new(object.cache.pool(), 1);
        let done = object.write_page(page, 0, &vec![7; len], PageAccess::fine(0), &mut frames);
        object.grow(page * PAGE + len as u64);
        assert_eq!(done, Ok(Some(true)));
    }
    struct Alone<'a>(&'a Object);
    impl datapath::Objects<()> for Alone<'_> {
        type Page = Cached;
        type Right = ();
        fn with_pages<T>(&mut self, (): &(), step: impl FnOnce(&mut Pages<Cached>) -> T) -> Option<T> {
            Some(self.0.with_pages(step))
        }
        fn right_to(&mut self, (): &(), _page: u64) -> ((), Extent) {
            ((), Extent::ALL)
        }
    }
    fn take(object: &Object, target: &mut Target<()>) -> (WriteOut, Bulk) {
        assert!(target.window.on_try());
        let (out, ()) = target.on_place(&(), Due::all(Extent::ALL), &mut Alone(object)).write.expect("a page is dirty");
        let bulk = object.bulk_of(&out);
        (out, bulk)
    }
    fn byte_of(object: &Object, page: u64) -> Option<u8> {
        object.get(page, None).map(|f| f.bytes()[0])
    }

    #[test]
    fn what_an_older_claim_brings_is_ignored_although_the_page_was_claimed_anew() {
        let (o, mut target) = (object(), Target::<()>::new(TargetLimits::DEFAULT));
        o.set_size(100 * PAGE);
        let access = PageAccess::fine(0);
        let old = o.claim_missing(10, 14, 64)[0];
        o.forget(o.with_pages(|p| target.discard(p, 11, 13)));
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
        write(&o, 20, FRAME_BYTES);
        o.with_pages(|p| target.on_written(p, 20, true));
        let (out, _) = take(&o, &mut target);
        let fate = o.with_pages(|p| target.on_write_ended(p, &out, Answer::Done, true));
        assert_eq!(fate, Fate::Written);
        o.forget_clean(20);
        let new = o.claim_missing(20, 21, 64)[0];
        o.arrived(old, 20, frame(&o, 3), access);
        assert_eq!(byte_of(&o, 20), None);
        o.arrived(new, 20, frame(&o, 4), access);
        assert_eq!(byte_of(&o, 20), Some(4));
    }

    #[test]
    fn bytes_of_a_page_go_out_alone_and_are_laid_over_the_others_when_those_come() {
        let (o, mut target) = (object(), Target::<()>::new(TargetLimits::DEFAULT));
        o.set_size(10 * PAGE);
        let access = PageAccess::fine(0);
        let mut frames = NewFrames::new(o.cache.pool(), 9);
        let mut write = |page, at, data: &[u8]| o.write_page(page, at, data, access, &mut frames);
        assert_eq!(write(3, 1000, &[7; 100]), Ok(Some(true)));
        assert_eq!((write(3, 1100, &[8; 50]), write(3, 950, &[9; 60])), (Ok(Some(false)), Ok(Some(false))));
        assert_eq!(write(3, 2000, &[1; 50]), Ok(None), "there is a gap");
        assert_eq!(write(4, 0, &[5; FRAME_BYTES]), Ok(Some(true)));
        assert!(!o.is_cached(3) && o.get(3, Some(access)).is_none() && o.is_cached(4));
        o.with_pages(|p| [3, 4].map(|page| target.on_written(p, page, true)));
        let (out, bulk) = take(&o, &mut target);
        assert_eq!(out.extents, [Extent::new(3 * PAGE + 950, 3 * PAGE + 1150), Extent::at(4 * PAGE, PAGE)]);
        let sent = bulk.to_vec();
        assert_eq!((sent.len(), sent[0], sent[60], sent[150], sent[200]), (200 + FRAME_BYTES, 9, 7, 8, 5));
        // The rest comes, as it was before that write or after.
        let claims = o.claim_missing(3, 5, 64);
        assert_eq!(claims.iter().map(|c| (c.first, c.end)).collect::<Vec<_>>(), [(3, 4)]);
        o.arrived(claims[0], 3, frame(&o, 2), access);
        let page = o.get(3, None).expect("all of it is here");
        assert_eq!([949, 950, 1010, 1100, 1149, 1150].map(|at| page.bytes()[at]), [2, 9, 7, 8, 8, 2]);
        assert_eq!(bulk.to_vec(), sent, "what is under way stays as it is");
        // An end of the object within such a page: there is nothing of it to keep.
        assert_eq!(write(6, 100, b"part"), Ok(Some(true)));
        o.with_pages(|p| target.discard(p, 5, 6)).pages.into_iter().for_each(drop);
        o.with_pages(|p| target.on_written(p, 6, true));
        let (out, _) = take(&o, &mut target);
        let fate = o.with_pages(|p| target.on_write_ended(p, &out, Answer::Done, true));
        assert_eq!(fate, Fate::Written);
        o.zero_from(6 * PAGE + 102);
        assert!(o.with_pages(|p| p.held(6).is_none() && p.part(6).is_none()));
    }

    #[test]
    fn pages_that_are_being_changed_are_not_loaded_and_changes_of_one_page_take_turns() {
        let world = simworld::TestWorld::new(1, 1 << 20);
        let (o, rt) = (object(), world.rt());
        o.set_size(100 * PAGE);
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
    fn what_is_taken_is_what_was_written_until_then_and_ends_with_the_object() {
        let (o, mut target) = (object(), Target::<()>::new(TargetLimits::DEFAULT));
        write(&o, 0, FRAME_BYTES);
        write(&o, 1, 100);
        o.with_pages(|p| [0, 1].map(|page| target.on_written(p, page, true)));
        let (out, bulk) = take(&o, &mut target);
        assert_eq!((out.extents, bulk.len()), (vec![Extent::new(0, PAGE + 100)], FRAME_BYTES + 100));
        let mut frames = NewFrames::new(o.cache.pool(), 1);
        let again = o.write_page(0, 0, &[9; FRAME_BYTES], PageAccess::fine(0), &mut frames);
        assert_eq!((again, bulk.to_vec()[0], byte_of(&o, 0)), (Ok(Some(true)), 7, Some(9)));
        assert_eq!(
            o.with_pages(|p| p.flushing(Due::all(Extent::ALL))),
            Flushing::UnderWay,
            "the older version is on its way"
        );
        o.zero_from(PAGE + 50);
        let page = o.get(1, None).unwrap();
        assert_eq!((page.bytes()[49], page.bytes()[50], bulk.to_vec()[FRAME_BYTES + 50]), (7, 0, 7));
    }
}
