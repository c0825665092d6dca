//! How far each client's replays are on stable storage, while those of different clients come in no common order.
//!
//! Ordinary transactions are committed in the order of their numbers, so one number tells everybody what a restart cannot take
//! back. Replays keep the numbers of the boot before and come as their clients send them: what is committed of one client
//! says nothing of another one's. A client's own come in order, one at a time. So until the last one is in, each client is told how far
//! its own are committed, and the store's number stays where that boot left it. After another restart the answers that are
//! remembered say the same: the highest transaction among a client's is the last of its that was committed.
use std::collections::BTreeMap;

use types::ClientId;

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
