//! The node: what a metadata target holds, and how an operation becomes an answer.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use ldlm::NamespaceConfig;
use ptlrpc::Export;
use rt::sync::Event;
use rt::{LocalFuture, Rt};
use types::{ClientId, Duration, Fid, FsError, HandleId, Instant, OstIndex, Transno, WallTime, Xid};
use wire::Encode;
use wire::mdt::{AttrFlags, EntryReply};

use crate::admission::{self, Admission};
use crate::changelog::Changelog;
use crate::config::MdsConfig;
use crate::config_service::ConfigService;
use crate::cuts::Cuts;
use crate::dirent::NameHash;
use crate::handles::Handles;
use crate::keys;
use crate::kv::KvError;
use crate::locks::{LocalLocks, Locks};
use crate::nameless::Refused;
use crate::ops::EntryOut;
use crate::osts::Osts;
use crate::pools::Pools;
use crate::quiet::Held;
use crate::quota::{Charged, Quotas};
use crate::recent::{Horizon, RecentSizes};
use crate::record::{ReplyRow, Superblock};
use crate::sharing::Footprint;
use crate::stats::Stats;
use crate::store::MetaStore;
use crate::sure::Sureness;
use crate::traced::Traced;
use crate::tx::{Claim, Done, Fail, Fetched, Tx};
use crate::upkeep::ScrubState;

/// What carries an eviction out: the server that holds the sessions.
pub type Evictor = Rc<dyn Fn(ClientId) -> LocalFuture<()>>;

/// A metadata target. See [`crate`].
pub struct Mds {
    pub(crate) rt: Rt,
    pub(crate) config: MdsConfig,
    pub(crate) superblock: Superblock,
    /// Starts of the store; handles of opens and locks carry it in their upper bits.
    pub(crate) boot: u64,
    pub(crate) target: String,
    pub(crate) hash: NameHash,
    pub(crate) store: Rc<MetaStore>,
    pub(crate) handles: RefCell<Handles>,
    pub(crate) recent_sizes: RefCell<RecentSizes>,
    pub(crate) horizon: Horizon,
    pub(crate) cuts: RefCell<Cuts>,
    pub(crate) changelog: Changelog,
    pub(crate) quotas: Quotas,
    pub(crate) locks: Locks,
    pub(crate) pools: RefCell<Pools>,
    pub(crate) pool_filled: Event,
    pub(crate) sureness: Sureness,
    pub(crate) osts: Osts,
    pub(crate) map: ConfigService,
    pub(crate) exports: RefCell<BTreeMap<ClientId, Rc<Export>>>,
    pub(crate) known: RefCell<Vec<ptlrpc::SessionRecord>>,
    /// Clients whose session is on stable storage.
    pub(crate) remembered: RefCell<BTreeSet<ClientId>>,
    pub(crate) stats: Stats,
    pub(crate) traced: Traced,
    pub(crate) stopped: Cell<bool>,
    pub(crate) recovering: Cell<bool>,
    pub(crate) recovery: RefCell<Option<ptlrpc::RecoveryControl>>,
    pub(crate) evictor: RefCell<Option<Evictor>>,
    pub(crate) me: RefCell<Weak<Mds>>,
    /// What became of the last backup, as its parameter says it.
    pub(crate) backup: RefCell<String>,
    pub(crate) scrub: RefCell<ScrubState>,
    pub(crate) refused: Refused,
    pub(crate) quiet: ptlrpc::Quiet<Held>,
    /// What is done about the store that failed, in words.
    pub(crate) mending: RefCell<String>,
    /// How often the store failed and was opened again in this process.
    pub(crate) reopened: Cell<u64>,
    last_time: Cell<i64>,
}

/// Everything a node is made of; [`crate::start`] collects it.
pub(crate) struct Parts {
    pub rt: Rt,
    pub config: MdsConfig,
    pub superblock: Superblock,
    pub boot: u64,
    pub store: Rc<MetaStore>,
    pub pools: Pools,
    pub map: ConfigService,
    pub known: Vec<ptlrpc::SessionRecord>,
    /// Sizes told before this transaction are doubtful.
    pub(crate) doubtful_before: u64,
    pub(crate) cuts: Cuts,
    pub(crate) changelog: Changelog,
    pub(crate) quotas: Quotas,
    pub(crate) quiet: ptlrpc::Quiet<Held>,
}

