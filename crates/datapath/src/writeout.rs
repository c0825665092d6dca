//! What is written out next: full RPCs as soon as there are any, the objects that are dirty longest when room is short, and
//! what a flush asks for; how a write RPC ends, and when a flush is over.
//!
//! One RPC takes pages of one object in ascending order, as many as it may: under one lock, whose right it carries, either with
//! grant or without, whatever lies between them. The driver is asked for the right when the RPC is made up, and is handed the
//! pages' numbers; it finds the bytes itself.
use crate::{Answer, Dropped, Due, Outgoing, PAGE, Pages, Target, WriteOut};
use alloc::vec::Vec;
use types::Extent;

/// The driver's objects, as far as a choice looks at them.
pub trait Objects<K> {
    /// A cached page.
    type Page;
    /// By what pages may be written: the handle of a lock.
    type Right;
    /// Does something with what the room knows of an object; `None`: the object is gone.
    fn with_pages<T>(&mut self, key: &K, step: impl FnOnce(&mut Pages<Self::Page>) -> T) -> Option<T>;
    /// The right to write a page, and the extent for which it is one.
    fn right_to(&mut self, key: &K, page: u64) -> (Self::Right, Extent);
}

/// A write RPC that was made up.
#[derive(Debug)]
#[must_use]
pub struct Chosen<K, P, R> {
    /// Its object.
    pub key: K,
    /// Pages that lay behind the object's end: they are gone, and nobody writes them.
    pub gone: Vec<P>,
    /// What is to be sent, and by what right. It has a place in the window until [`Target::on_write_ended`].
    pub write: Option<(WriteOut, R)>,
}

impl<K, P, R> Chosen<K, P, R> {
    fn is_something(&self) -> bool {
        self.write.is_some() || !self.gone.is_empty()
    }
}

/// What is chosen of some objects.
pub type ChosenOf<K, O> = Chosen<K, <O as Objects<K>>::Page, <O as Objects<K>>::Right>;

/// One round of write-out over the objects that were dirty at its begin.
#[derive(Debug)]
#[must_use]
pub struct Round {
    /// Objects that had no turn yet.
    left: usize,
}

/// What becomes of a write RPC's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Fate {
    /// The OST has them.
    Written,
    /// Nobody can ask for them any more: their object was removed.
    Obsolete,
    /// There was no space, and nobody was told that there is: who writes them waits for this.
    Refused,
    /// They are lost, and the file's users are told.
    Lost,
}

impl<K: Clone> Target<K> {
    /// Whether write-out begins before anybody waits for it: much is dirty, here or (`dirty` of `pages_max`) in the cache.
    #[must_use]
    pub fn is_pressed(&self, dirty_pages: usize, pages_max: usize) -> bool {
        self.books.is_half_full() || dirty_pages > pages_max / 2
    }
    /// A full RPC of an object, if it has that many dirty pages and there is a place. Ask until there is none.
    #[must_use]
    pub fn next_full<O: Objects<K>>(&mut self, key: &K, objects: &mut O) -> Option<ChosenOf<K, O>> {
        let full = objects.with_pages(key, |p| p.dirty_pages() >= self.rpc_pages_max())?;
        let chosen = (full && self.window.on_try()).then(|| self.on_place(key, Due::all(Extent::ALL), objects));
        // Versions of all of them may be under way.
        chosen.filter(Chosen::is_something)
    }
    /// A round of write-out begins: what is dirty is to become less.
    pub fn begin_round(&self) -> Round {
        Round { left: self.listed() }
    }
    /// The next write of a round: everything of the object that is dirty longest, then the next object's, while there are
    /// places. Ask until there is none.
    #[must_use]
    pub fn next_oldest<O: Objects<K>>(&mut self, round: &mut Round, objects: &mut O) -> Option<ChosenOf<K, O>> {
        while round.left > 0 {
            let Some(key) = self.next_dirty() else { break };
            let Some(dirty) = objects.with_pages(&key, |p| p.dirty_pages()) else {
                round.left -= 1;
                continue;
            };
            if dirty > 0 && !self.window.on_try() {
                self.on_left(key);
                break;
            }
            let chosen = (dirty > 0).then(|| self.on_place(&key, Due::all(Extent::ALL), objects));
            if chosen.as_ref().is_some_and(|c| c.write.is_some()) {
                self.on_left(key);
                return chosen;
            }
            round.left -= 1;
            let _ = objects.with_pages(&key, |p| self.on_visited(key.clone(), p));
            if chosen.as_ref().is_some_and(Chosen::is_something) {
                return chosen;
            }
        }
        round.left = 0;
        None
    }
    /// There is a place for a write of what is due: makes it up of as many pages as it takes, beginning with the first that is due.
    /// Without a write in the answer the place is free again.
    pub fn on_place<O: Objects<K>>(&mut self, key: &K, due: Due, objects: &mut O) -> ChosenOf<K, O> {
        let mut chosen = Chosen { key: key.clone(), gone: Vec::new(), write: None };
        if let Some(page) = objects.with_pages(key, |p| p.first_due(due)).flatten() {
            let (right, within) = objects.right_to(key, page);
            let within = if types::planted!("write-beyond-lock") { Extent::ALL } else { within.align_out(PAGE) };
            let from = Extent::new(page * PAGE, due.extent().end.max(page * PAGE));
            let reach = from.intersect(&within).unwrap_or(Extent::EMPTY);
            let max = if types::planted!("rpc-too-long") { usize::MAX } else { self.rpc_pages_max() };
            if let Some(Outgoing { out, gone }) = objects.with_pages(key, |p| self.take(p, reach, max)) {
                chosen.gone = gone;
                chosen.write = out.map(|out| (out, right));
            }
        }
        if chosen.write.is_none() {
            self.window.on_end();
        }
        chosen
    }
}

