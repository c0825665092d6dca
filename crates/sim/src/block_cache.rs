//! Caches as mechanisms keep them around a policy of the cache room: who owns which frame, and who leaves.
//!
//! [`Frames`] is what every cache has: the policy, frames and their owners, counters. A client's files keep the frames of
//! their pages themselves, as the product's do; an OST's cache ([`BlockCache`]) finds them by block. A block stands for
//! `cache.block_bytes` bytes; there are no bytes here. Takes some 50 bytes per frame that was ever used beside the policy's own.
use crate::metrics::Metrics;
use crate::scenario::Params;
use cache::{CacheConfig, FrameId, Grain, PageAccess, ReclaimPolicy, Stats, build};
use std::collections::HashMap;
use types::Duration;

/// Frames given up at a time, and at most an eighth of all.
const RECLAIM_BATCH: u32 = 32;
/// Two readahead windows of 4 MiB: what a coarse ring keeps.
const RING_BYTES: u64 = 8 << 20;

/// What a cache is built from.
#[derive(Clone, PartialEq, Debug)]
pub struct CacheSettings {
    /// Policy by name.
    pub policy: String,
    /// Keys of the room that were set.
    pub keys: Vec<(String, String)>,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
}

impl CacheSettings {
    /// A cache of `bytes` with `policy`, and what `cache.*` says of the rest.
    pub(crate) fn from_params(p: &Params, policy: &str, bytes: u64) -> CacheSettings {
        let own = ["policy", "client_bytes", "ost_bytes", "ost_count", "block_bytes"];
        let keys = p.below("cache.").filter(|(k, _)| !own.contains(k)).map(|(k, v)| (k.into(), v.into())).collect();
        CacheSettings { policy: policy.to_string(), keys, bytes, block_bytes: p.size("cache.block_bytes") }
    }
    fn config(&self) -> Result<CacheConfig, String> {
        let blocks = (self.bytes / self.block_bytes).clamp(1, u64::from(cache::table::CAPACITY_MAX));
        let mut config = CacheConfig::new(blocks as u32);
        config.coarse_ring_pages = (RING_BYTES / self.block_bytes) as u32;
        self.keys.iter().try_for_each(|(key, value)| config.set(key, value))?;
        Ok(config)
    }
}

