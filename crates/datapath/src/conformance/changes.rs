//! Changes past the cache, and how long the object is: holes, cuts and extensions of the suite, questions for the size, and what
//! a client may believe of it.
//!
//! Its number says which write a part of a page shows; [`CUT`] in it says that a cut ended within the part since.
use super::client::{Client, Lock, Rpc};
use super::flush::Flush;
use super::{CELL, CELLS, Cells, PAGES, Verdict, World};
use crate::{Answer, Moment, PAGE};
use alloc::format;
use alloc::vec::Vec;
use types::Extent;

/// The bytes of a part behind some point are cut off.
pub(super) const CUT: u64 = 1 << 63;

/// What is done to the object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its pages hold zeros; it is as long as before.
    Hole,
    /// It ends here from now on, be that behind its end.
    Cut(u64),
    /// It reaches here at least.
    Extend(u64),
}

impl Kind {
    fn is_of_size(self) -> bool {
        self != Kind::Hole
    }
}

/// A change, before it is sent and as an RPC.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) kind: Kind,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) lock: u64,
}

impl Change {
    /// Others may not load its pages or write to them until it is over.
    fn is_gated(&self) -> bool {
        !matches!(self.kind, Kind::Extend(_))
    }
}

impl Lock {
    /// How far it reaches: the last page's lock to the end of all objects.
    pub(super) fn reach(&self) -> u64 {
        if self.end == PAGES { u64::MAX } else { self.end * PAGE }
    }
}

impl World {
    /// The OST carries a change out.
    pub(super) fn change(&mut self, change: Change) {
        self.transaction += 1;
        let (first, end) = (change.first as usize, change.end as usize);
        match change.kind {
            Kind::Hole => self.zero(first, end),
            Kind::Extend(end) => self.reaches(end),
            Kind::Cut(size) => {
                let whole = size.div_ceil(PAGE) as usize;
                if whole > first {
                    let before = self.ost[first];
                    cut_page(&mut self.ost[first], size);
                    cut_page(&mut self.truth[first], size);
                    let cut = |cell: &usize| self.ost[first][*cell] != before[*cell];
                    let cut: Vec<usize> = (0..CELLS).filter(cut).collect();
                    cut.into_iter().for_each(|cell| self.changed_by[first][cell] = self.transaction);
                }
                self.zero(whole, end);
                self.longer += u64::from(size > self.size);
                self.size = size;
            }
        }
    }
    /// The object is at least so long.
    pub(super) fn reaches(&mut self, end: u64) {
        self.size = self.size.max(end);
        self.longer += 1;
    }
    fn zero(&mut self, first: usize, end: usize) {
        self.changed_by[first..end].fill([self.transaction; CELLS]);
        self.ost[first..end].fill([0; CELLS]);
        self.truth[first..end].fill([0; CELLS]);
    }
}

/// The object ends within the page.
fn cut_page(cells: &mut Cells, size: u64) {
    for (cell, write) in cells.iter_mut().enumerate() {
        let begin = cell as u64 * CELL;
        if begin >= size % PAGE {
            *write = 0;
        } else if *write != 0 && begin + CELL > size % PAGE {
            *write |= CUT;
        }
    }
}

impl Client {
    pub(super) fn begin_change(&mut self, w: &mut World) {
        let Some((lock, mut first)) = self.pick_to_the_end(w).or_else(|| self.pick(w, true)) else { return };
        let (begin, reach) = self.lock(lock).map_or((first, first), |l| (l.first, l.end));
        if w.rng.chance(0.5) {
            // Beside a load.
            first = (begin..reach).find(|p| self.pages.is_loading(*p)).unwrap_or(begin);
        }
        let kind = match w.rng.below(7) {
            _ if reach < PAGES => Kind::Hole,
            // Somewhere within the page, or at its begin.
            0..4 => {
                Kind::Cut(first * PAGE + if w.rng.chance(0.7) { 100 + CELL * w.rng.below(CELLS as u64) } else { 0 })
            }
            4..6 => Kind::Extend(first * PAGE + 1 + w.rng.below((PAGES - first) * PAGE)),
            _ => Kind::Hole,
        };
        let end = if kind.is_of_size() { reach } else { reach.min(first + 1 + w.rng.below(8)) };
        let change = Change { kind, first, end, lock };
        // One change of the size at a time, as the kernel has it.
        if self.changes.len() >= 2 || kind.is_of_size() && self.is_sizing() {
            return;
        }
        if !change.is_gated() || self.pages.on_change(first, end) {
            self.lock(lock).expect("it was picked").users += 1;
            let extent = if kind.is_of_size() { Extent::ALL } else { Extent::new(first * PAGE, end * PAGE) };
            let flush = Flush::of_change(&mut self.pages, extent, lock);
            self.changes.push((change, flush));
        }
    }
    /// A page under a write lock to the end of all objects, at times.
    fn pick_to_the_end(&self, w: &mut World) -> Option<(u64, u64)> {
        let lock = self.locks.iter().find(|l| l.end == PAGES && l.write && !l.leaving)?;
        w.rng.chance(0.7).then(|| (lock.id, lock.first + w.rng.below(PAGES - lock.first)))
    }
    /// Whether a change of the size is under way.
    fn is_sizing(&self) -> bool {
        self.sizing || self.changes.iter().any(|c| c.0.kind.is_of_size())
    }
    pub(super) fn go_on_with_changes(&mut self, w: &mut World) -> Verdict {
        for (change, mut flush) in core::mem::take(&mut self.changes) {
            let leaving = self.lock(change.lock).is_some_and(|l| l.leaving);
            if !self.go_on(w, &mut flush, leaving)? {
                self.changes.push((change, flush));
                continue;
            }
            let mut first = change.first;
            if let Kind::Cut(size) = change.kind
                && !size.is_multiple_of(PAGE)
            {
                self.pages.on_edge_changed(first);
                if self.pages.part(first).is_some() {
                    let _ = self.pages.on_outdated(first);
                }
                self.pages.held_mut(first).into_iter().for_each(|cells| cut_page(cells, size));
                first += 1;
            }
            if change.is_gated() {
                let _ = self.target.discard(&mut self.pages, first, change.end);
            }
            self.sizing |= change.kind.is_of_size();
            w.send(self.number, Rpc::Change(change));
            self.changes_sent += 1;
        }
        Ok(())
    }
    pub(super) fn change_answered(&mut self, w: &mut World, change: Change, answer: Answer) {
        let Change { kind, first, end, lock } = change;
        self.changes_sent -= 1;
        match kind {
            Kind::Hole => w.seen.changes += 1,
            Kind::Cut(size) if answer == Answer::Done => {
                self.pages.set_size(size);
                self.cut_to = Some((size, w.longer));
                w.seen.cuts += 1;
                w.fails_next = w.rng.chance(0.3);
            }
            Kind::Extend(end) if answer == Answer::Done => {
                self.pages.on_stored(end);
                w.seen.extensions += 1;
            }
            Kind::Cut(_) => _ = self.pages.on_outdated(first),
            Kind::Extend(_) => {}
        }
        self.sizing &= !kind.is_of_size();
        if change.is_gated() {
            self.pages.on_changed(first, end);
        }
        self.release(lock);
    }

