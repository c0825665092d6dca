//! Another user of the host against a cluster of root's that lies where everybody can see it: it gets nothing.
//!
//! Runs as root, and acts as user `nobody` in processes and threads of its own.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Daemon, can_mount, good, refused, text};

/// The stranger, user and group.
const NOBODY: u32 = 65_534;

/// A directory that everybody may enter, with the program in it, and a place of the stranger's own.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        open_up(dir.path(), 0o755);
        // The program may lie where others cannot reach it. Copied by a process of its own: a descriptor that writes here
        // could be inherited by a process that another test starts, and the program not be run meanwhile.
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_stria")).arg(dir.path().join("stria")).status().unwrap();
        assert!(copied.success());
        open_up(&dir.path().join("stria"), 0o755);
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
        Place { dir }
    }
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// Runs the program as the stranger.
    fn stria(&self, arguments: &[&str]) -> Output {
        self.run(&self.at("stria"), arguments)
    }
    /// Runs a program as the stranger, in its own place.
    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir(self.at("own"));
        command.env_remove("XDG_RUNTIME_DIR").output().unwrap()
    }
    /// Runs the program as the stranger; it must fail. What it said.
    fn refused(&self, arguments: &[&str]) -> String {
        let out = self.stria(arguments);
        assert!(!out.status.success(), "{arguments:?} succeeded: {}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8_lossy(&out.stderr).into_owned()
    }
}

fn open_up(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Everything below a directory, itself included.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_path_buf()];
    let mut next = 0;
    while next < all.len() {
        if fs::symlink_metadata(&all[next]).unwrap().is_dir() {
            all.extend(fs::read_dir(&all[next]).unwrap().map(|e| e.unwrap().path()));
        }
        next += 1;
    }
    all
}

/// A thread that acts as the stranger.
fn as_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let user = s.spawn(|| {
            // SAFETY: bare system calls change this thread only, which ends here.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
            }
            work()
        });
        user.join().unwrap()
    })
}

/// A cluster of root's as processes, mounted; gone when dropped.
struct Running {
    up: Daemon,
    mount: PathBuf,
}

impl Running {
    fn new(place: &Place, dir: &Path) -> Running {
        let mount = place.at("mnt");
        fs::create_dir_all(&mount).unwrap();
        let line = ["up", "--processes", "--osts", "2", "--dir", text(dir), "--mount", text(&mount)];
        // Whatever the umask is.
        // SAFETY: plain system call; children inherit it, and nothing else of this test depends on it.
        let old = unsafe { libc::umask(0) };
        let up = Daemon::start(&line, &place.at("up.log"));
        // SAFETY: as above.
        unsafe { libc::umask(old) };
        Running { up, mount }
    }
    fn stop(mut self) {
        good(&["umount", text(&self.mount)]);
        assert!(self.up.child.wait().unwrap().success(), "{}", self.up.said());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.mount).output());
    }
}

