//! Who is waited for after a restart: never the dead, always the living, and an administrator ends it. Needs root and
//! `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
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

#[test]
fn umount_says_for_whom_servers_wait_and_succeeds_when_they_are_back() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let (one, two) = (c.mount("one", &[]), c.mount("two", &[]));
    let _detach = [&one, &two].map(|at| Detach(at.clone()));
    for at in [&one, &two] {
        fs::write(at.join("by").with_extension(at.file_name().unwrap()), b"x").unwrap();
    }
    let mut late = fs::File::create(one.join("late")).unwrap();
    let stopped = c.mounts[1].1.child.id() as i32;
    // SAFETY: a signal to a daemon of this test.
    unsafe { libc::kill(stopped, libc::SIGSTOP) };
    c.mds.take();
    let log = c.dir.path().join("second.log");
    c.mds = Some(Daemon::start(&["mds", "--dir", &c.path("c"), "--set", WINDOW], &log));
    wait_until("the mount has found the new server", || {
        let out = bounded(&[env!("CARGO_BIN_EXE_stria"), "status", text(&one)]);
        String::from_utf8_lossy(&out.stdout).contains("has not come back")
    });
    // The metadata server has to hear of this, and hears nothing before it has recovered.
    late.write_all(b"x").unwrap();
    drop(late);
    let mut umount = Command::new(env!("CARGO_BIN_EXE_stria"));
    let mut umount = umount.args(["umount", text(&one)]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let told = BufReader::new(umount.stderr.take().unwrap()).lines().map_while(Result::ok);
    let told: Vec<String> = told
        .inspect(|line| {
            if line.contains("stria-MDT0000 was restarted and waits for") {
                // SAFETY: as above.
                unsafe { libc::kill(stopped, libc::SIGCONT) };
            }
        })
        .collect();
    assert!(umount.wait().unwrap().success(), "{told:?}");
    assert!(
        told.iter().any(|l| l.contains("was restarted and waits for") && l.contains("has not come back")),
        "{told:?}"
    );
    c.mounts.remove(0).1.child.wait().unwrap();
    c.stop();
}

/// Servers to which this host is another one: of its processes they know nothing.
struct Elsewhere {
    dir: tempfile::TempDir,
    servers: Vec<Daemon>,
}

impl Elsewhere {
    fn new() -> Elsewhere {
        let mut c = Elsewhere { dir: tempfile::tempdir().unwrap(), servers: Vec::new() };
        good(&["mkfs", "--dir", &c.cluster(), "--osts", "1"]);
        c.start();
        c
    }
    fn cluster(&self) -> String {
        text(&self.dir.path().join("c")).into()
    }
    fn log(&self) -> PathBuf {
        self.dir.path().join("servers.log")
    }
    fn start(&mut self) {
        let cluster = self.cluster();
        for role in [&["mds"][..], &["oss", "--ost", "0"]] {
            let line = [role, &["--dir", &cluster, "--set", WINDOW]].concat();
            self.servers.push(Daemon::start_elsewhere(&line, &self.log()));
        }
    }
    /// SIGKILL to all servers, and new ones.
    fn restart(&mut self) {
        self.servers.clear();
        let cluster = self.cluster();
        wait_until("the dead give their locks back", || {
            good(&["status", "--dir", &cluster]).lines().all(|l| !l.contains(" runs"))
        });
        self.start();
    }
    fn mount(&self, at: &Path) -> Daemon {
        let log = self.dir.path().join("mount.log");
        // What nobody syncs is written out by nobody, however long a test takes.
        let late = "client.dirty_age_s=3600";
        Daemon::start(&["mount", "--dir", &self.cluster(), text(at), "--set", late], &log)
    }
}

/// Where the record of a mount is; there is one.
fn record_of(at: &Path) -> PathBuf {
    let shown = good(&["status", text(at)]);
    let id = shown.split("client ").nth(1).unwrap().split(',').next().unwrap().to_string();
    let places = ["/run/stria/mounts", "/tmp/stria-0/mounts"].map(|p| Path::new(p).join(&id));
    places.into_iter().find(|p| p.exists()).unwrap_or_else(|| panic!("there is no record of client {id}"))
}

