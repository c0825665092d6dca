//! A library to preload (`LD_PRELOAD=libstria_hints.so program`): posix_fadvise(2), which a kernel keeps to itself, also
//! reaches the mount that the file lies on.
//!
//! The kernel is asked first and its answer is the program's; the mount hears of it when the kernel took it. Files of
//! other file systems notice nothing. madvise(2) needs no help: its hints decide what the kernel asks the mount for.
#![warn(missing_docs)]
use libc::{c_int, c_ulong, off_t};
use types::advise::{ADVISE, Advise};

/// What statfs(2) says of a FUSE mount.
const FUSE: u64 = 0x6573_5546;

/// posix_fadvise(3).
///
/// # Safety
/// None is asked of the caller: `fd` may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fadvise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
    advise(fd, offset, len, advice)
}

/// posix_fadvise64(3).
///
/// # Safety
/// As [`posix_fadvise`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fadvise64(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
    advise(fd, offset, len, advice)
}

fn advise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::syscall(libc::SYS_fadvise64, fd, offset, len, advice) } != 0 {
        // SAFETY: the calling thread's errno is always there.
        return unsafe { *libc::__errno_location() };
    }
    // The kernel refused negative lengths; it reads offsets as the mount does.
    let said = Advise { offset: offset.max(0) as u64, len: len.max(0) as u64, advice };
    tell(fd, &said.bytes());
    0
}

/// Tells the mount; one that is not ours refuses, which is none of the program's business. errno stays.
fn tell(fd: c_int, said: &[u8; Advise::BYTES]) {
    // SAFETY: the calling thread's errno is always there.
    let before = unsafe { *libc::__errno_location() };
    let mut of = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `of` has room for the answer, and is read only after success.
    let fuse = unsafe { libc::fstatfs(fd, of.as_mut_ptr()) == 0 && of.assume_init().f_type as u64 == FUSE };
    if fuse {
        // SAFETY: the argument has the length that the number of the ioctl says.
        unsafe { libc::ioctl(fd, c_ulong::from(ADVISE), said.as_ptr()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = before };
}
