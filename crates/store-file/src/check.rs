//! Reading everything in a store that nobody has open: for `stria fsck`. Changes nothing.
//!
//! Decides whether the two files agree with themselves and with each other: every page of the database matches its
//! checksum, every row its own, every invariant of `docs/spec/ost-store.md` that can be seen at rest holds, and, when asked,
//! every block of data matches the checksum in its extent.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use oss::store::{BLOCK_BYTES, Charged, ObjectAttr, ObjectInfo, Usages};
use redb::{Database, ReadableDatabase, ReadableTable};
use rt::{BlockingFile, Rt};
use types::{ObjectId, Transno, WallTime};
use wire::connect::Opening;
use wire::crc32c;

use crate::db::{
    ADVICE, COUNTED, DOUBTED, DbError, EXTENTS, OBJECTS, PROMISES, REVOKED, SEQUENCES, STATE, SUPER, USAGE,
    charged_of_key,
};
use crate::error::OpenError;
use crate::format::{
    EXTENT_BLOCKS_MAX, Extent, FormatError, SUPERBLOCK_BYTES, Superblock, advice_from_bytes, extent_from_bytes,
    extent_of_key, object_from_bytes, object_of_key, promise_from_bytes,
};
use crate::map::CHUNK_BLOCKS;
use crate::openings::OPENINGS;

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
    /// Every object, in order of id: those whose row can be read, and of those of which extents are left what these tell.
    pub objects: Vec<ObjectInfo>,
    /// What is wrong, a sentence each.
    pub faults: Vec<String>,
    /// What is remarkable, and no fault.
    pub notes: Vec<String>,
    /// Whether the database could be read, so that an object that is not among `objects` does not exist.
    pub complete: bool,
    /// Whether pages of the database are damaged: see [`crate::mend_database`] and [`crate::salvage`].
    pub broken: bool,
    /// Whether rows are damaged, or do not agree with each other: see [`crate::mend_rows`].
    pub bad_rows: bool,
    /// Objects whose rows are damaged, missing or contradict others: what they hold is not what was written.
    pub suspects: BTreeSet<ObjectId>,
    /// Blocks that do not match their checksums, with their places in the data file.
    pub bad_blocks: Vec<BadPlace>,
    /// The superblock of the database, where block 0 of the data file is damaged: [`crate::mend`] puts it back.
    pub superblock: Option<Superblock>,
    /// The openings that it knows of, and last the next one, without a mark: what it would tell the cluster if it were opened now.
    pub openings: Vec<Opening>,
    /// The last object that it ever made, by sequence.
    pub last_objects: BTreeMap<u64, u32>,
    /// Credentials that it knows as revoked, with the time at which each ends by itself; 0: never.
    pub revoked: Vec<(u64, WallTime)>,
}

/// Reads the store in `dir`, whose lock the caller has; `data`: all blocks, too. Memory: 72 bytes for each object, 32 for
/// each extent, and `cache_bytes`.
///
/// # Errors
/// There is no store, it is of a newer format, or a file cannot be read at all.
pub async fn check(rt: &Rt, dir: &Path, data: bool, cache_bytes: usize) -> Result<Checked, OpenError> {
    let open = |name: &str| {
        let path = dir.join(name);
        rt.open_blocking(&path, false).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound if !dir.is_dir() => OpenError::Missing(dir.into()),
            _ => OpenError::Io(path, e),
        })
    };
    let (blocks, meta) = (open("data")?, open("meta.redb")?);
    let whole = dbcheck::Whole::known(rt, &dir.join("meta.redb"));
    let checked = rt.offload(move || check_files(&*blocks, meta, whole.as_ref(), data, cache_bytes)).await;
    let checked = checked.map_err(|e| OpenError::Io(dir.into(), e))?;
    match checked.1 {
        Some(found) => Err(OpenError::NewerFormat { dir: dir.into(), found, known: crate::format::FORMAT_VERSION }),
        None => Ok(checked.0),
    }
}

/// [`check`] over open files; `whole`: which commit of the database was. The second part: the format of a store that a newer program wrote.
///
/// # Errors
/// A file cannot be read.
pub fn check_files(
    data: &dyn BlockingFile,
    meta: Box<dyn BlockingFile>,
    whole: Option<&dbcheck::Whole>,
    read_data: bool,
    cache_bytes: usize,
) -> std::io::Result<(Checked, Option<u32>)> {
    data.forget_cached()?;
    let mut c = Checker { data, out: Checked::default(), used: Vec::new(), read_data, bytes: Vec::new() };
    let first = c.block_0()?;
    let examined = dbcheck::examine(meta, cache_bytes, whole)?;
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
    /// Runs of blocks that extents use, and whose they are.
    used: Vec<(u64, u32, ObjectId)>,
    read_data: bool,
    bytes: Vec<u8>,
}

