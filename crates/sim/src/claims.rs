//! The papers' claims, one row each: what is expected, which scenarios simulate it, what real processes gave.
//!
//! The list is `sim/claims.toml`. A row of a results file (`bench/results/*.ndjson`) belongs to the claim whose id its `metric`
//! begins with: `R58b ram_over_none` to R58b. What a metric has to be stands with the claim; the mean of its samples is judged.
use crate::experiment::{Estimate, Outcome};
use crate::scenario::repository;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// `R1`.
    pub id: String,
    /// Which paper.
    pub paper: String,
    /// In one line.
    pub claim: String,
    /// What must come out.
    pub expected: String,
    /// Scenarios that show it.
    pub simulated: Vec<String>,
    /// What measures it on real processes.
    pub command: String,
    /// What that has to give.
    pub real: Vec<Wanted>,
}

/// What a metric of real processes has to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// The metric, without the claim's id.
    pub metric: String,
    /// The field of the row, where it is not that of the samples.
    pub field: String,
    /// Least mean.
    pub min: Option<f64>,
    /// Greatest mean.
    pub max: Option<f64>,
}

impl Wanted {
    /// Its bounds in words.
    #[must_use]
    pub fn bounds(&self) -> String {
        let bound = |sign: &str, b: Option<f64>| b.map(|b| format!("{sign} {}", crate::cli::number(b)));
        bound(">=", self.min).into_iter().chain(bound("<=", self.max)).collect::<Vec<_>>().join(", ")
    }
}

/// What a run of real processes gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Real {
    /// The claim's id.
    pub id: String,
    /// The metric, without the id.
    pub metric: String,
    /// Commit, command and machine.
    pub origin: String,
    /// The row.
    fields: Map<String, Value>,
}

/// A metric of a claim as it was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The metric, without the claim's id.
    pub metric: String,
    /// Its bounds; empty where nothing is wanted of it.
    pub bounds: String,
    /// The mean with its 95 % interval, or why it could not be measured; empty when it was not.
    pub text: String,
    /// Of the mean; none where nothing is wanted of it.
    pub outcome: Option<Outcome>,
    /// Commit, command and machine of the run.
    pub origin: String,
}

/// The list.
///
/// # Errors
/// A sentence with the file and what is wrong in it.
pub fn list() -> Result<Vec<Claim>, String> {
    let path = repository().join("sim/claims.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Claim>, String> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let rows = table.get("claim").and_then(toml::Value::as_array).ok_or("there is no [[claim]]")?;
    rows.iter().enumerate().map(|(i, row)| claim(row).map_err(|why| format!("claim {}: {why}", i + 1))).collect()
}

fn claim(row: &toml::Value) -> Result<Claim, String> {
    let row = row.as_table().ok_or("write a table")?;
    let mut claim = Claim::default();
    for (key, value) in row {
        let text = || value.as_str().map(String::from).ok_or_else(|| format!("'{key}' is not a string"));
        match key.as_str() {
            "id" => claim.id = text()?,
            "paper" => claim.paper = text()?,
            "claim" => claim.claim = text()?,
            "expected" => claim.expected = text()?,
            "command" => claim.command = text()?,
            "real" => {
                let rows = value.as_array().ok_or("'real' is not a list of tables")?;
                claim.real = rows.iter().map(wanted).collect::<Result<_, _>>()?;
            }
            "simulated" => {
                let ids = value.as_array().ok_or("'simulated' is not a list")?;
                let id = |v: &toml::Value| v.as_str().map(String::from).ok_or("'simulated' lists names of scenarios");
                claim.simulated = ids.iter().map(id).collect::<Result<_, _>>()?;
            }
            _ => {
                return Err(format!(
                    "unknown key '{key}'; a claim has id, paper, claim, expected, simulated, command, real"
                ));
            }
        }
    }
    for (key, value) in [("id", &claim.id), ("claim", &claim.claim), ("expected", &claim.expected)] {
        if value.is_empty() {
            return Err(format!("'{key}' is missing"));
        }
    }
    Ok(claim)
}

fn wanted(row: &toml::Value) -> Result<Wanted, String> {
    let row = row.as_table().ok_or("'real' is not a list of tables")?;
    let mut wanted = Wanted::default();
    for (key, value) in row {
        let text = || value.as_str().map(String::from).ok_or_else(|| format!("'{key}' of real is not a string"));
        let number = || {
            let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
            number.filter(|n| n.is_finite()).ok_or_else(|| format!("'{key}' of real is not a number"))
        };
        match key.as_str() {
            "metric" => wanted.metric = text()?,
            "field" => wanted.field = text()?,
            "min" => wanted.min = Some(number()?),
            "max" => wanted.max = Some(number()?),
            _ => return Err(format!("unknown key '{key}' of real; there are metric, field, min, max")),
        }
    }
    match (wanted.metric.is_empty(), wanted.min.or(wanted.max)) {
        (true, _) => Err("real without 'metric'".into()),
        (_, None) => Err(format!("real '{}' has neither min nor max", wanted.metric)),
        _ => Ok(wanted),
    }
}

/// The repository's results files, by name.
#[must_use]
pub fn results() -> Vec<PathBuf> {
    let dir = repository().join("bench/results");
    let mut files: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "ndjson"));
    files.sort();
    files
}

