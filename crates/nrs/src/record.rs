//! Record and replay: a log of the calls that a head got and the answers it gave. A fresh head fed the same calls gives
//! the same answers, which a replay checks call by call.
//!
//! The log is little-endian: magic `STRNRS`, version (u16), policy name, configuration as `key=value` lines, then one
//! record per call: tag (u8) and fields. Every record ends with an FNV-1a checksum (u32) of itself, so that a torn or
//! changed log is refused where it stops being true. Strings are u32 length and UTF-8 bytes. The last record is `End`;
//! it says whether the log hit its size limit.
use crate::{Head, IoOp, JobId, NrsConfig, NrsRequest, Share, Taken, bucket::ClassKey, keys, shared::Times};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::record::{Recording, Tape};
use types::{ClientId, Duration, Extent, Fid, Instant, ObjectId, RequestId};

const MAGIC: &[u8; 6] = b"STRNRS";
/// Version of the log format that this code writes and reads.
pub const RECORD_VERSION: u16 = 2;
/// Bytes that are kept free of calls for the end of the log.
const END_BYTES: usize = 16;
/// "No id" in an answer.
const NO_ID: u32 = u32::MAX;

/// One call with its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// [`Head::enqueue`].
    Enqueue {
        /// Time of the call.
        now: Instant,
        /// The request.
        req: NrsRequest,
    },
    /// [`Head::dequeue`].
    Dequeue {
        /// Time of the call.
        now: Instant,
        /// What it answered.
        answer: Option<RequestId>,
    },
    /// [`Head::promote`].
    Promote {
        /// Time of the call.
        now: Instant,
        /// Which request.
        id: RequestId,
        /// By when it should be complete.
        serve_by: Instant,
        /// What it answered.
        answer: bool,
    },
    /// [`Head::cancel`].
    Cancel {
        /// Which request.
        id: RequestId,
        /// What it answered.
        answer: bool,
    },
    /// [`Head::on_complete`].
    Complete {
        /// Time of the call.
        now: Instant,
        /// Which request.
        id: RequestId,
        /// Time in service.
        took: Duration,
    },
    /// [`Head::drain`].
    Drain {
        /// What it answered.
        answer: Vec<RequestId>,
    },
    /// [`Head::switch`].
    Switch {
        /// Time of the call.
        now: Instant,
        /// The new policy.
        name: String,
    },
    /// [`Head::set`].
    Set {
        /// Time of the call.
        now: Instant,
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// [`Head::on_taken`], if anything is shared with the other head.
    Taken {
        /// Time of the call.
        now: Instant,
        /// What another head took.
        taken: Taken,
        /// What it answered.
        answer: Share,
    },
    /// [`Head::on_shares`].
    Shares {
        /// Time of the call.
        now: Instant,
        /// What this head took.
        taken: Taken,
        /// What the others answered.
        others: Share,
    },
    /// The log ends here.
    End {
        /// Whether calls were left out because the log was full.
        truncated: bool,
    },
}

/// Why a log cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// Not a log, or of a version that this code does not read.
    Format(String),
    /// The log stops being true at this byte.
    Damaged {
        /// Offset of the first record that cannot be read.
        at: usize,
    },
    /// The policy or a value in the log is not known here.
    Config(String),
    /// A fresh head gave another answer.
    Differs {
        /// Number of the call, from 0.
        call: u64,
        /// The call as recorded.
        recorded: String,
        /// The answer now.
        answered: String,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Format(why) => write!(f, "not a scheduler log of version {RECORD_VERSION}: {why}"),
            ReplayError::Damaged { at } => write!(f, "the log is damaged at byte {at}"),
            ReplayError::Config(why) => f.write_str(why),
            ReplayError::Differs { call, recorded, answered } => {
                write!(f, "call {call} was recorded as {recorded}, a fresh policy answers {answered}")
            }
        }
    }
}
impl core::error::Error for ReplayError {}

/// Starts a log of a head with this policy and configuration.
pub(crate) fn start(tape: &mut Tape, policy: &str, config: &NrsConfig, bytes_max: usize) {
    let mut head = MAGIC.to_vec();
    head.extend(RECORD_VERSION.to_le_bytes());
    let mut lines = String::new();
    for key in keys() {
        let value = config.get(key.name).expect("the key is in the table");
        lines.push_str(&format!("{}={value}\n", key.name));
    }
    put_text(&mut head, policy);
    put_text(&mut head, &lines);
    tape.start(head, bytes_max.saturating_sub(END_BYTES));
}

/// A log with its end.
pub(crate) fn finish(recording: Recording) -> Vec<u8> {
    let end = Call::End { truncated: recording.left_out() > 0 };
    let mut bytes = recording.into_bytes();
    put_record(&mut bytes, &end);
    bytes
}

