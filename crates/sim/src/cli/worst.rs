//! `stria sim worst`.
use super::WorstArgs;
use super::show::number;
use crate::worst::{Search, search};
use std::io::IsTerminal;

/// Searches, and writes the find as a scenario.
pub(super) fn worst(a: &WorstArgs) -> Result<bool, String> {
    let s = Search {
        policy: a.policy.clone(),
        against: a.against.clone(),
        metric: a.metric.clone(),
        tries: a.tries.max(1),
        seed: a.seed,
        jobs: a.jobs,
    };
    let terminal = std::io::stderr().is_terminal();
    let find = search(&s, &mut |tried, loss| {
        if terminal {
            eprint!("\r{tried} of {} workloads, worst {loss:.2}x ", s.tries);
        }
    })?;
    if terminal {
        eprintln!();
    }
    let stem = a.out.as_ref().and_then(|p| p.file_stem()).map(|s| s.to_string_lossy().into_owned());
    let text = find.scenario(&stem.unwrap_or_else(|| "worst".into()));
    let ([policy, other], [own, theirs]) = (&find.policies, find.values);
    let said = format!(
        "{} workloads ({} of them keys that do not go together): {policy} {} against {} of {other} ({}), {:.2}x\n",
        find.tried.0,
        find.tried.1,
        number(own),
        number(theirs),
        find.metric,
        find.loss
    );
    match &a.out {
        Some(path) => {
            std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
            super::print(&format!("{said}{}\n", path.display()));
        }
        None => {
            eprint!("{said}");
            super::print(&text);
        }
    }
    Ok(true)
}
