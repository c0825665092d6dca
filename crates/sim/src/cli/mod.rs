//! `stria sim`: run, sweep, list, plot, report.
//!
//! The `stria` binary mounts [`command`] and calls [`main`]; both speak clap. Decides what is printed, nothing else.
mod draw;
mod judge;
mod list;
mod replay;
mod run;
mod sequences;
mod show;
pub mod torture;
mod worst;

pub(crate) use show::{condition, expected, interval, measured, number};

use crate::experiment::Overrides;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

/// `stria sim ...`.
#[derive(Parser, Debug)]
#[command(name = "sim", about = "Simulate servers, disks and up to a million clients, deterministically")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs of `stria sim`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Run a scenario and judge what it expects
    Run(RunArgs),
    /// Run a scenario over values of a parameter given here
    Sweep(SweepArgs),
    /// Run a scenario and draw what it shows, the paper's values and ours, as SVG
    Plot(PlotArgs),
    /// Run all scenarios and write one HTML page: every claim, expected, simulated, real, error, picture
    Report(ReportArgs),
    /// Judge what real processes gave (bench/real.py, bench/advice.sh) by the papers' claims
    Judge(JudgeArgs),
    /// Search for the workload that hurts a policy most, and write it as a scenario
    Worst(WorstArgs),
    /// Write what a scenario's OSTs did with every request as a trace, for replay
    Record(RecordArgs),
    /// Give the requests of a trace to the recorded policy, to see how far off that is, and to other settings
    Replay(ReplayArgs),
    /// Fit a disk's parameters to a trace
    Fit(FitArgs),
    /// Run whole clusters under faults, everything drawn from the seed, and say which seeds break a promise
    Torture(TortureArgs),
    /// Run every sequence of one and of two operations with every death at every point of it, and say which lose something
    Sequences(SequencesArgs),
    /// List scenarios, or the parameters that --set takes
    List(ListArgs),
}

/// What selects and changes a scenario.
#[derive(Args, Debug, Clone)]
pub struct Selection {
    /// Scenario file, or an id such as R3
    pub file: String,
    /// Run with this seed only
    #[arg(long)]
    pub seed: Option<u64>,
    /// Override a parameter; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The small form that continuous integration runs
    #[arg(long)]
    pub smoke: bool,
    /// Runs at the same time; 0: one per core
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The scenario.
    #[command(flatten)]
    pub selection: Selection,
    /// Measure it also under other readings of what its source leaves open (three seeds each)
    #[arg(long)]
    pub readings: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// The scenario.
    #[command(flatten)]
    pub selection: Selection,
    /// Values to go through; may be repeated, the points are the product
    #[arg(long = "over", value_name = "KEY=V1,V2,..", required = true)]
    pub over: Vec<String>,
    /// Metrics to show
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "bandwidth_gb_per_s,seeks_per_s_per_oss,response_time_p99_s.bulk"
    )]
    pub metrics: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `plot`.
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// The scenario.
    #[command(flatten)]
    pub selection: Selection,
    /// Directory for the SVG files
    #[arg(long, default_value = ".")]
    pub out: PathBuf,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Only these scenarios (files or ids); default: all
    pub ids: Vec<String>,
    /// The page to write; beside it, with the ending csv, every metric of every point
    #[arg(long, default_value = "report.html")]
    pub out: PathBuf,
    /// Where scenarios are; default: sim/scenarios
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// The small forms that continuous integration runs
    #[arg(long)]
    pub smoke: bool,
    /// Fail when an expectation misses that is not marked as a known miss or is elsewhere than marked, or cannot be judged
    #[arg(long)]
    pub strict: bool,
    /// Runs at the same time; 0: one per core
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
}

/// Arguments of `judge`.
#[derive(Args, Debug)]
pub struct JudgeArgs {
    /// Results files, one JSON object a line; default: those of bench/results, and every claim
    pub files: Vec<PathBuf>,
}

/// Arguments of `worst`.
#[derive(Args, Debug)]
pub struct WorstArgs {
    /// A scheduler, cache or readahead policy by name
    pub policy: String,
    /// Hold it against these policies only; default: all others of its room
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub against: Vec<String>,
    /// What is compared; default: bandwidth. Times, seeks and queues are better when they are small
    #[arg(long, default_value = "")]
    pub metric: String,
    /// Workloads to try
    #[arg(long, default_value_t = 256)]
    pub tries: usize,
    /// Seed of the search
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the scenario here; default: to standard output
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Runs at the same time; 0: one per core
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
}

