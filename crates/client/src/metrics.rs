//! What a client tells as metrics. Single numbers are declared here for the parameter pages, too ([`NUMBERS`],
//! [`OSC_NUMBERS`]); `stats`, `rpc_stats`, `cache_stats`, `read_ahead_stats` and `import` are read from the same counters.
use ptlrpc::{Import, ImportState};
use types::PAGE_BYTES;
use types::metric::{Metric, Snapshot, Stat};

use crate::client::Client;
use crate::osc::Osc;

mod names {
    types::metrics! {
        /// Metrics of clients.
        pub METRICS:
        /// Bytes that programs read through the client; what a kernel answers from its own pages does not come.
        READ_BYTES = Counter("stria_client_read_bytes_total", ["fs", "client"], "llite.*.stats", "lustre_client_stats");
        /// Bytes that programs wrote through the client.
        WRITE_BYTES = Counter("stria_client_write_bytes_total", ["fs", "client"], "llite.*.stats", "lustre_client_stats");
        /// Time that calls of programs took at the client, by kind; what a kernel answers by itself does not come.
        CALL_SECONDS = Histogram("stria_client_call_seconds", ["fs", "client", "operation"], "llite.*.latency_stats", "lustre_client_stats");
        /// Bytes of reads and writes of programs, as whole pages.
        CALL_BYTES = Histogram("stria_client_call_bytes", ["fs", "client", "operation"], "llite.*.extents_stats", "");
        /// Pages of 4 KiB that reads looked up in the client's cache and found.
        CACHE_HITS = Counter("stria_client_cache_hit_pages_total", ["fs", "client", "class"], "llite.*.cache_stats", "");
        /// Pages of 4 KiB that reads looked up in the client's cache and did not find.
        CACHE_MISSES = Counter("stria_client_cache_missed_pages_total", ["fs", "client", "class"], "llite.*.cache_stats", "");
        /// Bytes in the client's page cache.
        CACHE_USED = Gauge("stria_client_cache_used_bytes", ["fs", "client"], "llite.*.used_mb", "");
        /// Bytes that the client's page cache may hold.
        CACHE_MAX = Gauge("stria_client_cache_limit_bytes", ["fs", "client"], "llite.*.max_cached_mb", "");
        /// Reads that readahead saw.
        AHEAD_READS = Counter("stria_client_readahead_reads_total", ["fs", "client"], "llite.*.read_ahead_stats", "");
        /// Reads that found less than all of it prefetched.
        AHEAD_MISSES = Counter("stria_client_readahead_misses_total", ["fs", "client"], "llite.*.read_ahead_stats", "");
        /// Bytes that readahead fetched.
        AHEAD_FETCHED = Counter("stria_client_readahead_fetched_bytes_total", ["fs", "client"], "llite.*.read_ahead_stats", "");
        /// Bytes of them that were read.
        AHEAD_USED = Counter("stria_client_readahead_used_bytes_total", ["fs", "client"], "llite.*.read_ahead_stats", "");
        /// Bytes of them that left the cache unread.
        AHEAD_WASTED = Counter("stria_client_readahead_wasted_bytes_total", ["fs", "client"], "llite.*.read_ahead_stats", "");
        /// Prefetched bytes that wait for their readers.
        AHEAD_HELD = Gauge("stria_client_readahead_held_bytes", ["fs", "client"], "llite.*.read_ahead_stats", "");
        /// Inodes that the client remembers.
        INODES = Gauge("stria_client_inodes", ["fs", "client"], "llite.*.inode_cache_stats", "");
        /// Inodes that left because there were too many.
        INODES_RECLAIMED = Counter("stria_client_inodes_reclaimed_total", ["fs", "client"], "llite.*.inode_cache_stats", "");
        /// Completions of file locks that no request waited for.
        FLOCKS_UNEXPECTED = Counter("stria_client_flock_completions_unexpected_total", ["fs", "client"], "llite.*.flock_completions_unexpected", "");
        /// Directories with lost changes that no fsync tells of, for want of room.
        LOST_CHANGES_LIMIT = Counter("stria_client_lost_changes_limit_hits_total", ["fs", "client"], "llite.*.lost_changes_limit_hits", "");
        /// Operations that go on alone, for their programs were killed.
        CHANGES_ALONE = Gauge("stria_client_changes_alone", ["fs", "client"], "llite.*.changes_alone", "");
        /// Changes of programs that found as many going on alone as there may be.
        CHANGES_ALONE_LIMIT = Counter("stria_client_changes_alone_limit_hits_total", ["fs", "client"], "llite.*.changes_alone_limit_hits", "");
        /// Names of jobs for which the client had no room.
        JOB_NAMES_LIMIT = Counter("stria_client_job_names_limit_hits_total", ["fs", "client"], "llite.*.job_names_limit_hits", "");
        /// Bytes that programs wrote and that never reached a server, as `lost_files` lists them.
        LOST_BYTES = Gauge("stria_client_lost_bytes", ["fs", "client"], "llite.*.lost_bytes", "");
        /// Bytes that wait to be written to the target.
        DIRTY = Gauge("stria_osc_dirty_bytes", ["fs", "client", "target"], "osc.*.cur_dirty_bytes", "lustre_exports_dirty_total");
        /// Bytes that the target promised for dirty pages and that no page took.
        GRANT = Gauge("stria_osc_grant_bytes", ["fs", "client", "target"], "osc.*.cur_grant_bytes", "");
        /// Locks of the client on objects of the target.
        OSC_LOCKS = Gauge("stria_osc_locks", ["fs", "client", "target"], "osc.*.lock_count", "");
        /// Bytes of bulk RPCs that were answered.
        RPC_BYTES = Counter("stria_osc_rpc_bytes_total", ["fs", "client", "target", "operation"], "osc.*.stats", "");
        /// Time of bulk RPCs, from sending to the answer.
        RPC_SECONDS = Histogram("stria_osc_rpc_seconds", ["fs", "client", "target", "operation"], "osc.*.latency_stats", "");
        /// Pages of 4 KiB in bulk RPCs.
        RPC_PAGES = Histogram("stria_osc_rpc_pages", ["fs", "client", "target", "operation"], "osc.*.rpc_stats", "");
        /// Bulk RPCs under way.
        RPC_FLYING = Gauge("stria_osc_rpcs_in_flight", ["fs", "client", "target", "operation"], "osc.*.rpc_stats", "");
        /// Whether the client has a session with the target that serves it (1).
        CONNECTED = Gauge("stria_import_connected", ["fs", "client", "target"], "*.*.import", "");
        /// Sessions that were opened with the target.
        SESSIONS = Counter("stria_import_sessions_total", ["fs", "client", "target"], "*.*.import", "");
        /// Requests sent to the target.
        SENT = Counter("stria_import_requests_total", ["fs", "client", "target"], "*.*.import", "");
        /// Requests that were sent again.
        RESENT = Counter("stria_import_resent_total", ["fs", "client", "target"], "*.*.import", "");
        /// Requests that wait for the target's answer.
        FLYING = Gauge("stria_import_in_flight", ["fs", "client", "target"], "*.*.import", "");
        /// Times that the target evicted this client.
        EVICTED = Counter("stria_import_evictions_total", ["fs", "client", "target"], "*.*.import", "");
        /// Times that the target had no room for a request, which was sent again.
        REFUSED = Counter("stria_import_refused_total", ["fs", "client", "target"], "*.*.import", "");
        /// Time of the slowest of the last requests to the target.
        SERVICE = Gauge("stria_import_service_seconds", ["fs", "client", "target"], "*.*.import", "");
    }
}
pub use names::METRICS;
use names::*;

