//! Whether contents that were read or written are still the object's: counters of changes, hashed, of units and of objects.
//!
//! A change raises the counters of its units when it begins and when it ends; in between nothing can be said of them. One of more
//! than [`UNITS_MAX`] units (a cut, a removal) raises its object's counter instead. Two that share a counter disturb each
//! other, which costs a copy that is not made.
use types::ObjectId;

use super::index::{unit_id, units_of};
use crate::store::BlockRange;

/// Counters; a power of two.
const COUNTERS: usize = 1 << 16;
/// Units of a change that are counted one by one: 64 MiB, as much as one request brings.
const UNITS_MAX: u64 = 1024;

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

/// The state of some units of an object; `None` for one that was changing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    object: Option<u64>,
    first: u64,
    units: Vec<Option<u64>>,
}

/// A change under way; ends with [`Changes::end`].
#[derive(Debug)]
pub(super) struct Change {
    counters: Vec<usize>,
    stamp: Vec<u64>,
    /// Counters of the objects that it changes in part.
    objects: Vec<(usize, Option<u64>)>,
    /// No other change of its units was under way when it began, and it can be told whether one was later.
    alone: bool,
}

fn of_unit(object: ObjectId, unit: u64) -> usize {
    unit_id((object, unit)) as usize % COUNTERS
}
fn of_object(object: ObjectId) -> usize {
    of_unit(object, u64::MAX)
}

impl Changes {
    fn state(&self, counter: usize) -> Option<u64> {
        let c = self.0[counter];
        (c.open == 0).then_some(c.changes)
    }
    /// The state of a range's units now.
    pub fn stamp(&self, object: ObjectId, range: BlockRange) -> Stamp {
        let units = units_of(range);
        Stamp {
            object: self.state(of_object(object)),
            first: units.start,
            units: units.map(|u| self.state(of_unit(object, u))).collect(),
        }
    }
    /// Whether some unit of a range is changing now.
    pub fn is_changing(&self, object: ObjectId, range: BlockRange) -> bool {
        let stamp = self.stamp(object, range);
        stamp.object.is_none() || stamp.units.iter().any(Option::is_none)
    }
    /// Whether a unit is as it was when `stamp` was taken of it.
    pub fn is_current(&self, object: ObjectId, unit: u64, stamp: &Stamp) -> bool {
        let same = |then: Option<u64>, counter| then.is_some() && then == self.state(counter);
        let then = unit.checked_sub(stamp.first).and_then(|i| stamp.units.get(i as usize).copied()).flatten();
        same(stamp.object, of_object(object)) && same(then, of_unit(object, unit))
    }
    /// Ranges begin to change.
    pub fn begin(&mut self, ranges: &[(ObjectId, BlockRange)]) -> Change {
        let (mut counters, mut objects, mut alone) = (Vec::new(), Vec::new(), true);
        for (object, range) in ranges {
            let units = units_of(*range);
            if units.end - units.start > UNITS_MAX {
                counters.push(of_object(*object));
                alone = false;
            } else {
                objects.push((of_object(*object), self.state(of_object(*object))));
                counters.extend(units.map(|u| of_unit(*object, u)));
            }
        }
        counters.sort_unstable();
        counters.dedup();
        for c in &counters {
            let counter = &mut self.0[*c];
            alone &= counter.open == 0;
            counter.open += 1;
            counter.changes += 1;
        }
        let stamp = counters.iter().map(|c| self.0[*c].changes).collect();
        Change { counters, stamp, objects, alone }
    }
    /// A change has ended. Whether no other one of its units was under way meanwhile: what it wrote is what is there.
    pub fn end(&mut self, change: &Change) -> bool {
        let now = change.counters.iter().map(|c| self.0[*c].changes);
        let whole = change.objects.iter().all(|(c, then)| then.is_some() && *then == self.state(*c));
        let alone = change.alone && whole && now.eq(change.stamp.iter().copied());
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
    const ALL: BlockRange = BlockRange { first: 0, count: u64::MAX };
    fn object(n: u32) -> ObjectId {
        ObjectId::new(OstIndex(0), n)
    }
    /// Which of the three units are current.
    fn current(changes: &Changes, stamp: &Stamp) -> Vec<u64> {
        (0..4).filter(|u| changes.is_current(object(1), *u, stamp)).collect()
    }

    #[test]
    fn a_unit_is_current_until_a_change_of_it_begins_and_no_stamp_is_good_before_it_ends() {
        let mut changes = Changes::default();
        let before = changes.stamp(object(1), RANGE);
        let change = changes.begin(&[(object(1), BlockRange { first: 39, count: 1 })]);
        let amid = changes.stamp(object(1), RANGE);
        assert_eq!((current(&changes, &before), current(&changes, &amid)), (vec![0, 1], vec![0, 1]));
        assert!(changes.end(&change));
        assert_eq!((current(&changes, &before), current(&changes, &amid)), (vec![0, 1], vec![0, 1]));
        assert_eq!(current(&changes, &changes.stamp(object(1), RANGE)), [0, 1, 2]);
    }

    #[test]
    fn a_removal_changes_everything_of_its_object_and_nothing_of_others() {
        let mut changes = Changes::default();
        let stamp = changes.stamp(object(1), RANGE);
        let removals: Vec<_> = (2..90).map(|n| (object(n), ALL)).collect();
        let removal = changes.begin(&removals);
        assert_eq!(current(&changes, &stamp), [0, 1, 2]);
        assert!(!changes.end(&removal), "of so much it is not told");
        assert_eq!(current(&changes, &stamp), [0, 1, 2]);
        let cut = changes.begin(&[(object(1), ALL)]);
        assert!(current(&changes, &stamp).is_empty() && current(&changes, &changes.stamp(object(1), RANGE)).is_empty());
        changes.end(&cut);
        assert!(current(&changes, &stamp).is_empty());
        assert_eq!(current(&changes, &changes.stamp(object(1), RANGE)), [0, 1, 2]);
    }

    #[test]
    fn changes_that_overlap_in_time_do_not_know_whose_contents_stay() {
        let at = (object(1), RANGE);
        for (first, second, knows) in [(at, at, false), (at, (object(1), ALL), false), (at, (object(2), ALL), true)] {
            for first_ends_first in [false, true] {
                let mut changes = Changes::default();
                let (a, b) = (changes.begin(&[first]), changes.begin(&[second]));
                let known = if first_ends_first {
                    let known = changes.end(&a);
                    changes.end(&b);
                    known
                } else {
                    changes.end(&b);
                    changes.end(&a)
                };
                assert_eq!(known, knows, "{second:?}");
                let (b, a) = (changes.begin(&[second]), changes.begin(&[first]));
                changes.end(&b);
                assert_eq!(changes.end(&a), knows, "{second:?}");
                let alone = changes.begin(&[first]);
                assert!(changes.end(&alone));
            }
        }
    }
}
