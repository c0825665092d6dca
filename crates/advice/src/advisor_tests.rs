//! The claims of paper 004 that a room without disks can show.
use super::*;
use crate::{conformance, table};
use std::string::ToString;
use std::vec;
use types::{FsError, GIB, MIB, OstIndex};

fn object(n: u32) -> ObjectId {
    ObjectId::new(OstIndex(0), n)
}

fn advisor() -> Advisor {
    Advisor::new("house", Config { project_percent_max: 100, ..Config::default() }).unwrap()
}

/// 10 GiB of RAM (8 for advice), 100 GiB of SSD (80 for advice).
fn tiers(ram: Pressure) -> Tiers {
    Tiers { size_bytes: [10 * GIB, 100 * GIB], pressure: [ram, Pressure::Low] }
}

fn advice(n: u32, bytes: u64, hint: Hint) -> Advice {
    Advice {
        object: object(n),
        extent: Extent::new(0, bytes),
        hint,
        wish: Wish::Auto,
        project: ProjectId(1),
        owner: OwnerId(0),
        user: UserId(5),
    }
}

fn advise(a: &mut Advisor, advice: &Advice) -> Steps {
    let mut steps = vec![];
    a.advise(advice, &tiers(Pressure::Low), &mut steps).unwrap();
    steps
}

#[test]
fn every_policy_conforms() {
    for p in table::POLICIES {
        for seed in 0..8 {
            conformance::check(p.name, p, seed);
        }
    }
}

#[test]
fn each_object_goes_to_the_tier_where_it_fits() {
    let mut a = advisor();
    let place = |a: &mut Advisor, n, gib: u64| advise(a, &advice(n, gib * GIB, Hint::Med));
    let all = |n, gib: u64, tier| vec![Step::Prefetch(object(n), Extent::new(0, gib * GIB), tier, Hint::Med)];
    assert_eq!(place(&mut a, 1, 6), all(1, 6, Tier::Ram));
    assert_eq!(place(&mut a, 2, 6), all(2, 6, Tier::Fast), "2 GiB of RAM are left");
    assert_eq!(place(&mut a, 3, 2), all(3, 2, Tier::Ram));
    assert_eq!(place(&mut a, 4, 70), all(4, 70, Tier::Fast));
    let refused = Step::Refused(object(5), Extent::new(4 * GIB, 9 * GIB), Refusal::NoRoom);
    let part = Step::Prefetch(object(5), Extent::new(0, 4 * GIB), Tier::Fast, Hint::Med);
    assert_eq!(place(&mut a, 5, 9), [part, refused], "what is left of the SSD, the rest as without advice");
}

#[test]
fn an_object_larger_than_every_tier_is_split_nearest_first() {
    let steps = advise(&mut advisor(), &advice(1, 128 * GIB, Hint::High));
    assert_eq!(
        steps,
        [
            Step::Prefetch(object(1), Extent::new(0, 8 * GIB), Tier::Ram, Hint::High),
            Step::Prefetch(object(1), Extent::new(8 * GIB, 88 * GIB), Tier::Fast, Hint::High),
            Step::Refused(object(1), Extent::new(88 * GIB, 128 * GIB), Refusal::NoRoom),
        ]
    );
}

#[test]
fn higher_classes_displace_lower_ones_lowest_and_oldest_first() {
    let mut a = advisor();
    let ram = |mut x: Advice| {
        x.wish = Wish::Only(Tier::Ram);
        x
    };
    for (n, hint) in [(1, Hint::Med), (2, Hint::Low), (3, Hint::Cache), (4, Hint::Low)] {
        advise(&mut a, &ram(advice(n, 2 * GIB, hint)));
    }
    let whole = Extent::new(0, 2 * GIB);
    let steps = advise(&mut a, &ram(advice(5, 5 * GIB, Hint::High)));
    let released: Steps = [3, 2, 4].map(|n| Step::Release(object(n), whole, Tier::Ram)).to_vec();
    assert_eq!(steps[..3], released);
    assert_eq!(steps[3], Step::Prefetch(object(5), Extent::new(0, 5 * GIB), Tier::Ram, Hint::High));
    assert_eq!(a.class(object(1), 0, Tier::Ram), Hint::Med);
    assert_eq!(a.class(object(2), 0, Tier::Ram), Hint::None);
    assert!(
        matches!(advise(&mut a, &ram(advice(6, 4 * GIB, Hint::High)))[..], [Step::Release(..), Step::Prefetch(..), Step::Refused(_, e, Refusal::NoRoom)] if e.len() == GIB)
    );
}

