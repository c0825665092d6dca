//! Who asks: uid and gid from the request, supplementary groups from the process, squashing from the mount options.
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use wire::mdt::Cred;

/// How long a process's supplementary groups are believed. Only a privileged process can change its own.
const GROUPS_TTL: Duration = Duration::from_secs(1);
/// Processes remembered.
const PROCESSES_MAX: usize = 4096;

/// Ids that replace callers' ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Squash {
    /// Root becomes this user and group.
    pub root: Option<(u32, u32)>,
    /// Everybody becomes this user and group.
    pub all: Option<(u32, u32)>,
}

struct Known {
    at: Instant,
    uid: u32,
    groups: Vec<u32>,
}

/// Makes credentials of callers.
#[derive(Default)]
pub(crate) struct Callers {
    squash: Squash,
    known: RefCell<HashMap<u32, Known>>,
}

impl Callers {
    pub(crate) fn new(squash: Squash) -> Callers {
        Callers { squash, known: RefCell::default() }
    }
    pub(crate) fn cred(&self, uid: u32, gid: u32, pid: u32) -> Cred {
        let squashed = self.squash.all.or(self.squash.root.filter(|_| uid == 0));
        if let Some((uid, gid)) = squashed {
            return Cred { uid, gid, groups: Vec::new(), caps: 0, job: 0 };
        }
        if uid == 0 {
            return Cred { uid, gid, groups: Vec::new(), caps: 3, job: 0 };
        }
        Cred { uid, gid, groups: self.groups(uid, pid), caps: 0, job: 0 }
    }
    fn groups(&self, uid: u32, pid: u32) -> Vec<u32> {
        if pid == 0 {
            return Vec::new();
        }
        let mut known = self.known.borrow_mut();
        if let Some(k) = known.get(&pid)
            && k.uid == uid
            && k.at.elapsed() < GROUPS_TTL
        {
            return k.groups.clone();
        }
        let groups = read_groups(pid);
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        known.insert(pid, Known { at: Instant::now(), uid, groups: groups.clone() });
        groups
    }
}

fn read_groups(pid: u32) -> Vec<u32> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return Vec::new() };
    let line = status.lines().find_map(|l| l.strip_prefix("Groups:")).unwrap_or("");
    line.split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect()
}
