//! The datapath room: one client's path to one OST and to its objects there.
//!
//! It decides: which pages are valid, dirty, on their way in or out; which answer of a load still counts; who may touch pages
//! that a cut changes; which dirty page has grant; what the next write RPC takes along; which RPC enters the window next. It
//! does not: hold bytes (a page is an opaque handle `P`), take locks, send RPCs, know time. Inputs are `on_*`; what an input
//! returns is what the driver has to do (`#[must_use]`), and [`Window::next_admitted`] says which RPC goes next.
//!
//! Code map: [`Window`] (places of bulk RPCs, by rank, with places that only urgent ones get) · [`Books`] (dirty bytes and
//! grant) · [`Pages`] (one object: validity, claims, changes, dirty pages, write-out; [`Gone`] is what a drop took) ·
//! [`Target`] (one OST: window and books together, the order of write-out, and every step that touches books *and* pages) ·
//! [`Attempts`] (which answers are asked for again) · [`Unsynced`] (what is
//! answered and not known to be on stable storage; whether an fsync asks) · [`conformance`] (two clients and an OST; planted faults).
//!
//! Rules for drivers, which the suite follows:
//! - A page is written or claimed only under a lock that is held, and when no change of it is under way.
//! - A change (cut, hole, uncached write) begins before its flush and ends after its answer; it drops its pages in between.
//! - An fsync flushes first, then asks [`Unsynced::on_fsync`]; every answer is noted there before who waits for it goes on.
//! - A lock that goes is flushed first ([`Rank::Urgent`]), then [`Target::discard_uncovered`], then cancelled.
//!
//! Source: the review that names the client's data path as the room that was missing; the mechanisms are those that
//! `client` had grown: claims by number, gates around changes, grant kept by page.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod attempts;
mod books;
pub mod conformance;
mod pages;
mod target;
mod unsynced;
mod window;

pub use attempts::{Answer, Attempts, Next};
pub use books::Books;
pub use pages::{Claimed, Dropped, Gone, Outgoing, Pages, WriteOut, page_range};
pub use target::{Target, TargetLimits};
pub use unsynced::{Fsync, Unsynced};
pub use window::{Rank, Ticket, Window};

/// Bytes of a page.
pub const PAGE: u64 = types::PAGE_BYTES as u64;
