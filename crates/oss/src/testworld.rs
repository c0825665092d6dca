//! A world for tests: one thread, virtual time, connections by reference, disks that lose power.
//!
//! Not the simulator: no model of network or device speed. Every disk operation takes a random, seeded, short virtual
//! time, so that operations under way together end in any order. A disk keeps what was synced apart from what was
//! only written; after a power loss each unsynced 512-byte sector is there or not, at random.
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use cache::frames::{Bulk, FramePool};
use rt::sync::Queue;
use rt::{BlockingFile, Connection, DiskFile, Listener, LocalFuture, Nid, OpenMode, Rt, Sink, Source, World};
use types::{Duration, Instant, Rng, WallTime};
use wire::Header;

const SECTOR: usize = 512;

struct TaskWaker {
    id: u64,
    ready: Arc<Mutex<VecDeque<u64>>>,
}
impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().expect("one thread").push_back(self.id);
    }
}

/// One file's images.
#[derive(Default, Clone)]
struct Image {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Written since the last sync.
    unsynced: Vec<(usize, usize)>,
}

impl Image {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.live.len() < offset + bytes.len() {
            self.live.resize(offset + bytes.len(), 0);
        }
        self.live[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.unsynced.push((offset, bytes.len()));
    }
    fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for (at, len) in std::mem::take(&mut self.unsynced) {
            let end = (at + len).min(self.live.len());
            if at < end {
                self.durable[at..end].copy_from_slice(&self.live[at..end]);
            }
        }
    }
    /// What is there after the power comes back.
    fn lose_power(&mut self, rng: &mut Rng) {
        if rng.chance(0.5) {
            self.durable.resize(self.live.len(), 0);
        }
        let keep = [0.0, 0.5, 1.0][rng.below(3) as usize];
        for (at, len) in std::mem::take(&mut self.unsynced) {
            let mut sector = at / SECTOR * SECTOR;
            while sector < at + len {
                let end = (sector + SECTOR).min(self.live.len()).min(self.durable.len());
                if sector < end && rng.chance(keep) {
                    self.durable[sector..end].copy_from_slice(&self.live[sector..end]);
                }
                sector += SECTOR;
            }
        }
        self.live = self.durable.clone();
    }
}

/// All files, and the switch that cuts their power.
#[derive(Default)]
struct Disks {
    files: BTreeMap<PathBuf, Image>,
    /// Writes and syncs so far.
    steps: u64,
    /// The step at which the power fails.
    stop_at: Option<u64>,
    off: bool,
    capacity: u64,
}

impl Disks {
    /// Counts one write or sync; fails when the power is off.
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        if self.stop_at.is_some_and(|s| self.steps > s) {
            self.off = true;
        }
        self.powered()
    }
    fn powered(&self) -> io::Result<()> {
        if self.off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }
    fn image(&mut self, path: &Path) -> io::Result<&mut Image> {
        self.powered()?;
        self.files.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn used(&self) -> u64 {
        self.files.values().map(|f| f.live.len() as u64).sum()
    }
}

struct Timer {
    at: Instant,
    seq: u64,
    waker: Waker,
}
impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.seq == other.seq
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

struct Inner {
    now: Cell<Instant>,
    seed: u64,
    rng: RefCell<Rng>,
    ready: Arc<Mutex<VecDeque<u64>>>,
    tasks: RefCell<HashMap<u64, LocalFuture<()>>>,
    next: Cell<u64>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    disks: Arc<Mutex<Disks>>,
    listeners: RefCell<HashMap<String, Rc<Queue<Connection>>>>,
    /// The next bulk that is sent arrives with a flipped bit.
    damage_bulk: Rc<Cell<bool>>,
    pool: FramePool,
}

/// A test's world.
#[derive(Clone)]
pub struct TestWorld(Rc<Inner>);

