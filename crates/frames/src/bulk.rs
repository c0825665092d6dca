//! Bulk data: what one RPC moves, as pieces of frames; passing it on, cutting and joining it copies no byte.
use alloc::vec::Vec;

use crate::{FRAME_BYTES, FramePool, FrameRun};

/// A piece of bulk data: `len` bytes from byte `offset` of a run.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Where the bytes are.
    pub run: FrameRun,
    /// First byte within the run.
    pub offset: u32,
    /// Number of bytes; `offset + len <= run.len()`.
    pub len: u32,
}

impl Segment {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.run.bytes()[self.offset as usize..(self.offset + self.len) as usize]
    }
}

/// Bulk data: what one RPC moves, as a list of pieces of frames. Bytes are never copied by passing it on.
#[derive(Clone, Debug, Default)]
pub struct Bulk {
    segments: Vec<Segment>,
    len: usize,
}

impl Bulk {
    /// No bytes.
    #[must_use]
    pub const fn new() -> Bulk {
        Bulk { segments: Vec::new(), len: 0 }
    }
    /// Room for `len` bytes in fresh frames, starting at a page boundary; `None` when the pool has too few.
    #[must_use]
    pub fn alloc(pool: FramePool, len: usize) -> Option<Bulk> {
        let mut bulk = Bulk::new();
        let mut left = len;
        for run in pool.alloc(len.div_ceil(FRAME_BYTES))? {
            let take = left.min(run.len());
            left -= take;
            bulk.push(Segment { run, offset: 0, len: take as u32 });
        }
        Some(bulk)
    }
    /// Adds a piece at the end; pieces that continue the last one are joined to it.
    pub fn push(&mut self, next: Segment) {
        self.len += next.len as usize;
        if next.len == 0 {
            return;
        }
        if let Some(last) = self.segments.last_mut()
            && next.offset == 0
            && (last.offset + last.len) as usize == last.run.len()
        {
            match last.run.join(next.run) {
                Ok(()) => last.len += next.len,
                Err(run) => self.segments.push(Segment { run, ..next }),
            }
            return;
        }
        self.segments.push(next);
    }
    /// Adds the whole of `other` at the end.
    pub fn append(&mut self, other: Bulk) {
        for s in other.segments {
            self.push(s);
        }
    }
    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The pieces, in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// The bytes of every piece, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.segments.iter().map(Segment::bytes)
    }
    /// The pieces themselves.
    #[must_use]
    pub fn into_segments(self) -> Vec<Segment> {
        self.segments
    }
    /// Bytes `at..at + len` as a bulk of its own (more references, no copies).
    ///
    /// # Panics
    /// When the range leaves the bulk.
    #[must_use]
    pub fn slice(&self, at: usize, len: usize) -> Bulk {
        assert!(at + len <= self.len, "slice outside the bulk");
        let mut out = Bulk::new();
        let (mut skip, mut left) = (at, len);
        for s in &self.segments {
            let n = s.len as usize;
            if left == 0 {
                break;
            }
            if skip >= n {
                skip -= n;
                continue;
            }
            let from = s.offset as usize + skip;
            let take = (n - skip).min(left);
            let first = from / FRAME_BYTES;
            let last = (from + take).div_ceil(FRAME_BYTES);
            let offset = (from - first * FRAME_BYTES) as u32;
            out.push(Segment { run: s.run.slice(first, last - first), offset, len: take as u32 });
            (skip, left) = (0, left - take);
        }
        out
    }
    /// Cuts to the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            *self = self.slice(0, len);
        }
    }
    /// Copies `from` over the bytes starting at `at`.
    ///
    /// # Panics
    /// When a frame that must change is shared, or the range leaves the bulk.
    pub fn copy_in(&mut self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len, "copy outside the bulk");
        let (mut skip, mut from) = (at, from);
        for s in &mut self.segments {
            let n = s.len as usize;
            if from.is_empty() {
                break;
            }
            if skip >= n {
                skip -= n;
                continue;
            }
            let take = (n - skip).min(from.len());
            let start = s.offset as usize + skip;
            let bytes = s.run.bytes_mut().expect("bulk data changes only while it has one owner");
            bytes[start..start + take].copy_from_slice(&from[..take]);
            from = &from[take..];
            skip = 0;
        }
    }
    /// Copies the bytes from `at` on into `to`.
    ///
    /// # Panics
    /// When the range leaves the bulk.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.len, "copy outside the bulk");
        let (mut skip, mut done) = (at, 0);
        for s in self.slices() {
            if done == to.len() {
                break;
            }
            if skip >= s.len() {
                skip -= s.len();
                continue;
            }
            let take = (s.len() - skip).min(to.len() - done);
            to[done..done + take].copy_from_slice(&s[skip..skip + take]);
            done += take;
            skip = 0;
        }
    }
    /// All bytes in one vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = Vec::with_capacity(self.len);
        for s in self.slices() {
            v.extend_from_slice(s);
        }
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_slices_copy_in_and_out_at_any_offset() {
        let pool = FramePool::new(2 << 20);
        let _hole = pool.alloc_run(3).unwrap();
        let mut bulk = Bulk::alloc(pool, 600_000).unwrap();
        let pattern: Vec<u8> = (0..600_000u32).map(|i| (i % 251) as u8).collect();
        bulk.copy_in(0, &pattern);
        for (at, len) in [(0, 600_000), (1, 4096), (4095, 2), (262_143, 70_000), (599_999, 1), (5, 0)] {
            let part = bulk.slice(at, len);
            assert_eq!(part.to_vec(), &pattern[at..at + len]);
            let mut out = alloc::vec![0; len];
            bulk.copy_out(at, &mut out);
            assert_eq!(out, &pattern[at..at + len]);
        }
        let mut joined = bulk.slice(0, 8192);
        joined.append(bulk.slice(8192, 4096));
        assert_eq!(joined.segments().len(), 1);
        assert_eq!(joined.to_vec(), &pattern[..12288]);
    }
}
