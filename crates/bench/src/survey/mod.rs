//! What one layer alone can do: disk, network, OSTs, metadata.
//!
//! A survey is a table: for each combination of threads, objects and record sizes some figures. Decides which combinations
//! there are and what is shown; the kinds measure.
//! Source: the surveys of Lustre's iokit (sgpdd-survey, obdfilter-survey, ost-survey, mds-survey).
pub mod cli;
pub mod files;
pub mod names;
pub mod network;
mod place;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};

use crate::failure::{Failed, Outcome};
use crate::os;
use crate::report::new_table;

/// A survey's figures.
#[derive(Clone, Debug)]
pub struct Findings {
    /// What was measured.
    pub kind: &'static str,
    /// Columns: key in JSON and head of the table.
    pub columns: &'static [&'static str],
    /// Rows, as long as the columns.
    pub rows: Vec<Vec<Value>>,
    /// What follows from them, a line each.
    pub notes: Vec<String>,
}

impl Findings {
    /// Without rows yet.
    #[must_use]
    pub fn new(kind: &'static str, columns: &'static [&'static str]) -> Findings {
        Findings { kind, columns, rows: Vec::new(), notes: Vec::new() }
    }
    /// Adds a row.
    pub fn push(&mut self, row: Vec<Value>) {
        assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }
    /// The table.
    #[must_use]
    pub fn text(&self) -> String {
        let heads: Vec<String> = self.columns.iter().map(|c| c.replace('_', " ")).collect();
        let mut table = new_table(&heads.iter().map(String::as_str).collect::<Vec<_>>());
        for row in &self.rows {
            table.add_row(self.columns.iter().zip(row).map(|(c, v)| shown(c, v)));
        }
        let notes = self.notes.iter().fold(String::new(), |all, n| all + n + "\n");
        format!("{table}\n{notes}")
    }
    /// One JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let object = |row: &Vec<Value>| -> Value {
            self.columns.iter().zip(row).map(|(c, v)| ((*c).to_string(), v.clone())).collect::<Map<_, _>>().into()
        };
        json!({
            "tool": "stria survey", "kind": self.kind, "version": env!("CARGO_PKG_VERSION"),
            "rows": self.rows.iter().map(object).collect::<Vec<_>>(), "notes": self.notes,
        })
    }
}

fn shown(column: &str, value: &Value) -> String {
    match value {
        Value::Number(n) if column.ends_with("bytes") => types::format_size(n.as_u64().unwrap_or(0)),
        Value::Number(n) if n.is_f64() => format!("{:.1}", n.as_f64().unwrap_or(0.0)),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// Set when the user wants an end.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// Set by SIGINT, SIGTERM and SIGHUP; the second one ends the process.
    #[must_use]
    pub fn on_signals() -> Stop {
        let stop = Stop::default();
        let seen = stop.0.clone();
        os::watch_signals(move |signal| {
            if seen.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal);
            }
            true
        });
        stop
    }
    /// Ends early.
    ///
    /// # Errors
    /// The user wants an end.
    pub fn check(&self) -> Outcome {
        if self.0.load(Ordering::Relaxed) { Err(Failed::new("interrupted", libc::EINTR)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_its_json_hold_the_same_figures() {
        let mut f = Findings::new("disk", &["threads", "record_bytes", "write_mb_per_s"]);
        f.push(vec![json!(2), json!(65536), json!(12.345)]);
        f.notes.push("a note".into());
        let text = f.text();
        assert!(text.contains("record bytes") && text.contains("64K") && text.contains("12.3"), "{text}");
        assert!(text.ends_with("a note\n"));
        assert_eq!(f.json()["rows"][0], json!({"threads": 2, "record_bytes": 65536, "write_mb_per_s": 12.345}));
    }
}
