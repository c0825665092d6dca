//! chmod, chown, truncate, utimens, and clearing set-id bits.
use layout::FILE_SIZE_MAX;
use types::{Fid, FsError, WallTime};
use wire::changelog::ChangeKind;
use wire::mdt::{Cred, LockBits, SetBits, SetattrRequest};

use super::EntryOut;
use crate::keys;
use crate::perm::{ACL_ACCESS, MAY_WRITE, in_group, is_privileged, keeps_setgid, kill_set_ids};
use crate::record::{Inode, S_IFMT, S_ISGID};
use crate::tx::{Done, Tx};

/// What a setattr may set; other bits are those of a close, or unknown, and set nothing.
const SETTABLE: u32 = SetBits::MODE
    | SetBits::UID
    | SetBits::GID
    | SetBits::SIZE
    | SetBits::ATIME
    | SetBits::MTIME
    | SetBits::ATIME_NOW
    | SetBits::MTIME_NOW
    | SetBits::PROJECT
    | SetBits::KILL_PRIV;

impl Tx<'_> {
    /// See the module's head.
    pub(crate) fn setattr(&mut self, q: &SetattrRequest) -> Done<EntryOut> {
        let mut inode = self.inode(q.fid)?;
        let before = inode.clone();
        let has = |bits: u32| q.valid & bits != 0;
        // As a kernel asks for when nothing is to be changed; of others' files not even the time of it is.
        if q.valid & SETTABLE == 0 && self.must_own(&q.cred, &inode).is_err() {
            return self.entry(inode, false);
        }
        self.rests_on_inode(inode.fid);
        if has(SetBits::MODE | SetBits::UID | SetBits::GID | SetBits::PROJECT | SetBits::KILL_PRIV) {
            self.rests_on_rights(&inode)?;
        }
        if has(SetBits::UID | SetBits::GID) {
            self.change_owner(q, &mut inode)?;
        }
        if has(SetBits::MODE) {
            self.change_mode(q, &mut inode)?;
        }
        if has(SetBits::SIZE) {
            self.change_size(q, &mut inode)?;
        }
        self.change_times(q, &mut inode)?;
        if has(SetBits::PROJECT) {
            self.must_own(&q.cred, &inode)?;
            inode.project = q.project;
        }
        if has(SetBits::UID | SetBits::GID | SetBits::PROJECT) {
            self.charge_moved(&q.cred, &before, &inode)?;
            self.own_objects(&before, &inode)?;
        }
        if has(SetBits::KILL_PRIV) {
            // They go with a change of bytes or of the owner, for whoever may make it.
            let asked = has(SetBits::SIZE | SetBits::UID | SetBits::GID) || self.must_own(&q.cred, &before).is_ok();
            if !asked {
                self.may_write_by(q, &before)?;
            }
            kill_set_ids(&mut inode, &q.cred);
        }
        inode.ctime = self.now;
        self.put_inode(&inode);
        let mut bits = LockBits::UPDATE;
        if has(SetBits::MODE | SetBits::UID | SetBits::GID | SetBits::KILL_PRIV) {
            bits |= LockBits::LOOKUP | LockBits::PERM;
        }
        if has(SetBits::SIZE) {
            bits |= LockBits::DATA;
        }
        self.claim(inode.fid, bits);
        self.record_attributes(q);
        self.entry(inode, false)
    }

    /// Whose modification time a setattr that goes through has set, and when.
    pub(crate) fn timed(&self, q: &SetattrRequest) -> Option<(Fid, WallTime)> {
        (q.valid & (SetBits::MTIME | SetBits::MTIME_NOW) != 0).then_some((q.fid, self.now))
    }

    /// Attributes that stand for more come first; what only a client's bookkeeping sets is no record.
    fn record_attributes(&mut self, q: &SetattrRequest) {
        let rights = SetBits::MODE | SetBits::UID | SetBits::GID | SetBits::PROJECT | SetBits::KILL_PRIV;
        let kinds = [
            (SetBits::SIZE, ChangeKind::Truncate),
            (rights, ChangeKind::Setattr),
            (SetBits::MTIME | SetBits::MTIME_NOW, ChangeKind::Mtime),
            (SetBits::ATIME | SetBits::ATIME_NOW, ChangeKind::Atime),
        ];
        if let Some((_, kind)) = kinds.iter().find(|(bits, _)| q.valid & bits != 0) {
            self.record(*kind, Some(&q.cred), |r| r.target = q.fid);
        }
    }

    fn change_owner(&mut self, q: &SetattrRequest, inode: &mut Inode) -> Done<()> {
        let cred = &q.cred;
        let free = is_privileged(cred) || self.is_trusted();
        let owns = cred.uid == inode.uid;
        let (sets_uid, sets_gid) = (q.valid & SetBits::UID != 0, q.valid & SetBits::GID != 0);
        let keeps_uid = owns && q.uid == inode.uid;
        let own_group = owns && (in_group(cred, q.gid) || q.gid == inode.gid);
        if !free && (sets_uid && !keeps_uid || sets_gid && !own_group) {
            return Err(FsError::NotPermitted.into());
        }
        // Whether the caller is of the file's group is about the group that it had. A mode that comes along is what the caller wants
        // after the change of owner.
        if q.valid & SetBits::MODE == 0 {
            kill_set_ids(inode, cred);
        }
        if sets_gid {
            inode.gid = q.gid;
        }
        if sets_uid {
            inode.uid = q.uid;
        }
        Ok(())
    }

    fn change_mode(&mut self, q: &SetattrRequest, inode: &mut Inode) -> Done<()> {
        if inode.is_symlink() {
            return Err(FsError::NotSupported.into());
        }
        self.must_own(&q.cred, inode)?;
        let mut mode = q.mode & 0o7777;
        if mode & S_ISGID != 0 && !keeps_setgid(&q.cred, inode.gid) {
            mode &= !S_ISGID;
        }
        inode.mode = inode.mode & S_IFMT | mode;
        if let Some(mut acl) = self.acl(inode, ACL_ACCESS)? {
            acl.follow_mode(mode);
            self.put(keys::xattr(inode.fid, ACL_ACCESS), Some(acl.encode()));
        }
        Ok(())
    }

    fn change_size(&mut self, q: &SetattrRequest, inode: &mut Inode) -> Done<()> {
        if inode.is_dir() {
            return Err(FsError::IsDirectory.into());
        }
        if !inode.is_file() {
            return Err(FsError::Invalid.into());
        }
        if q.size > FILE_SIZE_MAX {
            return Err(FsError::FileTooBig.into());
        }
        self.may_write_by(q, inode)?;
        inode.size = q.size;
        inode.blocks = q.blocks;
        if self.mds.handles.borrow().writers(inode.fid) == 0 {
            inode.know_size(self.transno);
        }
        inode.mtime = self.now;
        Ok(())
    }

    /// Whether the caller may change the bytes: by the open that it names, or by its rights.
    fn may_write_by(&mut self, q: &SetattrRequest, inode: &Inode) -> Done<()> {
        let by_handle =
            self.mds.handles.borrow().get(self.client, q.handle).is_some_and(|o| o.fid == inode.fid && o.writes);
        // Opens are told after transactions. Of a client that is held to limits nothing is believed that the file's owner could not
        // give himself.
        let replayed_by_handle = self.replay && q.handle.0 != 0 && (!self.limited || inode.uid == q.cred.uid);
        if by_handle || replayed_by_handle { Ok(()) } else { self.may(&q.cred, inode, MAY_WRITE) }
    }

    fn change_times(&mut self, q: &SetattrRequest, inode: &mut Inode) -> Done<()> {
        let has = |bits: u32| q.valid & bits != 0;
        if has(SetBits::ATIME | SetBits::MTIME) {
            self.must_own(&q.cred, inode)?;
        } else if has(SetBits::ATIME_NOW | SetBits::MTIME_NOW) {
            self.may_touch(&q.cred, inode)?;
        }
        if has(SetBits::ATIME) {
            inode.atime = q.atime;
        }
        if has(SetBits::MTIME) {
            inode.mtime = q.mtime;
        }
        if has(SetBits::ATIME_NOW) {
            inode.atime = self.now;
        }
        if has(SetBits::MTIME_NOW) {
            inode.mtime = self.now;
        }
        Ok(())
    }

    /// Times may be set to "now" by the owner and by whoever may write.
    fn may_touch(&mut self, cred: &Cred, inode: &Inode) -> Done<()> {
        if self.must_own(cred, inode).is_ok() { Ok(()) } else { self.may(cred, inode, MAY_WRITE) }
    }
}
