//! The head: one OST's queue. It owns a policy by name, switches it under load, keeps the limit and the counters, and
//! records what happens. An OSS and the simulator drive a head, never a policy.
//!
//! Switching drains the old policy in the order of arrival and enqueues everything into the new one. Nothing is lost;
//! mandatory deadlines, promotions included, stay as promised; dynamic deadlines are measured from the arrival and so
//! never move later. What a head does not know: bytes, connections, the store, and how many requests may be in service
//! at a time (the dispatch window is the OST pipeline's).
use crate::{
    ConfigError, Counters, NrsConfig, NrsPolicy, NrsRequest, Share, Taken,
    record::{self, Call},
};
use alloc::{
    boxed::Box,
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::record::Tape;
use types::{Duration, Instant, RequestId};

/// Builds policies by their names, as [`crate::build`] does.
pub(crate) type Builder = fn(&str, &NrsConfig) -> Result<Box<dyn NrsPolicy>, ConfigError>;

/// The head holds as many requests as it may: the client should be told to come again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueFull {
    /// The limit that was reached.
    pub queue_max: u32,
}

impl fmt::Display for QueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the scheduler holds {} requests, its limit (queue_max)", self.queue_max)
    }
}
impl core::error::Error for QueueFull {}

/// What a head counts, from its start on, over all policies that it had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeadCounters {
    /// Requests taken in.
    pub enqueued: u64,
    /// Requests given out to be served.
    pub dequeued: u64,
    /// Requests taken out unserved.
    pub cancelled: u64,
    /// Requests that became urgent while queued.
    pub promoted: u64,
    /// Requests refused because of `queue_max`.
    pub refused: u64,
    /// Times that it was told what another head of its server took from buckets that they share.
    pub told: u64,
    /// Changes of policy.
    pub switched: u64,
    /// Most requests ever held.
    pub queued_max: u64,
    /// The sums of the policies' own counters.
    pub policy: Counters,
}

/// One OST's queue; see the module.
pub struct Head {
    policy: Box<dyn NrsPolicy>,
    name: String,
    config: NrsConfig,
    build: Builder,
    /// Deadlines given by promotion to requests that are still queued: few, and looked up by id only.
    promoted: HashMap<RequestId, Instant, FxBuildHasher>,
    in_service: usize,
    counters: HeadCounters,
    /// Requests that policies served which are not in use any more, by name.
    served: BTreeMap<String, u64>,
    /// Requests served before the policy in use was.
    served_before: u64,
    tape: Tape,
    /// In service since before the recording began: the recorded policy never had them.
    before_record: Vec<RequestId>,
}

impl Head {
    /// An empty head with a policy; `build` builds others by their names.
    pub(crate) fn made(name: &str, policy: Box<dyn NrsPolicy>, config: NrsConfig, build: Builder) -> Head {
        Head {
            policy,
            name: name.to_string(),
            config,
            build,
            promoted: HashMap::default(),
            in_service: 0,
            counters: HeadCounters::default(),
            served: BTreeMap::new(),
            served_before: 0,
            tape: Tape::default(),
            before_record: Vec::new(),
        }
    }

    /// Takes one request in.
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was taken in.
    ///
    /// # Panics
    /// When its id is already queued.
    pub fn enqueue(&mut self, now: Instant, req: &NrsRequest) -> Result<(), QueueFull> {
        let queue_max = self.config.queue_max;
        if self.policy.queued() >= queue_max as usize {
            self.counters.refused += 1;
            return Err(QueueFull { queue_max });
        }
        self.note(|| Call::Enqueue { now, req: *req });
        self.policy.enqueue(now, req);
        self.counters.enqueued += 1;
        self.counters.queued_max = self.counters.queued_max.max(self.policy.queued() as u64);
        Ok(())
    }

    /// The request to serve now; `None` when nothing is queued, or all is throttled until [`Head::wakeup_at`].
    pub fn dequeue(&mut self, now: Instant) -> Option<RequestId> {
        let answer = self.policy.dequeue(now);
        self.note(|| Call::Dequeue { now, answer });
        let id = answer?;
        if !self.promoted.is_empty() {
            self.promoted.remove(&id);
        }
        self.counters.dequeued += 1;
        self.in_service += 1;
        Some(id)
    }

