//! Quotas towards others: administrators set limits, anybody asks, OSTs are told their shares and ask for more.
//!
//! An OST hears of a limit when it is set, or when its session begins; until then it has the share that it had. What it says carries a
//! number that grows, so that answers which cross count in the order in which they were said.
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use layout::xattr;
use types::{Duration, FsError, OstIndex};
use wire::Op;
use wire::quota::{
    AskQuotaCallback, AskQuotaReply, EVERYBODY, OstQuotaReply, OstQuotaRequest, OstUsage, OwnRequest, Ownership,
    QuotaBits, QuotaLimits, QuotaParts, QuotaReply, QuotaRequest, QuotaShare, SetQuotaReply, SetQuotaRequest,
    UNLIMITED,
};

use crate::keys;
use crate::kv::{Key, KvError, show_key};
use crate::mds::Mds;
use crate::osts::{OstLink, OstPort};
use crate::quota::{Id, named};
use crate::record::{Inode, InodeFlags};
use crate::service::Outcome;
use crate::shares::{Given, Share};

/// Ids in one request.
const IDS_MAX: usize = 4096;
/// Objects that an OST is told the owners of in one request.
const OWNERS_MAX: usize = 1024;
/// How long OSTs may take to answer before others go on without them.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often an OST that asks has others asked for what they do not use.
const RECALLS_MAX: u32 = 2;
/// Pause before owners are told again that an OST did not take in.
const TELL_AGAIN: Duration = Duration::from_secs(1);

impl Mds {
    /// Requests about quotas.
    pub(crate) async fn serve_quota(self: &Rc<Self>, op: Op, body: &[u8]) -> Result<Outcome, FsError> {
        if op == Op::MdtQuota {
            let q: QuotaRequest = wire::decode(body).map_err(FsError::from)?;
            return Ok(Outcome::plain(&self.quota(&q).await));
        }
        let q: SetQuotaRequest = wire::decode(body).map_err(FsError::from)?;
        self.set_quota(&q).await.map(|r| Outcome::plain(&r))
    }

    /// What an id has, and may have. OSTs are asked; one that does not answer in time counts with what it said last.
    async fn quota(self: &Rc<Self>, q: &QuotaRequest) -> QuotaReply {
        let id = (q.kind, q.id);
        let asks = self.osts.all().into_iter().map(|link| async move {
            let ask = OstQuotaRequest { ask: vec![named(id)], ..OstQuotaRequest::default() };
            let port = link.port().filter(|p| p.is_in_service());
            let asked = async { self.ost_quota(link.ost, &*port.ok_or(FsError::NotConnected)?, &ask).await };
            let answer = self.rt.timeout(PATIENCE, asked).await.unwrap_or(Err(FsError::TimedOut));
            let said = answer.ok().and_then(|r| r.usages.first().map(|u| (u.used, u.share)));
            let known = self.quotas.account(id).shares.of(link.ost).unwrap_or_default();
            let (used, share) = said.unwrap_or((known.used, known.share));
            let counting = self.quotas.counting.borrow().contains(&link.ost);
            OstUsage { ost: link.ost, used, share, away: said.is_none(), counting }
        });
        let osts = rt::sync::join_all(asks.collect()).await;
        let account = self.quotas.account(id);
        let (block_grace_s, inode_grace_s) = self.quotas.grace(q.kind);
        QuotaReply {
            limits: account.limits,
            inodes: account.inodes,
            block_expires: account.block_expires,
            inode_expires: account.inode_expires,
            block_grace_s,
            inode_grace_s,
            now: self.clock(),
            osts,
            by_default: QuotaParts::ALL & if id.1 == EVERYBODY { QuotaParts::ALL } else { !account.own },
        }
    }

