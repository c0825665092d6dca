//! Logs of a file's readahead: none panics or takes more memory than it justifies.
#![allow(clippy::unwrap_used)]
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use readahead::record::{Call, replay};
use readahead::{Ahead, Config, Facts, POLICIES, Plan, Recorded};
use types::record::Recordable;
use types::{Extent, KIB, MIB, Rng};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn recorded(policy: &str) -> Vec<u8> {
    let mut ahead = Ahead::new(policy, Config::default()).unwrap();
    ahead.record(1 << 16, &mut |_| {}).unwrap();
    let mut file = ahead.open();
    let (mut rng, mut plan) = (Rng::named(3, policy), Plan::default());
    let facts = Facts { file_size: 64 * MIB, stripe_size: MIB, rpc_bytes: MIB, lock: Extent::ALL };
    for i in 0..20 {
        let read = Extent::at(i * 128 * KIB, 128 * KIB);
        for call in [Call::Read(read), Call::Miss(read), Call::Progress(read)] {
            ahead.call(&mut file, call, &facts, &mut plan);
        }
        if rng.chance(0.2) {
            let lost = Extent::at(rng.below(60) * MIB, MIB);
            for call in [Call::Pump, Call::Reclaimed(lost), Call::LockLost(lost), Call::Blocked] {
                ahead.call(&mut file, call, &facts, &mut plan);
            }
        }
    }
    ahead.close(file);
    let mut recorded = Recorded { ahead: &mut ahead, files: &mut |_| {} };
    recorded.tape().take().unwrap().into_bytes()
}

#[test]
fn no_log_of_readahead_panics() {
    let target = Target {
        name: "replay",
        root: ROOT,
        seeds: POLICIES.iter().map(|p| recorded(p.name)).collect(),
        words: &[
            b"18446744073709551615",
            b" max",
            b"read 0 max => ",
            b"\nfacts 0 0 0 0 max\n",
            b" => ",
            b"willneed ",
            b"file 7\n",
            b"close => ",
        ],
        mend: None,
        memory: (1 << 20, 1 << 10),
    };
    target
        .run(|input| outcome_of(&format!("{:?}", replay(&String::from_utf8_lossy(input)).map_err(|e| e.to_string()))));
}
