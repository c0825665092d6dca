//! The mechanism and the claims of each policy.
use super::*;
use crate::conformance;
use crate::spec::{LayoutSpec, PoolChoice};
use alloc::string::ToString;
use std::vec;
use types::GIB;

fn facts(n: u16) -> Vec<OstFacts> {
    (0..n)
        .map(|i| OstFacts {
            index: OstIndex(i),
            total_bytes: 100 * GIB,
            free_bytes: 90 * GIB,
            active: true,
            in_pool: i >= 2,
        })
        .collect()
}

fn ask(count: i64, index: i64) -> Resolved {
    LayoutSpec::from_raw(0, count, index).unwrap().resolve()
}

fn in_pool(mut r: Resolved) -> Resolved {
    r.pool = match PoolChoice::parse("flash") {
        Ok(PoolChoice::Named(p)) => Some(p),
        other => panic!("{other:?}"),
    };
    r
}

fn allocator(policy: &str) -> Allocator {
    Allocator::new(policy, AllocConfig::default()).unwrap()
}

fn indices(osts: &[OstIndex]) -> Vec<u16> {
    osts.iter().map(|o| o.0).collect()
}

#[test]
fn every_policy_conforms() {
    for p in POLICIES {
        for seed in 0..5 {
            conformance::check(p.name, || (p.make)(&AllocConfig::default()), seed);
        }
    }
}

#[test]
fn equally_free_osts_get_object_counts_within_one_over_100_creates() {
    for p in POLICIES {
        conformance::check_balance(p.name, || (p.make)(&AllocConfig::default()), 3);
    }
}

#[test]
fn a_start_index_is_obeyed_and_the_rest_follows_in_order() {
    let mut a = allocator("auto");
    let mut rng = Rng::new(1);
    assert_eq!(indices(&a.allocate(&facts(5), &ask(4, 3), &mut rng).unwrap()), [3, 4, 0, 1]);
    assert_eq!(indices(&a.allocate(&facts(5), &ask(-1, 1), &mut rng).unwrap()), [1, 2, 3, 4, 0]);
}

#[test]
fn an_explicit_list_is_taken_as_it_is() {
    let mut a = allocator("auto");
    let spec = LayoutSpec::default().with_osts([4, 0, 2].map(OstIndex).to_vec()).unwrap().resolve();
    assert_eq!(indices(&a.allocate(&facts(5), &spec, &mut Rng::new(1)).unwrap()), [4, 0, 2]);
}

#[test]
fn refusals_name_the_ost_and_the_remedy() {
    let mut a = allocator("auto");
    let mut rng = Rng::new(1);
    let mut osts = facts(4);
    osts[2].active = false;
    osts[3].free_bytes = osts[3].total_bytes / 1000;
    let mut refusal = |osts: &[OstFacts], r: &Resolved| a.allocate(osts, r, &mut rng).unwrap_err();
    let missing = refusal(&osts, &ask(1, 7));
    assert_eq!(missing.to_string(), "OST7 does not exist: indices end at 3; use -1 for any OST");
    assert_eq!(FsError::from(missing), FsError::Invalid);
    assert_eq!(refusal(&osts, &ask(1, 2)), AllocError::Inactive(OstIndex(2)));
    assert_eq!(refusal(&osts, &ask(1, 3)), AllocError::Full(OstIndex(3)));
    assert!(matches!(refusal(&osts, &in_pool(ask(1, 0))), AllocError::NotInPool { .. }));
    let full = refusal(&osts, &in_pool(ask(1, -1)));
    assert_eq!((full, FsError::from(full)), (AllocError::AllFull { osts: 1 }, FsError::NoSpace));
    assert_eq!(refusal(&osts[2..3], &ask(1, -1)), AllocError::AllInactive { osts: 1 });
    assert_eq!(refusal(&[], &ask(1, -1)), AllocError::NoOst { pool: None });
    assert!(matches!(refusal(&osts[..2], &in_pool(ask(1, -1))), AllocError::NoOst { pool: Some(_) }));
    assert!(Allocator::new("fifo", AllocConfig::default()).is_err());
}

#[test]
fn full_and_deactivated_osts_are_avoided() {
    for p in POLICIES {
        let mut a = allocator(p.name);
        let mut rng = Rng::new(2);
        let mut osts = facts(5);
        osts[1].active = false;
        osts[4].free_bytes = 0;
        for _ in 0..100 {
            let got = a.allocate(&osts, &ask(-1, -1), &mut rng).unwrap();
            let mut got = indices(&got);
            got.sort_unstable();
            assert_eq!(got, [0, 2, 3], "{}", p.name);
        }
    }
}

#[test]
fn more_stripes_than_osts_means_all_osts_unless_overstriped() {
    let mut a = allocator("auto");
    let mut rng = Rng::new(2);
    assert_eq!(a.allocate(&facts(3), &ask(8, -1), &mut rng).unwrap().len(), 3);
    let mut over = ask(8, -1);
    over.overstripe = true;
    let got = a.allocate(&facts(3), &over, &mut rng).unwrap();
    let mut counts = vec![0; 3];
    got.iter().for_each(|o| counts[usize::from(o.0)] += 1);
    counts.sort_unstable();
    assert_eq!((got.len(), counts), (8, vec![2, 3, 3]));
}

