//! What every policy must do, whatever its order: a model and random operations, generic over any policy.
//!
//! [`check`] is for a policy's own tests, inside this room or outside of it. It runs random schedules against a model,
//! a policy of the same kind beside it for determinism, and endless adjacent streams against one waiting request.
//! [`run`] takes a given list of operations, for property tests that shrink.
use crate::{IoOp, JobId, NrsConfig, NrsPolicy, NrsRequest};
use alloc::{boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};
use core::fmt;
use types::{ClientId, Duration, Extent, Instant, KIB, ObjectId, OstIndex, RequestId, Rng};

/// One call, with its arguments as small numbers that the model turns into legal ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A new request arrives.
    Enqueue {
        /// Client, 0..16; also the user.
        client: u8,
        /// Object, 0..16.
        object: u8,
        /// Offset in units of 64 KiB.
        unit: u16,
        /// log2 of the length in units of 4 KiB, 0..=10.
        order: u8,
        /// Operation code.
        op: u8,
        /// Milliseconds to its mandatory deadline; 0 = none.
        urgent_ms: u16,
    },
    /// The pipeline asks for the next request.
    Dequeue,
    /// The n-th queued request (modulo their number) becomes urgent.
    Promote {
        /// Which.
        nth: u16,
        /// Milliseconds to its new deadline.
        within_ms: u16,
    },
    /// The n-th queued request (modulo their number) is overdue.
    Hasten {
        /// Which.
        nth: u16,
    },
    /// The n-th queued request (modulo their number) is cancelled.
    Cancel {
        /// Which.
        nth: u16,
    },
    /// The oldest request in service completes.
    Complete,
    /// Everything is taken out.
    Drain,
    /// Time passes.
    Pass {
        /// Microseconds.
        us: u16,
    },
    /// The configuration changes under load.
    Reconfigure {
        /// Which of a few.
        variant: u8,
    },
}

/// The rule that a policy broke.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Seed of the schedule; 0 for a given list.
    pub seed: u64,
    /// Number of the operation, from 0.
    pub step: usize,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, operation {}: {}", self.seed, self.step, self.what)
    }
}
impl core::error::Error for Violation {}

/// Operations of one random schedule. Phases of growth and shrinkage alternate, so that queues get long and empty.
#[must_use]
pub fn random_ops(rng: &mut Rng, len: usize) -> Vec<Op> {
    let mut ops = Vec::with_capacity(len);
    let (objects, units, phase) = (1 + rng.below(16), 1 + rng.below(200), 20 + rng.below(200));
    for step in 0..len as u64 {
        let growing = step / phase % 2 == 0;
        ops.push(match rng.below(100) {
            0..=1 => Op::Promote { nth: rng.below(1 << 16) as u16, within_ms: rng.below(100) as u16 },
            98..=99 => Op::Hasten { nth: rng.below(1 << 16) as u16 },
            2..=4 => Op::Cancel { nth: rng.below(1 << 16) as u16 },
            5 if rng.chance(0.1) => Op::Drain,
            6 if rng.chance(0.2) => Op::Reconfigure { variant: rng.below(8) as u8 },
            5..=12 => Op::Pass { us: rng.below(3000) as u16 },
            13..=25 => Op::Complete,
            26..=70 if growing => random_request(rng, objects, units),
            26..=40 => random_request(rng, objects, units),
            _ => Op::Dequeue,
        });
    }
    ops
}

fn random_request(rng: &mut Rng, objects: u64, units: u64) -> Op {
    Op::Enqueue {
        client: rng.below(16) as u8,
        object: rng.below(objects) as u8,
        unit: rng.below(units) as u16,
        order: rng.below(11) as u8,
        op: if rng.chance(0.9) { rng.below(2) as u8 } else { 2 + rng.below(2) as u8 },
        urgent_ms: if rng.chance(0.05) { 1 + rng.below(200) as u16 } else { 0 },
    }
}

