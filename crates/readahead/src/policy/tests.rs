//! Claims of paper 003 and of the configuration, on a model cache.
use super::*;
use crate::GAP_BYTES;
use crate::budget::Budget;
use crate::conformance;
use crate::file::{Facts, FileReadahead, Plan, Stats};
use std::collections::BTreeSet;
use std::vec::Vec;
use types::{GIB, KIB, MIB};

const PAGE: u64 = 4096;

/// A client that caches everything for ever and whose prefetches arrive at once.
struct Client {
    readahead: FileReadahead,
    budget: Budget,
    facts: Facts,
    cached: BTreeSet<u64>,
    /// Pages fetched, pages read, reads that missed.
    fetched: u64,
    used: BTreeSet<u64>,
    missed_reads: u64,
    plans: Vec<Plan>,
}

fn facts(file_size: u64) -> Facts {
    Facts { file_size, stripe_size: 4 * MIB, rpc_bytes: 4 * MIB, lock: Extent::ALL }
}

impl Client {
    fn new(policy: &str, file_size: u64) -> Client {
        let config = Config::default();
        Client {
            readahead: FileReadahead::new(policy, &config).unwrap(),
            budget: Budget::new(config.budget_bytes_max),
            facts: facts(file_size),
            cached: BTreeSet::new(),
            fetched: 0,
            used: BTreeSet::new(),
            missed_reads: 0,
            plans: Vec::new(),
        }
    }
    fn fetch(&mut self, e: Extent) {
        for p in e.start / PAGE..e.end.div_ceil(PAGE) {
            self.fetched += u64::from(self.cached.insert(p));
        }
    }
    fn take(&mut self, plan: &Plan) {
        plan.sync.iter().chain(&plan.asynchronous).for_each(|e| self.fetch(*e));
        if !plan.is_empty() {
            self.plans.push(plan.clone());
        }
    }
    /// True when all of it was cached.
    fn read(&mut self, read: Extent) -> bool {
        let mut plan = Plan::default();
        self.readahead.on_read(read, &self.facts, &mut self.budget, &mut plan);
        self.take(&plan);
        let pages = read.start / PAGE..read.end.min(self.facts.file_size).div_ceil(PAGE);
        let hit = pages.clone().all(|p| self.cached.contains(&p));
        if !hit {
            self.missed_reads += 1;
            self.readahead.on_miss(read, &self.facts, &mut self.budget, &mut plan);
            self.fetch(read.align_out(PAGE));
            self.take(&plan);
        }
        self.used.extend(pages);
        hit
    }
    fn fetched_per_used(&self) -> f64 {
        self.fetched as f64 / self.used.len() as f64
    }
    fn stats(&self) -> Stats {
        *self.readahead.stats()
    }
}

#[test]
fn every_policy_conforms() {
    let config = conformance::config();
    for p in POLICIES {
        for seed in 0..6 {
            conformance::check(p.name, || (p.make)(&config), seed);
            conformance::check_readers(p.name, || (p.make)(&config), seed);
        }
    }
}

#[test]
fn every_pattern_alone_serves_readers_that_go_on() {
    let config = conformance::config();
    for p in crate::PATTERNS {
        for seed in 0..6 {
            conformance::check_readers(p.name, || Box::new(Parallel::with(&config, [(p.make)()])), seed);
        }
    }
}

#[test]
fn a_sequential_reader_misses_once_and_fetches_nothing_twice() {
    for io in [4 * KIB, 64 * KIB, MIB, 16 * MIB] {
        let mut c = Client::new("parallel", 256 * MIB);
        for i in 0..256 * MIB / io {
            c.read(Extent::at(i * io, io));
        }
        // A read larger than the first window overtakes it while it grows.
        assert!(c.missed_reads <= 3, "{io}: {} misses", c.missed_reads);
        assert_eq!(c.fetched, 256 * MIB / PAGE);
        assert_eq!(c.budget.held_bytes(), 0, "all used, all given back");
    }
}

