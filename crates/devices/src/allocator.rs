//! Block allocation on an OST: which bytes of the medium an object's bytes get.
//!
//! `mballoc` is the allocator of the calibrated hardware model of paper 001: it hands out regions one after the other
//! (bump), a region's size following the object's size after the write, so regions of objects written at the same time
//! interleave on the medium. `mballoc_aligned` starts each region at a multiple of its size, as ext4's normalisation does,
//! and is otherwise the same: what one turn of a scheduler writes then lies in one region. `mballoc_groups` is closer to what ext4 does today: aligned regions, an object keeps to its
//! block group and continues where its last region ended if that place is free. `contiguous` is the ideal.
//! Nothing is ever freed: scenarios write once.
use alloc::{format, string::String, vec::Vec};
use types::{KIB, MIB};

/// Which allocator an OST uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllocKind {
    /// Bump allocation of regions (calibrated on paper 001).
    #[default]
    Mballoc,
    /// Bump allocation of regions that start at multiples of their size.
    MballocAligned,
    /// Aligned regions within block groups.
    MballocGroups,
    /// Every object in one piece.
    Contiguous,
}

impl AllocKind {
    /// The names `alloc.kind` takes.
    pub const NAMES: [&'static str; 4] = ["mballoc", "mballoc_aligned", "mballoc_groups", "contiguous"];
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        AllocKind::NAMES[self as usize]
    }
    /// The kind called `name`.
    ///
    /// # Errors
    /// A sentence listing the names.
    pub fn named(name: &str) -> Result<AllocKind, String> {
        match name {
            "mballoc" => Ok(AllocKind::Mballoc),
            "mballoc_aligned" => Ok(AllocKind::MballocAligned),
            "mballoc_groups" => Ok(AllocKind::MballocGroups),
            "contiguous" => Ok(AllocKind::Contiguous),
            _ => Err(format!("'{name}' is not an allocator; there are: {}", Self::NAMES.join(", "))),
        }
    }
}

/// Bytes of the object `start..start + len` lie at `lba` on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte of the object.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// First byte on the medium.
    pub lba: u64,
}

impl Region {
    fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// An object's regions, ascending, never overlapping, and its size.
#[derive(Clone, Debug, Default)]
pub struct RegionMap {
    regions: Vec<Region>,
    size: u64,
    group: u32,
}

impl RegionMap {
    /// All regions, ascending by object offset.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
    /// Calls `piece(lba, len)` for each contiguous part of `start..start + len` that is allocated.
    pub fn lookup(&self, start: u64, len: u64, mut piece: impl FnMut(u64, u64)) {
        let end = start + len;
        let mut i = self.regions.partition_point(|r| r.end() <= start);
        while let Some(r) = self.regions.get(i).filter(|r| r.start < end) {
            let (from, to) = (start.max(r.start), end.min(r.end()));
            piece(r.lba + (from - r.start), to - from);
            i += 1;
        }
    }
}

/// Bytes of a block group: 128 MiB, ext4's with 4 KiB blocks.
const GROUP_BYTES: u64 = 128 * MIB;
/// Gap between objects of the ideal allocator.
const CONTIGUOUS_STEP: u64 = 1 << 36;

/// The free space of one OST.
#[derive(Clone, Debug)]
pub struct Allocator {
    kind: AllocKind,
    next: u64,
    /// Bytes handed out in each block group.
    groups: Vec<u64>,
    objects: u32,
}

impl Allocator {
    /// An empty medium.
    #[must_use]
    pub fn new(kind: AllocKind) -> Allocator {
        Allocator { kind, next: 0, groups: Vec::new(), objects: 0 }
    }
    /// Finds (allocating what is missing) the place of `start..start + len` and calls `piece(lba, len)` for each
    /// contiguous part, ascending.
    pub fn write(&mut self, map: &mut RegionMap, start: u64, len: u64, mut piece: impl FnMut(u64, u64)) {
        assert!(len > 0, "an empty write has no place");
        let end = start + len;
        map.size = map.size.max(end);
        let mut at = start;
        while at < end {
            let i = map.regions.partition_point(|r| r.end() <= at);
            match map.regions.get(i) {
                Some(r) if r.start <= at => {
                    let to = end.min(r.end());
                    piece(r.lba + (at - r.start), to - at);
                    at = to;
                }
                next => {
                    let before_next = next.map_or(u64::MAX, |r| r.start);
                    let after_last = if i > 0 { map.regions[i - 1].end() } else { 0 };
                    let region = self.place(map, at, end, after_last, before_next);
                    map.regions.insert(i, region);
                }
            }
        }
    }

