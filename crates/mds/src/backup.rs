//! A copy of a metadata store in one file, and a store made of such a file: a backup, made while the store is in use, or an export, by
//! which a store moves from one engine to another.
//!
//! Decides what a copy holds (everything of one moment, as sealed records in key order) and what becomes of it in another
//! place: whoever was connected then is not any more, sizes are asked of the OSTs, files without a name stay, and objects that are
//! newer than the copy stay where they are (`docs/spec/mdt-backup.md`). The header is written last, so that a file that was not finished is none.
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rt::{BlockingFile, Rt};
use types::{Fid, WallTime};

use crate::config_service::ClusterMap;
use crate::keys;
use crate::kv::{Key, KvBatch, KvError, MetaKv, seal, show_key, unseal};
use crate::record::{ChangelogGapRow, ChangelogRow, Counters, FORMAT_VERSION, Inode, InodeFlags, PrecreateRow};
use crate::start::{PAGE_KEYS, StartError, get, read_superblock, ready};

/// What a copy is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// To go back to, when the store is lost.
    Backup,
    /// To move the store of a server that has stopped: it stays what it is.
    Export,
}

impl Kind {
    /// First bytes of its file, little-endian.
    fn magic(self) -> u64 {
        u64::from_le_bytes(match self {
            Kind::Backup => *b"STRIABAK",
            Kind::Export => *b"STRIAEXP",
        })
    }
    fn of_magic(magic: u64) -> Option<Kind> {
        [Kind::Backup, Kind::Export].into_iter().find(|kind| kind.magic() == magic)
    }
}

/// Format of the file.
pub const BACKUP_VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
/// Length and checksum before each block.
const BLOCK_HEAD_BYTES: usize = 8;
/// Lengths of key and value before each record.
const RECORD_HEAD_BYTES: usize = 6;
/// Longest block that is read: earlier builds put 4,096 records into one block, whatever their size.
const BLOCK_BYTES_MAX: usize = 512 << 20;
/// Records that are written into one block, in bytes; one that is longer has a block of its own.
const BLOCK_BYTES: usize = 16 << 20;
/// Boots that a store which was put back skips at least: those after the copy was made, whose FIDs and transactions are taken.
const BOOTS_SKIPPED: u64 = 1024;
/// Boots that may have been since a store was put back before, at most.
const BOOTS_BETWEEN: u64 = 1 << 14;
/// Boots up to which one goes by the clock: FIDs and transactions have 24 bits for them, of which some stay for those to come.
const BOOTS_BY_CLOCK_MAX: u64 = (1 << 24) - (1 << 20);
/// Time from which boots count minutes: the beginning of 2026.
const BOOTS_SINCE: WallTime = WallTime(1_767_225_600 * 1_000_000_000);
/// Records of the changelog that may have been written since a copy was made, at most, where the clock says less.
const INDICES_SKIPPED: u64 = 1 << 40;
/// Length of a key of 0xff that comes behind all others.
const KEY_END_BYTES: usize = 64;
/// Records that are put back in one commit, and their bytes.
const RECORDS_PER_COMMIT: usize = 8192;
const BYTES_PER_COMMIT: usize = 16 << 20;

