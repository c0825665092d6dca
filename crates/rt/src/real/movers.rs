//! Threads that move bytes for shards: copies, checksums, sockets. They decide nothing (`docs/internals/shards.md`).
//!
//! A job crosses to a mover as a closure and becomes a future on the mover's own runtime, so that one that waits for a
//! socket or for the kernel keeps no other from going on. The shard waits for its end. A wait that is dropped drops the job,
//! as if it had run on the shard. A job that panics panics its shard's task.
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use frames::FramePool;

use crate::{Lane, LocalFuture};

/// Fewer bytes are moved by the shard itself: waking a thread, and being woken by it, costs as much as copying them.
pub const MOVED_BYTES_MIN: usize = 64 << 10;
/// Most movers of a process.
pub const MOVERS_MAX: usize = 64;

type Job = Box<dyn FnOnce() -> LocalFuture<()> + Send>;

struct Inner {
    lanes: Vec<Arc<Lane<Job>>>,
    moved_bytes: AtomicU64,
}

/// The movers of a shard; cheap to clone.
#[derive(Clone)]
pub struct Movers(Arc<Inner>);

thread_local! {
    /// The movers of the shard on this thread.
    static OF_SHARD: RefCell<Option<Movers>> = const { RefCell::new(None) };
    /// The movers to whom this thread belongs.
    static OWN: RefCell<Option<Movers>> = const { RefCell::new(None) };
    static MOVED_HERE: Cell<u64> = const { Cell::new(0) };
}

/// The movers of the shard on the calling thread, if it has any.
#[must_use]
pub fn movers() -> Option<Movers> {
    OF_SHARD.with_borrow(Clone::clone)
}

/// The same for so many bytes; `None`: the shard moves them itself.
#[must_use]
pub fn movers_for(bytes: usize) -> Option<Movers> {
    if bytes < MOVED_BYTES_MIN { None } else { movers() }
}

