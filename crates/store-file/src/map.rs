//! An object in memory: its attributes and the part of its extent map that is loaded.
//!
//! The map is kept in chunks of 64 MiB, each loaded and dropped as a whole. What changed since the last commit is known
//! by the first block of its extent, so a commit writes what those places hold then.
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use oss::store::{BlockRange, ObjectAttr};
use wire::Crc;

use crate::format::{EXTENT_BLOCKS_MAX, Extent};
use crate::space::Run;

/// Blocks of a chunk: 64 MiB.
pub(crate) const CHUNK_BLOCKS: u64 = 1 << 14;

/// One chunk of an object's map.
#[derive(Default)]
pub(crate) struct Chunk {
    extents: BTreeMap<u64, Extent>,
    dirty: BTreeSet<u64>,
    /// The commit whose end makes it safe to drop this chunk.
    pinned_until: u64,
}

/// What lies at some blocks of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Nothing, or reserved space: zeros.
    Zeros(u64),
    /// Data.
    Data { phys: u64, crcs: Vec<Crc> },
}

impl Piece {
    /// Bytes of data; `None`: it is none.
    pub fn data_bytes(&self) -> Option<usize> {
        match self {
            Piece::Zeros(_) => None,
            Piece::Data { crcs, .. } => Some(crcs.len() * oss::store::BLOCK_BYTES as usize),
        }
    }
}

/// An object in memory.
pub(crate) struct Object {
    pub attr: ObjectAttr,
    chunks: BTreeMap<u64, Chunk>,
    /// From this chunk on, chunks that are not here hold nothing.
    complete_from: u64,
    pub attr_dirty: bool,
    pub pinned_until: u64,
}

impl Object {
    /// An object that was just made.
    pub fn fresh() -> Object {
        let known = Object::known(ObjectAttr::default());
        Object { complete_from: 0, attr_dirty: true, ..known }
    }

    /// An object that is in the database; nothing of its map is loaded.
    pub fn known(attr: ObjectAttr) -> Object {
        Object { attr, chunks: BTreeMap::new(), complete_from: u64::MAX, attr_dirty: false, pinned_until: 0 }
    }

    fn chunk_span(range: BlockRange) -> std::ops::RangeInclusive<u64> {
        range.first / CHUNK_BLOCKS..=range.end().saturating_sub(1).max(range.first) / CHUNK_BLOCKS
    }

    /// Whether the map of `range` is in memory.
    pub fn has(&self, range: BlockRange) -> bool {
        let missing = self.missing(range);
        let wanted = missing.end - missing.start;
        wanted <= self.chunks.len() as u64 && missing.into_iter().all(|c| self.chunks.contains_key(&c))
    }

    /// The chunks of `range` that have to be here one by one for its map to be in memory.
    pub fn missing(&self, range: BlockRange) -> Range<u64> {
        let span = Self::chunk_span(range);
        let end = (*span.end() + 1).min(self.complete_from);
        *span.start()..end.max(*span.start())
    }

    /// Puts the rows of whole `chunks` in; chunks that are here already are newer and stay. An end of `u64::MAX`: all there
    /// are from the first one on. Answers how many block checksums came in.
    pub fn load(&mut self, chunks: Range<u64>, rows: Vec<(u64, Extent)>) -> usize {
        let mut fresh: BTreeMap<u64, Chunk> = BTreeMap::new();
        let mut count = 0;
        if chunks.end != u64::MAX {
            for c in chunks.clone() {
                if !self.chunks.contains_key(&c) {
                    fresh.insert(c, Chunk::default());
                }
            }
        }
        for (first, extent) in rows {
            let c = first / CHUNK_BLOCKS;
            if !self.chunks.contains_key(&c) {
                count += extent.blocks as usize;
                fresh.entry(c).or_default().extents.insert(first, extent);
            }
        }
        self.chunks.extend(fresh);
        if chunks.end >= self.complete_from {
            self.complete_from = self.complete_from.min(chunks.start);
        }
        count
    }

    /// Drops chunks that nothing uncommitted hangs on, but none of those that `kept` speaks of. Answers the number of block
    /// checksums that went.
    pub fn shed(&mut self, committed: u64, kept: impl Fn(u64) -> bool) -> usize {
        let (mut gone, mut last) = (0, None);
        self.chunks.retain(|number, c| {
            let stays = !c.dirty.is_empty() || c.pinned_until > committed || kept(*number);
            if !stays {
                gone += c.mapped();
                last = Some(*number);
            }
            stays
        });
        if let Some(last) = last {
            self.complete_from = self.complete_from.max(last + 1);
        }
        gone
    }

