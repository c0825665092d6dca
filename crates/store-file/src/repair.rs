//! Putting a store right that nobody has open: for `stria fsck --repair`.
//!
//! Deepest first: pages of the database ([`mend_database`], [`salvage`]), block 0 of the data file ([`mend`]), rows that do
//! not agree with each other ([`mend_rows`]), blocks that do not match their checksums ([`accept`]). The last two erase what
//! tells which objects are damaged: their files are set aside first.
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use dbcheck::{Commit, IsWhole, Lost, Mended, Salvaged, Shape};
use oss::store::{BLOCK_BYTES, BlockRun, ObjectAttr, ObjectStore, Update};
use redb::{Database, Key, ReadableTable, TableDefinition, Value, WriteTransaction};
use rt::{BlockingFile, RoomyFile, Rt};
use types::ObjectId;
use wire::crc32c;

use crate::backend::FileBackend;
use crate::before::Before;
use crate::check::{BadPlace, Held};
use crate::db::{
    ADVICE, ANSWERS, COUNTED, DOUBTED, DbError, EXTENTS, MACHINES, OBJECTS, ORIGINS, PROMISES, REVOKED, SEQUENCES,
    SESSIONS, STATE, SUPER,
};
use crate::error::OpenError;
use crate::fence::epoch_of;
use crate::format::{
    Extent, SUPERBLOCK_BYTES, Superblock, advice_from_bytes, answer_from_bytes, extent_from_bytes, extent_of_key,
    object_from_bytes, object_key, object_of_key, object_to_bytes, promise_from_bytes,
};
use crate::map::CHUNK_BLOCKS;
use crate::openings::OPENINGS;

/// Name of the database in a store's directory.
const DATABASE: &str = "meta.redb";
/// Records of a new database that are committed together.
const TOGETHER_MAX: usize = 20_000;
/// So many object ids are left out behind the highest one that is known, where the record of what was given out is lost.
const IDS_SKIPPED: u32 = 1 << 16;
/// Transactions of one opening are fewer than two to the power of this.
const TRANSNO_BITS: u32 = 40;

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
    let whole = dbcheck::Whole::known(rt, &path);
    rt.offload(move || dbcheck::mend(file, cache_bytes, whole.as_ref())).await.map_err(io)
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

/// Makes a new database of the rows that can still be read of the one in `dir`, of which no commit is whole. The damaged file stays
/// beside it, under the name that is answered. Rows that need ones that are lost stay as they are, for a check to name their
/// objects; [`mend_rows`] puts them right. Sessions are forgotten unless all of them can be read. Without the superblock,
/// here or in block 0 of the data file, or without a row nothing is changed. Nobody may have the store open.
///
/// # Errors
/// A file cannot be read, or there is no space for the new database.
pub async fn salvage(rt: &Rt, dir: &Path, cache_bytes: usize) -> Result<(Salvaged, PathBuf), OpenError> {
    let open = |name: &str| rt.open_blocking(&dir.join(name), false).map_err(|e| OpenError::Io(dir.join(name), e));
    let (data, epoch) = (open("data")?, open(crate::EPOCH_FILE).ok());
    let make = move |from: &dyn BlockingFile, to: Box<dyn BlockingFile>| {
        let mut block = vec![0; BLOCK_BYTES as usize];
        let superblock = data.read(0, &mut block).ok().and_then(|()| Superblock::from_bytes(&block).ok());
        let to = database(to, cache_bytes)?;
        let commits = dbcheck::commits(from)?;
        for (i, of) in commits.iter().enumerate() {
            let before = commits.get(i + 1).map(|of| Before { from, of, to: &to, data: &*data });
            let copied = Copying { from, of, to: &to, before }.all(superblock.clone(), epoch.as_deref())?;
            if copied.records > 0 {
                return Ok(copied);
            }
        }
        Ok(Salvaged::default())
    };
    dbcheck::rebuild(rt, dir, DATABASE, make).await.map_err(|(at, e)| OpenError::Io(at, e))
}

fn database(file: Box<dyn BlockingFile>, cache_bytes: usize) -> io::Result<Database> {
    let file = RoomyFile::new(file, 0)?;
    // Without space this is an error at once; there is nothing to wait with.
    file.room().give_up();
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    builder.create_with_backend(FileBackend(file)).map_err(io::Error::other)
}

