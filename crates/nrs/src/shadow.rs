//! A sample of requests served again, by another pipeline in front of a modelled disk, a few steps at a time.
//!
//! Requests come as in the sample: when they came, or as long after the completion that they followed as they did. The run
//! ends when three quarters of the bytes are served, for what is left then is served from queues that run empty.
use crate::{
    Head, NrsRequest,
    pipeline::{Job, Pipeline},
    sample::{Entry, NONE, asked},
};
use alloc::{
    collections::{BTreeSet, BinaryHeap},
    vec::Vec,
};
use core::cmp::Reverse;
use devices::{Access, AllocKind, Device, DeviceProfile, ElevatorConfig, ElevatorKind, Places};
use types::{Duration, Instant, RequestId, Rng};

/// Virtual time begins here: nothing arrived at 0.
const BEGIN: u64 = 1;

/// What all who serve the sample get.
#[derive(Debug)]
pub(crate) struct Course {
    entries: Vec<Entry>,
    /// Of each entry the first that follows it, and the next one that follows the same.
    first: Vec<u32>,
    next: Vec<u32>,
    disk: DeviceProfile,
    shift: u32,
    bytes: u64,
}

impl Course {
    /// Of a sample of one object in `2^shift`, on `disk`.
    pub(crate) fn new(entries: Vec<Entry>, shift: u32, disk: DeviceProfile) -> Course {
        let (mut first, mut next) = (alloc::vec![NONE; entries.len()], alloc::vec![NONE; entries.len()]);
        for (at, entry) in entries.iter().enumerate().rev().filter(|(_, entry)| entry.after != NONE) {
            next[at] = core::mem::replace(&mut first[entry.after as usize], at as u32);
        }
        let bytes = entries.iter().filter(|e| !e.gone).map(|e| u64::from(e.request.bytes)).sum();
        Course { entries, first, next, disk, shift, bytes }
    }
}

/// What became of the sample.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes per second.
    pub(crate) bytes_per_s: f64,
    /// Mean time from arrival to completion, ns of the sample's world.
    pub(crate) response_ns: f64,
    /// Requests that were complete too late, or are not yet although they should be.
    pub(crate) late: u32,
}

/// What happens, in the order of the sample's numbers where it happens at one time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Arrive(u32),
    Disk(u32),
    Timer,
    Done(u32),
}

#[derive(Clone, Copy)]
struct Queued {
    entry: u32,
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

/// A request on its way.
#[derive(Clone, Copy, Default)]
struct Request {
    arrived: u64,
    /// By when it is to be complete; 0: at any time.
    due: u64,
    pieces: u32,
    id: RequestId,
}

/// One who serves it.
pub(crate) struct Shadow {
    pipeline: Pipeline<Queued>,
    device: Device,
    places: Places,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    requests: Vec<Request>,
    /// Those that are to be complete, by when.
    due: BTreeSet<(u64, u32)>,
    now: u64,
    bytes: u64,
    completed: u64,
    response_ns: u64,
    late: u32,
}

impl Shadow {
    /// Serves `course` by `head`, which is empty, with a dispatch window of `window`.
    pub(crate) fn new(course: &Course, head: Head, window: u32) -> Shadow {
        let elevator = ElevatorConfig { kind: ElevatorKind::Noop, ..ElevatorConfig::default() };
        let roots = course.entries.iter().zip(0..).filter(|(entry, _)| entry.after == NONE);
        Shadow {
            pipeline: Pipeline::with_head(head, window),
            device: Device::new(course.disk, elevator, Rng::new(1)),
            places: Places::new(AllocKind::default(), course.entries.iter().map(|e| asked(&e.request))).amid(),
            events: roots.map(|(entry, at)| Reverse((BEGIN + entry.at, Event::Arrive(at)))).collect(),
            requests: alloc::vec![Request::default(); course.entries.len()],
            due: BTreeSet::new(),
            now: BEGIN,
            bytes: 0,
            completed: 0,
            response_ns: 0,
            late: 0,
        }
    }

    /// Goes one event on. Answers whether there are more.
    pub(crate) fn step(&mut self, course: &Course) -> bool {
        if self.bytes * 4 >= course.bytes * 3 {
            return false;
        }
        let Some(Reverse((now, event))) = self.events.pop() else { return false };
        self.now = now;
        match event {
            Event::Arrive(entry) => self.on_arrival(now, entry, course),
            Event::Disk(slot) => self.on_disk(now, slot, course),
            Event::Timer => {
                self.device.on_timer(now);
                self.pump_disk(now);
            }
            Event::Done(entry) => self.complete(now, entry, course),
        }
        true
    }

    /// What became of the sample so far.
    pub(crate) fn outcome(&self) -> Outcome {
        let overdue = self.due.iter().take_while(|(at, _)| *at < self.now).count() as u32;
        Outcome {
            bytes_per_s: self.bytes as f64 * 1e9 / (self.now - BEGIN).max(1) as f64,
            response_ns: self.response_ns as f64 / self.completed.max(1) as f64,
            late: self.late + overdue,
        }
    }

    fn on_arrival(&mut self, now: u64, entry: u32, course: &Course) {
        let Entry { request, gone, .. } = course.entries[entry as usize];
        if gone {
            return self.followed(now, entry, course);
        }
        // In the sample's world the disk is alone with fewer requests: what was promised passes sooner, too.
        let max_service = request.max_service.map(|d| Duration::from_nanos((d.as_nanos() as u64) >> course.shift));
        let request = NrsRequest { arrived: Instant(now), max_service, ..request };
        let arrived = self.pipeline.on_arrival(Instant(now), request, |_| Queued { entry, arrived: now });
        let Ok(id) = arrived else { return };
        let due = request.must_finish_by().map_or(0, |at| at.0);
        self.requests[entry as usize] = Request { arrived: now, due, pieces: 0, id };
        if due > 0 {
            self.due.insert((due, entry));
        }
        self.pump(now, course);
    }

