//! Rows that the newest commit of a damaged database has lost and the commit before it still has: for `stria fsck --repair`.
//!
//! The engine writes a page to another place whenever a row on it changes: the rows of a page that is lost are on one of the commit before,
//! most of them as they were. Which of them the newest commit had changed nothing tells for an object's own row. For its extents that row
//! does: every change of them changes it. Objects of which it cannot be said are doubted (the table `doubted`): a check names them, and
//! their files are set aside. Blocks that the newest commit has freed may have been written since: of an extent those count that match
//! their checksums. What lies on no whole page of the commit before stays lost.
use std::collections::BTreeSet;
use std::io;

use dbcheck::{Commit, Lost, Shape};
use oss::store::BLOCK_BYTES;
use redb::{Database, ReadableTable, Table, TableDefinition, TableHandle, WriteTransaction};
use rt::BlockingFile;
use types::ObjectId;
use wire::crc32c;

use crate::db::{DOUBTED, EXTENTS, OBJECTS};
use crate::format::{
    Extent, extent_from_bytes, extent_key, extent_of_key, extent_to_bytes, object_from_bytes, object_key, object_of_key,
};
use crate::repair::failed;

type ObjectKey = [u8; 16];
/// Takes a row with a key of so many bytes.
type TakeRow<'a, const N: usize> = dyn FnMut(&[u8; N], &[u8]) -> io::Result<()> + 'a;

/// The commit before the newest one, and the new database that has what could be read of that one.
pub(crate) struct Before<'a> {
    pub from: &'a dyn BlockingFile,
    pub of: &'a Commit,
    pub to: &'a Database,
    pub data: &'a dyn BlockingFile,
}

impl Before<'_> {
    /// Rows in the place of those that may be lost; how many.
    pub fn fill(&self, objects: &Lost, extents: &Lost) -> io::Result<u64> {
        if objects.is_empty() && extents.is_empty() {
            return Ok(0);
        }
        let txn = self.to.begin_write().map_err(failed)?;
        let (of_objects, unchanged) = self.objects(&txn, objects)?;
        let of_extents = if extents.is_empty() { 0 } else { self.extents(&txn, extents, &unchanged)? };
        txn.commit().map_err(failed)?;
        Ok(of_objects + of_extents)
    }

    /// How many objects' rows were missing; and the objects whose rows are the same in both commits.
    fn objects(&self, txn: &WriteTransaction, lost: &Lost) -> io::Result<(u64, BTreeSet<ObjectKey>)> {
        let (mut filled, mut unchanged) = (0, BTreeSet::new());
        let (mut table, mut doubted) =
            (txn.open_table(OBJECTS).map_err(failed)?, txn.open_table(DOUBTED).map_err(failed)?);
        self.rows(OBJECTS, &mut |key: &ObjectKey, value| {
            let is_same = table.get(key).map_err(failed)?.map(|now| now.value() == value);
            // A row that was found on a damaged page may be an old one.
            if is_same == Some(true) && !lost.may_have(key) {
                unchanged.insert(*key);
            }
            if is_same.is_none() && lost.may_have(key) && object_from_bytes(object_of_key(key), value).is_ok() {
                table.insert(key, value).map_err(failed)?;
                doubted.insert(key, ()).map_err(failed)?;
                filled += 1;
            }
            Ok(())
        })?;
        Ok((filled, unchanged))
    }

    /// How many extents' rows were missing and are there now.
    fn extents(&self, txn: &WriteTransaction, lost: &Lost, unchanged: &BTreeSet<ObjectKey>) -> io::Result<u64> {
        let mut filled = 0;
        let objects = txn.open_table(OBJECTS).map_err(failed)?;
        let (mut table, mut doubted) =
            (txn.open_table(EXTENTS).map_err(failed)?, txn.open_table(DOUBTED).map_err(failed)?);
        self.rows(EXTENTS, &mut |key: &[u8; 24], value| {
            let (object, at) = extent_of_key(key);
            let (of, extent) = (object_key(object), extent_from_bytes(key, value));
            let is_lost = lost.may_have(key) && table.get(key).map_err(failed)?.is_none();
            // The extents of an object that was removed went with it.
            let (true, Ok(extent), Some(_)) = (is_lost, extent, objects.get(&of).map_err(failed)?) else {
                return Ok(());
            };
            let is_unchanged = unchanged.contains(&of);
            if !is_unchanged {
                doubted.insert(&of, ()).map_err(failed)?;
            }
            filled += 1;
            match extent.crcs {
                Some(_) => self.put_matching(&mut table, (object, at), &extent),
                None if is_unchanged => table.insert(key, value).map(drop).map_err(failed),
                // What was reserved may be another's by now, and nothing would show it.
                None => Ok(()),
            }
        })?;
        Ok(filled)
    }

    /// Puts the blocks of an extent into the table that match their checksums.
    fn put_matching(
        &self,
        table: &mut Table<'_, &'static [u8; 24], &'static [u8]>,
        (object, at): (ObjectId, u64),
        extent: &Extent,
    ) -> io::Result<()> {
        let crcs = extent.crcs.as_deref().unwrap_or_default();
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let mut matches = |i: usize| {
            let place = extent.phys.checked_add(i as u64).and_then(|block| block.checked_mul(BLOCK_BYTES));
            place.is_some_and(|place| self.data.read(place, &mut bytes).is_ok()) && crc32c(&bytes) == crcs[i]
        };
        let good: Vec<bool> = (0..crcs.len()).map(&mut matches).collect();
        let mut first = 0;
        for run in good.chunk_by(|a, b| a == b) {
            let end = first + run.len();
            if run[0] {
                let (phys, blocks) = (extent.phys + first as u64, run.len() as u64);
                let key = extent_key(object, at + first as u64);
                let piece = Extent { phys, blocks, crcs: Some(crcs[first..end].into()) };
                table.insert(&key, extent_to_bytes(&key, &piece).as_slice()).map_err(failed)?;
            }
            first = end;
        }
        Ok(())
    }

    /// The rows of a table at that commit that are on whole pages: others may be of a page that was written since.
    fn rows<const N: usize>(
        &self,
        table: TableDefinition<'_, &'static [u8; N], &'static [u8]>,
        take: &mut TakeRow<'_, N>,
    ) -> io::Result<()> {
        let shape = Shape { key: Some(N), value: None };
        dbcheck::salvage(self.from, self.of, table.name(), shape, None, &mut |key, value, trusted| {
            match <&[u8; N]>::try_from(key) {
                Ok(key) if trusted => take(key, value),
                _ => Ok(()),
            }
        })?;
        Ok(())
    }
}
