//! Logs of a cache: none panics the reader or a policy, or takes more memory than it justifies.
#![allow(clippy::unwrap_used)]
use cache::record::{Log, Recorder};
use cache::{Advice, CacheConfig, FrameId, Grain, PageAccess, build, registry};
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use types::Rng;

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn recorded(policy: &str) -> Vec<u8> {
    let config = CacheConfig::new(16);
    let mut r = Recorder::new(build(policy, &config).unwrap(), config, 400);
    let mut rng = Rng::named(5, policy);
    let mut resident = std::collections::BTreeSet::new();
    use cache::ReclaimPolicy;
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
    r.log().to_text().into_bytes()
}

#[test]
fn no_log_of_a_cache_panics() {
    let target = Target {
        name: "replay",
        root: ROOT,
        seeds: registry().iter().map(|p| recorded(p.name)).collect(),
        words: &[b"4294967295", b"\ni 3 0:0:f0", b"\nr 3", b"\nt 3 0:0:c1", b"\ne 4 1+ 2- = 1", b"capacity_pages=1 "],
        mend: None,
        memory: (2 << 20, 1 << 10),
    };
    target.run(|input| {
        let text = String::from_utf8_lossy(input);
        match Log::from_text(&text) {
            // A policy's memory follows the capacity, which may be that of a large server.
            Ok(log) if log.config.capacity_pages > 1 << 12 => 1,
            Ok(log) => {
                let Ok(mut policy) = build(&log.policy, &log.config) else { return 1 };
                match log.replay(&mut *policy) {
                    Ok(()) => 2,
                    Err(d) => 3 + d.call as u64,
                }
            }
            Err(e) => outcome_of(&e),
        }
    });
}
