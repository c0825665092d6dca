//! The client's side at one target: which held lock covers what a program wants, and when a lock goes back.
//!
//! Decides matching, joining of requests under way, what happens on callbacks in whatever order messages arrive, and
//! which unused locks leave under a limit (least recently used; often-used locks get a second chance).
//! It does not hold data: before a lock leaves it says [`CacheAction::Revoke`], and whoever holds pages, attributes or
//! kernel caches under it flushes and drops them and answers [`LockCache::flushed`]. A write lock that only readers want
//! becomes a read lock: what was written is flushed, and stays cached.
//!
//! A lock's life: pending (enqueue sent) -> granted -> revoking (no new users) -> flushing -> cancel sent and gone.
//! Messages for cookies it does not know are answered with a cancel, so a lock that a late or repeated message left at
//! the server cannot stay there.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use types::{Duration, Extent, HandleId, Instant};

use crate::LockMode;
use crate::extents::{ExtentClaim, ModeIndex};
use crate::lock::{
    DenyReason, EnqueueFlags, EnqueueRequest, InodeBits, LockCookie, LockDesc, LockPolicyData, ResourceId,
};

mod events;
mod lru;
mod reserve;

pub use events::BlockingOutcome;

/// What can be set.
#[derive(Clone, Debug)]
pub struct LockCacheConfig {
    /// Unused locks kept. Default 10,000 (about 300 bytes each). More are cancelled, least recently used first.
    pub lru_max: usize,
    /// Unused locks older than this are cancelled. Default 3,900 s.
    pub lru_age_max: Duration,
    /// Uses that earn an old lock a second chance under `lru_max`. >= 1, default 8.
    pub hot_uses: u32,
    /// Early cancels that ride on one request at most. Default 32.
    pub early_cancels_max: usize,
}

impl Default for LockCacheConfig {
    fn default() -> Self {
        LockCacheConfig { lru_max: 10_000, lru_age_max: Duration::from_secs(3900), hot_uses: 8, early_cancels_max: 32 }
    }
}

/// Counters since the cache was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockCacheStats {
    /// Questions answered by a held lock.
    pub hits: u64,
    /// Questions that joined a request under way.
    pub joins: u64,
    /// Questions that needed a new request.
    pub misses: u64,
    /// Blocking callbacks.
    pub callbacks: u64,
    /// Cancels sent.
    pub cancels: u64,
    /// Locks that gave up some bits only.
    pub narrowed: u64,
    /// Write locks that became read locks.
    pub converted: u64,
    /// Locks that left because `lru_max` or `lru_age_max` was reached.
    pub limit_hits: u64,
    /// Locks that left under memory pressure.
    pub shrunk: u64,
    /// Messages about locks it does not know, answered with a cancel.
    pub strays: u64,
}

/// What the client must do. In order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheAction {
    /// The request is granted: wake everybody who waits for this cookie; each holds a reference.
    Granted(LockDesc),
    /// The request failed and is forgotten: wake everybody who waits for this cookie.
    Denied {
        /// Which request.
        cookie: LockCookie,
        /// Why.
        reason: DenyReason,
    },
    /// Flush and drop what only this lock covers, but for what `keep` covers; then call [`LockCache::flushed`].
    Revoke {
        /// The lock.
        lock: LockDesc,
        /// Bits of an inode-bit lock that stay (the callback wants others only); none: all of it goes.
        keep: InodeBits,
        /// The mode in which an extent lock stays (the callback wants nothing that this stands against): what was written
        /// under it is flushed, nothing is dropped. `None`: it goes.
        keep_mode: Option<LockMode>,
    },
    /// Tell the server to keep only these bits of an inode-bit lock ([`crate::Namespace::narrow`]). The lock stays.
    SendNarrow {
        /// On what the lock is.
        resource: ResourceId,
        /// The server's name for it.
        handle: HandleId,
        /// The bits that stay.
        keep: InodeBits,
    },
    /// Tell the server that an extent lock has this mode from now on ([`crate::Namespace::convert`]). The lock stays.
    SendConvert {
        /// On what the lock is.
        resource: ResourceId,
        /// The server's name for it.
        handle: HandleId,
        /// Its mode.
        mode: LockMode,
    },
    /// Tell the server.
    SendCancel {
        /// On what the lock was.
        resource: ResourceId,
        /// The server's name for it.
        handle: HandleId,
    },
    /// The lock is gone without having been flushed (eviction, refused replay): discard, report lost dirty data.
    Lost(LockDesc),
}

