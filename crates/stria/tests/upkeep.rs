//! Looking after stores of a running cluster: backups of the metadata store, and reading everything against its checksums.
//! Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use support::up::Up;
use support::{Cluster, can_mount, good, refused, status_that, stria, text};

fn content(i: usize) -> Vec<u8> {
    (0..20_000 + i).map(|n| ((n * 7 + i) ^ (n >> 8)) as u8).collect()
}

/// Exit code and what it said.
fn run(arguments: &[&str]) -> (i32, String) {
    let out = stria(arguments);
    (out.status.code().unwrap_or(-1), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
}

#[test]
fn a_backup_made_under_load_brings_back_every_file_of_before_and_loses_none_of_after() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let (dir, file, second) = (c.path("c"), c.path("backup"), c.path("second"));
    (0..30).for_each(|i| fs::write(at.join(format!("kept{i}")), content(i)).unwrap());
    // Writers go on while the backup is made.
    let (stop, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(SeqCst) {
                let i = made.load(SeqCst);
                fs::write(at.join(format!("load{i}")), content(i)).unwrap();
                made.store(i + 1, SeqCst);
            }
        });
        let said = good(&["mdt", "backup", "--dir", &dir, &file]);
        assert!(said.contains("records as of transaction"), "{said}");
        let until = made.load(SeqCst) + 20;
        while made.load(SeqCst) < until {
            std::thread::yield_now();
        }
        stop.store(true, SeqCst);
    });
    let made = made.load(SeqCst);
    let (code, said) = refused(&["mdt", "backup", "--dir", &dir, &file]);
    assert!(code == libc::EEXIST && said.contains("a backup is a new file"), "{said}");
    fs::remove_file(at.join("kept29")).unwrap();
    fs::write(at.join("kept28"), b"written again after the backup").unwrap();
    let (code, said) = refused(&["mdt", "restore", "--dir", &dir, &file]);
    assert!(code == libc::EBUSY && said.contains("stop"), "{code} {said}");
    c.stop();
    let (code, said) = refused(&["mdt", "restore", "--dir", &dir, &file]);
    assert!(code == libc::ENOTEMPTY && said.contains("move what is there away first"), "{code} {said}");
    // Without a server as well; then the store is gone for good.
    good(&["mdt", "backup", "--dir", &dir, &second]);
    fs::remove_dir_all(Path::new(&dir).join("mdt0")).unwrap();
    let said = good(&["mdt", "restore", "--dir", &dir, &file]);
    assert!(said.contains("records as of transaction"), "{said}");
    c.start_mds();
    (0..2).for_each(|i| c.start_oss(i));
    let at = c.mount("m", &[]);
    (0..28).for_each(|i| assert!(fs::read(at.join(format!("kept{i}"))).unwrap() == content(i), "kept{i}"));
    assert_eq!(fs::read(at.join("kept28")).unwrap(), b"written again after the backup");
    fs::write(at.join("after"), content(99)).unwrap();
    let there: Vec<usize> = (0..made).filter(|i| at.join(format!("load{i}")).exists()).collect();
    assert!(there.len() < made, "some of the load came after the backup");
    c.stop();
    let (code, said) = run(&["fsck", "--dir", &dir, "--data", "--repair"]);
    assert!(code == 1 && said.ends_with("0 fault(s)\n"), "{code} {said}");
    let (code, said) = run(&["fsck", "--dir", &dir, "--data"]);
    assert!(code == 0 && said.ends_with("0 fault(s)\n"), "{code} {said}");
    c.start_mds();
    (0..2).for_each(|i| c.start_oss(i));
    let at = c.mount("m", &[]);
    (0..28).for_each(|i| assert!(fs::read(at.join(format!("kept{i}"))).unwrap() == content(i), "kept{i}"));
    assert!(fs::read(at.join("after")).unwrap() == content(99));
    assert!(!at.join("kept29").exists(), "its data were removed after the backup: its path leads to nothing");
    let saved: Vec<Vec<u8>> =
        fs::read_dir(at.join("lost+found")).unwrap().map(|e| fs::read(e.unwrap().path()).unwrap()).collect();
    for i in (0..made).filter(|i| !there.contains(i)) {
        assert!(saved.contains(&content(i)), "load{i} is newer than the backup and in lost+found");
    }
    c.stop();
}

