//! What a client can be told.
use datapath::TargetLimits;
use ptlrpc::ClusterKey;
use rt::Nid;
use types::{ClientId, Duration, MIB};

/// Settings of a [`crate::Client`].
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the metadata server (and configuration service) is.
    pub mds: Nid,
    /// Shared secret of the cluster.
    pub key: ClusterKey,
    /// Identity; random when 0.
    pub client: ClientId,
    /// Page cache in bytes. Default 256 MiB.
    pub cache_bytes: u64,
    /// Reclaim policy of the page cache, by name. Default `lru`.
    pub cache_policy: String,
    /// Keys of the reclaim policies; its capacity says nothing.
    pub cache_keys: cache::CacheConfig,
    /// Dirty bytes per OST before writers wait. Default 64 MiB.
    pub dirty_bytes_max: u64,
    /// Bulk RPCs in flight per OST. 1..=256, default 8.
    pub rpcs_in_flight_max: usize,
    /// Pages in one bulk RPC. 1..=16384, default 1024 (4 MiB).
    pub rpc_pages_max: usize,
    /// Dirty pages older than this are written. Default 5 s.
    pub dirty_age_max: Duration,
    /// Readahead policy, by name. Default `parallel`.
    pub readahead_policy: String,
    /// Its settings; the budget is at most a quarter of the cache.
    pub readahead: ::readahead::Config,
    /// Unused locks kept per target. Default 50,000.
    pub locks_max: usize,
    /// Inodes remembered before those that nothing needs leave; about 1.2 KiB each with its name and lock, and 2 KiB with
    /// an object that has a lock. Default 131,072.
    pub inodes_max: usize,
    /// How long a client writes nothing to an OST before it gives grant back that one RPC does not need. Default 1,200 s.
    pub grant_shrink_interval: Duration,
    /// How callers are given job names.
    pub jobs: crate::JobRule,
    /// Never update access times.
    pub noatime: bool,
}

impl ClientConfig {
    /// Defaults for a cluster whose metadata server is at `mds`.
    #[must_use]
    pub fn new(mds: Nid) -> ClientConfig {
        ClientConfig {
            mds,
            key: ClusterKey::none(),
            client: ClientId(0),
            cache_bytes: 256 * MIB,
            cache_policy: "lru".into(),
            cache_keys: cache::CacheConfig::new(1),
            dirty_bytes_max: TargetLimits::DEFAULT.dirty_bytes_max,
            rpcs_in_flight_max: TargetLimits::DEFAULT.rpcs_max,
            rpc_pages_max: TargetLimits::DEFAULT.rpc_pages_max,
            dirty_age_max: Duration::from_secs(5),
            readahead_policy: "parallel".into(),
            readahead: ::readahead::Config::default(),
            locks_max: 50_000,
            inodes_max: 131_072,
            grant_shrink_interval: Duration::from_secs(1200),
            jobs: crate::JobRule::default(),
            noatime: false,
        }
    }
}
