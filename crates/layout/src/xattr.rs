//! The bytes of the `lustre.lov` extended attribute: `lov_user_md` v1, v3 and the SPECIFIC form that carries a list.
//!
//! Three uses: *stored* (a file's layout with its generation), *read* (getxattr: generation replaced by 0xFFFF, so that
//! copying xattrs with tar or rsync restores a layout rather than pinning it to OSTs), and *set* (setxattr: a request).
//! Decoders take untrusted bytes: they never panic and never allocate more than the input holds. Composite, foreign and
//! released layouts are refused by name. Specification: `docs/spec/lustre-lov.md`.
//!
//! ```text
//!  0 u32 magic   4 u32 pattern   8 u64 file oid   16 u64 file seq   24 u32 stripe size   28 u16 count   30 u16 gen/offset
//! 32 objects (v1), or 16 bytes of pool name and then objects (v3, SPECIFIC); object = u64 seq, u32 oid, u32 ver, u32 0, u32 ost
//! ```
use alloc::vec::Vec;
use core::fmt;
use types::{Fid, FsError, ObjectId, OstIndex};

use crate::layout_type::{Layout, LayoutError, Pattern, StripeObject, StripeSize};
use crate::pool::{PoolError, PoolName};
use crate::spec::{LayoutSpec, PoolChoice, SpecError, StripeCount};

/// Magic of v1: no pool.
pub const MAGIC_V1: u32 = 0x0BD1_0BD0;
/// Magic of v3: with a pool.
pub const MAGIC_V3: u32 = 0x0BD3_0BD0;
/// Magic of a request with an explicit OST list; v3's shape.
pub const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
/// Bytes before the objects in v1.
pub const V1_HEADER_BYTES: usize = 32;
/// Bytes before the objects in v3 and SPECIFIC.
pub const V3_HEADER_BYTES: usize = 48;
/// Bytes of one object.
pub const OBJECT_BYTES: usize = 24;
/// Largest value of an extended attribute.
pub const XATTR_BYTES_MAX: usize = 65_536;
/// Generation/offset field: "any OST".
pub const OFFSET_ANY: u16 = 0xFFFF;

const PATTERN_RAID0: u32 = 1;
const PATTERN_OVERSTRIPING: u32 = 0x200;
const PATTERN_HOLE: u32 = 0x4000_0000;
const PATTERN_RELEASED: u32 = 0x8000_0000;
const POOL_FIELD_BYTES: usize = 16;

/// Why bytes are not a layout or a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum XattrError {
    /// Fewer bytes than the header or the stripe count call for.
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// More bytes than the form has, or than an xattr may have.
    TooLong {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        allowed: usize,
    },
    /// A magic of no known form.
    Magic(u32),
    /// A known form that this file system does not have.
    Unsupported(&'static str),
    /// A pattern that is not RAID-0 (with or without overstriping).
    Pattern(u32),
    /// Parts that do not make a layout.
    Layout(LayoutError),
    /// Values that do not make a request.
    Spec(SpecError),
    /// The pool field is not a name.
    Pool(PoolError),
    /// An OST index above 65534.
    Ost(u32),
}

impl fmt::Display for XattrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            XattrError::Truncated { needed, given } => write!(f, "lustre.lov has {given} bytes: {needed} are needed"),
            XattrError::TooLong { given, allowed } => {
                write!(f, "lustre.lov has {given} bytes: at most {allowed} are expected")
            }
            XattrError::Magic(m) => {
                write!(
                    f,
                    "lustre.lov starts with {m:#010x}: use {MAGIC_V1:#010x} (v1), {MAGIC_V3:#010x} (v3) or {MAGIC_SPECIFIC:#010x}"
                )
            }
            XattrError::Unsupported(what) => {
                write!(f, "lustre.lov holds a {what} layout, which is not supported: use RAID-0")
            }
            XattrError::Pattern(p) => {
                write!(f, "lustre.lov has pattern {p:#x}: use 1 (raid0) or 0x201 (raid0, overstriped)")
            }
            XattrError::Layout(e) => write!(f, "lustre.lov: {e}"),
            XattrError::Spec(e) => write!(f, "lustre.lov: {e}"),
            XattrError::Pool(e) => write!(f, "lustre.lov: {e}"),
            XattrError::Ost(i) => write!(f, "lustre.lov names OST {i}: indices end at 65534"),
        }
    }
}
impl core::error::Error for XattrError {}
impl From<XattrError> for FsError {
    fn from(e: XattrError) -> FsError {
        match e {
            XattrError::Unsupported(_) => FsError::NotSupported,
            XattrError::TooLong { .. } => FsError::TooBig,
            _ => FsError::Invalid,
        }
    }
}

/// What the 16-bit field after the count says when a layout is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The layout's generation: what the MDS stores and sends to clients.
    Stored,
    /// 0xFFFF: what getxattr returns.
    Read,
}

