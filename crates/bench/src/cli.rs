//! The grammar of `stria bench`, and what it prints.
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::control::{Plan, run};
use crate::crew::{Crew, Place};
use crate::failure::{Failed, Outcome};
use crate::plan::{Draft, Phase};
use crate::report::Report;
use crate::{agent, os, picture};

/// Arguments of `bench`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    /// Another role.
    #[command(subcommand)]
    pub role: Option<Role>,
    /// What is measured.
    #[command(flatten)]
    pub run: Run,
}

/// Roles of `bench`.
#[derive(Subcommand, Debug)]
pub enum Role {
    /// Work for a control point at standard input and output, which starts this by itself
    Agent,
}

/// Interfaces to the file system.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// pread(2) and pwrite(2)
    #[default]
    #[value(name = "POSIX", alias = "posix")]
    Posix,
}

/// What a benchmark consists of, in IOR's words.
#[derive(Args, Debug)]
pub struct Run {
    /// Interface
    #[arg(short = 'a', long, value_enum, default_value = "POSIX")]
    pub api: Api,
    /// Test file; with -F what the names of the test files begin with
    #[arg(short = 'o', long = "test-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Bytes of a block: what a task has in a row
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "1M", value_parser = types::parse_size)]
    pub block: u64,
    /// Bytes of a transfer: one read or write
    #[arg(short = 't', long, value_name = "SIZE", default_value = "256K", value_parser = types::parse_size)]
    pub transfer: u64,
    /// Segments: blocks of each task
    #[arg(short = 's', long, value_name = "N", default_value_t = 1)]
    pub segments: u64,
    /// Write; without -w and -r: write, then read
    #[arg(short = 'w', long)]
    pub write: bool,
    /// Read what was written, by -w or earlier with -k
    #[arg(short = 'r', long)]
    pub read: bool,
    /// A file for each task
    #[arg(short = 'F', long)]
    pub file_per_task: bool,
    /// Transfers in random order
    #[arg(short = 'z', long)]
    pub random: bool,
    /// fsync at the end of what a task writes
    #[arg(short = 'e', long)]
    pub fsync: bool,
    /// Agents read what the next agent wrote
    #[arg(short = 'C', long)]
    pub reorder: bool,
    /// Keep the files
    #[arg(short = 'k', long)]
    pub keep: bool,
    /// Write into files that exist
    #[arg(short = 'E', long)]
    pub existing: bool,
    /// Repetitions
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Compare what is read with what was written
    #[arg(short = 'R', long)]
    pub check: bool,
    /// Names order and content of what is written; reading needs that of the writing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Tasks of each agent
    #[arg(short = 'N', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub tasks: u32,
    /// Agents in each place: here, or with --on there
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub agents: u32,
    /// Start agents by this command, like 'ssh HOST' or 'ip netns exec NAME'; may be repeated
    #[arg(long, value_name = "COMMAND")]
    pub on: Vec<String>,
    /// The stria that --on starts; default: the path of this one
    #[arg(long, value_name = "PATH")]
    pub program: Option<String>,
    /// Milliseconds of an interval of the series
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub interval: u64,
    /// Seconds that an agent may move nothing; 0: any time
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub stall: u64,
    /// Seconds that an agent may say nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub silence: u64,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Draw bandwidth over time into FILE: .svg or .html
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}

/// Runs the verb `bench`; what to print.
///
/// # Errors
/// What cannot be, or went wrong.
pub fn bench(arguments: &Bench, print: &dyn Fn(&str)) -> Outcome {
    match arguments.role {
        Some(Role::Agent) => agent::main(),
        None => measure(&arguments.run, print),
    }
}

