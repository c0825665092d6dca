//! Reading everything in a store that nobody has open: for `stria fsck`. Changes nothing.
//!
//! Decides whether the two files agree with themselves and with each other: every page of the database matches its
//! checksum, every row its own, every invariant of `docs/spec/ost-store.md` that can be seen at rest holds, and, when asked,
//! every block of data matches the checksum in its extent.
use std::collections::BTreeMap;
use std::path::Path;

use dbcheck::Mended;
use oss::store::{BLOCK_BYTES, BlockRun, ObjectAttr, ObjectInfo, ObjectStore, Update};
use redb::{Database, ReadableDatabase, ReadableTable};
use rt::{BlockingFile, Rt};
use types::ObjectId;
use wire::crc32c;

use crate::db::{DbError, EXTENTS, OBJECTS, SEQUENCES, SUPER};
use crate::error::OpenError;
use crate::format::{
    EXTENT_BLOCKS_MAX, Extent, FormatError, SUPERBLOCK_BYTES, Superblock, extent_from_bytes, extent_of_key,
    object_from_bytes, object_of_key,
};
use crate::map::CHUNK_BLOCKS;

/// A block that does not match its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPlace {
    /// Object.
    pub object: ObjectId,
    /// Block of the object.
    pub block: u64,
    /// Block of the data file.
    pub place: u64,
}

/// What a store holds and what is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Every object whose row can be read, in order of id.
    pub objects: Vec<ObjectInfo>,
    /// What is wrong, a sentence each.
    pub faults: Vec<String>,
    /// What is remarkable, and no fault.
    pub notes: Vec<String>,
    /// Whether the database could be read, so that an object that is not among `objects` does not exist.
    pub complete: bool,
    /// Whether pages of the database are damaged: see [`mend_database`].
    pub broken: bool,
    /// Blocks that do not match their checksums, with their places in the data file.
    pub bad_blocks: Vec<BadPlace>,
    /// The superblock of the database, where block 0 of the data file is damaged: [`mend`] puts it back.
    pub superblock: Option<Superblock>,
}

/// Reads the store in `dir`, whose lock the caller has; `data`: all blocks, too. Memory: 72 bytes for each object, 16 for
/// each extent, and `cache_bytes`.
///
/// # Errors
/// There is no store, it is of a newer format, or a file cannot be read at all.
pub async fn check(rt: &Rt, dir: &Path, data: bool, cache_bytes: usize) -> Result<Checked, OpenError> {
    let open = |name: &str| {
        let path = dir.join(name);
        rt.open_blocking(&path, false).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => OpenError::Missing(dir.into()),
            _ => OpenError::Io(path, e),
        })
    };
    let (blocks, meta) = (open("data")?, open("meta.redb")?);
    let checked = rt.offload(move || check_files(&*blocks, meta, data, cache_bytes)).await;
    let checked = checked.map_err(|e| OpenError::Io(dir.into(), e))?;
    match checked.1 {
        Some(found) => Err(OpenError::NewerFormat { dir: dir.into(), found, known: crate::format::FORMAT_VERSION }),
        None => Ok(checked.0),
    }
}

/// Puts block 0 of the data file back as the database has it. Nobody may have the store open.
///
/// # Errors
/// The file cannot be written.
pub async fn mend(rt: &Rt, dir: &Path, superblock: &Superblock) -> Result<(), OpenError> {
    let path = dir.join("data");
    let io = |e| OpenError::Io(path.clone(), e);
    let file = rt.open_blocking(&path, false).map_err(io)?;
    let mut block = vec![0; BLOCK_BYTES as usize];
    block[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.to_bytes());
    rt.offload(move || file.write(0, &block).and_then(|()| file.sync())).await.map_err(io)
}

/// Makes the newest commit of a damaged database that is whole count. Nobody may have the store open.
///
/// # Errors
/// The file cannot be read or written.
pub async fn mend_database(rt: &Rt, dir: &Path, cache_bytes: usize) -> Result<Mended, OpenError> {
    let path = dir.join("meta.redb");
    let io = |e| OpenError::Io(path.clone(), e);
    let file = rt.open_blocking(&path, false).map_err(io)?;
    rt.offload(move || dbcheck::mend(file, cache_bytes)).await.map_err(io)
}

