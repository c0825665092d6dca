//! What a simulated cluster is made of.
use types::{Duration, MIB};

/// Nodes, stores and caches of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Clients.
    pub clients: usize,
    /// Object storage servers with one target each.
    pub osts: usize,
    /// Bytes of each OST.
    pub ost_bytes: u64,
    /// Bytes that each OST sets aside ahead of what is written: what it may grant. With little of it, clients write through.
    pub ost_reserve_bytes: u64,
    /// Page cache of each client.
    pub client_cache_bytes: u64,
    /// Page cache of each OST.
    pub ost_cache_bytes: u64,
    /// NRS policy of each OST.
    pub nrs_policy: String,
    /// Reclaim policy of the caches of clients and OSTs.
    pub cache_policy: String,
    /// Readahead policy of each client.
    pub readahead_policy: String,
    /// Stripe size of new files.
    pub stripe_bytes: u64,
    /// Stripes of new files.
    pub stripe_count: u16,
    /// How long a restarted server waits for its clients.
    pub recovery_window: Duration,
}

impl Default for ClusterConfig {
    fn default() -> ClusterConfig {
        ClusterConfig {
            clients: 2,
            osts: 2,
            ost_bytes: 1 << 30,
            ost_reserve_bytes: 256 * MIB,
            client_cache_bytes: 4 * MIB,
            ost_cache_bytes: 2 * MIB,
            nrs_policy: "fifo".into(),
            cache_policy: "lru".into(),
            readahead_policy: readahead::POLICY_DEFAULT.into(),
            stripe_bytes: 64 << 10,
            stripe_count: 2,
            recovery_window: Duration::from_secs(30),
        }
    }
}
