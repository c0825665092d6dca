//! A file's two images: what was written, and what a power loss leaves.
use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use types::Rng;

use crate::hash::crc32c_append;

const PAGE: u64 = 4096;
const SECTOR: usize = 512;

type Page = Arc<[u8; PAGE as usize]>;

/// Pages that a thread keeps for use again.
const SPARE_MAX: usize = 4096;

thread_local! {
    static SPARE: RefCell<Vec<Page>> = const { RefCell::new(Vec::new()) };
}

/// A page of its own with whatever bytes.
fn any_page() -> Page {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Arc::new([0; PAGE as usize]))
}

/// A page of its own with these bytes.
fn page_of(bytes: &[u8; PAGE as usize]) -> Page {
    let mut page = any_page();
    Arc::get_mut(&mut page).expect("nobody else has it").copy_from_slice(bytes);
    page
}

/// Pages for use again are given back: a world is over.
pub(crate) fn give_back() {
    // Without a stash the thread is ending.
    let _ = SPARE.try_with(|spare| drop(std::mem::take(&mut *spare.borrow_mut())));
}

/// A page that an image has no more.
fn retire(page: Option<Page>) {
    if let Some(mut page) = page
        && Arc::get_mut(&mut page).is_some()
    {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_MAX {
                spare.push(page);
            }
        });
    }
}

/// Sparse bytes: pages that are missing are zero.
#[derive(Default, Clone)]
struct Bytes {
    len: u64,
    pages: BTreeMap<u64, Page>,
}

impl Bytes {
    fn page_mut(&mut self, page: u64) -> &mut [u8; PAGE as usize] {
        let page = self.pages.entry(page).or_insert_with(|| page_of(&[0; PAGE as usize]));
        if Arc::get_mut(page).is_none() {
            let own = page_of(page);
            *page = own;
        }
        Arc::get_mut(page).expect("it was made for this image")
    }
    /// Replaces a whole page.
    fn set_page(&mut self, page: u64, bytes: &[u8; PAGE as usize]) {
        match self.pages.entry(page) {
            Entry::Vacant(place) => drop(place.insert(page_of(bytes))),
            Entry::Occupied(mut place) => match Arc::get_mut(place.get_mut()) {
                Some(own) => own.copy_from_slice(bytes),
                None => drop(place.insert(page_of(bytes))),
            },
        }
    }
    fn sector(&self, page: u64, at: usize) -> &[u8] {
        match self.pages.get(&page) {
            Some(p) => &p[at..at + SECTOR],
            None => &[0; SECTOR],
        }
    }
}

/// See the module's head.
#[derive(Default, Clone)]
pub(crate) struct Image {
    live: Bytes,
    durable: Bytes,
    /// Pages written since the last sync.
    unsynced: BTreeSet<u64>,
}

/// The parts of `offset..offset + len` by page: page, place in it, length.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        let (page, within) = (at / PAGE, at % PAGE);
        let take = (PAGE - within).min(end - at);
        at += take;
        (take > 0).then_some((page, within as usize, take as usize))
    })
}

