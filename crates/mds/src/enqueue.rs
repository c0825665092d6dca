//! Lock requests of clients: inode-bit locks asked for by themselves, flocks, cancels, conversions, replays.
use std::rc::Rc;

use ldlm::{
    DenyReason, EnqueueOutcome, EnqueueRequest as Ask, FlockKind, FlockMode, FlockOutcome, FlockRange, FlockRequest,
    InodeBits, LockCookie, LockMode, LockPolicyData, LockReplay, ResourceId,
};
use ptlrpc::Export;
use types::{ClientId, Duration, Extent, FsError, HandleId};
use wire::lock::{CancelRequest, ConvertRequest, EnqueueFlags, EnqueueReply, EnqueueRequest, Kind, LockSpec, Mode};

use crate::keys;
use crate::locks::inode_lock_reply;
use crate::mds::{Caller, Mds};

/// A client pings every 10 s: one that was not heard of for so long may have died without anybody noticing.
const SILENT: Duration = Duration::from_secs(15);

impl Mds {
    /// `LockEnqueue`.
    ///
    /// # Errors
    /// Why there is no lock.
    pub(crate) async fn enqueue(self: &Rc<Self>, caller: Caller, q: &EnqueueRequest) -> Result<EnqueueReply, FsError> {
        let client = caller.client;
        if !q.cancels.is_empty() {
            self.cancel_locks(client, &q.cancels);
        }
        match q.lock.kind {
            Kind::Extent => Err(FsError::Invalid),
            Kind::Inodebits => self.enqueue_bits(client, q),
            Kind::Posix | Kind::Flock => {
                let needs_inode = q.flags & (EnqueueFlags::UNLOCK | EnqueueFlags::REPLAY) == 0;
                let session = self.export(client);
                if needs_inode && self.store.get(&keys::inode(q.lock.fid)).await?.is_none() {
                    return Err(FsError::Stale);
                }
                // It may be a missing client's.
                while needs_inode && self.is_held_by_missing(q.lock.fid) && !self.stopped.get() {
                    self.fewer_missing().await;
                }
                self.may_flock(caller, q)?;
                // Nothing would ever take the lock from a client that is gone.
                if session.is_some_and(|s| s.is_ended()) {
                    return Err(FsError::NotConnected);
                }
                self.enqueue_flock(caller, q)
            }
        }
    }

    fn enqueue_bits(self: &Rc<Self>, client: ClientId, q: &EnqueueRequest) -> Result<EnqueueReply, FsError> {
        let bits = InodeBits(u8::try_from(q.lock.bits).map_err(|_| FsError::Invalid)?);
        let (mode, data) = (q.lock.mode, LockPolicyData::Inodebits { bits });
        // Clients cache; changes are the server's to make.
        if !matches!(mode, LockMode::Pr | LockMode::Cr) {
            return Err(FsError::Invalid);
        }
        let resource = ResourceId::inode(q.lock.fid);
        let cookie = LockCookie(q.cookie);
        let now = self.rt.now();
        if q.flags & EnqueueFlags::REPLAY != 0 {
            let replay = LockReplay { cookie, resource, mode, data };
            let handle =
                self.locks.namespace.borrow_mut().replay(now, client, &replay).map_err(|_| FsError::WouldBlock)?;
            return Ok(EnqueueReply { handle, granted: true, lock: q.lock.clone(), lvb: None });
        }
        let mut flags = ldlm::EnqueueFlags::NONE;
        for (wire, room) in
            [(EnqueueFlags::NOWAIT, ldlm::EnqueueFlags::NOWAIT), (EnqueueFlags::TEST, ldlm::EnqueueFlags::TEST)]
        {
            if q.flags & wire != 0 {
                flags = flags.with(room);
            }
        }
        if bits.overlaps(InodeBits::DATA)
            && (self.handles.borrow().others_write(q.lock.fid, client) || self.is_written_by_missing(q.lock.fid))
        {
            return Err(FsError::WouldBlock);
        }
        let mut out = Vec::new();
        let ask = Ask::new(cookie, resource, mode, data).flags(flags);
        let mut namespace = self.locks.namespace.borrow_mut();
        let outcome = namespace.enqueue(now, client, &ask, &mut out);
        let full = outcome == EnqueueOutcome::Denied(DenyReason::NoLocks);
        if full {
            namespace.make_room(now, &mut out);
        }
        drop(namespace);
        self.dispatch(out);
        match outcome {
            EnqueueOutcome::Granted(lock) => Ok(inode_lock_reply(&lock)),
            EnqueueOutcome::Waiting(handle) => {
                Ok(EnqueueReply { handle, granted: false, lock: q.lock.clone(), lvb: None })
            }
            // Others give locks back; the client's session asks again.
            EnqueueOutcome::Denied(_) if full => Err(FsError::Overloaded),
            EnqueueOutcome::Denied(reason) => Err(reason.error()),
        }
    }

    /// Whether the client may ask for a program's lock. Where users are others here than there it opens nothing without telling, so the file
    /// is one that it has open. Who unlocks, or tells again what it had, is not asked.
    ///
    /// # Errors
    /// `Access`.
    fn may_flock(&self, caller: Caller, q: &EnqueueRequest) -> Result<(), FsError> {
        let limited = self.limits_of(caller).is_some_and(|l| l.changes_ids());
        let asks = q.flags & EnqueueFlags::UNLOCK == 0 && caller.replay.is_none();
        let may = !limited || !asks || self.handles.borrow().has_open(caller.client, q.lock.fid);
        if may { Ok(()) } else { Err(FsError::Access) }
    }

