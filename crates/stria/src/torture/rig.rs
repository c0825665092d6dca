//! The cluster of a torture: servers as processes that are started again when they die, two mounts, and, for root, a disk of
//! its own for each store and a network namespace for each process.
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use super::disks::Disks;
use super::nets::Nets;
use crate::cli;
use crate::daemon::{Children, ClusterDir, Daemon, Host, Osts, settings_arguments, start_children};
use crate::failure::{Failure, Outcome};

/// Mounts of the cluster.
pub const MOUNTS: usize = 2;
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
    disks: Option<Disks>,
    nets: Option<Nets>,
    /// Goes last: the mounts lie on it.
    places: Option<Places>,
}

/// Directories to mount on, in a file system that can only be read: what a program does there while nothing is mounted must
/// fail, and not be taken for done.
struct Places(PathBuf);

impl Places {
    fn make(at: &Path, names: &[String]) -> Result<Places, String> {
        tool(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(at))?;
        let places = Places(at.into());
        for name in names {
            let own = at.join(name);
            fs::create_dir(&own).map_err(|e| format!("{}: {e}", own.display()))?;
        }
        tool(Command::new("mount").args(["-o", "remount,ro"]).arg(at))?;
        Ok(places)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Err(e) = tool(Command::new("umount").arg(&self.0)) {
            eprintln!("{} stays mounted: {e}", self.0.display());
        }
    }
}

/// The mount that looks at everything afterwards.
const FRESH: &str = "fresh";

/// The node that a mount is, for the network.
#[must_use]
pub fn mount_node(index: usize) -> String {
    format!("mount{index}")
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
        let path = root.join("cluster");
        let mut settings = arguments.settings.clone();
        let kept = std::mem::take(&mut settings.set);
        settings.set = SETTINGS.iter().map(ToString::to_string).chain(kept).collect();
        let osts = Some(arguments.osts);
        crate::daemon::mkfs(&cli::Mkfs { dir: path.clone(), osts, replace: None, settings: settings.clone() })?;
        let dir = ClusterDir::open(&path)?;
        let settings = settings_arguments(&settings);
        let targets = targets(arguments.osts);
        let disks = Disks::move_stores(&root, &path, &targets);
        if let Err(why) = &disks {
            note!("stores have no disks of their own ({why}): faults of classes 'full' and 'device' are left out");
        }
        // One more mount looks at everything afterwards.
        let nodes: Vec<String> = targets.into_iter().chain((0..=MOUNTS).map(mount_node)).collect();
        let nets = Nets::make(&nodes);
        if let Err(why) = &nets {
            note!("no network namespaces ({why}): faults of classes 'partition' and 'one-way' are left out");
        }
        let nets = nets.ok();
        let hosts = |name: &str| nets.as_ref().map_or_else(Host::default, |nets| server_host(nets, name));
        let servers = start_children(&dir, &Osts::all(arguments.osts), &settings, &hosts)?;
        let at = root.join("mnt");
        fs::create_dir(&at).map_err(|e| Failure::io("making", &at, &e))?;
        let names: Vec<String> = (0..MOUNTS).map(|i| i.to_string()).chain([FRESH.to_string()]).collect();
        let places = Places::make(&at, &names);
        if let Err(why) = &places {
            note!("mounts lie in a directory that can be written to ({why})");
        }
        let mut rig =
            Rig { root, dir, servers, mounts: Vec::new(), settings, disks: disks.ok(), nets, places: places.ok() };
        for name in &names[..MOUNTS] {
            rig.add_mount(name)?;
        }
        Ok(rig)
    }

    /// Mounts once more, where nothing was mounted before.
    ///
    /// # Errors
    /// The daemon's words.
    pub fn add_fresh_mount(&mut self) -> Result<PathBuf, Failure> {
        self.add_mount(FRESH)
    }

    fn add_mount(&mut self, name: &str) -> Result<PathBuf, Failure> {
        let at = self.root.join("mnt").join(name);
        if !at.is_dir() {
            fs::create_dir(&at).map_err(|e| Failure::io("making", &at, &e))?;
        }
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
        let netns = self.nets.as_ref().map(|nets| nets.file(&mount_node(index)));
        *m.lock() = Some(Daemon::start(&line, Some(&log), false, netns.as_deref())?);
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

    /// The disks of the stores, where this machine has some.
    #[must_use]
    pub fn disks(&self) -> Option<&Disks> {
        self.disks.as_ref()
    }
    /// The network, where it can be cut.
    #[must_use]
    pub fn nets(&self) -> Option<&Nets> {
        self.nets.as_ref()
    }
    /// A command that runs where server or mount `node` does.
    #[must_use]
    pub fn command_at(&self, node: &str, program: &str) -> Command {
        match &self.nets {
            None => Command::new(program),
            Some(nets) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &nets.namespace(node), program]);
                command
            }
        }
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

    /// Writes down what happened, and copies the servers' logs beside those of the mounts.
    pub fn keep_evidence(&self, trace: &str) {
        let path = self.root.join("trace.txt");
        if let Err(e) = fs::write(&path, trace) {
            eprintln!("{} is not written: {e}", path.display());
        }
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
        self.disks = None;
        self.places = None;
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

/// The stores of a cluster: `mdt0`, `ost0` ...
fn targets(osts: u16) -> Vec<String> {
    std::iter::once("mdt0".to_string()).chain((0..osts).map(|i| format!("ost{i}"))).collect()
}

fn server_host(nets: &Nets, name: &str) -> Host {
    let listen = ["--set".into(), format!("net.listen={}:0", nets.address(name)).into()];
    Host { netns: Some(nets.file(name)), settings: listen.into() }
}

/// Runs a command of the system.
///
/// # Errors
/// It is not there, or what it says.
pub fn tool(command: &mut Command) -> Result<(), String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().map_err(|e| format!("{shown}: {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("{shown}: {}", said.trim())) }
}
