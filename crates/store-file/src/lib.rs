//! The object store in files: copy-on-write data with checksums at rest, mappings in a small database.
//!
//! A directory holds `data` (blocks of 4 KiB, grown in steps, direct I/O where the file system can) and `meta.redb`
//! (objects, extents with the checksum of every block, sessions, the committed transaction). New bytes always go to
//! free blocks; a group commit syncs the data, then moves the mapping; blocks that lost their mapping are free from
//! then on. So a crash at any point leaves the last committed state, with matching checksums.
//! The format is `docs/spec/ost-store.md`. What locks, caches and schedules is the OST's business.
//! Source: the design follows ZFS's rule that live blocks are never overwritten. Differs: one level, one database.
//!
//! Code map: `file_store` (reads, writes, growth) · `state` `map` `space` (what is in memory, no I/O) · `commit` `db` `backend`
//! (group commit into the database) · `fence` (whose the store is) · `openings` (which of its copies it is) · [`format`] (bytes) · `object_store` (the OST's trait) · `mkfs` `lock` `error` `config`.
//! Guarded by: `crates/store-file/tests`, `oss::store::conformance`, `crates/sim/tests/{cluster,sequences}.rs`.

mod backend;
mod before;
mod check;
mod commit;
mod config;
mod db;
mod error;
mod fence;
mod file_store;
pub mod format;
mod growth;
mod lock;
mod map;
mod mkfs;
mod object_store;
mod openings;
mod repair;
mod space;
mod state;

pub use check::{BadPlace, Checked, check, check_files};
pub use config::FileStoreConfig;
pub use error::OpenError;
pub use fence::EPOCH_FILE;
pub use file_store::{FileStore, InMemory};
pub use lock::lock_dir;
pub use mkfs::{CAPACITY_MIN, MkfsOptions, identity, mkfs};
pub use repair::{accept, mend, mend_database, mend_rows, salvage};
