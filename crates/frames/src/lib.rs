//! Page frames: one arena per process, reference-counted 4 KiB pages, allocated in contiguous runs.
//!
//! A frame is what travels: disk reads land in it, sockets send from it, caches keep it, and inside one process a
//! client and an OST hold the same one. The rule that makes this sound: **bytes change only while exactly one
//! reference exists** ([`FrameRun::bytes_mut`]); whoever must change a shared page copies it first.
//! Which page leaves a cache is not decided here; that is the business of the cache room's policies.
//!
//! Layer 0: no clock, no I/O, no threads of its own; every handle may cross threads.
//!
//! | file | what it holds |
//! |---|---|
//! | `arena.rs` | [`FramePool`] and [`FrameRun`]: free frames, reference counts, exclusive writes; all `unsafe` |
//! | `bulk.rs` | [`Bulk`] and [`Segment`]: the bytes of one RPC as a list of pieces of frames |
//!
//! What else guards it: `rt`'s and `simworld`'s disks and streams, and the stores' suites, move bytes in these frames.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod arena;
mod bulk;

pub use arena::{FRAME_BYTES, FramePool, FrameRun, RUN_FRAMES_MAX};
pub use bulk::{Bulk, Segment};
