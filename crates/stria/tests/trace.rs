//! Traces as a user takes and uses them: recorded from emulated OSTs, shown, exported, replayed under other settings, fitted; and
//! what is refused. The first needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{Daemon, can_mount, good, refused, text};
use trace::{Record, Target, Trace};
use types::Instant;
use wire::Op;

const MIB: usize = 1 << 20;

/// Writes `mib` MiB of each file, and reads parts of them in several sizes, past the mount's cache.
fn work(mount: &Path, files: usize, mib: usize) {
    let paths: Vec<PathBuf> = (0..files).map(|i| mount.join(format!("f{i}"))).collect();
    for path in &paths {
        fs::write(path, vec![7u8; mib * MIB]).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    }
    good(&["set_param", "--at", text(mount), "obdfilter.*.cache_bytes=0"]);
    for (i, size) in ["4K", "64K", "256K", "1M"].into_iter().enumerate() {
        for path in &paths {
            let from = format!("if={}", text(path));
            let skip = format!("skip={}", i + 1);
            let read = Command::new("dd")
                .args([&from, "of=/dev/null", &format!("bs={size}"), "count=8", &skip, "iflag=direct"])
                .output()
                .unwrap();
            assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        }
    }
}

/// Each request of an OST is one that the client has sent, and took the client longer.
fn is_of_one_client(trace: &Trace) {
    let of_mdt = |op: Op| trace.targets[2].records.iter().filter(|r| r.op == op).count();
    assert!(of_mdt(Op::MdtOpen) >= 3 && of_mdt(Op::MdtClose) >= 1, "{:?}", trace.targets[2].records);
    let (ost, sent) = (&trace.targets[0], trace::why::Sent::of(trace.targets[3].records.iter()));
    let both: Vec<_> = ost.records.iter().filter_map(|r| Some((r, sent.find(ost.name(), r)?))).collect();
    assert!(both.len() > 10, "{} of {}", both.len(), ost.records.len());
    for (r, sent) in both {
        assert!(
            r.op == sent.op && r.at_target() <= sent.response() + types::Duration::from_micros(2),
            "{r:?} {sent:?}"
        );
    }
}

fn rings_are_bounded_and_what_cannot_be_recorded_is_said(mount: &Path, path: &dyn Fn(&str) -> String) {
    let file = path("t.trace");
    let ring = good(&["get_param", "-n", "--at", text(mount), "obdfilter.*-OST0000.trace"]);
    assert!(ring.contains("records_max: 30840") && ring.contains("overwritten: 0"), "{ring}");
    good(&["set_param", "--at", text(mount), "obdfilter.*.trace_bytes=0"]);
    good(&["set_param", "--at", text(mount), "mdt.*.trace_bytes=0"]);
    assert!(good(&["get_param", "-n", "--at", text(mount), "mdt.*.trace"]).contains("records: 0"));
    let off = good(&["trace", "record", text(mount), "-o", &file, "--ost", "0", "--ost", "1"]);
    assert!(off.contains(": 0 requests of 2 OSTs"), "{off}");
    let (_, why) = refused(&["set_param", "--at", text(mount), "obdfilter.*.trace_bytes=1K"]);
    assert!(why.contains("64K to 1G"), "{why}");
    let (code, why) = refused(&["trace", "record", text(mount), "-o", &path("none/t")]);
    assert!(code == libc::ENOENT && why.contains("writing"), "{code} {why}");
    let (code, why) = refused(&["trace", "record", text(mount), "-o", &path("x"), "--ost", "7"]);
    assert!(code == libc::ENOENT && why.contains("--ost 7: there are OSTs [0, 1]"), "{code} {why}");
}

