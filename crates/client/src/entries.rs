//! What is told of names: attributes with the size that the file's bytes say, and what of it may be believed for how long.
use std::rc::Rc;

use types::{Fid, FsError};
use wire::mdt::{Attr, AttrFlags, BytesReply, Cred, LockBits, SetxattrRequest, XattrRequest};
use wire::{Bytes, Op};

use crate::client::Client;
use crate::goes_on::goes_on;
use crate::inode::Inode;
use crate::meta::names::{NewNode, check_name};
use crate::open_file::OpenFile;

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

/// How long the answer to a lookup waits for servers that know the file's size.
const SIZE_WAIT: types::Duration = types::Duration::from_secs(1);

impl Client {
    /// Looks a name up. An [`Entry`] with a zero FID says that there is none.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// ENAMETOOLONG, EINVAL, ENOTDIR, EACCES, and what the server answers.
    pub async fn lookup(self: &Rc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, FsError> {
        match self.meta.look_up(cred, parent, name).await? {
            Ok(found) => self.named_entry(&found.inode).await,
            Err(none) => Ok(Entry { attr: Attr::default(), name_cached: none.is_certain, attr_cached: false }),
        }
    }

    pub(crate) async fn entry(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<Entry, FsError> {
        self.meta.used(inode);
        let _naming = inode.front.naming();
        let attr = self.data.sized(inode).await?;
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

    /// The entry of a name that was looked up or made. A kernel keeps the directory locked until it has the answer, and who makes a
    /// name there waits for that lock beyond any signal: so servers that are asked for a size get a moment only. Then, and where they
    /// do not tell it, the entry has what is known here, for nobody to keep, and whoever needs the size asks for it, in a call that can be
    /// interrupted, and that says what is wrong: a name can be removed and moved all the same.
    pub(crate) async fn named_entry(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<Entry, FsError> {
        let attr = inode.attr();
        if attr.mode & 0o170_000 != 0o100_000 || attr.flags & AttrFlags::SIZE_KNOWN != 0 && inode.writers.get() == 0 {
            return self.entry(inode).await;
        }
        match self.sessions.rt().timeout(SIZE_WAIT, self.entry(inode)).await {
            Some(Ok(entry)) => Ok(entry),
            _ => Ok(self.entry_as_known(inode)),
        }
    }
    /// What is known here of an inode whose size could not be asked for. Its attributes are for nobody to keep.
    fn entry_as_known(&self, inode: &Inode) -> Entry {
        let attr = self.data.attr_as_known(inode);
        Entry { attr, name_cached: self.common.holds(inode.fid, LockBits::LOOKUP), attr_cached: false }
    }

    /// Attributes of an inode, with its true size.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// What the server answers; ENOENT for an inode that is gone.
    pub async fn getattr(self: &Rc<Self>, cred: &Cred, fid: Fid, file: Option<&OpenFile>) -> Result<Entry, FsError> {
        let inode = self.meta.inode(fid);
        if !inode.attr_valid() {
            self.meta.fetch_attr(cred, &inode, file).await?;
        }
        self.entry(&inode).await
    }

    /// Attributes of an inode behind a change of it: where they cannot be asked for, what is known here. The change was carried out, and
    /// whoever is told that it was not would do it again.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// What the server answers, where nothing is known here.
    pub async fn changed_attr(
        self: &Rc<Self>,
        cred: &Cred,
        fid: Fid,
        file: Option<&OpenFile>,
    ) -> Result<Entry, FsError> {
        let told = self.getattr(cred, fid, file).await;
        let inode = self.meta.inode(fid);
        if told.is_ok() || inode.attr().mode == 0 { told } else { Ok(self.entry_as_known(&inode)) }
    }

    /// Makes a directory, symlink or node.
    ///
    /// Cancel: goes on by itself.
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
        let (me, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        goes_on(self.sessions.alone(), async move {
            let made = me.meta.make(&cred, parent, &name, node).await?;
            me.named_entry(&made).await
        })
        .await
    }

    /// Gives an inode one more name.
    ///
    /// Cancel: goes on by itself.
    ///
    /// # Errors
    /// What the server answers: EEXIST, EPERM for directories, EMLINK.
    pub async fn link(self: &Rc<Self>, cred: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> Result<Entry, FsError> {
        check_name(name)?;
        let (me, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        goes_on(self.sessions.alone(), async move {
            let named = me.meta.add_name(&cred, fid, parent, &name).await?;
            me.named_entry(&named).await
        })
        .await
    }

    /// An entry that [`crate::Meta::readdir`] brought with attributes, for a kernel that will count it as a look-up. `None`
    /// without a lock on it, or when its size has to be asked for: the kernel is not told of it and may ask. It waits for nothing: what
    /// a kernel may believe of several entries holds when they are told together.
    pub fn entry_of(&self, attr: &Attr) -> Option<Entry> {
        let inode = self.meta.known_inode(attr.fid)?;
        if !inode.attr_valid() || !self.data.size_is_told(&inode) || !self.common.holds(attr.fid, LockBits::OPEN) {
            return None;
        }
        self.meta.used(&inode);
        let attr = self.data.attr_as_told(&inode);
        Some(self.entry_with(&inode, attr))
    }

    /// One xattr's value.
    ///
    /// Cancel: nothing happened.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP for unknown name spaces.
    pub async fn getxattr(self: &Rc<Self>, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Vec<u8>, FsError> {
        if crate::advise::is_advice(name) {
            return self.get_advice(cred, &self.meta.inode(fid), name).await;
        }
        let known = self.meta.known_inode(fid);
        if let Some(inode) = known.as_ref().filter(|_| is_acl(name)) {
            inode.front.asks_for_acl();
        }
        if let Some(inode) = known.filter(|i| i.attr_valid()) {
            let flags = inode.attr().flags;
            let acl = name == b"system.posix_acl_access";
            if acl && flags & AttrFlags::HAS_ACL == 0 || !acl && is_plain(name) && flags & AttrFlags::HAS_XATTRS == 0 {
                return Err(FsError::NoData);
            }
        }
        let request = XattrRequest { cred: cred.clone(), fid, name: name.into() };
        let told = self.meta.mdt_call(Op::MdtGetxattr, &request).await.and_then(|r| r.decode::<BytesReply>());
        if is_acl(name) && !self.common.holds(fid, LockBits::PERM) {
            // Nobody would tell the kernel that it is old. What it was told to forget while it asked it does not keep.
            self.common.kernel.attributes_changed(fid).await;
        }
        Ok(told?.value.0)
    }
    /// Sets (or with `None` removes) an xattr.
    ///
    /// Cancel: goes on by itself; of advice, a part may be done.
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
            ..SetxattrRequest::default()
        };
        let inode = self.meta.inode(fid);
        if self.is_servers_advice(&inode, name) {
            return Box::pin(self.set_advice(cred, &inode, name, value)).await;
        }
        let me = self.clone();
        goes_on(self.sessions.alone(), async move { me.set_xattr(&inode, request).await }).await
    }

    async fn set_xattr(&self, inode: &Rc<Inode>, request: SetxattrRequest) -> Result<(), FsError> {
        let is_layout = crate::meta::layouts::is_layout(&request.name.0) && request.value.is_some();
        if is_layout && inode.attr().mode & 0o170_000 != 0o040_000 {
            return self.meta.set_layout(inode, request).await;
        }
        self.meta.mdt_call(Op::MdtSetxattr, &request).await?;
        // What changed (mode by an ACL, a layout, flags) is told by the next answer about the inode.
        self.meta.inode(inode.fid).changed_unseen();
        self.common.kernel.cache().drop_attributes(inode.fid).await;
        Ok(())
    }
}

/// Whether it is one that a kernel keeps.
fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

fn is_plain(name: &[u8]) -> bool {
    [&b"user."[..], b"security."].iter().any(|space| name.strip_prefix(*space).is_some_and(|rest| !rest.is_empty()))
}
