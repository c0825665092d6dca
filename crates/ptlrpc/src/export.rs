//! One client's session at one target: its connection, its reply slots, its callbacks.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use frames::Bulk;
use rt::sync::{Event, OneSender, oneshot};
use rt::{LocalFuture, Rt};
use types::{ClientId, Duration, FsError, Instant, Origin, Transno, Xid};
use wire::connect::Role;
use wire::{Crc, Decode, Encode, Flags, Header, Op};

use crate::auth::Binding;
use crate::credential::{CLIENT_KEY, Limits};
use crate::early::{Early, Place};
use crate::seats::Seat;
use crate::stream::Sink;

/// Reply slots of one client, 0 and up: each may hold an answer, here and in the target's store. No client is granted more.
pub const SLOTS_MAX: u16 = 4096;

/// Whether a request may name this slot; [`NO_SLOT`] stands for none.
pub(crate) fn is_slot(slot: u16) -> bool {
    slot < SLOTS_MAX || slot == NO_SLOT
}

/// Marks requests of the recovery dialogue, which use no slot.
pub(crate) const NO_SLOT: u16 = u16::MAX;

/// Who began a session, or continued it since the target's start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Opener {
    /// Nobody since the target's start: its store knows it.
    #[default]
    Unknown,
    /// An administrator or a server.
    Administrator,
    /// Whoever has the credential of this number, or [`CLIENT_KEY`].
    Credential(u64),
}

/// What a slot remembers of the last state-changing request it carried: enough to answer it again.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplyRecord {
    /// Whose.
    pub client: ClientId,
    /// Slot.
    pub slot: u16,
    /// Request.
    pub xid: Xid,
    /// Transaction it became.
    pub transno: Transno,
    /// 0 or errno.
    pub status: u16,
    /// Body of the answer.
    pub body: Vec<u8>,
    /// What the transaction rested on (see [`Request::rests_on`]); stores need not keep it, for what they keep is not
    /// replayed.
    pub basis: u64,
}

/// Bytes of an answer; its basis comes behind them.
const ANSWER_BYTES_MAX: usize = wire::BODY_BYTES_MAX as usize - 8;

/// The last request of a slot.
enum Slot {
    Running(Xid),
    /// Answered over this connection, and not remembered.
    Answered(Xid, u64),
    Remembered(ReplyRecord),
}

impl Slot {
    fn xid(&self) -> Xid {
        match self {
            Slot::Running(xid) | Slot::Answered(xid, _) => *xid,
            Slot::Remembered(record) => record.xid,
        }
    }
}

/// Requests outside slots that came over the present connection: the highest number, and which of those before it.
#[derive(Clone, Copy, Default)]
struct Window {
    highest: u64,
    before: u64,
}

impl Window {
    /// Takes a number; false when it came before, or is so old that nobody knows.
    fn take(&mut self, xid: Xid) -> bool {
        let behind = self.highest.saturating_sub(xid.0);
        if xid.0 > self.highest {
            let ahead = xid.0 - self.highest;
            self.before = if ahead < 64 { self.before << ahead | 1 << (ahead - 1) } else { 0 };
            self.highest = xid.0;
            return true;
        }
        if behind == 0 || behind > 64 || self.before >> (behind - 1) & 1 == 1 {
            return false;
        }
        self.before |= 1 << (behind - 1);
        true
    }
}

/// What a request is that came in.
pub(crate) enum Arrived {
    /// It is to be carried out.
    New,
    /// It is under way, or its client has its answer: nothing is to be done.
    Duplicate,
    /// It was carried out; this is its answer.
    Answered(ReplyRecord),
}

type Answer = OneSender<Result<Vec<u8>, FsError>>;

