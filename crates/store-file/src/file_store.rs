//! An open file store: reads, writes, what is loaded when, and how the data file grows.
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cache::frames::Bulk;
use oss::store::{
    Applied, BLOCK_BYTES, BadBlock, BlockRange, Blocks, DiskOp, DiskRun, DiskStats, SizeRule, Space, StoreResult,
    Update,
};
use rt::sync::{Event, Semaphore, join_all};
use rt::{DirLock, DiskFile, OpenMode, Rt};
use types::{FsError, ObjectId};
use wire::crc32c;

use crate::config::FileStoreConfig;
use crate::db::{Db, DbError, Start};
use crate::error::OpenError;
use crate::format::Superblock;
use crate::map::{CHUNK_BLOCKS, Object, Piece};
use crate::space::{Run, SpaceMap};
use crate::state::{Outcome, Placed, Placement, State};

/// Objects up to this many blocks are loaded whole.
const WHOLE_BLOCKS: u64 = CHUNK_BLOCKS;

/// Commits that a change waits for at most before it is told that there is no space.
const ROOM_ATTEMPTS_MAX: u32 = 64;
/// Pause after each, for reads that hold freed blocks.
const ROOM_PAUSE: types::Duration = types::Duration::from_micros(500);

/// Blocks that an update may need.
fn wanted_blocks(update: &Update) -> u64 {
    let puts: u64 = update.puts.iter().map(|p| p.range().count).sum();
    puts + update.reserves.iter().map(|r| r.count).sum::<u64>()
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
    pub data: Rc<dyn DiskFile>,
    pub db: Db,
    pub state: RefCell<State>,
    pub failure: Cell<Option<FsError>>,
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
    pub growing: Semaphore,
    pub disk: DiskStats,
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
        let (db, start) = load_start(&rt, dir, superblock, &config).await?;
        let blocks = data.len().map_err(|e| OpenError::Io(dir.join("data"), e))? / BLOCK_BYTES;
        let space = space_of(dir, blocks, &start.used)?;
        let state = State::new(&start, space);
        let inner = Rc::new(Inner {
            zeros: oss::store::ZeroPages::new(rt.frames()),
            rt,
            dir: dir.into(),
            config,
            superblock: start.superblock,
            boot: start.boot,
            data,
            db,
            state: RefCell::new(state),
            failure: Cell::new(None),
            dirty: Event::new(),
            kick: Event::new(),
            kicked: Cell::new(false),
            done: Event::new(),
            closing: Cell::new(false),
            stopped: Cell::new(false),
            grown: Cell::new(blocks),
            growable: Cell::new(0),
            growing: Semaphore::new(1),
            disk: DiskStats::default(),
            _lock: lock,
        });
        inner.look_at_space();
        let task = inner.clone();
        inner.rt.spawn(async move { task.commit_task().await });
        Ok(FileStore(inner))
    }
}

