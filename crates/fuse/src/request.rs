//! A request as the file system sees it: who asks, for which node, and what; then it turns into a [`Reply`].
//!
//! The operation borrows the request, and `into_reply` consumes it: names and data cannot be used once the reply (which
//! overwrites them on a ring) is begun. What is needed later is copied out before.
use crate::abi::InHeader;
use crate::crew::Lasting;
use crate::interrupt::Interrupted;
use crate::op::{Op, ParseError, parse};
use crate::reply::Reply;
use crate::slot::Slot;
use std::ops::Range;

/// One request that wants exactly one reply.
pub struct Request<'s> {
    slot: &'s mut Slot,
    header: InHeader,
    arg: Range<usize>,
    data: Range<usize>,
}

impl<'s> Request<'s> {
    /// Takes the request in `slot`; `arg` and `data` are offsets into it.
    pub(crate) fn new(
        slot: &'s mut Slot,
        header: InHeader,
        arg: Range<usize>,
        data: Range<usize>,
    ) -> Result<Self, (ParseError, Reply<'s>)> {
        let request = Request { slot, header, arg, data };
        match request.parse() {
            Ok(_) => Ok(request),
            Err(e) => Err((e, request.into_reply())),
        }
    }

    fn parse(&self) -> Result<Op<'_>, ParseError> {
        let arg = self.slot.bytes(self.arg.start, self.arg.len());
        let data = self.slot.bytes(self.data.start, self.data.len());
        parse(&self.header, arg, data, self.slot.shared.setxattr_ext())
    }

    /// What is asked. Cheap (a copy of the argument structure).
    pub fn op(&self) -> Op<'_> {
        self.parse().expect("parsed once when the request was made, and nobody wrote since")
    }

    /// The request's number, unique in the mount's life.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// The node asked about (for operations with a name: the directory).
    pub fn nodeid(&self) -> u64 {
        self.header.nodeid
    }

    /// The caller's user id.
    pub fn uid(&self) -> u32 {
        self.header.uid
    }

    /// The caller's group id. Supplementary groups: `/proc/PID/status` of [`Request::pid`].
    pub fn gid(&self) -> u32 {
        self.header.gid
    }

    /// The caller's thread id, 0 when the kernel asks on its own account or the caller lives in a foreign pid namespace.
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    /// The raw opcode, see [`crate::abi::opcode`].
    pub fn opcode(&self) -> u32 {
        self.header.opcode
    }

    /// Resolves when the caller gets a signal; the handler should then reply EINTR. At most one per request.
    pub fn interrupted(&self) -> Interrupted {
        Interrupted::new(self.slot.shared.interrupts.clone(), self.header.unique)
    }

    /// Says that the request may wait as long as programs please, until what is returned is dropped. `None`: so many do that the slots
    /// which are left are for the others; it is to be answered without waiting.
    pub fn lasting(&self) -> Option<Lasting> {
        self.slot.group.begin_lasting(&self.slot.shared)
    }

    /// Begins the reply. Everything borrowed from the request must be done with.
    pub fn into_reply(self) -> Reply<'s> {
        Reply::new(self.slot, &self.header)
    }

    /// Shorthand: `into_reply().err(errno)`.
    pub fn err(self, errno: i32) -> crate::Replied {
        self.into_reply().err(errno)
    }
}
