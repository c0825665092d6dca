//! Quotas at an OST: how many bytes users, groups and projects have here, and who may have more.
//!
//! The metadata server gives each limited id a share; a write that would need more asks for more, and is refused with EDQUOT only when
//! the answer is that there is none. What clients hold in their caches under grant was answered to programs already and is taken
//! whatever is left. So that this is little, answers to writes say of whom little is left (`tight`): those clients bring further
//! writes at once and without grant, and each is looked at before its program is answered.
//! The user that writes counts, too: root is not limited, as in Lustre.
//!
//! Where a kind has default limits, which the metadata server says by a share of [`EVERYBODY`], an id without a share has one of nothing: it asks
//! with its first bytes. When the answer is that it has no limit, that is remembered until the metadata server says otherwise, or this OST ends.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ptlrpc::Request;
use rt::sync::Event;
use types::{Duration, Extent, FsError, Instant, MIB, ObjectId, Transno};
use wire::Op;
use wire::ost::{FileOwner, IoOwner, PunchRequest};
use wire::quota::{
    AskQuotaCallback, AskQuotaReply, EVERYBODY, OstQuotaReply, OstQuotaRequest, OstQuotaUsage, OwnRequest, UNLIMITED,
};

use super::{Ost, answer, answer_change};
use crate::store::{BLOCK_BYTES, Charged, Owner, OwnerRule, Update};

/// How long the metadata server may take to answer one question.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause before a metadata server that does not answer is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How often before whoever writes has to come again.
const TRIES_MAX: u32 = 8;
/// Below so much, more is asked for ahead of need.
const AHEAD_BYTES: u64 = 32 * MIB;
/// Below so much, and if no more is to be had, writes take no grant.
const TIGHT_BYTES: u64 = 16 * MIB;
/// A question ahead of need that brought less than was wanted is not asked again before this has passed.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// One limited id.
#[derive(Default)]
struct Limited {
    /// Bytes that it may have here; [`UNLIMITED`]: any, although its kind has a default.
    share: u64,
    /// Bytes of writes that were let in and that the store does not count yet.
    held: u64,
    /// Grows with everything that is said of the share: an answer to a question of before counts no more. 0: nobody has said anything yet.
    version: u64,
    /// The last question brought less than was wanted.
    short: bool,
    asked: Instant,
    /// Somebody asks.
    asking: Option<Rc<Event>>,
}

/// A share that is on its way to the store.
#[derive(Default)]
struct Unkept {
    /// The largest share that may be found there if everything ended now: bytes.
    largest: u64,
    /// Writes of it that were begun.
    writes: u64,
}

/// What an OST knows of quotas besides what its store counts.
#[derive(Default)]
pub(crate) struct Quotas {
    limited: RefCell<BTreeMap<Charged, Limited>>,
    /// Those whose shares the store may remember as they were before.
    unkept: RefCell<BTreeMap<Charged, Unkept>>,
    told: Cell<u64>,
}

