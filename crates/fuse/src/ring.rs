//! FUSE-over-io_uring: requests arrive as completions of commands on the runtime's own ring.
//!
//! Each entry is one task: register, then for ever {request completes -> handler -> reply and next fetch in one SQE}.
//! The commands share the ring with the daemon's network and disk I/O, so one thread waits in one place.
//! Rules of the kernel that matter here: every possible CPU needs an entry before requests flow; the operation's
//! structure arrives in `op_in`, names and data in the payload, and the reply overwrites the payload; ENOTCONN means
//! unmounted; FORGET and INTERRUPT come on `/dev/fuse` all the same.
use crate::abi::*;
use crate::crew::Group;
use crate::op::op_struct_len;
use crate::request::Request;
use crate::session::{FileSystem, SessionError, Shared, count, io_error, is_gone};
use crate::slot::{PAYLOAD_AT, Slot, SlotBuf, Via};
use compio::driver::{Decision, IourOpCode, OpEntry, PollOpCode};
use frames::Bulk;
use io_uring::{opcode, types::Fd};
use rt::real::MOVED_BYTES_MIN;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use zerocopy::{FromBytes, IntoBytes};

/// One FUSE command for the ring. Keeps descriptor and slot memory alive until the kernel is done with them.
struct RingCmd {
    shared: Arc<Shared>,
    buf: Arc<SlotBuf>,
    cmd: u32,
    queue: u16,
    commit_id: u64,
}

// SAFETY: the entry refers to the descriptor held by `shared` and to memory held by `buf`; both live in the operation,
// which the driver keeps until the completion arrived or the ring is closed.
unsafe impl IourOpCode for RingCmd {
    type Control = ();

    fn create_entry(&mut self, _: &mut ()) -> OpEntry {
        let req = UringCmdReq { flags: 0, commit_id: self.commit_id, qid: self.queue, padding: [0; 6] };
        let mut area = [0u8; 80];
        area[..size_of::<UringCmdReq>()].copy_from_slice(req.as_bytes());
        let mut sqe = opcode::UringCmd80::new(Fd(self.shared.link.raw_fd()), self.cmd)
            .cmd(area)
            .addr(Some(self.buf.iovecs() as u64))
            .build();
        // The builder has no setter for `len` (bytes 24..28 of the SQE): the number of iovecs.
        const LEN_AT: usize = 24;
        let raw = (&raw mut sqe).cast::<u8>();
        // SAFETY: an SQE128 is 128 plain bytes; 24..28 is its `len` field.
        unsafe { raw.add(LEN_AT).cast::<u32>().write_unaligned(2) };
        OpEntry::Submission128(sqe)
    }
}

const _: () = assert!(size_of::<io_uring::squeue::Entry128>() == 128);

// SAFETY: never waits for a descriptor; `pre_submit` refuses.
unsafe impl PollOpCode for RingCmd {
    type Control = ();

    fn pre_submit(&mut self, _: &mut ()) -> io::Result<Decision> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn operate(&mut self, _: &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)))
    }
}

/// Whether callers on this CPU do not run on ours.
fn is_elsewhere(cpu: u16) -> bool {
    // SAFETY: no arguments.
    let here = unsafe { libc::sched_getcpu() };
    here != i32::from(cpu)
}

/// Answers with the command and waits for the next request. Where bytes leave with the answer they are copied by a mover, which
/// commits, too: so the kernel's copy is made there, and the next request comes there.
async fn commit(op: RingCmd, leaving: Option<Bulk>) -> io::Result<usize> {
    let Some(bulk) = leaving else { return compio::runtime::submit(op).await.0 };
    let Some(movers) = rt::real::movers() else {
        // SAFETY: the slot is its task's, and the kernel has answered nothing yet.
        unsafe { op.buf.fill(&bulk) };
        return compio::runtime::submit(op).await.0;
    };
    let queue = usize::from(op.queue);
    let job = move || async move {
        // SAFETY: the slot's task waits for this job, and the kernel has answered nothing yet.
        unsafe { op.buf.fill(&bulk) };
        drop(bulk);
        compio::runtime::submit(op).await.0
    };
    movers.run(queue, job).await
}

/// Serves one ring entry of `queue` until the connection ends.
pub(crate) async fn serve_entry<F: FileSystem>(
    shared: Arc<Shared>,
    fs: Rc<F>,
    group: Rc<Group>,
    queue: u16,
) -> Result<(), SessionError> {
    let mut slot = Slot::new(shared.clone(), Via::Ring, group.clone()).map_err(io_error("mapping a ring entry"))?;
    let (mut cmd, mut commit_id) = (uring_cmd::REGISTER, 0);
    loop {
        let op = RingCmd { shared: shared.clone(), buf: slot.buf.clone(), cmd, queue, commit_id };
        match commit(op, slot.leaving.take()).await {
            Ok(_) => {}
            Err(e) if is_gone(&e) => return Ok(()),
            Err(e) if cmd == uring_cmd::REGISTER => return Err(io_error("registering a FUSE ring entry")(e)),
            Err(e) => return Err(io_error("committing a FUSE reply on the ring")(e)),
        }
        let header = slot.ring_header();
        let (head, _) = InHeader::read_from_prefix(&header.in_out).expect("128 bytes hold a request header");
        (cmd, commit_id) = (uring_cmd::COMMIT_AND_FETCH, header.ent.commit_id);
        let data = PAYLOAD_AT..PAYLOAD_AT + (header.ent.payload_sz as usize).min(shared.payload_bytes());
        let op_in = std::mem::offset_of!(UringReqHeader, op_in);
        let arg = op_in..op_in + op_struct_len(head.opcode, shared.setxattr_ext()).unwrap_or(0).min(128);
        match Request::new(&mut slot, head, arg, data) {
            Ok(req) if shared.kickers.is_kick(&head) => {
                count(&shared.counters.kicks);
                let _ = req.into_reply().statfs(&Kstatfs::default());
            }
            Ok(req) => {
                count(&shared.counters.requests);
                rt::real::arrived();
                let replied = group.watch(&shared, || {}, fs.handle(req)).await;
                assert_eq!(replied.unique, head.unique, "a handler returned another request's reply");
                if header.ent.payload_sz as usize >= MOVED_BYTES_MIN {
                    // Its successor is likely to be as large, and is copied by who commits.
                    slot.leaving.get_or_insert_default();
                }
                if group.is_idle() && is_elsewhere(queue) {
                    rt::real::expect_soon();
                }
            }
            Err((e, reply)) => {
                let _ = crate::dev::refuse(&shared, e, reply);
            }
        }
    }
}
