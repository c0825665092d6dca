//! Sessions between clients and targets, exactly once.
//!
//! A client's [`Import`] and a server's [`Export`] are the two ends of one session. The import numbers requests,
//! keeps them until they are answered (resend) and, when they changed something, until that is on stable storage
//! (replay). The export keeps the last answer of every slot, so that a request that comes again is answered again
//! and not carried out again. Neither knows what the requests mean.
//!
//! Code map: `import` (a client's end; `connection`, `recovery`, `again`, `timeouts` below it) · `export` (a server's end, kept answers) ·
//! `server` (listening, requests) · `reception` (one address for servers of several shards) · `sessions` (handshake, whose session, eviction) · `early` (asking for time) · `recovery` (the window after a restart) · `auth` `credential` `door` (who may open a
//! session, with which limits, and how many try) · `seats` (how many sessions a process takes) · `admission` `capability` (whether a session may ask what it asks, and about which objects) · `stream` `incoming` (messages as they come) · `turns` (permits by rank).
//! Guarded by: `crates/ptlrpc/tests`, the tests of clients and servers in `crates/cluster/tests`, `crates/sim/tests/cluster.rs`.

mod admission;
mod auth;
mod capability;
mod credential;
mod door;
mod early;
mod export;
mod import;
mod incoming;
mod quiet;
mod reception;
mod recovery;
mod seats;
mod server;
mod sessions;
pub mod stream;
pub mod turns;

pub use admission::{Does, does};
pub use auth::{Binding, ClusterKey, Security, SessionKey, meant};
pub use capability::{CAPABILITY_BYTES, CapabilityKey, object_of};
pub use credential::{CLIENT_KEY, CLIENT_KEY_NAME, Limits, Validity, check_name};
pub use export::{Export, ReplyRecord, Request, SLOTS_MAX};
pub use import::{AdaptiveTimeouts, CallOptions, Callbacks, Import, ImportConfig, ImportState, Reply};
pub use quiet::{HeldSet, Leaving, Quiet, watch_quiet};
pub use reception::Reception;
pub use recovery::RecoveryControl;
pub use seats::Seats;
pub use server::{SESSIONS_OF_CREDENTIAL_MAX, Server, ServerConfig, Service, SessionRecord};
