//! Field-by-field little-endian encoding with bounds on everything that is read.
use std::sync::Arc;

use crate::shape::Shapes;
use types::{ClientId, Extent, Fid, HandleId, MdtIndex, ObjectId, OstIndex, Transno, WallTime, Xid};

/// Most bytes a message body may have: a directory page of 1 MiB and its frame.
pub const BODY_BYTES_MAX: u32 = (1 << 20) + (64 << 10);

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// The bytes end inside a field.
    Truncated,
    /// A length or count is beyond what the message can hold.
    TooLong(u64),
    /// A value that the field's type does not have.
    BadValue(u64),
    /// Not our magic.
    BadMagic(u32),
    /// A wire version that this build does not speak.
    BadVersion(u16),
    /// Header or body do not match their checksum.
    BadChecksum,
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WireError::Truncated => f.write_str("message ends inside a field"),
            WireError::TooLong(n) => write!(f, "length {n} is beyond the limit"),
            WireError::BadValue(v) => write!(f, "value {v} has no meaning in its field"),
            WireError::BadMagic(m) => write!(f, "magic {m:#010x} is not Stria's"),
            WireError::BadVersion(v) => write!(f, "wire version {v} is not spoken here"),
            WireError::BadChecksum => f.write_str("message does not match its checksum"),
        }
    }
}
impl std::error::Error for WireError {}

impl From<WireError> for types::FsError {
    fn from(_: WireError) -> types::FsError {
        types::FsError::Protocol
    }
}

/// Bytes being read; never reads beyond its end.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }
    /// Bytes not yet read.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes.len()
    }
    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when fewer are left.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        if n > self.bytes.len() {
            return Err(WireError::Truncated);
        }
        let (head, tail) = self.bytes.split_at(n);
        self.bytes = tail;
        Ok(head)
    }
    /// The length-prefixed part that follows.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when it is cut.
    pub fn part(&mut self) -> Result<Reader<'a>, WireError> {
        let n = u32::get(self)? as usize;
        Ok(Reader::new(self.take(n)?))
    }
}

/// A value that can be put on the wire.
pub trait Encode {
    /// Appends the value's bytes.
    fn put(&self, out: &mut Vec<u8>);
}

/// A value that can be read from the wire.
pub trait Decode: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// When the bytes are not such a value.
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError>;
}

/// What golden files and the specification know of a type.
pub trait Example: Sized {
    /// The next value, whose every field differs from its neighbours and from the default; `n` counts the fields made so far.
    fn example(n: &mut u64) -> Self;
    /// What the specification calls the type; one with a description of its own is put into `shapes`.
    fn shape(shapes: &mut Shapes) -> String;
}

/// A body, for those that treat all alike: golden files, mutated input, the specification.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    /// Its type's name.
    pub name: &'static str,
    /// The bytes of its [`Example`].
    pub example: fn() -> Vec<u8>,
    /// Reads bytes and writes what was understood of them.
    pub recode: fn(&[u8]) -> Result<Vec<u8>, WireError>,
    /// What the specification says of it.
    pub shape: fn(&mut Shapes) -> String,
}

impl Body {
    /// `T` as a body.
    #[must_use]
    pub const fn of<T: Encode + Decode + Example>(name: &'static str) -> Body {
        Body {
            name,
            example: || encode(&T::example(&mut 0)),
            recode: |bytes| decode::<T>(bytes).map(|value| encode(&value)),
            shape: T::shape,
        }
    }
}

/// The bytes of a body.
#[must_use]
pub fn encode<T: Encode>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    value.put(&mut out);
    out
}

/// The value of a body. Trailing bytes are a later version's and ignored.
///
/// # Errors
/// When the bytes are not such a value.
pub fn decode<T: Decode>(bytes: &[u8]) -> Result<T, WireError> {
    T::get(&mut Reader::new(bytes))
}

macro_rules! number {
    ($($t:ty),*) => {$(
        impl Encode for $t {
            fn put(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()); }
        }
        impl Decode for $t {
            fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
                let mut b = [0; size_of::<$t>()];
                b.copy_from_slice(r.take(size_of::<$t>())?);
                Ok(<$t>::from_le_bytes(b))
            }
        }
        impl Example for $t {
            fn example(n: &mut u64) -> Self {
                *n += 1;
                *n as $t
            }
            fn shape(_: &mut Shapes) -> String { stringify!($t).into() }
        }
    )*};
}
number!(u8, u16, u32, u64, i32, i64);

