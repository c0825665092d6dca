//! Inputs made from others: the changes that decoders stumble over, drawn from a seeded stream.
use types::Rng;

/// Longest input made, in bytes.
pub const INPUT_BYTES_MAX: usize = 1 << 16;

const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 1 << 63, u64::MAX];

/// Draws changes.
pub struct Mutator<'a> {
    rng: Rng,
    words: &'a [&'a [u8]],
}

impl<'a> Mutator<'a> {
    /// A stream for `seed`; `words` are pieces that mean something in the format.
    pub fn new(seed: u64, name: &str, words: &'a [&'a [u8]]) -> Mutator<'a> {
        Mutator { rng: Rng::named(seed, name), words }
    }

    /// A number below `n`, for choices among inputs.
    pub fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    /// Changes `input` in one to eight places; `other` is another input to take pieces of.
    pub fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.rng.below(3) * self.rng.below(4) {
            self.once(input, other);
        }
        input.truncate(INPUT_BYTES_MAX);
    }

    fn once(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(input.len() + 1);
        match self.rng.below(11) {
            0 => input.truncate(at),
            1 => self.flip(input),
            2 => self.number(input),
            3 => self.count(input),
            4 => {
                let end = (at + self.below(16)).min(input.len());
                input.drain(at..end);
            }
            5 => {
                let n = 1 + self.below(8);
                let bytes: Vec<u8> = (0..n).map(|_| self.rng.next_u64() as u8).collect();
                input.splice(at..at, bytes);
            }
            6 => {
                let end = (at + self.below(64)).min(input.len());
                let piece = input[at..end].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            7 => {
                let from = self.below(other.len() + 1);
                let end = (from + self.below(64)).min(other.len());
                input.splice(at..at, other[from..end].iter().copied());
            }
            8 if !self.words.is_empty() => {
                let word = self.words[self.below(self.words.len())];
                let end = if self.rng.chance(0.5) { at } else { (at + word.len()).min(input.len()) };
                input.splice(at..end, word.iter().copied());
            }
            9 => {
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                if let Some(b) = input.get_mut(at) {
                    *b = self.rng.next_u64() as u8;
                }
            }
        }
    }

    fn flip(&mut self, input: &mut [u8]) {
        let at = self.below(input.len());
        if let Some(b) = input.get_mut(at) {
            *b ^= 1 << self.rng.below(8);
        }
    }

    /// Overwrites a little- or big-endian number with one at the edge of its range.
    fn number(&mut self, input: &mut [u8]) {
        let width = 1 << self.rng.below(4);
        let Some(last) = input.len().checked_sub(width) else { return };
        let at = self.below(last + 1);
        let value = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
        input[at..at + width].copy_from_slice(&value[..width]);
        if self.rng.chance(0.2) {
            input[at..at + width].reverse();
        }
    }

    /// Moves a little-endian length or count a little.
    fn count(&mut self, input: &mut [u8]) {
        let Some(last) = input.len().checked_sub(4) else { return };
        let at = self.below(last + 1);
        let old = u32::from_le_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]]);
        let by = self.rng.below(65) as u32;
        input[at..at + 4].copy_from_slice(&old.wrapping_add(by).wrapping_sub(32).to_le_bytes());
    }
}
