//! RPC messages and their bytes: the only place that knows the wire format.
//!
//! A message is a 64-byte header, a body, and optionally bulk bytes that no state machine ever touches. Bodies are
//! length-prefixed structs that grow by appending fields: a reader takes missing trailing fields as zero and skips
//! those it does not know. The specification is `docs/spec/wire.md`.

pub mod changelog;
mod checksum;
mod codec;
pub mod connect;
pub mod credential;
mod header;
pub mod lock;
pub mod mdt;
mod op;
pub mod ost;
pub mod quota;
pub mod shape;
pub mod spec;

pub use checksum::{Crc, crc32c, crc32c_append, crc32c_join};
pub use codec::{BODY_BYTES_MAX, Body, Bytes, Decode, Encode, Example, Reader, WireError, decode, encode};
pub use header::{Flags, HEADER_BYTES, Header, MAGIC, VERSION};
pub use op::{Class, Op, Side, Way};

/// Most bulk bytes in one message.
pub const BULK_BYTES_MAX: u32 = 64 << 20;

/// The modules of bodies, and the bodies of each.
pub const MODULES: &[(&str, &[Body])] = &[
    ("changelog", changelog::BODIES),
    ("connect", connect::BODIES),
    ("credential", credential::BODIES),
    ("lock", lock::BODIES),
    ("mdt", mdt::BODIES),
    ("ost", ost::BODIES),
    ("quota", quota::BODIES),
];
