//! Commit on sharing: whose uncommitted transactions another client's change would rest on.
//!
//! Each key that an uncommitted transaction read or wrote is noted with its client. A change (or an open) of another client
//! that reads what was written, or writes what was read or written, is carried out at once, but answered only when that
//! transaction is on stable storage. So no answered change rests on what a client has in its memory only: replays of different
//! clients have no order among each other, and nobody's is refused because somebody is missing. Whoever works alone in his
//! directories never waits.
//! What changes of directories have in common (times, counts of entries and subdirectories) is added up, whatever the order: making
//! and removing names only reads its directory here.
//! Whoever looks at a file that has got other objects by an exchange waits for that, too, for he would write to them: bytes that nobody
//! finds when the exchange is lost with the client that made it, and that nobody misses, for they are on stable storage.
//! Source: commit on sharing of Lustre. Differs: keys of the store where Lustre looks at locks.
use std::hash::Hasher;

use hashbrown::HashMap;
use rustc_hash::{FxBuildHasher, FxHasher};
use smallvec::SmallVec;
use types::{ClientId, Fid};

use crate::keys;

/// A key, in short; two that look the same cost a commit.
pub(crate) fn short(key: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(key);
    hasher.finish()
}

/// Keys that an operation read or wrote.
pub(crate) type Keys = SmallVec<[u64; 8]>;

/// What an operation looked at and what it changed.
#[derive(Clone, Default, Debug)]
pub(crate) struct Footprint {
    pub read: Keys,
    pub written: Keys,
}

impl Footprint {
    pub fn reads(&mut self, key: &[u8]) {
        note(&mut self.read, key);
    }
    pub fn writes(&mut self, key: &[u8]) {
        // Highest objects in use: the larger number counts, in whatever order they come.
        if key.first() != Some(&keys::PRECREATE) {
            note(&mut self.written, key);
        }
    }
}

fn note(list: &mut Keys, key: &[u8]) {
    let key = short(key);
    if !list.contains(&key) {
        list.push(key);
    }
}

/// Who did something last, and who else before.
#[derive(Clone, Copy, Default, Debug)]
struct Users {
    last: Option<ClientId>,
    /// Application of the last one's.
    at: u64,
    /// The last application of anybody else.
    others_at: u64,
}

