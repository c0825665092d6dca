//! Who may do what: mode bits, ACLs, sticky directories, set-id bits. Checked here whatever a client's kernel checked.
use types::FsError;
use wire::mdt::Cred;

use crate::acl::Acl;
use crate::keys;
use crate::record::{Inode, InodeFlags, S_ISGID, S_ISUID, S_ISVTX, S_IXGRP};
use crate::tx::{Done, Tx, damaged};

/// Read.
pub const MAY_READ: u32 = 4;
/// Write.
pub const MAY_WRITE: u32 = 2;
/// Execute, or search a directory.
pub const MAY_EXEC: u32 = 1;

/// The xattr of an access ACL.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The xattr of a default ACL.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// The bits of a mode that show a group's rights, or with an ACL its mask.
const GROUP_BITS: u32 = 0o070;

/// Whether the caller stands above permissions.
#[must_use]
pub fn is_privileged(cred: &Cred) -> bool {
    cred.uid == 0 || cred.caps & Cred::ABOVE_PERMISSIONS != 0
}
/// Whether the caller is in the group.
#[must_use]
pub fn in_group(cred: &Cred, gid: u32) -> bool {
    cred.gid == gid || cred.groups.contains(&gid)
}
/// Whether the caller may keep a setgid bit for this group.
#[must_use]
pub fn keeps_setgid(cred: &Cred, gid: u32) -> bool {
    in_group(cred, gid) || cred.uid == 0 || cred.keeps_set_ids()
}

/// Clears setuid and setgid as a write or a change of owner by this caller does. Directories keep theirs.
pub fn kill_set_ids(inode: &mut Inode, cred: &Cred) {
    if inode.is_dir() {
        return;
    }
    let keep_group = inode.mode & S_IXGRP == 0 && keeps_setgid(cred, inode.gid);
    inode.mode &= !S_ISUID;
    if !keep_group {
        inode.mode &= !S_ISGID;
    }
}

impl Tx<'_> {
    /// Whether the caller may do all of `want` with the inode.
    ///
    /// # Errors
    /// `Access`.
    pub fn may(&mut self, cred: &Cred, inode: &Inode, want: u32) -> Done<()> {
        if self.is_trusted() || self.is_permitted(cred, inode, want)? { Ok(()) } else { Err(FsError::Access.into()) }
    }

    fn is_permitted(&mut self, cred: &Cred, inode: &Inode, want: u32) -> Done<bool> {
        if is_privileged(cred) {
            let runs = inode.is_dir() || inode.mode & 0o111 != 0;
            return Ok(want & MAY_EXEC == 0 || runs);
        }
        // As Linux has it: where the mask gives nothing away, named users and groups are nobody in particular.
        if inode.has(InodeFlags::HAS_ACL) && cred.uid != inode.uid && inode.mode & GROUP_BITS != 0 {
            let acl = self.acl(inode, ACL_ACCESS)?;
            if let Some(acl) = acl {
                return Ok(acl.permits(cred, inode.uid, inode.gid, want));
            }
        }
        let shift = if cred.uid == inode.uid {
            6
        } else if in_group(cred, inode.gid) {
            3
        } else {
            0
        };
        Ok(inode.mode >> shift & want == want)
    }

    /// An ACL of an inode.
    ///
    /// # Errors
    /// `Corrupt` when the stored value is none.
    pub fn acl(&mut self, inode: &Inode, name: &[u8]) -> Done<Option<Acl>> {
        let flag = if name == ACL_ACCESS { InodeFlags::HAS_ACL } else { InodeFlags::HAS_DEFAULT_ACL };
        if !inode.has(flag) {
            return Ok(None);
        }
        let key = keys::xattr(inode.fid, name);
        let acl = self.read(&key, |v| v.map(Acl::parse))?;
        match acl {
            Some(Some(acl)) => Ok(Some(acl)),
            _ => Err(damaged(&key, "not an ACL, but the inode says it has one")),
        }
    }

    /// Whether the caller may add or remove names in the directory.
    ///
    /// # Errors
    /// `Access`.
    pub fn may_change_dir(&mut self, cred: &Cred, dir: &Inode) -> Done<()> {
        self.may(cred, dir, MAY_WRITE | MAY_EXEC)
    }

    /// Whether the caller may remove this name: as [`Tx::may_change_dir`], and the sticky rule.
    ///
    /// # Errors
    /// `Access`, `NotPermitted`.
    pub fn may_remove(&mut self, cred: &Cred, dir: &Inode, victim: &Inode) -> Done<()> {
        self.may_change_dir(cred, dir)?;
        let sticky = dir.mode & S_ISVTX != 0 && cred.uid != victim.uid && cred.uid != dir.uid;
        if sticky && !is_privileged(cred) && !self.is_trusted() {
            return Err(FsError::NotPermitted.into());
        }
        Ok(())
    }

    /// Whether the caller owns the inode or stands above that.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn must_own(&self, cred: &Cred, inode: &Inode) -> Done<()> {
        if self.is_trusted() || cred.uid == inode.uid || is_privileged(cred) {
            Ok(())
        } else {
            Err(FsError::NotPermitted.into())
        }
    }
}
