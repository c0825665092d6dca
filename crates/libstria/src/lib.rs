//! libstria: the native path (`docs/reference/native.md`) for programs in C. What each function does stands in
//! `include/stria.h`, which is kept by hand: `crates/cluster/tests/libstria.rs` compiles a program against it that calls all,
//! and compares header, exports and `stria.map`.
//!
//! Every failure is -1 or a null pointer, with errno.
#![warn(missing_docs)]
use std::ffi::{CStr, OsStr};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_char, c_int, c_uint, c_void, off_t, size_t, ssize_t};
use native::{File, Pending};

pub mod queue;

fn fail<T>(value: T, e: &io::Error) -> T {
    // SAFETY: the calling thread's errno is always there.
    unsafe { *libc::__errno_location() = e.raw_os_error().unwrap_or(libc::EIO) };
    value
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn count(result: io::Result<usize>) -> ssize_t {
    match result.and_then(|n| ssize_t::try_from(n).map_err(|_| invalid())) {
        Ok(n) => n,
        Err(e) => fail(-1, &e),
    }
}

fn status(result: io::Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => fail(-1, &e),
    }
}

/// A buffer of the caller's for bytes that come.
///
/// # Safety
/// `len` bytes at `at` are the caller's to write, and nobody else's meanwhile; with `len` 0 `at` may be anything.
unsafe fn room<'a>(at: *mut c_void, len: size_t) -> io::Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(invalid());
    }
    // SAFETY: the caller's, and the length fits.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len) })
}

/// A buffer of the caller's with bytes that go.
///
/// # Safety
/// `len` bytes at `at` can be read and do not change meanwhile; with `len` 0 `at` may be anything.
unsafe fn bytes<'a>(at: *const c_void, len: size_t) -> io::Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(invalid());
    }
    // SAFETY: the caller's, and the length fits.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) })
}

fn offset(at: off_t) -> io::Result<u64> {
    u64::try_from(at).map_err(|_| invalid())
}

/// `stria_open`.
///
/// # Safety
/// `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_open(path: *const c_char, flags: c_int, mode: c_uint) -> *mut File {
    if path.is_null() {
        return fail(std::ptr::null_mut(), &io::Error::from_raw_os_error(libc::EFAULT));
    }
    // SAFETY: the caller's.
    let path = unsafe { CStr::from_ptr(path) };
    match File::open(Path::new(OsStr::from_bytes(path.to_bytes())), flags, mode) {
        Ok(file) => Box::into_raw(Box::new(file)),
        Err(e) => fail(std::ptr::null_mut(), &e),
    }
}

/// `stria_close`.
///
/// # Safety
/// `file` came from [`stria_open`], and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_close(file: *mut File) -> c_int {
    if file.is_null() {
        return fail(-1, &invalid());
    }
    // SAFETY: the caller's.
    let file = unsafe { Box::from_raw(file) };
    status(file.close())
}

/// `stria_fileno`.
///
/// # Safety
/// `file` came from [`stria_open`] and is not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_fileno(file: *const File) -> c_int {
    // SAFETY: the caller's.
    unsafe { (*file).as_raw_fd() }
}

/// `stria_is_native`.
///
/// # Safety
/// As [`stria_fileno`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_is_native(file: *const File) -> c_int {
    // SAFETY: the caller's.
    c_int::from(unsafe { (*file).is_native() })
}

/// `stria_pread`.
///
/// # Safety
/// As [`stria_fileno`]; `into` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_pread(file: *const File, into: *mut c_void, len: size_t, at: off_t) -> ssize_t {
    // SAFETY: the caller's.
    let (file, into) = unsafe { (&*file, room(into, len)) };
    count(into.and_then(|into| file.pread(into, offset(at)?)))
}

/// `stria_pwrite`.
///
/// # Safety
/// As [`stria_fileno`]; `len` bytes can be read at `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_pwrite(file: *const File, from: *const c_void, len: size_t, at: off_t) -> ssize_t {
    // SAFETY: the caller's.
    let (file, from) = unsafe { (&*file, bytes(from, len)) };
    count(from.and_then(|from| file.pwrite(from, offset(at)?)))
}