#[test]
fn advised_bytes_never_fill_a_tier() {
    let mut a = advisor();
    for n in 1..100 {
        let taken = a.advise(&advice(n, 3 * GIB, Hint::High), &tiers(Pressure::Low), &mut vec![]);
        assert!(matches!(taken, Ok(()) | Err(AdviceError::Refused(Refusal::NoRoom))));
    }
    assert!(a.held_bytes(Tier::Ram, Hint::None) <= 8 * GIB);
    assert!(a.held_bytes(Tier::Fast, Hint::None) <= 80 * GIB);
}

#[test]
fn a_project_cannot_exceed_its_budget_but_may_reorder_within_it() {
    let mut a = advisor();
    a.set_budget(Payer::Project(ProjectId(1)), Some([3 * GIB, 0]));
    advise(&mut a, &advice(1, 2 * GIB, Hint::Low));
    let steps = advise(&mut a, &advice(2, 2 * GIB, Hint::Low));
    assert!(
        matches!(steps[..], [Step::Prefetch(_, e, Tier::Ram, _), Step::Refused(_, _, Refusal::Budget)] if e.len() == GIB)
    );
    let steps = advise(&mut a, &advice(3, 3 * GIB, Hint::High));
    assert_eq!(steps.len(), 3, "its own lower classes gave way: {steps:?}");
    assert_eq!(a.payer_held_bytes(Payer::Project(ProjectId(1)), Tier::Ram), 3 * GIB);
    let mut other = advice(4, 4 * GIB, Hint::Low);
    other.project = ProjectId(7);
    assert!(
        matches!(advise(&mut a, &other)[..], [Step::Prefetch(_, _, Tier::Ram, _)]),
        "another project's room is its own"
    );
}

#[test]
fn a_user_with_a_budget_has_it_over_all_projects_and_no_other_user_is_touched() {
    let mut a = advisor();
    a.set_budget(Payer::User(UserId(5)), Some([3 * GIB, 0]));
    advise(&mut a, &advice(1, 2 * GIB, Hint::Low));
    let elsewhere = Advice { project: ProjectId(2), ..advice(2, 2 * GIB, Hint::Low) };
    let steps = advise(&mut a, &elsewhere);
    assert!(
        matches!(steps[..], [Step::Prefetch(_, e, Tier::Ram, _), Step::Refused(..)] if e.len() == GIB),
        "{steps:?}"
    );
    advise(&mut a, &Advice { user: UserId(6), ..advice(3, 4 * GIB, Hint::Low) });
    // Their own lower classes make way for them, nobody else's.
    let steps = advise(&mut a, &advice(4, 3 * GIB, Hint::High));
    assert_eq!(a.payer_held_bytes(Payer::User(UserId(5)), Tier::Ram), 3 * GIB, "{steps:?}");
    assert_eq!(a.payer_held_bytes(Payer::User(UserId(6)), Tier::Ram), 4 * GIB);
    let mut steps = vec![];
    let no = a.advise(&advice(5, GIB, Hint::High), &tiers(Pressure::Low), &mut steps);
    assert_eq!(no, Err(AdviceError::Refused(Refusal::Budget)));
    a.set_budget(Payer::User(UserId(5)), None);
    assert_eq!(advise(&mut a, &advice(5, GIB, Hint::High)).len(), 1);
}

#[test]
fn advice_for_which_there_is_no_room_at_all_is_an_error_and_leaves_what_was_placed() {
    let mut a = advisor();
    a.set_budget(Payer::Project(ProjectId(1)), Some([2 * GIB, 0]));
    advise(&mut a, &advice(1, 2 * GIB, Hint::High));
    advise(&mut a, &Advice { project: ProjectId(2), ..advice(2, GIB, Hint::Low) });
    let mut steps = vec![];
    let no = a.advise(&advice(2, GIB, Hint::High), &tiers(Pressure::Low), &mut steps);
    assert_eq!((no, steps.len()), (Err(AdviceError::Refused(Refusal::Budget)), 0));
    assert_eq!(FsError::from(AdviceError::Refused(Refusal::Budget)), FsError::NoSpace);
    assert_eq!(a.class(object(2), 0, Tier::Ram), Hint::Low, "the other project's");
    a.on_cut(object(1), Extent::from(GIB));
    assert_eq!(a.held_bytes(Tier::Ram, Hint::High), GIB);
    assert_eq!(a.class_run(object(1), 5, Tier::Ram), (Hint::High, GIB));
    assert_eq!(a.class_run(object(1), GIB, Tier::Ram), (Hint::None, u64::MAX));
    assert_eq!(advise(&mut a, &advice(2, GIB, Hint::High)).len(), 1, "what was cut off gave its room back");
}

