//! Unmounting and stopping: what is in use is named, copies in other mount namespaces end, other people's mounts stay, and
//! exit codes tell the truth. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{can_mount, good, text};

/// Runs the program; a hang is a failure, not a hang of the tests.
fn bounded(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_stria");
    let line = ["--kill-after=5", "100", program];
    let out = Command::new("timeout").args(line).args(arguments).output().unwrap();
    assert!(!matches!(out.status.code(), Some(124 | 137) | None), "{arguments:?} hangs");
    out
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A directory with mount points, all detached at the end.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        ["m1", "m2"].iter().for_each(|m| fs::create_dir(dir.path().join(m)).unwrap());
        Place(dir)
    }
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn up(&self, cluster: &str, mounts: &[&str], more: &[&str]) {
        let (dir, mounts) = (self.at(cluster), mounts.iter().map(|m| self.at(m)).collect::<Vec<_>>());
        let mut line = vec!["up", "--background", "--dir", text(&dir), "--osts", "1", "--set", "recovery.window_s=2"];
        mounts.iter().for_each(|m| line.extend(["--mount", text(m)]));
        line.extend(more);
        good(&line);
    }
    fn runs(&self, cluster: &str) -> bool {
        good(&["status", "--dir", text(&self.at(cluster))]).contains(" runs")
    }
    fn pid(&self, cluster: &str) -> i32 {
        fs::read_to_string(self.at(cluster).join("run/up.pid")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for m in ["m1", "m2"] {
            drop(Command::new("umount").arg("-l").arg(self.at(m)).stderr(Stdio::null()).output());
        }
    }
}

struct Other(Child);
impl Other {
    /// A shell line in a mount namespace of its own; begun when this returns.
    fn in_a_namespace(line: &str) -> Other {
        let script = format!("{line}; echo begun; exec sleep 600");
        let mut child =
            Command::new("unshare").args(["-m", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut begun = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut begun).unwrap();
        assert_eq!(begun, "begun\n");
        Other(child)
    }
}
impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_mounted(at: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {} ", at.display()))
}

#[test]
fn a_directory_on_a_mount_is_no_mount_point_and_ways_to_one_are() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.up("c", &["m1"], &[]);
    let (at, link) = (place.at("m1"), place.at("link"));
    fs::create_dir(at.join("sub")).unwrap();
    fs::write(at.join("file"), b"x").unwrap();
    for below in ["sub", "file", "sub/.."] {
        let out = bounded(&["umount", text(&at.join(below))]);
        let ended = below == "sub/..";
        assert_eq!(out.status.success(), ended, "{below}: {}", said(&out));
        assert_eq!((is_mounted(&at), place.runs("c")), (!ended, !ended), "{below}");
        assert!(ended || said(&out).contains(&format!("'stria umount {}'", at.display())), "{}", said(&out));
    }
    place.up("c", &["m1"], &[]);
    std::os::unix::fs::symlink(&at, &link).unwrap();
    assert!(bounded(&["umount", text(&link)]).status.success());
    assert!(!is_mounted(&at));
}

#[test]
fn a_daemon_in_the_background_keeps_nothing_that_its_starter_has_open() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (dir, at, lock) = (place.at("c"), place.at("m1"), place.at("lock"));
    let script = "exec 9>\"$1\"; flock 9; exec \"$2\" up --background --dir \"$3\" --osts 1 --mount \"$4\"";
    let program = env!("CARGO_BIN_EXE_stria");
    let line = ["sh", "-c", script, "sh", text(&lock), program, text(&dir), text(&at)];
    let out = Command::new("timeout").arg("100").args(line).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let free = Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap();
    assert!(free.success(), "the daemon has the script's lock");
    assert!(bounded(&["umount", text(&at)]).status.success());
}

#[test]
fn who_uses_a_mount_is_named() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &[]);
    fs::write(p.at("m1/f"), b"x").unwrap();
    let mut user = Command::new("sleep").arg("600").stdin(fs::File::open(p.at("m1/f")).unwrap()).spawn().unwrap();
    let out = bounded(&["umount", text(&p.at("m1"))]);
    let name = format!("process {} (sleep) has files open", user.id());
    assert!(out.status.code() == Some(libc::EBUSY) && said(&out).contains(&name), "{}", said(&out));
    assert!(is_mounted(&p.at("m1")));
    user.kill().unwrap();
    user.wait().unwrap();
    assert!(bounded(&["umount", text(&p.at("m1"))]).status.success());
    assert!(!p.runs("c"));
}

