//! Which OSTs a cluster has: some come while it runs, and some leave it.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use oss::store::StoreIdentity;
use rt::Rt;
use types::{ClientId, Duration, Instant, OstIndex};

use super::{CLUSTER_ID, Cluster, FSNAME, Node, OST_DATABASE, OST_DIR, OST_FILE, Running};

/// Who follows the cluster map has heard of a change after this long.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(60);

/// See the module's head.
#[derive(Default)]
pub(super) struct Members {
    /// Indices of OSTs of the cluster.
    all: RefCell<BTreeSet<usize>>,
    /// Those that the metadata server is asked to remove.
    leaving: RefCell<BTreeSet<usize>>,
    /// Clients that have had a session with an OST that was added.
    met: RefCell<BTreeSet<(usize, ClientId)>>,
    /// OSTs that are given up by the cluster map, each as often as that was asked for and not taken back.
    given_up: RefCell<Vec<usize>>,
    /// When one of these was taken back last.
    taken_back: Cell<Option<Instant>>,
}

impl Members {
    /// The first so many.
    pub(super) fn new(osts: usize) -> Members {
        Members { all: RefCell::new((0..osts).collect()), ..Members::default() }
    }
}

impl Cluster {
    /// Indices of the OSTs that the cluster has now.
    #[must_use]
    pub fn ost_indices(&self) -> Vec<usize> {
        self.members.all.borrow().iter().copied().collect()
    }
    /// Their servers' nodes.
    pub fn osses(&self) -> impl Iterator<Item = &Rc<Node>> + use<'_> {
        self.ost_indices().into_iter().map(|i| &self.oss_hosts[i])
    }
    /// Whether the cluster has this OST now.
    #[must_use]
    pub fn has_ost(&self, index: usize) -> bool {
        self.members.all.borrow().contains(&index)
    }
    /// Whether the metadata server is asked to remove this OST, or has done so.
    #[must_use]
    pub fn is_leaving(&self, index: usize) -> bool {
        self.members.leaving.borrow().contains(&index)
    }
    /// Whether that is so of some OST of the cluster.
    #[must_use]
    pub fn is_some_ost_leaving(&self) -> bool {
        self.ost_indices().into_iter().any(|i| self.is_leaving(i))
    }
    /// The next OST that may be added.
    #[must_use]
    pub fn next_ost(&self) -> Option<usize> {
        (self.config.osts..self.config.osts_max()).find(|i| self.oss_hosts[*i].starts.get() == 0)
    }
    /// An OST, whose server has been started, belongs to the cluster from now on.
    pub fn ost_came(&self, index: usize) {
        self.members.all.borrow_mut().insert(index);
    }
    /// The metadata server is asked to remove an OST, or it was and said no.
    pub fn ost_leaves(&self, index: usize, leaves: bool) {
        let mut leaving = self.members.leaving.borrow_mut();
        if leaves {
            leaving.insert(index)
        } else {
            leaving.remove(&index)
        };
    }
    /// An OST has left the cluster; its server is to be ended.
    pub fn ost_left(&self, index: usize) {
        self.members.all.borrow_mut().remove(&index);
    }
    /// Starts of all servers so far, also of those that left.
    #[must_use]
    pub fn starts_of_servers(&self) -> u64 {
        std::iter::once(&self.mds).chain(&self.oss_hosts).map(|n| n.starts.get()).sum()
    }

    /// Makes the store of an OST on its host.
    ///
    /// # Errors
    /// A sentence.
    pub async fn format_ost(&self, index: usize) -> Result<(), String> {
        let rt = self.oss_hosts[index].host().boot();
        let made = self.make_store(&rt, index, (rt.random(), 0)).await;
        self.oss_hosts[index].host().kill();
        made
    }
    /// The store of an OST whose server does not run is lost for good, and an empty one is made in its place: of which identity, and which
    /// objects the lost one had.
    ///
    /// # Errors
    /// A sentence.
    pub async fn replace_store(&self, index: usize, (uuid, lost_through): (u64, u32)) -> Result<(), String> {
        let rt = self.oss_hosts[index].host().boot();
        let emptied = [OST_FILE, OST_DATABASE].into_iter().try_for_each(|file| match rt.unlink(Path::new(file)) {
            // An earlier try came so far.
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{file} of OST {index}: {e}")),
            _ => Ok(()),
        });
        let made = match emptied {
            Ok(()) => self.make_store(&rt, index, (uuid, lost_through)).await,
            failed => failed,
        };
        self.oss_hosts[index].host().kill();
        made
    }
    async fn make_store(&self, rt: &Rt, index: usize, (uuid, lost_through): (u64, u32)) -> Result<(), String> {
        let (fsname, ost) = (FSNAME.into(), OstIndex(index as u16));
        let identity = StoreIdentity { cluster: CLUSTER_ID, fsname, ost, uuid };
        let options = store_file::MkfsOptions { identity, capacity_bytes: self.config.ost_bytes, lost_through };
        let made = store_file::mkfs(rt, Path::new(OST_DIR), &options).await;
        made.map(drop).map_err(|e| format!("mkfs of OST {index}: {e}"))
    }

    /// How many OSTs a client that joins waits for: where they come and go, for one.
    pub(super) fn osts_to_join(&self) -> usize {
        let given_up: BTreeSet<usize> = self.members.given_up.borrow().iter().copied().collect();
        let all = if self.config.spare_osts > 0 { 1 } else { self.config.osts };
        all.saturating_sub(given_up.len())
    }
    /// An OST is to be given up by the cluster map, or has been taken back: clients that join do not wait for it meanwhile.
    pub fn ost_given_up(&self, index: usize, begins: bool) {
        let mut all = self.members.given_up.borrow_mut();
        match all.iter().position(|i| *i == index) {
            Some(at) if !begins => {
                self.members.taken_back.set(Some(self.sim.now()));
                all.swap_remove(at);
            }
            _ => all.push(index),
        }
    }
    /// Whether some client may do without an OST because the cluster map says so, or did until lately.
    #[must_use]
    pub fn misses_an_ost(&self) -> bool {
        let lately = self.members.taken_back.get().is_some_and(|at| self.sim.now().since(at) < FOLLOWS_WITHIN);
        lately || !self.members.given_up.borrow().is_empty()
    }
    /// Notes which OSTs that were added know a client.
    pub(super) fn note_meetings(&self, client: ClientId) {
        for i in self.ost_indices().into_iter().filter(|i| *i >= self.config.osts) {
            let node = &self.oss_hosts[i];
            if let Running::Oss(role) = &*node.running.borrow()
                && role.server.knows(&node.target, client)
            {
                self.members.met.borrow_mut().insert((i, client));
            }
        }
    }
    /// Whether a client that a server does not know was evicted there, or has not come back yet: an OST that was added does not know those
    /// that have not been told of it, and one that leaves forgets them.
    pub(super) fn counts_for(&self, target: &str, client: ClientId) -> bool {
        let at = |i: &usize| self.oss_hosts[*i].target == target;
        let Some(index) = self.ost_indices().into_iter().find(at) else { return true };
        let met = index < self.config.osts || self.members.met.borrow().contains(&(index, client));
        met && !self.is_leaving(index)
    }
}