    /// Sets limits or times of grace. Answered when that is on stable storage and every OST that is there knows.
    async fn set_quota(self: &Rc<Self>, q: &SetQuotaRequest) -> Result<SetQuotaReply, FsError> {
        let id = (q.kind, q.id);
        let has = |bit: u32| q.set & bit != 0;
        let account = self.quotas.account(id);
        let limits = merged(&account.limits, q);
        if let Err(why) = check_request(q).and_then(|()| check(&limits)) {
            let errno = FsError::Invalid.errno() as u16;
            return Ok(SetQuotaReply { errno, why: why.as_str().into() });
        }
        let now = self.clock();
        if has(QuotaBits::BLOCK_GRACE | QuotaBits::INODE_GRACE) {
            let set = |bit: u32, seconds: u64| has(bit).then_some(seconds);
            let (block, inode) =
                (set(QuotaBits::BLOCK_GRACE, q.block_grace_s), set(QuotaBits::INODE_GRACE, q.inode_grace_s));
            let change = self.quotas.set_grace(q.kind, block, inode);
            self.store.apply([change], 0, 0);
        }
        if q.set & !(QuotaBits::BLOCK_GRACE | QuotaBits::INODE_GRACE) != 0 {
            let osts: Vec<OstIndex> = self.osts.all().iter().map(|l| l.ost).collect();
            let own = match id.1 {
                EVERYBODY => limits.parts(),
                _ if has(QuotaBits::TO_DEFAULT) => 0,
                _ => account.own | named_parts(q.set),
            };
            let (ids, changes) = self.quotas.set_limits(id, &limits, own, &osts, now);
            self.store.apply(changes, 0, 0);
            tracing::info!(target = self.target, kind = id.0.name(), id = id.1, own, "limits were set");
            self.share_anew(ids).await;
        }
        self.store.sync().await?;
        Ok(SetQuotaReply::default())
    }

    /// OSTs whose shares of these ids are wrong are told, and waited for, those that are there.
    async fn share_anew(self: &Rc<Self>, ids: Vec<Id>) {
        let now = self.clock();
        let osts: BTreeSet<OstIndex> = ids.iter().flat_map(|id| self.quotas.note_wrong_shares(*id, now)).collect();
        self.kick_osts();
        self.await_told(ids, &osts.into_iter().collect::<Vec<_>>()).await;
    }

    /// Waits until these OSTs were told what is to be told of ids, but for those that are away, and for one that takes in nothing.
    async fn await_told(&self, ids: Vec<Id>, osts: &[OstIndex]) {
        let ids: BTreeSet<Id> = ids.into_iter().collect();
        let (mut end, mut least) = (self.rt.now() + PATIENCE, usize::MAX);
        loop {
            let told = self.quotas.told.wait();
            let untold = |ost: &OstIndex| {
                let here = self.osts.link(*ost).is_some_and(|l| l.port().is_some_and(|p| p.is_in_service()));
                if here { self.quotas.untold(*ost, &ids) } else { 0 }
            };
            let untold: usize = osts.iter().map(untold).sum();
            if untold < least {
                (end, least) = (self.rt.now() + PATIENCE, untold);
            }
            let left = end.since(self.rt.now());
            if left == Duration::ZERO || self.stopped.get() || untold == 0 {
                return;
            }
            self.rt.timeout(left, told).await;
        }
    }

    /// Asks an OST something of quotas, and takes in what it says.
    async fn ost_quota(
        self: &Rc<Self>,
        ost: OstIndex,
        port: &dyn OstPort,
        ask: &OstQuotaRequest,
    ) -> Result<OstQuotaReply, FsError> {
        let body = port.call(Op::OstQuota, wire::encode(ask)).await?;
        let reply: OstQuotaReply = wire::decode(&body).map_err(FsError::from)?;
        let now = self.clock();
        for u in &reply.usages {
            let (id, told) = ((u.kind, u.id), Share { used: u.used, share: u.share, told: reply.told });
            // Of whom nothing is limited, neither here nor there, nothing has to be known. A share that it had is one no more: with the
            // next limit it has to be told another.
            // Nor of whom nothing is there and only the default is known.
            let account = self.quotas.account(id);
            let limited = account.limits_blocks() && (account.own & QuotaParts::BLOCKS != 0 || u.used > 0);
            if u.share == UNLIMITED && !limited && account.shares.of(ost).is_none() {
                continue;
            }
            let change = self.quotas.heard(id, ost, told, now);
            self.store.apply_if_any(change);
            // What was told just now is not told again at once: something may be being written there.
            if ask.set.is_empty() && !self.quotas.note_wrong_shares(id, now).is_empty() {
                self.kick_osts();
            }
        }
        Ok(reply)
    }

