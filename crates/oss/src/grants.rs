//! Grants: space promised to clients for writes that they have not sent yet.
//!
//! The sum of all grants never exceeds what is free and set aside, less a reserve; so a write that uses its grant
//! cannot fail for lack of space, and a client without grant learns of a full target at once.
use std::collections::{BTreeMap, VecDeque};

use types::{ClientId, MIB, Xid};

use crate::store::Space;

/// Below this much room per client no more grant is given: the rest is for writes without grant.
const ROOM_MIN: u64 = MIB;

#[derive(Default)]
pub(crate) struct Grants {
    clients: BTreeMap<ClientId, u64>,
    total: u64,
    /// What clients may have that have not come back after a restart: set aside for them.
    missing: BTreeMap<ClientId, u64>,
    /// Bytes of grant that came with writes and that the client's book does not have: a restarted target did not promise anew what
    /// dirty pages had taken. In the client's own book they count against what it is given next, and so they do here.
    owed: BTreeMap<ClientId, u64>,
    /// Bytes of what a target's last server had promised that could not be promised anew: programs were answered on the strength of it.
    lost: BTreeMap<ClientId, u64>,
    /// The latest requests with which clients gave some back.
    returned: BTreeMap<ClientId, VecDeque<Xid>>,
}

/// Grant that a write brought along.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Used {
    /// Bytes of it that were promised: their space is there.
    pub backed: u64,
    /// Bytes of it that are not in the book: the target's last server had promised them, and this one could not, or nobody had.
    owed: u64,
    /// Those among them that are known to have been promised by the last server.
    lost: u64,
}

impl Used {
    /// Bytes of it that somebody promised, whether their space is there or not. What the client only says is none of it.
    pub fn promised(&self) -> u64 {
        self.backed + self.lost
    }
}

/// Requests of one client that are remembered: far more than it has under way.
const RETURNED_MAX: usize = 32;