fn variant(number: u8) -> NrsConfig {
    let mut config = NrsConfig {
        quantum_requests: u32::from(number % 4) * 5,
        quantum_bytes: if number % 3 == 1 { 512 * KIB } else { 0 },
        lambda: 0.5 + f64::from(number),
        ..NrsConfig::default()
    };
    let rules = ["", "start a uid={1-8} rate=2000; start b opcode={ost_write} rate=500 bytes=100M rank=a"];
    let rules = rules[usize::from(number / 4 % 2)];
    config.set("tbf_rules", rules).expect("the rules are right");
    config.set("weights", "uid={3} 4; opcode={ost_read} 2").expect("the weights are right");
    config
}

/// The model: what is queued, in the order of arrival, and what is in service.
struct Model<'a> {
    policy: &'a mut dyn NrsPolicy,
    twin: Option<&'a mut dyn NrsPolicy>,
    now: Instant,
    queued: BTreeMap<u64, RequestId>,
    order: BTreeMap<RequestId, u64>,
    in_service: Vec<(RequestId, Instant)>,
    free: Vec<RequestId>,
    ids: u32,
    arrivals: u64,
}

fn request(id: RequestId, now: Instant, op: &Op) -> Option<NrsRequest> {
    let Op::Enqueue { client, object, unit, order, op, urgent_ms } = *op else { return None };
    let bytes = 4096u32 << order.min(10);
    let op = IoOp::from_code(op % 4).unwrap_or(IoOp::Read);
    Some(NrsRequest {
        id,
        bytes: if matches!(op, IoOp::Read | IoOp::Write) { bytes } else { 0 },
        client: ClientId(u64::from(client) + 1),
        object: ObjectId::new(OstIndex(u16::from(object % 3)), u32::from(object) + 1),
        extent: Extent::at(u64::from(unit) * 64 * KIB, u64::from(bytes)),
        uid: u32::from(client),
        op,
        job: JobId(u64::from(object % 4)),
        arrived: now,
        max_service: (urgent_ms > 0).then(|| Duration::from_millis(u64::from(urgent_ms))),
    })
}

/// Breaks off with a sentence unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($what:tt)*) => { if !$holds { return Err(format!($($what)*)); } };
}

