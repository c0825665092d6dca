//! Names: looked up where locks cover them, asked of the metadata server otherwise; made, moved and removed.
use std::rc::Rc;

use types::{Fid, FsError};
use wire::mdt::{
    Attr, AttrFlags, BytesReply, CreateRequest, Cred, EntryReply, InodeRequest, LinkRequest, LockBits, LookupRequest,
    NamesReply, NodeKind, RenameRequest, UnlinkRequest, XattrRequest,
};
use wire::{Bytes, Op};

use super::{ATTR_BITS, Meta, Told};
use crate::attrs::Change;
use crate::front::Naming;
use crate::goes_on::goes_on;
use crate::inode::Inode;

/// renameat2(2): both names stay, their inodes change places.
const RENAME_EXCHANGE: u32 = 2;
/// renameat2(2): the old name stays, and stands for a device without a number.
const RENAME_WHITEOUT: u32 = 4;
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

/// What a directory entry is made of ([`crate::Client::create`]).
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

/// What a name stands for.
pub(crate) struct Found {
    pub(crate) inode: Rc<Inode>,
    /// It was answered from what is known here: as long as this lives, the kernel is about to be told of it.
    _naming: Option<Naming>,
}

/// There is no such name.
pub(crate) struct Missing {
    /// It may be believed until the kernel is told to ask for names again.
    pub(crate) is_certain: bool,
}

