//! Drives the OST's lock namespace: turns wire messages into calls, actions into callbacks, deadlines into evictions.
//!
//! Grants, queues and deadlines are `ldlm`'s. This adds what it must not know: connections, object sizes for value
//! blocks, time, and locks that the server takes for requests that come without one.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use ldlm::{
    Action, DenyReason, EnqueueFlags, EnqueueOutcome, HELD_UP_AFTER, LOCAL, LockCookie, LockDesc, LockMode,
    LockPolicyData, LockReplay, Namespace, NamespaceConfig, Patience, ResourceId,
};
use nrs::JobId;
use ptlrpc::{Export, Request};
use rt::Rt;
use rt::sync::{OneSender, join_all, oneshot};
use trace::{Came, Record, Waits};
use types::{ClientId, Duration, Extent, FsError, HandleId, Instant, ObjectId};
use wire::Op;
use wire::lock::{
    BlockingCallback, CUT_AMID, CancelRequest, CompletionCallback, ConvertRequest, EnqueueFlags as WireFlags,
    EnqueueReply, EnqueueRequest, GlimpseCallback, GlimpseReply, Kind, LockSpec, Lvb,
};
use wire::ost::IoOwner;

use crate::config::OstConfig;
use crate::cut_marks::CutMarks;
use crate::dispatch::Dispatcher;
use crate::ost::Held;
use crate::promises::Promises;
use crate::store::{BLOCK_BYTES, OBJECT_BYTES_MAX, ObjectAttr, ObjectStore, Promise};

/// Sessions of one target by client.
pub(crate) type Exports = Rc<RefCell<BTreeMap<ClientId, Rc<Export>>>>;

/// The lock driver of one OST.
pub(crate) struct Locks {
    rt: Rt,
    ns: RefCell<Namespace>,
    store: Rc<dyn ObjectStore>,
    exports: Exports,
    dispatch: Dispatcher,
    glimpse_timeout: Duration,
    evict: Option<crate::config::EvictFn>,
    pub(crate) promises: Promises,
    pub(crate) marks: Rc<CutMarks>,
    /// What quiet clients hold.
    pub(crate) quiet: ptlrpc::Quiet<Held>,
    /// Requests of the server itself that wait for their lock.
    local: RefCell<HashMap<LockCookie, OneSender<()>>>,
    local_next: Cell<u64>,
    armed: Cell<Option<Instant>>,
    patience: RefCell<Patience>,
    /// As of the last look.
    awake_since: Cell<Instant>,
    /// Clients' requests that wait, for the trace.
    waits: RefCell<Waits>,
}

/// How long a request waited for a lock, and for whose.
#[derive(Clone, Copy, Default)]
pub(crate) struct LockWait {
    pub took: Duration,
    /// [`ClientId`] 0: nobody's that is known.
    pub holder: ClientId,
}

/// A lock that the server holds for the duration of one request.
pub(crate) struct LocalLock {
    locks: Rc<Locks>,
    cookie: LockCookie,
}

/// A client that holds locks was asked what it knows, and its session is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unanswered;

impl Drop for LocalLock {
    fn drop(&mut self) {
        let mut out = Vec::new();
        self.locks.local.borrow_mut().remove(&self.cookie);
        let now = self.locks.rt.now();
        self.locks.ns.borrow_mut().cancel_cookie(now, LOCAL, self.cookie, &mut out);
        self.locks.act(out);
    }
}

/// The value block of an object.
pub(crate) fn lvb_of(attr: &ObjectAttr) -> Lvb {
    Lvb {
        size: attr.size,
        blocks: attr.blocks * (BLOCK_BYTES / 512),
        mtime: attr.mtime,
        atime: attr.atime,
        ctime: attr.ctime,
        cut: 0,
    }
}

fn data_of(spec: &LockSpec) -> LockPolicyData {
    if spec.mode == LockMode::Group { LockPolicyData::group(spec.bits) } else { LockPolicyData::extent(spec.extent) }
}

fn spec_of(resource: ResourceId, mode: LockMode, data: LockPolicyData) -> LockSpec {
    let (extent, bits) = match data {
        LockPolicyData::Extent { extent, gid } => (extent, gid),
        LockPolicyData::Inodebits { bits } => (Extent::EMPTY, u64::from(bits.0)),
    };
    LockSpec { fid: resource.fid, kind: Kind::Extent, mode, extent, bits, owner: 0, pid: 0 }
}

