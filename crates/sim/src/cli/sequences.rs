//! `stria sim sequences`: every sequence of one and of two operations, with every death at every point of it, on all cores.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use super::SequencesArgs;
use super::torture::time_max;
use crate::cluster::Costs;
use crate::cluster::sequences::{Tally, run_sequence, sequences};
use crate::cluster::torture::on_all_cores;

/// Stripes of the files of which a sequence is run when none are named.
const STRIPES: [u16; 2] = [1, 2];

/// What all sequences gave.
#[derive(Clone, Default)]
struct Totals {
    sequences: u64,
    cases: u64,
    wrong: u64,
    costs: Costs,
}

/// Runs sequences; false when something is lost in one.
pub(super) fn run(a: &SequencesArgs) -> Result<bool, String> {
    let all: Vec<_> = sequences().collect();
    let last = all.len() - 1;
    let chosen = match a.only {
        None => all.into_iter().enumerate().collect(),
        Some(n) => match all.into_iter().nth(n) {
            Some(ops) => vec![(n, ops)],
            None => return Err(format!("--only {n}: sequences have numbers 0 to {last}")),
        },
    };
    if a.stripes.is_some_and(|s| !STRIPES.contains(&s)) {
        return Err(format!("--stripes {}: use 1 or 2", a.stripes.unwrap_or_default()));
    }
    let stripes: Vec<u16> = a.stripes.map_or(STRIPES.into(), |s| vec![s]);
    // A panic is a complaint, told with the command that repeats it.
    std::panic::set_hook(Box::new(|_| {}));
    let (totals, kinds) = (Mutex::new(Totals::default()), stripes.len());
    on_all_cores(a.jobs, (chosen.len() * kinds) as u64, time_max(a.minutes)?, &|n| {
        let ((number, ops), stripes) = (&chosen[n as usize / kinds], stripes[n as usize % kinds]);
        let ran = catch_unwind(AssertUnwindSafe(|| run_sequence(ops, 1 + *number as u64, stripes)));
        let Tally { wrong: found, cases, costs } = ran.unwrap_or_default();
        let wrong = if cases == 0 { 1 } else { found.len() as u64 };
        if wrong > 0 {
            super::print(&format!("stria sim sequences --only {number} --stripes {stripes}\n"));
        }
        if cases == 0 {
            super::print(&format!("    {ops:?}: a panic\n"));
        }
        for (case, complaints) in found {
            super::print(&format!("    {case:?}\n        {}\n", complaints.join("\n        ")));
        }
        let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.sequences += 1;
        totals.cases += cases;
        totals.wrong += wrong;
        totals.costs.add(&costs);
        true
    });
    let Totals { sequences, cases, wrong, costs } = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    super::print(&format!("{sequences} sequences, {cases} cases, {wrong} of them wrong\n"));
    if a.costs {
        super::print(&costs.text());
    }
    Ok(wrong == 0)
}
