//! Whether the store has room for one more change.
//!
//! Operations are answered before they are committed, so what is let in must find space later, whatever others do on
//! the same file system. The engine keeps a reserve for its commits ([`rt::Room`]). What makes the store larger is let
//! in while the reserve is whole, and gets `NoSpace` otherwise; everything else (removals first of all) may use the
//! reserve up. While a commit waits for space, nothing is let in.
use crate::keys;
use crate::kv::Key;
use crate::store::{Change, MetaStore};

/// Bytes that one changed key may take of the database until its commit is over: a leaf and its share of the pages
/// above it are written anew, and the old ones are free only a commit later.
const KEY_BYTES: u64 = 3 * 4096;

/// An answer of [`MetaStore::admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// There is room.
    Now,
    /// What was let in before may need it all: once it is committed there may be room.
    AfterCommit,
    /// There is no space.
    Full,
}

/// What changes need of the store at most, in bytes.
pub(crate) fn need<'a>(changes: impl IntoIterator<Item = &'a Change>) -> u64 {
    changes.into_iter().map(|(_, v)| KEY_BYTES + 2 * v.as_ref().map_or(0, Vec::len) as u64).sum()
}

/// Whether changes make the store larger for good: a new name, a new attribute, and nothing of the kind taken away.
pub(crate) fn grows(changes: &[Change]) -> bool {
    let named = |k: &Key| matches!(k.first(), Some(&(keys::ENTRY | keys::LINK | keys::XATTR | keys::LAYOUT)));
    let adds = changes.iter().any(|(k, v)| named(k) && v.is_some());
    adds && !changes.iter().any(|(k, v)| named(k) && v.is_none())
}

impl MetaStore {
    /// Whether changes that need so many bytes may be applied.
    pub(crate) fn admit(&self, need: u64, grows: bool) -> Admission {
        if self.is_stalled() {
            return Admission::Full;
        }
        let Some(room) = &self.room else { return Admission::Now };
        if room.is_waiting() {
            return Admission::Full;
        }
        if grows && !room.is_full_enough() {
            return Admission::Full;
        }
        let pending = self.need_of_active.get() + self.need_of_batch.get();
        // Half of it: the pages of the commit before are not free yet.
        let fits = |bytes: u64| need + pending <= bytes / 2;
        if fits(room.left()) || fits(room.likely()) {
            Admission::Now
        } else if pending > 0 {
            Admission::AfterCommit
        } else if grows {
            Admission::Full
        } else {
            Admission::Now
        }
    }
}
