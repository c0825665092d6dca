//! Tests of clients in simulated clusters: one program, since each would build the servers anew. A test has a simulation of its
//! own, on its own thread.
#![allow(clippy::unwrap_used)]

mod ahead;
mod alone;
mod away;
mod bulk;
mod cancel;
mod changelog;
mod coherence;
mod conversion;
mod credentials;
mod cuts;
mod durable;
mod eviction;
mod flocks;
mod forged;
mod fsync;
mod full;
mod full_locks;
mod gone;
mod grants;
mod in_part;
mod limits;
mod lock_ahead;
mod migrate;
mod missing;
mod names;
mod objectless;
mod opening;
mod overload;
mod quota;
mod reopen;
mod replay_gap;
mod reserved;
mod sizes;
mod stalls;
mod starved;
mod timeouts;
mod unknown_ost;
mod urgent;
mod world;
