//! Who asks: uid and gid from the request, supplementary groups and capabilities from the process, squashing from the mount options.
//!
//! Who reads a process's `status` holds its memory meanwhile. Of one that ends at that moment it is left to whoever held it last, who then
//! writes back what its shared mappings have changed and waits for its I/O: for this mount, perhaps, and for the very request that is looked
//! at. So a worker reads it, never the shard, and a request waits for that a limited time only.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rt::Rt;
use wire::mdt::Cred;

/// How long a process's supplementary groups and capabilities are believed. Only a privileged process can change its groups.
const PROCESS_TTL: Duration = Duration::from_secs(1);
/// How long a request waits for what its process may do. After that it may do what its user and group may, and nothing more.
const LOOKED_WITHIN: types::Duration = types::Duration::from_secs(5);
/// Processes remembered.
const PROCESSES_MAX: usize = 4096;
/// Groups of all processes remembered, 8 MiB; a process has 65,536 at most.
const GROUPS_MAX: usize = 1 << 21;

/// Capabilities (numbers of linux/capability.h) by which a process does what is not its user's to do: chown, override of permissions,
/// read and search, fowner, sys_admin, mknod, setfcap. Which of them allows what has been judged by the kernel when a request comes.
const ABOVE: [u32; 7] = [0, 1, 2, 3, 21, 27, 31];
/// CAP_FSETID.
const FSETID: u32 = 4;

/// Ids that replace callers' ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Squash {
    /// Root becomes this user and group.
    pub root: Option<(u32, u32)>,
    /// Everybody becomes this user and group.
    pub all: Option<(u32, u32)>,
}

/// What a process has besides its ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    groups: Arc<[u32]>,
    /// Bits of [`Cred`].
    caps: u32,
}

struct Known {
    at: Instant,
    uid: u32,
    rights: Rights,
}

/// How what a process has besides its ids is found out.
pub(crate) type RightsOf = fn(u32) -> Rights;

/// Makes credentials of callers.
pub(crate) struct Callers {
    squash: Squash,
    rights_of: Cell<RightsOf>,
    within: Cell<types::Duration>,
    known: RefCell<HashMap<u32, Known>>,
}

impl Callers {
    pub(crate) fn new(squash: Squash) -> Callers {
        let (rights_of, within) = (Cell::new(rights_of as RightsOf), Cell::new(LOOKED_WITHIN));
        Callers { squash, rights_of, within, known: RefCell::default() }
    }
    pub(crate) fn set(&self, rights_of: RightsOf) {
        self.rights_of.set(rights_of);
    }
    pub(crate) async fn cred(&self, rt: &Rt, uid: u32, gid: u32, pid: u32) -> Cred {
        let squashed = self.squash.all.or(self.squash.root.filter(|_| uid == 0));
        if let Some((uid, gid)) = squashed {
            return Cred { uid, gid, groups: Arc::default(), caps: 0, job: 0 };
        }
        if uid == 0 {
            let caps = Cred::ABOVE_PERMISSIONS | Cred::KEEPS_SET_IDS;
            return Cred { uid, gid, groups: Arc::default(), caps, job: 0 };
        }
        let Rights { groups, caps } = self.rights(rt, uid, pid).await;
        Cred { uid, gid, groups, caps, job: 0 }
    }
    /// Whether a request that comes with root's rights is of a process that has to leave set-id bits behind: overlayfs asks with the rights of who
    /// mounted it. Of a process that cannot be looked at it is taken for so.
    pub(crate) async fn borrows_root(&self, rt: &Rt, uid: u32, pid: u32) -> bool {
        uid == 0 && pid != 0 && self.rights(rt, uid, pid).await.caps & Cred::KEEPS_SET_IDS == 0
    }
    async fn rights(&self, rt: &Rt, uid: u32, pid: u32) -> Rights {
        if pid == 0 {
            return Rights::default();
        }
        let is_believed = |k: &&Known| k.uid == uid && k.at.elapsed() < PROCESS_TTL;
        if let Some(known) = self.known.borrow().get(&pid).filter(is_believed) {
            return known.rights.clone();
        }
        let rights_of = self.rights_of.get();
        let Some(mut rights) = rt.timeout(self.within.get(), rt.offload(move || rights_of(pid))).await else {
            tracing::warn!(pid, uid, "/proc/{pid}/status cannot be read: no supplementary groups, no capabilities");
            return Rights::default();
        };
        let mut known = self.known.borrow_mut();
        // What is open keeps the list of its opener: of processes that have the same one there is one.
        let same = known.values().map(|k| &k.rights.groups).find(|groups| **groups == rights.groups);
        rights.groups = same.cloned().unwrap_or(rights.groups);
        let groups: usize = known.values().map(|k| k.rights.groups.len()).sum();
        if known.len() >= PROCESSES_MAX || groups + rights.groups.len() > GROUPS_MAX {
            known.clear();
        }
        known.insert(pid, Known { at: Instant::now(), uid, rights: rights.clone() });
        rights
    }
}

fn rights_of(pid: u32) -> Rights {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return Rights::default() };
    let mut rights = read_rights(&status);
    // In a user namespace of its own a process has them all. It cannot come back from there: so this is looked at last.
    if rights.caps != 0 && !shares_user_namespace(pid) {
        rights.caps = 0;
    }
    rights
}

/// Whether capabilities of the process are those of the daemon's user namespace. Of one that may not be looked at they are not.
fn shares_user_namespace(pid: u32) -> bool {
    let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/user")).ok();
    of("self").is_some_and(|own| of(&pid.to_string()) == Some(own))
}