    /// The server says how long the object is; under a lock over the end the client knows better.
    pub(super) fn told_size(&mut self, w: &mut World, asked: Moment, size: u64) {
        w.seen.overtaken += u64::from(self.pages.is_overtaken(asked));
        self.pages.on_told(asked, size, self.is_size_exact());
    }
    /// A lock comes, with the object's size; some are waited for, and come by themselves.
    pub(super) fn lock_came(&mut self, w: &mut World, lock: Lock, asked: Moment, size: u64) {
        let asked = w.rng.chance(0.8).then_some(asked);
        w.seen.late_locks += u64::from(asked.is_none_or(|a| self.pages.is_overtaken(a)));
        self.pages.on_lock_came(asked, lock.reach(), size, self.is_size_exact());
        self.locks.push(lock);
    }
    fn is_size_exact(&self) -> bool {
        self.locks.iter().any(|l| l.end == PAGES && l.first * PAGE <= self.pages.size())
    }
    /// A write was carried out, which made the object reach to `end`.
    pub(super) fn stored(&mut self, end: u64) {
        if self.locks.iter().any(|l| l.covers((end - 1) / PAGE)) {
            self.pages.on_assured(end);
        } else {
            self.pages.on_stored(end);
        }
    }
    /// A lock has gone: how far the object reaches for sure is what the others say.
    pub(super) fn less_assured(&mut self) {
        self.pages.on_lock_gone(self.locks.iter().map(Lock::reach).max().unwrap_or(0));
    }
    /// End of the last page that is dirty or under way, as the object was written: whole pages.
    pub(super) fn unwritten_end(&self) -> u64 {
        let unwritten = |p: &u64| self.pages.is_unwritten(Extent::at(p * PAGE, PAGE));
        self.pages.cached().filter(unwritten).map(|p| (p + 1) * PAGE).max().unwrap_or(0)
    }
    /// Under a lock over the object's end its known size is its size. Where a lock is held the object reaches as far as is known,
    /// and after a cut of this client it is known to be no longer until somebody makes it longer.
    pub(super) fn size_is_true(&self, w: &World, others: u64) -> Verdict {
        let (known, size) = (self.pages.size(), w.size.max(others).max(self.unwritten_end()));
        if self.is_size_exact() && !self.is_sizing() && known != size {
            return Err(format!("client {} knows {known} bytes of an object of {size}", self.number));
        }
        let beyond = |l: &&Lock| known > l.first * PAGE && size < known.min(l.reach());
        // What others had not written out, and lost, was part of what was known of the rest.
        let lost = w.seen.failures + w.seen.evictions > 0;
        if let Some(lock) = self.locks.iter().find(beyond).filter(|_| !self.is_sizing() && !lost) {
            let (number, first, end) = (self.number, lock.first, lock.end);
            return Err(format!(
                "client {number} knows {known} bytes of an object of {size}, with a lock {first}..{end}"
            ));
        }
        let cut = self.cut_to.filter(|(_, longer)| *longer == w.longer);
        match cut.filter(|(size, _)| known > (*size).max(self.unwritten_end())) {
            Some((size, _)) => Err(format!("client {} knows {known} bytes after its cut to {size}", self.number)),
            None => Ok(()),
        }
    }
}
