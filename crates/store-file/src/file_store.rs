//! An open file store: reads, writes, what is loaded when, and how the data file grows.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use dbcheck::{PageSums, Watched, Whole};
use frames::Bulk;
use oss::store::{
    Applied, BLOCK_BYTES, BadBlock, BlockRange, BlockRun, Blocks, DiskOp, DiskRun, DiskStats, SizeRule, StoreResult,
    Update,
};
use rt::sync::{Event, Semaphore, join_all};
use rt::{DirLock, DiskFile, OpenMode, Room, RoomyFile, Rt};
use types::scrub::Looked;
use types::{Duration, FsError, ObjectId};
use wire::connect::Opening;
use wire::crc32c;

use crate::config::FileStoreConfig;
use crate::db::{Db, DbError, Start, guarded};
use crate::error::OpenError;
use crate::format::Superblock;
use crate::map::{CHUNK_BLOCKS, Object, Piece};
use crate::space::{Run, SpaceMap};
use crate::state::{Outcome, Placed, Placement, State};

/// Objects up to this many blocks are loaded whole.
const WHOLE_BLOCKS: u64 = CHUNK_BLOCKS;
/// Of a wider range that is not at its object's end, everything behind its beginning is loaded: each chunk that holds nothing
/// would be noted by itself.
const CHUNKS_APART_MAX: u64 = 1024;
/// How long a read waits for memory.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(5);
/// Chunks that a seek looks at together.
const SEEK_CHUNKS: u64 = 8;

/// An object and its map are being brought into memory until it goes.
struct Loading<'a> {
    load: u64,
    store: &'a Inner,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.store.state.borrow_mut().load_ends(self.load);
    }
}

/// Takes the first half of an update's data out, to be written before the rest; `None` when it is one block. What else the
/// update does happens with the rest.
fn first_half(update: &mut Update) -> Option<Update> {
    let blocks: u64 = update.puts.iter().map(|p| p.range().count).sum();
    let (mut left, mut puts) = (blocks / 2, Vec::new());
    while left > 0 {
        let take = left.min(update.puts[0].range().count);
        let put = if take == update.puts[0].range().count {
            update.puts.remove(0)
        } else {
            let put = &mut update.puts[0];
            let (at, len) = (take as usize * BLOCK_BYTES as usize, put.bulk.len());
            let rest = put.crcs.split_off(take as usize);
            let tail = BlockRun { first: put.first + take, bulk: put.bulk.slice(at, len - at), crcs: rest };
            let head = BlockRun { first: put.first, bulk: put.bulk.slice(0, at), crcs: std::mem::take(&mut put.crcs) };
            *put = tail;
            head
        };
        left -= take;
        puts.push(put);
    }
    (!puts.is_empty()).then(|| Update { puts, replay: update.replay, ..Update::default() })
}

/// Blocks stay as they are until it goes.
struct Reading<'a> {
    epoch: u64,
    store: &'a Inner,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.store.state.borrow_mut().read_ends(self.epoch);
        self.store.freed.notify();
    }
}

/// Bytes of the database that one changed record may take until its commit is over: a leaf and its share of the pages
/// above it are written anew, and the old ones are free only a commit later.
const RECORD_BYTES: u64 = 3 * 4096;

/// Bytes of the database that an update may need.
fn need_of(update: &Update) -> u64 {
    let runs = update.puts.len() + update.reserves.len() + update.drops.len();
    let blocks = wanted_blocks(update);
    let answers = u64::from(update.answers.is_some()) + u64::from(update.keeps_promise);
    (runs as u64 + blocks / crate::format::EXTENT_BLOCKS_MAX + 2 + answers) * RECORD_BYTES + 8 * blocks
}

/// What an update that was let in may take of the database's room.
#[derive(Default)]
struct Admitted {
    /// Bytes.
    need: u64,
    /// The commit that takes them.
    commit: u64,
}

/// Blocks of the data of an update.
fn put_blocks(update: &Update) -> u64 {
    update.puts.iter().map(|p| p.range().count).sum()
}

