//! The session: one mounted connection, shared by its serving threads.
//!
//! Decides who serves what: [`Session::workers`] splits the per-CPU queues over threads; each [`Worker`] moves to its
//! thread and serves there on that thread's own runtime. Does not mount (see [`crate::mount`]) and knows no file system.
use crate::abi::*;
use crate::crew::{Kickers, SlotEnd, SlotTask};
use crate::drops::Drops;
use crate::init::{InitError, Negotiated, SessionConfig, ask_again, negotiate, pages_of_buffer};
use crate::interrupt::InterruptTable;
use crate::notify::{Done, Notifier};
use crate::pipe::Pipe;
use crate::request::Request;
use crate::{Replied, probe};
use std::ffi::CString;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zerocopy::{FromBytes, IntoBytes};

/// What a mounted file system does with requests.
pub trait FileSystem: 'static {
    /// Answers one request. Runs inside the completion: ready at once costs no task and no allocation. It must never
    /// block the thread; waiting is `await`. Many handlers of one thread are in progress at a time.
    fn handle(self: &Rc<Self>, req: Request<'_>) -> impl Future<Output = Replied>;

    /// The kernel forgot `nlookup` lookups of a node. Comes to the worker that serves `/dev/fuse`; must not block.
    fn forget(self: &Rc<Self>, nodeid: u64, nlookup: u64);

    /// The connection ended; nothing comes after this on this worker.
    fn end(self: &Rc<Self>) {}
}

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// FUSE-over-io_uring: one queue per possible CPU (Linux 6.14 and the module parameter `enable_uring`).
    Uring,
    /// read(2) and writev(2) on `/dev/fuse`.
    Dev,
}

/// Which transport to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum TransportChoice {
    /// The ring if the probe finds no obstacle, otherwise `/dev/fuse`.
    #[default]
    Auto,
    /// The ring or failure.
    Uring,
    /// `/dev/fuse`.
    Dev,
}

/// Events counted per session.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests handed to the file system.
    pub requests: AtomicU64,
    /// Requests of the session's own that wake ring queues; the file system does not hear of them.
    pub kicks: AtomicU64,
    /// Requests refused as malformed or unknown.
    pub refused: AtomicU64,
    /// Replies that the kernel no longer wanted (interrupted or aborted callers).
    pub unwanted_replies: AtomicU64,
    /// Replies that the kernel refused as wrong: a bug.
    pub bad_replies: AtomicU64,
    /// Interrupts received.
    pub interrupts: AtomicU64,
    /// Times `ring_depth_max` or `dev_depth_max` was reached: requests then wait in the kernel, unless pages are dropped.
    pub depth_limit_hit: AtomicU64,
    /// Requests that would have waited as long as programs please, and had no place ([`crate::Request::lasting`]).
    pub lasting_limit_hit: AtomicU64,
    /// Times the table of unmatched interrupts was full.
    pub interrupt_limit_hit: AtomicU64,
}

/// What all threads of a session share.
pub(crate) struct Shared {
    pub link: Link,
    pub config: SessionConfig,
    pub negotiated: Negotiated,
    pub interrupts: Arc<InterruptTable>,
    pub counters: Counters,
    pub ended: AtomicBool,
    pub drops: Arc<Drops>,
    /// Threads whose requests only wake ring queues.
    pub kickers: Arc<Kickers>,
    /// Where the file system is mounted, once known.
    pub root: OnceLock<CString>,
}

impl Shared {
    pub fn setxattr_ext(&self) -> bool {
        self.negotiated.has(init::SETXATTR_EXT)
    }

    /// Payload bytes of a slot: what the kernel demands of ring entries, all pages that it may send, and a full WRITE.
    pub fn payload_bytes(&self) -> usize {
        (pages_of_buffer(self.negotiated.max_write_bytes) as usize * 4096).max(MIN_READ_BUFFER)
    }

    /// Whether other threads may answer: a model of a kernel hears of answers in the order of its world.
    pub fn may_move(&self) -> bool {
        matches!(self.link, Link::Device(_))
    }

