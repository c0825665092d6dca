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
};
use types::{Instant, MIB};

const NS_PER_S: u128 = 1_000_000_000;

/// Which bucket: index of the rule, and the request's values in the fields that the rule names, others 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ClassKey {
    client: u64,
    job: u64,
    uid: u32,
    rule: u16,
    op: u8,
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
    /// The bucket's time in requests and in bytes: it is full when both have passed.
    pub(crate) requests_ns: u64,
    pub(crate) bytes_ns: u64,
    pub(crate) place: Place,
}

impl Class {
    /// A class without requests whose bucket has these times.
    pub(crate) fn new(requests_ns: u64, bytes_ns: u64) -> Class {
        Class { head: NIL, tail: NIL, requests_ns, bytes_ns, place: Place::Served }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }
    pub(crate) fn ready_at(&self, limits: &Limits) -> Instant {
        let requests = self.requests_ns.saturating_sub(limits.request_burst_ns);
        let bytes = self.bytes_ns.saturating_sub(limits.bytes_burst_ns);
        Instant(requests.max(bytes))
    }
    pub(crate) fn full_at(&self) -> Instant {
        Instant(self.requests_ns.max(self.bytes_ns))
    }
    /// What it waits for.
    pub(crate) fn waits_until(&self, limits: &Limits) -> Instant {
        if self.is_empty() { self.full_at() } else { self.ready_at(limits) }
    }
    pub(crate) fn charge(&mut self, now: Instant, limits: &Limits, bytes: u32) {
        if limits.request_ns > 0 {
            self.requests_ns = self.requests_ns.max(now.0).saturating_add(limits.request_ns);
        }
        if limits.bytes_per_s > 0 {
            let ns = Limits::bytes_ns(limits.bytes_per_s, u64::from(bytes));
            self.bytes_ns = self.bytes_ns.max(now.0).saturating_add(ns);
        }
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
            named: rule.when.named(),
        }
    }
    fn bytes_ns(bytes_per_s: u64, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * NS_PER_S).checked_div(u128::from(bytes_per_s)).unwrap_or(0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}