/// The parts of a vectored call; one without a length may be anywhere.
///
/// # Safety
/// `n` parts are there, and their memory is the caller's, to be written to for reads.
unsafe fn parts(at: *const libc::iovec, n: c_int) -> io::Result<Vec<libc::iovec>> {
    let n = usize::try_from(n).ok().filter(|n| *n <= libc::UIO_MAXIOV as usize && (*n == 0 || !at.is_null()));
    let n = n.ok_or_else(invalid)?;
    // SAFETY: the caller's.
    let raw = if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at, n) } };
    if raw.iter().any(|p| p.iov_base.is_null() && p.iov_len > 0 || isize::try_from(p.iov_len).is_err()) {
        return Err(invalid());
    }
    Ok(raw.iter().filter(|p| p.iov_len > 0).copied().collect())
}

/// `stria_preadv`.
///
/// # Safety
/// As [`stria_pread`], for each of `n` parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_preadv(file: *const File, into: *const libc::iovec, n: c_int, at: off_t) -> ssize_t {
    // SAFETY: the caller's.
    let (file, into) = unsafe { (&*file, parts(into, n)) };
    // SAFETY: as above; every part has an address and a length.
    let slice =
        |p: &libc::iovec| IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(p.iov_base.cast(), p.iov_len) });
    count(into.and_then(|into| file.preadv(&mut into.iter().map(slice).collect::<Vec<_>>(), offset(at)?)))
}

/// `stria_pwritev`.
///
/// # Safety
/// As [`stria_pwrite`], for each of `n` parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_pwritev(file: *const File, from: *const libc::iovec, n: c_int, at: off_t) -> ssize_t {
    // SAFETY: the caller's.
    let (file, from) = unsafe { (&*file, parts(from, n)) };
    // SAFETY: as above; every part has an address and a length.
    let slice = |p: &libc::iovec| IoSlice::new(unsafe { std::slice::from_raw_parts(p.iov_base.cast(), p.iov_len) });
    count(from.and_then(|from| file.pwritev(&from.iter().map(slice).collect::<Vec<_>>(), offset(at)?)))
}

/// `stria_fsync`.
///
/// # Safety
/// As [`stria_fileno`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_fsync(file: *const File) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { (*file).sync(false) })
}

/// `stria_fdatasync`.
///
/// # Safety
/// As [`stria_fileno`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_fdatasync(file: *const File) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { (*file).sync(true) })
}

fn begun(pending: io::Result<Pending>) -> *mut Pending {
    match pending {
        Ok(pending) => Box::into_raw(Box::new(pending)),
        Err(e) => fail(std::ptr::null_mut(), &e),
    }
}

/// `stria_begin_pread`.
///
/// # Safety
/// As [`stria_fileno`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_begin_pread(file: *const File, len: size_t, at: off_t) -> *mut Pending {
    // SAFETY: the caller's.
    let file = unsafe { &*file };
    begun(offset(at).and_then(|at| file.begin_pread(len, at)))
}

/// `stria_begin_pwrite`.
///
/// # Safety
/// As [`stria_pwrite`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_begin_pwrite(
    file: *const File,
    from: *const c_void,
    len: size_t,
    at: off_t,
) -> *mut Pending {
    // SAFETY: the caller's.
    let (file, from) = unsafe { (&*file, bytes(from, len)) };
    begun(from.and_then(|from| file.begin_pwrite(from, offset(at)?)))
}

/// `stria_is_done`.
///
/// # Safety
/// `request` came from a `stria_begin_` function and was not waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_is_done(request: *const Pending) -> c_int {
    // SAFETY: the caller's.
    c_int::from(unsafe { (*request).is_done() })
}

/// `stria_wait`.
///
/// # Safety
/// As [`stria_is_done`], for the last time; `into` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_wait(request: *mut Pending, into: *mut c_void, len: size_t) -> ssize_t {
    if request.is_null() {
        return fail(-1, &invalid());
    }
    // SAFETY: the caller's.
    let (request, into) = unsafe { (Box::from_raw(request), room(into, len)) };
    count(into.and_then(|into| request.wait(into)))
}
