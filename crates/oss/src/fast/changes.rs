//! Whether contents that were read or written are still the object's: counters of changes, by unit, hashed.
//!
//! A change raises its counters when it begins and when it ends; in between nothing can be said of its units. Two units that
//! share a counter disturb each other, which costs a copy that is not made.
use types::ObjectId;

use super::index::{unit_id, units_of};
use crate::store::BlockRange;

/// Counters; a power of two.
const COUNTERS: usize = 4096;

#[derive(Clone, Copy, Default)]
struct Counter {
    changes: u64,
    /// Changes under way.
    open: u32,
}

/// See the module's head.
pub(super) struct Changes(Box<[Counter]>);

impl Default for Changes {
    fn default() -> Changes {
        Changes(vec![Counter::default(); COUNTERS].into_boxed_slice())
    }
}

/// The state of some units: equal states mean that nothing changed in between.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stamp(Vec<u64>);

/// A change under way; ends with [`Changes::end`].
#[derive(Debug)]
pub(super) struct Change {
    counters: Vec<usize>,
    stamp: Vec<u64>,
    /// No other change of its units was under way when it began.
    alone: bool,
}

impl Changes {
    fn counters(object: ObjectId, range: BlockRange) -> Vec<usize> {
        let units = units_of(range);
        if units.end - units.start >= COUNTERS as u64 {
            return (0..COUNTERS).collect();
        }
        units.map(|u| unit_id((object, u)) as usize % COUNTERS).collect()
    }
    /// The state of a range's units; `None` while one of them changes.
    pub fn stamp(&self, object: ObjectId, range: BlockRange) -> Option<Stamp> {
        let counters = Self::counters(object, range);
        let all = counters.iter().map(|c| self.0[*c]);
        all.map(|c| (c.open == 0).then_some(c.changes)).collect::<Option<Vec<u64>>>().map(Stamp)
    }
    /// Whether nothing has changed since `stamp` was taken of the same range.
    pub fn is_current(&self, object: ObjectId, range: BlockRange, stamp: &Stamp) -> bool {
        self.stamp(object, range).as_ref() == Some(stamp)
    }
    /// Ranges begin to change.
    pub fn begin(&mut self, ranges: &[(ObjectId, BlockRange)]) -> Change {
        let mut counters: Vec<usize> = ranges.iter().flat_map(|(o, r)| Self::counters(*o, *r)).collect();
        counters.sort_unstable();
        counters.dedup();
        let mut alone = true;
        for c in &counters {
            let counter = &mut self.0[*c];
            alone &= counter.open == 0;
            counter.open += 1;
            counter.changes += 1;
        }
        let stamp = counters.iter().map(|c| self.0[*c].changes).collect();
        Change { counters, stamp, alone }
    }
    /// A change has ended. Whether no other one of its units was under way meanwhile: what it wrote is what is there.
    pub fn end(&mut self, change: &Change) -> bool {
        let now = change.counters.iter().map(|c| self.0[*c].changes);
        let alone = change.alone && now.eq(change.stamp.iter().copied());
        for c in &change.counters {
            self.0[*c].open -= 1;
            self.0[*c].changes += 1;
        }
        alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::OstIndex;

    const RANGE: BlockRange = BlockRange { first: 0, count: 40 };

    #[test]
    fn a_stamp_is_good_until_a_change_begins_and_there_is_none_before_it_ends() {
        let (mut changes, object) = (Changes::default(), ObjectId::new(OstIndex(0), 1));
        let before = changes.stamp(object, RANGE).unwrap();
        let change = changes.begin(&[(object, BlockRange { first: 39, count: 1 })]);
        assert!(changes.stamp(object, RANGE).is_none() && !changes.is_current(object, RANGE, &before));
        assert!(changes.end(&change));
        assert!(!changes.is_current(object, RANGE, &before));
        let after = changes.stamp(object, RANGE).unwrap();
        let other = changes.begin(&[(object, BlockRange { first: 64, count: 1 })]);
        assert!(changes.end(&other) && changes.is_current(object, RANGE, &after));
        // A cut to nothing is a change of everything.
        let cut = changes.begin(&[(object, BlockRange::new(0, u64::MAX))]);
        assert!(changes.end(&cut) && !changes.is_current(object, RANGE, &after));
    }

    #[test]
    fn changes_that_overlap_in_time_do_not_know_whose_contents_stay() {
        let (mut changes, at) = (Changes::default(), (ObjectId::new(OstIndex(0), 1), RANGE));
        let first = changes.begin(&[at]);
        let second = changes.begin(&[at]);
        assert!(!changes.end(&second) && !changes.end(&first));
        let first = changes.begin(&[at]);
        let second = changes.begin(&[at]);
        assert!(!changes.end(&first) && !changes.end(&second));
        let alone = changes.begin(&[at]);
        assert!(changes.end(&alone));
    }
}
