//! The MDS behind `ptlrpc`: which message is which operation, sessions, recovery.
use std::rc::Rc;

use ptlrpc::{Export, ReplyRecord, Request, Service, SessionRecord};
use rt::LocalFuture;
use types::{ClientId, FsError, HandleId, OstIndex, Transno};
use wire::connect::{
    ConfigReply, Lasting, MapChangeRequest, OstFilesRequest, ParamsRequest, RefusedOst, RegisterRequest,
};
use wire::credential::CredentialsRequest;
use wire::lock::{CancelRequest, ConvertRequest, EnqueueReply, EnqueueRequest};
use wire::mdt::{
    Attr, AttrFlags, BytesReply, CloseReply, CloseRequest, Closed, CreateRequest, EntryReply, Fid2pathRequest,
    GetattrRequest, InodeRequest, LinkRequest, LockBits, LookupRequest, NamesReply, OpenReply, OpenRequest,
    ReaddirReply, ReaddirRequest, RenameRequest, SetattrRequest, SetxattrReply, SetxattrRequest, UnlinkRequest,
    XattrRequest, caller_of,
};
use wire::ost::StatfsReply;
use wire::{Bytes, Class, Decode, Encode, Header, Op};

use crate::config_service::RegisterError;
use crate::entering::{Enters, Leaves};
use crate::handles::Open;
use crate::keys;
use crate::mds::{Answered, Caller, Mds};
use crate::openings::Stable;
use crate::ops::{OpenOut, ReaddirOut, changed_data, hides_size, is_path, writes};
use crate::osts::precreate_row;
use crate::pools::Pool;
use crate::tx::{Done, Tx};

impl Mds {
    /// Carries out one decoded operation and encodes its answer: (answer, transaction, to be remembered).
    async fn op<Q: Decode + Enters, T, R: Encode + Leaves>(
        self: &Rc<Self>,
        caller: Caller,
        body: &[u8],
        op: impl Fn(&mut Tx<'_>, &Q) -> Done<T>,
        finish: impl Fn(&Rc<Mds>, T) -> Result<R, FsError>,
    ) -> Result<Outcome, FsError> {
        let mut q: Q = wire::decode(body).map_err(FsError::from)?;
        let limits = self.limits_of(caller);
        let Some(limits) = &limits else {
            return self.run(caller, |tx| op(tx, &q), finish).await.map(Outcome::of);
        };
        q.enter(limits)?;
        let within = |tx: &mut Tx<'_>| {
            tx.within(limits, &q.names())?;
            op(tx, &q)
        };
        let leaving = |m: &Rc<Mds>, out| {
            let mut reply = finish(m, out)?;
            reply.leave(limits);
            Ok(reply)
        };
        self.run(caller, within, leaving).await.map(Outcome::of)
    }