    /// Whether a range touches a chunk.
    pub fn touches(range: BlockRange, chunk: u64) -> bool {
        Self::chunk_span(range).contains(&chunk)
    }

    /// Chunks in memory.
    pub fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// First block of the first chunk from `chunk` on that is here and holds anything.
    pub fn next_here(&self, chunk: u64) -> Option<u64> {
        let mut filled = self.chunks.range(chunk..).filter(|(_, c)| !c.extents.is_empty());
        filled.next().map(|(number, _)| number * CHUNK_BLOCKS)
    }

    /// Whether there is nothing from `chunk` on but what is here.
    pub fn is_complete_from(&self, chunk: u64) -> bool {
        self.complete_from <= chunk
    }

    /// Whether the whole object may leave memory.
    pub fn is_clean(&self, committed: u64) -> bool {
        !self.attr_dirty
            && self.pinned_until <= committed
            && self.chunks.values().all(|c| c.dirty.is_empty() && c.pinned_until <= committed)
    }

    /// Block checksums in memory.
    pub fn mapped(&self) -> usize {
        self.chunks.values().map(Chunk::mapped).sum()
    }

    /// Extents that touch `range`, in order, cut to it: first block, physical block, blocks, and whether it is data.
    fn touching(&self, range: BlockRange) -> Vec<(u64, Extent)> {
        let mut out = Vec::new();
        for (_, chunk) in self.chunks.range(Self::chunk_span(range)) {
            let start = chunk.extents.range(..=range.first).next_back().map_or(range.first, |(s, _)| *s);
            for (first, e) in chunk.extents.range(start..range.end()) {
                if first + e.blocks > range.first {
                    out.push((*first, cut(*first, e, range)));
                }
            }
        }
        out.iter_mut().for_each(|(first, _)| *first = (*first).max(range.first));
        out
    }

    /// What lies at `range`, in order; neighbouring data is joined. The map of `range` is in memory.
    pub fn pieces(&self, range: BlockRange) -> Vec<Piece> {
        let mut out: Vec<Piece> = Vec::new();
        let mut at = range.first;
        for (first, e) in self.touching(range) {
            push_zeros(&mut out, first - at);
            at = first + e.blocks;
            match (e.crcs, out.last_mut()) {
                (None, _) => push_zeros(&mut out, e.blocks),
                (Some(crcs), Some(Piece::Data { phys, crcs: have })) if *phys + have.len() as u64 == e.phys => {
                    have.extend(crcs);
                }
                (Some(crcs), _) => out.push(Piece::Data { phys: e.phys, crcs }),
            }
        }
        push_zeros(&mut out, range.end() - at);
        out
    }

    /// Blocks of `range` without space.
    pub fn holes(&self, range: BlockRange) -> u64 {
        range.count - self.touching(range).iter().map(|(_, e)| e.blocks).sum::<u64>()
    }

    /// Ranges within `range` that have no space.
    pub fn hole_ranges(&self, range: BlockRange) -> Vec<BlockRange> {
        let (mut out, mut at) = (Vec::new(), range.first);
        for (first, e) in self.touching(range) {
            if first > at {
                out.push(BlockRange::new(at, first));
            }
            at = first + e.blocks;
        }
        if at < range.end() {
            out.push(BlockRange::new(at, range.end()));
        }
        out
    }

    /// Where block `block` would best lie: behind what comes before it.
    pub fn goal(&self, block: u64) -> Option<u64> {
        let chunk = self.chunks.get(&(block.checked_sub(1)? / CHUNK_BLOCKS))?;
        let (first, e) = chunk.extents.range(..block).next_back()?;
        (first + e.blocks == block).then_some(e.phys + e.blocks)
    }

