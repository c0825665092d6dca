//! Who asks: uid and gid from the request, supplementary groups from the process, squashing from the mount options.
//!
//! Who reads a process's `status` holds its memory meanwhile. Of one that ends at that moment it is left to whoever held it last, who then
//! writes back what its shared mappings have changed, and waits for that: for this mount, perhaps. So a worker reads it, never the shard.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use rt::Rt;
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

/// How the supplementary groups of a process are found out.
pub(crate) type GroupsOf = fn(u32) -> Vec<u32>;

/// Makes credentials of callers.
pub(crate) struct Callers {
    squash: Squash,
    groups_of: Cell<GroupsOf>,
    known: RefCell<HashMap<u32, Known>>,
}

impl Callers {
    pub(crate) fn new(squash: Squash) -> Callers {
        Callers { squash, groups_of: Cell::new(read_groups), known: RefCell::default() }
    }
    pub(crate) fn set(&self, groups_of: GroupsOf) {
        self.groups_of.set(groups_of);
    }
    pub(crate) async fn cred(&self, rt: &Rt, uid: u32, gid: u32, pid: u32) -> Cred {
        let squashed = self.squash.all.or(self.squash.root.filter(|_| uid == 0));
        if let Some((uid, gid)) = squashed {
            return Cred { uid, gid, groups: Vec::new(), caps: 0, job: 0 };
        }
        if uid == 0 {
            return Cred { uid, gid, groups: Vec::new(), caps: 3, job: 0 };
        }
        Cred { uid, gid, groups: self.groups(rt, uid, pid).await, caps: 0, job: 0 }
    }
    async fn groups(&self, rt: &Rt, uid: u32, pid: u32) -> Vec<u32> {
        if pid == 0 {
            return Vec::new();
        }
        let is_believed = |k: &&Known| k.uid == uid && k.at.elapsed() < GROUPS_TTL;
        if let Some(known) = self.known.borrow().get(&pid).filter(is_believed) {
            return known.groups.clone();
        }
        let groups_of = self.groups_of.get();
        let groups = rt.offload(move || groups_of(pid)).await;
        let mut known = self.known.borrow_mut();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use std::thread::{ThreadId, current};

    static SHARD: OnceLock<ThreadId> = OnceLock::new();

    /// 1: it is looked at away from the shard.
    fn looked_away(_pid: u32) -> Vec<u32> {
        vec![u32::from(SHARD.get() != Some(&current().id()))]
    }

    #[test]
    fn a_process_is_looked_at_away_from_the_shard_and_then_believed() {
        let callers = Callers::new(Squash::default());
        callers.set(looked_away);
        let creds = rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            SHARD.get_or_init(|| current().id());
            let looked = callers.cred(&rt, 1000, 100, 7).await;
            callers.set(|_| vec![2]);
            [looked, callers.cred(&rt, 1000, 100, 7).await, callers.cred(&rt, 1001, 100, 7).await]
        });
        assert_eq!(creds.unwrap().map(|c| c.groups), [vec![1], vec![1], vec![2]]);
    }

    #[test]
    fn the_groups_of_this_process_are_found() {
        assert!(read_groups(0).is_empty());
        // SAFETY: asked how many they are, it writes none.
        let many = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        assert_eq!(read_groups(std::process::id()).len(), usize::try_from(many).unwrap());
    }
}
