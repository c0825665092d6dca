//! Whether the file of an embedded database (redb) is whole: for `stria fsck`, which must find every flipped byte and
//! change nothing.
//!
//! A database trusts a file that was closed in order: a damaged page is read as if it were right. Here every page that a
//! committed tree reaches is compared with its checksum before anything is believed. The file is not written: what the
//! engine writes while it opens stays in memory ([`overlay`]).
//! What is not covered, and need not be, is listed in `docs/internals/integrity.md`: bytes that nobody reads before they
//! are written again.
mod overlay;
mod pages;
mod rebuild;
mod salvage;
mod watched;
mod whole;

use std::cell::Cell;
use std::fmt;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use redb::{Database, DatabaseError, StorageError};
use rt::BlockingFile;

use overlay::{Overlay, View};
pub use pages::PageCheck;
pub use rebuild::rebuild;
pub use salvage::{Commit, IsWhole, Lost, Salvaged, Shape, Take, commits, salvage, salvage_and_lost};
pub use watched::{PageSums, Watched};
pub use whole::Whole;

/// Bytes of the header page: two commit slots, and zeros.
const HEADER_BYTES: usize = 4096;
const GOD_BYTE: usize = 9;
const PRIMARY_BIT: u8 = 1;
const NOT_CLOSED_BIT: u8 = 2;
/// Flags of the god byte that this build's engine sets: primary slot, not closed, two-phase commit.
const KNOWN_FLAGS: u8 = 7;
const SLOT_AT: [usize; 2] = [64, 192];
const SLOT_BYTES: usize = 128;
/// Where a commit slot has the number of its transaction.
const SLOT_TRANSACTION_AT: usize = 104;
/// Page size and regions: fixed, or a function of the file's length.
const GEOMETRY: std::ops::Range<usize> = 12..32;
/// Parts of the header page that are never written.
const ALWAYS_ZERO: [std::ops::Range<usize>; 3] = [10..12, 32..64, 320..HEADER_BYTES];

/// A database file that was examined.
pub struct Examined {
    /// What is wrong with it, a sentence each.
    pub faults: Vec<String>,
    /// What is remarkable, and no fault.
    pub notes: Vec<String>,
    /// The database as it was committed last; `None` when it is damaged. Writes to it stay in memory.
    pub database: Option<Database>,
}

impl fmt::Debug for Examined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Examined").field("faults", &self.faults).field("notes", &self.notes).finish_non_exhaustive()
    }
}

/// Compares every page of the committed trees in `file` with its checksum. Blocks for as long as reading the file takes;
/// memory: `cache_bytes`, and the pages that the engine writes while it opens (a few). `whole`: which commit was.
///
/// # Errors
/// The file cannot be read.
pub fn examine(file: Box<dyn BlockingFile>, cache_bytes: usize, whole: Option<&Whole>) -> std::io::Result<Examined> {
    file.forget_cached()?;
    let mut out = Examined { faults: Vec::new(), notes: Vec::new(), database: None };
    if file.len()? < HEADER_BYTES as u64 {
        out.faults.push("the file is too short for a database".into());
        return Ok(out);
    }
    let mut header = vec![0; HEADER_BYTES];
    file.read(0, &mut header)?;
    let closed = header[GOD_BYTE] & NOT_CLOSED_BIT == 0;
    out.faults.extend(header_faults(&header, closed));
    let view = Arc::new(View::over(file)?);
    if closed {
        // A file that was closed is opened by its newest commit or not at all: the slot of the commit before must not
        // stand in for a damaged one.
        let spare = SLOT_AT[1 - usize::from(header[GOD_BYTE] & PRIMARY_BIT)];
        // Its first byte is the format's version, which is judged before anything else.
        view.write(spare as u64 + 1, &[0; SLOT_BYTES - 1])?;
    }
    let opened = guarded(|| {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
        builder.create_with_backend(Overlay(view.clone()))
    });
    match opened {
        Ok(Ok(database)) => {
            let mut now = vec![0; HEADER_BYTES];
            view.read(0, &mut now)?;
            if closed && now[GEOMETRY] != header[GEOMETRY] {
                out.faults.push("the header says another size than the file has".into());
            }
            let chosen = newest_of(&now).saturating_sub(1);
            // A number above all that the header knows is of another file that was here.
            if let Some(lost) =
                whole.and_then(Whole::commit).filter(|w| !closed && chosen < *w && *w <= newest_of(&header))
            {
                out.faults
                    .push(format!("its commit {lost} was whole, and is not any more: the one before it ({chosen}) is"));
            } else if !closed && chosen < newest_of(&header) {
                out.notes.push(format!(
                    "it was not closed, and its newest commit ({}) is not whole: the one before it ({chosen}) counts",
                    newest_of(&header)
                ));
            }
            out.database = Some(database);
        }
        // Damage is reported with these kinds, too.
        Ok(Err(DatabaseError::Storage(StorageError::Io(e))))
            if !matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) =>
        {
            return Err(e);
        }
        Ok(Err(e)) => out.faults.push(e.to_string()),
        Err(why) => out.faults.push(format!("a page cannot be read: {why}")),
    }
    Ok(out)
}

/// Databases up to this many bytes are compared with their checksums before a server trusts them, if nothing else is said: 1 GiB.
pub const CHECK_BYTES_DEFAULT: u64 = 1 << 30;

