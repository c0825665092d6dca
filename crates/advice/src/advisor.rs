//! The mechanism: takes advice, finds the tier where it fits, keeps budgets, and says what is to be done.
//!
//! Which tier: the first wished one that holds all of the extent; when none does, as much as fits goes to each, nearest
//! first, in parts of `part_bytes_min`, and the rest stays unadvised. "Fits" counts free room and what lower classes hold
//! (they give way, lowest and oldest first), within the tier's advised share and the project's budget. A CACHE hint
//! fetches nothing, but what it may keep is counted in the same way.
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use types::registry::UnknownPolicy;
use types::{Extent, FsError, ObjectId};

use crate::config::Config;
use crate::ledger::{Entry, Ledger};
use crate::table::{AdvicePolicy, POLICIES, PolicyEntry};
use crate::{Hint, Pressure, Tier};

/// A project: who pays for advised bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProjectId(pub u32);

/// A user: who pays, too, where a budget is set for them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UserId(pub u32);

/// Who has a budget.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Payer {
    /// A project; without a budget of its own it has `project_percent_max`.
    Project(ProjectId),
    /// A user; without a budget they have what their project has.
    User(UserId),
}

/// Who gave advice and may release all of it at once: a batch job, a process, a user. 0 = nobody in particular.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OwnerId(pub u64);

/// Which tiers the user has in mind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Wish {
    /// Whatever fits, RAM first.
    #[default]
    Auto,
    /// This one or none.
    Only(Tier),
}

/// Advice about bytes of one object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Advice {
    /// The object.
    pub object: ObjectId,
    /// The bytes, clipped to the object's size: not empty, not open-ended.
    pub extent: Extent,
    /// How much they matter; [`Hint::None`] withdraws earlier advice.
    pub hint: Hint,
    /// Where.
    pub wish: Wish,
    /// Who pays.
    pub project: ProjectId,
    /// Who pays, too.
    pub user: UserId,
    /// Who may release it.
    pub owner: OwnerId,
}

impl Advice {
    /// Everybody who pays for it.
    #[must_use]
    pub fn payers(&self) -> [Payer; 2] {
        [Payer::Project(self.project), Payer::User(self.user)]
    }
}

/// Size and pressure of both tiers now, by [`Tier`]. A tier of 0 bytes does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tiers {
    /// Bytes in all.
    pub size_bytes: [u64; 2],
    /// How hard pressed.
    pub pressure: [Pressure; 2],
}

/// Why bytes were not placed. Where others of the same advice were, the advice succeeded: it is never owed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// The table does nothing for this hint at this pressure.
    Pressure,
    /// The advised share of the tiers is full of equal or higher classes.
    NoRoom,
    /// The budget of the project or of the user is used up.
    Budget,
}

/// One thing to be done, in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Fetch what is missing, in the background, and set the class of the pages.
    Prefetch(ObjectId, Extent, Tier, Hint),
    /// Set the class of pages that are or will be there.
    Keep(ObjectId, Extent, Tier, Hint),
    /// The pages lose their class (and queued prefetches of them are cancelled); they leave by ordinary reclaim.
    Release(ObjectId, Extent, Tier),
    /// The pages lose their class and leave at once.
    Drop(ObjectId, Extent, Tier),
    /// These bytes were not placed.
    Refused(ObjectId, Extent, Refusal),
}

/// What is to be done.
pub type Steps = Vec<Step>;

/// Why advice is not accepted at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdviceError {
    /// The extent is empty or open-ended.
    Extent(Extent),
    /// `extents_max` advised extents are remembered.
    TooMany(u64),
    /// Not one byte fits: [`Refusal::NoRoom`] or [`Refusal::Budget`].
    Refused(Refusal),
}

