//! The claims of paper 000 and what goes beyond them, on a trace-driven model without time of its own.
//!
//! Directions, not figures: bandwidth and response time with queues and many clients are the simulator's business.
mod simulator;

use cache::{CacheConfig, Grain, PageAccess, block_id};
use simulator::{Cache, Case, Outcome, Request, System, coarse_reuse, mixed, steady};

fn run(policy: &str, trace: &[Request], warm: usize) -> Outcome {
    System::new(policy).run(trace, warm)
}
fn fine_hits(o: &Outcome) -> f64 {
    o.client.hit_ratio(Grain::Fine).expect("the trace has fine requests")
}
/// Relative gain of `a` over `b` in bandwidth.
fn gain(a: &Outcome, b: &Outcome) -> f64 {
    a.bandwidth_mb_per_s / b.bandwidth_mb_per_s - 1.0
}

#[test]
fn fgf_raises_bandwidth_most_where_fine_accesses_are_most_frequent() {
    for case in [Case::A, Case::B] {
        let gains = [(0.9, 3_000), (0.5, 1_000)].map(|(p, n)| {
            let (trace, warm) = steady(case, p, n / 5, n, 1);
            let lru = run("lru", &trace, warm);
            ["fgf_lru", "fgf_lru+ring"].map(|policy| gain(&run(policy, &trace, warm), &lru))
        });
        for (high, low) in gains[0].into_iter().zip(gains[1]) {
            assert!(high > 0.05, "{case:?}: gain {high} at p = 0.9");
            assert!(low > -0.01, "{case:?}: gain {low} at p = 0.5");
            assert!(high > low, "{case:?}: {high} at 0.9, {low} at 0.5");
        }
    }
}

#[test]
fn fgf_lowers_the_fine_response_time_at_every_mix() {
    for case in [Case::A, Case::B] {
        for (p, n) in [(0.9, 2_500), (0.5, 800), (0.2, 500)] {
            let (trace, warm) = steady(case, p, n / 5, n, 2);
            let lru = run("lru", &trace, warm);
            for policy in ["fgf_lru", "fgf_lru+ring"] {
                let fgf = run(policy, &trace, warm);
                assert!(fgf.fine_ms < lru.fine_ms, "{case:?} {p} {policy}: {} ms, lru {} ms", fgf.fine_ms, lru.fine_ms);
                assert!(fine_hits(&fgf) > fine_hits(&lru), "{case:?} {p} {policy}");
            }
        }
    }
}

#[test]
fn from_a_cold_start_the_fine_response_time_falls_by_half_at_nine_fine_accesses_in_ten() {
    let trace = mixed(Case::A, 0.9, 12_000, 3);
    let (lru, fgf) = (run("lru", &trace, 3_000), run("fgf_lru", &trace, 3_000));
    assert!(fgf.fine_ms < 0.52 * lru.fine_ms, "{} ms, lru {} ms", fgf.fine_ms, lru.fine_ms);
}

/// The closing rounds of a long run, when the duel is decided.
#[test]
fn the_papers_rule_loses_re_used_coarse_data_and_the_adaptive_policy_keeps_it() {
    let trace = coarse_reuse(12);
    let warm = trace.len() - 17 * 128 * 6;
    let coarse = |o: &Outcome| o.client.hit_ratio(Grain::Coarse).unwrap();
    let [lru, fgf, adaptive] = ["lru", "fgf_lru", "adaptive"].map(|policy| run(policy, &trace, warm));
    assert!(coarse(&lru) > 0.9, "lru keeps 512 MiB in 1.2 GB: {}", coarse(&lru));
    assert!(coarse(&fgf) < 0.1, "the paper's rule does not: {}", coarse(&fgf));
    assert!(coarse(&adaptive) > 0.9, "{}", coarse(&adaptive));
    assert!(gain(&adaptive, &lru) > -0.02, "{}", gain(&adaptive, &lru));
}

/// Learning costs one round of misses and what it takes to see them: about two of all rounds.
#[test]
fn the_adaptive_policy_pays_at_most_two_rounds_of_re_used_coarse_data_to_learn() {
    let trace = coarse_reuse(20);
    let [lru, fgf, adaptive] = ["lru", "fgf_lru", "adaptive"].map(|policy| run(policy, &trace, 60_000));
    let (lost, all) = (-gain(&adaptive, &lru), -gain(&fgf, &lru));
    assert!(lost < all * 2.0 / 19.0, "adaptive loses {lost}, the paper's rule {all}");
    assert!(lost < 0.02, "{lost}");
}

#[test]
fn the_adaptive_policy_keeps_85_percent_of_the_gain_at_nine_fine_accesses_in_ten() {
    // In a steady state: after the shadows' verdict every hot page has to come back once.
    for (case, n, warm) in [(Case::A, 40_000, 30_000), (Case::B, 70_000, 60_000)] {
        let trace = mixed(case, 0.9, n, 11);
        let lru = run("lru", &trace, warm);
        let fgf = gain(&run("fgf_lru", &trace, warm), &lru);
        let adaptive = gain(&run("adaptive", &trace, warm), &lru);
        assert!(adaptive >= 0.85 * fgf, "{case:?}: adaptive gains {adaptive}, fgf {fgf}");
    }
}

