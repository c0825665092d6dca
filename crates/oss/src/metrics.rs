//! What an OST tells as metrics. Single numbers are declared here for the parameter page, too ([`NUMBERS`]); what has a page
//! of its own there (`stats`, `brw_stats`, `job_stats`) is read from the same counters.
use types::latency::Latency;
use types::metric::{Metric, NAMED_MAX, Snapshot, Stat, target as common};
use types::stats::Histogram;
use wire::Op;

use crate::oss_node::Oss;
use crate::ost::Ost;
use crate::stats::OstStats;

mod names {
    types::metrics! {
        /// Metrics of object storage targets, beside those that metadata targets have, too.
        pub METRICS:
        /// Free bytes that are neither reserved nor promised to a client.
        AVAILABLE = Gauge("stria_available_bytes", ["fs", "target"], "obdfilter.*.kbytesavail", "lustre_available_kilobytes");
        /// Bytes promised to clients for what they have not written yet.
        GRANTED = Gauge("stria_exports_granted_bytes", ["fs", "target"], "obdfilter.*.tot_granted", "lustre_exports_granted_total");
        /// Bytes promised to one client.
        CLIENT_GRANTED = Gauge("stria_export_granted_bytes", ["fs", "target", "client"], "obdfilter.*.grants", "");
        /// Times that a promised cut found no room in the table of promises.
        PROMISES_LIMIT = Counter("stria_promises_limit_hits_total", ["fs", "target"], "obdfilter.*.promises_limit_hits", "");
        /// Promised cuts of clients that went, about which the metadata server is asked.
        CUTS_IN_DOUBT = Gauge("stria_cuts_in_doubt", ["fs", "target"], "obdfilter.*.cuts_in_doubt", "");
        /// Bytes that clients read from the target.
        READ_BYTES = Counter("stria_read_bytes_total", ["fs", "target"], "obdfilter.*.stats", "lustre_read_bytes_total");
        /// Bytes that clients wrote to the target.
        WRITE_BYTES = Counter("stria_write_bytes_total", ["fs", "target"], "obdfilter.*.stats", "lustre_write_bytes_total");
        /// Bulk reads of clients.
        READ_SAMPLES = Counter("stria_read_samples_total", ["fs", "target"], "obdfilter.*.stats", "lustre_read_samples_total");
        /// Bulk writes of clients.
        WRITE_SAMPLES = Counter("stria_write_samples_total", ["fs", "target"], "obdfilter.*.stats", "lustre_write_samples_total");
        /// Writes refused because the target was full.
        NO_SPACE = Counter("stria_no_space_total", ["fs", "target"], "obdfilter.*.stats", "");
        /// Bulk data that arrived with a wrong checksum.
        BULK_CHECKSUM_ERRORS = Counter("stria_bulk_checksum_errors_total", ["fs", "target"], "obdfilter.*.stats", "");
        /// Bytes that a job read from the target.
        JOB_READ_BYTES = Counter("stria_job_read_bytes_total", ["fs", "target", "jobid"], "obdfilter.*.job_stats", "lustre_job_read_bytes_total");
        /// Bytes that a job wrote to the target.
        JOB_WRITE_BYTES = Counter("stria_job_write_bytes_total", ["fs", "target", "jobid"], "obdfilter.*.job_stats", "lustre_job_write_bytes_total");
        /// Pages of 4 KiB in bulk transfers.
        BULK_PAGES = Histogram("stria_bulk_pages", ["fs", "target", "operation"], "obdfilter.*.brw_stats", "lustre_pages_per_bulk_rw_total");
        /// Places in bulk transfers where the pages do not follow each other in the object.
        BULK_GAPS = Histogram("stria_bulk_discontiguous_pages", ["fs", "target", "operation"], "obdfilter.*.brw_stats", "lustre_discontiguous_pages_total");
        /// Bytes of each transfer between the store and its medium.
        DISK_BYTES = Histogram("stria_disk_io_bytes", ["fs", "target", "operation"], "obdfilter.*.brw_stats", "lustre_disk_io_total");
        /// Time of each transfer between the store and its medium, counted in whole milliseconds, rounded down.
        DISK_SECONDS = Histogram("stria_disk_io_seconds", ["fs", "target", "operation"], "obdfilter.*.brw_stats", "lustre_io_time_milliseconds_total");
        /// Transfers to the medium that one request of the store became.
        DISK_FRAGMENTS = Histogram("stria_disk_io_fragments", ["fs", "target", "operation"], "obdfilter.*.brw_stats", "lustre_dio_frags");
        /// Transfers under way at the medium when each began.
        DISK_FLYING = Histogram("stria_disk_io_in_flight", ["fs", "target", "operation"], "obdfilter.*.brw_stats", "lustre_disk_io");
        /// Requests in the scheduler's queue.
        NRS_QUEUED = Gauge("stria_nrs_queued_requests", ["fs", "target"], "ost.OSS.ost_io.req_waitqueue", "");
        /// Requests that the store works on.
        NRS_IN_SERVICE = Gauge("stria_nrs_in_service_requests", ["fs", "target"], "ost.OSS.ost_io.req_waitqueue", "");
        /// Requests that the scheduler handed to the store, by the policy that chose them.
        NRS_SERVED = Counter("stria_nrs_served_total", ["fs", "target", "policy"], "ost.OSS.ost_io.req_waitqueue", "");
        /// Samples of requests that the candidates of the policy `auto` have served again.
        NRS_JUDGED = Counter("stria_nrs_auto_judged_total", ["fs", "target"], "ost.OSS.ost_io.nrs_decisions", "");
        /// Changes of the policy `auto` to another candidate.
        NRS_CHOSEN = Counter("stria_nrs_auto_changes_total", ["fs", "target"], "ost.OSS.ost_io.nrs_decisions", "");
        /// Requests that were refused because the queue was full; their clients come again.
        NRS_REFUSED = Counter("stria_nrs_refused_total", ["fs", "target"], "ost.OSS.ost_io.req_waitqueue", "");
        /// Time that requests were in the scheduler's queue before the store had them.
        NRS_WAIT = Histogram("stria_nrs_wait_seconds", ["fs", "target"], "obdfilter.*.latency_stats", "");
        /// Pages of 4 KiB that requests looked up in the page cache (RAM) of the server's targets and found.
        CACHE_HITS = Counter("stria_oss_cache_hit_pages_total", ["fs", "class"], "obdfilter.*.cache_stats", "");
        /// Pages of 4 KiB that requests looked up in the page cache (RAM) of the server's targets and did not find.
        CACHE_MISSES = Counter("stria_oss_cache_missed_pages_total", ["fs", "class"], "obdfilter.*.cache_stats", "");
        /// Bytes in the page cache of the server's targets.
        CACHE_BYTES = Gauge("stria_oss_cache_resident_bytes", ["fs"], "obdfilter.*.cache_stats", "");
        /// Blocks of 4 KiB that were read from the fast tier.
        FAST_HITS = Counter("stria_fast_hit_blocks_total", ["fs", "target"], "obdfilter.*.fast_stats", "");
        /// Blocks of 4 KiB that were not in the fast tier.
        FAST_MISSES = Counter("stria_fast_missed_blocks_total", ["fs", "target"], "obdfilter.*.fast_stats", "");
        /// Blocks of 4 KiB copied to the fast tier, by reason.
        FAST_COPIED = Counter("stria_fast_copied_blocks_total", ["fs", "target", "reason"], "obdfilter.*.fast_stats", "");
        /// Copies in the fast tier that did not pass their checksum.
        FAST_BAD = Counter("stria_fast_bad_copies_total", ["fs", "target"], "obdfilter.*.fast_stats", "");
        /// Bytes in the fast tier.
        FAST_BYTES = Gauge("stria_fast_resident_bytes", ["fs", "target"], "obdfilter.*.fast_stats", "");
        /// Bytes that the fast tier can hold; 0 when it is off.
        FAST_CAPACITY = Gauge("stria_fast_capacity_bytes", ["fs", "target"], "obdfilter.*.fast_stats", "");
    }
}
pub use names::METRICS;
use names::*;

