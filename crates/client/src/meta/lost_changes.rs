//! Changes of names and attributes that came to nothing: a restarted metadata server refused their replay, for it rested on
//! what a client had done that did not come back, or it does not know this client any more.
//!
//! The program that asked for one has had its answer. It learns of the loss by EIO from the next fsync of the directory or of
//! the file, as it does of data; administrators find the changes in `llite.*.lost_changes`.
use std::cell::Cell;
use std::rc::Rc;

use types::{Fid, FsError};
use wire::mdt::{
    CloseRequest, CreateRequest, LinkRequest, OpenRequest, RenameRequest, SetattrRequest, SetxattrRequest,
    UnlinkRequest,
};
use wire::{Bytes, Op};

use super::Meta;
use crate::inode::Inode;

/// What a request was to change.
#[derive(Default)]
struct Change {
    what: &'static str,
    names: Vec<(Fid, Bytes)>,
    inodes: Vec<Fid>,
}

impl Change {
    /// `None`: nothing that a program would miss.
    fn of(op: Op, body: &[u8]) -> Option<Change> {
        let (what, names, inodes) = match op {
            Op::MdtCreate => {
                let q: CreateRequest = wire::decode(body).ok()?;
                ("create", vec![(q.parent, q.name)], vec![q.fid])
            }
            Op::MdtOpen => {
                let q: OpenRequest = wire::decode(body).ok()?;
                let named = !q.name.is_empty();
                ("open", named.then_some((q.parent, q.name)).into_iter().collect(), vec![q.fid])
            }
            Op::MdtUnlink => {
                let q: UnlinkRequest = wire::decode(body).ok()?;
                ("unlink", vec![(q.parent, q.name)], Vec::new())
            }
            Op::MdtRename => {
                let q: RenameRequest = wire::decode(body).ok()?;
                ("rename", vec![(q.from, q.from_name), (q.to, q.to_name)], Vec::new())
            }
            Op::MdtLink => {
                let q: LinkRequest = wire::decode(body).ok()?;
                ("link", vec![(q.parent, q.name)], vec![q.fid])
            }
            Op::MdtSetattr => ("setattr", Vec::new(), vec![wire::decode::<SetattrRequest>(body).ok()?.fid]),
            Op::MdtSetxattr => ("setxattr", Vec::new(), vec![wire::decode::<SetxattrRequest>(body).ok()?.fid]),
            Op::MdtClose => {
                let q: CloseRequest = wire::decode(body).ok()?;
                ("close", Vec::new(), q.closes.iter().map(|c| c.fid).collect())
            }
            _ => return None,
        };
        Some(Change { what, names, inodes })
    }
    fn text(&self) -> String {
        let mut text = self.what.to_string();
        for (dir, name) in &self.names {
            text += &format!(" {dir}/{}", name.escape_ascii());
        }
        for fid in self.inodes.iter().filter(|f| !f.is_zero()) {
            text += &format!(" {fid}");
        }
        text
    }
}

impl Meta {
    /// A request that was answered came to nothing.
    pub(crate) fn change_lost(&self, op: Op, request: &[u8]) {
        let Some(change) = Change::of(op, request) else { return };
        self.losses.note_change(change.text());
        for (dir, name) in &change.names {
            if let Some(child) = self.unlearn_name(*dir, name).and_then(|c| self.known_inode(c)) {
                self.distrust(&child);
            }
            self.losses.owe(*dir);
        }
        let dirs = change.names.iter().map(|(dir, _)| *dir);
        for inode in dirs.chain(change.inodes.iter().copied()).filter_map(|fid| self.known_inode(fid)) {
            inode.writeback_failed(FsError::Io);
            self.distrust(&inode);
        }
    }
    /// An open file that the restarted server does not take back.
    pub(crate) fn open_lost(&self, request: &[u8]) {
        let fid = wire::decode::<OpenRequest>(request).map(|q| q.fid);
        if let Some(inode) = fid.ok().and_then(|fid| self.known_inode(fid)) {
            inode.writeback_failed(FsError::Io);
        }
    }
    /// What is remembered of an inode may not be true, whatever locks are held.
    pub(crate) fn distrust(&self, inode: &Inode) {
        inode.ours_alone.set(false);
        inode.outdate();
        inode.forget_children();
        self.forget_missing(inode.fid);
        self.forget_names(inode);
        drop(self.common.kernel.cache().drop_attributes(inode.fid));
    }
    /// Says in the log which changes are lost, and has the kernel ask for names again.
    pub(crate) fn tell_lost_changes(&self) {
        let Some(text) = self.losses.take_change_message() else { return };
        tracing::error!("{text}; llite.*.lost_changes lists them");
        let kernel = self.common.kernel.cache();
        self.rt.spawn(async move { kernel.drop_names().await });
    }

    /// Where an open directory stands in its history of losses, for [`Meta::sync_dir`].
    #[must_use]
    pub fn losses_of(&self, dir: &Inode) -> u64 {
        dir.error_mark()
    }
    /// All changes of a directory are on stable storage afterwards.
    ///
    /// Cancel: a part may be done; no loss counts as told.
    ///
    /// # Errors
    /// EIO when one was lost: once to each open directory, or once to the first that is opened later if there was none; what
    /// the server answers.
    pub async fn sync_dir(self: &Rc<Self>, dir: &Rc<Inode>, mark: &Cell<u64>) -> Result<(), FsError> {
        let synced = self.sync_meta(dir.fid).await;
        let lost = dir.error_since(mark);
        let owed = if self.losses.take_owed(dir.fid) { Err(FsError::Io) } else { Ok(()) };
        lost.and(owed).and(synced)
    }
}
