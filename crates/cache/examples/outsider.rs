//! A policy by an outsider, in one file: `quota` gives coarse pages a fixed share of the cache.
//!
//! `cargo run -p stria-cache --example outsider` checks it against the room's model, records and replays it, and
//! compares it with two policies of the registry. To ship it, move the first part into `src/quota.rs` and add one
//! line to the registry.
use cache::record::replay;
use cache::table::{ListId, Table};
use cache::{
    CacheConfig, FrameId, Grain, Managed, Order, PageAccess, ReclaimPolicy, Reclaimer, Stats, block_id, conformance,
};
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

/// The house's registry and one more: `quota`, with its percentage behind the name, or 20.
fn ours(name: &str, config: &CacheConfig) -> Result<Box<dyn ReclaimPolicy>, String> {
    match name.strip_prefix("quota") {
        Some(percent) => Ok(Quota::build(config, percent.parse().unwrap_or(20))),
        None => cache::build(name, config),
    }
}

/// What a mechanism does around a policy, as small as it gets: no bytes, no locks, every page may leave.
fn hit_ratios(policy: &mut Reclaimer, trace: impl Iterator<Item = PageAccess>) -> Stats {
    let capacity = policy.config().capacity_pages;
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
    let mut recorder = Reclaimer::with_registry(ours, "quota", config.clone()).expect("it is ours");
    recorder.record(16 << 20, &mut |_| 0).expect("it is ours");
    hit_ratios(&mut recorder, trace().take(60_000));
    let log = recorder.take_record().expect("it was recorded");
    let calls = replay(log.text(), ours).expect("same calls, same answers");
    println!("replay: {calls} recorded calls answered identically");

    println!("\n| policy | fine hits | coarse hits |\n|---|---|---|");
    for name in ["quota10", "quota50", "quota80", "lru", "fgf_lru+ring"] {
        let mut policy =
            Reclaimer::with_registry(ours, name, config.clone()).expect("both registries know their names");
        let stats = hit_ratios(&mut policy, trace());
        let percent = |grain| stats.hit_ratio(grain).unwrap_or(0.0) * 100.0;
        println!("| {name} | {:.1} % | {:.1} % |", percent(Grain::Fine), percent(Grain::Coarse));
    }
}