impl Meta {
    /// Looks a name up. `Err`: there is none; whether that may be believed.
    pub(crate) async fn look_up(
        self: &Rc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<Result<Found, Missing>, FsError> {
        check_name(name)?;
        self.listed.on_lookup(parent);
        if let Some(dir) = self.known_inode(parent) {
            self.used(&dir);
        }
        if let Some(known) = self.look_up_here(cred, parent, name).await? {
            return Ok(known);
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
        let (sent, missed) = (self.common.clock.next(), self.names_missed(parent));
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
            let cached = self.common.holds(parent, LockBits::UPDATE) && missed == self.names_missed(parent);
            if cached {
                self.unlearn_name(parent, name);
                self.dentries.borrow_mut().insert((parent, name.to_vec()), Fid::ZERO);
                self.name_came();
            }
            return Ok(Err(Missing { is_certain: cached }));
        };
        if missed == self.names_missed(parent) {
            self.learn_name(parent, name, &inode);
        }
        self.fetch_overlapped(cred, &inode).await?;
        Ok(Ok(Found { inode, _naming: None }))
    }

    /// What is known here of a name, or comes with the next page of its directory; `None`: the server is to be asked.
    async fn look_up_here(
        self: &Rc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<Option<Result<Found, Missing>>, FsError> {
        let known = self.dentries.borrow().get(&(parent, name.to_vec())).copied();
        if let Some(child) = known {
            if child.is_zero() {
                if self.common.holds(parent, LockBits::UPDATE) {
                    return Ok(Some(Err(Missing { is_certain: true })));
                }
            } else if let Some(inode) = self.known_inode(child)
                && self.common.holds(child, LockBits::LOOKUP)
            {
                let naming = Some(inode.front.naming());
                let fetched = if inode.attr_valid() { Ok(()) } else { self.fetch_attr(cred, &inode, None).await };
                match fetched {
                    Ok(()) => return Ok(Some(Ok(Found { inode, _naming: naming }))),
                    // It lost its name and went, meanwhile.
                    Err(FsError::Stale) => {}
                    Err(e) => return Err(e),
                }
            }
            self.unlearn_name(parent, name);
        }
        if self.lacks(parent, name) {
            return Ok(Some(Err(Missing { is_certain: true })));
        }
        if let Some(inode) = self.look_ahead(cred, parent, name).await {
            return Ok(Some(Ok(Found { inode, _naming: None })));
        }
        Ok(None)
    }

    /// Makes a directory, symlink or node.
    ///
    /// # Errors
    /// EEXIST, ENAMETOOLONG and what the server answers.
    pub(crate) async fn make(
        self: &Rc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        node: NewNode,
    ) -> Result<Rc<Inode>, FsError> {
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
            lock_bits: ATTR_BITS,
            lock_cookie: cookie,
            ..CreateRequest::default()
        };
        let (sent, missed) = (self.common.clock.next(), self.names_missed(parent));
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
        (request.layout, request.proof) = (reply.layout.clone(), reply.proof.clone());
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
        if missed == self.names_missed(parent) {
            self.learn_name(parent, name, &inode);
        }
        Ok(inode)
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// What the server answers: EEXIST, EPERM for directories, EMLINK.
    pub(crate) async fn add_name(
        self: &Rc<Self>,
        cred: &Cred,
        fid: Fid,
        parent: Fid,
        name: &[u8],
    ) -> Result<Rc<Inode>, FsError> {
        check_name(name)?;
        let request = LinkRequest { cred: cred.clone(), fid, parent, name: name.into() };
        let missed = self.names_missed(parent);
        let (change, reply) = self.change_names(Op::MdtLink, &request).await?;
        self.unlearn_name(parent, name);
        self.name_added(parent, name);
        self.take_parent(parent, change, &reply);
        let inode = self.take_entry(&reply, 0, 0, Told::Changed(change)).await?.ok_or(FsError::Protocol)?;
        if missed == self.names_missed(parent) {
            self.learn_name(parent, name, &inode);
        }
        self.fetch_overlapped(cred, &inode).await?;
        Ok(inode)
    }

    pub(crate) fn learn_name(&self, parent: Fid, name: &[u8], inode: &Inode) {
        if self.common.holds(inode.fid, LockBits::LOOKUP) {
            inode.unnamed.set(false);
            let key = (parent, name.to_vec());
            let known = self.dentries.borrow_mut().insert(key.clone(), inode.fid);
            if known != Some(inode.fid) {
                self.leads_no_longer(known, &key);
                inode.names.borrow_mut().insert(key);
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
    /// A name is not known any more; what it was known to stand for.
    pub(super) fn unlearn_name(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        let key = (parent, name.to_vec());
        let child = self.dentries.borrow_mut().remove(&key);
        self.leads_no_longer(child, &key);
        child
    }
    fn leads_no_longer(&self, child: Option<Fid>, name: &(Fid, Vec<u8>)) {
        if let Some(inode) = child.and_then(|c| self.known_inode(c)) {
            inode.names.borrow_mut().remove(name);
        }
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

    /// Removes a name; `directory` says rmdir.
    ///
    /// Cancel: goes on by itself.
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
        let (me, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        goes_on(self.sessions.alone(), async move { me.unlink_now(cred, parent, &name, directory).await }).await
    }

    async fn unlink_now(self: &Rc<Self>, cred: Cred, parent: Fid, name: &[u8], directory: bool) -> Result<(), FsError> {
        let known = self.dentries.borrow().get(&(parent, name.to_vec())).copied();
        self.settle_closes(known.unwrap_or_default()).await;
        let request = UnlinkRequest { cred, parent, name: name.into(), directory };
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

    /// Renames; `flags` as in renameat2(2).
    ///
    /// Cancel: goes on by itself.
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
        let (me, cred) = (self.clone(), cred.clone());
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let renamed = async move { me.rename_now(cred, (from.0, &from.1), (to.0, &to.1), flags).await };
        goes_on(self.sessions.alone(), renamed).await
    }

    async fn rename_now(
        self: &Rc<Self>,
        cred: Cred,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: u32,
    ) -> Result<(), FsError> {
        if flags & RENAME_EXCHANGE != 0 {
            // The answer tells of what was moved; what that is exchanged with has to be known here by then. What is wrong the server says.
            drop(self.look_up(&cred, to.0, to.1).await);
        }
        let replaced = self.dentries.borrow().get(&(to.0, to.1.to_vec())).copied();
        self.settle_closes(replaced.unwrap_or_default()).await;
        let (from_name, to_name) = (from.1.into(), to.1.into());
        let (old, new, proof) = (from.0, to.0, Bytes::default());
        let mut request = RenameRequest { cred, from: old, from_name, to: new, to_name, flags, proof };
        let lost = self.names_lost(from.0);
        let missed = [from.0, to.0].map(|dir| self.names_missed(dir));
        let (change, reply) = self.change_names(Op::MdtRename, &request).await?;
        if !reply.proof.is_empty() {
            request.proof = reply.proof.clone();
            self.sessions.mdc().amend_replay(change.transno, &request);
        }
        // Where both names stand for the inode that was moved, either both did before and stay, or somebody of this client asked
        // before this answer came what the new name stands for: who asks next finds out.
        let there = self.dentries.borrow().get(&(to.0, to.1.to_vec())).copied();
        let known = self.knows_name(to.0, to.1) && there != Some(reply.attr.fid);
        let ends =
            [from, to].map(|(p, n)| self.dentries.borrow().get(&(p, n.to_vec())).and_then(|c| self.known_inode(*c)));
        for (parent, name) in [from, to] {
            let child = self.dentries.borrow().get(&(parent, name.to_vec())).copied();
            self.unlearn_name(parent, name);
            if let Some(inode) = child.filter(|c| *c != reply.attr.fid).and_then(|c| self.known_inode(c)) {
                self.changed_behind(&inode, change, &reply.attr);
            }
            self.take_parent(parent, change, &reply);
        }
        // By its number: what it was called may not be known here, as after an earlier rename.
        if let Some(moved) = self.known_inode(reply.attr.fid) {
            self.changed_behind(&moved, change, &reply.attr);
        }
        let [first, second] = ends;
        if flags & RENAME_EXCHANGE == 0 {
            if flags & RENAME_WHITEOUT != 0 {
                self.something_lost_a_name();
            } else if known {
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
        } else if second.is_none() {
            // Another client took it in between.
            self.one_of_them_changed(|_| true);
        } else if let (Some(first), Some(second)) = (first, second)
            && missed == [from.0, to.0].map(|dir| self.names_missed(dir))
        {
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

    /// A rename of ours replaced a name and we do not know whose. It matters where the inode can still be asked for: by another of its
    /// names, or where it is open.
    fn something_lost_a_name(&self) {
        self.one_of_them_changed(|inode| inode.opens.get() > 0 || inode.has_other_names());
    }
    /// A rename of ours changed an inode of which only this is known here: our locks stand in nobody's way, so the server did not call
    /// them back.
    fn one_of_them_changed(&self, may_be: impl Fn(&Inode) -> bool) {
        for inode in self.inodes.borrow().values().filter(|i| may_be(i)) {
            inode.changed_unseen();
            self.may_be_missed(inode);
        }
    }

    /// A symlink's target.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// EINVAL for anything else.
    pub async fn readlink(self: &Rc<Self>, cred: &Cred, fid: Fid) -> Result<Vec<u8>, FsError> {
        let reply: BytesReply =
            self.mdt_call(Op::MdtReadlink, &InodeRequest { cred: cred.clone(), fid }).await?.decode()?;
        Ok(reply.value.0)
    }
    /// Names of xattrs.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn listxattr(self: &Rc<Self>, cred: &Cred, fid: Fid) -> Result<Vec<Vec<u8>>, FsError> {
        let request = XattrRequest { cred: cred.clone(), fid, name: Bytes::default() };
        let reply: NamesReply = self.mdt_call(Op::MdtListxattr, &request).await?.decode()?;
        Ok(reply.names.into_iter().map(|n| n.0).collect())
    }
}
