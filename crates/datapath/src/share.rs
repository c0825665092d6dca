//! How many places of a client's page cache the unwritten pages of one OST may take.
//!
//! An unwritten page keeps its place until its OST has taken it, which one that is away never does. Every OST may fill as many places as are
//! free then: n OSTs that take nothing end with one part of n + 1 each, and one part stays for reads and for writes to others. How
//! many OSTs are slow or away need not be known.
//!
//! Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches" (1998), with an alpha of 1.
//! Differs: whoever has nothing there is let in while any place is free, for a request of any size.

/// The places of a page cache, as far as unwritten pages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Bytes that there are places for.
    pub places_bytes: u64,
    /// Bytes of unwritten pages, of all OSTs.
    pub unwritten_bytes: u64,
}

impl Share {
    /// Whether a request of `bytes` may dirty pages of an OST of which `dirty_bytes` are unwritten.
    #[must_use]
    pub const fn admits(&self, dirty_bytes: u64, bytes: u64) -> bool {
        let free = self.places_bytes.saturating_sub(self.unwritten_bytes);
        if dirty_bytes == 0 { free > 0 } else { dirty_bytes.saturating_add(bytes) <= free.saturating_sub(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn osts_that_take_nothing_leave_a_part_of_the_places_to_the_others() {
        for osts in [1, 2, 6, 100] {
            let (places_bytes, mut dirty) = (1 << 20, std::vec![0_u64; osts]);
            let mut rounds = 0;
            loop {
                let before = dirty.clone();
                for ost in 0..osts {
                    let share = Share { places_bytes, unwritten_bytes: dirty.iter().sum() };
                    dirty[ost] += if share.admits(dirty[ost], 16) { 16 } else { 0 };
                }
                rounds += 1;
                if before == dirty {
                    break;
                }
            }
            let (part, left) = (places_bytes / (osts as u64 + 1), places_bytes - dirty.iter().sum::<u64>());
            assert!(left >= part - 32, "{osts}: {left} of {part} are left");
            assert!(dirty.iter().all(|d| d.abs_diff(part) <= 64), "{osts}: {dirty:?} of {part}, {rounds} rounds");
            assert!(Share { places_bytes, unwritten_bytes: places_bytes - left }.admits(0, 1 << 30));
        }
        assert!(!Share { places_bytes: 100, unwritten_bytes: 100 }.admits(0, 1), "there is no place");
    }
}