/// Who asks, and how its answer is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The client.
    pub client: ClientId,
    /// Carry it out as this transaction (0: state that is told again).
    pub replay: Option<Transno>,
    /// What that replay rested on when it was carried out first, where that is to be compared; else 0.
    pub basis: u64,
    /// Slot and request that the answer is kept under.
    pub slot: Option<(u16, Xid)>,
}

impl Caller {
    /// The server itself.
    pub(crate) fn own() -> Caller {
        Caller::on_behalf_of(ldlm::LOCAL)
    }
    /// The server itself, for a client that is gone.
    pub(crate) fn on_behalf_of(client: ClientId) -> Caller {
        Caller { client, replay: None, basis: 0, slot: None }
    }
    /// A replay that fails although it went through before rested on something that is missing.
    fn failed(&self, e: FsError) -> FsError {
        match e {
            FsError::Io | FsError::Corrupt | FsError::NoSpace | FsError::NoMemory => e,
            _ if self.basis != 0 => FsError::NotRecoverable,
            _ => e,
        }
    }
}

/// How an operation ended.
#[derive(Debug)]
pub struct Answered<R> {
    /// The answer.
    pub reply: R,
    /// The transaction it became; 0: it changed nothing.
    pub transno: Transno,
    /// What the transaction rested on.
    pub basis: u64,
    /// The encoded answer, when it is to be remembered.
    pub remembered: Option<Vec<u8>>,
}

/// How long a server that ends waits for a store whose engine is away.
const ENGINE_AWAY_MAX: Duration = Duration::from_secs(10);
const ENGINE_LOOKS_EVERY: Duration = Duration::from_millis(500);

/// Commits that an operation waits for, each of which may leave room for it. Others go first, and the reserve may hold one batch only.
const ROOM_COMMITS_MAX: u32 = 64;

enum Step<R> {
    /// It may be answered when that application is on stable storage.
    Done(Answered<R>, u64),
    Fetch,
    Objects(OstIndex),
    Locks(Vec<Claim>),
    /// A client that has not come back after a restart may have a lock that is in the way.
    Missing,
    /// What another client believes of what was looked at is called back, and not given up yet.
    Recalled,
    /// There may be room for it after a commit.
    Room,
}

impl Mds {
    pub(crate) fn assemble(parts: Parts) -> Rc<Mds> {
        let Parts {
            rt,
            config,
            superblock,
            boot,
            store,
            pools,
            map,
            known,
            doubtful_before,
            cuts,
            changelog,
            quotas,
            quiet,
        } = parts;
        let hash = NameHash { key0: superblock.hash_key0, key1: superblock.hash_key1, mask: superblock.hash_mask };
        let target = format!("{}-MDT0000", String::from_utf8_lossy(&superblock.fsname));
        let locks = NamespaceConfig { handle_first: boot << 40, ..config.locks.clone() };
        let osts = Osts::new(config.connector.as_ref().map(|c| c.0.clone()));
        let earlier = known.iter().map(|s| s.client).collect();
        let horizon = Horizon::new(doubtful_before, earlier, store.last_transno());
        let mds = Rc::new(Mds {
            refused: Refused::default(),
            quiet,
            mending: RefCell::default(),
            reopened: Cell::new(0),
            last_time: Cell::new(rt.wall().0),
            recovering: Cell::new(!known.is_empty()),
            recovery: RefCell::new(None),
            stats: Stats::new(rt.wall()),
            traced: Traced::new(config.trace_bytes),
            rt,
            config,
            superblock,
            boot,
            target,
            hash,
            store,
            handles: RefCell::new(Handles::new(boot)),
            recent_sizes: RefCell::default(),
            horizon,
            cuts: RefCell::new(cuts),
            changelog,
            quotas,
            locks: Locks::new(locks),
            pools: RefCell::new(pools),
            pool_filled: Event::new(),
            sureness: Sureness::default(),
            osts,
            map,
            exports: RefCell::default(),
            remembered: RefCell::new(known.iter().map(|s| s.client).collect()),
            known: RefCell::new(known),
            stopped: Cell::new(false),
            evictor: RefCell::new(None),
            me: RefCell::new(Weak::new()),
            backup: RefCell::new("none".into()),
            scrub: RefCell::default(),
        });
        *mds.me.borrow_mut() = Rc::downgrade(&mds);
        mds
    }

