//! The light world's machine room: what each event does.
//!
//! Requests live in the pipeline of their OST, the very type that servers run.
use super::config::{Credits, LightConfig, Operation, Urgent};
use super::flow::Flow;
use super::lanes::Lanes;
use super::ost::{Blocks, Ost, Request, expiry};
use super::program::Program;
use super::stats::{Stats, keep_max};
use crate::block_cache::BlockCache;
use devices::Access;
use nrs::{IoOp, JobId, NrsConfig, NrsRequest};
use std::collections::BTreeMap;
use types::{ClientId, Duration, Extent, Instant, ObjectId, OstIndex, RequestId};

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A request reaches its OST.
    Arrive { flow: u32, rpc: u32 },
    /// A dispatched request has its bulk (write) or its blocks looked up (read), and goes to the store.
    Submit { ost: u32, req: u32 },
    /// The elevator's plug may be pulled.
    Timer { ost: u32 },
    /// A disk request is complete.
    Disk { ost: u32, slot: u32 },
    /// A read's bulk has left.
    Bulk { ost: u32, req: u32 },
    /// A throttling policy may have something.
    Wake { ost: u32 },
    /// A program that reads goes on.
    Step { flow: u32 },
    /// A record reaches a program that reads.
    Here { flow: u32, rpc: u32 },
    /// A reply that was lost reaches its client after all.
    Late { flow: u32, rpc: u32 },
    /// An OST goes down.
    Down { ost: u32, until: u64 },
}

/// A world, or the part of one that does not interact with the rest.
pub(super) struct World<'a> {
    pub(super) config: &'a LightConfig,
    pub queue: Lanes,
    pub flows: Vec<Flow>,
    pub osts: Vec<Ost>,
    /// Number of the first OST of this part.
    pub(super) first_ost: u32,
    /// When each client's NIC is free; only used where flows share a client.
    clients_nic: Vec<[u64; 2]>,
    /// When each OSS's NIC is free, in and out.
    oss_nic: Vec<[u64; 2]>,
    /// OSTs of the same OSS as one that took from a bucket: their requests may go on.
    told: Vec<u32>,
    pub stats: Stats,
    pub(super) operation: Operation,
    pub(super) begin: u64,
    /// When the switch is free, towards clients and towards OSTs.
    switch: [u64; 2],
    nic_ns: u64,
    switch_ns: u64,
    pub(super) produce_ns: f64,
    scratch: Vec<u32>,
    /// Of flows whose clients read call by call.
    pub(super) programs: BTreeMap<u32, Program>,
    /// When requests that had to be sent again were sent first.
    first_sent: BTreeMap<(u32, u32), u64>,
}

