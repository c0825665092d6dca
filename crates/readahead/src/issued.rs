//! The bytes of a file that were prefetched and not used yet: a small sorted list of disjoint extents.
//!
//! A sequential stream is one extent whose front is used up and whose end grows; a stride is one extent per record. What
//! the reader passes by, and what no read has touched for long, is remembered (its pages are in the cache, a second fetch
//! would be for nothing) but counts against no limit any more: a reader that goes on is not held up by what it left out.
use alloc::vec::Vec;
use types::Extent;

/// How prefetched bytes count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Window and budget carry them. They lie where the reader goes: behind the read that asked for them, or before it.
    Charged { backward: bool },
    /// Their stream ended, or nothing touched them for long.
    Abandoned,
    /// The reader went past them.
    Passed,
}

impl Standing {
    fn is_charged(self) -> bool {
        matches!(self, Standing::Charged { .. })
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    extent: Extent,
    standing: Standing,
    /// When a read or a request last touched it: see [`Issued::next_epoch`].
    epoch: u32,
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct Issued {
    runs: Vec<Run>,
    charged_bytes: u64,
    epoch: u32,
}

/// What [`Issued::take`] removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// All bytes removed.
    pub bytes: u64,
    /// Those that the budget carried.
    pub charged: u64,
    /// Those that the reader had passed by.
    pub passed: u64,
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
    pub fn insert(&mut self, e: Extent, standing: Standing) -> bool {
        let i = self.runs.partition_point(|r| r.extent.start < e.start);
        let before = i.checked_sub(1).map(|b| self.runs[b]);
        let after = self.runs.get(i).copied();
        assert!(before.is_none_or(|b| b.extent.end <= e.start), "prefetched twice");
        assert!(after.is_none_or(|a| e.end <= a.extent.start), "prefetched twice");
        let joins_before = before.is_some_and(|b| b.extent.end == e.start && b.standing == standing);
        let joins_after = after.is_some_and(|a| a.extent.start == e.end && a.standing == standing);
        let epoch = self.epoch;
        match (joins_before, joins_after) {
            (true, true) => {
                let end = self.runs.remove(i).extent.end;
                self.runs[i - 1].extent.end = end;
                self.runs[i - 1].epoch = epoch;
            }
            (true, false) => {
                self.runs[i - 1].extent.end = e.end;
                self.runs[i - 1].epoch = epoch;
            }
            (false, true) => {
                self.runs[i].extent.start = e.start;
                self.runs[i].epoch = epoch;
            }
            (false, false) => {
                if self.runs.len() >= RUNS_MAX {
                    self.runs.retain(|r| r.standing.is_charged());
                    if self.runs.len() >= RUNS_MAX {
                        return false;
                    }
                    return self.insert(e, standing);
                }
                self.runs.insert(i, Run { extent: e, standing, epoch });
            }
        }
        self.charged_bytes += if standing.is_charged() { e.len() } else { 0 };
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
            match r.standing {
                Standing::Charged { .. } => taken.charged += common.len(),
                Standing::Passed => taken.passed += common.len(),
                Standing::Abandoned => {}
            }
            let whole = r.extent;
            r.epoch = self.epoch;
            if common.start > whole.start {
                r.extent.end = common.start;
                i += 1;
                if common.end < whole.end {
                    let behind = Run { extent: Extent::new(common.end, whole.end), ..*r };
                    self.runs.insert(i, behind);
                }
            } else if common.end < whole.end {
                r.extent.start = common.end;
                break;
            } else {
                self.runs.remove(i);
            }
        }
        self.charged_bytes -= taken.charged;
        // Every gap of a reader that leaves some out splits a run.
        if self.runs.len() > RUNS_MAX {
            self.runs.retain(|r| r.standing.is_charged());
        }
        taken
    }
    /// The reader is at `read`, and went past what had been asked for ahead of earlier reads and lies before it (behind it,
    /// for a backward reader): adjoining it, or at most `reach` bytes away. Returns what the budget carried of it.
    #[inline]
    pub fn pass(&mut self, read: Extent, reach: u64) -> u64 {
        let before = match self.runs.first() {
            None => return 0,
            // The usual place of a reader that leaves nothing out.
            Some(r) if r.extent.start >= read.end => 0,
            Some(_) => self.runs.partition_point(|r| r.extent.start < read.start),
        };
        let mut passed = 0;
        let mut from = read.start.saturating_sub(reach);
        for r in self.runs[..before].iter_mut().rev() {
            if r.extent.end < from {
                break;
            }
            from = from.min(r.extent.start);
            passed += r.pass_if(Standing::Charged { backward: false });
        }
        let mut until = read.end.saturating_add(reach);
        for r in &mut self.runs[before..] {
            // A forward stream ends the search: whoever reads on there reads backward no more.
            if r.extent.start > until || r.standing == (Standing::Charged { backward: false }) {
                break;
            }
            until = until.max(r.extent.end);
            passed += r.pass_if(Standing::Charged { backward: true });
        }
        self.charged_bytes -= passed;
        passed
    }
    /// An epoch ends: what no read and no request has touched in the last `age_max` of them is abandoned. Returns what the
    /// budget carried of it.
    pub fn next_epoch(&mut self, age_max: u32) -> u64 {
        self.epoch = self.epoch.wrapping_add(1);
        let mut given_back = 0;
        for r in &mut self.runs {
            if r.standing.is_charged() && self.epoch.wrapping_sub(r.epoch) > age_max {
                given_back += r.extent.len();
                r.standing = Standing::Abandoned;
            }
        }
        self.charged_bytes -= given_back;
        given_back
    }
    /// The budget carries nothing of it any more; returns what it carried.
    pub fn uncharge_all(&mut self) -> u64 {
        if self.charged_bytes > 0 {
            let charged = self.runs.iter_mut().filter(|r| r.standing.is_charged());
            charged.for_each(|r| r.standing = Standing::Abandoned);
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

impl Run {
    fn pass_if(&mut self, standing: Standing) -> u64 {
        if self.standing != standing {
            return 0;
        }
        self.standing = Standing::Passed;
        self.extent.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_lies_between_reads_is_passed_by_and_what_lies_ahead_is_not() {
        let forward = Standing::Charged { backward: false };
        let mut set = Issued::default();
        assert!(set.insert(Extent::new(10, 20), forward) && set.insert(Extent::new(30, 90), forward));
        assert_eq!(set.take(Extent::new(40, 45)), Taken { bytes: 5, charged: 5, passed: 0 });
        assert_eq!(set.pass(Extent::new(40, 45), 5), 10, "30 to 40, and 10 to 20 lies too far away");
        assert_eq!(set.charged_bytes(), 10 + 45);
        assert_eq!(set.pass(Extent::new(25, 26), 5), 10);
        assert_eq!(set.take(Extent::new(0, 35)), Taken { bytes: 15, charged: 0, passed: 15 });
        assert_eq!(
            set.first_gap(Extent::new(35, 90)),
            Some(Extent::new(40, 45)),
            "what was passed is not fetched again"
        );
    }

    #[test]
    fn a_backward_reader_passes_by_what_lies_behind_it() {
        let mut set = Issued::default();
        assert!(set.insert(Extent::new(10, 90), Standing::Charged { backward: true }));
        set.take(Extent::new(70, 75));
        assert_eq!((set.pass(Extent::new(70, 75), 0), set.charged_bytes()), (15, 60));
    }

    #[test]
    fn what_nothing_touches_for_long_is_abandoned() {
        let mut set = Issued::default();
        let charged = Standing::Charged { backward: false };
        assert!(set.insert(Extent::new(0, 10), charged) && set.insert(Extent::new(50, 60), charged));
        for _ in 0..4 {
            assert_eq!(set.next_epoch(4), 0);
        }
        set.take(Extent::new(0, 1));
        assert_eq!((set.next_epoch(4), set.charged_bytes()), (10, 9));
    }

    #[test]
    fn gaps_do_not_grow_the_list_beyond_its_limit() {
        let mut set = Issued::default();
        assert!(set.insert(Extent::new(0, 1 << 20), Standing::Charged { backward: false }));
        for i in 0..1 << 18 {
            let read = Extent::at(i * 4 + 1, 1);
            set.take(read);
            set.pass(read, 8);
            assert!(set.runs.len() <= RUNS_MAX, "{} runs", set.runs.len());
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map_of_bytes(ops in prop::collection::vec((0u8..4, 0u64..60, 1u64..12), 1..120)) {
            let mut set = Issued::default();
            let mut model: BTreeMap<u64, bool> = BTreeMap::new();
            let standing = |charged| if charged { Standing::Charged { backward: false } } else { Standing::Abandoned };
            for (op, start, len) in ops {
                let e = Extent::at(start, len);
                match op {
                    0 | 1 => {
                        // Insert only the gaps, as the mechanism does.
                        while let Some(gap) = set.first_gap(e) {
                            prop_assert!((gap.start..gap.end).all(|b| !model.contains_key(&b)));
                            prop_assert!(set.insert(gap, standing(op == 0)));
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
