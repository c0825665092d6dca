//! fcntl and flock locks: the metadata server decides, this waits, gives up on signals, and remembers for replay.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::rc::Rc;

use ldlm::{FlockKind, FlockMirror, FlockMode, FlockRequest, LockCookie};
use rt::sync::{Event, OneSender, oneshot, race};
use types::{Duration, Extent, Fid, FsError};
use wire::Op;
use wire::lock::{CancelRequest, CompletionCallback, EnqueueFlags, EnqueueReply, EnqueueRequest, Kind, LockSpec, Mode};

use crate::goes_on::goes_on_or;
use crate::in_use::InUse;
use crate::sessions::Sessions;

/// Pause before a server that failed is told again that a lock was given up.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// Interrupted requests that are remembered in case their grant was on its way; the grant of an older one counts as unexpected.
const INTERRUPTED_MAX: usize = 1024;

/// One lock call of a program.
#[derive(Clone, Copy, Debug)]
pub struct LockCall {
    /// The file.
    pub fid: Fid,
    /// flock(2) rather than fcntl(2).
    pub whole: bool,
    /// Read lock, write lock or unlock.
    pub mode: FlockMode,
    /// Bytes; end `u64::MAX`: to the end of the file.
    pub extent: Extent,
    /// Owner within this client.
    pub owner: u64,
    /// Process.
    pub pid: u32,
}

/// A lock in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its bytes.
    pub extent: Extent,
    /// Write lock.
    pub exclusive: bool,
    /// Its process (of whatever client).
    pub pid: u32,
}

/// A request that waits at the server.
struct Waiting {
    request: EnqueueRequest,
    memory: FlockRequest,
    /// A restarted server is being asked again.
    asked_again: Cell<bool>,
    /// Its program waits no longer: the server is to forget it.
    withdrawn: Cell<bool>,
    /// Its program was told that it was interrupted, and no grant came since.
    unclaimed: Cell<bool>,
}

/// fcntl and flock locks of a client.
pub struct Flocks {
    sessions: Rc<Sessions>,
    next: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, OneSender<Result<(), FsError>>>>,
    /// What those who wait asked for: a restarted server is asked again.
    asked: RefCell<BTreeMap<u64, Rc<Waiting>>>,
    /// Requests that were interrupted: a grant of one that was on its way is given back when it comes.
    interrupted: RefCell<BTreeMap<u64, Rc<Waiting>>>,
    /// Requests under way that may have to wait, each with the completion that came before its answer. Nothing else is
    /// kept of completions: there are at most as many as requests in flight.
    asking: RefCell<BTreeMap<u64, Option<Result<(), FsError>>>>,
    /// Requests under way that may give something up. A server may have carried them out and given it to others, and died
    /// before its answer came: it is not replayed.
    giving_up: RefCell<BTreeMap<u64, FlockRequest>>,
    /// Completions that nobody waited for.
    unexpected: Cell<u64>,
    /// Ranges that an eviction took, or that a restarted server had given to others.
    lost: Cell<u64>,
    mirror: RefCell<Option<FlockMirror>>,
    /// Unlocks of what was held that the server refused, because it failed. The locks are given up: no restarted server is
    /// offered them. This one is told until it has heard, before anything else that their owners ask. At most one for
    /// each range that was held.
    owed: RefCell<VecDeque<EnqueueRequest>>,
    /// Somebody tells the server of them.
    pays: Cell<bool>,
    paid: Event,
}

