//! Locks that an answer brings along on a resource the client did not know when it asked (look-ups, creates).
//!
//! The cookie is reserved before the request goes out, so that a blocking callback that overtakes the answer is
//! remembered: the lock is then given back at once instead of being trusted.
use alloc::vec::Vec;
use types::Instant;

use super::{CacheAction, Entry, LockCache, State};
use crate::lock::{EnqueueFlags, InodeBits, LockCookie, LockDesc};

impl LockCache {
    /// A cookie for a lock that may come along with an answer. Every one must be given to [`LockCache::adopt`].
    pub fn reserve(&mut self) -> LockCookie {
        let cookie = LockCookie(self.next_cookie);
        self.next_cookie += 1;
        self.reserved.insert(cookie, false);
        cookie
    }

    /// The answer is here: the lock it brought under this cookie, or none.
    pub fn adopt(&mut self, now: Instant, cookie: LockCookie, lock: Option<LockDesc>, out: &mut Vec<CacheAction>) {
        let called = self.reserved.remove(&cookie);
        let Some(desc) = lock else { return };
        if called != Some(false) || self.locks.contains_key(&cookie) {
            return self.stray(desc.resource, desc.handle, out);
        }
        let entry = Entry {
            desc,
            flags: EnqueueFlags::NONE,
            state: State::Granted,
            users: 0,
            called: false,
            keep: InodeBits::ALL,
            keep_told: InodeBits::NONE,
            served: false,
            last_used: now,
            uses: 1,
        };
        self.locks.insert(cookie, entry);
        self.index(&desc);
        self.lru.insert((now, cookie));
        self.trim(now, out);
    }
}