impl Model<'_> {
    fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Enqueue { .. } => self.enqueue(op),
            Op::Dequeue => self.dequeue().map(|_| ())?,
            Op::Promote { nth, within_ms } => self.promote(*nth, *within_ms)?,
            Op::Hasten { nth } => self.hasten(*nth)?,
            Op::Cancel { nth } => self.cancel(*nth)?,
            Op::Complete => self.complete(),
            Op::Drain => self.drain()?,
            Op::Pass { us } => self.now = self.now + Duration::from_micros(u64::from(*us)),
            Op::Reconfigure { variant: number } => {
                let config = variant(*number);
                self.policy.reconfigure(self.now, &config);
                if let Some(twin) = &mut self.twin {
                    twin.reconfigure(self.now, &config);
                }
            }
        }
        let (says, is) = (self.policy.queued(), self.queued.len());
        ensure!(says == is, "queued() says {says}, but {is} requests are queued");
        Ok(())
    }

    fn nth(&self, nth: u16) -> Option<RequestId> {
        let at = usize::from(nth).checked_rem(self.queued.len())?;
        self.queued.values().nth(at).copied()
    }
    /// Forgets a queued request; answers whether it was queued.
    fn leave(&mut self, id: RequestId) -> bool {
        let seq = self.order.remove(&id);
        seq.and_then(|seq| self.queued.remove(&seq)).is_some()
    }

    fn enqueue(&mut self, op: &Op) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.ids += 1;
            RequestId(self.ids - 1)
        });
        let Some(req) = request(id, self.now, op) else { return };
        self.policy.enqueue(self.now, &req);
        if let Some(twin) = &mut self.twin {
            twin.enqueue(self.now, &req);
        }
        self.queued.insert(self.arrivals, id);
        self.order.insert(id, self.arrivals);
        self.arrivals += 1;
    }

    fn dequeue(&mut self) -> Result<Option<RequestId>, String> {
        let got = self.policy.dequeue(self.now);
        if let Some(twin) = &mut self.twin {
            let other = twin.dequeue(self.now);
            ensure!(got == other, "the same calls gave {got:?} and {other:?}");
        }
        let Some(id) = got else {
            let wakeup = self.policy.wakeup_at();
            let waits = wakeup.is_some_and(|at| at > self.now);
            let (now, count) = (self.now.0, self.queued.len());
            ensure!(
                self.queued.is_empty() || waits,
                "dequeue answers None at {now} with {count} queued and wakeup_at {wakeup:?}"
            );
            return Ok(None);
        };
        ensure!(self.leave(id), "{id} was dequeued but is not queued");
        self.in_service.push((id, self.now));
        Ok(got)
    }

    fn promote(&mut self, nth: u16, within_ms: u16) -> Result<(), String> {
        let unknown = RequestId(self.ids + 7);
        ensure!(!self.policy.promote(self.now, unknown, self.now), "promote knows {unknown}, which never arrived");
        if let Some((id, _)) = self.in_service.first().copied() {
            ensure!(!self.policy.promote(self.now, id, self.now), "promote answers true for {id}, which is in service");
        }
        let Some(id) = self.nth(nth) else { return Ok(()) };
        let serve_by = self.now + Duration::from_millis(u64::from(within_ms));
        ensure!(self.policy.promote(self.now, id, serve_by), "promote does not know {id}, which is queued");
        if let Some(twin) = &mut self.twin {
            twin.promote(self.now, id, serve_by);
        }
        Ok(())
    }

    /// Whether it helps is the policy's affair; it must not lose anything by it, and not know what is not queued.
    fn hasten(&mut self, nth: u16) -> Result<(), String> {
        if let Some((id, _)) = self.in_service.first().copied() {
            ensure!(!self.policy.hasten(id), "hasten answers true for {id}, which is in service");
        }
        let Some(id) = self.nth(nth) else { return Ok(()) };
        let answer = self.policy.hasten(id);
        if let Some(twin) = &mut self.twin {
            ensure!(twin.hasten(id) == answer, "hasten answered {answer} and not, for the same calls");
        }
        Ok(())
    }

    fn cancel(&mut self, nth: u16) -> Result<(), String> {
        if let Some((id, _)) = self.in_service.first().copied() {
            ensure!(!self.policy.cancel(id), "cancel answers true for {id}, which is in service");
        }
        let Some(id) = self.nth(nth) else { return Ok(()) };
        ensure!(self.policy.cancel(id), "cancel does not know {id}, which is queued");
        ensure!(!self.policy.cancel(id), "cancel took {id} twice");
        if let Some(twin) = &mut self.twin {
            twin.cancel(id);
        }
        self.leave(id);
        self.free.push(id);
        Ok(())
    }

    fn complete(&mut self) {
        if self.in_service.is_empty() {
            return;
        }
        let (id, since) = self.in_service.remove(0);
        self.policy.on_complete(self.now, id, self.now - since);
        if let Some(twin) = &mut self.twin {
            twin.on_complete(self.now, id, self.now - since);
        }
        self.free.push(id);
    }

    fn drain(&mut self) -> Result<(), String> {
        let mark = RequestId(u32::MAX);
        let mut got = alloc::vec![mark];
        self.policy.drain(&mut got);
        if let Some(twin) = &mut self.twin {
            twin.drain(&mut Vec::new());
        }
        let expected: Vec<RequestId> = core::iter::once(mark).chain(self.queued.values().copied()).collect();
        ensure!(got == expected, "drain gave {got:?}, the order of arrival is {expected:?}");
        self.free.extend(self.queued.values());
        self.queued.clear();
        self.order.clear();
        Ok(())
    }

    /// Serves what is left; a policy that throttles is asked again when it said.
    fn serve_all(&mut self) -> Result<(), String> {
        let mut waits = 0;
        while !self.queued.is_empty() {
            if self.dequeue()?.is_none() {
                let at = self.policy.wakeup_at().unwrap_or(self.now);
                self.now = self.now.max(at);
                waits += 1;
                let served = self.dequeue()?.is_some();
                ensure!(served, "wakeup_at said {}, but nothing was served then", at.0);
                ensure!(waits < 1_000_000, "it throttles for ever");
            }
            self.complete();
        }
        ensure!(self.policy.dequeue(self.now).is_none(), "an empty policy serves something");
        ensure!(self.policy.wakeup_at().is_none(), "an empty policy wants to be woken");
        Ok(())
    }
}