    /// Sends a reply on `/dev/fuse`.
    pub fn write_reply(&self, unique: u64, error: i32, slices: &[IoSlice<'_>]) {
        match write_message(&self.link, unique, error, slices) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => count(&self.counters.unwanted_replies),
            Err(e) if is_gone(&e) => self.ended.store(true, Ordering::Release),
            Err(e) => {
                count(&self.counters.bad_replies);
                tracing::error!(unique, error, "the kernel refused a reply: {e}");
                if error == 0 {
                    // The caller must not hang because of our mistake.
                    let _ = write_message(&self.link, unique, -libc::EIO, &[]);
                }
            }
        }
    }
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Whether an error says that the connection is over.
pub(crate) fn is_gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED | libc::EPERM | libc::ECANCELED))
}

/// Where messages come from and go to.
pub(crate) enum Link {
    /// The kernel's device.
    Device(OwnedFd),
    /// A model of a kernel.
    Pipe(Arc<Pipe>),
}

impl Link {
    /// The device's descriptor; only the device's transports ask.
    pub fn raw_fd(&self) -> RawFd {
        match self {
            Link::Device(fd) => fd.as_raw_fd(),
            Link::Pipe(_) => panic!("a pipe has no descriptor"),
        }
    }

    /// Reads one message, without waiting where the device is non-blocking.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Device(fd) => {
                // SAFETY: the buffer is ours and as long as said.
                let n = unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) };
                usize::try_from(n).map_err(|_| io::Error::last_os_error())
            }
            Link::Pipe(pipe) => pipe.read(buf),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Link::Pipe(pipe) = self {
            pipe.close();
        }
    }
}

/// A notification for a model of a kernel, which says when it is done.
pub(crate) fn send_on(pipe: &Pipe, code: i32, body: &[u8], done: Arc<Done>) -> io::Result<()> {
    let len =
        u32::try_from(size_of::<OutHeader>() + body.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let header = OutHeader { len, error: code, unique: 0 };
    pipe.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(body)], Some(done))
}

