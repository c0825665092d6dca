//! A cluster grows and shrinks while programs run: OSTs are added, emptied and removed; servers and commands are killed meanwhile. Needs root and
//! `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use support::up::Up;
use support::{Cluster, Daemon, can_mount, good, own_fsname, refused, stria, text};

const BLOCK: usize = 8192;

fn ost_of(path: &Path) -> String {
    good(&["getstripe", "-i", text(path)]).trim().to_string()
}

/// Bytes of the file system, as df(1) has them.
fn blocks(at: &Path) -> u64 {
    let path = std::ffi::CString::new(text(at)).unwrap();
    // SAFETY: an all-zero structure that the call fills, and a NUL-terminated path.
    let (rc, s) = unsafe {
        let mut s: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut s), s)
    };
    assert_eq!(rc, 0);
    s.f_blocks * s.f_frsize
}

/// A file with one stripe on that OST, its bytes there: what OSTs count does not know of pages in a mount's cache.
fn file_on(at: &Path, ost: u16, bytes: &[u8]) {
    good(&["setstripe", "-c", "1", "-i", &ost.to_string(), text(at)]);
    fill(at, bytes);
}

/// The same on an OST whose server has just started: servers announce their OSTs once they serve.
fn file_on_new(at: &Path, ost: u16, bytes: &[u8], server: &Daemon) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !stria(&["setstripe", "-c", "1", "-i", &ost.to_string(), text(at)]).status.success() {
        assert!(std::time::Instant::now() < until, "{}", server.said());
    }
    fill(at, bytes);
}

