//! Auto: round robin while free space is balanced, weighted otherwise.
//!
//! Source: the shape of Lustre's `qos_threshold_rr` (default 17 %). Balanced: the OST with least free space has at least
//! `100 - balanced_within_percent` percent of the one with most.
use alloc::vec::Vec;
use types::OstIndex;

use super::{AllocPolicy, Candidate, RoundRobin, Weighted};
use crate::config::AllocConfig;

/// Round robin while balanced, weighted otherwise.
#[derive(Clone, Debug)]
pub struct Auto {
    balanced_within_percent: u64,
    round_robin: RoundRobin,
    weighted: Weighted,
}

impl Auto {
    /// With the threshold of the configuration.
    #[must_use]
    pub fn new(config: &AllocConfig) -> Auto {
        Auto {
            balanced_within_percent: config.balanced_within_percent.min(100),
            round_robin: RoundRobin::new(),
            weighted: Weighted::new(),
        }
    }
    fn is_balanced(&self, candidates: &[Candidate]) -> bool {
        let (least, most) =
            candidates.iter().fold((u64::MAX, 0), |(least, most), c| (least.min(c.free_bytes), most.max(c.free_bytes)));
        let keep = u128::from(100 - self.balanced_within_percent);
        u128::from(least) * 100 >= u128::from(most) * keep
    }
}

impl AllocPolicy for Auto {
    fn choose(&mut self, candidates: &[Candidate], count: usize, dice: u64, chosen: &mut Vec<OstIndex>) {
        if self.is_balanced(candidates) {
            self.round_robin.choose(candidates, count, dice, chosen);
        } else {
            self.weighted.choose(candidates, count, dice, chosen);
        }
    }
}
