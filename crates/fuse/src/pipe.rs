//! A connection whose kernel is a program in this process: the bytes of `/dev/fuse` without the device.
//!
//! What travels is what read(2) and writev(2) of the device move, message by message, so that everything above it (slots,
//! parsing, replies, notifications, interrupts) is the code that serves a real kernel. For models of a kernel that run in
//! simulated time (`simkernel`). A reply is taken by the kernel at some time after it was written; a notification ends
//! when the kernel says so, as a writev(2) of it returns then.
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::notify::Done;

/// The connection. Both sides hold it.
#[derive(Default)]
pub struct Pipe(Mutex<State>);

#[derive(Default)]
struct State {
    /// What the session has not read yet, the next first.
    requests: VecDeque<(u64, Vec<u8>)>,
    messages: VecDeque<Message>,
    reader: Option<Waker>,
    kernel: Option<Waker>,
    closed: bool,
}

/// One message of the session: a reply, or a notification (whose `unique` is 0).
pub struct Message {
    bytes: Vec<u8>,
    done: Option<Arc<Done>>,
}

impl Message {
    /// The header and what follows it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The kernel has done what a notification asks, or says why not. Nothing for a reply.
    pub fn answer(mut self, result: io::Result<()>) {
        if let Some(done) = self.done.take() {
            done.set_notified(result);
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done.set_notified(Err(gone()));
        }
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}

impl Pipe {
    /// A connection that nobody serves yet.
    #[must_use]
    pub fn new() -> Arc<Pipe> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel's side: queues a request for the session. `urgent`: before all others, as interrupts travel.
    pub fn send(&self, unique: u64, request: Vec<u8>, urgent: bool) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        if urgent {
            state.requests.push_front((unique, request));
        } else {
            state.requests.push_back((unique, request));
        }
        if let Some(waker) = state.reader.take() {
            waker.wake();
        }
    }

    /// The kernel's side: takes a request back that the session has not read. Whether it had not.
    pub fn withdraw(&self, unique: u64) -> bool {
        let mut state = self.lock();
        let before = state.requests.len();
        state.requests.retain(|(u, _)| *u != unique);
        state.requests.len() < before
    }

    /// The kernel's side: the session's next message; `None` when the connection is over.
    pub async fn receive(&self) -> Option<Message> {
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(message) = state.messages.pop_front() {
                return Poll::Ready(Some(message));
            }
            if state.closed {
                return Poll::Ready(None);
            }
            state.kernel = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Ends the connection, from either side.
    pub fn close(&self) {
        let (messages, wakers) = {
            let mut state = self.lock();
            state.closed = true;
            state.requests.clear();
            (std::mem::take(&mut state.messages), [state.reader.take(), state.kernel.take()])
        };
        drop(messages);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The session's side: the next request, copied into `buf`; ENODEV when the connection is over.
    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        match Self::take(&mut state, buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    /// The same without waiting: EAGAIN when there is none.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        Self::take(&mut self.lock(), buf)
    }

    fn take(state: &mut State, buf: &mut [u8]) -> io::Result<usize> {
        if state.closed {
            return Err(gone());
        }
        let Some((_, request)) = state.requests.pop_front() else { return Err(io::ErrorKind::WouldBlock.into()) };
        let room = buf.get_mut(..request.len()).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?;
        room.copy_from_slice(&request);
        Ok(request.len())
    }

    /// The session's side: a message; `done` is told when the kernel has carried a notification out.
    pub(crate) fn write(&self, slices: &[IoSlice<'_>], done: Option<Arc<Done>>) -> io::Result<()> {
        let bytes = slices.iter().flat_map(|s| s.iter().copied()).collect();
        let mut state = self.lock();
        if state.closed {
            return Err(gone());
        }
        state.messages.push_back(Message { bytes, done });
        if let Some(waker) = state.kernel.take() {
            waker.wake();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_not_read_can_be_taken_back_and_an_urgent_one_comes_first() {
        let pipe = Pipe::new();
        for (unique, urgent) in [(2, false), (4, false), (5, true)] {
            pipe.send(unique, vec![unique as u8], urgent);
        }
        assert!(pipe.withdraw(2) && !pipe.withdraw(2));
        let mut buf = [0; 8];
        let mut read = || pipe.read(&mut buf).map(|n| buf[..n].to_vec());
        assert_eq!((read().unwrap(), read().unwrap()), (vec![5], vec![4]));
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        pipe.close();
        assert_eq!(pipe.read(&mut buf).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
