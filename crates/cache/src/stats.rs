//! Hit ratio by granularity, as counters with their denominators.
use crate::{Grain, PageAccess};

/// Page look-ups of one cache. The mechanism counts them; policies do not see misses that were never inserted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Look-ups by readers and writers of fine requests.
    pub fine_lookups: u64,
    /// Of these, found.
    pub fine_hits: u64,
    /// Look-ups of coarse requests.
    pub coarse_lookups: u64,
    /// Of these, found.
    pub coarse_hits: u64,
    /// Pages fetched ahead of their readers.
    pub readahead_pages: u64,
    /// Look-ups by readahead passes; in neither hit ratio.
    pub readahead_lookups: u64,
}

impl Stats {
    /// Counts one page look-up. A readahead look-up that misses counts as one page fetched ahead.
    #[inline]
    pub fn count(&mut self, access: &PageAccess, hit: bool) {
        self.count_many(access, 1, u64::from(hit));
    }
    /// Counts the look-ups of a request's `pages`, `found` of which were there.
    #[inline]
    pub fn count_many(&mut self, access: &PageAccess, pages: u64, found: u64) {
        if access.readahead {
            self.readahead_lookups += pages;
            self.readahead_pages += pages - found;
            return;
        }
        let (lookups, hits) = match access.grain {
            Grain::Fine => (&mut self.fine_lookups, &mut self.fine_hits),
            Grain::Coarse => (&mut self.coarse_lookups, &mut self.coarse_hits),
        };
        *lookups += pages;
        *hits += found;
    }

    /// Share of look-ups of `grain` that were found, 0..=1; `None` without look-ups.
    #[must_use]
    pub fn hit_ratio(&self, grain: Grain) -> Option<f64> {
        match grain {
            Grain::Fine => ratio(self.fine_hits, self.fine_lookups),
            Grain::Coarse => ratio(self.coarse_hits, self.coarse_lookups),
        }
    }

    /// Share of all reader and writer look-ups that were found, 0..=1; `None` without look-ups.
    #[must_use]
    pub fn hit_ratio_overall(&self) -> Option<f64> {
        ratio(self.fine_hits + self.coarse_hits, self.fine_lookups + self.coarse_lookups)
    }

    /// Adds another cache's counters, for a node or cluster total.
    pub fn add(&mut self, other: &Stats) {
        self.fine_lookups += other.fine_lookups;
        self.fine_hits += other.fine_hits;
        self.coarse_lookups += other.coarse_lookups;
        self.coarse_hits += other.coarse_hits;
        self.readahead_pages += other.readahead_pages;
        self.readahead_lookups += other.readahead_lookups;
    }

    /// The counters by metric name (unit: pages), numerators beside their denominators.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64); 6] {
        [
            ("fine_hits", self.fine_hits),
            ("fine_lookups", self.fine_lookups),
            ("coarse_hits", self.coarse_hits),
            ("coarse_lookups", self.coarse_lookups),
            ("readahead_pages", self.readahead_pages),
            ("readahead_lookups", self.readahead_lookups),
        ]
    }
}

fn ratio(hits: u64, lookups: u64) -> Option<f64> {
    (lookups > 0).then(|| hits as f64 / lookups as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fine_and_coarse_are_counted_apart_and_readahead_in_neither() {
        let mut s = Stats::default();
        assert_eq!(s.hit_ratio(Grain::Fine), None);
        s.count(&PageAccess::fine(1), true);
        s.count(&PageAccess::fine(2), false);
        s.count(&PageAccess::coarse(3, 1 << 20), false);
        s.count(&PageAccess::coarse(4, 1 << 20).ahead(), false);
        s.count(&PageAccess::coarse(4, 1 << 20).ahead(), true);
        assert_eq!(s.hit_ratio(Grain::Fine), Some(0.5));
        assert_eq!(s.hit_ratio(Grain::Coarse), Some(0.0));
        assert_eq!(s.hit_ratio_overall(), Some(1.0 / 3.0));
        assert_eq!((s.readahead_pages, s.readahead_lookups), (1, 2));
        let mut total = s;
        total.add(&s);
        assert_eq!(total.fine_lookups, 4);
    }
}
