//! The facade to the world: what nodes may ask of it, and the real answer.
//!
//! Nodes are ordinary async Rust over [`Rt`]: one shard is one thread, futures are `!Send`, nothing is shared but
//! page frames. The same node code runs over [`real`] (threads, sockets, disks) and over the simulator's world;
//! neither knows the other, and nodes cannot tell. Streams carry messages and know none: what a head means is the
//! business of the protocol above (`ptlrpc::stream`).

mod dir_lock;
pub mod disk;
mod group;
mod lane;
mod net;
mod nid;
pub mod real;
mod room;
pub mod sync;

pub use dir_lock::{DIR_LOCK, DirLock, LockError, make_private_dir};
pub use disk::{BlockingFile, DiskFile, OpenMode};
pub use group::{Group, IsOpen};
pub use lane::Lane;
pub use net::{BINDING_BYTES, BodyLen, Connection, Digest, HEAD_BYTES, Head, Listener, Moved, Seal, Sink, Source};
pub use nid::Nid;
pub use room::{Room, RoomyFile};

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use frames::{Bulk, FramePool};
use types::{Duration, Instant, Origin, Rng, WallTime};

/// A boxed future of one shard.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A world that nodes live in. Implemented by [`real::RealWorld`] and by the simulator.
pub trait World {
    /// Monotone time.
    fn now(&self) -> Instant;
    /// Time for inodes.
    fn wall(&self) -> WallTime;
    /// Completes when [`World::now`] has reached `at`.
    fn sleep_until(&self, at: Instant) -> LocalFuture<()>;
    /// Since when timers of this shard have come in time: before, the process stood still (stopped, or its host was).
    fn awake_since(&self) -> Instant {
        Instant::ZERO
    }
    /// Runs a task on this shard until it ends.
    fn spawn(&self, task: LocalFuture<()>);
    /// Seed of the world's randomness: fixed in a simulation, fresh entropy in reality.
    fn seed(&self) -> u64;
    /// Fills `into` with bytes that nobody else can foresee: the operating system's in reality, a stream of its own in a
    /// world that must repeat itself.
    fn fill_secret(&self, into: &mut [u8]);
    /// Opens a message stream to a server.
    fn connect(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>>;
    /// The same, encrypted where bytes can be read on their way. In a world without a network they cannot.
    fn connect_encrypted(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>> {
        self.connect(nid)
    }
    /// Accepts message streams at an address. Port 0 takes any free port; [`Listener::nid`] tells which.
    fn listen(&self, nid: &Nid) -> io::Result<Box<dyn Listener>>;
    /// Opens a connection that another shard accepted. A world whose hosts have one shard has none.
    fn take_in(&self, _arrival: real::Arrival) -> io::Result<Connection> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Opens a file for data I/O.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Rc<dyn DiskFile>>;
    /// Opens a file for an embedded store that does its own blocking I/O on a worker.
    fn open_blocking(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>>;
    /// The same away from the shard. The default is for worlds in which no path keeps anybody waiting.
    fn open_on_worker(&self, path: &Path, create: bool) -> LocalFuture<io::Result<Box<dyn BlockingFile>>> {
        Box::pin(std::future::ready(self.open_blocking(path, create)))
    }
    /// Takes a store's directory for this process; in a world without files of the operating system nobody else has it.
    ///
    /// # Errors
    /// [`LockError`].
    fn lock_dir(&self, dir: &Path) -> Result<DirLock, LockError> {
        DirLock::take(dir)
    }
    /// The same without waiting where another process has it.
    ///
    /// # Errors
    /// [`LockError`].
    fn try_lock_dir(&self, dir: &Path) -> Result<DirLock, LockError> {
        DirLock::try_take(dir)
    }
    /// Removes a file's name, if it is there.
    ///
    /// # Errors
    /// As the operating system answers.
    fn unlink(&self, path: &Path) -> io::Result<()> {
        real::unlink(path)
    }
    /// Gives the file `new` the name `old`, and the file that had it the name `aside`, which nothing has: durable when it is done.
    ///
    /// # Errors
    /// As the operating system answers.
    fn replace(&self, new: &Path, old: &Path, aside: &Path) -> io::Result<()> {
        real::replace(new, old, aside)
    }
    /// Runs blocking work away from the shard; completes when it is done.
    fn offload(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()>;
    /// Finds out whether the medium below a directory is well: makes a small file there, writes it, makes it durable, reads it
    /// back from the medium and removes it. Blocks no shard.
    fn probe(&self, dir: &Path) -> LocalFuture<io::Result<()>>;
    /// Page frames of this process.
    fn frames(&self) -> FramePool;
    /// Which process this is, for servers of the same host.
    fn origin(&self) -> Origin {
        Origin::default()
    }
    /// Whether it is certain that a process has ended. What cannot be known from here is no.
    fn is_gone(&self, _process: Origin) -> bool {
        false
    }
}

/// A handle to the world, cheap to clone, bound to one shard.
#[derive(Clone)]
pub struct Rt(Rc<dyn World>);

impl Rt {
    /// Wraps a world.
    #[must_use]
    pub fn new(world: Rc<dyn World>) -> Rt {
        Rt(world)
    }
    /// Monotone time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.now()
    }
    /// Since when this process has been awake without a pause of more than two seconds. What others did not do in time before
    /// may wait to be read: who blames them counts from here.
    #[must_use]
    pub fn awake_since(&self) -> Instant {
        self.0.awake_since()
    }
    /// Time for inodes.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        self.0.wall()
    }
    /// Waits for `time`.
    pub fn sleep(&self, time: Duration) -> LocalFuture<()> {
        self.0.sleep_until(self.now() + time)
    }
    /// Waits until `at`.
    pub fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        self.0.sleep_until(at)
    }
    /// Runs `task` on this shard, detached. Whoever wants its end passes a channel along.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn(Box::pin(task));
    }
    /// The result of `work`, or `None` when `limit` passed first (the work is dropped then).
    pub async fn timeout<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut clock = self.sleep(limit);
        std::future::poll_fn(move |cx| {
            if let Poll::Ready(v) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(v));
            }
            clock.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
    /// Bytes that nobody else can foresee: keys, nonces, proofs of identity, hash keys, and whatever ids rest on.
    #[must_use]
    pub fn secret_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill_secret(&mut bytes);
        bytes
    }
    /// A fresh number that nobody else can foresee, for ids; never 0.
    #[must_use]
    pub fn random(&self) -> u64 {
        loop {
            match u64::from_le_bytes(self.secret_bytes()) {
                0 => {}
                n => return n,
            }
        }
    }
    /// The random stream of component `name`: the same one at every call.
    #[must_use]
    pub fn rng(&self, name: &str) -> Rng {
        Rng::named(self.0.seed(), name)
    }
    /// Opens a message stream.
    ///
    /// # Errors
    /// As the operating system answers: refused, unreachable, timed out.
    pub async fn connect(&self, nid: &Nid) -> io::Result<Connection> {
        self.0.connect(nid).await
    }
    /// Opens a message stream that is encrypted where its bytes can be read on their way. It proves nothing about who is at its other
    /// end: [`Sink::binding`] is what such a proof has to be about.
    ///
    /// # Errors
    /// As [`Rt::connect`]; `InvalidData`: the other end does not encrypt.
    pub async fn connect_encrypted(&self, nid: &Nid) -> io::Result<Connection> {
        self.0.connect_encrypted(nid).await
    }
    /// Accepts message streams.
    ///
    /// # Errors
    /// The address is in use or not this host's.
    pub fn listen(&self, nid: &Nid) -> io::Result<Box<dyn Listener>> {
        self.0.listen(nid)
    }
    /// Opens a connection that another shard accepted.
    ///
    /// # Errors
    /// As the operating system answers.
    pub fn take_in(&self, arrival: real::Arrival) -> io::Result<Connection> {
        self.0.take_in(arrival)
    }
    /// Opens a file for data I/O.
    ///
    /// # Errors
    /// As the operating system answers.
    pub fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
        self.0.open(path, mode)
    }
    /// Opens a file for an embedded store.
    ///
    /// # Errors
    /// As the operating system answers.
    pub fn open_blocking(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
        self.0.open_blocking(path, create)
    }
    /// [`Rt::open_blocking`] away from the shard, for paths of which nobody knows what they lie on: a network, or a medium that is gone, may
    /// keep an open waiting as long as it likes.
    ///
    /// # Errors
    /// As the operating system answers.
    pub async fn open_on_worker(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
        self.0.open_on_worker(path, create).await
    }
    /// Whether there is a file of that name, be it that it cannot be opened.
    #[must_use]
    pub fn has_file(&self, path: &Path) -> bool {
        !matches!(self.open_blocking(path, false), Err(e) if e.kind() == io::ErrorKind::NotFound)
    }
    /// Takes a store's directory for this process.
    ///
    /// # Errors
    /// Another process has it, or there is no such directory.
    pub fn lock_dir(&self, dir: &Path) -> Result<DirLock, LockError> {
        self.0.lock_dir(dir)
    }
    /// The same for who serves already: while another process has it, for two seconds at most, others of this shard go on.
    ///
    /// # Errors
    /// As [`Rt::lock_dir`].
    pub async fn lock_dir_waiting(&self, dir: &Path) -> Result<DirLock, LockError> {
        let pause = types::Duration::from_millis(dir_lock::RETRY_PAUSE.as_millis() as u64);
        let tries = dir_lock::RETRY_WITHIN.as_millis() / dir_lock::RETRY_PAUSE.as_millis();
        for _ in 0..tries {
            match self.0.try_lock_dir(dir) {
                Err(LockError::InUse) => self.sleep(pause).await,
                done => return done,
            }
        }
        self.0.try_lock_dir(dir)
    }
    /// Removes a file's name, if it is there.
    ///
    /// # Errors
    /// As the operating system answers.
    pub fn unlink(&self, path: &Path) -> io::Result<()> {
        self.0.unlink(path)
    }
    /// Gives the file `new` the name `old`, and the file that had it the name `aside`, which nothing has: durable when it is done.
    ///
    /// # Errors
    /// As the operating system answers.
    pub fn replace(&self, new: &Path, old: &Path, aside: &Path) -> io::Result<()> {
        self.0.replace(new, old, aside)
    }
    /// Runs blocking work on a worker thread and gives its result.
    pub async fn offload<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let slot = std::sync::Arc::new(std::sync::Mutex::new(None));
        let out = slot.clone();
        let job = move || {
            let value = job();
            *out.lock().expect("the slot is locked only for assignment") = Some(value);
        };
        self.0.offload(Box::new(job)).await;
        let value = slot.lock().expect("the slot is locked only for assignment").take();
        value.expect("the worker stores the value before it reports the end")
    }
    /// Finds out whether the medium below a directory is well, by a small file that is written, synced, read back and removed.
    ///
    /// # Errors
    /// As the medium answers; `InvalidData` when other bytes come back than were written.
    pub async fn probe(&self, dir: &Path) -> io::Result<()> {
        self.0.probe(dir).await
    }
    /// Page frames of this process.
    #[must_use]
    pub fn frames(&self) -> FramePool {
        self.0.frames()
    }
    /// Which process this is.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.0.origin()
    }
    /// Whether it is certain that a process has ended; false as long as it may live, wherever that is.
    #[must_use]
    pub fn is_gone(&self, process: Origin) -> bool {
        process.is_known() && (process.ended_with_its_boot(self.0.origin()) || self.0.is_gone(process))
    }
    /// Room for `len` bytes in fresh frames; waits while the pool is empty (caches give frames back under pressure).
    pub async fn bulk(&self, len: usize) -> Bulk {
        loop {
            if let Some(bulk) = Bulk::alloc(self.frames(), len) {
                return bulk;
            }
            self.sleep(Duration::from_millis(1)).await;
        }
    }
}
