//! From a store to a running target: checks, boot count, what clients and OSTs need to find again.
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use ptlrpc::{Binding, ReplyRecord, SessionRecord};
use rt::Rt;
use types::{ClientId, FsError, Transno, Xid};
use wire::Decode;

use crate::changelog::Changelog;
use crate::config::MdsConfig;
use crate::config_service::{ClusterMap, ConfigService};
use crate::cuts::Cuts;
use crate::keys;
use crate::kv::{Answer, Key, KvBatch, KvError, KvSnapshot, MetaKv, Pairs, unseal};
use crate::mds::{Mds, Parts};
use crate::osts::decode_precreate;
use crate::pools::Pools;
use crate::quiet::Held;
use crate::quota::{Quotas, count, count_row};
use crate::record::{
    ChangelogRow, Counters, CutRow, DestroyObject, DestroyRow, FORMAT_VERSION, HorizonRow, Inode, ReplyRow,
    SUPER_MAGIC, SessionRow, Superblock,
};
use crate::store::MetaStore;

/// Keys read at a time when the store is scanned.
pub(crate) const SCAN_KEYS: usize = 4096;
/// Keys read at a time when everything is read with its value, beside service: 16 MiB, if all are of the longest kind.
pub(crate) const PAGE_KEYS: usize = 256;

/// Why a target does not start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartError {
    /// The store has no superblock.
    NotFormatted,
    /// The superblock is of something else.
    NotOurs {
        /// Its magic.
        magic: u64,
    },
    /// Another store than the one that was asked for.
    Foreign {
        /// Cluster and uuid of what is there.
        found: (u64, u64),
        /// Of what was asked for.
        wanted: (u64, u64),
    },
    /// Written by a later version.
    NewerFormat {
        /// Its format.
        found: u32,
    },
    /// The store failed.
    Store(KvError),
    /// A record cannot be read.
    Damaged {
        /// Which.
        key: String,
    },
    /// A setting has a value that does not exist.
    Setting(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NotFormatted => f.write_str(
                "the metadata store is empty: where there was one, 'stria mdt restore' makes it of a backup ('stria mdt backup'), in the place of an empty directory; 'stria mkfs' makes a new file system",
            ),
            StartError::NotOurs { magic } => {
                write!(f, "the metadata store starts with {magic:#018x}, which is not Stria's")
            }
            StartError::NewerFormat { found } => {
                write!(
                    f,
                    "the metadata store has format {found}, this build reads up to {FORMAT_VERSION}: use a newer build"
                )
            }
            StartError::Foreign { found: (cluster, uuid), wanted } if *cluster != wanted.0 => write!(
                f,
                "the metadata store {uuid:016x} belongs to cluster {cluster:016x}, this is cluster {:016x}: put the right store there",
                wanted.0
            ),
            StartError::Foreign { found, wanted } => write!(
                f,
                "the metadata store is {:016x}, this cluster's is {:016x}: put the right store there",
                found.1, wanted.1
            ),
            StartError::Store(e) => write!(f, "{e}"),
            StartError::Setting(e) => f.write_str(e),
            StartError::Damaged { key } => write!(f, "metadata store: record {key} is damaged: run 'stria fsck'"),
        }
    }
}
impl std::error::Error for StartError {}
impl From<KvError> for StartError {
    fn from(e: KvError) -> StartError {
        StartError::Store(e)
    }
}

pub(crate) async fn ready<T>(answer: Answer<T>) -> Result<T, KvError> {
    match answer {
        Answer::Now(r) => r,
        Answer::Later(f) => f.await,
    }
}

pub(crate) async fn get(s: &dyn KvSnapshot, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
    ready(s.get(key)).await?.map(|v| unseal(key, v)).transpose()
}

