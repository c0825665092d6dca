//! Mounting: from a directory to a `/dev/fuse` descriptor and back, with every refusal saying what to do.
//!
//! Root mounts with mount(2), everybody else through fusermount3. The mount point is checked before: missing, not a
//! directory, busy, or occupied by a FUSE mount whose daemon died.
mod connection;
mod fusermount;
mod holders;
mod options;
mod outside;
mod supervise;
mod table;

pub use connection::{Connection, abort};
pub(crate) use fusermount::find_fusermount;
pub use holders::{Copy, User, copies, users};
pub use options::{MountOptions, OptionError};
pub use outside::{OutsideError, resolve_outside};
pub use supervise::Supervisor;
pub use table::{MountEntry, mounts};

use crate::init::SessionConfig;
use crate::session::{Session, SessionError, TransportChoice};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A path as a word of a command that people are told to run.
fn word(path: &Path) -> String {
    types::shell_word(path.as_os_str().as_bytes())
}

/// Why a mount or unmount did not happen.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point does not exist.
    #[error("mount point {} does not exist: create it first (mkdir -p {p})", .0.display(), p = .0.display())]
    Missing(PathBuf),
    /// The mount point is not a directory.
    #[error("mount point {} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// Something is mounted there.
    #[error("mount point {} is busy: {kind} file system '{source_name}' is mounted there; unmount it (umount {p}) or use -o over_mount", .at.display(), p = word(.at))]
    Busy {
        /// The mount point.
        at: PathBuf,
        /// Type of what is mounted.
        kind: String,
        /// Its source.
        source_name: String,
    },
    /// A FUSE mount without a daemon is there.
    #[error("mount point {} holds a dead FUSE mount (its daemon is gone): detach it (umount -l {p}) or use -o clean_stale", .0.display(), p = word(.0))]
    Stale(PathBuf),
    /// A FUSE mount whose daemon does not answer is there.
    #[error("mount point {} holds a FUSE mount that does not answer: end it (umount -f -l {p})", .0.display(), p = word(.0))]
    Hangs(PathBuf),
    /// Programs still use the mount.
    #[error("{} is still in use: close the programs that use it (fuser -vm {p}), or unmount lazily", .at.display(), p = word(.at))]
    StillBusy {
        /// The mount point.
        at: PathBuf,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse: {0}; load the module (modprobe fuse), or give the container the device")]
    NoDevice(io::Error),
    /// fusermount3 is missing.
    #[error("mounting as a user needs fusermount3 (package fuse3), which is not installed")]
    NoFusermount,
    /// fusermount3 refused.
    #[error("fusermount3 refused {}: {said}", .at.display())]
    Fusermount {
        /// The mount point.
        at: PathBuf,
        /// What it said.
        said: String,
    },
    /// A system call failed.
    #[error("{what} {}: {source}", .at.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The mount point.
        at: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The session did not start.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl MountError {
    pub(crate) fn io(what: &'static str, at: &Path, source: io::Error) -> Self {
        MountError::Io { what, at: at.into(), source }
    }
}

/// A mounted file system. Dropping it leaves the mount as it is; see [`Mount::unmount`] and [`Mount::supervise`].
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
    by_user: bool,
    connection: Option<Arc<Connection>>,
    supervisor: Option<Supervisor>,
    _auto_unmount: Option<UnixStream>,
}

/// Pages that this machine's kernel sends in a request at most, where it says so (Linux since 6.13).
fn pages_limit() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok()?.trim().parse().ok()
}

/// Mounts a file system at `at` and starts its session: afterwards its workers must be served.
///
/// # Errors
/// [`MountError`]; nothing stays mounted.
pub fn mount(
    at: &Path,
    options: &MountOptions,
    config: SessionConfig,
    choice: TransportChoice,
) -> Result<(Session, Mount), MountError> {
    let max_pages_limit = pages_limit().unwrap_or(config.max_pages_limit);
    let config = SessionConfig { max_read_bytes: options.max_read_bytes, max_pages_limit, ..config };
    let at = check_mount_point(at, options)?;
    // SAFETY: plain system call without arguments.
    let by_user = unsafe { libc::geteuid() } != 0;
    let (fd, socket) = if by_user { fusermount::mount(&at, options)? } else { (mount_directly(&at, options)?, None) };
    let connection = table::connection_at(&at).map(|number| Arc::new(Connection::open(number)));
    let mut mount = Mount { at, by_user, connection, supervisor: None, _auto_unmount: socket };
    match Session::start(fd, config, choice) {
        Ok(session) => {
            session.set_root(c_path(&mount.at)?);
            if options.auto_unmount && !by_user {
                mount.supervise(false)?;
            }
            Ok((session, mount))
        }
        Err(e) => {
            if let Err(left) = mount.unmount(true) {
                tracing::warn!("after a failed start: {left}");
            }
            Err(e.into())
        }
    }
}

