//! Logs of one file's calls, and their replay: same calls, same answers.
//!
//! One line per call; a header names format, policy and configuration. Text, because people read them:
//! ```text
//! stria-readahead-log 1 policy=parallel budget_bytes_max=268435456 ...
//! facts 1073741824 4194304 4194304 0 max
//! read 0 65536 => sync= async=
//! miss 0 65536 => sync=65536:262144 async=
//! ```
//! A recorded file has a budget of its own, as large as the configuration says: other files' share is not replayed.
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::{self, Write};
use types::Extent;

use crate::budget::Budget;
use crate::config::Config;
use crate::file::{Facts, FileReadahead, Hint, Plan};
use crate::policy::UnknownPolicy;

const HEADER: &str = "stria-readahead-log 1";

/// A call on a file, as it is recorded and replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// [`FileReadahead::on_read`].
    Read(Extent),
    /// [`FileReadahead::on_miss`].
    Miss(Extent),
    /// [`FileReadahead::on_progress`].
    Progress(Extent),
    /// [`FileReadahead::on_reclaimed_unused`].
    Reclaimed(Extent),
    /// [`FileReadahead::on_lock_lost`].
    LockLost(Extent),
    /// [`FileReadahead::on_blocked`].
    Blocked,
    /// [`FileReadahead::set_hint`].
    Hint(Hint, Extent),
    /// [`FileReadahead::pump`].
    Pump,
}

/// Makes a call. The one place that maps calls to methods; recorder, replay and simulators share it.
pub fn apply(call: Call, file: &mut FileReadahead, facts: &Facts, budget: &mut Budget, plan: &mut Plan) {
    match call {
        Call::Read(e) => file.on_read(e, facts, budget, plan),
        Call::Miss(e) => file.on_miss(e, facts, budget, plan),
        Call::Progress(e) => file.on_progress(e, facts, budget, plan),
        Call::Pump => file.pump(facts, budget, plan),
        _ => {
            *plan = Plan::default();
            match call {
                Call::Reclaimed(e) => file.on_reclaimed_unused(e, budget),
                Call::LockLost(e) => file.on_lock_lost(e, budget),
                Call::Hint(hint, e) => file.set_hint(hint, e, budget),
                _ => file.on_blocked(),
            }
        }
    }
}

/// A file's readahead that writes a log of its calls.
pub struct Recorder {
    file: FileReadahead,
    log: String,
    log_bytes_max: usize,
    dropped: u64,
    facts: Option<Facts>,
}

/// Why a log and a fresh file part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// A line cannot be read.
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

