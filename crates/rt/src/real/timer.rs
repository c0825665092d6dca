//! Timers of a shard: one timer of the kernel for all of them.
//!
//! Waiting with a time-out makes the kernel programme its clock at every wait, which costs more than most requests
//! where the clock is a virtual machine's. Here the kernel is told only when a deadline comes before the one it knows;
//! sleeps that are given up leave it as it is, and at most wake the shard once for nothing.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant as StdInstant;

use types::{Duration, Instant};

use super::op::{Call, submit};

/// A timer that comes later than this was not late for want of a processor.
const OVERSLEPT: Duration = Duration::from_secs(2);

/// See the module's head.
pub(super) struct Timers {
    origin: StdInstant,
    fd: Arc<OwnedFd>,
    sleepers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    /// When the kernel will wake us; `None`: not at all.
    armed: Cell<Option<Instant>>,
    next_id: Cell<u64>,
    /// When a timer last came so late that the process must have stood still.
    awake_since: Cell<Instant>,
    /// [`Timers::serve`] runs.
    served: Cell<bool>,
}

impl Timers {
    /// Timers whose instants count from `origin`.
    pub(super) fn new(origin: StdInstant) -> io::Result<Rc<Timers>> {
        // SAFETY: no pointers; the descriptor is owned at once. It must not be O_NONBLOCK: the ring then answers EAGAIN
        // where it should wait.
        let fd = unsafe {
            let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Rc::new(Timers {
            origin,
            fd: Arc::new(fd),
            sleepers: RefCell::default(),
            armed: Cell::new(None),
            next_id: Cell::new(0),
            awake_since: Cell::new(Instant::ZERO),
            served: Cell::new(false),
        }))
    }

    pub(super) fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// See [`crate::Rt::awake_since`].
    pub(super) fn awake_since(&self) -> Instant {
        self.awake_since.get()
    }
    /// A timer that was due at `at` is looked at.
    fn note_lateness(&self, at: Instant, now: Instant) {
        if now.since(at) > OVERSLEPT {
            self.awake_since.set(now);
        }
    }

    /// Completes at `at` or soon after.
    pub(super) fn sleep_until(self: &Rc<Self>, at: Instant) -> Sleep {
        if !self.served.replace(true) {
            compio::runtime::spawn(self.clone().serve()).detach();
        }
        Sleep { timers: self.clone(), at, id: None }
    }

    /// Tells the kernel about a deadline, if it would come too late otherwise.
    fn arm(&self, at: Instant) {
        if self.armed.get().is_some_and(|armed| armed <= at) {
            return;
        }
        // A day is beyond every timer in use; whoever wakes looks at its own deadline. Zero would disarm.
        let wait = at.since(self.now()).clamp(Duration::from_nanos(1), Duration::from_secs(86_400));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: a descriptor we own and a structure on the stack.
        let rc = unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut()) };
        assert_eq!(rc, 0, "timerfd_settime refused {wait:?}: {}", io::Error::last_os_error());
        self.armed.set(Some(at));
    }

    /// Wakes sleepers whenever the kernel's timer fires, as long as the shard runs.
    async fn serve(self: Rc<Self>) {
        loop {
            let mut count = Box::new(0u64);
            let iov = libc::iovec { iov_base: (&raw mut *count).cast(), iov_len: size_of::<u64>() };
            let (read, _count) = submit(&self.fd, Call::Read, vec![iov], count).await;
            if let Err(e) = read
                && e.kind() != io::ErrorKind::Interrupted
            {
                panic!("the shard's timer cannot be read: {e}");
            }
            self.armed.set(None);
            let now = self.now();
            let due = {
                let mut sleepers = self.sleepers.borrow_mut();
                let later = sleepers.split_off(&(Instant(now.0.saturating_add(1)), 0));
                std::mem::replace(&mut *sleepers, later)
            };
            if let Some(((at, _), _)) = due.first_key_value() {
                self.note_lateness(*at, now);
            }
            for waker in due.into_values() {
                waker.wake();
            }
            let next = self.sleepers.borrow().first_key_value().map(|((at, _), _)| *at);
            if let Some(at) = next {
                self.arm(at);
            }
        }
    }
}

/// A sleep. Gives its place back when dropped.
pub(super) struct Sleep {
    timers: Rc<Timers>,
    at: Instant,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.timers.now();
        if self.at <= now {
            // Whoever asks for a time of the past has not waited for it.
            if self.id.is_some() {
                self.timers.note_lateness(self.at, now);
            }
            return Poll::Ready(());
        }
        let id = match self.id {
            Some(id) => id,
            None => {
                let id = self.timers.next_id.get();
                self.timers.next_id.set(id + 1);
                self.id = Some(id);
                id
            }
        };
        let old = self.timers.sleepers.borrow_mut().insert((self.at, id), cx.waker().clone());
        drop(old);
        self.timers.arm(self.at);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let gone = self.timers.sleepers.borrow_mut().remove(&(self.at, id));
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_shard_that_stood_still_knows_since_when_it_is_awake() {
        let runtime = compio::runtime::Runtime::new().unwrap();
        runtime.enter(|| {
            let timers = Timers::new(StdInstant::now()).unwrap();
            let now = timers.now();
            super::super::turn::run(&runtime, timers.sleep_until(now + Duration::from_millis(1)));
            assert_eq!(timers.awake_since(), Instant::ZERO);
            let due = timers.now() + Duration::from_millis(1);
            let waits = async {
                let mut sleep = std::pin::pin!(timers.sleep_until(due));
                let is_due = std::future::poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_ready())).await;
                assert!(!is_due);
                // The whole thread stands still, as a stopped process does.
                std::thread::sleep(std::time::Duration::from_millis(2_100));
                sleep.await;
            };
            super::super::turn::run(&runtime, waits);
            assert!(timers.awake_since() > due + OVERSLEPT);
        });
    }

    #[test]
    fn sleeps_end_in_the_order_of_their_deadlines_however_they_were_asked_for() {
        let runtime = compio::runtime::Runtime::new().unwrap();
        runtime.enter(|| {
            let timers = Timers::new(StdInstant::now()).unwrap();
            let order = Rc::new(RefCell::new(Vec::new()));
            let now = timers.now();
            let given_up = timers.sleep_until(now + Duration::from_millis(1));
            for ms in [30u64, 10, 20, 10] {
                let (timers, order) = (timers.clone(), order.clone());
                let at = now + Duration::from_millis(ms);
                compio::runtime::spawn(async move {
                    timers.sleep_until(at).await;
                    assert!(timers.now() >= at, "woken early");
                    order.borrow_mut().push(ms);
                })
                .detach();
            }
            drop(given_up);
            super::super::turn::run(&runtime, timers.sleep_until(now + Duration::from_millis(31)));
            assert_eq!(*order.borrow(), [10, 10, 20, 30]);
            assert!(timers.sleepers.borrow().is_empty());
        });
    }
}
