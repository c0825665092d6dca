//! The replay itself: recorded requests through pipelines, elevators and disks, in virtual time.
//!
//! Differs from a light world in where requests come from; what an OST does with them is the same, step by step, so that
//! what a light world recorded comes out as it was.
use super::config::TargetConfig;
use super::follow::{Loop, Seen, follow};
use crate::engine::EventQueue;
use devices::{Access, Asked, Device, Places};
use nrs::{Job, NrsRequest, Pipeline};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use trace::{Flags, Record, Trace};
use types::{Duration, Extent, Instant, RequestId, Rng};

/// What a replay gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The requests of all targets as they went now, on one clock that begins with the first arrival, in the order of the
    /// trace's targets and of their arrival there.
    pub records: Vec<Record>,
    /// Times that a scheduler was full and the request had to come again.
    pub refused: u64,
    /// Events handled.
    pub events: u64,
}

/// Longest span of a replay, ns: what is longer has clocks that mean nothing.
const SPAN_NS_MAX: u64 = 1 << 56;
/// When a request that was refused comes again.
const AGAIN_NS: u64 = 1_000_000_000;

/// Whether a request is replayed: it was queued, and served.
fn is_replayed(r: &Record) -> bool {
    !r.flags.has(Flags::CANCELLED) && !r.flags.has(Flags::PAST_QUEUE)
}

/// The requests that a replay repeats, as they went when they were recorded: as [`Outcome::records`].
///
/// # Errors
/// A sentence: clocks of the trace that cannot be.
pub fn measured(trace: &Trace) -> Result<Vec<Record>, String> {
    let offset = |t: &trace::Target| {
        let (wall, clock) = (t.number("wall_ns").unwrap_or(0), t.number("clock_ns").unwrap_or(0));
        i128::from(wall) - i128::from(clock)
    };
    let all = trace.targets.iter().flat_map(|t| t.records.iter().map(move |r| (offset(t), r)));
    let all = all.filter(|(_, r)| is_replayed(r));
    let began = all.clone().map(|(offset, r)| offset + i128::from(r.arrived.0)).min().unwrap_or(0);
    let mut out = Vec::new();
    for target in &trace.targets {
        let first = out.len();
        for r in target.records.iter().filter(|r| is_replayed(r)) {
            let shift = offset(target) - began;
            let at = |t: Instant| match u64::try_from(i128::from(t.0) + shift) {
                Ok(ns) if ns <= SPAN_NS_MAX => Ok(Instant(ns)),
                _ => Err(format!("{}: its clock is years away from the others'", target.name())),
            };
            out.push(Record {
                arrived: at(r.arrived)?,
                dispatched: at(r.dispatched)?,
                finished: at(r.finished)?,
                ..*r
            });
        }
        out[first..].sort_by_key(|r| (r.arrived, r.number));
    }
    Ok(out)
}

/// Replays what `trace` holds; `configs` has a target's each.
///
/// # Errors
/// A sentence: nothing to replay, clocks that cannot be, settings under which requests are never served.
///
/// # Panics
/// When there are not as many configurations as targets.
pub fn run(trace: &Trace, configs: &[TargetConfig], how: Loop) -> Result<Outcome, String> {
    assert_eq!(trace.targets.len(), configs.len(), "a configuration for each target");
    let records = measured(trace)?;
    if records.is_empty() {
        return Err("the trace holds no requests that were queued and served: there is nothing to replay".to_string());
    }
    let mut world = World::new(trace, &records, configs, how)?;
    while let Some((now, event)) = world.queue.pop() {
        world.handle(now, event);
    }
    let served = |request: &Request| request.record.finished != Instant::MAX;
    let left = world.requests.iter().filter(|r| !served(r)).count();
    if left > 0 {
        return Err(format!("{left} of {} requests were never served under these settings", world.requests.len()));
    }
    let events = world.queue.popped();
    Ok(Outcome { records: world.requests.into_iter().map(|r| r.record).collect(), refused: world.refused, events })
}

