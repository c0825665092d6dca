//! The cache room: the policies that say which clean frame of a cache leaves first.
//!
//! Layer 1: depends on `types` only; no clock, no I/O, no threads. A policy sees frame numbers and page accesses
//! ([`ReclaimPolicy`]); it is built by name from the [`registry()`].
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod adaptive;
mod arc;
mod bypass;
pub mod conformance;
mod fgf_lru;
mod fgf_ring;
pub mod ghost;
mod lru;
mod managed;
mod policy;
mod reclaimer;
pub mod record;
mod registry;
mod s3fifo;
mod sieve;
mod stats;
pub mod table;
mod two_list;
mod wtinylfu;

pub use managed::{Managed, Order};
pub use policy::{Advice, FrameId, Grain, PageAccess, ReclaimPolicy, block_id, grain_of};
pub use reclaimer::{Reclaimer, Recorded, Registry};
pub use registry::{CacheConfig, PolicyEntry, build, reference_markdown, registry};
pub use stats::Stats;
