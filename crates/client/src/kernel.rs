//! What a client asks of the caches in front of it (a kernel's, behind a mount). What they keep of each inode, and the
//! rule by which the two never wait for each other, are in [`crate::front`].
use std::cell::RefCell;
use std::rc::Rc;

use rt::{LocalFuture, Rt};
use types::{Extent, Fid};

/// A cache in front of the client that believes what it was told until it is told otherwise.
pub trait KernelCache: 'static {
    /// Forget the attributes of an inode; done when the future completes. Begins at once, also when nobody waits. False: there is no
    /// such inode; one that an answer has just told may not be there yet.
    fn drop_attributes(&self, fid: Fid) -> LocalFuture<bool>;
    /// How often attributes of anything may have been told to it so far, if none are on their way: what was dropped at a number stays
    /// dropped as long as that is the number. `None`: some are, or it is not counted.
    fn told(&self) -> Option<u64> {
        None
    }
    /// Forget the pages of a file range, writing back what is dirty first (writes come in through the mount); of a
    /// directory: its listing.
    fn drop_pages(&self, fid: Fid, extent: Extent) -> LocalFuture<()>;
    /// Believe that a file is at least `size_bytes` long, more than 0, as its mappings do without asking. Done when the future completes.
    fn lengthen(&self, fid: Fid, size_bytes: u64) -> LocalFuture<()> {
        let _ = (fid, size_bytes);
        Box::pin(std::future::ready(()))
    }
    /// Ask again for every name before believing it.
    fn drop_names(&self) -> LocalFuture<()>;
    /// Whether [`KernelCache::let_go`] does anything.
    fn lets_go(&self) -> bool;
    /// Give up what is kept of these inodes and not in use: [`crate::Meta::forget`] follows for what went.
    fn let_go(&self, fids: &[Fid]);
}

/// Nothing in front.
pub struct NoKernel;
impl KernelCache for NoKernel {
    fn drop_attributes(&self, _fid: Fid) -> LocalFuture<bool> {
        Box::pin(std::future::ready(true))
    }
    fn drop_pages(&self, _fid: Fid, _extent: Extent) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn drop_names(&self) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
    fn lets_go(&self) -> bool {
        false
    }
    fn let_go(&self, _fids: &[Fid]) {}
}

/// The cache in front of a client: nothing at first.
pub struct Kernel {
    rt: Rt,
    cache: RefCell<Rc<dyn KernelCache>>,
}

impl Kernel {
    pub(crate) fn new(rt: Rt) -> Rc<Kernel> {
        Rc::new(Kernel { rt, cache: RefCell::new(Rc::new(NoKernel)) })
    }
    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }
    /// Puts a cache in front that must be told when something it believes is no longer true.
    pub fn set(&self, cache: Rc<dyn KernelCache>) {
        *self.cache.borrow_mut() = cache;
    }
    pub(crate) fn cache(&self) -> Rc<dyn KernelCache> {
        self.cache.borrow().clone()
    }
    /// Tells it that its attributes of an inode are old.
    ///
    /// Cancel: a part may be done.
    pub async fn attributes_changed(&self, fid: Fid) {
        self.cache().drop_attributes(fid).await;
    }
    /// Makes it forget the listing of a directory.
    ///
    /// Cancel: a part may be done.
    pub async fn drop_listing(&self, dir: Fid) {
        self.cache().drop_pages(dir, Extent::ALL).await;
    }
}