pub(crate) fn failed(e: impl Into<redb::Error>) -> io::Error {
    io::Error::other(e.into())
}

/// Rows of one commit on their way to a new database.
struct Copying<'a> {
    from: &'a dyn BlockingFile,
    of: &'a Commit,
    to: &'a Database,
    before: Option<Before<'a>>,
}

impl Copying<'_> {
    /// All tables. Nothing counts without a superblock.
    fn all(&self, superblock: Option<Superblock>, epoch: Option<&dyn BlockingFile>) -> io::Result<Salvaged> {
        let is_super = |k: &[u8], v: &[u8]| k == b"superblock" && Superblock::from_bytes(v).is_ok();
        let is_object =
            |k: &[u8], v: &[u8]| k.try_into().is_ok_and(|k| object_from_bytes(object_of_key(&k), v).is_ok());
        let is_extent = |k: &[u8], v: &[u8]| k.try_into().is_ok_and(|k| extent_from_bytes(k, v).is_ok());
        let is_answer = |k: &[u8], v: &[u8]| k.try_into().is_ok_and(|k| answer_from_bytes(k, v).is_ok());
        let is_advice =
            |k: &[u8], v: &[u8]| k.try_into().is_ok_and(|k| advice_from_bytes(object_of_key(&k), v).is_ok());
        let is_promise =
            |k: &[u8], v: &[u8]| k.try_into().is_ok_and(|k| promise_from_bytes(object_of_key(&k), v).is_ok());
        let of_super = self.table(SUPER, Some(&is_super))?;
        let (of_objects, lost_objects) = self.table_and_lost(OBJECTS, Some(&is_object))?;
        let (of_extents, lost_extents) = self.table_and_lost(EXTENTS, Some(&is_extent))?;
        // Rows without checksums of their own: those of whole pages only.
        let of_state = self.table(STATE, None)?;
        let of_sequences = self.table(SEQUENCES, None)?;
        let of_openings = self.table(OPENINGS, None)?;
        let of_clients = [
            self.table(SESSIONS, None)?,
            self.table(ORIGINS, None)?,
            self.table(MACHINES, None)?,
            self.table(ANSWERS, Some(&is_answer))?,
        ];
        let of_advice = self.table(ADVICE, Some(&is_advice))?;
        let of_promises = self.table(PROMISES, Some(&is_promise))?;
        // What is lost of it the metadata server tells again with its next session.
        let of_revoked = self.table(REVOKED, None)?;
        let all = [of_super, of_objects, of_extents, of_state, of_sequences, of_advice, of_promises, of_revoked];
        let all = all.into_iter().chain(of_clients);
        let sum = all.fold(Salvaged::default(), |a, b| Salvaged {
            records: a.records + b.records,
            damaged_pages: a.damaged_pages + b.damaged_pages,
        });
        if of_super.records + of_objects.records + of_extents.records == 0 {
            return Ok(Salvaged::default());
        }
        let filled = self.before.as_ref().map(|before| before.fill(&lost_objects, &lost_extents)).transpose()?;
        let sum = Salvaged { records: sum.records + filled.unwrap_or(0), ..sum };
        let txn = self.to.begin_write().map_err(failed)?;
        let known = settle_superblock(&txn, superblock)?;
        let Some(superblock) = known else { return Ok(Salvaged::default()) };
        let state_lost = settle_state(&txn, &superblock, epoch)?;
        if state_lost || of_clients.iter().any(|t| t.damaged_pages > 0) {
            txn.delete_table(SESSIONS).map_err(failed)?;
            txn.delete_table(ORIGINS).map_err(failed)?;
            txn.delete_table(MACHINES).map_err(failed)?;
            txn.delete_table(ANSWERS).map_err(failed)?;
        }
        if state_lost || of_openings.damaged_pages > 0 {
            // Without some of them it looks like an older copy; without any it is not looked at.
            txn.delete_table(OPENINGS).map_err(failed)?;
        }
        txn.open_table(SESSIONS).map_err(failed)?;
        // Counts are not saved: the next opening counts anew.
        txn.open_table(STATE).map_err(failed)?.remove(COUNTED).map_err(failed)?;
        settle_sequences(&txn, IDS_SKIPPED).map_err(io::Error::other)?;
        txn.commit().map_err(failed)?;
        Ok(sum)
    }

    /// The rows of a table that are on whole pages or `is_whole` themselves. Of two under one key that of the whole page counts.
    fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'_, K, V>,
        is_whole: Option<&IsWhole<'_>>,
    ) -> io::Result<Salvaged> {
        self.table_and_lost(table, is_whole).map(|(saved, _)| saved)
    }

    /// The same, and which rows may be missing.
    fn table_and_lost<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'_, K, V>,
        is_whole: Option<&IsWhole<'_>>,
    ) -> io::Result<(Salvaged, Lost)> {
        let mut batch: Vec<(Vec<u8>, Vec<u8>, bool)> = Vec::new();
        let commit = |batch: &mut Vec<(Vec<u8>, Vec<u8>, bool)>| -> io::Result<()> {
            let txn = self.to.begin_write().map_err(failed)?;
            {
                let mut table = txn.open_table(table).map_err(failed)?;
                for (key, value, trusted) in batch.drain(..) {
                    if trusted || table.get(K::from_bytes(&key)).map_err(failed)?.is_none() {
                        table.insert(K::from_bytes(&key), V::from_bytes(&value)).map_err(failed)?;
                    }
                }
            }
            txn.commit().map_err(failed)
        };
        let shape = Shape { key: K::fixed_width(), value: V::fixed_width() };
        let name = redb::TableHandle::name(&table);
        let saved =
            dbcheck::salvage_and_lost(self.from, self.of, name, shape, is_whole, &mut |key, value, trusted| {
                batch.push((key.to_vec(), value.to_vec(), trusted));
                if batch.len() >= TOGETHER_MAX { commit(&mut batch) } else { Ok(()) }
            })?;
        commit(&mut batch)?;
        Ok(saved)
    }
}

