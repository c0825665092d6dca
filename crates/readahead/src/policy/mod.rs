//! The policy trait and the registry: what decides, for one open file, which extents to ask for.
use alloc::boxed::Box;
use types::Extent;
use types::registry::{Entry, Registry};

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

/// A policy of the registry, or an outsider's; built once per open file.
pub type PolicyEntry = Entry<dyn ReadaheadPolicy, Config>;

/// Every readahead policy of the house, the default first. Adding one is one file and one line here.
pub const POLICIES: Registry<dyn ReadaheadPolicy, Config> = Registry::new("readahead policy", ENTRIES);

static ENTRIES: &[PolicyEntry] = &[
    Entry::new(
        POLICY_DEFAULT,
        "Paper 003: background fetches from the start of every read, several patterns, windows that grow. The default.",
        |c| Box::new(Parallel::new(c)),
    ),
    Entry::new(
        "parallel_sequential",
        "`parallel` with the sequential pattern alone: the cheapest, for clients that only stream.",
        |c| Box::new(Parallel::with_patterns(c, &["sequential"])),
    ),
    Entry::new(
        "ondemand",
        "Baseline: one sequential window (40 MiB), renewed by the reader when it crosses a marker, as Linux does.",
        |c| Box::new(Ondemand::new(c)),
    ),
    Entry::new("miss", "Baseline: a sequential miss fetches 2 MiB and the reader waits for all of it.", |c| {
        Box::new(Miss::new(c))
    }),
    Entry::new("none", "Nothing is prefetched but what WILLNEED names.", |_| Box::new(NoReadahead)),
];

/// Name of the policy used when none is configured.
pub const POLICY_DEFAULT: &str = "parallel";

#[cfg(test)]
mod tests;
