//! The test file system: requests to calls on [`State`].
pub use super::files::State;
use super::files::{Body, Held};
use fuse::abi::{Attr, Kstatfs, LkIn, RELEASE_FLOCK_UNLOCK, SetattrIn, Statx, fattr, fopen};
use fuse::{Entry, FileSystem, Notifier, Op, Replied, Request};
use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

/// Names starting with this open with the kernel's page cache.
pub const CACHED: &[u8] = b"cached";
const TTL: Duration = Duration::from_secs(60);

pub struct MemFs {
    state: Arc<Mutex<State>>,
    notifier: Notifier,
}

impl MemFs {
    pub fn new(state: Arc<Mutex<State>>, notifier: Notifier) -> Self {
        MemFs { state, notifier }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn entry(&self, node: u64) -> Result<Entry, i32> {
        let mut state = self.state();
        let node = state.node(node)?;
        node.lookups += 1;
        Ok(Entry { nodeid: node.attr.ino, generation: 0, entry_ttl: TTL, attr_ttl: TTL, attr: node.attr })
    }

    fn attr(&self, node: u64) -> Result<Attr, i32> {
        Ok(self.state().node(node)?.attr)
    }

    fn setattr(&self, node: u64, arg: &SetattrIn) -> Result<Attr, i32> {
        let mut state = self.state();
        if arg.valid & fattr::SIZE != 0 {
            state.resize(node, arg.size)?;
        }
        let attr = &mut state.node(node)?.attr;
        if arg.valid & fattr::MODE != 0 {
            attr.mode = attr.mode & libc::S_IFMT | arg.mode & 0o7777;
        }
        if arg.valid & fattr::UID != 0 {
            attr.uid = arg.uid;
        }
        if arg.valid & fattr::GID != 0 {
            attr.gid = arg.gid;
        }
        if arg.valid & fattr::MTIME != 0 {
            (attr.mtime, attr.mtimensec) = (arg.mtime, arg.mtimensec);
        }
        Ok(*attr)
    }

    fn make(&self, req: &Request<'_>, name: &[u8], mode: u32, body: Body) -> Result<Entry, i32> {
        let made = self.state().make(req.nodeid(), name, mode, (req.uid(), req.gid()), body);
        self.entry(made?)
    }

    /// Waits until the lock is free, or the caller got a signal.
    async fn lock(&self, req: &Request<'_>, arg: LkIn, wait: bool) -> Result<(), i32> {
        let flock = arg.lk_flags & fuse::abi::LK_FLOCK != 0;
        let want = Held { node: req.nodeid(), owner: arg.owner, flock, lk: arg.lk };
        let mut interrupted = req.interrupted();
        let lasting = if wait { req.lasting() } else { None };
        let mut counted = false;
        let result = poll_fn(|cx| {
            let mut state = self.state();
            if want.lk.typ == libc::F_UNLCK as u32 || state.conflict(&want).is_none() {
                state.set_lock(want);
                return Poll::Ready(Ok(()));
            }
            if !wait {
                return Poll::Ready(Err(libc::EAGAIN));
            }
            if lasting.is_none() {
                return Poll::Ready(Err(libc::ENOLCK));
            }
            if std::pin::Pin::new(&mut interrupted).poll(cx).is_ready() {
                return Poll::Ready(Err(libc::EINTR));
            }
            if !counted {
                counted = true;
                state.waiting_locks += 1;
            }
            state.lock_waiters.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        if counted {
            self.state().waiting_locks -= 1;
        }
        result
    }

    fn names<'a>(&self, req: Request<'a>) -> Result<Replied, Request<'a>> {
        let node = req.nodeid();
        let reply = match req.op() {
            Op::Lookup { name } => {
                let found = self.state().find(node, name);
                found.and_then(|n| self.entry(n))
            }
            Op::Mkdir { arg, name, .. } => {
                self.make(&req, name, libc::S_IFDIR | arg.mode & !arg.umask, Body::Dir(Default::default()))
            }
            Op::Mknod { arg, name, .. } => {
                let file = arg.mode & libc::S_IFMT == libc::S_IFREG;
                let body = if file { Body::File(Vec::new()) } else { Body::Special };
                self.make(&req, name, arg.mode & !arg.umask, body)
            }
            Op::Symlink { name, target, .. } => {
                self.make(&req, name, libc::S_IFLNK | 0o777, Body::Link(target.to_vec()))
            }
            Op::Link { oldnodeid, name } => {
                let linked = self.state().link(node, name, oldnodeid);
                linked.and_then(|()| {
                    self.state().node(oldnodeid)?.attr.nlink += 1;
                    self.entry(oldnodeid)
                })
            }
            _ => return Err(req),
        };
        Ok(match reply {
            Ok(entry) => req.into_reply().entry(&entry),
            Err(errno) => req.err(errno),
        })
    }

    fn simple(&self, req: &Request<'_>) -> Option<Result<(), i32>> {
        let node = req.nodeid();
        Some(match req.op() {
            Op::Unlink { name } => self.state().unlink(node, name, false),
            Op::Rmdir { name } => self.state().unlink(node, name, true),
            Op::Rename { newdir, flags, name, newname } => self.state().rename((node, name), (newdir, newname), flags),
            Op::Setxattr { name, value, .. } => {
                self.state().node(node).map(|n| drop(n.xattrs.insert(name.to_vec(), value.to_vec())))
            }
            Op::Removexattr { name } => {
                self.state().node(node).and_then(|n| n.xattrs.remove(name).map(drop).ok_or(libc::ENODATA))
            }
            Op::Fallocate { arg } => {
                let mut state = self.state();
                let size = state.node(node).map(|n| n.attr.size);
                size.and_then(|s| state.resize(node, s.max(arg.offset + arg.length)))
            }
            Op::Release { arg } => {
                let whole = fuse::abi::FileLock { start: 0, end: u64::MAX >> 1, typ: libc::F_UNLCK as u32, pid: 0 };
                if arg.release_flags & RELEASE_FLOCK_UNLOCK != 0 {
                    self.state().set_lock(Held { node, owner: arg.lock_owner, flock: true, lk: whole });
                }
                Ok(())
            }
            Op::Flush { arg } => {
                let whole = fuse::abi::FileLock { start: 0, end: u64::MAX >> 1, typ: libc::F_UNLCK as u32, pid: 0 };
                self.state().set_lock(Held { node, owner: arg.lock_owner, flock: false, lk: whole });
                Ok(())
            }
            Op::Fsync { .. } | Op::Fsyncdir { .. } | Op::Releasedir { .. } | Op::Syncfs | Op::Access { .. } => Ok(()),
            _ => return None,
        })
    }

    fn readdir(&self, req: Request<'_>, arg: fuse::abi::ReadIn, plus: bool) -> Replied {
        let names: Vec<(Vec<u8>, u64)> = match self.state().dir(req.nodeid()) {
            Ok(d) => d.iter().map(|(n, i)| (n.clone(), *i)).collect(),
            Err(e) => return req.err(e),
        };
        let mut out = req.into_reply().dirents(arg.size);
        for (i, (name, ino)) in names.iter().enumerate().skip(arg.offset as usize) {
            let Ok(attr) = self.attr(*ino) else { continue };
            let (next, kind) = (i as u64 + 1, (attr.mode >> 12) as u8);
            let entry = Entry { nodeid: *ino, generation: 0, entry_ttl: TTL, attr_ttl: TTL, attr };
            let fits = if plus { out.push_plus(&entry, next, kind, name) } else { out.push(*ino, next, kind, name) };
            if !fits {
                break;
            }
            if plus {
                self.state().nodes.entry(*ino).and_modify(|n| n.lookups += 1);
            }
        }
        out.finish()
    }

    fn read(&self, req: Request<'_>, offset: u64, size: u32) -> Replied {
        let mut state = self.state();
        let data = match state.data(req.nodeid()) {
            Ok(d) => d,
            Err(e) => return req.err(e),
        };
        let start = (offset as usize).min(data.len());
        let end = (start + size as usize).min(data.len());
        let pieces: Vec<IoSlice<'_>> = data[start..end].chunks(4096).map(IoSlice::new).collect();
        req.into_reply().slices(&pieces)
    }

    fn open_flags(name: &[u8]) -> u32 {
        if name.starts_with(CACHED) { fopen::KEEP_CACHE } else { fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES }
    }

    fn open(&self, req: Request<'_>, flags: u32) -> Replied {
        let node = req.nodeid();
        let mut state = self.state();
        if flags & libc::O_TRUNC as u32 != 0
            && let Err(e) = state.resize(node, 0)
        {
            return req.err(e);
        }
        let cached = state.nodes.values().any(|n| match &n.body {
            Body::Dir(d) => d.iter().any(|(name, i)| *i == node && name.starts_with(CACHED)),
            _ => false,
        });
        req.into_reply().open(node, Self::open_flags(if cached { CACHED } else { b"" }))
    }

    fn more(&self, req: Request<'_>) -> Replied {
        let node = req.nodeid();
        match req.op() {
            Op::Getxattr { size, name } => {
                let value = self.state().node(node).map(|n| n.xattrs.get(name).cloned());
                match value {
                    Ok(Some(v)) => req.into_reply().xattr(size, &v),
                    Ok(None) => req.err(libc::ENODATA),
                    Err(e) => req.err(e),
                }
            }
            Op::Listxattr { size } => {
                let mut list = Vec::new();
                if let Some(n) = self.state().nodes.get(&node) {
                    n.xattrs.keys().for_each(|k| list.extend_from_slice(&[k.as_slice(), &[0]].concat()));
                }
                req.into_reply().xattr(size, &list)
            }
            Op::Readlink => {
                let body = self.state().nodes.get(&node).map(|n| n.body.clone());
                match body {
                    Some(Body::Link(t)) => req.into_reply().data(&t),
                    _ => req.err(libc::EINVAL),
                }
            }
            Op::Getlk { arg } => {
                let want = Held { node, owner: arg.owner, flock: false, lk: arg.lk };
                let unlocked = fuse::abi::FileLock { typ: libc::F_UNLCK as u32, ..arg.lk };
                let found = self.state().conflict(&want).unwrap_or(unlocked);
                req.into_reply().lk(&found)
            }
            Op::Statfs => {
                self.state().statfs_asked += 1;
                let st = Kstatfs {
                    blocks: 1000,
                    bfree: 600,
                    bavail: 500,
                    bsize: 4096,
                    frsize: 4096,
                    namelen: 255,
                    ..Default::default()
                };
                req.into_reply().statfs(&st)
            }
            Op::Lseek { arg } => {
                let size = self.attr(node).map_or(0, |a| a.size);
                match arg.whence as i32 {
                    _ if arg.offset >= size => req.err(libc::ENXIO),
                    libc::SEEK_DATA => req.into_reply().lseek(arg.offset),
                    _ => req.into_reply().lseek(size),
                }
            }
            Op::CopyFileRange { arg, .. } => {
                let mut state = self.state();
                let copied = state.data(node).map(|d| {
                    let start = (arg.off_in as usize).min(d.len());
                    d[start..(start + arg.len as usize).min(d.len())].to_vec()
                });
                match copied.and_then(|c| state.write(arg.nodeid_out, arg.off_out as usize, &c).map(|()| c.len())) {
                    Ok(n) => req.into_reply().copied(n as u64),
                    Err(e) => req.err(e),
                }
            }
            Op::Statx { .. } => match self.attr(node) {
                Ok(a) => {
                    let mut st = Statx { mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME, ..Default::default() };
                    (st.ino, st.size, st.mode, st.nlink) = (a.ino, a.size, a.mode as u16, a.nlink);
                    (st.uid, st.gid) = (a.uid, a.gid);
                    st.btime.tv_sec = 77;
                    req.into_reply().statx(&st, TTL)
                }
                Err(e) => req.err(e),
            },
            Op::Poll { arg } => {
                let mut state = self.state();
                if arg.flags & fuse::abi::POLL_SCHEDULE_NOTIFY != 0 {
                    state.poll_handles.push(arg.kh);
                }
                let ready = if state.ready { libc::POLLIN as u32 } else { 0 };
                req.into_reply().poll(ready)
            }
            Op::Ioctl { arg, data } => {
                // Doubles every byte; command 0x..07 makes the file ready for pollers.
                if arg.cmd & 0xff == 7 {
                    let handles = std::mem::take(&mut self.state().poll_handles);
                    self.state().ready = true;
                    handles.iter().for_each(|&kh| drop(self.notifier.poll_wakeup(kh)));
                }
                let answer: Vec<u8> = data.iter().map(|b| b.wrapping_mul(2)).collect();
                req.into_reply().ioctl(0, &answer[..answer.len().min(arg.out_size as usize)])
            }
            _ => req.err(libc::ENOSYS),
        }
    }
}

impl FileSystem for MemFs {
    async fn handle(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let node = req.nodeid();
        if let Some(result) = self.simple(&req) {
            return match result {
                Ok(()) => req.into_reply().ok(),
                Err(e) => req.err(e),
            };
        }
        let req = match self.names(req) {
            Ok(replied) => return replied,
            Err(req) => req,
        };
        match req.op() {
            Op::Getattr { .. } => match self.attr(node) {
                Ok(a) => req.into_reply().attr(&a, TTL),
                Err(e) => req.err(e),
            },
            Op::Setattr { arg } => match self.setattr(node, &arg) {
                Ok(a) => req.into_reply().attr(&a, TTL),
                Err(e) => req.err(e),
            },
            Op::Create { arg, name, .. } => {
                let flags = Self::open_flags(name);
                match self.make(&req, name, libc::S_IFREG | arg.mode & !arg.umask & 0o7777, Body::File(Vec::new())) {
                    Ok(entry) => req.into_reply().create(&entry, entry.nodeid, flags),
                    Err(e) => req.err(e),
                }
            }
            Op::Tmpfile { arg, .. } => {
                let made =
                    self.state().add(libc::S_IFREG | arg.mode & 0o7777, req.uid(), req.gid(), Body::File(Vec::new()));
                match self.entry(made) {
                    Ok(entry) => req.into_reply().create(&entry, made, Self::open_flags(b"")),
                    Err(e) => req.err(e),
                }
            }
            Op::Open { arg } => self.open(req, arg.flags),
            Op::Opendir { .. } => req.into_reply().open(node, 0),
            Op::Readdir { arg } => self.readdir(req, arg, false),
            Op::Readdirplus { arg } => self.readdir(req, arg, true),
            Op::Read { arg } => self.read(req, arg.offset, arg.size),
            Op::Write { arg, data } => {
                assert_eq!(data.as_ptr().addr() % 4096, 0, "written data are page-aligned in memory");
                let (written, len) = (self.state().write(node, arg.offset as usize, data), data.len() as u32);
                match written {
                    Ok(()) => req.into_reply().write(len),
                    Err(e) => req.err(e),
                }
            }
            Op::Setlk { arg, wait } => match self.lock(&req, arg, wait).await {
                Ok(()) => req.into_reply().ok(),
                Err(e) => req.err(e),
            },
            _ => self.more(req),
        }
    }

    fn forget(self: &Rc<Self>, nodeid: u64, nlookup: u64) {
        let mut state = self.state();
        state.forgotten += nlookup;
        if let Some(node) = state.nodes.get_mut(&nodeid)
            && nodeid != fuse::abi::ROOT_ID
        {
            node.lookups = node.lookups.checked_sub(nlookup).expect("forgets never exceed lookups");
        }
    }
}