impl Quotas {
    /// With the shares that the store remembers.
    pub fn of_store(shares: Vec<(Charged, u64)>, boot: u64) -> Quotas {
        let limited = |(who, share)| (who, Limited { share, version: 1, ..Limited::default() });
        let limited = shares.into_iter().map(limited).collect();
        Quotas { limited: RefCell::new(limited), unkept: RefCell::default(), told: Cell::new(boot << 32) }
    }
    fn is_off(&self) -> bool {
        self.limited.borrow().is_empty()
    }
    /// One is not limited any more. Who waits for an answer looks again.
    fn unlimit(&self, who: Charged) {
        let mut limited = self.limited.borrow_mut();
        let mut gone = Vec::from_iter(limited.remove(&who));
        if who.1 == EVERYBODY {
            // Nothing has to be known any more of those that had no limit all the same, and of those of which the metadata server knows nothing.
            let free = limited.extract_if((who.0, 0)..who, |_, l| l.share == UNLIMITED || l.version == 0);
            gone.extend(free.map(|(_, l)| l));
        } else if limited.contains_key(&(who.0, EVERYBODY)) {
            let (held, version) = gone.first().map_or((0, 1), |l| (l.held, l.version + 1));
            limited.insert(who, Limited { share: UNLIMITED, held, version, ..Limited::default() });
        }
        drop(limited);
        gone.into_iter().filter_map(|l| l.asking).for_each(|asking| asking.notify());
    }
    /// Whether one is limited here, by its own limits or by the default: then it has a place in the books from now on.
    fn is_limited(&self, who: Charged) -> bool {
        let mut limited = self.limited.borrow_mut();
        let by_default = who.1 != 0 && limited.contains_key(&(who.0, EVERYBODY));
        if by_default && who.1 != EVERYBODY {
            limited.entry(who).or_default();
        }
        limited.contains_key(&who) && who.1 != EVERYBODY
    }
    /// The store begins to remember a share: until it has, the one of before counts on. The number of this write.
    fn begins(&self, who: Charged, before: u64, now: Option<u64>) -> u64 {
        let mut unkept = self.unkept.borrow_mut();
        let u = unkept.entry(who).or_default();
        // Who has no limit all the same is not remembered: it is asked for again.
        let before = if before == UNLIMITED { 0 } else { before };
        u.largest = u.largest.max(before).max(now.unwrap_or(0));
        u.writes += 1;
        u.writes
    }
    /// The store has remembered what a write brought; if another one was begun since, that one's end is waited for.
    fn ends(&self, who: Charged, write: u64) {
        let mut unkept = self.unkept.borrow_mut();
        if unkept.get(&who).is_some_and(|u| u.writes == write) {
            unkept.remove(&who);
        }
    }
    /// A share as it may be said: another OST is given what is missing from what was said, so what is given up counts until the store knows.
    fn sayable(&self, who: Charged, share: u64) -> u64 {
        let unkept = self.unkept.borrow();
        unkept.get(&who).filter(|_| !types::planted!("share-said-early")).map_or(share, |u| share.max(u.largest))
    }
    fn next_told(&self) -> u64 {
        self.told.set(self.told.get() + 1);
        self.told.get()
    }
}

/// Bytes that were let in and are not counted yet; they are when this is dropped.
pub(super) struct Charge<'a> {
    ost: &'a Ost,
    who: Vec<Charged>,
    bytes: u64,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let mut limited = self.ost.quotas.limited.borrow_mut();
        for who in &self.who {
            if let Some(l) = limited.get_mut(who) {
                l.held = l.held.saturating_sub(self.bytes);
            }
        }
    }
}

/// What is to be let in.
pub(super) struct Wants<'a> {
    pub object: ObjectId,
    pub extents: &'a [Extent],
    pub bytes: u64,
    /// Who writes.
    pub writer: &'a IoOwner,
    /// Whose file it is, as the writer knows.
    pub file: Option<&'a FileOwner>,
    /// It is let in whatever is left.
    pub promised: bool,
}

impl<'a> Wants<'a> {
    /// What zeros over holes need: whole blocks.
    pub fn of_zeros(ask: &'a PunchRequest, extents: &'a [Extent; 1]) -> Wants<'a> {
        let bytes = extents[0].len();
        Wants { object: ask.object, extents, bytes, writer: &ask.owner, file: ask.file.as_ref(), promised: false }
    }
}

/// The owner that an object gets if it has none. What a client says whose credential maps or squashes ids is made the servers' here.
pub(super) fn owner_rule(request: &Request, file: Option<&FileOwner>) -> OwnerRule {
    let limits = request.export.limits().filter(|l| l.changes_ids() && !types::planted!("ids-not-mapped"));
    let owner = file.map(|f| {
        let (uid, gid) = limits.as_ref().map_or((f.uid, f.gid), |l| {
            let (squash_uid, squash_gid) = l.squash_ids();
            (l.uid_in(f.uid).unwrap_or(squash_uid), l.gid_in(f.gid).unwrap_or(squash_gid))
        });
        Owner { uid, gid, project: f.project }
    });
    owner.map_or(OwnerRule::Keep, OwnerRule::IfNone)
}

