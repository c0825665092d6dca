//! Targets behind an address: accepts connections, opens sessions, hands requests to their service.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use frames::Bulk;
use rt::real::Arrival;
use rt::sync::Event;
use rt::{Connection, LocalFuture, Nid, Rt};
use types::{ClientId, Duration, FsError, Origin, Transno, Xid};
use wire::{Class, Flags, Header, Op, WireError};

use crate::admission;
use crate::auth::{Binding, ClusterKey};
use crate::capability::CapabilityKey;
use crate::credential::CLIENT_KEY;
use crate::door::{Door, HANDSHAKE_WITHIN};
use crate::export::{Arrived, Export, Opener, ReplyRecord, Request, SLOTS_MAX, is_slot};
use crate::incoming::Requests;
use crate::recovery::{Recovery, RecoveryControl};
use crate::seats::{Seat, Seats};
use crate::sessions::{Changing, close, evict, gone};
use crate::stream::{self, Sink, Source};

/// Requests of one client that are carried out at a time, whatever it was granted; one more breaks its connection.
const REQUESTS_MAX: usize = 4096;
/// Bytes of bodies that one client's requests without an answer may have per slot granted, and at least: a larger body is a rare one
/// (256 KiB name the parts of 64 MiB that lie block by block). One more breaks its connection.
const BODY_BYTES_PER_SLOT: usize = 256 << 10;
/// See [`BODY_BYTES_PER_SLOT`].
const BODY_BYTES_MIN: usize = 64 << 20;
/// Answers of the greatest length, per slot granted, that may wait for a client that does not read; more breaks its
/// connection. Bulk is not counted: the frame pool bounds it.
const BACKLOG_PER_SLOT: usize = 2;

/// A session as a target's store keeps it over restarts.
#[derive(Clone, Debug, Default)]
pub struct SessionRecord {
    /// Whose.
    pub client: ClientId,
    /// What its store kept of [`Export::binding`].
    pub binding: Option<Binding>,
    /// Answers that can be asked for again.
    pub replies: Vec<ReplyRecord>,
    /// Which process the client was ([`Export::origin`]).
    pub origin: Origin,
}

