//! OST pools: names for sets of OSTs that files can be told to lie on, in the cluster map. What may be changed and why not; storing
//! the map is the caller's.
//!
//! Source: the interface of Lustre's `lctl pool_*`, whose names, order of checks and error numbers these are.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use layout::{PoolError, PoolName};
use types::{FsError, OstIndex};
use wire::connect::{OstEntry, OstPool};

use crate::config_service::{ConfigService, Look, RemovedOst};

/// Pools at most.
pub const POOLS_MAX: usize = 1024;

/// Why the cluster map is not changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The name is none.
    Name(PoolError),
    /// There is such a pool already.
    PoolExists(PoolName),
    /// There is no such pool.
    NoPool(PoolName),
    /// There are [`POOLS_MAX`].
    TooManyPools,
    /// The pool has OSTs.
    NotEmpty(PoolName, usize),
    /// No such OST is in the cluster.
    NoOst(OstIndex),
    /// No OST is named.
    Nothing,
    /// These are in the pool already.
    Members(PoolName, Vec<OstIndex>),
    /// These are not in the pool.
    NoMembers(PoolName, Vec<OstIndex>),
    /// It is the last OST.
    LastOst(OstIndex),
    /// It is the last OST that takes files.
    LastOpen(OstIndex),
    /// The store that is to be an OST's is so already, or none is named.
    SameStore(OstIndex),
    /// Its server has a session, and its store has not failed.
    Serves(OstIndex),
    /// Its store was not refused as an older copy.
    NotRefused(OstIndex),
    /// Somebody opened it while files were looked for that have objects there.
    Opened(OstIndex),
    /// Files have objects there.
    HasFiles {
        /// The OST.
        ost: OstIndex,
        /// How many files.
        files: u64,
        /// The path of one of them.
        first: String,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |osts: &[OstIndex]| osts.iter().map(|o| o.0.to_string()).collect::<Vec<_>>().join(", ");
        match self {
            MapError::Name(e) => write!(f, "{e}"),
            MapError::PoolExists(p) => write!(f, "pool {p} already exists"),
            MapError::NoPool(p) => {
                write!(f, "pool {p} does not exist: 'pool_list FSNAME' lists pools, 'pool_new FSNAME.{p}' makes it")
            }
            MapError::TooManyPools => write!(f, "there are {POOLS_MAX} pools: destroy one"),
            MapError::NotEmpty(p, n) => {
                write!(f, "pool {p} is not empty, it has {n} OSTs: remove all members first (pool_remove)")
            }
            MapError::NoOst(o) => {
                write!(f, "OST {} is not part of this file system: 'stria osts' lists those that are", o.0)
            }
            MapError::Nothing => write!(f, "no OST is named"),
            MapError::Members(p, osts) => write!(f, "OST {} is already in pool {p}: nothing was changed", list(osts)),
            MapError::NoMembers(p, osts) => write!(f, "OST {} is not in pool {p}: nothing was changed", list(osts)),
            MapError::LastOst(o) => {
                write!(f, "OST {} is the last one of this file system: add another one before it goes", o.0)
            }
            MapError::LastOpen(o) => write!(
                f,
                "OST {} is the last one that takes files: add another one, or open one that is closed ('stria ost drain N --cancel'), first",
                o.0
            ),
            MapError::SameStore(o) => write!(f, "no other store is named for OST {}", o.0),
            MapError::Serves(o) => write!(
                f,
                "OST {n} is served, and its store has not failed: a store that is in use is not replaced. Stop its server first; 'stria ost drain {n}' empties an OST whose disk is still good",
                n = o.0
            ),
            MapError::NotRefused(o) => write!(
                f,
                "the store of OST {n} was not refused as an older copy: start its server first, its log says why it is not served",
                n = o.0
            ),
            MapError::Opened(o) => {
                write!(f, "OST {n} was opened again amid its removal: 'stria ost drain {n}' empties it", n = o.0)
            }
            MapError::HasFiles { ost, files, first } => write!(
                f,
                "{files} files have objects on OST {n}, {first} for one: 'stria ost drain {n}' moves them, 'stria ost files {n}' lists them",
                n = ost.0
            ),
        }
    }
}
impl std::error::Error for MapError {}

