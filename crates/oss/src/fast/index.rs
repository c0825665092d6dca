//! What a fast tier holds and where: slots of 64 KiB, each with blocks of one unit of one object. No I/O.
//!
//! Decides which slot a unit gets and which one leaves (a policy of the cache room says the order, [`cache::Reclaimer`];
//! classes are the advice room's). Keeps two promises: a slot that somebody reads or writes is given to nobody else
//! (pins), and contents that a change may have overtaken are not published ([`Changes`]).
use std::collections::BTreeMap;

use advice::admission::{AdmissionPolicy, Missed};
use advice::{Hint, Pressure};
use cache::{CacheConfig, FrameId, PageAccess, Reclaimer, block_id};
use types::{Duration, Instant, ObjectId};
use wire::Crc;

use super::changes::Changes;
use crate::advised::class_of;
use crate::store::{BLOCK_BYTES, BlockRange};

/// Blocks of a unit: what one slot holds.
pub const UNIT_BLOCKS: u64 = 16;
/// Bytes of a unit.
pub const UNIT_BYTES: u64 = UNIT_BLOCKS * BLOCK_BYTES;
/// Slots that are freed at a time.
const RECLAIM: u32 = 4;
/// Time over which pressure is measured.
const MEASURED: Duration = Duration::from_secs(1);

/// A piece of an object: aligned, of [`UNIT_BLOCKS`].
pub type Unit = (ObjectId, u64);

/// A unit as a mixed number.
pub fn unit_id((object, unit): Unit) -> u64 {
    block_id(object.0.seq ^ u64::from(object.0.oid).rotate_left(24), unit)
}

/// The part of `range` in unit number `unit`.
pub fn part_of(range: BlockRange, unit: u64) -> BlockRange {
    let (first, end) = (unit * UNIT_BLOCKS, (unit + 1).saturating_mul(UNIT_BLOCKS));
    BlockRange::new(range.first.max(first), range.end().min(end).max(range.first.max(first)))
}

/// Numbers of the units that a range touches.
pub fn units_of(range: BlockRange) -> std::ops::Range<u64> {
    if range.is_empty() { 0..0 } else { range.first / UNIT_BLOCKS..range.end().div_ceil(UNIT_BLOCKS) }
}

/// A bit for each block of a part of a unit.
pub fn bits_of(part: BlockRange) -> u16 {
    let ones = if part.count >= UNIT_BLOCKS { u16::MAX } else { (1u16 << part.count) - 1 };
    ones << (part.first % UNIT_BLOCKS)
}

/// Blocks that are to be copied into one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Number of the unit.
    pub unit: u64,
    /// Its blocks, a bit each.
    pub bits: u16,
    /// The class that they had when they were read.
    pub hint: Hint,
}

struct Slot {
    unit: Unit,
    /// Its blocks that are there, a bit each.
    valid: u16,
    crcs: [Crc; UNIT_BLOCKS as usize],
    hint: Hint,
    /// Reads and writes under way.
    pins: u32,
    /// It holds nothing any more, and is free when the last pin goes.
    detached: bool,
}

/// What left for want of room.
#[derive(Clone, Copy, Default)]
struct Reclaimed {
    unadvised: u64,
    advised: u64,
    before: (u64, u64),
    since: Instant,
    pressure: Pressure,
}

/// See the module's head.
pub struct Index {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    capacity: u32,
    units: BTreeMap<Unit, u32>,
    reclaimer: Reclaimer,
    /// Slots by class.
    classes: [u32; 5],
    resident_blocks: u64,
    pub(super) changes: Changes,
    reclaimed: Reclaimed,
}

