//! What every allocator must keep, checked against any policy: the house's and an outsider's.
//!
//! A check panics with the seed and the call that broke the rule. Use it from a test:
//! `conformance::check("mine", || Box::new(Mine::new()), seed)`.
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use types::{GIB, OstIndex, Rng};

use crate::allocator::{AllocPolicy, Candidate, is_right};

/// Random creates over a changing set of OSTs: every answer is legal, and a second instance given the same calls gives
/// the same answers.
///
/// # Panics
/// When a rule is broken.
pub fn check(name: &str, make: impl Fn() -> Box<dyn AllocPolicy>, seed: u64) {
    let mut rng = Rng::named(seed, "layout.conformance");
    let (mut policy, mut twin) = (make(), make());
    let mut world = random_world(&mut rng);
    for call in 0..2_000 {
        if rng.chance(0.02) {
            world = random_world(&mut rng);
        }
        for o in &mut world {
            o.free_bytes = o.free_bytes.saturating_sub(rng.below(GIB / 16));
        }
        let present: Vec<Candidate> = world.iter().filter(|_| rng.chance(0.9)).copied().collect();
        if present.is_empty() {
            continue;
        }
        let count = 1 + rng.below(present.len() as u64) as usize;
        let dice = rng.next_u64();
        let (mut answer, mut again) = (Vec::new(), Vec::new());
        policy.choose(&present, count, dice, &mut answer);
        twin.choose(&present, count, dice, &mut again);
        assert!(
            is_right(&present, count, &answer),
            "{name} seed {seed} call {call}: {count} of {present:?} gave {answer:?}"
        );
        assert!(answer == again, "{name} seed {seed} call {call}: same calls, other answers: {answer:?} and {again:?}");
    }
}

/// With equally free OSTs, object counts differ by at most one in every window of creates, and first places by at most
/// two (claim R46).
///
/// # Panics
/// When a count is off.
pub fn check_balance(name: &str, make: impl Fn() -> Box<dyn AllocPolicy>, seed: u64) {
    let mut rng = Rng::named(seed, "layout.balance");
    for osts in 1..=12usize {
        for count in 1..=osts {
            let world: Vec<Candidate> = (0..osts).map(|i| candidate(i, 100 * GIB)).collect();
            let mut policy = make();
            let (mut objects, mut firsts) = (vec![0u32; osts], vec![0u32; osts]);
            for create in 0..100 {
                let mut chosen = Vec::new();
                policy.choose(&world, count, rng.next_u64(), &mut chosen);
                firsts[usize::from(chosen[0].0)] += 1;
                chosen.iter().for_each(|o| objects[usize::from(o.0)] += 1);
                assert!(spread(&objects) <= 1, "{name}: {count} of {osts} OSTs, create {create}: objects {objects:?}");
            }
            assert!(spread(&firsts) <= 2, "{name}: {count} of {osts} OSTs: first stripes {firsts:?}");
        }
    }
}

fn spread(counts: &[u32]) -> u32 {
    let least = counts.iter().min().copied().unwrap_or(0);
    counts.iter().max().copied().unwrap_or(0) - least
}

fn candidate(index: usize, free_bytes: u64) -> Candidate {
    Candidate { index: OstIndex(index as u16), free_bytes, total_bytes: 100 * GIB }
}

fn random_world(rng: &mut Rng) -> Vec<Candidate> {
    let n = 1 + rng.below(20) as usize;
    let gap = 1 + rng.below(5) as usize;
    let uneven = rng.chance(0.5);
    (0..n).map(|i| candidate(i * gap, if uneven { rng.below(100) * GIB } else { 90 * GIB })).collect()
}
