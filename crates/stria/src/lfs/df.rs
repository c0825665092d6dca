//! `df`: space target by target.
use std::ffi::OsString;

use serde_json::{Value, json};
use types::format_size;

use super::getopt::{Grammar, Parsed};
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE: &str =
    "usage: df [-h|-H] [-i] [-l] [-v] [-s] [-N] [-m[INDEX]] [-o[INDEX]] [-p POOL] [--output[=FIELD,...]] [PATH...]
  -h  sizes with suffixes, base 2   -H  base 10   -i  inodes   -v  also deactivated targets, and every state letter
  -l  ask only targets that are connected         -s  only the summary            -N  no heading
  -m  metadata targets, or that one               -o  object storage targets, or that one
  -p  object storage targets of a pool (POOL or FSNAME.POOL)
  --output  columns: source,size,used,avail,pcent,itotal,iused,iavail,ipcent,target,state; all when none are named
  states: D degraded, R read-only, S no space, I no inodes, N no new objects, f flash";

const GRAMMAR: Grammar = Grammar {
    verb: "df",
    short: "hHivlsNm::o::p:O::?",
    long: &[
        ("human-readable", 'h'),
        ("si", 'H'),
        ("inodes", 'i'),
        ("verbose", 'v'),
        ("lazy", 'l'),
        ("summary", 's'),
        ("no-header", 'N'),
        ("mdt", 'm'),
        ("ost", 'o'),
        ("pool", 'p'),
        ("output", 'O'),
        ("help", '?'),
    ],
    absent: &[],
};

/// How sizes are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Kib,
    Base2,
    Base10,
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Column {
    Source,
    Size,
    Used,
    Avail,
    Percent,
    InodesTotal,
    InodesUsed,
    InodesAvail,
    InodesPercent,
    Target,
    State,
}
use Column::{Avail, InodesAvail, InodesPercent, InodesTotal, InodesUsed, Percent, Size, Source, State, Target, Used};

/// Names of columns on the command line, with their headings.
const COLUMNS: [(&str, Column, &str); 11] = [
    ("source", Source, "UUID"),
    ("size", Size, "1K-blocks"),
    ("used", Used, "Used"),
    ("avail", Avail, "Available"),
    ("pcent", Percent, "Use%"),
    ("itotal", InodesTotal, "Inodes"),
    ("iused", InodesUsed, "IUsed"),
    ("iavail", InodesAvail, "IFree"),
    ("ipcent", InodesPercent, "IUse%"),
    ("target", Target, "Mounted on"),
    ("state", State, "State"),
];

/// What is shown, and how.
#[derive(Clone)]
struct Table {
    unit: Unit,
    columns: Vec<Column>,
    /// Metadata targets, object storage targets: `Some(None)` is all of them.
    mdts: Option<Option<u64>>,
    osts: Option<Option<u64>>,
    /// Of these OSTs only those of a pool.
    members: Option<Vec<u16>>,
    verbose: bool,
    heading: bool,
    summary_only: bool,
}

/// Total, used and available.
type Figures = (u64, u64, u64);

/// One line's facts.
struct Row {
    source: String,
    target: String,
    state: String,
    bytes: Figures,
    inodes: Figures,
}

/// Runs the verb. Without a path: every Stria mount.
///
/// # Errors
/// What is wrong with the options, the path, or the mount.
pub fn df(arguments: &[OsString]) -> Outcome {
    let parsed = GRAMMAR.read(arguments)?;
    if parsed.has('?') {
        say!("{USAGE}");
        return Ok(());
    }
    let table = Table::read(&parsed)?;
    super::each_mount(&parsed.operands, |connection, _| {
        let members = parsed.value('p').map(|pool| super::pool::named("df", connection, pool, false)).transpose()?;
        let table = Table { members, ..table.clone() };
        let answer = control::ask(connection, &json!({"do": "df", "lazy": parsed.has('l')}))?;
        crate::out::print(format_args!("{}", table.show(&answer)));
        Ok(())
    })
}

