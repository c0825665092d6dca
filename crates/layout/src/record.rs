//! Logs of calls, and their replay: same calls, same answers.
//!
//! One line per create; a header names format, policy and configuration. Text, because people read them:
//! ```text
//! stria-layout-log 1 policy=auto balanced_within_percent=17 full_permille=1
//! dice=42 pool=- count=2 index=- osts=- over=0 facts=0:100:90:ap,1:100:90:a- -> 0,1
//! ```
//! A fact is `index:total:free:` and two letters, `a` active and `p` in the pool. A refusal is `-> refused NAME`.
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use types::record::{self, HEAD, Recording, Replay, Step as Line};
use types::{OstIndex, Rng};

pub use types::record::ReplayError;

use crate::allocator::{AllocError, Allocator, OstFacts};
use crate::config::AllocConfig;
use crate::layout_type::StripeSize;
use crate::pool::PoolName;
use crate::spec::Resolved;

/// An allocator that writes a log of its calls.
pub struct Recorder {
    allocator: Allocator,
    log: Recording,
}

impl Recorder {
    /// Records what a fresh `allocator` is asked and answers, up to `log_bytes_max` bytes; calls beyond are counted.
    #[must_use]
    pub fn new(allocator: Allocator, log_bytes_max: usize) -> Recorder {
        let head = record::header(Fresh::FORMAT, allocator.policy(), allocator.config().texts());
        Recorder { allocator, log: Recording::new(head.into_bytes(), log_bytes_max) }
    }
    /// As [`Allocator::allocate`].
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    pub fn allocate(&mut self, osts: &[OstFacts], ask: &Resolved, rng: &mut Rng) -> Result<Vec<OstIndex>, AllocError> {
        let dice = rng.next_u64();
        let answer = self.allocator.allocate_with(osts, ask, dice);
        let line = line_of(osts, ask, dice, &answer);
        self.log.write(|out| out.extend(line.bytes()));
        answer
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

/// Feeds a log to a fresh allocator and compares answers; returns the number of calls.
///
/// # Errors
/// [`ReplayError`] at the first line that differs.
pub fn replay(log: &str) -> Result<usize, ReplayError> {
    record::replay::<Fresh>(log)
}

struct Fresh(Allocator);

impl Replay for Fresh {
    const FORMAT: &'static str = "stria-layout-log 1";
    fn fresh(policy: &str, settings: &[(&str, &str)]) -> Result<Fresh, ReplayError> {
        let mut config = AllocConfig::default();
        settings.iter().try_for_each(|(key, value)| config.set(key, value)).map_err(|_| HEAD)?;
        Allocator::new(policy, config).map(Fresh).map_err(|e| ReplayError::Policy(e.name))
    }
    fn step<'a>(&mut self, line: &'a str) -> Option<Line<'a>> {
        let (call, recorded) = line.split_once(" -> ")?;
        let (osts, ask, dice) = parse_call(call)?;
        Some(Line::Call(recorded, answer_text(&self.0.allocate_with(&osts, &ask, dice))))
    }
}

fn line_of(osts: &[OstFacts], ask: &Resolved, dice: u64, answer: &Result<Vec<OstIndex>, AllocError>) -> String {
    let option = |o: Option<String>| o.unwrap_or_else(|| "-".into());
    let facts: Vec<String> = osts
        .iter()
        .map(|o| {
            let (a, p) = (if o.active { 'a' } else { '-' }, if o.in_pool { 'p' } else { '-' });
            format!("{}:{}:{}:{a}{p}", o.index.0, o.total_bytes, o.free_bytes)
        })
        .collect();
    format!(
        "dice={dice} pool={} count={} index={} osts={} over={} facts={} -> {}\n",
        option(ask.pool.map(|p| p.to_string())),
        option(ask.stripe_count.map(|c| c.to_string())),
        option(ask.index.map(|i| i.0.to_string())),
        option((!ask.osts.is_empty()).then(|| list_text(&ask.osts))),
        u8::from(ask.overstripe),
        if facts.is_empty() { "-".into() } else { facts.join(",") },
        answer_text(answer),
    )
}

fn list_text(osts: &[OstIndex]) -> String {
    osts.iter().map(|o| o.0.to_string()).collect::<Vec<_>>().join(",")
}

