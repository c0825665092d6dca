//! Inode-bit locks and flocks: the lock room's state machine, wired to sessions.
//!
//! Replies take read locks along when nothing stands in the way. An operation that changes something first needs other
//! clients' locks on it gone: when none is in the way (the usual case) nothing is locked and nobody waits; otherwise the
//! operation takes server-side exclusive locks in FID order, which calls the holders back, and is run again under them.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hashbrown::HashMap;
use ldlm::{
    Action, DenyReason, EnqueueFlags as Flags, EnqueueOutcome, EnqueueRequest, Expired, HELD_UP_AFTER, InodeBits,
    LOCAL, LockCookie, LockDesc, LockMode, LockPolicyData, Namespace, NamespaceConfig, Patience, ResourceId,
};
use rt::sync::{Event, OneSender, oneshot};
use rustc_hash::FxBuildHasher;
use types::{ClientId, Duration, Extent, Fid, FsError, HandleId};
use wire::Op;
use wire::lock::{BlockingCallback, CompletionCallback, EnqueueReply, Kind, LockSpec};
use wire::mdt::LockBits;

use crate::mds::Mds;
use crate::traced::LockWait;
use crate::tx::Claim;

/// How often deadlines of callbacks are looked at, while some are out.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lock tables of a target.
pub struct Locks {
    pub(crate) namespace: RefCell<Namespace>,
    /// Server-side locks that wait, by cookie.
    waiting: RefCell<HashMap<u64, OneSender<()>, FxBuildHasher>>,
    next_cookie: Cell<u64>,
    /// Flock requests that wait, as they were asked.
    pub(crate) flocks: RefCell<BTreeMap<(ClientId, u64), LockSpec>>,
    recalled: RefCell<Recalled>,
    /// Locks were given back while some were recalled.
    pub(crate) given_back: Event,
    timer_runs: Cell<bool>,
    /// Late holders whose sessions are being ended.
    evicting: RefCell<BTreeSet<ClientId>>,
    patience: RefCell<Patience>,
    /// As of the last look.
    awake_since: Cell<types::Instant>,
}

/// Locks that were called back because what is kept under them may rest on changes that are lost.
#[derive(Default)]
struct Recalled(HashMap<Fid, Vec<(ClientId, HandleId)>, FxBuildHasher>);

impl Recalled {
    /// All that clients hold.
    fn note(&mut self, namespace: &Namespace) {
        for client in namespace.clients() {
            for (lock, _) in namespace.locks_of(client).filter(|(l, _)| namespace.is_called_back(client, l.handle)) {
                self.0.entry(lock.resource.fid).or_default().push((client, lock.handle));
            }
        }
    }
    /// Whether another client has not given its lock on an inode back. Who is called back itself waits for nobody: it may have to be
    /// answered before it can give its own back.
    fn is_in_the_way(&mut self, namespace: &Namespace, client: ClientId, fid: Fid) -> bool {
        let Some(locks) = self.0.get_mut(&fid) else { return false };
        locks.retain(|(c, handle)| namespace.is_called_back(*c, *handle));
        if locks.is_empty() {
            self.0.remove(&fid);
            return false;
        }
        locks.iter().all(|(c, _)| *c != client)
    }
}

/// Server-side locks of one operation; given back when dropped.
pub(crate) struct LocalLocks {
    mds: Rc<Mds>,
    pub claims: Vec<Claim>,
    /// How long they were waited for.
    pub waited: LockWait,
    handles: Vec<HandleId>,
}

impl Drop for LocalLocks {
    fn drop(&mut self) {
        let mut out = Vec::new();
        let now = self.mds.rt.now();
        self.mds.locks.namespace.borrow_mut().cancel_batch(now, LOCAL, &self.handles, &mut out);
        self.mds.dispatch(out);
    }
}

impl Locks {
    pub(crate) fn new(config: NamespaceConfig) -> Locks {
        Locks {
            namespace: RefCell::new(Namespace::new(config)),
            waiting: RefCell::default(),
            next_cookie: Cell::new(1),
            flocks: RefCell::default(),
            recalled: RefCell::default(),
            given_back: Event::new(),
            timer_runs: Cell::new(false),
            evicting: RefCell::default(),
            patience: RefCell::default(),
            awake_since: Cell::new(types::Instant::ZERO),
        }
    }
}

