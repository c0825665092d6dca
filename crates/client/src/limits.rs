//! How much of the namespace a client remembers: inodes, names, the entries of directories that it knows whole.
//!
//! An inode stays while a program has it open, a request uses it, a kernel in front remembers it, unwritten data belong
//! to it, or a lock on it is held. Locks have a limit of their own; whatever else brings inodes in (a kernel that walks a
//! large tree), their number comes back to `inodes_max`: the least recently used ones that nothing needs leave with their
//! locks, those of the metadata server and those of their objects. Where only a kernel remembers them it is asked to give
//! them up first, if it can be asked (before ABI 7.45 it cannot: then its own memory is the limit).
//!
//! A pass looks at every inode, so one begins for each [`STEP_PART`]th of the limit that came in since the last.
use std::cell::Cell;
use std::rc::Rc;

use ldlm::ResourceId;
use types::{Fid, ObjectId, Transno};

use crate::client::Client;
use crate::inode::Inode;
use crate::object::Object;
use crate::outside::ASKED_AT_ONCE_MAX;

/// Passes make room for this part of the limit.
const STEP_PART: usize = 8;
/// Names remembered per inode that may be remembered, there or known not to be there.
const NAMES_PER_INODE: usize = 2;

/// What is counted of the namespace.
pub(crate) struct Limits {
    inodes_max: Cell<usize>,
    /// Inodes that came in since the last pass.
    came: Cell<usize>,
    /// Grows with every use of an inode.
    uses: Cell<u64>,
    /// Entries of all directories that are known whole.
    pub(crate) children: Rc<Cell<usize>>,
    /// Inodes that left because there were too many, since the start.
    reclaimed: Cell<u64>,
}

impl Limits {
    pub(crate) fn new(inodes_max: usize) -> Limits {
        let inodes_max = inodes_max.max(1);
        let (inodes_max, uses) = (Cell::new(inodes_max), Cell::new(0));
        Limits { inodes_max, came: Cell::new(0), uses, children: Rc::default(), reclaimed: Cell::new(0) }
    }
    fn step(&self) -> usize {
        self.inodes_max.get().div_ceil(STEP_PART)
    }
    fn names_max(&self) -> usize {
        self.inodes_max.get().saturating_mul(NAMES_PER_INODE)
    }
    /// Whether one more entry of a directory may be remembered.
    pub(crate) fn has_room_for_child(&self) -> bool {
        self.children.get() < self.names_max()
    }
}

impl Client {
    /// Inodes remembered before those that nothing needs leave (`llite.*.max_cached_inodes`).
    #[must_use]
    pub fn inodes_max(&self) -> usize {
        self.limits.inodes_max.get()
    }
    /// Changes [`Client::inodes_max`], at least 1.
    pub fn set_inodes_max(self: &Rc<Self>, max: usize) {
        self.limits.inodes_max.set(max.max(1));
        self.keep_within_limits();
    }
    /// What is remembered: inodes, names, entries of directories that are known whole, objects of files.
    #[must_use]
    pub fn remembered(&self) -> [usize; 4] {
        let (inodes, names) = (self.inodes.borrow().len(), self.dentries.borrow().len());
        [inodes, names, self.limits.children.get(), self.object_count()]
    }
    /// Inodes that left because there were too many, since the start.
    #[must_use]
    pub fn inodes_reclaimed(&self) -> u64 {
        self.limits.reclaimed.get()
    }

    /// An inode is used: it is the last one to leave.
    pub(crate) fn used(&self, inode: &Inode) {
        self.limits.uses.set(self.limits.uses.get() + 1);
        inode.last_used.set(self.limits.uses.get());
        inode.unwanted.set(false);
    }
    /// An inode came in.
    pub(crate) fn inode_came(self: &Rc<Self>) {
        self.limits.came.set(self.limits.came.get() + 1);
        if self.inodes.borrow().len() <= self.limits.inodes_max.get() || self.limits.came.get() < self.limits.step() {
            return;
        }
        self.limits.came.set(0);
        let me = self.clone();
        self.rt.spawn(async move { me.keep_within_limits() });
    }
    /// A name came in. What is left out is asked for again.
    pub(crate) fn name_came(&self) {
        let max = self.limits.names_max();
        if self.dentries.borrow().len() <= max {
            return;
        }
        self.dentries.borrow_mut().retain(|_, child| !child.is_zero());
        // Names of inodes with many.
        if self.dentries.borrow().len() > max - max / 4 {
            self.dentries.borrow_mut().clear();
            self.inodes.borrow().values().for_each(|i| i.names.borrow_mut().clear());
        }
    }

