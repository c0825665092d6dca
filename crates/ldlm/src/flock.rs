//! The byte ranges one owner has locked in one file, and the words flock requests are made of.
//!
//! Source: POSIX.1-2017, `fcntl()`: a new lock replaces what the owner had on those bytes; equal neighbours join;
//! unlocking the middle splits.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use types::{ClientId, Extent, Fid};

use crate::lock::{DenyReason, LockCookie};

/// Which of the two lock calls; they do not see each other, as on Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlockKind {
    /// `fcntl`: byte ranges, the owner is a process (or an open file for OFD locks), deadlocks are detected.
    Posix,
    /// `flock`: whole files, the owner is an open file.
    Flock,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlockMode {
    /// Read lock.
    Shared,
    /// Write lock.
    Exclusive,
    /// Give back.
    Unlock,
}

/// One flock or fcntl call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlockRequest {
    /// The file.
    pub fid: Fid,
    /// Which call.
    pub kind: FlockKind,
    /// The owner within its client.
    pub owner: u64,
    /// The process, for `F_GETLK` of others.
    pub pid: u32,
    /// Lock or unlock.
    pub mode: FlockMode,
    /// The bytes; end `u64::MAX` is "to the end of the file". Not empty. For [`FlockKind::Flock`] always everything.
    pub extent: Extent,
    /// Wait rather than fail.
    pub wait: bool,
    /// The client's name for this call; the same when it is sent again.
    pub cookie: LockCookie,
}

/// The answer to a [`FlockRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlockOutcome {
    /// Done.
    Granted,
    /// Waits; [`crate::Action::FlockGranted`] or [`crate::Action::FlockDenied`] follows.
    Waiting,
    /// Not done.
    Denied(DenyReason),
}

/// A range that is held: what `F_GETLK` shows and what is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlockRange {
    /// The file.
    pub fid: Fid,
    /// Which call made it.
    pub kind: FlockKind,
    /// The holder's client.
    pub client: ClientId,
    /// The holder within its client.
    pub owner: u64,
    /// The holder's process.
    pub pid: u32,
    /// The bytes.
    pub extent: Extent,
    /// Write lock.
    pub exclusive: bool,
}

/// Disjoint ranges of one owner in one file; equal neighbours are always joined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnerRanges {
    /// Start to (end, exclusive).
    ranges: BTreeMap<u64, (u64, bool)>,
    /// Starts of those that are exclusive.
    exclusive: BTreeSet<u64>,
}

/// A stretch of one mode.
pub(crate) type Stretch = (Extent, bool);

impl OwnerRanges {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = Stretch> {
        self.ranges.iter().map(|(start, (end, exclusive))| (Extent::new(*start, *end), *exclusive))
    }

    /// Sets the bytes of `extent` to `exclusive` (`None`: unlocked). Answers what was taken out and what was put in.
    pub fn set(&mut self, extent: Extent, exclusive: Option<bool>) -> (Vec<Stretch>, Vec<Stretch>) {
        let (removed, added) = self.change(extent, exclusive);
        for (e, _) in &removed {
            self.ranges.remove(&e.start);
            self.exclusive.remove(&e.start);
        }
        for (e, mode) in &added {
            self.ranges.insert(e.start, (e.end, *mode));
            if *mode {
                self.exclusive.insert(e.start);
            }
        }
        (removed, added)
    }

    /// Whether a range stands against another owner's request. O(log n): of ranges that are apart, the last that starts before an end
    /// reaches farthest.
    pub fn stands_against(&self, extent: Extent, exclusive: bool) -> bool {
        let last = if exclusive {
            self.ranges.range(..extent.end).next_back()
        } else {
            let start = self.exclusive.range(..extent.end).next_back();
            start.and_then(|start| self.ranges.get_key_value(start))
        };
        last.is_some_and(|(_, (end, _))| *end > extent.start)
    }

    /// By how many ranges [`OwnerRanges::set`] would grow: an unlock in the middle of a range leaves two.
    pub fn growth(&self, extent: Extent, exclusive: Option<bool>) -> isize {
        let (removed, added) = self.change(extent, exclusive);
        added.len() as isize - removed.len() as isize
    }

    /// What is to be taken out and what is to be put in.
    fn change(&self, extent: Extent, exclusive: Option<bool>) -> (Vec<Stretch>, Vec<Stretch>) {
        let removed = self.touching(extent);
        let mut added: Vec<Stretch> = Vec::new();
        let mut joined = extent;
        for (e, mode) in &removed {
            if exclusive == Some(*mode) {
                joined = joined.hull(e);
                continue;
            }
            if e.start < extent.start {
                added.push((Extent::new(e.start, e.end.min(extent.start)), *mode));
            }
            if e.end > extent.end {
                added.push((Extent::new(e.start.max(extent.end), e.end), *mode));
            }
        }
        if let Some(mode) = exclusive {
            added.push((joined, mode));
        }
        (removed, added)
    }

    /// Ranges that overlap or touch `extent`.
    fn touching(&self, extent: Extent) -> Vec<Stretch> {
        let first = self.ranges.range(..extent.start).next_back().filter(|(_, (end, _))| *end >= extent.start);
        let from = first.map_or(extent.start, |(start, _)| *start);
        let near = self.ranges.range(from..=extent.end);
        near.map(|(start, (end, mode))| (Extent::new(*start, *end), *mode)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn ranges_of_an_owner_are_what_a_byte_map_says(ops in prop::collection::vec((0u64..40, 1u64..20, 0u8..3), 1..60)) {
            let mut ranges = OwnerRanges::default();
            let mut bytes = [None; 64];
            for (start, len, mode) in ops {
                let mode = [None, Some(false), Some(true)][usize::from(mode)];
                let before: Vec<Stretch> = ranges.iter().collect();
                let (removed, added) = ranges.set(Extent::at(start, len), mode);
                bytes[start as usize..(start + len) as usize].fill(mode);
                let now: Vec<Stretch> = ranges.iter().collect();
                prop_assert!(removed.iter().all(|r| before.contains(r)) && added.iter().all(|a| now.contains(a)));
                let mut shown = [None; 64];
                for (e, exclusive) in &now {
                    prop_assert!(!e.is_empty());
                    for b in e.start..e.end {
                        prop_assert_eq!(shown[b as usize], None, "ranges overlap");
                        shown[b as usize] = Some(*exclusive);
                    }
                }
                prop_assert_eq!(shown, bytes);
                for at in 0..64 {
                    let near = &bytes[at..(at + 3).min(64)];
                    let asked = Extent::new(at as u64, at as u64 + near.len() as u64);
                    prop_assert_eq!(ranges.stands_against(asked, true), near.iter().any(Option::is_some));
                    prop_assert_eq!(ranges.stands_against(asked, false), near.contains(&Some(true)));
                }
                for pair in now.windows(2) {
                    prop_assert!(pair[0].0.end < pair[1].0.start || pair[0].1 != pair[1].1, "equal neighbours not joined");
                }
            }
        }
    }
}