    /// A new region that holds byte `at`, within the hole `after_last..before_next`.
    fn place(&mut self, map: &mut RegionMap, at: u64, end: u64, after_last: u64, before_next: u64) -> Region {
        let wished = region_bytes(map.size);
        match self.kind {
            AllocKind::Mballoc => {
                let len = wished.max(end - at).min(before_next - at);
                let lba = self.next;
                self.next += len;
                Region { start: at, len, lba }
            }
            AllocKind::MballocAligned | AllocKind::MballocGroups => {
                let start = (at - at % wished).max(after_last);
                let stop = end.max(at - at % wished + wished).min(before_next);
                let len = stop - start;
                if self.kind == AllocKind::MballocGroups {
                    return Region { start, len, lba: self.place_in_group(map, len) };
                }
                self.next += len;
                Region { start, len, lba: self.next - len }
            }
            AllocKind::Contiguous => {
                if map.regions.is_empty() {
                    self.objects += 1;
                    map.group = self.objects;
                }
                Region { start: at, len: end.min(before_next) - at, lba: u64::from(map.group) * CONTIGUOUS_STEP + at }
            }
        }
    }

    fn place_in_group(&mut self, map: &mut RegionMap, len: u64) -> u64 {
        if map.regions.is_empty() {
            self.objects += 1;
            map.group = self.objects % 64;
        }
        loop {
            let group = map.group as usize;
            if group >= self.groups.len() {
                self.groups.resize(group + 1, 0);
            }
            if self.groups[group] + len <= GROUP_BYTES || self.groups[group] == 0 {
                let lba = map.group as u64 * GROUP_BYTES + self.groups[group];
                self.groups[group] += len;
                return lba;
            }
            map.group += 1;
        }
    }
}

/// Bytes of a new region of an object that is `size` bytes long after the write: a power of two from 64 KiB up to
/// 1 MiB, 2 MiB up to 4 MiB, 4 MiB up to 8 MiB, then 8 MiB.
fn region_bytes(size: u64) -> u64 {
    match size {
        0..=MIB => size.next_power_of_two().max(64 * KIB),
        s if s <= 4 * MIB => 2 * MIB,
        s if s <= 8 * MIB => 4 * MIB,
        _ => 8 * MIB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sequential(kind: AllocKind) -> Vec<(u64, u64)> {
        let (mut a, mut map) = (Allocator::new(kind), RegionMap::default());
        for i in 0..32 {
            a.write(&mut map, i * MIB, MIB, |_, _| {});
        }
        map.regions().iter().map(|r| (r.start / MIB, r.len / MIB)).collect()
    }

    #[test]
    fn regions_follow_the_size_of_the_object_after_the_write() {
        let expected = [(0, 1), (1, 2), (3, 2), (5, 4), (9, 8), (17, 8), (25, 8)];
        assert_eq!(sequential(AllocKind::Mballoc), expected);
        assert_eq!(sequential(AllocKind::MballocAligned), sequential(AllocKind::MballocGroups));
        assert_eq!(sequential(AllocKind::MballocGroups), [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (24, 8)]);
        assert_eq!(region_bytes(65 * KIB), 128 * KIB);
        assert_eq!(region_bytes(1), 64 * KIB);
    }

    #[test]
    fn regions_of_objects_written_together_interleave() {
        let mut a = Allocator::new(AllocKind::Mballoc);
        let (mut x, mut y) = (RegionMap::default(), RegionMap::default());
        for i in 0..4 {
            a.write(&mut x, i * MIB, MIB, |_, _| {});
            a.write(&mut y, i * MIB, MIB, |_, _| {});
        }
        let lbas: Vec<u64> = x.regions().iter().chain(y.regions()).map(|r| r.lba / MIB).collect();
        assert_eq!(lbas, [0, 2, 6, 1, 4, 8]);
    }

    proptest! {
        #[test]
        fn what_was_written_is_found_again_and_no_two_bytes_share_a_place(
            writes in proptest::collection::vec((0u64..3, 0u64..600, 1u64..40), 1..60),
            kind in 0usize..4,
        ) {
            let kind = AllocKind::named(AllocKind::NAMES[kind]).unwrap();
            let mut a = Allocator::new(kind);
            let mut maps = [RegionMap::default(), RegionMap::default(), RegionMap::default()];
            for (object, start, len) in writes {
                let (start, len) = (start * 64 * KIB, len * 64 * KIB);
                let map = &mut maps[object as usize];
                let (mut written, mut found) = (Vec::new(), Vec::new());
                a.write(map, start, len, |lba, n| written.push((lba, n)));
                map.lookup(start, len, |lba, n| found.push((lba, n)));
                prop_assert_eq!(&written, &found);
                prop_assert_eq!(found.iter().map(|p| p.1).sum::<u64>(), len);
            }
            let mut all: Vec<(u64, u64)> = maps.iter().flat_map(|m| m.regions()).map(|r| (r.lba, r.len)).collect();
            all.sort_unstable();
            for pair in all.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
            }
        }
    }
}
