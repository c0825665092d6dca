//! The configuration service: the cluster map, which names every OST, and its epoch.
//!
//! Lives in the MDS for now, behind this interface: nothing here knows the MDS. Decides which targets may register;
//! storing the map is the caller's.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;

use types::{FsError, OstIndex, WallTime};
use wire::Bytes;
use wire::connect::{ConfigReply, OstEntry, OstPool, RefusedOst, RegisterRequest, Setting};
use wire::credential::CredentialRow;

use crate::openings::{KnownOpening, Stable};
use crate::shown_map::ShownMap;

wire::message! {
    /// An OST that has left the cluster.
    RemovedOst {
        /// Its index.
        ost: OstIndex,
        /// Its store, which is not taken in again.
        uuid: u64,
    }
    /// The map as it is stored.
    ClusterMap {
        /// Grows with every change.
        epoch: u64,
        /// Targets, by index.
        osts: Vec<OstEntry>,
        /// Permanent settings, in the order in which they were made.
        settings: Vec<Setting>,
        /// Pools, by name.
        pools: Vec<OstPool>,
        /// OSTs that no new objects are given out of, ascending.
        closed: Vec<OstIndex>,
        /// OSTs that left the cluster, by index. Their indices are not used again.
        removed: Vec<RemovedOst>,
        /// Number of the change of pools or OSTs that was made last, as who asked for it had drawn it.
        last_change: u64,
        /// Credentials of single clients, by name.
        credentials: Vec<CredentialRow>,
        /// When the key of all clients was revoked; 0: it was not.
        client_key_revoked: WallTime,
        /// Objects of stores that were lost and replaced, or put back from older copies, by OST.
        lost: Vec<LostObjects>,
        /// The openings of OSTs' stores that were let in last, by OST.
        openings: Vec<KnownOpening>,
        /// OSTs that are not let in, by index.
        refused: Vec<RefusedOst>,
    }
    /// What an OST has lost with an earlier store, or with a newer one than its own.
    LostObjects {
        /// Which.
        ost: OstIndex,
        /// Ids of objects up to this one are lost.
        through: u32,
        /// Those up to this one are not.
        after: u32,
    }
}

/// Permanent settings at most.
pub const SETTINGS_MAX: usize = 1024;

/// Why a target may not register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegisterError {
    /// Its store was formatted for another cluster.
    OtherCluster {
        /// Ours.
        ours: u64,
        /// Its.
        theirs: u64,
    },
    /// Another store holds the index.
    IndexTaken {
        /// The index.
        ost: OstIndex,
        /// Store that holds it.
        holder: u64,
        /// Store that asked.
        asked: u64,
    },
    /// The OST has left the cluster.
    Removed(OstIndex),
    /// The store is an older copy.
    Older {
        /// The OST.
        ost: OstIndex,
        /// How often the cluster has seen the store opened.
        seen: u64,
        /// How often the copy was opened.
        theirs: u64,
        /// What the store had.
        had: Stable,
        /// What the copy has.
        has: Stable,
        /// Mark of the copy's opening.
        mark: u64,
    },
    /// The name does not say the index.
    WrongName {
        /// The name.
        name: String,
        /// What it must be.
        right: String,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::OtherCluster { ours, theirs } => {
                write!(
                    f,
                    "its store belongs to cluster {theirs:016x}, this is cluster {ours:016x}: start it with its own cluster, or format a new store"
                )
            }
            RegisterError::IndexTaken { ost, holder, asked } => {
                write!(
                    f,
                    "{ost} is store {holder:016x} already, store {asked:016x} cannot be it too: format it with another index"
                )
            }
            RegisterError::Removed(ost) => write!(
                f,
                "{ost} was removed from this cluster, and its index is not used again: start the server without it, or make a new OST ('stria ost add')"
            ),
            RegisterError::Older { ost, seen, theirs, had, has, .. } => {
                write!(f, "its store is an older copy: ")?;
                if has.object < had.object {
                    let (made, given) = (has.object, had.object);
                    write!(f, "objects up to number {given} were given out of the store, this copy has made {made}")?;
                } else if has.committed < had.committed {
                    let (here, there) = (has.committed, had.committed);
                    write!(f, "the store had kept transaction {there} for good, this copy ends with {here}")?;
                } else {
                    write!(
                        f,
                        "the cluster has seen the store opened {seen} times, and this copy, opened {theirs} times, knows nothing of the last one"
                    )?;
                }
                write!(
                    f,
                    ". Put the newer store back; or 'stria ost accept {n}' takes the copy in and gives up what was written since; or 'stria ost replace {n}' gives up all that it held",
                    n = ost.0
                )
            }
            RegisterError::WrongName { name, right } => {
                write!(f, "its target is named '{name}': this index is '{right}'")
            }
        }
    }
}
impl std::error::Error for RegisterError {}
impl From<&RegisterError> for FsError {
    fn from(e: &RegisterError) -> FsError {
        match e {
            RegisterError::OtherCluster { .. } => FsError::CrossDevice,
            RegisterError::IndexTaken { .. } => FsError::Exists,
            RegisterError::Removed(_) => FsError::NotFound,
            RegisterError::Older { .. } => FsError::Stale,
            RegisterError::WrongName { .. } => FsError::Invalid,
        }
    }
}

