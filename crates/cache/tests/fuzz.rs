//! Logs of a cache: none panics the reader or a policy, or takes more memory than it justifies.
#![allow(clippy::unwrap_used)]
use cache::record::replay;
use cache::{Advice, CacheConfig, FrameId, Grain, PageAccess, ReclaimPolicy, Reclaimer, build, registry};
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use types::Rng;

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn recorded(policy: &str) -> Vec<u8> {
    let mut r = Reclaimer::new(policy, CacheConfig::new(16)).unwrap();
    r.record(1 << 16, &mut |_| 0).unwrap();
    let mut rng = Rng::named(5, policy);
    let mut resident = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let access = PageAccess {
            block: rng.below(64),
            request_bytes: 4096,
            grain: if rng.chance(0.5) { Grain::Fine } else { Grain::Coarse },
            advice: Advice::ALL[rng.below(Advice::ALL.len() as u64) as usize],
            readahead: rng.chance(0.3),
            write: rng.chance(0.3),
        };
        let frame = FrameId(rng.below(16) as u32);
        if resident.insert(frame.0) {
            r.insert(frame, access);
        } else if rng.chance(0.8) {
            r.touch(frame, access);
        } else {
            r.remove(frame);
            resident.remove(&frame.0);
        }
        if rng.chance(0.1) {
            let mut victims = Vec::new();
            r.reclaim(2, &mut |f| f.0 % 2 == 0, &mut victims);
            for v in victims {
                resident.remove(&v.0);
            }
        }
    }
    r.take_record().unwrap().into_bytes()
}

#[test]
fn no_log_of_a_cache_panics() {
    let target = Target {
        name: "replay",
        root: ROOT,
        seeds: registry().iter().map(|p| recorded(p.name)).collect(),
        words: &[
            b"4294967295",
            b"\ni 3 0:0:f0",
            b"\nr 3",
            b"\nt 3 0:0:c1",
            b"\ne 4 1+ 2- = 1",
            b"capacity_pages=1 ",
            b"\np arc",
            b"\na 0:0:f0 +",
        ],
        mend: None,
        memory: (2 << 20, 1 << 10),
    };
    target.run(|input| {
        let outcome = replay(&String::from_utf8_lossy(input), small);
        outcome_of(&format!("{:?}", outcome.map_err(|e| e.to_string())))
    });
}

/// A policy's memory follows the capacity, which may be that of a large server.
fn small(policy: &str, config: &CacheConfig) -> Result<Box<dyn ReclaimPolicy>, String> {
    if config.capacity_pages > 1 << 12 { Err("too large".into()) } else { build(policy, config) }
}
