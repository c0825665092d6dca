//! One inode as a client sees it: attributes under lock, the layout's objects, write-back errors, names.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use hashbrown::HashSet;
use layout::{Layout, StripeIndex};
use rt::sync::{Event, Semaphore};
use rustc_hash::FxBuildHasher;
use types::{Fid, FsError, WallTime};

use crate::append::KeptAppend;
use crate::attrs::Attributes;
use crate::client::Client;
use crate::closes::SizeTells;
use crate::front::Front;
use crate::object::Object;
use crate::open::OpenFile;
use crate::short::Watches;

/// A time that nothing has set: before every other.
pub(crate) const UNSET: WallTime = WallTime(i64::MIN);

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

/// While it lives, the inode counts as known to the kernel.
pub(crate) struct Naming(Rc<Inode>);
impl Drop for Naming {
    fn drop(&mut self) {
        self.0.naming.set(self.0.naming.get() - 1);
    }
}

/// A write under way: the layout stays.
pub(crate) struct Writing(Rc<Inode>);
impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writes.set(self.0.writes.get() - 1);
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

/// One inode as a client sees it.
pub struct Inode {
    /// Its id.
    pub fid: Fid,
    pub(crate) client: Weak<Client>,
    pub(crate) attrs: Attributes,
    /// Held by the call that changes the file's size at the OSTs ([`crate::cuts::SizeTurn`]).
    pub(crate) resizing: Semaphore,
    /// Made by this client and written by no other since: what is known of its objects is all there is, as long as the
    /// UPDATE lock that came with it is held (another's first open for writing takes it away).
    pub(crate) ours_alone: Cell<bool>,
    striping: RefCell<Option<Rc<Striping>>>,
    /// Names known to lead here: (parent, name).
    pub(crate) names: RefCell<Vec<(Fid, Vec<u8>)>>,
    /// Writes under way.
    writes: Cell<u32>,
    /// The layout is being replaced; told when that ends.
    layout_changes: Cell<bool>,
    layout_changed: Event,
    pub(crate) opens: Cell<u32>,
    /// Opens through which a program may store to a shared mapping.
    mappable: Cell<u32>,
    /// The opens themselves, for what readahead must hear.
    files: RefCell<Vec<Weak<OpenFile>>>,
    pub(crate) writers: Cell<u32>,
    pub(crate) tells: SizeTells,
    /// Opens that the metadata server does not know of.
    pub(crate) untold: Cell<u32>,
    /// Lookups that the kernel remembers.
    pub(crate) lookups: Cell<u64>,
    /// Answers being made that will tell the kernel of it.
    naming: Cell<u32>,
    /// When it was used last, in uses of inodes.
    pub(crate) last_used: Cell<u64>,
    /// There are too many, and it is one of those that leave.
    pub(crate) unwanted: Cell<bool>,
    /// The change time at which it had no capability.
    pub(crate) without_capability: Cell<Option<WallTime>>,
    /// It may have lost its last name: when the kernel forgets it, so do we.
    pub(crate) unnamed: Cell<bool>,
    /// Modified here since its last attribute fetch.
    pub(crate) mtime: Cell<WallTime>,
    pub(crate) atime: Cell<WallTime>,
    /// Whose I/O it is: of the open that last read or wrote.
    pub(crate) io_owner: Cell<crate::jobs::Doer>,
    /// Grows with every failed write-back; with the last failure.
    errors: Cell<(u64, Option<FsError>)>,
    /// Writes under way, which are told of pages without grant that found no space.
    pub(crate) watches: Watches,
    /// What a kernel in front keeps of it.
    pub(crate) front: Front,
    /// The right of an append that goes on.
    pub(crate) kept_append: KeptAppend,
    /// Every name of this directory, while it is known: made here, and its UPDATE lock never lost since.
    children: RefCell<Option<Children>>,
}

