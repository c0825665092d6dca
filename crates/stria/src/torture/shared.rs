//! What workers, strikes and the watch of one torture share: what is disturbed, what each worker is at, what went wrong.
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Violations that are kept; more say nothing new.
const VIOLATIONS_MAX: usize = 50;
/// Lines of the trace that are kept: the last ones.
const TRACE_MAX: usize = 20_000;

/// A span of time that may be going on, and how often it began or ended.
#[derive(Default)]
struct Span {
    open: AtomicU64,
    changes: AtomicU64,
}

impl Span {
    fn begin(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
    fn end(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

/// What a worker is doing since when.
type Doing = Mutex<Option<(Instant, String)>>;

/// The state of a run.
pub struct Shared {
    over: AtomicBool,
    /// The signal that ended the run early; 0: none.
    interrupted: AtomicI32,
    operations: AtomicU64,
    excused: AtomicU64,
    violations: Mutex<Vec<String>>,
    /// Per mount: its daemon is stopped for long or dead, so that what it had not written out may be lost.
    lost: Vec<Span>,
    /// Disks below the servers are full.
    full: Span,
    /// The device of a store fails.
    broken: Span,
    /// What happened, a line each, the latest last.
    trace: Mutex<VecDeque<String>>,
    doing: Vec<Doing>,
    begun: Instant,
}

/// What was disturbed when an operation began.
pub struct Before {
    mount: usize,
    lost: u64,
    full: u64,
    broken: u64,
}

impl Before {
    /// The mount that was asked about.
    #[must_use]
    pub fn mount(&self) -> usize {
        self.mount
    }
}

impl Shared {
    /// For so many mounts and workers.
    #[must_use]
    pub fn new(mounts: usize, workers: usize) -> Shared {
        Shared {
            over: AtomicBool::new(false),
            interrupted: AtomicI32::new(0),
            operations: AtomicU64::new(0),
            excused: AtomicU64::new(0),
            violations: Mutex::default(),
            lost: (0..mounts).map(|_| Span::default()).collect(),
            full: Span::default(),
            broken: Span::default(),
            trace: Mutex::default(),
            doing: (0..workers).map(|_| Mutex::new(None)).collect(),
            begun: Instant::now(),
        }
    }
    /// Nanoseconds since the run began, the same clock for all workers; never 0.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX - 1).max(1)
    }
    /// Workers end after their current operation.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
    /// A signal asks for the end: from now on nothing is judged.
    pub fn interrupt(&self, signal: i32) {
        self.interrupted.store(signal, Ordering::SeqCst);
        self.end();
    }
    /// The signal that asked for the end.
    #[must_use]
    pub fn interrupted(&self) -> Option<i32> {
        Some(self.interrupted.load(Ordering::SeqCst)).filter(|s| *s != 0)
    }
    /// Whether workers shall end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
    /// Something is not as it was promised: the run ends. What goes wrong after an interrupt is no wonder.
    pub fn violation(&self, text: String) {
        if self.interrupted().is_some() {
            return;
        }
        eprintln!("violation at {:.1} s: {text}", self.begun.elapsed().as_secs_f64());
        self.trace(&format!("VIOLATION: {text}"));
        let mut all = self.lock_violations();
        if all.len() < VIOLATIONS_MAX {
            all.push(text);
        }
        drop(all);
        self.end();
    }
    fn lock_violations(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.violations.lock().expect("the lock is held for a push only")
    }
    /// Everything that was not as promised.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock_violations().clone()
    }
    /// Operations carried out, and those whose failure a strike excuses.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.operations.load(Ordering::Relaxed), self.excused.load(Ordering::Relaxed))
    }

    /// A mount's daemon dies or is stopped for so long that it may be evicted.
    pub fn begin_loss(&self, mount: usize) {
        self.lost[mount].begin();
    }
    /// It is back.
    pub fn end_loss(&self, mount: usize) {
        self.lost[mount].end();
    }
    /// Whether a mount cannot be used now.
    #[must_use]
    pub fn is_lost(&self, mount: usize) -> bool {
        self.lost[mount].is_open()
    }
    /// Adds a line to the trace.
    pub fn trace(&self, text: &str) {
        let line = format!("{:9.3} {text}", self.begun.elapsed().as_secs_f64());
        let mut trace = self.trace.lock().expect("the lock is held for a push only");
        if trace.len() == TRACE_MAX {
            trace.pop_front();
        }
        trace.push_back(line);
    }
    /// What happened: strikes, operations with their beginning and end, violations; seconds since the run began.
    #[must_use]
    pub fn traced(&self) -> String {
        let trace = self.trace.lock().expect("the lock is held for a push only");
        trace.iter().map(|line| format!("{line}\n")).collect()
    }
    /// A strike begins, or says something.
    pub fn strike(&self, text: &str) {
        note!("  {text}");
        self.trace(&format!("STRIKE: {text}"));
    }
    /// The device of a store fails from now on.
    pub fn begin_broken(&self) {
        self.broken.begin();
    }
    /// It is well again.
    pub fn end_broken(&self) {
        self.broken.end();
    }
    /// The disks below the servers are full from now on.
    pub fn begin_full(&self) {
        self.full.begin();
    }
    /// They have space again.
    pub fn end_full(&self) {
        self.full.end();
    }

    /// To be asked before an operation on a mount.
    #[must_use]
    pub fn before(&self, mount: usize) -> Before {
        Before { mount, lost: self.lost[mount].changes(), full: self.full.changes(), broken: self.broken.changes() }
    }
    /// Whether a mount was lost at some time since `before`.
    #[must_use]
    pub fn lost_since(&self, before: &Before) -> bool {
        let span = &self.lost[before.mount];
        span.is_open() || span.changes() != before.lost
    }
    /// Whether a strike since `before` explains this failure: any on a lost mount, ENOSPC on a full disk, EIO of a device.
    #[must_use]
    pub fn excuses(&self, before: &Before, e: &std::io::Error) -> bool {
        let full = self.full.is_open() || self.full.changes() != before.full;
        let broken = self.broken.is_open() || self.broken.changes() != before.broken;
        let is = |errno: i32| e.raw_os_error() == Some(errno);
        let excused = self.lost_since(before) || full && is(libc::ENOSPC) || broken && is(libc::EIO);
        self.excused.fetch_add(u64::from(excused), Ordering::Relaxed);
        excused
    }

    /// A worker begins an operation.
    pub fn doing(&self, worker: usize, what: String) {
        *self.doing[worker].lock().expect("the lock is held for assignments only") = Some((Instant::now(), what));
    }
    /// A worker's operation has ended.
    pub fn done(&self, worker: usize) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let done = self.doing[worker].lock().expect("the lock is held for assignments only").take();
        if let Some((since, what)) = done {
            self.trace(&format!("program {worker}: {what} ({:.3} s)", since.elapsed().as_secs_f64()));
        }
    }
    /// The operations that last longer than `limit`, as sentences.
    #[must_use]
    pub fn standing(&self, limit: Duration) -> Vec<String> {
        let since = |d: &Doing| d.lock().expect("the lock is held for assignments only").clone();
        let all = self.doing.iter().filter_map(since).filter(|(since, _)| since.elapsed() > limit);
        all.map(|(since, what)| format!("{what} stands still since {} s", since.elapsed().as_secs())).collect()
    }
    /// Waits a moment: strikes need time to be over.
    pub fn pause(&self) {
        std::thread::park_timeout(Duration::from_millis(50));
    }
}
