//! A model of the whole lock protocol: one server, N clients, and a network that delays, reorders and repeats
//! messages; clients that die or are cut off, servers that restart. One seed is one run.
//!
//! After every event it checks what locks are for: every read sees the last write, no two live clients hold conflicting
//! locks, and
//! [`crate::Namespace::check_invariants`]. At the end: every want was satisfied, every table agrees, nothing is left waiting.
//!
//! Lost messages are modelled as late ones: the layer below repeats until it hears an answer.
//! Differs from the real driver: holding and flushing a lock take a random time; data is one version number per block.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use types::{ClientId, Duration, Extent, Fid, HandleId, Instant, Rng};

use crate::LockMode;
use crate::lock::{
    Action, EnqueueOutcome, EnqueueRequest, InodeBits, LOCAL, LockCookie, LockDesc, LockPolicyData, ResourceId,
};
use crate::lock_cache::{LockCache, LockCacheConfig};
use crate::namespace::NamespaceConfig;
use crate::record::{Answer, Call, Recorder};

mod client;
mod data;

/// What a run looks like. Probabilities are per message or want.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Everything random comes from it.
    pub seed: u64,
    /// Clients, >= 1.
    pub clients: u32,
    /// Objects and as many inodes.
    pub resources: u32,
    /// Wants per client.
    pub wants: u32,
    /// Programs per client that want locks at the same time.
    pub programs: u32,
    /// Server-side operations that take inode locks.
    pub server_ops: u32,
    /// Longest delay of a message.
    pub delay_max: Duration,
    /// A message is delivered twice.
    pub duplicate: f64,
    /// A message takes twenty times as long.
    pub straggle: f64,
    /// A program gives up while it waits.
    pub give_up: f64,
    /// Clients that die during the run (below `clients`).
    pub deaths: u32,
    /// Times that some client is cut off from the server, half of them for longer than its callbacks may take.
    pub cuts: u32,
    /// Restarts of the server.
    pub restarts: u32,
    /// Unused locks a client keeps.
    pub lru_max: usize,
    /// Check everything after every so many events. >= 1.
    pub check_every: u32,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            seed: 1,
            clients: 4,
            resources: 2,
            wants: 60,
            programs: 3,
            server_ops: 30,
            delay_max: Duration::from_millis(5),
            duplicate: 0.1,
            straggle: 0.05,
            give_up: 0.05,
            deaths: 1,
            cuts: 1,
            restarts: 1,
            lru_max: 8,
            check_every: 1,
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ModelReport {
    /// Events handled.
    pub events: u64,
    /// Wants that got their lock.
    pub granted: u64,
    /// Wants that were refused (asked not to wait) or given up.
    pub refused: u64,
    /// Wants answered by a lock that was held already.
    pub hits: u64,
    /// Locks that gave up some of their bits.
    pub narrowed: u64,
    /// Write locks that became read locks.
    pub converted: u64,
    /// Reads under a lock that were compared with the last write.
    pub reads: u64,
    /// Clients evicted.
    pub evictions: u64,
    /// Model time of the last event.
    pub end: Instant,
}

#[derive(Clone, Debug)]
enum ToServer {
    Enqueue(EnqueueRequest, Vec<HandleId>),
    Cancel(HandleId),
    Narrow(HandleId, InodeBits),
    Convert(HandleId, LockMode),
    /// Some other request that brings a lock if it is free.
    Intent(EnqueueRequest),
}

#[derive(Clone, Debug)]
enum ToClient {
    Reply(EnqueueRequest, EnqueueOutcome),
    Completion(LockDesc),
    Blocking(LockDesc, LockMode, LockPolicyData),
    Intent(LockCookie, Option<LockDesc>),
}

#[derive(Clone, Debug)]
enum Event {
    ToServer(usize, Link, ToServer),
    ToClient(usize, Link, ToClient),
    Want(usize),
    Release(usize, LockCookie),
    GiveUp(usize, LockCookie),
    Flushed(usize, LockCookie),
    Shrink(usize),
    ServerOp,
    ServerDone(u32, HandleId),
    Timeout,
    Die(usize),
    Cut(usize, u64),
    Heal(usize),
    Restart,
}