/// One client's session at one target.
pub struct Export {
    client: ClientId,
    pub(crate) sink: RefCell<Option<Rc<Sink>>>,
    slots: RefCell<BTreeMap<u16, Slot>>,
    outside: Cell<Window>,
    /// Connections of the session so far.
    connections: Cell<u64>,
    duplicates: Cell<u64>,
    pub(crate) early: Early,
    pub(crate) last_xid: Cell<Xid>,
    /// The last transaction that was replayed since the target's restart.
    pub(crate) replayed: Cell<Transno>,
    pub(crate) last_heard: Cell<Instant>,
    /// Since when it has something to send for which there are no frames, over however many connections.
    pub(crate) waits_since: Cell<Option<Instant>>,
    pub(crate) credits: Cell<u16>,
    pub(crate) recoverable: Cell<bool>,
    /// Which process the client is, as it is to be remembered.
    pub(crate) origin: Cell<Origin>,
    /// The client lived after this, as it proved when it connected last.
    pub(crate) lived: Cell<Instant>,
    /// The replay carried out last found no room and changed nothing: it is offered again.
    pub(crate) replay_refused: Cell<bool>,
    /// Replays since the target's restart that failed: they fail again when they are offered again.
    failed_replays: RefCell<BTreeSet<Transno>>,
    /// Whose the session is: whoever knows the secret behind this. `None`: an earlier program's, it is the first comer's.
    pub(crate) binding: Cell<Option<Binding>>,
    /// Its client has proved that the id is its own.
    pub(crate) is_owned: Cell<bool>,
    /// The server's process, as sessions are told it.
    pub(crate) boot: Cell<u64>,
    /// What the present connection proved.
    pub(crate) role: Cell<Role>,
    /// What the present connection's credential allows, if it has proved one.
    pub(crate) limits: RefCell<Option<Arc<Limits>>>,
    /// Whose key opened it.
    pub(crate) opener: Cell<Opener>,
    /// Its seat among the sessions of clients.
    pub(crate) seat: RefCell<Option<Seat>>,
    /// A task ends the session when its credential does.
    pub(crate) is_timed: Cell<bool>,
    /// Requests without an answer, and the bytes of their bodies.
    pub(crate) running: Cell<usize>,
    pub(crate) body_bytes: Cell<usize>,
    /// Bytes that had come over the connection when it was looked last.
    came_bytes: Cell<u64>,
    evicted: Cell<bool>,
    ended: Cell<bool>,
    /// Its target was taken out of the server, with all requests.
    abandoned: Cell<bool>,
    callbacks: RefCell<BTreeMap<u64, Answer>>,
    callback_next: Cell<u64>,
    /// A connection was opened, or the session is over.
    turned: Event,
    committed: Rc<dyn Fn() -> Transno>,
    rt: Rt,
}

