//! The store contract of the MDS: ordered keys, snapshots, atomic batches with conflict checks.
//!
//! The MDS owns the contract; engines live in crates of their own (`store-redb`) or, for tests, in [`memory`].
//! Engines see opaque bytes. What the keys and values mean is `keys` and `record`; the formats are specified in
//! `docs/spec/mdt-store.md`. Every value is stored with a checksum over key and value ([`seal`], [`unseal`]), so that
//! a value that was torn, rotten or filed under another key is an error that names the key, and never data.
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use rt::LocalFuture;
use smallvec::SmallVec;
use types::scrub::Looked;

pub mod conformance;
pub mod memory;
mod rows;

pub use memory::{FailPoint, MemoryKv};

/// A key. Inline up to 48 bytes, which every key but those of xattrs fits.
pub type Key = SmallVec<[u8; 48]>;

/// Bytes that [`seal`] adds to a value.
pub const SEAL_BYTES: usize = 4;

/// Why a store did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvError {
    /// The medium failed; what exactly.
    Io(String),
    /// The bytes under a key are not what was stored there.
    Corrupt {
        /// The key, readable.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A key that the batch expected to be as it was has changed: somebody else writes to this store.
    Conflict {
        /// The key, readable.
        key: String,
    },
    /// The medium is full.
    NoSpace,
    /// Another server has taken the store over: what it says.
    Fenced(String),
    /// An earlier write failed; nothing is written until the store is opened again.
    Latched(String),
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvError::Io(e) => write!(f, "metadata store: {e}"),
            KvError::Corrupt { key, why } => write!(f, "metadata store: key {key} is damaged: {why}"),
            KvError::Conflict { key } => write!(
                f,
                "metadata store: key {key} was changed by somebody else: is a second server running on this store?"
            ),
            KvError::NoSpace => f.write_str("metadata store: no space left"),
            KvError::Fenced(e) => write!(f, "metadata store: {e}"),
            KvError::Latched(e) => write!(f, "metadata store stopped after an earlier failure: {e}"),
        }
    }
}
impl std::error::Error for KvError {}

impl From<KvError> for types::FsError {
    fn from(e: KvError) -> types::FsError {
        match e {
            KvError::Corrupt { .. } => types::FsError::Corrupt,
            KvError::NoSpace => types::FsError::NoSpace,
            _ => types::FsError::Io,
        }
    }
}

/// What an engine can do; asked once at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvLimits {
    /// Keys that one batch may change.
    pub batch_ops_max: usize,
    /// Bytes of keys and values in one batch.
    pub batch_bytes_max: usize,
    /// Longest key.
    pub key_bytes_max: usize,
    /// Longest value, sealed.
    pub value_bytes_max: usize,
    /// A snapshot never shows a part of a batch, and stays as it is while batches are committed.
    pub snapshot_isolation: bool,
}

/// The answer to a read: most engines have it in memory most of the time, and then nobody waits.
pub enum Answer<T> {
    /// Here it is.
    Now(Result<T, KvError>),
    /// It has to be fetched.
    Later(LocalFuture<Result<T, KvError>>),
}

/// Keys with their (unsealed) values, ascending.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The store as it was at one commit.
pub trait KvSnapshot {
    /// The sealed value of a key.
    fn get(&self, key: &[u8]) -> Answer<Option<Vec<u8>>>;
    /// At most `limit` pairs with `from <= key < to`, ascending, sealed; fewer only when there are no more.
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Answer<Pairs>;
}

/// An ordered key-value store. Values are opaque bytes.
pub trait MetaKv {
    /// What it can do.
    fn limits(&self) -> KvLimits;
    /// The store as it is now.
    fn snapshot(&self) -> LocalFuture<Result<Rc<dyn KvSnapshot>, KvError>>;
    /// Applies a batch whole or not at all; on stable storage when it completes. One at a time.
    /// After a failure other than `Conflict` the engine answers `Latched` to every further commit.
    fn commit(&self, batch: Arc<KvBatch>) -> LocalFuture<Result<(), KvError>>;
    /// Compares the next pages of its own on the medium, about so many bytes of them, with their checksums, past every cache; 0:
    /// forgets how far it was. The default has none.
    fn look_at_pages(&self, _bytes: u64) -> LocalFuture<Result<Looked, KvError>> {
        Box::pin(std::future::ready(Ok(Looked::nothing())))
    }
    /// Why it takes nothing any more, when no commit has met that yet: another server has it. `None`, the default: commits tell.
    fn failure(&self) -> Option<KvError> {
        None
    }
    /// Whether it is certain at this moment that no other server has the store. The default: nobody else can have it.
    fn is_sure(&self) -> bool {
        true
    }
    /// Asks whether the store is still this server's: before something is done elsewhere that must not be done by one of before. The
    /// default: nobody else can have it.
    fn confirm(&self) -> LocalFuture<Result<(), KvError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// (bytes in all, bytes free) of the medium.
    fn space(&self) -> (u64, u64);
    /// Bytes that it has of its medium and could write again: its own, which hold nothing any more. Looks at everything that it holds. The
    /// default is for engines that give such space back, or whose medium is never full.
    fn reusable(&self) -> LocalFuture<Result<u64, KvError>> {
        Box::pin(std::future::ready(Ok(0)))
    }
    /// The space that it keeps for commits. `None`, the default: its medium is never full.
    fn room(&self) -> Option<rt::Room> {
        None
    }
}

