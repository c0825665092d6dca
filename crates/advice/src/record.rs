//! Logs of calls, and their replay: same calls, same answers.
//!
//! One line per call; a header names format, policy and configuration. Text, because people read them:
//! ```text
//! stria-advice-log 1 policy=house advised_percent_max=80 ...
//! advise [0x240000401:0x1:0x0] 0 1048576 med auto p1 o0 u0 @ 8589934592:low 0:low => prefetch [0x240000401:0x1:0x0] 0 1048576 ram med
//! release o7 @ 8589934592:high 0:low => drop [0x240000401:0x1:0x0] 0 1048576 ram
//! ```
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use types::record::{self, HEAD, Recording, Replay, Step as Line};
use types::{Extent, Fid, ObjectId};

pub use types::record::ReplayError;

use crate::advisor::{Advice, AdviceError, Advisor, OwnerId, Payer, ProjectId, Step, Steps, Tiers, UserId, Wish};
use crate::config::Config;
use crate::{Hint, Pressure, Tier};

/// A call on the advisor, as it is recorded and replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// [`Advisor::advise`].
    Advise(Advice),
    /// [`Advisor::release_owner`].
    Release(OwnerId),
    /// [`Advisor::on_destroyed`].
    Destroyed(ObjectId),
    /// [`Advisor::on_cut`].
    Cut(ObjectId, Extent),
    /// [`Advisor::set_budget`].
    Budget(Payer, Option<[u64; 2]>),
}

/// Makes a call. The one place that maps calls to methods; recorder and replay share it.
///
/// # Errors
/// As [`Advisor::advise`].
pub fn apply(call: Call, advisor: &mut Advisor, tiers: &Tiers, steps: &mut Steps) -> Result<(), AdviceError> {
    match call {
        Call::Advise(a) => return advisor.advise(&a, tiers, steps),
        Call::Release(o) => advisor.release_owner(o, tiers, steps),
        Call::Destroyed(o) => advisor.on_destroyed(o),
        Call::Cut(o, e) => advisor.on_cut(o, e),
        Call::Budget(p, b) => advisor.set_budget(p, b),
    }
    Ok(())
}

/// An advisor that writes a log of its calls.
pub struct Recorder {
    advisor: Advisor,
    log: Recording,
}

impl Recorder {
    /// Records what a fresh `advisor` is told and answers, up to `log_bytes_max` bytes; calls beyond are counted.
    #[must_use]
    pub fn new(advisor: Advisor, log_bytes_max: usize) -> Recorder {
        let head = record::header(Fresh::FORMAT, advisor.policy(), advisor.config().texts());
        Recorder { advisor, log: Recording::new(head.into_bytes(), log_bytes_max) }
    }
    /// Makes a call and records it.
    ///
    /// # Errors
    /// As [`apply`].
    pub fn call(&mut self, call: Call, tiers: &Tiers, steps: &mut Steps) -> Result<(), AdviceError> {
        steps.clear();
        let result = apply(call, &mut self.advisor, tiers, steps);
        let line = format!("{} @ {} => {}\n", call_text(call), tiers_text(tiers), answer_text(&result, steps));
        self.log.write(|out| out.extend(line.bytes()));
        result
    }
    /// The advisor.
    #[must_use]
    pub fn advisor(&self) -> &Advisor {
        &self.advisor
    }
    /// The log so far.
    #[must_use]
    pub fn log(&self) -> &str {
        self.log.text()
    }
    /// Calls that did not fit.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.log.left_out()
    }
}

/// Feeds a log to a fresh advisor and compares answers; returns the number of calls.
///
/// # Errors
/// [`ReplayError`] at the first line that differs.
pub fn replay(log: &str) -> Result<usize, ReplayError> {
    record::replay::<Fresh>(log)
}

struct Fresh(Advisor);

