//! The store as operations see it: what is committed, what is being committed, and what was answered since.
//!
//! An operation is applied to memory and answered at once. A background task takes what has piled up, commits it as one
//! batch, and only then do `last_committed` and everyone who waits for stability move on. Reads look into the changes
//! not yet taken, then into the batch being committed, then into the engine's snapshot.
//! It does not know what keys mean; [`crate::tx`] does.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use rt::Rt;
use rt::sync::Event;
use types::{ClientId, Duration, FsError};

use crate::admission;
use crate::keys;
use crate::kv::{Answer, Key, KvBatch, KvError, KvSnapshot, MetaKv, unseal};
use crate::record::Counters;
use crate::replays::Replays;
use crate::sharing::Sharing;

/// When batches are committed.
#[derive(Clone, Copy, Debug)]
pub struct CommitConfig {
    /// The oldest change waits at most this long for its commit to begin. Default 100 ms.
    pub interval: Duration,
    /// When nothing came for this long, the commit begins at once. Default 5 ms.
    pub idle: Duration,
    /// Changed keys above which the commit begins at once, and above four times which operations wait. Default 65,536.
    pub keys_max: usize,
}

impl Default for CommitConfig {
    fn default() -> Self {
        CommitConfig { interval: Duration::from_millis(100), idle: Duration::from_millis(5), keys_max: 1 << 16 }
    }
}

/// A key and its new value.
pub(crate) type Change = (Key, Option<Vec<u8>>);

/// Pairs in order, and the key to go on from.
type Scanned = (Vec<crate::tx::Pair>, Option<Key>);

/// Bytes of changed keys and values above which the commit begins at once, and above four times which operations wait: where the engine
/// takes less in a batch, an eighth of that.
const BYTES_MAX: usize = 64 << 20;

/// How long a commit may take before somebody looks whether it waits for space.
const STALL_LOOK: Duration = Duration::from_millis(200);

/// Changes that are not taken for a commit yet.
pub(crate) type Overlay = BTreeMap<Key, Option<Vec<u8>>>;

/// See the module's head.
pub struct MetaStore {
    pub(crate) kv: Rc<dyn MetaKv>,
    /// What the engine keeps for commits; `None`: its medium is never full.
    pub(crate) room: Option<rt::Room>,
    /// Bytes of the medium that changes may need: of those not taken for a commit yet, of the batch being committed.
    pub(crate) need_of_active: Cell<u64>,
    pub(crate) need_of_batch: Cell<u64>,
    /// The commit under way waits for space.
    pub(crate) stalled: Cell<bool>,
    /// What is known of space within the engine's own.
    pub(crate) reuse: admission::Reuse,
    config: CommitConfig,
    bytes_max: usize,
    boot: u64,
    pub(crate) snapshot: RefCell<Rc<dyn KvSnapshot>>,
    /// Grows whenever `snapshot` changes.
    pub(crate) generation: Cell<u64>,
    pub(crate) active: RefCell<Overlay>,
    /// Bytes of its keys and values.
    active_bytes: Cell<usize>,
    /// How often an operation waited because there was too much of it.
    crowded: Cell<u64>,
    pub(crate) committing: RefCell<Option<Arc<KvBatch>>>,
    /// Whose changes are not committed yet.
    pub(crate) sharing: RefCell<Sharing>,
    /// Last transaction given out.
    gap: Cell<bool>,
    /// See [`Counters::sharing`].
    sharing_boot: Cell<u64>,
    transno: Cell<u64>,
    /// Last transaction on stable storage.
    committed_transno: Cell<u64>,
    /// While replays come in no common order, and until the first commit after that.
    replays: RefCell<Option<Replays>>,
    /// They come.
    replaying: Cell<bool>,
    /// Applications so far, and how many of them are on stable storage.
    applied: Cell<u64>,
    durable: Cell<u64>,
    inodes: Cell<u64>,
    latched: RefCell<Option<KvError>>,
    urgent: Cell<bool>,
    pub(crate) stopped: Cell<bool>,
    work: Event,
    done: Event,
    commits: Cell<u64>,
    batch_keys: Cell<u64>,
}

