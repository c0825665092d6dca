//! The bytes of every record: little-endian, versioned, each with a checksum over its key and itself.
//!
//! `docs/spec/ost-store.md` has the layouts; golden files (`golden/`) hold them in place.
use oss::store::{ObjectAttr, Owner, Promise, ReplyRecord, StoreIdentity};
use types::{ClientId, Fid, ObjectId, OstIndex, Transno, WallTime, Xid};
use wire::{Crc, crc32c, crc32c_append};

/// Version of the store format.
pub const FORMAT_VERSION: u32 = 1;
/// "STRIAOST", little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"STRIAOST");
/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = 128;
/// Bytes of an object record.
pub const OBJECT_BYTES: usize = 64;
/// Most blocks of one extent record.
pub const EXTENT_BLOCKS_MAX: u64 = 256;
const EXTENT_HEAD: usize = 16;
/// Bytes of an answer record before the answer's body.
const ANSWER_HEAD: usize = 24;
/// Bytes of an advice record before its body.
const ADVICE_HEAD: usize = 8;
/// Bytes before what a quiet client holds.
const QUIET_HEAD: usize = 16;
/// Bytes of a record of a promise.
pub const PROMISE_BYTES: usize = 32;

/// Why bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatError {
    /// Too short, or longer than it says.
    Length(usize),
    /// Not this kind of record.
    Magic(u64),
    /// A version that this program does not know.
    Version(u32),
    /// It does not match its checksum.
    Checksum,
    /// A field has a value that it cannot have.
    Field(&'static str),
}

impl std::fmt::Display for FormatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FormatError::Length(n) => write!(f, "a record of {n} bytes"),
            FormatError::Magic(m) => write!(f, "magic {m:#018x}"),
            FormatError::Version(v) => write!(f, "record version {v}"),
            FormatError::Checksum => f.write_str("a record that does not match its checksum"),
            FormatError::Field(name) => write!(f, "an impossible value of '{name}'"),
        }
    }
}

/// What a store is: in the database and in block 0 of the data file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Who it belongs to.
    pub identity: StoreIdentity,
    /// Bytes that the data file may grow to; 0: as far as the file system lets it.
    pub capacity_bytes: u64,
    /// Objects up to this id were in a store that this one replaces, and are lost; 0: it replaces none.
    pub lost_through: u32,
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(word)
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u64_at_most(b, at, 4) as u32
}
fn u16_at(b: &[u8], at: usize) -> u16 {
    u64_at_most(b, at, 2) as u16
}
fn u64_at_most(b: &[u8], at: usize, len: usize) -> u64 {
    b[at..at + len].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

impl Superblock {
    /// The record.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut b = [0; SUPERBLOCK_BYTES];
        put(&mut b, 0, &MAGIC.to_le_bytes());
        put(&mut b, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut b, 12, &(oss::store::BLOCK_BYTES as u32).to_le_bytes());
        put(&mut b, 16, &self.identity.cluster.to_le_bytes());
        put(&mut b, 24, &self.identity.uuid.to_le_bytes());
        put(&mut b, 32, &self.capacity_bytes.to_le_bytes());
        put(&mut b, 40, &self.identity.ost.0.to_le_bytes());
        put(&mut b, 44, &self.lost_through.to_le_bytes());
        b[42] = self.identity.fsname.len() as u8;
        put(&mut b, 48, self.identity.fsname.as_bytes());
        let crc = crc32c(&b[..SUPERBLOCK_BYTES - 4]);
        put(&mut b, SUPERBLOCK_BYTES - 4, &crc.to_le_bytes());
        b
    }

    /// Reads the record.
    ///
    /// # Errors
    /// When the bytes are not one that this program knows. A newer format is called by its name, whatever it is checked by; but not where
    /// only the version's own bytes keep a record of this format from matching its checksum.
    pub fn from_bytes(b: &[u8]) -> Result<Superblock, FormatError> {
        if b.len() < SUPERBLOCK_BYTES {
            return Err(FormatError::Length(b.len()));
        }
        if u64_at(b, 0) != MAGIC {
            return Err(FormatError::Magic(u64_at(b, 0)));
        }
        let version = u32_at(b, 8);
        let mut ours = [0; SUPERBLOCK_BYTES - 4];
        ours.copy_from_slice(&b[..SUPERBLOCK_BYTES - 4]);
        put(&mut ours, 8, &FORMAT_VERSION.to_le_bytes());
        match (version == FORMAT_VERSION, crc32c(&ours) == u32_at(b, SUPERBLOCK_BYTES - 4)) {
            (true, true) => {}
            (false, false) => return Err(FormatError::Version(version)),
            _ => return Err(FormatError::Checksum),
        }
        let len = usize::from(b[42]);
        let name = b.get(48..48 + len).filter(|_| (1..=16).contains(&len)).ok_or(FormatError::Field("fsname"))?;
        let fsname = std::str::from_utf8(name).map_err(|_| FormatError::Field("fsname"))?.to_string();
        let identity =
            StoreIdentity { cluster: u64_at(b, 16), fsname, ost: OstIndex(u16_at(b, 40)), uuid: u64_at(b, 24) };
        Ok(Superblock { identity, capacity_bytes: u64_at(b, 32), lost_through: u32_at(b, 44) })
    }
}

