//! The connection with the daemon: requests and their answers, the background queue, interrupts, and who waits for what.
//!
//! A request waits in a queue until the daemon reads it, then for its answer. Requests that nobody waits for (releases,
//! write-back, read-ahead) join the background queue, of which INIT's `max_background` are under way at a time. A signal
//! sends INTERRUPT once; a fatal one takes back what the daemon has not read; everything else is waited for.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use fuse::Pipe;
use fuse::abi::{InHeader, InitIn, InitOut, InterruptIn, OutHeader, init, opcode, opcode_name};
use rt::Rt;
use rt::sync::{Event, race};
use types::{Duration, Rng};
use zerocopy::{FromBytes, IntoBytes};

/// What a request is answered: the bytes behind the header, or an errno.
pub type Answer = Result<Vec<u8>, i32>;

/// How far apart requests' numbers are: the lowest bit marks interrupts.
const UNIQUE_STEP: u64 = 2;

thread_local! {
    /// Numbers of the threads that are being killed.
    static DYING: RefCell<BTreeSet<u32>> = RefCell::default();
}

thread_local! {
    /// Numbers of the threads that submit something asynchronous.
    static SUBMITTING: RefCell<BTreeSet<u32>> = RefCell::default();
}

/// The call that a thread is in, as far as the daemon may ask.
pub(crate) fn call_of(pid: u32) -> mount::Syscall {
    match pid {
        0 => mount::Syscall::Unknown,
        pid if SUBMITTING.with_borrow(|all| all.contains(&pid)) => mount::Syscall::Is(libc::SYS_io_submit, 0),
        _ => mount::Syscall::Is(libc::SYS_pwritev, 0),
    }
}

/// A thread is in io_submit(2).
pub(crate) struct Submitting(u32);

impl Drop for Submitting {
    fn drop(&mut self) {
        SUBMITTING.with_borrow_mut(|all| all.remove(&self.0));
    }
}

/// Whether a thread is being killed, as the daemon asks it of its machine.
pub(crate) fn is_dying(pid: u32) -> bool {
    DYING.with_borrow(|dying| dying.contains(&pid))
}

/// A thread of a program, as requests name it.
#[derive(Default)]
pub struct Caller {
    /// Its number; 0: the kernel itself.
    pub pid: u32,
    signalled: Cell<bool>,
    fatal: Cell<bool>,
    signal: Event,
}

impl Caller {
    /// A thread with a number.
    #[must_use]
    pub fn new(pid: u32) -> Rc<Caller> {
        DYING.with_borrow_mut(|dying| dying.remove(&pid));
        Rc::new(Caller { pid, ..Caller::default() })
    }
    /// Sends it a signal.
    pub fn signal(&self, fatal: bool) {
        self.signalled.set(true);
        self.fatal.set(self.fatal.get() || fatal);
        self.signal.notify();
    }
    /// Kills it: the daemon finds that it is dying.
    pub fn kill(&self) {
        DYING.with_borrow_mut(|dying| dying.insert(self.pid));
        self.signal(true);
    }
    /// It begins to submit something asynchronous.
    pub(crate) fn submits(&self) -> Submitting {
        SUBMITTING.with_borrow_mut(|all| all.insert(self.pid));
        Submitting(self.pid)
    }
    /// The signal has been handled.
    pub fn calm(&self) {
        self.signalled.set(false);
        self.fatal.set(false);
    }
    async fn signalled(&self) {
        loop {
            let signal = self.signal.wait();
            if self.signalled.get() {
                return;
            }
            signal.await;
        }
    }
}

/// How long a machine takes for things, drawn anew each time.
#[derive(Clone, Debug)]
pub struct Delays {
    /// Between a step of a thread and the next, at most.
    pub step_max: Duration,
    /// Probability that a thread is kept from its CPU.
    pub stall: f64,
    /// For so long at most.
    pub stall_max: Duration,
    /// Answers may be taken later than notifications that were sent behind them, as on rings.
    pub loose: bool,
}

type End = Box<dyn FnOnce(Answer)>;

struct Pending {
    opcode: u32,
    nodeid: u64,
    answer: RefCell<Option<Answer>>,
    done: Event,
    /// What happens at its end, when nobody waits.
    end: RefCell<Option<End>>,
    interrupted: Cell<bool>,
}

/// INIT has been sent.
pub(crate) struct Started(Rc<Pending>);

/// What INIT agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    /// Flags.
    pub flags: u64,
    /// Largest WRITE and READ.
    pub max_write: u64,
    /// Largest READ of pages.
    pub max_read: u64,
    /// Most of read-ahead.
    pub max_readahead: u64,
}