#[test]
fn a_trace_of_emulated_osts_is_recorded_shown_exported_replayed_and_fitted() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    let (cluster, mount, file) = (path("c"), dir.path().join("m"), path("t.trace"));
    fs::create_dir(&mount).unwrap();
    let sets = ["store.kind=emulated", "store.profile=hdd", "nrs.policy=fifo", "oss.dispatch_window=4"];
    let mut line = vec!["up", "--dir", &cluster, "--mount", text(&mount), "--osts", "2"];
    sets.iter().for_each(|s| line.extend(["--set", s]));
    let up = Daemon::start(&line, &dir.path().join("log"));
    work(&mount, 3, 16);

    let said = good(&["trace", "record", text(&mount), "-o", &file]);
    let whose = " requests of 2 OSTs, the metadata target, this client";
    assert!(said.contains("t.trace: ") && said.contains(whose), "{said}");
    let trace = trace::read(&fs::read(&file).unwrap()).unwrap();
    let sources: Vec<&str> = trace.targets.iter().map(|t| t.setting("source").unwrap()).collect();
    assert_eq!(sources, ["ost", "ost", "mdt", "client"]);
    is_of_one_client(&trace);
    let told = |key: &str| trace.targets[..2].iter().map(|t| t.setting(key).unwrap().to_string()).collect::<Vec<_>>();
    assert_eq!(told("disk.profile"), ["hdd", "hdd"]);
    assert_eq!(told("nrs.policy"), ["fifo", "fifo"]);
    assert_eq!(told("oss.dispatch_window"), ["4", "4"]);
    let written: u64 = trace.targets.iter().flat_map(|t| &t.records).map(|r| u64::from(r.bytes)).sum();
    assert!(written >= (3 * 16 * MIB) as u64, "{written} bytes");
    // Nothing happened since: the same again, by the cluster's directory; and one OST of it.
    good(&["trace", "record", "--dir", &cluster, "-o", &path("again"), "--ost", "1"]);
    let again = trace::read(&fs::read(path("again")).unwrap()).unwrap();
    assert_eq!(again.targets[0].records, trace.targets[1].records);

    let shown = good(&["trace", "show", &file]);
    for part in
        ["OST0001: ", "policy fifo, dispatch window 4, store emulated hdd", "ost_write", "client ", "sequential: "]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let slow = good(&["trace", "slow", &file, "--top", "3"]);
    assert!(slow.contains("\n3. ") && !slow.contains("\n4. ") && slow.contains("queued + "), "{slow}");
    let csv = good(&["trace", "export", &file, "--csv"]);
    assert_eq!(csv.lines().count(), trace.len() + 1);
    good(&["trace", "export", &file, "--json", "-o", &path("t.json")]);
    let json: Value = serde_json::from_slice(&fs::read(path("t.json")).unwrap()).unwrap();
    let requests = |i: usize| json["targets"][i]["requests"].as_array().unwrap().len();
    assert_eq!((json["version"].as_u64(), (0..4).map(requests).sum()), (Some(2), trace.len()));
    let scheduled = trace.clone().scheduled().len();
    assert!(scheduled > 0 && scheduled < trace.targets[0].records.len() + trace.targets[1].records.len());

    for how in ["--open-loop", "--closed-loop"] {
        let line = ["sim", "replay", &file, "--set", "nrs.policy=obrr+", "--json", "--seeds", "3", how];
        let replayed: Value = serde_json::from_str(&good(&line)).unwrap();
        assert_eq!(replayed["requests"].as_u64(), Some(scheduled as u64), "schedulers and disks are replayed");
        let values = replayed["values"].as_array().unwrap();
        let told = |v: &Value| ["measured", "replayed", "asked"].iter().all(|key| v[*key].is_number());
        assert!(values.len() == 5 && values.iter().all(told), "{replayed}");
        assert!(values[0]["name"] == "bandwidth" && values[0]["expected"].as_f64() > Some(0.0), "{replayed}");
    }
    let said = good(&["sim", "replay", &file]);
    assert!(said.contains("fifo, replayed") && said.contains("response p99 ms"), "{said}");
    good(&["sim", "replay", &file, "--device", "ssd", "--set", "oss.dispatch_window=64"]);

    rings_are_bounded_and_what_cannot_be_recorded_is_said(&mount, &path);
    good(&["umount", text(&mount)]);
    drop(up);
    let (code, why) = refused(&["trace", "record", "--dir", &cluster, "-o", &path("x")]);
    assert!(code == libc::ENOTCONN && why.contains("no mount of"), "{code} {why}");
    assert!(!Path::new(&path("x")).exists(), "half a trace is none");
}