impl Grants {
    /// Bytes granted to all clients, those among them that have not come back after a restart.
    pub fn total(&self) -> u64 {
        self.total + self.missing.values().sum::<u64>()
    }
    /// Service begins without these clients, which may have so many bytes each.
    pub fn set_aside(&mut self, missing: impl Iterator<Item = (ClientId, u64)>) {
        self.missing = missing.collect();
    }
    /// Bytes granted to one client.
    pub fn of(&self, client: ClientId) -> u64 {
        self.clients.get(&client).copied().unwrap_or(0)
    }
    /// Bytes that neither the reserve, a write under way nor a grant holds. The reserve is kept of what is free; what
    /// is granted must be set aside already, or a write that uses it could fail.
    pub fn available(&self, space: &Space, reserve: u64, in_flight: u64) -> u64 {
        let set_aside = space.ready.saturating_sub(in_flight);
        let free = space.free.saturating_sub(reserve).saturating_sub(in_flight);
        set_aside.min(free).saturating_sub(self.total())
    }
    /// Takes back what a write used; never more than the client has. Answers what that was.
    pub fn consume(&mut self, client: ClientId, used: u64) -> Used {
        let Some(have) = self.clients.get_mut(&client) else { return Used::default() };
        let backed = used.min(*have);
        if types::planted!("grant-leaked") {
            return Used { backed, ..Used::default() };
        }
        *have -= backed;
        self.total -= backed;
        let owed = used - backed;
        if owed > 0 {
            let all = self.owed.entry(client).or_default();
            *all = all.saturating_add(owed);
        }
        let lost = owed.min(self.lost.get(&client).copied().unwrap_or(0));
        self.find_lost(client, lost);
        Used { backed, owed, lost }
    }
    /// So much of what a client had been promised before is used up.
    fn find_lost(&mut self, client: ClientId, bytes: u64) {
        let Some(lost) = self.lost.get_mut(&client) else { return };
        *lost -= bytes;
        if *lost == 0 {
            self.lost.remove(&client);
        }
    }
    /// A client gives some back. Its request may come again over another connection.
    pub fn take_back(&mut self, client: ClientId, request: Xid, bytes: u64) {
        let returned = self.returned.entry(client).or_default();
        if returned.contains(&request) {
            return;
        }
        if returned.len() == RETURNED_MAX {
            returned.pop_front();
        }
        returned.push_back(request);
        self.consume(client, bytes);
    }
    /// Whether there is a book for the client.
    pub fn knows(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }
    /// Gives back what a write had taken that was not carried out, unless the client is gone.
    pub fn give_back(&mut self, client: ClientId, used: Used) {
        if let Some(have) = self.clients.get_mut(&client) {
            *have += used.backed;
            self.total += used.backed;
            if used.lost > 0 {
                *self.lost.entry(client).or_default() += used.lost;
            }
        }
        self.pay(client, used.owed);
    }
    /// A client owes less by `bytes`, if it owes so much; by how much.
    fn pay(&mut self, client: ClientId, bytes: u64) -> u64 {
        let Some(owed) = self.owed.get_mut(&client) else { return 0 };
        let paid = bytes.min(*owed);
        *owed -= paid;
        if *owed == 0 {
            self.owed.remove(&client);
        }
        paid
    }
    /// Gives `client` more, up to `wanted` in all and at most half of what is left. Answers the addition.
    pub fn extend(&mut self, client: ClientId, wanted: u64, max: u64, available: u64) -> u64 {
        let clients = self.clients.len() as u64 + 1;
        let have = self.of(client);
        let room = if available < ROOM_MIN.saturating_mul(clients) { 0 } else { available / 2 };
        let more = wanted.min(max).saturating_sub(have).min(room) & !4095;
        let paid = self.pay(client, more);
        *self.clients.entry(client).or_default() += more - paid;
        self.total += more - paid;
        more
    }
    /// Promises `client` anew what the target's last server had promised it, as far as it is free: neither the reserve nor
    /// what is set aside by now counts, for what was written on the promise must find its space.
    pub fn restore(&mut self, client: ClientId, promised: u64, free: u64) {
        self.missing.remove(&client);
        self.owed.remove(&client);
        let more = promised.saturating_sub(self.of(client)).min(free.saturating_sub(self.total())) & !4095;
        *self.clients.entry(client).or_default() += more;
        self.total += more;
        self.lost.remove(&client);
        let lost = promised.saturating_sub(self.of(client));
        if lost > 0 {
            self.lost.insert(client, lost);
        }
    }
    /// A client is gone.
    pub fn forget(&mut self, client: ClientId) {
        self.total -= self.clients.remove(&client).unwrap_or(0);
        self.missing.remove(&client);
        self.owed.remove(&client);
        self.lost.remove(&client);
        self.returned.remove(&client);
    }
    /// Everyone with what they hold.
    pub fn iter(&self) -> impl Iterator<Item = (ClientId, u64)> + '_ {
        self.clients.iter().map(|(c, g)| (*c, *g))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Rng;

    #[test]
    fn what_is_given_back_counts_once_however_often_the_request_comes() {
        let (a, b, mut g) = (ClientId(1), ClientId(2), Grants::default());
        g.extend(a, 10_000, 10_000, 1 << 30);
        g.extend(b, 10_000, 10_000, 1 << 30);
        for request in [5, 5, 6, 5, 6] {
            g.take_back(a, Xid(request), 1000);
        }
        g.take_back(b, Xid(5), 1000);
        assert_eq!((g.of(a), g.of(b), g.total()), (8192 - 2000, 8192 - 1000, 2 * 8192 - 3000));
        (100..200).for_each(|x| g.take_back(b, Xid(x), 1));
        assert_eq!((g.of(b), g.returned[&b].len()), (8192 - 1100, RETURNED_MAX));
        g.forget(b);
        assert!(!g.returned.contains_key(&b));
    }

