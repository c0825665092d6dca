//! What was done and what it took: a progress bar meanwhile, a table at the end.
use std::time::{Duration, Instant};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::control;
use crate::failure::{Failure, Outcome};

/// Counters of a mount at one moment.
#[derive(Clone, Copy, Default)]
struct Counters {
    rpcs: u64,
    hits: u64,
    misses: u64,
}

struct Row {
    what: String,
    count: String,
    speed: String,
    rpcs: u64,
    hits: String,
    seconds: f64,
}

/// Progress and results.
pub struct Report {
    connections: [u32; 2],
    rows: Vec<Row>,
    bar: ProgressBar,
}

/// What a step says about itself.
pub struct Done {
    /// Things done: files, objects, tests.
    pub count: String,
    /// Bytes moved, or 0.
    pub bytes: u64,
    /// Operations, when they are what counts.
    pub operations: u64,
}

impl Report {
    /// For two mounts.
    pub fn new(first: u32, second: u32) -> Report {
        let style = ProgressStyle::with_template("{spinner} {msg:42} [{bar:30}] {percent:>3}% {elapsed}");
        let bar = ProgressBar::new(1);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(120));
        Report { connections: [first, second], rows: Vec::new(), bar }
    }

    /// Runs a step with a progress bar of `length` and notes what it took.
    pub fn step(
        &mut self,
        what: &str,
        length: u64,
        work: impl FnOnce(&ProgressBar) -> Result<Done, Failure>,
    ) -> Outcome {
        self.bar.reset();
        self.bar.set_length(length.max(1));
        self.bar.set_message(what.to_string());
        let (before, begun) = (self.counters(), Instant::now());
        let done = work(&self.bar).map_err(|e| Failure::with_errno(format!("{what}: {e}"), i32::from(e.code())))?;
        let (seconds, after) = (begun.elapsed().as_secs_f64(), self.counters());
        let speed = match (done.bytes, done.operations) {
            (0, 0) => String::new(),
            (0, n) => format!("{:.0} op/s", n as f64 / seconds.max(1e-9)),
            (bytes, _) => super::rate(bytes, seconds),
        };
        let (hits, misses) = (after.hits.saturating_sub(before.hits), after.misses.saturating_sub(before.misses));
        let share = (hits * 100).checked_div(hits + misses);
        let row = Row {
            what: what.into(),
            count: done.count,
            speed,
            rpcs: after.rpcs.saturating_sub(before.rpcs),
            hits: share.map_or_else(|| "-".into(), |p| format!("{p}%")),
            seconds,
        };
        let line = format!("{:<42} {:>18} {:>12} {:>8.1} s", row.what, row.count, row.speed, row.seconds);
        if self.bar.is_hidden() {
            note!("{line}")
        } else {
            self.bar.println(line)
        }
        self.rows.push(row);
        Ok(())
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for connection in self.connections {
            // A mount that does not answer for a moment counts nothing for that moment.
            let Ok(a) = control::ask(connection, &json!({"do": "status"})) else { continue };
            let targets = a["osts"].as_array().cloned().unwrap_or_default();
            let rpcs = |t: &Value| t["rpcs"].as_u64().unwrap_or(0);
            sum.rpcs += rpcs(&a["mdt"]) + targets.iter().map(rpcs).sum::<u64>();
            sum.hits += a["cache"]["hits"].as_u64().unwrap_or(0);
            sum.misses += a["cache"]["misses"].as_u64().unwrap_or(0);
        }
        sum
    }

    /// Takes the progress bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header(["operation", "count", "speed", "RPCs", "cache hits", "seconds"]);
        for r in &self.rows {
            table.add_row([&r.what, &r.count, &r.speed, &r.rpcs.to_string(), &r.hits, &format!("{:.1}", r.seconds)]);
        }
        for column in 1..6 {
            if let Some(c) = table.column_mut(column) {
                c.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }
}