fn spec(desc: &LockDesc) -> LockSpec {
    spec_of(desc.resource, desc.mode, desc.data)
}

fn flags_of(bits: u32) -> EnqueueFlags {
    let pairs = [
        (WireFlags::NOWAIT, EnqueueFlags::NOWAIT),
        (WireFlags::TEST, EnqueueFlags::TEST),
        (WireFlags::GLIMPSE, EnqueueFlags::GLIMPSE),
        (WireFlags::NO_EXPAND, EnqueueFlags::NO_EXPAND),
    ];
    pairs.iter().filter(|(w, _)| bits & w != 0).fold(EnqueueFlags::NONE, |all, (_, f)| all.with(*f))
}

/// What the trace tells of a wish for a lock of which `holder` has what is in the way.
fn wish_record(request: &Request, owner: &IoOwner, ask: &EnqueueRequest, holder: ClientId) -> Record {
    let at = request.received();
    let came = Came { xid: request.header.xid, at, holder, ..Came::default() };
    Record {
        client: request.client(),
        object: ObjectId(ask.lock.fid),
        offset: ask.lock.extent.start.min(OBJECT_BYTES_MAX),
        span: u32::try_from(ask.lock.extent.len()).unwrap_or(u32::MAX),
        uid: owner.uid,
        job: JobId(owner.job),
        ..Record::unscheduled(Op::LockEnqueue, &came, at)
    }
}

impl Locks {
    pub fn new(
        rt: Rt,
        store: Rc<dyn ObjectStore>,
        exports: Exports,
        dispatch: Dispatcher,
        config: &OstConfig,
    ) -> Rc<Locks> {
        let boot = store.boot();
        let ns = NamespaceConfig {
            handle_first: (boot << 40) + 1,
            callback_timeout: config.callback_timeout,
            locks_max: config.locks_max,
            ..NamespaceConfig::default()
        };
        let quiet = crate::ost::recalled(&*store);
        Rc::new(Locks {
            rt,
            ns: RefCell::new(Namespace::new(ns)),
            store,
            exports,
            dispatch,
            glimpse_timeout: config.glimpse_timeout,
            evict: config.evict.clone(),
            promises: Promises::default(),
            marks: CutMarks::new(boot),
            quiet,
            local: RefCell::default(),
            local_next: Cell::new(1),
            armed: Cell::new(None),
            patience: RefCell::default(),
            awake_since: Cell::new(Instant::ZERO),
            waits: RefCell::default(),
        })
    }

    /// Works on the namespace and carries out what follows.
    fn with<T>(self: &Rc<Self>, work: impl FnOnce(&mut Namespace, Instant, &mut Vec<Action>) -> T) -> T {
        let mut out = Vec::new();
        let value = work(&mut self.ns.borrow_mut(), self.rt.now(), &mut out);
        self.act(out);
        value
    }

    /// Counters and sizes, for parameters.
    pub fn read<T>(&self, look: impl FnOnce(&Namespace) -> T) -> T {
        look(&self.ns.borrow())
    }

