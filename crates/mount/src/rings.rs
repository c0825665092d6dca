//! One program's requests over the native path.
//!
//! A task of the shard takes them from the rings. What is cached is answered where it is taken; what has to wait goes on
//! as a task of its own, at most 64 of a connection, and is answered whenever it is done. When the program is gone by then, what
//! only asks is given up, and what changes something comes to its end; so long the connection keeps its place. Nothing that stands
//! in the shared memory is believed: entries are copied, then judged; data of writes is copied before anybody looks at it; numbers of
//! files lead to open files of this connection only, and to those as long as the kernel has them open.
//!
//! After a request the next one is looked for during a moment, and then waited for: a program that reads in a loop is
//! answered without a system call on either side. Where nothing came in that moment the next ones are not believed in, twice as many
//! every time (as `rt::real::turn` does it for requests of a kernel).
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use ::native::pass;
use ::native::ring::{self, Completion, DATA_BYTES, DaemonEnd, REQUEST_BYTES_MAX, Submission, Violation, op};
use client::OpenFile;
use rt::real::Watched;
use rt::sync::{Event, race};
use types::{Duration, FsError};

use crate::errno;
use crate::native::{Native, Place};

/// Open files that a connection may have numbers for.
const FILES_MAX: usize = 4096;
/// How long the next request is looked for.
const PATIENCE: Duration = Duration::from_micros(60);
/// Requests that are begun before other tasks of the shard run, and bytes that they move: whoever else waits for the shard waits
/// for no more than these, and the last of them, which may be larger.
const TOGETHER_MAX: u32 = 16;
const TOGETHER_BYTES_MAX: u64 = 128 << 10;
/// Looks between two times at which others may have the CPU.
const LOOKS_PER_YIELD: u32 = 16;
/// Most moments in a row that are not believed in, as a power of two.
const DOUBT_MAX: u32 = 8;

/// A program's connection.
pub(crate) struct Rings {
    native: Rc<Native>,
    end: RefCell<DaemonEnd>,
    bell: Watched<OwnedFd>,
    stream: Watched<UnixStream>,
    pid: u32,
    files: RefCell<Vec<Numbered>>,
    /// Bytes of reads and writes under way.
    flying: Cell<usize>,
    /// The program is gone, or hung up on.
    over: Cell<bool>,
    ends: Event,
    /// Requests that change something, under way.
    changing: Cell<u32>,
    changed: Event,
    /// Taken until the last request has ended: until then there are the memory and the descriptors.
    place: Cell<Option<Place>>,
}

impl Drop for Rings {
    /// Nothing is under way any more: the memory is the daemon's again, whatever the program keeps of it.
    fn drop(&mut self) {
        let area = self.end.borrow().end();
        if let Some(place) = self.place.take() {
            self.native.leave(&self.stream, area, place);
        }
    }
}

/// A request that changes something, and has ended when this is dropped.
struct Change(Rc<Rings>);

impl Change {
    fn begun(of: &Rc<Rings>) -> Change {
        of.changing.set(of.changing.get() + 1);
        Change(of.clone())
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.0.changing.set(self.0.changing.get() - 1);
        self.0.changed.notify();
    }
}

/// A number of the connection: its place in the table, and above that how often the place was given out. So a number that the
/// program still has, of a file that is closed, never is another file's.
#[derive(Default)]
struct Numbered {
    round: u32,
    file: Weak<OpenFile>,
}

/// Bits of a number that are its place in the table.
const PLACE_BITS: u32 = 32;

impl Numbered {
    fn open(&self) -> Option<Rc<OpenFile>> {
        self.file.upgrade().filter(|f| f.is_open())
    }
}

/// Bytes under way, no more when dropped.
struct Flight(Rc<Rings>, usize);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.flying.set(self.0.flying.get() - self.1);
    }
}

/// A request that may have to wait.
struct Work {
    does: Pin<Box<dyn Future<Output = Result<i64, i32>>>>,
    /// It goes on when its program is gone. What only asks is given up then.
    changes: bool,
}

impl Work {
    fn new(changes: bool, does: impl Future<Output = Result<i64, i32>> + 'static) -> Work {
        Work { does: Box::pin(does), changes }
    }
}

/// What becomes of a request.
enum Step {
    Answer(Result<i64, i32>),
    Goes(Work),
}

/// Whether to look for the next request.
#[derive(Default)]
struct Doubt {
    missed: u32,
    skips: u32,
}

impl Doubt {
    fn believes(&mut self) -> bool {
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        true
    }
    fn learn(&mut self, came: bool) {
        self.missed = if came { 0 } else { (self.missed + 1).min(DOUBT_MAX) };
        self.skips = (1 << self.missed) - 1;
    }
}

/// What is begun before others have their turn.
#[derive(Default)]
struct Round {
    taken: u32,
    bytes: u64,
}

impl Round {
    fn goes_on(&self) -> bool {
        self.taken < TOGETHER_MAX && self.bytes < TOGETHER_BYTES_MAX
    }
    fn add(&mut self, s: &Submission) {
        self.taken += 1;
        if matches!(s.op, op::READ | op::WRITE) {
            self.bytes = self.bytes.saturating_add(s.len);
        }
    }
}