#[test]
fn a_scrub_beside_work_finds_a_flipped_byte_and_status_names_it() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let dir = c.path("c");
    for i in 0..8 {
        let mut file = fs::File::create(at.join(format!("f{i}"))).unwrap();
        file.write_all(&content(i)).unwrap();
        file.sync_all().unwrap();
    }
    fs::write(at.join("a-name-like-no-other"), "").unwrap();
    good(&["sync", text(&at)]);
    let (code, said) = run(&["scrub", "--dir", &dir]);
    assert!(code == 0 && said.matches(" 0 fault(s)").count() == 3, "{code} {said}");
    // One byte on the medium, below the running server.
    let wanted = content(5);
    let (store, place) = (0..2)
        .find_map(|i| {
            let store = Path::new(&dir).join(format!("ost{i}/data"));
            let bytes = fs::read(&store).unwrap();
            let place = bytes.windows(4096).position(|w| w == &wanted[4096..8192])?;
            Some((store, place as u64))
        })
        .unwrap();
    let raw = fs::File::options().read(true).write(true).open(&store).unwrap();
    let mut byte = [0];
    raw.read_exact_at(&mut byte, place + 77).unwrap();
    raw.write_all_at(&[byte[0] ^ 1], place + 77).unwrap();
    raw.sync_all().unwrap();
    let (code, said) = run(&["scrub", "--dir", &dir, "--rate", "1000"]);
    assert!(code == 4 && said.contains("1 fault(s)") && said.contains(": block 1"), "{code} {said}");
    status_that(&at, |s| s.contains("scrub complete") && s.contains("1 fault(s): object"));
    // One byte in the database of a running metadata server, which has the page in memory.
    let store = Path::new(&dir).join("mdt0/mdt.redb");
    let bytes = fs::read(&store).unwrap();
    let name = b"a-name-like-no-other";
    let places: Vec<usize> = (0..bytes.len() - name.len()).filter(|i| bytes[*i..].starts_with(name)).collect();
    let raw = fs::File::options().write(true).open(&store).unwrap();
    let write = |change: u8| places.iter().for_each(|i| raw.write_all_at(&[bytes[*i] ^ change], *i as u64).unwrap());
    write(1);
    let (code, said) = run(&["scrub", "--dir", &dir, "--rate", "1000"]);
    assert!(code == 4 && said.contains("the page of table mdt at byte "), "{code} {said}");
    assert!(at.join("a-name-like-no-other").exists());
    write(0);
    // It can be begun for one target, watched and ended.
    let (code, said) = refused(&["scrub", "--dir", &dir, "--ost", "7"]);
    assert!(code == libc::ENOENT && said.contains("has 2 OSTs"), "{said}");
    good(&["scrub", "--dir", &dir, "--ost", "0", "--rate", "1", "--background"]);
    good(&["scrub", "--dir", &dir, "--ost", "0", "--stop"]);
    let said = good(&["get_param", "-n", "--at", text(&at), "obdfilter.*-OST0000.scrub"]);
    assert!(said.starts_with("status: stopped") || said.starts_with("status: complete"), "{said}");
    assert!(fs::read(at.join("f4")).unwrap() == content(4));
    c.stop();
    let (code, said) = refused(&["scrub", "--dir", &dir]);
    assert!(code == libc::ENOTCONN && said.contains("stria mount --dir"), "{said}");
}

#[test]
fn a_scrub_fails_for_a_target_that_is_away_and_names_it() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let dir = c.path("c");
    fs::write(at.join("f"), content(1)).unwrap();
    good(&["sync", text(&at)]);
    c.oss[1].as_mut().unwrap().kill();
    let (code, said) = run(&["scrub", "--dir", &dir]);
    assert!(code != 0 && said.contains("-OST0001 is not served"), "{code} {said}");
    assert!(said.contains("-OST0000: complete") && said.contains("-MDT0000: complete"), "{said}");
    c.start_oss(1);
    assert!(fs::read(at.join("f")).unwrap() == content(1));
    c.stop();
}

