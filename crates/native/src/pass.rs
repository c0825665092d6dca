//! Sockets between a program and a daemon, and descriptors that pass through them.
//!
//! O_NONBLOCK belongs to an open file, which a program that was sent a descriptor of it shares. So the daemon says in every call that it
//! does not wait: it writes to no eventfd, which knows no such call, and wakes programs over their socket. It
//! receives nothing from a socket either: what is received may be descriptors, and the close of one that nobody else has may
//! take as long as whoever sent it likes (SO_LINGER of a TCP socket).
use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::offer::VERSION;
use crate::ring::{AREA_BYTES, ENTRIES};

/// Descriptors that come with the daemon's greeting: the area, and the eventfd that wakes it.
pub const GIFTS: usize = 2;
const GREETING_BYTES: usize = 16;
/// Room for the control message that carries them.
const CONTROL_WORDS: usize = 8;

fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    for (i, part) in [u32::from_le_bytes(*b"Stri"), VERSION, ENTRIES, AREA_BYTES as u32].into_iter().enumerate() {
        bytes[4 * i..4 * i + 4].copy_from_slice(&part.to_ne_bytes());
    }
    bytes
}

/// Who is at the other end: process, user, group.
///
/// # Errors
/// What getsockopt(2) has.
pub fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a structure of the said length that outlives the call.
    let rc = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)
    };
    if rc == 0 { Ok(cred) } else { Err(io::Error::last_os_error()) }
}

/// A new eventfd.
///
/// # Errors
/// No descriptor.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Wakes the daemon, which waits for an eventfd. For programs: what they did to it may make them wait.
pub fn ring_bell(fd: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // By its number, here and below: write(3) and recv(3) are places where threads are cancelled, and may be somebody else's.
    // SAFETY: eight bytes that outlive the call. A counter that is full is a bell that rings already.
    unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), one.as_ptr(), one.len()) };
}

/// The daemon's eventfd rings no more; never waits, whatever a program did to it.
///
/// # Errors
/// EOPNOTSUPP: a kernel before 5.8.
pub fn hush(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut count = [0u8; 8];
    let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: room for eight bytes that outlives the call.
    let n = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    let failed = (n < 0).then(io::Error::last_os_error);
    failed.filter(|e| e.kind() != io::ErrorKind::WouldBlock).map_or(Ok(()), Err)
}

/// Whether something that was sent over a socket still waits for its other end.
#[must_use]
pub fn is_unread(stream: &UnixStream) -> bool {
    let mut waiting: libc::c_int = 0;
    // SAFETY: room for the answer, which outlives the call.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
    asked == 0 && waiting > 0
}

