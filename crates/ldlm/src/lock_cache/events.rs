//! What the server says: grants, refusals, callbacks, restarts, evictions; in any order, any number of times.
use alloc::vec::Vec;
use types::{HandleId, Instant};

use super::{CacheAction, LockCache, State};
use crate::LockMode;
use crate::lock::{
    DenyReason, EnqueueFlags, EnqueueOutcome, EnqueueRequest, InodeBits, LockCookie, LockDesc, LockPolicyData,
    ResourceId,
};
use crate::namespace::LockReplay;

/// What a blocking callback met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockingOutcome {
    /// No such lock: a cancel was sent.
    Unknown,
    /// The grant is not here yet: the lock goes back after its first use.
    Pending,
    /// In use: it goes back when the users are done. Flushing dirty data may start already.
    Busy,
    /// [`CacheAction::Revoke`] is out, now or already.
    Revoking,
    /// What it wants was given back before: a late message.
    Answered,
}

impl LockCache {
    /// The reply to an enqueue.
    pub fn on_reply(
        &mut self,
        now: Instant,
        resource: ResourceId,
        cookie: LockCookie,
        outcome: EnqueueOutcome,
        out: &mut Vec<CacheAction>,
    ) {
        match outcome {
            EnqueueOutcome::Granted(lock) => self.on_granted(now, lock, out),
            EnqueueOutcome::Waiting(handle) => self.on_waiting(resource, cookie, handle, out),
            EnqueueOutcome::Denied(reason) => {
                if self.locks.get(&cookie).is_some_and(|e| e.state == State::Pending) {
                    self.remove(cookie);
                    out.push(CacheAction::Denied { cookie, reason });
                }
            }
        }
    }

    fn on_waiting(&mut self, resource: ResourceId, cookie: LockCookie, handle: HandleId, out: &mut Vec<CacheAction>) {
        let Some(entry) = self.locks.get_mut(&cookie) else { return self.stray(resource, handle, out) };
        if entry.state != State::Pending {
            return; // the completion was faster
        }
        entry.desc.handle = handle;
        if entry.users == 0 {
            self.send_cancel(cookie, out); // everybody gave up
        }
    }

    /// Whether a grant that has come will be held: its request is under way, and it does not go back unused.
    #[must_use]
    pub fn awaits(&self, lock: &LockDesc) -> bool {
        self.locks.get(&lock.cookie).is_some_and(|e| {
            let fits = lock.resource == e.desc.resource && lock.mode.covers(e.desc.mode);
            e.state == State::Pending && fits && lock.data.contains(&e.desc.data) && (e.users > 0 || !e.called)
        })
    }

    /// A grant: by reply or by completion callback, whichever comes first.
    pub fn on_granted(&mut self, now: Instant, lock: LockDesc, out: &mut Vec<CacheAction>) {
        let cookie = lock.cookie;
        let Some(entry) = self.locks.get_mut(&cookie) else { return self.stray(lock.resource, lock.handle, out) };
        if entry.state != State::Pending {
            if entry.desc.handle != lock.handle {
                self.stray(lock.resource, lock.handle, out);
            }
            return;
        }
        let fits = lock.resource == entry.desc.resource && lock.mode.covers(entry.desc.mode);
        if !fits || !lock.data.contains(&entry.desc.data) {
            // Not a grant of this request, whatever it is: a server that is wrong must not hang programs.
            self.remove(cookie);
            self.stray(lock.resource, lock.handle, out);
            return out.push(CacheAction::Denied { cookie, reason: DenyReason::Invalid });
        }
        entry.desc = lock;
        entry.last_used = now;
        let (users, called) = (entry.users, entry.called);
        entry.state = if called { State::Revoking } else { State::Granted };
        if let Some(held) = self.resources.get_mut(&lock.resource) {
            held.pending.remove(&cookie);
            if called {
                held.revoking.insert(cookie);
            }
        }
        if users > 0 {
            out.push(CacheAction::Granted(lock));
        }
        match (called, users) {
            (true, 0) => self.send_cancel(cookie, out), // never used: nothing to flush
            (true, _) => {}
            (false, _) => {
                self.index(&lock);
                if users == 0 {
                    self.lru.insert((now, cookie));
                    self.trim(now, out);
                }
            }
        }
    }

