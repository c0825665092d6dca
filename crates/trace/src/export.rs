//! Traces as text for other programs: CSV, one request a line, or one JSON object.
use crate::{Record, Trace, op_name};
use std::io::{self, Write};

/// Columns of the CSV, and names of the fields of a request in JSON.
pub const COLUMNS: [&str; 24] = [
    "target",
    "number",
    "op",
    "client",
    "object",
    "offset",
    "span",
    "bytes",
    "stored",
    "job",
    "uid",
    "arrived_ns",
    "dispatched_ns",
    "finished_ns",
    "max_service_us",
    "promoted_us",
    "flags",
    "errno",
    "xid",
    "holder",
    "before_us",
    "locked_us",
    "after_us",
    "committed_us",
];

/// A request's values in the order of [`COLUMNS`] but the first; whether each is a number.
fn values(r: &Record) -> [(String, bool); 23] {
    let n = |value: u64| (value.to_string(), true);
    let t = |value: String| (value, false);
    [
        n(r.number),
        t(op_name(r.op)),
        t(format!("{:016x}", r.client.0)),
        t(r.object.0.to_string()),
        n(r.offset),
        n(r.span.into()),
        n(r.bytes.into()),
        n(r.stored.into()),
        t(format!("{:016x}", r.job.0)),
        n(r.uid.into()),
        n(r.arrived.0),
        n(r.dispatched.0),
        n(r.finished.0),
        n(r.max_service_us.into()),
        n(r.promoted_us.into()),
        t(r.flags.to_string()),
        n(r.errno.into()),
        n(r.xid.0),
        t(format!("{:016x}", r.holder.0)),
        n(r.before_us.into()),
        n(r.locked_us.into()),
        n(r.after_us.into()),
        n(r.committed_us.into()),
    ]
}

/// Writes a head line and one line a request. Names of targets have no commas; a value with one stands in quotes.
///
/// # Errors
/// What `out` answers.
pub fn csv(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", COLUMNS.join(","))?;
    for target in &trace.targets {
        let name = quoted(target.name());
        for r in &target.records {
            write!(out, "{name}")?;
            for (value, _) in values(r) {
                write!(out, ",{value}")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

/// Writes one object: `version`, and `targets` with `settings` and `requests`.
///
/// # Errors
/// What `out` answers.
pub fn json(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{{\"version\":{},\"targets\":[", crate::VERSION)?;
    for (i, target) in trace.targets.iter().enumerate() {
        let settings: Vec<String> =
            target.settings.iter().map(|(k, v)| format!("{}:{}", string(k), string(v))).collect();
        let comma = if i > 0 { "," } else { "" };
        write!(out, "{comma}{{\"settings\":{{{}}},\"requests\":[", settings.join(","))?;
        for (i, r) in target.records.iter().enumerate() {
            let fields = COLUMNS[1..].iter().zip(values(r));
            let fields = fields.map(|(name, (value, number))| match number {
                true => format!("\"{name}\":{value}"),
                false => format!("\"{name}\":{}", string(&value)),
            });
            write!(out, "{}\n{{{}}}", if i > 0 { "," } else { "" }, fields.collect::<Vec<_>>().join(","))?;
        }
        write!(out, "]}}")?;
    }
    writeln!(out, "]}}")
}

/// A JSON string.
fn string(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => out += &format!("\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
