//! What users, groups and projects have and may have: inodes are counted here, in the transaction that makes, moves or removes
//! them; of bytes, which OSTs count, here are the limits and each OST's share ([`crate::shares`]).
//!
//! Every count is a row of the store, and is in memory. An operation says what it changes ([`Tx::charge`]); the new counts are
//! applied with its other changes, so they are those of the inodes that the store has, whatever crash or replay comes. They are
//! added up and rest on nothing: no operation waits for another's because both count for one user.
//! A time of grace begins with the change that exceeds a soft limit, and is a part of it.
//!
//! Limits of an id, for bytes and for inodes, are its own or else the default's of its kind. The default is an account like others, that of [`EVERYBODY`], which
//! has nothing; an OST that has a share of it knows that ids of which it knows nothing have limits, and asks ([`crate::quota_service`]).
//! [`Account::limits`] are those that hold: a new default is set into all accounts without limits of their own.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use rt::sync::Event;
use smallvec::SmallVec;
use types::{FsError, OstIndex, WallTime};
use wire::mdt::Cred;
use wire::quota::{EVERYBODY, QuotaId, QuotaKind, QuotaLimits, QuotaParts, UNLIMITED};

use crate::keys;
use crate::kv::{Key, KvSnapshot};
use crate::mds::Mds;
use crate::record::{GraceRow, Inode, QuotaRow, ShareRow};
use crate::shares::{Share, Shares};
use crate::start::{StartError, all, get};
use crate::store::Change;
use crate::tx::{Done, Tx};

/// A user, a group or a project.
pub(crate) type Id = (QuotaKind, u32);

/// An id in a message.
pub(crate) fn named((kind, id): Id) -> QuotaId {
    QuotaId { kind, id }
}

/// Whom an inode counts for: project 0 is none.
pub(crate) fn ids_of(inode: &Inode) -> impl Iterator<Item = Id> {
    let all = [(QuotaKind::User, inode.uid), (QuotaKind::Group, inode.gid), (QuotaKind::Project, inode.project)];
    all.into_iter().filter(|(kind, id)| *kind != QuotaKind::Project || *id != 0)
}

/// What inodes count for whom, of all that a store has.
pub(crate) fn count<'a>(inodes: impl Iterator<Item = &'a Inode>) -> BTreeMap<Id, u64> {
    let mut counts = BTreeMap::new();
    inodes.flat_map(ids_of).for_each(|id| *counts.entry(id).or_default() += 1);
    counts
}

/// The value of a count; none: 0.
pub(crate) fn count_row(inodes: u64) -> Option<Vec<u8>> {
    (inodes > 0).then(|| inodes.to_le_bytes().to_vec())
}

/// One id.
#[derive(Clone, Default, Debug)]
pub(crate) struct Account {
    pub inodes: u64,
    /// Those that hold.
    pub limits: QuotaLimits,
    /// Parts ([`QuotaParts`]) that are its own, also if there is no limit: the default does not hold for them.
    pub own: u32,
    /// When grace ends for what is above a soft limit; 0: nothing is.
    pub block_expires: WallTime,
    pub inode_expires: WallTime,
    pub shares: Shares,
}

/// What becomes of an expiry: it begins above the soft limit, and is over below.
fn expiry(before: WallTime, amount: u64, soft: u64, now: WallTime, grace_s: u64) -> WallTime {
    match (soft > 0 && amount > soft, before.0) {
        (false, _) => WallTime(0),
        (true, 0) => WallTime(now.0.saturating_add_unsigned(grace_s.saturating_mul(1_000_000_000)).max(1)),
        (true, _) => before,
    }
}

