//! The server's side: which lock is granted when, who is called back, who is late.
//!
//! Decides grants (first come first served among conflicting requests, so nobody starves), callbacks, deadlines and
//! eviction candidates. It does not send messages, keep time, know sizes and times of objects (a glimpse only says
//! whom to ask), or repeat messages (`ptlrpc` does; every input here may come twice).
//!
//! How waiting works: each waiting lock *watches* one lock that stands in its way. When that lock goes away or
//! shrinks, the waiter looks for another one and is granted if there is none. So every waiter always has a live
//! reason to wait, and removing a lock costs only its watchers, not the queue. What the server does on behalf of a client that
//! is called back waits for nobody who only waits: the client may need it done before it can give its lock back.
//! Source: the lock manager of VMS clusters by way of the field's extent and inode-bit locks.
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::{ClientId, Duration, Extent, HandleId, Instant, MIB};

use crate::LockMode;
use crate::bits::{BitClaim, Party};
use crate::extents::ExtentClaim;
use crate::flock_table::FlockTable;
use crate::lock::{
    Action, DenyReason, EnqueueFlags, EnqueueOutcome, EnqueueRequest, InodeBits, LOCAL, LockCookie, LockDesc,
    LockPolicyData, ResourceId,
};
use crate::resource::{Claim, Index, Resource};

mod callbacks;
mod glimpse;
mod invariants;
mod recovery;

/// Locks of a client that are looked through rather than those of an inode or object.
const FEW_LOCKS: usize = 64;

pub use callbacks::Expired;
pub use recovery::{Evicted, LockReplay};

/// What can be set. Every field may be changed while the namespace runs.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// First lock handle. Must be above every handle of earlier runs: the target's boot count << 40. Default 1.
    pub handle_first: u64,
    /// Time a holder has to answer a blocking callback, or to make progress. Default 20 s.
    pub callback_timeout: Duration,
    /// Time a called-back lock may live at most, progress or not. Default 600 s.
    pub callback_total_max: Duration,
    /// Conflicts in the window from which an object counts as contended. >= 1, default 4.
    pub contended_conflicts: u32,
    /// Conflicts in the window from which locks are not grown at all. >= `contended_conflicts`, default 32.
    pub hot_conflicts: u32,
    /// Growth past the end of the request while contended. Bytes, default 32 MiB.
    pub contended_growth_bytes: u64,
    /// Locks of contended objects are aligned out to this where the hole allows. Power of two, default 4 KiB.
    pub align_bytes: u64,
    /// Length of the contention window; the count halves for each one that passes. Default 2 s.
    pub contention_window: Duration,
    /// Locks that the namespace holds at most, granted and waiting. Default 4 Mi (about 250 bytes each).
    pub locks_max: usize,
    /// Waiting locks per resource. Default 131,072.
    pub waiters_max: u32,
    /// Flock ranges and waiting flock requests at most, each. Default 1 Mi.
    pub flocks_max: usize,
    /// Of these, of one client at most, each: a user who locks every second byte of a file leaves the other hosts theirs. Default 256 Ki, a
    /// quarter.
    pub flocks_of_client_max: usize,
}

impl Default for NamespaceConfig {
    fn default() -> Self {
        NamespaceConfig {
            handle_first: 1,
            callback_timeout: Duration::from_secs(20),
            callback_total_max: Duration::from_secs(600),
            contended_conflicts: 4,
            hot_conflicts: 32,
            contended_growth_bytes: 32 * MIB,
            align_bytes: 4096,
            contention_window: Duration::from_secs(2),
            locks_max: 4 << 20,
            waiters_max: 1 << 17,
            flocks_max: 1 << 20,
            flocks_of_client_max: 1 << 18,
        }
    }
}

