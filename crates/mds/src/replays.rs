//! How far each client's replays are on stable storage, while those of different clients come in no common order.
//!
//! Ordinary transactions are committed in the order of their numbers, so one number tells everybody what a restart cannot take
//! back. Replays keep the numbers of the boot before and come as their clients send them: what is committed of one client
//! says nothing of another one's. A client's own come in order, one at a time. So until the last one is in, each client is told how far
//! its own are committed, and the store's number stays where that boot left it. After another restart the answers that are
//! remembered say the same: the highest transaction among a client's is the last of its that was committed.
use std::collections::BTreeMap;

use types::{ClientId, Transno};

use crate::mds::Mds;

/// Of one client: its last replay that was carried out, that is in the commit under way, that is on stable storage.
#[derive(Clone, Copy, Default)]
struct Mark {
    applied: u64,
    committing: u64,
    committed: u64,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Replays(BTreeMap<ClientId, Mark>);

impl Replays {
    /// As a store has it after a restart: clients, and the last transaction of each that it remembers.
    pub fn new(committed: impl Iterator<Item = (ClientId, u64)>) -> Replays {
        Replays(committed.map(|(c, t)| (c, Mark { applied: t, committing: t, committed: t })).collect())
    }
    /// A client's replay was carried out.
    pub fn applied(&mut self, client: ClientId, transno: u64) {
        let mark = self.0.entry(client).or_default();
        mark.applied = mark.applied.max(transno);
    }
    /// What was carried out so far is being committed.
    pub fn begin_commit(&mut self) {
        self.0.values_mut().for_each(|m| m.committing = m.applied);
    }
    /// It is on stable storage.
    pub fn end_commit(&mut self) {
        self.0.values_mut().for_each(|m| m.committed = m.committing);
    }
    /// Every transaction of a client up to here is on stable storage; 0: nothing is known of it.
    pub fn committed(&self, client: ClientId) -> u64 {
        self.0.get(&client).map_or(0, |m| m.committed)
    }
}

impl Mds {
    /// Whether a server of before this start can have given out a number: those of transactions, opens and locks begin with the number
    /// of the start in their upper bits.
    pub(crate) fn is_of_earlier_start(&self, number: u64) -> bool {
        number >> 40 < self.boot
    }
    /// Whether a request may be a replay under this number; 0: what a client has is told again.
    pub(crate) fn may_be_replayed(&self, transno: Transno) -> bool {
        // What is numbered from here on must be above it, and FIDs are made of the lower half.
        transno.0 == 0 || transno.0 as u32 != 0 && self.is_of_earlier_start(transno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_client_replayed_says_nothing_of_another_one() {
        let (a, b) = (ClientId(1), ClientId(2));
        let mut replays = Replays::new([(a, 3)].into_iter());
        replays.applied(b, 9);
        replays.begin_commit();
        replays.applied(a, 7);
        replays.end_commit();
        assert_eq!((replays.committed(a), replays.committed(b)), (3, 9), "7 came behind the commit");
        replays.begin_commit();
        replays.end_commit();
        assert_eq!(replays.committed(a), 7);
    }
}
