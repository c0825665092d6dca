//! A light client that reads here and there, as paper 000's does: with a probability a fine access at a uniform place of its
//! file's hot range, otherwise a coarse one anywhere. Its page cache, if it has one, stands before its window of RPCs.
//!
//! A record of which a block is missing is fetched whole. The next access begins when the program is through with the last.
use super::config::{LightConfig, Mix};
use super::program::Called;
use super::reader::ReadStats;
use crate::block_cache::BlockCache;
use cache::{Grain, PageAccess};
use std::collections::VecDeque;
use types::{Extent, Rng};

/// Marks the number of a record of `workload.fine_bytes` bytes; other records are RPCs of `transfer_size_bytes`.
pub(super) const FINE: u32 = 1 << 31;

/// One client's program.
pub(super) struct Mixed {
    mix: Mix,
    rng: Rng,
    cache: Option<BlockCache>,
    block_bytes: u64,
    record_bytes: u64,
    file_bytes: u64,
    /// Accesses that are still to be made.
    left: u32,
    call: Option<Waiting>,
    /// Records to be sent for.
    queue: VecDeque<u32>,
    pub stats: ReadStats,
}

/// An access that waits for records.
struct Waiting {
    access: PageAccess,
    bytes: u64,
    began: u64,
    records: u32,
}

impl Mixed {
    /// A program on the file of `client`, with no access to make yet.
    pub fn new(config: &LightConfig, mix: Mix, client: u32) -> Mixed {
        Mixed {
            mix,
            rng: Rng::named(config.seed.wrapping_add(u64::from(client) << 24), "accesses"),
            cache: config.client_cache.as_ref().map(|c| BlockCache::new(c).expect("checked with the scenario")),
            block_bytes: config.block_bytes,
            record_bytes: config.transfer_bytes,
            file_bytes: u64::from(config.rpcs_per_flow(0)) * config.transfer_bytes,
            left: 0,
            call: None,
            queue: VecDeque::new(),
            stats: ReadStats::default(),
        }
    }

    /// Makes `accesses` accesses from now on; counts from zero. What the cache holds stays.
    pub fn begin(&mut self, accesses: u32) {
        self.left = accesses;
        self.stats = ReadStats::default();
        if let Some(cache) = &mut self.cache {
            cache.reset_stats();
        }
    }

    /// Look-ups of its cache.
    pub fn cache_stats(&self) -> cache::Stats {
        self.cache.as_ref().map(BlockCache::stats).unwrap_or_default()
    }

    /// The next access, or the one that waits: complete, or not yet.
    pub fn go_on(&mut self, now: u64) -> Option<Called> {
        if let Some(call) = &self.call {
            if call.records > 0 {
                return None;
            }
        } else {
            self.begin_access(now)?;
        }
        let call = self.call.take_if(|call| call.records == 0)?;
        Some(Called { bytes: call.bytes, began: call.began, grain: Some(call.access.grain) })
    }

    /// A record came. Whether the program waited for one.
    pub fn on_record(&mut self, now: u64, record: u32) -> bool {
        let extent = self.extent(record);
        let Some(call) = &mut self.call else { return false };
        call.records -= 1;
        if let Some(cache) = &mut self.cache {
            let blocks = extent.start / self.block_bytes..extent.end / self.block_bytes;
            cache.on_fetched(&call.access, (blocks.end - blocks.start) as u32, now - call.began);
            blocks.for_each(|block| cache.bring(PageAccess { block, ..call.access }, |_| ()));
        }
        call.records == 0
    }

    /// The next record to send for.
    pub fn next(&mut self) -> Option<u32> {
        self.queue.pop_front()
    }

    /// Bytes of the file that a record stands for.
    fn extent(&self, record: u32) -> Extent {
        let bytes = if record & FINE == 0 { self.record_bytes } else { self.mix.fine_bytes };
        Extent::at(u64::from(record & !FINE) * bytes, bytes)
    }

    fn begin_access(&mut self, now: u64) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        self.stats.calls += 1;
        let mix = self.mix;
        let grain = if self.rng.chance(mix.fine_share) { Grain::Fine } else { Grain::Coarse };
        let (records, bytes) = match grain {
            Grain::Fine => {
                let record = self.rng.below(mix.hot_bytes / mix.fine_bytes) as u32;
                (FINE | record..(FINE | record) + 1, mix.fine_bytes)
            }
            Grain::Coarse => {
                let each = (mix.coarse_bytes / self.record_bytes) as u32;
                let first = self.rng.below(self.file_bytes / mix.coarse_bytes) as u32 * each;
                (first..first + each, mix.coarse_bytes)
            }
        };
        let request_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let access = PageAccess { grain, request_bytes, ..PageAccess::fine(0) };
        for record in records {
            if !self.is_here(record, access) {
                self.queue.push_back(record);
            }
        }
        let missing = self.queue.len() as u32;
        self.stats.waited += u64::from(missing > 0);
        self.call = Some(Waiting { access, bytes, began: now, records: missing });
        Some(())
    }

    /// Looks every block of a record up.
    fn is_here(&mut self, record: u32, access: PageAccess) -> bool {
        let extent = self.extent(record);
        let Some(cache) = &mut self.cache else { return false };
        let blocks = extent.start / self.block_bytes..extent.end / self.block_bytes;
        blocks.filter(|block| !cache.lookup(PageAccess { block: *block, ..access })).count() == 0
    }
}
