//! Clients that go and come back: eviction and lock replay.
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use types::{ClientId, HandleId, Instant};

use super::{Lock, Namespace, State};
use crate::LockMode;
use crate::lock::{Action, EnqueueRequest, LockCookie, LockDesc, LockPolicyData, ResourceId};

/// What an eviction took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Granted locks.
    pub granted: usize,
    /// Waiting locks.
    pub waiting: usize,
    /// Flock ranges and waiting flock requests.
    pub flocks: usize,
}

/// A granted lock that a client still has when its server comes back without memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockReplay {
    /// The client's name; stays.
    pub cookie: LockCookie,
    /// On what.
    pub resource: ResourceId,
    /// How.
    pub mode: LockMode,
    /// Which part, exactly as it was granted.
    pub data: LockPolicyData,
}

impl Namespace {
    /// Everything of a client goes: granted locks, waiting ones, flocks. Whoever waited for it is granted.
    /// For eviction, and for a client that says goodbye. The client itself gets no message from here.
    pub fn evict(&mut self, now: Instant, client: ClientId, out: &mut Vec<Action>) -> Evicted {
        let mut gone = Evicted::default();
        let handles: Vec<HandleId> = self.clients.get(&client).into_iter().flat_map(|m| m.values().copied()).collect();
        let mut woken = BTreeSet::new();
        for handle in handles {
            match self.locks.get(&handle).map(|l| l.state) {
                Some(State::Granted) => gone.granted += 1,
                Some(State::Waiting) => gone.waiting += 1,
                None => continue,
            }
            woken.extend(self.remove(handle));
        }
        self.settle(now, woken, out);
        gone.flocks = self.flocks.evict(client, out);
        self.stats.evictions += 1;
        gone
    }

    /// Puts a granted lock back as it was, without growth. To be called before any new enqueue is let in. The answer
    /// is the new handle; a repetition gets the same one.
    ///
    /// # Errors
    /// The lock of another client that stands against it (this client was presumed dead and must drop its lock and
    /// what it cached under it), or `None` when the replay is malformed or a table is full.
    pub fn replay(
        &mut self,
        now: Instant,
        client: ClientId,
        replay: &LockReplay,
    ) -> Result<HandleId, Option<LockDesc>> {
        if let Some(handle) = self.handle_of(client, replay.cookie) {
            return Ok(handle);
        }
        if !replay.data.is_legal(replay.resource.kind, replay.mode) {
            return Err(None);
        }
        if self.is_full() {
            self.stats.limit_hits += 1;
            return Err(None);
        }
        let req = EnqueueRequest::new(replay.cookie, replay.resource, replay.mode, replay.data);
        let mut lock = Lock::new(HandleId(self.next_handle), client, &req);
        let blocker = self.resources.get(&replay.resource).and_then(|r| r.blocker(&lock.claim()));
        if let Some(blocker) = blocker.and_then(|b| self.locks.get(&b)) {
            self.stats.replay_refused += 1;
            return Err(Some(blocker.desc));
        }
        self.place_granted(now, &mut lock, false);
        let handle = lock.desc.handle;
        self.register(lock);
        self.stats.replayed += 1;
        Ok(handle)
    }
}
