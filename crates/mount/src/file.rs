//! Open files: data, locks, space.
use std::io::IoSlice;
use std::rc::Rc;

use client::{FlockMode, LockCall, NewFile, OpenFile};
use fuse::abi::{self, fopen};
use fuse::{Op, Replied, Request};
use types::{Extent, Fid, FsError};
use wire::mdt::{AttrFlags, Cred, SetBits, SetattrRequest};

use crate::{KernelCaching, StriaFs, convert, errno};

/// How an open file is served: reads and writes come to us as they are, in parallel.
const OPEN_FLAGS: u32 = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
/// The kernel's "to the end of the file" in lock ranges.
const LOCK_END_MAX: u64 = i64::MAX as u64;

impl StriaFs {
    pub(crate) async fn data(self: &Rc<Self>, req: Request<'_>) -> Replied {
        match req.op() {
            Op::Read { arg } => {
                let Some(file) = self.client.file(arg.fh) else { return req.err(libc::EBADF) };
                // A read that goes past the kernel's page cache comes with its lock owner.
                let paged = arg.read_flags & abi::READ_LOCKOWNER == 0;
                let (offset, len) = (arg.offset, arg.size as usize);
                self.client.note_call(req.pid(), &file, false, offset, u64::from(arg.size));
                let result = if paged {
                    self.client.read_pages(&file, offset, len).await
                } else {
                    self.client.read(&file, offset, len).await
                };
                match result {
                    Ok(bulk) => {
                        let slices: Vec<IoSlice<'_>> = bulk.slices().map(IoSlice::new).collect();
                        req.into_reply().slices(&slices)
                    }
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Write { arg, data } => {
                let Some(file) = self.client.file(arg.fh) else { return req.err(libc::EBADF) };
                if arg.write_flags & abi::WRITE_CACHE != 0 {
                    return match self.client.write_mapped(&file, arg.offset, data).await {
                        Ok(()) => req.into_reply().write(arg.size),
                        Err(e) => req.err(errno(e)),
                    };
                }
                self.client.note_call(req.pid(), &file, true, arg.offset, u64::from(arg.size));
                let result = self.write(&file, &arg, data).await;
                match result {
                    Ok(()) => req.into_reply().write(arg.size),
                    Err(e) => req.err(errno(e)),
                }
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    async fn write(&self, file: &Rc<OpenFile>, arg: &abi::WriteIn, data: &[u8]) -> Result<(), FsError> {
        if arg.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            let request = SetattrRequest { valid: SetBits::KILL_PRIV, ..SetattrRequest::default() };
            self.client.setattr(file.cred(), file.inode(), request, Some(file)).await?;
        }
        if !file.is_dirty() && file.inode().attr().flags & AttrFlags::HAS_XATTRS != 0 {
            // A program that was changed has no capabilities any more.
            let root = Cred { caps: 3, ..Cred::default() };
            match self.client.setxattr(&root, file.fid(), b"security.capability", None, 0, false).await {
                Ok(()) | Err(FsError::NoData) => {}
                Err(e) => return Err(e),
            }
        }
        let at = self.client.write(file, arg.offset, data).await?;
        if at != arg.offset {
            // An append landed elsewhere than this kernel believed the end to be.
            self.client.kernel_attributes_changed(file.fid());
            file.inode().drop_kernel_pages().await;
        }
        Ok(())
    }

    pub(crate) async fn opens(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let cred = self.cred(&req);
        match req.op() {
            Op::Open { arg } => match self.client.open(&cred, fid, arg.flags).await {
                Ok(file) => {
                    let cached = self.may_cache(&file);
                    if arg.open_flags & abi::OPEN_KILL_SUIDGID != 0 {
                        let request = SetattrRequest { valid: SetBits::KILL_PRIV, ..SetattrRequest::default() };
                        if let Err(e) = self.client.setattr(&cred, file.inode(), request, Some(&file)).await {
                            let _ = self.client.release(&file).await;
                            return req.err(errno(e));
                        }
                    }
                    req.into_reply().open(file.id(), if cached { fopen::KEEP_CACHE } else { OPEN_FLAGS })
                }
                Err(e) => req.err(errno(e)),
            },
            Op::Create { arg, name, .. } => {
                let result = self.client.create_open(&cred, fid, name, new_file(&arg)).await;
                self.reply_create(req, result)
            }
            Op::Tmpfile { arg, .. } => {
                let result = self.client.create_open(&cred, fid, b"", new_file(&arg)).await;
                self.reply_create(req, result)
            }
            Op::Flush { arg } => {
                let Some(file) = self.client.file(arg.fh) else { return req.into_reply().ok() };
                file.forget_lock_owner(arg.lock_owner);
                let unlocked = self.client.drop_locks(fid, arg.lock_owner, false).await;
                match self.client.flush_errors(&file).and(unlocked) {
                    Ok(()) => req.into_reply().ok(),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Release { arg } => {
                let Some(file) = self.client.file(arg.fh) else { return req.into_reply().ok() };
                for owner in file.take_lock_owners() {
                    let _ = self.client.drop_locks(fid, owner, false).await;
                }
                if arg.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0 {
                    let _ = self.client.drop_locks(fid, arg.lock_owner, true).await;
                }
                self.client.release_soon(&file).await;
                req.into_reply().ok()
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    /// Whether the kernel may keep pages of what is read through this open.
    fn may_cache(&self, file: &OpenFile) -> bool {
        const O_DIRECT: u32 = 0o40000;
        let inode = file.inode();
        let again = inode.set_kernel_pages();
        if inode.is_mappable() {
            // Every read of a page would ask for locks that keep all others away.
            return false;
        }
        let wanted = match self.kernel_cache {
            KernelCaching::Never => false,
            KernelCaching::Reopened => again,
            KernelCaching::Fitting => again || inode.attr().size.max(inode.known_size()) <= self.fitting_bytes,
            KernelCaching::Always => true,
        };
        wanted && !file.writes() && file.flags() & O_DIRECT == 0
    }

    fn reply_create(&self, req: Request<'_>, result: Result<(client::Entry, Rc<OpenFile>), FsError>) -> Replied {
        match result {
            Ok((e, file)) => {
                file.inode().set_kernel_pages();
                self.client.remember(e.attr.fid);
                req.into_reply().create(&convert::entry(&e, self.names_cacheable), file.id(), OPEN_FLAGS)
            }
            Err(e) => req.err(errno(e)),
        }
    }

    pub(crate) async fn ranges(self: &Rc<Self>, req: Request<'_>) -> Replied {
        match req.op() {
            Op::Fsync { arg } => {
                let Some(file) = self.client.file(arg.fh) else { return req.err(libc::EBADF) };
                match self.client.fsync(&file, arg.fsync_flags & abi::FSYNC_FDATASYNC != 0).await {
                    Ok(()) => req.into_reply().ok(),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Fallocate { arg } => {
                let Some(file) = self.client.file(arg.fh) else { return req.err(libc::EBADF) };
                match self.client.fallocate(&file, arg.mode, arg.offset, arg.length).await {
                    Ok(()) => req.into_reply().ok(),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Lseek { arg } => {
                let Some(file) = self.client.file(arg.fh) else { return req.err(libc::EBADF) };
                let hole = match arg.whence as i32 {
                    libc::SEEK_DATA => false,
                    libc::SEEK_HOLE => true,
                    _ => return req.err(libc::EINVAL),
                };
                match self.client.seek(file.inode(), arg.offset, hole).await {
                    Ok(at) => req.into_reply().lseek(at),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::CopyFileRange { arg, .. } => {
                let (from, to) = (self.client.file(arg.fh_in), self.client.file(arg.fh_out));
                let (Some(from), Some(to)) = (from, to) else { return req.err(libc::EBADF) };
                match self.client.copy_range(&from, arg.off_in, &to, arg.off_out, arg.len.min(1 << 30)).await {
                    Ok(n) => {
                        self.client.kernel_attributes_changed(to.fid());
                        req.into_reply().copied(n)
                    }
                    Err(e) => req.err(errno(e)),
                }
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    pub(crate) async fn locks(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        match req.op() {
            Op::Getlk { arg } => match self.client.test_lock(lock_call(fid, &arg)).await {
                Ok(None) => req.into_reply().lk(&abi::FileLock { typ: libc::F_UNLCK as u32, ..arg.lk }),
                Ok(Some(b)) => {
                    let end = if b.extent.end > LOCK_END_MAX { LOCK_END_MAX } else { b.extent.end - 1 };
                    let typ = if b.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as u32;
                    req.into_reply().lk(&abi::FileLock { start: b.extent.start, end, typ, pid: b.pid })
                }
                Err(e) => req.err(errno(e)),
            },
            Op::Setlk { arg, wait } => {
                if arg.lk_flags & abi::LK_FLOCK == 0
                    && let Some(file) = self.client.file(arg.fh)
                {
                    file.note_lock_owner(arg.owner);
                }
                let signal = req.interrupted();
                let result = self.client.set_lock(lock_call(fid, &arg), wait, async move {
                    signal.await;
                });
                match result.await {
                    Ok(()) => req.into_reply().ok(),
                    Err(e) => req.err(errno(e)),
                }
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    pub(crate) async fn statfs(self: &Rc<Self>, req: Request<'_>) -> Replied {
        match self.client.statfs().await {
            Ok(s) => {
                const UNIT: u64 = 4096;
                req.into_reply().statfs(&abi::Kstatfs {
                    blocks: s.total / UNIT,
                    bfree: s.free / UNIT,
                    bavail: s.available / UNIT,
                    files: s.files + s.files_free,
                    ffree: s.files_free,
                    bsize: UNIT as u32,
                    namelen: client::NAME_BYTES_MAX as u32,
                    frsize: UNIT as u32,
                    ..abi::Kstatfs::default()
                })
            }
            Err(e) => req.err(errno(e)),
        }
    }
}

fn new_file(arg: &abi::CreateIn) -> NewFile<'static> {
    NewFile { flags: arg.flags, mode: arg.mode, umask: arg.umask, layout: &[] }
}

fn lock_call(fid: Fid, arg: &abi::LkIn) -> LockCall {
    let end = if arg.lk.end >= LOCK_END_MAX { u64::MAX } else { arg.lk.end + 1 };
    let mode = match arg.lk.typ as i32 {
        libc::F_RDLCK => FlockMode::Shared,
        libc::F_WRLCK => FlockMode::Exclusive,
        _ => FlockMode::Unlock,
    };
    let whole = arg.lk_flags & abi::LK_FLOCK != 0;
    let extent = if whole { Extent::ALL } else { Extent::new(arg.lk.start.min(end), end) };
    LockCall { fid, whole, mode, extent, owner: arg.owner, pid: arg.lk.pid }
}
