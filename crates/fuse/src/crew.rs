//! A worker's tasks: one per slot, each serving one request at a time, all on the current thread's runtime.
//!
//! A slot whose request waits (for a lock, a server) is not available, and queues do not steal from one another. So that
//! waiting requests never keep new ones out, the crew grows when free slots run short, up to a limit that is counted. While
//! the kernel drops pages the limit does not hold ([`crate::drops`]); readers beyond it end when that is over. Requests that wait as long
//! as programs please (for each other's locks) say so, and have a part of the slots only ([`crate::Request::lasting`]).
//!
//! A ring entry that is registered while requests already queue does not pick them up: the kernel gives an entry a
//! queued request only when it commits a reply. So after growing, the queue is kicked: from its CPU a statfs(2) is sent
//! through the mount for every new entry, each of which takes an idle entry and, being answered (here, without the file system), draws a
//! queued request.
use crate::abi::{InHeader, opcode};
use crate::drops::Drops;
use crate::session::{FileSystem, SessionError, Shared, count};
use crate::{dev, ring};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Slots that a group without a free one grows by beyond its limit.
const BEYOND: u16 = 16;

/// One group of interchangeable slots: a ring queue, or the readers of `/dev/fuse`.
pub(crate) struct Group {
    /// The ring queue (CPU), `None` for `/dev/fuse`.
    pub queue: Option<u16>,
    free: Cell<u16>,
    total: Cell<u16>,
    low: u16,
    max: u16,
    growth: Rc<Growth>,
    index: usize,
    kicks_due: Cell<u32>,
    /// Requests that wait as long as programs please.
    lasting: Cell<u16>,
}

/// A request that may wait as long as programs please, until this is dropped ([`crate::Request::lasting`]).
pub struct Lasting(Rc<Group>);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.lasting.set(self.0.lasting.get() - 1);
    }
}

/// Slots wanted, by group index.
#[derive(Default)]
struct Growth {
    wanted: RefCell<Vec<usize>>,
    waker: RefCell<Option<Waker>>,
}

impl Growth {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Group {
    /// A slot's request suspended: it may take long. Asks for another slot if few are free.
    fn on_suspend(&self, shared: &Shared) {
        if self.free.get() > self.low {
            return;
        }
        if self.total.get() < self.max {
            return self.grow((self.total.get() / 2).max(1).min(self.max - self.total.get()));
        }
        count(&shared.counters.depth_limit_hit);
        self.grow_for(&shared.drops);
    }

    /// A place for a request that may wait as long as programs please: three quarters of the slots at most are theirs, so that others, the
    /// unlock that they wait for among them, always find one.
    pub fn begin_lasting(self: &Rc<Self>, shared: &Shared) -> Option<Lasting> {
        let now = self.lasting.get();
        if now >= self.max - self.max.div_ceil(4) {
            count(&shared.counters.lasting_limit_hit);
            return None;
        }
        self.lasting.set(now + 1);
        Some(Lasting(self.clone()))
    }

    /// Grows beyond the limit when pages are being dropped and no slot is free.
    fn grow_for(&self, drops: &Drops) {
        if self.free.get() == 0 && drops.any() && !types::planted!("slots-limited") {
            self.grow(BEYOND.min(u16::MAX - self.total.get()));
        }
    }

    /// Whether one of the slots, which serves nothing, is to end. It is counted off then.
    pub fn shrinks(&self, shared: &Shared) -> bool {
        let over = self.total.get() > self.max && self.free.get() > 1 && !shared.drops.any();
        if over {
            self.total.set(self.total.get() - 1);
            self.free.set(self.free.get() - 1);
        }
        over
    }

    fn grow(&self, more: u16) {
        self.growth.wanted.borrow_mut().extend(std::iter::repeat_n(self.index, usize::from(more)));
        self.total.set(self.total.get() + more);
        self.free.set(self.free.get() + more);
        self.kicks_due.set(self.kicks_due.get() + u32::from(more));
        self.growth.wake();
    }

