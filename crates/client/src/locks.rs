//! The locks a client holds at one target: drives `ldlm`'s lock cache over an import.
//!
//! Takes care of waiting, of messages in both directions and of their order; what a lock protects is the business of
//! its [`LockOwner`].
use std::cell::RefCell;
use std::rc::{Rc, Weak};

use datapath::Moment;
use frames::Bulk;
use hashbrown::HashMap;
use ldlm::{
    Acquire, CacheAction, DenyReason, EnqueueFlags, EnqueueOutcome, EnqueueRequest, InodeBits, LockCache,
    LockCacheConfig, LockCookie, LockDesc, LockMode, LockPolicyData, ResourceId,
};
use ptlrpc::{CallOptions, Import};
use rt::sync::{OneReceiver, OneSender, oneshot};
use rt::{LocalFuture, Rt};
use rustc_hash::FxBuildHasher;
use types::{Fid, FsError, HandleId};
use wire::Op;
use wire::lock as w;

use crate::convert;
use crate::in_use::InUse;

/// What a value block comes with.
#[derive(Clone, Copy)]
pub(crate) enum With {
    /// The answer to a question of that moment, without a lock.
    Answer(Moment),
    /// A lock that will be held and reaches to `end`. It was asked for then, unless it came by itself after a wait.
    Lock { cookie: LockCookie, asked: Option<Moment>, end: u64 },
}

/// What [`Locks::seek`] finds.
pub(crate) enum Sought {
    /// The lock is held.
    Held(Held),
    /// Somebody else has asked for it.
    Comes(Coming),
    /// The server has to be asked. The caller has that done by a task that goes on without it, for others may wait for
    /// the answer by then, and hands the answer to [`Locks::answered`], if not [`Locks::ask`] does.
    Ask(Coming, Question),
}

/// A place among those who wait for a lock.
pub(crate) struct Coming {
    held: Held,
    end: OneReceiver<Result<LockDesc, DenyReason>>,
    /// Behind `end`, which goes first.
    _line: Line,
}

/// A place in the line of those who wait for a lock: given up by who does not wait any more.
struct Line {
    locks: Rc<Locks>,
    cookie: LockCookie,
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut waiters = self.locks.waiters.borrow_mut();
        if let Some(line) = waiters.get_mut(&self.cookie) {
            line.retain(|w| !w.is_abandoned());
            if line.is_empty() {
                waiters.remove(&self.cookie);
            }
        }
    }
}

impl Coming {
    /// The lock, or why it does not come.
    pub(crate) async fn end(self) -> Result<Held, DenyReason> {
        match self.end.await {
            Some(Ok(_)) => Ok(self.held),
            Some(Err(reason)) => Err(reason),
            None => Err(DenyReason::Evicted),
        }
    }
}

/// What the server is to be asked, and the locks that it gets back with that.
#[must_use]
pub(crate) struct Question {
    request: EnqueueRequest,
    early: Vec<LockDesc>,
}

/// What stands behind the locks of one target.
pub(crate) trait LockOwner: 'static {
    /// Flush and drop what only this lock covers (but what `keep` covers). With `keep_mode` the lock stays in that mode:
    /// nothing is dropped.
    fn revoke(self: Rc<Self>, lock: LockDesc, keep: InodeBits, keep_mode: Option<LockMode>) -> LocalFuture<()>;
    /// What is known of an object's size, for answers to what is asked from now on.
    fn moment(&self, _resource: ResourceId) -> Moment {
        Moment::default()
    }
    /// A message brought the value block of an object.
    fn value_block(&self, resource: ResourceId, lvb: &w::Lvb, with: With);
    /// The lock is gone and nothing could be flushed.
    fn lost(self: Rc<Self>, lock: LockDesc);
    /// The same, and a restarted server says that what it was on is not there.
    fn lost_with_resource(self: Rc<Self>, lock: LockDesc) {
        self.lost(lock);
    }
    /// The last lock on the resource was given back, and no request for one is under way.
    fn gone(&self, _resource: ResourceId) {}
    /// Bits of locks on the resource that are of no use any more once `wanted` is given back: they go, too.
    fn also_goes(&self, _resource: ResourceId, _wanted: InodeBits) -> InodeBits {
        InodeBits::NONE
    }
}