impl Checker<'_> {
    fn fault(&mut self, text: String) {
        self.out.faults.push(text);
    }

    /// A fault in the rows of an object.
    fn suspect(&mut self, object: ObjectId, text: String) {
        self.out.suspects.insert(object);
        self.out.bad_rows = true;
        self.fault(text);
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
        self.openings(&txn)?;
        for row in txn.open_table(SEQUENCES)?.iter()? {
            let (seq, last) = row?;
            self.out.last_objects.insert(seq.value(), last.value());
        }
        for row in txn.open_table(OBJECTS)?.iter()? {
            let (key, value) = row?;
            let object = object_of_key(key.value());
            match object_from_bytes(object, value.value()) {
                Ok(attr) => self.out.objects.push(ObjectInfo { object, attr }),
                Err(e) => self.suspect(object, format!("the record of object {object}: {e}")),
            }
            if self.out.last_objects.get(&object.0.seq).is_none_or(|last| object.0.oid > *last) {
                self.out.bad_rows = true;
                self.fault(format!("object {object} has a higher id than was ever given out"));
            }
        }
        let mut held: BTreeMap<ObjectId, Held> = BTreeMap::new();
        let mut before = (ObjectId::default(), 0);
        for row in txn.open_table(EXTENTS)?.iter()? {
            let (key, value) = row?;
            let (object, at) = extent_of_key(key.value());
            match extent_from_bytes(key.value(), value.value()) {
                Ok(e) => {
                    held.entry(object).or_default().add(at, &e);
                    if before.0 == object && at < before.1 {
                        self.suspect(object, format!("object {object}: two extents hold block {at}"));
                    }
                    before = (object, at.saturating_add(e.blocks));
                    self.extent(object, at, &e);
                }
                Err(e) => self.suspect(object, format!("the extent of object {object} at block {at}: {e}")),
            }
        }
        self.counts(&held);
        self.doubted(&txn)?;
        self.usages(&txn)?;
        match txn.open_table(REVOKED) {
            Err(redb::TableError::TableDoesNotExist(_)) => {}
            table => {
                for row in table?.iter()? {
                    let (id, expires) = row?;
                    self.out.revoked.push((id.value(), WallTime(expires.value())));
                }
            }
        }
        self.about_objects(&txn, ADVICE, "what is advised of", |o, b| advice_from_bytes(o, b).err())?;
        self.about_objects(&txn, PROMISES, "the promised cut of", |o, b| promise_from_bytes(o, b).err())
    }

    /// Objects that a repair could not save as they were.
    fn doubted(&mut self, txn: &redb::ReadTransaction) -> Result<(), DbError> {
        let table = match txn.open_table(DOUBTED) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            table => table?,
        };
        for row in table.iter()? {
            let object = object_of_key(row?.0.value());
            self.suspect(object, format!("object {object}: rows of it were lost, and older ones stand for them"));
        }
        Ok(())
    }

    fn openings(&mut self, txn: &redb::ReadTransaction) -> Result<(), DbError> {
        match txn.open_table(OPENINGS) {
            Err(redb::TableError::TableDoesNotExist(_)) => {}
            table => {
                for row in table?.iter()? {
                    let (boot, mark) = row?;
                    self.out.openings.push(Opening { boot: boot.value(), mark: mark.value(), ..Opening::default() });
                }
            }
        }
        let state = txn.open_table(STATE)?;
        let read = |name: &str| -> Result<u64, DbError> { Ok(state.get(name)?.map_or(0, |v| v.value())) };
        let (boot, committed) = (read("boot")?.saturating_add(1), Transno(read("transno")?));
        self.out.openings.push(Opening { boot, mark: 0, committed });
        Ok(())
    }

    /// The rows of a table that a store of an earlier program does not have.
    fn about_objects(
        &mut self,
        txn: &redb::ReadTransaction,
        table: redb::TableDefinition<'_, &'static [u8; 16], &'static [u8]>,
        what: &str,
        wrong: impl Fn(ObjectId, &[u8]) -> Option<FormatError>,
    ) -> Result<(), DbError> {
        let table = match txn.open_table(table) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            table => table?,
        };
        for row in table.iter()? {
            let (key, value) = row?;
            let object = object_of_key(key.value());
            if let Some(e) = wrong(object, value.value()) {
                self.out.bad_rows = true;
                self.fault(format!("{what} object {object}: {e}"));
            }
        }
        Ok(())
    }

    /// Counts of blocks against the objects, if the last opening kept them.
    fn usages(&mut self, txn: &redb::ReadTransaction) -> Result<(), DbError> {
        let state = txn.open_table(STATE)?;
        let read = |name: &str| -> Result<Option<u64>, DbError> { Ok(state.get(name)?.map(|v| v.value())) };
        if read(COUNTED)?.is_none() || read(COUNTED)? != read("boot")? {
            return Ok(());
        }
        let mut kept: BTreeMap<Charged, u64> = BTreeMap::new();
        for row in txn.open_table(USAGE)?.iter()? {
            let (key, blocks) = row?;
            match charged_of_key(key.value()) {
                Some(who) => drop(kept.insert(who, blocks.value())),
                None => {
                    self.out.bad_rows = true;
                    self.fault(format!("usage: key {:#x} is nobody's", key.value()));
                }
            }
        }
        let found: BTreeMap<Charged, u64> =
            Usages::of_objects(self.out.objects.iter().map(|o| &o.attr)).iter().collect();
        let all: BTreeSet<Charged> = kept.keys().chain(found.keys()).copied().collect();
        for who in all {
            let (says, has) = (kept.get(&who).unwrap_or(&0), found.get(&who).unwrap_or(&0));
            if says != has {
                self.out.bad_rows = true;
                self.fault(format!("{says} blocks are counted for {} {}, which has {has}", who.0.name(), who.1));
            }
        }
        Ok(())
    }

    /// Objects against their extents. One without a row of its own is what its extents tell.
    fn counts(&mut self, held: &BTreeMap<ObjectId, Held>) {
        let mut wrong = Vec::new();
        for ObjectInfo { object, attr: ObjectAttr { blocks: says, .. } } in &self.out.objects {
            let found = held.get(object).map_or(0, |h| h.blocks);
            if *says != found {
                wrong.push((*object, format!("object {object} counts {says} blocks, but has {found}")));
            }
        }
        let exists = |o: &ObjectId| self.out.objects.binary_search_by_key(o, |i| i.object).is_ok();
        let headless: Vec<ObjectInfo> = held
            .iter()
            .filter(|(o, _)| !exists(o))
            .map(|(object, held)| ObjectInfo { object: *object, attr: held.attr() })
            .collect();
        for ObjectInfo { object, .. } in &headless {
            wrong.push((*object, format!("there are extents of object {object}, which does not exist")));
        }
        self.out.objects.extend(headless);
        self.out.objects.sort_unstable_by_key(|i| i.object);
        wrong.into_iter().for_each(|(object, text)| self.suspect(object, text));
    }

    fn extent(&mut self, object: ObjectId, at: u64, e: &Extent) {
        self.used.push((e.phys, e.blocks as u32, object));
        if at % CHUNK_BLOCKS + e.blocks > CHUNK_BLOCKS {
            let text = format!("object {object}: the extent at block {at} crosses a boundary of {CHUNK_BLOCKS} blocks");
            self.suspect(object, text);
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
        let end = self.data.len().unwrap_or(0) / BLOCK_BYTES;
        let used = std::mem::take(&mut self.used);
        for pair in used.windows(2).filter(|w| w[0].0 + u64::from(w[0].1) > w[1].0) {
            let text = format!("block {} of the data file belongs to two extents", pair[1].0);
            self.suspect(pair[1].2, text);
            self.out.suspects.insert(pair[0].2);
        }
        for (at, _, object) in used.iter().filter(|(at, n, _)| at + u64::from(*n) > end) {
            self.suspect(*object, format!("the extent at block {at} lies behind the data file's end"));
        }
    }
}

/// What the extents of an object hold.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held {
    /// Blocks that have space.
    pub blocks: u64,
    /// Where the last block with data ends.
    end: u64,
}

impl Held {
    pub fn add(&mut self, at: u64, e: &Extent) {
        self.blocks += e.blocks;
        if e.crcs.is_some() {
            self.end = self.end.max(at.saturating_add(e.blocks));
        }
    }
    /// The attributes of an object of which nothing else is known: it ends with its last block.
    pub fn attr(&self) -> ObjectAttr {
        ObjectAttr { size: self.end.saturating_mul(BLOCK_BYTES), blocks: self.blocks, ..ObjectAttr::default() }
    }
}
