//! One FUSE connection as the kernel knows it, told from a later one that has the same number.
//!
//! Numbers are minors of devices without a disk: the next mount takes the one that was just given back. The kernel's control
//! files, once open, stay with their connection: of one that is gone, `waiting` is empty and `abort` does nothing.
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{MountError, holders, table, unmount};

/// How long a mount that nobody can be seen to use may refuse to go: a statfs(2) of all mounts, a look through `/proc` or the
/// end of a program hold it for moments.
const UNSEEN_MAX: Duration = Duration::from_secs(2);
/// How often such a mount is tried again.
const TRY_EVERY: Duration = Duration::from_millis(20);
/// Where the kernel's control files are (fusectl).
const CONTROL: &str = "/sys/fs/fuse/connections";

/// A FUSE connection. While it is there its number is nobody else's.
#[derive(Debug)]
pub struct Connection {
    number: u32,
    /// Where fusectl is mounted and may be used.
    control: Option<Control>,
}

/// The control files, open.
#[derive(Debug)]
struct Control {
    waiting: File,
    abort: File,
}

impl Control {
    fn open(number: u32) -> Option<Control> {
        let file = |name| format!("{CONTROL}/{number}/{name}");
        let waiting = File::open(file("waiting")).ok()?;
        let abort = OpenOptions::new().write(true).open(file("abort")).ok()?;
        Some(Control { waiting, abort })
    }
}

impl Connection {
    /// The connection that has this number now, under `/sys/fs/fuse/connections`.
    #[must_use]
    pub fn open(number: u32) -> Connection {
        Connection { number, control: Control::open(number) }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Descriptors of `waiting` and `abort`, for a process that may not allocate.
    pub(super) fn descriptors(&self) -> Option<(i32, i32)> {
        self.control.as_ref().map(|c| (c.waiting.as_raw_fd(), c.abort.as_raw_fd()))
    }

    /// Whether the kernel has it still: its file system is mounted, or in use. True where the kernel cannot be asked.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let Some(control) = &self.control else { return true };
        // An open file says what it said first: it is opened anew, by descriptor.
        let anew = File::open(format!("/proc/self/fd/{}", control.waiting.as_raw_fd()));
        anew.and_then(|mut f| f.read(&mut [0; 1])).map_or(true, |n| n > 0)
    }

    /// Whether it is what is mounted at `at`, in this mount namespace.
    #[must_use]
    pub fn is_mounted_at(&self, at: &Path) -> bool {
        self.is_there() && table::connection_at(at) == Some(self.number)
    }

    /// Unmounts it from `at`; anything else that is mounted there is left alone. Whether it was there. Waits up to 2 s for uses
    /// that no program can be seen to make.
    ///
    /// # Errors
    /// As [`unmount`].
    pub fn unmount(&self, at: &Path, lazy: bool) -> Result<bool, MountError> {
        let end = Instant::now() + UNSEEN_MAX;
        loop {
            if !self.is_mounted_at(at) {
                return Ok(false);
            }
            match unmount(at, lazy) {
                Err(MountError::StillBusy { .. }) if Instant::now() < end && self.is_unused() => {
                    std::thread::sleep(TRY_EVERY);
                }
                other => return other.map(|()| true),
            }
        }
    }

    fn is_unused(&self) -> bool {
        holders::users(self.number).is_some_and(|users| users.is_empty())
    }

    /// Ends it by force: every caller gets an error, every worker ends. Nothing happens to one that is gone. Root may do that, or
    /// the user who mounted.
    ///
    /// # Errors
    /// The system's answer; `NotFound` also when fusectl is not mounted on `/sys/fs/fuse/connections` and cannot be.
    pub fn abort(&self) -> io::Result<()> {
        match &self.control {
            Some(control) => (&control.abort).write_all(b"1"),
            None => abort(self.number),
        }
    }
}

/// Aborts the FUSE connection that has `number` now: [`Connection::abort`].
///
/// # Errors
/// As there.
pub fn abort(number: u32) -> io::Result<()> {
    let open = || OpenOptions::new().write(true).open(format!("{CONTROL}/{number}/abort"));
    match open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound && table::mount_at(Path::new(CONTROL)).is_none() => {
            let (kind, at) = (c"fusectl".as_ptr(), c"/sys/fs/fuse/connections");
            // SAFETY: static NUL-terminated strings; no data.
            if unsafe { libc::mount(kind, at.as_ptr(), kind, 0, std::ptr::null()) } != 0 {
                return Err(e);
            }
            open()
        }
        other => other,
    }
    .and_then(|mut file| file.write_all(b"1"))
}