type Waiters = HashMap<LockCookie, Vec<OneSender<Result<LockDesc, DenyReason>>>, FxBuildHasher>;

pub(crate) struct Locks {
    rt: Rt,
    import: RefCell<Option<Rc<Import>>>,
    cache: RefCell<LockCache>,
    waiters: RefCell<Waiters>,
    owner: RefCell<Option<Weak<dyn LockOwner>>>,
    cancels: RefCell<Vec<HandleId>>,
}

/// A reference to a lock: while it lives, the lock stays.
pub(crate) struct Held {
    locks: Rc<Locks>,
    pub(crate) cookie: LockCookie,
}

impl Held {
    /// The lock as granted; `None` after an eviction.
    pub(crate) fn desc(&self) -> Option<LockDesc> {
        self.locks.cache.borrow().get(self.cookie)
    }
    /// Whether no other client waits for it, as far as is known here.
    pub(crate) fn is_wanted_by_nobody(&self) -> bool {
        self.locks.cache.borrow().is_valid(self.cookie)
    }
    /// The lock is given back once nobody uses it any more, as if another client wanted it.
    pub(crate) fn call_back(&self) {
        let Some(desc) = self.desc() else { return };
        let mut out = Vec::new();
        let mut cache = self.locks.cache.borrow_mut();
        cache.on_blocking(desc.handle, self.cookie, desc.resource, LockMode::Pw, &desc.data, &mut out);
        drop(cache);
        self.locks.act(out);
    }
    pub(crate) fn handle(&self) -> HandleId {
        self.desc().map_or(HandleId(0), |d| d.handle)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut out = Vec::new();
        self.locks.cache.borrow_mut().release(self.locks.rt.now(), self.cookie, &mut out);
        self.locks.act(out);
    }
}

/// Cookies that are reserved as long as their request is waited for. Who is dropped while it waits (a signal, a limit of time) leaves
/// none behind: a callback under a reserved cookie is put off until the answer comes, which would cost the client its session.
pub(crate) struct Reserved {
    locks: Rc<Locks>,
    first: u64,
    n: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.locks.cache.borrow_mut().abandon(LockCookie(self.first), self.n);
    }
}

