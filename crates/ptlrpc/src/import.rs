//! A client's end of a session: numbers requests, keeps them until answered, replays what was not yet committed.
mod again;
mod connection;
mod recovery;
mod timeouts;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use datapath::{Fsync, Unsynced};
use frames::Bulk;
use rt::sync::{Event, OneSender, oneshot};
use rt::{LocalFuture, Nid, Rt};
use trace::{Came, Record, Ring};
use types::{ClientId, Duration, FsError, Instant, Transno, Xid};
use wire::connect::{AuthReply, GoneRequest};
use wire::{Class, Crc, Decode, Encode, Flags, Header, Op};

use crate::auth::{ClusterKey, PROOF_BYTES, SessionKey};
use crate::capability::CAPABILITY_BYTES;
use crate::export::NO_SLOT;
use crate::stream::{self, Sink};
use crate::turns::{Rank, Turns};

pub use timeouts::AdaptiveTimeouts;

/// Settings of an [`Import`].
#[derive(Clone, Debug)]
pub struct ImportConfig {
    /// Where the target's server is.
    pub nid: Nid,
    /// The target's name; `*` for any (configuration only).
    pub target: String,
    /// Who we are.
    pub client: ClientId,
    /// Shared secret.
    pub key: ClusterKey,
    /// Whether the target should wait for us after a restart.
    pub recoverable: bool,
    /// The connection is checked when nothing was heard for this long. Default 10 s.
    pub ping_interval: Duration,
    /// Number of the place where the client lives, at which there is never more than one at a time; 0: not said.
    pub place: u64,
}

/// What the owner of an import does when its server speaks first, and what it knows that must be told again.
pub trait Callbacks: 'static {
    /// A callback of the server; the result is its answer's body.
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>>;
    /// A session was opened or found again; the first answer of the server.
    fn on_connected(&self, _session: &AuthReply) {}
    /// Space that the target has promised: a restarted server hears of it before anybody's requests are carried out.
    fn granted(&self) -> u64 {
        0
    }
    /// The server was restarted: state to tell it again (opens, locks), in this order, before recovery ends.
    fn state_replays(&self) -> Vec<(Op, Vec<u8>)> {
        Vec::new()
    }
    /// The capability of the object that a request is about; asked for where the credential is of a subtree.
    fn capability(&self, _op: Op, _body: &[u8]) -> Option<[u8; CAPABILITY_BYTES]> {
        None
    }
    /// The answer to one of the above.
    fn on_state_replayed(&self, _op: Op, _request: &[u8], _answer: Result<Vec<u8>, FsError>) {}
    /// Recovery is over and the session is in service again: requests that waited at the server are asked again.
    fn on_recovered(self: Rc<Self>) {}
    /// The target was not found at its address several times in a row: it may be served elsewhere ([`Import::move_to`]).
    fn on_unreachable(self: Rc<Self>) {}
    /// The server does not know us any more: locks, opens and unwritten data at this target are lost.
    fn on_evicted(&self) {}
    /// A request that was answered as a transaction came to nothing: the server was restarted before that was on stable
    /// storage, and does not know us any more, so that it cannot be replayed.
    fn on_lost(&self, _op: Op, _request: &[u8]) {}
    /// `last_committed` grew.
    fn on_committed(&self, _transno: Transno) {}
}

/// Where an import stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportState {
    /// No session; trying.
    Connecting,
    /// Telling a restarted server what it lost.
    Replaying,
    /// In service.
    Full,
    /// Given up by its owner.
    Closed,
}

/// How one call is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Extra header flags ([`Flags::URGENT`]).
    pub flags: Flags,
    /// Answer ENOTCONN instead of waiting when there is no session.
    pub fail_fast: bool,
    /// Only over the connection that there is when the call is made: ENOTCONN when there is none, or it ends before the answer is there.
    pub once: bool,
    /// Do not keep it for replay although it changes state (its owner tells the state again itself).
    pub no_replay: bool,
    /// For urgent requests: when the one that waits for it was promised that it would be done. `None`: now.
    pub promise: Option<Instant>,
    /// Its caller lets no more than a few of its kind wait at a time: it takes turns with all others together.
    pub ahead: bool,
    /// What a promotion names it by while it waits for a slot ([`Import::hasten`]); 0: nothing does.
    pub tag: u64,
    /// Only as long as what the client held at the target was lost no more than so often ([`Import::losses`]): for requests
    /// that rest on locks, which an eviction takes. `None`: whatever happened.
    pub losses: Option<u64>,
}