    /// A client's wish for a lock; `owner` is for the trace.
    pub async fn enqueue(
        self: &Rc<Self>,
        request: &Request,
        owner: &IoOwner,
        ask: &EnqueueRequest,
    ) -> Result<EnqueueReply, FsError> {
        let (session, client) = (&*request.export, request.client());
        if ask.lock.kind != Kind::Extent {
            return Err(FsError::Invalid);
        }
        let (resource, mode) = (ResourceId::extent(ask.lock.fid), ask.lock.mode);
        let (data, cookie) = (data_of(&ask.lock), LockCookie(ask.cookie));
        if !ask.cancels.is_empty() {
            self.with(|ns, now, out| ns.cancel_batch(now, client, &ask.cancels, out));
            self.doubt_unlocked_promises(client);
        }
        // Only in a recovery is what a client says it holds taken without asking anybody.
        let told = ask.flags & WireFlags::REPLAY != 0 && ask.flags & WireFlags::WAITING == 0;
        let is_replay = told && request.is_replay();
        if !is_replay {
            self.nobody_missing_holds(ObjectId(ask.lock.fid)).await;
        }
        // Recovery, which settles doubts, waits for locks of before, and who has them was not kept away.
        let before = match is_replay {
            true => lvb_of(&self.store.attr(ObjectId(ask.lock.fid)).await?),
            false => self.lvb(ObjectId(ask.lock.fid)).await?,
        };
        if session.is_ended() {
            return Err(FsError::NotConnected);
        }
        if is_replay {
            let replay = LockReplay { cookie, resource, mode, data };
            let handle = self.with(|ns, now, _| ns.replay(now, client, &replay)).map_err(|_| FsError::Stale)?;
            return Ok(EnqueueReply { handle, granted: true, lock: ask.lock.clone(), lvb: Some(before) });
        }
        let wish = ldlm::EnqueueRequest::new(cookie, resource, mode, data).flags(flags_of(ask.flags));
        let mut out = Vec::new();
        let outcome = self.ns.borrow_mut().enqueue(self.rt.now(), client, &wish, &mut out);
        let full = self.makes_room(&outcome);
        let (asks, rest): (Vec<Action>, Vec<Action>) =
            out.into_iter().partition(|a| matches!(a, Action::SendGlimpse { .. }));
        self.act(rest);
        let object = ObjectId(ask.lock.fid);
        tracing::trace!(%client, %object, cookie = ask.cookie, ?mode, flags = ask.flags, ?outcome, "enqueue");
        match outcome {
            EnqueueOutcome::Granted(desc) => {
                // Nothing waited since the attributes were read: they are what the lock protects.
                let lvb = Some(before);
                Ok(EnqueueReply { handle: desc.handle, granted: true, lock: spec(&desc), lvb })
            }
            EnqueueOutcome::Waiting(handle) => {
                let holder = self.ns.borrow().waits_for(handle).unwrap_or_default();
                self.waits.borrow_mut().begin(ask.cookie, wish_record(request, owner, ask, holder));
                Ok(EnqueueReply { handle, granted: false, lock: ask.lock.clone(), lvb: None })
            }
            EnqueueOutcome::Denied(DenyReason::Glimpse { .. }) => {
                let holder = asks
                    .iter()
                    .find_map(|a| if let Action::SendGlimpse { client, .. } = a { Some(*client) } else { None });
                let (record, asked) = (wish_record(request, owner, ask, holder.unwrap_or_default()), self.rt.now());
                let lvb = self.glimpse(object, asks).await;
                let now = self.rt.now();
                self.dispatch.keep(Record { finished: now, locked_us: trace::micros(now.since(asked)), ..record });
                let lvb = Some(lvb?);
                Ok(EnqueueReply { handle: HandleId(0), granted: false, lock: ask.lock.clone(), lvb })
            }
            // Others give locks back; the client's session asks again.
            EnqueueOutcome::Denied(_) if full => Err(FsError::Overloaded),
            EnqueueOutcome::Denied(reason) => Err(reason.error()),
        }
    }

    /// Whether the table was full; then locks are called back.
    fn makes_room(self: &Rc<Self>, outcome: &EnqueueOutcome) -> bool {
        let full = *outcome == EnqueueOutcome::Denied(DenyReason::NoLocks);
        if full {
            self.with(|ns, now, out| ns.make_room(now, out));
        }
        full
    }

    /// What the store says of an object, when nobody doubts it, with the mark of its last cut.
    async fn lvb(&self, object: ObjectId) -> Result<Lvb, FsError> {
        loop {
            self.settled(object).await;
            let cut = self.marks.settled(object).await;
            let attr = self.store.attr(object).await?;
            if !self.promises.is_in_doubt(object) && self.marks.of(object) == Some(cut) {
                return Ok(Lvb { cut, ..lvb_of(&attr) });
            }
        }
    }

    /// Waits while a client that is missing after a restart may have a lock on an object.
    pub async fn nobody_missing_holds(&self, object: ObjectId) {
        self.quiet.wait_while_missing(|held| held.has(object) && !types::planted!("missing-not-waited-for")).await;
    }

    /// Waits until no cut of the object is in doubt or can be lost.
    pub async fn settled(&self, object: ObjectId) {
        self.promises.settled(&self.rt, &*self.store, object).await;
    }