/// All rows of results files that belong to a claim, in the order of files and lines. Of rows of one metric the last counts.
///
/// # Errors
/// A sentence with the file that cannot be read, or with the line that is no JSON object.
pub fn real(files: &[PathBuf]) -> Result<Vec<Real>, String> {
    let mut all: Vec<Real> = Vec::new();
    for file in files {
        for found in rows(file)? {
            all.retain(|r| (&r.id, &r.metric) != (&found.id, &found.metric));
            all.push(found);
        }
    }
    Ok(all)
}

fn rows(file: &Path) -> Result<Vec<Real>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{} cannot be read: {e}", file.display()))?;
    let mut rows = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let Ok(Value::Object(fields)) = serde_json::from_str(line) else {
            return Err(format!("{} line {}: it is no JSON object", file.display(), i + 1));
        };
        rows.extend(row(fields));
    }
    Ok(rows)
}

/// A row of a results file, if it is about a claim.
fn row(fields: Map<String, Value>) -> Option<Real> {
    let metric = fields.get("metric")?.as_str()?;
    let (id, what) = metric.split_once([' ', '.']).unwrap_or((metric, ""));
    let digits = id.strip_prefix('R')?;
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let said = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or("?");
    let origin = format!("{}, {}, commit {}", said("command"), said("machine"), said("commit"));
    Some(Real { id: id.to_string(), metric: what.to_string(), origin, fields })
}

impl Real {
    /// The samples of a field, or of the row where none is named: `samples`, or its one value.
    fn estimate(&self, field: &str) -> Option<Estimate> {
        let numbers = |v: &Value| match v {
            Value::Array(all) => all.iter().map(Value::as_f64).collect(),
            one => one.as_f64().map(|n| vec![n]),
        };
        let keys: &[&str] = if field.is_empty() { &["samples", "value", "median", "mean"] } else { &[field] };
        keys.iter().find_map(|key| self.fields.get(*key).and_then(numbers)).and_then(|all| Estimate::of(&all))
    }

    /// What it gave, or why nothing, or all its numbers where it has no value.
    fn text(&self, field: &str) -> String {
        let of = |key: &str| self.fields.get(key).and_then(Value::as_str);
        if let Some(why) = of("cannot") {
            return format!("cannot be measured here: {why}");
        }
        if let Some(e) = self.estimate(field) {
            let unit = of("unit").filter(|_| field.is_empty()).map_or(String::new(), |u| format!(" {u}"));
            return format!("{}{unit}", crate::cli::interval(&e));
        }
        let shown =
            |(k, v): (&String, &Value)| Some(format!("{} {}", k.replace('_', " "), crate::cli::number(v.as_f64()?)));
        self.fields.iter().filter_map(shown).collect::<Vec<_>>().join(", ")
    }
}

impl Claim {
    /// What real processes gave: first what is wanted, then what else was measured.
    #[must_use]
    pub fn judged(&self, real: &[Real]) -> Vec<Judged> {
        let own: Vec<&Real> = real.iter().filter(|r| r.id == self.id).collect();
        let mut all: Vec<Judged> =
            self.real.iter().map(|w| judge(w, own.iter().find(|r| r.metric == w.metric))).collect();
        let known = |metric: &str| self.real.iter().any(|w| w.metric == metric);
        all.extend(own.iter().filter(|r| !known(&r.metric)).map(|r| Judged {
            metric: r.metric.clone(),
            bounds: String::new(),
            text: r.text(""),
            outcome: None,
            origin: r.origin.clone(),
        }));
        all
    }
}

