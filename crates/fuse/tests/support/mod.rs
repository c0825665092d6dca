//! Mounts a small in-memory file system for tests, on either transport.
#![allow(dead_code, reason = "each test file uses a part")]
pub mod files;
pub mod memfs;

use fuse::mount::{Mount, MountOptions, mount};
use fuse::{Notifier, RuntimeConfig, Session, SessionConfig, SessionError, Transport, TransportChoice, runtime};
use memfs::{MemFs, State};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A mounted in-memory file system, unmounted when dropped.
pub struct Mounted {
    pub dir: tempfile::TempDir,
    pub session: Session,
    pub mount: Mount,
    pub state: Arc<Mutex<State>>,
    serving: Vec<JoinHandle<Result<(), SessionError>>>,
}

/// Whether mounting can be tested here. In CI it must be possible.
pub fn can_mount() -> bool {
    let root = unsafe_free_root();
    let possible = root && Path::new("/dev/fuse").exists();
    if !possible {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "mount tests need root and /dev/fuse in CI");
        eprintln!("not run: needs root and /dev/fuse (root: {root})");
    }
    possible
}

fn unsafe_free_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// The transports that can be tested here. The ring is left out only with a printed reason.
pub fn transports() -> Vec<TransportChoice> {
    if !can_mount() {
        return Vec::new();
    }
    match fuse::probe::ring_refusal() {
        None => vec![TransportChoice::Dev, TransportChoice::Uring],
        Some(why) => {
            eprintln!("io_uring transport not run: {why}");
            vec![TransportChoice::Dev]
        }
    }
}

impl Mounted {
    pub fn new(choice: TransportChoice, threads: usize) -> Mounted {
        Mounted::with(choice, threads, SessionConfig::default(), "noatime")
    }

    pub fn with(choice: TransportChoice, threads: usize, config: SessionConfig, options: &str) -> Mounted {
        Mounted::at(tempfile::tempdir().unwrap(), choice, threads, config, options)
    }

    pub fn at(
        dir: tempfile::TempDir,
        choice: TransportChoice,
        threads: usize,
        config: SessionConfig,
        options: &str,
    ) -> Mounted {
        let options = MountOptions::parse(options).unwrap();
        let (session, mut mount) = mount(dir.path(), &options, config, choice).unwrap();
        if choice == TransportChoice::Uring {
            assert_eq!(session.transport(), Transport::Uring);
        }
        mount.supervise(false).unwrap();
        let state = Arc::new(Mutex::new(State::new()));
        let serving = session
            .workers(threads)
            .into_iter()
            .map(|worker| {
                let (state, notifier) = (state.clone(), session.notifier());
                std::thread::spawn(move || {
                    let runtime = runtime(&RuntimeConfig::default()).unwrap();
                    runtime.block_on(worker.serve(Rc::new(MemFs::new(state, notifier))))
                })
            })
            .collect();
        Mounted { dir, session, mount, state, serving }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn notifier(&self) -> Notifier {
        self.session.notifier()
    }

    /// Waits until the first serving thread ends by itself.
    pub fn join_first(&mut self) -> Result<(), SessionError> {
        self.serving.remove(0).join().unwrap()
    }

    /// Unmounts and returns how serving ended.
    pub fn finish(mut self) -> Vec<Result<(), SessionError>> {
        self.end()
    }

    fn end(&mut self) -> Vec<Result<(), SessionError>> {
        // A process that another test is forking right now may hold our files for a moment.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while let Err(e) = self.mount.unmount(false) {
            let busy = matches!(e, fuse::mount::MountError::StillBusy { .. });
            assert!(busy && std::time::Instant::now() < deadline, "{e}");
            std::thread::yield_now();
        }
        assert_eq!(self.session.counters().bad_replies.load(std::sync::atomic::Ordering::Relaxed), 0);
        assert_eq!(self.session.counters().refused.load(std::sync::atomic::Ordering::Relaxed), 0);
        self.serving.drain(..).map(|t| t.join().unwrap()).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.serving.is_empty() {
            // A failed test: nobody may hang on open files of the mount.
            let _ = self.mount.abort();
            let _ = self.mount.unmount(true);
        }
    }
}

/// Blocks on a future from a plain thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(out) => return out,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