fn claim_request(cookie: u64, claim: Claim, client: ClientId) -> EnqueueRequest {
    let data = LockPolicyData::Inodebits { bits: InodeBits(claim.bits) };
    EnqueueRequest::new(LockCookie(cookie), ResourceId::inode(claim.fid), LockMode::Ex, data).on_behalf(client)
}

/// A granted inode-bit lock on the wire.
pub(crate) fn inode_lock_reply(lock: &LockDesc) -> EnqueueReply {
    let bits = match lock.data {
        LockPolicyData::Inodebits { bits } => u64::from(bits.0),
        LockPolicyData::Extent { .. } => 0,
    };
    EnqueueReply { handle: lock.handle, granted: true, lock: inode_spec(lock.resource.fid, lock.mode, bits), lvb: None }
}

pub(crate) fn inode_spec(fid: Fid, mode: LockMode, bits: u64) -> LockSpec {
    LockSpec { fid, kind: Kind::Inodebits, mode, extent: Extent::ALL, bits, owner: 0, pid: 0 }
}

impl Mds {
    /// A read lock for a client's cache, if nothing stands in the way.
    pub(crate) fn grant(&self, client: ClientId, fid: Fid, bits: u64, cookie: u64) -> Option<EnqueueReply> {
        // That the inode may be opened stands in nobody's way: it is worth having alone.
        self.grant_whole(client, fid, bits, cookie)
            .or_else(|| self.grant_whole(client, fid, bits & LockBits::OPEN, cookie))
    }
    /// The same with all of the bits (but a lease on content that somebody writes), or nothing.
    pub(crate) fn grant_whole(&self, client: ClientId, fid: Fid, bits: u64, cookie: u64) -> Option<EnqueueReply> {
        let mut bits = InodeBits((bits & u64::from(InodeBits::ALL.0)) as u8);
        if self.handles.borrow().others_write(fid, client) {
            bits = bits.minus(InodeBits::DATA);
        }
        if cookie == 0 || bits.is_empty() {
            return None;
        }
        let data = LockPolicyData::Inodebits { bits };
        let request =
            EnqueueRequest::new(LockCookie(cookie), ResourceId::inode(fid), LockMode::Pr, data).flags(Flags::NOWAIT);
        let mut out = Vec::new();
        let (mut namespace, now) = (self.locks.namespace.borrow_mut(), self.rt.now());
        let outcome = namespace.enqueue(now, client, &request, &mut out);
        if outcome == EnqueueOutcome::Denied(DenyReason::NoLocks) {
            // This answer comes without a lock, the next ones with.
            namespace.make_room(now, &mut out);
        }
        drop(namespace);
        self.dispatch_in_place(out);
        match outcome {
            EnqueueOutcome::Granted(lock) => Some(inode_lock_reply(&lock)),
            EnqueueOutcome::Waiting(_) | EnqueueOutcome::Denied(_) => None,
        }
    }

    /// Whether a client, another than `but`, may open the inode by its id: it holds an OPEN lock.
    pub(crate) fn may_be_opened(&self, fid: Fid, but: Option<ClientId>) -> bool {
        if self.is_held_by_missing(fid) {
            return true;
        }
        let mut namespace = self.locks.namespace.borrow_mut();
        if namespace.is_empty() {
            return false;
        }
        let claim = Claim { fid, bits: InodeBits::OPEN.0 };
        let request = EnqueueRequest { on_behalf: but, ..claim_request(0, claim, LOCAL) }.flags(Flags::TEST);
        !matches!(namespace.enqueue(self.rt.now(), LOCAL, &request, &mut Vec::new()), EnqueueOutcome::Granted(_))
    }

    /// Whether a client has an inode open, or an OPEN lock under which it may have it open without anybody's knowing.
    pub(crate) fn has_opened(&self, client: ClientId, fid: Fid) -> bool {
        let under_lock = || self.locks.namespace.borrow().holds_bits(client, ResourceId::inode(fid), InodeBits::OPEN);
        self.handles.borrow().has_open(client, fid) || under_lock()
    }

