//! What a program loses when its bytes change: setuid, setgid, capabilities.
//!
//! A kernel that was told that the file system sees to it changes nothing of its own, and believes the old mode until
//! it is told to forget it. So that nobody executes a changed program with the old rights, that comes before the answer.
use std::rc::Rc;

use types::FsError;
use wire::mdt::{AttrFlags, Cred, SetBits, SetattrRequest};

use crate::client::Client;
use crate::inode::Inode;
use crate::open::OpenFile;

const SET_IDS: u32 = 0o6000;
const CAPABILITY: &[u8] = b"security.capability";

/// Whether it has attributes of which one may be a capability that was set since it was looked for.
fn may_have_capability(inode: &Inode) -> bool {
    let attr = inode.attr();
    attr.flags & AttrFlags::HAS_XATTRS != 0 && inode.without_capability.get() != Some(attr.ctime)
}

impl Client {
    /// Whether [`Client::drop_privileges`] would do anything.
    #[must_use]
    pub fn has_privileges(&self, file: &OpenFile, ids: bool) -> bool {
        let inode = file.inode();
        let attr = inode.attr();
        !inode.attr_valid() || ids && attr.mode & SET_IDS != 0 || may_have_capability(inode)
    }

    /// The file's bytes are about to change: capabilities go, and with `ids` (the caller may not keep them) the set-id
    /// bits. The kernel has forgotten its attributes when this ends, if anything went.
    ///
    /// # Errors
    /// What the metadata server answers.
    pub async fn drop_privileges(self: &Rc<Self>, file: &Rc<OpenFile>, ids: bool) -> Result<(), FsError> {
        let inode = file.inode();
        let mut gone = false;
        if !inode.attr_valid() {
            // Attributes that come with a lock need not be asked for at the next write.
            self.fetch_attr(&Cred { caps: 1, ..Cred::default() }, inode, Some(file)).await?;
        }
        if ids && inode.attr().mode & SET_IDS != 0 {
            let request = SetattrRequest { valid: SetBits::KILL_PRIV, ..SetattrRequest::default() };
            self.setattr(file.cred(), inode, request, Some(file)).await?;
            gone = true;
        }
        if may_have_capability(inode) {
            let looked_at = inode.attr().ctime;
            let root = Cred { caps: 3, ..Cred::default() };
            match self.setxattr(&root, inode.fid, CAPABILITY, None, 0, false).await {
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
