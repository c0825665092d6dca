//! One OST that is dead, or whose device fails, beside well ones: its files answer EIO once nobody waits for it any more, all
//! others go on, somebody says why, and it comes back. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use support::{Cluster, can_mount, good, stria, text};

/// Longest time that anything here may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// Does `work` on a thread of its own. When it hangs the connection of the mount is aborted, so that nobody waits for ever,
/// and the test fails.
fn watched<T: Send + 'static>(mount: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
    let minor = libc::minor(fs::metadata(mount).unwrap().dev());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|e| {
        let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        panic!("hung: {e}");
    })
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A file whose only object is on OST `ost`, synced.
fn file_on(path: &Path, ost: u16, bytes: &[u8]) {
    good(&["setstripe", "-c", "1", "-i", &ost.to_string(), text(path)]);
    put(path, bytes).unwrap();
}

fn errno<T: std::fmt::Debug>(done: io::Result<T>) -> i32 {
    done.unwrap_err().raw_os_error().unwrap()
}

/// Every way into a file answers EIO.
fn answers_eio(path: &Path) {
    assert_eq!(errno(fs::read(path)), libc::EIO, "read");
    assert_eq!(errno(put(path, b"new")), libc::EIO, "open with O_TRUNC, write, fsync");
    let appended = OpenOptions::new().append(true).open(path).and_then(|mut f| {
        f.write_all(b"x")?;
        f.sync_all()
    });
    assert_eq!(errno(appended), libc::EIO, "append");
    assert_eq!(errno(OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(1))), libc::EIO, "truncate");
}

#[test]
fn files_of_a_dead_ost_that_is_given_up_answer_eio_at_once_and_are_back_when_it_is_taken_back() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let two = c.mount("two", &[]);
    let (here, there, cold) = (at.join("here"), at.join("there"), at.join("cold"));
    file_on(&here, 0, b"on the well one");
    file_on(&there, 1, b"on the dead one");
    // In the other mount's caches only.
    file_on(&two.join("cold"), 1, b"not in any cache");
    let mut open = OpenOptions::new().append(true).open(&there).unwrap();
    c.oss[1].take();
    // Without anybody's word a program waits for it, and can be killed.
    let mut waiting = Command::new("cp").args([&cold, &c.dir.path().join("copy")]).spawn().unwrap();
    let mut truncating = Command::new("sh").args(["-c", &format!("echo x > {}", cold.display())]).spawn().unwrap();
    let (path, (tell, told)) = (cold.clone(), mpsc::channel());
    let reader = std::thread::spawn(move || {
        tell.send(()).unwrap();
        fs::read(path)
    });
    told.recv().unwrap();
    for child in [&mut waiting, &mut truncating] {
        assert!(child.try_wait().unwrap().is_none(), "nobody answers for it");
        child.kill().unwrap();
    }
    watched(&at, move || [waiting, truncating].map(|mut c| c.wait().unwrap()));
    good(&["set_param", "--at", text(&at), "osc.*OST0001*.active=0"]);
    let read = watched(&at, move || reader.join().unwrap());
    assert_eq!(errno(read), libc::EIO, "who waited is told, too");
    let paths = (there.clone(), cold.clone(), here.clone(), at.join("new"));
    watched(&at, move || {
        let (there, cold, here, new) = paths;
        let told = open.write_all(b"lost").and_then(|()| open.sync_all());
        assert_eq!(errno(told), libc::EIO, "a handle from before");
        answers_eio(&there);
        answers_eio(&cold);
        assert_eq!(fs::read(&here).unwrap(), b"on the well one");
        file_on(&new, 0, b"new");
    });
    let status = good(&["status", text(&at)]);
    assert!(status.lines().any(|l| l.contains("OST0001") && l.contains("deactivated")), "{status}");
    c.start_oss(1);
    good(&["set_param", "--at", text(&at), "osc.*OST0001*.active=1"]);
    watched(&at, move || {
        // A cut that was begun while nobody served the file may have been carried out.
        let whole = [&b"on the dead one"[..], b"not in any cache"];
        for (path, whole) in [&there, &cold].into_iter().zip(whole) {
            let left = fs::read(path).unwrap();
            assert!(left == whole || left.is_empty(), "{}: {left:?}", path.display());
            put(path, b"again").unwrap();
            assert_eq!(fs::read(path).unwrap(), b"again");
        }
    });
    c.stop();
}

