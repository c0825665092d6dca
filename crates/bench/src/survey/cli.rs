//! The grammar of `stria survey`.
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::files::{self, Osts};
use super::{Findings, Stop, names, network};
use crate::cli::{places, program};
use crate::crew::Crew;
use crate::failure::{Failed, Outcome};
use crate::plan::{RANKS_MAX, TRANSFER_BYTES_MAX};
use crate::stats::numbers;

/// The kinds of surveys.
#[derive(Subcommand, Debug)]
pub enum Survey {
    /// Bandwidth of a directory of a local file system: objects, threads, record sizes
    Disk(Disk),
    /// Bandwidth and round trip between this host and another one
    Network(Network),
    /// Bandwidth of each OST, through a mount, with files on it alone
    Ost(Ost),
    /// Creates, stats and unlinks of the metadata server, through a mount
    Mdt(Mdt),
}

/// How findings are shown.
#[derive(Args, Debug)]
pub struct Shown {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Objects, threads and records. Ranges like 1-16 go up in powers of two; lists like 1,3,5 are as written.
#[derive(Args, Debug)]
pub struct Shape {
    /// Objects (files) at a time: range or list
    #[arg(long, default_value = "1")]
    pub objects: String,
    /// Threads at a time: range or list; combinations with as many for each object are measured
    #[arg(long, default_value = "1-4")]
    pub threads: String,
    /// Bytes of a record: range or list
    #[arg(long, default_value = "1M")]
    pub records: String,
    /// Bytes that each combination writes
    #[arg(long, default_value = "256M", value_parser = types::parse_size)]
    pub size: u64,
    /// Records in random order
    #[arg(short = 'z', long)]
    pub random: bool,
}

/// Arguments of `survey disk`.
#[derive(Args, Debug)]
pub struct Disk {
    /// A directory; a new one below it is written to, and removed. Devices are refused
    pub dir: PathBuf,
    /// Shape.
    #[command(flatten)]
    pub shape: Shape,
    /// Shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// Arguments of `survey network`.
#[derive(Args, Debug)]
pub struct Network {
    /// Starts the far end: a command like 'ssh HOST' or 'ip netns exec NAME'; default: this host
    #[arg(long, value_name = "COMMAND")]
    pub on: Vec<String>,
    /// Address of the far end, as it is reached from here
    #[arg(long, default_value = "127.0.0.1")]
    pub address: String,
    /// The stria that --on starts; default: the path of this one
    #[arg(long, value_name = "PATH")]
    pub program: Option<String>,
    /// Connections at a time: range or list
    #[arg(long, default_value = "1-4")]
    pub threads: String,
    /// Bytes of a record: range or list
    #[arg(long, default_value = "4K,64K,1M")]
    pub records: String,
    /// Milliseconds of each measurement
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub time: u64,
    /// Shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// Arguments of `survey ost`.
#[derive(Args, Debug)]
pub struct Ost {
    /// A directory of a mount; a new one below it is written to, and removed
    pub dir: PathBuf,
    /// Only these; default: all
    #[arg(long = "ost", value_name = "N", value_delimiter = ',')]
    pub osts: Vec<u16>,
    /// All at a time instead of one after the other; objects, threads and size count for each
    #[arg(long)]
    pub together: bool,
    /// Shape.
    #[command(flatten)]
    pub shape: Shape,
    /// Shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// Arguments of `survey mdt`.
#[derive(Args, Debug)]
pub struct Mdt {
    /// A directory of a mount; a new one below it is written to, and removed
    pub dir: PathBuf,
    /// Threads at a time: range or list
    #[arg(long, default_value = "1-8")]
    pub threads: String,
    /// Directories: range or list; combinations with at least as many threads are measured
    #[arg(long, default_value = "1")]
    pub directories: String,
    /// Files of each thread
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub files: u64,
    /// Shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// Runs the verb `survey`; `warn` is told what is going to be written.
///
/// # Errors
/// What cannot be, or went wrong.
pub fn survey(kind: &Survey, osts: &dyn Osts, print: &dyn Fn(&str), warn: &dyn Fn(&str)) -> Outcome {
    let (found, shown) = match kind {
        Survey::Disk(a) => {
            let ranges = ranges(&a.shape)?;
            (files::disk(&a.dir, &ranges, &Stop::on_signals(), warn)?, &a.shown)
        }
        Survey::Network(a) => (far(a)?, &a.shown),
        Survey::Ost(a) => {
            let ranges = ranges(&a.shape)?;
            let which = (osts, a.osts.as_slice(), a.together);
            (files::ost(&a.dir, which, &ranges, &Stop::on_signals(), warn)?, &a.shown)
        }
        Survey::Mdt(a) => {
            let ranges = names::Ranges {
                threads: counts("--threads", &a.threads, names::THREADS_MAX)?,
                directories: counts("--directories", &a.directories, names::THREADS_MAX)?,
                files: a.files,
            };
            (names::mdt(&a.dir, &ranges, &Stop::on_signals(), warn)?, &a.shown)
        }
    };
    if found.rows.is_empty() {
        return Err(Failed::usage("no combination has as many threads for each object"));
    }
    print(&if shown.json { format!("{}\n", found.json()) } else { found.text() });
    Ok(())
}

fn counts(option: &str, text: &str, most: u64) -> Outcome<Vec<u64>> {
    let count = |t: &str| t.parse().map_err(|_| "write numbers, like 1-16 or 1,2,3".to_string());
    numbers(text, most, count).map_err(|e| Failed::usage(format!("{option} {e}")))
}

fn sizes(text: &str, most: u64) -> Outcome<Vec<u64>> {
    numbers(text, most, types::parse_size).map_err(|e| Failed::usage(format!("--records {e}")))
}

fn ranges(shape: &Shape) -> Outcome<files::Ranges> {
    Ok(files::Ranges {
        objects: counts("--objects", &shape.objects, RANKS_MAX)?,
        threads: counts("--threads", &shape.threads, RANKS_MAX)?,
        records: sizes(&shape.records, TRANSFER_BYTES_MAX)?,
        bytes: shape.size,
        random: shape.random,
    })
}

fn far(a: &Network) -> Outcome<Findings> {
    let ranges = network::Ranges {
        threads: counts("--threads", &a.threads, network::THREADS_MAX)?,
        records: sizes(&a.records, network::RECORD_BYTES_MAX)?,
        time: Duration::from_millis(a.time),
    };
    if a.on.len() > 1 {
        return Err(Failed::usage("--on: a network has one far end"));
    }
    let places = places(&a.on, 1)?;
    let mut crew = Crew::start(&program(a.program.as_deref())?, &places, Duration::from_secs(60))?;
    network::survey(&mut crew, &a.address, &ranges)
}