    /// Lets the least recently used inodes go that are over the limit.
    pub(crate) fn keep_within_limits(self: &Rc<Self>) {
        let (max, step) = (self.limits.inodes_max.get(), self.limits.step());
        let len = self.inodes.borrow().len();
        if len <= max {
            return;
        }
        let asks = self.kernel().lets_go();
        let mut leaving = 0;
        let mut idle: Vec<(u64, Fid)> = Vec::new();
        for inode in self.inodes.borrow().values() {
            let outside = inode.is_known_outside();
            if inode.unwanted.get() && !outside {
                leaving += 1;
            } else if is_idle(inode) && inode.fid != Fid::ROOT && (asks || !outside) {
                idle.push((inode.last_used.get(), inode.fid));
            }
        }
        let excess = (len - max + step).saturating_sub(leaving).min(idle.len());
        if excess == 0 {
            return;
        }
        idle.select_nth_unstable(excess - 1);
        idle.truncate(excess);
        let mut ask = Vec::new();
        for (_, fid) in idle {
            let Some(inode) = self.known_inode(fid).filter(|i| !i.has_unwritten()) else { continue };
            // What the kernel has in use stays, and is not asked for again before all others were.
            self.used(&inode);
            inode.unwanted.set(true);
            if inode.is_known_outside() { ask.push(fid) } else { self.let_go(&inode) }
        }
        for some in ask.chunks(ASKED_AT_ONCE_MAX) {
            self.kernel().let_go(some);
        }
    }
    /// The locks of an inode that is not wanted any more go; the inode follows the last one.
    pub(crate) fn give_up_locks(self: &Rc<Self>, fid: Fid) {
        let Some(inode) = self.known_inode(fid) else { return };
        if inode.unwanted.get()
            && let Some(s) = inode.striping()
        {
            for o in &s.objects {
                self.osc(o.ost).locks.give_up(o.resource());
            }
        }
        drop(inode);
        let resource = ResourceId::inode(fid);
        self.mdt_locks.give_up(resource);
        self.inode_may_go(fid);
    }
    /// An inode that nothing needs leaves.
    pub(crate) fn inode_may_go(&self, fid: Fid) {
        let stays = |i: &Rc<Inode>| !is_idle(i) || i.lookups.get() > 0 || self.mdt_locks.knows(ResourceId::inode(fid));
        if self.inodes.borrow().get(&fid).is_none_or(stays) {
            return;
        }
        let Some(inode) = self.inodes.borrow_mut().remove(&fid) else { return };
        self.forget_names(&inode);
        if inode.unwanted.get() {
            self.limits.reclaimed.set(self.limits.reclaimed.get() + 1);
        }
        let objects: Vec<ObjectId> =
            inode.striping().map(|s| s.objects.iter().map(|o| o.id).collect()).unwrap_or_default();
        drop(inode);
        objects.into_iter().for_each(|o| self.object_may_go(o));
    }
}

/// Whether no request and no open uses it, and nothing of its data may still be lost: who finds that it is tells the file.
pub(crate) fn is_idle(inode: &Rc<Inode>) -> bool {
    Rc::strong_count(inode) == 1 && inode.opens.get() == 0 && inode.untold.get() == 0 && !inode.has_unsettled()
}

impl Inode {
    /// Whether some of its data are not on the stable storage of its OSTs, or not even written out.
    fn has_unsettled(&self) -> bool {
        let Some((striping, client)) = self.striping().zip(self.client.upgrade()) else { return false };
        let may_be_lost = |o: &Object| {
            let changed_by = o.changed_by.get();
            if changed_by != Transno(0) && client.osc(o.ost).is_committed(changed_by) {
                o.changed_by.set(Transno(0));
            }
            o.changed_by.get() != Transno(0)
        };
        striping.objects.iter().any(|o| o.unwritten_pages() > 0 || may_be_lost(o))
    }
    /// Whether some of its data are not written out.
    fn has_unwritten(&self) -> bool {
        self.striping().is_some_and(|s| s.objects.iter().any(|o| o.unwritten_pages() > 0))
    }
}
