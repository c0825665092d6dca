//! The metadata server: the namespace, opens, inode locks, objects made ahead, and the configuration service.
//!
//! An operation is a synchronous function over a [`tx::Tx`]; it is applied to memory as one, answered at once, and
//! committed with others within 100 ms (`store`). Who may see or change what: `perm` and `acl` for callers, `locks` for
//! other clients' caches. [`kv::MetaKv`] is the store contract, owned here and implemented by `store-redb`.
//!
//! Code map: `ops/` one file per family of operations · `tx` what an operation sees · `store` overlay and group commit ·
//! `record`, `keys`, `dirent` formats · `mds` the node and the way of an operation · `service` messages and sessions ·
//! `locks`, `enqueue` inode-bit locks and flocks · `handles` opens · `pools`, `osts` objects · `config_service` cluster
//! map · `map_changes`, `ost_pools`, `ost_files` how OSTs and pools come and go · `quota`, `shares`, `quota_service` who may have how much · `owed` what OSTs still have to be told · `changelog` what happened, for programs that follow it · `params`, `stats`, `traced` · `mkfs` · `check` reading everything, for fsck.
//!
//! Not here: layouts and OST choice (`layout`), lock decisions (`ldlm`), exactly-once (`ptlrpc`), bytes on disk (engines).

pub mod acl;
mod admission;
mod aside;
pub mod backup;
mod basis;
mod changelog;
pub mod check;
mod config;
pub mod config_service;
mod credentials;
mod cuts;
pub mod dirent;
mod enqueue;
mod entering;
pub mod handles;
pub mod keys;
pub mod kv;
mod locks;
mod lost_opens;
mod map_changes;
mod mds;
mod metrics;
pub mod mkfs;
mod nameless;
pub mod openings;
mod ops;
mod ost_files;
pub mod ost_pools;
pub mod osts;
mod owed;
pub mod params;
pub mod perm;
pub mod pools;
mod quiet;
mod quota;
mod quota_service;
mod recent;
pub mod record;
pub mod repair;
pub mod replace;
mod replays;
pub mod salvaged;
mod service;
mod settings;
mod shares;
mod sharing;
mod shown_map;
mod start;
pub mod stats;
pub mod store;
mod sure;
mod traced;
pub mod tx;
mod upkeep;

pub use config::{ConnectorBox, Keys, MdsConfig, PlaceOf};
pub use kv::{FailPoint, KvError, MemoryKv, MetaKv};
pub use mds::{Answered, Caller, Evictor, Mds};
pub use metrics::METRICS;
pub use mkfs::{FormatError, MkfsOptions};
pub use ops::{DEPTH_MAX, LINKS_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX};
pub use service::Outcome;
pub use start::StartError;

#[cfg(test)]
mod tests;
