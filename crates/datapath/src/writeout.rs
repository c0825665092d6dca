//! What is written out next: full RPCs as soon as there are any, the objects that are dirty longest when room is short, and
//! what a flush asks for; how a write RPC ends, and when a flush is over.
//!
//! One RPC takes pages of one object in ascending order, as many as it may: under one lock, whose right it carries, either with
//! grant or without, whatever lies between them. The driver is asked for the right when the RPC is made up, and is handed the
//! pages' numbers; it finds the bytes itself.
use crate::{Answer, Dropped, Outgoing, PAGE, Pages, Target, WriteOut};
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

/// How far a flush is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Flushing {
    /// Nothing of the extent is dirty or under way: all that was dirty when the flush began is out, or was told as lost.
    Over,
    /// Ask for a place in the window, and for a write ([`Target::on_place`]) when it is there.
    Ready,
    /// What is left is under way. Look again when a write of the object has ended, or pages of it were dropped.
    UnderWay,
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

impl<P> Pages<P> {
    /// How far a flush of the extent is.
    pub fn flushing(&self, extent: Extent) -> Flushing {
        if self.first_dirty(extent).is_some() {
            return Flushing::Ready;
        }
        let over = !self.is_unwritten(extent) || types::planted!("flush-ends-under-way");
        if over { Flushing::Over } else { Flushing::UnderWay }
    }
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
        let chosen = (full && self.window.on_try()).then(|| self.on_place(key, Extent::ALL, objects));
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
            let chosen = (dirty > 0).then(|| self.on_place(&key, Extent::ALL, objects));
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
    /// There is a place for a write of an extent: makes it up of as many pages as it takes, beginning with the first. Without
    /// a write in the answer the place is free again.
    pub fn on_place<O: Objects<K>>(&mut self, key: &K, extent: Extent, objects: &mut O) -> ChosenOf<K, O> {
        let mut chosen = Chosen { key: key.clone(), gone: Vec::new(), write: None };
        if let Some(page) = objects.with_pages(key, |p| p.first_dirty(extent)).flatten() {
            let (right, within) = objects.right_to(key, page);
            let within = if types::planted!("write-beyond-lock") { Extent::ALL } else { within.align_out(PAGE) };
            let reach = extent.intersect(&within).unwrap_or(Extent::EMPTY);
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