    /// Carries out one request: what [`Service::handle`] does, without a session around it.
    ///
    /// # Errors
    /// What the client is answered.
    pub async fn serve(self: &Rc<Self>, caller: Caller, op: Op, body: &[u8]) -> Result<Outcome, FsError> {
        let client = caller.client;
        if let Some(transno) = caller.replay.filter(|t| !self.may_be_replayed(*t)) {
            tracing::warn!(%client, %transno, ?op, "a replay of what no server of before can have answered");
            return Err(FsError::Invalid);
        }
        let entry = move |m: &Rc<Mds>, out| m.entry_reply(client, out);
        match op {
            Op::MdtLookup => self.op(caller, body, |tx, q: &LookupRequest| tx.lookup(q), entry).await,
            Op::MdtGetattr => self.op(caller, body, |tx, q: &GetattrRequest| tx.getattr(q), entry).await,
            Op::MdtCreate => self.op(caller, body, |tx, q: &CreateRequest| tx.create(q), entry).await,
            Op::MdtUnlink => self.op(caller, body, |tx, q: &UnlinkRequest| tx.unlink(q), entry).await,
            Op::MdtRename => self.op(caller, body, |tx, q: &RenameRequest| tx.rename(q), entry).await,
            Op::MdtLink => self.op(caller, body, |tx, q: &LinkRequest| tx.link(q), entry).await,
            Op::MdtSetattr => self.serve_setattr(caller, body).await,
            Op::MdtOpen => {
                self.op(caller, body, |tx, q: &OpenRequest| tx.open(q), move |m, out| m.open_reply(client, out)).await
            }
            Op::MdtClose => self.close(caller, body).await,
            Op::MdtCut | Op::MdtSwap => self.decide(caller, op, body).await,
            Op::MdtReaddir => self.readdir(caller, body).await,
            Op::MdtReadlink => self.op(caller, body, |tx, q: &InodeRequest| tx.readlink(q), value).await,
            // Who asks is not told, and users there are not who they are here: none of them learns names that it may not search for.
            Op::MdtFid2path if self.limits_of(caller).is_some_and(|l| l.changes_ids()) => Err(FsError::NotPermitted),
            Op::MdtFid2path => self.op(caller, body, |tx, q: &Fid2pathRequest| tx.fid2path(q), value).await,
            Op::MdtGetxattr => {
                let limits = self.limits_of(caller);
                let shown = move |tx: &mut Tx<'_>, q: &XattrRequest| {
                    tx.getxattr(q).map(|value| tx.value_for(limits.as_deref(), &q.name, value))
                };
                self.op(caller, body, shown, value).await
            }
            Op::MdtListxattr => {
                self.op(caller, body, |tx, q: &XattrRequest| tx.listxattr(q), |_, names| Ok(NamesReply { names })).await
            }
            Op::MdtSetxattr => self.serve_setxattr(caller, body).await,
            Op::MdtStatfs => Ok(Outcome::plain(&self.statfs())),
            Op::MdtSettled => self.told_settled(client, body),
            Op::MdtSync => self.store.sync().await.map(|()| Outcome::plain(&())),
            Op::LockEnqueue | Op::LockCancel | Op::LockConvert => self.serve_lock(caller, op, body).await,
            Op::Config | Op::Register | Op::MapChange | Op::OstFiles | Op::Credentials => {
                self.serve_map(op, body).await
            }
            Op::Changelog | Op::ChangelogUser => self.serve_changelog(op, body).await,
            // Ids are the servers' own there, and of the whole file system.
            Op::MdtQuota if self.limits_of(caller).is_some_and(|l| l.changes_ids() || l.subtree().is_some()) => {
                Err(FsError::NotPermitted)
            }
            Op::MdtQuota | Op::MdtSetQuota => self.serve_quota(op, body).await,
            Op::Jobs => {
                let q: wire::connect::JobsRequest = wire::decode(body).map_err(FsError::from)?;
                self.stats.tell_jobs(&q.names);
                Ok(Outcome::plain(&()))
            }
            Op::OstTrace => self.tell_trace(body),
            Op::Params => {
                let q: ParamsRequest = wire::decode(body).map_err(FsError::from)?;
                let answer = match q.lasting {
                    Lasting::No => self.params(&q).await,
                    Lasting::Set | Lasting::Remove => self.keep_setting(&q).await,
                };
                answer.map(|r| Outcome::plain(&r))
            }
            _ => Err(FsError::NotSupported),
        }
    }

    async fn serve_setattr(self: &Rc<Self>, caller: Caller, body: &[u8]) -> Result<Outcome, FsError> {
        let client = caller.client;
        let set = |tx: &mut Tx<'_>, q: &SetattrRequest| Ok((tx.setattr(q)?, tx.timed(q)));
        // What is refused after all has set nothing.
        let finish = move |m: &Rc<Mds>, (out, timed): (_, Option<(_, _)>)| {
            if let Some((fid, at)) = timed {
                m.handles.borrow_mut().time_set(fid, client, at);
            }
            m.entry_reply(client, out)
        };
        self.op(caller, body, set, finish).await
    }

    async fn serve_setxattr(self: &Rc<Self>, caller: Caller, body: &[u8]) -> Result<Outcome, FsError> {
        let set = |tx: &mut Tx<'_>, q: &SetxattrRequest| Ok((q.fid, tx.setxattr(q)?, !tx.taken.is_empty()));
        let finish = move |m: &Rc<Mds>, (fid, layout, given): (_, Vec<u8>, _)| {
            let proof = if given { m.proof_of(caller.client, fid, &layout) } else { Bytes::default() };
            Ok(SetxattrReply { layout: Bytes(layout), proof })
        };
        self.op(caller, body, set, finish).await
    }

    /// Requests about locks. Their inode is the server's from here on, and the client's again in the answer.
    async fn serve_lock(self: &Rc<Self>, caller: Caller, op: Op, body: &[u8]) -> Result<Outcome, FsError> {
        let client = caller.client;
        let mut reply = match op {
            Op::LockEnqueue => {
                let mut q: EnqueueRequest = wire::decode(body).map_err(FsError::from)?;
                q.lock.fid = self.fid_of(client, q.lock.fid);
                self.may_lock(caller, &q.lock).await?;
                self.enqueue(caller, &q).await?
            }
            Op::LockConvert => {
                let q: ConvertRequest = wire::decode(body).map_err(FsError::from)?;
                self.convert(client, &q)?
            }
            _ => {
                let q: CancelRequest = wire::decode(body).map_err(FsError::from)?;
                self.cancel(client, &q);
                return Ok(Outcome::plain(&()));
            }
        };
        reply.lock.fid = self.fid_for(client, reply.lock.fid);
        Ok(Outcome::plain(&reply))
    }

    /// Requests about the cluster map, and what is kept with it.
    async fn serve_map(self: &Rc<Self>, op: Op, body: &[u8]) -> Result<Outcome, FsError> {
        match op {
            Op::Register => {
                let q: RegisterRequest = wire::decode(body).map_err(FsError::from)?;
                self.register(&q).await.map(|reply| Outcome::plain(&reply))
            }
            Op::MapChange => {
                let q: MapChangeRequest = wire::decode(body).map_err(FsError::from)?;
                self.change_map(&q).await.map(|r| Outcome::plain(&r))
            }
            Op::Credentials => {
                let q: CredentialsRequest = wire::decode(body).map_err(FsError::from)?;
                self.credentials(&q).await.map(|r| Outcome::plain(&r))
            }
            Op::OstFiles => {
                let q: OstFilesRequest = wire::decode(body).map_err(FsError::from)?;
                self.ost_files(&q).await.map(|r| Outcome::plain(&r))
            }
            _ => Ok(Outcome::plain(&self.told_map())),
        }
    }

    fn open_reply(&self, client: ClientId, out: OpenOut) -> Result<OpenReply, FsError> {
        let OpenOut { mut entry, created, writes, uid, path, handle, told, suspect, known_layout } = out;
        let fid = entry.inode.as_ref().map(|i| i.fid).unwrap_or_default();
        let known = entry.inode.as_ref().is_some_and(|i| i.layout_gen == known_layout);
        if known && known_layout != u32::MAX && !created {
            entry.layout = Bytes::default();
        }
        // The handle first: a writer's own open must not keep its own lease away, but others' do.
        let handle = self.make_handle(Open { client, fid, writes, uid, path }, handle, suspect);
        if let Some(told) = told {
            self.handles.borrow_mut().made_again(client, handle, told);
        }
        Ok(OpenReply { entry: self.entry_reply(client, entry)?, handle, created })
    }

    /// A page of a directory. Where users are others here than at their client no open of the directory stands for the right to
    /// read it: that with O_PATH is not checked, and what is told again after a restart is not either.
    async fn readdir(self: &Rc<Self>, caller: Caller, body: &[u8]) -> Result<Outcome, FsError> {
        let believed = self.limits_of(caller).is_none_or(|l| !l.changes_ids());
        let list = move |tx: &mut Tx<'_>, q: &ReaddirRequest| tx.readdir(q, believed);
        self.op(caller, body, list, move |m, out| Ok(m.readdir_reply(caller.client, out))).await
    }

    async fn close(self: &Rc<Self>, caller: Caller, body: &[u8]) -> Result<Outcome, FsError> {
        let finish = move |m: &Rc<Mds>, ends: Vec<Result<crate::ops::Closed, FsError>>| {
            m.stats.further(Op::MdtClose, ends.len().saturating_sub(1));
            let closes = ends.into_iter().map(|end| match end {
                Ok(closed) => Closed { status: 0, attr: m.closed(caller.client, closed) },
                Err(e) => Closed { status: e.errno() as u16, attr: Attr::default() },
            });
            Ok(CloseReply { closes: closes.collect() })
        };
        self.op(caller, body, |tx, q: &CloseRequest| tx.close(q), finish).await
    }

    /// The handle of a closed open goes; the inode's attributes, if it lives on.
    fn closed(&self, client: ClientId, closed: crate::ops::Closed) -> Attr {
        let crate::ops::Closed { close, inode, transno } = closed;
        let mut handles = self.handles.borrow_mut();
        // What the open says, not the request; a replay of an end may come without its open.
        let fid = match handles.get(client, close.handle) {
            Some(open) => open.writes.then_some(open.fid),
            None => Some(close.fid).filter(|_| close.handle.0 != 0),
        };
        if let Some(fid) = fid.filter(|_| hides_size(close.valid)) {
            handles.suspect(fid);
        }
        if let Some(fid) = fid.filter(|_| changed_data(close.valid)) {
            handles.told(fid, client);
            // Whoever tells the size in the end: it counts what this client has not written out.
            self.recent_sizes.borrow_mut().told(client, fid, transno);
        }
        let open = handles.close(client, close.handle);
        let Some(inode) = inode else {
            open.inspect(|open| handles.unkeep(open.fid));
            return Attr::default();
        };
        let mut attr = inode.attr();
        let last_writer = open.is_some_and(|o| o.writes) && handles.writers(inode.fid) == 0;
        if last_writer && attr.flags & AttrFlags::SIZE_KNOWN == 0 {
            attr.flags |= AttrFlags::UNSETTLED;
        }
        attr
    }

    /// Fits an answer of an earlier boot to this one: locks that came along are not held any more, and an open that the
    /// client learns of only now could not be told again.
    fn renew_answer(&self, header: &Header, request: &[u8], record: &mut ReplyRecord) {
        let strip = |entry: &mut EntryReply| {
            let old = |l: &Option<EnqueueReply>| l.as_ref().is_some_and(|l| l.handle.0 >> 40 != self.boot);
            for lock in [&mut entry.lock, &mut entry.parent_lock] {
                if old(lock) {
                    *lock = None;
                }
            }
        };
        match header.op {
            Op::MdtOpen => {
                let (Ok(q), Ok(mut reply)) =
                    (wire::decode::<OpenRequest>(request), wire::decode::<OpenReply>(&record.body))
                else {
                    return;
                };
                let fid = self.fid_of(header.client, reply.entry.attr.fid);
                let open = Open {
                    client: header.client,
                    fid,
                    writes: writes(q.flags),
                    uid: q.cred.uid,
                    path: is_path(q.flags),
                };
                let mut handles = self.handles.borrow_mut();
                handles.reopen(reply.handle, open);
                if header.flags.has(wire::Flags::REPLAY) {
                    handles.made_again(header.client, reply.handle, false);
                }
                drop(handles);
                strip(&mut reply.entry);
                record.body = wire::encode(&reply);
            }
            Op::MdtClose => {
                let (Ok(q), Ok(reply)) = (wire::decode(request), wire::decode(&record.body)) else { return };
                if let Some(me) = self.me.borrow().upgrade() {
                    me.end_again(header.client, &q, &reply);
                }
            }
            Op::MdtCreate | Op::MdtLink | Op::MdtUnlink | Op::MdtRename | Op::MdtSetattr => {
                if let Ok(mut reply) = wire::decode::<EntryReply>(&record.body) {
                    strip(&mut reply);
                    record.body = wire::encode(&reply);
                }
            }
            _ => {}
        }
    }

    fn readdir_reply(&self, client: ClientId, out: ReaddirOut) -> ReaddirReply {
        let ReaddirOut { dir, parent, mut entries, eof, lock_cookie, entry_cookie } = out;
        let lock = self.grant(client, dir, LockBits::LOOKUP | LockBits::UPDATE, lock_cookie);
        if entry_cookie != 0 {
            for (cookie, e) in (entry_cookie..).zip(&mut entries) {
                let bits = LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM | LockBits::OPEN;
                e.lock = self.grant_whole(client, e.fid, bits, cookie).map_or(HandleId(0), |l| l.handle);
            }
        }
        ReaddirReply { entries, eof, lock, parent }
    }

    fn statfs(&self) -> StatfsReply {
        let (total, free) = self.store.space();
        let files = self.store.inodes();
        // An inode and its name take about a kibibyte of the store.
        let (failed, full) = (self.store.failure().is_some(), self.store.has_no_room());
        let state = u32::from(failed) << 1 | u32::from(full) << 2;
        StatfsReply { ost: OstIndex(0), total, free, available: free, files, files_free: free / 1024, state }
    }

    /// A target registers with the configuration service.
    async fn register(self: &Rc<Self>, q: &RegisterRequest) -> Result<ConfigReply, FsError> {
        let ost = q.entry.ost;
        // What a store that was put back from a backup says of that may be more than the OST ever made.
        let had = |p: &Pool| Stable { object: p.last_given(), committed: p.committed };
        let had = self.pools.borrow().get(ost).filter(|p| !p.newer).map(had).unwrap_or_default();
        let changed = match self.map.register(q, had) {
            Ok(changed) => changed,
            Err(e) => {
                tracing::warn!(target = %String::from_utf8_lossy(&q.entry.target), "may not register: {e}");
                return self.refuse_register(ost, &e).await;
            }
        };
        let committed = q.openings.last().map_or(had.committed, |o| o.committed);
        if changed && (self.map.map.borrow().is_lost(ost, had.object) || committed < had.committed) {
            // It was accepted: no more of what was made ahead there is given out, for the copy may lack it.
            let row = self.pools.borrow_mut().update(ost, |p| {
                p.used = p.last_given();
                (p.last, p.committed) = (p.used, committed);
                precreate_row(p)
            });
            self.store.apply([(keys::precreate(ost), row)], 0, 0);
        }
        if !changed {
            // Asked twice at the same time, or again after the store was full: whoever is answered does not ask again.
            self.map_is_kept().await?;
        } else if !types::planted!("added-forgotten") {
            self.save_map().await?;
        }
        // It may have been removed meanwhile.
        let entry = self.map.entry(q.entry.ost).ok_or(FsError::NotFound)?;
        if !self.is_tended(&entry) {
            tracing::info!(ost = %entry.ost, nid = %String::from_utf8_lossy(&entry.nid), "registered");
            self.tend_ost(&entry);
            // It counts at once, and may serve what was asked for before it came.
            self.tell_map(entry.ost);
        } else if let Some(link) = self.osts.link(ost) {
            link.kick.notify();
        }
        Ok(self.told_map())
    }

    /// What a target is told that may not register. One whose store is an older copy is out of use until the right one is there, unless that
    /// is served.
    async fn refuse_register(self: &Rc<Self>, ost: OstIndex, e: &RegisterError) -> Result<ConfigReply, FsError> {
        let RegisterError::Older { seen, mark, .. } = *e else {
            // It goes by that for good: what it says is not to be gone after a crash.
            self.map_is_kept().await?;
            return Err(e.into());
        };
        let refused = RefusedOst { ost, why: e.to_string().as_str().into(), boot: seen, mark };
        if !self.is_served_well(ost) {
            let news = self.map.refuse(refused.clone());
            if self.map.set_away(ost, true) || news {
                self.tell_map(ost);
            }
            if news {
                self.save_map().await?;
            }
        }
        let mut reply = self.told_map();
        reply.refused.retain(|r| r.ost != ost);
        reply.refused.push(refused);
        Ok(reply)
    }

    pub(crate) async fn set_ost_active(self: &Rc<Self>, ost: OstIndex, active: bool) -> Result<(), FsError> {
        if !self.map.set_active(ost, active) {
            return self.map_is_kept().await;
        }
        self.save_map().await?;
        self.tell_map(ost);
        Ok(())
    }

    /// Whether an OST is in use has changed: new files go there or not, clients are told.
    pub(crate) fn tell_map(self: &Rc<Self>, ost: OstIndex) {
        let (active, closed) = (self.map.is_active(ost), self.map.is_closed(ost));
        self.pools.borrow_mut().update(ost, |p| (p.active, p.closed) = (active, closed));
        self.pool_filled.notify();
        self.tell_clients();
    }

    /// Sends the cluster map to everybody.
    pub(crate) fn tell_clients(self: &Rc<Self>) {
        let clients: Vec<ClientId> = self.exports.borrow().keys().copied().collect();
        for client in clients {
            self.tell_settings(client);
        }
    }

    /// The map as it is now is on stable storage: for a wish that is fulfilled already, perhaps by a request whose answer did not say so
    /// because the store could not keep it.
    pub(crate) async fn map_is_kept(&self) -> Result<(), FsError> {
        if types::planted!("map-change-kept-once") {
            return Ok(());
        }
        self.store.sync().await
    }

    pub(crate) async fn save_map(&self) -> Result<(), FsError> {
        self.put_map([]);
        self.store.sync().await
    }

    /// A client is written to the store before the first answer that it may have to replay. Those who only ask for the
    /// cluster map or register a target are not waited for after a restart.
    ///
    /// # Errors
    /// What the store meets; `NotConnected` when the session has ended meanwhile, as `ended` says.
    pub(crate) async fn remember_client(
        &self,
        client: ClientId,
        op: Op,
        ended: impl Fn() -> bool,
    ) -> Result<(), FsError> {
        if op.is(Class::PASSING) || self.remembered.borrow().contains(&client) {
            return Ok(());
        }
        let row = wire::encode(&self.session_row(client));
        self.store.apply([(keys::session(client), Some(row))], 0, 0);
        self.store.sync().await?;
        // Its next session is written down anew: with this one its row has gone.
        if ended() {
            return Err(FsError::NotConnected);
        }
        self.remembered.borrow_mut().insert(client);
        Ok(())
    }

    async fn handle_request(self: Rc<Self>, mut request: Request) {
        let started = self.rt.now();
        let op = request.header.op;
        tracing::trace!(client = %request.client(), ?op, xid = %request.header.xid, "request");
        let caller = Caller {
            client: request.client(),
            replay: request.is_replay().then_some(request.header.transno),
            basis: request.basis(),
            slot: Some((request.header.slot_or_credits, request.header.xid)),
        };
        let is_new = !self.remembered.borrow().contains(&caller.client);
        let remembered = self.remember_client(caller.client, op, || request.export.is_ended());
        let remembered = if is_new { self.commit_for(caller, remembered).await } else { remembered.await };
        let known = match remembered {
            Ok(()) => self.disturb(caller.client, op).await,
            Err(e) => Err(e),
        };
        let result = match known {
            // Who was given up meanwhile would get locks and opens that nobody takes away again.
            Ok(()) if request.export.is_ended() => Err(FsError::NotConnected),
            Ok(()) => self.serve(caller, op, &request.body).await,
            Err(e) => Err(e),
        };
        let sure = self.store.engine().is_sure() || types::planted!("answered-unconfirmed");
        if !sure && self.confirm_store().await.is_err() {
            // Another server has the store and answers; the client asks it when the sessions of this one end.
            return std::future::pending().await;
        }
        let now = self.rt.now();
        let took = now.since(started);
        tracing::trace!(client = %caller.client, ?op, xid = %request.header.xid, ?took, error = ?result.as_ref().err(), "answered");
        self.stats.count(op, took);
        self.stats.used_by(request.client(), self.rt.wall());
        self.trace(&request, now, &result);
        if let Some(caller) = caller_of(op, &request.body).filter(|caller| caller.job != 0) {
            self.stats.count_for(caller.job, op, took, self.rt.wall());
        }
        match result {
            Ok(o) if o.remember => {
                request.rests_on(o.basis);
                request.reply_transno(o.transno, Ok(o.body));
            }
            Ok(o) => request.reply(Ok(&Raw(o.body))),
            Err(e) => request.reply::<()>(Err(e)),
        }
    }

    /// The store is told that somebody is missing before it forgets who: if this server dies in its recovery, the next one must
    /// not take the rest for all that there was.
    fn remember_gap(&self) {
        let gap = self.recovery.borrow().as_ref().is_some_and(|r| r.is_active() && r.has_gap());
        if gap && !types::planted!("gap-forgotten") {
            self.store.set_gap(true);
        }
    }

    /// A client's opens and locks go, and the store forgets it.
    pub(crate) async fn forget_client(self: &Rc<Self>, client: ClientId) {
        self.exports.borrow_mut().remove(&client);
        self.quiet.forget(client);
        self.drop_locks(client);
        let mut gone = vec![(keys::session(client), None)];
        let doubts = self.doubt_sizes_of(client);
        let handles = self.handles.borrow().of_client(client);
        for handle in handles {
            let caller = Caller::on_behalf_of(client);
            let finish = move |m: &Rc<Mds>, ()| {
                m.lose_open(client, handle);
                Ok(())
            };
            if let Err(e) = self.run(caller, |tx| tx.close_lost(client, handle), finish).await {
                tracing::error!(%client, %handle, "the end of a lost client's open could not be stored: {e}");
                self.lose_open_unstored(client, handle, e);
            }
        }
        self.remembered.borrow_mut().remove(&client);
        let from = keys::reply(client, 0);
        let to = keys::end_of(&from[..9]);
        match self.store.scan(&from, &to, 1 << 17).await {
            Ok((rows, _)) => gone.extend(rows.into_iter().map(|(k, _)| (k, None))),
            Err(e) => tracing::error!(%client, "{e}"),
        }
        // With the session goes what is known of its sizes.
        gone.extend(doubts.then(|| self.horizon.change()));
        self.store.apply(gone, 0, 0);
        // The next session of the client must not meet this one in the store, whatever happens to us meanwhile.
        if let Err(e) = self.store.sync().await {
            tracing::error!(%client, "its session could not be forgotten: {e}");
        }
    }
}