/// One mount's connection.
pub struct Connection {
    pub(crate) rt: Rt,
    pub(crate) pipe: Arc<Pipe>,
    pub(crate) delays: Delays,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) agreed: Cell<Agreed>,
    unique: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Rc<Pending>>>,
    in_line: RefCell<VecDeque<(u64, Vec<u8>)>>,
    /// The mount option `max_read`.
    pub(crate) max_read: Cell<u64>,
    background: Cell<usize>,
    background_max: Cell<usize>,
    faults: RefCell<Vec<String>>,
    requests: Cell<u64>,
}

impl Connection {
    /// A connection that waits for INIT's answer.
    pub(crate) fn new(rt: Rt, rng: Rng, delays: Delays) -> Rc<Connection> {
        Rc::new(Connection {
            rt,
            pipe: Pipe::new(),
            delays,
            rng: RefCell::new(rng),
            agreed: Cell::default(),
            unique: Cell::new(0),
            waiting: RefCell::default(),
            in_line: RefCell::default(),
            max_read: Cell::new(u64::MAX),
            background: Cell::new(0),
            background_max: Cell::new(1),
            faults: RefCell::default(),
            requests: Cell::new(0),
        })
    }

    /// Time passes as it does between two steps of a thread.
    pub(crate) async fn pause(&self) {
        let time = {
            let mut rng = self.rng.borrow_mut();
            let d = &self.delays;
            let most = if rng.chance(d.stall) { d.stall_max } else { d.step_max };
            Duration::from_nanos(rng.below(most.as_nanos() as u64 + 1))
        };
        self.rt.sleep(time).await;
    }

    /// Sends INIT; its answer is for [`Connection::take_init`].
    pub(crate) fn send_init(&self) -> Started {
        let flags = !init::WRITEBACK_CACHE & !init::OVER_IO_URING;
        let arg = InitIn {
            major: fuse::abi::KERNEL_VERSION,
            minor: fuse::abi::KERNEL_MINOR,
            max_readahead: 1 << 20,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..InitIn::default()
        };
        let (unique, pending) = self.begin(opcode::INIT, 0, None);
        self.pipe.send(unique, self.bytes(unique, opcode::INIT, 0, 0, &[arg.as_bytes()]), false);
        Started(pending)
    }

    /// Takes over what INIT's answer says.
    pub(crate) async fn take_init(&self, started: Started) -> Result<(), i32> {
        let answer = self.answer_of(&started.0).await?;
        let out: InitOut = parse(&answer)?;
        self.background_max.set(usize::from(out.max_background));
        self.agreed.set(Agreed {
            flags: u64::from(out.flags) | u64::from(out.flags2) << 32,
            max_write: u64::from(out.max_write),
            max_read: u64::from(out.max_write).min(self.max_read.get()),
            max_readahead: u64::from(out.max_readahead),
        });
        Ok(())
    }

    fn bytes(&self, unique: u64, op: u32, nodeid: u64, pid: u32, parts: &[&[u8]]) -> Vec<u8> {
        let body: usize = parts.iter().map(|p| p.len()).sum();
        let len = (size_of::<InHeader>() + body) as u32;
        tracing::trace!(unique, "{} of node {nodeid:x}, {body} bytes", opcode_name(op));
        let header = InHeader { len, opcode: op, unique, nodeid, pid, ..InHeader::default() };
        self.requests.set(self.requests.get() + 1);
        let mut bytes = header.as_bytes().to_vec();
        parts.iter().for_each(|p| bytes.extend_from_slice(p));
        bytes
    }

    fn begin(&self, op: u32, nodeid: u64, end: Option<End>) -> (u64, Rc<Pending>) {
        let unique = self.unique.get() + UNIQUE_STEP;
        self.unique.set(unique);
        let pending = Rc::new(Pending {
            opcode: op,
            nodeid,
            answer: RefCell::new(None),
            done: Event::new(),
            end: RefCell::new(end),
            interrupted: Cell::new(false),
        });
        self.waiting.borrow_mut().insert(unique, pending.clone());
        (unique, pending)
    }

    async fn answer_of(&self, pending: &Pending) -> Answer {
        loop {
            let done = pending.done.wait();
            if let Some(answer) = pending.answer.borrow_mut().take() {
                return answer;
            }
            done.await;
        }
    }

    /// A request whose answer the caller waits for.
    pub(crate) async fn request(&self, caller: &Caller, op: u32, nodeid: u64, parts: &[&[u8]]) -> Answer {
        self.pause().await;
        if self.pipe.is_closed() {
            return Err(libc::ENOTCONN);
        }
        let (unique, pending) = self.begin(op, nodeid, None);
        self.pipe.send(unique, self.bytes(unique, op, nodeid, caller.pid, parts), false);
        let answer = match race(self.answer_of(&pending), caller.signalled()).await {
            Ok(answer) => answer,
            Err(()) => {
                if caller.fatal.get() && self.pipe.withdraw(unique) {
                    self.waiting.borrow_mut().remove(&unique);
                    return Err(libc::EINTR);
                }
                self.interrupt(unique, &pending);
                self.answer_of(&pending).await
            }
        };
        self.pause().await;
        answer
    }