macro_rules! newtype {
    ($($t:ident $name:literal),*) => {$(
        impl Encode for $t { fn put(&self, out: &mut Vec<u8>) { self.0.put(out); } }
        impl Decode for $t { fn get(r: &mut Reader<'_>) -> Result<Self, WireError> { Ok($t(Decode::get(r)?)) } }
        impl Example for $t {
            fn example(n: &mut u64) -> Self { $t(Example::example(n)) }
            fn shape(_: &mut Shapes) -> String { $name.into() }
        }
    )*};
}
newtype! {
    OstIndex "index u16", MdtIndex "index u16", ClientId "client u64", Xid "xid u64", Transno "transno u64",
    HandleId "handle u64", ObjectId "object (FID)", WallTime "time i64"
}

impl Encode for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}
impl Decode for bool {
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(r)? {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(WireError::BadValue(v.into())),
        }
    }
}
impl Example for bool {
    fn example(n: &mut u64) -> Self {
        *n += 1;
        true
    }
    fn shape(_: &mut Shapes) -> String {
        "bool".into()
    }
}
impl Encode for () {
    fn put(&self, _: &mut Vec<u8>) {}
}
impl Decode for () {
    fn get(_: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(())
    }
}
impl Example for () {
    fn example(_: &mut u64) -> Self {}
    fn shape(_: &mut Shapes) -> String {
        "empty".into()
    }
}
impl Encode for Fid {
    fn put(&self, out: &mut Vec<u8>) {
        self.seq.put(out);
        self.oid.put(out);
        self.ver.put(out);
    }
}
impl Decode for Fid {
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Fid { seq: u64::get(r)?, oid: u32::get(r)?, ver: u32::get(r)? })
    }
}
impl Example for Fid {
    fn example(n: &mut u64) -> Self {
        Fid { seq: 0x2_0000_0000 + u64::example(n), oid: Example::example(n), ver: Example::example(n) }
    }
    fn shape(_: &mut Shapes) -> String {
        "FID".into()
    }
}
impl Encode for Extent {
    fn put(&self, out: &mut Vec<u8>) {
        self.start.put(out);
        self.end.put(out);
    }
}
impl Decode for Extent {
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (start, end) = (u64::get(r)?, u64::get(r)?);
        Extent::checked(start, end).ok_or(WireError::BadValue(end))
    }
}
impl Example for Extent {
    fn example(n: &mut u64) -> Self {
        let start = u64::example(n) << 12;
        Extent { start, end: start + (u64::example(n) << 12) }
    }
    fn shape(_: &mut Shapes) -> String {
        "extent".into()
    }
}
impl<T: Encode> Encode for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for v in self {
            v.put(out);
        }
    }
}
impl<T: Decode> Decode for Vec<T> {
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let n = u32::get(r)? as usize;
        // Every element takes at least a byte, so a count beyond the bytes left is a lie.
        if n > r.left() {
            return Err(WireError::TooLong(n as u64));
        }
        // Elements may be larger in memory than on the wire: what is reserved at once stays below the message's size.
        let mut v = Vec::with_capacity(n.min(r.left() / size_of::<T>().max(1) + 1));
        for _ in 0..n {
            v.push(T::get(r)?);
        }
        Ok(v)
    }
}
impl<T: Example> Example for Vec<T> {
    fn example(n: &mut u64) -> Self {
        vec![T::example(n), T::example(n)]
    }
    fn shape(shapes: &mut Shapes) -> String {
        format!("list of {}", T::shape(shapes))
    }
}
impl<T: Encode> Encode for Arc<[T]> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|v| v.put(out));
    }
}
impl<T: Decode> Decode for Arc<[T]> {
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Vec::get(r).map(Arc::from)
    }
}
impl<T: Example> Example for Arc<[T]> {
    fn example(n: &mut u64) -> Self {
        Vec::example(n).into()
    }
    fn shape(shapes: &mut Shapes) -> String {
        Vec::<T>::shape(shapes)
    }
}
impl<T: Encode> Encode for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(v) = self {
            v.put(out);
        }
    }
}
impl<T: Decode> Decode for Option<T> {
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        if bool::get(r)? { Ok(Some(T::get(r)?)) } else { Ok(None) }
    }
}

