//! The store of one OST that is put back from an older copy: refused by name while the others go on, served again when the newer one is back,
//! and taken in when an administrator says so, with what it lacks known as lost. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::up::Up;
use support::{can_mount, good, refused, text};

fn read(up: &Up, name: &str) -> Result<String, Option<i32>> {
    fs::read_to_string(up.at(name)).map_err(|e| e.raw_os_error())
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

fn copy(from: &Path, to: &Path) {
    let out = std::process::Command::new("cp").args(["-a", text(from), text(to)]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

fn status(up: &Up) -> String {
    good(&["status", text(&up.at(""))])
}

/// A cluster of three OSTs that was written to by `first`, of which the store of OST 1 was copied then, and written to further; the cluster
/// is stopped. The place of the copy, and one where the newer store can be put.
fn copied(mode: &[&str], while_it_runs: bool) -> (Up, PathBuf, PathBuf) {
    let mut up = Up::new();
    up.start(&[&["--osts", "3"], mode].concat());
    for i in 0..3 {
        up.file_on(&format!("f{i}"), i, format!("of {i}").as_bytes());
    }
    let (store, older) = (up.store("ost1"), up.dir.path().join("older"));
    if while_it_runs {
        // Everything is committed, and a copy as good as a snapshot of the disk.
        good(&["sync", text(&up.at(""))]);
        copy(&store, &older);
    } else {
        up.stop();
        copy(&store, &older);
        up.start(mode);
    }
    fs::write(up.at("f1"), "of 1, newer").unwrap();
    up.file_on("later", 1, b"later");
    good(&["sync", text(&up.at(""))]);
    let newer = up.dir.path().join("newer");
    (up, older, newer)
}

fn put_in_place(up: &Up, from: &Path, aside: &Path) {
    fs::rename(up.store("ost1"), aside).unwrap();
    copy(from, &up.store("ost1"));
}

/// The older copy is in its place: it is refused, and everything else goes on.
fn is_refused(up: &Up) {
    wait_until("the older copy is not refused", || {
        status(up).contains("OST 1 is not served: its store is an older copy")
    });
    support::status_that(&up.at(""), |s| s.contains("'stria ost accept 1'"));
    assert_eq!((read(up, "f0"), read(up, "f2")), (Ok("of 0".into()), Ok("of 2".into())));
    assert_eq!((read(up, "f1"), read(up, "later")), (Err(Some(libc::EIO)), Err(Some(libc::EIO))));
    for i in 0..4 {
        fs::write(up.at(&format!("new{i}")), b"new").unwrap();
    }
}

fn goes_on_without_the_copy(mode: &[&str]) {
    if !can_mount() {
        return;
    }
    let (mut up, older, newer) = copied(mode, false);
    up.stop();
    put_in_place(&up, &older, &newer);
    up.start(mode);
    is_refused(&up);
    // Also after it was started again and again.
    for _ in 0..2 {
        up.stop();
        up.start(mode);
        is_refused(&up);
    }
    // The newer one comes back into its place, and is served without a restart.
    fs::remove_dir_all(up.store("ost1")).unwrap();
    fs::rename(&newer, up.store("ost1")).unwrap();
    wait_until("the newer store is not served", || read(&up, "f1") == Ok("of 1, newer".into()));
    assert_eq!(read(&up, "later"), Ok("later".into()));
    assert!(!status(&up).contains("older copy"), "{}", status(&up));
    let (code, why) = refused(&["ost", "accept", "1", "--dir", &up.cluster()]);
    assert!(code == libc::EINVAL && why.contains("was not refused"), "{code}: {why}");
    up.stop();
    let (code, said) = up.fsck();
    assert_eq!(code, 0, "{said}");
    // Taken in as it is.
    put_in_place(&up, &older, &newer);
    up.start(mode);
    is_refused(&up);
    good(&["ost", "accept", "1", "--dir", &up.cluster()]);
    is_taken_in(&up);
    up.stop();
    up.start(mode);
    is_taken_in(&up);
    up.file_on("again", 1, b"again");
    assert_eq!(read(&up, "again"), Ok("again".into()));
    up.stop();
    let (code, said) = up.fsck();
    assert!(code == 4 && said.contains("is on no OST") && said.contains("1 fault(s)"), "{code}: {said}");
}

/// Older files have there what they had, what came later is known to be lost.
fn is_taken_in(up: &Up) {
    wait_until("the older copy is not served", || read(up, "f1").is_ok_and(|has| has.starts_with("of 1")));
    assert_eq!(read(up, "later"), Err(Some(libc::EIO)));
    let lost = good(&["ost", "files", "1", "--lost", "--dir", &up.cluster()]);
    assert!(lost.contains("/later") && !lost.contains("/f1"), "{lost}");
}

#[test]
fn one_process_refuses_an_older_copy_of_a_store_until_it_is_told_otherwise() {
    goes_on_without_the_copy(&[]);
}

#[test]
fn processes_refuse_an_older_copy_of_a_store_until_it_is_told_otherwise() {
    goes_on_without_the_copy(&["--processes"]);
}

/// A repair of the stopped cluster while the copy is in the newer store's place leaves what that one has.
fn is_left_alone_by_a_repair(up: &Up) {
    let out = support::stria(&["fsck", "--repair", "--dir", &up.cluster()]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.code() == Some(4) && said.contains("OST0001: its store is an older copy: "), "{out:?}");
    assert!(said.contains("1 fault(s)") && !said.contains("lost+found"), "{said}");
}

#[test]
fn a_repair_believes_no_older_copy_and_what_the_newer_store_has_is_there_when_that_comes_back() {
    if !can_mount() {
        return;
    }
    let (mut up, older, newer) = copied(&[], false);
    // With objects on several OSTs, the refused one among them.
    let wide = up.at("wide");
    good(&["setstripe", "-c", "3", "-S", "64k", text(&wide)]);
    fs::write(&wide, vec![7; 300_000]).unwrap();
    up.stop();
    put_in_place(&up, &older, &newer);
    // No server has seen it yet.
    is_left_alone_by_a_repair(&up);
    up.start(&[]);
    is_refused(&up);
    up.stop();
    is_left_alone_by_a_repair(&up);
    fs::remove_dir_all(up.store("ost1")).unwrap();
    fs::rename(&newer, up.store("ost1")).unwrap();
    let (code, said) = up.fsck();
    assert_eq!(code, 0, "{said}");
    up.start(&[]);
    assert_eq!((read(&up, "f1"), read(&up, "later")), (Ok("of 1, newer".into()), Ok("later".into())));
    assert!(fs::read(&wide).unwrap() == [7; 300_000]);
    assert!(!up.at("lost+found").exists());
    up.stop();
}

#[test]
fn a_copy_that_was_made_while_the_store_was_in_use_is_refused_although_it_knows_the_last_start() {
    if !can_mount() {
        return;
    }
    let (mut up, older, newer) = copied(&[], true);
    // What the OST has on stable storage is noted when objects are made, too.
    for i in 0..100 {
        up.file_on(&format!("more{i}"), 1, b"more");
    }
    up.stop();
    put_in_place(&up, &older, &newer);
    is_left_alone_by_a_repair(&up);
    up.start(&[]);
    is_refused(&up);
    assert_eq!(read(&up, "more99"), Err(Some(libc::EIO)));
    good(&["ost", "accept", "1", "--dir", &up.cluster()]);
    wait_until("the older copy is not served", || read(&up, "f1").is_ok_and(|has| has.starts_with("of 1")));
    // Their objects had been made ahead, and are empty there; or they are lost.
    let after: Vec<_> = (0..100).map(|i| read(&up, &format!("more{i}"))).collect();
    assert_eq!(after[99], Err(Some(libc::EIO)), "{after:?}");
    let lost = good(&["ost", "files", "1", "--lost", "--dir", &up.cluster()]);
    assert!(lost.contains("/more99"), "{lost}");
    up.stop();
}

#[test]
fn a_whole_cluster_that_is_put_back_together_is_served() {
    if !can_mount() {
        return;
    }
    let (mut up, _, aside) = copied(&[], false);
    up.stop();
    copy(Path::new(&up.cluster()), &aside);
    up.start(&[]);
    up.file_on("f1b", 1, b"gone again");
    up.stop();
    fs::remove_dir_all(up.cluster()).unwrap();
    copy(&aside, Path::new(&up.cluster()));
    up.start(&[]);
    assert_eq!((read(&up, "f1"), read(&up, "later")), (Ok("of 1, newer".into()), Ok("later".into())));
    assert!(!status(&up).contains("older copy"), "{}", status(&up));
    up.stop();
}
