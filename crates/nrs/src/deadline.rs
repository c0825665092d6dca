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
use crate::{BW_WINDOWS, Counters, DeadlineMode, NrsConfig, NrsPolicy, NrsRequest, slots::NIL, slots::Slots};
use alloc::{
    boxed::Box,
    collections::{BTreeSet, VecDeque},
    vec::Vec,
};
use core::num::NonZeroU64;
use types::{Duration, Instant, RequestId};

/// Seconds of the urgent budget that may be saved up.
const URGENT_BURST_S: u64 = 1;
const NS_PER_S: u64 = 1_000_000_000;

/// Most that one request counts in the sums, so that 2^26 of them fit: 137 s.
const COST_NS_MAX: u64 = 1 << 37;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Place in the queue of dynamic deadlines: counts arrivals.
    place: NonZeroU64,
    /// Mandatory deadline; [`Instant::MAX`] without one.
    finish_by: Instant,
    /// `s / bw` of this request, at most [`COST_NS_MAX`].
    cost_ns: u64,
    bytes: u32,
    in_service: bool,
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
    entries: Slots<Entry>,
    /// Queued requests.
    queued: usize,
    /// `(expiry, id)` in ascending order, [`NIL`] for requests that have left; the first one has place `first_place`.
    dynamic: VecDeque<(Instant, u32)>,
    first_place: u64,
    /// `(finish_by, place, id)` of queued requests that are urgent.
    mandatory: BTreeSet<(Instant, u64, u32)>,
    /// Sum of `cost_ns` over everything queued and in service, ..
    outstanding_ns: u64,
    /// .. and over what is urgent and queued.
    urgent_ns: u64,
    /// How long requests stay in service: the greatest recent time, forgotten by 1/64 per completion.
    service_ns: u64,
    newest_expiry: Instant,
    /// Place of the overdue request whose turn the inner policy was told to let come next; 0 = none.
    hastened: u64,
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
            entries: Slots::default(),
            queued: 0,
            dynamic: VecDeque::new(),
            mandatory: BTreeSet::new(),
            outstanding_ns: 0,
            urgent_ns: 0,
            service_ns: 0,
            newest_expiry: Instant::ZERO,
            hastened: 0,
            budget: Budget::default(),
            first_place: NonZeroU64::MIN.get(),
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

    /// Books a request out of the queue; it stays known while it is in service.
    fn unqueue(&mut self, id: RequestId, in_service: bool) -> Option<Entry> {
        let entry = self.entries.get_mut(id).filter(|e| !e.in_service)?;
        entry.in_service = true;
        let entry = *entry;
        self.queued -= 1;
        let index = self.index(&entry);
        self.dynamic[index].1 = NIL;
        if entry.finish_by != Instant::MAX {
            self.mandatory.remove(&(entry.finish_by, entry.place.get(), id.0));
            self.urgent_ns -= entry.cost_ns;
        }
        if !in_service {
            self.forget(id);
        }
        Some(entry)
    }

    fn forget(&mut self, id: RequestId) {
        if let Some(entry) = self.entries.remove(id) {
            self.outstanding_ns -= entry.cost_ns;
        }
    }

    /// Serves `id` past the inner policy's order.
    fn serve(&mut self, id: RequestId) -> RequestId {
        assert!(self.inner.cancel(id), "a queued request is in the inner policy");
        let entry = self.unqueue(id, true).expect("a request with a due deadline is queued");
        if entry.finish_by != Instant::MAX {
            self.budget.spend(entry.bytes);
        }
        id
    }

    /// Lets the turn of the overdue first request come next, once; answers whether the inner policy takes care of it.
    fn hasten(&mut self, id: RequestId) -> bool {
        if !matches!(self.flavour, Flavour::Early) {
            return false;
        }
        if self.hastened != self.first_place {
            if !self.inner.hasten(id) {
                return false;
            }
            self.hastened = self.first_place;
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

    /// Index of a queued request in the queue of dynamic deadlines.
    fn index(&self, entry: &Entry) -> usize {
        usize::try_from(entry.place.get() - self.first_place).expect("the queue fits into memory")
    }

    /// The oldest queued request by dynamic deadline, and that deadline.
    fn dynamic_first(&mut self) -> Option<(Instant, RequestId)> {
        while let Some((expiry, id)) = self.dynamic.front().copied() {
            if id != NIL {
                return Some((expiry, RequestId(id)));
            }
            self.dynamic.pop_front();
            self.first_place += 1;
        }
        None
    }

    fn has_dynamic(&self) -> bool {
        !matches!(self.flavour, Flavour::OverThrottle)
    }

    fn make_urgent(&mut self, id: RequestId, finish_by: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if finish_by >= entry.finish_by {
            return;
        }
        if entry.finish_by == Instant::MAX {
            self.urgent_ns += entry.cost_ns;
        } else {
            self.mandatory.remove(&(entry.finish_by, entry.place.get(), id.0));
        }
        entry.finish_by = finish_by;
        self.mandatory.insert((finish_by, entry.place.get(), id.0));
    }

    /// Appends a dynamic deadline and answers its place. Drops those of requests that have left when they are the
    /// majority.
    fn push_dynamic(&mut self, expiry: Instant, id: RequestId) -> NonZeroU64 {
        if self.dynamic.len() > 2 * self.queued + 64 {
            self.dynamic.retain(|(_, id)| *id != NIL);
            for (place, (_, id)) in (self.first_place..).zip(&self.dynamic) {
                let entry = self.entries.get_mut(RequestId(*id)).expect("it is queued");
                let finish_by = entry.finish_by;
                let new = NonZeroU64::new(place).expect("places count from 1");
                let old = core::mem::replace(&mut entry.place, new);
                if finish_by != Instant::MAX {
                    self.mandatory.remove(&(finish_by, old.get(), *id));
                    self.mandatory.insert((finish_by, place, *id));
                }
            }
        }
        let place = self.first_place + self.dynamic.len() as u64;
        self.dynamic.push_back((expiry, id.0));
        NonZeroU64::new(place).expect("places count from 1")
    }
}

impl NrsPolicy for Deadline {
    fn enqueue(&mut self, now: Instant, req: &NrsRequest) {
        if self.entries.get(req.id).is_some_and(|e| e.in_service) {
            self.forget(req.id);
        }
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
        let place = self.push_dynamic(expiry, req.id);
        let entry = Entry { place, finish_by: Instant::MAX, cost_ns, bytes: req.bytes, in_service: false };
        self.entries.insert(req.id, entry);
        self.queued += 1;
        if let Some(finish_by) = req.must_finish_by() {
            self.make_urgent(req.id, finish_by);
        }
        self.inner.enqueue(now, req);
    }

    fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        if self.mandatory_due().is_some_and(|due| due <= now) {
            let (_, _, id) = *self.mandatory.first().expect("something mandatory is due");
            self.fired.mandatory_fired += 1;
            return Some(self.serve(RequestId(id)));
        }
        if let Some((expiry, id)) = self.dynamic_first()
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
        if let Some(next) = self.inner.likely_soon() {
            self.entries.prefetch(next);
        }
        self.unqueue(id, true).expect("the inner policy holds what is queued here");
        Some(id)
    }

    fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool {
        if self.entries.get(id).is_none_or(|e| e.in_service) {
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
        self.first_place += self.dynamic.len() as u64;
        self.dynamic.clear();
    }

    fn on_complete(&mut self, now: Instant, id: RequestId, took: Duration) {
        if self.entries.get(id).is_some_and(|e| e.in_service) {
            self.forget(id);
        }
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        self.service_ns = took_ns.max(self.service_ns - self.service_ns / 64);
        self.inner.on_complete(now, id, took);
    }

    fn wakeup_at(&self) -> Option<Instant> {
        let inner = self.inner.wakeup_at()?;
        Some(self.mandatory_due().map_or(inner, |due| due.min(inner)))
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn expiry(&self, id: RequestId) -> Option<Instant> {
        let entry = self.entries.get(id).filter(|e| !e.in_service && self.has_dynamic())?;
        Some(self.dynamic[self.index(entry)].0)
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
