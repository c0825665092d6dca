//! What a simulated cluster is made of.
use types::{Duration, MIB};

/// Nodes, stores and caches of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Clients.
    pub clients: usize,
    /// Clients with credentials of their own.
    pub guests: usize,
    /// Object storage servers with one target each.
    pub osts: usize,
    /// Hosts for OSTs that are added while the cluster runs.
    pub spare_osts: usize,
    /// Bytes of each OST.
    pub ost_bytes: u64,
    /// Bytes that each OST sets aside ahead of what is written: what it may grant. With little of it, clients write through.
    pub ost_reserve_bytes: u64,
    /// Page cache of each client.
    pub client_cache_bytes: u64,
    /// Page cache of each OST.
    pub ost_cache_bytes: u64,
    /// Admission policy of a fast tier in front of the store of every other OST; `None`: there are none.
    pub fast_admission: Option<String>,
    /// Page frames of each process beyond its caches, in bytes: what requests and answers that are under way have, besides what a node of
    /// its kind needs at least. `None`: all share one arena that is always large enough.
    pub frames_beyond_caches: Option<u64>,
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
    /// Allocator of the metadata server.
    pub alloc_policy: String,
    /// Requests that an OST's scheduler head holds at most; `None`: as many as it holds by itself.
    pub queue_max: Option<u32>,
    /// Requests that an OST hands to its store at a time.
    pub dispatch_window: u32,
    /// Grant that a client gets when it connects.
    pub ost_grant_bytes: u64,
    /// Bulk RPCs of a client in flight per OST.
    pub rpcs_in_flight_max: usize,
    /// Pages in one bulk RPC, as far as OSTs take them.
    pub rpc_pages_max: usize,
    /// Bytes of one bulk RPC that OSTs take.
    pub ost_bulk_bytes: u64,
    /// Dirty pages older than this are written.
    pub dirty_age_max: Duration,
    /// Longest time between a change and its commit.
    pub commit_interval: Duration,
    /// Every other server, as the seed has it, commits every millisecond from its start to its end: also between what clients replay.
    pub commits_vary: bool,
    /// The same of OSTs, where it is another one.
    pub ost_commit_interval: Option<Duration>,
    /// How long a restarted server waits for its clients.
    pub recovery_window: Duration,
    /// How long a client has to give a lock back that is called.
    pub callback_timeout: Duration,
    /// How long a client has to say a size, before it is asked again.
    pub glimpse_timeout: Duration,
    /// How often clients give back grants that they do not use.
    pub grant_shrink_interval: Duration,
    /// Servers open a store again that failed, when its disk is well.
    pub reopens: bool,
    /// The metadata store is a database that the metadata server reaches from two hosts: the slowest trip there or back. `None`: it is on
    /// the server's disk.
    pub database: Option<Duration>,
}

impl ClusterConfig {
    /// The longest time between a change and its commit on any server.
    #[must_use]
    pub fn commit_max(&self) -> Duration {
        self.commit_interval.max(self.ost_commit_interval.unwrap_or(Duration::ZERO))
    }
    /// Bytes of the largest bulk RPC.
    #[must_use]
    pub fn bulk_max(&self) -> u64 {
        self.ost_bulk_bytes.min(self.rpc_pages_max as u64 * types::PAGE_BYTES as u64)
    }
    /// OSTs at most.
    #[must_use]
    pub const fn osts_max(&self) -> usize {
        self.osts + self.spare_osts
    }
    /// Whether its OSTs fill up.
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.ost_bytes < SMALL_BYTES
    }
}

/// OSTs below this size fill up.
const SMALL_BYTES: u64 = 256 << 20;

impl Default for ClusterConfig {
    fn default() -> ClusterConfig {
        ClusterConfig {
            clients: 2,
            guests: 0,
            osts: 2,
            spare_osts: 0,
            ost_bytes: 1 << 30,
            ost_reserve_bytes: 256 * MIB,
            client_cache_bytes: 4 * MIB,
            ost_cache_bytes: 2 * MIB,
            fast_admission: None,
            frames_beyond_caches: None,
            nrs_policy: "fifo".into(),
            cache_policy: "lru".into(),
            readahead_policy: readahead::POLICY_DEFAULT.into(),
            stripe_bytes: 64 << 10,
            stripe_count: 2,
            alloc_policy: layout::POLICY_DEFAULT.into(),
            queue_max: None,
            dispatch_window: 16,
            ost_grant_bytes: 8 * MIB,
            rpcs_in_flight_max: 8,
            rpc_pages_max: 1024,
            ost_bulk_bytes: 4 * MIB,
            dirty_age_max: Duration::from_secs(5),
            commit_interval: Duration::from_millis(100),
            commits_vary: false,
            ost_commit_interval: None,
            recovery_window: Duration::from_secs(30),
            callback_timeout: Duration::from_secs(30),
            glimpse_timeout: Duration::from_secs(7),
            grant_shrink_interval: Duration::from_secs(1200),
            reopens: false,
            database: None,
        }
    }
}
