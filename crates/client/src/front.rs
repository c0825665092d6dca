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

use rt::sync::{Event, join_all, race};
use types::{Duration, Extent, Fid, FsError};

use crate::in_use::InUse;
use crate::kernel::Kernel;
use crate::short_ends::{Left, PAGE_BYTES, ShortEnds};

/// Times a read is carried out again because a lock of its range went while it waited for another.
const READ_AGAIN_MAX: usize = 4;

/// How long a lock first stays for an inode that the kernel does not have yet: each time twice as long, below the second one.
const NOT_THERE_PAUSE: Duration = Duration::from_micros(500);
/// See [`NOT_THERE_PAUSE`].
const NOT_THERE_MAX: Duration = Duration::from_millis(500);

/// What a kernel in front keeps of one inode.
pub struct Front {
    fid: Fid,
    kernel: Rc<Kernel>,
    /// Lookups that it remembers.
    lookups: Cell<u64>,
    /// Answers being made that will tell it of the inode.
    naming: Cell<u32>,
    /// Opens through which a program may store to a shared mapping.
    mappable: Cell<u32>,
    /// Opens through which a program may read a mapping.
    readers: Cell<u32>,
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
    /// What it has behind an end that is the file's no more, or was cut to.
    short_ends: ShortEnds,
    /// A read begins to wait for a lock.
    waits: Event,
    /// A drop of pages begins.
    drop_begins: Event,
    /// It knows no attributes since they were dropped at this number ([`crate::KernelCache::told`]).
    pub(crate) told_nothing_since: Cell<Option<u64>>,
    /// The size that it believes in since then, or a larger one; 0 where it began to read pages since.
    pub(crate) reaches: Cell<u64>,
    /// An answer was made with attributes to believe, since it was told last to believe none.
    believes: Cell<bool>,
    /// How often it was to forget attributes of an inode that it did not have for long, since it was told so last.
    late: Cell<u64>,
    /// It was told an ACL, or that there is none, since then: it keeps that without a limit of time.
    knows_acl: Cell<bool>,
    /// How often names of the directory changed that it was not told of.
    names_missed: Cell<u64>,
    /// It may keep a listing.
    listing: Cell<bool>,
    /// How often the lock on the directory's names went.
    names_lost: Cell<u64>,
    /// The listing it keeps was told under the lock that is held since `names_lost` was this.
    listed_under: Cell<Option<u64>>,
}

/// While it lives, the inode counts as known to the kernel.
pub(crate) struct Naming(Rc<Front>);
impl Drop for Naming {
    fn drop(&mut self) {
        self.0.naming.set(self.0.naming.get() - 1);
    }
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
    /// The kernel may have pages behind the range locked for it: it waits for nobody.
    more: bool,
}

