//! Close: sizes and times come home; what has no name goes with its last open.
use layout::FILE_SIZE_MAX;
use types::{ClientId, FsError, HandleId};
use wire::changelog::ChangeKind;
use wire::mdt::{CLOSES_MAX, Close, CloseRequest, SetBits};

use crate::handles::Open;
use crate::record::{Inode, InodeFlags};
use crate::tx::{Done, Tx};

/// What an end of an open found: its open, and its inode if that lives on.
pub(crate) struct Closed {
    /// Carried out.
    pub close: Close,
    /// After it; `None`: gone.
    pub inode: Option<Inode>,
    /// The transaction that did it.
    pub transno: u64,
}

/// What earlier ends of the same request, which are not applied yet, leave of an inode's opens.
struct Left {
    opens: usize,
    writers: usize,
    suspect: bool,
    /// The size told last is the latest.
    latest: bool,
}

/// The size was not told although it may have changed.
pub(crate) fn hides_size(valid: u32) -> bool {
    valid & (SetBits::DIRTY | SetBits::SIZE) == SetBits::DIRTY
}

/// The size may have changed.
pub(crate) fn changed_data(valid: u32) -> bool {
    valid & (SetBits::DIRTY | SetBits::SIZE) != 0
}

impl Tx<'_> {
    /// Ends opens, in order. The handles themselves go when this is applied. One that the client does not have is
    /// answered EBADF and keeps no other from its end.
    pub(crate) fn close(&mut self, q: &CloseRequest) -> Done<Vec<Result<Closed, FsError>>> {
        if q.closes.len() > CLOSES_MAX {
            return Err(FsError::Invalid.into());
        }
        self.remember = true;
        let mut ended: Vec<(HandleId, Open, u32)> = Vec::with_capacity(q.closes.len());
        let mut out = Vec::with_capacity(q.closes.len());
        for told in &q.closes {
            let close = self.believable(told);
            let open = self.mds.handles.borrow().get(self.client, close.handle);
            let open = open.filter(|_| ended.iter().all(|(h, _, _)| *h != close.handle));
            let inode = match open {
                Some(open) => {
                    let left = self.left(&open, &ended, &close);
                    ended.push((close.handle, open, close.valid));
                    Ok(self.close_one(&open, &left, &close)?)
                }
                None if !self.replay && close.handle.0 != 0 => Err(FsError::BadHandle),
                // It names its inode itself.
                None if !self.is_within(close.fid)? => Err(FsError::Stale),
                None if self.replay => Ok(self.close_unknown(&close).map(|()| None)?),
                None => Ok(self.close_untold(&close)?),
            };
            out.push(inode.map(|inode| Closed { close, inode, transno: self.transno }));
        }
        Ok(out)
    }

    /// What may be believed of an end: no size that no file can have, which no kernel shows; and of a client that is held to limits no
    /// time that is still to come.
    fn believable(&self, told: &Close) -> Close {
        let mut close = told.clone();
        if close.valid & SetBits::SIZE != 0 && close.size > FILE_SIZE_MAX {
            let (client, fid, size) = (self.client, close.fid, close.size);
            tracing::warn!(%client, %fid, size, "the end of an open tells a size above {FILE_SIZE_MAX}: the OSTs are asked");
            close.valid = close.valid & !(SetBits::SIZE | SetBits::BLOCKS) | SetBits::DIRTY;
        }
        if self.limited {
            for time in [&mut close.atime, &mut close.mtime, &mut close.ctime] {
                *time = (*time).min(self.now);
            }
        }
        close
    }

    fn left(&self, open: &Open, ended: &[(HandleId, Open, u32)], q: &Close) -> Left {
        let handles = self.mds.handles.borrow();
        let earlier = || ended.iter().filter(|(_, o, _)| o.fid == open.fid);
        Left {
            opens: handles.opens(open.fid) - earlier().count(),
            writers: handles.writers(open.fid) - earlier().filter(|(_, o, _)| o.writes).count(),
            suspect: handles.is_suspect(open.fid) || earlier().any(|(_, _, valid)| hides_size(*valid)),
            latest: handles.tells_latest(
                open.fid,
                self.client,
                earlier().any(|(_, _, valid)| changed_data(*valid)) || changed_data(q.valid),
            ),
        }
    }

    fn close_one(&mut self, open: &Open, left: &Left, q: &Close) -> Done<Option<Inode>> {
        let Some(mut inode) = self.find_inode(open.fid)? else { return Ok(None) };
        let last_writer = open.writes && left.writers == 1;
        if inode.has(InodeFlags::ORPHAN) && left.opens == 1 && !self.keep(open.fid) {
            return self.remove_inode(&inode).map(|()| None);
        }
        let mut changed = if open.writes { self.take_home(&mut inode, q) } else { self.take_read(&mut inode, open, q) };
        let told = q.valid & SetBits::SIZE != 0;
        let clean = q.valid & SetBits::DIRTY == 0 && !left.suspect;
        if open.writes && told {
            inode.sized = self.transno;
            changed = true;
        }
        if last_writer && left.latest && inode.has(InodeFlags::SIZE_UNKNOWN) && (told || clean) {
            // Who wrote nothing vouches for nothing: the size stays as old as it is.
            inode.know_size(inode.sized);
            changed = true;
        }
        if changed {
            self.put_inode(&inode);
        }
        if open.writes && changed_data(q.valid) {
            self.record_close(&inode);
        }
        Ok(Some(inode))
    }

    /// A file that was written to was closed, by nobody knows whom: an end of an open does not say.
    fn record_close(&mut self, inode: &Inode) {
        self.record(ChangeKind::Close, None, |r| r.target = inode.fid);
    }

    /// A replayed close: its open is not told again, for the client has forgotten it. Of a client that is held to limits it is believed only
    /// where the file's owner could say it; of any other file the OSTs are asked, who have what was written.
    fn close_unknown(&mut self, q: &Close) -> Done<()> {
        let Some(mut inode) = self.find_inode(q.fid)? else { return Ok(()) };
        if !self.may_speak_of(&inode) {
            self.close_unbelieved(&mut inode, q);
            return Ok(());
        }
        let mut changed = self.take_home(&mut inode, q);
        let was_latest = q.valid & (SetBits::SIZE | SetBits::OUTDATED) == SetBits::SIZE;
        if was_latest && inode.has(InodeFlags::SIZE_UNKNOWN) && self.mds.handles.borrow().writers(q.fid) == 0 {
            inode.know_size(self.transno);
            changed = true;
        }
        if changed {
            self.put_inode(&inode);
        }
        if changed_data(q.valid) {
            self.record_close(&inode);
        }
        Ok(())
    }

    fn close_unbelieved(&mut self, inode: &mut Inode, q: &Close) {
        if !changed_data(q.valid) || !inode.is_file() || !inode.has(InodeFlags::HAS_LAYOUT) {
            return;
        }
        if !inode.has(InodeFlags::SIZE_UNKNOWN) {
            inode.set(InodeFlags::SIZE_UNKNOWN, true);
            self.put_inode(inode);
        }
        self.record_close(inode);
    }

    /// The end of a reader's open that only its client knew of: it tells when the file was read.
    fn close_untold(&mut self, q: &Close) -> Done<Option<Inode>> {
        let Some(mut inode) = self.find_inode(q.fid)? else { return Ok(None) };
        // Of an open that it can have had. Where users are others here than at their client every open is asked for, and known.
        let believed = !self.limited || !self.changes_ids() && self.mds.has_opened(self.client, q.fid);
        if believed && take_atime(&mut inode, q) {
            self.put_inode(&inode);
        }
        Ok(Some(inode))
    }

    /// When a reader read last; an open with O_PATH reads nothing, and whoever has one need not have the right to.
    fn take_read(&self, inode: &mut Inode, open: &Open, q: &Close) -> bool {
        !open.path && take_atime(inode, q)
    }

    /// What the writer knows of its file. Whether anything changed.
    fn take_home(&mut self, inode: &mut Inode, q: &Close) -> bool {
        let before = (inode.size, inode.blocks, inode.mtime, inode.atime, inode.ctime);
        if q.valid & SetBits::SIZE != 0 {
            inode.size = q.size;
        }
        if q.valid & SetBits::BLOCKS != 0 {
            inode.blocks = q.blocks;
        }
        let overruled = || self.mds.handles.borrow().is_overruled(inode.fid, self.client, q.mtime);
        if q.valid & SetBits::MTIME != 0 && !overruled() {
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
        match self.find_inode(open.fid)? {
            Some(inode) if last_open && inode.has(InodeFlags::ORPHAN) && !self.keep(open.fid) => {
                self.remove_inode(&inode)
            }
            // It may have been written to.
            Some(inode) if open.writes => {
                self.record_close(&inode);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// A reader's access time; whether it is later than what was known.
fn take_atime(inode: &mut Inode, q: &Close) -> bool {
    let later = q.valid & SetBits::ATIME != 0 && q.atime > inode.atime;
    if later {
        inode.atime = q.atime;
    }
    later
}
