//! What another policy, window or device would have done with recorded requests.
//!
//! The arrivals of a trace go through the pipeline that servers run, in front of the models of elevator, disk and allocator
//! that light worlds and emulated OSTs have. In an open loop requests arrive when they did; in a closed one each client waits as
//! long after the completion that it had waited for as it did, so that a faster server is asked more. Whoever believes an
//! answer looks first at what the recorded settings give: [`Comparison`] holds both against what was measured.
//!
//! Deliberately not here: what the server's caches would hold under another order (what was cached stays cached), networks,
//! locks, buckets of tbf that the OSTs of one server share.
//!
//! Code map: `config` (a target's settings, from the trace and from `--set`) · `follow` (who waited for what) · `world` (the
//! events) · `compare` (figures, errors, ranges) · [`fit`] (a disk's parameters).
mod compare;
mod config;
pub mod fit;
mod follow;
#[cfg(test)]
mod tests;
mod world;

pub use compare::{Comparison, Value, compare};
pub use config::{KEYS, Overrides, TargetConfig};
pub use follow::Loop;
pub use world::{Outcome, measured, run};
