//! The client node: everything a program may do with files of a cluster, coherently with all other clients.
//!
//! [`Client`] joins a cluster over `rt` and offers POSIX-shaped operations by FID. It caches what its locks cover and
//! nothing else: names and attributes under inode-bit locks of the metadata server, pages and sizes under extent locks
//! of the OSTs. It composes the rooms (`ldlm`, `cache`, `datapath`, `readahead`, `layout`) and never reaches round them.
//!
//! Code map, from a program's call downwards: `open` `read` `write` `append` `size` `namespace` `listing` `flock` (operations) ·
//! `closes` `untold` `layouts` (what opens leave behind, opens without a request, layouts) · `inode` `attrs` `outside` `front`
//! `kernel` `aside` (one inode; what a kernel in front knows and keeps of it) · `object` `pages` `ahead` (one OST object, the page
//! cache around it, readahead) · `advise` (what servers are told to keep) · `osc` `owner` (one OST, the metadata server: sessions, write-out, what a lock protects) ·
//! `limits` (how much of the namespace is remembered) · `locks` `lock_ahead` (drives `ldlm`; locks before they are needed) · `losses` `lost_changes` `stats` `offsets` `jobs` (what is counted and told) · `gone` (what servers are told of other clients) · `client` `config` (the whole).
//!
//! Rules: no `RefCell` borrow lives across an `await`. An operation whose future is dropped leaves requests under way and
//! nothing else: claims, slots, turns and charges are given back by guards.
//! Guarded by: the tests here, `crates/cluster/tests`, `crates/sim/tests/{cluster,sequences}.rs`, `crates/stria/tests`.
mod advise;
mod ahead;
mod append;
mod aside;
mod attrs;
mod client;
mod closes;
mod config;
mod convert;
mod cuts;
mod flock;
mod front;
mod inode;
mod jobs;
mod kept_append;
mod kernel;
mod layouts;
mod lease;
mod limits;
mod listing;
mod lock_ahead;
mod locks;
mod losses;
mod lost_changes;
mod metrics;
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
mod readahead;
mod reclaim;
mod sessions;
mod settled;
mod short;
mod size;
mod stats;
mod tells;
mod untold;
mod write;

pub use crate::readahead::Readahead;
pub use ::readahead::Hint;
pub use client::Client;
pub use config::ClientConfig;
pub use flock::Flocks;
pub use flock::{Blocker, LockCall};
pub use front::Front;
pub use inode::Inode;
pub use jobs::JobRule;
pub use jobs::Jobs;
pub use kernel::Kernel;
pub use kernel::{KernelCache, NoKernel};
pub use ldlm::FlockMode;
pub use losses::Losses;
pub use metrics::{METRICS, NUMBERS, OSC_NUMBERS};
pub use namespace::{Entry, NAME_BYTES_MAX, NewNode};
pub use offsets::Offsets;
pub use open::{NewFile, OpenFile};
pub use osc::Osc;
pub use osc::{Osts, SettingsHook};
pub use pages::PageCache;
pub use sessions::{JoinError, Sessions};
pub use short::Written;
pub use size::FILE_BYTES_MAX;
pub use stats::CallStats;
pub use stats::OscStats;
