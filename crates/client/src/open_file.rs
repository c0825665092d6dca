//! One open file: who opened it and how, what it holds at the metadata server, what its end brings home.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use types::{Fid, FsError, HandleId, Transno, WallTime};
use wire::mdt::Cred;

use crate::inode::Inode;
use crate::readahead::Stream;

pub(crate) const O_APPEND: u32 = 0o2000;
pub(crate) const O_DIRECT: u32 = 0o40000;
pub(crate) const O_ACCMODE: u32 = 0o3;
pub(crate) const O_TRUNC: u32 = 0o1000;
pub(crate) const O_CREAT: u32 = 0o100;
pub(crate) const O_EXCL: u32 = 0o200;
pub(crate) const O_NOATIME: u32 = 0o1_000_000;

/// One open file.
pub struct OpenFile {
    pub(crate) inode: Rc<Inode>,
    pub(crate) id: u64,
    /// 0: the metadata server does not know of it (`untold.rs`).
    pub(crate) handle: Cell<HandleId>,
    pub(crate) flags: Cell<u32>,
    pub(crate) cred: Cred,
    pub(crate) transno: Cell<Transno>,
    /// Written through this or another open since this one began.
    pub(crate) dirty: Cell<bool>,
    /// Up to where in the file's error history this open was told.
    pub(crate) error_mark: Cell<u64>,
    /// Where that history ended when it began: a close tells of what came since, an fsync of what nobody was told before, too.
    pub(crate) opened_at: u64,
    /// How it is read.
    pub(crate) stream: Rc<Stream>,
    /// Owners that set fcntl locks through this open and did not close it since.
    pub(crate) lock_owners: RefCell<Vec<u64>>,
    /// It is there to tell the size only.
    pub(crate) settles: Cell<bool>,
    /// What the metadata server has for a size that it doubts: if it is right, so are the times.
    pub(crate) doubted: Cell<Option<u64>>,
    /// A modification time that its objects are to be told of before it writes ([`wire::mdt::AttrFlags::TIME_UNTOLD`]).
    pub(crate) time_untold: Cell<Option<WallTime>>,
}

impl OpenFile {
    /// The file's id.
    #[must_use]
    pub fn fid(&self) -> Fid {
        self.inode.fid
    }
    /// O_* flags of the open, the status flags as they were when a call through it came last.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.get()
    }
    /// The status flags with which a call comes: fcntl(2) with F_SETFL may have changed them since the open.
    pub fn follow(&self, flags: u32) {
        const CHANGEABLE: u32 = O_APPEND | O_DIRECT | O_NOATIME;
        self.flags.set(self.flags.get() & !CHANGEABLE | flags & CHANGEABLE);
    }
    /// Whether it may write.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.flags.get() & O_ACCMODE != 0
    }
    pub(crate) fn reads(&self) -> bool {
        const O_WRONLY: u32 = 1;
        self.flags.get() & O_ACCMODE != O_WRONLY
    }
    /// The name by which the client knows this open.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Whether it goes on and the metadata server does not know of it.
    pub(crate) fn is_untold(&self) -> bool {
        self.handle.get().0 == 0 && !self.stream.released.get()
    }
    /// The inode.
    #[must_use]
    pub fn inode(&self) -> &Rc<Inode> {
        &self.inode
    }
    /// Who opened it.
    #[must_use]
    pub fn cred(&self) -> &Cred {
        &self.cred
    }
    /// An owner sets an fcntl lock through this open.
    pub fn note_lock_owner(&self, owner: u64) {
        let mut owners = self.lock_owners.borrow_mut();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    /// An owner closed a descriptor: its fcntl locks are given back then.
    pub fn forget_lock_owner(&self, owner: u64) {
        self.lock_owners.borrow_mut().retain(|o| *o != owner);
    }
    /// Owners left at the last close: locks of the open file description, which nobody else gives back.
    #[must_use]
    pub fn take_lock_owners(&self) -> Vec<u64> {
        std::mem::take(&mut *self.lock_owners.borrow_mut())
    }
    /// Whether something was written through it.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty.get()
    }
    /// close(2) of one descriptor: reports a failed write-back.
    ///
    /// # Errors
    /// The first write-back failure since this open last reported one.
    pub fn flush_errors(&self) -> Result<(), FsError> {
        match self.inode.error_mark() == self.opened_at {
            true => Ok(()),
            false => self.inode.error_since(&self.error_mark),
        }
    }
    /// From now on, while this is open, locks of the file are taken no wider than what is read or written; or, with `false`, as wide as
    /// the OSTs give them.
    pub fn set_no_expand(&self, on: bool) {
        self.stream.no_expand.set(on);
    }
    /// Whether it goes on: not every descriptor of it is closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.stream.released.get()
    }
}
