//! Space that a database file keeps behind its end, so that its commits fit when the disk is full.
//!
//! An embedded database that writes copy-on-write needs new blocks even to remove something, and is of no use after a
//! write that failed. It makes its file longer in large steps, and writes wherever it likes below the end, where a full
//! disk has no blocks yet. So the file has blocks of its own behind its end, topped up with every sync while the medium has any;
//! a write that finds none gets those. Owners ask [`Room`] before they let something in that makes the database larger. Should the
//! blocks be used up all the same, a write waits for space where waiting is possible, and everybody can see that it does.
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::BlockingFile;

/// The reserve is at most this part of the file system.
const PART_MAX: u64 = 32;
/// A write that takes from the reserve leaves this part of it to the next ones: what is taken again at once costs a call each time.
const PART_TAKEN: u64 = 8;
/// Pauses for which a medium may keep what was given to it: a journal has to be written first.
const JOURNAL_PAUSES: u32 = 40;
/// The medium is not asked for less.
const STEP_MIN: u64 = 64 << 10;

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

struct Inner {
    file: Box<dyn BlockingFile>,
    /// Bytes that are to be reserved.
    want: u64,
    /// Bytes behind the end whose blocks are there.
    reserved: AtomicU64,
    /// Held by who changes the end or what is behind it, never while it waits for space.
    end: Mutex<()>,
    /// The medium cannot promise space: what is free counts.
    unsupported: AtomicBool,
    waiting: AtomicBool,
    given_up: AtomicBool,
}

/// What a database's owner knows of its space.
#[derive(Clone)]
pub struct Room(Arc<Inner>);

impl Room {
    /// Bytes that commits may need whatever others do.
    #[must_use]
    pub fn left(&self) -> u64 {
        let i = &self.0;
        if i.unsupported.load(Relaxed) {
            return i.file.space().map_or(0, |(free, _)| free.min(i.want));
        }
        i.reserved.load(Relaxed)
    }

    /// Bytes that the database may grow by when nobody else takes them.
    #[must_use]
    pub fn likely(&self) -> u64 {
        let free = self.0.file.space().map_or(0, |(free, _)| free);
        if self.0.unsupported.load(Relaxed) { free } else { self.left().saturating_add(free) }
    }

    /// Whether the reserve is as it should be, so that the database may take more in. Looks at the medium when it is
    /// not. A quarter less than all is enough: what is being committed takes its part.
    #[must_use]
    pub fn is_full_enough(&self) -> bool {
        let enough = self.0.want / 4 * 3;
        self.left() >= enough || (self.top_up() && self.left() >= enough)
    }

    /// Whether what takes space that the database has already may be let in: a third of what
    /// [`Room::is_full_enough`] asks for is left to what removes something.
    #[must_use]
    pub fn is_enough_for_reuse(&self) -> bool {
        self.left() >= self.0.want / 4
    }

    /// How large the reserve is when it is whole, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.want
    }

    /// Whether a write waits for space: nothing is committed meanwhile.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.0.waiting.load(Relaxed)
    }

    /// Nobody waits for the database any more: a write that waits for space fails.
    pub fn give_up(&self) {
        self.0.given_up.store(true, Relaxed);
    }

    fn end(&self) -> MutexGuard<'_, ()> {
        self.0.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves what is missing. Whether the medium had it.
    fn top_up(&self) -> bool {
        let _end = self.end();
        let free = self.0.file.space().map_or(u64::MAX, |(free, _)| free);
        self.reserve(self.0.want, free)
    }

    /// Reserves up to `want` bytes behind the end, for which so many are free. Whether the medium had them.
    fn reserve(&self, want: u64, free: u64) -> bool {
        let i = &self.0;
        if i.unsupported.load(Relaxed) {
            return true;
        }
        let (Ok(len), mut have) = (i.file.len(), i.reserved.load(Relaxed)) else { return false };
        let mut step = want.saturating_sub(have).min(free);
        while have < want {
            if step < STEP_MIN.min(want - have) {
                return false;
            }
            match i.file.reserve(len + have, step.min(want - have)) {
                Ok(()) => {
                    have += step.min(want - have);
                    i.reserved.store(have, Relaxed);
                }
                // Less may be there.
                Err(e) if is_full(&e) => step /= 2,
                Err(_) => {
                    i.unsupported.store(true, Relaxed);
                    return true;
                }
            }
        }
        true
    }

    /// Gives the reserve to the medium. How much it was.
    fn release(&self) -> u64 {
        let i = &self.0;
        let had = i.reserved.load(Relaxed);
        if had > 0 && i.file.len().and_then(|len| i.file.set_len(len)).is_ok() {
            i.reserved.store(0, Relaxed);
            return had;
        }
        0
    }
}

/// A database's file with a reserve.
pub struct RoomyFile(Room);

