//! A part of a process whose tasks end together, as those of a process do when it is killed.
//!
//! A target lives in a group of its own: its tasks, the files that they opened and the blocking work that they gave away. So
//! a target whose store failed can be taken out of a process that goes on, and a new one can take its place: [`Group::end`] drops
//! every task wherever it waits, and [`Group::has_let_go`] says when no operation of theirs can reach a file any more. What is
//! left of the tasks then is what a kill would leave: that is tested as such.
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use frames::FramePool;
use types::{Instant, Origin, WallTime};

use crate::{
    BlockingFile, Connection, DirLock, DiskFile, Listener, LocalFuture, LockError, Nid, OpenMode, Rt, World, real,
};

/// Whether a file is still open, asked behind its back.
pub type IsOpen = Box<dyn Fn() -> bool>;

/// The tasks of a part of a process.
#[derive(Clone)]
pub struct Group(Rc<Members>);

struct Members {
    ended: Cell<bool>,
    tasks: RefCell<Vec<Option<Weak<Task>>>>,
    free: RefCell<Vec<usize>>,
    files: RefCell<Vec<IsOpen>>,
    /// One reference more for each blocking file, and for each piece of blocking work.
    blocking: Arc<()>,
}

/// A task: the world's executor has the frame, the group can take its future away.
struct Task {
    future: RefCell<Option<LocalFuture<()>>>,
    waker: RefCell<Option<Waker>>,
}

impl Group {
    fn new() -> Group {
        Group(Rc::new(Members {
            ended: Cell::new(false),
            tasks: RefCell::default(),
            free: RefCell::default(),
            files: RefCell::default(),
            blocking: Arc::new(()),
        }))
    }

