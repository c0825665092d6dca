//! Claims of paper 003 that need time: a client in virtual time, with RPC latency, a shared link and a copying reader.
//!
//! The model: an RPC takes 2 ms at its OST (as the paper's emulated disks), then its bytes cross a link of 4 bytes/ns that
//! all share; each of 4 OSTs serves 8 RPCs at a time. The reader pays 2 us a call and 0.2 ns a byte to copy; what it issues
//! itself costs it 0.5 ns a byte (pages to allocate), what the pool issues costs it nothing.
use std::collections::{BTreeMap, BinaryHeap};

use readahead::{Budget, Config, Facts, FileReadahead, Plan};
use types::{Extent, GIB, KIB, MIB};

const PAGE: u64 = 4096;
const OSTS: u64 = 4;
const SLOTS: usize = 8;
const LATENCY_NS: u64 = 2_000_000;
const LINK_BYTES_PER_NS: u64 = 4;

struct World {
    readahead: FileReadahead,
    budget: Budget,
    facts: Facts,
    now: u64,
    /// Arrival of each page fetched, ns.
    arrival: BTreeMap<u64, u64>,
    /// Per OST: when each busy slot gets free (as negative numbers: a min-heap).
    slots: Vec<BinaryHeap<i64>>,
    slots_max: usize,
    link_free: u64,
    reads: u64,
    /// Reads after the first 64 MiB that had to wait.
    blocked_late: u64,
    late: u64,
}

impl World {
    fn new(policy: &str) -> World {
        let config = Config::default();
        World {
            readahead: FileReadahead::new(policy, &config).expect("a name of the registry"),
            budget: Budget::new(config.budget_bytes_max),
            facts: Facts { file_size: 64 * GIB, stripe_size: 4 * MIB, rpc_bytes: 4 * MIB, lock: Extent::ALL },
            now: 0,
            arrival: BTreeMap::new(),
            slots: vec![BinaryHeap::new(); OSTS as usize],
            slots_max: SLOTS,
            link_free: 0,
            reads: 0,
            blocked_late: 0,
            late: 0,
        }
    }

    /// Sends one RPC; returns when its bytes are here.
    fn rpc(&mut self, e: Extent) -> u64 {
        let slots = &mut self.slots[(e.start / self.facts.stripe_size % OSTS) as usize];
        let free = if slots.len() < self.slots_max { 0 } else { slots.pop().map_or(0, |t| (-t) as u64) };
        let start = self.now.max(free);
        let served = start + LATENCY_NS;
        slots.push(-(served as i64));
        self.link_free = self.link_free.max(served) + e.len() / LINK_BYTES_PER_NS;
        let at = self.link_free;
        for page in e.start / PAGE..e.end.div_ceil(PAGE) {
            self.arrival.entry(page).or_insert(at);
        }
        at
    }

    fn issue(&mut self, plan: &Plan) {
        let extents: Vec<Extent> = plan.asynchronous.to_vec();
        for e in extents {
            if plan.issued_by_reader {
                self.now += e.len() / 2;
            }
            self.rpc(e);
        }
    }

    fn read(&mut self, read: Extent) {
        let mut plan = Plan::default();
        self.reads += 1;
        self.now += 2_000;
        let mut blocked = false;
        self.readahead.on_read(read, &self.facts, &mut self.budget, &mut plan);
        self.issue(&plan);
        let pages = read.start / PAGE..read.end.div_ceil(PAGE);
        // Missing pages, as runs cut at RPC borders.
        let mut missing: Vec<Extent> = Vec::new();
        for p in pages.clone().filter(|p| !self.arrival.contains_key(p)) {
            match missing.last_mut() {
                Some(e) if e.end == p * PAGE => e.end += PAGE,
                _ => missing.push(Extent::at(p * PAGE, PAGE)),
            }
        }
        for miss in missing {
            self.readahead.on_miss(miss, &self.facts, &mut self.budget, &mut plan);
            let mut last = 0;
            let mut all = vec![miss];
            all.extend(plan.sync.iter());
            for e in all {
                self.now += e.len() / 2;
                let mut at = e.start;
                while at < e.end {
                    let end = (at / self.facts.rpc_bytes + 1) * self.facts.rpc_bytes;
                    let piece = Extent::new(at, end.min(e.end));
                    last = last.max(self.rpc(piece));
                    at = piece.end;
                }
            }
            self.issue(&plan);
            self.now = self.now.max(last);
            blocked = true;
        }
        let ready = pages.filter_map(|p| self.arrival.remove(&p)).max().unwrap_or(0);
        if ready > self.now {
            self.now = ready;
            self.readahead.on_blocked();
            blocked = true;
        }
        self.now += read.len() / 5;
        if read.start >= 64 * MIB {
            self.late += 1;
            self.blocked_late += u64::from(blocked);
        }
    }
}

