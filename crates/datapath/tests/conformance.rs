//! The suite holds for the room as it is, finds every fault that is planted in it, and its page says so.
use datapath::conformance::{Coverage, FAULTS, check, seeds_until_found};

#[test]
fn two_clients_and_an_ost_agree_whatever_happens() {
    let mut sum = Coverage::default();
    for seed in 0..200 {
        let seen = check(seed).unwrap_or_else(|e| panic!("{e}"));
        sum.looks += seen.looks;
        sum.changes += seen.changes;
        sum.revocations += seen.revocations;
        sum.late += seen.late;
        sum.refusals += seen.refusals;
        sum.failures += seen.failures;
        sum.evictions += seen.evictions;
        sum.flushes += seen.flushes;
        sum.resizes += seen.resizes;
        sum.fsyncs_known += seen.fsyncs_known;
        sum.fsyncs_asked += seen.fsyncs_asked;
    }
    println!("{sum:?}");
    let Coverage {
        looks,
        changes,
        revocations,
        late,
        refusals,
        failures,
        evictions,
        flushes,
        resizes,
        fsyncs_known,
        fsyncs_asked,
    } = sum;
    assert!(looks > 10_000 && changes > 1_000 && revocations > 2_000 && late > 500, "{sum:?}");
    assert!(refusals > 2_000 && failures > 50 && evictions > 50, "{sum:?}");
    assert!(flushes > 10_000 && resizes > 500, "{sum:?}");
    assert!(fsyncs_known > 100 && fsyncs_asked > 1_000, "{sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(check(7), check(7));
}

#[test]
fn every_planted_fault_is_found() {
    let missed: Vec<&str> = FAULTS.iter().filter(|f| seeds_until_found(f.0, 60).is_none()).map(|f| f.0).collect();
    assert!(missed.is_empty(), "not found in 60 seeds: {missed:?}");
}