    /// Drops every task, and whatever is spawned from now on. Not to be called by a task of the group.
    pub fn end(&self) {
        self.0.ended.set(true);
        let tasks: Vec<Rc<Task>> = self.0.tasks.borrow().iter().flatten().filter_map(Weak::upgrade).collect();
        for task in tasks {
            let future = task.future.borrow_mut().take();
            // Outside of every borrow: what it held may speak to the group as it goes.
            drop(future);
            // The executor forgets a task that has ended.
            let waker = task.waker.borrow_mut().take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Whether no file that its tasks opened is open any more, nor any operation on one under way, nor blocking work.
    #[must_use]
    pub fn has_let_go(&self) -> bool {
        self.0.files.borrow_mut().retain(|is_open| is_open());
        self.0.files.borrow().is_empty() && Arc::strong_count(&self.0.blocking) == 1
    }
}

/// What the executor polls.
struct Frame {
    members: Rc<Members>,
    at: usize,
    task: Rc<Task>,
}

impl Future for Frame {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let future = self.task.future.borrow_mut().take();
        let Some(mut future) = future else { return Poll::Ready(()) };
        if future.as_mut().poll(cx).is_ready() || self.members.ended.get() {
            return Poll::Ready(());
        }
        *self.task.future.borrow_mut() = Some(future);
        let mut waker = self.task.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.members.tasks.borrow_mut()[self.at] = None;
        self.members.free.borrow_mut().push(self.at);
    }
}

/// The world as tasks of a group see it.
struct Grouped {
    world: Rt,
    members: Rc<Members>,
}

impl Rt {
    /// The same world for a group of tasks: what is spawned through the handle belongs to the group.
    #[must_use]
    pub fn group(&self) -> (Rt, Group) {
        let group = Group::new();
        let world = Grouped { world: self.clone(), members: group.0.clone() };
        (Rt::new(Rc::new(world)), group)
    }
}

impl World for Grouped {
    fn now(&self) -> Instant {
        self.world.0.now()
    }
    fn wall(&self) -> WallTime {
        self.world.0.wall()
    }
    fn sleep_until(&self, at: Instant) -> LocalFuture<()> {
        self.world.0.sleep_until(at)
    }
    fn awake_since(&self) -> Instant {
        self.world.0.awake_since()
    }
    fn spawn(&self, task: LocalFuture<()>) {
        if self.members.ended.get() {
            return;
        }
        let task = Rc::new(Task { future: RefCell::new(Some(task)), waker: RefCell::default() });
        let mut tasks = self.members.tasks.borrow_mut();
        let at = self.members.free.borrow_mut().pop().unwrap_or_else(|| {
            tasks.push(None);
            tasks.len() - 1
        });
        tasks[at] = Some(Rc::downgrade(&task));
        drop(tasks);
        self.world.0.spawn(Box::pin(Frame { members: self.members.clone(), at, task }));
    }
    fn seed(&self) -> u64 {
        self.world.0.seed()
    }
    fn fill_secret(&self, into: &mut [u8]) {
        self.world.0.fill_secret(into);
    }
    fn connect(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>> {
        self.world.0.connect(nid)
    }
    fn connect_encrypted(&self, nid: &Nid) -> LocalFuture<io::Result<Connection>> {
        self.world.0.connect_encrypted(nid)
    }
    fn listen(&self, nid: &Nid) -> io::Result<Box<dyn Listener>> {
        self.world.0.listen(nid)
    }
    fn take_in(&self, arrival: real::Arrival) -> io::Result<Connection> {
        self.world.0.take_in(arrival)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
        let file = self.world.0.open(path, mode)?;
        let mut files = self.members.files.borrow_mut();
        files.retain(|is_open| is_open());
        files.push(file.watch());
        Ok(file)
    }
    fn open_blocking(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
        let file = self.world.0.open_blocking(path, create)?;
        Ok(Box::new(Held { file, _open: self.members.blocking.clone() }))
    }
    fn open_on_worker(&self, path: &Path, create: bool) -> LocalFuture<io::Result<Box<dyn BlockingFile>>> {
        let (opening, open) = (self.world.0.open_on_worker(path, create), self.members.blocking.clone());
        Box::pin(async move { Ok(Box::new(Held { file: opening.await?, _open: open }) as Box<dyn BlockingFile>) })
    }
    fn lock_dir(&self, dir: &Path) -> Result<DirLock, LockError> {
        self.world.0.lock_dir(dir)
    }
    fn try_lock_dir(&self, dir: &Path) -> Result<DirLock, LockError> {
        self.world.0.try_lock_dir(dir)
    }
    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.world.0.unlink(path)
    }
    fn replace(&self, new: &Path, old: &Path, aside: &Path) -> io::Result<()> {
        self.world.0.replace(new, old, aside)
    }
    fn offload(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        let under_way = self.members.blocking.clone();
        self.world.0.offload(Box::new(move || {
            job();
            drop(under_way);
        }))
    }
    fn probe(&self, dir: &Path) -> LocalFuture<io::Result<()>> {
        self.world.0.probe(dir)
    }
    fn frames(&self) -> FramePool {
        self.world.0.frames()
    }
    fn origin(&self) -> Origin {
        self.world.0.origin()
    }
    fn is_gone(&self, process: Origin) -> bool {
        self.world.0.is_gone(process)
    }
}

/// A blocking file of a group.
struct Held {
    file: Box<dyn BlockingFile>,
    _open: Arc<()>,
}

impl BlockingFile for Held {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.file.write(offset, from)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn is_empty(&self) -> io::Result<bool> {
        self.file.is_empty()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn forget_cached(&self) -> io::Result<()> {
        self.file.forget_cached()
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }
    fn space(&self) -> io::Result<(u64, u64)> {
        self.file.space()
    }
    fn wait_for_space(&self) -> bool {
        self.file.wait_for_space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Event;

    fn in_world<T>(work: impl AsyncFnOnce(Rt) -> T) -> T {
        real::run(FramePool::new(1 << 20), |rt| work(rt)).unwrap()
    }

    #[test]
    fn what_a_group_holds_goes_with_it_and_others_go_on() {
        in_world(async |rt| {
            let (inner, group) = rt.group();
            let (never, held) = (Rc::new(Event::new()), Rc::new(()));
            for spawner in [&inner, &inner, &rt] {
                let (never, held) = (never.clone(), held.clone());
                spawner.spawn(async move {
                    never.wait().await;
                    drop(held);
                });
            }
            rt.sleep(types::Duration::from_millis(1)).await;
            assert_eq!(Rc::strong_count(&held), 4);
            group.end();
            assert_eq!(Rc::strong_count(&held), 2, "the task of nobody's group goes on");
            let late = held.clone();
            inner.spawn(async move { drop(late) });
            assert_eq!(Rc::strong_count(&held), 2, "nothing is spawned after the end");
        });
    }

    #[test]
    fn a_group_has_let_go_when_its_files_and_its_blocking_work_have_ended() {
        let dir = tempfile::tempdir().unwrap();
        in_world(async |rt| {
            let (inner, group) = rt.group();
            let file = inner.open(&dir.path().join("a"), OpenMode { create: true, direct: false }).unwrap();
            let blocking = inner.open_blocking(&dir.path().join("b"), true).unwrap();
            let (tell, told) = std::sync::mpsc::channel::<()>();
            let work = rt.clone();
            let (begun, mut begins) = (crate::Lane::new(), None);
            let (of_job, of_task) = (begun.clone(), inner.clone());
            inner.spawn(async move {
                of_task
                    .offload(move || {
                        of_job.push(());
                        told.recv().unwrap_err();
                    })
                    .await;
            });
            begins.get_or_insert(begun.pop().await);
            group.end();
            assert!(!group.has_let_go());
            drop(blocking);
            assert!(!group.has_let_go());
            drop(tell);
            while Arc::strong_count(&group.0.blocking) > 1 {
                work.sleep(types::Duration::from_millis(1)).await;
            }
            assert!(!group.has_let_go(), "a file is open");
            drop(file);
            assert!(group.has_let_go());
        });
    }
}
