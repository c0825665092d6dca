//! Which objects hold a file's bytes; and giving a file a layout before it has any.
use std::rc::Rc;

use types::FsError;
use wire::Op;
use wire::mdt::{AttrFlags, Cred, EntryReply, GetattrRequest, LockBits, SetxattrReply, SetxattrRequest};

use super::{Meta, Told};
use crate::inode::{Inode, Striping};

/// xattrs that show and set a layout.
const LOV: [&[u8]; 2] = [b"lustre.lov", b"trusted.lov"];
/// What a replay calls the layout that was answered.
const STORED_LOV: &[u8] = b"lustre.lov.stored";
const XATTR_CREATE: u32 = 1;

/// Whether an xattr of this name is a layout.
pub(crate) fn is_layout(name: &[u8]) -> bool {
    LOV.contains(&name)
}

impl Meta {
    /// A file's layout, asked for if it may have got one since; `None`: nobody opened it for writing yet.
    pub(crate) async fn layout_of(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<Option<Rc<Striping>>, FsError> {
        inode.layout_settled().await;
        let may_have_one = || !inode.attr_valid() || inode.attr().flags & AttrFlags::HAS_LAYOUT != 0;
        if inode.striping().is_none() && may_have_one() {
            self.fetch_attr(&Cred { caps: 1, ..Cred::default() }, inode, None).await?;
            inode.layout_settled().await;
        }
        Ok(inode.striping())
    }

    /// What an operation on a file's objects came to. One that is not there, or whose OST has left the cluster, is a sign that the file has
    /// others since: `None`, the operation is to be done again, when it has others than `before`.
    pub(crate) async fn unless_moved<T>(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        before: Option<Rc<Striping>>,
        result: Result<T, FsError>,
    ) -> Result<Option<T>, FsError> {
        if !matches!(result, Err(FsError::NotFound | FsError::NoTarget)) {
            return result.map(Some);
        }
        let is_as_before = || match (&before, inode.striping()) {
            (Some(before), Some(now)) => Rc::ptr_eq(before, &now),
            (before, now) => before.is_none() && now.is_none(),
        };
        if is_as_before() {
            // A file that is gone has no objects, either.
            self.fetch_layout(inode).await.map_err(|e| if e == FsError::Stale { FsError::Io } else { e })?;
        }
        // An object that is lost for good.
        if is_as_before() { Err(FsError::Io) } else { Ok(None) }
    }

    /// Asks for a file's layout, whatever is known of it. Waits for no lock.
    async fn fetch_layout(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<(), FsError> {
        let cred = Cred { caps: 1, ..Cred::default() };
        let request = GetattrRequest { cred, fid: inode.fid, lock_bits: LockBits::LAYOUT, ..GetattrRequest::default() };
        let sent = self.common.clock.next();
        let reply: EntryReply = self.mdt_call(Op::MdtGetattr, &request).await?.decode()?;
        self.take_entry(&reply, 0, 0, Told::Asked(sent)).await.map(drop)
    }

    /// Takes a file's layout in. OSTs that it names and that this client does not know have joined the cluster since: the
    /// map is asked for again.
    pub(crate) async fn learn_layout(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        layout: &[u8],
        capabilities: &[u8],
    ) -> Result<(), FsError> {
        match self.osts.take_layout(inode, layout, capabilities) {
            Err(FsError::NoTarget) => {
                self.osts.refresh_map().await?;
                self.osts.take_layout(inode, layout, capabilities)
            }
            done => done,
        }
    }

    /// Sets a file's layout. One that was written keeps what it has, and nobody is told, as tools that restore xattrs
    /// expect (but with XATTR_CREATE).
    pub(crate) async fn set_layout(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        mut request: SetxattrRequest,
    ) -> Result<(), FsError> {
        inode.layout_settled().await;
        let written = |s: Rc<Striping>| s.objects.iter().any(|o| o.unwritten_pages() > 0 || o.size() > 0);
        if inode.is_being_written() || inode.striping().is_some_and(written) {
            return if request.flags & XATTR_CREATE != 0 { Err(FsError::Exists) } else { Ok(()) };
        }
        let _changing = inode.change_layout();
        let answer = self.mdt_call(Op::MdtSetxattr, &request).await?;
        let (transno, SetxattrReply { layout: stored, proof }) = (answer.header.transno, answer.decode()?);
        inode.changed_unseen();
        if !stored.0.is_empty() {
            self.learn_layout(inode, &stored, &[]).await?;
            if self.sessions.shows_capabilities() {
                self.fetch_layout(inode).await?;
            }
            (request.name, request.value, request.proof) = (STORED_LOV.into(), Some(stored), proof);
            self.sessions.mdc().amend_replay(transno, &request);
        }
        Ok(())
    }
}
