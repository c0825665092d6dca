//! An open file of a program: the kernel's descriptor, and its number on the connection to the mount's daemon.
//!
//! Where there is no native path (another file system, a mount that offers none, too many connections), reads and writes go
//! through the kernel: the same calls work everywhere.
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use crate::connection::{Connection, Ticket};
use crate::offer::Offer;
use crate::ring::{REQUEST_BYTES_MAX, Submission, op};

/// An open file.
pub struct File {
    kernel: std::fs::File,
    native: Option<(Arc<Connection>, u64)>,
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

    /// A forked child's reads and writes go through the kernel: the rings are its parent's.
    fn usable(&self) -> Option<&(Arc<Connection>, u64)> {
        self.native.as_ref().filter(|(c, _)| c.is_ours())
    }

    fn ask(&self, op: u64, offset: u64, data: &[u8], len: usize, begun: bool) -> Option<io::Result<Ticket>> {
        let (connection, file) = self.usable()?;
        let s = Submission { op, file: *file, offset, ..Submission::default() };
        Some(connection.submit(s, data, len, begun))
    }

    /// pread(2) of any length: fewer bytes than asked for are the end of the file, or what was read before an error.
    ///
    /// # Errors
    /// As pread(2); ENOTCONN: the daemon is gone.
    pub fn pread(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let len = (into.len() - done).min(REQUEST_BYTES_MAX);
            let part = &mut into[done..done + len];
            let at = offset.saturating_add(done as u64);
            let read = match self.ask(op::READ, at, &[], len, false) {
                Some(ticket) => ticket.and_then(|t| t.wait(part)),
                None => self.kernel.read_at(part, at),
            };
            match read {
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
            }
            if read.is_ok_and(|n| n < len) || done == into.len() {
                return Ok(done);
            }
        }
    }

    /// pwrite(2) of any length; an open with O_APPEND appends, each MiB by itself.
    ///
    /// # Errors
    /// As pwrite(2); ENOTCONN: the daemon is gone.
    pub fn pwrite(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let part = &from[done..from.len().min(done + REQUEST_BYTES_MAX)];
            let at = offset.saturating_add(done as u64);
            let written = match self.ask(op::WRITE, at, part, part.len(), false) {
                Some(ticket) => ticket.and_then(|t| t.wait(&mut [])),
                None => self.kernel.write_at(part, at),
            };
            match written {
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
            }
            if written.is_ok_and(|n| n < part.len()) || done == from.len() {
                return Ok(done);
            }
        }
    }

    /// fsync(2), or with `data_only` fdatasync(2).
    ///
    /// # Errors
    /// As fsync(2); ENOTCONN: the daemon is gone.
    pub fn sync(&self, data_only: bool) -> io::Result<()> {
        match self.ask(if data_only { op::DATASYNC } else { op::SYNC }, 0, &[], 0, false) {
            Some(ticket) => ticket?.wait(&mut []).map(drop),
            None if data_only => self.kernel.sync_data(),
            None => self.kernel.sync_all(),
        }
    }

    /// Begins a read of at most 1 MiB.
    ///
    /// # Errors
    /// ENOTCONN, EINVAL; EAGAIN: 32 are begun, or 2 MiB, and not waited for.
    pub fn begin_pread(&self, len: usize, offset: u64) -> io::Result<Pending> {
        match self.ask(op::READ, offset, &[], len, true) {
            Some(ticket) => ticket.map(Pending::Native),
            None => {
                let mut bytes = vec![0; len.min(REQUEST_BYTES_MAX)];
                Ok(Pending::Done(self.kernel.read_at(&mut bytes, offset), bytes))
            }
        }
    }

    /// Begins a write of at most 1 MiB; `from` is free again when this returns.
    ///
    /// # Errors
    /// As [`File::begin_pread`].
    pub fn begin_pwrite(&self, from: &[u8], offset: u64) -> io::Result<Pending> {
        match self.ask(op::WRITE, offset, from, from.len(), true) {
            Some(ticket) => ticket.map(Pending::Native),
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

/// The number of an open file at its mount's daemon.
fn bind(kernel: BorrowedFd<'_>) -> io::Result<(Arc<Connection>, u64)> {
    let offer = Offer::of(kernel)?;
    let connection = Connection::to(&offer)?;
    let number = connection.submit(offer.binding(), &[], 0, false)?.wait(&mut [])?;
    Ok((connection, number as u64))
}

impl From<OwnedFd> for File {
    /// Takes a descriptor that open(2) gave.
    fn from(fd: OwnedFd) -> File {
        let native = bind(fd.as_fd()).ok();
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

impl Drop for File {
    fn drop(&mut self) {
        // Nobody waits for the answer; the kernel's close ends the open file in any case.
        drop(self.ask(op::UNBIND, 0, &[], 0, false));
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
    }
}
