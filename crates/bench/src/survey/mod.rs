//! What one layer alone can do: disk, network, OSTs, metadata.
pub mod network;
