//! Logs of an advisor: none panics or takes more memory than it justifies.
#![allow(clippy::unwrap_used)]
use advice::record::{Call, Recorder, replay};
use advice::table::POLICIES;
use advice::{Advice, Advisor, Config, Hint, OwnerId, Payer, Pressure, ProjectId, Steps, Tier, Tiers, UserId, Wish};
use formats::fuzz::{Target, outcome_of};
use formats::memory::Counting;
use types::{Extent, MIB, ObjectId, OstIndex, Rng};

#[global_allocator]
static MEMORY: Counting = Counting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn recorded(policy: &str) -> Vec<u8> {
    let mut rng = Rng::named(3, policy);
    let mut recorder = Recorder::new(Advisor::new(policy, Config::default()).unwrap(), 1 << 16);
    let mut steps = Steps::new();
    for _ in 0..30 {
        let pressure = [0; 2].map(|_: u8| Pressure::ALL[rng.below(3) as usize]);
        let tiers = Tiers { size_bytes: [64 * MIB, 256 * MIB], pressure };
        let (object, project) = (ObjectId::new(OstIndex(0), rng.below(4) as u32), ProjectId(rng.below(3) as u32));
        let call = match rng.below(8) {
            0 => Call::Release(OwnerId(rng.below(4))),
            1 => Call::Destroyed(object),
            2 => Call::Budget(Payer::Project(project), Some([rng.below(64) * MIB, rng.below(256) * MIB])),
            n => Call::Advise(Advice {
                object,
                extent: Extent::at(rng.below(100) * MIB, rng.below(40) * MIB),
                hint: Hint::ALL[rng.below(5) as usize],
                wish: [Wish::Auto, Wish::Only(Tier::Ram), Wish::Only(Tier::Fast)][n as usize % 3],
                project,
                owner: OwnerId(rng.below(4)),
                user: UserId(rng.below(3) as u32),
            }),
        };
        let _ = recorder.call(call, &tiers, &mut steps);
    }
    recorder.log().as_bytes().to_vec()
}

#[test]
fn no_log_of_an_advisor_panics() {
    let target = Target {
        name: "replay",
        root: ROOT,
        seeds: POLICIES.iter().map(|p| recorded(p.name)).collect(),
        words: &[b"18446744073709551615", b"4294967295", b" -> ", b" => ", b"\n"],
        mend: None,
        memory: (1 << 20, 1 << 10),
    };
    target
        .run(|input| outcome_of(&format!("{:?}", replay(&String::from_utf8_lossy(input)).map_err(|e| e.to_string()))));
}
