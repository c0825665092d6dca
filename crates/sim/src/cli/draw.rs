//! `stria sim plot` and `stria sim report`.
use super::run::{execute, selected};
use super::{PlotArgs, ReportArgs, show};
use crate::claims;
use crate::experiment::{self, Outcome, Overrides};
use crate::plot::pictures;
use crate::report;
use crate::scenario::{find, load, scenario_dir, scenario_files};
use std::path::Path;

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Runs a scenario and writes its plots.
pub(super) fn plot(a: &PlotArgs) -> Result<bool, String> {
    let e = execute(selected(&a.selection)?, a.selection.jobs)?;
    let pictures = pictures(&e);
    if pictures.is_empty() {
        return Err(format!("scenario {} measures nothing that could be drawn", e.scenario.id));
    }
    std::fs::create_dir_all(&a.out).map_err(|e| format!("cannot create {}: {e}", a.out.display()))?;
    for (i, picture) in pictures.iter().enumerate() {
        let suffix = if i == 0 { String::new() } else { format!("-{}", i + 1) };
        let path = a.out.join(format!("{}{suffix}.svg", e.scenario.id));
        write(&path, picture)?;
        super::print(&(format!("{}", path.display()) + "\n"));
    }
    Ok(true)
}

/// Runs all scenarios, or those named, and writes the page. With `--strict`, false when one misses that is
/// not known to, or cannot be judged.
pub(super) fn report(a: &ReportArgs) -> Result<bool, String> {
    let dir = a.dir.clone().unwrap_or_else(scenario_dir);
    let mut files = scenario_files(&dir);
    if !a.ids.is_empty() {
        files = a.ids.iter().map(|id| find(id)).collect::<Result<_, _>>()?;
    }
    if files.is_empty() {
        return Err(format!("no scenarios below {}", dir.display()));
    }
    let overrides = Overrides { smoke: a.smoke, ..Overrides::default() };
    let mut experiments = Vec::new();
    for file in files {
        let s = experiment::prepare(load(&file).map_err(|e| e.to_string())?, &overrides)?;
        let mut e = execute(s, a.jobs)?;
        if !a.smoke {
            experiment::vary(&mut e, a.jobs, &mut |_, _, _| {})?;
        }
        let verdict = match (e.holds(), e.as_known()) {
            (true, _) if e.verdicts.is_empty() => {
                if e.points.is_empty() {
                    "by its test"
                } else {
                    "not judged"
                }
            }
            (true, _) if !e.all_measured() => "NOT MEASURED",
            (true, _) => "holds",
            (false, true) => "misses, known",
            (false, false) if e.verdicts.iter().any(|v| v.outcome == Outcome::Misses) => "MISSES",
            (false, false) => "MOVED",
        };
        super::print(&(format!("{:10} {verdict:13} {:7.2} s  {}", e.scenario.id, e.wall_s(), e.scenario.title) + "\n"));
        experiments.push(e);
    }
    let mut claims = claims::list()?;
    if !a.ids.is_empty() {
        claims.retain(|c| c.simulated.iter().any(|id| experiments.iter().any(|e| e.scenario.id == *id)));
    }
    let page = report::html(
        &experiments,
        &report::Claims { claims, real: claims::real(&claims::results())? },
        &report::Origin::here(),
    );
    write(&a.out, &page)?;
    let csv = a.out.with_extension("csv");
    write(&csv, &show::csv(&experiments))?;
    super::print(&format!("{}\n{}\n", a.out.display(), csv.display()));
    Ok(!a.strict || experiments.iter().all(|e| e.as_known() && e.all_measured()))
}