/// Key of an object.
#[must_use]
pub fn object_key(object: ObjectId) -> [u8; 16] {
    object.0.to_key()
}

/// The object of a key.
#[must_use]
pub fn object_of_key(key: &[u8; 16]) -> ObjectId {
    ObjectId(Fid::from_key(key))
}

/// Key of the extent of `object` that starts at `block`: byte order is order of blocks.
#[must_use]
pub fn extent_key(object: ObjectId, block: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&object.0.to_key());
    key[16..].copy_from_slice(&block.to_be_bytes());
    key
}

/// Object and block of an extent's key.
#[must_use]
pub fn extent_of_key(key: &[u8; 24]) -> (ObjectId, u64) {
    let (mut fid, mut block) = ([0; 16], [0; 8]);
    fid.copy_from_slice(&key[..16]);
    block.copy_from_slice(&key[16..]);
    (ObjectId(Fid::from_key(&fid)), u64::from_be_bytes(block))
}

/// Checksum over key and record, the record's checksum field (4..8) counted as zero.
fn record_crc(key: &[u8], b: &[u8]) -> Crc {
    let crc = crc32c_append(crc32c(key), &b[..4]);
    crc32c_append(crc32c_append(crc, &[0; 4]), &b[8..])
}

fn check_record(key: &[u8], b: &[u8]) -> Result<(), FormatError> {
    if b[0] != 1 {
        return Err(FormatError::Version(b[0].into()));
    }
    if record_crc(key, b) != u32_at(b, 4) { Err(FormatError::Checksum) } else { Ok(()) }
}

/// Flag of an object record: somebody has said whose the object is.
const OWNED: u8 = 1;

/// The record of an object's attributes.
#[must_use]
pub fn object_to_bytes(object: ObjectId, attr: &ObjectAttr) -> [u8; OBJECT_BYTES] {
    let mut b = [0; OBJECT_BYTES];
    b[0] = 1;
    put(&mut b, 8, &attr.size.to_le_bytes());
    put(&mut b, 16, &attr.blocks.to_le_bytes());
    put(&mut b, 24, &attr.mtime.0.to_le_bytes());
    put(&mut b, 32, &attr.atime.0.to_le_bytes());
    put(&mut b, 40, &attr.ctime.0.to_le_bytes());
    if let Some(owner) = attr.owner {
        put(&mut b, 48, &owner.uid.to_le_bytes());
        put(&mut b, 52, &owner.gid.to_le_bytes());
        put(&mut b, 56, &owner.project.to_le_bytes());
        b[60] = OWNED;
    }
    let crc = record_crc(&object_key(object), &b);
    put(&mut b, 4, &crc.to_le_bytes());
    b
}

/// Reads the record of an object's attributes.
///
/// # Errors
/// When the bytes are not the record of this object.
pub fn object_from_bytes(object: ObjectId, b: &[u8]) -> Result<ObjectAttr, FormatError> {
    if b.len() != OBJECT_BYTES {
        return Err(FormatError::Length(b.len()));
    }
    check_record(&object_key(object), b)?;
    let time = |at| WallTime(u64_at(b, at) as i64);
    let owner = Owner { uid: u32_at(b, 48), gid: u32_at(b, 52), project: u32_at(b, 56) };
    Ok(ObjectAttr {
        size: u64_at(b, 8),
        blocks: u64_at(b, 16),
        mtime: time(24),
        atime: time(32),
        ctime: time(40),
        owner: (b[60] & OWNED != 0).then_some(owner),
    })
}

/// Blocks of an object that lie together on the medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First block in the data file; never 0.
    pub phys: u64,
    /// Number of blocks, 1..=[`EXTENT_BLOCKS_MAX`].
    pub blocks: u64,
    /// Checksum of each block; `None`: reserved, reads as zeros.
    pub crcs: Option<Vec<Crc>>,
}

