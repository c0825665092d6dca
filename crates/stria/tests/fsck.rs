//! `fsck` on stores as crashes and bad media leave them: what is a fault, what recovery does anyway, what is found.
//! Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::{Cluster, can_mount, good, refused, stria, text};

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

/// Flips one bit of a file's byte.
fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Where a file holds these bytes.
fn places(path: &Path, bytes: &[u8]) -> Vec<u64> {
    let all = fs::read(path).unwrap();
    all.windows(bytes.len()).enumerate().filter(|(_, w)| *w == bytes).map(|(at, _)| at as u64).collect()
}

#[test]
fn damaged_data_and_a_lost_superblock_are_repaired_and_the_file_is_set_aside() {
    if !can_mount() {
        return;
    }
    let (_dir, c, m) = stopped();
    during(&c, &m, || fs::write(m.join("hit"), b"what a disk forgets".repeat(400)).unwrap());
    let stores = [c.join("ost0/data"), c.join("ost1/data")];
    let (store, at) = stores.iter().find_map(|s| Some((s, *places(s, b"what a disk forgets").first()?))).unwrap();
    flip(store, at);
    flip(&stores[0], 17);
    let (code, said) = fsck(&c, &[]);
    assert!(
        code == 4 && said.contains("block 0 of the data file") && said.contains("does not match its checksum"),
        "{said}"
    );
    let (code, said) = fsck(&c, &["--repair"]);
    assert!(code == 1 && said.ends_with("0 fault(s)\n"), "{code} {said}");
    let (code, said) = fsck(&c, &[]);
    assert!(code == 0 && said.ends_with("0 fault(s)\n"), "{code} {said}");
    during(&c, &m, || {
        (0..4).for_each(|i| assert_eq!(fs::read(m.join(format!("before{i}"))).unwrap(), [7; 5000]));
        assert!(!m.join("hit").exists(), "no path leads to damaged data");
        let saved: Vec<_> = fs::read_dir(m.join("lost+found")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(saved.len(), 1, "{saved:?}");
        let mut wanted = b"what a disk forgets".repeat(400);
        wanted[0] ^= 0x10;
        assert!(fs::read(&saved[0]).unwrap() == wanted, "all that is left is there");
    });
}

#[test]
fn a_damaged_metadata_database_is_found_and_its_records_are_saved() {
    if !can_mount() {
        return;
    }
    let (_dir, c, m) = stopped();
    let store = c.join("mdt0/mdt.redb");
    let whole = fs::read(&store).unwrap();
    let mut saved = 0;
    for at in places(&store, b"before3") {
        fs::write(&store, &whole).unwrap();
        flip(&store, at);
        // A page that nobody reads any more may hold an old name.
        let (code, said) = fsck(&c, &[]);
        assert!(code == 4 && said.contains("MDT: mdt.redb: ") || code == 0, "byte {at}: {code} {said}");
        let (repaired, said) = fsck(&c, &["--repair"]);
        assert!(!said.contains("panic"), "{said}");
        match (code, repaired) {
            (0, 0) | (4, 1) => {
                let (code, again) = fsck(&c, &[]);
                assert_eq!(code, 0, "byte {at}: {said}{again}");
                if said.contains("a new database was made") {
                    saved += 1;
                    // At most the record that was hit is gone, and the file is found again.
                    let (name, found) = (m.join("before3"), m.join("lost+found"));
                    during(&c, &m, || {
                        (0..3).for_each(|i| assert_eq!(fs::read(m.join(format!("before{i}"))).unwrap(), [7; 5000]));
                        let saved = fs::read_dir(found).into_iter().flatten().map(|e| e.unwrap().path());
                        assert!([name].into_iter().chain(saved).any(|p| fs::read(p).is_ok_and(|b| b == [7; 5000])));
                    });
                }
            }
            other => panic!("byte {at}: {other:?} {said}"),
        }
    }
    assert!(saved > 0, "no flip hit a page that both commits have");
    fs::write(&store, &whole).unwrap();
    during(&c, &m, || assert_eq!(fs::read(m.join("before3")).unwrap(), [7; 5000]));
}

#[test]
fn commands_that_read_a_damaged_metadata_store_refuse_it_and_change_nothing() {
    if !can_mount() {
        return;
    }
    let (_dir, c, _m) = stopped();
    let store = c.join("mdt0/mdt.redb");
    let whole = fs::read(&store).unwrap();
    let mut hit = 0;
    for at in places(&store, b"before3") {
        fs::write(&store, &whole).unwrap();
        flip(&store, at);
        if fsck(&c, &[]).0 == 0 {
            continue;
        }
        hit += 1;
        let damaged = fs::read(&store).unwrap();
        for verb in ["backup", "export"] {
            let file = c.join(format!("{verb}{hit}"));
            let (_, said) = refused(&["mdt", verb, "--dir", text(&c), text(&file)]);
            assert!(said.contains("is damaged") && said.contains("stria fsck"), "{verb}: {said}");
            assert!(fs::read(&store).unwrap() == damaged, "{verb}: byte {at}");
        }
    }
    assert!(hit > 0, "no flip hit a page of the last commit");
    fs::write(&store, &whole).unwrap();
    good(&["mdt", "backup", "--dir", text(&c), text(&c.join("whole"))]);
}

#[test]
fn who_was_shut_out_stays_so_when_the_record_that_says_it_is_lost() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let all = c.mount("all", &[]);
    fs::write(all.join("kept"), b"kept").unwrap();
    let dir = PathBuf::from(c.path("c"));
    let lab = good(&["credential", "issue", "lab", "--dir", text(&dir)]);
    for name in ["lab", "client.key"] {
        good(&["credential", "revoke", name, "--dir", text(&dir)]);
    }
    c.stop();
    let store = dir.join("mdt0/mdt.redb");
    let whole = fs::read(&store).unwrap();
    // One of the pages that hold a cluster map is the newest commit's.
    let hits = places(&store, b"-OST0001");
    let said = hits.iter().rev().find_map(|at| {
        fs::write(&store, &whole).unwrap();
        flip(&store, *at);
        let (code, said) = fsck(&dir, &["--repair"]);
        assert!([0, 1].contains(&code), "byte {at}: {code} {said}");
        said.contains("the cluster map was lost").then_some(said)
    });
    let said = said.expect("no flip hit a page that both commits have");
    assert!(said.contains("client.key stays revoked") && said.contains("1 credential(s) stay revoked"), "{said}");
    assert_eq!(fsck(&dir, &[]).0, 0);
    c.start_mds();
    (0..2).for_each(|i| c.start_oss(i));
    let all = c.mount("all", &[]);
    assert_eq!(fs::read(all.join("kept")).unwrap(), b"kept");
    let again = c.path("again");
    fs::create_dir(&again).unwrap();
    for key in [text(&dir.join("keys/client.key")), lab.trim()] {
        let key = format!("cluster.key_file={key}");
        let (_, said) = refused(&["mount", "--dir", text(&dir), &again, "--set", &key]);
        assert!(said.contains("was revoked"), "{key}: {said}");
    }
    c.stop();
}

