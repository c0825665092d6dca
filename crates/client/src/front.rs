//! What a kernel in front keeps of one inode: pages of a file, the listing of a directory. The rules are those of
//! `docs/internals/kernel-locks.md`.
//!
//! A kernel locks its pages and then asks us to read; a lock callback makes us ask the kernel to drop pages, which
//! waits for those page locks. So a drop leaves out what reads that wait for a lock keep locked: such pages hold
//! nothing yet, and go after the answer. A read that begins to wait while a drop is under way makes the drop begin anew
//! around it. So that few have to wait, reads that come during a drop are answered once under the lock that is being
//! revoked ("serve"); that lock is then flushed again, kernel and all, before it is given back.
//!
//! Pages that a program may store to are read under write locks over the whole file (its leases): nothing tells of the
//! store, and what comes back of the page is the whole page.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ldlm::{EnqueueFlags, LockMode, LockPolicyData};
use rt::sync::{Event, join_all, race};
use types::{Duration, Extent, Fid, FsError};
use wire::mdt::AttrFlags;
use wire::mdt::LockBits;

use crate::client::Client;
use crate::inode::{Inode, Striping};
use crate::locks::Held;
use crate::object::Object;
use crate::osc::Osc;

/// Times a read is carried out again because a lock of its range went while it waited for another.
const READ_AGAIN_MAX: usize = 4;

/// How long a lock first stays for an inode that the kernel does not have yet: each time twice as long, below the second one.
const NOT_THERE_PAUSE: Duration = Duration::from_micros(500);
/// See [`NOT_THERE_PAUSE`].
const NOT_THERE_MAX: Duration = Duration::from_millis(500);

/// What a kernel in front keeps of one inode.
#[derive(Default)]
pub(crate) struct Front {
    /// It may keep pages.
    pages: Cell<bool>,
    /// It may have pages: some were asked for since all of them were dropped last.
    filled: Cell<bool>,
    /// Drops of pages under way.
    drops: Cell<u32>,
    reads: RefCell<Vec<Rc<ReadState>>>,
    /// Reads begun.
    begun: Cell<u64>,
    /// Ranges that are being changed otherwise than through the kernel's pages: reads of pages wait.
    shut: RefCell<Vec<Extent>>,
    opened: Event,
    /// A read begins to wait for a lock.
    waits: Event,
    /// A drop of pages begins.
    drop_begins: Event,
    /// It knows no attributes since they were dropped at this number ([`crate::KernelCache::told`]).
    pub(crate) told_nothing_since: Cell<Option<u64>>,
    /// An answer was made with attributes to believe, since it was told last to believe none.
    believes: Cell<bool>,
    /// It may keep a listing.
    listing: Cell<bool>,
    /// How often the lock on the directory's names went.
    names_lost: Cell<u64>,
    /// The listing it keeps was told under the lock that is held since `names_lost` was this.
    listed_under: Cell<Option<u64>>,
}

struct ReadState {
    extent: Extent,
    /// Parts of it that wait for a lock.
    waiting: Cell<u32>,
    /// Some part waited.
    waited: Cell<bool>,
    /// A lock of its range went meanwhile.
    tainted: Cell<bool>,
    /// It holds the file's leases: whatever lock it needs is among them.
    leased: Cell<bool>,
}

/// While it lives, kernels' reads of pages of the range wait, unanswered; drops of pages leave them out.
pub(crate) struct Shut(Rc<Inode>, Extent);
impl Drop for Shut {
    fn drop(&mut self) {
        let mut shut = self.0.front.shut.borrow_mut();
        if let Some(i) = shut.iter().position(|e| *e == self.1) {
            shut.swap_remove(i);
        }
        drop(shut);
        self.0.front.opened.notify();
    }
}

/// A drop of pages under way.
struct Dropping<'a>(&'a Front);
impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        self.0.drops.set(self.0.drops.get() - 1);
    }
}

/// A read that a kernel waits for with its pages locked: nothing can be read from them until it is answered.
pub(crate) struct KernelRead {
    inode: Rc<Inode>,
    state: Rc<ReadState>,
    again: Cell<usize>,
}

