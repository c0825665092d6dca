//! What open directories hold of the pages of entries that they fetched: each the rest of one page, and all together no more than a limit.
//! Above it those lose theirs that were read from least recently; who reads on from there fetches again, by the cookie it is at.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use types::Fid;
use wire::mdt::Dirent;

/// Bytes of memory that pages of all open directories take together at most, but for the one that was fetched last.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Entries behind a cookie.
#[derive(Default)]
pub(crate) struct Page {
    /// Cookie in front of the first entry held.
    pub(crate) at: u64,
    pub(crate) entries: VecDeque<Dirent>,
    /// No entries follow those.
    pub(crate) eof: bool,
    pub(crate) plus: bool,
    pub(crate) parent: Fid,
}

impl Page {
    fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Dirent>() + self.entries.iter().map(|e| e.name.len()).sum::<usize>()
    }
}

/// What all of them hold.
pub(crate) struct Budget {
    bytes: Cell<usize>,
    bytes_max: usize,
    /// Those that hold entries, by when they were read from last.
    holders: RefCell<BTreeMap<u64, Weak<Held>>>,
    uses: Cell<u64>,
    /// Pages that went before they were read to their end.
    limit_hits: Cell<u64>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(HELD_BYTES_MAX)
    }
}

impl Budget {
    fn new(bytes_max: usize) -> Budget {
        let (bytes, uses, limit_hits) = Default::default();
        Budget { bytes, bytes_max, holders: RefCell::default(), uses, limit_hits }
    }
    /// Those read from least recently lose their entries until the rest is within the limit, or one is left.
    fn trim(&self) {
        while self.bytes.get() > self.bytes_max && self.holders.borrow().len() > 1 {
            let Some((_, oldest)) = self.holders.borrow_mut().pop_first() else { return };
            if let Some(held) = oldest.upgrade() {
                held.release();
                let mut page = held.page.borrow_mut();
                (page.entries, page.eof) = (VecDeque::new(), false);
                self.limit_hits.set(self.limit_hits.get() + 1);
                tracing::debug!(hits = self.limit_hits.get(), "open directories hold too much: a page is let go");
            }
        }
    }
}

/// What one open directory holds.
pub(crate) struct Held {
    me: Weak<Held>,
    budget: Rc<Budget>,
    page: RefCell<Page>,
    /// Bytes that count, and since which use; none when it holds no entries.
    counted: Cell<Option<(usize, u64)>>,
}

impl Held {
    /// Nothing yet.
    pub(crate) fn new(budget: &Rc<Budget>) -> Rc<Held> {
        let (page, counted) = Default::default();
        Rc::new_cyclic(|me| Held { me: me.clone(), budget: budget.clone(), page, counted })
    }
    /// A page came.
    pub(crate) fn take(&self, page: Page) {
        self.release();
        let bytes = page.bytes();
        let holds = !page.entries.is_empty();
        *self.page.borrow_mut() = page;
        if holds {
            self.count(bytes);
            self.budget.trim();
        }
    }
    /// Whether the entries behind `cookie` are here, or it is known that there are none; if so, they are used.
    pub(crate) fn has(&self, cookie: u64, plus: bool) -> bool {
        let here = {
            let p = self.page.borrow();
            cookie != 0 && p.at == cookie && (plus == p.plus || !plus) && (!p.entries.is_empty() || p.eof)
        };
        if here && let Some((bytes, _)) = self.counted.get() {
            self.release();
            self.count(bytes);
        }
        here
    }
    /// Whether entries may follow and none are here.
    pub(crate) fn is_drained(&self) -> bool {
        let p = self.page.borrow();
        p.entries.is_empty() && !p.eof
    }
    pub(crate) fn at(&self) -> u64 {
        self.page.borrow().at
    }
    pub(crate) fn parent(&self) -> Fid {
        self.page.borrow().parent
    }
    pub(crate) fn front(&self) -> Option<Dirent> {
        self.page.borrow().entries.front().cloned()
    }
    pub(crate) fn pop(&self) {
        let mut p = self.page.borrow_mut();
        if let Some(e) = p.entries.pop_front() {
            p.at = e.cookie;
        }
        if p.entries.is_empty() {
            p.entries = VecDeque::new();
            self.release();
        }
    }
    fn count(&self, bytes: usize) {
        let b = &self.budget;
        b.uses.set(b.uses.get() + 1);
        b.bytes.set(b.bytes.get() + bytes);
        b.holders.borrow_mut().insert(b.uses.get(), self.me.clone());
        self.counted.set(Some((bytes, b.uses.get())));
    }
    fn release(&self) {
        if let Some((bytes, since)) = self.counted.take() {
            self.budget.bytes.set(self.budget.bytes.get() - bytes);
            self.budget.holders.borrow_mut().remove(&since);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u64 = 300;

    /// A page as the server answers: entries have the cookies 10 to 309.
    fn page(at: u64) -> Page {
        let entry = |cookie: u64| Dirent { cookie, name: cookie.to_string().as_bytes().into(), ..Dirent::default() };
        let entries = (10..10 + ENTRIES).filter(|c| *c > at).map(entry).collect();
        Page { at, entries, eof: true, plus: false, parent: Fid::ROOT }
    }
    fn read(held: &Held, most: u64, found: &mut Vec<u64>) {
        let at = found.last().copied().unwrap_or(0);
        if !held.has(at, false) {
            held.take(page(at));
        }
        for _ in 0..most {
            let Some(entry) = held.front() else { break };
            found.push(entry.cookie);
            held.pop();
        }
    }

    #[test]
    fn a_thousand_directories_half_read_hold_no_more_than_the_limit_and_are_read_to_their_ends() {
        let bytes_max = 20 * page(0).bytes();
        let budget = Rc::new(Budget::new(bytes_max));
        let mut dirs: Vec<_> = (0..1000).map(|_| (Held::new(&budget), Vec::new())).collect();
        for (held, found) in &mut dirs {
            read(held, ENTRIES / 2, found);
            assert!(budget.bytes.get() <= bytes_max);
        }
        assert_eq!((budget.holders.borrow().len(), budget.limit_hits.get()), (20, 980));
        assert!(dirs[0].0.is_drained() && dirs[0].0.parent() == Fid::ROOT, "the first one lost its page");
        assert!(dirs[999].0.has(159, false) && !dirs[999].0.has(159, true), "the last one has it");
        for (held, found) in &mut dirs {
            read(held, ENTRIES, found);
            assert!(budget.bytes.get() <= bytes_max);
            assert!(found.iter().copied().eq(10..10 + ENTRIES) && !held.is_drained());
        }
        assert_eq!(
            (budget.bytes.get(), budget.holders.borrow().len()),
            (0, 0),
            "what is read to its end holds nothing"
        );
    }

    #[test]
    fn one_page_is_held_however_large_and_a_closed_directory_holds_nothing() {
        let budget = Rc::new(Budget::new(1));
        let (one, other) = (Held::new(&budget), Held::new(&budget));
        one.take(page(0));
        assert!(one.front().is_some() && budget.bytes.get() > 1);
        other.take(page(0));
        assert!(one.front().is_none() && other.front().is_some());
        drop(other);
        assert_eq!((budget.bytes.get(), budget.limit_hits.get()), (0, 1));
    }
}
