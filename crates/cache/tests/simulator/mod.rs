//! A trace-driven model of paper 000's setting: one client cache over three OST caches over three disks. Pure: the
//! only time in it is the cost that the paper's hardware would charge (disk 9 ms + 60 MB/s, network 110 MB/s).
//!
//! A page stands for 64 KiB, so that a run takes a fraction of a second. Sizes are those of the simulated experiment:
//! client cache 1.2 GB, 0.7 GB on each OST, stripe 1 MiB, ten files.
#![allow(dead_code)]
use cache::{CacheConfig, FrameId, Grain, PageAccess, ReclaimPolicy, Stats, block_id, build};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::time::Duration;
use types::Rng;

/// Bytes that one page of the model stands for.
pub const PAGE: u64 = 64 << 10;
/// Pages of a stripe of 1 MiB.
pub const STRIPE_PAGES: u64 = 16;
const CLIENT_PAGES: u32 = (1_200_000_000 / PAGE) as u32;
const OST_PAGES: u32 = (700_000_000 / PAGE) as u32;
const OSTS: usize = 3;
const SEEK_NS: f64 = 9e6;
const DISK_NS_PER_PAGE: f64 = PAGE as f64 / 60e6 * 1e9;
const NET_NS_PER_PAGE: f64 = PAGE as f64 / 110e6 * 1e9;
const NET_LATENCY_NS: f64 = 2e5;
const HIT_NS_PER_PAGE: f64 = 2e4;

/// One cache: what a mechanism does around a policy.
pub struct Cache {
    pub policy: Box<dyn ReclaimPolicy>,
    pub stats: Stats,
    frame_of: HashMap<u64, FrameId, FxBuildHasher>,
    block_of: Vec<u64>,
    free: Vec<FrameId>,
}

impl Cache {
    pub fn new(policy: &str, config: &CacheConfig) -> Cache {
        let pages = config.capacity_pages;
        Cache {
            policy: build(policy, config).expect("tests name registered policies"),
            stats: Stats::default(),
            frame_of: HashMap::default(),
            block_of: vec![0; pages as usize],
            free: (0..pages).rev().map(FrameId).collect(),
        }
    }

    /// Looks one page up and brings it in when it is not there; whether it was.
    pub fn access(&mut self, access: PageAccess) -> bool {
        let found = self.frame_of.get(&access.block).copied();
        self.stats.count(&access, found.is_some());
        if let Some(frame) = found {
            self.policy.touch(frame, access);
            return true;
        }
        if self.policy.admits(&access) {
            let frame = self.free_frame();
            self.policy.insert(frame, access);
            self.frame_of.insert(access.block, frame);
            self.block_of[frame.0 as usize] = access.block;
        }
        false
    }

    fn free_frame(&mut self) -> FrameId {
        if self.free.is_empty() {
            self.policy.reclaim(32, &mut |_| true, &mut self.free);
            for f in &self.free {
                self.frame_of.remove(&self.block_of[f.0 as usize]);
            }
        }
        self.free.pop().expect("reclaim frees a page of a full cache")
    }

