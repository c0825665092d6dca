//! Token bucket filter: classes of requests are held to rates in requests and in bytes per second.
//!
//! The first rule that matches puts a request into the bucket of its class: one bucket for every value of the fields that
//! the rule's condition names (`jobid={dd.0}`: one for the job; `*`: one per client). A bucket that may not go on is put
//! aside until the instant at which it may; buckets that may go on take turns. When all are aside, `dequeue` answers
//! `None` and `wakeup_at` says until when: nobody polls.
//!
//! Buckets are kept as theoretical arrival times (GCRA), in integers: a request may go once the bucket's time, less what
//! it may save up, has come; serving moves the time on by 1/rate. One bucket serves the whole head: a limit is a limit
//! per server, not per core.
//!
//! Source: Lustre's `tbf`, by its manual; ITU-T I.371 for the bucket. Differs: limits in bytes; see also `rules`.
use crate::{
    Counters, IoOp, JobId, NrsConfig, NrsPolicy, NrsRequest, TbfRules,
    chain::List,
    groups::Groups,
    rules::Rule,
    slots::{NIL, Slots},
};
use alloc::{collections::BTreeSet, vec::Vec};
use core::num::NonZeroU64;
use types::{ClientId, Instant, MIB, RequestId};

const NS_PER_S: u128 = 1_000_000_000;

/// Which bucket: index of the rule, and the request's values in the fields that the rule names.
type ClassKey = (u32, [u64; 4]);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// May be served: hangs in the ring.
    Ready,
    /// Has requests and must wait until then.
    Throttled(Instant),
    /// Has no requests; is forgotten then, when it would be full again.
    Refilling(Instant),
}

#[derive(Debug)]
struct Class {
    head: u32,
    tail: u32,
    place: Place,
    /// The bucket's time in requests and in bytes: it is full when both have passed.
    requests_ns: u64,
    bytes_ns: u64,
}

/// A queued request: what rules and charges are about, and nothing else, so that it fits into a cache line.
#[derive(Clone, Copy, Debug)]
struct Node {
    seq: NonZeroU64,
    class: u32,
    prev: u32,
    next: u32,
    bytes: u32,
    client: ClientId,
    job: JobId,
    uid: u32,
    op: IoOp,
}

impl Node {
    /// The request as rules see it.
    fn request(&self, id: RequestId) -> NrsRequest {
        let Node { bytes, client, job, uid, op, .. } = *self;
        NrsRequest { id, bytes, client, job, uid, op, ..NrsRequest::default() }
    }
}

/// A rule's limits as times.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// ns per request; 0 = not limited.
    request_ns: u64,
    request_burst_ns: u64,
    /// Bytes per second; 0 = not limited.
    bytes_per_s: u64,
    bytes_burst_ns: u64,
}

