//! Sockets between a program and a daemon, and descriptors that pass through them.
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::offer::VERSION;
use crate::ring::{AREA_BYTES, ENTRIES};

/// Descriptors that come with the daemon's greeting: the area, the eventfd that wakes it, the one that wakes the program.
pub const GIFTS: usize = 3;
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

/// A new eventfd that never blocks.
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

/// Wakes whoever waits for an eventfd.
pub fn ring_bell(fd: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // By its number, here and below: write(3) and read(3) are places where threads are cancelled, and may be somebody else's.
    // SAFETY: eight bytes that outlive the call. A counter that is full is a bell that rings already.
    unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), one.as_ptr(), one.len()) };
}

/// An eventfd rings no more.
pub fn hush(fd: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    // SAFETY: room for eight bytes that outlives the call. One that does not ring answers EAGAIN.
    unsafe { libc::syscall(libc::SYS_read, fd.as_raw_fd(), count.as_mut_ptr(), count.len()) };
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
    // SAFETY: the control buffer has room for one header and three descriptors, and is aligned for them; all buffers
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
    use std::os::fd::AsFd;

    #[test]
    fn a_greeting_brings_its_descriptors_and_anything_else_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let [x, y, z] = [eventfd().unwrap(), eventfd().unwrap(), eventfd().unwrap()];
        greet(&a, [x.as_fd(), y.as_fd(), z.as_fd()]).unwrap();
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
