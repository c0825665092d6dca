//! One request that a target is through with: a record of fixed size, 136 bytes in memory and in a file.
use nrs::{IoOp, JobId, NrsRequest};
use std::fmt;
use types::{ClientId, Duration, Extent, Fid, Instant, ObjectId, RequestId, Xid};
use wire::Op;

/// Bytes of a record in a file.
pub const RECORD_BYTES: usize = 136;
/// Bytes of a record in a file of version 1.
pub const RECORD_BYTES_1: usize = 96;

/// What was special about a request, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// It had a mandatory deadline when it arrived, or got one.
    pub const URGENT: Flags = Flags(1);
    /// It got its deadline while it was queued: a lock callback waited for it.
    pub const PROMOTED: Flags = Flags(2);
    /// It was taken out before it was dispatched: its client was evicted.
    pub const CANCELLED: Flags = Flags(4);
    /// It was answered before the queue: the cache held all of it.
    pub const PAST_QUEUE: Flags = Flags(8);
    /// The server's own: a prefetch, a scrub.
    pub const BACKGROUND: Flags = Flags(16);
    /// It never came to a scheduler: a request to a metadata target, a lock that was waited for, an fsync; all that a client
    /// tells of its own requests.
    pub const UNSCHEDULED: Flags = Flags(32);
    /// Bits that mean something.
    pub const ALL: Flags = Flags(63);
    /// Names, by bit from the lowest.
    pub const NAMES: [&'static str; 6] = ["urgent", "promoted", "cancelled", "past_queue", "background", "unscheduled"];

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
    /// These and those.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Flags::NAMES.iter().enumerate().filter(|(bit, _)| self.0 & 1 << bit != 0);
        f.write_str(&set.map(|(_, name)| *name).collect::<Vec<_>>().join("+"))
    }
}

/// The name of an operation as traces have it: `OstRead` is `ost_read`.
#[must_use]
pub fn op_name(op: Op) -> String {
    let mut out = String::new();
    for (i, c) in op.name().char_indices() {
        if c.is_ascii_uppercase() && i > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Inverse of [`op_name`].
#[must_use]
pub fn op_named(name: &str) -> Option<Op> {
    Op::ALL.iter().copied().find(|op| op_name(*op) == name)
}

/// The operation of a request that a scheduler had.
#[must_use]
pub const fn op_of(io: IoOp) -> Op {
    match io {
        IoOp::Read => Op::OstRead,
        IoOp::Write => Op::OstWrite,
        IoOp::Punch => Op::OstPunch,
        IoOp::Sync => Op::OstSync,
    }
}

/// How a request came to where it was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Came {
    /// Its number at its client.
    pub xid: Xid,
    /// When the target had all of it.
    pub at: Instant,
    /// How long it waited for locks since.
    pub locked: Duration,
    /// Whose lock that was; [`ClientId`] 0: nobody's that is known, or the server's own.
    pub holder: ClientId,
}

/// What a request did at its target. Times are of the target's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// How many requests had arrived at the scheduler before it; of one that never came there: how many records the target
    /// had kept before.
    pub number: u64,
    /// When it joined the queue; of one that never came to a scheduler: when the target had all of it. At a client: when it
    /// was to be sent.
    pub arrived: Instant,
    /// When it was handed to the store. At a client: when it was sent.
    pub dispatched: Instant,
    /// When the store was through with it. At a client: when the answer was there.
    pub finished: Instant,
    /// Who sent it.
    pub client: ClientId,
    /// Its number at its client, counted for each target; 0: not known.
    pub xid: Xid,
    /// The client whose lock it waited for; 0: none, or nobody's that is known.
    pub holder: ClientId,
    /// Between the moment when the target had all of it and `arrived`, microseconds.
    pub before_us: u32,
    /// How long it waited for locks, microseconds: within `before_us`, or where there is no scheduler between `arrived` and
    /// `finished`.
    pub locked_us: u32,
    /// Between `finished` and its answer, microseconds.
    pub after_us: u32,
    /// How long it waited until something was on stable storage, microseconds: within `after_us`, or where there is no
    /// scheduler between `arrived` and `finished`.
    pub committed_us: u32,
    /// The object it touched; at a metadata target the inode.
    pub object: ObjectId,
    /// First byte of the object that it touched.
    pub offset: u64,
    /// Job it was charged to; 0: none.
    pub job: JobId,
    /// Bytes of the object from the first to the last that it touched, gaps included; at most `u32::MAX` is kept.
    pub span: u32,
    /// Bytes that were to be moved.
    pub bytes: u32,
    /// Bytes that the store was asked for, in whole blocks; the others were cached.
    pub stored: u32,
    /// User it was charged to.
    pub uid: u32,
    /// Its mandatory deadline after its arrival, microseconds; 0: none.
    pub max_service_us: u32,
    /// How long after its arrival it got that deadline, microseconds; 0: it came with it.
    pub promoted_us: u32,
    /// What it did.
    pub op: Op,
    /// What was special about it.
    pub flags: Flags,
    /// What it failed with; 0: it did not.
    pub errno: u16,
}

