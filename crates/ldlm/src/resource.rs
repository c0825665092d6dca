//! One resource of the server's namespace: the same questions for extent and inode-bit locks.
use alloc::vec::Vec;
use types::{Extent, HandleId, Instant};

use crate::bits::{BitClaim, BitLocks};
use crate::extents::{ExtentClaim, ExtentLocks};
use crate::lock::ResourceKind;
use crate::namespace::NamespaceConfig;

/// A lock as the index of its kind sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    Extent(ExtentClaim),
    Bits(BitClaim),
}

#[derive(Clone, Debug)]
pub(crate) enum Index {
    Extent(ExtentLocks),
    Bits(BitLocks),
}

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub index: Index,
    pub granted: u32,
    pub waiting: u32,
}

/// Sends a question to the index of the claim's kind; a claim always has its resource's kind.
macro_rules! ask {
    ($self:expr, $claim:expr, $locks:ident, $c:ident => $body:expr) => {
        match (&$self.index, $claim) {
            (Index::Extent($locks), Claim::Extent($c)) => $body,
            (Index::Bits($locks), Claim::Bits($c)) => $body,
            _ => unreachable!("data was checked to be of its resource's kind"),
        }
    };
    (mut $self:expr, $claim:expr, $locks:ident, $c:ident => $body:expr) => {
        match (&mut $self.index, $claim) {
            (Index::Extent($locks), Claim::Extent($c)) => $body,
            (Index::Bits($locks), Claim::Bits($c)) => $body,
            _ => unreachable!("data was checked to be of its resource's kind"),
        }
    };
}

impl Resource {
    pub fn new(kind: ResourceKind) -> Resource {
        let index = match kind {
            ResourceKind::Extent => Index::Extent(ExtentLocks::default()),
            ResourceKind::Inode => Index::Bits(BitLocks::default()),
        };
        Resource { index, granted: 0, waiting: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.granted == 0 && self.waiting == 0
    }

    /// A lock that stands in the way: granted, or waiting with a smaller number.
    pub fn blocker(&self, claim: &Claim) -> Option<HandleId> {
        ask!(self, claim, locks, c => locks.blocker(c))
    }

    pub fn granted_blocker(&self, claim: &Claim) -> Option<HandleId> {
        ask!(self, claim, locks, c => locks.granted_blocker(c))
    }

    /// A waiter that conflicts with `claim`, whatever its number.
    pub fn any_waiter(&self, claim: &Claim) -> Option<HandleId> {
        ask!(self, claim, locks, c => locks.any_waiter(c))
    }

    pub fn fresh_conflicts(&self, claim: &Claim, into: &mut Vec<HandleId>) {
        ask!(self, claim, locks, c => locks.fresh_conflicts(c, into));
    }

    pub fn set_fresh(&mut self, claim: &Claim, fresh: bool) {
        match (&mut self.index, claim) {
            (Index::Extent(locks), Claim::Extent(c)) => locks.granted.set_fresh(c, fresh),
            (Index::Bits(locks), Claim::Bits(c)) => locks.set_fresh(c, fresh),
            _ => unreachable!("data was checked to be of its resource's kind"),
        }
    }

    pub fn insert_granted(&mut self, claim: &Claim) {
        self.granted += 1;
        match (&mut self.index, claim) {
            (Index::Extent(locks), Claim::Extent(c)) => locks.granted.insert(c),
            (Index::Bits(locks), Claim::Bits(c)) => locks.grant(c),
            _ => unreachable!("data was checked to be of its resource's kind"),
        }
    }

    pub fn remove_granted(&mut self, claim: &Claim) {
        let found = match (&mut self.index, claim) {
            (Index::Extent(locks), Claim::Extent(c)) => locks.granted.remove(c),
            (Index::Bits(locks), Claim::Bits(c)) => locks.ungrant(c),
            _ => unreachable!("data was checked to be of its resource's kind"),
        };
        assert!(found, "a granted lock is in its resource's index");
        self.granted -= 1;
    }

    pub fn insert_waiting(&mut self, claim: &Claim) {
        self.waiting += 1;
        ask!(mut self, claim, locks, c => locks.waiting.insert(c));
    }

    pub fn remove_waiting(&mut self, claim: &Claim) {
        let found = ask!(mut self, claim, locks, c => locks.waiting.remove(c));
        assert!(found, "a waiting lock is in its resource's index");
        self.waiting -= 1;
    }

    pub fn on_conflict(&mut self, now: Instant, config: &NamespaceConfig) {
        if let Index::Extent(locks) = &mut self.index {
            locks.contention.on_conflict(now, config);
        }
    }

    /// The extent to grant for an extent claim; `None` for other kinds.
    pub fn grown(&mut self, now: Instant, claim: &Claim, config: &NamespaceConfig) -> Option<Extent> {
        match (&mut self.index, claim) {
            (Index::Extent(locks), Claim::Extent(c)) => Some(locks.grown(now, c, config)),
            _ => None,
        }
    }
}
