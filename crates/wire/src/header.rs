//! The 64 bytes in front of every message.
use crate::shape::flags;
use crate::{BODY_BYTES_MAX, BULK_BYTES_MAX, Op, WireError, crc32c, crc32c_append};
use types::{ClientId, FsError, Transno, Xid};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// "STR1", little-endian.
pub const MAGIC: u32 = 0x3152_5453;
/// The wire version this build speaks.
pub const VERSION: u16 = 1;

flags! {
    /// Bits of a header's flag field.
    Flags {
        /// An answer; without it, a request.
        REPLY = 1,
        /// The request was sent before on an earlier connection; it may have been carried out.
        RESENT = 2,
        /// The request was answered, its effect may be lost: carry it out as transaction `transno`.
        REPLAY = 4,
        /// The sender is a server calling back its client.
        CALLBACK = 8,
        /// A lock callback waits for this request: it has a mandatory deadline.
        URGENT = 16,
        /// `bulk_crc` is valid (always over a network, never needed where bulk is shared memory).
        BULK_CRC = 32,
        /// Last message of this client's replay: it has nothing more to replay.
        REPLAY_DONE = 64,
        /// No answer yet: the server needs longer, and asks the client to wait for `patience` from now on.
        EARLY = 128,
        /// The last eight bytes of the body are a number that says what the transaction rested on: a replay repeats it.
        BASIS = 256,
        /// The last 16 bytes of the body are a capability of the object that the request is about.
        CAPABILITY = 512,
    }
}

/// A message's header. Requests and replies share the shape; a reply repeats the request's op and xid.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Header {
    /// What is asked.
    pub op: Op,
    /// See [`Flags`].
    pub flags: Flags,
    /// The request's number.
    pub xid: Xid,
    /// The client that the request is of (in callbacks: is for).
    pub client: ClientId,
    /// In replies and replays the transaction the request became; 0: it changed nothing.
    pub transno: Transno,
    /// In replies: every transaction up to here is on stable storage. In replays: what their answer said that they rested
    /// on ([`Flags::BASIS`]; 0: nothing). In other requests: 0.
    pub last_committed: Transno,
    /// In replies 0 or an errno value; in requests 0.
    pub status: u16,
    /// In requests the reply slot (0-based, below the granted slots): one request per slot is outstanding, so the
    /// server keeps one reply per slot for resends. In replies: requests the client may have in flight from now on.
    pub slot_or_credits: u16,
    /// In requests: nanoseconds >> 20 (about ms) the client will wait before it asks again; 0: no limit.
    pub patience: u32,
    /// Bytes of the body.
    pub body_len: u32,
    /// Bytes of bulk behind the body.
    pub bulk_len: u32,
    /// crc32c of the bulk when [`Flags::BULK_CRC`] is set.
    pub bulk_crc: u32,
}

impl Header {
    /// A request's header; lengths are filled in when it is sent.
    #[must_use]
    pub fn request(op: Op, client: ClientId, xid: Xid) -> Header {
        Header {
            op,
            flags: Flags::default(),
            xid,
            client,
            transno: Transno(0),
            last_committed: Transno(0),
            status: 0,
            slot_or_credits: 0,
            patience: 0,
            body_len: 0,
            bulk_len: 0,
            bulk_crc: 0,
        }
    }

    /// The header of an answer to `self`.
    #[must_use]
    pub fn reply(&self, status: Result<(), FsError>) -> Header {
        let status = status.err().map_or(0, |e| e.errno() as u16);
        let flags = Flags(self.flags.0 & Flags::CALLBACK.0).with(Flags::REPLY);
        Header { flags, status, ..Header::request(self.op, self.client, self.xid) }
    }

    /// The status as a result.
    ///
    /// # Errors
    /// The failure that the server answered.
    pub fn result(&self) -> Result<(), FsError> {
        if self.status == 0 { Ok(()) } else { Err(FsError::from_errno(i32::from(self.status))) }
    }

    /// The 64 bytes, with the checksum over header and `body`.
    #[must_use]
    pub fn to_bytes(&self, body: &[u8]) -> [u8; HEADER_BYTES] {
        debug_assert_eq!(self.body_len as usize, body.len());
        let mut b = self.to_bytes_unchecked();
        let crc = crc32c_append(crc32c(&b[..60]), body);
        b[60..64].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// The 64 bytes without a checksum: for peers of one process, between which nothing can change them.
    #[must_use]
    pub fn to_bytes_unchecked(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0u8; HEADER_BYTES];
        b[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4..6].copy_from_slice(&VERSION.to_le_bytes());
        b[6..8].copy_from_slice(&(self.op as u16).to_le_bytes());
        b[8..16].copy_from_slice(&self.xid.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.client.0.to_le_bytes());
        b[24..32].copy_from_slice(&self.transno.0.to_le_bytes());
        b[32..40].copy_from_slice(&self.last_committed.0.to_le_bytes());
        b[40..42].copy_from_slice(&self.status.to_le_bytes());
        b[42..44].copy_from_slice(&self.flags.0.to_le_bytes());
        b[44..46].copy_from_slice(&self.slot_or_credits.to_le_bytes());
        // 46..48 reserved, zero.
        b[48..52].copy_from_slice(&self.body_len.to_le_bytes());
        b[52..56].copy_from_slice(&self.bulk_len.to_le_bytes());
        b[56..60].copy_from_slice(
            &if self.flags.has(Flags::BULK_CRC) { self.bulk_crc } else { self.patience }.to_le_bytes(),
        );
        b
    }

    /// Reads a header; the body's checksum is checked by [`Header::check_body`] when the body is there.
    ///
    /// # Errors
    /// When the bytes are not a header, or ask for more than the limits.
    pub fn from_bytes(b: &[u8; HEADER_BYTES]) -> Result<Header, WireError> {
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        if u32_at(0) != MAGIC {
            return Err(WireError::BadMagic(u32_at(0)));
        }
        if u16_at(4) != VERSION {
            return Err(WireError::BadVersion(u16_at(4)));
        }
        let op = Op::from_u16(u16_at(6)).ok_or(WireError::BadValue(u16_at(6).into()))?;
        if u16_at(46) != 0 {
            return Err(WireError::BadValue(u16_at(46).into()));
        }
        let (body_len, bulk_len) = (u32_at(48), u32_at(52));
        if body_len > BODY_BYTES_MAX {
            return Err(WireError::TooLong(body_len.into()));
        }
        if bulk_len > BULK_BYTES_MAX {
            return Err(WireError::TooLong(bulk_len.into()));
        }
        let flags = Flags(u16_at(42));
        let has_crc = flags.has(Flags::BULK_CRC);
        Ok(Header {
            op,
            flags,
            xid: Xid(u64_at(8)),
            client: ClientId(u64_at(16)),
            transno: Transno(u64_at(24)),
            last_committed: Transno(u64_at(32)),
            status: u16_at(40),
            slot_or_credits: u16_at(44),
            patience: if has_crc { 0 } else { u32_at(56) },
            body_len,
            bulk_len,
            bulk_crc: if has_crc { u32_at(56) } else { 0 },
        })
    }

    /// Checks header and body against the checksum that the header's bytes carry.
    ///
    /// # Errors
    /// [`WireError::BadChecksum`] when they do not match.
    pub fn check_body(b: &[u8; HEADER_BYTES], body: &[u8]) -> Result<(), WireError> {
        let want = u32::from_le_bytes([b[60], b[61], b[62], b[63]]);
        if crc32c_append(crc32c(&b[..60]), body) == want { Ok(()) } else { Err(WireError::BadChecksum) }
    }
}
