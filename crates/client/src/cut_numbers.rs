//! Numbers of cuts of several objects that are promised together, until no OST may ask for them any more (`data/cuts.rs`).
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use types::{ObjectId, Transno};

/// Numbers of cuts that are promised together.
#[derive(Default)]
pub(crate) struct CutNumbers {
    last: Cell<u64>,
    under_way: RefCell<BTreeSet<u64>>,
    /// Cuts that are carried out; over when every OST has committed its part.
    done: RefCell<BTreeMap<u64, Vec<Part>>>,
}

/// One object's part of a cut.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// Place of the OST.
    pub(crate) ost: usize,
    pub(crate) object: ObjectId,
    pub(crate) size: u64,
    /// The last transaction about the object.
    pub(crate) transno: Transno,
    /// Sessions that the OST had ended when the cut was promised.
    pub(crate) evictions: u64,
    /// The OST's store at that time.
    pub(crate) store: u64,
}

/// What became of a part that was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The OST has committed it, or is no more: it asks for nothing.
    Committed,
    /// It will, unless it ends the session.
    Answered,
    /// The OST has ended the session since.
    Unsure,
}

impl CutNumbers {
    /// A cut begins: its number.
    pub(crate) fn begin(&self) -> u64 {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.under_way.borrow_mut().insert(number);
        number
    }
    /// How many an OST may still ask for that are not carried out.
    pub(crate) fn under_way(&self) -> u64 {
        let done = self.done.borrow();
        self.under_way.borrow().iter().filter(|n| !done.contains_key(n)).count() as u64
    }
    /// Every part is carried out.
    pub(crate) fn done(&self, number: u64, parts: Vec<Part>) {
        self.done.borrow_mut().insert(number, parts);
    }
    /// No OST will ask for it any more.
    pub(crate) fn over(&self, number: u64) {
        self.under_way.borrow_mut().remove(&number);
    }
    /// Cuts whose parts are all committed are over. Gives those of which an OST may have lost a part with the session: that
    /// is asked for, before they are [`CutNumbers::over`].
    pub(crate) fn settle(&self, fate: impl Fn(&Part) -> Fate) -> Vec<(u64, Vec<Part>)> {
        let mut unsure = Vec::new();
        self.done.borrow_mut().retain(|number, parts| {
            parts.retain(|p| fate(p) != Fate::Committed);
            if parts.is_empty() {
                self.over(*number);
            } else if parts.iter().any(|p| fate(p) == Fate::Unsure) {
                unsure.push((*number, std::mem::take(parts)));
            }
            !parts.is_empty()
        });
        unsure
    }
    /// The lowest number of a cut of which an OST may still ask.
    pub(crate) fn first(&self) -> Option<u64> {
        self.under_way.borrow().first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Fid;

    #[test]
    fn a_cut_is_over_when_every_ost_has_committed_its_part_and_one_that_may_be_lost_is_asked_for() {
        let numbers = CutNumbers::default();
        let part = |ost| {
            let object = ObjectId(Fid::new(1, ost as u32));
            Part { ost, object, size: 0, transno: Transno(1), evictions: 0, store: 0 }
        };
        let [first, second, third] = [numbers.begin(), numbers.begin(), numbers.begin()];
        numbers.done(first, vec![part(0), part(1)]);
        numbers.done(second, vec![part(0), part(2)]);
        let committed = |p: &Part| if p.ost == 0 { Fate::Committed } else { Fate::Answered };
        assert!(numbers.settle(committed).is_empty());
        assert_eq!(numbers.first(), Some(first), "an OST has not committed it");
        let lost = |p: &Part| if p.ost == 2 { Fate::Unsure } else { Fate::Committed };
        let unsure = numbers.settle(lost);
        assert_eq!(unsure.iter().map(|(n, parts)| (*n, parts.len())).collect::<Vec<_>>(), [(second, 1)]);
        assert_eq!(numbers.first(), Some(second), "the first is over");
        assert!(numbers.settle(lost).is_empty(), "it is asked for once");
        numbers.over(second);
        assert_eq!(numbers.first(), Some(third), "it is under way");
    }
}