impl TestWorld {
    /// A world from a seed, with `pool_bytes` of page frames.
    #[must_use]
    pub fn new(seed: u64, pool_bytes: u64) -> TestWorld {
        TestWorld::with_pool(seed, FramePool::new(pool_bytes))
    }
    /// A world from a seed over an existing pool.
    #[must_use]
    pub fn with_pool(seed: u64, pool: FramePool) -> TestWorld {
        let disks = Disks { capacity: 1 << 40, ..Disks::default() };
        TestWorld(Rc::new(Inner {
            now: Cell::new(Instant(1_000_000)),
            seed,
            rng: RefCell::new(Rng::named(seed, "testworld")),
            ready: Arc::default(),
            tasks: RefCell::default(),
            next: Cell::new(1),
            timers: RefCell::default(),
            disks: Arc::new(Mutex::new(disks)),
            listeners: RefCell::default(),
            damage_bulk: Rc::default(),
            pool,
        }))
    }
    /// The handle that nodes get.
    #[must_use]
    pub fn rt(&self) -> Rt {
        Rt::new(Rc::new(self.clone()))
    }
    /// Runs until `future` has ended.
    ///
    /// # Panics
    /// When nothing can make progress any more.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let slot = Rc::new(RefCell::new(None));
        let out = slot.clone();
        self.start(Box::pin(async move {
            let value = future.await;
            *out.borrow_mut() = Some(value);
        }));
        loop {
            if let Some(v) = slot.borrow_mut().take() {
                return v;
            }
            assert!(self.turn(), "every task waits and no timer is set");
        }
    }
    fn start(&self, task: LocalFuture<()>) {
        let id = self.0.next.get();
        self.0.next.set(id + 1);
        self.0.tasks.borrow_mut().insert(id, task);
        self.0.ready.lock().expect("one thread").push_back(id);
    }
    /// Polls one task, or moves the clock to the next timer. Whether anything happened.
    fn turn(&self) -> bool {
        let id = self.0.ready.lock().expect("one thread").pop_front();
        if let Some(id) = id {
            let task = self.0.tasks.borrow_mut().remove(&id);
            if let Some(mut task) = task {
                let waker = Waker::from(Arc::new(TaskWaker { id, ready: self.0.ready.clone() }));
                if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                    self.0.tasks.borrow_mut().insert(id, task);
                }
            }
            return true;
        }
        let timer = self.0.timers.borrow_mut().pop();
        let Some(Reverse(timer)) = timer else { return false };
        self.0.now.set(self.0.now.get().max(timer.at));
        timer.waker.wake();
        true
    }
    /// Writes and syncs of all disks so far.
    #[must_use]
    pub fn disk_steps(&self) -> u64 {
        self.0.disks.lock().expect("one thread").steps
    }
    /// Cuts the power after `steps` writes and syncs in all.
    pub fn stop_disks_at(&self, steps: u64) {
        self.0.disks.lock().expect("one thread").stop_at = Some(steps);
    }
    /// Whether the power has failed.
    #[must_use]
    pub fn disks_are_off(&self) -> bool {
        self.0.disks.lock().expect("one thread").off
    }
    /// Bytes that all files together may have.
    pub fn set_disk_capacity(&self, bytes: u64) {
        self.0.disks.lock().expect("one thread").capacity = bytes;
    }
    /// Bytes that all files together have.
    #[must_use]
    pub fn disk_used(&self) -> u64 {
        self.0.disks.lock().expect("one thread").used()
    }
    /// Ends every task (without running destructors' async parts) and takes the disks as a power loss leaves them into
    /// a new world.
    #[must_use]
    pub fn power_cycle(&self, seed: u64) -> TestWorld {
        let next = TestWorld::with_pool(seed, self.0.pool);
        let mut rng = Rng::named(seed, "power loss");
        self.0.disks.lock().expect("one thread").off = true;
        self.0.tasks.borrow_mut().clear();
        self.0.timers.borrow_mut().clear();
        let old = self.0.disks.lock().expect("one thread");
        let mut files = old.files.clone();
        for f in files.values_mut() {
            f.lose_power(&mut rng);
        }
        let capacity = old.capacity;
        *next.0.disks.lock().expect("one thread") = Disks { files, capacity, ..Disks::default() };
        next
    }
    /// Changes bytes behind everyone's back.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut disks = self.0.disks.lock().expect("one thread");
        let image = disks.files.get_mut(path).expect("the file exists");
        change(&mut image.live);
        image.durable.clone_from(&image.live);
    }
    /// The next bulk that is sent over a connection arrives with a flipped bit.
    pub fn damage_next_bulk(&self) {
        self.0.damage_bulk.set(true);
    }
    /// Nobody listens at an address any more.
    pub fn close_listener(&self, nid: &Nid) {
        if let Some(queue) = self.0.listeners.borrow_mut().remove(&nid.to_string()) {
            queue.close();
        }
    }
    fn pause(&self) -> LocalFuture<()> {
        let ns = 1_000 + self.0.rng.borrow_mut().below(50_000);
        self.sleep_until(self.now() + Duration::from_nanos(ns))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.borrow_mut().clear();
    }
}