fn fill(at: &Path, bytes: &[u8]) {
    let mut file = fs::File::create(at).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

const SIZE: &str = "store.capacity_bytes=256M";

#[test]
fn an_added_ost_is_counted_and_used_at_once_and_comes_back_with_the_next_start() {
    if !can_mount() {
        return;
    }
    for mode in [&["--processes"][..], &[]] {
        let mut up = Up::new();
        up.start(&[&["--osts", "2", "--set", SIZE], mode].concat());
        let (dir, at) = (up.cluster(), up.at(""));
        let before = blocks(&at);
        let said = good(&["ost", "add", "--dir", &dir, "--count", "2"]);
        assert!(said.contains("OST 2,3 of 'stria' takes files"), "{said}");
        assert_eq!(blocks(&at), before * 2, "df(1) counts it");
        let shown = good(&["df", text(&at)]);
        assert!(shown.contains("OST0002") && shown.contains("OST0003"), "{shown}");
        assert!(good(&["status", text(&at)]).contains("OST0003"));
        file_on(&up.at("there"), 3, b"three");
        let wide = up.at("wide");
        good(&["setstripe", "-c", "-1", text(&wide)]);
        assert_eq!(good(&["getstripe", "-c", text(&wide)]).trim(), "4");
        for (line, errno, why) in [
            (vec!["--index", "2"], libc::EEXIST, "OST 2 is part of 'stria' already"),
            (vec!["--index", "100"], libc::EEXIST, "would leave a gap"),
            (vec!["--count", "0"], 2, "1..=512"),
        ] {
            let (code, said) = refused(&[&["ost", "add", "--dir", &dir], &line[..]].concat());
            assert!(code == errno && said.contains(why), "{line:?}: {code} {said}");
        }
        foreign_places(&up, &dir);
        up.stop();
        up.start(mode);
        assert_eq!(fs::read(up.at("there")).unwrap(), b"three");
        up.stop();
        is_whole(&up);
        let said = good(&["ost", "add", "--dir", &dir]);
        assert!(said.contains("from the next start on"), "{said}");
        up.start(mode);
        file_on(&up.at("later"), 4, b"four");
        up.stop();
    }
}

fn is_whole(up: &Up) {
    let (code, said) = up.fsck();
    assert!(code == 0 && said.ends_with("\n0 fault(s)\n"), "{said}");
}

/// A place in which something lies is left alone.
fn foreign_places(up: &Up, dir: &str) {
    let other = Up::new();
    good(&["mkfs", "--dir", &other.cluster(), "--osts", "1", "--set", "cluster.fsname=other"]);
    let place = up.store("ost4");
    fs::rename(other.store("ost0"), &place).unwrap();
    let (code, said) = refused(&["ost", "add", "--dir", dir]);
    assert!(code == libc::ENOTEMPTY && said.contains("OST 0 of file system 'other'"), "{said}");
    fs::remove_dir_all(&place).unwrap();
    fs::create_dir(&place).unwrap();
    fs::write(place.join("photo.jpg"), b"x").unwrap();
    let (code, said) = refused(&["ost", "add", "--dir", dir]);
    assert!(code == libc::ENOTEMPTY && said.contains("something that is no store"), "{said}");
    fs::remove_dir_all(&place).unwrap();
    let (code, said) = refused(&["ost", "add", "--dir", text(other.dir.path())]);
    assert!(code == libc::ENOENT && said.contains("is not a cluster's directory"), "{said}");
}

fn block(number: usize, turn: u64) -> Vec<u8> {
    let mut bytes = vec![turn as u8; BLOCK];
    bytes[..8].copy_from_slice(&(number as u64).to_ne_bytes());
    bytes
}

#[test]
fn an_ost_is_emptied_while_programs_write_and_leaves_for_good() {
    if !can_mount() {
        return;
    }
    for mode in [&[][..], &["--processes"]] {
        let mut up = Up::new();
        up.start(&[&["--osts", "3", "--set", SIZE], mode].concat());
        let (dir, at) = (up.cluster(), up.at(""));
        for i in 0..40 {
            file_on(&up.at(&format!("f{i}")), 1, &vec![i as u8; 100_000]);
        }
        file_on(&up.at("big"), 1, &vec![9; 24 << 20]);
        fs::create_dir(up.at("d")).unwrap();
        file_on(&up.at("d/the file"), 1, &vec![3; BLOCK * 64]);
        let listed = good(&["ost", "files", "1", text(&at)]);
        assert!(listed.contains(text(&up.at("d/the file"))) && listed.contains("42 file(s)"), "{listed}");
        let (code, said) = refused(&["ost", "remove", "1", text(&at)]);
        assert!(code == libc::ENOTEMPTY && said.contains("42 files have objects on OST 1"), "{said}");
        let after = up.at("after");
        file_on(&after, 1, b"a refused removal changes nothing");
        let stop = AtomicBool::new(false);
        let written = std::thread::scope(|s| {
            let writer = s.spawn(|| {
                let file = fs::OpenOptions::new().write(true).open(up.at("d/the file")).unwrap();
                let mut turn = 0;
                while !stop.load(Ordering::Relaxed) || turn == 0 {
                    turn += 1;
                    (0..64).for_each(|n| file.write_all_at(&block(n, turn), (n * BLOCK) as u64).unwrap());
                }
                turn
            });
            drain_twice(&dir);
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        let bytes = fs::read(up.at("d/the file")).unwrap();
        assert!((0..64).all(|n| bytes[n * BLOCK..(n + 1) * BLOCK] == block(n, written)), "what was written is there");
        assert!((0..40).all(|i| fs::read(up.at(&format!("f{i}"))).unwrap() == vec![i as u8; 100_000]));
        let before = blocks(&at);
        let said = good(&["ost", "remove", "1", "--dir", &dir]);
        assert!(said.contains("has left 'stria'"), "{said}");
        assert_eq!(blocks(&at) * 3, before * 2, "df(1) counts it no more");
        left(&up, &at);
        up.stop();
        is_whole(&up);
        as_if_interrupted(&up);
        up.start(mode);
        left(&up, &at);
        let said = good(&["ost", "add", "--dir", &dir]);
        assert!(said.contains("OST 3 of 'stria' takes files"), "an index is not used again: {said}");
        let (code, said) = refused(&["ost", "add", "--dir", &dir, "--index", "1"]);
        assert!(code == libc::EEXIST && said.contains("was removed"), "{said}");
        file_on(&up.at("new"), 3, b"new");
        up.stop();
        is_whole(&up);
    }
}

/// The directory as a command leaves it that was killed after the metadata server had taken OST 1 out.
fn as_if_interrupted(up: &Up) {
    let file = up.store("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    let struck = text.lines().find(|l| l.starts_with("ost1 = ")).unwrap();
    let text = text.replace(&format!("[removed]\n{struck}\n"), "");
    let text = text.replace("[stores]\n", &format!("[stores]\n{struck}\n"));
    fs::write(&file, text.replace("format = ", "leaving = 1\nformat = ")).unwrap();
}

/// A drain that is killed amid, and then two at once.
fn drain_twice(dir: &str) {
    let program = env!("CARGO_BIN_EXE_stria");
    let drain = ["ost", "drain", "1", "--dir", dir];
    let mut slow = Command::new(program).args(drain).args(["--rate", "4"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(slow.stdout.take().unwrap()), &mut line).unwrap();
    assert!(line.contains("OST 1 takes no new files"), "{line}");
    slow.kill().unwrap();
    slow.wait().unwrap();
    let mut both: Vec<_> = (0..2)
        .map(|_| Command::new(program).args(drain).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for child in both.drain(..) {
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(
            out.status.success() && said.contains("has no files any more"),
            "{said} {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

/// OST 1 is not there, and the others are.
fn left(up: &Up, at: &Path) {
    let shown = good(&["df", text(at)]);
    assert!(!shown.contains("OST0001") && shown.contains("OST0002"), "{shown}");
    assert!(!good(&["status", text(at)]).contains("OST0001"));
    let (code, said) = refused(&["setstripe", "-i", "1", text(&up.at("there"))]);
    assert!(code == libc::EINVAL && said.contains("no OST with index 1"), "{said}");
    assert_eq!(fs::read(up.at("big")).unwrap(), vec![9; 24 << 20]);
    let made = up.at("made");
    fs::write(&made, b"x").unwrap();
    assert_ne!(ost_of(&made), "1");
    fs::remove_file(&made).unwrap();
}

#[test]
fn what_cannot_be_emptied_or_removed_is_refused_with_numbers() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2", "--set", "store.capacity_bytes=64M"]);
    let at = up.at("");
    file_on(&up.at("a"), 0, &vec![1; 40 << 20]);
    file_on(&up.at("b"), 1, &vec![2; 40 << 20]);
    for (line, errno, why) in [
        (["drain", "0"], libc::ENOSPC, "OST 0 has 4"),
        (["drain", "7"], libc::ENOENT, "OST 7 is not part of file system 'stria': it has 0, 1"),
        (["drain", "x"], libc::EINVAL, "'x' is not an OST"),
        (["remove", "0"], libc::ENOTEMPTY, "1 files have objects on OST 0"),
        (["files", "9"], libc::ENOENT, "it has 0, 1"),
    ] {
        let (code, said) = refused(&["ost", line[0], line[1], text(&at)]);
        assert!(code == errno && said.contains(why), "{line:?}: {code} {said}");
    }
    file_on(&up.at("still"), 0, b"takes files");
    for name in ["a", "b", "still"] {
        fs::remove_file(up.at(name)).unwrap();
    }
    good(&["ost", "drain", "stria-OST0000", "--remove", text(&at)]);
    let (code, said) = refused(&["ost", "drain", "1", text(&at)]);
    assert!(code == libc::EBUSY && said.contains("the last one"), "{said}");
    let (code, said) = refused(&["ost", "remove", "1", text(&at)]);
    assert!(code == libc::EBUSY && said.contains("the last one"), "{said}");
    up.stop();
}

#[test]
fn an_ost_leaves_when_another_command_has_done_what_it_does() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2"]);
    let other = fs::File::open(up.store("changes.lock")).unwrap();
    other.lock().unwrap();
    let mut drain = Command::new(env!("CARGO_BIN_EXE_stria"));
    drain.args(["ost", "drain", "1", "--remove", text(&up.at(""))]).stdout(Stdio::piped());
    let mut drain = drain.spawn().unwrap();
    let said = std::io::BufReader::new(drain.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(said).map(Result::unwrap);
    assert!(lines.any(|line| line.contains("adds or removes OSTs of it now: waiting for it")), "it did not wait");
    other.unlock().unwrap();
    assert!(lines.any(|line| line.starts_with("OST 1 (stria-OST0001) has left")));
    assert!(drain.wait().unwrap().success());
    assert!(!good(&["status", text(&up.at(""))]).contains("OST0001"));
    up.stop();
}

#[test]
fn a_file_that_another_file_system_hides_is_named_and_the_drain_ends() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2"]);
    fs::create_dir(up.at("dir")).unwrap();
    file_on(&up.at("dir/hidden"), 0, b"there");
    file_on(&up.at("seen"), 0, b"there");
    let over = up.at("dir");
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&over).status().unwrap().success());
    let (code, said) = refused(&["ost", "drain", "0", text(&up.at(""))]);
    assert!(code == libc::ENOENT && said.contains("1 file(s) still have objects"), "{code} {said}");
    assert_eq!(up.ost_of("seen"), "1");
    assert!(Command::new("umount").arg(&over).status().unwrap().success());
    good(&["ost", "drain", "0", text(&up.at(""))]);
    assert_eq!(fs::read(up.at("dir/hidden")).unwrap(), b"there");
    up.stop();
}

#[test]
fn a_removal_is_done_or_not_whenever_the_metadata_server_is_killed_and_a_lost_osts_files_are_named() {
    if !can_mount() {
        return;
    }
    let fs_name = own_fsname();
    let mut c = Cluster::named(4, &fs_name);
    let a = c.mount("a", &[]);
    let dir = c.path("c");
    file_on(&a.join("on 3"), 3, b"lost");
    c.oss[3].as_mut().unwrap().kill();
    let listed = good(&["ost", "files", "3", text(&a)]);
    assert!(listed.contains("on 3\n") && listed.contains("1 file(s)"), "{listed}");
    let (code, said) = refused(&["ost", "remove", "3", text(&a)]);
    assert!(code == libc::ENOTEMPTY && said.contains("on 3"), "{said}");
    fs::remove_file(a.join("on 3")).unwrap();
    for ost in ["3", "2", "1"] {
        std::thread::scope(|s| {
            let removal = s.spawn(|| good(&["ost", "remove", ost, "--dir", &dir]));
            for _ in 0..3 {
                c.mds.as_mut().unwrap().kill();
                c.start_mds();
            }
            assert!(removal.join().unwrap().contains("has left"));
        });
        let shown = good(&["df", text(&a)]);
        assert!(!shown.contains(&format!("OST000{ost}")) && shown.contains("OST0000"), "{shown}");
    }
    fs::write(a.join("x"), b"x").unwrap();
    assert_eq!(ost_of(&a.join("x")), "0");
    c.oss[1].as_mut().unwrap().kill();
    let (code, said) = refused(&["oss", "--dir", &dir, "--ost", "1"]);
    assert!(code == libc::ENOENT && said.contains("has no OST 1"), "{said}");
    c.oss.truncate(1);
    c.stop();
    good(&["fsck", "--dir", &dir]);
}

#[test]
fn machines_with_servers_of_their_own_add_osts_and_let_removed_ones_go() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let a = c.mount("a", &[]);
    let (dir, new) = (c.path("c"), c.path("new machine"));
    let (mds, key) = (c.mds.as_ref().unwrap().word.clone(), format!("{dir}/keys/admin.key"));
    let mds = mds.trim_start_matches("tcp:");
    let (code, said) = refused(&["ost", "add", "--dir", &new, "--mds", mds]);
    assert!(code == libc::ENOENT && said.contains("is not a cluster's directory"), "{said}");
    let said = good(&["ost", "add", "--dir", &new, "--mds", mds, "--key", &key]);
    assert!(said.contains("the store of OST 1 of 'stria' is made") && said.contains("STRIA_OSTS=all"), "{said}");
    let log = c.dir.path().join("new.log");
    let line = ["oss", "--dir", &new, "--ost", "all", "--mds", mds];
    let mut server = Daemon::start(&line, &log);
    // Before the metadata server knows of it, the next command would go on with that OST.
    file_on_new(&a.join("one"), 1, b"one", &server);
    fs::remove_file(a.join("one")).unwrap();
    let said = good(&["ost", "add", "--dir", &new, "--mds", mds, "--count", "2"]);
    assert!(said.contains("OST 2,3 of 'stria' takes files"), "{said}");
    let three = a.join("three");
    file_on(&three, 3, b"three");
    server.kill();
    server = Daemon::start(&line, &log);
    assert_eq!(fs::read(&three).unwrap(), b"three", "all three are served by one server now");
    server.kill();
    fs::remove_file(&three).unwrap();
    good(&["ost", "remove", "2", text(&a)]);
    let mut server = Daemon::start(&line, &log);
    server.says("OST 2 has left the cluster");
    file_on(&three, 3, b"again");
    assert!(server.is_running() && fs::read(&three).unwrap() == b"again");
    drop(server);
    c.mounts.iter_mut().for_each(|(_, mount)| mount.kill());
}

/// Exit code and what `fsck` said.
fn fsck(dir: &str, more: &[&str]) -> (i32, String) {
    let out = stria(&[&["fsck", "--dir", dir], more].concat());
    (out.status.code().unwrap(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
}

#[test]
fn a_repair_on_the_metadata_servers_machine_leaves_files_on_another_machines_ost_alone() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let a = c.mount("a", &[]);
    let (dir, new) = (c.path("c"), c.path("new machine"));
    let (mds, key) = (c.mds.as_ref().unwrap().word.clone(), format!("{dir}/keys/admin.key"));
    good(&["ost", "add", "--dir", &new, "--mds", mds.trim_start_matches("tcp:"), "--key", &key]);
    let log = c.dir.path().join("new.log");
    let serve = |mds: &str| {
        Daemon::start(&["oss", "--dir", &new, "--ost", "all", "--mds", mds.trim_start_matches("tcp:")], &log)
    };
    let server = serve(&mds);
    file_on(&a.join("here"), 0, b"zero");
    file_on_new(&a.join("there"), 1, b"one", &server);
    c.stop();
    drop(server);
    for more in [&[][..], &["--repair"]] {
        let (code, said) = fsck(&dir, more);
        // Not all is known to be well, and nothing is known to be wrong.
        assert!(code == 4 && said.ends_with("\n0 fault(s)\n"), "{code} {said}");
        let line = "OST 1 is not of this directory: its objects are not checked here\n";
        assert!(said.matches(line).count() == 1 && said.contains("OST0001: 1 objects of 1 files"), "{said}");
    }
    c.start_mds();
    c.start_oss(0);
    let server = serve(&c.mds.as_ref().unwrap().word);
    let a = c.mount("a", &[]);
    assert_eq!(fs::read(a.join("there")).unwrap(), b"one");
    assert_eq!(fs::read(a.join("here")).unwrap(), b"zero");
    assert!(!a.join("lost+found").exists());
    c.stop();
    drop(server);
}

#[test]
fn an_ost_that_another_machine_replaced_after_the_backup_was_made_is_taken_back() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let a = c.mount("a", &[]);
    let (dir, new, backup) = (c.path("c"), c.path("new machine"), c.path("backup"));
    let key = format!("{dir}/keys/admin.key");
    let address = |c: &Cluster| c.mds.as_ref().unwrap().word.trim_start_matches("tcp:").to_string();
    let mds = address(&c);
    good(&["ost", "add", "--dir", &new, "--mds", &mds, "--key", &key, "--count", "2"]);
    let log = c.dir.path().join("new.log");
    let serve = |mds: &str| Daemon::start(&["oss", "--dir", &new, "--ost", "all", "--mds", mds], &log);
    let mut server = serve(&mds);
    file_on_new(&a.join("lost"), 1, b"lost", &server);
    file_on_new(&a.join("stays"), 2, b"stays", &server);
    good(&["mdt", "backup", "--dir", &dir, &backup]);
    server.kill();
    fs::rename(format!("{new}/ost1"), c.path("old")).unwrap();
    let mut server = serve(&mds);
    good(&["ost", "replace", "1", "--dir", &new, "--mds", &mds]);
    file_on(&a.join("later"), 1, b"later");
    c.stop();
    server.kill();
    fs::remove_dir_all(format!("{dir}/mdt0")).unwrap();
    good(&["mdt", "restore", "--dir", &dir, &backup]);
    c.start_mds();
    c.start_oss(0);
    let mds = address(&c);
    // The metadata server knows the store of before alone.
    let mut server = serve(&mds);
    server.says("another store has this index");
    assert!(!server.child.wait().unwrap().success());
    let said = good(&["ost", "replace", "1", "--dir", &new, "--mds", &mds]);
    assert!(said.contains("has the store that is in its place again") && said.contains("started again"), "{said}");
    let mut server = serve(&mds);
    let a = c.mount("a", &[]);
    let again = a.join("again");
    file_on_new(&again, 1, b"again", &server);
    assert_eq!(fs::read(&again).unwrap(), b"again");
    assert_eq!(fs::read(a.join("stays")).unwrap(), b"stays");
    assert_eq!(fs::read(a.join("lost")).unwrap_err().raw_os_error(), Some(libc::EIO));
    let listed = good(&["ost", "files", "1", "--lost", text(&a)]);
    assert!(listed.contains("lost\n") && listed.contains("1 file(s)"), "{listed}");
    let (code, said) = refused(&["ost", "replace", "1", "--dir", &new, "--mds", &mds]);
    assert!(code == libc::ENOTEMPTY && said.contains("the store of this OST is there"), "{said}");
    c.stop();
    server.kill();
}

#[test]
fn a_description_of_before_an_ost_was_added_is_refused_and_says_which_one_is_missing() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "1", "--set", SIZE]);
    let dir = up.cluster();
    let description = Path::new(&dir).join("cluster.toml");
    let old = fs::read(&description).unwrap();
    good(&["ost", "add", "--dir", &dir]);
    file_on(&up.at("there"), 1, b"one");
    up.stop();
    let new = fs::read(&description).unwrap();
    fs::write(&description, old).unwrap();
    let (code, said) = up.start_refused(&[]);
    assert!(code == libc::EINVAL && said.contains("OST 1 of this cluster") && said.contains("cluster.toml"), "{said}");
    let (code, said) = fsck(&dir, &["--repair"]);
    assert!(code == 8 && said.contains("OST 1 of this cluster") && said.contains("cluster.toml"), "{code} {said}");
    fs::write(&description, new).unwrap();
    up.start(&[]);
    assert_eq!(fs::read(up.at("there")).unwrap(), b"one");
    up.stop();
}

#[test]
fn a_store_that_an_interrupted_command_made_and_nobody_used_keeps_no_cluster_from_starting() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "1", "--set", SIZE]);
    file_on(&up.at("there"), 0, b"zero");
    up.stop();
    let dir = up.cluster();
    let description = Path::new(&dir).join("cluster.toml");
    // As a command leaves it that is killed once it has made the store, and before it has written that down.
    let old = fs::read(&description).unwrap();
    good(&["mkfs", "--dir", &dir, "--osts", "2"]);
    let named = fs::read(&description).unwrap();
    fs::write(&description, &old).unwrap();
    up.start(&[]);
    assert_eq!(fs::read(up.at("there")).unwrap(), b"zero");
    assert_eq!(fs::read(&description).unwrap(), old);
    good(&["ost", "add", "--dir", &dir]);
    assert_eq!(fs::read(&description).unwrap(), named, "it is the store that was made");
    file_on(&up.at("new"), 1, b"one");
    up.stop();
    is_whole(&up);
}