impl CallOptions {
    /// A request that somebody waits for who was promised that it is done by then.
    #[must_use]
    pub fn urgent(promise: Option<Instant>) -> CallOptions {
        CallOptions { flags: Flags::URGENT, promise, ..CallOptions::default() }
    }
    fn rank(&self, now: Instant) -> Rank {
        match self.flags.has(Flags::URGENT) {
            true => Rank::Urgent(self.promise.unwrap_or(now)),
            false if self.ahead => Rank::Ahead,
            false => Rank::Ordinary,
        }
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// Header.
    pub header: Header,
    /// Body.
    pub body: Vec<u8>,
    /// Bulk, checksum verified.
    pub bulk: Bulk,
}

impl Reply {
    /// The body as a message.
    ///
    /// # Errors
    /// `Protocol` when it is not one.
    pub fn decode<T: Decode>(&self) -> Result<T, FsError> {
        wire::decode(&self.body).map_err(FsError::from)
    }
}

struct Pending {
    header: Header,
    body: Vec<u8>,
    bulk: Bulk,
    keep: bool,
    /// See [`CallOptions::once`].
    once: bool,
    /// How often the target had no room for it.
    refusals: u32,
    /// It waits before it is sent again.
    asleep: bool,
    /// When it was to be sent, and when it was sent first.
    began: (Instant, Instant),
    /// When it was sent last.
    sent: Instant,
    /// When its answer, or a word that it takes longer, is to be there.
    deadline: Instant,
    waiter: Option<OneSender<Result<Reply, FsError>>>,
}

struct Replayable {
    header: Header,
    body: Vec<u8>,
    bulk: Bulk,
}

/// A client's end of a session with one target.
pub struct Import {
    rt: Rt,
    config: ImportConfig,
    nid: RefCell<Nid>,
    /// How often a place of it was tried in vain: which one is next.
    turn: Cell<usize>,
    callbacks: RefCell<Weak<dyn Callbacks>>,
    state: Cell<ImportState>,
    changed: Event,
    sink: RefCell<Option<Rc<Sink>>>,
    pending: RefCell<BTreeMap<Xid, Pending>>,
    replay: RefCell<BTreeMap<Transno, Replayable>>,
    /// What the server answered in a session that is over, without its bulk: it makes that stable by itself, nobody replays it. What
    /// is not stable when it is started again is lost.
    left_to_server: RefCell<BTreeMap<Transno, Replayable>>,
    slots: Turns,
    free_slots: RefCell<Vec<u16>>,
    slot_count: Cell<u16>,
    next_xid: Cell<u64>,
    unsynced: Cell<Unsynced>,
    boot: Cell<u64>,
    heard: Cell<Instant>,
    /// When something was sent last.
    spoken: Cell<Instant>,
    timeouts: Cell<AdaptiveTimeouts>,
    measured: timeouts::Measured,
    session: RefCell<AuthReply>,
    failure: RefCell<Option<String>>,
    /// The last attempt ended over the cluster key, or over who we are: trying again will not help whoever waits.
    refused: Cell<bool>,
    /// What we proved opens nothing at the target: every request fails.
    barred: Cell<bool>,
    /// Another client has our id at the target: every request fails until it has it no more.
    disowned: Cell<bool>,
    /// What proves our id.
    id_proof: Cell<Option<[u8; PROOF_BYTES]>>,
    /// Given up for now: nothing connects, every request fails.
    inactive: Cell<bool>,
    /// How often it was.
    given_up: Cell<u64>,
    /// What answers at the address has another store than the target's: every request fails until the right one does.
    foreign: Cell<bool>,
    /// Identity of the target's store; 0: any.
    uuid: Cell<u64>,
    /// Store of the last server that was found there, and the highest epoch seen of it.
    epoch: Cell<(u64, u64)>,
    /// The server may hold state of ours that was given up here: it is told goodbye before a session is used.
    forgotten: Cell<bool>,
    /// The last session was ended by this client, which had given up all that it held under it: the next one has nothing to lose.
    parted: Cell<bool>,
    /// The target's store knows the present session: a restarted server that does not has given it up.
    on_record: Cell<bool>,
    /// What the identities of its sessions come from.
    key: SessionKey,
    /// Identities so far.
    identities: Cell<u64>,
    /// What the session is known by.
    identity: Cell<[u8; PROOF_BYTES]>,
    /// What the one after it will be known by.
    next_identity: Cell<[u8; PROOF_BYTES]>,
    connects: Cell<u64>,
    evictions: Cell<u64>,
    sent: Cell<u64>,
    resent: Cell<u64>,
    refused_requests: Cell<u64>,
    /// Where it is kept what became of requests, and as what this target is known there.
    trace: OnceCell<(Rc<RefCell<Ring>>, u32)>,
}

impl Import {
    /// An import that connects at once and whenever the connection is lost, until [`Import::close`].
    #[must_use]
    pub fn new(rt: Rt, config: ImportConfig, callbacks: Weak<dyn Callbacks>) -> Rc<Import> {
        let key = SessionKey::new(rt.secret_bytes());
        Import::with_key(rt, config, callbacks, key)
    }

