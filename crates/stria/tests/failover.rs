//! Two metadata servers over one database: when the one that serves is killed or stands still the other takes over, and programs notice
//! a pause. Needs root, `/dev/fuse` and PostgreSQL.
#![allow(clippy::unwrap_used)]
#[path = "../../store-pg/tests/support/postgres.rs"]
mod postgres;
mod support;

use std::cell::RefCell;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use postgres::{Postgres, is_there};
use support::promises::{check_all, promise, wait_for_more};
use support::{Daemon, can_mount, good, in_log, refused, text};

/// How often a server is killed; for figures.
const KILLS: &str = "STRIA_TEST_KILLS";

/// A cluster with two metadata servers, each with a directory of its own, as on two machines.
struct Pair {
    mds: [Option<Daemon>; 2],
    nids: [String; 2],
    oss: Daemon,
    mounted: RefCell<Vec<PathBuf>>,
    database: Postgres,
    dir: tempfile::TempDir,
}

impl Drop for Pair {
    fn drop(&mut self) {
        for at in self.mounted.take() {
            drop(Command::new("umount").arg("-l").arg(at).output());
        }
    }
}

impl Pair {
    fn new() -> Pair {
        let database = Postgres::start();
        let url = database.database("fs");
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| text(&dir.path().join(name)).to_string();
        good(&["mkfs", "--dir", &path("c0"), "--osts", "2", "--set", &format!("mdt.store={url}")]);
        let copied = Command::new("cp").args(["-a", &path("c0"), &path("c1")]).status().unwrap();
        assert!(copied.success());
        // Both are free now, and nobody else asks for them by number.
        let free = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let nids = free.map(|l| l.local_addr().unwrap().to_string());
        let both = nids.join(",");
        let line = ["oss", "--dir", &path("c0"), "--ost", "all", "--mds", &both, "--set", "recovery.window_s=60"];
        let oss = Daemon::start(&line, &dir.path().join("oss.log"));
        let mut pair = Pair { mds: [None, None], nids, oss, mounted: RefCell::default(), database, dir };
        pair.start(0);
        in_log(&pair.log(0), "it has taken over");
        pair.start(1);
        pair
    }
    fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name)).into()
    }
    fn log(&self, i: usize) -> PathBuf {
        self.dir.path().join(format!("mds{i}.log"))
    }
    fn start(&mut self, i: usize) {
        let (dir, window) = (self.path(&format!("c{i}")), "recovery.window_s=60");
        let line = ["mds", "--standby", "--dir", &dir, "--listen", &self.nids[i], "--set", window];
        // Neither can see that the other's process has ended: its lease has to.
        self.mds[i] = Some(Daemon::start_elsewhere(&line, &self.log(i)));
    }
    /// The server's own process, which is the child of what put it elsewhere.
    fn pid(&self, i: usize) -> u32 {
        let starter = self.mds[i].as_ref().unwrap().child.id();
        let children = std::fs::read_to_string(format!("/proc/{starter}/task/{starter}/children")).unwrap();
        children.trim().parse().unwrap()
    }
    fn signal(&self, i: usize, signal: i32) {
        // SAFETY: a signal to a daemon of this test.
        unsafe { libc::kill(self.pid(i) as i32, signal) };
    }
    /// Which of them has the store.
    fn serving(&self) -> usize {
        let holder = self.database.sql("fs", "SELECT holder FROM stria_mdt");
        (0..2).find(|i| holder.starts_with(&format!("process {} on", self.pid(*i)))).unwrap()
    }
    fn mount(&self, name: &str) -> (PathBuf, Daemon) {
        let at = self.dir.path().join(name);
        std::fs::create_dir(&at).unwrap();
        let key = format!("cluster.key_file={}", self.path("c0/keys/client.key"));
        let line = ["mount", "--mds", &self.nids.join(","), "--set", &key, text(&at)];
        let daemon = Daemon::start(&line, &self.dir.path().join(format!("{name}.log")));
        self.mounted.borrow_mut().push(at.clone());
        (at, daemon)
    }
    /// Ends all but the database, and checks what they leave.
    fn stop(mut self, mounts: Vec<(PathBuf, Daemon)>) {
        for (at, mut daemon) in mounts {
            good(&["umount", text(&at)]);
            daemon.child.wait().unwrap();
        }
        // The one that waits first, lest it takes over.
        let serving = self.serving();
        for i in [1 - serving, serving] {
            self.signal(i, libc::SIGTERM);
            let mut daemon = self.mds[i].take().unwrap();
            assert!(daemon.child.wait().unwrap().success(), "{}", daemon.said());
        }
        // SAFETY: as above.
        unsafe { libc::kill(self.oss.child.id() as i32, libc::SIGTERM) };
        assert!(self.oss.child.wait().unwrap().success());
        let checked = good(&["fsck", "--dir", &self.path("c0"), "--data"]);
        assert!(checked.ends_with("0 fault(s)\n"), "{checked}");
    }
}

