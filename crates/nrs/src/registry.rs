//! One line per policy: its name is the config value, metric label, scenario key and documentation entry.
use crate::{
    ConfigError, NrsConfig, NrsPolicy,
    crrn::Crrn,
    deadline::{Deadline, Flavour},
    fifo::Fifo,
    obrr::Obrr,
    orr::Orr,
    tbf::Tbf,
    trr::Trr,
};
use alloc::{boxed::Box, string::ToString};

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

/// What the registry knows about a policy.
pub struct PolicyEntry {
    /// Name, lower case.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Where it pays.
    pub medium: Medium,
    /// Whether it may hold requests back although it could serve them.
    pub throttles: bool,
    /// Requests of a turn by its own choice; 0: it has no turns.
    pub quantum: u32,
    /// Builds an empty policy.
    pub build: fn(&NrsConfig) -> Box<dyn NrsPolicy>,
}

const fn entry(
    name: &'static str,
    summary: &'static str,
    medium: Medium,
    quantum: u32,
    build: fn(&NrsConfig) -> Box<dyn NrsPolicy>,
) -> PolicyEntry {
    PolicyEntry { name, summary, medium, throttles: false, quantum, build }
}

/// All policies, in the order of the reference page. `deadline+NAME` wraps any of them but `obrr+`, which has its own.
#[must_use]
pub fn registry() -> &'static [PolicyEntry] {
    REGISTRY
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
    entry(
        "obrr+",
        "obrr whose turns end at the allocator's regions, with early deadlines and an urgent budget.",
        Medium::Rotating,
        crate::obrr::REGION_QUANTUM,
        |config| Box::new(Deadline::new(Box::new(Obrr::by_region(config)), Flavour::Early, config)),
    ),
    PolicyEntry {
        name: "tbf",
        summary: "Holds clients, jobs, users or operations to rates in requests and bytes per second.",
        medium: Medium::Any,
        throttles: true,
        quantum: 0,
        build: |config| Box::new(Tbf::new(config)),
    },
];

/// Builds the policy called `name`: a name of the registry, or `deadline+` and such a name.
///
/// # Errors
/// [`ConfigError::UnknownPolicy`] lists the names.
pub fn build(name: &str, config: &NrsConfig) -> Result<Box<dyn NrsPolicy>, ConfigError> {
    let unknown = || ConfigError::UnknownPolicy(name.to_string());
    let find = |name: &str| REGISTRY.iter().find(|e| e.name == name).ok_or_else(unknown);
    let Some(inner) = name.strip_prefix(DEADLINE_PREFIX) else { return Ok((find(name)?.build)(config)) };
    let inner = find(inner)?;
    if inner.name == "obrr+" {
        return Err(unknown());
    }
    let flavour = if inner.throttles { Flavour::OverThrottle } else { Flavour::Configured };
    Ok(Box::new(Deadline::new((inner.build)(config), flavour, config)))
}

/// The policy for a medium: ordering pays on disks that seek and costs nothing but time on those that do not.
#[must_use]
pub fn default_for(medium: Medium) -> &'static str {
    match medium {
        Medium::Rotating => "obrr+",
        Medium::Flash | Medium::Any => "fifo",
    }
}