    /// A session with an OST has begun: what it has is heard, and what is wrong there is told next.
    pub(crate) async fn hear_quotas(self: &Rc<Self>, link: &Rc<OstLink>, port: &dyn OstPort) -> Result<(), FsError> {
        let now = self.clock();
        // Of an id that has nothing anywhere, as far as is known, the OST asks itself.
        let mut limited = self.quotas.block_limited();
        limited.retain(|id| self.quotas.is_met(*id));
        for id in &limited {
            let change = self.quotas.update(*id, now, |account| account.shares.meet(link.ost));
            self.store.apply_if_any(change);
        }
        let all = OstQuotaRequest { all: true, ..OstQuotaRequest::default() };
        let owned = match self.ost_quota(link.ost, port, &all).await {
            // One that knows no quotas has no shares.
            Err(FsError::NotSupported) => return Ok(()),
            reply => reply?.owned,
        };
        limited.iter().for_each(|id| drop(self.quotas.note_wrong_shares(*id, now)));
        if !owned && self.quotas.counting.borrow_mut().insert(link.ost) {
            tracing::warn!(ost = %link.ost, "it learns whose its objects are: until then bytes there count for nobody");
            let (me, link) = (self.clone(), link.clone());
            self.rt.spawn(async move { me.tell_all_owners(&link).await });
        }
        Ok(())
    }

    /// Whether an OST is to be told something of shares.
    pub(crate) fn has_quotas_to_tell(&self, ost: OstIndex) -> bool {
        self.quotas.to_tell.borrow().get(&ost).is_some_and(|ids| !ids.is_empty())
    }

    /// Tells an OST its shares of some ids.
    pub(crate) async fn tell_quotas(self: &Rc<Self>, ost: OstIndex, port: &dyn OstPort) -> Result<(), FsError> {
        let now = self.clock();
        let ids: Vec<Id> = {
            let mut to_tell = self.quotas.to_tell.borrow_mut();
            let waiting = to_tell.entry(ost).or_default();
            waiting.iter().take(IDS_MAX).copied().collect()
        };
        let share = |id: &Id| QuotaShare { kind: id.0, id: id.1, share: self.quotas.wanted_share(*id, now) };
        let set: Vec<QuotaShare> = ids.iter().map(share).collect();
        let told: Vec<(Id, u64)> = set.iter().map(|s| ((s.kind, s.id), s.share)).collect();
        // Told again when it fails; what is to be told meanwhile comes behind.
        self.quotas.mark_told(ost, &ids);
        let answer = self.ost_quota(ost, port, &OstQuotaRequest { set, ..OstQuotaRequest::default() }).await;
        self.quotas.mark_answered(ost, answer.is_ok());
        // Whoever set a limit, or took one away, while this was told found in the books what the OST had before.
        let now = self.clock();
        let stale = told.iter().filter(|(id, share)| self.quotas.wanted_share(*id, now) != *share);
        if stale.fold(false, |any, (id, _)| !self.quotas.note_wrong_shares(*id, now).is_empty() || any) {
            self.kick_osts();
        }
        answer.map(|_| ())
    }

    /// Hears what those have who have limits: soft ones are exceeded without anybody's asking.
    pub(crate) async fn poll_quotas(self: &Rc<Self>, ost: OstIndex, port: &dyn OstPort) -> Result<(), FsError> {
        for ids in self.quotas.block_limited().chunks(IDS_MAX) {
            let ask = ids.iter().map(|id| named(*id)).collect();
            self.ost_quota(ost, port, &OstQuotaRequest { ask, ..OstQuotaRequest::default() }).await?;
        }
        Ok(())
    }

