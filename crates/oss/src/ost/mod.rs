//! One object storage target: the service behind a name like `stria-OST0000`.
//!
//! This file holds the parts together and hands requests out; each kind of request has its own file.
mod advise;
mod creators;
mod cuts;
mod grant;
mod memory;
mod objects;
mod punch;
mod quiet;
mod quota;
mod read;
mod revoked;
mod trouble;
mod write;

pub(crate) use quiet::{Held, recalled};

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use ldlm::LockMode;
use nrs::{IoOp, JobId, NrsRequest};
use ptlrpc::{Export, ReplyRecord, Request, Service, SessionRecord};
use rt::sync::Event;
use rt::{LocalFuture, Rt};
use trace::Came;
use types::{ClientId, Extent, FsError, HandleId, ObjectId, Transno, Xid};
use wire::ost::{IoOwner, WriteRequest};
use wire::{Class, Encode, Header, Op};

use crate::advised::Advised;
use crate::config::{BY_MEDIUM, OstConfig};
use crate::dispatch::Dispatcher;
use crate::grants::Grants;
use crate::locks::{Exports, LocalLock, LockWait, Locks};
use crate::page_cache::{CacheKey, SharedCache};

use crate::range_gate::{RangeGate, RangeGuard};
use crate::stats::OstStats;
use crate::store::{
    Answers, Applied, BLOCK_BYTES, BlockRange, Fenced, ObjectAttr, ObjectStore, Space, StoreIdentity, Update,
};

/// Transactions that a server may have answered and not committed when it ended: far more than any has between two commits. What is
/// numbered from a replay on must be above it.
const REPLAYED_MAX: u64 = 1 << 40;

/// One object storage target; see the module's head.
pub struct Ost {
    pub(crate) rt: Rt,
    pub(crate) identity: StoreIdentity,
    pub(crate) store: Rc<dyn ObjectStore>,
    pub(crate) config: RefCell<OstConfig>,
    pub(crate) dispatch: Dispatcher,
    pub(crate) cache: SharedCache,
    pub(crate) locks: Rc<Locks>,
    pub(crate) grants: RefCell<Grants>,
    pub(crate) exports: Exports,
    pub(crate) stats: RefCell<OstStats>,
    gate: RangeGate,
    memory: memory::Memory,
    changes: RefCell<crate::changes::Changes>,
    asks: grant::Asks,
    revoked: RefCell<revoked::Revoked>,
    pub(crate) quotas: quota::Quotas,
    /// Bytes of writes that have passed the space check and are not yet counted by the store.
    in_flight_bytes: Cell<u64>,
    /// No server of before can have given a transaction a higher number than this.
    replay_max: Transno,
    /// Answers of before the restart that were not asked for yet.
    recalled: RefCell<BTreeSet<(ClientId, Xid)>>,
    creators: creators::Creators,
    /// What the metadata server was told of the store.
    told: Cell<trouble::Told>,
    /// Recovery is over, or about to be.
    is_recovered: Cell<bool>,
    recovered: Rc<Event>,
    /// Somebody was told that the store is an older copy.
    age_told: Cell<bool>,
    /// Somebody was told that the metadata server is waited for.
    doubts_told: Cell<bool>,
    pub(crate) recovery: RefCell<Option<ptlrpc::RecoveryControl>>,
    pub(crate) scrub: Rc<RefCell<crate::scrub::ScrubState>>,
    pub(crate) advised: Advised,
    advice_driver: advise::Driver,
    /// What is done about the store that failed, in words.
    pub(crate) mending: RefCell<String>,
    /// How often the store failed and was opened again in this process.
    pub(crate) reopened: Cell<u64>,
    me: Weak<Ost>,
}

/// The scheduler policy that is meant: [`BY_MEDIUM`] is the one for what the store lies on.
pub(crate) fn policy_of<'a>(store: &dyn ObjectStore, name: &'a str) -> &'a str {
    if name == BY_MEDIUM { nrs::default_for(store.medium().medium) } else { name }
}

