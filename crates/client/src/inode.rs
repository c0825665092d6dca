//! One inode as a client sees it: attributes under lock, the layout's objects, write-back errors, names.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use ::readahead::record::Call;
use ::readahead::{Facts, Plan};
use hashbrown::HashSet;
use layout::{Layout, StripeIndex};
use ldlm::{EnqueueFlags, InodeBits, LockMode, LockPolicyData, ResourceId};
use rt::sync::{Event, Semaphore};
use rustc_hash::FxBuildHasher;
use types::{Extent, Fid, FsError, PAGE_BYTES, WallTime};
use wire::mdt::{Attr, AttrFlags, LockBits};

use crate::attrs::{Attributes, Change, Clock, Moment};
use crate::front::Front;
use crate::in_use::InUse;
use crate::kept_append::KeptAppend;
use crate::kernel::Kernel;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::object::OfFile;
pub(crate) use crate::object::UNSET;
use crate::readahead::{Readahead, Stream};
use crate::short::Watches;
use crate::tells::SizeTells;

/// One object of a file.
pub(crate) type Object = crate::object::Object<Inode>;

/// Largest file: offsets of 8 EiB - 1.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Names remembered of a directory that is known whole; a larger one is asked of the server.
const CHILDREN_MAX: usize = 100_000;

/// Every name of a directory.
struct Children {
    names: HashSet<Vec<u8>, FxBuildHasher>,
    /// Names of all such directories of the client.
    total: Rc<Cell<usize>>,
}
impl Drop for Children {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.names.len());
    }
}

/// A file's layout with the objects behind it, in stripe order.
pub(crate) struct Striping {
    pub(crate) layout: Layout,
    pub(crate) objects: Vec<Rc<Object>>,
}

/// A write under way: the layout stays.
pub(crate) struct Writing(Rc<Inode>);
impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writes.set(self.0.writes.get() - 1);
        if self.0.writes.get() == 0 {
            self.0.unwritten.notify();
        }
    }
}

/// The file is getting other objects (`data/migrate.rs`): writes of this client wait.
pub(crate) struct Frozen(Rc<Inode>);
impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.frozen.set(false);
        self.0.thawed.notify();
    }
}

/// A change of the layout under way: writes wait.
pub(crate) struct LayoutChange(Rc<Inode>);
impl Drop for LayoutChange {
    fn drop(&mut self) {
        self.0.layout_changes.set(false);
        self.0.layout_changed.notify();
    }
}

/// Whoever sees to it that the metadata server learns the size of a file that it may have wrong.
pub(crate) trait SizeKeeper {
    /// The size is asked of the file's OSTs and told; `doubted`: what the metadata server has for it, when that may be right.
    fn settle_size(self: Rc<Self>, inode: &Rc<Inode>, doubted: Option<u64>);
    /// The same a while later: the server could not take it now.
    fn settle_size_later(self: Rc<Self>, inode: &Rc<Inode>);
}

/// What all inodes of a client have in common.
pub(crate) struct Common {
    pub(crate) kernel: Rc<Kernel>,
    /// The locks at the metadata server.
    pub(crate) locks: Rc<Locks>,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) ahead: Rc<Readahead>,
    /// Most bytes of an RPC, as far as readahead goes.
    pub(crate) rpc_bytes: u64,
    pub(crate) keeper: RefCell<Option<Weak<dyn SizeKeeper>>>,
}

impl Common {
    pub(crate) fn keeper(&self) -> Option<Rc<dyn SizeKeeper>> {
        self.keeper.borrow().as_ref().and_then(Weak::upgrade)
    }
    /// Whether a lock on these bits of an inode is held.
    pub(crate) fn holds(&self, fid: Fid, bits: u64) -> bool {
        let data = LockPolicyData::bits(InodeBits(bits as u8));
        self.locks.covers(ResourceId::inode(fid), LockMode::Cr, &data)
    }
}

