//! Which session may make objects and remove those that no file knows: that of the server that opened the metadata store last, and of its
//! sessions the one that was opened last, among those that did.
//!
//! A metadata server that starts takes a new identity, and counts as used whatever its store says. What an earlier life of it, or another
//! server that it follows, had asked for may reach an OST late (one of them stood still, or was cut off), also over a session that was opened
//! since, and would remove objects of files made since.
//!
//! So may what the same session asked for over an earlier connection, and has asked for anew since: requests of a session count in the
//! order in which they were made.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use types::{ClientId, Xid};

/// See the module's head.
#[derive(Default)]
pub(super) struct Creators {
    /// Sessions in the order in which they were opened.
    opened: RefCell<BTreeMap<ClientId, u64>>,
    next: Cell<u64>,
    /// The epoch of the metadata store as it was said last (0: never), the place in that order of the session that asked last, and its
    /// request.
    latest: Cell<(u64, u64, Xid)>,
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
        let (_, latest, _) = self.latest.get();
        self.opened.borrow().iter().find(|(_, place)| **place == latest).map(|(client, _)| *client)
    }
    /// Whether a request of a session counts: none of a later epoch has come so far, nor of the same one from a session that was opened
    /// later, nor a later one of the same session. Asked directly before the request is carried out. A server of before epochs says none
    /// (0): for it the order of sessions decides.
    pub fn admits(&self, client: ClientId, epoch: u64, xid: Xid) -> bool {
        let latest = self.latest.get();
        let epoch = if epoch == 0 || types::planted!("epoch-ignored") { latest.0 } else { epoch };
        let asked = self.opened.borrow().get(&client).map(|place| (epoch, *place, xid));
        let admitted = asked.filter(|asked| *asked >= latest);
        self.latest.set(admitted.unwrap_or(latest));
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
        assert!(c.admits(old, 4, Xid(9)));
        c.on_opened(new);
        assert!(c.admits(new, 5, Xid(1)) && !c.admits(old, 4, Xid(10)));
        c.on_closed(old);
        c.on_opened(again);
        assert!(!c.admits(again, 4, Xid(1)), "its session is the latest, its epoch is not");
        assert!(c.admits(new, 5, Xid(2)) && c.latest() == Some(new));
        c.on_closed(new);
        assert_eq!(c.latest(), None);
        c.on_opened(new);
        assert!(c.admits(new, 5, Xid(1)), "the same server, anew");
    }

    #[test]
    fn what_a_session_asked_for_before_its_last_request_does_not_count_and_the_last_one_sent_again_does() {
        let (server, c) = (ClientId(1), Creators::default());
        c.on_opened(server);
        assert!(c.admits(server, 4, Xid(8)) && !c.admits(server, 4, Xid(7)));
        assert!(c.admits(server, 4, Xid(8)) && c.admits(server, 4, Xid(9)));
    }

    #[test]
    fn a_server_that_says_no_epoch_is_admitted_by_its_session_whatever_was_said_before() {
        let (new, before) = (ClientId(1), ClientId(2));
        let c = Creators::default();
        c.on_opened(new);
        assert!(c.admits(new, 5, Xid(1)));
        c.on_opened(before);
        assert!(c.admits(before, 0, Xid(1)) && !c.admits(new, 5, Xid(2)));
        c.on_opened(ClientId(3));
        assert!(!c.admits(ClientId(3), 4, Xid(1)), "one of a lower epoch is refused as ever");
    }
}