/// A part of a read waits for a lock.
pub(crate) struct Waiting<'a>(&'a ReadState);
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl KernelRead {
    pub(crate) fn begin(inode: &Rc<Inode>, extent: Extent) -> KernelRead {
        let state = Rc::new(ReadState {
            extent,
            waiting: Cell::new(0),
            waited: Cell::new(false),
            tainted: Cell::new(false),
            leased: Cell::new(false),
        });
        let front = &inode.front;
        front.filled.set(true);
        front.begun.set(front.begun.get() + 1);
        front.reads.borrow_mut().push(state.clone());
        KernelRead { inode: inode.clone(), state, again: Cell::new(0) }
    }
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.state.waiting.set(self.state.waiting.get() + 1);
        self.state.waited.set(true);
        self.inode.front.waits.notify();
        Waiting(&self.state)
    }
    /// Whether it holds the file's leases.
    pub(crate) fn is_leased(&self) -> bool {
        self.state.leased.get()
    }
    /// Whether what was read may be older than a lock that was given back meanwhile: then it is to be read again.
    /// (Not for ever: pages filled at last all the same go right after the answer.)
    pub(crate) fn is_outdated(&self) -> bool {
        let outdated = self.state.tainted.get() && self.state.waited.get() && self.again.get() < READ_AGAIN_MAX;
        let outdated = outdated && !types::planted!("read-not-looked-at") && !types::planted!("read-left-in-kernel");
        if outdated {
            self.again.set(self.again.get() + 1);
            self.state.tainted.set(false);
            self.state.waited.set(false);
        }
        outdated
    }
}

impl Drop for KernelRead {
    fn drop(&mut self) {
        self.inode.front.reads.borrow_mut().retain(|r| !Rc::ptr_eq(r, &self.state));
        if !self.state.tainted.get() || types::planted!("read-left-in-kernel") {
            return;
        }
        if let Some(client) = self.inode.client.upgrade() {
            let (inode, extent) = (self.inode.clone(), self.state.extent);
            let kernel = client.kernel();
            client.rt.spawn(async move { kernel.drop_pages(inode.fid, extent).await });
        }
    }
}

impl Inode {
    /// From now on a kernel may hold pages of this inode: they are dropped when a lock goes.
    /// Says whether it did already.
    pub fn set_kernel_pages(&self) -> bool {
        self.front.pages.replace(true)
    }
    /// Whether the metadata server says, as far as is known here, that another client has the file open for writing, or closed it
    /// so lately that the server has not heard of it.
    #[must_use]
    pub fn is_written_elsewhere(&self) -> bool {
        let flags = self.attr().flags;
        let settled = flags & (AttrFlags::SIZE_KNOWN | AttrFlags::UNSETTLED) != 0;
        flags & AttrFlags::HAS_LAYOUT != 0 && !settled && self.writers.get() == 0
    }
    /// Whether the kernel is dropping pages of it just now.
    pub(crate) fn is_dropping(&self) -> bool {
        self.front.drops.get() > 0
    }
    /// Waits until the kernel begins to drop pages of it.
    pub(crate) async fn until_dropping(&self) {
        loop {
            let begins = self.front.drop_begins.wait();
            if self.is_dropping() {
                return;
            }
            begins.await;
        }
    }
    /// A lock goes, or the file changed otherwise than the kernel believes: it forgets the file's pages, but for those
    /// that reads waiting for a lock keep locked. What was stored to them comes back before this ends.
    pub async fn drop_kernel_pages(&self) {
        let front = &self.front;
        let (begun, idle) = (front.begun.get(), front.reads.borrow().is_empty());
        self.drop_kernel_range(Extent::ALL).await;
        if idle && front.begun.get() == begun {
            front.filled.set(false);
        }
    }
    async fn drop_kernel_range(&self, extent: Extent) {
        let front = &self.front;
        // A word to a kernel that has nothing costs it the answer to what it asks just now.
        if !front.pages.get() || !front.filled.get() {
            return;
        }
        let Some(kernel) = self.client.upgrade().map(|c| c.kernel()) else { return };
        front.drops.set(front.drops.get() + 1);
        let _dropping = Dropping(front);
        front.drop_begins.notify();
        loop {
            let waits = front.waits.wait();
            let parts = front.apart_from_waiting().into_iter().filter_map(|e| e.intersect(&extent));
            let drops = parts.map(|e| kernel.drop_pages(self.fid, e)).collect();
            if race(join_all(drops), waits).await.is_ok() || types::planted!("drop-not-begun-anew") {
                break;
            }
        }
    }
    /// Whether the kernel may have pages of it.
    pub(crate) fn may_have_pages(&self) -> bool {
        self.front.filled.get()
    }
    /// Whether the kernel may have pages that a program stores to.
    pub(crate) fn may_have_stores(&self) -> bool {
        self.is_mappable() && self.front.filled.get()
    }
    /// The range is about to be changed: until the guard is dropped a kernel reads no page of it.
    pub(crate) fn shut(self: &Rc<Self>, extent: Extent) -> Shut {
        let extent = extent.align_out(4096);
        self.front.shut.borrow_mut().push(extent);
        Shut(self.clone(), extent)
    }
    /// The same, with the kernel's pages of the range gone, when it may have any that a program stores to: a page that
    /// is read before the change and stored to after it would bring the old bytes back.
    pub(crate) async fn shut_for_change(self: &Rc<Self>, extent: Extent) -> Option<Shut> {
        if !self.may_have_stores() {
            return None;
        }
        let shut = self.shut(extent);
        if !types::planted!("change-keeps-pages") {
            self.drop_kernel_range(shut.1).await;
        }
        Some(shut)
    }