/// The calling thread copied or checked so many bytes of bulk data.
pub fn note_moved(bytes: usize) {
    MOVED_HERE.set(MOVED_HERE.get() + bytes as u64);
    OWN.with_borrow(|own| {
        if let Some(Movers(inner)) = own {
            inner.moved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    });
}

/// Bytes of bulk data that the calling thread copied or checked.
#[must_use]
pub fn moved_here_bytes() -> u64 {
    MOVED_HERE.get()
}

/// Running movers, for the shard that started them.
pub(super) struct Crew {
    movers: Movers,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts `count` movers for the calling thread's shard.
    pub(super) fn start(count: usize, frames: FramePool) -> io::Result<Crew> {
        let lanes = (0..count.min(MOVERS_MAX)).map(|_| Lane::new()).collect();
        let movers = Movers(Arc::new(Inner { lanes, moved_bytes: AtomicU64::new(0) }));
        let mut crew = Crew { movers: movers.clone(), threads: Vec::new() };
        for (i, lane) in movers.0.lanes.iter().enumerate() {
            let (lane, own) = (lane.clone(), movers.clone());
            let (tell, started) = std::sync::mpsc::channel();
            let work = move || {
                OWN.set(Some(own));
                let ready = tell.clone();
                let run = super::run(frames, |_| async move {
                    // Who starts it waits for this.
                    let _ = ready.send(Ok(()));
                    while let Some(job) = lane.pop().await {
                        compio::runtime::spawn(job()).detach();
                    }
                });
                if let Err(e) = run {
                    let _ = tell.send(Err(e));
                }
            };
            crew.threads.push(std::thread::Builder::new().name(format!("mover{i}")).spawn(work)?);
            started.recv().unwrap_or_else(|_| Err(io::Error::other("a mover panicked")))?;
        }
        OF_SHARD.set(Some(movers));
        Ok(crew)
    }
}

impl Drop for Crew {
    /// Jobs under way are dropped: their shard is over.
    fn drop(&mut self) {
        OF_SHARD.set(None);
        self.movers.0.lanes.iter().for_each(|lane| lane.close());
        for thread in self.threads.drain(..) {
            // What it panicked with was told.
            let _ = thread.join();
        }
    }
}

impl Movers {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lanes.len()
    }
    /// Bytes that they copied or checked.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.0.moved_bytes.load(Ordering::Relaxed)
    }
    /// Has a mover carry a job out; jobs with the same `lane` have the same mover.
    ///
    /// # Panics
    /// When the job does, or the movers have ended.
    pub async fn run<T, F>(&self, lane: usize, job: impl FnOnce() -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let state = Arc::new(Handed::default());
        let end = End(state.clone());
        let work: Job = Box::new(move || Box::pin(async move { end.of(job()).await }));
        assert!(self.0.lanes[lane % self.0.lanes.len()].push(work), "movers end after their shard");
        let waits = Waits(state);
        poll_fn(|cx| {
            let mut s = waits.0.lock();
            if let Some(result) = s.result.take() {
                return Poll::Ready(result);
            }
            assert!(!s.lost, "a job panicked on a mover");
            if !s.waiter.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                s.waiter = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// What the two sides of a job share.
struct HandedState<T> {
    result: Option<T>,
    /// There will be no result.
    lost: bool,
    waiter: Option<Waker>,
    /// Nobody waits any more.
    abandoned: bool,
    worker: Option<Waker>,
}
struct Handed<T>(Mutex<HandedState<T>>);

impl<T> Default for Handed<T> {
    fn default() -> Handed<T> {
        Handed(Mutex::new(HandedState { result: None, lost: false, waiter: None, abandoned: false, worker: None }))
    }
}
impl<T> Handed<T> {
    fn lock(&self) -> MutexGuard<'_, HandedState<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mover's side: says how the job ended, also when it is dropped.
struct End<T>(Arc<Handed<T>>);
impl<T> End<T> {
    async fn of(self, work: impl Future<Output = T>) {
        let mut work = pin!(work);
        let result = poll_fn(|cx| {
            {
                let mut s = self.0.lock();
                if s.abandoned {
                    return Poll::Ready(None);
                }
                s.worker = Some(cx.waker().clone());
            }
            work.as_mut().poll(cx).map(Some)
        });
        if let Some(result) = result.await {
            self.0.lock().result = Some(result);
        }
    }
}
impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let waiter = {
            let mut s = self.0.lock();
            s.lost = s.result.is_none();
            s.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// The shard's side: who goes away has the job dropped.
struct Waits<T>(Arc<Handed<T>>);
impl<T> Drop for Waits<T> {
    fn drop(&mut self) {
        let worker = {
            let mut s = self.0.lock();
            s.abandoned = true;
            s.worker.take()
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::{run, run_with_movers};

    #[test]
    fn jobs_run_on_movers_and_their_shard_goes_on_meanwhile() {
        let pool = FramePool::new(1 << 20);
        let (here, threads) = run_with_movers(pool, 2, async |rt| {
            let movers = movers().unwrap();
            assert_eq!(movers.count(), 2);
            let thread = |lane| movers.run(lane, || async { std::thread::current().id() });
            let threads = [thread(0).await, thread(1).await, thread(2).await];
            // One that waits keeps neither its shard nor the next on the same mover.
            let (tell, told) = (Lane::<u32>::new(), Lane::new());
            let (to, from) = (tell.clone(), told.clone());
            let waits = movers.clone();
            rt.spawn(async move {
                let n = waits.run(0, move || async move { tell.pop().await }).await;
                told.push(n);
            });
            movers.run(0, move || async move { to.push(7) }).await;
            assert_eq!(from.pop().await, Some(Some(7)));
            (std::thread::current().id(), threads)
        })
        .unwrap();
        assert!(threads[0] == threads[2] && threads[0] != threads[1] && !threads.contains(&here));
        run(pool, async |_| assert!(movers().is_none())).unwrap();
    }

    #[test]
    fn a_job_whose_wait_is_dropped_is_dropped() {
        struct Tells(Arc<Lane<()>>);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        run_with_movers(FramePool::new(1 << 20), 1, async |_| {
            let movers = movers().unwrap();
            let (dropped, begun) = (Lane::new(), Lane::new());
            let (tells, begins) = (Tells(dropped.clone()), begun.clone());
            let job = movers.run(0, move || async move {
                let _tells = tells;
                begins.push(());
                std::future::pending::<()>().await;
            });
            assert!(crate::sync::race(job, begun.pop()).await.is_err());
            assert_eq!(dropped.pop().await, None);
        })
        .unwrap();
    }

    #[test]
    fn movers_end_with_their_shard_whatever_they_wait_for() {
        let pool = FramePool::new(1 << 20);
        run_with_movers(pool, 2, async |rt| {
            let movers = movers().unwrap();
            rt.spawn(async move { movers.run(0, || async { std::future::pending::<()>().await }).await });
        })
        .unwrap();
        // What is noted counts for the thread and for its movers.
        let (own, theirs) = run_with_movers(pool, 1, async |_| {
            let movers = movers().unwrap();
            movers.run(0, || async { note_moved(70_000) }).await;
            note_moved(3);
            (moved_here_bytes(), movers.moved_bytes())
        })
        .unwrap();
        assert_eq!((own % 70_000, theirs), (3, 70_000));
    }
}