/// The connection a message belongs to: (server incarnation, the client's connection). Of another one, it is dropped.
type Link = (u32, u32);

struct ModelClient {
    id: ClientId,
    cache: LockCache,
    alive: bool,
    evicted: bool,
    /// Cut off: messages both ways are stuck.
    cut: bool,
    connection: u32,
    /// Programs that wait for a cookie.
    waiting: BTreeMap<LockCookie, u32>,
    /// Requests under way that may bring a lock.
    intents: BTreeMap<LockCookie, EnqueueRequest>,
    wants_left: u32,
    copies: data::Copies,
}

/// The protocol with everything around it. See the module's head.
pub struct Model {
    config: ModelConfig,
    rng: Rng,
    now: Instant,
    queue: BTreeMap<(Instant, u64), Event>,
    next_event: u64,
    incarnation: u32,
    server: Recorder,
    clients: Vec<ModelClient>,
    server_ops_left: u32,
    server_cookie: u64,
    /// Server operations under way: the client each one serves.
    server_serves: BTreeMap<LockCookie, usize>,
    server_waits: BTreeSet<HandleId>,
    timeout_at: Option<Instant>,
    data: data::Data,
    report: ModelReport,
}

fn server_config(incarnation: u32) -> NamespaceConfig {
    NamespaceConfig { handle_first: (u64::from(incarnation) << 40) + 1, ..NamespaceConfig::default() }
}

impl Model {
    /// A model at time 0 with its first events planned.
    #[must_use]
    pub fn new(config: ModelConfig) -> Model {
        let lru_max = config.lru_max;
        let client = |i: u32| ModelClient {
            id: ClientId(u64::from(i) + 1),
            cache: LockCache::new(LockCacheConfig { lru_max, ..LockCacheConfig::default() }, 1),
            alive: true,
            evicted: false,
            cut: false,
            connection: 0,
            waiting: BTreeMap::new(),
            intents: BTreeMap::new(),
            wants_left: config.wants,
            copies: data::Copies::new(),
        };
        let mut model = Model {
            rng: Rng::named(config.seed, "ldlm model"),
            now: Instant::ZERO,
            queue: BTreeMap::new(),
            next_event: 0,
            incarnation: 0,
            server: Recorder::new(server_config(0)),
            clients: (0..config.clients).map(client).collect(),
            server_ops_left: config.server_ops,
            server_cookie: 0,
            server_serves: BTreeMap::new(),
            server_waits: BTreeSet::new(),
            timeout_at: None,
            data: data::Data::default(),
            report: ModelReport::default(),
            config,
        };
        model.plan();
        model
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// What went wrong first, with the seed and the model time.
    pub fn run(&mut self) -> Result<ModelReport, String> {
        while self.step()? {}
        self.report.reads = self.data.reads;
        self.finish().map_err(|e| self.blame(e))?;
        Ok(self.report)
    }

    /// The server with the log of its present incarnation.
    #[must_use]
    pub fn server(&self) -> &Recorder {
        &self.server
    }

    /// The configuration of the server's present incarnation.
    #[must_use]
    pub fn server_config(&self) -> NamespaceConfig {
        server_config(self.incarnation)
    }

    /// Handles one event; false when there is none left.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn step(&mut self) -> Result<bool, String> {
        let Some(((at, _), event)) = self.queue.pop_first() else { return Ok(false) };
        self.now = at;
        self.report.events += 1;
        self.report.end = at;
        self.handle(event).map_err(|e| self.blame(e))?;
        self.arm_timeout();
        if self.report.events.is_multiple_of(u64::from(self.config.check_every.max(1))) {
            self.check().map_err(|e| self.blame(e))?;
        }
        Ok(true)
    }

    fn blame(&self, what: String) -> String {
        format!("seed {} at {} ns, event {}: {what}", self.config.seed, self.now.0, self.report.events)
    }

