//! Close: sizes and times come home; what has no name goes with its last open.
use types::{ClientId, FsError, HandleId};
use wire::mdt::{CloseRequest, SetBits};

use crate::record::{Inode, InodeFlags};
use crate::tx::{Done, Tx};

impl Tx<'_> {
    /// Ends an open. The handle itself goes when this is applied. Answers the inode, if it lives on.
    pub(crate) fn close(&mut self, q: &CloseRequest) -> Done<Option<Inode>> {
        self.remember = true;
        let open = self.mds.handles.borrow().get(self.client, q.handle);
        let Some(open) = open else {
            return if self.replay { self.close_unknown(q).map(|()| None) } else { Err(FsError::BadHandle.into()) };
        };
        let Some(mut inode) = self.find_inode(open.fid)? else { return Ok(None) };
        let handles = self.mds.handles.borrow();
        let last_open = handles.opens(open.fid) == 1;
        let last_writer = open.writes && handles.writers(open.fid) == 1;
        let suspect = handles.is_suspect(open.fid);
        drop(handles);
        if inode.has(InodeFlags::ORPHAN) && last_open && !self.keep(open.fid) {
            return self.remove_inode(&inode).map(|()| None);
        }
        let mut changed = if open.writes { self.take_home(&mut inode, q) } else { take_atime(&mut inode, q) };
        let told = q.valid & SetBits::SIZE != 0;
        let clean = q.valid & SetBits::DIRTY == 0 && !suspect;
        if last_writer && inode.has(InodeFlags::SIZE_UNKNOWN) && (told || clean) {
            inode.set(InodeFlags::SIZE_UNKNOWN, false);
            changed = true;
        }
        if changed {
            self.put_inode(&inode);
        }
        Ok(Some(inode))
    }

    /// A replayed close: its open is not told again, for the client has forgotten it.
    fn close_unknown(&mut self, q: &CloseRequest) -> Done<()> {
        if let Some(mut inode) = self.find_inode(q.fid)?
            && self.take_home(&mut inode, q)
        {
            if q.valid & SetBits::SIZE != 0 && self.mds.handles.borrow().writers(q.fid) == 0 {
                inode.set(InodeFlags::SIZE_UNKNOWN, false);
            }
            self.put_inode(&inode);
        }
        Ok(())
    }

    /// What the writer knows of its file. Whether anything changed.
    fn take_home(&mut self, inode: &mut Inode, q: &CloseRequest) -> bool {
        let before = (inode.size, inode.blocks, inode.mtime, inode.atime, inode.ctime);
        if q.valid & SetBits::SIZE != 0 {
            inode.size = q.size;
        }
        if q.valid & SetBits::BLOCKS != 0 {
            inode.blocks = q.blocks;
        }
        if q.valid & SetBits::MTIME != 0 {
            inode.mtime = q.mtime;
        }
        take_atime(inode, q);
        if q.valid & SetBits::CTIME != 0 {
            inode.ctime = inode.ctime.max(q.ctime);
        } else if q.valid & SetBits::DIRTY != 0 {
            inode.ctime = inode.ctime.max(inode.mtime);
        }
        before != (inode.size, inode.blocks, inode.mtime, inode.atime, inode.ctime)
    }

    /// Ends an open of a client that is gone: nobody tells its size any more.
    pub(crate) fn close_lost(&mut self, client: ClientId, handle: HandleId) -> Done<()> {
        let handles = self.mds.handles.borrow();
        let Some(open) = handles.get(client, handle) else { return Ok(()) };
        let last_open = handles.opens(open.fid) == 1;
        drop(handles);
        if !last_open {
            return Ok(());
        }
        match self.find_inode(open.fid)? {
            Some(inode) if inode.has(InodeFlags::ORPHAN) && !self.keep(open.fid) => self.remove_inode(&inode),
            _ => Ok(()),
        }
    }
}

/// A reader's access time; whether it is later than what was known.
fn take_atime(inode: &mut Inode, q: &CloseRequest) -> bool {
    let later = q.valid & SetBits::ATIME != 0 && q.atime > inode.atime;
    if later {
        inode.atime = q.atime;
    }
    later
}
