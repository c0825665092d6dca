//! Servers as processes of their own: started, started again when they die, stopped in order.
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::announce::Daemon;
use crate::failure::Failure;

/// Pause before a server that was steady and died is started again; it doubles, up to the longest, while it dies young.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause before a server that died is started again.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A server that was ready for so long died of something new: the pause begins anew.
const STEADY_AFTER: Duration = Duration::from_secs(2);
/// How long a server may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// How the reason begins why a server is down that was tried again.
const NO_START: &str = "does not start";

/// What a supervisor thread and its owner share.
#[derive(Default)]
struct Shared {
    pid: Option<i32>,
    restarts: u32,
    /// Why it does not run, while it does not.
    down: Option<String>,
    /// How often in succession it did not start.
    failures: u32,
    /// It is not started again for now.
    held: bool,
}

/// Servers by name, with what is known of each.
type Named = Vec<(String, Arc<Mutex<Shared>>)>;

/// What is said of servers that do not run; can be asked from anywhere.
#[derive(Clone, Default)]
pub struct Down {
    all: Arc<Mutex<Named>>,
}

impl Down {
    /// A sentence for each server that does not run.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |(name, shared): &(String, Arc<Mutex<Shared>>)| {
            let shared = lock(shared);
            let tried =
                if shared.failures > 1 { format!(" ({} times so far)", shared.failures) } else { String::new() };
            Some(format!("{name} {}{tried}", shared.down.as_ref()?))
        };
        lock(&self.all).iter().filter_map(line).collect()
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().expect("the lock is held for assignments only")
}

struct Supervised {
    name: String,
    shared: Arc<Mutex<Shared>>,
    stop: Sender<()>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// Where a server runs.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The file of its network namespace; `None`: this process's.
    pub netns: Option<PathBuf>,
    /// Arguments of its own.
    pub settings: Vec<OsString>,
}

/// Supervised servers, in the order of their start.
#[derive(Default)]
pub struct Children {
    all: Vec<Supervised>,
    down: Down,
}