impl Flocks {
    pub(crate) fn new(sessions: Rc<Sessions>) -> Rc<Flocks> {
        Rc::new(Flocks {
            sessions,
            next: Cell::new(0),
            waiting: RefCell::default(),
            asked: RefCell::default(),
            interrupted: RefCell::default(),
            asking: RefCell::default(),
            giving_up: RefCell::default(),
            unexpected: Cell::new(0),
            lost: Cell::new(0),
            mirror: RefCell::new(None),
            owed: RefCell::default(),
            pays: Cell::new(false),
            paid: Event::new(),
        })
    }
    fn cookie(&self) -> u64 {
        let n = self.next.get() + 1;
        self.next.set(n);
        // Apart from the cookies of inode-bit locks at the same server.
        n | 1 << 62
    }
    pub(crate) fn completed(self: &Rc<Self>, call: &CompletionCallback) {
        let result = if call.status == 0 { Ok(()) } else { Err(FsError::from_errno(i32::from(call.status))) };
        tracing::trace!(call.cookie, call.status, "completed");
        match self.waiting.borrow_mut().remove(&call.cookie) {
            Some(waiter) => waiter.send(result),
            None => match self.asking.borrow_mut().get_mut(&call.cookie) {
                Some(early) => *early = Some(result),
                None => {
                    self.unexpected.set(self.unexpected.get() + 1);
                    let late = self.interrupted.borrow_mut().remove(&call.cookie);
                    if let Some(late) = late.filter(|_| result.is_ok()) {
                        self.granted_late(&late);
                    }
                }
            },
        }
    }
    pub(crate) fn note_use(&self, into: &mut InUse) {
        into.add("waits for a program's lock", (self.waiting.borrow().len() + self.asked.borrow().len()) as u64);
        into.add("requests for programs' locks", self.asking.borrow().len() as u64);
        into.add("unlocks owed", self.owed.borrow().len() as u64);
    }
    /// A request is about to be sent whose completion may come before its answer.
    fn asking(&self, request: &FlockRequest) -> Asking<'_> {
        let cookie = request.cookie.0;
        self.asking.borrow_mut().insert(cookie, None);
        if request.mode != FlockMode::Exclusive || request.kind == FlockKind::Flock {
            self.giving_up.borrow_mut().insert(cookie, *request);
        }
        Asking { flocks: self, cookie }
    }
    /// The server does not know us any more: what was held is lost, and who waits is told.
    pub(crate) fn lost(&self) {
        let mirror = self.mirror.borrow_mut().take();
        self.note_lost(mirror.map_or(0, |m| m.for_replay(self.sessions.id()).count()));
        self.asked.borrow_mut().clear();
        self.interrupted.borrow_mut().clear();
        self.owed.borrow_mut().clear();
        self.paid.notify();
        for waiter in std::mem::take(&mut *self.waiting.borrow_mut()).into_values() {
            waiter.send(Err(FsError::Io));
        }
    }
    /// Whether the server is still to hear what an owner gave up.
    fn owes(&self, of: &LockSpec) -> bool {
        self.owed.borrow().iter().any(|q| (q.lock.fid, q.lock.kind, q.lock.owner) == (of.fid, of.kind, of.owner))
    }
    /// The server did not carry an unlock out. Whether it gives something up all the same: something was held.
    fn gives_up(&self, unlock: &FlockRequest, request: EnqueueRequest) -> bool {
        let mut mirror = self.mirror.borrow_mut();
        let Some(mirror) = mirror.as_mut().filter(|m| m.holds(unlock.fid, unlock.kind, unlock.owner)) else {
            return false;
        };
        mirror.on_giving_up(unlock);
        self.owed.borrow_mut().push_back(request);
        true
    }
    fn granted(&self, request: &FlockRequest) {
        self.mirror.borrow_mut().get_or_insert_with(FlockMirror::new).on_granted(request);
    }
    /// The server decided on a request without granting it: a flock that was to be converted is gone all the same.
    fn not_granted(&self, request: &FlockRequest) {
        if request.kind == FlockKind::Flock
            && let Some(mirror) = self.mirror.borrow_mut().as_mut()
        {
            mirror.on_giving_up(request);
        }
    }
    /// A lock came whose program was told that it was interrupted: it is given back. Of an owner who has others in the file
    /// it may be one that he had: it stays.
    fn granted_late(self: &Rc<Self>, late: &Waiting) {
        if !late.unclaimed.replace(false) {
            return;
        }
        let FlockRequest { fid, kind, owner, pid, extent, .. } = late.memory;
        let had_some = self.holds(fid, kind, owner);
        self.granted(&late.memory);
        if had_some {
            return;
        }
        let (me, mode) = (self.clone(), FlockMode::Unlock);
        let unlock = LockCall { fid, whole: kind == FlockKind::Flock, mode, extent, owner, pid };
        self.sessions.rt().spawn(async move { _ = me.set_lock(unlock, false, std::future::pending()).await });
    }
    /// So many ranges are lost that programs hold for all they know.
    fn note_lost(&self, ranges: usize) {
        if ranges > 0 {
            tracing::error!(ranges, "locks of programs (fcntl, flock) are lost; the programs are not told");
            self.lost.set(self.lost.get() + ranges as u64);
        }
    }
    /// A restarted server was offered a lock of a program.
    pub(crate) fn on_replayed(&self, request: &EnqueueRequest, refused: bool) {
        let LockSpec { fid, kind, extent, owner, pid, .. } = request.lock;
        let whole = kind == Kind::Flock;
        let mut mirror = self.mirror.borrow_mut();
        if refused && let Some(mirror) = mirror.as_mut() {
            // Others have it by now. What the server does not know of is neither offered again nor given back.
            let call = LockCall { fid, whole, mode: FlockMode::Unlock, extent, owner, pid };
            mirror.on_granted(&Self::request_of(&call, request.cookie, false));
            self.note_lost(1);
        }
    }
}

