//! The extent locks of one object: who stands in whose way, and how far a new lock may grow.
//!
//! Decides conflicts and width. Locks of one client conflict with each other by mode like those of two clients (a
//! client's new request calls its own older lock back; it avoids that by cancelling early).
//!
//! Width. A lock grows as far as no conflicting granted or waiting lock is touched, so that one user of a file asks
//! once. When an object sees many conflicts in a short time, wide locks only make everybody wait for everybody:
//! - calm (fewer than `contended_conflicts` in the window): the whole hole, for a lone user `[0, EOF)`;
//! - contended: from the request up to `contended_growth_bytes` past its end, not downwards;
//! - hot (`hot_conflicts` or more): the request, aligned out to `align_bytes` within the hole.
//!
//! A conflicting waiter that overlaps the request itself leaves it exactly as asked.
//! Differs from the usual 32 MiB rule by the third step: strided writers of one file end with disjoint exact locks.
use smallvec::SmallVec;
use types::{Extent, HandleId, Instant};

use crate::LockMode;
use crate::interval::{Entry, IntervalIndex};
use crate::namespace::NamespaceConfig;

/// One lock as the index sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentClaim {
    pub handle: HandleId,
    pub mode: LockMode,
    pub extent: Extent,
    pub gid: u64,
}

/// Extents of several modes: an index per mode that is in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModeIndex {
    modes: SmallVec<[(LockMode, IntervalIndex); 1]>,
}

impl ModeIndex {
    pub fn insert(&mut self, claim: &ExtentClaim) {
        let entry = Entry { extent: claim.extent, seq: claim.handle.0, gid: claim.gid, fresh: true };
        if let Some((_, index)) = self.modes.iter_mut().find(|(m, _)| *m == claim.mode) {
            return index.insert(entry);
        }
        let mut index = IntervalIndex::new();
        index.insert(entry);
        let at = self.modes.iter().position(|(m, _)| *m > claim.mode).unwrap_or(self.modes.len());
        self.modes.insert(at, (claim.mode, index));
    }

    pub fn remove(&mut self, claim: &ExtentClaim) -> bool {
        let Some(at) = self.modes.iter().position(|(m, _)| *m == claim.mode) else { return false };
        let found = self.modes[at].1.remove(claim.extent.start, claim.handle.0);
        if self.modes[at].1.is_empty() {
            self.modes.remove(at);
        }
        found
    }

    pub fn set_fresh(&mut self, claim: &ExtentClaim, fresh: bool) {
        if let Some((_, index)) = self.modes.iter_mut().find(|(m, _)| *m == claim.mode) {
            index.set_fresh(claim.extent.start, claim.handle.0, fresh);
        }
    }

    /// The indexes of the modes in `set`.
    pub fn of(&self, set: u8) -> impl Iterator<Item = (LockMode, &IntervalIndex)> {
        self.modes.iter().filter(move |(m, _)| *m as u8 & set != 0).map(|(m, index)| (*m, index))
    }

    pub fn len(&self) -> usize {
        self.modes.iter().map(|(_, index)| index.len()).sum()
    }
}

/// Whether an entry of mode `mode` stands against `claim`, given that modes and extents do.
fn gid_conflicts(claim: &ExtentClaim, mode: LockMode, entry: &Entry) -> bool {
    !(mode == LockMode::Group && claim.mode == LockMode::Group && entry.gid == claim.gid)
}

/// How often requests for this object had to wait lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contention {
    window_start: Instant,
    conflicts: u32,
}