impl Export {
    pub(crate) fn new(rt: Rt, client: ClientId, credits: u16, committed: Rc<dyn Fn() -> Transno>) -> Rc<Export> {
        let now = rt.now();
        Rc::new(Export {
            client,
            sink: RefCell::new(None),
            slots: RefCell::default(),
            outside: Cell::default(),
            connections: Cell::new(0),
            duplicates: Cell::new(0),
            early: Early::default(),
            last_xid: Cell::new(Xid(0)),
            replayed: Cell::new(Transno(0)),
            last_heard: Cell::new(now),
            waits_since: Cell::new(None),
            credits: Cell::new(credits.clamp(1, SLOTS_MAX)),
            recoverable: Cell::new(true),
            origin: Cell::new(Origin::default()),
            lived: Cell::new(Instant(0)),
            replay_refused: Cell::new(false),
            failed_replays: RefCell::default(),
            binding: Cell::new(None),
            is_owned: Cell::new(false),
            boot: Cell::new(0),
            role: Cell::new(Role::Client),
            limits: RefCell::default(),
            opener: Cell::default(),
            seat: RefCell::default(),
            is_timed: Cell::new(false),
            running: Cell::new(0),
            body_bytes: Cell::new(0),
            came_bytes: Cell::new(0),
            evicted: Cell::new(false),
            ended: Cell::new(false),
            abandoned: Cell::new(false),
            callbacks: RefCell::default(),
            callback_next: Cell::new(1),
            turned: Event::new(),
            committed,
            rt,
        })
    }
    /// Whose session.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }
    /// The server's process, as the session was told it.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.boot.get()
    }
    /// Whether a connection is open now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.sink.borrow().is_some()
    }
    /// Whether the client was evicted; nothing it sends counts any more.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.evicted.get()
    }
    /// Whether the client wants to be waited for after a restart; others need not be remembered.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.recoverable.get()
    }
    /// Whether the client has proved to be an administrator or a server.
    #[must_use]
    pub fn is_administrator(&self) -> bool {
        self.role.get() == Role::Administrator
    }
    /// What the client's credential allows; `None`: it has none, and no limits.
    #[must_use]
    pub fn limits(&self) -> Option<Arc<Limits>> {
        self.limits.borrow().clone()
    }
    /// Number of what the client has proved: its credential, or [`CLIENT_KEY`]. `None`: the administrator's key, or nothing since the
    /// target's start.
    #[must_use]
    pub fn credential(&self) -> Option<u64> {
        let proved = !self.is_administrator() && self.connections.get() > 0;
        proved.then(|| self.limits.borrow().as_ref().map_or(CLIENT_KEY, |l| l.said().id))
    }
    /// What the store is to remember of the session, for [`SessionRecord::binding`](crate::SessionRecord).
    #[must_use]
    pub fn binding(&self) -> Option<Binding> {
        self.binding.get()
    }
    /// Which process the client is, in the form in which a store remembers it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin.get()
    }
    /// Whether it is certain that the client's process has ended: it never comes back.
    pub(crate) fn is_gone(&self) -> bool {
        let (process, inside) = self.origin.get().recalled();
        if inside { process != self.rt.origin() } else { self.rt.is_gone(process) }
    }
    /// Whether this server can look after the client's process and finds it there.
    pub(crate) fn lives_here(&self) -> bool {
        let (process, _) = self.origin.get().recalled();
        process.is_known() && process.host == self.rt.origin().host && !self.is_gone()
    }
    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }
    /// Where the client is, for reports.
    #[must_use]
    pub fn peer(&self) -> String {
        self.sink.borrow().as_ref().map_or_else(|| "not connected".into(), |s| s.peer())
    }
    /// Requests that are not answered yet.
    #[must_use]
    pub fn requests_under_way(&self) -> usize {
        self.running.get()
    }
    /// Whether more of a request has come since the last look that is not all there: a client is heard of as long as it sends.
    pub(crate) fn note_coming(&self) -> bool {
        let Some(sink) = self.sink.borrow().clone() else { return false };
        let moved = sink.moved();
        let comes = moved.is_amid_bulk && moved.in_bytes > self.came_bytes.replace(moved.in_bytes);
        if comes {
            self.last_heard.set(self.rt.now());
        }
        comes
    }
    /// When it was last heard of.
    #[must_use]
    pub fn last_heard(&self) -> Instant {
        self.last_heard.get()
    }
    /// Requests that the client may have in flight from its next answer on.
    pub fn set_credits(&self, credits: u16) {
        self.credits.set(credits.clamp(1, SLOTS_MAX));
    }
    /// Its target is taken out of the server: nothing is answered any more, and the client comes again to the one that follows.
    pub(crate) fn abandon(&self) {
        self.abandoned.set(true);
        self.disconnect();
    }
    /// The session is over; nothing waits for the client any more.
    pub(crate) fn end(&self, evicted: bool) {
        self.evicted.set(evicted);
        self.ended.set(true);
        self.seat.take();
        if evicted {
            self.disconnect();
        }
        self.fail_callbacks(FsError::NotConnected);
        self.turned.notify();
    }
    /// A new connection takes the old one's place: what was asked over that one is asked again by whoever asked.
    pub(crate) fn connected(&self, sink: Rc<Sink>) {
        self.disconnect();
        self.fail_callbacks(FsError::NotConnected);
        self.connections.set(self.connections.get() + 1);
        self.outside.set(Window::default());
        *self.sink.borrow_mut() = Some(sink);
    }
    /// Whether this is the session's present connection.
    pub(crate) fn is_over(&self, sink: &Rc<Sink>) -> bool {
        self.sink.borrow().as_ref().is_some_and(|s| Rc::ptr_eq(s, sink))
    }
    /// Whether the session is over: nobody hears of what its requests are given from now on.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }
    /// Requests that came again after their answer, and were dropped.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates.get()
    }
    /// An answer that the store remembers.
    pub(crate) fn recall(&self, record: ReplyRecord) {
        self.last_xid.set(self.last_xid.get().max(record.xid));
        self.slots.borrow_mut().insert(record.slot, Slot::Remembered(record));
    }
    /// Finds out whether a request is new. A slot carries one request at a time, with growing numbers: what is older than the
    /// slot's last has had its answer, and so has the last one itself when it was answered over this very connection.
    pub(crate) fn arrived(&self, header: &Header) -> Arrived {
        let (slot, xid) = (header.slot_or_credits, header.xid);
        if slot == NO_SLOT {
            let mut window = self.outside.get();
            let new = window.take(xid);
            self.outside.set(window);
            return if new { self.begun(header) } else { self.dropped() };
        }
        let slots = self.slots.borrow();
        match slots.get(&slot) {
            Some(Slot::Running(running)) if *running == xid => return Arrived::Duplicate,
            Some(Slot::Remembered(r)) if r.xid == xid && !types::planted!("resend-carried-out") => {
                return Arrived::Answered(r.clone());
            }
            Some(Slot::Answered(last, over)) if *last == xid && *over == self.connections.get() => {
                return self.dropped();
            }
            // Replays have an order of their own: that of transactions.
            Some(last) if last.xid() > xid && !header.flags.has(Flags::REPLAY) => return self.dropped(),
            _ => {}
        }
        drop(slots);
        self.begun(header)
    }
    fn begun(&self, header: &Header) -> Arrived {
        self.slots.borrow_mut().insert(header.slot_or_credits, Slot::Running(header.xid));
        self.last_xid.set(self.last_xid.get().max(header.xid));
        Arrived::New
    }
    /// A request whose remembered answer cannot be given is carried out anew, unless it is meanwhile.
    pub(crate) fn begin_anew(&self, header: &Header) -> bool {
        let is_remembered = |slot: &Slot| matches!(slot, Slot::Remembered(r) if r.xid == header.xid);
        let begins = self.slots.borrow().get(&header.slot_or_credits).is_some_and(is_remembered);
        if begins {
            self.begun(header);
        }
        begins
    }
    fn dropped(&self) -> Arrived {
        self.duplicates.set(self.duplicates.get() + 1);
        Arrived::Duplicate
    }
    /// The client knows of its new connection.
    pub(crate) fn announce(&self) {
        self.turned.notify();
    }
    /// Breaks the connection; the client may come back.
    pub fn disconnect(&self) {
        if let Some(sink) = self.sink.borrow_mut().take() {
            sink.close();
        }
    }
    fn fail_callbacks(&self, error: FsError) {
        for (_, waiter) in std::mem::take(&mut *self.callbacks.borrow_mut()) {
            waiter.send(Err(error));
        }
    }
    pub(crate) fn connection_lost(&self, sink: &Rc<Sink>) {
        let mut current = self.sink.borrow_mut();
        if current.as_ref().is_some_and(|s| Rc::ptr_eq(s, sink)) {
            *current = None;
            drop(current);
            self.fail_callbacks(FsError::NotConnected);
        }
    }

    /// Calls the client back and waits for its answer's body.
    ///
    /// # Errors
    /// `NotConnected` when the client has no connection or loses it, `TimedOut` after `patience`, or what the client
    /// answered.
    pub fn callback<T: Encode>(
        self: &Rc<Self>,
        op: Op,
        body: &T,
        patience: Duration,
    ) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let Some(sink) = self.sink.borrow().clone() else {
            return Box::pin(async { Err(FsError::NotConnected) });
        };
        let xid = self.callback_next.get();
        self.callback_next.set(xid + 1);
        let (tx, rx) = oneshot();
        self.callbacks.borrow_mut().insert(xid, tx);
        let mut header = Header::request(op, self.client, Xid(xid));
        header.flags = Flags::CALLBACK;
        sink.send(header, wire::encode(body), Bulk::new());
        let (me, rt) = (self.clone(), self.rt.clone());
        Box::pin(async move {
            let answer = rt.timeout(patience, rx).await;
            me.callbacks.borrow_mut().remove(&xid);
            match answer {
                Some(Some(result)) => result,
                Some(None) => Err(FsError::NotConnected),
                None => Err(FsError::TimedOut),
            }
        })
    }
    /// [`Export::callback`], again after every reconnect and after every `patience` without an answer, until the client
    /// has answered or its session is over.
    ///
    /// # Errors
    /// `NotConnected` when the session is over, or what the client answered.
    pub async fn callback_delivered<T: Encode>(
        self: &Rc<Self>,
        op: Op,
        body: &T,
        patience: Duration,
    ) -> Result<Vec<u8>, FsError> {
        loop {
            let turned = self.turned.wait();
            if self.ended.get() {
                return Err(FsError::NotConnected);
            }
            match self.callback(op, body, patience).await {
                Err(FsError::NotConnected) if !self.is_connected() => turned.await,
                // Another connection has taken the place of the one that it was sent over.
                Err(FsError::NotConnected | FsError::TimedOut) => {}
                answered => return answered,
            }
        }
    }
    pub(crate) fn callback_answered(&self, header: &Header, body: Vec<u8>) {
        if let Some(waiter) = self.callbacks.borrow_mut().remove(&header.xid.0) {
            waiter.send(header.result().map(|()| body));
        }
    }

    fn answer(
        &self,
        request: &Header,
        (transno, basis): (Transno, u64),
        mut result: Result<Vec<u8>, FsError>,
        bulk: Bulk,
        crc: Option<Crc>,
    ) {
        if let Some(bytes) = result.as_ref().ok().map(Vec::len).filter(|bytes| *bytes > ANSWER_BYTES_MAX) {
            // The client would take it for nonsense, and ask again over another connection, without end.
            tracing::error!(op = ?request.op, "an answer of {bytes} bytes is longer than a message may be: {ANSWER_BYTES_MAX}");
            result = Err(FsError::Overflow);
        }
        let mut header = request.reply(result.as_ref().map(|_| ()).map_err(|e| *e));
        header.transno = transno;
        if let Some(body) = result.as_mut().ok().filter(|_| basis != 0) {
            header.flags = header.flags.with(Flags::BASIS);
            body.extend_from_slice(&basis.to_le_bytes());
        }
        header.last_committed = (self.committed)();
        if types::planted!("commit-told-early") {
            header.last_committed = header.last_committed.max(transno);
        }
        header.slot_or_credits = self.credits.get();
        let Some(sink) = self.sink.borrow().clone() else {
            return;
        };
        if let Some(crc) = crc
            && !sink.shares_memory()
        {
            header.flags = header.flags.with(Flags::BULK_CRC);
            header.bulk_crc = crc;
        }
        sink.send(header, result.unwrap_or_default(), bulk);
    }

    /// Answers a replay that was carried out before: the client has had its answer before the restart.
    pub(crate) fn answer_replayed(&self, request: &Header) {
        let failed = self.failed_replays.borrow().contains(&request.transno);
        let result = if failed { Err(FsError::NotRecoverable) } else { Ok(Vec::new()) };
        self.answer(request, (request.transno, 0), result, Bulk::new(), None);
    }
    /// Answers a remembered request again.
    pub(crate) fn answer_again(&self, request: &Header, record: &ReplyRecord) {
        let result = if record.status == 0 {
            Ok(record.body.clone())
        } else {
            Err(FsError::from_errno(i32::from(record.status)))
        };
        self.answer(request, (record.transno, record.basis), result, Bulk::new(), None);
    }
}