impl Default for Record {
    fn default() -> Record {
        Record::of(0, &NrsRequest::default(), Instant::ZERO, Instant::ZERO)
    }
}

/// Bytes that are no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordError {
    /// Byte within the record.
    pub at: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl Record {
    /// The record of a request that arrived as `request` says, as number `number`, and went through the store.
    #[inline]
    #[must_use]
    pub fn of(number: u64, request: &NrsRequest, dispatched: Instant, finished: Instant) -> Record {
        let urgent = if request.max_service.is_some() { Flags::URGENT } else { Flags::default() };
        Record {
            number,
            arrived: request.arrived,
            dispatched,
            finished,
            client: request.client,
            xid: Xid(0),
            holder: ClientId(0),
            before_us: 0,
            locked_us: 0,
            after_us: 0,
            committed_us: 0,
            object: request.object,
            offset: request.extent.start,
            job: request.job,
            span: u32::try_from(request.extent.len()).unwrap_or(u32::MAX),
            bytes: request.bytes,
            stored: 0,
            uid: request.uid,
            max_service_us: request.max_service.map_or(0, micros),
            promoted_us: 0,
            op: op_of(request.op),
            flags: urgent,
            errno: 0,
        }
    }

    /// The record of a request that no scheduler had, which took from `came.at` until `finished`; its client and what it
    /// touched are to be filled in. `locked` of `came` lies between.
    #[must_use]
    pub fn unscheduled(op: Op, came: &Came, finished: Instant) -> Record {
        let (arrived, flags) = (came.at, Flags::UNSCHEDULED);
        let blank = Record { op, arrived, dispatched: arrived, finished, flags, ..Record::default() };
        Record { xid: came.xid, locked_us: micros(came.locked), holder: came.holder, ..blank }
    }

    /// The same request, which came as `came` says.
    #[inline]
    #[must_use]
    pub fn which_came(self, came: &Came) -> Record {
        let before_us = if came.xid.0 == 0 { 0 } else { micros(self.arrived.since(came.at)) };
        Record { xid: came.xid, before_us, locked_us: micros(came.locked), holder: came.holder, ..self }
    }

    /// The same request, answered at `answered` when a commit was done that it had waited for since `finished`.
    #[must_use]
    pub fn committed(self, answered: Instant) -> Record {
        let after = micros(answered.since(self.finished));
        Record { after_us: after, committed_us: after, ..self }
    }

    /// The same request, promoted at `at` to be complete by `serve_by`.
    #[must_use]
    pub fn promoted(self, at: Instant, serve_by: Instant) -> Record {
        Record {
            max_service_us: micros(serve_by.since(self.arrived)).max(1),
            promoted_us: micros(at.since(self.arrived)).max(1),
            flags: self.flags.with(Flags::URGENT).with(Flags::PROMOTED),
            ..self
        }
    }

    /// The request as the scheduler got it; its id is the scheduler's to give.
    #[must_use]
    pub fn request(&self) -> NrsRequest {
        let had = self.max_service_us > 0 && !self.flags.has(Flags::PROMOTED);
        NrsRequest {
            id: RequestId::default(),
            bytes: self.bytes,
            client: self.client,
            object: self.object,
            extent: Extent::at(self.offset, u64::from(self.span)),
            uid: self.uid,
            op: self.io().unwrap_or_default(),
            job: self.job,
            arrived: self.arrived,
            max_service: had.then(|| Duration::from_micros(self.max_service_us.into())),
        }
    }

    /// What a scheduler had it for; `None`: it never came to one.
    #[must_use]
    pub fn io(&self) -> Option<IoOp> {
        IoOp::ALL.into_iter().find(|io| op_of(*io) == self.op && !self.flags.has(Flags::UNSCHEDULED))
    }
    /// Whether only writers' queues may hold it.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.io().is_some_and(IoOp::is_write)
    }
    /// From the moment when the target had all of it until its answer.
    #[must_use]
    pub fn at_target(&self) -> Duration {
        self.response() + Duration::from_micros(u64::from(self.before_us) + u64::from(self.after_us))
    }
    /// One past the last byte that it touched.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.span))
    }
    /// Time in the queue.
    #[must_use]
    pub fn queued(&self) -> Duration {
        self.dispatched.since(self.arrived)
    }
    /// Time with the store.
    #[must_use]
    pub fn service(&self) -> Duration {
        self.finished.since(self.dispatched)
    }
    /// Time in queue and store.
    #[must_use]
    pub fn response(&self) -> Duration {
        self.finished.since(self.arrived)
    }
    /// Whether it came to its end, well or not.
    #[must_use]
    pub fn is_served(&self) -> bool {
        !self.flags.has(Flags::CANCELLED)
    }

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        for word in [
            self.number,
            self.arrived.0,
            self.dispatched.0,
            self.finished.0,
            self.client.0,
            self.object.0.seq,
            self.offset,
            self.job.0,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for half in
            [self.object.0.oid, self.span, self.bytes, self.stored, self.uid, self.max_service_us, self.promoted_us]
        {
            out.extend_from_slice(&half.to_le_bytes());
        }
        out.extend_from_slice(&[0, self.flags.0]);
        out.extend_from_slice(&self.errno.to_le_bytes());
        out.extend_from_slice(&self.xid.0.to_le_bytes());
        out.extend_from_slice(&self.holder.0.to_le_bytes());
        for half in [self.before_us, self.locked_us, self.after_us, self.committed_us] {
            out.extend_from_slice(&half.to_le_bytes());
        }
        out.extend_from_slice(&(self.op as u16).to_le_bytes());
        out.extend_from_slice(&[0; 6]);
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn get(bytes: &[u8; RECORD_BYTES]) -> Result<Record, RecordError> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |i: usize| u32::from_le_bytes(bytes[112 + 4 * i..116 + 4 * i].try_into().expect("four bytes"));
        let wrong = |at: usize, what: &'static str| RecordError { at, what };
        if bytes[92] != 0 || bytes[130..] != [0; 6] {
            let at = if bytes[92] != 0 { 92 } else { 130 };
            return Err(wrong(at, "a byte that is to be 0 is not"));
        }
        let op = Op::from_u16(u16::from_le_bytes([bytes[128], bytes[129]]));
        let op = op.ok_or(wrong(128, "no operation has this code"))?;
        let base = Record::common(bytes.first_chunk().expect("a record begins as one of version 1"))?;
        let record = Record {
            op,
            xid: Xid(word(96)),
            holder: ClientId(word(104)),
            before_us: half(0),
            locked_us: half(1),
            after_us: half(2),
            committed_us: half(3),
            ..base
        };
        if record.io().is_none() && !record.flags.has(Flags::UNSCHEDULED) {
            return Err(wrong(128, "no scheduler has such operations"));
        }
        Ok(record)
    }

    /// Reads a record of version 1.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn get_1(bytes: &[u8; RECORD_BYTES_1]) -> Result<Record, RecordError> {
        let op = IoOp::from_code(bytes[92]).ok_or(RecordError { at: 92, what: "no operation has this code" })?;
        if bytes[93] & Flags::UNSCHEDULED.0 != 0 {
            return Err(RecordError { at: 93, what: "a flag that has no meaning" });
        }
        Ok(Record { op: op_of(op), ..Record::common(bytes)? })
    }

    /// What versions have in common: all but the operation.
    fn common(bytes: &[u8; RECORD_BYTES_1]) -> Result<Record, RecordError> {
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        let half = |i: usize| u32::from_le_bytes(bytes[64 + 4 * i..68 + 4 * i].try_into().expect("four bytes"));
        let wrong = |at: usize, what: &'static str| RecordError { at, what };
        let record = Record {
            number: word(0),
            arrived: Instant(word(1)),
            dispatched: Instant(word(2)),
            finished: Instant(word(3)),
            client: ClientId(word(4)),
            object: ObjectId(Fid::new(word(5), half(0))),
            offset: word(6),
            job: JobId(word(7)),
            span: half(1),
            bytes: half(2),
            stored: half(3),
            uid: half(4),
            max_service_us: half(5),
            promoted_us: half(6),
            flags: Flags(bytes[93]),
            errno: u16::from_le_bytes([bytes[94], bytes[95]]),
            ..Record::default()
        };
        if record.flags.0 & !Flags::ALL.0 != 0 {
            return Err(wrong(93, "a flag that has no meaning"));
        }
        if record.arrived > record.dispatched {
            return Err(wrong(16, "it was dispatched before it arrived"));
        }
        if record.dispatched > record.finished {
            return Err(wrong(24, "it was finished before it was dispatched"));
        }
        if record.offset.checked_add(u64::from(record.span)).is_none() {
            return Err(wrong(48, "its end lies beyond 2^64"));
        }
        Ok(record)
    }
}