    /// An OST asks for a larger share. Answered when that is on stable storage: another server must not give it out again.
    pub(crate) async fn ost_asks_quota(self: &Rc<Self>, ost: OstIndex, body: &[u8]) -> Result<Vec<u8>, FsError> {
        let q: AskQuotaCallback = wire::decode(body).map_err(FsError::from)?;
        let (id, told) = ((q.kind, q.id), Share { used: q.used, share: q.share, told: q.told });
        self.meet_all(id, ost, told).await;
        for recalls in 0.. {
            let now = self.clock();
            let Some(limit) = self.quotas.account(id).block_limit(now) else {
                return Ok(wire::encode(&AskQuotaReply { share: UNLIMITED }));
            };
            let mut given = Given::Share(told.share);
            let change = self.quotas.update(id, now, |account| {
                given = account.shares.on_ask(ost, told, q.wanted, limit, recalls == RECALLS_MAX);
            });
            self.store.apply_if_any(change);
            match given {
                Given::Share(share) => {
                    self.store.sync().await?;
                    return Ok(wire::encode(&AskQuotaReply { share }));
                }
                Given::Recall(others) => {
                    self.quotas.recall(id, &others);
                    self.kick_osts();
                    self.await_told(vec![id], &others).await;
                }
            }
        }
        unreachable!("the last round gives what there is")
    }

    /// An OST asks for an id: before that is given anything, all OSTs where it may have something know that it has a limit, and say what it
    /// has. One that the default holds for is met so when it has its first bytes.
    async fn meet_all(self: &Rc<Self>, id: Id, ost: OstIndex, told: Share) {
        let account = self.quotas.account(id);
        let others: Vec<OstIndex> = self.osts.all().iter().map(|l| l.ost).filter(|o| *o != ost).collect();
        if !account.limits_blocks() || others.iter().all(|o| account.shares.of(*o).is_some()) {
            return;
        }
        let change = self.quotas.update(id, self.clock(), |account| {
            account.shares.heard(ost, told);
            others.iter().for_each(|other| account.shares.meet(*other));
        });
        self.store.apply_if_any(change);
        self.share_anew(vec![id]).await;
    }

    /// Tells an OST whose all objects are that files have there: its store is of before it counted.
    async fn tell_all_owners(self: &Rc<Self>, link: &Rc<OstLink>) {
        let began = self.rt.now();
        let (mut from, to) = (keys::plain(&[keys::INODE]), keys::end_of(&[keys::INODE]));
        let mut files = 0u64;
        while !self.stopped.get() && !link.closed() {
            match self.tell_some_owners(link, &mut from, &to, &mut files).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    tracing::debug!(ost = %link.ost, "owners are told again: {e}");
                    self.rt.sleep(TELL_AGAIN).await;
                }
            }
        }
        // With its next session it begins anew, unless that was all.
        self.quotas.counting.borrow_mut().remove(&link.ost);
        tracing::info!(ost = %link.ost, files, took = ?self.rt.now().since(began), "it knows whose its objects are");
    }

    /// The next page of [`Mds::tell_all_owners`]; false: that was all, and the OST knows.
    async fn tell_some_owners(
        self: &Rc<Self>,
        link: &Rc<OstLink>,
        from: &mut Key,
        to: &Key,
        files: &mut u64,
    ) -> Result<bool, FsError> {
        let port = link.port().filter(|p| p.is_in_service()).ok_or(FsError::NotConnected)?;
        let damaged = |why: &dyn fmt::Display| {
            tracing::error!(ost = %link.ost, "it is not told whose objects a damaged inode has: {why}: run 'stria fsck'");
        };
        let (page, next) = self.store.scan_past(from, to, OWNERS_MAX, |e| damaged(&e)).await?;
        let mut objects = Vec::new();
        for (key, value) in &page {
            let Some((fid, inode)) = keys::fid_of(key).and_then(|fid| Some((fid, Inode::decode(fid, value)?))) else {
                damaged(&format_args!("record {} cannot be read", show_key(key)));
                continue;
            };
            let bytes = match inode.has(InodeFlags::LAYOUT_APART) {
                true => match self.store.get(&keys::layout(fid)).await {
                    Ok(layout) => layout.unwrap_or_default(),
                    Err(e @ KvError::Corrupt { .. }) => {
                        damaged(&e);
                        continue;
                    }
                    Err(e) => return Err(e.into()),
                },
                false => inode.tail.clone(),
            };
            let Some((_, layout)) =
                inode.has(InodeFlags::HAS_LAYOUT).then(|| xattr::decode_layout(&bytes).ok()).flatten()
            else {
                continue;
            };
            let (uid, gid, project) = (inode.uid, inode.gid, inode.project);
            let here = layout.objects().iter().filter(|o| o.ost == link.ost);
            objects.extend(here.map(|o| Ownership { object: o.object, uid, gid, project, unless_owned: true }));
            *files += 1;
        }
        if !objects.is_empty() {
            port.call(Op::OstOwn, wire::encode(&OwnRequest { objects })).await?;
        }
        let more = next.is_some();
        if let Some(next) = next {
            *from = next;
        } else {
            let all = OstQuotaRequest { owned: true, ..OstQuotaRequest::default() };
            self.ost_quota(link.ost, &*port, &all).await?;
        }
        Ok(more)
    }
}

