//! Changes of attributes that concern a file's bytes, and changes of bytes that concern its attributes: size, times, and what a
//! program loses when its bytes change (setuid, setgid, capabilities).
//!
//! A kernel that was told that the file system sees to the latter changes nothing of its own, and believes the old mode until
//! it is told to forget it. So that nobody executes a changed program with the old rights, that comes before the answer.
use std::rc::Rc;

use rt::LocalFuture;
use types::{Duration, Extent, FsError};
use wire::Op;
use wire::mdt::{AttrFlags, Cred, SetBits, SetattrRequest};

use crate::client::Client;
use crate::goes_on::goes_on;
use crate::inode::{FILE_BYTES_MAX, Inode, UNSET};
use crate::open_file::OpenFile;

const SET_IDS: u32 = 0o6000;
const CAPABILITY: &[u8] = b"security.capability";
/// How far ahead of this client's clock a modification time has to be to be one that somebody set: clocks of hosts differ.
const AHEAD: Duration = Duration::from_secs(60);

/// Whether it has attributes of which one may be a capability that was set since it was looked for.
fn may_have_capability(inode: &Inode) -> bool {
    let attr = inode.attr();
    attr.flags & AttrFlags::HAS_XATTRS != 0 && inode.without_capability.get() != Some(attr.ctime)
}

impl Client {
    /// Changes attributes; bits and values as in [`SetattrRequest`], whose `fid` and `cred` are filled in here.
    ///
    /// Cancel: goes on by itself.
    ///
    /// # Errors
    /// As chmod(2), chown(2), truncate(2), utimensat(2).
    pub async fn setattr(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        request: SetattrRequest,
        file: Option<&Rc<OpenFile>>,
    ) -> Result<(), FsError> {
        let (me, cred, inode, file) = (self.clone(), cred.clone(), inode.clone(), file.cloned());
        goes_on(self.sessions.alone(), async move { me.setattr_now(&cred, &inode, request, file.as_deref()).await })
            .await
    }

    async fn setattr_now(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        request: SetattrRequest,
        file: Option<&OpenFile>,
    ) -> Result<(), FsError> {
        if request.valid & SetBits::SIZE == 0 || file.is_some() {
            return self.change_attr(cred, inode, request, file).await;
        }
        const O_WRONLY: u32 = 1;
        // Whether the caller may is the metadata server's decision, and it comes before any byte goes. While the open lasts,
        // nobody takes the server's record of the size for true, whatever becomes of us half way.
        let opened = self.open(cred, inode.fid, O_WRONLY).await?;
        let done = self.change_attr(cred, inode, request, Some(&opened)).await;
        opened.dirty.set(true);
        let closed = self.release(&opened).await;
        done.and(closed)
    }

    async fn change_attr(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        mut request: SetattrRequest,
        file: Option<&OpenFile>,
    ) -> Result<(), FsError> {
        request.cred = cred.clone();
        request.fid = inode.fid;
        request.handle = file.map(|f| f.handle.get()).unwrap_or_default();
        // What they bring home is older than this change.
        self.meta.settle_closes(inode.fid).await;
        if request.valid & SetBits::SIZE != 0 {
            if request.size > FILE_BYTES_MAX {
                return Err(FsError::FileTooBig);
            }
            self.leave_future(inode).await?;
            if let Some(file) = file {
                // A cut that fails, or is done on some of its OSTs only, leaves another size than the metadata server's.
                file.dirty.set(true);
            }
            self.data.truncate_objects(inode, request.size).await?;
        }
        let explicit_mtime =
            request.valid & (SetBits::MTIME | SetBits::MTIME_NOW) != 0 && request.valid & SetBits::SIZE == 0;
        if explicit_mtime {
            self.data.settle_times(inode, &request).await?;
        }
        let (change, reply) = self.meta.change_names(Op::MdtSetattr, &request).await?;
        self.meta.changed_behind(inode, change, &reply.attr);
        if explicit_mtime {
            inode.mtime.set(UNSET);
        }
        Ok(())
    }

