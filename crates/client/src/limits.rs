//! How much of the namespace a client remembers: inodes, names, the entries of directories that it knows whole.
//!
//! An inode stays while a program has it open, a request uses it, a kernel in front remembers it, unwritten data belong
//! to it, or a lock on it is held. Locks have a limit of their own; whatever else brings inodes in (a kernel that walks a
//! large tree), their number comes back to `inodes_max`: the least recently used ones that nothing needs leave with their
//! locks, those of the metadata server and those of their objects. Where only a kernel remembers them it is asked to give
//! them up first, if it can be asked (before ABI 7.45 it cannot: then its own memory is the limit).
//!
//! A pass looks at every inode, so one begins for each [`STEP_PART`]th of the limit that came in since the last.
use std::cell::Cell;
use std::rc::Rc;

/// Passes make room for this part of the limit.
const STEP_PART: usize = 8;
/// Names remembered per inode that may be remembered, there or known not to be there.
const NAMES_PER_INODE: usize = 2;

/// What is counted of the namespace.
pub(crate) struct Limits {
    inodes_max: Cell<usize>,
    /// Inodes that came in since the last pass.
    came: Cell<usize>,
    /// Grows with every use of an inode.
    uses: Cell<u64>,
    /// Entries of all directories that are known whole.
    pub(crate) children: Rc<Cell<usize>>,
    /// Inodes that left because there were too many, since the start.
    reclaimed: Cell<u64>,
}

impl Limits {
    pub(crate) fn new(inodes_max: usize) -> Limits {
        let inodes_max = inodes_max.max(1);
        let (inodes_max, uses) = (Cell::new(inodes_max), Cell::new(0));
        Limits { inodes_max, came: Cell::new(0), uses, children: Rc::default(), reclaimed: Cell::new(0) }
    }
    pub(crate) fn inodes_max(&self) -> usize {
        self.inodes_max.get()
    }
    pub(crate) fn set_inodes_max(&self, max: usize) {
        self.inodes_max.set(max.max(1));
    }
    /// Inodes that leave in one pass, at least.
    pub(crate) fn step(&self) -> usize {
        self.inodes_max.get().div_ceil(STEP_PART)
    }
    /// Names remembered, there or known not to be there; as many entries of directories.
    pub(crate) fn names_max(&self) -> usize {
        self.inodes_max.get().saturating_mul(NAMES_PER_INODE)
    }
    /// Whether one more entry of a directory may be remembered.
    pub(crate) fn has_room_for_child(&self) -> bool {
        self.children.get() < self.names_max()
    }
    /// The number of a use of an inode.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }
    /// An inode came in, the last of `inodes`. Whether a pass is due.
    pub(crate) fn on_inode(&self, inodes: usize) -> bool {
        self.came.set(self.came.get() + 1);
        let due = inodes > self.inodes_max.get() && self.came.get() >= self.step();
        if due {
            self.came.set(0);
        }
        due
    }
    /// One left because there were too many.
    pub(crate) fn on_reclaimed(&self) {
        self.reclaimed.set(self.reclaimed.get() + 1);
    }
    /// Inodes that left because there were too many, since the start.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_due_once_for_each_part_of_the_limit_that_came_in_beyond_it() {
        let limits = Limits::new(80);
        let due = |range: std::ops::RangeInclusive<usize>| {
            range.filter(|inodes| limits.on_inode(*inodes)).collect::<Vec<_>>()
        };
        assert_eq!(due(1..=80), [] as [usize; 0], "there is room");
        assert_eq!(due(81..=105), [81, 91, 101]);
        limits.set_inodes_max(0);
        assert_eq!((limits.inodes_max(), limits.step()), (1, 1));
    }

    #[test]
    fn entries_of_directories_have_room_for_two_names_an_inode() {
        let limits = Limits::new(2);
        limits.children.set(3);
        assert!(limits.has_room_for_child());
        limits.children.set(4);
        assert!(!limits.has_room_for_child());
    }
}