    fn plan(&mut self) {
        for i in 0..self.clients.len() {
            for _ in 0..self.config.programs {
                self.after(i as u64 % 3, Event::Want(i));
            }
        }
        if self.server_ops_left > 0 {
            self.after(1, Event::ServerOp);
        }
        let span = u64::from(self.config.wants) * 4;
        for victim in 0..self.config.deaths.min(self.config.clients.saturating_sub(1)) {
            let at = 1 + self.rng.below(span);
            self.after(at, Event::Die(victim as usize));
        }
        for cut in 0..self.config.cuts {
            let (at, client) = (1 + self.rng.below(span), self.rng.below(self.clients.len() as u64) as usize);
            let ms = if cut % 2 == 0 { 30_000 } else { 200 };
            self.after(at, Event::Cut(client, ms));
        }
        for _ in 0..self.config.restarts {
            let at = 1 + self.rng.below(span);
            self.after(at, Event::Restart);
        }
    }

    /// Plans an event `ms` milliseconds and a bit from now.
    fn after(&mut self, ms: u64, event: Event) {
        let jitter = self.rng.below(1_000_000);
        self.at(self.now + Duration::from_nanos(ms * 1_000_000 + jitter), event);
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.next_event += 1;
        self.queue.insert((at, self.next_event), event);
    }

    /// Sends a message over the bad network.
    fn send(&mut self, event: Event) {
        let copies = 1 + u32::from(self.rng.chance(self.config.duplicate));
        for _ in 0..copies {
            let late = if self.rng.chance(self.config.straggle) { 20 } else { 1 };
            let delay = self.rng.below(self.config.delay_max.as_nanos() as u64 + 1) * late;
            self.at(self.now + Duration::from_nanos(delay), event.clone());
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::ToServer(i, ..) | Event::ToClient(i, ..) if self.clients[i].cut => {
                self.after(500, event); // stuck; the layer below tries again
                Ok(())
            }
            Event::ToServer(from, link, msg) => {
                // The server does not listen to old connections, nor to a client that it evicted.
                if link == self.link(from) && !self.clients[from].evicted {
                    self.serve(from, msg);
                }
                Ok(())
            }
            Event::ToClient(to, link, msg) if link == self.link(to) => self.client_message(to, msg),
            Event::ToClient(..) => Ok(()),
            Event::Want(i) => self.client_want(i),
            Event::Release(i, cookie) => self.client_done(i, cookie),
            Event::GiveUp(i, cookie) => self.client_give_up(i, cookie),
            Event::Flushed(i, cookie) => self.client_flushed(i, cookie),
            Event::Shrink(i) => self.client_shrink(i),
            Event::ServerOp => {
                self.server_op();
                Ok(())
            }
            Event::ServerDone(incarnation, handle) => {
                if incarnation == self.incarnation {
                    self.ask(Call::Cancel(LOCAL, handle));
                    self.next_server_op();
                }
                Ok(())
            }
            Event::Timeout => self.timeout(),
            Event::Die(i) => {
                self.clients[i].alive = false;
                Ok(())
            }
            Event::Cut(i, ms) => {
                self.clients[i].cut = true;
                self.after(ms, Event::Heal(i));
                Ok(())
            }
            Event::Heal(i) => self.heal(i),
            Event::Restart => self.restart(),
        }
    }

    fn link(&self, client: usize) -> Link {
        (self.incarnation, self.clients[client].connection)
    }

    /// The network is back. A client that was evicted meanwhile learns it and starts over.
    fn heal(&mut self, i: usize) -> Result<(), String> {
        self.clients[i].cut = false;
        if !core::mem::take(&mut self.clients[i].evicted) || !self.clients[i].alive {
            return Ok(());
        }
        self.clients[i].connection += 1;
        let mut out = Vec::new();
        self.clients[i].cache.on_evicted(&mut out);
        for _ in core::mem::take(&mut self.clients[i].intents) {
            self.report.refused += 1;
            self.next_want(i);
        }
        self.act(i, out)
    }

