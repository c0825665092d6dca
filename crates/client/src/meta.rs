//! Names, attributes and open files at the metadata server: what is remembered of them under which locks, and asked otherwise.
//!
//! Of sizes it knows what the metadata server says; what bytes say is [`crate::data`]'s.
mod ends;
pub(crate) mod layouts;
mod listing;
mod lost_changes;
pub(crate) mod missed;
pub(crate) mod names;
mod opens;
mod orphans;
mod reclaim;
mod session;
mod untold;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use frames::Bulk;
use hashbrown::HashMap;
use ptlrpc::{CallOptions, Callbacks, Reply};
use rt::Rt;
use rustc_hash::FxBuildHasher;
use types::{Fid, FsError};
use wire::mdt::{Attr, Cred, EntryReply, GetattrRequest, LockBits};
use wire::{Encode, Op};

use crate::attrs::{Change, Moment};
use crate::ending::Ends;
use crate::flock::Flocks;
use crate::in_use::InUse;
use crate::inode::{Common, Inode};
use crate::listed::Listings;
use crate::locks::LockOwner;
use crate::losses::Losses;
use crate::open_file::OpenFile;
use crate::osc::Osts;
use crate::sessions::Sessions;
use crate::settled::Settling;

type Table<K, V> = RefCell<HashMap<K, V, FxBuildHasher>>;

/// Lock bits that cover names and attributes, and that keep the inode while a kernel may open it by its id.
pub(crate) const ATTR_BITS: u64 = LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM | LockBits::OPEN;

/// Lock bits that cover attributes.
pub(crate) const TOLD_BITS: u64 = LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM;

/// What an answer about an inode is worth.
#[derive(Clone, Copy)]
pub(crate) enum Told {
    /// We changed the inode: it was as the answer has it then.
    Changed(Change),
    /// We only asked, at that moment: a lock that came along makes it true; another one that is held knows better.
    Asked(Moment),
}

/// How often attributes are asked for while own changes overlap every answer.
const FETCHES_MAX: u32 = 8;

/// See the module's head.
pub struct Meta {
    me: Weak<Meta>,
    rt: Rt,
    sessions: Rc<Sessions>,
    osts: Rc<Osts>,
    common: Rc<Common>,
    losses: Rc<Losses>,
    flocks: Rc<Flocks>,
    settling: Rc<Settling>,
    inodes: Table<Fid, Rc<Inode>>,
    /// Names known to stand for an inode, or (with a zero FID) not to be there.
    dentries: Table<(Fid, Vec<u8>), Fid>,
    opens: Table<u64, Rc<OpenFile>>,
    /// Ends of opens that are not sent yet.
    ends: Ends,
    /// How many opens the metadata server was not told of.
    untold_opens: Cell<u64>,
    /// Some of them the server could not be told of when their lock left.
    told_in_vain: Cell<bool>,
    /// Inodes that the kernel knows and that may have lost their last name.
    unnamed: RefCell<BTreeSet<Fid>>,
    /// Inodes whose locks are about to be given back.
    given_up: RefCell<Vec<Fid>>,
    listed: Listings,
}