    /// Asks writers for size and times; the greatest of all answers counts. A writer that does not answer is asked again
    /// until it does or is evicted: only it knows.
    async fn glimpse(&self, object: ObjectId, asks: Vec<Action>) -> Result<Lvb, FsError> {
        let before = self.marks.of(object);
        let answers = asks.into_iter().filter_map(|a| {
            let Action::SendGlimpse { client, lock } = a else { return None };
            Some(self.ask_holder(client, lock, false))
        });
        let answers = join_all(answers.collect()).await;
        let mut lvb = self.lvb(object).await?;
        // What they know and what the store says are of different moments; in between it may only have grown.
        if before != Some(lvb.cut) || answers.contains(&Err(Unanswered)) {
            lvb.cut = CUT_AMID;
        }
        let answers = answers.into_iter().filter_map(|a| a.ok().flatten());
        for theirs in answers.filter(|_| !types::planted!("glimpse-ignored")) {
            lvb.size = lvb.size.max(theirs.size);
            lvb.blocks = lvb.blocks.max(theirs.blocks);
            lvb.mtime = lvb.mtime.max(theirs.mtime);
            lvb.atime = lvb.atime.max(theirs.atime);
            lvb.ctime = lvb.ctime.max(theirs.ctime);
        }
        Ok(lvb)
    }

    /// What a client knows of an object on which it holds `lock`. It may have given that one back meanwhile and know nothing by it:
    /// then it is asked by the next one that it holds, under which it may have written.
    async fn ask_holder(
        &self,
        client: ClientId,
        mut lock: LockDesc,
        write_out: bool,
    ) -> Result<Option<Lvb>, Unanswered> {
        let export = self.exports.borrow().get(&client).cloned().ok_or(Unanswered)?;
        let mut asked = Vec::new();
        loop {
            let body = GlimpseCallback { handle: lock.handle, cookie: lock.cookie.0, write_out };
            let told = export.callback_delivered(Op::LockGlimpse, &body, self.glimpse_timeout).await;
            let bytes = told.map_err(|_| Unanswered)?;
            let known = wire::decode::<GlimpseReply>(&bytes).map_err(|_| Unanswered)?.lvb;
            if known.is_some() {
                return Ok(known);
            }
            asked.push(lock.handle);
            let Some(next) = self.ns.borrow().write_lock_of(client, lock.resource, &asked) else { return Ok(None) };
            lock = next;
        }
    }

    /// Has all clients but one write out what they have of an object; answers one of those that were asked. One whose session
    /// ends meanwhile has nothing any more that counts.
    pub async fn written_out(&self, but: ClientId, object: ObjectId) -> Option<ClientId> {
        self.nobody_missing_holds(object).await;
        let mut asks = Vec::new();
        self.ns.borrow_mut().glimpse(but, ResourceId::extent(object.0), 0, &mut asks);
        let mut asked = None;
        let asks = asks.into_iter().filter_map(|a| {
            let Action::SendGlimpse { client, lock } = a else { return None };
            asked = asked.or(Some(client));
            Some(self.ask_holder(client, lock, true))
        });
        join_all(asks.collect()).await;
        asked
    }

    /// What a client asked for and waits for no more is for the trace.
    fn tell_withdrawn(&self, client: ClientId) {
        let mut waits = self.waits.borrow_mut();
        if waits.is_empty() {
            return;
        }
        let ns = self.ns.borrow();
        let gone = waits.withdrawn(client, self.rt.now(), |c| ns.handle_of(client, LockCookie(c)).is_some());
        gone.into_iter().for_each(|record| self.dispatch.keep(record));
    }

    pub fn cancel(self: &Rc<Self>, client: ClientId, ask: &CancelRequest) {
        tracing::trace!(%client, ?ask, "cancel");
        self.with(|ns, now, out| {
            ns.cancel_batch(now, client, &ask.handles, out);
            for cookie in &ask.cookies {
                ns.cancel_cookie(now, client, LockCookie(*cookie), out);
            }
        });
        self.tell_withdrawn(client);
        self.doubt_unlocked_promises(client);
    }

    /// Whether a client holds the lock under which it may make this promise of an object.
    pub fn may_promise(&self, object: ObjectId, promise: &Promise) -> bool {
        let ns = self.ns.borrow();
        ns.allowing_io(promise.client, ResourceId::extent(object.0), promise.range(), true).is_some()
    }

    /// Who gave its lock back does not carry its cut out: whether it is to be must be known before others write behind the end.
    fn doubt_unlocked_promises(&self, client: ClientId) {
        for (object, promise) in self.promises.open_of(client) {
            if !self.may_promise(object, &promise) {
                self.promises.doubt(object, &promise);
            }
        }
    }

