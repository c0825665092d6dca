//! The cache room: page frames (the mechanism's memory) and the policies that say which clean frame leaves first.
//!
//! Layer 1: depends on `types` only; no clock, no I/O, no threads. A policy sees frame numbers and page accesses
//! ([`ReclaimPolicy`]); it is built by name from the [`registry()`].
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod frames;
mod policy;
mod registry;

pub use policy::{Advice, FrameId, Grain, PageAccess, ReclaimPolicy, block_id, grain_of};
pub use registry::{CacheConfig, PolicyEntry, build, reference_markdown, registry};
