//! A token bucket of `tbf` and the class of requests that it is for.
//!
//! Buckets are kept as theoretical arrival times (GCRA), in integers: a request may go once the bucket's time, less what
//! it may save up, has come; serving moves the time on by 1/rate. What a bucket waits for follows from its times and its
//! rule's limits, so a class with its key and links is one cache line.
//!
//! Source: ITU-T I.371. Differs: a second bucket of the same kind for bytes.
use crate::{
    NrsRequest,
    chain::NIL,
    rules::{Named, Rule},
    shared::{DOUBLED_MAX, Share, Times},
};
use types::{Instant, MIB};

const NS_PER_S: u128 = 1_000_000_000;

/// Which bucket: index of the rule, and the request's values in the fields that the rule names, others 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ClassKey {
    pub(crate) client: u64,
    pub(crate) job: u64,
    pub(crate) uid: u32,
    pub(crate) rule: u16,
    pub(crate) op: u8,
}

impl ClassKey {
    /// The class of `req`, which falls under rule number `rule`, whose condition names `named`.
    pub(crate) fn of(rule: usize, named: Named, req: &NrsRequest) -> ClassKey {
        ClassKey {
            client: if named.client { req.client.0 } else { 0 },
            job: if named.job { req.job.0 } else { 0 },
            uid: if named.uid { req.uid } else { 0 },
            rule: u16::try_from(rule).expect("there are few rules"),
            op: if named.op { req.op as u8 } else { 0 },
        }
    }
    pub(crate) fn rule(&self) -> usize {
        usize::from(self.rule)
    }
    /// The same values under rule number `rule`.
    pub(crate) fn under(self, rule: usize) -> ClassKey {
        ClassKey { rule: u16::try_from(rule).expect("there are few rules"), ..self }
    }
}

/// Where a class is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nowhere: it is new, or was served and is about to be put somewhere.
    Served,
    /// May be served: hangs in the ring.
    Ready,
    /// Has requests and must wait until [`Class::ready_at`].
    Throttled,
    /// Has no requests; is forgotten when it would be full again, at [`Class::full_at`].
    Refilling,
}

/// A bucket, and the requests that wait for it.
#[derive(Debug)]
pub(crate) struct Class {
    /// First and last request; the last one counts only if there is a first.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) times: Times,
    pub(crate) place: Place,
    /// So many others go first, and how often the wait for them was doubled; see `shared`.
    turns: u8,
    doubled: u8,
}

impl Class {
    /// A class without requests whose bucket has these times.
    pub(crate) fn new(times: Times) -> Class {
        Class { head: NIL, tail: NIL, times, place: Place::Served, turns: 0, doubled: 0 }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }
    pub(crate) fn ready_at(&self, limits: &Limits) -> Instant {
        let requests = self.times.requests_ns.saturating_sub(limits.request_burst_ns);
        let bytes = self.times.bytes_ns.saturating_sub(limits.bytes_burst_ns);
        if self.turns == 0 {
            return Instant(requests.max(bytes));
        }
        let requests = requests.saturating_add(self.hold_back_ns(limits.request_ns, limits.request_burst_ns));
        let bytes = bytes.saturating_add(self.hold_back_ns(limits.bytes_unit_ns, limits.bytes_burst_ns));
        Instant(requests.max(bytes))
    }
    pub(crate) fn full_at(&self) -> Instant {
        Instant(self.times.requests_ns.max(self.times.bytes_ns))
    }
    /// What it waits for.
    pub(crate) fn waits_until(&self, limits: &Limits) -> Instant {
        if self.is_empty() { self.full_at() } else { self.ready_at(limits) }
    }
    pub(crate) fn charge(&mut self, now: Instant, limits: &Limits, bytes: u32) {
        if limits.request_ns > 0 {
            self.times.requests_ns = self.times.requests_ns.max(now.0).saturating_add(limits.request_ns);
        }
        if limits.bytes_per_s > 0 {
            let ns = Limits::bytes_ns(limits.bytes_per_s, u64::from(bytes));
            self.times.bytes_ns = self.times.bytes_ns.max(now.0).saturating_add(ns);
        }
    }

    /// It lets others go first.
    pub(crate) fn holds_back(&self) -> bool {
        self.turns > 0
    }
    /// How much later than the bucket lets it, so that a unit for each turn is left; the bucket saves `burst_ns` up.
    fn hold_back_ns(&self, unit_ns: u64, burst_ns: u64) -> u64 {
        let turns_ns = unit_ns.saturating_mul(u64::from(self.turns)).min(burst_ns.max(unit_ns));
        turns_ns.saturating_mul(1 << self.doubled.min(DOUBLED_MAX))
    }
    /// Another head had a turn.
    pub(crate) fn on_turn_elsewhere(&mut self) {
        (self.turns, self.doubled) = (self.turns.saturating_sub(1), 0);
    }
    /// This head had a turn, `out_of_turn` or not, and the others answered.
    pub(crate) fn on_turn_here(&mut self, out_of_turn: bool, others: &Share) {
        self.turns = u8::try_from(others.waiting).unwrap_or(u8::MAX);
        self.doubled = match out_of_turn && self.turns > 0 {
            true => self.doubled.saturating_add(u8::from(others.out)).min(DOUBLED_MAX),
            false => 0,
        };
    }
}

/// A rule's limits as times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// ns per request; 0 = not limited.
    pub(crate) request_ns: u64,
    request_burst_ns: u64,
    /// Bytes per second; 0 = not limited.
    pub(crate) bytes_per_s: u64,
    bytes_burst_ns: u64,
    /// ns for 1 MiB.
    bytes_unit_ns: u64,
    /// What its classes are told apart by.
    pub(crate) named: Named,
}

impl Limits {
    pub(crate) fn of(rule: &Rule) -> Limits {
        let request_ns = rule.rate.map_or(0, |rate| NS_PER_S as u64 / u64::from(rate));
        let bytes_per_s = rule.bytes_per_s.unwrap_or(0);
        let depth = u64::from(rule.depth);
        Limits {
            request_ns,
            request_burst_ns: request_ns * (depth - 1),
            bytes_per_s,
            bytes_burst_ns: Self::bytes_ns(bytes_per_s, (depth - 1) * MIB),
            bytes_unit_ns: Self::bytes_ns(bytes_per_s, MIB),
            named: rule.when.named(),
        }
    }
    fn bytes_ns(bytes_per_s: u64, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * NS_PER_S).checked_div(u128::from(bytes_per_s)).unwrap_or(0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}
