//! Opens that the metadata server need not know of: a reader's, of a file that a lock keeps.
//!
//! The OPEN bit of an inode lock keeps an inode as an open would (`docs/internals/names.md`), and under the same lock its
//! attributes say who may read it. So such an open asks nobody, and its end tells at most an access time. The bit stays as
//! long as the open does; when the whole lock leaves (too many of them, a refused replay), the server is told first.
//!
//! Where a credential maps or squashes ids, owners are shown as this host has them, and users are others at the server: what the
//! attributes say of them is not what the server would say, and it is asked for every open.
use std::rc::Rc;

use ptlrpc::CallOptions;
use types::{Fid, FsError, HandleId, Transno};
use wire::Op;
use wire::mdt::{Attr, AttrFlags, Close, CloseRequest, Cred, LockBits, OpenReply, OpenRequest};

use super::{ATTR_BITS, Meta};
use crate::goes_on::goes_on;
use crate::inode::Inode;
use crate::open_file::{O_ACCMODE, O_CREAT, O_EXCL, O_NOATIME, O_TRUNC, OpenFile};

/// Set by the kernel when a program is executed.
const O_EXEC: u32 = 0o40;
const O_PATH: u32 = 0o10_000_000;
/// Numbers of such opens, where those of others are the server's handles.
const FIRST: u64 = 1 << 63;

/// Whether the caller may do `want` (4: read, 1: execute) to a file without an ACL.
fn permits(attr: &Attr, cred: &Cred, want: u32) -> bool {
    if cred.uid == 0 || cred.caps & 1 != 0 {
        return want != 1 || attr.mode & 0o111 != 0;
    }
    let in_group = cred.gid == attr.gid || cred.groups.contains(&attr.gid);
    let shift = if cred.uid == attr.uid {
        6
    } else if in_group {
        3
    } else {
        0
    };
    attr.mode >> shift & want == want
}

impl Meta {
    /// Whether locks at hand say that the caller may list a directory; the server is not asked.
    #[must_use]
    pub fn may_list(&self, cred: &Cred, dir: &Inode) -> bool {
        let attr = dir.attr();
        dir.attr_valid()
            && attr.flags & AttrFlags::HAS_ACL == 0
            && !self.sessions.users_differ()
            && permits(&attr, cred, 4)
    }
    /// Opens a file for reading under the locks at hand; `None` when the server has to be asked.
    pub(crate) fn open_untold(self: &Rc<Self>, cred: &Cred, fid: Fid, flags: u32) -> Option<Rc<OpenFile>> {
        if flags & (O_ACCMODE | O_TRUNC | O_NOATIME | O_PATH) != 0 || self.sessions.users_differ() {
            return None;
        }
        let inode = self.known_inode(fid)?;
        if inode.is_stale() || !self.common.holds(fid, ATTR_BITS) {
            return None;
        }
        let attr = inode.attr();
        let plain = attr.mode & 0o170_000 == 0o100_000 && attr.flags & AttrFlags::HAS_ACL == 0 && attr.nlink > 0;
        if !plain || !permits(&attr, cred, if flags & O_EXEC == 0 { 4 } else { 1 }) {
            return None;
        }
        let number = self.untold_opens.get();
        self.untold_opens.set(number + 1);
        inode.untold.set(inode.untold.get() + 1);
        let request = OpenRequest { cred: cred.clone(), parent: fid, flags, ..OpenRequest::default() };
        Some(self.opened(&inode, &request, FIRST | number, HandleId(0), Transno(0)))
    }

    /// An open that the server was not told of has ended, or is told now.
    pub(crate) fn untold_ended(self: &Rc<Self>, file: &OpenFile) {
        let inode = file.inode();
        inode.untold.set(inode.untold.get() - 1);
        if inode.untold.get() == 0 && (inode.unnamed.get() || !self.common.holds(inode.fid, LockBits::LOOKUP)) {
            self.let_go(inode);
        }
    }

    /// The metadata server evicted this client: it knows of no open of ours any more, and is told of each of them anew.
    pub(crate) fn forget_handles(&self) {
        let told = |f: &&Rc<OpenFile>| f.handle.get().0 != 0 && !f.stream.released.get();
        let files: Vec<_> = self.opens.borrow().values().filter(told).cloned().collect();
        for file in files {
            file.handle.set(HandleId(0));
            file.inode().untold.set(file.inode().untold.get() + 1);
            let Some(client) = self.me.upgrade() else { continue };
            self.rt.spawn(async move { client.tell_open_if_untold(&file, CallOptions::default()).await });
        }
    }
    /// The metadata server knows of a writer, so that nobody takes its record of the size for true meanwhile.
    ///
    /// # Errors
    /// EIO: the file is gone since the server forgot this open, and with it whatever is written through it.
    pub(crate) async fn writer_is_told(self: &Rc<Self>, file: &Rc<OpenFile>) -> Result<(), FsError> {
        if !file.writes() || !file.is_untold() {
            return Ok(());
        }
        self.tell_open(file, CallOptions::default()).await.map_err(|e| {
            tracing::warn!(file = %file.fid(), "opened before an eviction, it could not be opened again: {e}");
            FsError::Io
        })
    }