/// Whether root writes, at the servers too.
pub(super) fn is_root(request: &Request, writer: &IoOwner) -> bool {
    let limits = request.export.limits().filter(|l| l.changes_ids());
    writer.uid == 0 && limits.is_none_or(|l| !l.squashes_root() && l.uid_in(0) == Some(0))
}

impl Ost {
    /// Those whom an object counts for, or will, and who are limited here.
    async fn limited_of(&self, object: ObjectId, rule: OwnerRule) -> Result<Vec<Charged>, FsError> {
        if self.quotas.is_off() {
            return Ok(Vec::new());
        }
        let owner = rule.apply(self.store.attr(object).await?.owner);
        Ok(owner.into_iter().flat_map(|o| o.charged()).filter(|who| self.quotas.is_limited(*who)).collect())
    }

    /// Lets bytes in.
    ///
    /// # Errors
    /// `Quota` when somebody whom they count for may not have so many; `Overloaded` when nobody knows now.
    pub(super) async fn charge(&self, request: &Request, wants: Wants<'_>) -> Result<Charge<'_>, FsError> {
        let who = self.limited_of(wants.object, owner_rule(request, wants.file)).await?;
        let exempt =
            request.is_replay() || wants.promised || is_root(request, wants.writer) || types::planted!("quota-ignored");
        let mut bytes = wants.bytes;
        if !exempt && who.iter().any(|w| self.lacks(*w, bytes) > 0) {
            // What is overwritten needs nothing.
            bytes = bytes.saturating_sub(self.there(wants.object, wants.extents).await?);
            for w in &who {
                self.find_room(*w, bytes).await?;
            }
        }
        let mut limited = self.quotas.limited.borrow_mut();
        for w in &who {
            if let Some(l) = limited.get_mut(w) {
                l.held = l.held.saturating_add(bytes);
            }
        }
        drop(limited);
        Ok(Charge { ost: self, who, bytes })
    }

    /// Bytes that are missing for `more`; 0 for those who are not limited.
    fn lacks(&self, who: Charged, more: u64) -> u64 {
        let limited = self.quotas.limited.borrow();
        limited
            .get(&who)
            .map_or(0, |l| self.used(who).saturating_add(l.held).saturating_add(more).saturating_sub(l.share))
    }
    /// What one has here, the bytes of writes that were let in among it, and what it may have: bytes; [`UNLIMITED`]: any number.
    #[must_use]
    pub fn quota_of(&self, who: Charged) -> (u64, u64) {
        let limited = self.quotas.limited.borrow();
        let (held, share) = limited.get(&who).map_or((0, UNLIMITED), |l| (l.held, l.share));
        (self.used(who).saturating_add(held), share)
    }
    fn used(&self, who: Charged) -> u64 {
        self.store.usage(who).saturating_mul(BLOCK_BYTES)
    }

    async fn find_room(&self, who: Charged, bytes: u64) -> Result<(), FsError> {
        for _ in 0..TRIES_MAX {
            if bytes == 0 || self.lacks(who, bytes) == 0 {
                return Ok(());
            }
            match self.ask_for_share(who, bytes).await {
                // Others may have come first, or the share was said anew meanwhile.
                Some(true) => {}
                Some(false) if self.lacks(who, bytes) == 0 => return Ok(()),
                Some(false) => return Err(FsError::Quota),
                None => self.rt.sleep(RETRY_PAUSE).await,
            }
        }
        Err(FsError::Overloaded)
    }

    /// Asks the metadata server for a share that holds `more` bytes besides. `None`: it does not answer. Some(false): this is what there
    /// is; true: it is worth looking again.
    async fn ask_for_share(&self, who: Charged, more: u64) -> Option<bool> {
        let asking = self.quotas.limited.borrow().get(&who).and_then(|l| l.asking.clone());
        if let Some(asking) = asking {
            asking.wait().await;
            return Some(true);
        }
        let (ask, version) = {
            let mut limited = self.quotas.limited.borrow_mut();
            let Some(l) = limited.get_mut(&who) else { return Some(true) };
            l.asking = Some(Rc::default());
            l.asked = self.rt.now();
            let used = self.used(who).saturating_add(l.held);
            let told = self.quotas.next_told();
            let share = self.quotas.sayable(who, l.share);
            (AskQuotaCallback { kind: who.0, id: who.1, used, share, wanted: more, told }, l.version)
        };
        let _asking = Asking { ost: self, who };
        let server = self.creators.latest().and_then(|c| self.exports.borrow().get(&c).cloned())?;
        let body = server.callback(Op::OstAskQuota, &ask, ANSWER_MAX).await.ok()?;
        let AskQuotaReply { share } = wire::decode(&body).ok()?;
        let mut limited = self.quotas.limited.borrow_mut();
        let Some(l) = limited.get_mut(&who).filter(|l| l.version == version) else { return Some(true) };
        l.version += 1;
        // What is being written finds its place.
        let share = if share < ask.share { share.max(self.used(who).saturating_add(l.held)) } else { share };
        l.short = share < ask.used.saturating_add(more);
        let before = std::mem::replace(&mut l.share, share);
        drop(limited);
        if share == UNLIMITED {
            self.quotas.unlimit(who);
        }
        self.keep_share(who, before);
        Some(false)
    }

    /// The store remembers a share as it is when its turn comes, in the background: if a larger one is lost, it is asked for again.
    fn keep_share(&self, who: Charged, before: u64) {
        let Some(me) = self.me.upgrade() else { return };
        // Also before its turn has come.
        self.quotas.begins(who, before, None);
        self.rt.spawn(async move {
            let share = me.quotas.limited.borrow().get(&who).map(|l| l.share);
            if let Err(e) = me.keep_shares(vec![(who, before, share)]).await {
                tracing::debug!(target = me.identity.target(), "a share is not remembered: {e}");
            }
        });
    }

    /// The store remembers shares: of each what it was before, and what it is; `None`: not limited.
    async fn keep_shares(&self, mut shares: Vec<(Charged, u64, Option<u64>)>) -> Result<(), FsError> {
        shares.iter_mut().for_each(|(_, _, now)| *now = now.filter(|share| *share != UNLIMITED));
        let begins = |(who, before, now): &(Charged, u64, Option<u64>)| (*who, self.quotas.begins(*who, *before, *now));
        let begun: Vec<_> = shares.iter().map(begins).collect();
        self.store.set_shares(shares.into_iter().map(|(who, _, now)| (who, now)).collect()).await?;
        begun.into_iter().for_each(|(who, write)| self.quotas.ends(who, write));
        Ok(())
    }

    /// Of whom of an object's little is left (bits of [`wire::ost::WriteReply::tight`]). Asks for more ahead of need.
    pub(super) fn tight(&self, owner: Option<Owner>) -> u8 {
        if self.quotas.is_off() {
            return 0;
        }
        let mut bits = 0;
        for who in owner.into_iter().flat_map(|o| o.charged()) {
            let limited = self.quotas.limited.borrow();
            let Some(l) = limited.get(&who).filter(|_| who.1 != EVERYBODY) else { continue };
            let left = l.share.saturating_sub(self.used(who).saturating_add(l.held));
            if left < TIGHT_BYTES && (l.short || left == 0) {
                bits |= who.0.bit();
            }
            let again = !l.short || self.rt.now().since(l.asked) >= ASK_AGAIN;
            if left < AHEAD_BYTES
                && again
                && l.asking.is_none()
                && let Some(me) = self.me.upgrade()
            {
                self.rt.spawn(async move {
                    me.ask_for_share(who, AHEAD_BYTES).await;
                });
            }
        }
        bits
    }

    /// The metadata server says what the shares are, and asks what is used.
    pub(super) async fn quota(&self, request: Request) {
        let reply = match request.decode::<OstQuotaRequest>() {
            Ok(ask) => self.do_quota(&ask).await,
            Err(e) => Err(e),
        };
        answer(request, &reply);
    }

    async fn do_quota(&self, ask: &OstQuotaRequest) -> Result<OstQuotaReply, FsError> {
        let mut shares = Vec::with_capacity(ask.set.len());
        for s in &ask.set {
            let who = (s.kind, s.id);
            let used = self.used(who);
            let before = self.quotas.limited.borrow().get(&who).map_or(0, |l| l.share);
            if s.share == UNLIMITED {
                self.quotas.unlimit(who);
                shares.push((who, before, None));
                continue;
            }
            let mut limited = self.quotas.limited.borrow_mut();
            let l = limited.entry(who).or_default();
            // What is being written finds its place.
            l.share = s.share.max(used.saturating_add(l.held));
            l.version += 1;
            shares.push((who, before, Some(l.share)));
        }
        // Another OST may be given what this one gives up.
        if !shares.is_empty() && !types::planted!("share-not-kept") {
            self.keep_shares(shares).await?;
        }
        if ask.owned {
            self.store.set_owned().await?;
        }
        let mut wanted: Vec<Charged> = ask.set.iter().map(|s| (s.kind, s.id)).collect();
        wanted.extend(ask.ask.iter().map(|a| (a.kind, a.id)));
        if ask.all {
            wanted.extend(self.quotas.limited.borrow().keys());
        }
        let told = self.quotas.next_told();
        let usages = wanted.into_iter().map(|who| self.usage_of(who)).collect();
        Ok(OstQuotaReply { usages, owned: self.store.is_owned(), told })
    }

    /// What is said of an id; answers to questions of before count no more.
    fn usage_of(&self, who: Charged) -> OstQuotaUsage {
        let mut limited = self.quotas.limited.borrow_mut();
        let known = limited.get_mut(&who);
        let share = known.map_or(UNLIMITED, |l| {
            l.version += 1;
            self.quotas.sayable(who, l.share)
        });
        OstQuotaUsage { kind: who.0, id: who.1, used: self.used(who), share }
    }

    /// The metadata server says whose objects are.
    pub(super) async fn own(&self, request: Request) {
        let reply = match request.decode::<OwnRequest>() {
            Ok(ask) => self.do_own(&request, &ask).await.map(|transno| (transno, ())),
            Err(e) => Err(e),
        };
        answer_change(request, &reply);
    }

    async fn do_own(&self, request: &Request, ask: &OwnRequest) -> Result<Transno, FsError> {
        let mut last = request.header.transno;
        for o in &ask.objects {
            let owner = Owner { uid: o.uid, gid: o.gid, project: o.project };
            let rule = if o.unless_owned { OwnerRule::IfNone(owner) } else { OwnerRule::Is(owner) };
            let replay = request.is_replay().then_some(request.header.transno);
            match self.store.update(o.object, Update { owner: rule, replay, ..Update::default() }).await {
                Ok(applied) => last = applied.transno,
                // It was removed meanwhile, or is lost.
                Err(FsError::NotFound) => {}
                Err(_) if o.object.0.oid <= self.store.lost_through() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(last)
    }
}

/// While it lives, others wait for the answer that it waits for.
struct Asking<'a> {
    ost: &'a Ost,
    who: Charged,
}
impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let asking = self.ost.quotas.limited.borrow_mut().get_mut(&self.who).and_then(|l| l.asking.take());
        if let Some(asking) = asking {
            asking.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use simworld::TestWorld;
    use types::OstIndex;
    use wire::quota::QuotaKind;

    use super::*;
    use crate::OstConfig;
    use crate::store::{MemoryStore, StoreIdentity};

    #[test]
    fn a_share_that_an_answer_takes_away_counts_from_that_moment_until_the_store_knows_of_it() {
        let world = TestWorld::new(1, 24 * MIB);
        let rt = world.rt();
        let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
        let store = MemoryStore::new(&rt, identity, 1 << 30);
        let ost = Ost::new(rt, store, OstConfig::default(), None).unwrap();
        let who = (QuotaKind::User, 5);
        let now = Limited { share: 10 * MIB, version: 1, ..Limited::default() };
        ost.quotas.limited.borrow_mut().insert(who, now);
        ost.keep_share(who, 20 * MIB);
        assert_eq!(ost.usage_of(who).share, 20 * MIB, "a question that came before the store was told");
        world.settle();
        assert_eq!(ost.usage_of(who).share, 10 * MIB);
    }
}
