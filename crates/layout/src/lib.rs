//! The layout room: how a file's bytes map onto OST objects, and which OSTs a new file gets.
//!
//! It decides: stripe geometry, object extents, file sizes from object sizes, the bytes of the `lustre.lov` xattr, the
//! text of `getstripe`, and (through policies chosen by name) the OSTs of a new file. It does not: create objects,
//! talk to OSTs, or know which pools exist; all of that arrives as plain data.
//!
//! Code map: [`Layout`] (a legal RAID-0 layout) · [`Geometry`] (the arithmetic) · [`LayoutSpec`] (what a user asks, or a
//! directory's default) · [`xattr`] (bytes) · [`text`] (getstripe) · [`allocator`] (OST allocators) ·
//! [`conformance`] (what every allocator must keep) · [`record`] (logs of calls and their replay).
//!
//! Source: paper 002 section 3 (stripe size, count, index); the format of Lustre's `lov_user_md` (interface only).
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod allocator;
mod config;
pub mod conformance;
mod geometry;
mod layout_type;
mod pool;
pub mod record;
mod reference;
mod spec;
pub mod text;
pub mod xattr;

pub use allocator::{AllocError, AllocPolicy, Allocator, Candidate, OstFacts, POLICIES, POLICY_DEFAULT, PolicyEntry};
pub use config::AllocConfig;
pub use geometry::{FILE_SIZE_MAX, Geometry, MapError, Piece, Pieces, StripeExtent, StripeExtents, StripeIndex};
pub use layout_type::{Layout, LayoutError, Pattern, StripeObject, StripeSize};
pub use pool::{POOL_NAME_BYTES_MAX, PoolError, PoolName};
pub use reference::reference_markdown;
pub use spec::{LayoutSpec, PoolChoice, Resolved, SpecError, StripeCount, parse_ost_list, parse_stripe_size};
pub use types::registry::UnknownPolicy;

/// Smallest stripe size, and the unit of stripe sizes: 64 KiB.
pub const STRIPE_SIZE_BYTES_MIN: u32 = 64 << 10;
/// Largest stripe size: 4 GiB - 64 KiB, the largest multiple of 64 KiB that fits 32 bits.
pub const STRIPE_SIZE_BYTES_MAX: u32 = u32::MAX - (STRIPE_SIZE_BYTES_MIN - 1);
/// Stripe size when neither the user nor a directory says one: 4 MiB, one RPC.
pub const STRIPE_SIZE_BYTES_DEFAULT: u32 = 4 << 20;
/// Most stripes in one file: 2000 (a v1 xattr of 48,032 bytes, under the 64 KiB xattr limit).
pub const STRIPE_COUNT_MAX: u16 = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_layout_fits_an_xattr() {
        assert_eq!(STRIPE_SIZE_BYTES_MAX, 0xFFFF_0000);
        assert_eq!(STRIPE_SIZE_BYTES_MAX % STRIPE_SIZE_BYTES_MIN, 0);
        assert!(xattr::V3_HEADER_BYTES + xattr::OBJECT_BYTES * usize::from(STRIPE_COUNT_MAX) <= xattr::XATTR_BYTES_MAX);
    }
}