/// Whether a request is one that makes sense for its id.
fn check_request(q: &SetQuotaRequest) -> Result<(), String> {
    let kind = q.kind.name();
    match (q.set & QuotaBits::TO_DEFAULT != 0, named_parts(q.set) != 0) {
        (true, _) if q.id == EVERYBODY => {
            Err(format!("the default limits of all {kind}s cannot be put back to themselves: name a {kind}"))
        }
        (true, true) => {
            Err(format!("{kind} {} cannot have limits of its own and the default's: set one of both", q.id))
        }
        _ => Ok(()),
    }
}

/// The parts of limits that a request names.
fn named_parts(set: u32) -> u32 {
    let part = |bits: u32, part: u32| if set & bits != 0 { part } else { 0 };
    part(QuotaBits::BLOCK_SOFT | QuotaBits::BLOCK_HARD, QuotaParts::BLOCKS)
        | part(QuotaBits::INODE_SOFT | QuotaBits::INODE_HARD, QuotaParts::INODES)
}

/// Limits with those of a request.
fn merged(now: &QuotaLimits, q: &SetQuotaRequest) -> QuotaLimits {
    let pick = |bit: u32, new: u64, old: u64| if q.set & bit != 0 { new } else { old };
    QuotaLimits {
        block_soft: pick(QuotaBits::BLOCK_SOFT, q.limits.block_soft, now.block_soft),
        block_hard: pick(QuotaBits::BLOCK_HARD, q.limits.block_hard, now.block_hard),
        inode_soft: pick(QuotaBits::INODE_SOFT, q.limits.inode_soft, now.inode_soft),
        inode_hard: pick(QuotaBits::INODE_HARD, q.limits.inode_hard, now.inode_hard),
    }
}

/// Whether limits make sense.
fn check(limits: &QuotaLimits) -> Result<(), String> {
    let pairs = [
        ("block", limits.block_soft >> 10, limits.block_hard >> 10, " KiB"),
        ("inode", limits.inode_soft, limits.inode_hard, ""),
    ];
    match pairs.iter().find(|(_, soft, hard, _)| *hard > 0 && soft > hard) {
        Some((what, soft, hard, unit)) => Err(format!(
            "the soft {what} limit, {soft}{unit}, is above the hard one, {hard}{unit}: set a lower soft one or a higher hard one"
        )),
        None => Ok(()),
    }
}
