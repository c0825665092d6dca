//! Who is waited for after a restart: never the dead, always the living, and an administrator ends it. Needs root and
//! `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use support::{Cluster, Daemon, can_mount, good, text};

/// A window that no test waits for.
const WINDOW: &str = "recovery.window_s=3000";

/// Runs a command that must end by itself; a hang is a failure, not a hang of the tests.
fn bounded(line: &[&str]) -> Output {
    let out = Command::new("timeout").arg("--kill-after=5").arg("120").args(line).output().unwrap();
    assert!(!matches!(out.status.code(), Some(124 | 137) | None), "{line:?} hangs");
    out
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

struct Detach(PathBuf);
impl Drop for Detach {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).stderr(std::process::Stdio::null()).output());
    }
}

#[test]
fn after_a_crash_of_everything_the_dead_are_not_waited_for() {
    if !can_mount() {
        return;
    }
    for mode in [&["--processes"][..], &[]] {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, at) = (dir.path().join("c"), dir.path().join("mnt"));
        fs::create_dir(&at).unwrap();
        let _detach = Detach(at.clone());
        let line =
            ["up", "--background", "--dir", text(&cluster), "--mount", text(&at), "--osts", "2", "--set", WINDOW];
        let up = [&line[..], mode].concat();
        good(&up);
        fs::write(at.join("kept"), b"kept").unwrap();
        fs::File::open(at.join("kept")).unwrap().sync_all().unwrap();
        let pids: Vec<i32> = fs::read_dir(cluster.join("run"))
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|x| x == "pid"))
            .map(|p| fs::read_to_string(p).unwrap().trim().parse().unwrap())
            .collect();
        assert_eq!(pids.len(), if mode.is_empty() { 1 } else { 4 });
        for pid in pids {
            // SAFETY: a signal to a daemon of this test.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        wait_until("the mount is dead", || !bounded(&["stat", text(&at)]).status.success());
        // The new servers need the locks of the stores.
        wait_until("the dead give their locks back", || {
            good(&["status", "--dir", text(&cluster)]).lines().all(|l| !l.contains(" runs"))
        });
        let said = good(&up);
        assert!(!said.contains("waits for"), "{said}");
        let read = bounded(&["cat", text(&at.join("kept"))]);
        assert_eq!(read.stdout, b"kept");
        assert!(bounded(&["touch", text(&at.join("new"))]).status.success());
        let stopped = bounded(&[env!("CARGO_BIN_EXE_stria"), "umount", text(&at)]);
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    }
}

#[test]
fn a_client_that_is_stopped_is_waited_for_shown_and_given_up_by_an_administrator() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let (one, two) = (c.mount("one", &[]), c.mount("two", &[]));
    for at in [&one, &two] {
        fs::write(at.join("by").with_extension(at.file_name().unwrap()), b"x").unwrap();
    }
    let stopped = c.mounts[1].1.child.id() as i32;
    // SAFETY: a signal to a daemon of this test.
    unsafe { libc::kill(stopped, libc::SIGSTOP) };
    c.mds.take();
    let log = c.dir.path().join("second.log");
    c.mds = Some(Daemon::start(&["mds", "--dir", &c.path("c"), "--set", WINDOW], &log));
    let mut shown = String::new();
    wait_until("status shows what is waited for", || {
        let out = bounded(&[env!("CARGO_BIN_EXE_stria"), "status", text(&one)]);
        shown = String::from_utf8_lossy(&out.stdout).into_owned();
        shown.contains("has not come back")
    });
    assert!(shown.contains("stria-MDT0000 was restarted") && shown.contains("'stria abort-recovery'"), "{shown}");
    assert!(!fs::read_to_string(&log).unwrap().contains("evicted"), "who may live is waited for");
    let ended = bounded(&[env!("CARGO_BIN_EXE_stria"), "abort-recovery", text(&one)]);
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success() && said.contains("stria-MDT0000 goes on without"), "{said}");
    assert!(bounded(&["touch", text(&one.join("after"))]).status.success());
    support::in_log(&log, "recovery was ended by an administrator");
    let none = good(&["abort-recovery", text(&one)]);
    assert!(none.contains("no server waits for clients"), "{none}");
    // SAFETY: as above.
    unsafe { libc::kill(stopped, libc::SIGCONT) };
    assert!(bounded(&["ls", text(&two)]).status.success(), "it comes back as a new client");
    c.stop();
}
