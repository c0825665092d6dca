//! The policy that chooses among others, in front of a modelled disk: what it goes over to, when it does not, and that it says
//! why.
use devices::{Access, AllocKind, Asked, Device, DeviceProfile, ElevatorConfig, ElevatorKind, Places};
use nrs::{IoOp, NrsConfig, NrsRequest, Pipeline};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use types::{ClientId, Duration, Extent, Instant, MIB, ObjectId, OstIndex, RequestId, Rng};

/// Clients that write an object each, so many requests in flight, to one OST.
struct World {
    pipeline: Pipeline,
    device: Device,
    places: Places,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    pieces: Vec<u32>,
    next: Vec<u64>,
    rng: Rng,
    served: u64,
    now: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(u32),
    Disk(u32),
    Timer,
}

struct Work {
    clients: u32,
    in_flight: u32,
    /// Between an answer and the next request, ns.
    think: u64,
    /// Requests go anywhere in their objects.
    random: bool,
    profile: &'static str,
}

const PAPER: Work = Work { clients: 56, in_flight: 8, think: 100_000, random: false, profile: "paper001" };

impl World {
    fn new(work: &Work, policy: &str, set: &[(&str, &str)], seed: u64) -> World {
        let mut config = NrsConfig::default();
        set.iter().for_each(|(key, value)| config.set(key, value).expect(value));
        let elevator = ElevatorConfig { kind: ElevatorKind::Noop, ..ElevatorConfig::default() };
        let mut rng = Rng::named(seed, "auto world");
        let profile = DeviceProfile::named(work.profile).expect("a profile of the table");
        let mut events = BinaryHeap::new();
        for client in 0..work.clients {
            for i in 0..u64::from(work.in_flight) {
                events.push(Reverse((1 + i * 50_000 + rng.below(50_000), Event::Send(client))));
            }
        }
        World {
            pipeline: Pipeline::new(policy, config, 16).expect("a policy of the registry"),
            device: Device::new(profile, elevator, Rng::named(seed, "disk")),
            places: Places::new(AllocKind::Mballoc, std::iter::empty()),
            events,
            pieces: Vec::new(),
            next: vec![0; work.clients as usize],
            rng,
            served: 0,
            now: 0,
        }
    }

    /// Until `requests` are served: MB/s.
    fn run(&mut self, work: &Work, requests: u64) -> f64 {
        let (from, before) = (self.now, self.served);
        while self.served < before + requests {
            let Reverse((now, event)) = self.events.pop().expect("clients never stop");
            self.now = now;
            match event {
                Event::Send(client) => self.send(work, client),
                Event::Timer => self.device.on_timer(now),
                Event::Disk(slot) => {
                    let (pieces, mut done) = (&mut self.pieces, Vec::new());
                    self.device.finish(slot, |id| {
                        pieces[id as usize] -= 1;
                        done.extend((pieces[id as usize] == 0).then_some(id));
                    });
                    for id in done {
                        self.answer(work, RequestId(id));
                    }
                }
            }
            self.pump();
        }
        requests as f64 * 1.048_576 / ((self.now - from) as f64 / 1e9)
    }

    fn send(&mut self, work: &Work, client: u32) {
        let next = &mut self.next[client as usize];
        let place = if work.random { self.rng.below(4096) } else { *next };
        *next += 1;
        let request = NrsRequest {
            client: ClientId(client.into()),
            object: ObjectId::new(OstIndex(0), client + 1),
            extent: Extent::at(place * MIB, MIB),
            bytes: MIB as u32,
            op: IoOp::Write,
            arrived: Instant(self.now),
            ..NrsRequest::default()
        };
        let id = self.pipeline.on_arrival(Instant(self.now), request, |r| *r).expect("the queue is long enough");
        self.pieces.resize(self.pieces.len().max(id.0 as usize + 1), 0);
    }

    fn answer(&mut self, work: &Work, id: RequestId) {
        let request = self.pipeline.on_completion(Instant(self.now), id);
        self.served += 1;
        let think = work.think + self.rng.below(work.think / 2 + 1);
        self.events.push(Reverse((self.now + think, Event::Send(request.client.0 as u32))));
    }

    fn pump(&mut self) {
        while let Some(id) = self.pipeline.next_dispatch(Instant(self.now)) {
            let r = *self.pipeline.job(id);
            let asked = Asked { object: r.object, extent: r.extent, stored: r.bytes.into(), write: true };
            let (device, now, mut timer) = (&mut self.device, self.now, None);
            self.pieces[id.0 as usize] = self.places.pieces(&asked, |lba, len| {
                timer = timer.or(device.submit(now, id.0, Access { lba, len, write: true }));
            });
            self.events.extend(timer.map(|at| Reverse((at, Event::Timer))));
        }
        while let Some((slot, done_at)) = self.device.start_next(self.now) {
            self.events.push(Reverse((done_at, Event::Disk(slot))));
        }
    }

