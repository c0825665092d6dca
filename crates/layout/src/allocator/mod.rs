//! Which OSTs a new file gets: the mechanism, the policy trait and the registry.
//!
//! The mechanism filters (deactivated, full, outside the pool), serves explicit lists and start indices itself, keeps one
//! policy object per pool, and checks every answer: a policy that answers wrongly is counted and replaced by round robin
//! for that create. A policy only orders what it is shown.
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use types::registry::{Entry, Registry, UnknownPolicy};
use types::{FsError, OstIndex, Rng};

use crate::config::AllocConfig;
use crate::pool::PoolName;
use crate::spec::Resolved;

mod auto;
mod first_turn;
mod round_robin;
mod weighted;

pub use auto::Auto;
pub use round_robin::RoundRobin;
pub use weighted::Weighted;

/// What is known of an OST when a file is created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OstFacts {
    /// Which OST.
    pub index: OstIndex,
    /// Its size in bytes.
    pub total_bytes: u64,
    /// Bytes that new data may take.
    pub free_bytes: u64,
    /// Whether it is connected and not deactivated for creates.
    pub active: bool,
    /// Whether it belongs to the pool asked for; not looked at when no pool is asked for.
    pub in_pool: bool,
}

/// An OST that may be chosen: active, in the pool, not full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Candidate {
    /// Which OST.
    pub index: OstIndex,
    /// Bytes that new data may take, > 0 unless every OST reports 0 sizes.
    pub free_bytes: u64,
    /// Its size in bytes.
    pub total_bytes: u64,
}

/// Orders OSTs for new files of one pool. Same calls, same answers.
pub trait AllocPolicy: Send {
    /// Pushes `count` different members of `candidates` to `chosen`, in stripe order. The first gets the data of small
    /// files, so first places deserve balance of their own. `candidates` is not empty, sorted by index, without
    /// repeats; `1 <= count <= candidates.len()`; `chosen` is empty; `dice` is a fresh random number.
    fn choose(&mut self, candidates: &[Candidate], count: usize, dice: u64, chosen: &mut Vec<OstIndex>);
}

/// A policy of the registry, or an outsider's; built once per pool.
pub type PolicyEntry = Entry<dyn AllocPolicy, AllocConfig>;

/// Every allocator of the house, the default first. Adding one is one file and one line here.
pub const POLICIES: Registry<dyn AllocPolicy, AllocConfig> = Registry::new("allocator", ENTRIES);

static ENTRIES: &[PolicyEntry] =
    &[
        Entry::new(
            POLICY_DEFAULT,
            "Round robin while free space is balanced, weighted by free space otherwise. The default.",
            |c| Box::new(Auto::new(c)),
        ),
        Entry::new("round_robin", "Each OST in turn; object counts differ by at most one.", |_| {
            Box::new(RoundRobin::new())
        }),
        Entry::new(
            "weighted",
            "In proportion to free space, without randomness: every OST is within one object of its share.",
            |_| Box::new(Weighted::new()),
        ),
    ];

/// Name of the policy used when none is configured.
pub const POLICY_DEFAULT: &str = "auto";