/// The superblock of the new database: the one that was found there, or `other`.
fn settle_superblock(txn: &WriteTransaction, other: Option<Superblock>) -> io::Result<Option<Superblock>> {
    let mut table = txn.open_table(SUPER).map_err(failed)?;
    let found = table.get("superblock").map_err(failed)?.and_then(|b| Superblock::from_bytes(b.value()).ok());
    if let (None, Some(other)) = (&found, &other) {
        table.insert("superblock", other.to_bytes().as_slice()).map_err(failed)?;
    }
    Ok(found.or(other))
}

/// The numbers of the last opening and the last transaction; whether they were lost. Then they are ones that are above all that
/// were ever used: the file `epoch` tells the opening, and no opening has so many transactions.
fn settle_state(txn: &WriteTransaction, superblock: &Superblock, epoch: Option<&dyn BlockingFile>) -> io::Result<bool> {
    let mut state = txn.open_table(STATE).map_err(failed)?;
    let lost = ["transno", "boot"].iter().any(|k| !state.get(*k).is_ok_and(|v| v.is_some()));
    if lost {
        let boot = epoch.and_then(|file| epoch_of(file, superblock)).unwrap_or(1 << (u64::BITS - TRANSNO_BITS - 4));
        state.insert("boot", boot).map_err(failed)?;
        state.insert("transno", (boot + 1) << TRANSNO_BITS).map_err(failed)?;
    }
    Ok(lost)
}

/// No object has a higher id than was given out. Where nothing tells how far ids were given out, `skipped` more are left out.
fn settle_sequences(txn: &WriteTransaction, skipped: u32) -> Result<(), DbError> {
    let (objects, extents) = (txn.open_table(OBJECTS)?, txn.open_table(EXTENTS)?);
    let mut highest: BTreeMap<u64, u32> = BTreeMap::new();
    let mut see = |o: ObjectId| {
        let last = highest.entry(o.0.seq).or_default();
        *last = o.0.oid.max(*last);
    };
    for row in objects.iter()? {
        see(object_of_key(row?.0.value()));
    }
    for row in extents.iter()? {
        see(extent_of_key(row?.0.value()).0);
    }
    let mut sequences = txn.open_table(SEQUENCES)?;
    for (seq, highest) in highest {
        let said = sequences.get(seq)?.map(|v| v.value());
        let last = match said {
            None => highest.saturating_add(skipped),
            Some(said) => said.max(highest),
        };
        if said != Some(last) {
            sequences.insert(seq, last)?;
        }
    }
    Ok(())
}