#[test]
fn the_miss_baseline_makes_the_reader_wait_for_every_window() {
    let mut c = Client::new("miss", 64 * MIB);
    for i in 0..64 * MIB / (64 * KIB) {
        c.read(Extent::at(i * 64 * KIB, 64 * KIB));
    }
    assert_eq!(c.missed_reads, 32, "once per 2 MiB");
    assert!(c.plans.iter().all(|p| p.asynchronous.is_empty()));
}

#[test]
fn the_ondemand_baseline_misses_once_but_its_reader_issues_everything() {
    let mut c = Client::new("ondemand", 256 * MIB);
    for i in 0..256 * MIB / (64 * KIB) {
        c.read(Extent::at(i * 64 * KIB, 64 * KIB));
    }
    assert_eq!(c.missed_reads, 1);
    assert!(c.plans.iter().all(|p| p.issued_by_reader && p.sync.is_empty()));
    let largest = c.plans.iter().map(|p| p.asynchronous.iter().map(Extent::len).sum::<u64>()).max();
    assert!(largest > Some(20 * MIB), "two windows of 40 MiB, cut by the file's 64 MiB: {largest:?}");
}

#[test]
fn in_steady_state_every_request_is_one_aligned_rpc() {
    let mut c = Client::new("parallel", GIB);
    for i in 0..2000 {
        c.read(Extent::at(i * 256 * KIB, 256 * KIB));
    }
    let late = &c.plans[c.plans.len() - 20..];
    assert!(late.iter().flat_map(|p| &p.asynchronous).all(|e| e.len() == 4 * MIB && e.start.is_multiple_of(4 * MIB)));
    assert_eq!(c.missed_reads, 1);
    let ahead = c.readahead.outstanding_bytes();
    assert!((28 * MIB..=32 * MIB).contains(&ahead), "the unforced window is kept full: {ahead}");
}

#[test]
fn strides_are_detected_within_3_records_and_waste_at_most_5_percent() {
    for (record, skip, io) in [
        (MIB, MIB, MIB),
        (MIB, 6 * MIB, MIB),
        (MIB, MIB, 64 * KIB),
        (MIB, 6 * MIB, 128 * KIB),
        (64 * KIB, 192 * KIB, 64 * KIB),
        (100_000, 900_000, 100_000),
    ] {
        let mut c = Client::new("parallel", 4 * GIB);
        let records = 200 * MIB / record;
        let mut missed_after_third = 0;
        for r in 0..records {
            for i in 0..record / io {
                let hit = c.read(Extent::at(r * (record + skip) + i * io, io));
                missed_after_third += u64::from(!hit && (r > 2 || (r == 2 && i > 0)));
            }
        }
        assert_eq!(missed_after_third, 0, "record {record} skip {skip} io {io}");
        let ratio = c.fetched_per_used();
        // The window ahead of the last record is fetched and not used: leave it out.
        let ahead = c.readahead.outstanding_bytes() as f64 / PAGE as f64 / c.used.len() as f64;
        assert!(ratio - ahead <= 1.05, "record {record} skip {skip} io {io}: {ratio} with {ahead} ahead");
    }
}

#[test]
fn a_reader_that_leaves_out_small_gaps_is_served_to_the_end_of_the_file() {
    for (len, skip) in [(4 * KIB, 4 * KIB), (4 * KIB, 8 * KIB), (8 * KIB, 8 * KIB)] {
        let mut c = Client::new("parallel", GIB);
        let reads = GIB / (len + skip);
        (0..reads).for_each(|i| _ = c.read(Extent::at(i * (len + skip), len)));
        assert!(c.missed_reads <= 3, "{len} of {}: {} of {reads} reads missed", len + skip, c.missed_reads);
        assert!(c.readahead.outstanding_bytes() <= 2 * GAP_BYTES, "{}", c.readahead.outstanding_bytes());
    }
}

#[test]
fn four_bytes_every_180_kib_fetch_little_more_than_their_pages() {
    let mut c = Client::new("parallel", 8 * GIB);
    let reads = 8 * GIB / (180 * KIB);
    for i in 0..reads {
        c.read(Extent::at(i * 180 * KIB, 4));
    }
    assert!(c.missed_reads <= 3, "{}", c.missed_reads);
    assert!(c.fetched <= c.used.len() as u64 * 101 / 100 + 32, "{} pages for {}", c.fetched, c.used.len());
}

