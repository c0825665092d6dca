//! Layouts as xattrs: `lustre.lov` of files and directories, and swapping the layouts of two files.
use layout::{LayoutSpec, xattr};
use types::{Fid, FsError};
use wire::mdt::{LockBits, SetxattrRequest};

use crate::keys;
use crate::perm::MAY_WRITE;
use crate::record::{INLINE_LAYOUT_BYTES_MAX, Inode, InodeFlags};
use crate::tx::{Done, Tx, damaged};

/// The xattr that shows a layout.
pub(crate) const LOV: &[u8] = b"lustre.lov";
/// The same for the privileged.
pub(crate) const TRUSTED_LOV: &[u8] = b"trusted.lov";
/// A file's layout with its generation, which tools that restore xattrs must not see. In replays: the layout that was
/// answered.
pub(crate) const STORED_LOV: &[u8] = b"lustre.lov.stored";

const XATTR_CREATE: u32 = 1;

impl Tx<'_> {
    /// Puts a layout into an inode or beside it; the inode itself is to be stored by the caller.
    pub(crate) fn set_layout(&mut self, inode: &mut Inode, bytes: Vec<u8>) {
        let apart = bytes.len() > INLINE_LAYOUT_BYTES_MAX;
        if apart || inode.has(InodeFlags::LAYOUT_APART) {
            self.put(keys::layout(inode.fid), apart.then(|| bytes.clone()));
        }
        inode.set(InodeFlags::LAYOUT_APART, apart);
        inode.set(InodeFlags::HAS_LAYOUT, true);
        inode.tail = if apart { Vec::new() } else { bytes };
    }

    /// The default layout that files in a directory get: its own, else the root's.
    pub(crate) fn dir_layout(&mut self, dir: &Inode) -> Done<Option<LayoutSpec>> {
        let Some(bytes) = self.dir_layout_bytes(dir)? else { return Ok(None) };
        match xattr::decode_spec(&bytes) {
            Ok(spec) => Ok(Some(spec)),
            Err(e) => {
                tracing::error!("{e}");
                Err(damaged(&keys::xattr(dir.fid, LOV), "not a default layout"))
            }
        }
    }
    fn dir_layout_bytes(&mut self, dir: &Inode) -> Done<Option<Vec<u8>>> {
        let fid = if dir.has(InodeFlags::HAS_DIR_LAYOUT) {
            dir.fid
        } else if dir.fid != Fid::ROOT && self.inode_of_store(Fid::ROOT)?.has(InodeFlags::HAS_DIR_LAYOUT) {
            Fid::ROOT
        } else {
            return Ok(None);
        };
        self.read(&keys::xattr(fid, LOV), |v| v.map(<[u8]>::to_vec))
    }

    /// What getxattr shows.
    pub(crate) fn get_lov(&mut self, inode: &Inode) -> Done<Vec<u8>> {
        if inode.is_dir() {
            return self.dir_layout_bytes(inode)?.ok_or(FsError::NoData.into());
        }
        if !inode.has(InodeFlags::HAS_LAYOUT) {
            return Err(FsError::NoData.into());
        }
        let mut bytes = self.layout_bytes(inode)?;
        xattr::to_read_form(&mut bytes);
        Ok(bytes)
    }

    /// What [`STORED_LOV`] shows: the layout as it is, with its generation.
    pub(crate) fn get_stored_lov(&mut self, inode: &Inode) -> Done<Vec<u8>> {
        if !inode.is_file() || !inode.has(InodeFlags::HAS_LAYOUT) {
            return Err(FsError::NoData.into());
        }
        self.layout_bytes(inode)
    }

    /// setxattr: a directory's default; a file's layout as long as it has no data. On a file that has data, or that
    /// other clients have open, it succeeds and changes nothing, which tools that restore xattrs rely on; XATTR_CREATE
    /// refuses a file that has a layout. removexattr succeeds and changes nothing likewise. Answers the file's new layout as stored (empty: none).
    pub(crate) fn set_lov(&mut self, q: &SetxattrRequest, inode: &mut Inode) -> Done<Vec<u8>> {
        if inode.is_dir() {
            self.must_own(&q.cred, inode)?;
            return self.set_dir_layout(inode, q.value.as_deref().filter(|v| !v.is_empty())).map(|()| Vec::new());
        }
        if !inode.is_file() {
            return Err(FsError::NotSupported.into());
        }
        self.may(&q.cred, inode, MAY_WRITE)?;
        let Some(value) = q.value.as_deref() else {
            // rsync removes what its source lacks, and a file keeps its layout.
            return if inode.has(InodeFlags::HAS_LAYOUT) { Ok(Vec::new()) } else { Err(FsError::NoData.into()) };
        };
        let spec = xattr::decode_spec(value).map_err(FsError::from)?;
        if inode.has(InodeFlags::HAS_LAYOUT) {
            if q.flags & XATTR_CREATE != 0 {
                return Err(FsError::Exists.into());
            }
            if !self.has_no_data(inode) {
                return Ok(Vec::new());
            }
            self.drop_layout(inode)?;
            inode.layout_gen += 1;
        }
        let dir = if inode.parent.is_zero() { None } else { self.find_inode(inode.parent)? };
        let layout = self.allocate(spec, dir.as_ref())?.with_generation(inode.layout_gen as u16);
        let bytes = xattr::encode_layout(&layout, inode.fid, xattr::Form::Stored);
        self.layout_given(inode, bytes.clone());
        Ok(bytes)
    }

    /// A replay of [`Tx::set_lov`]: exactly the layout that was answered.
    pub(crate) fn set_stored_lov(&mut self, q: &SetxattrRequest, inode: &mut Inode) -> Done<Vec<u8>> {
        let bytes = q.value.as_ref().map(|v| v.0.clone()).unwrap_or_default();
        if !self.replay || !inode.is_file() || xattr::decode_layout(&bytes).is_err() {
            return Err(FsError::NotSupported.into());
        }
        self.may(&q.cred, inode, MAY_WRITE)?;
        if inode.has(InodeFlags::HAS_LAYOUT) {
            if self.layout_bytes(inode)? == bytes {
                return Ok(bytes);
            }
            self.drop_layout(inode)?;
        }
        self.take_stored_layout(inode, &bytes, &q.proof)?;
        self.layout_given(inode, bytes.clone());
        Ok(bytes)
    }

    /// Nothing was ever written to the file that is there still, and only the asker has it open or may have, who says
    /// that it has written nothing.
    fn has_no_data(&self, inode: &Inode) -> bool {
        let handles = self.mds.handles.borrow();
        let settled =
            !inode.has(InodeFlags::SIZE_UNKNOWN) || handles.writers(inode.fid) > 0 && !handles.is_suspect(inode.fid);
        let others = handles.others_open(inode.fid, self.client);
        drop(handles);
        let others = others || self.mds.may_be_opened(inode.fid, Some(self.client));
        inode.size == 0 && inode.blocks == 0 && settled && !others
    }

    fn drop_layout(&mut self, inode: &Inode) -> Done<()> {
        let bytes = self.layout_bytes(inode)?;
        let (_, old) = xattr::decode_layout(&bytes).map_err(|_| damaged(&keys::layout(inode.fid), "not a layout"))?;
        self.destroy(inode.fid, old.objects());
        Ok(())
    }

    fn layout_given(&mut self, inode: &mut Inode, bytes: Vec<u8>) {
        self.set_layout(inode, bytes);
        inode.ctime = self.now;
        self.put_inode(inode);
        self.claim(inode.fid, LockBits::LAYOUT | LockBits::UPDATE | LockBits::XATTR);
    }

    fn set_dir_layout(&mut self, dir: &mut Inode, value: Option<&[u8]>) -> Done<()> {
        let spec = value.map(xattr::decode_spec).transpose().map_err(FsError::from)?;
        let bytes = spec.filter(|s| !s.is_empty()).map(|s| xattr::encode_spec(&s));
        if bytes.is_none() && !dir.has(InodeFlags::HAS_DIR_LAYOUT) {
            return Ok(());
        }
        dir.set(InodeFlags::HAS_DIR_LAYOUT, bytes.is_some());
        self.put(keys::xattr(dir.fid, LOV), bytes);
        dir.ctime = self.now;
        self.put_inode(dir);
        self.claim(dir.fid, LockBits::LAYOUT | LockBits::UPDATE | LockBits::XATTR);
        Ok(())
    }
}
