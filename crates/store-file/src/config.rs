//! Settings of an open file store.
use oss::store::FoundMedium;
use types::{Duration, MIB};

/// Settings of a [`crate::FileStore`]. The defaults are safe.
#[derive(Clone, Debug)]
pub struct FileStoreConfig {
    /// Longest time between a change and its commit. Default 100 ms. Longer: fewer syncs, more to replay.
    pub commit_interval: Duration,
    /// Bytes by which the data file grows. Default 64 MiB. Grants come from what is already grown.
    pub grow_bytes: u64,
    /// Bytes that stay free on the file system for the database. Default 64 MiB, at most 1/32 of the store.
    pub reserve_bytes: u64,
    /// Stores that take their space from the same file system, this one included: each counts its part of what is free
    /// there as its own, so that their sum is what there is. Default 1.
    pub sharers: u64,
    /// Bytes of the database's own cache. Default 16 MiB.
    pub db_cache_bytes: usize,
    /// A database of so many bytes at most is compared with its checksums before it is opened; 0: none is. Default 1 GiB.
    pub check_bytes_max: u64,
    /// Block checksums kept in memory (4 bytes each, one per 4 KiB of data). Default 4 Mi: the maps of 16 GiB.
    pub mapped_blocks_max: usize,
    /// Objects kept in memory. Default 65,536.
    pub objects_max: usize,
    /// Bypass the kernel's page cache for data. Default on.
    pub direct: bool,
    /// What its directory lies on; whoever knows the machine says it. Default: not known.
    pub medium: FoundMedium,
}

impl Default for FileStoreConfig {
    fn default() -> FileStoreConfig {
        FileStoreConfig {
            commit_interval: Duration::from_millis(100),
            grow_bytes: 64 * MIB,
            reserve_bytes: 64 * MIB,
            sharers: 1,
            db_cache_bytes: 16 << 20,
            check_bytes_max: dbcheck::CHECK_BYTES_DEFAULT,
            mapped_blocks_max: 4 << 20,
            objects_max: 1 << 16,
            direct: true,
            medium: FoundMedium::default(),
        }
    }
}
