//! Names and attributes: answered from what locks cover, asked of the metadata server otherwise.
use std::rc::Rc;

use frames::Bulk;
use ptlrpc::{CallOptions, Reply};
use types::{Fid, FsError};
use wire::mdt::{
    Attr, AttrFlags, BytesReply, CreateRequest, Cred, EntryReply, GetattrRequest, InodeRequest, LinkRequest, LockBits,
    LookupRequest, NamesReply, NodeKind, RenameRequest, SetxattrRequest, UnlinkRequest, XattrRequest,
};
use wire::{Bytes, Encode, Op};

use crate::attrs::{Change, Moment};
use crate::client::Client;
use crate::inode::Inode;
use crate::open::OpenFile;

/// Lock bits that cover names and attributes, and that keep the inode while a kernel may open it by its id.
pub(crate) const ATTR_BITS: u64 = LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM | LockBits::OPEN;

/// What an answer about an inode is worth.
#[derive(Clone, Copy)]
pub(crate) enum Told {
    /// We changed the inode: it was as the answer has it then.
    Changed(Change),
    /// We only asked, at that moment: a lock that came along makes it true; another one that is held knows better.
    Asked(Moment),
}

/// The answer to a look-up or a create.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Attributes; `fid` zero: there is no such name.
    pub attr: Attr,
    /// The name may be believed until [`crate::KernelCache::drop_names`].
    pub name_cached: bool,
    /// The attributes may be believed until [`crate::KernelCache::drop_attributes`].
    pub attr_cached: bool,
}

/// What a directory entry is made of ([`Client::create`]).
#[derive(Clone, Debug, Default)]
pub struct NewNode {
    /// Directory, symlink or node.
    pub kind: NodeKind,
    /// Mode with type bits.
    pub mode: u32,
    /// umask of the caller.
    pub umask: u32,
    /// Device number.
    pub rdev: u64,
    /// Symlink target.
    pub target: Vec<u8>,
}

/// renameat2(2): both names stay, their inodes change places.
const RENAME_EXCHANGE: u32 = 2;
/// How long the answer to a lookup waits for servers that know the file's size.
const SIZE_WAIT: types::Duration = types::Duration::from_secs(1);

/// How often attributes are asked for while own changes overlap every answer.
const FETCHES_MAX: u32 = 8;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid);
    }
    Ok(())
}