    fn in_use(&self) -> &str {
        self.pipeline.head().in_use()
    }
    fn explained(&self) -> String {
        self.pipeline.head().explain()
    }
}

#[test]
fn on_a_disk_that_seeks_it_leaves_the_order_of_arrival_and_says_why() {
    for seed in 1..=4 {
        let mut world = World::new(&PAPER, "auto", &[], seed);
        world.run(&PAPER, 12_000);
        let text = world.explained();
        assert_ne!(world.in_use(), "fifo", "{text}");
        assert!(text.contains("windows in a row over fifo") && text.contains("a jump "), "{text}");
        let (auto, fixed) = (world.run(&PAPER, 8000), fixed(&PAPER, world.in_use(), seed));
        // Turns begin elsewhere in the allocator's regions than if they had been the order from the beginning.
        assert!(auto > 0.93 * fixed, "{auto:.1} MB/s once it has chosen, against {fixed:.1}: {text}");
        let counted = world.pipeline.head().counters().policy;
        assert!(counted.judged >= 3 && counted.chosen >= 1, "{counted:?}");
    }
}

/// MB/s of a policy that stays, between its 12,000th and 20,000th request.
fn fixed(work: &Work, policy: &str, seed: u64) -> f64 {
    let mut world = World::new(work, policy, &[], seed);
    world.run(work, 12_000);
    world.run(work, 8000)
}

#[test]
fn where_the_order_makes_no_difference_it_stays() {
    for (work, first) in [
        (Work { profile: "nvme", ..PAPER }, "fifo"),
        (Work { profile: "nvme", ..PAPER }, "crrn"),
        (Work { random: true, ..PAPER }, "fifo"),
        (Work { clients: 1, in_flight: 1, think: 20_000_000, ..PAPER }, "obrr"),
    ] {
        let mut world = World::new(&work, "auto", &[("auto_first", first)], 3);
        world.run(&work, 8000);
        assert_eq!(world.in_use(), first, "{}", world.explained());
        assert_eq!(world.pipeline.head().counters().policy.chosen, 0, "{}", world.explained());
    }
}

#[test]
fn the_same_calls_give_the_same_decisions_and_a_recording_replays() {
    let run = |record: bool| {
        let mut world = World::new(&PAPER, "auto", &[("auto_sample", "256"), ("auto_windows", "1")], 5);
        if record {
            assert!(world.pipeline.record(Instant::ZERO, 64 << 20, |r| *r));
        }
        world.run(&PAPER, 6000);
        let log = world.pipeline.take_record();
        (world.explained(), world.now, log)
    };
    let (first, again) = (run(false), run(true));
    assert_eq!((&first.0, first.1), (&again.0, again.1));
    assert_ne!(first.0.lines().count(), 1, "{}", first.0);
    let replayed = nrs::record::replay(&again.2.expect("it was recorded")).expect("the answers are the same");
    assert!(replayed.calls > 18_000 && !replayed.truncated, "{replayed:?}");
}

#[test]
fn candidates_can_be_named_and_changed_under_load() {
    let mut world = World::new(&PAPER, "auto", &[("auto_candidates", "fifo, crrn"), ("auto_windows", "2")], 2);
    assert_eq!(world.in_use(), "fifo");
    world.run(&PAPER, 12_000);
    assert_eq!(world.in_use(), "crrn", "{}", world.explained());
    world.pipeline.set(Instant(world.now), "auto_candidates", "fifo,orr").unwrap();
    assert!(world.explained().starts_with("in use: crrn, of crrn, fifo, orr;"), "{}", world.explained());
    world.run(&PAPER, 2000);
    for (value, why) in [
        ("fifo", "2 to 8 different"),
        ("fifo,fifo", "2 to 8 different"),
        ("fifo,tbf", "'tbf' holds requests back"),
        ("fifo,auto", "does not choose itself"),
        ("fifo,deadline+obrr+", "'deadline+obrr+' is no policy"),
    ] {
        let refused = world.pipeline.set(Instant(world.now), "auto_candidates", value).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn what_is_urgent_is_late_for_nobody_less_often_than_for_the_one_chosen() {
    // Half a second for a request among 448 that take two: only a policy that knows deadlines keeps that.
    let mut world = World::new(&PAPER, "auto", &[("auto_windows", "2")], 6);
    for i in 0..12_000u64 {
        world.run(&PAPER, 1);
        if i % 50 == 0 {
            let ids = world.pipeline.queued_where(|r| r.client.0 == i / 50 % 56);
            let by = Instant(world.now) + Duration::from_millis(500);
            ids.iter().take(1).for_each(|id| assert!(world.pipeline.promote(Instant(world.now), *id, by)));
        }
    }
    assert_eq!(world.in_use(), "obrr+", "{}", world.explained());
}