/// Wakes a program, which waits for its socket; never waits. A socket that is full rings already, and one whose other end is gone
/// says so where its end is waited for.
pub fn knock(stream: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte that outlives the call.
    unsafe { libc::send(stream.as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
}

/// Takes what woke a program out of its socket. Whether the daemon is there.
pub fn hear(stream: BorrowedFd<'_>) -> bool {
    let (mut knocks, none) = ([0u8; 64], std::ptr::null_mut::<u8>());
    let (fd, flags) = (stream.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: as much room as is said, which outlives the call; nobody asks for the sender.
    let n = unsafe { libc::syscall(libc::SYS_recvfrom, fd, knocks.as_mut_ptr(), knocks.len(), flags, none, none) };
    // Other threads, and signals, may come before.
    let passes = || matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
    n > 0 || n < 0 && passes()
}

/// Option of a socket: whether descriptors may be sent to it (Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;

/// Nobody can send descriptors to a socket, nor to those that it accepts, where the kernel can see to that.
pub fn take_no_descriptors(listener: BorrowedFd<'_>) {
    let no: libc::c_int = 0;
    let len = size_of_val(&no) as libc::socklen_t;
    // SAFETY: a number of the said length that outlives the call. Kernels that cannot say so: see `part`.
    unsafe {
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const no).cast(), len);
    }
}

/// Ended connections of the daemon's with something to throw away.
static PARTING: AtomicUsize = AtomicUsize::new(0);
/// With as many of them nobody is let in.
const PARTING_MAX: usize = 64;
/// How long room is waited for before another look.
const PAUSE: Duration = Duration::from_millis(100);
/// Those of them that no thread took yet.
static LEFT: Mutex<Vec<UnixStream>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<UnixStream>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there is room for one more connection that ends with something to throw away.
#[must_use]
pub fn may_part() -> bool {
    // Their threads could not be started, or are about to take them.
    if !left().is_empty() {
        start_parting();
    }
    PARTING.load(Relaxed) < PARTING_MAX
}

/// Ends a connection, of which the daemon's end may be closed from then on without waiting: what the program sent, and may be
/// long in closing, is thrown away by a thread of its own.
pub fn part(stream: &UnixStream) {
    if !ends_empty(stream) {
        leave(stream);
    }
}

/// The same for a thread that lets in whoever comes: it waits where there is no room ([`may_part`]) for what has to be thrown away.
pub fn part_in_turn(stream: &UnixStream) {
    if ends_empty(stream) {
        return;
    }
    while !may_part() {
        std::thread::park_timeout(PAUSE);
    }
    leave(stream);
}

/// Ends a connection. Whether there is nothing in it to throw away; nothing comes from then on.
fn ends_empty(stream: &UnixStream) -> bool {
    // That the other end is gone already is no failure.
    let _ = stream.shutdown(Shutdown::Both);
    let mut waiting: libc::c_int = 0;
    // SAFETY: room for the answer, which outlives the call.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
    asked == 0 && waiting == 0
}

fn leave(stream: &UnixStream) {
    let Ok(last) = stream.try_clone() else { return };
    PARTING.fetch_add(1, Relaxed);
    left().push(last);
    start_parting();
}

/// Starts a thread that takes an ended connection. It takes it itself: a thread that cannot be started would drop what it was given,
/// and here is somebody who must not wait.
fn start_parting() {
    let empties = || {
        let Some(last) = left().pop() else { return };
        while hear(last.as_fd()) {}
        drop(last);
        PARTING.fetch_sub(1, Relaxed);
    };
    // Without a thread now, the next one who is let in starts it ([`may_part`]).
    let _ = std::thread::Builder::new().name("parting".into()).spawn(empties);
}

/// Throws away what was sent to a socket of the daemon's, as long as that takes: for threads that may wait. Its end may then be closed
/// without waiting, for nothing can be sent to it any more; the other end does not see this.
pub fn throw_away(stream: &UnixStream) {
    // That the other end is gone already is no failure.
    let _ = stream.shutdown(Shutdown::Read);
    while hear(stream.as_fd()) {}
}

/// The daemon's greeting, with the memory and the bells. The buffer of a new connection holds it: this does not wait.
///
/// # Errors
/// The peer is gone.
pub fn greet(stream: &UnixStream, gifts: [BorrowedFd<'_>; GIFTS]) -> io::Result<()> {
    let bytes = greeting();
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    let carried = size_of::<[i32; GIFTS]>() as u32;
    // SAFETY: only computes lengths.
    let (space, len) = unsafe { (libc::CMSG_SPACE(carried), libc::CMSG_LEN(carried)) };
    debug_assert!(space as usize <= size_of_val(&control));
    message.msg_controllen = space as _;
    // SAFETY: the control buffer has room for one header and the descriptors, and is aligned for them; all buffers
    // outlive the call.
    let sent = unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = len as _;
        libc::CMSG_DATA(head).cast::<[i32; GIFTS]>().write_unaligned(gifts.map(|g| g.as_raw_fd()));
        libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    match usize::try_from(sent) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// The program's side of [`greet`]; waits for it as long as the socket's time-out says.
///
/// # Errors
/// ECONNREFUSED: the daemon hung up (it serves too many); EPROTO: that was no greeting of this version.
pub fn be_greeted(stream: &UnixStream) -> io::Result<[OwnedFd; GIFTS]> {
    let mut bytes = [0u8; GREETING_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header describes buffers that outlive the call.
    let n = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer; headers are walked by its own macros, and every descriptor in them is
    // new and ours.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(&raw const message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let carried = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for i in 0..carried / size_of::<i32>() {
                    let fd = libc::CMSG_DATA(head).cast::<i32>().add(i).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            head = libc::CMSG_NXTHDR(&raw const message, head);
        }
    }
    if n == 0 {
        return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
    }
    let gifts = <[OwnedFd; GIFTS]>::try_from(fds);
    gifts.ok().filter(|_| bytes == greeting()).ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTO))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes O_NONBLOCK away, as whoever shares the descriptor may.
    fn make_wait(fd: BorrowedFd<'_>) {
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    }

    #[test]
    fn a_program_that_takes_o_nonblock_away_makes_no_daemon_wait() {
        let (bell, (ours, theirs)) = (eventfd().unwrap(), UnixStream::pair().unwrap());
        let shared = bell.try_clone().unwrap();
        for fd in [shared.as_fd(), ours.as_fd(), theirs.as_fd()] {
            make_wait(fd);
        }
        hush(bell.as_fd()).unwrap();
        ring_bell(shared.as_fd());
        hush(bell.as_fd()).unwrap();
        hush(bell.as_fd()).unwrap();
        // More than any socket holds.
        for _ in 0..100_000 {
            knock(ours.as_fd());
        }
        for _ in 0..100_000 {
            assert!(hear(theirs.as_fd()), "it is there, whether it says something or not");
        }
        knock(ours.as_fd());
        drop(ours);
        assert!(hear(theirs.as_fd()), "what it said before it ended");
        assert!(!hear(theirs.as_fd()));
        knock(theirs.as_fd());
    }

    /// A TCP socket with bytes that its other end does not take, and whose last close waits for that.
    fn lingers() -> (std::net::TcpStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        one.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &one, &[0; 65536]).is_ok() {}
        let hours = libc::linger { l_onoff: 1, l_linger: 3600 };
        let len = size_of_val(&hours) as libc::socklen_t;
        // SAFETY: a structure of the said length that outlives the call.
        let set = unsafe {
            libc::setsockopt(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const hours).cast(), len)
        };
        assert_eq!(set, 0);
        one.set_nonblocking(false).unwrap();
        (one, other)
    }

    #[test]
    fn the_end_of_a_connection_does_not_wait_for_descriptors_that_were_sent() {
        let ((ours, theirs), (one, other)) = (UnixStream::pair().unwrap(), lingers());
        greet(&theirs, [one.as_fd(), one.as_fd()]).unwrap();
        drop(one);
        part(&ours);
        drop(ours);
        // Whoever waits for it waits until here.
        drop(other);
        while PARTING.load(Relaxed) > 0 {
            std::thread::yield_now();
        }
        assert!(may_part());
    }

    #[test]
    fn a_connection_whose_thread_could_not_be_started_is_taken_by_the_next() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        ours.shutdown(Shutdown::Both).unwrap();
        PARTING.fetch_add(1, Relaxed);
        left().push(ours);
        while PARTING.load(Relaxed) > 0 {
            let _ = may_part();
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_was_sent_is_unread_until_it_is_taken_or_nobody_can_take_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bell = eventfd().unwrap();
        assert!(!is_unread(&ours));
        greet(&ours, [bell.as_fd(), bell.as_fd()]).unwrap();
        part(&ours);
        assert!(is_unread(&ours));
        be_greeted(&theirs).unwrap();
        assert!(!is_unread(&ours));
        let (ours, theirs) = UnixStream::pair().unwrap();
        greet(&ours, [bell.as_fd(), bell.as_fd()]).unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        assert!(is_unread(&ours));
        drop(theirs);
        assert!(!is_unread(&ours));
    }

    #[test]
    fn what_was_sent_is_thrown_away_and_nothing_comes_behind_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &theirs, &[1; 1000]).unwrap();
        throw_away(&ours);
        assert!(std::io::Write::write(&mut &theirs, b"x").is_err());
        std::io::Write::write_all(&mut &ours, b"y").unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(&mut &theirs, &mut byte).unwrap();
        assert_eq!(byte, *b"y", "the other way is open");
    }

    #[test]
    fn a_greeting_brings_its_descriptors_and_anything_else_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let [x, y] = [eventfd().unwrap(), eventfd().unwrap()];
        greet(&a, [x.as_fd(), y.as_fd()]).unwrap();
        let gifts = be_greeted(&b).unwrap();
        ring_bell(y.as_fd());
        let mut count = [0u8; 8];
        // SAFETY: room for eight bytes.
        let n = unsafe { libc::read(gifts[1].as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        assert_eq!((n, u64::from_ne_bytes(count)), (8, 1), "the same eventfd");
        std::io::Write::write_all(&mut &a, b"0123456789abcdef").unwrap();
        assert_eq!(be_greeted(&b).unwrap_err().raw_os_error(), Some(libc::EPROTO));
        drop(a);
        assert_eq!(be_greeted(&b).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        assert_eq!(peer(&b).unwrap().pid, std::process::id() as i32);
    }
}