impl fmt::Display for AdviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdviceError::Extent(e) => write!(f, "advice for {e}: give a range that is not empty, within the object"),
            AdviceError::TooMany(n) => write!(f, "{n} extents are advised: release some, or raise advice.extents_max"),
            AdviceError::Refused(why) => f.write_str(why.sentence()),
        }
    }
}
impl core::error::Error for AdviceError {}
impl From<AdviceError> for FsError {
    fn from(e: AdviceError) -> FsError {
        match e {
            AdviceError::Extent(_) => FsError::Invalid,
            AdviceError::TooMany(_) | AdviceError::Refused(_) => FsError::NoSpace,
        }
    }
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 3] = [Refusal::Pressure, Refusal::NoRoom, Refusal::Budget];
    /// What a user reads.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Refusal::Pressure => "the server is too hard pressed for this level now",
            Refusal::NoRoom => "the room for advice is full of the same or higher levels",
            Refusal::Budget => "the budget of the project or of the user is used up",
        }
    }
}

/// The mechanism: one per server (or per OST).
pub struct Advisor {
    policy: Box<dyn AdvicePolicy>,
    name: &'static str,
    config: Config,
    ledger: Ledger,
    budgets: BTreeMap<Payer, [u64; 2]>,
    limit_hits: u64,
}

