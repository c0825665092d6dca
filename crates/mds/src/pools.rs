//! Objects ready for new files: per OST a run of objects that exist and that no file has yet. (OST pools, which users name, are in
//! [`crate::ost_pools`]; this only keeps to them.)
//!
//! A create takes from here and waits for no OST. Filling up is [`crate::osts`]'s business, choosing OSTs is the layout
//! room's. Two numbers per OST are kept in the store: the last object given to a file, and a ceiling that is durable
//! before any object below it is given out. After a restart nothing up to the ceiling is given out again: a client that
//! was presumed dead may still write to an object it got in a create that was lost. While replays come the store has besides
//! which objects nobody's replay has claimed yet, for the server may die again before the last one is in.
use std::collections::{BTreeMap, BTreeSet};

use layout::{AllocConfig, AllocError, Allocator, OstFacts, PoolName, Resolved, StripeObject};
use types::{Fid, FsError, ObjectId, OstIndex, Rng, Transno};

use crate::record::PrecreateRow;
use crate::tx::Fail;

/// Objects kept ready per OST at least and at most.
pub const READY_MIN: u32 = 64;
/// See [`READY_MIN`].
pub const READY_MAX: u32 = 1024;
/// Most bulk of a pool in one object sequence.
const OID_MAX: u32 = u32::MAX - 1;

/// What the MDS knows of one OST's objects.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Which OST.
    pub ost: OstIndex,
    /// Last object given to a file.
    pub used: u32,
    /// Last object that exists.
    pub last: u32,
    /// Durable bound of what may have been given out.
    pub ceiling: u32,
    /// The OST answered since it (or we) came up; its objects are as we think.
    pub in_sync: bool,
    /// Not deactivated by the administrator.
    pub active: bool,
    /// No objects are given out there: it is being emptied.
    pub closed: bool,
    /// Bytes in all and free.
    pub total_bytes: u64,
    /// See `total_bytes`.
    pub free_bytes: u64,
    /// Objects that can still be made there.
    pub files_free: u64,
    /// State letters of the last statfs.
    pub state: u32,
    /// Objects to keep ready: doubles when the pool ran dry, halves when it was hardly used.
    pub want: u32,
    /// Objects that may have been given out in creates which the store does not have and nobody has replayed yet.
    pub unreplayed: BTreeSet<u32>,
    /// The OST has said that transactions up to here are on its stable storage.
    pub committed: Transno,
    /// The OST may have objects that the store does not know of, and keeps them.
    pub newer: bool,
    /// Durable bound of what may have been given out, as the store had it when it was opened.
    pub found: u32,
}

impl Pool {
    /// What the store has of it.
    #[must_use]
    pub fn row(&self) -> PrecreateRow {
        let (last_used, ceiling, newer, committed) = (self.used, self.ceiling, self.newer, self.committed);
        PrecreateRow { last_used, ceiling, newer, committed, ..PrecreateRow::default() }
            .with_unreplayed(&self.unreplayed)
    }
    /// The highest object that may have been given out; 0: none.
    #[must_use]
    pub fn last_given(&self) -> u32 {
        self.ceiling.max(self.used)
    }
    /// Whether the OST said last that its store has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state & 1 << 1 != 0
    }
    /// Objects ready.
    #[must_use]
    pub fn ready(&self) -> u32 {
        self.last.saturating_sub(self.used)
    }
    /// Whether files can be made there.
    #[must_use]
    pub fn can_serve(&self) -> bool {
        self.in_sync && self.active && !self.closed && self.state & (1 << 1 | 1 << 4) == 0
    }
    /// Whether it should be filled up now.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.in_sync && !self.closed && self.ready() < self.want / 2 && self.used < OID_MAX - READY_MAX
    }
}

/// All pools and the allocator.
pub struct Pools {
    pools: Vec<Pool>,
    facts: Vec<OstFacts>,
    allocator: Allocator,
    rng: Rng,
    /// Which OSTs files of a pool may lie on.
    members: BTreeMap<PoolName, BTreeSet<OstIndex>>,
    /// Creates that found a pool empty.
    pub dry: u64,
}

