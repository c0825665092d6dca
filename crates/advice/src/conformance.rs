//! What the advice room must keep whatever its table says: a byte model and random operations.
//!
//! `conformance::check("mine", &MINE, seed)` from a test; it panics with the seed and the call.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use types::{Extent, Instant, KIB, MIB, ObjectId, OstIndex, Rng};

use crate::admission::{AdmissionEntry, Missed};
use crate::advisor::{Advice, AdviceError, Advisor, OwnerId, Payer, ProjectId, Refusal, Step, Tiers, UserId, Wish};
use crate::config::Config;
use crate::table::PolicyEntry;
use crate::{Hint, Pressure, Tier};

const OPS: usize = 1_500;
/// The model counts in blocks, so that it stays small.
const BLOCK: u64 = 64 * KIB;

/// What the driver would know of each block: its tier and class.
type Model = BTreeMap<(ObjectId, u64), (Tier, Hint)>;

/// Random advice, releases and pressure on a few objects. Checks after every call: the steps, carried out by a driver,
/// give exactly what [`Advisor::class`] answers; sums agree; tiers, projects and users stay within their shares; bytes lose their
/// class only to a higher class or to new advice on themselves; `Only` wishes are obeyed; a twin answers the same.
///
/// # Panics
/// When a rule is broken.
pub fn check(name: &str, entry: &PolicyEntry, seed: u64) {
    let mut rng = Rng::named(seed, "advice.conformance");
    let config = Config { part_bytes_min: BLOCK, ..Config::default() };
    let (mut advisor, mut twin) =
        (Advisor::with_entry(entry, config.clone()), Advisor::with_entry(entry, config.clone()));
    let budget = [MIB, 3 * MIB];
    for payer in [Payer::Project(ProjectId(2)), Payer::User(UserId(1))] {
        advisor.set_budget(payer, Some(budget));
        twin.set_budget(payer, Some(budget));
    }
    let mut tiers = Tiers { size_bytes: [8 * MIB, 32 * MIB], pressure: [Pressure::Low; 2] };
    let mut model = Model::new();
    for op in 0..OPS {
        let at = alloc::format!("{name} seed {seed} op {op}");
        if rng.chance(0.05) {
            tiers.pressure = [0; 2].map(|_: u8| Pressure::ALL[rng.below(3) as usize]);
        }
        let (mut steps, mut again) = (Vec::new(), Vec::new());
        if rng.chance(0.02) {
            let owner = OwnerId(rng.below(4));
            advisor.release_owner(owner, &tiers, &mut steps);
            twin.release_owner(owner, &tiers, &mut again);
            apply(&mut model, &steps, None, &at);
        } else if rng.chance(0.02) {
            let object = random_object(&mut rng);
            advisor.on_destroyed(object);
            twin.on_destroyed(object);
            model.retain(|k, _| k.0 != object);
        } else if rng.chance(0.02) {
            let (object, cut) = (random_object(&mut rng), Extent::from(rng.below(140) * BLOCK));
            advisor.on_cut(object, cut);
            twin.on_cut(object, cut);
            model.retain(|k, _| k.0 != object || k.1 * BLOCK < cut.start);
        } else {
            let advice = random_advice(&mut rng);
            let (one, two) = [(&mut advisor, &mut steps), (&mut twin, &mut again)]
                .map(|(a, steps)| a.advise(&advice, &tiers, steps))
                .into();
            assert!(one == two, "{at}: same calls, other answers");
            let fits = one.is_ok() || matches!(one, Err(AdviceError::Refused(why)) if why != Refusal::Pressure);
            assert!(fits && (one.is_ok() || steps.is_empty()), "{at}: {one:?} for legal advice");
            apply(&mut model, &steps, Some(&advice), &at);
        }
        assert!(steps == again, "{at}: same calls, other answers");
        agree(&advisor, &model, &at);
        within_limits(&advisor, &tiers, &config, budget, &at);
    }
}

/// Random reads of a few units, and a scan. Checks: a twin answers the same; only blocks that were asked for are copied; a
/// scan that touches every block once gets none copied, where the policy says so, also in the middle of other reads.
///
/// # Panics
/// When a rule is broken.
pub fn check_admission(entry: &AdmissionEntry, seed: u64) {
    let mut rng = Rng::named(seed, "admission.conformance");
    let config = Config { fast_remembered_max: 64, ..Config::default() };
    let (mut policy, mut twin) = ((entry.make)(&config), (entry.make)(&config));
    let (mut now, mut scanned) = (Instant::ZERO, 1 << 32);
    for op in 0..OPS * 4 {
        now.0 += rng.below(1 << 30);
        let is_scan = rng.chance(0.5);
        let unit = if is_scan { scanned } else { rng.below(40) };
        scanned += u64::from(is_scan);
        // Units are well mixed numbers.
        let unit = unit.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let missed = Missed { unit, blocks: rng.next_u64() & rng.next_u64(), read_bytes: rng.below(2 * MIB) };
        let worth = policy.worth(now, missed);
        let at = alloc::format!("{} seed {seed} op {op}: {missed:?}", entry.name);
        assert_eq!(worth, twin.worth(now, missed), "{at}: same calls, other answers");
        assert_eq!(worth & !missed.blocks, 0, "{at}: blocks that were not read");
        assert!(!(is_scan && entry.facts.resists_scans) || worth == 0, "{at}: a scan is copied");
    }
}