/// A file's layout as bytes: v3 when it has a pool, else v1. `file` fills the `lmm_oi` field.
#[must_use]
pub fn encode_layout(layout: &Layout, file: Fid, form: Form) -> Vec<u8> {
    let mut out = Vec::with_capacity(V3_HEADER_BYTES + OBJECT_BYTES * layout.objects().len());
    let last = if form == Form::Stored { layout.generation() } else { OFFSET_ANY };
    let pattern = pattern_bits(layout.pattern() == Pattern::Raid0Overstriped);
    let magic = if layout.pool().is_some() { MAGIC_V3 } else { MAGIC_V1 };
    put_header(&mut out, magic, pattern, file, layout.stripe_size().bytes(), layout.stripe_count(), last);
    if let Some(pool) = layout.pool() {
        put_pool(&mut out, pool.as_str());
    }
    for o in layout.objects() {
        put_object(&mut out, o.object, o.ost);
    }
    out
}

/// A request or a directory's default as bytes: what getxattr on a directory returns and what a tool passes to setxattr.
/// v1, v3 when a pool is chosen, SPECIFIC when OSTs are listed.
#[must_use]
pub fn encode_spec(spec: &LayoutSpec) -> Vec<u8> {
    let pool = match &spec.pool {
        PoolChoice::Inherit => None,
        PoolChoice::Ignore => Some("ignore"),
        PoolChoice::Named(p) => Some(p.as_str()),
    };
    let magic = match (spec.osts().is_empty(), pool) {
        (false, _) => MAGIC_SPECIFIC,
        (true, Some(_)) => MAGIC_V3,
        (true, None) => MAGIC_V1,
    };
    let count = match spec.stripe_count {
        _ if !spec.osts().is_empty() => spec.osts().len() as u16,
        StripeCount::Default => 0,
        StripeCount::All => 0xFFFF,
        StripeCount::Exactly(n) => n,
    };
    let size = spec.stripe_size.map_or(0, StripeSize::bytes);
    let index = spec.index.map_or(OFFSET_ANY, |i| i.0);
    let mut out = Vec::new();
    put_header(&mut out, magic, pattern_bits(spec.overstripe), Fid::ZERO, size, count, index);
    if magic != MAGIC_V1 {
        put_pool(&mut out, pool.unwrap_or(""));
    }
    for ost in spec.osts() {
        put_object(&mut out, ObjectId::default(), *ost);
    }
    out
}

/// Reads a stored layout: the file's FID and its layout. Exact: every byte must belong to the form.
///
/// # Errors
/// [`XattrError`].
pub fn decode_layout(bytes: &[u8]) -> Result<(Fid, Layout), XattrError> {
    let h = Header::read(bytes)?;
    if h.magic == MAGIC_SPECIFIC {
        return Err(XattrError::Magic(h.magic));
    }
    let body = &bytes[h.len..];
    let objects_bytes = OBJECT_BYTES * usize::from(h.count);
    let (needed, given) = (h.len + objects_bytes, bytes.len());
    match body.len() {
        n if n < objects_bytes => return Err(XattrError::Truncated { needed, given }),
        n if n > objects_bytes => return Err(XattrError::TooLong { given, allowed: needed }),
        _ => {}
    }
    let pattern = match h.pattern {
        PATTERN_RAID0 => Pattern::Raid0,
        p if p == PATTERN_RAID0 | PATTERN_OVERSTRIPING => Pattern::Raid0Overstriped,
        p => return Err(XattrError::Pattern(p)),
    };
    let size = StripeSize::new(u64::from(h.stripe_size)).map_err(XattrError::Layout)?;
    let objects = body.chunks_exact(OBJECT_BYTES).map(get_object).collect::<Result<Vec<_>, _>>()?;
    let pool = match h.pool {
        None | Some("") => None,
        Some(name) => Some(PoolName::parse(name).map_err(XattrError::Pool)?),
    };
    let layout = Layout::new(size, pattern, pool, objects).map_err(XattrError::Layout)?;
    Ok((h.file, layout.with_generation(h.last)))
}

/// Reads a request as setxattr brings it. Tolerant where existing tools need it: objects behind a v1 or v3 header are
/// ignored (a layout restored from an archive), pattern 0 is RAID-0, and the released and hole flags are cleared.
///
/// # Errors
/// [`XattrError`].
pub fn decode_spec(bytes: &[u8]) -> Result<LayoutSpec, XattrError> {
    let h = Header::read(bytes)?;
    let pattern = h.pattern & !(PATTERN_RELEASED | PATTERN_HOLE);
    if pattern & !PATTERN_OVERSTRIPING > PATTERN_RAID0 {
        return Err(XattrError::Pattern(h.pattern));
    }
    let index = if h.last == OFFSET_ANY { -1 } else { i64::from(h.last) };
    let mut spec =
        LayoutSpec::from_raw(u64::from(h.stripe_size), i64::from(h.count), index).map_err(XattrError::Spec)?;
    spec.overstripe = pattern & PATTERN_OVERSTRIPING != 0;
    spec.pool = PoolChoice::parse(h.pool.unwrap_or("")).map_err(|e| match e {
        SpecError::Pool(p) => XattrError::Pool(p),
        other => XattrError::Spec(other),
    })?;
    if h.magic != MAGIC_SPECIFIC {
        return Ok(spec);
    }
    let StripeCount::Exactly(count) = spec.stripe_count else {
        return Err(XattrError::Spec(SpecError::StripeCount(spec.stripe_count.to_raw())));
    };
    let body = &bytes[h.len..];
    let objects_bytes = OBJECT_BYTES * usize::from(count);
    if body.len() < objects_bytes {
        return Err(XattrError::Truncated { needed: h.len + objects_bytes, given: bytes.len() });
    }
    let osts = body[..objects_bytes]
        .chunks_exact(OBJECT_BYTES)
        .map(|o| get_ost(u32_at(o, 20)))
        .collect::<Result<Vec<_>, _>>()?;
    spec.with_osts(osts).map_err(XattrError::Spec)
}