/// Why no OSTs could be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// No OST exists, or none in the pool.
    NoOst {
        /// The pool asked for.
        pool: Option<PoolName>,
    },
    /// All OSTs that could be used are deactivated.
    AllInactive {
        /// How many there are.
        osts: usize,
    },
    /// All OSTs that could be used are full.
    AllFull {
        /// How many there are.
        osts: usize,
    },
    /// An OST asked for by index does not exist.
    Missing {
        /// The index asked for.
        ost: OstIndex,
        /// The highest index that exists.
        last: OstIndex,
    },
    /// An OST asked for by index is deactivated or not connected.
    Inactive(OstIndex),
    /// An OST asked for by index is full.
    Full(OstIndex),
    /// An OST asked for by index is not in the pool.
    NotInPool {
        /// The index asked for.
        ost: OstIndex,
        /// The pool asked for.
        pool: PoolName,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::NoOst { pool: Some(p) } => write!(f, "pool '{p}' has no OST: add one, or ask for another pool"),
            AllocError::NoOst { pool: None } => write!(f, "no OST exists yet: start one"),
            AllocError::AllInactive { osts } => {
                write!(f, "all {osts} OSTs are deactivated or not connected: start or activate one")
            }
            AllocError::AllFull { osts } => write!(f, "all {osts} OSTs are full: free space or add an OST"),
            AllocError::Missing { ost, last } => {
                write!(f, "{ost} does not exist: indices end at {}; use -1 for any OST", last.0)
            }
            AllocError::Inactive(ost) => {
                write!(f, "{ost} is deactivated or not connected: choose another, or -1 for any OST")
            }
            AllocError::Full(ost) => write!(f, "{ost} is full: choose another, or -1 for any OST"),
            AllocError::NotInPool { ost, pool } => {
                write!(f, "{ost} is not in pool '{pool}': choose another OST or leave the pool out")
            }
        }
    }
}
impl core::error::Error for AllocError {}
impl From<AllocError> for FsError {
    fn from(e: AllocError) -> FsError {
        match e {
            AllocError::AllFull { .. } | AllocError::Full(_) => FsError::NoSpace,
            AllocError::NoOst { .. } | AllocError::AllInactive { .. } | AllocError::Inactive(_) => FsError::NoTarget,
            AllocError::Missing { .. } | AllocError::NotInPool { .. } => FsError::Invalid,
        }
    }
}

/// The mechanism: one per MDT. Switch its policy at any time; nothing is lost but the turn.
pub struct Allocator {
    entry: PolicyEntry,
    config: AllocConfig,
    by_pool: BTreeMap<Option<PoolName>, Box<dyn AllocPolicy>>,
    candidates: Vec<Candidate>,
    wrong_answers: u64,
}

/// Pools with a turn of their own at a time; beyond it the oldest names start a new turn. A counter is not needed: the
/// only effect is a restarted turn.
const POOLS_MAX: usize = 1024;

