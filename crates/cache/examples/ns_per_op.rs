//! Cost of every policy: CPU nanoseconds per operation on one core, by pattern and cache size.
//!
//! `cargo run --release -p stria-cache --example ns_per_op [pages ...]`. An operation is a touch, an insert or the
//! eviction of one page. One NDJSON line per policy, pattern and size: median, minimum and maximum of the rounds.
use cache::{CacheConfig, FrameId, PageAccess, ReclaimPolicy, block_id, registry};
use types::Rng;

const ROUNDS: usize = 7;
const OPS: usize = 1_000_000;

/// What is replayed: hits of random resident pages, a stream that inserts and evicts in batches of 32, or both.
#[derive(Clone, Copy)]
enum Pattern {
    Hits,
    Stream,
    Mixed,
}

struct Bench {
    policy: Box<dyn ReclaimPolicy>,
    /// Prepared outside the timed part: frame to touch, as random as hits are.
    touches: Vec<(FrameId, PageAccess)>,
    free: Vec<FrameId>,
    next_block: u64,
}

impl Bench {
    fn new(build: fn(&CacheConfig) -> Box<dyn ReclaimPolicy>, pages: u32) -> Bench {
        let mut policy = build(&CacheConfig::new(pages));
        let mut rng = Rng::new(1);
        let access = |f: u32| {
            let block = block_id(9, u64::from(f));
            if f.is_multiple_of(2) { PageAccess::fine(block) } else { PageAccess::coarse(block, 1 << 20) }
        };
        (0..pages).for_each(|f| policy.insert(FrameId(f), access(f)));
        // Frames below 3/4 of the cache are hit; a quarter serves the stream.
        let touches = (0..OPS).map(|_| rng.below(u64::from(pages) * 3 / 4) as u32).map(|f| (FrameId(f), access(f)));
        Bench { policy, touches: touches.collect(), free: Vec::with_capacity(64), next_block: 1 << 40 }
    }

    /// Operations carried out.
    fn round(&mut self, pattern: Pattern) -> usize {
        let Bench { policy, touches, free, next_block } = self;
        let mut ops = 0usize;
        for &(frame, access) in touches.iter() {
            if !matches!(pattern, Pattern::Stream) {
                // A page of the hit range that was evicted is not touched.
                if !free.contains(&frame) {
                    policy.touch(frame, access);
                    ops += 1;
                }
            }
            if !matches!(pattern, Pattern::Hits) && (ops.is_multiple_of(4) || matches!(pattern, Pattern::Stream)) {
                if free.is_empty() {
                    policy.reclaim(32, &mut |_| true, free);
                    ops += 32;
                }
                let frame = free.pop().expect("reclaim freed pages");
                *next_block += 1;
                policy.insert(frame, PageAccess::coarse(*next_block, 1 << 20));
                ops += 1;
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
    let sizes: Vec<u32> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![16_384, 262_144] } else { sizes };
    for pages in sizes {
        for entry in registry() {
            for (name, pattern) in [("hits", Pattern::Hits), ("stream", Pattern::Stream), ("mixed", Pattern::Mixed)] {
                let mut bench = Bench::new(entry.build, pages);
                bench.round(pattern);
                let mut ns: Vec<f64> = (0..ROUNDS)
                    .map(|_| {
                        let start = cpu_ns();
                        let ops = bench.round(pattern);
                        (cpu_ns() - start) as f64 / ops as f64
                    })
                    .collect();
                ns.sort_by(f64::total_cmp);
                println!(
                    "{{\"benchmark\":\"cache_policy\",\"policy\":\"{}\",\"pattern\":\"{name}\",\"pages\":{pages},\"unit\":\"cpu_ns/op\",\"n\":{ROUNDS},\"min\":{:.1},\"median\":{:.1},\"max\":{:.1},\"metadata_bytes_per_page\":{}}}",
                    entry.name,
                    ns[0],
                    ns[ROUNDS / 2],
                    ns[ROUNDS - 1],
                    bench.policy.metadata_bytes_per_page()
                );
            }
        }
    }
}
