//! System calls as the cases make them: each returns the errno with the call, its arguments and the place in the case
//! that made it. Also the checks, and children with another identity. No case lives here.
use std::ffi::{CString, OsStr};
use std::fmt::Debug;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::Location;
use std::path::{Path, PathBuf};

// Constants of the cases.
#[rustfmt::skip]
#[doc(no_inline)]
pub use libc::{
    AT_SYMLINK_FOLLOW, DT_DIR, DT_FIFO, DT_LNK, DT_REG, DT_SOCK, DT_UNKNOWN, EACCES, EBADF, EBUSY, EEXIST, EFAULT,
    EFBIG, EINTR, EINVAL, EISDIR, ELOOP, EMFILE, ENAMETOOLONG, ENODATA, ENODEV, ENOENT, ENOTDIR, ENOTEMPTY, ENOTTY,
    ENXIO, EOPNOTSUPP, EOVERFLOW, EPERM, ERANGE, ESPIPE, ETXTBSY, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_ZERO_RANGE, F_GETFL, F_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETFL, F_SETLK, F_SETLKW, F_UNLCK,
    F_WRLCK, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, MAP_PRIVATE, MAP_SHARED, O_ACCMODE, O_APPEND, O_CREAT, O_DIRECT,
    O_DIRECTORY, O_DSYNC, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR, O_SYNC, O_TMPFILE, O_TRUNC,
    O_WRONLY, PROT_READ, PROT_WRITE, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, RLIMIT_NOFILE, SEEK_CUR, SEEK_DATA, SEEK_END,
    SEEK_HOLE, SEEK_SET, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, UTIME_NOW,
    UTIME_OMIT, XATTR_CREATE, XATTR_REPLACE, c_int, iovec, timespec, rlimit,
};
// End of constants.
/// What a case returns: the reason it failed, or that it was skipped (begins with [`SKIP`]).
pub type R = Result<(), String>;

/// Begins the reason of a case that could not run here.
pub const SKIP: &str = "skip: ";

/// A system call that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its errno.
    pub errno: i32,
    what: String,
    at: &'static Location<'static>,
}

impl Failed {
    #[track_caller]
    pub(crate) fn now(call: &str, args: &[String]) -> Failed {
        let errno = last_errno();
        Failed::with(errno, call, args)
    }
    #[track_caller]
    fn with(errno: i32, call: &str, args: &[String]) -> Failed {
        let args: Vec<String> = args.iter().map(|a| a.chars().take(80).collect()).collect();
        Failed { errno, what: format!("{call}({})", args.join(", ")), at: Location::caller() }
    }
}

impl From<Failed> for String {
    fn from(f: Failed) -> String {
        format!("{}: {} = {}", place(f.at), f.what, errno_name(f.errno))
    }
}