/// A request under way; see [`Flocks::asking`].
struct Asking<'a> {
    flocks: &'a Flocks,
    cookie: u64,
}

impl Asking<'_> {
    /// It was answered; the completion, if that has come already.
    fn end(self) -> Option<Result<(), FsError>> {
        self.flocks.asking.borrow_mut().get_mut(&self.cookie).and_then(Option::take)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.flocks.asking.borrow_mut().remove(&self.cookie);
        self.flocks.giving_up.borrow_mut().remove(&self.cookie);
    }
}

impl Flocks {
    /// Completions of fcntl and flock locks that came although nobody waited for them: of requests that were withdrawn, or
    /// a server's mistake.
    #[must_use]
    pub fn completions_unexpected(&self) -> u64 {
        self.unexpected.get()
    }
    /// Ranges of programs' fcntl and flock locks that were lost since the start: an eviction took them, or a restarted server
    /// had given them to others.
    #[must_use]
    pub fn ranges_lost(&self) -> u64 {
        self.lost.get()
    }
    fn spec_of(call: &LockCall) -> LockSpec {
        LockSpec {
            fid: call.fid,
            kind: if call.whole { Kind::Flock } else { Kind::Posix },
            mode: if call.mode == FlockMode::Shared { Mode::Pr } else { Mode::Pw },
            extent: call.extent,
            bits: 0,
            owner: call.owner,
            pid: call.pid,
        }
    }
    fn request_of(call: &LockCall, cookie: u64, wait: bool) -> FlockRequest {
        FlockRequest {
            fid: call.fid,
            kind: if call.whole { FlockKind::Flock } else { FlockKind::Posix },
            owner: call.owner,
            pid: call.pid,
            mode: call.mode,
            extent: call.extent,
            wait,
            cookie: LockCookie(cookie),
        }
    }

    /// The lock in the way of `call`, if any (F_GETLK).
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn test_lock(self: &Rc<Self>, call: LockCall) -> Result<Option<Blocker>, FsError> {
        let request = EnqueueRequest {
            lock: Self::spec_of(&call),
            flags: EnqueueFlags::TEST,
            cookie: self.cookie(),
            cancels: Vec::new(),
        };
        let reply: EnqueueReply = self.sessions.mdc().ask(Op::LockEnqueue, &request).await?;
        let free = reply.granted || reply.lock.mode == Mode::Nl;
        Ok((!free).then_some(Blocker {
            extent: reply.lock.extent,
            exclusive: reply.lock.mode != Mode::Pr,
            pid: reply.lock.pid,
        }))
    }

