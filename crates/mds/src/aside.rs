//! What an OST refuses of what it is owed ([`crate::owed`]): one damaged object must not keep it from all others.
//!
//! A request that is refused goes again in halves until the object that is refused stands alone. That one is set aside, with all that
//! is owed of the same object later, for what an OST hears about one object comes in order. It is tried again now and then, and in
//! every new session.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};

use types::{Duration, FsError, Instant, ObjectId};

use crate::osts::OstLink;
use crate::owed::{BATCH_MAX, Owed};

/// How long what is set aside stays there.
const TRY_AGAIN: Duration = Duration::from_secs(600);

/// See the module's head.
pub(crate) struct Aside {
    /// In order.
    entries: RefCell<VecDeque<Owed>>,
    objects: RefCell<BTreeSet<ObjectId>>,
    /// Objects of which the log has a line.
    told: RefCell<BTreeSet<ObjectId>>,
    /// When the first of them was set aside.
    since: Cell<Instant>,
    /// Objects in the next request at most.
    batch_max: Cell<usize>,
}

impl Default for Aside {
    fn default() -> Self {
        Aside {
            entries: RefCell::default(),
            objects: RefCell::default(),
            told: RefCell::default(),
            since: Cell::new(Instant::ZERO),
            batch_max: Cell::new(BATCH_MAX),
        }
    }
}

impl Aside {
    /// Objects in the next request at most.
    pub fn batch_max(&self) -> usize {
        self.batch_max.get()
    }
    /// Whether something of this object is set aside.
    pub fn has(&self, object: ObjectId) -> bool {
        self.objects.borrow().contains(&object)
    }
    /// A request was carried out.
    pub fn on_carried_out(&self) {
        self.batch_max.set((self.batch_max.get() * 2).min(BATCH_MAX));
    }
    /// A request of so many was refused for one of them.
    pub fn on_refused(&self, objects: usize) {
        self.batch_max.set((objects / 2).max(1));
    }
    /// Sets one aside, behind what is there.
    pub fn put(&self, owed: Owed, now: Instant) {
        let mut entries = self.entries.borrow_mut();
        if entries.is_empty() {
            self.since.set(now);
        }
        self.objects.borrow_mut().insert(owed.object());
        entries.push_back(owed);
    }
    /// All of it; nothing is set aside any more.
    pub fn take(&self) -> VecDeque<Owed> {
        self.objects.borrow_mut().clear();
        self.entries.take()
    }
}

impl OstLink {
    /// What is set aside is owed again, before all else.
    pub(crate) fn take_up_aside(&self) {
        let mut queue = self.owed.borrow_mut();
        for owed in self.aside.take().into_iter().rev() {
            queue.push_front(owed);
        }
    }
    /// The same when that was long ago.
    pub(crate) fn try_aside_again(&self, now: Instant) {
        if now.since(self.aside.since.get()) >= TRY_AGAIN {
            self.take_up_aside();
        }
    }
    /// The OST refused a request for one of these, which are not paid. Whether it is worth asking for others at once.
    pub(crate) fn refused(&self, batch: Vec<Owed>, why: FsError, now: Instant) -> bool {
        let n = batch.len();
        self.aside.on_refused(n);
        if n > 1 {
            let mut queue = self.owed.borrow_mut();
            batch.into_iter().rev().for_each(|owed| queue.push_front(owed));
            return true;
        }
        for owed in batch {
            let (ost, object) = (self.ost, owed.object());
            if self.aside.told.borrow_mut().insert(object) {
                tracing::error!(%ost, %object, "it refuses what becomes of a file's object, which stays as it is and is tried again every {} s: {why}", TRY_AGAIN.as_secs());
            }
            self.aside.put(owed, now);
        }
        why == FsError::Corrupt
    }
}
