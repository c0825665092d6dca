//! Locks that an answer brings along on a resource the client did not know when it asked (look-ups, creates).
//!
//! The cookie is reserved before the request goes out, and the server enqueues for it with `NOWAIT`. A blocking
//! callback that overtakes the answer is remembered under the cookie: the lock is then given back at once instead of
//! being trusted.
use alloc::vec::Vec;
use types::Instant;

use super::{CacheAction, Entry, LockCache, State};
use crate::LockMode;
use crate::lock::{EnqueueFlags, InodeBits, LockCookie, LockDesc, LockPolicyData, ResourceId};

impl LockCache {
    /// A cookie for a lock that may come along with an answer. Every one must be given to [`LockCache::adopt`], also
    /// when the request failed.
    pub fn reserve(&mut self) -> LockCookie {
        let cookie = LockCookie(self.next_cookie);
        self.next_cookie += 1;
        self.reserved.insert(cookie, false);
        cookie
    }

    /// The answer is here: the lock it brought under this cookie, or none. True: the lock is held, unused; what the
    /// answer says may be cached under it. False: what the answer says was true when it was sent, and that is all.
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
        let takes = called == Some(false) && desc.cookie == cookie;
        if !takes || !desc.data.is_legal(desc.resource.kind, desc.mode) {
            // Called back before it came, from before an eviction, or nonsense.
            self.stray(desc.resource, desc.handle, out);
            return false;
        }
        let (state, users, uses, last_used) = (State::Granted, 0, 1, now);
        let (called, served, keep, keep_told) = (false, false, InodeBits::ALL, InodeBits::NONE);
        let flags = EnqueueFlags::NOWAIT;
        let entry = Entry { desc, flags, state, users, called, keep, keep_told, served, last_used, uses };
        self.locks.insert(cookie, entry);
        self.index(&desc);
        self.lru.insert((now, cookie));
        self.trim(now, out);
        true
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
