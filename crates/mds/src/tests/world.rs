//! A world for tests: one thread, virtual time, no network, no disk.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use cache::frames::FramePool;
use rt::{BlockingFile, Connection, DiskFile, Listener, LocalFuture, Nid, OpenMode, Rt, World};
use types::{Instant, WallTime};

struct Flag(AtomicBool);
impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

struct Task {
    future: LocalFuture<()>,
    flag: Arc<Flag>,
}

/// See the module's head.
#[derive(Default)]
pub struct TestWorld {
    now: Rc<Cell<u64>>,
    timers: Rc<RefCell<BTreeMap<(u64, u64), Waker>>>,
    next: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    spawned: RefCell<Vec<LocalFuture<()>>>,
}

impl TestWorld {
    pub fn new() -> Rc<TestWorld> {
        Rc::new(TestWorld { now: Rc::new(Cell::new(1)), ..TestWorld::default() })
    }
    pub fn rt(self: &Rc<Self>) -> Rt {
        Rt::new(self.clone())
    }
    fn id(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }
    /// Polls everything that was woken; whether anything was.
    fn turn(&self) -> bool {
        for future in std::mem::take(&mut *self.spawned.borrow_mut()) {
            let flag = Arc::new(Flag(AtomicBool::new(true)));
            self.tasks.borrow_mut().insert(self.id(), Task { future, flag });
        }
        let woken: Vec<u64> =
            self.tasks.borrow().iter().filter(|(_, t)| t.flag.0.swap(false, SeqCst)).map(|(id, _)| *id).collect();
        for id in &woken {
            let Some(mut task) = self.tasks.borrow_mut().remove(id) else { continue };
            let waker = Waker::from(task.flag.clone());
            if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                self.tasks.borrow_mut().insert(*id, task);
            }
        }
        !woken.is_empty() || !self.spawned.borrow().is_empty()
    }
    fn advance(&self) -> bool {
        let first = self.timers.borrow_mut().pop_first();
        let Some(((at, _), waker)) = first else { return false };
        self.now.set(self.now.get().max(at));
        waker.wake();
        true
    }
    /// Runs until `future` is done; time passes when nothing else can happen.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        loop {
            if flag.0.swap(false, SeqCst)
                && let Poll::Ready(v) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return v;
            }
            if !self.turn() && !flag.0.load(SeqCst) {
                assert!(self.advance(), "everything waits and no timer is set");
            }
        }
    }
    /// Lets everything happen that can happen without time passing.
    pub fn settle(&self) {
        while self.turn() {}
    }
    /// Tasks are dropped as a crash drops them.
    pub fn kill(&self) {
        self.tasks.borrow_mut().clear();
        self.spawned.borrow_mut().clear();
        self.timers.borrow_mut().clear();
    }
}

impl World for TestWorld {
    fn now(&self) -> Instant {
        Instant(self.now.get())
    }
    fn wall(&self) -> WallTime {
        self.now.set(self.now.get() + 1);
        WallTime(1_700_000_000_000_000_000 + self.now.get() as i64)
    }
    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        let (now, timers, id) = (self.now.clone(), self.timers.clone(), self.id());
        Box::pin(poll_fn(move |cx| {
            if now.get() >= at.0 {
                timers.borrow_mut().remove(&(at.0, id));
                return Poll::Ready(());
            }
            timers.borrow_mut().insert((at.0, id), cx.waker().clone());
            Poll::Pending
        }))
    }
    fn spawn(&self, task: LocalFuture<()>) {
        self.spawned.borrow_mut().push(task);
    }
    fn seed(&self) -> u64 {
        7
    }
    fn connect(&self, _: &Nid) -> LocalFuture<io::Result<Connection>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
    fn listen(&self, _: &Nid) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn open(&self, _: &Path, _: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn open_blocking(&self, _: &Path, _: bool) -> io::Result<Box<dyn BlockingFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn offload(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        job();
        Box::pin(async {})
    }
    fn frames(&self) -> FramePool {
        FramePool::new(1 << 18)
    }
}
