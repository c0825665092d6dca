//! What a metadata target tells as metrics. Single numbers are declared here for the parameter page, too ([`NUMBERS`]);
//! `md_stats` and `job_stats` are read from the same counters.
use types::metric::{Metric, NAMED_MAX, Snapshot, Stat, target as common};

use crate::mds::Mds;

mod names {
    types::metrics! {
        /// Metrics of metadata targets, beside those that object storage targets have, too.
        pub METRICS:
        /// Files that clients have open.
        OPENS = Gauge("stria_open_handles", ["fs", "target"], "mdt.*.open_handles", "");
        /// Opens refused because their client had too many files open.
        OPENS_REFUSED = Counter("stria_opens_refused_total", ["fs", "target"], "mdt.*.opens_refused", "");
        /// Cuts that clients were promised, and that are not everywhere yet.
        CUTS = Gauge("stria_cuts", ["fs", "target"], "mdt.*.cuts", "");
        /// Decisions about cuts that were forgotten for want of room.
        CUTS_LIMIT = Counter("stria_cuts_limit_hits_total", ["fs", "target"], "mdt.*.cuts_limit_hits", "");
        /// Sizes that clients told, and that are not settled.
        SIZES = Gauge("stria_unsettled_sizes", ["fs", "target"], "mdt.*.unsettled_sizes", "");
        /// Told sizes that were forgotten for want of room.
        SIZES_LIMIT = Counter("stria_unsettled_sizes_limit_hits_total", ["fs", "target"], "mdt.*.unsettled_sizes_limit_hits", "");
        /// Clients without which a restarted server can begin.
        QUIET = Gauge("stria_quiet_clients", ["fs", "target"], "mdt.*.quiet_clients", "");
        /// Clients that were not taken for quiet because they have too many locks and opens.
        QUIET_LIMIT = Counter("stria_quiet_clients_limit_hits_total", ["fs", "target"], "mdt.*.quiet_clients_limit_hits", "");
        /// Batches that the metadata store committed.
        COMMITS = Counter("stria_commits_total", ["fs", "target"], "osd.*.commits", "");
        /// Keys in these batches.
        COMMIT_KEYS = Counter("stria_commit_keys_total", ["fs", "target"], "osd.*.commit_keys", "");
        /// Changed keys that wait for the next commit.
        UNCOMMITTED = Gauge("stria_uncommitted_keys", ["fs", "target"], "osd.*.uncommitted_keys", "");
        /// Bytes of keys and values that wait for the next commit.
        UNCOMMITTED_BYTES = Gauge("stria_uncommitted_bytes", ["fs", "target"], "osd.*.uncommitted_bytes", "");
        /// How often operations waited for a commit because too much was not committed yet.
        CROWDED = Counter("stria_uncommitted_limit_hits_total", ["fs", "target"], "osd.*.uncommitted_limit_hits", "");
        /// Answers that waited for a commit because they rested on another client's change.
        SHARING_WAITS = Counter("stria_commit_on_sharing_total", ["fs", "target"], "mdt.*.commit_on_sharing", "");
        /// Records of the changelog that some user has not taken in.
        CHANGELOG = Gauge("stria_changelog_records", ["fs", "target"], "mdd.*.changelog_records", "");
        /// Operations of a job.
        JOB_OPERATIONS = Counter("stria_job_operations_total", ["fs", "target", "jobid"], "mdt.*.job_stats", "lustre_job_stats_total");
    }
}
pub use names::METRICS;
use names::*;

const fn number(metric: &'static Metric, param: &'static str, per: u64, read: fn(&Mds) -> u64) -> Stat<Mds> {
    Stat { metric, param, per, read }
}

