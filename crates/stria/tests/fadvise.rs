//! What users advise about files on a running cluster: where it shows, what outlives restarts, what is refused. Needs root
//! and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::Value;
use support::{Cluster, can_mount, good, refused, text};

const MIB: usize = 1 << 20;

/// The ranges that `stria advice` shows of a file, once nothing of them is being fetched any more.
fn ranges(path: &Path) -> Vec<Value> {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let said: Value = serde_json::from_str(&good(&["advice", "--json", text(path)])).unwrap();
        let rows = said["ranges"].as_array().unwrap().clone();
        if rows.iter().all(|r| r["fetched"] == r["to_fetch"]) {
            return rows;
        }
        assert!(std::time::Instant::now() < end, "{rows:?}");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
}
fn brief(path: &Path) -> Vec<String> {
    let row = |r: &Value| format!("{} {}-{} {}", r["level"].as_str().unwrap(), r["start"], r["end"], r["ram_placed"]);
    ranges(path).iter().map(row).collect()
}

fn xattr(path: &Path, name: &str) -> Result<String, i32> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    let mut value = vec![0u8; 4096];
    // SAFETY: NUL-terminated strings and a buffer of the said length.
    let n = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    match usize::try_from(n) {
        Ok(n) => Ok(String::from_utf8(value[..n].to_vec()).unwrap()),
        Err(_) => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}
fn set_xattr(path: &Path, name: &str, value: &str) -> Result<(), i32> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    // SAFETY: NUL-terminated strings and a value of the said length.
    let rc = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}

