//! What every other crate speaks in: ids, half-open extents, time, units, lock modes, errors, seeded randomness,
//! configuration tables, logs of calls.
//!
//! Layer 0: no I/O, no clock, no global state, no dependencies.
#![no_std]
extern crate alloc;

pub mod advise;
mod error;
mod extent;
pub mod glob;
mod ids;
mod jobs;
pub mod latency;
mod lock_mode;
pub mod metric;
mod origin;
pub mod params;
pub mod planted;
pub mod prefetch;
pub mod record;
pub mod registry;
mod rng;
pub mod scrub;
pub mod settings;
mod shell;
pub mod stats;
mod time;
mod units;
pub mod uses;

pub use error::FsError;
pub use extent::Extent;
pub use ids::{ClientId, Fid, HandleId, MdtIndex, ObjectId, OstIndex, RequestId, Transno, Xid};
pub use jobs::{JOB_NAME_BYTES_MAX, JobNames, job_id};
pub use lock_mode::LockMode;
pub use origin::Origin;
pub use rng::Rng;
pub use shell::shell_word;
pub use time::{Instant, WallTime};
pub use units::{GIB, KIB, MIB, PAGE_BYTES, PAGE_SHIFT, TIB, format_size, parse_size};

pub use core::time::Duration;

/// For [`config_table!`] and [`keys!`].
#[doc(hidden)]
pub use alloc::string as alloc_string;
