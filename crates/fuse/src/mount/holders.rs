//! Who uses a mount, and in which other mount namespaces it still is.
//!
//! Looks into `/proc` and asks no file system: a mount whose daemon hangs is looked at without waiting for it. What this
//! user may not see is not found. The memory map of a process is locked while it waits for some other file system: it is waited for a limited
//! time.
use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::table;

/// A process that uses a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What it does there: `has files open`, `works in it`.
    pub what: &'static str,
}

/// A mount namespace other than ours that has a file system mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// One of its processes.
    pub pid: u32,
    /// That one's name.
    pub name: String,
    /// Where it is mounted there.
    pub at: PathBuf,
}

fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<u32> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_string()
}

/// Whether a link below `/proc` leads to the FUSE file system of a connection. Answered from memory: the daemon is not
/// asked.
fn leads_to(link: &str, connection: u32) -> bool {
    let Ok(path) = CString::new(link) else { return false };
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: an all-zero structure is valid and filled in by the call; the path is NUL-terminated.
    let stat = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        (libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, 0, &raw mut stat) == 0).then_some(stat)
    };
    stat.is_some_and(|s| s.stx_dev_major == 0 && s.stx_dev_minor == connection)
}

/// How long the processes of a machine are looked at.
const LOOKED_WITHIN: Duration = Duration::from_secs(5);

/// Processes that use the file system of a FUSE connection, in whatever mount namespace they are; `None`: that is not known, for one of
/// them could not be looked at within 5 s.
#[must_use]
pub fn users(connection: u32) -> Option<Vec<User>> {
    found_within(LOOKED_WITHIN, move || users_of(connection))
}

/// What a look that nobody can end finds, unless it takes too long.
fn found_within<T: Send + 'static>(limit: Duration, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // Who asked may have lost patience.
        let _ = tell.send(look());
    });
    told.recv_timeout(limit).ok()
}

fn users_of(connection: u32) -> Vec<User> {
    let what = |pid: u32| -> Option<&'static str> {
        for (link, what) in [("cwd", "works in it"), ("root", "has its root in it"), ("exe", "runs from it")] {
            if leads_to(&format!("/proc/{pid}/{link}"), connection) {
                return Some(what);
            }
        }
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        if open.filter_map(|e| e.path().to_str().map(str::to_owned)).any(|l| leads_to(&l, connection)) {
            return Some("has files open");
        }
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        is_mapped(&maps, connection).then_some("has files mapped")
    };
    let found = processes().into_iter().filter_map(|pid| Some((pid, what(pid)?)));
    found.map(|(pid, what)| User { pid, name: name_of(pid), what }).collect()
}

/// Lines are `start-end perms offset major:minor inode path`, numbers hexadecimal.
fn is_mapped(maps: &str, connection: u32) -> bool {
    let device = |line: &str| {
        let (major, minor) = line.split_ascii_whitespace().nth(3)?.split_once(':')?;
        Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
    };
    maps.lines().any(|line| device(line) == Some((0, connection)))
}

/// Other mount namespaces in which the file system of a FUSE connection is mounted.
#[must_use]
pub fn copies(connection: u32) -> Vec<Copy> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen = BTreeSet::from([namespace("self")]);
    let mut found = Vec::new();
    for pid in processes() {
        let of = namespace(&pid.to_string());
        if of.is_none() || !seen.insert(of) {
            continue;
        }
        let mounts = table::mounts_of(&pid.to_string());
        let there = mounts.into_iter().find(|m| m.kind.starts_with("fuse") && m.minor == connection);
        found.extend(there.map(|m| Copy { pid, name: name_of(pid), at: m.at }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_known_by_its_device() {
        let line = "7f00-7f10 r--s 00000000 00:35 12345                      /mnt/a file\n";
        assert!(is_mapped(line, 0x35) && !is_mapped(line, 35));
        assert!(!is_mapped("7f00-7f10 rw-p 00000000 00:00 0\n", 0x35));
        assert!(!is_mapped("nonsense\n\n", 0));
    }

    #[test]
    fn nobody_uses_a_connection_that_is_not_there() {
        assert_eq!((users(u32::MAX), copies(u32::MAX)), (Some(Vec::new()), Vec::new()));
    }

    #[test]
    fn a_look_that_does_not_end_is_not_waited_for() {
        let (end, ends) = channel::<()>();
        assert_eq!(found_within(Duration::from_millis(20), move || ends.recv().is_ok()), None);
        drop(end);
        assert_eq!(found_within(LOOKED_WITHIN, || 7), Some(7));
    }
}
