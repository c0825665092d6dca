//! Look-up, attributes, symlink targets, paths.
use types::{Fid, FsError};
use wire::mdt::{Fid2pathRequest, GetattrRequest, InodeRequest, LockBits, LookupRequest};

use super::{DEPTH_MAX, EntryOut, NAME_BYTES_MAX};
use crate::keys;
use crate::perm::MAY_EXEC;
use crate::record::InodeFlags;
use crate::tx::{Done, Tx};

/// Links that are read at a time.
const LINKS_PER_PAGE: usize = 256;

impl Tx<'_> {
    /// Name to attributes. A name that is not there: a negative answer when a lock on the directory was asked for (the
    /// driver turns it into ENOENT when that lock cannot be had), else ENOENT.
    pub(crate) fn lookup(&mut self, q: &LookupRequest) -> Done<EntryOut> {
        if q.name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong.into());
        }
        let dir = self.inode(q.parent)?;
        if !dir.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        self.may(&q.cred, &dir, MAY_EXEC)?;
        let found = match &q.name[..] {
            b"." => Some(dir.fid),
            b".." => Some(self.parent_of(&dir)?),
            name => self.find_entry(dir.fid, name)?.map(|(fid, _, _)| fid),
        };
        let mut out = match found {
            Some(fid) => {
                let inode = self.inode_of_store(fid)?;
                self.entry(inode, q.lock_bits & LockBits::LAYOUT != 0)?
            }
            None if q.parent_cookie == 0 || dir.has(InodeFlags::ORPHAN) => return Err(FsError::NotFound.into()),
            None => EntryOut::default(),
        };
        (out.bits, out.cookie) = (q.lock_bits, q.lock_cookie);
        (out.parent_fid, out.parent_cookie) = (dir.fid, q.parent_cookie);
        out.parent = Some(dir);
        Ok(out)
    }

    /// FID to attributes.
    pub(crate) fn getattr(&mut self, q: &GetattrRequest) -> Done<EntryOut> {
        let inode = self.inode(q.fid)?;
        let mut out = self.entry(inode, q.lock_bits & LockBits::LAYOUT != 0)?;
        (out.bits, out.cookie) = (q.lock_bits, q.lock_cookie);
        Ok(out)
    }

    /// Target of a symbolic link.
    pub(crate) fn readlink(&mut self, q: &InodeRequest) -> Done<Vec<u8>> {
        let inode = self.inode(q.fid)?;
        if !inode.is_symlink() {
            return Err(FsError::Invalid.into());
        }
        Ok(inode.tail)
    }

    /// The path of the `link`-th name of an inode, from the root, without a leading slash; empty for the root.
    pub(crate) fn fid2path(&mut self, q: &Fid2pathRequest) -> Done<Vec<u8>> {
        let inode = self.inode(q.fid)?;
        let (mut parent, mut place) = (inode.parent, inode.place);
        if q.link > 0 {
            let (mut from, to) = keys::of_fid(keys::LINK, q.fid);
            let mut before = q.link as usize - 1;
            let key = loop {
                let (links, next) = self.range(&from, &to, LINKS_PER_PAGE)?;
                if let Some((key, _)) = links.get(before) {
                    break key.clone();
                }
                before -= links.len();
                from = next.ok_or(FsError::NotFound)?;
            };
            let mut fid = [0; 16];
            fid.copy_from_slice(key.get(17..33).ok_or(FsError::Corrupt)?);
            (parent, place) = (Fid::from_key(&fid), keys::last_u64(&key).ok_or(FsError::Corrupt)?);
        }
        if q.fid == self.root || q.fid == Fid::ROOT {
            return Ok(Vec::new());
        }
        let mut parts = Vec::new();
        for _ in 0..DEPTH_MAX {
            if parent.is_zero() || parent == Fid::ROOT && parent != self.root {
                return Err(FsError::NotFound.into());
            }
            let (name, _) = self.entry_at(parent, place)?.ok_or(FsError::NotFound)?;
            parts.push(name);
            if parent == self.root {
                parts.reverse();
                return Ok(parts.join(&b'/'));
            }
            let dir = self.inode_of_store(parent)?;
            (parent, place) = (dir.parent, dir.place);
        }
        Err(FsError::Loop.into())
    }
}
