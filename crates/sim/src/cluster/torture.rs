//! Many seeds at once: on all cores, with what fails made smaller and everything counted.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use types::planted;

use super::class::FaultClass;
use super::context::Counts;
use super::costs::Costs;
use super::run::{RunReport, run};
use super::swarm::{PROGRAMS, SETTINGS, Swarm, Without};

/// Every so many seeds one is run twice: both must have the same history.
const REPEAT_EVERY: u64 = 25;
/// Shortest run that shrinking tries, in virtual milliseconds.
const MILLIS_MIN: u64 = 1000;

/// What to run.
#[derive(Clone, Debug)]
pub struct Torture {
    /// First seed.
    pub from: u64,
    /// Seeds.
    pub seeds: u64,
    /// No seed is begun after so long.
    pub time_max: Option<Duration>,
    /// Threads; 0: one per core.
    pub jobs: usize,
    /// Failing seeds are made smaller.
    pub shrink: bool,
    /// What is left out.
    pub without: Without,
    /// A bug that is planted.
    pub planted: Option<&'static str>,
    /// No seed is begun after the first that failed.
    pub first_only: bool,
}

impl Default for Torture {
    fn default() -> Torture {
        Torture {
            from: 0,
            seeds: 100,
            time_max: None,
            jobs: 0,
            shrink: false,
            without: Without::default(),
            planted: None,
            first_only: false,
        }
    }
}

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed.
    pub seed: u64,
    /// What is left out without it holding.
    pub without: Without,
    /// The first complaint.
    pub complaint: String,
}

/// What all seeds together did.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Seeds run.
    pub seeds: u64,
    /// Seeds that failed, in their order.
    pub failures: Vec<Failure>,
    /// Operations.
    pub operations: u64,
    /// Comparisons.
    pub checks: u64,
    /// Evictions.
    pub evictions: u64,
    /// By class: seeds in which it was on, in which it happened, and how many times it happened.
    pub classes: BTreeMap<FaultClass, (u64, u64, u64)>,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Seeds run twice with the same history.
    pub repeated: u64,
    /// Seeds in which the planted bug's place was reached.
    pub reached: u64,
    /// Real time.
    pub took: Duration,
    /// Processor time of all threads that was spent in runs, in nanoseconds of real time.
    pub busy_ns: u64,
    /// What the phases of all runs took.
    pub costs: Costs,
    /// The history of each seed: polls and hash.
    pub histories: BTreeMap<u64, (u64, u64)>,
}

/// One seed's run; a panic is a complaint.
#[must_use]
pub fn run_seed(seed: u64, without: &Without, planted: Option<&'static str>) -> RunReport {
    let swarm = Swarm::draw(seed, without);
    planted::plant(planted);
    let report = std::panic::catch_unwind(AssertUnwindSafe(|| run(&swarm.config)));
    report.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        RunReport {
            complaints: vec![format!("panic: {text}")],
            counts: Counts::default(),
            evictions: 0,
            events: 0,
            virtual_ns: 0,
            hash: 0,
            costs: Costs::default(),
        }
    })
}

/// The command that repeats a seed.
#[must_use]
pub fn command(failure: &Failure, planted: Option<&str>) -> String {
    let planted = planted.map_or_else(String::new, |p| format!(" --planted {p}"));
    format!("stria sim torture --from {} --seeds 1{}{planted}", failure.seed, failure.without.arguments())
}

/// Leaves settings out and makes the run shorter, as long as it still fails.
fn shrunk(mut failure: Failure, planted: Option<&'static str>) -> Failure {
    let classes = Swarm::draw(failure.seed, &failure.without).classes;
    let names: Vec<&str> =
        classes.iter().map(|c| c.name()).chain(PROGRAMS.iter().copied()).chain(SETTINGS.iter().copied()).collect();
    let try_it = |without: Without, failure: &mut Failure| {
        let report = run_seed(failure.seed, &without, planted);
        if let Some(complaint) = report.complaints.into_iter().next() {
            (failure.without, failure.complaint) = (without, complaint);
            return true;
        }
        false
    };
    let mut millis = (Swarm::draw(failure.seed, &failure.without).config.work.seconds * 1e3) as u64;
    while millis / 2 >= MILLIS_MIN {
        let without = Without { millis: Some(millis / 2), ..failure.without.clone() };
        if !try_it(without, &mut failure) {
            break;
        }
        millis /= 2;
    }
    for name in names {
        let mut without = failure.without.clone();
        if without.add(name).is_ok() {
            try_it(without, &mut failure);
        }
    }
    failure
}

