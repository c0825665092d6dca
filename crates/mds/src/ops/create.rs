//! New inodes: mkdir, mknod, symlink, and what `open` makes.
use layout::{LayoutSpec, StripeObject};
use types::{Fid, FsError, ObjectId};
use wire::changelog::ChangeKind;
use wire::mdt::{CreateRequest, Cred, NodeKind};

use super::{EntryOut, SYMLINK_BYTES_MAX, check_name, is_dots};
use crate::keys;
use crate::perm::{ACL_ACCESS, ACL_DEFAULT, is_privileged, keeps_setgid};
use crate::record::{
    Inode, InodeFlags, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_ISGID, S_IXGRP,
};
use crate::tx::{Done, Tx};

/// Size that directories show.
const DIR_SIZE_BYTES: u64 = 4096;

impl Tx<'_> {
    /// mkdir, mknod, symlink.
    pub(crate) fn create(&mut self, q: &CreateRequest) -> Done<EntryOut> {
        let mut dir = self.dir_for_new(&q.cred, q.parent, &q.name)?;
        let kind = match q.kind {
            NodeKind::Directory => S_IFDIR,
            NodeKind::Symlink => S_IFLNK,
            NodeKind::Node => match q.mode & S_IFMT {
                0 => S_IFREG,
                kind @ (S_IFREG | S_IFIFO | S_IFSOCK) => kind,
                // 0/0 is no device: what union mounts put where a name is gone, which Linux lets everybody make.
                S_IFCHR if q.rdev == 0 => S_IFCHR,
                kind @ (S_IFCHR | S_IFBLK) if is_privileged(&q.cred) || self.is_trusted() => kind,
                S_IFCHR | S_IFBLK => return Err(FsError::NotPermitted.into()),
                _ => return Err(FsError::Invalid.into()),
            },
        };
        let mut inode = self.new_inode(&q.cred, &dir, kind, (q.mode, q.umask), (&q.layout, &q.proof))?;
        match kind {
            S_IFLNK => set_target(&mut inode, &q.target)?,
            S_IFCHR | S_IFBLK => inode.rdev = q.rdev,
            // Without a wish the first open for writing gives it objects, or a layout set until then.
            S_IFREG if !q.layout.is_empty() => self.give_layout(&mut inode, Some(&dir), (&q.layout, &q.proof))?,
            _ => {}
        }
        self.enter(&mut dir, &q.name, &mut inode)?;
        let made = match kind {
            S_IFDIR => ChangeKind::Mkdir,
            S_IFLNK => ChangeKind::Symlink,
            S_IFREG => ChangeKind::Create,
            _ => ChangeKind::Mknod,
        };
        self.record(made, Some(&q.cred), |r| (r.target, r.parent, r.name) = (inode.fid, dir.fid, q.name.clone()));
        let mut out = self.entry(inode, true)?;
        (out.bits, out.cookie, out.parent) = (q.lock_bits, q.lock_cookie, Some(dir));
        Ok(out)
    }

    /// The directory for a new name: it lives, the caller may write to it, the name is legal and free.
    pub(crate) fn dir_for_new(&mut self, cred: &Cred, parent: Fid, name: &[u8]) -> Done<Inode> {
        if is_dots(name) {
            return Err(FsError::Exists.into());
        }
        check_name(name)?;
        let dir = self.live_dir(parent)?;
        self.may(cred, &dir, crate::perm::MAY_EXEC)?;
        if self.find_entry(parent, name)?.is_some() {
            return Err(FsError::Exists.into());
        }
        self.may_change_dir(cred, &dir)?;
        self.rests_on_name(parent, name, None);
        self.rests_on_rights(&dir)?;
        Ok(dir)
    }

    /// A new inode as its directory, the caller and the umask make it; not stored yet. `shown`: in a replay the layout that was answered,
    /// if any, and the proof.
    pub(crate) fn new_inode(
        &mut self,
        cred: &Cred,
        dir: &Inode,
        kind: u32,
        (mode, umask): (u32, u32),
        shown: (&[u8], &[u8]),
    ) -> Done<Inode> {
        let is_dir = kind == S_IFDIR;
        if self.replay {
            self.may_make_again(shown)?;
        }
        let mut inode = Inode {
            fid: self.new_fid(),
            mode: kind | (mode & 0o7777),
            nlink: if is_dir { 2 } else { 1 },
            uid: cred.uid,
            gid: cred.gid,
            project: dir.project,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
            sized: self.transno,
            ..Inode::default()
        };
        if is_dir {
            (inode.size, inode.blocks) = (DIR_SIZE_BYTES, DIR_SIZE_BYTES / 512);
        }
        if dir.mode & S_ISGID != 0 {
            inode.gid = dir.gid;
            if is_dir {
                inode.mode |= S_ISGID;
            }
        }
        self.charge_new(cred, &inode)?;
        let strips = inode.mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
        if !is_dir && strips && !keeps_setgid(cred, inode.gid) {
            inode.mode &= !S_ISGID;
        }
        if kind == S_IFLNK {
            inode.mode = S_IFLNK | 0o777;
        } else {
            self.inherit_acl(&mut inode, dir, umask)?;
        }
        if is_dir && dir.has(InodeFlags::HAS_DIR_LAYOUT) {
            let spec = self.read(&keys::xattr(dir.fid, super::lov::LOV), |v| v.map(<[u8]>::to_vec))?;
            self.put(keys::xattr(inode.fid, super::lov::LOV), spec);
            inode.set(InodeFlags::HAS_DIR_LAYOUT, true);
        }
        if is_dir || kind == S_IFREG {
            inode.set_advice(dir.advice());
        }
        self.inode_delta += 1;
        self.made = true;
        Ok(inode)
    }

    /// A replay's number, and so its inode, is what its client says: it makes nothing in the place of what is there, nor, of a client that
    /// is held to limits, in the place of what another client made and is still to replay.
    fn may_make_again(&mut self, (layout, proof): (&[u8], &[u8])) -> Done<()> {
        let fid = self.new_fid();
        if self.read(&keys::inode(fid), |v| v.is_some())? {
            return Err(FsError::Exists.into());
        }
        let answered = if layout::xattr::decode_layout(layout).is_ok() { layout } else { &[] };
        if self.may_have_been_given(fid, answered, proof) {
            return Ok(());
        }
        let client = self.client;
        tracing::warn!(%client, %fid, "a replay makes an inode without the proof that it was answered");
        Err(FsError::NotPermitted.into())
    }

    fn inherit_acl(&mut self, inode: &mut Inode, dir: &Inode, umask: u32) -> Done<()> {
        let Some(default) = self.acl(dir, ACL_DEFAULT)? else {
            inode.mode &= !(umask & 0o777);
            return Ok(());
        };
        if inode.is_dir() {
            self.put(keys::xattr(inode.fid, ACL_DEFAULT), Some(default.encode()));
            inode.set(InodeFlags::HAS_DEFAULT_ACL, true);
        }
        let (access, bits) = default.inherit(inode.mode);
        inode.mode = inode.mode & !0o777 | bits;
        if !access.is_trivial() {
            self.put(keys::xattr(inode.fid, ACL_ACCESS), Some(access.encode()));
            inode.set(InodeFlags::HAS_ACL, true);
        }
        Ok(())
    }

    /// Gives a new inode its name and stores both.
    pub(crate) fn enter(&mut self, dir: &mut Inode, name: &[u8], inode: &mut Inode) -> Done<()> {
        let cookie = self.add_entry(dir.fid, name, inode.fid, inode.dtype())?;
        (inode.parent, inode.place) = (dir.fid, cookie);
        self.put_inode(inode);
        self.touch_dir(dir, 1, i32::from(inode.is_dir()));
        self.claim(dir.fid, wire::mdt::LockBits::UPDATE);
        Ok(())
    }

    /// Objects for a new file: as the request says, else its directory, else the root, else the configuration. In a
    /// replay the request carries the layout that was answered, and the file gets exactly that.
    pub(crate) fn give_layout(
        &mut self,
        inode: &mut Inode,
        dir: Option<&Inode>,
        (wish, proof): (&[u8], &[u8]),
    ) -> Done<()> {
        // Where the answer had no layout the wish is none either.
        if self.replay && layout::xattr::decode_layout(wish).is_ok() {
            self.take_stored_layout(inode, wish, proof)?;
            self.set_layout(inode, wish.to_vec());
            return Ok(());
        }
        let spec = if wish.is_empty() {
            LayoutSpec::default()
        } else {
            layout::xattr::decode_spec(wish).map_err(FsError::from)?
        };
        let layout = self.allocate(spec, dir)?;
        inode.layout_gen = u32::from(layout.generation());
        let bytes = layout::xattr::encode_layout(&layout, inode.fid, layout::xattr::Form::Stored);
        self.set_layout(inode, bytes);
        Ok(())
    }

    /// A replayed layout: its objects are in use, its generation is the inode's.
    pub(crate) fn take_stored_layout(&mut self, inode: &mut Inode, bytes: &[u8], proof: &[u8]) -> Done<()> {
        let (_, layout) = layout::xattr::decode_layout(bytes).map_err(FsError::from)?;
        if !layout.objects().is_empty() && !self.may_have_been_given(inode.fid, bytes, proof) {
            let (client, fid) = (self.client, inode.fid);
            tracing::warn!(%client, %fid, "a replay names objects without the proof that they were given to it");
            return Err(FsError::NotPermitted.into());
        }
        for o in layout.objects() {
            let saved_for = self.take_from_lost_and_found(o)?;
            let is_missing = self.mds.pools.borrow().may_have_given(o) || saved_for == Some(inode.uid);
            // Else it is another file's, for all that is known here, and its bytes would be this client's.
            if self.limited && !is_missing {
                let (client, object) = (self.client, o.object);
                tracing::warn!(%client, %object, "a replay names an object that was given to nobody whose file is missing");
                return Err(FsError::NotPermitted.into());
            }
            if self.mds.pools.borrow_mut().replayed(o) {
                self.claimed.push(*o);
            }
        }
        self.note_used(layout.objects());
        inode.layout_gen = u32::from(layout.generation());
        Ok(())
    }

    /// A repair between the crash and this replay has made a file of an object that nobody seemed to own (`crate::repair`): its owner
    /// has come, and that file goes without the object. Whose that file was.
    fn take_from_lost_and_found(&mut self, object: &StripeObject) -> Done<Option<u32>> {
        // Such a file has the id of its object. Any other file is not what a replay may take away, nor is one that has got other objects
        // since.
        let is_object = object.object.0.seq == ObjectId::seq_of(object.ost);
        let found = if is_object { self.find_inode(object.object.0)? } else { None };
        let Some(mut found) = found.filter(|_| !types::planted!("adopted-kept")) else { return Ok(None) };
        if !found.has(InodeFlags::HAS_LAYOUT) || !self.layout_of(&found)?.objects().contains(object) {
            return Ok(None);
        }
        while !found.parent.is_zero() {
            let (mut dir, place) = (self.inode_of_store(found.parent)?, found.place);
            self.remove_entry(dir.fid, place)?;
            self.touch_dir(&mut dir, -1, 0);
            self.remove_link(&mut found, dir.fid, place)?;
        }
        found.set(InodeFlags::HAS_LAYOUT, false);
        self.remove_inode(&found)?;
        Ok(Some(found.uid))
    }

    /// Chooses OSTs and takes objects.
    pub(crate) fn allocate(&mut self, spec: LayoutSpec, dir: Option<&Inode>) -> Done<layout::Layout> {
        let mut spec = spec;
        if let Some(default) = dir.map(|d| self.dir_layout(d)).transpose()?.flatten() {
            spec = spec.or(&default);
        }
        let mut ask = spec.or(&self.mds.config.default_layout).resolve();
        // Of a pool that is gone nothing is known: the file gets any OSTs, and does not name the pool.
        ask.pool = ask.pool.filter(|name| self.mds.pools.borrow().has_pool(name));
        let objects = self.mds.pools.borrow_mut().take(&ask)?;
        self.taken.extend_from_slice(&objects);
        self.note_used(&objects);
        let pattern = if ask.overstripe { layout::Pattern::Raid0Overstriped } else { layout::Pattern::Raid0 };
        Ok(layout::Layout::new(ask.stripe_size, pattern, ask.pool, objects).map_err(FsError::from)?)
    }

    /// Stores the highest object ids given out, with the operation that gives them out.
    fn note_used(&mut self, objects: &[StripeObject]) {
        for o in objects {
            let row = self.mds.pools.borrow().get(o.ost).map(crate::osts::precreate_row);
            if let Some(row) = row {
                self.put(keys::precreate(o.ost), Some(row));
            }
        }
    }
}

fn set_target(inode: &mut Inode, target: &[u8]) -> Done<()> {
    if target.is_empty() {
        return Err(FsError::NotFound.into());
    }
    if target.len() > SYMLINK_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    if target.contains(&0) {
        return Err(FsError::Invalid.into());
    }
    inode.size = target.len() as u64;
    inode.tail = target.to_vec();
    Ok(())
}
