//! One line per policy: its name is the config value, metric label, scenario key and documentation entry.
use crate::{
    ConfigError, Head, NrsConfig, NrsPolicy,
    auto::Auto,
    crrn::Crrn,
    deadline::{Deadline, Flavour},
    fifo::Fifo,
    obrr::Obrr,
    orr::Orr,
    tbf::Tbf,
    trr::Trr,
};
use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};
use types::registry::{Entry, Registry};

/// Prefix of a policy's name that puts the two-level deadlines over it.
pub const DEADLINE_PREFIX: &str = "deadline+";

/// The medium that a policy is meant for; what a default is chosen by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Flash and memory: order buys next to nothing, so the cheapest order is right.
    Flash,
    /// Disks that seek.
    Rotating,
    /// Chosen for what it promises to clients, not by medium.
    Any,
}

/// What else is known of a policy.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Where it pays.
    pub medium: Medium,
    /// Whether it may hold requests back although it could serve them.
    pub throttles: bool,
    /// Whether it has deadlines of its own, or chooses among policies that may: it cannot follow [`DEADLINE_PREFIX`].
    pub own_deadlines: bool,
    /// Requests of a turn by its own choice; 0: it has no turns.
    pub quantum: u32,
}

/// A policy of the registry, or an outsider's.
pub type PolicyEntry = Entry<dyn NrsPolicy, NrsConfig, Facts>;

const fn entry(
    name: &'static str,
    summary: &'static str,
    medium: Medium,
    quantum: u32,
    make: fn(&NrsConfig) -> Box<dyn NrsPolicy>,
) -> PolicyEntry {
    Entry { name, summary, make, facts: Facts { medium, throttles: false, own_deadlines: false, quantum } }
}

const fn with_own_deadlines(entry: PolicyEntry) -> PolicyEntry {
    Entry { facts: Facts { own_deadlines: true, ..entry.facts }, ..entry }
}

/// All policies, in the order of the reference page. `deadline+NAME` wraps any of them that has no deadlines of its own.
#[must_use]
pub fn registry() -> Registry<dyn NrsPolicy, NrsConfig, Facts> {
    Registry::new("NRS policy", REGISTRY)
}

static REGISTRY: &[PolicyEntry] = &[
    entry("fifo", "In the order of arrival.", Medium::Flash, 0, |_| Box::new(Fifo::default())),
    entry(
        "crrn",
        "Clients take turns; one client's requests leave in the order of arrival.",
        Medium::Any,
        crate::crrn::QUANTUM,
        |config| Box::new(Crrn::new(config)),
    ),
    entry(
        "orr",
        "Objects take turns of up to 256 requests that were bound to the turn on arrival; sorted by offset.",
        Medium::Rotating,
        crate::orr::QUANTUM,
        |config| Box::new(Orr::new(config)),
    ),
    entry(
        "trr",
        "Targets behind one head take turns of up to 256 requests, sorted by object and offset.",
        Medium::Any,
        crate::trr::QUANTUM,
        |config| Box::new(Trr::new(config)),
    ),
    entry(
        "obrr",
        "Objects take turns; within a turn requests leave in the order of their offsets (paper 001).",
        Medium::Rotating,
        crate::obrr::OBRR_QUANTUM,
        |config| Box::new(Obrr::new(config)),
    ),
    with_own_deadlines(entry(
        "obrr+",
        "obrr whose turns end at the allocator's regions, with early deadlines and an urgent budget.",
        Medium::Rotating,
        crate::obrr::REGION_QUANTUM,
        |config| Box::new(Deadline::new(Box::new(Obrr::by_region(config)), Flavour::Early, config)),
    )),
    Entry {
        name: "tbf",
        summary: "Holds clients, jobs, users or operations to rates in requests and bytes per second.",
        make: |config| Box::new(Tbf::new(config)),
        facts: Facts { medium: Medium::Any, throttles: true, own_deadlines: false, quantum: 0 },
    },
    with_own_deadlines(entry(
        AUTO,
        "The one of its candidates that a model of the disk shows to be best.",
        Medium::Any,
        0,
        |config| Box::new(Auto::new(config, build)),
    )),
];

/// The policy that chooses among others.
const AUTO: &str = "auto";

/// Every name that [`build`] takes: each policy, and each that may follow `deadline+` behind it.
#[must_use]
pub fn names() -> Vec<String> {
    let wrapped = REGISTRY.iter().filter(|e| !e.facts.own_deadlines);
    let wrapped = wrapped.map(|e| format!("{DEADLINE_PREFIX}{}", e.name));
    REGISTRY.iter().map(|e| e.name.to_string()).chain(wrapped).collect()
}

impl Head {
    /// An empty head with the policy called `name`.
    ///
    /// # Errors
    /// [`ConfigError::UnknownPolicy`].
    pub fn new(name: &str, config: NrsConfig) -> Result<Head, ConfigError> {
        let policy = build(name, &config)?;
        Ok(Head::with_policy(name, policy, config))
    }
    /// An empty head with a policy that is not in the registry: an experiment's, or an outsider's.
    #[must_use]
    pub fn with_policy(name: &str, policy: Box<dyn NrsPolicy>, config: NrsConfig) -> Head {
        Head::made(name, policy, config, build)
    }
}

/// Builds the policy called `name`: a name of the registry, or `deadline+` and such a name.
///
/// # Errors
/// [`ConfigError::UnknownPolicy`] lists the names.
pub fn build(name: &str, config: &NrsConfig) -> Result<Box<dyn NrsPolicy>, ConfigError> {
    let unknown = || ConfigError::UnknownPolicy(name.to_string());
    let Some(inner) = name.strip_prefix(DEADLINE_PREFIX) else {
        return Ok((registry().find(name).map_err(|_| unknown())?.make)(config));
    };
    let inner = registry().find(inner).map_err(|_| unknown())?;
    if inner.facts.own_deadlines {
        return Err(unknown());
    }
    Ok(under_deadlines(inner, config))
}

/// Builds a policy with the two-level deadlines over it.
#[must_use]
pub fn under_deadlines(entry: &PolicyEntry, config: &NrsConfig) -> Box<dyn NrsPolicy> {
    let flavour = if entry.facts.throttles { Flavour::OverThrottle } else { Flavour::Configured };
    Box::new(Deadline::new((entry.make)(config), flavour, config))
}

/// The policy for a medium: ordering pays on disks that seek and costs nothing but time on those that do not.
#[must_use]
pub fn default_for(medium: Medium) -> &'static str {
    match medium {
        Medium::Rotating => "obrr+",
        Medium::Flash | Medium::Any => "fifo",
    }
}
