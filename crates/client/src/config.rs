//! What a client can be told.
use ptlrpc::ClusterKey;
use rt::Nid;
use types::params::{Kind, bytes, number};
use types::{ClientId, Duration, GIB, MIB};

fn cache_policies() -> Vec<String> {
    cache::registry().iter().map(|p| p.name.to_string()).collect()
}
fn readahead_policies() -> Vec<String> {
    ::readahead::POLICIES.iter().map(|p| p.name.to_string()).collect()
}

types::keys! {
    /// What users can set of a client.
    struct Keys {
        /// Page cache of a client.
        cache_bytes: u64 = "client.cache_bytes", bytes(4 * MIB, 1024 * GIB), "256M", Process, Live("llite.*.max_cached_mb");
        /// Which page leaves a client's cache.
        cache_policy: String = "client.cache_policy", Kind::Choice(cache_policies), "lru", Process, Live("llite.*.cache_policy");
        /// Keys of that policy (docs/reference/cache.md) that differ from their defaults: KEY=VALUE, parted by blanks.
        cache_keys: String = "client.cache_keys", Kind::Text, "", Process, Live("llite.*.cache_KEY");
        /// Dirty data per OST before writers wait. Larger: smoother writing, more to lose and to replay.
        max_dirty_mb: u64 = "client.max_dirty_mb", number(1, 65_536, "MiB"), "64", Process, Live("osc.*.max_dirty_mb");
        /// Bulk RPCs in flight per OST.
        max_rpcs_in_flight: u64 = "client.max_rpcs_in_flight", number(1, 256, "RPCs"), "8", Process, Live("osc.*.max_rpcs_in_flight");
        /// Pages in one bulk RPC, as far as the OST takes them (`oss.bulk_bytes_max`); 1024 are 4 MiB.
        max_pages_per_rpc: u64 = "client.max_pages_per_rpc", number(1, 16_384, "pages of 4 KiB"), "1024", Process, Live("osc.*.max_pages_per_rpc");
        /// Dirty data older than this is written.
        dirty_age_s: u64 = "client.dirty_age_s", number(1, 3600, "s"), "5", Process, Restart;
        /// Unused locks a client keeps per target.
        locks_max: u64 = "client.locks_max", number(100, 10_000_000, "locks"), "50000", Process, Restart;
        /// Inodes a client remembers before those that nothing needs leave with their locks, least recently used first. 0: as many
        /// as fit into a 64th of the memory that the process may have (the machine's, or its control group's limit) at 2 KiB each,
        /// 16,384 at least and 1,048,576 at most.
        inodes_max: u64 = "client.inodes_max", number(0, 100_000_000, "inodes"), "0", Process, Live("llite.*.max_cached_inodes");
        /// Changes that may go on alone, for their programs were killed while a server was away or slow, before no other one begins: it waits until one
        /// has ended, or is EAGAIN where a kernel holds what others wait for. Each keeps a few KiB, a write its bytes.
        changes_alone_max: u64 = "client.changes_alone_max", number(1, 65_536, "changes"), "256", Process, Live("llite.*.max_changes_alone");
        /// What is read ahead.
        readahead_policy: String = "client.readahead_policy", Kind::Choice(readahead_policies), "parallel", Process, Live("llite.*.readahead_policy");
        /// How long a client writes nothing to an OST before it gives grant back that one RPC does not need.
        grant_shrink_interval_s: u64 = "client.grant_shrink_interval_s", number(1, 1 << 31, "s"), "1200", Process, Live("osc.*.grant_shrink_interval");
    }
}

/// Settings of a [`crate::Client`].
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the metadata server (and configuration service) is.
    pub mds: Nid,
    /// Shared secret of the cluster.
    pub key: ClusterKey,
    /// Identity; when 0, one of its own, which it proves to servers.
    pub client: ClientId,
    /// Page cache in bytes.
    pub cache_bytes: u64,
    /// Reclaim policy of the page cache, by name.
    pub cache_policy: String,
    /// Keys of the reclaim policies; its capacity says nothing.
    pub cache_keys: cache::CacheConfig,
    /// Dirty bytes per OST before writers wait.
    pub dirty_bytes_max: u64,
    /// Bulk RPCs in flight per OST.
    pub rpcs_in_flight_max: usize,
    /// Pages in one bulk RPC.
    pub rpc_pages_max: usize,
    /// Dirty pages older than this are written.
    pub dirty_age_max: Duration,
    /// Readahead policy, by name.
    pub readahead_policy: String,
    /// Its settings; the budget is at most a quarter of the cache.
    pub readahead: ::readahead::Config,
    /// Unused locks kept per target.
    pub locks_max: usize,
    /// Inodes remembered before those that nothing needs leave; about 1.2 KiB each with its name and lock, and 2 KiB with
    /// an object that has a lock.
    pub inodes_max: usize,
    /// Changes that may go on alone, for their programs were killed, before no other one begins ([`crate::Client::carry_out`]).
    pub changes_alone_max: usize,
    /// How long a client writes nothing to an OST before it gives grant back that one RPC does not need.
    pub grant_shrink_interval: Duration,
    /// How callers are given job names.
    pub jobs: crate::JobRule,
    /// Never update access times.
    pub noatime: bool,
}

/// Inodes remembered by a client that was not told how much memory there is.
const INODES_MAX: u64 = 131_072;

impl ClientConfig {
    /// Defaults for a cluster whose metadata server is at `mds`.
    #[must_use]
    pub fn new(mds: Nid) -> ClientConfig {
        ClientConfig::of(&Keys::default(), cache::CacheConfig::new(1), mds)
    }

    /// As the keys say; `cache_keys` is what [`Keys::cache_keys`] means.
    #[must_use]
    pub fn of(keys: &Keys, cache_keys: cache::CacheConfig, mds: Nid) -> ClientConfig {
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        ClientConfig {
            mds,
            key: ClusterKey::none(),
            client: ClientId(0),
            cache_bytes: keys.cache_bytes,
            cache_policy: keys.cache_policy.clone(),
            cache_keys,
            dirty_bytes_max: keys.max_dirty_mb * MIB,
            rpcs_in_flight_max: count(keys.max_rpcs_in_flight),
            rpc_pages_max: count(keys.max_pages_per_rpc),
            dirty_age_max: Duration::from_secs(keys.dirty_age_s),
            readahead_policy: keys.readahead_policy.clone(),
            readahead: ::readahead::Config::default(),
            locks_max: count(keys.locks_max),
            inodes_max: count(if keys.inodes_max == 0 { INODES_MAX } else { keys.inodes_max }),
            changes_alone_max: count(keys.changes_alone_max),
            grant_shrink_interval: Duration::from_secs(keys.grant_shrink_interval_s),
            jobs: crate::JobRule::default(),
            noatime: false,
        }
    }
}