    /// A kernel is told a listing of this directory, which it may keep: dropped when the lock on the names goes.
    pub fn set_kernel_listing(&self) {
        self.front.listing.set(true);
    }
    /// How often the lock on this directory's names went.
    #[must_use]
    pub fn names_lost(&self) -> u64 {
        self.front.names_lost.get()
    }
    /// The [`Inode::names_lost`] under which the kernel was told the listing it keeps.
    #[must_use]
    pub fn listed_under(&self) -> Option<u64> {
        self.front.listed_under.get()
    }
    /// A listing begins, whole under the lock that is held since, or not (`None`).
    pub fn set_listed_under(&self, names_lost: Option<u64>) {
        self.front.listed_under.set(names_lost);
    }
    /// The lock on the names of this directory goes; `true` when a kernel may keep a listing.
    pub(crate) fn loses_names(&self) -> bool {
        self.front.names_lost.set(self.front.names_lost.get() + 1);
        self.front.listed_under.set(None);
        self.front.listing.replace(false)
    }
}

impl Front {
    /// It is told attributes that it may believe.
    pub(crate) fn believes(&self) {
        self.believes.set(true);
    }
    /// It is to believe its attributes no longer: whether that is to be told. What it does not believe it need not be told to forget,
    /// and what it asks just now it would not take then: neither the size that it reads by.
    pub(crate) fn stops_believing(&self) -> bool {
        self.believes.replace(false)
    }
    fn is_shut(&self, extent: Extent) -> bool {
        self.shut.borrow().iter().any(|e| e.overlaps(&extent)) && !types::planted!("shut-ignored")
    }
    /// The file but for what waiting reads keep locked. Every read under way is tainted.
    fn apart_from_waiting(&self) -> Vec<Extent> {
        let reads = self.reads.borrow();
        reads.iter().for_each(|r| r.tainted.set(true));
        let waiting = reads.iter().filter(|r| r.waiting.get() > 0 && !types::planted!("drop-takes-all"));
        let mut keep: Vec<Extent> = waiting.map(|r| r.extent.align_out(4096)).collect();
        keep.sort_unstable();
        let (mut at, mut out) = (0, Vec::with_capacity(keep.len() + 1));
        for k in keep {
            if k.start > at {
                out.push(Extent::new(at, k.start));
            }
            at = at.max(k.end);
        }
        out.push(Extent::from(at));
        out
    }
}

