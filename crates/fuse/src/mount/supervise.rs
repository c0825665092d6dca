//! The supervisor: a tiny forked process that outlives the daemon by a moment and cleans up its mount, or keeps it in its
//! place, dead, so that programs get errors there instead of writing into the directory below.
//!
//! It sleeps on a pipe whose other end only the daemon holds. A byte means "unmounted, go"; end of file means that the
//! daemon died: the connection is aborted (so that nobody hangs) and the mount detached (unless it is kept). Where fusectl is
//! not mounted the kernel's own abort, when the last descriptor of the daemon is closed, must do; a mount that is to be kept
//! is detached there only when its daemon does not get out of its exit. A daemon that was killed while
//! it held files on its own mount hangs inside its exit and never closes the pipe, so the supervisor also looks now and
//! then whether the daemon is on its way out. On rings this does not help (Linux 6.18): the FLUSH that the dying process
//! sends to itself is bound to a ring entry whose work only that process could run, no abort ends it, and the process
//! stays in its exit for ever. So a daemon that serves rings must never hold files open on its own mount; the mount
//! itself does go away. Of other descriptors it holds the kernel's control files of the connection, in particular not `/dev/fuse`.
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Connection;

/// How often the supervisor looks whether the daemon hangs in its exit, in ms.
const LOOK_EVERY_MS: i32 = 1000;
/// How often, and every how many ms, the supervisor looks whether a daemon that dies has got out of its exit.
const LAST_LOOKS: u32 = 30;
const LAST_LOOK_EVERY_MS: i32 = 100;
/// How often a mount by a user is taken away before it is left.
const TRIES: u32 = 100;
const PF_EXITING: u64 = 4;

/// Handle on a supervisor process. Dropping it without [`Supervisor::dismiss`] makes it act.
#[derive(Debug)]
pub struct Supervisor {
    pid: libc::pid_t,
    pipe: Option<OwnedFd>,
}

/// Everything the child needs, made before the fork: afterwards it may not allocate.
struct Plan {
    pipe: i32,
    daemon_stat: CString,
    /// `waiting`, to be opened anew, and `abort` of the connection.
    control: Option<(CString, i32)>,
    /// What stays open in the child, in ascending order.
    held: Vec<u32>,
    at: CString,
    minor: Option<u32>,
    fusermount: Option<[CString; 5]>,
    keep: bool,
}

impl Supervisor {
    /// Forks the supervisor of the mount at `at`.
    ///
    /// # Errors
    /// The system's refusal to make a pipe or a process.
    pub(crate) fn start(
        at: &Path,
        connection: Option<&Connection>,
        by_user: bool,
        keep: bool,
    ) -> io::Result<Supervisor> {
        let mut fds = [0i32; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both were just made and belong to nobody else.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        let helper = if by_user { super::find_fusermount() } else { None };
        let at_c = CString::new(at.as_os_str().as_bytes())?;
        let fusermount = match helper {
            Some(p) => {
                let program = CString::new(p.as_os_str().as_bytes())?;
                Some([program, c"-u".into(), c"-z".into(), c"--".into(), at_c.clone()])
            }
            None => None,
        };
        let control = connection.and_then(Connection::descriptors);
        let mut held: Vec<u32> = control
            .map_or(Vec::new(), |(waiting, abort)| vec![waiting, abort])
            .into_iter()
            .chain([read.as_raw_fd()])
            .map(i32::cast_unsigned)
            .collect();
        held.sort_unstable();
        let anew = |fd: i32| CString::new(format!("/proc/self/fd/{fd}"));
        let plan = Plan {
            pipe: read.as_raw_fd(),
            daemon_stat: CString::new(format!("/proc/{}/stat", std::process::id()))?,
            control: control.map(|(waiting, abort)| anew(waiting).map(|path| (path, abort))).transpose()?,
            held,
            at: at_c,
            minor: connection.map(Connection::number),
            fusermount,
            keep,
        };
        // SAFETY: the child only makes async-signal-safe calls and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => child(&plan),
            pid => Ok(Supervisor { pid, pipe: Some(write) }),
        }
    }

