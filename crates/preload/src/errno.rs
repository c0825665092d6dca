//! The program's errno.
use libc::c_int;

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the calling thread's errno is always there.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(value: c_int) {
    // SAFETY: the calling thread's errno is always there.
    unsafe { *libc::__errno_location() = value };
}

/// Does something that the program does not see in its errno.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let before = errno();
    let done = work();
    set_errno(before);
    done
}
