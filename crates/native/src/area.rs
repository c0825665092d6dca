//! Memory that a program and a daemon share, neither of which believes the other.
//!
//! The daemon makes it: a memfd of its own, sealed against shrinking, so that no access to it can fail because of what the
//! other side does. Words are read and written as atomics, bytes are copied through raw pointers only; no reference to
//! plain memory of it exists, since the other side may change any of it at any time.
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A mapping of the whole area.
pub struct Area {
    at: NonNull<u8>,
    bytes: usize,
    /// The process that has the mapping.
    process: u32,
}

// SAFETY: the mapping belongs to no thread, and is reached through atomics and raw copies only.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

fn last() -> io::Error {
    io::Error::last_os_error()
}

impl Area {
    /// A fresh area of zeros, and the descriptor that gives it to another process.
    ///
    /// # Errors
    /// No memory, no descriptor.
    pub fn make(bytes: usize) -> io::Result<(Area, OwnedFd)> {
        // SAFETY: the name ends with a zero byte; the result is checked.
        let fd = unsafe { libc::memfd_create(c"stria-native".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(last());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let len = libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain system calls on a descriptor that lives; the results are checked.
        let made = unsafe {
            libc::ftruncate(fd.as_raw_fd(), len) == 0 && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        if !made {
            return Err(last());
        }
        Ok((Area::map(&fd, bytes)?, fd))
    }

    /// Maps an area that was received. It is not there in children that are forked.
    ///
    /// # Errors
    /// It is smaller than `bytes`, or could become smaller; no address space.
    pub fn map(fd: &OwnedFd, bytes: usize) -> io::Result<Area> {
        // SAFETY: plain system call on a descriptor that lives.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` has room for the answer, and is read only after success.
        let size = unsafe { (libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_size) };
        let holds = size.and_then(|s| usize::try_from(s).ok()).is_some_and(|s| s >= bytes);
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || !holds || bytes == 0 {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is as long and stays so; the result is checked.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(last());
        }
        // A child has connections of its own: two processes at one ring would take each other's answers.
        // SAFETY: the range was mapped just now.
        unsafe { libc::madvise(at, bytes, libc::MADV_DONTFORK) };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Area { at, bytes, process: std::process::id() })
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A word of it, on a boundary of eight bytes.
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "offsets of words are the code's own");
        // SAFETY: inside the mapping and aligned; it lives as long as `self`; every side uses atomics for words.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    /// Half a word of it, on a boundary of four bytes.
    #[must_use]
    pub fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "offsets of words are the code's own");
        // SAFETY: as [`Area::word`].
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    fn inside(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.bytes)
    }

    /// Where bytes of it are.
    ///
    /// # Panics
    /// As [`Area::put`].
    #[must_use]
    pub fn place(&self, at: usize, len: usize) -> *const u8 {
        assert!(self.inside(at, len), "the range is outside the area");
        // SAFETY: inside the mapping.
        unsafe { self.at.as_ptr().add(at).cast_const() }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// The range is not inside: callers check what comes from the other side.
    pub fn put(&self, at: usize, from: &[u8]) {
        assert!(self.inside(at, from.len()), "the range is outside the area");
        // SAFETY: inside the mapping, which does not overlap memory that a reference leads to.
        unsafe { self.at.as_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// As [`Area::put`].
    pub fn get(&self, at: usize, into: &mut [u8]) {
        assert!(self.inside(at, into.len()), "the range is outside the area");
        // SAFETY: as [`Area::put`].
        unsafe { self.at.as_ptr().add(at).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }
}

impl Area {
    /// Gives its pages back, whoever has them mapped; they are zeros from then on. It waits as long as somebody who has the descriptor likes, by a
    /// write(2) to it of bytes that are long in coming.
    pub fn give_back(&self) {
        // SAFETY: what is mapped, to be read as zeros: no reference to bytes of it exists, and words are atomics. Where the kernel
        // refuses, the pages stay until nobody has them mapped.
        unsafe { libc::madvise(self.at.as_ptr().cast(), self.bytes, libc::MADV_REMOVE) };
    }
    /// In a forked child, which does not have it: puts zeros of the child's own in its place, for a call that was in the middle of it.
    pub fn stand_in(&self) {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a mapping where this process has none: one that has come there since is left alone.
        unsafe { libc::mmap(self.at.as_ptr().cast(), self.bytes, prot, flags, -1, 0) };
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // In a forked child the range is another's by now.
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: what was mapped; references to words of it end with `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn both_ends_see_one_memory_that_nobody_can_make_smaller() {
        let (mine, fd) = Area::make(8192).unwrap();
        let other = Area::map(&fd, 8192).unwrap();
        mine.word(64).store(5, Relaxed);
        mine.put(4096, b"bytes");
        let mut got = [0; 5];
        other.get(4096, &mut got);
        assert_eq!((other.word(64).load(Relaxed), other.half(68).load(Relaxed), &got), (5, 0, b"bytes"));
        // SAFETY: plain system call on a descriptor that lives.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, -1);
        assert!(Area::map(&fd, 8193).is_err(), "it is not as long");
    }

    #[test]
    fn files_that_could_shrink_are_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(Area::map(&file.into(), 8192).is_err());
    }
}