impl Inode {
    pub(crate) fn new(fid: Fid, client: Weak<Client>) -> Rc<Inode> {
        Rc::new(Inode {
            fid,
            client,
            attrs: Attributes::default(),
            resizing: Semaphore::new(1),
            ours_alone: Cell::new(false),
            striping: RefCell::new(None),
            names: RefCell::default(),
            writes: Cell::new(0),
            layout_changes: Cell::new(false),
            layout_changed: Event::new(),
            opens: Cell::new(0),
            mappable: Cell::new(0),
            files: RefCell::default(),
            writers: Cell::new(0),
            tells: SizeTells::default(),
            untold: Cell::new(0),
            lookups: Cell::new(0),
            naming: Cell::new(0),
            last_used: Cell::new(0),
            unwanted: Cell::new(false),
            without_capability: Cell::new(None),
            unnamed: Cell::new(false),
            mtime: Cell::new(UNSET),
            atime: Cell::new(UNSET),
            io_owner: Cell::default(),
            errors: Cell::new((0, None)),
            watches: Watches::default(),
            front: Front::default(),
            kept_append: KeptAppend::default(),
            children: RefCell::new(None),
        })
    }
    /// An open of it began.
    pub(crate) fn opened(&self, file: &Rc<OpenFile>) {
        self.opens.set(self.opens.get() + 1);
        self.mappable.set(self.mappable.get() + u32::from(file.reads_and_writes()));
        self.files.borrow_mut().push(Rc::downgrade(file));
    }
    /// An open of it ended.
    pub(crate) fn closed(&self, file: &Rc<OpenFile>) {
        self.opens.set(self.opens.get() - 1);
        self.mappable.set(self.mappable.get() - u32::from(file.reads_and_writes()));
        let mut files = self.files.borrow_mut();
        if let Some(i) = files.iter().position(|f| std::ptr::eq(f.as_ptr(), Rc::as_ptr(file))) {
            files.swap_remove(i);
        }
    }
    /// Whether pages that a kernel keeps of it may be stored to: it is open for reading and writing here, which a shared
    /// mapping for writing needs, and an open lasts as long as its mappings do.
    #[must_use]
    pub fn is_mappable(&self) -> bool {
        self.mappable.get() > 0
    }
    /// Whether there is such an open.
    pub(crate) fn any_open(&self, is: impl Fn(&Rc<OpenFile>) -> bool) -> bool {
        self.files.borrow().iter().filter_map(Weak::upgrade).any(|f| is(&f))
    }
    /// The opens.
    pub(crate) fn files(&self) -> Vec<Rc<OpenFile>> {
        self.files.borrow().iter().filter_map(Weak::upgrade).collect()
    }
    pub(crate) fn client(&self) -> Option<Rc<Client>> {
        self.client.upgrade()
    }
    /// Whether the kernel knows it, or is about to: it may then open it by its id. Or it is open, and only this client
    /// knows.
    pub(crate) fn is_known_outside(&self) -> bool {
        self.lookups.get() > 0 || self.naming.get() > 0 || self.untold.get() > 0
    }
    /// The kernel is about to be told of it.
    pub(crate) fn naming(self: &Rc<Self>) -> Naming {
        self.naming.set(self.naming.get() + 1);
        Naming(self.clone())
    }
    /// A write begins, right after its layout was settled ([`Client::layout_of`]).
    pub(crate) fn writing(self: &Rc<Self>) -> Writing {
        self.writes.set(self.writes.get() + 1);
        Writing(self.clone())
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
        let total = self.client().map(|c| c.limits.children.clone()).unwrap_or_default();
        *self.children.borrow_mut() = Some(Children { names: HashSet::default(), total });
    }
    /// Its names are no longer known (its lock went).
    pub(crate) fn forget_children(&self) {
        *self.children.borrow_mut() = None;
    }
    pub(crate) fn child_added(&self, name: &[u8]) {
        let mut children = self.children.borrow_mut();
        let room = || self.client().is_none_or(|c| c.limits.has_room_for_child());
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

    /// Takes a layout in, unless the same generation is known.
    pub(crate) fn set_layout(self: &Rc<Self>, bytes: &[u8]) -> Result<(), FsError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(client) = self.client.upgrade() else { return Err(FsError::NotConnected) };
        let (_, layout) = layout::xattr::decode_layout(bytes).map_err(|e| {
            tracing::error!(file = %self.fid, "layout: {e}");
            FsError::from(e)
        })?;
        if self.striping.borrow().as_ref().is_some_and(|s| s.layout == layout) {
            return Ok(());
        }
        self.ours_alone.set(false);
        let mut objects = Vec::with_capacity(layout.objects().len());
        for (i, o) in layout.objects().iter().enumerate() {
            let object = client.object(o.object, o.ost)?;
            *object.inode.borrow_mut() = Rc::downgrade(self);
            object.stripe.set(i as u16);
            objects.push(object);
        }
        *self.striping.borrow_mut() = Some(Rc::new(Striping { layout, objects }));
        Ok(())
    }

    pub(crate) fn writeback_failed(&self, error: FsError) {
        if types::planted!("error-swallowed") {
            return;
        }
        let (n, _) = self.errors.get();
        self.errors.set((n + 1, Some(error)));
    }
    /// The position in the file's error history.
    pub(crate) fn error_mark(&self) -> u64 {
        self.errors.get().0
    }
    /// The error that happened since `mark`, once.
    pub(crate) fn error_since(&self, mark: &Cell<u64>) -> Result<(), FsError> {
        let (n, error) = self.errors.get();
        if mark.replace(n) == n {
            return Ok(());
        }
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