/// What stands behind a target's name.
pub trait Service: 'static {
    /// The target's name, like `stria-OST0000`.
    fn target(&self) -> String;
    /// The cluster that its store belongs to.
    fn cluster(&self) -> u64;
    /// Stable identity of its store.
    fn uuid(&self) -> u64;
    /// How often its store was opened, if that is counted: clients refuse a server whose epoch is lower than one that they
    /// have seen. 0: not counted.
    fn epoch(&self) -> u64 {
        0
    }
    /// Mark of this opening of its store, which tells the store from an older copy of it. 0: there is none.
    fn opening(&self) -> u64 {
        0
    }
    /// Whether another server has opened its store since: this one answers nothing any more.
    fn is_replaced(&self) -> bool {
        false
    }
    /// Whether another server may have its store, for longer than a slow answer of the store's engine explains: clients look elsewhere
    /// meanwhile, and those who find nobody there come back.
    fn is_unsure(&self) -> bool {
        false
    }
    /// A client has seen a server of a later epoch: it is time to look whether the store is still this one's.
    fn look_whether_replaced(self: Rc<Self>) {}
    /// Whether a credential ([`crate::CLIENT_KEY`]: the key of all clients) was revoked.
    fn is_revoked(&self, _credential: u64) -> bool {
        false
    }
    /// Carries a request out and answers it. Runs as a task of its own; requests of one client may overlap.
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()>;
    /// Every transaction of this client up to here is on stable storage.
    fn last_committed(&self, client: ClientId) -> Transno;
    /// Sessions that the store knows, asked once at start.
    fn sessions(&self) -> Vec<SessionRecord>;
    /// A client is about to open a session; when this completes the store remembers it. `known`: it had one.
    fn session_opened(self: Rc<Self>, export: Rc<Export>, known: bool) -> LocalFuture<Result<(), FsError>>;
    /// The client of an open session has a new connection: what it may have missed is said again.
    fn session_connected(&self, _client: ClientId) {}
    /// The client of a session that has just begun has its connection: it hears callbacks from now on.
    fn session_begun(&self, _client: ClientId) {}
    /// Whether what is remembered of a request can be answered to a client that asks for it again after a restart: what the answer gave it may
    /// be gone since. Then the request is carried out anew, for no client has heard that answer. `None`: it can.
    fn look_before_answering(self: Rc<Self>, _header: &Header, _record: &ReplyRecord) -> Option<LocalFuture<bool>> {
        None
    }
    /// A request that was carried out is about to be answered again with what is remembered. After a restart, what the
    /// answer gives the client besides what is stored is to be there again, or to be taken out of the answer.
    fn answering_again(&self, _header: &Header, _request: &[u8], _record: &mut ReplyRecord) {}
    /// A client said goodbye or was evicted: its locks and opens go, the store forgets it.
    fn session_closed(self: Rc<Self>, client: ClientId, evicted: bool) -> LocalFuture<()>;
    /// Asked once at start: whether no transaction that a client may replay rests on one of another client's that is not on stable
    /// storage. Then nobody's replay waits for another client.
    fn replays_are_independent(&self) -> bool {
        false
    }
    /// Asked once at start: what there is to know and to do about the target's recovery.
    fn take_recovery(&self, _recovery: RecoveryControl) {}
    /// Whether a client that has not come back after a restart has certainly nothing to replay, and the service knows what it may
    /// hold: then service may begin without it, while it is waited for.
    fn can_be_done_without(&self, _client: ClientId) -> bool {
        false
    }
    /// Ordinary service begins, without these. [`Service::recovered`] follows when they are back or evicted; their locks and opens
    /// may be told until then.
    fn begin_without(&self, _missing: &[ClientId]) {}
    /// A client of before the restart has told everything that it held.
    fn told_everything(&self, _client: ClientId) {}
    /// All replays are in (or the window has passed): ordinary service begins.
    fn recovered(&self) {}
    /// Dirty bytes that this client may hold from the beginning of its session. `before`: what it says that the target's
    /// last server had promised.
    fn grant(&self, _client: ClientId, _before: u64) -> u64 {
        0
    }
    /// Most bulk bytes of one RPC.
    fn bulk_max(&self) -> u32 {
        4 << 20
    }
    /// Requests one client may have in flight, 1..=[`SLOTS_MAX`].
    fn credits(&self) -> u16 {
        64
    }
}

/// Settings of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Shared secret.
    pub key: ClusterKey,
    /// How long a restarted target waits for its clients before it goes on without them. Default 30 s.
    pub recovery_window: Duration,
    /// A client unheard of for this long is evicted. Default 60 s (clients ping every 10 s).
    pub client_timeout: Duration,
    /// Changes with every start of the process.
    pub boot: u64,
}

pub(crate) struct Target {
    pub(crate) service: Rc<dyn Service>,
    /// What its tasks are spawned through: they end with it.
    pub(crate) rt: Rt,
    /// Changes with every start of the target.
    pub(crate) boot: u64,
    /// It was taken out of its server.
    is_out: Cell<bool>,
    out: Event,
    pub(crate) exports: RefCell<BTreeMap<ClientId, Rc<Export>>>,
    pub(crate) recovery: Rc<Recovery>,
    /// Evictions so far, by client; of [`EVICTED_MAX`] clients.
    pub(crate) evicted: RefCell<BTreeMap<ClientId, u64>>,
    pub(crate) changing: Changing,
    /// Words that another client had ended that were not believed.
    pub(crate) disbelieved: Cell<u64>,
}

