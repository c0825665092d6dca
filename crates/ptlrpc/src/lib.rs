//! Sessions between clients and targets, exactly once.
//!
//! A client's [`Import`] and a server's [`Export`] are the two ends of one session. The import numbers requests,
//! keeps them until they are answered (resend) and, when they changed something, until that is on stable storage
//! (replay). The export keeps the last answer of every slot, so that a request that comes again is answered again
//! and not carried out again. Neither knows what the requests mean.

mod auth;
mod door;
mod export;
mod import;
mod incoming;
mod recovery;
mod server;

pub use auth::{Binding, ClusterKey};
pub use export::{Export, ReplyRecord, Request, SLOTS_MAX};
pub use import::{CallOptions, Callbacks, Import, ImportConfig, ImportState, Reply};
pub use server::{Server, ServerConfig, Service, SessionRecord};