    /// Whether other clients hold locks (or operations wait for locks) that `claims` conflict with.
    pub(crate) fn is_in_the_way(&self, client: ClientId, claims: &[Claim], held: &[Claim]) -> bool {
        let mut namespace = self.locks.namespace.borrow_mut();
        if namespace.is_empty() {
            return false;
        }
        let now = self.rt.now();
        let mut out = Vec::new();
        claims.iter().filter(|c| !held.iter().any(|h| h.fid == c.fid && c.bits & !h.bits == 0)).any(|c| {
            let request = claim_request(0, *c, client).flags(Flags::TEST);
            !matches!(namespace.enqueue(now, LOCAL, &request, &mut out), EnqueueOutcome::Granted(_))
        })
    }

    /// Takes server-side locks for `claims`, in FID order, waiting for the holders.
    pub(crate) async fn lock_claims(self: &Rc<Self>, client: ClientId, mut claims: Vec<Claim>) -> LocalLocks {
        claims.sort_unstable();
        let mut held =
            LocalLocks { mds: self.clone(), claims: Vec::new(), waited: LockWait::default(), handles: Vec::new() };
        for claim in claims {
            let cookie = self.locks.next_cookie.get();
            self.locks.next_cookie.set(cookie + 1);
            let (tx, rx) = oneshot();
            self.locks.waiting.borrow_mut().insert(cookie, tx);
            let mut out = Vec::new();
            let request = claim_request(cookie, claim, client);
            let outcome = self.locks.namespace.borrow_mut().enqueue(self.rt.now(), LOCAL, &request, &mut out);
            match outcome {
                EnqueueOutcome::Granted(lock) => {
                    held.handles.push(lock.handle);
                    held.claims.push(claim);
                    self.locks.waiting.borrow_mut().remove(&cookie);
                }
                EnqueueOutcome::Waiting(handle) => {
                    held.handles.push(handle);
                    held.claims.push(claim);
                    let (holder, asked) = (self.locks.namespace.borrow().waits_for(handle), self.rt.now());
                    self.dispatch(out);
                    let _ = rx.await;
                    held.waited.add(self.rt.now().since(asked), holder);
                }
                EnqueueOutcome::Denied(_) => {
                    // The table is full: the operation looks again and, if need be, tries again.
                    self.locks.namespace.borrow_mut().make_room(self.rt.now(), &mut out);
                    self.dispatch(out);
                    self.locks.waiting.borrow_mut().remove(&cookie);
                    self.rt.sleep(Duration::from_millis(10)).await;
                }
            }
        }
        held
    }

    /// What clients keep under their locks may rest on what a client had done that did not come back: they give all of it
    /// up. They hear of it before they are answered anything else.
    pub(crate) fn call_everything_back(self: &Rc<Self>) {
        let mut out = Vec::new();
        let mut namespace = self.locks.namespace.borrow_mut();
        let called = namespace.recall_all(self.rt.now(), &mut out);
        if called > 0 {
            tracing::info!(locks = called, "called back after a recovery without everybody");
        }
        if !types::planted!("recalled-not-waited-for") {
            self.locks.recalled.borrow_mut().note(&namespace);
        }
        drop(namespace);
        self.dispatch(out);
    }

    /// Whether a client has to wait before it may be told of inodes: what another one believes of them is called back, and that one
    /// would go on believing it beside the answer.
    pub(crate) fn waits_for_recalled(&self, client: ClientId, seen: &[Fid]) -> bool {
        let mut recalled = self.locks.recalled.borrow_mut();
        !recalled.0.is_empty() && {
            let namespace = self.locks.namespace.borrow();
            seen.iter().any(|fid| recalled.is_in_the_way(&namespace, client, *fid))
        }
    }
    /// Waits until something is given back.
    pub(crate) async fn fewer_recalled(&self) {
        self.locks.given_back.wait().await;
    }
    /// Locks were given back, or changed: who waits for recalled ones looks again.
    pub(crate) fn note_given_back(&self) {
        let mut recalled = self.locks.recalled.borrow_mut();
        if recalled.0.is_empty() {
            return;
        }
        if self.locks.namespace.borrow().next_deadline().is_none() {
            recalled.0.clear();
        }
        self.locks.given_back.notify();
    }

