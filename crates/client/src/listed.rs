//! Directories that were listed without attributes, and when entries of theirs are fetched by pages: after a few names that
//! were not known, and no faster than entries are used. (What that is good for is said in `meta/listing.rs`.)
use std::cell::RefCell;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use types::Fid;

/// Misses in a listed directory before its entries are fetched ahead.
const MISSES_MIN: u32 = 4;
/// Entries fetched ahead per look-up seen, at most.
const FETCHED_PER_LOOKUP_MAX: u64 = 64;
/// Listed directories that are watched at a time.
const WATCHED_MAX: usize = 256;

/// A directory that was listed here without attributes.
#[derive(Default)]
struct Listed {
    misses: u32,
    lookups: u64,
    /// Entries fetched ahead so far, and the cookie of the last one.
    fetched: u64,
    cookie: u64,
    /// A page is being fetched.
    busy: bool,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Listings(RefCell<HashMap<Fid, Listed, FxBuildHasher>>);

impl Listings {
    /// A page of names of a directory was told; `anew`: the first one.
    pub(crate) fn on_listed(&self, dir: Fid, anew: bool) {
        let mut listed = self.0.borrow_mut();
        if anew || !listed.contains_key(&dir) {
            if listed.len() >= WATCHED_MAX {
                listed.clear();
            }
            listed.insert(dir, Listed::default());
        }
    }
    /// A name of the directory is looked up.
    pub(crate) fn on_lookup(&self, dir: Fid) {
        if let Some(l) = self.0.borrow_mut().get_mut(&dir) {
            l.lookups += 1;
        }
    }
    /// A name is not known: a page that is to be fetched, if one is due.
    pub(crate) fn on_miss(&self, dir: Fid) -> Option<Fetching<'_>> {
        let mut listed = self.0.borrow_mut();
        let l = listed.get_mut(&dir)?;
        l.misses += 1;
        if l.busy || l.misses < MISSES_MIN || l.fetched > l.lookups * FETCHED_PER_LOOKUP_MAX {
            return None;
        }
        l.busy = true;
        Some(Fetching { listings: self, dir, cookie: l.cookie })
    }
    /// A page of `entries` came, and there are more behind `cookie`.
    pub(crate) fn on_page(&self, dir: Fid, entries: u64, cookie: Option<u64>) {
        if let Some(l) = self.0.borrow_mut().get_mut(&dir) {
            l.fetched += entries;
            l.cookie = cookie.unwrap_or(l.cookie);
        }
    }
    /// There is nothing more to fetch.
    pub(crate) fn forget(&self, dir: Fid) {
        self.0.borrow_mut().remove(&dir);
    }
}

/// A page is being fetched until this goes, however that ends: the program that looks the name up may be killed.
pub(crate) struct Fetching<'a> {
    listings: &'a Listings,
    dir: Fid,
    /// Behind which entry it begins.
    pub(crate) cookie: u64,
}
impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        if let Some(l) = self.listings.0.borrow_mut().get_mut(&self.dir) {
            l.busy = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(i: usize) -> Fid {
        Fid::new(0x2_0000_0401, i as u32 + 1)
    }

    #[test]
    fn pages_are_fetched_after_some_misses_one_at_a_time_and_no_faster_than_entries_are_used() {
        let listings = Listings::default();
        let under_way = RefCell::new(None);
        let miss = |_| {
            let due = listings.on_miss(dir(0))?;
            Some(under_way.borrow_mut().insert(due).cookie)
        };
        let misses = |n: u32| (0..n).map(miss).collect::<Vec<_>>();
        assert_eq!(misses(9), [None; 9], "nobody listed it");
        listings.on_listed(dir(0), true);
        assert_eq!(misses(MISSES_MIN), [None, None, None, Some(0)]);
        assert_eq!(misses(1), [None], "a page is on its way");
        listings.on_page(dir(0), FETCHED_PER_LOOKUP_MAX + 1, Some(77));
        under_way.take();
        assert_eq!(misses(1), [None], "its entries are to be used first");
        listings.on_lookup(dir(0));
        listings.on_lookup(dir(0));
        assert_eq!(misses(1), [Some(77)]);
        listings.on_listed(dir(0), false);
        assert_eq!(misses(1), [None], "a further page of the list changes nothing");
        under_way.take();
        assert_eq!(misses(1), [Some(77)], "nobody waits for that page any more");
        listings.forget(dir(0));
        assert_eq!(misses(MISSES_MIN), [None; 4]);
    }

    #[test]
    fn no_more_directories_are_watched_than_should_be() {
        let listings = Listings::default();
        (0..2 * WATCHED_MAX).for_each(|i| listings.on_listed(dir(i), true));
        assert!(listings.0.borrow().len() <= WATCHED_MAX);
    }
}