impl Ost {
    /// A target over an open store. `cache` is the process's page cache; `None` makes one of its own.
    ///
    /// # Errors
    /// A sentence when the configuration names a policy that does not exist or a value out of range.
    pub fn new(
        rt: Rt,
        store: Rc<dyn ObjectStore>,
        config: OstConfig,
        cache: Option<SharedCache>,
    ) -> Result<Rc<Ost>, String> {
        if !nrs::WINDOW_RANGE.contains(&config.dispatch_window) {
            return Err(format!("a dispatch window of {} is outside 1..=1024", config.dispatch_window));
        }
        let policy = policy_of(&*store, &config.nrs_policy);
        let first = policy_of(&*store, BY_MEDIUM).to_string();
        let scheduler = nrs::NrsConfig { auto_first: first, ..nrs::NrsConfig::default() };
        let pipeline = nrs::Pipeline::new(policy, scheduler, config.dispatch_window).map_err(|e| e.to_string())?;
        let cache = match cache {
            Some(c) => c,
            None => crate::page_cache::shared(&rt, &config.cache_policy, config.cache_bytes, &config.cache_keys)?,
        };
        let advised = advise::room(&config)?;
        let dispatch = Dispatcher::new(rt.clone(), pipeline);
        dispatch.trace(|t| t.resize(config.trace_bytes));
        let exports = Exports::default();
        let locks = Locks::new(rt.clone(), store.clone(), exports.clone(), dispatch.clone(), &config);
        let sessions = exports.clone();
        // A request that fails because the store is another server's must not be answered: the client asks that one.
        if let Some(fence) = store.fence() {
            fence.on_replaced(Box::new(move || sessions.borrow().values().for_each(|e| e.disconnect())));
        }
        let (boot, revoked) = (store.boot(), store.revoked().into_iter().collect());
        let quotas = quota::Quotas::of_store(store.shares(), boot);
        let replay_max = Transno(store.last_committed().0.saturating_add(REPLAYED_MAX));
        let memory = memory::Memory::new(rt.frames());
        let ost = Rc::new_cyclic(|me| Ost {
            memory,
            identity: store.identity(),
            rt,
            store,
            config: RefCell::new(config),
            dispatch,
            cache,
            locks,
            grants: RefCell::default(),
            exports,
            stats: RefCell::default(),
            gate: RangeGate::default(),
            changes: RefCell::new(crate::changes::Changes::new(boot)),
            asks: grant::Asks::default(),
            revoked: RefCell::new(revoked),
            quotas,
            in_flight_bytes: Cell::new(0),
            replay_max,
            recalled: RefCell::default(),
            creators: creators::Creators::default(),
            told: Cell::default(),
            is_recovered: Cell::new(false),
            recovered: Rc::default(),
            age_told: Cell::new(false),
            doubts_told: Cell::new(false),
            recovery: RefCell::new(None),
            scrub: Rc::default(),
            advised,
            advice_driver: advise::Driver::default(),
            mending: RefCell::default(),
            reopened: Cell::new(0),
            me: me.clone(),
        });
        ost.own_fast_tier();
        ost.recall_advice();
        ost.recall_promises();
        Ok(ost)
    }
    /// Whether a metadata server deals with it: one has asked for objects in a session that is not over.
    #[must_use]
    pub fn has_metadata_server(&self) -> bool {
        self.creators.latest().is_some()
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> Rc<dyn ObjectStore> {
        self.store.clone()
    }

    /// Why its store failed, where the medium may be the cause: opening it again may help. `None` as long as it has not failed, and when
    /// the store is another server's now.
    #[must_use]
    pub fn failed_medium(&self) -> Option<String> {
        if self.is_replaced() { None } else { self.store.failure_text() }
    }
    /// Says what is done about a store that failed; for `store_failure` and `stria status`.
    pub fn note_mending(&self, text: &str) {
        *self.mending.borrow_mut() = text.to_string();
    }
    /// Says how often its store failed in this process and was opened again.
    pub fn note_reopened(&self, times: u64) {
        self.reopened.set(times);
    }

    /// Commits everything and closes the store. The server above must have stopped.
    ///
    /// # Errors
    /// The failure that latched the store.
    pub async fn close(&self) -> Result<(), FsError> {
        self.locks.quiet.end_waits();
        self.store.close().await
    }

    /// Changes an object, which whoever copies it hears of.
    async fn update(&self, object: ObjectId, update: Update) -> Result<Applied, FsError> {
        // Also when nobody has asked yet: who asks meanwhile may hear of the size that was.
        let ranges = crate::changes::ranges_of(&update);
        // Also of one that failed: part of it may be there.
        let outcome = self.store.update(object, update).await;
        self.changes.borrow_mut().note(object, &ranges);
        outcome
    }

    fn key(&self, object: ObjectId) -> CacheKey {
        CacheKey { ost: self.identity.ost.0, object }
    }

    /// What requests in service hold of memory; for a parameter.
    pub(crate) fn memory_text(&self) -> String {
        self.memory.text()
    }

    /// Bytes that nothing but the store's own metadata may take.
    fn reserve(&self, space: &Space) -> u64 {
        space.total / 1000 * self.config.borrow().reserve_permille
    }

    /// Waits for the right to change or read `extent`: the client's own lock, or one of the server's.
    /// Tells how the request came that far, too.
    async fn cover(&self, request: &Request, asked: Covering) -> Result<(Option<LocalLock>, Came), FsError> {
        let came = came(request);
        let Covering { object, handle, mode, extent } = asked;
        let client = request.client();
        if handle.0 != 0 {
            self.locks.progress(client, handle);
        }
        if request.is_replay() || (handle.0 != 0 && self.locks.covers(client, handle, object, mode, extent)) {
            return Ok((None, came));
        }
        let (lock, LockWait { took, holder }) = self.locks.lock_local(object, mode, extent).await?;
        Ok((Some(lock), Came { locked: took, holder, ..came }))
    }

    /// Holds blocks of an object for a change of them. With the end of a session the client's locks go to others at once, while its
    /// requests may still wait for theirs: what was asked in a session that is over, by an eviction or because its client left, changes
    /// nothing any more, and the end of the session waits for what is being changed already.
    async fn change(&self, request: &Request, object: ObjectId, range: BlockRange) -> Result<RangeGuard, FsError> {
        let guard = self.gate.hold(request.client(), object, range).await;
        let export = &request.export;
        let let_through = match export.is_evicted() {
            true => types::planted!("evicted-changes"),
            false => types::planted!("parted-changes"),
        };
        if export.is_ended() && !let_through { Err(FsError::NotConnected) } else { Ok(guard) }
    }

    fn scheduled(request: &Request, object: ObjectId, op: IoOp, extent: Extent, owner: &IoOwner) -> NrsRequest {
        NrsRequest {
            bytes: request.bulk.len() as u32,
            client: request.client(),
            object,
            extent,
            uid: owner.uid,
            op,
            job: JobId(owner.job),
            ..NrsRequest::default()
        }
    }

    async fn serve(self: Rc<Self>, request: Request) {
        let (op, client, began) = (request.header.op, request.client(), self.rt.now());
        self.stats.borrow_mut().count_op(op);
        if request.is_replay() && request.header.transno > self.replay_max {
            let transno = request.header.transno;
            tracing::warn!(%client, %transno, ?op, "a replay of what no server of before can have answered");
            return request.reply::<()>(Err(FsError::Invalid));
        }
        // A wish for a lock along with a read disturbs, when it is asked for.
        if !op.is(Class::CALM)
            && let Err(e) = self.disturb(&request).await
        {
            return request.reply::<()>(Err(e));
        }
        if let Some(fence) = self.store.fence().filter(|f| !f.is_surely_ours()) {
            // What fails here shows in `is_replaced`, or fails again where the store is asked.
            let _ = fence.still_ours().await;
        }
        if self.is_replaced() {
            request.export.disconnect();
            return request.reply::<()>(Err(FsError::NotConnected));
        }
        match op {
            Op::OstRead => self.read(request).await,
            Op::OstWrite => {
                self.write(request).await;
                self.relieve();
            }
            Op::OstPunch => self.punch(request).await,
            Op::OstAllocate => self.allocate(request).await,
            Op::OstSync => self.sync(request).await,
            Op::OstStatfs => request.reply(Ok(&self.statfs())),
            Op::OstSetattr => self.setattr(request).await,
            Op::OstPrecreate => self.precreate(request).await,
            Op::OstDestroy => self.destroy(request).await,
            Op::OstSeek => self.seek(request).await,
            Op::OstAdvise => self.advise(request).await,
            Op::OstAdvised => self.advised(request).await,
            Op::LockEnqueue => self.lock_enqueue(request).await,
            Op::LockCancel => self.lock_cancel(request),
            Op::LockConvert => self.lock_convert(request),
            Op::OstShrinkGrant => self.shrink_grant(request),
            Op::OstPromise => self.promise(request).await,
            Op::Params => self.params(request),
            Op::Jobs => self.jobs(request),
            Op::OstChanged => self.changed(request).await,
            Op::OstTrace => self.traced(request),
            Op::Revoked => self.on_revoked(request).await,
            Op::OstQuota => self.quota(request).await,
            Op::OstOwn => self.own(request).await,
            _ => request.reply::<()>(Err(FsError::NotSupported)),
        }
        self.stats.borrow_mut().answered(op, self.rt.now().since(began), (client, self.rt.wall()));
        self.tell_trouble();
    }

    async fn lock_enqueue(&self, request: Request) {
        let ask: wire::lock::EnqueueRequest = match request.decode() {
            Ok(ask) => ask,
            Err(e) => return request.reply::<()>(Err(e)),
        };
        let reply = self.locks.enqueue(&request, &IoOwner::default(), &ask).await;
        answer(request, &reply);
    }

    fn lock_cancel(&self, request: Request) {
        let reply = request.decode().map(|ask| self.locks.cancel(request.client(), &ask));
        answer(request, &reply);
    }

    fn lock_convert(&self, request: Request) {
        let reply = request.decode().and_then(|ask| self.locks.convert(request.client(), &ask));
        answer(request, &reply);
    }

    fn jobs(&self, request: Request) {
        let reply =
            request.decode().map(|ask: wire::connect::JobsRequest| self.stats.borrow_mut().tell_jobs(&ask.names));
        answer(request, &reply);
    }

    fn traced(&self, request: Request) {
        let reply = request.decode().and_then(|ask| self.answer_trace(&ask));
        answer(request, &reply);
    }

    fn params(&self, request: Request) {
        let reply = request.decode().and_then(|ask| self.answer_params(&ask));
        answer(request, &reply);
    }
}

/// What a request wants to do where, and the lock it says it has.
struct Covering {
    object: ObjectId,
    handle: HandleId,
    mode: LockMode,
    extent: Extent,
}

/// How a request came to the OST.
fn came(request: &Request) -> Came {
    Came { xid: request.header.xid, at: request.received(), ..Came::default() }
}

/// How a failure is answered. A target without memory for a request has carried out nothing of it, and has memory again
/// when others are done: the client sends it again.
fn failed(e: FsError) -> FsError {
    if e == FsError::NoMemory { FsError::Overloaded } else { e }
}

/// Answers a request that changed nothing.
fn answer<T: Encode>(request: Request, reply: &Result<T, FsError>) {
    request.reply(reply.as_ref().map_err(|e| failed(*e)));
}

/// Answers a request that was carried out as a transaction, or failed and changed nothing.
fn answer_change<T: Encode>(request: Request, reply: &Result<(Transno, T), FsError>) {
    match reply {
        Ok((transno, body)) => request.reply_transno(*transno, Ok(wire::encode(body))),
        Err(e) => request.reply::<()>(Err(failed(*e))),
    }
}

/// What the store keeps of the answer to a request, so that a restarted target answers it again instead of carrying it out
/// again. A client that is not waited for after a restart resends nothing.
fn answers(request: &Request, body: fn(&ObjectAttr) -> Vec<u8>) -> Option<Answers> {
    let (client, slot, xid) = (request.client(), request.header.slot_or_credits, request.header.xid);
    let kept = slot < ptlrpc::SLOTS_MAX && request.export.is_recoverable();
    kept.then_some(Answers { client, slot, xid, body })
}

/// The body of an answer about an object.
fn attr_body(attr: &ObjectAttr) -> Vec<u8> {
    wire::encode(&wire::ost::AttrReply { lvb: crate::locks::lvb_of(attr) })
}

/// Blocks that a request may touch: each takes a page, however few of its bytes are asked for. A request of whole blocks is
/// far below.
const BLOCKS_MAX: u64 = 2 * wire::BULK_BYTES_MAX as u64 / BLOCK_BYTES;

/// How many blocks ascending extents touch.
fn blocks_touched(extents: &[Extent]) -> u64 {
    ranges_of(extents).fold(0, |blocks, range| blocks.saturating_add(range.count))
}

/// The blocks of ascending extents: one in which several of them lie comes once.
fn ranges_of(extents: &[Extent]) -> impl Iterator<Item = BlockRange> {
    let range = |end: &mut u64, e: &Extent| {
        let range = blocks_of(*e);
        let first = range.first.max(std::mem::replace(end, range.end()));
        Some(BlockRange::new(first, range.end()))
    };
    extents.iter().scan(0, range).filter(|range| range.count > 0)
}

/// The blocks that hold `extent`.
fn blocks_of(extent: Extent) -> BlockRange {
    BlockRange::new(extent.start / BLOCK_BYTES, extent.end.div_ceil(BLOCK_BYTES))
}

/// Extents of a request: ascending, disjoint, not empty; neighbours become one. Answers them and their bytes.
///
/// Whatever fits a message is taken: what a client made up before `brw_size` was lowered, or replays to a server that was
/// started anew with less, is a promise already.
///
/// # Errors
/// `Invalid` for extents that are not, `TooBig` above [`wire::BULK_BYTES_MAX`] or [`BLOCKS_MAX`], `FileTooBig` behind what an object may have.
fn joined(extents: &[Extent]) -> Result<(Vec<Extent>, u64), FsError> {
    let mut out: Vec<Extent> = Vec::with_capacity(extents.len());
    let mut bytes = 0u64;
    for e in extents {
        if e.is_empty() || out.last().is_some_and(|last| e.start < last.end) {
            return Err(FsError::Invalid);
        }
        if e.end > crate::store::OBJECT_BYTES_MAX {
            return Err(FsError::FileTooBig);
        }
        bytes = bytes.saturating_add(e.len());
        match out.last_mut() {
            Some(last) if last.end == e.start => last.end = e.end,
            _ => out.push(*e),
        }
    }
    if bytes > u64::from(wire::BULK_BYTES_MAX) || blocks_touched(&out) > BLOCKS_MAX {
        return Err(FsError::TooBig);
    }
    if out.is_empty() { Err(FsError::Invalid) } else { Ok((out, bytes)) }
}

impl Service for Ost {
    fn target(&self) -> String {
        self.identity.target()
    }
    fn cluster(&self) -> u64 {
        self.identity.cluster
    }
    fn uuid(&self) -> u64 {
        self.identity.uuid
    }
    fn epoch(&self) -> u64 {
        self.store.boot()
    }
    fn opening(&self) -> u64 {
        self.store.openings().last().map_or(0, |o| o.mark)
    }
    fn is_replaced(&self) -> bool {
        self.store.fence().is_some_and(Fenced::is_replaced)
    }
    fn is_revoked(&self, credential: u64) -> bool {
        self.revoked.borrow().contains_key(&credential)
    }
    fn look_whether_replaced(self: Rc<Self>) {
        let rt = self.rt.clone();
        rt.spawn(async move {
            if let Some(fence) = self.store.fence() {
                let _ = fence.still_ours().await;
            }
        });
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(self.serve(request))
    }
    fn last_committed(&self, _client: ClientId) -> Transno {
        // Replays come in the order of their numbers here.
        self.store.last_committed()
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        let clients = self.store.sessions().into_iter();
        let record = |(client, number)| SessionRecord {
            client,
            binding: ptlrpc::Binding::from_stored(number),
            origin: self.store.origin_of(client),
            replies: self.store.answers_of(client),
        };
        let records: Vec<SessionRecord> = clients.map(record).collect();
        let answers = records.iter().flat_map(|s| s.replies.iter().map(|r| (r.client, r.xid)));
        self.recalled.borrow_mut().extend(answers);
        records
    }
    fn answering_again(&self, header: &Header, request: &[u8], record: &mut ReplyRecord) {
        // What the pages of a write took before the restart is part of the book that its client told since.
        let counted = !self.recalled.borrow_mut().remove(&(header.client, header.xid));
        if counted || header.op != Op::OstWrite || record.status != 0 {
            return;
        }
        if let Ok(write) = wire::decode::<WriteRequest>(request) {
            self.grants.borrow_mut().consume(header.client, write.grant_used);
        }
    }
    fn session_opened(self: Rc<Self>, export: Rc<Export>, known: bool) -> LocalFuture<Result<(), FsError>> {
        Box::pin(async move {
            let (client, recoverable, origin) = (export.client(), export.is_recoverable(), export.origin());
            let number = export.binding().map_or(0, ptlrpc::Binding::number);
            self.exports.borrow_mut().insert(client, export);
            self.creators.on_opened(client);
            if known {
                return Ok(());
            }
            if recoverable { self.store.session_open(client, number, origin).await } else { Ok(()) }
        })
    }
    fn take_recovery(&self, recovery: ptlrpc::RecoveryControl) {
        *self.recovery.borrow_mut() = Some(recovery);
    }
    fn can_be_done_without(&self, client: ClientId) -> bool {
        self.locks.quiet.is_on_record(client)
    }
    fn begin_without(&self, missing: &[ClientId]) {
        self.go_on_without(missing);
    }
    fn told_everything(&self, client: ClientId) {
        self.locks.quiet.came_back(client);
    }
    fn recovered(&self) {
        self.grants.borrow_mut().set_aside(std::iter::empty());
        self.locks.quiet.nobody_is_missing();
        self.recheck_promises();
    }
    fn session_connected(&self, client: ClientId) {
        self.locks.reconnected(client);
        if !self.locks.quiet.is_on_record(client) {
            self.locks.quiet.note_asked(client, self.rt.now());
            self.watch_quiet();
        }
    }
    fn session_closed(self: Rc<Self>, client: ClientId, evicted: bool) -> LocalFuture<()> {
        Box::pin(async move {
            self.locks.marks.on_client_gone();
            self.exports.borrow_mut().remove(&client);
            self.creators.on_closed(client);
            self.locks.quiet.forget(client);
            self.recalled.borrow_mut().retain(|(c, _)| *c != client);
            self.dispatch.cancel_client(client);
            // Before anybody else gets its locks.
            self.locks.promises.on_gone(client);
            if !types::planted!("evicted-amid") {
                // What it changes amid would come after what others read under its locks.
                self.gate.without(client).await;
            }
            self.locks.drop_client(client);
            self.grants.borrow_mut().forget(client);
            if evicted {
                self.stats.borrow_mut().evictions += 1;
            }
            if let Err(e) = self.store.session_close(client).await {
                tracing::warn!(target = self.identity.target(), %client, "the session could not be forgotten: {e}");
            }
        })
    }
    fn grant(&self, client: ClientId, before: u64) -> u64 {
        let space = self.store.space();
        let (first, max) = (self.config.borrow().grant_initial_bytes, self.config.borrow().grant_max_bytes);
        let recovers = self.recovery.borrow().as_ref().is_some_and(ptlrpc::RecoveryControl::is_active);
        // A client that comes back keeps its own book, and would not hear of more.
        let (known, available) = (self.grants.borrow().knows(client), self.available(&space));
        let mut grants = self.grants.borrow_mut();
        if !known && recovers {
            // Clients that have not come back yet hold promises, too: nothing new is given before all are.
            grants.restore(client, before.min(max), space.free.saturating_sub(self.in_flight_bytes.get()));
        } else if !known {
            grants.extend(client, first, max, available);
            self.store.promised(grants.total());
        }
        grants.of(client)
    }
    fn bulk_max(&self) -> u32 {
        self.config.borrow().bulk_bytes_max
    }
    fn credits(&self) -> u16 {
        self.config.borrow().credits
    }
}

impl Ost {
    /// Bytes that neither reserve, grants nor writes under way hold, of what is set aside.
    fn available(&self, space: &Space) -> u64 {
        self.grants.borrow().available(space, self.reserve(space), self.in_flight_bytes.get())
    }
}
