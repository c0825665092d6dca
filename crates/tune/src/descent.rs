//! One factor after the other, from today's values: what is measured in which order, and what comes of it.
//!
//! A factor is *screened*: a few rounds, each with the base and every candidate once, forwards and backwards in turn. The most
//! promising candidate is then *tested* with fresh pairs, sides alternating; these alone make its gain, for the best of
//! several looks better than it is. What passes is the base of the next factor. At the end all recommendations together are
//! *checked* against today's values. Pure: a [`Measurer`] measures and knows the time.
use bench::Failed;
use serde::Serialize;

use crate::factor::{Choice, Factor, today};
use crate::judge::Gain;

/// Rounds of a screening.
pub const ROUNDS: u64 = 3;
/// Fresh pairs of a test, and of the check; up to [`PAIRS_MAX`] when there is time. How many is fixed before the first.
pub const PAIRS: u64 = 5;
/// Most fresh pairs.
pub const PAIRS_MAX: u64 = 12;
/// A candidate with less than this share of its base in the first round is not measured again.
const HOPELESS: f64 = 0.5;
/// Runs of the base that may fail before the search ends.
const BASE_FAILURES_MAX: usize = 2;

/// What measures.
pub trait Measurer {
    /// One run with these values; its score, larger is better. `round` numbers the repetitions: simulations draw by it.
    ///
    /// # Errors
    /// The run failed; EINTR: the user wants an end.
    fn measure(&mut self, choice: &Choice, round: u64) -> Result<f64, Failed>;
    /// Seconds since the beginning.
    fn spent_s(&self) -> f64;
    /// Seconds that a run takes, as far as is known.
    fn run_s(&self) -> f64;
}

/// What a run was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Base or candidate of a screening.
    Screen,
    /// Fresh pairs of the most promising candidate.
    Test,
    /// Today's values against all recommended ones.
    Check,
}

/// One run. Its number is its place among all.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What for.
    pub stage: Stage,
    /// The factor in question.
    pub factor: Option<&'static str>,
    /// A value for each factor.
    pub choice: Choice,
    /// Repetition.
    pub round: u64,
    /// What it gave.
    pub score: Option<f64>,
    /// Why it gave nothing.
    pub failed: Option<String>,
}

/// A candidate that was screened.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// The value.
    pub value: String,
    /// Against the base, with two rounds or more.
    pub gain: Option<Gain>,
    /// Numbers of its runs.
    pub runs: Vec<usize>,
    /// Why it was given up: a failed run, or far behind in the first round.
    pub given_up: Option<String>,
    /// A run of it failed.
    pub failed: bool,
}

/// Fresh pairs of a candidate and its base.
#[derive(Clone, Debug, Serialize)]
pub struct Test {
    /// The candidate's value.
    pub value: String,
    /// What it gained, with two pairs or more.
    pub gain: Option<Gain>,
    /// Numbers of the runs, of both sides.
    pub runs: Vec<usize>,
    /// Why it ended before its time.
    pub failed: Option<String>,
}

/// What came of a factor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Verdict {
    /// Another value is better, by this much.
    Recommended {
        /// The value.
        value: String,
        /// Of the fresh pairs.
        gain: Gain,
    },
    /// No candidate is surely better: today's value stays.
    NoDifference,
    /// It was not measured, or not to the end.
    NotMeasured {
        /// Why.
        why: String,
    },
}

/// A factor with what was found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its index.
    pub factor: usize,
    /// Its candidates.
    pub tried: Vec<Tried>,
    /// The test of the most promising one.
    pub tested: Option<Test>,
    /// What came of it.
    pub verdict: Verdict,
    /// Numbers of the base's runs.
    pub base_runs: Vec<usize>,
}

/// Today's values against all recommended ones.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The product of the single gains.
    pub predicted: Gain,
    /// What was measured; `None`: it could not be, or not often enough.
    pub measured: Option<Gain>,
    /// Numbers of its runs.
    pub runs: Vec<usize>,
}

impl Check {
    /// Whether what is recommended is surely better than today.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.measured.is_some_and(|g| g.pairs >= crate::judge::PAIRS_MIN && g.low > 0.0)
    }
}

/// All that was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// Factor by factor.
    pub findings: Vec<Finding>,
    /// Today's values with the recommended ones in their places.
    pub choice: Choice,
    /// The check at the end; `None` when nothing is recommended.
    pub check: Option<Check>,
    /// Every run.
    pub runs: Vec<Run>,
    /// Why it ended early.
    #[serde(skip)]
    pub ended: Option<Failed>,
}

