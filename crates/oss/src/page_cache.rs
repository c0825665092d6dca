//! The OST's page cache: which blocks of which objects are in memory, by reference to their frames.
//!
//! The mechanism keeps bytes and checksums and asks a policy ([`Reclaimer`]) which page leaves. Frames in it are immutable
//! (a change replaces the reference), so cached pages go out to sockets and to clients of the same process without a
//! copy. Pages are found through groups of 64, so that a large request costs few look-ups.
//! A page that was read may be inserted only when nothing changed its neighbourhood since the read began:
//! [`PageCache::stamp`].
use std::cell::RefCell;
use std::rc::Rc;

use advice::Pressure;
use cache::{Advice, CacheConfig, FrameId, PageAccess, Reclaimer, Stats, block_id};
use frames::{Bulk, FRAME_BYTES, FramePool, FrameRun, Segment};
use hashbrown::HashMap;
use rt::Rt;
use rustc_hash::FxBuildHasher;
use types::{Duration, Instant, ObjectId};
use wire::Crc;

use crate::store::{BlockRange, BlockRun, Blocks};

/// A page cache that the OSTs of one process share.
pub type SharedCache = Rc<RefCell<PageCache>>;

/// Share of the frame pool that the cache leaves free, unless somebody waits for more: one in this many.
const LEAVE_FREE: usize = 16;
/// Time between two looks at a frame pool that is nearly empty.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest time between two looks.
const LOOK_MAX: Duration = Duration::from_millis(320);
/// Bytes a second that others in the process take from the pool at most.
const TAKEN_PER_SECOND: u64 = 2_000_000_000;

/// Time until the next look at a frame pool with so many frames free: sooner than those can be used up, so that nobody waits for
/// frames that the cache would give back. A server with much memory and little to do hardly wakes for it.
fn next_look(free: usize) -> Duration {
    let lasts_ms = (free * frames::FRAME_BYTES) as u64 * 1000 / TAKEN_PER_SECOND;
    Duration::from_millis(lasts_ms).clamp(LOOK_EVERY, LOOK_MAX)
}

/// A cache that gives pages back while the frame pool is nearly empty, whoever took the frames.
///
/// # Errors
/// A sentence with the policies that exist.
pub fn shared(rt: &Rt, policy: &str, bytes: u64, keys: &CacheConfig) -> Result<SharedCache, String> {
    let cache = Rc::new(RefCell::new(PageCache::new(policy, bytes, keys)?));
    let (weak, clock) = (Rc::downgrade(&cache), rt.clone());
    rt.spawn(async move {
        while let Some(cache) = weak.upgrade() {
            let pool = clock.frames();
            cache.borrow_mut().yield_frames(pool);
            cache.borrow_mut().measure(clock.now());
            drop(cache);
            clock.sleep(next_look(pool.free())).await;
        }
    });
    Ok(cache)
}

/// Time over which pressure is measured.
const MEASURED: Duration = Duration::from_secs(1);

/// Blocks of one class.
pub type Class = (BlockRange, Advice);

const GROUP: u64 = 64;
const NONE: u32 = u32::MAX;
/// Change counters, hashed by object and group.
const STAMPS: usize = 4096;

/// Whose page: the OST's number within its process, and the object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CacheKey {
    /// Which of the process's OSTs.
    pub ost: u16,
    /// Object.
    pub object: ObjectId,
}

impl CacheKey {
    fn word(&self) -> u64 {
        self.object.0.seq ^ u64::from(self.object.0.oid).rotate_left(24) ^ u64::from(self.ost).rotate_left(56)
    }
}

struct Page {
    key: CacheKey,
    block: u64,
    run: FrameRun,
    crc: Crc,
    advice: Advice,
}

/// A cached page: its frame and its checksum.
#[derive(Clone, Debug)]
pub struct CachedPage {
    /// One frame.
    pub run: FrameRun,
    /// crc32c of the page.
    pub crc: Crc,
}