impl Advisor {
    /// With the policy of this name.
    ///
    /// # Errors
    /// [`UnknownPolicy`].
    pub fn new(policy: &str, config: Config) -> Result<Advisor, UnknownPolicy> {
        Ok(Advisor::with_entry(POLICIES.find(policy)?, config))
    }
    /// With a policy from outside the registry.
    #[must_use]
    pub fn with_entry(entry: &PolicyEntry, config: Config) -> Advisor {
        Advisor {
            policy: (entry.make)(&config),
            name: entry.name,
            config,
            ledger: Ledger::default(),
            budgets: BTreeMap::new(),
            limit_hits: 0,
        }
    }
    /// Changes the policy; what is placed stays until it is advised anew.
    pub fn switch(&mut self, entry: &PolicyEntry) {
        self.policy = (entry.make)(&self.config);
        self.name = entry.name;
    }
    /// Name of the policy in use.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.name
    }
    /// The configuration in use.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// A budget in bytes by [`Tier`]; `None` takes it back.
    pub fn set_budget(&mut self, payer: Payer, bytes: Option<[u64; 2]>) {
        match bytes {
            Some(b) => self.budgets.insert(payer, b),
            None => self.budgets.remove(&payer),
        };
    }
    /// Projects and users with budgets of their own.
    pub fn budgets(&self) -> impl Iterator<Item = (Payer, [u64; 2])> {
        self.budgets.iter().map(|(p, b)| (*p, *b))
    }
    /// Changes the configuration, for advice from now on.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }
    /// Reclaim class of a page: what the cache asks when it inserts one. O(log extents).
    #[must_use]
    pub fn class(&self, object: ObjectId, offset: u64, tier: Tier) -> Hint {
        self.ledger.at(object, offset).filter(|e| e.tier == tier).map_or(Hint::None, |e| e.hint)
    }
    /// Advised bytes in a tier, of classes from `hint` up.
    #[must_use]
    pub fn held_bytes(&self, tier: Tier, hint: Hint) -> u64 {
        self.ledger.held_from(tier, hint)
    }
    /// Advised bytes of one project or user in a tier.
    #[must_use]
    pub fn payer_held_bytes(&self, payer: Payer, tier: Tier) -> u64 {
        self.ledger.payer_held_from(payer, tier, Hint::None)
    }
    /// Reclaim class of the bytes from `offset` on, and where the next class begins. O(log extents).
    #[must_use]
    pub fn class_run(&self, object: ObjectId, offset: u64, tier: Tier) -> (Hint, u64) {
        match self.ledger.at(object, offset) {
            Some(e) => (if e.tier == tier { e.hint } else { Hint::None }, e.extent.end),
            None => (Hint::None, self.ledger.next_start(object, offset)),
        }
    }
    /// What is placed of an object, by offset.
    pub fn placed_of(&self, object: ObjectId) -> impl Iterator<Item = (Extent, Tier, Hint)> {
        self.ledger.of_object(object).map(|e| (e.extent, e.tier, e.hint))
    }
    /// Everything placed: object, bytes, tier, class; by object and offset.
    pub fn placed(&self) -> impl Iterator<Item = (ObjectId, Extent, Tier, Hint)> {
        self.ledger.iter().map(|e| (e.object, e.extent, e.tier, e.hint))
    }
    /// Advice refused because too many extents are remembered.
    #[must_use]
    pub fn limit_hits(&self) -> u64 {
        self.limit_hits
    }

    /// Takes advice; `steps` gets what is to be done, in order.
    ///
    /// # Errors
    /// [`AdviceError`]; what is placed stays.
    pub fn advise(&mut self, advice: &Advice, tiers: &Tiers, steps: &mut Steps) -> Result<(), AdviceError> {
        if advice.extent.is_empty() || advice.extent.end == u64::MAX {
            return Err(AdviceError::Extent(advice.extent));
        }
        if advice.hint != Hint::None && self.ledger.len() as u64 >= self.config.extents_max {
            self.limit_hits += 1;
            return Err(AdviceError::TooMany(self.config.extents_max));
        }
        let old = self.ledger.take(advice.object, advice.extent);
        let first_new = steps.len();
        if advice.hint != Hint::None {
            self.place(advice, tiers, steps);
        }
        // Room for not one byte is no reason to let go of what an earlier advice has.
        if let [Step::Refused(_, _, why @ (Refusal::NoRoom | Refusal::Budget))] = steps[first_new..] {
            steps.truncate(first_new);
            old.into_iter().for_each(|e| self.ledger.put_back(e));
            return Err(AdviceError::Refused(why));
        }
        self.release_old(&old, tiers, first_new, steps);
        Ok(())
    }

    /// Releases everything an owner advised: the epilog of a batch job.
    pub fn release_owner(&mut self, owner: OwnerId, tiers: &Tiers, steps: &mut Steps) {
        let old = self.ledger.take_owner(owner);
        self.release_old(&old, tiers, steps.len(), steps);
    }

    /// An object is gone: its advice is forgotten, nothing is to be done.
    pub fn on_destroyed(&mut self, object: ObjectId) {
        self.on_cut(object, Extent::ALL);
    }

    /// Bytes of an object are gone: what was placed of them is forgotten, nothing is to be done.
    pub fn on_cut(&mut self, object: ObjectId, extent: Extent) {
        self.ledger.take(object, extent);
    }

    fn place(&mut self, advice: &Advice, tiers: &Tiers, steps: &mut Steps) {
        let wished: &[Tier] = match advice.wish {
            Wish::Auto => &Tier::ALL,
            Wish::Only(Tier::Ram) => &Tier::ALL[..1],
            Wish::Only(Tier::Fast) => &Tier::ALL[1..],
        };
        let mut why = Refusal::Pressure;
        let mut rooms = [0; 2];
        for tier in wished {
            // A tier that does not exist is no reason, unless nothing else was wished.
            if tiers.size_bytes[*tier as usize] == 0 && wished.len() > 1 {
                continue;
            }
            if self.actions(advice.hint, *tier, tiers).admit {
                (rooms[*tier as usize], why) = self.room(advice, *tier, tiers);
                if rooms[*tier as usize] >= advice.extent.len() {
                    return self.put(advice, advice.extent, *tier, tiers, steps);
                }
            }
        }
        let mut rest = advice.extent;
        for tier in wished {
            let room = rooms[*tier as usize] - rooms[*tier as usize] % self.config.part_bytes_min;
            let part = Extent::at(rest.start, room.min(rest.len()));
            if !part.is_empty() {
                self.put(advice, part, *tier, tiers, steps);
                rest.start = part.end;
            }
        }
        if !rest.is_empty() {
            steps.push(Step::Refused(advice.object, rest, why));
        }
    }

    fn actions(&self, hint: Hint, tier: Tier, tiers: &Tiers) -> crate::Actions {
        self.policy.decide(hint, tier, tiers.pressure[tier as usize])
    }

    /// Bytes of this class that a tier can take, and what limits them.
    fn room(&self, advice: &Advice, tier: Tier, tiers: &Tiers) -> (u64, Refusal) {
        let size = tiers.size_bytes[tier as usize];
        let share = percent(size, self.config.advised_percent_max);
        let room = share.saturating_sub(self.ledger.held_from(tier, advice.hint));
        let left = |payer| {
            let held = self.ledger.payer_held_from(payer, tier, advice.hint);
            self.budget(payer, tier, size).saturating_sub(held)
        };
        let [project, user] = advice.payers().map(left);
        let left = project.min(user);
        if left < room { (left, Refusal::Budget) } else { (room, Refusal::NoRoom) }
    }

    fn budget(&self, payer: Payer, tier: Tier, size: u64) -> u64 {
        let own = self.budgets.get(&payer).map(|b| b[tier as usize]);
        own.unwrap_or_else(|| match payer {
            Payer::Project(_) => percent(size, self.config.project_percent_max),
            Payer::User(_) => u64::MAX,
        })
    }

    /// Places bytes that fit; what is below them gives way as far as needed.
    fn put(&mut self, advice: &Advice, extent: Extent, tier: Tier, tiers: &Tiers, steps: &mut Steps) {
        let size = tiers.size_bytes[tier as usize];
        for payer in advice.payers() {
            let budget = self.budget(payer, tier, size);
            self.make_way(advice.hint, tier, Some(payer), budget, extent.len(), steps);
        }
        let share = percent(size, self.config.advised_percent_max);
        self.make_way(advice.hint, tier, None, share, extent.len(), steps);
        self.ledger.insert(advice, extent, tier);
        let fetch = self.actions(advice.hint, tier, tiers).prefetch;
        let step = if fetch { Step::Prefetch } else { Step::Keep };
        steps.push(step(advice.object, extent, tier, advice.hint));
    }

    /// Takes lower classes out, lowest and oldest first, until `bytes` more fit under `limit`.
    fn make_way(&mut self, hint: Hint, tier: Tier, of: Option<Payer>, limit: u64, bytes: u64, steps: &mut Steps) {
        loop {
            let held = match of {
                Some(p) => self.ledger.payer_held_from(p, tier, Hint::None),
                None => self.ledger.held_from(tier, Hint::None),
            };
            if held.saturating_add(bytes) <= limit {
                return;
            }
            let Some(e) = self.ledger.take_lowest(tier, hint, of) else { return };
            steps.push(Step::Release(e.object, e.extent, tier));
        }
    }

    /// What was advised before and is not placed in the same tier again loses its class.
    fn release_old(&self, old: &[Entry], tiers: &Tiers, first_new: usize, steps: &mut Steps) {
        let mut release = Vec::new();
        for e in old {
            let kept = steps[first_new..].iter().filter_map(|s| match *s {
                Step::Prefetch(o, x, t, _) | Step::Keep(o, x, t, _) if o == e.object && t == e.tier => Some(x),
                _ => None,
            });
            let mut rest = e.extent;
            // Placed parts come in order of offset: what lies between them is released.
            for x in kept.filter_map(|x| x.intersect(&e.extent)) {
                release.push((e, Extent::new(rest.start, x.start.max(rest.start))));
                rest.start = x.end.max(rest.start);
            }
            release.push((e, rest));
        }
        for (e, extent) in release.into_iter().filter(|r| !r.1.is_empty()) {
            let drop = self.actions(Hint::None, e.tier, tiers).drop;
            let step = if drop { Step::Drop } else { Step::Release };
            steps.push(step(e.object, extent, e.tier));
        }
    }
}

fn percent(size: u64, percent: u64) -> u64 {
    (u128::from(size) * u128::from(percent) / 100) as u64
}

#[cfg(test)]
#[path = "advisor_tests.rs"]
mod tests;