impl Replay for Fresh {
    const FORMAT: &'static str = "stria-advice-log 1";
    fn fresh(policy: &str, settings: &[(&str, &str)]) -> Result<Fresh, ReplayError> {
        let mut config = Config::default();
        settings.iter().try_for_each(|(key, value)| config.set(key, value)).map_err(|_| HEAD)?;
        Advisor::new(policy, config).map(Fresh).map_err(|e| ReplayError::Policy(e.name))
    }
    fn step<'a>(&mut self, line: &'a str) -> Option<Line<'a>> {
        let (call, tiers, recorded) = parse_line(line)?;
        let mut steps = Steps::new();
        let result = apply(call, &mut self.0, &tiers, &mut steps);
        Some(Line::Call(recorded, answer_text(&result, &steps)))
    }
}

fn call_text(call: Call) -> String {
    match call {
        Call::Advise(a) => {
            let wish = match a.wish {
                Wish::Auto => "auto",
                Wish::Only(tier) => tier.name(),
            };
            let (hint, project, owner, user) = (a.hint.name(), a.project.0, a.owner.0, a.user.0);
            format!("advise {} {} {} {hint} {wish} p{project} o{owner} u{user}", a.object, a.extent.start, a.extent.end)
        }
        Call::Release(o) => format!("release o{}", o.0),
        Call::Destroyed(o) => format!("destroyed {o}"),
        Call::Cut(o, e) => format!("cut {o} {} {}", e.start, e.end),
        Call::Budget(p, Some([ram, fast])) => format!("budget {} {ram} {fast}", payer_text(p)),
        Call::Budget(p, None) => format!("budget {} default", payer_text(p)),
    }
}

fn payer_text(payer: Payer) -> String {
    match payer {
        Payer::Project(p) => format!("p{}", p.0),
        Payer::User(u) => format!("u{}", u.0),
    }
}

fn tiers_text(t: &Tiers) -> String {
    let [ram, fast] = t.size_bytes;
    format!("{ram}:{} {fast}:{}", t.pressure[0].name(), t.pressure[1].name())
}

fn answer_text(result: &Result<(), AdviceError>, steps: &Steps) -> String {
    if let Err(e) = result {
        return format!("error {e:?}");
    }
    let words: Vec<String> = steps.iter().map(step_text).collect();
    words.join("; ")
}

fn step_text(step: &Step) -> String {
    let place = |o: &ObjectId, e: &Extent| format!("{o} {} {}", e.start, e.end);
    match step {
        Step::Prefetch(o, e, t, h) => format!("prefetch {} {} {}", place(o, e), t.name(), h.name()),
        Step::Keep(o, e, t, h) => format!("keep {} {} {}", place(o, e), t.name(), h.name()),
        Step::Release(o, e, t) => format!("release {} {}", place(o, e), t.name()),
        Step::Drop(o, e, t) => format!("drop {} {}", place(o, e), t.name()),
        Step::Refused(o, e, why) => format!("refused {} {why:?}", place(o, e)),
    }
}

fn parse_line(line: &str) -> Option<(Call, Tiers, &str)> {
    // An answer of no steps ends in the bare arrow.
    let (head, answer) = line.split_once(" =>")?;
    let (call, tiers) = head.split_once(" @ ")?;
    Some((parse_call(call)?, parse_tiers(tiers)?, answer.strip_prefix(' ').unwrap_or(answer)))
}

fn parse_tiers(text: &str) -> Option<Tiers> {
    let mut tiers = Tiers::default();
    let mut words = text.split(' ');
    for i in 0..2 {
        let (size, pressure) = words.next()?.split_once(':')?;
        tiers.size_bytes[i] = size.parse().ok()?;
        tiers.pressure[i] = Pressure::ALL.into_iter().find(|p| p.name() == pressure)?;
    }
    Some(tiers)
}

