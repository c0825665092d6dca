//! Promises of cuts: which objects clients are about to cut together with other OSTs' objects of the same file.
//!
//! A client promises the cut of each object under its write lock, lets the metadata server decide, and carries the cuts out.
//! A promise ends with the cut, with the lock under which it was made, or when the client takes it back. If the client's
//! session ends first the object is in doubt: nobody is given a lock on it until the metadata server has said
//! whether the cut was decided (`ost/cuts.rs`, `docs/internals/sizes.md`). Promises are in memory only.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rt::sync::Event;
use types::{ClientId, FsError, ObjectId};

/// Promises of one target at a time; 64 bytes each.
const PROMISES_MAX: usize = 1 << 16;

/// One promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Promise {
    /// Whose.
    pub client: ClientId,
    /// The client's number for the cut.
    pub number: u64,
    /// The object's size after it.
    pub size: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    promise: Promise,
    /// Its client is gone.
    in_doubt: bool,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Promises {
    entries: RefCell<BTreeMap<ObjectId, Entry>>,
    ended: Rc<Event>,
}

impl Promises {
    /// A client promises a cut, under a lock that keeps everybody else from making one for the object.
    ///
    /// # Errors
    /// `Overloaded` when there are too many.
    pub fn make(&self, object: ObjectId, promise: Promise) -> Result<(), FsError> {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= PROMISES_MAX && !entries.contains_key(&object) {
            return Err(FsError::Overloaded);
        }
        // One that is in doubt stands until it is settled: its object cannot be locked meanwhile.
        if entries.get(&object).is_some_and(|e| e.in_doubt) {
            return Err(FsError::Stale);
        }
        entries.insert(object, Entry { promise, in_doubt: false });
        Ok(())
    }
    /// The promise about an object.
    pub fn get(&self, object: ObjectId) -> Option<Promise> {
        self.entries.borrow().get(&object).map(|e| e.promise)
    }
    /// Objects that a client with a session promised to cut.
    pub fn of_client(&self, client: ClientId) -> Vec<(ObjectId, Promise)> {
        let entries = self.entries.borrow();
        let own = entries.iter().filter(|(_, e)| e.promise.client == client && !e.in_doubt);
        own.map(|(object, e)| (*object, e.promise)).collect()
    }
    /// A promise is over.
    pub fn end(&self, object: ObjectId, promise: &Promise) {
        let mut entries = self.entries.borrow_mut();
        if entries.get(&object).is_some_and(|e| e.promise == *promise) {
            entries.remove(&object);
            self.ended.notify();
        }
    }
    /// The client's session is over: what it promised is in doubt from now on. Answers that.
    pub fn on_gone(&self, client: ClientId) -> Vec<(ObjectId, Promise)> {
        let own = self.of_client(client);
        let mut entries = self.entries.borrow_mut();
        for (object, _) in &own {
            if let Some(e) = entries.get_mut(object) {
                e.in_doubt = true;
            }
        }
        own
    }
    /// Whether its client is gone and the metadata server has not said what becomes of it.
    pub fn is_in_doubt(&self, object: ObjectId) -> bool {
        self.entries.borrow().get(&object).is_some_and(|e| e.in_doubt)
    }
    /// Waits until nobody doubts how the object is.
    pub async fn settled(&self, object: ObjectId) {
        while self.is_in_doubt(object) {
            self.ended.wait().await;
        }
    }
    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use types::Fid;

    use super::*;

    #[test]
    fn a_promise_ends_once_and_only_itself() {
        let promises = Promises::default();
        let (one, other) = (ObjectId(Fid::new(1, 1)), ObjectId(Fid::new(1, 2)));
        let first = Promise { client: ClientId(7), number: 1, size: 0 };
        let second = Promise { number: 2, ..first };
        assert_eq!(promises.make(one, first), Ok(()));
        assert_eq!(promises.make(one, second), Ok(()), "a later one takes its place");
        promises.end(one, &first);
        assert_eq!(promises.get(one), Some(second));
        assert_eq!(promises.make(other, Promise { client: ClientId(8), ..first }), Ok(()));
        assert_eq!(promises.on_gone(ClientId(7)), [(one, second)]);
        assert_eq!(promises.on_gone(ClientId(7)), [], "in doubt already");
        assert_eq!(promises.make(one, first), Err(FsError::Stale), "not while it is in doubt");
        promises.end(one, &second);
        assert_eq!((promises.get(one), promises.len()), (None, 1));
    }
}
