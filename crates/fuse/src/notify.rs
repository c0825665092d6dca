//! Notifications: invalidations and other messages to the kernel, off the serving threads.
//!
//! A notification may wait in the kernel (INVAL_INODE for page locks that a READ in progress holds, INVAL_ENTRY for a
//! directory's lock), so it is written by a helper thread and its end is a future. Notifications may overtake each
//! other; whoever needs an order awaits one before the next. Threads are started when all are busy, so that a waiting
//! notification never holds up the one that would free it, up to [`THREADS_MAX`]; then they queue.
//!
//! What the kernel is to forget is never refused, however many queue: it would believe that for good. Nor does it queue twice: one that
//! has not begun is about all that happened until it does. So there are at most as many as inodes and ranges of them that it knows.
use crate::abi::{self, *};
use crate::drops::UnderWay;
use crate::session::{Link, Shared, send_on, write_message, write_unreadable};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Helper threads at most, that is, notifications that wait in the kernel at a time.
pub const THREADS_MAX: usize = 4096;
/// Bytes of their stacks: they make one system call.
const STACK_BYTES: usize = 64 << 10;
/// Notifications that wait for a thread at most; more are refused with EAGAIN, but for those by which the kernel forgets something.
pub const QUEUE_MAX: usize = 65536;
/// An idle helper thread goes away after this.
const IDLE: Duration = Duration::from_secs(5);

/// What a notification says: its code, and what stands behind the header.
type Said = (i32, Vec<u8>);

/// A STORE of a byte that the kernel cannot read.
const LENGTHEN: i32 = notify::STORE | 1 << 16;

/// Whether the kernel is to forget or to learn something, or to ask again: it would believe for good what it is not told.
fn is_to_forget(code: i32) -> bool {
    matches!(code, notify::INVAL_INODE | notify::INVAL_ENTRY | notify::DELETE | notify::INC_EPOCH | LENGTHEN)
}

#[derive(Default)]
struct State {
    /// Whether the kernel had what it was about, or an errno.
    result: Option<Result<bool, i32>>,
    /// Of those who wait, by their places.
    wakers: Vec<Waker>,
    /// It drops pages.
    drops: Option<UnderWay>,
}

#[derive(Default)]
pub(crate) struct Done(Mutex<State>);

impl Done {
    /// The kernel's answer to the notification: that it had nothing cached is as good as having dropped it.
    pub fn set_notified(&self, result: io::Result<()>) {
        self.set(match result {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            other => other.map(|()| true),
        });
    }

    fn set(&self, result: io::Result<bool>) {
        let wakers = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = Some(result.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)));
            state.drops = None;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Resolves when the kernel has done what the notification asked: whether it had what that was about. Need not be awaited; dropping it
/// changes nothing.
pub struct Notified {
    done: Arc<Done>,
    /// Its place among those who wait.
    place: Option<usize>,
}

impl Notified {
    fn of(done: Arc<Done>) -> Notified {
        Notified { done, place: None }
    }
}