/// The record of an extent.
#[must_use]
pub fn extent_to_bytes(key: &[u8; 24], e: &Extent) -> Vec<u8> {
    let crcs = e.crcs.as_deref().unwrap_or(&[]);
    let mut b = vec![0; EXTENT_HEAD + 4 * crcs.len()];
    b[0] = 1;
    b[1] = u8::from(e.crcs.is_none());
    put(&mut b, 2, &(e.blocks as u16).to_le_bytes());
    put(&mut b, 8, &e.phys.to_le_bytes());
    for (i, crc) in crcs.iter().enumerate() {
        put(&mut b, EXTENT_HEAD + 4 * i, &crc.to_le_bytes());
    }
    let crc = record_crc(key, &b);
    put(&mut b, 4, &crc.to_le_bytes());
    b
}

/// Reads the record of an extent.
///
/// # Errors
/// When the bytes are not the record of this key.
pub fn extent_from_bytes(key: &[u8; 24], b: &[u8]) -> Result<Extent, FormatError> {
    if b.len() < EXTENT_HEAD {
        return Err(FormatError::Length(b.len()));
    }
    check_record(key, b)?;
    let (blocks, phys, reserved) = (u64::from(u16_at(b, 2)), u64_at(b, 8), b[1]);
    if !(1..=EXTENT_BLOCKS_MAX).contains(&blocks) {
        return Err(FormatError::Field("blocks"));
    }
    if phys == 0 || phys > u64::MAX >> 13 {
        return Err(FormatError::Field("phys"));
    }
    let want = if reserved == 0 { EXTENT_HEAD + 4 * blocks as usize } else { EXTENT_HEAD };
    if reserved > 1 || b.len() != want {
        return Err(FormatError::Length(b.len()));
    }
    let crcs = (reserved == 0).then(|| (0..blocks as usize).map(|i| u32_at(b, EXTENT_HEAD + 4 * i)).collect());
    Ok(Extent { phys, blocks, crcs })
}

/// Key of the answer that a client's reply slot holds: all of a client lie together.
#[must_use]
pub fn answer_key(client: ClientId, slot: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&client.0.to_be_bytes());
    key[8..].copy_from_slice(&slot.to_be_bytes());
    key
}

/// The record of an answer.
#[must_use]
pub fn answer_to_bytes(r: &ReplyRecord) -> Vec<u8> {
    let mut b = vec![0; ANSWER_HEAD];
    b[0] = 1;
    put(&mut b, 2, &r.status.to_le_bytes());
    put(&mut b, 8, &r.xid.0.to_le_bytes());
    put(&mut b, 16, &r.transno.0.to_le_bytes());
    b.extend_from_slice(&r.body);
    let crc = record_crc(&answer_key(r.client, r.slot), &b);
    put(&mut b, 4, &crc.to_le_bytes());
    b
}

/// Reads the record of an answer.
///
/// # Errors
/// When the bytes are not the record of this key.
pub fn answer_from_bytes(key: &[u8; 10], b: &[u8]) -> Result<ReplyRecord, FormatError> {
    if b.len() < ANSWER_HEAD {
        return Err(FormatError::Length(b.len()));
    }
    check_record(key, b)?;
    let mut client = [0; 8];
    client.copy_from_slice(&key[..8]);
    Ok(ReplyRecord {
        client: ClientId(u64::from_be_bytes(client)),
        slot: u16::from_be_bytes([key[8], key[9]]),
        xid: Xid(u64_at(b, 8)),
        transno: Transno(u64_at(b, 16)),
        status: u16_at(b, 2),
        body: b[ANSWER_HEAD..].to_vec(),
        basis: 0,
    })
}

/// The record of the advice on an object.
#[must_use]
pub fn advice_to_bytes(object: ObjectId, body: &[u8]) -> Vec<u8> {
    let mut b = vec![0; ADVICE_HEAD];
    b[0] = 1;
    b.extend_from_slice(body);
    let crc = record_crc(&object_key(object), &b);
    put(&mut b, 4, &crc.to_le_bytes());
    b
}

/// The record of what a quiet client holds, noted in opening `boot` of the store.
pub fn quiet_to_bytes(client: ClientId, boot: u64, held: &[u8]) -> Vec<u8> {
    let mut b = vec![0; QUIET_HEAD];
    b[0] = 1;
    put(&mut b, 8, &boot.to_le_bytes());
    b.extend_from_slice(held);
    let crc = record_crc(&client.0.to_be_bytes(), &b);
    put(&mut b, 4, &crc.to_le_bytes());
    b
}