/// While it lives, kernels' reads of pages of the range wait, unanswered; drops of pages leave them out.
pub(crate) struct Shut(Rc<Front>, Extent);
impl Drop for Shut {
    fn drop(&mut self) {
        let mut shut = self.0.shut.borrow_mut();
        if let Some(i) = shut.iter().position(|e| *e == self.1) {
            shut.swap_remove(i);
        }
        drop(shut);
        self.0.opened.notify();
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
    front: Rc<Front>,
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
    pub(crate) fn begin(front: &Rc<Front>, extent: Extent, more: bool) -> KernelRead {
        let state = Rc::new(ReadState {
            extent,
            waiting: Cell::new(0),
            waited: Cell::new(false),
            tainted: Cell::new(false),
            leased: Cell::new(false),
            more,
        });
        front.filled.set(true);
        front.short_ends.read_anew(extent);
        front.begun.set(front.begun.get() + 1);
        // By a page that ends short a kernel comes to believe in a smaller size.
        front.reaches.set(0);
        front.reads.borrow_mut().push(state.clone());
        KernelRead { front: front.clone(), state, again: Cell::new(0) }
    }
    /// What the kernel keeps of the file.
    pub(crate) fn front(&self) -> &Front {
        &self.front
    }
    /// Whether the range, or a part of it, is being changed otherwise.
    pub(crate) fn is_shut(&self) -> bool {
        self.front.is_shut(self.state.extent)
    }
    /// Whether pages behind its range may be locked for it, which no drop of pages leaves out: it may wait for no lock.
    pub(crate) fn has_more(&self) -> bool {
        self.state.more
    }
    /// Waits until nobody changes the range.
    ///
    /// # Errors
    /// WouldBlock: somebody does, and it may not wait.
    pub(crate) async fn admitted(&self) -> Result<(), FsError> {
        loop {
            let opened = self.front.opened.wait();
            if !self.is_shut() {
                return Ok(());
            }
            if self.has_more() {
                return Err(FsError::WouldBlock);
            }
            let _waiting = self.waiting();
            opened.await;
        }
    }
    /// It begins, with the file's leases or without: nothing was read yet, and what went before is of no concern.
    pub(crate) fn begins(&self, leased: bool) {
        self.state.leased.set(leased);
        self.state.tainted.set(false);
        self.state.waited.set(false);
    }
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.state.waiting.set(self.state.waiting.get() + 1);
        self.state.waited.set(true);
        self.front.waits.notify();
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
        self.front.reads.borrow_mut().retain(|r| !Rc::ptr_eq(r, &self.state));
        if !self.state.tainted.get() || types::planted!("read-left-in-kernel") {
            return;
        }
        let (fid, extent, kernel) = (self.front.fid, self.state.extent, self.front.kernel.cache());
        self.front.kernel.rt().spawn(async move { kernel.drop_pages(fid, extent).await });
    }
}

