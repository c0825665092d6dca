//! Bytes per interval, of one agent and of all of them side by side.
//!
//! A transfer counts in the interval in which it ended. All agents count from the same moment, so that their intervals lie
//! on top of each other.
use serde::{Deserialize, Serialize};

/// Most intervals that are counted; what comes later counts in the last one, so that sums stay right.
pub const INTERVALS_MAX: usize = 1 << 18;

/// Bytes per interval of one agent or rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series(pub Vec<u64>);

impl Series {
    /// Counts a transfer that ended `after_ns` after the start.
    pub fn count(&mut self, after_ns: u64, interval_ns: u64, bytes: u64) {
        let at = usize::try_from(after_ns / interval_ns.max(1)).unwrap_or(usize::MAX).min(INTERVALS_MAX - 1);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += bytes;
    }
    /// Adds another one, interval by interval.
    pub fn add(&mut self, other: &Series) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }
    /// Bytes of all intervals.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// What happened in one interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Bytes of each agent.
    pub agents: Vec<u64>,
    /// Bytes of all agents.
    pub sum: u64,
    /// Bytes of the agent that moved least.
    pub min: u64,
    /// Bytes of the agent that moved most.
    pub max: u64,
}

/// The agents' series side by side, as long as the longest.
#[must_use]
pub fn aligned(series: &[&Series]) -> Vec<Moment> {
    let len = series.iter().map(|s| s.0.len()).max().unwrap_or(0);
    let at = |i: usize| {
        let agents: Vec<u64> = series.iter().map(|s| s.0.get(i).copied().unwrap_or(0)).collect();
        let (min, max) = (agents.iter().copied().min().unwrap_or(0), agents.iter().copied().max().unwrap_or(0));
        Moment { sum: agents.iter().sum(), agents, min, max }
    };
    (0..len).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_count_where_they_end_and_no_byte_is_lost() {
        let mut s = Series::default();
        for (after, bytes) in [(0, 1), (9, 2), (10, 4), (35, 8), (u64::MAX, 16)] {
            s.count(after, 10, bytes);
        }
        assert_eq!(s.0[..4], [3, 4, 0, 8]);
        assert_eq!((s.0.len(), s.bytes()), (INTERVALS_MAX, 31));
        s.count(5, 0, 1);
        assert_eq!(s.0[5], 1, "an interval of nothing counts as 1 ns");
    }

    #[test]
    fn series_of_different_lengths_lie_side_by_side() {
        let (mut a, b) = (Series(vec![1, 2]), Series(vec![10, 20, 30]));
        let moments = aligned(&[&a, &b]);
        assert_eq!(moments[1], Moment { agents: vec![2, 20], sum: 22, min: 2, max: 20 });
        assert_eq!(moments[2], Moment { agents: vec![0, 30], sum: 30, min: 0, max: 30 });
        assert!(aligned(&[]).is_empty());
        a.add(&b);
        assert_eq!(a, Series(vec![11, 22, 30]));
    }
}