/// Turns stored bytes into what getxattr returns, without a round trip through `Layout`: the generation becomes 0xFFFF.
/// Bytes shorter than a header stay as they are.
pub fn to_read_form(bytes: &mut [u8]) {
    if let Some(field) = bytes.get_mut(30..32) {
        field.copy_from_slice(&OFFSET_ANY.to_le_bytes());
    }
}

struct Header<'a> {
    magic: u32,
    pattern: u32,
    file: Fid,
    stripe_size: u32,
    count: u16,
    last: u16,
    pool: Option<&'a str>,
    len: usize,
}

impl Header<'_> {
    fn read(bytes: &[u8]) -> Result<Header<'_>, XattrError> {
        let given = bytes.len();
        if given > XATTR_BYTES_MAX {
            return Err(XattrError::TooLong { given, allowed: XATTR_BYTES_MAX });
        }
        if given < 4 {
            return Err(XattrError::Truncated { needed: V1_HEADER_BYTES, given });
        }
        let magic = u32_at(bytes, 0);
        let len = header_bytes(magic)?;
        if given < len {
            return Err(XattrError::Truncated { needed: len, given });
        }
        let pool = if len == V3_HEADER_BYTES { Some(get_pool(&bytes[V1_HEADER_BYTES..len])?) } else { None };
        // A sequence of 64 bits and an id of 32: the upper half of the id field is not part of a FID.
        let file = Fid::new(u64_at(bytes, 16), u32_at(bytes, 8));
        Ok(Header {
            magic,
            pattern: u32_at(bytes, 4),
            file,
            stripe_size: u32_at(bytes, 24),
            count: u16_at(bytes, 28),
            last: u16_at(bytes, 30),
            pool,
            len,
        })
    }
}

fn header_bytes(magic: u32) -> Result<usize, XattrError> {
    match magic {
        MAGIC_V1 => Ok(V1_HEADER_BYTES),
        MAGIC_V3 | MAGIC_SPECIFIC => Ok(V3_HEADER_BYTES),
        0x0BD6_0BD0 => Err(XattrError::Unsupported("composite")),
        0x0BD7_0BD0 => Err(XattrError::Unsupported("foreign")),
        0x0BD8_0BD0 => Err(XattrError::Unsupported("self-extending")),
        0x0BD2_0BD0 => Err(XattrError::Unsupported("joined")),
        other => Err(XattrError::Magic(other)),
    }
}

fn pattern_bits(overstriped: bool) -> u32 {
    if overstriped { PATTERN_RAID0 | PATTERN_OVERSTRIPING } else { PATTERN_RAID0 }
}

fn put_header(out: &mut Vec<u8>, magic: u32, pattern: u32, file: Fid, size: u32, count: u16, last: u16) {
    out.extend(magic.to_le_bytes());
    out.extend(pattern.to_le_bytes());
    out.extend(u64::from(file.oid).to_le_bytes());
    out.extend(file.seq.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(last.to_le_bytes());
}

fn put_pool(out: &mut Vec<u8>, name: &str) {
    let mut field = [0; POOL_FIELD_BYTES];
    field[..name.len()].copy_from_slice(name.as_bytes());
    out.extend(field);
}

fn put_object(out: &mut Vec<u8>, object: ObjectId, ost: OstIndex) {
    out.extend(object.0.seq.to_le_bytes());
    out.extend(object.0.oid.to_le_bytes());
    out.extend(object.0.ver.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(u32::from(ost.0).to_le_bytes());
}

fn get_pool(field: &[u8]) -> Result<&str, XattrError> {
    let len = field.iter().position(|b| *b == 0).ok_or(XattrError::Pool(PoolError::TooLong(field.len())))?;
    core::str::from_utf8(&field[..len]).map_err(|e| XattrError::Pool(PoolError::BadByte(field[e.valid_up_to()])))
}

fn get_ost(index: u32) -> Result<OstIndex, XattrError> {
    u16::try_from(index).ok().filter(|i| *i != u16::MAX).map(OstIndex).ok_or(XattrError::Ost(index))
}

fn get_object(bytes: &[u8]) -> Result<StripeObject, XattrError> {
    let fid = Fid { seq: u64_at(bytes, 0), oid: u32_at(bytes, 8), ver: u32_at(bytes, 12) };
    Ok(StripeObject { ost: get_ost(u32_at(bytes, 20))?, object: ObjectId(fid) })
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
#[path = "xattr_tests.rs"]
mod tests;
