//! Names, attributes, directories, xattrs.
use std::rc::Rc;

use client::{Begins, Client, Entry, Inode, Missed, NewNode, OpenFile};
use fuse::abi::{self, fattr};
use fuse::{Op, Replied, Request};
use types::{Fid, FsError, WallTime};
use wire::mdt::{Cred, NodeKind, SetBits, SetattrRequest};

use crate::dir::{DOT, DOT_DOT, DirHandle};
use crate::killed::Caller;
use crate::{KernelCaching, StriaFs, convert, done, errno};

/// Bytes of entries asked for where only the directory itself matters.
const DOTS_BYTES: u32 = 4096;

fn time(secs: u64, nanos: u32) -> WallTime {
    WallTime::from_parts(secs as i64, nanos)
}

/// The kernel's attribute change in the cluster's words.
fn setattr(arg: &abi::SetattrIn) -> SetattrRequest {
    let pairs = [
        (fattr::MODE, SetBits::MODE),
        (fattr::UID, SetBits::UID),
        (fattr::GID, SetBits::GID),
        (fattr::SIZE, SetBits::SIZE),
        (fattr::KILL_SUIDGID, SetBits::KILL_PRIV),
    ];
    let mut valid = pairs.iter().filter(|(k, _)| arg.valid & k != 0).fold(0, |v, (_, s)| v | s);
    let times = [
        (fattr::ATIME_NOW, SetBits::ATIME_NOW, fattr::ATIME, SetBits::ATIME),
        (fattr::MTIME_NOW, SetBits::MTIME_NOW, fattr::MTIME, SetBits::MTIME),
    ];
    for (now, set_now, at, set_at) in times {
        if arg.valid & now != 0 {
            valid |= set_now;
        } else if arg.valid & at != 0 {
            valid |= set_at;
        }
    }
    SetattrRequest {
        valid,
        mode: arg.mode,
        uid: arg.uid,
        gid: arg.gid,
        size: arg.size,
        atime: time(arg.atime, arg.atimensec),
        mtime: time(arg.mtime, arg.mtimensec),
        ..SetattrRequest::default()
    }
}

/// Whether a kernel asks that set-id bits go, as it does for overlayfs before a write and for a change of owner that changes neither: it
/// leaves out what it takes for the daemon's business, and then nothing is left.
fn wants_set_ids_gone(arg: &abi::SetattrIn) -> bool {
    arg.valid & !(fattr::FH | fattr::LOCKOWNER) == 0
}

/// Changes attributes as a kernel asks; `kills`: set-id bits go although it does not ask for that.
async fn change(
    client: &Rc<Client>,
    cred: &Cred,
    inode: &Rc<Inode>,
    arg: &abi::SetattrIn,
    (file, kills): (Option<&Rc<OpenFile>>, bool),
) -> Result<(), FsError> {
    let mut asked = setattr(arg);
    asked.valid |= if kills { SetBits::KILL_PRIV } else { 0 };
    if wants_set_ids_gone(arg) {
        let kills = SetattrRequest { valid: SetBits::KILL_PRIV, ..SetattrRequest::default() };
        match client.setattr(cred, inode, kills, file).await {
            // A change of owner that changes neither is allowed to everybody.
            Err(FsError::Access | FsError::NotPermitted) => {}
            done => return done,
        }
    }
    client.setattr(cred, inode, asked, file).await
}