/// A hasher with a fixed seed.
mod hasher {
    use std::hash::{BuildHasherDefault, Hasher};
    #[derive(Default)]
    pub struct Mixed(u64);
    impl Hasher for Mixed {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            for b in bytes {
                self.0 = self.0.rotate_left(8) ^ u64::from(*b);
            }
        }
        /// Block numbers of one file are plain counters.
        fn write_u64(&mut self, n: u64) {
            self.0 = (n ^ (n >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }
    pub type Fixed = BuildHasherDefault<Mixed>;
}

/// Frames of a cache, each with its owner: whatever finds it there.
pub(crate) struct Frames {
    policy: Box<dyn ReclaimPolicy>,
    capacity: u32,
    /// Of every frame that was ever used.
    owners: Vec<u64>,
    free: Vec<FrameId>,
    /// Look-ups.
    pub stats: Stats,
}

impl Frames {
    /// None is used.
    ///
    /// # Errors
    /// A sentence, when the policy or one of its keys does not exist.
    pub fn new(settings: &CacheSettings) -> Result<Frames, String> {
        let config = settings.config()?;
        Ok(Frames {
            policy: build(&settings.policy, &config)?,
            capacity: config.capacity_pages,
            owners: Vec::new(),
            free: Vec::new(),
            stats: Stats::default(),
        })
    }
    /// What the frame holds is used.
    #[inline]
    pub fn touch(&mut self, frame: FrameId, access: PageAccess) {
        self.policy.touch(frame, access);
    }
    /// A frame for what came, if the policy takes it in. `left` is told whose frames go for it.
    #[inline]
    pub fn insert(&mut self, owner: u64, access: PageAccess, left: &mut impl FnMut(u64)) -> Option<FrameId> {
        if !self.policy.admits(&access) {
            return None;
        }
        let frame = self.take(left)?;
        self.policy.insert(frame, access);
        self.owners[frame.0 as usize] = owner;
        Some(frame)
    }
    /// `blocks` blocks like `access` took this long to come.
    pub fn on_fetched(&mut self, access: &PageAccess, blocks: u32, took_ns: u64) {
        self.policy.on_fetched(access, blocks, Duration::from_nanos(took_ns));
    }

    fn take(&mut self, left: &mut impl FnMut(u64)) -> Option<FrameId> {
        if self.free.is_empty() {
            let used = self.owners.len() as u32;
            if used < self.capacity {
                self.owners.push(0);
                return Some(FrameId(used));
            }
            let batch = RECLAIM_BATCH.min(self.capacity / 8).max(1);
            self.policy.reclaim(batch, &mut |_| true, &mut self.free);
            self.free.iter().for_each(|frame| left(self.owners[frame.0 as usize]));
        }
        self.free.pop()
    }
}

/// The cache of an OST: frames by block.
pub(crate) struct BlockCache {
    frames: Frames,
    frame_of: HashMap<u64, FrameId, hasher::Fixed>,
}

impl BlockCache {
    /// An empty cache.
    ///
    /// # Errors
    /// A sentence, when the policy or one of its keys does not exist.
    pub fn new(settings: &CacheSettings) -> Result<BlockCache, String> {
        Ok(BlockCache { frames: Frames::new(settings)?, frame_of: HashMap::default() })
    }
    /// Looks a block up for a reader; whether it is here. The policy is told of a hit.
    #[inline]
    pub fn lookup(&mut self, access: PageAccess) -> bool {
        let found = self.frame_of.get(&access.block).copied();
        self.frames.stats.count(&access, found.is_some());
        if let Some(frame) = found {
            self.frames.touch(frame, access);
        }
        found.is_some()
    }
    /// Whether a block is here; nobody is told of the question.
    #[must_use]
    pub fn holds(&self, block: u64) -> bool {
        self.frame_of.contains_key(&block)
    }
    /// A block came, or was written. `left` is told which blocks leave for it.
    #[inline]
    pub fn bring(&mut self, access: PageAccess, mut left: impl FnMut(u64)) {
        if let Some(frame) = self.frame_of.get(&access.block) {
            if access.write {
                self.frames.touch(*frame, access);
            }
            return;
        }
        let BlockCache { frames, frame_of } = self;
        let mut gone = |block: u64| {
            frame_of.remove(&block);
            left(block);
        };
        if let Some(frame) = frames.insert(access.block, access, &mut gone) {
            self.frame_of.insert(access.block, frame);
        }
    }
    /// `blocks` blocks like `access` took this long to come.
    pub fn on_fetched(&mut self, access: &PageAccess, blocks: u32, took_ns: u64) {
        self.frames.on_fetched(access, blocks, took_ns);
    }
    /// Look-ups since the last [`BlockCache::reset_stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.frames.stats
    }
    /// Starts counting anew.
    pub fn reset_stats(&mut self) {
        self.frames.stats = Stats::default();
    }
}

/// Hit ratios of a kind of cache, by grain.
pub(crate) fn push_hit_ratios(m: &mut Metrics, of: &str, stats: &Stats) {
    for (grain, name) in [(Grain::Fine, "fine"), (Grain::Coarse, "coarse")] {
        m.push(format!("hit_ratio.{of}.{name}"), "share", stats.hit_ratio(grain).unwrap_or(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_is_told_and_found_no_more_under_every_policy() {
        for policy in cache::registry() {
            let settings =
                CacheSettings { policy: policy.name.into(), keys: Vec::new(), bytes: 64 << 16, block_bytes: 1 << 16 };
            let mut cache = BlockCache::new(&settings).unwrap();
            let mut here = std::collections::BTreeSet::new();
            for block in (0..1_000).map(|i| i * i % 331) {
                let access = PageAccess::fine(block);
                assert_eq!(cache.lookup(access), here.contains(&block), "{}", policy.name);
                if !here.contains(&block) {
                    here.insert(block);
                    cache.bring(access, |left| assert!(here.remove(&left), "{}: {left} was not here", policy.name));
                }
                assert!(here.len() <= 64, "{}", policy.name);
            }
            let stats = cache.stats();
            assert!(stats.fine_hits > 0 && stats.fine_lookups == 1_000, "{}: {stats:?}", policy.name);
        }
    }
}
