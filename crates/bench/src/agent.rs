//! An agent: does what the control point asks, tells what it did, and removes what it made, also when nobody asks any more.
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::failure::{Failed, Outcome};
use crate::message::{Ask, FORMAT, Job, RankDone, Tell, receive, send};
use crate::plan::Phase;
use crate::series::Series;
use crate::survey::network;
use crate::{os, rank};

/// How often an agent at work says that it lives.
const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// How long ranks have to end when nobody asks any more; a file system that does not answer can keep them for ever.
const END_WITHIN: Duration = Duration::from_secs(10);

enum Event {
    Ask(Ask),
    Over(io::Result<()>),
    Ran(Vec<RankDone>, Series),
}

/// A phase under way.
struct Running {
    stop: Arc<AtomicBool>,
    moved: Arc<AtomicU64>,
}

struct Agent<W> {
    out: W,
    events: Receiver<Event>,
    sender: Sender<Event>,
    job: Option<Job>,
    made: Vec<PathBuf>,
    running: Option<Running>,
    far_end: Option<network::FarEnd>,
}

/// The verb `bench agent`: serves the control point at standard input and output until that is gone.
///
/// # Errors
/// What was asked is no message.
pub fn main() -> Outcome {
    serve(io::stdin(), io::stdout())
}

/// Serves a control point until it is gone.
///
/// # Errors
/// What was asked is no message.
pub fn serve(input: impl Read + Send + 'static, out: impl Write) -> Outcome {
    let (sender, events) = channel();
    let told = sender.clone();
    std::thread::spawn(move || listen(BufReader::new(input), &told));
    let mut agent = Agent { out, events, sender, job: None, made: Vec::new(), running: None, far_end: None };
    let served = agent.serve();
    agent.end();
    served
}

fn listen(mut input: impl BufRead, events: &Sender<Event>) {
    loop {
        let event = match receive(&mut input) {
            Ok(Some(ask)) => Event::Ask(ask),
            Ok(None) => Event::Over(Ok(())),
            Err(e) => Event::Over(Err(e)),
        };
        let over = matches!(event, Event::Over(_));
        if events.send(event).is_err() || over {
            return;
        }
    }
}

impl<W: Write> Agent<W> {
    fn serve(&mut self) -> Outcome {
        // A control point that is gone is heard of as the end of the input.
        let _ = self.tell(&Tell::Hello { format: FORMAT, host: os::host(), pid: std::process::id() });
        loop {
            let event = match self.events.recv_timeout(ALIVE_EVERY) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(running) = &self.running {
                        let bytes = running.moved.load(Ordering::Relaxed);
                        let _ = self.tell(&Tell::Alive { bytes });
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            match event {
                Event::Ask(ask) => {
                    let answer = self.answer(ask).unwrap_or_else(|failed| Some(Tell::Failed(failed)));
                    let _ = answer.map(|answer| self.tell(&answer));
                }
                Event::Ran(ranks, series) => {
                    self.running = None;
                    let _ = self.tell(&Tell::Done { ranks, series });
                }
                Event::Over(Ok(())) => return Ok(()),
                Event::Over(Err(e)) => {
                    return Err(Failed::new(format!("from the control point: {e}"), libc::EPROTO));
                }
            }
        }
    }

    fn tell(&mut self, tell: &Tell) -> io::Result<()> {
        send(&mut self.out, tell)
    }

    fn answer(&mut self, ask: Ask) -> Outcome<Option<Tell>> {
        Ok(Some(match ask {
            Ask::Clock => Tell::Clock { now_ns: os::now_ns() },
            Ask::Prepare(job) => Tell::Prepared { made_all: self.prepare(job)? },
            Ask::Go { phase, at_ns } => {
                self.go(phase, at_ns)?;
                return Ok(None);
            }
            Ask::Stop => {
                self.running.iter().for_each(|r| r.stop.store(true, Ordering::Relaxed));
                return Ok(None);
            }
            Ask::Clean => {
                self.clean()?;
                Tell::Cleaned
            }
            Ask::CleanFor { agent } => {
                let Some(job) = &self.job else { return Ok(Some(Tell::Cleaned)) };
                let files = job.workload.made_by(agent);
                remove_all(files.into_iter().map(|f| job.workload.path(&job.base, f)).collect())?;
                Tell::Cleaned
            }
            Ask::Listen { address } => {
                let (far_end, port, token) = network::FarEnd::listen(&address)?;
                self.far_end = Some(far_end);
                Tell::Listening { port, token }
            }
        }))
    }

    /// Takes a job; whether all its files are new.
    fn prepare(&mut self, job: Job) -> Outcome<bool> {
        // Those of the repetition before: nothing else is ever removed.
        remove_all(std::mem::take(&mut self.made))?;
        let files: Vec<PathBuf> =
            job.workload.made_by(job.agent).into_iter().map(|f| job.workload.path(&job.base, f)).collect();
        let (write, existing) = (job.write, job.existing);
        self.job = Some(job);
        if !write {
            return Ok(false);
        }
        let mut made_all = true;
        for path in files {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => self.made.push(path),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && existing => made_all = false,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    let said = format!("{} exists: name another file, or say -E to write into it", path.display());
                    return Err(Failed::new(said, libc::EEXIST));
                }
                Err(e) => return Err(Failed::io("making", &path, &e)),
            }
        }
        Ok(made_all)
    }

    fn go(&mut self, phase: Phase, at_ns: u64) -> Outcome {
        let (Some(job), None) = (&self.job, &self.running) else {
            return Err(Failed::new("told to begin without a job, or twice", libc::EPROTO));
        };
        let (job, sender) = (job.clone(), self.sender.clone());
        let (stop, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        self.running = Some(Running { stop: stop.clone(), moved: moved.clone() });
        std::thread::spawn(move || {
            let shared = rank::Shared {
                workload: &job.workload,
                base: &job.base,
                phase,
                at_ns,
                interval_ns: job.interval_ns,
                check: job.check,
                stop: &stop,
                moved: &moved,
            };
            let (ranks, series) = rank::run(&shared, job.workload.ranks_of(job.agent));
            // Nobody listens any more: the agent ends.
            drop(sender.send(Event::Ran(ranks, series)));
        });
        Ok(())
    }

    fn clean(&mut self) -> Outcome {
        let keep = self.job.as_ref().is_some_and(|j| j.keep);
        let made = std::mem::take(&mut self.made);
        if keep { Ok(()) } else { remove_all(made) }
    }

    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop.store(true, Ordering::Relaxed);
            let until = std::time::Instant::now() + END_WITHIN;
            // What else arrives does not count any more.
            while let Ok(event) = self.events.recv_timeout(until.saturating_duration_since(std::time::Instant::now())) {
                if matches!(event, Event::Ran(..)) {
                    break;
                }
            }
        }
        if let Err(failed) = self.clean() {
            let _ = writeln!(io::stderr(), "stria bench agent: {failed}");
        }
    }
}

/// Removes files; one that is gone is fine.
///
/// # Errors
/// The first that cannot be removed; the others are.
pub fn remove_all(paths: Vec<PathBuf>) -> Outcome {
    let mut first = Ok(());
    for path in paths {
        if let Err(e) = fs::remove_file(&path)
            && e.kind() != io::ErrorKind::NotFound
        {
            first = first.and(Err(Failed::io("removing", &path, &e)));
        }
    }
    first
}