const fn number(metric: &'static Metric, param: &'static str, per: u64, read: fn(&Ost) -> u64) -> Stat<Ost> {
    Stat { metric, param, per, read }
}

/// Numbers of an OST: each a parameter and a metric.
pub(crate) static NUMBERS: [Stat<Ost>; 13] = [
    number(&common::CAPACITY, "obdfilter.*.kbytestotal", 1024, |o| o.statfs().total),
    number(&common::FREE, "obdfilter.*.kbytesfree", 1024, |o| o.statfs().free),
    number(&AVAILABLE, "obdfilter.*.kbytesavail", 1024, |o| o.statfs().available),
    number(&common::INODES_MAXIMUM, "obdfilter.*.filestotal", 1, |o| o.statfs().files + o.statfs().files_free),
    number(&common::INODES_FREE, "obdfilter.*.filesfree", 1, |o| o.statfs().files_free),
    number(&common::STORE_FAILED, "obdfilter.*.degraded", 1, |o| u64::from(o.store.failure().is_some())),
    number(&common::STORE_REOPENED, "obdfilter.*.store_reopened", 1, |o| o.reopened.get()),
    number(&common::EXPORTS, "obdfilter.*.num_exports", 1, |o| o.exports.borrow().len() as u64),
    number(&GRANTED, "obdfilter.*.tot_granted", 1, |o| o.grants.borrow().total()),
    number(&PROMISES_LIMIT, "obdfilter.*.promises_limit_hits", 1, |o| o.locks.promises.limit_hits()),
    number(&common::JOB_NAMES_LIMIT, "obdfilter.*.job_names_limit_hits", 1, |o| o.stats.borrow().job_name_limit_hits()),
    number(&CUTS_IN_DOUBT, "obdfilter.*.cuts_in_doubt", 1, |o| o.locks.promises.in_doubt() as u64),
    number(&common::LOCKS, "ldlm.namespaces.filter-*_UUID.lock_count", 1, |o| o.locks.read(|ns| ns.len()) as u64),
];

