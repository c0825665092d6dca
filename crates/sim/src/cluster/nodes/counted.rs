//! What servers count for users, groups and projects, looked at from outside, without a message.
use oss::store::Charged;

use super::{Cluster, NodeId, Running};

/// What an OST counts for one, and lets it have: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// What it has, writes that were let in included.
    pub used: u64,
    /// What it may have; `u64::MAX`: any number.
    pub share: u64,
}

impl Counted {
    /// What counts against a limit: what is there or may still come.
    #[must_use]
    pub fn taken(&self) -> u64 {
        if self.share == u64::MAX { self.used } else { self.share.max(self.used) }
    }
}

impl Cluster {
    /// What one has on each OST; `None` while one of them does not run, or has not been told everything that its restart lost.
    #[must_use]
    pub fn counted_bytes(&self, who: Charged) -> Option<Vec<Counted>> {
        let all = self
            .ost_indices()
            .into_iter()
            .map(|i| if self.is_in_service(NodeId::Oss(i)) { self.counted_on(i, who) } else { None });
        all.collect()
    }
    /// The same of OSTs that run, be it that they have not been told everything: they have as much, or more.
    #[must_use]
    pub fn counted_at_least(&self, who: Charged) -> Vec<Counted> {
        self.ost_indices().into_iter().filter_map(|i| self.counted_on(i, who)).collect()
    }
    fn counted_on(&self, index: usize, who: Charged) -> Option<Counted> {
        let Running::Oss(role) = &*self.oss_hosts[index].running.borrow() else { return None };
        let (used, share) = role.oss.osts().first()?.quota_of(who);
        Some(Counted { used, share })
    }
    /// Inodes that count for one; `None` while the metadata server does not run, or has not been told everything.
    #[must_use]
    pub fn counted_inodes(&self, who: Charged) -> Option<u64> {
        let Running::Mds(role) = &*self.mds.running.borrow() else { return None };
        let mds = role.mds().filter(|_| self.is_in_service(NodeId::Mds))?;
        Some(mds.inodes_of(who.0, who.1))
    }
}
