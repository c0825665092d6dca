//! `stria survey` as a process: what it measures is there, and nothing of it is left behind.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Cluster, can_mount, good, refused, stria, text};

/// How the line with the scheduler's bandwidth table begins.
const TABLE: &str = "set_param ost.OSS.ost_io.nrs_bw_mb_per_s=";

fn surveyed(arguments: &[&str]) -> Vec<Value> {
    let line: Vec<&str> = ["survey"].into_iter().chain(arguments.iter().copied()).chain(["--json"]).collect();
    let report: Value = serde_json::from_str(&good(&line)).unwrap();
    report["rows"].as_array().unwrap().clone()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn a_disk_survey_measures_each_combination_and_warns_where_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let at = text(dir.path());
    let rows = surveyed(&["disk", at, "--size", "1M", "--objects", "1,2", "--threads", "1-4", "--records", "64K,256K"]);
    let shape: Vec<(u64, u64, u64)> = rows
        .iter()
        .map(|r| ["objects", "threads", "record_bytes"].map(|k| r[k].as_u64().unwrap()))
        .map(|[o, t, r]| (o, t, r >> 10))
        .collect();
    let of = |record| [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4)].map(|(o, t)| (o, t, record));
    assert_eq!(shape, [of(64), of(256)].concat());
    assert!(rows.iter().all(|r| r["write_mb_per_s"].as_f64() > Some(0.0) && r["read_mb_per_s"].as_f64() > Some(0.0)));

    let out = stria(&["survey", "disk", at, "--size", "8M", "--records", "64K-8M", "--threads", "1"]);
    let (said, warned) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(said.lines().filter(|l| l.starts_with(TABLE)).count(), 1, "{said}");
    assert!(warned.contains("writing up to 8.0M in ") && warned.contains(at), "{warned}");
    assert!(is_empty(dir.path()));
}

#[test]
fn surveys_refuse_what_cannot_be_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let at = text(dir.path());
    for (line, code, words) in [
        (&["disk", "/dev/null"][..], libc::ENOTBLK, "is a device"),
        (&["disk", at, "--size", "1000T"], libc::ENOSPC, "--size"),
        (&["disk", at, "--threads", "4-1"], libc::EINVAL, "--threads '4-1' goes downwards"),
        (&["disk", at, "--records", "12"], libc::EINVAL, "multiple of 8"),
        (&["disk", at, "--records", "1M", "--size", "1M", "--threads", "2"], libc::EINVAL, "not a record"),
        (&["disk", at, "--objects", "3", "--threads", "2"], libc::EINVAL, "no combination"),
        (&["mdt", "/no/such/place"], libc::ENOENT, "/no/such/place"),
        (&["mdt", at, "--threads", "0"], libc::EINVAL, "outside 1..="),
        (&["ost", at], libc::ENOTTY, "is not on a Stria mount"),
        (&["network", "--on", "false"], libc::ECONNRESET, "exit code 1"),
        (&["network", "--address", "192.0.2.1", "--time", "1"], libc::EADDRNOTAVAIL, "192.0.2.1"),
    ] {
        let (got, said) = refused(&[&["survey"], line].concat());
        assert!(got == code && said.contains(words), "{line:?}: {got} {said}");
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn a_network_survey_moves_bytes_both_ways() {
    let rows = surveyed(&["network", "--time", "20", "--threads", "1,2", "--records", "64K", "--on", "env -u NOTHING"]);
    assert_eq!(rows.iter().map(|r| r["threads"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    for figure in ["send_mb_per_s", "receive_mb_per_s", "round_trip_us"] {
        assert!(rows.iter().all(|r| r[figure].as_f64() > Some(0.0)), "{figure}: {rows:?}");
    }
}

#[test]
fn an_interrupted_survey_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let line = ["survey", "mdt", text(dir.path()), "--files", "100000000", "--threads", "2"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_stria")).args(line).stderr(Stdio::piped()).spawn().unwrap();
    let made = dir.path().join(format!("stria-survey-{}/d0", child.id()));
    let end = Instant::now() + Duration::from_secs(60);
    while !made.exists() || is_empty(&made) {
        assert!(Instant::now() < end, "it never begins");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    // SAFETY: plain system call on a child that was not collected yet.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(libc::EINTR));
    assert!(is_empty(dir.path()));
}

#[test]
fn osts_are_surveyed_through_a_mount_each_with_files_on_it_alone() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(2);
    let mount = cluster.mount("mnt", &[]);
    let at = text(&mount);
    let written = |ost: usize| {
        let name = format!("obdfilter.*OST000{ost}.stats");
        let stats = good(&["get_param", "-n", "--at", at, &name]);
        let line = stats.lines().find(|l| l.starts_with("write_bytes ")).unwrap_or("0 0").to_string();
        line.split(' ').rev().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let line = ["ost", at, "--size", "2M", "--threads", "2", "--objects", "1,2", "--records", "64K"];
    let rows = surveyed(&[&line[..], &["--ost", "1"]].concat());
    assert_eq!(rows.len(), 2);
    assert_eq!((written(0), written(1)), (0, 4 << 20));
    let names = |rows: &[Value]| rows.iter().map(|r| r["ost"].as_str().unwrap().to_string()).collect::<Vec<_>>();
    assert_eq!(names(&surveyed(&line)), ["OST0000", "OST0001", "OST0000", "OST0001"]);
    assert_eq!((written(0), written(1)), (4 << 20, 8 << 20));
    assert_eq!(names(&surveyed(&[&line[..], &["--together"]].concat())), ["all", "all"]);
    assert_eq!((written(0), written(1)), (8 << 20, 12 << 20));
    let (code, said) = refused(&["survey", "ost", at, "--ost", "7"]);
    assert!(code == libc::ENODEV && said.contains("no OST 7"), "{code} {said}");

    let rows = surveyed(&["mdt", at, "--files", "20", "--threads", "1,2", "--directories", "1-2"]);
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|r| r["creates_per_s"].as_f64() > Some(0.0)), "{rows:?}");
    assert!(is_empty(&mount));

    let found = good(&["survey", "disk", at, "--size", "8M", "--records", "64K-8M", "--threads", "1"]);
    let table = found.lines().find_map(|l| l.strip_prefix("set_param ")).unwrap();
    assert!(good(&["set_param", "--at", at, table]).contains(table.split_once('=').unwrap().1), "{found}");
    cluster.stop();
}