    /// Takes or gives back a lock; with `wait` until it is there or `interrupted` completes.
    ///
    /// Cancel: goes on by itself, but waits no longer; a lock that comes all the same is given back, unless its owner had one
    /// in the file: then it stays.
    ///
    /// # Errors
    /// EAGAIN when held and not to wait, EDEADLK, EINTR, ENOLCK.
    pub async fn set_lock(
        self: &Rc<Self>,
        call: LockCall,
        wait: bool,
        interrupted: impl Future<Output = ()> + 'static,
    ) -> Result<(), FsError> {
        let had_some = self.holds_some(&call);
        // It goes when the caller does, and is the last to go.
        let (_here, caller_gone) = oneshot::<()>();
        let (me, undoer, alone) = (self.clone(), self.clone(), self.sessions.alone());
        let locked = async move { me.set_lock_now(call, wait, race(interrupted, caller_gone)).await };
        let undo = move |locked: Result<(), FsError>| {
            // Of an owner who had others in the file it may be one that he had: it stays.
            if locked.is_ok() && call.mode != FlockMode::Unlock && !had_some {
                let unlock = LockCall { mode: FlockMode::Unlock, ..call };
                let rt = undoer.sessions.rt().clone();
                rt.spawn(async move { _ = undoer.set_lock(unlock, false, std::future::pending()).await });
            }
        };
        goes_on_or(alone, locked, undo).await
    }
    /// Whether the owner of a call holds anything in its file, as far as this client knows: perhaps for others who share it with the caller.
    #[must_use]
    pub fn holds_some(&self, call: &LockCall) -> bool {
        let kind = if call.whole { FlockKind::Flock } else { FlockKind::Posix };
        self.holds(call.fid, kind, call.owner)
    }
    fn holds(&self, fid: Fid, kind: FlockKind, owner: u64) -> bool {
        self.mirror.borrow().as_ref().is_some_and(|m| m.holds(fid, kind, owner))
    }

    async fn set_lock_now<T>(
        self: &Rc<Self>,
        call: LockCall,
        wait: bool,
        interrupted: impl Future<Output = T>,
    ) -> Result<(), FsError> {
        let cookie = self.cookie();
        let mut flags = if wait { 0 } else { EnqueueFlags::NOWAIT };
        if call.mode == FlockMode::Unlock {
            flags |= EnqueueFlags::UNLOCK;
        }
        let request = EnqueueRequest { lock: Self::spec_of(&call), flags, cookie, cancels: Vec::new() };
        let memory = Self::request_of(&call, cookie, wait);
        let mut interrupted = std::pin::pin!(interrupted);
        while call.mode != FlockMode::Unlock && self.owes(&request.lock) {
            let paid = self.paid.wait();
            if race(paid, interrupted.as_mut()).await.is_err() {
                return Err(FsError::Interrupted);
            }
        }
        let asking = self.asking(&memory);
        tracing::trace!(?call, cookie, wait, "asks");
        let reply: Result<EnqueueReply, FsError> = self.sessions.mdc().ask(Op::LockEnqueue, &request).await;
        let early = asking.end();
        let failed = matches!(reply, Err(FsError::Io | FsError::NoSpace | FsError::Corrupt));
        if failed && call.mode == FlockMode::Unlock && self.gives_up(&memory, request.clone()) {
            self.pay_unlocks();
            return Ok(());
        }
        if matches!(reply, Err(FsError::WouldBlock | FsError::NoLocks)) {
            self.not_granted(&memory);
        }
        let reply = reply?;
        tracing::trace!(cookie, reply.granted, ?early, "answered");
        if reply.granted || call.mode == FlockMode::Unlock {
            self.granted(&memory);
            return Ok(());
        }
        self.not_granted(&memory);
        if !wait {
            return Err(FsError::WouldBlock);
        }
        let result = match early {
            Some(result) => result,
            None => {
                let (asked_again, withdrawn, unclaimed) = Default::default();
                let waiting = Rc::new(Waiting { request, memory, asked_again, withdrawn, unclaimed });
                self.asked.borrow_mut().insert(cookie, waiting.clone());
                let result = self.wait_for_lock(&waiting, interrupted.as_mut()).await;
                self.asked.borrow_mut().remove(&cookie);
                result
            }
        };
        if result.is_ok() {
            self.granted(&memory);
        }
        result
    }