/// What can happen; `req` is a request's number among all.
#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive { ost: u32 },
    Promote { req: u32 },
    Submit { req: u32 },
    Timer { ost: u32 },
    Disk { ost: u32, slot: u32 },
    Done { req: u32 },
    Wake { ost: u32 },
}

/// What a pipeline keeps of a request.
#[derive(Clone, Copy)]
struct Queued {
    req: u32,
    arrived: u64,
}

impl Job for Queued {
    fn arrived(&self) -> Instant {
        Instant(self.arrived)
    }
    fn must_finish_by(&self) -> Option<Instant> {
        None
    }
}

struct Request {
    /// As it goes now; not finished yet: [`Instant::MAX`].
    record: Record,
    /// How long the store had it then, ns.
    took_ns: u64,
    ost: u32,
    id: RequestId,
    pieces: u32,
    children: Vec<(u32, u64)>,
}

struct Ost {
    config: TargetConfig,
    pipeline: Pipeline<Queued>,
    store: Device,
    places: Places,
    rng: Rng,
    wake_at: u64,
    /// Requests that arrived.
    arrived: u64,
    /// Requests that will, by time and number.
    due: BinaryHeap<Reverse<(u64, u64, u32)>>,
}

struct World {
    queue: EventQueue<Event>,
    osts: Vec<Ost>,
    requests: Vec<Request>,
    refused: u64,
    scratch: Vec<u32>,
}

impl World {
    fn new(trace: &Trace, records: &[Record], configs: &[TargetConfig], how: Loop) -> Result<World, String> {
        let mut requests: Vec<Request> = Vec::with_capacity(records.len());
        let (mut osts, mut rest) = (Vec::new(), records);
        for (i, (target, config)) in trace.targets.iter().zip(configs).enumerate() {
            let own;
            (own, rest) = rest.split_at(target.records.iter().filter(|r| is_replayed(r)).count());
            check_span(own, config).map_err(|why| format!("{}: {why}", target.name()))?;
            osts.push(Ost::new(config, own).map_err(|why| format!("{}: {why}", target.name()))?);
            requests.extend(own.iter().map(|r| Request {
                record: Record { finished: Instant::MAX, ..*r },
                took_ns: r.finished.0 - r.dispatched.0,
                ost: i as u32,
                id: RequestId::default(),
                pieces: 0,
                children: Vec::new(),
            }));
        }
        let parents = match how {
            Loop::Open => vec![None; records.len()],
            Loop::Closed => follow(&requests.iter().zip(records).map(seen).collect::<Vec<_>>()),
        };
        let mut roots: Vec<u32> = Vec::new();
        for (req, parent) in (0..).zip(parents) {
            match parent {
                Some((parent, think)) => requests[parent as usize].children.push((req, think)),
                None => roots.push(req),
            }
        }
        roots.sort_by_key(|req| requests[*req as usize].record.arrived);
        let mut world = World { queue: EventQueue::new(), osts, requests, refused: 0, scratch: Vec::new() };
        roots.iter().for_each(|req| world.arrives(world.requests[*req as usize].record.arrived.0, *req));
        Ok(world)
    }