impl World for TestWorld {
    fn now(&self) -> Instant {
        self.0.now.get()
    }
    fn wall(&self) -> WallTime {
        WallTime(1_700_000_000_000_000_000 + self.0.now.get().0 as i64)
    }
    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        let me = self.clone();
        let mut set = false;
        Box::pin(std::future::poll_fn(move |cx| {
            if me.now() >= at {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut set, true) {
                let seq = me.0.next.get();
                me.0.next.set(seq + 1);
                me.0.timers.borrow_mut().push(Reverse(Timer { at, seq, waker: cx.waker().clone() }));
            }
            Poll::Pending
        }))
    }
    fn spawn(&self, task: LocalFuture<()>) {
        self.start(task);
    }
    fn seed(&self) -> u64 {
        self.0.seed
    }
    fn connect(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>> {
        let listener = self.0.listeners.borrow().get(&nid.to_string()).cloned();
        let Some(listener) = listener else {
            return Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) });
        };
        let (a, b) = (Rc::new(Queue::new()), Rc::new(Queue::new()));
        let end = |send: &Rc<Queue<Message>>, recv: &Rc<Queue<Message>>| Connection {
            sink: Rc::new(End { send: send.clone(), recv: recv.clone(), damage: self.0.damage_bulk.clone() }),
            source: Box::new(EndSource { recv: recv.clone(), bulk: Rc::default() }),
        };
        listener.push(end(&a, &b));
        let mine = end(&b, &a);
        Box::pin(async move { Ok(mine) })
    }
    fn listen(&self, nid: &Nid) -> io::Result<Box<dyn Listener>> {
        let queue = Rc::new(Queue::new());
        self.0.listeners.borrow_mut().insert(nid.to_string(), queue.clone());
        Ok(Box::new(TestListener { nid: nid.clone(), queue }))
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
        self.file(path, mode.create)?;
        Ok(Rc::new(TestFile { world: self.clone(), disks: self.0.disks.clone(), path: path.into() }))
    }
    fn open_blocking(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
        self.file(path, create)?;
        Ok(Box::new(TestBlockingFile { disks: self.0.disks.clone(), path: path.into() }))
    }
    fn offload(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        let pause = self.pause();
        Box::pin(async move {
            pause.await;
            job();
        })
    }
    fn frames(&self) -> FramePool {
        self.0.pool
    }
}

impl TestWorld {
    fn file(&self, path: &Path, create: bool) -> io::Result<()> {
        let mut disks = self.0.disks.lock().expect("one thread");
        disks.powered()?;
        if create {
            disks.files.entry(path.into()).or_default();
        }
        disks.image(path).map(|_| ())
    }
}

type Message = (Header, Vec<u8>, Bulk);

struct End {
    send: Rc<Queue<Message>>,
    recv: Rc<Queue<Message>>,
    damage: Rc<Cell<bool>>,
}
impl Sink for End {
    fn send(&self, mut header: Header, body: Vec<u8>, mut bulk: Bulk) {
        if !bulk.is_empty() && self.damage.take() {
            let mut bytes = bulk.to_vec();
            bytes[0] ^= 1;
            let pool = bulk.segments()[0].run.pool();
            bulk = Bulk::alloc(pool, bytes.len()).expect("the test's pool suffices");
            bulk.copy_in(0, &bytes);
        }
        header.body_len = body.len() as u32;
        header.bulk_len = bulk.len() as u32;
        self.send.push((header, body, bulk));
    }
    fn shares_memory(&self) -> bool {
        false
    }
    fn close(&self) {
        self.send.close();
        self.recv.close();
    }
    fn peer(&self) -> String {
        "test".into()
    }
}
struct EndSource {
    recv: Rc<Queue<Message>>,
    /// Bulk of the last message.
    bulk: Rc<RefCell<Option<Bulk>>>,
}
impl Source for EndSource {
    fn recv(&mut self) -> LocalFuture<io::Result<(Header, Vec<u8>)>> {
        let (queue, slot) = (self.recv.clone(), self.bulk.clone());
        Box::pin(async move {
            let Some((header, body, bulk)) = queue.pop().await else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            *slot.borrow_mut() = Some(bulk);
            Ok((header, body))
        })
    }
    fn recv_bulk(&mut self, _: usize, _: &dyn Fn(usize) -> LocalFuture<Bulk>) -> LocalFuture<io::Result<Bulk>> {
        let bulk = self.bulk.borrow_mut().take();
        Box::pin(async move { bulk.ok_or_else(|| io::ErrorKind::InvalidData.into()) })
    }
}