/// Blocks that an update may need.
fn wanted_blocks(update: &Update) -> u64 {
    put_blocks(update) + update.reserves.iter().map(|r| r.count).sum::<u64>()
}

/// An object store in a directory. Dropping it without [`oss::store::ObjectStore::close`] is a crash: what was
/// committed stays.
pub struct FileStore(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub rt: Rt,
    pub dir: PathBuf,
    pub config: FileStoreConfig,
    pub superblock: Superblock,
    pub boot: u64,
    pub openings: Vec<Opening>,
    /// That of the present one is on stable storage.
    pub mark_is_kept: Cell<bool>,
    /// Objects up to this one that do not exist may be lost.
    pub lost_through: Cell<u32>,
    pub data: Rc<dyn DiskFile>,
    pub db: Db,
    /// The database's space.
    pub room: Room,
    /// Bytes that changes may need of it: of those not taken for a commit yet, of the batch being committed.
    pub need: Cell<u64>,
    pub need_of_batch: Cell<u64>,
    /// The commit under way waits for space for the database.
    pub stalled: Cell<bool>,
    pub state: RefCell<State>,
    pub failure: Cell<Option<FsError>>,
    /// The same in words.
    pub failure_text: RefCell<Option<String>>,
    pub zeros: oss::store::ZeroPages,
    /// Something changed: the commit task has work.
    pub dirty: Event,
    /// Somebody waits for the commit.
    pub kick: Event,
    pub kicked: Cell<bool>,
    /// A commit ended, or the store failed.
    pub done: Event,
    pub closing: Cell<bool>,
    pub stopped: Cell<bool>,
    /// Blocks of the data file.
    pub grown: Cell<u64>,
    /// Bytes that the file could still grow by, as last seen.
    pub growable: Cell<u64>,
    /// Bytes beyond which its file system does not let the data file grow, once it has said so.
    pub longest: Cell<u64>,
    /// Blocks that are promised to writes to come.
    pub promised: Cell<u64>,
    pub growing: Semaphore,
    /// Space is not given back: the file system cannot, or would not.
    /// What is known of the database's pages.
    pub sums: PageSums,
    pub no_trim: Cell<bool>,
    /// Blocks came free, or something that held some ended.
    pub freed: Event,
    pub disk: DiskStats,
    pub fence: crate::fence::Fence,
    /// Which commit was whole, and whether that outlives a loss of power.
    pub whole: Option<Whole>,
    pub whole_is_settled: Cell<bool>,
    /// How far the comparison of the database's pages is.
    pages: RefCell<Option<dbcheck::PageCheck>>,
    _lock: Option<DirLock>,
}

impl FileStore {
    /// Opens the store in `dir`, made by [`crate::mkfs`]. `cluster`: refuse any other. `lock`: from
    /// [`crate::lock_dir`], wherever another process could have it open.
    ///
    /// # Errors
    /// [`OpenError`] with the remedy.
    pub async fn open(
        rt: Rt,
        dir: &Path,
        cluster: Option<u64>,
        config: FileStoreConfig,
        lock: Option<DirLock>,
    ) -> Result<FileStore, OpenError> {
        let data = open_data(&rt, dir, &config)?;
        let block0 = read_block0(&rt, &data).await.map_err(|e| OpenError::Io(dir.join("data"), e))?;
        let superblock = crate::mkfs::check_superblock(dir, &block0, cluster)?;
        let sums = PageSums::default();
        let whole = Whole::beside(&rt, &dir.join("meta.redb"));
        let (db, room, start) = load_start(&rt, dir, superblock, &config, (sums.clone(), whole.clone())).await?;
        let blocks = data.len().map_err(|e| OpenError::Io(dir.join("data"), e))? / BLOCK_BYTES;
        let space = space_of(dir, blocks, &start.used)?;
        let state = State::new(&start, space);
        let fence = crate::fence::Fence::take(&rt, dir, &start.superblock, start.boot).await;
        let inner = Rc::new(Inner {
            zeros: oss::store::ZeroPages::new(rt.frames()),
            rt,
            dir: dir.into(),
            config,
            superblock: start.superblock,
            boot: start.boot,
            openings: start.openings,
            mark_is_kept: Cell::new(false),
            lost_through: Cell::new(start.lost_through),
            data,
            db,
            room,
            need: Cell::new(0),
            need_of_batch: Cell::new(0),
            stalled: Cell::new(false),
            state: RefCell::new(state),
            failure: Cell::new(None),
            failure_text: RefCell::new(None),
            dirty: Event::new(),
            kick: Event::new(),
            kicked: Cell::new(false),
            done: Event::new(),
            closing: Cell::new(false),
            stopped: Cell::new(false),
            grown: Cell::new(blocks),
            growable: Cell::new(0),
            longest: Cell::new(u64::MAX),
            promised: Cell::new(0),
            growing: Semaphore::new(1),
            sums,
            no_trim: Cell::new(false),
            freed: Event::new(),
            disk: DiskStats::default(),
            fence,
            pages: RefCell::default(),
            whole,
            whole_is_settled: Cell::new(false),
            _lock: lock,
        });
        inner.begin_space().await.map_err(|e| OpenError::Io(dir.join("data"), e))?;
        inner.grow_ahead();
        let task = inner.clone();
        inner.rt.spawn(async move { task.commit_task().await });
        Ok(FileStore(inner))
    }
}