#[test]
fn a_stranger_reads_nothing_of_a_cluster_and_no_server_serves_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    // Made by root, and open to everybody's eyes.
    let dir = place.at("c");
    fs::create_dir(&dir).unwrap();
    open_up(&dir, 0o755);
    let running = Running::new(&place, &dir);
    fs::write(running.mount.join("secret"), "of root").unwrap();
    open_up(&running.mount.join("secret"), 0o600);
    let all = below(&dir);
    assert!(all.iter().any(|p| p.ends_with("keys/admin.key")) && all.iter().any(|p| p.ends_with("run/ost1.log")));
    for path in all.iter().filter(|p| **p != dir) {
        let mode = fs::symlink_metadata(path).unwrap().mode() & 0o777;
        assert!(matches!(mode, 0o600 | 0o700), "{}: {mode:o}, with a umask of 0", path.display());
    }
    let opened = as_stranger(|| {
        let readable = |p: &&PathBuf| fs::File::open(p).is_ok();
        let listed = |p: &&PathBuf| fs::read_dir(p).is_ok();
        all.iter().filter(|p| readable(p) || listed(p)).cloned().collect::<Vec<_>>()
    });
    assert_eq!(opened, vec![dir.clone()], "only the directory itself can be looked at");

    let nid = fs::read_to_string(dir.join("run/mdt0.nid")).unwrap();
    let (nid, mnt) = (nid.trim(), place.at("own/mnt"));
    as_stranger(|| fs::create_dir(&mnt).unwrap());
    let said = place.refused(&["mount", "--mds", nid, text(&mnt)]);
    assert!(said.contains("a cluster's key is needed"), "{said}");
    let said = place.refused(&["mount", "--dir", text(&dir), text(&mnt)]);
    assert!(said.contains("Permission denied"), "{said}");
    as_stranger(|| {
        fs::write(place.at("own/key"), "a secret that is made up").unwrap();
        open_up(&place.at("own/key"), 0o600);
    });
    let said = place.refused(&["mount", "--mds", nid, text(&mnt), "--set", "cluster.key_file=key"]);
    assert!(said.contains("check cluster.key_file on both sides"), "{said}");
    // Root of a user namespace is the same stranger.
    let unshare = ["-Urm", text(&place.at("stria")), "mount", "--dir", text(&dir), text(&mnt)].map(str::to_string);
    let out = place.run(Path::new("unshare"), &unshare.each_ref().map(String::as_str));
    assert!(!out.status.success());
    // Nor does the key of another cluster open this one.
    let other = place.at("own/other");
    assert!(place.stria(&["mkfs", "--dir", text(&other), "--osts", "1"]).status.success());
    let key = format!("cluster.key_file={}", other.join("keys/admin.key").display());
    let said = place.refused(&["mount", "--mds", nid, text(&mnt), "--set", &key]);
    assert!(said.contains("check cluster.key_file on both sides"), "{said}");

    // Root's mount tells everybody how it is, and lets nobody else change or end it.
    let at = text(&running.mount);
    assert!(place.stria(&["status", at]).status.success());
    let said = String::from_utf8(place.stria(&["get_param", "--at", at, "osc.*.max_rpcs_in_flight"]).stdout).unwrap();
    assert!(said.contains("max_rpcs_in_flight=8"), "{said}");
    for line in [
        vec!["set_param", "--at", at, "osc.*.max_rpcs_in_flight=4"],
        vec!["set_param", "-P", "--at", at, "osc.*.max_rpcs_in_flight=4"],
        vec!["set_param", "--at", at, "obdfilter.*.evict_client=1"],
    ] {
        let said = place.refused(&line);
        assert!(said.contains("only root and the user who runs the daemon may do this"), "{said}");
    }
    let said = place.refused(&["umount", at]);
    assert!(said.contains("was mounted by user 0: that user or root unmounts it"), "{said}");
    assert!(good(&["get_param", "--at", at, "osc.*.max_rpcs_in_flight"]).contains("=8"));

    // Nobody else makes names where its socket is, or takes its place under the name that it once had.
    let connection = libc::minor(fs::metadata(&running.mount).unwrap().dev());
    let socket = format!("/run/stria/mount-{connection}");
    as_stranger(|| {
        assert!(fs::remove_file(&socket).is_err() && fs::rename(&socket, place.at("own/taken")).is_err());
        assert!(UnixListener::bind("/run/stria/mount-4242").is_err());
        assert!(fs::rename("/run/stria", place.at("own/taken")).is_err());
    });
    running.stop();
    assert!(!Path::new(&socket).exists(), "the name went with the mount");
}

