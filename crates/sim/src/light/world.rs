//! The light world's machine room: what each event does.
//!
//! Requests live in the pipeline of their OST, the very type that servers run.
use super::calling::Calling;
use super::config::{Credits, LightConfig, Operation, Urgent};
use super::flow::Flow;
use super::lanes::Lanes;
use super::node::{Node, Rpcs};
use super::ost::{Blocks, Ost, Request, expiry};
use super::stats::{Stats, keep_max};
use crate::block_cache::BlockCache;
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
    /// A disk request is complete; of the fast device, where the slot has [`FAST`].
    Disk { ost: u32, slot: u32 },
    /// A read's bulk has left.
    Bulk { ost: u32, req: u32 },
    /// A throttling policy may have something.
    Wake { ost: u32 },
    /// A program that reads goes on.
    Step { program: u32 },
    /// An RPC reaches a client whose programs read.
    Here { node: u32, rpc: u32 },
    /// A reply that was lost reaches its client after all.
    Late { flow: u32, rpc: u32 },
    /// An OST goes down.
    Down { ost: u32, until: u64 },
}

/// Marks a slot of an OST's fast device.
pub(super) const FAST: u32 = 1 << 31;

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
    pub(super) scratch: Vec<u32>,
    /// Clients whose programs read call by call.
    pub(super) nodes: Vec<Node>,
    pub(super) rpcs: Rpcs,
    pub(super) sends: Vec<(u32, u64)>,
    /// When requests that had to be sent again were sent first.
    first_sent: BTreeMap<(u32, u32), u64>,
}

impl<'a> World<'a> {
    /// OSTs `first_ost..first_ost + osts` with `flows`, nothing scheduled yet.
    pub fn new(config: &'a LightConfig, first_ost: u32, osts: u32, mut flows: Vec<Flow>) -> World<'a> {
        let clients = number_clients(&mut flows);
        let mut world = World {
            queue: Lanes::new(osts / config.osts_per_oss, config.osts_per_oss, config.shares_network()),
            osts: (first_ost..first_ost + osts).map(|o| Ost::new(config, o)).collect(),
            flows,
            first_ost,
            clients_nic: vec![[0; 2]; clients as usize],
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
            nodes: Vec::new(),
            rpcs: Rpcs::default(),
            sends: Vec::new(),
            first_sent: BTreeMap::new(),
            config,
        };
        if let Some(calling) = config.calling.as_ref().filter(|c| c.laid_out) {
            world.lay_out(calling);
        }
        world
    }

    /// Every object lies on its OST in one piece.
    fn lay_out(&mut self, calling: &Calling) {
        let config = self.config;
        for flow in self.flows.iter_mut().filter(|flow| !flow.urgent) {
            let stripes = calling.bytes_of(flow.file % calling.files_per_client()).div_ceil(config.transfer_bytes);
            let (own, rest) = (stripes / u64::from(config.stripe_count), stripes % u64::from(config.stripe_count));
            let bytes = (own + u64::from(u64::from(flow.stripe) < rest)) * config.transfer_bytes;
            let alloc = &mut self.osts[(flow.ost - self.first_ost) as usize].alloc;
            if bytes > 0 {
                alloc.write(&mut flow.map, 0, bytes, |_, _| ());
            }
        }
    }

    /// Starts a phase now: all flows begin anew with `operation`, programs of a mix make `accesses` accesses, which are
    /// measured or not; counters start at zero.
    pub fn begin(&mut self, operation: Operation, accesses: u32, measured: bool) {
        self.operation = operation;
        self.begin = self.queue.now();
        self.stats = Stats::default();
        self.stats.calls.began = self.begin;
        for ost in &mut self.osts {
            ost.store.reset_stats();
            ost.flows_active = 0;
            if let Some(cache) = &mut ost.cache {
                cache.reset_stats();
            }
            if let Some(tiers) = &mut ost.tiers {
                tiers.reset_stats();
            }
        }
        let config = self.config;
        if operation == Operation::Advise {
            return self.advise();
        }
        let programs = self.begin_programs(accesses, measured);
        for f in 0..self.flows.len() {
            let flow = &mut self.flows[f];
            (flow.next, flow.done, flow.in_flight) = (0, 0, 0);
            self.osts[(flow.ost - self.first_ost) as usize].flows_active += u32::from(!flow.urgent);
            if flow.urgent || !programs {
                self.send(f as u32, self.begin);
            }
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
            self.stats.tiers.add(&ost.tiers.as_ref().map(|tiers| tiers.counted()).unwrap_or_default());
            self.stats.calls.ost_cache.add(&ost.cache.as_ref().map(BlockCache::stats).unwrap_or_default());
        }
        for node in &self.nodes {
            self.stats.calls.client_cache.add(&node.cache_stats());
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
            Event::Step { program } => self.on_step(now, program),
            Event::Here { node, rpc } => self.on_here(now, node, rpc),
            Event::Late { flow, rpc } => self.on_reply(now, flow, rpc, now),
            Event::Down { ost, until } => self.on_down(now, ost, until),
        }
    }

    /// How programs read, where they do.
    pub(super) fn calling(&self) -> &'a Calling {
        self.config.calling.as_ref().expect("there are programs only where they read call by call")
    }

