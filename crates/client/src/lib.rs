//! The client node: everything a program may do with files of a cluster, coherently with all other clients.
//!
//! [`Client`] joins a cluster over `rt` and offers POSIX-shaped operations by FID. It caches what its locks cover and
//! nothing else: names and attributes under inode-bit locks of the metadata server, pages and sizes under extent locks
//! of the OSTs. It composes the rooms (`ldlm`, `cache`, `readahead`, `layout`) and never reaches round them.
mod ahead;
mod client;
mod closes;
mod config;
mod convert;
mod flock;
mod front;
mod inode;
mod jobs;
mod kernel;
mod layouts;
mod listing;
mod locks;
mod losses;
mod namespace;
mod object;
mod offsets;
mod open;
mod osc;
mod outside;
mod owner;
mod pages;
mod privileges;
mod read;
mod size;
mod stats;
mod untold;
mod write;

pub use client::{Client, JoinError};
pub use config::ClientConfig;
pub use flock::{Blocker, LockCall};
pub use inode::Inode;
pub use jobs::JobRule;
pub use kernel::{KernelCache, NoKernel};
pub use ldlm::FlockMode;
pub use losses::Losses;
pub use namespace::{Entry, NAME_BYTES_MAX, NewNode};
pub use open::{NewFile, OpenFile};
pub use osc::Osc;
pub use readahead::Hint;
pub use size::FILE_BYTES_MAX;
pub use stats::OscStats;
