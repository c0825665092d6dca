//! Locks that an answer brings along on a resource the client did not know when it asked (look-ups, creates).
//!
//! The cookie is reserved before the request goes out, and the server enqueues for it with `NOWAIT`. A blocking
//! callback that overtakes the answer is remembered under the cookie: the lock is then given back at once instead of
//! being trusted.
use alloc::vec::Vec;
use smallvec::SmallVec;
use types::{Extent, HandleId, Instant};

use super::{CacheAction, Entry, LockCache, State};
use crate::LockMode;
use crate::lock::{EnqueueFlags, InodeBits, LockCookie, LockDesc, LockPolicyData, ResourceId};

/// The lock without the bits that were called back while it was on its way, and whether it is whole; `None`: nothing
/// is left.
fn left_of(desc: LockDesc, wanted: InodeBits) -> Option<(LockDesc, bool)> {
    if wanted.is_empty() {
        return Some((desc, true));
    }
    let bits = desc.data.as_bits()?;
    let left = bits.minus(wanted);
    if left.is_empty() {
        return None;
    }
    Some((LockDesc { data: LockPolicyData::bits(left), ..desc }, left == bits))
}

/// What was called back under a reserved cookie.
#[derive(Clone, Default, Debug)]
pub(super) struct Called {
    pub bits: InodeBits,
    /// The lock that the server granted; `None`: nothing was called back.
    pub lock: Option<(ResourceId, HandleId)>,
}

impl LockCache {
    /// A cookie for a lock that may come along with an answer. Every one must be given to [`LockCache::adopt`], also
    /// when the request failed, or to [`LockCache::abandon`].
    pub fn reserve(&mut self) -> LockCookie {
        let cookie = LockCookie(self.next_cookie);
        self.next_cookie += 1;
        self.reserved.insert(cookie, Called::default());
        cookie
    }

    /// As [`LockCache::reserve`], `n` of them: the first, and the others count up from it.
    pub fn reserve_run(&mut self, n: u64) -> LockCookie {
        let first = self.next_cookie;
        self.next_cookie += n;
        self.reserved.extend((first..first + n).map(|c| (LockCookie(c), Called::default())));
        LockCookie(first)
    }

    /// Nobody waits for the answers of `n` reserved cookies any more. What was called back under one goes back with the next
    /// [`LockCache::tick`]; a lock that was not, when it is called back. Does nothing about cookies that were adopted.
    pub fn abandon(&mut self, first: LockCookie, n: u64) {
        while let Some((cookie, _)) = self.reserved.range(first..LockCookie(first.0 + n)).next() {
            let called = self.reserved.remove(&{ *cookie });
            self.abandoned.extend(called.and_then(|c| c.lock));
        }
    }

    /// Whether the answer that this cookie is for is still on its way.
    #[must_use]
    pub fn is_reserved(&self, cookie: LockCookie) -> bool {
        self.reserved.contains_key(&cookie)
    }

    /// The answer is here: the lock it brought under this cookie, or none. True: the lock is held, whole and unused;
    /// what the answer says may be cached under it. False: what the answer says was true when it was sent, and that is
    /// all. A lock that was called back on its way keeps the bits that nobody wanted. Locks that the new one covers are
    /// given back.
    pub fn adopt(
        &mut self,
        now: Instant,
        cookie: LockCookie,
        lock: Option<LockDesc>,
        out: &mut Vec<CacheAction>,
    ) -> bool {
        let called = self.reserved.remove(&cookie);
        let Some(desc) = lock else { return false };
        if self.locks.get(&cookie).is_some_and(|e| e.desc.handle == desc.handle) {
            return false; // the answer came twice; the lock is in use under this very handle
        }
        let legal = desc.cookie == cookie && desc.data.is_legal(desc.resource.kind, desc.mode);
        let Some((desc, whole)) = called.filter(|_| legal).and_then(|called| left_of(desc, called.bits)) else {
            // Called back before it came, from before an eviction, or nonsense.
            self.stray(desc.resource, desc.handle, out);
            return false;
        };
        let entry = Entry { users: 0, ..Entry::new(desc, EnqueueFlags::NOWAIT, State::Granted, now) };
        self.locks.insert(cookie, entry);
        self.supersede(&desc, out);
        self.index(&desc);
        self.lru.insert((now, cookie));
        if !whole {
            self.stats.narrowed += 1;
            let keep = desc.data.as_bits().unwrap_or(InodeBits::NONE);
            out.push(CacheAction::SendNarrow { resource: desc.resource, handle: desc.handle, keep });
        }
        self.trim(now, out);
        whole
    }

    /// Unused inode-bit locks that `newer` covers go: whatever is cached under them is cached under it.
    fn supersede(&mut self, newer: &LockDesc, out: &mut Vec<CacheAction>) {
        let Some(held) = self.resources.get(&newer.resource) else { return };
        let covered = |c: &&LockCookie| {
            let entry = self.locks.get(c).filter(|e| e.users == 0);
            entry.is_some_and(|e| super::covers(newer, e.desc.mode, &e.desc.data))
        };
        let old: SmallVec<[LockCookie; 2]> = held.bits.iter().filter(covered).copied().collect();
        for cookie in old {
            self.send_cancel(cookie, out);
        }
    }

    /// Unused locks on a resource go: what they cover is of no interest any more.
    pub fn give_up(&mut self, resource: ResourceId, out: &mut Vec<CacheAction>) {
        let Some(held) = self.resources.get(&resource) else { return };
        let unused = |c: &&LockCookie| self.locks.get(c).is_some_and(|e| e.users == 0);
        let mut all: SmallVec<[LockCookie; 2]> = held.bits.iter().filter(unused).copied().collect();
        for (_, index) in held.extents.of(LockMode::ALL.into_iter().fold(0, |set, m| set | m as u8)) {
            index.visit(Extent::ALL, &mut |e| {
                all.extend(Some(LockCookie(e.seq)).filter(|c| unused(&c)));
                true
            });
        }
        for cookie in all {
            self.revoke(cookie, InodeBits::NONE, out);
        }
    }

    /// Whether a held lock covers all of it: a question, not a use.
    #[must_use]
    pub fn holds(&self, resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> bool {
        self.matching(resource, mode, data).is_some()
    }

    /// A lock at the server, held or on its way out, that covers all of it: what a write-out names as its right. Takes
    /// no reference: whoever flushes under a lock does so before it is given back.
    #[must_use]
    pub fn peek(&self, resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> Option<LockDesc> {
        let leaving = || {
            let held = self.resources.get(&resource)?;
            held.revoking
                .iter()
                .find(|c| self.locks.get(c).is_some_and(|e| super::covers(&e.desc, mode, data)))
                .copied()
        };
        let cookie = self.matching(resource, mode, data).or_else(leaving)?;
        self.get(cookie)
    }
}