    /// Whether no request of the group is being handled.
    pub fn is_idle(&self) -> bool {
        self.free.get() == self.total.get()
    }

    /// Runs a handler; `on_first_pending` is called once if it does not finish at once.
    pub async fn watch<T>(
        &self,
        shared: &Shared,
        on_first_pending: impl FnOnce(),
        handler: impl Future<Output = T>,
    ) -> T {
        self.free.set(self.free.get() - 1);
        let mut handler = std::pin::pin!(handler);
        let mut on_first_pending = Some(on_first_pending);
        let out = poll_fn(|cx: &mut Context<'_>| {
            let poll = handler.as_mut().poll(cx);
            if poll.is_pending()
                && let Some(f) = on_first_pending.take()
            {
                self.on_suspend(shared);
                f();
            }
            poll
        })
        .await;
        self.free.set(self.free.get() + 1);
        out
    }
}

/// A slot at work, or what else runs beside the slots.
pub(crate) type SlotTask = Pin<Box<dyn Future<Output = Result<(), SessionError>>>>;
/// Its end; `None` when it panicked.
pub(crate) type SlotEnd = Pin<Box<dyn Future<Output = Option<Result<(), SessionError>>>>>;

/// All tasks of one worker.
pub(crate) struct Crew<F> {
    shared: Arc<Shared>,
    fs: Rc<F>,
    growth: Rc<Growth>,
    groups: RefCell<Vec<Rc<Group>>>,
    lead: Rc<dev::Lead>,
}

impl<F: FileSystem> Crew<F> {
    pub fn new(shared: Arc<Shared>, fs: Rc<F>) -> Self {
        Crew { shared, fs, growth: Rc::default(), groups: RefCell::default(), lead: Rc::default() }
    }

    /// Adds the slots of one ring queue.
    pub fn add_ring_queue(&self, queue: u16) {
        let config = &self.shared.config;
        let depth = config.ring_depth.max(1);
        self.add_group(Some(queue), depth, config.ring_depth_max.max(depth), depth / 2);
    }

    /// Adds readers of `/dev/fuse`.
    pub fn add_dev_readers(&self, depth: u16) {
        self.add_group(None, depth.max(2), self.shared.config.dev_depth_max.max(depth.max(2)), 0);
    }

    fn add_group(&self, queue: Option<u16>, depth: u16, max: u16, low: u16) {
        let mut groups = self.groups.borrow_mut();
        let index = groups.len();
        let (free, total) = (Cell::new(depth), Cell::new(depth));
        let (kicks_due, lasting, growth) = (Cell::new(0), Cell::new(0), self.growth.clone());
        groups.push(Rc::new(Group { queue, free, total, low, max, growth, index, kicks_due, lasting }));
        self.growth.wanted.borrow_mut().extend(std::iter::repeat_n(index, usize::from(depth)));
    }

    fn slot_task(&self, index: usize) -> SlotTask {
        let group = self.groups.borrow()[index].clone();
        let (shared, fs) = (self.shared.clone(), self.fs.clone());
        match group.queue {
            Some(queue) => Box::pin(ring::serve_entry(shared, fs, group, queue)),
            None => Box::pin(dev::serve_reader(shared, fs, group, self.lead.clone())),
        }
    }