impl Client {
    pub(crate) async fn mdt_call<T: Encode>(&self, op: Op, request: &T) -> Result<Reply, FsError> {
        self.sessions.mdc().call(op, wire::encode(request), Bulk::new(), CallOptions::default()).await
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
        self.take_attr(&inode, told, whole, &reply.attr);
        self.learn_layout(&inode, &reply.layout).await?;
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

    pub(crate) fn learn_name(&self, parent: Fid, name: &[u8], inode: &Inode) {
        if self.common.holds(inode.fid, LockBits::LOOKUP) {
            inode.unnamed.set(false);
            let key = (parent, name.to_vec());
            let known = self.dentries.borrow_mut().insert(key.clone(), inode.fid);
            if known != Some(inode.fid) {
                inode.names.borrow_mut().push(key);
                self.name_came();
            }
        }
    }
    /// Whether the directory is known not to have the name.
    fn lacks(&self, parent: Fid, name: &[u8]) -> bool {
        self.known_inode(parent).is_some_and(|p| p.lacks(name)) && self.common.holds(parent, LockBits::UPDATE)
    }
    /// A name appeared by our own hand.
    pub(crate) fn name_added(&self, parent: Fid, name: &[u8]) {
        if let Some(p) = self.known_inode(parent) {
            p.child_added(name);
        }
    }
    /// How often the names of a directory were no longer covered by a lock of this client.
    fn names_lost(&self, parent: Fid) -> Option<u64> {
        self.known_inode(parent).map(|p| p.front.names_lost())
    }
    /// A name went by our own hand. When the directory's names were `lost` since that was asked for, somebody else may have made
    /// one like it before the answer came.
    fn name_removed(&self, parent: Fid, name: &[u8], lost: Option<u64>) {
        if let Some(p) = self.known_inode(parent) {
            if lost == Some(p.front.names_lost()) { p.child_removed(name) } else { p.forget_children() }
        }
    }
    fn unlearn_name(&self, parent: Fid, name: &[u8]) {
        self.dentries.borrow_mut().remove(&(parent, name.to_vec()));
    }
    /// The parent changed by our own hand and the answer did not tell its new attributes.
    fn touch_parent(&self, parent: Fid, told: &Attr) {
        if told.fid == parent {
            return;
        }
        if let Some(p) = self.known_inode(parent) {
            p.changed_unseen();
        }
    }

    pub(crate) async fn entry(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<Entry, FsError> {
        self.used(inode);
        let _naming = inode.front.naming();
        let attr = self.sized(inode).await?;
        Ok(self.entry_with(inode, attr))
    }

    /// The entry of an inode with these attributes, for a kernel that is told now.
    pub(crate) fn entry_with(&self, inode: &Inode, attr: Attr) -> Entry {
        let name_cached = self.common.holds(inode.fid, LockBits::LOOKUP);
        // The size of a file that others may write is nobody's to keep.
        let settled =
            attr.mode & 0o170_000 != 0o100_000 || attr.flags & AttrFlags::SIZE_KNOWN != 0 || inode.is_ours_alone();
        let attr_cached = name_cached && settled && inode.attr_valid();
        if attr_cached {
            inode.front.believes();
        }
        Entry { attr, name_cached, attr_cached }
    }

    /// The entry of a name that was looked up. A kernel keeps the directory locked until it has the answer, and who makes a name
    /// there waits for that lock beyond any signal: so servers that are asked for a size get a moment only. Then the entry has
    /// what is known here, for nobody to keep, and whoever needs the size asks for it, in a call that can be interrupted.
    pub(crate) async fn named_entry(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<Entry, FsError> {
        let attr = inode.attr();
        if attr.mode & 0o170_000 != 0o100_000 || attr.flags & AttrFlags::SIZE_KNOWN != 0 && inode.writers.get() == 0 {
            return self.entry(inode).await;
        }
        if let Some(entry) = self.rt.timeout(SIZE_WAIT, self.entry(inode)).await {
            return entry;
        }
        let attr = self.attr_as_known(inode);
        Ok(Entry { attr, name_cached: self.common.holds(inode.fid, LockBits::LOOKUP), attr_cached: false })
    }

    /// Looks a name up. An [`Entry`] with a zero FID says that there is none.
    ///
    /// # Errors
    /// ENAMETOOLONG, EINVAL, ENOTDIR, EACCES, and what the server answers.
    pub async fn lookup(self: &Rc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, FsError> {
        check_name(name)?;
        self.note_lookup(parent);
        if let Some(dir) = self.known_inode(parent) {
            self.used(&dir);
        }
        let known = self.dentries.borrow().get(&(parent, name.to_vec())).copied();
        if let Some(child) = known {
            if child.is_zero() {
                if self.common.holds(parent, LockBits::UPDATE) {
                    return Ok(Entry { attr: Attr::default(), name_cached: true, attr_cached: false });
                }
            } else if let Some(inode) = self.known_inode(child)
                && self.common.holds(child, LockBits::LOOKUP)
            {
                let _naming = inode.front.naming();
                let fetched = if inode.attr_valid() { Ok(()) } else { self.fetch_attr(cred, &inode, None).await };
                match fetched {
                    Ok(()) => return self.named_entry(&inode).await,
                    // It lost its name and went, meanwhile.
                    Err(FsError::Stale) => {}
                    Err(e) => return Err(e),
                }
            }
            self.unlearn_name(parent, name);
        }
        if self.lacks(parent, name) {
            return Ok(Entry { attr: Attr::default(), name_cached: true, attr_cached: false });
        }
        if let Some(inode) = self.look_ahead(cred, parent, name).await {
            return self.named_entry(&inode).await;
        }
        let (cookie, _reserved) = self.common.locks.reserve_one();
        let wants_parent = !self.common.holds(parent, LockBits::UPDATE);
        let (parent_cookie, _reserved_too) = if wants_parent { self.common.locks.reserve_one() } else { (0, None) };
        let request = LookupRequest {
            cred: cred.clone(),
            parent,
            name: name.into(),
            lock_bits: ATTR_BITS,
            lock_cookie: cookie,
            parent_cookie,
        };
        let sent = self.common.clock.next();
        let answer: Result<EntryReply, FsError> = match self.mdt_call(Op::MdtLookup, &request).await {
            Ok(r) => r.decode(),
            Err(e) => Err(e),
        };
        let reply = match answer {
            Ok(reply) => reply,
            Err(e) => {
                self.common.locks.adopt(cookie, None);
                self.common.locks.adopt(parent_cookie, None);
                if e != FsError::NotFound {
                    return Err(e);
                }
                EntryReply::default()
            }
        };
        let Some(inode) = self.take_entry(&reply, cookie, parent_cookie, Told::Asked(sent)).await? else {
            let cached = self.common.holds(parent, LockBits::UPDATE);
            if cached {
                self.dentries.borrow_mut().insert((parent, name.to_vec()), Fid::ZERO);
                self.name_came();
            }
            return Ok(Entry { attr: Attr::default(), name_cached: cached, attr_cached: false });
        };
        self.learn_name(parent, name, &inode);
        self.fetch_overlapped(cred, &inode).await?;
        self.named_entry(&inode).await
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

    /// Attributes of an inode, with its true size.
    ///
    /// # Errors
    /// What the server answers; ENOENT for an inode that is gone.
    pub async fn getattr(self: &Rc<Self>, cred: &Cred, fid: Fid, file: Option<&OpenFile>) -> Result<Entry, FsError> {
        let inode = self.inode(fid);
        if !inode.attr_valid() {
            self.fetch_attr(cred, &inode, file).await?;
        }
        self.entry(&inode).await
    }

    /// Makes a directory, symlink or node.
    ///
    /// # Errors
    /// EEXIST, ENAMETOOLONG and what the server answers.
    pub async fn create(
        self: &Rc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        node: NewNode,
    ) -> Result<Entry, FsError> {
        check_name(name)?;
        let (cookie, _reserved) = self.common.locks.reserve_one();
        let mut request = CreateRequest {
            cred: cred.clone(),
            parent,
            name: name.into(),
            kind: node.kind,
            mode: node.mode,
            umask: node.umask,
            rdev: node.rdev,
            target: node.target.into(),
            layout: Bytes::default(),
            lock_bits: ATTR_BITS,
            lock_cookie: cookie,
            fid: Fid::ZERO,
        };
        let sent = self.common.clock.next();
        let answer = self.mdt_call(Op::MdtCreate, &request).await;
        let answer = answer.and_then(|r| Ok((r.header.transno, r.decode::<EntryReply>()?)));
        let (transno, reply) = match answer {
            Ok(a) => a,
            Err(e) => {
                self.common.locks.adopt(cookie, None);
                return Err(e);
            }
        };
        request.fid = reply.attr.fid;
        request.layout = reply.layout.clone();
        self.sessions.mdc().amend_replay(transno, &request);
        let inode = self
            .take_entry(&reply, cookie, 0, Told::Changed(Change { sent, transno }))
            .await?
            .ok_or(FsError::Protocol)?;
        self.touch_parent(parent, &reply.parent);
        self.name_added(parent, name);
        if node.kind == NodeKind::Directory {
            inode.starts_empty();
        }
        self.learn_name(parent, name, &inode);
        self.named_entry(&inode).await
    }

    /// Removes a name; `directory` says rmdir.
    ///
    /// # Errors
    /// What the server answers: ENOENT, EISDIR, ENOTDIR, ENOTEMPTY, EACCES, EPERM, EBUSY.
    pub async fn unlink(
        self: &Rc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        directory: bool,
    ) -> Result<(), FsError> {
        check_name(name)?;
        let known = self.dentries.borrow().get(&(parent, name.to_vec())).copied();
        self.settle_closes(known.unwrap_or_default()).await;
        let request = UnlinkRequest { cred: cred.clone(), parent, name: name.into(), directory };
        let lost = self.names_lost(parent);
        let (change, reply) = self.change_names(Op::MdtUnlink, &request).await?;
        self.unlearn_name(parent, name);
        self.name_removed(parent, name, lost);
        if let Some(inode) = self.known_inode(reply.attr.fid) {
            self.changed_behind(&inode, change, &reply.attr);
            if reply.attr.nlink == 0 {
                let gone = reply.attr.flags & AttrFlags::ORPHAN == 0;
                if gone {
                    self.osts.discard_data(&inode);
                }
                self.may_be_unnamed(&inode);
            }
        }
        self.take_parent(parent, change, &reply);
        Ok(())
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
        if told.fid == inode.fid { inode.take_change(change, told) } else { inode.changed_unseen() }
    }

    /// Renames; `flags` as in renameat2(2).
    ///
    /// # Errors
    /// What the server answers; EINVAL for unknown flags.
    pub async fn rename(
        self: &Rc<Self>,
        cred: &Cred,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: u32,
    ) -> Result<(), FsError> {
        check_name(from.1)?;
        check_name(to.1)?;
        let replaced = self.dentries.borrow().get(&(to.0, to.1.to_vec())).copied();
        self.settle_closes(replaced.unwrap_or_default()).await;
        let request = RenameRequest {
            cred: cred.clone(),
            from: from.0,
            from_name: from.1.into(),
            to: to.0,
            to_name: to.1.into(),
            flags,
        };
        let lost = self.names_lost(from.0);
        let (change, reply) = self.change_names(Op::MdtRename, &request).await?;
        // Where both names stand for the inode that was moved, either both did before and stay, or somebody of this client asked
        // before this answer came what the new name stands for: who asks next finds out.
        let there = self.dentries.borrow().get(&(to.0, to.1.to_vec())).copied();
        let known = self.knows_name(to.0, to.1) && there != Some(reply.attr.fid);
        let ends =
            [from, to].map(|(p, n)| self.dentries.borrow().get(&(p, n.to_vec())).and_then(|c| self.known_inode(*c)));
        for (parent, name) in [from, to] {
            let child = self.dentries.borrow().get(&(parent, name.to_vec())).copied();
            self.unlearn_name(parent, name);
            if let Some(inode) = child.and_then(|c| self.known_inode(c)) {
                self.changed_behind(&inode, change, &reply.attr);
            }
            self.take_parent(parent, change, &reply);
        }
        let [first, second] = ends;
        if flags & RENAME_EXCHANGE == 0 {
            if known {
                self.name_removed(from.0, from.1, lost);
            } else {
                self.something_lost_a_name();
                // Perhaps it is another name of what it was moved to, and stays.
                if let Some(p) = self.known_inode(from.0) {
                    p.forget_children();
                }
            }
            if let Some(replaced) = second.filter(|i| i.fid != reply.attr.fid) {
                self.may_be_unnamed(&replaced);
            }
        } else if let (Some(first), Some(second)) = (first, second) {
            self.learn_name(from.0, from.1, &second);
            self.learn_name(to.0, to.1, &first);
        }
        self.name_added(to.0, to.1);
        Ok(())
    }

    /// Whether it is certain here what a name stands for, or that there is none.
    fn knows_name(&self, parent: Fid, name: &[u8]) -> bool {
        match self.dentries.borrow().get(&(parent, name.to_vec())) {
            Some(child) if !child.is_zero() => self.common.holds(*child, LockBits::LOOKUP),
            Some(_) => self.common.holds(parent, LockBits::UPDATE),
            None => self.lacks(parent, name),
        }
    }

    /// A rename of ours replaced a name and we do not know whose: our locks stand in nobody's way, so the server did not
    /// call them back. It matters where the inode can still be asked for: by another of its names, or where it is open.
    fn something_lost_a_name(&self) {
        for inode in self.inodes.borrow().values() {
            if inode.opens.get() > 0 || inode.has_other_names() {
                inode.changed_unseen();
            }
        }
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// What the server answers: EEXIST, EPERM for directories, EMLINK.
    pub async fn link(self: &Rc<Self>, cred: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> Result<Entry, FsError> {
        check_name(name)?;
        let request = LinkRequest { cred: cred.clone(), fid, parent, name: name.into() };
        let (change, reply) = self.change_names(Op::MdtLink, &request).await?;
        self.unlearn_name(parent, name);
        self.name_added(parent, name);
        self.take_parent(parent, change, &reply);
        let inode = self.take_entry(&reply, 0, 0, Told::Changed(change)).await?.ok_or(FsError::Protocol)?;
        self.learn_name(parent, name, &inode);
        self.fetch_overlapped(cred, &inode).await?;
        self.named_entry(&inode).await
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// EINVAL for anything else.
    pub async fn readlink(self: &Rc<Self>, cred: &Cred, fid: Fid) -> Result<Vec<u8>, FsError> {
        let reply: BytesReply =
            self.mdt_call(Op::MdtReadlink, &InodeRequest { cred: cred.clone(), fid }).await?.decode()?;
        Ok(reply.value.0)
    }

    /// One xattr's value.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP for unknown name spaces.
    pub async fn getxattr(self: &Rc<Self>, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Vec<u8>, FsError> {
        if crate::advise::is_advice(name) {
            return self.get_advice(cred, &self.inode(fid), name).await;
        }
        if let Some(inode) = self.known_inode(fid)
            && inode.attr_valid()
        {
            let flags = inode.attr().flags;
            let acl = name == b"system.posix_acl_access";
            if acl && flags & AttrFlags::HAS_ACL == 0 || !acl && is_plain(name) && flags & AttrFlags::HAS_XATTRS == 0 {
                return Err(FsError::NoData);
            }
        }
        let request = XattrRequest { cred: cred.clone(), fid, name: name.into() };
        let reply: BytesReply = self.mdt_call(Op::MdtGetxattr, &request).await?.decode()?;
        Ok(reply.value.0)
    }
    /// Names of xattrs.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn listxattr(self: &Rc<Self>, cred: &Cred, fid: Fid) -> Result<Vec<Vec<u8>>, FsError> {
        let request = XattrRequest { cred: cred.clone(), fid, name: Bytes::default() };
        let reply: NamesReply = self.mdt_call(Op::MdtListxattr, &request).await?.decode()?;
        Ok(reply.names.into_iter().map(|n| n.0).collect())
    }
    /// Sets (or with `None` removes) an xattr.
    ///
    /// # Errors
    /// EEXIST, ENODATA, EPERM, E2BIG, EOPNOTSUPP.
    pub async fn setxattr(
        self: &Rc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Option<&[u8]>,
        flags: u32,
        kill_sgid: bool,
    ) -> Result<(), FsError> {
        let request = SetxattrRequest {
            cred: cred.clone(),
            fid,
            name: name.into(),
            value: value.map(Bytes::from),
            flags,
            kill_sgid,
        };
        let inode = self.inode(fid);
        if self.is_servers_advice(&inode, name) {
            return Box::pin(self.set_advice(cred, &inode, name, value)).await;
        }
        if crate::layouts::is_layout(name) && value.is_some() && inode.attr().mode & 0o170_000 != 0o040_000 {
            return self.set_layout(&inode, request).await;
        }
        self.mdt_call(Op::MdtSetxattr, &request).await?;
        // What changed (mode by an ACL, a layout, flags) is told by the next answer about the inode.
        self.inode(fid).changed_unseen();
        self.common.kernel.cache().drop_attributes(fid).await;
        Ok(())
    }
}

fn is_plain(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"security.")
}
