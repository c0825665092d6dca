//! How much of a write found space. An OST that is full refuses pages that took no grant; whoever is just writing them is
//! told, and nobody else: its write ends in front of the first of them, and what lies before that is its count.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use types::{Extent, FsError};

/// Where a write went, and how much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Its first byte in the file.
    pub at: u64,
    /// Bytes, fewer than asked for when there was no space for the rest.
    pub len: u64,
}

/// A write under way.
struct Watch {
    extent: Extent,
    /// Where the first byte that found no space lies.
    refused_at: Cell<u64>,
    /// Why: there was none, or its owner may not have more.
    why: Cell<FsError>,
}

/// The writes of an inode that are under way.
#[derive(Default)]
pub(crate) struct Watches(RefCell<Vec<Rc<Watch>>>);

/// One of them; over when it is dropped.
pub(crate) struct Watching(Rc<Watches>, Rc<Watch>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.0.borrow_mut().retain(|w| !Rc::ptr_eq(w, &self.1));
    }
}

impl Watching {
    /// No byte from `at` on found space.
    pub(crate) fn refuse(&self, at: u64, why: FsError) {
        self.1.refuse(at, why);
    }
    /// Why some byte found none.
    pub(crate) fn why(&self) -> FsError {
        self.1.why.get()
    }
    /// Whether some byte found no space.
    pub(crate) fn is_refused(&self) -> bool {
        self.1.refused_at.get() < self.1.extent.end
    }
    /// How many bytes found space, from the first one on.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT: none.
    pub(crate) fn outcome(&self) -> Result<u64, FsError> {
        let Watch { extent, refused_at, why } = &*self.1;
        let len = refused_at.get().min(extent.end).saturating_sub(extent.start);
        if len == 0 && !extent.is_empty() { Err(why.get()) } else { Ok(len) }
    }
}

impl Watch {
    fn refuse(&self, at: u64, why: FsError) {
        if at < self.refused_at.get() {
            self.refused_at.set(at);
            self.why.set(why);
        }
    }
}

impl Watches {
    /// Writes under way.
    pub(crate) fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }
    /// A write of the range begins; what finds no space until its end counts for it.
    pub(crate) fn watch(self: &Rc<Self>, extent: Extent) -> Watching {
        let watch = Rc::new(Watch { extent, refused_at: Cell::new(u64::MAX), why: Cell::new(FsError::NoSpace) });
        self.0.borrow_mut().push(watch.clone());
        Watching(self.clone(), watch)
    }
    /// This range of the file found no space.
    pub(crate) fn on_refused(&self, lies: Extent, why: FsError) {
        let watches = self.0.borrow();
        watches.iter().filter(|w| w.extent.overlaps(&lies)).for_each(|w| w.refuse(lies.start.max(w.extent.start), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_ends_in_front_of_its_first_byte_without_space() {
        let watches = Rc::new(Watches::default());
        let (one, other) = (watches.watch(Extent::new(100, 9000)), watches.watch(Extent::new(9000, 9001)));
        assert_eq!((one.outcome(), other.outcome()), (Ok(8900), Ok(1)));
        watches.on_refused(Extent::at(9000, 4096), FsError::Quota);
        assert_eq!((one.outcome(), other.outcome()), (Ok(8900), Err(FsError::Quota)), "only who writes there is told");
        one.refuse(8192, FsError::NoSpace);
        one.refuse(8500, FsError::Quota);
        assert_eq!((one.outcome(), one.is_refused(), other.is_refused()), (Ok(8092), true, true));
        one.refuse(100, FsError::NoSpace);
        assert_eq!(one.outcome(), Err(FsError::NoSpace));
        drop((one, other));
        assert!(watches.0.borrow().is_empty());
    }
}
