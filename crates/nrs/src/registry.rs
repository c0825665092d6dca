//! One line per policy: its name is the config value, metric label, scenario key and documentation entry.
use crate::{ConfigError, NrsConfig, NrsPolicy, fifo::Fifo};
use alloc::{boxed::Box, string::ToString};

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
    /// Builds an empty policy.
    pub build: fn(&NrsConfig) -> Box<dyn NrsPolicy>,
}

/// All policies, in the order of the reference page. `deadline+NAME` wraps any of them.
#[must_use]
pub fn registry() -> &'static [PolicyEntry] {
    REGISTRY
}

static REGISTRY: &[PolicyEntry] = &[PolicyEntry {
    name: "fifo",
    summary: "In the order of arrival.",
    medium: Medium::Flash,
    build: |_| Box::new(Fifo::default()),
}];

/// Builds the policy called `name`.
///
/// # Errors
/// [`ConfigError::UnknownPolicy`] lists the names.
pub fn build(name: &str, config: &NrsConfig) -> Result<Box<dyn NrsPolicy>, ConfigError> {
    let entry = REGISTRY.iter().find(|e| e.name == name);
    entry.map(|e| (e.build)(config)).ok_or_else(|| ConfigError::UnknownPolicy(name.to_string()))
}