impl Account {
    fn of_row(inodes: u64, row: QuotaRow) -> Account {
        let mut shares = Shares::default();
        for s in &row.shares {
            shares.heard(s.ost, Share { used: s.used, share: s.share, told: 0 });
        }
        let QuotaRow { limits, block_expires, inode_expires, own, .. } = row;
        let own = (own | limits.parts()) & QuotaParts::ALL;
        Account { inodes, limits, own, block_expires, inode_expires, shares }
    }
    fn row(&self) -> Option<Vec<u8>> {
        let shares = self.shares.iter().filter(|_| self.limits_blocks());
        let shares: Vec<_> = shares.map(|(ost, s)| ShareRow { ost, used: s.used, share: s.share }).collect();
        let (block_expires, inode_expires, own) = (self.block_expires, self.inode_expires, self.own);
        if own == 0 && shares.is_empty() && (block_expires.0, inode_expires.0) == (0, 0) {
            return None;
        }
        let limits = self.limits.in_parts(own, &QuotaLimits::default());
        Some(wire::encode(&QuotaRow { limits, block_expires, inode_expires, shares, own }))
    }
    /// Whether there is nothing to be known of it.
    fn is_nothing(&self) -> bool {
        let times = (self.block_expires.0, self.inode_expires.0);
        (self.inodes, self.own, times) == (0, 0, (0, 0)) && self.shares.iter().next().is_none()
    }
    /// Whether it has a limit for bytes.
    pub fn limits_blocks(&self) -> bool {
        self.limits.block_soft > 0 || self.limits.block_hard > 0
    }
    /// Bytes that it may have now; `None`: any number.
    pub fn block_limit(&self, now: WallTime) -> Option<u64> {
        let QuotaLimits { block_soft: soft, block_hard: hard, .. } = self.limits;
        let expired = soft > 0 && self.block_expires.0 != 0 && now >= self.block_expires;
        match (expired, hard) {
            (true, 0) => Some(soft),
            (true, hard) => Some(soft.min(hard)),
            (false, 0) => None,
            (false, hard) => Some(hard),
        }
    }
    /// Whether it may have `more` inodes.
    fn may_have(&self, more: u64, now: WallTime) -> bool {
        let QuotaLimits { inode_soft: soft, inode_hard: hard, .. } = self.limits;
        let after = self.inodes.saturating_add(more);
        let expired = self.inode_expires.0 != 0 && now >= self.inode_expires;
        !(hard > 0 && after > hard || soft > 0 && after > soft && expired)
    }
}

/// Whether the default of its kind holds for an id that has no limits of its own.
fn has_default((_, id): Id) -> bool {
    id != 0 && id != EVERYBODY
}

/// The limits of an id that has none of its own.
fn default_in(accounts: &BTreeMap<Id, Account>, id: Id) -> QuotaLimits {
    let default = accounts.get(&(id.0, EVERYBODY)).filter(|_| has_default(id));
    default.map(|a| a.limits.clone()).unwrap_or_default()
}

/// An id of which nothing is known.
fn fresh(accounts: &BTreeMap<Id, Account>, id: Id) -> Account {
    Account { limits: default_in(accounts, id), ..Account::default() }
}

/// The account of an id; a new one, if it has none yet.
fn known(accounts: &mut BTreeMap<Id, Account>, id: Id) -> &mut Account {
    if !accounts.contains_key(&id) {
        let new = fresh(accounts, id);
        accounts.insert(id, new);
    }
    accounts.get_mut(&id).expect("it was put there")
}

/// Forgets an id of which there is nothing to be known: anybody may name any number of them.
fn forget_nothing(accounts: &mut BTreeMap<Id, Account>, id: Id) {
    if accounts.get(&id).is_some_and(Account::is_nothing) {
        accounts.remove(&id);
    }
}

/// Counts that an operation changes: by how much.
pub(crate) type Charges = SmallVec<[(Id, i64); 4]>;

/// What an operation's charges come to.
#[derive(Default)]
pub(crate) struct Charged(SmallVec<[(Id, u64, WallTime); 4]>);

/// All ids that have something or may not have all.
pub(crate) struct Quotas {
    accounts: RefCell<BTreeMap<Id, Account>>,
    grace: RefCell<GraceRow>,
    /// What OSTs are to be told of these ids.
    pub to_tell: RefCell<BTreeMap<OstIndex, BTreeSet<Id>>>,
    /// What they are being told of these: they have not answered yet.
    pub telling: RefCell<BTreeMap<OstIndex, Vec<Id>>>,
    /// An OST has taken in what it was to be told.
    pub told: Event,
    /// OSTs that do not know yet whose all their objects are.
    pub counting: RefCell<BTreeSet<OstIndex>>,
    /// Inodes that were refused so far.
    pub refused: Cell<u64>,
}