    /// A request is to arrive. Those that arrive in one instant do so in the order in which they were recorded.
    fn arrives(&mut self, at: u64, req: u32) {
        let Request { record, ost, .. } = &self.requests[req as usize];
        self.osts[*ost as usize].due.push(Reverse((at, record.number, req)));
        self.queue.at(at, Event::Arrive { ost: *ost });
    }

    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Arrive { ost } => self.on_arrival(now, ost),
            Event::Promote { req } => self.on_promotion(now, req),
            Event::Submit { req } => self.on_submit(now, req),
            Event::Timer { ost } => {
                self.osts[ost as usize].store.on_timer(now);
                self.pump_disk(now, ost);
            }
            Event::Disk { ost, slot } => self.on_disk(now, ost, slot),
            Event::Done { req } => self.complete(now, req),
            Event::Wake { ost } => {
                self.osts[ost as usize].wake_at = u64::MAX;
                self.pump_window(now, ost);
            }
        }
    }

    fn on_arrival(&mut self, now: u64, o: u32) {
        let ost = &mut self.osts[o as usize];
        let Reverse((_, _, req)) = ost.due.pop().expect("whoever arrives is due");
        let request = &mut self.requests[req as usize];
        let asked = NrsRequest { arrived: Instant(now), ..request.record.request() };
        let Ok(id) = ost.pipeline.on_arrival(Instant(now), asked, |_| Queued { req, arrived: now }) else {
            self.refused += 1;
            return self.arrives(now + AGAIN_NS, req);
        };
        (request.id, request.record.number) = (id, ost.arrived);
        ost.arrived += 1;
        (request.record.arrived, request.record.dispatched) = (Instant(now), Instant::MAX);
        if request.record.flags.has(Flags::PROMOTED) {
            self.queue.at(now + u64::from(request.record.promoted_us) * 1000, Event::Promote { req });
        }
        self.pump_window(now, o);
    }

    fn on_promotion(&mut self, now: u64, req: u32) {
        let Request { record, ost, id, .. } = &self.requests[req as usize];
        if record.dispatched == Instant::MAX {
            let serve_by = record.arrived + Duration::from_micros(record.max_service_us.into());
            self.osts[*ost as usize].pipeline.promote(Instant(now), *id, serve_by);
            let ost = *ost;
            self.pump_window(now, ost);
        }
    }

    /// Hands to the store what the dispatch window allows.
    fn pump_window(&mut self, now: u64, o: u32) {
        let ost = &mut self.osts[o as usize];
        while let Some(id) = ost.pipeline.next_dispatch(Instant(now)) {
            let req = ost.pipeline.job(id).req;
            let record = &mut self.requests[req as usize].record;
            record.dispatched = Instant(now);
            let (low, high) = ost.config.allocation_ns;
            let cpu = low + ost.rng.below(high - low + 1);
            let ready = if record.is_write() { now + ost.config.to_server_ns(record.bytes) } else { now };
            self.queue.at(ready + cpu, Event::Submit { req });
        }
        if let Some(at) = ost.pipeline.wakeup_at() {
            let at = at.0.max(now + 1);
            if at < ost.wake_at {
                ost.wake_at = at;
                self.queue.at(at, Event::Wake { ost: o });
            }
        }
    }

    fn on_submit(&mut self, now: u64, req: u32) {
        let request = &mut self.requests[req as usize];
        let Ost { store, places, .. } = &mut self.osts[request.ost as usize];
        if request.record.stored == 0 || request.record.errno != 0 {
            // The store's medium had nothing to do with it: it takes as long as it did.
            return self.queue.at(now + request.took_ns, Event::Done { req });
        }
        let (mut timer, write) = (None, request.record.is_write());
        request.pieces = places.pieces(&asked(&request.record), |lba, len| {
            timer = timer.or(store.submit(now, req, Access { lba, len, write }));
        });
        if let Some(at) = timer {
            self.queue.at(at, Event::Timer { ost: request.ost });
        }
        let ost = request.ost;
        self.pump_disk(now, ost);
    }

    fn pump_disk(&mut self, now: u64, o: u32) {
        while let Some((slot, done_at)) = self.osts[o as usize].store.start_next(now) {
            self.queue.at(done_at, Event::Disk { ost: o, slot });
        }
    }

    fn on_disk(&mut self, now: u64, o: u32, slot: u32) {
        let mut done = std::mem::take(&mut self.scratch);
        let requests = &mut self.requests;
        self.osts[o as usize].store.finish(slot, |req| {
            let request = &mut requests[req as usize];
            request.pieces -= 1;
            if request.pieces == 0 {
                done.push(req);
            }
        });
        self.pump_disk(now, o);
        for req in done.drain(..) {
            let record = &self.requests[req as usize].record;
            match self.osts[o as usize].config.to_client_ns(record.bytes) {
                Some(ns) if !record.is_write() => self.queue.at(now + ns, Event::Done { req }),
                _ => self.complete(now, req),
            }
        }
        self.scratch = done;
    }

    fn complete(&mut self, now: u64, req: u32) {
        let request = &mut self.requests[req as usize];
        request.record.finished = Instant(now);
        self.osts[request.ost as usize].pipeline.on_completion(Instant(now), request.id);
        let (ost, children) = (request.ost, std::mem::take(&mut request.children));
        for (child, think) in children {
            self.arrives(now.saturating_add(think), child);
        }
        self.pump_window(now, ost);
    }
}