fn judge(wanted: &Wanted, found: Option<&&Real>) -> Judged {
    let measured = found.and_then(|r| r.estimate(&wanted.field));
    let outcome = match measured {
        None => Outcome::NotMeasured,
        Some(m) if wanted.min.is_some_and(|b| m.mean < b) || wanted.max.is_some_and(|b| m.mean > b) => Outcome::Misses,
        Some(_) => Outcome::Holds,
    };
    let is_close = measured.is_some_and(|m| [wanted.min, wanted.max].into_iter().flatten().any(|b| m.straddles(b)));
    Judged {
        metric: wanted.metric.clone(),
        bounds: wanted.bounds(),
        text: found.map_or(String::new(), |r| r.text(&wanted.field)) + if is_close { " ~" } else { "" },
        outcome: Some(outcome),
        origin: found.map_or(String::new(), |r| r.origin.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{load, scenario_dir, scenario_files};
    use std::collections::BTreeSet;

    #[test]
    fn every_claim_has_its_scenarios_and_every_scenario_and_result_of_a_claim_has_its_row() {
        let claims = list().unwrap();
        let ids: BTreeSet<&str> = claims.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids.len(), claims.len(), "an id stands twice");
        let named: BTreeSet<&str> = claims.iter().flat_map(|c| &c.simulated).map(String::as_str).collect();
        let files = scenario_files(&scenario_dir());
        let scenarios: BTreeSet<String> = files.iter().map(|f| load(f).unwrap().id).collect();
        for id in &named {
            assert!(scenarios.contains(*id), "no scenario {id}");
        }
        let is_claims = |id: &&String| id.starts_with('R') && id[1..].starts_with(|c: char| c.is_ascii_digit());
        for id in scenarios.iter().filter(is_claims) {
            assert!(named.contains(id.as_str()), "{id} belongs to no claim of sim/claims.toml");
        }
        for r in real(&results()).unwrap() {
            assert!(ids.contains(r.id.as_str()), "{r:?} belongs to no claim of sim/claims.toml");
        }
    }

    fn found(line: &str) -> Option<Real> {
        row(serde_json::from_str(line).unwrap())
    }

    #[test]
    fn results_are_told_by_the_id_that_their_metric_begins_with() {
        let line = r#"{"commit":"abc","command":"bench/x.sh","machine":"2 cores","metric":"R58b ram_over_none","value":190.196}"#;
        let r = found(line).unwrap();
        assert_eq!((r.id.as_str(), r.metric.as_str(), r.text("")), ("R58b", "ram_over_none", "190.2".into()));
        assert_eq!(r.origin, "bench/x.sh, 2 cores, commit abc");
        let several = found(r#"{"metric":"R47.processes","best":100,"at_32":96}"#).unwrap();
        assert_eq!((several.id.as_str(), several.text("")), ("R47", "at 32 96, best 100".into()));
        assert_eq!(found(r#"{"metric":"restart.mdt0_s","median":0.03}"#), None);
    }

    fn claim(wanted: &str) -> Claim {
        let text = format!("[[claim]]\nid='R47'\nclaim='c'\nexpected='e'\n{wanted}");
        parse(&text).unwrap().remove(0)
    }

    #[test]
    fn the_mean_of_the_samples_is_judged_and_a_bad_figure_misses() {
        let claim =
            claim("[[claim.real]]\nmetric='read_32_over_best'\nmin=0.95\n[[claim.real]]\nmetric='ms'\nmax=10\n");
        let outcomes = |lines: &[&str]| {
            let rows: Vec<Real> = lines.iter().map(|l| found(l).unwrap()).collect();
            claim.judged(&rows).into_iter().map(|j| (j.outcome, j.text)).collect::<Vec<_>>()
        };
        let good = r#"{"metric":"R47 read_32_over_best","samples":[0.97,0.98,0.99]}"#;
        let bad = r#"{"metric":"R47 read_32_over_best","samples":[0.99,0.6,0.99]}"#;
        let late = r#"{"metric":"R47 ms","samples":[12,12],"unit":"ms"}"#;
        let seen = outcomes(&[good, late]);
        assert_eq!(seen[0], (Some(Outcome::Holds), "0.98 \u{b1} 0.025".into()));
        assert_eq!(seen[1], (Some(Outcome::Misses), "12 ms".into()));
        let seen = outcomes(&[bad]);
        assert!(seen[0].0 == Some(Outcome::Misses) && seen[0].1.ends_with('~'), "{seen:?}");
        assert_eq!(seen[1], (Some(Outcome::NotMeasured), String::new()));
        let cannot = r#"{"metric":"R47 ms","cannot":"there is no IOR"}"#;
        assert_eq!(
            outcomes(&[cannot])[1],
            (Some(Outcome::NotMeasured), "cannot be measured here: there is no IOR".into())
        );
        assert_eq!(outcomes(&[r#"{"metric":"R47 more","value":7}"#])[2], (None, "7".into()));
    }

    #[test]
    fn of_rows_of_one_metric_the_last_counts_and_a_broken_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.ndjson");
        let row = |value: u32| format!("{{\"metric\":\"R42 write\",\"value\":{value}}}\n");
        std::fs::write(&file, row(90) + &row(115)).unwrap();
        let rows = real(std::slice::from_ref(&file)).unwrap();
        assert_eq!((rows.len(), rows[0].text("")), (1, "115".into()));
        std::fs::write(&file, row(90) + "R42 write 115\n").unwrap();
        assert!(real(&[file]).unwrap_err().ends_with("line 2: it is no JSON object"));
        assert!(real(&[dir.path().join("none")]).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn what_is_wrong_in_the_list_is_named() {
        let why = |text: &str| parse(text).unwrap_err();
        assert_eq!(why("x = 1"), "there is no [[claim]]");
        assert_eq!(why("[[claim]]\nid = 'R1'\nclaim = 'c'\n"), "claim 1: 'expected' is missing");
        assert!(why("[[claim]]\nid = 'R1'\nscenario = 'R1'\n").contains("unknown key 'scenario'"));
        assert!(why("[[claim]]\nsimulated = [1]\n").contains("names of scenarios"));
        assert!(why("[[claim]]\nreal = [{metric = 'm'}]\n").contains("real 'm' has neither min nor max"));
        assert!(why("[[claim]]\nreal = [{metric = 'm', most = 1}]\n").contains("unknown key 'most' of real"));
        assert!(why("[[claim]]\nreal = [{metric = 'm', min = 'x'}]\n").contains("'min' of real is not a number"));
    }
}
