//! Which unused locks leave: over the limit, too old, under memory pressure, or because the next request would have
//! them called back anyway (early cancel).
//!
//! Source: the LRU of the field's lock caches with the frequency idea of LFRU: an old lock with many uses goes round
//! once more with half its count.
use alloc::vec::Vec;
use types::{HandleId, Instant};

use super::{CacheAction, LockCache, State};
use crate::LockMode;
use crate::lock::{InodeBits, LockCookie, LockDesc, LockPolicyData, ResourceId};

impl LockCache {
    /// Cancels what is over `lru_max`.
    pub(super) fn trim(&mut self, now: Instant, out: &mut Vec<CacheAction>) {
        while self.lru.len() > self.config.lru_max {
            let Some(victim) = self.victim(now) else { return };
            self.stats.limit_hits += 1;
            self.revoke(victim, InodeBits::NONE, out);
        }
    }

    /// Cancels unused locks that are too old, and what is over a limit that was lowered. Call now and then.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<CacheAction>) {
        for (resource, handle) in core::mem::take(&mut self.abandoned) {
            self.stray(resource, handle, out);
        }
        while let Some((used, cookie)) = self.lru.first().copied() {
            if now.since(used) < self.config.lru_age_max {
                break;
            }
            self.stats.limit_hits += 1;
            self.revoke(cookie, InodeBits::NONE, out);
        }
        self.trim(now, out);
    }

    /// Memory is short: cancels up to `want` unused locks, oldest and coldest first. Answers how many.
    pub fn shrink(&mut self, now: Instant, want: usize, out: &mut Vec<CacheAction>) -> usize {
        let mut done = 0;
        while done < want
            && let Some(victim) = self.victim(now)
        {
            self.revoke(victim, InodeBits::NONE, out);
            done += 1;
        }
        self.stats.shrunk += done as u64;
        done
    }

    /// Starts the unused locks on `resource` that would stand in the way of a request on their way out, at most
    /// `early_cancels_max`. Clean up for each one, then put [`LockCache::cancelled_early`]'s handle into the request.
    pub fn early_cancels(&mut self, resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> Vec<LockDesc> {
        let mut victims: Vec<LockCookie> = Vec::new();
        let max = self.config.early_cancels_max;
        let Some(held) = self.resources.get(&resource) else { return Vec::new() };
        let unused = |c: &LockCookie| self.locks.get(c).is_some_and(|e| e.users == 0);
        match data.as_extent() {
            Some(extent) => {
                for (_, index) in held.extents.of(mode.conflicts()) {
                    index.visit(extent, &mut |e| {
                        if unused(&LockCookie(e.seq)) {
                            victims.push(LockCookie(e.seq));
                        }
                        victims.len() < max
                    });
                }
            }
            None => {
                let conflicts = |c: &&LockCookie| {
                    let desc = self.locks.get(c).map(|e| e.desc);
                    desc.is_some_and(|d| !d.mode.compatible(mode) && d.data.overlaps(data))
                };
                victims.extend(held.bits.iter().filter(conflicts).filter(|c| unused(c)).take(max));
            }
        }
        victims.truncate(max);
        let mut revoked = Vec::new();
        for victim in victims {
            self.revoke(victim, InodeBits::NONE, &mut revoked);
        }
        let desc = |a| if let CacheAction::Revoke { lock, .. } = a { Some(lock) } else { None };
        revoked.into_iter().filter_map(desc).collect()
    }

    /// The lock of an early cancel is clean: forgotten here, its handle for the request. `None` when it is gone, or
    /// was used meanwhile (then it goes the ordinary way: [`CacheAction::Revoke`] follows, in `out` or at release).
    pub fn cancelled_early(
        &mut self,
        now: Instant,
        cookie: LockCookie,
        out: &mut Vec<CacheAction>,
    ) -> Option<HandleId> {
        let entry = self.locks.get(&cookie).filter(|e| e.state == State::Flushing)?;
        if entry.served {
            self.flushed(now, cookie, out);
            return None;
        }
        self.stats.cancels += 1;
        self.remove(cookie).map(|e| e.desc.handle)
    }

    /// The next unused lock to leave. A hot one goes to the young end first, once per halving of its uses.
    fn victim(&mut self, now: Instant) -> Option<LockCookie> {
        loop {
            let (used, cookie) = self.lru.first().copied()?;
            let entry = self.locks.get_mut(&cookie).expect("the LRU names locks of this cache");
            if entry.uses < self.config.hot_uses.max(1) || used >= now {
                return Some(cookie);
            }
            entry.uses /= 2;
            entry.last_used = now;
            self.lru.remove(&(used, cookie));
            self.lru.insert((now, cookie));
        }
    }
}
