//! Hosts and their processes: booted, killed, without power.
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use frames::FramePool;
use rt::sync::{OneReceiver, OneSender, oneshot};
use rt::{
    BlockingFile, Connection, DirLock, DiskFile, Head, Listener, LocalFuture, LockError, Nid, OpenMode, Rt, World,
};
use types::{Duration, Instant, Origin, Rng, WallTime};

use crate::disk::{Access, DiskFault, DiskRef};
use crate::exec::{Core, Sleeper};
use crate::file::{DataFile, DiskTimes, StoreFile};
use crate::memory::Memory;

/// Wall time at the beginning of every world.
const EPOCH_NS: i64 = 1_700_000_000_000_000_000;

/// Bytes of the file by which a medium is probed.
const PROBE_BYTES: u64 = 64 << 10;

/// A process that runs, or ran, on a host.
pub(crate) struct Process {
    pub id: u64,
    pub host: Rc<HostState>,
    pub alive: Cell<bool>,
    /// Page frames of its own; `None`: it shares those of the world.
    memory: Option<Memory>,
}

impl Process {
    fn refusals(&self) -> u64 {
        self.memory.as_ref().map_or(0, |m| m.pool().refusals())
    }
}

/// Whether a count begins with the message of this head.
type Begins = Box<dyn Fn(&Head) -> bool>;

/// Messages that a process still sends.
struct LastWords {
    /// The message with which the count begins; `None`: it has begun.
    from: Option<Begins>,
    left: u64,
    /// Who is told when there are none left.
    told: Option<OneSender<()>>,
}

/// What a host is over all its processes.
pub(crate) struct HostState {
    pub index: usize,
    pub name: String,
    /// Its processes know on which machine they run.
    knows_machine: Cell<bool>,
    pub disk: DiskRef,
    /// Bytes of page frames of each process; `None`: all share those of the world.
    memory_bytes: Cell<Option<u64>>,
    /// Allocations that found no frame in processes that are gone.
    refused: Cell<u64>,
    /// The operating system runs: it answers for dead processes.
    pub up: Cell<bool>,
    /// How often its power went.
    outages: Cell<u64>,
    process: RefCell<Option<Rc<Process>>>,
    skew_ns: Cell<i64>,
    /// Millionths by which its clocks run faster.
    drift_ppm: i64,
    /// When its process last went on after a stop.
    awake_since: Cell<Instant>,
    /// Its process is stopped, as by SIGSTOP; tasks that could run meanwhile.
    stopped: Cell<bool>,
    held: RefCell<Vec<u64>>,
    last_wall: Cell<i64>,
    /// What its process says before it falls silent.
    words: RefCell<Option<LastWords>>,
    /// When each direction of its NIC is free.
    pub nic_out: Cell<u64>,
    pub nic_in: Cell<u64>,
}