fn read_rights(status: &str) -> Rights {
    let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("").trim();
    let effective = u64::from_str_radix(line("CapEff:"), 16).unwrap_or(0);
    let has = |cap: &u32| effective >> cap & 1 != 0;
    let bit = |is: bool, bit: u32| if is { bit } else { 0 };
    let caps = bit(ABOVE.iter().any(has), Cred::ABOVE_PERMISSIONS) | bit(has(&FSETID), Cred::KEEPS_SET_IDS);
    Rights { groups: line("Groups:").split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect(), caps }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use std::thread::{ThreadId, current};

    #[test]
    fn groups_and_capabilities_are_read_from_a_status() {
        let read = |caps: &str| read_rights(&format!("Name:\tx\nGroups:\t4 27 \nCapPrm:\tffffffff\nCapEff:\t{caps}\n"));
        let with = |caps| Rights { groups: [4, 27].into(), caps };
        assert_eq!(read("0000000000000000"), with(0));
        assert_eq!(read("0000000000000004"), with(1), "read and search");
        assert_eq!(read("0000000000000010"), with(2), "set-id bits are kept");
        assert_eq!(read("000001ffffffffff"), with(3));
        assert_eq!((read("0000000000000420"), read("nonsense")), (with(0), with(0)), "capabilities for other things");
    }

    static SHARD: OnceLock<ThreadId> = OnceLock::new();

    fn in_groups(groups: Vec<u32>) -> Rights {
        Rights { groups: groups.into(), caps: 0 }
    }
    /// 1: it is looked at away from the shard.
    fn looked_away(_pid: u32) -> Rights {
        in_groups(vec![u32::from(SHARD.get() != Some(&current().id()))])
    }

    #[test]
    fn a_process_is_looked_at_away_from_the_shard_and_then_believed() {
        let callers = Callers::new(Squash::default());
        callers.set(looked_away);
        let creds = rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            SHARD.get_or_init(|| current().id());
            let looked = callers.cred(&rt, 1000, 100, 7).await;
            callers.set(|_| in_groups(vec![2]));
            [looked, callers.cred(&rt, 1000, 100, 7).await, callers.cred(&rt, 1001, 100, 7).await]
        });
        assert_eq!(creds.unwrap().map(|c| c.groups.to_vec()), [vec![1], vec![1], vec![2]]);
    }

    #[test]
    fn who_asks_with_roots_rights_and_has_not_all_of_them_borrows_them() {
        let callers = Callers::new(Squash::default());
        callers.set(|pid| Rights { groups: [].into(), caps: if pid == 7 { 3 } else { 0 } });
        let borrows = rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            let of = async |uid, pid| callers.borrows_root(&rt, uid, pid).await;
            [of(0, 7).await, of(0, 8).await, of(0, 0).await, of(1000, 8).await]
        });
        assert_eq!(borrows.unwrap(), [false, true, false, false]);
    }

    static MAY_END: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn a_process_that_ends_and_waits_for_its_request_holds_the_answer_up_for_a_limited_time() {
        let callers = Callers::new(Squash::default());
        callers.within.set(types::Duration::from_millis(20));
        callers.set(|_| {
            drop(MAY_END.lock());
            in_groups(vec![2])
        });
        let waits = MAY_END.lock().unwrap();
        let creds = rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            let without = callers.cred(&rt, 1000, 100, 7).await;
            drop(waits);
            callers.within.set(LOOKED_WITHIN);
            [without, callers.cred(&rt, 1000, 100, 7).await]
        });
        assert_eq!(creds.unwrap().map(|c| c.groups.to_vec()), [vec![], vec![2]]);
    }

    #[test]
    fn processes_with_the_same_groups_share_their_list_also_after_they_were_looked_at_again() {
        let callers = Callers::new(Squash::default());
        callers.set(|pid| in_groups(vec![7; if pid < 3 { 65_536 } else { 2 }]));
        let [first, second, again, other] = rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            let (first, second) = (callers.cred(&rt, 1000, 100, 1).await, callers.cred(&rt, 1000, 100, 2).await);
            callers.known.borrow_mut().values_mut().for_each(|k| k.uid = 0);
            [first, second, callers.cred(&rt, 1000, 100, 1).await, callers.cred(&rt, 1000, 100, 3).await]
        })
        .unwrap();
        assert!(Arc::ptr_eq(&first.groups, &second.groups) && Arc::ptr_eq(&first.groups, &again.groups));
        assert_eq!(*other.groups, [7, 7]);
    }

    #[test]
    fn groups_are_remembered_of_so_many_processes_that_they_fit() {
        let callers = Callers::new(Squash::default());
        callers.set(|pid| in_groups(vec![pid; 65_536]));
        let most = rt::real::run(frames::FramePool::new(1 << 20), |rt| async move {
            let mut most = 0;
            for pid in 1..100 {
                callers.cred(&rt, 1000, 100, pid).await;
                most = most.max(callers.known.borrow().values().map(|k| k.rights.groups.len()).sum());
            }
            most
        });
        assert!((65_536..=GROUPS_MAX).contains(&most.unwrap()));
    }

    #[test]
    fn the_groups_of_this_process_are_found() {
        assert!(rights_of(0).groups.is_empty());
        // SAFETY: asked how many they are, it writes none.
        let many = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        assert_eq!(rights_of(std::process::id()).groups.len(), usize::try_from(many).unwrap());
    }

    #[test]
    fn a_process_of_the_own_namespace_shares_it() {
        assert!(shares_user_namespace(std::process::id()) && !shares_user_namespace(0));
    }
}
