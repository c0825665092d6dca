//! The object storage server.
//!
//! One [`Ost`] is one target: it checks requests, takes locks, holds requests back in its scheduler head, reads and
//! writes through a page cache, and answers. What keeps the bytes stands behind [`store::ObjectStore`]. An [`Oss`]
//! runs several targets in one process. The request pipeline ([`nrs::Pipeline`]) is a synchronous state machine of its
//! own, so that a simulator drives exactly the one that servers run.
//!
//! Code map: `ost` (one target: reads, writes, cuts, objects) · [`dispatch`] (the scheduler pipeline for tasks) · `locks`
//! (drives `ldlm`) · `grants` (promised space) · [`page_cache`] `pages` (cached blocks) · `range_gate` (changes of one block
//! wait for each other) · `changes` (of objects that are copied) · `advised`
//! (what users advised, driven by `ost/advise.rs`) · [`fast`] (a faster device before a store) · [`store`] (the trait, its conformance suite, stores without a medium) · [`bandwidth`] (how fast
//! the store is) · `params` `metrics` `stats` `traced` (what administrators set and see) · `oss_node` `config` (the whole).
//! Guarded by: `crates/oss/tests`, `store::conformance`, `crates/cluster/tests`, `crates/sim/tests`.

mod advised;
pub mod bandwidth;
mod changes;
mod config;
mod cut_marks;
pub mod dispatch;
pub mod fast;
mod grants;
mod locks;
mod metrics;
mod oss_node;
mod ost;
pub mod page_cache;
mod pages;
mod params;
mod promises;
mod range_gate;
mod scrub;
mod stats;
pub mod store;
mod traced;

pub use config::{BY_MEDIUM, Keys, OstConfig};
pub use metrics::METRICS;
pub use oss_node::Oss;
pub use ost::Ost;