#[test]
fn a_drain_that_is_cancelled_ends_and_leaves_the_rest_where_it_is() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2"]);
    for i in 0..12 {
        file_on(&up.at(&format!("f{i}")), 1, &vec![i; 4 << 20]);
    }
    let (program, dir) = (env!("CARGO_BIN_EXE_stria"), up.cluster());
    let drain = ["ost", "drain", "1", "--dir", &dir];
    let mut slow = Command::new(program);
    let slow = slow.args(drain).args(["--rate", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut slow = slow.spawn().unwrap();
    let mut said = std::io::BufReader::new(slow.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("OST 1 takes no new files"), "{line}");
    good(&[&drain[..], &["--cancel"]].concat());
    let out = slow.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(libc::ECANCELED) && why.contains("the drain was cancelled"), "{why}");
    assert!((0..12).any(|i| ost_of(&up.at(&format!("f{i}"))) == "1"), "all have moved");
    up.stop();
}

/// A read, by a program that is given up when it is not answered: 0, or what it failed with.
fn read_fails(at: &Path) -> String {
    let out = Command::new("timeout").args(["60", "cat", text(at)]).output().unwrap();
    assert_ne!(out.status.code(), Some(124), "{} is waited for", at.display());
    String::from_utf8([out.stdout, out.stderr].concat()).unwrap()
}

