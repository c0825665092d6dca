//! Limits of users, groups and projects, as whoever sets them knows them, and what they promise: who may be refused what, and how much
//! there may be. What there is, is what servers count; whether they count right is found out in the end, by a walk over all stores.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use oss::store::Charged;
use types::{Duration, Instant, MIB, Rng};
use wire::Op;
use wire::quota::{
    EVERYBODY, QuotaBits, QuotaKind, QuotaLimits, QuotaReply, QuotaRequest, SetQuotaReply, SetQuotaRequest,
};

use super::super::class::FaultClass;
use super::super::context::Context;
use super::super::nodes::Counted;
use super::{ACTORS, GROUPS, PROJECTS, USERS, WRITE_MAX};

/// Clocks of servers run up to 1 % faster.
const GRACE_SHORTENED: f64 = 0.97;
/// OSTs hear so soon that a limit was taken away, when all is calm.
const LIFTED_WITHIN_S: u32 = 60;
/// A metadata server waits for two seconds, by its clock, for OSTs that do not answer.
const PATIENCE: Duration = Duration::from_millis(1900);
/// OSTs that could be told of limits know them so soon after that was answered.
const TOLD_WITHIN_MS: u32 = 3000;
/// All limits of one.
const ALL_BITS: u32 = QuotaBits::BLOCK_SOFT | QuotaBits::BLOCK_HARD | QuotaBits::INODE_SOFT | QuotaBits::INODE_HARD;

/// All projects without limits of their own. Programs of other tests belong to users and groups, too, and to no project.
const DEFAULT: Charged = (QuotaKind::Project, EVERYBODY);

/// Whose limits one has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Own,
    Default,
    /// Whether the last change was carried out is not known.
    Unknown,
}

/// One id, or the default.
struct Limited {
    whose: Whose,
    /// Limits of which one holds: several while nobody knows whether the last change was carried out.
    may: Vec<QuotaLimits>,
    /// Since when there may have been a soft limit.
    soft_since: Option<Instant>,
    /// Bytes that may be taken, and inodes that may be there: the limit, or what there was when it was set. `None`: not known.
    bytes_max: Option<u64>,
    inodes_max: Option<u64>,
    /// What root gave it since.
    given_bytes: u64,
    given_inodes: u64,
}

impl Default for Limited {
    /// Nobody has set anything.
    fn default() -> Limited {
        let may = vec![QuotaLimits::default()];
        let (soft_since, bytes_max, inodes_max) = (None, None, None);
        Limited { whose: Whose::Default, may, soft_since, bytes_max, inodes_max, given_bytes: 0, given_inodes: 0 }
    }
}

/// See the module's head.
pub struct Books {
    pub context: Rc<Context>,
    limited: RefCell<BTreeMap<Charged, Limited>>,
    grace_s: u64,
    /// Root gives files away.
    pub gives: bool,
    /// Projects have default limits that change.
    defaults: bool,
    /// Longest time between two changes of limits, in milliseconds.
    every_ms: u64,
    /// Bytes beyond a limit that clients may have dirty, or on their way, when it is reached.
    slack: u64,
    /// All is calm, and no limit is set any more.
    pub lifted: Cell<bool>,
}

/// Everybody who may have limits.
pub fn everybody() -> Vec<Charged> {
    let of = |kind, ids: &[u32]| ids.iter().map(move |id| (kind, *id)).collect::<Vec<_>>();
    [of(QuotaKind::User, &USERS), of(QuotaKind::Group, &GROUPS), of(QuotaKind::Project, &PROJECTS)].concat()
}

impl Limited {
    /// The tightest limit that may hold, of the hard ones and, when grace may be over, the soft ones.
    fn tightest(&self, grace_is_over: bool, of: impl Fn(&QuotaLimits) -> (u64, u64)) -> Option<u64> {
        let all = self.may.iter().flat_map(|l| {
            let (soft, hard) = of(l);
            [Some(hard), grace_is_over.then_some(soft)].into_iter().flatten().filter(|n| *n > 0)
        });
        all.min()
    }
    /// The hard limit, where it is known.
    fn hard(&self, of: impl Fn(&QuotaLimits) -> u64) -> Option<u64> {
        let [limits] = &self.may[..] else { return None };
        Some(of(limits)).filter(|n| *n > 0)
    }
}