    /// Carries out what the lock room asks for.
    pub(crate) fn dispatch(self: &Rc<Self>, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::SendBlocking { client, lock, wanted_mode, wanted, deadline } => {
                    let bits = match wanted {
                        LockPolicyData::Inodebits { bits } => u64::from(bits.0),
                        LockPolicyData::Extent { .. } => 0,
                    };
                    let patience = deadline.since(self.rt.now());
                    let body = BlockingCallback {
                        handle: lock.handle,
                        cookie: lock.cookie.0,
                        wanted: inode_spec(lock.resource.fid, wanted_mode, bits),
                        patience_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
                    };
                    self.call_back(client, body, patience);
                    self.start_lock_timer();
                }
                Action::SendCompletion { client: LOCAL, lock } => {
                    if let Some(waiter) = self.locks.waiting.borrow_mut().remove(&lock.cookie.0) {
                        waiter.send(());
                    }
                }
                Action::SendCompletion { client, lock } => {
                    let granted = inode_lock_reply(&lock);
                    let body = CompletionCallback {
                        handle: lock.handle,
                        cookie: lock.cookie.0,
                        lock: granted.lock,
                        status: 0,
                        lvb: None,
                    };
                    self.complete(client, body);
                }
                Action::FlockGranted { client, cookie } => self.flock_ended(client, cookie.0, None),
                Action::FlockDenied { client, cookie, reason } => {
                    self.flock_ended(client, cookie.0, Some(reason.error()))
                }
                Action::SendGlimpse { .. } => {}
            }
        }
    }

    /// [`Mds::dispatch`] for grants that never wait: a repeated callback is all that can come out.
    fn dispatch_in_place(&self, actions: Vec<Action>) {
        if !actions.is_empty()
            && let Some(me) = self.me.borrow().upgrade()
        {
            me.dispatch(actions);
        }
    }

    fn call_back(self: &Rc<Self>, client: ClientId, mut body: BlockingCallback, patience: Duration) {
        let Some(export) = self.export(client) else { return };
        body.wanted.fid = self.fid_for(client, body.wanted.fid);
        tracing::trace!(%client, ?body, "blocking callback");
        let me = self.clone();
        // Sent at once: whatever the client is answered from now on, it hears of this before.
        let answer = export.callback(Op::LockBlocking, &body, patience);
        self.rt.spawn(async move {
            match answer.await {
                Ok(_) => {}
                // It answers when it knows nothing of the lock: the reply that granted it is lost, or still under way.
                Err(FsError::NotFound) => me.cancel_unknown(client, body.handle),
                // Repeated when the client comes back; the deadline goes on.
                Err(e) => tracing::debug!(%client, handle = %body.handle, "lock callback: {e}"),
            }
        });
    }

    fn cancel_unknown(self: &Rc<Self>, client: ClientId, handle: HandleId) {
        self.cancel_locks(client, &[handle]);
    }
    /// A client gave locks back.
    pub(crate) fn cancel_locks(self: &Rc<Self>, client: ClientId, handles: &[HandleId]) {
        tracing::trace!(%client, ?handles, "cancel");
        let mut out = Vec::new();
        let mut namespace = self.locks.namespace.borrow_mut();
        let kept = self.handles.borrow();
        let of = |h: &HandleId| namespace.granted(client, *h).map(|d| d.resource.fid).filter(|f| kept.is_kept(*f));
        let fids: Vec<Fid> = if kept.keeps_none() { Vec::new() } else { handles.iter().filter_map(of).collect() };
        drop(kept);
        namespace.cancel_batch(self.rt.now(), client, handles, &mut out);
        drop(namespace);
        self.note_given_back();
        self.dispatch(out);
        self.remove_unkept(fids);
    }

    fn flock_ended(self: &Rc<Self>, client: ClientId, cookie: u64, error: Option<FsError>) {
        let spec = self.locks.flocks.borrow_mut().remove(&(client, cookie));
        let status = error.map_or(0, |e| e.errno() as u16);
        self.traced.flock_ended(client, cookie, status, self.rt.now());
        let body =
            CompletionCallback { handle: HandleId(cookie), cookie, lock: spec.unwrap_or_default(), status, lvb: None };
        self.complete(client, body);
    }

    /// Tells a waiter the outcome, again after a reconnect if it did not get through.
    fn complete(self: &Rc<Self>, client: ClientId, mut body: CompletionCallback) {
        let Some(export) = self.export(client) else { return };
        body.lock.fid = self.fid_for(client, body.lock.fid);
        self.rt.spawn(async move {
            // Who has given up waiting answers so, and who is gone needs no lock.
            let _ = export.callback_delivered(Op::LockCompletion, &body, Duration::from_secs(30)).await;
        });
    }

    /// A client is back: callbacks that it may have missed are made again.
    pub(crate) fn repeat_callbacks(self: &Rc<Self>, client: ClientId) {
        let mut out = Vec::new();
        self.locks.namespace.borrow().repeat_callbacks(client, &mut out);
        self.dispatch(out);
    }

    /// A client is gone: its locks go.
    pub(crate) fn drop_locks(self: &Rc<Self>, client: ClientId) {
        let mut out = Vec::new();
        self.locks.namespace.borrow_mut().evict(self.rt.now(), client, &mut out);
        self.locks.flocks.borrow_mut().retain(|(c, _), _| *c != client);
        self.traced.client_gone(client, self.rt.now());
        self.note_given_back();
        self.dispatch(out);
        let kept = self.handles.borrow().kept();
        self.remove_unkept(kept);
    }

    /// Who is late with its callbacks, and is not kept from answering them by this server, whose disk stands still.
    fn late_holders(&self) -> Vec<Expired> {
        self.bear_with_holders();
        let (exports, now) = (self.exports.borrow(), self.rt.now());
        let held_up = |client| exports.get(&client).is_some_and(|e| e.is_kept_for(HELD_UP_AFTER, now));
        let (mut patience, mut ns) = (self.locks.patience.borrow_mut(), self.locks.namespace.borrow_mut());
        patience.late(&mut ns, now, held_up)
    }

    /// Whoever was called back has its time from then on when this server stood still, and from now on while it is unsure of its store and
    /// hears nobody's answers.
    fn bear_with_holders(&self) {
        let awake = self.rt.awake_since();
        let stood_still = self.locks.awake_since.replace(awake) != awake;
        let heard_from = if self.is_unsure_of_store() { Some(self.rt.now()) } else { stood_still.then_some(awake) };
        heard_from.into_iter().for_each(|from| self.locks.namespace.borrow_mut().on_overslept(from));
    }

    /// Evicts who is late. The end of a session takes as long as the store does, and may wait for what others have who are late as well:
    /// nobody waits for it here, but while the store answers nothing others may be kept from answering, too.
    fn evict_late_holders(self: &Rc<Self>) {
        for Expired { client, handle } in self.late_holders() {
            let (begun, stands_still) =
                (!self.locks.evicting.borrow().is_empty(), !self.store.engine().is_sure() || self.store.is_stalled());
            if begun && stands_still {
                return;
            }
            if !self.locks.evicting.borrow_mut().insert(client) {
                continue;
            }
            tracing::warn!(%client, lock = %handle, "did not answer a lock callback in time: evicted");
            let me = self.clone();
            self.rt.spawn(async move {
                me.evict(client).await;
                // Whatever became of the session: nobody waits for these locks any more.
                me.locks.evicting.borrow_mut().remove(&client);
                me.drop_locks(client);
            });
        }
    }

    /// Watches deadlines while callbacks are out.
    fn start_lock_timer(self: &Rc<Self>) {
        if self.locks.timer_runs.replace(true) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            loop {
                let next = me.locks.namespace.borrow().next_deadline();
                let Some(at) = next else { break };
                // In steps, so that a node that was stopped is let go soon. Who is late already is being evicted.
                let now = me.rt.now();
                let step = if at <= now { now + LOOK_EVERY } else { at.min(now + LOOK_EVERY) };
                me.rt.sleep_until(step).await;
                if me.stopped.get() {
                    break;
                }
                me.evict_late_holders();
            }
            me.locks.timer_runs.set(false);
        });
    }
}
