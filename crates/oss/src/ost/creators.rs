//! Which session may make objects and remove those that no file knows: that of the server that opened the metadata store last, and of its
//! sessions the one that was opened last, among those that did.
//!
//! A metadata server that starts takes a new identity, and counts as used whatever its store says. What an earlier life of it, or another
//! server that it follows, had asked for may reach an OST late (one of them stood still, or was cut off), also over a session that was opened
//! since, and would remove objects of files made since.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use types::ClientId;

/// See the module's head.
#[derive(Default)]
pub(super) struct Creators {
    /// Sessions in the order in which they were opened.
    opened: RefCell<BTreeMap<ClientId, u64>>,
    next: Cell<u64>,
    /// The epoch of the metadata store as it was said last (0: never), and the place in that order of the session that asked last.
    latest: Cell<(u64, u64)>,
    /// The session that was refused last.
    refused: Cell<Option<ClientId>>,
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
        let (_, latest) = self.latest.get();
        self.opened.borrow().iter().find(|(_, place)| **place == latest).map(|(client, _)| *client)
    }
    /// Whether what a session asks for counts: none of a later epoch has asked so far, nor of the same one that was opened later.
    pub fn admits(&self, client: ClientId, epoch: u64) -> bool {
        let epoch = if types::planted!("epoch-ignored") { 0 } else { epoch };
        let place = self.opened.borrow().get(&client).map(|place| (epoch, *place));
        let admitted = place.filter(|p| *p >= self.latest.get());
        self.latest.set(admitted.unwrap_or(self.latest.get()));
        admitted.is_some()
    }
    /// Whether it has not been said yet that this session is refused.
    pub fn is_news(&self, client: ClientId) -> bool {
        self.refused.replace(Some(client)) != Some(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_replaced_is_refused_over_whatever_session_and_the_one_that_follows_it_is_not() {
        let (old, new, again) = (ClientId(1), ClientId(2), ClientId(3));
        let c = Creators::default();
        c.on_opened(old);
        assert!(c.admits(old, 4));
        c.on_opened(new);
        assert!(c.admits(new, 5) && !c.admits(old, 4));
        c.on_closed(old);
        c.on_opened(again);
        assert!(!c.admits(again, 4), "its session is the latest, its epoch is not");
        assert!(c.admits(new, 5) && c.latest() == Some(new));
        c.on_closed(new);
        assert_eq!(c.latest(), None);
        c.on_opened(new);
        assert!(c.admits(new, 5), "the same server, anew");
    }
}