/// See the module's head.
pub struct PageCache {
    policy: Option<Reclaimer>,
    /// The policy's keys; the capacity says nothing.
    keys: CacheConfig,
    pages: Vec<Option<Page>>,
    free: Vec<u32>,
    groups: HashMap<(CacheKey, u64), Box<[u32; GROUP as usize]>, FxBuildHasher>,
    stamps: Box<[u64]>,
    stats: Stats,
    victims: Vec<FrameId>,
    /// Pages of the request being looked up or inserted, of which the policy is told at once.
    request: Vec<(FrameId, PageAccess)>,
    reclaimed: Reclaimed,
    /// Advised bytes that have a place here, by OST.
    placed: Vec<(u16, u64)>,
}

/// Pages that left for want of room, and how hard pressed the cache was for it.
#[derive(Clone, Copy, Default, Debug)]
struct Reclaimed {
    unadvised: u64,
    advised: u64,
    /// The counters when the second began that is being measured.
    before: (u64, u64),
    since: Instant,
    pressure: Pressure,
}

/// The state of some blocks' neighbourhood: equal stamps mean that nothing changed in between.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stamp(Vec<u64>);

impl PageCache {
    /// A cache of `bytes` (0: none) with the policy called `policy` and its keys from `keys`.
    ///
    /// # Errors
    /// A sentence with the policies that exist.
    pub fn new(policy: &str, bytes: u64, keys: &CacheConfig) -> Result<PageCache, String> {
        let pages = u32::try_from(bytes / FRAME_BYTES as u64).unwrap_or(u32::MAX).min(cache::table::CAPACITY_MAX);
        let policy = if pages == 0 { None } else { Some(Reclaimer::new(policy, keys.resized(pages))?) };
        Ok(PageCache {
            policy,
            keys: keys.clone(),
            pages: Vec::new(),
            free: Vec::new(),
            groups: HashMap::default(),
            stamps: vec![0; STAMPS].into_boxed_slice(),
            stats: Stats::default(),
            victims: Vec::new(),
            request: Vec::new(),
            reclaimed: Reclaimed::default(),
            placed: Vec::new(),
        })
    }