#[test]
fn random_reads_prefetch_nothing() {
    let mut rng = types::Rng::new(9);
    let mut c = Client::new("parallel", 64 * GIB);
    for _ in 0..5_000 {
        c.read(Extent::at(PAGE + rng.below(64 * GIB - PAGE), 4096));
    }
    assert_eq!(c.stats().prefetched_bytes, 0);
}

#[test]
fn backward_readers_are_served_from_the_fourth_read_on() {
    let mut c = Client::new("parallel", 256 * MIB);
    let io = 256 * KIB;
    let n = 256 * MIB / io;
    for i in (0..n).rev() {
        let hit = c.read(Extent::at(i * io, io));
        assert!(hit || i >= n - 3, "read {i}");
    }
    assert_eq!(c.fetched, 256 * MIB / PAGE);
}

#[test]
fn interleaved_readers_each_keep_a_window() {
    let mut c = Client::new("parallel", 64 * GIB);
    let io = 128 * KIB;
    let mut misses = 0;
    for round in 0..400 {
        for stream in 0..6 {
            let hit = c.read(Extent::at((stream + 1) * 8 * GIB + round * io, io));
            misses += u64::from(!hit && round > 4);
        }
    }
    // While the windows grow, the streams compete for the waste allowance: one of them may come short once.
    assert!(misses <= 2, "{misses}");
    assert!(c.readahead.outstanding_bytes() <= 64 * MIB);
}

#[test]
fn threads_that_arrive_out_of_order_do_not_break_the_stream() {
    let mut c = Client::new("parallel", 256 * MIB);
    let io = 128 * KIB;
    for pair in 0..256 * MIB / io / 2 {
        let (a, b) = (Extent::at(2 * pair * io, io), Extent::at((2 * pair + 1) * io, io));
        // From the fifth pair on, the kernel delivers the second half first.
        let order = if pair >= 5 { [b, a] } else { [a, b] };
        for e in order {
            c.read(e);
        }
    }
    assert_eq!(c.missed_reads, 1);
    assert_eq!(c.fetched, 256 * MIB / PAGE);
}

#[test]
fn threads_that_share_out_blocks_are_one_stream() {
    let mut rng = types::Rng::new(4);
    let mut c = Client::new("parallel", 256 * MIB);
    let io = 128 * KIB;
    for group in 0..256 * MIB / io / 6 {
        let mut blocks = [0, 1, 2, 3, 4, 5].map(|b| group * 6 + b);
        if group > 0 {
            rng.shuffle(&mut blocks);
        }
        for b in blocks {
            c.read(Extent::at(b * io, io));
        }
    }
    assert!(c.missed_reads <= 3, "{}", c.missed_reads);
}

#[test]
fn a_small_file_comes_whole_with_its_first_miss() {
    let mut c = Client::new("parallel", 700_000);
    assert!(!c.read(Extent::at(0, 100)));
    assert_eq!(c.plans.len(), 1);
    assert!(c.plans[0].asynchronous.is_empty(), "one RPC, waited for: {:?}", c.plans[0]);
    assert_eq!(c.fetched, 700_000u64.div_ceil(PAGE));
    assert!(c.read(Extent::at(600_000, 100)));
    let mut c = Client::new("parallel", 700_000);
    c.read(Extent::at(300_000, 100));
    assert_eq!(c.fetched, 1, "a single read in the middle proves nothing");
    c.read(Extent::at(100_000, 100));
    assert_eq!(c.fetched, 700_000u64.div_ceil(PAGE));
}

#[test]
fn a_cached_file_costs_no_prefetch() {
    let mut c = Client::new("parallel", 64 * MIB);
    c.fetch(Extent::new(0, 64 * MIB));
    for i in 0..1024 {
        assert!(c.read(Extent::at(i * 64 * KIB, 64 * KIB)));
    }
    assert!(c.plans.is_empty());
}

