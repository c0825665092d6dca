//! The executor: tasks of all processes in one queue, a clock that moves when none can run.
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use frames::FramePool;
use rt::LocalFuture;
use rustc_hash::FxBuildHasher;
use types::{Duration, Instant, Rng};

use crate::hash::StateHash;
use crate::host::{Host, HostState, Process};
use crate::net::Net;
use crate::{SimConfig, Work};

/// Polls in a row without time passing that are taken for a loop that will not end.
const POLLS_AT_ONCE_MAX: u64 = 20_000_000;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// The time in the world that ran last on this thread: for logs.
#[must_use]
pub fn time_here() -> Instant {
    Instant(NOW.get())
}

/// Tasks that can run, in the order in which they were woken.
#[derive(Default)]
struct Ready(Mutex<VecDeque<u64>>);
impl Ready {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}
impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Relaxed) {
            self.ready.lock().push_back(self.id);
        }
    }
}

struct Task {
    /// Whose it is; `None`: nobody's.
    process: Option<Rc<Process>>,
    /// `None`: it is being polled.
    future: Option<LocalFuture<()>>,
    waker: Arc<TaskWaker>,
}

/// Who waits for a moment. A timer whose owner has gone does not move the clock.
pub(crate) type Sleeper = Rc<RefCell<Option<Waker>>>;

enum Due {
    Wake(Sleeper),
    Event(Box<dyn FnOnce()>),
}