#[test]
fn the_adaptive_policy_is_never_more_than_2_percent_below_lru_on_any_mix_even_from_a_cold_start() {
    for case in [Case::A, Case::B] {
        for (p, n) in [(0.9, 2_500), (0.7, 1_200), (0.4, 800), (0.1, 600)] {
            let trace = mixed(case, p, n, 7);
            let g = gain(&run("adaptive", &trace, 0), &run("lru", &trace, 0));
            assert!(g > -0.02, "{case:?} p = {p}: {g}");
        }
    }
}

#[test]
fn the_adaptive_policy_follows_a_workload_that_changes() {
    let mut system = System::new("adaptive");
    system.run(&coarse_reuse(10), 0);
    assert_eq!(system.client.counter("duel_fgf_leads"), 0);
    system.run(&mixed(Case::A, 0.9, 8_000, 9), 0);
    assert_eq!(system.client.counter("duel_fgf_leads"), 1);
    assert!(system.client.counter("duel_switches") <= 4, "it does not flutter");
}

/// `streams` sequential coarse readers with requests of 1 MiB and a window of 4 MiB ahead, in turn, while fine
/// accesses of a hot set larger than the cache press. Pages of 4 KiB, a cache of 64 MiB. Returns the share of
/// prefetched pages that left unused.
fn prefetched_but_reclaimed_unused(policy: &str, streams: u64) -> f64 {
    const REQUEST: u64 = 256;
    const WINDOW: u64 = 1024;
    let mut cache = Cache::new(policy, &CacheConfig::new(16_384));
    let mut rng = types::Rng::new(4);
    for i in 0..40_000 {
        cache.access(PageAccess::fine(block_id(99, i % 20_000)));
    }
    for turn in 0..60 {
        for stream in 0..streams {
            let at = turn * REQUEST;
            let page = |p| PageAccess::coarse(block_id(stream, p), 1 << 20);
            let from = if turn == 0 { REQUEST } else { at + WINDOW };
            (from..at + REQUEST + WINDOW).for_each(|p| {
                cache.access(page(p).ahead());
            });
            (at..at + REQUEST).for_each(|p| {
                cache.access(page(p));
            });
            for _ in 0..64 {
                cache.access(PageAccess::fine(block_id(99, rng.below(20_000))));
            }
        }
    }
    let inserted = cache.counter("readahead_inserted_pages");
    assert!(inserted > 10_000);
    cache.counter("readahead_evicted_unused_pages") as f64 / inserted as f64
}

#[test]
fn the_ring_loses_less_than_1_percent_of_prefetched_pages_and_the_papers_rule_loses_most() {
    let one = prefetched_but_reclaimed_unused("fgf_lru+ring", 1);
    assert!(one < 0.01, "one stream: {one}");
    // Half of the cache is kept for pages that wait: six windows of 5 MiB.
    let six = prefetched_but_reclaimed_unused("fgf_lru+ring", 6);
    assert!(six < 0.01, "six streams: {six}");
    // Nine streams have 45 MiB ahead of them, half of the cache is 32: only what does not fit is lost.
    let nine = prefetched_but_reclaimed_unused("fgf_lru+ring", 9);
    assert!(nine < 0.5, "nine streams: {nine}");
    let literal = prefetched_but_reclaimed_unused("fgf_lru", 1);
    assert!(literal > 0.5, "the paper's rule: {literal}");
}

#[test]
fn the_adaptive_policy_loses_less_than_1_percent_of_prefetched_pages() {
    let share = prefetched_but_reclaimed_unused("adaptive", 4);
    assert!(share < 0.01, "{share}");
}

#[test]
fn bypass_spares_fine_pages_from_large_requests_and_loses_every_re_use_of_them() {
    let trace = mixed(Case::A, 0.9, 9_000, 6);
    let (lru, bypass) = (run("lru", &trace, 4_000), run("bypass", &trace, 4_000));
    assert!(fine_hits(&bypass) > 0.8 && fine_hits(&lru) < 0.4);
    // Only what fine accesses had brought in is ever hit by a coarse request.
    let coarse = |o: &Outcome| o.client.hit_ratio(Grain::Coarse).unwrap();
    assert!(coarse(&bypass) < 0.02 && coarse(&lru) > 0.03, "{} {}", coarse(&bypass), coarse(&lru));
}

#[test]
fn coarse_requests_below_the_threshold_pollute_under_bypass_and_not_under_fgf() {
    // 4 MiB requests: four stripes, half of the threshold.
    let split = |r: Request| {
        let step = if r.grain == Grain::Coarse { 64 } else { r.pages };
        (r.first..r.first + r.pages).step_by(step as usize).map(move |first| Request { first, pages: step, ..r })
    };
    let trace: Vec<Request> = mixed(Case::A, 0.9, 8_000, 9).into_iter().flat_map(split).collect();
    let warm = trace.len() / 3;
    let (bypass, fgf) = (run("bypass", &trace, warm), run("fgf_lru", &trace, warm));
    assert!(fine_hits(&bypass) < 0.5 && fine_hits(&fgf) > 0.8, "{} {}", fine_hits(&bypass), fine_hits(&fgf));
}

#[test]
fn policies_blind_to_granularity_fall_between_lru_and_fgf_on_fine_hits() {
    let trace = mixed(Case::A, 0.9, 7_000, 10);
    let fgf = fine_hits(&run("fgf_lru", &trace, 4_000));
    for policy in ["s3fifo", "sieve", "arc", "wtinylfu"] {
        let hits = fine_hits(&run(policy, &trace, 4_000));
        assert!(hits < fgf, "{policy}: {hits}, fgf {fgf}");
    }
}
