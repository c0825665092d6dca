//! The scheduler room: which queued bulk RPC does this OST serve next?
//!
//! A policy orders what it holds and nothing else: no clock, no I/O, no threads. The mechanism ([`Head`]) owns a policy
//! by name; the OST's [`Pipeline`], which an OSS and the simulator drive, decides how much a head holds back.
//!
//! Source: paper 001 (OBRR, two-level deadlines). Differs: throttling, policy switching and `obrr+` are ours.
//!
//! Code map: `head` `pipeline` (the mechanism) · `fifo` `obrr` `orr` `trr` `crrn` `deadline` `tbf` (policies; `rounds`, `rules`,
//! `bucket`, `shared` below them) · `auto` (chooses among them; `sample`, `shadow`, `verdict` below it) · `registry` `config` `params` `reference` (names, keys, pages) · [`conformance`] [`record`]
//! (what every policy must do; logs of calls) · `index` `chain` `links` `places` `sorted` `groups` `waiting` `expiries` `later`
//! (tables that cost less than a microsecond at a million requests).
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod auto;
mod bucket;
mod chain;
mod config;
pub mod conformance;
mod crrn;
mod deadline;
mod expiries;
mod fifo;
mod groups;
mod head;
mod index;
mod later;
mod links;
mod obrr;
mod orr;
mod params;
mod pipeline;
mod places;
mod prefetch;
pub mod record;
mod reference;
mod registry;
mod request;
mod rounds;
mod rules;
mod sample;
mod shadow;
mod shared;
mod sorted;
mod tbf;
mod trr;
mod verdict;
mod waiting;

pub use config::{BW_WINDOWS, ConfigError, DeadlineMode, Key, NrsConfig, keys};
pub use head::{Head, HeadCounters, QueueFull};
pub use params::PARAMETERS;
pub use pipeline::{Job, Pipeline, PipelineCounters, Recorded, WINDOW_RANGE};
pub use reference::reference_markdown;
pub use registry::{DEADLINE_PREFIX, Facts, Medium, PolicyEntry, build, default_for, names, registry, under_deadlines};
pub use request::{IoOp, JobId, NrsRequest};
pub use rules::{DEFAULT_DEPTH, DEFAULT_RATE, Expr, RULES_MAX, Rule, TbfRules, Weights};
pub use shared::{Share, Taken};

use alloc::{string::String, vec::Vec};
use types::{Duration, Instant, RequestId};

/// Request ids are slab keys below this limit (2^26): policies keep tables indexed by them.
pub const REQUEST_ID_LIMIT: u32 = 1 << 26;

/// What a policy counts; zero where the policy has no such thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Turns given to objects, clients or targets.
    pub turns: u64,
    /// Requests served because their dynamic deadline had expired.
    pub dynamic_fired: u64,
    /// Requests served because their mandatory deadline was due.
    pub mandatory_fired: u64,
    /// Urgent requests served at once, within the urgent budget.
    pub urgent_served: u64,
    /// Answers "nothing now" while requests were queued.
    pub throttled: u64,
    /// `auto`: samples of requests that its candidates have served again.
    pub judged: u64,
    /// `auto`: changes to another candidate.
    pub chosen: u64,
}

impl Counters {
    /// The sums of both.
    pub(crate) fn plus(&self, b: &Counters) -> Counters {
        Counters {
            turns: self.turns + b.turns,
            dynamic_fired: self.dynamic_fired + b.dynamic_fired,
            mandatory_fired: self.mandatory_fired + b.mandatory_fired,
            urgent_served: self.urgent_served + b.urgent_served,
            throttled: self.throttled + b.throttled,
            judged: self.judged + b.judged,
            chosen: self.chosen + b.chosen,
        }
    }
}

/// Decides the order of one OST's queued bulk RPCs. A value: fed by calls, time is an argument, same calls same answers.
///
/// Life of an id: `enqueue` -> (`dequeue` -> `on_complete`) or `cancel` or `drain`; then the id may be reused. `now`
/// never goes back from one call to the next.
pub trait NrsPolicy: Send {
    /// Takes one request in. Its id is not queued and not in service.
    ///
    /// # Panics
    /// When the id is already queued, or not below [`REQUEST_ID_LIMIT`].
    fn enqueue(&mut self, now: Instant, req: &NrsRequest);
    /// The request to serve now: it leaves the policy. `None` when nothing is queued, or when everything queued is
    /// throttled and [`NrsPolicy::wakeup_at`] says until when.
    fn dequeue(&mut self, now: Instant) -> Option<RequestId>;
    /// The request became urgent: a lock callback waits for it and it should be complete by `serve_by`. Answers whether
    /// `id` is queued. A policy without deadlines may leave its order unchanged.
    fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool;
    /// Takes a request out without serving it: its client was evicted. Answers whether `id` was queued.
    fn cancel(&mut self, id: RequestId) -> bool;
    /// Takes everything out, appended to `into` in the order of arrival: the policy is being switched.
    fn drain(&mut self, into: &mut Vec<RequestId>);
    /// A dequeued request is complete, `took` after its dequeue. Called once per dequeued id before the id is reused.
    fn on_complete(&mut self, _now: Instant, _id: RequestId, _took: Duration) {}
    /// When to call `dequeue` again after it answered `None` with requests queued. Only throttling policies need it.
    fn wakeup_at(&self) -> Option<Instant> {
        None
    }
    /// What the request that `dequeue` answered last took from buckets of its server; `None`: nothing. Whoever drives
    /// several heads of one server tells the others.
    fn taken(&self) -> Option<Taken> {
        None
    }
    /// Another head of the server served a request that took this from the server's buckets. `None`: nothing is shared
    /// with it, and nothing has changed. [`NrsPolicy::wakeup_at`] may change, and a request may be ready that was not.
    fn on_taken(&mut self, _now: Instant, _taken: &Taken) -> Option<Share> {
        None
    }
    /// What the server's other heads answered, in sum, when they were told what the request took that was served last.
    fn on_shares(&mut self, _now: Instant, _taken: &Taken, _others: &Share) {}
    /// Requests held, not counting those in service.
    fn queued(&self) -> usize;
    /// A queued request is overdue: lets its turn come next, without breaking off the one under way. Answers whether the
    /// policy can do that and has; else whoever asks takes the request out and serves it alone.
    fn hasten(&mut self, _id: RequestId) -> bool {
        false
    }
    /// A guess at what one of the next calls of `dequeue` answers, the next or some ten later, for fetching what will be
    /// needed; it may be wrong, and cost nothing.
    fn likely_soon(&self) -> Option<RequestId> {
        None
    }
    /// The dynamic deadline of a queued request, where the policy gives one.
    fn expiry(&self, _id: RequestId) -> Option<Instant> {
        None
    }
    /// The policy whose order counts now, of one that chooses among others.
    fn in_use(&self) -> Option<&str> {
        None
    }
    /// What one that chooses among others decided lately and why, the latest first, a line each.
    fn explain(&self) -> String {
        String::new()
    }
    /// What it has counted since it was built.
    fn counters(&self) -> Counters {
        Counters::default()
    }
    /// Takes over new configuration values while requests are queued. Nothing queued is lost or served twice.
    fn reconfigure(&mut self, _now: Instant, _config: &NrsConfig) {}
}