/// A file that is open in a message that nobody has received: `/proc` shows it nowhere. The end of the input ends it.
const IN_A_MESSAGE: &str = "import os, socket, sys
a, b = socket.socketpair()
f = os.open(sys.argv[1], os.O_RDONLY)
socket.send_fds(a, [b'x'], [f])
os.close(f)
print('begun', flush=True)
sys.stdin.read()";

#[test]
fn a_use_that_nobody_can_be_seen_to_make_is_waited_for() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &[]);
    fs::write(p.at("m1/f"), b"x").unwrap();
    let mut holder = Command::new("python3");
    holder.args(["-c", IN_A_MESSAGE, text(&p.at("m1/f"))]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    let mut begun = String::new();
    let from = holder.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(from), &mut begun).unwrap();
    assert_eq!(begun, "begun\n");
    let mut umount = Command::new(env!("CARGO_BIN_EXE_stria"));
    let mut umount = umount.args(["umount", text(&p.at("m1"))]).stderr(Stdio::piped()).spawn().unwrap();
    // It has met the use by now, or will: it ends in success either way.
    let tried = Instant::now() + Duration::from_millis(300);
    wait_until("a moment", || Instant::now() > tried || umount.try_wait().unwrap().is_some());
    drop(holder.stdin.take());
    holder.wait().unwrap();
    let out = umount.wait_with_output().unwrap();
    assert!(out.status.success() && !is_mounted(&p.at("m1")), "{}", said(&out));
}

#[test]
fn copies_in_other_mount_namespaces_end_with_the_mount_unless_they_are_used() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &[]);
    fs::write(p.at("m1/f"), b"x").unwrap();
    let user = Other::in_a_namespace(&format!("cd {}", p.at("m1").display()));
    let out = bounded(&["umount", text(&p.at("m1"))]);
    assert!(out.status.code() == Some(libc::EBUSY) && said(&out).contains("works in it"), "{}", said(&out));
    assert!(is_mounted(&p.at("m1")) && fs::read(p.at("m1/f")).unwrap() == b"x");
    drop(user);
    let idle = Other::in_a_namespace("true");
    let out = bounded(&["umount", text(&p.at("m1"))]);
    assert!(out.status.success() && said(&out).contains("also mounted in the mount namespace"), "{}", said(&out));
    assert!(!p.runs("c"), "the stores are free again");
    let checked = good(&["fsck", "--dir", text(&p.at("c"))]);
    assert!(checked.ends_with("0 fault(s)\n"), "{checked}");
    drop(idle);
}

#[test]
fn a_daemon_that_ends_later_leaves_what_others_mounted_at_its_place() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("old", &["m1"], &[]);
    let holder = Other::in_a_namespace("true");
    assert!(Command::new("umount").arg(p.at("m1")).status().unwrap().success());
    assert!(p.runs("old"), "a copy keeps it");
    p.up("new", &["m1"], &[]);
    fs::write(p.at("m1/f"), b"new").unwrap();
    // SAFETY: a signal to a daemon of this test.
    unsafe { libc::kill(p.pid("old"), libc::SIGTERM) };
    wait_until("it ends, although a copy of its mount is left", || !p.runs("old"));
    assert!(is_mounted(&p.at("m1")) && fs::read(p.at("m1/f")).unwrap() == b"new");
    drop(holder);
    assert!(bounded(&["umount", text(&p.at("m1"))]).status.success());
}

#[test]
fn the_mounts_of_a_process_end_one_by_one_also_when_a_connection_was_aborted() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1", "m2"], &[]);
    fs::write(p.at("m1/f"), b"x").unwrap();
    assert_eq!(fs::read(p.at("m2/f")).unwrap(), b"x");
    use std::os::unix::fs::MetadataExt;
    let connection = libc::minor(fs::metadata(p.at("m1")).unwrap().dev());
    fuse::mount::abort(connection).unwrap();
    let out = bounded(&["umount", text(&p.at("m2"))]);
    assert!(out.status.success(), "{}", said(&out));
    wait_until("the daemon ends", || !p.runs("c"));
}