impl<'a> World<'a> {
    /// OSTs `first_ost..first_ost + osts` with `flows`, nothing scheduled yet.
    pub fn new(config: &'a LightConfig, first_ost: u32, osts: u32, flows: Vec<Flow>) -> World<'a> {
        let urgent = config.urgent.map_or(0, |u| u.clients);
        let clients = if config.stripe_count > 1 { (config.clients + urgent) as usize } else { flows.len() };
        World {
            queue: Lanes::new(osts / config.osts_per_oss, config.osts_per_oss, config.shares_network()),
            osts: (first_ost..first_ost + osts).map(|o| Ost::new(config, o)).collect(),
            flows,
            first_ost,
            clients_nic: vec![[0; 2]; clients],
            oss_nic: vec![[0; 2]; (osts / config.osts_per_oss) as usize],
            told: Vec::new(),
            stats: Stats::default(),
            operation: config.operation,
            begin: 0,
            switch: [0; 2],
            nic_ns: config.nic_ns(),
            switch_ns: config.switch_ns(),
            produce_ns: if config.produce_rate > 0.0 {
                config.transfer_bytes as f64 * 1e9 / config.produce_rate
            } else {
                0.0
            },
            scratch: Vec::new(),
            programs: BTreeMap::new(),
            first_sent: BTreeMap::new(),
            config,
        }
    }

    /// Starts a phase now: all flows begin anew with `operation`, programs of a mix make `accesses` accesses; counters start
    /// at zero.
    pub fn begin(&mut self, operation: Operation, accesses: u32) {
        self.operation = operation;
        self.begin = self.queue.now();
        self.stats = Stats::default();
        for ost in &mut self.osts {
            ost.store.reset_stats();
            ost.flows_active = 0;
            if let Some(cache) = &mut ost.cache {
                cache.reset_stats();
            }
        }
        let config = self.config;
        for f in 0..self.flows.len() {
            let flow = &mut self.flows[f];
            (flow.next, flow.done, flow.in_flight) = (0, 0, 0);
            self.osts[(flow.ost - self.first_ost) as usize].flows_active += u32::from(!flow.urgent);
            if self.begin_program(f as u32, accesses) {
                continue;
            }
            self.send(f as u32, self.begin);
        }
        for down in &config.down {
            let (from, until) = (self.begin + down.from_ns, self.begin + down.to_ns);
            if (self.first_ost..self.first_ost + self.osts.len() as u32).contains(&down.ost) {
                let ost = down.ost - self.first_ost;
                self.queue.at(ost, from, Event::Down { ost, until });
            }
        }
    }

    /// When the phase began.
    pub fn began(&self) -> u64 {
        self.begin
    }

    /// Handles up to `events` events. Answers whether more are pending.
    pub fn step(&mut self, events: u64) -> bool {
        for _ in 0..events {
            let Some((now, event)) = self.queue.pop() else { return false };
            self.handle(now, event);
        }
        true
    }

    /// Folds the disks' counters into the statistics.
    pub fn finish(&mut self) {
        for ost in &self.osts {
            let stats = ost.store.stats();
            self.stats.store.add(&stats);
            self.stats.calls.ost_cache.add(&ost.cache.as_ref().map(BlockCache::stats).unwrap_or_default());
        }
        for program in self.programs.values() {
            self.stats.reads.calls += program.stats().calls;
            self.stats.reads.waited += program.stats().waited;
            self.stats.calls.client_cache.add(&program.cache_stats());
        }
        self.stats.end = self.stats.end.max(self.begin);
    }

    #[inline]
    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Arrive { flow, rpc } => self.on_arrival(now, flow, rpc),
            Event::Submit { ost, req } => self.on_submit(now, ost, req),
            Event::Timer { ost } => {
                self.osts[ost as usize].hash.event(now - self.begin, 3, 0, 0);
                self.osts[ost as usize].store.on_timer(now);
                self.pump_disk(now, ost);
            }
            Event::Disk { ost, slot } => self.on_disk(now, ost, slot),
            Event::Bulk { ost, req } => self.complete(now, ost, req),
            Event::Wake { ost } => {
                self.osts[ost as usize].wake_at = u64::MAX;
                self.pump_window(now, ost);
            }
            Event::Step { flow } => self.on_step(now, flow),
            Event::Here { flow, rpc } => self.on_record(now, flow, rpc),
            Event::Late { flow, rpc } => self.on_reply(now, flow, rpc, now),
            Event::Down { ost, until } => self.on_down(now, ost, until),
        }
    }

    /// Sends what the flow's window allows at `now`.
    fn send(&mut self, f: u32, now: u64) {
        let config = self.config;
        let flow = &mut self.flows[f as usize];
        while flow.may_send() {
            if flow.urgent && config.urgent.is_some_and(|u| now >= self.begin + u.until_ns) {
                flow.total = flow.next;
                break;
            }
            let rpc = flow.take();
            let record = u64::from(rpc) * u64::from(config.stripe_count) + u64::from(flow.stripe);
            let produced = self.begin + flow.start + ((record + 1) as f64 * self.produce_ns) as u64;
            let at = now.max(produced) + config.latency_ns;
            self.queue.at(flow.ost - self.first_ost, at, Event::Arrive { flow: f, rpc });
            if flow.urgent {
                break;
            }
        }
    }

    fn on_arrival(&mut self, now: u64, f: u32, rpc: u32) {
        let config = self.config;
        let flow = &self.flows[f as usize];
        let o = flow.ost - self.first_ost;
        let ost = &mut self.osts[o as usize];
        ost.hash.event(now - self.begin, 1, flow.client, rpc);
        let lost = config.loss > 0.0 && ost.rng.chance(config.loss);
        if lost || now < ost.down_until {
            self.stats.resent += 1;
            self.first_sent.entry((f, rpc)).or_insert(now - config.latency_ns);
            let at = (now + config.resend_ns).max(ost.down_until + config.latency_ns);
            self.queue.at(o, at, Event::Arrive { flow: f, rpc });
            return;
        }
        let extent = config.extent(rpc);
        if config.cache_first && self.operation != Operation::Write {
            let blocks = Blocks::new(config, flow.client, extent, false);
            if ost.cache.as_mut().is_some_and(|cache| blocks.use_whole(cache, extent)) {
                return self.answer_cached(now, o, f, rpc);
            }
        }
        let ost = &mut self.osts[o as usize];
        let mut request = Request { flow: f, rpc, arrived: now, epoch: ost.epoch, ..Request::default() };
        let w = NrsConfig::window(extent.len());
        if config.timeline {
            ost.outstanding[w] += extent.len();
            request.expiry = expiry(ost, &config.nrs, now);
        }
        let taken =
            ost.pipeline.on_arrival(Instant(now), asked(config, self.operation, flow, extent, now), |_| request);
        if let (Some(traced), Ok(id)) = (&mut ost.traced, &taken) {
            traced.arrived(*id);
        }
        if taken.is_err() {
            // Told to come again.
            ost.outstanding[w] -= if config.timeline { extent.len() } else { 0 };
            self.stats.resent += 1;
            self.first_sent.entry((f, rpc)).or_insert(now - config.latency_ns);
            self.queue.at(o, now + config.resend_ns, Event::Arrive { flow: f, rpc });
            return;
        }
        self.pump_window(now, o);
        let queued = self.osts[o as usize].pipeline.queued() as u64;
        keep_max(&mut self.stats.queue_max, (queued, now - self.begin));
        if config.timeline {
            let second = self.stats.second(now - self.begin);
            second.queue_max = second.queue_max.max(queued);
        }
    }

    /// Hands to the store what the dispatch windows allow: of `o`, and of whoever `o` told what it took.
    #[inline]
    fn pump_window(&mut self, now: u64, o: u32) {
        self.pump_one(now, o);
        while let Some(told) = self.told.pop() {
            self.pump_one(now, told);
        }
    }

    fn pump_one(&mut self, now: u64, o: u32) {
        let config = self.config;
        let (nic_ns, switch_ns) = (self.nic_ns, self.switch_ns);
        while let Some(id) = self.next(now, o) {
            let ost = &mut self.osts[o as usize];
            let request = *ost.pipeline.job(id);
            let (low, high) = config.allocation_ns;
            let cpu = low + ost.rng.below(high - low + 1);
            let ready = if self.operation == Operation::Write {
                let flow = &self.flows[request.flow as usize];
                let client = if config.stripe_count > 1 { flow.client } else { request.flow };
                let oss_nic = &mut self.oss_nic[(o / config.osts_per_oss) as usize][0];
                let nics = config.nic_queue.then_some([&mut self.clients_nic[client as usize][1], oss_nic]);
                transfer(now + config.latency_ns, nic_ns, nics, switch_ns, &mut self.switch[1]) + config.latency_ns
            } else {
                now
            };
            self.queue.at(o, ready + cpu, Event::Submit { ost: o, req: id.0 });
        }
        let ost = &mut self.osts[o as usize];
        if let Some(at) = ost.pipeline.wakeup_at() {
            let at = at.0.max(now + 1);
            if at < ost.wake_at {
                ost.wake_at = at;
                self.queue.at(o, at, Event::Wake { ost: o });
            }
        }
    }

    /// The request that `o` hands to its store now; the other OSTs of its OSS are told what it took.
    #[inline]
    fn next(&mut self, now: u64, o: u32) -> Option<RequestId> {
        let id = self.osts[o as usize].pipeline.next_dispatch(Instant(now))?;
        let per_oss = self.config.osts_per_oss;
        if per_oss > 1
            && let Some(taken) = self.osts[o as usize].pipeline.taken()
        {
            let (first, told) = (o / per_oss * per_oss, &mut self.told);
            let (before, rest) =
                self.osts[first as usize..(first + per_oss) as usize].split_at_mut((o - first) as usize);
            let (own, after) = rest.split_first_mut().expect("the OST is one of its OSS's");
            own.pipeline.share(Instant(now), &taken, |tell| {
                for (other, at) in before.iter_mut().zip(first..).chain(after.iter_mut().zip(o + 1..)) {
                    if tell(&mut other.pipeline) && !told.contains(&at) {
                        told.push(at);
                    }
                }
            });
        }
        Some(id)
    }

    /// Sends what the OST's cache holds, past its queue. It takes the CPU time of a request, and its way through the NICs.
    fn answer_cached(&mut self, now: u64, o: u32, f: u32, rpc: u32) {
        let (low, high) = self.config.allocation_ns;
        let ready = now + low + self.osts[o as usize].rng.below(high - low + 1);
        let end = self.leave(ready, o, f, rpc);
        self.first_sent.entry((f, rpc)).or_insert(now - self.config.latency_ns);
        self.queue.at(o, end + self.config.latency_ns, Event::Late { flow: f, rpc });
    }

    fn on_submit(&mut self, now: u64, o: u32, req: u32) {
        let config = self.config;
        let write = self.operation == Operation::Write;
        let Ost { pipeline, store, alloc, cache, hash, .. } = &mut self.osts[o as usize];
        let request = pipeline.job_mut(RequestId(req));
        let flow = &mut self.flows[request.flow as usize];
        hash.event(now - self.begin, 2, flow.client, request.rpc);
        let extent = config.extent(request.rpc);
        let (mut pieces, mut timer) = (0, None);
        let mut submit = |lba, len| {
            pieces += 1;
            timer = timer.or(store.submit(now, req, Access { lba, len, write }));
        };
        match cache {
            _ if write => alloc.write(&mut flow.map, extent.start, extent.len(), &mut submit),
            None => flow.map.lookup(extent.start, extent.len(), &mut submit),
            Some(cache) => {
                let blocks = Blocks::new(config, flow.client, extent, write);
                request.missed =
                    blocks.look_up(cache, extent, |part| flow.map.lookup(part.start, part.len(), &mut submit));
            }
        }
        (request.pieces, request.submitted) = (pieces, now);
        let all_cached = cache.is_some() && !write && request.missed == 0;
        assert!(pieces > 0 || all_cached, "a read reached a place that was never written");
        if let Some(at) = timer {
            self.queue.at(o, at, Event::Timer { ost: o });
        }
        if all_cached {
            return self.send_bulk(now, o, req);
        }
        self.pump_disk(now, o);
    }

    #[inline]
    fn pump_disk(&mut self, now: u64, o: u32) {
        while let Some((slot, done_at)) = self.osts[o as usize].store.start_next(now) {
            self.queue.at(o, done_at, Event::Disk { ost: o, slot });
        }
    }

    fn on_disk(&mut self, now: u64, o: u32, slot: u32) {
        let mut done = core::mem::take(&mut self.scratch);
        let Ost { pipeline, store, hash, .. } = &mut self.osts[o as usize];
        store.finish(slot, |owner| {
            let request = pipeline.job_mut(RequestId(owner));
            request.pieces -= 1;
            if request.pieces == 0 {
                done.push(owner);
            }
        });
        hash.event(now - self.begin, 4, slot, done.len() as u32);
        self.pump_disk(now, o);
        for req in done.drain(..) {
            self.keep(now, o, req);
            if self.operation == Operation::Write {
                self.complete(now, o, req);
            } else {
                self.send_bulk(now, o, req);
            }
        }
        self.scratch = done;
    }

    /// The OST's cache takes in what the store has read or written.
    #[inline]
    fn keep(&mut self, now: u64, o: u32, req: u32) {
        let Ost { pipeline, cache: Some(cache), epoch, .. } = &mut self.osts[o as usize] else { return };
        let request = pipeline.job(RequestId(req));
        if request.epoch == *epoch {
            let (extent, client) = (self.config.extent(request.rpc), self.flows[request.flow as usize].client);
            let blocks = Blocks::new(self.config, client, extent, self.operation == Operation::Write);
            blocks.keep(cache, extent, request.missed, now - request.submitted);
        }
    }

    fn send_bulk(&mut self, now: u64, o: u32, req: u32) {
        let Request { flow, rpc, .. } = *self.osts[o as usize].pipeline.job(RequestId(req));
        let end = self.leave(now, o, flow, rpc);
        self.queue.at(o, end, Event::Bulk { ost: o, req });
    }

    /// When the bulk of a read that is ready at `ready` has left its OST.
    #[inline]
    fn leave(&mut self, ready: u64, o: u32, f: u32, rpc: u32) -> u64 {
        let (nic_ns, switch_ns) = self.wire_ns(rpc);
        let client = if self.config.stripe_count > 1 { self.flows[f as usize].client } else { f };
        let oss_nic = &mut self.oss_nic[(o / self.config.osts_per_oss) as usize][1];
        let nics = self.config.nic_queue.then_some([&mut self.clients_nic[client as usize][0], oss_nic]);
        transfer(ready, nic_ns, nics, switch_ns, &mut self.switch[0])
    }

    /// Nanoseconds that a record keeps a NIC, and the switch.
    #[inline]
    fn wire_ns(&self, rpc: u32) -> (u64, u64) {
        let (bytes, whole) = (self.config.extent(rpc).len(), self.config.transfer_bytes);
        if bytes == whole {
            return (self.nic_ns, self.switch_ns);
        }
        let share = |ns: u64| (ns as f64 * bytes as f64 / whole as f64) as u64;
        (share(self.nic_ns), share(self.switch_ns))
    }

    /// The store is through with a request and its bulk has been moved.
    fn complete(&mut self, now: u64, o: u32, req: u32) {
        let config = self.config;
        let ost = &mut self.osts[o as usize];
        let id = RequestId(req);
        if let Some(traced) = &mut ost.traced {
            let Request { flow, rpc, arrived, .. } = *ost.pipeline.job(id);
            let (flow, extent) = (&self.flows[flow as usize], config.extent(rpc));
            let asked = asked(config, self.operation, flow, extent, arrived);
            traced.completed(id, &asked, ost.pipeline.dispatched(id), now);
        }
        let request = ost.pipeline.on_completion(Instant(now), id);
        if config.timeline {
            let bytes = config.extent(request.rpc).len();
            ost.outstanding[NrsConfig::window(bytes)] -= bytes;
            self.count_expiry(now, &request);
        }
        let ost = &mut self.osts[o as usize];
        let (f, rpc) = (request.flow, request.rpc);
        let sent = request.arrived - config.latency_ns;
        if request.epoch != ost.epoch {
            self.stats.resent += 1;
            self.first_sent.entry((f, rpc)).or_insert(sent);
            let at = (now + config.resend_ns).max(ost.down_until + config.latency_ns);
            self.queue.at(o, at, Event::Arrive { flow: f, rpc });
        } else if config.loss > 0.0 && ost.rng.chance(config.loss) {
            self.stats.resent += 1;
            self.first_sent.entry((f, rpc)).or_insert(sent);
            self.queue.at(o, now + config.resend_ns, Event::Late { flow: f, rpc });
        } else {
            let flow = &mut self.flows[f as usize];
            if let Credits::Target(target) = config.credits {
                flow.limit = (target / ost.flows_active.max(1)).clamp(1, config.rpcs_in_flight);
            }
            self.on_reply(now + config.latency_ns, f, rpc, sent);
        }
        self.pump_window(now, o);
    }

    /// A reply reaches its client at `at`; called ahead of that time when nothing can observe the difference.
    fn on_reply(&mut self, at: u64, f: u32, rpc: u32, sent: u64) {
        let again = if self.first_sent.is_empty() { None } else { self.first_sent.remove(&(f, rpc)) };
        let sent = again.unwrap_or(sent);
        let flow = &mut self.flows[f as usize];
        let reads = !self.programs.is_empty() && self.programs.contains_key(&f);
        let bytes = self.config.extent(rpc).len();
        flow.in_flight -= u32::from(!reads);
        flow.done += 1;
        let kind = usize::from(flow.urgent);
        if flow.is_done() && !flow.urgent {
            self.osts[(flow.ost - self.first_ost) as usize].flows_active -= 1;
        }
        let response = at - sent;
        let stats = &mut self.stats;
        stats.response[kind].record(response);
        stats.bytes[kind] += bytes;
        stats.end = stats.end.max(at);
        if kind == 0 {
            stats.bulk_end = stats.bulk_end.max(at);
        }
        if self.config.timeline {
            let second = stats.second(at - self.begin);
            second.response_max[kind] = second.response_max[kind].max(response);
            second.bytes += bytes;
            if kind == 0 {
                second.response_sum.0 += response;
                second.response_sum.1 += 1;
            }
        }
        if reads {
            let ost = flow.ost - self.first_ost;
            return self.queue.at(ost, at, Event::Here { flow: f, rpc });
        }
        let think = if kind == 1 { self.config.urgent.map_or(0, |u| u.think_ns) } else { 0 };
        self.send(f, at + think);
    }

    fn count_expiry(&mut self, now: u64, request: &Request) {
        if self.flows[request.flow as usize].urgent {
            return;
        }
        let given = request.expiry - request.arrived;
        self.stats.expired += u64::from(now > request.expiry);
        keep_max(&mut self.stats.expiry_max, (given, now - self.begin));
        let second = self.stats.second(now - self.begin);
        second.expiry_max = second.expiry_max.max(given);
    }

    fn on_down(&mut self, now: u64, o: u32, until: u64) {
        let config = self.config;
        let ost = &mut self.osts[o as usize];
        ost.hash.event(now - self.begin, 5, self.first_ost + o, 0);
        ost.fail(config, until);
        for (_, request) in ost.pipeline.drain() {
            if config.timeline {
                let bytes = config.extent(request.rpc).len();
                ost.outstanding[NrsConfig::window(bytes)] -= bytes;
            }
            self.stats.resent += 1;
            self.first_sent.entry((request.flow, request.rpc)).or_insert(request.arrived - config.latency_ns);
            let at = (request.arrived + config.resend_ns).max(until + config.latency_ns);
            self.queue.at(o, at.max(now), Event::Arrive { flow: request.flow, rpc: request.rpc });
        }
    }
}

