//! Inodes that nothing needs leave when there are too many ([`crate::limits`]), with their names, locks and objects.
use std::rc::Rc;

use ldlm::ResourceId;
use types::{Fid, ObjectId, Transno};

use super::Meta;
use super::orphans::ASKED_AT_ONCE_MAX;
use crate::inode::{Inode, Object};

impl Meta {
    /// Inodes remembered before those that nothing needs leave (`llite.*.max_cached_inodes`).
    #[must_use]
    pub fn inodes_max(&self) -> usize {
        self.common.limits.inodes_max()
    }
    /// Changes [`Meta::inodes_max`], at least 1.
    pub fn set_inodes_max(self: &Rc<Self>, max: usize) {
        self.common.limits.set_inodes_max(max);
        self.keep_within_limits();
    }
    /// What is remembered: inodes, names, entries of directories that are known whole, objects of files.
    #[must_use]
    pub fn remembered(&self) -> [usize; 4] {
        let (inodes, names) = (self.inodes.borrow().len(), self.dentries.borrow().len());
        [inodes, names, self.common.limits.children.get(), self.osts.object_count()]
    }
    /// Inodes that left because there were too many, since the start.
    #[must_use]
    pub fn inodes_reclaimed(&self) -> u64 {
        self.common.limits.reclaimed()
    }

    /// An inode is used: it is the last one to leave.
    pub(crate) fn used(&self, inode: &Inode) {
        inode.last_used.set(self.common.limits.next_use());
        inode.unwanted.set(false);
    }
    /// An inode came in.
    pub(crate) fn inode_came(self: &Rc<Self>) {
        if !self.common.limits.on_inode(self.inodes.borrow().len()) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move { me.keep_within_limits() });
    }
    /// A name came in. What is left out is asked for again.
    pub(crate) fn name_came(&self) {
        let max = self.common.limits.names_max();
        if self.dentries.borrow().len() <= max {
            return;
        }
        self.dentries.borrow_mut().retain(|_, child| !child.is_zero());
        // Names of inodes with many.
        if self.dentries.borrow().len() > max - max / 4 {
            self.forget_all_names();
        }
    }

    /// Lets the least recently used inodes go that are over the limit.
    pub(crate) fn keep_within_limits(self: &Rc<Self>) {
        let (max, step) = (self.common.limits.inodes_max(), self.common.limits.step());
        let len = self.inodes.borrow().len();
        if len <= max {
            return;
        }
        let asks = self.common.kernel.cache().lets_go();
        let mut leaving = 0;
        let mut idle: Vec<(u64, Fid)> = Vec::new();
        for inode in self.inodes.borrow().values() {
            let outside = inode.is_known_outside();
            if inode.unwanted.get() && !outside {
                leaving += 1;
            } else if self.is_idle(inode) && inode.fid != Fid::ROOT && (asks || !outside) {
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
            let Some(inode) = self.known_inode(fid).filter(|i| !has_unwritten(i)) else { continue };
            // What the kernel has in use stays, and is not asked for again before all others were.
            self.used(&inode);
            inode.unwanted.set(true);
            if inode.is_known_outside() { ask.push(fid) } else { self.let_go(&inode) }
        }
        for some in ask.chunks(ASKED_AT_ONCE_MAX) {
            self.common.kernel.cache().let_go(some);
        }
    }
    /// The locks of an inode that is not wanted any more go; the inode follows the last one.
    pub(crate) fn give_up_locks(self: &Rc<Self>, fid: Fid) {
        let Some(inode) = self.known_inode(fid) else { return };
        if inode.unwanted.get()
            && let Some(s) = inode.striping()
        {
            for o in &s.objects {
                self.osts.osc(o.ost).locks.give_up(o.resource());
            }
        }
        drop(inode);
        let resource = ResourceId::inode(fid);
        self.common.locks.give_up(resource);
        self.inode_may_go(fid);
    }
    /// An inode that nothing needs leaves.
    pub(crate) fn inode_may_go(&self, fid: Fid) {
        let stays = |i: &Rc<Inode>| {
            !self.is_idle(i) || i.front.is_remembered() || self.common.locks.knows(ResourceId::inode(fid))
        };
        if self.inodes.borrow().get(&fid).is_none_or(stays) {
            return;
        }
        let Some(inode) = self.inodes.borrow_mut().remove(&fid) else { return };
        self.forget_names(&inode);
        if inode.unwanted.get() {
            self.common.limits.on_reclaimed();
        }
        let objects: Vec<(usize, ObjectId)> =
            inode.striping().map(|s| s.objects.iter().map(|o| (o.ost, o.id)).collect()).unwrap_or_default();
        drop(inode);
        objects.into_iter().for_each(|(ost, id)| self.osts.osc(ost).object_may_go(id));
    }
    /// Whether no request and no open uses it, and nothing of its data may still be lost: who finds that it is tells the file.
    pub(crate) fn is_idle(&self, inode: &Rc<Inode>) -> bool {
        Rc::strong_count(inode) == 1 && inode.opens.get() == 0 && inode.untold.get() == 0 && !self.has_unsettled(inode)
    }
    /// Whether some of its data are not on the stable storage of its OSTs, or not even written out.
    fn has_unsettled(&self, inode: &Inode) -> bool {
        let Some(striping) = inode.striping() else { return false };
        let may_be_lost = |o: &Object| {
            let changed_by = o.changed_by.get();
            if changed_by != Transno(0) && self.osts.osc(o.ost).is_committed(changed_by) {
                o.changed_by.set(Transno(0));
            }
            o.changed_by.get() != Transno(0)
        };
        striping.objects.iter().any(|o| o.unwritten_pages() > 0 || may_be_lost(o))
    }
}

/// Whether some of an inode's data are not written out.
fn has_unwritten(inode: &Inode) -> bool {
    inode.striping().is_some_and(|s| s.objects.iter().any(|o| o.unwritten_pages() > 0))
}