/// All pairs whose keys start with `prefix`, unsealed.
pub(crate) async fn all(s: &dyn KvSnapshot, prefix: u8) -> Result<Pairs, KvError> {
    let (mut from, to) = (keys::plain(&[prefix]), keys::end_of(&[prefix]));
    let mut pairs = Vec::new();
    loop {
        let page = ready(s.range(&from, &to, SCAN_KEYS)).await?;
        let full = page.len() == SCAN_KEYS;
        for (k, v) in page {
            let v = unseal(&k, v)?;
            pairs.push((k, v));
        }
        match pairs.last() {
            Some((k, _)) if full => {
                from = Key::from_slice(k);
                from.push(0);
            }
            _ => return Ok(pairs),
        }
    }
}

fn row<T: Decode>(key: &[u8], value: &[u8]) -> Result<T, StartError> {
    wire::decode(value).map_err(|_| StartError::Damaged { key: crate::kv::show_key(key) })
}

async fn row_or_default<T: Decode + Default>(s: &dyn KvSnapshot, key: &[u8]) -> Result<T, StartError> {
    match get(s, key).await? {
        Some(v) => row(key, &v),
        None => Ok(T::default()),
    }
}

/// Reads and checks the superblock.
///
/// # Errors
/// Why the store cannot be used.
pub(crate) async fn read_superblock(s: &dyn KvSnapshot) -> Result<Superblock, StartError> {
    let value = get(s, keys::SUPERBLOCK).await?.ok_or(StartError::NotFormatted)?;
    let sb: Superblock = row(keys::SUPERBLOCK, &value)?;
    if sb.magic != SUPER_MAGIC {
        return Err(StartError::NotOurs { magic: sb.magic });
    }
    if sb.version > FORMAT_VERSION {
        return Err(StartError::NewerFormat { found: sb.version });
    }
    Ok(sb)
}

impl Mds {
    /// Starts a target on a formatted store. Add it to a `ptlrpc::Server` afterwards; known clients are waited for by
    /// that server.
    ///
    /// # Errors
    /// Why the store cannot be used.
    pub async fn start(rt: Rt, config: MdsConfig, kv: Rc<dyn MetaKv>) -> Result<Rc<Mds>, StartError> {
        let snapshot = kv.snapshot().await?;
        let superblock = read_superblock(&*snapshot).await?;
        let found = (superblock.cluster, superblock.uuid);
        if let Some(wanted) = config.store.filter(|w| *w != found) {
            return Err(StartError::Foreign { found, wanted });
        }
        let snapshot = counted(&*kv, snapshot, &superblock).await?;
        let mut counters: Counters = row_or_default(&*snapshot, keys::COUNTERS).await?;
        let shared = if config.commit_on_sharing { Some(&mut counters) } else { None };
        let (boot, doubtful_before) = begin_boot(&*kv, &*snapshot, &superblock, shared).await?;
        let map: ClusterMap = row_or_default(&*snapshot, keys::CLUSTER_MAP).await?;
        let mut pools = Pools::new(config.alloc.clone(), rt.rng("mds allocator"));
        pools.allocator().set_policy(&config.alloc_policy).map_err(|e| StartError::Setting(e.to_string()))?;
        read_pools(&*snapshot, &map, &mut pools).await?;
        let (known, quiet, stale) = read_sessions(&*snapshot).await?;
        let cuts = read_cuts(&*snapshot).await?;
        let changelog = read_changelog(&*snapshot).await?;
        let quotas = Quotas::read(&*snapshot).await?;
        drop(snapshot);
        let store = MetaStore::open(kv, config.commit, boot, &counters).await?;
        if known.is_empty() {
            store.begin_boot();
        } else if store.shares_committed() {
            store.expect_replays(
                known.iter().map(|s| (s.client, s.replies.iter().map(|r| r.transno.0).max().unwrap_or(0))),
            );
        }
        store.apply(stale.into_iter().map(|k| (k, None)), 0, 0);
        let fsname = String::from_utf8_lossy(&superblock.fsname).into_owned();
        let service = ConfigService::new(&fsname, superblock.cluster, &config.nid, map.clone());
        for ost in config.away.iter().chain(map.refused.iter().map(|r| &r.ost)) {
            service.set_away(*ost, true);
            pools.update(*ost, |p| p.active = false);
        }
        let alone = known.is_empty();
        let parts = Parts {
            rt,
            config,
            superblock,
            boot,
            store,
            pools,
            map: service,
            known,
            doubtful_before,
            cuts,
            changelog,
            quotas,
            quiet,
        };
        let mds = Mds::assemble(parts);
        mds.rt.spawn(mds.store.clone().run(mds.rt.clone()));
        mds.rt.spawn(mds.store.clone().look_for_reuse(mds.rt.clone()));
        mds.load_owed().await?;
        mds.rt.spawn(mds.clone().watch_commits());
        for entry in &map.osts {
            mds.tend_ost(entry);
        }
        mds.apply_settings().await;
        mds.purge_changelog();
        if alone {
            mds.end_recovery();
        }
        Ok(mds)
    }