#[test]
fn a_users_own_mount_gives_no_rights_of_others_and_answers_its_owner_and_root() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (dir, mnt) = (place.at("own/c"), place.at("own/mnt"));
    as_stranger(|| fs::create_dir(&mnt).unwrap());
    let up = ["up", "--background", "--osts", "1", "--dir", text(&dir), "--mount", text(&mnt)];
    let said = place.refused(&[&up[..], &["-o", "suid"]].concat());
    assert!(said.contains("mount option 'suid' is for root"), "{said}");
    let out = place.stria(&up);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    if !out.status.success() && said.contains("/dev/fuse") {
        // The device is root's alone here.
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{said}");
        println!("not run: {said}");
        return;
    }
    assert!(out.status.success(), "{said}");
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            drop(Command::new("umount").arg("-l").arg(self.0).output());
        }
    }
    let unmount = Unmount(&mnt);
    let entry = fuse::mount::mounts().into_iter().rev().find(|m| m.at == mnt).unwrap();
    assert_eq!(entry.user, NOBODY);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|l| l.contains(text(&mnt))).unwrap();
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    let out = place.stria(&["set_param", "--at", text(&mnt), "ost.OSS.ost_io.nrs_policies=trr"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let socket = format!("/tmp/stria-{NOBODY}/mount-{}", entry.minor);
    assert!(Path::new(&socket).exists() || Path::new(&format!("/run/user/{NOBODY}/stria")).exists());
    let out = place.stria(&["umount", text(&mnt)]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    drop(unmount);
    assert!(!Path::new(&socket).exists());
}

#[test]
fn root_writes_nothing_where_a_stranger_decides_what_names_mean() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let victim = place.at("victim");
    fs::write(&victim, "precious").unwrap();
    let theirs = place.at("own/c");
    assert!(place.stria(&["mkfs", "--dir", text(&theirs), "--osts", "1"]).status.success());
    as_stranger(|| {
        for name in ["up.log", "mdt0.log", "ost0.log", "up.pid", "mdt0.nid", "mount.log"] {
            std::os::unix::fs::symlink(&victim, theirs.join("run").join(name)).unwrap();
        }
    });
    let mnt = place.at("mnt");
    fs::create_dir(&mnt).unwrap();
    let in_theirs = |dir: &Path| {
        for line in [
            vec!["up", "--background", "--dir", text(dir), "--mount", text(&mnt)],
            vec!["up", "--processes", "--dir", text(dir), "--mount", text(&mnt)],
            vec!["mount", "--background", "--dir", text(dir), text(&mnt)],
            vec!["mds", "--dir", text(dir)],
            vec!["mkfs", "--dir", text(dir)],
        ] {
            let (code, said) = refused(&line);
            assert!(code == libc::EPERM && said.contains("belongs to user 65534"), "{line:?}: {code} {said}");
        }
    };
    in_theirs(&theirs);
    // Nor in an empty directory of theirs, or one that anybody can change.
    let empty = place.at("own/empty");
    as_stranger(|| fs::create_dir(&empty).unwrap());
    in_theirs_empty(&empty, &mnt, "belongs to user 65534");
    let shared = place.at("shared");
    fs::create_dir(&shared).unwrap();
    open_up(&shared, 0o1777);
    in_theirs_empty(&shared, &mnt, "is open to other users (mode 1777)");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");

    // What was made before and is open to others is refused until it is closed, as the refusal says.
    let own = place.at("c");
    good(&["mkfs", "--dir", text(&own), "--osts", "1"]);
    open_up(&own.join("ost0"), 0o755);
    let (code, said) = refused(&["up", "--dir", text(&own), "--mount", text(&mnt)]);
    let (_, command) = said.trim().split_once("close it with '").unwrap();
    assert_eq!(code, libc::EACCES, "{said}");
    assert!(Command::new("sh").arg("-c").arg(command.trim_end_matches('\'')).status().unwrap().success());
    good(&["fsck", "--dir", text(&own)]);
}

fn in_theirs_empty(dir: &Path, mnt: &Path, why: &str) {
    let (code, said) = refused(&["up", "--dir", text(dir), "--mount", text(mnt)]);
    assert!(said.contains(why), "{code} {said}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing was made there");
}