impl HostState {
    pub fn process(&self) -> Option<Rc<Process>> {
        self.process.borrow().clone()
    }
    pub fn runs(&self, process: u64) -> bool {
        self.process.borrow().as_ref().is_some_and(|p| p.id == process)
    }
    /// What [`Origin::host`] is in its present boot.
    fn of_boot(&self) -> u64 {
        self.outages.get() << 32 | (self.index as u64 + 1)
    }
    fn boot(self: &Rc<Self>, core: &Rc<Core>) -> Rc<Process> {
        assert!(self.process.borrow().is_none(), "{} runs already", self.name);
        let memory = self.memory_bytes.get().map(Memory::new);
        let process = Rc::new(Process { id: core.id(), host: self.clone(), alive: Cell::new(true), memory });
        self.disk.lock().boot(process.id);
        self.stopped.set(false);
        self.words.take();
        self.held.borrow_mut().clear();
        self.up.set(true);
        core.count(|w| w.starts += 1);
        *self.process.borrow_mut() = Some(process.clone());
        core.net.wake_stalled(core);
        process
    }
    /// Nobody waits for its last words any more, or looks at what it says.
    pub fn forget_words(&self) {
        drop(self.words.take());
    }
    /// Whether a task of its process has to wait, because the process is stopped.
    pub fn holds_back(&self, task: u64) -> bool {
        if self.stopped.get() {
            self.held.borrow_mut().push(task);
        }
        self.stopped.get()
    }
    /// Whether its process still says something: a message is to be sent.
    pub fn speaks(&self, head: &Head) -> bool {
        let mut words = self.words.borrow_mut();
        let Some(words) = words.as_mut() else { return true };
        if words.from.as_ref().is_some_and(|from| !from(head)) {
            return true;
        }
        words.from = None;
        if words.left == 0 {
            return false;
        }
        words.left -= 1;
        if words.left == 0
            && let Some(told) = words.told.take()
        {
            told.send(());
        }
        true
    }
    /// What its clock shows at a time of the world.
    fn clock_at(&self, world: Instant) -> Instant {
        let drift = i128::from(world.0) * i128::from(self.drift_ppm) / 1_000_000;
        Instant(u64::try_from(i128::from(world.0) + drift).unwrap_or(u64::MAX))
    }
    /// The time of the world at which its clock shows `clock`, or a little later.
    fn world_at(&self, clock: Instant) -> Instant {
        if self.drift_ppm == 0 {
            return clock;
        }
        let time = i128::from(clock.0) * 1_000_000 / i128::from(1_000_000 + self.drift_ppm) + 2;
        Instant(u64::try_from(time).unwrap_or(u64::MAX))
    }
    fn gone(&self, process: &Process) {
        process.alive.set(false);
        self.refused.set(self.refused.get() + process.refusals());
    }
    /// The process ends; its operating system closes its connections.
    pub fn end(&self, core: &Core) {
        let Some(process) = self.process.borrow_mut().take() else { return };
        self.gone(&process);
        self.disk.lock().process_ended();
        core.net.process_ended(&process, true);
        core.end_tasks(process.id);
    }
    pub fn lose_power(&self, core: &Core) {
        let process = self.process.borrow_mut().take();
        self.up.set(false);
        self.outages.set(self.outages.get() + 1);
        self.disk.lock().lose_power();
        let Some(process) = process else { return };
        self.gone(&process);
        core.net.process_ended(&process, false);
        core.end_tasks(process.id);
    }
}

/// A host of a [`crate::Sim`]; cheap to clone.
#[derive(Clone)]
pub struct Host {
    core: Rc<Core>,
    pub(crate) state: Rc<HostState>,
}

