//! Newtyped ids. Two bare integers never stand side by side in a signature.
use core::fmt;

/// The first sequence of files.
const SEQ_FIRST: u64 = 0x2_0000_0000;
/// Inode numbers from here on, by their upper halves, are those of files with the id of an object that no other number has: one for each
/// OST.
const INO_OF_OBJECTS: u64 = 0xffff_0000;

/// File identifier: 128 bits, never reused. Sequences are handed out by the configuration service; `oid` counts
/// within one; `ver` is 0. Same shape and text form (`[0x200000401:0x5:0x0]`) as Lustre's FID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fid {
    /// Sequence; says which target allocated the id.
    pub seq: u64,
    /// Number within the sequence, from 1.
    pub oid: u32,
    /// Version, 0 for every live object.
    pub ver: u32,
}

impl Fid {
    /// The root directory of a file system.
    pub const ROOT: Fid = Fid { seq: 0x2_0000_0007, oid: 1, ver: 0 };
    /// First sequence of ordinary MDT objects.
    pub const MDT_SEQ_FIRST: u64 = 0x2_0000_0401;
    /// No object: the value of an unset field.
    pub const ZERO: Fid = Fid { seq: 0, oid: 0, ver: 0 };

    /// Builds a FID with version 0.
    #[must_use]
    pub const fn new(seq: u64, oid: u32) -> Fid {
        Fid { seq, oid, ver: 0 }
    }

    /// Whether this is [`Fid::ZERO`].
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Fid::ZERO
    }

    /// The 16 bytes that stores use as a key: big-endian, so that byte order is id order.
    #[must_use]
    pub fn to_key(self) -> [u8; 16] {
        let mut k = [0; 16];
        k[..8].copy_from_slice(&self.seq.to_be_bytes());
        k[8..12].copy_from_slice(&self.oid.to_be_bytes());
        k[12..].copy_from_slice(&self.ver.to_be_bytes());
        k
    }

    /// Inverse of [`Fid::to_key`].
    #[must_use]
    pub fn from_key(k: &[u8; 16]) -> Fid {
        let mut seq = [0; 8];
        let mut oid = [0; 4];
        let mut ver = [0; 4];
        seq.copy_from_slice(&k[..8]);
        oid.copy_from_slice(&k[8..12]);
        ver.copy_from_slice(&k[12..]);
        Fid { seq: u64::from_be_bytes(seq), oid: u32::from_be_bytes(oid), ver: u32::from_be_bytes(ver) }
    }

    /// 64-bit inode number shown to programs: unique among files of the first 2^32 - 2^16 sequences, and those that have the id of an
    /// object of an OST (in lost+found). The root is 1, as FUSE demands.
    #[must_use]
    pub fn to_ino(self) -> u64 {
        if self == Fid::ROOT {
            return 1;
        }
        let place = self.seq.wrapping_sub(SEQ_FIRST);
        let place = match ObjectId(self).ost().filter(|_| place >> 32 != 0) {
            Some(ost) => INO_OF_OBJECTS + u64::from(ost.0),
            None => place,
        };
        (place << 32).wrapping_add(u64::from(self.oid))
    }

    /// The FID behind an inode number that [`Fid::to_ino`] gave.
    #[must_use]
    pub fn from_ino(ino: u64) -> Fid {
        let place = ino >> 32;
        match (ino, place.checked_sub(INO_OF_OBJECTS)) {
            (1, _) => Fid::ROOT,
            (_, Some(ost)) => ObjectId::new(OstIndex(ost as u16), ino as u32).0,
            (_, None) => Fid { seq: SEQ_FIRST + place, oid: ino as u32, ver: 0 },
        }
    }

    /// Parses the text form `[0xSEQ:0xOID:0xVER]`, with or without brackets.
    #[must_use]
    pub fn parse(text: &str) -> Option<Fid> {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let mut parts = inner.split(':').map(|p| u64::from_str_radix(p.trim_start_matches("0x"), 16).ok());
        let (seq, oid, ver) = (parts.next()??, parts.next()??, parts.next()??);
        if parts.next().is_some() {
            return None;
        }
        Some(Fid { seq, oid: u32::try_from(oid).ok()?, ver: u32::try_from(ver).ok()? })
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}:{:#x}:{:#x}]", self.seq, self.oid, self.ver)
    }
}
impl fmt::Debug for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An object on an OST. Its FID's sequence names the OST that allocated it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ObjectId(pub Fid);

impl ObjectId {
    /// First sequence of OST `ost`'s objects: 0x240000401 for OST0, 0x280000401 for OST1, and so on.
    #[must_use]
    pub const fn seq_of(ost: OstIndex) -> u64 {
        0x2_4000_0401 + 0x4000_0000 * (ost.0 as u64)
    }
    /// The OST in whose first sequence it is.
    #[must_use]
    pub fn ost(self) -> Option<OstIndex> {
        let behind = self.0.seq.checked_sub(Self::seq_of(OstIndex(0)))?;
        (behind % 0x4000_0000 == 0).then(|| u16::try_from(behind / 0x4000_0000).ok().map(OstIndex))?
    }
    /// Object `oid` (>= 1) in the first sequence of `ost`.
    #[must_use]
    pub const fn new(ost: OstIndex, oid: u32) -> ObjectId {
        ObjectId(Fid::new(Self::seq_of(ost), oid))
    }
}
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, concat!($prefix, "{}"), self.0) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }
    };
}

id!(/// Index of an object storage target in the cluster map, from 0.
    OstIndex(u16), "OST");
id!(/// Index of a metadata target, from 0.
    MdtIndex(u16), "MDT");
id!(/// A client's identity: random, chosen by the client at mount, the same over all its connections. Never 0.
    ClientId(u64), "client");
id!(/// A request's number: grows with every request of one client to one target. A resend keeps its xid.
    Xid(u64), "x");
id!(/// A target's transaction number: grows with every state change; 0 means "changed nothing".
    Transno(u64), "t");
id!(/// A handle that a server gave out (an open, a lock). Never 0, never reused by one server store.
    HandleId(u64), "h");
id!(/// A queued request inside one OST's pipeline; reused after completion.
    RequestId(u32), "r");

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec;

    use super::*;

    #[test]
    fn inode_numbers_lead_back_to_their_files_and_no_two_files_have_one() {
        let mut fids =
            vec![Fid::ROOT, Fid::new(Fid::MDT_SEQ_FIRST, 1), Fid::new(Fid::MDT_SEQ_FIRST + (1 << 20), u32::MAX)];
        for ost in [0, 1, 2, 3, 4, 5, 7, 8, 0x7fff, 0xffff] {
            fids.extend([1, 2, u32::MAX].map(|oid| ObjectId::new(OstIndex(ost), oid).0));
        }
        let numbers: BTreeSet<u64> = fids.iter().map(|f| f.to_ino()).collect();
        assert_eq!(numbers.len(), fids.len());
        for fid in fids {
            assert_eq!(Fid::from_ino(fid.to_ino()), fid);
        }
    }

    #[test]
    fn an_object_says_in_whose_sequence_it_is() {
        assert_eq!(ObjectId::new(OstIndex(5), 9).ost(), Some(OstIndex(5)));
        assert_eq!(ObjectId(Fid::new(Fid::MDT_SEQ_FIRST, 9)).ost(), None);
        assert_eq!(ObjectId(Fid::new(u64::MAX, 9)).ost(), None);
    }
}