/// Counters since the namespace was made; they never go down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NamespaceStats {
    /// Enqueues that were not repetitions.
    pub enqueues: u64,
    /// Enqueues that came again and were answered from the table.
    pub resends: u64,
    /// Locks granted at once.
    pub granted: u64,
    /// Locks that had to wait.
    pub waited: u64,
    /// Enqueues denied because they would have waited.
    pub would_block: u64,
    /// Blocking callbacks sent.
    pub callbacks: u64,
    /// Glimpse callbacks sent.
    pub glimpses: u64,
    /// Deadlines pushed back by progress.
    pub progressed: u64,
    /// Locks cancelled by their clients.
    pub cancelled: u64,
    /// Conversions done.
    pub converted: u64,
    /// Clients evicted.
    pub evictions: u64,
    /// Callbacks sent because the table is nearly full.
    pub reclaimed: u64,
    /// Locks put back by replay.
    pub replayed: u64,
    /// Replays refused because another client holds a conflicting lock.
    pub replay_refused: u64,
    /// Enqueues refused because `locks_max`, `waiters_max`, `flocks_max` or `flocks_of_client_max` was reached.
    pub limit_hits: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Waiting,
    Granted,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Called {
    since: Instant,
    deadline: Instant,
    wanted_mode: LockMode,
    wanted: LockPolicyData,
    /// The whole lock is wanted, by nobody who waits: it stays called back whatever its client makes of it.
    whole: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub desc: LockDesc,
    pub party: Party,
    pub state: State,
    pub no_expand: bool,
    /// For a waiting lock: one lock that stands in its way.
    pub watching: Option<HandleId>,
    /// Waiting locks that watch this one.
    pub watchers: Vec<HandleId>,
    /// Set while a blocking callback is out.
    pub called: Option<Called>,
}

impl Lock {
    fn new(handle: HandleId, client: ClientId, req: &EnqueueRequest) -> Lock {
        let (cookie, resource, mode, data) = (req.cookie, req.resource, req.mode, req.data);
        Lock {
            desc: LockDesc { handle, cookie, resource, mode, data },
            party: Party { client, on_behalf: req.on_behalf },
            state: State::Waiting,
            no_expand: req.flags.has(EnqueueFlags::NO_EXPAND),
            watching: None,
            watchers: Vec::new(),
            called: None,
        }
    }

    pub fn claim(&self) -> Claim {
        let (handle, mode) = (self.desc.handle, self.desc.mode);
        match self.desc.data {
            LockPolicyData::Extent { extent, gid } => Claim::Extent(ExtentClaim { handle, mode, extent, gid }),
            LockPolicyData::Inodebits { bits } => Claim::Bits(BitClaim { handle, mode, bits, party: self.party }),
        }
    }
}

/// All locks of one target. See the module's head.
#[derive(Clone, Debug)]
pub struct Namespace {
    config: NamespaceConfig,
    next_handle: u64,
    locks: HashMap<HandleId, Lock, FxBuildHasher>,
    resources: HashMap<ResourceId, Resource, FxBuildHasher>,
    /// Cookie to handle, per client: names every lock of a client once.
    clients: BTreeMap<ClientId, BTreeMap<LockCookie, HandleId>>,
    /// Blocking callbacks that were not answered yet.
    deadlines: BTreeSet<(Instant, HandleId)>,
    /// Grants in order, for reclaim; names of locks that are gone are skipped and swept.
    grants: VecDeque<HandleId>,
    pub(crate) flocks: FlockTable,
    stats: NamespaceStats,
}

impl Namespace {
    /// An empty namespace.
    #[must_use]
    pub fn new(config: NamespaceConfig) -> Namespace {
        Namespace {
            next_handle: config.handle_first.max(1),
            config,
            locks: HashMap::default(),
            resources: HashMap::default(),
            clients: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            grants: VecDeque::new(),
            flocks: FlockTable::default(),
            stats: NamespaceStats::default(),
        }
    }

