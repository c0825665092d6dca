//! Which commit of a database was whole: kept in a small file beside it.
//!
//! The engine takes a newest commit that is not whole for one that a crash cut, and goes on with the one before it. Whether it was
//! whole once, and the medium has changed it since, nothing in the database says: so the number of each commit is written down once
//! it is on stable storage. That costs a commit no sync: what is written down outlives a killed process at once, and a loss of power
//! when the store has rested for a while ([`Whole::settle`]); a number that is lost leaves things as they are without.
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rt::{BlockingFile, Rt};
use xxhash_rust::xxh3::xxh3_64;

/// A number, and its checksum.
const BYTES: usize = 16;

/// See the module's head.
#[derive(Clone)]
pub struct Whole(Arc<dyn BlockingFile>);

impl Whole {
    /// Of the database at `database`, to write down; `None` where no file can be made.
    #[must_use]
    pub fn beside(rt: &Rt, database: &Path) -> Option<Whole> {
        rt.open_blocking(&path_beside(database), true).ok().map(|file| Whole(file.into()))
    }
    /// What was written down of the database at `database`, if anything: nothing is made.
    #[must_use]
    pub fn known(rt: &Rt, database: &Path) -> Option<Whole> {
        rt.open_blocking(&path_beside(database), false).ok().map(|file| Whole(file.into()))
    }
    /// The commit that was whole last, as far as is known.
    #[must_use]
    pub fn commit(&self) -> Option<u64> {
        let mut bytes = [0; BYTES];
        self.0.read(0, &mut bytes).ok()?;
        let (number, sum) = bytes.split_at(8);
        (xxh3_64(number).to_le_bytes() == sum).then(|| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| number[i])))
    }
    /// What was written down outlives a loss of power, too. Blocks.
    ///
    /// # Errors
    /// As the medium answers.
    pub fn settle(&self) -> io::Result<()> {
        self.0.sync()
    }
    /// A commit is on stable storage.
    ///
    /// # Errors
    /// As the medium answers.
    pub(crate) fn note(&self, commit: u64) -> io::Result<()> {
        let mut bytes = [0; BYTES];
        let number = commit.to_le_bytes();
        bytes[..8].copy_from_slice(&number);
        bytes[8..].copy_from_slice(&xxh3_64(&number).to_le_bytes());
        self.0.write(0, &bytes)
    }
}

fn path_beside(database: &Path) -> PathBuf {
    let mut name: OsString = database.as_os_str().into();
    name.push(".whole");
    name.into()
}
