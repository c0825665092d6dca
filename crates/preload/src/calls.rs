//! The calls that move bytes, under all the names that the C library has for them: through the rings, or the next function.
//!
//! The next function may be a place where a thread is cancelled, which unwinds through here: nothing is held then.
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

use crate::bytes::{self, At};
use crate::{real, sizes};

fn one(at: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// The parts of a vectored call; none where the kernel would refuse them.
///
/// # Safety
/// `n` parts are there.
unsafe fn parts<'a>(at: *const iovec, n: c_int) -> &'a [iovec] {
    match usize::try_from(n) {
        // SAFETY: the caller's.
        Ok(n) if n <= libc::UIO_MAXIOV as usize && !at.is_null() => unsafe { std::slice::from_raw_parts(at, n) },
        _ => &[],
    }
}

/// A call of the kernel's that uses a position.
fn at_position(fd: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    let open = bytes::kernel_begins(fd);
    let n = call();
    bytes::kernel_ended(open);
    n
}

/// A call of the kernel's is next that appends where the kernel believes the end to be.
fn end_is_known(fd: c_int, flags: c_int) {
    if flags & libc::RWF_APPEND != 0 {
        sizes::believed(fd);
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $($name:ident)+ ($($arg:ident: $type:ty),*) = $rings:expr, $next:expr;)*) => {
        $(calls!(@ [$($name)+] [$(#[$doc])*] ($($arg: $type),*) $rings, $next);)*
    };
    (@ [$($name:ident)+] $doc:tt $args:tt $rings:expr, $next:expr) => {
        $(calls!(# $name $doc $args $rings, $next);)+
    };
    (# $name:ident [$(#[$doc:meta])*] ($($arg:ident: $type:ty),*) $rings:expr, $next:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The C library's: the memory that is named is the caller's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> ssize_t {
            // SAFETY: the caller's.
            match unsafe { $rings } {
                Some(n) => n,
                // SAFETY: the caller's.
                None => unsafe { $next },
            }
        }
    };
}

calls! {
    /// read(2).
    read __read (fd: c_int, into: *mut c_void, len: size_t) =
        bytes::read(fd, &one(into, len), At::Position), at_position(fd, || real::read(fd, into, len));
    /// pread(2).
    pread pread64 __pread64 (fd: c_int, into: *mut c_void, len: size_t, at: off_t) =
        bytes::read(fd, &one(into, len), At::Offset(at)), real::pread64(fd, into, len, at);
    /// readv(2).
    readv (fd: c_int, into: *const iovec, n: c_int) = bytes::read(fd, parts(into, n), At::Position), at_position(fd, || real::readv(fd, into, n));
    /// preadv(2).
    preadv preadv64 (fd: c_int, into: *const iovec, n: c_int, at: off_t) =
        bytes::read(fd, parts(into, n), At::Offset(at)), real::preadv64(fd, into, n, at);
    /// preadv2(2): flags are the kernel's.
    preadv2 preadv64v2 (fd: c_int, into: *const iovec, n: c_int, at: off_t, flags: c_int) =
        if flags == 0 && at >= 0 { bytes::read(fd, parts(into, n), At::Offset(at)) } else { None },
        if at >= 0 { real::preadv64v2(fd, into, n, at, flags) } else { at_position(fd, || real::preadv64v2(fd, into, n, at, flags)) };
    /// read(2), as it is called where the compiler knows how much room there is.
    __read_chk (fd: c_int, into: *mut c_void, len: size_t, room: size_t) =
        if len <= room { bytes::read(fd, &one(into, len), At::Position) } else { None }, at_position(fd, || real::__read_chk(fd, into, len, room));
    /// pread(2), likewise.
    __pread_chk __pread64_chk (fd: c_int, into: *mut c_void, len: size_t, at: off_t, room: size_t) =
        if len <= room { bytes::read(fd, &one(into, len), At::Offset(at)) } else { None },
        real::__pread64_chk(fd, into, len, at, room);
    /// write(2).
    write __write (fd: c_int, from: *const c_void, len: size_t) =
        bytes::write(fd, &one(from, len), At::Position), at_position(fd, || real::write(fd, from, len));
    /// pwrite(2).
    pwrite pwrite64 __pwrite64 (fd: c_int, from: *const c_void, len: size_t, at: off_t) =
        bytes::write(fd, &one(from, len), At::Offset(at)), real::pwrite64(fd, from, len, at);
    /// writev(2).
    writev (fd: c_int, from: *const iovec, n: c_int) = bytes::write(fd, parts(from, n), At::Position), at_position(fd, || real::writev(fd, from, n));
    /// pwritev(2).
    pwritev pwritev64 (fd: c_int, from: *const iovec, n: c_int, at: off_t) =
        bytes::write(fd, parts(from, n), At::Offset(at)), real::pwritev64(fd, from, n, at);
    /// pwritev2(2): flags are the kernel's.
    pwritev2 pwritev64v2 (fd: c_int, from: *const iovec, n: c_int, at: off_t, flags: c_int) =
        if flags == 0 && at >= 0 { bytes::write(fd, parts(from, n), At::Offset(at)) } else { None },
        { end_is_known(fd, flags); if at >= 0 { real::pwritev64v2(fd, from, n, at, flags) } else { at_position(fd, || real::pwritev64v2(fd, from, n, at, flags)) } };
}

/// lseek(2): the position is the kernel's; calls under way that use it end first.
///
/// # Safety
/// None is asked of the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek(fd: c_int, to: off_t, whence: c_int) -> off_t {
    // SAFETY: the caller's.
    bytes::beside(fd, || unsafe { real::lseek64(fd, to, whence) })
}

/// lseek64(3).
///
/// # Safety
/// As [`lseek`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek64(fd: c_int, to: off_t, whence: c_int) -> off_t {
    // SAFETY: the caller's.
    unsafe { lseek(fd, to, whence) }
}

/// lseek(2), under a name of the C library's.
///
/// # Safety
/// As [`lseek`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __lseek(fd: c_int, to: off_t, whence: c_int) -> off_t {
    // SAFETY: the caller's.
    unsafe { lseek(fd, to, whence) }
}

/// setrlimit(2) and prlimit(2) are looked at for the limit of the length of files, which the kernel watches.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    of: libc::c_uint,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: the caller's.
    let done = unsafe { real::prlimit64(pid, of, new, old) };
    crate::errno::quietly(bytes::look_at_limit);
    done
}

/// prlimit(2).
///
/// # Safety
/// As [`prlimit64`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    of: libc::c_uint,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { prlimit64(pid, of, new, old) }
}

/// setrlimit(2).
///
/// # Safety
/// As [`prlimit64`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(of: libc::c_uint, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the caller's.
    unsafe { prlimit64(0, of, new, std::ptr::null_mut()) }
}

/// setrlimit64(3).
///
/// # Safety
/// As [`prlimit64`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(of: libc::c_uint, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the caller's.
    unsafe { prlimit64(0, of, new, std::ptr::null_mut()) }
}