impl MetaStore {
    /// Over an engine; `boot` is written already, `counters` are what the store says.
    pub(crate) async fn open(
        kv: Rc<dyn MetaKv>,
        config: CommitConfig,
        boot: u64,
        counters: &Counters,
    ) -> Result<Rc<MetaStore>, KvError> {
        let limits = kv.limits();
        assert!(limits.snapshot_isolation, "the MDS needs snapshots that hold still");
        let keys_max = config.keys_max.min(limits.batch_ops_max / 8).max(16);
        let snapshot = kv.snapshot().await?;
        Ok(Rc::new(MetaStore {
            room: kv.room(),
            need_of_active: Cell::new(0),
            need_of_batch: Cell::new(0),
            stalled: Cell::new(false),
            reuse: admission::Reuse::default(),
            kv,
            config: CommitConfig { keys_max, ..config },
            bytes_max: BYTES_MAX.min(limits.batch_bytes_max / 8),
            boot,
            snapshot: RefCell::new(snapshot),
            generation: Cell::new(0),
            active: RefCell::default(),
            active_bytes: Cell::new(0),
            crowded: Cell::new(0),
            committing: RefCell::new(None),
            sharing: RefCell::default(),
            gap: Cell::new(counters.gap),
            sharing_boot: Cell::new(counters.sharing),
            transno: Cell::new(counters.transno),
            committed_transno: Cell::new(counters.transno),
            replays: RefCell::new(None),
            replaying: Cell::new(false),
            applied: Cell::new(0),
            durable: Cell::new(0),
            inodes: Cell::new(counters.inodes),
            latched: RefCell::new(None),
            urgent: Cell::new(false),
            stopped: Cell::new(false),
            work: Event::new(),
            done: Event::new(),
            commits: Cell::new(0),
            batch_keys: Cell::new(0),
        }))
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &Rc<dyn MetaKv> {
        &self.kv
    }
    /// Last transaction on stable storage, with all before; of those that are replayed none counts before all are in.
    #[must_use]
    pub fn last_committed(&self) -> u64 {
        self.committed_transno.get()
    }
    /// Every transaction of this client up to here is on stable storage.
    #[must_use]
    pub fn last_committed_of(&self, client: ClientId) -> u64 {
        let own = self.replays.borrow().as_ref().map_or(0, |r| r.committed(client));
        own.max(self.committed_transno.get())
    }
    /// Replays come from now on, each client's in their order.
    pub(crate) fn expect_replays(&self, committed: impl Iterator<Item = (ClientId, u64)>) {
        *self.replays.borrow_mut() = Some(Replays::new(committed));
        self.replaying.set(true);
    }
    /// A client's replay was applied.
    pub(crate) fn note_replay(&self, client: ClientId, transno: u64) {
        if let Some(replays) = &mut *self.replays.borrow_mut() {
            replays.applied(client, transno);
        }
    }
    /// Last transaction given out.
    #[must_use]
    pub fn last_transno(&self) -> u64 {
        self.transno.get()
    }
    /// The next transaction's number. Its low 32 bits are never 0, for FIDs are made of it.
    #[must_use]
    pub(crate) fn next_transno(&self) -> u64 {
        let n = self.transno.get() + 1;
        if n as u32 == 0 { n + 1 } else { n }
    }
    /// New transactions are numbered above everything of earlier boots; no replay comes any more.
    pub(crate) fn begin_boot(&self) {
        self.transno.set(self.transno.get().max(self.boot << 40));
        if self.replaying.replace(false) {
            self.write_counters();
        }
    }
    /// In a batch of their own, if nothing else comes: every batch brings them.
    fn write_counters(&self) {
        self.apply([(keys::plain(keys::COUNTERS), None)], 0, 0);
    }
    /// See [`Counters::gap`].
    pub(crate) fn has_gap(&self) -> bool {
        self.gap.get()
    }
    /// Goes with the next batch, whatever that holds.
    pub(crate) fn set_gap(&self, gap: bool) {
        if self.gap.replace(gap) && !gap {
            self.write_counters();
        }
    }
    /// Whether replays of different clients are independent of each other.
    pub(crate) fn shares_committed(&self) -> bool {
        self.sharing_boot.get() == self.boot
    }
    /// From the batch on that has everything applied so far, they are, whatever was before.
    pub(crate) fn begin_sharing(&self) {
        self.sharing_boot.set(self.boot);
    }
    /// Inodes in the file system.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.inodes.get()
    }
    /// Space of the medium: (bytes in all, bytes free).
    #[must_use]
    pub fn space(&self) -> (u64, u64) {
        self.kv.space()
    }
    /// (batches committed, keys in them, keys waiting).
    #[must_use]
    pub fn commit_counters(&self) -> (u64, u64, usize) {
        (self.commits.get(), self.batch_keys.get(), self.active.borrow().len())
    }
    /// The failure that stopped the store.
    #[must_use]
    pub fn failure(&self) -> Option<KvError> {
        self.latched.borrow().clone().or_else(|| self.kv.failure())
    }
    /// Bytes of changed keys and values that wait for the next commit.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> usize {
        self.active_bytes.get()
    }
    /// How often an operation waited because too much was not committed yet.
    #[must_use]
    pub fn crowded(&self) -> u64 {
        self.crowded.get()
    }
    /// Whether so many times of what a commit begins at waits for it.
    fn has_piled_up(&self, keys: usize, times: usize) -> bool {
        keys > times * self.config.keys_max || self.active_bytes.get() > times * self.bytes_max
    }
    /// Whether an operation should wait for a commit first, which is counted.
    pub(crate) fn is_crowded(&self) -> bool {
        let crowded = self.has_piled_up(self.active.borrow().len(), 4);
        self.crowded.set(self.crowded.get() + u64::from(crowded));
        crowded
    }
    /// Whether the commit under way waits for space on the medium.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled.get()
    }
    /// The store's failure as an operation's.
    pub(crate) fn check(&self) -> Result<(), FsError> {
        if self.latched.borrow().is_some() || self.kv.failure().is_some() { Err(FsError::Io) } else { Ok(()) }
    }

    /// Operations applied so far.
    pub(crate) fn applied(&self) -> u64 {
        self.applied.get()
    }
    /// How many of them are on stable storage.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.get()
    }

    /// Makes the changes of one operation visible; they are committed with the next batch. `transno` 0: none of its own.
    pub(crate) fn apply(
        &self,
        changes: impl IntoIterator<Item = (Key, Option<Vec<u8>>)>,
        transno: u64,
        inode_delta: i64,
    ) {
        let mut active = self.active.borrow_mut();
        let idle = active.is_empty();
        let (mut need, mut bytes) = (0, self.active_bytes.get());
        for change in changes {
            need += admission::need([&change]);
            self.reuse.take(&change);
            let (key_bytes, value_bytes) = (change.0.len(), change.1.as_ref().map_or(0, Vec::len));
            bytes += value_bytes;
            match active.insert(change.0, change.1) {
                Some(before) => bytes -= before.map_or(0, |v| v.len()),
                None => bytes += key_bytes,
            }
        }
        self.active_bytes.set(bytes);
        self.need_of_active.set(self.need_of_active.get() + need);
        let crowded = self.has_piled_up(active.len(), 1);
        drop(active);
        self.transno.set(self.transno.get().max(transno));
        self.inodes.set(self.inodes.get().saturating_add_signed(inode_delta));
        self.applied.set(self.applied.get() + 1);
        if idle || crowded {
            self.urgent.set(self.urgent.get() || crowded);
            self.work.notify();
        }
    }

    /// [`MetaStore::apply`] of a change of the server's own, if there is one.
    pub(crate) fn apply_if_any(&self, change: Option<Change>) {
        if change.is_some() {
            self.apply(change, 0, 0);
        }
    }

    /// Value of a key in the changes that the engine does not have yet: `None` when they do not touch it.
    pub(crate) fn pending<T>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T, impl FnOnce(Option<&[u8]>) -> T> {
        let active = self.active.borrow();
        if !active.is_empty()
            && let Some(v) = active.get(key)
        {
            return Ok(f(v.as_deref()));
        }
        let committing = self.committing.borrow();
        if let Some(v) = committing.as_ref().and_then(|b| b.changes.get(key)) {
            return Ok(f(v.as_deref()));
        }
        Err(f)
    }

    /// A key's value, waiting for it if need be: for everything but operations.
    ///
    /// # Errors
    /// As the engine answers.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        if let Ok(v) = self.pending(key, |v| v.map(<[u8]>::to_vec)) {
            return Ok(v);
        }
        let answer = self.snapshot.borrow().get(key);
        let sealed = match answer {
            Answer::Now(r) => r?,
            Answer::Later(f) => f.await?,
        };
        sealed.map(|v| unseal(key, v)).transpose()
    }

    /// The first pairs of a range as of when this is called, at most `limit`, and the key to go on from (`None`: that was all); values
    /// unsealed. Of records that are being removed there may be none although it goes on. For scans by background work.
    ///
    /// # Errors
    /// As the engine answers.
    pub async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Scanned, KvError> {
        let mut damage = None;
        let scanned = self.scan_past(from, to, limit, |e| damage = damage.take().or(Some(e))).await?;
        damage.map_or(Ok(scanned), Err)
    }
    /// The same past records that are damaged: `damaged` hears what is wrong with each.
    ///
    /// # Errors
    /// As the engine answers.
    pub(crate) async fn scan_past(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
        mut damaged: impl FnMut(KvError),
    ) -> Result<Scanned, KvError> {
        let answer = self.snapshot.borrow().range(from, to, limit);
        let mut pending = Overlay::new();
        let (pairs, is_late) = match answer {
            Answer::Now(r) => (r?, false),
            Answer::Later(f) => {
                // Until the answer is there these may be committed: then neither the snapshot that was asked has them nor are they pending.
                self.overlay_range(from, to, None, &mut pending);
                (f.await?, !types::planted!("scan-apart"))
            }
        };
        let bound = if pairs.len() == limit { pairs.last().map(|(k, _)| k.clone()) } else { None };
        if !is_late {
            pending.clear();
            self.overlay_range(from, to, bound.as_deref(), &mut pending);
        }
        let mut merged: Overlay = BTreeMap::new();
        for (k, v) in pairs {
            match unseal(&k, v) {
                Ok(v) => drop(merged.insert(Key::from_vec(k), Some(v))),
                Err(e) => damaged(e),
            }
        }
        merged.extend(pending.into_iter().filter(|(k, _)| bound.as_ref().is_none_or(|b| k[..] <= b[..])));
        let next = bound.map(|b| {
            let mut key = Key::from_vec(b);
            key.push(0);
            key
        });
        Ok((merged.into_iter().filter_map(|(k, v)| Some((k, v?))).collect(), next))
    }

    /// Puts the pending changes of `from..to`, at most up to and including `bound`, over `merged`.
    pub(crate) fn overlay_range(&self, from: &[u8], to: &[u8], bound: Option<&[u8]>, merged: &mut Overlay) {
        let inside = |k: &Key| bound.is_none_or(|b| &k[..] <= b);
        let range = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
        if let Some(b) = &*self.committing.borrow() {
            let part = b.changes.range::<[u8], _>(range).take_while(|(k, _)| inside(k));
            merged.extend(part.map(|(k, v)| (k.clone(), v.clone())));
        }
        let active = self.active.borrow();
        let part = active.range::<[u8], _>(range).take_while(|(k, _)| inside(k));
        merged.extend(part.map(|(k, v)| (k.clone(), v.clone())));
    }

    /// Waits until everything applied so far is on stable storage.
    ///
    /// # Errors
    /// `Io` when the store failed; `NoSpace` while a commit waits for space: what was applied is kept, and on stable
    /// storage once there is space.
    pub async fn sync(&self) -> Result<(), FsError> {
        let want = self.applied.get();
        while self.durable.get() < want {
            self.check()?;
            if self.stopped.get() {
                return Err(FsError::ShuttingDown);
            }
            if self.stalled.get() {
                return Err(FsError::NoSpace);
            }
            self.urgent.set(true);
            self.work.notify();
            let done = self.done.wait();
            done.await;
        }
        self.check()
    }
    /// Waits until this application is on stable storage, also while that waits for space.
    ///
    /// # Errors
    /// `Io` when the store failed, `ShuttingDown`.
    pub(crate) async fn committed(&self, application: u64) -> Result<(), FsError> {
        while self.durable.get() < application {
            self.check()?;
            if self.stopped.get() {
                return Err(FsError::ShuttingDown);
            }
            let done = self.done.wait();
            self.urgent.set(true);
            self.work.notify();
            done.await;
        }
        self.check()
    }
    /// Completes at the end of the next commit.
    pub(crate) async fn next_commit(&self) {
        let done = self.done.wait();
        self.urgent.set(true);
        self.work.notify();
        done.await;
    }
    /// Completes when a commit ends, without asking for one.
    pub(crate) async fn commit_ended(&self) {
        let done = self.done.wait();
        done.await;
    }
    /// The committer stops after the batch it is at; nothing is committed any more.
    pub fn stop(&self) {
        self.stopped.set(true);
        // A commit that waits for space has nobody left to wait for it.
        if let Some(room) = &self.room {
            room.give_up();
        }
        self.work.notify();
        self.done.notify();
        self.reuse.look.notify();
    }

    /// The group committer; runs until [`MetaStore::stop`] or a failure.
    pub(crate) async fn run(self: Rc<Self>, rt: Rt) {
        while !self.stopped.get() && self.latched.borrow().is_none() {
            if self.active.borrow().is_empty() {
                // A sync with nothing to write, or nothing to do.
                self.durable.set(self.applied.get());
                self.urgent.set(false);
                self.done.notify();
                let work = self.work.wait();
                work.await;
                continue;
            }
            self.gather(&rt).await;
            if self.stopped.get() {
                break;
            }
            self.commit_once(&rt).await;
        }
    }

    /// Commits a batch; meanwhile looks whether it waits for space, so that whoever waits for it gets an answer.
    async fn commit_watched(&self, rt: &Rt, batch: Arc<KvBatch>) -> Result<(), KvError> {
        let mut commit = self.kv.commit(batch);
        let outcome = loop {
            if let Some(outcome) = rt.timeout(STALL_LOOK, &mut commit).await {
                break outcome;
            }
            let waits = self.room.as_ref().is_some_and(rt::Room::is_waiting);
            if waits && !self.stalled.replace(true) {
                tracing::error!(
                    "metadata store: the file system below is full: changes are refused until it has space again"
                );
                self.done.notify();
            }
        };
        if self.stalled.replace(false) && outcome.is_ok() {
            tracing::warn!("metadata store: the file system below has space again, everything is committed");
        }
        outcome
    }

    async fn gather(&self, rt: &Rt) {
        let first = rt.now();
        while !self.urgent.get() && !self.stopped.get() {
            let before = self.applied.get();
            let work = self.work.wait();
            let woken = rt.timeout(self.config.idle, work).await.is_some();
            let idle = !woken && self.applied.get() == before;
            if idle || rt.now().since(first) >= self.config.interval {
                return;
            }
        }
    }

    async fn commit_once(&self, rt: &Rt) {
        self.urgent.set(false);
        let applied = self.applied.get();
        let replaying = self.replaying.get() && !types::planted!("commit-of-others");
        let transno = if replaying { self.committed_transno.get() } else { self.transno.get() };
        if let Some(replays) = &mut *self.replays.borrow_mut() {
            replays.begin_commit();
        }
        let mut changes = std::mem::take(&mut *self.active.borrow_mut());
        self.active_bytes.set(0);
        self.sharing.borrow_mut().begin_commit();
        let counters =
            Counters { transno, inodes: self.inodes.get(), gap: self.gap.get(), sharing: self.sharing_boot.get() };
        changes.insert(keys::plain(keys::COUNTERS), Some(wire::encode(&counters)));
        self.need_of_batch.set(self.need_of_active.take());
        let keys = changes.len() as u64;
        let expect = vec![(keys::plain(keys::BOOT), Some(self.boot.to_le_bytes().to_vec()))];
        let batch = Arc::new(KvBatch { changes, expect });
        *self.committing.borrow_mut() = Some(batch.clone());
        let outcome = match self.commit_watched(rt, batch).await {
            Ok(()) => self.kv.snapshot().await,
            Err(e) => Err(e),
        };
        match outcome {
            Ok(snapshot) => {
                *self.snapshot.borrow_mut() = snapshot;
                self.generation.set(self.generation.get() + 1);
                let gone = self.committing.borrow_mut().take();
                drop(gone);
                self.committed_transno.set(transno);
                self.durable.set(applied);
                self.sharing.borrow_mut().end_commit(applied);
                match &mut *self.replays.borrow_mut() {
                    Some(replays) if replaying => replays.end_commit(),
                    // The one number says it of all again.
                    replays => *replays = None,
                }
                self.commits.set(self.commits.get() + 1);
                self.batch_keys.set(self.batch_keys.get() + keys);
                self.reuse.look.notify();
            }
            Err(e) => {
                tracing::error!("{e}; no further change is accepted");
                *self.latched.borrow_mut() = Some(e);
            }
        }
        self.need_of_batch.set(0);
        self.done.notify();
    }
}

