//! How many calls went through the rings: of this process and of those that it forked, in memory that they share. Whoever wants to know
//! whether the library does anything for a program names a file in `STRIA_POSIX_REPORT`: each program adds a line at its end.
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// Names the file in the environment.
const REPORT: &CStr = c"STRIA_POSIX_REPORT";
/// Room for the name that the kernel has for a program.
const NAME_BYTES: usize = 16;

/// Counts where there is no memory to share.
static ALONE: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

fn count() -> &'static AtomicU64 {
    // SAFETY: null, or memory that is mapped for good.
    unsafe { CALLS.load(Relaxed).as_ref() }.unwrap_or(&ALONE)
}

/// Makes the memory.
pub fn begin() {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; the result is checked.
    let at = unsafe { libc::syscall(libc::SYS_mmap, std::ptr::null::<u8>(), 4096, prot, flags, -1, 0) };
    if at > 0 {
        CALLS.store(at as *mut AtomicU64, Relaxed);
    }
}

/// A call went through the rings.
pub fn add() {
    count().fetch_add(1, Relaxed);
}

/// Calls that went through the rings, of this process and of those that it forked. For tests, which have to know that they
/// test what they mean to.
#[unsafe(no_mangle)]
pub extern "C" fn stria_posix_calls() -> u64 {
    count().load(Relaxed)
}

/// The program ends.
pub fn report() {
    // Not what users tell set-id programs. SAFETY: the name ends with a zero.
    let file = unsafe { crate::real::secure_getenv(REPORT.as_ptr()) };
    if file.is_null() {
        return;
    }
    let mut name = [0u8; NAME_BYTES];
    // SAFETY: there is room for the name.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = CStr::from_bytes_until_nul(&name).map_or("?".into(), CStr::to_string_lossy);
    let line = format!("{} calls of {name} went through the rings\n", stria_posix_calls());
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: path and bytes live through the calls; a file that cannot be written gets no line.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, file, flags, 0o644);
        libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len());
        libc::syscall(libc::SYS_close, fd);
    }
}
