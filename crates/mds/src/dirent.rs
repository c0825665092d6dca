//! Directory entries: a name's hash, its bucket, its cookie.
//!
//! All names of a directory with one hash share a bucket, which is one key. A name's cookie is its hash and its number
//! within the bucket; it does not change while the name exists, so a reader that goes on behind a cookie misses nothing
//! and sees nothing twice. Look-up is one read; a page of entries is one range.
//! Source: SipHash-1-3 (Aumasson and Bernstein, 2012) for the hash, keyed so that nobody can aim at a bucket.
use types::Fid;

/// Bits of a cookie that number the entries of a bucket.
pub const SLOT_BITS: u32 = 7;
/// Names with one hash that a directory holds at most; one more is ENOSPC.
pub const BUCKET_ENTRIES_MAX: usize = 1 << SLOT_BITS;
/// The smallest cookie; smaller ones are free for "." and "..".
pub const COOKIE_MIN: u64 = 1 << SLOT_BITS;
const HASH_MASK: u64 = (1 << 56) - 1;

/// The keyed hash of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameHash {
    /// First half of the key.
    pub key0: u64,
    /// Second half of the key.
    pub key1: u64,
    /// Bits used; tests force collisions with a small mask.
    pub mask: u64,
}

impl NameHash {
    /// 56 bits, never 0.
    #[must_use]
    pub fn of(&self, name: &[u8]) -> u64 {
        (siphash13(self.key0, self.key1, name) & self.mask & HASH_MASK).max(1)
    }
}

/// Hash part of a cookie.
#[must_use]
pub fn hash_of(cookie: u64) -> u64 {
    cookie >> SLOT_BITS
}

/// One name in a bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Number within the bucket, 0..128.
    pub slot: u8,
    /// DT_* type.
    pub dtype: u8,
    /// The inode.
    pub fid: Fid,
    /// The name.
    pub name: Vec<u8>,
}

impl Entry {
    /// Position in the directory.
    #[must_use]
    pub fn cookie(&self, hash: u64) -> u64 {
        hash << SLOT_BITS | u64::from(self.slot)
    }
}

/// A name in a bucket's bytes, not copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRef<'a> {
    /// Number within the bucket.
    pub slot: u8,
    /// DT_* type.
    pub dtype: u8,
    /// The inode.
    pub fid: Fid,
    /// The name.
    pub name: &'a [u8],
}

const ENTRY_HEAD_BYTES: usize = 19;

/// Names of a bucket, by slot. Stops at the first byte that does not fit; [`is_legal`] tells beforehand.
pub fn entries(mut bucket: &[u8]) -> impl Iterator<Item = EntryRef<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = bucket.split_at_checked(ENTRY_HEAD_BYTES)?;
        let (name, rest) = rest.split_at_checked(usize::from(head[2]) + 1)?;
        bucket = rest;
        let fid = Fid::from_key(head[3..19].try_into().expect("16 bytes of the head"));
        Some(EntryRef { slot: head[0], dtype: head[1], fid, name })
    })
}

/// Whether the bytes are a bucket: whole entries, ascending slots, no empty bucket.
#[must_use]
pub fn is_legal(bucket: &[u8]) -> bool {
    let mut bytes = 0;
    let mut last: Option<u8> = None;
    for e in entries(bucket) {
        if usize::from(e.slot) >= BUCKET_ENTRIES_MAX || last.is_some_and(|l| l >= e.slot) {
            return false;
        }
        last = Some(e.slot);
        bytes += ENTRY_HEAD_BYTES + e.name.len();
    }
    bytes == bucket.len() && last.is_some()
}

/// The entry of a name.
#[must_use]
pub fn find<'a>(bucket: &'a [u8], name: &[u8]) -> Option<EntryRef<'a>> {
    entries(bucket).find(|e| e.name == name)
}