fn place(at: &Location<'_>) -> String {
    format!("{}:{}", at.file().rsplit('/').next().unwrap_or(""), at.line())
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The symbolic name of an errno.
#[must_use]
pub fn errno_name(errno: i32) -> String {
    macro_rules! names { ($($n:ident)*) => { match errno { $(libc::$n => stringify!($n).into(),)* n => format!("errno {n}") } } }
    names!(EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR
        EINVAL EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS
        ENOTEMPTY ELOOP ENODATA EOVERFLOW EOPNOTSUPP ESTALE EDQUOT ETIMEDOUT ENOTCONN)
}

fn c(p: &Path) -> CString {
    CString::new(p.as_os_str().as_bytes()).unwrap_or_default()
}

macro_rules! call {
    ($($(#[$m:meta])* $name:ident ( $($a:ident : $t:ty),* ) = $e:expr;)*) => {$(
        $(#[$m])*
        /// # Errors
        /// The errno of the call.
        #[track_caller]
        pub fn $name($($a: $t),*) -> Result<i64, Failed> {
            // SAFETY: pointers are to values that live through the call, with the lengths given.
            #[allow(clippy::unnecessary_cast, reason = "the C types differ between calls")]
            let ret = unsafe { $e } as i64;
            if ret < 0 { Err(Failed::now(stringify!($name), &[$(format!("{:?}", $a)),*])) } else { Ok(ret) }
        }
    )*};
}

/// The `AT_FDCWD` of the calls that take a directory.
const CWD: i32 = libc::AT_FDCWD;

call! {
    /// write(2).
    write(fd: &OwnedFd, data: &[u8]) = libc::write(fd.as_raw_fd(), data.as_ptr().cast(), data.len());
    /// pwrite(2).
    pwrite(fd: &OwnedFd, data: &[u8], off: i64) = libc::pwrite(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), off);
    /// ftruncate(2).
    ftruncate(fd: &OwnedFd, len: i64) = libc::ftruncate(fd.as_raw_fd(), len);
    /// truncate(2).
    truncate(p: &Path, len: i64) = libc::truncate(c(p).as_ptr(), len);
    /// lseek(2).
    lseek(fd: &OwnedFd, off: i64, whence: i32) = libc::lseek(fd.as_raw_fd(), off, whence);
    /// fallocate(2).
    fallocate(fd: &OwnedFd, mode: i32, off: i64, len: i64) = libc::fallocate(fd.as_raw_fd(), mode, off, len);
    /// fsync(2).
    fsync(fd: &OwnedFd) = libc::fsync(fd.as_raw_fd());
    /// fdatasync(2).
    fdatasync(fd: &OwnedFd) = libc::fdatasync(fd.as_raw_fd());
    /// syncfs(2).
    syncfs(fd: &OwnedFd) = libc::syncfs(fd.as_raw_fd());
    /// sync_file_range(2).
    sync_file_range(fd: &OwnedFd, off: i64, len: i64, flags: u32) = libc::sync_file_range(fd.as_raw_fd(), off, len, flags);
    /// posix_fadvise(2), its errno made a failure.
    fadvise(fd: &OwnedFd, off: i64, len: i64, advice: i32) = libc::syscall(libc::SYS_fadvise64, fd.as_raw_fd(), off, len, advice);
    /// rename(2).
    rename(a: &Path, b: &Path) = libc::rename(c(a).as_ptr(), c(b).as_ptr());
    /// renameat2(2) of two paths.
    rename2(a: &Path, b: &Path, flags: u32) = libc::syscall(libc::SYS_renameat2, CWD, c(a).as_ptr(), CWD, c(b).as_ptr(), flags);
    /// link(2).
    link(a: &Path, b: &Path) = libc::link(c(a).as_ptr(), c(b).as_ptr());
    /// linkat(2) of two paths.
    linkat(a: &Path, b: &Path, flags: i32) = libc::linkat(CWD, c(a).as_ptr(), CWD, c(b).as_ptr(), flags);
    /// symlink(2): `at` points to `to`.
    symlink(to: &Path, at: &Path) = libc::symlink(c(to).as_ptr(), c(at).as_ptr());
    /// unlink(2).
    unlink(p: &Path) = libc::unlink(c(p).as_ptr());
    /// unlinkat(2) of a path.
    unlinkat(p: &Path, flags: i32) = libc::unlinkat(CWD, c(p).as_ptr(), flags);
    /// mkdir(2).
    mkdir(p: &Path, mode: u32) = libc::mkdir(c(p).as_ptr(), mode);
    /// rmdir(2).
    rmdir(p: &Path) = libc::rmdir(c(p).as_ptr());
    /// mknod(2).
    mknod(p: &Path, mode: u32, dev: u64) = libc::mknod(c(p).as_ptr(), mode, dev);
    /// chmod(2).
    chmod(p: &Path, mode: u32) = libc::chmod(c(p).as_ptr(), mode);
    /// fchmod(2).
    fchmod(fd: &OwnedFd, mode: u32) = libc::fchmod(fd.as_raw_fd(), mode);
    /// chown(2); `u32::MAX` leaves an id.
    chown(p: &Path, uid: u32, gid: u32) = libc::chown(c(p).as_ptr(), uid, gid);
    /// lchown(2).
    lchown(p: &Path, uid: u32, gid: u32) = libc::lchown(c(p).as_ptr(), uid, gid);
    /// fchown(2).
    fchown(fd: &OwnedFd, uid: u32, gid: u32) = libc::fchown(fd.as_raw_fd(), uid, gid);
    /// access(2).
    access(p: &Path, how: i32) = libc::access(c(p).as_ptr(), how);
    /// flock(2).
    flock(fd: &OwnedFd, op: i32) = libc::flock(fd.as_raw_fd(), op);
    /// setxattr(2).
    setxattr(p: &Path, name: &str, value: &[u8], flags: i32) = libc::setxattr(c(p).as_ptr(), c(Path::new(name)).as_ptr(), value.as_ptr().cast(), value.len(), flags);
    /// lsetxattr(2).
    lsetxattr(p: &Path, name: &str, value: &[u8], flags: i32) = libc::lsetxattr(c(p).as_ptr(), c(Path::new(name)).as_ptr(), value.as_ptr().cast(), value.len(), flags);
    /// fsetxattr(2).
    fsetxattr(fd: &OwnedFd, name: &str, value: &[u8], flags: i32) = libc::fsetxattr(fd.as_raw_fd(), c(Path::new(name)).as_ptr(), value.as_ptr().cast(), value.len(), flags);
    /// getxattr(2) into a buffer; an empty one asks for the length.
    getxattr_into(p: &Path, name: &str, buf: &mut [u8]) = libc::getxattr(c(p).as_ptr(), c(Path::new(name)).as_ptr(), if buf.is_empty() { std::ptr::null_mut() } else { buf.as_mut_ptr().cast() }, buf.len());
    /// listxattr(2) into a buffer; an empty one asks for the length.
    listxattr_into(p: &Path, buf: &mut [u8]) = libc::listxattr(c(p).as_ptr(), if buf.is_empty() { std::ptr::null_mut() } else { buf.as_mut_ptr().cast() }, buf.len());
    /// removexattr(2).
    removexattr(p: &Path, name: &str) = libc::removexattr(c(p).as_ptr(), c(Path::new(name)).as_ptr());
    /// utimensat(2) without flags.
    utimens(p: &Path, times: &[libc::timespec; 2], flags: i32) = libc::utimensat(CWD, c(p).as_ptr(), times.as_ptr(), flags);
    /// futimens(2).
    futimens(fd: &OwnedFd, times: &[libc::timespec; 2]) = libc::futimens(fd.as_raw_fd(), times.as_ptr());
    /// fcntl(2) with an integer.
    fcntl(fd: &OwnedFd, op: i32, arg: i32) = libc::fcntl(fd.as_raw_fd(), op, arg);
    /// fcntl(2) with a lock.
    fcntl_lock(fd: &OwnedFd, op: i32, lock: &mut libc::flock) = libc::fcntl(fd.as_raw_fd(), op, std::ptr::from_mut(lock));
    /// read(2) into a buffer.
    read_into(fd: &OwnedFd, buf: &mut [u8]) = libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len());
    /// pread(2) into a buffer.
    pread_into(fd: &OwnedFd, buf: &mut [u8], off: i64) = libc::pread(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), off);
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from(self.clone()))
    }
}

