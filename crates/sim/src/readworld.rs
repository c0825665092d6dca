//! Paper 003's setting: readers on one client, files striped over OSTs, and the readahead room between them.
//!
//! The room decides what to fetch; here is what fetching costs: a reader that fetches for itself pays for issuing and
//! receiving in its own time, a pool of threads does it beside the readers. OSTs answer after a latency, at a rate, some
//! RPCs at a time; all bulk shares the client's NIC. Source: paper 003; rates are those of its two baselines.
use crate::engine::EventQueue;
use crate::light::Progress;
use crate::metrics::{Histogram, Metrics, StateHash};
use crate::path::{Fetch, FilePath};
use crate::scenario::Params;
use readahead::record::Call;
use readahead::{Budget, Config, Facts, Plan};
use types::{Extent, Rng};

/// Progress of a large read after which the room is asked again.
const PROGRESS_BYTES: u64 = 4 << 20;
const PAGE: u64 = types::PAGE_BYTES as u64;

/// In which order a reader reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Sequential,
    Stride,
    Backward,
    Interleaved,
    Random,
}

/// Streams of [`Order::Interleaved`].
const STREAMS: u64 = 4;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct ReadWorldConfig {
    seed: u64,
    policy: String,
    room: Config,
    readers: u32,
    pool_threads: u32,
    file_bytes: u64,
    io_bytes: u64,
    skip_bytes: u64,
    order: Order,
    stripe_bytes: u64,
    rpc_bytes: u64,
    osts: u32,
    ost_slots: u32,
    ost_latency_ns: u64,
    ost_ns_per_byte: f64,
    latency_ns: u64,
    nic_ns_per_byte: f64,
    copy_ns_per_byte: f64,
    receive_ns_per_byte: f64,
    call_ns: u64,
    issue_ns: u64,
}

impl ReadWorldConfig {
    /// The world that `params` describe.
    ///
    /// # Errors
    /// A sentence, when a key of the room is refused.
    pub fn from_params(p: &Params) -> Result<ReadWorldConfig, String> {
        let mut room = Config::default();
        for (key, value) in p.below("readahead.").filter(|(k, _)| *k != "policy") {
            room.set(key, value).map_err(|e| e.to_string())?;
        }
        let per_byte = |key: &str| 1e9 / (p.float(key) * 1e6);
        Ok(ReadWorldConfig {
            seed: p.int("seed"),
            policy: p.text("readahead.policy").to_string(),
            room,
            readers: p.int("reader.count") as u32,
            pool_threads: p.int("reader.pool_threads") as u32,
            file_bytes: p.size("workload.file_bytes"),
            io_bytes: p.size("reader.io_bytes"),
            skip_bytes: p.size("reader.skip_bytes"),
            order: match p.text("reader.order") {
                "stride" => Order::Stride,
                "backward" => Order::Backward,
                "interleaved" => Order::Interleaved,
                "random" => Order::Random,
                _ => Order::Sequential,
            },
            stripe_bytes: p.size("workload.stripe_bytes"),
            rpc_bytes: p.size("reader.rpc_bytes"),
            osts: p.int("reader.ost_count") as u32,
            ost_slots: p.int("reader.ost_slots") as u32,
            ost_latency_ns: (p.float("reader.ost_latency_us") * 1e3) as u64,
            ost_ns_per_byte: per_byte("reader.ost_mb_per_s"),
            latency_ns: (p.float("net.latency_us") * 1e3) as u64,
            nic_ns_per_byte: per_byte("reader.nic_mb_per_s"),
            copy_ns_per_byte: per_byte("reader.copy_mb_per_s"),
            receive_ns_per_byte: per_byte("reader.receive_mb_per_s"),
            call_ns: (p.float("reader.call_us") * 1e3) as u64,
            issue_ns: (p.float("reader.issue_us") * 1e3) as u64,
        })
    }
    fn facts(&self) -> Facts {
        Facts {
            file_size: self.file_bytes,
            stripe_size: self.stripe_bytes,
            rpc_bytes: self.rpc_bytes,
            lock: Extent::ALL,
        }
    }
    fn call_time(&self, bytes: u64) -> f64 {
        self.call_ns as f64 + bytes as f64 * self.copy_ns_per_byte
    }
    /// Bytes per second with everything in cache, or what the NIC carries.
    fn ceiling(&self) -> f64 {
        let cached = self.io_bytes as f64 / self.call_time(self.io_bytes) * 1e9 * f64::from(self.readers);
        cached.min(1e9 / self.nic_ns_per_byte)
    }
}

