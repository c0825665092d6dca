//! Directory pages.
use types::{Fid, FsError, HandleId};
use wire::Bytes;
use wire::mdt::{Dirent, ReaddirRequest};

use crate::dirent::{self, COOKIE_MIN};
use crate::keys;
use crate::perm::MAY_READ;
use crate::tx::{Done, Tx, damaged};

/// Least and most bytes of a page.
const PAGE_BYTES: (usize, usize) = (4096, 1 << 20);
/// Wire bytes of an entry besides its name, and those that its attributes add.
const ENTRY_BYTES: usize = 48;
const ATTR_BYTES: usize = 128;

/// A page; locks on the entries are granted when the answer is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReaddirOut {
    pub dir: Fid,
    pub parent: Fid,
    pub entries: Vec<Dirent>,
    pub eof: bool,
    pub lock_cookie: u64,
    pub entry_cookie: u64,
}

impl Tx<'_> {
    /// Entries behind a cookie, in cookie order. "." and ".." are the client's to add: cookies below
    /// [`COOKIE_MIN`] are never used here. With `believed` an open of the client's stands for the right to read.
    pub(crate) fn readdir(&mut self, q: &ReaddirRequest, believed: bool) -> Done<ReaddirOut> {
        let dir = self.inode(q.fid)?;
        if !dir.is_dir() {
            return Err(FsError::NotDirectory.into());
        }
        // Whoever has the directory open was checked then, as POSIX has it.
        if !believed || !self.mds.handles.borrow().has_open(self.client, dir.fid) {
            self.may(&q.cred, &dir, MAY_READ)?;
        }
        let mut out = ReaddirOut {
            dir: dir.fid,
            parent: self.parent_of(&dir).unwrap_or_default(),
            lock_cookie: q.lock_cookie,
            entry_cookie: if q.plus { q.entry_cookie } else { 0 },
            ..ReaddirOut::default()
        };
        let room = (q.bytes_max as usize).clamp(PAGE_BYTES.0, PAGE_BYTES.1);
        let after = q.cookie.max(COOKIE_MIN - 1);
        let (_, to) = keys::of_fid(keys::ENTRY, dir.fid);
        let mut from = keys::entry(dir.fid, dirent::hash_of(after));
        let mut used = 0;
        let chunk = (room / (ENTRY_BYTES + 16 + if q.plus { ATTR_BYTES } else { 0 })).clamp(16, 2048);
        loop {
            let (buckets, next) = self.range(&from, &to, chunk)?;
            for (key, bucket) in &buckets {
                if !self.add_bucket(&mut out, (key, bucket), (after, room, q.plus), &mut used)? {
                    return Ok(out);
                }
            }
            match next {
                Some(next) => from = next,
                None => {
                    out.eof = true;
                    return Ok(out);
                }
            }
        }
    }

    /// Adds a bucket's entries while there is room; whether there still is.
    fn add_bucket(
        &mut self,
        out: &mut ReaddirOut,
        (key, bucket): (&[u8], &[u8]),
        (after, room, plus): (u64, usize, bool),
        used: &mut usize,
    ) -> Done<bool> {
        let hash = keys::last_u64(key).ok_or_else(|| damaged(key, "not an entry key"))?;
        if !dirent::is_legal(bucket) {
            return Err(damaged(key, "not a bucket of entries"));
        }
        for e in dirent::entries(bucket) {
            let cookie = hash << dirent::SLOT_BITS | u64::from(e.slot);
            if cookie <= after {
                continue;
            }
            let bytes = ENTRY_BYTES + e.name.len() + if plus { ATTR_BYTES } else { 0 };
            if *used + bytes > room {
                return Ok(false);
            }
            *used += bytes;
            let attr = if plus { Some(self.inode_of_store(e.fid)?.attr()) } else { None };
            let (fid, dtype, name) = (e.fid, e.dtype, Bytes(e.name.to_vec()));
            out.entries.push(Dirent { fid, cookie, dtype, name, attr, lock: HandleId(0) });
        }
        Ok(true)
    }
}