    #[test]
    fn what_a_restarted_target_could_not_promise_counts_against_what_it_gives_next() {
        const PAGE: u64 = 4096;
        for (free, waits) in [(0, 5), (2 * PAGE, 5), (2 * PAGE, 1), (9 * PAGE, 5)] {
            let (client, mut g) = (ClientId(1), Grants::default());
            // The client's own book: what it is given, less what its dirty pages took.
            g.restore(client, 8 * PAGE, free);
            let mut own = g.of(client) as i64 - 5 * PAGE as i64;
            let failed = g.consume(client, PAGE);
            g.give_back(client, failed);
            for write in 0..5 {
                g.consume(client, PAGE);
                if write + 1 >= waits {
                    own += g.extend(client, 64 * MIB, 64 * MIB, 1 << 30) as i64;
                }
            }
            assert_eq!(g.of(client) as i64, own, "{free} free");
            assert_eq!(g.total(), g.of(client));
            // A second restart: the client tells what it was given, and that its pages took it already.
            g.forget(client);
            g.restore(client, own as u64, 0);
            g.consume(client, 3 * PAGE);
            let more = g.extend(client, 64 * MIB, 64 * MIB, 1 << 30);
            assert_eq!(g.of(client), more - 3 * PAGE, "three pages came without a promise");
        }
    }

    #[test]
    fn what_a_client_says_was_promised_only_as_far_as_it_was_by_this_server_or_the_last_one() {
        const PAGE: u64 = 4096;
        let (client, mut g) = (ClientId(1), Grants::default());
        g.extend(client, 2 * PAGE, 2 * PAGE, 1 << 30);
        assert_eq!(g.consume(client, 1).promised(), 1);
        assert_eq!(g.consume(client, 1 << 40).promised(), 2 * PAGE - 1, "what it has, and no more");
        // A restart without room: five of eight pages are promised anew.
        g.forget(client);
        g.restore(client, 8 * PAGE, 5 * PAGE);
        let first = g.consume(client, 6 * PAGE);
        assert_eq!((first.backed, first.promised()), (5 * PAGE, 6 * PAGE));
        g.give_back(client, first);
        assert_eq!(g.consume(client, 6 * PAGE), first, "it was not carried out, and comes again");
        assert_eq!(g.consume(client, 6 * PAGE).promised(), 2 * PAGE, "that was all");
        assert_eq!((g.consume(client, PAGE).promised(), g.lost.len()), (0, 0));
    }

    #[test]
    fn a_large_medium_of_which_little_is_set_aside_yet_grants_what_is_set_aside() {
        let space = Space { total: 1 << 40, free: 1 << 40, ready: 64 * MIB, ..Space::default() };
        let mut g = Grants::default();
        let available = g.available(&space, (1 << 40) / 200, 8 * MIB);
        assert_eq!(available, 56 * MIB);
        assert_eq!(g.extend(ClientId(1), 16 * MIB, 32 * MIB, available), 16 * MIB);
        assert_eq!(g.available(&Space { free: 5 << 30, ..space }, 6 << 30, 0), 0, "the reserve is for others");
    }

    #[test]
    fn grants_never_promise_more_than_is_free() {
        let mut rng = Rng::new(5);
        let (mut g, mut free) = (Grants::default(), 512 * MIB);
        for _ in 0..20_000 {
            let client = ClientId(1 + rng.below(9));
            let space = Space { ready: free, free, ..Space::default() };
            match rng.below(10) {
                0..5 => {
                    let available = g.available(&space, 2 * MIB, 0);
                    let more = g.extend(client, rng.below(64 * MIB), 32 * MIB, available);
                    assert!(more <= available && more % 4096 == 0);
                    assert!(g.of(client) <= 32 * MIB);
                }
                5..8 => {
                    let used = g.consume(client, rng.below(4 * MIB)).backed;
                    assert!(free >= used, "a granted write finds no room");
                    free -= used;
                }
                8 => free = (free + rng.below(64 * MIB)).min(512 * MIB),
                _ => g.forget(client),
            }
            assert_eq!(g.total(), g.iter().map(|(_, b)| b).sum::<u64>());
            assert!(g.total() <= free);
        }
    }
}