impl<K> Target<K> {
    /// A write RPC ended: its place is free, its pages are out of the books, and (but for those that are lost or refused, which
    /// are the driver's to drop by [`Pages::on_not_written`]) as clean as they were not written to since. `in_use`: somebody
    /// has the file open.
    pub fn on_write_ended<P>(&mut self, pages: &mut Pages<P>, out: &WriteOut, answer: Answer, in_use: bool) -> Fate {
        if answer == Answer::Done || !types::planted!("place-kept") {
            self.window.on_end();
        }
        let count = Dropped { dirty: out.pages.len(), granted: out.granted };
        self.books.on_clean(count, answer != Answer::Done && !types::planted!("grant-lost"));
        pages.on_write_ended(&out.pages);
        match answer {
            Answer::Done => Fate::Written,
            Answer::NoObject if !in_use => Fate::Obsolete,
            Answer::NoSpace if out.granted == 0 => Fate::Refused,
            _ => Fate::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flushing, Rank, TargetLimits};
    use types::Instant;

    /// Two objects; every `.1` pages are under a lock of their own.
    struct Locked([Pages<u8>; 2], u64);
    impl Objects<usize> for Locked {
        type Page = u8;
        type Right = u64;
        fn with_pages<T>(&mut self, key: &usize, step: impl FnOnce(&mut Pages<u8>) -> T) -> Option<T> {
            self.0.get_mut(*key).map(step)
        }
        fn right_to(&mut self, _key: &usize, page: u64) -> (u64, Extent) {
            let lock = page / self.1;
            (lock, Extent::at(lock * self.1 * PAGE, self.1 * PAGE))
        }
    }
    fn world(rpcs_max: usize, rpc_pages_max: usize) -> (Target<usize>, Locked) {
        let limits = TargetLimits { rpcs_max, urgent_rpcs: 0, rpc_pages_max, ..TargetLimits::DEFAULT };
        let mut target = Target::new(limits);
        target.books.on_session(1, false, 100 * PAGE);
        (target, Locked([Pages::default(), Pages::default()], 4))
    }
    fn write(t: &mut Target<usize>, o: &mut Locked, key: usize, page: u64) {
        let pages = &mut o.0[key];
        pages.on_overwritten(page);
        pages.on_put(page, 7, false);
        let was_clean = pages.on_written(page);
        pages.on_grown((page + 1) * PAGE);
        let _ = t.on_written(pages, page, was_clean);
        t.on_dirty_object(key, pages);
    }
    fn pages_of(chosen: Option<ChosenOf<usize, Locked>>) -> Option<(usize, Vec<u64>, u64)> {
        chosen.map(|c| (c.key, c.write.as_ref().map_or(Vec::new(), |w| w.0.pages.clone()), c.write.map_or(99, |w| w.1)))
    }

    #[test]
    fn a_round_writes_the_object_that_is_dirty_longest_lock_by_lock_until_no_place_is_left() {
        let (mut t, mut o) = world(3, 10);
        [(1, 0), (0, 2), (0, 3), (1, 1), (0, 5)].into_iter().for_each(|(key, page)| write(&mut t, &mut o, key, page));
        let mut round = t.begin_round();
        let mut next = || pages_of(t.next_oldest(&mut round, &mut o));
        assert_eq!(next(), Some((1, [0, 1].to_vec(), 0)));
        assert_eq!(next(), Some((0, [2, 3].to_vec(), 0)), "the next page is under another lock");
        assert_eq!((next(), next()), (Some((0, [5].to_vec(), 1)), None));
        assert_eq!(t.listed(), 0, "nothing is dirty any more");
        write(&mut t, &mut o, 0, 9);
        let mut round = t.begin_round();
        assert_eq!(
            (pages_of(t.next_oldest(&mut round, &mut o)), t.listed()),
            (None, 1),
            "no place: it stays the next one"
        );
        t.window.on_end();
        assert_eq!(pages_of(t.next_oldest(&mut round, &mut o)), None, "the round is over");
        let mut round = t.begin_round();
        assert_eq!(pages_of(t.next_oldest(&mut round, &mut o)), Some((0, [9].to_vec(), 2)));
    }

    #[test]
    fn only_full_rpcs_go_before_anybody_waits_and_a_place_without_use_is_free_again() {
        let (mut t, mut o) = world(1, 2);
        write(&mut t, &mut o, 0, 0);
        assert!(t.next_full(&0, &mut o).is_none(), "one page is less than an RPC takes");
        write(&mut t, &mut o, 0, 1);
        let (out, _) = t.next_full(&0, &mut o).and_then(|c| c.write).unwrap();
        assert_eq!(
            (o.0[0].flushing(Due::all(Extent::ALL)), o.0[0].flushing(Due::all(Extent::from(2 * PAGE)))),
            (Flushing::UnderWay, Flushing::Over)
        );
        [0, 1].into_iter().for_each(|page| write(&mut t, &mut o, 0, page));
        t.on_rpcs_max(2);
        assert!(t.next_full(&0, &mut o).is_none(), "older versions are under way");
        let urgent = t.window.on_ask(Rank::Urgent(Instant(1)), 0);
        assert_eq!(t.window.next_admitted().map(|a| a.0), Some(urgent), "the place is free");
        assert!(t.on_place(&0, Due::all(Extent::ALL), &mut o).write.is_none() && t.window.on_try());
        assert_eq!(t.on_write_ended(&mut o.0[0], &out, Answer::Done, true), Fate::Written);
        assert_eq!(o.0[0].flushing(Due::all(Extent::ALL)), Flushing::Ready);
    }

    #[test]
    fn what_was_promised_its_space_is_lost_where_what_was_not_is_refused() {
        let end = |granted: bool, answer, in_use| {
            let (mut t, mut o) = world(9, 10);
            if !granted {
                t.books.on_session(2, false, 0);
            }
            write(&mut t, &mut o, 0, 0);
            let (out, _) = t.on_place(&0, Due::all(Extent::ALL), &mut o).write.unwrap();
            let (fate, grant) = (t.on_write_ended(&mut o.0[0], &out, answer, in_use), t.books.grant_bytes());
            assert_eq!((t.books.dirty_bytes(), t.books.charged_bytes()), (0, 0));
            assert_eq!(grant, if granted { 100 * PAGE } else { 0 }, "the OST has not taken it");
            fate
        };
        assert_eq!([true, false].map(|granted| end(granted, Answer::NoSpace, true)), [Fate::Lost, Fate::Refused]);
        assert_eq!([true, false].map(|in_use| end(true, Answer::NoObject, in_use)), [Fate::Lost, Fate::Obsolete]);
        assert_eq!(end(false, Answer::Failed, false), Fate::Lost);
    }
}
