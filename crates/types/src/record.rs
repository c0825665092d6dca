//! Record and replay: what the rooms share. A room writes the calls that a policy gets, and its answers, to a [`Tape`]; a
//! replay gives the calls to a fresh policy and compares every answer.
//!
//! A tape holds a bounded number of bytes; a log with a hole would not replay, so once a record does not fit no later one
//! is kept. A text log has a header (format, policy, `key=value` ...) and one call with its answer a line: [`replay`].
use crate::parse_size;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

/// Bytes that a recording of a running node may take.
pub const RECORD_BYTES: RangeInclusive<u64> = 4096..=1 << 30;

/// A log being written, or written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    bytes: Vec<u8>,
    /// The record being written: it is appended when it is known to fit.
    record: Vec<u8>,
    bytes_max: usize,
    left_out: u64,
}

impl Recording {
    /// Begins with `head`, which is kept whatever `bytes_max` says.
    #[must_use]
    pub fn new(head: Vec<u8>, bytes_max: usize) -> Recording {
        Recording { bytes: head, record: Vec::new(), bytes_max, left_out: 0 }
    }
    /// Appends what `put` writes, if it fits.
    pub fn write(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        if self.left_out > 0 {
            self.left_out += 1;
            return;
        }
        self.record.clear();
        put(&mut self.record);
        if self.bytes.len() + self.record.len() > self.bytes_max {
            self.left_out = 1;
            return;
        }
        self.make_room();
        self.bytes.extend_from_slice(&self.record);
    }
    /// Grows by doubling, but not beyond the bound, as the vector would by itself.
    fn make_room(&mut self) {
        let (len, more) = (self.bytes.len(), self.record.len());
        if self.bytes.capacity() - len < more {
            let capacity = (2 * len).max(len + more).max(4096).min(self.bytes_max);
            self.bytes.reserve_exact(capacity - len);
        }
    }
    /// The log.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The log of a room that writes text.
    ///
    /// # Panics
    /// When the room wrote something else.
    #[must_use]
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes).expect("a text log is written from strings")
    }
    /// The log, by value.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
    /// Records that did not fit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// Where a room records, and what the last check of a recording said. Costs one branch per call while nothing is
/// recorded.
#[derive(Default, Debug)]
pub struct Tape {
    recording: Option<Box<Recording>>,
    said: String,
}

impl Tape {
    /// Starts a recording; one that was being made is dropped.
    pub fn start(&mut self, head: impl Into<Vec<u8>>, bytes_max: usize) {
        self.recording = Some(Box::new(Recording::new(head.into(), bytes_max)));
    }
    /// Whether a recording is being made.
    #[must_use]
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }
    /// Appends a record, if one is being made.
    #[inline]
    pub fn write(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        if let Some(recording) = &mut self.recording {
            recording.write(put);
        }
    }
    /// The recording being made.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_deref()
    }
    /// Ends the recording and hands it out.
    pub fn take(&mut self) -> Option<Recording> {
        self.recording.take().map(|r| *r)
    }
}

/// What can be recorded while a node works, as a parameter: a size starts, `check` ends and replays, `off` drops.
pub trait Recordable {
    /// Its tape.
    fn tape(&mut self) -> &mut Tape;
    /// Starts to record up to `bytes_max` bytes: puts a fresh policy in the place of the one in use, as a replay will have
    /// one, gives it what the old one held, and calls [`Tape::start`].
    ///
    /// # Errors
    /// A sentence; nothing has changed then.
    fn begin(&mut self, bytes_max: usize) -> Result<(), String>;
    /// Gives what [`Recordable::tape`] recorded to a fresh policy; answers how many calls were compared.
    ///
    /// # Errors
    /// What differs.
    fn replay(&self, recording: Recording) -> Result<u64, String>;

    /// The parameter's value: `on`, what the last check said, or `off`.
    fn record_param(&mut self) -> String {
        let tape = self.tape();
        match (tape.is_recording(), tape.said.as_str()) {
            (true, _) => "on".into(),
            (false, "") => "off".into(),
            (false, said) => said.into(),
        }
    }
    /// Sets the parameter. A check takes about as long as the calls took; another one, before something new is recorded,
    /// says the same.
    ///
    /// # Errors
    /// A sentence.
    fn set_record_param(&mut self, text: &str) -> Result<(), String> {
        match text {
            "off" => *self.tape() = Tape::default(),
            // Parameters of several targets may be one recording: the first check did the work.
            "check" if !self.tape().is_recording() && !self.tape().said.is_empty() => {}
            "check" => {
                let recording = self.tape().take().ok_or("nothing was recorded: write a size first, say 16M")?;
                let full = if recording.left_out() > 0 { "; the log was full then" } else { "" };
                self.tape().said = match self.replay(recording) {
                    Ok(calls) => format!("{calls} calls replayed, the same answers{full}"),
                    Err(e) => format!("the replay differs: {e}"),
                };
            }
            _ => {
                let bytes = parse_size(text).map_err(|e| format!("{e}; or write off, or check"))?;
                if !RECORD_BYTES.contains(&bytes) {
                    return Err(format!("{text}: a recording takes 4K to 1G of memory"));
                }
                self.begin(bytes as usize)?;
            }
        }
        Ok(())
    }
}

