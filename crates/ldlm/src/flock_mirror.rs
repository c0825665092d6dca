//! A client's own flock ranges: what it must replay when the server comes back without memory.
//!
//! Decides nothing; it repeats what the server granted. Ranges join and split exactly as on the server.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use types::{ClientId, Extent, Fid};

use crate::flock::{FlockKind, FlockMode, FlockRange, FlockRequest, OwnerRanges};

type Key = (Fid, FlockKind, u64);

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct FlockMirror {
    owners: BTreeMap<Key, (u32, OwnerRanges)>,
}

impl FlockMirror {
    /// An empty mirror.
    #[must_use]
    pub fn new() -> FlockMirror {
        FlockMirror::default()
    }

    /// The server granted this request (lock or unlock). In the order of the grants.
    pub fn on_granted(&mut self, req: &FlockRequest) {
        let mode = match req.mode {
            FlockMode::Shared => Some(false),
            FlockMode::Exclusive => Some(true),
            FlockMode::Unlock => None,
        };
        self.set((req.fid, req.kind, req.owner), req.pid, req.extent, mode);
    }

    /// This request may have been carried out, its answer is not known: what it gives up others may have by now. The conversion of a
    /// `flock` gives the whole lock up first, whether or not the other one can be had.
    pub fn on_giving_up(&mut self, req: &FlockRequest) {
        let key = (req.fid, req.kind, req.owner);
        if req.kind == FlockKind::Flock && req.mode != FlockMode::Unlock {
            let exclusive = req.mode == FlockMode::Exclusive;
            if self.owners.get(&key).is_some_and(|(_, held)| held.iter().any(|(_, e)| e != exclusive)) {
                self.set(key, req.pid, req.extent, None);
            }
            return;
        }
        match req.mode {
            FlockMode::Exclusive => {}
            FlockMode::Unlock => self.set(key, req.pid, req.extent, None),
            FlockMode::Shared => {
                let Some((pid, held)) = self.owners.get(&key) else { return };
                let exclusive = held.iter().filter(|(_, exclusive)| *exclusive);
                let weaker: Vec<Extent> = exclusive.filter_map(|(x, _)| x.intersect(&req.extent)).collect();
                let pid = *pid;
                weaker.into_iter().for_each(|x| self.set(key, pid, x, Some(false)));
            }
        }
    }

    /// A descriptor was closed.
    pub fn on_closed(&mut self, fid: Fid, kind: FlockKind, owner: u64) {
        self.owners.remove(&(fid, kind, owner));
    }

    /// Whether `owner` holds anything in the file: whether a close has to tell the server.
    #[must_use]
    pub fn holds(&self, fid: Fid, kind: FlockKind, owner: u64) -> bool {
        self.owners.contains_key(&(fid, kind, owner))
    }

    /// Evicted: all are gone.
    pub fn clear(&mut self) {
        self.owners.clear();
    }

    /// All ranges, by file, kind and owner, as `client`'s.
    pub fn for_replay(&self, client: ClientId) -> impl Iterator<Item = FlockRange> {
        self.owners.iter().flat_map(move |((fid, kind, owner), (pid, held))| {
            let (fid, kind, owner, pid) = (*fid, *kind, *owner, *pid);
            held.iter().map(move |(extent, exclusive)| FlockRange { fid, kind, client, owner, pid, extent, exclusive })
        })
    }

    fn set(&mut self, key: Key, pid: u32, extent: Extent, mode: Option<bool>) {
        let (holder, held) = self.owners.entry(key).or_default();
        if mode.is_some() {
            *holder = pid;
        }
        held.set(extent, mode);
        if held.is_empty() {
            self.owners.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockCookie;

    fn request(mode: FlockMode, extent: Extent) -> FlockRequest {
        let (fid, kind) = (Fid::new(1, 2), FlockKind::Posix);
        FlockRequest { fid, kind, owner: 7, pid: 8, mode, extent, wait: false, cookie: LockCookie(0) }
    }

    #[test]
    fn what_may_have_been_given_up_is_not_replayed_and_nothing_that_was_not_held() {
        let mut held = FlockMirror::new();
        held.on_granted(&request(FlockMode::Exclusive, Extent::new(0, 30)));
        let after = |mode, extent| {
            let mut mirror = held.clone();
            mirror.on_giving_up(&request(mode, extent));
            mirror.for_replay(ClientId(1)).map(|r| (r.extent.start, r.extent.end, r.exclusive)).collect::<Vec<_>>()
        };
        assert_eq!(after(FlockMode::Unlock, Extent::new(10, 20)), [(0, 10, true), (20, 30, true)]);
        assert_eq!(after(FlockMode::Unlock, Extent::ALL), []);
        assert_eq!(after(FlockMode::Shared, Extent::new(20, 90)), [(0, 20, true), (20, 30, false)]);
        assert_eq!(after(FlockMode::Exclusive, Extent::new(20, 90)), [(0, 30, true)]);
    }

    #[test]
    fn a_flock_that_may_have_been_converted_is_not_replayed_and_one_that_was_asked_for_again_is() {
        let flock = |mode| FlockRequest { kind: FlockKind::Flock, ..request(mode, Extent::ALL) };
        for (held, asked, left) in [
            (FlockMode::Shared, FlockMode::Exclusive, 0),
            (FlockMode::Exclusive, FlockMode::Shared, 0),
            (FlockMode::Shared, FlockMode::Shared, 1),
            (FlockMode::Exclusive, FlockMode::Exclusive, 1),
        ] {
            let mut mirror = FlockMirror::new();
            mirror.on_granted(&flock(held));
            mirror.on_giving_up(&flock(asked));
            assert_eq!(mirror.for_replay(ClientId(1)).count(), left, "{held:?} to {asked:?}");
        }
    }
}