impl Table {
    fn read(parsed: &Parsed) -> Result<Table, Failure> {
        let one = |letter: char| -> Result<Option<Option<u64>>, Failure> {
            let wrong = |t: &str| Failure::usage(format!("df: -{letter}{t}: write an index, like -{letter}0"));
            match parsed.options.iter().rev().find(|(l, _)| *l == letter) {
                None => Ok(None),
                Some((_, None)) => Ok(Some(None)),
                Some((_, Some(text))) => text.parse().map(|n| Some(Some(n))).map_err(|_| wrong(text)),
            }
        };
        let (mut mdts, mut osts) = (one('m')?, one('o')?);
        if mdts.is_none() && osts.is_none() {
            // A pool has no metadata target.
            (mdts, osts) = ((!parsed.has('p')).then_some(None), Some(None));
        }
        let columns = match parsed.options.iter().rev().find(|(l, _)| *l == 'O') {
            Some((_, None)) => COLUMNS.iter().map(|(_, c, _)| *c).collect(),
            Some((_, Some(list))) => columns(list)?,
            None if parsed.has('i') => vec![Source, InodesTotal, InodesUsed, InodesAvail, InodesPercent, Target],
            None => vec![Source, Size, Used, Avail, Percent, Target],
        };
        let unit = match (parsed.has('h'), parsed.has('H')) {
            (_, true) => Unit::Base10,
            (true, _) => Unit::Base2,
            _ => Unit::Kib,
        };
        let (verbose, heading, summary_only) = (parsed.has('v'), !parsed.has('N'), parsed.has('s'));
        Ok(Table { unit, columns, mdts, osts, members: None, verbose, heading, summary_only })
    }

    fn wants(&self, mdt: bool, index: &Value) -> bool {
        let which = if mdt { self.mdts } else { self.osts };
        let in_pool = |m: &Vec<u16>| m.iter().any(|i| index.as_u64() == Some(u64::from(*i)));
        which.is_some_and(|one| one.is_none_or(|i| index.as_u64() == Some(i)))
            && (mdt || self.members.as_ref().is_none_or(in_pool))
    }

    fn show(&self, answer: &Value) -> String {
        let mut out = if self.heading { self.headings() } else { String::new() };
        let at = answer["mount_point"].as_str().unwrap_or("?");
        // Bytes are the OSTs', inodes the MDTs', unless only the others are asked for.
        let (mut of_mdts, mut of_osts) = ([(0, 0, 0); 2], [(0, 0, 0); 2]);
        for t in answer["targets"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let (mdt, index) = (t["mdt"] == true, &t["index"]);
            if !self.wants(mdt, index) || (t["active"] == false && !self.verbose) {
                continue;
            }
            let source = format!("{}_UUID", t["target"].as_str().unwrap_or("?"));
            if let Some(why) = t["down"].as_str() {
                if !self.summary_only {
                    out += &format!("{source:<20}: inactive device ({why})\n");
                }
                continue;
            }
            let figure = |key: &str| t[key].as_u64().unwrap_or(0);
            let figures = |total: u64, free: u64, available: u64| (total, total.saturating_sub(free), available);
            let free = figure("files_free");
            let row = Row {
                source,
                target: format!("{at}[{}:{index}]", if mdt { "MDT" } else { "OST" }),
                state: self.state(t),
                bytes: figures(figure("total"), figure("free"), figure("available")),
                inodes: figures(figure("files") + free, free, free),
            };
            let sums = if mdt { &mut of_mdts } else { &mut of_osts };
            for (sum, part) in sums.iter_mut().zip([row.bytes, row.inodes]) {
                *sum = (sum.0 + part.0, sum.1 + part.1, sum.2 + part.2);
            }
            if !self.summary_only {
                out += &self.line(&row);
            }
        }
        let (bytes, inodes) = match (self.mdts.is_some(), self.osts.is_some()) {
            (true, false) => (of_mdts[0], of_mdts[1]),
            (false, _) => (of_osts[0], of_osts[1]),
            _ => (of_osts[0], of_mdts[1]),
        };
        let summary =
            Row { source: "filesystem_summary:".into(), target: at.into(), state: String::new(), bytes, inodes };
        if self.summary_only {
            return out + &self.line(&summary);
        }
        out + "\n" + &self.line(&summary) + "\n"
    }