impl Pools {
    /// No OST yet.
    #[must_use]
    pub fn new(config: AllocConfig, rng: Rng) -> Pools {
        let allocator = Allocator::new(layout::POLICY_DEFAULT, config).expect("the default policy is registered");
        let members = BTreeMap::new();
        Pools { pools: Vec::new(), facts: Vec::new(), allocator, rng, members, dry: 0 }
    }
    /// The allocator, for parameters.
    pub fn allocator(&mut self) -> &mut Allocator {
        &mut self.allocator
    }
    /// The pool of an OST.
    #[must_use]
    pub fn get(&self, ost: OstIndex) -> Option<&Pool> {
        self.at(ost).map(|i| &self.pools[i])
    }
    /// All pools, by index.
    #[must_use]
    pub fn all(&self) -> &[Pool] {
        &self.pools
    }
    fn at(&self, ost: OstIndex) -> Option<usize> {
        self.pools.binary_search_by_key(&ost, |p| p.ost).ok()
    }
    /// Adds an OST as the store remembers it: everything up to the ceiling counts as given out.
    pub fn add(&mut self, ost: OstIndex, active: bool, row: &PrecreateRow) {
        if let Err(i) = self.pools.binary_search_by_key(&ost, |p| p.ost) {
            let ceiling = row.ceiling.max(row.last_used);
            let pool = Pool {
                ost,
                used: ceiling,
                last: ceiling,
                ceiling,
                active,
                want: READY_MIN,
                unreplayed: row.may_be_lost(),
                newer: row.newer,
                committed: row.committed,
                found: ceiling,
                ..Pool::default()
            };
            let facts = OstFacts { index: ost, total_bytes: 0, free_bytes: 0, active: false, in_pool: false };
            self.pools.insert(i, pool);
            self.facts.insert(i, facts);
        }
    }
    /// An OST has left the cluster.
    pub fn remove(&mut self, ost: OstIndex) {
        if let Some(i) = self.at(ost) {
            self.pools.remove(i);
            self.facts.remove(i);
        }
    }
    /// Says which pools there are, and of which OSTs.
    pub fn set_members(&mut self, members: BTreeMap<PoolName, BTreeSet<OstIndex>>) {
        self.members = members;
    }
    /// Whether there is such a pool.
    #[must_use]
    pub fn has_pool(&self, pool: &PoolName) -> bool {
        self.members.contains_key(pool)
    }
    /// Whether files that ask for this may lie on an OST as far as pools go.
    fn may_use(&self, ask: &Resolved, ost: OstIndex) -> bool {
        ask.pool.is_none_or(|name| self.members.get(&name).is_some_and(|m| m.contains(&ost)))
    }
    /// Changes what is known of an OST.
    pub fn update<T>(&mut self, ost: OstIndex, f: impl FnOnce(&mut Pool) -> T) -> Option<T> {
        let i = self.at(ost)?;
        let result = f(&mut self.pools[i]);
        self.refresh(i);
        Some(result)
    }
    fn refresh(&mut self, i: usize) {
        let p = &self.pools[i];
        let f = &mut self.facts[i];
        f.total_bytes = p.total_bytes;
        f.free_bytes = if p.state & (1 << 2 | 1 << 3) == 0 { p.free_bytes } else { 0 };
        f.active = p.can_serve() && p.ready() > 0;
    }

    /// Takes objects for a new file.
    ///
    /// # Errors
    /// `Objects` when it has to wait for a pool to be filled; else why no OST can be had.
    pub fn take(&mut self, ask: &Resolved) -> Result<Vec<StripeObject>, Fail> {
        if let Some(members) = ask.pool.map(|name| self.members.get(&name)) {
            for f in &mut self.facts {
                f.in_pool = members.is_some_and(|m| m.contains(&f.index));
            }
        }
        let osts = match self.allocator.allocate(&self.facts, ask, &mut self.rng) {
            Ok(osts) => osts,
            Err(e) => return Err(self.not_now(e, ask)),
        };
        let mut taken = Vec::with_capacity(osts.len());
        for ost in osts {
            let i = self.at(ost).expect("the allocator chooses among the facts");
            if self.pools[i].ready() == 0 {
                self.dry += 1;
                let want = self.pools[i].want;
                self.pools[i].want = (want * 2).min(READY_MAX);
                self.give_back(&taken);
                return Err(Fail::Objects(ost));
            }
            self.pools[i].used += 1;
            let object = ObjectId::new(ost, self.pools[i].used);
            if self.pools[i].ready() == 0 {
                self.refresh(i);
            }
            taken.push(StripeObject { ost, object });
        }
        Ok(taken)
    }

