//! What an OST counts, and the text forms that existing exporters parse.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use types::{ClientId, Duration, WallTime};
use wire::Op;

/// Jobs that are counted apart at most; further ones share the last place.
const JOBS_MAX: usize = 4096;
const BUCKETS: usize = 32;

/// Count, least, greatest, sum and sum of squares of a value.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Samples {
    pub count: u64,
    pub min: u64,
    pub max: u64,
    pub sum: u64,
    pub sumsq: u128,
}

impl Samples {
    pub fn add(&mut self, value: u64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.sumsq = self.sumsq.saturating_add(u128::from(value) * u128::from(value));
    }
    fn line(&self, out: &mut String, name: &str, unit: &str) {
        if self.count > 0 {
            let Samples { count, min, max, sum, sumsq } = self;
            let _ = writeln!(out, "{name:<25} {count} samples [{unit}] {min} {max} {sum} {sumsq}");
        }
    }
    fn yaml(&self, out: &mut String, name: &str, unit: &str) {
        let Samples { count, min, max, sum, sumsq } = self;
        let key = format!("{name}:");
        let _ = writeln!(
            out,
            "  {key:<16} {{ samples: {count:>11}, unit: {unit:>5}, min: {min:>8}, max: {max:>8}, sum: {sum:>16}, sumsq: {sumsq:>18} }}"
        );
    }
}

/// One direction's bulk transfers.
#[derive(Clone, Copy, Default)]
struct Brw {
    pages: [u64; BUCKETS],
    time_ms: [u64; BUCKETS],
}

#[derive(Default)]
struct Job {
    read: Samples,
    write: Samples,
    last: WallTime,
}

/// Counters of one OST; they never go down but by a reset.
#[derive(Default)]
pub(crate) struct OstStats {
    read_bytes: Samples,
    write_bytes: Samples,
    read_us: Samples,
    write_us: Samples,
    ops: BTreeMap<&'static str, u64>,
    brw: [Brw; 2],
    jobs: BTreeMap<u64, Job>,
    pub punches: u64,
    pub syncs: u64,
    pub destroyed: u64,
    pub evictions: u64,
    pub no_space: u64,
    pub bulk_checksum_errors: u64,
    started: Option<WallTime>,
}