/// Gives blocks that do not match their checksums ([`Checked::bad_blocks`]) checksums of what is there: they can be read
/// again, as they are.
///
/// # Errors
/// The store cannot be opened, read or written.
pub async fn accept(rt: &Rt, dir: &Path, cluster: u64, bad: &[BadPlace]) -> Result<(), OpenError> {
    let io = |e| OpenError::Io(dir.join("data"), e);
    let store = crate::FileStore::open(rt.clone(), dir, Some(cluster), crate::FileStoreConfig::default(), None).await?;
    for BadPlace { object, block, place } in bad {
        let mut bulk = rt.bulk(BLOCK_BYTES as usize).await;
        let (read, there) = store.0.data.read_at(place * BLOCK_BYTES, bulk).await;
        read.map_err(io)?;
        bulk = there;
        let crcs = bulk.slices().map(crc32c).collect();
        let update = Update { puts: vec![BlockRun { first: *block, bulk, crcs }], ..Update::default() };
        store.update(*object, update).await.map_err(|e| io(std::io::Error::from_raw_os_error(e.errno())))?;
    }
    store.close().await.map_err(|e| io(std::io::Error::from_raw_os_error(e.errno())))
}

/// [`check`] over open files. The second part: the format of a store that a newer program wrote.
///
/// # Errors
/// A file cannot be read.
pub fn check_files(
    data: &dyn BlockingFile,
    meta: Box<dyn BlockingFile>,
    read_data: bool,
    cache_bytes: usize,
) -> std::io::Result<(Checked, Option<u32>)> {
    data.forget_cached()?;
    let mut c = Checker { data, out: Checked::default(), used: Vec::new(), read_data, bytes: Vec::new() };
    let first = c.block_0()?;
    let examined = dbcheck::examine(meta, cache_bytes)?;
    c.out.faults.extend(examined.faults.iter().map(|f| format!("meta.redb: {f}")));
    c.out.notes.extend(examined.notes.iter().map(|n| format!("meta.redb: {n}")));
    c.out.broken = !examined.faults.is_empty();
    if let Some(database) = examined.database {
        match dbcheck::guarded(|| c.rows(&database, &first)) {
            Ok(Ok(())) => c.out.complete = true,
            Ok(Err(e)) => c.fault(format!("meta.redb: {e}")),
            Err(why) => c.fault(format!("meta.redb: a page cannot be read: {why}")),
        }
        // Closing writes, to memory; on damaged pages it may fail like everything else.
        let _ = dbcheck::guarded(|| drop(database));
    }
    let newer = match first {
        Err(FormatError::Version(found)) if found > crate::format::FORMAT_VERSION && c.out.superblock.is_none() => {
            Some(found)
        }
        _ => None,
    };
    c.space();
    Ok((c.out, newer))
}

struct Checker<'a> {
    data: &'a dyn BlockingFile,
    out: Checked,
    /// Runs of blocks that extents use.
    used: Vec<(u64, u64)>,
    read_data: bool,
    bytes: Vec<u8>,
}

