//! One OST's request pipeline as a synchronous state machine: scheduler head, dispatch window, who is in service.
//!
//! A scheduler reorders only what it holds back, so the pipeline hands at most `window` requests to the store at a time
//! and refills on completion. It knows no store, bytes or connections; time is an argument. A server's OST and the
//! simulator's drive this same type; each keeps what it wants to know of a request in it, its job.
//! Source: paper 001 section 3 (service threads). Differs: the window is explicit and can be changed while it runs.
use crate::{ConfigError, Head, NrsConfig, NrsRequest, QueueFull, Share, Taken, record};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use types::latency::Latency;
use types::record::{Recordable, Recording, Tape};
use types::{Duration, Instant, RequestId};

/// Smallest and largest dispatch window.
pub const WINDOW_RANGE: core::ops::RangeInclusive<u32> = 1..=1024;

/// What a pipeline's owner keeps of a request while it is queued or in service.
pub trait Job: Copy {
    /// When the OST received it.
    fn arrived(&self) -> Instant;
    /// The instant by which it must be complete, if it has a mandatory deadline.
    fn must_finish_by(&self) -> Option<Instant>;
}

impl Job for NrsRequest {
    fn arrived(&self) -> Instant {
        self.arrived
    }
    fn must_finish_by(&self) -> Option<Instant> {
        NrsRequest::must_finish_by(self)
    }
}

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
    /// Sum of the times between dispatch and completion, ns.
    pub served_ns: u64,
    /// Most requests in service at a time.
    pub in_service_max: u32,
}

/// `dispatched` of a job that is queued, ..
const QUEUED: Instant = Instant::MAX;
/// .. and of a slot without one.
const FREE: Instant = Instant(u64::MAX - 1);

#[derive(Clone, Copy)]
struct Slot<J> {
    dispatched: Instant,
    job: J,
}

/// See the module's head.
pub struct Pipeline<J = NrsRequest> {
    head: Head,
    /// By request id; a freed one is the next to be used.
    slots: Vec<Slot<J>>,
    free: Vec<u32>,
    window: u32,
    in_service: u32,
    counters: PipelineCounters,
    waits: Latency,
}

impl<J: Job> Pipeline<J> {
    /// An empty pipeline with policy `policy` and a dispatch window of `window` requests.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPolicy`].
    ///
    /// # Panics
    /// When `window` is outside [`WINDOW_RANGE`].
    pub fn new(policy: &str, config: NrsConfig, window: u32) -> Result<Pipeline<J>, ConfigError> {
        Ok(Pipeline::with_head(Head::new(policy, config)?, window))
    }
    /// An empty pipeline with a head, which is empty, and a dispatch window of `window` requests.
    ///
    /// # Panics
    /// When `window` is outside [`WINDOW_RANGE`].
    #[must_use]
    pub fn with_head(head: Head, window: u32) -> Pipeline<J> {
        assert!(WINDOW_RANGE.contains(&window), "a dispatch window of {window} is outside {WINDOW_RANGE:?}");
        let (slots, free) = (Vec::new(), Vec::new());
        let counters = PipelineCounters::default();
        Pipeline { head, slots, free, window, in_service: 0, counters, waits: Latency::default() }
    }

    /// A request arrived; its id is given here, and `job` makes what is kept of it. Call [`Pipeline::next_dispatch`]
    /// afterwards.
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was taken in, the client should come again.
    pub fn on_arrival(
        &mut self,
        now: Instant,
        request: NrsRequest,
        job: impl FnOnce(&NrsRequest) -> J,
    ) -> Result<RequestId, QueueFull> {
        let next = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        let request = NrsRequest { id: RequestId(next), ..request };
        self.head.enqueue(now, &request)?;
        let slot = Slot { dispatched: QUEUED, job: job(&request) };
        match self.free.pop() {
            Some(at) => self.slots[at as usize] = slot,
            None => self.slots.push(slot),
        }
        self.counters.arrived += 1;
        self.counters.urgent += u64::from(request.max_service.is_some());
        Ok(request.id)
    }

    /// The request to hand to the store now; call until `None`.
    #[inline]
    pub fn next_dispatch(&mut self, now: Instant) -> Option<RequestId> {
        if self.in_service >= self.window || self.head.queued() == 0 {
            return None;
        }
        let id = self.head.dequeue(now)?;
        let slot = &mut self.slots[id.0 as usize];
        assert!(slot.dispatched == QUEUED, "a request is dispatched once");
        slot.dispatched = now;
        self.in_service += 1;
        self.counters.dispatched += 1;
        self.waits.add(Duration::from_nanos(now.0.saturating_sub(slot.job.arrived().0)));
        self.counters.in_service_max = self.counters.in_service_max.max(self.in_service);
        Some(id)
    }