/// A request being carried out. It must be answered exactly once; dropped unanswered it answers EIO.
pub struct Request {
    /// Header as it came.
    pub header: Header,
    /// Body.
    pub body: Vec<u8>,
    /// Bulk that came along. When `header` has [`Flags::BULK_CRC`] the handler must check it against
    /// `header.bulk_crc` (so that a store that checksums pages anyway passes over the bytes once).
    pub bulk: Bulk,
    /// Whose.
    pub export: Rc<Export>,
    basis: u64,
    pub(crate) answered: bool,
    place: Option<Place>,
    received: Instant,
    /// Of its body as it came.
    body_bytes: usize,
}

impl Request {
    pub(crate) fn new(header: Header, body: Vec<u8>, bulk: Bulk, export: Rc<Export>) -> Request {
        let body_bytes = body.len();
        export.running.set(export.running.get() + 1);
        export.body_bytes.set(export.body_bytes.get() + body_bytes);
        let place = export.under_way(&export.rt, &header);
        // The client was heard of when this was all there.
        let received = export.last_heard.get();
        Request { header, body, bulk, export, basis: 0, answered: false, place, received, body_bytes }
    }
    /// When all of it was there.
    #[must_use]
    pub fn received(&self) -> Instant {
        self.received
    }
    /// The body as a message.
    ///
    /// # Errors
    /// `Protocol` when it is not one.
    pub fn decode<T: Decode>(&self) -> Result<T, FsError> {
        wire::decode(&self.body).map_err(FsError::from)
    }
    /// Who asks.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.export.client()
    }
    /// Replay of a transaction that was answered before a restart: carry it out as `header.transno`.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.header.flags.has(Flags::REPLAY)
    }
    /// What a replay rested on when it was carried out first, if that is to be compared: a client is missing whose changes
    /// it may have seen. 0: it is not.
    #[must_use]
    pub fn basis(&self) -> u64 {
        if self.is_replay() { self.header.last_committed.0 } else { 0 }
    }
    /// Says what the transaction rested on that this request becomes: equal numbers, equal outcome. Its client repeats it
    /// with a replay ([`Request::basis`]).
    pub fn rests_on(&mut self, basis: u64) {
        self.basis = basis;
    }
    /// What the slot will remember when this request is answered so: for the store to keep in the same transaction.
    #[must_use]
    pub fn record(&self, transno: Transno, result: &Result<Vec<u8>, FsError>) -> ReplyRecord {
        ReplyRecord {
            client: self.client(),
            slot: self.header.slot_or_credits,
            xid: self.header.xid,
            transno,
            status: result.as_ref().err().map_or(0, |e| e.errno() as u16),
            body: result.as_ref().cloned().unwrap_or_default(),
            basis: self.basis,
        }
    }
    /// Answers a request that changed nothing; if it comes again it is carried out again.
    pub fn reply<T: Encode>(mut self, result: Result<&T, FsError>) {
        let result = result.map(|b| wire::encode(b));
        self.finish(Transno(0), result, Bulk::new(), None, false);
    }
    /// Answers a request that changed state as `transno`; if it comes again it is answered again. `result` is the
    /// encoded body, as given to [`Request::record`].
    pub fn reply_transno(mut self, transno: Transno, result: Result<Vec<u8>, FsError>) {
        self.finish(transno, result, Bulk::new(), None, true);
    }
    /// Answers with bulk. `crc` is the checksum of the bulk (needed unless the sink shares memory; `None` computes
    /// it here).
    pub fn reply_bulk<T: Encode>(mut self, body: &T, bulk: Bulk, crc: Option<Crc>) {
        let shares = self.export.sink.borrow().as_ref().is_none_or(|s| s.shares_memory());
        let crc = crc.or_else(|| (!shares).then(|| bulk.slices().fold(0, wire::crc32c_append)));
        self.finish(Transno(0), Ok(wire::encode(body)), bulk, crc, false);
    }
    fn finish(
        &mut self,
        transno: Transno,
        result: Result<Vec<u8>, FsError>,
        bulk: Bulk,
        crc: Option<Crc>,
        remember: bool,
    ) {
        self.answered = true;
        self.export.answered(self.place.take());
        self.export.running.set(self.export.running.get() - 1);
        self.export.body_bytes.set(self.export.body_bytes.get() - self.body_bytes);
        // Nothing of it was carried out: it is offered again in its place.
        let again = self.is_replay() && matches!(result, Err(FsError::Overloaded | FsError::Corrupt | FsError::Io));
        if self.is_replay() {
            self.export.replay_refused.set(again);
            if result.is_err() && !again && self.header.transno.0 != 0 {
                self.export.failed_replays.borrow_mut().insert(self.header.transno);
            }
        }
        if again {
            // It comes under the same number, also over this connection: that is no duplicate.
            self.rests_as(None);
        } else if remember {
            let record = self.record(transno, &result);
            self.rests_as(Some(Slot::Remembered(record)));
        } else {
            self.rests_as(Some(Slot::Answered(self.header.xid, self.export.connections.get())));
        }
        self.export.answer(&self.header, (transno, self.basis), result, bulk, crc);
    }
    /// What its slot remembers of it, unless that carries another request by now.
    fn rests_as(&self, rest: Option<Slot>) {
        let mut slots = self.export.slots.borrow_mut();
        let slot = self.header.slot_or_credits;
        if matches!(slots.get(&slot), Some(Slot::Running(x)) if *x == self.header.xid) {
            match rest {
                Some(rest) => drop(slots.insert(slot, rest)),
                None => drop(slots.remove(&slot)),
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            if !self.export.abandoned.get() {
                tracing::error!(op = ?self.header.op, "a request was dropped without an answer");
            }
            self.finish(Transno(0), Err(FsError::Io), Bulk::new(), None, false);
        }
    }
}