/// Numbers of a client: each a parameter and a metric.
pub static NUMBERS: [Stat<Client>; 7] = [
    Stat { metric: &CACHE_USED, param: "llite.*.used_mb", per: 1 << 20, read: |c| pages(c.data.pages().used_pages()) },
    Stat {
        metric: &FLOCKS_UNEXPECTED,
        param: "llite.*.flock_completions_unexpected",
        per: 1,
        read: |c| c.flocks().completions_unexpected(),
    },
    Stat {
        metric: &LOST_CHANGES_LIMIT,
        param: "llite.*.lost_changes_limit_hits",
        per: 1,
        read: |c| c.losses().owed_limit_hits(),
    },
    Stat {
        metric: &CHANGES_ALONE,
        param: "llite.*.changes_alone",
        per: 1,
        read: |c| c.sessions().alone().count() as u64,
    },
    Stat {
        metric: &CHANGES_ALONE_LIMIT,
        param: "llite.*.changes_alone_limit_hits",
        per: 1,
        read: |c| c.sessions().alone().limit_hits(),
    },
    Stat {
        metric: &JOB_NAMES_LIMIT,
        param: "llite.*.job_names_limit_hits",
        per: 1,
        read: |c| c.sessions().jobs().name_limit_hits(),
    },
    Stat { metric: &LOST_BYTES, param: "llite.*.lost_bytes", per: 1, read: |c| c.losses().lost_bytes() },
];