    /// What the request that [`Pipeline::next_dispatch`] answered last took from buckets of its server: whoever drives
    /// several pipelines of one server calls [`Pipeline::share`] then.
    #[inline]
    #[must_use]
    pub fn taken(&self) -> Option<Taken> {
        self.head.taken()
    }
    /// Tells the server's other pipelines, of which `each` calls its argument with every one, what the request took that
    /// was dispatched last, and this one what they answered. Call [`Pipeline::next_dispatch`] of those for which the
    /// argument answered true.
    pub fn share(&mut self, now: Instant, taken: &Taken, each: impl FnOnce(&mut dyn FnMut(&mut Pipeline<J>) -> bool)) {
        let mut others = Share::default();
        each(&mut |other| {
            let answer = other.on_taken(now, taken);
            others.add(&answer.unwrap_or_default());
            answer.is_some()
        });
        self.on_shares(now, taken, &others);
    }
    /// For a driver that cannot reach all pipelines of a server at once: another one took. Call [`Pipeline::next_dispatch`]
    /// of this one afterwards. `None`: nothing is shared with it.
    pub fn on_taken(&mut self, now: Instant, taken: &Taken) -> Option<Share> {
        self.head.on_taken(now, taken)
    }
    /// The same: the sum of what all others answered to what this one took, not long ago.
    pub fn on_shares(&mut self, now: Instant, taken: &Taken, others: &Share) {
        if others.is_news_to(taken) {
            self.head.on_shares(now, taken, others);
        }
    }

    /// The store is through with a request. Call [`Pipeline::next_dispatch`] afterwards.
    ///
    /// # Panics
    /// When `id` is not in service.
    #[inline]
    pub fn on_completion(&mut self, now: Instant, id: RequestId) -> J {
        let Slot { dispatched, job } = self.slots[id.0 as usize];
        assert!(dispatched != QUEUED && dispatched != FREE, "only dispatched requests complete");
        self.release(id);
        let took_ns = now.0.saturating_sub(dispatched.0);
        self.in_service -= 1;
        self.counters.completed += 1;
        self.counters.served_ns += took_ns;
        self.counters.late += u64::from(job.must_finish_by().is_some_and(|by| now > by));
        self.head.on_complete(now, id, Duration::from_nanos(took_ns));
        job
    }

    fn release(&mut self, id: RequestId) {
        self.slots[id.0 as usize].dispatched = FREE;
        self.free.push(id.0);
    }

    /// A lock callback waits for a queued request: complete it by `serve_by`. Whether it was still queued.
    pub fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool {
        let queued = self.slots.get(id.0 as usize).is_some_and(|s| s.dispatched == QUEUED);
        let promoted = queued && self.head.promote(now, id, serve_by);
        self.counters.urgent += u64::from(promoted);
        promoted
    }

    /// Takes every queued request that `matches` out (its client was evicted); answers their ids.
    pub fn cancel(&mut self, matches: impl FnMut(&J) -> bool) -> Vec<RequestId> {
        let ids = self.queued_where(matches);
        for id in &ids {
            assert!(self.head.cancel(*id), "a request that was not dispatched is queued");
            self.release(*id);
        }
        self.counters.cancelled += ids.len() as u64;
        ids
    }

    /// Takes everything that is queued out, in the order of arrival: the target stops. What is in service stays so.
    pub fn drain(&mut self) -> Vec<(RequestId, J)> {
        let ids = self.head.drain();
        self.counters.cancelled += ids.len() as u64;
        let taken = ids.into_iter().map(|id| {
            self.release(id);
            (id, self.slots[id.0 as usize].job)
        });
        taken.collect()
    }

    /// Ids of the queued requests that `matches`, for promotion when a lock is called back.
    pub fn queued_where(&self, mut matches: impl FnMut(&J) -> bool) -> Vec<RequestId> {
        let queued = self.slots.iter().zip(0..).filter(|(slot, _)| slot.dispatched == QUEUED && matches(&slot.job));
        queued.map(|(_, id)| RequestId(id)).collect()
    }

    /// When a request in service was handed to the store.
    #[inline]
    #[must_use]
    pub fn dispatched(&self, id: RequestId) -> Instant {
        self.slots[id.0 as usize].dispatched
    }
    /// What is kept of a request that is queued or in service.
    #[inline]
    #[must_use]
    pub fn job(&self, id: RequestId) -> &J {
        &self.slots[id.0 as usize].job
    }
    /// The same, to be changed.
    #[inline]
    pub fn job_mut(&mut self, id: RequestId) -> &mut J {
        &mut self.slots[id.0 as usize].job
    }

    /// Changes the policy; queued requests are kept. `request` makes a job the request that it was.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPolicy`]; the policy in use goes on.
    pub fn switch(
        &mut self,
        now: Instant,
        policy: &str,
        request: impl Fn(&J) -> NrsRequest,
    ) -> Result<(), ConfigError> {
        let slots = &self.slots;
        self.head.switch(now, policy, &mut |id| NrsRequest { id, ..request(&slots[id.0 as usize].job) })
    }

    /// Sets one value of the scheduler's configuration.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing has changed then.
    pub fn set(&mut self, now: Instant, key: &str, value: &str) -> Result<(), ConfigError> {
        self.head.set(now, key, value)
    }

