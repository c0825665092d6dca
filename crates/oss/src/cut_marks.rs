//! Marks of cuts: when an object was made shorter last, told with its size.
//!
//! Who adds up the lengths of a file's objects asks several OSTs, one moment each. If no object was made shorter between the
//! question and its answer, the sum is a size that the file had meanwhile; the marks show it. A mark is a moment of this OST:
//! the number of the store's opening, and how many cuts there had been since. It covers what a client that is gone had not written
//! out, too: with it goes what it alone knew of a size.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rt::sync::Event;
use types::ObjectId;

/// Objects whose mark is remembered; 40 bytes each. Of others it is as if they had been cut when one was forgotten last: who asks for
/// their size for the first time since asks twice.
const MARKS_MAX: usize = 1 << 16;

/// See the module's head.
pub(crate) struct CutMarks {
    now: Cell<u64>,
    /// No object that is not remembered was cut later.
    floor: Cell<u64>,
    marks: RefCell<BTreeMap<ObjectId, u64>>,
    /// Objects that are being made shorter. One at a time each: changes of the same blocks take turns.
    under_way: RefCell<Vec<ObjectId>>,
    ended: Event,
}

/// An object is being made shorter; whether or not that was done when this goes, it counts as cut.
pub(crate) struct CutUnderWay {
    marks: Rc<CutMarks>,
    object: ObjectId,
}

impl CutMarks {
    /// Of a store that was opened for the `boot`-th time.
    pub fn new(boot: u64) -> Rc<CutMarks> {
        let now = wire::lock::cut_floor(boot);
        Rc::new(CutMarks {
            now: Cell::new(now),
            floor: Cell::new(now),
            marks: RefCell::default(),
            under_way: RefCell::default(),
            ended: Event::new(),
        })
    }
    /// An object begins to be made shorter: nobody is told its size until that is over.
    pub fn begin(self: &Rc<Self>, object: ObjectId) -> CutUnderWay {
        self.under_way.borrow_mut().push(object);
        CutUnderWay { marks: self.clone(), object }
    }
    /// Any object may be shorter than it was: what a client alone knew of is gone.
    pub fn on_client_gone(&self) {
        self.tick();
        self.floor.set(self.now.get());
        self.marks.borrow_mut().clear();
    }
    /// The mark that goes with the object's size now; `None`: it is being made shorter.
    pub fn of(&self, object: ObjectId) -> Option<u64> {
        let mark = self.marks.borrow().get(&object).copied().unwrap_or(self.floor.get());
        (!self.under_way.borrow().contains(&object)).then_some(mark)
    }
    /// The same, once it is not being made shorter.
    pub async fn settled(&self, object: ObjectId) -> u64 {
        loop {
            let ended = self.ended.wait();
            match self.of(object) {
                Some(mark) => return mark,
                None => ended.await,
            }
        }
    }
    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }
}

impl Drop for CutUnderWay {
    fn drop(&mut self) {
        let CutUnderWay { marks: me, object } = self;
        let mut under_way = me.under_way.borrow_mut();
        let place = under_way.iter().position(|o| o == object);
        place.map(|i| under_way.swap_remove(i));
        drop(under_way);
        let now = me.tick();
        let mut marks = me.marks.borrow_mut();
        if marks.len() >= MARKS_MAX && !marks.contains_key(object) {
            me.floor.set(now);
            marks.clear();
        }
        marks.insert(*object, now);
        drop(marks);
        me.ended.notify();
    }
}

#[cfg(test)]
mod tests {
    use types::Fid;

    use super::*;

    fn object(n: u32) -> ObjectId {
        ObjectId(Fid::new(1, n))
    }

    #[test]
    fn a_mark_grows_with_each_cut_of_its_object_and_with_the_end_of_any_client() {
        let marks = CutMarks::new(3);
        let first = wire::lock::cut_floor(3);
        assert_eq!(marks.of(object(1)), Some(first));
        let cut = marks.begin(object(1));
        assert_eq!((marks.of(object(1)), marks.of(object(2))), (None, Some(first)));
        drop(cut);
        let once = marks.of(object(1)).unwrap();
        assert!(once > first && marks.of(object(2)) == Some(first));
        drop(marks.begin(object(2)));
        assert_eq!(marks.of(object(1)), Some(once), "another object's cut changes nothing");
        marks.on_client_gone();
        assert!(marks.of(object(1)) > Some(once) && marks.of(object(3)) > Some(first));
        assert!(CutMarks::new(4).of(object(1)) > marks.of(object(1)), "nor does a restart lead back");
    }

    #[test]
    fn what_is_forgotten_counts_as_cut_and_memory_is_bounded() {
        let marks = CutMarks::new(1);
        drop(marks.begin(object(0)));
        let before = (marks.of(object(0)), marks.of(object(u32::MAX)));
        (1..=MARKS_MAX as u32).for_each(|n| drop(marks.begin(object(n))));
        assert!(marks.of(object(0)) > before.0 && marks.of(object(u32::MAX)) > before.1);
        assert!(marks.marks.borrow().len() <= MARKS_MAX);
    }
}
