//! The embedded engine of the metadata server: redb, over files of the world.
//!
//! One table holds all keys. Reads are answered at once from redb's page cache (or the file, blocking the shard for one
//! read); commits run on a worker. redb writes copy-on-write and syncs before it moves its root, so a commit is there
//! whole or not at all. What keys and values mean is the MDS's business; values carry its checksums.
//! Also here: the directory a store lives in, with its lock, and `mkfs` into it.
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use mds::kv::{Answer, KvBatch, KvError, KvLimits, KvSnapshot, MetaKv, Pairs, show_key};
use redb::{
    Database, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend, TableDefinition,
};
use rt::{BlockingFile, DiskFile, LocalFuture, Room, RoomyFile, Rt};
use types::scrub::Looked;

mod dir;
mod image;

pub use dbcheck::CHECK_BYTES_DEFAULT;
pub use dbcheck::{Mended, Salvaged};
pub use dir::{OpenError, STORE_FILE, is_unmade, mkfs, open, open_at, open_checked, open_empty};
pub use image::{Image, Rebuilt, examine, mend_database, salvage};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("mdt");

/// Page cache of an engine when nothing else is said: 64 MiB.
pub const CACHE_BYTES_DEFAULT: usize = 64 << 20;

/// Space that is kept for commits when others fill the file system: 16 MiB, less on small ones ([`rt::RoomyFile`]).
const RESERVE_BYTES: u64 = 16 << 20;

struct Backend(RoomyFile);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// A redb database as a metadata store.
pub struct RedbKv {
    rt: Rt,
    /// The lock goes after the database, and neither before a commit that is still under way on a worker.
    db: Arc<(dbcheck::Open, Option<rt::DirLock>)>,
    latched: Rc<RefCell<Option<String>>>,
    space: Option<Rc<dyn DiskFile>>,
    room: Room,
    /// Where the database is, when that is a file of its own.
    path: Option<PathBuf>,
    /// How far the comparison of its pages is.
    pages: Rc<RefCell<Option<dbcheck::PageCheck>>>,
    /// Whether the medium has changed what was written.
    sums: dbcheck::PageSums,
}

impl Drop for RedbKv {
    fn drop(&mut self) {
        self.room.give_up();
    }
}

impl RedbKv {
    /// Opens the database in `file`, making an empty one when the file is empty. `cache_bytes`: redb's page cache.
    ///
    /// # Errors
    /// `Io` and `Corrupt` as redb finds the file.
    pub fn on(rt: Rt, file: Box<dyn BlockingFile>, cache_bytes: usize) -> Result<Rc<RedbKv>, KvError> {
        let file = dbcheck::Watched::new(file, dbcheck::PageSums::default());
        RedbKv::build(rt, file, cache_bytes, None, None, true).map(Rc::new)
    }

    /// `waits`: writes wait for space on a full medium; without anybody who serves they fail.
    fn build(
        rt: Rt,
        file: dbcheck::Watched,
        cache_bytes: usize,
        space: Option<Rc<dyn DiskFile>>,
        lock: Option<rt::DirLock>,
        waits: bool,
    ) -> Result<RedbKv, KvError> {
        // The database checks what is there and falls back to the commit before: by what the medium has, not by what
        // memory has.
        file.forget_cached().map_err(|e| broken(&e))?;
        let sums = file.sums();
        let file = RoomyFile::new(Box::new(file), RESERVE_BYTES).map_err(|e| broken(&e))?;
        let room = file.room();
        if !waits {
            room.give_up();
        }
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let db = guarded(
            || "of every record".into(),
            || builder.create_with_backend(Backend(file)).map_err(|e| broken(&e)),
        )?;
        let db = dbcheck::Open::new(db);
        // Readers need the table to exist.
        guarded(
            || "of every record".into(),
            || {
                if db.begin_read().map_err(|e| broken(&e))?.open_table(TABLE).is_err() {
                    let write = db.begin_write().map_err(|e| broken(&e))?;
                    write.open_table(TABLE).map_err(|e| broken(&e))?;
                    write.commit().map_err(|e| broken(&e))?;
                }
                Ok(())
            },
        )?;
        let (latched, pages) = (Rc::default(), Rc::default());
        Ok(RedbKv { rt, db: Arc::new((db, lock)), latched, space, room, path: None, pages, sums })
    }
}

impl RedbKv {
    /// As [`MetaKv::reusable`], for who serves nobody yet.
    fn reusable_now(&self) -> Result<u64, KvError> {
        Ok(not_used(self.space.as_deref(), &self.room, used_bytes(&self.db.0)?))
    }
    /// No write waits for space any more: on a full medium it fails.
    pub fn give_up(&self) {
        self.room.give_up();
    }
}

fn broken(e: &dyn fmt::Display) -> KvError {
    let text = e.to_string();
    if text.contains("os error 28") { KvError::NoSpace } else { KvError::Io(text) }
}

/// Works on the database; the engine's panic at a damaged page is an error.
fn guarded<T>(place: impl FnOnce() -> String, work: impl FnOnce() -> Result<T, KvError>) -> Result<T, KvError> {
    let damaged =
        |why| KvError::Corrupt { key: place(), why: format!("a page of {STORE_FILE} is not what was written: {why}") };
    dbcheck::guarded(work).unwrap_or_else(|why| Err(damaged(why)))
}