/// The longest time between two promises from now until some more were made.
fn longest_pause(promised: &AtomicUsize, more: usize) -> Duration {
    let (mut seen, mut since, mut longest) = (promised.load(SeqCst), Instant::now(), Duration::ZERO);
    let until = seen + more;
    while seen < until {
        std::thread::park_timeout(Duration::from_millis(1));
        let now = promised.load(SeqCst);
        if now != seen {
            longest = longest.max(since.elapsed());
            (seen, since) = (now, Instant::now());
        }
    }
    longest
}

#[test]
fn a_killed_server_is_followed_by_its_standby_and_programs_notice_a_pause() {
    if !can_mount() || !is_there() {
        return;
    }
    let mut pair = Pair::new();
    let mounts = vec![pair.mount("one"), pair.mount("two")];
    let kills = std::env::var(KILLS).map_or(3, |n| n.parse().unwrap());
    let (promised, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut pauses = Vec::new();
    std::thread::scope(|s| {
        s.spawn(|| promise(&mounts[0].0, &promised, &end));
        for _ in 0..kills {
            wait_for_more(&promised, 40);
            let serving = pair.serving();
            // Dropping it is kill -9.
            pair.mds[serving] = None;
            pauses.push(longest_pause(&promised, 20));
            pair.start(serving);
        }
        end.store(true, SeqCst);
    });
    pauses.sort();
    println!("pauses of {kills} kills: {pauses:.2?}; median {:.2?}", pauses[pauses.len() / 2]);
    let promised = promised.into_inner();
    mounts.iter().for_each(|(at, _)| check_all(at, promised));
    pair.stop(mounts);
}

/// In turns: the one that was replaced ends when it wakes, is started again as whoever runs it would, and takes over in its turn.
#[test]
fn a_server_that_stood_still_ends_when_it_wakes_and_takes_over_again_once_it_was_started_anew() {
    if !can_mount() || !is_there() {
        return;
    }
    let mut pair = Pair::new();
    let mounts = vec![pair.mount("one")];
    let (promised, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| promise(&mounts[0].0, &promised, &end));
        for _ in 0..3 {
            wait_for_more(&promised, 40);
            let serving = pair.serving();
            pair.signal(serving, libc::SIGSTOP);
            wait_for_more(&promised, 40);
            assert_eq!(pair.serving(), 1 - serving);
            pair.signal(serving, libc::SIGCONT);
            let mut replaced = pair.mds[serving].take().unwrap();
            assert!(!replaced.child.wait().unwrap().success(), "it was replaced");
            let said = replaced.said();
            assert!(said.contains("another server has taken the metadata store over"), "{said}");
            assert!(said.contains("'stria mds --standby' waits for its turn"), "{said}");
            pair.start(serving);
            wait_for_more(&promised, 40);
            assert_eq!(pair.serving(), 1 - serving);
        }
        end.store(true, SeqCst);
    });
    check_all(&mounts[0].0, promised.into_inner());
    pair.stop(mounts);
}

/// A mount of a daemon that may have left it.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

#[test]
fn a_cluster_of_one_process_ends_with_its_mounts_when_another_server_took_its_store_over() {
    if !can_mount() || !is_there() {
        return;
    }
    let (database, dir) = (Postgres::start(), tempfile::tempdir().unwrap());
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    let (here, there, at) = (path("c0"), path("c1"), Place(dir.path().join("m")));
    std::fs::create_dir(&at.0).unwrap();
    good(&["mkfs", "--dir", &here, "--osts", "1", "--set", &format!("mdt.store={}", database.database("fs"))]);
    assert!(Command::new("cp").args(["-a", &here, &there]).status().unwrap().success());
    let mut up = Daemon::start(&["up", "--dir", &here, "--mount", text(&at.0)], &dir.path().join("up.log"));
    std::fs::write(at.0.join("f"), "kept").unwrap();
    let signal = |signal: i32| {
        // SAFETY: a signal to a daemon of this test.
        unsafe { libc::kill(up.child.id() as i32, signal) };
    };
    signal(libc::SIGSTOP);
    let log = dir.path().join("mds.log");
    let line = ["mds", "--standby", "--dir", &there, "--listen", "127.0.0.1:0"];
    let mut standby = Daemon::start_elsewhere(&line, &log);
    in_log(&log, "it has taken over");
    signal(libc::SIGCONT);
    assert!(!up.child.wait().unwrap().success(), "{}", up.said());
    assert!(up.said().contains("another server has taken the metadata store over"), "{}", up.said());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(text(&at.0)), "{mounts}");
    standby.kill();
}

#[test]
fn a_standby_of_a_store_in_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = text(&dir.path().join("c")).to_string();
    good(&["mkfs", "--dir", &at, "--osts", "1"]);
    let (_, said) = refused(&["mds", "--standby", "--dir", &at]);
    assert!(said.contains("a standby needs one in a database"), "{said}");
    assert!(Path::new(&at).join("mdt0/mdt.redb").exists());
}