/// Makes the rows of a store agree with each other: damaged ones go, and extents that another one contradicts; objects have the
/// blocks that their extents have, and one without a row of its own becomes what its extents tell. Nobody may have the store open.
///
/// # Errors
/// A file cannot be read or written.
pub async fn mend_rows(rt: &Rt, dir: &Path, cache_bytes: usize) -> Result<(), OpenError> {
    let open = |name: &str| rt.open_blocking(&dir.join(name), false).map_err(|e| OpenError::Io(dir.join(name), e));
    let (data, meta) = (open("data")?, open(DATABASE)?);
    let done = rt.offload(move || {
        let database = database(meta, cache_bytes)?;
        let txn = database.begin_write().map_err(failed)?;
        agree(&txn, &*data).map_err(io::Error::other)?;
        txn.commit().map_err(failed)
    });
    done.await.map_err(|e| OpenError::Io(dir.join(DATABASE), e))
}

type Extents<'a> = redb::Table<'a, &'static [u8; 24], &'static [u8]>;

fn agree(txn: &WriteTransaction, data: &dyn BlockingFile) -> Result<(), DbError> {
    let mut extents = txn.open_table(EXTENTS)?;
    let gone = contradicted(&extents, data)?;
    extents.retain(|k, _| !gone.contains(k))?;
    let mut held: BTreeMap<ObjectId, Held> = BTreeMap::new();
    for row in extents.iter()? {
        let (key, value) = row?;
        let (object, at) = extent_of_key(key.value());
        if let Ok(e) = extent_from_bytes(key.value(), value.value()) {
            held.entry(object).or_default().add(at, &e);
        }
    }
    let mut objects = txn.open_table(OBJECTS)?;
    objects.retain(|k, v| object_from_bytes(object_of_key(k), v).is_ok())?;
    let mut wrong: Vec<(ObjectId, ObjectAttr)> = Vec::new();
    for row in objects.iter()? {
        let (key, value) = row?;
        let object = object_of_key(key.value());
        let has = held.remove(&object).unwrap_or_default();
        if let Ok(attr) = object_from_bytes(object, value.value())
            && attr.blocks != has.blocks
        {
            wrong.push((object, ObjectAttr { blocks: has.blocks, ..attr }));
        }
    }
    wrong.extend(held.into_iter().map(|(object, held)| (object, held.attr())));
    for (object, attr) in wrong {
        objects.insert(&object_key(object), object_to_bytes(object, &attr).as_slice())?;
    }
    let mut advice = txn.open_table(ADVICE)?;
    advice.retain(|k, v| advice_from_bytes(object_of_key(k), v).is_ok())?;
    let mut promises = txn.open_table(PROMISES)?;
    promises.retain(|k, v| promise_from_bytes(object_of_key(k), v).is_ok())?;
    // The next opening counts anew.
    txn.open_table(STATE)?.remove(COUNTED)?;
    drop((objects, extents, advice, promises));
    // Their files were set aside.
    txn.delete_table(DOUBTED)?;
    settle_sequences(txn, IDS_SKIPPED)
}

/// The keys of extents that are damaged, lie where none may, or claim what another one has with more right: of two with the same
/// blocks of the data file the one whose checksums these match.
fn contradicted(extents: &Extents<'_>, data: &dyn BlockingFile) -> Result<BTreeSet<[u8; 24]>, DbError> {
    let end = data.len().map_err(redb::Error::from)? / BLOCK_BYTES;
    let mut gone = BTreeSet::new();
    let mut placed: Vec<(u64, u64, [u8; 24])> = Vec::new();
    let mut before = (ObjectId::default(), 0);
    for row in extents.iter()? {
        let (key, value) = row?;
        let (object, at) = extent_of_key(key.value());
        match extent_from_bytes(key.value(), value.value()) {
            Ok(e)
                if at % CHUNK_BLOCKS + e.blocks <= CHUNK_BLOCKS
                    && e.phys.checked_add(e.blocks).is_some_and(|last| last <= end)
                    && !(before.0 == object && at < before.1) =>
            {
                before = (object, at + e.blocks);
                placed.push((e.phys, e.blocks, *key.value()));
            }
            _ => drop(gone.insert(*key.value())),
        }
    }
    placed.sort_unstable();
    let mut last: Option<(u64, [u8; 24])> = None;
    for (phys, blocks, key) in placed {
        match last {
            Some((end, other)) if end > phys => {
                let other_goes = holds(extents, &key, data)? && !holds(extents, &other, data)?;
                gone.insert(if other_goes { other } else { key });
                if !other_goes {
                    continue;
                }
            }
            _ => {}
        }
        last = Some((phys + blocks, key));
    }
    Ok(gone)
}

