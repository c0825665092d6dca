//! Keys of the store: one ordered keyspace, a prefix byte per kind. Numbers are big-endian, so that byte order is order.
use types::{ClientId, Fid, OstIndex};
use wire::quota::QuotaKind;

use crate::kv::Key;

/// Superblock.
pub const SUPERBLOCK: &[u8] = b"s";
/// Boot count: fences a second server.
pub const BOOT: &[u8] = b"b";
/// Counters, written with every batch.
pub const COUNTERS: &[u8] = b"c";
/// Cluster map.
pub const CLUSTER_MAP: &[u8] = b"m";

/// Users of the changelog; missing: none ever came.
pub const CHANGELOG: &[u8] = b"g";

/// Times of grace; missing: those that a new store has.
pub const GRACE: &[u8] = b"q";

/// Which sizes are doubtful; missing: none.
pub const HORIZON: &[u8] = b"h";

/// Prefix of inodes.
pub const INODE: u8 = b'i';
/// Prefix of directory entries.
pub const ENTRY: u8 = b'e';
/// Prefix of second and further links.
pub const LINK: u8 = b'l';
/// Prefix of xattrs.
pub const XATTR: u8 = b'x';
/// Prefix of layouts too large for the inode.
pub const LAYOUT: u8 = b'y';
/// Prefix of orphans: inodes without a name.
pub const ORPHAN: u8 = b'o';
/// Prefix of object allocation states.
pub const PRECREATE: u8 = b'p';
/// Prefix of the destroy log.
pub const DESTROY: u8 = b'd';
/// Prefix of sessions.
pub const SESSION: u8 = b'S';
/// Prefix of reply records.
pub const REPLY: u8 = b'R';
/// Prefix of decisions about cuts.
pub const CUT: u8 = b'C';
/// Prefix of the changelog's records.
pub const CHANGE: u8 = b'L';
/// Prefix of counts of inodes, by whom they count for.
pub const USAGE: u8 = b'U';
/// Prefix of limits, by whose they are.
pub const QUOTA: u8 = b'Q';
/// Prefix of the log of owners that OSTs are to be told.
pub const OWN: u8 = b'w';

fn with_fid(prefix: u8, fid: Fid) -> Key {
    let mut k = Key::new();
    k.push(prefix);
    k.extend_from_slice(&fid.to_key());
    k
}

