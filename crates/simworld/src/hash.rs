//! A running hash over a history, and the checksum by which bytes enter it.
use crc_fast::{CrcAlgorithm, Digest};

/// A running hash over everything that happened: same seed, same hash, on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHash(pub u64);

impl Default for StateHash {
    fn default() -> Self {
        StateHash(0xcbf2_9ce4_8422_2325)
    }
}

impl StateHash {
    /// Folds a word in; order matters.
    #[inline]
    pub fn fold(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    /// Folds an event in: its time, its kind and two ids.
    #[inline]
    pub fn event(&mut self, time: u64, kind: u8, a: u32, b: u32) {
        self.fold(time ^ (u64::from(kind) << 56));
        self.fold((u64::from(a) << 32) | u64::from(b));
    }
}

/// crc32c of what `crc` covers (0: nothing) followed by `bytes`.
pub(crate) fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}