struct TestListener {
    nid: Nid,
    queue: Rc<Queue<Connection>>,
}
impl Listener for TestListener {
    fn accept(&self) -> LocalFuture<io::Result<Connection>> {
        let queue = self.queue.clone();
        Box::pin(async move { queue.pop().await.ok_or_else(|| io::ErrorKind::BrokenPipe.into()) })
    }
    fn nid(&self) -> Nid {
        self.nid.clone()
    }
}

struct TestFile {
    world: TestWorld,
    disks: Arc<Mutex<Disks>>,
    path: PathBuf,
}
impl TestFile {
    fn later<T: 'static>(
        &self,
        work: impl FnOnce(&mut Disks, &Path) -> io::Result<T> + 'static,
    ) -> LocalFuture<io::Result<T>> {
        let (pause, disks, path) = (self.world.pause(), self.disks.clone(), self.path.clone());
        Box::pin(async move {
            pause.await;
            work(&mut disks.lock().expect("one thread"), &path)
        })
    }
}
impl DiskFile for TestFile {
    fn read_at(&self, offset: u64, mut into: Bulk) -> LocalFuture<(io::Result<usize>, Bulk)> {
        let (pause, disks, path) = (self.world.pause(), self.disks.clone(), self.path.clone());
        Box::pin(async move {
            pause.await;
            let mut disks = disks.lock().expect("one thread");
            let image = match disks.image(&path) {
                Ok(i) => i,
                Err(e) => return (Err(e), into),
            };
            let start = (offset as usize).min(image.live.len());
            let end = (start + into.len()).min(image.live.len());
            into.copy_in(0, &image.live[start..end]);
            (Ok(end - start), into)
        })
    }
    fn write_at(&self, offset: u64, from: Bulk) -> LocalFuture<io::Result<()>> {
        self.later(move |disks, path| {
            disks.step()?;
            disks.image(path)?.write(offset as usize, &from.to_vec());
            Ok(())
        })
    }
    fn sync(&self) -> LocalFuture<io::Result<()>> {
        self.later(|disks, path| {
            disks.step()?;
            disks.image(path)?.sync();
            Ok(())
        })
    }
    fn allocate(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.later(move |disks, path| {
            disks.step()?;
            let (used, capacity) = (disks.used(), disks.capacity);
            let image = disks.image(path)?;
            let want = (offset + len) as usize;
            if want > image.live.len() {
                if used + (want - image.live.len()) as u64 > capacity {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                image.live.resize(want, 0);
            }
            Ok(())
        })
    }
    fn punch(&self, offset: u64, len: u64) -> LocalFuture<io::Result<()>> {
        self.later(move |disks, path| {
            disks.step()?;
            let image = disks.image(path)?;
            let end = ((offset + len) as usize).min(image.live.len());
            let zeros = vec![0; end.saturating_sub(offset as usize)];
            image.write(offset as usize, &zeros);
            Ok(())
        })
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.disks.lock().expect("one thread").image(&self.path)?.live.len() as u64)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disks = self.disks.lock().expect("one thread");
        disks.image(&self.path)?.live.resize(len as usize, 0);
        Ok(())
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        let disks = self.disks.lock().expect("one thread");
        Ok((disks.capacity.saturating_sub(disks.used()), disks.capacity))
    }
}

struct TestBlockingFile {
    disks: Arc<Mutex<Disks>>,
    path: PathBuf,
}
impl BlockingFile for TestBlockingFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut disks = self.disks.lock().expect("one thread");
        let image = disks.image(&self.path)?;
        let bytes = image.live.get(offset as usize..offset as usize + into.len());
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let mut disks = self.disks.lock().expect("one thread");
        disks.step()?;
        disks.image(&self.path)?.write(offset as usize, from);
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.disks.lock().expect("one thread").image(&self.path)?.live.len() as u64)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disks = self.disks.lock().expect("one thread");
        disks.step()?;
        disks.image(&self.path)?.live.resize(len as usize, 0);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        let mut disks = self.disks.lock().expect("one thread");
        disks.step()?;
        disks.image(&self.path)?.sync();
        Ok(())
    }
}