impl Host {
    pub(crate) fn add(core: &Rc<Core>, name: &str) -> Host {
        let mut hosts = core.hosts.borrow_mut();
        let (c, seed) = (&core.config, core.config.seed);
        let skew_max = c.clock_skew_max.as_nanos() as u64;
        let skew = Rng::named(seed, &format!("clock {name}")).below(2 * skew_max + 1) as i64 - skew_max as i64;
        let drift_max = c.clock_drift_ppm_max;
        let drift = Rng::named(seed, &format!("drift {name}")).below(2 * drift_max + 1) as i64 - drift_max as i64;
        let disk = DiskRef::new(seed, name, c.disk_capacity_bytes, core.clock.clone(), core.tripped.clone());
        let state = Rc::new(HostState {
            index: hosts.len(),
            name: name.into(),
            knows_machine: Cell::new(Rng::named(seed, &format!("machine {name}")).below(2) == 1),
            disk,
            memory_bytes: Cell::new(None),
            refused: Cell::new(0),
            up: Cell::new(false),
            outages: Cell::new(0),
            process: RefCell::new(None),
            skew_ns: Cell::new(skew),
            drift_ppm: drift,
            awake_since: Cell::new(Instant::ZERO),
            stopped: Cell::new(false),
            held: RefCell::default(),
            last_wall: Cell::new(0),
            words: RefCell::default(),
            nic_out: Cell::new(0),
            nic_in: Cell::new(0),
        });
        hosts.push(state.clone());
        Host { core: core.clone(), state }
    }
    /// What its clock shows.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        WallTime(EPOCH_NS + self.state.clock_at(self.core.now()).0 as i64 + self.state.skew_ns.get())
    }
    /// Its clock is set: from now on it shows so many nanoseconds more, or less, than those of the world.
    pub fn set_clock(&self, ahead_ns: i64) {
        self.state.skew_ns.set(ahead_ns);
        self.state.last_wall.set(0);
    }
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.name
    }
    /// An address of it, as [`Rt::listen`] and [`Rt::connect`] take it.
    #[must_use]
    pub fn nid(&self, port: u16) -> Nid {
        Nid::Tcp(SocketAddr::new(address(self.state.index), port))
    }
    /// Starts a process over what the disk holds; what was broken about the disk is repaired.
    ///
    /// # Panics
    /// When one runs already.
    #[must_use]
    pub fn boot(&self) -> Rt {
        let process = self.state.boot(&self.core);
        Rt::new(Rc::new(ProcessWorld { core: self.core.clone(), process }))
    }
    /// Processes that start from now on have so many bytes of page frames, each its own; `None`: they share those of the world.
    pub fn set_memory(&self, bytes: Option<u64>) {
        self.state.memory_bytes.set(bytes);
    }
    /// How often its processes found no page frame in an arena of their own.
    #[must_use]
    pub fn short_of_memory(&self) -> u64 {
        let of_this = self.state.process().map_or(0, |p| p.refusals());
        self.state.refused.get() + of_this
    }
    /// Whether its processes know on which machine they run; drawn from the seed.
    pub fn set_knows_machine(&self, knows: bool) {
        self.state.knows_machine.set(knows);
    }
    /// Whether a process runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.state.process.borrow().is_some()
    }
    /// Ends the process as `kill -9` does: what it wrote stays, its connections are closed for it.
    pub fn kill(&self) {
        self.state.end(&self.core);
    }
    /// Stops the process as SIGSTOP does: its connections stay, and nobody is told.
    pub fn stop_process(&self) {
        self.state.stopped.set(self.runs());
    }
    /// Whether its process is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state.stopped.get()
    }
    /// Lets a stopped process go on.
    pub fn continue_process(&self) {
        if self.state.stopped.replace(false) {
            self.state.awake_since.set(self.state.clock_at(self.core.now()));
        }
        self.core.release(std::mem::take(&mut *self.state.held.borrow_mut()));
    }
    /// Its process sends so many messages more, from the first one on whose head is as asked for, and then none, as one does
    /// that dies at that moment: completes when the last one was sent. To be followed by the process's end.
    pub fn falls_silent(&self, from: impl Fn(&Head) -> bool + 'static, messages: u64) -> OneReceiver<()> {
        let (told, silent) = oneshot();
        let words = LastWords { from: Some(Box::new(from)), left: messages.max(1), told: Some(told) };
        *self.state.words.borrow_mut() = Some(words);
        silent
    }
    /// The power goes: of what was not synced each sector is there or not, and nobody is told.
    pub fn lose_power(&self) {
        self.state.lose_power(&self.core);
    }
    /// The power goes before the `nth` sync from now (1: before the next).
    pub fn lose_power_at_sync(&self, nth: u64) {
        let mut disk = self.state.disk.lock();
        let at = disk.syncs + nth.max(1) - 1;
        disk.stop_at_sync = Some(at);
    }
    /// The disk, and only the disk, goes off after so many writes and syncs from now.
    pub fn stop_disk_after(&self, steps: u64) {
        let mut disk = self.state.disk.lock();
        let at = disk.steps + steps;
        disk.stop_at = Some(at);
    }
    /// Whether the disk has no power.
    #[must_use]
    pub fn disk_is_off(&self) -> bool {
        self.state.disk.lock().off
    }
    /// The next so many reads of data files bring a flipped bit each, until the next boot at the latest.
    pub fn set_bit_rot(&self, reads: u32) {
        self.state.disk.lock().rot = reads;
    }
    /// Operations of the disk fail, until the next boot at the latest.
    pub fn set_disk_fault(&self, fault: DiskFault) {
        self.state.disk.lock().fault = fault;
    }
    /// The disk takes so many times longer. 1: as usual.
    pub fn set_disk_slowness(&self, times: u64) {
        self.state.disk.lock().slow = times.max(1);
    }
    /// The disk stands still: what is asked of it from now on until `time` has passed takes until then.
    pub fn stall_disk(&self, time: Duration) {
        let until = self.core.now() + time;
        self.state.disk.lock().stalled_until = until.0;
    }
    /// For how long the disk stands still yet.
    #[must_use]
    pub fn disk_stalled_for(&self) -> Duration {
        Duration::from_nanos(self.state.disk.lock().stalled_ns())
    }
    /// Bytes that all files together may have.
    pub fn set_disk_capacity(&self, bytes: u64) {
        self.state.disk.lock().capacity = bytes;
    }
    /// The longest file that the file system can have.
    pub fn set_file_max(&self, bytes: u64) {
        self.state.disk.lock().file_max = bytes;
    }
    /// Another program takes what the file system has left, but for so many bytes; `None`: it gives everything back.
    pub fn fill_disk(&self, but: Option<u64>) {
        self.state.disk.lock().fill(but);
    }
    /// Bytes that all files together have.
    #[must_use]
    pub fn disk_used(&self) -> u64 {
        self.state.disk.lock().used()
    }
    /// A bit flips in every page of a file that holds exactly `content`, on the medium, and stays so: which pages.
    #[must_use]
    pub fn rot_pages(&self, path: &Path, content: &[u8], bit: u64) -> Vec<u64> {
        self.state.disk.lock().rot_pages(path, content, bit)
    }
    /// A bit of a file flips on the medium, and stays so; whether there is something there but zeros that nobody wrote.
    pub fn flip(&self, path: &Path, bit: u64) -> bool {
        self.state.disk.lock().flip(path, bit)
    }
    /// What some page of a file holds that is not all zeros, by its number among all of these in a circle; `None`: there is none.
    #[must_use]
    pub fn some_page(&self, path: &Path, nth: u64) -> Option<Vec<u8>> {
        self.state.disk.lock().some_page(path, nth)
    }
    /// Changes bytes of a file behind everyone's back.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        self.state.disk.lock().damage(path, change);
    }
    /// Nobody listens at an address any more.
    pub fn close_listener(&self, nid: &Nid) {
        self.core.net.close_listener(nid);
    }
}