struct Timer {
    at: Instant,
    seq: u64,
    due: Due,
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

/// What hosts, processes, connections and disks share.
pub(crate) struct Core {
    pub config: SimConfig,
    pub clock: Arc<AtomicU64>,
    pub rng: RefCell<Rng>,
    pub hash: Cell<StateHash>,
    /// Messages and starts so far.
    pub work: Cell<Work>,
    polls: Cell<u64>,
    moments: Cell<u64>,
    pub pool: FramePool,
    pub net: Net,
    pub hosts: RefCell<Vec<Rc<HostState>>>,
    /// Set by a disk whose power failed by itself.
    pub tripped: Arc<AtomicBool>,
    order: RefCell<Rng>,
    ids: Cell<u64>,
    ready: Arc<Ready>,
    tasks: RefCell<HashMap<u64, Task, FxBuildHasher>>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    polls_at_once: Cell<u64>,
}

impl Core {
    pub fn now(&self) -> Instant {
        Instant(self.clock.load(Relaxed))
    }
    pub fn id(&self) -> u64 {
        let id = self.ids.get() + 1;
        self.ids.set(id);
        id
    }
    pub fn fold(&self, word: u64) {
        let mut hash = self.hash.get();
        hash.fold(word);
        self.hash.set(hash);
    }
    /// Counts work.
    pub fn count(&self, f: impl FnOnce(&mut Work)) {
        let mut work = self.work.get();
        f(&mut work);
        self.work.set(work);
    }
    /// Uniform in `min..=max`.
    pub fn between(&self, min: u64, max: u64) -> u64 {
        min + self.rng.borrow_mut().below(max.saturating_sub(min) + 1)
    }
    pub fn chance(&self, p: f64) -> bool {
        p > 0.0 && self.rng.borrow_mut().chance(p)
    }
    pub fn at(&self, at: Instant, event: impl FnOnce() + 'static) {
        self.push_timer(at, Due::Event(Box::new(event)));
    }
    pub fn wake_at(&self, at: Instant, sleeper: Sleeper) {
        self.push_timer(at, Due::Wake(sleeper));
    }
    fn push_timer(&self, at: Instant, due: Due) {
        let seq = self.id();
        self.timers.borrow_mut().push(Reverse(Timer { at, seq, due }));
    }
    /// Tasks that were held back may run.
    pub fn release(&self, tasks: Vec<u64>) {
        self.ready.lock().extend(tasks);
    }
    pub fn spawn(&self, process: Option<Rc<Process>>, future: LocalFuture<()>) {
        let id = self.id();
        let waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(true), ready: self.ready.clone() });
        self.tasks.borrow_mut().insert(id, Task { process, future: Some(future), waker });
        self.ready.lock().push_back(id);
    }
    /// Drops every task of a process.
    pub fn end_tasks(&self, process: u64) {
        let dead: Vec<Task> = {
            let mut tasks = self.tasks.borrow_mut();
            let is_its = |t: &Task| t.process.as_ref().is_some_and(|p| p.id == process);
            let mut ids: Vec<u64> = tasks.iter().filter(|(_, t)| is_its(t)).map(|(id, _)| *id).collect();
            ids.sort_unstable();
            ids.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        // Outside the table: what they held may speak to the world as it goes.
        drop(dead);
    }

    fn next_ready(&self) -> Option<u64> {
        let mut ready = self.ready.lock();
        let shuffle = self.config.shuffle;
        if shuffle > 0.0 && ready.len() > 1 {
            let mut order = self.order.borrow_mut();
            if order.chance(shuffle) {
                let at = order.below(ready.len() as u64) as usize;
                return ready.remove(at);
            }
        }
        ready.pop_front()
    }

    fn poll_task(&self, id: u64) {
        let (process, mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(&id) else { return };
            if task.process.as_ref().is_some_and(|p| p.alive.get() && p.host.holds_back(id)) {
                return;
            }
            let Some(future) = task.future.take() else { return };
            (task.process.clone(), future, task.waker.clone())
        };
        waker.queued.store(false, Relaxed);
        let waker = Waker::from(waker);
        let pending = future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        let alive = process.is_none_or(|p| p.alive.get());
        let mut rest = Some(future);
        let mut tasks = self.tasks.borrow_mut();
        if !(pending && alive) {
            tasks.remove(&id);
        } else if let Some(task) = tasks.get_mut(&id) {
            task.future = rest.take();
        }
        drop(tasks);
        // Outside of the table: what the task held may speak to the world as it goes.
        drop(rest);
        if self.tripped.swap(false, Relaxed) {
            self.power_failures();
        }
    }

    /// Hosts whose disk lost its power by itself lose theirs.
    fn power_failures(&self) {
        let hosts = self.hosts.borrow().clone();
        for host in hosts {
            if host.process().is_some() && host.disk.lock().off {
                host.lose_power(self);
            }
        }
    }

    /// Polls a task that can run; whether there was one.
    fn run_one(&self) -> bool {
        let Some(id) = self.next_ready() else { return false };
        self.polls.set(self.polls.get() + 1);
        self.polls_at_once.set(self.polls_at_once.get() + 1);
        assert!(self.polls_at_once.get() < POLLS_AT_ONCE_MAX, "tasks run on and on at {:?}", self.now());
        self.poll_task(id);
        true
    }

    /// Moves the clock to the next timer, unless that lies behind `limit`; whether there was one.
    fn advance(&self, limit: Instant) -> bool {
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                let Some(Reverse(first)) = timers.peek() else { return false };
                let idle = matches!(&first.due, Due::Wake(s) if s.borrow().is_none());
                if !idle && first.at > limit {
                    return false;
                }
                let Some(Reverse(timer)) = timers.pop() else { return false };
                if idle {
                    continue;
                }
                if timer.at > self.now() {
                    self.clock.store(timer.at.0, Relaxed);
                    NOW.set(timer.at.0);
                    self.polls_at_once.set(0);
                }
                timer.due
            };
            self.moments.set(self.moments.get() + 1);
            match due {
                Due::Event(event) => event(),
                Due::Wake(sleeper) => {
                    if let Some(waker) = sleeper.borrow_mut().take() {
                        waker.wake();
                    }
                }
            }
            return true;
        }
    }

    fn clear(&self) {
        let hosts = self.hosts.borrow().clone();
        for host in &hosts {
            host.end(self);
            host.forget_words();
        }
        let mut tasks: Vec<(u64, Task)> = self.tasks.borrow_mut().drain().collect();
        tasks.sort_unstable_by_key(|(id, _)| *id);
        drop(tasks);
        let timers = std::mem::take(&mut *self.timers.borrow_mut());
        drop(timers);
        self.net.clear();
        self.ready.lock().clear();
        drop(hosts);
        crate::image::give_back();
        crate::memory::give_back();
    }
}

/// A simulated world. Dropping it ends everything in it; whose tasks hold it has to call [`Sim::end`].
pub struct Sim(pub(crate) Rc<Core>);

struct Flag(AtomicBool);
impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