impl MapError {
    /// The same as programs see it.
    #[must_use]
    pub fn kind(&self) -> FsError {
        match self {
            MapError::Name(PoolError::TooLong(_)) => FsError::NameTooLong,
            MapError::Name(_) | MapError::Nothing | MapError::SameStore(_) | MapError::NotRefused(_) => {
                FsError::Invalid
            }
            MapError::PoolExists(_) | MapError::Members(..) => FsError::Exists,
            MapError::NoPool(_) | MapError::NoOst(_) | MapError::NoMembers(..) => FsError::NotFound,
            MapError::TooManyPools => FsError::NoSpace,
            MapError::NotEmpty(..) | MapError::HasFiles { .. } => FsError::NotEmpty,
            MapError::LastOst(_) | MapError::LastOpen(_) | MapError::Serves(_) | MapError::Opened(_) => FsError::Busy,
        }
    }
}

/// Pools as they are asked for when files are made.
#[must_use]
pub fn members(pools: &[OstPool]) -> BTreeMap<PoolName, BTreeSet<OstIndex>> {
    let one = |p: &OstPool| Some((parse(&p.name).ok()?, p.osts.iter().copied().collect()));
    pools.iter().filter_map(one).collect()
}

fn parse(name: &[u8]) -> Result<PoolName, MapError> {
    PoolName::parse(&String::from_utf8_lossy(name)).map_err(MapError::Name)
}

impl ConfigService {
    /// A pool comes into being.
    ///
    /// # Errors
    /// Its name is none or taken; there are too many.
    pub fn pool_new(&self, name: &[u8]) -> Result<(), MapError> {
        let name = parse(name)?;
        let mut map = self.map.borrow_mut();
        match map.pools.binary_search_by(|p| p.name[..].cmp(name.as_str().as_bytes())) {
            Ok(_) => Err(MapError::PoolExists(name)),
            Err(_) if map.pools.len() >= POOLS_MAX => Err(MapError::TooManyPools),
            Err(i) => {
                map.pools.insert(i, OstPool { name: name.as_str().into(), osts: Vec::new() });
                map.epoch += 1;
                Ok(())
            }
        }
    }
    /// A pool without OSTs goes. Files and directories that name it stay as they are.
    ///
    /// # Errors
    /// There is no such pool, or it has OSTs.
    pub fn pool_destroy(&self, name: &[u8]) -> Result<(), MapError> {
        self.in_pool(name, |name, pool| match pool.osts.len() {
            0 => Ok(false),
            n => Err(MapError::NotEmpty(name, n)),
        })
    }
    /// OSTs come into a pool: all of them, or none.
    ///
    /// # Errors
    /// There is no such pool or OST; one of them is in it already.
    pub fn pool_add(&self, name: &[u8], osts: &[OstIndex]) -> Result<(), MapError> {
        let unknown = osts.iter().copied().find(|o| !self.has_ost(*o));
        self.in_pool(name, |name, pool| {
            if let Some(ost) = unknown {
                return Err(MapError::NoOst(ost));
            }
            let already: Vec<OstIndex> = osts.iter().copied().filter(|o| pool.osts.contains(o)).collect();
            if !already.is_empty() {
                return Err(MapError::Members(name, already));
            }
            pool.osts.extend_from_slice(osts);
            pool.osts.sort_unstable();
            pool.osts.dedup();
            if osts.is_empty() { Err(MapError::Nothing) } else { Ok(true) }
        })
    }
    /// OSTs leave a pool: all of them, or none. Files stay where they are.
    ///
    /// # Errors
    /// There is no such pool; one of them is not in it.
    pub fn pool_remove(&self, name: &[u8], osts: &[OstIndex]) -> Result<(), MapError> {
        self.in_pool(name, |name, pool| {
            let others: Vec<OstIndex> = osts.iter().copied().filter(|o| !pool.osts.contains(o)).collect();
            if !others.is_empty() {
                return Err(MapError::NoMembers(name, others));
            }
            pool.osts.retain(|o| !osts.contains(o));
            if osts.is_empty() { Err(MapError::Nothing) } else { Ok(true) }
        })
    }
    /// Changes a pool, which stays if `change` says so.
    fn in_pool(
        &self,
        name: &[u8],
        change: impl FnOnce(PoolName, &mut OstPool) -> Result<bool, MapError>,
    ) -> Result<(), MapError> {
        let name = parse(name)?;
        let mut map = self.map.borrow_mut();
        let at = map.pools.iter().position(|p| p.name[..] == *name.as_str().as_bytes());
        let at = at.ok_or(MapError::NoPool(name))?;
        if !change(name, &mut map.pools[at])? {
            map.pools.remove(at);
        }
        map.epoch += 1;
        Ok(())
    }

