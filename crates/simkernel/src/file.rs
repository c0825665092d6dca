//! System calls on open files, with the locks and requests that Linux's FUSE takes and sends for them.
use std::cell::Cell;
use std::rc::Rc;

use fuse::abi::init::ASYNC_DIO;
use fuse::abi::{
    AttrOut, FallocateIn, FlushIn, FsyncIn, GETATTR_FH, GetattrIn, LseekIn, LseekOut, OpenIn, OpenOut, READ_LOCKOWNER,
    ReadIn, ReleaseIn, SetattrIn, WRITE_LOCKOWNER, WriteIn, WriteOut, fattr, fopen, opcode,
};
use zerocopy::IntoBytes;

use crate::conn::{Caller, parse};
use crate::inode::Inode;
use crate::kernel::Kernel;
use crate::lock::Guard;

/// To the end of any file.
pub(crate) const END: u64 = u64::MAX / 2;

/// An open file: descriptors and mappings refer to it.
pub struct File {
    /// What is open.
    pub inode: Rc<Inode>,
    pub(crate) fh: u64,
    pub(crate) flags: u32,
    pub(crate) open_flags: u32,
    refs: Cell<u32>,
    cached: Cell<bool>,
    error_seen: Cell<u64>,
}

/// A mapping of an open file.
pub struct Mapping {
    /// The open file.
    pub file: Rc<File>,
    /// Stores are shared and possible.
    pub writable: bool,
}

impl File {
    pub(crate) fn new(inode: &Rc<Inode>, out: &OpenOut, flags: u32) -> Rc<File> {
        inode.opens.set(inode.opens.get() + 1);
        let file = Rc::new(File {
            inode: inode.clone(),
            fh: out.fh,
            flags,
            open_flags: out.open_flags,
            refs: Cell::new(1),
            cached: Cell::new(false),
            error_seen: Cell::new(inode.failed.get().0),
        });
        if out.open_flags & fopen::DIRECT_IO == 0 {
            file.use_cache();
        }
        file
    }
    fn use_cache(&self) {
        if !self.cached.replace(true) {
            self.inode.cached_opens.set(self.inode.cached_opens.get() + 1);
        }
    }
    pub(crate) fn is_direct(&self) -> bool {
        self.open_flags & fopen::DIRECT_IO != 0 || self.flags & libc::O_DIRECT as u32 != 0
    }
    /// A failure of write-back that this file was not told of.
    fn error(&self) -> Result<(), i32> {
        let (count, errno) = self.inode.failed.get();
        if self.error_seen.replace(count) == count { Ok(()) } else { Err(errno) }
    }
}

impl Kernel {
    /// OPEN of an inode that a name led to.
    pub(crate) async fn open_inode(
        self: &Rc<Self>,
        caller: &Caller,
        inode: &Rc<Inode>,
        flags: i32,
    ) -> Result<Rc<File>, i32> {
        let sent = flags as u32 & !((libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY) as u32);
        let arg = OpenIn { flags: sent, open_flags: 0 };
        // The inode is in use from here on.
        inode.opens.set(inode.opens.get() + 1);
        let answer = self.conn.request(caller, opcode::OPEN, inode.nodeid, &[arg.as_bytes()]).await;
        inode.opens.set(inode.opens.get() - 1);
        let out: OpenOut = parse(&answer?)?;
        let file = File::new(inode, &out, sent);
        if flags & libc::O_TRUNC != 0 {
            inode.version.set(self.next_version());
            inode.size.set(0);
            inode.expire();
            self.truncate_pages(inode, 0).await;
        } else if out.open_flags & fopen::KEEP_CACHE == 0 {
            self.invalidate(inode, 0, END).await;
        }
        Ok(file)
    }

    /// close(2).
    ///
    /// # Errors
    /// What FLUSH answers, or what write-back met; the descriptor is closed all the same.
    pub async fn close(self: &Rc<Self>, caller: &Caller, file: &Rc<File>) -> Result<(), i32> {
        self.conn.pause().await;
        let inode = &file.inode;
        self.write_and_wait(inode, 0, END).await;
        {
            let _guard = inode.lock.exclusive().await;
            self.sync_writes(inode).await;
        }
        let arg = FlushIn { fh: file.fh, lock_owner: u64::from(caller.pid), ..FlushIn::default() };
        let flushed = self.conn.request(caller, opcode::FLUSH, inode.nodeid, &[arg.as_bytes()]).await;
        let error = file.error();
        self.put(file);
        flushed.map(drop).and(error)
    }

