//! Sequential: each read starts where the last one ended.
//!
//! Two refinements. A reader that jumped is expected to read as much as before its jump and no more, until it does: that
//! keeps readahead out of the gaps of a stride before the stride is known. If it reads on, it is expected to read as much
//! as in the last run of several reads, until it reads more than that: between records that are read piece by piece there
//! may be small reads elsewhere. And an established run survives reads that arrive slightly out of order, as those of
//! several threads do.
use types::Extent;

use super::Pattern;
use crate::GAP_BYTES;

/// See the module.
#[derive(Clone, Debug)]
pub struct Sequential {
    run: Extent,
    reads: u32,
    /// Nothing is foretold beyond this.
    expected_end: u64,
    /// Length of the last run of several reads.
    record: u64,
    assumed: bool,
}

/// Reads after which a run counts as established.
const ESTABLISHED_READS: u32 = 4;
/// How far, in lengths of the read, an established run tolerates a read ahead of or behind its turn. A stride with such
/// short gaps is tolerated too, until the stride pattern, which comes first, is sure.
const EARLY_READS: u64 = 8;
const LATE_READS: u64 = 16;

impl Default for Sequential {
    fn default() -> Self {
        Sequential { run: Extent::EMPTY, reads: 0, expected_end: u64::MAX, record: 0, assumed: false }
    }
}

impl Sequential {
    fn extend(&mut self, end: u64) {
        self.reads = self.reads.saturating_add(1);
        self.run.end = self.run.end.max(end);
        if self.run.end > self.expected_end {
            let record_end = self.run.start.saturating_add(self.record);
            self.expected_end = if self.run.end < record_end { record_end } else { u64::MAX };
        }
    }
    fn tolerates(&self, read: Extent) -> bool {
        let len = read.len();
        let early = read.start > self.run.end && read.start - self.run.end <= len.saturating_mul(EARLY_READS);
        let late = read.end <= self.run.end && self.run.end - read.start <= len.saturating_mul(LATE_READS);
        self.reads >= ESTABLISHED_READS && (early || (late && read.start >= self.run.start))
    }
}

impl Pattern for Sequential {
    #[inline]
    fn observe(&mut self, read: Extent) -> bool {
        let next = self.run.end;
        if read.start >= next && read.start - next <= GAP_BYTES && self.reads > 0 {
            self.extend(read.end);
            return true;
        }
        if self.tolerates(read) {
            self.extend(read.end);
            return true;
        }
        let again = self.run.contains(&read) && self.run.end - read.start <= GAP_BYTES && self.reads > 0;
        if again {
            return self.reads >= 2 || self.run.start == 0;
        }
        let last_run = self.run.len();
        if self.reads > 1 {
            self.record = last_run;
        }
        self.expected_end = if last_run > 0 { read.start.saturating_add(last_run) } else { u64::MAX };
        self.run = read;
        self.reads = 1;
        read.start == 0 || self.assumed
    }
    #[inline]
    fn next(&self, after: Extent, want: u64) -> Option<Extent> {
        // A read that came late does not move the stream back.
        let start = if self.run.contains(&after) { self.run.end } else { after.end };
        let end = start.saturating_add(want).min(self.expected_end);
        (start < end).then(|| Extent::new(start, end))
    }
    fn assume(&mut self, sequential: bool) {
        self.assumed = sequential;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_adjacent_read_is_explained_anywhere_and_the_first_at_0() {
        let mut s = Sequential::default();
        assert!(!s.observe(Extent::at(1000, 10)));
        assert!(s.observe(Extent::at(1010, 10)));
        assert!(Sequential::default().observe(Extent::at(0, 10)));
    }

    #[test]
    fn after_a_jump_only_the_length_of_the_run_before_is_foretold() {
        let mut s = Sequential::default();
        for i in 0..4 {
            s.observe(Extent::at(i << 16, 1 << 16));
        }
        let jump = Extent::at(1 << 30, 1 << 16);
        assert!(!s.observe(jump));
        assert_eq!(s.next(jump, 1 << 20), Some(Extent::new(jump.end, (1 << 30) + (4 << 16))));
        for i in 1..5 {
            assert!(s.observe(Extent::at((1 << 30) + (i << 16), 1 << 16)));
        }
        let last = Extent::at((1 << 30) + (4 << 16), 1 << 16);
        assert_eq!(s.next(last, 1 << 20), Some(Extent::at(last.end, 1 << 20)), "it read on: no bound any more");
    }

    #[test]
    fn small_reads_between_records_do_not_hide_how_long_records_are() {
        let (mib, mut s) = (1 << 20, Sequential::default());
        let record = |s: &mut Sequential, start: u64, reads: u64| {
            (0..reads).map(|i| s.observe(Extent::at(start + i * mib, mib))).for_each(drop);
            s.next(Extent::at(start + (reads - 1) * mib, mib), 64 * mib)
        };
        record(&mut s, 1 << 30, 8);
        for k in 2..5 {
            s.observe(Extent::at(4096, 4096));
            let start = k << 30;
            assert_eq!(record(&mut s, start, 3), Some(Extent::new(start + 3 * mib, start + 8 * mib)));
            (3..8).map(|i| s.observe(Extent::at(start + i * mib, mib))).for_each(drop);
        }
        s.observe(Extent::at(4096, 4096));
        let longer = record(&mut s, 9 << 30, 9);
        assert_eq!(longer, Some(Extent::at((9 << 30) + 9 * mib, 64 * mib)), "longer than the last: no bound any more");
    }

    #[test]
    fn an_established_run_survives_reads_out_of_order() {
        let (early, late) = (Extent::at(9 * 100_000, 100_000), Extent::at(8 * 100_000, 100_000));
        let mut s = Sequential::default();
        for i in 0..8 {
            s.observe(Extent::at(i * 100_000, 100_000));
        }
        assert!(s.observe(early) && s.observe(late));
        assert_eq!(s.next(late, 10), Some(Extent::at(early.end, 10)));
        assert!(!s.observe(Extent::at(100 * 100_000, 100_000)));
    }
}