/// Why there is no copy, or it cannot be used.
#[derive(Debug)]
pub enum BackupError {
    /// The store failed, or is none.
    Store(StartError),
    /// The file system said no.
    Io(std::io::Error),
    /// There is something at the place.
    Exists,
    /// It is no backup, or one that was not finished.
    NotOne,
    /// It is a copy for something else: what it is.
    Other(Kind),
    /// The store that was made of it does not have what the file has: records and checksum of both.
    Differs(Whole, Whole),
    /// A newer program made it: version of the file, of the store in it.
    Newer(u32, u32),
    /// It is damaged: where.
    Damaged(u64),
    /// It is of another store: cluster and uuid of it, and of the one that was asked for.
    Foreign((u64, u64), (u64, u64)),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Store(e) => write!(f, "{e}"),
            BackupError::Io(e) => write!(f, "{e}"),
            BackupError::Exists => f.write_str("there is something in its place already"),
            BackupError::NotOne => f.write_str("it is no copy of a metadata store, or one that was not finished"),
            BackupError::Other(Kind::Backup) => {
                f.write_str("it is a backup, of a moment that is over: put it back with 'stria mdt restore'")
            }
            BackupError::Other(Kind::Export) => {
                f.write_str("it is an export: make a store of it with 'stria mdt import'")
            }
            BackupError::Differs(file, store) => write!(
                f,
                "the file has {file}, the store that was made of it {store}: do not use that store, and try again"
            ),
            BackupError::Newer(file, store) => write!(
                f,
                "it is a backup of format {file} with a store of format {store}, this build reads up to {BACKUP_VERSION} and {FORMAT_VERSION}: use a newer build"
            ),
            BackupError::Damaged(at) => write!(f, "it is damaged at byte {at}: use another one"),
            BackupError::Foreign(found, wanted) => write!(
                f,
                "it is of store {:016x} of cluster {:016x}, not of {:016x} of {:016x}: use one that was made here",
                found.1, found.0, wanted.1, wanted.0
            ),
        }
    }
}
impl std::error::Error for BackupError {}
impl From<KvError> for BackupError {
    fn from(e: KvError) -> BackupError {
        BackupError::Store(StartError::Store(e))
    }
}
impl From<StartError> for BackupError {
    fn from(e: StartError) -> BackupError {
        BackupError::Store(e)
    }
}
impl From<std::io::Error> for BackupError {
    fn from(e: std::io::Error) -> BackupError {
        BackupError::Io(e)
    }
}

/// All records of a store or a file: how many, and one checksum over them all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Whole {
    /// How many.
    pub records: u64,
    /// crc32c over all keys and sealed values in key order, each after its length as u32.
    pub crc: u32,
}

impl Whole {
    fn add(&mut self, key: &[u8], sealed: &[u8]) {
        self.records += 1;
        for bytes in [key, sealed] {
            self.crc = wire::crc32c_append(self.crc, &(bytes.len() as u32).to_le_bytes());
            self.crc = wire::crc32c_append(self.crc, bytes);
        }
    }
}

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records with checksum {:08x}", self.records, self.crc)
    }
}

/// Reads all records of a store.
///
/// # Errors
/// The store fails; a record is damaged.
pub async fn whole(kv: &dyn MetaKv) -> Result<Whole, KvError> {
    let snapshot = kv.snapshot().await?;
    let (mut all, mut from) = (Whole::default(), Key::new());
    loop {
        let page = ready(snapshot.range(&from, &[u8::MAX; KEY_END_BYTES], PAGE_KEYS)).await?;
        for (key, sealed) in &page {
            unseal(key, sealed.clone())?;
            all.add(key, sealed);
        }
        let Some((last, _)) = page.last() else { return Ok(all) };
        from = Key::from_slice(last);
        from.push(0);
    }
}

/// What a backup is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it is for.
    pub kind: Kind,
    /// Cluster.
    pub cluster: u64,
    /// Store.
    pub uuid: u64,
    /// When it was made.
    pub made: WallTime,
    /// The last transaction in it.
    pub transno: u64,
    /// Records in it.
    pub records: u64,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.kind.magic().to_le_bytes());
        put(8, &BACKUP_VERSION.to_le_bytes());
        put(12, &FORMAT_VERSION.to_le_bytes());
        for (i, v) in [self.cluster, self.uuid, self.made.0 as u64, self.transno, self.records].into_iter().enumerate()
        {
            put(16 + 8 * i, &v.to_le_bytes());
        }
        let crc = wire::crc32c(&b[..HEADER_BYTES - 4]);
        b[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    fn from_bytes(b: &[u8; HEADER_BYTES]) -> Result<Header, BackupError> {
        let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes of the header"));
        let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes of the header"));
        let kind = Kind::of_magic(u64_at(0)).ok_or(BackupError::NotOne)?;
        if u32_at(8) > BACKUP_VERSION || u32_at(12) > FORMAT_VERSION {
            return Err(BackupError::Newer(u32_at(8), u32_at(12)));
        }
        if wire::crc32c(&b[..HEADER_BYTES - 4]) != u32_at(HEADER_BYTES - 4) {
            return Err(BackupError::Damaged(0));
        }
        Ok(Header {
            kind,
            cluster: u64_at(16),
            uuid: u64_at(24),
            made: WallTime(u64_at(32) as i64),
            transno: u64_at(40),
            records: u64_at(48),
        })
    }
}