    /// Takes the space of `range` out of the map; it is appended to `freed`. With `reserved_only`, data stays and the
    /// blocks' places in the object come along.
    fn take(&mut self, range: BlockRange, reserved_only: bool, freed: &mut Vec<(u64, Run)>) {
        for (first, part) in self.touching(range) {
            if reserved_only && part.crcs.is_some() {
                continue;
            }
            let chunk = self.chunks.get_mut(&(first / CHUNK_BLOCKS)).expect("a touching extent lies in a loaded chunk");
            let (start, whole) =
                chunk.extents.range(..=first).next_back().map(|(s, e)| (*s, e.clone())).expect("it touches");
            chunk.extents.remove(&start);
            chunk.dirty.insert(start);
            let end = start + whole.blocks;
            let part_end = first + part.blocks;
            for keep in [BlockRange::new(start, first), BlockRange::new(part_end, end)] {
                if !keep.is_empty() {
                    chunk.extents.insert(keep.first, cut(start, &whole, keep));
                    chunk.dirty.insert(keep.first);
                }
            }
            self.attr.blocks -= part.blocks;
            freed.push((first, Run { start: part.phys, blocks: part.blocks }));
        }
    }

    /// Makes `range` a hole; its space is appended to `freed`.
    pub fn unmap(&mut self, range: BlockRange, freed: &mut Vec<Run>) {
        let mut out = Vec::new();
        self.take(range, false, &mut out);
        freed.extend(out.into_iter().map(|(_, run)| run));
    }

    /// Reserved blocks of `range`: place and space.
    pub fn reserved(&self, range: BlockRange) -> Vec<(u64, Run)> {
        let reserved = self.touching(range).into_iter().filter(|(_, e)| e.crcs.is_none());
        reserved.map(|(first, e)| (first, Run { start: e.phys, blocks: e.blocks })).collect()
    }

    /// Takes reserved blocks of `range` out of the map, to be mapped again as data.
    pub fn take_reserved(&mut self, range: BlockRange) {
        self.take(range, true, &mut Vec::new());
    }

    /// Maps holes: blocks from `first` on lie at `phys`. `crcs`: one per block, or `None` for `blocks` reserved ones.
    pub fn map(&mut self, first: u64, run: Run, crcs: Option<&[Crc]>) {
        self.attr.blocks += run.blocks;
        let mut done = 0;
        while done < run.blocks {
            let block = first + done;
            let room = CHUNK_BLOCKS - block % CHUNK_BLOCKS;
            let count = (run.blocks - done).min(room).min(EXTENT_BLOCKS_MAX);
            let part = crcs.map(|c| c[done as usize..(done + count) as usize].to_vec());
            let chunk = self.chunks.entry(block / CHUNK_BLOCKS).or_default();
            chunk.insert(block, Extent { phys: run.start + done, blocks: count, crcs: part });
            done += count;
        }
    }

    /// First block of `range` that is data (or is not); the map of `range` is in memory.
    pub fn seek(&self, range: BlockRange, data: bool) -> Option<u64> {
        let mut at = range.first;
        for (first, e) in self.touching(range) {
            let is_data = e.crcs.is_some();
            if data && is_data {
                return Some(first);
            }
            if !data && (first > at || !is_data) {
                return Some(at);
            }
            at = first + e.blocks;
        }
        (!data && at < range.end()).then_some(at)
    }

    /// Whether anything of it waits for a commit.
    #[cfg(test)]
    pub fn is_dirty(&self) -> bool {
        self.attr_dirty || self.chunks.values().any(|c| !c.dirty.is_empty())
    }

    /// Hands every changed place out: its first block and what lies there now. The object is pinned until `commit`.
    pub fn take_dirty(&mut self, commit: u64, mut changed: impl FnMut(u64, Option<&Extent>)) {
        for chunk in self.chunks.values_mut().filter(|c| !c.dirty.is_empty()) {
            chunk.pinned_until = commit;
            for first in std::mem::take(&mut chunk.dirty) {
                changed(first, chunk.extents.get(&first));
            }
        }
        self.pinned_until = commit;
        self.attr_dirty = false;
    }
}

impl Chunk {
    /// Block checksums that it holds.
    fn mapped(&self) -> usize {
        self.extents.values().map(|e| e.blocks as usize).sum()
    }

    /// Adds an extent, joined to its neighbour in front where both the object and the medium go on.
    fn insert(&mut self, first: u64, e: Extent) {
        if let Some((start, before)) = self.extents.range_mut(..first).next_back()
            && start + before.blocks == first
            && before.phys + before.blocks == e.phys
            && before.blocks + e.blocks <= EXTENT_BLOCKS_MAX
            && before.crcs.is_some() == e.crcs.is_some()
        {
            before.blocks += e.blocks;
            if let (Some(have), Some(more)) = (&mut before.crcs, e.crcs) {
                have.extend(more);
            }
            self.dirty.insert(*start);
            return;
        }
        self.extents.insert(first, e);
        self.dirty.insert(first);
    }
}

