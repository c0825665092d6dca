//! `/dev/fuse`: requests are read(2), replies written with writev(2).
//!
//! The device cannot be read asynchronously: two io_uring READs that both saw it ready would race, and the loser would
//! block the thread. So the descriptor is non-blocking, one slot of the worker at a time (the leader) waits for
//! readiness on the runtime and reads; when its handler suspends it hands leadership to the next slot, when the handler
//! finishes at once it stays leader. Several workers wait exclusively, so one request wakes one thread.
use crate::Replied;
use crate::abi::*;
use crate::crew::Group;
use crate::op::{Oneway, ParseError, op_struct_len, parse_oneway};
use crate::reply::Reply;
use crate::request::Request;
use crate::session::{FileSystem, Link, SessionError, Shared, count, io_error, is_gone};
use crate::slot::{MESSAGE_AT, Slot, Via};
use compio::BufResult;
use compio::driver::{Decision, IourOpCode, OpEntry, OpType, PollOpCode};
use io_uring::{opcode as sqe, types::Fd};
use rt::sync::Semaphore;
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use zerocopy::FromBytes;

/// Messages a leader reads without waiting in between, after which it lets the runtime look at other I/O.
const STREAK_MAX: u32 = 16;
/// After how many messages a leader for whom nothing was waiting tries again to read without asking for readiness.
const RETRY_EVERY: u32 = 8;

/// Which slot of the worker reads, and how eagerly.
pub(crate) struct Lead {
    /// Whoever holds the permit leads.
    turn: Semaphore,
    /// Whether more messages were waiting when last tried.
    crowded: Cell<bool>,
    streak: Cell<u32>,
    since_retry: Cell<u32>,
}

impl Default for Lead {
    fn default() -> Self {
        Lead {
            turn: Semaphore::new(1),
            crowded: Cell::default(),
            streak: Cell::default(),
            since_retry: Cell::default(),
        }
    }
}

impl Lead {
    async fn take(&self) {
        self.turn.acquire(1).await;
    }

    /// The slot that has waited longest leads from now on.
    fn release(&self) {
        self.turn.add(1);
    }

    /// Whether to read before asking for readiness.
    fn tries_at_once(&self) -> bool {
        if self.crowded.get() && self.streak.get() < STREAK_MAX {
            self.streak.set(self.streak.get() + 1);
            return true;
        }
        self.streak.set(0);
        self.since_retry.set(self.since_retry.get() + 1);
        self.since_retry.get().is_multiple_of(RETRY_EVERY)
    }
}

/// Waits until the device is readable, without being woken together with other waiters.
struct Readable(Arc<Shared>);

// SAFETY: the entry refers only to the descriptor that `self` keeps open.
unsafe impl IourOpCode for Readable {
    type Control = ();

    fn create_entry(&mut self, _: &mut ()) -> OpEntry {
        let events = libc::POLLIN as u32 | libc::EPOLLEXCLUSIVE as u32;
        sqe::PollAdd::new(Fd(self.0.link.raw_fd()), events).build().into()
    }
}

// SAFETY: `op_type` names the descriptor that `pre_submit` waits for.
unsafe impl PollOpCode for Readable {
    type Control = ();

    fn pre_submit(&mut self, _: &mut ()) -> io::Result<Decision> {
        Ok(Decision::wait_readable(self.0.link.raw_fd()))
    }

    fn op_type(&mut self, _: &mut ()) -> Option<OpType> {
        Some(OpType::fd(self.0.link.raw_fd()))
    }

    fn operate(&mut self, _: &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(0))
    }
}

/// Serves one slot on `/dev/fuse` until the connection ends.
pub(crate) async fn serve_reader<F: FileSystem>(
    shared: Arc<Shared>,
    fs: Rc<F>,
    group: Rc<Group>,
    lead: Rc<Lead>,
) -> Result<(), SessionError> {
    let mut slot = Slot::new(shared.clone(), Via::Dev, group.clone()).map_err(io_error("mapping a request slot"))?;
    let mut leading = false;
    loop {
        if !leading {
            lead.take().await;
        }
        let message = next_message(&mut slot, &lead).await;
        let Ok(Some(len)) = message else {
            shared.ended.store(true, Ordering::Release);
            lead.release();
            return message.map(drop).map_err(io_error("reading /dev/fuse"));
        };
        leading = handle_message(&mut slot, len, &fs, &group, &lead).await;
        if group.shrinks(&shared) {
            if leading {
                lead.release();
            }
            return Ok(());
        }
    }
}

/// Reads one message into the slot; `None` when the connection is over.
async fn next_message(slot: &mut Slot, lead: &Lead) -> io::Result<Option<usize>> {
    let shared = slot.shared.clone();
    let room = slot.buf.message_bytes_max();
    if let Link::Pipe(pipe) = &shared.link {
        let read = poll_fn(|cx| pipe.poll_read(cx, slot.bytes_mut(MESSAGE_AT, room))).await;
        return match read {
            Err(e) if is_gone(&e) => Ok(None),
            other => other.map(Some),
        };
    }
    let mut at_once = lead.tries_at_once();
    loop {
        if shared.ended.load(Ordering::Acquire) {
            return Ok(None);
        }
        if !at_once {
            let BufResult(result, _) = compio::runtime::submit(Readable(shared.clone())).await;
            result?;
        }
        let e = match shared.link.read(slot.bytes_mut(MESSAGE_AT, room)) {
            Ok(n) => {
                if at_once {
                    lead.crowded.set(true);
                }
                return Ok(Some(n));
            }
            Err(e) => e,
        };
        match e.raw_os_error() {
            Some(libc::EAGAIN) => {
                lead.crowded.set(false);
                at_once = false;
            }
            // The request was interrupted before it was read: it is gone, the next may be there.
            Some(libc::ENOENT | libc::EINTR) => at_once = true,
            _ if is_gone(&e) => return Ok(None),
            _ => return Err(e),
        }
    }
}

