//! Blocking work of a shard: on threads of the runtime's pool, as much at a time as the pool surely has threads for.
//!
//! The pool has [`POOL_THREADS`] threads. Asked for one more, the runtime tries again until one is free and does nothing else
//! meanwhile: the shard stands still, and where what the threads wait for is the shard's to do, for good. So jobs wait for a place as tasks
//! do. Connections have a part of the places only: to hosts that do not answer each takes seconds, and a commit must not stand behind them.
use std::rc::Rc;

use crate::LocalFuture;
use crate::sync::{Semaphore, oneshot};

/// Threads of a runtime's pool, as the runtime has it by default; what is not asked for here (file operations where there is no io_uring)
/// has those beyond [`JOBS_MAX`].
const POOL_THREADS: usize = 256;
/// Jobs under way at a time.
const JOBS_MAX: usize = 192;
/// Jobs among them that connect.
const CONNECTS_MAX: usize = 48;
const _: () = assert!(CONNECTS_MAX < JOBS_MAX && JOBS_MAX < POOL_THREADS);

/// Places for the blocking work of one shard.
pub(super) struct Jobs {
    all: Semaphore,
    connects: Semaphore,
}

impl Jobs {
    pub(super) fn new() -> Rc<Jobs> {
        Rc::new(Jobs { all: Semaphore::new(JOBS_MAX), connects: Semaphore::new(CONNECTS_MAX) })
    }

    /// Carries a job out, whether anybody waits for its end or not; `None`: it panicked.
    pub(super) fn run<T: Send + 'static>(
        self: &Rc<Jobs>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> LocalFuture<Option<T>> {
        let (me, (tell, told)) = (self.clone(), oneshot());
        // A task of its own: the place is taken as long as the thread is, not as long as somebody waits.
        compio::runtime::spawn(async move {
            me.all.acquire(1).await;
            let done = compio::runtime::spawn_blocking(job).await.ok();
            me.all.add(1);
            tell.send(done);
        })
        .detach();
        Box::pin(async move { told.await.flatten() })
    }

    /// The same for a job that connects, which is not begun any more when nobody waits for it.
    pub(super) fn connect<T: Send + 'static>(
        self: &Rc<Jobs>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> LocalFuture<Option<T>> {
        let (me, (tell, told)) = (self.clone(), oneshot());
        compio::runtime::spawn(async move {
            me.connects.acquire(1).await;
            if !tell.is_abandoned() {
                tell.send(me.run(job).await);
            }
            me.connects.add(1);
        })
        .detach();
        Box::pin(async move { told.await.flatten() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frames::FramePool;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    /// Jobs wait here until it is opened.
    #[derive(Default)]
    struct Gate {
        open: Mutex<bool>,
        opened: Condvar,
        began: AtomicUsize,
    }
    impl Gate {
        fn wait(&self) {
            self.began.fetch_add(1, Ordering::Relaxed);
            let open = self.open.lock().unwrap();
            drop(self.opened.wait_while(open, |open| !*open).unwrap());
        }
        /// Whether this opened it.
        fn open(&self) -> bool {
            let mut open = self.open.lock().unwrap();
            self.opened.notify_all();
            !std::mem::replace(&mut *open, true)
        }
    }

    /// Opens a gate that its shard has not opened within a time in which it surely would have: the test fails then, and ends.
    fn watch(gate: &Arc<Gate>) {
        let gate = gate.clone();
        std::thread::spawn(move || {
            let open = gate.open.lock().unwrap();
            drop(gate.opened.wait_timeout_while(open, Duration::from_secs(60), |open| !*open).unwrap());
            gate.open();
        });
    }

    async fn until(rt: &crate::Rt, gate: &Gate, began: usize) {
        while gate.began.load(Ordering::Relaxed) < began {
            rt.sleep(types::Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn a_shard_goes_on_while_more_blocking_work_waits_for_it_than_there_are_threads() {
        const JOBS: usize = 300;
        let gate = Arc::new(Gate::default());
        watch(&gate);
        let (opened, done) = super::super::run(FramePool::new(1 << 20), async |rt| {
            let jobs: Vec<_> = (0..JOBS)
                .map(|i| {
                    let (rt, gate) = (rt.clone(), gate.clone());
                    async move {
                        rt.offload(move || {
                            gate.wait();
                            i
                        })
                        .await
                    }
                })
                .collect();
            let shard = async {
                until(&rt, &gate, JOBS_MAX).await;
                // The others wait for places.
                (gate.began.load(Ordering::Relaxed), gate.open())
            };
            let both = crate::sync::join_all(vec![
                Box::pin(async { (Some(shard.await), None) }) as std::pin::Pin<Box<dyn Future<Output = _>>>,
                Box::pin(async { (None, Some(crate::sync::join_all(jobs).await)) }),
            ]);
            let mut both = both.await;
            (both[0].0.take().unwrap(), both[1].1.take().unwrap())
        })
        .unwrap();
        assert_eq!(opened, (JOBS_MAX, true), "the shard opened it, with as many waiting as there are places");
        assert_eq!(done, (0..JOBS).collect::<Vec<_>>());
    }

    #[test]
    fn connections_that_hang_leave_places_for_other_work() {
        let gate = Arc::new(Gate::default());
        watch(&gate);
        let (between, began, done) = super::super::run(FramePool::new(1 << 20), async |rt| {
            let jobs = Jobs::new();
            let connects: Vec<_> = (0..JOBS_MAX + 10)
                .map(|_| {
                    let gate = gate.clone();
                    jobs.connect(move || gate.wait())
                })
                .collect();
            until(&rt, &gate, CONNECTS_MAX).await;
            let between = jobs.run(|| 7).await;
            let began = (gate.began.load(Ordering::Relaxed), gate.open());
            (between, began, crate::sync::join_all(connects).await)
        })
        .unwrap();
        assert_eq!((between, began), (Some(7), (CONNECTS_MAX, true)));
        assert!(done.len() == JOBS_MAX + 10 && done.iter().all(Option::is_some));
    }

    #[test]
    fn a_place_comes_back_when_nobody_waits_and_when_a_job_panics() {
        super::super::run(FramePool::new(1 << 20), async |rt| {
            let jobs = Jobs::new();
            assert_eq!(jobs.run(|| -> u32 { panic!("as it is meant to") }).await, None);
            let gate = Arc::new(Gate::default());
            gate.open();
            let job = gate.clone();
            drop(jobs.run(move || job.wait()));
            until(&rt, &gate, 1).await;
            jobs.all.acquire(JOBS_MAX).await;
            assert_eq!(jobs.all.available(), 0);
        })
        .unwrap();
    }
}