#[test]
fn of_a_mount_whose_daemon_was_killed_copies_in_other_mount_namespaces_are_named() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &[]);
    let other = Other::in_a_namespace("true");
    // The kernel knows the mount's root by now.
    fs::metadata(p.at("m1")).unwrap();
    // SAFETY: a signal to a daemon of this test.
    unsafe { libc::kill(p.pid("c"), libc::SIGKILL) };
    wait_until("the daemon ends", || !p.runs("c"));
    let out = bounded(&["umount", text(&p.at("m1"))]);
    let remedy = format!("'nsenter -t {} -m umount -l {}' takes it away there", other.0.id(), p.at("m1").display());
    assert!(out.status.success() && said(&out).contains(&remedy), "{}", said(&out));
    assert!(!is_mounted(&p.at("m1")));
}

#[test]
fn a_cluster_of_which_servers_stand_still_is_stopped_in_order() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &["--processes"]);
    fs::write(p.at("m1/f"), [7; 300_000]).unwrap();
    let dir = p.at("c");
    for name in ["mdt0", "ost0"] {
        let pid = fs::read_to_string(dir.join("run").join(format!("{name}.pid"))).unwrap();
        // SAFETY: a signal to a server of this test.
        unsafe { libc::kill(pid.trim().parse().unwrap(), libc::SIGSTOP) };
    }
    let out = bounded(&["stop", "--dir", text(&dir)]);
    assert!(out.status.success() && said(&out).contains("ost0 (process"), "{}", said(&out));
    assert!(!p.runs("c") && !is_mounted(&p.at("m1")));
    p.up("c", &["m1"], &[]);
    assert!(fs::read(p.at("m1/f")).unwrap() == [7; 300_000]);
    assert!(bounded(&["umount", text(&p.at("m1"))]).status.success());
}

#[test]
fn a_cluster_is_stopped_by_its_directory() {
    if !can_mount() {
        return;
    }
    for mode in [&["--processes"][..], &[]] {
        let p = Place::new();
        p.up("c", &["m1"], mode);
        fs::write(p.at("m1/f"), b"kept").unwrap();
        let dir = p.at("c");
        let out = bounded(&["stop", "--dir", text(&dir)]);
        assert!(out.status.success() && said(&out).contains("stopped"), "{}", said(&out));
        assert!(!p.runs("c") && !is_mounted(&p.at("m1")));
        let again = bounded(&["stop", "--dir", text(&dir)]);
        assert!(again.status.success() && said(&again).contains("nothing of it runs"), "{}", said(&again));
        p.up("c", &["m1"], mode);
        assert_eq!(fs::read(p.at("m1/f")).unwrap(), b"kept");
        assert!(bounded(&["umount", text(&p.at("m1"))]).status.success());
    }
    let none = bounded(&["stop", "--dir", "/nonexistent"]);
    assert!(none.status.code() == Some(libc::ENOENT) && said(&none).contains("not a cluster's directory"));
}

#[test]
fn stop_ends_who_holds_the_lock_and_not_who_has_the_number_that_is_written_down() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &["--processes"]);
    // As of another process namespace, where numbers mean something else.
    let bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let mut bystander = Other(bystander);
    for name in ["up", "mdt0"] {
        // Over what is there: the file, and with it the lock, stays.
        let note = fs::OpenOptions::new().write(true).open(p.at("c/run").join(format!("{name}.pid"))).unwrap();
        let text = format!("{}\n", bystander.0.id());
        std::os::unix::fs::FileExt::write_all_at(&note, text.as_bytes(), 0).unwrap();
        note.set_len(text.len() as u64).unwrap();
    }
    let out = bounded(&["stop", "--dir", text(&p.at("c"))]);
    assert!(bystander.0.try_wait().unwrap().is_none(), "another process was ended: {}", said(&out));
    assert!(out.status.success() && !p.runs("c") && !is_mounted(&p.at("m1")), "{}", said(&out));
}

#[test]
fn a_cluster_of_another_process_namespace_is_not_told_as_stopped() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &["--processes"]);
    let dir = p.at("c");
    let there = |line: &[&str]| {
        let elsewhere = ["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_stria")];
        Command::new("unshare").args(elsewhere).args(line).output().unwrap()
    };
    let out = there(&["stop", "--dir", text(&dir)]);
    assert!(out.status.code() == Some(libc::EBUSY) && said(&out).contains("stop it there"), "{}", said(&out));
    let out = there(&["status", "--dir", text(&dir)]);
    assert!(said(&out).contains("it is not seen from here"), "{}", said(&out));
    assert!(p.runs("c") && is_mounted(&p.at("m1")));
    let out = bounded(&["stop", "--dir", text(&dir)]);
    assert!(out.status.success() && !p.runs("c"), "{}", said(&out));
}

