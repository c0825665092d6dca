//! A light client that reads as a program does, call by call, through the readahead room: what its window of RPCs fetches
//! is what the calls miss and what the policy asks for ahead of them.
//!
//! One record of the flow is one RPC. Without a page cache (`client.cache_bytes`) it stays once it came; with one, what leaves
//! before its use is fetched again, and the readahead room is told.
use super::config::LightConfig;
use super::program::Called;
use crate::block_cache::BlockCache;
use crate::path::{Fetch, FilePath};
use cache::PageAccess;
use readahead::record::Call;
use readahead::{Budget, Config, Facts, Plan};
use std::collections::VecDeque;
use types::{Extent, PAGE_BYTES};

/// How light clients read.
#[derive(Clone, PartialEq, Debug)]
pub struct Reading {
    /// Policy by name.
    pub policy: String,
    /// Its configuration.
    pub config: Config,
    /// Bytes per call.
    pub io_bytes: u64,
}

/// What a client's reads have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Calls.
    pub calls: u64,
    /// Calls that had to wait.
    pub waited: u64,
}

/// One client's file, being read.
pub(super) struct Reader {
    path: FilePath,
    budget: Budget,
    plan: Plan,
    file_bytes: u64,
    io_bytes: u64,
    record_bytes: u64,
    /// How far the program is.
    position: u64,
    /// The call in progress has been begun, and waits for records.
    waiting: bool,
    /// Of records that are on their way.
    fetches: Vec<Option<Fetch>>,
    cache: Option<BlockCache>,
    /// Of the cache's blocks.
    block_bytes: u64,
    /// Records to be sent for.
    queue: VecDeque<u32>,
    pub stats: ReadStats,
}

impl Reader {
    /// A client's file.
    pub fn new(config: &LightConfig, reading: &Reading) -> Reader {
        let (bytes, record_bytes) = (config.file_bytes, config.transfer_bytes);
        let records = bytes.div_ceil(record_bytes) as usize;
        let rpc_bytes = (record_bytes / PAGE_BYTES as u64).max(1) * PAGE_BYTES as u64;
        let facts = Facts { file_size: bytes, stripe_size: 0, rpc_bytes, lock: Extent::ALL };
        let cuts = [record_bytes; 2];
        Reader {
            path: FilePath::new(&reading.policy, &reading.config, facts, record_bytes, cuts)
                .expect("checked with the scenario"),
            budget: Budget::new(reading.config.budget_bytes_max),
            plan: Plan::default(),
            file_bytes: bytes,
            io_bytes: reading.io_bytes,
            record_bytes,
            position: 0,
            waiting: false,
            fetches: vec![None; records],
            cache: config.client_cache.as_ref().map(|c| BlockCache::new(c).expect("checked with the scenario")),
            block_bytes: config.block_bytes,
            queue: VecDeque::new(),
            stats: ReadStats::default(),
        }
    }

    /// The program makes its next call, or goes on with the one that waits. A call that is complete now: the program is
    /// busy with its bytes, and goes on after that.
    pub fn go_on(&mut self, now: u64) -> Option<Called> {
        let call = self.call();
        if call.is_empty() {
            return None;
        }
        if !self.waiting {
            self.stats.calls += 1;
            self.ask(Call::Read(call));
        }
        if let Some(told) = self.path.wait(call) {
            if !self.waiting {
                self.waiting = true;
                self.stats.waited += 1;
                // What the call itself needs goes before all that is asked for ahead.
                for record in self.send_for(call).into_iter().rev() {
                    self.queue.push_front(record);
                }
                self.ask(told);
            }
            return None;
        }
        self.waiting = false;
        self.position = call.end;
        self.use_blocks(call);
        self.ask(Call::Progress(call));
        Some(Called { bytes: self.io_bytes, began: now, grain: None })
    }

    /// A record came. Whether the program waited for one.
    pub fn on_record(&mut self, record: u32) -> bool {
        if let Some(fetch) = self.fetches[record as usize].take() {
            self.path.arrived(fetch);
        }
        self.keep_blocks(record);
        self.waiting
    }

    /// Look-ups of its cache.
    pub fn cache_stats(&self) -> cache::Stats {
        self.cache.as_ref().map(BlockCache::stats).unwrap_or_default()
    }

