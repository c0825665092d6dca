//! `stria tune` as a process: on a mount whose settings matter, under interrupts, and with what it must refuse.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Daemon, can_mount, good, refused, stria, text};

/// A cluster in one process whose OSTs behave like slow devices.
struct Emulated {
    dir: tempfile::TempDir,
    mount: PathBuf,
    up: Daemon,
}

impl Emulated {
    fn start(osts: &str) -> Emulated {
        let dir = tempfile::tempdir().unwrap();
        let (mount, cluster) = (dir.path().join("mnt"), dir.path().join("c"));
        fs::create_dir(&mount).unwrap();
        let mut line = vec!["up", "--dir", text(&cluster), "--mount", text(&mount), "--osts", osts];
        for setting in [
            "store.kind=emulated",
            "store.profile=hdd",
            // Far slower than this machine: what the device does decides.
            "store.profile_keys=mb_per_s=12",
            "layout.default_stripe_count=1",
            "layout.default_stripe_size=256K",
        ] {
            line.extend(["--set", setting]);
        }
        let up = Daemon::start(&line, &dir.path().join("log"));
        Emulated { dir, mount, up }
    }
    fn at(&self) -> &str {
        text(&self.mount)
    }
    fn value(&self, pattern: &str) -> String {
        let mut values: Vec<String> =
            good(&["get_param", "-n", "--at", self.at(), pattern]).lines().map(String::from).collect();
        values.dedup();
        values.join(",")
    }
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.mount).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
    fn workload(&self, text: &str) -> String {
        let path = self.dir.path().join("w.toml");
        fs::write(&path, text).unwrap();
        support::text(&path).into()
    }
    fn stop(mut self) {
        good(&["umount", self.at()]);
        assert!(self.up.child.wait().unwrap().success(), "{}", self.up.said());
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.mount).output());
    }
}