    pub(crate) async fn truncate(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        size: u64,
        file: Option<&Rc<OpenFile>>,
    ) -> Result<(), FsError> {
        // An open holds nothing in the kernel that a drop of pages waits for.
        let _shut = inode.front.shut(Extent::from(size));
        inode.front.drop_kernel_pages().await;
        let request = SetattrRequest { valid: SetBits::SIZE | SetBits::MTIME_NOW, size, ..SetattrRequest::default() };
        self.setattr(cred, inode, request, file).await
    }
    /// Whether [`Client::drop_privileges`] would do anything.
    #[must_use]
    pub fn has_privileges(&self, file: &OpenFile, ids: bool) -> bool {
        let inode = file.inode();
        let attr = inode.attr();
        !inode.attr_valid() || ids && attr.mode & SET_IDS != 0 || may_have_capability(inode) || self.is_ahead(inode)
    }

    /// Whether the modification time lies in the future, because somebody set it.
    fn is_ahead(&self, inode: &Inode) -> bool {
        let (mtime, now) = (inode.attr().mtime, self.rt().wall());
        let by = Duration::from_nanos(u64::try_from(mtime.0.saturating_sub(now.0)).unwrap_or(0));
        by > AHEAD && inode.ahead_by_clock.get() != Some(mtime)
    }

    /// The file is about to change. Times of bytes only grow, here and at the OSTs: one that was set and lies in the future becomes that
    /// of now before, or the change would leave it.
    async fn leave_future(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<bool, FsError> {
        if !self.is_ahead(inode) {
            return Ok(false);
        }
        let root = Cred { caps: 3, ..Cred::default() };
        let request = SetattrRequest { valid: SetBits::MTIME_NOW, ..SetattrRequest::default() };
        let (me, inode) = (self.clone(), inode.clone());
        let set: LocalFuture<Result<bool, FsError>> = Box::pin(async move {
            let set = match me.setattr(&root, &inode, request, None).await {
                // This client's root is not the servers': the time stays.
                Err(FsError::NotPermitted | FsError::Access) => Ok(false),
                set => set.map(|()| true),
            };
            // Where it still is, the server's clock is, too.
            inode.ahead_by_clock.set(Some(inode.attr().mtime));
            set
        });
        set.await
    }

    /// Takes the capability of a file away that `by` writes: as root, or, where this client's root is not the servers', as `by`.
    ///
    /// # Errors
    /// `NoData`: it has none; what the server answers.
    async fn remove_capability(self: &Rc<Self>, by: &Cred, inode: &Rc<Inode>) -> Result<(), FsError> {
        let root = Cred { caps: 3, ..Cred::default() };
        match self.setxattr(&root, inode.fid, CAPABILITY, None, 0, false).await {
            Err(FsError::NotPermitted | FsError::Access) => {
                self.getxattr(by, inode.fid, CAPABILITY).await?;
                self.setxattr(by, inode.fid, CAPABILITY, None, 0, false).await
            }
            done => done,
        }
    }

    /// The file's bytes are about to change by the hand of `by`, who need not be who opened it: capabilities go, and with `ids` (`by`
    /// may not keep them) the set-id bits; so does a modification time in the future. The kernel has forgotten its attributes when this ends, if anything went.
    ///
    /// Cancel: goes on by itself.
    ///
    /// # Errors
    /// What the metadata server answers.
    pub async fn drop_privileges(self: &Rc<Self>, file: &Rc<OpenFile>, by: &Cred, ids: bool) -> Result<(), FsError> {
        let (me, file, by) = (self.clone(), file.clone(), by.clone());
        goes_on(self.sessions.alone(), async move { me.drop_privileges_now(&file, &by, ids).await }).await
    }

    async fn drop_privileges_now(self: &Rc<Self>, file: &Rc<OpenFile>, by: &Cred, ids: bool) -> Result<(), FsError> {
        let inode = file.inode();
        let mut gone = false;
        if !inode.attr_valid() {
            // Attributes that come with a lock need not be asked for at the next write.
            self.meta.fetch_attr(&Cred { caps: 1, ..Cred::default() }, inode, Some(file)).await?;
        }
        if ids && inode.attr().mode & SET_IDS != 0 {
            let request = SetattrRequest { valid: SetBits::KILL_PRIV, ..SetattrRequest::default() };
            self.setattr(by, inode, request, Some(file)).await?;
            gone = true;
        }
        gone |= self.leave_future(inode).await?;
        if may_have_capability(inode) {
            let looked_at = inode.attr().ctime;
            match self.remove_capability(by, inode).await {
                Ok(()) => gone = true,
                Err(FsError::NoData) => inode.without_capability.set(Some(looked_at)),
                Err(e) => return Err(e),
            }
        }
        if gone {
            self.common.kernel.cache().drop_attributes(inode.fid).await;
        }
        Ok(())
    }
}
