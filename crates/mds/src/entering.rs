//! What a credential changes between a client and this server, in one place: requests are made the server's as they enter, answers
//! the client's as they leave, and nothing in between knows of it.
//!
//! User and group ids are mapped and squashed. A client whose root is a directory of the file system calls that directory by the
//! root's FID, as others call the root; inodes that it names must lie below it. What a client that may only read tells of files at the
//! end of an open is not taken; that it changes nothing else `ptlrpc` sees to, before a request comes here.
use std::sync::Arc;

use ptlrpc::Limits;
use smallvec::{SmallVec, smallvec};
use types::{Fid, FsError};
use wire::lock::{EnqueueReply, Kind, LockSpec};
use wire::mdt::{
    Attr, AttrFlags, BytesReply, CloseReply, CloseRequest, CreateRequest, Cred, EntryReply, Fid2pathRequest,
    GetattrRequest, InodeRequest, LinkRequest, LookupRequest, NamesReply, OpenReply, OpenRequest, ReaddirReply,
    ReaddirRequest, RenameRequest, SetBits, SetattrRequest, SetxattrReply, SetxattrRequest, SwapRequest, UnlinkRequest,
    XattrRequest,
};

use crate::acl::Acl;
use crate::keys;
use crate::mds::{Caller, Mds};
use crate::ops::DEPTH_MAX;
use crate::perm::{ACL_ACCESS, ACL_DEFAULT};
use crate::record::{Inode, InodeFlags};
use crate::tx::{Done, Tx};

/// Id that clients are shown for users and groups which they have no id for.
const OVERFLOW_ID: u32 = 65_534;

/// Inodes that a request names.
pub(crate) type Names = SmallVec<[Fid; 2]>;

/// A request that comes in.
pub(crate) trait Enters {
    /// Ids and the root become the server's.
    ///
    /// # Errors
    /// `Invalid`: an owner is given that the client's users and groups have no id for.
    fn enter(&mut self, limits: &Limits) -> Result<(), FsError>;
    /// Inodes that it names, which must lie below the client's root.
    fn names(&self) -> Names;
}

/// An answer that goes out.
pub(crate) trait Leaves {
    /// Ids and the root become the client's.
    fn leave(&mut self, _limits: &Limits) {}
}

fn fid_in(limits: &Limits, fid: &mut Fid) {
    if let Some(root) = limits.subtree().filter(|_| *fid == Fid::ROOT) {
        *fid = root;
    }
}

fn fid_out(limits: &Limits, fid: &mut Fid) {
    if limits.subtree() == Some(*fid) {
        *fid = Fid::ROOT;
    }
}

fn cred_in(limits: &Limits, cred: &mut Cred) {
    if !limits.changes_ids() {
        return;
    }
    let (uid, gid) = limits.squash_ids();
    if limits.squashes_all() || limits.squashes_root() && cred.uid == 0 {
        (cred.uid, cred.gid) = (uid, gid);
        cred.groups = Arc::default();
    } else {
        let is_root = |g: u32| limits.squashes_root() && g == 0;
        let group = |g: u32| limits.gid_in(g).filter(|_| !is_root(g));
        cred.uid = limits.uid_in(cred.uid).unwrap_or(uid);
        cred.gid = group(cred.gid).unwrap_or(gid);
        cred.groups = cred.groups.iter().filter_map(|g| group(*g)).collect();
    }
    // What the client says that its user may do besides is said of a user of the client.
    if cred.uid != 0 {
        cred.caps = 0;
    }
}

/// Whether what a client says was permitted and answered before is not believed.
fn is_limited(limits: &Limits) -> bool {
    limits.changes_ids() || limits.subtree().is_some()
}

/// Whether a request of this client may be one of this user of the servers.
fn may_act_as(limits: &Limits, uid: u32) -> bool {
    if !limits.changes_ids() {
        return true;
    }
    let is_squashed = |client: u32| limits.squashes_all() || limits.squashes_root() && client == 0;
    limits.squash_ids().0 == uid || limits.uid_out(uid).is_some_and(|client| !is_squashed(client))
}