    /// Changes the policy; what is cached stays.
    ///
    /// # Errors
    /// A sentence with the policies that exist; nothing has changed then.
    pub fn switch(&mut self, policy: &str) -> Result<(), String> {
        match &mut self.policy {
            Some(in_use) => in_use.switch(policy, &mut |f| block_in(&self.pages, f)),
            None => cache::build(policy, &CacheConfig::new(1)).map(drop),
        }
    }
    /// The value of a key of the policies.
    #[must_use]
    pub fn key(&self, key: &str) -> Option<String> {
        self.keys.get(key)
    }
    /// Changes a key of the policies; what is cached stays.
    ///
    /// # Errors
    /// A sentence with the key's range; nothing has changed then.
    pub fn set_key(&mut self, key: &str, value: &str) -> Result<(), String> {
        if let Some(in_use) = &mut self.policy {
            in_use.set(key, value, &mut |f| block_in(&self.pages, f))?;
        }
        self.keys.set(key, value)
    }
    /// Works on the recording of the policy, as a parameter ([`types::record`]).
    ///
    /// # Errors
    /// The cache is off.
    pub fn recorded<T>(&mut self, work: impl FnOnce(&mut cache::Recorded<'_>) -> T) -> Result<T, String> {
        let reclaimer = self.policy.as_mut().ok_or("the cache is off")?;
        Ok(work(&mut cache::Recorded { reclaimer, block_of: &mut |f| block_in(&self.pages, f) }))
    }
    /// Changes policy or size; the cache starts anew, empty, and a recording of it ends.
    ///
    /// # Errors
    /// A sentence with the policies that exist; nothing has changed then.
    pub fn rebuild(&mut self, policy: &str, bytes: u64) -> Result<(), String> {
        let mut fresh = PageCache::new(policy, bytes, &self.keys)?;
        fresh.stamps = std::mem::take(&mut self.stamps);
        fresh.stats = self.stats;
        fresh.reclaimed = self.reclaimed;
        fresh.placed = std::mem::take(&mut self.placed);
        *self = fresh;
        Ok(())
    }

    /// Name of the policy; `none` when the cache is off.
    #[must_use]
    pub fn policy_name(&self) -> &str {
        self.policy.as_ref().map_or("none", |p| p.name())
    }
    /// Size in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.capacity_pages()) * FRAME_BYTES as u64
    }
    fn capacity_pages(&self) -> u32 {
        self.policy.as_ref().map_or(0, |p| p.config().capacity_pages)
    }
    /// Bytes cached now.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        ((self.pages.len() - self.free.len()) * FRAME_BYTES) as u64
    }
    /// Look-ups and hits.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
    /// Whether it keeps pages at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.policy.is_some()
    }

    fn stamp_of(key: &CacheKey, group: u64) -> usize {
        block_id(key.word(), group) as usize % STAMPS
    }

    /// The state of the neighbourhood of `range` now.
    #[must_use]
    pub fn stamp(&self, key: CacheKey, range: BlockRange) -> Stamp {
        let groups = range.first / GROUP..=range.end().saturating_sub(1).max(range.first) / GROUP;
        Stamp(groups.map(|g| self.stamps[Self::stamp_of(&key, g)]).collect())
    }

    fn slot(&self, key: CacheKey, block: u64) -> Option<u32> {
        let group = self.groups.get(&(key, block / GROUP))?;
        let slot = group[(block % GROUP) as usize];
        (slot != NONE).then_some(slot)
    }

    /// Whether all blocks of a range are here. No look-up: nobody is told.
    #[must_use]
    pub fn holds(&self, key: CacheKey, range: BlockRange) -> bool {
        (range.first..range.end()).all(|block| self.slot(key, block).is_some())
    }

    /// Looks `count` blocks up and tells the policy; `found` is called for each, in order.
    pub fn lookup(
        &mut self,
        key: CacheKey,
        range: BlockRange,
        access: PageAccess,
        mut found: impl FnMut(u64, Option<CachedPage>),
    ) {
        let Some(policy) = &mut self.policy else {
            (range.first..range.end()).for_each(|b| found(b, None));
            return;
        };
        let (word, mut group_at, mut group) = (key.word(), u64::MAX, None);
        for block in range.first..range.end() {
            if block / GROUP != group_at {
                group_at = block / GROUP;
                group = self.groups.get(&(key, group_at));
            }
            let slot = group.map_or(NONE, |g| g[(block % GROUP) as usize]);
            self.stats.count(&access, slot != NONE);
            if slot == NONE {
                found(block, None);
                continue;
            }
            self.request.push((FrameId(slot), PageAccess { block: block_id(word, block), ..access }));
            let page = self.pages[slot as usize].as_ref().expect("a slot in a group holds a page");
            found(block, Some(CachedPage { run: page.run.clone(), crc: page.crc }));
        }
        policy.touch_batch(&self.request);
        self.request.clear();
    }

    /// Puts pages that were read in, unless something changed since `stamp`. `bulk` consists of whole pages.
    pub fn fill(&mut self, key: CacheKey, first: u64, bulk: &Bulk, crcs: &[Crc], access: PageAccess, stamp: &Stamp) {
        let range = BlockRange { first, count: crcs.len() as u64 };
        if self.policy.is_some() && !crcs.is_empty() && self.stamp(key, range) == *stamp {
            self.insert(key, first, bulk, crcs, access);
        }
    }

    /// Blocks have new contents: what was cached goes, the new pages stay if `keep`. `bulk` consists of whole pages.
    pub fn replace(&mut self, key: CacheKey, first: u64, bulk: &Bulk, crcs: &[Crc], access: PageAccess, keep: bool) {
        self.invalidate(key, BlockRange { first, count: crcs.len() as u64 });
        if keep && self.policy.is_some() {
            self.insert(key, first, bulk, crcs, access);
        }
    }

    /// As [`PageCache::fill`] for blocks of several classes: `classes` cover the blocks, in order.
    pub fn fill_advised(
        &mut self,
        at: (CacheKey, u64),
        blocks: &Blocks,
        access: PageAccess,
        stamp: &Stamp,
        classes: &[Class],
    ) {
        let (key, first) = at;
        let range = BlockRange { first, count: blocks.crcs.len() as u64 };
        if self.policy.is_some() && !blocks.crcs.is_empty() && self.stamp(key, range) == *stamp {
            self.insert_advised(key, first, &blocks.bulk, &blocks.crcs, access, classes);
        }
    }

    /// As [`PageCache::replace`] for blocks of several classes.
    pub fn replace_advised(
        &mut self,
        key: CacheKey,
        run: &BlockRun,
        access: PageAccess,
        keep: bool,
        classes: &[Class],
    ) {
        self.invalidate(key, run.range());
        if keep && self.policy.is_some() {
            self.insert_advised(key, run.first, &run.bulk, &run.crcs, access, classes);
        }
    }

    fn insert_advised(
        &mut self,
        key: CacheKey,
        first: u64,
        bulk: &Bulk,
        crcs: &[Crc],
        access: PageAccess,
        classes: &[Class],
    ) {
        for (range, advice) in classes {
            let (at, count) = ((range.first - first) as usize, range.count as usize);
            let part = bulk.slice(at * FRAME_BYTES, count * FRAME_BYTES);
            self.insert(key, range.first, &part, &crcs[at..at + count], access.advised(*advice));
        }
    }

    /// Gives the cached pages of a range another class.
    pub fn readvise(&mut self, key: CacheKey, range: BlockRange, advice: Advice) {
        let slots: Vec<u32> =
            self.groups_in(key, range).into_iter().flat_map(|g| self.slots_of(key, g, range)).collect();
        for slot in slots {
            let page = self.pages[slot as usize].as_mut().expect("a slot in a group holds a page");
            if page.advice != advice {
                page.advice = advice;
                let block = block_id(key.word(), page.block);
                if let Some(policy) = &mut self.policy {
                    policy.readvise(FrameId(slot), block, advice);
                }
            }
        }
    }

    /// Lets unadvised pages of a range go; advised ones stay.
    pub fn drop_unadvised(&mut self, key: CacheKey, range: BlockRange) {
        for group in self.groups_in(key, range) {
            for slot in self.slots_of(key, group, range) {
                if self.pages[slot as usize].as_ref().is_some_and(|p| p.advice == Advice::None) {
                    if let Some(policy) = &mut self.policy {
                        policy.remove(FrameId(slot));
                    }
                    self.forget(slot);
                }
            }
        }
    }

    /// Bytes of a range that are here.
    #[must_use]
    pub fn resident_in(&self, key: CacheKey, range: BlockRange) -> u64 {
        let pages = self.groups_in(key, range).into_iter().map(|g| self.slots_of(key, g, range).count());
        pages.sum::<usize>() as u64 * FRAME_BYTES as u64
    }

    fn slots_of(&self, key: CacheKey, group: u64, range: BlockRange) -> impl Iterator<Item = u32> + use<> {
        let slots = self.groups.get(&(key, group)).map(|g| **g).unwrap_or([NONE; GROUP as usize]);
        let within = move |block: u64| block >= range.first && block < range.end();
        slots
            .into_iter()
            .enumerate()
            .filter(move |(i, s)| *s != NONE && within(group * GROUP + *i as u64))
            .map(|(_, s)| s)
    }

    /// How hard pressed the cache was in the last second: high when advised pages left or frames were short, medium when
    /// unadvised ones left.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.reclaimed.pressure
    }
    /// Looks at the pressure anew when a second is over.
    fn measure(&mut self, now: Instant) {
        let r = &mut self.reclaimed;
        if now.since(r.since) >= MEASURED {
            let (unadvised, advised) = (r.unadvised - r.before.0, r.advised - r.before.1);
            r.pressure = match (unadvised, advised) {
                (0, 0) => Pressure::Low,
                (_, 0) => Pressure::Medium,
                _ => Pressure::High,
            };
            (r.before, r.since) = ((r.unadvised, r.advised), now);
        }
    }
    /// Pages that left for want of room: unadvised and advised ones.
    #[must_use]
    pub fn reclaimed(&self) -> (u64, u64) {
        (self.reclaimed.unadvised, self.reclaimed.advised)
    }
    /// An OST's advised bytes that have a place here.
    pub fn set_placed(&mut self, ost: u16, bytes: u64) {
        match self.placed.iter_mut().find(|(o, _)| *o == ost) {
            Some(entry) => entry.1 = bytes,
            None => self.placed.push((ost, bytes)),
        }
    }
    /// Advised bytes of the process's other OSTs.
    #[must_use]
    pub fn placed_by_others(&self, ost: u16) -> u64 {
        self.placed.iter().filter(|(o, _)| *o != ost).map(|(_, bytes)| bytes).sum()
    }

    fn insert(&mut self, key: CacheKey, first: u64, bulk: &Bulk, crcs: &[Crc], access: PageAccess) {
        if self.policy.as_mut().is_none_or(|p| !p.admits(&access)) {
            return;
        }
        if let Some(s) = bulk.segments().first() {
            self.yield_frames(s.run.pool());
        }
        let mut block = first;
        for s in bulk.segments() {
            let at = s.offset as usize / FRAME_BYTES;
            for i in 0..s.len as usize / FRAME_BYTES {
                let (run, crc) = (s.run.slice(at + i, 1), crcs[(block - first) as usize]);
                self.insert_page(Page { key, block, run, crc, advice: access.advice }, access);
                block += 1;
            }
        }
        self.introduce();
    }

    /// Tells the policy of the pages that were inserted.
    fn introduce(&mut self) {
        if let Some(policy) = &mut self.policy {
            policy.insert_batch(&self.request);
        }
        self.request.clear();
    }

    fn insert_page(&mut self, new: Page, access: PageAccess) {
        let (key, block) = (new.key, new.block);
        if let Some(slot) = self.slot(key, block) {
            let page = self.pages[slot as usize].as_mut().expect("a slot in a group holds a page");
            (page.run, page.crc) = (new.run, new.crc);
            return;
        }
        let Some(slot) = self.take_slot() else { return };
        self.pages[slot as usize] = Some(new);
        let group = self.groups.entry((key, block / GROUP)).or_insert_with(|| Box::new([NONE; GROUP as usize]));
        group[(block % GROUP) as usize] = slot;
        self.request.push((FrameId(slot), PageAccess { block: block_id(key.word(), block), ..access }));
    }

    fn take_slot(&mut self) -> Option<u32> {
        if self.free.is_empty() && self.pages.len() < self.capacity_pages() as usize {
            self.pages.push(None);
            return Some(self.pages.len() as u32 - 1);
        }
        if self.free.is_empty() {
            self.introduce();
            self.shrink(16);
        }
        self.free.pop()
    }

    /// Lets up to `pages` pages go, as the policy decides. Answers how many went.
    pub fn shrink(&mut self, pages: u32) -> usize {
        let Some(policy) = &mut self.policy else { return 0 };
        let mut victims = std::mem::take(&mut self.victims);
        policy.reclaim(pages, &mut |_| true, &mut victims);
        let gone = victims.len();
        for v in victims.drain(..) {
            match self.pages[v.0 as usize].as_ref().map(|p| p.advice) {
                Some(Advice::None) => self.reclaimed.unadvised += 1,
                _ => self.reclaimed.advised += 1,
            }
            self.forget(v.0);
        }
        self.victims = victims;
        gone
    }

    /// Lets pages go while `pool` is nearly empty, or has fewer frames than somebody waits for.
    fn yield_frames(&mut self, pool: FramePool) {
        let want = (pool.capacity() / LEAVE_FREE).max(pool.take_wanted());
        while pool.free() < want && self.shrink(256) > 0 {}
    }

    /// Takes a page that the policy no longer knows out of the tables.
    fn forget(&mut self, slot: u32) {
        let page = self.pages[slot as usize].take().expect("a resident slot holds a page");
        let at = (page.key, page.block / GROUP);
        if let Some(group) = self.groups.get_mut(&at) {
            group[(page.block % GROUP) as usize] = NONE;
            if group.iter().all(|s| *s == NONE) {
                self.groups.remove(&at);
            }
        }
        self.free.push(slot);
    }

    /// Blocks change or go: nothing of them stays, and reads under way will not be inserted.
    pub fn invalidate(&mut self, key: CacheKey, range: BlockRange) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.first / GROUP, (range.end() - 1) / GROUP);
        if last - first < STAMPS as u64 {
            (first..=last).for_each(|g| self.stamps[Self::stamp_of(&key, g)] += 1);
        } else {
            self.stamps.iter_mut().for_each(|s| *s += 1);
        }
        for g in self.groups_in(key, range) {
            self.drop_group(key, g, range);
        }
    }

    /// Groups of an object that hold pages of a range.
    fn groups_in(&self, key: CacheKey, range: BlockRange) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let (first, last) = (range.first / GROUP, (range.end() - 1) / GROUP);
        if last - first < self.groups.len() as u64 {
            (first..=last).filter(|g| self.groups.contains_key(&(key, *g))).collect()
        } else {
            self.groups.keys().filter(|(k, g)| *k == key && (first..=last).contains(g)).map(|(_, g)| *g).collect()
        }
    }

    fn drop_group(&mut self, key: CacheKey, group: u64, range: BlockRange) {
        let Some(slots) = self.groups.get(&(key, group)).map(|g| **g) else { return };
        for (i, slot) in slots.into_iter().enumerate() {
            let block = group * GROUP + i as u64;
            if slot != NONE && block >= range.first && block < range.end() {
                if let Some(policy) = &mut self.policy {
                    policy.remove(FrameId(slot));
                }
                self.forget(slot);
            }
        }
    }

    /// Everything of an OST goes, with its place.
    pub fn drop_ost(&mut self, ost: u16) {
        let mut objects: Vec<CacheKey> = self.groups.keys().map(|(key, _)| *key).filter(|key| key.ost == ost).collect();
        objects.sort_unstable_by_key(|key| key.object);
        objects.dedup();
        objects.into_iter().for_each(|key| self.drop_object(key));
        self.placed.retain(|(o, _)| *o != ost);
    }

    /// Everything of an object goes.
    pub fn drop_object(&mut self, key: CacheKey) {
        self.invalidate(key, BlockRange::new(0, u64::MAX));
    }
}