    /// What the request that [`Head::dequeue`] answered last took from buckets of its server: to be told to the server's
    /// other heads ([`Head::on_taken`]), and their answers to this one ([`Head::on_shares`]).
    #[must_use]
    pub fn taken(&self) -> Option<Taken> {
        self.policy.taken()
    }
    /// Another head of the server served a request; call [`Head::dequeue`] afterwards. `None`: nothing is shared with it.
    pub fn on_taken(&mut self, now: Instant, taken: &Taken) -> Option<Share> {
        let answer = self.policy.on_taken(now, taken)?;
        self.counters.told += 1;
        self.note(|| Call::Taken { now, taken: *taken, answer });
        Some(answer)
    }
    /// The sum of what the server's other heads answered about the request served last, as it `taken` said.
    pub fn on_shares(&mut self, now: Instant, taken: &Taken, others: &Share) {
        self.note(|| Call::Shares { now, taken: *taken, others: *others });
        self.policy.on_shares(now, taken, others);
    }

    /// A lock callback waits for the request; it should be complete by `serve_by`. Answers whether it is queued.
    pub fn promote(&mut self, now: Instant, id: RequestId, serve_by: Instant) -> bool {
        let answer = self.policy.promote(now, id, serve_by);
        self.note(|| Call::Promote { now, id, serve_by, answer });
        if answer {
            let kept = self.promoted.entry(id).or_insert(serve_by);
            *kept = (*kept).min(serve_by);
            self.counters.promoted += 1;
        }
        answer
    }