impl Children {
    /// Starts `stria ARGUMENTS` as server `name` and waits until it is ready. From then on it is started again when it
    /// dies. Gives its address. `persists`: one that does not start is tried again and again all the same.
    ///
    /// # Errors
    /// Why it did not start, in its own words.
    pub fn start(
        &mut self,
        name: &str,
        arguments: Vec<OsString>,
        log: PathBuf,
        netns: Option<PathBuf>,
        persists: bool,
    ) -> Result<String, Failure> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (stop, stopped) = channel();
        let (tell, told) = channel();
        let (end, done) = channel();
        let mut watch = Watch { name: name.into(), arguments, log, netns, persists, shared: shared.clone(), stopped };
        let thread = std::thread::Builder::new().name(format!("watch {name}")).spawn(move || {
            watch.run(&tell);
            drop(end);
        });
        let thread = thread.map_err(|e| Failure::from(format!("{name}: no thread to watch it: {e}")))?;
        let word = told.recv().unwrap_or_else(|_| Err(Failure::from("its supervisor ended".to_string())));
        if word.is_ok() || persists {
            lock(&self.down.all).push((name.into(), shared.clone()));
            self.all.push(Supervised { name: name.into(), shared, stop, done, thread: Some(thread) });
        }
        word.map_err(|e| Failure::with_errno(format!("{name}: {e}"), i32::from(e.code())))
    }

    /// Has server `name` stopped before all others.
    pub fn stops_first(&mut self, name: &str) {
        if let Some(at) = self.all.iter().position(|c| c.name == name) {
            self.all[..=at].rotate_right(1);
        }
    }

    /// Whether there is a server of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.all.iter().any(|c| c.name == name)
    }

    /// Kills server `name`, as a crash would; it is started again. Whether it was running.
    pub fn kill(&self, name: &str) -> bool {
        self.send(name, libc::SIGKILL)
    }

    /// Sends a signal to server `name`. Whether it was running.
    pub fn send(&self, name: &str, signal: i32) -> bool {
        self.all.iter().find(|c| c.name == name).is_some_and(|c| c.signal(signal))
    }

    /// Kills server `name` and has it down for `work`; afterwards it is started again.
    pub fn without<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let child = self.all.iter().find(|c| c.name == name);
        if let Some(child) = child {
            lock(&child.shared).held = true;
            while child.signal(libc::SIGKILL) {
                std::thread::park_timeout(PAUSE_MIN);
            }
        }
        let done = work();
        if let Some(child) = child {
            lock(&child.shared).held = false;
        }
        done
    }

    /// For those who want to know later which servers do not run, also of those that are started later.
    #[must_use]
    pub fn down(&self) -> Down {
        self.down.clone()
    }

    /// Names and how often they were started again.
    #[must_use]
    pub fn restarts(&self) -> Vec<(String, u32)> {
        self.all.iter().map(|c| (c.name.clone(), lock(&c.shared).restarts)).collect()
    }

    /// Stops all servers, in the order of their start: the metadata server is a client of the OSTs.
    pub fn stop(&mut self) {
        self.all.drain(..).for_each(Supervised::stop);
    }

    /// Stops one server for good. Whether there was one of this name.
    pub fn stop_one(&mut self, name: &str) -> bool {
        let Some(at) = self.all.iter().position(|c| c.name == name) else { return false };
        self.all.remove(at).stop();
        lock(&self.down.all).retain(|(of, _)| of != name);
        true
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Supervised {
    fn stop(mut self) {
        // The watcher may have ended by itself.
        let _ = self.stop.send(());
        self.signal(libc::SIGTERM);
        // One that stands still would not hear it.
        self.signal(libc::SIGCONT);
        if self.done.recv_timeout(STOP_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{} does not stop within {STOP_WITHIN:?}: killed", self.name);
            self.signal(libc::SIGKILL);
        }
        if let Some(thread) = self.thread.take() {
            // A watcher that panicked has told so on stderr.
            let _ = thread.join();
        }
    }
    fn signal(&self, signal: i32) -> bool {
        // Under the lock, so that the process is not collected and its number not given to another meanwhile.
        let shared = lock(&self.shared);
        // SAFETY: plain system call; the process is our child and not yet waited for.
        shared.pid.is_some_and(|pid| unsafe { libc::kill(pid, signal) } == 0)
    }
}

struct Watch {
    name: String,
    arguments: Vec<OsString>,
    log: PathBuf,
    netns: Option<PathBuf>,
    /// It is tried again although it did not start the first time.
    persists: bool,
    shared: Arc<Mutex<Shared>>,
    stopped: Receiver<()>,
}

impl Watch {
    fn run(&mut self, tell: &Sender<Result<String, Failure>>) {
        let mut pause = PAUSE_MIN;
        let mut first = true;
        loop {
            let mut lived = Duration::ZERO;
            match self.start(first) {
                // Whoever holds it is quicker than whatever it died of.
                None => pause = PAUSE_MIN,
                Some(Ok((word, mut child))) => {
                    let ready = Instant::now();
                    if first {
                        // When nobody waits any more, `stop` comes by its channel.
                        let _ = tell.send(Ok(word));
                    }
                    let status = wait_unreaped(child.id() as i32);
                    lived = ready.elapsed();
                    self.ended(&format!("ended ({status}) and is started again"));
                    // Collects the process; its state is known already.
                    let _ = child.wait();
                    if self.stopped.try_recv().is_ok() {
                        return;
                    }
                    tracing::warn!("{} ended ({status}): it is started again", self.name);
                }
                Some(Err(e)) if first && !self.persists => {
                    let _ = tell.send(Err(e));
                    return;
                }
                Some(Err(e)) => {
                    let text = format!("{NO_START}: {e}; it is tried again every {PAUSE_MAX:?}");
                    // The same words every ten seconds would bury everything else.
                    if self.ended(&text) {
                        tracing::error!("{} {text}", self.name);
                    }
                    if first {
                        let _ = tell.send(Err(e));
                    }
                }
            }
            first = false;
            pause = next_pause(pause, lived);
            if !matches!(self.stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    /// Starts the server, which can be given a signal from its first moment on, and waits until it is ready. `None`: not now.
    fn start(&self, first: bool) -> Option<Result<(String, std::process::Child), Failure>> {
        let mut shared = lock(&self.shared);
        if shared.held {
            return None;
        }
        let mut daemon = match Daemon::spawn(&self.arguments, Some(&self.log), false, self.netns.as_deref()) {
            Ok(daemon) => daemon,
            Err(e) => return Some(Err(e)),
        };
        shared.pid = Some(daemon.child.id() as i32);
        drop(shared);
        let ready = daemon.wait_ready();
        let mut shared = lock(&self.shared);
        if let Err(line) = ready {
            // Before it is collected: its number is another process's then.
            shared.pid = None;
            shared.failures += 1;
            drop(shared);
            return Some(Err(daemon.why(&line, Some(&self.log))));
        }
        shared.restarts += u32::from(!first);
        shared.failures = 0;
        if shared.down.take().is_some_and(|why| why.starts_with(NO_START)) {
            tracing::warn!("{} runs again", self.name);
        }
        Some(Ok((daemon.word, daemon.child)))
    }

    /// It does not run, for the reason given. Whether that is news.
    fn ended(&self, why: &str) -> bool {
        let mut shared = lock(&self.shared);
        shared.pid = None;
        shared.down.replace(why.into()).is_none_or(|before| before != why)
    }
}

/// The pause before the next start, after a life of `lived`.
fn next_pause(pause: Duration, lived: Duration) -> Duration {
    if lived > STEADY_AFTER { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) }
}

/// Waits for the end of a child and leaves it to be collected, so that its number stays taken.
fn wait_unreaped(pid: i32) -> String {
    // SAFETY: an all-zero siginfo is valid and filled in by the call.
    let (rc, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let mut rc;
        loop {
            rc = libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, libc::WEXITED | libc::WNOWAIT);
            if rc == 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                break;
            }
        }
        (rc, info)
    };
    if rc != 0 {
        return std::io::Error::last_os_error().to_string();
    }
    // SAFETY: waitid filled the child's part of the union.
    let status = unsafe { info.si_status() };
    if info.si_code == libc::CLD_EXITED { format!("exit code {status}") } else { format!("signal {status}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_live_is_started_six_times_a_minute_and_one_that_lived_at_once() {
        let (mut pause, mut starts, mut waited) = (PAUSE_MIN, 0, Duration::ZERO);
        while waited < Duration::from_secs(600) {
            pause = next_pause(pause, Duration::ZERO);
            waited += pause;
            starts += 1;
        }
        assert!((60..70).contains(&starts), "{starts} in ten minutes");
        assert_eq!(next_pause(pause, STEADY_AFTER * 2), PAUSE_MIN);
    }
}
