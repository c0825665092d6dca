//! Whose turn it is to hold a file's first stripe.
//!
//! A file smaller than a stripe puts all its bytes on its first OST. Rotating only the *set* of OSTs is not enough: with
//! a count that divides the number of OSTs (or equals it) the same OSTs would come first for ever.
use alloc::vec::Vec;
use types::OstIndex;

/// Virtual time of first places: each costs its OST `1 / weight`; the OST with the least goes first.
#[derive(Clone, Default, Debug)]
pub struct FirstTurn {
    /// Virtual time each OST has spent; sorted by OST.
    spent: Vec<(OstIndex, u128)>,
    /// Virtual time of the last turn: where an OST that is new here begins.
    now: u128,
}

/// Cost of a first place at weight 1.
const COST: u128 = 1 << 64;
/// How far an OST that was away may lag behind: it catches up two first places, not all it missed.
const LAG_MAX: u128 = 2 * COST;

impl FirstTurn {
    /// Rotates `chosen` (not empty) so that the OST whose turn it is comes first. `weight` is >= 1.
    pub fn rotate(&mut self, chosen: &mut [OstIndex], weight: impl Fn(OstIndex) -> u64) {
        let (mut first, mut entry, mut least) = (0, 0, u128::MAX);
        for (i, ost) in chosen.iter().enumerate() {
            let at = self.entry(*ost);
            // An insertion before the best entry moves it by one.
            entry += usize::from(at.1 && at.0 <= entry && least != u128::MAX);
            if self.spent[at.0].1 < least {
                (first, entry, least) = (i, at.0, self.spent[at.0].1);
            }
        }
        let start = least.max(self.now.saturating_sub(LAG_MAX));
        self.now = self.now.max(start);
        self.spent[entry].1 = start.saturating_add(COST / u128::from(weight(chosen[first]).max(1)));
        chosen.rotate_left(first);
    }

    /// Position of `ost`'s entry, and whether it was inserted just now. Every OST enters when it is first seen: entering
    /// only when it is first chosen would leave it last in line for ever.
    fn entry(&mut self, ost: OstIndex) -> (usize, bool) {
        match self.spent.binary_search_by_key(&ost, |s| s.0) {
            Ok(i) => (i, false),
            Err(i) => {
                self.spent.insert(i, (ost, self.now));
                (i, true)
            }
        }
    }
}
