//! Open directories: pages of entries fetched ahead of the kernel's small requests, and listings that the kernel keeps.
//!
//! A kernel that keeps a listing fills it from the answers to one open directory and believes it once it was told that
//! there is no more. That it is true rests on the lock on the names: it must have been held from the first answer on.
//! So every later request of a listing, the one that learns of its end too, finds the kernel's copy dropped when the
//! lock went meanwhile; and while such a listing is open, no other one is kept.
//!
//! Who may list a directory is decided when it is opened, as POSIX has it. The kernel does that, and nobody tells the server: so it is
//! asked on behalf of who opened the directory, and once it is known that that one might list it, a refusal is for a change since.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use client::{Client, Inode};
use fuse::abi::fopen;
use types::{Fid, FsError};
use wire::mdt::{Cred, Dirent};

use crate::held::{Budget, Held, Page};

/// Bytes of entries asked of the server at a time.
const PAGE_BYTES: u32 = 256 << 10;
/// Cookies of "." and ".."; the server's cookies are larger.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOT_DOT: u64 = 2;

/// What an open directory told a kernel that may keep it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// Entries, all under the lock that is held since [`Inode::names_lost`] was this.
    Under(u64),
    /// Entries that may not be true any more.
    Loose,
}

/// An open directory.
pub(crate) struct DirHandle {
    pub(crate) inode: Rc<Inode>,
    held: Rc<Held>,
    /// Who opened it.
    opener: Cred,
    /// The opener might list it.
    readable: Cell<bool>,
    /// The kernel may keep what it is told.
    kept: bool,
    told: Cell<Told>,
    /// Which losses of changes in it were told.
    pub(crate) losses: Cell<u64>,
}

/// Directories that are open.
#[derive(Default)]
pub(crate) struct Dirs {
    open: RefCell<HashMap<u64, Rc<DirHandle>>>,
    last: Cell<u64>,
    budget: Rc<Budget>,
    /// Those whose listings the kernel may keep, by directory.
    kept: RefCell<HashMap<Fid, Vec<Rc<DirHandle>>>>,
}

impl Dirs {
    /// Opens a directory; `keep`: the kernel may keep its listing where that is true. Gives the handle and FOPEN flags.
    pub(crate) fn open(&self, client: &Rc<Client>, fid: Fid, opener: Cred, keep: bool) -> (u64, u32) {
        let inode = client.meta().inode(fid);
        let held = client.meta().names_held(&inode);
        let kept = keep && self.is_alone(fid, held, None);
        let known = kept && held.is_some() && inode.front().listed_under() == held;
        let losses = Cell::new(client.meta().losses_of(&inode));
        let readable = Cell::new(client.meta().may_list(&opener, &inode));
        let (held, told) = (Held::new(&self.budget), Cell::new(Told::Nothing));
        let dir = Rc::new(DirHandle { inode, held, opener, readable, kept, told, losses });
        if kept {
            self.kept.borrow_mut().entry(fid).or_default().push(dir.clone());
        }
        let id = self.last.get() + 1;
        self.last.set(id);
        self.open.borrow_mut().insert(id, dir);
        let flags = [(kept, fopen::CACHE_DIR), (known, fopen::KEEP_CACHE)];
        (id, flags.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).sum())
    }
    pub(crate) fn get(&self, id: u64) -> Option<Rc<DirHandle>> {
        self.open.borrow().get(&id).cloned()
    }
    pub(crate) fn close(&self, id: u64) {
        let Some(dir) = self.open.borrow_mut().remove(&id).filter(|d| d.kept) else { return };
        let mut kept = self.kept.borrow_mut();
        if let Some(of) = kept.get_mut(&dir.fid()) {
            of.retain(|d| !Rc::ptr_eq(d, &dir));
            if of.is_empty() {
                kept.remove(&dir.fid());
            }
        }
    }
    /// The first entries of a listing are about to be told; the lock on the names had gone `lost` times before they
    /// were asked for.
    pub(crate) fn begins(&self, client: &Client, dir: &Rc<DirHandle>, lost: u64) {
        if !dir.kept {
            return;
        }
        dir.inode.front().set_kernel_listing();
        let held = client.meta().names_held(&dir.inode);
        let whole = held == Some(lost) && self.is_alone(dir.fid(), held, Some(dir));
        dir.told.set(if whole { Told::Under(lost) } else { Told::Loose });
    }
    /// Whether nobody but `me` may still be telling the kernel entries from before the lock that is held.
    fn is_alone(&self, fid: Fid, held: Option<u64>, me: Option<&Rc<DirHandle>>) -> bool {
        let kept = self.kept.borrow();
        let others = kept.get(&fid).into_iter().flatten().filter(|d| !me.is_some_and(|m| Rc::ptr_eq(m, d)));
        let mut told = others.map(|d| d.told.get());
        told.all(|t| t == Told::Nothing || held.is_some_and(|h| t == Told::Under(h)))
    }
}

impl DirHandle {
    pub(crate) fn fid(&self) -> Fid {
        self.inode.fid
    }
    /// More entries of a listing are about to be told, or that there are none.
    pub(crate) async fn continues(&self, client: &Client) {
        if !self.kept {
            return;
        }
        let held = client.meta().names_held(&self.inode);
        if held.is_some_and(|h| self.told.get() == Told::Under(h)) {
            self.inode.front().set_listed_under(held);
        } else {
            self.told.set(Told::Loose);
            client.kernel().drop_listing(self.fid()).await;
        }
    }
    /// Makes the entries behind `cookie` (0: the first) present.
    pub(crate) async fn seek(&self, client: &Rc<Client>, cookie: u64, plus: bool) -> Result<(), FsError> {
        if self.held.has(cookie, plus) {
            return Ok(());
        }
        let page = async |cred: &Cred| client.meta().readdir(cred, self.fid(), cookie, PAGE_BYTES, plus).await;
        let reply = match page(&self.opener).await {
            Err(FsError::Access) if self.readable.get() => page(&Cred { caps: 1, ..Cred::default() }).await?,
            told => told?,
        };
        self.readable.set(true);
        self.held.take(Page { at: cookie, entries: reply.entries.into(), eof: reply.eof, plus, parent: reply.parent });
        Ok(())
    }
    /// Whether more entries may follow those held.
    pub(crate) fn is_drained(&self) -> bool {
        self.held.is_drained()
    }
    pub(crate) fn at(&self) -> u64 {
        self.held.at()
    }
    pub(crate) fn parent(&self) -> Fid {
        self.held.parent()
    }
    pub(crate) fn front(&self) -> Option<Dirent> {
        self.held.front()
    }
    pub(crate) fn pop(&self) {
        self.held.pop();
    }
}
