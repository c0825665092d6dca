//! Which session may make objects and remove those that no file knows: the one that was opened last among those that did.
//!
//! A metadata server that starts takes a new identity, and counts as used whatever its store says. What an earlier life of it
//! had asked for may reach an OST late (the OST stood still, or was cut off), and would remove objects of files made since.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use types::ClientId;

/// See the module's head.
#[derive(Default)]
pub(super) struct Creators {
    /// Sessions in the order in which they were opened.
    opened: RefCell<BTreeMap<ClientId, u64>>,
    next: Cell<u64>,
    /// The place in that order of the session that asked last.
    latest: Cell<u64>,
}

impl Creators {
    pub fn on_opened(&self, client: ClientId) {
        let place = self.next.get() + 1;
        self.next.set(place);
        self.opened.borrow_mut().entry(client).or_insert(place);
    }
    pub fn on_closed(&self, client: ClientId) {
        self.opened.borrow_mut().remove(&client);
    }
    /// The session that asked last; `None`: none did, or it is over.
    pub fn latest(&self) -> Option<ClientId> {
        let latest = self.latest.get();
        self.opened.borrow().iter().find(|(_, place)| **place == latest).map(|(client, _)| *client)
    }
    /// Whether what a session asks for counts: none that was opened later has asked so far.
    pub fn admits(&self, client: ClientId) -> bool {
        let place = self.opened.borrow().get(&client).copied();
        let admitted = place.filter(|p| *p >= self.latest.get());
        self.latest.set(admitted.unwrap_or(self.latest.get()));
        admitted.is_some()
    }
}
