//! What is asked of the operating system: the clock, a sleep that ends at a moment, signals, space, the host's name.
use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use types::advise::{ADVISE, Advise};

/// Nanoseconds of CLOCK_MONOTONIC: never set back, its own on every host.
#[must_use]
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure on the stack, filled in by the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Sleeps until [`now_ns`] is `at`; not at all when it is past.
pub fn sleep_until(at: u64) {
    let t = libc::timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
    while now_ns() < at {
        // SAFETY: a valid moment on the stack; the rest of an absolute sleep is not asked for.
        unsafe {
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const t, std::ptr::null_mut())
        };
    }
}

/// The host's name.
#[must_use]
pub fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "?".into(), |n| n.trim().into())
}

/// Bytes that a file system has free for whoever asks.
///
/// # Errors
/// As statvfs(3).
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let c = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: an all-zero structure is valid and filled in; the path outlives the call.
    unsafe {
        let mut s: libc::statvfs = std::mem::zeroed();
        match libc::statvfs(c.as_ptr(), &raw mut s) {
            0 => Ok(s.f_bavail * s.f_frsize),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn stop_signals() -> libc::sigset_t {
    // SAFETY: an all-zero set is emptied before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Keeps SIGINT, SIGTERM and SIGHUP from ending the process; each of them is told to `on_signal` instead, until that says
/// that enough is enough. Threads that run already are not covered.
pub fn watch_signals(mut on_signal: impl FnMut(i32) -> bool + Send + 'static) {
    let set = stop_signals();
    // SAFETY: a valid set; the old mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    std::thread::spawn(move || {
        loop {
            let mut signal = 0;
            // SAFETY: a valid set and an integer on the stack.
            let rc = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
            if rc != 0 || !on_signal(signal) {
                return;
            }
        }
    });
}

/// The name of a signal that ended something.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGHUP => "SIGHUP".into(),
        libc::SIGINT => "SIGINT".into(),
        libc::SIGKILL => "SIGKILL".into(),
        libc::SIGTERM => "SIGTERM".into(),
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGABRT => "SIGABRT".into(),
        n => format!("signal {n}"),
    }
}

/// The kind of a FUSE file system.
const FUSE: u64 = 0x6573_5546;

/// Writes a file out and drops it from this host's caches: the kernel's, and a mount's of Stria, whose kernel keeps advice
/// to itself.
///
/// # Errors
/// The file cannot be opened or synced.
pub fn forget(path: &Path) -> io::Result<()> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?;
    let fd = file.as_raw_fd();
    // SAFETY: plain system call on an open descriptor; what it cannot drop stays.
    unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    let mut of = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `of` has room for the answer, and is read only after success.
    if unsafe { libc::fstatfs(fd, of.as_mut_ptr()) == 0 && of.assume_init().f_type as u64 == FUSE } {
        let said = Advise { offset: 0, len: 0, advice: libc::POSIX_FADV_DONTNEED }.bytes();
        // SAFETY: the argument has the length that the number of the ioctl says. Other mounts refuse it.
        unsafe { libc::ioctl(fd, libc::c_ulong::from(ADVISE), said.as_ptr()) };
    }
    Ok(())
}