    /// The time for inodes; it never goes back.
    pub(crate) fn clock(&self) -> WallTime {
        let now = self.rt.wall().0.max(self.last_time.get());
        self.last_time.set(now);
        WallTime(now)
    }
    /// A client's session.
    pub(crate) fn export(&self, client: ClientId) -> Option<Rc<Export>> {
        self.exports.borrow().get(&client).cloned()
    }
    /// Says who carries evictions out (the server that this target was added to).
    pub fn set_evictor(&self, evictor: Evictor) {
        *self.evictor.borrow_mut() = Some(evictor);
    }
    /// A client that does not do its part goes.
    pub(crate) async fn evict(self: &Rc<Self>, client: ClientId) {
        let evictor = self.evictor.borrow().clone();
        match evictor {
            Some(evict) => evict(client).await,
            None => {
                if let Some(export) = self.export(client) {
                    export.disconnect();
                }
                self.forget_client(client).await;
            }
        }
    }
    /// Stops background work; what is not committed yet is committed first, unless the store's engine is away.
    ///
    /// # Errors
    /// `Io` when the store failed; `TimedOut` when its engine is away: clients have what is not committed, as after a crash.
    pub async fn stop(&self) -> Result<(), FsError> {
        let synced = match rt::sync::race(self.store.sync(), self.engine_is_away()).await {
            Ok(synced) => synced,
            Err(()) => {
                tracing::warn!(
                    "the metadata store has not answered for {} s: what is not committed is left to the clients",
                    ENGINE_AWAY_MAX.as_secs_f64()
                );
                Err(FsError::TimedOut)
            }
        };
        self.halt();
        synced
    }
    /// Ends when nobody knows any more, for [`ENGINE_AWAY_MAX`], whether the store is this server's.
    async fn engine_is_away(&self) {
        let mut sure = self.rt.now();
        while self.rt.now().since(sure) < ENGINE_AWAY_MAX {
            self.rt.sleep(ENGINE_LOOKS_EVERY).await;
            if self.store.engine().is_sure() {
                sure = self.rt.now();
            }
        }
    }
    /// Stops at once, as a crash does: nothing more is committed.
    pub fn halt(&self) {
        self.stopped.set(true);
        self.store.stop();
        self.osts.stop();
        self.pool_filled.notify();
        self.quiet.end_waits();
        self.locks.given_back.notify();
        // Sessions know this node and this node knows them: one side lets go, so that the store is closed.
        self.exports.borrow_mut().clear();
        self.evictor.borrow_mut().take();
    }
    /// Says what is done about a store that failed; for `store_failure` and `stria status`.
    pub fn note_mending(&self, text: &str) {
        *self.mending.borrow_mut() = text.to_string();
    }
    /// Says how often its store failed in this process and was opened again.
    pub fn note_reopened(&self, times: u64) {
        self.reopened.set(times);
    }
    /// How often its store failed in this process and was opened again.
    #[must_use]
    pub fn times_reopened(&self) -> u64 {
        self.reopened.get()
    }
    /// Why the store of an OST is refused as an older copy, if one is.
    #[must_use]
    pub fn refused_store(&self) -> Option<String> {
        let map = self.map.map.borrow();
        map.refused.iter().find(|r| r.mark != 0).map(|r| String::from_utf8_lossy(&r.why).into_owned())
    }
    /// The store, for tools and tests.
    #[must_use]
    pub fn store(&self) -> &Rc<MetaStore> {
        &self.store
    }
    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Carries an operation out: runs it until nothing stands in its way, makes its answer, applies its changes.
    ///
    /// # Errors
    /// Why it fails; then nothing changed.
    pub(crate) async fn run<T, R: Encode>(
        self: &Rc<Self>,
        caller: Caller,
        op: impl Fn(&mut Tx<'_>) -> Done<T>,
        finish: impl Fn(&Rc<Mds>, T) -> Result<R, FsError>,
    ) -> Result<Answered<R>, FsError> {
        let mut fetched = Fetched::default();
        let mut held: Option<LocalLocks> = None;
        let (mut patience, mut commits) = (None, 0);
        let mut session = None;
        loop {
            self.store.check()?;
            if self.store.is_crowded() {
                session = session.or_else(|| self.export(caller.client));
                self.wait_for_less(caller).await?;
            }
            // Nobody is there any more for whom this was to be done, and who would have the locks that it gives.
            if session.as_ref().is_some_and(|s: &Rc<Export>| s.is_ended()) {
                return Err(FsError::NotConnected);
            }
            let locked: &[Claim] = held.as_ref().map_or(&[], |h| &h.claims);
            let step = self.attempt(caller, &mut fetched, locked, &op, &finish)?;
            if !matches!(step, Step::Done(..)) {
                session = session.or_else(|| self.export(caller.client));
            }
            match step {
                Step::Done(answered, awaited) => {
                    drop(held);
                    // Who asks for the server's own sake is answered nothing.
                    if caller.slot.is_some() && awaited > self.store.durable() {
                        self.store.sharing.borrow_mut().count();
                        self.commit_for(caller, self.store.committed(awaited)).await?;
                    }
                    return Ok(answered);
                }
                Step::Fetch => fetched.fetch().await.map_err(|e: KvError| FsError::from(e))?,
                Step::Objects(ost) => {
                    let end = *patience.get_or_insert_with(|| self.rt.now() + self.config.object_wait);
                    self.wait_for_objects(ost, end).await?;
                }
                Step::Missing | Step::Recalled if self.stopped.get() => return Err(FsError::ShuttingDown),
                Step::Missing => {
                    drop(held.take());
                    self.fewer_missing().await;
                }
                Step::Recalled => {
                    drop(held.take());
                    self.fewer_recalled().await;
                }
                Step::Room if commits == ROOM_COMMITS_MAX => return Err(FsError::NoSpace),
                Step::Room => {
                    commits += 1;
                    self.commit_for(caller, self.store.next_commit()).await;
                }
                Step::Locks(mut claims) => {
                    for c in locked {
                        match claims.iter_mut().find(|n| n.fid == c.fid) {
                            Some(n) => n.bits |= c.bits,
                            None => claims.push(*c),
                        }
                    }
                    drop(held.take());
                    let locks = self.lock_claims(caller.client, claims).await;
                    self.traced.locked(caller, locks.waited);
                    held = Some(locks);
                }
            }
        }
    }

    /// Waits for commits until no more is uncommitted than operations may add to: not all that waited may go on after the same one.
    async fn wait_for_less(&self, caller: Caller) -> Result<(), FsError> {
        loop {
            self.commit_for(caller, self.store.next_commit()).await;
            self.store.check()?;
            if self.stopped.get() {
                return Err(FsError::ShuttingDown);
            }
            if !self.store.is_crowded() {
                return Ok(());
            }
        }
    }

    /// Waits for a commit that an operation needs.
    pub(crate) async fn commit_for<T>(&self, caller: Caller, commit: impl Future<Output = T>) -> T {
        let asked = self.rt.now();
        let done = commit.await;
        self.traced.committed(caller, self.rt.now().since(asked));
        done
    }

    fn attempt<T, R: Encode>(
        self: &Rc<Self>,
        caller: Caller,
        fetched: &mut Fetched,
        held: &[Claim],
        op: &impl Fn(&mut Tx<'_>) -> Done<T>,
        finish: &impl Fn(&Rc<Mds>, T) -> Result<R, FsError>,
    ) -> Result<Step<R>, FsError> {
        let transno = caller.replay.map_or_else(|| self.store.next_transno(), |t| t.0);
        let mut tx = Tx::new(self, fetched, caller.client, transno, caller.replay.is_some());
        let done = op(&mut tx);
        let asked = caller.replay.is_none() && caller.slot.is_some();
        if asked && self.waits_for_recalled(caller.client, &tx.seen) {
            return Ok(Step::Recalled);
        }
        let value = match done {
            Ok(v) => v,
            Err(Fail::Fs(e)) => return Err(caller.failed(e)),
            Err(Fail::Fetch) => return Ok(Step::Fetch),
            Err(Fail::Objects(ost)) => return Ok(Step::Objects(ost)),
        };
        if !tx.basis.allows(caller.basis) {
            return Err(FsError::NotRecoverable);
        }
        let basis = tx.basis.number();
        if asked && self.quiet.is_somebody_missing() && self.waits_for_missing(&tx.claims, &tx.seen) {
            return Ok(Step::Missing);
        }
        if caller.replay.is_none() && self.is_in_the_way(caller.client, &tx.claims, held) {
            return Ok(Step::Locks(tx.claims.to_vec()));
        }
        let changes = tx.changes();
        // What was answered before is carried out again, whatever there is.
        if changes && caller.replay.is_none() {
            match self.store.admit(admission::need(&tx.puts), admission::grows(&tx.puts)) {
                Admission::Now => {}
                Admission::AfterCommit => return Ok(Step::Room),
                Admission::Full => return Err(FsError::NoSpace),
            }
        }
        let footprint = std::mem::take(&mut tx.footprint);
        let charged = self.quotas.after(&tx.charges, tx.now);
        if !types::planted!("count-apart") {
            tx.puts.extend(self.quotas.changes(&charged));
        }
        let shares = self.config.commit_on_sharing && (changes || basis != 0);
        let awaited = if shares { self.store.sharing.borrow().rests_on(caller.client, &footprint) } else { 0 };
        let awaited = awaited.max(self.shown_after(&tx.seen));
        let reply = finish(self, value)?;
        let transno = if changes { transno } else { 0 };
        let mut remembered = None;
        if changes || tx.remember {
            let body = wire::encode(&reply);
            if let Some((slot, xid)) = caller.slot.filter(|_| changes) {
                let row = ReplyRow { xid: xid.0, transno, status: 0, body: wire::Bytes(body) };
                tx.puts.push((keys::reply(caller.client, slot), Some(wire::encode(&row))));
                remembered = Some(row.body.0);
            } else {
                remembered = Some(body);
            }
        }
        if changes {
            self.apply(tx, transno, charged);
            self.note_applied(caller, transno, &footprint, awaited);
        }
        Ok(Step::Done(Answered { reply, transno: Transno(transno), basis, remembered }, awaited))
    }

    /// What must be on stable storage before what was seen of these files is shown to anybody: with an exchange of objects that is lost
    /// with the client that made it, what others wrote to the new ones would be lost. Its own answers wait, too: when the commit fails, it
    /// lives on.
    fn shown_after(&self, seen: &[Fid]) -> u64 {
        if types::planted!("exchange-told-early") { 0 } else { self.store.sharing.borrow().shown_after(seen) }
    }

    /// Makes what an operation changes visible, and has done what follows from it.
    fn apply(self: &Rc<Self>, mut tx: Tx<'_>, transno: u64, charged: Charged) {
        let taken = tx.keeps_objects();
        let puts = std::mem::take(&mut tx.puts);
        let (owed, exchanged) = (std::mem::take(&mut tx.owed), std::mem::take(&mut tx.exchanged));
        let (delta, recorded) = (tx.inode_delta, tx.recorded);
        drop(tx);
        self.store.apply(puts, transno, delta);
        let applied = self.store.applied();
        exchanged.into_iter().for_each(|file| self.store.sharing.borrow_mut().exchanged(file, applied));
        self.quotas.take(charged);
        if recorded > 0 {
            self.wrote_records(recorded);
        }
        if !owed.is_empty() {
            self.osts.owe(applied, owed);
        }
        self.fill_low_pools(&taken);
    }

    /// What a client's change that was applied just now means for others.
    fn note_applied(&self, caller: Caller, transno: u64, footprint: &Footprint, awaited: u64) {
        if caller.replay.is_some() {
            self.store.note_replay(caller.client, transno);
        }
        if self.config.commit_on_sharing {
            let applied = self.store.applied();
            self.store.sharing.borrow_mut().note(caller.client, footprint, applied, awaited);
        }
    }

    /// Waits until a pool was filled.
    ///
    /// # Errors
    /// Nobody may wait here (any longer): `Overloaded` when OSTs are only away, so that the client comes again as long as its
    /// program waits; `NoTarget` when this OST takes no files, `NoSpace` otherwise.
    async fn wait_for_objects(self: &Rc<Self>, ost: OstIndex, end: Instant) -> Result<(), FsError> {
        let filled = self.pool_filled.wait();
        let left = end.since(self.rt.now());
        if left == Duration::ZERO || self.stopped.get() || self.takes_no_files(ost) {
            let refuses = self.pools.borrow().get(ost).is_some_and(|p| !p.can_serve());
            return Err(match refuses {
                _ if self.stopped.get() || self.is_away(ost) => FsError::Overloaded,
                true => FsError::NoTarget,
                false => FsError::NoSpace,
            });
        }
        tracing::debug!(%ost, "a create waits for objects");
        self.kick_osts();
        self.rt.timeout(left, filled).await;
        Ok(())
    }

    /// What is repeated in the replay of what is answered, if that made an inode or gave one its objects.
    fn proof_for(&self, client: ClientId, out: &EntryOut) -> wire::Bytes {
        let Some(file) = out.given else { return wire::Bytes::default() };
        let is_shown = out.inode.as_ref().is_some_and(|inode| inode.fid == file);
        self.proof_of(client, file, if is_shown { &out.layout } else { &[] })
    }

    /// The answer about an inode, with the locks that come along.
    pub(crate) fn entry_reply(&self, client: ClientId, out: EntryOut) -> Result<EntryReply, FsError> {
        let parent_lock = self.grant(client, out.parent_fid, u64::from(ldlm::InodeBits::UPDATE.0), out.parent_cookie);
        let proof = self.proof_for(client, &out);
        let Some(inode) = out.inode else {
            // A negative answer is worth something only under a lock.
            if parent_lock.is_none() {
                return Err(FsError::NotFound);
            }
            return Ok(EntryReply {
                parent_lock,
                parent: out.parent.map(|p| p.attr()).unwrap_or_default(),
                ..EntryReply::default()
            });
        };
        let mut attr = inode.attr();
        attr.flags |= if out.alone { AttrFlags::ALONE } else { 0 };
        attr.flags |= if out.time_untold { AttrFlags::TIME_UNTOLD } else { 0 };
        let lasting = attr.flags & (AttrFlags::SIZE_KNOWN | AttrFlags::HAS_LAYOUT) == AttrFlags::HAS_LAYOUT;
        if lasting && inode.is_file() && self.handles.borrow().writers(inode.fid) == 0 {
            // Nobody's close will tell it: who asks the OSTs now may say what they said.
            attr.flags |= AttrFlags::UNSETTLED;
        }
        Ok(EntryReply {
            lock: self.grant(client, inode.fid, out.bits, out.cookie),
            attr,
            capabilities: self.capabilities_of(client, &out.layout),
            proof,
            layout: out.layout,
            acl: out.acl,
            parent: out.parent.map(|p| p.attr()).unwrap_or_default(),
            parent_lock,
        })
    }

    /// Opens of a client.
    #[must_use]
    pub fn opens_of(&self, client: ClientId) -> usize {
        self.handles.borrow().opens_of(client)
    }

    /// The handle of an open that is being answered.
    pub(crate) fn make_handle(&self, open: crate::handles::Open, replayed: HandleId, suspect: bool) -> HandleId {
        let mut handles = self.handles.borrow_mut();
        let handle = if replayed.0 != 0 {
            handles.reopen(replayed, open);
            replayed
        } else {
            handles.open(open)
        };
        if suspect {
            handles.suspect(open.fid);
        }
        handle
    }
}