fn answer_text(answer: &Result<Vec<OstIndex>, AllocError>) -> String {
    match answer {
        Ok(osts) => list_text(osts),
        Err(e) => format!("refused {e:?}"),
    }
}

fn parse_call(call: &str) -> Option<(Vec<OstFacts>, Resolved, u64)> {
    let mut words = call.split(' ');
    let mut field = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
    let dice = field("dice")?.parse().ok()?;
    let pool = option(field("pool")?, |t| PoolName::parse(t).ok())?;
    let stripe_count = option(field("count")?, |t| t.parse().ok())?;
    let index = option(field("index")?, ost)?;
    let osts = list(field("osts")?, ost)?;
    let overstripe = field("over")? == "1";
    let facts = list(field("facts")?, fact)?;
    Some((facts, Resolved { stripe_size: StripeSize::DEFAULT, stripe_count, index, osts, pool, overstripe }, dice))
}

fn ost(text: &str) -> Option<OstIndex> {
    text.parse().ok().map(OstIndex)
}

fn option<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "-" { Some(None) } else { parse(text).map(Some) }
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    if text == "-" { Some(Vec::new()) } else { text.split(',').map(parse).collect() }
}

fn fact(text: &str) -> Option<OstFacts> {
    let mut parts = text.split(':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (index, total_bytes, free_bytes) = (u16::try_from(number()?).ok()?, number()?, number()?);
    let flags = parts.next()?.as_bytes();
    let [a, p] = *flags else { return None };
    Some(OstFacts { index: OstIndex(index), total_bytes, free_bytes, active: a == b'a', in_pool: p == b'p' })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::POLICIES;

    fn record(policy: &str) -> String {
        let mut rng = Rng::named(7, policy);
        let mut recorder = Recorder::new(Allocator::new(policy, AllocConfig::default()).unwrap(), 1 << 20);
        for i in 0..200u64 {
            let osts: Vec<OstFacts> = (0..6)
                .map(|o| OstFacts {
                    index: OstIndex(o),
                    total_bytes: 1000,
                    free_bytes: rng.below(1000),
                    active: rng.chance(0.9),
                    in_pool: o % 2 == 0,
                })
                .collect();
            let ask = Resolved {
                stripe_size: StripeSize::DEFAULT,
                stripe_count: (i % 5 != 0).then_some((i % 4) as u16 + 1),
                index: rng.chance(0.1).then_some(OstIndex(3)),
                osts: if rng.chance(0.1) { [0, 4].map(OstIndex).to_vec() } else { Vec::new() },
                pool: rng.chance(0.3).then(|| PoolName::parse("even").unwrap()),
                overstripe: rng.chance(0.1),
            };
            let _ = recorder.allocate(&osts, &ask, &mut rng);
        }
        assert_eq!(recorder.dropped(), 0);
        recorder.log().to_string()
    }

    #[test]
    fn every_policy_answers_a_recorded_log_the_same_way() {
        for p in POLICIES {
            assert_eq!(replay(&record(p.name)), Ok(200), "{}", p.name);
        }
    }

    #[test]
    fn a_changed_answer_is_found_at_its_line() {
        let log = record("round_robin").replacen(" -> ", " -> 9", 3).replacen(" -> 9", " -> ", 2);
        assert!(matches!(replay(&log), Err(ReplayError::Diverged { line: 4, .. })));
        assert_eq!(replay("nonsense"), Err(ReplayError::Syntax { line: 1 }));
        assert_eq!(replay("stria-layout-log 1 policy=none"), Err(ReplayError::Policy("none".into())));
        let bad = "stria-layout-log 1 policy=auto\ndice=x -> 0";
        assert_eq!(replay(bad), Err(ReplayError::Syntax { line: 2 }));
    }

    #[test]
    fn a_log_has_a_limit_and_counts_what_it_leaves_out() {
        let mut recorder = Recorder::new(Allocator::new("auto", AllocConfig::default()).unwrap(), 300);
        let mut rng = Rng::new(1);
        let osts = [OstFacts { index: OstIndex(0), total_bytes: 9, free_bytes: 9, active: true, in_pool: false }];
        for _ in 0..20 {
            recorder.allocate(&osts, &crate::LayoutSpec::default().resolve(), &mut rng).unwrap();
        }
        assert!(recorder.log().len() <= 300 && recorder.dropped() > 0);
        assert_eq!(replay(recorder.log()).unwrap() as u64 + recorder.dropped(), 20);
    }
}