/// One inode as a client sees it.
pub struct Inode {
    /// Its id.
    pub fid: Fid,
    common: Rc<Common>,
    attrs: Attributes,
    /// Held by the call that changes the file's size at the OSTs ([`crate::cuts::SizeTurn`]).
    pub(crate) resizing: Semaphore,
    /// Made by this client and written by no other since: what is known of its objects is all there is, as long as the
    /// UPDATE lock that came with it is held (another's first open for writing takes it away).
    pub(crate) ours_alone: Cell<bool>,
    striping: RefCell<Option<Rc<Striping>>>,
    /// Names known to lead here: (parent, name).
    pub(crate) names: RefCell<HashSet<(Fid, Vec<u8>), FxBuildHasher>>,
    /// Writes under way; told when none is.
    writes: Cell<u32>,
    unwritten: Event,
    /// It is getting other objects: writes wait; told when that ends.
    frozen: Cell<bool>,
    thawed: Event,
    /// The layout is being replaced; told when that ends.
    layout_changes: Cell<bool>,
    layout_changed: Event,
    pub(crate) opens: Cell<u32>,
    /// How it is read through each of them.
    streams: RefCell<Vec<Rc<Stream>>>,
    pub(crate) writers: Cell<u32>,
    pub(crate) tells: SizeTells,
    /// Opens that the metadata server does not know of.
    pub(crate) untold: Cell<u32>,
    /// When it was used last, in uses of inodes.
    pub(crate) last_used: Cell<u64>,
    /// There are too many, and it is one of those that leave.
    pub(crate) unwanted: Cell<bool>,
    /// The change time at which it had no capability.
    pub(crate) without_capability: Cell<Option<WallTime>>,
    /// A modification time that lies in the future by this client's clock only.
    pub(crate) ahead_by_clock: Cell<Option<WallTime>>,
    /// It may have lost its last name: when the kernel forgets it, so do we.
    pub(crate) unnamed: Cell<bool>,
    /// Modified here since its last attribute fetch.
    pub(crate) mtime: Cell<WallTime>,
    pub(crate) atime: Cell<WallTime>,
    /// Whose I/O it is: of the open that last read or wrote.
    pub(crate) io_owner: Cell<crate::jobs::Doer>,
    /// Grows with every failed write-back; with the last failure.
    errors: Cell<(u64, Option<FsError>)>,
    /// An fsync or close answered the last of them.
    error_is_told: Cell<bool>,
    /// Writes under way, which are told of pages without grant that found no space.
    pub(crate) watches: Rc<Watches>,
    /// What a kernel in front keeps of it.
    pub(crate) front: Rc<Front>,
    /// The right of an append that goes on.
    pub(crate) kept_append: KeptAppend,
    /// Every name of this directory, while it is known: made here, and its UPDATE lock never lost since.
    children: RefCell<Option<Children>>,
}