fn parse_call(text: &str) -> Option<Call> {
    let words: Vec<&str> = text.split(' ').collect();
    let project = |t: &str| Some(ProjectId(t.strip_prefix('p')?.parse().ok()?));
    let owner = |t: &str| Some(OwnerId(t.strip_prefix('o')?.parse().ok()?));
    let user = |t: &str| Some(UserId(t.strip_prefix('u')?.parse().ok()?));
    let payer = |t: &str| project(t).map(Payer::Project).or_else(|| user(t).map(Payer::User));
    Some(match words[..] {
        // Logs of before users had budgets name none.
        ["advise", object, start, end, hint, wish, p, o, ref u @ ..] if u.len() <= 1 => Call::Advise(Advice {
            object: ObjectId(Fid::parse(object)?),
            extent: Extent::checked(start.parse().ok()?, end.parse().ok()?)?,
            hint: Hint::parse(hint)?,
            wish: if wish == "auto" {
                Wish::Auto
            } else {
                Wish::Only(Tier::ALL.into_iter().find(|t| t.name() == wish)?)
            },
            project: project(p)?,
            owner: owner(o)?,
            user: u.first().map_or(Some(UserId(0)), |u| user(u))?,
        }),
        ["release", o] => Call::Release(owner(o)?),
        ["destroyed", object] => Call::Destroyed(ObjectId(Fid::parse(object)?)),
        ["cut", object, start, end] => {
            Call::Cut(ObjectId(Fid::parse(object)?), Extent::checked(start.parse().ok()?, end.parse().ok()?)?)
        }
        ["budget", p, "default"] => Call::Budget(payer(p)?, None),
        ["budget", p, ram, fast] => Call::Budget(payer(p)?, Some([ram.parse().ok()?, fast.parse().ok()?])),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::POLICIES;
    use types::{MIB, OstIndex, Rng};

    fn record(policy: &str, log_bytes_max: usize) -> Recorder {
        let mut rng = Rng::named(3, policy);
        let mut recorder = Recorder::new(Advisor::new(policy, Config::default()).unwrap(), log_bytes_max);
        let mut steps = Steps::new();
        for _ in 0..400 {
            let pressure = [0; 2].map(|_: u8| Pressure::ALL[rng.below(3) as usize]);
            let tiers = Tiers { size_bytes: [64 * MIB, 256 * MIB], pressure };
            let object = ObjectId::new(OstIndex(0), rng.below(8) as u32);
            let project = ProjectId(rng.below(3) as u32);
            let payer = if rng.chance(0.5) { Payer::Project(project) } else { Payer::User(UserId(project.0)) };
            let call = match rng.below(20) {
                0 => Call::Release(OwnerId(rng.below(4))),
                1 => Call::Destroyed(object),
                3 => Call::Cut(object, Extent::from(rng.below(140) * MIB)),
                2 => Call::Budget(payer, rng.chance(0.5).then(|| [rng.below(64) * MIB, rng.below(256) * MIB])),
                n => Call::Advise(Advice {
                    object,
                    extent: Extent::at(rng.below(100) * MIB, rng.below(40) * MIB),
                    hint: Hint::ALL[rng.below(5) as usize],
                    wish: [Wish::Auto, Wish::Only(Tier::Ram), Wish::Only(Tier::Fast)][n as usize % 3],
                    project,
                    owner: OwnerId(rng.below(4)),
                    user: UserId(rng.below(3) as u32),
                }),
            };
            let _ = recorder.call(call, &tiers, &mut steps);
        }
        recorder
    }

    #[test]
    fn every_policy_answers_a_recorded_log_the_same_way() {
        for p in POLICIES {
            let r = record(p.name, 1 << 20);
            assert_eq!((replay(r.log()), r.dropped()), (Ok(400), 0), "{}", p.name);
        }
    }

    #[test]
    fn a_changed_answer_is_found_and_a_full_log_still_replays() {
        let r = record("house", 10_000);
        assert!(r.dropped() > 0 && r.log().len() <= 10_000);
        assert_eq!(replay(r.log()).unwrap() as u64 + r.dropped(), 400);
        let wrong = r.log().replacen("=> prefetch", "=> keep", 1);
        assert!(matches!(replay(&wrong), Err(ReplayError::Diverged { .. })));
        assert_eq!(replay("x"), Err(ReplayError::Syntax { line: 1 }));
        assert_eq!(replay("stria-advice-log 1 policy=x"), Err(ReplayError::Policy("x".into())));
        assert_eq!(replay("stria-advice-log 1 policy=none\nadvise"), Err(ReplayError::Syntax { line: 2 }));
    }
}