/// Carries steps out as a driver would, and checks each.
fn apply(model: &mut Model, steps: &[Step], advice: Option<&Advice>, at: &str) {
    for step in steps {
        match *step {
            Step::Prefetch(object, extent, tier, hint) | Step::Keep(object, extent, tier, hint) => {
                let advice = advice.unwrap_or_else(|| panic!("{at}: {step:?} without advice"));
                assert!(advice.object == object && advice.extent.contains(&extent), "{at}: {step:?} was not advised");
                assert!(advice.hint == hint && hint != Hint::None, "{at}: {step:?} in another class");
                assert!(advice.wish == Wish::Auto || advice.wish == Wish::Only(tier), "{at}: {step:?} in another tier");
                blocks(extent).for_each(|b| _ = model.insert((object, b), (tier, hint)));
            }
            Step::Release(object, extent, tier) | Step::Drop(object, extent, tier) => {
                for b in blocks(extent) {
                    // A block that went to the other tier in the same call keeps its new place.
                    if model.get(&(object, b)).is_some_and(|m| m.0 == tier) {
                        let (_, hint) = model.remove(&(object, b)).expect("it was just found");
                        let own = advice.is_none_or(|a| a.object == object && a.extent.overlaps(&extent));
                        let below = advice.is_some_and(|a| hint < a.hint);
                        assert!(own || below, "{at}: {step:?} takes class {hint:?} away from others");
                    }
                }
            }
            Step::Refused(object, extent, _) => {
                let advice = advice.unwrap_or_else(|| panic!("{at}: {step:?} without advice"));
                assert!(advice.object == object && advice.extent.contains(&extent), "{at}: {step:?} was not advised");
                blocks(extent)
                    .for_each(|b| assert!(!model.contains_key(&(object, b)) || steps.len() > 1, "{at}: {step:?}"));
            }
        }
    }
}

fn agree(advisor: &Advisor, model: &Model, at: &str) {
    let mut placed = Model::new();
    for (object, extent, tier, hint) in advisor.placed() {
        for b in blocks(extent) {
            let twice = placed.insert((object, b), (tier, hint));
            assert!(twice.is_none(), "{at}: block {b} of {object} is placed twice");
            assert_eq!(advisor.class(object, b * BLOCK, tier), hint, "{at}");
        }
    }
    assert!(placed == *model, "{at}: the steps and the advisor disagree");
    for tier in Tier::ALL {
        let bytes = model.values().filter(|m| m.0 == tier).count() as u64 * BLOCK;
        assert_eq!(advisor.held_bytes(tier, Hint::None), bytes, "{at}: the sum of {tier:?}");
    }
}

fn within_limits(advisor: &Advisor, tiers: &Tiers, config: &Config, budget: [u64; 2], at: &str) {
    for tier in Tier::ALL {
        let size = tiers.size_bytes[tier as usize];
        let held = advisor.held_bytes(tier, Hint::None);
        assert!(held <= size * config.advised_percent_max / 100, "{at}: {held} advised bytes in {tier:?}");
        for p in 0..3 {
            let limit = if p == 2 { budget[tier as usize] } else { size * config.project_percent_max / 100 };
            let held = advisor.payer_held_bytes(Payer::Project(ProjectId(p)), tier);
            assert!(held <= limit, "{at}: project {p} holds {held} of {limit} in {tier:?}");
        }
        let (held, limit) = (advisor.payer_held_bytes(Payer::User(UserId(1)), tier), budget[tier as usize]);
        assert!(held <= limit, "{at}: a user holds {held} of {limit} in {tier:?}");
    }
}

fn random_object(rng: &mut Rng) -> ObjectId {
    ObjectId::new(OstIndex(0), 1 + rng.below(6) as u32)
}

fn random_advice(rng: &mut Rng) -> Advice {
    let blocks_max = if rng.chance(0.1) { 400 } else { 40 };
    Advice {
        object: random_object(rng),
        extent: Extent::at(rng.below(100) * BLOCK, (1 + rng.below(blocks_max)) * BLOCK),
        hint: Hint::ALL[rng.below(5) as usize],
        wish: [Wish::Auto, Wish::Auto, Wish::Only(Tier::Ram), Wish::Only(Tier::Fast)][rng.below(4) as usize],
        project: ProjectId(rng.below(3) as u32),
        owner: OwnerId(rng.below(4)),
        user: UserId(rng.below(3) as u32),
    }
}

fn blocks(e: Extent) -> core::ops::Range<u64> {
    assert!(e.start.is_multiple_of(BLOCK) && e.end.is_multiple_of(BLOCK), "{e} is cut within a block");
    e.start / BLOCK..e.end / BLOCK
}
