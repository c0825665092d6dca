//! `stria torture`: real servers and mounts, checked work, and everything that goes wrong in a machine room: killed,
//! stopped and crashed processes, reset connections, networks that lose messages, full and failing disks.
//!
//! Four kinds of programs work on two mounts and know what they were promised: [`tree`] (synced files are there),
//! [`registers`] (reads and writes of shared blocks are linearizable), [`log`] (synced appends are there once), [`counter`]
//! (a lock keeps others out). [`strikes`] says what goes wrong, [`disks`] and [`nets`] how, [`shared`] what a strike excuses. Afterwards everything heals, a mount that saw
//! nothing of it is compared as well, everything stops in order, and `fsck` finds nothing.
mod counter;
mod disks;
mod history;
mod log;
mod nets;
mod registers;
mod rig;
mod shared;
mod strikes;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use types::Rng;

use crate::cli;
use crate::control::{Event, Events, block_signals};
use crate::failure::Failure;
use counter::{Counter, Highest};
use log::Appender;
use registers::Registers;
use rig::{MOUNTS, Rig};
use shared::Shared;
pub use strikes::Class;
use strikes::Strikes;
use tree::TreeWorker;

/// Programs of each round of registers.
const REGISTER_PROGRAMS: usize = 4;
/// Programs in directories of their own, programs that append and programs that count: one per mount each.
const WORKERS: usize = 3 * MOUNTS + REGISTER_PROGRAMS;
/// An operation that takes longer hangs: longer than every stop, eviction and recovery window together.
const STANDS_STILL: Duration = Duration::from_secs(240);
/// How long programs may take to end once their mounts are gone.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Longest quiet time between two strikes, in milliseconds.
const QUIET_MS_MAX: u64 = 4000;

/// The programs of a run, when they have ended.
struct Programs {
    trees: Vec<TreeWorker>,
    logs: Vec<Appender>,
    counters: Vec<Counter>,
    registers: Vec<Registers>,
}

/// What a program's thread gives back.
enum Ended {
    Tree(TreeWorker),
    Log(Appender),
    Counter(Counter),
    Registers(Registers),
}

/// The verb `torture`. Exit code 1 when a promise was broken.
///
/// # Errors
/// The cluster does not start, or the directory is not empty.
pub fn torture(arguments: &cli::Torture) -> Result<ExitCode, Failure> {
    if !(arguments.minutes > 0.0 && arguments.minutes <= 100_000.0) {
        return Err(Failure::usage(format!("--minutes {}: more than 0, up to 100000", arguments.minutes)));
    }
    // Whoever interrupts a run finds neither processes nor mounts nor networks of it afterwards.
    block_signals();
    // A planted bug is looked for in the processes that are started, and not by a process that has it.
    types::planted::plant(None);
    let seed = arguments.seed.unwrap_or_else(fresh_seed);
    let mut rig = Rig::start(arguments)?;
    note!("seed {seed}: one MDS, {} OSTs and {MOUNTS} mounts in {}", arguments.osts, arguments.dir.display());
    let shared = Arc::new(Shared::new(MOUNTS, WORKERS));
    end_at_signal(&shared);
    let places: Vec<PathBuf> = rig.mounts.iter().map(|m| m.at.clone()).collect();
    let ended = start(&shared, &places, seed)?;
    let until = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    let classes = if arguments.faults.is_empty() { Class::ALL } else { &arguments.faults };
    let mut strikes = Strikes::new(&rig, shared.clone(), Rng::named(seed, "strikes"), classes, arguments.osts, until);
    let mut rng = Rng::named(seed, "quiet");
    while Instant::now() < until && !shared.is_over() {
        let quiet = Instant::now() + Duration::from_millis(rng.below(QUIET_MS_MAX));
        while Instant::now() < quiet && !shared.is_over() {
            shared.pause();
        }
        if shared.is_over() {
            break;
        }
        if let Err(e) = strikes.strike() {
            shared.violation(e);
        }
        shared.standing(STANDS_STILL).into_iter().for_each(|s| shared.violation(s));
    }
    shared.end();
    let counts = strikes.counts().to_vec();
    let programs = collect(&shared, &ended);
    if programs.is_none() {
        rig.abandon();
    }
    if shared.interrupted().is_some() {
        // Nobody hangs in a mount any more: files are closed before the mounts' places go.
        let end = Instant::now() + ENDS_WITHIN;
        while ended.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
    }
    let summary = programs.map(|p| verify(&mut rig, &shared, &p, places)).unwrap_or_default();
    let (operations, excused) = shared.counts();
    let struck: Vec<String> = counts.iter().map(|(class, n)| format!("{class:?} {n}")).collect();
    note!("{operations} operations, {excused} failed as a strike allows; strikes: {}", struck.join(", "));
    note!("{summary}");
    finish(rig, arguments, seed, &shared)
}