/// Writes what `kv` holds at this moment into a new file. `told` hears how many records are written so far. A record that is
/// damaged ends it: a copy must not look whole when it is not.
///
/// # Errors
/// [`BackupError`].
pub async fn write(
    rt: &Rt,
    kv: &Rc<dyn MetaKv>,
    path: &Path,
    kind: Kind,
    told: impl Fn(u64),
) -> Result<Header, BackupError> {
    let file: Arc<dyn BlockingFile> = rt.open_on_worker(path, true).await?.into();
    let opened = file.clone();
    if rt.offload(move || opened.len()).await? != 0 {
        return Err(BackupError::Exists);
    }
    let snapshot = kv.snapshot().await?;
    let superblock = read_superblock(&*snapshot).await?;
    let counters = get(&*snapshot, keys::COUNTERS).await?.and_then(|v| wire::decode::<Counters>(&v).ok());
    let (cluster, uuid) = (superblock.cluster, superblock.uuid);
    let mut header =
        Header { kind, cluster, uuid, made: rt.wall(), transno: counters.unwrap_or_default().transno, records: 0 };
    let (mut from, to, mut at) = (Key::new(), Key::from_elem(u8::MAX, KEY_END_BYTES), HEADER_BYTES as u64);
    let mut payload = Vec::new();
    loop {
        let page = ready(snapshot.range(&from, &to, PAGE_KEYS)).await?;
        for (key, sealed) in &page {
            unseal(key, sealed.clone())?;
            let bytes = RECORD_HEAD_BYTES + key.len() + sealed.len();
            if !payload.is_empty() && payload.len() + bytes > BLOCK_BYTES {
                at = append(rt, &file, at, std::mem::take(&mut payload)).await?;
            }
            payload.extend_from_slice(&(key.len() as u16).to_le_bytes());
            payload.extend_from_slice(&(sealed.len() as u32).to_le_bytes());
            payload.extend_from_slice(key);
            payload.extend_from_slice(sealed);
        }
        header.records += page.len() as u64;
        told(header.records);
        let Some((last, _)) = page.last() else { break };
        from = Key::from_slice(last);
        from.push(0);
    }
    if !payload.is_empty() {
        at = append(rt, &file, at, payload).await?;
    }
    // An empty block is the end.
    append(rt, &file, at, Vec::new()).await?;
    let bytes = header.to_bytes();
    rt.offload(move || file.sync().and_then(|()| file.write(0, &bytes)).and_then(|()| file.sync())).await?;
    Ok(header)
}

async fn append(rt: &Rt, file: &Arc<dyn BlockingFile>, at: u64, payload: Vec<u8>) -> Result<u64, BackupError> {
    let mut block = (payload.len() as u32).to_le_bytes().to_vec();
    block.extend_from_slice(&crc_of(at, &payload).to_le_bytes());
    block.extend(payload);
    let (end, file) = (at + block.len() as u64, file.clone());
    rt.offload(move || file.write(at, &block)).await?;
    Ok(end)
}

/// Over its place, too: blocks cannot change places.
fn crc_of(at: u64, payload: &[u8]) -> u32 {
    wire::crc32c_append(wire::crc32c(&at.to_le_bytes()), payload)
}

/// Reads what a file is a backup of.
///
/// # Errors
/// [`BackupError`].
pub fn header(file: &dyn BlockingFile) -> Result<Header, BackupError> {
    if file.len()? < HEADER_BYTES as u64 {
        return Err(BackupError::NotOne);
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read(0, &mut bytes)?;
    Header::from_bytes(&bytes)
}

/// Puts a copy into an empty store; `wanted`: cluster and uuid of the store that it must be of. All of the file is
/// checked before anything is written. The superblock comes last: a store without one is none. Of an export all records are as they
/// were, which is looked at in the end.
///
/// # Errors
/// [`BackupError`]; what was written then is no store.
pub async fn restore(
    rt: &Rt,
    path: &Path,
    kv: &Rc<dyn MetaKv>,
    wanted: (u64, u64),
    kind: Kind,
) -> Result<Header, BackupError> {
    restore_above(rt, path, kv, wanted, kind, Numbers::at(rt.wall(), 0)).await.map(|(header, _)| header)
}

/// Numbers that a store has to begin above when it is put back. What was given out after the copy was made is taken, by the store that was
/// lost and by others that were made of the same copy before: no copy knows how far they came.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Boot, from which FIDs and transactions come.
    pub boot: u64,
    /// Index in the changelog.
    index: u64,
}