    /// One user of the open file less; the last one's end is told to the daemon.
    fn put(self: &Rc<Self>, file: &Rc<File>) {
        file.refs.set(file.refs.get() - 1);
        if file.refs.get() > 0 {
            return;
        }
        let inode = &file.inode;
        inode.writers.borrow_mut().retain(|w| !Rc::ptr_eq(w, file));
        inode.opens.set(inode.opens.get() - 1);
        if file.cached.get() {
            inode.cached_opens.set(inode.cached_opens.get() - 1);
        }
        let arg = ReleaseIn { fh: file.fh, flags: file.flags, ..ReleaseIn::default() };
        let keep = file.clone();
        let end = Box::new(move |_| drop(keep));
        self.conn.in_background(opcode::RELEASE, inode.nodeid, &[arg.as_bytes()], end);
    }

    /// read(2) at an offset.
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn read(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        len: u64,
    ) -> Result<Vec<u8>, i32> {
        self.conn.pause().await;
        if !file.is_direct() {
            return self.read_cached(caller, file, offset, len).await;
        }
        self.read_past_cache(caller, file, (offset, len), false).await
    }

    /// Reads in requests of the agreed size; `asynchronous` ones are sent in the background.
    pub(crate) async fn read_past_cache(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        (offset, len): (u64, u64),
        asynchronous: bool,
    ) -> Result<Vec<u8>, i32> {
        self.write_and_wait(&file.inode, offset, offset + len).await;
        let in_line = asynchronous && self.conn.agreed.get().flags & ASYNC_DIO != 0;
        let most = self.conn.agreed.get().max_write;
        let mut out = Vec::new();
        while (out.len() as u64) < len {
            let size = (len - out.len() as u64).min(most) as u32;
            let arg = ReadIn {
                fh: file.fh,
                offset: offset + out.len() as u64,
                size,
                read_flags: READ_LOCKOWNER,
                lock_owner: u64::from(caller.pid),
                flags: file.flags,
                ..ReadIn::default()
            };
            let node = file.inode.nodeid;
            let told = if in_line {
                self.conn.pause().await;
                self.conn.in_line(opcode::READ, node, &[arg.as_bytes()]).await?
            } else {
                self.conn.request(caller, opcode::READ, node, &[arg.as_bytes()]).await?
            };
            if told.len() as u64 > u64::from(size) {
                self.conn.fault(format!("READ of {size} bytes answered with {}", told.len()));
            }
            out.extend_from_slice(&told);
            if told.len() < size as usize {
                break;
            }
        }
        Ok(out)
    }

    pub(crate) async fn read_cached(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        len: u64,
    ) -> Result<Vec<u8>, i32> {
        let inode = &file.inode;
        if offset + len > inode.size.get() {
            self.getattr(caller, inode, Some(file)).await?;
        }
        let mut out = Vec::new();
        while (out.len() as u64) < len {
            let at = offset + out.len() as u64;
            let take = (len - out.len() as u64).min(inode.size.get().saturating_sub(at)).min(4096 - at % 4096);
            if take == 0 {
                break;
            }
            let mut part = vec![0; take as usize];
            match self.load(caller, file, at, &mut part).await {
                Ok(()) => {
                    // The size that counts is the one behind the read, which may have lowered it.
                    part.truncate(usize::try_from(inode.size.get().saturating_sub(at)).unwrap_or(usize::MAX));
                    out.extend_from_slice(&part);
                    if (part.len() as u64) < take {
                        break;
                    }
                }
                Err(crate::pages::Fault::Behind) => break,
                Err(crate::pages::Fault::Io(e)) => return Err(e),
            }
        }
        Ok(out)
    }

    /// The inode's lock for a write past the page cache: shared where writes may go in parallel.
    pub(crate) async fn write_lock(&self, file: &File, offset: u64, len: u64) -> Guard {
        let inode = &file.inode;
        let alone = || {
            file.open_flags & fopen::PARALLEL_DIRECT_WRITES == 0
                || file.flags & libc::O_APPEND as u32 != 0
                || offset + len > inode.size.get()
                || inode.cached_opens.get() > 0
        };
        if !alone() {
            let shared = inode.lock.shared().await;
            if !alone() {
                return shared;
            }
        }
        inode.lock.exclusive().await
    }