impl Contention {
    /// Halves the count for each window that passed.
    fn age(&mut self, now: Instant, window_ns: u64) {
        let windows = now.since(self.window_start).as_nanos() as u64 / window_ns.max(1);
        if windows > 0 {
            self.conflicts = self.conflicts.checked_shr(windows.min(32) as u32).unwrap_or(0);
            self.window_start = now;
        }
    }
    pub fn on_conflict(&mut self, now: Instant, config: &NamespaceConfig) {
        self.age(now, config.contention_window.as_nanos() as u64);
        self.conflicts = self.conflicts.saturating_add(1);
    }
    pub fn conflicts(&mut self, now: Instant, config: &NamespaceConfig) -> u32 {
        self.age(now, config.contention_window.as_nanos() as u64);
        self.conflicts
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentLocks {
    pub granted: ModeIndex,
    pub waiting: ModeIndex,
    pub contention: Contention,
}

impl ExtentLocks {
    /// A lock that `claim` must wait for: a conflicting granted one, else the latest conflicting waiter before it.
    pub fn blocker(&self, claim: &ExtentClaim) -> Option<HandleId> {
        self.granted_blocker(claim).or_else(|| self.waiting_blocker(claim))
    }

    pub fn granted_blocker(&self, claim: &ExtentClaim) -> Option<HandleId> {
        if types::planted!("lock-in-conflict") {
            return None;
        }
        let mut found = None;
        for (mode, index) in self.granted.of(claim.mode.conflicts()) {
            index.visit(claim.extent, &mut |e| {
                if e.seq != claim.handle.0 && gid_conflicts(claim, mode, e) {
                    found = Some(HandleId(e.seq));
                }
                found.is_none()
            });
            if found.is_some() {
                break;
            }
        }
        found
    }

    pub fn waiting_blocker(&self, claim: &ExtentClaim) -> Option<HandleId> {
        let modes = self.waiting.of(claim.mode.conflicts());
        modes
            .filter_map(|(mode, index)| {
                index.latest(claim.extent, claim.handle.0, &|e| gid_conflicts(claim, mode, e)).map(HandleId)
            })
            .max()
    }

    /// Granted conflicting locks that nobody called back yet.
    pub fn fresh_conflicts(&self, claim: &ExtentClaim, into: &mut alloc::vec::Vec<HandleId>) {
        for (mode, index) in self.granted.of(claim.mode.conflicts()) {
            index.visit_fresh(claim.extent, &mut |e| {
                if e.seq != claim.handle.0 && gid_conflicts(claim, mode, e) {
                    into.push(HandleId(e.seq));
                }
                true
            });
        }
    }

    /// A waiter that conflicts with `claim`, wherever it stands in the queue.
    pub fn any_waiter(&self, claim: &ExtentClaim) -> Option<HandleId> {
        let mut found = None;
        for (mode, index) in self.waiting.of(claim.mode.conflicts()) {
            index.visit(claim.extent, &mut |e| {
                if e.seq != claim.handle.0 && gid_conflicts(claim, mode, e) {
                    found = Some(HandleId(e.seq));
                }
                found.is_none()
            });
        }
        found
    }

    /// The extent to grant for `claim`, which nothing granted conflicts with and which is in neither index now.
    pub fn grown(&mut self, now: Instant, claim: &ExtentClaim, config: &NamespaceConfig) -> Extent {
        let asked = claim.extent;
        if claim.mode == LockMode::Group || claim.mode == LockMode::Nl || self.any_waiter(claim).is_some() {
            return asked;
        }
        let (mut lo, mut hi) = (0, u64::MAX);
        for index in [&self.granted, &self.waiting] {
            for (_, tree) in index.of(claim.mode.conflicts()) {
                lo = lo.max(tree.end_before(asked.start));
                hi = hi.min(tree.start_from(asked.end));
            }
        }
        assert!(lo <= asked.start && hi >= asked.end, "a conflicting lock overlaps a request that is being granted");
        let hole = Extent::new(lo, hi);
        let conflicts = self.contention.conflicts(now, config);
        let wish = if conflicts < config.contended_conflicts {
            return hole;
        } else if conflicts < config.hot_conflicts {
            Extent::new(asked.start, asked.end.saturating_add(config.contended_growth_bytes))
        } else {
            asked
        };
        let wish = wish.align_out(config.align_bytes);
        Extent::new(wish.start.max(lo), wish.end.min(hi))
    }
}