/// A trace of one target that says what device it has.
fn small(requests: u64) -> Vec<u8> {
    let mut target =
        Target::from_text("target=t-OST0000\nsource=ost\ndisk.profile=hdd\nnrs.policy=fifo\noss.dispatch_window=2\n")
            .unwrap();
    let at = |number: u64| Instant(number * 1_000_000);
    target.records = (0..requests)
        .map(|number| Record {
            number,
            bytes: 65_536,
            span: 65_536,
            stored: 65_536,
            offset: number * 65_536,
            arrived: at(number),
            dispatched: at(number),
            finished: at(number + 9),
            ..Record::default()
        })
        .collect();
    let mut bytes = Vec::new();
    Trace { targets: vec![target] }.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_no_trace_is_refused_by_every_verb_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    let good_bytes = small(40);
    let flipped = |at: usize, to: u8| {
        let mut bytes = good_bytes.clone();
        bytes[at] = to;
        bytes
    };
    let last = good_bytes.len();
    let files: [(&str, Vec<u8>, &str); 5] = [
        ("cut", good_bytes[..last - 100].to_vec(), "it was cut off"),
        ("flipped", flipped(last - 500, 0xa5), "does not match its checksum"),
        ("newer", flipped(8, 3), "the trace has version 3, this program reads 1 to 2"),
        ("other", b"#!/bin/sh\n".to_vec(), "this is no trace of Stria"),
        ("nothing", Vec::new(), "this is no trace of Stria"),
    ];
    let verbs: [&[&str]; 5] =
        [&["trace", "show"], &["trace", "slow"], &["trace", "export"], &["sim", "replay"], &["sim", "fit"]];
    for (name, bytes, what) in &files {
        fs::write(path(name), bytes).unwrap();
        for verb in verbs {
            let (code, why) = refused(&[verb, &[&path(name)]].concat());
            assert!(why.contains(what) && why.contains("byte "), "{verb:?} {name}: {code} {why}");
            assert!(why.contains(&path(name)) && !why.contains("panicked"), "{verb:?} {name}: {why}");
        }
    }
    for verb in verbs {
        let (_, why) = refused(&[verb, &[&path("gone")]].concat());
        assert!(why.contains("gone") && why.contains("No such file"), "{verb:?}: {why}");
        let (_, why) = refused(&[verb, &[text(dir.path())]].concat());
        assert!(why.contains("directory"), "{verb:?}: {why}");
    }
}

#[test]
fn settings_and_traces_that_cannot_be_replayed_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    fs::write(path("t"), small(40)).unwrap();
    fs::write(path("empty"), small(0)).unwrap();
    fs::write(path("keys"), "# a disk\n\ndisk.seek_ms=9\nnrs.polcy=fifo\n").unwrap();
    let t = path("t");
    let why = |line: &[&str]| refused(line).1;
    assert!(good(&["trace", "show", &path("empty")]).contains("no requests"));
    assert!(why(&["sim", "replay", &path("empty")]).contains("there is nothing to replay"));
    assert!(why(&["sim", "fit", &path("empty")]).contains("too few for a fit"));
    assert!(why(&["sim", "fit", &t]).contains("requests of several sizes"));
    let set = |value: &str| why(&["sim", "replay", &t, "--set", value]);
    assert!(set("nrs.policy=obr").contains("'obr'"), "{}", set("nrs.policy=obr"));
    assert!(set("nrs.polcy=obrr").contains("polcy"));
    assert!(set("clients=4").contains("clients has no effect on a replay"));
    assert!(set("obrr").contains("'obrr' is not KEY=VALUE"));
    assert!(set(&format!("@{}", path("keys"))).contains("keys:4: "), "{}", set(&format!("@{}", path("keys"))));
    assert!(set("@/nowhere/keys").contains("/nowhere/keys"));
    assert!(
        why(&["sim", "replay", &t, "--device", "tape"]).contains("--device tape: neither a profile (paper001, hdd")
    );
    assert!(why(&["sim", "replay", &t, "--seeds", "0"]).contains("--seeds"));
    assert!(why(&["sim", "replay", &t, "--open-loop", "--closed-loop"]).contains("cannot be used with"));
    assert!(why(&["sim", "record", "R1", "-o", "/nowhere/t", "--smoke"]).contains("/nowhere/t"));
    assert!(why(&["trace", "export", &t, "-o", "/nowhere/t"]).contains("/nowhere/t"));
    assert!(why(&["trace", "record", "-o", &path("x")]).contains("<MOUNT>"));
    let (code, not_ours) = refused(&["trace", "record", text(dir.path()), "-o", &path("x")]);
    assert!(code != 0 && !Path::new(&path("x")).exists(), "{not_ours}");
    assert!(good(&["trace", "export", &t]).lines().nth(40).unwrap().starts_with("t-OST0000,39,ost_read,"));
}