impl Users {
    fn add(&mut self, client: ClientId, at: u64) {
        if self.last.is_some_and(|last| last != client) {
            self.others_at = self.at;
        }
        (self.last, self.at) = (Some(client), at);
    }
    /// The last application of anybody but this client; 0: none.
    fn other_than(&self, client: ClientId) -> u64 {
        if self.last == Some(client) { self.others_at } else { self.at }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Uses {
    readers: Users,
    writers: Users,
    /// What the last writer's change has to wait for itself.
    awaited: u64,
}

/// Uses of keys by changes that are not on stable storage yet. About 100 bytes each; they go with the commit, and operations
/// wait before there are too many changes (`commit_keys_max`).
#[derive(Default)]
pub(crate) struct Sharing {
    active: HashMap<u64, Uses, FxBuildHasher>,
    committing: HashMap<u64, Uses, FxBuildHasher>,
    /// Files whose objects are others since an application that is not on stable storage yet.
    exchanged: Vec<(Fid, u64)>,
    /// Answers that waited.
    waits: u64,
}

impl Sharing {
    /// The application that must be on stable storage before a client is answered something with this footprint; 0: none.
    pub fn rests_on(&self, client: ClientId, footprint: &Footprint) -> u64 {
        if self.active.is_empty() && self.committing.is_empty() {
            return 0;
        }
        let of = |key: &u64| self.active.get(key).into_iter().chain(self.committing.get(key));
        let seen = footprint.read.iter().flat_map(of).map(|u| u.writers.other_than(client).max(u.awaited)).max();
        let over = footprint
            .written
            .iter()
            .flat_map(of)
            .map(|u| u.writers.other_than(client).max(u.readers.other_than(client)).max(u.awaited));
        seen.max(over.max()).unwrap_or(0)
    }
    /// A client's change is applied as `at`, and is answered when `awaited` is on stable storage.
    pub fn note(&mut self, client: ClientId, footprint: &Footprint, at: u64, awaited: u64) {
        for key in &footprint.read {
            self.active.entry(*key).or_default().readers.add(client, at);
        }
        for key in &footprint.written {
            let uses = self.active.entry(*key).or_default();
            uses.writers.add(client, at);
            uses.awaited = uses.awaited.max(awaited);
        }
    }
    /// A file has other objects since an application.
    pub fn exchanged(&mut self, file: Fid, at: u64) {
        self.exchanged.push((file, at));
    }
    /// The application that must be on stable storage before anybody is told of what an operation saw of these files; 0: none.
    pub fn shown_after(&self, seen: &[Fid]) -> u64 {
        let of = |fid: &Fid| self.exchanged.iter().filter(|(f, _)| f == fid).map(|(_, at)| *at).max();
        if self.exchanged.is_empty() { 0 } else { seen.iter().filter_map(of).max().unwrap_or(0) }
    }
    /// What is applied so far is being committed.
    pub fn begin_commit(&mut self) {
        self.committing = std::mem::take(&mut self.active);
    }
    /// It is on stable storage, up to that application.
    pub fn end_commit(&mut self, durable: u64) {
        self.committing = HashMap::default();
        self.exchanged.retain(|(_, at)| *at > durable);
    }
    /// An answer waits.
    pub fn count(&mut self) {
        self.waits += 1;
    }
    /// Answers that waited so far.
    pub fn waits(&self) -> u64 {
        self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);

    fn prints(read: &[&str], written: &[&str]) -> Footprint {
        let mut print = Footprint::default();
        read.iter().for_each(|k| print.reads(k.as_bytes()));
        written.iter().for_each(|k| print.writes(k.as_bytes()));
        print
    }

    #[test]
    fn only_what_another_client_changed_or_what_it_stood_on_is_waited_for_until_it_is_committed() {
        let mut sharing = Sharing::default();
        sharing.note(A, &prints(&["dir"], &["name", "inode"]), 1, 0);
        let cases = [
            (A, prints(&["name"], &["inode", "dir"]), 0, "its own"),
            (B, prints(&["dir"], &["other"]), 0, "both read the directory"),
            (B, prints(&["name"], &[]), 1, "reads what was written"),
            (B, prints(&[], &["inode"]), 1, "writes what was written"),
            (B, prints(&[], &["dir"]), 1, "writes what was read"),
            (B, prints(&[], &["precreate"]), 0, "object numbers have no order"),
        ];
        for (client, print, wanted, why) in &cases {
            assert_eq!(sharing.rests_on(*client, print), *wanted, "{why}");
        }
        sharing.begin_commit();
        assert_eq!(sharing.rests_on(B, &cases[2].1), 1, "not committed yet");
        sharing.end_commit(1);
        assert_eq!(sharing.rests_on(B, &cases[2].1), 0);
    }

    #[test]
    fn whoever_builds_on_its_own_unanswered_change_waits_for_what_that_waits_for() {
        let mut sharing = Sharing::default();
        sharing.note(A, &prints(&[], &["x"]), 1, 0);
        let second = prints(&["x"], &["y"]);
        let awaited = sharing.rests_on(B, &second);
        assert_eq!(awaited, 1);
        sharing.note(B, &second, 2, awaited);
        assert_eq!(sharing.rests_on(B, &prints(&["y"], &["z"])), 1, "y rests on x");
        assert_eq!(sharing.rests_on(C, &prints(&["y"], &[])), 2);
        assert_eq!(sharing.rests_on(A, &prints(&["x"], &["x"])), 2, "B stands on x");
    }

    #[test]
    fn what_is_seen_of_a_file_with_other_objects_waits_for_the_last_exchange_that_is_not_committed() {
        let (one, two, three) = (Fid::new(1, 1), Fid::new(1, 2), Fid::new(1, 3));
        let mut sharing = Sharing::default();
        for (file, at) in [(one, 4), (two, 4), (one, 7)] {
            sharing.exchanged(file, at);
        }
        let shown = |s: &Sharing| [one, two, three].map(|f| s.shown_after(&[three, f]));
        assert_eq!(shown(&sharing), [7, 4, 0]);
        sharing.begin_commit();
        sharing.end_commit(4);
        assert_eq!(shown(&sharing), [7, 0, 0]);
        sharing.end_commit(9);
        assert_eq!(shown(&sharing), [0, 0, 0]);
    }
}
