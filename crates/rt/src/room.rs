//! Space that a database file keeps ahead of what is written, so that its commits fit when others have filled the disk.
//!
//! An embedded database that writes copy-on-write needs new blocks even to remove something, and is of no use after a
//! write that failed. So its file has blocks of its own behind what was written so far, topped up with every sync while
//! the medium has any. Owners ask [`Room`] before they let something in that makes the database larger. Should the
//! blocks be used up all the same, a write waits for space where waiting is possible, and everybody can see that it does.
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::BlockingFile;

/// The reserve is at most this part of the file system.
const PART_MAX: u64 = 32;

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

struct Inner {
    file: Box<dyn BlockingFile>,
    /// Bytes that are to be reserved.
    want: u64,
    /// Behind this nothing was ever written.
    written_to: AtomicU64,
    /// Up to here every block is there.
    reserved_to: AtomicU64,
    /// The medium cannot promise space: what is free counts.
    unsupported: AtomicBool,
    waiting: AtomicBool,
    given_up: AtomicBool,
}

/// What a database's owner knows of its space.
#[derive(Clone)]
pub struct Room(Arc<Inner>);

impl Room {
    /// Bytes that the database may grow by whatever others do.
    #[must_use]
    pub fn left(&self) -> u64 {
        let i = &self.0;
        if i.unsupported.load(Relaxed) {
            return i.file.space().map_or(0, |(free, _)| free.min(i.want));
        }
        i.reserved_to.load(Relaxed).saturating_sub(i.written_to.load(Relaxed))
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

    /// Whether a write waits for space: nothing is committed meanwhile.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.0.waiting.load(Relaxed)
    }

    /// Nobody waits for the database any more: a write that waits for space fails.
    pub fn give_up(&self) {
        self.0.given_up.store(true, Relaxed);
    }

    /// Reserves what is missing. Whether the medium had it.
    fn top_up(&self) -> bool {
        let i = &self.0;
        if i.unsupported.load(Relaxed) {
            return true;
        }
        let (from, to) = (i.reserved_to.load(Relaxed), i.written_to.load(Relaxed).saturating_add(i.want));
        if to <= from {
            return true;
        }
        match i.file.reserve(from, to - from) {
            Ok(()) => {
                i.reserved_to.fetch_max(to, Relaxed);
                true
            }
            Err(e) if is_full(&e) => false,
            Err(_) => {
                i.unsupported.store(true, Relaxed);
                true
            }
        }
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
        let len = file.len()?;
        let inner = Inner {
            want: want.min(total / PART_MAX),
            file,
            // Which blocks of it are free is the database's to know.
            written_to: AtomicU64::new(len),
            reserved_to: AtomicU64::new(0),
            unsupported: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        };
        let room = Room(Arc::new(inner));
        room.top_up();
        Ok(RoomyFile(room))
    }

    /// What its owner may know.
    #[must_use]
    pub fn room(&self) -> Room {
        self.0.clone()
    }

    /// Tries until it is done, fails otherwise, or nobody waits for it.
    fn patiently(&self, mut work: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let i = &self.0.0;
        let mut outcome = work();
        while let Err(e) = &outcome
            && is_full(e)
            && !i.given_up.load(Relaxed)
        {
            i.waiting.store(true, Relaxed);
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
        self.patiently(|| self.0.0.file.write(offset, from))?;
        self.0.0.written_to.fetch_max(offset + from.len() as u64, Relaxed);
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.0.0.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let i = &self.0.0;
        let now = i.file.len()?;
        if len == now {
            // The medium would take it for a cut of what is reserved behind the end, and on a full one there is no other reserve.
            return Ok(());
        }
        let shorter = len < now;
        self.patiently(|| i.file.set_len(len))?;
        if shorter {
            // What was reserved behind the end went with the cut.
            i.written_to.fetch_min(len, Relaxed);
            i.reserved_to.fetch_min(len, Relaxed);
            self.0.top_up();
        }
        Ok(())
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
