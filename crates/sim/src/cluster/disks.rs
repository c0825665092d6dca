//! Which disks of servers fail, or did so before: what was answered and not synced counts where no disk below it has failed since.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use types::Fid;

use super::nodes::NodeId;

/// Servers with disks: the metadata server, OSTs, and those that are added.
const SERVERS_MAX: usize = 8;

/// Beginnings and ends of failures of each server's disk so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Default)]
pub struct Failures([u32; SERVERS_MAX]);

impl Failures {
    /// No disk has failed.
    pub const NONE: Failures = Failures([0; SERVERS_MAX]);
    /// Whether the disks of some servers failed as often as that.
    fn are_as(self, other: Failures, of: Servers) -> bool {
        (0..SERVERS_MAX).all(|i| self.0[i] == other.0[i] || !of.has(i))
    }
}

/// Some servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Servers(u8);

impl Servers {
    /// All of them.
    pub const ALL: Servers = Servers(u8::MAX);
    /// None.
    pub const NONE: Servers = Servers(0);
    /// These and an OST.
    #[must_use]
    pub fn and_ost(self, index: usize) -> Servers {
        Servers(self.0 | 1 << place(NodeId::Oss(index)))
    }
    const fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }
}

/// A server's place among all.
fn place(id: NodeId) -> usize {
    match id {
        NodeId::Oss(i) if i + 1 < SERVERS_MAX => i + 1,
        NodeId::Mds => 0,
        other => panic!("{other} has no disk that fails"),
    }
}

/// The disks of a run, and which of them have what files.
#[derive(Default)]
pub struct Disks {
    changes: Cell<Failures>,
    failing: Cell<[u32; SERVERS_MAX]>,
    /// Servers that hold the bytes of a file that stays where it is.
    places: RefCell<BTreeMap<Fid, Servers>>,
}

impl Disks {
    /// A server's disk fails from now on.
    pub fn fails(&self, id: NodeId) {
        self.change(id, |failing| failing + 1);
    }
    /// It works again.
    pub fn works(&self, id: NodeId) {
        self.change(id, |failing| failing - 1);
    }
    fn change(&self, id: NodeId, to: impl Fn(u32) -> u32) {
        let (mut changes, mut failing) = (self.changes.get(), self.failing.get());
        changes.0[place(id)] += 1;
        failing[place(id)] = to(failing[place(id)]);
        self.changes.set(changes);
        self.failing.set(failing);
    }
    /// Failures so far.
    pub fn failures(&self) -> Failures {
        self.changes.get()
    }
    /// Whether any disk fails now.
    pub fn some_fail(&self) -> bool {
        self.failing.get() != [0; SERVERS_MAX]
    }
    /// The bytes of a file are on these servers from now on to the end.
    pub fn keep(&self, file: Fid, on: Servers) {
        self.places.borrow_mut().insert(file, on);
    }
    /// Whether no disk below a file (`None`: any) fails, or has done so since there were so many failures.
    pub fn are_well_since(&self, before: Failures, below: Option<Fid>) -> bool {
        let known = below.and_then(|file| self.places.borrow().get(&file).copied());
        let of = known.unwrap_or(Servers::ALL);
        let failing = self.failing.get();
        self.changes.get().are_as(before, of) && (0..SERVERS_MAX).all(|i| failing[i] == 0 || !of.has(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fails_counts_for_what_is_on_it() {
        let (disks, file) = (Disks::default(), Fid { seq: 7, oid: 1, ver: 0 });
        disks.keep(file, Servers::NONE.and_ost(1));
        let before = disks.failures();
        disks.fails(NodeId::Oss(0));
        disks.fails(NodeId::Mds);
        assert!(disks.are_well_since(before, Some(file)) && !disks.are_well_since(before, None));
        assert!(!disks.are_well_since(disks.failures(), Some(Fid { oid: 2, ..file })), "where it is nobody knows");
        disks.works(NodeId::Oss(0));
        disks.works(NodeId::Mds);
        assert!(disks.are_well_since(disks.failures(), None) && !disks.are_well_since(before, None));
        disks.fails(NodeId::Oss(1));
        assert!(!disks.are_well_since(before, Some(file)) && disks.some_fail());
    }
}
