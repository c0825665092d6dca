//! Whether the store has room for one more change.
//!
//! Operations are answered before they are committed, so what is let in must find space later, whatever others do on
//! the same file system. The engine keeps a reserve for its commits ([`rt::Room`]). What makes the store larger is let
//! in while the reserve is whole, and gets `NoSpace` otherwise; everything else (removals first of all) may use the
//! reserve up. While a commit waits for space, nothing is let in.
//!
//! What was removed does not go back to the medium: the engine writes there again. On a full medium it is looked for
//! ([`MetaStore::look_for_reuse`]), and new things are let in as far as it goes.
use std::cell::Cell;
use std::rc::Rc;

use rt::Rt;
use rt::sync::Event;
use types::Duration;

use crate::keys;
use crate::kv::Key;
use crate::store::{Change, MetaStore};

/// The shortest pause between two looks at all that the engine holds, and how many times longer than such a look it is at least.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const LOOK_PART: u32 = 20;
/// Bytes that a record has beside its key and value.
const RECORD_BYTES: usize = 32;

/// Space within what the engine has, on a full medium.
#[derive(Default)]
pub(crate) struct Reuse {
    /// Bytes that were found at the last look, less what was let in since.
    bytes: Cell<u64>,
    /// There may be more.
    pub look: Event,
}

impl Reuse {
    /// A change was let in.
    pub fn take(&self, (key, value): &Change) {
        let stays = value.as_ref().map_or(0, |v| 2 * (RECORD_BYTES + key.len() + v.len()));
        self.bytes.set(self.bytes.get().saturating_sub(stays as u64));
    }
}

/// Bytes that one changed key may take of the database until its commit is over: a leaf and its share of the pages
/// above it are written anew, and the old ones are free only a commit later.
const KEY_BYTES: u64 = 3 * 4096;

/// What an inode and its name take of a store, about.
const INODE_BYTES: u64 = 1024;

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
    /// Whether an inode with its name finds no room.
    #[must_use]
    pub(crate) fn has_no_room(&self) -> bool {
        self.admit(INODE_BYTES, true) == Admission::Full
    }
    /// Whether changes that need so many bytes may be applied.
    pub(crate) fn admit(&self, need: u64, grows: bool) -> Admission {
        if self.is_stalled() || types::planted!("never-room") {
            return Admission::Full;
        }
        let Some(room) = &self.room else { return Admission::Now };
        if room.is_waiting() {
            return Admission::Full;
        }
        let pending = self.need_of_active.get() + self.need_of_batch.get();
        if grows && !room.is_full_enough() {
            let reuse = self.reuse.bytes.get();
            if !room.is_enough_for_reuse() || need > reuse {
                return Admission::Full;
            }
            if need + pending > reuse {
                return Admission::AfterCommit;
            }
        }
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

    /// While the medium is full, finds out after commits how much of what the engine has holds nothing any more. Ends with the store.
    pub(crate) async fn look_for_reuse(self: Rc<Self>, rt: Rt) {
        let Some(room) = self.room.clone() else { return };
        while !self.stopped.get() {
            let more = self.reuse.look.wait();
            if room.is_full_enough() {
                self.reuse.bytes.set(0);
            } else {
                let began = rt.now();
                let found = self.kv.reusable().await.unwrap_or(0);
                // Commits go on to need some of it: pages that they replace are free a commit later.
                let kept = room.size() + self.need_of_active.get() + self.need_of_batch.get();
                self.reuse.bytes.set(found.saturating_sub(kept));
                let took = rt.now().since(began);
                rt.sleep(LOOK_PAUSE.max(took * LOOK_PART)).await;
            }
            more.await;
        }
    }
}