impl Target {
    /// Completes when it is taken out of its server.
    async fn taken_out(&self) {
        while !self.is_out.get() {
            let out = self.out.wait();
            out.await;
        }
    }
    /// Sessions that are somebody's, or may be: whose those are that have not come back after a restart, and those that are being
    /// opened or ended, is not asked. Who has to come again for their sake does so for the recovery window at most.
    fn sessions_of(&self, opener: Opener) -> usize {
        let exports = self.exports.borrow();
        let may_be = |e: &&Rc<Export>| [opener, Opener::Unknown].contains(&e.opener.get());
        let own = exports.values().filter(may_be).count();
        own + self.changing.under_way()
    }
    pub(crate) fn count_eviction(&self, client: ClientId) {
        let mut evicted = self.evicted.borrow_mut();
        *evicted.entry(client).or_default() += 1;
        if evicted.len() > EVICTED_MAX {
            evicted.pop_first();
        }
    }
    /// Whether it has evicted a client, as far as it is known: with so many that some are forgotten it may have evicted anybody.
    pub(crate) fn has_evicted(&self, client: ClientId) -> bool {
        let evicted = self.evicted.borrow();
        evicted.contains_key(&client) || evicted.len() == EVICTED_MAX
    }
    /// Whether requests are in service.
    pub(crate) fn serves(&self) -> bool {
        self.exports.borrow().values().any(|e| e.running.get() > 0)
    }
    /// Clients of which part of a request has come since the last look are at work.
    fn note_coming(&self) {
        let exports = self.exports.borrow();
        for export in exports.values().filter(|e| e.note_coming()) {
            self.recovery.note_progress(export.client());
        }
    }
    /// Clients among those that `of_interest` names whose processes have certainly ended.
    fn gone(&self, of_interest: impl Fn(&Export) -> bool) -> Vec<ClientId> {
        let exports = self.exports.borrow();
        exports.values().filter(|e| of_interest(e) && e.is_gone()).map(|e| e.client()).collect()
    }
}

/// How often clients that are waited for are looked after.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Clients whose evictions a target counts; beyond it the lowest ids are forgotten.
const EVICTED_MAX: usize = 4096;

/// Sessions at one target that one credential may have, unless [`Server::set_sessions_of_credential_max`] says otherwise. A credential
/// is one host's, which has a session for each mount and command that runs: this is far more, also where some hundred hosts share one,
/// and far less than a server has descriptors, whose other clients go on. The key of all clients has no such bound, for clusters of any
/// size mount with it: it has half of the descriptors ([`Seats`]).
pub const SESSIONS_OF_CREDENTIAL_MAX: usize = 4096;

/// The targets of one process and their listeners.
pub struct Server {
    pub(crate) rt: Rt,
    pub(crate) config: ServerConfig,
    pub(crate) targets: RefCell<BTreeMap<String, Rc<Target>>>,
    door: Door,
    stopping: Cell<bool>,
    stopped: Event,
    limit_breaches: Cell<u64>,
    /// See [`Server::set_sessions_of_credential_max`].
    sessions_of_credential_max: Cell<usize>,
    sessions_limit_hits: Cell<u64>,
    /// See [`Server::set_seats`].
    pub(crate) seats: RefCell<Arc<Seats>>,
    /// Targets that were taken out, each with its evictions, by client.
    earlier: RefCell<BTreeMap<String, BTreeMap<ClientId, u64>>>,
    /// A target was taken out.
    fewer: Event,
}

impl Server {
    /// A server without targets.
    #[must_use]
    pub fn new(rt: Rt, config: ServerConfig) -> Rc<Server> {
        Rc::new(Server {
            door: Door::new(rt.clone()),
            rt,
            config,
            targets: RefCell::default(),
            stopping: Cell::new(false),
            stopped: Event::new(),
            limit_breaches: Cell::new(0),
            sessions_of_credential_max: Cell::new(SESSIONS_OF_CREDENTIAL_MAX),
            sessions_limit_hits: Cell::new(0),
            seats: RefCell::new(Seats::of_process()),
            earlier: RefCell::default(),
            fewer: Event::new(),
        })
    }

    /// Adds a target; its known sessions start in recovery.
    pub fn add(self: &Rc<Self>, service: Rc<dyn Service>) {
        self.add_in(&self.rt.clone(), service);
    }