#[test]
fn servers_elsewhere_wait_for_nothing_of_a_dead_mount_that_its_next_incarnation_tells_of() {
    if !can_mount() {
        return;
    }
    for restarted in [false, true] {
        let mut c = Elsewhere::new();
        let at = c.dir.path().join("mnt");
        fs::create_dir(&at).unwrap();
        let _detach = Detach(at.clone());
        let mut first = c.mount(&at);
        let mut file = fs::File::create(at.join("f")).unwrap();
        file.write_all(b"kept").unwrap();
        file.sync_all().unwrap();
        file.write_all(b" and lost").unwrap();
        // SAFETY: plain system call on a descriptor that lives.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
        let dead = record_of(&at);
        first.kill();
        assert!(dead.exists());
        drop(file);
        assert!(bounded(&["umount", "-l", text(&at)]).status.success());
        if restarted {
            c.restart();
        }
        // What somebody else might have left there is no reason to fail.
        let damaged = dead.with_file_name(format!("{:016x}", std::process::id()));
        let said = fs::read_to_string(&dead).unwrap();
        fs::write(&damaged, said.replace("process 0", "process 1")).unwrap();

        let mut second = c.mount(&at);
        let f = at.join("f");
        assert_eq!(bounded(&["cat", text(&f)]).stdout, b"kept");
        assert!(bounded(&["flock", text(&f), "true"]).status.success());
        assert!(bounded(&["truncate", "-s", "2", text(&f)]).status.success());
        assert!(bounded(&["mv", text(&f), text(&at.join("g"))]).status.success());
        for target in ["stria-MDT0000", "stria-OST0000"] {
            let told = support::in_log(&c.log(), "says a client of its host");
            assert!(told.lines().any(|l| l.contains("says a client of its host") && l.contains(target)), "{told}");
        }
        let said = fs::read_to_string(c.log()).unwrap();
        for late in ["silent for", "did not come back", "did not answer"] {
            assert!(!said.contains(late), "restarted {restarted}: {said}");
        }
        wait_until("the record of the dead goes when every server knows", || !dead.exists());
        assert!(second.says("of no use").contains("checksum"));
        fs::remove_file(&damaged).unwrap();
        let own = record_of(&at);
        good(&["umount", text(&at)]);
        second.child.wait().unwrap();
        assert!(!own.exists(), "a goodbye leaves no record");
    }
}

#[test]
fn a_machine_that_was_started_again_takes_its_old_locks_away_with_its_next_mount() {
    if !can_mount() {
        return;
    }
    if fs::read_link("/proc/self/ns/pid").unwrap() != Path::new("pid:[4026531836]") {
        println!("not run: in a container no machine is known");
        return;
    }
    for restarted in [false, true] {
        let mut c = Elsewhere::new();
        let at = c.dir.path().join("mnt");
        fs::create_dir(&at).unwrap();
        let boots = ["first", "second"].map(|n| {
            let file = c.dir.path().join(n);
            fs::write(&file, format!("{n} boot\n")).unwrap();
            file
        });
        let (cluster, log) = (c.cluster(), c.dir.path().join("mount.log"));
        let mount = |boot: &Path| Daemon::start_on_machine(boot, &["mount", "--dir", &cluster, text(&at)], &log);
        let f = at.join("f");
        // Mounts of a daemon's namespace are seen there only.
        let within = |of: &Daemon, line: &[&str]| {
            let out = bounded(&[&["nsenter", "--mount", "--target", &of.child.id().to_string()], line].concat());
            assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
            out.stdout
        };
        let mut first = mount(&boots[0]);
        within(&first, &["sh", "-c", "printf kept > $0 && sync $0 && printf ' and lost' >> $0", text(&f)]);
        first.kill();
        if restarted {
            c.restart();
        }
        let mut second = mount(&boots[1]);
        assert!(within(&second, &["cat", text(&f)]).starts_with(b"kept"));
        within(&second, &["truncate", "-s", "2", text(&f)]);
        within(&second, &["mv", text(&f), text(&at.join("g"))]);
        for target in ["stria-MDT0000", "stria-OST0000"] {
            let told = support::in_log(&c.log(), "its machine was started again");
            assert!(told.lines().any(|l| l.contains("its machine was started again") && l.contains(target)), "{told}");
        }
        let said = fs::read_to_string(c.log()).unwrap();
        for late in ["silent for", "did not come back", "did not answer", "says a client of its host"] {
            assert!(!said.contains(late), "restarted {restarted}: {said}");
        }
        // SAFETY: a signal to a daemon of this test.
        unsafe { libc::kill(second.child.id() as i32, libc::SIGTERM) };
        second.child.wait().unwrap();
    }
}

#[test]
fn a_mount_beside_a_living_one_tells_nobody_that_it_is_gone() {
    if !can_mount() {
        return;
    }
    let c = Elsewhere::new();
    let places = ["one", "two"].map(|n| c.dir.path().join(n));
    let _detach = places.clone().map(Detach);
    places.iter().for_each(|at| fs::create_dir(at).unwrap());
    let one = c.mount(&places[0]);
    // SAFETY: a signal to a daemon of this test.
    unsafe { libc::kill(one.child.id() as i32, libc::SIGSTOP) };
    // It looks at the record of the first before anybody can use it.
    let _two = c.mount(&places[1]);
    fs::write(places[1].join("f"), b"x").unwrap();
    // SAFETY: as above.
    unsafe { libc::kill(one.child.id() as i32, libc::SIGCONT) };
    assert_eq!(bounded(&["cat", text(&places[0].join("f"))]).stdout, b"x");
    let (first, second) = (record_of(&places[0]), record_of(&places[1]));
    assert!(first.exists() && second.exists());
    for at in &places {
        good(&["umount", text(at)]);
    }
    let said = fs::read_to_string(c.log()).unwrap();
    assert!(!said.contains("evicted=true") && !said.contains("says a client of its host"), "{said}");
}