impl FileStore {
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
) -> Result<(Db, Start), OpenError> {
    let path = dir.join("meta.redb");
    let file = rt.open_blocking(&path, false).map_err(|e| OpenError::Io(path.clone(), e))?;
    let cache_bytes = config.db_cache_bytes;
    let started = rt
        .offload(move || -> Result<Option<(Db, Start)>, DbError> {
            let mut builder = redb::Database::builder();
            builder.set_cache_size(cache_bytes);
            let db = Db::new(builder.create_with_backend(crate::backend::FileBackend(file))?);
            if db.superblock()?.as_ref() != Some(&superblock) {
                return Ok(None);
            }
            let start = db.start(superblock)?;
            Ok(Some((db, start)))
        })
        .await;
    let started = started.map_err(|e| match e {
        DbError::Engine(e) => OpenError::Io(path, std::io::Error::other(e)),
        DbError::Record(what, e) => OpenError::Corrupt(dir.into(), format!("{what}: {e}")),
    })?;
    let mixed = "data and meta.redb are not of the same store";
    started.ok_or_else(|| OpenError::Corrupt(dir.into(), mixed.into()))
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
            FsError::Io
        };
        self.done.notify();
        self.kick.notify();
        self.dirty.notify();
        failure
    }

    pub fn db_failed(&self, e: DbError) -> FsError {
        match e {
            DbError::Record(..) => {
                tracing::error!(store = %self.dir.display(), "{e}");
                FsError::Corrupt
            }
            DbError::Engine(_) => self.latch("reading the database", &e),
        }
    }

    /// Brings an object and the map of `ranges` into memory. When this answers, both are there until the caller waits.
    pub async fn load(&self, id: ObjectId, ranges: &[BlockRange]) -> StoreResult<()> {
        loop {
            self.check()?;
            let missing = {
                let state = self.state.borrow();
                if state.tombs.contains_key(&id) {
                    return Err(FsError::NotFound);
                }
                match state.objects.get(&id) {
                    None => None,
                    Some(o) => match ranges.iter().find(|r| !o.has(**r)) {
                        None => return Ok(()),
                        Some(r) => Some(*r),
                    },
                }
            };
            match missing {
                None => self.load_object(id).await?,
                Some(range) => self.load_map(id, range).await?,
            }
        }
    }

    /// Reads records: on a worker thread, unless they lie in memory and a worker would only cost its waking.
    async fn look_up<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, DbError> + Send + 'static,
    ) -> StoreResult<T> {
        let found = if self.data.is_in_memory() { job() } else { self.rt.offload(job).await };
        found.map_err(|e| self.db_failed(e))
    }

    async fn load_object(&self, id: ObjectId) -> StoreResult<()> {
        let seen = self.state.borrow().evictions;
        let db = self.db.clone();
        let read = move || {
            let Some(attr) = db.object(id)? else { return Ok(None) };
            let rows = if attr.blocks <= WHOLE_BLOCKS { Some(db.extents(id, 0, u64::MAX)?) } else { None };
            Ok(Some((attr, rows)))
        };
        let found = self.look_up(read).await?;
        let state = &mut *self.state.borrow_mut();
        if state.evictions != seen || state.objects.contains_key(&id) {
            return Ok(());
        }
        let Some((attr, rows)) = found else { return Err(FsError::NotFound) };
        let mut object = Object::known(attr);
        if let Some(rows) = rows {
            state.mapped_blocks += object.load(0..=0, rows, true);
        }
        state.objects.insert(id, object);
        Ok(())
    }

    async fn load_map(&self, id: ObjectId, range: BlockRange) -> StoreResult<()> {
        let seen = self.state.borrow().evictions;
        let (first, last) = (range.first / CHUNK_BLOCKS, range.end().saturating_sub(1) / CHUNK_BLOCKS);
        let all = last - first >= 8;
        let db = self.db.clone();
        let (from, to) = if all { (0, u64::MAX) } else { (first * CHUNK_BLOCKS, (last + 1) * CHUNK_BLOCKS) };
        let rows = self.look_up(move || db.extents(id, from, to)).await?;
        let state = &mut *self.state.borrow_mut();
        if state.evictions == seen
            && let Some(object) = state.objects.get_mut(&id)
        {
            state.mapped_blocks += object.load(first..=last, rows, all);
        }
        Ok(())
    }

    /// Reads blocks and compares them with their checksums. `bad` is told of each that does not match.
    async fn read_checked(&self, id: ObjectId, range: BlockRange, bad: &mut Vec<BadBlock>) -> StoreResult<Blocks> {
        self.load(id, &[range]).await?;
        let (pieces, epoch) = {
            let mut state = self.state.borrow_mut();
            let pieces = state.objects.get(&id).ok_or(FsError::NotFound)?.pieces(range);
            (pieces, state.read_begins())
        };
        let outcome = self.read_pieces(id, range.first, pieces, bad).await;
        self.state.borrow_mut().read_ends(epoch);
        outcome
    }

    async fn read_pieces(
        &self,
        id: ObjectId,
        mut block: u64,
        pieces: Vec<Piece>,
        bad: &mut Vec<BadBlock>,
    ) -> StoreResult<Blocks> {
        let mut out = Blocks::default();
        let runs = pieces.iter().filter_map(|p| match p {
            Piece::Data { phys, crcs } => Some(DiskRun { start: *phys, blocks: crcs.len() as u64 }),
            Piece::Zeros(_) => None,
        });
        self.disk.call(DiskOp::Read, runs);
        let reads = pieces.iter().filter_map(|p| match p {
            Piece::Data { phys, crcs } => Some(self.read_run(*phys, crcs.len())),
            Piece::Zeros(_) => None,
        });
        let mut reads: Vec<_> = reads.collect();
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

    async fn read_run(&self, phys: u64, blocks: usize) -> StoreResult<Bulk> {
        let bulk = self.rt.bulk(blocks * BLOCK_BYTES as usize).await;
        let transfer = self.disk.begin(DiskOp::Read, blocks as u64, self.rt.now());
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
        self.load(id, &[BlockRange::new(0, u64::MAX)]).await?;
        let (mut bad, mut at) = (Vec::new(), 0);
        loop {
            self.load(id, &[BlockRange::new(0, u64::MAX)]).await?;
            let next = self.state.borrow().objects.get(&id).and_then(|o| o.seek(at, true));
            let Some(first) = next else { return Ok(bad) };
            self.read_checked(id, BlockRange { first, count: 256 }, &mut bad).await?;
            at = first + 256;
        }
    }

    pub async fn update(self: &Rc<Self>, id: ObjectId, mut update: Update) -> StoreResult<Applied> {
        let mut ranges: Vec<BlockRange> = update.drops.iter().chain(&update.reserves).copied().collect();
        ranges.extend(update.puts.iter().map(oss::store::BlockRun::range));
        if let SizeRule::Exactly(size) = update.size {
            ranges.push(BlockRange::new(size.div_ceil(BLOCK_BYTES), u64::MAX));
        }
        let applied = loop {
            let placement = self.place(id, &update, &ranges).await?;
            if let Err(e) = self.write_placed(&update, &placement.placed).await {
                self.state.borrow_mut().settle(&placement, false);
                return Err(self.latch("writing data", &e));
            }
            let outcome = self.apply(id, &update, &placement.placed, &ranges).await;
            let used = matches!(outcome, Ok(Outcome::Applied(_)));
            self.state.borrow_mut().settle(&placement, used);
            match outcome {
                Ok(Outcome::Applied(applied)) => break Ok(applied),
                Ok(Outcome::Stale) => {}
                // Nothing may be held while waiting for space: what is held could be what others wait for.
                Ok(Outcome::NoRoom) => self.make_room(wanted_blocks(&update)).await?,
                Err(e) => break Err(e),
            }
        };
        update.puts.clear();
        self.dirty.notify();
        applied
    }

    async fn place(self: &Rc<Self>, id: ObjectId, update: &Update, ranges: &[BlockRange]) -> StoreResult<Placement> {
        let want = update.puts.iter().map(|p| p.range().count).sum();
        loop {
            self.load(id, ranges).await?;
            let placement = self.state.borrow_mut().place(id, &update.puts)?;
            if let Some(placement) = placement {
                self.grow_ahead();
                return Ok(placement);
            }
            self.make_room(want).await?;
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
        self.state.borrow_mut().apply(id, update, placed)
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

    /// Gets `want` blocks ready: grows the file, or waits until what was freed is committed.
    async fn make_room(&self, want: u64) -> StoreResult<()> {
        self.check()?;
        if self.grow(want).await? {
            return Ok(());
        }
        for _ in 0..ROOM_ATTEMPTS_MAX {
            if self.state.borrow().space.ready() >= want {
                return Ok(());
            }
            if self.state.borrow().coming_free() == 0 {
                break;
            }
            self.commit_now().await?;
            // Reads and writes that began before the commit still hold what it freed; they end soon.
            self.rt.sleep(ROOM_PAUSE).await;
        }
        if self.state.borrow().space.ready() < want { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// Grows the data file until `want` blocks are ready. Whether they are.
    async fn grow(&self, want: u64) -> StoreResult<bool> {
        self.growing.acquire(1).await;
        let outcome = self.grow_alone(want).await;
        self.growing.add(1);
        outcome
    }

    async fn grow_alone(&self, want: u64) -> StoreResult<bool> {
        let ready = self.state.borrow().space.ready();
        if ready >= want {
            return Ok(true);
        }
        self.look_at_space();
        let step = (want - ready).max(self.config.grow_bytes / BLOCK_BYTES).min(self.growable.get() / BLOCK_BYTES);
        if step == 0 {
            return Ok(false);
        }
        let at = self.grown.get();
        match self.data.allocate(at * BLOCK_BYTES, step * BLOCK_BYTES).await {
            Ok(()) => {
                self.grown.set(at + step);
                let mut state = self.state.borrow_mut();
                state.space.free(Run { start: at, blocks: step });
                // The new length must be on stable storage before a mapping relies on it.
                state.data_written = true;
                drop(state);
                self.look_at_space();
                Ok(ready + step >= want)
            }
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull || e.kind() == std::io::ErrorKind::QuotaExceeded => {
                self.growable.set(0);
                Ok(false)
            }
            Err(e) => Err(self.latch("growing the data file", &e)),
        }
    }

    /// Starts to grow the file in the background when little is ready.
    pub fn grow_ahead(self: &Rc<Self>) {
        let low = self.config.grow_bytes / BLOCK_BYTES;
        if self.state.borrow().space.ready() >= low || self.growable.get() == 0 || !self.growing.try_acquire(1) {
            return;
        }
        let me = self.clone();
        self.rt.spawn(async move {
            // A failure has latched the store; whoever comes next is told.
            let _ = me.grow_alone(low * 2).await;
            me.growing.add(1);
        });
    }

    /// Finds out by how much the data file could grow.
    pub fn look_at_space(&self) {
        let len = self.grown.get() * BLOCK_BYTES;
        let Ok((free, _)) = self.data.space() else { return };
        let cap = self.superblock.capacity_bytes;
        let reserve = if cap > 0 { self.config.reserve_bytes.min(cap / 32) } else { self.config.reserve_bytes };
        let room = free.saturating_sub(reserve) / self.config.sharers.max(1);
        let room = if cap > 0 { room.min(cap.saturating_sub(len)) } else { room };
        self.growable.set(room / BLOCK_BYTES * BLOCK_BYTES);
    }

    pub fn space(&self) -> Space {
        let state = self.state.borrow();
        let ready = state.space.ready() * BLOCK_BYTES;
        let growable = self.growable.get();
        Space {
            total: (self.grown.get() - 1) * BLOCK_BYTES + growable,
            free: ready + growable,
            ready,
            objects: state.object_count,
            objects_free: u64::from(u32::MAX).saturating_sub(state.object_count),
        }
    }
}