/// What a store keeps in memory of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InMemory {
    /// Objects.
    pub objects: usize,
    /// Block checksums, and eight for each part of a map.
    pub blocks: usize,
    /// How often a limit was reached.
    pub shrinks: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.room.give_up();
    }
}

impl FileStore {
    /// What it keeps in memory now.
    #[must_use]
    pub fn in_memory(&self) -> InMemory {
        let state = self.0.state.borrow();
        let (objects, blocks) = state.held();
        InMemory { objects, blocks, shrinks: state.shrinks }
    }

    /// Ends it as a crash would: nothing more is committed, everything fails.
    pub fn abandon(&self) {
        self.0.latch("abandoned: the store", &"its owner gave it up");
    }
}

fn open_data(rt: &Rt, dir: &Path, config: &FileStoreConfig) -> Result<Rc<dyn DiskFile>, OpenError> {
    let path = dir.join("data");
    let open = |direct| rt.open(&path, OpenMode { create: false, direct });
    let opened = match open(config.direct) {
        // Not every file system can do direct I/O.
        Err(e) if config.direct && e.kind() == std::io::ErrorKind::InvalidInput => open(false),
        other => other,
    };
    opened.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => OpenError::Missing(dir.into()),
        _ => OpenError::Io(path, e),
    })
}

pub(crate) async fn read_block0(rt: &Rt, data: &Rc<dyn DiskFile>) -> std::io::Result<Vec<u8>> {
    let bulk = rt.bulk(BLOCK_BYTES as usize).await;
    let (read, bulk) = data.read_at(0, bulk).await;
    let mut bytes = bulk.to_vec();
    bytes.truncate(read?);
    Ok(bytes)
}