    /// The text of one of Lustre's parameters; see [`Head::get_param`].
    ///
    /// # Errors
    /// As there.
    pub fn get_param(&self, name: &str) -> Result<String, ConfigError> {
        self.head.get_param(name)
    }

    /// Sets one of Lustre's parameters, as [`Pipeline::switch`] and [`Pipeline::set`]; see [`Head::set_param`].
    ///
    /// # Errors
    /// [`ConfigError`]; nothing has changed then.
    pub fn set_param(
        &mut self,
        now: Instant,
        name: &str,
        value: &str,
        request: impl Fn(&J) -> NrsRequest,
    ) -> Result<(), ConfigError> {
        let slots = &self.slots;
        self.head.set_param(now, name, value, &mut |id| NrsRequest { id, ..request(&slots[id.0 as usize].job) })
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

    /// Starts to record what the scheduler is asked and answers, up to `bytes_max` bytes; see [`Head::record_running`].
    /// `request` makes a job the request that it was. Answers whether recording started: the policy must be one of the
    /// registry.
    pub fn record(&mut self, now: Instant, bytes_max: usize, request: impl Fn(&J) -> NrsRequest) -> bool {
        let slots = &self.slots;
        let serving = slots.iter().zip(0..).filter(|(slot, _)| slot.dispatched != QUEUED && slot.dispatched != FREE);
        let serving = serving.map(|(_, id)| RequestId(id)).collect();
        let mut look_up = |id: RequestId| NrsRequest { id, ..request(&slots[id.0 as usize].job) };
        self.head.record_running(now, bytes_max, serving, &mut look_up)
    }
    /// The recording as a parameter; `request` makes a job the request that it was.
    pub fn recorded<F: Fn(&J) -> NrsRequest>(&mut self, now: Instant, request: F) -> Recorded<'_, J, F> {
        Recorded { pipeline: self, now, request }
    }
    /// Ends the recording and hands the log out, for [`crate::record::replay`].
    pub fn take_record(&mut self) -> Option<Vec<u8>> {
        self.head.take_record()
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
    /// Times between arrival and dispatch.
    #[must_use]
    pub fn waits(&self) -> &Latency {
        &self.waits
    }
    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> PipelineCounters {
        self.counters
    }
}

/// See [`Pipeline::recorded`].
pub struct Recorded<'a, J, F> {
    pipeline: &'a mut Pipeline<J>,
    now: Instant,
    request: F,
}

impl<J: Job, F: Fn(&J) -> NrsRequest> Recordable for Recorded<'_, J, F> {
    fn tape(&mut self) -> &mut Tape {
        self.pipeline.head.tape()
    }
    fn begin(&mut self, bytes_max: usize) -> Result<(), String> {
        let begun = self.pipeline.record(self.now, bytes_max, &self.request);
        begun.then_some(()).ok_or_else(|| "the policy in use is none of the registry: it cannot be replayed".into())
    }
    fn replay(&self, recording: Recording) -> Result<u64, String> {
        record::replay(&record::finish(recording)).map(|r| r.calls).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use types::{ClientId, Extent, ObjectId, OstIndex, Rng};

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
        let mut p = Pipeline::<NrsRequest>::new(policy, NrsConfig::default(), 4).unwrap();
        let (mut queued, mut served) = (BTreeMap::new(), BTreeSet::new());
        let names: Vec<&str> = crate::registry().iter().map(|e| e.name).collect();
        let mut now = Instant(1);
        for step in 0..4000 {
            now = Instant(now.0 + rng.below(2_000_000));
            if step == 1000 {
                assert!(p.record(now, 1 << 20, |r| *r), "{policy}");
            }
            match rng.below(100) {
                0..50 => {
                    let client = rng.below(5) + 1;
                    let id =
                        p.on_arrival(now, request(client, rng.below(7) as u32 + 1, rng.below(99) << 12, now), |r| *r);
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
                92..94 => p.switch(now, names[rng.below(names.len() as u64) as usize], |r| *r).unwrap(),
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
        let replayed =
            crate::record::replay(&p.take_record().expect("it was recorded")).expect("the answers are the same");
        assert!(replayed.calls > 4000 && !replayed.truncated, "{replayed:?}");
        let c = p.counters();
        assert_eq!(c.arrived, c.completed + c.cancelled + (p.queued() as u64) + u64::from(p.in_service()));
    }

    #[test]
    fn nothing_is_lost_served_twice_or_left_waiting_under_any_policy() {
        for (i, e) in crate::registry().iter().enumerate() {
            conformance(e.name, i as u64 + 7);
        }
    }

    #[test]
    fn at_most_a_window_of_requests_is_in_service_and_a_completion_refills_it() {
        let mut p = Pipeline::<NrsRequest>::new("fifo", NrsConfig::default(), 2).unwrap();
        let now = Instant(5);
        let ids: Vec<_> = (0..4).map(|i| p.on_arrival(now, request(1, 1, i << 12, now), |r| *r).unwrap()).collect();
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
        assert_eq!((p.waits().count(), p.waits().sum()), (4, Duration::from_nanos(8)));
    }
}