    /// Asks for a lock. The outcome goes into the reply; `out` gets the messages to others.
    /// A repetition (same client and cookie) is answered from the table and changes nothing.
    pub fn enqueue(
        &mut self,
        now: Instant,
        client: ClientId,
        req: &EnqueueRequest,
        out: &mut Vec<Action>,
    ) -> EnqueueOutcome {
        if !req.data.is_legal(req.resource.kind, req.mode) {
            return EnqueueOutcome::Denied(DenyReason::Invalid);
        }
        let test = req.flags.has(EnqueueFlags::TEST);
        if !test && let Some(again) = self.resent(client, req.cookie, out) {
            return again;
        }
        self.stats.enqueues += 1;
        let lock = Lock::new(HandleId(self.next_handle), client, req);
        let blocker = self.resources.get(&req.resource).and_then(|r| r.blocker(&lock.claim()));
        let blocker = blocker.filter(|b| !self.overtakes(&lock, *b));
        if test {
            let desc = LockDesc { handle: HandleId(0), ..lock.desc };
            return if blocker.is_none() { EnqueueOutcome::Granted(desc) } else { self.would_block() };
        }
        let Some(blocker) = blocker else {
            return if self.is_full() { self.no_locks() } else { self.enter_granted(now, lock) };
        };
        if req.flags.has(EnqueueFlags::GLIMPSE) {
            let asked = self.glimpse(client, req.resource, 0, out);
            return EnqueueOutcome::Denied(DenyReason::Glimpse { asked });
        }
        if req.flags.has(EnqueueFlags::NOWAIT) {
            return self.would_block();
        }
        let waiting = self.resources.get(&req.resource).map_or(0, |r| r.waiting);
        if self.is_full() || waiting >= self.config.waiters_max {
            return self.no_locks();
        }
        self.enter_waiting(now, lock, blocker, out)
    }

    /// Gives a lock back (or withdraws a waiting one). Whether it was there; a repetition answers false.
    pub fn cancel(&mut self, now: Instant, client: ClientId, handle: HandleId, out: &mut Vec<Action>) -> bool {
        if self.locks.get(&handle).is_none_or(|l| l.party.client != client) {
            return false;
        }
        self.stats.cancelled += 1;
        let woken = self.remove(handle);
        self.settle(now, woken, out);
        true
    }

    /// Withdraws by cookie: for a client that gave up before it learnt the handle.
    pub fn cancel_cookie(&mut self, now: Instant, client: ClientId, cookie: LockCookie, out: &mut Vec<Action>) -> bool {
        match self.handle_of(client, cookie) {
            Some(handle) => self.cancel(now, client, handle, out),
            None => false,
        }
    }

    /// Gives several locks back at once: the early cancels that ride on any request. Answers how many were there.
    pub fn cancel_batch(
        &mut self,
        now: Instant,
        client: ClientId,
        handles: &[HandleId],
        out: &mut Vec<Action>,
    ) -> usize {
        let mut woken = BTreeSet::new();
        let mut done = 0;
        for handle in handles {
            if self.locks.get(handle).is_some_and(|l| l.party.client == client) {
                done += 1;
                woken.extend(self.remove(*handle));
            }
        }
        self.stats.cancelled += done as u64;
        self.settle(now, woken, out);
        done
    }

    /// Changes a granted lock in place. A part of what is held (weaker mode, fewer bits, smaller extent) is always
    /// granted; more is granted only when nobody granted or waiting objects.
    ///
    /// # Errors
    /// `WouldBlock`: others object; the lock is as it was. `Invalid`: not a granted lock of this client, or illegal.
    pub fn convert(
        &mut self,
        now: Instant,
        client: ClientId,
        handle: HandleId,
        mode: LockMode,
        data: LockPolicyData,
        out: &mut Vec<Action>,
    ) -> Result<LockDesc, DenyReason> {
        let old = match self.locks.get(&handle) {
            Some(l) if l.party.client == client && l.state == State::Granted => l.clone(),
            _ => return Err(DenyReason::Invalid),
        };
        if !data.is_legal(old.desc.resource.kind, mode) {
            return Err(DenyReason::Invalid);
        }
        let lock = Lock { desc: LockDesc { mode, data, ..old.desc }, ..old.clone() };
        let resource = self.resources.get_mut(&old.desc.resource).expect("a lock's resource exists");
        let less = old.desc.mode.covers(mode) && old.desc.data.contains(&data);
        let claim = lock.claim();
        if !less && (resource.granted_blocker(&claim).is_some() || resource.any_waiter(&claim).is_some()) {
            self.stats.would_block += 1;
            return Err(DenyReason::WouldBlock);
        }
        resource.remove_granted(&old.claim());
        resource.insert_granted(&claim);
        let wanted_by = resource.any_waiter(&claim);
        resource.set_fresh(&claim, !(wanted_by.is_some() && old.called.is_some()));
        let desc = lock.desc;
        let woken = self.replace_converted(now, handle, lock, wanted_by, out);
        self.stats.converted += 1;
        self.settle(now, woken, out);
        Ok(desc)
    }

