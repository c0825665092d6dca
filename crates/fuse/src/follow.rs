//! Keeps a serving thread on the CPU of those who call.
//!
//! A caller on another CPU costs two wake-ups across CPUs per request, each of which may wake an idle CPU: more than the
//! request itself, most of all in virtual machines. A caller on the same CPU costs two context switches. So a thread that
//! serves all queues moves to the CPU from which requests keep coming, and stays while they come from several.
//! Threads that may run on one CPU only, and readers of `/dev/fuse` (who do not learn the caller's CPU), stay put.
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Requests in a row from one other CPU before the thread moves there. A move costs about as much as two requests
/// from another CPU.
const FOLLOW_AFTER: u32 = 3;
/// Shortest time between moves, so that callers on several CPUs do not keep the thread moving.
const STAY: Duration = Duration::from_micros(500);

#[derive(Clone, Copy)]
struct State {
    /// Where the thread is kept.
    here: Option<u16>,
    /// The other CPU that requests came from lately, and how many in a row.
    other: u16,
    streak: u32,
    moved: Option<Instant>,
}

/// CPUs that the first thread to move might run on before; `None`: threads are not to be moved.
static ALLOWED: OnceLock<Option<libc::cpu_set_t>> = OnceLock::new();

thread_local! {
    static STATE: Cell<State> =
const { Cell::new(State { here: None, other: 0, streak: 0, moved: None }) };
}

/// A request came from `cpu`: moves the calling thread there if it should be.
pub(crate) fn request_from(cpu: u16) {
    STATE.with(|cell| {
        let mut s = cell.get();
        if s.here == Some(cpu) {
            if s.streak != 0 {
                s.streak = 0;
                cell.set(s);
            }
            return;
        }
        s.streak = if s.other == cpu { s.streak.saturating_add(1) } else { 1 };
        s.other = cpu;
        if s.streak >= FOLLOW_AFTER && s.moved.is_none_or(|at| at.elapsed() >= STAY) {
            s.streak = 0;
            s.moved = Some(Instant::now());
            if moved_to(cpu) {
                s.here = Some(cpu);
            }
        }
        cell.set(s);
    });
}

/// Lets the calling thread run wherever the process may: threads started by one that was moved inherit its place.
pub(crate) fn release() {
    if let Some(Some(set)) = ALLOWED.get() {
        // SAFETY: a plain structure of the size that is said. Refusal leaves the thread where it is, which is allowed.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
    }
}

fn allowed() -> Option<libc::cpu_set_t> {
    // SAFETY: a plain structure on the stack, of the size that is said.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let known = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) == 0;
        (known && libc::CPU_COUNT(&set) > 1).then_some(set)
    }
}

fn moved_to(cpu: u16) -> bool {
    let Some(set) = ALLOWED.get_or_init(allowed) else { return false };
    let cpu = usize::from(cpu);
    // SAFETY: plain structures; the CPU's number is checked against the set's size.
    unsafe {
        if cpu >= size_of::<libc::cpu_set_t>() * 8 || !libc::CPU_ISSET(cpu, set) {
            return false;
        }
        let mut only: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut only);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const only) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus() -> Vec<u16> {
        // SAFETY: as above.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set), 0);
            (0..1024).filter(|c| libc::CPU_ISSET(usize::from(*c), &set)).collect()
        }
    }

    #[test]
    fn a_thread_moves_after_a_row_of_requests_and_only_where_it_may() {
        std::thread::spawn(|| {
            let all = cpus();
            let [first, second, ..] = all[..] else { return };
            let after_a_stay = |cpu: u16, times: u32| {
                STATE.with(|c| c.set(State { moved: None, ..c.get() }));
                (0..times).for_each(|_| request_from(cpu));
            };
            after_a_stay(first, FOLLOW_AFTER - 1);
            assert_eq!(cpus(), all);
            after_a_stay(second, 1);
            after_a_stay(first, FOLLOW_AFTER - 1);
            assert_eq!(cpus(), all, "the row was broken");
            after_a_stay(first, 1);
            assert_eq!(cpus(), [first]);
            after_a_stay(second, FOLLOW_AFTER);
            assert_eq!(cpus(), [second]);
            after_a_stay(1023, 2 * FOLLOW_AFTER);
            assert_eq!(cpus(), [second], "a CPU that the thread may not use");
            release();
            assert_eq!(cpus(), all);
        })
        .join()
        .unwrap();
    }
}