/// Bounds of histograms of pages in one transfer.
const PAGES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
/// Bounds of histograms of things that are few.
const FEW: &[u64] = &[0, 1, 2, 3, 4, 8, 16, 24, 30];
/// Bounds of histograms of milliseconds.
const MILLISECONDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384];

const OPERATIONS: [&str; 2] = ["read", "write"];

impl Oss {
    /// Adds the metrics of the server's targets and of what they share.
    pub fn measure(&self, into: &mut Snapshot) {
        let osts = self.osts();
        osts.iter().for_each(|ost| ost.measure(into));
        let Some(first) = osts.first() else { return };
        let (fs, cache) = (first.identity.fsname.as_str(), first.cache.borrow());
        let stats = cache.stats();
        for (class, hits, lookups) in [
            ("fine", stats.fine_hits, stats.fine_lookups),
            ("coarse", stats.coarse_hits, stats.coarse_lookups),
            ("readahead", stats.readahead_lookups.saturating_sub(stats.readahead_pages), stats.readahead_lookups),
        ] {
            into.add(&CACHE_HITS, &[fs, class], hits);
            into.add(&CACHE_MISSES, &[fs, class], lookups.saturating_sub(hits));
        }
        into.add(&CACHE_BYTES, &[fs], cache.resident_bytes());
    }

    /// Why a target is not ready to serve, a sentence each.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let away =
            self.away().into_iter().map(|target| format!("{target}: its store failed and is being opened again"));
        self.osts().iter().filter_map(|ost| ost.not_ready()).chain(away).collect()
    }
}

impl Ost {
    /// Its name without the file system's, as metrics have it.
    fn short_name(&self) -> String {
        format!("OST{:04x}", self.identity.ost.0)
    }

    fn measure(&self, into: &mut Snapshot) {
        let (fs, target) = (self.identity.fsname.as_str(), self.short_name());
        let at = [fs, target.as_str()];
        for stat in &NUMBERS {
            into.add(stat.metric, &at, (stat.read)(self));
        }
        let (left, clients) = self.recovery.borrow().as_ref().map(|r| r.left()).unwrap_or_default();
        into.add(&common::RECOVERING, &at, self.recovers());
        into.add(&common::RECOVERY_LEFT, &at, left.as_secs_f64());
        into.add(&common::RECOVERY_CLIENTS, &at, clients);
        into.add(&common::SCRUB_FAULTS, &at, self.scrub.borrow().faults());
        let locks = self.locks.read(|ns| *ns.stats());
        into.add(&common::LOCKS_GRANTED, &at, locks.granted);
        into.add(&common::LOCKS_WAITED, &at, locks.waited);
        into.add(&common::LOCK_CALLBACKS, &at, locks.callbacks);
        measure_requests(&self.stats.borrow(), at, into);
        measure_jobs(&self.stats.borrow(), at, into);
        self.measure_grants(at, into);
        self.measure_disk(at, into);
        self.measure_scheduler(at, into);
        self.measure_fast(at, into);
    }

    fn recovers(&self) -> bool {
        self.recovery.borrow().as_ref().is_some_and(ptlrpc::RecoveryControl::is_active)
    }

