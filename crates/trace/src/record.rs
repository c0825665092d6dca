//! One request that left a target's scheduler: a record of fixed size, 104 bytes in memory and 96 in a file.
use nrs::{IoOp, JobId, NrsRequest};
use std::fmt;
use types::{ClientId, Duration, Extent, Fid, Instant, ObjectId, RequestId};

/// Bytes of a record in a file.
pub const RECORD_BYTES: usize = 96;

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
    /// Bits that mean something.
    pub const ALL: Flags = Flags(31);
    /// Names, by bit from the lowest.
    pub const NAMES: [&'static str; 5] = ["urgent", "promoted", "cancelled", "past_queue", "background"];

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

/// What a request did at its target. Times are of the target's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// How many requests had arrived at the scheduler before it.
    pub number: u64,
    /// When it joined the queue.
    pub arrived: Instant,
    /// When it was handed to the store.
    pub dispatched: Instant,
    /// When the store was through with it.
    pub finished: Instant,
    /// Who sent it.
    pub client: ClientId,
    /// The object it touched.
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
    pub op: IoOp,
    /// What was special about it.
    pub flags: Flags,
    /// What it failed with; 0: it did not.
    pub errno: u16,
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
            object: request.object,
            offset: request.extent.start,
            job: request.job,
            span: u32::try_from(request.extent.len()).unwrap_or(u32::MAX),
            bytes: request.bytes,
            stored: 0,
            uid: request.uid,
            max_service_us: request.max_service.map_or(0, micros),
            promoted_us: 0,
            op: request.op,
            flags: urgent,
            errno: 0,
        }
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
            op: self.op,
            job: self.job,
            arrived: self.arrived,
            max_service: had.then(|| Duration::from_micros(self.max_service_us.into())),
        }
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
        out.extend_from_slice(&[self.op as u8, self.flags.0]);
        out.extend_from_slice(&self.errno.to_le_bytes());
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn get(bytes: &[u8; RECORD_BYTES]) -> Result<Record, RecordError> {
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
            op: IoOp::from_code(bytes[92]).ok_or(wrong(92, "no operation has this code"))?,
            flags: Flags(bytes[93]),
            errno: u16::from_le_bytes([bytes[94], bytes[95]]),
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

fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_as_much_memory_as_it_says() {
        let mut bytes = Vec::new();
        Record::default().put(&mut bytes);
        assert_eq!((size_of::<Record>(), bytes.len()), (104, RECORD_BYTES));
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
        let wrong = [(92, 9, 92), (93, 0x80, 93), (8, 7, 16), (24, 1, 24)];
        assert!(wrong.iter().all(|(at, value, place)| with(*at, *value) == Err(*place)));
    }
}
