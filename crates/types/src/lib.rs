//! What every other crate speaks in: ids, half-open extents, time, units, errors, seeded randomness.
//!
//! Layer 0: no I/O, no clock, no global state, no dependencies.
#![no_std]
extern crate alloc;

mod error;
mod extent;
pub mod glob;
mod ids;
mod rng;
mod time;
mod units;

pub use error::FsError;
pub use extent::Extent;
pub use ids::{ClientId, Fid, HandleId, MdtIndex, ObjectId, OstIndex, RequestId, Transno, Xid};
pub use rng::Rng;
pub use time::{Instant, WallTime};
pub use units::{GIB, KIB, MIB, PAGE_BYTES, PAGE_SHIFT, TIB, format_size, parse_size};

pub use core::time::Duration;