impl Inode {
    pub(crate) fn new(fid: Fid, common: &Rc<Common>) -> Rc<Inode> {
        Rc::new(Inode {
            fid,
            common: common.clone(),
            attrs: Attributes::default(),
            resizing: Semaphore::new(1),
            ours_alone: Cell::new(false),
            striping: RefCell::new(None),
            names: RefCell::default(),
            writes: Cell::new(0),
            unwritten: Event::new(),
            frozen: Cell::new(false),
            thawed: Event::new(),
            layout_changes: Cell::new(false),
            layout_changed: Event::new(),
            opens: Cell::new(0),
            streams: RefCell::default(),
            writers: Cell::new(0),
            tells: SizeTells::default(),
            untold: Cell::new(0),
            last_used: Cell::new(0),
            unwanted: Cell::new(false),
            without_capability: Cell::new(None),
            ahead_by_clock: Cell::new(None),
            unnamed: Cell::new(false),
            mtime: Cell::new(UNSET),
            atime: Cell::new(UNSET),
            io_owner: Cell::default(),
            errors: Cell::new((0, None)),
            error_is_told: Cell::new(false),
            watches: Rc::default(),
            front: Front::new(fid, common.kernel.clone()),
            kept_append: KeptAppend::default(),
            children: RefCell::new(None),
        })
    }
    /// An open of it began, which may read or write.
    pub(crate) fn opened(&self, stream: &Rc<Stream>, reads: bool, writes: bool) {
        self.opens.set(self.opens.get() + 1);
        self.front.open_begins(reads, writes);
        self.streams.borrow_mut().push(stream.clone());
    }
    /// An open of it ended.
    pub(crate) fn closed(&self, stream: &Rc<Stream>, reads: bool, writes: bool) {
        self.opens.set(self.opens.get() - 1);
        self.front.open_ends(reads, writes);
        let mut streams = self.streams.borrow_mut();
        if let Some(i) = streams.iter().position(|s| Rc::ptr_eq(s, stream)) {
            streams.swap_remove(i);
        }
        self.common.ahead.forget(stream);
    }
    /// How its locks are asked for: some open may want them no wider than what it reads or writes.
    pub(crate) fn enqueue_flags(&self) -> EnqueueFlags {
        let narrow = self.streams.borrow().iter().any(|s| s.no_expand.get() && !s.released.get());
        if narrow { EnqueueFlags::NO_EXPAND } else { EnqueueFlags::NONE }
    }
    /// What a kernel in front knows and keeps of it.
    #[must_use]
    pub fn front(&self) -> &Rc<Front> {
        &self.front
    }
    pub(crate) fn note_use(&self, into: &mut InUse) {
        into.add("opens of inodes", self.opens.get().into());
        into.add("streams", self.streams.borrow().len() as u64);
        into.add("writers", self.writers.get().into());
        into.add("writers in use", self.tells.writers_in_use().into());
        into.add("sizes being told", self.tells.under_way().into());
        into.add("untold opens", self.untold.get().into());
        into.add("writes", self.writes.get().into());
        into.add("watches of writes", self.watches.len());
        into.add_if("files that get other objects", self.frozen.get() || self.layout_changes.get());
        into.add_if("turns to change a size", self.resizing.available() != 1);
        into.add_if("kept appends", self.kept_append.is_kept());
        self.front.note_use(into);
    }
    /// The kernel in front.
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.common.kernel
    }
    /// Whether the kernel knows it, or is about to: it may then open it by its id. Or it is open, and only this client
    /// knows.
    pub(crate) fn is_known_outside(&self) -> bool {
        self.front.is_known() || self.untold.get() > 0
    }
    /// Whether a lock on these bits is held.
    pub(crate) fn holds(&self, bits: u64) -> bool {
        self.common.holds(self.fid, bits)
    }
    /// Whether this client alone decides how large the file is: it made it, and nobody else writes.
    pub(crate) fn is_ours_alone(&self) -> bool {
        self.ours_alone.get() && self.holds(LockBits::UPDATE)
    }
    /// Whether the cached attributes may be believed.
    pub(crate) fn attr_valid(&self) -> bool {
        !self.is_stale() && self.holds(LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM)
    }
    /// Whether the metadata server says, as far as is known here, that another client has the file open for writing, or closed it
    /// so lately that the server has not heard of it.
    #[must_use]
    pub fn is_written_elsewhere(&self) -> bool {
        let flags = self.attr().flags;
        let settled = flags & (AttrFlags::SIZE_KNOWN | AttrFlags::UNSETTLED) != 0;
        flags & AttrFlags::HAS_LAYOUT != 0 && !settled && self.writers.get() == 0
    }
    /// Changes that made the file longer or shorter are gone: neither this client nor its kernel knows the size by itself any more,
    /// and the metadata server may have been told it.
    pub(crate) fn size_is_doubtful(self: &Rc<Self>) {
        self.ours_alone.set(false);
        if let Some(keeper) = self.common.keeper() {
            keeper.settle_size(self, None);
        }
        drop(self.kernel().cache().drop_attributes(self.fid));
    }
    /// A write begins that others wait for: of what the kernel had stored. The layout stays until it ends.
    pub(crate) fn writing(self: &Rc<Self>) -> Writing {
        self.writes.set(self.writes.get() + 1);
        Writing(self.clone())
    }
    /// A write begins, as soon as the file is not getting other objects. The layout stays until it ends; it is looked up after this.
    pub(crate) async fn begin_writing(self: &Rc<Self>) -> Writing {
        loop {
            let thawed = self.thawed.wait();
            if !self.frozen.get() {
                return self.writing();
            }
            thawed.await;
        }
    }
    /// Whether writes wait for other objects.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.get()
    }
    /// No write begins from now on, and none is under way when this returns; `None`: that is so already, for another's sake.
    pub(crate) async fn freeze(self: &Rc<Self>) -> Option<Frozen> {
        if self.frozen.replace(true) {
            return None;
        }
        let frozen = Frozen(self.clone());
        loop {
            let unwritten = self.unwritten.wait();
            if self.writes.get() == 0 {
                return Some(frozen);
            }
            unwritten.await;
        }
    }
    pub(crate) fn is_being_written(&self) -> bool {
        self.writes.get() > 0
    }
    pub(crate) fn change_layout(self: &Rc<Self>) -> LayoutChange {
        self.layout_changes.set(true);
        LayoutChange(self.clone())
    }
    /// Waits until the layout is not being replaced.
    pub(crate) async fn layout_settled(&self) {
        loop {
            let changed = self.layout_changed.wait();
            if !self.layout_changes.get() {
                return;
            }
            changed.await;
        }
    }
    pub(crate) fn striping(&self) -> Option<Rc<Striping>> {
        self.striping.borrow().clone()
    }
    /// The directory was just made by us: it is empty, and stays known.
    pub(crate) fn starts_empty(&self) {
        let total = self.common.limits.children.clone();
        *self.children.borrow_mut() = Some(Children { names: HashSet::default(), total });
    }
    /// Its names are no longer known (its lock went).
    pub(crate) fn forget_children(&self) {
        *self.children.borrow_mut() = None;
    }
    pub(crate) fn child_added(&self, name: &[u8]) {
        let mut children = self.children.borrow_mut();
        let room = || self.common.limits.has_room_for_child();
        if children.as_ref().is_some_and(|c| c.names.len() >= CHILDREN_MAX || !room()) {
            *children = None;
        }
        if let Some(c) = children.as_mut()
            && c.names.insert(name.to_vec())
        {
            c.total.set(c.total.get() + 1);
        }
    }
    pub(crate) fn child_removed(&self, name: &[u8]) {
        if let Some(c) = self.children.borrow_mut().as_mut()
            && c.names.remove(name)
        {
            c.total.set(c.total.get() - 1);
        }
    }
    /// Whether the directory is known to have no such name (ask only under its UPDATE lock).
    pub(crate) fn lacks(&self, name: &[u8]) -> bool {
        self.children.borrow().as_ref().is_some_and(|c| !c.names.contains(name))
    }

    /// Replaces the layout.
    pub(crate) fn set_striping(&self, striping: Striping) {
        self.ours_alone.set(false);
        *self.striping.borrow_mut() = Some(Rc::new(striping));
    }

    /// The attributes as last told.
    #[must_use]
    pub fn attr(&self) -> Attr {
        self.attrs.borrow().clone()
    }
    /// Whether it has several names, as last told. (The links of a directory are not names.)
    pub(crate) fn has_other_names(&self) -> bool {
        let attr = self.attrs.borrow();
        attr.nlink > 1 && attr.mode & 0o170_000 != 0o040_000
    }
    /// Whether attributes are to be asked for whatever locks are held.
    pub(crate) fn is_stale(&self) -> bool {
        self.attrs.is_stale()
    }
    /// Others may have changed the attributes.
    pub(crate) fn outdate(&self) {
        self.attrs.outdate();
    }
    /// A change of ours was answered that does not tell attributes.
    pub(crate) fn changed_unseen(&self) {
        self.attrs.on_change_unseen(self.common.clock.next());
    }
    /// Attributes of the answer to a question that was sent at that moment. Whether they were taken in.
    pub(crate) fn take_answer(&self, sent: Moment, attr: &Attr) -> bool {
        self.attrs.on_answer(self.common.clock.next(), sent, attr)
    }
    /// Attributes of the answer to a change of ours.
    pub(crate) fn take_change(&self, change: Change, attr: &Attr) {
        self.attrs.on_change(self.common.clock.next(), change, attr);
    }
    /// Transactions are numbered anew, or those of this client are lost.
    pub(crate) fn forget_transactions(&self) {
        self.attrs.forget_transactions();
    }

    /// These pages of one of its objects found no space: those who write them are told.
    pub(crate) fn pages_refused(&self, object: &Object, pages: &[u64], why: FsError) {
        let Some(s) = self.striping() else { return };
        let stripe = StripeIndex(object.stripe.get());
        for page in pages {
            if let Ok(first) = s.layout.geometry().file_offset(stripe, page * PAGE_BYTES as u64) {
                self.watches.on_refused(Extent::at(first, PAGE_BYTES as u64), why);
            }
        }
    }
    /// What readahead goes by.
    pub(crate) fn facts(&self, s: &Striping) -> Facts {
        Facts {
            // Of objects without a lock nothing is known: the metadata server's word is good enough to look ahead.
            file_size: self.known_size().max(self.attr().size),
            stripe_size: if s.objects.len() > 1 { s.layout.geometry().stripe_size() } else { 0 },
            rpc_bytes: self.common.rpc_bytes,
            lock: Extent::ALL,
        }
    }

    pub(crate) fn writeback_failed(&self, error: FsError) {
        if types::planted!("error-swallowed") {
            return;
        }
        let (n, _) = self.errors.get();
        self.errors.set((n + 1, Some(error)));
        self.error_is_told.set(false);
    }
    /// The position in the file's error history.
    pub(crate) fn error_mark(&self) -> u64 {
        self.errors.get().0
    }
    /// The position for the fsyncs of a new open: in front of the last error, if nobody was told of it. Whoever closed the file before it
    /// was written out cannot be told any more.
    pub(crate) fn untold_mark(&self) -> u64 {
        let n = self.error_mark();
        let untold = n > 0 && !self.error_is_told.get() && !types::planted!("untold-forgotten");
        n - u64::from(untold)
    }
    /// The error that happened since `mark`, once.
    pub(crate) fn error_since(&self, mark: &Cell<u64>) -> Result<(), FsError> {
        let (n, error) = self.errors.get();
        if mark.replace(n) == n {
            return Ok(());
        }
        self.error_is_told.set(true);
        if types::planted!("error-told-once") && error.is_none() {
            return Ok(());
        }
        if types::planted!("error-told-once") {
            self.errors.set((n, None));
        }
        Err(error.unwrap_or(FsError::Io))
    }

    /// The file's size as far as objects are known locally.
    #[must_use]
    pub fn known_size(&self) -> u64 {
        let Some(s) = self.striping() else { return 0 };
        let g = s.layout.geometry();
        let of = |(i, o): (usize, &Rc<Object>)| g.file_size(StripeIndex(i as u16), o.size()).unwrap_or(u64::MAX);
        s.objects.iter().enumerate().map(of).max().unwrap_or(0)
    }
}

impl OfFile for Inode {
    fn is_open(&self) -> bool {
        self.opens.get() > 0
    }
    fn tell_readahead(&self, stripe: u16, object: Extent, call: fn(Extent) -> Call) {
        let Some(s) = self.striping() else { return };
        let streams = self.streams.borrow().clone();
        let Ok(pieces) = s.layout.geometry().file_pieces(StripeIndex(stripe), object) else { return };
        for piece in pieces {
            for stream in &streams {
                self.common.ahead.call(stream, call(piece.file), &self.facts(&s), &mut Plan::default());
            }
        }
    }
}
