//! How long the object is known to be.
//!
//! Answers that say it name no moment, and may come in any order. A lock keeps other clients from changing the size within its
//! extent, and locks of one client conflict with each other as those of two do; so what came with a lock is true within the
//! lock's extent, however late it comes. What it says of the rest, and what came without a lock, is hearsay: it counts if
//! nothing has happened since the question that would be newer.
use super::Pages;
use crate::PAGE;

/// What is known here when a question for the size is sent, for the answer to be judged by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Moment(u32);

impl<P> Pages<P> {
    /// Bytes that the object is known to reach.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }
    /// Bytes of it that the OST has said it has.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored
    }
    /// The object was cut or extended to this size at its OST.
    pub fn set_size(&mut self, size: u64) {
        (self.size, self.stored) = (size, size);
        self.tails.clear();
        if !types::planted!("cut-overtakes-nothing") {
            self.moment.0 = self.moment.0.wrapping_add(1);
        }
        if !types::planted!("cut-assured") {
            self.assured = self.assured.min(size);
        }
    }
    /// The OST says how long the object is; what is not written out counts besides.
    pub(super) fn on_size(&mut self, stored: u64) {
        self.stored = stored.max(if types::planted!("late-size-believed") { 0 } else { self.assured });
        self.forget_tails();
        let unwritten = if types::planted!("unwritten-uncounted") { 0 } else { self.unwritten_end() };
        self.size = self.stored.max(unwritten);
    }
    /// What a question for the size, or for a lock, takes along when it is sent.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.moment
    }
    /// Whether the answer to a question of that moment may be older than what is known here.
    #[must_use]
    pub fn is_overtaken(&self, asked: Moment) -> bool {
        self.moment != asked
    }
    /// The answer to a question of that moment says how long the object is. `exact`: a lock over its end is held, or nobody else
    /// writes it, so that it is known better here.
    pub fn on_told(&mut self, asked: Moment, stored: u64, exact: bool) {
        if !exact && !self.is_overtaken(asked) {
            self.on_size(stored);
        }
    }
    /// A lock comes that reaches to `end`, and with it how long the object was at a moment at which it was held already. `asked`:
    /// when it was asked for, if its answer is the answer to that question. `exact`, without this lock, as with
    /// [`Pages::on_told`].
    pub fn on_lock_came(&mut self, asked: Option<Moment>, end: u64, stored: u64, exact: bool) {
        if !types::planted!("lock-assures-nothing") {
            self.assured = self.assured.max(end.min(if exact { self.stored } else { stored }));
        }
        if !exact {
            let overtaken = asked.is_none_or(|asked| self.is_overtaken(asked));
            // Nobody but this client makes it longer or shorter within the lock. Behind that, of two sizes of which nobody
            // knows which is newer, the lower one hides nothing: it is asked for where a read ends.
            let old = overtaken && !types::planted!("late-lock-believed");
            self.on_size(if old { stored.min(self.stored) } else { stored });
        }
        if !types::planted!("lock-overtakes-nothing") {
            self.moment.0 = self.moment.0.wrapping_add(1);
        }
    }
    /// The object reached to `end` under a lock that is held now and covers the byte before: it does as long as that is held.
    pub fn on_assured(&mut self, end: u64) {
        self.assured = self.assured.max(end);
        self.on_stored(end);
    }
    /// Bytes that it reaches for sure while locks are held.
    #[must_use]
    pub fn assured(&self) -> u64 {
        self.assured
    }
    /// A lock goes; those that are left reach to `reach`.
    pub fn on_lock_gone(&mut self, reach: u64) {
        if !types::planted!("assured-for-ever") {
            self.assured = self.assured.min(reach);
        }
    }
    /// Bytes up to `end` are in dirty pages.
    pub fn on_grown(&mut self, end: u64) {
        self.note_tail(end);
        self.size = self.size.max(end);
    }
    /// The OST has carried out something that made the object at least this long.
    pub fn on_stored(&mut self, end: u64) {
        self.stored = self.stored.max(end);
        self.size = self.size.max(end);
        self.forget_tails();
    }
    fn note_tail(&mut self, end: u64) {
        let Some(page) = end.checked_sub(1).map(|last| last / PAGE) else { return };
        if end.is_multiple_of(PAGE) {
            self.tails.remove(&page);
        } else if let Some(tail) = self.tails.get_mut(&page) {
            *tail = end.max(*tail);
        } else if end > self.stored && (end > self.size || self.fresh == Some(page)) {
            self.tails.insert(page, end);
        }
    }
    /// Where the OST knows of more, the bytes of a page end with the page.
    fn forget_tails(&mut self) {
        let stored = self.stored;
        self.tails.retain(|_, tail| *tail > stored);
    }
}
