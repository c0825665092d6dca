//! Where the demonstration happens, and what it needs of the machine.
use std::fs;
use std::path::{Path, PathBuf};

use fuse::probe::{RingRefusal, enable_ring, probe};
use types::GIB;

use crate::cli;
use crate::failure::{Failure, Outcome};

/// Says what is missing, and switches FUSE over io_uring on where that is allowed.
pub fn check_machine() -> Outcome {
    let probe = probe();
    // SAFETY: plain system call without arguments.
    let root = unsafe { libc::geteuid() } == 0;
    if let Some(why) = &probe.dev {
        return Err(Failure::with_errno(
            format!(
                "a mount needs /dev/fuse: {why}\n  load the module (modprobe fuse), or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
            ),
            libc::ENODEV,
        ));
    }
    if !root && probe.fusermount.is_none() {
        return Err(Failure::with_errno(
            "mounting as a user needs fusermount3: install package fuse3 (apt-get install fuse3, dnf install fuse3), or run this as root",
            libc::ENOENT,
        ));
    }
    match probe.ring {
        Some(RingRefusal::SwitchedOff { can_switch_on: true }) => match enable_ring() {
            Ok(()) => {
                note!("FUSE over io_uring was off; it is on now (echo Y > /sys/module/fuse/parameters/enable_uring)")
            }
            Err(e) => note!("FUSE over io_uring stays off: {e}"),
        },
        Some(why) => note!("FUSE over io_uring: {why}; /dev/fuse is used, which costs more CPU"),
        None => {}
    }
    Ok(())
}

/// A directory that goes when the demonstration ends.
pub struct Place(PathBuf);

impl Place {
    /// Makes one: where told, in shared memory when there is room, else under `target`.
    pub fn make(arguments: &cli::Demo) -> Result<Place, Failure> {
        let need = (arguments.large + 2 * arguments.crates + GIB).max(4 * GIB);
        let shm = Path::new("/dev/shm");
        let parent = match &arguments.dir {
            Some(dir) => dir.clone(),
            None if free_bytes(shm).is_some_and(|free| free > need) => shm.into(),
            None => std::env::current_dir().map_err(|e| Failure::io("looking at", Path::new("."), &e))?.join("target"),
        };
        fs::create_dir_all(&parent).map_err(|e| Failure::io("making", &parent, &e))?;
        let parent = parent.canonicalize().map_err(|e| Failure::io("looking at", &parent, &e))?;
        if let Some(free) = free_bytes(&parent).filter(|free| *free < arguments.large + 2 * arguments.crates) {
            return Err(Failure::with_errno(
                format!(
                    "{} has {} free, the demonstration needs {}: say --dir DIR, or less with --large and --crates",
                    parent.display(),
                    types::format_size(free),
                    types::format_size(arguments.large + 2 * arguments.crates)
                ),
                libc::ENOSPC,
            ));
        }
        let path = parent.join(format!("stria-demo-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| Failure::io("making", &path, &e))?;
        Ok(Place(path))
    }
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nothing is removed through a mount that is still there.
        if fuse::mount::mounts().iter().any(|m| m.at.starts_with(&self.0)) {
            eprintln!("{} stays: something is still mounted in it", self.0.display());
        } else if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {e}", self.0.display());
        }
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let c = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero structure is valid and filled in; the path outlives the call.
    unsafe {
        let mut s: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(c.as_ptr(), &raw mut s) == 0).then(|| s.f_bavail * s.f_frsize)
    }
}