fn commit(db: &Database, batch: &KvBatch) -> Result<(), KvError> {
    let write = db.begin_write().map_err(|e| broken(&e))?;
    {
        let mut table = write.open_table(TABLE).map_err(|e| broken(&e))?;
        batch.check_expectations(|k| Ok(table.get(k).map_err(|e| broken(&e))?.map(|v| v.value().to_vec())))?;
        batch.each_sealed(|k, v| {
            match v {
                Some(v) => table.insert(k, v).map(|_| ()),
                None => table.remove(k).map(|_| ()),
            }
            .map_err(|e| broken(&e))
        })?;
    }
    write.commit().map_err(|e| broken(&e))
}

fn snapshot_of(db: &Database) -> Result<Rc<dyn KvSnapshot>, KvError> {
    guarded(
        || "of every record".into(),
        || {
            let table = db.begin_read().map_err(|e| broken(&e))?.open_table(TABLE).map_err(|e| broken(&e))?;
            Ok(Rc::new(Snapshot { table }) as Rc<dyn KvSnapshot>)
        },
    )
}

impl MetaKv for RedbKv {
    fn limits(&self) -> KvLimits {
        // redb keeps a batch's dirty pages in memory: the bound is what a server should spend on one.
        KvLimits {
            batch_ops_max: 4 << 20,
            batch_bytes_max: 1 << 30,
            key_bytes_max: 4096,
            value_bytes_max: 1 << 20,
            snapshot_isolation: true,
        }
    }
    fn snapshot(&self) -> LocalFuture<Result<Rc<dyn KvSnapshot>, KvError>> {
        let snapshot = snapshot_of(&self.db.0);
        Box::pin(async move { snapshot })
    }
    fn commit(&self, batch: Arc<KvBatch>) -> LocalFuture<Result<(), KvError>> {
        let (rt, db, latched, sums) = (self.rt.clone(), self.db.clone(), self.latched.clone(), self.sums.clone());
        Box::pin(async move {
            if let Some(e) = &*latched.borrow() {
                return Err(KvError::Latched(e.clone()));
            }
            let result = rt.offload(move || guarded(|| "of a commit".into(), || commit(&db.0, &batch))).await;
            // After a page that is not what was written the engine fails whatever comes, and says so of the first only.
            let result = result.map_err(|e| match e {
                KvError::Io(why) if sums.found_damage() => KvError::Corrupt { key: "of a commit".into(), why },
                e => e,
            });
            if let Err(e) = &result
                && !matches!(e, KvError::Conflict { .. })
            {
                *latched.borrow_mut() = Some(e.to_string());
            }
            result
        })
    }
    fn look_at_pages(&self, bytes: u64) -> LocalFuture<Result<Looked, KvError>> {
        let before = self.pages.take();
        let Some(path) = self.path.clone().filter(|_| bytes > 0) else {
            return Box::pin(std::future::ready(Ok(Looked::nothing())));
        };
        let (rt, db, pages) = (self.rt.clone(), self.db.clone(), self.pages.clone());
        Box::pin(async move {
            let mut check = match before {
                Some(check) => check,
                None => dbcheck::PageCheck::new(rt.open_blocking(&path, false).map_err(|e| broken(&e))?),
            };
            let (looked, check) = rt.offload(move || (check.look(&db.0, bytes), check)).await;
            *pages.borrow_mut() = Some(check);
            looked.map_err(|e| broken(&e))
        })
    }
    fn space(&self) -> (u64, u64) {
        let space = self.space.as_ref().and_then(|f| f.space().ok());
        space.map_or((0, 0), |(free, total)| (total, free))
    }
    fn reusable(&self) -> LocalFuture<Result<u64, KvError>> {
        let (rt, db, space, room) = (self.rt.clone(), self.db.clone(), self.space.clone(), self.room.clone());
        Box::pin(async move {
            let used = rt.offload(move || used_bytes(&db.0)).await?;
            Ok(not_used(space.as_deref(), &room, used))
        })
    }
    fn room(&self) -> Option<Room> {
        Some(self.room.clone())
    }
}

/// Bytes of all pages that hold records.
fn used_bytes(db: &Database) -> Result<u64, KvError> {
    let look = || {
        let table = db.begin_read().map_err(|e| broken(&e))?.open_table(TABLE).map_err(|e| broken(&e))?;
        let stats = table.stats().map_err(|e| broken(&e))?;
        Ok(stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes())
    };
    guarded(|| "of every record".into(), look)
}

/// Bytes that a database's file has on its medium beside so many used ones and its reserve.
fn not_used(space: Option<&dyn DiskFile>, room: &Room, used: u64) -> u64 {
    let allocated = space.and_then(|f| f.allocated().ok()).unwrap_or(0);
    allocated.saturating_sub(room.left()).saturating_sub(used)
}

struct Snapshot {
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl Snapshot {
    fn pairs(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Pairs, KvError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let mut pairs = Vec::new();
        for pair in self.table.range::<&[u8]>(from..to).map_err(|e| broken(&e))?.take(limit) {
            let (k, v) = pair.map_err(|e| broken(&e))?;
            pairs.push((k.value().to_vec(), v.value().to_vec()));
        }
        Ok(pairs)
    }
}

impl KvSnapshot for Snapshot {
    fn get(&self, key: &[u8]) -> Answer<Option<Vec<u8>>> {
        let get = || self.table.get(key).map(|v| v.map(|v| v.value().to_vec())).map_err(|e| broken(&e));
        Answer::Now(guarded(|| show_key(key), get))
    }
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Answer<Pairs> {
        Answer::Now(guarded(|| show_key(from), || self.pairs(from, to, limit)))
    }
}