    /// State letters of a target; those that are no trouble only with `-v`.
    fn state(&self, target: &Value) -> String {
        const LETTERS: [(u64, char); 5] = [(0, 'D'), (1, 'R'), (2, 'S'), (3, 'I'), (4, 'N')];
        let bits = target["state"].as_u64().unwrap_or(0) | if target["active"] == false { 1 << 4 } else { 0 };
        let mut state: String = LETTERS.iter().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, c)| *c).collect();
        if self.verbose && bits >> 5 & 1 == 1 {
            state.push('f');
        }
        state
    }

    fn headings(&self) -> String {
        let heading = |c: Column| match COLUMNS.iter().find(|(_, column, _)| *column == c) {
            _ if c == Size && self.unit != Unit::Kib => "bytes",
            Some((_, _, heading)) => heading,
            None => "",
        };
        self.cells(|c| heading(c).to_string())
    }

    fn line(&self, row: &Row) -> String {
        let named = self.columns.contains(&State);
        self.cells(|c| match c {
            Source => row.source.clone(),
            Size => self.size(row.bytes.0, false),
            Used => self.size(row.bytes.1, false),
            Avail => self.size(row.bytes.2, false),
            Percent => percent(row.bytes),
            InodesTotal => self.size(row.inodes.0, true),
            InodesUsed => self.size(row.inodes.1, true),
            InodesAvail => self.size(row.inodes.2, true),
            InodesPercent => percent(row.inodes),
            Target if named || row.state.is_empty() => row.target.clone(),
            Target => format!("{} {}", row.target, row.state),
            State => row.state.clone(),
        })
    }

    fn cells(&self, text: impl Fn(Column) -> String) -> String {
        let cell = |c: &Column| match c {
            Source => format!("{:<20}", text(*c)),
            Percent | InodesPercent => format!("{:>4}", text(*c)),
            Target | State => text(*c),
            _ => format!("{:>11}", text(*c)),
        };
        let cells: Vec<String> = self.columns.iter().map(cell).collect();
        cells.join(" ").trim_end().to_string() + "\n"
    }

    fn size(&self, n: u64, inodes: bool) -> String {
        match (inodes, self.unit) {
            (true, Unit::Kib) => n.to_string(),
            (false, Unit::Kib) => (n / 1024).to_string(),
            (_, Unit::Base2) => format_size(n),
            (_, Unit::Base10) => base10(n),
        }
    }
}

fn columns(list: &str) -> Result<Vec<Column>, Failure> {
    let one = |name: &str| {
        let found = COLUMNS.iter().find(|(n, ..)| *n == name).map(|(_, c, _)| *c);
        found.ok_or_else(|| {
            let known: Vec<&str> = COLUMNS.iter().map(|(n, ..)| *n).collect();
            Failure::usage(format!("df: --output: '{name}' is no column; there are: {}", known.join(",")))
        })
    };
    list.split(',').map(one).collect()
}

fn percent((_, used, free): Figures) -> String {
    match used.saturating_add(free) {
        0 => "0%".into(),
        all => format!("{}%", (u128::from(used) * 100).div_ceil(u128::from(all))),
    }
}

