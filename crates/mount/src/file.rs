//! Open files: data, locks, space.
use std::rc::Rc;

use client::{Begins, Client, FlockMode, LockCall, Missed, NewFile, OpenFile};
use fuse::abi::{self, fopen};
use fuse::{Op, Replied, Request};
use rt::sync::oneshot;
use types::{Duration, Extent, Fid, FsError};
use wire::mdt::Cred;

use crate::killed::Caller;
use crate::{KernelCaching, StriaFs, convert, done, errno};

/// How an open file is served: reads and writes come to us as they are, in parallel.
const OPEN_FLAGS: u32 = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
/// Writes from which on a copy costs more than a look at whether one is needed.
const LARGE_BYTES: u64 = 64 << 10;
/// Bytes that one copy_file_range copies at most.
const COPY_BYTES_MAX: u64 = 1 << 30;
const O_DSYNC: u32 = libc::O_DSYNC as u32;
/// The kernel's "to the end of the file" in lock ranges.
const LOCK_END_MAX: u64 = i64::MAX as u64;

impl StriaFs {
    pub(crate) async fn data(self: &Rc<Self>, req: Request<'_>) -> Replied {
        match req.op() {
            Op::Read { arg } => {
                let Some(file) = self.client.meta().file(arg.fh) else { return req.err(libc::EBADF) };
                // A read that goes past the kernel's page cache comes with its lock owner.
                let paged = arg.read_flags & abi::READ_LOCKOWNER == 0;
                if !paged && self.is_one_too_many(&req).await {
                    return req.err(libc::EAGAIN);
                }
                let _under_way = (!paged).then(|| self.direct.begin());
                file.follow(arg.flags);
                let (offset, len) = (arg.offset, arg.size as usize);
                // A longer window of read-ahead than a READ (MADV_HUGEPAGE, a raised read_ahead_kb) comes in pieces as long as they can be.
                let more = arg.size >= self.full_read_bytes;
                self.client.offsets().note_call(req.pid(), file.fid(), false, offset, u64::from(arg.size));
                let mut caller = Caller::of(&req);
                let read = self.ask(&mut caller, |c| async move {
                    if paged && more {
                        c.data().read_pages_of_more(&file, offset, len).await
                    } else if paged {
                        c.data().read_pages(&file, offset, len).await
                    } else {
                        c.data().read(&file, offset, len).await
                    }
                });
                match read.await {
                    Ok(bulk) => req.into_reply().bulk(bulk),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Write { arg, data } => {
                let Some(file) = self.client.meta().file(arg.fh) else { return req.err(libc::EBADF) };
                if arg.write_flags & abi::WRITE_CACHE != 0 && types::planted!("stores-answered-early") {
                    let (client, data) = (self.client.clone(), data.to_vec());
                    client.rt().clone().spawn(async move {
                        client.rt().sleep(Duration::from_millis(1)).await;
                        let _ = client.data().write_mapped(&file, arg.offset, &data).await;
                    });
                    return req.into_reply().write(arg.size);
                }
                if arg.write_flags & abi::WRITE_CACHE != 0 {
                    // What is lost of it fsync and close tell every descriptor. A kernel that was told, too, would tell it once more, and
                    // not of the close that does: of which programs' locks wait.
                    let _told_later = self.client.data().write_mapped(&file, arg.offset, data).await;
                    return req.into_reply().write(arg.size);
                }
                if self.is_one_too_many(&req).await {
                    return req.err(libc::EAGAIN);
                }
                let _under_way = self.direct.begin();
                self.client.offsets().note_call(req.pid(), file.fid(), true, arg.offset, u64::from(arg.size));
                file.follow(arg.flags);
                let mut caller = Caller::of(&req);
                let mut result = self.write(&mut caller, &file, &req, &arg, data).await;
                // RWF_DSYNC and RWF_SYNC of pwritev2(2), and mounts with `sync`: not known when the file was opened.
                if result.is_ok() && arg.flags & O_DSYNC != 0 && file.flags() & O_DSYNC == 0 {
                    let synced = self.ask(&mut caller, |c| async move { c.data().sync_own(&file).await }).await;
                    result = result.and_then(|len| synced.map(|()| len));
                }
                match result {
                    Ok(len) => req.into_reply().write(len),
                    Err(e) => {
                        // A part of it may be written, and the kernel keeps what it read meanwhile. Not waited for: its caller may be gone.
                        let client = self.client.clone();
                        let missed = Missed::bytes(convert::fid(req.nodeid()));
                        self.client.rt().spawn(async move { client.meta().kernel_missed(missed).await });
                        req.err(errno(e))
                    }
                }
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    /// Whether a read or write past the page cache may be in the background, where there are too many.
    async fn is_one_too_many(&self, req: &Request<'_>) -> bool {
        !self.direct.has_room() && self.syscalls.is_asynchronous(self.client.rt(), req.pid()).await != Some(false)
    }

    async fn write(
        &self,
        caller: &mut Caller,
        file: &Rc<OpenFile>,
        req: &Request<'_>,
        arg: &abi::WriteIn,
        data: &[u8],
    ) -> Result<u32, FsError> {
        let (offset, len) = (arg.offset, data.len() as u64);
        let kills = arg.write_flags & abi::WRITE_KILL_SUIDGID != 0;
        if self.client.has_privileges(file, kills) {
            let (file, cred) = (file.clone(), self.cred(req).await);
            let missed = Missed::attributes(file.fid());
            self.carry_out(caller, missed, |c| async move { c.drop_privileges(&file, &cred, kills).await }).await?;
        }
        if len >= LARGE_BYTES && !self.client.data().writes_at_once(file, offset, len) {
            // A wait with nothing in hand; what then goes into the cache at once need not be copied before.
            let file = file.clone();
            let ready = self.ask(caller, |c| async move { c.data().ready_to_write(&file, offset, len).await });
            ready.await?;
        }
        if self.client.data().writes_at_once(file, offset, len) {
            // Without a copy, which it need not outlive: what it waits for all the same (a cut under way, an OST without grant) ends for
            // a caller that is killed.
            let written = write_now(&self.client, file, offset, data, None);
            return self.unless_killed(caller, written).await;
        }
        let appends = file.flags() & libc::O_APPEND as u32 != 0;
        let keep = if appends {
            self.pieces.keep((self.client.rt(), &self.syscalls), file.id(), req.pid(), offset, len).await
        } else {
            None
        };
        let (file, data) = (file.clone(), data.to_vec());
        self.carry_out(
            caller,
            Missed::bytes(file.fid()),
            |c| async move { write_now(&c, &file, offset, &data, keep).await },
        )
        .await
    }

    pub(crate) async fn opens(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let fid = convert::fid(req.nodeid());
        let (cred, mut caller) = (self.cred(&req).await, Caller::of(&req));
        match req.op() {
            Op::Open { arg } => {
                let opened = self.carry_out_or(
                    &mut caller,
                    Begins::InTurn,
                    if arg.flags & libc::O_TRUNC as u32 != 0 { Missed::bytes(fid) } else { Missed::default() },
                    |c| async move {
                        let file = c.open(&cred, fid, arg.flags).await?;
                        if file.writes() && file.inode().front().may_have_pages() {
                            // The kernel drops them when it has the answer. So writes find none that they would have to drop.
                            file.inode().front().drop_kernel_pages().await;
                        }
                        let kills = arg.open_flags & abi::OPEN_KILL_SUIDGID != 0;
                        let changes = kills || arg.flags & libc::O_TRUNC as u32 != 0;
                        if changes && let Err(e) = c.drop_privileges(&file, &cred, kills).await {
                            let _ = c.release(&file).await;
                            return Err(e);
                        }
                        Ok(file)
                    },
                    close,
                    || (),
                );
                match opened.await {
                    Ok(file) => {
                        let cached = self.may_cache(&file);
                        if cached {
                            self.note_paged(file.id());
                        }
                        if file.writes() {
                            self.writers.came(file.fid());
                        }
                        req.into_reply().open(file.id(), if cached { fopen::KEEP_CACHE } else { OPEN_FLAGS })
                    }
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Create { arg, name, .. } => {
                let name = name.to_vec();
                let created = self.create(&mut caller, cred, fid, name, &arg).await;
                self.reply_create(req, created)
            }
            Op::Tmpfile { arg, .. } => {
                // Union mounts and others within the kernel do not say it.
                let arg = abi::CreateIn { flags: arg.flags | libc::O_TMPFILE as u32, ..arg };
                let created = self.create(&mut caller, cred, fid, Vec::new(), &arg).await;
                self.reply_create(req, created)
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    /// Who closes may hold locks of its process until the answer, as execve(2) does: nothing is found out about it here.
    pub(crate) async fn closes(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let (fid, mut caller) = (convert::fid(req.nodeid()), Caller::of(&req));
        match req.op() {
            Op::Flush { arg } => {
                let Some(file) = self.client.meta().file(arg.fh) else { return req.into_reply().ok() };
                file.forget_lock_owner(arg.lock_owner);
                let unlock = |c: Rc<Client>| async move { c.flocks().drop_locks(fid, arg.lock_owner, false).await };
                let (always, nothing) = (Begins::Always, Missed::default());
                let unlocked = self.carry_out_or(&mut caller, always, nothing, unlock, |_, ()| (), || ()).await;
                done(req, file.flush_errors().and(unlocked))
            }
            Op::Release { arg } => {
                self.pieces.forget(arg.fh);
                self.forget_offer(arg.fh);
                let Some(file) = self.client.meta().file(arg.fh) else { return req.into_reply().ok() };
                if file.writes() {
                    // At once: an open may come behind it.
                    self.writers.went(file.fid());
                }
                for owner in file.take_lock_owners() {
                    let _ = self.client.flocks().drop_locks(fid, owner, false).await;
                }
                if arg.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0 {
                    let _ = self.client.flocks().drop_locks(fid, arg.lock_owner, true).await;
                }
                self.client.release_soon(&file).await;
                req.into_reply().ok()
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    async fn create(
        &self,
        caller: &mut Caller,
        cred: Cred,
        dir: Fid,
        name: Vec<u8>,
        arg: &abi::CreateIn,
    ) -> Result<(client::Entry, Rc<OpenFile>), FsError> {
        let new = new_file(arg);
        let create = |c: Rc<Client>| async move { c.create_open(&cred, dir, &name, new).await };
        let missed = if arg.flags & libc::O_TMPFILE as u32 == libc::O_TMPFILE as u32 {
            Missed::default()
        } else {
            Missed::names(dir)
        };
        self.carry_out_or(caller, Begins::InTurn, missed, create, |c, (_, file)| close(c, file), || ()).await
    }

    /// Whether the kernel may keep pages of what is read through this open.
    fn may_cache(&self, file: &OpenFile) -> bool {
        const O_DIRECT: u32 = 0o40000;
        let inode = file.inode();
        let again = inode.front().set_kernel_pages();
        if inode.front().is_mappable() {
            // Every read of a page would ask for locks that keep all others away.
            return false;
        }
        if self.writers.has(file.fid()) {
            return false;
        }
        if inode.is_written_elsewhere() {
            // The kernel would believe its size of before where a lock goes while it asks for the new one.
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
                file.inode().front().set_kernel_pages();
                if file.writes() {
                    self.writers.came(file.fid());
                }
                self.client.meta().remember(e.attr.fid);
                let e = convert::unbelieved(e);
                req.into_reply().create(&convert::entry(&e, self.names_cacheable), file.id(), OPEN_FLAGS)
            }
            Err(e) => req.err(errno(e)),
        }
    }

    pub(crate) async fn ranges(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let (fid, mut caller) = (convert::fid(req.nodeid()), Caller::of(&req));
        match req.op() {
            Op::Fsync { arg } => {
                let Some(file) = self.client.meta().file(arg.fh) else { return req.err(libc::EBADF) };
                let data_only = arg.fsync_flags & abi::FSYNC_FDATASYNC != 0;
                let synced = self.ask(&mut caller, |c| async move { c.data().fsync(&file, data_only).await });
                done(req, synced.await)
            }
            Op::Fallocate { arg } => {
                let Some(file) = self.client.meta().file(arg.fh) else { return req.err(libc::EBADF) };
                let cred = self.cred(&req).await;
                let allocated = self.carry_out(&mut caller, Missed::bytes(fid), |c| async move {
                    c.drop_privileges(&file, &cred, !cred.keeps_set_ids()).await?;
                    c.data().fallocate(&file, arg.mode, arg.offset, arg.length).await
                });
                done(req, allocated.await)
            }
            Op::Lseek { arg } => {
                let Some(file) = self.client.meta().file(arg.fh) else { return req.err(libc::EBADF) };
                let hole = match arg.whence as i32 {
                    libc::SEEK_DATA => false,
                    libc::SEEK_HOLE => true,
                    _ => return req.err(libc::EINVAL),
                };
                let found =
                    self.ask(&mut caller, |c| async move { c.data().seek(file.inode(), arg.offset, hole).await });
                match found.await {
                    Ok(at) => req.into_reply().lseek(at),
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::CopyFileRange { arg, .. } => {
                let (from, to) = (self.client.meta().file(arg.fh_in), self.client.meta().file(arg.fh_out));
                let (Some(from), Some(to)) = (from, to) else { return req.err(libc::EBADF) };
                let cred = self.cred(&req).await;
                let copied = self.carry_out(&mut caller, Missed::bytes(to.fid()), |c| async move {
                    c.drop_privileges(&to, &cred, !cred.keeps_set_ids()).await?;
                    let len = arg.len.min(COPY_BYTES_MAX);
                    let copied = c.data().copy_range(&from, arg.off_in, &to, arg.off_out, len).await;
                    c.kernel().attributes_changed(to.fid()).await;
                    copied
                });
                match copied.await {
                    Ok(n) => req.into_reply().copied(n),
                    Err(e) => req.err(errno(e)),
                }
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    pub(crate) async fn locks(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let (fid, mut caller) = (convert::fid(req.nodeid()), Caller::of(&req));
        match req.op() {
            Op::Getlk { arg } => {
                let call = lock_call(fid, &arg);
                match self.ask(&mut caller, |c| async move { c.flocks().test_lock(call).await }).await {
                    Ok(None) => req.into_reply().lk(&abi::FileLock { typ: libc::F_UNLCK as u32, ..arg.lk }),
                    Ok(Some(b)) => {
                        let end = if b.extent.end > LOCK_END_MAX { LOCK_END_MAX } else { b.extent.end - 1 };
                        let typ = if b.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as u32;
                        req.into_reply().lk(&abi::FileLock { start: b.extent.start, end, typ, pid: b.pid })
                    }
                    Err(e) => req.err(errno(e)),
                }
            }
            Op::Setlk { arg, wait } => {
                if arg.lk_flags & abi::LK_FLOCK == 0
                    && let Some(file) = self.client.meta().file(arg.fh)
                {
                    file.note_lock_owner(arg.owner);
                }
                let call = lock_call(fid, &arg);
                let unlocks = call.mode == FlockMode::Unlock;
                let lasting = if wait && !unlocks { req.lasting() } else { None };
                let waits = lasting.is_some();
                let (signal, signalled) = oneshot();
                let lock = |c: Rc<Client>| async move {
                    // Any signal ends the wait for a lock that another holds.
                    let withdrawn = async move {
                        if signalled.await.is_none() {
                            std::future::pending().await
                        }
                    };
                    c.flocks().set_lock(call, waits, withdrawn).await
                };
                let begins = if unlocks { Begins::Always } else { Begins::InTurn };
                // Others may hold it with the caller: a descriptor that was inherited, a process with several threads. What the owner had
                // stays, and with it what came now; it goes when they unlock or close.
                let is_new = !unlocks && !self.client.flocks().holds_some(&call);
                let undo = move |c: Rc<Client>, ()| {
                    if is_new {
                        unlock(&c, call);
                    }
                };
                let nothing = Missed::default();
                let locked = self.carry_out_or(&mut caller, begins, nothing, lock, undo, || signal.send(())).await;
                drop(lasting);
                // It would have waited, and has no place for that.
                let no_place = wait && !waits && locked == Err(FsError::WouldBlock);
                if no_place { req.err(libc::ENOLCK) } else { done(req, locked) }
            }
            _ => req.err(libc::ENOSYS),
        }
    }

    pub(crate) async fn statfs(self: &Rc<Self>, req: Request<'_>) -> Replied {
        match self.ask(&mut Caller::of(&req), |c| async move { c.statfs().await }).await {
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

async fn write_now(
    client: &Rc<Client>,
    file: &Rc<OpenFile>,
    offset: u64,
    data: &[u8],
    keep: Option<Duration>,
) -> Result<u32, FsError> {
    let written = client.data().write_part(file, offset, data, keep).await?;
    if written.at != offset {
        // An append landed elsewhere than this kernel believed the end to be.
        client.kernel().attributes_changed(file.fid()).await;
        file.inode().front().drop_kernel_pages().await;
    }
    Ok(u32::try_from(written.len).expect("no more than a request holds"))
}

/// Ends an open that the kernel never heard of.
fn close(client: Rc<Client>, file: Rc<OpenFile>) {
    let rt = client.rt().clone();
    rt.spawn(async move { client.release_soon(&file).await });
}

/// Gives back a lock that came when its process was gone.
fn unlock(client: &Rc<Client>, call: LockCall) {
    let me = client.clone();
    client.rt().spawn(async move {
        let call = LockCall { mode: FlockMode::Unlock, ..call };
        if let Err(e) = me.flocks().set_lock(call, false, std::future::pending()).await {
            tracing::warn!(file = %call.fid, "giving back the lock of a process that was killed: {e}");
        }
    });
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
