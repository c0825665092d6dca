//! The frame table: per-frame metadata and up to fifteen index-linked lists over it.
//!
//! Twelve bytes a frame, one dense vector indexed by frame number, no hashing. A frame is on exactly one list or on
//! none ("not resident"). The head is the side of insertion, the tail the side of reclaim.
use crate::FrameId;
use alloc::{vec, vec::Vec};
use types::prefetch::prefetch;

/// Number of a list in a [`Table`]: 1..=15. 0 is "on no list".
pub type ListId = u8;

/// On no list: the frame is not resident.
pub const NONE: ListId = 0;
/// Frames that the mechanism refused to give up when they were next to leave; see [`crate::Managed`].
pub const HELD: ListId = 10;
/// First of the four lists of advised frames ([`crate::Advice::Cache`] is on 11 ... [`crate::Advice::High`] on 14).
pub const ADVISED: ListId = 11;
/// Policies use the lists 1..=9.
pub const POLICY_LISTS_MAX: ListId = 9;

/// Bit of [`Table::flag`]: set by the driver while a prefetched page waits for its first use. The other bits are the
/// policy's.
pub const AHEAD: u8 = 0b1000;

const INDEX_BITS: u32 = 28;
const INDEX: u32 = (1 << INDEX_BITS) - 1;
const NIL: u32 = INDEX;
/// Most frames of a table: 2^28 - 1, one TiB of 4 KiB pages. The upper four bits of both links hold list and flags.
pub const CAPACITY_MAX: u32 = NIL - 1;

#[derive(Clone, Copy)]
struct Entry {
    /// Neighbour towards the head; upper four bits: list.
    prev: u32,
    /// Neighbour towards the tail; upper four bits: flags.
    next: u32,
    /// The policy's own.
    word: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

/// Metadata of all frames and the lists they are on.
pub struct Table {
    entries: Vec<Entry>,
    ends: [Ends; 16],
    resident: u32,
}

impl Table {
    /// Bytes of metadata per frame.
    pub const BYTES_PER_FRAME: u32 = size_of::<Entry>() as u32;

    /// A table of `capacity` frames, all on no list.
    ///
    /// # Panics
    /// When `capacity` is above [`CAPACITY_MAX`].
    #[must_use]
    pub fn new(capacity: u32) -> Table {
        assert!(capacity <= CAPACITY_MAX, "a frame table holds at most 2^28 - 2 frames");
        let free = Entry { prev: NIL, next: NIL, word: 0 };
        let empty = Ends { head: NIL, tail: NIL, len: 0 };
        Table { entries: vec![free; capacity as usize], ends: [empty; 16], resident: 0 }
    }

    /// Frames of the table.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Frames on any list.
    #[must_use]
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// Frames on `list`.
    #[must_use]
    #[inline]
    pub fn len(&self, list: ListId) -> u32 {
        self.ends[usize::from(list & 15)].len
    }

    /// Whether no frame is resident.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.resident == 0
    }

    /// The list that `frame` is on, or [`NONE`].
    #[must_use]
    #[inline]
    pub fn list(&self, frame: FrameId) -> ListId {
        (self.entries[frame.0 as usize].prev >> INDEX_BITS) as ListId
    }

    /// Asks the CPU to fetch what is known of `frame`, which need not exist.
    #[inline]
    pub fn prefetch(&self, frame: FrameId) {
        if let Some(entry) = self.entries.get(frame.0 as usize) {
            prefetch(entry);
        }
    }

    /// Asks the CPU to fetch the neighbours of `frame`, which was fetched before: a move between lists changes them.
    #[inline]
    pub fn prefetch_neighbours(&self, frame: FrameId) {
        if let Some(entry) = self.entries.get(frame.0 as usize) {
            self.prefetch(FrameId(entry.prev & INDEX));
            self.prefetch(FrameId(entry.next & INDEX));
        }
    }

    /// Whether any of `bits` (four flag bits) is set on `frame`.
    #[must_use]
    #[inline]
    pub fn flag(&self, frame: FrameId, bits: u8) -> bool {
        self.flags(frame) & bits != 0
    }

    /// All four flag bits of `frame`.
    #[must_use]
    #[inline]
    pub fn flags(&self, frame: FrameId) -> u8 {
        (self.entries[frame.0 as usize].next >> INDEX_BITS) as u8
    }

    /// Sets or clears `bits` on `frame`. Moving between lists keeps flags.
    #[inline]
    pub fn set_flag(&mut self, frame: FrameId, bits: u8, on: bool) {
        let mask = u32::from(bits & 15) << INDEX_BITS;
        let next = &mut self.entries[frame.0 as usize].next;
        *next = if on { *next | mask } else { *next & !mask };
    }

    /// The policy's word of `frame`; 0 after [`Table::forget`].
    #[must_use]
    #[inline]
    pub fn word(&self, frame: FrameId) -> u32 {
        self.entries[frame.0 as usize].word
    }

    /// Sets the policy's word of `frame`.
    #[inline]
    pub fn set_word(&mut self, frame: FrameId, word: u32) {
        self.entries[frame.0 as usize].word = word;
    }

    /// The frame at the reclaim side of `list`.
    #[must_use]
    #[inline]
    pub fn tail(&self, list: ListId) -> Option<FrameId> {
        named(self.ends[usize::from(list & 15)].tail)
    }

    /// The frame at the insertion side of `list`.
    #[must_use]
    #[inline]
    pub fn head(&self, list: ListId) -> Option<FrameId> {
        named(self.ends[usize::from(list & 15)].head)
    }

    /// The neighbour of `frame` towards the head of its list.
    #[must_use]
    #[inline]
    pub fn towards_head(&self, frame: FrameId) -> Option<FrameId> {
        named(self.entries[frame.0 as usize].prev & INDEX)
    }