fn json_of(out: &Output) -> Value {
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn started(line: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
    command.args(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: plain system call on a child that was not collected yet.
    unsafe { libc::kill(child.id() as i32, signal) };
}

const RPCS: &str = "osc.*.max_rpcs_in_flight";

/// Writes into files of single processes: a disk behind each stripe adds its bandwidth.
const WRITES: &str = "read_share = 0\nprocesses = 1\ntransfer = \"1M\"\n";

#[test]
fn a_wide_layout_is_found_where_it_matters_applied_and_taken_back() {
    if !can_mount() {
        return;
    }
    let c = Emulated::start("3");
    let workload = c.workload(WRITES);
    fs::write(c.mount.join("mine"), b"untouched").unwrap();
    let old = c.dir.path().join("old.json");
    let line = ["tune", c.at(), "--workload", &workload, "--minutes", "2", "--size", "4M", "--json", "--apply"];
    let more = ["--only", "stripe_count,rpcs_in_flight,nrs_policy", "--save", text(&old), "--clients", "8"];
    let before = c.value(RPCS);
    let out = stria(&[&line[..], &more].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let report = json_of(&out);
    assert!(said.contains("runs write up to 4.0M at a time into") && said.contains(RPCS), "{said}");
    let found = report["recommended"].as_array().unwrap();
    let wide = found.iter().find(|r| r["setting"] == "stripe_count").unwrap_or_else(|| panic!("{report:#}"));
    assert!(wide["value"] == "-1" && wide["now"] == "1", "{wide}");
    assert!(wide["gain"]["low"].as_f64() > Some(0.03) && wide["gain"]["pairs"].as_u64() >= Some(5), "{wide}");
    // Each run is there with what it did, and those behind the gain are of both sides.
    let runs = report["runs"].as_array().unwrap();
    for number in wide["runs"].as_array().unwrap() {
        let run = &runs[number.as_u64().unwrap() as usize];
        assert!(run["stage"] == "test" && run["did"]["parts"][0]["write_mb_per_s"].as_f64() > Some(0.0), "{run}");
    }
    assert!(report["check"]["measured"]["low"].as_f64() > Some(0.0), "{:#}", report["check"]);
    assert!(report["check"]["predicted"]["mean"].as_f64() > Some(0.03));
    assert_eq!(report["simulated"]["setting"]["device"]["profile"], "hdd");
    assert_eq!(report["simulated"]["factors"][0]["name"], "nrs_policy");

    // The layout is applied, scratch files are gone, and of parameters only what is applied has changed.
    assert_eq!(c.names(), ["mine"]);
    assert_eq!(fs::read(c.mount.join("mine")).unwrap(), b"untouched");
    assert!(good(&["getstripe", "-c", c.at()]).contains("-1"));
    let applied = report["applied"]["set"].to_string();
    assert!(applied.contains("stripe_count = -1"), "{applied}");
    assert_eq!(applied.contains("rpcs_in_flight"), c.value(RPCS) != before, "{applied}");
    let back = good(&["tune", "--revert", text(&old)]);
    assert!(back.contains("default layout taken away"), "{back}");
    assert_eq!(c.value(RPCS), before);
    assert!(!good(&["getstripe", "-d", c.at()]).contains("stripe_count:  -1"));
    c.stop();
}

#[test]
fn an_interrupt_or_a_kill_leaves_neither_files_nor_parameters() {
    if !can_mount() {
        return;
    }
    let c = Emulated::start("2");
    let workload = c.workload(WRITES);
    let before = c.value(RPCS);
    let line = ["tune", c.at(), "--workload", &workload, "--minutes", "30", "--only", "rpcs_in_flight", "--size", "1M"];
    let amid = || {
        let child = started(&line);
        wait_until("a parameter changes", || c.value(RPCS) != before);
        child
    };
    for stop in [libc::SIGINT, libc::SIGTERM] {
        let child = amid();
        let (code, said) = refused(&["tune", c.at(), "--minutes", "1"]);
        assert!(code == libc::EBUSY && said.contains("another tune is at work"), "{code} {said}");
        signal(&child, stop);
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(libc::EINTR) && said.contains("interrupted"), "{said}");
        let table = String::from_utf8(out.stdout).unwrap();
        assert!(table.contains("the search ended here: interrupted"), "{table}");
        assert_eq!((c.value(RPCS), c.names()), (before.clone(), vec![]));
    }

    // Nothing can be tidied up by who is killed: the next one does.
    let mut child = amid();
    // It goes on meanwhile, and back to what was there before: it is stopped where the value is another one.
    loop {
        signal(&child, libc::SIGSTOP);
        if c.value(RPCS) != before {
            break;
        }
        signal(&child, libc::SIGCONT);
        wait_until("a parameter changes", || c.value(RPCS) != before);
    }
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    assert!(c.value(RPCS) != before && c.names() == [".stria-tune"]);
    let out =
        stria(&["tune", c.at(), "--workload", &workload, "--minutes", "0.05", "--only", "stripe_size", "--size", "1M"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("an earlier run was killed"), "{said}");
    assert!(said.contains("was left behind by an earlier run"), "{said}");
    assert_eq!((c.value(RPCS), c.names()), (before, vec![]));
    c.stop();
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let at = text(dir.path());
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        text(&path).to_string()
    };
    let unknown = file("unknown.toml", "processes = 2\nprocesss = 3\n");
    let zero = file("zero.toml", "transfer = 0\n");
    let junk = file("junk.json", "{}");
    for (line, code, words) in [
        (&[][..], libc::EINVAL, "name the mount"),
        (&[at], libc::ENOTTY, "is not on a Stria mount"),
        (&["/no/such/place"], libc::ENOENT, "/no/such/place"),
        (&[at, "--workload", &unknown], libc::EINVAL, "unknown.toml:2: unknown key 'processs'"),
        (&[at, "--workload", &zero], libc::EINVAL, "zero.toml:1: transfer = 0: write a size from"),
        (&[at, "--workload", "/no/such/file"], libc::ENOENT, "/no/such/file"),
        (&[at, "--minutes", "0"], libc::EINVAL, "--minutes 0: write a number from"),
        (&[at, "--minutes", "nan"], libc::EINVAL, "--minutes NaN"),
        (&["--revert", &junk], libc::EINVAL, "no old values"),
        (&["--revert", "/no/such/file"], libc::ENOENT, "/no/such/file"),
    ] {
        let (got, said) = refused(&[&["tune"], line].concat());
        assert!(got == code && said.contains(words), "{line:?}: {got} {said}");
    }
    for (line, words) in [(&[at, "--size", "0"][..], "from 1M to 16T"), (&[at, "--save", "f"], "--apply")] {
        let (_, said) = refused(&[&["tune"], line].concat());
        assert!(said.contains(words), "{line:?}: {said}");
    }
}

#[test]
fn a_mount_refuses_what_does_not_fit_it() {
    if !can_mount() {
        return;
    }
    let c = Emulated::start("1");
    let taken = c.dir.path().join("taken");
    fs::write(&taken, b"x").unwrap();
    let elsewhere = text(c.dir.path());
    for (line, code, words) in [
        (&["--size", "16T"][..], libc::ENOSPC, "say less with --size"),
        (&["--only", "stripes"], libc::EINVAL, "--only stripes: there are stripe_count"),
        (&["--dir", elsewhere], libc::ENOTTY, "is not on a Stria mount"),
        (&["--device", "floppy"], libc::EINVAL, "'floppy' is not a device profile"),
        (&["--apply", "--save", text(&taken)], libc::EEXIST, "it exists"),
        (&["--apply", "--save", "/no/such/dir/f"], libc::ENOENT, "no such directory"),
    ] {
        let (got, said) = refused(&[&["tune", c.at(), "--minutes", "0.1"], line].concat());
        assert!(got == code && said.contains(words), "{line:?}: {got} {said}");
        assert_eq!(c.names(), Vec::<String>::new(), "{line:?}");
    }
    // With one OST there is no stripe count to choose: nothing is measured, and it says why.
    let said = good(&["tune", c.at(), "--minutes", "0.1", "--only", "stripe_count"]);
    assert!(said.contains("note: stripe_count: there is one OST"), "{said}");
    // A directory of that name that somebody else made is theirs.
    let theirs = c.mount.join(".stria-tune");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("thesis"), b"x").unwrap();
    let (code, said) = refused(&["tune", c.at(), "--minutes", "0.1"]);
    assert!(code == libc::EEXIST && said.contains("thesis") && Path::new(&theirs).join("thesis").exists(), "{said}");
    c.stop();
}