impl Client {
    /// What a kernel's read of pages needs before any byte is looked at: nobody changes the range, and where the pages
    /// may be stored to, the file's leases. They are kept until the read has its bytes.
    pub(crate) async fn lease(&self, s: &Striping, read: &KernelRead) -> Result<Vec<Held>, FsError> {
        let inode = &read.inode;
        let front = &inode.front;
        loop {
            loop {
                let opened = front.opened.wait();
                if !front.is_shut(read.state.extent) {
                    break;
                }
                let _waiting = read.waiting();
                opened.await;
            }
            let mut held = Vec::new();
            if inode.is_mappable() && !types::planted!("leases-not-taken") {
                held = match self.leases_at_hand(s, inode.is_dropping()) {
                    Some(held) => held,
                    None => {
                        let _waiting = read.waiting();
                        self.lock_all(s, LockMode::Pw).await?
                    }
                };
            }
            if !front.is_shut(read.state.extent) {
                read.state.leased.set(!held.is_empty());
                // Nothing was read yet: what went before is of no concern.
                read.state.tainted.set(false);
                read.state.waited.set(false);
                return Ok(held);
            }
        }
    }
    /// Write locks over all objects, if they are here; `serve`: a drop of pages is under way, and locks that wait for it
    /// will do.
    fn leases_at_hand(&self, s: &Striping, serve: bool) -> Option<Vec<Held>> {
        let all = LockPolicyData::extent(Extent::ALL);
        let of = |o: &Rc<Object>| {
            let (locks, resource) = (&self.osc(o.ost).locks, o.resource());
            let held = locks.find(resource, LockMode::Pw, &all);
            held.or_else(|| locks.find_revoking(resource, LockMode::Pw, &all).filter(|_| serve))
        };
        s.objects.iter().map(of).collect()
    }
    /// A write lock for a request that changes the object while its kernel may be unable to give up pages: if the kernel
    /// has any that were stored to, the leases are here, perhaps on their way out, and there is nothing to wait for.
    pub(crate) async fn lock_to_cut(
        &self,
        osc: &Rc<Osc>,
        object: &Object,
        data: LockPolicyData,
    ) -> Result<Held, FsError> {
        let mapped = object.inode.borrow().upgrade().is_some_and(|i| i.is_mappable()) && !types::planted!("cut-waits");
        if mapped && let Some(held) = osc.locks.find_even_leaving(object.resource(), LockMode::Pw, &data) {
            return Ok(held);
        }
        let asked = osc.locks.acquire(object.resource(), LockMode::Pw, data, EnqueueFlags::NONE);
        asked.await.map_err(|e| e.error())
    }
    /// The kernel is to believe the attributes of an inode no longer, for their lock goes.
    pub(crate) async fn kernel_stops_believing(&self, inode: &Inode) {
        if inode.lookups.get() == 0 || !inode.front.stops_believing() || types::planted!("attributes-kept") {
            return;
        }
        let mut pause = if types::planted!("not-there-yet") { NOT_THERE_MAX } else { NOT_THERE_PAUSE };
        // An inode that a kernel was told in an answer is there only when whoever asked goes on; then it would be believed for good. One
        // that it has given up is counted out before long.
        while !self.kernel().drop_attributes(inode.fid).await && inode.lookups.get() > 0 && pause < NOT_THERE_MAX {
            self.rt.sleep(pause).await;
            pause *= 2;
        }
    }
    /// Whether what was told of an inode's attributes is still covered by a lock: asked right before a kernel is told.
    #[must_use]
    pub fn vouches_for(&self, fid: Fid) -> bool {
        self.known_inode(fid).is_some_and(|i| self.attr_valid(&i))
    }
    /// The [`Inode::names_lost`] of a directory whose names are under a lock of this client now.
    #[must_use]
    pub fn names_held(&self, dir: &Inode) -> Option<u64> {
        self.holds(dir.fid, LockBits::UPDATE).then(|| dir.names_lost())
    }
    /// Makes the kernel forget the listing of a directory.
    pub async fn drop_kernel_listing(&self, dir: Fid) {
        self.kernel().drop_pages(dir, Extent::ALL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Weak;

    use super::*;

    #[test]
    fn a_drop_leaves_out_what_waiting_reads_keep_locked() {
        let inode = Inode::new(Fid::new(1, 1), Weak::new());
        assert!(!inode.set_kernel_pages() && inode.set_kernel_pages());
        let read = |from, to| KernelRead::begin(&inode, Extent::new(from, to));
        let (early, late, idle) = (read(5000, 5100), read(20480, 28672), read(100, 200));
        let (one, other) = (late.waiting(), late.waiting());
        let waits = early.waiting();
        let parts = [Extent::new(0, 4096), Extent::new(8192, 20480), Extent::from(28672)];
        assert_eq!(inode.front.apart_from_waiting(), parts);
        drop((waits, one));
        assert_eq!(
            inode.front.apart_from_waiting(),
            [Extent::new(0, 20480), Extent::from(28672)],
            "a part waits still"
        );
        drop(other);
        assert_eq!(inode.front.apart_from_waiting(), [Extent::ALL]);
        assert!(!idle.is_outdated(), "it never waited: the drop waits for its answer");
        for _ in 0..READ_AGAIN_MAX {
            assert!(late.is_outdated() && !late.is_outdated(), "read again, and new then");
            drop(late.waiting());
            assert_eq!(inode.front.apart_from_waiting(), [Extent::ALL]);
        }
        assert!(!late.is_outdated(), "not for ever");
        drop((early, late, idle));
        assert!(inode.front.reads.borrow().is_empty());
    }

    #[test]
    fn ranges_are_shut_as_long_as_somebody_changes_them() {
        let inode = Inode::new(Fid::new(1, 1), Weak::new());
        let shut = |from, to| inode.front.is_shut(Extent::new(from, to));
        let (one, other) = (inode.shut(Extent::new(5000, 5001)), inode.shut(Extent::new(4096, 8192)));
        assert!(shut(4096, 4097) && !shut(0, 4096) && !shut(8192, 9000));
        drop(one);
        assert!(shut(8000, 9000), "the other one goes on");
        drop(other);
        assert!(!shut(0, u64::MAX));
    }
}
