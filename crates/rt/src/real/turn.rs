//! The loop of a shard: tasks until none is ready, then one call of the kernel that submits and waits.
//!
//! A request passes through several tasks, each waking the next. The runtime's own loop would ask the kernel between
//! them, with a time-out of zero, which costs more than the tasks.
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use compio::runtime::Runtime;
use types::Duration;

/// Rounds of ready tasks before the kernel is asked for completions although more tasks are ready.
const ROUNDS_MAX: u32 = 32;

/// Wakes the main future.
struct MainWaker {
    woken: AtomicBool,
    thread: ThreadId,
    /// Ends the wait in the kernel.
    runtime: Waker,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // The shard's own thread looks before it waits.
        if !self.woken.swap(true, Ordering::AcqRel) && std::thread::current().id() != self.thread {
            self.runtime.wake_by_ref();
        }
    }
}

/// Runs `main` and every task of the runtime, which must have been entered, until `main` completes.
pub(super) fn run<F: Future>(runtime: &Runtime, main: F) -> F::Output {
    let state = Arc::new(MainWaker {
        woken: AtomicBool::new(true),
        thread: std::thread::current().id(),
        runtime: runtime.waker(),
    });
    let waker = Waker::from(state.clone());
    let mut context = Context::from_waker(&waker);
    let mut main = pin!(main);
    loop {
        let mut ready = true;
        for _ in 0..ROUNDS_MAX {
            if state.woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(value) = main.as_mut().poll(&mut context)
            {
                runtime.run();
                return value;
            }
            ready = runtime.run() || state.woken.load(Ordering::Acquire);
            if !ready {
                break;
            }
        }
        if ready {
            // Woken already: the kernel is asked, but not waited for, and no clock is set.
            state.runtime.wake_by_ref();
            runtime.poll_with(Some(Duration::ZERO));
        } else {
            runtime.poll();
        }
    }
}