/// The bucket with one more name, and the slot it got; `None` when the bucket is full. The lowest free slot is used.
#[must_use]
pub fn with(bucket: &[u8], name: &[u8], fid: Fid, dtype: u8) -> Option<(Vec<u8>, u8)> {
    let mut out = Vec::with_capacity(bucket.len() + ENTRY_HEAD_BYTES + name.len());
    let mut free: u8 = 0;
    let mut rest = entries(bucket).peekable();
    while let Some(e) = rest.next_if(|e| e.slot == free) {
        put(&mut out, &e);
        free += 1;
    }
    if usize::from(free) >= BUCKET_ENTRIES_MAX {
        return None;
    }
    put(&mut out, &EntryRef { slot: free, dtype, fid, name });
    for e in rest {
        put(&mut out, &e);
    }
    Some((out, free))
}

/// The bucket without the entry in `slot`; `None` when nothing is left.
#[must_use]
pub fn without(bucket: &[u8], slot: u8) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bucket.len());
    for e in entries(bucket).filter(|e| e.slot != slot) {
        put(&mut out, &e);
    }
    (!out.is_empty()).then_some(out)
}

/// The bucket of these entries, whose slots ascend.
#[must_use]
pub fn bucket(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for e in entries {
        put(&mut out, &EntryRef { slot: e.slot, dtype: e.dtype, fid: e.fid, name: &e.name });
    }
    out
}

/// The bucket with another inode behind `slot`; the name and the cookie stay.
#[must_use]
pub fn rebound(bucket: &[u8], slot: u8, fid: Fid, dtype: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(bucket.len());
    for mut e in entries(bucket) {
        if e.slot == slot {
            (e.fid, e.dtype) = (fid, dtype);
        }
        put(&mut out, &e);
    }
    out
}

fn put(out: &mut Vec<u8>, e: &EntryRef<'_>) {
    out.push(e.slot);
    out.push(e.dtype);
    out.push((e.name.len() - 1) as u8);
    out.extend_from_slice(&e.fid.to_key());
    out.extend_from_slice(e.name);
}

fn siphash13(k0: u64, k1: u64, data: &[u8]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let round = |v: &mut [u64; 4]| {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    };
    let mut chunks = data.chunks_exact(8);
    for c in &mut chunks {
        let m = u64::from_le_bytes(c.try_into().expect("chunks of eight"));
        v[3] ^= m;
        round(&mut v);
        v[0] ^= m;
    }
    let mut last = [0u8; 8];
    let rest = chunks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    last[7] = data.len() as u8;
    let m = u64::from_le_bytes(last);
    v[3] ^= m;
    round(&mut v);
    v[0] ^= m;
    v[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_golden_siphash_1_3() {
        // Reference vector of SipHash-1-3 with key 00..0f: input "" and 00 01 02.
        let (k0, k1) = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(siphash13(k0, k1, b""), 0xabac_0158_050f_c4dc);
        assert_eq!(siphash13(k0, k1, &[0]), 0xc9f4_9bf3_7d57_ca93);
    }

    #[test]
    fn a_freed_slot_is_used_again_and_others_keep_theirs() {
        let (a, s0) = with(b"", b"a", Fid::ROOT, 4).unwrap();
        let (ab, s1) = with(&a, b"b", Fid::new(9, 9), 8).unwrap();
        assert_eq!((s0, s1), (0, 1));
        let b = without(&ab, 0).unwrap();
        assert_eq!(find(&b, b"b").unwrap().slot, 1);
        let (cb, s) = with(&b, b"c", Fid::ROOT, 8).unwrap();
        assert_eq!(s, 0);
        assert_eq!(find(&cb, b"b").unwrap().slot, 1);
        assert!(is_legal(&cb));
        assert_eq!(without(&a, 0), None);
        assert_eq!(find(&rebound(&cb, 1, Fid::ROOT, 4), b"b").unwrap().fid, Fid::ROOT);
    }

    #[test]
    fn a_bucket_holds_128_names_and_no_more() {
        let mut bucket = Vec::new();
        for i in 0..BUCKET_ENTRIES_MAX {
            bucket = with(&bucket, format!("n{i}").as_bytes(), Fid::ROOT, 8).unwrap().0;
        }
        assert!(is_legal(&bucket));
        assert_eq!(with(&bucket, b"one more", Fid::ROOT, 8), None);
    }
}