fn write(path: &Path, mib: usize) {
    fs::write(path, vec![7u8; mib * MIB]).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn advice_is_shown_with_what_came_of_it_and_outlives_the_restart_of_every_role() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    // What was just written has its place at once.
    let fresh = at.join("fresh");
    fs::write(&fresh, vec![7u8; MIB]).unwrap();
    good(&["fadvise", "-a", "high", text(&fresh)]);
    assert_eq!(brief(&fresh), ["high 0-null 1048576"]);
    fs::remove_file(&fresh).unwrap();
    let file = at.join("f");
    good(&["setstripe", "-c", "2", "-S", "1M", text(&file)]);
    write(&file, 8);
    assert_eq!(good(&["advice", text(&file)]), format!("{}: nothing is advised\n", text(&file)));
    good(&["fadvise", "-a", "high", text(&file)]);
    let rows = ranges(&file);
    assert_eq!(rows.len(), 1, "one call on two stripes is one row: {rows:?}");
    let whole = 8 * MIB as u64;
    for key in ["ram_placed", "ram_resident", "to_fetch"] {
        assert_eq!(rows[0][key], whole, "{key} of {rows:?}");
    }
    assert_eq!((&rows[0]["level"], &rows[0]["end"], &rows[0]["tier"]), (&"high".into(), &Value::Null, &"ram".into()));
    assert_eq!(xattr(&file, "user.stria.advice"), Ok("high".into()));
    let table = good(&["advice", text(&file)]);
    assert!(table.contains("[0, EOF)") && table.contains("100%") && table.contains("8388608"), "{table}");
    // A part, at another level; without -a it is med.
    good(&["fadvise", "-s", "2M", "-l", "4M", text(&file)]);
    let parts = ["high 0-2097152 2097152", "med 2097152-6291456 4194304", "high 6291456-null 2097152"];
    assert_eq!(brief(&file), parts);
    assert_eq!(xattr(&file, "user.stria.advice"), Ok("high 0-2097152\nmed 2097152-6291456\nhigh 6291456-".into()));
    // Every role starts again.
    for (at, mut daemon) in c.mounts.drain(..) {
        good(&["umount", text(&at)]);
        daemon.child.wait().unwrap();
    }
    for i in 0..2 {
        c.oss[i].as_mut().unwrap().kill();
    }
    c.mds.as_mut().unwrap().kill();
    c.start_mds();
    (0..2).for_each(|i| c.start_oss(i));
    let at = c.mount("n", &[]);
    let file = at.join("f");
    // What was advised finds its place and is fetched again, behind the restart.
    let sum = |key: &str| ranges(&file).iter().map(|r| r[key].as_u64().unwrap()).sum::<u64>();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while sum("ram_resident") != whole {
        assert!(std::time::Instant::now() < end, "{:?}", ranges(&file));
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    assert_eq!(brief(&file), parts);
    // Truncation gives room back, growth takes it again, removal forgets everything.
    let cut = fs::OpenOptions::new().write(true).open(&file).unwrap();
    cut.set_len(2 * MIB as u64).unwrap();
    let left: u64 = ranges(&file).iter().map(|r| r["ram_placed"].as_u64().unwrap()).sum();
    assert_eq!(left, 2 * MIB as u64);
    drop(cut);
    fs::remove_file(&file).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while good(&["get_param", "--at", text(&at), "obdfilter.*.advice_stats"])
        .lines()
        .any(|l| l.starts_with("ranges: ") && l != "ranges: 0")
    {
        assert!(
            std::time::Instant::now() < end,
            "{}",
            good(&["get_param", "--at", text(&at), "obdfilter.*.advice_stats"])
        );
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    c.stop();
}

#[test]
fn new_files_get_what_their_directory_was_told() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let dir = at.join("d");
    fs::create_dir_all(dir.join("old")).unwrap();
    write(&dir.join("before"), 1);
    good(&["fadvise", "-a", "low", text(&dir)]);
    assert_eq!(xattr(&dir, "user.stria.advice"), Ok("low".into()));
    assert_eq!(xattr(&dir, "trusted.stria.advice"), Ok("low".into()));
    assert_eq!(good(&["advice", text(&dir)]), format!("{}: new files get 'low'\n", text(&dir)));
    fs::create_dir(dir.join("below")).unwrap();
    for name in ["new", "below/new"] {
        write(&dir.join(name), 2);
        // The advice is given behind the creation.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while ranges(&dir.join(name)).first().is_none_or(|r| r["ram_resident"] != 2 * MIB as u64) {
            assert!(std::time::Instant::now() < end, "{:?}", ranges(&dir.join(name)));
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        assert_eq!(xattr(&dir.join(name), "user.stria.advice"), Ok("low".into()), "{name}");
    }
    assert!(ranges(&dir.join("before")).is_empty() && xattr(&dir.join("old"), "user.stria.advice").is_err());
    // --recursive reaches what is there already.
    good(&["fadvise", "-a", "high", "--recursive", text(&dir)]);
    for name in ["before", "new", "below/new"] {
        assert_eq!(xattr(&dir.join(name), "user.stria.advice"), Ok("high".into()), "{name}");
    }
    assert_eq!(xattr(&dir.join("old"), "user.stria.advice"), Ok("high".into()));
    good(&["fadvise", "-a", "none", "-r", text(&dir)]);
    assert_eq!(xattr(&dir, "user.stria.advice"), Err(libc::ENODATA));
    assert!(ranges(&dir.join("new")).is_empty());
    // The xattrs set what the command sets.
    set_xattr(&dir.join("new"), "user.stria.advice", "med 0-1048576").unwrap();
    assert_eq!(brief(&dir.join("new")), ["med 0-1048576 1048576"]);
    set_xattr(&dir.join("new"), "trusted.stria.advice", "none").unwrap();
    assert!(ranges(&dir.join("new")).is_empty());
    c.stop();
}

/// What `ladvise` refuses.
fn ladvise_refuses(file: &Path, dir: &Path, elsewhere: &Path) {
    for (line, errno, why) in [
        (vec!["ladvise", text(file)], libc::EINVAL, "advice type"),
        (vec!["ladvise", "-a", "willneed", text(file)], libc::EINVAL, "no such advice"),
        (vec!["ladvise", "-a", "lockahead", text(file)], libc::EINVAL, "-m READ or -m WRITE"),
        (vec!["ladvise", "-a", "lockahead", "-m", "both", text(file)], libc::EINVAL, "-m both: use READ or WRITE"),
        (vec!["ladvise", "-a", "willread", "-m", "READ", text(file)], libc::EINVAL, "-m is for lockahead only"),
        (vec!["ladvise", "-a", "lockahead", "-m", "READ", "-u", text(file)], libc::EINVAL, "-u is for locknoexpand"),
        (vec!["ladvise", "-a", "lockahead", "-m", "READ", "-s", "5", "-e", "5", text(file)], libc::EINVAL, "[5, 5)"),
        (vec!["ladvise", "-a", "lockahead", "-m", "WRITE", text(elsewhere)], libc::ENOTTY, "not on a Stria mount"),
        (vec!["ladvise", "-a", "willread", text(dir)], libc::EISDIR, "is a directory"),
    ] {
        let (code, text) = refused(&line);
        assert!(code == errno && text.contains(why), "{line:?}: {code} {text}");
    }
}

#[test]
fn what_cannot_be_advised_is_refused_with_its_reason() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    let (file, big, dir) = (at.join("f"), at.join("big"), at.join("d"));
    write(&file, 1);
    write(&big, 60);
    fs::create_dir(&dir).unwrap();
    let elsewhere = c.dir.path().join("elsewhere");
    fs::write(&elsewhere, b"x").unwrap();
    let said = |line: &[&str]| refused(line);
    ladvise_refuses(&file, &dir, &elsewhere);
    for (line, errno, why) in [
        (vec!["fadvise", "-a", "highest", text(&file)], libc::EINVAL, "no such level"),
        (vec!["fadvise", "-s", "-5", text(&file)], libc::EINVAL, "-s -5"),
        (vec!["fadvise", "-s", "9", "-e", "5", text(&file)], libc::EINVAL, "[9, 5) is invalid"),
        (vec!["fadvise", "-e", "9", "-l", "5", text(&file)], libc::EINVAL, "-e and -l"),
        (vec!["fadvise", "-s", "1M", text(&file)], libc::EINVAL, "at or behind the end of the file, 1048576 bytes"),
        (vec!["fadvise", "-s", "1", text(&dir)], libc::EISDIR, "ranges are for files"),
        (vec!["fadvise", text(&elsewhere)], libc::ENOTTY, "not on a Stria mount"),
        (vec!["fadvise", text(c.dir.path())], libc::ENOTTY, "not on a Stria mount"),
        (vec!["fadvise", "/dev/null"], libc::EINVAL, "neither a file nor a directory"),
        (vec!["fadvise", text(&at.join("none"))], libc::ENOENT, "none"),
        (vec!["fadvise"], libc::EINVAL, "usage: fadvise"),
        (vec!["advice", text(&elsewhere)], libc::ENOTTY, "not on a Stria mount"),
    ] {
        let (code, text) = said(&line);
        assert!(code == errno && text.contains(why), "{line:?}: {code} {text}");
    }
    for (value, errno) in [("highest", libc::EINVAL), ("high 9-5", libc::EINVAL), ("high 2000000-", libc::EINVAL)] {
        assert_eq!(set_xattr(&file, "user.stria.advice", value), Err(errno), "{value}");
    }
    assert_eq!(set_xattr(&file, "stria.advice", "high"), Err(libc::EPERM));
    assert_eq!(set_xattr(&dir, "user.stria.advice", "high 0-5"), Err(libc::EINVAL));
    // A project has half of 64 MiB; what fits of a longer file is taken, and of the next not one byte.
    good(&["fadvise", "-a", "high", text(&big)]);
    let row = ranges(&big).remove(0);
    assert!(row["ram_placed"] == 32 * MIB as u64 && row["error"].as_str().unwrap().contains("budget"), "{row}");
    let (code, text_of) = said(&["fadvise", "-a", "high", text(&file)]);
    assert!(code == libc::ENOSPC && text_of.contains("no room left"), "{code} {text_of}");
    let row = ranges(&file).remove(0);
    assert!(row["error"].as_str().unwrap().contains("budget") && row["tier"] == "-", "{row}");
    good(&["fadvise", "-a", "none", text(&big)]);
    good(&["fadvise", "-a", "high", text(&file)]);
    good(&["set_param", "--at", text(&at), "obdfilter.*.advice_budget=0 0 0"]);
    let (code, text_of) = said(&["fadvise", text(&file)]);
    assert!(code == libc::EPERM && text_of.contains("may advise nothing"), "{code} {text_of}");
    // What is about now: into the cache, and out of it, but for what is advised.
    let cached = || {
        let said = good(&["get_param", "-n", "--at", text(&at), "obdfilter.*.cache_stats"]);
        said.lines().find_map(|l| l.strip_prefix("resident_bytes: ")?.parse::<usize>().ok()).unwrap()
    };
    good(&["ladvise", "-a", "dontneed", text(&big)]);
    good(&["ladvise", "-a", "dontneed", text(&file)]);
    assert_eq!(cached(), MIB, "advised pages stay");
    for line in [
        vec!["ladvise", "-a", "lockahead", "-m", "WRITE", "-s", "1M", "-l", "1M", text(&big)],
        vec!["ladvise", "-a", "lockahead", "-m", "read", "-b", text(&big)],
        vec!["ladvise", "-a", "locknoexpand", text(&big)],
        vec!["ladvise", "-a", "noexpand", "-u", text(&big)],
    ] {
        good(&line);
    }
    good(&["ladvise", "-a", "willread", "-l", "8M", text(&big)]);
    assert_eq!(cached(), 9 * MIB);
    c.stop();
}
