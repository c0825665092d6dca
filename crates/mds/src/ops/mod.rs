//! Namespace operations: plain functions over a [`crate::tx::Tx`], one file per family.
//!
//! Each checks rights, decides the errno, collects changes and claims. None sends anything or waits.
mod close;
mod create;
mod link;
mod lookup;
mod lov;
mod open;
mod readdir;
mod remove;
mod rename;
mod setattr;
mod swap;
mod xattr;

pub(crate) use lov::LOV;

pub(crate) use close::{Closed, changed_data, hides_size};
pub(crate) use open::{OpenOut, is_path, writes};
pub(crate) use readdir::ReaddirOut;

use types::{Fid, FsError};
use wire::Bytes;

use crate::keys;
use crate::perm::ACL_ACCESS;
use crate::record::{Inode, InodeFlags};
use crate::tx::{Done, Tx, damaged};

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Links one inode that is not a directory has at most.
pub const LINKS_MAX: u32 = 65_000;
/// Longest target of a symbolic link in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Directories above one another at most.
pub const DEPTH_MAX: usize = 4096;

/// What an operation answers about an inode; locks are granted when the answer is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryOut {
    /// `None`: a negative answer.
    pub inode: Option<Inode>,
    pub layout: Bytes,
    /// The inode that was made by this operation, or that has got this layout by it, of objects that nobody had.
    pub given: Option<Fid>,
    pub acl: Bytes,
    pub parent: Option<Inode>,
    /// FID of the parent that a lock is wanted on.
    pub parent_fid: Fid,
    pub bits: u64,
    pub cookie: u64,
    pub parent_cookie: u64,
    /// No other client has the inode open or may open it.
    pub alone: bool,
    /// See [`wire::mdt::AttrFlags::TIME_UNTOLD`].
    pub time_untold: bool,
}

/// Checks a name that is to be looked up or made.
pub(crate) fn check_name(name: &[u8]) -> Done<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid.into());
    }
    Ok(())
}
/// Whether the name is "." or "..".
pub(crate) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl Tx<'_> {
    /// The answer about an inode, with its ACL and, when small or `with_layout`, its layout.
    pub(crate) fn entry(&mut self, inode: Inode, with_layout: bool) -> Done<EntryOut> {
        let acl = if inode.has(InodeFlags::HAS_ACL) {
            self.read(&keys::xattr(inode.fid, ACL_ACCESS), |v| Bytes(v.unwrap_or_default().to_vec()))?
        } else {
            Bytes::default()
        };
        let apart = inode.has(InodeFlags::LAYOUT_APART);
        let layout = if apart && !with_layout { Bytes::default() } else { Bytes(self.layout_bytes(&inode)?) };
        let given = (self.made || !self.taken.is_empty()).then_some(inode.fid);
        Ok(EntryOut { inode: Some(inode), layout, given, acl, ..EntryOut::default() })
    }

    /// The stored layout of a file; empty when it has none.
    pub(crate) fn layout_bytes(&mut self, inode: &Inode) -> Done<Vec<u8>> {
        if !inode.has(InodeFlags::HAS_LAYOUT) {
            return Ok(Vec::new());
        }
        if !inode.has(InodeFlags::LAYOUT_APART) {
            return Ok(inode.tail.clone());
        }
        let key = keys::layout(inode.fid);
        self.read(&key, |v| v.map(<[u8]>::to_vec))?
            .ok_or_else(|| damaged(&key, "missing, but the inode says it exists"))
    }

    /// The directory that holds a directory; ENOENT for one that was removed.
    pub(crate) fn parent_of(&self, dir: &Inode) -> Done<Fid> {
        match dir.fid {
            fid if fid == self.root || fid == Fid::ROOT => Ok(fid),
            _ if dir.parent.is_zero() => Err(FsError::NotFound.into()),
            _ => Ok(dir.parent),
        }
    }

    /// Notes that names in `dir` changed.
    pub(crate) fn touch_dir(&mut self, dir: &mut Inode, entries: i64, subdirs: i32) {
        dir.entries = dir.entries.saturating_add_signed(entries);
        dir.nlink = dir.nlink.saturating_add_signed(subdirs);
        dir.mtime = self.now;
        dir.ctime = self.now;
        self.put_counts(dir);
    }
}