    /// Keeps at most `keep` of an inode-bit lock: how a client answers a callback that wants only some of its bits.
    /// Nothing left is a cancel. Whether the lock was there; a repetition, even a late one, does no harm.
    pub fn narrow(
        &mut self,
        now: Instant,
        client: ClientId,
        handle: HandleId,
        keep: InodeBits,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(desc) = self.granted(client, handle) else { return false };
        let Some(bits) = desc.data.as_bits() else { return false };
        let left = InodeBits(bits.0 & keep.0);
        if left.is_empty() {
            return self.cancel(now, client, handle, out);
        }
        self.convert(now, client, handle, desc.mode, LockPolicyData::bits(left), out).is_ok()
    }

    /// Keeps a granted lock in a mode that allows less: how a client answers a callback that this mode does not stand against.
    /// Whether the lock was there; a repetition, even a late one, does no harm.
    pub fn weaken(
        &mut self,
        now: Instant,
        client: ClientId,
        handle: HandleId,
        mode: LockMode,
        out: &mut Vec<Action>,
    ) -> bool {
        let held = self.granted(client, handle).filter(|d| d.mode.covers(mode));
        held.is_some_and(|d| self.convert(now, client, handle, mode, d.data, out).is_ok())
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &NamespaceStats {
        &self.stats
    }

    /// Locks granted and waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether it holds no lock (flocks not counted).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// The configuration; changes apply from the next call on.
    pub fn config_mut(&mut self) -> &mut NamespaceConfig {
        &mut self.config
    }

    /// The granted lock `handle` of `client`: what a server checks before it believes a request's lock.
    #[must_use]
    pub fn granted(&self, client: ClientId, handle: HandleId) -> Option<LockDesc> {
        let lock = self.locks.get(&handle)?;
        (lock.party.client == client && lock.state == State::Granted).then_some(lock.desc)
    }

    /// A granted lock of `client` that allows reading (or writing) these bytes, whichever it is: for a request whose
    /// handle is of an earlier life of the server. Cost: O(log n + overlapping locks), or the client's few locks.
    #[must_use]
    pub fn allowing_io(&self, client: ClientId, resource: ResourceId, extent: Extent, write: bool) -> Option<LockDesc> {
        let fits = |h: &HandleId| self.granted(client, *h).filter(|d| d.allows_io(resource, extent, write));
        let own = self.clients.get(&client)?;
        if own.len() <= FEW_LOCKS {
            return own.values().find_map(fits);
        }
        let Index::Extent(locks) = &self.resources.get(&resource)?.index else { return None };
        let mut found = None;
        for (_, index) in locks.granted.of(u8::MAX) {
            index.visit(Extent::at(extent.start, 1), &mut |e| {
                found = found.or_else(|| fits(&HandleId(e.seq)));
                found.is_none()
            });
        }
        found
    }

    /// Whether `client` holds a lock on one of `bits` of an inode. Cost: O(log n + locks on the inode), or the client's few locks.
    #[must_use]
    pub fn holds_bits(&self, client: ClientId, resource: ResourceId, bits: InodeBits) -> bool {
        let Some(own) = self.clients.get(&client) else { return false };
        if own.len() <= FEW_LOCKS {
            let data = LockPolicyData::Inodebits { bits };
            let fits = |d: LockDesc| d.resource == resource && d.data.overlaps(&data);
            return own.values().any(|h| self.granted(client, *h).is_some_and(fits));
        }
        match self.resources.get(&resource).map(|r| &r.index) {
            Some(Index::Bits(locks)) => locks.granted.has(client, bits),
            _ => false,
        }
    }

    /// The handle of a client's lock.
    #[must_use]
    pub fn handle_of(&self, client: ClientId, cookie: LockCookie) -> Option<HandleId> {
        self.clients.get(&client)?.get(&cookie).copied()
    }

    /// Whose granted lock a waiting one waits for, behind others that wait before it: of one that the server has, the client
    /// that it has it for. `None`: it does not wait, or for nobody's that is known.
    #[must_use]
    pub fn waits_for(&self, handle: HandleId) -> Option<ClientId> {
        const STEPS_MAX: usize = 64;
        let mut lock = self.locks.get(&handle)?;
        for _ in 0..STEPS_MAX {
            if lock.state == State::Granted {
                break;
            }
            lock = self.locks.get(&lock.watching?)?;
        }
        let client = lock.party.on_behalf.unwrap_or(lock.party.client);
        (lock.desc.handle != handle && client != LOCAL).then_some(client)
    }

    /// Clients that have locks or wait for some.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.keys().copied()
    }