/// Whether an extent's blocks in the data file are those that its checksums are of.
fn holds(extents: &Extents<'_>, key: &[u8; 24], data: &dyn BlockingFile) -> Result<bool, DbError> {
    let row = extents.get(key)?;
    let Some(Ok(Extent { phys, crcs: Some(crcs), .. })) = row.map(|v| extent_from_bytes(key, v.value())) else {
        return Ok(false);
    };
    let mut block = vec![0; BLOCK_BYTES as usize];
    for (at, crc) in (phys..).zip(crcs) {
        data.read(at * BLOCK_BYTES, &mut block).map_err(redb::Error::from)?;
        if crc32c(&block) != crc {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests")]
mod tests {
    use super::*;
    use crate::format::{extent_key, extent_to_bytes};
    use types::OstIndex;

    /// A data file: block `i` is full of the byte `i`.
    struct Blocks(u64);
    impl BlockingFile for Blocks {
        fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            into.fill((offset / BLOCK_BYTES) as u8);
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
        fn len(&self) -> io::Result<u64> {
            Ok(self.0 * BLOCK_BYTES)
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn object(i: u32) -> ObjectId {
        ObjectId::new(OstIndex(0), i)
    }

    /// An extent whose checksums are those of `bytes`, one for each block.
    fn extent(phys: u64, bytes: &[u8]) -> Extent {
        let crcs = bytes.iter().map(|b| crc32c(&[*b; BLOCK_BYTES as usize])).collect();
        Extent { phys, blocks: bytes.len() as u64, crcs: Some(crcs) }
    }

    #[test]
    fn rows_that_contradict_others_go_and_what_is_left_agrees() {
        let db = Database::builder().create_with_backend(redb::backends::InMemoryBackend::new()).unwrap();
        let txn = db.begin_write().unwrap();
        {
            let mut objects = txn.open_table(OBJECTS).unwrap();
            for (i, blocks) in [(1, 9), (2, 1)] {
                let attr = ObjectAttr { size: 100, blocks, ..ObjectAttr::default() };
                objects.insert(&object_key(object(i)), object_to_bytes(object(i), &attr).as_slice()).unwrap();
            }
            objects.insert(&object_key(object(3)), [0; 64].as_slice()).unwrap();
            let mut extents = txn.open_table(EXTENTS).unwrap();
            let mut put = |i, at, e: &Extent| {
                let key = extent_key(object(i), at);
                extents.insert(&key, extent_to_bytes(&key, e).as_slice()).unwrap();
            };
            put(1, 0, &extent(2, &[2, 3]));
            // A second claim to block 1 of the object, one to block 3 of the data file with other bytes, one to block 5 before
            // the right one, one that lies behind the end, and one of an object without a row.
            put(1, 1, &extent(9, &[9]));
            put(2, 0, &extent(3, &[77]));
            put(2, 4, &extent(4, &[4, 99]));
            put(2, 8, &extent(5, &[5]));
            put(2, 12, &extent(31, &[31, 32]));
            put(4, 6, &extent(20, &[20]));
            extents.insert(&extent_key(object(2), 20), [0; 20].as_slice()).unwrap();
        }
        agree(&txn, &Blocks(32)).unwrap();
        let extents = txn.open_table(EXTENTS).unwrap();
        let left: Vec<(ObjectId, u64)> = extents.iter().unwrap().map(|r| extent_of_key(r.unwrap().0.value())).collect();
        assert_eq!(left, [(object(1), 0), (object(2), 8), (object(4), 6)]);
        let objects = txn.open_table(OBJECTS).unwrap();
        let rows = objects.iter().unwrap().map(|r| {
            let (k, v) = r.unwrap();
            let object = object_of_key(k.value());
            let attr = object_from_bytes(object, v.value()).unwrap();
            (object, attr.size, attr.blocks)
        });
        let size_of_four = 7 * BLOCK_BYTES;
        assert_eq!(rows.collect::<Vec<_>>(), [(object(1), 100, 2), (object(2), 100, 1), (object(4), size_of_four, 1)]);
        assert_eq!(txn.open_table(SEQUENCES).unwrap().get(object(4).0.seq).unwrap().unwrap().value(), 4 + IDS_SKIPPED);
    }
}