    fn interrupt(&self, unique: u64, pending: &Pending) {
        if pending.interrupted.replace(true) {
            return;
        }
        let arg = InterruptIn { unique };
        let own = unique | fuse::abi::INT_REQ_BIT;
        self.pipe.send(own, self.bytes(own, opcode::INTERRUPT, 0, 0, &[arg.as_bytes()]), true);
    }

    /// A request that nobody waits for; `end` gets its answer.
    pub(crate) fn in_background(&self, op: u32, nodeid: u64, parts: &[&[u8]], end: End) {
        if self.pipe.is_closed() {
            return end(Err(libc::ENOTCONN));
        }
        let (unique, _) = self.begin(op, nodeid, Some(end));
        let bytes = self.bytes(unique, op, nodeid, 0, parts);
        self.in_line.borrow_mut().push_back((unique, bytes));
        self.serve_line();
    }

    /// A request in the background that was asked for, as a part of asynchronous ones: its answer.
    pub(crate) fn in_line(&self, op: u32, nodeid: u64, parts: &[&[u8]]) -> impl Future<Output = Answer> + use<> {
        let (tx, rx) = rt::sync::oneshot();
        self.in_background(op, nodeid, parts, Box::new(move |answer| tx.send(answer)));
        async move { rx.await.unwrap_or(Err(libc::ECONNABORTED)) }
    }

    /// How many background requests may join before a new one has to wait in line.
    pub(crate) fn is_congested(&self) -> bool {
        self.background.get() * 4 >= self.background_max.get() * 3
    }

    fn serve_line(&self) {
        while self.background.get() < self.background_max.get() {
            let Some((unique, bytes)) = self.in_line.borrow_mut().pop_front() else { return };
            self.background.set(self.background.get() + 1);
            self.pipe.send(unique, bytes, false);
        }
    }

    /// A message that has no answer.
    pub(crate) fn tell(&self, op: u32, nodeid: u64, arg: &[u8]) {
        self.pipe.send(0, self.bytes(0, op, nodeid, 0, &[arg]), false);
    }

    /// An answer came.
    pub(crate) fn on_reply(&self, header: &OutHeader, body: &[u8]) {
        tracing::trace!(header.unique, header.error, "answer of {} bytes", body.len());
        let Some(pending) = self.waiting.borrow_mut().remove(&header.unique) else {
            return self.fault(format!("an answer to request {}, which does not wait", header.unique));
        };
        if header.error > 0 || header.error < -511 || header.error != 0 && !body.is_empty() {
            self.fault(format!("{} answered with error {}", opcode_name(pending.opcode), header.error));
        }
        let answer = if header.error == 0 { Ok(body.to_vec()) } else { Err(-header.error) };
        self.finish(&pending, answer);
    }

    fn finish(&self, pending: &Pending, answer: Answer) {
        match pending.end.borrow_mut().take() {
            Some(end) => {
                self.background.set(self.background.get().saturating_sub(1));
                end(answer);
                self.serve_line();
            }
            None => {
                *pending.answer.borrow_mut() = Some(answer);
                pending.done.notify();
            }
        }
    }

    /// The connection is over: nothing is answered any more.
    pub(crate) fn abort(&self) {
        self.pipe.close();
        self.in_line.borrow_mut().clear();
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for pending in waiting.into_values() {
            self.finish(&pending, Err(libc::ECONNABORTED));
        }
    }

    /// The daemon broke a rule of the protocol.
    pub(crate) fn fault(&self, what: String) {
        tracing::error!("protocol: {what}");
        self.faults.borrow_mut().push(what);
    }

    /// Rules of the protocol that were broken so far.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.faults.borrow().clone()
    }

    /// Requests sent so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// What has no answer yet, for reports of hangs.
    #[must_use]
    pub fn unanswered(&self) -> Vec<String> {
        let waiting = self.waiting.borrow();
        waiting.iter().map(|(u, p)| format!("{} of node {:x} (request {u})", opcode_name(p.opcode), p.nodeid)).collect()
    }
}

/// Reads a structure off the front of an answer.
pub(crate) fn parse<T: FromBytes>(bytes: &[u8]) -> Result<T, i32> {
    T::read_from_prefix(bytes).map(|(v, _)| v).map_err(|_| libc::EIO)
}
