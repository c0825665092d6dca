//! `sim kernels`: kernels over mounts of simulated clusters, by seed.
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use simkernel::planted::{BUGS, Class, classes};
use simkernel::torture::Torture;

use crate::cli::Kernels;
use crate::failure::{Failure, Outcome};
use crate::out;

/// The signal that ended runs, if one did.
pub struct Ended(Arc<AtomicI32>);

impl Ended {
    /// The code that the process ends with then, as shells tell of a signal.
    #[must_use]
    pub fn code(&self) -> Option<ExitCode> {
        let signal = self.0.load(Relaxed);
        let code = u8::try_from(128 + signal).ok().filter(|_| signal != 0)?;
        note!(
            "{} came: no run was begun any more; what is told is what was done before",
            bench::os::signal_name(signal)
        );
        Some(ExitCode::from(code))
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP let the runs under way end, of clusters or of kernels, and what all did is told; the second
/// signal ends the process.
pub fn end_at_signal() -> Ended {
    let ended = Ended(Arc::default());
    let told = ended.0.clone();
    bench::os::watch_signals(move |signal| {
        if told.swap(signal, Relaxed) != 0 {
            std::process::exit(128 + signal);
        }
        sim::cluster::torture::begin_no_more();
        true
    });
    ended
}

/// Runs the verb.
///
/// # Errors
/// A name that there is none of; runs that failed, planted bugs that were not found.
pub fn kernels(a: &Kernels) -> Outcome {
    if a.list {
        for class in classes() {
            out::print(format_args!("class {}\n", class.name));
        }
        for bug in BUGS {
            out::print(format_args!("bug   {:<22} {}\n", bug.name, bug.what));
        }
        return Ok(());
    }
    let all: Vec<&'static Class> = classes().collect();
    let chosen = match a.class.is_empty() {
        true => all,
        false => each("--class", &a.class, |c| all.iter().copied().find(|k| k.name == c), all.iter().map(|c| c.name))?,
    };
    let time_max = sim::cli::torture::time_max(a.minutes).map_err(Failure::usage)?;
    let torture = Torture { from: a.from, seeds: a.seeds, classes: chosen, time_max, jobs: a.jobs, planted: None };
    if !a.verbose_panics {
        // A panic is a run's complaint, told with the command that repeats it.
        std::panic::set_hook(Box::new(|_| {}));
    }
    if !a.planted.is_empty() {
        return planted_bugs(&torture, &a.planted);
    }
    let totals = torture.run(&|f| out::print(format_args!("{}\n    {}\n", f.command(), f.complaint)));
    out::print(format_args!("{}", totals.text()));
    match totals.failures.len() {
        0 => Ok(()),
        n => Err(Failure::from(format!("{n} of {} runs failed; the commands above repeat them", totals.runs))),
    }
}

/// What names stand for.
fn each<T>(
    option: &str,
    names: &[String],
    find: impl Fn(&str) -> Option<T>,
    known: impl Iterator<Item = &'static str>,
) -> Result<Vec<T>, Failure> {
    let known: Vec<&str> = known.collect();
    let unknown = |n: &str| Failure::usage(format!("{option} {n}: write some of {}", known.join(", ")));
    names.iter().map(|n| find(n).ok_or_else(|| unknown(n))).collect()
}

/// Plants bugs one at a time and tells after how many runs each was found.
fn planted_bugs(torture: &Torture, names: &[String]) -> Outcome {
    if !types::planted::COMPILED_IN {
        let why = "this build has no planted bugs: a debug build, or one with --features types/planted, has";
        return Err(Failure::with_errno(why, libc::EOPNOTSUPP));
    }
    let all = BUGS.iter().map(|b| b.name);
    let chosen: Vec<&'static str> = match names {
        [name] if name == "all" => all.collect(),
        _ => each("--planted", names, |n| BUGS.iter().find(|b| b.name == n).map(|b| b.name), all)?,
    };
    let mut missed = Vec::new();
    for name in chosen {
        let totals = Torture { planted: Some(name), ..torture.clone() }.run(&|_| {});
        match totals.failures.first() {
            Some(f) => out::print(format_args!(
                "{name:<22} {:>5} runs, seed {} of {}: {}\n",
                f.run + 1,
                f.seed,
                f.class,
                f.complaint
            )),
            None => {
                let (runs, reached) = (totals.runs, totals.reached);
                out::print(format_args!("{name:<22} not found in {runs} runs; its place was reached in {reached}\n"));
                missed.push(name);
            }
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(Failure::from(format!("not found: {}", missed.join(", ")))),
    }
}