    /// [`Import::new`] whose sessions others can speak of who know `key`: of this target alone.
    #[must_use]
    pub fn with_key(rt: Rt, config: ImportConfig, callbacks: Weak<dyn Callbacks>, key: SessionKey) -> Rc<Import> {
        let identity = key.identity(0);
        let import = Rc::new(Import {
            heard: Cell::new(rt.now()),
            spoken: Cell::new(rt.now()),
            timeouts: Cell::default(),
            measured: timeouts::Measured::default(),
            rt: rt.clone(),
            nid: RefCell::new(config.nid.clone()),
            turn: Cell::new(0),
            config,
            callbacks: RefCell::new(callbacks),
            state: Cell::new(ImportState::Connecting),
            changed: Event::new(),
            sink: RefCell::new(None),
            pending: RefCell::default(),
            replay: RefCell::default(),
            left_to_server: RefCell::default(),
            slots: Turns::new(0, 0),
            free_slots: RefCell::default(),
            slot_count: Cell::new(0),
            next_xid: Cell::new(1),
            unsynced: Cell::default(),
            boot: Cell::new(0),
            session: RefCell::default(),
            failure: RefCell::new(None),
            refused: Cell::new(false),
            barred: Cell::new(false),
            disowned: Cell::new(false),
            id_proof: Cell::new(None),
            inactive: Cell::new(false),
            given_up: Cell::new(0),
            foreign: Cell::new(false),
            uuid: Cell::new(0),
            epoch: Cell::new((0, 0)),
            forgotten: Cell::new(false),
            parted: Cell::new(false),
            on_record: Cell::new(false),
            key,
            identities: Cell::new(1),
            identity: Cell::new(identity),
            next_identity: Cell::new(identity),
            connects: Cell::new(0),
            evictions: Cell::new(0),
            sent: Cell::new(0),
            resent: Cell::new(0),
            refused_requests: Cell::new(0),
            trace: OnceCell::new(),
        });
        let me = import.clone();
        rt.spawn(async move { me.run().await });
        let weak = Rc::downgrade(&import);
        rt.spawn(async move { timeouts::keep_alive(weak).await });
        import
    }

    /// From now on `ring` keeps what becomes of requests; they name the target by `place` ([`trace::why::place`]).
    pub fn trace_into(&self, ring: Rc<RefCell<Ring>>, place: u32) {
        // The first one stays.
        let _ = self.trace.set((ring, place));
    }

