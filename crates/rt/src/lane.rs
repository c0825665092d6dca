//! Queues between shards: any thread puts something in, one task takes it out.
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A queue between two shards. How much may wait is bounded by those who put in.
pub struct Lane<T> {
    state: Mutex<LaneState<T>>,
}
struct LaneState<T> {
    items: VecDeque<T>,
    closed: bool,
    waker: Option<Waker>,
}

impl<T> Lane<T> {
    /// An open, empty queue.
    #[must_use]
    pub fn new() -> Arc<Lane<T>> {
        Arc::new(Lane { state: Mutex::new(LaneState { items: VecDeque::new(), closed: false, waker: None }) })
    }
    fn lock(&self) -> MutexGuard<'_, LaneState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Puts something at the end. False, and it is gone, when the queue is closed.
    pub fn push(&self, item: T) -> bool {
        let mut s = self.lock();
        if s.closed {
            return false;
        }
        s.items.push_back(item);
        if let Some(w) = s.waker.take() {
            drop(s);
            w.wake();
        }
        true
    }
    /// Puts what was taken out last back in front, also when the queue was closed meanwhile.
    pub(crate) fn put_back(&self, item: T) {
        self.lock().items.push_front(item);
    }
    /// Nothing more is put in; what is there can be taken out.
    pub fn close(&self) {
        let mut s = self.lock();
        s.closed = true;
        if let Some(w) = s.waker.take() {
            drop(s);
            w.wake();
        }
    }
    /// What is there, without waiting.
    pub fn try_pop(&self) -> Option<T> {
        self.lock().items.pop_front()
    }
    /// The next; waits for it. `None` when the queue is closed and empty. One task waits at a time.
    pub async fn pop(&self) -> Option<T> {
        poll_fn(|cx| {
            let mut s = self.lock();
            if let Some(item) = s.items.pop_front() {
                return Poll::Ready(Some(item));
            }
            if s.closed {
                return Poll::Ready(None);
            }
            if !s.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                s.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
