//! World `recorded`: nothing is simulated, the scenario judges readings of a results file that a benchmark wrote.
//!
//! A results file has one JSON object a line (`bench/results/*.ndjson`). A reading takes one field of all rows that meet its
//! conditions, divided by the same field of a partner row where it says `over`, and keeps the greatest, the least or the mean.
use crate::metrics::Metrics;
use crate::scenario::{Reading, Scenario, Take, repository};
use serde_json::Value;

/// The readings of a scenario, as metrics.
///
/// # Errors
/// A sentence with the file, and the line or the reading that does not fit.
pub fn read(scenario: &Scenario) -> Result<Metrics, String> {
    let path = repository().join(&scenario.results);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    let rows: Vec<Value> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| serde_json::from_str(line).map_err(|e| format!("{}:{}: {e}", path.display(), i + 1)))
        .collect::<Result<_, _>>()?;
    let mut metrics = Metrics::default();
    for reading in &scenario.readings {
        let value =
            value(&rows, reading).map_err(|why| format!("{}: reading '{}': {why}", path.display(), reading.name))?;
        metrics.push(reading.name.clone(), "as recorded", value);
    }
    Ok(metrics)
}

fn value(rows: &[Value], reading: &Reading) -> Result<f64, String> {
    let mut values = Vec::new();
    for row in rows.iter().filter(|r| meets(r, &reading.rows)) {
        let mut value = field(row, &reading.field)?;
        if !reading.over.is_empty() {
            value /= field(partner(rows, row, reading)?, &reading.field)?;
        }
        values.push(value);
    }
    if values.is_empty() {
        return Err(format!("no row has {}", shown(&reading.rows)));
    }
    Ok(match reading.take {
        Take::Greatest => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
        Take::Least => values.into_iter().fold(f64::INFINITY, f64::min),
        Take::Mean => values.iter().sum::<f64>() / values.len() as f64,
    })
}

/// The row that a row's value is divided by: it has what `over` says, and the same where `same` says.
fn partner<'a>(rows: &'a [Value], row: &Value, reading: &Reading) -> Result<&'a Value, String> {
    let is_partner = |r: &&Value| meets(r, &reading.over) && reading.same.iter().all(|k| r.get(k) == row.get(k));
    rows.iter().find(is_partner).ok_or_else(|| format!("no row has {} for {row}", shown(&reading.over)))
}

fn field(row: &Value, name: &str) -> Result<f64, String> {
    row.get(name).and_then(Value::as_f64).ok_or_else(|| format!("'{name}' is no number in {row}"))
}

fn meets(row: &Value, conditions: &[(String, String)]) -> bool {
    conditions.iter().all(|(key, wanted)| match row.get(key) {
        Some(Value::String(s)) => s == wanted,
        Some(Value::Number(n)) => wanted.parse::<f64>().is_ok_and(|w| n.as_f64() == Some(w)),
        _ => false,
    })
}

fn shown(conditions: &[(String, String)]) -> String {
    conditions.iter().map(|(k, v)| format!("{k} = {v}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Value> {
        let lines = [
            r#"{"policy":"fifo","queued":1000,"ns":10}"#,
            r#"{"policy":"fifo","queued":8000,"ns":15}"#,
            r#"{"policy":"obrr","queued":1000,"ns":20}"#,
            r#"{"policy":"obrr","queued":8000,"ns":24}"#,
        ];
        lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    #[test]
    fn a_reading_is_taken_from_the_rows_that_meet_its_conditions() {
        let at_8000 =
            Reading { field: "ns".into(), rows: vec![("queued".into(), "8000".into())], ..Reading::default() };
        assert_eq!(value(&rows(), &at_8000), Ok(24.0));
        assert_eq!(value(&rows(), &Reading { take: Take::Least, ..at_8000.clone() }), Ok(15.0));
        assert_eq!(value(&rows(), &Reading { take: Take::Mean, ..at_8000.clone() }), Ok(19.5));
        let growth = Reading { over: vec![("queued".into(), "1000".into())], same: vec!["policy".into()], ..at_8000 };
        assert_eq!(value(&rows(), &growth), Ok(1.5));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let of = |field: &str, key: &str, v: &str| {
            let reading = Reading { field: field.into(), rows: vec![(key.into(), v.into())], ..Reading::default() };
            value(&rows(), &reading).unwrap_err()
        };
        assert!(of("ns", "queued", "9").contains("no row has queued = 9"));
        assert!(of("us", "queued", "1000").contains("'us' is no number in {\"ns\":10"));
    }
}