    /// The server wants `wanted` of a lock back, for a lock of `wanted_mode`. An inode-bit lock keeps its other bits; a write
    /// lock on an extent becomes a read lock if that does not stand against it.
    pub fn on_blocking(
        &mut self,
        handle: HandleId,
        cookie: LockCookie,
        resource: ResourceId,
        wanted_mode: LockMode,
        wanted: &LockPolicyData,
        out: &mut Vec<CacheAction>,
    ) -> BlockingOutcome {
        self.stats.callbacks += 1;
        if let Some(called) = self.reserved.get_mut(&cookie) {
            // A lock that is not of bits goes whole, whatever is wanted.
            called.bits = called.bits.union(wanted.as_bits().unwrap_or(InodeBits::ALL));
            called.lock = Some((resource, handle));
            return BlockingOutcome::Pending;
        }
        let Some(entry) = self.locks.get_mut(&cookie) else {
            self.stray(resource, handle, out);
            return BlockingOutcome::Unknown;
        };
        if entry.state == State::Pending {
            entry.called = true;
            entry.desc.handle = handle;
            entry.wanted(wanted_mode, wanted);
            return BlockingOutcome::Pending;
        }
        if entry.desc.handle != handle {
            self.stray(resource, handle, out);
            return BlockingOutcome::Unknown;
        }
        // Converted since: what it is now is in nobody's way. The server may have been told of it before it was restarted, under
        // the lock's old handle: it is told again.
        let LockDesc { resource, mode, data, .. } = entry.desc;
        let weakened = wanted.as_extent().is_some() && mode.compatible(wanted_mode);
        if weakened || !data.overlaps(wanted) {
            match data.as_bits() {
                Some(keep) => out.push(CacheAction::SendNarrow { resource, handle, keep }),
                None if weakened => out.push(CacheAction::SendConvert { resource, handle, mode }),
                None => {}
            }
            return BlockingOutcome::Answered;
        }
        entry.wanted(wanted_mode, wanted);
        let (keep, keep_mode) = (entry.keep, entry.keep_mode);
        match entry.state {
            State::Revoking => BlockingOutcome::Busy,
            State::Flushing => BlockingOutcome::Revoking,
            State::Pending | State::Granted => self.revoke_but(cookie, keep, keep_mode, out),
        }
    }

    /// Starts a granted lock, or all of it but the bits `keep`, on its way out.
    pub(super) fn revoke(
        &mut self,
        cookie: LockCookie,
        keep: InodeBits,
        out: &mut Vec<CacheAction>,
    ) -> BlockingOutcome {
        self.revoke_but(cookie, keep, None, out)
    }

    /// The same; a write lock may stay in `keep_mode`.
    fn revoke_but(
        &mut self,
        cookie: LockCookie,
        keep: InodeBits,
        keep_mode: Option<LockMode>,
        out: &mut Vec<CacheAction>,
    ) -> BlockingOutcome {
        let entry = self.locks.get_mut(&cookie).expect("only called with a granted lock");
        let (desc, users, last_used) = (entry.desc, entry.users, entry.last_used);
        (entry.keep, entry.keep_mode) = (keep, keep_mode);
        entry.state = State::Revoking;
        if users == 0 {
            out.push(entry.start_flush());
        }
        self.lru.remove(&(last_used, cookie));
        self.unindex(&desc);
        if let Some(held) = self.resources.get_mut(&desc.resource) {
            held.revoking.insert(cookie);
        }
        if users == 0 { BlockingOutcome::Revoking } else { BlockingOutcome::Busy }
    }

    /// The server threw this client out: every lock and request is gone. References that are still held may be
    /// released later or not at all.
    pub fn on_evicted(&mut self, out: &mut Vec<CacheAction>) {
        for (cookie, entry) in core::mem::take(&mut self.locks) {
            out.push(match entry.state {
                State::Pending => CacheAction::Denied { cookie, reason: DenyReason::Evicted },
                _ => CacheAction::Lost(entry.desc),
            });
        }
        self.resources.clear();
        self.reserved.clear();
        self.abandoned.clear();
        self.lru.clear();
    }

    /// The server came back without memory: the locks to replay, oldest first (those on their way out too, for what
    /// is cached under them is not flushed yet).
    #[must_use]
    pub fn for_replay(&self) -> Vec<LockReplay> {
        let held = self.locks.values().filter(|e| e.state != State::Pending);
        held.map(|e| {
            let LockDesc { cookie, resource, mode, data, .. } = e.desc;
            LockReplay { cookie, resource, mode, data }
        })
        .collect()
    }

    /// The requests to send again after the replay, oldest first.
    #[must_use]
    pub fn for_resend(&self) -> Vec<EnqueueRequest> {
        let pending = self.locks.values().filter(|e| e.state == State::Pending);
        pending
            .map(|e| {
                let d = &e.desc;
                EnqueueRequest::new(d.cookie, d.resource, d.mode, d.data).flags(e.flags)
            })
            .collect()
    }

    /// The answer to a replayed lock: its new handle, or `None` when the server refused it.
    pub fn on_replayed(&mut self, cookie: LockCookie, handle: Option<HandleId>, out: &mut Vec<CacheAction>) {
        if let Some(handle) = handle {
            if let Some(entry) = self.locks.get_mut(&cookie).filter(|e| e.state != State::Pending) {
                entry.desc.handle = handle;
            }
        } else if let Some(entry) = self.remove(cookie) {
            out.push(CacheAction::Lost(entry.desc));
        }
    }

    pub(super) fn stray(&mut self, resource: ResourceId, handle: HandleId, out: &mut Vec<CacheAction>) {
        if handle.0 != 0 {
            self.stats.strays += 1;
            out.push(CacheAction::SendCancel { resource, handle });
        }
    }

    /// Whether a request waits with these flags: a driver's question when a reply is late.
    #[must_use]
    pub fn is_pending(&self, cookie: LockCookie) -> Option<EnqueueFlags> {
        self.locks.get(&cookie).filter(|e| e.state == State::Pending).map(|e| e.flags)
    }
}