/// Arguments of `sequences`.
#[derive(Args, Debug)]
pub struct SequencesArgs {
    /// The sequence of this number only
    #[arg(long, value_name = "N")]
    pub only: Option<usize>,
    /// Files of so many stripes only: 1 or 2; without, both
    #[arg(long)]
    pub stripes: Option<u16>,
    /// Print what the phases of cases took: virtual and processor time, polls, messages, disks
    #[arg(long)]
    pub costs: bool,
    /// Begin no sequence after so many minutes
    #[arg(long)]
    pub minutes: Option<f64>,
    /// Threads; 0: one per core
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
}

/// Arguments of `record`.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// The scenario; its first point where it varies something.
    #[command(flatten)]
    pub selection: Selection,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Arguments of `replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The trace
    pub file: PathBuf,
    /// What is asked about: a key of the scheduler (nrs.*), the device (disk.*), the elevator, the allocator or the server
    /// (oss.*), or @FILE with one a line; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The device that the trace was recorded on: a profile, or a file that fit has written. Default: what the trace says
    #[arg(long, value_name = "PROFILE|FILE")]
    pub device: Option<String>,
    /// Requests arrive when they did, however long others take
    #[arg(long, conflicts_with = "closed_loop")]
    pub open_loop: bool,
    /// Every client waits for what it had waited for, and then as long as it did; the default
    #[arg(long)]
    pub closed_loop: bool,
    /// Seeds; default: 5, and 1 for what the simulator recorded, whose seed is known
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fit`.
#[derive(Args, Debug)]
pub struct FitArgs {
    /// The trace
    pub file: PathBuf,
    /// Write the keys here, for replay's --device and --set @FILE
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `torture`.
#[derive(Args, Debug)]
pub struct TortureArgs {
    /// Seeds to run
    #[arg(long, default_value_t = 100)]
    pub seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    /// Begin no seed after so many minutes
    #[arg(long)]
    pub minutes: Option<f64>,
    /// Make failing seeds smaller: leave out faults, programs and settings while they still fail
    #[arg(long)]
    pub shrink: bool,
    /// Leave these classes of faults, programs or settings out
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Virtual seconds with faults, instead of those that the seed says
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Threads; 0: one per core
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
    /// Plant a bug (or `all`, one after the other) and say how many seeds it takes to find it
    #[arg(long, value_name = "NAME,..")]
    pub planted: Option<String>,
    /// List the bugs that can be planted
    #[arg(long)]
    pub list_planted: bool,
    /// Print where panics happen
    #[arg(long)]
    pub verbose_panics: bool,
    /// Print what the phases of runs took: virtual and processor time, polls, messages, disks
    #[arg(long)]
    pub costs: bool,
    /// Print how many polls and which hash the history of each seed has
    #[arg(long)]
    pub hashes: bool,
}

/// Arguments of `list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Show the parameters instead
    #[arg(long)]
    pub keys: bool,
    /// Where to look; default: sim/scenarios
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// The command for mounting under another one.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Does what was asked. Fails (1) when an expectation misses, (2) when something is refused.
pub fn main(arguments: Arguments) -> ExitCode {
    let done = match arguments.verb {
        Verb::Run(a) => run::run(&a),
        Verb::Sweep(a) => run::sweep(&a),
        Verb::Plot(a) => draw::plot(&a),
        Verb::Report(a) => draw::report(&a),
        Verb::Judge(a) => judge::judge(&a),
        Verb::Worst(a) => worst::worst(&a),
        Verb::Record(a) => replay::record(&a),
        Verb::Replay(a) => replay::replay(&a),
        Verb::Fit(a) => replay::fit(&a),
        Verb::Torture(a) => torture::torture(&a),
        Verb::Sequences(a) => sequences::run(&a),
        Verb::List(a) => list::list(&a),
    };
    match done.and_then(|well| UNPRINTED.get().map_or(Ok(well), |why| Err(why.clone()))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("stria sim: {why}");
            ExitCode::from(2)
        }
    }
}

impl Selection {
    fn overrides(&self) -> Result<Overrides, String> {
        let split = |s: &String| match s.split_once('=') {
            Some((k, v)) => Ok((k.trim().to_string(), v.trim().to_string())),
            None => Err(format!("--set '{s}' is not KEY=VALUE")),
        };
        let set = self.set.iter().map(split).collect::<Result<_, _>>()?;
        Ok(Overrides { set, seed: self.seed, smoke: self.smoke })
    }
}

/// Why something could not be printed.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Prints to standard output; a reader that went away (`| head`) is not an error, a full disk is one at the end.
fn print(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
        && e.kind() != std::io::ErrorKind::BrokenPipe
    {
        UNPRINTED.get_or_init(|| format!("writing the output: {e}"));
    }
}
