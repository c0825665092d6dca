//! The loop of a shard: tasks until none is ready, then one call of the kernel that submits and waits.
//!
//! A request passes through several tasks, each waking the next. The runtime's own loop would ask the kernel between
//! them, with a time-out of zero, which costs more than the tasks.
//!
//! Before it sleeps a shard may look for the next request a moment longer ([`expect_soon`]): waking a thread on an idle
//! CPU costs both sides more than the moment, most of all in virtual machines. It gives its CPU to whoever wants it
//! meanwhile, and stops looking where nothing comes. Where idle CPUs are kept awake ([`super::keep_awake`]) it sleeps.
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;
use std::time::Instant as StdInstant;

use compio::runtime::Runtime;
use types::Duration;

use super::awake;

/// Rounds of ready tasks before the kernel is asked for completions although more tasks are ready.
const ROUNDS_MAX: u32 = 32;

/// How long a shard looks for a request that is expected: about what waking it would take.
const PATIENCE: Duration = Duration::from_micros(70);
/// Most expectations in a row that are not believed, after as many were disappointed as the logarithm of this.
const DOUBT_MAX: u32 = 256;

#[derive(Clone, Copy)]
struct Expectation {
    soon: bool,
    arrived: u64,
    /// Disappointments in a row.
    missed: u32,
    /// Expectations not to believe any more.
    doubt: u32,
}

thread_local! {
    static EXPECT: Cell<Expectation> =
        const { Cell::new(Expectation { soon: false, arrived: 0, missed: 0, doubt: 0 }) };
}

/// A request or an answer came from outside.
pub fn arrived() {
    EXPECT.with(|e| e.set(Expectation { soon: false, arrived: e.get().arrived + 1, ..e.get() }));
    awake::arrived();
}

/// Something will likely come at once, from another CPU: an answer, or the next request of whoever was answered just
/// now. The calling thread's shard looks for that before it sleeps.
pub fn expect_soon() {
    EXPECT.with(|e| e.set(Expectation { soon: true, ..e.get() }));
}

/// Whether to look for a request now.
fn is_expected() -> bool {
    EXPECT.with(|cell| {
        let e = cell.get();
        let believed = e.soon && e.doubt == 0 && !awake::is_held();
        cell.set(Expectation { soon: false, doubt: e.doubt.saturating_sub(u32::from(e.soon)), ..e });
        believed
    })
}

fn learn(came: bool) {
    EXPECT.with(|cell| {
        let e = cell.get();
        let missed = if came { 0 } else { (e.missed + 1).min(DOUBT_MAX.ilog2()) };
        cell.set(Expectation { missed, doubt: (1 << missed) - 1, ..e });
    });
}

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
            look(runtime, &state.runtime);
        } else {
            awake::idles();
            if is_expected() {
                wait_awake(runtime, &state);
            } else {
                runtime.poll();
            }
        }
    }
}

/// Asks the kernel for completions without waiting, and without setting a clock.
fn look(runtime: &Runtime, waker: &Waker) {
    // Woken already: there is nothing to wait for.
    waker.wake_by_ref();
    runtime.poll_with(Some(Duration::ZERO));
}

/// Looks for a request for a while. Tasks that become ready meanwhile run.
fn wait_awake(runtime: &Runtime, main: &MainWaker) {
    let before = EXPECT.get().arrived;
    let began = StdInstant::now();
    loop {
        look(runtime, &main.runtime);
        let ready = runtime.run() || main.woken.load(Ordering::Acquire);
        let came = EXPECT.get().arrived != before;
        if came || ready {
            learn(true);
            return;
        }
        if began.elapsed() >= PATIENCE {
            learn(false);
            return;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn disappointed_expectations_are_doubted_and_a_fulfilled_one_is_forgiven_all() {
        std::thread::spawn(|| {
            let believed = || {
                expect_soon();
                is_expected()
            };
            assert!(!is_expected(), "nothing was expected");
            assert!(believed());
            for misses in 1..=3 {
                learn(false);
                for _ in 1..1 << misses {
                    assert!(!believed(), "after {misses} disappointments");
                }
                assert!(believed());
            }
            learn(true);
            assert!(believed());
            expect_soon();
            arrived();
            assert!(!is_expected(), "what was expected has come");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_shard_that_sleeps_or_looks_is_woken_by_another_thread() {
        for looks in [false, true] {
            let runtime = Runtime::new().unwrap();
            let (to, from) = std::sync::mpsc::channel::<Waker>();
            let other = std::thread::spawn(move || from.recv().unwrap().wake());
            let mut told = false;
            let main = poll_fn(|cx| {
                if told {
                    return Poll::Ready(7);
                }
                told = true;
                if looks {
                    expect_soon();
                }
                to.send(cx.waker().clone()).unwrap();
                Poll::Pending
            });
            assert_eq!(runtime.enter(|| run(&runtime, main)), 7);
            other.join().unwrap();
        }
    }

    #[test]
    fn tasks_that_wake_one_another_without_end_do_not_keep_completions_out() {
        let runtime = Runtime::new().unwrap();
        let value = runtime.enter(|| {
            compio::runtime::spawn(async {
                loop {
                    let mut first = true;
                    poll_fn(|cx| {
                        cx.waker().wake_by_ref();
                        if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
                    })
                    .await;
                }
            })
            .detach();
            run(&runtime, async { compio::runtime::spawn_blocking(|| 5).await.unwrap() })
        });
        assert_eq!(value, 5);
    }
}
