//! Little of what a daemon needs: memory, descriptors, threads. What is too little is told at once and leaves nothing behind; with little
//! memory a cluster lives on. Needs root and `/dev/fuse`, and control groups that can be made.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{can_mount, good, text};

/// A control group that limits memory or the number of threads; gone when dropped.
struct Group(PathBuf);

impl Group {
    /// `None`, with a word why, where there can be none.
    fn new(controller: &str, file_v1: &str, file_v2: &str, limit: u64) -> Option<Group> {
        let name = format!("stria-test-{}", support::own_fsname());
        let places = [(format!("/sys/fs/cgroup/{controller}"), file_v1), ("/sys/fs/cgroup".into(), file_v2)];
        for (root, file) in places {
            let at = Path::new(&root).join(&name);
            if fs::create_dir(&at).is_ok() {
                let group = Group(at);
                if fs::write(group.0.join(file), limit.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        let why = format!("needs a control group with a limit of {controller}");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
        println!("not run: {why}");
        None
    }
    fn of_memory(bytes: u64) -> Option<Group> {
        Group::new("memory", "memory.limit_in_bytes", "memory.max", bytes)
    }
    /// Runs the program in it.
    fn run(&self, arguments: &[&str]) -> Output {
        let line = "echo $$ > \"$0\" && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", line]).arg(self.0.join("cgroup.procs")).arg(env!("CARGO_BIN_EXE_stria"));
        command.args(arguments).output().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes of it that end now are in it for another moment.
        for _ in 0..500 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
    }
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Directories of a cluster and of its mount, which is detached at the end.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("m")).unwrap();
        Place(dir)
    }
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn up<'a>(cluster: &'a Path, mount: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
        let mut line = vec!["up", "--background", "--osts", "4", "--dir", text(cluster), "--mount", text(mount)];
        line.extend(more);
        line
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.at("m")).output());
    }
}

/// Bytes of a file that can be told from others.
fn block(i: u64) -> Vec<u8> {
    let word = i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    word.iter().copied().cycle().take(1 << 20).collect()
}

#[test]
fn a_cluster_lives_on_in_a_control_group_that_is_smaller_than_the_usual_caches() {
    if !can_mount() {
        return;
    }
    for processes in [false, true] {
        let Some(group) = Group::of_memory(256 << 20) else { return };
        let p = Place::new();
        let (c, m) = (p.at("c"), p.at("m"));
        let out = group.run(&Place::up(&c, &m, if processes { &["--processes"] } else { &[] }));
        assert!(out.status.success(), "{}", said(&out));
        let pid = fs::read_to_string(c.join("run/up.pid")).unwrap();
        let wide = m.join("wide");
        good(&["setstripe", "-c", "4", "-S", "1M", text(&wide)]);
        let mut file = fs::File::options().write(true).open(&wide).unwrap();
        (0..1024).for_each(|i| file.write_all(&block(i)).unwrap());
        drop(file);
        for i in 0..4000 {
            fs::write(m.join(format!("f{i}")), b"x").unwrap();
        }
        let read = fs::read(&wide).unwrap();
        let differs = (0..1024).find(|i| read[*i << 20..][..1 << 20] != block(*i as u64)[..]);
        assert_eq!(differs, None, "a MiB that is another one");
        assert_eq!(fs::read_dir(&m).unwrap().count(), 4001);
        assert_eq!(fs::read_to_string(c.join("run/up.pid")).unwrap(), pid);
        assert!(!good(&["status", "--dir", text(&c)]).contains("started again"), "a server was killed");
        good(&["umount", text(&m)]);
    }
}

#[test]
fn caches_that_do_not_fit_are_refused_or_warned_of() {
    if !can_mount() {
        return;
    }
    let Some(group) = Group::of_memory(256 << 20) else { return };
    let p = Place::new();
    let (c, m) = (p.at("c"), p.at("m"));
    for more in [&["--set", "client.cache_bytes=1G"][..], &["--set", "client.cache_bytes=1G", "--processes"]] {
        let out = group.run(&Place::up(&c, &m, more));
        let text = said(&out);
        assert_eq!(out.status.code(), Some(libc::ENOMEM), "{text}");
        assert!(
            text.contains("client.cache_bytes = 1G") && text.contains("memory that this process may have"),
            "{text}"
        );
        assert!(!c.exists(), "nothing is left behind");
    }
    let out = group.run(&Place::up(&c, &m, &["--set", "client.cache_bytes=200M"]));
    let text = said(&out);
    assert!(out.status.success() && text.contains("may come to need"), "{text}");
    good(&["umount", support::text(&m)]);
}

#[test]
fn too_few_descriptors_are_refused_before_anything_is_made() {
    if !can_mount() {
        return;
    }
    let p = Place::new();
    let (c, m) = (p.at("c"), p.at("m"));
    for few in ["16", "18", "24", "32"] {
        for more in [&[][..], &["--processes"]] {
            let script = format!("ulimit -n {few}; exec \"$@\"");
            let line = Place::up(&c, &m, more);
            let out = Command::new("timeout")
                .args(["60", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_stria")])
                .args(&line)
                .output()
                .unwrap();
            assert_eq!(out.status.code(), Some(libc::EMFILE), "{few} {more:?}: {}", said(&out));
            assert!(said(&out).contains(&format!("may have {few} descriptors")), "{}", said(&out));
            assert!(!c.exists(), "nothing is left behind");
        }
    }
    // As many as it names are enough.
    let script = "ulimit -n 40; exec \"$@\"";
    let line = Place::up(&c, &m, &[]);
    let out = Command::new("sh").args(["-c", script, "sh", env!("CARGO_BIN_EXE_stria")]).args(&line).output().unwrap();
    let words = said(&out);
    let named = words.split("needs ").nth(1).unwrap().split(',').next().unwrap();
    let script = format!("ulimit -n {named}; exec \"$@\"");
    let out = Command::new("sh").args(["-c", &script, "sh", env!("CARGO_BIN_EXE_stria")]).args(&line).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    fs::write(m.join("f"), b"x").unwrap();
    good(&["umount", text(&m)]);
}

#[test]
fn too_few_threads_are_refused_before_anything_is_made() {
    if !can_mount() {
        return;
    }
    let Some(group) = Group::new("pids", "pids.max", "pids.max", 8) else { return };
    let p = Place::new();
    let (c, m) = (p.at("c"), p.at("m"));
    let out = group.run(&Place::up(&c, &m, &[]));
    assert_eq!(out.status.code(), Some(libc::EAGAIN), "{}", said(&out));
    assert!(said(&out).contains("threads and needs") && said(&out).contains("pids.max"), "{}", said(&out));
    assert!(!c.exists(), "nothing is left behind");
}