/// Numbers of a metadata target: each a parameter and a metric.
pub(crate) static NUMBERS: [Stat<Mds>; 26] = [
    number(&common::EXPORTS, "mdt.*.num_exports", 1, |m| m.exports.borrow().len() as u64),
    number(&OPENS, "mdt.*.open_handles", 1, |m| m.handles.borrow().len() as u64),
    number(&OPENS_REFUSED, "mdt.*.opens_refused", 1, |m| m.handles.borrow().refused()),
    number(&CUTS, "mdt.*.cuts", 1, |m| m.cuts.borrow().len() as u64),
    number(&CUTS_LIMIT, "mdt.*.cuts_limit_hits", 1, |m| m.cuts.borrow().limit_hits()),
    number(&SIZES, "mdt.*.unsettled_sizes", 1, |m| m.recent_sizes.borrow().counters().0 as u64),
    number(&SIZES_LIMIT, "mdt.*.unsettled_sizes_limit_hits", 1, |m| m.recent_sizes.borrow().counters().1),
    number(&QUIET, "mdt.*.quiet_clients", 1, |m| m.quiet.counters().0 as u64),
    number(&QUIET_LIMIT, "mdt.*.quiet_clients_limit_hits", 1, |m| m.quiet.counters().1),
    number(&common::JOB_NAMES_LIMIT, "mdt.*.job_names_limit_hits", 1, |m| m.stats.job_name_limit_hits()),
    number(&common::EVICTIONS, "mdt.*.evictions", 1, |m| m.stats.evictions.get()),
    number(&common::STORE_FAILED, "mdt.*.degraded", 1, |m| u64::from(m.store.failure().is_some())),
    number(&common::STORE_REOPENED, "mdt.*.store_reopened", 1, |m| m.reopened.get()),
    number(&common::CAPACITY, "mdt.*.kbytestotal", 1024, |m| m.store.space().0),
    number(&common::FREE, "mdt.*.kbytesfree", 1024, |m| m.store.space().1),
    number(&common::INODES_MAXIMUM, "mdt.*.filestotal", 1, |m| m.store.inodes() + m.store.space().1 / 1024),
    number(&common::INODES_FREE, "mdt.*.filesfree", 1, |m| m.store.space().1 / 1024),
    number(&COMMITS, "osd.*.commits", 1, |m| m.store.commit_counters().0),
    number(&COMMIT_KEYS, "osd.*.commit_keys", 1, |m| m.store.commit_counters().1),
    number(&UNCOMMITTED, "osd.*.uncommitted_keys", 1, |m| m.store.commit_counters().2 as u64),
    number(&UNCOMMITTED_BYTES, "osd.*.uncommitted_bytes", 1, |m| m.store.uncommitted_bytes() as u64),
    number(&CROWDED, "osd.*.uncommitted_limit_hits", 1, |m| m.store.crowded()),
    number(&CHANGELOG, "mdd.*.changelog_records", 1, |m| m.changelog.records()),
    number(&SHARING_WAITS, "mdt.*.commit_on_sharing", 1, |m| m.store.sharing.borrow().waits()),
    number(&common::LOCKS, "ldlm.namespaces.mdt-*.lock_count", 1, |m| m.locks.namespace.borrow().len() as u64),
    number(&common::LOCK_CALLBACKS, "ldlm.namespaces.mdt-*.callbacks", 1, |m| {
        m.locks.namespace.borrow().stats().callbacks
    }),
];

impl Mds {
    /// File system and target, as metrics name them.
    fn place(&self) -> (&str, &str) {
        self.target.rsplit_once('-').unwrap_or((&self.target, "MDT0000"))
    }

    /// Adds the target's metrics.
    pub fn measure(&self, into: &mut Snapshot) {
        let (fs, target) = self.place();
        let at = [fs, target];
        for stat in &NUMBERS {
            into.add(stat.metric, &at, (stat.read)(self));
        }
        let (left, clients) = self.recovery.borrow().as_ref().map(|r| r.left()).unwrap_or_default();
        into.add(&common::RECOVERING, &at, self.is_waiting());
        into.add(&common::RECOVERY_LEFT, &at, left.as_secs_f64());
        into.add(&common::RECOVERY_CLIENTS, &at, clients);
        into.add(&common::SCRUB_FAULTS, &at, self.scrub.borrow().faults());
        let locks = *self.locks.namespace.borrow().stats();
        into.add(&common::LOCKS_GRANTED, &at, locks.granted);
        into.add(&common::LOCKS_WAITED, &at, locks.waited);
        self.stats.each_operation(|op, samples| {
            into.add(&common::REQUESTS, &[fs, target, op.label()], samples.count);
        });
        self.stats.measure(&common::REQUEST_SECONDS, at, into);
        let (shown, left_out) = self.stats.latest_jobs(NAMED_MAX);
        for (name, operations) in shown {
            into.add(&JOB_OPERATIONS, &[fs, target, &name], operations);
        }
        if left_out > 0 {
            into.leave_out(&JOB_OPERATIONS, left_out);
        }
    }

    fn is_waiting(&self) -> bool {
        self.recovery.borrow().as_ref().is_some_and(ptlrpc::RecoveryControl::is_active)
    }

    /// Why the target is not ready to serve, if it is not.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        if let Some(e) = self.store.failure() {
            return Some(format!("{}: its store failed: {e}", self.target));
        }
        let (left, clients) = self.recovery.borrow().as_ref().map(|r| r.left()).unwrap_or_default();
        self.is_waiting().then(|| {
            format!(
                "{}: waits for {clients} client(s) of before its restart, {} s at most",
                self.target,
                left.as_secs()
            )
        })
    }
}
