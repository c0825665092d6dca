//! Open directories: pages of entries fetched ahead of the kernel's small requests.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use client::Client;
use types::{Fid, FsError};
use wire::mdt::{Cred, Dirent};

/// Bytes of entries asked of the server at a time.
const PAGE_BYTES: u32 = 256 << 10;
/// Cookies of "." and ".."; the server's cookies are larger.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOT_DOT: u64 = 2;

/// An open directory.
pub(crate) struct DirHandle {
    pub(crate) fid: Fid,
    state: RefCell<Page>,
}

#[derive(Default)]
struct Page {
    /// Cookie in front of the first entry held.
    at: u64,
    entries: VecDeque<Dirent>,
    eof: bool,
    plus: bool,
    parent: Fid,
}

impl DirHandle {
    pub(crate) fn new(fid: Fid) -> Rc<DirHandle> {
        Rc::new(DirHandle { fid, state: RefCell::default() })
    }
    /// Makes the entries behind `cookie` (0: the first) present.
    pub(crate) async fn seek(&self, client: &Rc<Client>, cred: &Cred, cookie: u64, plus: bool) -> Result<(), FsError> {
        {
            let s = self.state.borrow();
            if cookie != 0 && s.at == cookie && (plus == s.plus || !plus) && (!s.entries.is_empty() || s.eof) {
                return Ok(());
            }
        }
        let reply = client.readdir(cred, self.fid, cookie, PAGE_BYTES, plus).await?;
        *self.state.borrow_mut() =
            Page { at: cookie, entries: reply.entries.into(), eof: reply.eof, plus, parent: reply.parent };
        Ok(())
    }
    /// Whether more entries may follow those held.
    pub(crate) fn is_drained(&self) -> bool {
        let s = self.state.borrow();
        s.entries.is_empty() && !s.eof
    }
    pub(crate) fn at(&self) -> u64 {
        self.state.borrow().at
    }
    pub(crate) fn parent(&self) -> Fid {
        self.state.borrow().parent
    }
    pub(crate) fn front(&self) -> Option<Dirent> {
        self.state.borrow().entries.front().cloned()
    }
    pub(crate) fn pop(&self) {
        let mut s = self.state.borrow_mut();
        if let Some(e) = s.entries.pop_front() {
            s.at = e.cookie;
        }
    }
}
