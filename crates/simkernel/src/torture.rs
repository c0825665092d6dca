//! Many seeds of every kind of run at once, on all cores: each that fails is told with the command that repeats it.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sim::cluster::torture::on_all_cores;
use types::planted::{plant, reached};

use crate::planted::Class;
use crate::run::{Report, run};

/// What to run: every class with every seed.
#[derive(Clone)]
pub struct Torture {
    /// First seed.
    pub from: u64,
    /// Seeds.
    pub seeds: u64,
    /// Kinds of runs.
    pub classes: Vec<&'static Class>,
    /// No run is begun after so long.
    pub time_max: Option<Duration>,
    /// Threads; 0: one per core.
    pub jobs: usize,
    /// A bug that is planted; then no run is begun after the first that found it.
    pub planted: Option<&'static str>,
}

/// A run that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its place among the runs, from 0 on.
    pub run: u64,
    /// Its seed.
    pub seed: u64,
    /// Its class.
    pub class: &'static str,
    /// The first complaint.
    pub complaint: String,
}

impl Failure {
    /// The command that repeats the run.
    #[must_use]
    pub fn command(&self) -> String {
        format!("stria sim kernels --from {} --seeds 1 --class {}", self.seed, self.class)
    }
}

/// What all runs together did.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Those that failed, in their order.
    pub failures: Vec<Failure>,
    /// System calls, and loads and stores.
    pub operations: u64,
    /// Comparisons.
    pub checks: u64,
    /// Runs that reached the place of the planted bug.
    pub reached: u64,
    /// Requests of all kernels.
    pub requests: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Real time.
    pub took: Duration,
}

impl Totals {
    fn add(&mut self, report: &Report, reached: bool) {
        self.runs += 1;
        self.reached += u64::from(reached);
        self.operations += report.operations;
        self.checks += report.checks;
        self.requests += report.requests;
        self.virtual_ns += report.virtual_ns;
    }
    /// The summary that is printed.
    #[must_use]
    pub fn text(&self) -> String {
        let (minutes, real) = (self.virtual_ns as f64 / 60e9, self.took.as_secs_f64().max(1e-9));
        format!(
            "{} runs, {} failed; {} operations, {} requests of kernels, {} comparisons\n\
             {minutes:.1} virtual minutes in {real:.1} s: {:.0} times as fast as real time\n",
            self.runs,
            self.failures.len(),
            self.operations,
            self.requests,
            self.checks,
            minutes * 60.0 / real
        )
    }
}

/// One run, and whether it reached the place of the planted bug; a panic is a complaint.
fn one(class: &Class, seed: u64, bug: Option<&'static str>) -> (Report, bool) {
    plant(bug);
    let ran = catch_unwind(AssertUnwindSafe(|| run(&(class.make)(seed))));
    let reached = reached() > 0;
    plant(None);
    let report = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        let complaints = vec![format!("panic: {text}")];
        Report { complaints, operations: 0, checks: 0, requests: 0, virtual_ns: 0, hash: 0 }
    });
    (report, reached)
}

impl Torture {
    /// Runs everything; each failure is told as it is found.
    #[must_use]
    pub fn run(&self, tell: &(dyn Fn(&Failure) + Sync)) -> Totals {
        let begin = Instant::now();
        let totals = Mutex::new(Totals::default());
        let kinds = self.classes.len() as u64;
        on_all_cores(self.jobs, self.seeds.saturating_mul(kinds), self.time_max, &|n| {
            let (seed, class) = (self.from.wrapping_add(n / kinds), self.classes[(n % kinds) as usize]);
            let (report, reached) = one(class, seed, self.planted);
            let mut complaint = report.complaints.first().cloned();
            // A run that fails by itself says nothing about a planted bug.
            if self.planted.is_some() && complaint.is_some() && !one(class, seed, None).0.complaints.is_empty() {
                complaint = None;
            }
            let failure = complaint.map(|complaint| Failure { run: n, seed, class: class.name, complaint });
            failure.iter().for_each(tell);
            let goes_on = failure.is_none() || self.planted.is_none();
            let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
            totals.add(&report, reached);
            totals.failures.extend(failure);
            goes_on
        });
        let mut totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
        totals.took = begin.elapsed();
        totals.failures.sort_by_key(|f| f.run);
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::{class_of, classes};

    fn torture(seeds: u64, classes: Vec<&'static Class>, planted: Option<&'static str>) -> Totals {
        Torture { from: 0, seeds, classes, time_max: None, jobs: 0, planted }.run(&|_| {})
    }

    #[test]
    fn every_class_runs_with_every_seed_and_a_planted_bug_is_told_with_its_run() {
        let all: Vec<_> = classes().collect();
        let kinds = all.len() as u64;
        let totals = torture(1, all, None);
        assert_eq!((totals.runs, totals.failures.len()), (kinds, 0), "{:?}", totals.failures);
        let found = torture(40, vec![class_of("counts_by_calls"), class_of("calls_on_two_mounts")], Some("names-kept"));
        let first = &found.failures[0];
        assert!(first.command().ends_with(&format!("--from {} --seeds 1 --class {}", first.seed, first.class)));
        assert!(one(class_of(first.class), first.seed, None).0.complaints.is_empty());
    }
}