/// A time as records have it: microseconds, at most `u32::MAX`.
#[must_use]
pub fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_as_much_memory_as_it_says() {
        let mut bytes = Vec::new();
        Record::default().put(&mut bytes);
        assert_eq!((size_of::<Record>(), bytes.len()), (136, RECORD_BYTES));
    }

    #[test]
    fn a_request_comes_back_as_it_was_and_a_promotion_is_told_apart() {
        let request = NrsRequest {
            bytes: 4096,
            client: ClientId(7),
            object: ObjectId(Fid::new(0x2_4000_0401, 9)),
            extent: Extent::at(8192, 12288),
            uid: 3,
            op: IoOp::Write,
            job: JobId(77),
            arrived: Instant(1000),
            max_service: Some(Duration::from_secs(5)),
            ..NrsRequest::default()
        };
        let r = Record::of(4, &request, Instant(1500), Instant(9000));
        assert_eq!((r.request(), r.end(), r.queued().as_nanos(), r.service().as_nanos()), (request, 20480, 500, 7500));
        let plain = Record::of(4, &NrsRequest { max_service: None, ..request }, Instant(1500), Instant(9000));
        let promoted = plain.promoted(Instant(1200), Instant(5_001_000));
        assert_eq!((promoted.max_service_us, promoted.promoted_us), (5000, 1));
        assert_eq!(promoted.flags.to_string(), "urgent+promoted");
        assert_eq!(promoted.request().max_service, None);
    }

    #[test]
    fn operations_are_named_as_schedulers_name_them_and_the_names_are_read_again() {
        assert!(IoOp::ALL.iter().all(|io| op_name(op_of(*io)) == io.name()));
        assert!(Op::ALL.iter().all(|op| op_named(&op_name(*op)) == Some(*op)));
        assert_eq!(op_name(Op::MdtOpen), "mdt_open");
    }

    #[test]
    fn what_a_request_waited_for_before_and_behind_its_turn_is_kept() {
        let at = |us: u64| Instant(us * 1000);
        let came = Came { xid: Xid(3), at: at(10), locked: Duration::from_micros(70), holder: ClientId(9) };
        let request = NrsRequest { arrived: at(100), ..NrsRequest::default() };
        let r = Record::of(0, &request, at(150), at(200)).which_came(&came).committed(at(260));
        assert_eq!((r.before_us, r.locked_us, r.after_us, r.committed_us, r.holder.0), (90, 70, 60, 60, 9));
        assert_eq!(r.at_target(), Duration::from_micros(250));
        let lock = Record::unscheduled(Op::LockEnqueue, &came, at(90));
        assert_eq!((lock.io(), lock.at_target(), lock.locked_us), (None, Duration::from_micros(80), 70));
        let mut bytes = Vec::new();
        for r in [r, lock] {
            bytes.clear();
            r.put(&mut bytes);
            assert_eq!(Record::get(bytes[..].try_into().unwrap()), Ok(r));
        }
    }

    #[test]
    fn bytes_that_are_no_record_are_refused_at_their_place() {
        let good = Record { arrived: Instant(5), dispatched: Instant(6), finished: Instant(7), ..Record::default() };
        let mut bytes = Vec::new();
        good.put(&mut bytes);
        let with = |at: usize, value: u8| {
            let mut b: [u8; RECORD_BYTES] = bytes[..].try_into().unwrap();
            b[at] = value;
            Record::get(&b).map_err(|e| e.at)
        };
        assert_eq!(with(0, 0), Ok(good));
        let wrong =
            [(92, 9, 92), (93, 0x80, 93), (8, 7, 16), (24, 1, 24), (128, 200, 128), (128, 18, 128), (135, 1, 130)];
        assert!(wrong.iter().all(|(at, value, place)| with(*at, *value) == Err(*place)));
    }
}