#[test]
fn pools_take_turns_of_their_own() {
    let mut a = allocator("round_robin");
    let mut rng = Rng::new(2);
    let mut counts = [0i32; 4];
    for _ in 0..100 {
        let all = a.allocate(&facts(4), &ask(1, -1), &mut rng).unwrap();
        counts[usize::from(all[0].0)] += 1;
        let pool = a.allocate(&facts(4), &in_pool(ask(1, -1)), &mut rng).unwrap();
        assert!(pool[0].0 >= 2);
    }
    assert_eq!(counts, [25; 4], "the pool's creates do not shift the others' turn");
}

#[test]
fn weighted_gives_each_ost_its_share_of_free_space_within_one_object() {
    let mut a = allocator("weighted");
    let mut rng = Rng::new(5);
    let mut osts = facts(4);
    for (o, free) in osts.iter_mut().zip([10, 20, 30, 40]) {
        o.free_bytes = free * GIB;
    }
    let mut counts = [0f64; 4];
    for create in 1..=1000 {
        let got = a.allocate(&osts, &ask(1, -1), &mut rng).unwrap();
        counts[usize::from(got[0].0)] += 1.0;
        for (i, share) in [0.1, 0.2, 0.3, 0.4].iter().enumerate() {
            assert!((counts[i] - share * f64::from(create)).abs() < 1.5, "create {create}: {counts:?}");
        }
    }
}

#[test]
fn auto_fills_an_empty_new_ost_faster_and_returns_to_round_robin_when_balanced() {
    let mut a = allocator("auto");
    let mut rng = Rng::new(5);
    let mut osts = facts(4);
    for o in &mut osts[..3] {
        o.free_bytes = 20 * GIB;
    }
    let mut on_new = 0;
    for _ in 0..100 {
        let got = a.allocate(&osts, &ask(1, -1), &mut rng).unwrap();
        on_new += usize::from(got[0] == OstIndex(3));
    }
    assert!((58..=62).contains(&on_new), "90 of 150 GiB free: about 60 of 100, got {on_new}");
    for o in &mut osts {
        o.free_bytes = if o.index.0 == 3 { 100 * GIB } else { 84 * GIB };
    }
    let mut counts = [0u32; 4];
    for _ in 0..100 {
        counts[usize::from(a.allocate(&osts, &ask(1, -1), &mut rng).unwrap()[0].0)] += 1;
    }
    assert_eq!(counts, [25; 4], "16 % apart counts as balanced");
}

#[test]
fn first_places_follow_the_weights_too() {
    let mut a = allocator("weighted");
    let mut rng = Rng::new(5);
    let mut osts = facts(3);
    for (o, free) in osts.iter_mut().zip([10, 20, 30]) {
        o.free_bytes = free * GIB;
    }
    let mut firsts = [0i32; 3];
    for _ in 0..600 {
        firsts[usize::from(a.allocate(&osts, &ask(3, -1), &mut rng).unwrap()[0].0)] += 1;
    }
    for (i, expected) in [100, 200, 300].iter().enumerate() {
        assert!((firsts[i] - expected).abs() <= 6, "{firsts:?}");
    }
}

#[test]
fn a_policy_that_answers_wrongly_is_counted_and_replaced() {
    struct Liar;
    impl AllocPolicy for Liar {
        fn choose(&mut self, _: &[Candidate], count: usize, _: u64, chosen: &mut Vec<OstIndex>) {
            chosen.extend((0..count).map(|_| OstIndex(99)));
        }
    }
    let entry = PolicyEntry::new("liar", "", |_| Box::new(Liar));
    let mut a = Allocator::with_entry(entry, AllocConfig::default());
    assert_eq!(a.allocate(&facts(5), &ask(3, -1), &mut Rng::new(1)).unwrap().len(), 3);
    assert_eq!(a.wrong_answers(), 1);
}

#[test]
fn the_suite_finds_broken_allocators() {
    /// What is wrong with it: it repeats an OST, invents one, answers too few, or draws from outside.
    struct Broken(u8, u64);
    impl AllocPolicy for Broken {
        fn choose(&mut self, candidates: &[Candidate], count: usize, dice: u64, chosen: &mut Vec<OstIndex>) {
            RoundRobin::new().choose(candidates, count, dice, chosen);
            match self.0 {
                0 if count > 1 => chosen[1] = chosen[0],
                1 => chosen[0] = OstIndex(9999),
                2 if count > 1 => _ = chosen.pop(),
                3 => {
                    chosen.clear();
                    RoundRobin::new().choose(candidates, count, self.1, chosen);
                }
                _ => {}
            }
        }
    }
    for fault in 0..4 {
        let found = std::panic::catch_unwind(|| {
            let other = core::sync::atomic::AtomicU64::new(0);
            let next = || other.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
            conformance::check("broken", || Box::new(Broken(fault, next())), 1);
        });
        assert!(found.is_err(), "fault {fault} went unseen");
    }
    let unbalanced = || conformance::check_balance("broken", || Box::new(Broken(9, 0)), 1);
    assert!(std::panic::catch_unwind(unbalanced).is_err(), "a fresh turn at every create is not balanced");
}
