//! Backward: each read ends where the last one started.
use types::Extent;

use super::Pattern;
use crate::GAP_BYTES;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Backward {
    /// Start of the last read.
    start: u64,
    /// Reads in a row, each right before the other.
    steps: u32,
}

/// Sure after so many steps back: at the third read.
const STEPS_MIN: u32 = 2;

impl Pattern for Backward {
    fn observe(&mut self, read: Extent) -> bool {
        let adjoins = read.end <= self.start && self.start - read.end <= GAP_BYTES;
        self.steps = if adjoins { self.steps.saturating_add(1) } else { 0 };
        self.start = read.start;
        self.steps >= STEPS_MIN
    }
    fn next(&self, after: Extent, want: u64) -> Option<Extent> {
        (after.start > 0).then(|| Extent::new(after.start.saturating_sub(want), after.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_read_backwards_is_explained_and_what_lies_before_is_foretold() {
        let mut b = Backward::default();
        let at = |i: u64| Extent::at(i * 100_000, 100_000);
        assert!(!b.observe(at(9)) && !b.observe(at(8)) && b.observe(at(7)));
        assert_eq!(b.next(at(7), 300_000), Some(Extent::new(400_000, 700_000)));
        assert_eq!(b.next(Extent::at(0, 5), 10), None);
        assert!(!b.observe(at(8)));
    }
}