    fn not_ready(&self) -> Option<String> {
        let target = self.identity.target();
        if let Some(e) = self.store.failure_text() {
            return Some(format!("{target}: its store failed: {e}"));
        }
        let (left, clients) = self.recovery.borrow().as_ref().map(|r| r.left()).unwrap_or_default();
        self.recovers().then(|| {
            format!("{target}: waits for {clients} client(s) of before its restart, {} s at most", left.as_secs())
        })
    }

    /// Clients with the largest grants.
    fn measure_grants(&self, [fs, target]: [&str; 2], into: &mut Snapshot) {
        let mut all: Vec<_> = self.grants.borrow().iter().collect();
        all.sort_by_key(|(client, bytes)| (std::cmp::Reverse(*bytes), *client));
        for (client, bytes) in all.iter().take(NAMED_MAX) {
            into.add(&CLIENT_GRANTED, &[fs, target, &format!("{:016x}", client.0)], *bytes);
        }
        if all.len() > NAMED_MAX {
            into.leave_out(&CLIENT_GRANTED, all.len() - NAMED_MAX);
        }
    }

    fn measure_disk(&self, [fs, target]: [&str; 2], into: &mut Snapshot) {
        let Some(disk) = self.store.disk() else { return };
        disk.read(|sides| {
            for (operation, side) in OPERATIONS.iter().zip(sides) {
                let at = [fs, target, operation];
                into.add(&DISK_BYTES, &at, side.blocks.value(PAGES, 4096.0));
                into.add(&DISK_SECONDS, &at, side.time_ms.value(MILLISECONDS, 1e-3));
                into.add(&DISK_FRAGMENTS, &at, side.transfers.value(FEW, 1.0));
                into.add(&DISK_FLYING, &at, side.in_flight.value(FEW, 1.0));
            }
        });
    }

    fn measure_scheduler(&self, at: [&str; 2], into: &mut Snapshot) {
        self.dispatch.with(|p, _| {
            let head = p.head().counters();
            into.add(&NRS_QUEUED, &at, p.queued());
            into.add(&NRS_IN_SERVICE, &at, u64::from(p.in_service()));
            into.add(&NRS_REFUSED, &at, head.refused);
            into.add(&NRS_JUDGED, &at, head.policy.judged);
            into.add(&NRS_CHOSEN, &at, head.policy.chosen);
            into.add(&NRS_WAIT, &at, p.waits().value());
            for (policy, served) in p.head().served() {
                into.add(&NRS_SERVED, &[at[0], at[1], &policy], served);
            }
        });
    }

    fn measure_fast(&self, at: [&str; 2], into: &mut Snapshot) {
        let Some(fast) = self.store.fast() else { return };
        let (tier, counters) = (fast.tier(), fast.tier().counters());
        into.add(&FAST_HITS, &at, counters.hits);
        into.add(&FAST_MISSES, &at, counters.misses);
        into.add(&FAST_BAD, &at, counters.bad);
        into.add(&FAST_BYTES, &at, tier.resident_bytes());
        into.add(&FAST_CAPACITY, &at, tier.capacity_bytes());
        let copied = [
            ("advised", counters.copied_advised),
            ("inferred", counters.copied_inferred),
            ("written", counters.copied_writes),
        ];
        for (reason, blocks) in copied {
            into.add(&FAST_COPIED, &[at[0], at[1], reason], blocks);
        }
    }
}

fn measure_requests(s: &OstStats, at: [&str; 2], into: &mut Snapshot) {
    let [fs, target] = at;
    into.add(&READ_BYTES, &at, s.read_bytes.sum);
    into.add(&WRITE_BYTES, &at, s.write_bytes.sum);
    into.add(&READ_SAMPLES, &at, s.read_bytes.count);
    into.add(&WRITE_SAMPLES, &at, s.write_bytes.count);
    into.add(&NO_SPACE, &at, s.no_space);
    into.add(&BULK_CHECKSUM_ERRORS, &at, s.bulk_checksum_errors);
    into.add(&common::EVICTIONS, &at, s.evictions);
    for (operation, count) in &s.ops {
        into.add(&common::REQUESTS, &[fs, target, operation], *count);
    }
    s.latencies.measure(&common::REQUEST_SECONDS, &at, Op::label, into);
    // Series that are there from the start let the first request be seen as a change.
    for op in [Op::OstRead, Op::OstWrite].into_iter().filter(|op| s.latencies.each().all(|(kind, _)| kind != *op)) {
        into.add(&common::REQUEST_SECONDS, &[fs, target, op.label()], Latency::default().value());
    }
    let histogram = |h: &Histogram, bounds| h.value(bounds, 1.0);
    for (operation, brw) in OPERATIONS.iter().zip(&s.brw) {
        into.add(&BULK_PAGES, &[fs, target, operation], histogram(&brw.pages, PAGES));
        into.add(&BULK_GAPS, &[fs, target, operation], histogram(&brw.gaps, FEW));
    }
}

