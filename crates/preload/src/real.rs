//! The functions that this library stands before: the next of the same name, which is the C library's. Where that is not found
//! yet, because others begin before this library does, the kernel's call.
#![allow(non_snake_case, reason = "the names are the C library's")]
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{c_char, c_int, c_long, c_uint, c_void, iovec, mode_t, off_t, pid_t, size_t, ssize_t};

/// Looks a name up, and keeps what was found.
fn find(name: &CStr, kept: &AtomicPtr<c_void>) -> *mut c_void {
    let known = kept.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    kept.store(found, Relaxed);
    found
}

macro_rules! next {
    ($($name:ident ($($arg:ident: $type:ty),*) -> $back:ty, else $else:expr;)*) => {
        $(
            #[doc = concat!(stringify!($name), ", the next one.")]
            ///
            /// # Safety
            /// As the function's.
            #[inline]
            pub unsafe fn $name($($arg: $type),*) -> $back {
                let at = find($name::NAME, &$name::AT);
                if at.is_null() {
                    // SAFETY: the caller's.
                    return unsafe { $else };
                }
                // SAFETY: a function of this name has this type in every C library.
                let f: unsafe extern "C-unwind" fn($($type),*) -> $back = unsafe { std::mem::transmute(at) };
                // SAFETY: the caller's.
                unsafe { f($($arg),*) }
            }
            mod $name {
                use super::{AtomicPtr, CStr, c_void};
                pub(super) static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                // SAFETY: the bytes end with the only zero.
                pub(super) const NAME: &CStr = unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) };
            }
        )*
        /// Looks all of them up.
        pub fn find_all() {
            $(find($name::NAME, &$name::AT);)*
        }
    };
}

/// There is no such function, and no call of the kernel's in its place.
///
/// # Safety
/// None is asked: it stands where calls do that ask.
unsafe fn missing<T>(back: T) -> T {
    crate::errno::set_errno(libc::ENOSYS);
    back
}

/// The address of vfork(2), which may not be called from here: who calls it must not have returned when its child does.
#[must_use]
pub fn vfork_at() -> *mut c_void {
    static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    find(c"vfork", &AT)
}

/// The type of the structures that posix_spawn(3) takes; passed on as they are.
pub type Opaque = *const c_void;

next! {
    read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t, else libc::syscall(libc::SYS_read, fd, into, len) as ssize_t;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t, else libc::syscall(libc::SYS_write, fd, from, len) as ssize_t;
    pread64(fd: c_int, into: *mut c_void, len: size_t, at: off_t) -> ssize_t, else libc::syscall(libc::SYS_pread64, fd, into, len, at) as ssize_t;
    pwrite64(fd: c_int, from: *const c_void, len: size_t, at: off_t) -> ssize_t, else libc::syscall(libc::SYS_pwrite64, fd, from, len, at) as ssize_t;
    readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t, else libc::syscall(libc::SYS_readv, fd, parts, n) as ssize_t;
    writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t, else libc::syscall(libc::SYS_writev, fd, parts, n) as ssize_t;
    preadv64(fd: c_int, parts: *const iovec, n: c_int, at: off_t) -> ssize_t, else libc::syscall(libc::SYS_preadv, fd, parts, n, at, 0) as ssize_t;
    pwritev64(fd: c_int, parts: *const iovec, n: c_int, at: off_t) -> ssize_t, else libc::syscall(libc::SYS_pwritev, fd, parts, n, at, 0) as ssize_t;
    preadv64v2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t, else libc::syscall(libc::SYS_preadv2, fd, parts, n, at, 0, flags) as ssize_t;
    pwritev64v2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t, else libc::syscall(libc::SYS_pwritev2, fd, parts, n, at, 0, flags) as ssize_t;
    __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t, else missing(-1);
    __pread64_chk(fd: c_int, into: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t, else missing(-1);
    lseek64(fd: c_int, to: off_t, whence: c_int) -> off_t, else libc::syscall(libc::SYS_lseek, fd, to, whence) as off_t;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else libc::syscall(libc::SYS_openat, dir, path, flags, mode) as c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int, else missing(-1);
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, else missing(-1);
    close(fd: c_int) -> c_int, else libc::syscall(libc::SYS_close, fd) as c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, else libc::syscall(libc::SYS_close_range, first, last, flags) as c_int;
    dup(fd: c_int) -> c_int, else libc::syscall(libc::SYS_dup, fd) as c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, else libc::syscall(libc::SYS_dup3, fd, to, flags) as c_int;
    dup2(fd: c_int, to: c_int) -> c_int, else missing(-1);
    fcntl64(fd: c_int, what: c_int, arg: c_long) -> c_int, else libc::syscall(libc::SYS_fcntl, fd, what, arg) as c_int;
    sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t, else libc::syscall(libc::SYS_sendmsg, fd, message, flags) as ssize_t;
    sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, n: c_uint, flags: c_int) -> c_int, else libc::syscall(libc::SYS_sendmmsg, fd, messages, n, flags) as c_int;
    copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint) -> ssize_t, else libc::syscall(libc::SYS_copy_file_range, from, from_at, to, to_at, len, flags) as ssize_t;
    sendfile64(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t, else libc::syscall(libc::SYS_sendfile, to, from, at, len) as ssize_t;
    splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint) -> ssize_t, else libc::syscall(libc::SYS_splice, from, from_at, to, to_at, len, flags) as ssize_t;
    _Fork() -> pid_t, else libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as pid_t;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: Opaque, attributes: Opaque, words: Opaque, environment: Opaque) -> c_int, else missing(libc::ENOSYS);
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: Opaque, attributes: Opaque, words: Opaque, environment: Opaque) -> c_int, else missing(libc::ENOSYS);
    system(command: *const c_char) -> c_int, else missing(-1);
    popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE, else missing(std::ptr::null_mut());
    prlimit64(pid: pid_t, of: c_uint, new: *const libc::rlimit64, old: *mut libc::rlimit64) -> c_int, else libc::syscall(libc::SYS_prlimit64, pid, of, new, old) as c_int;
}

unsafe extern "C" {
    /// getenv(3), or nothing in set-id programs. The C library's.
    pub fn secure_getenv(name: *const c_char) -> *mut c_char;
}
