//! `stria torture` as a test: a short run of every fault, one of kills alone, under which nobody may notice anything, and a
//! planted bug, which it has to find and to report. Needs root and `/dev/fuse`.
//!
//! Again with another seed, or longer: `STRIA_TORTURE_SEED=7 STRIA_TORTURE_MINUTES=10 cargo test -p stria --test torture`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::can_mount;

/// Runs `stria torture` in a new directory; exit code, what it said, and the directory, which stays when it failed.
fn torture(arguments: &[&str], minutes: &str, planted: Option<&str>) -> (Option<i32>, String, PathBuf) {
    let dir = tempfile::tempdir().unwrap().keep();
    let (minutes, seed) = (
        std::env::var("STRIA_TORTURE_MINUTES").unwrap_or_else(|_| minutes.into()),
        std::env::var("STRIA_TORTURE_SEED").unwrap_or_else(|_| "1".into()),
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
    command.args(["torture", "--minutes", &minutes, "--seed", &seed]).args(arguments).arg(&dir);
    if let Some(bug) = planted {
        command.env("STRIA_PLANTED", bug);
    }
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code(), said, dir)
}

fn nothing_is_lost(arguments: &[&str], minutes: &str) -> String {
    let (code, said, dir) = torture(arguments, minutes, None);
    assert_eq!(code, Some(0), "what is left of it is in {}: {said}", dir.display());
    assert!(said.contains("nothing was lost") && !dir.exists(), "{said}");
    said
}

#[test]
fn kills_of_servers_lose_nothing_no_program_sees_an_error_and_nobody_is_evicted() {
    if !can_mount() {
        return;
    }
    let said = nothing_is_lost(&["--faults", "kill,kill-all", "--osts", "2"], "0.4");
    assert!(said.contains(" 0 failed as a strike allows") && said.contains("judged, 0 eviction(s)"), "{said}");
}

#[test]
fn nothing_that_was_promised_is_lost_under_faults_of_every_kind() {
    if !can_mount() {
        return;
    }
    let said = nothing_is_lost(&["--osts", "2"], "0.7");
    assert!(said.contains("strikes: Kill "), "{said}");
}

#[test]
fn a_planted_bug_is_found_and_reported_with_its_trace_and_how_to_repeat_it() {
    if !can_mount() {
        return;
    }
    let (code, said, dir) = torture(&["--faults", "kill", "--osts", "2"], "0.2", Some("rename-half-done"));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("violation(s)") && said.contains("stria torture --seed ") && said.contains("--faults kill"),
        "{said}"
    );
    let trace = fs::read_to_string(dir.join("trace.txt")).unwrap();
    assert!(trace.contains("VIOLATION: ") && trace.contains(": rename ") && trace.contains("STRIKE: kill"), "{trace}");
    assert!(dir.join("mdt0.log").exists() && dir.join("ost1.img").exists());
    fs::remove_dir_all(&dir).unwrap();
    let unknown = Command::new(env!("CARGO_BIN_EXE_stria")).arg("status").env("STRIA_PLANTED", "x").output().unwrap();
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(!unknown.status.success() && said.contains("STRIA_PLANTED=x: there are replay-dropped"), "{said}");
}

/// What of a run is to be found on this machine: mounts in its directory, network namespaces of its process, loop devices.
fn traces_of(dir: &std::path::Path, pid: u32) -> Vec<String> {
    let text = |p: &str| fs::read_to_string(p).unwrap_or_default();
    let at = dir.to_str().unwrap();
    let mut found: Vec<String> = text("/proc/mounts").lines().filter(|l| l.contains(at)).map(Into::into).collect();
    let names = |p: &str| fs::read_dir(p).into_iter().flatten().flatten().map(|e| e.path()).collect::<Vec<_>>();
    let prefix = format!("stria-{pid}-");
    found.extend(names("/run/netns").into_iter().map(|p| p.display().to_string()).filter(|n| n.contains(&prefix)));
    let backing = |p: PathBuf| text(p.join("loop/backing_file").to_str().unwrap());
    found.extend(names("/sys/block").into_iter().map(backing).filter(|f| f.contains(at)));
    let of = |p: PathBuf| fs::read(p.join("cmdline")).unwrap_or_default();
    let lines = names("/proc").into_iter().map(of).map(|l| String::from_utf8_lossy(&l).replace('\0', " "));
    found.extend(lines.filter(|l| l.contains(at) && !l.contains(" torture ")));
    found
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    // In a stop of a mount's daemon, among kills, and while disks are being made.
    for (faults, until, signal) in
        [("stop-client", "stop the daemon", libc::SIGINT), ("kill", "kill ", libc::SIGTERM), ("kill", "", libc::SIGHUP)]
    {
        let dir = tempfile::tempdir().unwrap().keep().canonicalize().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
        command.args(["torture", "--minutes", "5", "--seed", "1", "--osts", "2", "--faults", faults]).arg(&dir);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (pid, out) = (child.id(), BufReader::new(child.stdout.take().unwrap()));
        let mut said = Vec::new();
        let mut lines = out.lines().map_while(Result::ok);
        while !said.last().is_some_and(|l: &String| l.contains(until)) {
            said.push(lines.next().unwrap_or_else(|| panic!("it ended by itself: {said:?}")));
        }
        // SAFETY: plain system call; the process is our child and not yet waited for.
        unsafe { libc::kill(pid as i32, signal) };
        said.extend(lines);
        let code = child.wait().unwrap();
        // Mount namespaces of others may hold a loop device for a moment.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut left = traces_of(&dir, pid);
        while !left.is_empty() && std::time::Instant::now() < end {
            std::thread::park_timeout(std::time::Duration::from_millis(50));
            left = traces_of(&dir, pid);
        }
        assert!(left.is_empty(), "{left:?}; {said:?}");
        assert_eq!(code.code(), Some(128 + signal), "{said:?}");
        assert!(!dir.exists(), "{said:?}");
    }
}
