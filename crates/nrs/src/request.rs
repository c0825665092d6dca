//! What a policy sees of one queued bulk RPC. No bytes, no connection, no reply: those stay with the OSS.
use core::fmt;
use types::{ClientId, Duration, Extent, Instant, ObjectId, RequestId};

/// What a request does to its object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum IoOp {
    /// A bulk read.
    #[default]
    Read = 0,
    /// A bulk write.
    Write = 1,
    /// Frees the bytes of `extent`; ordered like a write, carries no bulk.
    Punch = 2,
    /// Makes the bytes of `extent` durable; ordered like a write, carries no bulk.
    Sync = 3,
}

impl IoOp {
    /// Every operation, in code order.
    pub const ALL: [IoOp; 4] = [IoOp::Read, IoOp::Write, IoOp::Punch, IoOp::Sync];

    /// Whether only the object's write queue may hold it.
    #[must_use]
    pub const fn is_write(self) -> bool {
        !matches!(self, IoOp::Read)
    }
    /// Lustre's name of the opcode, as throttling rules spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            IoOp::Read => "ost_read",
            IoOp::Write => "ost_write",
            IoOp::Punch => "ost_punch",
            IoOp::Sync => "ost_sync",
        }
    }
    /// Inverse of [`IoOp::name`].
    #[must_use]
    pub fn parse(name: &str) -> Option<IoOp> {
        IoOp::ALL.into_iter().find(|op| op.name() == name)
    }
    /// Inverse of `self as u8`.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<IoOp> {
        match code {
            0 => Some(IoOp::Read),
            1 => Some(IoOp::Write),
            2 => Some(IoOp::Punch),
            3 => Some(IoOp::Sync),
            _ => None,
        }
    }
}

/// A batch job, as a 64-bit hash of its name: policies compare jobs, they never print them. 0 is "no job".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct JobId(pub u64);

impl JobId {
    /// The id of a job name ([`types::job_id`]); the empty name is [`JobId::default`].
    #[must_use]
    pub fn of(name: &str) -> JobId {
        JobId(types::job_id(name.as_bytes()))
    }
}
impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job{:016x}", self.0)
    }
}
impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One bulk RPC as a policy sees it: 88 bytes, passed by reference; a policy keeps only the part it orders by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NrsRequest {
    /// The request's number in its head: a small slab key (below [`crate::REQUEST_ID_LIMIT`]), unique from enqueue
    /// to completion, then reused. Policies index tables by it: memory grows with the greatest id ever seen.
    pub id: RequestId,
    /// Bulk bytes that the store will move; at most `extent.len()`, 0 for punch and sync.
    pub bytes: u32,
    /// Who sent it.
    pub client: ClientId,
    /// The object it touches, on this OST.
    pub object: ObjectId,
    /// Object bytes it spans, half-open.
    pub extent: Extent,
    /// User that the I/O is charged to.
    pub uid: u32,
    /// What it does.
    pub op: IoOp,
    /// Job that the I/O is charged to.
    pub job: JobId,
    /// When the OST received it; at or before the `now` of its enqueue.
    pub arrived: Instant,
    /// Mandatory deadline: the longest time from `arrived` to completion that the client tolerates. Set for
    /// write-out that a lock callback waits for; `None` for everything else.
    pub max_service: Option<Duration>,
}

impl NrsRequest {
    /// The instant by which it must be complete, if it has a mandatory deadline.
    #[must_use]
    pub fn must_finish_by(&self) -> Option<Instant> {
        self.max_service.map(|d| self.arrived + d)
    }
}
