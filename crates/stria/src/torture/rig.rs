//! The cluster of a torture: servers as processes that are started again when they die, two mounts, and, for root, a
//! file system of its own below the stores that can be filled up.
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use types::format_size;

use crate::cli;
use crate::daemon::{Children, ClusterDir, Daemon, Osts, settings_arguments, start_children};
use crate::failure::{Failure, Outcome};

/// Mounts of the cluster.
pub const MOUNTS: usize = 2;
/// Size of the file system below the stores, in bytes.
const DISK_BYTES: u64 = 3 << 30;
/// Settings that make a torture short: short windows, so that evictions happen within a run.
const SETTINGS: &[&str] = &["recovery.window_s=10", "recovery.client_timeout_s=20"];

/// One mount: a daemon that can be stopped, killed and started again.
pub struct MountPoint {
    /// Where.
    pub at: PathBuf,
    daemon: Mutex<Option<Daemon>>,
}

/// Servers, mounts, disk.
pub struct Rig {
    root: PathBuf,
    /// The cluster's directory.
    pub dir: ClusterDir,
    /// The servers.
    pub servers: Children,
    /// The mounts.
    pub mounts: Vec<MountPoint>,
    settings: Vec<OsString>,
    disk: Option<Disk>,
}

impl Rig {
    /// Makes and starts a cluster in `arguments.dir`, which must be new or empty.
    ///
    /// # Errors
    /// The directory holds something, or the cluster does not start.
    pub fn start(arguments: &cli::Torture) -> Result<Rig, Failure> {
        let root = &arguments.dir;
        fs::create_dir_all(root).map_err(|e| Failure::io("making", root, &e))?;
        let root = root.canonicalize().map_err(|e| Failure::io("looking at", root, &e))?;
        let mut entries = fs::read_dir(&root).map_err(|e| Failure::io("reading", &root, &e))?;
        if let Some(Ok(other)) = entries.next() {
            let name = other.file_name();
            let why = format!(
                "{} is not empty ('{}' is there): torture needs a new or an empty directory",
                root.display(),
                name.to_string_lossy()
            );
            return Err(Failure::with_errno(why, libc::ENOTEMPTY));
        }
        close(&root)?;
        let disk = Disk::make(&root);
        if let Err(why) = &disk {
            note!("no disk of its own below the stores ({why}): faults of class 'full' are left out");
        }
        close(&root.join("disk"))?;
        let path = root.join("disk").join("cluster");
        let mut settings = arguments.settings.clone();
        let kept = std::mem::take(&mut settings.set);
        settings.set = SETTINGS.iter().map(ToString::to_string).chain(kept).collect();
        let osts = Some(arguments.osts);
        crate::daemon::mkfs(&cli::Mkfs { dir: path.clone(), osts, replace: None, settings: settings.clone() })?;
        let dir = ClusterDir::open(&path)?;
        let settings = settings_arguments(&settings);
        let servers = start_children(&dir, &Osts::all(arguments.osts), &settings)?;
        let mut rig = Rig { root, dir, servers, mounts: Vec::new(), settings, disk: disk.ok() };
        for i in 0..MOUNTS {
            rig.add_mount(&format!("mnt{i}"))?;
        }
        Ok(rig)
    }

    /// Mounts once more, as `name` in the torture's directory.
    ///
    /// # Errors
    /// The daemon's words.
    pub fn add_mount(&mut self, name: &str) -> Result<PathBuf, Failure> {
        let at = self.root.join(name);
        fs::create_dir(&at).map_err(|e| Failure::io("making", &at, &e))?;
        self.mounts.push(MountPoint { at: at.clone(), daemon: Mutex::new(None) });
        self.mount(self.mounts.len() - 1)?;
        Ok(at)
    }

    /// Starts the daemon of a mount.
    ///
    /// # Errors
    /// The daemon's words.
    pub fn mount(&self, index: usize) -> Outcome {
        let m = &self.mounts[index];
        let mut line: Vec<OsString> = vec!["mount".into(), "--dir".into(), self.dir.path().into(), m.at.clone().into()];
        line.extend(self.settings.iter().cloned());
        let log = self.root.join(format!("mount{index}.log"));
        *m.lock() = Some(Daemon::start(&line, Some(&log), false)?);
        Ok(())
    }

    /// Kills the daemon of a mount as a crash would, and takes what is left of the mount away.
    pub fn crash_mount(&self, index: usize) {
        let m = &self.mounts[index];
        if let Some(mut daemon) = m.lock().take() {
            // It may have ended by itself; then there is nothing to kill.
            let _ = daemon.child.kill();
            let _ = daemon.child.wait();
        }
        while fuse::mount::mounts().iter().any(|e| e.at == m.at) {
            if fuse::mount::unmount(&m.at, true).is_err() {
                break;
            }
        }
    }