#[test]
fn a_tier_that_does_not_exist_is_no_reason_for_a_refusal() {
    let mut a = advisor();
    a.set_budget(Payer::Project(ProjectId(1)), Some([GIB, GIB]));
    let ram_only = Tiers { size_bytes: [10 * GIB, 0], ..Tiers::default() };
    let mut steps = vec![];
    a.advise(&advice(1, 2 * GIB, Hint::High), &ram_only, &mut steps).unwrap();
    assert!(matches!(steps[..], [Step::Prefetch(..), Step::Refused(_, _, Refusal::Budget)]), "{steps:?}");
    let there = Advice { wish: Wish::Only(Tier::Fast), ..advice(2, GIB, Hint::High) };
    assert_eq!(a.advise(&there, &ram_only, &mut vec![]), Err(AdviceError::Refused(Refusal::NoRoom)));
}

#[test]
fn low_hints_do_less_as_pressure_rises_and_high_hints_do_not() {
    let done = |hint, pressure| {
        let mut steps = vec![];
        let mut x = advice(1, MIB, hint);
        x.wish = Wish::Only(Tier::Ram);
        advisor().advise(&x, &tiers(pressure), &mut steps).unwrap();
        match steps[..] {
            [Step::Prefetch(..)] => 'f',
            [Step::Keep(..)] => 'k',
            [Step::Refused(_, _, Refusal::Pressure)] => '-',
            ref other => panic!("{other:?}"),
        }
    };
    for (hint, expected) in [
        (Hint::Cache, ['k', 'k', '-']),
        (Hint::Low, ['f', 'k', '-']),
        (Hint::Med, ['f', 'f', 'k']),
        (Hint::High, ['f'; 3]),
    ] {
        assert_eq!(Pressure::ALL.map(|p| done(hint, p)), expected, "{hint:?}");
    }
}

#[test]
fn new_advice_replaces_old_on_its_bytes_only() {
    let mut a = advisor();
    advise(&mut a, &advice(1, 10 * MIB, Hint::Low));
    let mut middle = advice(1, 0, Hint::High);
    middle.extent = Extent::new(4 * MIB, 6 * MIB);
    assert_eq!(advise(&mut a, &middle), [Step::Prefetch(object(1), middle.extent, Tier::Ram, Hint::High)]);
    let class = |mib: u64| a.class(object(1), mib * MIB, Tier::Ram);
    assert_eq!([0, 4, 5, 6, 9, 10].map(class), [Hint::Low, Hint::High, Hint::High, Hint::Low, Hint::Low, Hint::None]);
    let mut withdraw = advice(1, 5 * MIB, Hint::None);
    withdraw.extent = Extent::new(5 * MIB, 7 * MIB);
    let steps = advise(&mut a, &withdraw);
    let released = [Extent::new(5 * MIB, 6 * MIB), Extent::new(6 * MIB, 7 * MIB)];
    assert_eq!(steps, released.map(|e| Step::Release(object(1), e, Tier::Ram)));
}

#[test]
fn withdrawn_bytes_leave_at_once_only_under_high_pressure() {
    let mut a = advisor();
    advise(&mut a, &advice(1, MIB, Hint::Med));
    let mut steps = vec![];
    a.advise(&advice(1, MIB, Hint::None), &tiers(Pressure::High), &mut steps).unwrap();
    assert_eq!(steps, [Step::Drop(object(1), Extent::new(0, MIB), Tier::Ram)]);
}

#[test]
fn an_epilog_releases_all_its_job_advised_and_nothing_else() {
    let mut a = advisor();
    for n in 1..=4 {
        let mut x = advice(n, MIB, Hint::Med);
        x.owner = OwnerId(u64::from(n % 2) + 7);
        advise(&mut a, &x);
    }
    let mut steps = vec![];
    a.release_owner(OwnerId(8), &tiers(Pressure::Low), &mut steps);
    assert_eq!(steps, [1, 3].map(|n| Step::Release(object(n), Extent::new(0, MIB), Tier::Ram)));
    assert_eq!(a.held_bytes(Tier::Ram, Hint::None), 2 * MIB);
}

#[test]
fn bad_advice_is_refused_with_its_reason() {
    let mut a = Advisor::new("house", Config { extents_max: 1, ..Config::default() }).unwrap();
    let empty = a.advise(&advice(1, 0, Hint::Med), &tiers(Pressure::Low), &mut vec![]).unwrap_err();
    assert_eq!(empty.to_string(), "advice for [0, 0): give a range that is not empty, within the object");
    let open = Advice { extent: Extent::ALL, ..advice(1, 1, Hint::Med) };
    assert!(a.advise(&open, &tiers(Pressure::Low), &mut vec![]).is_err());
    advise(&mut a, &advice(1, MIB, Hint::Med));
    let many = a.advise(&advice(2, MIB, Hint::Med), &tiers(Pressure::Low), &mut vec![]);
    assert_eq!((many, a.limit_hits()), (Err(AdviceError::TooMany(1)), 1));
    assert!(Advisor::new("fancy", Config::default()).is_err());
}