impl Recorder {
    /// Records a fresh file under `policy`, up to `log_bytes_max` bytes; calls beyond are counted.
    ///
    /// # Errors
    /// [`UnknownPolicy`].
    pub fn new(policy: &str, config: &Config, log_bytes_max: usize) -> Result<Recorder, UnknownPolicy> {
        let file = FileReadahead::new(policy, config)?;
        let mut log = format!("{HEADER} policy={policy}");
        for k in Config::KEYS {
            let value = config.get(k.key).expect("every key of the table has a value");
            write!(log, " {}={value}", k.key).expect("a String takes everything");
        }
        log.push('\n');
        Ok(Recorder { file, log, log_bytes_max, dropped: 0, facts: None })
    }
    /// Makes a call and records it. `budget` must be this file's own.
    pub fn call(&mut self, call: Call, facts: &Facts, budget: &mut Budget, plan: &mut Plan) {
        apply(call, &mut self.file, facts, budget, plan);
        let mut lines = String::new();
        if self.facts != Some(*facts) {
            self.facts = Some(*facts);
            lines = facts_line(facts);
        }
        lines += &format!("{} => {}\n", call_text(call), plan_text(plan));
        // A log with a hole would not replay: once a line does not fit, no later one is kept.
        if self.dropped == 0 && self.log.len() + lines.len() <= self.log_bytes_max {
            self.log += &lines;
        } else {
            self.dropped += 1;
        }
    }
    /// The file.
    #[must_use]
    pub fn file(&self) -> &FileReadahead {
        &self.file
    }
    /// The log so far.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }
    /// Calls that did not fit.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Feeds a log to a fresh file and compares answers; returns the number of calls.
///
/// # Errors
/// [`ReplayError`] at the first line that differs.
pub fn replay(log: &str) -> Result<usize, ReplayError> {
    let mut lines = log.lines().enumerate();
    let (mut file, mut budget) = fresh(lines.next().map(|l| l.1).unwrap_or_default())?;
    let mut facts = None;
    let mut plan = Plan::default();
    let mut calls = 0;
    for (i, line) in lines {
        let syntax = ReplayError::Syntax { line: i + 1 };
        if let Some(text) = line.strip_prefix("facts ") {
            facts = Some(parse_facts(text).ok_or(syntax)?);
            continue;
        }
        let (call, recorded) = line.split_once(" => ").ok_or(syntax.clone())?;
        let call = parse_call(call).ok_or(syntax.clone())?;
        apply(call, &mut file, facts.as_ref().ok_or(syntax)?, &mut budget, &mut plan);
        let replayed = plan_text(&plan);
        if replayed != recorded {
            return Err(ReplayError::Diverged { line: i + 1, recorded: recorded.to_string(), replayed });
        }
        calls += 1;
    }
    Ok(calls)
}

fn fresh(header: &str) -> Result<(FileReadahead, Budget), ReplayError> {
    let syntax = ReplayError::Syntax { line: 1 };
    let rest = header.strip_prefix(HEADER).ok_or(syntax.clone())?;
    let mut config = Config::default();
    let mut policy = "";
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("policy", name)) => policy = name,
            Some((key, value)) => config.set(key, value).map_err(|_| syntax.clone())?,
            None => return Err(syntax),
        }
    }
    let file = FileReadahead::new(policy, &config).map_err(|e| ReplayError::Policy(e.0))?;
    Ok((file, Budget::new(config.budget_bytes_max)))
}

const HINTS: [(Hint, &str); 5] = [
    (Hint::Normal, "normal"),
    (Hint::Sequential, "sequential"),
    (Hint::Random, "random"),
    (Hint::WillNeed, "willneed"),
    (Hint::DontNeed, "dontneed"),
];

fn extent_text(e: Extent) -> String {
    if e.end == u64::MAX { format!("{} max", e.start) } else { format!("{} {}", e.start, e.end) }
}

fn facts_line(f: &Facts) -> String {
    format!("facts {} {} {} {}\n", f.file_size, f.stripe_size, f.rpc_bytes, extent_text(f.lock))
}

fn call_text(call: Call) -> String {
    match call {
        Call::Read(e) => format!("read {}", extent_text(e)),
        Call::Miss(e) => format!("miss {}", extent_text(e)),
        Call::Progress(e) => format!("progress {}", extent_text(e)),
        Call::Reclaimed(e) => format!("reclaimed {}", extent_text(e)),
        Call::LockLost(e) => format!("lock_lost {}", extent_text(e)),
        Call::Blocked => "blocked".to_string(),
        Call::Pump => "pump".to_string(),
        Call::Hint(hint, e) => {
            let name = HINTS.iter().find(|h| h.0 == hint).expect("every hint has a name").1;
            format!("{name} {}", extent_text(e))
        }
    }
}

fn plan_text(plan: &Plan) -> String {
    let list = |extents: &[Extent]| {
        let mut out = String::new();
        for e in extents {
            write!(out, "{}{}:{}", if out.is_empty() { "" } else { "," }, e.start, e.end)
                .expect("a String takes everything");
        }
        out
    };
    let mut out = format!("sync={} async={}", list(&plan.sync), list(&plan.asynchronous));
    if plan.issued_by_reader {
        out += " by_reader";
    }
    if let Some(lock) = plan.lock_wanted {
        out += &format!(" lock={}:{}", lock.start, lock.end);
    }
    out
}