    /// Whether waiting for a pool helps.
    fn not_now(&mut self, e: AllocError, ask: &Resolved) -> Fail {
        let dry = |p: &&Pool| p.can_serve() && p.ready() == 0;
        let named = match e {
            AllocError::Inactive(ost) => Some(ost),
            _ => None,
        };
        let usable = |p: &&Pool| named.is_none_or(|n| n == p.ost) && self.may_use(ask, p.ost);
        let waits = self.pools.iter().filter(dry).find(usable).map(|p| p.ost);
        // Of a pool that has one, the OST that may only be away.
        let away = |p: &&Pool| ask.pool.is_some() && p.active && !p.closed && self.may_use(ask, p.ost);
        let away = self.pools.iter().find(away).map(|p| p.ost);
        match (e, waits) {
            (AllocError::Inactive(_) | AllocError::AllInactive { .. } | AllocError::AllFull { .. }, Some(ost)) => {
                self.dry += 1;
                self.update(ost, |p| p.want = (p.want * 2).min(READY_MAX));
                Fail::Objects(ost)
            }
            // Somebody wants this OST and no other, and it may only be away: its server is being started again.
            (AllocError::Inactive(ost), None) if self.get(ost).is_some_and(|p| p.active && !p.closed) => {
                Fail::Objects(ost)
            }
            (AllocError::AllInactive { .. }, None) if away.is_some() && ask.osts.is_empty() => {
                Fail::Objects(away.unwrap_or_default())
            }
            // As Lustre has it: EINVAL in an empty pool, EIO where no OST of a pool is in service.
            (AllocError::NoOst { .. }, None) if ask.pool.is_some() => Fail::Fs(FsError::Invalid),
            (AllocError::AllInactive { .. }, None) if ask.pool.is_some() => Fail::Fs(FsError::Io),
            (AllocError::AllInactive { .. } | AllocError::NoOst { pool: None }, None) if ask.osts.is_empty() => {
                // Servers may still be on their way up; how long to wait is the driver's decision.
                Fail::Objects(OstIndex(u16::MAX))
            }
            (e, _) => Fail::Fs(FsError::from(e)),
        }
    }

    /// Undoes [`Pools::take`] of an operation that did not go through; nothing was taken in between.
    pub fn give_back(&mut self, objects: &[StripeObject]) {
        for o in objects.iter().rev() {
            if let Some(i) = self.at(o.ost) {
                self.pools[i].used = self.pools[i].used.min(o.object.0.oid.saturating_sub(1));
                self.refresh(i);
            }
        }
    }

    /// Whether an object may have been given to a file that the store does not have.
    #[must_use]
    pub fn may_have_given(&self, object: &StripeObject) -> bool {
        let Fid { seq, oid, .. } = object.object.0;
        let pool = self.get(object.ost).filter(|_| seq == ObjectId::seq_of(object.ost));
        // What a store that was put back does not have lies behind all that it has.
        pool.is_some_and(|p| p.unreplayed.contains(&oid) || p.newer && oid > p.found)
    }
    /// A replayed create has this object: it is in use whatever the store said. Whether it was not before.
    pub fn replayed(&mut self, object: &StripeObject) -> bool {
        let Fid { seq, oid, .. } = object.object.0;
        let Some(i) = self.at(object.ost).filter(|_| seq == ObjectId::seq_of(object.ost)) else { return false };
        let p = &mut self.pools[i];
        p.used = p.used.max(oid);
        p.last = p.last.max(oid);
        p.ceiling = p.ceiling.max(oid);
        p.unreplayed.remove(&oid)
    }
    /// Undoes what [`Pools::replayed`] said of objects, for a replay that did not go through.
    pub fn not_replayed(&mut self, objects: &[StripeObject]) {
        for o in objects {
            if let Some(i) = self.at(o.ost) {
                self.pools[i].unreplayed.insert(o.object.0.oid);
            }
        }
    }

