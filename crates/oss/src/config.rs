//! Settings of one OST. The defaults work on a laptop and are safe.
use std::rc::Rc;

use rt::LocalFuture;
use types::params::{Kind, bytes, number};
use types::{ClientId, Duration, GIB, MIB};

/// Evicts a client from this target: called when it does not answer a lock callback.
pub type EvictFn = Rc<dyn Fn(ClientId) -> LocalFuture<()>>;

/// The name that means the scheduler policy for what a store lies on.
pub const BY_MEDIUM: &str = "by_medium";

fn cache_policies() -> Vec<String> {
    cache::registry().iter().map(|p| p.name.to_string()).collect()
}
fn nrs_policies() -> Vec<String> {
    nrs::names().into_iter().chain([BY_MEDIUM.to_string()]).collect()
}

types::keys! {
    /// What users can set of an object server.
    struct Keys {
        /// Page cache of an object server, shared by its targets. 0 turns it off.
        cache_bytes: u64 = "oss.cache_bytes", bytes(0, 1024 * GIB), "64M", Process, Live("obdfilter.*.cache_bytes");
        /// Which page leaves an object server's cache.
        cache_policy: String = "oss.cache_policy", Kind::Choice(cache_policies), "lru", Process, Live("obdfilter.*.cache_policy");
        /// Keys of that policy (docs/reference/cache.md) that differ from their defaults: KEY=VALUE, parted by blanks.
        cache_keys: String = "oss.cache_keys", Kind::Text, "", Process, Live("obdfilter.*.cache_KEY");
        /// Memory in which each OST keeps what happened to the requests of late ('stria trace'), about 140 bytes a request. 0: none.
        trace_bytes: u64 = "oss.trace_bytes", bytes(0, GIB), "4M", Process, Live("obdfilter.*.trace_bytes");
        /// Reads that the cache holds whole are answered before the scheduler's queue, and rules of tbf do not count them.
        cache_first: bool = "oss.cache_first", Kind::Switch, "false", Process, Live("obdfilter.*.cache_first");
        /// Requests an OST hands to its store at a time. Smaller: the scheduler can reorder more.
        dispatch_window: u64 = "oss.dispatch_window", number(1, 1024, "requests"), "16", Process, Live("ost.OSS.ost_io.dispatch_window");
        /// Most bulk data of one RPC that clients are told of when they connect: a power of two.
        bulk_bytes_max: u64 = "oss.bulk_bytes_max", bytes(MIB, 64 * MIB), "4M", Process, Live("obdfilter.*.brw_size");
        /// Which queued request an OST serves next; `by_medium`: `obrr+` on a disk that rotates, `fifo` on any other medium;
        /// `auto` begins with that and goes over to another when a model of the disk shows that to be better.
        nrs_policy: String = "nrs.policy", Kind::Choice(nrs_policies), "by_medium", Process, Live("ost.OSS.ost_io.nrs_policies");
        /// Requests served per object before the next object's turn, for the policies that take turns; 0 is the policy's own number.
        nrs_quantum_requests: u64 = "nrs.quantum_requests", number(0, 65_535, "requests"), "0", Process, Live("ost.OSS.ost_io.nrs_quantum_requests");
    }
}

/// Settings of an OST.
#[derive(Clone)]
pub struct OstConfig {
    /// Requests handed to the store at a time. Smaller: the scheduler can reorder more.
    pub dispatch_window: u32,
    /// Scheduler policy by name, or [`BY_MEDIUM`].
    pub nrs_policy: String,
    /// Cache policy by name.
    pub cache_policy: String,
    /// Bytes of the page cache, shared by the OSTs of a process; 0 turns it off.
    pub cache_bytes: u64,
    /// Keys of the cache policies; its capacity says nothing.
    pub cache_keys: cache::CacheConfig,
    /// Advice policy by name. Default `house`.
    pub advice_policy: String,
    /// Keys of the advice room.
    pub advice_keys: advice::Config,
    /// Reads that the cache holds whole are answered before the scheduler's queue. Default off: every read waits its turn
    /// there, and rules of tbf count it.
    pub cache_first: bool,
    /// Reads fill the cache. Default on.
    pub read_cache: bool,
    /// Writes stay in the cache. Default on.
    pub writethrough_cache: bool,
    /// Most bulk bytes of one RPC that clients are told of when they connect, a power of two. What was made up before is taken, too.
    pub bulk_bytes_max: u32,
    /// Bytes of the ring that keeps what happened to the requests of late; 0 turns it off.
    pub trace_bytes: u64,
    /// Requests one client may have in flight. Default 64.
    pub credits: u16,
    /// Grant that a client gets at connect when there is room. Default 8 MiB.
    pub grant_initial_bytes: u64,
    /// Grant that one client may hold at most. Default 256 MiB.
    pub grant_max_bytes: u64,
    /// Share of the space that no grant may take, in 1/1000. Default 5.
    pub reserve_permille: u64,
    /// No new files get objects here; those that are stay in use. Default off.
    pub no_precreate: bool,
    /// Time after which a client is asked again that has not answered a glimpse. Default 7 s.
    pub glimpse_timeout: Duration,
    /// Time a lock holder has to make progress after a blocking callback. Default 30 s.
    pub callback_timeout: Duration,
    /// Locks that clients hold at most in all; the oldest are called back to make room. Default 4 Mi.
    pub locks_max: usize,
    /// What to do with a client that missed it. `None`: only log.
    pub evict: Option<EvictFn>,
}

impl Default for OstConfig {
    /// The keys' defaults, but for the scheduler: in the order of arrival, whatever the store lies on.
    fn default() -> OstConfig {
        let keys = Keys { nrs_policy: "fifo".into(), ..Keys::default() };
        OstConfig::of(&keys, cache::CacheConfig::new(1))
    }
}

impl OstConfig {
    /// As the keys say; `cache_keys` is what [`Keys::cache_keys`] means.
    #[must_use]
    pub fn of(keys: &Keys, cache_keys: cache::CacheConfig) -> OstConfig {
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        OstConfig {
            dispatch_window: small(keys.dispatch_window),
            nrs_policy: keys.nrs_policy.clone(),
            cache_policy: keys.cache_policy.clone(),
            cache_bytes: keys.cache_bytes,
            cache_keys,
            advice_policy: advice::POLICY_DEFAULT.into(),
            advice_keys: advice::Config::default(),
            cache_first: keys.cache_first,
            read_cache: keys.cache_bytes != 0,
            writethrough_cache: keys.cache_bytes != 0,
            bulk_bytes_max: small(keys.bulk_bytes_max),
            trace_bytes: keys.trace_bytes,
            credits: 64,
            grant_initial_bytes: 8 * MIB,
            grant_max_bytes: 256 * MIB,
            reserve_permille: 5,
            no_precreate: false,
            glimpse_timeout: Duration::from_secs(7),
            callback_timeout: Duration::from_secs(30),
            locks_max: 4 << 20,
            evict: None,
        }
    }
}
