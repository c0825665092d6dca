//! The calls that make and end descriptors. The kernel's answer is the program's; the table learns of it.
use libc::{c_char, c_int, c_long, c_uint, mode_t};

use crate::errno::set_errno;
use crate::{bytes, own, real, sizes, table};

/// What the kernel answered to an open: `before` as [`table::opened`] has it.
fn opened(fd: c_int, flags: c_int, before: u32) -> c_int {
    if fd >= 0 && !own::Inside::is_so() {
        if flags & (libc::O_PATH | libc::O_DIRECTORY) == 0 {
            table::opened(fd, before);
        } else {
            table::set(fd, None);
        }
    }
    fd
}

macro_rules! opens {
    ($($name:ident ($($arg:ident: $type:ty),*) flags $flags:expr, $next:expr;)*) => {
        $(
            #[doc = concat!(stringify!($name), ": the kernel opens; what it opened is known from then on.")]
            ///
            /// # Safety
            /// The C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
                let before = table::sharings();
                // SAFETY: the caller's. An argument that the caller did not pass is not looked at.
                opened(unsafe { $next }, $flags, before)
            }
        )*
    };
}

opens! {
    open(path: *const c_char, flags: c_int, mode: mode_t) flags flags, real::open64(path, flags, mode);
    open64(path: *const c_char, flags: c_int, mode: mode_t) flags flags, real::open64(path, flags, mode);
    __open(path: *const c_char, flags: c_int, mode: mode_t) flags flags, real::open64(path, flags, mode);
    __open64(path: *const c_char, flags: c_int, mode: mode_t) flags flags, real::open64(path, flags, mode);
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) flags flags, real::openat64(dir, path, flags, mode);
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) flags flags, real::openat64(dir, path, flags, mode);
    __open_2(path: *const c_char, flags: c_int) flags flags, real::__open64_2(path, flags);
    __open64_2(path: *const c_char, flags: c_int) flags flags, real::__open64_2(path, flags);
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) flags flags, real::__openat64_2(dir, path, flags);
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) flags flags, real::__openat64_2(dir, path, flags);
    creat(path: *const c_char, mode: mode_t) flags libc::O_WRONLY, real::open64(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
    creat64(path: *const c_char, mode: mode_t) flags libc::O_WRONLY, real::open64(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
}

/// close(2).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if own::is_own(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    // Before the number can be another file's.
    if table::is_known(fd) {
        sizes::closing(fd);
        table::set(fd, None);
    }
    // SAFETY: the caller's.
    unsafe { real::close(fd) }
}

/// close(2), under a name of the C library's.
///
/// # Safety
/// As [`close`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { close(fd) }
}

/// close_range(2): descriptors of this library stay.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    let mut kept = [c_uint::MAX; 48];
    let mut n = 0;
    if closes && first <= last {
        table::known_within(first as usize, last as usize).for_each(|fd| {
            sizes::closing(fd);
            table::set(fd, None);
        });
        for fd in own::numbers().filter_map(|fd| c_uint::try_from(fd).ok()).filter(|fd| (first..=last).contains(fd)) {
            kept[n] = fd;
            n += 1;
        }
    }
    kept[..n].sort_unstable();
    let mut from = first;
    for fd in &kept[..n] {
        if from < *fd {
            // SAFETY: the caller's.
            let done = unsafe { real::close_range(from, fd - 1, flags) };
            if done != 0 {
                return done;
            }
        }
        from = fd + 1;
    }
    if n > 0 && from > last {
        return 0;
    }
    // SAFETY: the caller's.
    unsafe { real::close_range(from, last, flags) }
}

/// closefrom(3).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// `from` was duplicated, or not.
fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from && (table::is_known(from) || table::is_known(to)) {
        let _inside = own::Inside::enter();
        table::set(to, table::of(from));
    }
    to
}

/// dup(2).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's.
    duplicated(fd, unsafe { real::dup(fd) })
}

/// dup2(2).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    own::give_up(to);
    // SAFETY: the caller's.
    bytes::beside(to, || duplicated(fd, unsafe { real::dup2(fd, to) }))
}

/// dup2(2), under a name of the C library's.
///
/// # Safety
/// As [`dup2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { dup2(fd, to) }
}

/// dup3(2).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    own::give_up(to);
    // SAFETY: the caller's.
    bytes::beside(to, || duplicated(fd, unsafe { real::dup3(fd, to, flags) }))
}

/// fcntl(2): F_DUPFD and F_DUPFD_CLOEXEC duplicate. Flags that F_SETFL changes are seen by the calls that they concern.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, what: c_int, arg: c_long) -> c_int {
    // SAFETY: the caller's. An argument that the caller did not pass is not looked at.
    let done = unsafe { real::fcntl64(fd, what, arg) };
    if matches!(what, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { duplicated(fd, done) } else { done }
}

/// fcntl(2).
///
/// # Safety
/// As [`fcntl64`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, what: c_int, arg: c_long) -> c_int {
    // SAFETY: the caller's.
    unsafe { fcntl64(fd, what, arg) }
}

/// fcntl(2), under a name of the C library's.
///
/// # Safety
/// As [`fcntl64`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __fcntl(fd: c_int, what: c_int, arg: c_long) -> c_int {
    // SAFETY: the caller's.
    unsafe { fcntl64(fd, what, arg) }
}