impl Ost {
    fn new(config: &TargetConfig, records: &[Record]) -> Result<Ost, String> {
        let pipeline = Pipeline::new(&config.policy, config.nrs.clone(), config.window).map_err(|e| e.to_string())?;
        let stream = |name: &str| Rng::named(config.seed.wrapping_add(u64::from(config.index) << 32), name);
        Ok(Ost {
            pipeline,
            store: Device::new(config.disk, config.elevator, stream("disk")),
            places: Places::new(config.alloc, records.iter().map(asked)),
            rng: stream("ost"),
            wake_at: u64::MAX,
            arrived: 0,
            due: BinaryHeap::new(),
            config: config.clone(),
        })
    }
}

impl TargetConfig {
    /// From the dispatch of a write until its bytes are there.
    fn to_server_ns(&self, bytes: u32) -> u64 {
        self.network.map_or(0, |(latency, per_byte)| 2 * latency + (f64::from(bytes) * per_byte) as u64)
    }
    /// Until the bytes of a read have left; `None`: at once.
    fn to_client_ns(&self, bytes: u32) -> Option<u64> {
        self.network.map(|(_, per_byte)| (f64::from(bytes) * per_byte) as u64)
    }
}

/// What a record's request asked the store for.
pub(super) fn asked(r: &Record) -> Asked {
    Asked { object: r.object, extent: Extent::new(r.offset, r.end()), stored: r.stored.into(), write: r.is_write() }
}

fn seen((request, r): (&Request, &Record)) -> Seen {
    Seen { client: r.client, object: r.object, target: request.ost, arrived: r.arrived.0, finished: r.finished.0 }
}

/// Refuses what would take longer than clocks last.
fn check_span(records: &[Record], config: &TargetConfig) -> Result<(), String> {
    let disk = &config.disk;
    let jump =
        disk.jump_read_ns.max(disk.jump_write_ns) + disk.full_stroke_ns + disk.revolution_ns + disk.partial_stripe_ns;
    let fixed = jump + disk.contiguous_ns.0 + config.allocation_ns.1 as f64;
    let per_byte = 1e9 / disk.read_rate.min(disk.write_rate) + config.network.map_or(0.0, |(_, per_byte)| per_byte);
    let stored: f64 = records.iter().map(|r| f64::from(r.stored.max(r.bytes))).sum();
    let took: f64 = records.iter().map(|r| (r.finished.0 - r.dispatched.0) as f64).sum();
    if records.len() as f64 * fixed + stored * per_byte + took > SPAN_NS_MAX as f64 {
        return Err("it would take years on this device: look at disk.mb_per_s and disk.seek_ms".to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_whose_clocks_differ_are_brought_together() {
        let target = |clock: u64, wall: u64, at: u64| {
            let text = format!("target=t\nclock_ns={clock}\nwall_ns={wall}\n");
            let (arrived, dispatched, finished) = (Instant(at), Instant(at + 1), Instant(at + 2));
            let r = Record { arrived, dispatched, finished, ..Record::default() };
            trace::Target { records: vec![r], ..trace::Target::from_text(&text).unwrap() }
        };
        let trace = Trace { targets: vec![target(100, 5000, 50), target(7000, 5000, 6990)] };
        let records = measured(&trace).unwrap();
        assert_eq!(records.iter().map(|r| r.arrived.0).collect::<Vec<_>>(), [0, 40]);
        let away = Trace { targets: vec![target(0, 0, 1), target(0, i64::MAX as u64, 1)] };
        assert!(measured(&away).unwrap_err().contains("years away"));
    }
}
