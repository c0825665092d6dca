//! Opens at the metadata server: what it is asked for them, what is known of them, and what it is told again.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use types::{Fid, FsError, HandleId, Transno};
use wire::Op;
use wire::mdt::{AttrFlags, Close, Cred, LockBits, OpenReply, OpenRequest};

use super::{ATTR_BITS, Meta, Told};
use crate::attrs::Change;
use crate::ending::Ending;
use crate::inode::Inode;
use crate::open_file::{O_ACCMODE, O_CREAT, O_EXCL, O_TRUNC, OpenFile};

/// An open whose answer is being taken in. The metadata server has it open: dropped before anybody has the file, it ends.
struct Opening<'a> {
    meta: &'a Rc<Meta>,
    file: Option<Rc<OpenFile>>,
}
impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.file.take().into_iter().for_each(|file| self.meta.end_unused(file));
    }
}

/// Supplementary groups of an opener that a restarted metadata server is told: all opens are told at once, and a process may have 65,536. They
/// matter only where the server does not believe that the open was permitted.
const TOLD_GROUPS_MAX: usize = 256;

fn told_cred(cred: &Cred) -> Cred {
    match cred.groups.get(..TOLD_GROUPS_MAX) {
        Some(groups) => Cred { groups: groups.into(), ..cred.clone() },
        None => cred.clone(),
    }
}

impl Meta {
    /// Opens an inode, as it is.
    ///
    /// # Errors
    /// EACCES, EISDIR, ENOENT, EROFS, ETXTBSY as open(2).
    pub(crate) async fn open(self: &Rc<Self>, cred: &Cred, fid: Fid, flags: u32) -> Result<Rc<OpenFile>, FsError> {
        if let Some(file) = self.open_untold(cred, fid, flags & !(O_CREAT | O_EXCL)) {
            return Ok(file);
        }
        let request = OpenRequest {
            cred: cred.clone(),
            parent: fid,
            flags: flags & !(O_CREAT | O_EXCL),
            ..OpenRequest::default()
        };
        self.open_with(request).await.map(|(file, _)| file)
    }

    /// Opens an inode or a name, as the request says; `true`: the file was made. What is in the file stays, with O_TRUNC, too.
    pub(crate) async fn open_with(self: &Rc<Self>, mut request: OpenRequest) -> Result<(Rc<OpenFile>, bool), FsError> {
        let known = self.known_inode(request.parent).filter(|_| request.name.is_empty());
        let cached = known.as_ref().is_some_and(|i| i.attr_valid());
        let (cookie, _reserved) = if cached { (0, None) } else { self.common.locks.reserve_one() };
        request.lock_bits = if cached { 0 } else { ATTR_BITS };
        request.lock_cookie = cookie;
        request.known_layout = u32::MAX;
        if known.is_some_and(|i| i.striping().is_some()) && cached {
            request.known_layout = self.inode(request.parent).attr().layout_gen;
        }
        let sent = self.common.clock.next();
        let answer = self.mdt_call(Op::MdtOpen, &request).await;
        let answer = answer.and_then(|r| Ok((r.header.transno, r.decode::<OpenReply>()?)));
        let (transno, reply) = match answer {
            Ok(a) => a,
            Err(e) => {
                self.common.locks.adopt(cookie, None);
                return Err(e);
            }
        };
        if transno.0 != 0 {
            request.fid = reply.entry.attr.fid;
            request.handle = reply.handle;
            // Created now, or given its objects now: a replay gives it the same.
            if !reply.entry.layout.is_empty() {
                (request.layout, request.proof) = (reply.entry.layout.clone(), reply.entry.proof.clone());
            }
            self.sessions.mdc().amend_replay(transno, &request);
        }
        let changed = reply.created || request.flags & (O_ACCMODE | O_TRUNC) != 0;
        let told = if changed { Told::Changed(Change { sent, transno }) } else { Told::Asked(sent) };
        let fid = reply.entry.attr.fid;
        if fid.is_zero() {
            self.common.locks.adopt(cookie, reply.entry.lock.as_ref());
            return Err(FsError::Protocol);
        }
        // From here on a restarted server is told of it, however long it takes to take the answer in.
        let file = self.opened(&self.inode(fid), &request, reply.handle.0, reply.handle, transno);
        if reply.entry.attr.flags & AttrFlags::TIME_UNTOLD != 0 {
            // What is cached of the inode may be older or newer.
            file.time_untold.set(Some(reply.entry.attr.mtime));
        }
        let mut opening = Opening { meta: self, file: Some(file) };
        let taken = self.take_entry(&reply.entry, cookie, 0, told).await;
        if reply.created {
            self.made_by_open(&request, reply.entry.parent.fid);
        }
        // Nobody can use what lies on targets that this client cannot name.
        taken?;
        let file = opening.file.take().expect("it is taken here only");
        file.inode.ours_alone.set(reply.created && self.common.holds(fid, LockBits::UPDATE));
        Ok((file, reply.created))
    }

