//! What must always be true of a namespace, and what it shows to people.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Lock, Namespace, State};
use crate::lock::ResourceId;
use crate::resource::{Claim, Index};

impl Lock {
    /// Whether two locks must not be granted together: from first principles, not from an index.
    fn conflicts_with(&self, other: &Lock) -> bool {
        let (a, b) = (&self.desc, &other.desc);
        if a.resource != b.resource || a.mode.compatible(b.mode) || !a.data.overlaps(&b.data) {
            return false;
        }
        match (self.claim(), other.claim()) {
            (Claim::Extent(x), Claim::Extent(y)) => {
                !(a.mode == crate::LockMode::Group && a.mode == b.mode && x.gid == y.gid)
            }
            (Claim::Bits(x), Claim::Bits(y)) => !x.party.is_with(&y.party),
            _ => true,
        }
    }
}

impl Namespace {
    /// All resources with locks, by id. For people and tests.
    #[must_use]
    pub fn resources(&self) -> Vec<ResourceId> {
        let ids: BTreeSet<ResourceId> = self.resources.keys().copied().collect();
        ids.into_iter().collect()
    }

    /// Checks everything that must be true between two calls; O(n^2) in the locks of one resource.
    ///
    /// # Errors
    /// The first thing that is not true, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut by_resource: BTreeMap<ResourceId, Vec<&Lock>> = BTreeMap::new();
        for lock in self.locks.values() {
            by_resource.entry(lock.desc.resource).or_default().push(lock);
        }
        if by_resource.len() != self.resources.len() {
            return Err(format!("{} resources for {} with locks", self.resources.len(), by_resource.len()));
        }
        for (id, mut locks) in by_resource {
            locks.sort_by_key(|l| l.desc.handle);
            self.check_resource(id, &locks)?;
        }
        self.check_tables()?;
        self.flocks.check().map_err(String::from)
    }

    fn check_resource(&self, id: ResourceId, locks: &[&Lock]) -> Result<(), String> {
        let resource = self.resources.get(&id).ok_or_else(|| format!("{id:?} has locks but no entry"))?;
        let (granted, waiting): (Vec<&Lock>, Vec<&Lock>) = locks.iter().partition(|l| l.state == State::Granted);
        if (resource.granted as usize, resource.waiting as usize) != (granted.len(), waiting.len()) {
            return Err(format!("{id:?} miscounts its locks"));
        }
        if let Index::Extent(x) = &resource.index
            && (x.granted.len(), x.waiting.len()) != (granted.len(), waiting.len())
        {
            return Err(format!("{id:?}: an extent index lost a lock"));
        }
        for (i, a) in granted.iter().enumerate() {
            if let Some(b) = granted[..i].iter().find(|b| a.conflicts_with(b)) {
                return Err(format!("conflicting grants: {:?} and {:?}", a.desc, b.desc));
            }
        }
        for w in waiting {
            self.check_waiter(w, &granted)?;
        }
        Ok(())
    }

    fn check_waiter(&self, w: &Lock, granted: &[&Lock]) -> Result<(), String> {
        let watched = w.watching.and_then(|h| self.locks.get(&h));
        let Some(watched) = watched else {
            return Err(format!("{:?} waits for nothing that exists", w.desc));
        };
        if !watched.conflicts_with(w) || !watched.watchers.contains(&w.desc.handle) {
            return Err(format!("{:?} waits for {:?}, which is not in its way", w.desc, watched.desc));
        }
        if watched.state == State::Waiting && watched.desc.handle >= w.desc.handle {
            return Err(format!("{:?} waits for a later request", w.desc));
        }
        let silent = |g: &&&Lock| g.conflicts_with(w) && g.called.is_none() && !Self::is_local(g.party.client);
        match granted.iter().find(silent) {
            Some(g) => Err(format!("{:?} blocks {:?} and was not called back", g.desc, w.desc)),
            None => Ok(()),
        }
    }

    fn check_tables(&self) -> Result<(), String> {
        let named: usize = self.clients.values().map(BTreeMap::len).sum();
        if named != self.locks.len() || self.clients.values().any(BTreeMap::is_empty) {
            return Err(format!("{named} names for {} locks", self.locks.len()));
        }
        let called = self.locks.values().filter(|l| l.called.is_some()).count();
        if called != self.deadlines.len() {
            return Err(format!("{called} callbacks out, {} deadlines", self.deadlines.len()));
        }
        for (handle, lock) in &self.locks {
            if self.handle_of(lock.party.client, lock.desc.cookie) != Some(*handle) {
                return Err(format!("{:?} is not found by its cookie", lock.desc));
            }
        }
        Ok(())
    }

    /// How many flocks there may be, of all and of one client.
    pub(crate) fn flocks_max(&self) -> (usize, usize) {
        (self.config.flocks_max, self.config.flocks_of_client_max)
    }

    pub(crate) fn count_limit_hit(&mut self) {
        self.stats.limit_hits += 1;
    }
}
