//! A database file that is compared with what is known of it whenever it is read.
//!
//! The engine believes what it reads. So the checksum of every page that was read or written last is remembered, from the comparison
//! before a database is opened on: what the medium makes of a page below an open database is an error that names it, never a
//! record that is missing or another one.
//! Not compared: reads of parts of pages (the header, which the engine has in memory), and pages that nobody has read yet of a
//! file that was not compared as a whole.
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rt::BlockingFile;
use xxhash_rust::xxh3::xxh3_64;

use crate::Whole;

const PAGE_BYTES: usize = 4096;
/// What stands for a page of which nothing is known.
const UNKNOWN: u32 = 0;

/// Checksums of the pages of one file: 4 bytes for each page of 4 KiB; cheap to clone.
#[derive(Clone, Default)]
pub struct PageSums(Arc<Known>);

#[derive(Default)]
struct Known {
    sums: Mutex<Vec<u32>>,
    damaged: AtomicBool,
}

impl PageSums {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        // What is half done leaves pages of which less is known.
        self.0.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Whether a page turned out not to be what was written. The engine does nothing any more then, and opening the file again helps
    /// no more than reading it again did.
    #[must_use]
    pub fn found_damage(&self) -> bool {
        self.0.damaged.load(Relaxed)
    }
}

impl std::fmt::Debug for PageSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PageSums").field(&self.lock().len()).finish()
    }
}

/// See the module's head.
pub struct Watched {
    file: Box<dyn BlockingFile>,
    sums: PageSums,
    whole: Option<Whole>,
    /// The commit of the header that was written last.
    written: AtomicU64,
    /// The one that is known to be whole.
    noted: AtomicU64,
}

fn sum(page: &[u8]) -> u32 {
    (xxh3_64(page) as u32).max(UNKNOWN + 1)
}

/// Whole pages within some bytes at `offset`: number, and where they lie among the bytes.
fn whole_pages(offset: u64, bytes: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let skipped = (PAGE_BYTES - offset as usize % PAGE_BYTES) % PAGE_BYTES;
    let first = (offset as usize).div_ceil(PAGE_BYTES);
    let count = bytes.saturating_sub(skipped) / PAGE_BYTES;
    (0..count).map(move |n| (first + n, skipped + n * PAGE_BYTES..skipped + (n + 1) * PAGE_BYTES))
}

impl Watched {
    /// Over a file of which `sums` are known.
    #[must_use]
    pub fn new(file: Box<dyn BlockingFile>, sums: PageSums) -> Watched {
        Watched { file, sums, whole: None, written: AtomicU64::new(0), noted: AtomicU64::new(0) }
    }
    /// Writes down which commit is whole.
    #[must_use]
    pub fn with(self, whole: Option<Whole>) -> Watched {
        Watched { whole, ..self }
    }
    /// What is known of its pages, and goes on being known.
    #[must_use]
    pub fn sums(&self) -> PageSums {
        self.sums.clone()
    }
    /// What was written is on stable storage.
    fn is_whole(&self, commit: u64) {
        let Some(whole) = self.whole.as_ref().filter(|_| commit != self.noted.load(Relaxed)) else { return };
        match whole.note(commit) {
            Ok(()) => self.noted.store(commit, Relaxed),
            Err(e) => tracing::debug!("that commit {commit} is whole cannot be written down: {e}"),
        }
    }
    /// The first of the pages read that is not what it was; those that nothing is known of are known from now on.
    fn changed(sums: &mut Vec<u32>, offset: u64, bytes: &[u8]) -> Option<usize> {
        for (page, at) in whole_pages(offset, bytes.len()) {
            if sums.len() <= page {
                sums.resize(page + 1, UNKNOWN);
            }
            let is = sum(&bytes[at]);
            if sums[page] == UNKNOWN {
                sums[page] = is;
            } else if sums[page] != is {
                return Some(page);
            }
        }
        None
    }
}

