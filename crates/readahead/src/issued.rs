//! The bytes of a file that were prefetched and not used yet: a small sorted list of disjoint extents.
//!
//! A sequential stream is one extent whose front is used up and whose end grows; a stride is one extent per record.
use alloc::vec::Vec;
use types::Extent;

#[derive(Clone, Copy, Debug)]
struct Run {
    extent: Extent,
    /// Whether the budget still carries it; runs of an abandoned stream are remembered but not charged.
    charged: bool,
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct Issued {
    runs: Vec<Run>,
    charged_bytes: u64,
}

/// What [`Issued::take`] removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// All bytes removed.
    pub bytes: u64,
    /// Those that the budget carried.
    pub charged: u64,
}

/// Extents remembered at most; beyond it, first the uncharged are forgotten, then nothing more is prefetched.
pub const RUNS_MAX: usize = 4096 + 64;

impl Issued {
    /// Bytes that the budget carries.
    pub fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }
    /// End of the prefetched bytes that begin at or before `offset` and reach beyond it; `offset` itself if none do.
    #[inline]
    pub fn covered_until(&self, offset: u64) -> u64 {
        let i = self.first_ending_after(offset);
        match self.runs.get(i) {
            Some(r) if r.extent.start <= offset => self.end_of_chain(i),
            _ => offset,
        }
    }
    /// Start of the prefetched bytes that end at or after `offset` and begin before it; `offset` itself if none do.
    pub fn covered_from(&self, offset: u64) -> u64 {
        let mut from = offset;
        let mut i = self.runs.partition_point(|r| r.extent.start < offset);
        while i > 0 && self.runs[i - 1].extent.end >= from {
            i -= 1;
            from = self.runs[i].extent.start;
        }
        from
    }
    /// First part of `e` that is not there, `None` when all of it is.
    pub fn first_gap(&self, e: Extent) -> Option<Extent> {
        let start = self.covered_until(e.start);
        if start >= e.end {
            return None;
        }
        let i = self.runs.partition_point(|r| r.extent.start < start);
        let end = self.runs.get(i).map_or(e.end, |r| r.extent.start.min(e.end));
        Some(Extent::new(start, end))
    }
    /// Adds `e`, of which nothing may be there. False when the list is full.
    pub fn insert(&mut self, e: Extent, charged: bool) -> bool {
        let i = self.runs.partition_point(|r| r.extent.start < e.start);
        let before = i.checked_sub(1).map(|b| self.runs[b]);
        let after = self.runs.get(i).copied();
        assert!(before.is_none_or(|b| b.extent.end <= e.start), "prefetched twice");
        assert!(after.is_none_or(|a| e.end <= a.extent.start), "prefetched twice");
        let joins_before = before.is_some_and(|b| b.extent.end == e.start && b.charged == charged);
        let joins_after = after.is_some_and(|a| a.extent.start == e.end && a.charged == charged);
        match (joins_before, joins_after) {
            (true, true) => {
                self.runs[i - 1].extent.end = self.runs[i].extent.end;
                self.runs.remove(i);
            }
            (true, false) => self.runs[i - 1].extent.end = e.end,
            (false, true) => self.runs[i].extent.start = e.start,
            (false, false) => {
                if self.runs.len() >= RUNS_MAX {
                    self.runs.retain(|r| r.charged);
                    if self.runs.len() >= RUNS_MAX {
                        return false;
                    }
                    return self.insert(e, charged);
                }
                self.runs.insert(i, Run { extent: e, charged });
            }
        }
        self.charged_bytes += if charged { e.len() } else { 0 };
        true
    }
    /// Removes what lies in `e`.
    #[inline]
    pub fn take(&mut self, e: Extent) -> Taken {
        let mut taken = Taken::default();
        let mut i = self.first_ending_after(e.start);
        while let Some(r) = self.runs.get_mut(i) {
            let Some(common) = r.extent.intersect(&e) else { break };
            taken.bytes += common.len();
            taken.charged += if r.charged { common.len() } else { 0 };
            let whole = r.extent;
            if common.start > whole.start {
                r.extent.end = common.start;
                i += 1;
                if common.end < whole.end {
                    let charged = r.charged;
                    self.runs.insert(i, Run { extent: Extent::new(common.end, whole.end), charged });
                }
            } else if common.end < whole.end {
                r.extent.start = common.end;
                break;
            } else {
                self.runs.remove(i);
            }
        }
        self.charged_bytes -= taken.charged;
        taken
    }
    /// The budget carries nothing of it any more; returns what it carried.
    pub fn uncharge_all(&mut self) -> u64 {
        if self.charged_bytes > 0 {
            self.runs.iter_mut().for_each(|r| r.charged = false);
        }
        core::mem::take(&mut self.charged_bytes)
    }

    #[inline]
    fn first_ending_after(&self, offset: u64) -> usize {
        // The front is the usual place; it saves the search.
        match self.runs.first() {
            None => 0,
            Some(r) if r.extent.end > offset => 0,
            Some(_) => self.runs.partition_point(|r| r.extent.end <= offset),
        }
    }
    fn end_of_chain(&self, mut i: usize) -> u64 {
        let mut end = self.runs[i].extent.end;
        while let Some(next) = self.runs.get(i + 1).filter(|n| n.extent.start == end) {
            end = next.extent.end;
            i += 1;
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_agrees_with_a_map_of_bytes(ops in prop::collection::vec((0u8..4, 0u64..60, 1u64..12), 1..120)) {
            let mut set = Issued::default();
            let mut model: BTreeMap<u64, bool> = BTreeMap::new();
            for (op, start, len) in ops {
                let e = Extent::at(start, len);
                match op {
                    0 | 1 => {
                        // Insert only the gaps, as the mechanism does.
                        while let Some(gap) = set.first_gap(e) {
                            prop_assert!((gap.start..gap.end).all(|b| !model.contains_key(&b)));
                            prop_assert!(set.insert(gap, op == 0));
                            model.extend((gap.start..gap.end).map(|b| (b, op == 0)));
                        }
                        prop_assert!((e.start..e.end).all(|b| model.contains_key(&b)));
                    }
                    2 => {
                        let taken = set.take(e);
                        let gone: std::vec::Vec<bool> = (e.start..e.end).filter_map(|b| model.remove(&b)).collect();
                        prop_assert_eq!(taken.bytes, gone.len() as u64);
                        prop_assert_eq!(taken.charged, gone.iter().filter(|c| **c).count() as u64);
                    }
                    _ if len > 9 => {
                        let n = model.values().filter(|c| **c).count() as u64;
                        prop_assert_eq!(set.uncharge_all(), n);
                        model.values_mut().for_each(|c| *c = false);
                    }
                    _ => {}
                }
                prop_assert_eq!(set.charged_bytes(), model.values().filter(|c| **c).count() as u64);
                let mut until = start;
                while model.contains_key(&until) { until += 1; }
                prop_assert_eq!(set.covered_until(start), until);
                let mut from = start;
                while from > 0 && model.contains_key(&(from - 1)) { from -= 1; }
                prop_assert_eq!(set.covered_from(start), from);
            }
        }
    }
}
