//! Open files: what an open asks for, what it holds, what its end brings home.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use types::{Fid, FsError, HandleId, Transno};
use wire::mdt::{Cred, LockBits, OpenReply, OpenRequest};
use wire::{Bytes, Op};

use crate::attrs::Change;
use crate::client::Client;
use crate::inode::Inode;
use crate::namespace::{ATTR_BITS, Entry, Told, check_name};
use crate::read::O_DIRECT;
use crate::readahead::Stream;
use crate::write::O_APPEND;

pub(crate) const O_ACCMODE: u32 = 0o3;
pub(crate) const O_TRUNC: u32 = 0o1000;
pub(crate) const O_CREAT: u32 = 0o100;
pub(crate) const O_EXCL: u32 = 0o200;
pub(crate) const O_NOATIME: u32 = 0o1_000_000;

/// What a file is to be when its open creates it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewFile<'a> {
    /// O_* flags of the open.
    pub flags: u32,
    /// Permission bits, umask not yet applied.
    pub mode: u32,
    /// umask of the caller.
    pub umask: u32,
    /// Layout wished, as `lustre.lov` set bytes; empty: the directory's default.
    pub layout: &'a [u8],
}

/// One open file.
pub struct OpenFile {
    pub(crate) inode: Rc<Inode>,
    id: u64,
    /// 0: the metadata server does not know of it (`untold.rs`).
    pub(crate) handle: Cell<HandleId>,
    flags: Cell<u32>,
    cred: Cred,
    transno: Cell<Transno>,
    /// Written through this or another open since this one began.
    pub(crate) dirty: Cell<bool>,
    pub(crate) error_mark: Cell<u64>,
    /// How it is read.
    pub(crate) stream: Rc<Stream>,
    /// Owners that set fcntl locks through this open and did not close it since.
    lock_owners: RefCell<Vec<u64>>,
    /// It is there to tell the size only.
    pub(crate) settles: Cell<bool>,
    /// What the metadata server has for a size that it doubts: if it is right, so are the times.
    pub(crate) doubted: Cell<Option<u64>>,
}

impl OpenFile {
    /// The file's id.
    #[must_use]
    pub fn fid(&self) -> Fid {
        self.inode.fid
    }
    /// O_* flags of the open, the status flags as they were when a call through it came last.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.get()
    }
    /// The status flags with which a call comes: fcntl(2) with F_SETFL may have changed them since the open.
    pub fn follow(&self, flags: u32) {
        const CHANGEABLE: u32 = O_APPEND | O_DIRECT | O_NOATIME;
        self.flags.set(self.flags.get() & !CHANGEABLE | flags & CHANGEABLE);
    }
    /// Whether it may write.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.flags.get() & O_ACCMODE != 0
    }
    pub(crate) fn reads(&self) -> bool {
        const O_WRONLY: u32 = 1;
        self.flags.get() & O_ACCMODE != O_WRONLY
    }
    pub(crate) fn reads_and_writes(&self) -> bool {
        const O_RDWR: u32 = 2;
        self.flags.get() & O_ACCMODE == O_RDWR
    }
    /// The name by which the client knows this open.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Whether it goes on and the metadata server does not know of it.
    pub(crate) fn is_untold(&self) -> bool {
        self.handle.get().0 == 0 && !self.stream.released.get()
    }
    /// The inode.
    #[must_use]
    pub fn inode(&self) -> &Rc<Inode> {
        &self.inode
    }
    /// Who opened it.
    #[must_use]
    pub fn cred(&self) -> &Cred {
        &self.cred
    }
    /// An owner sets an fcntl lock through this open.
    pub fn note_lock_owner(&self, owner: u64) {
        let mut owners = self.lock_owners.borrow_mut();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    /// An owner closed a descriptor: its fcntl locks are given back then.
    pub fn forget_lock_owner(&self, owner: u64) {
        self.lock_owners.borrow_mut().retain(|o| *o != owner);
    }
    /// Owners left at the last close: locks of the open file description, which nobody else gives back.
    #[must_use]
    pub fn take_lock_owners(&self) -> Vec<u64> {
        std::mem::take(&mut *self.lock_owners.borrow_mut())
    }
    /// Whether something was written through it.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty.get()
    }
}

