//! What the locks of the model protect: cells (a block of an object, a bit of an inode) with a version each.
//!
//! A client reads and writes cells under its locks through a cache of its own; a revoked lock flushes and drops what
//! no other lock of the client covers. Every read must find the version that was written last, wherever. Cells dropped
//! at the start of a flush come back if a read is served meanwhile: a flush that is not repeated then shows as a stale
//! read.
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Model;
use crate::LockMode;
use crate::lock::{InodeBits, LockCookie, LockDesc, LockPolicyData, ResourceId};

/// Blocks of an object that the model uses.
const BLOCKS: u64 = 80;
const BLOCK_BYTES: u64 = 4096;

/// (resource, block or bit number)
pub(super) type Cell = (ResourceId, u64);

/// A client's copy of a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    version: u64,
    dirty: bool,
}

pub(super) type Copies = BTreeMap<Cell, Copy>;

/// The versions at the server, and those a reader must see.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    stored: BTreeMap<Cell, u64>,
    latest: BTreeMap<Cell, u64>,
    versions: u64,
    pub(super) reads: u64,
}

fn covers(data: &LockPolicyData, cell: u64) -> bool {
    match data {
        LockPolicyData::Extent { extent, .. } => {
            extent.start <= cell * BLOCK_BYTES && extent.end >= (cell + 1) * BLOCK_BYTES
        }
        LockPolicyData::Inodebits { bits } => cell < 8 && bits.0 & (1 << cell) != 0,
    }
}

fn reads(mode: LockMode) -> bool {
    matches!(mode, LockMode::Pr | LockMode::Pw | LockMode::Ex)
}

impl Model {
    /// Some cell that a lock covers.
    fn cell_under(&mut self, lock: &LockDesc) -> Option<Cell> {
        let cells = if lock.data.as_extent().is_some() { BLOCKS } else { 8 };
        let first = self.rng.below(cells);
        let cell = (0..cells).map(|i| (first + i) % cells).find(|c| covers(&lock.data, *c))?;
        Some((lock.resource, cell))
    }

    /// Client `i` uses a lock it has a reference to: reads a cell, perhaps writes it.
    pub(super) fn use_lock(&mut self, i: usize, cookie: LockCookie) -> Result<(), String> {
        let Some(lock) = self.clients[i].cache.get(cookie).filter(|l| reads(l.mode)) else { return Ok(()) };
        if self.clients[i].evicted {
            return Ok(()); // what it does now, nobody sees
        }
        let Some(cell) = self.cell_under(&lock) else { return Ok(()) };
        let stored = self.data.stored.get(&cell).copied().unwrap_or(0);
        let client = &mut self.clients[i];
        let copy = client.copies.entry(cell).or_insert(Copy { version: stored, dirty: false });
        let latest = self.data.latest.get(&cell).copied().unwrap_or(0);
        if copy.version != latest {
            return Err(format!(
                "{} reads version {} of {cell:?}, not {latest}, under {lock:?}",
                client.id, copy.version
            ));
        }
        self.data.reads += 1;
        if lock.mode != LockMode::Pr && self.rng.chance(0.5) {
            self.data.versions += 1;
            *copy = Copy { version: self.data.versions, dirty: true };
            self.data.latest.insert(cell, self.data.versions);
        }
        Ok(())
    }

    /// Flushes what a leaving lock covers and drops what no other lock does; `keep` stays, and all of it where the lock itself
    /// stays in `keep_mode`.
    pub(super) fn flush_under(&mut self, i: usize, lock: &LockDesc, keep: InodeBits, keep_mode: Option<LockMode>) {
        if self.clients[i].evicted {
            return;
        }
        let client = &mut self.clients[i];
        let bits = matches!(lock.data, LockPolicyData::Inodebits { .. });
        let stays = |cell: u64| bits && covers(&LockPolicyData::bits(keep), cell);
        let under = |cell: &Cell| cell.0 == lock.resource && covers(&lock.data, cell.1) && !stays(cell.1);
        let cells: Vec<Cell> = client.copies.keys().copied().filter(under).collect();
        for cell in cells {
            let Some(copy) = client.copies.get_mut(&cell) else { continue };
            if core::mem::take(&mut copy.dirty) {
                self.data.stored.insert(cell, copy.version);
            }
            if keep_mode.is_some_and(reads) {
                continue;
            }
            let other = |l: &LockDesc| {
                l.cookie != lock.cookie && l.resource == cell.0 && reads(l.mode) && covers(&l.data, cell.1)
            };
            let cache = &client.cache;
            if !cache.locks().any(|(l, _)| other(&l) && cache.is_valid(l.cookie)) {
                client.copies.remove(&cell);
            }
        }
    }

    /// A server-side operation changes something; the client it serves learns it from the reply.
    pub(super) fn server_write(&mut self, lock: &LockDesc, on_behalf: Option<usize>) {
        if lock.mode == LockMode::Pr {
            return;
        }
        let Some(cell) = self.cell_under(lock) else { return };
        self.data.versions += 1;
        let version = self.data.versions;
        self.data.stored.insert(cell, version);
        self.data.latest.insert(cell, version);
        if let Some(copy) = on_behalf.and_then(|i| self.clients[i].copies.get_mut(&cell)) {
            *copy = Copy { version, dirty: false };
        }
    }

    /// The server gave up on client `i`: what it had not flushed is lost.
    pub(super) fn lose_copies(&mut self, i: usize) {
        for (cell, copy) in core::mem::take(&mut self.clients[i].copies) {
            if copy.dirty {
                let stored = self.data.stored.get(&cell).copied().unwrap_or(0);
                self.data.latest.insert(cell, stored);
            }
        }
    }
}