/// The block that a frame holds.
fn block_in(pages: &[Option<Page>], frame: FrameId) -> u64 {
    let page = pages[frame.0 as usize].as_ref().expect("a resident slot holds a page");
    block_id(page.key.word(), page.block)
}

/// Adds a cached page to a bulk.
pub fn push_page(bulk: &mut Bulk, run: FrameRun) {
    bulk.push(Segment { len: run.len() as u32, run, offset: 0 });
}

#[cfg(test)]
mod tests {
    use super::*;
    use frames::FramePool;
    use std::collections::BTreeMap;
    use types::{OstIndex, Rng};

    fn key(object: u32) -> CacheKey {
        CacheKey { ost: 0, object: ObjectId::new(OstIndex(0), object) }
    }
    fn page(pool: FramePool, value: u8) -> (Bulk, Vec<Crc>) {
        let mut bulk = Bulk::alloc(pool, FRAME_BYTES).unwrap();
        bulk.copy_in(0, &[value; FRAME_BYTES]);
        let crcs = crate::pages::page_crcs(&bulk);
        (bulk, crcs)
    }
    fn get(c: &mut PageCache, key: CacheKey, block: u64) -> Option<u8> {
        let mut out = None;
        c.lookup(key, BlockRange { first: block, count: 1 }, PageAccess::fine(0), |_, p| {
            out = p.map(|p| p.run.bytes()[7]);
        });
        out
    }

