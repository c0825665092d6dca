//! `stria sim run` and `stria sim sweep`.
use super::show;
use super::{RunArgs, Selection, SweepArgs};
use crate::experiment::{self, Experiment};
use crate::light::Progress;
use crate::scenario::{self, Scenario};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

/// Runs a scenario; false when an expectation misses.
pub(super) fn run(a: &RunArgs) -> Result<bool, String> {
    let mut e = execute(selected(&a.selection)?, a.selection.jobs)?;
    if a.readings {
        experiment::vary(&mut e, a.selection.jobs, &mut |_, _, _| {})?;
    }
    if a.json {
        super::print(&format!("{}\n", show::json(&e)))
    } else {
        super::print(&show::text(&e))
    }
    Ok(e.holds())
}

/// Runs a scenario over given values.
pub(super) fn sweep(a: &SweepArgs) -> Result<bool, String> {
    let mut s = selected(&a.selection)?;
    for over in &a.over {
        let (key, values) = over.split_once('=').ok_or_else(|| format!("--over '{over}' is not KEY=V1,V2"))?;
        let values: Vec<String> = values.split(',').map(|v| v.trim().to_string()).collect();
        for v in &values {
            s.params.clone().set(key, v)?;
        }
        s.sweep.retain(|(k, _)| k != key);
        s.sweep.push((key.to_string(), values));
    }
    s.expect.clear();
    let e = execute(s, a.selection.jobs)?;
    if a.json {
        super::print(&format!("{}\n", show::json(&e)))
    } else {
        super::print(&show::sweep_table(&e, &a.metrics))
    }
    Ok(true)
}

/// The scenario that the command line means.
pub(super) fn selected(a: &Selection) -> Result<Scenario, String> {
    let file = scenario::find(&a.file)?;
    let s = scenario::load(&file).map_err(|e| e.to_string())?;
    experiment::prepare(s, &a.overrides()?)
}

/// Runs with a progress bar, on a terminal only. Says which of the keys set have no effect.
pub(super) fn execute(s: Scenario, jobs: usize) -> Result<Experiment, String> {
    for key in experiment::without_effect(&s) {
        eprintln!("stria sim: note: {key} has no effect in {}, which runs in world {}", s.id, s.world.name());
    }
    if !std::io::stderr().is_terminal() {
        return experiment::run(s, jobs, &mut |_, _, _| {});
    }
    let bar = ProgressBar::new(1000);
    let style = ProgressStyle::with_template("{prefix:>12} [{bar:40}] {percent}% {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_prefix(s.id.clone());
    let begin = Instant::now();
    let mut runs_so_far: Vec<Progress> = Vec::new();
    let done = experiment::run(s, jobs, &mut |run, runs, p: Progress| {
        runs_so_far.resize_with(runs, Progress::default);
        runs_so_far[run] = p;
        let events: u64 = runs_so_far.iter().map(|p| p.events).sum();
        let share: f64 = runs_so_far.iter().map(|p| p.share).sum::<f64>() / runs as f64;
        let rate = events as f64 / begin.elapsed().as_secs_f64().max(1e-3) / 1e6;
        bar.set_position((share * 1000.0) as u64);
        bar.set_message(format!("{runs} runs, {rate:.1} M events/s, virtual {:.2} s", p.virtual_ns as f64 / 1e9));
    });
    bar.finish_and_clear();
    done
}
