//! The agents as the control point has them: processes that it starts, and what they say.
//!
//! An agent is a child process: `stria bench agent` here, or behind a command such as `ssh HOST` or `ip netns exec NAME`,
//! and the two speak over its standard input and output. So there is no port that anybody could connect to, and no secret:
//! whoever may start a program there may measure there.
use std::io::BufReader;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::clock::{Clock, Sample};
use crate::failure::{Failed, Outcome};
use crate::message::{Ask, FORMAT, Tell, receive, send};
use crate::os;

/// Questions about the time per agent; the quickest counts.
const CLOCK_QUESTIONS: usize = 16;
/// How long agents have to go when they are told to.
const END_WITHIN: Duration = Duration::from_secs(15);

/// What the control point waits for.
pub enum Event {
    /// An agent said something.
    Told(usize, Tell),
    /// An agent will say no more, with what was wrong about its last words.
    Gone(usize, Option<String>),
    /// The user wants an end.
    Signal(i32),
}

/// Where agents are started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The command that starts a program there, with its arguments; empty: here.
    pub command: Vec<String>,
}

/// One agent.
pub struct Member {
    /// How it is called in tables.
    pub name: String,
    /// Its clock.
    pub clock: Clock,
    /// Whether it still speaks.
    pub is_here: bool,
    /// Whether it was started on this host, in this name space.
    pub is_local: bool,
    child: Child,
    input: Option<ChildStdin>,
    heard: Instant,
}

/// All agents.
pub struct Crew {
    /// Each of them; an agent's index is its place here.
    pub members: Vec<Member>,
    events: Receiver<Event>,
    /// How long an agent may say nothing.
    silence_max: Duration,
}

impl Crew {
    /// Starts agents, one for each place, and measures their clocks. From now on SIGINT, SIGTERM and SIGHUP end what is
    /// under way in order; the second one ends the process.
    ///
    /// # Errors
    /// An agent cannot be started.
    pub fn start(program: &str, places: &[Place], silence_max: Duration) -> Outcome<Crew> {
        let (sender, events) = channel();
        let signals = sender.clone();
        let mut seen = 0;
        os::watch_signals(move |signal| {
            seen += 1;
            if seen > 1 {
                std::process::exit(128 + signal);
            }
            signals.send(Event::Signal(signal)).is_ok()
        });
        let mut crew = Crew { members: Vec::new(), events, silence_max };
        for (i, place) in places.iter().enumerate() {
            crew.members.push(spawn(i, program, place, &sender)?);
        }
        let hellos = crew.gather(|tell| match tell {
            Tell::Hello { format, host, pid } => Some((format, host, pid)),
            _ => None,
        })?;
        for (i, (format, host, pid)) in hellos.into_iter().enumerate() {
            crew.members[i].name = format!("{i} ({host}, process {pid})");
            if format != FORMAT {
                let said =
                    format!("agent {i} on {host} speaks format {format}, not {FORMAT}: use one version of stria");
                return Err(Failed::new(said, libc::EPROTONOSUPPORT));
            }
        }
        crew.measure_clocks()?;
        Ok(crew)
    }

    /// Measures all clocks; they drift by milliseconds in a minute.
    ///
    /// # Errors
    /// An agent does not answer.
    pub fn measure_clocks(&mut self) -> Outcome {
        for i in 0..self.members.len() {
            let mut samples = Vec::new();
            for _ in 0..CLOCK_QUESTIONS {
                let asked_ns = os::now_ns();
                self.ask(i, &Ask::Clock);
                let theirs_ns = self.wait_for(i, |tell| match tell {
                    Tell::Clock { now_ns } => Some(now_ns),
                    _ => None,
                })?;
                samples.push(Sample { asked_ns, theirs_ns, answered_ns: os::now_ns() });
            }
            self.members[i].clock = Clock::of(&samples).expect("there are samples");
        }
        Ok(())
    }

    /// Asks an agent; one that is gone is heard of later.
    pub fn ask(&mut self, agent: usize, ask: &Ask) {
        if let Some(input) = &mut self.members[agent].input
            && send(input, ask).is_err()
        {
            self.members[agent].input = None;
        }
    }

    /// Asks all agents.
    pub fn ask_all(&mut self, ask: &Ask) {
        (0..self.members.len()).for_each(|i| self.ask(i, ask));
    }

    /// The answer of one agent.
    ///
    /// # Errors
    /// As [`Crew::gather`].
    pub fn wait_for<T>(&mut self, agent: usize, wanted: impl Fn(Tell) -> Option<T>) -> Outcome<T> {
        loop {
            if let Some((from, tell)) = self.next(&[agent])?
                && from == agent
                && let Some(answer) = wanted(tell)
            {
                return Ok(answer);
            }
        }
    }