    /// The same with tasks in the group behind `rt`. A target of a name that was taken out before is one that was started again, for its
    /// clients as for its store.
    pub fn add_in(self: &Rc<Self>, rt: &Rt, service: Rc<dyn Service>) {
        let again = self.earlier.borrow().contains_key(&service.target()) && !types::planted!("reopened-unnoticed");
        let boot = if again { self.rt.random() } else { self.config.boot };
        let exports: BTreeMap<_, _> = service
            .sessions()
            .into_iter()
            .map(|s| {
                let export = make_export(rt, boot, &service, s.client);
                export.binding.set(s.binding);
                export.origin.set(s.origin);
                export.seat.replace(Some(self.seats.borrow().take_anyway(Opener::Unknown)));
                for r in s.replies.into_iter().filter(|_| !types::planted!("replies-forgotten")) {
                    export.recall(r);
                }
                (s.client, export)
            })
            .collect();
        let waiting = exports.keys().copied().collect();
        let name = service.target();
        let mut recovery = Recovery::new(rt.clone(), waiting, self.config.recovery_window);
        let silent = exports.keys().copied().filter(|c| service.can_be_done_without(*c)).collect();
        recovery = recovery.with_nothing_to_replay(silent);
        if service.replays_are_independent() {
            recovery = recovery.with_independent_replays();
        }
        let target = Rc::new(Target {
            service,
            rt: rt.clone(),
            boot,
            is_out: Cell::new(false),
            out: Event::new(),
            exports: RefCell::new(exports),
            recovery: Rc::new(recovery),
            evicted: RefCell::default(),
            changing: Changing::default(),
            disbelieved: Cell::new(0),
        });
        target.service.take_recovery(RecoveryControl::new(&target.recovery));
        self.targets.borrow_mut().insert(name, target.clone());
        let (me, t) = (self.clone(), target.clone());
        rt.spawn(async move { me.watch_recovery(t).await });
        let me = self.clone();
        rt.spawn(async move { me.watch_clients(target).await });
    }

    /// Takes a target out: its connections are closed, who asks for it hears that it is not here, and nothing here knows its service
    /// any more. Requests under way are tasks of its group, which its owner ends. False: there is none of that name.
    pub fn take_out(&self, target: &str) -> bool {
        let Some(t) = self.targets.borrow_mut().remove(target) else { return false };
        let mut earlier = self.earlier.borrow_mut();
        let evictions = earlier.entry(target.to_string()).or_default();
        for (client, times) in &*t.evicted.borrow() {
            *evictions.entry(*client).or_default() += times;
        }
        drop(earlier);
        t.is_out.set(true);
        t.out.notify();
        self.fewer.notify();
        let exports = t.exports.take();
        exports.values().for_each(|e| e.abandon());
        true
    }