/// open(2), with O_CLOEXEC.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn open(p: &Path, flags: i32, mode: u32) -> Result<OwnedFd, Failed> {
    // SAFETY: the path lives through the call.
    let fd = unsafe { libc::open(c(p).as_ptr(), flags | libc::O_CLOEXEC, mode) };
    if fd < 0 {
        return Err(Failed::now("open", &[format!("{p:?}"), format!("{flags:#o}"), format!("{mode:#o}")]));
    }
    // SAFETY: just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// openat(2), with O_CLOEXEC.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn openat(dir: &OwnedFd, p: &Path, flags: i32, mode: u32) -> Result<OwnedFd, Failed> {
    // SAFETY: the path lives through the call.
    let fd = unsafe { libc::openat(dir.as_raw_fd(), c(p).as_ptr(), flags | libc::O_CLOEXEC, mode) };
    if fd < 0 {
        return Err(Failed::now("openat", &[format!("{p:?}"), format!("{flags:#o}"), format!("{mode:#o}")]));
    }
    // SAFETY: just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens for reading and writing, creating (mode 0644) if missing.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn rw(p: &Path) -> Result<OwnedFd, Failed> {
    open(p, libc::O_RDWR | libc::O_CREAT, 0o644)
}

/// Creates or replaces a file with this content.
///
/// # Errors
/// The errno of the first call that failed.
#[track_caller]
pub fn put(p: &Path, data: &[u8]) -> Result<(), Failed> {
    let fd = open(p, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, 0o644)?;
    write_all(&fd, data)
}