    /// [`Meta::writer_is_told`] for who must not wait, because a lock may be waited for that these pages hold up: what
    /// was written is lost when the server does not take the open back, and the file's next fsync or close says so.
    pub(crate) fn tell_writer_soon(self: &Rc<Self>, file: &Rc<OpenFile>) {
        if !file.writes() || !file.is_untold() {
            return;
        }
        let (me, file) = (self.clone(), file.clone());
        self.rt.spawn(async move {
            if let Err(e) = me.writer_is_told(&file).await {
                file.inode.writeback_failed(e);
            }
        });
    }

    /// The lock goes that keeps an inode: the server has to know of the opens that rested on it.
    pub(crate) async fn tell_opens(self: &Rc<Self>, fid: Fid, options: CallOptions) {
        if self.known_inode(fid).is_none_or(|i| i.untold.get() == 0) {
            return;
        }
        let untold = |f: &&Rc<OpenFile>| f.fid() == fid && f.is_untold();
        let files: Vec<_> = self.opens.borrow().values().filter(untold).cloned().collect();
        for file in files {
            self.tell_open_if_untold(&file, options).await;
        }
    }

    /// Tells of an open, unless it ended or others told of it since it was found.
    async fn tell_open_if_untold(self: &Rc<Self>, file: &Rc<OpenFile>, options: CallOptions) {
        if file.is_untold()
            && let Err(e) = self.tell_open(file, options).await
        {
            // It was not asked, or did not answer.
            if matches!(e, FsError::Io | FsError::NotConnected) {
                self.told_in_vain.set(true);
            }
            tracing::warn!(file = %file.fid(), "an open file that no lock keeps any more could not be opened again: {e}");
        }
    }

    /// The metadata server is there again: it is told of opens that no lock keeps, where that came to nothing.
    pub(crate) fn tell_again(&self) {
        if !self.told_in_vain.take() {
            return;
        }
        let alone = |f: &&Rc<OpenFile>| f.is_untold() && !self.common.holds(f.fid(), LockBits::OPEN);
        let files: Vec<_> = self.opens.borrow().values().filter(alone).cloned().collect();
        for file in files {
            let Some(me) = self.me.upgrade() else { return };
            self.rt.spawn(async move { me.tell_open_if_untold(&file, CallOptions::default()).await });
        }
    }

    async fn tell_open(self: &Rc<Self>, file: &Rc<OpenFile>, options: CallOptions) -> Result<(), FsError> {
        let (me, file) = (self.clone(), file.clone());
        goes_on(self.sessions.alone(), async move { me.tell_open_now(&file, options).await }).await
    }

    async fn tell_open_now(self: &Rc<Self>, file: &Rc<OpenFile>, options: CallOptions) -> Result<(), FsError> {
        // Whether it may be opened was decided when it was. Where that is not believed its opener has to ask again.
        let differ = self.sessions.users_differ();
        let cred = if differ { file.cred().clone() } else { Cred { caps: 1, ..Cred::default() } };
        let flags = file.flags() & !(O_CREAT | O_EXCL | O_TRUNC);
        let request = OpenRequest { cred, parent: file.fid(), flags, ..OpenRequest::default() };
        let reply: OpenReply = self.mdt_call_as(options, Op::MdtOpen, &request).await?.decode()?;
        if file.is_untold() {
            file.handle.set(reply.handle);
            self.untold_ended(file);
            return Ok(());
        }
        // It ended meanwhile.
        let close = Close { handle: reply.handle, fid: file.fid(), ..Close::default() };
        self.mdt_call_as(options, Op::MdtClose, &CloseRequest { closes: vec![close] }).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_says_who_may_read_and_execute_as_it_does_at_the_server() {
        let attr = |mode: u32| Attr { mode: 0o100_000 | mode, uid: 10, gid: 20, ..Attr::default() };
        let who = |uid, gid, groups: &[u32]| Cred { uid, gid, groups: groups.into(), caps: 0, job: 0 };
        let (owner, member, other) = (who(10, 1, &[]), who(11, 1, &[7, 20]), who(11, 1, &[7]));
        for (mode, may) in [(0o640, [true, true, false]), (0o044, [false, true, true]), (0o404, [true, false, true])] {
            assert_eq!([&owner, &member, &other].map(|c| permits(&attr(mode), c, 4)), may, "{mode:o}");
        }
        let root = who(0, 0, &[]);
        assert!(permits(&attr(0), &root, 4) && !permits(&attr(0o644), &root, 1) && permits(&attr(0o001), &root, 1));
        assert!(permits(&attr(0), &Cred { caps: 1, ..other.clone() }, 4) && !permits(&attr(0o666), &other, 1));
    }
}
