//! The lock room: who may read and change what, coherently over all clients. Both sides as pure state machines.
//!
//! - [`Namespace`]: the server's locks of one target (extent locks on objects, inode-bit locks on inodes, flocks).
//! - [`LockCache`]: a client's locks at one target: matching, callbacks, LRU, replay.
//! - [`FlockMirror`]: a client's own flock ranges, kept for replay.
//! - [`conformance`]: a model network of clients and one server, for tests and the simulator;
//!   [`record`]: a log of server calls that a fresh namespace answers the same way.
//!
//! Neither side has a clock, sends anything, or holds data: time is an argument, messages come out as values, and
//! what a lock protects belongs to whoever asks. Every input may be repeated, delayed and reordered by a network.
//!
//! Rules for drivers
//! - A client holds no reference to a lock while it waits for another one (take all, or take none and wait).
//! - Client: process [`CacheAction`]s in order. A cancel or narrow that was sent is repeated until it is answered.
//! - Server: an operation that a client waits for never waits for a lock of that client which the operation itself
//!   keeps in use (a punch under the client's own write lock takes no lock of its own).
//! - Only a server evicts; an evicted client learns it from its import and calls [`LockCache::on_evicted`].
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod bits;
pub mod conformance;
mod extents;
mod flock;
mod flock_mirror;
mod flock_table;
mod interval;
mod lock;
mod lock_cache;
mod namespace;
mod patience;
pub mod record;
mod resource;

pub use flock::{FlockKind, FlockMode, FlockOutcome, FlockRange, FlockRequest};
pub use flock_mirror::FlockMirror;
pub use lock::{
    Action, DenyReason, EnqueueFlags, EnqueueOutcome, EnqueueRequest, InodeBits, LOCAL, LockCookie, LockDesc,
    LockPolicyData, ResourceId, ResourceKind,
};
pub use lock_cache::{Acquire, BlockingOutcome, CacheAction, LockCache, LockCacheConfig, LockCacheStats};
pub use namespace::{Evicted, Expired, LockReplay, Namespace, NamespaceConfig, NamespaceStats};
pub use patience::{HELD_UP_AFTER, Patience};
pub use types::LockMode;