/// Writes all of it, at the file position.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn write_all(fd: &OwnedFd, mut data: &[u8]) -> Result<(), Failed> {
    while !data.is_empty() {
        let n = write(fd, data)?;
        data = &data[usize::try_from(n).unwrap_or(0)..];
    }
    Ok(())
}

/// An asynchronous write (io_submit(2)) from a place where no memory is; what it results in.
///
/// # Errors
/// The errno of a call that sets it up.
#[track_caller]
pub fn aio_write_of_nothing(fd: &OwnedFd, len: u64, off: i64) -> Result<i64, Failed> {
    /// As the kernel has it, in 64 bytes.
    #[repr(C)]
    #[derive(Default)]
    struct Iocb {
        data: u64,
        key: u32,
        rw_flags: i32,
        opcode: u16,
        priority: i16,
        fd: u32,
        buffer: u64,
        bytes: u64,
        offset: i64,
        reserved: u64,
        flags: u32,
        eventfd: u32,
    }
    const PWRITE: u16 = 1;
    let (mut context, mut events) = (0u64, [0i64; 4]);
    let mut asked =
        Iocb { opcode: PWRITE, fd: fd.as_raw_fd() as u32, buffer: 4096, bytes: len, offset: off, ..Iocb::default() };
    let mut list = [std::ptr::from_mut(&mut asked)];
    // SAFETY: all that is pointed to lives through the calls, the request until its result was taken; nothing is written to its buffer.
    unsafe {
        if libc::syscall(libc::SYS_io_setup, 1, &raw mut context) != 0 {
            return Err(Failed::now("io_setup", &[]));
        }
        let begun = libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr());
        let wait = std::ptr::null_mut::<libc::timespec>();
        let ended = if begun == 1 {
            libc::syscall(libc::SYS_io_getevents, context, 1, 1, events.as_mut_ptr(), wait)
        } else {
            begun
        };
        let failed = Failed::now("io_submit", &[format!("{off}, {len} bytes")]);
        libc::syscall(libc::SYS_io_destroy, context);
        if ended == 1 { Ok(events[2]) } else { Err(failed) }
    }
}

/// The whole file.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn get(p: &Path) -> Result<Vec<u8>, Failed> {
    let fd = open(p, libc::O_RDONLY, 0)?;
    let mut all = Vec::new();
    loop {
        let part = read(&fd, 1 << 20)?;
        if part.is_empty() {
            return Ok(all);
        }
        all.extend(part);
    }
}

/// read(2) of up to `n` bytes.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn read(fd: &OwnedFd, n: usize) -> Result<Vec<u8>, Failed> {
    let mut buf = vec![0xee; n];
    let got = read_into(fd, &mut buf)?;
    buf.truncate(usize::try_from(got).unwrap_or(0));
    Ok(buf)
}

/// pread(2) of up to `n` bytes.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn pread(fd: &OwnedFd, n: usize, off: i64) -> Result<Vec<u8>, Failed> {
    let mut buf = vec![0xee; n];
    let got = pread_into(fd, &mut buf, off)?;
    buf.truncate(usize::try_from(got).unwrap_or(0));
    Ok(buf)
}

/// stat(2).
///
/// # Errors
/// The errno.
#[track_caller]
pub fn stat(p: &Path) -> Result<libc::stat, Failed> {
    // SAFETY: plain old data; the call fills it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: path and buffer live through the call.
    match unsafe { libc::stat(c(p).as_ptr(), &mut st) } {
        0 => Ok(st),
        _ => Err(Failed::now("stat", &[format!("{p:?}")])),
    }
}

/// statvfs(3).
///
/// # Errors
/// The errno.
#[track_caller]
pub fn statvfs(p: &Path) -> Result<libc::statvfs, Failed> {
    // SAFETY: plain old data; the call fills it.
    let mut st: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: path and buffer live through the call.
    match unsafe { libc::statvfs(c(p).as_ptr(), &mut st) } {
        0 => Ok(st),
        _ => Err(Failed::now("statvfs", &[format!("{p:?}")])),
    }
}

/// lstat(2).
///
/// # Errors
/// The errno.
#[track_caller]
pub fn lstat(p: &Path) -> Result<libc::stat, Failed> {
    // SAFETY: plain old data; the call fills it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: path and buffer live through the call.
    match unsafe { libc::lstat(c(p).as_ptr(), &mut st) } {
        0 => Ok(st),
        _ => Err(Failed::now("lstat", &[format!("{p:?}")])),
    }
}