/// Searches the factors in their order within `limit_s` seconds.
#[must_use]
pub fn descend(factors: &[Factor], measurer: &mut dyn Measurer, limit_s: f64) -> Course {
    let course = Course { choice: today(factors), ..Course::default() };
    let mut d = Descent { factors, measurer, limit_s, base_failures: 0, course };
    let ended = d.all().err();
    d.course.ended = ended;
    d.course
}

/// Pairs of two sets of values, after a search: what `predicted` says against what is measured. Its runs join the others.
///
/// # Errors
/// The user wants an end, or the first side goes on failing.
pub fn compare(
    factors: &[Factor],
    measurer: &mut dyn Measurer,
    limit_s: f64,
    (base, other): (&Choice, &Choice),
    (predicted, course): (Gain, &mut Course),
) -> Result<Check, Failed> {
    let mut d = Descent { factors, measurer, limit_s, base_failures: 0, course: std::mem::take(course) };
    let check = d.compare(base, other, predicted);
    *course = d.course;
    check
}

/// Runs that a search takes when nothing is left out; half of the factors have something to test.
#[must_use]
pub fn runs_planned(factors: &[Factor]) -> u64 {
    let searched = factors.iter().filter(|f| !f.candidates.is_empty());
    searched.map(|f| ROUNDS * (1 + f.candidates.len() as u64) + PAIRS).sum::<u64>() + 2 * PAIRS
}

/// Pairs as they came.
struct Pairs {
    gain: Option<Gain>,
    runs: Vec<usize>,
    failed: Option<String>,
}

/// Scores of a round.
struct Round {
    base: Option<f64>,
    /// By the candidate's place.
    others: Vec<(usize, f64)>,
}

struct Descent<'a> {
    factors: &'a [Factor],
    measurer: &'a mut dyn Measurer,
    limit_s: f64,
    base_failures: usize,
    course: Course,
}

