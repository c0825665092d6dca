//! Logs of a file's readahead: none panics or takes more memory than it justifies.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use readahead::record::{Call, Recorder, replay};
use readahead::{Budget, Config, Facts, POLICIES, Plan};
use types::{Extent, KIB, MIB, Rng};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn recorded(policy: &str) -> Vec<u8> {
    let config = Config::default();
    let mut budget = Budget::new(config.budget_bytes_max);
    let mut recorder = Recorder::new(policy, &config, 1 << 16).unwrap();
    let (mut rng, mut plan) = (Rng::named(3, policy), Plan::default());
    let facts = Facts { file_size: 64 * MIB, stripe_size: MIB, rpc_bytes: MIB, lock: Extent::ALL };
    for i in 0..20 {
        let read = Extent::at(i * 128 * KIB, 128 * KIB);
        for call in [Call::Read(read), Call::Miss(read), Call::Progress(read)] {
            recorder.call(call, &facts, &mut budget, &mut plan);
        }
        if rng.chance(0.2) {
            let lost = Extent::at(rng.below(60) * MIB, MIB);
            for call in [Call::Pump, Call::Reclaimed(lost), Call::LockLost(lost), Call::Blocked] {
                recorder.call(call, &facts, &mut budget, &mut plan);
            }
        }
    }
    recorder.log().as_bytes().to_vec()
}

#[test]
fn no_log_of_readahead_panics() {
    let target = Target {
        name: "replay",
        root: ROOT,
        seeds: POLICIES.iter().map(|p| recorded(p.name)).collect(),
        words: &[b"18446744073709551615", b" max", b"read 0 max => ", b"\nfacts 0 0 0 0 max\n", b" => ", b"willneed "],
        mend: None,
        memory: (1 << 20, 1 << 10),
    };
    target
        .run(|input| outcome_of(&format!("{:?}", replay(&String::from_utf8_lossy(input)).map_err(|e| e.to_string()))));
}
