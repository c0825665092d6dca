//! The real world: Linux, one compio runtime (io_uring, or epoll where it is refused) per shard.
mod arrival;
mod awake;
mod card;
mod file;
mod jobs;
mod local;
mod machine;
mod movers;
mod names;
mod op;
mod origin;
mod probe;
mod ready;
mod tcp;
mod timer;
mod tls;
mod turn;

pub use arrival::Arrival;
pub use awake::keep_awake;
pub use card::{NET_PROFILES, NetProfile, net_profile_bytes, set_net_profile};
pub use movers::{MOVED_BYTES_MIN, MOVERS_MAX, Movers, moved_here_bytes, movers, movers_for, note_moved};
pub(crate) use names::{replace, unlink};
pub use ready::Watched;
pub use turn::{arrived, expect_soon};

use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Instant as StdInstant, SystemTime, UNIX_EPOCH};

use compio::driver::ProactorBuilder;
use frames::FramePool;
use types::{Instant, Origin, WallTime};

use crate::{BlockingFile, Connection, DiskFile, Listener, LocalFuture, Nid, OpenMode, Rt, World};

/// The world of one shard (one thread).
pub struct RealWorld {
    timers: Rc<timer::Timers>,
    jobs: Rc<jobs::Jobs>,
    frames: FramePool,
    seed: u64,
}

/// Runs `main` on a new shard on the calling thread, until it completes. Tasks that it spawned and that have not
/// ended are dropped then.
///
/// # Errors
/// The runtime cannot be built (neither io_uring nor epoll).
pub fn run<F: Future>(frames: FramePool, main: impl FnOnce(Rt) -> F) -> io::Result<F::Output> {
    let mut proactor = ProactorBuilder::new();
    proactor.capacity(1024).coop_taskrun(true).taskrun_flag(true);
    let runtime = compio::runtime::RuntimeBuilder::new().with_proactor(proactor).event_interval(31).build()?;
    let timers = timer::Timers::new(clock_origin())?;
    let mut seed = [0; 8];
    fill_from_system(&mut seed);
    let rt = Rt::new(Rc::new(RealWorld { timers, jobs: jobs::Jobs::new(), frames, seed: u64::from_le_bytes(seed) }));
    Ok(runtime.enter(|| turn::run(&runtime, main(rt))))
}

/// The same for a shard that has `movers` threads move bytes for it (none: it does so itself). They end with it.
///
/// # Errors
/// As [`run`]; a thread cannot be made.
pub fn run_with_movers<F: Future>(
    frames: FramePool,
    movers: usize,
    main: impl FnOnce(Rt) -> F,
) -> io::Result<F::Output> {
    let _crew = if movers == 0 { None } else { Some(movers::Crew::start(movers, frames)?) };
    run(frames, main)
}

fn several(nid: &Nid) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("'{nid}' names several places: one at a time"))
}

/// One origin for all shards of a process, so that their instants compare.
fn clock_origin() -> StdInstant {
    static ORIGIN: std::sync::OnceLock<StdInstant> = std::sync::OnceLock::new();
    *ORIGIN.get_or_init(StdInstant::now)
}

/// Fills `into` from the operating system's generator.
fn fill_from_system(into: &mut [u8]) {
    // Up to 256 bytes come whole or not at all.
    for piece in into.chunks_mut(256) {
        loop {
            // SAFETY: the buffer is valid for its length.
            let got = unsafe { libc::getrandom(piece.as_mut_ptr().cast(), piece.len(), 0) };
            if usize::try_from(got).is_ok_and(|n| n == piece.len()) {
                break;
            }
            let e = io::Error::last_os_error();
            // Nothing that rests on a secret may go on without one.
            assert!(e.kind() == io::ErrorKind::Interrupted, "getrandom: {e}");
        }
    }
}

impl World for RealWorld {
    fn now(&self) -> Instant {
        self.timers.now()
    }
    fn wall(&self) -> WallTime {
        let d = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallTime(i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
    }
    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        Box::pin(self.timers.sleep_until(at))
    }
    fn awake_since(&self) -> Instant {
        self.timers.awake_since()
    }
    fn spawn(&self, task: LocalFuture<()>) {
        compio::runtime::spawn(task).detach();
    }
    fn seed(&self) -> u64 {
        self.seed
    }
    fn fill_secret(&self, into: &mut [u8]) {
        fill_from_system(into);
    }
    fn connect(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>> {
        match nid {
            Nid::Tcp(addr) => Box::pin(tcp::connect(*addr, false, self.timers.clone(), self.jobs.clone())),
            Nid::Local(name) => {
                let opened = local::connect(name);
                Box::pin(std::future::ready(opened))
            }
            Nid::OneOf(_) => Box::pin(std::future::ready(Err(several(nid)))),
        }
    }
    fn connect_encrypted(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>> {
        match nid {
            Nid::Tcp(addr) => Box::pin(tcp::connect(*addr, true, self.timers.clone(), self.jobs.clone())),
            Nid::Local(_) | Nid::OneOf(_) => self.connect(nid),
        }
    }
    fn listen(&self, nid: &Nid) -> io::Result<Box<dyn Listener>> {
        match nid {
            Nid::Tcp(addr) => tcp::listen(*addr, self.timers.clone()),
            Nid::Local(name) => local::listen(name),
            Nid::OneOf(_) => Err(several(nid)),
        }
    }
    fn take_in(&self, arrival: Arrival) -> io::Result<Connection> {
        arrival.open(self.timers.clone())
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
        file::open(path, mode)
    }
    fn open_blocking(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
        file::open_blocking(path, create)
    }
    fn open_on_worker(&self, path: &Path, create: bool) -> LocalFuture<io::Result<Box<dyn BlockingFile>>> {
        let path = path.to_path_buf();
        let work = self.jobs.run(move || file::open_blocking(&path, create));
        Box::pin(async move { work.await.unwrap_or_else(|| Err(io::Error::other("opening a file panicked"))) })
    }
    fn offload(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        let work = self.jobs.run(job);
        Box::pin(async move {
            // A panic on the worker surfaces here as a missing result, reported by `Rt::offload`.
            let _ = work.await;
        })
    }
    fn probe(&self, dir: &Path) -> LocalFuture<io::Result<()>> {
        let dir = dir.to_path_buf();
        let work = self.jobs.run(move || probe::probe(&dir));
        Box::pin(async move { work.await.unwrap_or_else(|| Err(io::Error::other("the probe panicked"))) })
    }
    fn frames(&self) -> FramePool {
        self.frames
    }
    fn origin(&self) -> Origin {
        origin::own()
    }
    fn is_gone(&self, process: Origin) -> bool {
        origin::is_gone(process)
    }
}
