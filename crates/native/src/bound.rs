//! The number of an open file on a connection, and what may be asked with it.
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::connection::{Connection, Room, Ticket};
use crate::offer::Offer;
use crate::ring::{self, Submission, op};

/// An open file that its daemon knows by a number; the number goes when this is dropped.
pub struct Bound {
    connection: Arc<Connection>,
    number: u64,
}

impl Bound {
    /// Asks for the number of an open file whose offer was brought by the ioctl.
    ///
    /// # Errors
    /// As [`Connection::to`]; EMFILE: the connection has too many numbers; EBADF: the token is no longer good.
    pub fn to(offer: &Offer, room: Room) -> io::Result<Bound> {
        let connection = Connection::to(offer)?;
        let number = connection.submit(offer.binding(), &[], 0, room)?.wait(&mut [])?;
        Ok(Bound { connection, number: number as u64 })
    }
    /// [`Bound::to`] for a descriptor.
    ///
    /// # Errors
    /// As [`Offer::of`] and [`Bound::to`].
    pub fn of(kernel: BorrowedFd<'_>) -> io::Result<Bound> {
        Bound::to(&Offer::of(kernel)?, Room::Waited)
    }
    /// The connection.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
    /// Whether it is this process's; a forked child's reads and writes go through the kernel: the rings are its parent's.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.connection.is_ours()
    }
    fn submission(&self, op: u64, offset: u64) -> Submission {
        Submission { op, file: self.number, offset, ..Submission::default() }
    }
    /// Asks for `len` bytes at `offset`, at most 1 MiB.
    ///
    /// # Errors
    /// As [`Connection::submit`].
    pub fn read(&self, offset: u64, len: usize, room: Room) -> io::Result<Ticket> {
        self.connection.submit(self.submission(op::READ, offset), &[], len, room)
    }
    /// Writes parts: `len` bytes of them, at most 1 MiB, after the first `skip`. `flags`: the status flags of the descriptor
    /// (F_GETFL of fcntl(2)), where they are known.
    ///
    /// # Errors
    /// As [`Connection::submit`].
    pub fn write(
        &self,
        offset: u64,
        (parts, skip, len): (&[IoSlice<'_>], usize, usize),
        flags: Option<i32>,
        room: Room,
    ) -> io::Result<Ticket> {
        let spare = flags.map_or(0, |f| ring::FLAGS_KNOWN | u64::from(f as u32));
        let s = Submission { spare, ..self.submission(op::WRITE, offset) };
        self.connection.submit_parts(s, parts, skip, len, room)
    }
    /// fsync(2), or with `data_only` fdatasync(2).
    ///
    /// # Errors
    /// As [`Connection::submit`].
    pub fn sync(&self, data_only: bool, room: Room) -> io::Result<Ticket> {
        let op = if data_only { op::DATASYNC } else { op::SYNC };
        self.connection.submit(self.submission(op, 0), &[], 0, room)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Where nothing can be said the daemon finds out by itself: the kernel's close ends the open file.
        self.connection.tell(self.submission(op::UNBIND, 0));
    }
}
