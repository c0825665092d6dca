//! One OST's request pipeline as a synchronous state machine: scheduler head, dispatch window, who is in service.
//!
//! An NRS reorders only what it holds back, so the pipeline hands at most `window` requests to the store at a time and
//! refills on completion. It knows no store, bytes or connections; time is an argument. The OST's driver and the
//! simulator drive this same type.
//! Source: paper 001 section 3 (service threads). Differs: the window is explicit and can be changed while it runs.
use nrs::{ConfigError, Head, NrsConfig, NrsRequest};
use slab::Slab;
use types::{ClientId, Duration, Instant, RequestId};

/// Smallest and largest dispatch window.
pub const WINDOW_RANGE: std::ops::RangeInclusive<u32> = 1..=1024;

/// What a pipeline counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PipelineCounters {
    /// Requests that arrived and were taken in.
    pub arrived: u64,
    /// Requests handed to the store.
    pub dispatched: u64,
    /// Requests completed.
    pub completed: u64,
    /// Requests taken out before they were dispatched.
    pub cancelled: u64,
    /// Requests that became urgent, at arrival or later.
    pub urgent: u64,
    /// Requests with a mandatory deadline that completed after it.
    pub late: u64,
    /// Sum of the times between arrival and dispatch, ns.
    pub waited_ns: u64,
    /// Sum of the times between dispatch and completion, ns.
    pub served_ns: u64,
    /// Most requests in service at a time.
    pub in_service_max: u32,
}

struct Job {
    request: NrsRequest,
    dispatched: Option<Instant>,
}

/// See the module's head.
pub struct Pipeline {
    head: Head,
    jobs: Slab<Job>,
    window: u32,
    in_service: u32,
    counters: PipelineCounters,
}

impl Pipeline {
    /// An empty pipeline with policy `policy` and a dispatch window of `window` requests.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPolicy`].
    ///
    /// # Panics
    /// When `window` is outside [`WINDOW_RANGE`].
    pub fn new(policy: &str, config: NrsConfig, window: u32) -> Result<Pipeline, ConfigError> {
        assert!(WINDOW_RANGE.contains(&window), "a dispatch window of {window} is outside {WINDOW_RANGE:?}");
        let head = Head::new(policy, config)?;
        Ok(Pipeline { head, jobs: Slab::new(), window, in_service: 0, counters: PipelineCounters::default() })
    }

    /// A request arrived; `request.id` is given here. Call [`Pipeline::next_dispatch`] afterwards. `None`: the head is
    /// full, the client should come again.
    pub fn on_arrival(&mut self, now: Instant, request: NrsRequest) -> Option<RequestId> {
        let entry = self.jobs.vacant_entry();
        let id = RequestId(entry.key() as u32);
        let request = NrsRequest { id, ..request };
        self.head.enqueue(now, &request).ok()?;
        entry.insert(Job { request, dispatched: None });
        self.counters.arrived += 1;
        self.counters.urgent += u64::from(request.max_service.is_some());
        Some(id)
    }

    /// The request to hand to the store now; call until `None`.
    pub fn next_dispatch(&mut self, now: Instant) -> Option<RequestId> {
        if self.in_service >= self.window || self.head.queued() == 0 {
            return None;
        }
        let id = self.head.dequeue(now)?;
        let job = self.jobs.get_mut(id.0 as usize).expect("the head gives out what it was given");
        assert!(job.dispatched.is_none(), "a request is dispatched once");
        job.dispatched = Some(now);
        self.in_service += 1;
        self.counters.dispatched += 1;
        self.counters.waited_ns += as_ns(now.since(job.request.arrived));
        self.counters.in_service_max = self.counters.in_service_max.max(self.in_service);
        Some(id)
    }

    /// The store is through with a request. Call [`Pipeline::next_dispatch`] afterwards.
    ///
    /// # Panics
    /// When `id` is not in service.
    pub fn on_completion(&mut self, now: Instant, id: RequestId) -> NrsRequest {
        let job = self.jobs.remove(id.0 as usize);
        let dispatched = job.dispatched.expect("only dispatched requests complete");
        let took = now.since(dispatched);
        self.in_service -= 1;
        self.counters.completed += 1;
        self.counters.served_ns += as_ns(took);
        self.counters.late += u64::from(job.request.must_finish_by().is_some_and(|by| now > by));
        self.head.on_complete(now, id, took);
        job.request
    }

    /// A lock callback waits for a queued request: complete it by `serve_by`. Whether it was still queued.
    pub fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool {
        let queued = self.jobs.get(id.0 as usize).is_some_and(|j| j.dispatched.is_none());
        let promoted = queued && self.head.promote(now, id, serve_by);
        self.counters.urgent += u64::from(promoted);
        promoted
    }

    /// Takes every queued request that `matches` out (its client was evicted, the target stops); answers their ids.
    pub fn cancel(&mut self, mut matches: impl FnMut(&NrsRequest) -> bool) -> Vec<RequestId> {
        let waits = |j: &Job| j.dispatched.is_none();
        let ids: Vec<RequestId> = self
            .jobs
            .iter()
            .filter(|(_, j)| waits(j) && matches(&j.request))
            .map(|(i, _)| RequestId(i as u32))
            .collect();
        for id in &ids {
            assert!(self.head.cancel(*id), "a request that was not dispatched is queued");
            self.jobs.remove(id.0 as usize);
        }
        self.counters.cancelled += ids.len() as u64;
        ids
    }

    /// Queued requests of a client on an object, for promotion when its lock is called back.
    #[must_use]
    pub fn queued_of(&self, client: ClientId, object: types::ObjectId) -> Vec<RequestId> {
        let of = |j: &Job| j.dispatched.is_none() && j.request.client == client && j.request.object == object;
        self.jobs.iter().filter(|(_, j)| of(j)).map(|(i, _)| RequestId(i as u32)).collect()
    }