#[derive(Clone, Copy)]
enum Event {
    /// A reader goes on.
    Step { reader: u32 },
    /// An RPC reaches its OST.
    Serve { rpc: u32 },
    /// An OST has the bytes.
    Answer { rpc: u32 },
    /// They are in the client's memory and have been handled.
    Done { rpc: u32 },
}

#[derive(Clone, Copy)]
struct Rpc {
    reader: u32,
    fetch: Fetch,
    ost: u32,
    by_reader: bool,
}

struct Reader {
    path: FilePath,
    read: Extent,
    cursor: u64,
    count: u64,
    /// What has to be here before it goes on: its own part of the call, and what it fetches along with it.
    waits_for: Vec<Extent>,
    receives: u64,
    waited: bool,
    begun: u64,
    bytes: u64,
    end: u64,
    rng: Rng,
}

struct Ost {
    busy: u32,
    queue: std::collections::VecDeque<u32>,
    bus_free: u64,
}

struct World<'a> {
    c: &'a ReadWorldConfig,
    queue: EventQueue<Event>,
    readers: Vec<Reader>,
    rpcs: Vec<Rpc>,
    osts: Vec<Ost>,
    nic_free: u64,
    pool_free: Vec<u64>,
    budget: Budget,
    plan: Plan,
    hash: StateHash,
    times: Histogram,
    calls: [u64; 2],
    /// Bytes and nanoseconds of calls that found all (0) or waited (1), in the first and second half.
    halves: [[(u64, u64); 2]; 2],
    fetched: u64,
}

/// Runs the world: metrics, events, virtual nanoseconds, state hash.
///
/// # Errors
/// A sentence, when the policy does not exist.
pub fn run(c: &ReadWorldConfig, progress: &mut dyn FnMut(Progress)) -> Result<(Metrics, u64, u64, u64), String> {
    let mut readers = Vec::new();
    for i in 0..c.readers {
        readers.push(Reader {
            path: FilePath::new(&c.policy, &c.room, c.facts(), PAGE, [c.rpc_bytes, c.stripe_bytes])?,
            read: Extent::EMPTY,
            cursor: 0,
            count: 0,
            waits_for: Vec::new(),
            receives: 0,
            waited: false,
            begun: 0,
            bytes: 0,
            end: 0,
            rng: Rng::named(c.seed.wrapping_add(u64::from(i) << 32), "reader"),
        });
    }
    let ost = || Ost { busy: 0, queue: std::collections::VecDeque::new(), bus_free: 0 };
    let mut w = World {
        c,
        queue: EventQueue::new(),
        readers,
        rpcs: Vec::new(),
        osts: (0..c.osts).map(|_| ost()).collect(),
        nic_free: 0,
        pool_free: vec![0; c.pool_threads.max(1) as usize],
        budget: Budget::new(c.room.budget_bytes_max),
        plan: Plan::default(),
        hash: StateHash::default(),
        times: Histogram::default(),
        calls: [0; 2],
        halves: [[(0, 0); 2]; 2],
        fetched: 0,
    };
    for reader in 0..c.readers {
        w.queue.at(u64::from(reader) * 10_000, Event::Step { reader });
    }
    while let Some((now, event)) = w.queue.pop() {
        w.handle(now, event);
        if w.queue.popped().is_multiple_of(4096) {
            let done: u64 = w.readers.iter().map(|r| r.bytes).sum();
            let share = done as f64 / (c.file_bytes * u64::from(c.readers)) as f64;
            progress(Progress { events: w.queue.popped(), virtual_ns: now, share: share.min(1.0) });
        }
    }
    Ok((w.metrics(), w.queue.popped(), w.queue.now(), w.hash.0))
}