impl Quotas {
    /// From what the store holds.
    ///
    /// # Errors
    /// A row is damaged, or the store failed.
    pub async fn read(s: &dyn KvSnapshot) -> Result<Quotas, StartError> {
        let damaged = |key: &[u8]| StartError::Damaged { key: crate::kv::show_key(key) };
        let mut accounts: BTreeMap<Id, Account> = BTreeMap::new();
        for (key, value) in all(s, keys::USAGE).await? {
            let id = keys::quota_id(&key).ok_or_else(|| damaged(&key))?;
            let bytes = value[..].try_into().map_err(|_| damaged(&key))?;
            accounts.entry(id).or_default().inodes = u64::from_le_bytes(bytes);
        }
        for (key, value) in all(s, keys::QUOTA).await? {
            let id = keys::quota_id(&key).ok_or_else(|| damaged(&key))?;
            let row: QuotaRow = wire::decode(&value).map_err(|_| damaged(&key))?;
            let account = accounts.entry(id).or_default();
            *account = Account::of_row(account.inodes, row);
        }
        let defaults = QuotaKind::ALL.map(|kind| default_in(&accounts, (kind, 1)));
        for (id, account) in accounts.iter_mut().filter(|(id, _)| has_default(**id)) {
            account.limits = account.limits.in_parts(account.own, &defaults[id.0 as usize]);
        }
        let grace = match get(s, keys::GRACE).await? {
            Some(v) => wire::decode(&v).map_err(|_| damaged(keys::GRACE))?,
            None => GraceRow::default(),
        };
        Ok(Quotas {
            accounts: RefCell::new(accounts),
            grace: RefCell::new(grace),
            to_tell: RefCell::default(),
            telling: RefCell::default(),
            told: Event::new(),
            counting: RefCell::default(),
            refused: Cell::default(),
        })
    }

    /// Ids of which something is known.
    #[cfg(test)]
    pub fn known(&self) -> usize {
        self.accounts.borrow().len()
    }
    /// What is known of an id.
    pub fn account(&self, id: Id) -> Account {
        let accounts = self.accounts.borrow();
        accounts.get(&id).cloned().unwrap_or_else(|| fresh(&accounts, id))
    }
    /// Ids with a limit for bytes. Of those that nobody has heard of yet, OSTs ask themselves.
    pub fn block_limited(&self) -> Vec<Id> {
        let accounts = self.accounts.borrow();
        let limited = accounts.iter().filter(|(_, a)| a.limits_blocks()).map(|(id, _)| *id);
        limited.filter(|id| id.1 != EVERYBODY || !types::planted!("default-unheard")).collect()
    }
    /// Whether OSTs are told of an id: it has limits of its own for bytes, or some were told already.
    pub fn is_met(&self, id: Id) -> bool {
        let own = |a: &Account| a.own & QuotaParts::BLOCKS != 0;
        self.accounts.borrow().get(&id).is_some_and(|a| own(a) || a.shares.iter().next().is_some())
    }
    /// Seconds of grace of a kind: for bytes, for inodes.
    pub fn grace(&self, kind: QuotaKind) -> (u64, u64) {
        self.grace.borrow().of(kind)
    }
    /// Sets the seconds of grace of a kind. The store's change.
    pub fn set_grace(&self, kind: QuotaKind, block_s: Option<u64>, inode_s: Option<u64>) -> Change {
        let mut grace = self.grace.borrow_mut();
        let (block, inode) = grace.of(kind);
        grace.set(kind, block_s.unwrap_or(block), inode_s.unwrap_or(inode));
        (keys::plain(keys::GRACE), Some(wire::encode(&*grace)))
    }

