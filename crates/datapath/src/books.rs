//! Dirty bytes of one OST, and the grant that stands for them.
//!
//! The server's and the client's book of grant say the same at rest. A dirty page either took a page of grant or did not
//! ("poor": it is written out at once); which it was stays with the page. Grant that a write used is the server's again when
//! the write was carried out, and the client's when it was not.
use crate::{Dropped, PAGE};

/// The books of one OST. All figures in bytes.
#[derive(Clone, Debug)]
pub struct Books {
    /// Grant that no page took. Negative while pages took more than a server that lost its books gives anew.
    grant: i64,
    /// Grant that dirty pages took, and pages being written.
    charged: u64,
    dirty: u64,
    dirty_max: u64,
    /// The server's process that keeps the other book.
    book: u64,
}

impl Books {
    /// Least value of the limit of dirty bytes.
    pub const DIRTY_BYTES_MIN: u64 = 1 << 20;

    /// Empty books with a limit of dirty bytes.
    #[must_use]
    pub const fn new(dirty_bytes_max: u64) -> Books {
        Books { grant: 0, charged: 0, dirty: 0, dirty_max: dirty_bytes_max, book: 0 }
    }
    /// Dirty bytes, those being written among them.
    #[must_use]
    pub const fn dirty_bytes(&self) -> u64 {
        self.dirty
    }
    /// Grant that no page took.
    #[must_use]
    pub const fn grant_bytes(&self) -> u64 {
        if self.grant < 0 { 0 } else { self.grant as u64 }
    }
    /// Grant that dirty pages took, and pages being written.
    #[must_use]
    pub const fn charged_bytes(&self) -> u64 {
        self.charged
    }
    /// All grant that the server gave and has not got back by writes.
    #[must_use]
    pub const fn given_bytes(&self) -> u64 {
        let given = self.grant + self.charged as i64;
        if given < 0 { 0 } else { given as u64 }
    }
    /// Dirty bytes allowed.
    #[must_use]
    pub const fn dirty_bytes_max(&self) -> u64 {
        self.dirty_max
    }
    /// Changes the dirty bytes allowed.
    pub fn set_dirty_bytes_max(&mut self, bytes: u64) {
        self.dirty_max = bytes.max(Books::DIRTY_BYTES_MIN);
    }
    /// Whether a request of `bytes` may dirty pages now: fewer dirty bytes than allowed, and grant if waiting can bring any.
    #[must_use]
    pub const fn has_room(&self, bytes: u64) -> bool {
        let over = self.dirty > 0 && self.dirty + bytes > self.dirty_max;
        let poor = self.grant < bytes as i64 && self.dirty > 0;
        !over && !poor
    }
    /// Whether so much is dirty that write-out should begin.
    #[must_use]
    pub const fn is_half_full(&self) -> bool {
        self.dirty > self.dirty_max / 2
    }

    /// A page became dirty. False when there is no grant for it: it must be written out at once.
    pub(crate) fn on_dirtied(&mut self) -> bool {
        self.dirty += PAGE;
        if self.grant < PAGE as i64 {
            return false;
        }
        self.grant -= PAGE as i64;
        self.charged += PAGE;
        true
    }
    /// A page became dirty and takes no grant.
    pub(crate) fn on_dirtied_without_grant(&mut self) {
        self.dirty += PAGE;
    }
    /// Pages are no longer dirty; `unused`: the server did not take the grant that they took.
    pub(crate) fn on_clean(&mut self, dropped: Dropped, unused: bool) {
        let (dirty, grant) = (dropped.dirty as u64 * PAGE, dropped.granted as u64 * PAGE);
        self.dirty -= dirty;
        self.charged -= grant;
        if unused {
            self.grant += grant as i64;
        }
    }
    /// An answer brought grant.
    pub fn on_grant(&mut self, bytes: u64) {
        self.grant = self.grant.saturating_add_unsigned(bytes);
    }
    /// Takes out the grant that no page took, but for `keep` bytes, in whole pages: it goes back to the server's process that
    /// keeps the other book. Answers which one that is, and how much.
    pub fn give_back(&mut self, keep: u64) -> (u64, u64) {
        let bytes = self.grant_bytes().saturating_sub(keep) / PAGE * PAGE;
        self.grant -= bytes as i64;
        (self.book, bytes)
    }
    /// A session begins that has `grant` in all. A server that still knows us has the same book, and answers on their way
    /// change both; a book that begins anew gives all at once, and what pages took is part of it. `book` names the server's
    /// process.
    pub fn on_session(&mut self, book: u64, known: bool, grant: u64) {
        if self.book != book || !known {
            self.grant = grant as i64 - self.charged as i64;
        }
        self.book = book;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_that_begins_anew_counts_what_pages_took_already() {
        let mut b = Books::new(1 << 20);
        b.on_session(7, false, 2 * PAGE);
        assert_eq!([b.on_dirtied(), b.on_dirtied(), b.on_dirtied()], [true, true, false]);
        assert_eq!((b.dirty_bytes(), b.charged_bytes(), b.grant_bytes()), (3 * PAGE, 2 * PAGE, 0));
        b.on_session(7, true, 9 * PAGE);
        assert_eq!(b.grant_bytes(), 0, "the server knows us: both books say the same already");
        b.on_session(8, true, PAGE);
        assert!(!b.has_room(1), "two pages took more than the new book gives");
        b.on_clean(Dropped { dirty: 3, granted: 2 }, true);
        assert_eq!((b.dirty_bytes(), b.charged_bytes(), b.grant_bytes()), (0, 0, PAGE));
    }

    #[test]
    fn only_grant_that_no_page_took_is_given_back() {
        let mut b = Books::new(1 << 20);
        b.on_session(7, false, 5 * PAGE + 10);
        assert!(b.on_dirtied());
        assert_eq!(b.give_back(PAGE), (7, 3 * PAGE));
        assert_eq!((b.give_back(2 * PAGE), b.grant_bytes(), b.charged_bytes()), ((7, 0), PAGE + 10, PAGE));
    }

    #[test]
    fn without_dirty_bytes_there_is_always_room() {
        let mut b = Books::new(1 << 20);
        assert!(b.has_room(1 << 30), "nothing that waiting could bring");
        b.on_grant(PAGE);
        assert!(b.on_dirtied() && !b.has_room(PAGE));
        b.set_dirty_bytes_max(1);
        assert_eq!(b.dirty_bytes_max(), Books::DIRTY_BYTES_MIN);
    }
}