    /// A client keeps a lock in a mode that allows less.
    ///
    /// # Errors
    /// `Invalid`: no mode is named, or it is not a lock of this client that allows as much.
    pub fn convert(self: &Rc<Self>, client: ClientId, ask: &ConvertRequest) -> Result<(), FsError> {
        let mode = ask.mode.ok_or(FsError::Invalid)?;
        tracing::trace!(%client, ?ask, "convert");
        let done = self.with(|ns, now, out| ns.weaken(now, client, ask.handle, mode, out));
        self.doubt_unlocked_promises(client);
        if done { Ok(()) } else { Err(FsError::Invalid) }
    }

    /// A client is gone: its locks go.
    pub fn drop_client(self: &Rc<Self>, client: ClientId) {
        self.with(|ns, now, out| ns.evict(now, client, out));
        self.tell_withdrawn(client);
    }

    /// A client came back on a new connection: callbacks that it may have missed go out again.
    pub fn reconnected(self: &Rc<Self>, client: ClientId) {
        self.with(|ns, _, out| ns.repeat_callbacks(client, out));
    }

    /// The client's lock `handle` is being worked under: its callback deadline starts anew.
    pub fn progress(&self, client: ClientId, handle: HandleId) {
        self.ns.borrow_mut().on_progress(self.rt.now(), client, handle);
    }

    /// Whether a client holds a lock that allows `mode` on `extent` of `object`: the one it names, or (after a
    /// restart its handles are new) any.
    pub fn covers(&self, client: ClientId, handle: HandleId, object: ObjectId, mode: LockMode, extent: Extent) -> bool {
        let ns = self.ns.borrow();
        let fits = |d: &LockDesc| {
            let modes = d.mode.covers(mode) || d.mode == LockMode::Group;
            d.resource.fid == object.0 && modes && d.data.as_extent().is_some_and(|e| e.contains(&extent))
        };
        ns.granted(client, handle).is_some_and(|d| fits(&d))
            || ns.allowing_io(client, ResourceId::extent(object.0), extent, mode.writes()).is_some()
    }

    /// Locks `extent` of `object` for the server itself, waiting for holders to give theirs back.
    pub async fn lock_local(
        self: &Rc<Self>,
        object: ObjectId,
        mode: LockMode,
        extent: Extent,
    ) -> Result<(LocalLock, LockWait), FsError> {
        self.nobody_missing_holds(object).await;
        let cookie = LockCookie(self.local_next.get());
        self.local_next.set(cookie.0 + 1);
        let (tx, rx) = oneshot();
        self.local.borrow_mut().insert(cookie, tx);
        let guard = LocalLock { locks: self.clone(), cookie };
        let wish =
            ldlm::EnqueueRequest::new(cookie, ResourceId::extent(object.0), mode, LockPolicyData::extent(extent))
                .flags(EnqueueFlags::NO_EXPAND);
        let outcome = self.with(|ns, now, out| ns.enqueue(now, LOCAL, &wish, out));
        let full = self.makes_room(&outcome);
        match outcome {
            EnqueueOutcome::Granted(_) => {
                self.settled(object).await;
                Ok((guard, LockWait::default()))
            }
            EnqueueOutcome::Waiting(handle) => {
                let (holder, asked) = (self.ns.borrow().waits_for(handle).unwrap_or_default(), self.rt.now());
                rx.await.ok_or(FsError::Io)?;
                self.settled(object).await;
                Ok((guard, LockWait { took: self.rt.now().since(asked), holder }))
            }
            EnqueueOutcome::Denied(_) if full => Err(FsError::Overloaded),
            EnqueueOutcome::Denied(reason) => Err(reason.error()),
        }
    }