    /// The call that comes next, or that waits.
    fn call(&self) -> Extent {
        Extent::at(self.position, self.io_bytes.min(self.file_bytes - self.position))
    }

    /// A call uses what it covers: a reader's look-up of every block that it begins.
    fn use_blocks(&mut self, call: Extent) {
        let access = self.access(0);
        let Some(cache) = &mut self.cache else { return };
        for block in call.start.div_ceil(self.block_bytes)..call.end.div_ceil(self.block_bytes) {
            cache.lookup(PageAccess { block, ..access });
        }
    }

    /// The cache takes a record in. What leaves for it must be fetched again, and is lost to readahead if nobody read it;
    /// the records of a call that waits are held by the call.
    fn keep_blocks(&mut self, record: u32) {
        let blocks = self.record_bytes / self.block_bytes;
        let first = u64::from(record) * blocks;
        let used = self.position.div_ceil(self.block_bytes);
        let held = if self.waiting { self.records(self.call()) } else { 0..0 };
        let Some(mut cache) = self.cache.take() else { return };
        for block in first..first + blocks {
            let access = self.access(block);
            let access = if block < used { access } else { access.ahead() };
            cache.bring(access, |left| {
                let record = (left / blocks) as usize;
                if held.contains(&record) {
                    return;
                }
                self.path.left(record as u64);
                if left >= used {
                    let unused = Extent::at(left * self.block_bytes, self.block_bytes);
                    self.path.tell(Call::Reclaimed(unused), &mut self.budget, &mut self.plan);
                }
            });
        }
        self.cache = Some(cache);
    }

    fn access(&self, block: u64) -> PageAccess {
        PageAccess::of_request(block, self.io_bytes, self.record_bytes)
    }

    /// The next record to send for.
    pub fn next(&mut self) -> Option<u32> {
        self.queue.pop_front()
    }

    /// Claims what of `extent` nobody has sent for: its records.
    fn send_for(&mut self, extent: Extent) -> Vec<u32> {
        let fetches = self.path.claim(extent);
        let numbered = fetches.into_iter().map(|fetch| {
            let record = (fetch.extent.start / self.record_bytes) as u32;
            self.fetches[record as usize] = Some(fetch);
            record
        });
        numbered.collect()
    }

    fn ask(&mut self, call: Call) {
        let mut plan = core::mem::take(&mut self.plan);
        self.path.tell(call, &mut self.budget, &mut plan);
        for extent in plan.sync.iter().chain(&plan.asynchronous) {
            let records = self.send_for(*extent);
            self.queue.extend(records);
        }
        self.plan = plan;
    }

    fn records(&self, extent: Extent) -> core::ops::Range<usize> {
        let end = extent.end.div_ceil(self.record_bytes) as usize;
        (extent.start / self.record_bytes) as usize..end.min(self.fetches.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reader at its end, the order in which records came, and the most that were on their way.
    fn read(policy: &str, in_flight: usize) -> (Reader, Vec<u32>, usize) {
        let reading = Reading { policy: policy.into(), config: Config::default(), io_bytes: 64 << 10 };
        let config = LightConfig { file_bytes: (8 << 20) + 5, ..LightConfig::paper001(1, 1) };
        let mut reader = Reader::new(&config, &reading);
        let (mut order, mut flight, mut most) = (Vec::new(), VecDeque::new(), 0);
        loop {
            while reader.go_on(0).is_some() {}
            while flight.len() < in_flight
                && let Some(record) = reader.next()
            {
                flight.push_back(record);
            }
            most = most.max(flight.len());
            let Some(record) = flight.pop_front() else { return (reader, order, most) };
            order.push(record);
            reader.on_record(record);
        }
    }

    #[test]
    fn every_record_is_fetched_once_under_every_policy_and_only_readahead_runs_ahead() {
        for policy in readahead::POLICIES {
            let (reader, mut order, most) = read(policy.name, 4);
            assert_eq!(reader.position, (8 << 20) + 5, "{}", policy.name);
            assert_eq!(reader.stats.calls, 129, "{}", policy.name);
            order.sort_unstable();
            assert_eq!(order, (0..9).collect::<Vec<u32>>(), "{}", policy.name);
            match policy.name {
                "none" => assert_eq!((most, reader.stats.waited), (1, 9)),
                "parallel" => assert_eq!(most, 4),
                _ => assert!(most >= 1),
            }
        }
    }
}