impl Limits {
    fn of(rule: &Rule) -> Limits {
        let request_ns = rule.rate.map_or(0, |rate| NS_PER_S as u64 / u64::from(rate));
        let bytes_per_s = rule.bytes_per_s.unwrap_or(0);
        let depth = u64::from(rule.depth);
        Limits {
            request_ns,
            request_burst_ns: request_ns * (depth - 1),
            bytes_per_s,
            bytes_burst_ns: Self::bytes_ns(bytes_per_s, (depth - 1) * MIB),
        }
    }
    fn bytes_ns(bytes_per_s: u64, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * NS_PER_S).checked_div(u128::from(bytes_per_s)).unwrap_or(0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

impl Class {
    fn ready_at(&self, limits: &Limits) -> Instant {
        let requests = self.requests_ns.saturating_sub(limits.request_burst_ns);
        let bytes = self.bytes_ns.saturating_sub(limits.bytes_burst_ns);
        Instant(requests.max(bytes))
    }
    fn full_at(&self) -> Instant {
        Instant(self.requests_ns.max(self.bytes_ns))
    }
    fn charge(&mut self, now: Instant, limits: &Limits, bytes: u32) {
        if limits.request_ns > 0 {
            self.requests_ns = self.requests_ns.max(now.0).saturating_add(limits.request_ns);
        }
        if limits.bytes_per_s > 0 {
            let ns = Limits::bytes_ns(limits.bytes_per_s, u64::from(bytes));
            self.bytes_ns = self.bytes_ns.max(now.0).saturating_add(ns);
        }
    }
}

/// Token buckets; see the module.
pub(crate) struct Tbf {
    rules: TbfRules,
    limits: Vec<Limits>,
    nodes: Slots<Node>,
    classes: Groups<ClassKey, Class>,
    ready: List,
    throttled: BTreeSet<(Instant, u32)>,
    refilling: BTreeSet<(Instant, u32)>,
    seq: NonZeroU64,
    throttled_count: u64,
}

impl Tbf {
    pub(crate) fn new(config: &NrsConfig) -> Tbf {
        let rules = config.tbf_rules.clone();
        Tbf {
            limits: rules.rules().iter().map(Limits::of).collect(),
            rules,
            nodes: Slots::default(),
            classes: Groups::default(),
            ready: List::default(),
            throttled: BTreeSet::new(),
            refilling: BTreeSet::new(),
            seq: NonZeroU64::MIN,
            throttled_count: 0,
        }
    }

    fn limits(&self, class: u32) -> Limits {
        self.limits[self.classes.key(class).0 as usize]
    }

    /// Fetches what the next two calls of `dequeue` will look at.
    fn prefetch(&self) {
        let Some(front) = self.ready.front() else { return };
        self.nodes.prefetch(RequestId(self.classes.get(front).head));
        if let Some(next) = self.classes.next(front) {
            self.classes.prefetch(next);
        }
    }

    /// Takes a class out of wherever it waits.
    fn displace(&mut self, class: u32) {
        match self.classes.get(class).place {
            Place::Ready => self.classes.unlink(&mut self.ready, class),
            Place::Throttled(at) => assert!(self.throttled.remove(&(at, class)), "a throttled class is in its set"),
            Place::Refilling(at) => assert!(self.refilling.remove(&(at, class)), "a refilling class is in its set"),
        }
    }

    /// Puts a class that is nowhere to where it belongs at `now`.
    fn place(&mut self, now: Instant, class: u32) {
        let limits = self.limits(class);
        let state = self.classes.get_mut(class);
        if state.head == NIL {
            let full_at = state.full_at();
            if full_at <= now {
                return self.classes.remove(class);
            }
            state.place = Place::Refilling(full_at);
            self.refilling.insert((full_at, class));
            return;
        }
        let ready_at = state.ready_at(&limits);
        if ready_at <= now {
            state.place = Place::Ready;
            self.classes.push_back(&mut self.ready, class);
        } else {
            state.place = Place::Throttled(ready_at);
            self.throttled.insert((ready_at, class));
        }
    }

    /// Brings classes whose time has come to where they belong.
    fn ripen(&mut self, now: Instant) {
        while let Some((at, class)) = self.throttled.first().copied()
            && at <= now
        {
            self.throttled.pop_first();
            self.place(now, class);
        }
        while let Some((at, class)) = self.refilling.first().copied()
            && at <= now
        {
            self.refilling.pop_first();
            self.classes.remove(class);
        }
    }

    fn link(&mut self, now: Instant, seq: NonZeroU64, req: &NrsRequest) {
        let rule = self.rules.find(req);
        let key = (u32::try_from(rule).expect("there are few rules"), self.rules.rules()[rule].when.class(req));
        let new = || Class { head: NIL, tail: NIL, place: Place::Ready, requests_ns: 0, bytes_ns: 0 };
        let (class, fresh) = self.classes.find_or_insert(key, new);
        let (was_empty, tail) = (self.classes.get(class).head == NIL, self.classes.get(class).tail);
        let NrsRequest { bytes, client, job, uid, op, .. } = *req;
        self.nodes.insert(req.id, Node { seq, class, prev: tail, next: NIL, bytes, client, job, uid, op });
        if was_empty && !fresh {
            self.displace(class);
        }
        let state = self.classes.get_mut(class);
        state.tail = req.id.0;
        match self.nodes.get_mut(RequestId(tail)) {
            Some(node) => node.next = req.id.0,
            None => state.head = req.id.0,
        }
        if was_empty {
            self.place(now, class);
        }
    }

    /// Takes a request out of its class's list.
    fn unlink(&mut self, id: RequestId) -> Option<Node> {
        let node = self.nodes.remove(id)?;
        let state = self.classes.get_mut(node.class);
        match self.nodes.get_mut(RequestId(node.prev)) {
            Some(prev) => prev.next = node.next,
            None => state.head = node.next,
        }
        match self.nodes.get_mut(RequestId(node.next)) {
            Some(next) => next.prev = node.prev,
            None => state.tail = node.prev,
        }
        Some(node)
    }

    /// Adopts new rules: every queued request falls under the rule that matches it now; a bucket whose rule stays keeps
    /// its debt, scaled to the new rate.
    fn adopt(&mut self, now: Instant, rules: &TbfRules) {
        let limits: Vec<Limits> = rules.rules().iter().map(Limits::of).collect();
        let renumbered: Vec<Option<usize>> = self
            .rules
            .rules()
            .iter()
            .map(|old| rules.rules().iter().position(|new| new.name == old.name && new.when == old.when))
            .collect();
        let mut debts = Vec::new();
        let waiting = self.throttled.iter().chain(self.refilling.iter()).map(|(_, class)| *class);
        let ready = core::iter::successors(self.ready.front(), |class| self.classes.next(*class));
        for class in waiting.chain(ready) {
            let (rule, values) = self.classes.key(class);
            let Some(new) = renumbered[rule as usize] else { continue };
            let (old, state) = (self.limits[rule as usize], self.classes.get(class));
            let scaled = |at_ns: u64, from: u64, to: u64| {
                let debt = u128::from(at_ns.saturating_sub(now.0)) * u128::from(from);
                let debt = debt.checked_div(u128::from(to)).unwrap_or(0);
                now.0.saturating_add(u64::try_from(debt).unwrap_or(u64::MAX))
            };
            let requests_ns = match old.request_ns {
                0 => now.0,
                ns => scaled(state.requests_ns, limits[new].request_ns, ns),
            };
            let bytes_ns = scaled(state.bytes_ns, old.bytes_per_s, limits[new].bytes_per_s);
            debts.push(((new as u32, values), requests_ns, bytes_ns));
        }
        let mut queued = Vec::new();
        for id in self.nodes.ids_in_order(|node| node.seq.get()) {
            queued.extend(self.nodes.remove(id).map(|node| (node.seq, node.request(id))));
        }
        (self.rules, self.limits) = (rules.clone(), limits);
        (self.classes, self.ready) = (Groups::default(), List::default());
        (self.throttled, self.refilling) = (BTreeSet::new(), BTreeSet::new());
        for (key, requests_ns, bytes_ns) in debts {
            let new = || Class { head: NIL, tail: NIL, place: Place::Ready, requests_ns, bytes_ns };
            let (class, _) = self.classes.find_or_insert(key, new);
            self.place(now, class);
        }
        for (seq, req) in queued {
            self.link(now, seq, &req);
        }
    }
}

impl NrsPolicy for Tbf {
    fn enqueue(&mut self, now: Instant, req: &NrsRequest) {
        self.link(now, self.seq, req);
        self.seq = self.seq.saturating_add(1);
    }

    fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        self.ripen(now);
        let Some(class) = self.ready.front() else {
            if self.nodes.len() > 0 {
                self.throttled_count += 1;
            }
            return None;
        };
        let id = RequestId(self.classes.get(class).head);
        let node = self.unlink(id).expect("a ready class has requests");
        self.displace(class);
        let limits = self.limits(class);
        self.classes.get_mut(class).charge(now, &limits, node.bytes);
        self.place(now, class);
        self.prefetch();
        Some(id)
    }

    fn promote(&mut self, _now: Instant, id: RequestId, _serve_by: Instant) -> bool {
        self.nodes.get(id).is_some()
    }

    fn cancel(&mut self, id: RequestId) -> bool {
        let Some(node) = self.unlink(id) else { return false };
        if self.classes.get(node.class).head == NIL {
            self.displace(node.class);
            // Without a clock here, a class that is full already is found out by the next dequeue.
            self.place(Instant::ZERO, node.class);
        }
        true
    }

    fn drain(&mut self, into: &mut Vec<RequestId>) {
        let from = into.len();
        into.extend(self.nodes.ids_in_order(|node| node.seq.get()));
        for id in &into[from..] {
            self.cancel(*id);
        }
    }

    fn wakeup_at(&self) -> Option<Instant> {
        if self.ready.front().is_some() { None } else { self.throttled.first().map(|(at, _)| *at) }
    }

    fn queued(&self) -> usize {
        self.nodes.len()
    }

    fn counters(&self) -> Counters {
        Counters { throttled: self.throttled_count, ..Counters::default() }
    }

    fn reconfigure(&mut self, now: Instant, config: &NrsConfig) {
        if config.tbf_rules != self.rules {
            self.adopt(now, &config.tbf_rules);
        }
    }
}
