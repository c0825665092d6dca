//! Listing directories, and looking ahead: names and attributes of many entries under locks, with one request.
//!
//! A page of entries "plus" brings attributes and a lock for each entry; what the locks cover answers look-ups and stats
//! without asking. A kernel that lists names only and then asks for them one by one (in whatever order) is served the
//! same way: after a few misses in a directory that was listed here, its entries are fetched by pages.
//! Source: statahead of the field's clients. Differs: no order of look-ups is presumed; pages are fetched no faster than
//! their entries are used.
use std::rc::Rc;

use types::{Fid, FsError};
use wire::Op;
use wire::mdt::{Attr, Cred, LockBits, ReaddirReply, ReaddirRequest};

use crate::client::Client;
use crate::inode::Inode;
use crate::namespace::{ATTR_BITS, Entry};

/// Bytes of a page that is fetched ahead: about 1,400 entries.
const AHEAD_BYTES: u32 = 256 << 10;
/// Wire bytes that an entry with attributes takes at least.
const ENTRY_BYTES_MIN: u64 = 128;
/// Misses in a listed directory before its entries are fetched ahead.
const MISSES_MIN: u32 = 4;
/// Entries fetched ahead per look-up seen, at most.
const FETCHED_PER_LOOKUP_MAX: u64 = 64;
/// Listed directories that are watched at a time.
const WATCHED_MAX: usize = 256;

/// A directory that was listed here without attributes.
#[derive(Default)]
pub(crate) struct Listed {
    misses: u32,
    lookups: u64,
    /// Entries fetched ahead so far, and the cookie of the last one.
    fetched: u64,
    cookie: u64,
    /// A page is being fetched.
    busy: bool,
}

impl Client {
    /// A page of directory entries behind `cookie` (0: from the start). With `plus`, entries bring attributes, and locks
    /// where they could be had: such entries are known afterwards.
    ///
    /// # Errors
    /// ENOTDIR, EACCES.
    pub async fn readdir(
        self: &Rc<Self>,
        cred: &Cred,
        fid: Fid,
        cookie: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Result<ReaddirReply, FsError> {
        let held = self.common.holds(fid, LockBits::UPDATE);
        let (lock_cookie, _reserved) = if held { (0, None) } else { self.common.locks.reserve_one() };
        let entries_max = if plus { u64::from(bytes_max) / ENTRY_BYTES_MIN } else { 0 };
        let (entry_cookie, _reserved_too) = if plus { self.common.locks.reserve(entries_max) } else { (0, None) };
        let request = ReaddirRequest { cred: cred.clone(), fid, cookie, bytes_max, plus, lock_cookie, entry_cookie };
        let sent = self.common.clock.next();
        let answer = self.mdt_call(Op::MdtReaddir, &request).await.and_then(|r| r.decode::<ReaddirReply>());
        let lock = answer.as_ref().ok().and_then(|r| r.lock.clone());
        self.common.locks.adopt(lock_cookie, lock.as_ref());
        let entries = answer.as_ref().map_or(&[][..], |r| &r.entries);
        let mut of = entries.iter();
        for cookie in entry_cookie..entry_cookie + entries_max {
            let Some(e) = of.next() else {
                self.common.locks.adopt(cookie, None);
                continue;
            };
            let whole = self.common.locks.adopt_bits(cookie, e.lock, e.fid, ATTR_BITS);
            if let Some(attr) = e.attr.as_ref().filter(|_| whole) {
                let inode = self.inode(e.fid);
                inode.take_answer(sent, attr);
                self.learn_name(fid, &e.name, &inode);
            }
        }
        if !plus && answer.is_ok() {
            self.watch_listed(fid, cookie == 0);
        }
        answer
    }

    /// An entry that [`Client::readdir`] brought with attributes, for a kernel that will count it as a look-up. `None`
    /// without a lock on it, or when its size has to be asked for: the kernel is not told of it and may ask. It waits for nothing: what
    /// a kernel may believe of several entries holds when they are told together.
    pub fn entry_of(&self, attr: &Attr) -> Option<Entry> {
        let inode = self.known_inode(attr.fid)?;
        if !inode.attr_valid() || !self.size_is_told(&inode) || !self.common.holds(attr.fid, LockBits::OPEN) {
            return None;
        }
        self.used(&inode);
        let attr = self.attr_as_told(&inode);
        Some(self.entry_with(&inode, attr))
    }

    fn watch_listed(&self, dir: Fid, anew: bool) {
        let mut listed = self.listed.borrow_mut();
        if anew || !listed.contains_key(&dir) {
            if listed.len() >= WATCHED_MAX {
                listed.clear();
            }
            listed.insert(dir, Listed::default());
        }
    }
    /// A name of the directory is looked up.
    pub(crate) fn note_lookup(&self, dir: Fid) {
        if let Some(l) = self.listed.borrow_mut().get_mut(&dir) {
            l.lookups += 1;
        }
    }

    /// A name is not known here: fetches the next page of its directory if that is due; the inode if the page had it.
    pub(crate) async fn look_ahead(self: &Rc<Self>, cred: &Cred, dir: Fid, name: &[u8]) -> Option<Rc<Inode>> {
        let cookie = {
            let mut listed = self.listed.borrow_mut();
            let l = listed.get_mut(&dir)?;
            l.misses += 1;
            if l.busy || l.misses < MISSES_MIN || l.fetched > l.lookups * FETCHED_PER_LOOKUP_MAX {
                return None;
            }
            l.busy = true;
            l.cookie
        };
        let page = self.readdir(cred, dir, cookie, AHEAD_BYTES, true).await;
        let mut listed = self.listed.borrow_mut();
        match page {
            Ok(page) if !page.eof && !page.entries.is_empty() => {
                if let Some(l) = listed.get_mut(&dir) {
                    l.busy = false;
                    l.fetched += page.entries.len() as u64;
                    l.cookie = page.entries.last().map_or(l.cookie, |e| e.cookie);
                }
            }
            // That was all, or it may not be listed.
            _ => drop(listed.remove(&dir)),
        }
        drop(listed);
        let child = self.dentries.borrow().get(&(dir, name.to_vec())).copied()?;
        let inode = self.known_inode(child)?;
        (self.common.holds(child, LockBits::LOOKUP) && inode.attr_valid()).then_some(inode)
    }
}