/// Writes one message (reply or notification) to `/dev/fuse`.
pub(crate) fn write_message(link: &Link, unique: u64, error: i32, slices: &[IoSlice<'_>]) -> io::Result<()> {
    let body: usize = slices.iter().map(|s| s.len()).sum();
    let len = u32::try_from(size_of::<OutHeader>() + body).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let header = OutHeader { len, error, unique };
    const INLINE: usize = 4;
    let head = IoSlice::new(header.as_bytes());
    let written = if slices.len() < INLINE {
        let mut all = [IoSlice::new(&[]); INLINE];
        all[0] = head;
        all[1..=slices.len()].copy_from_slice(slices);
        writev(link, &all[..=slices.len()])
    } else {
        let all: Vec<IoSlice<'_>> = std::iter::once(head).chain(slices.iter().copied()).collect();
        writev(link, &all)
    };
    written.map(drop)
}

/// A notification with one more byte behind `body`, at an address where there is none: EFAULT once the kernel comes to it.
pub(crate) fn write_unreadable(link: &Link, code: i32, body: &[u8]) -> io::Result<()> {
    let Link::Device(fd) = link else { return Err(io::Error::from_raw_os_error(libc::ENOSYS)) };
    let len = u32::try_from(size_of::<OutHeader>() + body.len() + 1)
        .map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let header = OutHeader { len, error: code, unique: 0 };
    let part = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
    let parts = [part(header.as_bytes()), part(body), nothing];
    // SAFETY: the kernel only reads; what is there outlives the call, and what is not it answers with an error.
    let n = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), 3) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn writev(link: &Link, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let fd = match link {
        Link::Device(fd) => fd,
        Link::Pipe(pipe) => return pipe.write(slices, None).map(|()| 0),
    };
    let count = libc::c_int::try_from(slices.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: IoSlice is ABI-compatible with iovec; all slices outlive the call.
    let n = unsafe { libc::writev(fd.as_raw_fd(), slices.as_ptr().cast(), count) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Why a session could not start or went wrong.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's offer and our needs do not meet.
    #[error(transparent)]
    Init(#[from] InitError),
    /// Something else than INIT arrived first, or INIT is malformed.
    #[error("the kernel's first message is not a well-formed INIT (opcode {0})")]
    NotInit(u32),
    /// The ring was demanded but cannot be had.
    #[error("FUSE over io_uring is not available: {0}")]
    NoRing(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A handler panicked; the connection should be ended.
    #[error("a request handler panicked; see the log")]
    HandlerPanicked,
}

/// Attaches what was tried to an I/O error.
pub(crate) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> SessionError {
    move |source| SessionError::Io { what, source }
}

/// One connection with the kernel, INIT done.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    notifier: Notifier,
}

impl Session {
    /// Answers INIT on a `/dev/fuse` descriptor that was just mounted, and becomes the session.
    ///
    /// # Errors
    /// [`SessionError`]; dropping the descriptor then ends the connection.
    pub fn start(fd: OwnedFd, config: SessionConfig, choice: TransportChoice) -> Result<Session, SessionError> {
        let ring = probe::ring_refusal();
        let want_ring = match (choice, &ring) {
            (TransportChoice::Dev, _) => false,
            (TransportChoice::Auto, refusal) => refusal.is_none(),
            (TransportChoice::Uring, None) => true,
            (TransportChoice::Uring, Some(why)) => return Err(SessionError::NoRing(why.to_string())),
        };
        let link = Link::Device(fd);
        let negotiated = answer_init(&link, &config, want_ring)?;
        if choice == TransportChoice::Uring && !negotiated.has(init::OVER_IO_URING) {
            return Err(SessionError::NoRing("the kernel did not offer it in INIT".into()));
        }
        set_nonblocking(link.raw_fd()).map_err(io_error("fcntl(/dev/fuse, O_NONBLOCK)"))?;
        Ok(Session::over(link, config, negotiated))
    }

    /// Answers the INIT that a model of a kernel has sent, and becomes the session. It is served with [`Worker::serve_in`].
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn start_on(pipe: Arc<Pipe>, config: SessionConfig) -> Result<Session, SessionError> {
        let link = Link::Pipe(pipe);
        let negotiated = answer_init(&link, &config, false)?;
        Ok(Session::over(link, config, negotiated))
    }

    fn over(link: Link, config: SessionConfig, negotiated: Negotiated) -> Session {
        let shared = Arc::new(Shared {
            link,
            config,
            negotiated,
            interrupts: Arc::default(),
            counters: Counters::default(),
            ended: AtomicBool::new(false),
            drops: Arc::default(),
            kickers: Arc::default(),
            root: OnceLock::new(),
        });
        let notifier = Notifier::new(shared.clone());
        Session { shared, notifier }
    }

    /// Tells the session where it is mounted ([`crate::mount::mount`] does). On rings, growth beyond `ring_depth` relies
    /// on it to get requests going that were queued before.
    pub fn set_root(&self, path: CString) {
        let _ = self.shared.root.set(path);
    }

    /// How requests travel.
    pub fn transport(&self) -> Transport {
        if self.shared.negotiated.has(init::OVER_IO_URING) { Transport::Uring } else { Transport::Dev }
    }

    /// What was agreed on.
    pub fn negotiated(&self) -> &Negotiated {
        &self.shared.negotiated
    }

    /// Events counted so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Sends invalidations and other notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Splits the session over `threads` serving threads (at least 1): every worker must be served, or callers hang.
    /// On rings worker i has the queues of the CPUs c with c % threads == i, and worker 0 reads `/dev/fuse` too; on
    /// `/dev/fuse` all workers read it.
    pub fn workers(&self, threads: usize) -> Vec<Worker> {
        let threads = threads.max(1);
        let cpus = if self.transport() == Transport::Uring { probe::possible_cpus() } else { 0 };
        let split = |i: usize| (0..cpus).filter(|&c| usize::from(c) % threads == i).collect();
        (0..threads).map(|i| self.worker(split(i), i == 0 || self.transport() == Transport::Dev)).collect()
    }

    /// One worker for the given ring queues (one per possible CPU, each served exactly once over all workers), reading
    /// `/dev/fuse` if `reads_dev` (at least one worker must: forgets and interrupts always come there).
    pub fn worker(&self, queues: Vec<u16>, reads_dev: bool) -> Worker {
        Worker { shared: self.shared.clone(), queues, reads_dev }
    }
}

/// One thread's share of a session. Send it to its thread and serve there.
pub struct Worker {
    shared: Arc<Shared>,
    queues: Vec<u16>,
    reads_dev: bool,
}

impl Worker {
    /// The ring queues (CPU numbers) of this worker.
    pub fn queues(&self) -> &[u16] {
        &self.queues
    }

    /// Serves requests on the current thread's runtime until the file system is unmounted (by anyone), which is `Ok`.
    /// Dropping the future stops serving; the connection then ends when the session is dropped.
    ///
    /// # Errors
    /// [`SessionError`] when serving is impossible or a handler panicked; the mount is then best aborted.
    pub async fn serve<F: FileSystem>(self, fs: Rc<F>) -> Result<(), SessionError> {
        self.serve_with(fs, |task| {
            let task = compio::runtime::spawn(task);
            Box::pin(async move { task.await.ok() })
        })
        .await
    }

    /// The same in any world: a session of [`Session::start_on`], whose tasks run as those of `rt`.
    ///
    /// # Errors
    /// [`SessionError`] when a message of the kernel's model cannot be read.
    pub async fn serve_in<F: FileSystem>(self, rt: rt::Rt, fs: Rc<F>) -> Result<(), SessionError> {
        self.serve_with(fs, move |task| {
            let (end, ended) = rt::sync::oneshot();
            rt.spawn(async move { end.send(task.await) });
            Box::pin(ended)
        })
        .await
    }

    async fn serve_with<F: FileSystem>(
        self,
        fs: Rc<F>,
        spawn: impl Fn(SlotTask) -> SlotEnd,
    ) -> Result<(), SessionError> {
        let crew = crate::crew::Crew::new(self.shared.clone(), fs.clone());
        for &queue in &self.queues {
            crew.add_ring_queue(queue);
        }
        if self.reads_dev {
            let ring = !self.queues.is_empty() || self.shared.negotiated.has(init::OVER_IO_URING);
            crew.add_dev_readers(if ring { 2 } else { self.shared.config.dev_depth });
        }
        let result = crew.run(spawn).await;
        fs.end();
        result
    }
}

/// Reads INIT and answers it; again if the kernel speaks a newer major version.
fn answer_init(link: &Link, config: &SessionConfig, want_ring: bool) -> Result<Negotiated, SessionError> {
    let mut buf = vec![0u8; MIN_READ_BUFFER.max(config.max_write_bytes as usize + 4096)];
    loop {
        let n = match link.read(&mut buf) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(io_error("reading INIT from /dev/fuse")(e)),
        };
        let Ok((header, rest)) = InHeader::read_from_prefix(&buf[..n]) else { return Err(SessionError::NotInit(0)) };
        // Kernels before 7.36 send a shorter structure.
        let mut arg = [0u8; size_of::<InitIn>()];
        let len = rest.len().min(arg.len());
        arg[..len].copy_from_slice(&rest[..len]);
        if header.opcode != opcode::INIT || len < 16 {
            return Err(SessionError::NotInit(header.opcode));
        }
        let arg = InitIn::read_from_bytes(&arg).expect("same size");
        let reply = |error: i32, out: &[u8]| {
            write_message(link, header.unique, error, &[IoSlice::new(out)]).map_err(io_error("answering INIT"))
        };
        match negotiate(&arg, config, want_ring) {
            Ok((out, negotiated)) => {
                reply(0, out.as_bytes())?;
                return Ok(negotiated);
            }
            Err(InitError::AskAgain(_)) => reply(0, ask_again().as_bytes())?,
            Err(e) => {
                reply(-libc::EPROTO, &[])?;
                return Err(e.into());
            }
        }
    }
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: plain fcntl calls on a descriptor that the caller keeps open.
    let rc = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
