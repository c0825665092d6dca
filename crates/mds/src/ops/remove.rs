//! unlink and rmdir; the end of inodes.
use types::{Fid, FsError};
use wire::changelog::{ChangeKind, ChangeRecord};
use wire::mdt::{LockBits, UnlinkRequest};

use super::{EntryOut, check_name};
use crate::keys;
use crate::perm::MAY_EXEC;
use crate::record::{Inode, InodeFlags};
use crate::tx::{Done, Tx, damaged};

/// Xattrs removed in one read when an inode goes.
const XATTR_SCAN_KEYS: usize = 1024;

impl Tx<'_> {
    /// unlink, rmdir. Answers the inode as it is afterwards (link count 0: that was its last name).
    pub(crate) fn unlink(&mut self, q: &UnlinkRequest) -> Done<EntryOut> {
        match &q.name[..] {
            b"." if q.directory => return Err(FsError::Invalid.into()),
            b".." if q.directory => return Err(FsError::NotEmpty.into()),
            b"." | b".." => return Err(FsError::IsDirectory.into()),
            name => check_name(name)?,
        }
        let mut dir = self.live_dir(q.parent)?;
        self.may(&q.cred, &dir, MAY_EXEC)?;
        let (fid, cookie, _) = self.find_entry(dir.fid, &q.name)?.ok_or(FsError::NotFound)?;
        let mut inode = self.inode_of_store(fid)?;
        self.may_remove(&q.cred, &dir, &inode)?;
        match (q.directory, inode.is_dir()) {
            (true, false) => return Err(FsError::NotDirectory.into()),
            (false, true) => return Err(FsError::IsDirectory.into()),
            (true, true) if inode.entries > 0 => return Err(FsError::NotEmpty.into()),
            _ => {}
        }
        self.rests_on_name(dir.fid, &q.name, Some(fid));
        self.rests_on_rights(&dir)?;
        self.rests_on_names_left(&inode);
        self.remove_entry(dir.fid, cookie)?;
        self.touch_dir(&mut dir, -1, -i32::from(inode.is_dir()));
        self.claim(dir.fid, LockBits::UPDATE);
        self.lose_name(&mut inode, dir.fid, cookie)?;
        let kind = if q.directory { ChangeKind::Rmdir } else { ChangeKind::Unlink };
        self.record(kind, Some(&q.cred), |r| {
            (r.target, r.parent, r.name) = (fid, dir.fid, q.name.clone());
            r.flags = if inode.nlink == 0 { ChangeRecord::LAST_NAME } else { 0 };
        });
        let alone = inode.nlink == 0
            && !self.mds.handles.borrow().others_open(fid, self.client)
            && !self.mds.may_be_opened(fid, Some(self.client));
        Ok(EntryOut { inode: Some(inode), parent: Some(dir), alone, ..EntryOut::default() })
    }

    /// The inode loses the name at (`dir`, `cookie`), whose entry is gone already. The last name takes the inode along,
    /// unless somebody has it open or may still open it (a program may be between its look-up and its open).
    pub(crate) fn lose_name(&mut self, inode: &mut Inode, dir: Fid, cookie: u64) -> Done<()> {
        self.claim(inode.fid, LockBits::LOOKUP | LockBits::UPDATE);
        inode.ctime = self.now;
        self.remove_link(inode, dir, cookie)?;
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink.saturating_sub(1) };
        if inode.nlink > 0 {
            self.put_inode(inode);
            return Ok(());
        }
        // In a replay the opens are not known yet: what is not opened again goes when recovery is over.
        let kept = self.replay || self.mds.handles.borrow().opens(inode.fid) > 0 || self.keep(inode.fid);
        if kept && !types::planted!("orphan-removed") {
            inode.set(InodeFlags::ORPHAN, true);
            self.put(keys::orphan(inode.fid), Some(Vec::new()));
            self.put_inode(inode);
            return Ok(());
        }
        self.remove_inode(inode)
    }

    /// Whether a client may still open the inode, which has no name: then it stays until that ends.
    pub(crate) fn keep(&mut self, fid: Fid) -> bool {
        // In a recovery opens and locks are still being told: what nobody turns out to have goes when it is over.
        let keeps = self.mds.recovering.get() || self.mds.may_be_opened(fid, None);
        if keeps {
            self.mds.handles.borrow_mut().keep(fid);
        }
        keeps
    }

    /// Removes an inode that was kept, if it is nameless and nobody has it open or may open it.
    pub(crate) fn remove_kept(&mut self, fid: Fid) -> Done<()> {
        let inode = self.find_inode(fid)?.filter(|i| i.has(InodeFlags::ORPHAN));
        let Some(inode) = inode else {
            self.mds.handles.borrow_mut().unkeep(fid);
            return Ok(());
        };
        if self.mds.handles.borrow().opens(fid) > 0 || self.keep(fid) {
            return Ok(());
        }
        self.mds.handles.borrow_mut().unkeep(fid);
        self.remove_inode(&inode)
    }

    /// Notes a link: the first one lives in the inode, further ones under keys of their own.
    pub(crate) fn add_link(&mut self, inode: &mut Inode, dir: Fid, cookie: u64) {
        if inode.parent.is_zero() {
            (inode.parent, inode.place) = (dir, cookie);
        } else {
            self.put(keys::link(inode.fid, dir, cookie), Some(Vec::new()));
            inode.entries += 1;
        }
    }

    /// Forgets a link. When it was the one in the inode, another takes its place.
    pub(crate) fn remove_link(&mut self, inode: &mut Inode, dir: Fid, cookie: u64) -> Done<()> {
        if (inode.parent, inode.place) != (dir, cookie) {
            self.put(keys::link(inode.fid, dir, cookie), None);
            inode.entries = inode.entries.saturating_sub(1);
            return Ok(());
        }
        (inode.parent, inode.place) = (Fid::ZERO, 0);
        if inode.is_dir() || inode.entries == 0 {
            return Ok(());
        }
        let (mut from, to) = keys::of_fid(keys::LINK, inode.fid);
        loop {
            let (links, next) = self.range(&from, &to, 16)?;
            if let Some((key, _)) = links.first() {
                let bytes: [u8; 16] =
                    key.get(17..33).and_then(|b| b.try_into().ok()).ok_or_else(|| damaged(key, "not a link key"))?;
                let place = keys::last_u64(key).ok_or_else(|| damaged(key, "not a link key"))?;
                (inode.parent, inode.place) = (Fid::from_key(&bytes), place);
                self.put(key.clone(), None);
                inode.entries -= 1;
                return Ok(());
            }
            match next {
                Some(next) => from = next,
                None => return Err(damaged(&keys::inode(inode.fid), "its links are missing")),
            }
        }
    }

    /// Everything of an inode goes; its objects go to the destroy log.
    pub(crate) fn remove_inode(&mut self, inode: &Inode) -> Done<()> {
        let fid = inode.fid;
        let layout = self.layout_bytes(inode)?;
        if !layout.is_empty() {
            let (_, layout) = layout::xattr::decode_layout(&layout)
                .map_err(|_| damaged(&keys::inode(fid), "its layout is damaged"))?;
            self.destroy(fid, layout.objects());
        }
        if inode.has(InodeFlags::LAYOUT_APART) {
            self.put(keys::layout(fid), None);
        }
        let any =
            InodeFlags::HAS_XATTRS | InodeFlags::HAS_ACL | InodeFlags::HAS_DEFAULT_ACL | InodeFlags::HAS_DIR_LAYOUT;
        if inode.flags & any != 0 {
            let (mut from, to) = keys::of_fid(keys::XATTR, fid);
            loop {
                let (xattrs, next) = self.range(&from, &to, XATTR_SCAN_KEYS)?;
                for (key, _) in xattrs {
                    self.put(key, None);
                }
                let Some(next) = next else { break };
                from = next;
            }
        }
        if inode.has(InodeFlags::ORPHAN) {
            self.put(keys::orphan(fid), None);
        }
        self.put(keys::inode(fid), None);
        self.inode_delta -= 1;
        self.charge_gone(inode);
        // Nobody may open it any more, so there is nothing to wait for in that respect.
        self.claim(fid, u64::from(ldlm::InodeBits::ALL.minus(ldlm::InodeBits::OPEN).0));
        Ok(())
    }
}
