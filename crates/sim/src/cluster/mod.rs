//! Full fidelity: the real metadata server, object storage server and client, over real stores, in a simulated world.
//!
//! A [`run()`] is a cluster ([`nodes`]), programs that compare every answer with a model ([`tree`], [`shared`],
//! [`model`]), and faults drawn from the seed ([`faults`]). Afterwards everything is calm, every program must come to
//! its end, every byte must be as it was promised, and the stores are read as `stria fsck` reads them ([`check`]).
//! Source: semantics of durability and recovery as the design promises them; the method is TigerBeetle's and
//! FoundationDB's: one production code base inside a deterministic simulator.
mod absent;
pub mod check;
mod class;
mod config;
mod context;
mod costs;
mod crowd;
mod database;
pub mod dirs;
mod disks;
mod dropped;
pub mod faults;
mod filler;
mod follower;
mod guests;
mod hasty;
pub mod keepers;
mod known;
mod leavers;
pub mod model;
mod moments;
mod mover;
pub mod nodes;
mod onlooker;
pub mod overlap;
mod quotas;
mod rights;
mod run;
mod scarred;
mod scenario;
pub mod sequences;
pub mod shared;
mod stranded;
mod swarm;
#[cfg(test)]
mod tests;
mod thought;
pub mod torture;
pub mod tree;
mod witnesses;

pub use class::FaultClass;
pub use config::ClusterConfig;
pub use context::{Context, Counts, Manners};
pub use costs::Costs;
pub use faults::FaultConfig;
pub use nodes::{Cluster, Node, NodeId};
pub use run::{RunConfig, RunReport, WorkConfig, run};
pub use swarm::{Swarm, Without};