impl Mount {
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// The kernel's connection, if known.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref()
    }

    /// Starts a tiny process that aborts the connection when this process dies, however it dies, and detaches the mount
    /// then, or keeps it in its place (`keep`): dead, so that nothing lands in the directory below.
    ///
    /// # Errors
    /// [`MountError`] when no process can be made.
    pub fn supervise(&mut self, keep: bool) -> Result<(), MountError> {
        if self.supervisor.is_none() {
            let started = Supervisor::start(&self.at, self.connection.as_deref(), self.by_user, keep);
            self.supervisor = Some(started.map_err(|e| MountError::io("starting the supervisor of", &self.at, e))?);
        }
        Ok(())
    }

    /// Unmounts. `lazy` detaches at once even if programs still use it. Afterwards the session's workers end.
    ///
    /// # Errors
    /// [`MountError`]; still mounted then. Already unmounted by others is no error.
    pub fn unmount(&mut self, lazy: bool) -> Result<(), MountError> {
        // Something else may be mounted at the same place by now: it is not ours.
        if self.is_mounted()
            && let Err(e) = unmount(&self.at, lazy)
            && self.is_mounted()
        {
            return Err(e);
        }
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.dismiss();
        }
        Ok(())
    }

    /// Whether this very mount is still in the mount table.
    pub fn is_mounted(&self) -> bool {
        self.connection.as_ref().is_some_and(|c| c.is_mounted_at(&self.at))
    }

    /// Ends the connection by force: every caller gets an error, every worker ends. Works when nothing else does.
    ///
    /// # Errors
    /// The system's answer when neither the control file nor a forced unmount (root only) works.
    pub fn abort(&self) -> io::Result<()> {
        let by_file = self.connection.as_ref().ok_or(io::ErrorKind::Unsupported.into()).and_then(|c| c.abort());
        if by_file.is_ok() || !self.is_mounted() {
            return Ok(());
        }
        // Where fusectl is not mounted: a forced unmount aborts first.
        let path = CString::new(self.at.as_os_str().as_bytes())?;
        let flags = libc::UMOUNT_NOFOLLOW | libc::MNT_FORCE | libc::MNT_DETACH;
        // SAFETY: a NUL-terminated path that outlives the call.
        if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Unmounts whatever FUSE file system is at `at`, as root directly, otherwise through fusermount3.
///
/// # Errors
/// [`MountError`]; still mounted then.
pub fn unmount(at: &Path, lazy: bool) -> Result<(), MountError> {
    // SAFETY: plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return fusermount::unmount(at, lazy);
    }
    let path = c_path(at)?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: a NUL-terminated path that outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EBUSY) => Err(MountError::StillBusy { at: at.into() }),
        _ => Err(MountError::io("unmounting", at, e)),
    }
}

/// Checks that a file system can be mounted at `at`, and returns its absolute path. A dead FUSE mount there is detached
/// if the options say so.
///
/// # Errors
/// [`MountError`] naming what is in the way.
pub fn check_mount_point(at: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    // Only the parent is resolved: looking at the mount point itself could hang in a dead mount.
    let name = at.file_name().unwrap_or(OsStr::new("."));
    let parent = match at.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|_| MountError::Missing(at.into()))?;
    let full = if at.is_absolute() && at.parent().is_none() { PathBuf::from("/") } else { parent.join(name) };
    loop {
        match look(&full) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(MountError::Hangs(full)),
            Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
                let ours = || table::mount_at(&full).is_some_and(|m| m.kind == "fuse.stria");
                if !(options.clean_stale || options.keep_dead && ours()) {
                    return Err(MountError::Stale(full));
                }
                unmount(&full, true)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(MountError::Missing(full)),
            Err(e) => return Err(MountError::io("looking at mount point", &full, e)),
            Ok(meta) if !meta.is_dir() => return Err(MountError::NotADirectory(full)),
            Ok(_) => break,
        }
    }
    let full = full.canonicalize().map_err(|e| MountError::io("resolving mount point", &full, e))?;
    if !options.over_mount
        && let Some(entry) = table::mount_at(&full)
    {
        return Err(MountError::Busy { at: full, kind: entry.kind, source_name: entry.source });
    }
    Ok(full)
}

/// How long a FUSE mount found at the mount point may take to answer.
const LOOK_FOR: Duration = Duration::from_secs(3);

/// Looks at the mount point without hanging in a FUSE mount whose daemon does not answer.
fn look(at: &Path) -> io::Result<std::fs::Metadata> {
    if table::connection_at(at).is_none() {
        return std::fs::metadata(at);
    }
    let (tell, told) = std::sync::mpsc::channel();
    let path = at.to_owned();
    std::thread::spawn(move || {
        // Nobody listens any more after LOOK_FOR.
        let _ = tell.send(std::fs::metadata(path));
    });
    told.recv_timeout(LOOK_FOR).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn mount_directly(at: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let fd = OwnedFd::from(device.map_err(MountError::NoDevice)?);
    // SAFETY: plain system calls without arguments.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let c = |text: &str| CString::new(text).map_err(|e| MountError::io("mounting", at, e.into()));
    let (source, kind) = (c(&options.fsname)?, c("fuse.stria")?);
    let data = c(&options.mount_data(fd.as_raw_fd(), uid, gid))?;
    let target = c_path(at)?;
    // SAFETY: NUL-terminated strings that outlive the call.
    let rc = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), options.mount_flags(), data.as_ptr().cast())
    };
    if rc == 0 { Ok(fd) } else { Err(MountError::io("mounting", at, io::Error::last_os_error())) }
}

fn c_path(at: &Path) -> Result<CString, MountError> {
    CString::new(at.as_os_str().as_bytes()).map_err(|e| MountError::io("mounting", at, e.into()))
}
