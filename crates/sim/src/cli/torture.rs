//! `stria sim torture`: whole clusters under everything that can go wrong, one seed after the other.
use std::time::Duration;

use types::planted;

use super::TortureArgs;
use crate::cluster::Without;
use crate::cluster::torture::{Torture, command};

/// The real time after which nothing new is begun.
///
/// # Errors
/// A time that there is none of.
pub fn time_max(minutes: Option<f64>) -> Result<Option<Duration>, String> {
    let time = |m: f64| {
        Duration::try_from_secs_f64(m * 60.0).map_err(|_| format!("--minutes {m}: write a time of 0 or more minutes"))
    };
    minutes.map(time).transpose()
}

/// Runs seeds; false when one of them failed, or a planted bug was not found.
pub(super) fn torture(a: &TortureArgs) -> Result<bool, String> {
    if a.list_planted {
        let lines: Vec<String> = planted::BUGS.iter().map(|b| format!("{:<22} {}\n", b.name, b.what)).collect();
        super::print(&lines.concat());
        return Ok(true);
    }
    let mut without = Without { millis: a.seconds.map(|s| (s * 1e3) as u64), ..Without::default() };
    a.without.iter().try_for_each(|name| without.add(name))?;
    let torture = Torture {
        from: a.from,
        seeds: a.seeds,
        time_max: time_max(a.minutes)?,
        jobs: a.jobs,
        shrink: a.shrink,
        without,
        planted: None,
        first_only: false,
    };
    if !a.verbose_panics {
        // A panic is a seed's complaint, told with the command that repeats it.
        std::panic::set_hook(Box::new(|_| {}));
    }
    match a.planted.as_deref() {
        None => {
            let totals = torture.run(&|f| super::print(&format!("{}\n    {}\n", command(f, None), f.complaint)));
            if a.hashes {
                let line = |(seed, (polls, hash)): (&u64, &(u64, u64))| format!("{seed} {polls} {hash:016x}\n");
                super::print(&totals.histories.iter().map(line).collect::<String>());
            }
            super::print(&totals.text());
            if a.costs {
                super::print(&totals.costs.text());
            }
            Ok(totals.failures.is_empty())
        }
        Some(names) => planted_bugs(&torture, names),
    }
}

/// Plants bugs one at a time and tells after how many seeds each was found.
fn planted_bugs(torture: &Torture, names: &str) -> Result<bool, String> {
    if !planted::COMPILED_IN {
        return Err("this build has no planted bugs: build stria-sim with --features planted".into());
    }
    let all: Vec<&'static str> = planted::BUGS.iter().map(|b| b.name).collect();
    let chosen: Vec<&'static str> = match names {
        "all" => all.clone(),
        _ => {
            let find = |name: &str| all.iter().find(|n| **n == name).copied();
            let unknown = |name: &str| format!("--planted {name}: write all, or some of {}", all.join(", "));
            names.split(',').map(|n| find(n).ok_or_else(|| unknown(n))).collect::<Result<_, _>>()?
        }
    };
    let mut found_all = true;
    for name in chosen {
        let one = Torture { planted: Some(name), first_only: true, ..torture.clone() };
        let totals = one.run(&|_| {});
        let line = match totals.failures.first() {
            Some(f) => format!("{name:<22} {:>5} seeds: {}\n", f.seed - torture.from + 1, f.complaint),
            None => {
                format!("{name:<22} not found in {} seeds; its place was reached in {}\n", totals.seeds, totals.reached)
            }
        };
        found_all &= !totals.failures.is_empty();
        super::print(&line);
    }
    Ok(found_all)
}
