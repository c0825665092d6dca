//! The readahead room: what to prefetch now, for each open file.
//!
//! It decides: which bytes to fetch before they are asked for, what of it the reader waits for, and how all open files
//! share one budget. It does not: hold pages, take locks, send RPCs. The mechanism ([`FileReadahead`]) cuts whatever a
//! policy asks for at the end of file, at the lock, at stripes and RPCs, at the file's window, at the global [`Budget`]
//! and at the waste allowance, and never asks for a byte twice while it is outstanding; a wrong policy is slow, never wrong.
//! Pages that the reader goes past, or that no read comes near while a window is read, count against none of these limits
//! any more: they stay in the cache until it reclaims them, and a reader that goes on is never held up by them.
//!
//! Order of calls for one read: [`FileReadahead::on_read`] first (start its asynchronous extents in a pool), then look
//! into the cache, then [`FileReadahead::on_miss`] for what is missing (fetch its synchronous extents together with the
//! miss, in the reader, and start the asynchronous ones).
//!
//! Source: paper 003. Differs: patterns are pluggable, growth is bounded by a waste allowance, cached files cost nothing.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod ahead;
mod budget;
mod config;
pub mod conformance;
mod file;
mod issued;
pub mod pattern;
pub mod policy;
pub mod record;
mod reference;

pub use ahead::{Ahead, AheadFile, EachFile, Recorded};
pub use budget::Budget;
pub use config::Config;
pub use file::{Ask, Facts, FileReadahead, Hint, Plan, Stats};
pub use pattern::{PATTERNS, Pattern, PatternEntry};
pub use policy::{POLICIES, POLICY_DEFAULT, PolicyEntry, ReadaheadPolicy};
pub use reference::reference_markdown;
pub use types::registry::UnknownPolicy;

/// Gaps up to this many bytes (two pages) do not end a run: skipping them would fetch the same pages.
pub const GAP_BYTES: u64 = 2 * types::PAGE_BYTES as u64;