    async fn wait_for_lock<T>(
        self: &Rc<Self>,
        waiting: &Rc<Waiting>,
        interrupted: impl Future<Output = T>,
    ) -> Result<(), FsError> {
        let cookie = waiting.request.cookie;
        let (tx, rx) = oneshot();
        self.waiting.borrow_mut().insert(cookie, tx);
        let mut signal = std::pin::pin!(interrupted);
        let mut rx = std::pin::pin!(rx);
        let first = std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(r) = rx.as_mut().poll(cx) {
                return std::task::Poll::Ready(Some(r));
            }
            signal.as_mut().poll(cx).map(|_| None)
        })
        .await;
        if let Some(result) = first {
            return result.unwrap_or(Err(FsError::Io));
        }
        // A signal: withdraw the request; a grant that crosses the withdrawal counts. No restarted server is asked for it again.
        self.asked.borrow_mut().remove(&cookie);
        waiting.withdrawn.set(true);
        _ = self.withdraw(cookie).await;
        if self.waiting.borrow_mut().remove(&cookie).is_none() {
            return rx.await.unwrap_or(Err(FsError::Interrupted));
        }
        // The grant may be on its way: it comes again after a connection that was lost.
        waiting.unclaimed.set(true);
        let mut interrupted = self.interrupted.borrow_mut();
        interrupted.insert(cookie, waiting.clone());
        if interrupted.len() > INTERRUPTED_MAX {
            interrupted.pop_first();
        }
        Err(FsError::Interrupted)
    }
    /// The server is to forget a request that waits there; one that it has granted stands.
    async fn withdraw(&self, cookie: u64) -> Result<(), FsError> {
        let cancel = CancelRequest { handles: Vec::new(), cookies: vec![cookie] };
        self.sessions.mdc().ask(Op::LockCancel, &cancel).await
    }

    /// Gives back every lock of an owner in a file (close of a descriptor).
    ///
    /// Cancel: goes on by itself.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn drop_locks(self: &Rc<Self>, fid: Fid, owner: u64, whole: bool) -> Result<(), FsError> {
        let kind = if whole { FlockKind::Flock } else { FlockKind::Posix };
        if !self.holds(fid, kind, owner) {
            return Ok(());
        }
        let call = LockCall { fid, whole, mode: FlockMode::Unlock, extent: Extent::ALL, owner, pid: 0 };
        self.set_lock(call, false, std::future::pending()).await
    }

    /// Tells the server what was given up while it failed, until it has heard.
    fn pay_unlocks(self: &Rc<Self>) {
        if self.pays.replace(true) {
            return;
        }
        let (me, rt) = (Rc::downgrade(self), self.sessions.rt().clone());
        self.sessions.rt().spawn(async move {
            loop {
                rt.sleep(TELL_AGAIN).await;
                let Some(me) = me.upgrade() else { return };
                let Some(next) = me.owed.borrow().front().cloned() else {
                    return me.pays.set(false);
                };
                let told: Result<EnqueueReply, FsError> = me.sessions.mdc().ask(Op::LockEnqueue, &next).await;
                if told.is_ok() {
                    me.owed.borrow_mut().pop_front_if(|q| q.cookie == next.cookie);
                    me.paid.notify();
                }
            }
        });
    }

    /// After a restart: requests that were waiting there are asked again.
    pub(crate) fn ask_again(self: &Rc<Self>) {
        let asked: Vec<_> = self.asked.borrow().values().cloned().collect();
        for waiting in asked {
            // The session sends what is on its way again by itself.
            if waiting.asked_again.replace(true) {
                continue;
            }
            let me = self.clone();
            self.sessions.rt().spawn(async move {
                let request = &waiting.request;
                let reply: Result<EnqueueReply, FsError> = me.sessions.mdc().ask(Op::LockEnqueue, request).await;
                waiting.asked_again.set(false);
                let result = match reply {
                    Ok(reply) if reply.granted => Ok(()),
                    // It waits, and a completion follows. A withdrawal may have come to that server first.
                    Ok(_) if waiting.withdrawn.get() => {
                        _ = me.withdraw(request.cookie).await;
                        return;
                    }
                    Ok(_) => return,
                    Err(e) => Err(e),
                };
                let waiter = me.waiting.borrow_mut().remove(&request.cookie);
                match waiter {
                    Some(waiter) => waiter.send(result),
                    None if result.is_ok() => me.granted_late(&waiting),
                    None => {}
                }
            });
        }
    }

    pub(crate) fn replays(&self) -> Vec<(Op, Vec<u8>)> {
        let Some(mut mirror) = self.mirror.borrow().clone() else { return Vec::new() };
        self.giving_up.borrow().values().for_each(|request| mirror.on_giving_up(request));
        mirror
            .for_replay(self.sessions.id())
            .map(|r| {
                let mode = if r.exclusive { FlockMode::Exclusive } else { FlockMode::Shared };
                let call = LockCall {
                    fid: r.fid,
                    whole: r.kind == FlockKind::Flock,
                    mode,
                    extent: r.extent,
                    owner: r.owner,
                    pid: r.pid,
                };
                let request = EnqueueRequest {
                    lock: Self::spec_of(&call),
                    flags: EnqueueFlags::REPLAY,
                    cookie: self.cookie(),
                    cancels: Vec::new(),
                };
                (Op::LockEnqueue, wire::encode(&request))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flocks() -> Rc<Flocks> {
        let rt = simworld::TestWorld::new(1, 1 << 20).rt();
        let jobs = crate::jobs::Jobs::new(rt.clone(), crate::JobRule::default());
        let nid = rt::Nid::parse("127.0.0.1:7988").unwrap();
        Flocks::new(Sessions::new(rt, types::ClientId(7), ptlrpc::ClusterKey::none(), nid, jobs))
    }
    fn completion(cookie: u64, status: u16) -> CompletionCallback {
        CompletionCallback { cookie, status, ..CompletionCallback::default() }
    }

    fn request(cookie: u64) -> FlockRequest {
        let (fid, extent) = (Fid::ROOT, Extent::ALL);
        let call = LockCall { fid, whole: true, mode: FlockMode::Exclusive, extent, owner: 1, pid: 1 };
        Flocks::request_of(&call, cookie, true)
    }

    #[test]
    fn a_lock_that_a_restarted_server_refuses_is_not_held_any_more() {
        let flocks = flocks();
        flocks.granted(&request(7));
        let offered: Vec<EnqueueRequest> =
            flocks.replays().iter().map(|(_, q)| wire::decode(q).expect("it was encoded just now")).collect();
        flocks.on_replayed(&offered[0], false);
        assert!(flocks.holds(Fid::ROOT, FlockKind::Flock, 1) && flocks.ranges_lost() == 0);
        flocks.on_replayed(&offered[0], true);
        assert!(!flocks.holds(Fid::ROOT, FlockKind::Flock, 1) && flocks.replays().is_empty());
        assert_eq!((offered.len(), flocks.ranges_lost()), (1, 1));
    }

    #[test]
    fn a_completion_is_kept_only_for_a_request_under_way() {
        let flocks = flocks();
        for stray in 0..1000 {
            flocks.completed(&completion(stray, 0));
        }
        assert_eq!((flocks.asking.borrow().len(), flocks.unexpected.get()), (0, 1000), "nobody asked");
        let asking = flocks.asking(&request(7));
        flocks.completed(&completion(7, 35));
        assert_eq!(asking.end(), Some(Err(FsError::Deadlock)));
        let asking = flocks.asking(&request(8));
        flocks.completed(&completion(8, 0));
        drop(asking);
        assert!(flocks.asking.borrow().is_empty(), "its request failed, or nobody wants the answer any more");
        flocks.completed(&completion(8, 0));
        assert_eq!(flocks.unexpected.get(), 1001);
    }
}
