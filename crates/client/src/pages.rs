//! The page cache's mechanism: which pages are cached, how many may be, and who leaves when there are too many.
//!
//! The policy (the cache room) sees dense ids; objects hold the frames. Dirty pages never leave.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use cache::{CacheConfig, FrameId, PageAccess, Reclaimer, Stats};
use frames::{FramePool, FrameRun};
use rt::sync::Event;
use types::PAGE_BYTES;
use types::record::Recordable as _;

/// Pages of the smallest cache.
const PAGES_MIN: u64 = 1024;
/// Pages that have places above the limit, besides a quarter of it.
const PAGES_ABOVE: u64 = 4096;
/// Pages reclaimed at a time.
const RECLAIM_BATCH: u32 = 64;
/// When no page may leave, every page has been asked. All are asked again when so many asks for each page that was written out since, or
/// for each call that was spared, add up to all pages: by then it is likely that enough may leave to be worth it.
const ASKS_PER_WRITTEN_PAGE: usize = 64;
/// See [`ASKS_PER_WRITTEN_PAGE`].
const ASKS_PER_CALL: usize = 32;

/// What pages belong to, and where their frames are.
pub(crate) trait PageOwner {
    /// What policies know a page by.
    fn block_id(&self, page: u64) -> u64;
    /// Whether the page may leave now.
    fn is_evictable(&self, page: u64) -> bool;
    /// The page left. Whether it was read ahead and never used.
    fn on_reclaimed(&self, page: u64) -> bool;
    /// Pages (ascending) that were read ahead and never used have left.
    fn on_unused(&self, pages: &[u64]);
}

struct Owner {
    object: Weak<dyn PageOwner>,
    page: u64,
}

/// The page cache of a client.
pub struct PageCache {
    pool: FramePool,
    zeros: FrameRun,
    policy: RefCell<Reclaimer>,
    owners: RefCell<Vec<Option<Owner>>>,
    free: RefCell<Vec<u32>>,
    limit: Cell<usize>,
    used: Cell<usize>,
    stats: RefCell<Stats>,
    /// Asks that may be made since all pages were asked and none was left that could leave; `None`: some may be left.
    allowed_asks: Cell<Option<usize>>,
    pub(crate) limit_hits: Cell<u64>,
    /// Fewer pages are unwritten than before, of any OST, or there are more places for them.
    pub(crate) fewer_unwritten: Event,
}

/// Pages that a cache of `bytes` keeps, and those that it has places for: unwritten pages stay above the limit until they are written.
const fn pages_of(bytes: u64) -> (u64, u64) {
    let wanted = bytes / PAGE_BYTES as u64;
    let limit = if wanted < PAGES_MIN { PAGES_MIN } else { wanted };
    (limit, limit + limit / 4 + PAGES_ABOVE)
}

