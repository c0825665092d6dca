//! The ring that a target keeps its records in: as many as its memory holds, the oldest overwritten.
//!
//! One shard owns it: no lock, and nothing is allocated after the start.
use crate::Record;
use std::ops::RangeInclusive;

/// Bytes that a ring may take, besides 0, which turns it off.
pub const RING_BYTES: RangeInclusive<u64> = 65_536..=1 << 30;

/// The last records of a target.
#[derive(Debug, Default)]
pub struct Ring {
    records: Vec<Record>,
    capacity: usize,
    /// Where the next one goes when all places are taken: the oldest.
    at: usize,
    total: u64,
}

impl Ring {
    /// A ring of at most `bytes` bytes; 0: it keeps nothing. The memory is set aside at once and touched as it fills.
    #[must_use]
    pub fn new(bytes: u64) -> Ring {
        let capacity = usize::try_from(bytes / size_of::<Record>() as u64).unwrap_or(usize::MAX);
        Ring { records: Vec::with_capacity(capacity), capacity, at: 0, total: 0 }
    }

    /// Whether it keeps anything.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.capacity > 0
    }

    /// Keeps a record.
    #[inline]
    pub fn push(&mut self, record: Record) {
        if self.capacity == 0 {
            return;
        }
        self.total += 1;
        if self.records.len() < self.capacity {
            self.records.push(record);
            return;
        }
        self.records[self.at] = record;
        self.at += 1;
        if self.at == self.capacity {
            self.at = 0;
        }
    }

    /// Records that were ever kept: the number that the next one gets.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
    /// Records that it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }
    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
    /// Records that were overwritten.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        self.total - self.records.len() as u64
    }
    /// Records that it holds at most.
    #[must_use]
    pub fn records_max(&self) -> usize {
        self.capacity
    }

    /// At most `max` records from the `from`-th ever kept on, oldest first, and how many of those asked for were
    /// overwritten already.
    pub fn since(&self, from: u64, max: usize) -> (u64, impl Iterator<Item = &Record>) {
        let oldest = self.overwritten();
        let first = from.max(oldest);
        let skip = usize::try_from(first - oldest).unwrap_or(usize::MAX);
        let (newer, older) = self.records.split_at(self.at);
        (first - from, older.iter().chain(newer).skip(skip).take(max))
    }

    /// Changes its size: records are kept as far as they fit, the newest first.
    pub fn resize(&mut self, bytes: u64) {
        let mut new = Ring::new(bytes);
        let keep = new.capacity.min(self.records.len());
        new.records.extend(self.since(self.total - keep as u64, keep).1.copied());
        new.total = self.total;
        *self = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> Record {
        Record { number, ..Record::default() }
    }
    fn numbers(ring: &Ring, from: u64, max: usize) -> (u64, Vec<u64>) {
        let (lost, records) = ring.since(from, max);
        (lost, records.map(|r| r.number).collect())
    }

    #[test]
    fn the_oldest_records_are_overwritten_and_counted() {
        let mut ring = Ring::new(10 * size_of::<Record>() as u64 + 5);
        let place = ring.records.as_ptr();
        for number in 0..1000 {
            ring.push(record(number));
            assert_eq!(ring.total(), number + 1);
            assert_eq!(ring.overwritten(), (number + 1).saturating_sub(10));
            let first = ring.overwritten();
            assert_eq!(numbers(&ring, 0, 99), (first, (first..=number).collect()));
        }
        assert_eq!(ring.records.as_ptr(), place, "nothing was allocated");
        assert_eq!((ring.len(), ring.records_max()), (10, 10));
        assert_eq!(numbers(&ring, 995, 3), (0, vec![995, 996, 997]));
        assert_eq!(numbers(&ring, 980, 2), (10, vec![990, 991]));
        assert_eq!(numbers(&ring, 1000, 3), (0, vec![]));
        assert_eq!(numbers(&ring, u64::MAX, 3), (0, vec![]));
    }

    #[test]
    fn a_ring_of_no_bytes_is_off() {
        let mut ring = Ring::new(0);
        ring.push(record(1));
        assert_eq!((ring.is_on(), ring.total(), ring.len()), (false, 0, 0));
    }

    #[test]
    fn a_new_size_keeps_the_newest_records() {
        let size = |records: u64| records * size_of::<Record>() as u64;
        let mut ring = Ring::new(size(8));
        (0..20).for_each(|n| ring.push(record(n)));
        ring.resize(size(4));
        assert_eq!((numbers(&ring, 0, 99), ring.overwritten()), ((16, vec![16, 17, 18, 19]), 16));
        ring.resize(size(6));
        (20..23).for_each(|n| ring.push(record(n)));
        assert_eq!(numbers(&ring, 0, 99), (17, vec![17, 18, 19, 20, 21, 22]));
        ring.resize(0);
        assert!(!ring.is_on());
    }
}
