//! The client node: everything a program may do with files of a cluster, coherently with all other clients.
//!
//! [`Client`] joins a cluster over `rt` and offers POSIX-shaped operations by FID. It caches what its locks cover and
//! nothing else: names and attributes under inode-bit locks of the metadata server, pages and sizes under extent locks
//! of the OSTs. It composes the rooms (`ldlm`, `cache`, `datapath`, `readahead`, `layout`) and never reaches round them.
//!
//! Code map, from the bottom up; a file imports only files before it (`docs/internals/client.md` draws it):
//! `goes_on` `config` `losses` `offsets` `stats` `limits` `listed` `cut_numbers` `tells` `short` `attrs` `in_use` (state that decides for itself) ·
//! `jobs` `sessions` (imports of all servers) · `flock` (locks of programs) · `convert` `locks` `kept_append` (drives `ldlm`) · `kernel`
//! `front` (what a kernel in front knows and keeps) · `readahead` `pages` `object` `inode` (readahead, the page cache, one OST object, one
//! inode) · `osc` (the OSTs: objects, write-out, what a lock protects) · `open_file` `ending` `settled` · `meta` (names, attributes,
//! handles) · `data` (bytes and sizes) · `client` with `entries` `opens` `attributes` `advise` `migrate` `aside` `programs` `metrics` (the whole: what
//! needs names and bytes both).
//!
//! Rules: no `RefCell` borrow lives across an `await`. An operation whose future is dropped leaves nothing half done: claims,
//! slots, turns and charges are given back by guards, and a change that was sent goes on (`goes_on`). Each public async function
//! says which it is, in a sentence that begins with `Cancel:` (`docs/internals/client.md`).
//! Guarded by: the tests here, `crates/cluster/tests`, `crates/sim/tests/{cluster,sequences}.rs`, `crates/stria/tests`.
mod advise;
mod aside;
mod attributes;
mod attrs;
mod client;
mod config;
mod convert;
mod cut_numbers;
mod data;
mod ending;
mod entries;
mod flock;
mod front;
mod goes_on;
mod in_use;
mod inode;
mod jobs;
mod kept_append;
mod kernel;
mod limits;
mod listed;
mod locks;
mod losses;
mod meta;
mod metrics;
mod migrate;
mod object;
mod offsets;
mod open_file;
mod opens;
mod osc;
mod pages;
#[cfg(test)]
mod parts;
mod programs;
mod readahead;
mod sessions;
mod settled;
mod short;
mod short_ends;
mod stats;
mod tells;
mod tight;
mod unsettled;

pub use ::readahead::Hint;
pub use ldlm::FlockMode;

pub use crate::readahead::Readahead;
pub use client::Client;
pub use config::{ClientConfig, Keys};
pub use data::{Data, Migrate};
pub use entries::Entry;
pub use flock::{Blocker, Flocks, LockCall};
pub use front::Front;
pub use goes_on::Alone;
pub use in_use::InUse;
pub use inode::{FILE_BYTES_MAX, Inode};
pub use jobs::{JobRule, Jobs};
pub use kernel::{Kernel, KernelCache, NoKernel};
pub use losses::Losses;
pub use meta::Meta;
pub use meta::missed::Missed;
pub use meta::names::{NAME_BYTES_MAX, NewNode};
pub use metrics::{METRICS, NUMBERS, OSC_NUMBERS};
pub use offsets::Offsets;
pub use open_file::OpenFile;
pub use opens::NewFile;
pub use osc::{Osc, Osts, SettingsHook};
pub use pages::PageCache;
pub use programs::Begins;
pub use sessions::{JoinError, Sessions};
pub use short::Written;
pub use stats::{Call, CallStats, OscStats};
pub use unsettled::Unsettled;
