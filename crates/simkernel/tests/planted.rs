//! How many runs each planted bug takes (`simkernel::planted`).
//!
//! `cargo test -p stria-simkernel --test planted -- --ignored --nocapture`; `STRIA_SIM_PLANTED=a,b` looks for these only,
//! `STRIA_SIM_SEEDS=0..60` says in which seeds of each class.
use std::panic::{AssertUnwindSafe, catch_unwind};

use simkernel::planted::{BUGS, CLASSES, Class};
use simkernel::run;
use types::planted::plant;

/// What is wrong in a run with a bug, if anything is.
fn complaint(class: &Class, seed: u64, bug: Option<&'static str>) -> Option<String> {
    plant(bug);
    let ran = catch_unwind(AssertUnwindSafe(|| run(&(class.make)(seed))));
    plant(None);
    match ran {
        Ok(report) => report.complaints.into_iter().next(),
        Err(_) => Some("a panic".into()),
    }
}

#[test]
#[ignore = "minutes: thousands of runs"]
fn every_planted_bug_is_found() {
    let only = std::env::var("STRIA_SIM_PLANTED").ok();
    let seeds = std::env::var("STRIA_SIM_SEEDS").unwrap_or("0..60".into());
    let (from, to) = seeds.split_once("..").expect("STRIA_SIM_SEEDS is FROM..TO");
    let seeds = from.parse().expect("a seed")..to.parse::<u64>().expect("a seed");
    let mut missed = Vec::new();
    for bug in BUGS.iter().filter(|b| only.as_ref().is_none_or(|o| o.split(',').any(|n| n == b.name))) {
        let mut runs = 0;
        let mut found = None;
        'seeds: for seed in seeds.clone() {
            for class in CLASSES {
                runs += 1;
                let Some(what) = complaint(class, seed, Some(bug.name)) else { continue };
                // A seed that fails by itself says nothing about the bug.
                if complaint(class, seed, None).is_none() {
                    found = Some((class.name, seed, what));
                    break 'seeds;
                }
            }
        }
        match found {
            Some((class, seed, what)) => {
                let what: String = what.chars().take(100).collect();
                println!("{:<24} {runs:>5} runs, seed {seed} of {class}: {what}", bug.name);
            }
            None => {
                println!("{:<24} not found in {runs} runs", bug.name);
                missed.push(bug.name);
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