impl Meta {
    /// The metadata of a client whose cluster has that metadata target; answers come once that is ready.
    pub(crate) fn new(
        target: &str,
        (sessions, osts): (Rc<Sessions>, Rc<Osts>),
        common: Rc<Common>,
        losses: Rc<Losses>,
        settling: Rc<Settling>,
    ) -> Rc<Meta> {
        Rc::new_cyclic(|me: &Weak<Meta>| {
            let callbacks: Weak<dyn Callbacks> = me.clone();
            let mdc = sessions.join_mdt(target, callbacks);
            let owner: Weak<dyn LockOwner> = me.clone();
            common.locks.attach(mdc, owner);
            Meta {
                me: me.clone(),
                rt: sessions.rt().clone(),
                flocks: Flocks::new(sessions.clone()),
                inodes: RefCell::default(),
                dentries: RefCell::default(),
                opens: RefCell::default(),
                ends: Ends::default(),
                untold_opens: Cell::new(0),
                told_in_vain: Cell::new(false),
                unnamed: RefCell::default(),
                given_up: RefCell::default(),
                listed: Listings::default(),
                sessions,
                osts,
                common,
                losses,
                settling,
            }
        })
    }
    /// Locks of programs: fcntl and flock.
    pub(crate) fn flocks(&self) -> &Rc<Flocks> {
        &self.flocks
    }
    /// Opens that did not end yet.
    pub(crate) fn opens(&self) -> Vec<Rc<OpenFile>> {
        self.opens.borrow().values().cloned().collect()
    }
    pub(crate) fn note_use(&self, into: &mut InUse) {
        into.add("opens", self.opens.borrow().len() as u64);
        into.add("ends not told", self.ends.waiting.borrow().len() as u64);
        self.inodes.borrow().values().for_each(|i| i.note_use(into));
        self.flocks.note_use(into);
        self.note_requests(into);
    }
    /// What is in use of locks and requests.
    pub(crate) fn note_requests(&self, into: &mut InUse) {
        self.common.locks.note_use(into);
        self.sessions.mdc().note_use(&mut |what, n| into.add(what, n));
    }
    /// Gives unused locks back with what they cover, and forgets names.
    pub(crate) async fn drop_caches(&self) {
        self.common.locks.drain().await;
        self.forget_all_names();
    }
    /// Gives old locks back and forgets what nothing needs.
    pub(crate) fn keep_house(self: &Rc<Self>) {
        self.common.locks.tick(0);
        self.chase_unnamed();
        self.prune();
        self.osts.prune();
        self.keep_within_limits();
    }
    /// Forgets inodes that nothing refers to.
    fn prune(&self) {
        let holds = |fid: Fid| self.common.holds(fid, LockBits::LOOKUP) || self.common.holds(fid, LockBits::UPDATE);
        let dead: Vec<Fid> = {
            let inodes = self.inodes.borrow();
            let unknown = |i: &Rc<Inode>| self.is_idle(i) && !i.front.is_remembered();
            inodes.values().filter(|i| unknown(i) && !holds(i.fid)).map(|i| i.fid).collect()
        };
        for fid in dead {
            if let Some(i) = self.inodes.borrow_mut().remove(&fid) {
                self.forget_names(&i);
            }
        }
    }

