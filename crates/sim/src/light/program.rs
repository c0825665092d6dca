//! Programs of light clients that read call by call: what they have in common, and how the world drives them.
//!
//! A program is one of two: a file read from front to back through the readahead room, or a mix of accesses.
use super::config::{LightConfig, Operation};
use super::flow::Flow;
use super::mixed::Mixed;
use super::reader::{ReadStats, Reader};
use super::world::{Event, World};
use crate::block_cache::push_hit_ratios;
use crate::metrics::{Histogram, Metrics};
use cache::Grain;

/// A call that is complete: the program is busy with its bytes now.
pub(super) struct Called {
    pub bytes: u64,
    /// When it was made.
    pub began: u64,
    /// Whose response times are kept.
    pub grain: Option<Grain>,
}

/// What completed calls of a mix took, until their bytes were consumed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Fine and coarse ones.
    pub response: [Histogram; 2],
    /// Bytes of all.
    pub bytes: u64,
    /// When the last one was complete.
    pub end: u64,
    /// Look-ups of the clients' caches.
    pub client_cache: cache::Stats,
    /// Look-ups of the OSTs' caches.
    pub ost_cache: cache::Stats,
}

impl Calls {
    /// Adds what another partition counted.
    pub(super) fn add(&mut self, other: &Calls) {
        for (mine, theirs) in self.response.iter_mut().zip(&other.response) {
            mine.add(theirs);
        }
        self.bytes += other.bytes;
        self.end = self.end.max(other.end);
        self.client_cache.add(&other.client_cache);
        self.ost_cache.add(&other.ost_cache);
    }
    /// Metrics of what there was, under the names of world `cache`.
    pub(super) fn push(&self, m: &mut Metrics) {
        let [fine, coarse] = &self.response;
        if self.bytes > 0 {
            m.push("bandwidth_mb_per_s", "MB/s (10^6)", self.bytes as f64 / self.end.max(1) as f64 * 1e3);
            m.push("fine_response_mean_ms", "ms", fine.mean() / 1e6);
            m.push_times("fine", fine);
            m.push_times("coarse", coarse);
        }
        for (of, stats) in [("client", &self.client_cache), ("ost", &self.ost_cache)] {
            if *stats != cache::Stats::default() {
                push_hit_ratios(m, of, stats);
            }
        }
    }
}

/// The program of one client.
pub(super) enum Program {
    Reader(Box<Reader>),
    Mixed(Box<Mixed>),
}

impl Program {
    /// The program that runs on `flow` while `operation` is carried out, if one does.
    pub fn of(config: &LightConfig, flow: &Flow, operation: Operation) -> Option<Program> {
        match (operation, &config.reading, config.mix) {
            _ if flow.urgent => None,
            (Operation::Mix, _, Some(mix)) => Some(Program::Mixed(Box::new(Mixed::new(config, mix, flow.client)))),
            (Operation::Read, Some(reading), _) => Some(Program::Reader(Box::new(Reader::new(config, reading)))),
            _ => None,
        }
    }
    /// What its reads have cost.
    pub fn stats(&self) -> ReadStats {
        match self {
            Program::Reader(reader) => reader.stats,
            Program::Mixed(mixed) => mixed.stats,
        }
    }
    /// Look-ups of its client's cache.
    pub fn cache_stats(&self) -> cache::Stats {
        match self {
            Program::Reader(reader) => reader.cache_stats(),
            Program::Mixed(mixed) => mixed.cache_stats(),
        }
    }
    fn go_on(&mut self, now: u64) -> Option<Called> {
        match self {
            Program::Reader(reader) => reader.go_on(now),
            Program::Mixed(mixed) => mixed.go_on(now),
        }
    }
    fn on_record(&mut self, now: u64, record: u32) -> bool {
        match self {
            Program::Reader(reader) => reader.on_record(record),
            Program::Mixed(mixed) => mixed.on_record(now, record),
        }
    }
    fn next(&mut self) -> Option<u32> {
        match self {
            Program::Reader(reader) => reader.next(),
            Program::Mixed(mixed) => mixed.next(),
        }
    }
}

impl World<'_> {
    /// Starts the program of flow `f`, when the phase has one for it; a mix goes on with what its cache holds.
    pub(super) fn begin_program(&mut self, f: u32, accesses: u32) -> bool {
        let flow = &mut self.flows[f as usize];
        if !self.programs.contains_key(&f) || self.operation != Operation::Mix {
            let Some(program) = Program::of(self.config, flow, self.operation) else { return false };
            self.programs.insert(f, program);
        }
        if let Some(Program::Mixed(mixed)) = self.programs.get_mut(&f) {
            mixed.begin(accesses);
        }
        if self.config.client_cache.is_some() || self.operation == Operation::Mix {
            // Records may come any number of times.
            flow.total = u32::MAX;
        }
        self.queue.at(flow.ost - self.first_ost, self.begin + flow.start, Event::Step { flow: f });
        true
    }

    pub(super) fn on_record(&mut self, now: u64, f: u32, rpc: u32) {
        self.flows[f as usize].in_flight -= 1;
        let program = self.programs.get_mut(&f).expect("only flows that read are told of records");
        if program.on_record(now, rpc) {
            self.on_step(now, f);
        } else {
            self.send_read(now, f);
        }
    }

    /// A program makes its next call; it takes a call's time to consume what came.
    pub(super) fn on_step(&mut self, now: u64, f: u32) {
        let program = self.programs.get_mut(&f).expect("only programs that read go on");
        if let Some(call) = program.go_on(now) {
            let records = call.bytes as f64 / self.config.transfer_bytes as f64;
            let until = now + (self.produce_ns * records) as u64;
            if let Some(grain) = call.grain {
                let calls = &mut self.stats.calls;
                calls.response[grain as usize].record(until - call.began);
                calls.bytes += call.bytes;
                calls.end = calls.end.max(until);
            }
            let ost = self.flows[f as usize].ost - self.first_ost;
            self.queue.at(ost, until, Event::Step { flow: f });
        }
        self.send_read(now, f);
    }

    fn send_read(&mut self, now: u64, f: u32) {
        let flow = &mut self.flows[f as usize];
        let program = self.programs.get_mut(&f).expect("only flows that read send for records");
        while flow.in_flight < flow.limit
            && let Some(rpc) = program.next()
        {
            flow.in_flight += 1;
            let at = now + self.config.latency_ns;
            self.queue.at(flow.ost - self.first_ost, at, Event::Arrive { flow: f, rpc });
        }
    }
}