    /// Whether it was stopped.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Starts accepting at `nid`; returns the address bound.
    ///
    /// # Errors
    /// The address is in use, is not this host's, or can be reached from other processes although there is no cluster key.
    pub fn listen(self: &Rc<Self>, nid: &Nid) -> io::Result<Nid> {
        self.config.key.may_listen(nid)?;
        let listener = self.rt.listen(nid)?;
        let bound = listener.nid();
        let (me, here) = (self.clone(), bound.clone());
        self.rt.spawn(async move {
            while !me.stopping.get() {
                let stopped = me.stopped.wait();
                let Ok(accepted) = rt::sync::race(listener.accept(), stopped).await else { break };
                match accepted {
                    Ok(connection) => {
                        let (server, here) = (me.clone(), here.clone());
                        me.rt.spawn(async move { server.serve(connection, here).await });
                    }
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => break,
                    Err(e) => {
                        tracing::warn!("accept failed: {e}");
                        me.rt.sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
        Ok(bound)
    }

    /// Serves a connection that another shard accepted at `here` for a target of this server.
    pub fn take_in(self: &Rc<Self>, arrival: Arrival, here: Nid) {
        if self.stopping.get() {
            return;
        }
        let peer = arrival.peer();
        match self.rt.take_in(arrival) {
            Ok(connection) => {
                let me = self.clone();
                self.rt.spawn(async move { me.serve(connection, here).await });
            }
            Err(e) => tracing::warn!(peer, "a connection cannot be served: {e}"),
        }
    }

    /// Closes every connection and answers nothing any more.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.stopped.notify();
        for t in self.targets.borrow().values() {
            for e in t.exports.borrow().values() {
                e.disconnect();
            }
        }
    }

    /// Evicts a client from a target: its locks and opens go, and it learns of it when it comes back.
    pub async fn evict(&self, target: &str, client: ClientId) {
        let t = self.targets.borrow().get(target).cloned();
        if let Some(t) = t {
            evict(&t, client).await;
        }
    }

    /// The sessions of a target.
    #[must_use]
    pub fn exports(&self, target: &str) -> Vec<Rc<Export>> {
        self.targets.borrow().get(target).map(|t| t.exports.borrow().values().cloned().collect()).unwrap_or_default()
    }

    /// Whether a client has a session with a target.
    #[must_use]
    pub fn knows(&self, target: &str, client: ClientId) -> bool {
        self.targets.borrow().get(target).is_some_and(|t| t.exports.borrow().contains_key(&client))
    }

    /// How many times this process has evicted a client, over all its targets.
    #[must_use]
    pub fn evictions(&self, client: ClientId) -> u64 {
        let times = |evicted: &BTreeMap<ClientId, u64>| evicted.get(&client).copied().unwrap_or(0);
        let now: u64 = self.targets.borrow().values().map(|t| times(&t.evicted.borrow())).sum();
        now + self.earlier.borrow().values().map(times).sum::<u64>()
    }

    /// Whether a target still waits for clients of before its restart, or was taken out and is not back.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        let targets = self.targets.borrow();
        let away = self.earlier.borrow().keys().any(|name| !targets.contains_key(name));
        away || targets.values().any(|t| t.recovery.is_active())
    }

    async fn watch_recovery(&self, target: Rc<Target>) {
        loop {
            if target.service.is_unsure() {
                // Nobody can come back to a server that does not know whether its store is its own.
                self.rt.sleep(LOOK_EVERY).await;
                target.recovery.postpone(LOOK_EVERY);
                continue;
            }
            target.note_coming();
            for client in target.gone(|e| target.recovery.expects(e.client())) {
                tracing::info!(target = target.service.target(), %client, "its process has ended: not waited for");
                self.evict_in_recovery(&target, client).await;
            }
            let missing =
                target.recovery.all_missing().filter(|all| all.iter().all(|c| target.service.can_be_done_without(*c)));
            if let Some(missing) = missing {
                tracing::info!(
                    target = target.service.target(),
                    clients = missing.len(),
                    "service begins without clients that have not come back and have nothing to replay"
                );
                target.service.begin_without(&missing);
                target.recovery.open_without();
            }
            // Clients also die while others are waited for.
            let Some(late) = self.rt.timeout(LOOK_EVERY, target.recovery.next_late()).await else { continue };
            let Some(late) = late else { break };
            let why = target.recovery.why_late();
            for client in late {
                // It may have come back, or been refused, while others' sessions were ended.
                if target.recovery.is_late(client) {
                    tracing::warn!(target = target.service.target(), %client, "{why}: evicted");
                    self.evict_in_recovery(&target, client).await;
                }
            }
        }
        target.service.recovered();
        target.recovery.open();
    }

    /// Ends the session of a client that is not waited for any more. That takes as long as the store does: while the server is unsure of it
    /// nobody else can come back.
    async fn evict_in_recovery(&self, target: &Rc<Target>, client: ClientId) {
        let mut evicted = std::pin::pin!(evict(target, client));
        while self.rt.timeout(LOOK_EVERY, evicted.as_mut()).await.is_none() {
            if target.service.is_unsure() {
                target.recovery.postpone(LOOK_EVERY);
            }
        }
    }

    async fn watch_clients(&self, target: Rc<Target>) {
        let limit = self.config.client_timeout;
        while !self.stopping.get() && !target.is_out.get() {
            self.rt.sleep(limit / 4).await;
            // Who cannot come back to a server that is unsure of its store is not silent.
            if target.recovery.is_active() || target.service.is_unsure() {
                continue;
            }
            target.note_coming();
            for client in target.gone(|e| !e.is_connected()) {
                tracing::info!(target = target.service.target(), %client, "its process has ended: evicted");
                evict(&target, client).await;
            }
            // One after the other: the end of a session takes as long as the store does, and others may be heard meanwhile.
            while let Some(client) = self.next_silent(&target) {
                tracing::warn!(target = target.service.target(), %client, "silent for {limit:?}: evicted");
                evict(&target, client).await;
            }
        }
    }

    /// A client that was not heard of for too long, while it could be.
    fn next_silent(&self, target: &Target) -> Option<ClientId> {
        if target.service.is_unsure() {
            return None;
        }
        // What they said while this server stood still may wait to be read, or they have to connect again.
        let (now, awake) = (self.rt.now(), self.rt.awake_since());
        let is_silent = |e: &&Rc<Export>| now.since(e.last_heard().max(awake)) > self.config.client_timeout;
        target.exports.borrow().values().find(is_silent).map(|e| e.client())
    }

    /// Connections that ended before their session began.
    #[must_use]
    pub fn refused_connections(&self) -> u64 {
        self.door.refused()
    }

    /// Connections that were broken because their client passed a limit of its session: too many requests or too long ones, answers
    /// that it does not take, or a reply slot that it has not.
    #[must_use]
    pub fn limit_breaches(&self) -> u64 {
        self.limit_breaches.get()
    }

    /// Says how many sessions one credential may have at each target, [`SESSIONS_OF_CREDENTIAL_MAX`] by default. One more is refused
    /// until one ends, and its client comes again. Those of the key of all clients are bounded by descriptors alone, those of servers by nothing.
    pub fn set_sessions_of_credential_max(&self, sessions: usize) {
        self.sessions_of_credential_max.set(sessions);
    }

    /// Counts the sessions of clients among others than those of the process.
    pub fn set_seats(&self, seats: Arc<Seats>) {
        self.seats.replace(seats);
    }

    /// Sessions that were refused because their credential had too many, or the process.
    #[must_use]
    pub fn sessions_limit_hits(&self) -> u64 {
        self.sessions_limit_hits.get()
    }

    /// The seat of one more session of whoever comes; administrators and servers need none.
    ///
    /// # Errors
    /// `Overloaded`: there is none.
    pub(crate) fn seat(&self, target: &Target, opener: Opener) -> Result<Option<Seat>, FsError> {
        let Opener::Credential(id) = opener else { return Ok(None) };
        let has_room = id == CLIENT_KEY || target.sessions_of(opener) < self.sessions_of_credential_max.get();
        let seat = has_room.then(|| self.seats.borrow().take(opener)).flatten();
        if seat.is_none() {
            self.sessions_limit_hits.set(self.sessions_limit_hits.get() + 1);
        }
        seat.ok_or(FsError::Overloaded).map(Some)
    }

    /// The seat of a session that there is, which somebody comes back to; `was`: who that was.
    pub(crate) fn seat_again(&self, target: &Target, was: Opener, opener: Opener) -> Result<Option<Seat>, FsError> {
        match (was, opener) {
            // What it has proved may be another credential than it was, which has a bound of its own.
            (Opener::Administrator | Opener::Credential(_), _) => self.seat(target, opener),
            (Opener::Unknown, Opener::Credential(_)) => Ok(Some(self.seats.borrow().take_anyway(opener))),
            (Opener::Unknown, _) => Ok(None),
        }
    }

    /// How often clients said that another one had ended and were not believed, at all targets.
    #[must_use]
    pub fn disbelieved(&self) -> u64 {
        self.targets.borrow().values().map(|t| t.disbelieved.get()).sum()
    }

    async fn serve(self: Rc<Self>, connection: Connection, here: Nid) {
        let (sink, mut source) = stream::ends(connection);
        let waiting = sink.clone();
        let place = self.door.enter(sink.peer(), Box::new(move || waiting.close()));
        source.expect_handshake(true);
        // It may be the target that goes: then the client comes again.
        let fewer = self.fewer.wait();
        let handshake = self.rt.timeout(HANDSHAKE_WITHIN, self.handshake(&here, &sink, &mut source));
        let Ok(opened) = rt::sync::race(handshake, fewer).await else { return sink.close() };
        drop(place);
        let why = match opened {
            Some(Ok((target, export))) => {
                source.expect_handshake(false);
                let attended = self.attend(&target, &export, &sink, &mut source);
                let _ = rt::sync::race(attended, target.taken_out()).await;
                return sink.close();
            }
            // Gone before it wanted anything: a look whether somebody listens.
            Some(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                tracing::debug!(peer = sink.peer(), "handshake: {e}");
                return sink.close();
            }
            Some(Err(e)) => {
                if is_other_version(&e) {
                    // Any message of ours tells the peer which version this is.
                    let ours = Header::request(Op::Connect, ClientId(0), Xid(0));
                    sink.send(ours.reply(Err(FsError::Protocol)), Vec::new(), Bulk::new());
                }
                e.to_string()
            }
            None => format!("its handshake took longer than {HANDSHAKE_WITHIN:?}"),
        };
        self.door.turn_away(&sink.peer(), &why);
        sink.close();
    }

    /// Serves an open session to the end of its connection.
    async fn attend(&self, target: &Rc<Target>, export: &Rc<Export>, sink: &Rc<Sink>, source: &mut Source) {
        let end = self.receive(target, export, sink, source).await;
        if let Err(e) = end
            && e.kind() != io::ErrorKind::UnexpectedEof
        {
            tracing::warn!(peer = sink.peer(), "connection ended: {e}");
        }
        export.connection_lost(sink);
        sink.close();
    }

    async fn receive(
        &self,
        target: &Rc<Target>,
        export: &Rc<Export>,
        sink: &Rc<Sink>,
        source: &mut Source,
    ) -> io::Result<()> {
        let mut incoming = Requests::new(&self.rt, source, target, (export.clone(), sink.clone()));
        loop {
            let (header, body, bulk) = incoming.next().await?;
            if export.is_evicted() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "evicted"));
            }
            if export.has_expired() {
                evict(target, export.client()).await;
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its credential has expired"));
            }
            if target.service.is_replaced() {
                return Err(io::Error::other("another server has this target's store"));
            }
            if target.service.is_unsure() {
                export.last_heard.set(self.rt.now());
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "another server may have this target's store",
                ));
            }
            // What was under way over an earlier connection comes again over the present one.
            if !export.is_over(sink) {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its client has another connection"));
            }
            export.last_heard.set(self.rt.now());
            export.note_patience(&header);
            if header.client != export.client() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a request for another client's session"));
            }
            if let Some(why) = past_limits(export, sink, body.len()) {
                self.limit_breaches.set(self.limit_breaches.get() + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if !header.flags.has(Flags::REPLY) && !is_slot(header.slot_or_credits) {
                self.limit_breaches.set(self.limit_breaches.get() + 1);
                let slot = header.slot_or_credits;
                let why = format!("a request in reply slot {slot}: a client has slots 0 to {}", SLOTS_MAX - 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if header.flags.has(Flags::REPLY) {
                export.callback_answered(&header, body);
                continue;
            }
            if header.op == Op::Disconnect {
                // The session is gone when the client learns that it is: the next one begins afresh.
                close(target, header.client, false).await;
                export.disconnect_reply(&header, sink);
                return Ok(());
            }
            self.accept(target, export, header, body, bulk);
        }
    }

    /// Decides whether a request is new, running, or was answered, and starts it if it is new.
    fn accept(&self, target: &Rc<Target>, export: &Rc<Export>, header: Header, mut body: Vec<u8>, bulk: Bulk) {
        let (shown, capabilities) = (admission::capability_of(&header, &mut body), self.config.key.capabilities());
        if header.flags.has(Flags::REPLAY) && header.transno.0 != 0 && header.transno <= export.replayed.get() {
            // The connection broke and the client begins anew, while its slots stand for later requests already.
            export.answer_replayed(&header);
            return target.recovery.on_answered_again(&header);
        }
        if header.xid.0 != 0 && header.op != Op::Ping {
            match export.arrived(&header) {
                Arrived::New => {}
                Arrived::Duplicate => return,
                Arrived::Answered(record) => {
                    let look = target.service.clone().look_before_answering(&header, &record);
                    let Some(look) = look else { return answer_again(target, export, &header, &body, record) };
                    let (rt, target, export, key) = (target.rt.clone(), target.clone(), export.clone(), capabilities);
                    return rt.spawn(async move {
                        if look.await {
                            answer_again(&target, &export, &header, &body, record);
                        } else if export.begin_anew(&header) {
                            begin(&target, Request::new(header, body, bulk, export), key, &shown);
                        }
                    });
                }
            }
        }
        begin(target, Request::new(header, body, bulk, export.clone()), capabilities, &shown);
    }
}

/// Answers with what is remembered.
fn answer_again(target: &Target, export: &Export, header: &Header, body: &[u8], mut record: ReplyRecord) {
    target.service.answering_again(header, body, &mut record);
    export.answer_again(header, &record);
    target.recovery.on_answered_again(header);
}

/// Starts a request that is new; `shown` is the capability that came along.
fn begin(target: &Rc<Target>, request: Request, capabilities: Option<CapabilityKey>, shown: &[u8]) {
    let header = request.header;
    let asked = (header.op, &request.body[..], shown);
    if let Err(e) = admission::admit(&request.export, capabilities, asked) {
        return request.reply::<()>(Err(e));
    }
    if header.op == Op::Ping {
        if header.flags.has(Flags::REPLAY_DONE) {
            target.service.told_everything(header.client);
            target.recovery.client_done(header.client);
        }
        request.reply(Ok(&()));
        return;
    }
    if header.op == Op::Gone {
        let target = target.clone();
        return target.rt.clone().spawn(async move { gone(&target, request).await });
    }
    if request.is_replay() && !target.recovery.expects(request.client()) {
        return request.reply::<()>(Err(FsError::Stale));
    }
    let service = target.service.clone();
    if !target.recovery.holds_up(&request.header) || header.op.is(Class::IN_RECOVERY) {
        target.rt.spawn(service.handle(request));
        return;
    }
    let (rt, target, mut request) = (target.rt.clone(), target.clone(), request);
    rt.spawn(async move {
        let turn = target.recovery.turn(&request.header).await;
        if turn.is_none() || request.export.is_ended() {
            return request.reply::<()>(Err(FsError::NotConnected));
        }
        if !target.recovery.has_gap() {
            // Everything is there that it can rest on, or its client asks for it again.
            request.header.last_committed = Transno(0);
        }
        let (header, export) = (request.header, request.export.clone());
        target.service.clone().handle(request).await;
        if header.flags.has(Flags::REPLAY) && !export.replay_refused.take() {
            export.replayed.set(export.replayed.get().max(header.transno));
        }
        drop(turn);
    });
}

/// What a session has too much of, with one more request whose body is so long.
fn past_limits(export: &Export, sink: &Sink, body: usize) -> Option<String> {
    let (slots, running, bodies) = (usize::from(export.credits.get()), export.running.get(), export.body_bytes.get());
    let (backlog, backlog_max) = (sink.backlog_bytes(), slots * BACKLOG_PER_SLOT * wire::BODY_BYTES_MAX as usize);
    let bodies_max = BODY_BYTES_MIN.max(slots * BODY_BYTES_PER_SLOT);
    let is_past = running >= REQUESTS_MAX || backlog > backlog_max || bodies + body > bodies_max;
    is_past.then(|| {
        format!("{running} requests of {bodies} bytes without an answer, {backlog} bytes of answers not taken")
    })
}

/// A session of a target that was started as `boot`.
pub(crate) fn make_export(rt: &Rt, boot: u64, service: &Rc<dyn Service>, client: ClientId) -> Rc<Export> {
    // A service knows its sessions: they must not keep it alive.
    let s = Rc::downgrade(service);
    let committed = move || s.upgrade().map_or(Transno(0), |s| s.last_committed(client));
    let export = Export::new(rt.clone(), client, service.credits(), Rc::new(committed));
    export.boot.set(boot);
    export
}

/// Whether the peer speaks Stria, in another version.
fn is_other_version(e: &io::Error) -> bool {
    matches!(e.get_ref().and_then(|e| e.downcast_ref()), Some(WireError::BadVersion(_)))
}

impl Export {
    fn disconnect_reply(&self, header: &Header, sink: &Rc<Sink>) {
        sink.send(header.reply(Ok(())), Vec::new(), Bulk::new());
    }
}
