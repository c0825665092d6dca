//! Hard links.
use types::FsError;
use wire::changelog::ChangeKind;
use wire::mdt::{LinkRequest, LockBits};

use super::{EntryOut, LINKS_MAX};
use crate::keys;
use crate::record::{Inode, InodeFlags};
use crate::tx::{Done, Tx};

impl Tx<'_> {
    /// Another name for an inode; the first one for a file made by O_TMPFILE.
    pub(crate) fn link(&mut self, q: &LinkRequest) -> Done<EntryOut> {
        let mut inode = self.inode(q.fid)?;
        let mut dir = self.dir_for_new(&q.cred, q.parent, &q.name)?;
        if inode.is_dir() {
            return Err(FsError::NotPermitted.into());
        }
        if inode.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks.into());
        }
        // A file without a name counts as made when it gets its first one.
        let kind = if inode.has(InodeFlags::ORPHAN) { ChangeKind::Create } else { ChangeKind::Hardlink };
        if inode.has(InodeFlags::ORPHAN) {
            if !inode.has(InodeFlags::LINKABLE) || !self.is_its_to_name(q, &inode) {
                return Err(FsError::NotFound.into());
            }
            inode.set(InodeFlags::ORPHAN | InodeFlags::LINKABLE, false);
            self.put(keys::orphan(inode.fid), None);
        }
        self.rests_on_inode(inode.fid);
        let cookie = self.add_entry(dir.fid, &q.name, inode.fid, inode.dtype())?;
        self.add_link(&mut inode, dir.fid, cookie);
        inode.nlink += u32::from(!types::planted!("link-uncounted"));
        inode.ctime = self.now;
        self.put_inode(&inode);
        self.touch_dir(&mut dir, 1, 0);
        self.claim(dir.fid, LockBits::UPDATE);
        self.claim(inode.fid, LockBits::UPDATE);
        let about = (inode.fid, dir.fid, q.name.clone());
        self.record(kind, Some(&q.cred), |r| (r.target, r.parent, r.name) = about);
        let mut out = self.entry(inode, false)?;
        out.parent = Some(dir);
        Ok(out)
    }

    /// Whether a file without a name is the client's to give one: it has it open. Opens are told after transactions, so that a replay is
    /// believed; of a client that is held to limits where the file's owner asks.
    fn is_its_to_name(&self, q: &LinkRequest, inode: &Inode) -> bool {
        // Where users are others here every open is asked for; elsewhere one may be known to its client alone.
        let has_open = if self.changes_ids() {
            self.mds.handles.borrow().has_open(self.client, inode.fid)
        } else {
            self.mds.has_opened(self.client, inode.fid)
        };
        let is_owners = self.may_speak_of(inode) && inode.uid == q.cred.uid;
        has_open || self.replay && (!self.limited || is_owners)
    }
}
