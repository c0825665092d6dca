//! Which files have objects on an OST, page by page of the store: for whoever empties an OST, or lost one.
use std::rc::Rc;

use rt::sync::yield_now;
use types::{Fid, FsError};
use wire::connect::{OstFile, OstFilesReply, OstFilesRequest};
use wire::mdt::{BytesReply, Fid2pathRequest};

use crate::keys;
use crate::mds::{Caller, Mds};
use crate::record::{Inode, InodeFlags};

/// Inodes that are looked at for one page: a few milliseconds of the thread that serves everybody.
const INODES_MAX: usize = 512;
/// Bytes of paths of one page: the answer must fit into a message.
const PATH_BYTES_MAX: usize = 512 << 10;

/// A file in a sentence.
pub(crate) fn shown(file: &OstFile) -> String {
    match file.path.is_empty() {
        true => format!("{} (which has no name any more)", file.fid),
        false => String::from_utf8_lossy(&file.path).into_owned(),
    }
}

impl Mds {
    /// A page of the files that have objects on an OST, whether or not that is in the map. A page may be empty and not the last.
    ///
    /// # Errors
    /// The store fails, or a record is damaged.
    pub(crate) async fn ost_files(self: &Rc<Self>, q: &OstFilesRequest) -> Result<OstFilesReply, FsError> {
        // Whoever walks through all files asks for page after page, and no page waits for anything.
        yield_now().await;
        let (from, to) = (keys::inode(q.from), keys::end_of(&[keys::INODE]));
        let (rows, next) = self.store.scan(&from, &to, INODES_MAX).await?;
        let mut reply = OstFilesReply { lost: q.lost, ..OstFilesReply::default() };
        let mut path_bytes = 0;
        for (key, value) in rows {
            let Some(fid) = keys::fid_of(&key) else { continue };
            if path_bytes >= PATH_BYTES_MAX {
                reply.next = fid;
                return Ok(reply);
            }
            let inode = Inode::decode(fid, &value).ok_or(FsError::Corrupt)?;
            if let Some(file) = self.on_ost(&inode, q).await? {
                path_bytes += file.path.len() + 64;
                reply.files.push(file);
            }
        }
        if let Some(Fid { seq, oid, ver }) = next.and_then(|key| keys::fid_of(&key)) {
            reply.next = Fid { seq, oid, ver: ver.wrapping_add(1) };
        }
        Ok(reply)
    }

    /// A file that has objects on an OST, or lost some there.
    async fn on_ost(self: &Rc<Self>, inode: &Inode, q: &OstFilesRequest) -> Result<Option<OstFile>, FsError> {
        if !inode.is_file() || !inode.has(InodeFlags::HAS_LAYOUT) {
            return Ok(None);
        }
        let bytes = match inode.has(InodeFlags::LAYOUT_APART) {
            false => inode.tail.clone(),
            true => {
                let value = |_: &Rc<Mds>, value: Vec<u8>| Ok(BytesReply { value: value.into() });
                match self.run(Caller::own(), |tx| tx.layout_bytes(inode), value).await {
                    Ok(answered) => answered.reply.value.0,
                    // It has gone meanwhile, or got another layout.
                    Err(FsError::Corrupt) => return Ok(None),
                    Err(e) => return Err(e),
                }
            }
        };
        let (_, layout) = layout::xattr::decode_layout(&bytes).map_err(FsError::from)?;
        let there = {
            let map = self.map.map.borrow();
            let counts = |oid| !q.lost || map.is_lost(q.ost, oid);
            layout.objects().iter().filter(|o| o.ost == q.ost && counts(o.object.0.oid)).count() as u32
        };
        if there == 0 {
            return Ok(None);
        }
        let stripes = layout.objects().len() as u32;
        let (fid, size) = (inode.fid, inode.size);
        Ok(Some(OstFile { fid, path: self.path_of(fid).await?.into(), size, stripes, there }))
    }

    /// The first path of a file; empty when it has none.
    async fn path_of(self: &Rc<Self>, fid: Fid) -> Result<Vec<u8>, FsError> {
        let q = Fid2pathRequest { fid, link: 0 };
        let value = |_: &Rc<Mds>, value: Vec<u8>| Ok(BytesReply { value: value.into() });
        match self.run(Caller::own(), |tx| tx.fid2path(&q), value).await {
            Ok(answered) => Ok(answered.reply.value.0),
            Err(FsError::NotFound | FsError::Stale) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}