fn address(index: usize) -> IpAddr {
    let [_, _, high, low] = (index as u32 + 1).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(10, 0, high, low))
}

/// The host behind an address of [`Host::nid`].
pub(crate) fn index_of(nid: &Nid) -> Option<usize> {
    match nid {
        Nid::Tcp(SocketAddr::V4(a)) => match a.ip().octets() {
            [10, 0, high, low] => (usize::from(high) << 8 | usize::from(low)).checked_sub(1),
            _ => None,
        },
        _ => None,
    }
}

struct Sleep {
    core: Rc<Core>,
    at: Instant,
    sleeper: Option<Sleeper>,
}
impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.now() >= self.at {
            return Poll::Ready(());
        }
        match &self.sleeper {
            Some(s) => *s.borrow_mut() = Some(cx.waker().clone()),
            None => {
                let sleeper: Sleeper = Rc::new(RefCell::new(Some(cx.waker().clone())));
                self.core.wake_at(self.at, sleeper.clone());
                self.sleeper = Some(sleeper);
            }
        }
        Poll::Pending
    }
}
impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(s) = &self.sleeper {
            s.borrow_mut().take();
        }
    }
}

pub(crate) fn sleep_until(core: Rc<Core>, at: Instant) -> LocalFuture<()> {
    Box::pin(Sleep { core, at, sleeper: None })
}

/// The world as one process sees it.
#[derive(Clone)]
pub(crate) struct ProcessWorld {
    pub core: Rc<Core>,
    pub process: Rc<Process>,
}

impl ProcessWorld {
    fn times(&self) -> DiskTimes {
        let c = &self.core.config;
        DiskTimes {
            min_ns: c.disk_min.as_nanos() as u64,
            max_ns: c.disk_max.as_nanos() as u64,
            sync_ns: c.sync_time.as_nanos() as u64,
            bytes_per_s: c.disk_bytes_per_s,
        }
    }
    /// Nanoseconds that an operation on this host's disk takes.
    pub fn disk_time(&self, access: Access, bytes: u64) -> u64 {
        let (slow, stalled) = {
            let disk = self.process.host.disk.lock();
            (disk.slow, disk.stalled_ns())
        };
        stalled + self.times().of(access, bytes, |n| self.core.rng.borrow_mut().below(n)) * slow
    }
    fn dead(&self) -> io::Result<()> {
        if self.process.alive.get() { Ok(()) } else { Err(io::Error::other("the process has ended")) }
    }
}