/// Lets other tasks of the shard run.
pub(crate) async fn pause() {
    let mut first = true;
    poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

impl Rings {
    pub(crate) fn new(
        native: Rc<Native>,
        end: DaemonEnd,
        (stream, bell): (Watched<UnixStream>, Watched<OwnedFd>),
        pid: u32,
        place: Place,
    ) -> Rc<Rings> {
        Rc::new(Rings {
            native,
            end: RefCell::new(end),
            bell,
            stream,
            pid,
            files: RefCell::default(),
            flying: Cell::new(0),
            over: Cell::new(false),
            ends: Event::new(),
            changing: Cell::new(0),
            changed: Event::new(),
            place: Cell::new(Some(place)),
        })
    }

    /// Serves until the program is gone or breaks the rules, or the mount ends. It hangs up when nothing is changed any more: a program that
    /// gives the connection up waits for that before it does the same by another way.
    pub(crate) async fn serve(self: &Rc<Self>) {
        self.go_on().await;
        self.over.set(true);
        self.ends.notify();
        while self.changing.get() > 0 {
            let changed = self.changed.wait();
            if self.changing.get() > 0 {
                changed.await;
            }
        }
        pass::part(&self.stream);
    }

    async fn go_on(self: &Rc<Self>) {
        let mut doubt = Doubt::default();
        let patience = match std::thread::available_parallelism() {
            Ok(n) if n.get() > 1 => PATIENCE,
            _ => Duration::ZERO,
        };
        while !self.native.is_over() {
            match self.take_some() {
                Err(Violation) => {
                    tracing::debug!(pid = self.pid, "native path: the rings are not as they may be; hung up");
                    return;
                }
                Ok(0) => {}
                Ok(_) => {
                    // However fast the program asks, others of this shard have their turn.
                    pause().await;
                    if doubt.believes() {
                        let came = self.look(patience).await;
                        doubt.learn(came);
                    }
                    continue;
                }
            }
            if !self.end.borrow().sleep() {
                // What came may be gone again: a program that plays with its counter does not keep the shard.
                pause().await;
                continue;
            }
            let woken = race(self.bell.readable(), race(self.stream.readable(), self.native.ended())).await;
            self.end.borrow().awake();
            if woken.is_err() {
                // The program says nothing over its socket: this is its end, or the mount's.
                return;
            }
            if let Err(e) = pass::hush(self.bell.as_fd()) {
                tracing::debug!(pid = self.pid, "native path: the bell cannot be hushed; hung up: {e}");
                return;
            }
            rt::real::arrived();
        }
    }

    /// Looks for requests during a moment. Whether there are any.
    async fn look(&self, patience: Duration) -> bool {
        let rt = self.native.client().rt();
        let (began, mut looks) = (rt.now(), 0u32);
        while rt.now().since(began) < patience {
            if self.end.borrow().has_request() {
                return true;
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_YIELD) {
                std::thread::yield_now();
            }
            pause().await;
        }
        false
    }

    /// Begins requests that are there; how many.
    fn take_some(self: &Rc<Self>) -> Result<u32, Violation> {
        let mut round = Round::default();
        while round.goes_on() {
            let Some(s) = self.end.borrow_mut().take()? else { break };
            round.add(&s);
            match self.step(s) {
                Step::Answer(result) => self.complete(s.user, result),
                Step::Goes(work) => self.begin(s.user, work),
            }
        }
        Ok(round.taken)
    }

    fn begin(self: &Rc<Self>, user: u64, mut work: Work) {
        // What is not done at once is polled anew by its task, which leaves a waker of its own.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(result) = work.does.as_mut().poll(&mut cx) {
            return self.complete(user, result);
        }
        let me = self.clone();
        let change = work.changes.then(|| Change::begun(self));
        self.native.client().rt().spawn(async move {
            let result = if change.is_some() { Ok(work.does.await) } else { race(work.does, me.ended()).await };
            if let Ok(result) = result {
                me.complete(user, result);
            }
        });
    }

    /// Completes when nobody wants answers any more.
    async fn ended(&self) {
        let ends = self.ends.wait();
        if !self.over.get() {
            ends.await;
        }
    }

    fn complete(&self, user: u64, result: Result<i64, i32>) {
        let result = result.unwrap_or_else(|errno| -i64::from(errno));
        if self.end.borrow_mut().complete(Completion { user, result }) {
            pass::knock(self.stream.as_fd());
        }
    }

    fn step(self: &Rc<Self>, s: Submission) -> Step {
        match s.op {
            op::NOP => Step::Answer(Ok(0)),
            op::BIND => Step::Answer(self.bind(s.file, [s.offset, s.spare])),
            op::UNBIND => Step::Answer(self.unbind(s.file)),
            op::READ | op::WRITE => self.transfer(s).map_or_else(|e| Step::Answer(Err(e)), Step::Goes),
            op::SYNC | op::DATASYNC => match self.file(s.file) {
                Ok(file) => {
                    let client = self.native.client().clone();
                    let data_only = s.op == op::DATASYNC;
                    Step::Goes(Work::new(false, async move {
                        outcome(client.fsync_aside(&file, data_only).await.map(|()| 0))
                    }))
                }
                Err(e) => Step::Answer(Err(e)),
            },
            _ => Step::Answer(Err(libc::EOPNOTSUPP)),
        }
    }

    fn bind(&self, id: u64, token: [u64; 2]) -> Result<i64, i32> {
        let mut files = self.files.borrow_mut();
        // Programs do not always say that they need a number no more; the end of the open file says it, too.
        let at = files.iter().position(|f| f.open().is_none()).unwrap_or(files.len());
        if at >= FILES_MAX {
            return Err(libc::EMFILE);
        }
        let file = self.native.take(id, token).ok_or(libc::EBADF)?;
        if at == files.len() {
            files.push(Numbered::default());
        }
        let entry = &mut files[at];
        entry.round = (entry.round + 1) & i32::MAX as u32;
        entry.file = Rc::downgrade(&file);
        Ok(i64::from(entry.round) << PLACE_BITS | at as i64)
    }

    fn unbind(&self, number: u64) -> Result<i64, i32> {
        let mut files = self.files.borrow_mut();
        let place = (number & u64::from(u32::MAX)) as usize;
        let entry = files.get_mut(place).filter(|f| u64::from(f.round) == number >> PLACE_BITS && f.open().is_some());
        entry.ok_or(libc::EBADF)?.file = Weak::new();
        Ok(0)
    }

    fn file(&self, number: u64) -> Result<Rc<OpenFile>, i32> {
        let files = self.files.borrow();
        let place = (number & u64::from(u32::MAX)) as usize;
        let entry = files.get(place).filter(|f| u64::from(f.round) == number >> PLACE_BITS);
        entry.and_then(Numbered::open).ok_or(libc::EBADF)
    }

    /// A read or a write, if what it names is there.
    fn transfer(self: &Rc<Self>, s: Submission) -> Result<Work, i32> {
        let file = self.file(s.file)?;
        let len = usize::try_from(s.len).ok().filter(|n| *n <= REQUEST_BYTES_MAX).ok_or(libc::EINVAL)?;
        let data = usize::try_from(s.data).ok().filter(|d| d.checked_add(len).is_some_and(|end| end <= DATA_BYTES));
        let at = ring::DATA + data.ok_or(libc::EINVAL)?;
        if i64::try_from(s.offset).is_err() {
            return Err(libc::EINVAL);
        }
        // Each has its own part of the room for data, or would not be answered rightly in any case.
        let flying = self.flying.get() + len;
        if flying > DATA_BYTES {
            return Err(libc::EAGAIN);
        }
        self.flying.set(flying);
        let flight = Flight(self.clone(), len);
        let client = self.native.client().clone();
        client.offsets().note_call(self.pid, file.fid(), s.op == op::WRITE, s.offset, s.len);
        if s.op == op::WRITE {
            // As much of the flags as a kernel lets anybody change.
            if s.spare & ring::FLAGS_KNOWN != 0 && file.writes() {
                const CHANGEABLE: u32 = (libc::O_APPEND | libc::O_DIRECT) as u32;
                file.follow(s.spare as u32 & CHANGEABLE | file.flags() & !CHANGEABLE);
            }
            let mut bytes = vec![0; len];
            self.end.borrow().area().get(at, &mut bytes);
            return Ok(Work::new(true, async move {
                let _flight = flight;
                outcome(client.write_aside(&file, s.offset, &bytes).await.map(|n| n as usize))
            }));
        }
        let area = self.end.borrow().area().clone();
        Ok(Work::new(false, async move {
            let _flight = flight;
            let bulk = client.read_aside(&file, s.offset, len).await;
            if let Ok(bulk) = &bulk {
                let mut to = at;
                for part in bulk.slices() {
                    area.put(to, part);
                    to += part.len();
                }
            }
            outcome(bulk.map(|b| b.len()))
        }))
    }
}

fn outcome(result: Result<usize, FsError>) -> Result<i64, i32> {
    result.map_err(errno).and_then(|n| i64::try_from(n).map_err(|_| libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_after_so_many_requests_and_after_so_many_bytes() {
        let all = |s: Submission| {
            let mut round = Round::default();
            while round.goes_on() {
                round.add(&s);
            }
            round.taken
        };
        let read = |len| Submission { op: op::READ, len, ..Submission::default() };
        assert_eq!((all(read(4096)), all(read(64 << 10)), all(read(1 << 20)), all(read(u64::MAX))), (16, 2, 1, 1));
        assert_eq!(all(Submission { op: op::SYNC, len: u64::MAX, ..Submission::default() }), 16);
    }

    #[test]
    fn moments_in_which_nothing_came_are_doubted_and_one_that_paid_is_believed() {
        let mut doubt = Doubt::default();
        for misses in 1..=3 {
            assert!(doubt.believes());
            doubt.learn(false);
            for _ in 1..1 << misses {
                assert!(!doubt.believes(), "after {misses} misses");
            }
        }
        assert!(doubt.believes());
        doubt.learn(true);
        assert!(doubt.believes());
    }
}
