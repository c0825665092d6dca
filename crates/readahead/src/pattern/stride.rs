//! Stride: records of one length at one distance, forward or backward.
//!
//! A record is a run of adjoining reads, so its length does not depend on the size of the single reads. Sure at the start
//! of the third record: two equal distances, and the finished records equally long.
use types::Extent;

use super::Pattern;
use crate::GAP_BYTES;

/// See the module.
#[derive(Clone, Debug)]
pub struct Stride {
    /// The record being read.
    record: Extent,
    /// Distance between the starts of the last two records; 0 = none yet.
    distance: i64,
    /// Length of the finished records.
    len: u64,
    /// Equal distances in a row.
    matches: u32,
    /// Matches needed to be sure: doubled by every short-lived stride, so that streams taking turns at equal distances are
    /// not mistaken for one over and over.
    needed: u32,
}

const NEEDED_MIN: u32 = 2;
const NEEDED_MAX: u32 = 32;
/// A stride that lasted so many records was a real one.
const PROVEN: u32 = 16;

impl Default for Stride {
    fn default() -> Self {
        Stride { record: Extent::EMPTY, distance: 0, len: 0, matches: 0, needed: NEEDED_MIN }
    }
}

impl Stride {
    fn is_sure(&self) -> bool {
        self.matches >= self.needed
    }
    fn end(&mut self) {
        if self.matches >= PROVEN {
            self.needed = NEEDED_MIN;
        } else if self.is_sure() {
            self.needed = (self.needed * 2).min(NEEDED_MAX);
        }
        self.matches = 0;
        self.distance = 0;
    }
    fn begin(&mut self, read: Extent) -> bool {
        let finished = self.record;
        self.record = read;
        let distance = i64::try_from(i128::from(read.start) - i128::from(finished.start)).unwrap_or(0);
        let apart = distance.unsigned_abs() > finished.len() + GAP_BYTES && !finished.is_empty();
        if !apart {
            self.end();
            return false;
        }
        let same_len = self.len.abs_diff(finished.len()) <= GAP_BYTES;
        if distance == self.distance && same_len {
            self.matches = self.matches.saturating_add(1);
        } else {
            self.end();
            self.distance = distance;
            self.len = finished.len();
            self.matches = 1;
        }
        self.is_sure()
    }
    /// Start of the record that holds `offset`.
    fn record_start(&self, offset: u64) -> Option<u64> {
        let from = i128::from(offset) - i128::from(self.record.start);
        let d = i128::from(self.distance);
        // Backward strides: the record that holds the offset starts at or before it.
        let k = if d > 0 { from.div_euclid(d) } else { -((from).div_euclid(-d)) };
        u64::try_from(i128::from(self.record.start) + k * d).ok()
    }
}

impl Pattern for Stride {
    fn observe(&mut self, read: Extent) -> bool {
        let r = self.record;
        if !r.is_empty() && read.start >= r.start && read.start <= r.end.saturating_add(GAP_BYTES) {
            self.record.end = r.end.max(read.end);
            if self.is_sure() && self.record.len() > self.len + GAP_BYTES {
                self.end();
            }
            return self.is_sure();
        }
        self.begin(read)
    }
    fn next(&self, after: Extent, want: u64) -> Option<Extent> {
        if self.distance == 0 {
            return None;
        }
        let start = self.record_start(after.start)?;
        let end = start.saturating_add(self.len);
        let (start, end) = if after.end < end {
            (after.end, end)
        } else {
            let start = start.checked_add_signed(self.distance)?;
            (start, start.saturating_add(self.len))
        };
        (start < end && end < u64::MAX).then(|| Extent::new(start, end.min(start.saturating_add(want))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::MIB;

    #[test]
    fn records_read_in_pieces_are_recognised_at_the_start_of_the_third() {
        let mut s = Stride::default();
        for record in 0..2u64 {
            for piece in 0..16 {
                assert!(!s.observe(Extent::at(record * 7 * MIB + piece * (MIB / 16), MIB / 16)));
            }
        }
        let third = Extent::at(14 * MIB, MIB / 16);
        assert!(s.observe(third));
        assert_eq!(s.next(third, 8 * MIB), Some(Extent::new(third.end, 15 * MIB)), "the rest of the record");
        assert_eq!(s.next(Extent::new(third.end, 15 * MIB), 8 * MIB), Some(Extent::at(21 * MIB, MIB)));
        assert_eq!(s.next(Extent::at(21 * MIB, MIB), 4096), Some(Extent::at(28 * MIB, 4096)));
        assert_eq!(s.next(Extent::at(28 * MIB, 4096), MIB), Some(Extent::new(28 * MIB + 4096, 29 * MIB)));
    }

    #[test]
    fn backward_strides_end_at_the_start_of_the_file() {
        let mut s = Stride::default();
        let at = |i: u64| Extent::at(i * MIB, 65536);
        assert!(!s.observe(at(9)) && !s.observe(at(6)) && s.observe(at(3)));
        assert_eq!(s.next(at(3), MIB), Some(at(0)));
        assert_eq!(s.next(at(0), MIB), None);
    }

    #[test]
    fn a_record_that_grows_or_a_jump_of_another_length_ends_it() {
        let mut s = Stride::default();
        for i in 0..3 {
            s.observe(Extent::at(i * MIB, 65536));
        }
        assert!(s.observe(Extent::at(3 * MIB, 65536)));
        assert!(!s.observe(Extent::at(3 * MIB + 65536, 65536)), "longer than the records before");
        assert!(!s.observe(Extent::at(4 * MIB, 65536)));
        assert!(!s.observe(Extent::at(9 * MIB, 65536)));
    }
}
