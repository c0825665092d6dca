//! `stria sim judge`: what real processes gave, held against the papers' claims.
use super::JudgeArgs;
use crate::claims::{self, Claim, Judged};
use crate::experiment::Outcome;
use comfy_table::{Table, presets};

/// Prints a row for each metric; false when one misses. Of named files only the claims that they tell of.
pub(super) fn judge(a: &JudgeArgs) -> Result<bool, String> {
    let all = a.files.is_empty();
    let files = if all { claims::results() } else { a.files.clone() };
    let real = claims::real(&files)?;
    let mut claims = claims::list()?;
    if let Some(r) = real.iter().find(|r| !claims.iter().any(|c| c.id == r.id)) {
        return Err(format!("'{} {}' belongs to no claim of sim/claims.toml", r.id, r.metric));
    }
    claims.retain(|c| if all { !c.real.is_empty() } else { real.iter().any(|r| r.id == c.id) });
    if claims.is_empty() {
        return Err("no row tells of a claim: metrics begin with its id, like 'R42 write'".to_string());
    }
    let judged: Vec<(&Claim, Judged)> =
        claims.iter().flat_map(|c| c.judged(&real).into_iter().map(move |j| (c, j))).collect();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["id", "metric", "expected", "real", "verdict", "command"]);
    for (c, j) in &judged {
        let (verdict, text) = (j.outcome.map_or("", Outcome::name), if j.text.is_empty() { "-" } else { &j.text });
        table.add_row([&c.id, &j.metric, &j.bounds, text, verdict, &c.command]);
    }
    super::print(&format!("{table}\n"));
    let count = |o: Outcome| judged.iter().filter(|(_, j)| j.outcome == Some(o)).count();
    let misses = count(Outcome::Misses);
    super::print(&format!(
        "{} hold, {misses} miss, {} not measured\n",
        count(Outcome::Holds),
        count(Outcome::NotMeasured)
    ));
    Ok(misses == 0)
}
