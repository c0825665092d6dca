//! `df`: space target by target.
use std::ffi::OsString;
use std::path::Path;

use serde_json::{Value, json};
use types::format_size;

use super::getopt::getopt;
use crate::control;
use crate::failure::{Failure, Outcome};

const USAGE: &str = "usage: df [-h|-H] [-i] [-v] [-l] [PATH...]
  -h  sizes with suffixes, base 2   -H  base 10   -i  inodes   -v  also deactivated targets   -l  only active ones";

/// How sizes are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Kib,
    Base2,
    Base10,
}

/// Runs the verb. Without a path: every Stria mount.
///
/// # Errors
/// What is wrong with the options, the path, or the mount.
pub fn df(arguments: &[OsString]) -> Outcome {
    let long = &[("human-readable", 'h'), ("si", 'H'), ("inodes", 'i'), ("verbose", 'v'), ("lazy", 'l'), ("help", '?')];
    let parsed = getopt("df", arguments, "hHivl?", long)?;
    if parsed.has('?') {
        say!("{USAGE}");
        return Ok(());
    }
    let unit = match (parsed.has('h'), parsed.has('H')) {
        (_, true) => Unit::Base10,
        (true, _) => Unit::Base2,
        _ => Unit::Kib,
    };
    let mut connections = Vec::new();
    for path in &parsed.operands {
        connections.push(super::connection_of(Path::new(path))?.0);
    }
    if parsed.operands.is_empty() {
        connections.extend(fuse::mount::mounts().iter().filter(|m| m.kind == "fuse.stria").map(|m| m.minor));
    }
    if connections.is_empty() {
        return Err(Failure::with_errno(
            "df: no Stria file system is mounted here: 'stria up' starts one",
            libc::ENODEV,
        ));
    }
    for connection in connections {
        let answer = control::ask(connection, &json!({"do": "df"}))?;
        crate::out::print(format_args!("{}", table(&answer, parsed.has('i'), unit)));
    }
    Ok(())
}

fn row(cells: [&str; 6]) -> String {
    let [name, total, used, free, percent, at] = cells;
    format!("{name:<20} {total:>11} {used:>11} {free:>11} {percent:>4} {at}\n")
}

fn table(answer: &Value, inodes: bool, unit: Unit) -> String {
    let head = match (inodes, unit) {
        (true, _) => ["UUID", "Inodes", "IUsed", "IFree", "IUse%", "Mounted on"],
        (_, Unit::Kib) => ["UUID", "1K-blocks", "Used", "Available", "Use%", "Mounted on"],
        _ => ["UUID", "bytes", "Used", "Available", "Use%", "Mounted on"],
    };
    let mut out = row(head);
    let at = answer["mount_point"].as_str().unwrap_or("?");
    let mut sum = (0u64, 0u64, 0u64);
    for t in answer["targets"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let (mdt, index) = (t["mdt"] == true, &t["index"]);
        let place = format!("{at}[{}:{index}]", if mdt { "MDT" } else { "OST" });
        let uuid = format!("{}_UUID", t["target"].as_str().unwrap_or("?"));
        if let Some(why) = t["down"].as_str() {
            out += &format!("{uuid:<20}: inactive device ({why})\n");
            continue;
        }
        let figure = |key: &str| t[key].as_u64().unwrap_or(0);
        let (total, free, available) = match inodes {
            true => (figure("files") + figure("files_free"), figure("files_free"), figure("files_free")),
            false => (figure("total"), figure("free"), figure("available")),
        };
        let used = total.saturating_sub(free);
        let state = if t["active"] == false { " N" } else { "" };
        out += &figures(&uuid, (total, used, available), &(place + state), inodes, unit);
        // Bytes are the OSTs', inodes the MDTs'.
        if mdt == inodes {
            sum = (sum.0 + total, sum.1 + used, sum.2 + available);
        }
    }
    out + "\n" + &figures("filesystem_summary:", sum, at, inodes, unit) + "\n"
}

fn figures(name: &str, (total, used, free): (u64, u64, u64), at: &str, inodes: bool, unit: Unit) -> String {
    let show = |n: u64| match (inodes, unit) {
        (true, Unit::Kib) => n.to_string(),
        (false, Unit::Kib) => (n / 1024).to_string(),
        (_, Unit::Base2) => format_size(n),
        (_, Unit::Base10) => base10(n),
    };
    let percent = match used + free {
        0 => 0,
        all => (u128::from(used) * 100).div_ceil(u128::from(all)),
    };
    row([name, &show(total), &show(used), &show(free), &format!("{percent}%"), at])
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
            {"target": "fs-OST0000", "index": 0, "mdt": false, "total": 4294967296u64, "free": 3221225472u64, "available": 3221225472u64, "files": 5, "files_free": 5, "active": true},
            {"target": "fs-OST0001", "index": 1, "mdt": false, "total": 4294967296u64, "free": 4294967296u64, "available": 4294967296u64, "files": 0, "files_free": 9, "active": false},
            {"target": "fs-OST0002", "index": 2, "mdt": false, "down": "not connected"},
        ]})
    }

    #[test]
    fn columns_and_summary_are_those_that_scripts_parse() {
        let expected = "\
UUID                   1K-blocks        Used   Available Use% Mounted on
fs-MDT0000_UUID             1024         512         512  50% /mnt[MDT:0]
fs-OST0000_UUID          4194304     1048576     3145728  25% /mnt[OST:0]
fs-OST0001_UUID          4194304           0     4194304   0% /mnt[OST:1] N
fs-OST0002_UUID     : inactive device (not connected)

filesystem_summary:      8388608     1048576     7340032  13% /mnt

";
        assert_eq!(table(&answer(), false, Unit::Kib), expected);
    }

    #[test]
    fn inodes_are_the_mdts_and_suffixes_come_on_request() {
        let text = table(&answer(), true, Unit::Kib);
        assert!(text.contains("filesystem_summary:          100          10          90  10% /mnt\n"), "{text}");
        let text = table(&answer(), false, Unit::Base2);
        assert!(text.contains("fs-OST0000_UUID             4.0G        1.0G        3.0G  25%"), "{text}");
        assert_eq!((base10(999), base10(1_500_000)), ("999".into(), "1.5M".into()));
    }
}