impl PageCache {
    /// Bytes of page frames that a cache of `bytes` holds at most, with unwritten pages that wait for their servers. A process needs
    /// frames beyond these: what comes over a connection waits for some, and the answers that let pages go come behind it.
    #[must_use]
    pub const fn frames_max(bytes: u64) -> u64 {
        pages_of(bytes).1 * PAGE_BYTES as u64
    }
    pub(crate) fn new(pool: FramePool, bytes: u64, policy: &str, keys: &CacheConfig) -> Result<Rc<PageCache>, String> {
        let (limit, capacity) = pages_of(bytes);
        let pages = u32::try_from(capacity).ok().filter(|pages| *pages <= cache::table::CAPACITY_MAX);
        let pages = pages.ok_or_else(|| format!("a page cache of {capacity} pages is too large"))?;
        let policy = Reclaimer::new(policy, keys.resized(pages))?;
        let mut zeros = pool.alloc_run(frames::RUN_FRAMES_MAX).ok_or("the frame pool is empty")?;
        zeros.bytes_mut().expect("a fresh frame has one owner").fill(0);
        Ok(Rc::new(PageCache {
            pool,
            zeros,
            policy: RefCell::new(policy),
            owners: RefCell::new((0..pages).map(|_| None).collect()),
            free: RefCell::new((0..pages).rev().collect()),
            limit: Cell::new(limit as usize),
            used: Cell::new(0),
            stats: RefCell::default(),
            allowed_asks: Cell::new(None),
            limit_hits: Cell::new(0),
            fewer_unwritten: Event::new(),
        }))
    }
    pub(crate) fn pool(&self) -> FramePool {
        self.pool
    }
    /// Frames full of zeros, not to be written to.
    pub(crate) fn zeros(&self) -> &FrameRun {
        &self.zeros
    }
    /// Pages cached.
    #[must_use]
    pub fn used_pages(&self) -> usize {
        self.used.get()
    }
    /// Pages allowed.
    #[must_use]
    pub fn limit_pages(&self) -> usize {
        self.limit.get()
    }
    /// Bytes allowed.
    pub(crate) fn limit_bytes(&self) -> u64 {
        (self.limit.get() * PAGE_BYTES) as u64
    }
    /// Bytes of pages that there are places for, unwritten ones among them.
    pub(crate) fn places_bytes(&self) -> u64 {
        let (places, limit) = (self.owners.borrow().len(), self.limit.get());
        (places.min(limit + limit / 4 + PAGES_ABOVE as usize) * PAGE_BYTES) as u64
    }
    /// The policy in use.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        self.policy.borrow().name()
    }
    /// Pages that reads looked up and found, by granularity.
    #[must_use]
    pub fn stats(&self) -> Stats {
        *self.stats.borrow()
    }
    /// Pages that reads found, and that they did not.
    #[must_use]
    pub fn found(&self) -> (u64, u64) {
        let s = self.stats();
        let hits = s.fine_hits + s.coarse_hits;
        (hits, s.fine_lookups + s.coarse_lookups - hits)
    }
    /// Counts look-ups of pages that were all found, or not all.
    pub(crate) fn count(&self, access: &PageAccess, pages: u64, found: u64) {
        self.stats.borrow_mut().count_many(access, pages, found);
    }
    /// Changes the size limit, at most the one it was built with.
    pub(crate) fn set_limit(&self, bytes: u64) {
        let most = self.owners.borrow().len() * 4 / 5;
        self.limit.set((bytes as usize / PAGE_BYTES).clamp(PAGES_MIN as usize, most));
        self.allowed_asks.set(None);
        self.shrink(0);
        self.fewer_unwritten.notify();
    }
    /// Replaces the policy under load.
    ///
    /// # Errors
    /// A sentence that names the policies there are.
    pub fn set_policy(&self, name: &str) -> Result<(), String> {
        self.policy.borrow_mut().switch(name, &mut |f| self.block_in(f))
    }
    /// The value of a key of the policies ([`CacheConfig::KEYS`]).
    #[must_use]
    pub fn key(&self, key: &str) -> Option<String> {
        self.policy.borrow().config().get(key)
    }
    /// Changes a key of the policies under load; what is cached stays.
    ///
    /// # Errors
    /// A sentence with the key's range.
    pub fn set_key(&self, key: &str, value: &str) -> Result<(), String> {
        self.policy.borrow_mut().set(key, value, &mut |f| self.block_in(f))
    }
    /// The recording of the policy: `on`, what the last check said, or `off`.
    #[must_use]
    pub fn record(&self) -> String {
        self.recorded(|r| r.record_param())
    }
    /// Records the policy: a size of memory starts, `check` ends and replays, `off` drops.
    ///
    /// # Errors
    /// A sentence.
    pub fn set_record(&self, text: &str) -> Result<(), String> {
        self.recorded(|r| r.set_record_param(text))
    }
    /// Ends the recording of the policy and hands it out, for [`cache::record::replay`].
    #[must_use]
    pub fn take_record(&self) -> Option<types::record::Recording> {
        self.recorded(|r| r.tape().take())
    }
    fn recorded<T>(&self, work: impl FnOnce(&mut cache::Recorded<'_>) -> T) -> T {
        let reclaimer = &mut self.policy.borrow_mut();
        work(&mut cache::Recorded { reclaimer, block_of: &mut |f| self.block_in(f) })
    }
    /// The block that a frame holds; one whose object is gone will not be asked for again.
    fn block_in(&self, frame: FrameId) -> u64 {
        let owners = self.owners.borrow();
        let owner = owners[frame.0 as usize].as_ref().expect("a resident frame has an owner");
        owner.object.upgrade().map_or(owner.page, |object| object.block_id(owner.page))
    }

    /// Registers a page; gives its id, or `None` when the cache is so full of dirty pages that it cannot stay.
    pub(crate) fn insert(&self, object: Weak<dyn PageOwner>, page: u64, access: PageAccess) -> Option<u32> {
        if self.used.get() >= self.limit.get() {
            self.shrink(RECLAIM_BATCH as usize);
        }
        let id = self.free.borrow_mut().pop()?;
        self.owners.borrow_mut()[id as usize] = Some(Owner { object, page });
        self.used.set(self.used.get() + 1);
        self.policy.borrow_mut().insert(FrameId(id), access);
        Some(id)
    }
    pub(crate) fn touch(&self, id: u32, access: PageAccess) {
        self.policy.borrow_mut().touch(FrameId(id), access);
    }
    /// The page left by its object's will.
    pub(crate) fn remove(&self, id: u32) {
        self.policy.borrow_mut().remove(FrameId(id));
        self.forget(id);
    }
    fn forget(&self, id: u32) {
        self.owners.borrow_mut()[id as usize] = None;
        self.free.borrow_mut().push(id);
        self.used.set(self.used.get() - 1);
    }
    /// So many pages were written out: they may leave.
    pub(crate) fn note_written_out(&self, pages: usize) {
        self.allow(pages * ASKS_PER_WRITTEN_PAGE);
    }
    fn allow(&self, asks: usize) {
        self.allowed_asks.set(self.allowed_asks.get().map(|allowed| allowed.saturating_add(asks)));
    }
    /// Whether it is worth asking pages. A cache full of unwritten pages would ask all of them for every page that comes.
    fn may_have_victims(&self) -> bool {
        self.allow(ASKS_PER_CALL);
        self.allowed_asks.get().is_none_or(|allowed| allowed >= self.used.get())
    }
    /// Brings the cache `spare` pages below its limit, as far as clean pages go. While nearly all are unwritten it may stay a
    /// little above, until enough were written out.
    pub(crate) fn shrink(&self, spare: usize) {
        let goal = self.limit.get().saturating_sub(spare);
        let over = self.used.get().saturating_sub(goal);
        if over == 0 {
            return;
        }
        if !self.may_have_victims() {
            self.limit_hits.set(self.limit_hits.get() + 1);
            return;
        }
        let mut victims = Vec::new();
        {
            let owners = self.owners.borrow();
            let mut can_evict = |f: FrameId| {
                let owner = owners[f.0 as usize].as_ref();
                owner.is_some_and(|o| o.object.upgrade().is_none_or(|obj| obj.is_evictable(o.page)))
            };
            self.policy.borrow_mut().reclaim(over as u32, &mut can_evict, &mut victims);
        }
        let is_short = victims.len() < over;
        self.limit_hits.set(self.limit_hits.get() + u64::from(is_short));
        self.allowed_asks.set(is_short.then_some(0));
        let mut unused: Vec<(Rc<dyn PageOwner>, Vec<u64>)> = Vec::new();
        for FrameId(id) in victims {
            let owner = self.owners.borrow_mut()[id as usize].take();
            self.free.borrow_mut().push(id);
            self.used.set(self.used.get() - 1);
            if let Some(o) = owner
                && let Some(object) = o.object.upgrade()
                && object.on_reclaimed(o.page)
            {
                match unused.iter_mut().find(|(known, _)| std::ptr::addr_eq(Rc::as_ptr(known), Rc::as_ptr(&object))) {
                    Some((_, pages)) => pages.push(o.page),
                    None => unused.push((object, vec![o.page])),
                }
            }
        }
        for (object, mut pages) in unused {
            pages.sort_unstable();
            object.on_unused(&pages);
        }
    }
}

