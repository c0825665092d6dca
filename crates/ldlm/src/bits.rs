//! The inode-bit locks of one inode: who stands in whose way.
//!
//! Locks of one client never conflict with each other (the client orders its own operations), and a lock that the
//! server takes on behalf of a client does not conflict with that client's locks. Server-side locks do conflict with
//! each other, whoever they serve.
//! Cost: O(bits x modes x log n); 100,000 readers of one directory do not slow down the next.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use types::{ClientId, HandleId};

use crate::LockMode;
use crate::lock::{InodeBits, LOCAL};

/// One lock as the index sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitClaim {
    pub handle: HandleId,
    pub mode: LockMode,
    pub bits: InodeBits,
    pub party: Party,
}

/// Who holds or wants a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Party {
    pub client: ClientId,
    pub on_behalf: Option<ClientId>,
}

impl Party {
    /// Whether locks of both never conflict.
    pub fn is_with(&self, other: &Party) -> bool {
        match (self.client == LOCAL, other.client == LOCAL) {
            (false, false) => self.client == other.client,
            (true, true) => false,
            (true, false) => self.on_behalf == Some(other.client),
            (false, true) => other.on_behalf == Some(self.client),
        }
    }
}

/// (bit number, mode value, handle): all locks of one bit and mode are neighbours, oldest first.
type Key = (u8, u8, u64);

/// Locks by bit and mode.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitIndex {
    locks: BTreeMap<Key, Party>,
    /// How many entries of `locks` each mode has: most modes are absent most of the time.
    by_mode: [u32; 7],
}

impl BitIndex {
    pub fn insert(&mut self, claim: &BitClaim) {
        for bit in claim.bits.each() {
            self.locks.insert((bit, claim.mode as u8, claim.handle.0), claim.party);
            self.by_mode[claim.mode.index()] += 1;
        }
    }

    pub fn remove(&mut self, claim: &BitClaim) -> bool {
        let mut found = false;
        for bit in claim.bits.each() {
            if self.locks.remove(&(bit, claim.mode as u8, claim.handle.0)).is_some() {
                self.by_mode[claim.mode.index()] -= 1;
                found = true;
            }
        }
        found
    }

    /// Whether `client` has a lock on one of `bits`.
    pub fn has(&self, client: ClientId, bits: InodeBits) -> bool {
        let all = |bit| self.locks.range((bit, 0, 0)..=(bit, u8::MAX, u64::MAX));
        bits.each().any(|bit| all(bit).any(|(_, p)| p.client == client))
    }

    /// (bit, mode) pairs in which a conflict with `claim` is possible.
    fn pairs(&self, claim: &BitClaim) -> impl Iterator<Item = (u8, u8)> {
        let modes = LockMode::each(claim.mode.conflicts()).filter(|m| self.by_mode[m.index()] > 0);
        modes.flat_map(move |m| claim.bits.each().map(move |b| (b, m as u8)))
    }

    /// The latest conflicting lock before `seq_end`.
    fn latest(&self, claim: &BitClaim, seq_end: u64) -> Option<HandleId> {
        let one = |(bit, mode): (u8, u8)| {
            let mut older = self.locks.range((bit, mode, 0)..(bit, mode, seq_end)).rev();
            older.find(|(k, p)| k.2 != claim.handle.0 && !p.is_with(&claim.party)).map(|(k, _)| k.2)
        };
        self.pairs(claim).filter_map(one).max().map(HandleId)
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitLocks {
    pub granted: BitIndex,
    pub waiting: BitIndex,
    /// Granted locks that were not called back yet.
    fresh: BTreeSet<Key>,
}

impl BitLocks {
    pub fn blocker(&self, claim: &BitClaim) -> Option<HandleId> {
        self.granted_blocker(claim).or_else(|| self.waiting.latest(claim, claim.handle.0))
    }

    pub fn granted_blocker(&self, claim: &BitClaim) -> Option<HandleId> {
        self.granted.latest(claim, u64::MAX)
    }

    pub fn any_waiter(&self, claim: &BitClaim) -> Option<HandleId> {
        self.waiting.latest(claim, u64::MAX)
    }

    pub fn grant(&mut self, claim: &BitClaim) {
        self.granted.insert(claim);
        self.set_fresh(claim, true);
    }

    pub fn ungrant(&mut self, claim: &BitClaim) -> bool {
        self.set_fresh(claim, false);
        self.granted.remove(claim)
    }

    pub fn set_fresh(&mut self, claim: &BitClaim, fresh: bool) {
        for bit in claim.bits.each() {
            let key = (bit, claim.mode as u8, claim.handle.0);
            if fresh {
                self.fresh.insert(key)
            } else {
                self.fresh.remove(&key)
            };
        }
    }

    /// Granted conflicting locks that nobody called back yet; a lock may be named once per bit.
    pub fn fresh_conflicts(&self, claim: &BitClaim, into: &mut Vec<HandleId>) {
        for (bit, mode) in self.granted.pairs(claim) {
            for key in self.fresh.range((bit, mode, 0)..=(bit, mode, u64::MAX)) {
                let with = self.granted.locks.get(key).is_some_and(|p| p.is_with(&claim.party));
                if key.2 != claim.handle.0 && !with {
                    into.push(HandleId(key.2));
                }
            }
        }
    }
}