impl Descent<'_> {
    fn all(&mut self) -> Result<(), Failed> {
        for index in 0..self.factors.len() {
            let finding = self.factor(index);
            let failed = finding.as_ref().err().cloned();
            self.course.findings.push(finding.unwrap_or_else(|e| {
                let why = format!("the search ended here: {e}");
                blank(index, Verdict::NotMeasured { why })
            }));
            if let Some(e) = failed {
                let rest = index + 1..self.factors.len();
                let why = || Verdict::NotMeasured { why: "the search ended before it".into() };
                self.course.findings.extend(rest.map(|i| blank(i, why())));
                return Err(e);
            }
        }
        self.check()
    }

    /// Seconds for a factor: its share of what is left, or more when that is too little, for the first ones matter most. The
    /// check at the end keeps its own.
    fn slice_s(&self, index: usize) -> f64 {
        let run_s = self.measurer.run_s();
        let left = self.limit_s - 2.0 * PAIRS as f64 * run_s - self.measurer.spent_s();
        let some = self.factors[index].candidates.len().min(3) as u64;
        let need = (2 * PAIRS + ROUNDS * (1 + some)) as f64 * run_s;
        let others = self.factors[index..].iter().filter(|f| !f.candidates.is_empty()).count();
        (left / others.max(1) as f64).max(need.min(left))
    }

    fn factor(&mut self, index: usize) -> Result<Finding, Failed> {
        let all = &self.factors[index].candidates;
        let slice = self.slice_s(index);
        let end_s = self.measurer.spent_s() + slice;
        // A test of the best candidate, then as many candidates as there is time for.
        let runs = slice / self.measurer.run_s().max(1e-9) - 2.0 * PAIRS as f64;
        let room = (runs / ROUNDS as f64 - 1.0).floor();
        if all.is_empty() {
            let why = "there is no other value to try".into();
            return Ok(blank(index, Verdict::NotMeasured { why }));
        }
        if room < 1.0 {
            let need = (2 * PAIRS + 2 * ROUNDS) as f64 * self.measurer.run_s();
            let why =
                format!("no time: one candidate takes {need:.0} s, its share of the budget is {:.0} s", slice.max(0.0));
            return Ok(blank(index, Verdict::NotMeasured { why }));
        }
        let count = (room as usize).min(all.len());
        let (mut finding, screened) = self.screen(index, &all[..count], end_s)?;
        for value in &all[count..] {
            let given_up = Some("no time for it".into());
            finding.tried.push(Tried { value: value.clone(), gain: None, runs: Vec::new(), given_up, failed: false });
        }
        if !screened {
            finding.verdict = Verdict::NotMeasured { why: "its time was over before its rounds were".into() };
            return Ok(finding);
        }
        let measured = |t: &&Tried| !t.runs.is_empty();
        if finding.tried.iter().filter(measured).all(|t| t.failed) {
            let first = finding.tried.iter().find_map(|t| t.given_up.clone()).unwrap_or_default();
            finding.verdict = Verdict::NotMeasured { why: format!("every value failed: {first}") };
            return Ok(finding);
        }
        self.test(index, &mut finding, end_s)?;
        Ok(finding)
    }

    /// The rounds; whether there were enough of them.
    fn screen(&mut self, index: usize, values: &[String], end_s: f64) -> Result<(Finding, bool), Failed> {
        let mut finding = blank(index, Verdict::NoDifference);
        finding.tried = values
            .iter()
            .map(|v| Tried { value: v.clone(), gain: None, runs: Vec::new(), given_up: None, failed: false })
            .collect();
        let mut pairs: Vec<Vec<(f64, f64)>> = vec![Vec::new(); values.len()];
        let mut done = 0;
        for round in 0..ROUNDS {
            if self.measurer.spent_s() > end_s {
                break;
            }
            let Round { base: Some(base), others } = self.round(index, &mut finding, round)? else { continue };
            done += 1;
            for (i, score) in others {
                pairs[i].push((base, score));
                if round == 0 && score < HOPELESS * base {
                    let share = (1.0 - score / base) * 100.0;
                    finding.tried[i].given_up = Some(format!("{share:.0} % less in the first round"));
                }
            }
        }
        for (tried, pairs) in finding.tried.iter_mut().zip(&pairs) {
            tried.gain = Gain::of(pairs);
        }
        Ok((finding, done >= 2))
    }

    /// The base and every candidate that is not given up, once.
    fn round(&mut self, index: usize, f: &mut Finding, round: u64) -> Result<Round, Failed> {
        let mut order: Vec<Option<usize>> = std::iter::once(None)
            .chain((0..f.tried.len()).filter(|i| f.tried[*i].given_up.is_none()).map(Some))
            .collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let (mut base, mut others) = (None, Vec::new());
        for who in order {
            let value = who.map(|i| f.tried[i].value.clone());
            let (run, score) = self.run(Stage::Screen, Some(index), &self.with(index, value), round);
            match (who, score) {
                (None, score) => {
                    f.base_runs.push(run);
                    base = self.of_base(score)?;
                }
                (Some(i), Ok(score)) => {
                    f.tried[i].runs.push(run);
                    others.push((i, score));
                }
                (Some(i), Err(e)) => {
                    f.tried[i].runs.push(run);
                    f.tried[i].given_up = Some(carried_on(e)?);
                    f.tried[i].failed = true;
                }
            }
        }
        Ok(Round { base, others })
    }

    /// Fresh pairs for the most promising candidate.
    fn test(&mut self, index: usize, finding: &mut Finding, end_s: f64) -> Result<(), Failed> {
        let promising =
            finding.tried.iter().filter(|t| t.given_up.is_none() && t.gain.is_some_and(|g| g.is_promising()));
        let mean = |t: &&Tried| t.gain.map_or(0.0, |g| g.mean);
        let Some(value) = promising.max_by(|a, b| mean(a).total_cmp(&mean(b))).map(|t| t.value.clone()) else {
            return Ok(());
        };
        let (base, other) = (self.with(index, None), self.with(index, Some(value.clone())));
        let count = self.pairs_until(end_s);
        let Pairs { gain, runs, failed } = self.pairs((Stage::Test, Some(index)), &base, &other, count)?;
        finding.verdict = match (gain, &failed) {
            (_, Some(why)) => Verdict::NotMeasured { why: format!("a run of {value} failed: {why}") },
            (Some(gain), None) if gain.is_sure() => {
                self.course.choice[index].clone_from(&value);
                Verdict::Recommended { value: value.clone(), gain }
            }
            (None, None) => Verdict::NotMeasured { why: "too few pairs of the test came to their end".into() },
            (Some(_), None) => Verdict::NoDifference,
        };
        finding.tested = Some(Test { value, gain, runs, failed });
        Ok(())
    }

    /// How many pairs there is time for.
    fn pairs_until(&self, end_s: f64) -> u64 {
        let room = (end_s - self.measurer.spent_s()) / (2.0 * self.measurer.run_s().max(1e-9));
        (room.max(0.0) as u64).clamp(PAIRS, PAIRS_MAX)
    }

    /// `count` fresh pairs, sides alternating, while there is time; the first failed run of the other side ends them.
    fn pairs(
        &mut self,
        (stage, factor): (Stage, Option<usize>),
        base: &Choice,
        other: &Choice,
        count: u64,
    ) -> Result<Pairs, Failed> {
        let (mut pairs, mut runs) = (Vec::new(), Vec::new());
        for round in ROUNDS..ROUNDS + count {
            if self.measurer.spent_s() > self.limit_s {
                break;
            }
            let mut sides = [None, None];
            for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                let (run, score) = self.run(stage, factor, if side == 0 { base } else { other }, round);
                runs.push(run);
                sides[side] = match (side, score) {
                    (0, score) => self.of_base(score)?,
                    (_, Ok(score)) => Some(score),
                    (_, Err(e)) => {
                        return Ok(Pairs { gain: Gain::of(&pairs), runs, failed: Some(carried_on(e)?) });
                    }
                };
            }
            if let [Some(a), Some(b)] = sides {
                pairs.push((a, b));
            }
        }
        Ok(Pairs { gain: Gain::of(&pairs), runs, failed: None })
    }

    fn check(&mut self) -> Result<(), Failed> {
        let recommended = |f: &Finding| match &f.verdict {
            Verdict::Recommended { gain, .. } => Some(*gain),
            _ => None,
        };
        let gains: Vec<Gain> = self.course.findings.iter().filter_map(recommended).collect();
        let Some(predicted) = Gain::product(&gains) else { return Ok(()) };
        self.course.check = Some(Check { predicted, measured: None, runs: Vec::new() });
        let (now, then) = (today(self.factors), self.course.choice.clone());
        self.course.check = Some(self.compare(&now, &then, predicted)?);
        Ok(())
    }

    fn compare(&mut self, base: &Choice, other: &Choice, predicted: Gain) -> Result<Check, Failed> {
        // What was kept for it is there, whatever the factors took.
        self.limit_s = self.limit_s.max(self.measurer.spent_s() + 2.0 * PAIRS as f64 * self.measurer.run_s());
        let count = self.pairs_until(self.limit_s);
        let Pairs { gain: measured, runs, .. } = self.pairs((Stage::Check, None), base, other, count)?;
        Ok(Check { predicted, measured, runs })
    }

    /// The values so far, with another one of a factor.
    fn with(&self, index: usize, value: Option<String>) -> Choice {
        let mut choice = self.course.choice.clone();
        if let Some(value) = value {
            choice[index] = value;
        }
        choice
    }

    fn run(
        &mut self,
        stage: Stage,
        factor: Option<usize>,
        choice: &Choice,
        round: u64,
    ) -> (usize, Result<f64, Failed>) {
        let score = self.measurer.measure(choice, round);
        let failed = score.as_ref().err().map(ToString::to_string);
        let factor = factor.map(|i| self.factors[i].name);
        let run = Run { stage, factor, choice: choice.clone(), round, score: score.as_ref().ok().copied(), failed };
        self.course.runs.push(run);
        (self.course.runs.len() - 1, score)
    }

    /// A base that fails now and then costs its round; one that goes on failing ends the search.
    fn of_base(&mut self, score: Result<f64, Failed>) -> Result<Option<f64>, Failed> {
        match score {
            Ok(score) => Ok(Some(score)),
            Err(e) => {
                self.base_failures += 1;
                if e.errno == libc::EINTR || self.base_failures > BASE_FAILURES_MAX {
                    return Err(e);
                }
                Ok(None)
            }
        }
    }
}

fn blank(factor: usize, verdict: Verdict) -> Finding {
    Finding { factor, tried: Vec::new(), tested: None, verdict, base_runs: Vec::new() }
}

/// Why a run failed, unless that ends the search.
fn carried_on(e: Failed) -> Result<String, Failed> {
    if e.errno == libc::EINTR { Err(e) } else { Ok(e.text) }
}

#[cfg(test)]
mod tests;
