//! The papers' claims, one row each: what is expected, which scenarios simulate it, what real processes gave.
//!
//! The list is `sim/claims.toml`. A row of a results file (`bench/results/*.ndjson`) belongs to the claim whose id its `metric`
//! begins with: `R58b ram_over_none` to R58b.
use crate::scenario::repository;
use serde_json::{Map, Value};

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
}

/// What a run of real processes gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Real {
    /// The claim's id.
    pub id: String,
    /// What was measured, and its value.
    pub text: String,
    /// Commit, command and machine.
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
            "simulated" => {
                let ids = value.as_array().ok_or("'simulated' is not a list")?;
                let id = |v: &toml::Value| v.as_str().map(String::from).ok_or("'simulated' lists names of scenarios");
                claim.simulated = ids.iter().map(id).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("unknown key '{key}'; a claim has id, paper, claim, expected, simulated")),
        }
    }
    for (key, value) in [("id", &claim.id), ("claim", &claim.claim), ("expected", &claim.expected)] {
        if value.is_empty() {
            return Err(format!("'{key}' is missing"));
        }
    }
    Ok(claim)
}

/// All rows of the repository's results files that belong to a claim, in the order of files and lines.
#[must_use]
pub fn real() -> Vec<Real> {
    let dir = repository().join("bench/results");
    let mut files: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "ndjson"));
    files.sort();
    let texts = files.iter().filter_map(|p| std::fs::read_to_string(p).ok());
    texts.flat_map(|t| t.lines().filter_map(row).collect::<Vec<_>>()).collect()
}

/// A line of a results file, if it is about a claim.
fn row(line: &str) -> Option<Real> {
    let Value::Object(row) = serde_json::from_str(line).ok()? else { return None };
    let metric = row.get("metric")?.as_str()?;
    let (id, what) = metric.split_once([' ', '.']).unwrap_or((metric, ""));
    let digits = id.strip_prefix('R')?;
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let said = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or("?").to_string();
    let origin = format!("{}, {}, commit {}", said("command"), said("machine"), said("commit"));
    Some(Real { id: id.to_string(), text: format!("{} {}", what.replace('_', " "), value(&row)).trim().into(), origin })
}

/// The value of a row, or all its numbers where it has none of that name.
fn value(row: &Map<String, Value>) -> String {
    let number = |v: &Value| v.as_f64().map(crate::cli::number);
    for key in ["value", "median", "mean"] {
        if let Some(v) = row.get(key).and_then(number) {
            let unit = row.get("unit").and_then(Value::as_str).map_or(String::new(), |u| format!(" {u}"));
            return format!("{v}{unit}");
        }
    }
    let all = row.iter().filter_map(|(k, v)| Some(format!("{} {}", k.replace('_', " "), number(v)?)));
    all.collect::<Vec<_>>().join(", ")
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
        for r in real() {
            assert!(ids.contains(r.id.as_str()), "{r:?} belongs to no claim of sim/claims.toml");
        }
    }

    #[test]
    fn results_are_told_by_the_id_that_their_metric_begins_with() {
        let line = r#"{"commit":"abc","command":"bench/x.sh","machine":"2 cores","metric":"R58b ram_over_none","value":190.196}"#;
        let found = row(line).unwrap();
        assert_eq!((found.id.as_str(), found.text.as_str()), ("R58b", "ram over none 190.2"));
        assert_eq!(found.origin, "bench/x.sh, 2 cores, commit abc");
        let several = row(r#"{"metric":"R47.processes","best":100,"at_32":96}"#).unwrap();
        assert_eq!((several.id.as_str(), several.text.as_str()), ("R47", "processes at 32 96, best 100"));
        assert_eq!(row(r#"{"metric":"restart.mdt0_s","median":0.03}"#), None);
        assert_eq!(row("not json"), None);
    }

    #[test]
    fn what_is_wrong_in_the_list_is_named() {
        let why = |text: &str| parse(text).unwrap_err();
        assert_eq!(why("x = 1"), "there is no [[claim]]");
        assert_eq!(why("[[claim]]\nid = 'R1'\nclaim = 'c'\n"), "claim 1: 'expected' is missing");
        assert!(why("[[claim]]\nid = 'R1'\nscenario = 'R1'\n").contains("unknown key 'scenario'"));
        assert!(why("[[claim]]\nsimulated = [1]\n").contains("names of scenarios"));
    }
}