/// Changes that belong together.
#[derive(Clone, Default, Debug)]
pub struct KvBatch {
    /// Key to new value; `None` removes. Values are not sealed yet.
    pub changes: BTreeMap<Key, Option<Vec<u8>>>,
    /// Keys that must (still) have these values, not sealed; `None`: must not exist.
    pub expect: Vec<(Key, Option<Vec<u8>>)>,
}

impl KvBatch {
    /// Calls `f` with every change in key order, values sealed as they are to be stored.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn each_sealed<E>(&self, mut f: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), E>) -> Result<(), E> {
        let mut scratch = Vec::with_capacity(512);
        for (key, value) in &self.changes {
            match value {
                None => f(key, None)?,
                Some(v) => {
                    scratch.clear();
                    seal(key, v, &mut scratch);
                    f(key, Some(&scratch))?;
                }
            }
        }
        Ok(())
    }
    /// Checks the expectations against what the engine has; `get` answers sealed values.
    ///
    /// # Errors
    /// `Conflict` with the first key that is not as expected, or what `get` answers.
    pub fn check_expectations(
        &self,
        mut get: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>, KvError>,
    ) -> Result<(), KvError> {
        for (key, want) in &self.expect {
            let have = match get(key)? {
                Some(v) => Some(unseal(key, v)?),
                None => None,
            };
            if have != *want {
                return Err(KvError::Conflict { key: show_key(key) });
            }
        }
        Ok(())
    }
}

/// Appends `value` and its checksum over `key` and `value` to `out`.
pub fn seal(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(value);
    let crc = wire::crc32c_append(wire::crc32c(key), value);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Checks and removes the checksum.
///
/// # Errors
/// `Corrupt` with the key when the bytes are not what was stored under it.
pub fn unseal(key: &[u8], mut sealed: Vec<u8>) -> Result<Vec<u8>, KvError> {
    if !is_whole(key, &sealed) {
        let why = if sealed.len() < SEAL_BYTES { "shorter than its checksum" } else { "its checksum does not match" };
        return Err(KvError::Corrupt { key: show_key(key), why: why.into() });
    }
    sealed.truncate(sealed.len() - SEAL_BYTES);
    Ok(sealed)
}

/// Whether a value with its checksum is what was stored under `key`.
#[must_use]
pub fn is_whole(key: &[u8], sealed: &[u8]) -> bool {
    let Some((value, crc)) = sealed.split_last_chunk::<SEAL_BYTES>() else { return false };
    wire::crc32c_append(wire::crc32c(key), value) == u32::from_le_bytes(*crc)
}

/// A key as text: its kind and the rest in hexadecimal.
#[must_use]
pub fn show_key(key: &[u8]) -> String {
    use fmt::Write;
    let mut s = String::with_capacity(2 + key.len() * 2);
    if let Some(kind) = key.first() {
        let _ = write!(s, "{}:", kind.escape_ascii());
    }
    for b in key.iter().skip(1) {
        let _ = write!(s, "{b:02x}");
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_under_another_key_or_with_a_flipped_bit_is_corrupt_and_names_the_key() {
        let mut sealed = Vec::new();
        seal(b"ikey", b"value", &mut sealed);
        assert_eq!(unseal(b"ikey", sealed.clone()).unwrap(), b"value");
        let e = unseal(b"ikez", sealed.clone()).unwrap_err();
        assert!(e.to_string().contains("i:6b657a"), "{e}");
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(unseal(b"ikey", bad), Err(KvError::Corrupt { .. })), "bit {bit}");
        }
        assert!(unseal(b"k", vec![1, 2]).is_err());
    }
}
