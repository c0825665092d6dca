//! Settings of one OST. The defaults work on a laptop and are safe.
use std::rc::Rc;

use rt::LocalFuture;
use types::{ClientId, Duration, MIB};

/// Evicts a client from this target: called when it does not answer a lock callback.
pub type EvictFn = Rc<dyn Fn(ClientId) -> LocalFuture<()>>;

/// The name that means the scheduler policy for what a store lies on.
pub const AUTO: &str = "auto";

/// Settings of an OST.
#[derive(Clone)]
pub struct OstConfig {
    /// Requests handed to the store at a time, 1..=1024. Default 16. Smaller: the scheduler can reorder more.
    pub dispatch_window: u32,
    /// Scheduler policy by name, or [`AUTO`]. Default `fifo`.
    pub nrs_policy: String,
    /// Cache policy by name. Default `lru`.
    pub cache_policy: String,
    /// Bytes of the page cache, shared by the OSTs of a process. Default 64 MiB; 0 turns it off.
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
    /// Most bulk bytes of one RPC that clients are told of when they connect, a power of two from 1 MiB to 64 MiB. What was
    /// made up before is taken, too. Default 4 MiB.
    pub bulk_bytes_max: u32,
    /// Bytes of the ring that keeps what happened to the requests of late. Default 4 MiB; 0 turns it off.
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
    fn default() -> OstConfig {
        OstConfig {
            dispatch_window: 16,
            nrs_policy: "fifo".into(),
            cache_policy: "lru".into(),
            cache_bytes: 64 * MIB,
            cache_keys: cache::CacheConfig::new(1),
            advice_policy: advice::POLICY_DEFAULT.into(),
            advice_keys: advice::Config::default(),
            cache_first: false,
            read_cache: true,
            writethrough_cache: true,
            bulk_bytes_max: 4 * MIB as u32,
            trace_bytes: 4 * MIB,
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
