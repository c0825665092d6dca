//! What an OST counts, and the text forms that existing exporters parse.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use types::latency::{Latencies, Latency};
use types::stats::{self, Histogram, Samples, Scale};
use types::uses::Uses;
use types::{ClientId, Duration, Extent, JobNames, WallTime};
use wire::{Bytes, Op};

use crate::store::DiskStats;

/// Jobs that are counted apart at most; further ones share the last place.
const JOBS_MAX: usize = 4096;

/// One direction's bulk transfers.
pub(crate) struct Brw {
    pub pages: Histogram,
    /// Places where the pages of a transfer do not follow each other in the object.
    pub gaps: Histogram,
}
impl Default for Brw {
    fn default() -> Brw {
        Brw { pages: Histogram::new(Scale::Doubling), gaps: Histogram::new(Scale::Each) }
    }
}

impl Brw {
    /// A transfer of extents that do not touch each other.
    fn done(&mut self, extents: &[Extent], bytes: u64) {
        self.pages.add(bytes.div_ceil(4096));
        self.gaps.add(extents.len().saturating_sub(1) as u64);
    }
}

#[derive(Default)]
pub(crate) struct Job {
    pub read: Samples,
    pub write: Samples,
    pub last: WallTime,
}

/// Counters of one OST; they never go down but by a reset.
#[derive(Default)]
pub(crate) struct OstStats {
    pub read_bytes: Samples,
    pub write_bytes: Samples,
    pub read_us: Samples,
    pub write_us: Samples,
    /// Requests that came.
    pub ops: BTreeMap<&'static str, u64>,
    /// How long they took until they were answered, locks and the scheduler's queue included.
    pub latencies: Latencies<Op>,
    /// Reads, then writes.
    pub brw: [Brw; 2],
    /// Clients with their requests and bytes.
    pub uses: Uses,
    pub jobs: BTreeMap<u64, Job>,
    pub names: JobNames,
    pub punches: u64,
    pub syncs: u64,
    pub destroyed: u64,
    pub evictions: u64,
    pub no_space: u64,
    pub bulk_checksum_errors: u64,
    started: Option<WallTime>,
}

impl OstStats {
    pub fn count_op(&mut self, op: Op) {
        *self.ops.entry(op.label()).or_default() += 1;
    }

    /// A request was answered.
    pub fn answered(&mut self, op: Op, took: Duration, (client, now): (ClientId, WallTime)) {
        self.latencies.add(op, took);
        self.uses.answered(client, now);
    }

    /// Counts for a job, if it is one.
    fn of_job(&mut self, (job, now): (u64, WallTime), count: impl FnOnce(&mut Job)) {
        if job == 0 {
            return;
        }
        let full = self.jobs.len() >= JOBS_MAX && !self.jobs.contains_key(&job);
        let entry = self.jobs.entry(if full { u64::MAX } else { job }).or_default();
        entry.last = now;
        count(entry);
    }

    /// Takes in what jobs are called.
    pub fn tell_jobs(&mut self, names: &[Bytes]) {
        names.iter().for_each(|n| self.names.tell(n));
    }

    pub fn on_read(&mut self, job: (u64, WallTime), extents: &[Extent], bytes: u64, took: Duration) {
        self.read_bytes.add(bytes);
        self.read_us.add_time(took);
        self.of_job(job, |j| j.read.add(bytes));
        self.brw[0].done(extents, bytes);
    }

    pub fn on_write(&mut self, job: (u64, WallTime), extents: &[Extent], bytes: u64, took: Duration) {
        self.write_bytes.add(bytes);
        self.write_us.add_time(took);
        self.of_job(job, |j| j.write.add(bytes));
        self.brw[1].done(extents, bytes);
    }

    /// Everything starts at zero again.
    pub fn reset(&mut self, now: WallTime) {
        let names = std::mem::take(&mut self.names);
        *self = OstStats { started: Some(now), names, ..OstStats::default() };
    }

    fn head(&mut self, now: WallTime) -> String {
        stats::times(*self.started.get_or_insert(now), now)
    }

    /// `obdfilter.*.latency_stats`: how long requests took, by kind, and how long bulk requests were `queued`.
    pub fn latency_text(&mut self, now: WallTime, queued: &Latency) -> String {
        let mut out = self.latencies.text((*self.started.get_or_insert(now), now), Op::label);
        queued.line(&mut out, "nrs_wait");
        out
    }

    /// `obdfilter.*.stats`.
    pub fn text(&mut self, now: WallTime) -> String {
        let mut out = self.head(now);
        self.read_bytes.line(&mut out, "read_bytes", "bytes");
        self.write_bytes.line(&mut out, "write_bytes", "bytes");
        self.read_us.line(&mut out, "read", "usecs");
        self.write_us.line(&mut out, "write", "usecs");
        let extra = [
            ("punch", self.punches),
            ("sync", self.syncs),
            ("destroy", self.destroyed),
            ("evictions", self.evictions),
            ("no_space", self.no_space),
            ("bulk_checksum_errors", self.bulk_checksum_errors),
        ];
        for (name, count) in extra.into_iter().filter(|(_, n)| *n > 0) {
            let _ = writeln!(out, "{name:<25} {count} samples [reqs]");
        }
        out
    }

