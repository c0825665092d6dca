//! `fsck` on stores as crashes and bad media leave them: what is a fault, what recovery does anyway, what is found.
//! Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::{can_mount, good, stria, text};

/// A cluster of two OSTs with some files; stopped. Directory and mount point.
fn stopped() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (c, m) = (dir.path().join("c"), dir.path().join("m"));
    fs::create_dir(&m).unwrap();
    good(&["mkfs", "--dir", text(&c), "--osts", "2"]);
    during(&c, &m, || (0..4).for_each(|i| fs::write(m.join(format!("before{i}")), [7; 5000]).unwrap()));
    (dir, c, m)
}

/// Brings the cluster up for `work`.
fn during(c: &Path, m: &Path, work: impl FnOnce()) {
    good(&["up", "--dir", text(c), "--mount", text(m), "--background"]);
    work();
    good(&["umount", text(m)]);
}

/// Exit code and what it said.
fn fsck(c: &Path, more: &[&str]) -> (i32, String) {
    let out = stria(&[&["fsck", "--dir", text(c), "--data"], more].concat());
    let said = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap_or(-1), String::from_utf8(said).unwrap())
}

#[test]
fn objects_of_creates_that_a_crash_undid_are_no_faults_and_recovery_removes_them() {
    if !can_mount() {
        return;
    }
    let (_dir, c, m) = stopped();
    // The metadata server's last commits are lost, the OSTs' are not: as after a crash between the two.
    let (store, kept) = (c.join("mdt0/mdt.redb"), c.join("kept"));
    fs::copy(&store, &kept).unwrap();
    during(&c, &m, || (0..6).for_each(|i| fs::write(m.join(format!("lost{i}")), [9; 3000]).unwrap()));
    fs::copy(&kept, &store).unwrap();
    let (code, said) = fsck(&c, &[]);
    assert!(code == 0 && said.contains("0 fault(s)"), "{code} {said}");
    let left: u32 = said
        .lines()
        .filter_map(|l| l.split_once("recovery will remove ")?.1.split(' ').next()?.parse::<u32>().ok())
        .sum();
    assert_eq!(left, 6, "{said}");
    // Recovery does what was said, and what was there before is untouched.
    during(&c, &m, || {
        assert_eq!(fs::read_dir(&m).unwrap().count(), 4);
        assert_eq!(fs::read(m.join("before3")).unwrap(), [7; 5000]);
        fs::write(m.join("after"), b"x").unwrap();
    });
    let (code, said) = fsck(&c, &[]);
    assert!(code == 0 && !said.contains("recovery will remove"), "{code} {said}");
}