#[test]
fn a_cluster_whose_run_directory_is_gone_is_not_told_as_stopped() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &[]);
    let (dir, pid) = (p.at("c"), p.pid("c"));
    fs::remove_dir_all(dir.join("run")).unwrap();
    let used = format!("mdt0 is in use by process {pid}, which is not written down");
    let out = bounded(&["stop", "--dir", text(&dir)]);
    assert!(out.status.code() == Some(libc::EBUSY) && said(&out).contains(&used), "{}", said(&out));
    let status = good(&["status", "--dir", text(&dir)]);
    assert!(status.contains(&format!("wrong: {used}")), "{status}");
    assert!(bounded(&["umount", text(&p.at("m1"))]).status.success());
    let out = bounded(&["stop", "--dir", text(&dir)]);
    assert!(out.status.success() && said(&out).contains("nothing of it runs"), "{}", said(&out));
}

#[test]
fn a_cluster_of_which_some_processes_are_not_written_down_is_not_told_as_stopped() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    p.up("c", &["m1"], &["--processes"]);
    let dir = p.at("c");
    let pid = fs::read_to_string(dir.join("run/ost0.pid")).unwrap().trim().to_string();
    for name in ["up.pid", "ost0.pid"] {
        fs::remove_file(dir.join("run").join(name)).unwrap();
    }
    let out = bounded(&["stop", "--dir", text(&dir)]);
    let used = format!("ost0 is in use by process {pid}, which is not written down");
    assert!(out.status.code() == Some(libc::EBUSY) && said(&out).contains(&used), "{}", said(&out));
    assert!(bounded(&["umount", text(&p.at("m1"))]).status.success());
    let out = bounded(&["stop", "--dir", text(&dir)]);
    assert!(out.status.success(), "{}", said(&out));
}

#[test]
fn the_copy_of_a_clusters_directory_is_not_taken_for_the_original_that_runs() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let (dir, copy) = (p.at("c"), p.at("copy"));
    p.up("c", &["m1"], &["--processes"]);
    assert!(bounded(&["stop", "--dir", text(&dir)]).status.success());
    assert!(Command::new("cp").args(["-a", text(&dir), text(&copy)]).status().unwrap().success());
    // At the addresses of before, which are written down in the copy, too.
    p.up("c", &["m1"], &["--processes"]);
    for line in [
        &["mount", "--background", "--dir", text(&copy), text(&p.at("m2"))][..],
        &["oss", "--dir", text(&copy), "--ost", "0"],
        &["credential", "list", "--dir", text(&copy)],
    ] {
        let out = bounded(line);
        let why = said(&out);
        assert!(out.status.code() == Some(libc::ECONNREFUSED) && why.contains("is this a copy"), "{line:?}: {why}");
    }
    assert!(!is_mounted(&p.at("m2")));
    p.up("copy", &["m2"], &["--processes"]);
    fs::write(p.at("m2/only-here"), b"x").unwrap();
    assert!(!p.at("m1/only-here").exists());
    for m in ["m1", "m2"] {
        assert!(bounded(&["umount", text(&p.at(m))]).status.success());
    }
}

#[test]
fn a_mount_that_waits_for_its_metadata_server_ends_at_a_signal() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    good(&["mkfs", "--dir", text(&p.at("c")), "--osts", "1"]);
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (nid, key) =
        (silent.local_addr().unwrap().to_string(), format!("cluster.key_file={}/c/keys/client.key", text(p.0.path())));
    let mut child = Command::new(env!("CARGO_BIN_EXE_stria"));
    child.args(["mount", "--mds", &nid, "--set", &key, text(&p.at("m1"))]);
    let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let joining = silent.accept().unwrap();
    // SAFETY: a signal to a child that was not collected yet.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let out = child.wait_with_output().unwrap();
    assert!(!out.status.success() && said(&out).contains("signal 15 came before it was mounted"), "{}", said(&out));
    assert!(!is_mounted(&p.at("m1")));
    drop(joining);
}