/// A key made of its bytes.
#[must_use]
pub fn plain(bytes: &[u8]) -> Key {
    Key::from_slice(bytes)
}
/// An inode.
#[must_use]
pub fn inode(fid: Fid) -> Key {
    with_fid(INODE, fid)
}
/// The bucket of entries of `dir` whose names have this hash (56 bits).
#[must_use]
pub fn entry(dir: Fid, hash: u64) -> Key {
    let mut k = with_fid(ENTRY, dir);
    k.extend_from_slice(&hash.to_be_bytes());
    k
}
/// A second or further link of `fid`: the entry of `parent` at `cookie`.
#[must_use]
pub fn link(fid: Fid, parent: Fid, cookie: u64) -> Key {
    let mut k = with_fid(LINK, fid);
    k.extend_from_slice(&parent.to_key());
    k.extend_from_slice(&cookie.to_be_bytes());
    k
}
/// An xattr.
#[must_use]
pub fn xattr(fid: Fid, name: &[u8]) -> Key {
    let mut k = with_fid(XATTR, fid);
    k.extend_from_slice(name);
    k
}
/// A large layout.
#[must_use]
pub fn layout(fid: Fid) -> Key {
    with_fid(LAYOUT, fid)
}
/// An orphan.
#[must_use]
pub fn orphan(fid: Fid) -> Key {
    with_fid(ORPHAN, fid)
}
/// Objects to destroy that were of `fid`, as of transaction `transno`.
#[must_use]
pub fn destroy(fid: Fid, transno: u64) -> Key {
    let mut k = with_fid(DESTROY, fid);
    k.extend_from_slice(&transno.to_be_bytes());
    k
}
/// Owner of objects that are of `fid`, as of transaction `transno`.
#[must_use]
pub fn own(fid: Fid, transno: u64) -> Key {
    let mut k = with_fid(OWN, fid);
    k.extend_from_slice(&transno.to_be_bytes());
    k
}
fn of_id(prefix: u8, (kind, id): (QuotaKind, u32)) -> Key {
    let mut k = plain(&[prefix, kind as u8]);
    k.extend_from_slice(&id.to_be_bytes());
    k
}
/// The count of inodes of a user, a group or a project.
#[must_use]
pub fn usage(id: (QuotaKind, u32)) -> Key {
    of_id(USAGE, id)
}
/// The limits of a user, a group or a project.
#[must_use]
pub fn quota(id: (QuotaKind, u32)) -> Key {
    of_id(QUOTA, id)
}
/// Whose count or limits a key is for.
#[must_use]
pub fn quota_id(key: &[u8]) -> Option<(QuotaKind, u32)> {
    let [_, kind, id @ ..] = key else { return None };
    let kind = QuotaKind::ALL.into_iter().find(|k| *k as u8 == *kind)?;
    Some((kind, u32::from_be_bytes(id.try_into().ok()?)))
}
/// Allocation state of an OST.
#[must_use]
pub fn precreate(ost: OstIndex) -> Key {
    let mut k = plain(&[PRECREATE]);
    k.extend_from_slice(&ost.0.to_be_bytes());
    k
}
/// A session.
#[must_use]
pub fn session(client: ClientId) -> Key {
    let mut k = plain(&[SESSION]);
    k.extend_from_slice(&client.0.to_be_bytes());
    k
}
/// The reply of a client's slot.
#[must_use]
pub fn reply(client: ClientId, slot: u16) -> Key {
    let mut k = plain(&[REPLY]);
    k.extend_from_slice(&client.0.to_be_bytes());
    k.extend_from_slice(&slot.to_be_bytes());
    k
}
/// A record of the changelog.
#[must_use]
pub fn change(index: u64) -> Key {
    let mut k = plain(&[CHANGE]);
    k.extend_from_slice(&index.to_be_bytes());
    k
}
/// The decision about a cut: its client and the client's number for it.
#[must_use]
pub fn cut(client: ClientId, number: u64) -> Key {
    let mut k = plain(&[CUT]);
    k.extend_from_slice(&client.0.to_be_bytes());
    k.extend_from_slice(&number.to_be_bytes());
    k
}
/// Client and number behind a decision's prefix byte.
#[must_use]
pub fn cut_of(key: &[u8]) -> Option<(ClientId, u64)> {
    let bytes: [u8; 8] = key.get(1..9).filter(|_| key.len() == 17)?.try_into().ok()?;
    Some((ClientId(u64::from_be_bytes(bytes)), last_u64(key)?))
}
/// First key behind all keys that start with `prefix`.
#[must_use]
pub fn end_of(prefix: &[u8]) -> Key {
    let mut k = Key::from_slice(prefix);
    while let Some(last) = k.pop() {
        if last < u8::MAX {
            k.push(last + 1);
            return k;
        }
    }
    Key::from_slice(&[u8::MAX; 47])
}
/// All keys of one kind about one FID: (first, behind the last).
#[must_use]
pub fn of_fid(prefix: u8, fid: Fid) -> (Key, Key) {
    let from = with_fid(prefix, fid);
    let to = end_of(&from);
    (from, to)
}
/// The FID behind a key's prefix byte.
#[must_use]
pub fn fid_of(key: &[u8]) -> Option<Fid> {
    let bytes: &[u8; 16] = key.get(1..17)?.try_into().ok()?;
    Some(Fid::from_key(bytes))
}
/// The big-endian number in the last eight bytes of a key.
#[must_use]
pub fn last_u64(key: &[u8]) -> Option<u64> {
    let at = key.len().checked_sub(8)?;
    Some(u64::from_be_bytes(key[at..].try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_directory_are_one_range_in_hash_order() {
        let d = Fid::new(7, 8);
        let (from, to) = of_fid(ENTRY, d);
        let a = entry(d, 1);
        let b = entry(d, u64::MAX >> 8);
        assert!(from <= a && a < b && b < to);
        assert!(entry(Fid::new(7, 9), 0) >= to);
        assert_eq!(fid_of(&a), Some(d));
        assert_eq!(last_u64(&b), Some(u64::MAX >> 8));
        assert_eq!(&end_of(&[1, 255])[..], &[2]);
    }
}