    /// Carries out what the namespace asks for.
    fn act(self: &Rc<Self>, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::SendBlocking { client, lock, wanted_mode, wanted, deadline } => {
                    self.send_blocking(client, &lock, spec_of(lock.resource, wanted_mode, wanted), deadline);
                }
                Action::SendCompletion { client, lock } if client == LOCAL => {
                    if let Some(waiter) = self.local.borrow_mut().remove(&lock.cookie) {
                        waiter.send(());
                    }
                }
                Action::SendCompletion { client, lock } => {
                    let waited = self.waits.borrow_mut().end(client, lock.cookie.0, 0, self.rt.now());
                    waited.into_iter().for_each(|record| self.dispatch.keep(record));
                    self.send_completion(client, lock);
                }
                // Glimpses are awaited where they are asked for; flocks live at the metadata server.
                Action::SendGlimpse { .. } | Action::FlockGranted { .. } | Action::FlockDenied { .. } => {}
            }
        }
        self.arm();
    }

    fn send_blocking(&self, client: ClientId, lock: &LockDesc, wanted: LockSpec, deadline: Instant) {
        let left = deadline.since(self.rt.now());
        self.dispatch.promote(client, ObjectId(lock.resource.fid), self.rt.now() + left / 2);
        tracing::trace!(%client, ?lock, "blocking callback");
        let Some(export) = self.exports.borrow().get(&client).cloned() else { return };
        let patience_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let body = BlockingCallback { handle: lock.handle, cookie: lock.cookie.0, wanted, patience_ms };
        let sent = export.callback(Op::LockBlocking, &body, left);
        self.rt.spawn(async move {
            // An answer only says that it arrived; a missing one is the deadline's business.
            let _ = sent.await;
        });
    }

    fn send_completion(self: &Rc<Self>, client: ClientId, lock: LockDesc) {
        let me = self.clone();
        self.rt.spawn(async move {
            let (lvb, status) = match me.lvb(ObjectId(lock.resource.fid)).await {
                Ok(lvb) => (Some(lvb), 0),
                Err(e) => (None, e.errno() as u16),
            };
            if status != 0 {
                // Its client would take the length that it heard of before for the true one.
                let mut out = Vec::new();
                me.ns.borrow_mut().cancel(me.rt.now(), client, lock.handle, &mut out);
                me.act(out);
            }
            // It was perhaps called back already while it could not be told.
            me.ns.borrow_mut().on_told(me.rt.now(), client, lock.handle);
            let export = me.exports.borrow().get(&client).cloned();
            let Some(export) = export else { return };
            let body =
                CompletionCallback { handle: lock.handle, cookie: lock.cookie.0, lock: spec(&lock), status, lvb };
            // A client that has given up waiting answers so, and one that is gone needs no lock.
            let _ = export.callback_delivered(Op::LockCompletion, &body, Duration::from_secs(60)).await;
        });
    }

    /// Sets a timer for the next callback deadline.
    fn arm(self: &Rc<Self>) {
        let Some(at) = self.patience.borrow().next_look(&self.ns.borrow(), self.rt.now()) else { return };
        if self.armed.get().is_some_and(|t| t <= at) {
            return;
        }
        self.armed.set(Some(at));
        let me = Rc::downgrade(self);
        let rt = self.rt.clone();
        self.rt.spawn(async move {
            rt.sleep_until(at).await;
            if let Some(me) = me.upgrade() {
                me.on_timer().await;
            }
        });
    }

    /// Whether a lock may be one that its client has not heard of, for its object is in doubt.
    fn is_not_told(&self, client: ClientId, lock: HandleId) -> bool {
        let object = self.ns.borrow().granted(client, lock).map(|d| ObjectId(d.resource.fid));
        object.is_some_and(|o| self.promises.is_in_doubt(o))
    }

    /// Whether a client's requests are in this OST's own hands for so long that it cannot answer callbacks.
    fn holds_up(&self, client: ClientId) -> bool {
        let (exports, now) = (self.exports.borrow(), self.rt.now());
        exports.get(&client).is_some_and(|e| e.is_kept_for(HELD_UP_AFTER, now))
    }

    /// Which session a client has.
    fn session(&self, client: ClientId) -> Option<Rc<Export>> {
        self.exports.borrow().get(&client).cloned()
    }

    async fn on_timer(self: Rc<Self>) {
        self.armed.set(None);
        let awake = self.rt.awake_since();
        if self.awake_since.replace(awake) != awake {
            self.ns.borrow_mut().on_overslept(awake);
        }
        let late = {
            let (mut patience, mut ns) = (self.patience.borrow_mut(), self.ns.borrow_mut());
            patience.late(&mut ns, self.rt.now(), |client| self.holds_up(client))
        };
        for expired in &late {
            let client = expired.client;
            if self.is_not_told(client, expired.handle) {
                self.ns.borrow_mut().on_told(self.rt.now(), client, expired.handle);
                continue;
            }
            tracing::warn!(target = self.store.identity().target(), %client, lock = %expired.handle,
                "did not answer a lock callback: evicted");
            let session = self.session(client);
            if let Some(evict) = &self.evict {
                evict(client).await;
            }
            // Whatever became of the session: nobody waits for these locks any more. Those of its next one are others.
            let has_another = self.session(client).is_some_and(|now| !session.is_some_and(|s| Rc::ptr_eq(&s, &now)));
            if !has_another {
                self.drop_client(client);
            }
        }
        self.arm();
    }
}