impl World<'_> {
    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Step { reader } => self.step(now, reader),
            Event::Serve { rpc } => {
                let ost = self.rpcs[rpc as usize].ost as usize;
                self.osts[ost].queue.push_back(rpc);
                self.start_service(now, ost);
            }
            Event::Answer { rpc } => self.on_answer(now, rpc),
            Event::Done { rpc } => self.on_done(now, rpc),
        }
    }

    /// The reader's next extent; `None` at the end.
    fn next_read(&mut self, reader: u32) -> Option<Extent> {
        let (c, r) = (self.c, &mut self.readers[reader as usize]);
        let n = r.count;
        r.count += 1;
        let start = match c.order {
            Order::Sequential => n * c.io_bytes,
            Order::Stride => n * (c.io_bytes + c.skip_bytes),
            Order::Backward => c.file_bytes.checked_sub((n + 1) * c.io_bytes)?,
            Order::Interleaved => {
                let part = c.file_bytes / STREAMS / c.io_bytes * c.io_bytes;
                let within = n / STREAMS * c.io_bytes;
                (within < part).then_some(n % STREAMS * part + within)?
            }
            Order::Random => {
                if n * c.io_bytes * 8 >= c.file_bytes {
                    return None;
                }
                r.rng.below(c.file_bytes / c.io_bytes) * c.io_bytes
            }
        };
        (start + c.io_bytes <= c.file_bytes).then(|| Extent::at(start, c.io_bytes))
    }

    /// A reader starts its next call, or goes on with a large one.
    fn step(&mut self, now: u64, reader: u32) {
        let mut t = now;
        let mut plan = core::mem::take(&mut self.plan);
        let r = &self.readers[reader as usize];
        let call = if r.cursor >= r.read.end {
            let Some(read) = self.next_read(reader) else {
                self.readers[reader as usize].end = now;
                self.plan = plan;
                return;
            };
            t += self.c.call_ns;
            let r = &mut self.readers[reader as usize];
            (r.read, r.cursor, r.begun, r.waited) = (read, read.start, now, false);
            Call::Read(read)
        } else {
            Call::Progress(Extent::new(r.read.start, r.cursor))
        };
        let r = &mut self.readers[reader as usize];
        r.path.tell(call, &mut self.budget, &mut plan);
        t = self.fetch_ahead(t, reader, &plan);
        let r = &mut self.readers[reader as usize];
        let chunk = Extent::new(r.cursor, r.read.end.min(r.cursor + PROGRESS_BYTES));
        let mut waits_for = Vec::new();
        if let Some(call) = r.path.wait(chunk) {
            waits_for.push(chunk);
            r.path.tell(call, &mut self.budget, &mut plan);
            t = self.fetch(t, reader, chunk, true);
            for extent in &plan.sync {
                t = self.fetch(t, reader, *extent, true);
                waits_for.push(*extent);
            }
            t = self.fetch_ahead(t, reader, &plan);
        }
        self.plan = plan;
        if waits_for.is_empty() {
            return self.hand_over(t, reader);
        }
        let r = &mut self.readers[reader as usize];
        (r.waits_for, r.waited) = (waits_for, true);
    }

    fn fetch_ahead(&mut self, mut t: u64, reader: u32, plan: &Plan) -> u64 {
        for extent in &plan.asynchronous {
            t = self.fetch(t, reader, *extent, plan.issued_by_reader);
        }
        t
    }

    /// Sends RPCs for what of `extent` is absent. Answers when the reader goes on.
    fn fetch(&mut self, mut t: u64, reader: u32, extent: Extent, by_reader: bool) -> u64 {
        let c = self.c;
        for fetch in self.readers[reader as usize].path.claim(extent) {
            let ost = ((fetch.extent.start / c.stripe_bytes + u64::from(reader)) % u64::from(c.osts)) as u32;
            let rpc = self.rpcs.len() as u32;
            self.rpcs.push(Rpc { reader, fetch, ost, by_reader });
            self.fetched += fetch.extent.len();
            // A pool thread issues beside the reader, which only queues the work.
            t += if by_reader { c.issue_ns } else { c.issue_ns / 10 };
            let issued = if by_reader { t } else { t + c.issue_ns };
            self.queue.at(issued + c.latency_ns, Event::Serve { rpc });
        }
        t
    }

    fn start_service(&mut self, now: u64, o: usize) {
        let c = self.c;
        while self.osts[o].busy < c.ost_slots {
            let Some(rpc) = self.osts[o].queue.pop_front() else { return };
            let ost = &mut self.osts[o];
            ost.busy += 1;
            let bytes = self.rpcs[rpc as usize].fetch.extent.len() as f64;
            ost.bus_free = ost.bus_free.max(now + c.ost_latency_ns) + (bytes * c.ost_ns_per_byte) as u64;
            self.queue.at(ost.bus_free, Event::Answer { rpc });
        }
    }

    fn on_answer(&mut self, now: u64, id: u32) {
        let c = self.c;
        let rpc = self.rpcs[id as usize];
        self.osts[rpc.ost as usize].busy -= 1;
        self.start_service(now, rpc.ost as usize);
        self.nic_free = self.nic_free.max(now) + (rpc.fetch.extent.len() as f64 * c.nic_ns_per_byte) as u64;
        let arrived = self.nic_free + c.latency_ns;
        let handling = (rpc.fetch.extent.len() as f64 * c.receive_ns_per_byte) as u64;
        if rpc.by_reader {
            return self.queue.at(arrived, Event::Done { rpc: id });
        }
        let free = self.pool_free.iter_mut().min();
        let done = free.map_or(arrived, |f| {
            *f = (*f).max(arrived) + handling;
            *f
        });
        self.queue.at(done, Event::Done { rpc: id });
    }

    fn on_done(&mut self, now: u64, id: u32) {
        let rpc = self.rpcs[id as usize];
        self.hash.event(now, 2, rpc.reader, id);
        let r = &mut self.readers[rpc.reader as usize];
        r.path.arrived(rpc.fetch);
        if rpc.by_reader {
            r.receives += rpc.fetch.extent.len();
        }
        if r.waits_for.is_empty() {
            return;
        }
        let path = &r.path;
        r.waits_for.retain(|extent| !path.is_here(*extent));
        if r.waits_for.is_empty() {
            self.hand_over(now, rpc.reader);
        }
    }

    /// Everything of the chunk is there at `t`: it is copied to the program.
    fn hand_over(&mut self, t: u64, reader: u32) {
        let c = self.c;
        let half = usize::from(self.readers[reader as usize].bytes * 2 > c.file_bytes);
        let r = &mut self.readers[reader as usize];
        let end = r.read.end.min(r.cursor + PROGRESS_BYTES);
        let bytes = end - r.cursor;
        // What the reader fetched for itself, ahead or not, it also receives in its own time.
        let receiving = core::mem::take(&mut r.receives) as f64 * c.receive_ns_per_byte;
        let t = t + (receiving + bytes as f64 * c.copy_ns_per_byte) as u64;
        r.cursor = end;
        r.bytes += bytes;
        if end == r.read.end {
            let took = t - r.begun;
            self.times.record(took);
            // The first tenth of a file is warm-up.
            if r.count * 10 * (c.io_bytes + if c.order == Order::Stride { c.skip_bytes } else { 0 }) > c.file_bytes {
                self.calls[usize::from(r.waited)] += 1;
            }
            let sum = &mut self.halves[half][usize::from(r.waited)];
            *sum = (sum.0 + r.read.len(), sum.1 + took);
            self.hash.event(t, 1, reader, (r.read.start >> 12) as u32);
        }
        self.queue.at(t, Event::Step { reader });
    }

    /// How far `1/speed = (1-m)/cache + m/noncache` with the first half's speeds misses the second half's speed, percent.
    fn model_error(&self) -> f64 {
        let [[hit, miss], [hit2, miss2]] = self.halves;
        let rate = |(bytes, ns): (u64, u64)| if bytes == 0 { 0.0 } else { ns as f64 / bytes as f64 };
        let all = (hit2.0 + miss2.0).max(1) as f64;
        let m = miss2.0 as f64 / all;
        let predicted = (1.0 - m) * rate(hit) + m * rate(miss);
        let measured = (hit2.1 + miss2.1) as f64 / all;
        if measured > 0.0 { (predicted / measured - 1.0).abs() * 100.0 } else { 0.0 }
    }

    fn metrics(&self) -> Metrics {
        let mut m = Metrics::default();
        let seconds = self.queue.now().max(1) as f64 / 1e9;
        let useful: u64 = self.readers.iter().map(|r| r.bytes).sum();
        let speed = useful as f64 / seconds;
        m.push("bandwidth_gb_per_s", "GB/s (10^9)", speed / 1e9);
        m.push("ceiling_gb_per_s", "GB/s (10^9)", self.c.ceiling() / 1e9);
        m.push("ceiling_share", "share", speed / self.c.ceiling());
        m.push("blocked_share", "share", self.calls[1] as f64 / (self.calls[0] + self.calls[1]).max(1) as f64);
        m.push("fetched_per_used", "ratio", self.fetched as f64 / useful.max(1) as f64);
        let used_pages = useful.max(self.times.count() * PAGE) as f64;
        m.push("fetched_per_used_pages", "ratio", self.fetched as f64 / used_pages);
        m.push("rpcs", "RPCs", self.rpcs.len() as f64);
        let rates: Vec<f64> = self.readers.iter().map(|r| r.bytes as f64 / r.end.max(1) as f64).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        m.push("slowest_reader_of_mean", "share", least / mean);
        m.push("model_error_percent", "percent", self.model_error());
        m.push_times("read", &self.times);
        m
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(set: &[(&str, &str)]) -> (Metrics, u64) {
        let mut p = Params::default();
        for (k, v) in [("workload.file_bytes", "64M"), ("reader.io_bytes", "64K")].iter().chain(set) {
            p.set(k, v).unwrap();
        }
        let (m, _, _, hash) = run(&ReadWorldConfig::from_params(&p).unwrap(), &mut |_| {}).unwrap();
        (m, hash)
    }

    #[test]
    fn every_byte_is_read_and_without_readahead_fetched_once() {
        let (m, _) = measure(&[("readahead.policy", "none")]);
        assert_eq!(m.get("fetched_per_used"), Some(1.0));
        assert_eq!(m.get("requests.read"), Some(1024.0));
        assert_eq!(m.get("blocked_share"), Some(1.0));
    }

    #[test]
    fn the_same_seed_gives_the_same_history() {
        let set = [("reader.order", "random"), ("reader.count", "3")];
        assert_eq!(measure(&set).1, measure(&set).1);
    }

    #[test]
    fn fetching_ahead_in_parallel_beats_fetching_on_a_miss() {
        let speed = |policy| measure(&[("readahead.policy", policy)]).0.get("bandwidth_gb_per_s").unwrap();
        let (none, miss, parallel) = (speed("none"), speed("miss"), speed("parallel"));
        assert!(none < miss && miss < parallel, "{none} {miss} {parallel}");
    }
}