    /// write(2) at an offset, or at the end for O_APPEND.
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn write(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        data: &[u8],
    ) -> Result<u64, i32> {
        self.conn.pause().await;
        assert!(file.is_direct(), "files are not opened for writing through the page cache");
        let inode = &file.inode;
        let len = data.len() as u64;
        let _guard = self.write_lock(file, offset, len).await;
        let offset = if file.flags & libc::O_APPEND as u32 != 0 { inode.size.get() } else { offset };
        self.write_and_wait(inode, offset, offset + len).await;
        self.invalidate(inode, offset, offset + len).await;
        let result = self.write_past_cache(caller, file, offset, data).await;
        if result.is_ok_and(|done| done > 0) {
            // Pages that were read while it was under way may be older.
            self.invalidate(inode, offset, offset + len).await;
        }
        // Whatever became of it, who looks asks.
        inode.version.set(self.next_version());
        inode.expire();
        let done = result?;
        inode.size.set(inode.size.get().max(offset + done));
        Ok(done)
    }

    /// Sends what is written, in requests of the agreed size, one after the other. Of several the first that fails ends it; what was written
    /// before is told.
    async fn write_past_cache(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        offset: u64,
        data: &[u8],
    ) -> Result<u64, i32> {
        let most = self.conn.agreed.get().max_write as usize;
        let mut done = 0;
        for part in data.chunks(most.max(1)) {
            let arg = write_in(caller, file, offset + done, part);
            let parts = [arg.as_bytes(), part];
            let answer = self.conn.request(caller, opcode::WRITE, file.inode.nodeid, &parts).await;
            match answer.and_then(|a| parse::<WriteOut>(&a)) {
                Ok(out) => {
                    if out.size as usize > part.len() {
                        self.conn.fault(format!("WRITE of {} bytes answered with {}", part.len(), out.size));
                    }
                    done += u64::from(out.size);
                    if (out.size as usize) < part.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// mmap(2), shared.
    ///
    /// # Errors
    /// None so far.
    pub async fn map(self: &Rc<Self>, file: &Rc<File>, writable: bool) -> Result<Mapping, i32> {
        self.conn.pause().await;
        if file.open_flags & fopen::DIRECT_IO != 0 {
            self.invalidate(&file.inode, 0, END).await;
            file.use_cache();
        }
        if writable {
            let mut writers = file.inode.writers.borrow_mut();
            if !writers.iter().any(|w| Rc::ptr_eq(w, file)) {
                writers.push(file.clone());
            }
        }
        file.refs.set(file.refs.get() + 1);
        Ok(Mapping { file: file.clone(), writable })
    }

    /// munmap(2): what was stored is written back and waited for.
    pub async fn unmap(self: &Rc<Self>, mapping: Mapping) {
        self.conn.pause().await;
        self.write_and_wait(&mapping.file.inode, 0, END).await;
        self.put(&mapping.file);
    }

    /// fsync(2), and msync(2) with MS_SYNC of a mapping of the file.
    ///
    /// # Errors
    /// What FSYNC answers, or what write-back met.
    pub async fn fsync(self: &Rc<Self>, caller: &Caller, file: &Rc<File>) -> Result<(), i32> {
        self.conn.pause().await;
        let inode = &file.inode;
        let _guard = inode.lock.exclusive().await;
        self.write_and_wait(inode, 0, END).await;
        self.sync_writes(inode).await;
        file.error()?;
        let arg = FsyncIn { fh: file.fh, ..FsyncIn::default() };
        self.conn.request(caller, opcode::FSYNC, inode.nodeid, &[arg.as_bytes()]).await.map(drop)
    }

    /// ftruncate(2), or truncate(2) without an open file.
    ///
    /// # Errors
    /// What SETATTR answers.
    pub async fn truncate(
        self: &Rc<Self>,
        caller: &Caller,
        inode: &Rc<Inode>,
        file: Option<&File>,
        size: u64,
    ) -> Result<(), i32> {
        self.conn.pause().await;
        let _guard = inode.lock.exclusive().await;
        self.set_size(caller, inode, file, size).await
    }

    /// Sets the size, with the inode's lock held. Pages are dropped if this kernel believed in another one.
    pub(crate) async fn set_size(
        self: &Rc<Self>,
        caller: &Caller,
        inode: &Rc<Inode>,
        file: Option<&File>,
        size: u64,
    ) -> Result<(), i32> {
        inode.stop_writes().await;
        inode.unstable.set(true);
        let mut arg = SetattrIn { valid: fattr::SIZE, size, ..SetattrIn::default() };
        if let Some(file) = file {
            arg.valid |= fattr::FH | fattr::LOCKOWNER;
            (arg.fh, arg.lock_owner) = (file.fh, u64::from(caller.pid));
        }
        let answer = self.conn.request(caller, opcode::SETATTR, inode.nodeid, &[arg.as_bytes()]).await;
        let out = answer.and_then(|a| parse::<AttrOut>(&a));
        let old = inode.size.get();
        if let Ok(out) = &out {
            self.take_attributes(inode, &out.attr, (out.attr_valid, out.attr_valid_nsec));
            inode.size.set(out.attr.size);
        } else if matches!(out, Err(libc::EINTR)) {
            inode.expire();
        }
        inode.nowrite.set(false);
        self.send_queued(inode);
        if let Ok(out) = &out
            && old != out.attr.size
        {
            self.truncate_pages(inode, out.attr.size).await;
            self.invalidate(inode, 0, END).await;
        }
        inode.unstable.set(false);
        out.map(drop)
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// What FALLOCATE answers.
    pub async fn fallocate(
        self: &Rc<Self>,
        caller: &Caller,
        file: &Rc<File>,
        mode: i32,
        offset: u64,
        length: u64,
    ) -> Result<(), i32> {
        self.conn.pause().await;
        let inode = &file.inode;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let clears = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        let _guard = inode.lock.exclusive().await;
        if clears {
            self.write_and_wait(inode, offset, offset + length).await;
            self.sync_writes(inode).await;
        }
        inode.unstable.set(inode.unstable.get() || !keeps_size);
        let arg = FallocateIn { fh: file.fh, offset, length, mode: mode as u32, padding: 0 };
        let answer = self.conn.request(caller, opcode::FALLOCATE, inode.nodeid, &[arg.as_bytes()]).await;
        if answer.is_ok() {
            if !keeps_size {
                inode.version.set(self.next_version());
                inode.size.set(inode.size.get().max(offset + length));
            }
            if clears {
                self.drop_range(inode, offset, offset + length).await;
            }
            inode.expire();
        }
        if !keeps_size {
            inode.unstable.set(false);
        }
        answer.map(drop)
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE. No page is written back for it.
    ///
    /// # Errors
    /// What LSEEK answers.
    pub async fn seek(self: &Rc<Self>, caller: &Caller, file: &Rc<File>, offset: u64, hole: bool) -> Result<u64, i32> {
        self.conn.pause().await;
        let _guard = file.inode.lock.exclusive().await;
        let whence = if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA } as u32;
        let arg = LseekIn { fh: file.fh, offset, whence, ..LseekIn::default() };
        let answer = self.conn.request(caller, opcode::LSEEK, file.inode.nodeid, &[arg.as_bytes()]).await?;
        parse::<LseekOut>(&answer).map(|out| out.offset)
    }

    /// Makes the attributes good: asks for them unless what is known may be believed.
    pub(crate) async fn getattr(
        self: &Rc<Self>,
        caller: &Caller,
        inode: &Rc<Inode>,
        file: Option<&File>,
    ) -> Result<(), i32> {
        if self.rt.now() < inode.valid_until.get() {
            return Ok(());
        }
        let seen = self.version.get();
        let mut arg = GetattrIn::default();
        if let Some(file) = file {
            (arg.getattr_flags, arg.fh) = (GETATTR_FH, file.fh);
        }
        let answer = self.conn.request(caller, opcode::GETATTR, inode.nodeid, &[arg.as_bytes()]).await?;
        let out: AttrOut = parse(&answer)?;
        self.believe(inode, &out.attr, (out.attr_valid, out.attr_valid_nsec), seen).await;
        Ok(())
    }

    /// fstat(2): the size and the number of names.
    ///
    /// # Errors
    /// What GETATTR answers.
    pub async fn fstat(self: &Rc<Self>, caller: &Caller, file: &Rc<File>) -> Result<(u64, u32), i32> {
        self.conn.pause().await;
        self.getattr(caller, &file.inode, Some(file)).await?;
        Ok((file.inode.size.get(), file.inode.attr.get().nlink))
    }
}

pub(crate) fn write_in(caller: &Caller, file: &File, offset: u64, part: &[u8]) -> WriteIn {
    WriteIn {
        fh: file.fh,
        offset,
        size: part.len() as u32,
        write_flags: WRITE_LOCKOWNER,
        lock_owner: u64::from(caller.pid),
        flags: file.flags,
        ..WriteIn::default()
    }
}
