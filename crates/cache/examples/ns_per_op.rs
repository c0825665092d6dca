//! Cost of every policy: CPU nanoseconds per operation on one core, by pattern and cache size.
//!
//! `cargo run --release -p stria-cache --example ns_per_op [pages ...] [policy ...]`. An operation is a touch, an insert or the
//! eviction of one page. Pages are random over the whole cache, other ones in every round. With `batch` 16, a request of 64 KiB
//! tells its pages at once, as an OST does; with 1, every page by itself. One NDJSON line per policy, pattern, batch and size:
//! median, minimum and maximum of the rounds.
use cache::{CacheConfig, FrameId, PageAccess, ReclaimPolicy, block_id, registry};
use types::Rng;

const ROUNDS: usize = 7;
const OPS: usize = 1_000_000;

/// What is replayed: hits of random resident pages, a stream that inserts and evicts in batches of 32, or four hits per
/// page of the stream.
#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Hits,
    Stream,
    Mixed,
}

struct Bench {
    policy: Box<dyn ReclaimPolicy>,
    pages: u32,
    rng: Rng,
    /// One bit per frame: not resident.
    absent: Vec<u64>,
    free: Vec<FrameId>,
    next_block: u64,
}

fn access(frame: u32) -> PageAccess {
    let block = block_id(9, u64::from(frame));
    if frame.is_multiple_of(2) { PageAccess::fine(block) } else { PageAccess::coarse(block, 1 << 20) }
}

impl Bench {
    fn new(build: fn(&CacheConfig) -> Box<dyn ReclaimPolicy>, pages: u32) -> Bench {
        let mut policy = build(&CacheConfig::new(pages));
        (0..pages).for_each(|f| policy.insert(FrameId(f), access(f)));
        let absent = vec![0; pages as usize / 64 + 1];
        Bench { policy, pages, rng: Rng::new(1), absent, free: Vec::with_capacity(64), next_block: 1 << 40 }
    }

    /// Frames to touch, prepared outside the timed part.
    fn draw(&mut self) -> Vec<(FrameId, PageAccess)> {
        let rng = &mut self.rng;
        let frames = (0..OPS).map(|_| rng.below(u64::from(self.pages)) as u32);
        frames.map(|f| (FrameId(f), access(f))).collect()
    }

    fn tell(&mut self, batch: &mut Vec<(FrameId, PageAccess)>, insert: bool) -> usize {
        match (insert, batch[..].len()) {
            (true, 1) => self.policy.insert(batch[0].0, batch[0].1),
            (false, 1) => self.policy.touch(batch[0].0, batch[0].1),
            (true, _) => self.policy.insert_batch(batch),
            (false, _) => self.policy.touch_batch(batch),
        }
        let ops = batch.len();
        batch.clear();
        ops
    }

    /// Operations carried out.
    fn round(&mut self, pattern: Pattern, touches: &[(FrameId, PageAccess)], batch: usize) -> usize {
        let (mut ops, mut now) = (0, Vec::with_capacity(batch));
        for some in touches.chunks(if pattern == Pattern::Mixed { 4 * batch } else { batch }) {
            if pattern != Pattern::Stream {
                for request in some.chunks(batch) {
                    // A page that was evicted is not touched.
                    let here = |f: FrameId| self.absent[f.0 as usize / 64] >> (f.0 % 64) & 1 == 0;
                    now.extend(request.iter().filter(|(f, _)| here(*f)));
                    if !now.is_empty() {
                        ops += self.tell(&mut now, false);
                    }
                }
            }
            if pattern != Pattern::Hits {
                if self.free.len() < batch {
                    let before = self.free.len();
                    self.policy.reclaim(32, &mut |_| true, &mut self.free);
                    self.free[before..].iter().for_each(|f| self.absent[f.0 as usize / 64] |= 1 << (f.0 % 64));
                    ops += 32;
                }
                for frame in self.free.drain(self.free.len() - batch..) {
                    self.absent[frame.0 as usize / 64] &= !(1 << (frame.0 % 64));
                    self.next_block += 1;
                    now.push((frame, PageAccess::coarse(block_id(10, self.next_block), 1 << 20)));
                }
                ops += self.tell(&mut now, true);
            }
        }
        ops
    }
}

/// Time that this process has spent on a CPU, so that a busy machine does not count. Linux.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux with schedstat");
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("the first field is a time in ns")
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes: Vec<u32> = words.iter().filter_map(|a| a.parse().ok()).collect();
    let named = |name: &str| words.iter().any(|w| w == name) || words.len() == sizes.len();
    for &pages in if sizes.is_empty() { &[16_384, 1 << 20][..] } else { &sizes } {
        for entry in registry().iter().filter(|e| named(e.name)) {
            for (name, pattern) in [("hits", Pattern::Hits), ("stream", Pattern::Stream), ("mixed", Pattern::Mixed)] {
                for batch in [1, 16] {
                    measure(entry, name, pattern, batch, pages);
                }
            }
        }
    }
}

fn measure(entry: &cache::PolicyEntry, name: &str, pattern: Pattern, batch: usize, pages: u32) {
    let mut bench = Bench::new(entry.make, pages);
    let mut round = || {
        let touches = bench.draw();
        let start = cpu_ns();
        let ops = bench.round(pattern, &touches, batch);
        (cpu_ns() - start) as f64 / ops as f64
    };
    round();
    let mut ns: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    ns.sort_by(f64::total_cmp);
    println!(
        "{{\"benchmark\":\"cache_policy\",\"policy\":\"{}\",\"pattern\":\"{name}\",\"batch\":{batch},\"pages\":{pages},\"unit\":\"cpu_ns/op\",\"n\":{ROUNDS},\"min\":{:.1},\"median\":{:.1},\"max\":{:.1},\"metadata_bytes_per_page\":{}}}",
        entry.name,
        ns[0],
        ns[ROUNDS / 2],
        ns[ROUNDS - 1],
        bench.policy.metadata_bytes_per_page()
    );
}