async fn load_start(
    rt: &Rt,
    dir: &Path,
    superblock: Superblock,
    config: &FileStoreConfig,
    (sums, beside): (PageSums, Option<Whole>),
) -> Result<(Db, Room, Start), OpenError> {
    let path = dir.join("meta.redb");
    // The database checks what is there and falls back to the commit before: by what the medium has, not by what memory has.
    let (bytes_max, cache) = (config.check_bytes_max, config.db_cache_bytes);
    if bytes_max > 0 {
        let file = rt.open_blocking(&path, false);
        let checked = match file {
            Ok(file) => {
                let (sums, whole) = (sums.clone(), Whole::known(rt, &path));
                rt.offload(move || dbcheck::fault_before_opening(file, bytes_max, cache, &sums, whole.as_ref())).await
            }
            Err(e) => Err(e),
        };
        if let Some(fault) = checked.map_err(|e| OpenError::Io(path.clone(), e))? {
            return Err(OpenError::Corrupt(dir.into(), format!("meta.redb: {fault}")));
        }
    }
    let file = rt.open_blocking(&path, false).and_then(|f| f.forget_cached().map(|()| f));
    let file = file.map(|f| Box::new(Watched::new(f, sums).with(beside)));
    let file = file.and_then(|f| RoomyFile::new(f, crate::backend::RESERVE_BYTES));
    let file = file.map_err(|e| OpenError::Io(path.clone(), e))?;
    let room = file.room();
    let (cache_bytes, mark) = (config.db_cache_bytes, rt.random().max(1));
    let started = rt
        .offload(move || -> Result<Option<(Db, Start)>, DbError> {
            guarded(|| {
                let mut builder = redb::Database::builder();
                builder.set_cache_size(cache_bytes);
                let db = Db::new(builder.create_with_backend(crate::backend::FileBackend(file))?);
                if db.superblock()?.as_ref() != Some(&superblock) {
                    return Ok(None);
                }
                let start = db.start(superblock, mark)?;
                Ok(Some((db, start)))
            })
        })
        .await;
    let started = started.map_err(|e| match e {
        DbError::Engine(e) => OpenError::Io(path, std::io::Error::other(e)),
        e @ (DbError::Record(..) | DbError::Page(_)) => OpenError::Corrupt(dir.into(), e.to_string()),
    })?;
    let mixed = "data and meta.redb are not of the same store";
    let (db, start) = started.ok_or_else(|| OpenError::Corrupt(dir.into(), mixed.into()))?;
    Ok((db, room, start))
}

/// The free blocks, from the space that extents use.
fn space_of(dir: &Path, blocks: u64, used: &[Run]) -> Result<SpaceMap, OpenError> {
    let mut space = SpaceMap::default();
    if blocks > 1 {
        space.free(Run { start: 1, blocks: blocks - 1 });
    }
    for run in used {
        if !space.claim(*run) {
            let what = format!("blocks {}..{} are used twice or lie behind the end", run.start, run.start + run.blocks);
            return Err(OpenError::Corrupt(dir.into(), what));
        }
    }
    Ok(space)
}

impl Inner {
    pub fn check(&self) -> StoreResult<()> {
        if self.stopped.get() {
            return Err(FsError::Io);
        }
        self.failure.get().map_or(Ok(()), Err)
    }

    /// The store can no longer keep its promises: everything fails until it is opened again.
    pub fn latch(&self, what: &str, error: &dyn std::fmt::Display) -> FsError {
        let failure = if let Some(f) = self.failure.get() {
            f
        } else {
            tracing::error!(store = %self.dir.display(), "{what} failed: {error}; the store takes nothing any more");
            self.failure.set(Some(FsError::Io));
            *self.failure_text.borrow_mut() = Some(format!("{what} failed: {error}"));
            FsError::Io
        };
        self.done.notify();
        self.kick.notify();
        self.dirty.notify();
        self.freed.notify();
        failure
    }

    pub fn db_failed(&self, e: DbError) -> FsError {
        match e {
            DbError::Record(..) | DbError::Page(_) => {
                tracing::error!(store = %self.dir.display(), "{e}");
                FsError::Corrupt
            }
            DbError::Engine(_) => self.latch("reading the database", &e),
        }
    }

    /// Why there is no such object: it was in the store that this one replaces, or nowhere.
    pub fn no_object(&self, id: ObjectId) -> FsError {
        let ours = id.0.seq == ObjectId::seq_of(self.superblock.identity.ost);
        if ours && id.0.oid <= self.lost_through.get() { FsError::Io } else { FsError::NotFound }
    }

    /// Brings an object and the map of `ranges` into memory. When this answers, both are there until the caller waits.
    pub async fn load(&self, id: ObjectId, ranges: &[BlockRange]) -> StoreResult<()> {
        if self.is_loaded(id, ranges)? {
            return Ok(());
        }
        let loading = Loading { load: self.state.borrow_mut().load_begins(id, ranges), store: self };
        while !self.is_loaded(id, ranges)? {
            let missing = {
                let state = self.state.borrow();
                let object = state.objects.get(&id);
                object.map(|o| ranges.iter().find(|r| !o.has(**r)).map_or(0..0, |r| o.missing(*r)))
            };
            match missing {
                None => self.load_object(&loading, id).await?,
                Some(chunks) => self.load_map(&loading, id, chunks).await?,
            }
            // What this load brings stays: it still counts as one.
            let (objects_max, mapped_max) = (self.config.objects_max, self.config.mapped_blocks_max);
            self.state.borrow_mut().shrink_loaded(objects_max, mapped_max);
        }
        Ok(())
    }