    /// All locks of a client, by cookie.
    pub fn locks_of(&self, client: ClientId) -> impl Iterator<Item = (LockDesc, bool)> {
        let handles = self.clients.get(&client).into_iter().flat_map(|m| m.values());
        handles.filter_map(|h| self.locks.get(h)).map(|l| (l.desc, l.state == State::Granted))
    }

    fn is_full(&self) -> bool {
        self.locks.len() >= self.config.locks_max
    }

    fn would_block(&mut self) -> EnqueueOutcome {
        self.stats.would_block += 1;
        EnqueueOutcome::Denied(DenyReason::WouldBlock)
    }

    fn no_locks(&mut self) -> EnqueueOutcome {
        self.stats.limit_hits += 1;
        EnqueueOutcome::Denied(DenyReason::NoLocks)
    }

    /// The answer to an enqueue that came again; a callback that is out is repeated, for it may be what got lost.
    fn resent(&mut self, client: ClientId, cookie: LockCookie, out: &mut Vec<Action>) -> Option<EnqueueOutcome> {
        let handle = self.handle_of(client, cookie)?;
        let lock = self.locks.get(&handle)?;
        self.stats.resends += 1;
        if lock.state == State::Waiting {
            return Some(EnqueueOutcome::Waiting(handle));
        }
        out.extend(lock.blocking_message());
        Some(EnqueueOutcome::Granted(lock.desc))
    }

    fn register(&mut self, lock: Lock) {
        let (client, cookie, handle) = (lock.party.client, lock.desc.cookie, lock.desc.handle);
        self.next_handle = self.next_handle.max(handle.0 + 1);
        self.clients.entry(client).or_default().insert(cookie, handle);
        self.locks.insert(handle, lock);
    }

    fn enter_granted(&mut self, now: Instant, mut lock: Lock) -> EnqueueOutcome {
        self.stats.granted += 1;
        self.place_granted(now, &mut lock, true);
        let desc = lock.desc;
        self.register(lock);
        EnqueueOutcome::Granted(desc)
    }

    fn enter_waiting(&mut self, now: Instant, lock: Lock, blocker: HandleId, out: &mut Vec<Action>) -> EnqueueOutcome {
        let (handle, claim, id) = (lock.desc.handle, lock.claim(), lock.desc.resource);
        let resource = self.resources.get_mut(&id).expect("a blocked request's resource exists");
        resource.insert_waiting(&claim);
        resource.on_conflict(now, &self.config);
        let mut fresh = Vec::new();
        resource.fresh_conflicts(&claim, &mut fresh);
        let (wanted_mode, wanted) = (lock.desc.mode, lock.desc.data);
        self.register(lock);
        self.watch(handle, blocker);
        self.stats.waited += 1;
        for holder in fresh {
            self.call_back(now, holder, wanted_mode, wanted, out);
        }
        EnqueueOutcome::Waiting(handle)
    }

    /// Puts a lock into its resource's granted index, grown if allowed.
    fn place_granted(&mut self, now: Instant, lock: &mut Lock, may_grow: bool) {
        let kind = lock.desc.resource.kind;
        let resource = self.resources.entry(lock.desc.resource).or_insert_with(|| Resource::new(kind));
        if may_grow
            && !lock.no_expand
            && let Some(extent) = resource.grown(now, &lock.claim(), &self.config)
            && let LockPolicyData::Extent { extent: e, .. } = &mut lock.desc.data
        {
            *e = extent;
        }
        lock.state = State::Granted;
        lock.watching = None;
        resource.insert_granted(&lock.claim());
        self.note_grant(lock.desc.handle);
    }