/// The answer to [`LockCache::acquire`]. In each case the caller holds one reference to the cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// Held: go on, then [`LockCache::release`].
    Held(LockCookie),
    /// A request under way will do: wait for [`CacheAction::Granted`] or [`CacheAction::Denied`].
    Joined(LockCookie),
    /// Send this, then wait likewise.
    Enqueue(EnqueueRequest),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Enqueue sent. `desc.handle` is 0 until the server's name is known.
    Pending,
    /// In the match index.
    Granted,
    /// No new users; [`CacheAction::Revoke`] follows when the last one is gone.
    Revoking,
    /// [`CacheAction::Revoke`] is out.
    Flushing,
}

#[derive(Clone, Debug)]
struct Entry {
    desc: LockDesc,
    flags: EnqueueFlags,
    state: State,
    users: u32,
    /// A blocking callback came before the grant.
    called: bool,
    /// Bits to keep when it is flushed: what no callback wanted. None when it leaves for another reason.
    keep: InodeBits,
    /// Bits that the flush under way was told to keep.
    keep_told: InodeBits,
    /// The mode in which a write lock may stay: no callback wants what it stands against. `None` when it leaves for another
    /// reason.
    keep_mode: Option<LockMode>,
    /// The mode that the flush under way was told to keep.
    keep_mode_told: Option<LockMode>,
    /// Used since the flush began: it has to be flushed again.
    served: bool,
    /// Flushes begun since it was called back.
    flushes: u32,
    last_used: Instant,
    uses: u32,
}

impl Entry {
    /// A lock with one user.
    fn new(desc: LockDesc, flags: EnqueueFlags, state: State, now: Instant) -> Entry {
        Entry {
            desc,
            flags,
            state,
            users: 1,
            called: false,
            keep: InodeBits::ALL,
            keep_told: InodeBits::NONE,
            keep_mode: Some(LockMode::Pr),
            keep_mode_told: None,
            served: false,
            flushes: 0,
            last_used: now,
            uses: 1,
        }
    }

    /// The bits that would stay if it were flushed now.
    fn kept(&self) -> InodeBits {
        self.desc.data.as_bits().map_or(InodeBits::NONE, |bits| InodeBits(bits.0 & self.keep.0))
    }

    /// The mode in which it would stay if it were flushed now.
    fn kept_mode(&self) -> Option<LockMode> {
        self.keep_mode.filter(|_| self.desc.mode == LockMode::Pw && self.desc.data.as_extent().is_some())
    }

    /// A callback wants this of it.
    fn wanted(&mut self, mode: LockMode, data: &LockPolicyData) {
        self.keep = self.keep.minus(data.as_bits().unwrap_or(InodeBits::ALL));
        self.keep_mode = self.keep_mode.filter(|kept| kept.compatible(mode));
    }

    fn start_flush(&mut self) -> CacheAction {
        self.state = State::Flushing;
        self.served = false;
        self.flushes += 1;
        self.keep_told = self.kept();
        self.keep_mode_told = self.kept_mode();
        CacheAction::Revoke { lock: self.desc, keep: self.keep_told, keep_mode: self.keep_mode_told }
    }
}

#[derive(Clone, Debug, Default)]
struct Held {
    extents: ModeIndex,
    bits: SmallVec<[LockCookie; 2]>,
    pending: BTreeSet<LockCookie>,
    revoking: BTreeSet<LockCookie>,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.extents.len() == 0 && self.bits.is_empty() && self.pending.is_empty() && self.revoking.is_empty()
    }
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct LockCache {
    config: LockCacheConfig,
    next_cookie: u64,
    locks: BTreeMap<LockCookie, Entry>,
    resources: HashMap<ResourceId, Held, FxBuildHasher>,
    /// Granted and unused, oldest first.
    lru: BTreeSet<(Instant, LockCookie)>,
    /// Cookies given out for locks that answers may bring along, with what was called back of them already.
    reserved: BTreeMap<LockCookie, reserve::Called>,
    /// Locks that were called back and whose answers nobody waits for any more: the next tick gives them back.
    abandoned: Vec<(ResourceId, HandleId)>,
    stats: LockCacheStats,
}

fn claim(cookie: LockCookie, mode: LockMode, data: &LockPolicyData) -> Option<ExtentClaim> {
    match data {
        LockPolicyData::Extent { extent, gid } => {
            Some(ExtentClaim { handle: HandleId(cookie.0), mode, extent: *extent, gid: *gid })
        }
        LockPolicyData::Inodebits { .. } => None,
    }
}