impl Future for Notified {
    type Output = io::Result<bool>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Notified { done, place } = self.get_mut();
        let mut state = done.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = state.result {
            return Poll::Ready(result.map_err(io::Error::from_raw_os_error));
        }
        match *place {
            Some(place) => state.wakers[place].clone_from(cx.waker()),
            None => {
                *place = Some(state.wakers.len());
                state.wakers.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }
}

#[derive(Default)]
struct Queue {
    /// What waits for a thread.
    jobs: VecDeque<(Said, Arc<Done>)>,
    /// What of it the kernel is to forget.
    to_forget: HashMap<Said, Arc<Done>>,
    idle: usize,
    threads: usize,
    closed: bool,
}

impl Queue {
    /// Puts a notification in line; gives its end, that of an older one which does for both.
    ///
    /// # Errors
    /// EAGAIN: too many wait, and nothing is lost without this one.
    fn join(&mut self, said: Said, done: Arc<Done>) -> Result<Arc<Done>, i32> {
        if is_to_forget(said.0) {
            if let Some(older) = self.to_forget.get(&said) {
                return Ok(older.clone());
            }
            self.to_forget.insert(said.clone(), done.clone());
        } else if self.jobs.len() >= QUEUE_MAX {
            return Err(libc::EAGAIN);
        }
        self.jobs.push_back((said, done.clone()));
        Ok(done)
    }
    /// The first in line begins, or with `last` the last is given up.
    fn take(&mut self, last: bool) -> Option<(Said, Arc<Done>)> {
        let job = if last { self.jobs.pop_back() } else { self.jobs.pop_front() }?;
        self.to_forget.remove(&job.0);
        Some(job)
    }
}

struct Pool {
    queue: Mutex<Queue>,
    changed: Condvar,
    shared: Arc<Shared>,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the pool when the last [`Notifier`] is dropped.
struct Handle(Arc<Pool>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

/// Sends notifications of one session from any thread. Cheap to clone.
///
/// All methods return at once; the future resolves to `Ok` also when the kernel had nothing cached (ENOENT).
#[derive(Clone)]
pub struct Notifier(Arc<Handle>);

impl Notifier {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let pool = Pool { queue: Mutex::default(), changed: Condvar::new(), shared };
        Notifier(Arc::new(Handle(Arc::new(pool))))
    }

    /// Drops cached attributes of a node, and cached pages of `len` bytes from `offset` (`len` 0: to the end). Dirty
    /// pages of shared mappings are written back first; reads in progress on the range are waited for.
    pub fn inval_inode(&self, nodeid: u64, offset: u64, len: u64) -> Notified {
        let signed = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
        let out = NotifyInvalInodeOut { ino: nodeid, off: signed(offset), len: signed(len) };
        let drops = Some(self.0.0.shared.drops.begin());
        self.send_as(Done(Mutex::new(State { drops, ..State::default() })), notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Drops cached attributes of a node, no pages.
    pub fn inval_attr(&self, nodeid: u64) -> Notified {
        let out = NotifyInvalInodeOut { ino: nodeid, off: -1, len: 0 };
        self.send(notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Drops a cached name (also a cached "no such name") of a directory.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> Notified {
        self.entry(parent, name, 0)
    }

    /// Makes the kernel ask again for a name, without unmounting or detaching what is below it.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Notified {
        self.entry(parent, name, EXPIRE_ONLY)
    }

    /// Tells that `name` of `parent`, which was `child`, was removed: watchers are told, the dentry goes.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Notified {
        let Ok(namelen) = u32::try_from(name.len()) else { return refused(libc::ENAMETOOLONG) };
        let out = NotifyDeleteOut { parent, child, namelen, padding: 0 };
        self.send(notify::DELETE, &[out.as_bytes(), name, &[0]])
    }

    /// Puts data into the kernel's page cache. Data beyond the known end of file raise the local size.
    pub fn store(&self, nodeid: u64, offset: u64, data: &[u8]) -> Notified {
        let Ok(size) = u32::try_from(data.len()) else { return refused(libc::E2BIG) };
        let out = NotifyStoreOut { nodeid, offset, size, padding: 0 };
        self.send(notify::STORE, &[out.as_bytes(), data])
    }

    /// Makes the kernel believe that a node is at least `size` bytes long (more than 0), and forget its other attributes. No page gets a byte: it
    /// raises the size first, and then finds that the data of this STORE cannot be read. It waits for the lock of the page with the last byte.
    pub fn lengthen(&self, nodeid: u64, size: u64) -> Notified {
        let Some(offset) = size.checked_sub(1) else { return refused(libc::EINVAL) };
        if matches!(self.0.0.shared.link, Link::Pipe(_)) {
            return refused(libc::ENOSYS);
        }
        self.send(LENGTHEN, &[NotifyStoreOut { nodeid, offset, size: 1, padding: 0 }.as_bytes()])
    }

    /// Wakes pollers of a poll handle (`kh` of a POLL request that asked to be notified).
    pub fn poll_wakeup(&self, kh: u64) -> Notified {
        self.send(notify::POLL, &[NotifyPollOut { kh }.as_bytes()])
    }

    /// Makes the kernel look every cached name up again before its next use (ABI 7.44; older: ENOSYS).
    pub fn inc_epoch(&self) -> Notified {
        if self.minor() < 44 { refused(libc::ENOSYS) } else { self.send(notify::INC_EPOCH, &[]) }
    }

    /// Whether the kernel knows [`Notifier::prune`].
    #[must_use]
    pub fn prunes(&self) -> bool {
        self.minor() >= 45
    }

    /// Asks the kernel to give up unused dentries of nodes, so that FORGETs follow (ABI 7.45; older: ENOSYS).
    pub fn prune(&self, nodeids: &[u64]) -> Notified {
        if !self.prunes() {
            return refused(libc::ENOSYS);
        }
        let Ok(count) = u32::try_from(nodeids.len()) else { return refused(libc::E2BIG) };
        let out = abi::NotifyPruneOut { count, ..Default::default() };
        self.send(notify::PRUNE, &[out.as_bytes(), nodeids.as_bytes()])
    }

    fn minor(&self) -> u32 {
        self.0.0.shared.negotiated.minor
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> Notified {
        let Ok(namelen) = u32::try_from(name.len()) else { return refused(libc::ENAMETOOLONG) };
        let out = NotifyInvalEntryOut { parent, namelen, flags };
        self.send(notify::INVAL_ENTRY, &[out.as_bytes(), name, &[0]])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Notified {
        self.send_as(Done::default(), code, parts)
    }

    fn send_as(&self, done: Done, code: i32, parts: &[&[u8]]) -> Notified {
        let done = Arc::new(done);
        let pool = &self.0.0;
        if let Link::Pipe(pipe) = &pool.shared.link {
            // Nobody has to wait in a system call for its end.
            return match send_on(pipe, code, &parts.concat(), done.clone()) {
                Ok(()) => Notified::of(done),
                Err(e) => refused(e.raw_os_error().unwrap_or(libc::EIO)),
            };
        }
        let mut queue = pool.lock();
        let done = match queue.join((code, parts.concat()), done) {
            Ok(done) => done,
            Err(errno) => return refused(errno),
        };
        if queue.jobs.len() > queue.idle && queue.threads < THREADS_MAX {
            queue.threads += 1;
            let weak = Arc::downgrade(pool);
            let started = std::thread::Builder::new().name("fuse-notify".into()).stack_size(STACK_BYTES);
            let started = started.spawn(move || run(&weak));
            if let Err(e) = started {
                queue.threads -= 1;
                if queue.threads == 0
                    && let Some((_, given_up)) = queue.take(true)
                {
                    given_up.set(Err(e));
                }
            }
        }
        drop(queue);
        pool.changed.notify_one();
        Notified::of(done)
    }
}

fn refused(errno: i32) -> Notified {
    let done = Arc::new(Done::default());
    done.set(Err(io::Error::from_raw_os_error(errno)));
    Notified::of(done)
}

/// A helper thread.
fn run(pool: &Weak<Pool>) {
    let Some(pool) = pool.upgrade() else { return };
    while let Some(((code, body), done)) = next(&pool) {
        done.set_notified(match code {
            LENGTHEN => match write_unreadable(&pool.shared.link, notify::STORE, &body) {
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => Ok(()),
                other => other,
            },
            _ => write_message(&pool.shared.link, 0, code, &[IoSlice::new(&body)]),
        });
    }
}

/// The next job; `None` ends the thread.
fn next(pool: &Pool) -> Option<(Said, Arc<Done>)> {
    let mut queue = pool.lock();
    loop {
        if let Some(job) = queue.take(false) {
            return Some(job);
        }
        if queue.closed {
            queue.threads -= 1;
            return None;
        }
        queue.idle += 1;
        let (back, timeout) = pool.changed.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = back;
        queue.idle -= 1;
        if timeout.timed_out() && queue.jobs.is_empty() {
            queue.threads -= 1;
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes of a node that are to be forgotten.
    fn attributes(node: u64) -> Said {
        (notify::INVAL_INODE, NotifyInvalInodeOut { ino: node, off: -1, len: 0 }.as_bytes().to_vec())
    }

    #[test]
    fn what_is_to_be_forgotten_is_never_refused_and_queues_once() {
        let mut queue = Queue::default();
        // An eviction: of each lock the attributes go, and all names.
        for node in 0..QUEUE_MAX as u64 + 1000 {
            assert!(queue.join(attributes(node), Arc::default()).is_ok(), "node {node} is believed for good");
            assert!(queue.join((notify::INC_EPOCH, Vec::new()), Arc::default()).is_ok(), "names at node {node}");
        }
        assert_eq!(queue.jobs.len(), QUEUE_MAX + 1001);
        assert_eq!(queue.join((notify::PRUNE, vec![1]), Arc::default()).err(), Some(libc::EAGAIN), "nothing is lost");
    }

    #[test]
    fn one_that_has_begun_does_not_do_for_a_later_one() {
        let mut queue = Queue::default();
        let first = queue.join(attributes(7), Arc::default()).unwrap();
        let second = queue.join(attributes(7), Arc::default()).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let (said, begun) = queue.take(false).unwrap();
        assert!(said == attributes(7) && Arc::ptr_eq(&begun, &first) && queue.take(false).is_none());
        let third = queue.join(attributes(7), Arc::default()).unwrap();
        assert!(!Arc::ptr_eq(&third, &first) && queue.jobs.len() == 1);
        // Everybody who waits for the first two hears of their end, and nobody of the third's.
        let mut ends: Vec<Notified> = [first, second, third].map(Notified::of).into();
        let mut ready = || {
            let mut cx = Context::from_waker(Waker::noop());
            ends.iter_mut().map(|end| Pin::new(end).poll(&mut cx).is_ready()).collect::<Vec<_>>()
        };
        assert_eq!(ready(), [false; 3]);
        begun.set(Ok(true));
        assert_eq!(ready(), [true, true, false]);
    }
}