#[test]
fn names_and_modes_of_files_of_a_dead_ost_can_be_changed_although_nobody_knows_their_size() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let (at, two) = (c.mount("m", &[]), c.mount("two", &[]));
    let names = ["asked", "removed", "removed by rm", "moved", "linked", "changed", "cut"];
    // The metadata server knows no size of a file that somebody has open for writing.
    let open = names.map(|name| {
        file_on(&two.join(name), 1, b"content");
        OpenOptions::new().write(true).open(two.join(name)).unwrap()
    });
    c.oss[1].take();
    for mount in [&at, &two] {
        good(&["set_param", "--at", text(mount), "osc.*OST0001*.active=0"]);
    }
    let dir = at.clone();
    watched(&at, move || {
        assert_eq!(errno(fs::symlink_metadata(dir.join("asked"))), libc::EIO, "its size is asked for");
        fs::remove_file(dir.join("removed")).unwrap();
        run(&["rm", text(&dir.join("removed by rm"))]);
        fs::rename(dir.join("moved"), dir.join("there")).unwrap();
        // Its absence is known to the kernel.
        assert_eq!(errno(fs::symlink_metadata(dir.join("second"))), libc::ENOENT);
        fs::hard_link(dir.join("linked"), dir.join("second")).unwrap();
        assert_eq!(errno(fs::symlink_metadata(dir.join("second"))), libc::EIO, "there is such a name");
        fs::set_permissions(dir.join("changed"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(errno(fs::symlink_metadata(dir.join("changed"))), libc::EIO, "a size that is not known is not told");
        let cut = OpenOptions::new().write(true).open(dir.join("cut")).and_then(|f| f.set_len(1));
        assert_eq!(errno(cut), libc::EIO);
    });
    drop(open);
    c.start_oss(1);
    for mount in [&at, &two] {
        good(&["set_param", "--at", text(mount), "osc.*OST0001*.active=1"]);
    }
    for mount in [at, two] {
        let dir = mount.clone();
        watched(&mount, move || {
            for gone in ["removed", "removed by rm", "moved"] {
                assert_eq!(errno(fs::symlink_metadata(dir.join(gone))), libc::ENOENT, "{gone}");
            }
            assert_eq!(fs::read(dir.join("there")).unwrap(), b"content");
            let metadata = |name: &str| fs::symlink_metadata(dir.join(name)).unwrap();
            assert_eq!((metadata("linked").ino(), metadata("linked").nlink()), (metadata("second").ino(), 2));
            assert_eq!((metadata("changed").mode() & 0o7777, metadata("changed").len()), (0o640, 7));
        });
    }
    c.stop();
}

/// A cluster of three OSTs of which the last has a disk of its own.
struct OwnDisk {
    dir: tempfile::TempDir,
}

fn run(line: &[&str]) {
    let out = Command::new(line[0]).args(&line[1..]).output().unwrap();
    assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
}

impl OwnDisk {
    /// `None` where there are no loop devices.
    fn new() -> Option<OwnDisk> {
        let own = OwnDisk { dir: tempfile::tempdir().unwrap() };
        good(&["mkfs", "--dir", &own.cluster(), "--osts", "2"]);
        fs::create_dir(own.path("m")).unwrap();
        fs::create_dir(own.store()).unwrap();
        File::create(own.path("disk")).unwrap().set_len(300 << 20).unwrap();
        run(&["mkfs.ext4", "-q", text(&own.path("disk"))]);
        if let Err(why) = own.plug_in() {
            println!("not run: no loop device: {why}");
            return None;
        }
        good(&["mkfs", "--dir", &own.cluster(), "--osts", "3"]);
        Some(own)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn cluster(&self) -> String {
        text(&self.path("c")).into()
    }
    fn store(&self) -> PathBuf {
        self.path("c/ost2")
    }
    fn at(&self, name: &str) -> PathBuf {
        self.path("m").join(name)
    }
    fn plug_in(&self) -> Result<(), String> {
        let out = Command::new("mount").args(["-o", "loop"]).args([self.path("disk"), self.store()]).output().unwrap();
        if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
    }
    /// Takes the disk away and puts it back, well again.
    fn replug(&self) {
        // The last process that used it may still be ending.
        wait_until("the disk cannot be unmounted", || {
            Command::new("umount").arg(self.store()).output().unwrap().status.success()
        });
        self.plug_in().unwrap();
    }
    /// The device fails: from now on its file system answers EIO, and what it has not on its medium is lost.
    fn fail(&self) {
        let root = File::open(self.store()).unwrap();
        let (shutdown, without_flush): (libc::Ioctl, u32) = (0x8004_587d_u32 as libc::Ioctl, 2);
        // SAFETY: FS_IOC_SHUTDOWN reads one u32 that outlives the call.
        let rc = unsafe { libc::ioctl(root.as_raw_fd(), shutdown, &raw const without_flush) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    }
    fn up(&self, more: &[&str]) -> String {
        let (cluster, mount) = (self.cluster(), self.path("m"));
        let line =
            ["up", "--background", "--dir", &cluster, "--mount", text(&mount), "--set", "recovery.window_s=3000"];
        good(&[&line[..], more].concat())
    }
    fn umount(&self) {
        let out = stria(&["umount", text(&self.path("m"))]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path("c/run").join(name)).unwrap_or_default()
    }
    fn status(&self) -> String {
        good(&["status", text(&self.path("m"))])
    }
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        drop(stria(&["stop", "--dir", &self.cluster()]));
        drop(Command::new("umount").args(["-q", "-l"]).arg(self.path("m")).output());
        drop(Command::new("umount").args(["-q", "-l"]).arg(self.store()).output());
    }
}

/// What programs see of one failed OST: its files answer EIO, all others work.
fn one_fails_the_others_go_on(own: &OwnDisk, log: &str) {
    let (here, there) = (own.at("here"), own.at("there"));
    file_on(&here, 0, &[1; 300_000]);
    file_on(&there, 2, &[2; 300_000]);
    file_on(&own.at("kept"), 2, &[7; 300_000]);
    own.fail();
    let (m, dir) = (own.path("m"), own.path("m"));
    watched(&m, move || {
        assert_eq!(errno(put(&there, &[3; 300_000])), libc::EIO);
        put(&here, &[4; 300_000]).unwrap();
        assert!(fs::read(&here).unwrap() == [4; 300_000]);
    });
    // Until the metadata server has asked for the OST's state, files may still be made there.
    let told = || stria(&["get_param", "-n", "--at", text(&m), "osp.*OST0002*.prealloc_status"]);
    wait_until("the metadata server knows", || String::from_utf8_lossy(&told().stdout).trim() == "1");
    watched(&m, move || {
        for i in 0..30 {
            put(&dir.join(format!("new{i}")), &[5; 20_000]).unwrap();
        }
    });
    let fails = |l: &str| l.contains("OST0002") && l.contains("its store failed");
    let status = support::status_that(&own.path("m"), |s| s.lines().any(fails));
    let line = |name: &str| status.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{status}")).to_string();
    assert!(!line("OST0000").contains("failed") && !line("MDT0000").contains("failed"), "{status}");
    let said = support::in_log(&own.path("c/run").join(log), "takes nothing any more");
    let whys: Vec<&str> = said.lines().filter(|l| l.contains("ERROR") && l.contains("store")).collect();
    assert!(whys.len() == 1 && whys[0].contains("ost2"), "one line says why: {said}");
}

fn all_is_well(own: &OwnDisk) {
    let paths = (own.at("here"), own.at("there"), own.at("after"), own.at("kept"));
    watched(&own.path("m"), move || {
        let (here, there, after, kept) = paths;
        assert!(fs::read(&kept).unwrap() == [7; 300_000], "tries to cut it failed, so it is as it was");
        assert!(fs::read(&here).unwrap() == [4; 300_000]);
        // It was being overwritten when the device failed.
        let left = fs::read(&there).unwrap();
        assert!(left.iter().all(|b| [0, 2, 3].contains(b)), "{} bytes", left.len());
        put(&there, &[6; 300_000]).unwrap();
        assert!(fs::read(&there).unwrap() == [6; 300_000]);
        file_on(&after, 2, b"new");
    });
    own.umount();
    let out = stria(&["fsck", "--data", "--dir", &own.cluster()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

/// How often a server was started again, as `status` says.
fn tries(status: &str) -> u32 {
    let said = status.split_once(" times so far)").and_then(|(before, _)| before.rsplit_once('('));
    said.and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

#[test]
fn an_ost_process_whose_device_fails_leaves_the_others_alone_says_why_and_comes_back_with_its_disk() {
    if !can_mount() {
        return;
    }
    let Some(own) = OwnDisk::new() else { return };
    own.up(&["--processes"]);
    one_fails_the_others_go_on(&own, "ost2.log");
    let pid = own.log("ost2.pid");
    run(&["kill", "-9", pid.trim()]);
    wait_until("status says that it does not start", || own.status().contains("ost2 does not start: "));
    // Tried again and again, said once.
    wait_until("it is tried again", || tries(&own.status()) >= 4);
    let said = own.log("up.log");
    assert_eq!(said.matches("ost2 does not start: ").count(), 1, "{said}");
    watched(&own.path("m"), {
        let at = own.at("meanwhile");
        move || file_on(&at, 1, b"new")
    });
    own.replug();
    wait_until("it runs again", || !own.status().contains("does not start"));
    all_is_well(&own);
}

#[test]
fn a_cluster_in_one_process_goes_on_without_the_ost_whose_device_fails_and_starts_without_it() {
    if !can_mount() {
        return;
    }
    let Some(own) = OwnDisk::new() else { return };
    own.up(&[]);
    one_fails_the_others_go_on(&own, "up.log");
    let out = stria(&["umount", text(&own.path("m"))]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // The disk is as bad as before: the others are served, and it is said.
    let said = own.up(&[]);
    assert!(said.contains("OST 2: "), "{said}");
    let kept = own.at("kept");
    watched(&own.path("m"), move || answers_eio(&kept));
    let status = own.status();
    assert!(status.contains("OST 2: ") && status.contains("deactivated"), "{status}");
    let here = own.at("here");
    watched(&own.path("m"), move || assert!(fs::read(&here).unwrap() == [4; 300_000]));
    own.umount();
    own.replug();
    own.up(&[]);
    all_is_well(&own);
}
