//! Weighted: objects in proportion to free space.
//!
//! Each create gives every OST credit for its share; the OSTs with most credit are taken and pay one each. No randomness
//! is needed for proportion, and no OST is ever more than about one object away from its share.
//! Source: smooth weighted round robin, generalised to sets. Differs from Lustre's weighted allocator, which draws at
//! random and corrects with penalties: same long-run shares, less variance.
use alloc::vec::Vec;
use types::OstIndex;

use super::first_turn::FirstTurn;
use super::{AllocPolicy, Candidate};

/// One object, in credit.
const ONE: i64 = 1 << 32;

/// In proportion to free space.
#[derive(Clone, Default, Debug)]
pub struct Weighted {
    /// Credit by OST, sorted by OST. At most `ONE`: an OST whose share exceeds one object per file does not save up.
    credit: Vec<(OstIndex, i64)>,
    firsts: FirstTurn,
    ranked: Vec<(i64, u16, u64)>,
    phase: Option<u16>,
}

impl Weighted {
    /// No credit yet.
    #[must_use]
    pub fn new() -> Weighted {
        Weighted::default()
    }

    /// Credit entry of `ost`, at or after position `from`; entries of OSTs that are away keep their place.
    fn entry(&mut self, ost: OstIndex, from: usize) -> usize {
        let mut at = from;
        while self.credit.get(at).is_some_and(|c| c.0 < ost) {
            at += 1;
        }
        if self.credit.get(at).is_none_or(|c| c.0 != ost) {
            self.credit.insert(at, (ost, 0));
        }
        at
    }
}

impl AllocPolicy for Weighted {
    fn choose(&mut self, candidates: &[Candidate], count: usize, dice: u64, chosen: &mut Vec<OstIndex>) {
        let phase = *self.phase.get_or_insert(dice as u16);
        // An OST with no free byte still needs a weight, or a set of only such OSTs would have none.
        let weight = |c: &Candidate| c.free_bytes.max(1);
        let total: u128 = candidates.iter().map(|c| u128::from(weight(c))).sum();
        // One division for all: share = weight x ratio / 2^64. At most 2^64 x 2^32 x 2000 in sum: no overflow.
        let ratio = ((ONE as u128 * count as u128) << 64) / total;
        self.ranked.clear();
        let mut at = 0;
        for c in candidates {
            at = self.entry(c.index, at);
            let share = (u128::from(weight(c)) * ratio) >> 64;
            let credit = self.credit[at].1.saturating_add(i64::try_from(share).unwrap_or(ONE)).min(ONE);
            self.credit[at].1 = credit;
            // Most credit first; ties in index order from `phase` on, so that several MDTs do not march in step.
            self.ranked.push((-credit, c.index.0.wrapping_sub(phase), weight(c)));
        }
        if count < self.ranked.len() {
            self.ranked.select_nth_unstable(count - 1);
        }
        self.ranked[..count].sort_unstable_by_key(|r| r.1);
        chosen.extend(self.ranked[..count].iter().map(|r| OstIndex(r.1.wrapping_add(phase))));
        for ost in chosen.iter() {
            let i = self.credit.binary_search_by_key(ost, |c| c.0).expect("every candidate has an entry");
            self.credit[i].1 -= ONE;
        }
        let largest = candidates.iter().map(weight).max().unwrap_or(1);
        self.firsts.rotate(chosen, |ost| {
            let i = candidates.binary_search_by_key(&ost, |c| c.index).expect("chosen from the candidates");
            // Scaled to 1..=65536: the first places' virtual time then never runs out of bits.
            (u128::from(weight(&candidates[i])) * 65_535 / u128::from(largest)) as u64 + 1
        });
    }
}
