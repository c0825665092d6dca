//! Who holds what: advised extents by object, and sums by tier, class and project.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use types::{Extent, ObjectId};

use crate::advisor::{Advice, OwnerId, Payer, ProjectId, UserId};
use crate::{Hint, Tier};

/// Advised bytes of one object, in one tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub object: ObjectId,
    pub extent: Extent,
    pub hint: Hint,
    pub tier: Tier,
    pub project: ProjectId,
    pub user: UserId,
    pub owner: OwnerId,
    /// Grows with every insertion: the older of two equal classes gives way first.
    seq: u64,
}

impl Entry {
    fn payers(&self) -> [Payer; 2] {
        [Payer::Project(self.project), Payer::User(self.user)]
    }
}

/// Bytes by tier and class.
type Held = [[u64; 5]; 2];

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    /// Keyed by object and start; extents of one object are disjoint.
    entries: BTreeMap<(ObjectId, u64), Entry>,
    /// (tier, class, seq) -> key: lowest class first, oldest first.
    order: BTreeMap<(Tier, Hint, u64), (ObjectId, u64)>,
    held: Held,
    by_payer: BTreeMap<Payer, Held>,
    next_seq: u64,
}

impl Ledger {
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Bytes that classes from `hint` up hold in a tier.
    pub fn held_from(&self, tier: Tier, hint: Hint) -> u64 {
        self.held[tier as usize][hint as usize..].iter().sum()
    }
    /// The same for one project or user.
    pub fn payer_held_from(&self, payer: Payer, tier: Tier, hint: Hint) -> u64 {
        self.by_payer.get(&payer).map_or(0, |h| h[tier as usize][hint as usize..].iter().sum())
    }
    /// The entry that holds a byte of an object.
    pub fn at(&self, object: ObjectId, offset: u64) -> Option<&Entry> {
        let (_, e) = self.entries.range((object, 0)..=(object, offset)).next_back()?;
        e.extent.contains_offset(offset).then_some(e)
    }
    /// Start of the first entry of an object behind `offset`; `u64::MAX` when there is none.
    pub fn next_start(&self, object: ObjectId, offset: u64) -> u64 {
        self.entries.range((object, offset)..=(object, u64::MAX)).next().map_or(u64::MAX, |(k, _)| k.1)
    }
    /// Entries of an object, by offset.
    pub fn of_object(&self, object: ObjectId) -> impl Iterator<Item = &Entry> {
        self.entries.range((object, 0)..=(object, u64::MAX)).map(|(_, e)| e)
    }
    /// Adds an entry that was taken out, in the order that it had.
    pub fn put_back(&mut self, e: Entry) {
        self.enter(e);
    }
    /// Adds advised bytes; none of them may be advised already.
    pub fn insert(&mut self, advice: &Advice, extent: Extent, tier: Tier) {
        let Advice { object, hint, project, user, owner, .. } = *advice;
        self.put(Entry { object, extent, hint, tier, project, user, owner, seq: self.next_seq });
    }
    /// Takes out the advised parts of an extent; entries at its edges are cut.
    pub fn take(&mut self, object: ObjectId, extent: Extent) -> Vec<Entry> {
        let before = self.entries.range((object, 0)..=(object, extent.start)).next_back().map(|(k, _)| *k);
        let within = self.entries.range((object, extent.start)..(object, extent.end)).map(|(k, _)| *k);
        let mut keys: Vec<_> = before.into_iter().chain(within).collect();
        keys.dedup();
        let mut taken = Vec::new();
        for key in keys {
            let Some(common) = self.entries.get(&key).and_then(|e| e.extent.intersect(&extent)) else { continue };
            let e = self.remove(key);
            taken.push(Entry { extent: common, ..e });
            for rest in [Extent::new(e.extent.start, common.start), Extent::new(common.end, e.extent.end)] {
                if !rest.is_empty() {
                    self.put(Entry { extent: rest, ..e });
                }
            }
        }
        taken
    }
    /// Takes out the first entry to give way in a tier, below `hint`; of one project or user when given.
    pub fn take_lowest(&mut self, tier: Tier, hint: Hint, payer: Option<Payer>) -> Option<Entry> {
        let below = self.order.range((tier, Hint::None, 0)..(tier, hint, 0));
        let mut keys = below.map(|(_, k)| *k);
        let key = match payer {
            None => keys.next(),
            Some(p) => keys.find(|k| self.entries.get(k).is_some_and(|e| e.payers().contains(&p))),
        }?;
        Some(self.remove(key))
    }
    /// Takes out everything an owner advised.
    pub fn take_owner(&mut self, owner: OwnerId) -> Vec<Entry> {
        let keys: Vec<_> = self.entries.iter().filter(|(_, e)| e.owner == owner).map(|(k, _)| *k).collect();
        keys.into_iter().map(|k| self.remove(k)).collect()
    }
    /// Everything advised, by object and offset.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    fn put(&mut self, mut e: Entry) {
        // What is left of a cut entry counts as the youngest of its class.
        e.seq = self.next_seq;
        self.next_seq += 1;
        self.enter(e);
    }
    fn enter(&mut self, e: Entry) {
        let key = (e.object, e.extent.start);
        let old = self.entries.insert(key, e);
        assert!(old.is_none(), "advised twice");
        self.order.insert((e.tier, e.hint, e.seq), key);
        self.held[e.tier as usize][e.hint as usize] += e.extent.len();
        for payer in e.payers() {
            self.by_payer.entry(payer).or_default()[e.tier as usize][e.hint as usize] += e.extent.len();
        }
    }
    fn remove(&mut self, key: (ObjectId, u64)) -> Entry {
        let e = self.entries.remove(&key).expect("the caller found the key");
        self.order.remove(&(e.tier, e.hint, e.seq));
        self.held[e.tier as usize][e.hint as usize] -= e.extent.len();
        for payer in e.payers() {
            let held = self.by_payer.get_mut(&payer).expect("who pays for an entry has a sum");
            held[e.tier as usize][e.hint as usize] -= e.extent.len();
            if *held == Held::default() {
                self.by_payer.remove(&payer);
            }
        }
        e
    }
}