    /// The answers of all agents that are here, in their order.
    ///
    /// # Errors
    /// An agent died, says nothing, or could not; the user wants an end.
    pub fn gather<T>(&mut self, wanted: impl Fn(Tell) -> Option<T>) -> Outcome<Vec<T>> {
        let mut answers: Vec<Option<T>> = self.members.iter().map(|_| None).collect();
        loop {
            let here = |i: &usize| self.members[*i].is_here && answers[*i].is_none();
            let open: Vec<usize> = (0..answers.len()).filter(here).collect();
            if open.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            if let Some((from, tell)) = self.next(&open)? {
                answers[from] = wanted(tell).or(answers[from].take());
            }
        }
    }

    /// The next thing that an agent says; `None` when time passed. Those of `open` owe a word.
    ///
    /// # Errors
    /// As [`Crew::gather`].
    pub fn next(&mut self, open: &[usize]) -> Outcome<Option<(usize, Tell)>> {
        match self.events.recv_timeout(Duration::from_millis(100)) {
            Ok(Event::Told(from, tell)) => {
                self.members[from].heard = Instant::now();
                match tell {
                    Tell::Failed(failed) => Err(failed.by(&format!("agent {}", self.members[from].name))),
                    tell => Ok(Some((from, tell))),
                }
            }
            // Of one that was given up nobody wants to hear twice.
            Ok(Event::Gone(from, _)) if !self.members[from].is_here => Ok(None),
            Ok(Event::Gone(from, why)) => Err(self.lost(from, why)),
            Ok(Event::Signal(signal)) => Err(Failed::new(format!("ended by {}", os::signal_name(signal)), libc::EINTR)),
            Err(RecvTimeoutError::Timeout) => {
                let quiet = |i: &&usize| self.members[**i].heard.elapsed() > self.silence_max;
                let Some(i) = open.iter().find(quiet).copied() else { return Ok(None) };
                let said = format!("agent {} says nothing for {:?}", self.members[i].name, self.silence_max);
                self.give_up(i);
                Err(Failed::new(said, libc::ETIMEDOUT))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failed::new("no agent is left", libc::ECONNRESET)),
        }
    }

    /// Counts from now on how long agents say nothing.
    pub fn expect_words(&mut self) {
        self.members.iter_mut().for_each(|m| m.heard = Instant::now());
    }

    /// Does without an agent, whatever it does.
    pub fn give_up(&mut self, agent: usize) {
        let member = &mut self.members[agent];
        member.is_here = false;
        member.input = None;
        // Gone already is fine.
        let _ = member.child.kill();
    }

    fn lost(&mut self, agent: usize, why: Option<String>) -> Failed {
        let member = &mut self.members[agent];
        member.is_here = false;
        member.input = None;
        if let Some(why) = why {
            return Failed::new(format!("agent {}: {why}", member.name), libc::EPROTO);
        }
        // It closed its output, so it ends now or never.
        let until = Instant::now() + Duration::from_secs(2);
        let status = loop {
            match member.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < until => std::thread::park_timeout(Duration::from_millis(5)),
                _ => break None,
            }
        };
        let how = match status {
            Some(s) if s.signal().is_some() => format!("was killed by {}", os::signal_name(s.signal().unwrap_or(0))),
            Some(s) => format!("ended with exit code {}", s.code().unwrap_or(-1)),
            None => "closed its connection".into(),
        };
        Failed::new(format!("agent {} {how}", member.name), libc::ECONNRESET)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|m| m.input = None);
        let until = Instant::now() + END_WITHIN;
        for member in &mut self.members {
            while Instant::now() < until && matches!(member.child.try_wait(), Ok(None)) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            // One that is gone already is fine.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

fn spawn(index: usize, program: &str, place: &Place, events: &Sender<Event>) -> Outcome<Member> {
    let words: Vec<&str> = place.command.iter().map(String::as_str).chain([program, "bench", "agent"]).collect();
    let spawned = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A signal from the terminal is for the control point, which ends agents in order.
        .process_group(0)
        .spawn();
    let mut child = spawned.map_err(|e| {
        Failed::new(format!("starting '{}': {e}", words.join(" ")), e.raw_os_error().unwrap_or(libc::EIO))
    })?;
    let (input, output) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
    let events = events.clone();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let event = match receive(&mut output) {
                Ok(Some(tell)) => Event::Told(index, tell),
                Ok(None) => Event::Gone(index, None),
                Err(e) => Event::Gone(index, Some(e.to_string())),
            };
            let over = matches!(event, Event::Gone(..));
            if events.send(event).is_err() || over {
                return;
            }
        }
    });
    let name = format!("{index} ({})", words.join(" "));
    let clock = Clock { ahead_ns: 0, round_trip_ns: 0 };
    Ok(Member { name, clock, is_here: true, is_local: place.command.is_empty(), child, input, heard: Instant::now() })
}