/// An ACL's value with other ids; entries of users and groups without one on the other side go.
fn acl_with(value: &[u8], uid: impl Fn(u32) -> Option<u32>, gid: impl Fn(u32) -> Option<u32>) -> Option<Vec<u8>> {
    Acl::parse(value).map(|acl| acl.with_ids(uid, gid).encode())
}

fn acl_out(limits: &Limits, value: &mut wire::Bytes) {
    if limits.changes_ids()
        && let Some(mapped) = acl_with(value, |u| limits.uid_out(u), |g| limits.gid_out(g))
    {
        value.0 = mapped;
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

fn attr_out(limits: &Limits, attr: &mut Attr) {
    fid_out(limits, &mut attr.fid);
    if limits.changes_ids() {
        attr.uid = limits.uid_out(attr.uid).unwrap_or(OVERFLOW_ID);
        attr.gid = limits.gid_out(attr.gid).unwrap_or(OVERFLOW_ID);
    }
    if limits.is_read_only() {
        // It could not tell what the size is found to be.
        attr.flags &= !AttrFlags::UNSETTLED;
    }
}

fn lock_out(limits: &Limits, lock: &mut Option<EnqueueReply>) {
    if let Some(lock) = lock {
        fid_out(limits, &mut lock.lock.fid);
    }
}

/// Requests whose sender is a user of the client, with these fields for the inodes that they name.
macro_rules! named_by {
    ($($request:ident [$($field:ident)+])*) => {$(
        impl Enters for $request {
            fn enter(&mut self, limits: &Limits) -> Result<(), FsError> {
                cred_in(limits, &mut self.cred);
                $(fid_in(limits, &mut self.$field);)+
                Ok(())
            }
            fn names(&self) -> Names {
                smallvec![$(self.$field),+]
            }
        }
    )*};
}

named_by! {
    LookupRequest [parent]
    GetattrRequest [fid]
    OpenRequest [parent fid]
    CreateRequest [parent]
    UnlinkRequest [parent]
    RenameRequest [from to]
    LinkRequest [fid parent]
    ReaddirRequest [fid]
    InodeRequest [fid]
    XattrRequest [fid]
    SwapRequest [fid other]
}

impl Enters for SetattrRequest {
    fn enter(&mut self, limits: &Limits) -> Result<(), FsError> {
        cred_in(limits, &mut self.cred);
        fid_in(limits, &mut self.fid);
        if self.valid & SetBits::UID != 0 {
            self.uid = limits.uid_in(self.uid).ok_or(FsError::Invalid)?;
        }
        if self.valid & SetBits::GID != 0 {
            self.gid = limits.gid_in(self.gid).ok_or(FsError::Invalid)?;
        }
        Ok(())
    }
    fn names(&self) -> Names {
        smallvec![self.fid]
    }
}

impl Enters for SetxattrRequest {
    fn enter(&mut self, limits: &Limits) -> Result<(), FsError> {
        cred_in(limits, &mut self.cred);
        fid_in(limits, &mut self.fid);
        if let Some(value) = self.value.as_mut().filter(|_| limits.changes_ids() && is_acl(&self.name))
            && let Some(acl) = Acl::parse(value)
        {
            let mapped = acl.with_ids(|u| limits.uid_in(u), |g| limits.gid_in(g));
            if mapped.len() != acl.len() {
                return Err(FsError::Invalid);
            }
            value.0 = mapped.encode();
        }
        Ok(())
    }
    fn names(&self) -> Names {
        smallvec![self.fid]
    }
}

impl Enters for CloseRequest {
    fn enter(&mut self, limits: &Limits) -> Result<(), FsError> {
        for close in &mut self.closes {
            fid_in(limits, &mut close.fid);
            if limits.is_read_only() {
                close.valid = 0;
            }
        }
        Ok(())
    }
    /// An end of an open that the server knows is about that open's inode; of the others each is looked at by itself
    /// ([`Tx::is_within`]), so that one does not keep the rest from their end.
    fn names(&self) -> Names {
        Names::new()
    }
}

impl Enters for Fid2pathRequest {
    fn enter(&mut self, limits: &Limits) -> Result<(), FsError> {
        fid_in(limits, &mut self.fid);
        Ok(())
    }
    fn names(&self) -> Names {
        smallvec![self.fid]
    }
}

impl Leaves for () {}
impl Leaves for BytesReply {}
impl Leaves for SetxattrReply {}
impl Leaves for NamesReply {}

impl Leaves for EntryReply {
    fn leave(&mut self, limits: &Limits) {
        attr_out(limits, &mut self.attr);
        attr_out(limits, &mut self.parent);
        acl_out(limits, &mut self.acl);
        lock_out(limits, &mut self.lock);
        lock_out(limits, &mut self.parent_lock);
    }
}

impl Leaves for OpenReply {
    fn leave(&mut self, limits: &Limits) {
        self.entry.leave(limits);
    }
}

impl Leaves for CloseReply {
    fn leave(&mut self, limits: &Limits) {
        self.closes.iter_mut().for_each(|closed| attr_out(limits, &mut closed.attr));
    }
}

impl Leaves for ReaddirReply {
    fn leave(&mut self, limits: &Limits) {
        fid_out(limits, &mut self.parent);
        lock_out(limits, &mut self.lock);
        for entry in &mut self.entries {
            entry.attr.iter_mut().for_each(|attr| attr_out(limits, attr));
        }
    }
}

impl Mds {
    /// What the credential of the client that asks allows; `None`: everything.
    pub(crate) fn limits_of(&self, caller: Caller) -> Option<Arc<Limits>> {
        self.export(caller.client).filter(|_| caller.slot.is_some()).and_then(|e| e.limits())
    }
    /// A FID as the server has it.
    pub(crate) fn fid_of(&self, client: types::ClientId, fid: Fid) -> Fid {
        let (limits, mut fid) = (self.export(client).and_then(|e| e.limits()), fid);
        if let Some(limits) = limits {
            fid_in(&limits, &mut fid);
        }
        fid
    }
    /// A FID as a client has it.
    pub(crate) fn fid_for(&self, client: types::ClientId, fid: Fid) -> Fid {
        let (limits, mut fid) = (self.export(client).and_then(|e| e.limits()), fid);
        if let Some(limits) = limits {
            fid_out(&limits, &mut fid);
        }
        fid
    }
    /// What shows to OSTs that a client may use the objects of a layout, where its root is a subtree.
    pub(crate) fn capabilities_of(&self, client: types::ClientId, layout: &[u8]) -> wire::Bytes {
        let limits =
            self.export(client).and_then(|e| e.limits()).filter(|l| l.subtree().is_some() && !layout.is_empty());
        let (Some(limits), Some(key)) = (limits, self.config.key.capabilities()) else { return wire::Bytes::default() };
        let objects = layout::xattr::decode_layout(layout).map(|(_, l)| l.objects().to_vec()).unwrap_or_default();
        wire::Bytes(objects.iter().flat_map(|o| key.of(limits.said().id, o.object)).collect())
    }
    /// What shows in a replay that a request of the client made a file, or gave it its layout, where the client is not believed that by itself.
    pub(crate) fn proof_of(&self, client: types::ClientId, file: Fid, layout: &[u8]) -> wire::Bytes {
        let limits = self.export(client).and_then(|e| e.limits());
        let key = limits.filter(|l| is_limited(l)).and_then(|_| self.config.key.capabilities());
        key.map(|key| wire::Bytes(key.of_gift(client, file, layout).to_vec())).unwrap_or_default()
    }
    /// Whether a client may lock an inode. A lock keeps its inode and lets its holder open it without a name: one that is granted
    /// before the inode is made would let it at whatever is made then.
    ///
    /// # Errors
    /// `Stale`: it does not lie below the client's root; or nothing is there, and it is no lock of a program.
    pub(crate) async fn may_lock(self: &std::rc::Rc<Self>, caller: Caller, lock: &LockSpec) -> Result<(), FsError> {
        let Some(limits) = self.limits_of(caller).filter(|l| l.subtree().is_some()) else { return Ok(()) };
        let (fid, must_be) = (lock.fid, !matches!(lock.kind, Kind::Posix | Kind::Flock));
        let within = |tx: &mut Tx<'_>| {
            tx.within(&limits, &[fid])?;
            if must_be && tx.way_up(fid)?.is_none() { Err(FsError::Stale.into()) } else { Ok(()) }
        };
        self.run(Caller { slot: None, ..caller }, within, |_, ()| Ok(())).await.map(drop)
    }
}

impl Tx<'_> {
    /// From here on the client's root is the credential's, and these inodes lie below it.
    ///
    /// # Errors
    /// `Stale`: one does not.
    pub(crate) fn within(&mut self, limits: &Arc<Limits>, names: &[Fid]) -> Done<()> {
        self.limited = is_limited(limits);
        self.limits = Some(limits.clone());
        let Some(root) = limits.subtree() else { return Ok(()) };
        self.root = root;
        for fid in names {
            if !self.is_within(*fid)? {
                return Err(FsError::Stale.into());
            }
        }
        Ok(())
    }

    /// Whether an inode that [`Enters::names`] does not tell lies below the client's root, as far as it is there.
    pub(crate) fn is_within(&mut self, fid: Fid) -> Done<bool> {
        if self.root == Fid::ROOT { Ok(true) } else { self.lies_below(fid, self.root) }
    }

    /// Whether the client may say in a replay that it was answered this inode, with this layout: that is believed, or shown by `proof`.
    pub(crate) fn may_have_been_given(&self, file: Fid, layout: &[u8], proof: &[u8]) -> bool {
        let key = self.mds.config.key.capabilities();
        !self.limited || key.is_some_and(|key| key.is_of_gift(self.client, file, layout, proof))
    }

    /// Whether users of the client are others here than there.
    pub(crate) fn changes_ids(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.changes_ids())
    }

    /// Whether what the client tells of an inode that it does not have open here is believed: it says no user, but the inode's owner may be
    /// one of its users, who could set the same. A nameless inode is not known to lie below its root before its opens are told.
    pub(crate) fn may_speak_of(&self, inode: &Inode) -> bool {
        let nameless = inode.has(InodeFlags::ORPHAN) || inode.parent.is_zero();
        let is_below = self.root == Fid::ROOT || inode.fid == self.root || !nameless;
        !self.limited || is_below && self.limits.as_ref().is_some_and(|limits| may_act_as(limits, inode.uid))
    }

    fn lies_below(&mut self, fid: Fid, root: Fid) -> Done<bool> {
        if fid == root {
            return Ok(true);
        }
        // What is not there the operation says itself.
        let Some(inode) = self.way_up(fid)? else { return Ok(true) };
        if inode.has(InodeFlags::ORPHAN) || inode.parent.is_zero() {
            // Without a name it is nowhere. Opens are told after transactions when a client replays.
            return Ok(self.replay || self.is_its_orphan(fid));
        }
        if self.leads_to(inode.parent, root)? {
            return Ok(true);
        }
        if inode.is_dir() {
            return Ok(false);
        }
        let (from, to) = keys::of_fid(keys::LINK, fid);
        let (links, _) = self.range(&from, &to, crate::ops::LINKS_MAX as usize)?;
        for (key, _) in links {
            let parent = key.get(17..33).and_then(|b| b.try_into().ok()).ok_or(FsError::Corrupt)?;
            if self.leads_to(Fid::from_key(parent), root)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the client has an inode open that has no name, or may open it.
    fn is_its_orphan(&self, fid: Fid) -> bool {
        if self.mds.handles.borrow().has_open(self.client, fid) {
            return true;
        }
        let namespace = self.mds.locks.namespace.borrow();
        namespace.locks_of(self.client).any(|(lock, granted)| granted && lock.resource.fid == fid)
    }

    fn leads_to(&mut self, dir: Fid, root: Fid) -> Done<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == root {
                return Ok(true);
            }
            if at == Fid::ROOT || at.is_zero() {
                return Ok(false);
            }
            at = self.way_up(at)?.map_or(Fid::ZERO, |dir| dir.parent);
        }
        Ok(false)
    }

    /// An inode of which nothing but its place is looked at.
    fn way_up(&mut self, fid: Fid) -> Done<Option<Inode>> {
        let key = keys::inode(fid);
        self.read(&key, |v| v.and_then(|b| Inode::decode(fid, b)))
    }

    /// An xattr's value as the client has its ids.
    pub(crate) fn value_for(&self, limits: Option<&Limits>, name: &[u8], value: Vec<u8>) -> Vec<u8> {
        let mut value = wire::Bytes(value);
        if let Some(limits) = limits.filter(|_| is_acl(name)) {
            acl_out(limits, &mut value);
        }
        value.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::credential::{Credential, CredentialFlags, IdRange};
    use wire::mdt::{Close, Dirent};

    const DIR: Fid = Fid { seq: 0x2_0000_0400, oid: 7, ver: 0 };

    fn limits(flags: u32, uids: &[(u32, u32, u32)]) -> Limits {
        let ranges =
            uids.iter().map(|(client, server, count)| IdRange { client: *client, server: *server, count: *count });
        let uids: Vec<_> = ranges.collect();
        let (version, id, name, gids) = (1, 9, "lab".into(), uids.clone());
        let (squash_uid, squash_gid) = (500, 501);
        let subtree = DIR;
        Limits::new(Credential {
            version,
            id,
            name,
            flags,
            uids,
            gids,
            squash_uid,
            squash_gid,
            subtree,
            ..Credential::default()
        })
        .unwrap()
    }
    fn who(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.into(), caps: 3, job: 1 }
    }
    fn entered(limits: &Limits, cred: Cred) -> (u32, u32, Vec<u32>, u32) {
        let mut q = InodeRequest { cred, fid: Fid::ROOT };
        q.enter(limits).unwrap();
        assert_eq!(q.fid, DIR, "the root is the credential's");
        (q.cred.uid, q.cred.gid, q.cred.groups.to_vec(), q.cred.caps)
    }

    #[test]
    fn who_asks_is_mapped_or_squashed_and_has_no_capability_of_the_clients_making() {
        let mapped = limits(0, &[(0, 100_000, 10), (1000, 2000, 2)]);
        assert_eq!(entered(&mapped, who(0, 0, &[1001, 77])), (100_000, 100_000, vec![2001], 0));
        assert_eq!(entered(&mapped, who(77, 1000, &[])), (500, 2000, vec![], 0), "who has no id is squashed");
        let root = limits(CredentialFlags::SQUASH_ROOT, &[]);
        assert_eq!(entered(&root, who(0, 0, &[0, 5])), (500, 501, vec![], 0));
        assert_eq!(entered(&root, who(7, 0, &[0, 5])), (7, 501, vec![5], 0), "root's group is no other's");
        let all = limits(CredentialFlags::SQUASH_ALL, &[]);
        assert_eq!(entered(&all, who(7, 8, &[9])), (500, 501, vec![], 0));
        let plain = limits(0, &[]);
        assert_eq!(entered(&plain, who(0, 0, &[3])), (0, 0, vec![3], 3), "no limit on ids");
    }

    #[test]
    fn owners_that_have_no_id_at_the_servers_are_refused_and_others_mapped() {
        let mapped = limits(0, &[(1000, 2000, 2)]);
        let set = |valid, uid, gid| {
            let mut q = SetattrRequest { valid, uid, gid, fid: Fid::ROOT, ..SetattrRequest::default() };
            q.enter(&mapped).map(|()| (q.uid, q.gid, q.fid))
        };
        assert_eq!(set(SetBits::UID | SetBits::GID, 1001, 1000), Ok((2001, 2000, DIR)));
        assert_eq!(set(SetBits::UID, 999, 0), Err(FsError::Invalid));
        assert_eq!(set(SetBits::GID, 0, 999), Err(FsError::Invalid));
        assert_eq!(set(SetBits::MODE, 999, 999), Ok((999, 999, DIR)), "not looked at");
    }

    #[test]
    fn attributes_acls_and_the_root_leave_as_the_client_has_them() {
        let mapped = limits(CredentialFlags::READ_ONLY, &[(1000, 2000, 2)]);
        let attr = Attr { fid: DIR, uid: 2001, gid: 7, flags: AttrFlags::UNSETTLED, ..Attr::default() };
        let mut reply = EntryReply { attr: attr.clone(), parent: attr.clone(), ..EntryReply::default() };
        reply.leave(&mapped);
        assert_eq!((reply.attr.fid, reply.attr.uid, reply.attr.gid), (Fid::ROOT, 1001, OVERFLOW_ID));
        assert_eq!((reply.attr.flags, reply.parent.fid), (0, Fid::ROOT));
        let entries = vec![Dirent {
            attr: Some(Attr { fid: Fid::new(9, 9), uid: 2000, ..Attr::default() }),
            ..Dirent::default()
        }];
        let mut page = ReaddirReply { entries, parent: DIR, ..ReaddirReply::default() };
        page.leave(&mapped);
        assert_eq!((page.parent, page.entries[0].attr.as_ref().unwrap().uid), (Fid::ROOT, 1000));
        let mut closes = CloseRequest { closes: vec![Close { valid: 17, ..Close::default() }] };
        closes.enter(&mapped).unwrap();
        assert!(closes.closes[0].valid == 0 && closes.names().is_empty(), "who only reads tells nothing");
    }

    #[test]
    fn named_entries_of_acls_are_mapped_in_order_and_those_without_an_id_are_not_shown() {
        let entry = |tag: u16, perm: u16, id: u32| {
            let mut e = tag.to_le_bytes().to_vec();
            e.extend_from_slice(&perm.to_le_bytes());
            e.extend_from_slice(&id.to_le_bytes());
            e
        };
        let acl = |users: &[u32]| {
            let mut v = 2u32.to_le_bytes().to_vec();
            v.extend(entry(1, 7, u32::MAX));
            users.iter().for_each(|u| v.extend(entry(2, 5, *u)));
            [(4, 5), (16, 7), (32, 0)].iter().for_each(|(tag, perm)| v.extend(entry(*tag, *perm, u32::MAX)));
            v
        };
        // The order at the client is the other way round.
        let mapped = limits(0, &[(1000, 3000, 1), (1001, 2000, 1)]);
        let mut shown = wire::Bytes(acl(&[2000, 2500, 3000]));
        acl_out(&mapped, &mut shown);
        assert_eq!(shown.0, acl(&[1000, 1001]));
        let set = |users: &[u32]| {
            let value = Some(wire::Bytes(acl(users)));
            let mut q = SetxattrRequest { name: ACL_ACCESS.into(), value, ..SetxattrRequest::default() };
            q.enter(&mapped).map(|()| q.value.unwrap().0)
        };
        assert_eq!(set(&[1000, 1001]), Ok(acl(&[2000, 3000])));
        assert_eq!(set(&[1000, 1005]), Err(FsError::Invalid));
    }
}