    /// Changes the policy; queued requests are kept.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPolicy`]; the policy in use goes on.
    pub fn switch(&mut self, now: Instant, policy: &str) -> Result<(), ConfigError> {
        let jobs = &self.jobs;
        self.head.switch(now, policy, &mut |id| jobs[id.0 as usize].request)
    }

    /// Sets one value of the scheduler's configuration.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing has changed then.
    pub fn set(&mut self, now: Instant, key: &str, value: &str) -> Result<(), ConfigError> {
        self.head.set(now, key, value)
    }

    /// Sets the dispatch window. Call [`Pipeline::next_dispatch`] afterwards.
    ///
    /// # Errors
    /// A sentence with the range.
    pub fn set_window(&mut self, window: u32) -> Result<(), String> {
        if !WINDOW_RANGE.contains(&window) {
            return Err(format!("a dispatch window of {window} is outside 1..=1024"));
        }
        self.window = window;
        Ok(())
    }

    /// The dispatch window.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window
    }
    /// Requests held back.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.head.queued()
    }
    /// Requests with the store.
    #[must_use]
    pub fn in_service(&self) -> u32 {
        self.in_service
    }
    /// When to call [`Pipeline::next_dispatch`] although nothing arrives or completes: all is throttled until then.
    #[must_use]
    pub fn wakeup_at(&self) -> Option<Instant> {
        if self.in_service >= self.window || self.head.queued() == 0 { None } else { self.head.wakeup_at() }
    }
    /// The scheduler head, for names, configuration and counters.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }
    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> PipelineCounters {
        self.counters
    }
}

fn as_ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use types::{Extent, ObjectId, OstIndex, Rng};

    fn request(client: u64, object: u32, at: u64, now: Instant) -> NrsRequest {
        NrsRequest {
            client: ClientId(client),
            object: ObjectId::new(OstIndex(0), object),
            bytes: 4096,
            extent: Extent::at(at, 4096),
            arrived: now,
            ..NrsRequest::default()
        }
    }

    /// Random arrivals, completions, cancels, switches and window changes against a set model.
    fn conformance(policy: &str, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut p = Pipeline::new(policy, NrsConfig::default(), 4).unwrap();
        let (mut queued, mut served) = (BTreeMap::new(), BTreeSet::new());
        let names: Vec<&str> = nrs::registry().iter().map(|e| e.name).collect();
        let mut now = Instant(1);
        for step in 0..4000 {
            now = Instant(now.0 + rng.below(2_000_000));
            match rng.below(100) {
                0..50 => {
                    let client = rng.below(5) + 1;
                    let id = p.on_arrival(now, request(client, rng.below(7) as u32 + 1, rng.below(99) << 12, now));
                    assert!(queued.insert(id.unwrap(), client).is_none());
                }
                50..90 => {
                    let nth = rng.below(served.len().max(1) as u64) as usize;
                    if let Some(id) = served.iter().nth(nth).copied() {
                        served.remove(&id);
                        assert_eq!(p.on_completion(now, id).id, id);
                    }
                }
                90..92 => {
                    let client = rng.below(5) + 1;
                    for id in p.cancel(|r| r.client.0 == client) {
                        assert_eq!(queued.remove(&id), Some(client));
                    }
                    assert!(queued.values().all(|c| *c != client));
                }
                92..94 => p.switch(now, names[rng.below(names.len() as u64) as usize]).unwrap(),
                94..96 => p.set_window(1 + rng.below(12) as u32).unwrap(),
                _ => {
                    if let Some(id) = queued.keys().next() {
                        assert!(p.promote(now, *id, now));
                    }
                }
            }
            while let Some(id) = p.next_dispatch(now) {
                assert!(queued.remove(&id).is_some(), "step {step}: dispatched what is not queued");
                assert!(served.insert(id));
                assert!(p.in_service() <= p.window());
            }
            assert_eq!((p.queued(), p.in_service() as usize), (queued.len(), served.len()));
            let idle = p.in_service() < p.window() && p.queued() > 0;
            assert!(!idle || p.wakeup_at().is_some(), "{policy}: idle with work and no wake-up");
        }
        let c = p.counters();
        assert_eq!(c.arrived, c.completed + c.cancelled + (p.queued() as u64) + u64::from(p.in_service()));
    }

    #[test]
    fn nothing_is_lost_served_twice_or_left_waiting_under_any_policy() {
        for (i, e) in nrs::registry().iter().enumerate() {
            conformance(e.name, i as u64 + 7);
        }
    }

    #[test]
    fn at_most_a_window_of_requests_is_in_service_and_a_completion_refills_it() {
        let mut p = Pipeline::new("fifo", NrsConfig::default(), 2).unwrap();
        let now = Instant(5);
        let ids: Vec<_> = (0..4).map(|i| p.on_arrival(now, request(1, 1, i << 12, now)).unwrap()).collect();
        assert_eq!(p.next_dispatch(now), Some(ids[0]));
        assert_eq!(p.next_dispatch(now), Some(ids[1]));
        assert_eq!(p.next_dispatch(now), None);
        p.on_completion(Instant(9), ids[1]);
        assert_eq!(p.next_dispatch(Instant(9)), Some(ids[2]));
        assert_eq!(p.next_dispatch(Instant(9)), None);
        p.set_window(3).unwrap();
        assert_eq!(p.next_dispatch(Instant(9)), Some(ids[3]));
        assert!(p.set_window(0).is_err() && p.set_window(1025).is_err());
        assert_eq!(p.counters().in_service_max, 3);
        assert_eq!(p.counters().served_ns, 4);
    }
}