impl Image {
    pub fn len(&self) -> u64 {
        self.live.len
    }
    /// Fills `into`; behind the end it is left alone. Gives the bytes that there were.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        self.each(offset, into.len() as u64, |at, bytes| into[at..at + bytes.len()].copy_from_slice(bytes))
    }
    /// Gives `take` the bytes of a range up to the end of the file, in pieces, each with its place in the range. How many there were.
    pub fn each(&self, offset: u64, len: u64, mut take: impl FnMut(usize, &[u8])) -> usize {
        let len = self.live.len.saturating_sub(offset).min(len);
        let mut done = 0;
        for (page, within, bytes) in parts(offset, len) {
            match self.live.pages.get(&page) {
                Some(p) => take(done, &p[within..within + bytes]),
                None => take(done, &[0; PAGE as usize][..bytes]),
            }
            done += bytes;
        }
        done
    }
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.live.len = self.live.len.max(offset + bytes.len() as u64);
        let mut done = 0;
        for (page, within, take) in parts(offset, bytes.len() as u64) {
            let from = &bytes[done..done + take];
            match from.try_into() {
                Ok(whole) => self.live.set_page(page, whole),
                Err(_) => self.live.page_mut(page)[within..within + take].copy_from_slice(from),
            }
            self.unsynced.insert(page);
            done += take;
        }
    }
    /// The same, but every sector gets there or not.
    pub fn write_torn(&mut self, offset: u64, bytes: &[u8], rng: &mut Rng) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let take = (SECTOR - at as usize % SECTOR).min(bytes.len() - done);
            if rng.chance(0.5) {
                self.write(at, &bytes[done..done + take]);
            }
            done += take;
        }
    }
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.live.len);
        for (page, within, take) in parts(offset, end.saturating_sub(offset)) {
            self.unsynced.insert(page);
            if take as u64 == PAGE {
                retire(self.live.pages.remove(&page));
            } else if self.live.pages.contains_key(&page) {
                self.live.page_mut(page)[within..within + take].fill(0);
            }
        }
    }
    pub fn set_len(&mut self, len: u64) {
        if len < self.live.len {
            self.zero(len, self.live.len - len);
        }
        self.live.len = len;
    }
    /// Everything written is durable; gives a checksum of what became so.
    pub fn sync(&mut self) -> u32 {
        let mut crc = crc32c_append(0, &self.live.len.to_le_bytes());
        for page in std::mem::take(&mut self.unsynced) {
            crc = crc32c_append(crc, &page.to_le_bytes());
            self.keep(page);
            if let Some(p) = self.live.pages.get(&page) {
                crc = crc32c_append(crc, &p[..]);
            }
        }
        self.durable.len = self.live.len;
        crc
    }
    fn keep(&mut self, page: u64) {
        match self.live.pages.get(&page) {
            Some(p) => retire(self.durable.pages.insert(page, p.clone())),
            None => retire(self.durable.pages.remove(&page)),
        }
    }
    /// A sync that fails: some of what it should have written counts as written from now on and is not durable.
    pub fn sync_fails(&mut self, rng: &mut Rng) {
        self.unsynced.retain(|_| rng.chance(0.5));
    }
    /// Reads what is durable from now on, where that is not newer: what a failed sync left behind goes.
    pub fn forget_cached(&mut self) {
        let mut kept = std::mem::replace(&mut self.live, self.durable.clone());
        self.live.len = kept.len;
        for page in &self.unsynced {
            match kept.pages.remove(page) {
                Some(p) => drop(self.live.pages.insert(*page, p)),
                None => drop(self.live.pages.remove(page)),
            }
        }
    }
    /// What is there after the power comes back: of everything not synced, each sector is new or old.
    pub fn lose_power(&mut self, rng: &mut Rng) {
        let (new, old) = (self.live.len, self.durable.len);
        self.durable.len = if rng.chance(0.5) { new } else { old };
        let keep = [0.0, 0.5, 1.0][rng.below(3) as usize];
        for page in std::mem::take(&mut self.unsynced) {
            for at in (0..PAGE as usize).step_by(SECTOR) {
                if rng.chance(keep) {
                    let new: [u8; SECTOR] = self.live.sector(page, at).try_into().expect("a sector");
                    self.durable.page_mut(page)[at..at + SECTOR].copy_from_slice(&new);
                }
            }
        }
        // Nothing is behind the end.
        let (len, mut all) = (self.durable.len, std::mem::take(&mut self.durable));
        all.len = all.len.max(new).max(old);
        let mut whole = Image { live: all, ..Image::default() };
        whole.set_len(len);
        self.durable = whole.live.clone();
        self.live = whole.live;
    }
    /// What some page holds that is not all zeros, `nth` of all in a circle.
    pub fn some_page(&self, nth: u64) -> Option<Vec<u8>> {
        let pages: Vec<&Page> = self.live.pages.values().filter(|p| p.iter().any(|b| *b != 0)).collect();
        let at = (nth as usize).checked_rem(pages.len())?;
        Some(pages[at].to_vec())
    }
    /// Flips a bit of every page that holds exactly these bytes, on the medium: the pages.
    pub fn rot(&mut self, content: &[u8], bit: u64) -> Vec<u64> {
        let holds = |p: &Page| p[..] == *content;
        let pages: Vec<u64> = self.live.pages.iter().filter(|(_, p)| holds(p)).map(|(n, _)| *n).collect();
        for page in &pages {
            for image in [&mut self.live, &mut self.durable] {
                if image.pages.get(page).is_some_and(holds) {
                    image.page_mut(*page)[(bit / 8 % PAGE) as usize] ^= 1 << (bit % 8);
                }
            }
        }
        pages
    }
    /// Flips a bit on the medium, in a page that was written; whether there is such a page.
    pub fn flip(&mut self, bit: u64) -> bool {
        let page = bit / 8 / PAGE;
        let mut is_there = false;
        for image in [&mut self.live, &mut self.durable] {
            if image.pages.contains_key(&page) {
                image.page_mut(page)[(bit / 8 % PAGE) as usize] ^= 1 << (bit % 8);
                is_there = true;
            }
        }
        is_there
    }
    /// Changes bytes behind everyone's back.
    pub fn damage(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = vec![0; self.live.len as usize];
        self.read(0, &mut bytes);
        change(&mut bytes);
        let len = bytes.len() as u64;
        self.write(0, &bytes);
        self.set_len(len);
        self.sync();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failed_sync_left_in_memory_can_be_forgotten() {
        let (mut rng, mut i) = (Rng::new(3), Image::default());
        i.write(0, &[1; 64 << 10]);
        i.sync();
        i.write(0, &[2; 64 << 10]);
        i.sync_fails(&mut rng);
        let read = |i: &Image| {
            let mut all = vec![0; 64 << 10];
            i.read(0, &mut all);
            all
        };
        assert!(read(&i).iter().all(|b| *b == 2), "a reader of the cache sees nothing of it");
        i.sync();
        i.forget_cached();
        let after = read(&i);
        assert!(after.contains(&1) && after.contains(&2), "half of the pages never got there");
        i.lose_power(&mut rng);
        assert!(read(&i) == after);
    }

    #[test]
    fn what_was_synced_survives_whatever_comes_after() {
        for seed in 0..50 {
            let mut i = Image::default();
            i.write(100, &[1; 9000]);
            i.sync();
            i.write(5000, &[2; 9000]);
            i.lose_power(&mut Rng::new(seed));
            let mut bytes = vec![9; i.len() as usize];
            assert_eq!(i.read(0, &mut bytes), bytes.len());
            assert!(bytes.len() == 9100 || bytes.len() == 14_000);
            assert!(bytes[100..5000].iter().all(|b| *b == 1));
            assert!(bytes[5000..9100].iter().all(|b| *b == 1 || *b == 2));
            assert!(bytes[9100..].iter().all(|b| *b == 0 || *b == 2));
        }
    }

    #[test]
    fn a_cut_file_reads_zeros_where_it_grows_again() {
        let mut i = Image::default();
        i.write(0, &[7; 10_000]);
        i.set_len(5000);
        i.set_len(10_000);
        let mut bytes = vec![1; 10_000];
        i.read(0, &mut bytes);
        assert!(bytes[..5000].iter().all(|b| *b == 7) && bytes[5000..].iter().all(|b| *b == 0));
    }
}