    /// Hands to the disk what the dispatch window allows.
    fn pump(&mut self, now: u64, course: &Course) {
        while let Some(id) = self.pipeline.next_dispatch(Instant(now)) {
            let entry = self.pipeline.job(id).entry;
            let Entry { request, took, .. } = &course.entries[entry as usize];
            if *took > 0 || request.bytes == 0 {
                self.events.push(Reverse((now + took, Event::Done(entry))));
                continue;
            }
            let (mut timer, write) = (None, request.op.is_write());
            let Shadow { places, device, requests, .. } = self;
            requests[entry as usize].pieces = places.pieces(&asked(request), |lba, len| {
                timer = timer.or(device.submit(now, entry, Access { lba, len, write }));
            });
            self.events.extend(timer.map(|at| Reverse((at, Event::Timer))));
        }
        self.pump_disk(now);
    }

    fn pump_disk(&mut self, now: u64) {
        while let Some((slot, done_at)) = self.device.start_next(now) {
            self.events.push(Reverse((done_at, Event::Disk(slot))));
        }
    }

    fn on_disk(&mut self, now: u64, slot: u32, course: &Course) {
        let (requests, mut done) = (&mut self.requests, Vec::new());
        self.device.finish(slot, |entry| {
            let request = &mut requests[entry as usize];
            request.pieces -= 1;
            if request.pieces == 0 {
                done.push(entry);
            }
        });
        self.pump_disk(now);
        done.into_iter().for_each(|entry| self.complete(now, entry, course));
    }

    fn complete(&mut self, now: u64, entry: u32, course: &Course) {
        let Request { arrived, due, id, .. } = self.requests[entry as usize];
        self.pipeline.on_completion(Instant(now), id);
        self.bytes += u64::from(course.entries[entry as usize].request.bytes);
        self.completed += 1;
        self.response_ns += now - arrived;
        if due > 0 {
            self.due.remove(&(due, entry));
            self.late += u32::from(now > due);
        }
        self.followed(now, entry, course);
        self.pump(now, course);
    }

    /// Who waited for a request comes.
    fn followed(&mut self, now: u64, entry: u32, course: &Course) {
        let mut next = course.first[entry as usize];
        while next != NONE {
            let think = course.entries[next as usize].think;
            self.events.push(Reverse((now.saturating_add(think), Event::Arrive(next))));
            next = course.next[next as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NrsConfig, build};
    use types::{ClientId, Extent, ObjectId, OstIndex};

    fn serve(course: &Course, policy: &str) -> Outcome {
        let config = NrsConfig::default();
        let head = Head::with_policy(policy, build(policy, &config).unwrap(), config);
        let mut shadow = Shadow::new(course, head, 4);
        while shadow.step(course) {}
        shadow.outcome()
    }

    /// `objects` objects are written with four requests of 1 MiB in flight each.
    fn course(objects: u32, shift: u32, urgent: Option<Duration>) -> Course {
        let entry = |i: u32| {
            let (object, n) = (i % objects, i / objects);
            let request = NrsRequest {
                client: ClientId(object.into()),
                object: ObjectId::new(OstIndex(0), object + 1),
                extent: Extent::at(u64::from(n) << 20, 1 << 20),
                bytes: 1 << 20,
                op: crate::IoOp::Write,
                max_service: urgent.filter(|_| i.is_multiple_of(7)),
                ..NrsRequest::default()
            };
            let after = if n < 4 { NONE } else { i - 4 * objects };
            Entry { request, at: 0, after, think: 1000, took: 0, gone: false }
        };
        let entries = (0..objects * 16).map(entry).collect();
        Course::new(entries, shift, DeviceProfile::parse("disk9ms", "seek_ms=8 mb_per_s=100 request_us=0").unwrap())
    }

    #[test]
    fn an_order_that_saves_jumps_serves_a_sample_faster_and_the_same_course_gives_the_same() {
        let course = course(16, 0, None);
        let [fifo, obrr] = ["fifo", "obrr"].map(|policy| serve(&course, policy));
        // 10.5 ms a MiB, and 8 ms a jump, which all but some cost.
        assert!((56e6..60e6).contains(&fifo.bytes_per_s), "{fifo:?}");
        assert!(obrr.bytes_per_s > 1.3 * fifo.bytes_per_s, "{obrr:?}");
        assert_eq!((fifo.late, obrr), (0, serve(&course, "obrr")));
    }

    #[test]
    fn what_is_late_counts_also_when_it_is_not_done() {
        let late = |shift: u32| serve(&course(16, shift, Some(Duration::from_secs(4))), "fifo").late;
        assert_eq!(late(0), 0, "256 MiB take 4.7 s, and each request waits for 64 others");
        assert!(late(2) > 10, "a sample of a quarter has a quarter of the time: {}", late(2));
    }

    #[test]
    fn a_request_that_was_taken_out_takes_no_time_and_lets_its_follower_come() {
        let mut entries = course(1, 0, None).entries;
        entries[0].gone = true;
        let disk = DeviceProfile::named("disk9ms").unwrap();
        let course = Course::new(entries, 0, disk);
        assert_eq!(course.bytes, 15 << 20);
        let outcome = serve(&course, "fifo");
        assert!(outcome.bytes_per_s > 50e6, "{outcome:?}");
    }
}
