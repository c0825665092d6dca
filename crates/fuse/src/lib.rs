//! The FUSE session: how the kernel's file system requests reach Stria and how the answers go back.
//!
//! Holds the kernel protocol ([`abi`], [`op`], [`init`]), transports behind one [`Request`]/[`Reply`] pair (requests
//! as completions on the runtime's io_uring, or read from `/dev/fuse`, or from a model of a kernel), notifications, mounting and unmounting, and
//! the supervisor that cleans up after a killed daemon. Holds no file system: that is a [`FileSystem`] given to
//! [`Worker::serve`]. Everything asynchronous runs on a compio runtime, one thread per worker, nothing blocks.
//! A process that serves a mount must not hold files open on it: on rings, killing it then leaves it in its exit for ever.
//!
//! ```text
//! kernel --ring completion / read(2)--> slot --Request--> FileSystem::handle --Reply--> slot --commit / writev--> kernel
//! ```
//!
//! Code map: [`abi`] [`op`] `reply` `request` (the protocol) · [`init`] (negotiation) · `dev` `ring` `slot` `crew` (transports and
//! the tasks that serve them) · `session` `notify` `interrupt` (one connection) · [`mount`] (mounting, options, supervisor) ·
//! [`probe`] `runtime` (what this machine can).
//! Guarded by: `crates/fuse/tests` (a file system in memory on both transports), `crates/simkernel`, `crates/cluster/tests/mount.rs`.
pub mod abi;
mod crew;
mod dev;
mod drops;
pub mod init;
mod interrupt;
pub mod mount;
pub mod notify;
pub mod op;
mod pipe;
pub mod probe;
mod reply;
mod request;
mod ring;
mod runtime;
mod session;
mod slot;

pub use crew::Lasting;
pub use init::{Negotiated, ReaddirPlus, SessionConfig};
pub use interrupt::Interrupted;
pub use notify::{Notified, Notifier};
pub use op::{Extensions, Op};
pub use pipe::{Message, Pipe};
pub use reply::{Dirents, Entry, Replied, Reply};
pub use request::Request;
pub use runtime::{RuntimeConfig, runtime};
pub use session::{Counters, FileSystem, Session, SessionError, Transport, TransportChoice, Worker};
