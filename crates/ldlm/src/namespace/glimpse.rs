//! Glimpse: who may know more about an object's size and times than the server does.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use types::{ClientId, Extent, HandleId};

use super::Namespace;
use crate::LockMode;
use crate::lock::{Action, LockDesc, ResourceId};
use crate::resource::Index;

const WRITERS: u8 = LockMode::Ex as u8 | LockMode::Pw as u8 | LockMode::Cw as u8 | LockMode::Group as u8;

impl Namespace {
    /// Sends one glimpse callback to each other client that may write at or past `known_size` (0: anywhere, when
    /// times matter too), naming its lock with the highest end. Answers how many were sent; 0 means that what the
    /// server knows is true. Cost: O(log n + write locks in that range).
    pub fn glimpse(&mut self, asker: ClientId, resource: ResourceId, known_size: u64, out: &mut Vec<Action>) -> u32 {
        let Some(Index::Extent(locks)) = self.resources.get(&resource).map(|r| &r.index) else { return 0 };
        let mut best: BTreeMap<ClientId, (u64, HandleId)> = BTreeMap::new();
        let from = Extent::from(known_size.min(u64::MAX - 1));
        for (_, index) in locks.granted.of(WRITERS) {
            index.visit(from, &mut |e| {
                if let Some(lock) = self.locks.get(&HandleId(e.seq)) {
                    let slot = best.entry(lock.party.client).or_insert((0, HandleId(e.seq)));
                    *slot = (*slot).max((e.extent.end, HandleId(e.seq)));
                }
                true
            });
        }
        best.retain(|client, _| *client != asker && !Self::is_local(*client));
        let asked = best.len() as u32;
        let lock_of = |(client, (_, handle)): (ClientId, (u64, HandleId))| {
            self.locks.get(&handle).map(|l| Action::SendGlimpse { client, lock: l.desc })
        };
        out.extend(best.into_iter().filter_map(lock_of));
        self.stats.glimpses += u64::from(asked);
        asked
    }

    /// The farthest write lock of a client on a resource that is none of `but`: whom to ask next when the client had given
    /// the one that it was asked for back.
    #[must_use]
    pub fn write_lock_of(&self, client: ClientId, resource: ResourceId, but: &[HandleId]) -> Option<LockDesc> {
        let Some(Index::Extent(locks)) = self.resources.get(&resource).map(|r| &r.index) else { return None };
        let mut best: Option<(u64, HandleId)> = None;
        for (_, index) in locks.granted.of(WRITERS) {
            index.visit(Extent::ALL, &mut |e| {
                let handle = HandleId(e.seq);
                let theirs = self.locks.get(&handle).is_some_and(|l| l.party.client == client);
                if theirs && !but.contains(&handle) {
                    best = best.max(Some((e.extent.end, handle)));
                }
                true
            });
        }
        best.and_then(|(_, handle)| self.locks.get(&handle)).map(|l| l.desc)
    }
}
