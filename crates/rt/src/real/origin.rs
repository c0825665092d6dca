//! Which process this is, and whether another one of this host still lives.
//!
//! A number means something within one boot of a kernel and one process namespace only, and is given again; with the
//! time at which its process began it is unique there. Of processes elsewhere nothing is known, but for those of other boots of
//! the same machine ([`super::machine`]).
use std::path::Path;
use std::sync::OnceLock;

use types::Origin;

/// Bits of [`Origin::process`] for the start time, in clock ticks since the boot: 600 years.
const START_BITS: u32 = 41;
/// Bits for the process id (at most 2^22).
const PID_BITS: u32 = 22;

/// What `/proc/PID/stat` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stat {
    pid: u64,
    started: u64,
    /// All its threads have ended; it waits for its parent to notice.
    ended: bool,
}

/// This process.
pub(super) fn own() -> Origin {
    static OWN: OnceLock<Origin> = OnceLock::new();
    *OWN.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let space = std::fs::read_link("/proc/self/ns/pid").ok();
        // Start times are told in the reader's time namespace. Old kernels have none.
        let clock = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        // A `/proc` of another process namespace has other processes under our numbers: nothing is known then.
        let stat = read_stat("self").filter(|s| s.pid == u64::from(std::process::id()));
        match (boot.trim(), space, stat) {
            ("", ..) | (_, None, _) | (.., None) => Origin::default(),
            (boot, Some(space), Some(stat)) => {
                let place = format!("{boot} {} {}", space.display(), clock.display());
                let process = process(std::process::id(), stat.started);
                process.map_or_else(Origin::default, |process| Origin {
                    machine: super::machine::identity(Path::new("/")).unwrap_or(0),
                    boot: hash(boot.as_bytes()) | 1,
                    host: hash(place.as_bytes()) | 1,
                    process,
                })
            }
        }
    })
}

fn process(pid: u32, started: u64) -> Option<u64> {
    let fits = u64::from(pid) >> PID_BITS == 0 && started >> START_BITS == 0;
    fits.then_some(u64::from(pid) << START_BITS | started)
}

/// Whether it is certain that `process` has ended.
pub(super) fn is_gone(process: Origin) -> bool {
    if process.host != own().host || !own().is_known() {
        return false;
    }
    let pid = process.process >> START_BITS & ((1 << PID_BITS) - 1);
    let started = process.process & ((1 << START_BITS) - 1);
    let Ok(number) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 only asks whether the process is there.
    let there =
        unsafe { libc::kill(number, 0) } == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
    if !there {
        return true;
    }
    // A number given again has another start. What cannot be read may live.
    read_stat(&pid.to_string()).is_some_and(|s| s.ended || s.started != started)
}

fn read_stat(of: &str) -> Option<Stat> {
    parse_stat(&std::fs::read(format!("/proc/{of}/stat")).ok()?)
}

/// `pid (name) state ppid ...`: field 20 counts threads, field 22 is the start.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(stat.split(|b| *b == b' ').next()?).ok()?.parse().ok()?;
    let text = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let (state, threads, started) = (fields.first()?, fields.get(17)?, fields.get(19)?);
    // A first thread that ended while others go on looks like a zombie, too.
    let ended = matches!(*state, "Z" | "X" | "x") && threads.parse::<u64>().is_ok_and(|n| n <= 1);
    Some(Stat { pid, started: started.parse().ok()?, ended })
}

/// FNV-1a, 64 bits.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_tells_start_and_end_whatever_the_name_is() {
        let line = |state: &str, threads: u32| {
            format!("71 (a) b (c) {state} 1 71 71 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 98765 1 2")
        };
        assert_eq!(parse_stat(line("S", 9).as_bytes()), Some(Stat { pid: 71, started: 98765, ended: false }));
        assert_eq!(parse_stat(line("Z", 1).as_bytes()), Some(Stat { pid: 71, started: 98765, ended: true }));
        assert_eq!(parse_stat(line("Z", 2).as_bytes()), Some(Stat { pid: 71, started: 98765, ended: false }));
        assert_eq!(parse_stat(b"71 (a) S 1"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn the_living_stopped_and_foreign_are_never_gone_and_the_dead_are() {
        assert!(own().is_known() && !is_gone(own()));
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let stat = read_stat(&child.id().to_string()).unwrap();
        let of_child = Origin { process: process(child.id(), stat.started).unwrap(), ..own() };
        assert!(!is_gone(of_child));
        // SAFETY: signals to our own child.
        unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) };
        assert!(!is_gone(of_child), "stopped is not gone");
        assert!(is_gone(Origin { process: of_child.process + 1, ..of_child }), "the number was given to another");
        assert!(!is_gone(Origin { host: of_child.host ^ 2, ..of_child }), "another host's are not known");
        child.kill().unwrap();
        // Not collected: a zombie.
        while !is_gone(of_child) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_gone(of_child));
        assert!(!is_gone(Origin { host: of_child.host ^ 2, ..of_child }));
    }
}
