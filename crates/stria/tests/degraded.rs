//! Clusters of which an OST's store does not open: the others are served, somebody says so, and it is served once it opens, without a
//! restart. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use support::up::Up;
use support::{Daemon, can_mount, good, refused, status_that, text};

/// A cluster of three OSTs with a file on each.
fn filled(mode: &[&str]) -> Up {
    let mut up = Up::new();
    up.start(&[&["--osts", "3"], mode].concat());
    for i in 0..3 {
        up.file_on(&format!("f{i}"), i, format!("of {i}").as_bytes());
    }
    up.stop();
    up
}

/// Overwrites what a database's header points to.
fn damage(store: &Path) {
    let file = fs::OpenOptions::new().write(true).open(store.join("meta.redb")).unwrap();
    file.write_all_at(&[0xa5; 64 << 10], 4096).unwrap();
}

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

/// `spoil` makes the store in a directory one that does not open, which `said` tells of.
fn goes_on_without(mode: &[&str], spoil: fn(&Path), said: &str) {
    if !can_mount() {
        return;
    }
    let mut up = filled(mode);
    let (store, aside) = (up.store("ost1"), up.dir.path().join("aside"));
    good_copy(&store, &aside);
    spoil(&store);
    let told = up.start(mode);
    assert!(told.contains("OST 1: ") && told.contains(said), "{told}");
    assert_eq!(
        (read(&up, "f0"), read(&up, "f1"), read(&up, "f2")),
        (Ok("of 0".into()), Err(Some(libc::EIO)), Ok("of 2".into()))
    );
    for i in 0..4 {
        fs::write(up.at(&format!("new{i}")), b"new").unwrap();
    }
    status_that(&up.at(""), |s| s.contains(said) && s.contains("OST0001") && s.contains("deactivated"));
    // A server that tries it again may make a file there meanwhile.
    fs::rename(&store, up.dir.path().join("spoiled")).unwrap();
    fs::rename(&aside, &store).unwrap();
    wait_until("its store opens, and it is not served", || read(&up, "f1") == Ok("of 1".into()));
    let is_well = |s: &str| ["OST 1: ", "deactivated", "does not start"].iter().all(|bad| !s.contains(bad));
    status_that(&up.at(""), |s| s.contains("OST0001") && is_well(s));
    up.stop();
    assert_eq!(up.fsck().0, 0);
}

fn good_copy(from: &Path, to: &Path) {
    let out = std::process::Command::new("cp").args(["-a", text(from), text(to)]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

/// The superblock of another version, in block 0 of `data`.
fn newer(store: &Path) {
    let file = fs::OpenOptions::new().read(true).write(true).open(store.join("data")).unwrap();
    let mut head = [0; 128];
    file.read_exact_at(&mut head, 0).unwrap();
    head[8..12].copy_from_slice(&77u32.to_le_bytes());
    let sum = crc32c(&head[..124]).to_le_bytes();
    head[124..].copy_from_slice(&sum);
    file.write_all_at(&head, 0).unwrap();
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 })
    })
}

/// A store without its database.
fn halved(store: &Path) {
    fs::remove_file(store.join("meta.redb")).unwrap();
}

#[test]
fn one_process_goes_on_without_a_damaged_store_and_serves_it_once_it_is_well() {
    goes_on_without(&[], damage, "ost1 is damaged");
}

#[test]
fn one_process_with_shards_goes_on_without_a_damaged_store() {
    goes_on_without(&["--set", "oss.shards=2"], damage, "ost1 is damaged");
}

#[test]
fn processes_go_on_without_a_damaged_store_and_serve_it_once_it_is_well() {
    goes_on_without(&["--processes"], damage, "ost1 is damaged");
}

#[test]
fn a_store_of_a_newer_program_is_named_with_what_would_be_right() {
    goes_on_without(&[], newer, "ost1 has store format 77, this program knows up to 1: use a newer program");
}

#[test]
fn a_store_without_its_database_is_left_out() {
    goes_on_without(&["--processes"], halved, "ost1");
}

#[test]
fn a_store_that_comes_into_its_place_later_is_served_without_a_restart() {
    if !can_mount() {
        return;
    }
    for mode in [&[][..], &["--processes"]] {
        let mut up = filled(mode);
        let (store, aside) = (up.store("ost1"), up.dir.path().join("aside"));
        fs::rename(&store, &aside).unwrap();
        let told = up.start(mode);
        assert!(told.contains("OST 1: its store is not in "), "{told}");
        assert_eq!(read(&up, "f1"), Err(Some(libc::EIO)));
        fs::rename(&aside, &store).unwrap();
        wait_until("its store is there, and it is not served", || read(&up, "f1") == Ok("of 1".into()));
        up.stop();
    }
}

#[test]
fn what_another_process_serves_is_not_left_out_but_refused() {
    if !can_mount() {
        return;
    }
    for mode in [&[][..], &["--processes"]] {
        let up = filled(mode);
        let cluster = up.cluster();
        let line = ["oss", "--dir", &cluster, "--ost", "1", "--mds", "127.0.0.1:1"];
        let _other = Daemon::start(&line, &up.dir.path().join("log"));
        let (code, said) = up.start_refused(mode);
        assert!(
            code == libc::EBUSY && said.contains("ost1 is in use by another process: stop it first"),
            "{code} {said}"
        );
    }
}

#[test]
fn where_no_store_opens_nothing_is_started() {
    if !can_mount() {
        return;
    }
    for mode in [&[][..], &["--processes"]] {
        let up = filled(mode);
        (0..3).for_each(|i| damage(&up.store(&format!("ost{i}"))));
        let (_, said) = up.start_refused(mode);
        assert!(said.contains("no OST can be served: OST 0: ") && said.contains("ost2 is damaged"), "{said}");
        let (_, said) = refused(&["umount", text(&up.at(""))]);
        assert!(said.contains("is not on a Stria mount"), "{said}");
        assert!(good(&["stop", "--dir", &up.cluster()]).contains("nothing of it runs"));
    }
}
