//! A policy written outside of the room: small requests go first, but nobody is passed more than 64 times in a row.
//!
//! `cargo run -p stria-nrs --example small_first` runs the room's conformance suite on it and then shows what it is for:
//! how long small reads wait behind bulk writes, beside `fifo`. To offer a policy by name, move its file into the room and
//! add one line to the registry; nothing else changes.
use nrs::{Head, IoOp, NrsConfig, NrsPolicy, NrsRequest, build, conformance};
use std::collections::{BTreeMap, HashMap};
use types::{ClientId, Duration, Extent, Instant, KIB, MIB, ObjectId, OstIndex, RequestId};

/// Requests of at most this many bytes are small.
const SMALL_BYTES_MAX: u32 = 64 * KIB as u32;
/// Small requests served in a row while a large one waits.
const PASSED_MAX: u32 = 64;

/// Two queues in the order of arrival, and where each request is.
#[derive(Default)]
struct SmallFirst {
    /// Small and large requests by arrival number.
    queues: [BTreeMap<u64, RequestId>; 2],
    place: HashMap<RequestId, (usize, u64)>,
    arrivals: u64,
    passed: u32,
}

impl NrsPolicy for SmallFirst {
    fn enqueue(&mut self, _now: Instant, req: &NrsRequest) {
        let queue = usize::from(req.bytes > SMALL_BYTES_MAX);
        let old = self.place.insert(req.id, (queue, self.arrivals));
        assert!(old.is_none(), "request {} is queued twice", req.id);
        self.queues[queue].insert(self.arrivals, req.id);
        self.arrivals += 1;
    }

    fn dequeue(&mut self, _now: Instant) -> Option<RequestId> {
        let large_is_due = self.passed >= PASSED_MAX && !self.queues[1].is_empty();
        let queue = usize::from(large_is_due || self.queues[0].is_empty());
        let (_, id) = self.queues[queue].pop_first()?;
        self.place.remove(&id);
        self.passed = if queue == 0 { self.passed.saturating_add(1) } else { 0 };
        Some(id)
    }

    fn promote(&mut self, _now: Instant, id: RequestId, _serve_by: Instant) -> bool {
        // `deadline+` is the policy for urgency; this one only has to know what it holds.
        self.place.contains_key(&id)
    }

    fn cancel(&mut self, id: RequestId) -> bool {
        let Some((queue, arrival)) = self.place.remove(&id) else { return false };
        self.queues[queue].remove(&arrival).is_some()
    }

    fn drain(&mut self, into: &mut Vec<RequestId>) {
        let [mut all, large] = std::mem::take(&mut self.queues);
        all.extend(large);
        into.extend(all.into_values());
        self.place.clear();
    }

    fn queued(&self) -> usize {
        self.place.len()
    }
}

/// Mean wait of small reads on a server with a 500 MB/s store: 32 bulk writers, and a small read every 10 ms.
fn small_wait(policy: Box<dyn NrsPolicy>) -> Duration {
    let mut head = Head::with_policy("experiment", policy, NrsConfig::default());
    let request = |id: u32, bytes: u32, arrived: Instant| NrsRequest {
        id: RequestId(id),
        bytes,
        client: ClientId(u64::from(id) + 1),
        object: ObjectId::new(OstIndex(0), id + 1),
        extent: Extent::at(0, u64::from(bytes)),
        op: if bytes > SMALL_BYTES_MAX { IoOp::Write } else { IoOp::Read },
        arrived,
        ..NrsRequest::default()
    };
    let mut requests: HashMap<RequestId, NrsRequest> = HashMap::new();
    let (mut now, mut next_small, mut smalls, mut waited) = (Instant::ZERO, Instant::ZERO, 0u32, Duration::ZERO);
    let send = |head: &mut Head, requests: &mut HashMap<_, _>, req: NrsRequest| {
        requests.insert(req.id, req);
        head.enqueue(req.arrived, &req).expect("far below the limit");
    };
    for id in 0..32 {
        send(&mut head, &mut requests, request(id, MIB as u32, now));
    }
    while smalls < 1000 {
        if next_small <= now {
            send(&mut head, &mut requests, request(32 + smalls, 4096, next_small));
            (smalls, next_small) = (smalls + 1, next_small + Duration::from_millis(10));
        }
        let id = head.dequeue(now).expect("writers never stop");
        let req = requests[&id];
        if req.bytes <= SMALL_BYTES_MAX {
            waited += now - req.arrived;
        }
        now = now + Duration::from_nanos(u64::from(req.bytes) * 2);
        if req.bytes > SMALL_BYTES_MAX {
            send(&mut head, &mut requests, request(id.0, req.bytes, now));
        }
    }
    waited / smalls
}

fn main() {
    let make = || Box::new(SmallFirst::default()) as Box<dyn NrsPolicy>;
    conformance::check(&make, PASSED_MAX, 500).expect("it keeps the rules");
    println!("small_first keeps the rules of the room: 500 random schedules and endless streams");
    let fifo = build("fifo", &NrsConfig::default()).expect("fifo is in the registry");
    println!("mean wait of a 4 KiB read behind 32 bulk writers: fifo {:?}", small_wait(fifo));
    println!("                                           small_first {:?}", small_wait(make()));
}

#[test]
fn an_outsiders_policy_passes_the_suite_and_does_what_it_is_for() {
    let make = || Box::new(SmallFirst::default()) as Box<dyn NrsPolicy>;
    conformance::check(&make, PASSED_MAX, 200).expect("it keeps the rules");
    let fifo = build("fifo", &NrsConfig::default()).expect("fifo is in the registry");
    assert!(small_wait(make()) * 4 < small_wait(fifo));
}