    fn enqueue_flock(self: &Rc<Self>, caller: Caller, q: &EnqueueRequest) -> Result<EnqueueReply, FsError> {
        let client = caller.client;
        let has = |flag| q.flags & flag != 0;
        let kind = if q.lock.kind == Kind::Posix { FlockKind::Posix } else { FlockKind::Flock };
        let extent = if kind == FlockKind::Flock { Extent::ALL } else { q.lock.extent };
        let exclusive = !matches!(q.lock.mode, Mode::Pr | Mode::Cr | Mode::Nl);
        // Only in a recovery is what a client says it had taken whatever room there is.
        if has(EnqueueFlags::REPLAY) && !has(EnqueueFlags::WAITING) && caller.replay.is_some() {
            let (fid, owner, pid) = (q.lock.fid, q.lock.owner, q.lock.pid);
            let range = FlockRange { fid, kind, client, owner, pid, extent, exclusive };
            tracing::trace!(?range, "flock replayed");
            self.locks.namespace.borrow_mut().flock_replay(client, &range).map_err(|r| r.error())?;
            return Ok(EnqueueReply { handle: HandleId(q.cookie), granted: true, lock: q.lock.clone(), lvb: None });
        }
        let mode = match (has(EnqueueFlags::UNLOCK), exclusive) {
            (true, _) => FlockMode::Unlock,
            (false, true) => FlockMode::Exclusive,
            (false, false) => FlockMode::Shared,
        };
        let request = FlockRequest {
            fid: q.lock.fid,
            kind,
            owner: q.lock.owner,
            pid: q.lock.pid,
            mode,
            extent,
            wait: !has(EnqueueFlags::NOWAIT),
            cookie: LockCookie(q.cookie),
        };
        if has(EnqueueFlags::TEST) {
            let other = self.locks.namespace.borrow().flock_test(client, &request);
            let granted = other.is_none();
            let lock = other.map_or_else(|| LockSpec { mode: Mode::Nl, ..q.lock.clone() }, |r| range_spec(&r));
            return Ok(EnqueueReply { handle: HandleId(0), granted, lock, lvb: None });
        }
        // A waiting request is known by its cookie before its outcome can come.
        self.locks.flocks.borrow_mut().insert((client, q.cookie), q.lock.clone());
        let mut out = Vec::new();
        let outcome = {
            let (mut namespace, exports) = (self.locks.namespace.borrow_mut(), self.exports.borrow());
            let (now, awake) = (self.rt.now(), self.rt.awake_since());
            let is_silent = |e: &Export| now.since(e.last_heard().max(awake)) > SILENT;
            namespace.flock_away(client, |c| exports.get(&c).is_none_or(|e| !e.is_connected() || is_silent(e)));
            namespace.flock_set(client, &request, &mut out)
        };
        tracing::trace!(%client, ?request, ?outcome, "flock");
        if outcome == FlockOutcome::Waiting {
            let holder = self.locks.namespace.borrow().flock_test(client, &request).map(|r| r.client);
            self.traced.flock_waits(caller, q, holder, self.rt.now());
        }
        self.dispatch(out);
        if outcome != FlockOutcome::Waiting {
            self.locks.flocks.borrow_mut().remove(&(client, q.cookie));
        }
        match outcome {
            FlockOutcome::Denied(reason) => Err(reason.error()),
            outcome => {
                let granted = outcome == FlockOutcome::Granted;
                Ok(EnqueueReply { handle: HandleId(q.cookie), granted, lock: q.lock.clone(), lvb: None })
            }
        }
    }

    /// `LockCancel`.
    pub(crate) fn cancel(self: &Rc<Self>, client: ClientId, q: &CancelRequest) {
        self.cancel_locks(client, &q.handles);
        let mut out = Vec::new();
        let mut namespace = self.locks.namespace.borrow_mut();
        for cookie in &q.cookies {
            let withdrawn = namespace.flock_cancel_wait(client, LockCookie(*cookie));
            if withdrawn {
                self.traced.flock_withdrawn(client, *cookie, self.rt.now());
                self.locks.flocks.borrow_mut().remove(&(client, *cookie));
            } else {
                namespace.cancel_cookie(self.rt.now(), client, LockCookie(*cookie), &mut out);
            }
        }
        drop(namespace);
        self.dispatch(out);
    }

    /// `LockConvert`: the client keeps fewer bits.
    ///
    /// # Errors
    /// `Invalid`: not a lock of this client, or not fewer bits.
    pub(crate) fn convert(self: &Rc<Self>, client: ClientId, q: &ConvertRequest) -> Result<EnqueueReply, FsError> {
        let bits = InodeBits(u8::try_from(q.bits).map_err(|_| FsError::Invalid)?);
        let mut out = Vec::new();
        let mut namespace = self.locks.namespace.borrow_mut();
        let held = namespace.granted(client, q.handle).ok_or(FsError::Invalid)?;
        let data = LockPolicyData::Inodebits { bits };
        if !held.data.contains(&data) {
            return Err(FsError::Invalid);
        }
        let now = self.rt.now();
        let result = namespace.convert(now, client, q.handle, held.mode, data, &mut out);
        drop(namespace);
        // It answers a callback, or takes one back.
        self.note_given_back();
        self.dispatch(out);
        self.remove_unkept(vec![held.resource.fid]);
        result.map(|lock| inode_lock_reply(&lock)).map_err(|r| r.error())
    }
}

fn range_spec(r: &FlockRange) -> LockSpec {
    LockSpec {
        fid: r.fid,
        kind: if r.kind == FlockKind::Posix { Kind::Posix } else { Kind::Flock },
        mode: if r.exclusive { LockMode::Pw } else { LockMode::Pr },
        extent: r.extent,
        bits: 0,
        owner: r.owner,
        pid: r.pid,
    }
}
