//! One I/O operation with its own vectors and whatever memory they point into.
//!
//! The memory an operation reads or writes is owned by the operation (`keep`), so it outlives the kernel's use of it
//! even when the future that waits is dropped.
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Poll;

use compio::driver::op::Interest;
use compio::driver::{Decision, IourOpCode, OpEntry, OpType, PollOpCode};
use io_uring::{opcode, types::Fd};

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    ReadAt(u64),
    WriteAt(u64),
    /// Of something that has no position; waits until there is something.
    Read,
    Send,
    /// Fill the vectors completely unless the stream ends.
    RecvAll,
    /// At least one byte.
    Recv,
    Sync,
    Allocate(u64, u64),
    Punch(u64, u64),
    Accept,
}

pub(crate) struct Op<K> {
    fd: Arc<OwnedFd>,
    call: Call,
    iov: Vec<libc::iovec>,
    msg: libc::msghdr,
    pub(crate) keep: K,
}

impl<K> Op<K> {
    pub(crate) fn new(fd: Arc<OwnedFd>, call: Call, iov: Vec<libc::iovec>, keep: K) -> Op<K> {
        // SAFETY: an all-zero msghdr is valid.
        let msg = unsafe { std::mem::zeroed() };
        Op { fd, call, iov, msg, keep }
    }
    fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
    fn fill_msg(&mut self) {
        self.msg.msg_iov = self.iov.as_mut_ptr();
        self.msg.msg_iovlen = self.iov.len();
    }
    /// The same operation as a system call, for workers, polling and memory-backed files.
    pub(crate) fn call(&mut self, extra_flags: i32) -> io::Result<usize> {
        self.fill_msg();
        let fd = self.raw();
        let count = self.iov.len() as i32;
        // SAFETY: every vector points into `keep`, which lives as long as `self`; the fd is open.
        let n = unsafe {
            match self.call {
                Call::ReadAt(at) => libc::preadv(fd, self.iov.as_ptr(), count, at as i64),
                Call::WriteAt(at) => libc::pwritev(fd, self.iov.as_ptr(), count, at as i64),
                Call::Read => libc::readv(fd, self.iov.as_ptr(), count),
                Call::Send => libc::sendmsg(fd, &raw const self.msg, libc::MSG_NOSIGNAL | extra_flags),
                Call::Recv | Call::RecvAll => libc::recvmsg(fd, &raw mut self.msg, extra_flags),
                Call::Sync => libc::fdatasync(fd) as isize,
                Call::Allocate(at, len) => libc::fallocate(fd, 0, at as i64, len as i64) as isize,
                Call::Punch(at, len) => {
                    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    libc::fallocate(fd, mode, at as i64, len as i64) as isize
                }
                Call::Accept => {
                    libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) as isize
                }
            }
        };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }
    fn interest(&self) -> Option<Interest> {
        match self.call {
            Call::Send => Some(Interest::Writable),
            Call::Read | Call::Recv | Call::RecvAll | Call::Accept => Some(Interest::Readable),
            _ => None,
        }
    }
}

// SAFETY: the entry's pointers lead into `self` (which the driver keeps unmoved until completion) and `keep`.
unsafe impl<K> IourOpCode for Op<K> {
    type Control = ();
    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        self.fill_msg();
        let fd = Fd(self.raw());
        let (iov, count) = (self.iov.as_ptr(), self.iov.len() as u32);
        let entry = match self.call {
            Call::ReadAt(at) => opcode::Readv::new(fd, iov, count).offset(at).build(),
            Call::WriteAt(at) => opcode::Writev::new(fd, iov, count).offset(at).build(),
            Call::Read => opcode::Readv::new(fd, iov, count).offset(u64::MAX).build(),
            Call::Send => opcode::SendMsg::new(fd, &raw const self.msg)
                .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
                .build(),
            Call::RecvAll => opcode::RecvMsg::new(fd, &raw mut self.msg).flags(libc::MSG_WAITALL as u32).build(),
            Call::Recv => opcode::RecvMsg::new(fd, &raw mut self.msg).build(),
            Call::Sync => opcode::Fsync::new(fd).flags(io_uring::types::FsyncFlags::DATASYNC).build(),
            Call::Allocate(at, len) => opcode::Fallocate::new(fd, len).offset(at).build(),
            Call::Punch(at, len) => opcode::Fallocate::new(fd, len)
                .offset(at)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            Call::Accept => {
                opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC).build()
            }
        };
        OpEntry::Submission(entry)
    }
    fn call_blocking(&mut self, (): &mut ()) -> io::Result<usize> {
        self.call(0)
    }
}

// SAFETY: `op_type` names the fd that `pre_submit` waits for.
unsafe impl<K> PollOpCode for Op<K> {
    type Control = ();
    fn pre_submit(&mut self, (): &mut ()) -> io::Result<Decision> {
        match self.interest() {
            Some(interest) => Ok(Decision::wait_for(self.raw(), interest)),
            None => Ok(Decision::Blocking),
        }
    }
    fn op_type(&mut self, (): &mut ()) -> Option<OpType> {
        self.interest().map(|_| OpType::fd(self.raw()))
    }
    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        match self.call(if self.interest().is_some() { libc::MSG_DONTWAIT } else { 0 }) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            other => Poll::Ready(other),
        }
    }
}

/// Carries the operation out; gives its memory back.
pub(crate) async fn submit<K: 'static>(
    fd: &Arc<OwnedFd>,
    call: Call,
    iov: Vec<libc::iovec>,
    keep: K,
) -> (io::Result<usize>, K) {
    let op = Op::new(fd.clone(), call, iov, keep);
    let compio::buf::BufResult(result, op) = compio::runtime::submit(op).await;
    (result, op.keep)
}