impl Numbers {
    /// Those at a time: a store that runs begins less often than once a minute, and writes fewer than a million records in a second. `before`: the
    /// boot with which a store was put back the last time, if that is known (0: it is not); the clock alone does not tell two of one minute
    /// apart.
    #[must_use]
    pub fn at(now: WallTime, before: u64) -> Numbers {
        let minutes = now.0.saturating_sub(BOOTS_SINCE.0).max(0) as u64 / 60_000_000_000;
        let behind = if before == 0 { 0 } else { before.saturating_add(BOOTS_BETWEEN) };
        Numbers { boot: minutes.max(behind).min(BOOTS_BY_CLOCK_MAX), index: now.0.max(0) as u64 / 1_000 }
    }
}

/// As [`restore`], with numbers above `least`; the boot that the store has then, too.
///
/// # Errors
/// As [`restore`].
pub async fn restore_above(
    rt: &Rt,
    path: &Path,
    kv: &Rc<dyn MetaKv>,
    wanted: (u64, u64),
    kind: Kind,
    least: Numbers,
) -> Result<(Header, u64), BackupError> {
    let file: Arc<dyn BlockingFile> = rt.open_blocking(path, false)?.into();
    let head = header(&*file)?;
    if head.kind != kind {
        return Err(BackupError::Other(head.kind));
    }
    if (head.cluster, head.uuid) != wanted {
        return Err(BackupError::Foreign((head.cluster, head.uuid), wanted));
    }
    if !ready(kv.snapshot().await?.range(&[], &[u8::MAX; KEY_END_BYTES], 1)).await?.is_empty() {
        return Err(BackupError::Exists);
    }
    let of_file = whole_file(rt, &file).await?;
    if of_file.records != head.records {
        return Err(BackupError::Damaged(0));
    }
    let boot = put_in(rt, &file, kv, kind, least).await?;
    if kind == Kind::Export {
        let of_store = whole(&**kv).await?;
        if of_store != of_file {
            return Err(BackupError::Differs(of_file, of_store));
        }
    }
    Ok((head, boot))
}

/// All records of a file.
async fn whole_file(rt: &Rt, file: &Arc<dyn BlockingFile>) -> Result<Whole, BackupError> {
    let mut all = Whole::default();
    each_block(rt, file, async |pairs| {
        let mut sealed = Vec::new();
        for (key, value) in pairs {
            sealed.clear();
            seal(&key, &value, &mut sealed);
            all.add(&key, &sealed);
        }
        Ok(())
    })
    .await?;
    Ok(all)
}

/// Puts the records of a file in; the boot that the store has then.
async fn put_in(
    rt: &Rt,
    file: &Arc<dyn BlockingFile>,
    kv: &Rc<dyn MetaKv>,
    kind: Kind,
    least: Numbers,
) -> Result<u64, BackupError> {
    let (mut superblock, mut batch, mut bytes) = (None, KvBatch::default(), 0);
    let mut put_back = PuttingBack::new(least);
    each_block(rt, file, async |pairs| {
        for (key, value) in pairs {
            bytes += key.len() + value.len();
            match key.first() {
                _ if key == keys::SUPERBLOCK => superblock = Some(value),
                _ if kind == Kind::Export => drop(batch.changes.insert(Key::from_vec(key), Some(value))),
                _ => {
                    if let Some(value) = put_back.record(&key, value)? {
                        batch.changes.insert(Key::from_vec(key), Some(value));
                    }
                }
            }
            if batch.changes.len() >= RECORDS_PER_COMMIT || bytes >= BYTES_PER_COMMIT {
                bytes = 0;
                kv.commit(Arc::new(std::mem::take(&mut batch))).await?;
            }
        }
        Ok(())
    })
    .await?;
    batch.changes.insert(keys::plain(keys::SUPERBLOCK), Some(superblock.ok_or(BackupError::NotOne)?));
    kv.commit(Arc::new(batch)).await?;
    Ok(put_back.boot)
}