    /// Whether this OST is in the cluster.
    #[must_use]
    pub fn has_ost(&self, ost: OstIndex) -> bool {
        self.map.borrow().osts.iter().any(|e| e.ost == ost)
    }
    /// Whether this OST has left the cluster.
    #[must_use]
    pub fn is_removed(&self, ost: OstIndex) -> bool {
        self.map.borrow().removed.iter().any(|r| r.ost == ost)
    }
    /// Whether no objects are given out of this OST.
    #[must_use]
    pub fn is_closed(&self, ost: OstIndex) -> bool {
        self.map.borrow().closed.contains(&ost)
    }
    /// No objects are given out of an OST any more, or they are again; whether that is news.
    pub fn set_closed(&self, ost: OstIndex, closed: bool) -> bool {
        let mut map = self.map.borrow_mut();
        if map.closed.contains(&ost) == closed {
            return false;
        }
        if closed {
            map.closed.push(ost);
            map.closed.sort_unstable();
        } else {
            map.closed.retain(|o| *o != ost);
            self.leaving.borrow_mut().retain(|(leaving, _)| *leaving != ost);
        }
        map.epoch += 1;
        true
    }
    /// It is looked whether a closed OST may leave, from now on.
    pub(crate) fn begin_leaving(&self, ost: OstIndex) -> Look {
        let look = self.look.get() + 1;
        self.look.set(look);
        self.leaving.borrow_mut().insert((ost, look));
        look
    }
    /// That look has ended; whether the OST was closed all the time.
    pub(crate) fn end_leaving(&self, ost: OstIndex, look: Look) -> bool {
        self.leaving.borrow_mut().remove(&(ost, look))
    }
    /// Whether an OST could leave as far as the map goes.
    ///
    /// # Errors
    /// It is not there, or the last one.
    pub fn may_leave(&self, ost: OstIndex) -> Result<(), MapError> {
        match self.map.borrow().osts.len() {
            _ if !self.has_ost(ost) => Err(MapError::NoOst(ost)),
            1 => Err(MapError::LastOst(ost)),
            _ => Ok(()),
        }
    }
    /// An OST leaves the cluster, with its places in pools. Its index is not used again.
    ///
    /// # Errors
    /// As [`ConfigService::may_leave`].
    pub fn remove_ost(&self, ost: OstIndex) -> Result<(), MapError> {
        self.may_leave(ost)?;
        self.set_away(ost, false);
        let mut map = self.map.borrow_mut();
        let gone = map.osts.iter().position(|e| e.ost == ost).map(|i| map.osts.remove(i));
        map.removed.extend(gone.map(|e| RemovedOst { ost, uuid: e.uuid }));
        map.removed.sort_unstable_by_key(|r| r.ost);
        map.closed.retain(|o| *o != ost);
        map.forget_openings(ost);
        map.pools.iter_mut().for_each(|p| p.osts.retain(|o| *o != ost));
        map.epoch += 1;
        Ok(())
    }
    /// Another store takes the place of the one that an OST had, of which objects up to `through` are lost; nobody serves it yet. Its entry
    /// as it is now.
    ///
    /// # Errors
    /// There is no such OST.
    pub fn replace_store(&self, ost: OstIndex, uuid: u64, through: u32) -> Result<OstEntry, MapError> {
        let entry = {
            let mut map = self.map.borrow_mut();
            map.epoch += 1;
            let entry = map.osts.iter_mut().find(|e| e.ost == ost).ok_or(MapError::NoOst(ost))?;
            entry.uuid = uuid;
            let entry = entry.clone();
            map.lose(ost, 0, through);
            map.forget_openings(ost);
            entry
        };
        self.set_away(ost, true);
        Ok(entry)
    }
    /// Which store an OST has.
    #[must_use]
    pub fn store_of(&self, ost: OstIndex) -> Option<u64> {
        self.map.borrow().osts.iter().find(|e| e.ost == ost).map(|e| e.uuid)
    }
    /// Whether the change with this number was the last one; 0 never was.
    pub(crate) fn was_made(&self, id: u64) -> bool {
        id != 0 && self.map.borrow().last_change == id
    }
    /// Keeps the number of the change that was made now.
    pub(crate) fn note_change(&self, id: u64) {
        self.map.borrow_mut().last_change = id;
    }
    /// The map's epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.map.borrow().epoch
    }
}

#[cfg(test)]
mod tests {
    use wire::connect::{OstEntry, RegisterRequest};

    use super::*;
    use crate::config_service::{ClusterMap, RegisterError};
    use crate::openings::Stable;

