//! The log of a process: lines to stderr, written by a thread of their own.
//!
//! Whoever logs owes answers to others and may hold a shard: a log that cannot be written (its disk is full, its reader
//! is stuck or gone) must neither stop, end nor fail anybody. Lines that cannot be kept are counted and named once
//! lines can be written again; errors among them go to the kernel's log where this process may write there, since a log
//! that lies on the device that failed says nothing.
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Lines that wait for the writer; more are lost and counted.
const LINES_MAX: usize = 4096;
/// Bytes of a line that the kernel's log takes.
const KERNEL_LINE_MAX: usize = 900;
/// How long the end of the process waits for lines that are not written yet.
const END_WITHIN: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// Lines that were not written since the last that was.
    lost: u64,
    writing: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    emptied: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic under this lock leaves whole lines.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.lock();
        if queue.lines.len() < LINES_MAX {
            queue.lines.push_back(line.to_vec());
        } else {
            queue.lost += 1;
        }
        self.filled.notify_one();
    }

    /// Writes lines as they come, for ever.
    fn run(&self, mut out: impl Write) -> ! {
        loop {
            let mut queue = self.lock();
            let line = loop {
                match queue.lines.pop_front() {
                    Some(line) => break line,
                    None => queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            queue.writing = true;
            let lost = queue.lost;
            drop(queue);
            let gap =
                if lost > 0 { format!("{lost} line(s) of this log could not be written\n") } else { String::new() };
            let written = out.write_all(gap.as_bytes()).and_then(|()| out.write_all(&line)).and_then(|()| out.flush());
            if written.is_err() && is_error(&line) {
                tell_kernel(&line);
            }
            let mut queue = self.lock();
            queue.writing = false;
            queue.lost = if written.is_ok() { queue.lost - lost } else { queue.lost + 1 };
            self.emptied.notify_all();
        }
    }

    fn wait_empty(&self, within: Duration) {
        let busy = |q: &mut Queue| !q.lines.is_empty() || q.writing;
        // Whether it got empty or not: the process ends.
        drop(self.emptied.wait_timeout_while(self.lock(), within, busy));
    }
}

/// Whether a line says that something failed.
fn is_error(line: &[u8]) -> bool {
    line.windows(7).any(|w| w == b" ERROR ")
}

/// Writes a line to the kernel's log, which limits how many of them it takes.
fn tell_kernel(line: &[u8]) {
    let mut text = b"<3>stria: ".to_vec();
    text.extend_from_slice(&line[..line.len().min(KERNEL_LINE_MAX)]);
    // Not root, or no such log: then there is nobody left to tell.
    drop(std::fs::File::options().write(true).open("/dev/kmsg").and_then(|mut log| log.write_all(&text)));
}

/// Where lines are given to the writer; the thread starts with the first.
#[derive(Clone, Default)]
struct Log(Arc<OnceLock<Arc<Shared>>>);

impl Log {
    fn shared(&self) -> &Shared {
        self.0.get_or_init(|| {
            let shared = Arc::new(Shared::default());
            let mine = shared.clone();
            let spawned = std::thread::Builder::new().name("log".into()).spawn(move || mine.run(io::stderr()));
            // Without the thread nothing is written, and the process goes on.
            drop(spawned);
            shared
        })
    }
}

impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.shared().push(line);
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;
    fn make_writer(&'a self) -> &'a Log {
        self
    }
}

/// Writes out what was logged when it goes.
pub struct Logging(Log);

impl Drop for Logging {
    fn drop(&mut self) {
        if let Some(shared) = self.0.0.get() {
            shared.wait_empty(END_WITHIN);
        }
    }
}

/// Starts logging as `STRIA_LOG` says: a level, or levels by target (`warn,oss=debug`); `default` where it says nothing, or
/// neither, which is told.
pub fn start(default: LevelFilter) -> Logging {
    let wanted = std::env::var_os("STRIA_LOG").filter(|text| !text.is_empty());
    let filter = wanted.and_then(|text| {
        filter(&text.to_string_lossy()).inspect_err(|why| drop(writeln!(io::stderr(), "stria: {why}"))).ok()
    });
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(default));
    let log = Log::default();
    // The subscriber's own complaint about a line would be a panic where stderr cannot be written.
    let lines = tracing_subscriber::fmt::layer().with_writer(log.clone()).log_internal_errors(false).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    Logging(log)
}

fn filter(text: &str) -> Result<Targets, String> {
    let levels = "a level (error, warn, info, debug, trace, off), or levels by target: warn,oss=debug";
    text.parse().map_err(|e| format!("STRIA_LOG '{text}': {e}: say {levels}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[test]
    fn what_is_no_level_is_told_as_such() {
        assert!(filter("debug").unwrap().would_enable("oss", &tracing::Level::DEBUG));
        let some = filter("warn,oss=debug").unwrap();
        assert!(
            some.would_enable("oss::ost", &tracing::Level::DEBUG) && !some.would_enable("mds", &tracing::Level::INFO)
        );
        let said = filter("oss=loud").unwrap_err();
        assert!(said.contains("STRIA_LOG 'oss=loud'") && said.contains("warn,oss=debug"), "{said}");
    }

    /// A file that says when it is asked, answers as it is told, one answer for each write, and shows what it took.
    struct Told {
        asked: Sender<()>,
        answers: Receiver<bool>,
        taken: Sender<String>,
    }
    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.asked.send(());
            if !self.answers.recv().unwrap_or(true) {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let _ = self.taken.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_is_stuck_or_full_stops_nobody_and_says_how_much_is_missing() {
        let (asked, is_asked) = channel();
        let (answer, answers) = channel();
        let (taken, got) = channel();
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        drop(std::thread::spawn(move || theirs.run(Told { asked, answers, taken })));
        shared.push(b"line 0\n");
        is_asked.recv().unwrap();
        // Nobody answers the writer yet: it is stuck at the first line, and logging goes on.
        for i in 1..=LINES_MAX + 99 {
            shared.push(format!("line {i}\n").as_bytes());
        }
        shared.wait_empty(Duration::from_millis(1));
        answer.send(false).unwrap();
        answer.send(false).unwrap();
        drop(answer);
        // 99 lines found no place, two could not be written.
        let said: Vec<String> = got.iter().take(2).collect();
        assert_eq!(said, ["101 line(s) of this log could not be written\n", "line 2\n"]);
        shared.wait_empty(Duration::from_secs(60));
        assert_eq!(shared.lock().lost, 0);
        assert_eq!(got.try_iter().last().unwrap(), format!("line {LINES_MAX}\n"));
    }
}
