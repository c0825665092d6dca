//! What a light world counts, and the metrics made of it.
use super::calls::Calls;
use super::tiers::TierStats;
use crate::metrics::{Histogram, Metrics};
use devices::{DeviceStats, SIZE_CLASSES, size_class_name};

/// Request kinds: bulk I/O and requests with a mandatory deadline.
pub const KINDS: [&str; 2] = ["bulk", "urgent"];

/// One second of virtual time, by completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Greatest response time of each kind.
    pub response_max: [u64; 2],
    /// Sum of the response times of bulk requests, and how many.
    pub response_sum: (u64, u64),
    /// Greatest time to expiry that a bulk request was given.
    pub expiry_max: u64,
    /// Bytes completed.
    pub bytes: u64,
    /// Most requests queued at one OST.
    pub queue_max: u64,
}

/// Keeps the greatest value and when it was first seen, in whatever order values come.
pub fn keep_max(kept: &mut (u64, u64), seen: (u64, u64)) {
    if seen.0 > kept.0 || (seen.0 == kept.0 && seen.1 < kept.1) {
        *kept = seen;
    }
}

/// Counters of one run, or of one partition of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Response times by kind, from send to reply.
    pub response: [Histogram; 2],
    /// Last reply of a bulk request.
    pub bulk_end: u64,
    /// Last reply of any request.
    pub end: u64,
    /// Bytes by kind.
    pub bytes: [u64; 2],
    /// Most requests queued at one OST, and when.
    pub queue_max: (u64, u64),
    /// Greatest time to expiry, and when that request completed.
    pub expiry_max: (u64, u64),
    /// Bulk requests that were answered later than they expired.
    pub expired: u64,
    /// Requests or replies that had to be sent again.
    pub resent: u64,
    /// Calls of programs, and what caches did for them.
    pub calls: Calls,
    /// What advice and fast tiers did.
    pub tiers: TierStats,
    /// What the disks did.
    pub store: DeviceStats,
    /// Per second, when recorded.
    pub seconds: Vec<Second>,
}

impl Stats {
    /// The second that `ns` lies in.
    pub fn second(&mut self, ns: u64) -> &mut Second {
        let i = (ns / 1_000_000_000) as usize;
        if i >= self.seconds.len() {
            self.seconds.resize(i + 1, Second::default());
        }
        &mut self.seconds[i]
    }
    /// Adds what another partition counted.
    pub fn add(&mut self, other: &Stats) {
        for k in 0..KINDS.len() {
            self.response[k].add(&other.response[k]);
            self.bytes[k] += other.bytes[k];
        }
        self.bulk_end = self.bulk_end.max(other.bulk_end);
        self.end = self.end.max(other.end);
        keep_max(&mut self.queue_max, other.queue_max);
        keep_max(&mut self.expiry_max, other.expiry_max);
        self.expired += other.expired;
        self.resent += other.resent;
        self.calls.add(&other.calls);
        self.tiers.add(&other.tiers);
        self.store.add(&other.store);
        for (i, s) in other.seconds.iter().enumerate() {
            let mine = self.second(i as u64 * 1_000_000_000);
            for k in 0..KINDS.len() {
                mine.response_max[k] = mine.response_max[k].max(s.response_max[k]);
            }
            mine.response_sum.0 += s.response_sum.0;
            mine.response_sum.1 += s.response_sum.1;
            mine.expiry_max = mine.expiry_max.max(s.expiry_max);
            mine.queue_max = mine.queue_max.max(s.queue_max);
            mine.bytes += s.bytes;
        }
    }
    /// The named metrics of a run over `oss_count` OSSs with `ost_count` OSTs in all that began at `begin`.
    #[must_use]
    pub fn metrics(&self, begin: u64, oss_count: u32, ost_count: u32) -> Metrics {
        let mut m = Metrics::default();
        let seconds = (self.end.saturating_sub(begin)).max(1) as f64 / 1e9;
        let bulk_seconds = (self.bulk_end.saturating_sub(begin)).max(1) as f64 / 1e9;
        let mib = (self.bytes[0] + self.bytes[1]) as f64 / (1u64 << 20) as f64;
        let n = f64::from(oss_count);
        let total = self.store.requests_total().max(1) as f64;
        m.push("bandwidth_gb_per_s", "GB/s (MiB/s / 1000)", mib / seconds / 1000.0);
        m.push("bandwidth_mib_per_s_per_oss", "MiB/s", mib / seconds / n);
        m.push("makespan_s", "s", bulk_seconds);
        m.push("seeks_per_s_per_oss", "1/s", self.store.seeks as f64 / seconds / n);
        m.push("disk_requests_per_s_per_oss", "1/s", total / seconds / n);
        m.push("disk_request_mean_mib", "MiB", self.store.bytes as f64 / (1u64 << 20) as f64 / total);
        m.push("disk_busy_share", "share", self.store.busy_ns as f64 / 1e9 / seconds / f64::from(ost_count));
        let mut up_to_1m = 0;
        for class in 0..SIZE_CLASSES {
            let share = self.store.requests[class] as f64 / total;
            m.push(format!("disk_request_share.{}", size_class_name(class)), "share", share);
            up_to_1m += if class <= 4 { self.store.requests[class] } else { 0 };
        }
        m.push("disk_request_share.up_to_1m", "share", up_to_1m as f64 / total);
        m.push("queue_max", "requests", self.queue_max.0 as f64);
        m.push("queue_max_at_s", "s", self.queue_max.1 as f64 / 1e9);
        for (k, kind) in KINDS.iter().enumerate() {
            if self.response[k].count() > 0 {
                m.push_times(kind, &self.response[k]);
            }
        }
        self.calls.push(&mut m);
        if self.tiers != TierStats::default() {
            self.tiers.push(&mut m);
        }
        if self.resent > 0 {
            m.push("resent", "requests", self.resent as f64);
        }
        if !self.seconds.is_empty() {
            self.push_curves(&mut m);
        }
        m
    }

    fn push_curves(&self, m: &mut Metrics) {
        m.push("expiry_max_s", "s", self.expiry_max.0 as f64 / 1e9);
        m.push("expiry_max_at_s", "s", self.expiry_max.1 as f64 / 1e9);
        m.push("answered_after_expiry", "requests", self.expired as f64);
        let below = self.seconds.iter().filter(|s| s.expiry_max < s.response_max[0]).count();
        m.push("expiry_below_response_s", "s, of ET(d) below RT(d)", below as f64);
        // What a second gave stands in its middle: the curve at i is then the value at i.
        let curve = |value: &dyn Fn(&Second) -> u64, scale: f64| -> Vec<(f64, f64)> {
            let points = self.seconds.iter().enumerate().map(|(i, s)| (i as f64 + 0.5, value(s) as f64 / scale));
            points.filter(|p| p.1 > 0.0).collect()
        };
        m.curves.push(("response_time_max_s.bulk".into(), curve(&|s| s.response_max[0], 1e9)));
        let mean = |s: &Second| s.response_sum.0 / s.response_sum.1.max(1);
        m.curves.push(("response_time_mean_s.bulk".into(), curve(&mean, 1e9)));
        m.curves.push(("response_time_max_s.urgent".into(), curve(&|s| s.response_max[1], 1e9)));
        m.curves.push(("expiry_max_s".into(), curve(&|s| s.expiry_max, 1e9)));
        m.curves.push(("queue".into(), curve(&|s| s.queue_max, 1.0)));
        m.curves.push(("bandwidth_mib_per_s".into(), curve(&|s| s.bytes, (1u64 << 20) as f64)));
    }
}
