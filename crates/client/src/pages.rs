//! The page cache's mechanism: which pages are cached, how many may be, and who leaves when there are too many.
//!
//! The policy (the cache room) sees dense ids; objects hold the frames. Dirty pages never leave.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use cache::frames::FramePool;
use cache::{CacheConfig, FrameId, PageAccess, ReclaimPolicy};
use types::PAGE_BYTES;

use crate::object::Object;

/// Pages reclaimed at a time.
const RECLAIM_BATCH: u32 = 64;

struct Owner {
    object: Weak<Object>,
    page: u64,
}

pub(crate) struct PageCache {
    pool: FramePool,
    policy: RefCell<Box<dyn ReclaimPolicy>>,
    owners: RefCell<Vec<Option<Owner>>>,
    free: RefCell<Vec<u32>>,
    limit: Cell<usize>,
    used: Cell<usize>,
    pub(crate) hits: Cell<u64>,
    pub(crate) misses: Cell<u64>,
    pub(crate) limit_hits: Cell<u64>,
}

impl PageCache {
    pub(crate) fn new(pool: FramePool, bytes: u64, policy: &str) -> Result<Rc<PageCache>, String> {
        let limit = (bytes as usize / PAGE_BYTES).max(1024);
        let capacity = limit + limit / 4 + 4096;
        let policy = Self::build(policy, capacity)?;
        Ok(Rc::new(PageCache {
            pool,
            policy: RefCell::new(policy),
            owners: RefCell::new((0..capacity).map(|_| None).collect()),
            free: RefCell::new((0..capacity as u32).rev().collect()),
            limit: Cell::new(limit),
            used: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
            limit_hits: Cell::new(0),
        }))
    }
    fn build(policy: &str, capacity: usize) -> Result<Box<dyn ReclaimPolicy>, String> {
        let capacity = u32::try_from(capacity).map_err(|_| format!("a page cache of {capacity} pages is too large"))?;
        cache::build(policy, &CacheConfig::new(capacity))
    }
    pub(crate) fn pool(&self) -> FramePool {
        self.pool
    }
    pub(crate) fn used_pages(&self) -> usize {
        self.used.get()
    }
    pub(crate) fn limit_pages(&self) -> usize {
        self.limit.get()
    }
    pub(crate) fn policy_name(&self) -> &'static str {
        self.policy.borrow().name()
    }
    /// Changes the size limit, at most the one it was built with.
    pub(crate) fn set_limit(&self, bytes: u64) {
        let most = self.owners.borrow().len() * 4 / 5;
        self.limit.set((bytes as usize / PAGE_BYTES).clamp(1024, most));
        self.shrink(0);
    }
    /// Replaces the policy under load: every page is introduced to the new one as a fine read.
    pub(crate) fn set_policy(&self, name: &str) -> Result<(), String> {
        let capacity = self.owners.borrow().len();
        let mut next = Self::build(name, capacity)?;
        for (id, owner) in self.owners.borrow().iter().enumerate() {
            if let Some(o) = owner {
                next.insert(FrameId(id as u32), PageAccess::fine(o.page));
            }
        }
        *self.policy.borrow_mut() = next;
        Ok(())
    }

    /// Registers a page; gives its id, or `None` when the cache is so full of dirty pages that it cannot stay.
    pub(crate) fn insert(&self, object: &Rc<Object>, page: u64, access: PageAccess) -> Option<u32> {
        if self.used.get() >= self.limit.get() {
            self.shrink(RECLAIM_BATCH as usize);
        }
        let id = self.free.borrow_mut().pop()?;
        self.owners.borrow_mut()[id as usize] = Some(Owner { object: Rc::downgrade(object), page });
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
    /// Brings the cache `spare` pages below its limit, as far as clean pages go.
    pub(crate) fn shrink(&self, spare: usize) {
        let goal = self.limit.get().saturating_sub(spare);
        let over = self.used.get().saturating_sub(goal);
        if over == 0 {
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
        if victims.len() < over {
            self.limit_hits.set(self.limit_hits.get() + 1);
        }
        for FrameId(id) in victims {
            let owner = self.owners.borrow_mut()[id as usize].take();
            self.free.borrow_mut().push(id);
            self.used.set(self.used.get() - 1);
            if let Some(o) = owner
                && let Some(object) = o.object.upgrade()
            {
                object.reclaimed(o.page);
            }
        }
    }
}
