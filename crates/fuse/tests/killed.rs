//! A killed daemon leaves no mount behind, and mounts by users work: needs real processes, so this file is its own
//! program, which also plays the daemon (`--serve DIR TRANSPORT`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod support;

use fuse::mount::{MountOptions, mount, mounts};
use fuse::{RuntimeConfig, SessionConfig, TransportChoice, runtime};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, serve, dir, transport, rest @ ..] = args.as_slice()
        && serve == "--serve"
    {
        return daemon(Path::new(dir), transport, rest.first().is_some_and(|r| r == "hold"));
    }
    if args.iter().any(|a| a == "--reachable") || !support::can_mount() {
        return;
    }
    for choice in support::transports() {
        let name = if choice == TransportChoice::Uring { "uring" } else { "dev" };
        a_killed_daemon_leaves_no_mount(name, false);
        if choice == TransportChoice::Dev {
            a_killed_daemon_leaves_no_mount(name, true);
        } else {
            println!(
                "a daemon with files open on its own mount is not killed on rings: Linux 6.18 never ends its exit"
            );
        }
        a_user_mounts_and_unmounts_through_fusermount(name);
    }
    println!("killed: ok");
}

/// Mounts, says so, serves until unmounted.
fn daemon(dir: &Path, transport: &str, hold: bool) {
    let choice = if transport == "uring" { TransportChoice::Uring } else { TransportChoice::Dev };
    let (session, mut mounted) = mount(dir, &MountOptions::default(), SessionConfig::default(), choice).unwrap();
    mounted.supervise(false).unwrap();
    let state = std::sync::Arc::new(std::sync::Mutex::new(support::memfs::State::new()));
    let worker = session.workers(1).remove(0);
    let notifier = session.notifier();
    let serving = std::thread::spawn(move || {
        let fs = support::memfs::MemFs::new(state, notifier);
        runtime(&RuntimeConfig::default()).unwrap().block_on(worker.serve(Rc::new(fs)))
    });
    let own = hold.then(|| std::fs::File::create(dir.join("held-by-the-daemon")).unwrap());
    println!("serving");
    serving.join().unwrap().unwrap();
    drop(own);
}

fn start(dir: &Path, transport: &str, more: &[&str], uid: Option<u32>) -> Child {
    start_with(dir, transport, more, uid, &[])
}

fn start_with(
    dir: &Path,
    transport: &str,
    more: &[&str],
    uid: Option<u32>,
    environment: &[(&str, std::ffi::OsString)],
) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.envs(environment.iter().cloned());
    command.arg("--serve").arg(dir).arg(transport).args(more).stdout(Stdio::piped());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "serving\n");
    child
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}

fn a_killed_daemon_leaves_no_mount(transport: &str, hold: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mounted = || mounts().iter().any(|m| m.at == dir.path());
    let mut child = start(dir.path(), transport, if hold { &["hold"] } else { &[] }, None);
    std::fs::write(dir.path().join("f"), b"x").unwrap();
    assert!(mounted());
    child.kill().unwrap();
    until("the mount goes", || !mounted());
    child.wait().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the directory below is back");
    println!("a_killed_daemon_leaves_no_mount {transport} hold={hold}: ok");
}

fn a_user_mounts_and_unmounts_through_fusermount(transport: &str) {
    if fuse::probe::probe().fusermount.is_none() {
        println!("mount by a user not run: fusermount3 is not installed");
        return;
    }
    let open_to_all =
        std::fs::metadata("/dev/fuse").is_ok_and(|m| std::os::unix::fs::MetadataExt::mode(&m) & 0o006 == 6);
    if !open_to_all {
        println!("mount by a user not run: /dev/fuse is closed to users (chmod 666 /dev/fuse opens it)");
        return;
    }
    const NOBODY: u32 = 65534;
    let dir =
        tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mounted = || mounts().iter().any(|m| m.at == dir.path());
    // The program must be reachable for the user.
    if !Command::new(std::env::current_exe().unwrap())
        .arg("--reachable")
        .uid(NOBODY)
        .gid(NOBODY)
        .status()
        .is_ok_and(|s| s.success())
    {
        println!("mount by a user not run: the test program cannot be run by uid {NOBODY}");
        return;
    }
    let mut child = start(dir.path(), transport, &[], Some(NOBODY));
    assert!(mounted());
    let write = format!("echo hi > {0}/f && cat {0}/f", dir.path().display());
    let said = Command::new("sh").arg("-c").arg(write).uid(NOBODY).gid(NOBODY).output().unwrap();
    assert_eq!(said.stdout, b"hi\n", "{said:?}");
    let foreign = std::fs::read_dir(dir.path()).map(drop).unwrap_err();
    assert_eq!(foreign.raw_os_error(), Some(libc::EACCES), "without allow_other not even root may enter");
    let unmounted = Command::new("fusermount3").arg("-u").arg(dir.path()).uid(NOBODY).gid(NOBODY).status().unwrap();
    assert!(unmounted.success());
    until("the mount goes", || !mounted());
    assert!(child.wait().unwrap().success());
    // The helper fails at first, as one does that misses the mount in a table that changes while it reads.
    let before = std::env::var_os("PATH").unwrap_or_default();
    let helpers = tempfile::tempdir().unwrap();
    std::fs::set_permissions(helpers.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let helper = helpers.path().join("fusermount3");
    let text = "#!/bin/sh\nPATH=$REAL_PATH\nif [ \"$1\" = -u ] && mkdir \"$0.failed\"; then exit 1; fi\nexec fusermount3 \"$@\"\n";
    std::fs::write(&helper, text).unwrap();
    std::fs::set_permissions(&helper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path =
        std::env::join_paths(std::iter::once(helpers.path().into()).chain(std::env::split_paths(&before))).unwrap();
    let mut child = start_with(dir.path(), transport, &[], Some(NOBODY), &[("PATH", path), ("REAL_PATH", before)]);
    child.kill().unwrap();
    until("the user's mount goes after a kill", || !mounted());
    child.wait().unwrap();
    assert!(helpers.path().join("fusermount3.failed").exists(), "the helper was asked twice");
    println!("a_user_mounts_and_unmounts_through_fusermount {transport}: ok");
}