impl<T: Example> Example for Option<T> {
    fn example(n: &mut u64) -> Self {
        Some(T::example(n))
    }
    fn shape(shapes: &mut Shapes) -> String {
        format!("optional {}", T::shape(shapes))
    }
}

/// A byte string: a name, a path, an xattr value.
#[derive(Clone, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl From<&[u8]> for Bytes {
    fn from(b: &[u8]) -> Bytes {
        Bytes(b.to_vec())
    }
}
impl From<Vec<u8>> for Bytes {
    fn from(b: Vec<u8>) -> Bytes {
        Bytes(b)
    }
}
impl From<&str> for Bytes {
    fn from(b: &str) -> Bytes {
        Bytes(b.as_bytes().to_vec())
    }
}
impl core::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
impl core::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
impl Encode for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        out.extend_from_slice(&self.0);
    }
}
impl Decode for Bytes {
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let n = u32::get(r)? as usize;
        Ok(Bytes(r.take(n)?.to_vec()))
    }
}

impl Example for Bytes {
    fn example(n: &mut u64) -> Self {
        format!("bytes {}", u8::example(n)).as_str().into()
    }
    fn shape(_: &mut Shapes) -> String {
        "bytes".into()
    }
}

/// Declares a message part: a struct whose bytes are a length and its fields in order, growing by appending.
#[macro_export]
#[doc(hidden)]
macro_rules! message {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $fdoc:literal])+ $field:ident: $ty:ty,)* })*) => {
        /// Every body declared here.
        pub const BODIES: &[$crate::Body] = &[$($crate::Body::of::<$name>(stringify!($name)),)*];
        $(
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Debug, Default)]
        pub struct $name { $($(#[doc = $fdoc])+ pub $field: $ty,)* }
        impl $crate::Encode for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let at = out.len();
                out.extend_from_slice(&[0; 4]);
                $(self.$field.put(out);)*
                let len = (out.len() - at - 4) as u32;
                out[at..at + 4].copy_from_slice(&len.to_le_bytes());
            }
        }
        impl $crate::Decode for $name {
            fn get(r: &mut $crate::Reader<'_>) -> Result<Self, $crate::WireError> {
                #[allow(unused_mut, unused_variables)]
                let mut part = r.part()?;
                Ok($name {
                    $($field: if part.left() == 0 { Default::default() } else { $crate::Decode::get(&mut part)? },)*
                })
            }
        }
        impl $crate::Example for $name {
            fn example(n: &mut u64) -> Self {
                Self { $($field: $crate::Example::example(n),)* }
            }
            fn shape(shapes: &mut $crate::shape::Shapes) -> String {
                let fields: &[$crate::shape::Field] =
                    &[$((stringify!($field), <$ty as $crate::Example>::shape, concat!($($fdoc),+)),)*];
                shapes.part(module_path!(), stringify!($name), concat!($($doc),+), fields)
            }
        }
    )*};
}

/// Declares an enum that travels as one byte.
#[macro_export]
#[doc(hidden)]
macro_rules! byte_enum {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $(#[$default:ident])? $variant:ident = $value:literal,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[doc = $vdoc])+ $(#[$default])? $variant = $value,)* }
        impl $crate::Encode for $name {
            fn put(&self, out: &mut Vec<u8>) { out.push(*self as u8); }
        }
        impl $crate::Decode for $name {
            fn get(r: &mut $crate::Reader<'_>) -> Result<Self, $crate::WireError> {
                match <u8 as $crate::Decode>::get(r)? {
                    $($value => Ok($name::$variant),)*
                    v => Err($crate::WireError::BadValue(v.into())),
                }
            }
        }
        impl $crate::Example for $name {
            fn example(n: &mut u64) -> Self {
                *n += 1;
                let all = [$($name::$variant),*];
                all[*n as usize % all.len()]
            }
            fn shape(shapes: &mut $crate::shape::Shapes) -> String {
                let values = [$((stringify!($variant), $value, concat!($($vdoc),+)),)*];
                shapes.byte(module_path!(), stringify!($name), concat!($($doc),+), values)
            }
        }
    };
}