impl Index {
    /// An empty one of so many slots.
    ///
    /// # Errors
    /// A sentence with the reclaim policies that exist.
    pub fn new(capacity: u32, policy: &str) -> Result<Index, String> {
        Ok(Index {
            slots: Vec::new(),
            free: Vec::new(),
            capacity,
            units: BTreeMap::new(),
            reclaimer: Reclaimer::new(policy, CacheConfig::new(capacity.max(1)))?,
            classes: [0; 5],
            resident_blocks: 0,
            changes: Changes::default(),
            reclaimed: Reclaimed::default(),
        })
    }
    /// Changes the reclaim policy; what is there stays.
    ///
    /// # Errors
    /// A sentence with those that exist.
    pub fn switch(&mut self, policy: &str) -> Result<(), String> {
        let slots = &self.slots;
        let unit = |f: FrameId| slots[f.0 as usize].as_ref().map_or(0, |s| unit_id(s.unit));
        self.reclaimer.switch(policy, &mut { unit })
    }
    /// Name of the reclaim policy.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        self.reclaimer.name()
    }
    /// Bytes of blocks that are here.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.resident_blocks * BLOCK_BYTES
    }
    /// Blocks that left for want of room: unadvised and advised ones.
    #[must_use]
    pub fn reclaimed(&self) -> (u64, u64) {
        (self.reclaimed.unadvised, self.reclaimed.advised)
    }
    /// How hard pressed it was in the last second that was looked at.
    pub fn pressure(&mut self, now: Instant) -> Pressure {
        let r = &mut self.reclaimed;
        if now.since(r.since) >= MEASURED {
            r.pressure = match (r.unadvised - r.before.0, r.advised - r.before.1) {
                (0, 0) => Pressure::Low,
                (_, 0) => Pressure::Medium,
                _ => Pressure::High,
            };
            (r.before, r.since) = ((r.unadvised, r.advised), now);
        }
        r.pressure
    }

    fn slot(&self, at: u32) -> &Slot {
        self.slots[at as usize].as_ref().expect("a slot that somebody knows is in use")
    }
    fn slot_mut(&mut self, at: u32) -> &mut Slot {
        self.slots[at as usize].as_mut().expect("a slot that somebody knows is in use")
    }
    /// Slots of an object that hold blocks of a range, with the blocks, in order.
    fn within(&self, object: ObjectId, range: BlockRange) -> impl Iterator<Item = (u32, BlockRange)> {
        let units = units_of(range);
        self.units.range((object, units.start)..(object, units.end)).map(move |((_, u), s)| (*s, part_of(range, *u)))
    }
    fn valid(&self, unit: Unit) -> u16 {
        self.units.get(&unit).map_or(0, |s| self.slot(*s).valid)
    }
    /// Blocks of a part of a unit that are here, a bit each.
    #[must_use]
    pub fn valid_in(&self, object: ObjectId, part: BlockRange) -> u16 {
        self.valid((object, part.first / UNIT_BLOCKS)) & bits_of(part)
    }

    /// What of a range that was read from the store is worth a copy at `now`: advised blocks by their class, others as the
    /// admission policy says.
    #[must_use]
    pub fn worth(
        &self,
        now: Instant,
        (object, range): (ObjectId, BlockRange),
        class: impl Fn(BlockRange) -> Hint,
        admission: &mut dyn AdmissionPolicy,
    ) -> Vec<Copied> {
        let mut copies = Vec::new();
        for unit in units_of(range) {
            let part = part_of(range, unit);
            let hint = class(part);
            let missing = u64::from(bits_of(part)) & u64::from(!self.valid_in(object, part));
            let bits = if hint == Hint::None {
                let read_bytes = range.count * BLOCK_BYTES;
                admission.worth(now, Missed { unit: unit_id((object, unit)), blocks: missing, read_bytes })
            } else {
                missing
            };
            if bits != 0 {
                copies.push(Copied { unit, bits: bits as u16, hint });
            }
        }
        copies
    }
    /// Bytes of a range that are here.
    #[must_use]
    pub fn resident_in(&self, object: ObjectId, range: BlockRange) -> u64 {
        let bits = self.within(object, range).map(|(s, part)| (self.slot(s).valid & bits_of(part)).count_ones());
        bits.map(u64::from).sum::<u64>() * BLOCK_BYTES
    }
    /// The blocks from the first to the last one of a range that are not here; empty when all are.
    #[must_use]
    pub fn missing(&self, object: ObjectId, range: BlockRange) -> BlockRange {
        if self.resident_blocks == 0 {
            return range;
        }
        let gone = |unit: u64| bits_of(part_of(range, unit)) & !self.valid((object, unit));
        let units = units_of(range);
        let first = units.clone().find_map(|u| {
            let gone = gone(u);
            (gone != 0).then(|| u * UNIT_BLOCKS + u64::from(gone.trailing_zeros()))
        });
        let Some(first) = first else { return BlockRange::new(range.first, range.first) };
        let last = units.rev().find_map(|u| {
            let gone = gone(u);
            (gone != 0).then(|| u * UNIT_BLOCKS + u64::from(gone.ilog2()))
        });
        BlockRange::new(first, last.map_or(first, |l| l) + 1)
    }
    /// Blocks that are all here, with their slots, which are pinned for a read until [`Index::unpin`].
    pub fn take(&mut self, object: ObjectId, range: BlockRange) -> Vec<(u32, BlockRange, Vec<Crc>)> {
        let found: Vec<(u32, BlockRange)> = self.within(object, range).collect();
        found
            .into_iter()
            .map(|(at, part)| {
                let slot = self.slot_mut(at);
                slot.pins += 1;
                let (first, count) = ((part.first % UNIT_BLOCKS) as usize, part.count as usize);
                let (crcs, unit) = (slot.crcs[first..first + count].to_vec(), slot.unit);
                self.reclaimer.touch(FrameId(at), PageAccess::fine(unit_id(unit)));
                (at, part, crcs)
            })
            .collect()
    }
    /// A read or write of a slot has ended.
    pub fn unpin(&mut self, at: u32) {
        let slot = self.slot_mut(at);
        slot.pins -= 1;
        if slot.pins > 0 {
            return;
        }
        if slot.detached {
            self.slots[at as usize] = None;
            self.free.push(at);
        } else if slot.valid == 0 {
            self.detach(at);
        }
    }

    /// A slot for blocks of a unit, pinned for a write, and those of `blocks` that are not in it yet. `None` when everything
    /// here is in use or matters more.
    pub fn reserve(&mut self, unit: Unit, blocks: u16, hint: Hint) -> Option<(u32, u16)> {
        if let Some(at) = self.units.get(&unit).copied() {
            let slot = self.slot_mut(at);
            slot.pins += 1;
            let fresh = blocks & !slot.valid;
            return Some((at, fresh));
        }
        let at = self.take_slot(hint)?;
        let crcs = [0; UNIT_BLOCKS as usize];
        self.slots[at as usize] = Some(Slot { unit, valid: 0, crcs, hint, pins: 1, detached: false });
        self.units.insert(unit, at);
        self.classes[hint as usize] += 1;
        self.reclaimer.insert(FrameId(at), PageAccess::fine(unit_id(unit)).advised(class_of(hint)));
        Some((at, blocks))
    }
    /// Blocks that were written to a pinned slot can be read from now on.
    pub fn publish(&mut self, at: u32, part: BlockRange, crcs: &[Crc]) {
        let slot = self.slot_mut(at);
        if slot.detached {
            return;
        }
        let (first, bits) = ((part.first % UNIT_BLOCKS) as usize, bits_of(part));
        slot.crcs[first..first + crcs.len()].copy_from_slice(crcs);
        let fresh = (bits & !slot.valid).count_ones();
        slot.valid |= bits;
        self.resident_blocks += u64::from(fresh);
    }

    fn take_slot(&mut self, hint: Hint) -> Option<u32> {
        if self.free.is_empty() && self.slots.len() < self.capacity as usize {
            self.slots.push(None);
            return Some(self.slots.len() as u32 - 1);
        }
        // Nobody makes way for less than itself.
        if self.free.is_empty() && self.classes[..=hint as usize].iter().any(|n| *n > 0) {
            let (mut victims, slots) = (Vec::new(), &self.slots);
            let may_go = |f: FrameId| slots[f.0 as usize].as_ref().is_some_and(|s| s.pins == 0 && s.hint <= hint);
            self.reclaimer.reclaim(RECLAIM, &mut { may_go }, &mut victims);
            for v in victims {
                let slot = self.slot(v.0);
                let blocks = u64::from(slot.valid.count_ones());
                let left =
                    if slot.hint == Hint::None { &mut self.reclaimed.unadvised } else { &mut self.reclaimed.advised };
                *left += blocks;
                self.forget(v.0);
            }
        }
        self.free.pop()
    }
    /// A slot gives up what it holds; it is free when nobody works on it any more.
    fn detach(&mut self, at: u32) {
        self.reclaimer.remove(FrameId(at));
        self.forget(at);
    }
    fn forget(&mut self, at: u32) {
        let slot = self.slot_mut(at);
        let (unit, blocks, hint) = (slot.unit, slot.valid.count_ones(), slot.hint);
        (slot.valid, slot.detached) = (0, true);
        let idle = slot.pins == 0;
        self.units.remove(&unit);
        self.classes[hint as usize] -= 1;
        self.resident_blocks -= u64::from(blocks);
        if idle {
            self.slots[at as usize] = None;
            self.free.push(at);
        }
    }

    /// Blocks have other contents, or are to go.
    pub fn invalidate(&mut self, object: ObjectId, range: BlockRange) {
        let found: Vec<(u32, BlockRange)> = self.within(object, range).collect();
        for (at, part) in found {
            let bits = bits_of(part);
            let slot = self.slot_mut(at);
            let left = slot.valid & !bits;
            // What is being read or written keeps its place to itself.
            if slot.pins > 0 || left == 0 {
                self.detach(at);
                continue;
            }
            let gone = (slot.valid & bits).count_ones();
            slot.valid = left;
            self.resident_blocks -= u64::from(gone);
        }
    }
    /// Gives what is here of a range its class anew.
    pub fn readvise(&mut self, object: ObjectId, range: BlockRange, class: impl Fn(BlockRange) -> Hint) {
        let found: Vec<u32> = self.within(object, range).map(|(at, _)| at).collect();
        for at in found {
            let (unit, old) = (self.slot(at).unit, self.slot(at).hint);
            let hint = class(BlockRange { first: unit.1 * UNIT_BLOCKS, count: UNIT_BLOCKS });
            if hint != old {
                self.slot_mut(at).hint = hint;
                self.classes[old as usize] -= 1;
                self.classes[hint as usize] += 1;
                self.reclaimer.readvise(FrameId(at), unit_id(unit), class_of(hint));
            }
        }
    }
    /// Lets what is here of a range without advice go.
    pub fn drop_unadvised(&mut self, object: ObjectId, range: BlockRange) {
        let unadvised = self.within(object, range).map(|(at, _)| at).filter(|at| self.slot(*at).hint == Hint::None);
        let unadvised: Vec<u32> = unadvised.collect();
        unadvised.into_iter().for_each(|at| self.detach(at));
    }
    /// Everything goes.
    pub fn clear(&mut self) {
        let all: Vec<u32> = self.units.values().copied().collect();
        all.into_iter().for_each(|at| self.detach(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{OstIndex, Rng};

    fn object(n: u32) -> ObjectId {
        ObjectId::new(OstIndex(0), n)
    }
    fn put(index: &mut Index, unit: Unit, hint: Hint) -> bool {
        let Some((at, fresh)) = index.reserve(unit, u16::MAX, hint) else { return false };
        let part = BlockRange { first: unit.1 * UNIT_BLOCKS, count: UNIT_BLOCKS };
        if fresh != 0 {
            index.publish(at, part, &[7; UNIT_BLOCKS as usize]);
        }
        index.unpin(at);
        true
    }
    const UNIT: BlockRange = BlockRange { first: 0, count: UNIT_BLOCKS };

    #[test]
    fn nothing_makes_way_for_less_than_itself_and_the_order_is_the_rooms() {
        let mut index = Index::new(4, "lru").unwrap();
        for (i, hint) in [Hint::High, Hint::Low, Hint::None, Hint::Med].into_iter().enumerate() {
            assert!(put(&mut index, (object(1), i as u64), hint));
        }
        let here = |index: &Index| (0..9).filter(|u| index.valid((object(1), *u)) != 0).collect::<Vec<_>>();
        assert!(put(&mut index, (object(1), 4), Hint::None));
        assert_eq!(here(&index), [0, 1, 3, 4], "the unadvised unit made way");
        index.readvise(object(1), BlockRange { first: 4 * UNIT_BLOCKS, count: 1 }, |_| Hint::High);
        assert!(!put(&mut index, (object(1), 5), Hint::None), "all are advised");
        assert!(put(&mut index, (object(1), 5), Hint::Med));
        assert!(!here(&index).contains(&1) && here(&index).contains(&0));
        assert!(index.reclaimed().1 > 0 && index.pressure(Instant(2_000_000_000)) == Pressure::High);
        assert_eq!(index.pressure(Instant(4_000_000_000)), Pressure::Low);
    }

    #[test]
    fn a_slot_that_is_read_is_given_to_nobody_else_although_its_blocks_change() {
        let mut index = Index::new(1, "lru").unwrap();
        assert!(put(&mut index, (object(1), 0), Hint::None));
        let found = index.take(object(1), UNIT);
        index.invalidate(object(1), BlockRange { first: 3, count: 1 });
        assert_eq!((index.resident_bytes(), index.missing(object(1), UNIT)), (0, UNIT));
        assert!(!put(&mut index, (object(2), 0), Hint::High), "the only slot is being read");
        index.unpin(found[0].0);
        assert!(put(&mut index, (object(2), 0), Hint::None));
        // What was being written when its blocks changed is not published.
        let (at, fresh) = index.reserve((object(2), 0), u16::MAX, Hint::None).unwrap();
        assert_eq!(fresh, 0, "it is there");
        index.invalidate(object(2), UNIT);
        index.publish(at, UNIT, &[1; UNIT_BLOCKS as usize]);
        assert_eq!(index.resident_bytes(), 0);
        index.unpin(at);
        assert!(put(&mut index, (object(3), 0), Hint::None));
    }

    #[test]
    fn what_it_counts_is_what_it_holds_after_random_work() {
        for policy in ["lru", "s3fifo", "sieve"] {
            let (mut index, mut rng) = (Index::new(20, policy).unwrap(), Rng::new(5));
            let mut pinned = Vec::new();
            for _ in 0..4000 {
                let (o, unit) = (object(rng.below(3) as u32), rng.below(30));
                let range = BlockRange { first: unit * UNIT_BLOCKS + rng.below(16), count: 1 + rng.below(60) };
                match rng.below(10) {
                    0..5 => _ = put(&mut index, (o, unit), Hint::ALL[rng.below(5) as usize]),
                    5 => index.invalidate(o, range),
                    6 => index.readvise(o, range, |_| Hint::Low),
                    7 => {
                        let gone = index.missing(o, range);
                        let head = BlockRange::new(range.first, gone.first.max(range.first));
                        pinned.extend(index.take(o, head).into_iter().map(|f| f.0));
                    }
                    8 => pinned.drain(..).for_each(|at| index.unpin(at)),
                    _ => index.drop_unadvised(o, range),
                }
                let whole = BlockRange { first: 0, count: u64::MAX };
                let held: u64 = (0..3).map(|n| index.resident_in(object(n), whole)).sum();
                assert_eq!(held, index.resident_bytes(), "{policy}");
                assert_eq!(index.classes.iter().sum::<u32>() as usize, index.units.len(), "{policy}");
                let used = index.slots.iter().flatten().count() + index.free.len();
                assert!(used == index.slots.len() && used <= 20, "{policy}");
            }
            pinned.drain(..).for_each(|at| index.unpin(at));
            index.clear();
            assert_eq!((index.resident_bytes(), index.free.len()), (0, index.slots.len()), "{policy}");
        }
    }
}
