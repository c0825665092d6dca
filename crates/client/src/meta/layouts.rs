//! Which objects hold a file's bytes; and giving a file a layout before it has any.
use std::rc::Rc;

use types::FsError;
use wire::Op;
use wire::mdt::{AttrFlags, BytesReply, Cred, SetxattrRequest};

use super::Meta;
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

    /// Takes a file's layout in. OSTs that it names and that this client does not know have joined the cluster since: the
    /// map is asked for again.
    pub(crate) async fn learn_layout(self: &Rc<Self>, inode: &Rc<Inode>, layout: &[u8]) -> Result<(), FsError> {
        match self.osts.take_layout(inode, layout) {
            Err(FsError::NoTarget) => {
                self.osts.refresh_map().await?;
                self.osts.take_layout(inode, layout)
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
        let (transno, stored) = (answer.header.transno, answer.decode::<BytesReply>()?.value);
        inode.changed_unseen();
        if !stored.0.is_empty() {
            self.learn_layout(inode, &stored).await?;
            (request.name, request.value) = (STORED_LOV.into(), Some(stored));
            self.sessions.mdc().amend_replay(transno, &request);
        }
        Ok(())
    }
}
