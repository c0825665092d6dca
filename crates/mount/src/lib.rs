//! The mount: a kernel's FUSE requests answered by the [`client`]. No policy and no caching of its own: what the
//! kernel may believe is what the client's locks cover.
mod advice;
mod convert;
mod cred;
mod dir;
mod direct;
mod file;
mod held;
mod job;
mod kernel;
mod killed;
mod memory;
pub mod migrate;
mod name;
mod native;
mod pieces;
pub mod project;
mod rings;
mod syscall;
mod writers;

/// Sockets to which programs may send descriptors.
pub use ::native::pass;

pub use crate::native::ServedNatively;
pub use cred::{Rights, Squash};
pub use memory::{allowed_memory_bytes, memory_bytes};
pub use syscall::Syscall;

use std::cell::RefCell;
use std::rc::Rc;

use client::{Call, Client};
use fuse::{FileSystem, Op, Replied, Request, Session};
use types::{Fid, FsError};
use wire::mdt::Cred;

use crate::killed::Caller;

/// A file system served to a kernel.
pub struct StriaFs {
    client: Rc<Client>,
    callers: cred::Callers,
    jobs: Rc<job::JobsOfCallers>,
    /// The kernel may keep names.
    names_cacheable: bool,
    dirs: dir::Dirs,
    kernel_cache: KernelCaching,
    /// Largest file that is cached by the kernel from its first open on.
    fitting_bytes: u64,
    is_dying: killed::Judge,
    syscalls: syscall::Syscalls,
    /// A READ of pages so long may be one of several for a window of read-ahead; what is read without read-ahead is a page.
    full_read_bytes: u32,
    pieces: pieces::Pieces,
    direct: direct::Direct,
    writers: writers::Writers,
    native: RefCell<Option<Rc<crate::native::Native>>>,
    told: Rc<kernel::Told>,
}

/// The part of the machine's memory that a file may have to be cached by the kernel when it is first read.
const FITTING_PART: u64 = 512;

/// When the kernel may keep file pages (always under locks, dropped when one goes), and listings of directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KernelCaching {
    /// Only mapped pages: every read comes to the client's cache. No listings.
    Never,
    /// Files opened for reading a second time while the first time's pages are still known.
    Reopened,
    /// Those, and from the first open on files of at most a 512th of the machine's memory. Larger ones are often read once,
    /// and filling the kernel's cache costs about as much as the read.
    #[default]
    Fitting,
    /// Every file opened for reading only.
    Always,
}

/// What the kernel does with names that it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KernelNames {
    /// It keeps them under the client's locks, where it can be told to ask again without taking directory locks (INC_EPOCH, ABI 7.44).
    /// When the lock on any name goes, it gives all names up, and with them what is mounted below one.
    #[default]
    Kept,
    /// It asks the daemon for each name of a path, each time.
    Asked,
}

impl StriaFs {
    /// The file system of `client`, mounted by `session`.
    #[must_use]
    pub fn new(
        client: Rc<Client>,
        session: &Session,
        squash: Squash,
        kernel_cache: KernelCaching,
        kernel_names: KernelNames,
    ) -> Rc<StriaFs> {
        let told = Rc::<kernel::Told>::default();
        let names_cacheable = kernel_names == KernelNames::Kept && session.negotiated().minor >= 44;
        let (notifier, keeps_names) = (session.notifier(), names_cacheable);
        client.kernel().set(Rc::new(kernel::Kernel { notifier, told: told.clone(), keeps_names }));
        // A kernel knows the root without having looked it up.
        client.meta().remember(Fid::ROOT);
        Rc::new(StriaFs {
            client,
            callers: cred::Callers::new(squash),
            jobs: Rc::default(),
            names_cacheable,
            dirs: dir::Dirs::default(),
            kernel_cache,
            fitting_bytes: memory_bytes() / FITTING_PART,
            is_dying: killed::Judge::new(killed::is_dying),
            syscalls: syscall::Syscalls::default(),
            full_read_bytes: session.negotiated().max_read_bytes.max(2 * 4096),
            pieces: pieces::Pieces::new(session.negotiated().max_write_bytes),
            direct: direct::Direct::new(session.negotiated().max_background),
            writers: writers::Writers::default(),
            native: RefCell::new(None),
            told,
        })
    }
    /// How it is found out which call a caller is in; for kernels whose callers are no processes of this machine.
    pub fn tell_calls(&self, syscall_of: fn(u32) -> Syscall) {
        self.syscalls.set(syscall_of);
    }
    /// How the supplementary groups and capabilities of a caller are found out; for kernels whose callers are no processes of this machine.
    pub fn tell_rights(&self, rights_of: fn(u32) -> Rights) {
        self.callers.set(rights_of);
    }
    /// Who asks. Not for requests that end an open: their callers may hold what finding out waits for, and nobody needs to know.
    async fn cred(&self, req: &Request<'_>) -> Cred {
        let job = self.jobs.of(&self.client, req.uid(), req.gid(), req.pid()).await;
        Cred { job, ..self.callers.cred(self.client.rt(), req.uid(), req.gid(), req.pid()).await }
    }
}

/// Whether the answer to a request may bring attributes of anything.
fn tells_attributes(op: &Op<'_>) -> bool {
    let silent = matches!(
        op,
        Op::Read { .. }
            | Op::Write { .. }
            | Op::Flush { .. }
            | Op::Release { .. }
            | Op::Fsync { .. }
            | Op::Lseek { .. }
            | Op::Getlk { .. }
            | Op::Setlk { .. }
            | Op::Ioctl { .. }
            | Op::Poll { .. }
            | Op::Statfs
            | Op::Syncfs
    );
    !silent
}