fn parse_extent<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Extent> {
    let start = words.next()?.parse().ok()?;
    let end = words.next()?;
    let end = if end == "max" { u64::MAX } else { end.parse().ok()? };
    if words.next().is_some() { None } else { Extent::checked(start, end) }
}

fn parse_facts(text: &str) -> Option<Facts> {
    let mut words = text.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (file_size, stripe_size, rpc_bytes) = (number()?, number()?, number()?);
    Some(Facts { file_size, stripe_size, rpc_bytes, lock: parse_extent(words)? })
}

fn parse_call(text: &str) -> Option<Call> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let extent = || parse_extent(rest.split(' '));
    Some(match name {
        "read" => Call::Read(extent()?),
        "miss" => Call::Miss(extent()?),
        "progress" => Call::Progress(extent()?),
        "reclaimed" => Call::Reclaimed(extent()?),
        "lock_lost" => Call::LockLost(extent()?),
        "blocked" => Call::Blocked,
        "pump" => Call::Pump,
        hint => Call::Hint(HINTS.iter().find(|h| h.1 == hint)?.0, extent()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::POLICIES;
    use types::{KIB, MIB, Rng};

    fn record(policy: &str, log_bytes_max: usize) -> Recorder {
        let config = Config::default();
        let mut budget = Budget::new(config.budget_bytes_max);
        let mut recorder = Recorder::new(policy, &config, log_bytes_max).unwrap();
        let mut rng = Rng::named(3, policy);
        let mut plan = Plan::default();
        let mut facts = Facts { file_size: 512 * MIB, stripe_size: MIB, rpc_bytes: MIB, lock: Extent::ALL };
        let mut at = 0;
        for i in 0..300 {
            let e = Extent::at(rng.below(400) * MIB, MIB);
            if i % 50 == 49 {
                facts.lock = if i % 100 == 49 { Extent::new(0, 300 * MIB) } else { Extent::ALL };
                let hint = HINTS[rng.below(5) as usize].0;
                for call in [Call::Hint(hint, e), Call::Pump, Call::Reclaimed(e), Call::LockLost(e), Call::Blocked] {
                    recorder.call(call, &facts, &mut budget, &mut plan);
                }
                at = e.start;
            }
            let read = Extent::at(at, 256 * KIB);
            recorder.call(Call::Read(read), &facts, &mut budget, &mut plan);
            if i % 10 == 0 {
                recorder.call(Call::Miss(read), &facts, &mut budget, &mut plan);
                recorder.call(Call::Progress(read), &facts, &mut budget, &mut plan);
            }
            at = read.end;
        }
        recorder
    }

    #[test]
    fn every_policy_answers_a_recorded_log_the_same_way() {
        for p in POLICIES {
            let r = record(p.name, 1 << 20);
            assert_eq!((replay(r.log()), r.dropped()), (Ok(390), 0), "{}", p.name);
        }
    }

    #[test]
    fn a_changed_answer_is_found_and_a_full_log_still_replays() {
        let r = record("parallel", 4096);
        assert!(r.dropped() > 0 && r.log().len() <= 4096);
        assert_eq!(replay(r.log()).unwrap() as u64 + r.dropped(), 390);
        let wrong = r.log().replacen("async=", "async=1:2,", 1);
        assert!(matches!(replay(&wrong), Err(ReplayError::Diverged { line: 3, .. })));
        assert_eq!(replay("x"), Err(ReplayError::Syntax { line: 1 }));
        assert_eq!(replay("stria-readahead-log 1 policy=x"), Err(ReplayError::Policy("x".into())));
        let no_facts = "stria-readahead-log 1 policy=none\nread 0 1 => sync= async=";
        assert_eq!(replay(no_facts), Err(ReplayError::Syntax { line: 2 }));
    }
}
