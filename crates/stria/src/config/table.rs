//! The table of configuration keys: each declared once, with type, default, range, scope, effect and meaning. Struct,
//! parser, `config explain` and the reference page come from it.
use super::value::{Kind, Value};

/// Whose key it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The same in every process of a cluster.
    Cluster,
    /// Each process its own.
    Process,
}

/// When a change takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// At once, with `set_param`.
    Live,
    /// At the next start.
    Restart,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Dotted name: section and key.
    pub key: &'static str,
    /// Type and range.
    pub kind: Kind,
    /// Default as a user would write it.
    pub default: &'static str,
    /// Whose key it is.
    pub scope: Scope,
    /// When a change takes effect.
    pub effect: Effect,
    /// One sentence or two.
    pub meaning: &'static str,
}

macro_rules! table {
    ($($(#[doc = $doc:literal])+ $field:ident: $ty:ty = $key:literal, $kind:expr, $default:literal, $scope:ident, $effect:ident;)*) => {
        /// All settings, every default filled in.
        #[derive(Clone, PartialEq, Debug)]
        pub struct Config { $($(#[doc = $doc])+ pub $field: $ty,)* }

        /// The table.
        pub const ROWS: &[Row] = &[$(Row {
            key: $key, kind: $kind, default: $default, scope: Scope::$scope, effect: Effect::$effect,
            meaning: concat!($($doc),+),
        },)*];

        impl Default for Config {
            fn default() -> Config {
                Config { $($field: <$ty as Value>::read($default, &$kind).expect("the table's defaults are legal: a test reads them all"),)* }
            }
        }

        impl Config {
            /// Sets a key from its text.
            ///
            /// # Errors
            /// A sentence: no such key, or what the value should be.
            pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
                match key {
                    $($key => self.$field = <$ty as Value>::read(text, &$kind).map_err(|e| format!("{key} = {text}: {e}"))?,)*
                    _ => return Err(super::unknown(key)),
                }
                Ok(())
            }
            /// A key's value as text that [`Config::set`] reads back.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<String> {
                match key { $($key => Some(Value::show(&self.$field, &$kind)),)* _ => None }
            }
        }
    };
}

const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Bytes { min, max }
}
const fn number(min: u64, max: u64, unit: &'static str) -> Kind {
    Kind::Number { min, max, unit }
}
const GIB: u64 = 1 << 30;

table! {
    /// File with the secret that opens the cluster (at least 16 bytes), readable by its owner only. Empty: the key that
    /// mkfs and up make in the cluster's directory, DIR/keys/admin.key.
    key_file: String = "cluster.key_file", Kind::Text, "", Cluster, Restart;
    /// Name of a new file system: 1 to 8 letters, digits, '-' or '_'.
    fsname: String = "cluster.fsname", Kind::Text, "stria", Cluster, Restart;
    /// Address and port that servers listen on; port 0 takes a free one.
    listen: String = "net.listen", Kind::Text, "127.0.0.1:0", Process, Restart;
    /// The network card that this process's TCP connections share, for experiments: bandwidth of each direction and latency
    /// are held down to its own; none: as fast as they go. Roles of one process speak without it.
    net_profile: String = "net.profile", Kind::Choice(super::net_profiles), "none", Process, Restart;
    /// How idle CPUs of the machine sleep while requests flow: as they like (deep); such that they wake within 2 us
    /// (shallow); not at all (polling), which costs power, or the host's time, until 20 ms after the last request;
    /// polling in a virtual machine, deep elsewhere (auto). Root's processes only: it needs /dev/cpu_dma_latency.
    cpu_idle: String = "cpu.idle", Kind::Choice(super::idle_depths), "auto", Process, Restart;
    /// Page cache of a client.
    client_cache_bytes: u64 = "client.cache_bytes", bytes(4 << 20, 1024 * GIB), "256M", Process, Live;
    /// Which page leaves a client's cache.
    client_cache_policy: String = "client.cache_policy", Kind::Choice(super::cache_policies), "lru", Process, Live;
    /// Keys of that policy (docs/reference/cache.md) that differ from their defaults: KEY=VALUE, parted by blanks.
    client_cache_keys: String = "client.cache_keys", Kind::Text, "", Process, Live;
    /// Dirty data per OST before writers wait. Larger: smoother writing, more to lose and to replay.
    client_max_dirty_mb: u64 = "client.max_dirty_mb", number(1, 65_536, "MiB"), "64", Process, Live;
    /// Bulk RPCs in flight per OST.
    client_max_rpcs_in_flight: u64 = "client.max_rpcs_in_flight", number(1, 256, "RPCs"), "8", Process, Live;
    /// Pages in one bulk RPC, as far as the OST takes them (`oss.bulk_bytes_max`); 1024 are 4 MiB.
    client_max_pages_per_rpc: u64 = "client.max_pages_per_rpc", number(1, 16_384, "pages of 4 KiB"), "1024", Process, Live;
    /// Dirty data older than this is written.
    client_dirty_age_s: u64 = "client.dirty_age_s", number(1, 3600, "s"), "5", Process, Restart;
    /// Unused locks a client keeps per target.
    client_locks_max: u64 = "client.locks_max", number(100, 10_000_000, "locks"), "50000", Process, Restart;
    /// Inodes a client remembers before those that nothing needs leave with their locks, least recently used first. 0: as many
    /// as fit into a 64th of the machine's memory at 2 KiB each, 16,384 at least and 1,048,576 at most.
    client_inodes_max: u64 = "client.inodes_max", number(0, 100_000_000, "inodes"), "0", Process, Live;
    /// What is read ahead.
    client_readahead_policy: String = "client.readahead_policy", Kind::Choice(super::readahead_policies), "parallel", Process, Live;
    /// Mount options as with -o, comma-separated; -o is added to them.
    mount_options: String = "mount.options", Kind::Text, "", Process, Restart;
    /// How requests reach the daemon.
    mount_transport: String = "mount.transport", Kind::Choice(super::transports), "auto", Process, Restart;
    /// What the kernel may keep beside the client's cache: nothing; pages of files that are opened again, and listings;
    /// from the first open on those of files up to a 512th of the memory, too; of all files. Never, where policies of
    /// the client's cache and readahead are studied.
    mount_kernel_cache: String = "mount.kernel_cache", Kind::Choice(super::kernel_caching), "fitting", Process, Restart;
    /// Users of the mount, root too, act as this uid:gid on the servers. Empty: as themselves.
    mount_squash_all: String = "mount.squash_all", Kind::Text, "", Process, Restart;
    /// Root acts as this uid:gid on the servers. Empty: as root.
    mount_squash_root: String = "mount.squash_root", Kind::Text, "", Process, Restart;
    /// Page cache of an object server, shared by its targets. 0 turns it off.
    oss_cache_bytes: u64 = "oss.cache_bytes", bytes(0, 1024 * GIB), "64M", Process, Live;
    /// Which page leaves an object server's cache.
    oss_cache_policy: String = "oss.cache_policy", Kind::Choice(super::cache_policies), "lru", Process, Live;
    /// Keys of that policy (docs/reference/cache.md) that differ from their defaults: KEY=VALUE, parted by blanks.
    oss_cache_keys: String = "oss.cache_keys", Kind::Text, "", Process, Live;
    /// Memory in which each OST keeps what happened to the requests of late ('stria trace'), about 140 bytes a request. 0: none.
    oss_trace_bytes: u64 = "oss.trace_bytes", bytes(0, GIB), "4M", Process, Live;
    /// Reads that the cache holds whole are answered before the scheduler's queue, and rules of tbf do not count them.
    oss_cache_first: bool = "oss.cache_first", Kind::Switch, "false", Process, Live;
    /// Requests an OST hands to its store at a time. Smaller: the scheduler can reorder more.
    oss_dispatch_window: u64 = "oss.dispatch_window", number(1, 1024, "requests"), "16", Process, Live;
    /// Most bulk data of one RPC that clients are told of when they connect: a power of two.
    oss_bulk_bytes_max: u64 = "oss.bulk_bytes_max", bytes(1 << 20, 64 << 20), "4M", Process, Live;
    /// Which queued request an OST serves next; `auto`: `obrr+` on a disk that rotates, `fifo` on any other medium.
    nrs_policy: String = "nrs.policy", Kind::Choice(super::nrs_policies), "auto", Process, Live;
    /// Requests served per object before the next object's turn, for the policies that take turns; 0 is the policy's own number.
    nrs_quantum_requests: u64 = "nrs.quantum_requests", number(0, 65_535, "requests"), "0", Process, Live;
    /// Longest time between an answered change and its commit at the MDS.
    mds_commit_interval_ms: u64 = "mds.commit_interval_ms", number(1, 10_000, "ms"), "100", Process, Restart;
    /// Files that one client has open at most, about 200 bytes of the MDS each; beyond it open(2) fails with ENFILE.
    mds_opens_max: u64 = "mds.opens_max", number(64, 1 << 26, "opens"), "262144", Process, Restart;
    /// Memory in which the metadata target keeps what happened to the requests of late ('stria trace'), about 140 bytes a request. 0: none.
    mds_trace_bytes: u64 = "mds.trace_bytes", bytes(0, GIB), "4M", Process, Restart;
    /// Stripe size of new files where no directory says more: a multiple of 64K.
    layout_stripe_size: u64 = "layout.default_stripe_size", bytes(64 << 10, 0xFFFF_0000), "4M", Cluster, Restart;
    /// Stripes of new files where no directory says more; -1 means all OSTs.
    layout_stripe_count: i64 = "layout.default_stripe_count", Kind::Signed { min: -1, max: 2000, unit: "stripes" }, "1", Cluster, Restart;
    /// Where OSTs keep bytes: files in DIR, this process's memory (gone at exit), nowhere (a checkable pattern), or files behind a device's timing.
    store_kind: String = "store.kind", Kind::Choice(super::store_kinds), "file", Process, Restart;
    /// The device that store.kind = "emulated" behaves like.
    store_profile: String = "store.profile", Kind::Choice(super::device_profiles), "paper001", Process, Restart;
    /// How that device differs from its profile: `seek_ms`, `mb_per_s`, `request_us`, as KEY=VALUE, parted by blanks.
    store_profile_keys: String = "store.profile_keys", Kind::Text, "", Process, Restart;
    /// In which order that device's queue is served; `noop` is the order of arrival.
    store_elevator: String = "store.elevator", Kind::Choice(super::elevators), "noop", Process, Restart;
    /// Size that each new OST claims; 0 takes what its file system has; for memory stores 0 means 1G, for null stores 16G.
    store_capacity_bytes: u64 = "store.capacity_bytes", bytes(0, 1 << 60), "0", Process, Restart;
    /// Bypass the kernel's page cache for OST data.
    store_direct: bool = "store.direct", Kind::Switch, "true", Process, Restart;
    /// Directory on a faster device in which each OST keeps copies of what is advised or read again and again, under its name. Empty: no fast tier.
    store_fast_dir: String = "store.fast.dir", Kind::Text, "", Process, Restart;
    /// Bytes that each OST's fast tier takes there, at least 16M.
    store_fast_bytes: u64 = "store.fast.size", bytes(0, 64 * 1024 * GIB), "0", Process, Restart;
    /// The device that the fast tier behaves like, for experiments; none: the one that it is on.
    store_fast_profile: String = "store.fast.profile", Kind::Choice(super::fast_profiles), "none", Process, Restart;
    /// What is copied to the fast tier although nobody advised it (docs/reference/advice.md).
    store_fast_admission: String = "store.fast.admission", Kind::Choice(super::fast_admissions), "second_touch", Process, Live;
    /// Address and port where this process serves its metrics (docs/reference/metrics.md), like 127.0.0.1:9100; port 0 takes a
    /// free one. Empty: nowhere. Servers that `up --processes` starts take the ports that follow.
    metrics_listen: String = "metrics.listen", Kind::Text, "", Process, Restart;
    /// Other hosts may reach the address of metrics.listen, which asks nobody who they are.
    metrics_allow_remote: bool = "metrics.allow_remote", Kind::Switch, "false", Process, Restart;
    /// How long a restarted server waits for its clients before it goes on without them.
    recovery_window_s: u64 = "recovery.window_s", number(1, 3600, "s"), "30", Cluster, Restart;
    /// A client unheard of for this long is evicted.
    recovery_client_timeout_s: u64 = "recovery.client_timeout_s", number(20, 3600, "s"), "60", Cluster, Restart;
}