impl World for ProcessWorld {
    fn now(&self) -> Instant {
        self.process.host.clock_at(self.core.now())
    }
    fn wall(&self) -> WallTime {
        let host = &self.process.host;
        let now = (EPOCH_NS + self.now().0 as i64 + host.skew_ns.get()).max(host.last_wall.get() + 1);
        host.last_wall.set(now);
        WallTime(now)
    }
    fn awake_since(&self) -> Instant {
        self.process.host.awake_since.get()
    }
    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        sleep_until(self.core.clone(), self.process.host.world_at(at))
    }
    fn spawn(&self, task: LocalFuture<()>) {
        if self.process.alive.get() {
            self.core.spawn(Some(self.process.clone()), task);
        }
    }
    fn seed(&self) -> u64 {
        self.core.config.seed
    }
    fn fill_secret(&self, into: &mut [u8]) {
        let mut rng = self.core.rng.borrow_mut();
        for piece in into.chunks_mut(8) {
            piece.copy_from_slice(&rng.next_u64().to_le_bytes()[..piece.len()]);
        }
    }
    fn connect(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>> {
        crate::net::connect(self.core.clone(), self.process.clone(), nid.clone())
    }
    fn listen(&self, nid: &Nid) -> io::Result<Box<dyn Listener>> {
        self.dead()?;
        crate::net::listen(&self.core, &self.process, nid)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
        let disk = self.process.host.disk.clone();
        let file = disk.lock().open(self.process.id, path, mode.create)?;
        Ok(Rc::new(DataFile { world: self.clone(), disk, file, open: Rc::new(()) }))
    }
    fn open_blocking(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
        let disk = self.process.host.disk.clone();
        let file = disk.lock().open(self.process.id, path, create)?;
        Ok(Box::new(StoreFile { disk, process: self.process.id, file, times: self.times() }))
    }
    fn lock_dir(&self, _dir: &Path) -> Result<DirLock, LockError> {
        // A host runs one process at a time.
        Ok(DirLock::needless())
    }
    fn try_lock_dir(&self, _dir: &Path) -> Result<DirLock, LockError> {
        Ok(DirLock::needless())
    }
    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.process.host.disk.lock().unlink(self.process.id, path)
    }
    fn replace(&self, new: &Path, old: &Path, aside: &Path) -> io::Result<()> {
        self.process.host.disk.lock().replace(self.process.id, new, old, aside)
    }
    fn offload(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        let me = self.clone();
        Box::pin(async move {
            // A worker takes its time to begin; what the job does to the disk is done at once and paid for behind it.
            let begin = me.core.between(1_000, 30_000);
            me.sleep_until(me.now() + Duration::from_nanos(begin)).await;
            let disk = me.process.host.disk.clone();
            disk.lock().accrued_ns = 0;
            job();
            let took = std::mem::take(&mut disk.lock().accrued_ns);
            me.sleep_until(me.now() + Duration::from_nanos(took)).await;
        })
    }
    fn probe(&self, _dir: &Path) -> LocalFuture<io::Result<()>> {
        let me = self.clone();
        Box::pin(async move {
            for access in [Access::Write, Access::Sync, Access::Read] {
                me.sleep_until(me.now() + Duration::from_nanos(me.disk_time(access, PROBE_BYTES))).await;
                me.process.host.disk.lock().probe(me.process.id, access, PROBE_BYTES)?;
            }
            Ok(())
        })
    }
    fn frames(&self) -> FramePool {
        self.process.memory.as_ref().map_or(self.core.pool, Memory::pool)
    }
    fn origin(&self) -> Origin {
        let host = &self.process.host;
        let machine = if host.knows_machine.get() { host.index as u64 + 1 } else { 0 };
        Origin { machine, boot: host.of_boot(), host: host.of_boot(), process: self.process.id }
    }
    fn is_gone(&self, process: Origin) -> bool {
        let host = &self.process.host;
        process.host == host.of_boot() && !host.runs(process.process)
    }
}