fn run_with<'a>(
    policy: &'a mut dyn NrsPolicy,
    twin: Option<&'a mut dyn NrsPolicy>,
    ops: &[Op],
    seed: u64,
) -> Result<(), Violation> {
    let mut model = Model {
        policy,
        twin,
        now: Instant(1_000_000_000),
        queued: BTreeMap::new(),
        order: BTreeMap::new(),
        in_service: Vec::new(),
        free: Vec::new(),
        ids: 0,
        arrivals: 0,
    };
    for (step, op) in ops.iter().enumerate() {
        model.apply(op).map_err(|what| Violation { seed, step, what })?;
    }
    model.serve_all().map_err(|what| Violation { seed, step: ops.len(), what })
}

/// Runs the operations on `policy`, which is empty, and then serves everything that is left.
///
/// # Errors
/// The first rule that it breaks.
pub fn run(policy: &mut dyn NrsPolicy, ops: &[Op]) -> Result<(), Violation> {
    run_with(policy, None, ops, 0)
}

/// Runs `schedules` random schedules of up to 600 operations on policies that `build` makes, each beside a twin that must
/// give the same answers; and the starvation check: with `quantum` the most requests that anything is served in a turn,
/// no request waits for more than `(streams + 2) x (quantum + 1)` others, however long adjacent streams of other clients
/// in other objects last.
///
/// # Errors
/// The first rule that is broken; its seed repeats the schedule.
pub fn check(build: &dyn Fn() -> Box<dyn NrsPolicy>, quantum: u32, schedules: u64) -> Result<(), Violation> {
    for seed in 1..=schedules {
        let mut rng = Rng::named(seed, "nrs conformance");
        let len = 1 + rng.below(600) as usize;
        let ops = random_ops(&mut rng, len);
        let (mut policy, mut twin) = (build(), build());
        run_with(&mut *policy, Some(&mut *twin), &ops, seed)?;
    }
    for streams in [1, 2, 7] {
        starvation(&mut *build(), streams, quantum).map_err(|what| Violation {
            seed: 0,
            step: streams as usize,
            what,
        })?;
    }
    Ok(())
}

/// Endless streams, each with 8 adjacent requests in flight; then one request of somebody else's arrives.
fn starvation(policy: &mut dyn NrsPolicy, streams: u32, quantum: u32) -> Result<(), String> {
    const IN_FLIGHT: u32 = 8;
    let mut now = Instant(1_000_000_000);
    let mut next_unit = alloc::vec![0u64; streams as usize];
    let mut send = |policy: &mut dyn NrsPolicy, now: Instant, id: u32| {
        let stream = id / IN_FLIGHT;
        let unit = &mut next_unit[stream as usize];
        let extent = Extent::at(*unit * 64 * KIB, 64 * KIB);
        *unit += 1;
        policy.enqueue(now, &stream_request(id, u64::from(stream) + 1, extent, now));
    };
    for id in 0..streams * IN_FLIGHT {
        send(policy, now, id);
    }
    let bound = u64::from(streams + 2) * (u64::from(quantum) + 1);
    let victim = streams * IN_FLIGHT;
    for served in 0..=bound + 1000 {
        now = now + Duration::from_millis(1);
        let id = match policy.dequeue(now) {
            Some(id) => id,
            None => {
                now = policy.wakeup_at().ok_or("dequeue answers None with streams queued, and no wakeup")?.max(now);
                policy.dequeue(now).ok_or("nothing was served at wakeup_at")?
            }
        };
        if id.0 == victim {
            return Ok(());
        }
        policy.on_complete(now, id, Duration::from_millis(1));
        if served == 1000 {
            // Its object sorts behind all others, and the streams are well under way.
            policy.enqueue(now, &stream_request(victim, 1000, Extent::at(0, 4096), now));
        }
        send(policy, now, id.0);
    }
    Err(format!("a request waited for more than {bound} others beside {streams} endless streams"))
}

fn stream_request(id: u32, stream: u64, extent: Extent, now: Instant) -> NrsRequest {
    NrsRequest {
        id: RequestId(id),
        bytes: extent.len() as u32,
        client: ClientId(stream),
        object: ObjectId::new(OstIndex(0), stream as u32),
        extent,
        uid: stream as u32,
        op: IoOp::Write,
        job: JobId(stream),
        arrived: now,
        max_service: None,
    }
}