impl Totals {
    fn add(&mut self, swarm: &Swarm, report: &RunReport, reached: bool) {
        self.seeds += 1;
        self.operations += report.counts.operations;
        self.checks += report.counts.checks;
        self.evictions += report.evictions;
        self.virtual_ns += report.virtual_ns;
        self.reached += u64::from(reached);
        self.costs.add(&report.costs);
        self.histories.insert(swarm.seed, (report.events, report.hash));
        for class in FaultClass::ALL {
            let happened = report.counts.by_class[class.index()];
            let (on, seen, times) = self.classes.entry(*class).or_default();
            *on += u64::from(swarm.classes.contains(class));
            *seen += u64::from(happened > 0);
            *times += happened;
        }
    }
    /// Faults of all classes, those that happen to single messages apart.
    fn faults(&self) -> (u64, u64) {
        use FaultClass::{Busy, Changelog, Corrupt, Credentials, Duplicate, Loss, Quotas, Reorder, Rights, SmallOsts};
        let of_messages = [Busy, Changelog, Corrupt, Credentials, Duplicate, Loss, Quotas, Reorder, Rights, SmallOsts];
        let sum = |messages: bool| {
            let of = self.classes.iter().filter(|(c, _)| of_messages.contains(c) == messages);
            of.map(|(_, (_, _, times))| times).sum()
        };
        (sum(false), sum(true))
    }
    /// The summary that is printed.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let minutes = self.virtual_ns as f64 / 60e9;
        let (faults, of_messages) = self.faults();
        let real = self.took.as_secs_f64().max(1e-9);
        let _ = writeln!(
            out,
            "{} seeds, {} failed; {} operations, {} comparisons, {} evictions",
            self.seeds,
            self.failures.len(),
            self.operations,
            self.checks,
            self.evictions
        );
        let _ = writeln!(
            out,
            "{minutes:.1} virtual minutes in {real:.1} s: {:.0} times as fast as real time, {:.0} on each core; \
             {:.1} faults a minute, besides {:.0} of single messages",
            self.virtual_ns as f64 / 1e9 / real,
            self.virtual_ns as f64 / (self.busy_ns as f64).max(1.0),
            faults as f64 / minutes.max(1e-9),
            of_messages as f64 / minutes.max(1e-9)
        );
        let _ = writeln!(out, "{} seeds were run twice, with the same history", self.repeated);
        let _ = writeln!(out, "{:<12} {:>8} {:>8} {:>10}", "class", "seeds on", "happened", "times");
        for (class, (on, seen, times)) in &self.classes {
            let _ = writeln!(out, "{:<12} {on:>8} {seen:>8} {times:>10}", class.name());
        }
        out
    }
}

/// Whether this process begins no run any more.
static ENDS: AtomicBool = AtomicBool::new(false);

/// This process begins no run any more, of whatever kind: those under way come to their end, and what all did is told.
pub fn begin_no_more() {
    ENDS.store(true, Relaxed);
}

/// Calls `work` with every number below `count`, in turn on as many threads (0: one per core); none is begun after so long, after one
/// that says it is enough, or after [`begin_no_more`].
pub fn on_all_cores(jobs: usize, count: u64, time_max: Option<Duration>, work: &(dyn Fn(u64) -> bool + Sync)) {
    let begin = Instant::now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = (if jobs > 0 { jobs } else { cores } as u64).min(count);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    let late = time_max.is_some_and(|t| begin.elapsed() > t);
                    if n >= count || late || stop.load(Relaxed) || ENDS.load(Relaxed) {
                        return;
                    }
                    if !work(n) {
                        stop.store(true, Relaxed);
                    }
                }
            });
        }
    });
}

impl Torture {
    /// Runs all seeds; each failure is told as it is found.
    #[must_use]
    pub fn run(&self, tell: &(dyn Fn(&Failure) + Sync)) -> Totals {
        let begin = Instant::now();
        let totals = Mutex::new(Totals::default());
        on_all_cores(self.jobs, self.seeds, self.time_max, &|n| {
            let failed = self.one(self.from.wrapping_add(n), &totals, tell);
            !(failed && self.first_only)
        });
        let mut totals = totals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        totals.took = begin.elapsed();
        totals.failures.sort_by_key(|f| f.seed);
        totals
    }
    /// One seed; whether it failed.
    fn one(&self, seed: u64, totals: &Mutex<Totals>, tell: &(dyn Fn(&Failure) + Sync)) -> bool {
        let begin = Instant::now();
        let report = run_seed(seed, &self.without, self.planted);
        let (reached, busy) = (planted::reached() > 0, begin.elapsed());
        let mut complaint = report.complaints.first().cloned();
        // A seed that fails by itself says nothing about a planted bug.
        if self.planted.is_some() && complaint.is_some() && !run_seed(seed, &self.without, None).complaints.is_empty() {
            complaint = None;
        }
        let repeat = self.planted.is_none() && seed.is_multiple_of(REPEAT_EVERY);
        if repeat {
            let again = run_seed(seed, &self.without, self.planted);
            if again != report {
                complaint.get_or_insert_with(|| {
                    format!("the seed does not repeat: hashes {:016x} and {:016x}", report.hash, again.hash)
                });
            }
        }
        let failure = complaint.map(|complaint| Failure { seed, without: self.without.clone(), complaint });
        let failure = failure.map(|f| if self.shrink { shrunk(f, self.planted) } else { f });
        if let Some(failure) = &failure {
            tell(failure);
        }
        planted::plant(None);
        let swarm = Swarm::draw(seed, &self.without);
        let mut totals = totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        totals.add(&swarm, &report, reached);
        totals.busy_ns += busy.as_nanos() as u64;
        totals.repeated += u64::from(repeat);
        let failed = failure.is_some();
        totals.failures.extend(failure);
        failed
    }
}