    /// Takes a request out unserved; answers whether it was queued.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let answer = self.policy.cancel(id);
        self.note(|| Call::Cancel { id, answer });
        if answer {
            self.promoted.remove(&id);
            self.counters.cancelled += 1;
        }
        answer
    }

    /// A dequeued request is complete, `took` after its dequeue.
    pub fn on_complete(&mut self, now: Instant, id: RequestId, took: Duration) {
        self.in_service = self.in_service.saturating_sub(1);
        if let Some(at) = self.before_record.iter().position(|before| *before == id) {
            self.before_record.swap_remove(at);
            return;
        }
        self.note(|| Call::Complete { now, id, took });
        self.policy.on_complete(now, id, took);
    }

    /// Takes everything out, in the order of arrival: the target is being stopped.
    pub fn drain(&mut self) -> Vec<RequestId> {
        let mut ids = Vec::with_capacity(self.policy.queued());
        self.policy.drain(&mut ids);
        self.note(|| Call::Drain { answer: ids.clone() });
        self.promoted.clear();
        ids
    }

    /// Changes to the policy called `name` while requests are queued. `request` looks a queued request up; the pipeline
    /// has it anyway. A change to the policy that is in use builds it afresh.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPolicy`]: the policy in use goes on.
    pub fn switch(
        &mut self,
        now: Instant,
        name: &str,
        request: &mut dyn FnMut(RequestId) -> NrsRequest,
    ) -> Result<(), ConfigError> {
        let policy = (self.build)(name, &self.config)?;
        self.note(|| Call::Switch { now, name: name.to_string() });
        let old = core::mem::replace(&mut self.policy, policy);
        let before = core::mem::replace(&mut self.name, name.to_string());
        let served = self.counters.dequeued - core::mem::replace(&mut self.served_before, self.counters.dequeued);
        *self.served.entry(before).or_default() += served;
        self.counters.switched += 1;
        self.counters.policy = self.counters.policy.plus(&old.counters());
        self.refill(now, old, request, false);
        Ok(())
    }

    /// Moves what `old` holds to the policy in use; `recorded`: as calls of their own, which a replay repeats.
    fn refill(
        &mut self,
        now: Instant,
        mut old: Box<dyn NrsPolicy>,
        request: &mut dyn FnMut(RequestId) -> NrsRequest,
        recorded: bool,
    ) {
        let mut ids = Vec::with_capacity(old.queued());
        old.drain(&mut ids);
        for id in &ids {
            let req = request(*id);
            assert_eq!(req.id, *id, "the pipeline looked another request up");
            self.policy.enqueue(now, &req);
            if recorded {
                self.note(|| Call::Enqueue { now, req });
            }
            if let Some(serve_by) = self.promoted.get(id).copied() {
                assert!(self.policy.promote(now, *id, serve_by), "the request was just enqueued");
                if recorded {
                    self.note(|| Call::Promote { now, id: *id, serve_by, answer: true });
                }
            }
        }
        assert_eq!(self.policy.queued(), ids.len(), "a switch neither loses nor invents requests");
    }

    /// Sets a configuration value while requests are queued.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing has changed then.
    pub fn set(&mut self, now: Instant, key: &str, value: &str) -> Result<(), ConfigError> {
        self.config.set(key, value)?;
        self.note(|| Call::Set { now, key: key.to_string(), value: value.to_string() });
        self.policy.reconfigure(now, &self.config);
        Ok(())
    }

    /// When to call [`Head::dequeue`] again after `None` with requests queued.
    #[must_use]
    pub fn wakeup_at(&self) -> Option<Instant> {
        self.policy.wakeup_at()
    }
    /// Requests held, not counting those in service.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.policy.queued()
    }
    /// Requests dequeued and not complete.
    #[must_use]
    pub fn in_service(&self) -> usize {
        self.in_service
    }
    /// Dynamic deadline of a queued request, where the policy gives one.
    #[must_use]
    pub fn expiry(&self, id: RequestId) -> Option<Instant> {
        self.policy.expiry(id)
    }
    /// Name of the policy in use.
    #[must_use]
    pub fn policy_name(&self) -> &str {
        &self.name
    }
    /// Name of the policy whose order counts now: of one that chooses among others the chosen one.
    #[must_use]
    pub fn in_use(&self) -> &str {
        self.policy.in_use().unwrap_or(&self.name)
    }
    /// What a policy that chooses among others decided lately, and why.
    #[must_use]
    pub fn explain(&self) -> String {
        self.policy.explain()
    }
    /// The configuration in use.
    #[must_use]
    pub fn config(&self) -> &NrsConfig {
        &self.config
    }
    /// Requests given out to be served, by the policy that chose them: every policy that was in use, in the order of names.
    #[must_use]
    pub fn served(&self) -> BTreeMap<String, u64> {
        let mut served = self.served.clone();
        *served.entry(self.name.clone()).or_default() += self.counters.dequeued - self.served_before;
        served
    }
    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> HeadCounters {
        HeadCounters { policy: self.counters.policy.plus(&self.policy.counters()), ..self.counters }
    }

    /// Starts to record calls and answers, up to `bytes_max` bytes, with a fresh policy, as the replay will have one.
    ///
    /// Answers whether recording started: the queue must be empty and the policy one of the registry.
    pub fn record(&mut self, bytes_max: usize) -> bool {
        if self.policy.queued() > 0 {
            return false;
        }
        let Ok(policy) = (self.build)(&self.name, &self.config) else { return false };
        let old = core::mem::replace(&mut self.policy, policy);
        self.counters.policy = self.counters.policy.plus(&old.counters());
        record::start(&mut self.tape, &self.name, &self.config, bytes_max);
        true
    }
    /// As [`Head::record`], while requests are queued and `in_service`: what is queued goes over to the fresh policy, as in
    /// a [`Head::switch`], and is the beginning of the log; what is in service is no part of it.
    pub fn record_running(
        &mut self,
        now: Instant,
        bytes_max: usize,
        in_service: Vec<RequestId>,
        request: &mut dyn FnMut(RequestId) -> NrsRequest,
    ) -> bool {
        let Ok(policy) = (self.build)(&self.name, &self.config) else { return false };
        let old = core::mem::replace(&mut self.policy, policy);
        self.counters.policy = self.counters.policy.plus(&old.counters());
        record::start(&mut self.tape, &self.name, &self.config, bytes_max);
        self.before_record = in_service;
        self.refill(now, old, request, true);
        true
    }
    /// Where it records.
    pub fn tape(&mut self) -> &mut Tape {
        &mut self.tape
    }
    /// Ends the recording and hands the log out; `None` when none was made.
    pub fn take_record(&mut self) -> Option<Vec<u8>> {
        self.tape.take().map(record::finish)
    }

    fn note(&mut self, call: impl FnOnce() -> Call) {
        self.tape.write(|out| record::put_record(out, &call()));
    }
}