    fn watch(&mut self, waiter: HandleId, blocker: HandleId) {
        if let Some(lock) = self.locks.get_mut(&waiter) {
            lock.watching = Some(blocker);
        }
        let lock = self.locks.get_mut(&blocker).expect("a blocker is a lock of this namespace");
        lock.watchers.push(waiter);
    }

    /// Takes a lock out of every table and answers who watched it.
    fn remove(&mut self, handle: HandleId) -> Vec<HandleId> {
        let Some(lock) = self.locks.remove(&handle) else { return Vec::new() };
        let id = lock.desc.resource;
        if let Some(resource) = self.resources.get_mut(&id) {
            match lock.state {
                State::Granted => resource.remove_granted(&lock.claim()),
                State::Waiting => resource.remove_waiting(&lock.claim()),
            }
            if resource.is_empty() {
                self.resources.remove(&id);
            }
        }
        if let Some(watched) = lock.watching.and_then(|w| self.locks.get_mut(&w))
            && let Some(at) = watched.watchers.iter().position(|w| *w == handle)
        {
            watched.watchers.swap_remove(at);
        }
        if let Some(called) = &lock.called {
            self.deadlines.remove(&(called.deadline, handle));
        }
        if let Some(cookies) = self.clients.get_mut(&lock.party.client) {
            cookies.remove(&lock.desc.cookie);
            if cookies.is_empty() {
                self.clients.remove(&lock.party.client);
            }
        }
        lock.watchers
    }

    /// Looks again at waiters whose reason to wait is gone, oldest first.
    fn settle(&mut self, now: Instant, woken: impl IntoIterator<Item = HandleId>, out: &mut Vec<Action>) {
        let queue: BTreeSet<HandleId> = woken.into_iter().collect();
        for handle in queue {
            let Some(lock) = self.locks.get(&handle) else { continue };
            if lock.state != State::Waiting {
                continue;
            }
            let resource = self.resources.get(&lock.desc.resource).expect("a lock's resource exists");
            match resource.blocker(&lock.claim()).filter(|b| !self.overtakes(lock, *b)) {
                Some(blocker) => self.watch(handle, blocker),
                None => self.complete(now, handle, out),
            }
        }
    }

    /// Grants a waiting lock and tells its client; if others wait for it already, calls it back at once.
    fn complete(&mut self, now: Instant, handle: HandleId, out: &mut Vec<Action>) {
        let mut lock = self.locks.remove(&handle).expect("only called with a waiting lock");
        let resource = self.resources.get_mut(&lock.desc.resource).expect("a lock's resource exists");
        resource.remove_waiting(&lock.claim());
        self.place_granted(now, &mut lock, true);
        let (desc, client, claim) = (lock.desc, lock.party.client, lock.claim());
        self.locks.insert(handle, lock);
        out.push(Action::SendCompletion { client, lock: desc });
        let next = self.resources.get(&desc.resource).and_then(|r| r.any_waiter(&claim));
        if let Some(next) = next.and_then(|n| self.locks.get(&n)).map(|l| l.desc) {
            self.call_back(now, handle, next.mode, next.data, out);
        }
    }

    /// Stores a converted lock; answers the waiters that have to look again. When a callback was out and somebody
    /// still wants what is left, it is sent again, for the holder believes to have answered it.
    fn replace_converted(
        &mut self,
        now: Instant,
        handle: HandleId,
        mut lock: Lock,
        wanted_by: Option<HandleId>,
        out: &mut Vec<Action>,
    ) -> Vec<HandleId> {
        let woken = core::mem::take(&mut lock.watchers);
        let was_called = lock.called.take();
        if let Some(called) = &was_called {
            self.deadlines.remove(&(called.deadline, handle));
        }
        let next = wanted_by.and_then(|w| self.locks.get(&w)).map(|l| l.desc);
        self.locks.insert(handle, lock);
        match (was_called, next) {
            (Some(called), _) if called.whole => self.call_back_whole(now, handle, out),
            (Some(_), Some(next)) => self.call_back(now, handle, next.mode, next.data, out),
            _ => {}
        }
        woken
    }

    pub(crate) fn is_local(client: ClientId) -> bool {
        client == LOCAL
    }
}
