//! The policy trait and the registry: what decides, for one open file, which extents to ask for.
use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use types::Extent;

use crate::config::Config;
use crate::file::{Ask, Hint};

mod miss;
mod none;
mod ondemand;
mod parallel;

pub use miss::Miss;
pub use none::NoReadahead;
pub use ondemand::Ondemand;
pub use parallel::Parallel;

/// Decides what to ask for. Extents are bytes as the program reads them; the mechanism rounds them to pages, cuts them
/// and drops what is outstanding, so a policy may ask again for what it asked before. Same calls, same answers.
pub trait ReadaheadPolicy: Send {
    /// A read begins (cut at the end of file, not empty). Only [`Ask::asynchronous`] may be used.
    fn on_read(&mut self, read: Extent, ask: &mut Ask<'_>);
    /// Part of the read just begun must be fetched; the reader waits for it and for what [`Ask::sync`] adds.
    fn on_miss(&mut self, miss: Extent, ask: &mut Ask<'_>);
    /// A large read has progressed to `done.end` and goes on.
    fn on_progress(&mut self, done: Extent, ask: &mut Ask<'_>) {
        let _ = (done, ask);
    }
    /// `bytes` prefetched left the cache unused.
    fn on_wasted(&mut self, bytes: u64) {
        let _ = bytes;
    }
    /// The reader had to wait for a prefetch in flight.
    fn on_blocked(&mut self) {}
    /// The program announced Normal, Sequential or Random order. Under Random no other method is called.
    fn on_hint(&mut self, hint: Hint) {
        let _ = hint;
    }
}

/// A registry line.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// Config value, metric label, scenario key.
    pub name: &'static str,
    /// One sentence for the reference page.
    pub summary: &'static str,
    /// Builds one; called once per open file.
    pub make: fn(&Config) -> Box<dyn ReadaheadPolicy>,
}

/// Every readahead policy of the house. Adding one is one file and one line here.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry {
        name: "parallel",
        summary: "Paper 003: background fetches from the start of every read, several patterns, windows that grow. The default.",
        make: |c| Box::new(Parallel::new(c)),
    },
    PolicyEntry {
        name: "parallel_sequential",
        summary: "`parallel` with the sequential pattern alone: the cheapest, for clients that only stream.",
        make: |c| Box::new(Parallel::with_patterns(c, &["sequential"])),
    },
    PolicyEntry {
        name: "ondemand",
        summary: "Baseline: one sequential window (40 MiB), renewed by the reader when it crosses a marker, as Linux does.",
        make: |c| Box::new(Ondemand::new(c)),
    },
    PolicyEntry {
        name: "miss",
        summary: "Baseline: a sequential miss fetches 2 MiB and the reader waits for all of it.",
        make: |c| Box::new(Miss::new(c)),
    },
    PolicyEntry {
        name: "none",
        summary: "Nothing is prefetched but what WILLNEED names.",
        make: |_| Box::new(NoReadahead),
    },
];

/// Name of the policy used when none is configured.
pub const POLICY_DEFAULT: &str = "parallel";

/// No policy has this name. `Display` lists those that exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy(pub String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown readahead policy '{}': use one of", self.0)?;
        POLICIES.iter().try_for_each(|p| write!(f, " {}", p.name))
    }
}
impl core::error::Error for UnknownPolicy {}

#[cfg(test)]
mod tests;