/// What a scheduler sees of a request.
#[inline]
fn asked(config: &LightConfig, operation: Operation, flow: &Flow, extent: Extent, arrived: u64) -> NrsRequest {
    NrsRequest {
        id: RequestId::default(),
        bytes: extent.len() as u32,
        client: ClientId(u64::from(flow.client) + 1),
        object: ObjectId::new(OstIndex(flow.ost as u16), flow.client + 1),
        extent,
        uid: 0,
        op: if operation == Operation::Write { IoOp::Write } else { IoOp::Read },
        job: JobId(0),
        arrived: Instant(arrived),
        max_service: config.urgent.filter(|_| flow.urgent).map(|u: Urgent| Duration::from_nanos(u.max_service_ns)),
    }
}

/// When a transfer that is ready at `start` has gone through the NICs that it queues for and through the switch.
#[inline]
fn transfer(mut start: u64, nic_ns: u64, nics: Option<[&mut u64; 2]>, switch_ns: u64, switch: &mut u64) -> u64 {
    if let Some([a, b]) = &nics {
        start = start.max(**a).max(**b);
    }
    if switch_ns > 0 {
        start = start.max(*switch);
        *switch = start + switch_ns;
    }
    let end = start + nic_ns.max(switch_ns);
    for nic in nics.into_iter().flatten() {
        *nic = end;
    }
    end
}