    /// Every client is back or given up, or those that are missing have nothing to replay: objects and orphans of what was
    /// lost go, ordinary numbering begins. In the second case this comes again when the last one is back or given up.
    pub(crate) fn end_recovery(self: &Rc<Self>) {
        self.store.begin_boot();
        self.destroy_lost();
        self.recovering.set(false);
        self.horizon.recovered(self.rt.now());
        if self.recovery.borrow().as_ref().is_some_and(ptlrpc::RecoveryControl::has_gap) || self.is_all_doubtful() {
            self.call_everything_back();
        }
        if self.config.commit_on_sharing {
            self.store.begin_sharing();
        }
        self.store.set_gap(false);
        self.kick_osts();
        let me = self.clone();
        self.rt.spawn(async move {
            if let Err(e) = me.remove_orphans().await {
                tracing::error!("orphans stay: {e}");
            }
        });
    }

    /// Objects that were given out in creates which nobody replayed are destroyed.
    fn destroy_lost(&self) {
        let lost = self.pools.borrow_mut().lost();
        if lost.is_empty() {
            return;
        }
        tracing::info!(objects = lost.len(), "destroying objects of creates that were lost");
        let objects: Vec<_> = lost.iter().map(|o| DestroyObject { ost: o.ost, object: o.object }).collect();
        let key = keys::destroy(types::Fid::ZERO, self.store.last_transno());
        let mut changes = vec![(key.clone(), Some(wire::encode(&DestroyRow { objects: objects.clone() })))];
        let pools = self.pools.borrow();
        changes.extend(pools.all().iter().map(|p| (keys::precreate(p.ost), Some(crate::osts::precreate_row(p)))));
        self.store.apply(changes, 0, 0);
        self.osts.owe(self.store.applied(), vec![(key, crate::owed::destroys(&objects))]);
    }