#[test]
fn an_ost_that_was_removed_after_the_backup_was_made_is_not_waited_for_and_leaves_again() {
    if !can_mount() {
        return;
    }
    for mode in [&[][..], &["--processes"]] {
        let mut up = Up::new();
        up.start(&[&["--osts", "3", "--set", SIZE], mode].concat());
        let (dir, backup) = (up.cluster(), text(&up.dir.path().join("backup")).to_string());
        file_on(&up.at("there"), 1, b"one");
        file_on(&up.at("elsewhere"), 2, b"two");
        good(&["mdt", "backup", "--dir", &dir, &backup]);
        good(&["ost", "drain", "1", "--remove", "--dir", &dir]);
        assert_eq!(fs::read(up.at("there")).unwrap(), b"one");
        up.stop();
        fs::remove_dir_all(up.store("mdt0")).unwrap();
        good(&["mdt", "restore", "--dir", &dir, &backup]);
        up.start(mode);
        assert_eq!(fs::read(up.at("elsewhere")).unwrap(), b"two");
        assert!(read_fails(&up.at("there")).contains("Input/output error"));
        for i in 0..8 {
            fill(&up.at(&format!("new{i}")), b"new");
        }
        let shown = good(&["status", text(&up.at(""))]);
        let repair = format!("'stria fsck --repair --dir {dir}' on the stopped cluster");
        let line = shown.lines().find(|l| l.starts_with("  wrong: ") && l.contains("OST0001"));
        assert!(line.is_some_and(|l| l.contains(&repair) && l.contains("'stria ost remove 1'")), "{shown}");
        up.stop();
        let (code, said) = fsck(&dir, &["--repair"]);
        assert_eq!(code, 1, "{said}");
        up.start(mode);
        good(&["ost", "remove", "1", "--dir", &dir]);
        let shown = good(&["status", text(&up.at(""))]);
        assert!(!shown.contains("OST0001") && !shown.contains("wrong: "), "{shown}");
        up.stop();
        is_whole(&up);
    }
}