#[test]
fn a_scrub_and_a_backup_name_the_metadata_server_that_is_away() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    let mds = c.mds.as_ref().unwrap().child.id() as i32;
    // SAFETY: signals to a child that was not collected yet.
    let send = |signal| unsafe { libc::kill(mds, signal) };
    // It keeps its store, so that the backup is asked of it.
    send(libc::SIGSTOP);
    let shown = || good(&["status", text(&at)]);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while shown().lines().any(|l| l.contains("MDT0000 at ") && l.contains(": full")) {
        assert!(std::time::Instant::now() < end, "{}", shown());
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    let (dir, file) = (c.path("c"), c.path("backup"));
    for line in [&["scrub", "--dir", &dir][..], &["mdt", "backup", "--dir", &dir, &file]] {
        let (_, said) = refused(line);
        assert!(said.contains("no answer came from") && said.contains("-MDT0000"), "{line:?}: {said}");
    }
    send(libc::SIGCONT);
    c.stop();
}

/// Starts all servers, and mounts.
fn serve(c: &mut Cluster) -> std::path::PathBuf {
    c.start_mds();
    (0..2).for_each(|i| c.start_oss(i));
    c.mount("m", &[])
}

#[test]
fn a_backup_of_before_an_ost_was_replaced_knows_the_new_store_when_it_is_put_back() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let (dir, file) = (c.path("c"), c.path("backup"));
    let on = |ost: &str, path: &Path| {
        good(&["setstripe", "-i", ost, "-c", "1", text(path)]);
        fs::write(path, content(3)).unwrap();
    };
    on("0", &at.join("stays"));
    on("1", &at.join("lost"));
    good(&["mdt", "backup", "--dir", &dir, &file]);
    c.stop();
    fs::remove_dir_all(Path::new(&dir).join("ost1")).unwrap();
    good(&["ost", "replace", "1", "--dir", &dir]);
    let at = serve(&mut c);
    on("1", &at.join("later"));
    c.stop();
    fs::remove_dir_all(Path::new(&dir).join("mdt0")).unwrap();
    good(&["mdt", "restore", "--dir", &dir, &file]);
    let at = serve(&mut c);
    on("1", &at.join("again"));
    assert!(fs::read(at.join("again")).unwrap() == content(3) && fs::read(at.join("stays")).unwrap() == content(3));
    assert_eq!(fs::read(at.join("lost")).unwrap_err().raw_os_error(), Some(libc::EIO));
    c.stop();
    let (code, said) = run(&["fsck", "--dir", &dir, "--data", "--repair"]);
    assert!(code == 1 && said.ends_with("0 fault(s)\n"), "{code} {said}");
    let at = serve(&mut c);
    let saved: Vec<Vec<u8>> =
        fs::read_dir(at.join("lost+found")).unwrap().map(|e| fs::read(e.unwrap().path()).unwrap()).collect();
    assert!(saved.contains(&content(3)), "what was written between backup and restore is in lost+found");
    c.stop();
}

#[test]
fn what_servers_would_use_on_their_own_mount_is_refused_and_the_mount_goes_on() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "1"]);
    let (dir, mount, link) = (up.cluster(), up.at(""), up.dir.path().join("link"));
    std::os::unix::fs::symlink(&mount, &link).unwrap();
    let is_refused = |(code, said): (i32, String)| {
        assert!(said.contains(", a mount of a Stria file system"), "{code} {said}");
        code
    };
    for file in [up.at("backup"), link.join("backup")] {
        assert_eq!(is_refused(refused(&["mdt", "backup", "--dir", &dir, text(&file)])), libc::EDEADLK);
        is_refused(refused(&["set_param", "--at", text(&mount), &format!("mdt.*.backup={}", file.display())]));
        assert!(good(&["get_param", "-n", "--at", text(&mount), "mdt.*.backup"]).starts_with("failed "));
    }
    fs::create_dir(up.at("store")).unwrap();
    std::os::unix::fs::symlink(up.at("store"), up.store("ost1")).unwrap();
    is_refused(refused(&["ost", "add", "--dir", &dir]));
    fs::remove_file(up.store("ost1")).unwrap();
    fs::write(up.at("f"), content(1)).unwrap();
    assert!(fs::read(up.at("f")).unwrap() == content(1) && !up.at("backup").exists());
    assert_eq!(fs::read_dir(up.at("store")).unwrap().count(), 0);
    let tier = format!("store.fast.dir={}", text(&link));
    good(&["mdt", "backup", "--dir", &dir, text(&up.dir.path().join("backup"))]);
    up.stop();
    // Where the daemon of another mount of it would have to wait for the server that starts.
    fs::remove_file(&link).unwrap();
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    std::os::unix::fs::symlink(&at, &link).unwrap();
    is_refused(up.start_refused(&["--set", &tier, "--set", "store.fast.size=64M"]));
    c.stop();
}