    /// The supervisor's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends the supervisor away without action: the mount is gone.
    pub fn dismiss(mut self) {
        if let Some(pipe) = &self.pipe {
            // SAFETY: one byte from a live static.
            unsafe { libc::write(pipe.as_raw_fd(), b"q".as_ptr().cast(), 1) };
        }
        self.collect();
    }

    fn collect(&mut self) {
        self.pipe = None;
        // SAFETY: waits for our own child; no status wanted.
        while unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.pipe.is_some() {
            self.collect();
        }
    }
}

/// The child's whole life. Only async-signal-safe calls.
fn child(plan: &Plan) -> ! {
    // SAFETY: all calls are async-signal-safe system calls on values made before the fork; arguments are valid.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"stria-mount-sup".as_ptr());
        libc::chdir(c"/".as_ptr());
        let mut from: libc::c_uint = 0;
        for &fd in &plan.held {
            if fd > from {
                libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
            }
            from = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, from, libc::c_uint::MAX, 0);
        if daemon_died(plan) {
            clean_up(plan);
        }
        libc::_exit(0)
    }
}

/// Waits; false when dismissed.
unsafe fn daemon_died(plan: &Plan) -> bool {
    let mut exiting_seen = false;
    loop {
        let mut poll = libc::pollfd { fd: plan.pipe, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack; reads go to a one-byte local.
        let n = unsafe { libc::poll(&raw mut poll, 1, LOOK_EVERY_MS) };
        if n > 0 {
            let mut byte = 0u8;
            // SAFETY: as above.
            return unsafe { libc::read(plan.pipe, (&raw mut byte).cast(), 1) } != 1;
        }
        // SAFETY: async-signal-safe calls on a valid path.
        let exiting = unsafe { is_said(plan, stat_says_exiting) };
        if exiting && exiting_seen {
            return true;
        }
        exiting_seen = exiting;
    }
}

/// Waits a moment until nothing of the daemon is left but its exit status, thus no descriptor of the mount either: the kernel
/// aborts the connection then. False when it hangs in its exit.
unsafe fn is_over(plan: &Plan) -> bool {
    (0..LAST_LOOKS).any(|_| {
        // SAFETY: async-signal-safe calls on a valid path; a poll of no descriptors only waits.
        unsafe {
            is_said(plan, stat_says_over) || {
                libc::poll(std::ptr::null_mut(), 0, LAST_LOOK_EVERY_MS);
                false
            }
        }
    })
}

/// Whether `says` holds for the daemon's line in `/proc`, or it has none any more.
unsafe fn is_said(plan: &Plan, says: fn(&[u8]) -> bool) -> bool {
    let mut buf = [0u8; 512];
    // SAFETY: a NUL-terminated path and a buffer of the said length.
    let n = unsafe {
        let fd = libc::open(plan.daemon_stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return true;
        }
        let n = libc::read(fd, buf.as_mut_ptr().cast(), buf.len());
        libc::close(fd);
        n
    };
    usize::try_from(n).is_ok_and(|n| says(&buf[..n]))
}

/// State, flags and number of threads of `pid (name) state ppid pgrp session tty tpgid flags ...`. Does not allocate.
fn parsed(stat: &[u8]) -> Option<(u8, u64, u64)> {
    let end = stat.iter().rposition(|&b| b == b')')?;
    let mut fields = stat[end + 1..].split(|&b| b == b' ').filter(|f| !f.is_empty());
    let number =
        |f: &[u8]| f.iter().fold(0u64, |v, c| v.wrapping_mul(10).wrapping_add(u64::from(c.wrapping_sub(b'0') % 10)));
    let state = *fields.next()?.first()?;
    let flags = fields.nth(5).map_or(0, number);
    Some((state, flags, fields.nth(10).map_or(0, number)))
}

/// Whether the daemon's first thread is on its way out or already a zombie.
fn stat_says_exiting(stat: &[u8]) -> bool {
    parsed(stat).is_some_and(|(state, flags, _)| matches!(state, b'Z' | b'X') || flags & PF_EXITING != 0)
}

/// Whether all threads of the daemon are gone: it waits to be collected.
fn stat_says_over(stat: &[u8]) -> bool {
    parsed(stat).is_some_and(|(state, _, threads)| matches!(state, b'Z' | b'X') && threads <= 1)
}

/// Whether the mount is there, and ours.
unsafe fn is_there(plan: &Plan) -> bool {
    // SAFETY: async-signal-safe calls; NUL-terminated strings made before the fork; a byte and a plain structure on the stack.
    unsafe {
        // Of a connection that is gone the number may be another file system's already, at the same place.
        if let Some((waiting, _)) = &plan.control {
            let fd = libc::open(waiting.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if fd >= 0 {
                let mut byte = 0u8;
                let n = libc::read(fd, (&raw mut byte).cast(), 1);
                libc::close(fd);
                if n == 0 {
                    return false;
                }
            }
        }
        // DONT_SYNC: answered from memory, even by a mount that hangs. Anything but our device is not ours to unmount.
        let mut stat: libc::statx = std::mem::zeroed();
        let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
        match libc::statx(libc::AT_FDCWD, plan.at.as_ptr(), flags, 0, &raw mut stat) {
            0 => Some(stat.stx_dev_minor) == plan.minor && stat.stx_dev_major == 0,
            _ if matches!(*libc::__errno_location(), libc::ENOTCONN | libc::ECONNABORTED) => true,
            // The helper looks for itself.
            _ => plan.fusermount.is_some(),
        }
    }
}

/// Aborts the connection and detaches the mount (or keeps it), if it is still ours.
unsafe fn clean_up(plan: &Plan) {
    // SAFETY: async-signal-safe calls; NUL-terminated strings made before the fork; plain structures on the stack.
    unsafe {
        if !is_there(plan) {
            return;
        }
        let aborted = plan.control.as_ref().is_some_and(|(_, abort)| libc::write(*abort, b"1".as_ptr().cast(), 1) == 1);
        // Without the file above (no fusectl), and with a daemon that hangs in its exit, there is no other way to free those who wait there
        // than to take the mount away.
        if plan.keep && (aborted || is_over(plan)) {
            return;
        }
        match &plan.fusermount {
            Some(args) => {
                let argv = [
                    args[0].as_ptr(),
                    args[1].as_ptr(),
                    args[2].as_ptr(),
                    args[3].as_ptr(),
                    args[4].as_ptr(),
                    std::ptr::null(),
                ];
                // It reads the table of mounts, in which it may miss one while others come and go.
                for _ in 0..TRIES {
                    // Of this process, with one thread, which the child leaves at once.
                    let helper = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t;
                    if helper == 0 {
                        libc::execv(argv[0], argv.as_ptr());
                        libc::_exit(127);
                    }
                    while helper > 0
                        && libc::waitpid(helper, std::ptr::null_mut(), 0) < 0
                        && *libc::__errno_location() == libc::EINTR
                    {}
                    if !is_there(plan) {
                        return;
                    }
                    libc::poll(std::ptr::null_mut(), 0, LAST_LOOK_EVERY_MS);
                }
            }
            None => {
                // Forced: aborts the connection also where fusectl is not mounted.
                libc::umount2(plan.at.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_hanging_in_its_exit_is_told_from_a_living_one() {
        assert!(!stat_says_exiting(b"71 (st) ria (x) S 1 71 71 0 -1 4194560 1 2"));
        assert!(stat_says_exiting(b"71 (stria) D 1 71 71 0 -1 4194564 1 2"));
        assert!(stat_says_exiting(b"71 (stria) Z 1 71 71 0 -1 4194560 1 2"));
        assert!(!stat_says_exiting(b""));
        assert!(!stat_says_exiting(b"71 (stria"));
    }

    #[test]
    fn a_daemon_is_over_when_its_last_thread_is() {
        let line = |state: &str, threads: u32| {
            format!("71 (st) ria) {state} 1 71 71 0 -1 4194564 1 2 3 4 5 6 7 8 20 0 {threads} 0 9")
        };
        assert!(stat_says_over(line("Z", 1).as_bytes()));
        assert!(!stat_says_over(line("Z", 3).as_bytes()), "its other threads still close what it had open");
        assert!(!stat_says_over(line("D", 1).as_bytes()));
        assert!(!stat_says_over(b""));
    }
}