    /// The inode of an id that the cluster gave, remembered from now on.
    #[must_use]
    pub fn inode(self: &Rc<Self>, fid: Fid) -> Rc<Inode> {
        let known = self.known_inode(fid);
        let inode = known.unwrap_or_else(|| {
            let inode = Inode::new(fid, &self.common);
            self.inodes.borrow_mut().insert(fid, inode.clone());
            self.inode_came();
            inode
        });
        self.used(&inode);
        inode
    }
    pub(crate) fn known_inode(&self, fid: Fid) -> Option<Rc<Inode>> {
        self.inodes.borrow().get(&fid).cloned()
    }
    /// All metadata of an inode on stable storage.
    ///
    /// Cancel: a part may be done.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn sync_meta(&self, fid: Fid) -> Result<(), FsError> {
        self.sessions.mdc().ask(Op::MdtSync, &wire::mdt::SyncRequest { fid }).await
    }
    /// Names that a directory did not have may be there by now.
    pub(crate) fn forget_missing(&self, dir: Fid) {
        self.dentries.borrow_mut().retain(|(parent, _), child| *parent != dir || !child.is_zero());
    }
    pub(crate) fn forget_names(&self, inode: &Inode) {
        let mut dentries = self.dentries.borrow_mut();
        for name in inode.names.borrow_mut().drain() {
            if dentries.get(&name) == Some(&inode.fid) {
                dentries.remove(&name);
            }
        }
    }
    pub(crate) fn forget_all_names(&self) {
        self.dentries.borrow_mut().clear();
        self.inodes.borrow().values().for_each(|i| i.names.borrow_mut().clear());
    }
    pub(crate) async fn mdt_call<T: Encode>(&self, op: Op, request: &T) -> Result<Reply, FsError> {
        self.mdt_call_as(CallOptions::default(), op, request).await
    }
    async fn mdt_call_as<T: Encode>(&self, options: CallOptions, op: Op, request: &T) -> Result<Reply, FsError> {
        self.sessions.mdc().call(op, wire::encode(request), Bulk::new(), options).await
    }

    /// Takes an answered inode in: attributes, layout, ACL, and the lock that came along.
    pub(crate) async fn take_entry(
        self: &Rc<Self>,
        reply: &EntryReply,
        cookie: u64,
        parent_cookie: u64,
        told: Told,
    ) -> Result<Option<Rc<Inode>>, FsError> {
        let whole = self.common.locks.adopt(cookie, reply.lock.as_ref());
        let parent_locked = self.common.locks.adopt(parent_cookie, reply.parent_lock.as_ref());
        if let Some(parent) = self.known_inode(reply.parent.fid).filter(|_| !reply.parent.fid.is_zero()) {
            self.take_attr(&parent, told, parent_locked, &reply.parent);
        }
        if reply.attr.fid.is_zero() {
            return Ok(None);
        }
        let inode = self.inode(reply.attr.fid);
        // A lock may come that keeps the inode and covers no attributes: a later answer may have come before this one then.
        let covers = reply.lock.as_ref().is_some_and(|l| l.lock.bits & TOLD_BITS == TOLD_BITS);
        self.take_attr(&inode, told, whole && covers, &reply.attr);
        self.learn_layout(&inode, &reply.layout, &reply.capabilities).await?;
        Ok(Some(inode))
    }

    /// Takes attributes in that came with a lock that is held (`locked`), or without.
    fn take_attr(&self, inode: &Inode, told: Told, locked: bool, attr: &Attr) {
        match told {
            Told::Changed(change) => inode.take_change(change, attr),
            Told::Asked(sent) if locked || !inode.attr_valid() => _ = inode.take_answer(sent, attr),
            Told::Asked(_) => {}
        }
    }

    /// Whether what was told of an inode's attributes is still covered by a lock: asked right before a kernel is told.
    #[must_use]
    pub fn vouches_for(&self, fid: Fid) -> bool {
        self.known_inode(fid).is_some_and(|i| i.attr_valid())
    }
    /// The [`Inode::names_lost`] of a directory whose names are under a lock of this client now.
    #[must_use]
    pub fn names_held(&self, dir: &Inode) -> Option<u64> {
        self.common.holds(dir.fid, LockBits::UPDATE).then(|| dir.front.names_lost())
    }

    /// Attributes that nobody has changed since they were told: they are asked for where no lock says so.
    ///
    /// # Errors
    /// What the server answers, but that the file has lost its name and is gone.
    pub(crate) async fn renew_attr(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<(), FsError> {
        if inode.attr_valid() {
            return Ok(());
        }
        match self.fetch_attr(&Cred { caps: 1, ..Cred::default() }, inode, None).await {
            Err(FsError::Stale) => Ok(()),
            done => done,
        }
    }

    /// Asks for attributes again of which it is not known whether others are newer.
    async fn fetch_overlapped(self: &Rc<Self>, cred: &Cred, inode: &Rc<Inode>) -> Result<(), FsError> {
        if !inode.is_stale() {
            return Ok(());
        }
        match self.fetch_attr(cred, inode, None).await {
            // It lost its name and went, since.
            Err(FsError::Stale) => Ok(()),
            done => done,
        }
    }

    /// Asks for attributes until an answer comes that no change of ours overlaps, or others that did not.
    pub(crate) async fn fetch_attr(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        file: Option<&OpenFile>,
    ) -> Result<(), FsError> {
        for _ in 0..FETCHES_MAX {
            self.fetch_attr_once(cred, inode, file).await?;
            if !inode.is_stale() {
                break;
            }
        }
        Ok(())
    }

    async fn fetch_attr_once(
        self: &Rc<Self>,
        cred: &Cred,
        inode: &Rc<Inode>,
        file: Option<&OpenFile>,
    ) -> Result<(), FsError> {
        let (cookie, _reserved) = self.common.locks.reserve_one();
        let handle = file.map(|f| f.handle.get()).unwrap_or_default();
        // A long layout comes only when it is asked for.
        let lock_bits = ATTR_BITS | if inode.striping().is_none() { LockBits::LAYOUT } else { 0 };
        let request = GetattrRequest { cred: cred.clone(), fid: inode.fid, lock_bits, lock_cookie: cookie, handle };
        let sent = self.common.clock.next();
        let answer: Result<EntryReply, FsError> = match self.mdt_call(Op::MdtGetattr, &request).await {
            Ok(r) => r.decode(),
            Err(e) => Err(e),
        };
        match answer {
            Ok(reply) => self.take_entry(&reply, cookie, 0, Told::Asked(sent)).await.map(|_| ()),
            Err(e) => {
                self.common.locks.adopt(cookie, None);
                Err(e)
            }
        }
    }
    /// A change of names or attributes, and what the answer says of inodes.
    pub(crate) async fn change_names<T: Encode>(&self, op: Op, request: &T) -> Result<(Change, EntryReply), FsError> {
        let sent = self.common.clock.next();
        let reply = self.mdt_call(op, request).await?;
        Ok((Change { sent, transno: reply.header.transno }, reply.decode()?))
    }
    fn take_parent(&self, parent: Fid, change: Change, reply: &EntryReply) {
        match self.known_inode(parent) {
            Some(p) if reply.parent.fid == parent => p.take_change(change, &reply.parent),
            Some(p) => p.changed_unseen(),
            None => {}
        }
    }
    /// An inode changed by an operation on its name; with its new attributes when they were told. The kernel that asked
    /// for the operation knows of the change.
    pub(crate) fn changed_behind(&self, inode: &Inode, change: Change, told: &Attr) {
        if told.fid == inode.fid {
            inode.take_change(change, told)
        } else {
            inode.changed_unseen()
        }
        self.may_be_missed(inode);
    }
}

#[cfg(test)]
mod tests;