impl LockCache {
    /// An empty cache. `cookie_first` must be above every cookie this client used at this target before (>= 1).
    #[must_use]
    pub fn new(config: LockCacheConfig, cookie_first: u64) -> LockCache {
        LockCache {
            config,
            next_cookie: cookie_first.max(1),
            locks: BTreeMap::new(),
            resources: HashMap::default(),
            lru: BTreeSet::new(),
            reserved: BTreeMap::new(),
            abandoned: Vec::new(),
            stats: LockCacheStats::default(),
        }
    }

    /// A held lock that covers all of it, with a reference taken; `None` when there is none.
    pub fn find(
        &mut self,
        now: Instant,
        resource: ResourceId,
        mode: LockMode,
        data: &LockPolicyData,
    ) -> Option<LockCookie> {
        let cookie = self.matching(resource, mode, data)?;
        self.stats.hits += 1;
        self.add_user(now, cookie);
        Some(cookie)
    }

    /// A lock, whatever it takes: held, about to be, or to be asked for. See [`Acquire`].
    pub fn acquire(
        &mut self,
        now: Instant,
        resource: ResourceId,
        mode: LockMode,
        data: LockPolicyData,
        flags: EnqueueFlags,
    ) -> Acquire {
        if let Some(cookie) = self.find(now, resource, mode, &data) {
            return Acquire::Held(cookie);
        }
        if flags == EnqueueFlags::NONE
            && let Some(cookie) = self.joinable(resource, mode, &data)
        {
            self.stats.joins += 1;
            self.add_user(now, cookie);
            return Acquire::Joined(cookie);
        }
        self.stats.misses += 1;
        Acquire::Enqueue(self.enqueue(now, resource, mode, data, flags))
    }

    /// A new request, without looking for a match. The caller holds a reference.
    pub fn enqueue(
        &mut self,
        now: Instant,
        resource: ResourceId,
        mode: LockMode,
        data: LockPolicyData,
        flags: EnqueueFlags,
    ) -> EnqueueRequest {
        let cookie = LockCookie(self.next_cookie);
        self.next_cookie += 1;
        let desc = LockDesc { handle: HandleId(0), cookie, resource, mode, data };
        let state = State::Pending;
        let entry = Entry::new(desc, flags, state, now);
        self.locks.insert(cookie, entry);
        self.resources.entry(resource).or_default().pending.insert(cookie);
        EnqueueRequest::new(cookie, resource, mode, data).flags(flags)
    }

    /// A lock that is on its way out but was not given back yet and covers all of it: for a read that must be answered
    /// at once because its waiting would hold up the revocation. The lock will be flushed once more after its release,
    /// and then no longer serves: who reads all the time must not keep it for good.
    pub fn find_revoking(
        &mut self,
        now: Instant,
        resource: ResourceId,
        mode: LockMode,
        data: &LockPolicyData,
    ) -> Option<LockCookie> {
        self.leaving(now, resource, &|e| e.flushes < 2 && covers(&e.desc, mode, data))
    }

    /// The same for what the flush itself brings about (dirty pages that come back from a cache in front), and for
    /// whoever that flush waits for: always, since such a use ends the flush rather than holding it up.
    pub fn find_leaving(
        &mut self,
        now: Instant,
        resource: ResourceId,
        mode: LockMode,
        data: &LockPolicyData,
    ) -> Option<LockCookie> {
        self.leaving(now, resource, &|e| covers(&e.desc, mode, data))
    }

    fn leaving(&mut self, now: Instant, resource: ResourceId, fits: &dyn Fn(&Entry) -> bool) -> Option<LockCookie> {
        let held = self.resources.get(&resource)?;
        let cookie = *held.revoking.iter().find(|c| self.locks.get(c).is_some_and(fits))?;
        self.add_user(now, cookie);
        Some(cookie)
    }

    /// Gives a reference back. A cookie that is gone (eviction) is no error.
    pub fn release(&mut self, now: Instant, cookie: LockCookie, out: &mut Vec<CacheAction>) {
        let Some(entry) = self.locks.get_mut(&cookie) else { return };
        assert!(entry.users > 0, "more releases than references");
        entry.users -= 1;
        entry.last_used = now;
        if entry.users > 0 {
            return;
        }
        match entry.state {
            State::Granted => {
                self.lru.insert((now, cookie));
                self.trim(now, out);
            }
            State::Revoking => out.push(entry.start_flush()),
            State::Pending if entry.desc.handle.0 != 0 => self.send_cancel(cookie, out),
            // The reply tells the handle; or the flush is still out.
            State::Pending | State::Flushing => {}
        }
    }