/// Appends a call and its checksum.
pub(crate) fn put_record(out: &mut Vec<u8>, call: &Call) {
    let before = out.len();
    put_call(out, call);
    let sum = checksum(&out[before..]);
    out.extend(sum.to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u32::try_from(text.len()).expect("texts in a log are short");
    out.extend(len.to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_call(out: &mut Vec<u8>, call: &Call) {
    match call {
        Call::Enqueue { now, req } => {
            out.push(1);
            out.extend(now.0.to_le_bytes());
            put_request(out, req);
        }
        Call::Dequeue { now, answer } => {
            out.push(2);
            out.extend(now.0.to_le_bytes());
            out.extend(answer.map_or(NO_ID, |id| id.0).to_le_bytes());
        }
        Call::Promote { now, id, serve_by, answer } => {
            out.push(3);
            out.extend(now.0.to_le_bytes());
            out.extend(id.0.to_le_bytes());
            out.extend(serve_by.0.to_le_bytes());
            out.push(u8::from(*answer));
        }
        Call::Cancel { id, answer } => {
            out.push(4);
            out.extend(id.0.to_le_bytes());
            out.push(u8::from(*answer));
        }
        Call::Complete { now, id, took } => {
            out.push(5);
            out.extend(now.0.to_le_bytes());
            out.extend(id.0.to_le_bytes());
            out.extend(nanos(*took).to_le_bytes());
        }
        Call::Drain { answer } => {
            out.push(6);
            let len = u32::try_from(answer.len()).expect("ids are below the limit");
            out.extend(len.to_le_bytes());
            out.extend(answer.iter().flat_map(|id| id.0.to_le_bytes()));
        }
        Call::Switch { now, name } => {
            out.push(7);
            out.extend(now.0.to_le_bytes());
            put_text(out, name);
        }
        Call::Set { now, key, value } => {
            out.push(8);
            out.extend(now.0.to_le_bytes());
            put_text(out, key);
            put_text(out, value);
        }
        Call::End { truncated } => {
            out.push(9);
            out.push(u8::from(*truncated));
        }
        Call::Taken { now, taken, answer } => {
            out.push(10);
            out.extend(now.0.to_le_bytes());
            put_taken(out, taken);
            put_share(out, answer);
        }
        Call::Shares { now, taken, others } => {
            out.push(11);
            out.extend(now.0.to_le_bytes());
            put_taken(out, taken);
            put_share(out, others);
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn put_request(out: &mut Vec<u8>, req: &NrsRequest) {
    out.extend(req.id.0.to_le_bytes());
    out.extend(req.bytes.to_le_bytes());
    out.extend(req.client.0.to_le_bytes());
    out.extend(req.object.0.to_key());
    out.extend(req.extent.start.to_le_bytes());
    out.extend(req.extent.end.to_le_bytes());
    out.extend(req.uid.to_le_bytes());
    out.push(req.op as u8);
    out.extend(req.job.0.to_le_bytes());
    out.extend(req.arrived.0.to_le_bytes());
    out.extend(req.max_service.map_or(u64::MAX, nanos).to_le_bytes());
}

fn put_taken(out: &mut Vec<u8>, taken: &Taken) {
    let Taken { rules, key, bytes, out_of_turn, times } = taken;
    out.extend(rules.to_le_bytes());
    out.extend(key.client.to_le_bytes());
    out.extend(key.job.to_le_bytes());
    out.extend(key.uid.to_le_bytes());
    out.extend(key.rule.to_le_bytes());
    out.push(key.op);
    out.extend(bytes.to_le_bytes());
    out.push(u8::from(*out_of_turn));
    put_times(out, *times);
}

fn put_share(out: &mut Vec<u8>, share: &Share) {
    out.extend(share.waiting.to_le_bytes());
    out.push(u8::from(share.out));
    put_times(out, share.times);
}

fn put_times(out: &mut Vec<u8>, times: Times) {
    out.extend(times.requests_ns.to_le_bytes());
    out.extend(times.bytes_ns.to_le_bytes());
}

/// Reads a log; never panics and never allocates more than the log is long.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(len)?;
        let slice = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(slice)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|a| a[0])
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn flag(&mut self) -> Option<bool> {
        self.u8().filter(|b| *b < 2).map(|b| b == 1)
    }
    fn instant(&mut self) -> Option<Instant> {
        self.u64().map(Instant)
    }
    fn id(&mut self) -> Option<RequestId> {
        self.u32().filter(|id| *id < crate::REQUEST_ID_LIMIT).map(RequestId)
    }
    fn text(&mut self) -> Option<String> {
        let len = self.u32()? as usize;
        core::str::from_utf8(self.take(len)?).ok().map(ToString::to_string)
    }
    fn request(&mut self) -> Option<NrsRequest> {
        let (id, bytes, client) = (self.id()?, self.u32()?, ClientId(self.u64()?));
        let object = ObjectId(Fid::from_key(&self.array()?));
        let extent = Extent::checked(self.u64()?, self.u64()?)?;
        let (uid, op) = (self.u32()?, IoOp::from_code(self.u8()?)?);
        let (job, arrived) = (JobId(self.u64()?), self.instant()?);
        let max_service = Some(self.u64()?).filter(|ns| *ns != u64::MAX).map(Duration::from_nanos);
        Some(NrsRequest { id, bytes, client, object, extent, uid, op, job, arrived, max_service })
    }
    fn taken(&mut self) -> Option<Taken> {
        let (rules, client, job, uid) = (self.u64()?, self.u64()?, self.u64()?, self.u32()?);
        let (rule, op) = (u16::from_le_bytes(self.array()?), self.u8()?);
        let key = ClassKey { client, job, uid, rule, op };
        Some(Taken { rules, key, bytes: self.u32()?, out_of_turn: self.flag()?, times: self.times()? })
    }
    fn share(&mut self) -> Option<Share> {
        Some(Share { waiting: self.u32()?, out: self.flag()?, times: self.times()? })
    }
    fn times(&mut self) -> Option<Times> {
        Some(Times { requests_ns: self.u64()?, bytes_ns: self.u64()? })
    }
    fn call(&mut self) -> Option<Call> {
        let from = self.at;
        let call = self.call_body()?;
        let sum = checksum(&self.bytes[from..self.at]);
        (self.u32()? == sum).then_some(call)
    }
    fn call_body(&mut self) -> Option<Call> {
        Some(match self.u8()? {
            1 => Call::Enqueue { now: self.instant()?, req: self.request()? },
            2 => {
                let now = self.instant()?;
                Call::Dequeue { now, answer: Some(self.u32()?).filter(|id| *id != NO_ID).map(RequestId) }
            }
            3 => {
                Call::Promote { now: self.instant()?, id: self.id()?, serve_by: self.instant()?, answer: self.flag()? }
            }
            4 => Call::Cancel { id: self.id()?, answer: self.flag()? },
            5 => Call::Complete { now: self.instant()?, id: self.id()?, took: Duration::from_nanos(self.u64()?) },
            6 => {
                let len = self.u32()? as usize;
                let ids = self.take(len.checked_mul(4)?)?;
                let word = |c: &[u8]| RequestId(u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
                Call::Drain { answer: ids.chunks_exact(4).map(word).collect() }
            }
            7 => Call::Switch { now: self.instant()?, name: self.text()? },
            8 => Call::Set { now: self.instant()?, key: self.text()?, value: self.text()? },
            9 => Call::End { truncated: self.flag()? },
            10 => Call::Taken { now: self.instant()?, taken: self.taken()?, answer: self.share()? },
            11 => Call::Shares { now: self.instant()?, taken: self.taken()?, others: self.share()? },
            _ => return None,
        })
    }
}

/// What a replay went through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// Calls that were repeated, each with the recorded answer.
    pub calls: u64,
    /// Whether the recording had hit its size limit.
    pub truncated: bool,
}

/// Feeds a log to a fresh head and compares every answer.
///
/// # Errors
/// [`ReplayError`], for the first thing that is wrong. Nothing in a log can make it panic.
pub fn replay(log: &[u8]) -> Result<Replayed, ReplayError> {
    let format = |why: &str| ReplayError::Format(why.to_string());
    let mut reader = Reader { bytes: log, at: 0 };
    if reader.take(MAGIC.len()) != Some(MAGIC) {
        return Err(format("it does not start with STRNRS"));
    }
    match reader.array().map(u16::from_le_bytes) {
        Some(RECORD_VERSION) => {}
        version => return Err(format(&format!("its version is {version:?}"))),
    }
    let (Some(policy), Some(lines)) = (reader.text(), reader.text()) else {
        return Err(format("its header is cut off"));
    };
    let mut config = NrsConfig::default();
    for (key, value) in lines.lines().filter_map(|line| line.split_once('=')) {
        if key != "tbf_rule" {
            config.set(key, value).map_err(|e| ReplayError::Config(e.to_string()))?;
        }
    }
    let head = Head::new(&policy, config).map_err(|e| ReplayError::Config(e.to_string()))?;
    Replay { head, now: Instant::ZERO, known: HashMap::default(), recorded: Vec::new(), free: Vec::new() }
        .run(&mut reader)
}

/// A recorded id that is queued or in service.
#[derive(Clone, Copy)]
struct Known {
    /// Its id in the replay: dense, so that a log with huge ids costs no memory. No policy's order depends on ids.
    id: RequestId,
    /// The request, while it is queued.
    queued: Option<NrsRequest>,
}

struct Replay {
    head: Head,
    now: Instant,
    known: HashMap<RequestId, Known, FxBuildHasher>,
    /// Recorded id by the replay's id.
    recorded: Vec<RequestId>,
    free: Vec<RequestId>,
}

impl Replay {
    fn run(mut self, reader: &mut Reader<'_>) -> Result<Replayed, ReplayError> {
        let mut calls = 0;
        loop {
            let at = reader.at;
            let damaged = ReplayError::Damaged { at };
            let call = reader.call().ok_or(damaged.clone())?;
            if let Call::End { truncated } = call {
                return Ok(Replayed { calls, truncated });
            }
            // A call that no caller may make comes from a damaged log, not from a policy.
            let answered = self.step(&call).ok_or(damaged)?;
            if answered != call {
                let (recorded, answered) = (format!("{call:?}"), format!("{answered:?}"));
                return Err(ReplayError::Differs { call: calls, recorded, answered });
            }
            calls += 1;
        }
    }

    /// The call with the answer of today; `None` when it breaks the contract.
    fn step(&mut self, call: &Call) -> Option<Call> {
        if let Call::Enqueue { now, .. }
        | Call::Dequeue { now, .. }
        | Call::Promote { now, .. }
        | Call::Complete { now, .. }
        | Call::Switch { now, .. }
        | Call::Set { now, .. }
        | Call::Taken { now, .. }
        | Call::Shares { now, .. } = call
        {
            if *now < self.now {
                return None;
            }
            self.now = *now;
        }
        let mut again = call.clone();
        match &mut again {
            Call::Enqueue { now, req } => self.enqueue(*now, req)?,
            Call::Dequeue { now, answer } => *answer = self.dequeue(*now),
            Call::Promote { now, id, serve_by, answer } => {
                let id = self.known.get(id).map(|known| known.id);
                *answer = id.is_some_and(|id| self.head.promote(*now, id, *serve_by));
            }
            Call::Cancel { id, answer } => {
                let known = self.known.get(id).map(|known| known.id);
                *answer = known.is_some_and(|id| self.head.cancel(id));
                if *answer {
                    self.forget(*id);
                }
            }
            Call::Complete { now, id, took } => {
                // Ids from before the recording are unknown to the policy too.
                let unknown = RequestId(crate::REQUEST_ID_LIMIT - 1);
                self.head.on_complete(*now, self.known.get(id).map_or(unknown, |known| known.id), *took);
                if self.known.get(id).is_some_and(|known| known.queued.is_none()) {
                    self.forget(*id);
                }
            }
            Call::Drain { answer } => *answer = self.drain(),
            Call::Switch { now, name } => {
                let (known, recorded) = (&self.known, &self.recorded);
                let mut request = |id: RequestId| {
                    let queued = known[&recorded[id.0 as usize]].queued;
                    NrsRequest { id, ..queued.expect("the head holds only what the log enqueued") }
                };
                self.head.switch(*now, name, &mut request).ok()?;
            }
            Call::Set { now, key, value } => self.head.set(*now, key, value).ok()?,
            Call::Taken { now, taken, answer } => *answer = self.head.on_taken(*now, taken)?,
            Call::Shares { now, taken, others } => self.head.on_shares(*now, taken, others),
            Call::End { .. } => {}
        }
        Some(again)
    }

    fn enqueue(&mut self, now: Instant, req: &NrsRequest) -> Option<()> {
        if let Some(known) = self.known.get(&req.id) {
            if known.queued.is_some() {
                return None;
            }
            self.forget(req.id);
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.recorded.push(req.id);
            RequestId(u32::try_from(self.recorded.len() - 1).expect("a log has fewer requests than ids exist"))
        });
        self.head.enqueue(now, &NrsRequest { id, ..*req }).ok()?;
        self.recorded[id.0 as usize] = req.id;
        self.known.insert(req.id, Known { id, queued: Some(*req) });
        Some(())
    }

    fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        let recorded = self.recorded[self.head.dequeue(now)?.0 as usize];
        self.known.get_mut(&recorded).expect("the head holds only what the log enqueued").queued = None;
        Some(recorded)
    }

    fn drain(&mut self) -> Vec<RequestId> {
        let ids: Vec<RequestId> = self.head.drain().iter().map(|id| self.recorded[id.0 as usize]).collect();
        ids.iter().for_each(|id| self.forget(*id));
        ids
    }

    fn forget(&mut self, recorded: RequestId) {
        self.free.extend(self.known.remove(&recorded).map(|known| known.id));
    }
}