    fn service(osts: u16) -> ConfigService {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        for ost in 0..osts {
            c.register(&ask(ost), Stable::default()).unwrap();
        }
        c
    }
    fn ask(ost: u16) -> RegisterRequest {
        let target = format!("fs-OST{ost:04x}");
        let uuid = 10 + u64::from(ost);
        let entry =
            OstEntry { ost: OstIndex(ost), nid: "a:1".into(), target: target.as_str().into(), active: true, uuid };
        RegisterRequest { entry, cluster: 7, ..RegisterRequest::default() }
    }
    fn at(osts: &[u16]) -> Vec<OstIndex> {
        osts.iter().map(|o| OstIndex(*o)).collect()
    }

    #[test]
    fn pools_come_get_and_lose_members_and_go_and_each_refusal_names_what_is_wrong() {
        let c = service(3);
        c.pool_new(b"flash").unwrap();
        c.pool_new(b"a").unwrap();
        let refused = |e: Result<(), MapError>, kind: FsError, text: &str| {
            let e = e.unwrap_err();
            assert!(e.to_string().contains(text) && e.kind() == kind, "{e} {:?}", e.kind());
        };
        refused(c.pool_new(b"flash"), FsError::Exists, "flash already exists");
        refused(c.pool_new(b"a/b"), FsError::Invalid, "'/'");
        refused(c.pool_new("größe".as_bytes()), FsError::Invalid, "use letters");
        refused(c.pool_new(&[0xff, 0xfe]), FsError::Invalid, "use letters");
        refused(c.pool_new(b"a234567890123456"), FsError::NameTooLong, "16 characters");
        refused(c.pool_new(b"inherit"), FsError::Invalid, "reserved");
        refused(c.pool_add(b"no", &at(&[0])), FsError::NotFound, "pool no does not exist");
        refused(c.pool_add(b"flash", &at(&[0, 7])), FsError::NotFound, "OST 7");
        refused(c.pool_add(b"flash", &[]), FsError::Invalid, "no OST");
        c.pool_add(b"flash", &at(&[2, 0])).unwrap();
        refused(c.pool_add(b"flash", &at(&[1, 2])), FsError::Exists, "OST 2 is already in pool flash");
        refused(c.pool_remove(b"flash", &at(&[0, 1])), FsError::NotFound, "OST 1 is not in pool flash");
        refused(c.pool_destroy(b"flash"), FsError::NotEmpty, "has 2 OSTs");
        assert_eq!(c.map().pools[1].osts, at(&[0, 2]), "what was refused changed nothing");
        c.pool_remove(b"flash", &at(&[0, 2])).unwrap();
        c.pool_destroy(b"flash").unwrap();
        refused(c.pool_destroy(b"flash"), FsError::NotFound, "does not exist");
        assert_eq!(c.map().pools.len(), 1);
    }

    #[test]
    fn a_removed_ost_leaves_its_pools_and_its_index_is_not_taken_again() {
        let c = service(2);
        c.pool_new(b"p").unwrap();
        c.pool_add(b"p", &at(&[0, 1])).unwrap();
        assert!(c.set_closed(OstIndex(1), true) && !c.set_closed(OstIndex(1), true));
        c.remove_ost(OstIndex(1)).unwrap();
        let map = c.map();
        assert_eq!((map.osts.len(), map.closed.len(), map.pools[0].osts.clone()), (1, 0, at(&[0])));
        assert_eq!(c.register(&ask(1), Stable::default()), Err(RegisterError::Removed(OstIndex(1))));
        assert_eq!(c.remove_ost(OstIndex(1)), Err(MapError::NoOst(OstIndex(1))));
        assert_eq!(c.remove_ost(OstIndex(0)), Err(MapError::LastOst(OstIndex(0))));
    }

    #[test]
    fn a_map_of_before_pools_is_read_and_one_with_pools_comes_back_whole() {
        wire::message! {
            /// The map as it was.
            Earlier {
                /// See `ClusterMap`.
                epoch: u64,
                /// See `ClusterMap`.
                osts: Vec<OstEntry>,
                /// See `ClusterMap`.
                settings: Vec<wire::connect::Setting>,
            }
        }
        let old = Earlier { epoch: 3, osts: vec![ask(0).entry], settings: Vec::new() };
        let read: ClusterMap = wire::decode(&wire::encode(&old)).unwrap();
        assert_eq!((read.epoch, read.osts.len(), read.pools.len(), read.removed.len()), (3, 1, 0, 0));
        let c = service(3);
        c.pool_new(b"p").unwrap();
        c.remove_ost(OstIndex(2)).unwrap();
        c.note_change(9);
        let map: ClusterMap = wire::decode(&wire::encode(&c.map())).unwrap();
        assert_eq!(map, c.map());
        assert_eq!((map.removed[0].uuid, map.last_change), (12, 9));
    }
}