impl Locks {
    pub(crate) fn new(rt: Rt, config: LockCacheConfig) -> Rc<Locks> {
        Rc::new(Locks {
            rt,
            import: RefCell::new(None),
            cache: RefCell::new(LockCache::new(config, 1)),
            waiters: RefCell::default(),
            owner: RefCell::new(None),
            cancels: RefCell::default(),
        })
    }
    pub(crate) fn attach(&self, import: Rc<Import>, owner: Weak<dyn LockOwner>) {
        *self.import.borrow_mut() = Some(import);
        *self.owner.borrow_mut() = Some(owner);
    }
    pub(crate) fn cache(&self) -> std::cell::RefMut<'_, LockCache> {
        self.cache.borrow_mut()
    }
    fn owner(&self) -> Option<Rc<dyn LockOwner>> {
        self.owner.borrow().as_ref().and_then(Weak::upgrade)
    }

    /// A lock that is held already and covers all of it.
    pub(crate) fn find(self: &Rc<Self>, resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> Option<Held> {
        let cookie = self.cache.borrow_mut().find(self.rt.now(), resource, mode, data)?;
        Some(Held { locks: self.clone(), cookie })
    }
    /// A lock that is being revoked and still covers all of it; see the "serve" rule in `front.rs`.
    pub(crate) fn find_revoking(
        self: &Rc<Self>,
        resource: ResourceId,
        mode: LockMode,
        data: &LockPolicyData,
    ) -> Option<Held> {
        let cookie = self.cache.borrow_mut().find_revoking(self.rt.now(), resource, mode, data)?;
        Some(Held { locks: self.clone(), cookie })
    }
    /// A lock that is held or on its way out and not given back yet: for bytes that were stored under it, and for
    /// requests that its revocation waits for (`docs/internals/kernel-locks.md`).
    pub(crate) fn find_even_leaving(
        self: &Rc<Self>,
        resource: ResourceId,
        mode: LockMode,
        data: &LockPolicyData,
    ) -> Option<Held> {
        if let Some(held) = self.find(resource, mode, data) {
            return Some(held);
        }
        let cookie = self.cache.borrow_mut().find_leaving(self.rt.now(), resource, mode, data)?;
        Some(Held { locks: self.clone(), cookie })
    }
    /// Whether a held lock covers it; takes no reference and does not count as a use.
    pub(crate) fn covers(self: &Rc<Self>, resource: ResourceId, mode: LockMode, data: &LockPolicyData) -> bool {
        self.cache.borrow().holds(resource, mode, data)
    }

    pub(crate) fn note_use(&self, into: &mut InUse) {
        let cache = self.cache.borrow();
        into.add("uses of locks", cache.uses());
        into.add("reserved cookies", cache.reserved() as u64);
        into.add("waits for a lock", self.waiters.borrow().values().map(|w| w.len() as u64).sum());
    }

    /// Whether there is any lock on the resource, or a request for one under way.
    pub(crate) fn knows(&self, resource: ResourceId) -> bool {
        self.cache.borrow().knows(resource)
    }

    /// Whether a request for a lock on the resource is under way.
    pub(crate) fn asks(&self, resource: ResourceId) -> bool {
        self.cache.borrow().asks(resource)
    }

    /// Whether a lock may be asked for without waiting: a request that is under way may wait for others, and who asks joins it.
    ///
    /// # Errors
    /// WouldBlock: one is under way.
    pub(crate) fn for_the_asking(&self, resource: ResourceId) -> Result<(), FsError> {
        if self.asks(resource) { Err(FsError::WouldBlock) } else { Ok(()) }
    }

    /// The lock, whatever it takes.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        resource: ResourceId,
        mode: LockMode,
        data: LockPolicyData,
        flags: EnqueueFlags,
    ) -> Result<Held, DenyReason> {
        match self.seek(resource, mode, data, flags) {
            Sought::Held(held) => Ok(held),
            Sought::Comes(coming) => coming.end().await,
            Sought::Ask(coming, question) => {
                let me = self.clone();
                self.rt.spawn(async move { _ = me.ask(question).await });
                coming.end().await
            }
        }
    }

    /// Looks for a lock, and takes a place among those who wait for it.
    pub(crate) fn seek(
        self: &Rc<Self>,
        resource: ResourceId,
        mode: LockMode,
        data: LockPolicyData,
        flags: EnqueueFlags,
    ) -> Sought {
        let acquired = self.cache.borrow_mut().acquire(self.rt.now(), resource, mode, data, flags);
        let (cookie, request) = match acquired {
            Acquire::Held(cookie) => return Sought::Held(Held { locks: self.clone(), cookie }),
            Acquire::Joined(cookie) => (cookie, None),
            Acquire::Enqueue(request) => (request.cookie, Some(request)),
        };
        let (tx, end) = oneshot();
        self.waiters.borrow_mut().entry(cookie).or_default().push(tx);
        let line = Line { locks: self.clone(), cookie };
        let coming = Coming { held: Held { locks: self.clone(), cookie }, end, _line: line };
        let Some(request) = request else { return Sought::Comes(coming) };
        // Our own locks that stand in the way go along, rather than being called back.
        let early = if flags == EnqueueFlags::NONE || flags.has(EnqueueFlags::NO_EXPAND) {
            self.cache.borrow_mut().early_cancels(resource, mode, &data)
        } else {
            Vec::new()
        };
        Sought::Ask(coming, Question { request, early })
    }

    /// Has a task of its own do the work, which goes on whatever becomes of the caller; what it gives.
    pub(crate) fn by_itself<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> OneReceiver<T> {
        let (tell, told) = oneshot();
        self.rt.spawn(async move { tell.send(work.await) });
        told
    }

    /// The message that asks, when the locks that it gives back cover nothing any more.
    pub(crate) async fn message(self: &Rc<Self>, question: Question) -> (EnqueueRequest, w::EnqueueRequest) {
        let Question { request, early } = question;
        let cancels = self.clean_up(early).await;
        let body = w::EnqueueRequest {
            lock: convert::spec(request.resource, request.mode, &request.data),
            flags: convert::flags_to_wire(request.flags),
            cookie: request.cookie.0,
            cancels,
        };
        (request, body)
    }

    /// Asks for a lock in a message of its own. Gives the value block that the answer brought.
    pub(crate) async fn ask(self: &Rc<Self>, question: Question) -> Option<w::Lvb> {
        let (request, body) = self.message(question).await;
        self.send(&request, &body).await
    }

    /// [`Locks::ask`] with the message that there is already.
    pub(crate) async fn send(self: &Rc<Self>, request: &EnqueueRequest, body: &w::EnqueueRequest) -> Option<w::Lvb> {
        let (import, asked) = (self.import.borrow().clone(), self.moment(request.resource));
        let answer: Result<w::EnqueueReply, FsError> = match import {
            Some(import) => import.ask(Op::LockEnqueue, body).await,
            None => Err(FsError::NotConnected),
        };
        let lvb = answer.as_ref().ok().and_then(|reply| reply.lvb.clone());
        self.answered(request, asked, answer);
        lvb
    }

    /// See [`LockOwner::moment`].
    pub(crate) fn moment(&self, resource: ResourceId) -> Moment {
        self.owner().map(|o| o.moment(resource)).unwrap_or_default()
    }

    /// Flushes and drops what these locks cover; their handles, for the request that they would stand in the way of.
    async fn clean_up(self: &Rc<Self>, early: Vec<LockDesc>) -> Vec<HandleId> {
        let mut handles = Vec::new();
        for lock in early {
            if let Some(owner) = self.owner() {
                owner.revoke(lock, InodeBits::NONE, None).await;
            }
            let mut out = Vec::new();
            handles.extend(self.cache.borrow_mut().cancelled_early(self.rt.now(), lock.cookie, &mut out));
            self.act(out);
        }
        handles
    }

    /// Takes in the answer to an enqueue, sent at that moment, alone or along with another request.
    pub(crate) fn answered(
        self: &Rc<Self>,
        request: &EnqueueRequest,
        asked: Moment,
        answer: Result<w::EnqueueReply, FsError>,
    ) {
        let EnqueueRequest { resource, cookie, flags, .. } = *request;
        let lvb = answer.as_ref().ok().and_then(|reply| reply.lvb.clone());
        let outcome = match answer {
            Ok(reply) if reply.granted => match convert::desc(reply.handle, cookie, &reply.lock) {
                Ok(desc) => EnqueueOutcome::Granted(desc),
                Err(_) => EnqueueOutcome::Denied(DenyReason::Invalid),
            },
            Ok(reply) if reply.handle.0 != 0 => EnqueueOutcome::Waiting(reply.handle),
            Ok(_) if flags.has(EnqueueFlags::GLIMPSE) => EnqueueOutcome::Denied(DenyReason::Glimpse { asked: 0 }),
            Ok(_) | Err(FsError::WouldBlock) => EnqueueOutcome::Denied(DenyReason::WouldBlock),
            Err(FsError::NoLocks) => EnqueueOutcome::Denied(DenyReason::NoLocks),
            Err(FsError::Deadlock) => EnqueueOutcome::Denied(DenyReason::Deadlock),
            Err(FsError::NotFound) => EnqueueOutcome::Denied(DenyReason::Gone),
            Err(FsError::Interrupted | FsError::Cancelled) => EnqueueOutcome::Denied(DenyReason::Cancelled),
            // Also of bytes that came along with the lock and were damaged each time.
            Err(FsError::NotConnected | FsError::Io | FsError::Corrupt) => EnqueueOutcome::Denied(DenyReason::Evicted),
            Err(e) => {
                tracing::debug!(?resource, "a request for a lock was answered: {e}");
                EnqueueOutcome::Denied(DenyReason::Invalid)
            }
        };
        let with = match &outcome {
            EnqueueOutcome::Granted(desc) => self.with_lock(desc, Some(asked)),
            _ => None,
        };
        self.tell_value_block(resource, lvb.as_ref(), with.unwrap_or(With::Answer(asked)));
        let mut out = Vec::new();
        self.cache.borrow_mut().on_reply(self.rt.now(), resource, cookie, outcome, &mut out);
        self.act(out);
    }

    /// What comes with a lock, if that will be held.
    fn with_lock(&self, desc: &LockDesc, asked: Option<Moment>) -> Option<With> {
        let end = desc.data.as_extent().map_or(0, |e| e.end);
        self.cache.borrow().awaits(desc).then_some(With::Lock { cookie: desc.cookie, asked, end })
    }
    fn tell_value_block(&self, resource: ResourceId, lvb: Option<&w::Lvb>, with: With) {
        if let (Some(lvb), Some(owner)) = (lvb, self.owner()) {
            owner.value_block(resource, lvb, with);
        }
    }

    /// Takes a lock in that came with another answer under a cookie of [`Locks::reserve`]. Whether it is held whole:
    /// what the answer says may be believed as long as it is.
    pub(crate) fn adopt(self: &Rc<Self>, cookie: u64, reply: Option<&w::EnqueueReply>) -> bool {
        if cookie == 0 {
            return false;
        }
        let cookie = LockCookie(cookie);
        let granted = reply.filter(|r| r.granted).and_then(|r| convert::desc(r.handle, cookie, &r.lock).ok());
        let mut out = Vec::new();
        let whole = self.cache.borrow_mut().adopt(self.rt.now(), cookie, granted, &mut out);
        self.act(out);
        whole
    }
    /// Gives unused locks on a resource back.
    pub(crate) fn give_up(self: &Rc<Self>, resource: ResourceId) {
        let mut out = Vec::new();
        self.cache.borrow_mut().give_up(resource, &mut out);
        self.act(out);
    }
    /// Cookies for `n` locks that an answer may bring along: the first, the others count up; until the guard goes.
    pub(crate) fn reserve(self: &Rc<Self>, n: u64) -> (u64, Option<Reserved>) {
        let first = self.cache.borrow_mut().reserve_run(n).0;
        (first, Some(Reserved { locks: self.clone(), first, n }))
    }
    /// As [`Locks::adopt`], of a PR inode-bit lock told by its handle only; 0: none came.
    pub(crate) fn adopt_bits(self: &Rc<Self>, cookie: u64, handle: HandleId, fid: Fid, bits: u64) -> bool {
        let lock = w::LockSpec { fid, kind: w::Kind::Inodebits, mode: w::Mode::Pr, bits, ..w::LockSpec::default() };
        let reply = w::EnqueueReply { handle, granted: true, lock, lvb: None };
        self.adopt(cookie, Some(&reply).filter(|_| handle.0 != 0))
    }
    /// A cookie for a lock that an answer may bring along, on a resource not yet known; until the guard goes.
    pub(crate) fn reserve_one(self: &Rc<Self>) -> (u64, Option<Reserved>) {
        self.reserve(1)
    }

    /// Callbacks of the server.
    pub(crate) fn on_blocking(self: &Rc<Self>, call: &w::BlockingCallback) -> Result<(), FsError> {
        if types::planted!("callback-lost") {
            return Ok(());
        }
        let (resource, mut wanted) = convert::resource_and_data(&call.wanted)?;
        let cookie = LockCookie(call.cookie);
        if let Some(bits) = wanted.as_bits().filter(|_| !self.cache.borrow().is_reserved(cookie)) {
            let also = self.owner().map_or(InodeBits::NONE, |o| o.also_goes(resource, bits));
            wanted = LockPolicyData::bits(bits.union(also));
        }
        let mut out = Vec::new();
        self.cache.borrow_mut().on_blocking(call.handle, cookie, resource, call.wanted.mode, &wanted, &mut out);
        self.act(out);
        Ok(())
    }
    pub(crate) fn on_completion(self: &Rc<Self>, call: &w::CompletionCallback) -> Result<(), FsError> {
        let cookie = LockCookie(call.cookie);
        let desc = convert::desc(call.handle, cookie, &call.lock)?;
        let mut out = Vec::new();
        if call.status == 0 {
            if let Some(with) = self.with_lock(&desc, None) {
                self.tell_value_block(desc.resource, call.lvb.as_ref(), with);
            }
            self.cache.borrow_mut().on_granted(self.rt.now(), desc, &mut out);
        } else {
            // A target that cannot say what the lock is to vouch for does not give it.
            let gone = i32::from(call.status) == FsError::NotFound.errno();
            let outcome = EnqueueOutcome::Denied(if gone { DenyReason::Gone } else { DenyReason::Evicted });
            self.cache.borrow_mut().on_reply(self.rt.now(), desc.resource, cookie, outcome, &mut out);
        }
        self.act(out);
        Ok(())
    }
    pub(crate) fn on_evicted(self: &Rc<Self>) {
        let mut out = Vec::new();
        self.cache.borrow_mut().on_evicted(&mut out);
        self.act(out);
    }
    /// Held locks as requests that re-insert them at a restarted server, then waiting requests.
    pub(crate) fn replays(&self) -> Vec<(Op, Vec<u8>)> {
        let cache = self.cache.borrow();
        let held = cache.for_replay().into_iter().map(|l| w::EnqueueRequest {
            lock: convert::spec(l.resource, l.mode, &l.data),
            flags: w::EnqueueFlags::REPLAY,
            cookie: l.cookie.0,
            cancels: Vec::new(),
        });
        let held = held.skip(usize::from(types::planted!("lock-not-replayed")));
        held.map(|r| (Op::LockEnqueue, wire::encode(&r))).collect()
    }
    pub(crate) fn on_replayed(self: &Rc<Self>, request: &[u8], answer: Result<Vec<u8>, FsError>) {
        let Ok(request) = wire::decode::<w::EnqueueRequest>(request) else { return };
        let is_there = !matches!(answer, Err(FsError::NotFound));
        let reply = answer.ok().and_then(|b| wire::decode::<w::EnqueueReply>(&b).ok());
        let handle = reply.filter(|r| r.granted).map(|r| r.handle);
        let mut out = Vec::new();
        self.cache.borrow_mut().on_replayed(LockCookie(request.cookie), handle, &mut out);
        for action in out {
            match (action, self.owner()) {
                (CacheAction::Lost(desc), Some(owner)) if !is_there => owner.lost_with_resource(desc),
                (action, _) => self.act(vec![action]),
            }
        }
    }
    /// After a restart: requests that were waiting there are asked again.
    pub(crate) fn resend_waiting(self: &Rc<Self>) {
        let waiting = self.cache.borrow().for_resend();
        for request in waiting {
            let me = self.clone();
            self.rt.spawn(async move {
                me.ask(Question { request, early: Vec::new() }).await;
            });
        }
    }
    /// Gives back what is too old or too much, and under `pressure` that many more.
    pub(crate) fn tick(self: &Rc<Self>, pressure: usize) {
        let mut out = Vec::new();
        let now = self.rt.now();
        self.cache.borrow_mut().tick(now, &mut out);
        if pressure > 0 {
            self.cache.borrow_mut().shrink(now, pressure, &mut out);
        }
        self.act(out);
    }
    /// Gives every unused lock back, with what it covers.
    pub(crate) fn give_back_unused(self: &Rc<Self>) {
        let all = self.cache.borrow().unused();
        self.tick(all);
    }
    /// The same, and each lock in use as soon as nobody uses it any more.
    pub(crate) fn give_all_back(self: &Rc<Self>) {
        self.give_back_unused();
        let mut out = Vec::new();
        let mut cache = self.cache.borrow_mut();
        let held: Vec<LockDesc> = cache.locks().filter(|(_, held)| *held).map(|(lock, _)| lock).collect();
        for lock in held {
            cache.on_blocking(lock.handle, lock.cookie, lock.resource, LockMode::Pw, &lock.data, &mut out);
        }
        drop(cache);
        self.act(out);
    }
    /// [`Locks::give_back_unused`], and waits until the server was told. Locks that come meanwhile, or go out of use, go as well.
    pub(crate) async fn drain(self: &Rc<Self>) {
        self.give_back_unused();
        while self.cache.borrow().locks().any(|(_, held)| held) {
            self.give_back_unused();
            self.rt.sleep(types::Duration::from_millis(2)).await;
        }
    }

    fn act(self: &Rc<Self>, actions: Vec<CacheAction>) {
        for action in actions {
            match action {
                CacheAction::Granted(desc) => self.wake(desc.cookie, Ok(desc)),
                CacheAction::Denied { cookie, reason } => self.wake(cookie, Err(reason)),
                CacheAction::Revoke { lock, keep, keep_mode } => self.revoke(lock, keep, keep_mode),
                CacheAction::SendNarrow { handle, keep, .. } => {
                    self.send_convert(w::ConvertRequest { handle, bits: u64::from(keep.0), mode: None });
                }
                CacheAction::SendConvert { handle, mode, .. } => {
                    self.send_convert(w::ConvertRequest { handle, bits: 0, mode: Some(mode) });
                }
                CacheAction::SendCancel { handle, resource } => {
                    self.send_cancel(handle);
                    if !self.knows(resource)
                        && let Some(owner) = self.owner()
                    {
                        owner.gone(resource);
                    }
                }
                CacheAction::Lost(desc) => {
                    if let Some(owner) = self.owner() {
                        owner.lost(desc);
                    }
                }
            }
        }
    }
    fn wake(&self, cookie: LockCookie, result: Result<LockDesc, DenyReason>) {
        for waiter in self.waiters.borrow_mut().remove(&cookie).unwrap_or_default() {
            waiter.send(result);
        }
    }
    fn revoke(self: &Rc<Self>, lock: LockDesc, keep: InodeBits, keep_mode: Option<LockMode>) {
        let me = self.clone();
        self.rt.spawn(async move {
            if let Some(owner) = me.owner() {
                owner.revoke(lock, keep, keep_mode).await;
            }
            let mut out = Vec::new();
            me.cache.borrow_mut().flushed(me.rt.now(), lock.cookie, &mut out);
            me.act(out);
        });
    }
    fn send_convert(&self, body: w::ConvertRequest) {
        let Some(import) = self.import.borrow().clone() else { return };
        self.rt.spawn(async move {
            let handle = body.handle;
            let (body, options) = (wire::encode(&body), CallOptions::urgent(None));
            if let Err(e) = import.call(Op::LockConvert, body, Bulk::new(), options).await {
                tracing::debug!(%handle, "convert: {e}");
            }
        });
    }
    /// Cancels gather until the next turn of the shard, so that many travel in one request.
    fn send_cancel(self: &Rc<Self>, handle: HandleId) {
        self.cancels.borrow_mut().push(handle);
        if self.cancels.borrow().len() > 1 {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            let handles = std::mem::take(&mut *me.cancels.borrow_mut());
            let Some(import) = me.import.borrow().clone() else { return };
            let body = wire::encode(&w::CancelRequest { handles, cookies: Vec::new() });
            let _ = import
                .call(Op::LockCancel, body, Bulk::new(), CallOptions { no_replay: true, ..CallOptions::urgent(None) })
                .await;
        });
    }
}