/// Frames for the pages that a write brings, taken many at a time: neighbours lie side by side, and what is over goes back.
pub(crate) struct NewFrames {
    pool: FramePool,
    /// Pages that may still come.
    left: usize,
    run: Option<FrameRun>,
}

impl NewFrames {
    pub(crate) fn new(pool: FramePool, pages: usize) -> NewFrames {
        NewFrames { pool, left: pages, run: None }
    }
    /// One frame, of unknown bytes; `None` when the pool is empty.
    pub(crate) fn next(&mut self) -> Option<FrameRun> {
        let mut run = match self.run.take() {
            Some(run) => run,
            None => self.pool.alloc_run(self.left)?,
        };
        self.left = self.left.saturating_sub(1);
        if run.frames() > 1 {
            self.run = Some(run.split_off(1));
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Pages of which some are unwritten.
    #[derive(Default)]
    struct Asked {
        unwritten: RefCell<BTreeSet<u64>>,
        asks: Cell<usize>,
    }
    impl PageOwner for Asked {
        fn block_id(&self, page: u64) -> u64 {
            page
        }
        fn is_evictable(&self, page: u64) -> bool {
            self.asks.set(self.asks.get() + 1);
            !self.unwritten.borrow().contains(&page)
        }
        fn on_reclaimed(&self, _: u64) -> bool {
            false
        }
        fn on_unused(&self, _: &[u64]) {}
    }

    #[test]
    fn a_cache_full_of_unwritten_pages_does_not_ask_all_of_them_for_each_page_that_comes() {
        for policy in ["lru", "fgf_lru+ring", "adaptive"] {
            let cache = PageCache::new(FramePool::new(1 << 20), 32 << 20, policy, &CacheConfig::new(1)).unwrap();
            let (limit, owner) = (cache.limit_pages(), Rc::new(Asked::default()));
            let weak: Weak<dyn PageOwner> = Rc::downgrade(&(owner.clone() as Rc<dyn PageOwner>));
            let access = PageAccess::of_request(0, 1, 1 << 20);
            let mut page = 0;
            let mut come = |unwritten: bool| {
                if unwritten {
                    owner.unwritten.borrow_mut().insert(page);
                }
                page += 1;
                cache.insert(weak.clone(), page - 1, access).expect("it has an id");
            };
            (0..limit).for_each(|_| come(true));
            owner.asks.set(0);
            (0..1000).for_each(|_| come(true));
            let per_page = owner.asks.get() / 1000;
            assert!(per_page <= 2 * ASKS_PER_CALL, "{policy}: {per_page} asks for each page of {limit}");
            // Others come and may go: the cache stays near its size.
            owner.asks.set(0);
            for _ in 0..2 * limit {
                come(false);
                assert!(cache.used_pages() < limit + 1000 + limit / 8, "{policy}: {} of {limit}", cache.used_pages());
            }
            let per_page = owner.asks.get() / (2 * limit);
            assert!(per_page <= 2 * ASKS_PER_CALL, "{policy}: {per_page} asks for each page of {limit}");
            // What is written out makes room.
            let clean: BTreeSet<u64> = owner.unwritten.borrow_mut().split_off(&(limit as u64 / 2));
            cache.note_written_out(clean.len());
            come(false);
            assert!(cache.used_pages() <= limit, "{policy}: {} of {limit}", cache.used_pages());
        }
    }
}
