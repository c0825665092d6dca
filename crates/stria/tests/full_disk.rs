//! File systems below the stores that get full or fail: what programs see, what the log says, what is there afterwards.
//! Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use support::{can_mount, good, stria, text};

/// A small file system, and a cluster in it, started with `--background`. Everything goes when this does.
struct Small {
    dir: tempfile::TempDir,
}

fn run(line: &[&str]) {
    let out = Command::new(line[0]).args(&line[1..]).output().unwrap();
    assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
}

impl Small {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn tmpfs(size: &str) -> Small {
        let small = Small { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(small.path("fs")).unwrap();
        fs::create_dir(small.path("m")).unwrap();
        run(&["mount", "-t", "tmpfs", "-o", &format!("size={size}"), "none", text(&small.path("fs"))]);
        small
    }
    /// Ext4 on a loop device that becomes read-only at its first error; `None` where there are no loop devices.
    fn ext4() -> Option<Small> {
        let small = Small { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(small.path("fs")).unwrap();
        fs::create_dir(small.path("m")).unwrap();
        File::create(small.path("disk")).unwrap().set_len(300 << 20).unwrap();
        run(&["mkfs.ext4", "-q", text(&small.path("disk"))]);
        let (disk, at) = (small.path("disk"), small.path("fs"));
        let out = Command::new("mount").args(["-o", "loop,errors=remount-ro"]).args([disk, at]).output().unwrap();
        if !out.status.success() {
            println!("not run: no loop device: {}", String::from_utf8_lossy(&out.stderr));
            return None;
        }
        Some(small)
    }
    /// The device fails: its file system turns read-only under everybody.
    fn fail(&self) {
        let out = Command::new("findmnt").args(["-n", "-o", "SOURCE", text(&self.path("fs"))]).output().unwrap();
        let device = String::from_utf8(out.stdout).unwrap();
        let name = Path::new(device.trim()).file_name().unwrap().to_owned();
        fs::write(Path::new("/sys/fs/ext4").join(name).join("trigger_fs_error"), "1").unwrap();
        assert!(File::create(self.path("fs/x")).is_err());
    }
    fn up(&self, more: &[&str]) {
        let (c, m) = (self.path("fs/c"), self.path("m"));
        let line = ["up", "--dir", text(&c), "--mount", text(&m), "--background"];
        good(&[&line[..], more].concat());
    }
    fn umount(&self) {
        good(&["umount", text(&self.path("m"))]);
    }
    fn log(&self) -> String {
        fs::read_to_string(self.path("fs/c/run/up.log")).unwrap_or_default()
    }
    /// Another program takes all that is left.
    fn fill(&self) {
        let mut file = File::create(self.path("fs/other")).unwrap();
        let mut block = vec![7; 1 << 16];
        while !block.is_empty() {
            if file.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        for connection in fs::read_dir("/sys/fs/fuse/connections").into_iter().flatten().flatten() {
            let ours = fs::metadata(self.path("m"))
                .is_ok_and(|m| connection.file_name().to_str() == Some(&libc::minor(m.dev()).to_string()));
            if ours {
                let _ = fs::write(connection.path().join("abort"), "1");
            }
        }
        drop(Command::new("umount").arg("-l").arg(self.path("m")).output());
        if let Ok(pid) = fs::read_to_string(self.path("fs/c/run/up.pid")) {
            drop(Command::new("kill").args(["-9", pid.trim()]).output());
        }
        drop(Command::new("umount").arg("-l").arg(self.path("fs/c/run")).output());
        drop(Command::new("umount").arg("-l").arg(self.path("fs")).output());
    }
}

/// Does `work` on a thread of its own. When it hangs the connection of the mount is aborted, so that nobody waits for ever,
/// and the test fails.
fn watched<T: Send + 'static>(mount: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
    let minor = libc::minor(fs::metadata(mount).unwrap().dev());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    told.recv_timeout(Duration::from_secs(600)).unwrap_or_else(|e| {
        let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        panic!("hung: {e}");
    })
}

/// Makes a file, writes and syncs it.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_system_filled_by_another_program_refuses_at_once_loses_nothing_and_goes_on() {
    if !can_mount() {
        return;
    }
    let small = Small::tmpfs("200m");
    small.up(&["--osts", "4"]);
    let at = small.path("m");
    let here = at.clone();
    watched(&at, move || {
        fs::create_dir(here.join("d")).unwrap();
        (0..20).for_each(|i| put(&here.join(format!("d/before{i}")), &[1; 3000]).unwrap());
    });
    small.fill();
    let here = at.clone();
    let (made, refused) = watched(&at, move || {
        let (mut made, mut refused) = (0, 0);
        for i in 0..50_000 {
            if refused == 100 {
                break;
            }
            match File::create(here.join(format!("d/f{i}"))) {
                Ok(_) => made += 1,
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                    refused += 1;
                }
            }
        }
        // More than there is at all: what the stores had set aside before goes first.
        let e = put(&here.join("d/f0"), &vec![2; 300 << 20]).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
        // What frees space is possible, and what there is can be read.
        fs::remove_file(here.join("d/before0")).unwrap();
        assert_eq!(fs::read(here.join("d/before1")).unwrap(), [1; 3000]);
        (made, refused)
    });
    assert!(refused > 0, "{made} files were made on a full file system");
    fs::remove_file(small.path("fs/other")).unwrap();
    let here = at.clone();
    watched(&at, move || {
        for i in 0..8 {
            put(&here.join(format!("d/after{i}")), &[3; 100_000]).unwrap();
        }
    });
    let there = names(&at.join("d"));
    assert_eq!(there.len(), 19 + made + 8, "what was answered as made is there");
    small.umount();
    small.up(&[]);
    assert_eq!(names(&at.join("d")), there, "and after a restart");
    assert_eq!(fs::read(at.join("d/after7")).unwrap(), [3; 100_000]);
    small.umount();
    let out = stria(&["fsck", "--dir", text(&small.path("fs/c")), "--data"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

/// Makes small files with an attribute each until two dozen in a row are refused. Their names.
fn fill_with_names(at: &Path) -> Vec<PathBuf> {
    let (mut made, mut tried, mut refused) = (Vec::new(), 0, 0);
    while refused < 24 {
        let path = at.join(format!("f{tried}"));
        tried += 1;
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        match File::create(&path) {
            Ok(_) => refused = 0,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                refused += 1;
                continue;
            }
        }
        made.push(path);
        // SAFETY: both names end with a zero, and the value is as long as told.
        unsafe { libc::setxattr(name.as_ptr(), c"user.a".as_ptr(), [7_u8; 6000].as_ptr().cast(), 6000, 0) };
    }
    made
}

#[test]
fn a_metadata_target_that_names_have_filled_lets_them_be_removed_and_takes_new_ones() {
    if !can_mount() {
        return;
    }
    let small = Small::tmpfs("40m");
    // Room for what `up` writes besides, when the database has taken all.
    let ballast = small.path("fs/ballast");
    fs::write(&ballast, vec![0; 2 << 20]).unwrap();
    small.up(&["--osts", "1", "--set", "store.kind=null"]);
    let here = small.path("m");
    let left = watched(&small.path("m"), move || {
        fs::create_dir(here.join("d")).unwrap();
        let mut made = fill_with_names(&here.join("d"));
        let told = stria(&["status", text(&here)]);
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("MDT0000") && told.contains("has no space: what would make it longer"), "{told}");
        let some = made.split_off(made.len() / 4);
        some.iter().for_each(|f| fs::remove_file(f).unwrap());
        // Where they were is found a moment later.
        let end = std::time::Instant::now() + Duration::from_secs(100);
        for i in 0..some.len() / 2 {
            let path = here.join(format!("d/again{i}"));
            while let Err(e) = File::create(&path) {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                assert!(std::time::Instant::now() < end, "{i} were made where {} had been", some.len());
                std::thread::park_timeout(Duration::from_millis(50));
            }
            made.push(path);
        }
        made.len()
    });
    small.umount();
    fs::remove_file(&ballast).unwrap();
    small.up(&["--set", "store.kind=null"]);
    assert_eq!(names(&small.path("m/d")).len(), left);
    small.umount();
    let out = stria(&["fsck", "--dir", text(&small.path("fs/c"))]);
    assert!(!String::from_utf8_lossy(&out.stdout).contains("damage"), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn a_reserved_range_counts_once_before_and_after_it_is_written() {
    if !can_mount() {
        return;
    }
    let small = Small::tmpfs("200m");
    small.up(&["--osts", "1"]);
    let at = small.path("m/f");
    let counts = watched(&small.path("m"), move || {
        let file = File::create(&at).unwrap();
        // SAFETY: plain system call on an open descriptor.
        assert_eq!(unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, 1 << 20) }, 0);
        let blocks = || fs::metadata(&at).unwrap().blocks();
        let reserved = blocks();
        file.write_all_at(&[5; 1 << 20], 0).unwrap();
        let written = blocks();
        file.sync_all().unwrap();
        [reserved, written, blocks()]
    });
    assert_eq!(counts, [2048; 3]);
    small.umount();
}

#[test]
fn space_of_removed_files_goes_back_to_the_file_system_below() {
    if !can_mount() {
        return;
    }
    let small = Small::tmpfs("400m");
    small.up(&["--osts", "1"]);
    let free = |small: &Small| {
        let out = Command::new("stat").args(["-f", "-c", "%f", text(&small.path("fs"))]).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().parse::<u64>().unwrap() * 4096
    };
    let before = free(&small);
    let file = small.path("m/big");
    let (at, path) = (small.path("m"), file.clone());
    watched(&at, move || put(&path, &vec![5; 200 << 20]).unwrap());
    assert!(free(&small) + (150 << 20) < before);
    fs::remove_file(&file).unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(100);
    while free(&small) + (100 << 20) < before {
        assert!(std::time::Instant::now() < end, "{} were free before, {} are", before, free(&small));
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(small.log(), "");
    small.umount();
}

/// What a failed device looks like to programs: errors at once, reads of what is known go on, the mount stays.
fn a_failed_device(small: &Small, more: &[&str]) {
    small.up(&[&["--osts", "2"], more].concat());
    let (at, here) = (small.path("m"), small.path("m"));
    watched(&at, move || put(&here.join("before"), b"there").unwrap());
    small.fail();
    let here = at.clone();
    watched(&at, move || {
        for i in 0..20 {
            let e = put(&here.join(format!("f{i}")), &[1; 100_000]).unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}");
        }
    });
    support::status_that(&at, |s| s.contains("its store failed"));
    let df = good(&["df", text(&at)]);
    assert!(df.lines().any(|l| l.contains("[MDT:0] R")), "{df}");
    let out = Command::new("umount").arg(&at).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_device_that_fails_is_an_error_at_once_and_said_by_status() {
    if !can_mount() {
        return;
    }
    for more in [&[][..], &["--processes"]] {
        let Some(small) = Small::ext4() else { return };
        a_failed_device(&small, more);
    }
}

#[test]
fn a_restore_that_does_not_fit_ends_with_an_error_and_can_be_done_again() {
    if !can_mount() {
        return;
    }
    let small = Small::tmpfs("100m");
    small.up(&["--osts", "1"]);
    let at = small.path("m");
    let here = at.clone();
    watched(&at, move || (0..4000).for_each(|i| drop(File::create(here.join(format!("file{i}"))).unwrap())));
    small.umount();
    let (c, file) = (small.path("fs/c"), small.path("backup"));
    let lines = ["restore", "backup"].map(|verb| ["mdt", verb, "--dir", text(&c), text(&file)].map(String::from));
    let [restore, backup] = lines.each_ref().map(|line| line.each_ref().map(|w| &**w));
    good(&backup);
    fs::remove_dir_all(c.join("mdt0")).unwrap();
    small.fill();
    let other = OpenOptions::new().write(true).open(small.path("fs/other")).unwrap();
    other.set_len(other.metadata().unwrap().len() - (700 << 10)).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_stria"));
    let mut child = child.args(restore).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if std::time::Instant::now() > until {
            child.kill().unwrap();
            panic!("hung");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(!status.success() && said.to_lowercase().contains("no space left"), "{status} {said}");
    drop(other);
    fs::remove_file(small.path("fs/other")).unwrap();
    good(&restore);
    small.up(&[]);
    assert_eq!(names(&at).len(), 4000);
    small.umount();
}

#[test]
fn nothing_lands_below_a_mount_whose_daemon_was_killed_and_it_is_replaced() {
    if !can_mount() {
        return;
    }
    nothing_lands_below();
}

/// The same where the kernel's control files of FUSE are not to be had, as on hosts that do not mount fusectl.
#[test]
fn nothing_lands_below_a_dead_mount_without_fusectl_either() {
    if !can_mount() {
        return;
    }
    if std::env::var_os("WITHOUT_FUSECTL").is_some() {
        run(&["mount", "-t", "tmpfs", "none", "/sys/fs/fuse/connections"]);
        return nothing_lands_below();
    }
    let me = std::env::current_exe().unwrap();
    let name = "nothing_lands_below_a_dead_mount_without_fusectl_either";
    let mut own = Command::new("unshare");
    own.args(["--mount", text(&me), "--exact", name]).env("WITHOUT_FUSECTL", "1");
    let out = own.output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&said));
}

fn nothing_lands_below() {
    let small = Small::tmpfs("200m");
    small.up(&["--osts", "1"]);
    let at = small.path("m");
    let here = at.clone();
    watched(&at, move || put(&here.join("before"), b"there").unwrap());
    let pid = fs::read_to_string(small.path("fs/c/run/up.pid")).unwrap();
    run(&["kill", "-9", pid.trim()]);
    // From the kill on every try fails, however soon it comes: there is no moment in which the directory below shows.
    let mut failed = 0;
    while failed < 50 {
        match put(&at.join("lost"), b"x") {
            Ok(()) => {
                assert_eq!(failed, 0, "a write to a dead mount succeeded");
                let mounted =
                    fs::metadata(&at).map_or(true, |m| m.dev() != fs::metadata(small.dir.path()).unwrap().dev());
                assert!(mounted, "a write landed in the directory below the mount");
            }
            Err(e) => {
                // A call that a ring held at that moment is ECANCELED.
                let dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::ECANCELED];
                assert!(e.raw_os_error().is_some_and(|e| dead.contains(&e)), "{e}");
                failed += 1;
            }
        }
    }
    small.up(&[]);
    assert_eq!(fs::read(at.join("before")).unwrap(), b"there");
    small.umount();
    assert_eq!(names(&at), [""; 0], "the directory below is empty");
}

