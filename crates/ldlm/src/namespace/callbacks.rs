//! Blocking callbacks: sending, deadlines, progress, repetition.
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use types::{ClientId, Extent, HandleId, Instant};

use super::{Called, Lock, Namespace, State};
use crate::LockMode;
use crate::lock::{Action, InodeBits, LockPolicyData};

/// A holder that did not answer its callback in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expired {
    /// The client to evict.
    pub client: ClientId,
    /// The first of its locks that is late.
    pub handle: HandleId,
}

impl Lock {
    /// The callback that is out for this lock.
    pub(super) fn blocking_message(&self) -> Option<Action> {
        let called = self.called.as_ref()?;
        Some(Action::SendBlocking {
            client: self.party.client,
            lock: self.desc,
            wanted_mode: called.wanted_mode,
            wanted: called.wanted,
            deadline: called.deadline,
        })
    }
}

/// Most locks that are called back at a time to make room.
const ROOM_MAX: usize = 4096;

impl Namespace {
    /// Whether a request need not wait for `blocker`, which waits itself: the client that it serves has a lock called back here.
    pub(super) fn overtakes(&self, lock: &Lock, blocker: HandleId) -> bool {
        let Some(served) = lock.party.on_behalf else { return false };
        let called = |l: &Lock| l.party.client == served && l.desc.resource == lock.desc.resource;
        let waits = self.locks.get(&blocker).is_some_and(|l| l.state == State::Waiting);
        waits && self.deadlines.iter().filter_map(|(_, called)| self.locks.get(called)).any(called)
    }

    /// Whether a lock of a client is called back, and was neither given back nor changed since.
    #[must_use]
    pub fn is_called_back(&self, client: ClientId, handle: HandleId) -> bool {
        self.locks.get(&handle).is_some_and(|lock| lock.party.client == client && lock.called.is_some())
    }

    /// Calls a granted lock back, once.
    pub(super) fn call_back(
        &mut self,
        now: Instant,
        holder: HandleId,
        wanted_mode: LockMode,
        wanted: LockPolicyData,
        out: &mut Vec<Action>,
    ) {
        let Some(lock) = self.locks.get_mut(&holder) else { return };
        if lock.called.is_some() {
            return;
        }
        let claim = lock.claim();
        if !Self::is_local(lock.party.client) {
            let deadline = now + self.config.callback_timeout;
            lock.called = Some(Called { since: now, deadline, wanted_mode, wanted, whole: false });
            self.deadlines.insert((deadline, holder));
            self.stats.callbacks += 1;
            out.extend(lock.blocking_message());
        }
        if let Some(resource) = self.resources.get_mut(&lock.desc.resource) {
            resource.set_fresh(&claim, false);
        }
    }

    /// Calls a granted lock back as if somebody wanted its whole resource exclusively, also if less of it was called back before.
    pub(super) fn call_back_whole(&mut self, now: Instant, holder: HandleId, out: &mut Vec<Action>) {
        let Some(lock) = self.locks.get_mut(&holder) else { return };
        if let Some(before) = lock.called.take() {
            self.deadlines.remove(&(before.deadline, holder));
        }
        let wanted = match lock.desc.data {
            LockPolicyData::Extent { .. } => LockPolicyData::extent(Extent::ALL),
            LockPolicyData::Inodebits { .. } => LockPolicyData::bits(InodeBits::ALL),
        };
        self.call_back(now, holder, LockMode::Ex, wanted, out);
        if let Some(called) = self.locks.get_mut(&holder).and_then(|lock| lock.called.as_mut()) {
            called.whole = true;
        }
    }

    /// What clients keep under their locks counts no more: calls every lock back as a whole, those too of which a part is called back
    /// already. Answers how many.
    pub fn recall_all(&mut self, now: Instant, out: &mut Vec<Action>) -> usize {
        let is_kept = |l: &Lock| {
            l.state == State::Granted && !Self::is_local(l.party.client) && l.called.is_none_or(|c| !c.whole)
        };
        let kept: BTreeSet<HandleId> = self.locks.values().filter(|l| is_kept(l)).map(|l| l.desc.handle).collect();
        kept.iter().for_each(|handle| self.call_back_whole(now, *handle, out));
        kept.len()
    }

    /// The holder works under the lock (a write or read RPC arrived, or it said so): its deadline starts anew, up to
    /// `callback_total_max` after the callback. Cheap when nothing is out: call it for every bulk RPC.
    pub fn on_progress(&mut self, now: Instant, client: ClientId, handle: HandleId) {
        let (timeout, total) = (self.config.callback_timeout, self.config.callback_total_max);
        let Some(lock) = self.locks.get_mut(&handle) else { return };
        let Some(called) = lock.called.as_mut().filter(|_| lock.party.client == client) else { return };
        let deadline = (now + timeout).min(called.since + total).max(called.deadline);
        if deadline != called.deadline {
            self.deadlines.remove(&(called.deadline, handle));
            called.deadline = deadline;
            self.deadlines.insert((deadline, handle));
            self.stats.progressed += 1;
        }
    }

