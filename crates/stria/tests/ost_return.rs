//! OSTs come back into service by themselves: one with a fast tier whose store was replaced or did not open at first, and all that run on while the
//! metadata store is put back from a backup. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use support::up::Up;
use support::{Cluster, can_mount, good, in_log, status_that, stria, text};

/// Makes a file with its only object on that OST, once the OST takes one.
fn file_on(at: &Path, ost: u16, bytes: &[u8]) {
    let end = Instant::now() + Duration::from_secs(60);
    while !stria(&["setstripe", "-c", "1", "-i", &ost.to_string(), text(at)]).status.success() {
        assert!(Instant::now() < end, "OST {ost} takes no file");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    fs::write(at, bytes).unwrap();
}

/// Settings of a fast tier in a directory that is there.
fn with_tier(up: &Up) -> (String, String) {
    let fast = up.dir.path().join("fast");
    fs::create_dir(&fast).unwrap();
    (format!("store.fast.dir={}", text(&fast)), text(&fast).into())
}

#[test]
fn an_ost_with_a_fast_tier_is_replaced_and_served_in_the_same_process() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    let (set, _) = with_tier(&up);
    let sets = ["--set", &set, "--set", "store.fast.size=16M", "--set", "store.capacity_bytes=256M"];
    up.start(&[&["--osts", "2"], &sets[..]].concat());
    up.file_on("lost", 1, b"lost");
    up.stop();
    fs::rename(up.store("ost1"), up.dir.path().join("old")).unwrap();
    up.start(&sets);
    status_that(&up.at(""), |s| s.contains("ost replace 1"));
    let said = good(&["ost", "replace", "1", "--dir", &up.cluster()]);
    assert!(said.contains("takes files"), "{said}");
    file_on(&up.at("new"), 1, b"new");
    let tiers = good(&["get_param", "--at", text(&up.at("")), "obdfilter.*OST0001.fast_stats"]);
    assert!(tiers.contains("state: on"), "{tiers}");
    up.stop();
}

#[test]
fn an_ost_whose_fast_tier_was_a_mistake_at_first_is_served_once_that_is_mended() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    let (set, fast) = with_tier(&up);
    let sets = ["--set", &set, "--set", "store.fast.size=16M", "--set", "store.capacity_bytes=256M"];
    up.start(&[&["--osts", "2"], &sets[..]].concat());
    up.file_on("kept", 1, b"kept");
    up.stop();
    let aside = up.dir.path().join("aside");
    fs::rename(up.store("ost1"), &aside).unwrap();
    up.start(&sets);
    status_that(&up.at(""), |s| s.contains("ost replace 1"));
    let thesis = format!("{fast}/stria-OST0001/thesis.tex");
    fs::write(&thesis, b"mine").unwrap();
    fs::rename(&aside, up.store("ost1")).unwrap();
    let said = in_log(&up.store("run/up.log"), "thesis.tex");
    assert!(said.contains("not a fast tier"), "{said}");
    fs::remove_file(&thesis).unwrap();
    file_on(&up.at("new"), 1, b"new");
    assert_eq!(fs::read(up.at("kept")).unwrap(), b"kept");
    up.stop();
}

impl Backed {
    /// Stops the metadata server, loses its store, and puts the backup back.
    fn lose_and_restore(&mut self) {
        self.c.mds.as_mut().unwrap().kill();
        let dir = self.c.path("c");
        fs::remove_dir_all(Path::new(&dir).join("mdt0")).unwrap();
        good(&["mdt", "restore", "--dir", &dir, &self.file]);
    }
    fn restart_mds(&mut self) {
        self.c.mds.as_mut().unwrap().kill();
        self.c.start_mds();
    }
}

/// A cluster whose OST runs on all the time, and a backup of its metadata.
struct Backed {
    c: Cluster,
    file: String,
}

/// Works on a mount that there is only for that.
fn on_a_mount<R>(c: &mut Cluster, name: &str, work: impl FnOnce(&Path) -> R) -> R {
    let done = work(&c.mount(name, &[]));
    let (at, mut daemon) = c.mounts.pop().unwrap();
    good(&["umount", text(&at)]);
    daemon.child.wait().unwrap();
    done
}

/// Makes a file of its own by a mount of its own, which waits for what the metadata server waits for.
fn makes_a_file(c: &mut Cluster, name: &str) -> String {
    on_a_mount(c, name, |at| {
        file_on(&at.join(name), 0, name.as_bytes());
        good(&["path2fid", text(&at.join(name))])
    })
}

#[test]
fn one_backup_that_is_put_back_twice_serves_beside_an_ost_that_ran_on_and_gives_no_fid_out_twice() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    makes_a_file(&mut c, "before");
    let (dir, file) = (c.path("c"), c.path("backup"));
    on_a_mount(&mut c, "backs", |_| good(&["mdt", "backup", "--dir", &dir, &file]));
    let mut b = Backed { c, file };
    let mut fids = Vec::new();
    for life in 0..2 {
        b.lose_and_restore();
        b.c.start_mds();
        fids.push(makes_a_file(&mut b.c, &format!("first{life}")));
        for again in 0..2 {
            b.restart_mds();
            fids.push(makes_a_file(&mut b.c, &format!("again{life}{again}")));
        }
    }
    let all = fids.len();
    fids.sort();
    fids.dedup();
    assert_eq!(fids.len(), all, "{fids:?}");
    b.c.stop();
}

#[test]
fn an_ost_that_ran_on_while_a_backup_of_before_it_was_known_was_put_back_takes_files() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    c.stop();
    let dir = c.path("c");
    // As made, by a cluster of the same name and number that no OST ever came to.
    fs::remove_dir_all(&dir).unwrap();
    good(&["mkfs", "--dir", &dir, "--osts", "1"]);
    let file = c.path("backup");
    good(&["mdt", "backup", "--dir", &dir, &file]);
    c.start_mds();
    c.start_oss(0);
    makes_a_file(&mut c, "before");
    let mut b = Backed { c, file };
    b.lose_and_restore();
    b.c.start_mds();
    makes_a_file(&mut b.c, "after");
    b.c.stop();
}
