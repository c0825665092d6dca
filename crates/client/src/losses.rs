//! What evictions cost: files whose unwritten data are gone, for administrators and for whoever must restore them.
//!
//! A program learns of it by EIO from its next fsync or close; this is the list for everybody else. It is kept until it
//! is cleared or the client leaves.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use types::Fid;

/// Files that are listed by name; the bytes of further ones are counted.
const FILES_MAX: usize = 1024;
/// Files named in one message of the log.
const NAMED_MAX: usize = 8;

/// The list.
#[derive(Debug, Default)]
pub struct Losses {
    files: RefCell<BTreeMap<Fid, u64>>,
    unlisted: Cell<(u64, u64)>,
    /// Since the last message: files and bytes.
    untold: RefCell<Vec<(Fid, u64)>>,
    /// Changes of names and attributes that came to nothing, and how many more there were.
    changes: RefCell<Vec<String>>,
    unlisted_changes: Cell<u64>,
    /// How many of them since the last message.
    untold_changes: Cell<usize>,
    /// Directories that lost a change, and no program was told yet.
    owed: RefCell<BTreeSet<Fid>>,
    /// Directories for which there was no room there: their lost changes are listed, and no program hears of them.
    unowed: Cell<u64>,
}

impl Losses {
    /// `bytes` of a file were dropped although nobody has them.
    pub(crate) fn note(&self, fid: Fid, bytes: u64) {
        self.untold.borrow_mut().push((fid, bytes));
        let mut files = self.files.borrow_mut();
        if files.len() >= FILES_MAX && !files.contains_key(&fid) {
            let (n, sum) = self.unlisted.get();
            self.unlisted.set((n + 1, sum.saturating_add(bytes)));
            return;
        }
        let sum = files.entry(fid).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// One message for all that was noted since the last one; `None` when there is nothing to tell.
    pub(crate) fn take_message(&self) -> Option<String> {
        let untold = std::mem::take(&mut *self.untold.borrow_mut());
        if untold.is_empty() {
            return None;
        }
        let bytes: u64 = untold.iter().map(|(_, b)| b).sum();
        let named: Vec<String> = untold.iter().take(NAMED_MAX).map(|(f, b)| format!("{f} ({b} bytes)")).collect();
        let more = untold.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!("unwritten data of {} files are lost, {bytes} bytes: {}{more}", untold.len(), named.join(", ")))
    }

    /// A change of names or attributes came to nothing.
    pub(crate) fn note_change(&self, text: String) {
        self.untold_changes.set(self.untold_changes.get() + 1);
        let mut changes = self.changes.borrow_mut();
        if changes.len() < FILES_MAX {
            changes.push(text);
        } else {
            self.unlisted_changes.set(self.unlisted_changes.get() + 1);
        }
    }
    /// Somebody is to be told that a directory lost a change.
    pub(crate) fn owe(&self, dir: Fid) {
        let mut owed = self.owed.borrow_mut();
        if owed.len() < FILES_MAX || owed.contains(&dir) {
            owed.insert(dir);
        } else {
            self.unowed.set(self.unowed.get() + 1);
        }
    }
    /// Lost changes of directories so far that no program will be told of: too many directories had lost some.
    #[must_use]
    pub fn owed_limit_hits(&self) -> u64 {
        self.unowed.get()
    }
    /// Whether that is still to be done; it is now.
    pub(crate) fn take_owed(&self, dir: Fid) -> bool {
        self.owed.borrow_mut().remove(&dir)
    }
    /// As [`Losses::take_message`], of changes.
    pub(crate) fn take_change_message(&self) -> Option<String> {
        let untold = self.untold_changes.take();
        if untold == 0 {
            return None;
        }
        let changes = self.changes.borrow();
        let first = changes.len().saturating_sub(untold);
        let named = changes[first..].iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = untold.saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!(
            "{untold} changes of names and attributes are lost, for a server ended this client's session or lost what they rested on: {named}{more}"
        ))
    }
    /// A line per change that was lost; a last line for what is not listed.
    #[must_use]
    pub fn changes_text(&self) -> String {
        let mut out: String = self.changes.borrow().iter().flat_map(|c| [c.as_str(), "\n"]).collect();
        if self.unlisted_changes.get() > 0 {
            writeln!(out, "and {} more", self.unlisted_changes.get()).expect("a String takes everything");
        }
        out
    }
    /// Begins that list anew.
    pub fn clear_changes(&self) {
        self.changes.borrow_mut().clear();
        self.unlisted_changes.set(0);
    }

    /// A line per file: FID and bytes; a last line for what is not listed.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (fid, bytes) in self.files.borrow().iter() {
            writeln!(out, "{fid} {bytes}").expect("a String takes everything");
        }
        let (files, bytes) = self.unlisted.get();
        if files > 0 {
            writeln!(out, "and {files} more losses, {bytes} bytes").expect("a String takes everything");
        }
        out
    }

    /// Bytes that were written by programs and never reached a server.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        self.files.borrow().values().sum::<u64>() + self.unlisted.get().1
    }
    /// Whether bytes of a file were lost, or of some that are not listed.
    #[must_use]
    pub fn may_have_lost(&self, fid: Fid) -> bool {
        self.unlisted.get().0 > 0 || self.files.borrow().contains_key(&fid)
    }
    /// Begins anew.
    pub fn clear(&self) {
        self.files.borrow_mut().clear();
        self.unlisted.set((0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_add_up_per_file_and_their_list_is_bounded() {
        let losses = Losses::default();
        assert_eq!((losses.text(), losses.take_message()), (String::new(), None));
        losses.note(Fid::new(0x2_0000_0401, 7), 4096);
        losses.note(Fid::new(0x2_0000_0401, 7), 8192);
        assert_eq!(losses.text(), "[0x200000401:0x7:0x0] 12288\n");
        let told = losses.take_message().unwrap();
        assert!(
            told.starts_with("unwritten data of 2 files are lost, 12288 bytes: [0x200000401:0x7:0x0] (4096"),
            "{told}"
        );
        for i in 0..2000 {
            losses.note(Fid::new(0x2_0000_0402, i), 1);
        }
        assert_eq!(losses.text().lines().count(), FILES_MAX + 1);
        assert!(losses.text().ends_with("and 977 more losses, 977 bytes\n"), "{}", losses.text());
        assert!(losses.take_message().unwrap().ends_with("and 1992 more"));
        losses.clear();
        assert_eq!(losses.text(), "");
        (0..=FILES_MAX as u32).for_each(|i| losses.owe(Fid::new(0x2_0000_0403, i)));
        losses.owe(Fid::new(0x2_0000_0403, 0));
        assert_eq!(losses.owed_limit_hits(), 1);
    }
}
