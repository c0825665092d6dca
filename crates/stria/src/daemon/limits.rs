//! Limits of the system that a daemon has to live with: what is too low is told before anything is begun.
use std::sync::mpsc::channel;

use super::memory::Roles;
use crate::failure::{Failure, Outcome};

/// Descriptors that every daemon has: its rings and timers, its log, its sockets, files that it looks at.
const DESCRIPTORS: u64 = 24;
/// Descriptors of a mount: the device and its clones for each CPU, sockets, sessions with servers.
const DESCRIPTORS_OF_CLIENT: u64 = 8;
/// Descriptors of a target: its files, its session with the metadata server.
const DESCRIPTORS_OF_TARGET: u64 = 6;
/// Descriptors of a CPU on which a mount or a shard of OSTs is served.
const DESCRIPTORS_OF_CPU: u64 = 3;
/// Threads that a daemon has at any time, besides those that there are for each CPU.
const THREADS: u64 = 16;
/// The stack of a thread that only waits.
const STACK_BYTES: usize = 64 << 10;

/// Takes all the descriptors that this process may have, and looks whether there are enough, and enough threads, for what it is to serve.
///
/// # Errors
/// Which limit is too low, and what would be right.
pub fn check(roles: Roles) -> Outcome {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let descriptors = take_descriptors().map_err(|e| Failure::from(format!("the limit of open descriptors: {e}")))?;
    // A file that gets too long (ulimit -f) is an error of whoever writes it, which says so.
    // SAFETY: a plain system call; no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    refuse_few_descriptors(descriptors, descriptors_of(roles, cpus))?;
    tracing::debug!(descriptors, "descriptors that this process may have open");
    ptlrpc::Seats::of_process().set_descriptors(usize::try_from(descriptors).unwrap_or(usize::MAX));
    refuse_few_threads(THREADS + 2 * cpus)
}

fn descriptors_of(roles: Roles, cpus: u64) -> u64 {
    let (targets, shards) = (roles.osts.saturating_add(roles.mdts), u64::from(roles.clients + roles.osts > 0));
    let served = DESCRIPTORS_OF_CLIENT.saturating_mul(roles.clients) + DESCRIPTORS_OF_TARGET.saturating_mul(targets);
    DESCRIPTORS + served + DESCRIPTORS_OF_CPU * cpus * shards
}

fn refuse_few_descriptors(there: u64, needed: u64) -> Outcome {
    if there >= needed {
        return Ok(());
    }
    let why = format!(
        "this process may have {there} descriptors open (ulimit -Hn) and needs {needed}, more with many clients: raise the hard limit ('ulimit -n 524288' as root, LimitNOFILE=524288 of a unit)"
    );
    Err(Failure::with_errno(why, libc::EMFILE))
}

/// Whether so many threads can be made: they are, and end again.
fn refuse_few_threads(needed: u64) -> Outcome {
    let mut threads = Vec::new();
    let failed = (0..needed).find_map(|_| {
        let (end, ended) = channel::<()>();
        // The other end goes with this list.
        let waits = move || {
            let _ = ended.recv();
        };
        let made = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(waits);
        made.map(|thread| threads.push((end, thread))).err()
    });
    let made = threads.len();
    for (end, thread) in threads {
        drop(end);
        // It does nothing that could panic.
        let _ = thread.join();
    }
    let Some(e) = failed else { return Ok(()) };
    let why = format!(
        "this process can make {made} threads and needs {needed}, more under load ({e}): raise the limit of processes and threads (ulimit -u, pids.max of its control group, TasksMax= of a unit) or of address space (ulimit -v)"
    );
    Err(Failure::with_errno(why, e.raw_os_error().unwrap_or(libc::EAGAIN)))
}

/// A limit of this process.
fn limit_of(resource: libc::__rlimit_resource_t) -> std::io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a plain system call that fills its argument.
    match unsafe { libc::getrlimit(resource, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Address space that this process may have, in bytes (`ulimit -v`).
pub fn address_space_bytes() -> u64 {
    limit_of(libc::RLIMIT_AS).map_or(u64::MAX, |limit| limit.rlim_cur)
}

/// Raises the limit of open descriptors to what this process may have, and answers that: every client takes one at every target, and
/// the usual 1,024 are few. Who starts a server with a lower hard limit means it.
fn take_descriptors() -> std::io::Result<u64> {
    let limit = limit_of(libc::RLIMIT_NOFILE)?;
    let all = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: a plain system call that reads its argument.
    if limit.rlim_cur < limit.rlim_max && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const all) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(limit.rlim_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_takes_all_the_descriptors_that_it_may_have() {
        let limit = || limit_of(libc::RLIMIT_NOFILE).unwrap();
        let before = limit();
        // One that other tests of this process do not notice.
        let fewer = libc::rlimit { rlim_cur: before.rlim_max - 1, ..before };
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const fewer) }, 0);
        assert_eq!(take_descriptors().unwrap(), before.rlim_max);
        assert_eq!((limit().rlim_cur, limit().rlim_max), (before.rlim_max, before.rlim_max));
        assert_eq!(take_descriptors().unwrap(), before.rlim_max, "there is nothing more to take");
    }

    #[test]
    fn too_few_descriptors_are_told_with_how_many_it_takes() {
        let up = Roles { clients: 1, osts: 4, mdts: 1 };
        let needed = descriptors_of(up, 2);
        assert!(refuse_few_descriptors(needed, needed).is_ok());
        let why = refuse_few_descriptors(needed - 1, needed).unwrap_err().to_string();
        assert!(why.contains(&format!("may have {} descriptors", needed - 1)), "{why}");
        assert!(why.contains(&format!("needs {needed}")) && why.contains("ulimit -Hn"), "{why}");
        assert!(descriptors_of(up, 2) > descriptors_of(Roles { clients: 1, ..Roles::default() }, 2));
    }
}