#[test]
fn nothing_is_prefetched_without_a_lock_and_the_wish_for_one_is_told() {
    let mut c = Client::new("parallel", GIB);
    c.facts.lock = Extent::new(0, MIB);
    c.read(Extent::at(0, 64 * KIB));
    assert!(c.plans.iter().flat_map(|p| p.sync.iter().chain(&p.asynchronous)).all(|e| e.end <= MIB));
    let mut plan = Plan::default();
    c.readahead.on_read(Extent::at(64 * KIB, MIB - 64 * KIB), &c.facts, &mut c.budget, &mut plan);
    assert!(plan.is_empty() && plan.lock_wanted.is_some_and(|w| w.start == MIB), "before the first miss: {plan:?}");
    c.readahead.on_miss(Extent::at(MIB, 64 * KIB), &c.facts, &mut c.budget, &mut plan);
    assert!(plan.is_empty() && plan.lock_wanted.is_some_and(|w| w.end > MIB), "{plan:?}");
}

#[test]
fn a_lost_lock_frees_its_budget_and_stops_prefetch_there() {
    let mut c = Client::new("parallel", GIB);
    for i in 0..100 {
        c.read(Extent::at(i * MIB, MIB));
    }
    let before = c.readahead.outstanding_bytes();
    assert!(before > 8 * MIB);
    c.facts.lock = Extent::new(0, 102 * MIB);
    c.readahead.on_lock_lost(Extent::from(102 * MIB), &mut c.budget);
    assert_eq!(c.readahead.outstanding_bytes(), 2 * MIB);
    assert_eq!(c.budget.held_bytes(), 2 * MIB);
    c.plans.clear();
    c.read(Extent::at(100 * MIB, MIB));
    assert!(c.plans.is_empty());
}

#[test]
fn pages_reclaimed_unused_shrink_the_window() {
    let mut c = Client::new("parallel", 4 * GIB);
    for i in 0..200 {
        c.read(Extent::at(i * MIB, MIB));
    }
    let before = c.readahead.outstanding_bytes();
    // One burst of reclaim, reported page by page, halves it once.
    for page in 0..256 {
        c.readahead.on_reclaimed_unused(Extent::at(220 * MIB + page * PAGE, PAGE), &mut c.budget);
    }
    assert_eq!(c.stats().wasted_bytes, MIB);
    let mut least = before;
    for i in 200..216 {
        c.read(Extent::at(i * MIB, MIB));
        least = least.min(c.readahead.outstanding_bytes());
    }
    assert!(least <= before / 2 + 4 * MIB && least >= before / 4, "{before} -> {least}");
}

#[test]
fn blocked_readers_get_a_larger_window() {
    let mut c = Client::new("parallel", 4 * GIB);
    for i in 0..300 {
        c.read(Extent::at(i * MIB, MIB));
    }
    assert!(c.readahead.outstanding_bytes() <= 32 * MIB);
    c.readahead.on_blocked();
    for i in 300..330 {
        c.read(Extent::at(i * MIB, MIB));
    }
    assert!(c.readahead.outstanding_bytes() > 56 * MIB);
}

#[test]
fn many_readers_share_the_budget_fairly() {
    let config = Config { budget_bytes_max: 64 * MIB, ..Config::default() };
    let mut budget = Budget::new(config.budget_bytes_max);
    let mut files: Vec<_> = (0..8).map(|_| FileReadahead::new("parallel", &config).unwrap()).collect();
    let facts = facts(GIB);
    let mut plan = Plan::default();
    for i in 0..400 {
        for f in &mut files {
            f.on_read(Extent::at(i * MIB, MIB), &facts, &mut budget, &mut plan);
            if i == 0 {
                f.on_miss(Extent::at(0, MIB), &facts, &mut budget, &mut plan);
            }
        }
    }
    let held: Vec<u64> = files.iter().map(FileReadahead::outstanding_bytes).collect();
    let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
    assert!(*least >= 4 * MIB && most - least <= 4 * MIB, "{held:?}");
}

