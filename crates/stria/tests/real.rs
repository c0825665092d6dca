//! `bench/real.py`: every set, tiny, on a real cluster gives what the claims want of it, and `stria sim judge` tells good figures from bad ones.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use support::{can_mount, stria, text};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/real.py")
}

/// Runs it with this program.
fn real(arguments: &[&str]) -> Output {
    Command::new("python3")
        .arg(script())
        .args(["--stria", env!("CARGO_BIN_EXE_stria")])
        .args(arguments)
        .output()
        .unwrap()
}

fn has_python() -> bool {
    let has = Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success());
    assert!(has || std::env::var("CI").as_deref() != Ok("true"), "needs python3");
    if !has {
        println!("not run: needs python3");
    }
    has
}

/// Runs a set of small files, twice; its rows.
fn rows(arguments: &[&str], out: &Path) -> Vec<Value> {
    let done = real(&[arguments, &["--repetitions", "2", "--out", text(out)]].concat());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    // Figures of so small files may miss; nothing else may go wrong.
    assert!(matches!(done.status.code(), Some(0 | 1)) && said.contains(" not measured"), "{arguments:?}: {said}");
    let rows: Vec<Value> = fs::read_to_string(out).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(String::from_utf8(done.stdout).unwrap(), fs::read_to_string(out).unwrap());
    for row in rows.iter().filter(|r| r.get("cannot").is_none()) {
        let samples = row["samples"].as_array().unwrap();
        let finite = |s: &Value| s.as_f64().is_some_and(f64::is_finite);
        assert!(!samples.is_empty() && samples.iter().all(finite), "{row}");
        assert!(["commit", "command", "machine", "build"].iter().all(|k| row[k].is_string()), "{row}");
    }
    rows
}

/// What `stria sim judge` says of rows: exit code and text.
fn judged(rows: &[Value], file: &Path) -> (Option<i32>, String) {
    fs::write(file, rows.iter().map(|r| format!("{r}\n")).collect::<String>()).unwrap();
    let done = stria(&["sim", "judge", text(file)]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (done.status.code(), said)
}

#[test]
fn every_set_measures_what_its_claims_want() {
    if !can_mount() || !has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    // At once: figures are not what is looked at, and emulated devices are waited for.
    let sets = [("002", "0.02"), ("000", "0.02"), ("003", "0.05"), ("model", "0.05")];
    let all: Vec<Value> = std::thread::scope(|scope| {
        let run = |(set, scale): (&'static str, &'static str)| (set, scale, file(set));
        let runs = sets.map(run).map(|(set, scale, out)| scope.spawn(move || rows(&[set, "--scale", scale], &out)));
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    });
    let (_, said) = judged(&all, &file("judged"));
    let missing: Vec<&str> = said.lines().filter(|l| l.contains("not measured") && !l.contains(" hold, ")).collect();
    let has_fio = !all.iter().any(|r| r["cannot"] == "fio is not installed");
    assert!(missing.iter().all(|l| !has_fio && l.contains("_over_fio")), "{said}");
    let points = all.iter().filter(|r| r["metric"].as_str().is_some_and(|m| m.starts_with("R1-R26 error_percent")));
    assert!(points.count() >= 12, "{said}");
    for set in ["000 a0.9 a0.5 a0.1", "000 b0.9 b0.5 b0.1", "000 reuse", "002 clients fio", "003 strides", "model"] {
        assert!(said.contains(&format!("bench/real.py {set}")), "{set}: {said}");
    }
}

#[test]
fn planted_bad_figures_miss_and_good_ones_hold() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.ndjson");
    let row = |metric: &str, samples: &[f64]| json!({"metric": metric, "samples": samples, "command": "c", "commit": "x", "machine": "m"});
    let good = [
        row("R47 write_32_over_best", &[0.99, 0.98, 0.97]),
        row("R47 read_32_over_best", &[1.0, 1.0]),
        row("R1-R26 median_error_percent", &[4.0, 6.0]),
    ];
    let (code, said) = judged(&good, &file);
    assert!(code == Some(0) && said.contains("3 hold, 0 miss, 0 not measured"), "{said}");
    for (i, bad) in [(0, 0.6), (1, 0.94), (2, 17.0)] {
        let mut rows = good.to_vec();
        rows[i]["samples"] = json!([bad, bad]);
        let (code, said) = judged(&rows, &file);
        assert!(code == Some(1) && said.contains("2 hold, 1 miss, 0 not measured"), "{bad}: {said}");
    }
    let (code, said) = judged(&good[..1], &file);
    assert!(code == Some(0) && said.contains("1 hold, 0 miss, 1 not measured"), "{said}");
    for (rows, why) in [
        (vec![row("R99 x", &[1.0])], "'R99 x' belongs to no claim"),
        (vec![json!({"metric": "restart.s", "value": 1})], "no row tells of a claim"),
        (vec![json!([1])], "line 1: it is no JSON object"),
    ] {
        let (code, said) = judged(&rows, &file);
        assert!(code == Some(2) && said.contains(why), "{said}");
    }
}

#[test]
fn what_cannot_be_run_is_refused_with_what_would_be_right() {
    if !can_mount() || !has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (arguments, why) in [
        (&["005"][..], "invalid choice: '005'"),
        (
            &["002", "network"],
            "'network' is no part of 002; there are: networks, stripes, processes, blocks, clients, fio",
        ),
        (&["002", "--repetitions", "0"], "--repetitions 0: at least 1"),
        (&["002", "--scale", "0"], "--scale 0.0: above 0"),
        (&["002", "--dir", text(dir.path())], "it exists"),
        (&["002", "--stria", "/none"], "no program is there"),
    ] {
        let done = real(arguments);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(2) && said.contains(why), "{arguments:?}: {said}");
    }
}