    fn is_loaded(&self, id: ObjectId, ranges: &[BlockRange]) -> StoreResult<bool> {
        self.check()?;
        let state = self.state.borrow();
        if state.tombs.contains_key(&id) {
            return Err(FsError::NotFound);
        }
        Ok(state.objects.get(&id).is_some_and(|o| ranges.iter().all(|r| o.has(*r))))
    }

    /// Reads records: on a worker thread, unless they lie in memory and a worker would only cost its waking.
    async fn look_up<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, DbError> + Send + 'static,
    ) -> StoreResult<T> {
        let job = || guarded(job);
        let found = if self.data.is_in_memory() { job() } else { self.rt.offload(job).await };
        found.map_err(|e| self.db_failed(e))
    }

    async fn load_object(&self, loading: &Loading<'_>, id: ObjectId) -> StoreResult<()> {
        let db = self.db.clone();
        let read = move || {
            let Some(attr) = db.object(id)? else { return Ok(None) };
            let rows = if attr.blocks <= WHOLE_BLOCKS { Some(db.extents(id, 0, u64::MAX)?) } else { None };
            Ok(Some((attr, rows)))
        };
        let found = self.look_up(read).await?;
        let mut state = self.state.borrow_mut();
        match found {
            Some((attr, rows)) => state.loaded(loading.load, id, attr, rows),
            // Somebody may have made it meanwhile.
            None if state.objects.contains_key(&id) => {}
            None => return Err(self.no_object(id)),
        }
        Ok(())
    }

    /// Loads `chunks`, or so many of them as the object has: what a caller wants may be anything up to the end of all objects.
    async fn load_map(&self, loading: &Loading<'_>, id: ObjectId, chunks: Range<u64>) -> StoreResult<()> {
        let wide = chunks.end - chunks.start > CHUNKS_APART_MAX;
        let chunks = if wide { chunks.start..u64::MAX } else { chunks };
        let (from, to) = (chunks.start * CHUNK_BLOCKS, chunks.end.saturating_mul(CHUNK_BLOCKS));
        if wide {
            self.state.borrow_mut().load_widens(loading.load, from);
        }
        let db = self.db.clone();
        let rows = self.look_up(move || db.extents(id, from, to)).await?;
        self.state.borrow_mut().loaded_map(loading.load, id, chunks, rows);
        Ok(())
    }

    /// First block from `from` on that is data, or is not. Looks at a few chunks at a time.
    pub async fn seek(&self, id: ObjectId, from: u64, data: bool) -> StoreResult<Option<u64>> {
        let mut at = from;
        loop {
            let end = (at / CHUNK_BLOCKS + SEEK_CHUNKS) * CHUNK_BLOCKS;
            let step = BlockRange::new(at, end);
            self.load(id, &[step]).await?;
            let (here, whole) = {
                let state = self.state.borrow();
                let object = state.objects.get(&id).ok_or(FsError::NotFound)?;
                if let Some(found) = object.seek(step, data) {
                    return Ok(Some(found));
                }
                (object.next_here(end / CHUNK_BLOCKS), object.is_complete_from(end / CHUNK_BLOCKS))
            };
            // What was there all the time is in memory now, or in the database.
            let there = if whole || !data {
                None
            } else {
                let db = self.db.clone();
                self.look_up(move || db.next_extent(id, end)).await?
            };
            at = match [here, there].into_iter().flatten().min() {
                _ if !data => end,
                Some(next) => next.max(end),
                None => return Ok(None),
            };
        }
    }

    /// Reads blocks and compares them with their checksums. `bad` is told of each that does not match.
    async fn read_checked(&self, id: ObjectId, range: BlockRange, bad: &mut Vec<BadBlock>) -> StoreResult<Blocks> {
        // Memory first: a read that waited for it while it holds blocks could wait for writes that wait for blocks.
        let mut memory: Vec<Bulk> = Vec::new();
        loop {
            self.load(id, &[range]).await?;
            let pieces = {
                let state = self.state.borrow();
                state.objects.get(&id).ok_or(FsError::NotFound)?.pieces(range)
            };
            let wanted: Vec<usize> = pieces.iter().filter_map(Piece::data_bytes).collect();
            if wanted.iter().eq(memory.iter().map(Bulk::len).collect::<Vec<_>>().iter()) {
                let reading = Reading { epoch: self.state.borrow_mut().read_begins(), store: self };
                let outcome = self.read_pieces(id, range.first, pieces, memory, bad).await;
                drop(reading);
                return outcome;
            }
            memory.clear();
            for bytes in wanted {
                // Others may hold some and wait for more as well: nobody does so without end.
                let more = self.rt.timeout(MEMORY_WAIT_MAX, self.rt.bulk(bytes)).await;
                memory.push(more.ok_or(FsError::NoMemory)?);
            }
        }
    }

    async fn read_pieces(
        &self,
        id: ObjectId,
        mut block: u64,
        pieces: Vec<Piece>,
        memory: Vec<Bulk>,
        bad: &mut Vec<BadBlock>,
    ) -> StoreResult<Blocks> {
        let mut out = Blocks::default();
        let runs = pieces.iter().filter_map(|p| match p {
            Piece::Data { phys, crcs } => Some(DiskRun { start: *phys, blocks: crcs.len() as u64 }),
            Piece::Zeros(_) => None,
        });
        self.disk.call(DiskOp::Read, runs);
        let places = pieces.iter().filter_map(|p| match p {
            Piece::Data { phys, .. } => Some(*phys),
            Piece::Zeros(_) => None,
        });
        let mut reads: Vec<_> = places.zip(memory).map(|(phys, bulk)| self.read_run(phys, bulk)).collect();
        let read = if reads.len() == 1 { vec![reads.swap_remove(0).await] } else { join_all(reads).await };
        let mut read = read.into_iter();
        for piece in pieces {
            match piece {
                Piece::Zeros(n) => {
                    self.zeros.push(&mut out.bulk, n);
                    out.crcs.resize(out.crcs.len() + n as usize, oss::store::crc_of_zeros());
                    block += n;
                }
                Piece::Data { crcs, .. } => {
                    let bulk = read.next().expect("one read for each piece of data")?;
                    for (page, want) in bulk.slices().flat_map(|s| s.chunks_exact(BLOCK_BYTES as usize)).zip(&crcs) {
                        if crc32c(page) != *want {
                            tracing::error!(store = %self.dir.display(), object = %id, offset = block * BLOCK_BYTES,
                                "stored bytes do not match their checksum");
                            bad.push(BadBlock { object: id, block });
                        }
                        block += 1;
                    }
                    out.bulk.append(bulk);
                    out.crcs.extend(crcs);
                }
            }
        }
        Ok(out)
    }

    async fn read_run(&self, phys: u64, bulk: Bulk) -> StoreResult<Bulk> {
        let blocks = bulk.len() as u64 / BLOCK_BYTES;
        let transfer = self.disk.begin(DiskOp::Read, blocks, self.rt.now());
        let (read, bulk) = self.data.read_at(phys * BLOCK_BYTES, bulk).await;
        transfer.done(self.rt.now());
        match read {
            Ok(n) if n == bulk.len() => Ok(bulk),
            Ok(n) => {
                tracing::error!(store = %self.dir.display(), phys, n, "the data file is shorter than its extents");
                Err(FsError::Io)
            }
            Err(e) => {
                tracing::error!(store = %self.dir.display(), phys, "read failed: {e}");
                Err(FsError::Io)
            }
        }
    }

    pub async fn read(&self, id: ObjectId, range: BlockRange) -> StoreResult<Blocks> {
        let mut bad = Vec::new();
        let blocks = self.read_checked(id, range, &mut bad).await?;
        if bad.is_empty() { Ok(blocks) } else { Err(FsError::Corrupt) }
    }

    pub async fn verify(&self, id: ObjectId) -> StoreResult<Vec<BadBlock>> {
        let (mut bad, mut at) = (Vec::new(), 0);
        loop {
            let Some(first) = self.seek(id, at, true).await? else { return Ok(bad) };
            self.read_checked(id, BlockRange { first, count: 256 }, &mut bad).await?;
            at = first + 256;
        }
    }

    pub async fn update(self: &Rc<Self>, id: ObjectId, mut update: Update) -> StoreResult<Applied> {
        loop {
            match self.update_whole(id, &mut update).await {
                Err(FsError::NoSpace) if self.overwrites(id, &update).await => {
                    let Some(part) = first_half(&mut update) else { return Err(FsError::NoSpace) };
                    Box::pin(self.update(id, part)).await?;
                }
                outcome => return outcome,
            }
        }
    }

    /// Whether an update needs blocks only until those that it replaces come free, so that it can be carried out in parts
    /// when not all of them are there at once.
    async fn overwrites(&self, id: ObjectId, update: &Update) -> bool {
        // What was loaded of its map may have left memory meanwhile.
        let ranges: Vec<BlockRange> = update.puts.iter().map(BlockRun::range).collect();
        if self.load(id, &ranges).await.is_err() {
            return false;
        }
        let state = self.state.borrow();
        let filled = |o: &Object| update.puts.iter().all(|p| o.has(p.range()) && o.holes(p.range()) == 0);
        let whole = update.drops.is_empty() && update.reserves.is_empty() && !self.is_stalled();
        whole && self.failure.get().is_none() && state.objects.get(&id).is_some_and(filled)
    }

    async fn update_whole(self: &Rc<Self>, id: ObjectId, update: &mut Update) -> StoreResult<Applied> {
        let mut ranges: Vec<BlockRange> = update.drops.iter().chain(&update.reserves).copied().collect();
        ranges.extend(update.puts.iter().map(BlockRun::range));
        if let SizeRule::Exactly(size) = update.size {
            ranges.push(BlockRange::new(size.div_ceil(BLOCK_BYTES), u64::MAX));
        }
        let admitted = match update.replay {
            None => self.admit(id, update, &ranges).await?,
            Some(_) => Admitted::default(),
        };
        let applied = self.carry_out(id, update, &ranges).await;
        match applied {
            Ok(_) => update.puts.clear(),
            Err(_) => self.not_needed(&admitted),
        }
        self.dirty.notify();
        applied
    }

    async fn carry_out(self: &Rc<Self>, id: ObjectId, update: &Update, ranges: &[BlockRange]) -> StoreResult<Applied> {
        loop {
            let placement = self.place(id, update, ranges).await?;
            if let Err(e) = self.write_placed(update, &placement.placed).await {
                self.settle(&placement, false);
                if crate::growth::is_full(&e) {
                    return Err(FsError::NoSpace);
                }
                return Err(self.latch("writing data", &e));
            }
            let outcome = self.apply(id, update, &placement.placed, ranges).await;
            let used = matches!(outcome, Ok(Outcome::Applied(_)));
            self.settle(&placement, used);
            match outcome {
                Ok(Outcome::Applied(applied)) => return Ok(applied),
                Ok(Outcome::Stale) => {}
                // Nothing may be held while waiting for space: what is held could be what others wait for.
                Ok(Outcome::NoRoom(reserved)) => {
                    let fresh: u64 = placement.placed.iter().filter(|p| !p.reused).map(|p| p.to.blocks).sum();
                    self.make_room(fresh + reserved).await?;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn settle(&self, placement: &Placement, used: bool) {
        self.state.borrow_mut().settle(placement, used);
        self.freed.notify();
    }

    /// Blocks that an update leaves for overwrites where it fills holes. What was answered before may have them.
    fn spare_for(&self, update: &Update) -> u64 {
        if update.replay.is_some() { 0 } else { self.spare() }
    }

    /// Lets an update in when the database has room for what it changes there. What makes the map larger is let in while
    /// the database's reserve is whole; what overwrites or frees may use it up.
    async fn admit(&self, id: ObjectId, update: &Update, ranges: &[BlockRange]) -> StoreResult<Admitted> {
        let need = need_of(update);
        let mut waited = false;
        loop {
            self.check()?;
            if self.is_stalled() {
                return Err(FsError::NoSpace);
            }
            self.load(id, ranges).await?;
            let grows = {
                let state = self.state.borrow();
                let object = state.objects.get(&id).ok_or(FsError::NotFound)?;
                let puts = update.puts.iter().map(BlockRun::range);
                puts.chain(update.reserves.iter().copied()).any(|r| object.holes(r) > 0)
            };
            if grows && !self.room.is_full_enough() {
                return Err(FsError::NoSpace);
            }
            let pending = self.need.get() + self.need_of_batch.get();
            // Half of it: the pages of the commit before are not free yet.
            let fits = |bytes: u64| need + pending <= bytes / 2;
            if fits(self.room.left()) || fits(self.room.likely()) || (pending == 0 && !grows) {
                self.need.set(self.need.get() + need);
                return Ok(Admitted { need, commit: self.state.borrow().commit_next });
            }
            if waited || pending == 0 {
                return Err(FsError::NoSpace);
            }
            waited = true;
            self.commit_now().await?;
        }
    }

    /// An update that was let in changes nothing.
    fn not_needed(&self, admitted: &Admitted) {
        if self.state.borrow().commit_next == admitted.commit {
            self.need.set(self.need.get().saturating_sub(admitted.need));
        }
    }

    /// Whether nothing is committed now for want of space for the database.
    pub fn is_stalled(&self) -> bool {
        self.stalled.get() || self.room.is_waiting()
    }

    /// Compares the next pages of the database with their checksums.
    pub(crate) async fn look_at_pages(&self, bytes: u64) -> StoreResult<Looked> {
        let before = self.pages.take();
        if bytes == 0 {
            return Ok(Looked::nothing());
        }
        let failed = |e: std::io::Error| {
            tracing::error!(store = %self.dir.display(), "the database cannot be read for a scrub: {e}");
            FsError::Io
        };
        let mut check = match before {
            Some(check) => check,
            None => dbcheck::PageCheck::new(self.rt.open_blocking(&self.dir.join("meta.redb"), false).map_err(failed)?),
        };
        let db = self.db.clone();
        let (looked, check) = self.rt.offload(move || (db.look_at_pages(&mut check, bytes), check)).await;
        *self.pages.borrow_mut() = Some(check);
        looked.map_err(failed)
    }

    async fn place(self: &Rc<Self>, id: ObjectId, update: &Update, ranges: &[BlockRange]) -> StoreResult<Placement> {
        let spare = self.spare_for(update);
        loop {
            self.load(id, ranges).await?;
            let placement = self.state.borrow_mut().place(id, &update.puts, spare)?;
            match placement {
                Ok(placement) => {
                    self.grow_ahead();
                    return Ok(placement);
                }
                Err(want) => self.make_room(want).await?,
            }
        }
    }

    async fn apply(
        &self,
        id: ObjectId,
        update: &Update,
        placed: &[Placed],
        ranges: &[BlockRange],
    ) -> StoreResult<Outcome> {
        self.load(id, ranges).await?;
        let spare = self.spare_for(update);
        self.state.borrow_mut().apply(id, update, placed, spare)
    }

    async fn write_placed(&self, update: &Update, placed: &[Placed]) -> std::io::Result<()> {
        self.disk.call(DiskOp::Write, placed.iter().map(|p| DiskRun { start: p.to.start, blocks: p.to.blocks }));
        let writes = placed.iter().map(|p| async {
            let put = &update.puts[p.run];
            let at = (p.first - put.first) as usize * BLOCK_BYTES as usize;
            let bulk = put.bulk.slice(at, p.to.blocks as usize * BLOCK_BYTES as usize);
            let transfer = self.disk.begin(DiskOp::Write, p.to.blocks, self.rt.now());
            let written = self.data.write_at(p.to.start * BLOCK_BYTES, bulk).await;
            transfer.done(self.rt.now());
            written
        });
        let mut writes: Vec<_> = writes.collect();
        if writes.len() == 1 {
            return writes.swap_remove(0).await;
        }
        join_all(writes).await.into_iter().collect()
    }
}
