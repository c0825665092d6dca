//! `stria trace show`: a trace in tables.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use trace::{Figures, Flags, Record, SIZE_CLASSES, Sequentiality, Spread, Target, Trace, op_name, size_class};
use types::{ClientId, Duration, format_size};
use wire::Op;

/// What a trace comes to, in text.
pub(super) fn summary(trace: &Trace, clients_max: usize) -> String {
    let mut out = String::new();
    for target in &trace.targets {
        let _ = writeln!(out, "{}", described(target));
    }
    if trace.is_empty() {
        out += "no requests\n";
        return out;
    }
    let _ = writeln!(out, "\n{}", times(trace, clients_max));
    let _ = writeln!(out, "\n{}", waits(trace));
    let _ = writeln!(out, "\n{}", sizes(trace));
    let scheduled = trace.clone().scheduled();
    let all = scheduled.targets.iter().map(|t| Sequentiality::of(&t.records));
    let s = all.fold(Sequentiality::default(), Sequentiality::and);
    let _ = writeln!(
        out,
        "\nsequential: {} of the requests of an object begin where its one before ended, as they arrived;\n            {} of all continue the one before, as they were handed to the store",
        percent(s.arrived, s.of_object),
        percent(s.dispatched, s.of_target)
    );
    let marked = Flags::NAMES.iter().enumerate().map(|(bit, name)| {
        let flagged = trace.targets.iter().flat_map(|t| &t.records).filter(|r| r.flags.has(Flags(1 << bit))).count();
        (name, flagged)
    });
    let marked: Vec<String> = marked.filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
    if !marked.is_empty() {
        let _ = writeln!(out, "marked: {}", marked.join(", "));
    }
    out
}

/// A target in a line.
fn described(target: &Target) -> String {
    if !target.has_scheduler() {
        return format!("{}: {} requests", target.name(), target.records.len());
    }
    let of = |key: &str| target.setting(key).unwrap_or("?");
    let device = target.setting("disk.profile").map(|d| format!(" {d}")).unwrap_or_default();
    let changes = target.settings.iter().filter(|(k, _)| k.starts_with("disk.") && k != "disk.profile");
    let changes: String = changes.map(|(k, v)| format!(" {k}={v}")).collect();
    format!(
        "{}: {} requests; policy {}, dispatch window {}, store {}{device}{changes}",
        target.name(),
        target.records.len(),
        of("nrs.policy"),
        of("oss.dispatch_window"),
        of("store.kind"),
    )
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// Nanoseconds as milliseconds.
fn ms(ns: f64) -> String {
    match ns / 1e6 {
        ms if ms < 10.0 => format!("{ms:.3}"),
        ms if ms < 1000.0 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    }
}

fn row(name: String, f: &Figures) -> Vec<String> {
    let bandwidth = format!("{:.1}", f.bytes_per_s() / 1e6);
    let mut row = vec![name, f.requests.to_string(), format_size(f.bytes), bandwidth];
    for Spread { mean, p50, p99, .. } in [f.queue, f.service, f.response] {
        row.extend([ms(mean), ms(p50), ms(p99)]);
    }
    row.push(f.failed.to_string());
    row
}

/// The table of what requests waited for besides queue and store, by target: those that waited.
fn waits(trace: &Trace) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header([
        "waits in ms",
        "for locks",
        "sum",
        "p50",
        "p99",
        "for commits",
        "sum",
        "p50",
        "p99",
    ]);
    for target in trace.targets.iter().filter(|t| t.setting("source") != Some("client")) {
        let of = |us: fn(&Record) -> u32| {
            let waited = target.records.iter().map(us).filter(|us| *us > 0);
            let all: Vec<Duration> = waited.map(|us| Duration::from_micros(us.into())).collect();
            let (sum, spread) = (all.iter().map(|d| d.as_nanos() as f64).sum::<f64>(), Spread::of(all.iter().copied()));
            let ms = |ns: f64| format!("{:.3}", ns / 1e6);
            [all.len().to_string(), ms(sum), ms(spread.p50), ms(spread.p99)]
        };
        let cells = of(|r| r.locked_us).into_iter().chain(of(|r| r.committed_us));
        table.add_row(std::iter::once(target.name().to_string()).chain(cells));
    }
    aligned(&mut table);
    table
}

fn aligned(table: &mut Table) {
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
}

/// The table of times: in all, by OST, kind and client.
fn times(trace: &Trace, clients_max: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header([
        "times in ms",
        "requests",
        "bytes",
        "MB/s",
        "queue",
        "p50",
        "p99",
        "store",
        "p50",
        "p99",
        "both",
        "p50",
        "p99",
        "failed",
    ]);
    // What clients say of the same requests is not a second request.
    let trace =
        &Trace { targets: trace.targets.iter().filter(|t| t.setting("source") != Some("client")).cloned().collect() };
    let all = || trace.targets.iter().flat_map(|t| &t.records);
    table.add_row(row("all".into(), &figures(trace, |_| true)));
    for target in &trace.targets {
        table.add_row(row(target.name().into(), &Figures::of(|| target.records.iter())));
    }
    let ops: BTreeSet<Op> = all().map(|r| r.op).collect();
    for op in ops {
        table.add_row(row(op_name(op), &figures(trace, |r| r.op == op)));
    }
    let mut bytes: BTreeMap<ClientId, u64> = BTreeMap::new();
    all().for_each(|r| *bytes.entry(r.client).or_default() += u64::from(r.bytes));
    let mut clients: Vec<(u64, ClientId)> = bytes.into_iter().map(|(client, bytes)| (bytes, client)).collect();
    clients.sort_unstable_by(|a, b| b.cmp(a));
    for (_, client) in clients.iter().take(clients_max) {
        table.add_row(row(format!("client {:016x}", client.0), &figures(trace, |r| r.client == *client)));
    }
    if clients.len() > clients_max {
        table.add_row([format!("... {} more", clients.len() - clients_max)]);
    }
    aligned(&mut table);
    table
}

/// Figures of some requests, over all targets. Clocks of different targets have nothing to do with each other: the span is
/// the longest of any target.
fn figures(trace: &Trace, is: impl Fn(&Record) -> bool) -> Figures {
    let of = |target: &Target| Figures::of(|| target.records.iter().filter(|r| is(r))).span_ns;
    let span_ns = trace.targets.iter().map(of).max().unwrap_or(0);
    Figures { span_ns, ..Figures::of(|| trace.targets.iter().flat_map(|t| &t.records).filter(|r| is(r))) }
}

/// The table of sizes, reads and writes apart.
fn sizes(trace: &Trace) -> Table {
    let mut counts = [[0u64; SIZE_CLASSES]; 2];
    for r in trace.targets.iter().flat_map(|t| &t.records).filter(|r| r.io().is_some()) {
        counts[usize::from(r.is_write())][size_class(r.bytes)] += 1;
    }
    let totals = counts.map(|c| c.iter().sum::<u64>());
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["bytes up to", "reads", "%", "others", "%"]);
    for class in (0..SIZE_CLASSES).filter(|c| counts[0][*c] + counts[1][*c] > 0) {
        let name = if class + 1 == SIZE_CLASSES { "more".to_string() } else { format_size(4096 << class) };
        let [reads, others] = [0, 1].map(|kind| (counts[kind][class], percent(counts[kind][class], totals[kind])));
        table.add_row([name, reads.0.to_string(), reads.1, others.0.to_string(), others.1]);
    }
    aligned(&mut table);
    table
}