#[test]
fn a_disk_is_fitted_and_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    let mut target =
        Target::from_text("target=t\nsource=ost\nstore.kind=file\nnrs.policy=fifo\noss.dispatch_window=1\n").unwrap();
    let mut now = 0;
    // 5 ms for each, elsewhere than the one before, and 100 MB/s.
    for number in 0..64 {
        let bytes = 4096 << (number % 8);
        let took = 5_000_000 + u64::from(bytes) * 10;
        target.records.push(Record {
            number,
            bytes,
            span: bytes,
            stored: bytes,
            offset: (number * 7 % 64) << 30,
            arrived: Instant(now),
            dispatched: Instant(now),
            finished: Instant(now + took),
            ..Record::default()
        });
        now += took;
    }
    Trace { targets: vec![target] }.write(fs::File::create(path("t")).unwrap()).unwrap();
    let (_, why) = refused(&["sim", "replay", &path("t")]);
    assert!(why.contains("what device it has (store.kind=file): name one with --device"), "{why}");
    let fitted = good(&["sim", "fit", &path("t"), "--out", &path("keys")]);
    assert!(fitted.contains("R2 1.0000"), "{fitted}");
    assert!(fitted.contains("disk.seek_ms=5.00") && fitted.contains("disk.mb_per_s=100.0"), "{fitted}");
    let line =
        ["sim", "replay", &path("t"), "--device", &path("keys"), "--set", &format!("@{}", path("keys")), "--json"];
    let replayed: Value = serde_json::from_str(&good(&line)).unwrap();
    let bandwidth = &replayed["values"][0];
    assert!(bandwidth["error"].as_f64().unwrap().abs() < 0.01, "{replayed}");
    assert_eq!(bandwidth["change"].as_f64(), Some(0.0), "the same disk twice: {replayed}");
    // The same by way of a table, whose targets say what is told here.
    good(&["trace", "export", &path("t"), "-o", &path("t.csv")]);
    let set = ["--set", "nrs.policy=fifo", "--set", "oss.dispatch_window=1"];
    let said = good(&[&["trace", "import", &path("t.csv"), "-o", &path("t2")][..], &set].concat());
    assert!(said.contains(": 64 requests of 1 targets"), "{said}");
    assert_eq!(good(&["sim", "fit", &path("t2")]), fitted);
    fs::write(path("bad.csv"), "op,client\n").unwrap();
    let (_, why) = refused(&["trace", "import", &path("bad.csv"), "-o", &path("t3")]);
    assert!(why.contains("bad.csv: line 1: there is no column 'offset'"), "{why}");
    let (_, why) = refused(&["sim", "fit", &path("t"), "--out", "/nowhere/keys"]);
    assert!(why.contains("/nowhere/keys"), "{why}");
}

#[test]
fn a_simulated_trace_is_replayed_without_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = text(&dir.path().join("t")).to_string();
    let said = good(&["sim", "record", "R1", "--smoke", "-o", &file]);
    assert!(said.contains(" requests of "), "{said}");
    let line = ["sim", "replay", &file, "--set", "nrs.policy=obrr", "--json"];
    let replayed: Value = serde_json::from_str(&good(&line)).unwrap();
    let values = replayed["values"].as_array().unwrap();
    assert!(values.iter().all(|v| v["error"].as_f64() == Some(0.0)), "{replayed}");
    let bandwidth = values.iter().find(|v| v["name"] == "bandwidth").unwrap();
    assert!(bandwidth["change"].as_f64().unwrap() > 0.05, "the policy of the paper pays on its disk: {replayed}");
}

#[test]
fn what_other_programs_print_becomes_a_trace_and_nonsense_is_refused_at_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    let dxt = "# jobid: 7\n# DXT, file_id: 5, file_name: /f\n# DXT, rank: 0, hostname: n1\n X_POSIX 0 write 0 0 65536 0.1 0.2 [ 2]\n";
    let blk = "8,0 3 1 0.000000000 697 Q W 8 + 8 [dd]\n8,0 3 2 0.000001000 697 D W 8 + 8 [dd]\n8,0 0 3 0.002 0 C W 8 + 8 [0]\n";
    for (format, printed, target) in [("dxt", dxt, "OST0002"), ("blkparse", blk, "8:0")] {
        let (file, out) = (path("printed"), path("t"));
        fs::write(&file, printed).unwrap();
        let said = good(&["trace", "import", &file, "--format", format, "-o", &out, "--set", "nrs.policy=fifo"]);
        assert!(said.contains(": 1 requests of 1 targets"), "{said}");
        let line = good(&["trace", "export", &out]).lines().nth(1).unwrap().to_string();
        assert!(line.starts_with(&format!("{target},0,ost_write,")), "{line}");
        fs::write(&file, format!("{printed}nonsense\n")).unwrap();
        let (code, why) = refused(&["trace", "import", &file, "--format", format, "-o", &path("none")]);
        let at = format!("printed: line {}: ", printed.lines().count() + 1);
        assert!(code == libc::EINVAL && why.contains(&at), "{code} {why}");
        assert!(!Path::new(&path("none")).exists(), "what cannot be read makes no file");
    }
    let (_, why) = refused(&["trace", "import", &path("printed"), "--format", "tar", "-o", &path("none")]);
    assert!(why.contains("csv, dxt, blkparse"), "{why}");
}
