//! Traces from CSV: what `export` writes, or a table with as many of its columns as are known; and from what other programs
//! print: [`dxt()`], [`blkparse()`].
mod blkparse;
mod dxt;

pub use blkparse::blkparse;
pub use dxt::dxt;

use crate::export::COLUMNS;
use crate::{Flags, Record, Target, Trace, op_named};
use nrs::JobId;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use types::{ClientId, Fid, Instant, ObjectId, Xid};
use wire::Op;

/// Columns that a table must have.
pub const NEEDED: [&str; 6] = ["op", "client", "offset", "bytes", "arrived_ns", "finished_ns"];

/// Why a table is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}
impl std::error::Error for ImportError {}

/// Reads a table: a head line with names of columns, then a request a line. Without a column `target` all belong to
/// one, without `dispatched_ns` nothing waited, without `stored` nothing was cached, without `span` there were no gaps, without
/// `object` each client has one. Of the settings only the target's name is known.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn csv(text: &str) -> Result<Trace, ImportError> {
    let mut lines = text.lines().zip(1..);
    let wrong = |line: usize, what: String| ImportError { line, what };
    let head: Vec<&str> = lines.next().map(|(l, _)| l.split(',').map(str::trim).collect()).unwrap_or_default();
    if let Some(name) = head.iter().find(|name| !COLUMNS.contains(name)) {
        return Err(wrong(1, format!("'{name}' is not a column; there are {}", COLUMNS.join(", "))));
    }
    if let Some(name) = NEEDED.iter().find(|name| !head.contains(name)) {
        return Err(wrong(1, format!("there is no column '{name}'; it takes {}", NEEDED.join(", "))));
    }
    let mut trace = Trace::default();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty()) {
        let values: Vec<&str> = text.split(',').map(str::trim).collect();
        if values.len() != head.len() {
            return Err(wrong(line, format!("{} values for {} columns", values.len(), head.len())));
        }
        let row = Row { head: &head, values: &values };
        let name = row.text("target").unwrap_or("trace");
        let at = *places.entry(name.to_string()).or_insert_with(|| {
            let settings = vec![("target".to_string(), name.to_string()), ("source".into(), "csv".into())];
            trace.targets.push(Target { settings, records: Vec::new() });
            trace.targets.len() - 1
        });
        let target = &mut trace.targets[at];
        let record = row.record(target.records.len() as u64).map_err(|what| wrong(line, what))?;
        target.records.push(record);
    }
    Ok(trace)
}

struct Row<'a> {
    head: &'a [&'a str],
    values: &'a [&'a str],
}

impl Row<'_> {
    fn text(&self, column: &str) -> Option<&str> {
        self.head.iter().position(|name| *name == column).map(|at| self.values[at]).filter(|v| !v.is_empty())
    }
    fn number<T: FromStr>(&self, column: &str, otherwise: T) -> Result<T, String> {
        let Some(text) = self.text(column) else { return Ok(otherwise) };
        text.parse().map_err(|_| format!("{column} = '{text}' is not a whole number of its size"))
    }
    fn id(&self, column: &str) -> Result<u64, String> {
        let text = self.text(column).unwrap_or("0");
        u64::from_str_radix(text.trim_start_matches("0x"), 16)
            .map_err(|_| format!("{column} = '{text}' is not a hexadecimal number"))
    }
    fn object(&self, client: u64) -> Result<ObjectId, String> {
        let Some(text) = self.text("object") else { return Ok(ObjectId(Fid::new(client, 1))) };
        let found = Fid::parse(text).or_else(|| text.parse().ok().map(|n: u32| Fid::new(1, n)));
        found.map(ObjectId).ok_or_else(|| format!("object = '{text}' is neither a FID nor a number"))
    }
    fn op(&self) -> Result<Op, String> {
        match self.text("op").unwrap_or_default() {
            "read" | "R" => Ok(Op::OstRead),
            "write" | "W" => Ok(Op::OstWrite),
            other => op_named(other).ok_or_else(|| format!("op = '{other}': write read or write")),
        }
    }
    fn flags(&self) -> Result<Flags, String> {
        let mut names = self.text("flags").unwrap_or_default().split('+').filter(|name| !name.is_empty());
        names.try_fold(Flags::default(), |flags, name| {
            let bit = Flags::NAMES.iter().position(|n| *n == name);
            bit.map(|bit| flags.with(Flags(1 << bit))).ok_or_else(|| format!("'{name}' is not a flag"))
        })
    }

    fn record(&self, number: u64) -> Result<Record, String> {
        let (client, bytes, arrived) = (self.id("client")?, self.number("bytes", 0)?, self.number("arrived_ns", 0)?);
        let record = Record {
            number: self.number("number", number)?,
            arrived: Instant(arrived),
            dispatched: Instant(self.number("dispatched_ns", arrived)?),
            finished: Instant(self.number("finished_ns", 0)?),
            client: ClientId(client),
            object: self.object(client)?,
            offset: self.number("offset", 0)?,
            job: JobId(self.id("job")?),
            span: self.number("span", bytes)?,
            bytes,
            stored: self.number("stored", bytes)?,
            uid: self.number("uid", 0)?,
            max_service_us: self.number("max_service_us", 0)?,
            promoted_us: self.number("promoted_us", 0)?,
            op: self.op()?,
            flags: self.flags()?,
            errno: self.number("errno", 0)?,
            xid: Xid(self.number("xid", 0)?),
            holder: ClientId(self.id("holder")?),
            before_us: self.number("before_us", 0)?,
            locked_us: self.number("locked_us", 0)?,
            after_us: self.number("after_us", 0)?,
            committed_us: self.number("committed_us", 0)?,
        };
        checked(record)
    }
}

