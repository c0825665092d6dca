//! A create storm: many clients create files in one directory of one MDS.
//!
//! The MDS has service threads; operations on one directory share its lock for a part of their time; the journal commits
//! in groups. With `reply_before_commit` (the house rule) a reply leaves after the operation, else after its commit; what
//! clients would have to replay is bounded (`uncommitted_max`).
use crate::engine::EventQueue;
use crate::light::Progress;
use crate::metrics::{Histogram, Metrics, StateHash};
use crate::scenario::Params;
use std::collections::VecDeque;
use types::Rng;

/// What is simulated; times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CreateWorldConfig {
    seed: u64,
    clients: u32,
    files: u32,
    in_flight: u32,
    threads: u32,
    operation_ns: u64,
    locked_ns: u64,
    commit_ns: u64,
    group: u32,
    uncommitted_max: u32,
    reply_before_commit: bool,
    latency_ns: u64,
}

impl CreateWorldConfig {
    /// The world that `params` describe.
    #[must_use]
    pub fn from_params(p: &Params) -> CreateWorldConfig {
        let ns = |key: &str| (p.float(key) * 1e3) as u64;
        CreateWorldConfig {
            seed: p.int("seed"),
            clients: p.int("clients") as u32,
            files: p.int("create.files_per_client") as u32,
            in_flight: p.int("create.rpcs_in_flight") as u32,
            threads: p.int("mds.threads") as u32,
            operation_ns: ns("mds.operation_us"),
            locked_ns: ns("mds.locked_us"),
            commit_ns: ns("mds.commit_us"),
            group: p.int("mds.group_max") as u32,
            uncommitted_max: p.int("mds.uncommitted_max") as u32,
            reply_before_commit: p.flag("mds.reply_before_commit"),
            latency_ns: ns("net.latency_us"),
        }
    }
}

#[derive(Clone, Copy)]
enum Event {
    Arrive { client: u32 },
    Operated { client: u32 },
    Committed,
    Reply { client: u32 },
}

struct World<'a> {
    c: &'a CreateWorldConfig,
    queue: EventQueue<Event>,
    waiting: VecDeque<(u32, u64)>,
    busy: u32,
    directory_free: u64,
    uncommitted: VecDeque<u32>,
    committing: Vec<u32>,
    sent: Vec<VecDeque<u64>>,
    left: Vec<u32>,
    rng: Rng,
    times: Histogram,
    hash: StateHash,
    commits: u64,
    queue_max: usize,
}

/// Runs the storm: metrics, events, virtual nanoseconds, state hash.
pub fn run(c: &CreateWorldConfig, progress: &mut dyn FnMut(Progress)) -> (Metrics, u64, u64, u64) {
    let mut w = World {
        c,
        queue: EventQueue::new(),
        waiting: VecDeque::new(),
        busy: 0,
        directory_free: 0,
        uncommitted: VecDeque::new(),
        committing: Vec::new(),
        sent: vec![VecDeque::new(); c.clients as usize],
        left: vec![c.files; c.clients as usize],
        rng: Rng::named(c.seed, "mds"),
        times: Histogram::default(),
        hash: StateHash::default(),
        commits: 0,
        queue_max: 0,
    };
    for client in 0..c.clients {
        for _ in 0..c.in_flight {
            w.send(u64::from(client) * 1000, client);
        }
    }
    let all = u64::from(c.clients) * u64::from(c.files);
    let mut end = 0;
    while let Some((now, event)) = w.queue.pop() {
        match event {
            Event::Arrive { client } => {
                w.waiting.push_back((client, now));
                w.queue_max = w.queue_max.max(w.waiting.len());
                w.start(now);
            }
            Event::Operated { client } => w.on_operated(now, client),
            Event::Committed => w.on_committed(now),
            Event::Reply { client } => {
                let sent = w.sent[client as usize].pop_front().unwrap_or(now);
                w.times.record(now - sent);
                w.hash.event(now, 3, client, w.left[client as usize]);
                end = now;
                w.send(now, client);
            }
        }
        if w.queue.popped().is_multiple_of(65_536) {
            let share = w.times.count() as f64 / all as f64;
            progress(Progress { events: w.queue.popped(), virtual_ns: now, share });
        }
    }
    let mut m = Metrics::default();
    m.push("creates_per_s", "1/s", w.times.count() as f64 / (end.max(1) as f64 / 1e9));
    m.push("creates_per_commit", "creates", w.times.count() as f64 / w.commits.max(1) as f64);
    m.push("queue_max", "requests", w.queue_max as f64);
    m.push_times("create", &w.times);
    (m, w.queue.popped(), end, w.hash.0)
}

impl World<'_> {
    fn send(&mut self, at: u64, client: u32) {
        if self.left[client as usize] > 0 {
            self.left[client as usize] -= 1;
            self.sent[client as usize].push_back(at);
            self.queue.at(at + self.c.latency_ns, Event::Arrive { client });
        }
    }
    /// Gives waiting requests to idle threads. The directory's lock is held for a part of each operation.
    fn start(&mut self, now: u64) {
        while self.busy < self.c.threads && self.uncommitted.len() < self.c.uncommitted_max as usize {
            let Some((client, _)) = self.waiting.pop_front() else { return };
            self.busy += 1;
            let spread = self.rng.below(self.c.operation_ns / 4 + 1);
            let outside = self.c.operation_ns - self.c.operation_ns / 8 + spread;
            let locked = (now + outside).max(self.directory_free) + self.c.locked_ns;
            self.directory_free = locked;
            self.queue.at(locked, Event::Operated { client });
        }
    }
    fn on_operated(&mut self, now: u64, client: u32) {
        self.hash.event(now, 1, client, self.busy);
        self.busy -= 1;
        self.uncommitted.push_back(client);
        if self.c.reply_before_commit {
            self.queue.after(self.c.latency_ns, Event::Reply { client });
        }
        self.commit();
        self.start(now);
    }
    fn commit(&mut self) {
        if !self.committing.is_empty() || self.uncommitted.is_empty() {
            return;
        }
        let n = self.uncommitted.len().min(self.c.group as usize);
        self.committing.extend(self.uncommitted.drain(..n));
        self.commits += 1;
        self.queue.after(self.c.commit_ns, Event::Committed);
    }
    fn on_committed(&mut self, now: u64) {
        self.hash.event(now, 2, self.committing.len() as u32, 0);
        for client in core::mem::take(&mut self.committing) {
            if !self.c.reply_before_commit {
                self.queue.after(self.c.latency_ns, Event::Reply { client });
            }
        }
        self.commit();
        self.start(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(set: &[(&str, &str)]) -> Metrics {
        let mut p = Params::default();
        for (k, v) in [("clients", "64"), ("create.files_per_client", "100")].iter().chain(set) {
            p.set(k, v).unwrap();
        }
        run(&CreateWorldConfig::from_params(&p), &mut |_| {}).0
    }

    #[test]
    fn every_file_is_created_once() {
        assert_eq!(rate(&[]).get("requests.create"), Some(6400.0));
    }

    #[test]
    fn a_commit_per_create_limits_the_rate_to_what_the_journal_does() {
        let one = rate(&[("mds.group_max", "1"), ("mds.reply_before_commit", "false"), ("mds.commit_us", "500")]);
        let per_s = one.get("creates_per_s").unwrap();
        assert!((1900.0..=2000.0).contains(&per_s), "{per_s}");
        let grouped = rate(&[("mds.group_max", "64"), ("mds.reply_before_commit", "false"), ("mds.commit_us", "500")]);
        assert!(grouped.get("creates_per_s").unwrap() > 8.0 * per_s);
    }
}
