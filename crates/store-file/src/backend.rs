//! The database's view of a file of this world.
use std::fmt;
use std::io;

use redb::StorageBackend;
use rt::{BlockingFile, RoomyFile};

/// Space that is kept for commits when others fill the file system: 4 MiB, less on small ones.
pub(crate) const RESERVE_BYTES: u64 = 4 << 20;

/// A [`RoomyFile`] as a database backend. Growing sets the new part to zero, as the database asks for.
pub(crate) struct FileBackend(pub RoomyFile);

impl fmt::Debug for FileBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileBackend")
    }
}

impl StorageBackend for FileBackend {
    fn len(&self) -> Result<u64, io::Error> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> Result<(), io::Error> {
        self.0.sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write(offset, data)
    }
}
