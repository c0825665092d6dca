//! Full fidelity: the real metadata server, object storage server and client, over real stores, in a simulated world.
mod config;
mod nodes;
#[cfg(test)]
mod tests;

pub use config::ClusterConfig;
pub use nodes::{Cluster, Node, NodeId};
