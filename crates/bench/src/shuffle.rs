//! An order of `0..n` that looks random, costs no memory, and is the same wherever its seed is.
//!
//! Decides which transfer comes when under `-z`. A file of 128 GiB has 32 million transfers of 4 KiB: a list of them would
//! be dealt out to every rank, here each rank works out its own.
//! Source: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002: a Feistel network, walked until it is inside.

/// Rounds of the network; four are the least that leave no pattern.
const ROUNDS: u64 = 4;

/// A permutation of `0..len`.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle {
    len: u64,
    seed: u64,
    half_bits: u32,
}

impl Shuffle {
    /// The permutation of `0..len` that `seed` names.
    #[must_use]
    pub fn new(len: u64, seed: u64) -> Shuffle {
        let bits = 64 - len.saturating_sub(1).leading_zeros();
        Shuffle { len, seed, half_bits: bits.div_ceil(2).max(1) }
    }

    /// Where `index` goes; `index` is below `len`, and so is the answer.
    #[must_use]
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.len, "{index} of {}", self.len);
        let mut x = index;
        // The domain is less than four times `len`, so a walk takes fewer than four steps on average, and it comes back
        // inside because it is one cycle of a permutation and begins there.
        loop {
            x = self.step(x);
            if x < self.len {
                return x;
            }
        }
    }

    fn step(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for round in 0..ROUNDS {
            let mixed = mix(right ^ self.seed.rotate_left(round as u32 * 13) ^ (round << 56));
            (left, right) = (right, left ^ (mixed & mask));
        }
        left << self.half_bits | right
    }
}

/// Spreads every bit of `x` over all bits (splitmix64's end).
#[must_use]
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_comes_once_and_the_order_is_the_seeds() {
        for len in [1, 2, 3, 7, 64, 65, 1000, 4097] {
            for seed in 0..4 {
                let order: Vec<u64> = (0..len).map(|i| Shuffle::new(len, seed).at(i)).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..len), "{len} {seed}");
                assert!(len < 64 || order != (0..len).map(|i| Shuffle::new(len, seed + 1).at(i)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn neighbours_are_seldom_neighbours_afterwards() {
        let s = Shuffle::new(10_000, 5);
        let near = (1..10_000).filter(|i| s.at(*i).abs_diff(s.at(i - 1)) <= 8).count();
        assert!(near < 50, "{near} of 10,000, where chance gives 16");
    }

    #[test]
    fn the_largest_length_has_an_order() {
        let s = Shuffle::new(u64::MAX, 3);
        assert_ne!(s.at(0), s.at(u64::MAX - 1));
    }
}