/// Sequential read of `bytes`; bytes per ns, and the share of late reads that waited.
fn sequential(policy: &str, io: u64, bytes: u64) -> (f64, f64) {
    let mut w = World::new(policy);
    for i in 0..bytes / io {
        w.read(Extent::at(i * io, io));
    }
    (bytes as f64 / w.now as f64, w.blocked_late as f64 / w.late.max(1) as f64)
}

/// What one reader could reach if every byte were there: copy and call costs, or the link.
fn ceiling(io: u64) -> f64 {
    let reader = io as f64 / (2_000.0 + io as f64 / 5.0);
    reader.min(LINK_BYTES_PER_NS as f64)
}

#[test]
fn parallel_is_at_least_three_times_the_miss_baseline_and_near_the_ceiling() {
    for io in [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB] {
        let (ours, blocked) = sequential("parallel", io, 4 * GIB);
        let (miss, _) = sequential("miss", io.min(2 * MIB), GIB);
        println!("io {io}: parallel {ours:.2}, miss {miss:.2}, ceiling {:.2}, blocked {blocked:.5}", ceiling(io));
        assert!(ours >= 3.0 * miss, "io {io}: {ours} against {miss}");
        assert!(ours >= 0.9 * ceiling(io), "io {io}: {ours} of {}", ceiling(io));
    }
}

#[test]
fn a_reader_slower_than_the_link_is_never_blocked_after_warm_up() {
    // 4 KiB reads: the calls alone cost more than the link needs.
    for (policy, most) in [("parallel", 0.001), ("parallel_sequential", 0.001)] {
        let (speed, blocked) = sequential(policy, 4 * KIB, 256 * MIB);
        assert!(blocked <= most, "{policy}: {blocked} of the reads waited");
        assert!(speed >= 0.9 * ceiling(4 * KIB), "{policy}: {speed}");
    }
}

#[test]
fn on_demand_lies_between_the_miss_baseline_and_parallel() {
    let io = 256 * KIB;
    let [miss, ondemand, parallel] = ["miss", "ondemand", "parallel"].map(|p| sequential(p, io, 2 * GIB).0);
    println!("miss {miss:.2}, ondemand {ondemand:.2}, parallel {parallel:.2}");
    assert!(miss < ondemand && ondemand < parallel, "{miss} {ondemand} {parallel}");
}

#[test]
fn strided_useful_bytes_flow_at_90_percent_of_sequential() {
    let (sequential, _) = sequential("parallel", MIB, 2 * GIB);
    for skip in [MIB, 6 * MIB] {
        let mut w = World::new("parallel");
        let n = 2048;
        for i in 0..n {
            w.read(Extent::at(i * (MIB + skip), MIB));
        }
        let useful = (n * MIB) as f64 / w.now as f64;
        println!("skip {skip}: {useful:.2} of {sequential:.2}");
        assert!(useful >= 0.9 * sequential, "skip {skip}: {useful} against {sequential}");
    }
}

#[test]
fn small_records_are_fetched_as_far_ahead_as_their_latency_needs() {
    let shapes = [(64, 64, SLOTS), (64, 64, 128), (16, 48, 128), (128, 256, 64)];
    for (record, skip, slots_max) in shapes.map(|(record, skip, slots)| (record * KIB, skip * KIB, slots)) {
        let mut w = World::new("parallel");
        w.slots_max = slots_max;
        let n = GIB / record;
        for i in 0..n {
            w.read(Extent::at(i * (record + skip), record));
        }
        let useful = GIB as f64 / w.now as f64;
        // What all slots of all OSTs carry, each an RPC of one record at a time.
        let osts = (OSTS * slots_max as u64 * record) as f64 / LATENCY_NS as f64;
        let most = ceiling(record).min(osts);
        println!("record {record} skip {skip} slots {slots_max}: {useful:.2} of {most:.2}");
        assert!(useful >= 0.9 * most, "record {record} skip {skip} slots {slots_max}: {useful} of {most}");
    }
}
