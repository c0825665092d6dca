//! A cluster that `up` runs in the background, in one process or in many.
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{good, refused, stria, text};

/// A cluster that `up` runs, and its mount.
pub struct Up {
    pub dir: tempfile::TempDir,
    mounted: bool,
}

impl Up {
    pub fn new() -> Up {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Up { dir, mounted: false }
    }
    pub fn cluster(&self) -> String {
        text(&self.dir.path().join("c")).into()
    }
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }
    pub fn store(&self, name: &str) -> PathBuf {
        self.dir.path().join("c").join(name)
    }
    pub fn line<'a>(cluster: &'a str, mount: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut line = vec!["up", "--background", "--dir", cluster, "--mount", mount, "--set", "recovery.window_s=6"];
        line.extend(more);
        line
    }
    /// Brings it up; what was said.
    pub fn start(&mut self, more: &[&str]) -> String {
        let (cluster, mount) = (self.cluster(), self.at(""));
        let said = good(&Up::line(&cluster, text(&mount), more));
        self.mounted = true;
        said
    }
    pub fn start_refused(&self, more: &[&str]) -> (i32, String) {
        let (cluster, mount) = (self.cluster(), self.at(""));
        refused(&Up::line(&cluster, text(&mount), more))
    }
    /// Its cluster was brought up otherwise, and ends with this.
    pub fn adopt(&mut self) {
        self.mounted = true;
    }
    /// Unmounts it, which ends it.
    pub fn stop(&mut self) {
        good(&["umount", text(&self.at(""))]);
        self.mounted = false;
    }
    /// A file whose only object is on OST `ost`.
    pub fn file_on(&self, name: &str, ost: u16, content: &[u8]) {
        let at = self.at(name);
        good(&["setstripe", "-c", "1", "-i", &ost.to_string(), text(&at)]);
        fs::write(&at, content).unwrap();
    }
    pub fn ost_of(&self, name: &str) -> String {
        good(&["getstripe", "-i", text(&self.at(name))]).trim().to_string()
    }
    pub fn fsck(&self) -> (i32, String) {
        let out = stria(&["fsck", "--dir", &self.cluster()]);
        (out.status.code().unwrap(), String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.mounted {
            drop(Command::new("umount").arg("-l").arg(self.at("")).output());
        }
    }
}