    /// Objects that were given out in creates that are lost for good: nobody has creates to replay any more.
    pub fn lost(&mut self) -> Vec<StripeObject> {
        let of = |p: &mut Pool| {
            let (ost, ids) = (p.ost, std::mem::take(&mut p.unreplayed));
            ids.into_iter().map(move |id| StripeObject { ost, object: ObjectId::new(ost, id) })
        };
        self.pools.iter_mut().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(ready: &[(u16, u32)]) -> Pools {
        let mut p = Pools::new(AllocConfig::default(), Rng::new(1));
        for (ost, ready) in ready {
            p.add(OstIndex(*ost), true, &PrecreateRow::default());
            p.update(OstIndex(*ost), |p| {
                (p.in_sync, p.last, p.total_bytes, p.free_bytes) = (true, *ready, 1 << 30, 1 << 29);
            });
        }
        p
    }
    fn one() -> Resolved {
        layout::LayoutSpec::default().resolve()
    }

    #[test]
    fn a_create_avoids_an_empty_pool_and_waits_only_when_all_are_empty() {
        let mut p = pools(&[(0, 0), (1, 2)]);
        for oid in 1..=2 {
            let o = p.take(&one()).unwrap();
            assert_eq!((o[0].ost, o[0].object), (OstIndex(1), ObjectId::new(OstIndex(1), oid)));
        }
        assert!(matches!(p.take(&one()), Err(Fail::Objects(_))));
    }

    #[test]
    fn what_is_given_back_is_given_out_again() {
        let mut p = pools(&[(0, 5)]);
        let a = p.take(&one()).unwrap();
        p.give_back(&a);
        assert_eq!(p.take(&one()).unwrap(), a);
    }

    #[test]
    fn after_a_restart_nothing_below_the_ceiling_is_given_out_and_what_was_lost_is_named() {
        let ids = |objects: Vec<StripeObject>| objects.iter().map(|o| o.object.0.oid).collect::<Vec<u32>>();
        let object = |oid| StripeObject { ost: OstIndex(0), object: ObjectId::new(OstIndex(0), oid) };
        let mut p = pools(&[]);
        p.add(OstIndex(0), true, &PrecreateRow { last_used: 10, ceiling: 15, ..PrecreateRow::default() });
        assert!(p.replayed(&object(12)) && p.replayed(&object(15)) && !p.replayed(&object(9)));
        p.not_replayed(&[object(15)]);
        // The server dies again; another one finds what that one left.
        let left = p.get(OstIndex(0)).unwrap().row();
        let mut p = pools(&[]);
        p.add(OstIndex(0), true, &left);
        assert!(p.replayed(&object(15)));
        assert_eq!(ids(p.lost()), [11, 13, 14]);
        assert!(p.lost().is_empty());
        assert_eq!(p.get(OstIndex(0)).unwrap().row().may_be_lost(), BTreeSet::new());
        p.update(OstIndex(0), |p| (p.in_sync, p.last, p.free_bytes) = (true, 20, 1));
        assert_eq!(ids(p.take(&one()).unwrap()), [16]);
    }

    #[test]
    fn full_and_deactivated_osts_are_avoided_and_no_space_comes_only_when_all_are_full() {
        let mut p = pools(&[(0, 5), (1, 5)]);
        p.update(OstIndex(0), |p| p.free_bytes = 0);
        assert_eq!(p.take(&one()).unwrap()[0].ost, OstIndex(1));
        p.update(OstIndex(1), |p| p.state = 1 << 2);
        assert_eq!(p.take(&one()), Err(Fail::Fs(FsError::NoSpace)));
        p.update(OstIndex(0), |p| p.free_bytes = 1 << 29);
        p.update(OstIndex(0), |p| p.active = false);
        assert_eq!(p.take(&one()), Err(Fail::Fs(FsError::NoSpace)));
    }
}