/// How a request ended.
#[derive(Debug)]
pub struct Outcome {
    /// Encoded answer.
    pub body: Vec<u8>,
    /// Transaction; 0: nothing changed.
    pub transno: Transno,
    /// What the transaction rested on; 0: on nothing that is compared.
    pub basis: u64,
    /// Answer a repetition with the same.
    pub remember: bool,
}

impl Outcome {
    /// Of an operation that went through.
    pub(crate) fn of<R: Encode>(answered: Answered<R>) -> Outcome {
        let Answered { reply, transno, basis, remembered } = answered;
        let remember = remembered.is_some();
        Outcome { body: remembered.unwrap_or_else(|| wire::encode(&reply)), transno, basis, remember }
    }
    pub(crate) fn plain<R: Encode>(reply: &R) -> Outcome {
        Outcome { body: wire::encode(reply), transno: Transno(0), basis: 0, remember: false }
    }
}

/// An encoded answer.
struct Raw(Vec<u8>);
impl Encode for Raw {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

fn value(_: &Rc<Mds>, value: Vec<u8>) -> Result<BytesReply, FsError> {
    Ok(BytesReply { value: Bytes(value) })
}

impl Service for Mds {
    fn target(&self) -> String {
        self.target.clone()
    }
    fn cluster(&self) -> u64 {
        self.superblock.cluster
    }
    fn uuid(&self) -> u64 {
        self.superblock.uuid
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(self.handle_request(request))
    }
    fn last_committed(&self, client: ClientId) -> Transno {
        Transno(self.store.last_committed_of(client))
    }
    fn epoch(&self) -> u64 {
        self.boot
    }
    fn is_unsure(&self) -> bool {
        self.is_unsure_of_store()
    }
    fn is_revoked(&self, credential: u64) -> bool {
        self.map.is_revoked(credential)
    }
    fn replays_are_independent(&self) -> bool {
        self.store.shares_committed()
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        std::mem::take(&mut *self.known.borrow_mut())
    }
    fn take_recovery(&self, recovery: ptlrpc::RecoveryControl) {
        if self.store.has_gap() {
            recovery.note_gap();
        }
        *self.recovery.borrow_mut() = Some(recovery);
    }
    fn session_opened(self: Rc<Self>, export: Rc<Export>, _known: bool) -> LocalFuture<Result<(), FsError>> {
        self.locks.namespace.borrow_mut().flock_host(export.client(), export.origin().host);
        self.exports.borrow_mut().insert(export.client(), export);
        self.remember_gap();
        Box::pin(async { Ok(()) })
    }
    fn look_before_answering(self: Rc<Self>, header: &Header, record: &ReplyRecord) -> Option<LocalFuture<bool>> {
        self.look_for_opened(header, record)
    }
    fn answering_again(&self, header: &Header, request: &[u8], record: &mut ReplyRecord) {
        if record.status == 0 {
            self.renew_answer(header, request, record);
        }
    }
    fn session_connected(&self, client: ClientId) {
        if let Some(me) = self.me.borrow().upgrade() {
            me.repeat_callbacks(client);
            // What changed while it was away was told to nobody there.
            if !types::planted!("map-untold-to-the-away") {
                me.tell_settings(client);
            }
        }
    }
    fn session_begun(&self, client: ClientId) {
        // The map that it has is of an earlier session, or was asked for before this one began.
        let stays = self.export(client).is_some_and(|e| e.is_recoverable());
        if let Some(me) = self.me.borrow().upgrade().filter(|_| stays && !types::planted!("map-untold-to-the-new")) {
            me.tell_settings(client);
        }
    }
    fn session_closed(self: Rc<Self>, client: ClientId, evicted: bool) -> LocalFuture<()> {
        Box::pin(async move {
            tracing::info!(%client, evicted, "session closed");
            self.remember_gap();
            if evicted {
                self.stats.evictions.set(self.stats.evictions.get() + 1);
            } else {
                // It wrote everything out before it left.
                self.settled(client, u64::MAX);
                let over = self.cuts.borrow_mut().left(client);
                if !over.is_empty() {
                    self.store.apply(over, 0, 0);
                }
            }
            self.forget_client(client).await;
        })
    }
    fn can_be_done_without(&self, client: ClientId) -> bool {
        self.is_quiet(client)
    }
    fn begin_without(&self, missing: &[ClientId]) {
        if let Some(me) = self.me.borrow().upgrade() {
            Mds::begin_without(&me, missing);
        }
    }
    fn told_everything(&self, client: ClientId) {
        self.quiet.came_back(client);
        if let Some(me) = self.me.borrow().upgrade() {
            me.end_untold(client);
        }
    }
    fn recovered(&self) {
        if let Some(me) = self.me.borrow().upgrade() {
            me.quiet.nobody_is_missing();
            me.end_recovery();
        }
    }
    fn bulk_max(&self) -> u32 {
        1 << 20
    }
}