/// Makes a store that its engine has gone back with, as a database does that was put back from its own backup, what one is that was put
/// back from a copy. Nobody else has it; where it ends early, it is done again.
///
/// # Errors
/// The store fails; a record is damaged.
pub async fn put_back_in_place(kv: &Rc<dyn MetaKv>, now: WallTime) -> Result<(), BackupError> {
    let (mut put_back, mut from) = (PuttingBack::new(Numbers::at(now, 0)), Key::new());
    loop {
        // What it reads it has not changed yet: a snapshot for each page keeps nothing of before in memory.
        let page = ready(kv.snapshot().await?.range(&from, &[u8::MAX; KEY_END_BYTES], PAGE_KEYS)).await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        from = Key::from_slice(last);
        from.push(0);
        let mut batch = KvBatch::default();
        for (key, sealed) in &page {
            let value = unseal(key, sealed.clone())?;
            let then = put_back.record(key, value.clone())?;
            if then.as_ref() != Some(&value) {
                batch.changes.insert(Key::from_slice(key), then);
            }
        }
        if !batch.changes.is_empty() {
            kv.commit(Arc::new(batch)).await?;
        }
    }
}

/// What becomes of the records of a store that is put back, in the order of their keys.
struct PuttingBack {
    least: Numbers,
    /// The boot that it has then.
    boot: u64,
    /// Those that have no name and go as after any restart: others without one stay, for the copy may have the only list of their objects.
    orphans: BTreeSet<Fid>,
    last_change: u64,
}

impl PuttingBack {
    fn new(least: Numbers) -> PuttingBack {
        PuttingBack { least, boot: 0, orphans: BTreeSet::new(), last_change: 0 }
    }
    /// A record as it is then; `None`: it goes.
    fn record(&mut self, key: &[u8], value: Vec<u8>) -> Result<Option<Vec<u8>>, BackupError> {
        Ok(match key.first() {
            // Whoever was connected then is not any more, and must not be waited for.
            Some(&(keys::SESSION | keys::REPLY)) => None,
            // Inodes come before their marks.
            Some(&keys::ORPHAN) if keys::fid_of(key).is_none_or(|fid| !self.orphans.contains(&fid)) => None,
            Some(&keys::INODE) => {
                let inode = put_back_inode(key, &value)?;
                self.orphans.extend(inode.orphan);
                Some(inode.value)
            }
            // Records of the changelog come before its row.
            _ if key == keys::CHANGELOG => Some(put_back_changelog(&value, self.last_change, self.least)?),
            _ if key == keys::BOOT => {
                self.boot = put_back_boot(&value, self.least)?;
                Some(self.boot.to_le_bytes().to_vec())
            }
            first => {
                if first == Some(&keys::CHANGE) {
                    self.last_change = keys::last_u64(key).unwrap_or(self.last_change);
                }
                Some(put_back(key, value)?)
            }
        })
    }
}

/// An inode as it is in a store that was put back.
struct PutBack {
    value: Vec<u8>,
    /// It has no name, and goes.
    orphan: Option<Fid>,
}

fn put_back_inode(key: &[u8], value: &[u8]) -> Result<PutBack, BackupError> {
    let damaged = || KvError::Corrupt { key: show_key(key), why: "it cannot be read".into() };
    let fid = keys::fid_of(key).ok_or_else(damaged)?;
    let mut inode = Inode::decode(fid, value).ok_or_else(damaged)?;
    if inode.has(InodeFlags::HAS_LAYOUT) {
        // Files were written since: the OSTs know how long they are.
        inode.set(InodeFlags::SIZE_UNKNOWN, true);
        // Its objects may be a named file's by now: a migration's new ones, or those of a file that got a name after the copy was made.
        inode.set(InodeFlags::ORPHAN | InodeFlags::LINKABLE, false);
    }
    Ok(PutBack { value: inode.encode(), orphan: inode.has(InodeFlags::ORPHAN).then_some(fid) })
}

