//! An open file of a program: the kernel's descriptor, and its number on the connection to the mount's daemon.
//!
//! Where there is no native path (another file system, a mount that offers none, too many connections), reads and writes go
//! through the kernel: the same calls work everywhere.
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::bound::Bound;
use crate::connection::{Lent, Room, Ticket};
use crate::ring::REQUEST_BYTES_MAX;

/// An open file.
pub struct File {
    kernel: std::fs::File,
    native: Option<Bound>,
}

/// How far a transfer in pieces came.
#[derive(Debug)]
pub struct Moved {
    /// Bytes.
    pub bytes: usize,
    /// Why there are no more, where neither the file nor a piece ended short: a later piece failed, or found no room.
    pub failed: Option<io::Error>,
}

/// A read or write that was asked for and not waited for.
pub enum Pending {
    /// Under way.
    Native(Ticket),
    /// Done by the kernel: the result, and what was read.
    Done(io::Result<usize>, Vec<u8>),
}

impl File {
    /// open(2): `flags` of it, and `mode` for a file that it creates.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path, flags: i32, mode: u32) -> io::Result<File> {
        let mut options = std::fs::OpenOptions::new();
        match flags & libc::O_ACCMODE {
            libc::O_RDONLY => options.read(true),
            libc::O_WRONLY => options.write(true),
            _ => options.read(true).write(true),
        };
        // The library's own flags would refuse what open(2) allows; so creating and cutting are asked for as flags.
        let options = options.custom_flags(flags & !libc::O_ACCMODE).mode(mode);
        Ok(File::from(OwnedFd::from(options.open(path)?)))
    }

    /// Whether its bytes go through the rings.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.usable().is_some()
    }

    pub(crate) fn usable(&self) -> Option<&Bound> {
        self.native.as_ref().filter(|b| b.is_ours())
    }

    /// The descriptor's status flags, which fcntl(2) may have changed since the open: a write is as they say.
    fn flags(&self) -> Option<i32> {
        // SAFETY: plain system call.
        let flags = unsafe { libc::fcntl(self.kernel.as_raw_fd(), libc::F_GETFL) };
        (flags >= 0).then_some(flags)
    }

    /// pread(2) of any length: fewer bytes than asked for are the end of the file, or what was read before an error.
    ///
    /// # Errors
    /// As pread(2); ENOTCONN: the daemon is gone.
    pub fn pread(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.preadv(&mut [IoSliceMut::new(into)], offset)
    }

    /// preadv(2) of any length: what is asked for is read in pieces of 1 MiB, three of them at a time, however many buffers it goes to.
    ///
    /// # Errors
    /// As [`File::pread`].
    pub fn preadv(&self, into: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let Some(bound) = self.usable() else { return kernel::preadv(&self.kernel, into, offset) };
        let wanted = total(into.iter().map(|p| p.len()))?;
        ends_in_a_file(offset, wanted)?;
        let ask = |done, len, room| bound.read(offset.saturating_add(done as u64), len, room);
        Ok(read_pieces(wanted, None, into, ask)?.bytes)
    }

    /// pread(2) of at most 1 MiB without a buffer: `look` gets the bytes where the daemon put them, in memory that is shared with it.
    /// One copy less than [`File::pread`]. Through the kernel: EOPNOTSUPP, for there they would have to be copied.
    ///
    /// # Errors
    /// As [`File::pread`]; EOPNOTSUPP.
    pub fn pread_with<R>(&self, len: usize, offset: u64, look: impl FnOnce(Lent<'_>) -> R) -> io::Result<R> {
        let bound = self.usable().ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        ends_in_a_file(offset, len)?;
        bound.read(offset, len, Room::Waited)?.wait_with(|_, lent| look(lent))
    }

    /// pwrite(2) of any length; an open with O_APPEND appends, each MiB by itself.
    ///
    /// # Errors
    /// As pwrite(2); ENOTCONN: the daemon is gone.
    pub fn pwrite(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.pwritev(&[IoSlice::new(from)], offset)
    }

    /// pwritev(2) of any length, in pieces of 1 MiB.
    ///
    /// # Errors
    /// As [`File::pwrite`].
    pub fn pwritev(&self, from: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let Some(bound) = self.usable() else { return kernel::pwritev(&self.kernel, from, offset) };
        let wanted = total(from.iter().map(|p| p.len()))?;
        ends_in_a_file(offset, wanted)?;
        let flags = self.flags();
        let moved = pieces(wanted, |done, len| {
            let at = offset.saturating_add(done as u64);
            bound.write(at, (from, done, len), flags, Room::Waited)?.wait(&mut [])
        });
        Ok(moved?.bytes)
    }

    /// fsync(2), or with `data_only` fdatasync(2).
    ///
    /// # Errors
    /// As fsync(2); ENOTCONN: the daemon is gone.
    pub fn sync(&self, data_only: bool) -> io::Result<()> {
        match self.usable() {
            Some(bound) => bound.sync(data_only, Room::Waited)?.wait(&mut []).map(drop),
            None if data_only => self.kernel.sync_data(),
            None => self.kernel.sync_all(),
        }
    }

    /// close(2): what a drop does, and what the kernel says of it. It is closed in any case.
    ///
    /// # Errors
    /// As close(2): what could not be written out of what this open wrote.
    pub fn close(self) -> io::Result<()> {
        let fd = self.kernel.into_raw_fd();
        // SAFETY: a descriptor that was this file's, and is nobody's any more.
        if unsafe { libc::close(fd) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Begins a read of at most 1 MiB.
    ///
    /// # Errors
    /// ENOTCONN, EINVAL; EAGAIN: 32 are begun, or 2 MiB, and not waited for.
    pub fn begin_pread(&self, len: usize, offset: u64) -> io::Result<Pending> {
        is_a_request(offset, len)?;
        match self.usable() {
            Some(bound) => bound.read(offset, len, Room::Begun).map(Pending::Native),
            None => {
                let mut bytes = vec![0; len];
                Ok(Pending::Done(self.kernel.read_at(&mut bytes, offset), bytes))
            }
        }
    }

    /// Begins a write of at most 1 MiB; `from` is free again when this returns.
    ///
    /// # Errors
    /// As [`File::begin_pread`].
    pub fn begin_pwrite(&self, from: &[u8], offset: u64) -> io::Result<Pending> {
        is_a_request(offset, from.len())?;
        match self.usable() {
            Some(bound) => {
                let parts: (&[IoSlice<'_>], usize, usize) = (&[IoSlice::new(from)], 0, from.len());
                bound.write(offset, parts, self.flags(), Room::Begun).map(Pending::Native)
            }
            None => Ok(Pending::Done(self.kernel.write_at(from, offset), Vec::new())),
        }
    }
}

impl Pending {
    /// Whether [`Pending::wait`] would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self {
            Pending::Native(ticket) => ticket.is_done(),
            Pending::Done(..) => true,
        }
    }
    /// Waits for the end of it; bytes that were read go to `into`.
    ///
    /// # Errors
    /// As [`File::pread`] and [`File::pwrite`].
    pub fn wait(self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Pending::Native(ticket) => ticket.wait(into),
            Pending::Done(result, bytes) => {
                let n = result?;
                let came = n.min(bytes.len()).min(into.len());
                into[..came].copy_from_slice(&bytes[..came]);
                Ok(n)
            }
        }
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// Whether the kernel would have a transfer: one behind the last offset is EINVAL.
fn ends_in_a_file(offset: u64, len: usize) -> io::Result<()> {
    let end = offset.checked_add(len as u64).filter(|end| i64::try_from(*end).is_ok());
    end.map(drop).ok_or_else(invalid)
}

/// Whether a transfer is one that can be begun.
fn is_a_request(offset: u64, len: usize) -> io::Result<()> {
    if len > REQUEST_BYTES_MAX {
        return Err(invalid());
    }
    ends_in_a_file(offset, len)
}

/// Bytes of all parts.
fn total(lens: impl Iterator<Item = usize>) -> io::Result<usize> {
    let mut lens = lens;
    let sum = lens.try_fold(0usize, usize::checked_add).filter(|n| isize::try_from(*n).is_ok());
    sum.ok_or_else(invalid)
}

/// Carries out a transfer of `wanted` bytes piece by piece; `piece` is told what is done and how much it shall do. A piece that
/// is shorter is the end, and so is an error after something was done.
///
/// # Errors
/// The first piece's.
pub fn pieces(wanted: usize, mut piece: impl FnMut(usize, usize) -> io::Result<usize>) -> io::Result<Moved> {
    let mut done = 0;
    loop {
        let len = (wanted - done).min(REQUEST_BYTES_MAX);
        match piece(done, len) {
            Ok(n) => {
                done += n.min(len);
                if n < len || done == wanted {
                    return Ok(Moved { bytes: done, failed: None });
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(e) => return Ok(Moved { bytes: done, failed: Some(e) }),
        }
    }
}

/// Pieces of a read that are under way besides the one that is waited for: the daemon reads them while the program copies.
const PIECES_AHEAD: usize = 2;

/// Reads `wanted` bytes into the parts, piece by piece, some of them ahead where there is room. `ask` begins a piece: it is told what lies before
/// it and how long it shall be; `begun` is the first one, if that is begun already. A piece that is shorter is the end, and so is an
/// error after something was read.
///
/// # Errors
/// The first piece's.
pub fn read_pieces(
    wanted: usize,
    begun: Option<Ticket>,
    into: &mut [IoSliceMut<'_>],
    ask: impl Fn(usize, usize, Room) -> io::Result<Ticket>,
) -> io::Result<Moved> {
    let len_at = |at: usize| (wanted - at).min(REQUEST_BYTES_MAX);
    let first = match begun {
        Some(ticket) => ticket,
        None => ask(0, len_at(0), Room::Waited)?,
    };
    let (mut next, mut ahead) = (Some(first), [const { None }; PIECES_AHEAD]);
    let (mut done, mut asked, mut failed) = (0, len_at(0), None);
    while let Some(ticket) = next {
        for free in ahead.iter_mut().filter(|a| a.is_none()) {
            if asked == wanted {
                break;
            }
            let Ok(piece) = ask(asked, len_at(asked), Room::Ahead) else { break };
            *free = Some(piece);
            asked += len_at(asked);
        }
        let len = len_at(done);
        let read = ticket.wait_with(|n, lent| {
            scatter(&lent, into, done);
            n
        });
        match read {
            Ok(n) => {
                done += n.min(len);
                if n < len {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(e) => {
                failed = Some(e);
                break;
            }
        }
        next = ahead[0].take();
        ahead.rotate_left(1);
        if next.is_none() && asked < wanted {
            // Nothing of this read has room now: it may wait for some.
            match ask(asked, len_at(asked), Room::Waited) {
                Ok(ticket) => next = Some(ticket),
                Err(e) => failed = Some(e),
            }
            asked += len_at(asked);
        }
    }
    Ok(Moved { bytes: done, failed })
}

/// Copies what was read to its place in the parts: `from` bytes of them are filled already.
pub fn scatter(lent: &Lent<'_>, parts: &mut [IoSliceMut<'_>], from: usize) {
    let (mut skip, mut copied) = (from, 0);
    for part in parts {
        let begin = skip.min(part.len());
        skip -= begin;
        let n = (part.len() - begin).min(lent.len() - copied);
        lent.copy_to(copied, &mut part[begin..begin + n]);
        copied += n;
    }
}

/// The same through the kernel.
mod kernel {
    use super::{IoSlice, IoSliceMut, io};
    use std::os::fd::AsRawFd;

    fn position(offset: u64) -> io::Result<libc::off_t> {
        libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    }
    /// Parts that one call takes.
    const PARTS_MAX: usize = libc::UIO_MAXIOV as usize;
    fn moved(n: isize) -> io::Result<usize> {
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
    /// Calls for so many parts at a time; a call that is shorter is the end, and so is an error after something was done.
    fn by_calls(
        wanted: impl Iterator<Item = usize>,
        mut call: impl FnMut(usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut done = 0;
        for wanted in wanted {
            match call(done) {
                Ok(n) if n == wanted => done += n,
                Ok(n) => return Ok(done + n),
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }
    pub(super) fn preadv(file: &std::fs::File, into: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let wanted: Vec<usize> = into.chunks(PARTS_MAX).map(|c| c.iter().map(|p| p.len()).sum()).collect();
        let mut calls = into.chunks_mut(PARTS_MAX);
        by_calls(wanted.into_iter(), |done| {
            let (parts, at) = (calls.next().unwrap_or_default(), position(offset.saturating_add(done as u64))?);
            // SAFETY: the parts have the layout of the C structure and outlive the call.
            moved(unsafe { libc::preadv(file.as_raw_fd(), parts.as_mut_ptr().cast(), parts.len() as libc::c_int, at) })
        })
    }
    pub(super) fn pwritev(file: &std::fs::File, from: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut calls = from.chunks(PARTS_MAX);
        by_calls(from.chunks(PARTS_MAX).map(|c| c.iter().map(|p| p.len()).sum()), |done| {
            let (parts, at) = (calls.next().unwrap_or_default(), position(offset.saturating_add(done as u64))?);
            // SAFETY: as above.
            moved(unsafe { libc::pwritev(file.as_raw_fd(), parts.as_ptr().cast(), parts.len() as libc::c_int, at) })
        })
    }
}

impl From<OwnedFd> for File {
    /// Takes a descriptor that open(2) gave.
    fn from(fd: OwnedFd) -> File {
        let native = Bound::of(fd.as_fd()).ok();
        File { kernel: std::fs::File::from(fd), native }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> i32 {
        self.kernel.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_file_systems_go_through_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::open(&dir.path().join("f"), libc::O_RDWR | libc::O_CREAT, 0o600).unwrap();
        assert!(!file.is_native());
        assert_eq!(file.pwrite(b"0123456789", 5).unwrap(), 10);
        let mut got = [0; 20];
        assert_eq!(file.pread(&mut got, 5).unwrap(), 10);
        assert_eq!(&got[..10], b"0123456789");
        let pending = file.begin_pread(4, 6).unwrap();
        assert!(pending.is_done());
        assert_eq!(pending.wait(&mut got).unwrap(), 4);
        assert_eq!(&got[..4], b"1234");
        assert_eq!(file.begin_pwrite(b"x", 0).unwrap().wait(&mut []).unwrap(), 1);
        file.sync(true).unwrap();
        let large = vec![0; REQUEST_BYTES_MAX + 1];
        let refused = [file.begin_pread(large.len(), 0).err(), file.begin_pwrite(&large, 0).err()];
        assert_eq!(refused.map(|e| e.and_then(|e| e.raw_os_error())), [Some(libc::EINVAL); 2], "more than a request");
        let (mut a, mut b) = ([0; 3], [0; 5]);
        assert_eq!(file.pwritev(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cdef")], 1).unwrap(), 6);
        assert_eq!(file.preadv(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)], 1).unwrap(), 8);
        assert_eq!((&a, &b), (b"abc", b"def23"));
        let bytes: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
        let parts: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
        assert_eq!(file.pwritev(&parts, 7).unwrap(), 3000, "more parts than the kernel takes at once");
        let mut back = vec![0; 3000];
        let mut parts: Vec<_> = back.chunks_mut(1).map(IoSliceMut::new).collect();
        assert_eq!(file.preadv(&mut parts, 7).unwrap(), 3000);
        assert_eq!(file.preadv(&mut parts, 507).unwrap(), 2500);
        assert_eq!(back[..2500], bytes[500..]);
        assert_eq!(file.pread_with(4, 0, |_| ()).unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn transfers_are_cut_into_pieces_and_end_at_the_first_that_is_short() {
        let mut asked = Vec::new();
        let mut answers = [REQUEST_BYTES_MAX, 5].into_iter();
        let done = pieces(REQUEST_BYTES_MAX + 9, |done, len| {
            asked.push((done, len));
            Ok(answers.next().unwrap())
        });
        assert_eq!(
            (done.unwrap().bytes, asked),
            (REQUEST_BYTES_MAX + 5, vec![(0, REQUEST_BYTES_MAX), (REQUEST_BYTES_MAX, 9)])
        );
    }

    #[test]
    fn a_later_piece_that_fails_is_told_from_the_end() {
        let full = || io::Error::from_raw_os_error(libc::EAGAIN);
        let piece = |done, len| if done == 0 { Ok(len) } else { Err(full()) };
        let moved = pieces(2 * REQUEST_BYTES_MAX, piece).unwrap();
        assert_eq!((moved.bytes, moved.failed.and_then(|e| e.raw_os_error())), (REQUEST_BYTES_MAX, Some(libc::EAGAIN)));
        let first = pieces(REQUEST_BYTES_MAX, |_, _| Err(full()));
        assert_eq!(first.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert!(pieces(9, |_, _| Ok(3)).unwrap().failed.is_none(), "the end");
    }
}