    /// Changes what is known of an id, and sets its times of grace right. The store's change, if that is one.
    pub fn update(&self, id: Id, now: WallTime, change: impl FnOnce(&mut Account)) -> Option<Change> {
        let (block_s, inode_s) = self.grace(id.0);
        let mut accounts = self.accounts.borrow_mut();
        let account = known(&mut accounts, id);
        let before = account.row();
        change(account);
        let limits = &account.limits;
        account.block_expires = expiry(account.block_expires, account.shares.used(), limits.block_soft, now, block_s);
        account.inode_expires = expiry(account.inode_expires, account.inodes, limits.inode_soft, now, inode_s);
        let after = account.row();
        forget_nothing(&mut accounts, id);
        (after != before).then(|| (keys::quota(id), after))
    }
    /// Sets an id's limits, which are its own in these parts ([`QuotaParts`]); in others the default holds. Limits of [`EVERYBODY`] are set
    /// into all ids that have none of their own. All ids that this concerns, and the store's changes.
    pub fn set_limits(
        &self,
        id: Id,
        limits: &QuotaLimits,
        own: u32,
        osts: &[OstIndex],
        now: WallTime,
    ) -> (Vec<Id>, Vec<Change>) {
        let meet = |account: &mut Account| osts.iter().for_each(|ost| account.shares.meet(*ost));
        let default = default_in(&self.accounts.borrow(), id);
        let first = self.update(id, now, |account| {
            account.limits = limits.in_parts(own, &default);
            account.own = own;
            meet(account);
        });
        let (mut ids, mut changes) = (vec![id], Vec::from_iter(first));
        if id.1 == EVERYBODY {
            let with_some = |(i, a): &(&Id, &Account)| has_default(**i) && a.own != QuotaParts::ALL;
            let accounts = self.accounts.borrow();
            ids.extend(accounts.range((id.0, 0)..id).filter(with_some).map(|(i, _)| *i));
        }
        changes.extend(ids[1..].iter().filter_map(|i| {
            self.update(*i, now, |account| {
                account.limits = account.limits.in_parts(account.own, limits);
                if account.limits_blocks() {
                    meet(account);
                }
            })
        }));
        (ids, changes)
    }
    /// An OST says what an id has there. The store's change.
    pub fn heard(&self, id: Id, ost: OstIndex, told: Share, now: WallTime) -> Option<Change> {
        self.update(id, now, |account| {
            account.shares.heard(ost, told);
        })
    }
    /// An OST has left the cluster. The store's changes.
    pub fn forget_ost(&self, ost: OstIndex, now: WallTime) -> Vec<Change> {
        self.to_tell.borrow_mut().remove(&ost);
        self.telling.borrow_mut().remove(&ost);
        self.counting.borrow_mut().remove(&ost);
        let ids: Vec<Id> = self.accounts.borrow().keys().copied().collect();
        ids.into_iter().filter_map(|id| self.update(id, now, |account| account.shares.forget(ost))).collect()
    }
    /// Whether an id may have another inode.
    fn may_have(&self, id: Id, now: WallTime) -> bool {
        let accounts = self.accounts.borrow();
        let account = accounts.get(&id);
        id.1 == EVERYBODY || account.map_or_else(|| fresh(&accounts, id).may_have(1, now), |a| a.may_have(1, now))
    }
    /// Which OSTs have to be told another share of an id; what that is says [`Quotas::wanted_share`] then.
    pub fn note_wrong_shares(&self, id: Id, now: WallTime) -> Vec<OstIndex> {
        let account = self.account(id);
        let wrong = account.shares.wrong(account.block_limit(now));
        let mut to_tell = self.to_tell.borrow_mut();
        wrong.iter().for_each(|(ost, _)| to_tell.entry(*ost).or_default().extend([id]));
        wrong.into_iter().map(|(ost, _)| ost).collect()
    }
    /// OSTs are to give back what they do not use of an id's.
    pub fn recall(&self, id: Id, osts: &[OstIndex]) {
        let mut to_tell = self.to_tell.borrow_mut();
        osts.iter().for_each(|ost| to_tell.entry(*ost).or_default().extend([id]));
    }
    /// An OST is being told of these ids.
    pub fn mark_told(&self, ost: OstIndex, ids: &[Id]) {
        if let Some(waiting) = self.to_tell.borrow_mut().get_mut(&ost) {
            for id in ids {
                waiting.remove(id);
            }
        }
        self.telling.borrow_mut().insert(ost, ids.to_vec());
    }
    /// It has answered, or is not there: what was not taken in is told again.
    pub fn mark_answered(&self, ost: OstIndex, taken: bool) {
        let ids = self.telling.borrow_mut().remove(&ost).unwrap_or_default();
        if !taken {
            self.to_tell.borrow_mut().entry(ost).or_default().extend(ids);
        }
        self.told.notify();
    }
    /// Of how many of these ids an OST has not taken in yet what it is to be told.
    pub fn untold(&self, ost: OstIndex, ids: &BTreeSet<Id>) -> usize {
        let (to_tell, telling) = (self.to_tell.borrow(), self.telling.borrow());
        let waiting = to_tell.get(&ost).map_or(0, |all| ids.intersection(all).count());
        waiting + telling.get(&ost).map_or(0, |all| all.iter().filter(|id| ids.contains(id)).count())
    }
    /// The share that an OST is told of an id which it is to be told something of: what it uses, or any.
    pub fn wanted_share(&self, id: Id, now: WallTime) -> u64 {
        if self.account(id).block_limit(now).is_none() { UNLIMITED } else { 0 }
    }

