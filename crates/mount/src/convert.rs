//! Between the cluster's attributes and the kernel's.
use std::time::Duration;

use client::Entry;
use fuse::abi;
use types::{Fid, WallTime};
use wire::mdt::Attr;

/// How long the kernel believes what a lock covers: until it is told otherwise.
const UNDER_LOCK: Duration = Duration::from_secs(86_400);
/// Preferred I/O size shown to programs.
const BLOCK_BYTES: u32 = 128 << 10;

pub(crate) fn ttl(cached: bool) -> Duration {
    if cached { UNDER_LOCK } else { Duration::ZERO }
}

/// The inode behind a node id: ids are FIDs in disguise, so no table is needed.
pub(crate) fn fid(nodeid: u64) -> Fid {
    Fid::from_ino(nodeid)
}

pub(crate) fn attr(a: &Attr) -> abi::Attr {
    abi::Attr {
        ino: a.fid.to_ino(),
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.secs() as u64,
        mtime: a.mtime.secs() as u64,
        ctime: a.ctime.secs() as u64,
        atimensec: a.atime.nanos(),
        mtimensec: a.mtime.nanos(),
        ctimensec: a.ctime.nanos(),
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev as u32,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Attributes that the kernel is to ask for again. It takes those that come with SETATTR and with what creates an inode
/// whenever it gets to them, also after it was told to forget the inode's attributes meanwhile.
pub(crate) fn unbelieved(e: Entry) -> Entry {
    Entry { attr_cached: false, ..e }
}

pub(crate) fn entry(e: &Entry, names_cacheable: bool) -> fuse::Entry {
    fuse::Entry {
        nodeid: e.attr.fid.to_ino(),
        generation: 0,
        entry_ttl: ttl(e.name_cached && names_cacheable),
        attr_ttl: ttl(e.attr_cached),
        attr: attr(&e.attr),
    }
}

fn sx_time(t: WallTime) -> abi::SxTime {
    abi::SxTime { tv_sec: t.secs(), tv_nsec: t.nanos(), reserved: 0 }
}

pub(crate) fn statx(a: &Attr) -> abi::Statx {
    abi::Statx {
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: BLOCK_BYTES,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: a.mode as u16,
        ino: a.fid.to_ino(),
        size: a.size,
        blocks: a.blocks,
        atime: sx_time(a.atime),
        btime: sx_time(a.btime),
        ctime: sx_time(a.ctime),
        mtime: sx_time(a.mtime),
        rdev_major: libc::major(a.rdev),
        rdev_minor: libc::minor(a.rdev),
        ..abi::Statx::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ObjectId, OstIndex};

    #[test]
    fn a_node_is_the_file_that_it_was_told_for() {
        let found = (0..300).map(|ost| ObjectId::new(OstIndex(ost), 7).0);
        for f in found.chain([Fid::ROOT, Fid::new(Fid::MDT_SEQ_FIRST, 1), Fid::new(Fid::MDT_SEQ_FIRST + 9, u32::MAX)]) {
            assert_eq!(fid(f.to_ino()), f);
        }
    }
}
