//! The size that the kernel believes: writes past it do not tell it a new one, it hears only that what it knows is no longer so. What asks
//! (stat, lseek to the end) gets the right answer; what believes without asking would not: mappings, copies inside the
//! kernel, appends. So before these, and before others may see the file, the kernel is made to ask.
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::{c_int, c_uint, off_t, size_t, ssize_t};

use crate::errno::quietly;
use crate::own::Inside;
use crate::{real, table};

/// Something was written past the kernel by this process.
static WROTE: AtomicBool = AtomicBool::new(false);

/// Something was written.
pub fn on_written() {
    if !WROTE.load(Relaxed) {
        WROTE.store(true, Relaxed);
    }
}

/// Makes the kernel ask for what it does not know of a file.
pub fn ask(fd: c_int) {
    let mut of = MaybeUninit::<libc::statx>::uninit();
    // SAFETY: the path is empty and ends with a zero; `of` has room for the answer.
    unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_SIZE, of.as_mut_ptr()) };
}

/// A call is next that believes the kernel's size of a file: perhaps of one that was written to by another descriptor.
pub fn believed(fd: c_int) {
    if fd >= 0 && WROTE.load(Relaxed) && !Inside::is_so() {
        quietly(|| ask(fd));
    }
}

/// A descriptor is closed.
pub fn closing(fd: c_int) {
    let _inside = Inside::enter();
    if WROTE.load(Relaxed)
        && let Some(open) = table::of(fd)
        && open.wrote.swap(false, Relaxed)
    {
        quietly(|| ask(fd));
    }
}

/// Others may have descriptors from now on.
pub fn sharing() {
    if WROTE.load(Relaxed) {
        table::known_within(0, usize::MAX).for_each(closing);
    }
}

/// copy_file_range(2).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    believed(from);
    believed(to);
    // SAFETY: the caller's.
    unsafe { real::copy_file_range(from, from_at, to, to_at, len, flags) }
}

/// sendfile(2).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
    believed(from);
    // SAFETY: the caller's.
    unsafe { real::sendfile64(to, from, at, len) }
}

/// sendfile64(3).
///
/// # Safety
/// As [`sendfile`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { sendfile(to, from, at, len) }
}

/// splice(2).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    believed(from);
    believed(to);
    // SAFETY: the caller's.
    unsafe { real::splice(from, from_at, to, to_at, len, flags) }
}