/// Reads the record of what a quiet client holds: the opening in which it was noted, and what the client holds.
///
/// # Errors
/// When the bytes are not the record of this client.
pub fn quiet_from_bytes(client: ClientId, b: &[u8]) -> Result<(u64, Vec<u8>), FormatError> {
    if b.len() < QUIET_HEAD {
        return Err(FormatError::Length(b.len()));
    }
    check_record(&client.0.to_be_bytes(), b)?;
    Ok((u64_at(b, 8), b[QUIET_HEAD..].to_vec()))
}

/// Reads the record of the advice on an object: its body.
///
/// # Errors
/// When the bytes are not the record of this object.
pub fn advice_from_bytes(object: ObjectId, b: &[u8]) -> Result<Vec<u8>, FormatError> {
    if b.len() < ADVICE_HEAD {
        return Err(FormatError::Length(b.len()));
    }
    check_record(&object_key(object), b)?;
    Ok(b[ADVICE_HEAD..].to_vec())
}

/// The record of the promise to cut an object.
#[must_use]
pub fn promise_to_bytes(object: ObjectId, promise: &Promise) -> [u8; PROMISE_BYTES] {
    let mut b = [0; PROMISE_BYTES];
    b[0] = 1;
    put(&mut b, 8, &promise.client.0.to_le_bytes());
    put(&mut b, 16, &promise.number.to_le_bytes());
    put(&mut b, 24, &promise.size.to_le_bytes());
    let crc = record_crc(&object_key(object), &b);
    put(&mut b, 4, &crc.to_le_bytes());
    b
}

/// Reads the record of the promise to cut an object.
///
/// # Errors
/// When the bytes are not the record of this object.
pub fn promise_from_bytes(object: ObjectId, b: &[u8]) -> Result<Promise, FormatError> {
    if b.len() != PROMISE_BYTES {
        return Err(FormatError::Length(b.len()));
    }
    check_record(&object_key(object), b)?;
    let size = u64_at(b, 24);
    let promise = Promise { client: ClientId(u64_at(b, 8)), number: u64_at(b, 16), size };
    if !promise.is_possible() {
        return Err(FormatError::Field("size"));
    }
    Ok(promise)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> ObjectId {
        ObjectId::new(OstIndex(1), 0x22)
    }

    #[test]
    fn a_newer_version_is_called_by_its_name() {
        let identity = StoreIdentity { cluster: 0x1122, fsname: "stria".into(), ost: OstIndex(3), uuid: 0x99AA };
        let mut newer = Superblock { identity, capacity_bytes: 1 << 30, lost_through: 0 }.to_bytes();
        newer[8] ^= 4;
        assert_eq!(Superblock::from_bytes(&newer), Err(FormatError::Checksum), "a flipped bit is no newer format");
        newer[8] = 2;
        let crc = crc32c(&newer[..SUPERBLOCK_BYTES - 4]);
        put(&mut newer, SUPERBLOCK_BYTES - 4, &crc.to_le_bytes());
        assert_eq!(Superblock::from_bytes(&newer), Err(FormatError::Version(2)));
    }

    #[test]
    fn every_flipped_bit_and_every_wrong_key_is_found() {
        let key = extent_key(object(), 7);
        let e = Extent { phys: 0x77, blocks: 2, crcs: Some(vec![3, 4]) };
        let b = extent_to_bytes(&key, &e);
        for bit in 0..b.len() * 8 {
            let mut bad = b.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(extent_from_bytes(&key, &bad).is_err(), "bit {bit}");
        }
        assert_eq!(extent_from_bytes(&extent_key(object(), 8), &b), Err(FormatError::Checksum));
        for len in 0..b.len() {
            assert!(extent_from_bytes(&key, &b[..len]).is_err());
        }
        let answer = ReplyRecord {
            client: ClientId(0x0102),
            slot: 9,
            xid: Xid(77),
            transno: Transno(5),
            status: 0,
            body: vec![1, 2, 3],
            basis: 0,
        };
        let (key, b) = (answer_key(answer.client, answer.slot), answer_to_bytes(&answer));
        assert_eq!(answer_from_bytes(&key, &b), Ok(answer));
        for bit in 0..b.len() * 8 {
            let mut bad = b.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(answer_from_bytes(&key, &bad).is_err(), "bit {bit}");
        }
        assert_eq!(answer_from_bytes(&answer_key(ClientId(0x0102), 8), &b), Err(FormatError::Checksum));
        let attr = object_to_bytes(object(), &ObjectAttr::default());
        for bit in 0..attr.len() * 8 {
            let mut bad = attr;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(object_from_bytes(object(), &bad).is_err(), "bit {bit}");
        }
    }
}