impl Sim {
    /// A world without hosts. `pool` holds the page frames of all its processes.
    #[must_use]
    pub fn new(config: SimConfig, pool: FramePool) -> Sim {
        let seed = config.seed;
        Sim(Rc::new(Core {
            config,
            clock: Arc::new(AtomicU64::new(1_000_000)),
            rng: RefCell::new(Rng::named(seed, "world")),
            hash: Cell::default(),
            work: Cell::default(),
            polls: Cell::new(0),
            moments: Cell::new(0),
            pool,
            net: Net::default(),
            hosts: RefCell::default(),
            tripped: Arc::default(),
            order: RefCell::new(Rng::named(seed, "order of tasks")),
            ids: Cell::new(0),
            ready: Arc::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            polls_at_once: Cell::new(0),
        }))
    }
    /// One more host, not yet booted. Its address is 10.0.0.N, N counted from 1.
    pub fn host(&self, name: &str) -> Host {
        Host::add(&self.0, name)
    }
    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.0.now()
    }
    /// Tasks polled so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.0.polls.get()
    }
    /// What was done so far.
    #[must_use]
    pub fn work(&self) -> Work {
        let (polls, timers) = (self.0.polls.get(), self.0.moments.get());
        let mut work = Work { virtual_ns: self.now().0, polls, timers, ..self.0.work.get() };
        for host in self.0.hosts.borrow().iter() {
            work += host.disk.lock().work;
        }
        work
    }
    /// Messages delivered and syncs carried out so far, in their order and to the byte.
    #[must_use]
    pub fn hash(&self) -> StateHash {
        let mut hash = self.0.hash.get();
        for host in self.0.hosts.borrow().iter() {
            hash.fold(host.disk.lock().hash.0);
        }
        hash
    }
    /// Runs until `future` has ended; it belongs to no process.
    ///
    /// # Panics
    /// When nothing can happen any more.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.drive(future, Instant(u64::MAX)).expect("every task waits and no timer is set")
    }
    /// Runs until `future` has ended or `limit` has passed, whichever comes first.
    pub fn run_for<T>(&self, future: impl Future<Output = T>, limit: Duration) -> Option<T> {
        self.drive(future, self.now() + limit)
    }
    /// Lets everything happen that can happen without time passing.
    pub fn settle(&self) {
        while self.0.run_one() {}
    }
    /// Waits, outside of all processes.
    pub fn sleep(&self, time: Duration) -> LocalFuture<()> {
        crate::host::sleep_until(self.0.clone(), self.now() + time)
    }
    /// Runs a task outside of all processes.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn(None, Box::pin(task));
    }
    /// Ends everything in it: processes, tasks, what waits for a moment, connections. What its tasks hold goes with them, be it the world.
    pub fn end(&self) {
        self.0.clear();
    }
    fn drive<T>(&self, future: impl Future<Output = T>, limit: Instant) -> Option<T> {
        let mut future = pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        loop {
            if flag.0.swap(false, Relaxed)
                && let Poll::Ready(v) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Some(v);
            }
            if !self.0.run_one() && !flag.0.load(Relaxed) && !self.0.advance(limit) {
                return None;
            }
        }
    }
    /// Messages between two hosts stay away, in both directions, until [`Sim::heal`].
    pub fn cut(&self, a: &Host, b: &Host) {
        self.0.net.cut(a.state.index, b.state.index, true);
        self.0.net.cut(b.state.index, a.state.index, true);
    }
    /// Messages of one host to another stay away until [`Sim::heal`]; those in the other direction come.
    pub fn cut_one_way(&self, from: &Host, to: &Host) {
        self.0.net.cut(from.state.index, to.state.index, true);
    }
    /// Messages between two hosts come again: what waited comes within as long as the cut lasted, as TCP tries again.
    pub fn heal(&self, a: &Host, b: &Host) {
        self.0.net.cut(a.state.index, b.state.index, false);
        self.0.net.cut(b.state.index, a.state.index, false);
        self.0.net.wake_stalled(&self.0);
    }
    /// Resets the connections between two hosts; gives their number.
    pub fn reset(&self, a: &Host, b: &Host) -> usize {
        self.0.net.reset(a.state.index, b.state.index)
    }
    /// What happened to messages by chance so far.
    #[must_use]
    pub fn net_counts(&self) -> crate::NetCounts {
        self.0.net.counts.get()
    }
    /// The next bulk sent anywhere arrives with a flipped bit.
    pub fn corrupt_next_bulk(&self) {
        self.0.net.corrupt_next.set(true);
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_that_is_ended_is_dropped_with_the_tasks_and_words_that_hold_it() {
        let sim = Rc::new(Sim::new(SimConfig::new(1), FramePool::new(1 << 20)));
        let (world, host) = (Rc::downgrade(&sim), sim.host("host"));
        let _rt = host.boot();
        let (task, words, event) = (sim.clone(), sim.clone(), sim.clone());
        sim.spawn(async move {
            std::future::pending::<()>().await;
            drop(task);
        });
        let _silent = host.falls_silent(move |_| words.now() > Instant::ZERO, 1);
        sim.0.at(Instant(u64::MAX), move || drop(event));
        sim.settle();
        sim.end();
        drop((sim, host));
        assert!(world.upgrade().is_none());
    }
}
