//! What a kernel keeps below the names that it was told: mounts below the mount point, programs that run. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{Cluster, can_mount, good, text};

fn run(line: &[&str]) {
    let out = Command::new(line[0]).args(&line[1..]).output().unwrap();
    assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Something mounted, unmounted at the end whatever happened.
struct Mounted(PathBuf);

impl Mounted {
    fn new(kind: &str, options: &str, at: &Path) -> Mounted {
        fs::create_dir_all(at).unwrap();
        run(&["mount", "-t", kind, "-o", options, "none", text(at)]);
        Mounted(at.to_path_buf())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

/// A program that runs until it is dropped, from a copy of `cat` at a path of its own.
struct Running(Child);

impl Running {
    fn new(at: &Path) -> Running {
        run(&["cp", "/bin/cat", text(at)]);
        Running(Command::new(at).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }
    fn program(&self) -> PathBuf {
        fs::read_link(format!("/proc/{}/exe", self.0.id())).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another mount removes and replaces names that the kernel of this one was told.
fn names_change(here: &Path, there: &Path) {
    for i in 0..20 {
        let (gone, new) = (format!("gone{i}"), format!("new{i}"));
        fs::write(here.join(&gone), b"x").unwrap();
        fs::write(here.join(&new), b"old").unwrap();
        assert!(here.join(&gone).exists() && here.join(&new).exists());
        fs::remove_file(there.join(&gone)).unwrap();
        fs::write(there.join("other"), b"new").unwrap();
        fs::rename(there.join("other"), there.join(&new)).unwrap();
        assert!(!here.join(&gone).exists());
        assert_eq!(fs::read(here.join(&new)).unwrap(), b"new");
    }
}

#[test]
fn where_the_kernel_asks_for_names_mounts_below_and_running_programs_stay_whatever_other_mounts_do() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let (here, there) = (c.mount("m", &["--set", "mount.kernel_names=asked"]), c.mount("two", &[]));
    let outside = Mounted::new("tmpfs", "size=1m", &c.dir.path().join("tmpfs"));
    for dir in ["upper", "work"] {
        fs::create_dir(outside.0.join(dir)).unwrap();
    }
    fs::create_dir_all(here.join("lower/dir")).unwrap();
    fs::write(here.join("lower/dir/f"), b"below").unwrap();
    let (lower, own) = (here.join("lower"), text(&outside.0));
    let options = format!("lowerdir={},upperdir={own}/upper,workdir={own}/work", text(&lower));
    let overlay = Mounted::new("overlay", &options, &c.dir.path().join("overlay"));
    let below = Mounted::new("tmpfs", "size=1m", &here.join("dir/below"));
    fs::write(below.0.join("f"), b"in the tmpfs").unwrap();
    let program = Running::new(&here.join("program"));
    for _ in 0..2 {
        assert_eq!(fs::read(below.0.join("f")).unwrap(), b"in the tmpfs");
        assert_eq!(fs::read(overlay.0.join("dir/f")).unwrap(), b"below");
        assert!(here.join("program").exists());
        assert_eq!(program.program(), here.join("program"));
        names_change(&here, &there);
    }
    drop((program, below, overlay, outside));
    assert!(!here.join("dir/below/f").exists(), "the directory itself is empty");
    good(&["status", text(&here)]);
    c.stop();
}
