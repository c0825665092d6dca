//! Stopping a cluster by its directory: for when its mount is gone, hangs, or is somewhere else.
//!
//! Bounded: whatever does not stop when asked is asked again, which gives up what cannot be written out, and is killed at
//! last. Supervised servers stop with their supervisor.
use std::time::Duration;

use super::announce::tell;
use super::dir::ClusterDir;
use super::mounts::ends_within;
use super::running::{Lives, Process};
use crate::cli;
use crate::failure::{Failure, Outcome};
use crate::trouble;

/// How long a process may take to write everything out when it is asked to stop.
const ASKED: Duration = Duration::from_secs(20);
/// How long it may take when it is asked again, which makes it give up what cannot be written.
const ASKED_AGAIN: Duration = Duration::from_secs(10);
/// How long the kernel may take to end a process that was killed.
const KILLED: Duration = Duration::from_secs(10);

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    InOrder,
    Pressed,
    Killed,
    Never,
    /// It runs where no signal from here would reach it.
    Unseen,
}

/// The verb `stop`.
///
/// # Errors
/// A process had to be killed, does not end at all, or is not written down; the others are stopped nevertheless.
pub fn stop(arguments: &cli::Stop) -> Outcome {
    let dir = ClusterDir::open(&arguments.dir)?;
    let mut forced = Vec::new();
    let mut stopped = 0;
    // The supervisor first: it would start its servers again. Then the metadata server, which is a client of the OSTs.
    let rank = |name: &str| match name {
        "up" => 0,
        "mdt0" => 1,
        _ => 2,
    };
    let mut running: Vec<Process> = dir.processes().into_iter().filter(Process::runs).collect();
    running.sort_by_key(|p| rank(&p.name));
    let here = |p: &&Process| p.lives == Lives::Here;
    running.iter().filter(here).for_each(|p| let_go_on(&p.name, p.pid));
    for p in &running {
        // Servers of a supervisor that has stopped have stopped, too.
        if !dir.processes().contains(p) {
            stopped += 1;
            continue;
        }
        let end = if p.lives == Lives::Here { end(p.pid, &p.name)? } else { End::Unseen };
        match end {
            End::InOrder => stopped += 1,
            _ => forced.push((&p.name, p.pid, end)),
        }
    }
    let stays = forced.iter().any(|f| matches!(f.2, End::Never | End::Unseen));
    // Who is not written down is not stopped: whether there is somebody, the stores tell.
    let used = if stays { Vec::new() } else { dir.used() };
    if forced.is_empty() && used.is_empty() {
        match stopped {
            0 => say!("{}: nothing of it runs", dir.path().display()),
            _ => say!("{}: stopped, {stopped} process(es)", dir.path().display()),
        }
        return Ok(());
    }
    let told = |(name, pid, end): &(&String, u32, End)| match end {
        End::Never => format!("{name} (process {pid}) does not end although it was killed: it hangs in the kernel"),
        End::Killed => format!("{name} (process {pid}) had to be killed: what it had not written is lost"),
        End::Unseen => format!(
            "{name} runs, and not where it could be stopped from here: it wrote down number {pid} on another machine, in a container or as another user: stop it there"
        ),
        _ => format!("{name} (process {pid}) gave up what it could not write"),
    };
    let used_by = used.iter().map(|(store, pid)| in_use(store, *pid));
    let text: Vec<String> = forced.iter().map(told).chain(used_by).collect();
    let errno = if stays || !used.is_empty() { libc::EBUSY } else { libc::EIO };
    Err(Failure::with_errno(format!("{}: {}", dir.path().display(), text.join("; ")), errno))
}

/// That a store is in use by a process that is not written down.
pub fn in_use(store: &str, pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!(
            "{store} is in use by process {pid}, which is not written down in run/ (was it removed?): 'kill {pid}' ends it in order"
        ),
        None => format!("{store} is in use by a process that is not in sight: stop it where it runs"),
    }
}

/// A process that stands still does not hear that it is to end, and keeps those waiting that write to it.
fn let_go_on(name: &str, pid: u32) {
    let Ok(number) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: plain system call; the process was seen to hold the lock of its pid file under this number.
    if trouble::fares(number) == trouble::Fares::Stopped && unsafe { libc::kill(number, libc::SIGCONT) } == 0 {
        tell(&format!("{name} (process {pid}) stood still: it goes on, to stop in order"));
    }
}

fn end(pid: u32, name: &str) -> Result<End, Failure> {
    let number = libc::pid_t::try_from(pid).map_err(|_| Failure::from(format!("{name}: no process {pid}")))?;
    let milliseconds = |d: Duration| i32::try_from(d.as_millis()).unwrap_or(i32::MAX);
    let steps = [
        (libc::SIGTERM, ASKED, End::InOrder),
        (libc::SIGTERM, ASKED_AGAIN, End::Pressed),
        (libc::SIGKILL, KILLED, End::Killed),
    ];
    for (signal, patience, end) in steps {
        // SAFETY: plain system call; the process was seen to hold the lock of its pid file under this number.
        if unsafe { libc::kill(number, signal) } != 0 {
            let e = std::io::Error::last_os_error();
            return match e.raw_os_error() {
                Some(libc::ESRCH) => Ok(end),
                _ => Err(Failure::with_errno(
                    format!("{name} (process {pid}): {e}: stop it as root or as the user who runs it"),
                    e.raw_os_error().unwrap_or(libc::EPERM),
                )),
            };
        }
        if ends_within(number, milliseconds(patience)) {
            return Ok(end);
        }
        tell(&format!("{name} (process {pid}) does not stop within {patience:?}"));
    }
    Ok(End::Never)
}