fn bucket(value: u64) -> usize {
    (u64::BITS - value.max(1).leading_zeros() - 1 + u32::from(!value.max(1).is_power_of_two())).min(31) as usize
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

impl OstStats {
    pub fn count_op(&mut self, op: Op) {
        *self.ops.entry(op.name()).or_default() += 1;
    }

    fn job(&mut self, job: u64) -> &mut Job {
        let full = self.jobs.len() >= JOBS_MAX && !self.jobs.contains_key(&job);
        self.jobs.entry(if full { u64::MAX } else { job }).or_default()
    }

    pub fn on_read(&mut self, job: u64, _client: ClientId, bytes: u64, took: Duration) {
        self.read_bytes.add(bytes);
        self.read_us.add(micros(took));
        self.job(job).read.add(bytes);
        self.brw_done(0, bytes, took);
    }

    pub fn on_write(&mut self, job: u64, _client: ClientId, bytes: u64, took: Duration) {
        self.write_bytes.add(bytes);
        self.write_us.add(micros(took));
        self.job(job).write.add(bytes);
        self.brw_done(1, bytes, took);
    }

    fn brw_done(&mut self, side: usize, bytes: u64, took: Duration) {
        self.brw[side].pages[bucket(bytes.div_ceil(4096))] += 1;
        self.brw[side].time_ms[bucket(took.as_millis() as u64)] += 1;
    }

    /// Everything starts at zero again.
    pub fn reset(&mut self, now: WallTime) {
        *self = OstStats { started: Some(now), ..OstStats::default() };
    }

    fn head(&mut self, now: WallTime) -> String {
        let started = *self.started.get_or_insert(now);
        let elapsed = WallTime(now.0 - started.0);
        let line = |name: &str, t: WallTime| format!("{name:<25} {}.{:09} secs.nsecs\n", t.secs(), t.nanos());
        line("snapshot_time", now) + &line("start_time", started) + &line("elapsed_time", elapsed)
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

    /// `obdfilter.*.job_stats`. Jobs are known by their hash.
    pub fn jobs_text(&self, now: WallTime) -> String {
        let mut out = String::from("job_stats:\n");
        for (id, job) in &self.jobs {
            let _ = writeln!(out, "- job_id:          {id:016x}");
            let _ = writeln!(out, "  snapshot_time:   {}", job.last.secs().max(now.secs()));
            job.read.yaml(&mut out, "read_bytes", "bytes");
            job.write.yaml(&mut out, "write_bytes", "bytes");
        }
        out
    }

    /// `obdfilter.*.brw_stats`.
    pub fn brw_text(&self, now: WallTime) -> String {
        let mut out = format!("{:<25} {}.{:09} secs.nsecs\n", "snapshot_time:", now.secs(), now.nanos());
        self.table(&mut out, "pages per bulk r/w", "rpcs", |b| &b.pages);
        self.table(&mut out, "I/O time (1/1000s)", "ios", |b| &b.time_ms);
        out
    }

    fn table(&self, out: &mut String, title: &str, unit: &str, of: impl Fn(&Brw) -> &[u64; BUCKETS]) {
        let (read, write) = (of(&self.brw[0]), of(&self.brw[1]));
        let _ = writeln!(out, "\n{:<25} {:^25} | {:^25}", "", "read", "write");
        let _ = writeln!(out, "{title:<25} {unit:>10}  % cum % | {unit:>10}  % cum %");
        let sum = |t: &[u64; BUCKETS]| t.iter().sum::<u64>();
        let (reads, writes, mut r, mut w) = (sum(read), sum(write), 0, 0);
        let percent = |part: u64, of: u64| (part * 100).checked_div(of).unwrap_or(0);
        for i in 0..BUCKETS {
            (r, w) = (r + read[i], w + write[i]);
            if r + w > 0 {
                let name = format!("{}:", 1u64 << i);
                let _ = writeln!(
                    out,
                    "{name:<25} {:>10} {:>3} {:>3}   | {:>10} {:>3} {:>3}",
                    read[i],
                    percent(read[i], reads),
                    percent(r, reads),
                    write[i],
                    percent(write[i], writes),
                    percent(w, writes)
                );
            }
            if r == reads && w == writes {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_text_has_the_lines_that_exporters_parse() {
        let mut s = OstStats::default();
        s.on_read(7, ClientId(1), 4096, Duration::from_micros(20));
        s.on_read(7, ClientId(1), 8192, Duration::from_micros(30));
        s.on_write(9, ClientId(1), 1 << 20, Duration::from_millis(3));
        let now = WallTime(5_000_000_007);
        let text = s.text(now);
        assert!(text.starts_with("snapshot_time             5.000000007 secs.nsecs\n"), "{text}");
        assert!(text.contains("read_bytes                2 samples [bytes] 4096 8192 12288 83886080\n"), "{text}");
        assert!(text.contains("write_bytes               1 samples [bytes] 1048576 1048576 1048576 1099511627776\n"));
        let brw = s.brw_text(now);
        assert!(brw.contains("pages per bulk r/w") && brw.contains("256:"), "{brw}");
        assert!(s.jobs_text(now).contains("- job_id:          0000000000000007\n"));
        s.reset(now);
        assert!(!s.text(now).contains("read_bytes"));
    }

    #[test]
    fn buckets_are_powers_of_two_closed_at_their_upper_end() {
        assert_eq!([1, 2, 3, 4, 5, 256, 257].map(bucket), [0, 1, 2, 2, 3, 8, 9]);
    }
}