fn measure(run_: &Run, print: &dyn Fn(&str)) -> Outcome {
    let places = places(&run_.on, run_.agents)?;
    let plan = plan(run_, places.len() as u32)?;
    let draws = run_.picture.as_deref().map(drawing).transpose()?;
    let program = program(run_.program.as_deref())?;
    if run_.on.is_empty() {
        check_space(&plan)?;
    }
    let mut crew = Crew::start(&program, &places, Duration::from_secs(run_.silence))?;
    let (report, outcome) = run(&mut crew, &plan);
    drop(crew);
    // Phases that came to their end count, whatever ended the others.
    if !report.phases.is_empty() {
        print(&if run_.json { format!("{}\n", report.json()) } else { report.text() });
    }
    outcome?;
    if let (Some(path), Some(draw)) = (&run_.picture, draws) {
        std::fs::write(path, draw(&report)).map_err(|e| Failed::io("writing", path, &e))?;
    }
    match report.wrong() {
        Some((count, first)) => {
            Err(Failed::new(format!("{count} transfer(s) read something else than was written: {first}"), libc::EIO))
        }
        None => Ok(()),
    }
}

fn plan(run_: &Run, agents: u32) -> Outcome<Plan> {
    let Some(file) = &run_.file else { return Err(Failed::usage("name a test file with -o")) };
    let Some(base) = std::path::absolute(file).ok().filter(|f| f.to_str().is_some()) else {
        return Err(Failed::usage(format!("-o {}: the name of a test file has to be UTF-8", file.display())));
    };
    let draft = Draft {
        transfer_bytes: run_.transfer,
        block_bytes: run_.block,
        segments: run_.segments,
        agents,
        tasks: run_.tasks,
        files: if run_.file_per_task { agents.saturating_mul(run_.tasks) } else { 1 },
        random: run_.random,
        reorder: run_.reorder,
        fsync: run_.fsync,
        seed: run_.seed,
    };
    let workload = draft.checked().map_err(Failed::usage)?;
    let phases = match (run_.write, run_.read) {
        (true, false) => vec![Phase::Write],
        (false, true) => vec![Phase::Read],
        _ => vec![Phase::Write, Phase::Read],
    };
    if run_.check && !phases.contains(&Phase::Read) {
        return Err(Failed::usage("-R compares what is read: say -r, too"));
    }
    Ok(Plan {
        workload,
        base,
        phases,
        repetitions: run_.repetitions,
        existing: run_.existing,
        keep: run_.keep,
        check: run_.check,
        interval_ns: run_.interval * 1_000_000,
        stall_max: Duration::from_secs(run_.stall),
    })
}

/// Where agents are started: so many in each place.
///
/// # Errors
/// A command without a word.
pub fn places(commands: &[String], each: u32) -> Outcome<Vec<Place>> {
    let mut kinds: Vec<Place> = Vec::new();
    for text in commands {
        let command: Vec<String> = text.split_whitespace().map(String::from).collect();
        if command.is_empty() {
            return Err(Failed::usage("--on: name a command, like 'ssh HOST'"));
        }
        kinds.push(Place { command });
    }
    if kinds.is_empty() {
        kinds.push(Place::default());
    }
    Ok(kinds.into_iter().flat_map(|p| std::iter::repeat_n(p, each as usize)).collect())
}

/// The program that agents run.
///
/// # Errors
/// The path of this one is not known.
pub fn program(told: Option<&str>) -> Outcome<String> {
    if let Some(path) = told {
        return Ok(path.into());
    }
    let own = std::env::current_exe().ok().and_then(|p| p.to_str().map(String::from));
    own.ok_or_else(|| Failed::usage("the path of this program cannot be told to agents: say --program PATH"))
}

fn drawing(path: &Path) -> Outcome<fn(&Report) -> String> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("svg") => Ok(picture::svg),
        Some("html") => Ok(picture::html),
        _ => Err(Failed::usage(format!("--picture {}: the name has to end with .svg or .html", path.display()))),
    }
}

/// Says at once what could only fail later.
fn check_space(plan: &Plan) -> Outcome {
    let Some(dir) = plan.base.parent().filter(|_| plan.phases.contains(&Phase::Write) && !plan.existing) else {
        return Ok(());
    };
    let free = os::free_bytes(dir).map_err(|e| Failed::io("looking at", dir, &e))?;
    let need = plan.workload.total_bytes();
    if free < need {
        let (need, free) = (types::format_size(need), types::format_size(free));
        let said = format!("{} has {free} free, this workload writes {need}", dir.display());
        return Err(Failed::new(said, libc::ENOSPC));
    }
    Ok(())
}
