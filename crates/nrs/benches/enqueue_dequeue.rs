//! What one enqueue and one dequeue cost together, for every policy, from 10^3 to 10^6 queued requests.
//!
//! `cargo bench -p stria-nrs [-- POLICY [closed|open [QUEUED]]]`. The steady state of a server: the queue is filled, then each request that is
//! served is replaced, so the number queued stays. Two ways to replace it: `closed` sends the next adjacent request of
//! the object that was just served (its client's reply opens the window), `open` one of a random object. Prints one
//! NDJSON line per measurement, in CPU time; `load_alone_min` is what the load costs without a policy, and is part of the
//! other figures.
use nrs::{IoOp, JobId, NrsConfig, NrsPolicy, NrsRequest, build, registry};
use types::{ClientId, Duration, Extent, Instant, MIB, ObjectId, OstIndex, RequestId, Rng};

const OBJECTS: u64 = 100_000;
const RUNS: usize = 9;

/// As small as it can be, so that it does not push the policy's data out of the caches: a request's object is its id
/// modulo the number of objects in the closed load, and random in the open one.
struct Load {
    rng: Rng,
    /// In MiB.
    next_offset: Vec<u16>,
    queued: u32,
    open: bool,
}

impl Load {
    fn new(queued: u64, open: bool) -> Load {
        let objects = OBJECTS.min(queued) as usize;
        Load { rng: Rng::new(24), next_offset: vec![0; objects], queued: queued as u32, open }
    }
    fn request(&mut self, id: RequestId, object: u32, now: Instant) -> NrsRequest {
        let offset = u64::from(self.next_offset[object as usize]) * MIB;
        self.next_offset[object as usize] += 1;
        NrsRequest {
            id,
            bytes: MIB as u32,
            client: ClientId(u64::from(object) + 1),
            object: ObjectId::new(OstIndex(0), object + 1),
            extent: Extent::at(offset, MIB),
            uid: object % 64,
            op: IoOp::Write,
            job: JobId(u64::from(object % 1000)),
            arrived: now,
            max_service: None,
        }
    }
    fn fill(&mut self, policy: &mut dyn NrsPolicy, now: Instant) {
        // Clients send their windows in random order.
        let mut ids: Vec<u32> = (0..self.queued).collect();
        self.rng.shuffle(&mut ids);
        for id in ids {
            let req = self.request(RequestId(id), id % self.next_offset.len() as u32, now);
            policy.enqueue(now, &req);
        }
    }
    fn step(&mut self, policy: &mut dyn NrsPolicy, now: Instant) {
        let id = policy.dequeue(now).expect("something is queued and nothing is throttled");
        policy.on_complete(now, id, Duration::from_millis(2));
        let object = match self.open {
            true => self.rng.below(self.next_offset.len() as u64) as u32,
            false => id.0 % self.next_offset.len() as u32,
        };
        let req = self.request(id, object, now);
        policy.enqueue(now, &req);
    }
}

/// ns per step without a policy: the cost of the load itself.
fn overhead(queued: u64, open: bool, steps: u32) -> [f64; 3] {
    struct Nothing(Vec<RequestId>, usize);
    impl NrsPolicy for Nothing {
        fn enqueue(&mut self, _: Instant, req: &NrsRequest) {
            std::hint::black_box(req);
        }
        fn dequeue(&mut self, _: Instant) -> Option<RequestId> {
            self.1 = if self.1 + 1 == self.0.len() { 0 } else { self.1 + 1 };
            Some(self.0[self.1])
        }
        fn promote(&mut self, _: Instant, _: RequestId, _: Instant) -> bool {
            false
        }
        fn cancel(&mut self, _: RequestId) -> bool {
            false
        }
        fn drain(&mut self, _: &mut Vec<RequestId>) {}
        fn queued(&self) -> usize {
            0
        }
    }
    let mut ids: Vec<RequestId> = (0..queued as u32).map(RequestId).collect();
    Rng::new(1).shuffle(&mut ids);
    let mut nothing = Nothing(ids, 0);
    let mut load = Load::new(queued, open);
    load.fill(&mut nothing, Instant(1));
    time(&mut load, &mut nothing, steps)
}

/// CPU time of this thread in ns: what others do on the machine is not part of it.
fn cpu_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec that lives through the call, and nothing else is touched.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    assert_eq!(answer, 0, "the clock of the thread's CPU time is always there");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn time(load: &mut Load, policy: &mut dyn NrsPolicy, steps: u32) -> [f64; 3] {
    let mut now = Instant(1_000_000_000);
    let mut run = |steps: u32| {
        let began = cpu_ns();
        for _ in 0..steps {
            now = now + Duration::from_micros(2);
            load.step(policy, now);
        }
        (cpu_ns() - began) as f64 / f64::from(steps)
    };
    run(steps);
    let mut runs: Vec<f64> = (0..RUNS).map(|_| run(steps)).collect();
    runs.sort_by(f64::total_cmp);
    [runs[0], runs[RUNS / 2], runs[RUNS - 1]]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (only, load_only, queued_only) = (args.first(), args.get(1), args.get(2));
    let plain = registry().iter().map(|e| e.name.to_string());
    let wrapped = ["deadline+fifo", "deadline+obrr"].map(String::from);
    let mut config = NrsConfig::default();
    // Nothing may be throttled here: the clock of the load is faster than any disk.
    config.set("tbf_rules", "change default rate=1000000 depth=65535").expect("the rule is right");
    config.set("lambda", "1000").expect("lambda is in range");
    for name in plain.chain(wrapped).filter(|n| only.is_none_or(|o| o == n)) {
        for open in [false, true] {
            let load_name = if open { "open" } else { "closed" };
            for queued in [1_000u64, 10_000, 100_000, 800_000, 1_000_000] {
                if load_only.is_some_and(|o| o != load_name) || queued_only.is_some_and(|o| *o != queued.to_string()) {
                    continue;
                }
                let mut policy = build(&name, &config).expect("the name is in the registry");
                let mut load = Load::new(queued, open);
                load.fill(&mut *policy, Instant(1));
                let steps = 200_000;
                let gross = time(&mut load, &mut *policy, steps);
                let load_alone = overhead(queued, open, steps)[0];
                println!(
                    "{{\"bench\":\"nrs_enqueue_dequeue\",\"policy\":\"{name}\",\"load\":\"{load_name}\",\"queued\":{queued},\"objects\":{},\"n\":{RUNS},\"unit\":\"ns\",\"min\":{:.0},\"median\":{:.0},\"max\":{:.0},\"load_alone_min\":{load_alone:.0}}}",
                    OBJECTS.min(queued),
                    gross[0],
                    gross[1],
                    gross[2],
                );
            }
        }
    }
}
