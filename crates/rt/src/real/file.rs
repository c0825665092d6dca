//! Files: through the ring on real media, as plain calls on memory-backed file systems (which never block).
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use frames::Bulk;

use super::op::{Call, Op, submit};
use crate::{BlockingFile, DiskFile, LocalFuture, OpenMode};

const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Most vectors of one call (IOV_MAX).
const VECTORS_MAX: usize = 1024;
/// Pause before a full file system is tried again.
const SPACE_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

struct RealFile {
    fd: Arc<OwnedFd>,
    memory_backed: bool,
}

pub(super) fn open(path: &Path, mode: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
    let file = match open_private(path, mode.create, if mode.direct { libc::O_DIRECT } else { 0 }) {
        Err(e) if mode.direct && e.raw_os_error() == Some(libc::EINVAL) => open_private(path, mode.create, 0)?,
        other => other?,
    };
    let memory_backed = file_system(&file)?.f_type == TMPFS_MAGIC;
    Ok(Rc::new(RealFile { fd: Arc::new(file.into()), memory_backed }))
}

/// Opens a file for reading and writing. One that is made is its owner's alone, whatever the umask.
fn open_private(path: &Path, create: bool, flags: i32) -> io::Result<File> {
    let open = |new: bool| {
        OpenOptions::new().read(true).write(true).create_new(new).mode(0o600).custom_flags(flags).open(path)
    };
    match open(false) {
        Err(e) if create && e.kind() == io::ErrorKind::NotFound => match open(true) {
            // Another thread was quicker.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => open(false),
            Err(e) => Err(e),
            Ok(file) => file.set_permissions(Permissions::from_mode(0o600)).map(|()| file),
        },
        other => other,
    }
}

fn file_system(file: &impl AsRawFd) -> io::Result<libc::statfs> {
    // SAFETY: an all-zero statfs is valid, and the pointer is good for the call.
    unsafe {
        let mut s: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(file.as_raw_fd(), &raw mut s) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(s)
    }
}

pub(super) fn vectors(bulk: &Bulk, skip: usize) -> Vec<libc::iovec> {
    let mut skip = skip;
    let mut iov = Vec::with_capacity(bulk.segments().len());
    for s in bulk.segments() {
        let len = s.len as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        // SAFETY: the offset lies inside the run.
        let base = unsafe { s.run.as_ptr().add(s.offset as usize + skip) };
        iov.push(libc::iovec { iov_base: base.cast(), iov_len: len - skip });
        skip = 0;
        if iov.len() == VECTORS_MAX {
            break;
        }
    }
    iov
}

impl RealFile {
    async fn run<K: 'static>(
        fd: Arc<OwnedFd>,
        inline: bool,
        call: Call,
        iov: Vec<libc::iovec>,
        keep: K,
    ) -> (io::Result<usize>, K) {
        if inline {
            let mut op = Op::new(fd, call, iov, keep);
            let result = op.call(0);
            return (result, op.keep);
        }
        submit(&fd, call, iov, keep).await
    }
    fn simple(&self, call: Call) -> LocalFuture<io::Result<()>> {
        let (fd, inline) = (self.fd.clone(), self.memory_backed);
        Box::pin(async move {
            loop {
                match RealFile::run(fd.clone(), inline, call, Vec::new(), ()).await.0 {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    done => return done.map(|_| ()),
                }
            }
        })
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, into: Bulk) -> LocalFuture<(io::Result<usize>, Bulk)> {
        let (fd, inline) = (self.fd.clone(), self.memory_backed);
        Box::pin(async move {
            let (mut done, mut bulk) = (0, into);
            while done < bulk.len() {
                let iov = vectors(&bulk, done);
                let (result, back) =
                    RealFile::run(fd.clone(), inline, Call::ReadAt(offset + done as u64), iov, bulk).await;
                bulk = back;
                match result {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return (Err(e), bulk),
                }
            }
            (Ok(done), bulk)
        })
    }
    fn write_at(&self, offset: u64, from: Bulk) -> LocalFuture<io::Result<()>> {
        let (fd, inline) = (self.fd.clone(), self.memory_backed);
        Box::pin(async move {
            let (mut done, mut bulk) = (0, from);
            while done < bulk.len() {
                let iov = vectors(&bulk, done);
                let (result, back) =
                    RealFile::run(fd.clone(), inline, Call::WriteAt(offset + done as u64), iov, bulk).await;
                bulk = back;
                match result {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => done += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        })
    }
    fn sync(&self) -> LocalFuture<io::Result<()>> {
        self.simple(Call::Sync)
    }
    fn allocate(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.simple(Call::Allocate(offset, len))
    }
    fn punch(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.simple(Call::Punch(offset, len))
    }
    fn is_in_memory(&self) -> bool {
        self.memory_backed
    }
    fn len(&self) -> io::Result<u64> {
        Ok(File::from(self.fd.try_clone()?).metadata()?.len())
    }
    fn allocated(&self) -> io::Result<u64> {
        Ok(File::from(self.fd.try_clone()?).metadata()?.blocks() * 512)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        File::from(self.fd.try_clone()?).set_len(len)
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        let s = file_system(&self.fd)?;
        let unit = s.f_bsize as u64;
        Ok((s.f_bavail * unit, s.f_blocks * unit))
    }
    fn watch(&self) -> crate::IsOpen {
        // Operations that the kernel has not ended hold the descriptor.
        let fd = Arc::downgrade(&self.fd);
        Box::new(move || fd.strong_count() > 0)
    }
}

struct RealBlocking(File);

pub(super) fn open_blocking(path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
    Ok(Box::new(RealBlocking(open_private(path, create, 0)?)))
}

impl BlockingFile for RealBlocking {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_all_at(from, offset)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn forget_cached(&self) -> io::Result<()> {
        // What is dirty cannot be forgotten.
        self.0.sync_all()?;
        // SAFETY: plain system call on a descriptor that `self` keeps open.
        match unsafe { libc::posix_fadvise(self.0.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        };
        // SAFETY: plain system call on a descriptor that `self` keeps open.
        match unsafe { libc::fallocate(self.0.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, offset, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        let s = file_system(&self.0)?;
        let unit = s.f_bsize as u64;
        Ok((s.f_bavail * unit, s.f_blocks * unit))
    }
    fn wait_for_space(&self) -> bool {
        std::thread::sleep(SPACE_PAUSE);
        true
    }
}