impl Client {
    /// Opens an inode.
    ///
    /// # Errors
    /// EACCES, EISDIR, ENOENT, EROFS, ETXTBSY as open(2).
    pub async fn open(self: &Rc<Self>, cred: &Cred, fid: Fid, flags: u32) -> Result<Rc<OpenFile>, FsError> {
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
    /// Opens the file behind an id that an open file was given ([`OpenFile::id`]).
    #[must_use]
    pub fn file(&self, id: u64) -> Option<Rc<OpenFile>> {
        self.opens.borrow().get(&id).cloned()
    }
    /// Creates and opens a name (or with an empty name a nameless file in directory `parent`).
    ///
    /// # Errors
    /// As open(2).
    pub async fn create_open(
        self: &Rc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        new: NewFile<'_>,
    ) -> Result<(Entry, Rc<OpenFile>), FsError> {
        if !name.is_empty() {
            check_name(name)?;
        }
        let request = OpenRequest {
            cred: cred.clone(),
            parent,
            name: name.into(),
            flags: new.flags,
            mode: new.mode,
            umask: new.umask,
            layout: Bytes::from(new.layout),
            ..OpenRequest::default()
        };
        let (file, _) = self.open_with(request).await?;
        if !name.is_empty() {
            self.learn_name(parent, name, &file.inode);
        }
        let entry = self.named_entry(&file.inode).await?;
        Ok((entry, file))
    }

    async fn open_with(self: &Rc<Self>, mut request: OpenRequest) -> Result<(Rc<OpenFile>, bool), FsError> {
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
        let changed = reply.created || request.flags & (O_ACCMODE | O_TRUNC) != 0;
        let told = if changed { Told::Changed(Change { sent, transno }) } else { Told::Asked(sent) };
        let inode = self.take_entry(&reply.entry, cookie, 0, told).await?.ok_or(FsError::Protocol)?;
        if transno.0 != 0 {
            request.fid = inode.fid;
            request.handle = reply.handle;
            // Created now, or given its objects now: a replay gives it the same.
            if !reply.entry.layout.is_empty() {
                request.layout = reply.entry.layout.clone();
            }
            self.sessions.mdc().amend_replay(transno, &request);
        }
        if reply.created {
            let parent = self.known_inode(request.parent);
            if let Some(p) = parent.filter(|p| reply.entry.parent.fid != p.fid) {
                p.changed_unseen();
            }
            self.name_added(request.parent, &request.name);
            // A negative entry may be known for this name.
            self.dentries.borrow_mut().remove(&(request.parent, request.name.0.clone()));
        }
        if reply.created {
            self.inherit_advice(&request.cred, &inode);
        }
        inode.ours_alone.set(reply.created && self.common.holds(inode.fid, LockBits::UPDATE));
        let file = self.opened(&inode, &request, reply.handle.0, reply.handle, transno);
        if request.flags & O_TRUNC != 0 && !reply.created && file.writes() {
            let attr = inode.attr();
            if attr.mode & 0o170_000 == 0o100_000
                && let Err(e) = Box::pin(self.truncate(&file.cred, &inode, 0, Some(&file))).await
            {
                let _ = self.release(&file).await;
                return Err(e);
            }
        }
        Ok((file, reply.created))
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
            error_mark: Cell::new(inode.error_mark()),
            stream: self.ahead.open(self.rt.now()),
            lock_owners: RefCell::default(),
            settles: Cell::new(false),
            doubted: Cell::new(None),
        });
        inode.opened(&file.stream, file.reads_and_writes());
        if file.writes() {
            inode.writers.set(inode.writers.get() + 1);
            inode.tells.writer_came();
        }
        self.opens.borrow_mut().insert(id, file.clone());
        file
    }

    /// close(2) of one descriptor: reports a failed write-back.
    ///
    /// # Errors
    /// The first write-back failure since this open last reported one.
    pub fn flush_errors(&self, file: &OpenFile) -> Result<(), FsError> {
        file.inode.error_since(&file.error_mark)
    }

    /// Opens to tell a restarted metadata server again.
    pub(crate) fn open_replays(&self) -> Vec<(Op, Vec<u8>)> {
        let mut files: Vec<_> = self.opens.borrow().values().filter(|f| f.handle.get().0 != 0).cloned().collect();
        files.sort_by_key(|f| (f.transno.get(), f.handle.get()));
        files
            .iter()
            .map(|f| {
                let request = OpenRequest {
                    cred: f.cred.clone(),
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