impl RoomyFile {
    /// Over `file`, with a reserve of `want` bytes, or a 32nd of a small file system. A medium that has not enough is no
    /// error: [`Room::is_full_enough`] says so.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn new(file: Box<dyn BlockingFile>, want: u64) -> io::Result<RoomyFile> {
        let (_, total) = file.space()?;
        let inner = Inner {
            want: want.min(total / PART_MAX),
            file,
            reserved: AtomicU64::new(0),
            end: Mutex::new(()),
            unsupported: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        };
        let room = Room(Arc::new(inner));
        // What was reserved before is behind the end still, and is not counted as free.
        room.reserve(room.0.want, u64::MAX);
        Ok(RoomyFile(room))
    }

    /// What its owner may know.
    #[must_use]
    pub fn room(&self) -> Room {
        self.0.clone()
    }

    /// Tries until it is done, where it is a write of so many bytes with the reserve first; fails otherwise, or when nobody waits for it.
    fn patiently(&self, written: Option<u64>, mut work: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let i = &self.0.0;
        let (mut outcome, mut pauses) = (work(), 0);
        if let Some(bytes) = written.filter(|_| outcome.as_ref().is_err_and(is_full)) {
            let _end = self.0.end();
            let had = self.0.release();
            if had > 0 {
                outcome = work();
                let keep = had.saturating_sub((i.want / PART_TAKEN).max(2 * bytes));
                self.0.reserve(keep, u64::MAX);
                pauses = JOURNAL_PAUSES;
            }
        }
        while let Err(e) = &outcome
            && is_full(e)
            && !i.given_up.load(Relaxed)
        {
            i.waiting.store(pauses == 0, Relaxed);
            pauses = pauses.saturating_sub(1);
            if !i.file.wait_for_space() {
                break;
            }
            outcome = work();
        }
        i.waiting.store(false, Relaxed);
        outcome
    }
}

impl fmt::Debug for RoomyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoomyFile")
    }
}

impl BlockingFile for RoomyFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.0.file.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.patiently(Some(from.len() as u64), || self.0.0.file.write(offset, from))
    }
    fn len(&self) -> io::Result<u64> {
        self.0.0.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let i = &self.0.0;
        if len == i.file.len()? {
            // The medium would take it for a cut of what is reserved behind the end.
            return Ok(());
        }
        self.patiently(None, || {
            let _end = self.0.end();
            // A cut takes what is behind the end along, and a longer file would have it.
            self.0.release();
            i.file.set_len(len)?;
            self.0.reserve(i.want, u64::MAX);
            Ok(())
        })
    }
    fn sync(&self) -> io::Result<()> {
        // Never tried again: what a failed sync leaves in memory may not be what the medium has.
        self.0.0.file.sync()?;
        if self.0.left() < self.0.0.want / 8 * 7 {
            self.0.top_up();
        }
        Ok(())
    }
    fn forget_cached(&self) -> io::Result<()> {
        self.0.0.file.forget_cached()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: u64 = 4096;

    /// A file with holes on a medium of so many pages, of which others have some.
    struct Sparse {
        state: Mutex<(u64, BTreeSet<u64>)>,
        pages: u64,
        others: Arc<AtomicU64>,
    }

    impl Sparse {
        fn new(pages: u64) -> (Box<Sparse>, Arc<AtomicU64>) {
            let others = Arc::new(AtomicU64::new(0));
            (Box::new(Sparse { state: Mutex::default(), pages, others: others.clone() }), others)
        }
    }

    impl BlockingFile for Sparse {
        fn read(&self, _offset: u64, into: &mut [u8]) -> io::Result<()> {
            into.fill(0);
            Ok(())
        }
        fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
            self.reserve(offset, from.len() as u64)
        }
        fn len(&self) -> io::Result<u64> {
            Ok(self.state.lock().unwrap().0)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            let mut state = self.state.lock().unwrap();
            if len <= state.0 {
                drop(state.1.split_off(&len.div_ceil(PAGE)));
            }
            state.0 = len;
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
        fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
            // Page by page, so that a part is there when the rest is not, as on ext4.
            (offset / PAGE..(offset + len).div_ceil(PAGE)).try_for_each(|page| {
                let mut state = self.state.lock().unwrap();
                if !state.1.contains(&page) && state.1.len() as u64 + self.others.load(Relaxed) >= self.pages {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                state.1.insert(page);
                Ok(())
            })
        }
        fn space(&self) -> io::Result<(u64, u64)> {
            let used = self.state.lock().unwrap().1.len() as u64 + self.others.load(Relaxed);
            Ok((self.pages.saturating_sub(used) * PAGE, self.pages * PAGE))
        }
    }

    #[test]
    fn the_reserve_is_for_writes_wherever_they_are_in_a_file_that_is_longer_than_its_medium() {
        let (file, _) = Sparse::new(3200);
        let file = RoomyFile::new(file, 100 * PAGE).unwrap();
        let room = file.room();
        file.set_len(6400 * PAGE).unwrap();
        assert!(room.is_full_enough(), "what the file is long is not what it has");
        let mut page = 0;
        while room.is_full_enough() {
            file.write(page * PAGE, &[1; PAGE as usize]).unwrap();
            page += 1;
        }
        assert!(page > 3000, "{page} of 3200");
        let (left, mut far) = (room.left() / PAGE, 0);
        while file.write((6399 - far) * PAGE, &[1; PAGE as usize]).is_ok() {
            far += 1;
        }
        assert!(left > 50 && far >= left && room.left() == 0, "{far} of {left}");
    }

    #[test]
    fn the_reserve_is_there_when_others_have_all_the_rest_and_after_a_new_start_too() {
        let (file, others) = Sparse::new(3200);
        let file = RoomyFile::new(file, 100 * PAGE).unwrap();
        file.set_len(200 * PAGE).unwrap();
        others.store(3100, Relaxed);
        assert!(file.room().is_full_enough());
        let Room(inner) = file.room();
        drop(file);
        let inner = Arc::into_inner(inner).unwrap();
        let file = RoomyFile::new(inner.file, 100 * PAGE).unwrap();
        assert_eq!(file.room().left(), 100 * PAGE);
        file.set_len(400 * PAGE).unwrap();
        file.set_len(300 * PAGE).unwrap();
        assert_eq!(file.room().left(), 100 * PAGE, "it moves with the end");
    }
}
