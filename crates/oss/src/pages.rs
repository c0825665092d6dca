//! Pages that stand for nothing: zeros, shared by everyone who reads a hole. And checksums page by page.
use std::sync::OnceLock;

use frames::{Bulk, FRAME_BYTES, FramePool, FrameRun, RUN_FRAMES_MAX, Segment};
use wire::{Crc, crc32c, crc32c_join};

/// crc32c of a page of zeros.
#[must_use]
pub fn crc_of_zeros() -> Crc {
    static CRC: OnceLock<Crc> = OnceLock::new();
    *CRC.get_or_init(|| crc32c(&[0; FRAME_BYTES]))
}

/// A run of zeroed frames that every hole is read from.
pub struct ZeroPages(FrameRun);

impl ZeroPages {
    /// Takes up to [`RUN_FRAMES_MAX`] frames from `pool` for good.
    ///
    /// # Panics
    /// When the pool is empty: a server starts with a pool of its own.
    #[must_use]
    pub fn new(pool: FramePool) -> ZeroPages {
        let mut run = pool.alloc_run(RUN_FRAMES_MAX).expect("a server's frame pool has frames at start");
        run.bytes_mut().expect("a fresh run has one owner").fill(0);
        ZeroPages(run)
    }
    /// Adds `pages` pages of zeros to `bulk`.
    pub fn push(&self, bulk: &mut Bulk, mut pages: u64) {
        while pages > 0 {
            let take = pages.min(self.0.frames() as u64);
            let run = self.0.slice(0, take as usize);
            bulk.push(Segment { len: run.len() as u32, run, offset: 0 });
            pages -= take;
        }
    }
}

/// Checksum of each page of `bulk`, which consists of whole, page-aligned pages.
#[must_use]
pub fn page_crcs(bulk: &Bulk) -> Vec<Crc> {
    let mut crcs = Vec::with_capacity(bulk.len() / FRAME_BYTES);
    for s in bulk.slices() {
        crcs.extend(s.chunks_exact(FRAME_BYTES).map(crc32c));
    }
    crcs
}

/// Checksum of whole pages from the pages' checksums, following what `first` covers.
#[must_use]
pub fn join_pages(first: Crc, pages: &[Crc]) -> Crc {
    pages.iter().fold(first, |all, page| crc32c_join(all, *page, FRAME_BYTES))
}

/// Whether `bulk` consists of whole, page-aligned pages.
#[must_use]
pub fn is_page_aligned(bulk: &Bulk) -> bool {
    bulk.segments().iter().all(|s| [s.offset, s.len].iter().all(|n| (*n as usize).is_multiple_of(FRAME_BYTES)))
}
