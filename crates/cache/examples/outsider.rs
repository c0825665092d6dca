//! A policy by an outsider, in one file: `quota` gives coarse pages a fixed share of the cache.
//!
//! `cargo run -p stria-cache --example outsider` checks it against the room's model, records and replays it, and
//! compares it with two policies of the registry. To ship it, move the first part into `src/quota.rs` and add one
//! line to the registry.
use cache::record::Recorder;
use cache::table::{ListId, Table};
use cache::{CacheConfig, FrameId, Grain, Managed, Order, PageAccess, ReclaimPolicy, Stats, block_id, conformance};
use std::collections::BTreeMap;
use types::Rng;

/// Fine and coarse pages in one least-recently-used list each. Coarse pages leave while there are more than their
/// quota, fine pages otherwise. [`Managed`] adds what all policies share: advice, refused frames, counters.
struct Quota {
    table: Table,
    coarse_pages: u32,
}

const FINE: ListId = 1;
const COARSE: ListId = 2;

impl Quota {
    fn build(config: &CacheConfig, coarse_percent: u32) -> Box<dyn ReclaimPolicy> {
        let coarse_pages = config.capacity_pages / 100 * coarse_percent;
        Box::new(Managed::new(Quota { table: Table::new(config.capacity_pages), coarse_pages }))
    }
}

impl Order for Quota {
    fn name(&self) -> &'static str {
        "quota"
    }
    fn table(&self) -> &Table {
        &self.table
    }
    fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }
    fn on_insert(&mut self, frame: FrameId, access: &PageAccess) {
        let list = if access.grain == Grain::Fine { FINE } else { COARSE };
        self.table.push_head(list, frame);
    }
    fn on_hit(&mut self, frame: FrameId, access: &PageAccess, _first_use: bool) {
        // A fine use makes a page fine for good.
        let list = if access.grain == Grain::Fine { FINE } else { self.table.list(frame) };
        self.table.move_to_head(list, frame);
    }
    fn on_return(&mut self, frame: FrameId, access: &PageAccess) {
        self.on_insert(frame, access);
    }
    fn candidate(&mut self) -> Option<FrameId> {
        let (first, second) = if self.table.len(COARSE) > self.coarse_pages { (COARSE, FINE) } else { (FINE, COARSE) };
        self.table.tail(first).or_else(|| self.table.tail(second))
    }
}

/// What a mechanism does around a policy, as small as it gets: no bytes, no locks, every page may leave.
fn hit_ratios(policy: &mut dyn ReclaimPolicy, capacity: u32, trace: impl Iterator<Item = PageAccess>) -> Stats {
    let mut stats = Stats::default();
    let mut frame_of = BTreeMap::new();
    let mut block_in = vec![0; capacity as usize];
    let mut free: Vec<FrameId> = (0..capacity).map(FrameId).collect();
    for access in trace {
        let found = frame_of.get(&access.block).copied();
        stats.count(&access, found.is_some());
        if let Some(frame) = found {
            policy.touch(frame, access);
            continue;
        }
        if free.is_empty() {
            policy.reclaim(32, &mut |_| true, &mut free);
            for f in &free {
                frame_of.remove(&block_in[f.0 as usize]);
            }
        }
        let frame = free.pop().expect("reclaim frees pages when all may leave");
        policy.insert(frame, access);
        frame_of.insert(access.block, frame);
        block_in[frame.0 as usize] = access.block;
    }
    stats
}

/// Nine accesses in ten are fine, to 3000 hot pages; every tenth reads the next 64 pages of a file of 6400, round and
/// round.
fn trace() -> impl Iterator<Item = PageAccess> {
    let mut rng = Rng::new(1);
    (0..40_000u64).flat_map(move |i| {
        let (object, first, pages) = if i % 10 == 9 { (2, i / 10 * 64 % 6400, 64) } else { (1, rng.below(3000), 1) };
        (first..first + pages).map(move |p| PageAccess::of_request(block_id(object, p), pages * 4096, 256 << 10))
    })
}

fn main() {
    for seed in 0..50 {
        conformance::check(&|config| Quota::build(config, 20), seed, 5_000);
        conformance::check_advice(&|config| Quota::build(config, 20), seed, 5_000);
    }
    println!("conformance: 100 runs of 5000 operations passed");

    let config = CacheConfig::new(8192);
    let mut recorder = Recorder::new(Quota::build(&config, 20), config.clone(), 100_000);
    hit_ratios(&mut recorder, config.capacity_pages, trace().take(60_000));
    let log = recorder.log();
    log.replay(&mut *Quota::build(&config, 20)).expect("same calls, same answers");
    println!("replay: {} recorded calls answered identically", log.calls.len());

    println!("\n| policy | fine hits | coarse hits |\n|---|---|---|");
    let ours = [10, 50, 80].map(|percent| (format!("quota {percent} %"), Quota::build(&config, percent)));
    let theirs = ["lru", "fgf_lru+ring"]
        .map(|name| (name.to_string(), cache::build(name, &config).expect("the registry has it")));
    for (name, mut policy) in ours.into_iter().chain(theirs) {
        let stats = hit_ratios(&mut *policy, config.capacity_pages, trace());
        let percent = |grain| stats.hit_ratio(grain).unwrap_or(0.0) * 100.0;
        println!("| {name} | {:.1} % | {:.1} % |", percent(Grain::Fine), percent(Grain::Coarse));
    }
}
