//! Waiting within a shard: one-shot values, events, counting semaphores, queues. No threads, no clock.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Makes a one-shot value: the receiver completes when the sender has sent, or with `None` when it was dropped.
#[must_use]
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    let cell = Rc::new(OneCell { value: RefCell::new(None), closed: Cell::new(false), waker: RefCell::new(None) });
    (OneSender(cell.clone()), OneReceiver(cell))
}

struct OneCell<T> {
    value: RefCell<Option<T>>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl<T> OneCell<T> {
    fn wake(&self) {
        if let Some(w) = self.waker.borrow_mut().take() {
            w.wake();
        }
    }
}

/// Sends the value of a one-shot.
pub struct OneSender<T>(Rc<OneCell<T>>);
impl<T> OneSender<T> {
    /// Gives the value; lost when the receiver is gone.
    pub fn send(self, value: T) {
        *self.0.value.borrow_mut() = Some(value);
    }
    /// Whether nobody waits any more.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}
impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        self.0.closed.set(true);
        self.0.wake();
    }
}

/// Waits for the value of a one-shot.
pub struct OneReceiver<T>(Rc<OneCell<T>>);
impl<T> OneReceiver<T> {
    /// The value, when it is there already.
    #[must_use]
    pub fn try_take(&self) -> Option<T> {
        self.0.value.borrow_mut().take()
    }
}
impl<T> Future for OneReceiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(v) = self.0.value.borrow_mut().take() {
            return Poll::Ready(Some(v));
        }
        if self.0.closed.get() {
            return Poll::Ready(None);
        }
        *self.0.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Wakes everyone who waits; a wait that began before the notification never misses it.
#[derive(Default)]
pub struct Event {
    generation: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}
impl Event {
    /// A new event.
    #[must_use]
    pub fn new() -> Event {
        Event::default()
    }
    /// Wakes everyone who waits now.
    pub fn notify(&self) {
        self.generation.set(self.generation.get() + 1);
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        for w in waiters {
            w.wake();
        }
    }
    /// Completes at the first notification after this call (not after the first poll).
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.generation.get();
        poll_fn(move |cx| {
            if self.generation.get() != seen {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|w| w.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}

struct SemWaiter {
    want: usize,
    granted: Cell<bool>,
    gone: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A counting semaphore, first come first served, whose size can change.
#[derive(Default)]
pub struct Semaphore {
    free: Cell<isize>,
    waiters: RefCell<VecDeque<Rc<SemWaiter>>>,
}
impl Semaphore {
    /// With `free` permits.
    #[must_use]
    pub fn new(free: usize) -> Semaphore {
        Semaphore { free: Cell::new(free as isize), waiters: RefCell::default() }
    }
    /// Permits nobody holds; negative after the size was cut below what is held.
    #[must_use]
    pub fn available(&self) -> isize {
        self.free.get()
    }
    /// Adds permits (or, negative, takes some away as they come back).
    pub fn add(&self, permits: isize) {
        self.free.set(self.free.get() + permits);
        self.settle();
    }
    /// Takes `want` permits if they are free and nobody waits.
    #[must_use]
    pub fn try_acquire(&self, want: usize) -> bool {
        let ok = self.waiters.borrow().is_empty() && self.free.get() >= want as isize;
        if ok {
            self.free.set(self.free.get() - want as isize);
        }
        ok
    }
    /// Takes `want` permits, waiting in line. Give them back with [`Semaphore::add`].
    pub async fn acquire(&self, want: usize) {
        if self.try_acquire(want) {
            return;
        }
        let waiter =
            Rc::new(SemWaiter { want, granted: Cell::new(false), gone: Cell::new(false), waker: RefCell::new(None) });
        self.waiters.borrow_mut().push_back(waiter.clone());
        let guard = SemGuard { sem: self, waiter: &waiter };
        poll_fn(|cx| {
            if waiter.granted.get() {
                return Poll::Ready(());
            }
            *waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        std::mem::forget(guard);
    }
    fn settle(&self) {
        let mut waiters = self.waiters.borrow_mut();
        while let Some(w) = waiters.front() {
            if w.gone.get() {
                waiters.pop_front();
                continue;
            }
            if self.free.get() < w.want as isize {
                break;
            }
            self.free.set(self.free.get() - w.want as isize);
            w.granted.set(true);
            if let Some(waker) = w.waker.borrow_mut().take() {
                waker.wake();
            }
            waiters.pop_front();
        }
    }
}

struct SemGuard<'a> {
    sem: &'a Semaphore,
    waiter: &'a Rc<SemWaiter>,
}
impl Drop for SemGuard<'_> {
    fn drop(&mut self) {
        self.waiter.gone.set(true);
        let back = if self.waiter.granted.get() { self.waiter.want as isize } else { 0 };
        self.sem.add(back);
    }
}

/// An unbounded queue within a shard; bounded by its users' own limits.
pub struct Queue<T> {
    items: RefCell<VecDeque<T>>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}
impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { items: RefCell::default(), closed: Cell::new(false), waker: RefCell::new(None) }
    }
}
impl<T> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Queue<T> {
        Queue::default()
    }
    /// Adds at the end.
    pub fn push(&self, item: T) {
        self.items.borrow_mut().push_back(item);
        self.wake();
    }
    /// Items waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.borrow().len()
    }
    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// No more items will come; receivers get the rest and then `None`.
    pub fn close(&self) {
        self.closed.set(true);
        self.wake();
    }
    /// The first item now, if any.
    pub fn try_pop(&self) -> Option<T> {
        self.items.borrow_mut().pop_front()
    }
    /// The next item; `None` after [`Queue::close`]. One receiver at a time.
    pub async fn pop(&self) -> Option<T> {
        poll_fn(|cx| {
            if let Some(item) = self.try_pop() {
                return Poll::Ready(Some(item));
            }
            if self.closed.get() {
                return Poll::Ready(None);
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
    fn wake(&self) {
        if let Some(w) = self.waker.borrow_mut().take() {
            w.wake();
        }
    }
}

/// Lets the shard's other tasks go first, once: for work that is long and never waits.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for whichever of two comes first: `Ok` of the first, `Err` of the second; the other is dropped.
pub async fn race<A: Future, B: Future>(first: A, second: B) -> Result<A::Output, B::Output> {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    poll_fn(|cx| {
        if let Poll::Ready(v) = first.as_mut().poll(cx) {
            return Poll::Ready(Ok(v));
        }
        second.as_mut().poll(cx).map(Err)
    })
    .await
}

/// Waits for all of `work`; results in order.
pub async fn join_all<F: Future>(work: Vec<F>) -> Vec<F::Output> {
    enum Slot<F: Future> {
        Running(Pin<Box<F>>),
        Ended(F::Output),
    }
    let mut slots: Vec<Slot<F>> = work.into_iter().map(|f| Slot::Running(Box::pin(f))).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for slot in &mut slots {
            if let Slot::Running(f) = slot {
                match f.as_mut().poll(cx) {
                    Poll::Ready(v) => *slot = Slot::Ended(v),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    slots
        .into_iter()
        .map(|s| match s {
            Slot::Ended(v) => v,
            Slot::Running(_) => unreachable!("the loop ends when every future has ended"),
        })
        .collect()
}