impl Checker<'_> {
    fn fault(&mut self, text: String) {
        self.out.faults.push(text);
    }

    fn block_0(&mut self) -> std::io::Result<Result<Superblock, FormatError>> {
        let mut block = vec![0; BLOCK_BYTES.min(self.data.len()?) as usize];
        self.data.read(0, &mut block)?;
        let superblock = Superblock::from_bytes(&block);
        match &superblock {
            Err(e) => self.fault(format!("block 0 of the data file: {e}")),
            Ok(_) if block[SUPERBLOCK_BYTES..].iter().any(|b| *b != 0) => {
                self.fault("block 0 of the data file: bytes behind the superblock are not zero".into());
            }
            Ok(_) => {}
        }
        Ok(superblock)
    }

    fn rows(&mut self, database: &Database, first: &Result<Superblock, FormatError>) -> Result<(), DbError> {
        let txn = database.begin_read()?;
        let known = match txn.open_table(SUPER)?.get("superblock")? {
            Some(bytes) => Superblock::from_bytes(bytes.value()),
            None => Err(FormatError::Length(0)),
        };
        match (&known, first) {
            (Err(e), _) => self.fault(format!("meta.redb: the superblock: {e}")),
            (Ok(known), Ok(first)) if known != first => {
                self.fault("data and meta.redb are not of the same store".into());
            }
            (Ok(_), Ok(_)) if self.out.faults.is_empty() => {}
            (Ok(known), _) => self.out.superblock = Some(known.clone()),
        }
        let mut sequences = BTreeMap::new();
        for row in txn.open_table(SEQUENCES)?.iter()? {
            let (seq, last) = row?;
            sequences.insert(seq.value(), last.value());
        }
        for row in txn.open_table(OBJECTS)?.iter()? {
            let (key, value) = row?;
            let object = object_of_key(key.value());
            match object_from_bytes(object, value.value()) {
                Ok(attr) => self.out.objects.push(ObjectInfo { object, attr }),
                Err(e) => self.fault(format!("the record of object {object}: {e}")),
            }
            if sequences.get(&object.0.seq).is_none_or(|last| object.0.oid > *last) {
                self.fault(format!("object {object} has a higher id than was ever given out"));
            }
        }
        let mut blocks: BTreeMap<ObjectId, u64> = BTreeMap::new();
        let mut before = (ObjectId::default(), 0);
        for row in txn.open_table(EXTENTS)?.iter()? {
            let (key, value) = row?;
            let (object, at) = extent_of_key(key.value());
            match extent_from_bytes(key.value(), value.value()) {
                Ok(e) => {
                    *blocks.entry(object).or_default() += e.blocks;
                    if before.0 == object && at < before.1 {
                        self.fault(format!("object {object}: two extents hold block {at}"));
                    }
                    before = (object, at.saturating_add(e.blocks));
                    self.extent(object, at, &e);
                }
                Err(e) => self.fault(format!("the extent of object {object} at block {at}: {e}")),
            }
        }
        self.counts(&blocks);
        Ok(())
    }

    fn counts(&mut self, blocks: &BTreeMap<ObjectId, u64>) {
        let mut wrong = Vec::new();
        for ObjectInfo { object, attr: ObjectAttr { blocks: says, .. } } in &self.out.objects {
            let found = blocks.get(object).copied().unwrap_or(0);
            if *says != found {
                wrong.push(format!("object {object} counts {says} blocks, but has {found}"));
            }
        }
        let exists = |o: &ObjectId| self.out.objects.binary_search_by_key(o, |i| i.object).is_ok();
        wrong.extend(
            blocks
                .keys()
                .filter(|o| !exists(o))
                .map(|o| format!("there are extents of object {o}, which does not exist")),
        );
        self.out.faults.extend(wrong);
    }

    fn extent(&mut self, object: ObjectId, at: u64, e: &Extent) {
        self.used.push((e.phys, e.blocks));
        if at % CHUNK_BLOCKS + e.blocks > CHUNK_BLOCKS {
            self.fault(format!(
                "object {object}: the extent at block {at} crosses a boundary of {CHUNK_BLOCKS} blocks"
            ));
        }
        let Some(crcs) = e.crcs.as_ref().filter(|_| self.read_data) else { return };
        self.bytes.resize((EXTENT_BLOCKS_MAX * BLOCK_BYTES) as usize, 0);
        let len = (e.blocks * BLOCK_BYTES) as usize;
        if let Err(why) = self.data.read(e.phys * BLOCK_BYTES, &mut self.bytes[..len]) {
            return self.fault(format!("object {object}: blocks {at} to {} cannot be read: {why}", at + e.blocks - 1));
        }
        for (i, block) in self.bytes[..len].chunks_exact(BLOCK_BYTES as usize).enumerate() {
            if crc32c(block) != crcs[i] {
                let (block, place) = (at + i as u64, e.phys + i as u64);
                self.out.faults.push(format!("object {object}: block {block} does not match its checksum"));
                self.out.bad_blocks.push(BadPlace { object, block, place });
            }
        }
    }

    /// No two extents share a block, and none lies behind the end.
    fn space(&mut self) {
        self.used.sort_unstable();
        let shared: Vec<u64> = self.used.windows(2).filter(|w| w[0].0 + w[0].1 > w[1].0).map(|w| w[1].0).collect();
        let end = self.data.len().unwrap_or(0) / BLOCK_BYTES;
        let behind: Vec<u64> = self.used.iter().filter(|(at, n)| at + n > end).map(|(at, _)| *at).collect();
        self.out.faults.extend(shared.iter().map(|at| format!("block {at} of the data file belongs to two extents")));
        self.out
            .faults
            .extend(behind.iter().map(|at| format!("the extent at block {at} lies behind the data file's end")));
    }
}