    /// The answer to [`CacheAction::Revoke`]: nothing is cached under the lock any more (but what was to be kept).
    pub fn flushed(&mut self, now: Instant, cookie: LockCookie, out: &mut Vec<CacheAction>) {
        let Some(entry) = self.locks.get_mut(&cookie).filter(|e| e.state == State::Flushing) else { return };
        let served = core::mem::take(&mut entry.served);
        assert!(served || entry.users == 0, "every use during a flush is marked");
        if entry.users > 0 {
            entry.state = State::Revoking;
        } else if served || entry.keep_told != entry.kept() || entry.keep_mode_told != entry.kept_mode() {
            out.push(entry.start_flush());
        } else if let Some(mode) = entry.keep_mode_told {
            self.weaken(now, cookie, mode, out);
        } else if entry.keep_told.is_empty() {
            self.send_cancel(cookie, out);
        } else {
            self.narrow(now, cookie, out);
        }
    }

    /// The lock lost some bits and stays.
    fn narrow(&mut self, now: Instant, cookie: LockCookie, out: &mut Vec<CacheAction>) {
        let entry = self.locks.get_mut(&cookie).expect("only called with a lock of this cache");
        let keep = entry.keep_told;
        entry.desc.data = LockPolicyData::bits(keep);
        let desc = self.stays(now, cookie);
        self.stats.narrowed += 1;
        out.push(CacheAction::SendNarrow { resource: desc.resource, handle: desc.handle, keep });
        self.trim(now, out);
    }

    /// A write lock stays as a read lock.
    fn weaken(&mut self, now: Instant, cookie: LockCookie, mode: LockMode, out: &mut Vec<CacheAction>) {
        let entry = self.locks.get_mut(&cookie).expect("only called with a lock of this cache");
        entry.desc.mode = mode;
        let desc = self.stays(now, cookie);
        self.stats.converted += 1;
        out.push(CacheAction::SendConvert { resource: desc.resource, handle: desc.handle, mode });
        self.trim(now, out);
    }

    /// A lock that was on its way out is granted again, as it is now.
    fn stays(&mut self, now: Instant, cookie: LockCookie) -> LockDesc {
        let entry = self.locks.get_mut(&cookie).expect("only called with a lock of this cache");
        entry.state = State::Granted;
        (entry.keep, entry.keep_mode) = (InodeBits::ALL, Some(LockMode::Pr));
        (entry.called, entry.last_used, entry.flushes) = (false, now, 0);
        let desc = entry.desc;
        if let Some(held) = self.resources.get_mut(&desc.resource) {
            held.revoking.remove(&cookie);
        }
        self.index(&desc);
        self.lru.insert((now, cookie));
        desc
    }

    /// What is known of a lock.
    #[must_use]
    pub fn get(&self, cookie: LockCookie) -> Option<LockDesc> {
        self.locks.get(&cookie).map(|e| e.desc)
    }

    /// Whether the lock is held (granted and not on its way out): what was cached under it is still true.
    #[must_use]
    pub fn is_valid(&self, cookie: LockCookie) -> bool {
        self.locks.get(&cookie).is_some_and(|e| e.state == State::Granted)
    }

    /// Whether there is any lock on the resource, or a request for one under way.
    #[must_use]
    pub fn knows(&self, resource: ResourceId) -> bool {
        self.resources.contains_key(&resource)
    }

    /// Whether a request for a lock on the resource is under way.
    #[must_use]
    pub fn asks(&self, resource: ResourceId) -> bool {
        self.resources.get(&resource).is_some_and(|held| !held.pending.is_empty())
    }

    /// The extent locks on the resource, other than `but`, that reach into `extent` and were not given back yet, each with
    /// whether it is on its way out.
    #[must_use]
    pub fn others(&self, resource: ResourceId, but: LockCookie, extent: Extent) -> Vec<(LockDesc, bool)> {
        let Some(held) = self.resources.get(&resource) else { return Vec::new() };
        let mut cookies: Vec<(LockCookie, bool)> = held.revoking.iter().map(|c| (*c, true)).collect();
        for (_, index) in held.extents.of(LockMode::ALL.into_iter().fold(0, |set, m| set | m as u8)) {
            index.visit(extent, &mut |e| {
                cookies.push((LockCookie(e.seq), false));
                true
            });
        }
        let reaches = |d: &LockDesc| d.data.as_extent().is_some_and(|e| e.overlaps(&extent));
        let others = cookies.into_iter().filter(|(c, _)| *c != but);
        others.filter_map(|(c, leaves)| Some((self.locks.get(&c)?.desc, leaves))).filter(|(d, _)| reaches(d)).collect()
    }