impl Front {
    pub(crate) fn new(fid: Fid, kernel: Rc<Kernel>) -> Rc<Front> {
        Rc::new(Front {
            fid,
            kernel,
            lookups: Cell::new(0),
            naming: Cell::new(0),
            mappable: Cell::new(0),
            readers: Cell::new(0),
            pages: Cell::new(false),
            filled: Cell::new(false),
            drops: Cell::new(0),
            reads: RefCell::default(),
            begun: Cell::new(0),
            shut: RefCell::default(),
            opened: Event::new(),
            short_ends: ShortEnds::default(),
            waits: Event::new(),
            drop_begins: Event::new(),
            told_nothing_since: Cell::new(None),
            reaches: Cell::new(0),
            believes: Cell::new(false),
            late: Cell::new(0),
            knows_acl: Cell::new(false),
            names_missed: Cell::new(0),
            listing: Cell::new(false),
            names_lost: Cell::new(0),
            listed_under: Cell::new(None),
        })
    }
    /// Whether the kernel remembers the inode: some look-up told it, and it did not forget that one since.
    pub(crate) fn is_remembered(&self) -> bool {
        self.lookups.get() > 0
    }
    /// Whether the kernel knows the inode, or is about to: it may then open it by its id.
    pub(crate) fn is_known(&self) -> bool {
        self.is_remembered() || self.naming.get() > 0
    }
    /// The kernel remembers one more look-up.
    pub(crate) fn remember(&self) {
        self.lookups.set(self.lookups.get() + 1);
    }
    /// The kernel forgot `lookups` look-ups.
    pub(crate) fn forget(&self, lookups: u64) {
        self.lookups.set(self.lookups.get().saturating_sub(lookups));
    }
    /// The kernel is about to be told of the inode.
    pub(crate) fn naming(self: &Rc<Self>) -> Naming {
        self.naming.set(self.naming.get() + 1);
        Naming(self.clone())
    }
    /// An open begins: through one that `reads` a program may map the file, and store to a shared mapping if it `writes`, too.
    pub(crate) fn open_begins(&self, reads: bool, writes: bool) {
        self.readers.set(self.readers.get() + u32::from(reads));
        self.mappable.set(self.mappable.get() + u32::from(reads && writes));
    }
    /// Such an open ends.
    pub(crate) fn open_ends(&self, reads: bool, writes: bool) {
        self.readers.set(self.readers.get() - u32::from(reads));
        self.mappable.set(self.mappable.get() - u32::from(reads && writes));
    }
    /// How many reads of pages a kernel began.
    pub(crate) fn reads_begun(&self) -> u64 {
        self.begun.get()
    }
    /// Whether programs may have mapped it: it is open for reading here, and an open lasts as long as its mappings do.
    pub(crate) fn may_be_mapped(&self) -> bool {
        self.readers.get() > 0
    }
    /// Whether pages that a kernel keeps of it may be stored to: it is open for reading and writing here, which a shared
    /// mapping for writing needs, and an open lasts as long as its mappings do.
    #[must_use]
    pub fn is_mappable(&self) -> bool {
        self.mappable.get() > 0
    }
    /// From now on a kernel may hold pages of this inode: they are dropped when a lock goes.
    /// Says whether it did already.
    pub fn set_kernel_pages(&self) -> bool {
        self.pages.replace(true)
    }
    /// Whether the kernel is dropping pages of it just now.
    pub(crate) fn is_dropping(&self) -> bool {
        self.drops.get() > 0
    }
    /// Waits until the kernel begins to drop pages of it.
    pub(crate) async fn until_dropping(&self) {
        loop {
            let begins = self.drop_begins.wait();
            if self.is_dropping() {
                return;
            }
            begins.await;
        }
    }
    /// A lock goes, or the file changed otherwise than the kernel believes: it forgets the file's pages, but for those
    /// that reads waiting for a lock keep locked. What was stored to them comes back before this ends.
    ///
    /// Cancel: a part may be done.
    pub async fn drop_kernel_pages(&self) {
        let front = self;
        let (begun, idle) = (front.begun.get(), front.reads.borrow().is_empty());
        self.drop_kernel_range(Extent::ALL).await;
        if idle && front.begun.get() == begun {
            front.filled.set(false);
        }
    }
    async fn drop_kernel_range(&self, extent: Extent) {
        let front = self;
        // A word to a kernel that has nothing costs it the answer to what it asks just now.
        if !front.pages.get() || !front.filled.get() {
            return;
        }
        let kernel = self.kernel.cache();
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
    #[must_use]
    pub fn may_have_pages(&self) -> bool {
        self.filled.get()
    }
    /// Whether the kernel may have pages that a program stores to.
    pub(crate) fn may_have_stores(&self) -> bool {
        self.is_mappable() && self.filled.get()
    }
    /// The range is about to be changed: until the guard is dropped a kernel reads no page of it.
    pub(crate) fn shut(self: &Rc<Self>, extent: Extent) -> Shut {
        let extent = extent.align_out(4096);
        self.shut.borrow_mut().push(extent);
        Shut(self.clone(), extent)
    }
    /// The same, with the kernel's pages of the range gone, when it may have any that a program stores to: a page that
    /// is read before the change and stored to after it would bring the old bytes back.
    pub(crate) async fn shut_for_change(self: &Rc<Self>, extent: Extent) -> Option<Shut> {
        // Else it may make the file longer in the eyes of a kernel that has bytes behind the end.
        self.short_ends_gone().await;
        if !self.may_have_stores() {
            return None;
        }
        let shut = self.shut(extent);
        if !types::planted!("change-keeps-pages") {
            self.drop_kernel_range(shut.1).await;
        }
        Some(shut)
    }

    /// A range was written that was not shut, past the kernel's pages: what it read of it meanwhile goes before the answer. Of an
    /// asynchronous write it drops pages when it sends it, and none behind the answer.
    pub(crate) async fn was_written(&self, extent: Extent) {
        if !types::planted!("async-write-keeps-pages") {
            self.drop_kernel_range(extent.align_out(PAGE_BYTES)).await;
        }
    }

    /// The kernel writes pages back up to `end`, of a file of `size` bytes. Where it believes the file to end there, and it does not, the page
    /// with that end is dropped: not waited for, since the drop waits for the answer.
    pub(crate) fn writes_back(self: &Rc<Self>, end: u64, size: u64) {
        let Some(zeroed) = ShortEnds::zeroed_by(end, size).filter(|_| !types::planted!("short-end-kept")) else {
            return;
        };
        self.drop_behind(zeroed, Left::Zeros, zeroed.align_out(PAGE_BYTES));
    }
    /// The file was cut to `size`. A kernel that believed it to be as long already keeps its pages behind that, and the rest of
    /// the one with the end; so they are dropped. Not waited for: the drop may wait for the answer.
    pub(crate) fn was_cut(self: &Rc<Self>, size: u64) {
        if !self.may_have_pages() || types::planted!("cut-keeps-pages") {
            return;
        }
        let cut = Extent::new(size, size.next_multiple_of(PAGE_BYTES));
        self.drop_behind(cut, Left::Cut, Extent::from(size - size % PAGE_BYTES));
    }
    fn drop_behind(self: &Rc<Self>, nobodys: Extent, left: Left, pages: Extent) {
        let (front, number) = (self.clone(), self.short_ends.begin(nobodys, left));
        self.kernel.rt().spawn(async move {
            front.drop_kernel_range(pages).await;
            front.short_ends.end(number);
        });
    }
    /// Which parts of what a kernel writes back programs have stored.
    pub(crate) fn stores(&self, offset: u64, data: &[u8]) -> Vec<Extent> {
        self.short_ends.stores(offset, data)
    }
    /// Whether the kernel may have bytes behind an end that are not the file's.
    pub(crate) fn has_short_ends(&self) -> bool {
        self.short_ends.count() > 0
    }
    /// Waits until the kernel has no bytes behind an end that are not the file's: who is told the size next sees the bytes up to it.
    /// May wait for the kernel's drop of a page.
    ///
    /// Cancel: nothing happened.
    pub async fn short_ends_gone(&self) {
        self.short_ends.none_left().await;
    }

    /// A kernel is told a listing of this directory, which it may keep: dropped when the lock on the names goes.
    pub fn set_kernel_listing(&self) {
        self.listing.set(true);
    }
    /// How often the lock on this directory's names went.
    #[must_use]
    pub fn names_lost(&self) -> u64 {
        self.names_lost.get()
    }
    /// The [`Inode::names_lost`] under which the kernel was told the listing it keeps.
    #[must_use]
    pub fn listed_under(&self) -> Option<u64> {
        self.listed_under.get()
    }
    /// A listing begins, whole under the lock that is held since, or not (`None`).
    pub fn set_listed_under(&self, names_lost: Option<u64>) {
        self.listed_under.set(names_lost);
    }
    /// The lock on the names of this directory goes; `true` when a kernel may keep a listing.
    pub(crate) fn loses_names(&self) -> bool {
        self.names_lost.set(self.names_lost.get() + 1);
        self.listed_under.set(None);
        self.listing.replace(false)
    }

    /// How often names of the directory changed by the hand of programs that were killed: an answer from before says nothing of them.
    pub(crate) fn names_missed(&self) -> u64 {
        self.names_missed.get()
    }
    /// Names of the directory changed, and the kernel was told that nothing did; `true` when it may keep a listing.
    pub(crate) fn misses_names(&self) -> bool {
        self.names_missed.set(self.names_missed.get() + 1);
        self.loses_names()
    }

    /// It asks for an ACL.
    pub(crate) fn asks_for_acl(&self) {
        self.knows_acl.set(true);
    }
    /// It is told attributes that it may believe.
    pub(crate) fn believes(&self) {
        self.believes.set(true);
    }
    /// It is to believe its attributes no longer: whether that is to be told. What it does not believe it need not be told to forget,
    /// and what it asks just now it would not take then: neither the size that it reads by.
    pub(crate) fn stops_believing(&self) -> bool {
        self.believes.replace(false)
    }
    pub(crate) fn note_use(&self, into: &mut InUse) {
        into.add("names being told", self.naming.get().into());
        into.add("drops of pages", self.drops.get().into());
        into.add("kernel's reads", self.reads.borrow().len() as u64);
        into.add("shut ranges", self.shut.borrow().len() as u64);
        into.add("mappable opens", self.mappable.get().into());
        into.add("short ends", self.short_ends.count());
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
    /// The kernel is to believe the attributes of an inode no longer, for their lock goes; `permissions`: what it knows of its ACL
    /// neither, which it keeps whatever attributes it believes.
    pub(crate) async fn stop_believing(self: &Rc<Self>, permissions: bool) {
        if !self.is_remembered() || types::planted!("attributes-kept") {
            return;
        }
        let acl = permissions && self.knows_acl.replace(false);
        if self.stops_believing() || acl {
            self.forget_attributes().await;
        }
    }
    /// The kernel forgets the attributes of the inode, if it has it.
    pub(crate) async fn forget_attributes(self: &Rc<Self>) {
        let (mut pause, gives_up) = (NOT_THERE_PAUSE, types::planted!("not-there-yet"));
        // An inode that a kernel was told in an answer is there only when whoever asked goes on; then it would be believed for good. One
        // that it has given up is counted out before long.
        while !self.kernel.cache().drop_attributes(self.fid).await && self.is_remembered() && !gives_up {
            if pause >= NOT_THERE_MAX {
                return self.forget_attributes_late();
            }
            self.kernel.rt().sleep(pause).await;
            pause *= 2;
        }
    }
    /// The same when whoever asked goes on late, for a page of its buffer has to come first: nobody who waits for the lock waits for that.
    fn forget_attributes_late(self: &Rc<Self>) {
        if self.late.replace(self.late.get() + 1) > 0 {
            return;
        }
        let front = self.clone();
        self.kernel.rt().spawn(async move {
            let mut told = 0;
            while front.is_remembered() && told != front.late.get() {
                front.kernel.rt().sleep(NOT_THERE_MAX).await;
                let wanted = front.late.get();
                if front.kernel.cache().drop_attributes(front.fid).await {
                    told = wanted;
                }
            }
            front.late.set(0);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front() -> Rc<Front> {
        Front::new(Fid::new(1, 1), Kernel::new(simworld::TestWorld::new(1, 1 << 20).rt()))
    }

    #[test]
    fn a_drop_leaves_out_what_waiting_reads_keep_locked() {
        let front = front();
        assert!(!front.set_kernel_pages() && front.set_kernel_pages());
        let read = |from, to| KernelRead::begin(&front, Extent::new(from, to), false);
        let (early, late, idle) = (read(5000, 5100), read(20480, 28672), read(100, 200));
        let (one, other) = (late.waiting(), late.waiting());
        let waits = early.waiting();
        let parts = [Extent::new(0, 4096), Extent::new(8192, 20480), Extent::from(28672)];
        assert_eq!(front.apart_from_waiting(), parts);
        drop((waits, one));
        assert_eq!(front.apart_from_waiting(), [Extent::new(0, 20480), Extent::from(28672)], "a part waits still");
        drop(other);
        assert_eq!(front.apart_from_waiting(), [Extent::ALL]);
        assert!(!idle.is_outdated(), "it never waited: the drop waits for its answer");
        for _ in 0..READ_AGAIN_MAX {
            assert!(late.is_outdated() && !late.is_outdated(), "read again, and new then");
            drop(late.waiting());
            assert_eq!(front.apart_from_waiting(), [Extent::ALL]);
        }
        assert!(!late.is_outdated(), "not for ever");
        drop((early, late, idle));
        assert!(front.reads.borrow().is_empty());
    }

    #[test]
    fn ranges_are_shut_as_long_as_somebody_changes_them() {
        let front = front();
        let shut = |from, to| front.is_shut(Extent::new(from, to));
        let (one, other) = (front.shut(Extent::new(5000, 5001)), front.shut(Extent::new(4096, 8192)));
        assert!(shut(4096, 4097) && !shut(0, 4096) && !shut(8192, 9000));
        drop(one);
        assert!(shut(8000, 9000), "the other one goes on");
        drop(other);
        assert!(!shut(0, u64::MAX));
    }
}
