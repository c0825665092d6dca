//! Attributes of an inode as answers tell them.
//!
//! Answers come in any order, and a client's own locks on an inode do not keep its own changes from each other. Two kinds tell
//! attributes: answers to questions, which a lock that came along makes true as far as others go, and answers to own
//! changes, which their transactions put in order. Of one of each kind that were under way at the same time
//! nobody knows which is newer; the attributes are asked for again then.
use std::cell::{Cell, RefCell};

use types::Transno;
use wire::mdt::Attr;

/// When a request of a client was sent, among its requests and answers about attributes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Moment(u64);

/// Counts a client's requests and answers about attributes.
#[derive(Default)]
pub(crate) struct Clock(Cell<Moment>);
impl Clock {
    /// The moment of a request that is about to be sent, or of an answer that came.
    pub(crate) fn next(&self) -> Moment {
        let now = Moment(self.0.get().0 + 1);
        self.0.set(now);
        now
    }
}

/// Of which change an answer tells: its transaction (0: it changed nothing after all), and when it was sent.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Change {
    pub(crate) sent: Moment,
    pub(crate) transno: Transno,
}

/// See the module's head.
pub(crate) struct Attributes {
    attr: RefCell<Attr>,
    /// They are not as they were told last.
    stale: Cell<bool>,
    /// When the answer to a question was taken in last, and when that to a change came.
    asked: Cell<Moment>,
    changed: Cell<Moment>,
    /// The last own change that they show for sure.
    by: Cell<Transno>,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            attr: RefCell::default(),
            stale: Cell::new(true),
            asked: Cell::default(),
            changed: Cell::default(),
            by: Cell::default(),
        }
    }
}

impl Attributes {
    /// The attributes as last told.
    pub(crate) fn borrow(&self) -> std::cell::Ref<'_, Attr> {
        self.attr.borrow()
    }
    /// Whether they are to be asked for whatever locks are held.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.get()
    }
    /// Others may have changed them.
    pub(crate) fn outdate(&self) {
        self.stale.set(true);
    }
    /// A change of ours was answered that does not tell them.
    pub(crate) fn on_change_unseen(&self, now: Moment) {
        self.stale.set(true);
        self.changed.set(now);
    }
    /// Transactions are numbered anew, or those of this client are lost.
    pub(crate) fn forget_transactions(&self) {
        self.by.set(Transno(0));
    }
    fn set(&self, attr: &Attr) {
        *self.attr.borrow_mut() = attr.clone();
        self.stale.set(false);
    }
    /// The answer to a question. Whether it was taken: no change of ours was answered while it was on its way.
    pub(crate) fn on_answer(&self, now: Moment, sent: Moment, attr: &Attr) -> bool {
        if self.changed.get() > sent {
            self.stale.set(true);
            return false;
        }
        self.set(attr);
        self.asked.set(now);
        true
    }
    /// The answer to an own change.
    pub(crate) fn on_change(&self, now: Moment, change: Change, attr: &Attr) {
        let overlaps = self.asked.get() > change.sent || change.transno.0 == 0 && self.changed.get() > change.sent;
        self.changed.set(now);
        if overlaps {
            self.stale.set(true);
        } else if change.transno.0 == 0 || change.transno >= self.by.get() {
            self.set(attr);
        }
        self.by.set(self.by.get().max(change.transno));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(mode: u32) -> Attr {
        Attr { mode, ..Attr::default() }
    }
    fn shows(a: &Attributes) -> Option<u32> {
        (!a.stale.get()).then(|| a.attr.borrow().mode)
    }
    fn change(sent: u64, transno: u64) -> Change {
        Change { sent: Moment(sent), transno: Transno(transno) }
    }

    #[test]
    fn own_changes_count_in_the_order_of_their_transactions() {
        let a = Attributes::default();
        assert!(a.on_answer(Moment(2), Moment(1), &attr(1)));
        a.on_change(Moment(5), change(3, 20), &attr(20));
        a.on_change(Moment(6), change(4, 10), &attr(10));
        assert_eq!(shows(&a), Some(20), "the earlier one came later");
        a.on_change(Moment(8), change(7, 30), &attr(30));
        assert_eq!(shows(&a), Some(30));
    }

    #[test]
    fn of_a_question_and_a_change_at_the_same_time_none_is_believed() {
        let a = Attributes::default();
        a.on_change(Moment(3), change(2, 10), &attr(10));
        assert!(!a.on_answer(Moment(4), Moment(1), &attr(1)));
        assert_eq!(shows(&a), None);
        assert!(a.on_answer(Moment(6), Moment(5), &attr(2)));
        assert_eq!(shows(&a), Some(2));
        // Sent before that answer came, and carried out before or after it was given.
        a.on_change(Moment(7), change(4, 11), &attr(11));
        assert_eq!(shows(&a), None);
        a.on_change(Moment(9), change(8, 12), &attr(12));
        assert_eq!(shows(&a), Some(12));
        a.on_change(Moment(12), change(11, 13), &attr(13));
        a.on_change(Moment(13), change(10, 0), &attr(9));
        assert_eq!(shows(&a), None, "what changed nothing has no place in the order");
    }
}
