//! Round robin: each OST in turn. Object counts differ by at most one while the set of OSTs stays the same.
//!
//! Source: paper 002 section 3.3 (index -1 balances). Differs: the first stripe has a turn of its own (`first_turn`).
use alloc::vec::Vec;
use types::OstIndex;

use super::first_turn::FirstTurn;
use super::{AllocPolicy, Candidate};

/// Each OST in turn, from a random one on.
#[derive(Clone, Default, Debug)]
pub struct RoundRobin {
    /// The next file's set starts at the first candidate with this index or a later one.
    next: Option<OstIndex>,
    firsts: FirstTurn,
}

impl RoundRobin {
    /// A fresh turn.
    #[must_use]
    pub fn new() -> RoundRobin {
        RoundRobin::default()
    }
}

impl AllocPolicy for RoundRobin {
    fn choose(&mut self, candidates: &[Candidate], count: usize, dice: u64, chosen: &mut Vec<OstIndex>) {
        let n = candidates.len();
        let start = match self.next {
            Some(next) => candidates.partition_point(|c| c.index < next) % n,
            None => (dice % n as u64) as usize,
        };
        chosen.extend((0..count).map(|i| candidates[(start + i) % n].index));
        self.next = Some(candidates[(start + count) % n].index);
        self.firsts.rotate(chosen, |_| 1);
    }
}