    /// Asks the server and sends what it wants sent.
    fn ask(&mut self, call: Call) -> Answer {
        let mut out = Vec::new();
        let answer = self.server.call(self.now, call, &mut out);
        for action in out {
            let (client, msg) = match action {
                Action::SendBlocking { client, lock, wanted_mode, wanted, .. } => {
                    (client, ToClient::Blocking(lock, wanted_mode, wanted))
                }
                Action::SendCompletion { client, lock } if client == LOCAL => {
                    self.server_waits.remove(&lock.handle);
                    self.server_work(&lock);
                    continue;
                }
                Action::SendCompletion { client, lock } => (client, ToClient::Completion(lock)),
                Action::SendGlimpse { .. } | Action::FlockGranted { .. } | Action::FlockDenied { .. } => continue,
            };
            let to = client.0 as usize - 1;
            self.send(Event::ToClient(to, self.link(to), msg));
        }
        answer
    }

    fn serve(&mut self, from: usize, msg: ToServer) {
        let id = self.clients[from].id;
        match msg {
            ToServer::Enqueue(req, early) => {
                self.ask(Call::CancelBatch(id, early));
                if let Answer::Enqueue(outcome) = self.ask(Call::Enqueue(id, req)) {
                    self.send(Event::ToClient(from, self.link(from), ToClient::Reply(req, outcome)));
                }
            }
            ToServer::Cancel(handle) => {
                self.ask(Call::Cancel(id, handle));
            }
            ToServer::Intent(req) => {
                let answer = self.ask(Call::Enqueue(id, req));
                let lock = match answer {
                    Answer::Enqueue(EnqueueOutcome::Granted(lock)) => Some(lock),
                    _ => None,
                };
                self.send(Event::ToClient(from, self.link(from), ToClient::Intent(req.cookie, lock)));
            }
            ToServer::Narrow(handle, keep) => {
                self.ask(Call::Narrow(id, handle, keep));
            }
            ToServer::Convert(handle, mode) => {
                self.ask(Call::Weaken(id, handle, mode));
            }
        }
    }

    /// A metadata operation on the server, half of them on behalf of a client.
    fn server_op(&mut self) {
        if self.server_ops_left == 0 {
            return; // a restart planned another one
        }
        self.server_ops_left -= 1;
        self.server_cookie += 1;
        let resource = ResourceId::inode(self.fid());
        let mode = [LockMode::Ex, LockMode::Pw, LockMode::Pr][self.rng.below(3) as usize];
        let data = LockPolicyData::bits(self.bits());
        let mut req = EnqueueRequest::new(LockCookie(self.server_cookie), resource, mode, data);
        if self.rng.chance(0.5) {
            let i = self.rng.below(self.clients.len() as u64) as usize;
            self.server_serves.insert(req.cookie, i);
            req = req.on_behalf(self.clients[i].id);
        }
        match self.ask(Call::Enqueue(LOCAL, req)) {
            Answer::Enqueue(EnqueueOutcome::Granted(lock)) => self.server_work(&lock),
            Answer::Enqueue(EnqueueOutcome::Waiting(handle)) => {
                self.server_waits.insert(handle);
            }
            _ => self.next_server_op(),
        }
    }

    /// A server operation has its lock: does its work, and gives the lock back a little later.
    fn server_work(&mut self, lock: &LockDesc) {
        let serves = self.server_serves.remove(&lock.cookie);
        self.server_write(lock, serves);
        let ms = self.rng.below(5);
        self.after(ms, Event::ServerDone(self.incarnation, lock.handle));
    }

    fn next_server_op(&mut self) {
        if self.server_ops_left > 0 {
            let ms = self.rng.below(10);
            self.after(ms, Event::ServerOp);
        }
    }

    fn arm_timeout(&mut self) {
        if let Some(at) = self.server.namespace().next_deadline()
            && self.timeout_at.is_none_or(|t| at < t)
        {
            self.timeout_at = Some(at);
            self.at(at, Event::Timeout);
        }
    }

    fn timeout(&mut self) -> Result<(), String> {
        self.timeout_at = None;
        let Answer::Expired(late) = self.ask(Call::Timeout) else { return Ok(()) };
        for expired in late {
            let i = expired.client.0 as usize - 1;
            if self.clients[i].alive && !self.clients[i].cut {
                return Err(format!("{} answers callbacks but is late with {:?}", expired.client, expired.handle));
            }
            self.clients[i].evicted = true;
            self.lose_copies(i);
            self.report.evictions += 1;
            self.ask(Call::Evict(expired.client));
        }
        Ok(())
    }

