//! A policy from outside the tree: a file of its own and one entry. It passes the room's suite, alone and under deadlines, and
//! no other test has to know of it.
use std::collections::BTreeMap;

use nrs::{Facts, Medium, NrsConfig, NrsPolicy, NrsRequest, PolicyEntry, conformance, under_deadlines};
use types::{Instant, RequestId};

/// Requests that came next to each other, the smallest first: small ones do not wait for large ones that came just before.
#[derive(Default)]
struct SmallFirst {
    order: BTreeMap<(u64, u64, u64), RequestId>,
    keys: BTreeMap<RequestId, (u64, u64, u64)>,
    arrivals: u64,
}

const TOGETHER: u32 = 16;

const ENTRY: PolicyEntry = PolicyEntry {
    name: "small_first",
    summary: "Of 16 requests that came one after the other, the smallest first.",
    make: |_: &NrsConfig| Box::new(SmallFirst::default()),
    facts: Facts { medium: Medium::Any, throttles: false, own_deadlines: false, quantum: TOGETHER },
};

impl NrsPolicy for SmallFirst {
    fn enqueue(&mut self, _now: Instant, req: &NrsRequest) {
        let key = (self.arrivals / u64::from(TOGETHER), req.extent.len(), self.arrivals);
        self.arrivals += 1;
        assert!(self.keys.insert(req.id, key).is_none(), "{:?} is queued", req.id);
        self.order.insert(key, req.id);
    }
    fn dequeue(&mut self, _now: Instant) -> Option<RequestId> {
        let (_, id) = self.order.pop_first()?;
        self.keys.remove(&id);
        Some(id)
    }
    fn promote(&mut self, _now: Instant, id: RequestId, _serve_by: Instant) -> bool {
        self.keys.contains_key(&id)
    }
    fn cancel(&mut self, id: RequestId) -> bool {
        self.keys.remove(&id).is_some_and(|key| self.order.remove(&key).is_some())
    }
    fn drain(&mut self, into: &mut Vec<RequestId>) {
        let mut all: Vec<_> = std::mem::take(&mut self.order).into_iter().collect();
        all.sort_by_key(|((_, _, arrival), _)| *arrival);
        into.extend(all.into_iter().map(|(_, id)| id));
        self.keys.clear();
    }
    fn queued(&self) -> usize {
        self.keys.len()
    }
}

#[test]
fn an_outsiders_policy_conforms_alone_and_under_deadlines() {
    let config = NrsConfig::default();
    conformance::check(&|| (ENTRY.make)(&config), ENTRY.facts.quantum, 200).unwrap_or_else(|v| panic!("{v}"));
    conformance::check(&|| under_deadlines(&ENTRY, &config), ENTRY.facts.quantum, 200)
        .unwrap_or_else(|v| panic!("under deadlines: {v}"));
    assert!(nrs::registry().find(ENTRY.name).is_err(), "it is an outsider's");
}
