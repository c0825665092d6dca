//! What a daemon's shard waits for besides file system work: questions of tools, signals, the end of the mount.
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rt::Rt;
use serde_json::Value;

use crate::failure::Failure;

/// Pause between two looks whether a signal came.
const SIGNAL_LOOK: Duration = Duration::from_millis(100);

/// A question of a tool.
#[derive(Debug)]
pub struct Ask {
    /// Which of this process's mounts is asked, counted from 0.
    pub place: usize,
    /// The question.
    pub request: Value,
    /// The user who asks.
    pub uid: u32,
    /// Whether the asker may change things.
    pub privileged: bool,
    /// Where the answer goes; a lost asker is no error.
    pub answer: Sender<Value>,
}

impl Ask {
    /// Whether its answer has been written, or cannot be: for who ends the process with what was asked for.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        // Answers behind the first one go nowhere.
        self.answer.send(Value::Null).is_err()
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A tool asks.
    Ask(Ask),
    /// The metrics of this process are asked for.
    Measure(crate::metrics::Measure),
    /// A signal came.
    Signal(i32),
    /// The cluster will not have this server.
    Refused(String),
    /// Nobody serves a mount any more: it was unmounted, or its session failed.
    Unmounted {
        /// Which of this process's mounts.
        place: usize,
        /// Why the session failed.
        failure: Option<String>,
    },
    /// The client of a mount that nobody serves any more has left the cluster.
    Left {
        /// Which of this process's mounts.
        place: usize,
    },
}

/// A queue of events that threads fill and a shard empties.
pub struct Events {
    sender: Sender<Event>,
    receiver: Arc<Mutex<Receiver<Event>>>,
}

impl Default for Events {
    fn default() -> Events {
        let (sender, receiver) = channel();
        Events { sender, receiver: Arc::new(Mutex::new(receiver)) }
    }
}

impl Events {
    /// For a thread or task that has something to tell.
    #[must_use]
    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }
    /// The next event; waits on a worker thread, the shard goes on.
    pub async fn next(&self, rt: &Rt) -> Event {
        let receiver = self.receiver.clone();
        rt.offload(move || {
            let receiver = receiver.lock().expect("only one task waits for events, and it does not panic");
            receiver.recv().expect("the queue holds a sender of its own")
        })
        .await
    }
    /// Completes with the signal when one came. What else came stays; nobody else may wait for events meanwhile.
    pub async fn interrupted(&self, rt: &Rt) -> i32 {
        loop {
            let came: Vec<Event> = self
                .receiver
                .lock()
                .expect("only one task waits for events, and it does not panic")
                .try_iter()
                .collect();
            for event in came {
                match event {
                    Event::Signal(signal) => return signal,
                    other => drop(self.sender.send(other)),
                }
            }
            rt.sleep(SIGNAL_LOOK).await;
        }
    }
    /// Does something that comes before a mount is there, unless a signal comes first.
    ///
    /// # Errors
    /// A signal came. What was done is not finished.
    pub async fn unless_interrupted<T>(&self, rt: &Rt, work: impl Future<Output = T>) -> Result<T, Failure> {
        let done = rt::sync::race(work, self.interrupted(rt)).await;
        done.map_err(|signal| Failure::with_errno(format!("signal {signal} came before it was mounted"), libc::EINTR))
    }
    /// The next event, for a thread that may block; `None` never comes while this queue lives.
    #[must_use]
    pub fn wait(&self) -> Option<Event> {
        self.receiver.lock().expect("a waiter does not panic").recv().ok()
    }
    /// Turns SIGINT, SIGTERM and SIGHUP into events. Call [`block_signals`] first, before any thread is made.
    pub fn watch_signals(&self) {
        let sender = self.sender();
        std::thread::spawn(move || {
            let set = stop_signals();
            loop {
                let mut signal = 0;
                // SAFETY: a valid set and an integer on the stack.
                let rc = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
                if rc != 0 || sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        });
    }
}

fn stop_signals() -> libc::sigset_t {
    // SAFETY: an all-zero set is emptied before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Keeps SIGINT, SIGTERM and SIGHUP from ending the process: they wait for [`Events::watch_signals`].
pub fn block_signals() {
    let set = stop_signals();
    // SAFETY: a valid set; the old mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Blocks SIGINT, SIGTERM and SIGHUP and gives a descriptor from which they are read.
///
/// # Errors
/// There is no descriptor.
pub fn stop_signals_fd() -> io::Result<OwnedFd> {
    let set = stop_signals();
    // SAFETY: a valid set; what the call gives is a descriptor of ours, or negative.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    block_signals();
    // SAFETY: as said.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Undoes [`block_signals`] in a child between fork and exec: programs expect to be interruptible.
pub fn unblock_signals() {
    let set = stop_signals();
    // SAFETY: a valid set; async-signal-safe.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}