    /// An open has made a name: what was known of its directory, whose attributes came along if it is `told`.
    fn made_by_open(&self, request: &OpenRequest, told: Fid) {
        if let Some(p) = self.known_inode(request.parent).filter(|p| told != p.fid) {
            p.changed_unseen();
        }
        self.name_added(request.parent, &request.name);
        // A negative entry may be known for this name.
        self.unlearn_name(request.parent, &request.name);
    }

    /// An open that the metadata server has and that nobody here gets ends there. It has nothing to tell.
    fn end_unused(self: &Rc<Self>, file: Rc<OpenFile>) {
        file.stream.released.set(true);
        if file.writes() {
            file.inode.tells.writer_went();
        }
        self.common.ahead.close(&file.stream);
        let close = Close { handle: file.handle.get(), fid: file.fid(), ..Close::default() };
        self.tell_end_soon(Ending { close, file, told: None, sent: false });
    }

    pub(crate) fn opened(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        request: &OpenRequest,
        id: u64,
        handle: HandleId,
        transno: Transno,
    ) -> Rc<OpenFile> {
        let file = Rc::new(OpenFile {
            inode: inode.clone(),
            id,
            handle: Cell::new(handle),
            flags: Cell::new(request.flags),
            cred: request.cred.clone(),
            transno: Cell::new(transno),
            dirty: Cell::new(false),
            error_mark: Cell::new(inode.untold_mark()),
            opened_at: inode.error_mark(),
            stream: self.common.ahead.open(self.rt.now()),
            lock_owners: RefCell::default(),
            settles: Cell::new(false),
            doubted: Cell::new(None),
            time_untold: Cell::new(None),
        });
        inode.opened(&file.stream, file.reads(), file.writes());
        if file.writes() {
            inode.writers.set(inode.writers.get() + 1);
            inode.tells.writer_came();
        }
        self.opens.borrow_mut().insert(id, file.clone());
        file
    }
    /// Opens the file behind an id that an open file was given ([`OpenFile::id`]).
    #[must_use]
    pub fn file(&self, id: u64) -> Option<Rc<OpenFile>> {
        self.opens.borrow().get(&id).cloned()
    }

    /// Opens to tell a restarted metadata server again.
    pub(crate) fn open_replays(&self) -> Vec<(Op, Vec<u8>)> {
        let mut files: Vec<_> = self.opens.borrow().values().filter(|f| f.handle.get().0 != 0).cloned().collect();
        files.sort_by_key(|f| (f.transno.get(), f.handle.get()));
        files
            .iter()
            .map(|f| {
                let request = OpenRequest {
                    cred: told_cred(&f.cred),
                    parent: f.inode.fid,
                    flags: f.flags() & !(O_CREAT | O_EXCL | O_TRUNC),
                    fid: f.inode.fid,
                    handle: f.handle.get(),
                    known_layout: 0,
                    ..OpenRequest::default()
                };
                (Op::MdtOpen, wire::encode(&request))
            })
            .collect()
    }
}