    /// What charges come to.
    pub fn after(&self, charges: &[(Id, i64)], now: WallTime) -> Charged {
        let accounts = self.accounts.borrow();
        let one = |(id, by): &(Id, i64)| {
            let none = fresh(&accounts, *id);
            let account = accounts.get(id).unwrap_or(&none);
            let inodes = account.inodes.saturating_add_signed(*by);
            let expires = expiry(account.inode_expires, inodes, account.limits.inode_soft, now, self.grace(id.0).1);
            (*id, inodes, expires)
        };
        Charged(charges.iter().filter(|(_, by)| *by != 0).map(one).collect())
    }
    /// The store's changes.
    pub fn changes(&self, charged: &Charged) -> Vec<(Key, Option<Vec<u8>>)> {
        let accounts = self.accounts.borrow();
        let mut changes = Vec::with_capacity(charged.0.len());
        for (id, inodes, expires) in &charged.0 {
            changes.push((keys::usage(*id), count_row(*inodes)));
            let none = fresh(&accounts, *id);
            let account = accounts.get(id).unwrap_or(&none);
            if account.inode_expires != *expires {
                changes.push((keys::quota(*id), Account { inode_expires: *expires, ..account.clone() }.row()));
            }
        }
        changes
    }
    /// They are applied.
    pub fn take(&self, charged: Charged) {
        let mut accounts = self.accounts.borrow_mut();
        for (id, inodes, expires) in charged.0 {
            let account = known(&mut accounts, id);
            (account.inodes, account.inode_expires) = (inodes, expires);
            forget_nothing(&mut accounts, id);
        }
    }
}

impl Mds {
    /// Inodes that count for one now.
    #[must_use]
    pub fn inodes_of(&self, kind: QuotaKind, id: u32) -> u64 {
        self.quotas.account((kind, id)).inodes
    }
}

impl Tx<'_> {
    /// So many more inodes count for an id.
    fn charge(&mut self, id: Id, by: i64) {
        if self.replay && types::planted!("replay-uncounted") {
            return;
        }
        match self.charges.iter_mut().find(|(i, _)| *i == id) {
            Some((_, sum)) => *sum += by,
            None => self.charges.push((id, by)),
        }
    }
    /// An inode comes into being.
    ///
    /// # Errors
    /// `Quota` when somebody whom it counts for may not have more. Not for who is privileged, nor in a replay.
    pub(crate) fn charge_new(&mut self, cred: &Cred, inode: &Inode) -> Done<()> {
        for id in ids_of(inode) {
            self.admit(cred, id)?;
            self.charge(id, 1);
        }
        Ok(())
    }
    /// An inode is no more.
    pub(crate) fn charge_gone(&mut self, inode: &Inode) {
        if types::planted!("removal-uncounted") {
            return;
        }
        ids_of(inode).for_each(|id| self.charge(id, -1));
    }
    /// An inode gets another owner, group or project.
    ///
    /// # Errors
    /// As [`Tx::charge_new`].
    pub(crate) fn charge_moved(&mut self, cred: &Cred, before: &Inode, after: &Inode) -> Done<()> {
        let (old, new): (Vec<Id>, Vec<Id>) = (ids_of(before).collect(), ids_of(after).collect());
        for id in new.iter().filter(|id| !old.contains(id)) {
            self.admit(cred, *id)?;
            if !types::planted!("chown-keeps-count") {
                self.charge(*id, 1);
            }
        }
        if !types::planted!("chown-keeps-count") {
            old.iter().filter(|id| !new.contains(id)).for_each(|id| self.charge(*id, -1));
        }
        Ok(())
    }
    fn admit(&mut self, cred: &Cred, id: Id) -> Done<()> {
        let quotas = &self.mds.quotas;
        if self.replay || cred.uid == 0 || quotas.may_have(id, self.now) {
            return Ok(());
        }
        quotas.refused.set(quotas.refused.get() + 1);
        Err(FsError::Quota.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_begins_above_the_soft_limit_is_over_below_and_ends_when_its_time_has_come() {
        let second = |s: i64| WallTime(s * 1_000_000_000);
        let begun = expiry(WallTime(0), 11, 10, second(5), 7);
        assert_eq!(begun, second(12));
        assert_eq!(expiry(begun, 15, 10, second(9), 7), begun, "more does not begin it anew");
        assert_eq!(expiry(begun, 10, 10, second(9), 7), WallTime(0));
        assert_eq!(expiry(begun, 15, 0, second(9), 7), WallTime(0), "the limit went");
        let limits = QuotaLimits { inode_soft: 10, inode_hard: 20, block_soft: 100, block_hard: 200 };
        let at = |inodes: u64| Account {
            inodes,
            limits: limits.clone(),
            inode_expires: begun,
            block_expires: begun,
            ..Account::default()
        };
        assert!(at(19).may_have(1, second(11)) && !at(20).may_have(1, second(11)), "hard");
        assert!(at(9).may_have(1, second(12)) && !at(10).may_have(1, second(12)), "soft, without grace");
        assert_eq!((at(0).block_limit(second(11)), at(0).block_limit(second(12))), (Some(200), Some(100)));
        let soft =
            Account { limits: QuotaLimits { block_hard: 0, ..limits }, block_expires: begun, ..Account::default() };
        assert_eq!((soft.block_limit(second(11)), soft.block_limit(second(12))), (None, Some(100)));
    }
}
