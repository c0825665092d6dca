//! Which processes of a cluster's directory run, and by which numbers they are known here.
//!
//! A process writes its number down and holds the lock of that file. The lock says that it lives, on whatever machine and in whatever process
//! namespace it is; the number means it only where it was written. So whoever sends signals goes by who is seen to hold the lock.
use std::fs::{self, File, TryLockError};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rt::Nid;

use super::dir::ClusterDir;
use crate::failure::Failure;
use crate::out::word;

/// How long a server may take to write itself down once it listens.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// Pause between two looks whether it has, and how long a connection may take.
const LOOK: Duration = Duration::from_millis(50);
const CONNECT: Duration = Duration::from_secs(1);

/// A process that is written down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its part: `up`, `mdt0`, `ost3`.
    pub name: String,
    /// Its number here; of one that is not here, the number that it wrote.
    pub pid: u32,
    /// Whether it lives, and where.
    pub lives: Lives,
}

/// Whether a process lives, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lives {
    /// It has ended.
    No,
    /// In sight: its number is its own.
    Here,
    /// On another machine, in a container, or as another user: its number may be anybody's here.
    Elsewhere,
}

impl Process {
    /// Whether it lives, wherever.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.lives != Lives::No
    }
}

impl ClusterDir {
    /// Processes that are written down, by name.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let entries = fs::read_dir(self.run()).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter_map(|e| {
                let name = e.file_name().to_str()?.strip_suffix(".pid")?.to_string();
                let written: u32 = fs::read_to_string(e.path()).ok()?.trim().parse().ok()?;
                let holder = is_held(&e.path()).then(|| holder(&e.path(), Some(written)));
                Some(match holder {
                    None => Process { name, pid: written, lives: Lives::No },
                    Some(Some(pid)) => Process { name, pid, lives: Lives::Here },
                    Some(None) => Process { name, pid: written, lives: Lives::Elsewhere },
                })
            })
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// Whether process `name` runs.
    #[must_use]
    pub fn is_served(&self, name: &str) -> bool {
        self.processes().iter().any(|p| p.runs() && p.name == name)
    }

    /// Where the directory's metadata server is reached, or was last; `None`: it never listened.
    ///
    /// # Errors
    /// It does not run, and another process listens where it was reached last: that of the directory of which this one is a copy.
    pub fn mds_nid(&self) -> Result<Option<Nid>, Failure> {
        let Some(nid) = self.last_nid("mdt0") else { return Ok(None) };
        let since = Instant::now();
        while !self.is_served("mdt0") && is_taken(&nid) {
            if since.elapsed() >= WRITTEN_WITHIN {
                let at = self.path().display();
                let why = format!(
                    "{at}: its metadata server does not run, and another one listens at {nid}, where it was reached last (is this a copy of a cluster's directory?): start its own with 'stria mds --dir {}'",
                    word(self.path())
                );
                return Err(Failure::with_errno(why, libc::ECONNREFUSED));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Some(nid))
    }

    /// Stores that are in use although nobody is written down, as when `run` was removed: as [`ClusterDir::used`].
    #[must_use]
    pub fn used_by_nobody(&self) -> Vec<(String, Option<u32>)> {
        if self.processes().iter().any(Process::runs) { Vec::new() } else { self.used() }
    }

    /// Stores that are in use: which, and by which process, if that is in sight.
    #[must_use]
    pub fn used(&self) -> Vec<(String, Option<u32>)> {
        let osts = self.ost_indices().into_iter().map(|i| self.ost(i));
        let lock_of = |store: PathBuf| Some((store.file_name()?.to_str()?.to_string(), store.join(rt::DIR_LOCK)));
        let locks = std::iter::once(self.mdt()).chain(osts).filter_map(lock_of);
        locks.filter(|(_, lock)| is_held(lock)).map(|(name, lock)| (name, holder(&lock, None))).collect()
    }
}

/// Whether anybody listens at an address.
fn is_taken(nid: &Nid) -> bool {
    matches!(nid, Nid::Tcp(at) if TcpStream::connect_timeout(at, CONNECT).is_ok())
}

/// Whether a process holds the lock of a file.
fn is_held(file: &Path) -> bool {
    File::open(file).is_ok_and(|f| matches!(f.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The number, here, of the process that holds the lock of a file; `likely` is looked at first. `None`: it is not in sight.
fn holder(file: &Path, likely: Option<u32>) -> Option<u32> {
    let meta = fs::metadata(file).ok()?;
    let same = (meta.dev(), meta.ino());
    if let Some(pid) = likely.filter(|pid| holds(*pid, same)) {
        return Some(pid);
    }
    let numbers = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = numbers.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    processes.find(|pid| holds(*pid, same))
}

/// Whether a process has a file open and, by that descriptor, a lock on it that excludes others. No other files are looked at: one of them may
/// be on a file system that stands still.
fn holds(pid: u32, same: (u64, u64)) -> bool {
    let excludes = |line: &str| line.starts_with("lock:") && line.contains(" FLOCK ") && line.contains(" WRITE ");
    let open = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut locks = open.filter(|e| fs::read_to_string(e.path()).is_ok_and(|text| text.lines().any(excludes)));
    locks.any(|e| {
        let file = PathBuf::from(format!("/proc/{pid}/fd")).join(e.file_name());
        fs::metadata(file).is_ok_and(|m| (m.dev(), m.ino()) == same)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_is_found_whatever_number_was_written_down() {
        let dir = tempfile::tempdir().unwrap();
        let (at, own) = (dir.path().join("x.pid"), std::process::id());
        fs::write(&at, "1\n").unwrap();
        assert!(!is_held(&at) && holder(&at, Some(own)).is_none());
        let held = File::open(&at).unwrap();
        held.lock().unwrap();
        assert!(is_held(&at));
        for likely in [None, Some(1), Some(own), Some(u32::MAX)] {
            assert_eq!(holder(&at, likely), Some(own), "{likely:?}");
        }
        drop(held);
        // Who looks at it is not who has it.
        let looks = File::open(&at).unwrap();
        looks.lock_shared().unwrap();
        assert_eq!(holder(&at, Some(own)), None);
    }
}
