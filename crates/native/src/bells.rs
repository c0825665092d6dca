//! The descriptors of a connection: the daemon's bell, and the socket, over which the daemon wakes the program and whose end is the
//! daemon's.
//!
//! They stand in the program's own table, and programs close numbers that they do not know, or have them made anew for
//! something else. So they get high numbers, are compared with what they were before anybody waits for them or writes to
//! them, and are left alone where they are something else by now.
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::pass;

/// Where numbers of connections begin, if the program may have as many: below 1,024, which is a usual limit.
const FIRST: libc::c_int = 960;

/// What a descriptor leads to: device, inode.
type Identity = (u32, u32, u64);

/// The descriptors.
pub(crate) struct Bells {
    daemons: ManuallyDrop<OwnedFd>,
    stream: ManuallyDrop<OwnedFd>,
    known: [Identity; 2],
}

fn identity(fd: RawFd) -> io::Result<Identity> {
    let mut of = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is empty and ends with a zero; `of` has room for the answer.
    let rc = unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, libc::STATX_INO, of.as_mut_ptr()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, and every byte was zero before.
    let of = unsafe { of.assume_init() };
    Ok((of.stx_dev_major, of.stx_dev_minor, of.stx_ino))
}

/// The same under a high number, where there is one.
fn high(fd: OwnedFd) -> OwnedFd {
    // SAFETY: plain system call; the result is checked.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST) };
    // SAFETY: a new descriptor that nobody else owns.
    if moved < 0 { fd } else { unsafe { OwnedFd::from_raw_fd(moved) } }
}

impl Bells {
    /// Takes what a greeting brought.
    pub(crate) fn new(daemons: OwnedFd, stream: UnixStream) -> io::Result<Bells> {
        let [daemons, stream] = [daemons, stream.into()].map(high);
        let known = [identity(daemons.as_raw_fd())?, identity(stream.as_raw_fd())?];
        let [daemons, stream] = [daemons, stream].map(ManuallyDrop::new);
        Ok(Bells { daemons, stream, known })
    }
    /// Nothing more is asked: the daemon ends what is under way, and then hangs up.
    pub(crate) fn hang_up(&self) {
        if self.are_intact(1..2) {
            // SAFETY: plain system call on the socket of this connection.
            unsafe { libc::syscall(libc::SYS_shutdown, self.stream.as_raw_fd(), libc::SHUT_WR) };
        }
    }
    /// Whether the daemon has hung up within that time, or cannot be heard any more.
    pub(crate) fn has_hung_up(&self, within: Duration) -> bool {
        if !self.are_intact(1..2) {
            return true;
        }
        let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        let mut stream = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        poll(&mut stream, within) && stream.revents & gone != 0
    }
    /// Closes them, if they are what they were.
    pub(crate) fn close(&self) {
        if self.are_intact(0..2) {
            for fd in self.numbers() {
                // SAFETY: this connection's descriptor.
                unsafe { libc::syscall(libc::SYS_close, fd) };
            }
        }
    }
    /// Their numbers.
    pub(crate) fn numbers(&self) -> [RawFd; 2] {
        [self.daemons.as_raw_fd(), self.stream.as_raw_fd()]
    }
    /// Whether they are what they were. All eventfds have one identity: another of them would be rung for nothing, no
    /// file, pipe or socket is taken for one.
    fn are_intact(&self, which: Range<usize>) -> bool {
        which.into_iter().all(|i| identity(self.numbers()[i]).is_ok_and(|is| is == self.known[i]))
    }
    /// Wakes the daemon. `false`: there is nothing to do it with any more.
    pub(crate) fn ring(&self) -> bool {
        let intact = self.are_intact(0..1);
        if intact {
            pass::ring_bell(self.daemons.as_fd());
        }
        intact
    }
    /// Waits until the daemon knocks or ends, or so long. Whether it is gone, or cannot be heard any more.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        if !self.are_intact(1..2) {
            return true;
        }
        let mut stream = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // What it said before it ended is heard before its end is.
        poll(&mut stream, at_most)
            && !(stream.revents & libc::POLLIN != 0 && self.are_intact(1..2) && pass::hear(self.stream.as_fd()))
    }
}

/// Waits for one descriptor, or so long. Whether something came; a signal ends it early.
fn poll(one: &mut libc::pollfd, at_most: Duration) -> bool {
    let mut limit = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(at_most.subsec_nanos()),
    };
    // By its number: poll(3) would be a place where threads are cancelled.
    // SAFETY: an entry and a limit that outlive the call, and no mask.
    let n = unsafe {
        libc::syscall(libc::SYS_ppoll, std::ptr::from_mut(one), 1, &raw mut limit, std::ptr::null::<u8>(), 0)
    };
    n > 0
}

/// What a descriptor leads to, folded into a number: equal where it leads to the same. `None`: to nothing.
#[must_use]
pub fn mark(fd: RawFd) -> Option<u64> {
    let (major, minor, inode) = identity(fd).ok()?;
    Some(inode ^ u64::from(major) << 52 ^ u64::from(minor) << 40)
}

impl Drop for Bells {
    fn drop(&mut self) {
        if !self.are_intact(0..2) {
            return;
        }
        // SAFETY: they are ours, and nobody uses them after this.
        unsafe {
            ManuallyDrop::drop(&mut self.daemons);
            ManuallyDrop::drop(&mut self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn a_number_that_became_a_file_is_neither_written_to_nor_closed() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let bells = Bells::new(pass::eventfd().unwrap(), ours).unwrap();
        assert!(bells.ring());
        let (number, mut file) = (bells.numbers()[0], tempfile::tempfile().unwrap());
        // SAFETY: takes the number away, as programs do that close what they do not know.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        assert!(!bells.ring());
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), bells.numbers()[1]) }, bells.numbers()[1]);
        assert!(bells.wait(Duration::from_secs(60)), "what cannot ring is not waited for");
        let own = bells.numbers()[1];
        drop(bells);
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"");
        // SAFETY: they were left open; closed here.
        assert_eq!(unsafe { (libc::close(number), libc::close(own)) }, (0, 0));
    }
}