/// fstat(2).
///
/// # Errors
/// The errno.
#[track_caller]
pub fn fstat(fd: &OwnedFd) -> Result<libc::stat, Failed> {
    // SAFETY: plain old data; the call fills it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer lives through the call.
    match unsafe { libc::fstat(fd.as_raw_fd(), &mut st) } {
        0 => Ok(st),
        _ => Err(Failed::now("fstat", &[format!("{fd:?}")])),
    }
}

/// statx(2) of everything, without following a last link.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn statx(p: &Path) -> Result<libc::statx, Failed> {
    statx_of(p, libc::STATX_BASIC_STATS | libc::STATX_BTIME)
}

/// statx(2) of what `mask` says, without following a last link.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn statx_of(p: &Path, mask: u32) -> Result<libc::statx, Failed> {
    // SAFETY: plain old data; the call fills it.
    let mut st: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: path and buffer live through the call.
    match unsafe { libc::statx(CWD, c(p).as_ptr(), libc::AT_SYMLINK_NOFOLLOW, mask, &mut st) } {
        0 => Ok(st),
        _ => Err(Failed::now("statx", &[format!("{p:?}")])),
    }
}

/// statfs(2).
///
/// # Errors
/// The errno.
#[track_caller]
pub fn statfs(p: &Path) -> Result<libc::statfs, Failed> {
    // SAFETY: plain old data; the call fills it.
    let mut st: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: path and buffer live through the call.
    match unsafe { libc::statfs(c(p).as_ptr(), &mut st) } {
        0 => Ok(st),
        _ => Err(Failed::now("statfs", &[format!("{p:?}")])),
    }
}

/// copy_file_range(2) between explicit offsets.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn copy_range(from: &OwnedFd, mut from_off: i64, to: &OwnedFd, mut to_off: i64, len: usize) -> Result<i64, Failed> {
    // SAFETY: the offsets live through the call.
    let n = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut from_off, to.as_raw_fd(), &mut to_off, len, 0) };
    if n < 0 {
        return Err(Failed::now("copy_file_range", &[from_off.to_string(), to_off.to_string(), len.to_string()]));
    }
    Ok(n as i64)
}

/// pipe2(2) with O_CLOEXEC: the end to read from, the end to write to.
///
/// # Errors
/// The errno.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Failed> {
    let mut ends = [0i32; 2];
    // SAFETY: the array has room for both ends, which are ours alone.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(Failed::now("pipe", &[]));
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// readlink(2).
///
/// # Errors
/// The errno.
#[track_caller]
pub fn readlink(p: &Path) -> Result<PathBuf, Failed> {
    let mut buf = vec![0u8; 8192];
    // SAFETY: path and buffer live through the call.
    let n = unsafe { libc::readlink(c(p).as_ptr(), buf.as_mut_ptr().cast(), buf.len()) };
    match usize::try_from(n) {
        Ok(n) => Ok(PathBuf::from(OsStr::from_bytes(&buf[..n]))),
        Err(_) => Err(Failed::now("readlink", &[format!("{p:?}")])),
    }
}

/// The value of an extended attribute.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn getxattr(p: &Path, name: &str) -> Result<Vec<u8>, Failed> {
    let mut buf = vec![0u8; 65536];
    let n = getxattr_into(p, name, &mut buf)?;
    buf.truncate(usize::try_from(n).unwrap_or(0));
    Ok(buf)
}

/// The names of the extended attributes, sorted.
///
/// # Errors
/// The errno.
#[track_caller]
pub fn listxattr(p: &Path) -> Result<Vec<String>, Failed> {
    let mut buf = vec![0u8; 65536];
    let n = listxattr_into(p, &mut buf)?;
    buf.truncate(usize::try_from(n).unwrap_or(0));
    let mut names: Vec<String> =
        buf.split(|b| *b == 0).filter(|n| !n.is_empty()).map(|n| String::from_utf8_lossy(n).into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Sets the umask for the calling process; children of a case only.
pub fn umask(mask: u32) -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::umask(mask) }
}

/// Whether this process may do everything.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}
