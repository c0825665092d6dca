//! What the tests of the program share: running it, its daemons, and whether mounts can be made here.
#![allow(dead_code, reason = "every test binary uses its part")]
pub mod promises;
pub mod up;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Whether mounts can be made here; under CI they must.
pub fn can_mount() -> bool {
    // SAFETY: plain system call without arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let why = format!("needs root ({root}) and /dev/fuse ({device})");
    assert!(root && device || std::env::var("CI").as_deref() != Ok("true"), "{why}");
    if !(root && device) {
        println!("not run: {why}");
    }
    root && device
}

/// A name that no other file system of this host has.
pub fn own_fsname() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{:x}{:x}", std::process::id() & 0xf_ffff, NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a file that its owner alone may read.
pub fn write_secret(path: &Path, secret: &str) {
    fs::write(path, secret).unwrap();
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// Runs the program.
pub fn stria(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stria")).args(arguments).output().unwrap()
}

/// Runs it; it must succeed. What it printed.
pub fn good(arguments: &[&str]) -> String {
    let out = stria(arguments);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{arguments:?}: {said}");
    String::from_utf8(out.stdout).unwrap()
}

/// Runs it; it must fail. Exit code and stderr.
pub fn refused(arguments: &[&str]) -> (i32, String) {
    let out = stria(arguments);
    assert!(!out.status.success(), "{arguments:?} succeeded: {}", String::from_utf8_lossy(&out.stdout));
    (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// `status` of a mount, once it says so: a busy daemon or server may be late for one question.
pub fn status_that(at: &Path, is: impl Fn(&str) -> bool) -> String {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let shown = good(&["status", text(at)]);
        if is(&shown) {
            return shown;
        }
        assert!(std::time::Instant::now() < end, "{shown}");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

/// The log of a daemon, once it holds `text`.
pub fn in_log(log: &Path, text: &str) -> String {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let said = fs::read_to_string(log).unwrap_or_default();
        if said.contains(text) {
            return said;
        }
        assert!(std::time::Instant::now() < end, "the log never says '{text}': {said}");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
}

/// A daemon of the program; killed when dropped.
pub struct Daemon {
    pub child: Child,
    /// What it said when it was ready: its address.
    pub word: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts `stria ARGUMENTS`, its messages going to `log`, and waits until it is ready.
    pub fn start(arguments: &[&str], log: &Path) -> Daemon {
        Daemon::try_start(arguments, log).unwrap_or_else(|e| panic!("{arguments:?}: {e}"))
    }

    pub fn try_start(arguments: &[&str], log: &Path) -> Result<Daemon, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
        command.args(arguments);
        Daemon::launch(command, log)
    }

    /// Starts it in another time namespace, as on another host: it can look after no process of this one. It tells more, too.
    pub fn start_elsewhere(arguments: &[&str], log: &Path) -> Daemon {
        let mut command = Command::new("unshare");
        command.args(["--time", "--fork", "--kill-child", env!("CARGO_BIN_EXE_stria")]).args(arguments);
        command.env("STRIA_LOG", "info");
        Daemon::launch(command, log).unwrap_or_else(|e| panic!("{arguments:?}: {e}"))
    }

    /// Starts it as on a machine that tells what it is, in the boot whose id the file has.
    pub fn start_on_machine(boot_id: &Path, arguments: &[&str], log: &Path) -> Daemon {
        const MACHINE: &str = "set -e
            mount --bind \"$1\" /proc/sys/kernel/random/boot_id
            mount -t tmpfs none /sys/class
            mkdir -p /sys/class/dmi/id /sys/class/net/eth0/device
            echo 4c4c4544-0042-3510-8051-b4c04f4a4d32 > /sys/class/dmi/id/product_uuid
            echo 0c:42:a1:00:00:01 > /sys/class/net/eth0/address
            echo 0 > /sys/class/net/eth0/addr_assign_type
            printf 3d1219c7c4c5404aaa1f6d2a48adfda4 > /sys/class/machine-id
            touch /etc/machine-id
            mount --bind /sys/class/machine-id /etc/machine-id
            shift
            exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", MACHINE, "sh", text(boot_id)]);
        command.arg(env!("CARGO_BIN_EXE_stria")).args(arguments);
        Daemon::launch(command, log).unwrap_or_else(|e| panic!("{arguments:?}: {e}"))
    }

    fn launch(mut command: Command, log: &Path) -> Result<Daemon, String> {
        let file = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut child = command
            .env("STRIA_ANNOUNCE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match line.trim_end().strip_prefix("ready ") {
            Some(word) => Ok(Daemon { word: word.into(), child, log: log.into() }),
            None => {
                let status = child.wait().unwrap();
                Err(format!("{status} {line} {}", fs::read_to_string(log).unwrap_or_default()))
            }
        }
    }

    /// SIGKILL, as a crash would end it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it wrote to its log so far.
    pub fn said(&self) -> String {
        let mut said = String::new();
        fs::File::open(&self.log).unwrap().read_to_string(&mut said).unwrap();
        said
    }

    /// What it wrote to its log so far, once that holds `text`: daemons write their logs beside their work.
    pub fn says(&self, text: &str) -> String {
        in_log(&self.log, text)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Most memory it ever had resident, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster as processes of this test: a metadata server, one process per OST, and mounts.
pub struct Cluster {
    pub dir: tempfile::TempDir,
    pub mds: Option<Daemon>,
    pub oss: Vec<Option<Daemon>>,
    pub mounts: Vec<(PathBuf, Daemon)>,
}

impl Cluster {
    pub fn new(osts: usize) -> Cluster {
        Cluster::named(osts, "stria")
    }
    /// One whose file system has a name of its own, for commands that find it by that.
    pub fn named(osts: usize, fsname: &str) -> Cluster {
        Cluster::with(osts, &[&format!("cluster.fsname={fsname}")])
    }
    /// One that is made with settings.
    pub fn with(osts: usize, settings: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut c = Cluster { dir, mds: None, oss: (0..osts).map(|_| None).collect(), mounts: Vec::new() };
        let (at, number) = (c.path("c"), osts.to_string());
        let mut line = vec!["mkfs", "--dir", &at, "--osts", &number];
        settings.iter().for_each(|s| line.extend(["--set", s]));
        good(&line);
        c.start_mds();
        for i in 0..osts {
            c.start_oss(i);
        }
        c
    }
    pub fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name)).into()
    }
    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
    pub fn start_mds(&mut self) {
        let line = ["mds", "--dir", &self.path("c"), "--set", "recovery.window_s=15"];
        self.mds = Some(Daemon::start(&line, &self.log()));
    }
    pub fn start_oss(&mut self, i: usize) {
        let line = ["oss", "--dir", &self.path("c"), "--ost", &i.to_string(), "--set", "recovery.window_s=15"];
        self.oss[i] = Some(Daemon::start(&line, &self.log()));
    }
    pub fn mount(&mut self, name: &str, more: &[&str]) -> PathBuf {
        let at = self.dir.path().join(name);
        fs::create_dir_all(&at).unwrap();
        let (cluster, place) = (self.path("c"), text(&at).to_string());
        let mut line = vec!["mount", "--dir", &cluster, &place];
        line.extend(more);
        self.mounts.push((at.clone(), Daemon::start(&line, &self.dir.path().join(format!("{name}.log")))));
        at
    }
    /// Stops everything as an administrator does.
    pub fn stop(&mut self) {
        for (at, mut daemon) in self.mounts.drain(..) {
            good(&["umount", text(&at)]);
            daemon.child.wait().unwrap();
        }
        let servers = self.mds.iter_mut().chain(self.oss.iter_mut().flatten());
        for daemon in servers {
            // SAFETY: plain system call on a child that was not collected yet.
            unsafe { libc::kill(daemon.child.id() as i32, libc::SIGTERM) };
            assert!(daemon.child.wait().unwrap().success(), "{}", daemon.said());
        }
        self.mds = None;
        self.oss.iter_mut().for_each(|o| *o = None);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (at, _) in &self.mounts {
            drop(Command::new("umount").arg("-l").arg(at).output());
        }
    }
}

/// A file system of few bytes; gone when dropped.
pub struct SmallDisk {
    pub at: PathBuf,
}

impl SmallDisk {
    /// Mounts one below `dir`; `size` as tmpfs has it.
    pub fn mount(dir: &Path, size: &str) -> SmallDisk {
        let at = dir.join("small");
        fs::create_dir(&at).unwrap();
        let made = Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(&at).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        SmallDisk { at }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.at).output());
    }
}