impl Allocator {
    /// An allocator with the policy of this name.
    ///
    /// # Errors
    /// [`UnknownPolicy`].
    pub fn new(policy: &str, config: AllocConfig) -> Result<Allocator, UnknownPolicy> {
        Ok(Allocator::with_entry(*POLICIES.find(policy)?, config))
    }
    /// An allocator with a policy from outside the registry.
    #[must_use]
    pub fn with_entry(entry: PolicyEntry, config: AllocConfig) -> Allocator {
        Allocator { entry, config, by_pool: BTreeMap::new(), candidates: Vec::new(), wrong_answers: 0 }
    }
    /// Changes the policy; turns start anew.
    ///
    /// # Errors
    /// [`UnknownPolicy`]; the old policy stays.
    pub fn set_policy(&mut self, policy: &str) -> Result<(), UnknownPolicy> {
        self.entry = *POLICIES.find(policy)?;
        self.by_pool.clear();
        Ok(())
    }
    /// Changes the configuration; turns start anew.
    pub fn set_config(&mut self, config: AllocConfig) {
        self.config = config;
        self.by_pool.clear();
    }
    /// Name of the policy in use.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.entry.name
    }
    /// The configuration in use.
    #[must_use]
    pub fn config(&self) -> &AllocConfig {
        &self.config
    }
    /// Answers of a policy that broke the rules and were replaced. 0 with the policies of the house.
    #[must_use]
    pub fn wrong_answers(&self) -> u64 {
        self.wrong_answers
    }

    /// OSTs for a new file, in stripe order. Fewer than asked for when fewer can take one (never fewer than 1), unless
    /// listed explicitly. Draws one number from `rng`. O(OSTs).
    ///
    /// # Errors
    /// [`AllocError`]; nothing changed.
    pub fn allocate(&mut self, osts: &[OstFacts], ask: &Resolved, rng: &mut Rng) -> Result<Vec<OstIndex>, AllocError> {
        self.allocate_with(osts, ask, rng.next_u64())
    }

    /// [`Allocator::allocate`] with the random number given: what a replay calls.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    pub fn allocate_with(&mut self, osts: &[OstFacts], ask: &Resolved, dice: u64) -> Result<Vec<OstIndex>, AllocError> {
        if !ask.osts.is_empty() {
            for ost in &ask.osts {
                self.check_named(osts, *ost, ask.pool)?;
            }
            return Ok(ask.osts.clone());
        }
        if let Some(start) = ask.index {
            self.check_named(osts, start, ask.pool)?;
        }
        self.collect_candidates(osts, ask.pool)?;
        let available = self.candidates.len();
        let stripes_max = usize::from(crate::STRIPE_COUNT_MAX);
        let want = ask.stripe_count.map_or(available.min(stripes_max), usize::from);
        let want = if ask.overstripe { want } else { want.min(available) };
        Ok(match ask.index {
            Some(start) => self.in_order_from(start, want),
            None => self.by_policy(ask.pool, want, dice),
        })
    }

    /// Whether an OST named by the user can take an object.
    fn check_named(&self, osts: &[OstFacts], ost: OstIndex, pool: Option<PoolName>) -> Result<(), AllocError> {
        let Some(facts) = osts.iter().find(|o| o.index == ost) else {
            let last = osts.iter().map(|o| o.index).max().ok_or(AllocError::NoOst { pool: None })?;
            return Err(AllocError::Missing { ost, last });
        };
        match pool {
            Some(pool) if !facts.in_pool => Err(AllocError::NotInPool { ost, pool }),
            _ if !facts.active => Err(AllocError::Inactive(ost)),
            _ if self.is_full(facts) => Err(AllocError::Full(ost)),
            _ => Ok(()),
        }
    }

    fn is_full(&self, o: &OstFacts) -> bool {
        o.free_bytes <= o.total_bytes / 1000 * self.config.full_permille
    }

    fn collect_candidates(&mut self, osts: &[OstFacts], pool: Option<PoolName>) -> Result<(), AllocError> {
        let mut candidates = core::mem::take(&mut self.candidates);
        candidates.clear();
        let (mut members, mut active) = (0, 0);
        for o in osts.iter().filter(|o| pool.is_none() || o.in_pool) {
            members += 1;
            active += usize::from(o.active);
            if o.active && !self.is_full(o) {
                candidates.push(Candidate { index: o.index, free_bytes: o.free_bytes, total_bytes: o.total_bytes });
            }
        }
        if !candidates.is_sorted_by(|a, b| a.index < b.index) {
            candidates.sort_unstable_by_key(|c| c.index);
            candidates.dedup_by_key(|c| c.index);
        }
        let empty = candidates.is_empty();
        self.candidates = candidates;
        match (members, active) {
            (0, _) => Err(AllocError::NoOst { pool }),
            (_, 0) => Err(AllocError::AllInactive { osts: members }),
            _ if empty => Err(AllocError::AllFull { osts: active }),
            _ => Ok(()),
        }
    }

    /// The OSTs after `start` in index order, round and round.
    fn in_order_from(&self, start: OstIndex, want: usize) -> Vec<OstIndex> {
        let first = self.candidates.partition_point(|c| c.index < start);
        self.candidates.iter().cycle().skip(first).take(want).map(|c| c.index).collect()
    }

    fn by_policy(&mut self, pool: Option<PoolName>, want: usize, dice: u64) -> Vec<OstIndex> {
        if self.by_pool.len() >= POOLS_MAX && !self.by_pool.contains_key(&pool) {
            self.by_pool.pop_last();
        }
        let (entry, config) = (self.entry, &self.config);
        let policy = self.by_pool.entry(pool).or_insert_with(|| (entry.make)(config));
        let mut osts = Vec::with_capacity(want);
        let mut chosen = Vec::new();
        while osts.len() < want {
            let count = (want - osts.len()).min(self.candidates.len());
            chosen.clear();
            policy.choose(&self.candidates, count, dice, &mut chosen);
            if !is_right(&self.candidates, count, &chosen) {
                self.wrong_answers += 1;
                chosen.clear();
                RoundRobin::new().choose(&self.candidates, count, dice, &mut chosen);
            }
            osts.extend_from_slice(&chosen);
        }
        osts
    }
}

/// Whether an answer has `count` different candidates.
pub(crate) fn is_right(candidates: &[Candidate], count: usize, chosen: &[OstIndex]) -> bool {
    let known = |o: &OstIndex| candidates.binary_search_by_key(o, |c| c.index).is_ok();
    if chosen.len() != count || !chosen.iter().all(known) {
        return false;
    }
    if count <= 8 {
        return chosen.iter().enumerate().all(|(i, o)| !chosen[..i].contains(o));
    }
    let mut sorted = chosen.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|w| w[0] != w[1])
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