    /// All locks of the cache with whether they are held, by cookie.
    pub fn locks(&self) -> impl Iterator<Item = (LockDesc, bool)> {
        self.locks.values().map(|e| (e.desc, e.state != State::Pending))
    }

    /// Locks and requests under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether it holds and wants nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Granted locks that nobody uses.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.lru.len()
    }

    /// Uses of locks and of requests under way.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.locks.values().map(|e| u64::from(e.users)).sum()
    }

    /// Cookies that are reserved for answers on their way ([`LockCache::reserve`]).
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.reserved.len()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &LockCacheStats {
        &self.stats
    }

    /// The configuration; a lower `lru_max` takes effect at the next release or [`LockCache::tick`].
    pub fn config_mut(&mut self) -> &mut LockCacheConfig {
        &mut self.config
    }

    fn matching(&self, resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> Option<LockCookie> {
        let held = self.resources.get(&resource)?;
        let LockPolicyData::Extent { extent, gid } = data else {
            let fits = |c: &&LockCookie| self.locks.get(c).is_some_and(|e| covers(&e.desc, mode, data));
            return held.bits.iter().find(fits).copied();
        };
        let first_byte = Extent::at(extent.start, 1);
        let mut found = None;
        for (_, index) in held.extents.of(covering_modes(mode)) {
            index.visit(first_byte, &mut |e| {
                if e.extent.contains(extent) && e.gid == *gid {
                    found = Some(LockCookie(e.seq));
                }
                found.is_none()
            });
        }
        found
    }

    /// A plain request under way whose grant will cover all of it.
    fn joinable(&self, resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> Option<LockCookie> {
        let held = self.resources.get(&resource)?;
        let fits = |e: &Entry| {
            let plain = e.flags == EnqueueFlags::NONE && !e.called && e.users > 0;
            plain && covers(&e.desc, mode, data)
        };
        held.pending.iter().find(|c| self.locks.get(c).is_some_and(fits)).copied()
    }

    fn add_user(&mut self, now: Instant, cookie: LockCookie) {
        let entry = self.locks.get_mut(&cookie).expect("a match is a lock of this cache");
        if entry.users == 0 && entry.state == State::Granted {
            self.lru.remove(&(entry.last_used, cookie));
        }
        entry.served |= entry.state == State::Flushing;
        entry.users += 1;
        entry.uses = entry.uses.saturating_add(1);
        entry.last_used = now;
    }

    /// Into the match index.
    fn index(&mut self, desc: &LockDesc) {
        let held = self.resources.entry(desc.resource).or_default();
        match claim(desc.cookie, desc.mode, &desc.data) {
            Some(c) => held.extents.insert(&c),
            None => held.bits.push(desc.cookie),
        }
    }

    /// Out of the match index.
    fn unindex(&mut self, desc: &LockDesc) {
        let Some(held) = self.resources.get_mut(&desc.resource) else { return };
        match claim(desc.cookie, desc.mode, &desc.data) {
            Some(c) => {
                let found = held.extents.remove(&c);
                assert!(found, "a granted lock is in the match index");
            }
            None => held.bits.retain(|c| *c != desc.cookie),
        }
    }

    /// Takes an entry out of every table.
    fn remove(&mut self, cookie: LockCookie) -> Option<Entry> {
        let entry = self.locks.remove(&cookie)?;
        if entry.state == State::Granted {
            self.unindex(&entry.desc);
            self.lru.remove(&(entry.last_used, cookie));
        }
        if let Some(held) = self.resources.get_mut(&entry.desc.resource) {
            held.pending.remove(&cookie);
            held.revoking.remove(&cookie);
            if held.is_empty() {
                self.resources.remove(&entry.desc.resource);
            }
        }
        Some(entry)
    }

    fn send_cancel(&mut self, cookie: LockCookie, out: &mut Vec<CacheAction>) {
        if let Some(entry) = self.remove(cookie) {
            self.stats.cancels += 1;
            out.push(CacheAction::SendCancel { resource: entry.desc.resource, handle: entry.desc.handle });
        }
    }
}

fn covers(held: &LockDesc, mode: LockMode, data: &LockPolicyData) -> bool {
    held.mode.covers(mode) && held.data.contains(data)
}

/// The modes whose holder may do all that `needed` allows.
fn covering_modes(needed: LockMode) -> u8 {
    LockMode::ALL.into_iter().filter(|m| m.covers(needed)).fold(0, |set, m| set | m as u8)
}