/// The kind of call that a request is timed as. Reads and writes are timed where the client carries them out, for they come
/// on other ways, too.
fn call_of(op: &Op<'_>) -> Option<Call> {
    Some(match op {
        Op::Lookup { .. } => Call::Lookup,
        Op::Getattr { .. } | Op::Statx { .. } | Op::Access { .. } => Call::Getattr,
        Op::Setattr { .. } => Call::Setattr,
        Op::Readlink => Call::Readlink,
        Op::Symlink { .. } => Call::Symlink,
        Op::Mknod { .. } | Op::Tmpfile { .. } => Call::Mknod,
        Op::Mkdir { .. } => Call::Mkdir,
        Op::Unlink { .. } => Call::Unlink,
        Op::Rmdir { .. } => Call::Rmdir,
        Op::Rename { .. } => Call::Rename,
        Op::Link { .. } => Call::Link,
        Op::Opendir { .. } | Op::Open { .. } => Call::Open,
        Op::Create { .. } => Call::Create,
        Op::Flush { .. } => Call::Flush,
        Op::Release { .. } | Op::Releasedir { .. } => Call::Release,
        Op::Fsync { .. } | Op::Fsyncdir { .. } | Op::Syncfs => Call::Fsync,
        Op::Readdir { .. } | Op::Readdirplus { .. } => Call::Readdir,
        Op::Setxattr { .. } | Op::Removexattr { .. } => Call::Setxattr,
        Op::Getxattr { .. } | Op::Listxattr { .. } => Call::Getxattr,
        Op::Fallocate { .. } => Call::Fallocate,
        Op::CopyFileRange { .. } => Call::Copy,
        Op::Lseek { .. } => Call::Seek,
        Op::Getlk { .. } | Op::Setlk { .. } => Call::Flock,
        Op::Statfs => Call::Statfs,
        Op::Read { .. } | Op::Write { .. } | Op::Ioctl { .. } | Op::Poll { .. } | Op::Bmap { .. } | Op::Destroy => {
            return None;
        }
    })
}

/// The errno of a failure; what the kernel must not see becomes EIO.
fn errno(e: FsError) -> i32 {
    match e {
        FsError::Protocol
        | FsError::Overloaded
        | FsError::NotConnected
        | FsError::ShuttingDown
        | FsError::Already
        | FsError::Corrupt => libc::EIO,
        other => other.errno(),
    }
}

/// The answer to a request that brings nothing back.
fn done(req: Request<'_>, result: Result<(), FsError>) -> Replied {
    match result {
        Ok(()) => req.into_reply().ok(),
        Err(e) => req.err(errno(e)),
    }
}

impl FileSystem for StriaFs {
    async fn handle(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let (call, began) = (call_of(&req.op()), self.client.rt().now());
        let _telling = tells_attributes(&req.op()).then(|| self.told.begin());
        let replied = self.serve(req).await;
        if let Some(call) = call {
            self.client.data().calls().called(call, self.client.rt().now().since(began));
        }
        replied
    }

    fn forget(self: &Rc<Self>, nodeid: u64, nlookup: u64) {
        self.client.meta().forget(convert::fid(nodeid), nlookup);
    }
}

impl StriaFs {
    async fn serve(self: &Rc<Self>, req: Request<'_>) -> Replied {
        match req.op() {
            Op::Lookup { .. }
            | Op::Getattr { .. }
            | Op::Statx { .. }
            | Op::Setattr { .. }
            | Op::Readlink
            | Op::Access { .. } => self.attributes(req).await,
            Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. } => self.names(req).await,
            Op::Opendir { .. }
            | Op::Readdir { .. }
            | Op::Readdirplus { .. }
            | Op::Releasedir { .. }
            | Op::Fsyncdir { .. } => self.directories(req).await,
            Op::Setxattr { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } | Op::Removexattr { .. } => {
                self.xattrs(req).await
            }
            Op::Read { .. } | Op::Write { .. } => self.data(req).await,
            Op::Open { .. } | Op::Create { .. } | Op::Tmpfile { .. } => self.opens(req).await,
            Op::Flush { .. } | Op::Release { .. } => self.closes(req).await,
            Op::Fsync { .. } | Op::Fallocate { .. } | Op::Lseek { .. } | Op::CopyFileRange { .. } => {
                self.ranges(req).await
            }
            Op::Getlk { .. } | Op::Setlk { .. } => self.locks(req).await,
            Op::Statfs => self.statfs(req).await,
            Op::Syncfs => {
                let mut caller = Caller::of(&req);
                let synced = self.ask(&mut caller, |c| async move { c.sync_all().await });
                done(req, synced.await)
            }
            Op::Ioctl { .. } if StriaFs::asks_to_migrate(&req) => self.migrate(req).await,
            Op::Ioctl { .. } if StriaFs::asks_for_project(&req) => self.project(req).await,
            Op::Ioctl { .. } => self.advice(req).await,
            // The kernel then answers poll(2) itself: regular files are always ready.
            Op::Poll { .. } => req.err(libc::ENOSYS),
            Op::Bmap { .. } => req.err(libc::ENOSYS),
            Op::Destroy => req.into_reply().ok(),
        }
    }
}
