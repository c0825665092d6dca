//! posix_fadvise(2), which a kernel keeps to itself, and what madvise(2) says of mapped files also reach the mount that the file lies on.
//!
//! The kernel is asked first and its answer is the program's; the mount hears of it when the kernel took it. Files of
//! other file systems notice nothing. A mapping is known by the calls that made it ([`mappings`]); its mount is told through a
//! descriptor of the file that the program has open. Where it has none any more, the kernel's own doing remains: it reads
//! what WILLNEED names, and faults of mappings ahead as SEQUENTIAL and RANDOM say.
use crate::descriptors::{file_of, of_file};
use crate::errno::{errno, quietly, set_errno};
use crate::mappings::{self, Mapping};
use crate::sizes;
use libc::{c_int, c_ulong, c_void, off_t, size_t};
use types::advise::{ADVISE, Advise};

/// What statfs(2) says of a FUSE mount.
const FUSE: u64 = 0x6573_5546;
/// Files in the range of one madvise that hear of it.
const PARTS_MAX: usize = 64;

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

/// madvise(2).
///
/// # Safety
/// The kernel's: advice like MADV_DONTNEED changes what memory holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // SAFETY: the caller's.
    let answer = unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) } as c_int;
    if answer == 0 {
        advise_mapped(addr as usize, len, advice);
    }
    answer
}

/// posix_madvise(3): errors come as the answer, errno stays; POSIX_MADV_DONTNEED leaves memory as it is.
///
/// # Safety
/// The kernel's: what is no advice of POSIX goes to it as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if advice != libc::POSIX_MADV_DONTNEED {
        let before = errno();
        // SAFETY: the caller's.
        let failed = unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) } != 0;
        let why = errno();
        set_errno(before);
        if failed {
            return why;
        }
    }
    advise_mapped(addr as usize, len, advice);
    0
}

/// mmap(2).
///
/// # Safety
/// The kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0 {
        sizes::believed(fd);
    }
    // SAFETY: the caller's.
    let at = unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) } as *mut c_void;
    if at != libc::MAP_FAILED {
        let (start, file) =
            (at as usize, if flags & libc::MAP_ANONYMOUS == 0 { quietly(|| file_of(fd)) } else { None });
        let end = start.saturating_add(len).checked_next_multiple_of(page_bytes()).unwrap_or(usize::MAX);
        let mapping = file.map(|file| Mapping { start, end, offset: offset as u64, file, fd });
        mappings::on_mapped(start, end - start, mapping);
    }
    at
}

/// mmap64(2).
///
/// # Safety
/// As [`mmap`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// munmap(2).
///
/// # Safety
/// The kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's.
    let answer = unsafe { libc::syscall(libc::SYS_munmap, addr, len) } as c_int;
    if answer == 0 {
        mappings::on_unmapped(addr as usize, len.next_multiple_of(page_bytes()));
    }
    answer
}

/// mremap(2); the kernel looks at `to` only where `flags` say so.
///
/// # Safety
/// The kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    from: *mut c_void,
    old_len: size_t,
    len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's.
    let at = unsafe { libc::syscall(libc::SYS_mremap, from, old_len, len, flags, to) } as *mut c_void;
    if at != libc::MAP_FAILED {
        let stays = old_len == 0 || flags & libc::MREMAP_DONTUNMAP != 0;
        let [old, new] = [old_len, len].map(|l| l.checked_next_multiple_of(page_bytes()).unwrap_or(usize::MAX));
        mappings::on_remapped(from as usize, old, at as usize, new, stays);
    }
    at
}

fn page_bytes() -> usize {
    // SAFETY: the call takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

fn advise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::syscall(libc::SYS_fadvise64, fd, offset, len, advice) } != 0 {
        return errno();
    }
    // The kernel refused negative lengths; it reads offsets as the mount does.
    let said = Advise { offset: offset.max(0) as u64, len: len.max(0) as u64, advice };
    quietly(|| tell(fd, &said.bytes()));
    0
}

/// The advice of madvise(2) with the meaning that posix_fadvise(2) gives it, and whether it is about what lies in the
/// range now rather than about how it will be read.
fn meaning(advice: c_int) -> Option<(c_int, bool)> {
    match advice {
        libc::MADV_NORMAL => Some((libc::POSIX_FADV_NORMAL, false)),
        libc::MADV_SEQUENTIAL => Some((libc::POSIX_FADV_SEQUENTIAL, false)),
        libc::MADV_RANDOM => Some((libc::POSIX_FADV_RANDOM, false)),
        libc::MADV_WILLNEED => Some((libc::POSIX_FADV_WILLNEED, true)),
        libc::MADV_DONTNEED => Some((libc::POSIX_FADV_DONTNEED, true)),
        _ => None,
    }
}

/// Tells the mounts of the files that are mapped there.
fn advise_mapped(start: usize, len: usize, advice: c_int) {
    let Some((advice, now)) = meaning(advice) else { return };
    let mut parts = [None::<Mapping>; PARTS_MAX];
    let found = mappings::mapped(start, len, &mut parts);
    for part in parts[..found].iter().flatten() {
        let said = Advise { offset: part.offset, len: (part.end - part.start) as u64, advice }.bytes();
        // How it will be read is kept by every open; what is wanted now need be said once.
        quietly(|| of_file(part.file, part.fd, |fd| !tell(fd, &said) || now));
    }
}

/// Tells the mount; one that is not ours refuses, which is none of the program's business. Whether it may be ours.
fn tell(fd: c_int, said: &[u8; Advise::BYTES]) -> bool {
    let mut of = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `of` has room for the answer, and is read only after success.
    let fuse = unsafe { libc::fstatfs(fd, of.as_mut_ptr()) == 0 && of.assume_init().f_type as u64 == FUSE };
    if fuse {
        // SAFETY: the argument has the length that the number of the ioctl says.
        unsafe { libc::ioctl(fd, c_ulong::from(ADVISE), said.as_ptr()) };
    }
    fuse
}
