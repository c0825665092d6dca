//! The suite holds for the room as it is, finds every fault that is planted in it, and its page says so.
use datapath::conformance::{Coverage, FAULTS, check, seeds_until_found};

/// Adds what a run saw, every field of it.
macro_rules! add {
    ($sum:ident += $seen:expr; $($field:ident)*) => {{
        let Coverage { $($field),* } = $seen;
        $($sum.$field += $field;)*
    }};
}

#[test]
fn two_clients_and_an_ost_agree_whatever_happens() {
    let mut sum = Coverage::default();
    for seed in 0..200 {
        let seen = check(seed).unwrap_or_else(|e| panic!("{e}"));
        add!(sum += seen; looks looks_beyond parts parts_filled changes cuts extensions revocations late overtaken late_locks refusals failures
            evictions flushes resizes fsyncs_known fsyncs_asked);
    }
    println!("{sum:?}");
    assert!(
        sum.looks > 10_000
            && sum.looks_beyond > 5_000
            && sum.revocations > 2_000
            && sum.late > 500
            && sum.overtaken > 500
            && sum.late_locks > 500,
        "{sum:?}"
    );
    assert!(sum.parts > 1_000 && sum.parts_filled > 1_000, "{sum:?}");
    assert!(sum.changes > 1_000 && sum.cuts > 500 && sum.extensions > 200, "{sum:?}");
    assert!(sum.refusals > 2_000 && sum.failures > 50 && sum.evictions > 50, "{sum:?}");
    assert!(sum.flushes > 10_000 && sum.resizes > 500, "{sum:?}");
    assert!(sum.fsyncs_known > 100 && sum.fsyncs_asked > 1_000, "{sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(check(7), check(7));
}

#[test]
fn every_planted_fault_is_found() {
    let missed: Vec<&str> = FAULTS.iter().filter(|f| seeds_until_found(f.0, 200).is_none()).map(|f| f.0).collect();
    assert!(missed.is_empty(), "not found in 200 seeds: {missed:?}");
}