#[test]
fn hints_are_honoured() {
    let mut c = Client::new("parallel", GIB);
    c.readahead.set_hint(Hint::Random, Extent::ALL, &mut c.budget);
    for i in 0..50 {
        c.read(Extent::at(i * 64 * KIB, 64 * KIB));
    }
    assert_eq!(c.stats().prefetched_bytes, 0, "random: nothing");

    let mut c = Client::new("parallel", GIB);
    c.readahead.set_hint(Hint::Sequential, Extent::ALL, &mut c.budget);
    c.read(Extent::at(500 * MIB, 64 * KIB));
    assert!(c.readahead.outstanding_bytes() >= 3 * MIB, "sequential: at once, anywhere");

    let mut c = Client::new("none", GIB);
    c.readahead.set_hint(Hint::WillNeed, Extent::new(10, 200 * MIB), &mut c.budget);
    let mut plan = Plan::default();
    let mut pumps = 0;
    while c.readahead.has_willneed() {
        c.readahead.pump(&c.facts, &mut c.budget, &mut plan);
        c.take(&plan);
        pumps += 1;
    }
    assert_eq!((pumps, c.fetched), (4, 200 * MIB / PAGE), "willneed: all of it, a window at a time");
    assert_eq!(c.budget.held_bytes(), 0);
}

#[test]
fn a_policy_can_be_switched_while_the_file_is_read() {
    let mut c = Client::new("parallel", GIB);
    let config = Config::default();
    for i in 0..600 {
        if i % 100 == 99 {
            let entry = &POLICIES[(i / 100) as usize % POLICIES.len()];
            c.readahead.switch(entry, &config);
        }
        c.read(Extent::at(i * MIB, MIB));
    }
    assert_eq!(c.used.len() as u64, 600 * MIB / PAGE);
    c.readahead.close(&mut c.budget);
    assert_eq!(c.budget.held_bytes(), 0);
}

#[test]
fn a_window_of_0_switches_readahead_off() {
    for key in ["max_read_ahead_mb", "max_read_ahead_per_file_mb"] {
        let mut config = Config::default();
        config.set(key, "0").unwrap();
        let mut f = FileReadahead::new("parallel", &config).unwrap();
        let mut budget = Budget::new(config.budget_bytes_max);
        let mut plan = Plan::default();
        for i in 0..100 {
            let read = Extent::at(i * 64 * KIB, 64 * KIB);
            f.on_read(read, &facts(GIB), &mut budget, &mut plan);
            assert!(plan.is_empty());
            f.on_miss(read, &facts(GIB), &mut budget, &mut plan);
            assert!(plan.is_empty(), "{key}: {plan:?}");
        }
    }
}

/// Asks for anything at any time.
struct Wild(types::Rng);

impl Wild {
    fn ask(&mut self, ask: &mut Ask<'_>) {
        for _ in 0..4 {
            let start = if self.0.chance(0.1) { self.0.next_u64() } else { self.0.below(80 * MIB) };
            let len = if self.0.chance(0.1) { u64::MAX } else { self.0.below(MIB) };
            let e = Extent::at(start, len);
            let _ = if self.0.chance(0.3) { ask.sync(e) } else { ask.asynchronous(e) };
        }
        if self.0.chance(0.05) {
            ask.abandon();
        }
    }
}

impl ReadaheadPolicy for Wild {
    fn on_read(&mut self, _: Extent, ask: &mut Ask<'_>) {
        self.ask(ask);
    }
    fn on_miss(&mut self, _: Extent, ask: &mut Ask<'_>) {
        self.ask(ask);
    }
    fn on_progress(&mut self, _: Extent, ask: &mut Ask<'_>) {
        self.ask(ask);
    }
}

#[test]
fn a_policy_that_asks_for_anything_breaks_no_rule() {
    for seed in 0..6 {
        conformance::check("wild", || Box::new(Wild(types::Rng::new(seed))), seed);
    }
}

#[test]
fn an_open_file_costs_little_memory() {
    let patterns: usize = crate::PATTERNS.iter().map(|p| core::mem::size_of_val(&*(p.make)())).sum();
    let total = core::mem::size_of::<FileReadahead>() + core::mem::size_of::<Parallel>() + patterns;
    assert!(total <= 1024, "{total} bytes");
}