/// Handles the message in the slot. Says whether the slot still leads.
async fn handle_message<F: FileSystem>(slot: &mut Slot, len: usize, fs: &Rc<F>, group: &Group, lead: &Lead) -> bool {
    let shared = slot.shared.clone();
    let Ok((head, _)) = InHeader::read_from_prefix(slot.bytes(MESSAGE_AT, len)) else {
        count(&shared.counters.refused);
        return true;
    };
    let arg_at = MESSAGE_AT + size_of::<InHeader>();
    let rest = len - size_of::<InHeader>();
    let arg_len = op_struct_len(head.opcode, shared.setxattr_ext()).unwrap_or(0).min(rest);
    let (arg, data) = (arg_at..arg_at + arg_len, arg_at + arg_len..arg_at + rest);
    let (arg_bytes, data_bytes) = (slot.bytes(arg.start, arg.len()), slot.bytes(data.start, data.len()));
    if let Some(message) = parse_oneway(head.opcode, arg_bytes, data_bytes) {
        on_oneway(&shared, fs, head.nodeid, message);
        return true;
    }
    let leading = Cell::new(true);
    match Request::new(slot, head, arg, data) {
        Ok(req) if shared.kickers.is_kick(&head) => {
            count(&shared.counters.kicks);
            let _ = req.into_reply().statfs(&Kstatfs::default());
        }
        Ok(req) => {
            count(&shared.counters.requests);
            rt::real::arrived();
            let hand_over = || {
                if leading.replace(false) {
                    lead.release();
                }
            };
            let replied = group.watch(&shared, hand_over, fs.handle(req)).await;
            assert_eq!(replied.unique, head.unique, "a handler returned another request's reply");
            if let Some(bulk) = slot.leaving.take() {
                // Others read meanwhile.
                hand_over();
                write_apart(shared.clone(), head.unique, bulk).await;
            }
            if group.is_idle() {
                rt::real::expect_soon();
            }
        }
        Err((e, reply)) => {
            let _ = refuse(&shared, e, reply);
        }
    }
    leading.get()
}

/// Has a mover hand a reply's bytes to the kernel, which copies them.
async fn write_apart(shared: Arc<Shared>, unique: u64, bulk: frames::Bulk) {
    let write = move || {
        let slices: Vec<IoSlice<'_>> = bulk.slices().map(IoSlice::new).collect();
        rt::real::note_moved(bulk.len());
        shared.write_reply(unique, 0, &slices);
    };
    match rt::real::movers() {
        Some(movers) => movers.run(unique as usize >> 1, move || async move { write() }).await,
        None => write(),
    }
}

fn on_oneway<F: FileSystem>(shared: &Shared, fs: &Rc<F>, nodeid: u64, message: Result<Oneway<'_>, ParseError>) {
    match message {
        Ok(Oneway::Forget { nlookup }) => fs.forget(nodeid, nlookup),
        Ok(Oneway::BatchForget { nodes }) => nodes.iter().for_each(|n| fs.forget(n.nodeid, n.nlookup)),
        Ok(Oneway::Interrupt { unique }) => {
            count(&shared.counters.interrupts);
            if shared.interrupts.on_interrupt(unique) {
                count(&shared.counters.interrupt_limit_hit);
            }
        }
        Ok(Oneway::NotifyReply) => {}
        Err(e) => {
            count(&shared.counters.refused);
            tracing::error!("malformed message from the kernel: {e}");
        }
    }
}

/// Answers a request that could not be parsed.
pub(crate) fn refuse(shared: &Shared, error: ParseError, reply: Reply<'_>) -> Replied {
    if let ParseError::LongName(_) = error {
        // A program's mistake, not the kernel's.
        tracing::debug!("{error}");
        return reply.err(libc::ENAMETOOLONG);
    }
    count(&shared.counters.refused);
    match error {
        ParseError::UnknownOpcode(op) => {
            tracing::debug!(op, "unknown request");
            reply.err(libc::ENOSYS)
        }
        e => {
            tracing::error!("malformed request from the kernel: {e}");
            reply.err(libc::EINVAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_slot_that_is_woken_for_nothing_takes_no_turn_from_others() {
        let lead = Lead::default();
        let woken: [Arc<Woken>; 4] = std::array::from_fn(|_| Arc::default());
        let wakers = woken.clone().map(Waker::from);
        let mut cx = wakers.each_ref().map(Context::from_waker);
        let mut slots = [(); 4].map(|()| Box::pin(lead.take()));
        assert!(slots[0].as_mut().poll(&mut cx[0]).is_ready());
        for at in [1, 2, 1, 3, 1] {
            assert!(slots[at].as_mut().poll(&mut cx[at]).is_pending());
        }
        for at in 1..4 {
            lead.release();
            assert!(woken[at].0.load(Ordering::Relaxed), "slot {at} was not told that it leads");
            assert!(slots[at].as_mut().poll(&mut cx[at]).is_ready());
        }
        lead.release();
        assert!(pin!(lead.take()).poll(&mut cx[0]).is_ready());
    }
}