    /// The server loses its memory; live clients replay their locks, then send their requests again.
    fn restart(&mut self) -> Result<(), String> {
        self.incarnation += 1;
        self.server = Recorder::new(server_config(self.incarnation));
        let lost = self.server_waits.len();
        self.server_waits.clear();
        self.timeout_at = None;
        if self.server_ops_left > 0 || lost > 0 {
            self.next_server_op();
        }
        for i in 0..self.clients.len() {
            // Who is cut off misses the recovery window: the new server does not know it.
            self.clients[i].evicted |= self.clients[i].cut || !self.clients[i].alive;
            if self.clients[i].evicted {
                self.lose_copies(i);
            }
            if self.clients[i].alive && !self.clients[i].evicted {
                self.replay_client(i)?;
            }
        }
        for i in 0..self.clients.len() {
            if self.clients[i].alive && !self.clients[i].evicted {
                for req in self.clients[i].cache.for_resend() {
                    self.send(Event::ToServer(i, self.link(i), ToServer::Enqueue(req, Vec::new())));
                }
                for req in self.clients[i].intents.clone().into_values() {
                    self.send(Event::ToServer(i, self.link(i), ToServer::Intent(req)));
                }
            }
        }
        Ok(())
    }

    fn replay_client(&mut self, i: usize) -> Result<(), String> {
        let id = self.clients[i].id;
        for lock in self.clients[i].cache.for_replay() {
            let Answer::Replay(Ok(handle)) = self.ask(Call::Replay(id, lock)) else {
                return Err(format!("{id} cannot replay {lock:?}"));
            };
            self.clients[i].cache.on_replayed(lock.cookie, Some(handle), &mut Vec::new());
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.server.namespace().check_invariants()?;
        let live = self.clients.iter().filter(|c| c.alive && !c.evicted);
        let held: Vec<(ClientId, LockDesc)> =
            live.flat_map(|c| c.cache.locks().filter(|(_, held)| *held).map(|(d, _)| (c.id, d))).collect();
        for (i, (a_id, a)) in held.iter().enumerate() {
            for (b_id, b) in &held[..i] {
                if a_id != b_id && conflict(a, b) {
                    return Err(format!("{a_id} believes in {a:?} while {b_id} believes in {b:?}"));
                }
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        self.check()?;
        for c in self.clients.iter().filter(|c| c.alive) {
            if c.wants_left > 0 || !c.waiting.is_empty() || !c.intents.is_empty() {
                return Err(format!("{} still wants {} and waits for {:?}", c.id, c.wants_left, c.waiting));
            }
            let here: Vec<LockDesc> = c.cache.locks().map(|(d, _)| d).collect();
            let there: Vec<LockDesc> = self.server.namespace().locks_of(c.id).map(|(d, _)| d).collect();
            if here != there {
                return Err(format!("{} believes in {here:?}, the server in {there:?}", c.id));
            }
        }
        if self.server_ops_left > 0 || !self.server_waits.is_empty() {
            return Err(format!("{} server operations never ran", self.server_waits.len()));
        }
        Ok(())
    }

    fn fid(&mut self) -> Fid {
        Fid::new(Fid::MDT_SEQ_FIRST, 1 + self.rng.below(u64::from(self.config.resources)) as u32)
    }

    fn bits(&mut self) -> InodeBits {
        let wish = InodeBits(1 << self.rng.below(4));
        wish | InodeBits(1 << self.rng.below(4))
    }

    fn extent(&mut self) -> Extent {
        let start = self.rng.below(64) * 4096;
        Extent::at(start, 4096 * (1 + self.rng.below(16)))
    }
}

fn conflict(a: &LockDesc, b: &LockDesc) -> bool {
    let group = a.mode == LockMode::Group && b.mode == LockMode::Group;
    let same_gid = match (a.data, b.data) {
        (LockPolicyData::Extent { gid: x, .. }, LockPolicyData::Extent { gid: y, .. }) => x == y,
        _ => false,
    };
    a.resource == b.resource && !a.mode.compatible(b.mode) && a.data.overlaps(&b.data) && !(group && same_gid)
}

#[cfg(test)]
mod tests;