/// Why a text log and a fresh policy part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// A line cannot be read, or asks what no caller may ask.
    Syntax {
        /// Line number from 1.
        line: usize,
    },
    /// The log's policy does not exist here.
    Policy(String),
    /// Another answer.
    Diverged {
        /// Line number from 1.
        line: usize,
        /// The answer in the log.
        recorded: String,
        /// The answer now.
        replayed: String,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Syntax { line } => write!(f, "line {line} of the log cannot be read"),
            ReplayError::Policy(name) => write!(f, "the log was made by policy '{name}', which does not exist here"),
            ReplayError::Diverged { line, recorded, replayed } => {
                write!(f, "line {line}: the log says '{recorded}', the replay '{replayed}'")
            }
        }
    }
}
impl core::error::Error for ReplayError {}

/// A header line: `format policy=NAME key=value ...` and a line feed.
pub fn header(format: &str, policy: &str, settings: impl Iterator<Item = (&'static str, String)>) -> String {
    let mut line = format!("{format} policy={policy}");
    for (key, value) in settings {
        line += &format!(" {key}={value}");
    }
    line + "\n"
}

/// What a line of a log was.
pub enum Step<'a> {
    /// Something that later calls need; it has no answer.
    Context,
    /// A call: its answer in the log and the one it gets now.
    Call(&'a str, String),
}

/// A room's side of a replay: a fresh policy, and what a line asks of it.
pub trait Replay: Sized {
    /// First words of a header: the format and its version.
    const FORMAT: &'static str;
    /// A fresh policy for a header.
    ///
    /// # Errors
    /// [`ReplayError::Policy`], or [`ReplayError::Syntax`] of line 1 for a setting that is refused.
    fn fresh(policy: &str, settings: &[(&str, &str)]) -> Result<Self, ReplayError>;
    /// Carries out a line; `None` when it cannot be read.
    fn step<'a>(&mut self, line: &'a str) -> Option<Step<'a>>;
}

/// Gives a log to a fresh policy and compares answers; returns the number of calls.
///
/// # Errors
/// [`ReplayError`] at the first line that differs. Nothing in a log makes it panic.
pub fn replay<R: Replay>(log: &str) -> Result<usize, ReplayError> {
    replay_with(log, R::fresh)
}

/// As [`replay`], with a fresh policy from somewhere else.
///
/// # Errors
/// [`ReplayError`] at the first line that differs.
pub fn replay_with<R: Replay>(
    log: &str,
    fresh: impl FnOnce(&str, &[(&str, &str)]) -> Result<R, ReplayError>,
) -> Result<usize, ReplayError> {
    let mut lines = log.lines();
    let head = lines.next().and_then(|l| l.strip_prefix(R::FORMAT)).ok_or(HEAD)?;
    let words = head.split_whitespace().map(|w| w.split_once('=').ok_or(HEAD));
    let mut settings = words.collect::<Result<Vec<_>, _>>()?;
    let policy = settings.iter().position(|s| s.0 == "policy").map_or("", |at| settings.remove(at).1);
    let mut fresh = fresh(policy, &settings)?;
    let mut calls = 0;
    for (i, text) in lines.enumerate() {
        let line = i + 2;
        match fresh.step(text).ok_or(ReplayError::Syntax { line })? {
            Step::Context => {}
            Step::Call(recorded, replayed) if recorded == replayed => calls += 1,
            Step::Call(recorded, replayed) => {
                return Err(ReplayError::Diverged { line, recorded: recorded.to_string(), replayed });
            }
        }
    }
    Ok(calls)
}

/// [`Recordable::replay`] of a room that writes text.
///
/// # Errors
/// What differs.
pub fn replay_text(
    recording: &Recording,
    replay: impl FnOnce(&str) -> Result<usize, ReplayError>,
) -> Result<u64, String> {
    replay(recording.text()).map(|calls| calls as u64).map_err(|e| e.to_string())
}