fn finish(rig: Rig, arguments: &cli::Torture, seed: u64, shared: &Shared) -> Result<ExitCode, Failure> {
    let violations = shared.violations();
    if violations.is_empty() {
        let signal = shared.interrupted();
        note!("{}", if signal.is_none() { "nothing was lost" } else { "interrupted: nothing was compared in the end" });
        if arguments.keep {
            drop(rig)
        } else {
            rig.remove()
        }
        // As a shell says that a signal ended a program.
        return Ok(signal.map_or(ExitCode::SUCCESS, |s| ExitCode::from(u8::try_from(128 + s).unwrap_or(u8::MAX))));
    }
    let at = arguments.dir.display();
    note!("{} violation(s); stores (*.img), logs and the trace (trace.txt) stay in {at}:", violations.len());
    violations.iter().for_each(|v| note!("  {v}"));
    let classes = |c: &Class| c.to_possible_value().map(|v| v.get_name().to_string());
    let faults: Vec<String> = arguments.faults.iter().filter_map(classes).collect();
    let faults = if faults.is_empty() { String::new() } else { format!(" --faults {}", faults.join(",")) };
    let (minutes, osts) = (arguments.minutes, arguments.osts);
    note!(
        "the same strikes again, at other moments of the programs: stria torture --seed {seed} --minutes {minutes} --osts {osts}{faults} NEWDIR"
    );
    rig.keep_evidence(&shared.traced());
    drop(rig);
    Ok(ExitCode::FAILURE)
}

/// SIGINT, SIGTERM and SIGHUP end the run.
fn end_at_signal(shared: &Arc<Shared>) {
    let events = Events::default();
    events.watch_signals();
    let shared = shared.clone();
    std::thread::spawn(move || {
        while let Some(event) = events.wait() {
            if let Event::Signal(signal) = event {
                note!("signal {signal}: everything is taken away");
                shared.interrupt(signal);
            }
        }
    });
}

/// A seed that no earlier run had.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Rng::new(now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32).next_u64() >> 40
}

fn start(shared: &Arc<Shared>, places: &[PathBuf], seed: u64) -> Result<Receiver<Ended>, Failure> {
    let (tell, ended) = channel();
    let highest = Arc::new(Highest::default());
    for i in 0..MOUNTS {
        let made = TreeWorker::new(shared.clone(), i, places, i, seed);
        let mut worker = made.map_err(|e| Failure::io("making a directory below", &places[i], &e))?;
        let tell_tree = tell.clone();
        std::thread::spawn(move || {
            worker.run();
            // The run may have given up on this program.
            let _ = tell_tree.send(Ended::Tree(worker));
        });
        let mut worker = Appender::new(shared.clone(), MOUNTS + i, places, i);
        let tell_log = tell.clone();
        std::thread::spawn(move || {
            worker.run();
            let _ = tell_log.send(Ended::Log(worker));
        });
        let mut worker = Counter::new(shared.clone(), 2 * MOUNTS + i, places, i, highest.clone());
        let tell_count = tell.clone();
        std::thread::spawn(move || {
            worker.run();
            let _ = tell_count.send(Ended::Counter(worker));
        });
    }
    let mut registers = Registers::new(shared.clone(), 3 * MOUNTS, places, REGISTER_PROGRAMS, seed);
    std::thread::spawn(move || {
        registers.run();
        let _ = tell.send(Ended::Registers(registers));
    });
    Ok(ended)
}

/// Waits for all programs; `None` when one hangs, or the run was interrupted.
fn collect(shared: &Shared, ended: &Receiver<Ended>) -> Option<Programs> {
    let mut out = Programs { trees: Vec::new(), logs: Vec::new(), counters: Vec::new(), registers: Vec::new() };
    loop {
        match ended.recv_timeout(Duration::from_secs(1)) {
            Ok(Ended::Tree(w)) => out.trees.push(w),
            Ok(Ended::Log(w)) => out.logs.push(w),
            Ok(Ended::Counter(w)) => out.counters.push(w),
            Ok(Ended::Registers(w)) => out.registers.push(w),
            Err(RecvTimeoutError::Disconnected) => return Some(out),
            Err(RecvTimeoutError::Timeout) if shared.interrupted().is_some() => return None,
            Err(RecvTimeoutError::Timeout) => {
                let standing = shared.standing(STANDS_STILL);
                if !standing.is_empty() {
                    standing.into_iter().for_each(|s| shared.violation(s));
                    return None;
                }
            }
        }
    }
}

/// Everything is calm: compares, stops, checks the stores. A line about what was compared.
fn verify(rig: &mut Rig, shared: &Shared, programs: &Programs, mut places: Vec<PathBuf>) -> String {
    match rig.add_fresh_mount() {
        Ok(at) => places.push(at),
        Err(e) => shared.violation(format!("a fresh mount: {e}")),
    }
    let files: usize = programs.trees.iter().map(|t| t.final_check(&places)).sum();
    let records = Appender::final_check(&programs.logs, shared, &places);
    let counted = programs.counters.first().map_or(0, |c| c.final_check(&places));
    let rounds: Vec<(u64, u64)> = programs.registers.iter().map(Registers::rounds).collect();
    if let Err(e) = rig.stop() {
        shared.violation(format!("stopping: {e}"));
    }
    let check = cli::Fsck { dir: rig.dir.path().into(), data: true, repair: false };
    match crate::fsck::fsck(&check) {
        Ok(code) if code == ExitCode::SUCCESS => {}
        Ok(_) => shared.violation("fsck finds faults".into()),
        Err(e) => shared.violation(format!("fsck: {e}")),
    }
    let (played, judged) = rounds.iter().fold((0, 0), |sum, r| (sum.0 + r.0, sum.1 + r.1));
    format!(
        "{files} synced files and {records} synced records compared on {} mounts, counted to {counted}, {judged} of {played} rounds of shared blocks judged, {} eviction(s)",
        places.len(),
        rig.evictions().len()
    )
}
