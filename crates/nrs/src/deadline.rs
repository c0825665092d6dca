//! Two-level deadlines over any ordering policy: the order is the inner policy's until a deadline is due.
//!
//! The dynamic deadline bounds what reordering may cost anybody: `e = lambda x sum(s_i / bw_i)`, with `s_i` the bytes
//! queued and in service of record-size window `i` (the request's own included) and `bw_i` the bandwidth that the store
//! reaches with such records. A new expiry below the newest queued one is raised to it, so expiries are a FIFO queue. The
//! mandatory deadline is the client's maximum service time, for write-out that a lock callback waits for.
//!
//! Who is next: a mandatory deadline that is due, earliest first; a dynamic one that is due; an urgent request within the
//! urgent budget (`obrr+`); whoever the inner policy names. In mode `expiry` a deadline is due when it has passed, as the
//! paper prints it. In mode `drain` a mandatory one is due earlier by the drain estimate: how long a request stays in
//! service, as observed, plus the time that the other urgent requests need.
//!
//! Serving an overdue request alone costs a seek, and when the bandwidth table promises too much all requests become
//! overdue and the order is lost. `obrr+` therefore lets the whole turn of the overdue request's object come next,
//! starting at that request.
//!
//! Over a policy that throttles, dynamic deadlines are off (they would defeat it) and mandatory ones override it.
//!
//! Source: paper 001, section on deadlines. Differs: mode `drain`, the budget and the turns for
//! overdue requests are ours.
use crate::{
    BW_WINDOWS, Counters, DeadlineMode, NrsConfig, NrsPolicy, NrsRequest, REQUEST_ID_LIMIT, Share, Taken,
    expiries::Expiries, prefetch::prefetch,
};
use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::{Duration, Instant, RequestId};

/// Seconds of the urgent budget that may be saved up.
const URGENT_BURST_S: u64 = 1;
const NS_PER_S: u64 = 1_000_000_000;

/// Most that one request counts in the sums, so that 2^26 of them fit: 137 s.
const COST_NS_MAX: u64 = 1 << 37;

/// Bits beside a request's cost: it is in service, ..
const IN_SERVICE: u64 = 1 << 62;
/// .. it has a mandatory deadline.
const URGENT: u64 = 1 << 61;
/// The cost of an id that is neither queued nor in service.
const FREE: u64 = u64::MAX;

/// What is kept of a request, as little as can be.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// `s / bw` of this request, at most [`COST_NS_MAX`], and the bits above; or [`FREE`].
    cost: u64,
    /// The low half of its place among the dynamic deadlines.
    place: u32,
    bytes: u32,
}

impl Entry {
    const fn cost_ns(self) -> u64 {
        self.cost & (2 * COST_NS_MAX - 1)
    }
    const fn is_queued(self) -> bool {
        self.cost != FREE && self.cost & IN_SERVICE == 0
    }
    const fn in_service(self) -> bool {
        self.cost != FREE && self.cost & IN_SERVICE != 0
    }
    const fn is_urgent(self) -> bool {
        self.cost & URGENT != 0
    }
}

/// A token bucket in bytes; it may go into debt by one request.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    bytes_per_s: u64,
    /// Tokens x ns per s, so that slow rates lose nothing to rounding.
    tokens: i128,
    filled_at: Instant,
}

impl Budget {
    fn fill(&mut self, now: Instant) {
        let passed_ns = now.0.saturating_sub(self.filled_at.0);
        let most = i128::from(self.bytes_per_s) * i128::from(URGENT_BURST_S * NS_PER_S);
        self.tokens = (self.tokens + i128::from(self.bytes_per_s) * i128::from(passed_ns)).min(most);
        self.filled_at = self.filled_at.max(now);
    }
    fn spend(&mut self, bytes: u32) {
        self.tokens -= i128::from(bytes) * i128::from(NS_PER_S);
    }
}