#[test]
fn a_damaged_ost_database_costs_the_files_that_were_hit_and_no_others() {
    if !can_mount() {
        return;
    }
    let (_dir, c, m) = stopped();
    let store = c.join("ost0/meta.redb");
    let whole = fs::read(&store).unwrap();
    let keys = (1..40).map(|i| types::ObjectId::new(types::OstIndex(0), i).0.to_key());
    let hits = keys.flat_map(|key| places(&store, &key)).map(|at| at + 3);
    // A page that nobody reads any more may hold an old row; one of the last commit alone is given up with that commit.
    let said = hits.into_iter().find_map(|at| {
        fs::write(&store, &whole).unwrap();
        flip(&store, at);
        let (code, said) = fsck(&c, &["--repair"]);
        assert!([0, 1].contains(&code), "byte {at}: {code} {said}");
        said.contains("a new database was made").then_some(said)
    });
    let said = said.expect("no flip hit a page that both commits have");
    let (code, again) = fsck(&c, &[]);
    assert_eq!(code, 0, "{said}{again}");
    assert!(c.join("ost0/meta.redb.damaged").exists(), "{said}");
    during(&c, &m, || {
        let there = |i: &usize| fs::read(m.join(format!("before{i}"))).is_ok_and(|b| b == [7; 5000]);
        assert!((0..4).filter(there).count() >= 3, "{said}");
        fs::write(m.join("after"), [1; 70_000]).unwrap();
        assert_eq!(fs::read(m.join("after")).unwrap(), [1; 70_000]);
    });
    let (code, again) = fsck(&c, &[]);
    assert_eq!(code, 0, "{said}{again}");
}

#[test]
fn a_store_of_which_a_file_is_missing_is_named_with_what_helps_and_the_others_are_repaired() {
    if !can_mount() {
        return;
    }
    let (_dir, c, m) = stopped();
    let files = (0..4).map(|i| m.join(format!("before{i}")));
    for missing in ["meta.redb", "data"] {
        let (at, aside) = (c.join("ost1").join(missing), c.join("aside"));
        fs::rename(&at, &aside).unwrap();
        // Block 0 of the other OST's data.
        flip(&c.join("ost0/data"), 20);
        let (code, said) = fsck(&c, &["--repair"]);
        assert!(
            code == 4 && said.contains("repaired: ") && said.contains("block 0 of the data file was written anew"),
            "{code} {said}"
        );
        let helps = said.lines().find(|l| l.contains("stria ost replace 1"));
        assert!(helps.is_some_and(|l| l.contains(missing) && l.contains("away") && !l.contains("mkfs")), "{said}");
        fs::rename(&aside, &at).unwrap();
        assert_eq!(fsck(&c, &[]).0, 0);
    }
    during(&c, &m, || files.for_each(|file| assert!(fs::read(file).unwrap() == [7; 5000])));
}