/// The changelog as it is in a store that was put back, whose last record is `last`. Whoever followed it has seen records behind those of
/// the copy: new ones come behind all of them. What lies between counts as no records, or every user would be too far behind.
fn put_back_changelog(value: &[u8], last: u64, least: Numbers) -> Result<Vec<u8>, BackupError> {
    let damaged = || KvError::Corrupt { key: show_key(keys::CHANGELOG), why: "it cannot be read".into() };
    let mut row: ChangelogRow = wire::decode(value).map_err(|_| damaged())?;
    // The row is as old as what a user did last.
    let first = row.next.max(last.saturating_add(1));
    row.next = first.saturating_add(INDICES_SKIPPED).max(least.index);
    row.gaps.push(ChangelogGapRow { first, next: row.next });
    Ok(wire::encode(&row))
}

/// A record as it is in a store that was put back.
fn put_back(key: &[u8], value: Vec<u8>) -> Result<Vec<u8>, BackupError> {
    let damaged = || KvError::Corrupt { key: show_key(key), why: "it cannot be read".into() };
    Ok(match key.first() {
        Some(&keys::PRECREATE) => {
            let row: PrecreateRow = wire::decode(&value).map_err(|_| damaged())?;
            wire::encode(&PrecreateRow { newer: true, ..row })
        }
        _ if key == keys::CLUSTER_MAP => {
            let map: ClusterMap = wire::decode(&value).map_err(|_| damaged())?;
            // OSTs that go on all the time do not register anew.
            wire::encode(&ClusterMap { openings: Vec::new(), ..map })
        }
        _ => value,
    })
}

/// The boot of a store that was put back.
fn put_back_boot(value: &[u8], least: Numbers) -> Result<u64, BackupError> {
    let damaged = |_| KvError::Corrupt { key: show_key(keys::BOOT), why: "it cannot be read".into() };
    let boot = u64::from_le_bytes(value.try_into().map_err(damaged)?);
    Ok(boot.saturating_add(BOOTS_SKIPPED).max(least.boot))
}

/// Calls `f` with the records of each block, unsealed.
async fn each_block(
    rt: &Rt,
    file: &Arc<dyn BlockingFile>,
    mut f: impl AsyncFnMut(Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    let (mut at, end) = (HEADER_BYTES as u64, file.len()?);
    loop {
        let shared = file.clone();
        let block = rt.offload(move || read_block(&*shared, at, end)).await?;
        if block.is_empty() {
            return if at + BLOCK_HEAD_BYTES as u64 == end { Ok(()) } else { Err(BackupError::Damaged(at)) };
        }
        let pairs = parse(&block).ok_or(BackupError::Damaged(at))?;
        let mut open = Vec::with_capacity(pairs.len());
        for (key, sealed) in pairs {
            let value = unseal(&key, sealed)?;
            open.push((key, value));
        }
        f(open).await?;
        at += (BLOCK_HEAD_BYTES + block.len()) as u64;
    }
}

fn read_block(file: &dyn BlockingFile, at: u64, end: u64) -> Result<Vec<u8>, BackupError> {
    let left = end.saturating_sub(at) as usize;
    if left < BLOCK_HEAD_BYTES {
        return Err(BackupError::Damaged(at));
    }
    let mut head = [0; BLOCK_HEAD_BYTES];
    file.read(at, &mut head)?;
    let word = |i: usize| u32::from_le_bytes(head[i..i + 4].try_into().expect("four bytes of the block's head"));
    let len = word(0) as usize;
    if len > BLOCK_BYTES_MAX.min(left - BLOCK_HEAD_BYTES) {
        return Err(BackupError::Damaged(at));
    }
    let mut payload = vec![0; len];
    file.read(at + BLOCK_HEAD_BYTES as u64, &mut payload)?;
    if crc_of(at, &payload) == word(4) { Ok(payload) } else { Err(BackupError::Damaged(at)) }
}

fn parse(mut block: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut pairs = Vec::new();
    while !block.is_empty() {
        let (head, rest) = block.split_at_checked(RECORD_HEAD_BYTES)?;
        let key_len = usize::from(u16::from_le_bytes(head[..2].try_into().ok()?));
        let value_len = u32::from_le_bytes(head[2..].try_into().ok()?) as usize;
        let (key, rest) = rest.split_at_checked(key_len)?;
        let (value, rest) = rest.split_at_checked(value_len)?;
        pairs.push((key.to_vec(), value.to_vec()));
        block = rest;
    }
    Some(pairs)
}