    /// Has the target told what proves our id, which comes from the key of our sessions at all targets
    /// ([`SessionKey::client_id`]): another client that only claims it has to give it up. To be said before the first connection.
    pub fn prove_id(&self, of_all_targets: &SessionKey) {
        self.id_proof.set(Some(of_all_targets.id_proof()));
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> ImportState {
        self.state.get()
    }
    /// The target's name.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.config.target
    }
    /// The server's address.
    #[must_use]
    pub fn nid(&self) -> Nid {
        self.nid.borrow().clone()
    }
    /// The target is served at `nid` from now on: the next connection goes there, with everything that waits.
    pub fn move_to(&self, nid: Nid) {
        let old = self.nid.replace(nid);
        if old != *self.nid.borrow() {
            tracing::info!(target = self.config.target, from = %old, to = %self.nid.borrow(), "moved");
        }
    }
    /// The target is this store and no other (0: any): a server that answers with another one gets no request, and
    /// requests fail with `Io` meanwhile. A session with another one ends.
    pub fn expect_store(&self, uuid: u64) {
        if self.uuid.replace(uuid) == uuid {
            return;
        }
        if self.foreign.replace(false) {
            self.changed.notify();
        }
        let (of_session, _) = self.epoch.get();
        if ![0, of_session].contains(&uuid)
            && let Some(sink) = self.sink.borrow_mut().take()
        {
            sink.close();
        }
    }
    /// Which store the target is to be (0: any).
    #[must_use]
    pub fn expected_store(&self) -> u64 {
        self.uuid.get()
    }
    /// Gives the target up: requests that wait and all later ones fail with `Io`, nothing connects. What is kept for
    /// replay is the server's alone from now on, and the server will be told to forget this client.
    pub fn deactivate(&self) {
        if self.inactive.replace(true) || self.state.get() == ImportState::Closed {
            return;
        }
        self.given_up.set(self.given_up.get() + 1);
        self.forgotten.set(self.boot.get() != 0);
        self.set_state(ImportState::Connecting);
        if let Some(sink) = self.sink.borrow_mut().take() {
            sink.close();
        }
        self.leave_to_server();
        self.fail_pending(FsError::Io);
    }
    /// Takes the target back into use.
    pub fn activate(&self) {
        if self.inactive.replace(false) {
            self.changed.notify();
        }
    }
    /// Whether the target was given up ([`Import::deactivate`]).
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.inactive.get()
    }
    /// Whether requests fail at once: the target was given up, another store answers in its place, our credential opens nothing
    /// there, or another client has our id.
    #[must_use]
    pub fn is_out_of_service(&self) -> bool {
        self.inactive.get() || self.foreign.get() || self.barred.get() || self.disowned.get()
    }
    /// Whether our credential opens nothing there, for now or for good.
    #[must_use]
    pub fn is_barred(&self) -> bool {
        self.barred.get()
    }
    /// What the server said when the session was opened.
    #[must_use]
    pub fn session(&self) -> AuthReply {
        self.session.borrow().clone()
    }
    /// Everything up to here is on the target's stable storage.
    #[must_use]
    pub fn last_committed(&self) -> Transno {
        Transno(self.unsynced.get().stable())
    }
    /// The last transaction that an answer told of: what is between [`Import::last_committed`] and it is not on stable
    /// storage.
    #[must_use]
    pub fn last_transno(&self) -> Transno {
        Transno(self.unsynced.get().answered())
    }
    /// What an fsync of everything that the target has answered does.
    pub fn on_fsync(&self) -> Fsync {
        self.unsynced.get().on_fsync()
    }
    /// Asks the target what is on its stable storage by now, when bytes are kept for replay that could go then and nothing was heard of it
    /// for a while.
    pub fn ask_committed(&self) {
        let silent = self.rt.now().since(self.heard.get()) >= COMMITTED_ASKED_AFTER;
        if silent && self.state.get() == ImportState::Full && !self.replay.borrow().is_empty() {
            self.send_ping();
        }
    }
    /// Why the last attempt to connect failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }
    /// How what goes over its connection is protected on its way: `tls`; `none`, where others can read it (on loopback only who may
    /// capture packets of this host); `local`, where it does not leave the process; empty without a connection.
    #[must_use]
    pub fn security(&self) -> &'static str {
        match &*self.sink.borrow() {
            None => "",
            Some(sink) if sink.binding().is_some() => "tls",
            Some(sink) if sink.is_open_to_the_way() => "none",
            Some(_) => "local",
        }
    }
    /// Requests without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.borrow().len()
    }
    /// Tells `note` what its requests have in hand, and how much of it.
    pub fn note_use(&self, note: &mut dyn FnMut(&'static str, u64)) {
        note("requests", self.pending.borrow().len() as u64);
        note("slots", u64::from(self.slot_count.get()).saturating_sub(self.free_slots.borrow().len() as u64));
        note("waits for a slot", self.slots.waiting() as u64);
    }
    /// (sessions opened, requests sent, requests sent again).
    #[must_use]
    pub fn counters(&self) -> (u64, u64, u64) {
        (self.connects.get(), self.sent.get(), self.resent.get())
    }
    /// How often the target had no room for a request, which was then sent again.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refused_requests.get()
    }
    /// How often this client was evicted by the target.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions.get()
    }
    /// How often locks and all else that this client held at the target were lost: it was evicted, or had given the target up.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.evictions.get() + self.given_up.get()
    }
    /// Bulk is handed over by reference.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.sink.borrow().as_ref().is_some_and(|s| s.shares_memory())
    }

    /// Waits until in service.
    ///
    /// # Errors
    /// `NotConnected` when closed, `Access` when the cluster keys differ, `Io` when the target is out of service
    /// ([`Import::is_out_of_service`]), `TimedOut` after `limit`.
    pub async fn ready(&self, limit: Duration) -> Result<(), FsError> {
        let up_or_refused = async {
            loop {
                let changed = self.changed.wait();
                match self.state.get() {
                    ImportState::Full => return Ok(()),
                    ImportState::Closed => return Err(FsError::NotConnected),
                    _ if self.refused.get() => return Err(FsError::Access),
                    _ if self.is_out_of_service() => return Err(FsError::Io),
                    _ => changed.await,
                }
            }
        };
        self.rt.timeout(limit, up_or_refused).await.unwrap_or(Err(FsError::TimedOut))
    }

    /// Waits until the first session is in service, or a try to have it failed; `limit` at most.
    pub async fn tried(&self, limit: Duration) {
        let known = async {
            loop {
                let changed = self.changed.wait();
                let is_first = self.connects.get() <= 1 && self.failure.borrow().is_none() && !self.inactive.get();
                if !is_first || matches!(self.state.get(), ImportState::Full | ImportState::Closed) {
                    return;
                }
                changed.await;
            }
        };
        // Whatever has become of it then.
        let _ = self.rt.timeout(limit, known).await;
    }

    async fn wait_full(&self) -> Result<(), FsError> {
        loop {
            match self.state.get() {
                ImportState::Full => return Ok(()),
                ImportState::Closed => return Err(FsError::NotConnected),
                _ if self.is_out_of_service() => return Err(FsError::Io),
                _ => {
                    let changed = self.changed.wait();
                    changed.await;
                }
            }
        }
    }

    /// Sends a request and waits for its answer, over restarts of the server if need be, and again when the target had no
    /// room for it. Dropped, it leaves nothing but a request under way.
    ///
    /// # Errors
    /// What the server answered; `NotConnected` when the import was closed, the client evicted, or (`fail_fast`)
    /// there is no session; `Io` when the target is out of service; `Corrupt` when the bulk does not match its checksum.
    pub async fn call(&self, op: Op, body: Vec<u8>, bulk: Bulk, options: CallOptions) -> Result<Reply, FsError> {
        if body.len() > wire::BODY_BYTES_MAX as usize - crate::capability::CAPABILITY_BYTES {
            tracing::error!(?op, "a question of {} bytes is longer than a message may be", body.len());
            return Err(FsError::Overflow);
        }
        if (options.fail_fast || options.once) && self.state.get() != ImportState::Full {
            return Err(FsError::NotConnected);
        }
        let (asked, connects, given_up) = (self.rt.now(), self.connects.get(), self.given_up.get());
        let (rank, slot) = loop {
            self.wait_full().await?;
            let rank = self.slots.acquire(options.rank(self.rt.now()), options.tag).await;
            if self.given_up.get() != given_up {
                // It may have been taken back before this had its turn: what was asked before is not done after that.
                self.slots.add(1);
                return Err(FsError::Io);
            }
            if self.state.get() == ImportState::Full
                && let Some(slot) = self.free_slots.borrow_mut().pop()
            {
                break (rank, slot);
            }
            // Without a session; or its slot went before it had its turn, because the server lets fewer be in flight.
            self.slots.add(1);
        };
        let is_other = options.once && connects != self.connects.get();
        if is_other || options.losses.is_some_and(|n| n != self.losses()) {
            self.give_slot_back(slot);
            return Err(FsError::NotConnected);
        }
        let xid = self.new_xid();
        let mut header = Header::request(op, self.config.client, xid);
        header.flags = if matches!(rank, Rank::Urgent(_)) { options.flags.with(Flags::URGENT) } else { options.flags };
        header.slot_or_credits = slot;
        let body = self.with_capability(&mut header, body);
        let (tx, rx) = oneshot();
        self.transmit(header, body.clone(), bulk.clone());
        let (keep, once) = (!options.no_replay, options.once);
        let (sent, deadline) = (self.rt.now(), self.rt.now() + self.patience());
        let (refusals, asleep, began, waiter) = (0, false, (asked, sent), Some(tx));
        let pending = Pending { header, body, bulk, keep, once, refusals, asleep, began, sent, deadline, waiter };
        self.pending.borrow_mut().insert(xid, pending);
        rx.await.unwrap_or(Err(FsError::NotConnected))
    }

    /// A body with the capability behind it that it needs, if there is one.
    fn with_capability(&self, header: &mut Header, mut body: Vec<u8>) -> Vec<u8> {
        if self.config.key.shows_capabilities()
            && let Some(capability) = self.callbacks.borrow().upgrade().and_then(|c| c.capability(header.op, &body))
        {
            header.flags = header.flags.with(Flags::CAPABILITY);
            body.extend_from_slice(&capability);
        }
        body
    }

    /// Whatever waits for a slot under `tag` is urgent from now on.
    pub fn hasten(&self, tag: u64) {
        self.slots.promote(tag, Rank::Urgent(self.rt.now()));
    }

    /// [`Import::call`] with a message body and a decoded answer.
    ///
    /// # Errors
    /// As [`Import::call`], and `Protocol` when the answer is not such a message.
    pub async fn ask<Q: Encode, A: Decode>(&self, op: Op, request: &Q) -> Result<A, FsError> {
        self.call(op, wire::encode(request), Bulk::new(), CallOptions::default()).await?.decode()
    }

    /// Replaces the body under which transaction `transno` would be replayed: what its answer decided (ids, handles)
    /// becomes part of the request.
    pub fn amend_replay<T: Encode>(&self, transno: Transno, request: &T) {
        if let Some(r) = self.replay.borrow_mut().get_mut(&transno) {
            r.body = wire::encode(request);
        }
    }

    /// Tells the server that the process of another client has ended, whose identities at this target come from `key`;
    /// when this ends, nothing is left of that client there. Also while the server waits for clients after a restart.
    ///
    /// # Errors
    /// As [`Import::ask`]; `NotPermitted`: the session is not of that key, `Busy`: the server sees that the process lives.
    pub async fn tell_gone(&self, client: ClientId, key: &SessionKey) -> Result<(), FsError> {
        let request = GoneRequest { client, key: key.told().to_vec().into() };
        self.ask_in_recovery(Op::Gone, &request).await
    }

    /// Says goodbye (when connected) and stops; pending calls end with `NotConnected`. Whether the server has nothing of
    /// this client then, as far as is known here.
    pub async fn close(&self) -> bool {
        let mut heard = self.connects.get() == 0;
        if self.state.get() == ImportState::Full {
            let goodbye = self.call(
                Op::Disconnect,
                Vec::new(),
                Bulk::new(),
                CallOptions { no_replay: true, ..Default::default() },
            );
            heard = matches!(self.rt.timeout(Duration::from_secs(2), goodbye).await, Some(Ok(_)));
        }
        self.abandon();
        heard
    }

    /// Stops without a word.
    pub fn abandon(&self) {
        self.set_state(ImportState::Closed);
        if let Some(sink) = self.sink.borrow_mut().take() {
            sink.close();
        }
        self.fail_pending(FsError::NotConnected);
    }

    fn new_xid(&self) -> Xid {
        let xid = Xid(self.next_xid.get());
        self.next_xid.set(xid.0 + 1);
        xid
    }

    fn set_state(&self, state: ImportState) {
        if self.state.get() != ImportState::Closed {
            self.state.set(state);
        }
        self.changed.notify();
    }

    fn transmit(&self, mut header: Header, body: Vec<u8>, bulk: Bulk) {
        self.sent.set(self.sent.get() + 1);
        if let Some(sink) = &*self.sink.borrow() {
            header.patience = self.patience_told();
            self.spoken.set(self.rt.now());
            sink.send_checked(header, body, bulk);
        }
    }

    fn fail_pending(&self, error: FsError) {
        for (_, p) in std::mem::take(&mut *self.pending.borrow_mut()) {
            self.give_slot_back(p.header.slot_or_credits);
            if let Some(waiter) = p.waiter {
                waiter.send(Err(error));
            }
        }
    }

    /// Ends changes that the target may have carried out, and forgotten with us that it has: sent again, they would be made twice.
    fn fail_changes(&self) {
        // Of one that waits to be sent again nothing was carried out.
        let may_be_done = |p: &Pending| {
            let changes = p.header.op.is(Class::CHANGES) || p.header.op == Op::MdtSwap;
            changes && !p.asleep && p.header.slot_or_credits != NO_SLOT
        };
        for (_, p) in self.pending.borrow_mut().extract_if(.., |_, p| may_be_done(p)) {
            self.give_slot_back(p.header.slot_or_credits);
            p.waiter.into_iter().for_each(|waiter| waiter.send(Err(FsError::Io)));
        }
    }

    /// Ends what is not to be sent over another connection.
    fn fail_once(&self) {
        for (_, p) in self.pending.borrow_mut().extract_if(.., |_, p| p.once) {
            self.give_slot_back(p.header.slot_or_credits);
            p.waiter.into_iter().for_each(|waiter| waiter.send(Err(FsError::NotConnected)));
        }
    }

    fn give_slot_back(&self, slot: u16) {
        if slot < self.slot_count.get() {
            self.free_slots.borrow_mut().push(slot);
            self.slots.add(1);
        }
    }

    /// The server grants `credits` requests in flight: slots appear, or vanish as they come back.
    fn set_credits(&self, credits: u16) {
        let old = self.slot_count.get();
        if credits == old || credits == 0 {
            return;
        }
        self.slot_count.set(credits);
        self.slots.set_reserve(URGENT_SLOTS.min(usize::from(credits) - 1));
        if credits > old {
            // A slot that vanished and has not come back yet appears when it does.
            let in_use: BTreeSet<u16> = self.pending.borrow().values().map(|p| p.header.slot_or_credits).collect();
            let new: Vec<u16> = (old..credits).rev().filter(|slot| !in_use.contains(slot)).collect();
            let appear = new.len() as isize;
            self.free_slots.borrow_mut().extend(new);
            self.slots.add(appear);
        } else {
            let mut free = self.free_slots.borrow_mut();
            let before = free.len();
            free.retain(|s| *s < credits);
            let gone = before - free.len();
            drop(free);
            self.slots.add(-(gone as isize));
        }
    }

    fn note_committed(&self, transno: Transno, reset: bool) {
        let mut unsynced = self.unsynced.get();
        if reset {
            unsynced.on_forgotten(transno.0);
        } else if !unsynced.on_committed(transno.0) {
            return;
        }
        self.unsynced.set(unsynced);
        for kept in [&self.replay, &self.left_to_server] {
            let mut kept = kept.borrow_mut();
            let keep = kept.split_off(&Transno(transno.0.saturating_add(1)));
            let gone = std::mem::replace(&mut *kept, keep);
            drop(kept);
            drop(gone);
        }
        if let Some(c) = self.callbacks.borrow().upgrade() {
            c.on_committed(transno);
        }
    }

    /// Keeps what became of a request; its number is the one that it had last.
    fn note_trace(&self, p: &Pending, reply: &Header, bulk: usize) {
        let Some((ring, place)) = self.trace.get().filter(|_| p.header.slot_or_credits != NO_SLOT) else { return };
        let mut ring = ring.borrow_mut();
        let came = Came { xid: p.header.xid, at: p.began.0, ..Came::default() };
        let record = Record::unscheduled(reply.op, &came, self.rt.now());
        let number = ring.total();
        ring.push(Record {
            number,
            dispatched: p.began.1,
            client: self.config.client,
            object: trace::why::place(*place),
            bytes: u32::try_from(bulk.max(p.bulk.len())).unwrap_or(u32::MAX),
            errno: reply.status,
            ..record
        });
    }

    fn on_reply(self: &Rc<Self>, header: Header, mut body: Vec<u8>, bulk: Bulk, crc: Option<Crc>) {
        if header.flags.has(Flags::EARLY) {
            return self.on_early_reply(&header);
        }
        if header.op == Op::Ping && self.state.get() == ImportState::Full {
            self.note_committed(header.last_committed, false);
        }
        let Some(p) = self.pending.borrow_mut().remove(&header.xid) else {
            return;
        };
        self.note_answer(p.sent);
        let basis = recovery::basis_of(&header, &mut body);
        if header.result() == Err(FsError::Overloaded) && p.header.slot_or_credits != NO_SLOT {
            self.note_committed(header.last_committed, false);
            return self.come_again(p);
        }
        // A server notes a client durably before it carries out anything that is not about the server alone.
        let is_of_client = !p.header.op.is(Class::PASSING) && p.header.op != Op::Gone;
        if self.config.recoverable && is_of_client && header.result().is_ok() {
            self.on_record.set(true);
        }
        self.note_trace(&p, &header, bulk.len());
        if p.header.slot_or_credits != NO_SLOT {
            self.give_slot_back(p.header.slot_or_credits);
            self.set_credits(header.slot_or_credits);
        }
        let mut unsynced = self.unsynced.get();
        unsynced.on_answered(header.transno.0);
        self.unsynced.set(unsynced);
        if p.keep && header.transno.0 > unsynced.stable() && header.transno > header.last_committed {
            let kept = Replayable { header: Header { last_committed: basis, ..p.header }, body: p.body, bulk: p.bulk };
            self.replay.borrow_mut().insert(header.transno, kept);
        }
        self.note_committed(header.last_committed, false);
        let corrupt =
            header.flags.has(Flags::BULK_CRC) && crc.unwrap_or_else(|| stream::crc_of(&bulk)) != header.bulk_crc;
        let result = match header.result() {
            Err(e) => Err(e),
            Ok(()) if corrupt && !types::planted!("bulk-unchecked") => {
                tracing::warn!(target = self.config.target, op = ?header.op, "bulk does not match its checksum");
                Err(FsError::Corrupt)
            }
            Ok(()) => Ok(Reply { header, body, bulk }),
        };
        if let Some(waiter) = p.waiter {
            waiter.send(result);
        }
    }
}

/// Slots that ordinary requests leave: one for what takes turns with them, one for urgent requests.
const URGENT_SLOTS: usize = 2;
/// A target that said nothing for so long is asked what it has committed, where memory is short.
const COMMITTED_ASKED_AFTER: Duration = Duration::from_millis(100);
/// Attempts to connect that fail in a row before the target's owner is told: a restart takes a few.
const FAILURES_UNTIL_UNREACHABLE: u32 = 4;