fn base10(n: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1000.0 {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { n.to_string() } else { format!("{value:.1}{}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Value {
        json!({"mount_point": "/mnt", "targets": [
            {"target": "fs-MDT0000", "index": 0, "mdt": true, "total": 1048576, "free": 524288, "available": 524288, "files": 10, "files_free": 90, "active": true},
            {"target": "fs-OST0000", "index": 0, "mdt": false, "total": 4294967296u64, "free": 3221225472u64, "available": 3221225472u64, "files": 5, "files_free": 5, "active": true, "state": 0x25},
            {"target": "fs-OST0001", "index": 1, "mdt": false, "total": 4294967296u64, "free": 4294967296u64, "available": 4294967296u64, "files": 0, "files_free": 9, "active": false},
            {"target": "fs-OST0002", "index": 2, "mdt": false, "down": "not connected"},
        ]})
    }
    fn show(options: &[&str]) -> Result<String, String> {
        let arguments: Vec<OsString> = options.iter().map(OsString::from).collect();
        let table = GRAMMAR.read(&arguments).and_then(|p| Table::read(&p)).map_err(|e| e.to_string())?;
        Ok(table.show(&answer()))
    }

    #[test]
    fn columns_and_summary_are_those_that_scripts_parse() {
        let expected = "\
UUID                   1K-blocks        Used   Available Use% Mounted on
fs-MDT0000_UUID             1024         512         512  50% /mnt[MDT:0]
fs-OST0000_UUID          4194304     1048576     3145728  25% /mnt[OST:0] DS
fs-OST0002_UUID     : inactive device (not connected)

filesystem_summary:      4194304     1048576     3145728  25% /mnt

";
        assert_eq!(show(&[]).unwrap(), expected);
        let verbose = show(&["-v"]).unwrap();
        assert!(verbose.contains("3145728  25% /mnt[OST:0] DSf\n"), "{verbose}");
        assert!(verbose.contains("fs-OST0001_UUID          4194304           0     4194304   0% /mnt[OST:1] N\n"));
        assert!(verbose.contains("filesystem_summary:      8388608     1048576     7340032  13% /mnt\n"), "{verbose}");
    }

    #[test]
    fn inodes_are_the_mdts_and_suffixes_come_on_request() {
        let text = show(&["-i"]).unwrap();
        assert!(
            text.starts_with("UUID                      Inodes       IUsed       IFree IUse% Mounted on\n"),
            "{text}"
        );
        assert!(text.contains("filesystem_summary:          100          10          90  10% /mnt\n"), "{text}");
        let text = show(&["-h"]).unwrap();
        assert!(text.contains("fs-OST0000_UUID             4.0G        1.0G        3.0G  25%"), "{text}");
        assert_eq!((base10(999), base10(1_500_000)), ("999".into(), "1.5M".into()));
    }

    #[test]
    fn targets_and_columns_are_chosen() {
        let text = show(&["-m"]).unwrap();
        assert!(!text.contains("OST") && text.contains("filesystem_summary:         1024         512"), "{text}");
        let text = show(&["-o2"]).unwrap();
        assert!(text.contains("fs-OST0002_UUID     : inactive") && !text.contains("OST0000"), "{text}");
        assert_eq!(
            show(&["-s", "-N"]).unwrap(),
            "filesystem_summary:      4194304     1048576     3145728  25% /mnt\n"
        );
        let text = show(&["-o0", "--output=target,state,ipcent,source"]).unwrap();
        assert!(text.starts_with("Mounted on State IUse% UUID\n/mnt[OST:0] DS  50% fs-OST0000_UUID\n"), "{text}");
        let all = show(&["--output"]).unwrap();
        assert!(all.starts_with("UUID                   1K-blocks        Used   Available Use%      Inodes"), "{all}");
        assert!(show(&["--output=size,colour"]).unwrap_err().contains("'colour' is no column; there are: source,"));
        assert!(show(&["-oX"]).unwrap_err().contains("-oX: write an index, like -o0"));
        let of_pool = |options: &[&str]| {
            let arguments: Vec<OsString> = options.iter().map(OsString::from).collect();
            let table = GRAMMAR.read(&arguments).and_then(|p| Table::read(&p)).unwrap();
            Table { members: Some(vec![2]), ..table }.show(&answer())
        };
        let text = of_pool(&["-p", "fs.flash"]);
        assert!(text.contains("fs-OST0002_UUID") && !text.contains("OST0000") && !text.contains("MDT"), "{text}");
        assert!(of_pool(&["-p", "flash", "-m"]).contains("MDT0000"));
    }
}
