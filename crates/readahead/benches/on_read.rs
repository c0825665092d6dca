//! Cost of `on_read`: one NDJSON line per case (ns per call; n, min, median and max of the rounds).
//!
//! `cargo bench -p stria-readahead`
use std::hint::black_box;
use std::time::Instant;
use types::{Extent, GIB, KIB, MIB, Rng};

use readahead::{Budget, Config, Facts, FileReadahead, Plan};

const ROUNDS: usize = 15;
const CALLS: u64 = 200_000;

fn main() {
    for policy in ["none", "miss", "ondemand", "parallel_sequential", "parallel"] {
        report(policy, "sequential_4k", |i, _| Extent::at(i * 4 * KIB, 4 * KIB));
        report(policy, "sequential_1m", |i, _| Extent::at(i * MIB, MIB));
    }
    report("parallel", "stride_64k_of_256k", |i, _| Extent::at(i * 256 * KIB, 64 * KIB));
    report("parallel", "interleaved_4_streams_64k", |i, _| {
        Extent::at((i % 4) * 256 * GIB + i / 4 * 64 * KIB, 64 * KIB)
    });
    report("parallel", "random_4k", |_, rng| Extent::at(rng.below(1 << 40), 4 * KIB));
}

fn report(policy: &str, case: &str, read: impl Fn(u64, &mut Rng) -> Extent) {
    let mut ns: Vec<f64> = (0..ROUNDS).map(|_| round(policy, &read)).collect();
    ns.sort_by(f64::total_cmp);
    let (min, median, max) = (ns[0], ns[ROUNDS / 2], ns[ROUNDS - 1]);
    println!(
        "{{\"bench\":\"readahead.on_read\",\"policy\":\"{policy}\",\"case\":\"{case}\",\"unit\":\"ns/call\",\"n\":{ROUNDS},\"min\":{min:.1},\"median\":{median:.1},\"max\":{max:.1}}}"
    );
}

fn round(policy: &str, read: &impl Fn(u64, &mut Rng) -> Extent) -> f64 {
    let config = Config::default();
    let mut budget = Budget::new(config.budget_bytes_max);
    let mut file = FileReadahead::new(policy, &config).expect("a name of the registry");
    let facts = Facts { file_size: 1 << 42, stripe_size: 4 * MIB, rpc_bytes: 4 * MIB, lock: Extent::ALL };
    let mut plan = Plan::default();
    let mut rng = Rng::new(1);
    // The first reads miss, so that the stream is warm.
    for i in 0..1000 {
        let e = read(i, &mut rng);
        file.on_read(e, &facts, &mut budget, &mut plan);
        if i < 16 {
            file.on_miss(e, &facts, &mut budget, &mut plan);
        }
    }
    let start = Instant::now();
    for i in 1000..1000 + CALLS {
        file.on_read(black_box(read(i, &mut rng)), &facts, &mut budget, &mut plan);
        black_box(&plan);
    }
    start.elapsed().as_nanos() as f64 / CALLS as f64
}
