//! Files as stores use them.
use std::io;

use frames::Bulk;

use crate::LocalFuture;

/// How a file is opened for data I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// Create it when missing.
    pub create: bool,
    /// Bypass the kernel's page cache where the file system can (offset, length and memory in whole pages then).
    pub direct: bool,
}

/// A file for data I/O on a shard; offsets in bytes. Every method may be called while others are under way.
pub trait DiskFile {
    /// Reads into `into` from `offset`; gives the bulk back with the number of bytes read (short at end of file).
    fn read_at(&self, offset: u64, into: Bulk) -> LocalFuture<(io::Result<usize>, Bulk)>;
    /// Writes the whole of `from` at `offset`.
    fn write_at(&self, offset: u64, from: Bulk) -> LocalFuture<io::Result<()>>;
    /// Everything written before is on stable storage afterwards.
    fn sync(&self) -> LocalFuture<io::Result<()>>;
    /// Reserves space for `len` bytes at `offset`, growing the file.
    fn allocate(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>>;
    /// Gives the space of the range back; it reads as zeros.
    fn punch(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>>;
    /// Whether its file system is kept in memory: nothing read from there waits for a device.
    fn is_in_memory(&self) -> bool {
        false
    }
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Bytes of it that have space on the medium; at least its length when it has no holes.
    fn allocated(&self) -> io::Result<u64>;
    /// Cuts or extends.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Bytes free and in all on the file system that holds it.
    fn space(&self) -> io::Result<(u64, u64)>;
    /// Says later whether the file is open still: by a reference to it, or by an operation that nobody waits for any more. The default
    /// is for files whose operations end with whoever waits for them, and which are closed before anybody asks.
    fn watch(&self) -> crate::IsOpen {
        Box::new(|| false)
    }
}

/// A file for an embedded store that does its own blocking I/O (on a worker thread in reality, inline and faultable
/// in the simulator).
pub trait BlockingFile: Send + Sync {
    /// Fills `into` from `offset`.
    ///
    /// # Errors
    /// As the medium answers; short files are `UnexpectedEof`.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes all of `from` at `offset`.
    ///
    /// # Errors
    /// As the medium answers.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// As the medium answers.
    fn len(&self) -> io::Result<u64>;
    /// Whether it is empty.
    ///
    /// # Errors
    /// As the medium answers.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends with zeros.
    ///
    /// # Errors
    /// As the medium answers.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Everything written is on stable storage afterwards.
    ///
    /// # Errors
    /// As the medium answers.
    fn sync(&self) -> io::Result<()>;
    /// What is read from now on comes from the medium, not from memory. After a sync that failed a system may keep pages in
    /// memory as if they had been written: whoever opens a file after a failure must not build on them.
    ///
    /// # Errors
    /// What is not written yet cannot be written.
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
    /// Makes sure that writes to the range find space, also behind the end, whose place does not change. The default is for
    /// media that are never full.
    ///
    /// # Errors
    /// `StorageFull` when there is not enough; a part may be reserved then. `Unsupported` when the medium cannot promise
    /// space.
    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Bytes free and in all on the file system that holds it. The default is for media that are never full.
    ///
    /// # Errors
    /// As the medium answers.
    fn space(&self) -> io::Result<(u64, u64)> {
        Ok((u64::MAX, u64::MAX))
    }
    /// Blocks for a moment, after which a full medium may have space again. False where nobody can wait: on media that
    /// are never full, and in worlds whose time stands still during blocking work.
    fn wait_for_space(&self) -> bool {
        false
    }
}
