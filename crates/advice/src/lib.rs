//! The advice room: what a hint about an object makes the server's tiers do.
//!
//! It decides: which tier advised bytes go to (by what fits), what is prefetched, in which order pages are reclaimed, and
//! what must give way to what. It does not: move bytes, own frames, or measure pressure; all of that arrives and leaves
//! as plain data. Reclaim order is UNADVISED < CACHE < LOW < MED < HIGH; advised bytes never fill a tier, so that reads
//! nobody advised keep their share and HIGH never leaves because of them.
//!
//! Code map: [`table`] (hint x tier x pressure -> actions; a policy) · [`Advisor`] (who holds what, what fits, budgets per
//! project) · [`jobs`] (prefetches: large, sequential, cancellable) · [`admission`] (what earns a copy in the fast tier without
//! advice) · [`conformance`] · [`record`].
//!
//! Source: paper 004. Differs: tiers are chosen by what fits, projects have budgets, owners (batch jobs) can be released.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod admission;
mod advisor;
mod config;
pub mod conformance;
pub mod jobs;
mod ledger;
pub mod record;
mod reference;
pub mod table;

pub use advisor::{Advice, AdviceError, Advisor, OwnerId, Payer, ProjectId, Refusal, Step, Steps, Tiers, UserId, Wish};
pub use config::Config;
pub use reference::reference_markdown;
pub use table::{Actions, AdvicePolicy, POLICIES, POLICY_DEFAULT, PolicyEntry};
pub use types::registry::UnknownPolicy;

/// How much a user cares that bytes are near; ordered. Also the reclaim class of the pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Hint {
    /// No advice, or advice withdrawn: reclaimed first.
    #[default]
    None = 0,
    /// Keep what was read, fetch nothing.
    Cache = 1,
    /// Fetch when nothing else wants the tier.
    Low = 2,
    /// Fetch unless the tier is under high pressure.
    Med = 3,
    /// Fetch, at the expense of everything below. Never leaves because of unadvised reads.
    High = 4,
}

/// Where advised bytes may live on a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// The server's page cache.
    Ram = 0,
    /// A device faster than the object's own: SSD before spindles.
    Fast = 1,
}

/// How hard pressed a tier is now; the caller measures it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Pressure {
    /// Free frames are there.
    #[default]
    Low = 0,
    /// Unadvised pages are being reclaimed.
    Medium = 1,
    /// Advised pages are being reclaimed, or allocations wait.
    High = 2,
}

impl Hint {
    /// All hints, first reclaimed first.
    pub const ALL: [Hint; 5] = [Hint::None, Hint::Cache, Hint::Low, Hint::Med, Hint::High];
    /// Name in commands and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Hint::None => "none",
            Hint::Cache => "cache",
            Hint::Low => "low",
            Hint::Med => "med",
            Hint::High => "high",
        }
    }
    /// The hint of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Hint> {
        Hint::ALL.into_iter().find(|h| h.name() == name)
    }
}

impl Tier {
    /// Both tiers, the nearer first.
    pub const ALL: [Tier; 2] = [Tier::Ram, Tier::Fast];
    /// Name in commands and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Ram => "ram",
            Tier::Fast => "fast",
        }
    }
}

impl Pressure {
    /// All levels, rising.
    pub const ALL: [Pressure; 3] = [Pressure::Low, Pressure::Medium, Pressure::High];
    /// Name in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Pressure::Low => "low",
            Pressure::Medium => "medium",
            Pressure::High => "high",
        }
    }
}
