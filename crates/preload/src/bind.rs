//! Which open files have numbers at a daemon, and whether a descriptor still is of the one that it is taken for.
//!
//! A number costs an ioctl and a request, a connection some more: files of which little is read or written stay the
//! kernel's. So do those whose flags ask for what the rings do not do, and those of which the kernel keeps pages: it
//! serves these faster.
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use libc::c_int;
use native::offer::Offer;
use native::{Bound, Room};

use crate::own;
use crate::table::{self, Open};

/// Calls of an open file that the kernel carries out before a number is asked for, unless [`AFTER`] says otherwise.
const CALLS: u32 = 8;
/// Names the number of those calls in the environment.
const AFTER: &std::ffi::CStr = c"STRIA_POSIX_AFTER";
static CALLS_BEFORE: AtomicU32 = AtomicU32::new(CALLS);

/// Flags of open(2) that must be what they were.
const COMPARED: c_int = libc::O_ACCMODE | libc::O_APPEND | libc::O_DIRECT | libc::O_SYNC | libc::O_DSYNC;
/// Flags of open files that stay the kernel's.
const REFUSED: c_int = libc::O_PATH | libc::O_DIRECT | libc::O_SYNC | libc::O_DSYNC | libc::O_ASYNC;

/// An open file with a number.
pub struct File {
    /// The number.
    pub bound: Bound,
    /// Its status flags and the mode it was opened in.
    pub flags: c_int,
    identity: Identity,
}

/// A file, as the kernel names it without asking its mount.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    regular: bool,
}

/// Reads the environment.
pub fn configure() {
    // SAFETY: the name ends with a zero; nobody changes the environment before the program begins.
    let told = unsafe {
        let value = crate::real::secure_getenv(AFTER.as_ptr());
        if value.is_null() { None } else { std::ffi::CStr::from_ptr(value).to_str().ok() }
    };
    if let Some(calls) = told.and_then(|t| t.parse().ok()) {
        CALLS_BEFORE.store(calls, Relaxed);
    }
}

fn identity(fd: c_int) -> Option<Identity> {
    let mut of = MaybeUninit::<libc::statx>::zeroed();
    let (flags, wanted) = (libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC, libc::STATX_INO | libc::STATX_TYPE);
    // SAFETY: the path is empty and ends with a zero; `of` has room for the answer.
    let failed = unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, wanted, of.as_mut_ptr()) };
    if failed != 0 {
        return None;
    }
    // SAFETY: the call succeeded, and every byte was zero before.
    let of = unsafe { of.assume_init() };
    let regular = u32::from(of.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    Some(Identity { device: (of.stx_dev_major, of.stx_dev_minor), inode: of.stx_ino, regular })
}

fn flags(fd: c_int) -> c_int {
    // SAFETY: plain system call.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) as c_int }
}

impl File {
    /// Whether the descriptor is of this file, with the flags that it had.
    #[must_use]
    pub fn is_of(&self, fd: c_int) -> bool {
        flags(fd) & COMPARED == self.flags & COMPARED && identity(fd) == Some(self.identity)
    }
    /// Whether writes go to the end.
    #[must_use]
    pub fn appends(&self) -> bool {
        self.flags & libc::O_APPEND != 0
    }
}

/// What became of the question for a number.
enum Answer {
    File(File),
    /// Never.
    No,
    /// Perhaps later.
    NotNow,
}

fn ask(open: &Open, fd: c_int) -> Answer {
    // All that is asked is of one file: who gives the descriptor another one waits, or is seen at the end.
    let position = open.position.lock();
    if !table::is_of(fd, open) {
        return Answer::NotNow;
    }
    let (flags, identity) = (flags(fd), identity(fd));
    // Mounts have no device of their own: its major number is 0.
    let Some(identity) = identity.filter(|i| i.regular && i.device.0 == 0 && flags >= 0 && flags & REFUSED == 0) else {
        return Answer::No;
    };
    // SAFETY: the descriptor was open just now; where it is closed meanwhile, the ioctl is refused.
    let Ok(offer) = Offer::of(unsafe { BorrowedFd::borrow_raw(fd) }) else { return Answer::No };
    if !table::is_of(fd, open) {
        return Answer::NotNow;
    }
    drop(position);
    if offer.paged {
        return Answer::No;
    }
    let bound = match Bound::to(&offer, Room::Free) {
        Ok(bound) => bound,
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => return Answer::NotNow,
        Err(_) => return Answer::No,
    };
    let file = File { bound, identity, flags };
    if own::keep(file.bound.connection()) { Answer::File(file) } else { Answer::No }
}

/// Decides how an open file is served, when it is time for that. The calling thread is inside.
pub fn settle(open: &Open, fd: c_int) {
    let calls = open.calls.fetch_add(1, Relaxed);
    if calls < CALLS_BEFORE.load(Relaxed) || !open.ask() {
        return;
    }
    undisturbed(|| match ask(open, fd) {
        Answer::File(file) => open.decide(Some(file)),
        Answer::No => open.decide(None),
        Answer::NotNow => open.put_off(),
    });
}

/// Does something that may not be left half done: connecting waits where threads may be cancelled, and handlers of signals may
/// jump away.
fn undisturbed(work: impl FnOnce()) {
    let (mut state, mut all, mut mask) =
        (0, MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: plain calls, with room for their answers.
    unsafe {
        pthread_setcancelstate(CANCEL_DISABLE, &raw mut state);
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), mask.as_mut_ptr());
    }
    work();
    // SAFETY: as above; the mask was filled.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
        pthread_setcancelstate(state, std::ptr::null_mut());
    }
}

const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
