//! Operation statistics: counts and service times per kind of request, in the field's text format.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use types::latency::Latencies;
use types::metric::{Metric, NAMED_MAX, Snapshot};
use types::stats::{self, Samples};
use types::uses::Uses;
use types::{ClientId, Duration, JobNames, WallTime};
use wire::Op;

/// See the module's head.
pub struct Stats {
    start: RefCell<WallTime>,
    rows: RefCell<BTreeMap<Op, Samples>>,
    latencies: RefCell<Latencies<Op>>,
    uses: RefCell<Uses>,
    jobs: RefCell<BTreeMap<u64, Job>>,
    names: RefCell<JobNames>,
    /// Clients whose session was ended against their will.
    pub(crate) evictions: Cell<u64>,
}

/// What one job asked for.
#[derive(Default)]
struct Job {
    rows: BTreeMap<Op, Samples>,
    last: WallTime,
}

/// Jobs that are counted apart at most; further ones share the last place.
const JOBS_MAX: usize = 4096;

impl Stats {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(now: WallTime) -> Stats {
        Stats {
            start: RefCell::new(now),
            rows: RefCell::default(),
            latencies: RefCell::default(),
            uses: RefCell::default(),
            jobs: RefCell::default(),
            names: RefCell::default(),
            evictions: Cell::new(0),
        }
    }
    /// Counts one request that took so long.
    pub fn count(&self, op: Op, took: Duration) {
        self.rows.borrow_mut().entry(op).or_default().add_time(took);
        self.latencies.borrow_mut().add(op, took);
    }
    /// A request of a client was answered.
    pub fn used_by(&self, client: ClientId, now: WallTime) {
        self.uses.borrow_mut().answered(client, now);
    }
    /// `client_stats`: requests by client, of those that asked last.
    #[must_use]
    pub fn clients_text(&self) -> String {
        self.uses.borrow().text(NAMED_MAX)
    }
    /// Counts it for a job, too.
    pub fn count_for(&self, job: u64, op: Op, took: Duration, now: WallTime) {
        let jobs = &mut *self.jobs.borrow_mut();
        let full = jobs.len() >= JOBS_MAX && !jobs.contains_key(&job);
        let entry = jobs.entry(if full { u64::MAX } else { job }).or_default();
        entry.last = now;
        entry.rows.entry(op).or_default().add_time(took);
    }
    /// Takes in what jobs are called.
    pub fn tell_jobs(&self, names: &[wire::Bytes]) {
        names.iter().for_each(|n| self.names.borrow_mut().tell(n));
    }
    /// What a job is called.
    pub fn job_name(&self, job: u64) -> String {
        self.names.borrow().show(job)
    }
    /// Job names for which there was no room so far.
    #[must_use]
    pub fn job_name_limit_hits(&self) -> u64 {
        self.names.borrow().limit_hits()
    }
    /// `job_stats`: operations and their times by job.
    #[must_use]
    pub fn jobs_text(&self) -> String {
        let mut out = String::from("job_stats:\n");
        for (id, job) in &*self.jobs.borrow() {
            stats::job_head(&mut out, &self.names.borrow().show(*id), job.last);
            for (op, samples) in &job.rows {
                samples.yaml(&mut out, op.label(), "usecs");
            }
        }
        out
    }
    /// The jobs that asked last, at most so many, each with its operations; and how many more there are.
    #[must_use]
    pub fn latest_jobs(&self, max: usize) -> (Vec<(String, u64)>, usize) {
        let (jobs, names) = (self.jobs.borrow(), self.names.borrow());
        let mut all: Vec<_> = jobs.iter().collect();
        all.sort_by_key(|(id, job)| (std::cmp::Reverse(job.last), **id));
        let operations = |job: &Job| job.rows.values().map(|s| s.count).sum();
        let shown = all.iter().take(max).map(|(id, job)| (names.show(**id), operations(job))).collect();
        (shown, all.len().saturating_sub(max))
    }
    /// Starts counting jobs anew.
    pub fn clear_jobs(&self) {
        self.jobs.borrow_mut().clear();
    }
    /// More operations of a kind, carried out in one request with another that [`Stats::count`] counts.
    pub fn further(&self, op: Op, count: usize) {
        if count > 0 {
            self.rows.borrow_mut().entry(op).or_default().count += count as u64;
        }
    }
    /// Shows every kind of operation that there was.
    pub fn each_operation(&self, mut look: impl FnMut(Op, &Samples)) {
        self.rows.borrow().iter().for_each(|(op, samples)| look(*op, samples));
    }
    /// Operations of one kind.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.rows.borrow().get(&op).map_or(0, |r| r.count)
    }
    /// Starts counting anew.
    pub fn clear(&self, now: WallTime) {
        *self.start.borrow_mut() = now;
        self.rows.borrow_mut().clear();
        self.latencies.borrow_mut().clear();
        self.uses.borrow_mut().clear();
    }
    /// Adds how long requests took to a metric whose last label is their kind.
    pub fn measure(&self, metric: &'static Metric, at: [&str; 2], into: &mut Snapshot) {
        self.latencies.borrow().measure(metric, &at, Op::label, into);
    }
    /// `latency_stats`: how long requests took, by kind.
    #[must_use]
    pub fn latency_text(&self, now: WallTime) -> String {
        self.latencies.borrow().text((*self.start.borrow(), now), Op::label)
    }
    /// `md_stats`: `NAME COUNT samples [usecs] MIN MAX SUM SUMSQ`, after the three lines of times.
    #[must_use]
    pub fn text(&self, now: WallTime) -> String {
        let mut s = stats::times(*self.start.borrow(), now);
        for (op, samples) in &*self.rows.borrow() {
            samples.line(&mut s, op.label(), "usecs");
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_exporters_parse() {
        let s = Stats::new(WallTime(1_000_000_000));
        s.count(Op::MdtGetattr, Duration::from_micros(3));
        s.count(Op::MdtGetattr, Duration::from_micros(5));
        let text = s.text(WallTime(3_500_000_000));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "snapshot_time             3.500000000 secs.nsecs");
        assert_eq!(lines[2], "elapsed_time              2.500000000 secs.nsecs");
        assert_eq!(lines[3], "getattr                   2 samples [usecs] 3 5 8 34");
        s.count_for(types::job_id(b"cp.0"), Op::MdtOpen, Duration::from_micros(7), WallTime(2_000_000_000));
        s.tell_jobs(&["cp.0".into(), "other".into()]);
        let jobs = s.jobs_text();
        assert!(jobs.starts_with("job_stats:\n- job_id:          cp.0\n  snapshot_time:   2\n  open: "), "{jobs}");
        assert!(jobs.contains("samples:           1, unit: usecs, min:        7") && !jobs.contains("other"), "{jobs}");
        s.count_for(7, Op::MdtOpen, Duration::ZERO, WallTime(1));
        s.count_for(7, Op::MdtClose, Duration::ZERO, WallTime(1));
        assert_eq!(s.latest_jobs(1), (vec![("cp.0".into(), 1)], 1), "who asked last is shown");
        assert_eq!(s.latest_jobs(2).0[1], ("0000000000000007".into(), 2));
        s.clear_jobs();
        assert_eq!(s.jobs_text(), "job_stats:\n");
        let latency = s.latency_text(WallTime(3_500_000_000));
        assert!(
            latency.contains("\ngetattr                   2 samples [usecs] p50 3 p90 5 p99 5 sum 8 "),
            "{latency}"
        );
        s.used_by(ClientId(3), WallTime(2_000_000_000));
        assert!(s.clients_text().contains("\n0000000000000003 requests 1 "), "{}", s.clients_text());
        s.clear(WallTime(4));
        assert!(!s.latency_text(WallTime(5)).contains("getattr"));
        assert_eq!(s.requests(Op::MdtGetattr), 0);
    }
}
