//! Names, attributes, directories, xattrs.
use std::rc::Rc;

use client::{Entry, NewNode};
use fuse::abi::{self, fattr};
use fuse::{Op, Replied, Request};
use types::{Fid, FsError, WallTime};
use wire::mdt::{NodeKind, SetBits, SetattrRequest};

use crate::dir::{DOT, DOT_DOT};
use crate::{KernelCaching, StriaFs, convert, errno};

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

impl StriaFs {
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
            Ok(e) => {
                self.client.remember(e.attr.fid);
                req.into_reply().entry(&convert::entry(&e, self.names_cacheable))
            }
            Err(e) => req.err(errno(e)),
        }
    }

    pub(crate) async fn attributes(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let cred = self.cred(&req);
        match req.op() {
            Op::Lookup { name } => {
                let result = self.client.lookup(&cred, fid, name).await;
                self.reply_entry(req, result)
            }
            Op::Getattr { arg } => {
                let file = (arg.getattr_flags & abi::GETATTR_FH != 0).then(|| self.client.file(arg.fh)).flatten();
                match self.client.getattr(&cred, fid, file.as_deref()).await {
                    Ok(e) => req.into_reply().attr(&convert::attr(&e.attr), convert::ttl(e.attr_cached)),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Statx { arg } => {
                let file = (arg.getattr_flags & abi::GETATTR_FH != 0).then(|| self.client.file(arg.fh)).flatten();
                match self.client.getattr(&cred, fid, file.as_deref()).await {
                    Ok(e) => req.into_reply().statx(&convert::statx(&e.attr), convert::ttl(e.attr_cached)),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Setattr { arg } => {
                let file = (arg.valid & fattr::FH != 0).then(|| self.client.file(arg.fh)).flatten();
                let inode = self.client.inode_of(fid);
                let result = async {
                    self.client.setattr(&cred, &inode, setattr(&arg), file.as_deref()).await?;
                    self.client.getattr(&cred, fid, file.as_deref()).await
                };
                match result.await {
                    Ok(e) => req.into_reply().attr(&convert::attr(&e.attr), convert::ttl(e.attr_cached)),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Readlink => match self.client.readlink(&cred, fid).await {
                Ok(target) => req.into_reply().data(&target),
                Err(e) => req.err(errno(e)),
            },
            // Permissions are checked by the kernel from attributes under lock, and by the server at every operation.
            _ => req.into_reply().ok(),
        }
    }

    pub(crate) async fn names(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let cred = self.cred(&req);
        let created = match req.op() {
            Op::Symlink { name, target, .. } => {
                let node =
                    NewNode { kind: NodeKind::Symlink, mode: 0o777, target: target.to_vec(), ..NewNode::default() };
                self.client.create(&cred, fid, name, node).await
            }
            Op::Mknod { arg, name, .. } => {
                let node = NewNode {
                    kind: NodeKind::Node,
                    mode: arg.mode,
                    umask: arg.umask,
                    rdev: u64::from(arg.rdev),
                    target: Vec::new(),
                };
                self.client.create(&cred, fid, name, node).await
            }
            Op::Mkdir { arg, name, .. } => {
                let node =
                    NewNode { kind: NodeKind::Directory, mode: arg.mode, umask: arg.umask, ..NewNode::default() };
                self.client.create(&cred, fid, name, node).await
            }
            Op::Link { oldnodeid, name } => self.client.link(&cred, convert::fid(oldnodeid), fid, name).await,
            _ => return self.removals(req, &cred, fid).await,
        };
        self.reply_entry(req, created)
    }

    async fn removals(self: &Rc<Self>, req: Request<'_>, cred: &wire::mdt::Cred, fid: Fid) -> Replied {
        let result = match req.op() {
            Op::Unlink { name } => self.client.unlink(cred, fid, name, false).await,
            Op::Rmdir { name } => self.client.unlink(cred, fid, name, true).await,
            Op::Rename { newdir, flags, name, newname } => {
                self.client.rename(cred, (fid, name), (convert::fid(newdir), newname), flags).await
            }
            _ => Err(FsError::NotImplemented),
        };
        match result {
            Ok(()) => req.into_reply().ok(),
            Err(e) => req.err(errno(e)),
        }
    }

    pub(crate) async fn directories(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let cred = self.cred(&req);
        match req.op() {
            Op::Opendir { .. } => {
                let kept = self.kernel_cache != KernelCaching::Never;
                let (id, flags) = self.dirs.open(&self.client, fid, kept);
                req.into_reply().open(id, flags)
            }
            Op::Releasedir { arg } => {
                self.dirs.close(arg.fh);
                req.into_reply().ok()
            }
            Op::Readdir { arg } => self.list(req, &cred, arg, false).await,
            Op::Readdirplus { arg } => self.list(req, &cred, arg, true).await,
            _ => match self.client.sync_meta(fid).await {
                Ok(()) => req.into_reply().ok(),
                Err(e) => req.err(errno(e)),
            },
        }
    }

    async fn list(self: &Rc<Self>, req: Request<'_>, cred: &wire::mdt::Cred, arg: abi::ReadIn, plus: bool) -> Replied {
        let Some(dir) = self.dirs.get(arg.fh) else { return req.err(libc::EBADF) };
        let lost = dir.inode.names_lost();
        let mut cookie = if arg.offset <= DOT_DOT { 0 } else { arg.offset };
        if let Err(e) = dir.seek(&self.client, cred, cookie, plus).await {
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
        loop {
            while let Some(entry) = dir.front() {
                if !self.push(&mut out, &entry, plus).await {
                    return out.finish();
                }
                cookie = entry.cookie;
                dir.pop();
            }
            if !dir.is_drained() || dir.at() != cookie {
                return out.finish();
            }
            if dir.seek(&self.client, cred, cookie, plus).await.is_err() {
                return out.finish();
            }
        }
    }

    async fn push(&self, out: &mut fuse::Dirents<'_>, entry: &wire::mdt::Dirent, plus: bool) -> bool {
        if !plus {
            return out.push(entry.fid.to_ino(), entry.cookie, entry.dtype, &entry.name);
        }
        let known = match &entry.attr {
            Some(attr) => self.client.entry_of(attr).await,
            None => None,
        };
        match known {
            Some(e) => {
                let pushed =
                    out.push_plus(&convert::entry(&e, self.names_cacheable), entry.cookie, entry.dtype, &entry.name);
                if pushed {
                    self.client.remember(e.attr.fid);
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
        let cred = self.cred(&req);
        match req.op() {
            Op::Getxattr { size, name } => match self.client.getxattr(&cred, fid, name).await {
                Ok(value) => req.into_reply().xattr(size, &value),
                Err(e) => req.err(errno(e)),
            },
            Op::Listxattr { size } => match self.client.listxattr(&cred, fid).await {
                Ok(names) => {
                    let list: Vec<u8> = names.iter().flat_map(|n| n.iter().copied().chain([0])).collect();
                    req.into_reply().xattr(size, &list)
                }
                Err(e) => req.err(errno(e)),
            },
            Op::Setxattr { flags, setxattr_flags, name, value } => {
                let kill = setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
                match self.client.setxattr(&cred, fid, name, Some(value), flags, kill).await {
                    Ok(()) => req.into_reply().ok(),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Removexattr { name } => match self.client.setxattr(&cred, fid, name, None, 0, false).await {
                Ok(()) => req.into_reply().ok(),
                Err(e) => req.err(errno(e)),
            },
            _ => req.err(libc::ENOSYS),
        }
    }
}