    pub fn counter(&self, name: &str) -> u64 {
        let mut all = Vec::new();
        self.policy.counters(&mut all);
        all.iter().find(|c| c.0 == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

/// One request of a trace, in pages of one file.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub file: u64,
    pub first: u64,
    pub pages: u64,
    pub grain: Grain,
}

/// A client over three OSTs.
pub struct System {
    pub client: Cache,
    pub osts: Vec<Cache>,
    pub time_ns: f64,
    pub bytes: u64,
    fine_ns: f64,
    fine_requests: u64,
}

impl System {
    pub fn new(policy: &str) -> System {
        System::configured(policy, |_| {})
    }

    pub fn configured(policy: &str, configure: impl Fn(&mut CacheConfig)) -> System {
        let cache = |pages| {
            let mut config = CacheConfig::new(pages);
            // Two windows of 4 MiB in pages of the model.
            config.coarse_ring_pages = 2 * (4 << 20) / PAGE as u32;
            configure(&mut config);
            Cache::new(policy, &config)
        };
        System {
            client: cache(CLIENT_PAGES),
            osts: (0..OSTS).map(|_| cache(OST_PAGES)).collect(),
            time_ns: 0.0,
            bytes: 0,
            fine_ns: 0.0,
            fine_requests: 0,
        }
    }

    /// Carries out one request of a closed loop and charges its cost.
    pub fn request(&mut self, r: Request) {
        let bytes = r.pages * PAGE;
        let access = |page| PageAccess {
            grain: r.grain,
            request_bytes: u32::try_from(bytes).expect("requests are below 4 GiB"),
            ..PageAccess::fine(block_id(r.file, page))
        };
        let mut wire = 0;
        let mut from_disk = [0u64; OSTS];
        let mut seeks = [0u64; OSTS];
        let mut last = [None; OSTS];
        for page in r.first..r.first + r.pages {
            if self.client.access(access(page)) {
                continue;
            }
            wire += 1;
            let stripe = page / STRIPE_PAGES;
            let ost = ((stripe + r.file) % OSTS as u64) as usize;
            if !self.osts[ost].access(access(page)) {
                from_disk[ost] += 1;
                // Stripes of one object follow each other on its disk.
                let at = stripe / OSTS as u64 * STRIPE_PAGES + page % STRIPE_PAGES;
                seeks[ost] += u64::from(last[ost] != Some(at));
                last[ost] = Some(at + 1);
            }
        }
        let mut disk_ns = 0.0f64;
        for ost in 0..OSTS {
            let took = seeks[ost] as f64 * SEEK_NS + from_disk[ost] as f64 * DISK_NS_PER_PAGE;
            if from_disk[ost] > 0 {
                let took = Duration::from_nanos(took as u64);
                self.osts[ost].policy.on_fetched(&access(r.first), from_disk[ost] as u32, took);
            }
            disk_ns = disk_ns.max(took);
        }
        let mut took = r.pages as f64 * HIT_NS_PER_PAGE;
        if wire > 0 {
            let wire_ns = wire as f64 * NET_NS_PER_PAGE;
            // A large request streams: disk and network work at the same time.
            let fetch =
                NET_LATENCY_NS + if r.grain == Grain::Coarse { disk_ns.max(wire_ns) } else { disk_ns + wire_ns };
            self.client.policy.on_fetched(&access(r.first), wire as u32, Duration::from_nanos(fetch as u64));
            took += fetch;
        }
        self.time_ns += took;
        self.bytes += bytes;
        if r.grain == Grain::Fine {
            self.fine_ns += took;
            self.fine_requests += 1;
        }
    }

    /// Runs `warm` requests that are not counted, then the rest of the trace.
    pub fn run(&mut self, trace: &[Request], warm: usize) -> Outcome {
        for (i, r) in trace.iter().enumerate() {
            if i == warm {
                (self.time_ns, self.bytes, self.fine_ns, self.fine_requests) = (0.0, 0, 0.0, 0);
                self.client.stats = Stats::default();
                self.osts.iter_mut().for_each(|o| o.stats = Stats::default());
            }
            self.request(*r);
        }
        let mut osts = Stats::default();
        self.osts.iter().for_each(|o| osts.add(&o.stats));
        Outcome {
            bandwidth_mb_per_s: self.bytes as f64 / self.time_ns * 1e3,
            fine_ms: self.fine_ns / self.fine_requests.max(1) as f64 / 1e6,
            client: self.client.stats,
            osts,
        }
    }
}

/// What a run measured.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub bandwidth_mb_per_s: f64,
    pub fine_ms: f64,
    pub client: Stats,
    pub osts: Stats,
}

/// The two cases of paper 000's simulated experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// 16 MiB hot per file, coarse accesses of 64 MiB.
    A,
    /// 128 MiB hot per file, coarse accesses of 32 MiB.
    B,
}

/// The mixed workload: with probability `p` a fine access of 64 KiB at a uniform place in the hot range of a random
/// one of ten files, otherwise a coarse access somewhere in a random file of 2 GiB.
pub fn mixed(case: Case, p: f64, requests: usize, seed: u64) -> Vec<Request> {
    let mut rng = Rng::named(seed, "paper000");
    let (hot, coarse) = match case {
        Case::A => (16 << 20, 64 << 20),
        Case::B => (128 << 20, 32 << 20),
    };
    let (hot, coarse, file_pages) = (hot / PAGE, coarse / PAGE, (2 << 30) / PAGE);
    (0..requests)
        .map(|_| {
            let file = rng.below(10);
            if rng.chance(p) {
                Request { file, first: rng.below(hot), pages: 1, grain: Grain::Fine }
            } else {
                let first = rng.below(file_pages / coarse) * coarse;
                Request { file, first, pages: coarse, grain: Grain::Coarse }
            }
        })
        .collect()
}

/// [`mixed`] in its steady state: every hot page has been read once, in random order, before it begins. Returns the
/// trace and the number of its requests that only warm up, the first `warm` of the mix among them.
pub fn steady(case: Case, p: f64, warm: usize, requests: usize, seed: u64) -> (Vec<Request>, usize) {
    let hot = (if case == Case::A { 16 << 20 } else { 128 << 20 }) / PAGE;
    let mut rng = Rng::named(seed, "steady");
    let mut trace: Vec<Request> =
        (0..10 * hot).map(|i| Request { file: i / hot, first: i % hot, pages: 1, grain: Grain::Fine }).collect();
    rng.shuffle(&mut trace);
    let warm = trace.len() + warm;
    trace.extend(mixed(case, p, requests, seed));
    (trace, warm)
}

/// Four files of 128 MiB read round and round in pieces of 4 MiB beside a stream of fine accesses of a huge file, 16
/// after every piece. Fine accesses alone fill all caches first.
pub fn coarse_reuse(rounds: u64) -> Vec<Request> {
    let mut rng = Rng::named(1, "reuse");
    let mut trace = Vec::new();
    for _ in 0..60_000 {
        let first = rng.below((64 << 30) / PAGE);
        trace.push(Request { file: 9, first, pages: 1, grain: Grain::Fine });
    }
    let piece = (4 << 20) / PAGE;
    for _ in 0..rounds {
        for file in 0..4 {
            for first in (0..(128 << 20) / PAGE).step_by(piece as usize) {
                trace.push(Request { file, first, pages: piece, grain: Grain::Coarse });
                for _ in 0..16 {
                    let first = rng.below((64 << 30) / PAGE);
                    trace.push(Request { file: 9, first, pages: 1, grain: Grain::Fine });
                }
            }
        }
    }
    trace
}