impl BlockingFile for Watched {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, into)?;
        let Some(first) = Watched::changed(&mut self.sums.lock(), offset, into) else { return Ok(()) };
        // Once more, past what the system has in memory, while nobody writes.
        let mut sums = self.sums.lock();
        self.file.forget_cached()?;
        self.file.read(offset, into)?;
        match Watched::changed(&mut sums, offset, into) {
            None => {
                tracing::warn!("page {first} of a database was read wrong, and right the second time");
                Ok(())
            }
            Some(page) => {
                self.sums.0.damaged.store(true, Relaxed);
                let why = format!("page {page} of the database is not what was written: run 'stria fsck'");
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
        }
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let mut sums = self.sums.lock();
        let (first, end) = (offset as usize / PAGE_BYTES, (offset as usize + from.len()).div_ceil(PAGE_BYTES));
        if sums.len() < end {
            sums.resize(end, UNKNOWN);
        }
        sums[first..end].fill(UNKNOWN);
        self.file.write(offset, from)?;
        if offset == 0
            && let Some(commit) = crate::current_of(from)
        {
            self.written.store(commit, Relaxed);
        }
        for (page, at) in whole_pages(offset, from.len()) {
            sums[page] = sum(&from[at]);
        }
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut sums = self.sums.lock();
        sums.truncate(len as usize / PAGE_BYTES);
        self.file.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        let commit = self.written.load(Relaxed);
        self.file.sync()?;
        if commit != 0 {
            self.is_whole(commit);
        }
        Ok(())
    }
    fn forget_cached(&self) -> io::Result<()> {
        self.file.forget_cached()
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        self.file.space()
    }
    fn wait_for_space(&self) -> bool {
        self.file.wait_for_space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in memory.
    #[derive(Clone, Default)]
    struct Medium(Arc<Mutex<Vec<u8>>>);

    impl BlockingFile for Medium {
        fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            let bytes = self.0.lock().unwrap();
            into.copy_from_slice(&bytes[offset as usize..offset as usize + into.len()]);
            Ok(())
        }
        fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
            let mut bytes = self.0.lock().unwrap();
            let end = offset as usize + from.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[offset as usize..end].copy_from_slice(from);
            Ok(())
        }
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().unwrap().len() as u64)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.lock().unwrap().resize(len as usize, 0);
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_page_that_changed_by_itself_is_named_and_one_that_was_written_is_not() {
        let (medium, sums) = (Medium::default(), PageSums::default());
        let file = Watched::new(Box::new(medium.clone()), sums.clone());
        let mut page = [0; PAGE_BYTES];
        file.write(0, &[1; 4 * PAGE_BYTES]).unwrap();
        medium.0.lock().unwrap()[2 * PAGE_BYTES + 77] ^= 4;
        file.read(PAGE_BYTES as u64, &mut page).unwrap();
        assert!(!sums.found_damage());
        let mut two = [0; 2 * PAGE_BYTES];
        let e = file.read(PAGE_BYTES as u64, &mut two).unwrap_err();
        assert!(e.to_string().contains("page 2 "), "{e}");
        assert!(sums.found_damage());
        // Part of it is written: nothing is known of the rest.
        file.write(2 * PAGE_BYTES as u64, &[5; 100]).unwrap();
        file.read(2 * PAGE_BYTES as u64, &mut page).unwrap();
        // What one handle has read another one knows.
        medium.0.lock().unwrap()[3 * PAGE_BYTES] ^= 1;
        let other = Watched::new(Box::new(medium.clone()), sums);
        assert!(other.read(3 * PAGE_BYTES as u64, &mut page).is_err());
        // Cut off and grown again it is another page.
        other.set_len(3 * PAGE_BYTES as u64).unwrap();
        other.set_len(4 * PAGE_BYTES as u64).unwrap();
        other.read(3 * PAGE_BYTES as u64, &mut page).unwrap();
        assert_eq!(page, [0; PAGE_BYTES]);
    }
}