impl Books {
    pub fn new(context: Rc<Context>) -> Rc<Books> {
        let mut rng = context.rng("quotas");
        let config = &context.cluster.config;
        let dirty = context.cluster.dirty_bytes_max() * (config.clients * config.osts_max()) as u64;
        let slack = dirty + ACTORS as u64 * WRITE_MAX;
        let (grace_s, every_ms) =
            ([3, 15, 604_800][rng.below(3) as usize], [800, 3000, 10_000, 40_000][rng.below(4) as usize]);
        let gives = rng.chance(0.5);
        let defaults = context.rng("quotas: defaults").chance(0.5);
        Rc::new(Books {
            context,
            limited: RefCell::default(),
            grace_s,
            gives,
            defaults,
            every_ms,
            slack,
            lifted: Cell::new(false),
        })
    }
    /// Sets the times of grace, before anything goes wrong.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn begin(&self) -> Result<(), String> {
        for kind in QuotaKind::ALL {
            let (set, grace) = (QuotaBits::BLOCK_GRACE | QuotaBits::INODE_GRACE, self.grace_s);
            let q = SetQuotaRequest { kind, set, block_grace_s: grace, inode_grace_s: grace, ..Default::default() };
            let done = self.context.on(0, "quotas: grace", async move |c| {
                c.sessions().mdc().ask::<_, SetQuotaReply>(Op::MdtSetQuota, &q).await
            });
            let reply = done.await.ok_or("the client died")?.map_err(|e| format!("grace: {e}"))?;
            if reply.errno != 0 {
                return Err(format!("grace: {}", String::from_utf8_lossy(&reply.why)));
            }
        }
        Ok(())
    }
    /// Sets limits, changes them and takes them away until all is calm; then none is left.
    pub async fn run(self: Rc<Self>) {
        let mut rng = self.context.rng("quotas: limits");
        let mut all = everybody();
        if self.defaults {
            all.push(DEFAULT);
        }
        while !self.context.calm.get() && !self.context.failed() {
            self.context.cluster.sim.sleep(Duration::from_millis(rng.below(self.every_ms))).await;
            let who = all[rng.below(all.len() as u64) as usize];
            let limits = self.draw(who, &mut rng);
            let to_default = self.defaults && PROJECTS.contains(&who.1) && rng.chance(0.5);
            self.set(&mut rng, who, (!to_default).then_some(limits)).await;
            self.context.ease(&mut rng).await;
        }
        for who in &all {
            while !self.context.failed() && !self.set(&mut rng, *who, Some(QuotaLimits::default())).await {
                self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
            }
        }
        self.await_lifted(&all).await;
        self.lifted.set(true);
    }
    /// Limits near what there is.
    fn draw(&self, who: Charged, rng: &mut Rng) -> QuotaLimits {
        let bytes: u64 = self.context.cluster.counted_bytes(who).iter().flatten().map(|c| c.used).sum();
        let inodes = self.context.cluster.counted_inodes(who).unwrap_or(0);
        let most = if rng.chance(0.3) { 64 } else { 12 };
        let (more, files) = (rng.below(most) * MIB, rng.below(8));
        let mut limits = QuotaLimits::default();
        if rng.chance(0.7) {
            limits.block_hard = (bytes / 4096 * 4096 + more).saturating_sub(2 * MIB).max(MIB);
        }
        if rng.chance(0.4) {
            limits.inode_hard = (inodes + files).saturating_sub(2).max(1);
        }
        if rng.chance(0.3) {
            let below = |hard: u64, there: u64| if hard > 0 { hard / 2 } else { there / 2 };
            limits.block_soft = below(limits.block_hard, bytes).max(4096);
            limits.inode_soft = below(limits.inode_hard, inodes).max(1);
        }
        limits
    }
    /// What one may have now if its limits are to be these; `None`: the default's.
    fn may_be(&self, limits: Option<&QuotaLimits>) -> Vec<QuotaLimits> {
        let all = self.limited.borrow();
        let default = || all.get(&DEFAULT).map_or_else(|| vec![QuotaLimits::default()], |l| l.may.clone());
        limits.map_or_else(default, |limits| vec![limits.clone()])
    }
    /// Those whose limits change when one's do.
    fn concerned(&self, who: Charged) -> Vec<Charged> {
        let all = self.limited.borrow();
        let follows = |p: &Charged| who == DEFAULT && all.get(p).is_none_or(|l| l.whose != Whose::Own);
        let projects = PROJECTS.iter().map(|id| (QuotaKind::Project, *id)).filter(follows);
        [who].into_iter().chain(projects).collect()
    }
    /// Sets limits; `None`: the default's. Whether that was answered.
    async fn set(&self, rng: &mut Rng, who: Charged, limits: Option<QuotaLimits>) -> bool {
        let c = self.context.any_client(rng).await;
        let Some(author) = self.context.author(c) else { return false };
        let begun = self.context.cluster.sim.now();
        let (may, concerned) = (self.may_be(limits.as_ref()), self.concerned(who));
        for one in &concerned {
            let mut all = self.limited.borrow_mut();
            let l = all.entry(*one).or_default();
            l.may.extend(may.iter().cloned());
            (l.bytes_max, l.inodes_max) = (None, None);
            if may.iter().any(|limits| limits.block_soft > 0 || limits.inode_soft > 0) {
                l.soft_since.get_or_insert(begun);
            }
            if *one == who {
                l.whose = Whose::Unknown;
            }
        }
        let starts = self.context.server_starts();
        let told = starts.is_some() && self.all_answer(c, who).await == Some(true);
        let what = format!("quotas: limits of {} {}: {limits:?}", who.0.name(), who.1);
        let set = if limits.is_some() { ALL_BITS } else { QuotaBits::TO_DEFAULT };
        let new = limits.clone().unwrap_or_default();
        let q = SetQuotaRequest { kind: who.0, id: who.1, set, limits: new, ..Default::default() };
        let done = self
            .context
            .on(c, &what, async move |c| c.sessions().mdc().ask::<_, SetQuotaReply>(Op::MdtSetQuota, &q).await);
        match done.await {
            Some(Ok(reply)) if reply.errno == 0 => {
                for one in concerned {
                    let mut all = self.limited.borrow_mut();
                    let l = all.entry(one).or_default();
                    if one == who {
                        l.whose = if limits.is_some() { Whose::Own } else { Whose::Default };
                    }
                    if one == who || l.whose == Whose::Default {
                        self.hold(one, l, &may);
                    }
                }
                let soon = self.context.cluster.sim.now().since(begun) < PATIENCE;
                if let ([limits], true) = (&may[..], told && soon) {
                    self.expect_known(c, who, limits, starts).await;
                }
                true
            }
            Some(Ok(reply)) => {
                self.context.complain(format!("{what}: {}", String::from_utf8_lossy(&reply.why)));
                false
            }
            Some(Err(e)) => {
                let space = self.context.is_refused_for_space(c, &e.to_string(), begun);
                if self.context.is_sound(author) && !space {
                    self.context.complain(format!("{what} on client{c}: {e}"));
                }
                false
            }
            None => false,
        }
    }
    /// One of these are the limits.
    fn hold(&self, who: Charged, l: &mut Limited, may: &[QuotaLimits]) {
        l.may = may.to_vec();
        if may.iter().all(|limits| limits.block_soft == 0 && limits.inode_soft == 0) {
            l.soft_since = None;
        }
        self.measure(who, l);
    }
    /// A change of limits is known, when it is answered, to all OSTs that could be told; those whose connection was made anew amid that
    /// hear of it at once.
    async fn expect_known(&self, client: usize, who: Charged, limits: &QuotaLimits, starts: Option<u64>) {
        let (hard, soft) = (limits.block_hard > 0, limits.block_soft > 0);
        let is_wrong = |c: &Counted| if c.share == u64::MAX { hard } else { !hard && !soft };
        let mut wrong = None;
        for _ in 0..TOLD_WITHIN_MS / 100 {
            // Who leaves may have been let go before that is answered, and hears of nothing any more.
            let leaves = self.context.cluster.is_some_ost_leaving();
            wrong = self.context.cluster.counted_bytes(who).filter(|all| !leaves && all.iter().any(is_wrong));
            if wrong.is_none() {
                break;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        let outcome = match wrong {
            Some(counted)
                if starts == self.context.server_starts() && self.all_answer(client, who).await == Some(true) =>
            {
                Err(format!("{who:?}: {limits:?} is set, and OSTs have {counted:?}"))
            }
            _ => Ok(()),
        };
        self.context.expect("quotas: limits that were answered", outcome);
    }
    /// What may be taken from now on, as far as that can be seen now.
    fn measure(&self, who: Charged, l: &mut Limited) {
        let cluster = &self.context.cluster;
        let bytes = cluster.counted_bytes(who).filter(|all| all.iter().all(|c| c.share != u64::MAX));
        let taken: Option<u64> = bytes.map(|all| all.iter().map(Counted::taken).sum());
        l.bytes_max = l.hard(|q| q.block_hard).and_then(|hard| taken.map(|taken| taken.max(hard)));
        let inodes = cluster.counted_inodes(who);
        l.inodes_max = l.hard(|q| q.inode_hard).and_then(|hard| inodes.map(|n| n.max(hard)));
    }
    /// OSTs that are there hear that nobody is limited any more.
    async fn await_lifted(&self, all: &[Charged]) {
        for _ in 0..LIFTED_WITHIN_S {
            let is_free = |who: &Charged| {
                self.context.cluster.counted_bytes(*who).is_some_and(|all| all.iter().all(|c| c.share == u64::MAX))
            };
            if self.context.failed() || all.iter().all(is_free) {
                return;
            }
            self.context.cluster.sim.sleep(Duration::from_secs(1)).await;
        }
        let of = |who: &Charged| format!("{who:?}: {:?}", self.context.cluster.counted_bytes(*who));
        let told: Vec<String> = all.iter().map(of).collect();
        self.context.complain(format!("quotas: no limit is set any more, and OSTs have shares: {}", told.join("; ")));
    }

    /// Root gives a file to these.
    pub fn gives(&self, ids: &[Charged], bytes: u64) {
        let mut all = self.limited.borrow_mut();
        for who in ids {
            let l = all.entry(*who).or_default();
            l.given_bytes += bytes;
            l.given_inodes += 1;
        }
    }
    fn grace_is_over(&self, l: &Limited) -> bool {
        let grace = self.grace_s as f64 * GRACE_SHORTENED - 1.0;
        let now = self.context.cluster.sim.now();
        l.soft_since.is_some_and(|since| now.since(since).as_nanos() as f64 / 1e9 >= grace)
    }
    /// Whether somebody whom `more` bytes count for may be refused them.
    ///
    /// # Errors
    /// Nobody is near a limit; what there is.
    pub fn may_refuse_bytes(&self, ids: &[Charged], more: u64) -> Result<(), String> {
        let unit = self.context.cluster.ost_indices().len() as u64 * (MIB + WRITE_MAX / 4);
        let mut told = Vec::new();
        for who in ids {
            let counted = self.context.cluster.counted_bytes(*who);
            let all = self.limited.borrow();
            let limit = all.get(who).and_then(|l| l.tightest(self.grace_is_over(l), |q| (q.block_soft, q.block_hard)));
            let Some(limit) = limit else { continue };
            let Some(counted) = counted else { return Ok(()) };
            let used: u64 = counted.iter().map(|c| c.used).sum();
            if used + more + unit > limit {
                return Ok(());
            }
            told.push(format!("{who:?} has {counted:?} of {limit}"));
        }
        Err(format!(
            "{more} bytes refused: {}",
            if told.is_empty() { "nobody is limited".into() } else { told.join("; ") }
        ))
    }
    /// Whether somebody whom one more inode counts for may be refused it.
    ///
    /// # Errors
    /// Nobody is near a limit; what there is.
    pub fn may_refuse_inode(&self, ids: &[Charged]) -> Result<(), String> {
        let mut told = Vec::new();
        for who in ids {
            let all = self.limited.borrow();
            let limit = all.get(who).and_then(|l| l.tightest(self.grace_is_over(l), |q| (q.inode_soft, q.inode_hard)));
            let Some(limit) = limit else { continue };
            let Some(there) = self.context.cluster.counted_inodes(*who) else { return Ok(()) };
            if there + 1 > limit {
                return Ok(());
            }
            told.push(format!("{who:?} has {there} of {limit}"));
        }
        Err(format!("an inode refused: {}", if told.is_empty() { "nobody is limited".into() } else { told.join("; ") }))
    }
    /// One of these who has all that its hard limit allows.
    pub fn who_has_all(&self, ids: &[Charged]) -> Option<Charged> {
        let all = self.limited.borrow();
        let has_all = |who: &Charged| {
            let hard = all.get(who).and_then(|l| l.hard(|q| q.block_hard));
            let counted = self.context.cluster.counted_bytes(*who);
            // An OST that has not heard of a limit has no share; one may have something left where others were brought what had been promised.
            let known = counted.filter(|all| all.iter().all(|c| c.used >= c.share));
            known.zip(hard).is_some_and(|(all, hard)| all.iter().map(|c| c.used).sum::<u64>() >= hard)
        };
        ids.iter().copied().find(has_all)
    }
    /// A refusal that is one.
    pub fn count_refusal(&self) {
        self.context.count(|c| c.by_class[FaultClass::Quotas.index()] += 1);
    }
    /// Whether all OSTs answer the metadata server now, which may be asked by way of a client; `None`: nobody knows.
    pub async fn all_answer(&self, client: usize, who: Charged) -> Option<bool> {
        let q = QuotaRequest { kind: who.0, id: who.1 };
        let asked = self.context.on(client, "quotas: usage", async move |c| {
            c.sessions().mdc().ask::<_, QuotaReply>(Op::MdtQuota, &q).await
        });
        asked.await?.ok().map(|r| r.osts.iter().all(|o| !o.away))
    }

    /// Nobody has more than its limit promises.
    pub fn check(&self) {
        for (who, l) in self.limited.borrow_mut().iter_mut() {
            if l.hard(|q| q.block_hard).is_some() && l.bytes_max.is_none()
                || l.hard(|q| q.inode_hard).is_some() && l.inodes_max.is_none()
            {
                self.measure(*who, l);
            }
            let (name, id) = (who.0.name(), who.1);
            if let Some(max) = l.bytes_max {
                let counted = self.context.cluster.counted_at_least(*who);
                let taken: u64 = counted.iter().map(Counted::taken).sum();
                let most = max + self.slack + l.given_bytes + self.context.copies().1;
                let told = format!("{name} {id} may have {max} bytes, {most} with what was under way: {counted:?}");
                self.context.expect("quotas: bytes", if taken <= most { Ok(()) } else { Err(told) });
            }
            if let (Some(max), Some(there)) = (l.inodes_max, self.context.cluster.counted_inodes(*who)) {
                let most = max + l.given_inodes + self.context.copies().0;
                let told = format!("{name} {id} may have {max} inodes, {} of root's: {there}", l.given_inodes);
                self.context.expect("quotas: inodes", if there <= most { Ok(()) } else { Err(told) });
            }
        }
    }
}
