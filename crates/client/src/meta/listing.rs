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
use wire::mdt::{Cred, LockBits, ReaddirReply, ReaddirRequest};

use super::{ATTR_BITS, Meta};
use crate::inode::Inode;

/// Bytes of a page that is fetched ahead: about 1,400 entries.
const AHEAD_BYTES: u32 = 256 << 10;
/// Wire bytes that an entry with attributes takes at least.
const ENTRY_BYTES_MIN: u64 = 128;

impl Meta {
    /// A page of directory entries behind `cookie` (0: from the start). With `plus`, entries bring attributes, and locks
    /// where they could be had: such entries are known afterwards.
    ///
    /// Cancel: nothing happened.
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
        let (sent, missed) = (self.common.clock.next(), self.names_missed(fid));
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
                if missed == self.names_missed(fid) {
                    self.learn_name(fid, &e.name, &inode);
                }
            }
        }
        if !plus && answer.is_ok() {
            self.listed.on_listed(fid, cookie == 0);
        }
        answer
    }
    /// A name is not known here: fetches the next page of its directory if that is due; the inode if the page had it.
    pub(crate) async fn look_ahead(self: &Rc<Self>, cred: &Cred, dir: Fid, name: &[u8]) -> Option<Rc<Inode>> {
        let fetching = self.listed.on_miss(dir)?;
        match self.readdir(cred, dir, fetching.cookie, AHEAD_BYTES, true).await {
            Ok(page) if !page.eof && !page.entries.is_empty() => {
                self.listed.on_page(dir, page.entries.len() as u64, page.entries.last().map(|e| e.cookie));
            }
            // That was all, or it may not be listed.
            _ => self.listed.forget(dir),
        }
        drop(fetching);
        let child = self.dentries.borrow().get(&(dir, name.to_vec())).copied()?;
        let inode = self.known_inode(child)?;
        (self.common.holds(child, LockBits::LOOKUP) && inode.attr_valid()).then_some(inode)
    }
}