/// What is wrong with a database that is about to be opened, if it has `bytes_max` bytes at most; a longer one is not looked at,
/// for its server is waited for. What its pages are is known in `sums` from then on; `whole` tells which commit was. Blocks as [`examine`] does.
///
/// # Errors
/// The file cannot be read.
pub fn fault_before_opening(
    file: Box<dyn BlockingFile>,
    bytes_max: u64,
    cache_bytes: usize,
    sums: &PageSums,
    whole: Option<&Whole>,
) -> std::io::Result<Option<String>> {
    let len = file.len()?;
    if len > bytes_max || len < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let found = examine(Box::new(Watched::new(file, sums.clone())), cache_bytes, whole)?;
    let more = found.faults.len().saturating_sub(1);
    let more = if more > 0 { format!(" (and {more} more faults)") } else { String::new() };
    Ok(found.faults.first().map(|first| format!("{first}{more}")))
}

/// An open database, whose closing writes and may meet a page that makes no sense: that is said, and ends nothing.
#[derive(Debug)]
pub struct Open(Option<Database>);

impl Open {
    /// It is open.
    #[must_use]
    pub fn new(database: Database) -> Open {
        Open(Some(database))
    }
}

impl std::ops::Deref for Open {
    type Target = Database;
    fn deref(&self) -> &Database {
        self.0.as_ref().expect("it is taken out when it is dropped")
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Err(why) = guarded(|| drop(self.0.take())) {
            tracing::error!("a database was closed out of order, for a page of it is damaged: {why}");
        }
    }
}

/// What [`mend`] could do for a damaged file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mended {
    /// The newest commit is whole: only the header had to be written anew.
    Header,
    /// The newest commit was cut by a crash; the one before it is whole and counts now.
    RolledBack,
    /// Neither is whole, or the newest one was and is not any more: it has more than the one before it. Nothing was written.
    No,
}

/// Makes the newest commit that is whole count, unless a later one was whole once, as far as `whole` knows, or, where that knows
/// nothing, the file was closed: what it promised is saved record by record ([`salvage`]).
///
/// # Errors
/// The file cannot be read or written.
pub fn mend(file: Box<dyn BlockingFile>, cache_bytes: usize, whole: Option<&Whole>) -> std::io::Result<Mended> {
    if file.len()? < HEADER_BYTES as u64 {
        return Ok(Mended::No);
    }
    let mut header = vec![0; HEADER_BYTES];
    file.read(0, &mut header)?;
    ALWAYS_ZERO.into_iter().for_each(|range| header[range].fill(0));
    let closed = header[GOD_BYTE] & NOT_CLOSED_BIT == 0;
    let was_whole = whole.and_then(Whole::commit).map_or(closed, |commit| commit >= newest_of(&header));
    let newer = usize::from(transaction_of(&header, 1) > transaction_of(&header, 0));
    let file: Arc<dyn BlockingFile> = file.into();
    for (slot, outcome) in [(newer, Mended::Header), (1 - newer, Mended::RolledBack)] {
        let mut header = header.clone();
        header[GOD_BYTE] = slot as u8 | NOT_CLOSED_BIT;
        header[SLOT_AT[1 - slot] + 1..SLOT_AT[1 - slot] + SLOT_BYTES].fill(0);
        let view = Arc::new(View::over(Box::new(Shared(file.clone())))?);
        view.write(0, &header)?;
        let opened = guarded(|| {
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
            builder.create_with_backend(Overlay(view.clone())).is_ok()
        });
        // The engine falls back to the other slot, which says that the database is empty.
        let mut now = vec![0; HEADER_BYTES];
        view.read(0, &mut now)?;
        if opened == Ok(true) && newest_of(&now).saturating_sub(1) >= transaction_of(&header, slot) {
            if outcome == Mended::RolledBack && was_whole && !types::planted!("rolled-back") {
                return Ok(Mended::No);
            }
            view.save()?;
            return Ok(outcome);
        }
    }
    Ok(Mended::No)
}

/// A file that several views look at.
struct Shared(Arc<dyn BlockingFile>);

impl BlockingFile for Shared {
    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, from)
    }
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
}

fn transaction_of(header: &[u8], slot: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[SLOT_AT[slot] + SLOT_TRANSACTION_AT..][..8]);
    u64::from_le_bytes(bytes)
}

/// Number of the transaction that a header names.
pub(crate) fn current_of(header: &[u8]) -> Option<u64> {
    let slot = usize::from(header.get(GOD_BYTE)? & PRIMARY_BIT);
    (header.len() >= SLOT_AT[1] + SLOT_BYTES).then(|| transaction_of(header, slot))
}

/// Number of the newer transaction of a header's two slots.
fn newest_of(header: &[u8]) -> u64 {
    transaction_of(header, 0).max(transaction_of(header, 1))
}

fn header_faults(header: &[u8], closed: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let flags = header[GOD_BYTE];
    if flags & !KNOWN_FLAGS != 0 {
        faults.push(format!("the header has flags that nobody sets: {flags:#04x}"));
    }
    for range in ALWAYS_ZERO {
        if let Some(at) = header[range.clone()].iter().position(|b| *b != 0) {
            faults.push(format!("byte {} of the header is not zero", range.start + at));
        }
    }
    if closed && transaction_of(header, usize::from(flags & PRIMARY_BIT)) < newest_of(header) {
        faults.push("the header names the older of its two commits".into());
    }
    faults
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which reads a database that may be damaged. A panic in it is an error, and says nothing on the terminal.
///
/// # Errors
/// What the panic said.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(outer);
    done.map_err(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        text.or_else(|| cause.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "a panic".into())
    })
}