/// The header cannot be read.
pub const HEAD: ReplayError = ReplayError::Syntax { line: 1 };

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds; its settings say with which number it begins.
    struct Adder {
        sum: u64,
        tape: Tape,
    }
    impl Adder {
        fn add(&mut self, n: u64) -> u64 {
            self.sum += n;
            let sum = self.sum;
            self.tape.write(|out| out.extend(format!("add {n} => {sum}\n").bytes()));
            sum
        }
    }
    impl Replay for Adder {
        const FORMAT: &'static str = "adder 1";
        fn fresh(policy: &str, settings: &[(&str, &str)]) -> Result<Adder, ReplayError> {
            match (policy, settings) {
                ("plus", [("from", n)]) => Ok(Adder { sum: n.parse().map_err(|_| HEAD)?, tape: Tape::default() }),
                ("plus", _) => Err(HEAD),
                _ => Err(ReplayError::Policy(policy.to_string())),
            }
        }
        fn step<'a>(&mut self, line: &'a str) -> Option<Step<'a>> {
            if line == "pause" {
                return Some(Step::Context);
            }
            let (n, recorded) = line.strip_prefix("add ")?.split_once(" => ")?;
            Some(Step::Call(recorded, self.add(n.parse().ok()?).to_string()))
        }
    }
    impl Recordable for Adder {
        fn tape(&mut self) -> &mut Tape {
            &mut self.tape
        }
        fn begin(&mut self, bytes_max: usize) -> Result<(), String> {
            let settings = [("from", self.sum.to_string())];
            self.tape.start(header(Self::FORMAT, "plus", settings.into_iter()), bytes_max);
            Ok(())
        }
        fn replay(&self, recording: Recording) -> Result<u64, String> {
            replay_text(&recording, replay::<Adder>)
        }
    }

    fn adder(bytes_max: usize, calls: u64) -> Adder {
        let mut a = Adder { sum: 5, tape: Tape::default() };
        a.begin(bytes_max).unwrap();
        (0..calls).for_each(|n| assert!(a.add(n) >= n));
        a
    }

    #[test]
    fn a_log_replays_and_what_differs_is_found_at_its_line() {
        let log = adder(1 << 12, 10).tape.take().unwrap();
        assert_eq!((replay::<Adder>(log.text()), log.left_out()), (Ok(10), 0));
        let wrong = log.text().replace("add 3 => 11", "pause\nadd 3 => 12");
        let (recorded, replayed) = ("12".to_string(), "11".to_string());
        assert_eq!(replay::<Adder>(&wrong), Err(ReplayError::Diverged { line: 6, recorded, replayed }));
        for (text, error) in [
            ("", HEAD),
            ("adder 2 policy=plus", HEAD),
            ("adder 1 policy=plus x", HEAD),
            ("adder 1 policy=plus from=x", HEAD),
            ("adder 1 policy=minus", ReplayError::Policy("minus".into())),
            ("adder 1 policy=plus from=1\npause\nsub 1 => 0", ReplayError::Syntax { line: 3 }),
        ] {
            assert_eq!(replay::<Adder>(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_full_log_keeps_whole_records_within_its_bound_and_counts_the_others() {
        for bytes_max in [0, 40, 100, 5000, 9000] {
            let log = adder(bytes_max, 1000).tape.take().unwrap();
            let calls = replay::<Adder>(log.text()).unwrap() as u64;
            assert!(log.left_out() > 0 && calls + log.left_out() == 1000, "{bytes_max}");
            assert!(log.bytes().len() <= bytes_max.max(32) && log.bytes.capacity() <= bytes_max.max(32));
        }
    }

    #[test]
    fn the_parameter_starts_checks_and_drops() {
        let mut a = Adder { sum: 0, tape: Tape::default() };
        assert_eq!(a.record_param(), "off");
        assert!(a.set_record_param("check").unwrap_err().contains("nothing was recorded"));
        assert!(a.set_record_param("1K").unwrap_err().contains("4K to 1G"));
        assert!(a.set_record_param("2G").unwrap_err().contains("4K to 1G"));
        assert!(a.set_record_param("on").unwrap_err().contains("or write off, or check"));
        a.set_record_param("4K").unwrap();
        assert_eq!(a.record_param(), "on");
        (0..3).for_each(|n| assert!(a.add(n) >= n));
        a.set_record_param("check").unwrap();
        for _ in 0..2 {
            assert_eq!(a.record_param(), "3 calls replayed, the same answers");
            a.set_record_param("check").unwrap();
        }
        a.set_record_param("4K").unwrap();
        (0..3000).for_each(|n| assert!(a.add(n) >= n));
        a.set_record_param("check").unwrap();
        assert!(a.record_param().ends_with("the same answers; the log was full then"), "{}", a.record_param());
        a.set_record_param("4K").unwrap();
        a.add(1);
        a.sum += 1;
        a.add(1);
        a.set_record_param("check").unwrap();
        assert!(a.record_param().starts_with("the replay differs: line 3: "), "{}", a.record_param());
        a.set_record_param("4K").unwrap();
        a.set_record_param("off").unwrap();
        assert!(a.record_param() == "off" && a.set_record_param("check").is_err());
    }
}