/// What cannot be written cannot be imported.
fn checked(record: Record) -> Result<Record, String> {
    let mut raw = Vec::new();
    record.put(&mut raw);
    let raw = raw[..].try_into().expect("a record has its size");
    Record::get(raw).map_err(|e| e.what.to_string())
}

/// Seconds like `0.000001829` as nanoseconds; further digits are dropped.
fn nanos(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a time in seconds, like 0.0029");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || !(whole.bytes().chain(part.bytes())).all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let part: String = part.chars().chain("000000000".chars()).take(9).collect();
    let (whole, part): (u64, u64) = (whole.parse().map_err(|_| wrong())?, part.parse().map_err(|_| wrong())?);
    whole.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(part)).ok_or_else(wrong)
}

/// A target of a trace that `source` made: its requests in the order in which they were done, numbered as they arrived.
fn target(name: &str, source: &str, numbers: &[(&str, i64)], mut records: Vec<Record>) -> Target {
    records.sort_by_key(|r| r.arrived);
    records.iter_mut().zip(0..).for_each(|(r, number)| r.number = number);
    records.sort_by_key(|r| (r.finished, r.number));
    let mut settings = vec![("target".to_string(), name.to_string()), ("source".into(), source.into())];
    settings.extend(numbers.iter().map(|(key, value)| ((*key).to_string(), value.to_string())));
    Target { settings, records }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_few_columns_is_a_trace_and_what_is_none_is_refused_at_its_line() {
        let head = "op,client,offset,bytes,arrived_ns,finished_ns\n";
        let trace = csv(&format!("{head}read,7,4096,512,10,30\n\nW,7,0,4096,20,40\n")).expect("a table");
        let (target, records) = (trace.targets[0].name(), &trace.targets[0].records);
        assert_eq!((trace.targets.len(), target, records.len()), (1, "trace", 2));
        assert_eq!(
            (records[1].op, records[1].number, records[1].stored, records[1].span),
            (Op::OstWrite, 1, 4096, 4096)
        );
        assert_eq!(records[0].queued().as_nanos(), 0);
        let refused = |text: &str| csv(text).expect_err("no table").to_string();
        assert!(refused("").starts_with("line 1: there is no column 'op'"));
        assert!(refused("op,colour\n").starts_with("line 1: 'colour' is not a column"));
        for (line, why) in [
            ("read,7,4096,512,10", "line 2: 5 values for 6 columns"),
            ("erase,7,4096,512,10,30", "line 2: op = 'erase': write read or write"),
            ("read,x,4096,512,10,30", "line 2: client = 'x' is not a hexadecimal number"),
            ("read,7,-1,512,10,30", "line 2: offset = '-1' is not a whole number of its size"),
            ("read,7,0,512,30,10", "line 2: it was finished before it was dispatched"),
            ("read,7,18446744073709551615,512,1,2", "line 2: its end lies beyond 2^64"),
        ] {
            assert_eq!(refused(&format!("{head}{line}\n")), why);
        }
    }
}