    #[test]
    fn the_fuller_the_frame_pool_the_sooner_it_is_looked_at() {
        let with_free = |bytes: usize| next_look(bytes / frames::FRAME_BYTES);
        assert_eq!([0, 32 << 20].map(with_free), [LOOK_EVERY; 2]);
        assert_eq!(with_free(200 << 20), Duration::from_millis(104));
        assert_eq!(with_free(1 << 30), LOOK_MAX);
    }

    #[test]
    fn a_cache_that_fills_its_pool_gives_back_what_others_wait_for() {
        use simworld::{Sim, SimConfig};
        let pool = FramePool::new(4 << 20);
        let sim = Sim::new(SimConfig::new(1), pool);
        let rt = sim.host("server").boot();
        let cache = shared(&rt, "lru", pool.capacity() as u64 * FRAME_BYTES as u64, &CacheConfig::new(1)).unwrap();
        let fill = || {
            for block in 0..pool.capacity() as u64 {
                let (bulk, crcs) = page(pool, 1);
                cache.borrow_mut().replace(key(1), block, &bulk, &crcs, PageAccess::fine(0), true);
            }
            assert!(pool.free() < pool.capacity() / LEAVE_FREE + 256);
        };
        fill();
        let half = pool.capacity() / 2;
        let bulk = sim.run(async move { rt.timeout(Duration::from_secs(1), rt.bulk(half * FRAME_BYTES)).await });
        assert!(bulk.is_some(), "{} frames are free, {half} are waited for", pool.free());
        drop(bulk);
        fill();
    }