/// The part of an extent at `first` that lies in `range`.
fn cut(first: u64, e: &Extent, range: BlockRange) -> Extent {
    let (from, to) = (range.first.max(first) - first, range.end().min(first + e.blocks) - first);
    let crcs = e.crcs.as_ref().map(|c| c[from as usize..to as usize].to_vec());
    Extent { phys: e.phys + from, blocks: to - from, crcs }
}

fn push_zeros(out: &mut Vec<Piece>, blocks: u64) {
    match out.last_mut() {
        _ if blocks == 0 => {}
        Some(Piece::Zeros(n)) => *n += blocks,
        _ => out.push(Piece::Zeros(blocks)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Rng;

    #[test]
    fn the_map_equals_an_array_of_blocks_and_its_dirty_places_rebuild_it() {
        let (mut rng, mut o) = (Rng::new(8), Object::fresh());
        const N: u64 = CHUNK_BLOCKS * 2 + 500;
        // Physical block + checksum of each block; checksum None: reserved.
        let mut model: BTreeMap<u64, (u64, Option<Crc>)> = BTreeMap::new();
        let mut disk: BTreeMap<u64, Extent> = BTreeMap::new();
        let mut next = 1;
        for commit in 1..400u64 {
            let first = if rng.chance(0.5) { CHUNK_BLOCKS - 300 + rng.below(600) } else { rng.below(N - 700) };
            let range = BlockRange::new(first, first + 1 + rng.below(600));
            let mut freed = Vec::new();
            o.unmap(range, &mut freed);
            let mut want: Vec<u64> = model.range(first..range.end()).map(|(_, p)| p.0).collect();
            let mut got: Vec<u64> = freed.iter().flat_map(|r| r.start..r.start + r.blocks).collect();
            want.sort_unstable();
            got.sort_unstable();
            assert_eq!(want, got);
            model.retain(|b, _| *b < first || *b >= range.end());
            if rng.chance(0.7) {
                let reserve = rng.chance(0.2);
                let crcs: Vec<Crc> = (0..range.count).map(|_| rng.next_u64() as u32).collect();
                o.map(first, Run { start: next, blocks: range.count }, (!reserve).then_some(&crcs));
                for i in 0..range.count {
                    model.insert(first + i, (next + i, (!reserve).then_some(crcs[i as usize])));
                }
                next += range.count + rng.below(2);
            }
            assert_eq!(o.attr.blocks, model.len() as u64);
            if commit % 3 == 0 {
                o.take_dirty(commit, |first, e| match e {
                    Some(e) => drop(disk.insert(first, e.clone())),
                    None => drop(disk.remove(&first)),
                });
                let mut again = Object::known(ObjectAttr::default());
                again.load(0..u64::MAX, disk.iter().map(|(f, e)| (*f, e.clone())).collect());
                let all = BlockRange::new(0, N);
                assert_eq!(again.pieces(all), o.pieces(all));
                assert!(!o.is_dirty());
            }
            check(&o, &model, BlockRange::new(range.first.saturating_sub(9), range.end() + 9));
        }
    }

    fn check(o: &Object, model: &BTreeMap<u64, (u64, Option<Crc>)>, range: BlockRange) {
        let mut at = range.first;
        for p in o.pieces(range) {
            match p {
                Piece::Zeros(n) => {
                    assert!((at..at + n).all(|b| model.get(&b).is_none_or(|(_, c)| c.is_none())));
                    at += n;
                }
                Piece::Data { phys, crcs } => {
                    for (i, crc) in crcs.iter().enumerate() {
                        assert_eq!(model.get(&(at + i as u64)), Some(&(phys + i as u64, Some(*crc))));
                    }
                    at += crcs.len() as u64;
                }
            }
        }
        assert_eq!(at, range.end());
        let is_data = |b: &u64| matches!(model.get(b), Some((_, Some(_))));
        assert_eq!(o.seek(range, false), (range.first..range.end()).find(|b| !is_data(b)));
        assert_eq!(o.seek(range, true), (range.first..range.end()).find(is_data));
        assert_eq!(o.holes(range), (range.first..range.end()).filter(|b| !model.contains_key(b)).count() as u64);
    }
}