/// A look whether an OST may leave: its number.
pub(crate) type Look = u64;

/// See the module's head.
pub struct ConfigService {
    fsname: String,
    cluster: u64,
    mdt_nid: String,
    pub(crate) map: RefCell<ClusterMap>,
    shown: RefCell<ShownMap>,
    /// Targets that nobody serves for now: shown as deactivated, and not stored.
    away: RefCell<BTreeSet<OstIndex>>,
    /// Closed targets of which it is being looked whether they may leave.
    pub(crate) leaving: RefCell<BTreeSet<(OstIndex, Look)>>,
    /// The last such look.
    pub(crate) look: Cell<Look>,
}

impl ConfigService {
    /// With the map as it was stored.
    #[must_use]
    pub fn new(fsname: &str, cluster: u64, mdt_nid: &str, map: ClusterMap) -> ConfigService {
        ConfigService {
            fsname: fsname.into(),
            cluster,
            mdt_nid: mdt_nid.into(),
            shown: RefCell::new(ShownMap::new(map.clone())),
            map: RefCell::new(map),
            away: RefCell::default(),
            leaving: RefCell::default(),
            look: Cell::new(0),
        }
    }
    /// The map as it is to be stored.
    #[must_use]
    pub fn map(&self) -> ClusterMap {
        self.map.borrow().clone()
    }
    /// The map as it is now is on stable storage with the application `at`.
    pub(crate) fn saved(&self, at: u64) {
        self.shown.borrow_mut().saved(at, self.map());
    }
    /// Something is told otherwise from now on that is not stored.
    pub(crate) fn told_otherwise(&self) {
        self.map.borrow_mut().epoch += 1;
        self.shown.borrow_mut().changed();
    }
    /// What clients are told when every application up to `durable` is on stable storage. Which OSTs are away, or refused, is as it is now.
    #[must_use]
    pub fn reply(&self, durable: u64) -> ConfigReply {
        let mut shown = self.shown.borrow_mut();
        let map = shown.as_of(durable);
        ConfigReply {
            epoch: map.epoch,
            fsname: self.fsname.as_str().into(),
            cluster: self.cluster,
            osts: map.osts.iter().map(|e| self.seen(e)).collect(),
            mdt_nid: self.mdt_nid.as_str().into(),
            mdt_target: format!("{}-MDT0000", self.fsname).as_str().into(),
            settings: map.settings.clone(),
            pools: map.pools.clone(),
            closed: map.closed.clone(),
            removed: map.removed.iter().map(|r| r.ost).collect(),
            refused: self.map.borrow().refused.clone(),
        }
    }
    /// A target announces itself, whose store had `had`; whether that changed the map.
    ///
    /// # Errors
    /// Why it may not.
    pub fn register(&self, q: &RegisterRequest, had: Stable) -> Result<bool, RegisterError> {
        let ost = q.entry.ost;
        if q.cluster != self.cluster {
            return Err(RegisterError::OtherCluster { ours: self.cluster, theirs: q.cluster });
        }
        let right = format!("{}-OST{:04x}", self.fsname, ost.0);
        if q.entry.target[..] != *right.as_bytes() {
            return Err(RegisterError::WrongName {
                name: String::from_utf8_lossy(&q.entry.target).into_owned(),
                right,
            });
        }
        let mut map = self.map.borrow_mut();
        if map.removed.iter().any(|r| r.ost == ost) {
            return Err(RegisterError::Removed(ost));
        }
        match map.osts.binary_search_by_key(&ost, |e| e.ost) {
            Ok(i) if map.osts[i].uuid != q.entry.uuid => {
                return Err(RegisterError::IndexTaken { ost, holder: map.osts[i].uuid, asked: q.entry.uuid });
            }
            Ok(i) => {
                let is_news = map.admit(q, had)?;
                if map.osts[i].nid == q.entry.nid {
                    return Ok(is_news);
                }
                map.osts[i].nid = q.entry.nid.clone();
            }
            Err(i) => {
                map.admit(q, Stable::default())?;
                map.osts.insert(i, OstEntry { active: true, ..q.entry.clone() });
            }
        }
        map.epoch += 1;
        Ok(true)
    }
    /// An OST of the map.
    #[must_use]
    pub fn entry(&self, ost: OstIndex) -> Option<OstEntry> {
        let map = self.map.borrow();
        map.osts.binary_search_by_key(&ost, |e| e.ost).ok().map(|i| map.osts[i].clone())
    }
    /// Keeps a setting for good, or (`None`) forgets it; whether that changed anything. A setting that is made again
    /// comes last: later ones win where patterns overlap.
    ///
    /// # Errors
    /// The table is full ([`SETTINGS_MAX`]).
    pub fn keep_setting(&self, pattern: &[u8], value: Option<&[u8]>) -> Result<bool, FsError> {
        let mut map = self.map.borrow_mut();
        let before = map.settings.len();
        if value.is_some() && before >= SETTINGS_MAX && map.settings.iter().all(|s| s.pattern[..] != *pattern) {
            return Err(FsError::NoSpace);
        }
        map.settings.retain(|s| s.pattern[..] != *pattern);
        let changed = value.is_some() || map.settings.len() < before;
        map.settings.extend(value.map(|v| Setting { pattern: pattern.into(), value: Bytes(v.to_vec()) }));
        map.epoch += u64::from(changed);
        Ok(changed)
    }
    /// An entry as clients see it.
    fn seen(&self, entry: &OstEntry) -> OstEntry {
        OstEntry { active: entry.active && !self.away.borrow().contains(&entry.ost), ..entry.clone() }
    }
    /// Whether clients are told to use an OST.
    #[must_use]
    pub fn is_active(&self, ost: OstIndex) -> bool {
        self.map.borrow().osts.iter().any(|e| e.ost == ost && self.seen(e).active)
    }
    /// An OST is not served until further notice, or is again; whether that is news. The next start knows nothing of it.
    pub fn set_away(&self, ost: OstIndex, away: bool) -> bool {
        let news = if away { self.away.borrow_mut().insert(ost) } else { self.away.borrow_mut().remove(&ost) };
        if news {
            self.told_otherwise();
        }
        news
    }
    /// Permanent settings, later ones win.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        self.map.borrow().settings.clone()
    }
    /// Deactivates or activates an OST; whether that changed anything.
    pub fn set_active(&self, ost: OstIndex, active: bool) -> bool {
        let mut map = self.map.borrow_mut();
        let Some(entry) = map.osts.iter_mut().find(|e| e.ost == ost && e.active != active) else { return false };
        entry.active = active;
        map.epoch += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(ost: u16, uuid: u64, nid: &str) -> RegisterRequest {
        let target = format!("fs-OST{ost:04x}");
        let entry =
            OstEntry { ost: OstIndex(ost), nid: nid.into(), target: target.as_str().into(), active: true, uuid };
        RegisterRequest { entry, cluster: 7, ..RegisterRequest::default() }
    }

    #[test]
    fn a_target_registers_moves_and_keeps_its_place() {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        assert!(c.register(&ask(1, 11, "a:1"), Stable::default()).unwrap());
        assert!(c.register(&ask(0, 10, "a:1"), Stable::default()).unwrap());
        assert!(!c.register(&ask(0, 10, "a:1"), Stable::default()).unwrap());
        assert!(c.register(&ask(0, 10, "b:1"), Stable::default()).unwrap());
        assert_eq!(c.entry(OstIndex(0)).unwrap().nid, "b:1".into());
        c.saved(1);
        assert_eq!(c.reply(1).epoch, 3);
        assert_eq!(c.reply(1).osts.iter().map(|e| e.ost.0).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn another_cluster_a_taken_index_and_a_wrong_name_are_refused_by_name() {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        c.register(&ask(0, 10, "a:1"), Stable::default()).unwrap();
        let e = c.register(&RegisterRequest { cluster: 8, ..ask(1, 11, "a:1") }, Stable::default()).unwrap_err();
        assert_eq!(FsError::from(&e), FsError::CrossDevice);
        let e = c.register(&ask(0, 99, "a:1"), Stable::default()).unwrap_err();
        assert_eq!(FsError::from(&e), FsError::Exists);
        assert!(e.to_string().contains("another index"), "{e}");
        let mut q = ask(2, 12, "a:1");
        q.entry.target = "fs-OST0003".into();
        assert!(matches!(c.register(&q, Stable::default()), Err(RegisterError::WrongName { .. })));
    }

    #[test]
    fn settings_are_kept_in_order_replaced_and_forgotten() {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        assert_eq!(c.keep_setting(b"a.b", Some(b"1")), Ok(true));
        assert_eq!(c.keep_setting(b"c.d", Some(b"2")), Ok(true));
        assert_eq!(c.keep_setting(b"a.b", Some(b"3")), Ok(true));
        let shown: Vec<_> = c.settings().iter().map(|s| (s.pattern.to_vec(), s.value.to_vec())).collect();
        assert_eq!(shown, [(b"c.d".to_vec(), b"2".to_vec()), (b"a.b".to_vec(), b"3".to_vec())]);
        assert_eq!((c.keep_setting(b"c.d", None), c.keep_setting(b"c.d", None)), (Ok(true), Ok(false)));
        c.saved(1);
        assert_eq!((c.reply(1).epoch, c.reply(1).settings.len()), (4, 1));
        for i in 1..SETTINGS_MAX {
            c.keep_setting(format!("p.{i}").as_bytes(), Some(b"1")).unwrap();
        }
        assert_eq!(c.keep_setting(b"one.more", Some(b"1")), Err(FsError::NoSpace));
        assert_eq!(c.keep_setting(b"a.b", Some(b"4")), Ok(true));
    }

    #[test]
    fn an_ost_that_is_away_is_shown_as_deactivated_and_not_stored_as_such() {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        c.register(&ask(0, 10, "a:1"), Stable::default()).unwrap();
        c.saved(1);
        assert!(c.set_away(OstIndex(0), true) && !c.set_away(OstIndex(0), true));
        assert!(!c.is_active(OstIndex(0)) && !c.reply(1).osts[0].active && c.map().osts[0].active);
        c.set_active(OstIndex(0), false);
        assert!(c.set_away(OstIndex(0), false) && !c.is_active(OstIndex(0)), "an administrator's word stays");
        c.set_active(OstIndex(0), true);
        assert!(c.is_active(OstIndex(0)));
    }

    #[test]
    fn a_deactivated_ost_stays_so_when_it_registers_again() {
        let c = ConfigService::new("fs", 7, "mdt", ClusterMap::default());
        c.register(&ask(0, 10, "a:1"), Stable::default()).unwrap();
        assert!(c.set_active(OstIndex(0), false) && !c.set_active(OstIndex(0), false));
        assert!(c.register(&ask(0, 10, "b:1"), Stable::default()).unwrap());
        assert!(!c.entry(OstIndex(0)).unwrap().active);
    }
}
