//! A file as it is, with changes that stay in memory.
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;
use rt::BlockingFile;

const PAGE_BYTES: u64 = 4096;

#[derive(Default)]
struct Changes {
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES as usize]>>,
    len: u64,
    /// Behind this the file's own bytes do not count: it was cut.
    file_len: u64,
}

/// The file and its changes.
pub struct View {
    file: Box<dyn BlockingFile>,
    changes: Mutex<Changes>,
}

impl View {
    /// The file without changes.
    pub fn over(file: Box<dyn BlockingFile>) -> io::Result<View> {
        let len = file.len()?;
        Ok(View { file, changes: Mutex::new(Changes { len, file_len: len, ..Changes::default() }) })
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        // A reader of damaged pages may have panicked; every step below leaves whole pages behind.
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self, changes: &Changes, page: u64, into: &mut [u8; PAGE_BYTES as usize]) -> io::Result<()> {
        if let Some(bytes) = changes.pages.get(&page) {
            into.copy_from_slice(&bytes[..]);
            return Ok(());
        }
        let at = page * PAGE_BYTES;
        let there = changes.file_len.saturating_sub(at).min(PAGE_BYTES) as usize;
        into[there..].fill(0);
        if there > 0 { self.file.read(at, &mut into[..there]) } else { Ok(()) }
    }

    /// Fills `into` from `offset`.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let changes = self.changes();
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > changes.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut left, mut bytes) = (offset, into, [0; PAGE_BYTES as usize]);
        while !left.is_empty() {
            let skip = (at % PAGE_BYTES) as usize;
            let part = left.len().min(PAGE_BYTES as usize - skip);
            self.page(&changes, at / PAGE_BYTES, &mut bytes)?;
            let (head, rest) = left.split_at_mut(part);
            head.copy_from_slice(&bytes[skip..skip + part]);
            (left, at) = (rest, at + part as u64);
        }
        Ok(())
    }

    /// Writes `from` at `offset`, in memory.
    pub fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let mut changes = self.changes();
        let (mut at, mut left, mut bytes) = (offset, from, [0; PAGE_BYTES as usize]);
        while !left.is_empty() {
            let skip = (at % PAGE_BYTES) as usize;
            let part = left.len().min(PAGE_BYTES as usize - skip);
            if part < PAGE_BYTES as usize {
                self.page(&changes, at / PAGE_BYTES, &mut bytes)?;
            }
            bytes[skip..skip + part].copy_from_slice(&left[..part]);
            changes.pages.insert(at / PAGE_BYTES, Box::new(bytes));
            (left, at) = (&left[part..], at + part as u64);
        }
        changes.len = changes.len.max(at);
        Ok(())
    }

    /// Writes the changes to the file: everything but the header, then the header.
    pub fn save(&self) -> io::Result<()> {
        let changes = self.changes();
        if changes.len > self.file.len()? {
            self.file.set_len(changes.len)?;
        }
        for (page, bytes) in changes.pages.iter().filter(|(page, _)| **page != 0) {
            self.file.write(page * PAGE_BYTES, &bytes[..])?;
        }
        self.file.sync()?;
        if let Some(header) = changes.pages.get(&0) {
            self.file.write(0, &header[..])?;
        }
        if changes.len < self.file.len()? {
            self.file.set_len(changes.len)?;
        }
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes();
        changes.file_len = changes.file_len.min(len);
        let whole = len.div_ceil(PAGE_BYTES);
        changes.pages.retain(|page, _| *page < whole);
        if let Some(last) = changes.pages.get_mut(&(len / PAGE_BYTES)) {
            last[(len % PAGE_BYTES) as usize..].fill(0);
        }
        changes.len = len;
        Ok(())
    }
}

/// A view as a database backend.
pub struct Overlay(pub Arc<View>);

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overlay")
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.changes().len)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write(offset, data)
    }
}