    #[test]
    fn a_cached_page_is_what_was_last_put_there_under_every_policy() {
        for entry in cache::registry() {
            let pool = FramePool::new(4 << 20);
            let mut c = PageCache::new(entry.name, 64 * FRAME_BYTES as u64, &CacheConfig::new(1)).unwrap();
            let (mut rng, mut model) = (Rng::new(11), BTreeMap::new());
            for step in 0..6000u32 {
                let (k, block) = (rng.below(3) as u32 + 1, rng.below(150));
                match rng.below(10) {
                    0..4 => {
                        let (bulk, crcs) = page(pool, step as u8);
                        c.replace(key(k), block, &bulk, &crcs, PageAccess::fine(0), true);
                        model.insert((k, block), step as u8);
                    }
                    4..9 => {
                        if let Some(v) = get(&mut c, key(k), block) {
                            assert_eq!(Some(&v), model.get(&(k, block)), "{}", entry.name);
                        }
                    }
                    _ => {
                        let range = BlockRange { first: block, count: 1 + rng.below(99) };
                        c.invalidate(key(k), range);
                        model.retain(|(o, b), _| *o != k || *b < range.first || *b >= range.end());
                    }
                }
                assert!(c.resident_bytes() <= 64 * FRAME_BYTES as u64);
            }
            c.drop_object(key(1));
            c.drop_object(key(2));
            c.drop_object(key(3));
            assert_eq!((c.resident_bytes(), c.groups.len()), (0, 0), "{}", entry.name);
            assert_eq!(pool.free(), pool.capacity(), "{} leaks frames", entry.name);
        }
    }

    #[test]
    fn a_read_that_a_write_overtook_is_not_inserted() {
        let pool = FramePool::new(1 << 20);
        let mut c = PageCache::new("lru", 1 << 20, &CacheConfig::new(1)).unwrap();
        let range = BlockRange { first: 5, count: 1 };
        let stamp = c.stamp(key(1), range);
        let (old, old_crc) = page(pool, 1);
        let (new, new_crc) = page(pool, 2);
        c.replace(key(1), 5, &new, &new_crc, PageAccess::fine(0), true);
        c.fill(key(1), 5, &old, &old_crc, PageAccess::fine(0), &stamp);
        assert_eq!(get(&mut c, key(1), 5), Some(2));
        c.invalidate(key(1), BlockRange::new(0, u64::MAX));
        c.fill(key(1), 5, &old, &old_crc, PageAccess::fine(0), &stamp);
        assert_eq!(get(&mut c, key(1), 5), None);
        let stamp = c.stamp(key(1), range);
        c.fill(key(1), 5, &old, &old_crc, PageAccess::fine(0), &stamp);
        assert_eq!(get(&mut c, key(1), 5), Some(1));
    }
}
