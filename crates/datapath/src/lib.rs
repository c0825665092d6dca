//! The datapath room: one client's path to one OST and to its objects there.
//!
//! It decides: which pages are valid, dirty, on their way in or out; which answer of a load still counts; who may touch pages
//! that a cut changes; which dirty page has grant; which RPC enters the window next; what is written out next, and what one
//! write RPC takes along; whether it is sent again; what becomes of its pages; when a flush is over. It does not: hold bytes (a
//! page is an opaque handle `P`), take locks, send RPCs, know time. Inputs are `on_*`; what an input returns is what the driver
//! has to do (`#[must_use]`), [`Window::next_admitted`] says which RPC goes next, [`Target::next_full`] and
//! [`Target::next_oldest`] which pages.
//!
//! Code map: [`Window`] (places of bulk RPCs, by rank, with places that only urgent ones get) · [`Books`] (dirty bytes and
//! grant) · [`Share`] (places in the page cache for unwritten pages of one OST) · [`Pages`] (one object: validity, claims, changes, dirty pages, write-out; [`Gone`] is what a drop took) ·
//! [`Target`] (one OST: window and books together, and every step that touches books *and* pages) · `writeout` (the choice of
//! the next write, a write's end and its pages' [`Fate`], how far a flush is) ·
//! [`Attempts`] (which answers are asked for again) · [`Unsynced`] (what is
//! answered and not known to be on stable storage; whether an fsync asks) · [`conformance`] (two clients and an OST; planted faults).
//!
//! Rules for drivers, which the suite follows:
//! - A page is written or claimed only under a lock that is held, and when no change of it is under way.
//! - A change (cut, hole, uncached write) begins before its flush and ends after its answer; it drops its pages in between.
//! - An fsync flushes first, then asks [`Unsynced::on_fsync`]; every answer is noted there before who waits for it goes on.
//! - A flush looks how far it is ([`Pages::flushing`]), asks for a place when told so, and then for a write ([`Target::on_place`]);
//!   it looks again whenever a write of the object has ended or pages were dropped. After every input that may free a place the
//!   window is asked who goes next.
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
mod share;
mod target;
mod unsynced;
mod window;
mod writeout;

pub use attempts::{Answer, Attempts, Next};
pub use books::Books;
pub(crate) use pages::Outgoing;
pub use pages::{Claimed, Dropped, Due, Flushing, Gone, Moment, Pages, Part, WriteOut, page_range};
pub use share::Share;
pub use target::{Target, TargetLimits};
pub use unsynced::{Fsync, Unsynced};
pub use window::{Rank, Ticket, Window};
pub use writeout::{Chosen, ChosenOf, Fate, Objects, Round};

/// Bytes of a page.
pub const PAGE: u64 = types::PAGE_BYTES as u64;