/// Numbers of a client's side of one OST: each a parameter and a metric.
pub static OSC_NUMBERS: [Stat<Osc>; 3] = [
    Stat { metric: &DIRTY, param: "osc.*.cur_dirty_bytes", per: 1, read: |o| o.dirty_and_grant().0 },
    Stat { metric: &GRANT, param: "osc.*.cur_grant_bytes", per: 1, read: |o| o.dirty_and_grant().1 },
    Stat { metric: &OSC_LOCKS, param: "osc.*.lock_count", per: 1, read: |o| o.lock_count() as u64 },
];

fn pages(count: usize) -> u64 {
    (count * PAGE_BYTES) as u64
}

/// Bounds of histograms of pages.
const PAGES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

const OPERATIONS: [&str; 2] = ["read", "write"];

impl Client {
    /// Adds the client's metrics.
    pub fn measure(&self, into: &mut Snapshot) {
        let (fs, client) =
            (String::from_utf8_lossy(&self.osts.map().fsname).into_owned(), format!("{:016x}", self.sessions.id().0));
        let at = [fs.as_str(), client.as_str()];
        for number in &NUMBERS {
            into.add(number.metric, &at, (number.read)(self));
        }
        self.data.calls().each(|sides| {
            into.add(&READ_BYTES, &at, sides[0].bytes.sum);
            into.add(&WRITE_BYTES, &at, sides[1].bytes.sum);
            for (operation, side) in OPERATIONS.iter().zip(sides) {
                into.add(&CALL_BYTES, &[at[0], at[1], operation], side.pages.value(PAGES, PAGE_BYTES as f64));
            }
        });
        self.data.calls().measure(&CALL_SECONDS, at, into);
        self.measure_caches(at, into);
        measure_import(&self.sessions.mdc(), "MDT0000", at, into);
        for osc in self.osts.all() {
            let target = format!("OST{:04x}", osc.index().0);
            osc.measure([at[0], at[1], &target], into);
            if let Some(import) = osc.import_if_any() {
                measure_import(&import, &target, at, into);
            }
        }
    }

    fn measure_caches(&self, at: [&str; 2], into: &mut Snapshot) {
        let stats = self.data.pages().stats();
        for (class, hits, lookups) in
            [("fine", stats.fine_hits, stats.fine_lookups), ("coarse", stats.coarse_hits, stats.coarse_lookups)]
        {
            into.add(&CACHE_HITS, &[at[0], at[1], class], hits);
            into.add(&CACHE_MISSES, &[at[0], at[1], class], lookups.saturating_sub(hits));
        }
        into.add(&CACHE_MAX, &at, pages(self.data.pages().limit_pages()));
        let ahead = self.data.readahead().stats();
        into.add(&AHEAD_READS, &at, ahead.reads);
        into.add(&AHEAD_MISSES, &at, ahead.misses);
        into.add(&AHEAD_FETCHED, &at, ahead.prefetched_bytes);
        into.add(&AHEAD_USED, &at, ahead.used_bytes);
        into.add(&AHEAD_WASTED, &at, ahead.wasted_bytes);
        into.add(&AHEAD_HELD, &at, self.data.readahead().held_bytes());
        into.add(&INODES, &at, self.meta.remembered()[0]);
        into.add(&INODES_RECLAIMED, &at, self.meta.inodes_reclaimed());
    }
}

impl Osc {
    fn measure(&self, at: [&str; 3], into: &mut Snapshot) {
        for number in &OSC_NUMBERS {
            into.add(number.metric, &at, (number.read)(self));
        }
        self.rpcs_done(|sides| {
            for (operation, (calls, latency, flying)) in OPERATIONS.iter().zip(sides) {
                let at = [at[0], at[1], at[2], operation];
                into.add(&RPC_BYTES, &at, calls.bytes.sum);
                into.add(&RPC_SECONDS, &at, latency.value());
                into.add(&RPC_PAGES, &at, calls.pages.value(PAGES, 1.0));
                into.add(&RPC_FLYING, &at, flying);
            }
        });
    }
}

fn measure_import(import: &Import, target: &str, [fs, client]: [&str; 2], into: &mut Snapshot) {
    let at = [fs, client, target];
    let mut add = |metric: &'static Metric, value: u64| into.add(metric, &at, value);
    let (sessions, sent, resent) = import.counters();
    add(&CONNECTED, u64::from(import.state() == ImportState::Full));
    add(&SESSIONS, sessions);
    add(&SENT, sent);
    add(&RESENT, resent);
    add(&FLYING, import.in_flight() as u64);
    add(&EVICTED, import.evictions());
    add(&REFUSED, import.refusals());
    into.add(&SERVICE, &at, import.service_time().as_secs_f64());
}
