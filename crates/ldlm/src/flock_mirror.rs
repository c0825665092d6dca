//! A client's own flock ranges: what it must replay when the server comes back without memory.
//!
//! Decides nothing; it repeats what the server granted. Ranges join and split exactly as on the server.
use alloc::collections::BTreeMap;
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