    /// The server keeps a client from answering: its callbacks' deadlines start anew, up to `callback_total_max` after each.
    pub fn on_held_up(&mut self, now: Instant, client: ClientId) {
        let is_its = |h: &HandleId| self.locks.get(h).is_some_and(|lock| lock.party.client == client);
        let called: Vec<HandleId> = self.deadlines.iter().map(|(_, handle)| *handle).filter(is_its).collect();
        called.into_iter().for_each(|handle| self.on_progress(now, client, handle));
    }

    /// The client is told of its grant only now, or still cannot be: if it was called back already, its time begins anew.
    pub fn on_told(&mut self, now: Instant, client: ClientId, handle: HandleId) {
        let deadline = now + self.config.callback_timeout;
        let Some(lock) = self.locks.get_mut(&handle).filter(|l| l.party.client == client) else { return };
        let Some(called) = lock.called.as_mut() else { return };
        self.deadlines.remove(&(called.deadline, handle));
        (called.since, called.deadline) = (now, deadline);
        self.deadlines.insert((deadline, handle));
    }

    /// This node stood still and is awake since `awake`: who was called back before has its time from then on.
    pub fn on_overslept(&mut self, awake: Instant) {
        let deadline = awake + self.config.callback_timeout;
        let due: Vec<_> = self.deadlines.iter().take_while(|(at, _)| *at < deadline).copied().collect();
        for (at, handle) in due {
            let called = self.locks.get_mut(&handle).and_then(|lock| lock.called.as_mut());
            let Some(called) = called.filter(|c| c.since < awake) else { continue };
            called.deadline = deadline;
            self.deadlines.remove(&(at, handle));
            self.deadlines.insert((deadline, handle));
        }
    }

    /// The next time at which [`Namespace::on_blocking_timeout`] may have something to say.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Clients that are late at `now`, each once, longest overdue first. They stay late until they are evicted, cancel, or
    /// make progress: of whom the driver itself keeps from it, it says so ([`crate::Patience`]).
    #[must_use]
    pub fn on_blocking_timeout(&self, now: Instant) -> Vec<Expired> {
        let mut seen: BTreeSet<ClientId> = BTreeSet::new();
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        let late = due.filter_map(|(_, handle)| self.locks.get(handle));
        let first = late.filter(|lock| seen.insert(lock.party.client));
        first.map(|lock| Expired { client: lock.party.client, handle: lock.desc.handle }).collect()
    }

    /// The table fills up: calls back the `want` oldest grants that nobody called back yet, as if somebody wanted the
    /// whole resource exclusively. Answers how many. Call it when [`Namespace::len`] nears `locks_max`.
    pub fn reclaim(&mut self, now: Instant, want: usize, out: &mut Vec<Action>) -> usize {
        let mut done = 0;
        for _ in 0..self.grants.len() {
            if done == want {
                break;
            }
            let Some(handle) = self.grants.pop_front() else { break };
            let Some(lock) = self.locks.get(&handle).filter(|l| l.called.is_none()) else { continue };
            if Self::is_local(lock.party.client) {
                self.grants.push_back(handle);
                continue;
            }
            self.call_back_whole(now, handle, out);
            done += 1;
        }
        self.stats.reclaimed += done as u64;
        done
    }

    /// The table was full for somebody: calls back as many of the oldest locks as make room for the next few, those that
    /// are called back already among them. Whoever was refused asks again.
    pub fn make_room(&mut self, now: Instant, out: &mut Vec<Action>) {
        let want = (self.locks.len() / 64).clamp(1, ROOM_MAX);
        let on_their_way = self.deadlines.len();
        self.reclaim(now, want.saturating_sub(on_their_way), out);
    }

    /// Remembers a grant; sweeps when most names are of locks that are gone.
    pub(super) fn note_grant(&mut self, handle: HandleId) {
        if self.grants.len() > 2 * self.locks.len() + 64 {
            let locks = &self.locks;
            self.grants.retain(|h| locks.contains_key(h));
        }
        self.grants.push_back(handle);
    }

    /// Sends every unanswered callback of a client again: after it reconnected.
    pub fn repeat_callbacks(&self, client: ClientId, out: &mut Vec<Action>) {
        let handles = self.clients.get(&client).into_iter().flat_map(|m| m.values());
        out.extend(handles.filter_map(|h| self.locks.get(h)).filter_map(Lock::blocking_message));
    }
}
