//! Interleaved: several sequential streams take turns in one file, as threads that share a descriptor do.
use types::Extent;

use super::Pattern;
use crate::GAP_BYTES;

/// Streams watched at a time; the one idle longest makes room.
const STREAMS_MAX: usize = 8;
/// A stream is sure at its third read.
const READS_MIN: u32 = 3;
/// A stream without a read in so many reads of the file no longer shares the window.
const IDLE_READS_MAX: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    next: u64,
    reads: u32,
    last_seen: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Interleaved {
    streams: [Stream; STREAMS_MAX],
    /// The stream of the last read: the usual place to look first.
    current: usize,
    reads: u64,
}

impl Interleaved {
    fn continues(s: &Stream, read: Extent) -> bool {
        s.reads > 0 && read.start >= s.next && read.start - s.next <= GAP_BYTES
    }
    fn find(&self, read: Extent) -> Option<usize> {
        if Self::continues(&self.streams[self.current], read) {
            return Some(self.current);
        }
        self.streams.iter().position(|s| Self::continues(s, read))
    }
}

impl Pattern for Interleaved {
    #[inline]
    fn observe(&mut self, read: Extent) -> bool {
        self.reads += 1;
        if let Some(i) = self.find(read) {
            let s = &mut self.streams[i];
            *s = Stream { next: read.end, reads: s.reads.saturating_add(1), last_seen: self.reads };
            self.current = i;
            return s.reads >= READS_MIN;
        }
        let oldest = (0..STREAMS_MAX).min_by_key(|i| self.streams[*i].last_seen).expect("there are streams");
        self.streams[oldest] = Stream { next: read.end, reads: 1, last_seen: self.reads };
        self.current = oldest;
        false
    }
    fn next(&self, after: Extent, want: u64) -> Option<Extent> {
        Some(Extent::at(after.end, want))
    }
    fn streams(&self) -> u64 {
        let busy = |s: &&Stream| s.reads >= READS_MIN && self.reads - s.last_seen <= IDLE_READS_MAX;
        self.streams.iter().filter(busy).count().max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_take_turns_are_each_explained_at_their_third_read() {
        let mut p = Interleaved::default();
        for round in 0..6u64 {
            for stream in 0..5u64 {
                let read = Extent::at((stream << 30) + round * 100_000, 100_000);
                assert_eq!(p.observe(read), round >= 2, "stream {stream} round {round}");
                assert_eq!(p.next(read, 7), Some(Extent::at(read.end, 7)));
            }
        }
        assert_eq!(p.streams(), 5);
    }

    #[test]
    fn random_reads_are_not_explained() {
        let mut p = Interleaved::default();
        let mut rng = types::Rng::new(1);
        assert!((0..1000).all(|_| !p.observe(Extent::at(rng.below(1 << 40), 4096))));
    }
}