    /// Removes inodes without a name that nobody has open.
    async fn remove_orphans(self: &Rc<Self>) -> Result<(), FsError> {
        let (mut from, to) = (keys::plain(&[keys::ORPHAN]), keys::end_of(&[keys::ORPHAN]));
        loop {
            let damaged = |e| tracing::error!(target = self.target, "mark of a nameless inode: {e}: run 'stria fsck'");
            let (orphans, next) = self.store.scan_past(&from, &to, 1024, damaged).await?;
            let fids = orphans.iter().filter_map(|(key, _)| keys::fid_of(key)).collect();
            if let (left, Some(e)) = self.remove_nameless(fids).await {
                self.remove_later(left, e);
            }
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }
}

/// The boot's number, and the transaction before which sizes are doubtful.
async fn begin_boot(
    kv: &dyn MetaKv,
    snapshot: &dyn KvSnapshot,
    found: &Superblock,
    counters: Option<&mut Counters>,
) -> Result<(u64, u64), StartError> {
    let old = get(snapshot, keys::BOOT).await?;
    let last = match &old {
        Some(v) => u64::from_le_bytes(v[..].try_into().map_err(|_| StartError::Damaged { key: "b".into() })?),
        None => 0,
    };
    let boot = last + 1;
    let mut batch = KvBatch::default();
    batch.changes.insert(keys::plain(keys::BOOT), Some(boot.to_le_bytes().to_vec()));
    if let Some(counters) = counters.filter(|c| last > 0 && c.sharing == last) {
        // An earlier build that starts in between does not say so, and its answers may rest on each other.
        counters.sharing = boot;
        batch.changes.insert(keys::plain(keys::COUNTERS), Some(wire::encode(counters)));
    }
    let mut horizon: HorizonRow = row_or_default(snapshot, keys::HORIZON).await?;
    if horizon.doubting {
        // The last boot ended before the sizes of a client that was gone were marked.
        horizon = HorizonRow { before: boot << 40, doubting: false };
        batch.changes.insert(keys::plain(keys::HORIZON), Some(wire::encode(&horizon)));
    }
    if found.version < FORMAT_VERSION {
        // From here on records are written that an older build takes for damaged.
        let superblock = Superblock { version: FORMAT_VERSION, ..found.clone() };
        batch.changes.insert(keys::plain(keys::SUPERBLOCK), Some(wire::encode(&superblock)));
    }
    batch.expect.push((keys::plain(keys::BOOT), old));
    kv.commit(Arc::new(batch)).await?;
    Ok((boot, horizon.before))
}

/// The first format that has counts of inodes by whom they count for.
pub(crate) const COUNTS_SINCE: u32 = 4;
/// Counts that are written in one batch.
const COUNTS_MAX: usize = 4096;

/// The store with such counts.
async fn counted(
    kv: &dyn MetaKv,
    snapshot: Rc<dyn KvSnapshot>,
    superblock: &Superblock,
) -> Result<Rc<dyn KvSnapshot>, StartError> {
    if superblock.version >= COUNTS_SINCE {
        return Ok(snapshot);
    }
    count_inodes(kv, &*snapshot).await?;
    Ok(kv.snapshot().await?)
}

/// Counts the inodes of a store that has no such counts, or those of an earlier try.
async fn count_inodes(kv: &dyn MetaKv, snapshot: &dyn KvSnapshot) -> Result<(), StartError> {
    tracing::warn!("the metadata store is of before quotas: its inodes are counted, once, before service begins");
    let (mut from, to) = (keys::plain(&[keys::INODE]), keys::end_of(&[keys::INODE]));
    let mut counts = BTreeMap::new();
    loop {
        let page = ready(snapshot.range(&from, &to, SCAN_KEYS)).await?;
        let full = page.len() == SCAN_KEYS;
        let mut inodes = Vec::with_capacity(page.len());
        for (key, sealed) in page {
            let value = unseal(&key, sealed)?;
            let inode = keys::fid_of(&key).and_then(|fid| Inode::decode(fid, &value));
            inodes.push(inode.ok_or_else(|| StartError::Damaged { key: crate::kv::show_key(&key) })?);
            from = Key::from_vec(key);
            from.push(0);
        }
        count(inodes.iter()).into_iter().for_each(|(id, n)| *counts.entry(id).or_default() += n);
        if !full {
            break;
        }
    }
    let boot = get(snapshot, keys::BOOT).await?;
    let old = all(snapshot, keys::USAGE).await?.into_iter().map(|(key, _)| (Key::from_vec(key), None));
    let new = counts.into_iter().map(|(id, inodes)| (keys::usage(id), count_row(inodes)));
    let changes: Vec<_> = old.chain(new).collect();
    for some in changes.chunks(COUNTS_MAX) {
        let mut batch = KvBatch { changes: some.iter().cloned().collect(), ..KvBatch::default() };
        batch.expect.push((keys::plain(keys::BOOT), boot.clone()));
        kv.commit(Arc::new(batch)).await?;
    }
    Ok(())
}

/// Which objects of each OST are in use, and which OSTs get files.
async fn read_pools(snapshot: &dyn KvSnapshot, map: &ClusterMap, pools: &mut Pools) -> Result<(), StartError> {
    for (key, value) in all(snapshot, keys::PRECREATE).await? {
        let (ost, p) =
            decode_precreate(&key, &value).map_err(|_| StartError::Damaged { key: crate::kv::show_key(&key) })?;
        if map.removed.iter().any(|r| r.ost == ost) {
            continue;
        }
        let active = map.osts.iter().find(|e| e.ost == ost).is_none_or(|e| e.active);
        pools.add(ost, active, &p);
        pools.update(ost, |pool| pool.closed = map.closed.contains(&ost));
    }
    pools.set_members(crate::ost_pools::members(&map.pools));
    Ok(())
}

/// Decisions about cuts.
async fn read_cuts(snapshot: &dyn KvSnapshot) -> Result<Cuts, StartError> {
    let mut rows = Vec::new();
    for (key, value) in all(snapshot, keys::CUT).await? {
        let cut = keys::cut_of(&key).ok_or_else(|| StartError::Damaged { key: crate::kv::show_key(&key) })?;
        rows.push((cut, row::<CutRow>(&key, &value)?));
    }
    Ok(Cuts::new(rows))
}

/// The changelog: who uses it, and where it goes on. Where the row is lost nobody does, but there are records: their indices are not given
/// again, nor are they shown to whoever comes next.
async fn read_changelog(snapshot: &dyn KvSnapshot) -> Result<Changelog, StartError> {
    let found: ChangelogRow = row_or_default(snapshot, keys::CHANGELOG).await?;
    // The last record: there is one at or behind every index up to its own, and none behind it.
    let end = keys::end_of(&[keys::CHANGE]);
    let (mut last, mut beyond) = (0, u64::MAX);
    while beyond - last > 1 {
        let middle = last + (beyond - last) / 2;
        match ready(snapshot.range(&keys::change(middle), &end, 1)).await?.first() {
            Some((key, _)) => last = keys::last_u64(key).unwrap_or(middle),
            None => beyond = middle,
        }
    }
    Ok(Changelog::new(found, last))
}

/// Sessions with their answers, who is quiet, and the keys of answers that belong to none.
async fn read_sessions(
    snapshot: &dyn KvSnapshot,
) -> Result<(Vec<SessionRecord>, ptlrpc::Quiet<Held>, Vec<Key>), StartError> {
    let mut known: Vec<SessionRecord> = Vec::new();
    let mut quiet = BTreeMap::new();
    let mut stale = Vec::new();
    for (key, value) in all(snapshot, keys::SESSION).await? {
        let client = ClientId(keys::last_u64(&key).unwrap_or_default());
        let r: SessionRow = row(&key, &value)?;
        let origin = r.origin();
        quiet.extend(Held::of_row(&r).map(|held| (client, held)));
        known.push(SessionRecord { client, binding: Binding::from_stored(r.binding), origin, replies: Vec::new() });
    }
    for (key, value) in all(snapshot, keys::REPLY).await? {
        let damaged = || StartError::Damaged { key: crate::kv::show_key(&key) };
        let bytes: [u8; 10] = key[1..].try_into().map_err(|_| damaged())?;
        let (client, slot) = bytes.split_at(8);
        let client = ClientId(u64::from_be_bytes(client.try_into().map_err(|_| damaged())?));
        let slot = u16::from_be_bytes(slot.try_into().map_err(|_| damaged())?);
        let r: ReplyRow = row(&key, &value)?;
        match known.binary_search_by_key(&client, |s| s.client) {
            Ok(i) => {
                let (xid, transno, status) = (Xid(r.xid), Transno(r.transno), r.status);
                known[i].replies.push(ReplyRecord { client, slot, xid, transno, status, body: r.body.0, basis: 0 });
            }
            Err(_) => stale.push(Key::from_slice(&key)),
        }
    }
    Ok((known, ptlrpc::Quiet::new(quiet), stale))
}
