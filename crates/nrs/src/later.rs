//! What a policy was told about groups that it need not look at yet.
//!
//! Most requests that arrive are for groups that nobody has looked at for long: what is known of them, and the way there,
//! lies in main memory. A policy takes note of such a request and carries it out, in order, before it could make a
//! difference; meanwhile each call here fetches a step of the way for one of the notes, and nobody waits.
use crate::{chain::NIL, groups::Groups, index::KeyHash};
use alloc::vec::Vec;
use core::hash::Hash;

/// So many notes are carried out together at the latest: enough for their memory accesses to overlap.
const NOTES_MAX: usize = 16;
/// So many notes after its own a group is looked up, ..
const LOOK_UP_AFTER: usize = 2;
/// .. and so many after its own it is looked at.
const LOOK_AT_AFTER: usize = 6;

/// One thing to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note<K, W> {
    /// The group that it is about.
    pub(crate) key: K,
    hash: KeyHash,
    /// Where the group probably is: what [`Groups::guess`] answers.
    pub(crate) guess: u32,
    pub(crate) what: W,
}

/// The notes, oldest first.
#[derive(Debug)]
pub(crate) struct Later<K, W> {
    notes: Vec<Note<K, W>>,
    /// Memory for the next notes.
    spare: Vec<Note<K, W>>,
}

impl<K, W> Default for Later<K, W> {
    fn default() -> Self {
        Later { notes: Vec::with_capacity(NOTES_MAX), spare: Vec::with_capacity(NOTES_MAX) }
    }
}

impl<K: Hash + Eq + Copy, W> Later<K, W> {
    /// Adds a note about the group of `key`, which is at `known` or has to be looked up ([`NIL`]). `fetch` fetches what
    /// will be needed of a group. Answers whether the notes must be carried out now.
    #[inline]
    pub(crate) fn add<G, A>(
        &mut self,
        groups: &Groups<K, G, A>,
        key: K,
        known: u32,
        what: W,
        fetch: impl Fn(&G),
    ) -> bool {
        let hash = KeyHash::of(&key);
        if known == NIL {
            groups.prefetch_index(hash);
        }
        self.notes.push(Note { key, hash, guess: known, what });
        let count = self.notes.len();
        if count > LOOK_UP_AFTER {
            self.look_up(groups, count - 1 - LOOK_UP_AFTER);
        }
        if count > LOOK_AT_AFTER {
            self.look_at(groups, count - 1 - LOOK_AT_AFTER, &fetch);
        }
        count == NOTES_MAX
    }
    /// Hands all notes out, to be carried out in order and given back to [`Later::done`].
    pub(crate) fn take<G, A>(&mut self, groups: &Groups<K, G, A>, fetch: impl Fn(&G)) -> Vec<Note<K, W>> {
        let count = self.notes.len();
        for at in count.saturating_sub(LOOK_UP_AFTER)..count {
            self.look_up(groups, at);
        }
        for at in count.saturating_sub(LOOK_AT_AFTER)..count {
            self.look_at(groups, at, &fetch);
        }
        core::mem::replace(&mut self.notes, core::mem::take(&mut self.spare))
    }
    /// Hands out the oldest notes, those that are fetched for already; otherwise as [`Later::take`].
    pub(crate) fn take_ready(&mut self) -> Vec<Note<K, W>> {
        let ready = self.notes.len().saturating_sub(LOOK_AT_AFTER);
        let mut notes = core::mem::replace(&mut self.notes, core::mem::take(&mut self.spare));
        self.notes.extend(notes.drain(ready..));
        notes
    }
    /// Takes the memory of the notes back.
    pub(crate) fn done(&mut self, mut notes: Vec<Note<K, W>>) {
        notes.clear();
        self.spare = notes;
    }
    /// Whether there is a note about the group of `key`.
    pub(crate) fn mentions(&self, key: K) -> bool {
        self.notes.iter().any(|note| note.key == key)
    }
    /// Forgets all notes.
    pub(crate) fn clear(&mut self) {
        self.notes.clear();
    }

    fn look_up<G, A>(&mut self, groups: &Groups<K, G, A>, at: usize) {
        let note = &mut self.notes[at];
        if note.guess == NIL {
            note.guess = groups.guess(note.hash);
        }
    }
    fn look_at<G, A>(&self, groups: &Groups<K, G, A>, at: usize, fetch: &impl Fn(&G)) {
        if let Some(group) = groups.get_live(self.notes[at].guess) {
            fetch(group);
        }
    }
}
