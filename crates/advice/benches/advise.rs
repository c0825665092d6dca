//! Cost of advice and of asking for a page's class, with up to 10^5 advised extents: one NDJSON line per case (ns per
//! call; n, min, median and max of the rounds).
//!
//! `cargo bench -p stria-advice`
use std::hint::black_box;
use std::time::Instant;

use advice::{Advice, Advisor, Config, Hint, OwnerId, POLICIES, Pressure, ProjectId, Tier, Tiers, UserId, Wish};
use types::{Extent, GIB, MIB, ObjectId, OstIndex, Rng};

const ROUNDS: usize = 9;
const CALLS: u64 = 20_000;
const TIERS: Tiers = Tiers { size_bytes: [256 * GIB, 1024 * GIB], pressure: [Pressure::Low; 2] };

fn main() {
    for entry in POLICIES {
        for extents in [1_000, 100_000] {
            report(entry.name, "advise", extents, |advisor, rng| {
                let mut steps = Vec::new();
                let advice = random(rng, extents);
                advisor.advise(&advice, &TIERS, &mut steps).expect("the advice is legal");
                black_box(&steps);
            });
            report(entry.name, "class", extents, |advisor, rng| {
                let advice = random(rng, extents);
                black_box(advisor.class(advice.object, advice.extent.start, Tier::Ram));
            });
        }
    }
}

fn random(rng: &mut Rng, extents: u64) -> Advice {
    let place = rng.below(extents);
    Advice {
        object: ObjectId::new(OstIndex(0), 1 + (place / 64) as u32),
        extent: Extent::at(place % 64 * 8 * MIB, MIB),
        hint: Hint::ALL[1 + rng.below(4) as usize],
        wish: Wish::Auto,
        project: ProjectId((place % 7) as u32),
        owner: OwnerId(place % 100),
        user: UserId((place % 5) as u32),
    }
}

fn report(policy: &str, case: &str, extents: u64, call: impl Fn(&mut Advisor, &mut Rng)) {
    let mut ns: Vec<f64> = (0..ROUNDS).map(|_| round(policy, extents, &call)).collect();
    ns.sort_by(f64::total_cmp);
    let (min, median, max) = (ns[0], ns[ROUNDS / 2], ns[ROUNDS - 1]);
    println!(
        "{{\"bench\":\"advice.{case}\",\"policy\":\"{policy}\",\"extents\":{extents},\"unit\":\"ns/call\",\"n\":{ROUNDS},\"min\":{min:.1},\"median\":{median:.1},\"max\":{max:.1}}}"
    );
}

fn round(policy: &str, extents: u64, call: &impl Fn(&mut Advisor, &mut Rng)) -> f64 {
    let mut advisor = Advisor::new(policy, Config::default()).expect("a name of the registry");
    let mut rng = Rng::new(1);
    let mut steps = Vec::new();
    for _ in 0..extents {
        let advice = random(&mut rng, extents);
        advisor.advise(&advice, &TIERS, &mut steps).expect("the advice is legal");
        steps.clear();
    }
    let start = Instant::now();
    for _ in 0..CALLS {
        call(&mut advisor, &mut rng);
    }
    start.elapsed().as_nanos() as f64 / CALLS as f64
}