/// A cluster with a mount, and something written there that is on stable storage.
fn settled() -> (support::Cluster, PathBuf) {
    let mut c = support::Cluster::new(1);
    let at = c.mount("m", &[]);
    fs::write(at.join("f"), vec![1; 1 << 20]).unwrap();
    good(&["sync", text(&at)]);
    (c, at)
}

#[test]
fn a_mount_whose_servers_have_died_ends_at_once_where_nothing_is_unwritten() {
    if !can_mount() {
        return;
    }
    let (mut c, at) = settled();
    // Opened and closed since, and what the close changed is committed.
    assert_eq!(fs::read(at.join("f")).unwrap(), vec![1; 1 << 20]);
    good(&["sync", text(&at)]);
    c.mds.as_mut().unwrap().kill();
    c.oss[0].as_mut().unwrap().kill();
    let out = bounded(&["umount", text(&at)]);
    assert!(out.status.success(), "it waits for nobody: {}", said(&out));
    assert!(!is_mounted(&at));
    c.mounts[0].1.child.wait().unwrap();
}

#[test]
fn who_unmounts_hears_what_is_unwritten_and_for_whom_it_waits_and_need_not_wait() {
    if !can_mount() {
        return;
    }
    for force in [false, true] {
        let (mut c, at) = settled();
        c.oss[0].as_mut().unwrap().kill();
        fs::File::options().write(true).open(at.join("f")).and_then(|mut f| f.write_all(&[2; 65536])).unwrap();
        let mut umount = Command::new(env!("CARGO_BIN_EXE_stria"));
        umount.arg("umount").args(force.then_some("-f")).arg(&at).stderr(Stdio::piped());
        let mut umount = umount.spawn().unwrap();
        let mut lines = std::io::BufReader::new(umount.stderr.take().unwrap());
        let (mut line, mut code) = (String::new(), libc::EIO);
        lines.read_line(&mut line).unwrap();
        assert!(line.contains("64K of 1 object(s)") && line.contains("-OST0000 at tcp:127.0.0.1:"), "{line}");
        if !force {
            assert!(line.contains("60 s at most"), "{line}");
            // SAFETY: plain system call on a child that was not collected yet.
            unsafe { libc::kill(umount.id() as i32, libc::SIGINT) };
            (code, line) = (libc::EINTR, String::new());
            lines.read_line(&mut line).unwrap();
            assert!(line.contains("it goes on") && line.contains("'kill "), "{line}");
        }
        assert_eq!(umount.wait().unwrap().code(), Some(code), "{line}");
        assert!(!is_mounted(&at));
        if !force {
            assert!(c.mounts[0].1.is_running(), "it still waits");
            // SAFETY: as above.
            unsafe { libc::kill(c.mounts[0].1.child.id() as i32, libc::SIGTERM) };
        }
        c.mounts[0].1.child.wait().unwrap();
        c.mounts[0].1.says("what is not written out is given up");
    }
}

/// Processes whose command line has this word, but for one.
fn processes_with(word: &str, but: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).any(|w| w == word.as_bytes())
    };
    all.filter(|pid| *pid != but && has(pid)).collect()
}

#[test]
fn who_does_not_wait_for_a_mount_in_the_background_has_none() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    // Nobody answers there.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, key) = (silent.local_addr().unwrap().to_string(), p.at("key"));
    support::write_secret(&key, "0123456789abcdef0123456789abcdef");
    let (at, key) = (p.at("m1"), format!("cluster.key_file={}", key.display()));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let mut mount = Command::new(env!("CARGO_BIN_EXE_stria"));
        mount.args(["mount", "--background", "--mds", &address, "--set", &key]).arg(&at).stderr(Stdio::piped());
        let mount = mount.spawn().unwrap();
        let pid = mount.id();
        wait_until("a daemon is there", || processes_with(text(&at), pid).len() == 1);
        // SAFETY: plain system call on a child that was not collected yet.
        unsafe { libc::kill(pid as i32, signal) };
        let out = mount.wait_with_output().unwrap();
        if signal != libc::SIGKILL {
            assert_eq!(out.status.code(), Some(libc::EINTR), "{}", said(&out));
            assert!(said(&out).contains("came before it was ready"), "{}", said(&out));
            assert_eq!(processes_with(text(&at), pid), [0; 0], "it is gone when the command is");
        }
        wait_until("the daemon ends", || processes_with(text(&at), pid).is_empty());
        assert!(!is_mounted(&at));
    }
}
