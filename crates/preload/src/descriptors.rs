//! Descriptors of the program: which file one is of, and which ones are of a file.
use libc::{c_int, c_long};

/// A file, as mounts and inodes name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    /// Device, major and minor.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
}

/// The file of a descriptor, as far as the kernel knows it without asking a mount; `None`: none, or one on a disk.
pub fn file_of(fd: c_int) -> Option<FileId> {
    let mut of = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is empty and ends with a zero; `of` has room for the answer.
    let failed = unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, libc::STATX_INO, of.as_mut_ptr()) };
    if failed != 0 {
        return None;
    }
    // SAFETY: the call succeeded, and every byte was zero before.
    let of = unsafe { of.assume_init() };
    // FUSE mounts have no device of their own.
    (of.stx_dev_major == 0).then_some(FileId { device: (0, of.stx_dev_minor), inode: of.stx_ino })
}

/// Calls `tell` for descriptors of `file`, `likely` first, until it answers true.
pub fn of_file(file: FileId, likely: c_int, mut tell: impl FnMut(c_int) -> bool) {
    if file_of(likely) == Some(file) && tell(likely) {
        return;
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero.
    let dir = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/fd".as_ptr(), flags) };
    if dir < 0 {
        return;
    }
    let own = dir as c_int;
    each_number(dir, |fd| fd != own && fd != likely && file_of(fd) == Some(file) && tell(fd));
    // SAFETY: it was opened above and nobody else knows it.
    unsafe { libc::syscall(libc::SYS_close, dir) };
}

/// Calls `done` for every entry of a directory that is a number, until it answers true.
fn each_number(dir: c_long, mut done: impl FnMut(c_int) -> bool) {
    const NAME: usize = core::mem::offset_of!(libc::dirent64, d_name);
    const LENGTH: usize = core::mem::offset_of!(libc::dirent64, d_reclen);
    let mut buffer = [0u8; 2048];
    loop {
        // SAFETY: the buffer has the length that is passed along.
        let n = unsafe { libc::syscall(libc::SYS_getdents64, dir, buffer.as_mut_ptr(), buffer.len()) };
        if n <= 0 {
            return;
        }
        let mut left = &buffer[..n as usize];
        while left.len() > NAME {
            let len = usize::from(u16::from_ne_bytes([left[LENGTH], left[LENGTH + 1]]));
            let Some(entry) = left.get(..len).filter(|_| len > NAME) else { return };
            let name = entry[NAME..].split(|b| *b == 0).next().unwrap_or_default();
            let number = std::str::from_utf8(name).ok().and_then(|n| n.parse().ok());
            if number.is_some_and(&mut done) {
                return;
            }
            left = &left[len..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn every_descriptor_of_a_file_is_found_and_no_other_one() {
        let proc = std::fs::File::open("/proc/self/status").unwrap();
        let Some(file) = file_of(proc.as_raw_fd()) else { panic!("/proc has no device") };
        let (again, other) = (proc.try_clone().unwrap(), std::fs::File::open("/proc/self/maps").unwrap());
        let find = |likely: c_int, until: usize| {
            let mut found = Vec::new();
            of_file(file, likely, |fd| {
                found.push(fd);
                found.len() == until
            });
            found.sort_unstable();
            found
        };
        let mut both = vec![proc.as_raw_fd(), again.as_raw_fd()];
        both.sort_unstable();
        assert_eq!(find(-1, usize::MAX), both);
        assert_eq!(find(other.as_raw_fd(), usize::MAX), both, "a descriptor that is another file's now");
        assert_eq!(find(again.as_raw_fd(), 1), [again.as_raw_fd()]);
        assert_eq!(file_of(-1), None);
    }
}
