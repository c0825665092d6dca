//! Logs of calls on open files, and their replay: same calls, same answers.
//!
//! One line per call; a header names format, policy and configuration. Text, because people read them:
//! ```text
//! stria-readahead-log 1 policy=parallel budget_bytes_max=268435456 ...
//! facts 1073741824 4194304 4194304 0 max
//! read 0 65536 => sync= async=
//! miss 0 65536 => sync=65536:262144 async=
//! ```
//! A log holds all files that share a budget: `file 3` says which one the next calls are about (0 at the beginning),
//! `close` ends it, `switch policy=... key=value ...` changes policy and configuration of all.
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;
use types::Extent;
use types::record::{self, HEAD, Replay, Step};

use crate::ahead::{Ahead, AheadFile};
use crate::budget::Budget;
use crate::config::Config;
use crate::file::{Facts, FileReadahead, Hint, Plan, Stats};

pub use types::record::ReplayError;

pub(crate) const FORMAT: &str = "stria-readahead-log 1";

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

impl Call {
    /// What a reader that has to wait for `extent` tells: all that is not here is on its way, or nobody has asked for a part of
    /// it. Clients and simulators share the rule.
    #[must_use]
    pub fn of_wait(extent: Extent, all_coming: bool) -> Call {
        if all_coming { Call::Blocked } else { Call::Miss(extent) }
    }
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

/// Feeds a log to fresh files and compares answers; returns the number of calls.
///
/// # Errors
/// [`ReplayError`] at the first line that differs.
pub fn replay(log: &str) -> Result<usize, ReplayError> {
    record::replay::<Fresh>(log)
}

/// Files as a log opens them: by number, at their first call.
struct Fresh {
    ahead: Ahead,
    files: BTreeMap<u64, AheadFile>,
    at_file: u64,
    facts: Option<Facts>,
    plan: Plan,
}

impl Replay for Fresh {
    const FORMAT: &'static str = FORMAT;
    fn fresh(policy: &str, settings: &[(&str, &str)]) -> Result<Fresh, ReplayError> {
        let ahead = Ahead::new(policy, configured(settings).ok_or(HEAD)?).map_err(|e| ReplayError::Policy(e.name))?;
        Ok(Fresh { ahead, files: BTreeMap::new(), at_file: 0, facts: None, plan: Plan::default() })
    }
    fn step<'a>(&mut self, line: &'a str) -> Option<Step<'a>> {
        let Some((call, recorded)) = line.split_once(" => ") else {
            self.learn(line)?;
            return Some(Step::Context);
        };
        if call == "close" {
            let file = self.files.remove(&self.at_file).unwrap_or_else(|| self.ahead.numbered(self.at_file));
            return Some(Step::Call(recorded, close_text(&self.ahead.close(file))));
        }
        let file = self.files.entry(self.at_file).or_insert_with(|| self.ahead.numbered(self.at_file));
        self.ahead.call(file, parse_call(call)?, self.facts.as_ref()?, &mut self.plan);
        Some(Step::Call(recorded, plan_text(&self.plan)))
    }
}

impl Fresh {
    fn learn(&mut self, line: &str) -> Option<()> {
        match line.split_once(' ')? {
            ("facts", text) => self.facts = Some(parse_facts(text)?),
            ("file", number) => self.at_file = number.parse().ok()?,
            ("switch", words) => {
                let words: Option<Vec<_>> = words.split(' ').map(|w| w.split_once('=')).collect();
                let (&(_, policy), settings) = words.as_ref()?.split_first()?;
                let files = &mut self.files;
                self.ahead.switch(policy, configured(settings)?, &mut |each| files.values_mut().for_each(each)).ok()?;
            }
            _ => return None,
        }
        Some(())
    }
}