    /// Puts `frame`, which is on no list, at the head of `list`.
    #[inline]
    pub fn push_head(&mut self, list: ListId, frame: FrameId) {
        let ends = &mut self.ends[usize::from(list & 15)];
        let old = ends.head;
        ends.head = frame.0;
        ends.len += 1;
        if old == NIL {
            ends.tail = frame.0;
        } else {
            let prev = &mut self.entries[old as usize].prev;
            *prev = (*prev & !INDEX) | frame.0;
        }
        self.link(list, frame, NIL, old);
    }

    /// Puts `frame`, which is on no list, at the tail of `list`.
    #[inline]
    pub fn push_tail(&mut self, list: ListId, frame: FrameId) {
        let ends = &mut self.ends[usize::from(list & 15)];
        let old = ends.tail;
        ends.tail = frame.0;
        ends.len += 1;
        if old == NIL {
            ends.head = frame.0;
        } else {
            let next = &mut self.entries[old as usize].next;
            *next = (*next & !INDEX) | frame.0;
        }
        self.link(list, frame, old, NIL);
    }

    #[inline]
    fn link(&mut self, list: ListId, frame: FrameId, prev: u32, next: u32) {
        assert!(list != NONE && list < 15, "lists are 1..=14");
        let e = &mut self.entries[frame.0 as usize];
        assert!(e.prev >> INDEX_BITS == 0, "frame {} is already on a list", frame.0);
        e.prev = (u32::from(list) << INDEX_BITS) | prev;
        e.next = (e.next & !INDEX) | next;
        self.resident += 1;
    }

    /// Takes `frame` off its list; flags and word stay.
    ///
    /// # Panics
    /// When it is on none.
    #[inline]
    pub fn unlink(&mut self, frame: FrameId) {
        let Entry { prev, next, .. } = self.entries[frame.0 as usize];
        let list = prev >> INDEX_BITS;
        assert!(list != 0, "frame {} is not resident", frame.0);
        let (prev, next) = (prev & INDEX, next & INDEX);
        let ends = &mut self.ends[list as usize];
        ends.len -= 1;
        if prev == NIL {
            ends.head = next;
        } else {
            let link = &mut self.entries[prev as usize].next;
            *link = (*link & !INDEX) | next;
        }
        if next == NIL {
            ends.tail = prev;
        } else {
            let link = &mut self.entries[next as usize].prev;
            *link = (*link & !INDEX) | prev;
        }
        self.entries[frame.0 as usize].prev = NIL;
        self.resident -= 1;
    }

    /// Moves `frame` to the head of `list`.
    #[inline]
    pub fn move_to_head(&mut self, list: ListId, frame: FrameId) {
        self.unlink(frame);
        self.push_head(list, frame);
    }

    /// Moves `frame` to the tail of `list`.
    #[inline]
    pub fn move_to_tail(&mut self, list: ListId, frame: FrameId) {
        self.unlink(frame);
        self.push_tail(list, frame);
    }

    /// Takes `frame` off its list and clears flags and word: it is no longer resident.
    #[inline]
    pub fn forget(&mut self, frame: FrameId) {
        self.unlink(frame);
        self.entries[frame.0 as usize] = Entry { prev: NIL, next: NIL, word: 0 };
    }
}

#[inline]
fn named(index: u32) -> Option<FrameId> {
    if index == NIL { None } else { Some(FrameId(index)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use types::Rng;

    #[test]
    fn an_entry_takes_twelve_bytes() {
        assert_eq!(Table::BYTES_PER_FRAME, 12);
        assert_eq!(size_of::<Entry>(), 12);
    }

    #[test]
    fn lists_behave_like_deques_and_flags_survive_every_move() {
        let mut rng = Rng::new(7);
        let mut table = Table::new(64);
        let mut model: [VecDeque<u32>; 4] = Default::default();
        let mut flags = [0u8; 64];
        for _ in 0..20_000 {
            let f = rng.below(64) as u32;
            let list = 1 + rng.below(3) as u8;
            let at = model.iter().position(|l| l.contains(&f));
            match (at, rng.below(4)) {
                (None, 0) => {
                    table.push_head(list, FrameId(f));
                    model[usize::from(list)].push_front(f);
                }
                (None, _) => {
                    table.push_tail(list, FrameId(f));
                    model[usize::from(list)].push_back(f);
                }
                (Some(l), 0) => {
                    table.forget(FrameId(f));
                    flags[f as usize] = 0;
                    model[l].retain(|&x| x != f);
                }
                (Some(l), 1) => {
                    table.move_to_tail(list, FrameId(f));
                    model[l].retain(|&x| x != f);
                    model[usize::from(list)].push_back(f);
                }
                (Some(l), 2) => {
                    table.move_to_head(list, FrameId(f));
                    model[l].retain(|&x| x != f);
                    model[usize::from(list)].push_front(f);
                }
                (Some(_), _) => {
                    let bit = 1 << rng.below(4);
                    flags[f as usize] |= bit;
                    table.set_flag(FrameId(f), bit, true);
                }
            }
            for (l, m) in model.iter().enumerate().skip(1) {
                assert_eq!(table.len(l as u8) as usize, m.len());
                assert_eq!(table.tail(l as u8).map(|f| f.0), m.back().copied());
                assert_eq!(table.head(l as u8).map(|f| f.0), m.front().copied());
            }
            assert_eq!(table.flags(FrameId(f)), flags[f as usize]);
        }
    }

    #[test]
    #[should_panic(expected = "already on a list")]
    fn a_resident_frame_cannot_be_linked_twice() {
        let mut t = Table::new(2);
        t.push_head(1, FrameId(0));
        t.push_head(1, FrameId(0));
    }
}