    /// Runs until every slot ended, or one failed. `spawn` lets a task run beside this one.
    pub async fn run(self, spawn: impl Fn(SlotTask) -> SlotEnd) -> Result<(), SessionError> {
        let mut tasks: Vec<SlotEnd> = Vec::new();
        loop {
            let wanted = std::mem::take(&mut *self.growth.wanted.borrow_mut());
            for index in wanted {
                tasks.push(spawn(self.slot_task(index)));
                let group = self.groups.borrow()[index].clone();
                let kicks = group.kicks_due.take();
                if let (Some(queue), 1..) = (group.queue, kicks) {
                    tasks.push(spawn(Box::pin(kick(self.shared.clone(), queue, kicks))));
                }
            }
            let next = poll_fn(|cx| {
                self.shared.drops.tell(cx.waker());
                self.groups.borrow().iter().for_each(|g| g.grow_for(&self.shared.drops));
                if !self.growth.wanted.borrow().is_empty() {
                    return Poll::Ready(None);
                }
                *self.growth.waker.borrow_mut() = Some(cx.waker().clone());
                for i in 0..tasks.len() {
                    if let Poll::Ready(out) = tasks[i].as_mut().poll(cx) {
                        drop(tasks.swap_remove(i));
                        return Poll::Ready(Some(out));
                    }
                }
                if tasks.is_empty() { Poll::Ready(Some(Some(Ok(())))) } else { Poll::Pending }
            })
            .await;
            match next {
                None => {}
                Some(Some(Ok(()))) if tasks.is_empty() => return Ok(()),
                Some(Some(Ok(()))) => {}
                Some(Some(Err(e))) => return Err(e),
                Some(None) => return Err(SessionError::HandlerPanicked),
            }
        }
    }
}

/// Pause before kicking. Timers run after submission, so the new entries are registered by then.
const KICK_AFTER: Duration = Duration::from_millis(1);

/// Kicks a ring queue `times` times. A kick may itself queue behind others and wait for the next one, so every round of
/// growth has its own; as slots grow by half, rounds are few.
async fn kick(shared: Arc<Shared>, queue: u16, times: u32) -> Result<(), SessionError> {
    compio::time::sleep(KICK_AFTER).await;
    if let Some(path) = shared.root.get().cloned()
        && !shared.ended.load(Ordering::Acquire)
    {
        let kickers = shared.kickers.clone();
        // A thread of its own: a kick that waits for an entry must not keep a place for blocking work, and nobody waits for it.
        let started = std::thread::Builder::new().name("kick".into()).spawn(move || {
            let _kicks = kickers.begin();
            statfs_from(queue, &path, times);
        });
        if let Err(e) = started {
            tracing::warn!(queue, "no thread for waking a ring queue: {e}");
        }
    }
    Ok(())
}

/// The threads that kick. What they ask is answered by the session: the file system may have to wait for servers, and nobody is interested
/// in what it would say.
#[derive(Default)]
pub(crate) struct Kickers(Mutex<Vec<u32>>);

impl Kickers {
    fn threads(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread kicks until what is returned is dropped.
    fn begin(self: Arc<Self>) -> Kicking {
        // SAFETY: plain system call without arguments.
        let thread = unsafe { libc::gettid() }.unsigned_abs();
        self.threads().push(thread);
        Kicking { all: self, thread }
    }

    /// Whether a request is a kick.
    pub fn is_kick(&self, head: &InHeader) -> bool {
        head.opcode == opcode::STATFS && self.threads().contains(&head.pid)
    }
}

/// A thread that kicks.
struct Kicking {
    all: Arc<Kickers>,
    thread: u32,
}

impl Drop for Kicking {
    fn drop(&mut self) {
        self.all.threads().retain(|thread| *thread != self.thread);
    }
}

/// Calls statfs(2) on `path` from CPU `cpu`, then lets the thread run anywhere again.
fn statfs_from(cpu: u16, path: &CStr, times: u32) {
    // SAFETY: plain structures on the stack, a NUL-terminated path; the CPU number is checked against the set's size.
    unsafe {
        let (mut before, mut here): (libc::cpu_set_t, libc::cpu_set_t) = (std::mem::zeroed(), std::mem::zeroed());
        let size = size_of::<libc::cpu_set_t>();
        if usize::from(cpu) >= size * 8 || libc::sched_getaffinity(0, size, &raw mut before) != 0 {
            return;
        }
        libc::CPU_SET(usize::from(cpu), &mut here);
        if libc::sched_setaffinity(0, size, &raw const here) != 0 {
            return;
        }
        for _ in 0..times {
            let mut st: libc::statfs = std::mem::zeroed();
            if libc::statfs(path.as_ptr(), &raw mut st) != 0 {
                break;
            }
        }
        libc::sched_setaffinity(0, size, &raw const before);
    }
}