    /// Whether requests of a flow are RPCs of a node.
    #[inline]
    pub(super) fn is_of_node(&self, flow: &Flow) -> bool {
        !self.nodes.is_empty() && !flow.urgent
    }

    /// Bytes of its object that a request asks for.
    #[inline]
    pub(super) fn extent(&self, f: u32, rpc: u32) -> Extent {
        if self.is_of_node(&self.flows[f as usize]) { self.rpcs.get(rpc).extent } else { self.config.record(rpc) }
    }

    /// The blocks of an OST's cache that a request is about.
    pub(super) fn blocks(&self, f: u32, rpc: u32) -> Blocks {
        let flow = &self.flows[f as usize];
        if self.is_of_node(flow) {
            return Blocks::new(self.config, flow.file, self.rpcs.get(rpc).access);
        }
        Blocks::of_record(self.config, flow.file, self.operation == Operation::Write)
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
        let extent = self.extent(f, rpc);
        let flow = &self.flows[f as usize];
        let (o, of_node) = (flow.ost - self.first_ost, self.is_of_node(flow));
        let ost = &mut self.osts[o as usize];
        ost.hash.event(now - self.begin, 1, flow.client, number(of_node, rpc, extent));
        let lost = config.loss > 0.0 && ost.rng.chance(config.loss);
        if lost || now < ost.down_until {
            self.stats.resent += 1;
            self.first_sent.entry((f, rpc)).or_insert(now - config.latency_ns);
            let at = (now + config.resend_ns).max(ost.down_until + config.latency_ns);
            self.queue.at(o, at, Event::Arrive { flow: f, rpc });
            return;
        }
        if config.cache_first && self.operation != Operation::Write {
            let blocks = self.blocks(f, rpc);
            let ost = &mut self.osts[o as usize];
            if ost.cache.as_mut().is_some_and(|cache| blocks.use_whole(cache, extent)) {
                return self.answer_cached(now, o, f, rpc);
            }
        }
        let (ost, flow) = (&mut self.osts[o as usize], &self.flows[f as usize]);
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
    pub(super) fn pump_window(&mut self, now: u64, o: u32) {
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
                let oss_nic = &mut self.oss_nic[(o / config.osts_per_oss) as usize][0];
                let nics = config.nic_queue.then_some([&mut self.clients_nic[flow.home as usize][1], oss_nic]);
                transfer(now + config.latency_ns, nic_ns, nics, switch_ns, &mut self.switch[1]) + config.latency_ns
            } else {
                now
            };
            self.queue.at(o, ready + cpu, Event::Submit { ost: o, req: id.0 });
        }
        if self.osts[o as usize].tiers.is_some() {
            self.fetch(now, o);
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

    pub(super) fn send_bulk(&mut self, now: u64, o: u32, req: u32) {
        let Request { flow, rpc, .. } = *self.osts[o as usize].pipeline.job(RequestId(req));
        let end = self.leave(now, o, flow, rpc);
        self.queue.at(o, end, Event::Bulk { ost: o, req });
    }

    /// When the bulk of a read that is ready at `ready` has left its OST.
    #[inline]
    fn leave(&mut self, ready: u64, o: u32, f: u32, rpc: u32) -> u64 {
        let (nic_ns, switch_ns) = self.wire_ns(self.extent(f, rpc).len());
        let client = self.flows[f as usize].home;
        let oss_nic = &mut self.oss_nic[(o / self.config.osts_per_oss) as usize][1];
        let nics = self.config.nic_queue.then_some([&mut self.clients_nic[client as usize][0], oss_nic]);
        transfer(ready, nic_ns, nics, switch_ns, &mut self.switch[0])
    }

    /// Nanoseconds that so many bytes keep a NIC, and the switch.
    #[inline]
    fn wire_ns(&self, bytes: u64) -> (u64, u64) {
        let whole = self.config.transfer_bytes;
        if bytes == whole {
            return (self.nic_ns, self.switch_ns);
        }
        let share = |ns: u64| (ns as f64 * bytes as f64 / whole as f64) as u64;
        (share(self.nic_ns), share(self.switch_ns))
    }

    /// The store is through with a request and its bulk has been moved.
    pub(super) fn complete(&mut self, now: u64, o: u32, req: u32) {
        let (config, id) = (self.config, RequestId(req));
        let Request { flow, rpc, arrived, .. } = *self.osts[o as usize].pipeline.job(id);
        let extent = self.extent(flow, rpc);
        let ost = &mut self.osts[o as usize];
        if let Some(traced) = &mut ost.traced {
            let flow = &self.flows[flow as usize];
            let asked = asked(config, self.operation, flow, extent, arrived);
            traced.completed(id, &asked, ost.pipeline.dispatched(id), now);
        }
        let request = ost.pipeline.on_completion(Instant(now), id);
        if config.timeline {
            ost.outstanding[NrsConfig::window(extent.len())] -= extent.len();
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
        let bytes = self.extent(f, rpc).len();
        let reads = self.is_of_node(&self.flows[f as usize]);
        let flow = &mut self.flows[f as usize];
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
            return self.on_node_reply(at, f, rpc);
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
                let bytes = self.extent(request.flow, request.rpc).len();
                self.osts[o as usize].outstanding[NrsConfig::window(bytes)] -= bytes;
            }
            self.stats.resent += 1;
            self.first_sent.entry((request.flow, request.rpc)).or_insert(request.arrived - config.latency_ns);
            let at = (request.arrived + config.resend_ns).max(until + config.latency_ns);
            self.queue.at(o, at.max(now), Event::Arrive { flow: request.flow, rpc: request.rpc });
        }
    }
}

/// What the history says of a request: records have numbers, RPCs of nodes their places.
#[inline]
pub(super) fn number(of_node: bool, rpc: u32, extent: Extent) -> u32 {
    if of_node { (extent.start >> 9) as u32 } else { rpc }
}

/// Gives every client a number of its own in this world, those with deadlines last; how many there are.
fn number_clients(flows: &mut [Flow]) -> u32 {
    let mut clients = 0;
    for urgent in [false, true] {
        let mut last = None;
        for flow in flows.iter_mut().filter(|flow| flow.urgent == urgent) {
            clients += u32::from(last != Some(flow.client));
            last = Some(flow.client);
            flow.home = clients - 1;
        }
    }
    clients
}

/// The object that a flow moves.
#[inline]
pub(super) fn object(flow: &Flow) -> ObjectId {
    ObjectId::new(OstIndex(flow.ost as u16), flow.file + 1)
}

/// What a scheduler sees of a request.
#[inline]
fn asked(config: &LightConfig, operation: Operation, flow: &Flow, extent: Extent, arrived: u64) -> NrsRequest {
    NrsRequest {
        id: RequestId::default(),
        bytes: extent.len() as u32,
        client: ClientId(u64::from(flow.client) + 1),
        object: object(flow),
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