fn configured(settings: &[(&str, &str)]) -> Option<Config> {
    let mut config = Config::default();
    settings.iter().try_for_each(|(key, value)| config.set(key, value)).ok()?;
    Some(config)
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

pub(crate) fn facts_line(f: &Facts) -> String {
    format!("facts {} {} {} {}\n", f.file_size, f.stripe_size, f.rpc_bytes, extent_text(f.lock))
}

pub(crate) fn call_text(call: Call) -> String {
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

pub(crate) fn plan_text(plan: &Plan) -> String {
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

pub(crate) fn close_text(s: &Stats) -> String {
    format!(
        "used={} prefetched={} missed={} wasted={}",
        s.used_bytes, s.prefetched_bytes, s.missed_bytes, s.wasted_bytes
    )
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
    use types::record::Recording;
    use types::{KIB, MIB, Rng};

    /// Two files that share a budget; returns the log and how many calls did not fit.
    fn record(policy: &str, log_bytes_max: usize) -> Recording {
        let mut ahead = Ahead::new(policy, Config::default()).unwrap();
        ahead.record(log_bytes_max, &mut |_| {}).unwrap();
        let (mut file, mut other) = (ahead.open(), ahead.open());
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
                    ahead.call(&mut file, call, &facts, &mut plan);
                }
                at = e.start;
            }
            let read = Extent::at(at, 256 * KIB);
            ahead.call(&mut file, Call::Read(read), &facts, &mut plan);
            if i % 10 == 0 {
                ahead.call(&mut file, Call::Miss(read), &facts, &mut plan);
                ahead.call(&mut other, Call::Progress(read), &facts, &mut plan);
            }
            if i == 200 {
                let mut config = ahead.config().clone();
                config.window_bytes_max = 8 * MIB;
                let files = &mut [&mut file, &mut other];
                ahead.switch("parallel", config, &mut |each| files.iter_mut().for_each(|f| each(f))).unwrap();
            }
            at = read.end;
        }
        ahead.close(file);
        ahead.close(other);
        let never_read = ahead.open();
        ahead.close(never_read);
        assert_eq!(ahead.budget().held_bytes(), 0);
        ahead.tape().take().unwrap()
    }

    #[test]
    fn every_policy_answers_a_recorded_log_the_same_way() {
        for p in POLICIES {
            let r = record(p.name, 1 << 20);
            assert_eq!((replay(r.text()), r.left_out()), (Ok(393), 0), "{}", p.name);
        }
    }

    #[test]
    fn a_changed_answer_is_found_and_a_full_log_still_replays() {
        let r = record("parallel", 4096);
        assert!(r.left_out() > 0 && r.bytes().len() <= 4096 && replay(r.text()).unwrap() > 10);
        let wrong = r.text().replacen("async=", "async=1:2,", 1);
        assert!(matches!(replay(&wrong), Err(ReplayError::Diverged { line: 3, .. })));
        assert_eq!(replay("x"), Err(ReplayError::Syntax { line: 1 }));
        assert_eq!(replay("stria-readahead-log 1 policy=x"), Err(ReplayError::Policy("x".into())));
        for bad in ["read 0 1 => sync= async=", "file x", "switch policy=x", "switch parallel", "x"] {
            let text = format!("stria-readahead-log 1 policy=none\n{bad}");
            assert_eq!(replay(&text), Err(ReplayError::Syntax { line: 2 }), "{bad}");
        }
    }

    #[test]
    fn a_recording_that_begins_while_files_are_read_replays() {
        let mut ahead = Ahead::new("parallel", Config::default()).unwrap();
        let facts = Facts { file_size: 512 * MIB, stripe_size: MIB, rpc_bytes: MIB, lock: Extent::ALL };
        let (mut files, mut plan) = ([ahead.open(), ahead.open(), ahead.open()], Plan::default());
        let mut rng = Rng::new(4);
        for i in 0..600u64 {
            if i == 300 {
                ahead.call(&mut files[1], Call::Hint(Hint::Sequential, Extent::ALL), &facts, &mut plan);
                let held = ahead.budget().held_bytes();
                assert!(held > 0);
                let refused = ahead.record(1 << 20, &mut |each| each(&mut files[0])).unwrap_err();
                assert!(refused.contains("being closed") && ahead.budget().held_bytes() == held);
                ahead.record(1 << 20, &mut |each| files.iter_mut().for_each(each)).unwrap();
            }
            let read = Extent::at(i / 3 * 128 * KIB, 128 * KIB);
            for call in [Call::Read(read), Call::Miss(read)] {
                if matches!(call, Call::Read(_)) || rng.chance(0.3) {
                    ahead.call(&mut files[i as usize % 3], call, &facts, &mut plan);
                }
            }
        }
        let log = ahead.tape().take().unwrap();
        assert!(log.text().contains("\nsequential 0 max => "), "hints stay");
        assert!(replay(log.text()).unwrap() > 300);
    }
}
