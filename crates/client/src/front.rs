//! What a kernel in front keeps of one inode: pages of a file, the listing of a directory.
//!
//! A kernel locks its pages and then asks us to read; a lock callback makes us ask the kernel to drop pages, which
//! waits for those page locks. So a drop leaves out what reads that wait for a lock keep locked: such pages hold
//! nothing yet, and go after the answer. A read that begins to wait while a drop is under way makes the drop begin anew
//! around it. So that few have to wait, reads that come during a drop are answered once under the lock that is being
//! revoked ("serve"); that lock is then flushed again, kernel and all, before it is given back.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rt::sync::{Event, join_all, race};
use types::{Extent, Fid};
use wire::mdt::LockBits;

use crate::client::Client;
use crate::inode::Inode;

/// Times a read is carried out again because a lock of its range went while it waited for another.
const READ_AGAIN_MAX: usize = 4;

/// What a kernel in front keeps of one inode.
#[derive(Default)]
pub(crate) struct Front {
    /// It may keep pages.
    pages: Cell<bool>,
    /// Drops of pages under way.
    drops: Cell<u32>,
    reads: RefCell<Vec<Rc<ReadState>>>,
    /// A read begins to wait for a lock.
    waits: Event,
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
        let state =
            Rc::new(ReadState { extent, waiting: Cell::new(0), waited: Cell::new(false), tainted: Cell::new(false) });
        inode.front.reads.borrow_mut().push(state.clone());
        KernelRead { inode: inode.clone(), state, again: Cell::new(0) }
    }
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.state.waiting.set(self.state.waiting.get() + 1);
        self.state.waited.set(true);
        self.inode.front.waits.notify();
        Waiting(&self.state)
    }
    /// Whether what was read may be older than a lock that was given back meanwhile: then it is to be read again.
    /// (Not for ever: pages filled at last all the same go right after the answer.)
    pub(crate) fn is_outdated(&self) -> bool {
        let outdated = self.state.tainted.get() && self.state.waited.get() && self.again.get() < READ_AGAIN_MAX;
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
        if !self.state.tainted.get() {
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
    /// Whether the kernel is dropping pages of it just now.
    pub(crate) fn is_dropping(&self) -> bool {
        self.front.drops.get() > 0
    }
    /// A lock goes, or the file changed otherwise than the kernel believes: it forgets the file's pages, but for those
    /// that reads waiting for a lock keep locked.
    pub async fn drop_kernel_pages(&self) {
        let front = &self.front;
        if !front.pages.get() {
            return;
        }
        let Some(kernel) = self.client.upgrade().map(|c| c.kernel()) else { return };
        front.drops.set(front.drops.get() + 1);
        loop {
            let waits = front.waits.wait();
            let drops = front.apart_from_waiting().into_iter().map(|e| kernel.drop_pages(self.fid, e)).collect();
            if race(join_all(drops), waits).await.is_ok() {
                break;
            }
        }
        front.drops.set(front.drops.get() - 1);
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
    /// The file but for what waiting reads keep locked. Every read under way is tainted.
    fn apart_from_waiting(&self) -> Vec<Extent> {
        let reads = self.reads.borrow();
        reads.iter().for_each(|r| r.tainted.set(true));
        let waiting = reads.iter().filter(|r| r.waiting.get() > 0);
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
}