#[cfg(test)]
mod tests {
    use simworld::TestWorld;

    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::MemoryKv;

    #[test]
    fn a_scan_whose_answer_comes_after_a_commit_has_what_was_committed_meanwhile() {
        let world = TestWorld::new(1, 1 << 20);
        let (boot, rt) = (3_u64, world.rt());
        world.run(async {
            let kv = MemoryKv::new();
            kv.set_slow_reads(true);
            let mut batch = KvBatch::default();
            batch.changes.insert(keys::plain(keys::BOOT), Some(boot.to_le_bytes().to_vec()));
            kv.commit(Arc::new(batch)).await.unwrap();
            let store = MetaStore::open(kv, CommitConfig::default(), boot, &Counters::default()).await.unwrap();
            rt.spawn(store.clone().run(rt.clone()));
            let put = |key: &[u8], value| store.apply([(keys::plain(key), value)], 0, 0);
            put(b"xa", Some(vec![1]));
            put(b"xb", Some(vec![2]));
            put(b"xc", Some(vec![3]));
            store.sync().await.unwrap();
            put(b"xb", None);
            put(b"xbb", Some(vec![4]));
            put(b"xd", Some(vec![5]));
            let names = |rows: Vec<crate::tx::Pair>| {
                rows.into_iter().map(|(k, _)| String::from_utf8(k.to_vec()).unwrap()).collect::<Vec<_>>()
            };
            let (mut all, mut first) = (pin!(store.scan(b"x", b"y", 9)), pin!(store.scan(b"x", b"y", 2)));
            poll_fn(|cx| {
                assert!(all.as_mut().poll(cx).is_pending() && first.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            store.sync().await.unwrap();
            let (rows, next) = all.await.unwrap();
            assert_eq!((names(rows), next), (vec!["xa".into(), "xbb".into(), "xc".into(), "xd".into()], None));
            let (rows, next) = first.await.unwrap();
            assert_eq!((names(rows), next), (vec!["xa".to_owned()], Some(keys::plain(b"xb\0"))), "xb is gone");
            store.stop();
        });
    }

    #[test]
    fn what_a_client_was_told_is_committed_stays_so_when_the_last_replay_is_in() {
        let (a, b) = (ClientId(1), ClientId(2));
        let world = TestWorld::new(1, 1 << 20);
        let (boot, rt) = (3_u64, world.rt());
        world.run(async {
            let kv: Rc<dyn MetaKv> = MemoryKv::new();
            let mut batch = KvBatch::default();
            batch.changes.insert(keys::plain(keys::BOOT), Some(boot.to_le_bytes().to_vec()));
            kv.commit(Arc::new(batch)).await.unwrap();
            let counters = Counters { transno: 5, inodes: 0, gap: false, sharing: boot };
            let store = MetaStore::open(kv, CommitConfig::default(), boot, &counters).await.unwrap();
            rt.spawn(store.clone().run(rt.clone()));
            store.expect_replays([(a, 7)].into_iter());
            let put = |transno| store.apply([(keys::plain(b"x"), Some(vec![1]))], transno, 0);
            put(9);
            store.note_replay(b, 9);
            let told = || (store.last_committed_of(a), store.last_committed_of(b), store.last_committed());
            assert_eq!(told(), (7, 5, 5));
            store.sync().await.unwrap();
            assert_eq!(told(), (7, 9, 5), "what B replayed says nothing of A");
            store.begin_boot();
            assert_eq!(told(), (7, 9, 5), "the last one was in before it is committed that it was");
            store.sync().await.unwrap();
            assert_eq!(told(), (boot << 40, boot << 40, boot << 40));
            store.stop();
        });
    }
}
