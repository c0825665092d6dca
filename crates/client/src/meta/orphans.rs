//! What a kernel in front knows of inodes, and inodes that it may still open although their last name is gone.
//!
//! See `docs/internals/names.md`.
use std::rc::Rc;

use types::{Duration, Fid};
use wire::mdt::{AttrFlags, LockBits};

use super::Meta;
use crate::inode::Inode;

/// Inodes that the kernel is asked to give up with one message.
pub(crate) const ASKED_AT_ONCE_MAX: usize = 1024;

/// Inodes whose locks go back together at most, and how long the first one waits for others.
const GIVEN_UP_MAX: usize = 64;
const GIVE_UP_PAUSE: Duration = Duration::from_millis(20);

impl Meta {
    /// The kernel forgot `lookups` lookups of an inode.
    pub fn forget(self: &Rc<Self>, fid: Fid, lookups: u64) {
        if let Some(inode) = self.known_inode(fid) {
            inode.front.forget(lookups);
            if inode.unnamed.get() || inode.unwanted.get() || !self.common.holds(fid, LockBits::LOOKUP) {
                self.let_go(&inode);
            }
        }
    }

    /// An inode that may have lost its last name. The metadata server keeps it while our lock says that a kernel may
    /// still open it; when none knows it any more, the lock goes.
    pub(crate) fn may_be_unnamed(self: &Rc<Self>, inode: &Inode) {
        inode.unnamed.set(true);
        if self.sessions.alone().count() > 0 && inode.is_known_outside() {
            // Perhaps nobody told the kernel, which then has no reason to forget it.
            self.unnamed.borrow_mut().insert(inode.fid);
            self.common.kernel.cache().let_go(&[inode.fid]);
        }
        self.let_go(inode);
    }
    pub(crate) fn let_go(self: &Rc<Self>, inode: &Inode) {
        if inode.is_known_outside() {
            return;
        }
        self.unnamed.borrow_mut().remove(&inode.fid);
        let attr = inode.attr();
        if attr.nlink == 0 && attr.flags & AttrFlags::ALONE != 0 && inode.opens.get() == 0 {
            self.osts.discard_data(inode);
        }
        let waiting = {
            let mut all = self.given_up.borrow_mut();
            all.push(inode.fid);
            all.len()
        };
        // Many removals follow one another: their locks go back together, and their inodes go in one transaction.
        if waiting >= GIVEN_UP_MAX {
            self.give_up_all();
        } else if waiting == 1 {
            let me = Rc::downgrade(self);
            let pause = self.rt.sleep(GIVE_UP_PAUSE);
            self.rt.spawn(async move {
                pause.await;
                if let Some(me) = me.upgrade() {
                    me.give_up_all();
                }
            });
        }
    }
    fn give_up_all(self: &Rc<Self>) {
        for fid in self.given_up.take() {
            if self.known_inode(fid).is_none_or(|i| !i.is_known_outside()) {
                self.give_up_locks(fid);
            }
        }
    }
    /// Asks the kernel again to give up what it keeps of inodes that have no name (it was in use the last time).
    pub(crate) fn chase_unnamed(self: &Rc<Self>) {
        let all: Vec<Fid> = self.unnamed.borrow().iter().copied().collect();
        let mut chased = Vec::new();
        for fid in all {
            match self.known_inode(fid) {
                Some(inode) if inode.is_known_outside() && inode.unnamed.get() => chased.push(fid),
                Some(inode) if inode.unnamed.get() => self.let_go(&inode),
                _ => drop(self.unnamed.borrow_mut().remove(&fid)),
            }
        }
        for some in chased.chunks(ASKED_AT_ONCE_MAX) {
            self.common.kernel.cache().let_go(some);
        }
    }

    /// The kernel remembers one more lookup of an inode.
    pub fn remember(self: &Rc<Self>, fid: Fid) {
        let inode = self.inode(fid);
        inode.front.remember();
    }
}