/// Jobs that asked last.
fn measure_jobs(s: &OstStats, [fs, target]: [&str; 2], into: &mut Snapshot) {
    let mut jobs: Vec<_> = s.jobs.iter().collect();
    jobs.sort_by_key(|(id, job)| (std::cmp::Reverse(job.last), **id));
    for (id, job) in jobs.iter().take(NAMED_MAX) {
        let name = s.names.show(**id);
        into.add(&JOB_READ_BYTES, &[fs, target, &name], job.read.sum);
        into.add(&JOB_WRITE_BYTES, &[fs, target, &name], job.write.sum);
    }
    if jobs.len() > NAMED_MAX {
        into.leave_out(&JOB_READ_BYTES, jobs.len() - NAMED_MAX);
        into.leave_out(&JOB_WRITE_BYTES, jobs.len() - NAMED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::metric::{LEFT_OUT, Value};
    use types::{Duration, Extent, WallTime};

    /// Values of a metric by its last label.
    fn of(s: &Snapshot, metric: &Metric) -> Vec<(String, Value)> {
        let family = s.families().find(|f| f.metric.name == metric.name);
        let series = family.into_iter().flat_map(|f| &f.series);
        series.map(|s| (s.labels.last().cloned().unwrap_or_default(), s.value.clone())).collect()
    }

    #[test]
    fn jobs_beyond_the_limit_are_counted_and_those_that_asked_last_are_shown() {
        let mut stats = OstStats::default();
        let extent = [Extent::new(0, 4096)];
        for job in 1..=NAMED_MAX as u64 + 3 {
            stats.on_read((job, WallTime(job as i64)), &extent, 4096, Duration::from_micros(1));
        }
        let mut s = Snapshot::default();
        measure_jobs(&stats, ["fs", "OST0000"], &mut s);
        let shown = of(&s, &JOB_READ_BYTES);
        assert_eq!(shown.len(), NAMED_MAX);
        assert!(shown.contains(&(format!("{:016x}", NAMED_MAX + 3), Value::Number(4096.0))));
        assert!(shown.iter().all(|(job, _)| *job != format!("{:016x}", 3)), "the oldest are left out");
        let left: Vec<_> = of(&s, &LEFT_OUT);
        assert!(left.contains(&(JOB_READ_BYTES.name.into(), Value::Number(3.0))), "{left:?}");
    }

    #[test]
    fn transfers_are_told_with_their_sums_and_histograms() {
        let mut stats = OstStats::default();
        stats.on_write((0, WallTime(0)), &[Extent::new(0, 12288)], 12_288, Duration::from_millis(500));
        stats.answered(wire::Op::OstWrite, Duration::from_millis(500), (types::ClientId(1), WallTime(0)));
        let mut s = Snapshot::default();
        measure_requests(&stats, ["fs", "OST0000"], &mut s);
        assert_eq!(of(&s, &WRITE_BYTES), [("OST0000".into(), Value::Number(12_288.0))]);
        let times = of(&s, &common::REQUEST_SECONDS);
        let [(operation, Value::Histogram { buckets, sum, count }), (read, Value::Histogram { count: 0, .. })] =
            &times[..]
        else {
            panic!("{times:?}")
        };
        assert_eq!(read, "read");
        assert_eq!((operation.as_str(), *sum, *count), ("write", 0.5, 1));
        assert!(buckets.contains(&(0.524288, 1)) && buckets.contains(&(0.262144, 0)), "{buckets:?}");
        let pages = of(&s, &BULK_PAGES);
        let Some((_, Value::Histogram { buckets, sum, count })) = pages.iter().find(|(o, _)| o == "write") else {
            panic!("{pages:?}")
        };
        assert_eq!((buckets[1], buckets[2], *sum, *count), ((2.0, 0), (4.0, 1), 3.0, 1));
    }
}