/// Which parts of the mechanism are on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flavour {
    /// `deadline+NAME`: as configured, no urgent budget.
    Configured,
    /// `deadline+NAME` over a policy that throttles: no dynamic deadlines.
    OverThrottle,
    /// `obrr+`: mode `drain` and the urgent budget.
    Early,
}

/// Deadlines over `inner`; see the module.
pub(crate) struct Deadline {
    inner: Box<dyn NrsPolicy>,
    flavour: Flavour,
    /// By request id.
    entries: Vec<Entry>,
    /// Queued requests.
    queued: usize,
    dynamic: Expiries,
    /// `(finish_by, place, id)` of queued requests that are urgent, ..
    mandatory: BTreeSet<(Instant, u64, u32)>,
    /// .. and `finish_by` by id.
    finish_by: HashMap<u32, Instant, FxBuildHasher>,
    /// Sum of `cost_ns` over everything queued and in service, ..
    outstanding_ns: u64,
    /// .. and over what is urgent and queued.
    urgent_ns: u64,
    /// How long requests stay in service: the greatest recent time, forgotten by 1/64 per completion.
    service_ns: u64,
    newest_expiry: Instant,
    /// Place of the overdue request whose turn the inner policy was told to let come next; 0 = none.
    hastened: u64,
    /// The inner policy named the request that was served last.
    served_inner: bool,
    budget: Budget,
    lambda: f64,
    bw_bytes_per_s: [u64; BW_WINDOWS],
    mode: DeadlineMode,
    fired: Counters,
}

impl Deadline {
    pub(crate) fn new(inner: Box<dyn NrsPolicy>, flavour: Flavour, config: &NrsConfig) -> Deadline {
        let mut policy = Deadline {
            inner,
            flavour,
            entries: Vec::new(),
            queued: 0,
            dynamic: Expiries::default(),
            mandatory: BTreeSet::new(),
            finish_by: HashMap::default(),
            outstanding_ns: 0,
            urgent_ns: 0,
            service_ns: 0,
            newest_expiry: Instant::ZERO,
            hastened: 0,
            served_inner: false,
            budget: Budget::default(),
            lambda: config.lambda,
            bw_bytes_per_s: config.bw_bytes_per_s,
            mode: config.deadline_mode,
            fired: Counters::default(),
        };
        policy.adopt(config);
        policy.budget.tokens = i128::from(policy.budget.bytes_per_s) * i128::from(URGENT_BURST_S * NS_PER_S);
        policy
    }

    fn adopt(&mut self, config: &NrsConfig) {
        self.lambda = config.lambda;
        self.bw_bytes_per_s = config.bw_bytes_per_s;
        let early = matches!(self.flavour, Flavour::Early);
        self.mode = if early { DeadlineMode::Drain } else { config.deadline_mode };
        self.budget.bytes_per_s = if early { config.urgent_bytes_per_s } else { 0 };
    }

    fn entry(&self, id: RequestId) -> Option<Entry> {
        self.entries.get(id.0 as usize).copied().filter(|entry| entry.cost != FREE)
    }

    /// Books a request out of the queue, as it was; it stays known while it is in service.
    fn unqueue(&mut self, id: RequestId, in_service: bool) -> Option<Entry> {
        let entry = self.entries.get_mut(id.0 as usize).filter(|entry| entry.is_queued())?;
        let old = *entry;
        entry.cost = if in_service { old.cost_ns() | IN_SERVICE } else { FREE };
        self.queued -= 1;
        let place = self.dynamic.place(old.place);
        self.dynamic.cross_out(place);
        if old.is_urgent() {
            let finish_by = self.finish_by.remove(&id.0).expect("what is urgent has a mandatory deadline");
            self.mandatory.remove(&(finish_by, place, id.0));
            self.urgent_ns -= old.cost_ns();
        }
        if !in_service {
            self.outstanding_ns -= old.cost_ns();
        }
        Some(old)
    }

    /// A request is not in service any more, if it was.
    fn forget_served(&mut self, id: RequestId) {
        if let Some(entry) = self.entries.get_mut(id.0 as usize).filter(|entry| entry.in_service()) {
            self.outstanding_ns -= entry.cost_ns();
            entry.cost = FREE;
        }
    }