    /// Sends a signal to the daemon of a mount.
    pub fn signal_mount(&self, index: usize, signal: i32) {
        if let Some(daemon) = &*self.mounts[index].lock() {
            // SAFETY: plain system call; the process is our child and not yet waited for.
            unsafe { libc::kill(daemon.child.id() as i32, signal) };
        }
    }

    /// Whether there is a disk that can be filled.
    #[must_use]
    pub fn can_fill(&self) -> bool {
        self.disk.is_some()
    }

    /// Takes all space of the disk below the stores; gives it back when the answer is dropped.
    ///
    /// # Errors
    /// The file that takes the space cannot be made.
    pub fn fill(&self) -> Result<Filler, Failure> {
        let path = self.root.join("disk").join("filler");
        let file = fs::File::create(&path).map_err(|e| Failure::io("making", &path, &e))?;
        let filler = Filler(path);
        use std::os::fd::AsRawFd;
        let (mut at, mut step) = (0_i64, 64_i64 << 20);
        while step >= 4096 {
            // SAFETY: plain system call on a descriptor that is open.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, at, step) } == 0 { at += step } else { step /= 2 }
        }
        note!("  the disk below the stores is full: {} are taken", format_size(at as u64));
        Ok(filler)
    }

    /// Unmounts and stops everything as an administrator does.
    ///
    /// # Errors
    /// What does not end in order.
    pub fn stop(&mut self) -> Outcome {
        let mut outcome = Ok(());
        for m in &self.mounts {
            let Some(mut daemon) = m.lock().take() else { continue };
            if let Err(e) = fuse::mount::unmount(&m.at, false) {
                outcome = outcome.and(Err(Failure::from(e.to_string())));
            }
            daemon.end();
        }
        self.servers.stop();
        outcome
    }

    /// Ends everything at once: for a run in which programs hang.
    pub fn abandon(&mut self) {
        for e in fuse::mount::mounts().into_iter().filter(|e| e.at.starts_with(&self.root) && e.kind == "fuse.stria") {
            if let Err(why) = fuse::mount::abort(e.minor) {
                eprintln!("aborting {}: {why}", e.at.display());
            }
        }
        for i in 0..self.mounts.len() {
            self.crash_mount(i);
        }
        self.servers.stop();
    }

    /// Lines of logs that say that somebody was evicted.
    #[must_use]
    pub fn evictions(&self) -> Vec<String> {
        let logs = fs::read_dir(self.dir.run()).into_iter().flatten().flatten().map(|e| e.path());
        let text = |p: PathBuf| fs::read_to_string(p).unwrap_or_default();
        logs.filter(|p| p.extension().is_some_and(|e| e == "log"))
            .flat_map(|p| {
                text(p).lines().filter(|l| l.contains("evicted")).map(ToString::to_string).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Copies the servers' logs beside those of the mounts: the disk below the stores does not stay mounted.
    pub fn keep_logs(&self) {
        for entry in fs::read_dir(self.dir.run()).into_iter().flatten().flatten() {
            let from = entry.path();
            if from.extension().is_some_and(|e| e == "log")
                && let Err(e) = fs::copy(&from, self.root.join(entry.file_name()))
            {
                eprintln!("{} is not copied: {e}", from.display());
            }
        }
    }

    /// Removes the directory. Call [`Rig::stop`] first.
    pub fn remove(mut self) {
        self.disk = None;
        let root = self.root.clone();
        drop(self);
        if let Err(e) = fs::remove_dir_all(&root) {
            eprintln!("{} stays: {e}", root.display());
        }
    }
}

/// Makes a directory its owner's alone, as those of clusters are.
fn close(at: &Path) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(at, mode).map_err(|e| Failure::io("closing", at, &e))
}

impl MountPoint {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().expect("who holds the lock does not panic")
    }
}

/// Space that is taken.
pub struct Filler(PathBuf);
impl Drop for Filler {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_file(&self.0) {
            eprintln!("{} stays: {e}", self.0.display());
        }
    }
}

/// A small file system in a file.
struct Disk {
    at: PathBuf,
}

impl Disk {
    fn make(root: &Path) -> Result<Disk, String> {
        let at = root.join("disk");
        fs::create_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        let image = root.join("disk.img");
        let file = fs::File::create(&image).map_err(|e| format!("{}: {e}", image.display()))?;
        file.set_len(DISK_BYTES).map_err(|e| format!("{}: {e}", image.display()))?;
        tool(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=1,nodiscard"]).arg(&image))?;
        tool(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        Ok(Disk { at })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(e) = tool(Command::new("umount").arg(&self.at)) {
            eprintln!("{} stays mounted: {e}", self.at.display());
        }
    }
}

fn tool(command: &mut Command) -> Result<(), String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().map_err(|e| format!("{shown}: {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("{shown}: {}", said.trim())) }
}
