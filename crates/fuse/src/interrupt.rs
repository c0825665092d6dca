//! Interrupts: which pending requests wish to know that their caller got a signal.
//!
//! Registration is lazy: a request costs nothing here unless its handler asks for [`Interrupted`]. An INTERRUPT may
//! overtake that question (it travels on `/dev/fuse` even when requests travel on rings), so unmatched interrupts are
//! remembered until their request ends, at most [`EARLY_MAX`] of them.
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Unmatched interrupts remembered; the oldest is dropped beyond that (its caller then waits as if uninterruptible).
pub const EARLY_MAX: usize = 4096;

/// Interrupts of one session, shared by its serving threads.
#[derive(Default)]
pub(crate) struct InterruptTable {
    inner: Mutex<Inner>,
    early_len: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<u64, Waiting>,
    early: VecDeque<u64>,
}

#[derive(Default)]
struct Waiting {
    fired: bool,
    waker: Option<Waker>,
}

impl InterruptTable {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel interrupts request `unique`. Says whether an older one had to be dropped.
    pub fn on_interrupt(&self, unique: u64) -> bool {
        let mut inner = self.lock();
        if let Some(waiting) = inner.waiting.get_mut(&unique) {
            waiting.fired = true;
            if let Some(waker) = waiting.waker.take() {
                waker.wake();
            }
            return false;
        }
        let overflow = inner.early.len() >= EARLY_MAX;
        if overflow {
            inner.early.pop_front();
        }
        inner.early.push_back(unique);
        self.early_len.store(inner.early.len(), Ordering::Release);
        overflow
    }

    /// Request `unique` was answered: nobody needs its interrupt any more.
    pub fn on_done(&self, unique: u64) {
        if self.early_len.load(Ordering::Acquire) != 0 {
            let mut inner = self.lock();
            inner.early.retain(|&u| u != unique);
            self.early_len.store(inner.early.len(), Ordering::Release);
        }
    }
}

/// Resolves when the request's caller received a signal: the answer is then EINTR. Independent of the request's buffer.
pub struct Interrupted {
    table: Arc<InterruptTable>,
    unique: u64,
    registered: bool,
}

impl Interrupted {
    pub(crate) fn new(table: Arc<InterruptTable>, unique: u64) -> Self {
        Interrupted { table, unique, registered: false }
    }
}

impl Future for Interrupted {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let unique = this.unique;
        let mut inner = this.table.lock();
        if !this.registered {
            this.registered = true;
            let fired = inner.early.contains(&unique);
            inner.early.retain(|&u| u != unique);
            this.table.early_len.store(inner.early.len(), Ordering::Release);
            inner.waiting.insert(unique, Waiting { fired, waker: None });
        }
        let waiting = inner.waiting.entry(unique).or_default();
        if waiting.fired {
            Poll::Ready(())
        } else {
            waiting.waker = Some(cx.waker().clone());
            Poll::Pending
        }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        if self.registered {
            self.table.lock().waiting.remove(&self.unique);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(f: &mut Interrupted) -> bool {
        Pin::new(f).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_interrupt_wakes_the_request_that_waits_for_it_and_no_other() {
        let table = Arc::new(InterruptTable::default());
        let (mut a, mut b) = (Interrupted::new(table.clone(), 2), Interrupted::new(table.clone(), 4));
        assert!(!poll(&mut a) && !poll(&mut b));
        table.on_interrupt(4);
        assert!(!poll(&mut a) && poll(&mut b));
    }

    #[test]
    fn an_interrupt_that_overtakes_the_question_is_not_lost() {
        let table = Arc::new(InterruptTable::default());
        table.on_interrupt(6);
        assert!(poll(&mut Interrupted::new(table.clone(), 6)));
        assert_eq!(table.lock().early.len(), 0);
    }

    #[test]
    fn unmatched_interrupts_are_bounded_and_leave_with_their_request() {
        let table = InterruptTable::default();
        let dropped = (0..EARLY_MAX as u64 + 10).filter(|&u| table.on_interrupt(u)).count();
        assert_eq!(dropped, 10);
        table.on_done(20);
        assert_eq!(table.lock().early.len(), EARLY_MAX - 1);
    }
}
