//! What a kernel knows of an inode, and the gate between its write-back and changes of its size.
//!
//! Write-back counts itself in (`writes`). A change of size closes the gate (`nowrite`): it waits until none is under way,
//! and what is to be written back meanwhile waits in a queue until the gate opens again.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use fuse::abi::Attr;
use rt::sync::Event;
use types::Instant;

use crate::file::File;
use crate::lock::Lock;
use crate::pages::Page;

/// A directory's entries as the kernel keeps them: added in the order of one reading, believed once its end was told.
#[derive(Default)]
pub(crate) struct Listing {
    pub names: Vec<Vec<u8>>,
    /// Where the next entry to be added stands.
    pub at: u64,
    pub whole: bool,
    /// Pages of it were dropped while it grew: it never becomes whole.
    pub broken: bool,
    /// The directory's changes and time of change when it began.
    pub began: (u64, u64, u32),
}

/// One inode in the kernel's table.
pub struct Inode {
    /// The daemon's name for it.
    pub nodeid: u64,
    /// Lookups that the daemon counts.
    pub(crate) lookups: Cell<u64>,
    pub(crate) attr: Cell<Attr>,
    pub(crate) valid_until: Cell<Instant>,
    /// The size by which this kernel decides.
    pub(crate) size: Cell<u64>,
    /// When its attributes changed last, in the connection's count: older answers are not believed.
    pub(crate) version: Cell<u64>,
    /// Its size is being changed: no answer about it is believed.
    pub(crate) unstable: Cell<bool>,
    /// Held by writes, cuts, fsync; by changes of a directory's names.
    pub(crate) lock: Lock,
    pub(crate) pages: RefCell<BTreeMap<u64, Rc<Page>>>,
    pub(crate) writes: Cell<u32>,
    pub(crate) nowrite: Cell<bool>,
    pub(crate) settled: Event,
    pub(crate) queued: RefCell<VecDeque<Vec<Rc<Page>>>>,
    /// Open files through which pages can be written back.
    pub(crate) writers: RefCell<Vec<Rc<File>>>,
    pub(crate) opens: Cell<u32>,
    /// Opens that use the page cache: mapped, or not opened for direct I/O.
    pub(crate) cached_opens: Cell<u32>,
    pub(crate) listing: RefCell<Listing>,
    /// Changes of a directory's names through this kernel.
    pub(crate) changes: Cell<u64>,
    /// Failures of write-back so far, and the last one's errno.
    pub(crate) failed: Cell<(u64, i32)>,
}

impl Inode {
    pub(crate) fn new(nodeid: u64) -> Rc<Inode> {
        Rc::new(Inode {
            nodeid,
            lookups: Cell::new(0),
            attr: Cell::default(),
            valid_until: Cell::new(Instant(0)),
            size: Cell::new(0),
            version: Cell::new(0),
            unstable: Cell::new(false),
            lock: Lock::default(),
            pages: RefCell::default(),
            writes: Cell::new(0),
            nowrite: Cell::new(false),
            settled: Event::new(),
            queued: RefCell::default(),
            writers: RefCell::default(),
            opens: Cell::new(0),
            cached_opens: Cell::new(0),
            listing: RefCell::default(),
            changes: Cell::new(0),
            failed: Cell::new((0, 0)),
        })
    }
    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.attr.get().mode & libc::S_IFMT == libc::S_IFREG
    }
    /// The attributes are asked for again before they are believed.
    pub(crate) fn expire(&self) {
        self.valid_until.set(Instant(0));
    }
    /// Pages of a listing that the kernel keeps have been dropped.
    pub(crate) fn drop_listing(&self) {
        let mut listing = self.listing.borrow_mut();
        if listing.whole {
            *listing = Listing::default();
        } else if !listing.names.is_empty() {
            listing.broken = true;
        }
    }
    /// What a kept listing is true of: local changes, and the time of change that the daemon told.
    pub(crate) fn names_state(&self) -> (u64, u64, u32) {
        let attr = self.attr.get();
        (self.changes.get(), attr.mtime, attr.mtimensec)
    }
    /// A name of the directory was changed through this kernel.
    pub(crate) fn names_changed(&self) {
        self.changes.set(self.changes.get() + 1);
        self.expire();
    }
    /// Waits until no write-back is under way and lets none begin. One at a time: under the inode's lock.
    pub(crate) async fn stop_writes(&self) {
        self.nowrite.set(true);
        loop {
            let settled = self.settled.wait();
            if self.writes.get() == 0 {
                return;
            }
            settled.await;
        }
    }
    /// Pages that hold changes or are being written, for reports of hangs.
    #[must_use]
    pub fn state(&self) -> String {
        let pages = self.pages.borrow();
        let count = |f: &dyn Fn(&Page) -> bool| pages.values().filter(|p| f(p)).count();
        format!(
            "node {:x}: {} pages, {} dirty, {} in write-back, {} locked; {} writes under way, {} queued, nowrite {}",
            self.nodeid,
            pages.len(),
            count(&|p| p.dirty.get()),
            count(&|p| p.writeback.get()),
            count(&|p| p.is_locked()),
            self.writes.get(),
            self.queued.borrow().len(),
            self.nowrite.get()
        )
    }
}