#[test]
fn a_server_that_dies_while_there_is_no_room_for_notes_is_started_again() {
    if !can_mount() {
        return;
    }
    let small = Small { dir: tempfile::tempdir().unwrap() };
    fs::create_dir(small.path("fs")).unwrap();
    fs::create_dir(small.path("m")).unwrap();
    good(&["mkfs", "--dir", text(&small.path("fs/c")), "--osts", "1"]);
    let at = small.path("fs/c/run");
    fs::create_dir_all(&at).unwrap();
    run(&["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", text(&at)]);
    small.up(&["--processes", "--set", "recovery.window_s=5"]);
    fs::write(at.join("other"), vec![7; 1 << 20]).unwrap_err();
    let note = at.join("ost0.pid");
    let before = fs::read_to_string(&note).unwrap();
    run(&["kill", "-9", before.trim()]);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(&note).unwrap() == before {
        assert!(std::time::Instant::now() < end, "it is not started again");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let file = small.path("m/x");
    watched(&small.path("m"), move || {
        let mut file = File::create(file).unwrap();
        file.write_all(b"there").unwrap();
        file.sync_all().unwrap();
    });
    let names: Vec<_> = fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|n| n.contains(".new")), "{names:?}");
    assert!(
        good(&["status", "--dir", text(&small.path("fs/c"))])
            .contains(&format!("ost0     process {} runs", fs::read_to_string(&note).unwrap().trim()))
    );
    small.umount();
}