/// A name in a directory; or of an inode alone, for file handles: itself, and the directory it is in.
async fn look_up(client: &Rc<Client>, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Entry, FsError> {
    match name {
        b"." => {
            let found = client.getattr(cred, fid, None).await?;
            // Without a name it is on its way out, and only who has it open still may use it.
            if found.attr.nlink == 0 { Err(FsError::Stale) } else { Ok(found) }
        }
        b".." => {
            // Who may use file handles was decided by the kernel.
            let reads = Cred { caps: 1, ..Cred::default() };
            let parent = client.meta().readdir(&reads, fid, 0, DOTS_BYTES, false).await?.parent;
            client.getattr(cred, parent, None).await
        }
        _ => {
            let found = client.lookup(cred, fid, name).await?;
            if !found.attr.fid.is_zero() {
                client.meta().inode(found.attr.fid).front().short_ends_gone().await;
            }
            Ok(found)
        }
    }
}

impl StriaFs {
    /// Whether set-id bits go with a cut although its kernel does not ask for that, taking it for root's.
    async fn cuts_for_another(&self, req: &Request<'_>, inode: &Inode) -> bool {
        let is_known = self.client.meta().vouches_for(inode.attr().fid);
        let may_have_some = !is_known || inode.attr().mode & 0o6000 != 0;
        may_have_some && self.callers.borrows_root(self.client.rt(), req.uid(), req.pid()).await
    }
    /// Attributes for a kernel that holds nothing: neither its pages nor a cut of the file wait for the answer.
    async fn attributes_of(
        &self,
        caller: &mut Caller,
        cred: Cred,
        fid: Fid,
        file: Option<Rc<OpenFile>>,
    ) -> Result<Entry, FsError> {
        let told = self.ask(caller, |c| async move {
            let entry = c.getattr(&cred, fid, file.as_deref()).await?;
            c.meta().inode(fid).front().short_ends_gone().await;
            Ok(entry)
        });
        told.await
    }
    /// Replies an entry, counting the kernel's lookup of it.
    fn reply_entry(&self, req: Request<'_>, result: Result<Entry, FsError>) -> Replied {
        match result {
            Ok(e) if e.attr.fid.is_zero() => {
                if e.name_cached && self.names_cacheable {
                    req.into_reply().negative_entry(convert::ttl(true))
                } else {
                    req.err(libc::ENOENT)
                }
            }
            Ok(mut e) => {
                self.client.meta().remember(e.attr.fid);
                // A lock may have gone while the answer was on its way here.
                e.attr_cached &= self.client.meta().vouches_for(e.attr.fid);
                req.into_reply().entry(&convert::entry(&e, self.names_cacheable))
            }
            Err(e) => req.err(errno(e)),
        }
    }

    pub(crate) async fn attributes(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let (cred, mut caller) = (self.cred(&req).await, Caller::of(&req));
        match req.op() {
            Op::Lookup { name } => {
                let name = name.to_vec();
                let found = self.ask(&mut caller, |c| async move { look_up(&c, &cred, fid, &name).await });
                self.reply_entry(req, found.await)
            }
            Op::Getattr { arg } => {
                let file =
                    (arg.getattr_flags & abi::GETATTR_FH != 0).then(|| self.client.meta().file(arg.fh)).flatten();
                match self.attributes_of(&mut caller, cred, fid, file).await {
                    Ok(e) => req.into_reply().attr(&convert::attr(&e.attr), convert::ttl(e.attr_cached)),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Statx { arg } => {
                let file =
                    (arg.getattr_flags & abi::GETATTR_FH != 0).then(|| self.client.meta().file(arg.fh)).flatten();
                match self.attributes_of(&mut caller, cred, fid, file).await {
                    Ok(e) => req.into_reply().statx(&convert::statx(&e.attr), convert::ttl(e.attr_cached)),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Setattr { arg } => {
                let file = (arg.valid & fattr::FH != 0).then(|| self.client.meta().file(arg.fh)).flatten();
                let inode = self.client.meta().inode(fid);
                // The kernel writes no page of it back until the answer to a cut, and a callback may wait for its pages.
                let sized = arg.valid & fattr::SIZE != 0;
                if sized && file.is_some() && self.syscalls.cuts_by_itself(self.client.rt(), req.pid()).await {
                    return req.err(libc::EOPNOTSUPP);
                }
                let kills = sized && self.cuts_for_another(&req, &inode).await;
                let missed = if sized { Missed::bytes(fid) } else { Missed::attributes(fid) };
                let work = |c: Rc<Client>| async move {
                    change(&c, &cred, &inode, &arg, (file.as_ref(), kills)).await?;
                    // A kernel cuts its pages at the size that answers a cut.
                    if sized {
                        c.getattr(&cred, fid, file.as_deref()).await
                    } else {
                        c.changed_attr(&cred, fid, file.as_deref()).await
                    }
                };
                let begins = if sized { Begins::NowOrNever } else { Begins::InTurn };
                match self.carry_out_or(&mut caller, begins, missed, work, |_, _| (), || ()).await {
                    // See [`convert::unbelieved`].
                    Ok(e) => req.into_reply().attr(&convert::attr(&e.attr), convert::ttl(false)),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Readlink => match self.ask(&mut caller, |c| async move { c.meta().readlink(&cred, fid).await }).await {
                Ok(target) => req.into_reply().data(&target),
                Err(e) => req.err(errno(e)),
            },
            // Permissions are checked by the kernel from attributes under lock, and by the server at every operation.
            _ => req.into_reply().ok(),
        }
    }

    pub(crate) async fn names(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let (cred, mut caller) = (self.cred(&req).await, Caller::of(&req));
        let (name, node) = match req.op() {
            Op::Symlink { name, target, .. } => {
                let target = target.to_vec();
                (name.to_vec(), NewNode { kind: NodeKind::Symlink, mode: 0o777, target, ..NewNode::default() })
            }
            Op::Mknod { arg, name, .. } => {
                let node = NewNode {
                    kind: NodeKind::Node,
                    mode: arg.mode,
                    umask: arg.umask,
                    rdev: u64::from(arg.rdev),
                    target: Vec::new(),
                };
                (name.to_vec(), node)
            }
            Op::Mkdir { arg, name, .. } => {
                let (mode, umask) = (arg.mode, arg.umask);
                (name.to_vec(), NewNode { kind: NodeKind::Directory, mode, umask, ..NewNode::default() })
            }
            Op::Link { oldnodeid, name } => {
                let (old, name) = (convert::fid(oldnodeid), name.to_vec());
                let missed = Missed { inode: old, ..Missed::names(fid) };
                let linked =
                    self.carry_out(&mut caller, missed, |c| async move { c.link(&cred, old, fid, &name).await });
                return self.reply_entry(req, linked.await.map(convert::unbelieved));
            }
            _ => return self.removals(req, cred, caller, fid).await,
        };
        let missed = Missed::names(fid);
        let created = self.carry_out(&mut caller, missed, |c| async move { c.create(&cred, fid, &name, node).await });
        self.reply_entry(req, created.await.map(convert::unbelieved))
    }

    async fn removals(self: &Rc<Self>, req: Request<'_>, cred: Cred, mut caller: Caller, fid: Fid) -> Replied {
        let missed = Missed::names(fid);
        let result = match req.op() {
            Op::Unlink { name } | Op::Rmdir { name } => {
                let (name, directory) = (name.to_vec(), matches!(req.op(), Op::Rmdir { .. }));
                let unlink = |c: Rc<Client>| async move { c.meta().unlink(&cred, fid, &name, directory).await };
                self.carry_out(&mut caller, missed, unlink).await
            }
            Op::Rename { newdir, flags, name, newname } => {
                let (name, to, newname) = (name.to_vec(), convert::fid(newdir), newname.to_vec());
                let missed = Missed { dirs: [fid, to], ..missed };
                let renamed = self.carry_out(&mut caller, missed, |c| async move {
                    c.meta().rename(&cred, (fid, &name), (to, &newname), flags).await
                });
                renamed.await
            }
            _ => Err(FsError::NotImplemented),
        };
        done(req, result)
    }

    pub(crate) async fn directories(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        match req.op() {
            Op::Opendir { .. } => {
                // What the kernel keeps it shows to whom the attributes let read, and the servers may judge otherwise.
                let kept = self.kernel_cache != KernelCaching::Never && !self.client.sessions().users_differ();
                let (id, flags) = self.dirs.open(&self.client, fid, self.cred(&req).await, kept);
                req.into_reply().open(id, flags)
            }
            Op::Releasedir { arg } => {
                self.dirs.close(arg.fh);
                req.into_reply().ok()
            }
            Op::Readdir { arg } => self.list(req, arg, false).await,
            Op::Readdirplus { arg } => self.list(req, arg, true).await,
            op => {
                let dir = if let Op::Fsyncdir { arg } = op { self.dirs.get(arg.fh) } else { None };
                let mut caller = Caller::of(&req);
                let synced = self.ask(&mut caller, |c| async move {
                    match dir {
                        Some(dir) => c.meta().sync_dir(&dir.inode, &dir.losses).await,
                        None => c.meta().sync_meta(fid).await,
                    }
                });
                done(req, synced.await)
            }
        }
    }

    /// Makes the entries behind `cookie` present.
    async fn seek(&self, caller: &mut Caller, dir: &Rc<DirHandle>, cookie: u64, plus: bool) -> Result<(), FsError> {
        let dir = dir.clone();
        self.ask(caller, |c| async move { dir.seek(&c, cookie, plus).await }).await
    }

    async fn list(self: &Rc<Self>, req: Request<'_>, arg: abi::ReadIn, plus: bool) -> Replied {
        let Some(dir) = self.dirs.get(arg.fh) else { return req.err(libc::EBADF) };
        let mut caller = Caller::of(&req);
        let lost = dir.inode.front().names_lost();
        let mut cookie = if arg.offset <= DOT_DOT { 0 } else { arg.offset };
        if let Err(e) = self.seek(&mut caller, &dir, cookie, plus).await {
            return req.err(errno(e));
        }
        if arg.offset == 0 {
            self.dirs.begins(&self.client, &dir, lost);
        } else {
            dir.continues(&self.client).await;
        }
        let mut out = req.into_reply().dirents(arg.size);
        let mut push_dot = |name: &[u8], of: Fid, next: u64| {
            let ino = of.to_ino();
            if plus {
                let bare = abi::Attr { ino, mode: libc::S_IFDIR, ..abi::Attr::default() };
                let zero = std::time::Duration::ZERO;
                let e = fuse::Entry { nodeid: 0, generation: 0, entry_ttl: zero, attr_ttl: zero, attr: bare };
                out.push_plus(&e, next, libc::DT_DIR, name)
            } else {
                out.push(ino, next, libc::DT_DIR, name)
            }
        };
        if arg.offset < DOT && !push_dot(b".", dir.fid(), DOT)
            || arg.offset < DOT_DOT && !push_dot(b"..", dir.parent(), DOT_DOT)
        {
            return out.finish();
        }
        let mut told = false;
        loop {
            while let Some(entry) = dir.front() {
                if !self.push(&mut out, &entry, plus) {
                    return out.finish();
                }
                told |= plus;
                cookie = entry.cookie;
                dir.pop();
            }
            // Locks on what the answer says may go while more is asked for.
            if told || !dir.is_drained() || dir.at() != cookie {
                return out.finish();
            }
            if let Err(e) = self.seek(&mut caller, &dir, cookie, plus).await {
                // What was told stands, and the next question meets what is wrong. Nothing would be the end.
                return if out.used_bytes() == 0 { out.err(errno(e)) } else { out.finish() };
            }
        }
    }

    fn push(&self, out: &mut fuse::Dirents<'_>, entry: &wire::mdt::Dirent, plus: bool) -> bool {
        if !plus {
            return out.push(entry.fid.to_ino(), entry.cookie, entry.dtype, &entry.name);
        }
        match entry.attr.as_ref().and_then(|attr| self.client.entry_of(attr)) {
            Some(e) => {
                // A kernel dates a name of a listing when it gets to it, not when it asked: one that was taken back since our answer
                // would be believed. So it asks for each, and this client answers.
                let pushed = out.push_plus(&convert::entry(&e, false), entry.cookie, entry.dtype, &entry.name);
                if pushed {
                    self.client.meta().remember(e.attr.fid);
                }
                pushed
            }
            None => {
                let bare =
                    abi::Attr { ino: entry.fid.to_ino(), mode: u32::from(entry.dtype) << 12, ..abi::Attr::default() };
                let zero = std::time::Duration::ZERO;
                let e = fuse::Entry { nodeid: 0, generation: 0, entry_ttl: zero, attr_ttl: zero, attr: bare };
                out.push_plus(&e, entry.cookie, entry.dtype, &entry.name)
            }
        }
    }

    pub(crate) async fn xattrs(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let (cred, mut caller) = (self.cred(&req).await, Caller::of(&req));
        match req.op() {
            Op::Getxattr { size, name } => {
                let name = name.to_vec();
                match self.ask(&mut caller, |c| async move { c.getxattr(&cred, fid, &name).await }).await {
                    Ok(value) => req.into_reply().xattr(size, &value),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Listxattr { size } => {
                match self.ask(&mut caller, |c| async move { c.meta().listxattr(&cred, fid).await }).await {
                    Ok(names) => {
                        let list: Vec<u8> = names.iter().flat_map(|n| n.iter().copied().chain([0])).collect();
                        req.into_reply().xattr(size, &list)
                    }
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Setxattr { flags, setxattr_flags, name, value } => {
                let kill = setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
                let (name, value) = (name.to_vec(), value.to_vec());
                let set = self.carry_out(&mut caller, Missed::attributes(fid), |c| async move {
                    c.setxattr(&cred, fid, &name, Some(&value), flags, kill).await
                });
                done(req, set.await)
            }
            Op::Removexattr { name } => {
                let name = name.to_vec();
                // A kernel asks for this on behalf of who may set capabilities, or because a program is being changed: then
                // they go, whoever changes it.
                let cred = if name == b"security.capability" { Cred { caps: 3, ..Cred::default() } } else { cred };
                let remove = |c: Rc<Client>| async move { c.setxattr(&cred, fid, &name, None, 0, false).await };
                done(req, self.carry_out(&mut caller, Missed::attributes(fid), remove).await)
            }
            _ => req.err(libc::ENOSYS),
        }
    }
}