    /// Requests by kind, `ost.OSS.ost.stats`.
    pub fn ops_text(&mut self, now: WallTime) -> String {
        let mut out = self.head(now);
        for (name, count) in &self.ops {
            let _ = writeln!(out, "{name:<25} {count} samples [reqs]");
        }
        out
    }

    /// Job names for which there was no room so far.
    pub fn job_name_limit_hits(&self) -> u64 {
        self.names.limit_hits()
    }
    /// `obdfilter.*.job_stats`, by the names that clients told; jobs without one are shown by their number.
    pub fn jobs_text(&self) -> String {
        let mut out = String::from("job_stats:\n");
        for (id, job) in &self.jobs {
            stats::job_head(&mut out, &self.names.show(*id), job.last);
            job.read.yaml(&mut out, "read_bytes", "bytes");
            job.write.yaml(&mut out, "write_bytes", "bytes");
        }
        out
    }

    /// `obdfilter.*.brw_stats`, with what the store asked of its medium.
    pub fn brw_text(&self, now: WallTime, disk: Option<&DiskStats>) -> String {
        let mut out = String::new();
        stats::time_line(&mut out, "snapshot_time:", now);
        let [read, write] = &self.brw;
        stats::table(&mut out, "pages per bulk r/w", "rpcs", &read.pages, &write.pages);
        stats::table(&mut out, "discontiguous pages", "rpcs", &read.gaps, &write.gaps);
        match disk {
            Some(disk) => disk.text(&mut out),
            None => DiskStats::default().text(&mut out),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{DiskOp, DiskRun};

    #[test]
    fn the_statistics_text_has_the_lines_that_exporters_parse() {
        let mut s = OstStats::default();
        s.on_read((7, WallTime(2_000_000_000)), &[Extent::new(0, 4096)], 4096, Duration::from_micros(20));
        s.on_read(
            (7, WallTime(2_000_000_000)),
            &[Extent::new(0, 4096), Extent::new(40960, 45056)],
            8192,
            Duration::from_micros(30),
        );
        s.on_write(
            (types::job_id(b"dd.0"), WallTime(3_000_000_000)),
            &[Extent::new(0, 1 << 20)],
            1 << 20,
            Duration::from_millis(3),
        );
        let now = WallTime(5_000_000_007);
        let text = s.text(now);
        assert!(text.starts_with("snapshot_time             5.000000007 secs.nsecs\n"), "{text}");
        assert!(text.contains("read_bytes                2 samples [bytes] 4096 8192 12288 83886080\n"), "{text}");
        assert!(text.contains("write_bytes               1 samples [bytes] 1048576 1048576 1048576 1099511627776\n"));
        let disk = DiskStats::default();
        let run = |start, blocks| DiskRun { start, blocks };
        disk.call(DiskOp::Read, [run(7, 1), run(90, 1)].into_iter());
        let brw = s.brw_text(now, Some(&disk));
        assert!(brw.contains("pages per bulk r/w") && brw.contains("256:"), "{brw}");
        let rows = |title: &str| brw.split(title).nth(1).unwrap().lines().skip(1).take_while(|l| !l.is_empty());
        let first = |title: &str| rows(title).next().unwrap().split_whitespace().nth(1).unwrap().to_string();
        assert_eq!(["discontiguous pages", "discontiguous blocks"].map(first), ["1", "1"]);
        assert_eq!(rows("disk fragmented I/Os").count(), 1, "{brw}");
        let without = s.brw_text(now, None);
        assert!(without.contains("disk I/Os in flight") && without.contains("disk I/O size"), "{without}");
        s.on_write((0, now), &[Extent::new(0, 1)], 1, Duration::ZERO);
        s.tell_jobs(&["dd.0".into()]);
        let jobs = s.jobs_text();
        assert!(jobs.contains("- job_id:          0000000000000007\n  snapshot_time:   2\n"), "{jobs}");
        assert!(jobs.contains("- job_id:          dd.0\n") && jobs.matches("job_id").count() == 2, "{jobs}");
        s.answered(Op::OstWrite, Duration::from_micros(900), (ClientId(9), now));
        let mut queued = Latency::default();
        queued.add(Duration::from_micros(4));
        let latency = s.latency_text(now, &queued);
        for line in [
            "write                     1 samples [usecs] p50 1024 p90",
            "nrs_wait                  1 samples [usecs] p50 4 ",
        ] {
            assert!(latency.contains(line), "{latency}");
        }
        s.reset(now);
        assert!(!s.latency_text(now, &queued).contains("write "));
        assert!(!s.text(now).contains("read_bytes"));
    }
}
