//! What is written, and whether what is read is that.
//!
//! A page of a file is the same 4 KiB throughout the file, except for the first word of each 512 bytes, which names file and
//! offset. A buffer is therefore made once, and a transfer costs one word in 64: filling whole buffers would be a part of what
//! is measured. Bytes of another place, file or seed, and holes, are found.
use crate::shuffle::mix;
use std::ops::{Deref, DerefMut};

/// Bytes of a word; transfers and offsets are multiples of it.
pub const WORD: u64 = 8;
/// A word in so many bytes names its place.
const SECTOR: u64 = 512;
/// After so many bytes the rest of the pattern begins again.
const PAGE: u64 = 4096;

/// The content of one file.
#[derive(Clone, Debug)]
pub struct Pattern {
    key: u64,
    page: [u8; PAGE as usize],
}

/// Bytes that begin at a page of memory, as those of other benchmarks do: of a buffer that does not, a kernel sends one page more,
/// and of a transfer as large as a request two.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Buffer {
        let bytes = vec![0; len + PAGE as usize];
        let begin = bytes.as_ptr().addr().wrapping_neg() % PAGE as usize;
        Buffer { bytes, begin, len }
    }
}
impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.len]
    }
}
impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.len]
    }
}

/// The first word that is not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// Its offset in the file.
    pub offset: u64,
    /// What is there.
    pub found: u64,
    /// What was written.
    pub expected: u64,
}

impl Pattern {
    /// Of file number `file` under `seed`.
    #[must_use]
    pub fn new(seed: u64, file: u32) -> Pattern {
        let key = mix(mix(seed) ^ u64::from(file));
        let mut page = [0; PAGE as usize];
        for (i, word) in page.chunks_exact_mut(WORD as usize).enumerate() {
            word.copy_from_slice(&mix(key ^ i as u64).to_le_bytes());
        }
        Pattern { key, page }
    }

    /// A buffer that [`Pattern::stamp`] turns into any `len` bytes of the file.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Buffer {
        let mut buffer = Buffer::new(len + PAGE as usize);
        buffer.chunks_mut(PAGE as usize).for_each(|piece| piece.copy_from_slice(&self.page[..piece.len()]));
        buffer
    }

    /// The `len` bytes at `offset`; `buffer` is one of [`Pattern::buffer`] for at least as many.
    pub fn stamp<'a>(&self, buffer: &'a mut [u8], offset: u64, len: usize) -> &'a [u8] {
        let from = (offset % PAGE) as usize;
        let piece = &mut buffer[from..from + len];
        let mut at = (offset.next_multiple_of(SECTOR) - offset) as usize;
        while at + WORD as usize <= len {
            piece[at..at + WORD as usize].copy_from_slice(&self.place(offset + at as u64).to_le_bytes());
            at += SECTOR as usize;
        }
        piece
    }

    /// Compares what was read at `offset`.
    ///
    /// # Errors
    /// The first word that differs.
    pub fn check(&self, offset: u64, read: &[u8]) -> Result<(), Wrong> {
        let mut at = offset;
        for word in read.chunks(WORD as usize) {
            let expected = self.word(at);
            if *word != expected.to_le_bytes()[..word.len()] {
                let mut found = [0; WORD as usize];
                found[..word.len()].copy_from_slice(word);
                return Err(Wrong { offset: at, found: u64::from_le_bytes(found), expected });
            }
            at += WORD;
        }
        Ok(())
    }

    fn word(&self, offset: u64) -> u64 {
        if offset.is_multiple_of(SECTOR) {
            return self.place(offset);
        }
        let at = (offset % PAGE) as usize;
        let mut word = [0; WORD as usize];
        word.copy_from_slice(&self.page[at..at + WORD as usize]);
        u64::from_le_bytes(word)
    }

    fn place(&self, offset: u64) -> u64 {
        self.key ^ mix(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stamped_is_right_at_its_place_and_nowhere_else() {
        let (pattern, len) = (Pattern::new(1, 0), 1024);
        let mut buffer = pattern.buffer(len);
        for offset in [0, 8, 512, 520, 4088, 4096, 1 << 40] {
            let bytes = pattern.stamp(&mut buffer, offset, len).to_vec();
            assert_eq!(pattern.check(offset, &bytes), Ok(()));
            assert!(pattern.check(offset + 4096, &bytes).is_err());
            assert!(Pattern::new(1, 1).check(offset, &bytes).is_err());
            assert!(Pattern::new(2, 0).check(offset, &bytes).is_err());
        }
    }

    #[test]
    fn the_first_wrong_word_is_named() {
        let pattern = Pattern::new(9, 3);
        let mut buffer = pattern.buffer(8192);
        let mut bytes = pattern.stamp(&mut buffer, 4096, 8192).to_vec();
        bytes[5001] ^= 1;
        let wrong = pattern.check(4096, &bytes).unwrap_err();
        assert_eq!((wrong.offset, wrong.found ^ wrong.expected), (4096 + 5000, 256));
        assert_eq!(pattern.check(0, &[0; 512]).unwrap_err().offset, 0);
    }

    #[test]
    fn a_page_of_the_file_begins_at_a_page_of_memory() {
        let pattern = Pattern::new(4, 4);
        let mut buffer = pattern.buffer(10_000);
        for offset in [0, PAGE, 5 * PAGE] {
            assert_eq!(pattern.stamp(&mut buffer, offset, 10_000).as_ptr().addr() % PAGE as usize, 0);
        }
    }

    #[test]
    fn a_buffer_serves_one_transfer_after_another() {
        let pattern = Pattern::new(4, 4);
        let mut buffer = pattern.buffer(24);
        for offset in (0..10_000).step_by(24) {
            assert_eq!(pattern.check(offset, pattern.stamp(&mut buffer, offset, 24)), Ok(()), "{offset}");
        }
    }
}