    /// Serves `id` past the inner policy's order.
    fn serve(&mut self, id: RequestId) -> RequestId {
        assert!(self.inner.cancel(id), "a queued request is in the inner policy");
        let entry = self.unqueue(id, true).expect("a request with a due deadline is queued");
        if entry.is_urgent() {
            self.budget.spend(entry.bytes);
        }
        id
    }

    /// Lets the turn of the overdue first request come next, once; answers whether the inner policy takes care of it.
    fn hasten(&mut self, id: RequestId) -> bool {
        if !matches!(self.flavour, Flavour::Early) {
            return false;
        }
        let first = self.dynamic.first_place();
        if self.hastened != first {
            if !self.inner.hasten(id) {
                return false;
            }
            self.hastened = first;
            self.fired.dynamic_fired += 1;
        }
        true
    }

    /// When the earliest mandatory deadline is due.
    fn mandatory_due(&self) -> Option<Instant> {
        let (finish_by, _, _) = *self.mandatory.first()?;
        Some(match self.mode {
            DeadlineMode::Expiry => finish_by,
            DeadlineMode::Drain => {
                let observed = self.service_ns + self.service_ns / 4;
                Instant(finish_by.0.saturating_sub(observed).saturating_sub(self.urgent_ns))
            }
        })
    }

    fn has_dynamic(&self) -> bool {
        !matches!(self.flavour, Flavour::OverThrottle)
    }

    /// A queued request has to be complete by `finish_by`, if it had not to be earlier.
    fn make_urgent(&mut self, id: RequestId, finish_by: Instant) {
        if finish_by == Instant::MAX {
            return;
        }
        let entry = &mut self.entries[id.0 as usize];
        let place = self.dynamic.place(entry.place);
        match self.finish_by.insert(id.0, finish_by) {
            Some(earlier) if earlier <= finish_by => {
                self.finish_by.insert(id.0, earlier);
                return;
            }
            Some(later) => {
                self.mandatory.remove(&(later, place, id.0));
            }
            None => {
                entry.cost |= URGENT;
                self.urgent_ns += entry.cost_ns();
            }
        }
        self.mandatory.insert((finish_by, place, id.0));
    }

    /// Drops dynamic deadlines of requests that have left when they are the majority.
    fn compact(&mut self) {
        if self.dynamic.len() <= 2 * self.queued + 64 {
            return;
        }
        let entries = &mut self.entries;
        let mut urgent = Vec::new();
        self.dynamic.compact(|id, place, soon| {
            if let Some(soon) = soon {
                prefetch(&entries[soon.0 as usize]);
            }
            let entry = &mut entries[id.0 as usize];
            entry.place = place as u32;
            if entry.is_urgent() {
                urgent.push((id.0, place));
            }
        });
        let urgent = urgent.into_iter().map(|(id, place)| (self.finish_by[&id], place, id));
        self.mandatory = urgent.collect();
    }
}

impl NrsPolicy for Deadline {
    fn enqueue(&mut self, now: Instant, req: &NrsRequest) {
        let id = req.id;
        assert!(id.0 < REQUEST_ID_LIMIT, "request ids are slab keys below {REQUEST_ID_LIMIT}, got {}", id.0);
        if id.0 as usize >= self.entries.len() {
            self.entries.resize(id.0 as usize + 1, Entry { cost: FREE, place: 0, bytes: 0 });
        }
        self.forget_served(id);
        let bandwidth = self.bw_bytes_per_s[NrsConfig::window(u64::from(req.bytes))].max(1);
        // Below 2^62: fewer than 2^32 bytes times 10^9.
        let cost_ns = (u64::from(req.bytes) * NS_PER_S / bandwidth).min(COST_NS_MAX);
        self.outstanding_ns += cost_ns;
        let after_ns = (self.outstanding_ns as f64 * self.lambda) as u64;
        if self.queued == 0 {
            self.newest_expiry = Instant::ZERO;
        }
        let expiry = Instant(req.arrived.0.saturating_add(after_ns)).max(self.newest_expiry);
        self.newest_expiry = expiry;
        self.compact();
        let place = self.dynamic.push(expiry, id) as u32;
        let entry = &mut self.entries[id.0 as usize];
        assert!(entry.cost == FREE, "request {id} is queued twice");
        *entry = Entry { cost: cost_ns, place, bytes: req.bytes };
        self.queued += 1;
        if let Some(finish_by) = req.must_finish_by() {
            self.make_urgent(req.id, finish_by);
        }
        self.inner.enqueue(now, req);
    }

    fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        self.served_inner = false;
        if self.mandatory_due().is_some_and(|due| due <= now) {
            let (_, _, id) = *self.mandatory.first().expect("something mandatory is due");
            self.fired.mandatory_fired += 1;
            return Some(self.serve(RequestId(id)));
        }
        if let Some((expiry, id)) = self.dynamic.first()
            && expiry <= now
            && self.has_dynamic()
            && !self.hasten(id)
        {
            self.fired.dynamic_fired += 1;
            return Some(self.serve(id));
        }
        if self.budget.bytes_per_s > 0 {
            self.budget.fill(now);
            if let Some((_, _, id)) = self.mandatory.first().copied()
                && self.budget.tokens > 0
            {
                self.fired.urgent_served += 1;
                return Some(self.serve(RequestId(id)));
            }
        }
        let id = self.inner.dequeue(now)?;
        self.served_inner = true;
        if let Some(soon) = self.inner.likely_soon().and_then(|id| self.entries.get(id.0 as usize)) {
            prefetch(soon);
        }
        self.unqueue(id, true).expect("the inner policy holds what is queued here");
        Some(id)
    }

    fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool {
        if self.entry(id).is_none_or(Entry::in_service) {
            return false;
        }
        self.make_urgent(id, serve_by);
        self.inner.promote(now, id, serve_by)
    }

    fn cancel(&mut self, id: RequestId) -> bool {
        let cancelled = self.inner.cancel(id);
        if cancelled {
            self.unqueue(id, false).expect("the inner policy holds what is queued here");
        }
        cancelled
    }

    fn drain(&mut self, into: &mut Vec<RequestId>) {
        let from = into.len();
        self.inner.drain(into);
        for id in &into[from..] {
            self.unqueue(*id, false).expect("the inner policy holds what is queued here");
        }
        self.dynamic.clear();
    }

    fn on_complete(&mut self, now: Instant, id: RequestId, took: Duration) {
        self.forget_served(id);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        self.service_ns = took_ns.max(self.service_ns - self.service_ns / 64);
        self.inner.on_complete(now, id, took);
    }

    fn wakeup_at(&self) -> Option<Instant> {
        let inner = self.inner.wakeup_at()?;
        Some(self.mandatory_due().map_or(inner, |due| due.min(inner)))
    }

    /// What overrides a throttle takes nothing from its buckets.
    fn taken(&self) -> Option<Taken> {
        if self.served_inner { self.inner.taken() } else { None }
    }
    fn on_taken(&mut self, now: Instant, taken: &Taken) -> Option<Share> {
        self.inner.on_taken(now, taken)
    }
    fn on_shares(&mut self, now: Instant, taken: &Taken, others: &Share) {
        self.inner.on_shares(now, taken, others);
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn expiry(&self, id: RequestId) -> Option<Instant> {
        let entry = self.entry(id).filter(|entry| entry.is_queued() && self.has_dynamic())?;
        Some(self.dynamic.expiry(self.dynamic.place(entry.place)))
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        Counters {
            dynamic_fired: self.fired.dynamic_fired,
            mandatory_fired: self.fired.mandatory_fired,
            urgent_served: self.fired.urgent_served,
            ..inner
        }
    }

    fn reconfigure(&mut self, now: Instant, config: &NrsConfig) {
        self.adopt(config);
        self.inner.reconfigure(now, config);
    }
}
