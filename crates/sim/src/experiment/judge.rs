//! Verdicts: what each expectation of a scenario measures over the points and seeds that ran, and whether that is within
//! its bounds.
//!
//! A change against another point is taken seed by seed, then averaged: both have the same draws.
use super::{Estimate, Point};
use crate::scenario::{Expect, Scenario, Trend};

/// What became of an expectation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Within its bounds.
    Holds,
    /// Outside.
    Misses,
    /// Outside, at the value where it is known to be.
    Known,
    /// Marked as a known miss, and elsewhere now: within its bounds, or outside at another value.
    Moved,
    /// The metric was not measured (in this form of the scenario).
    NotMeasured,
}

impl Outcome {
    /// In few words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Holds => "holds",
            Outcome::Misses => "misses",
            Outcome::Known => "misses, known",
            Outcome::Moved => "known miss moved",
            Outcome::NotMeasured => "not measured",
        }
    }
}

/// An expectation and what was measured.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What was expected.
    pub expect: Expect,
    /// The measured value over the seeds.
    pub measured: Option<Estimate>,
    /// The judgement: of the mean.
    pub outcome: Outcome,
}

impl Verdict {
    /// Whether another set of seeds may be judged otherwise: a bound lies within the interval.
    #[must_use]
    pub fn is_close(&self) -> bool {
        let bounds = [self.expect.min, self.expect.max];
        self.measured.is_some_and(|m| bounds.into_iter().flatten().any(|b| m.straddles(b)))
    }
}

/// Judges one expectation.
pub(super) fn judge(scenario: &Scenario, points: &[Point], e: &Expect) -> Verdict {
    let measured = match &e.over {
        Some((key, trend)) => worst_step(points, e, key, *trend),
        None => subject(scenario, points, e).and_then(|p| Estimate::of(&values(points, p, e)?)),
    };
    Verdict { expect: e.clone(), measured, outcome: outcome(e, measured) }
}

fn outcome(e: &Expect, measured: Option<Estimate>) -> Outcome {
    let Some(v) = measured.map(|m| m.mean) else { return Outcome::NotMeasured };
    let misses = e.min.is_some_and(|m| v < m) || e.max.is_some_and(|m| v > m);
    match &e.known_miss {
        None if misses => Outcome::Misses,
        None => Outcome::Holds,
        Some(known) if misses && (v - known.value).abs() <= known.value.abs() * known.tolerance_percent / 100.0 => {
            Outcome::Known
        }
        Some(_) => Outcome::Moved,
    }
}

/// Where two values of a parameter are the same: `1M` and `1048576` are.
pub(crate) fn same_value(a: &str, b: &str) -> bool {
    if let (Ok(x), Ok(y)) = (a.parse::<f64>(), b.parse::<f64>()) {
        return x == y;
    }
    a == b || matches!((types::parse_size(a), types::parse_size(b)), (Ok(x), Ok(y)) if x == y)
}

fn matches(point: &Point, conditions: &[(String, String)]) -> bool {
    conditions.iter().all(|(k, v)| same_value(point.params.text(k), v))
}

/// The point that an expectation speaks of: the first that meets its conditions.
fn subject<'a>(scenario: &Scenario, points: &'a [Point], e: &Expect) -> Option<&'a Point> {
    // A condition on a key that the command line pinned to another value speaks of a point that does not exist.
    let swept = |k: &str| scenario.sweep.iter().any(|(s, _)| s == k);
    let unswept_base = e.when.is_empty() && points.iter().any(|p| !swept_away(scenario, p));
    points.iter().find(|p| {
        matches(p, &e.when) && (!unswept_base || e.when.iter().any(|(k, _)| swept(k)) || !swept_away(scenario, p))
    })
}

/// Whether a point's swept values differ from the scenario's own parameters.
pub(super) fn swept_away(scenario: &Scenario, point: &Point) -> bool {
    point.at.iter().any(|(k, v)| !same_value(scenario.params.text(k), v))
}

/// The greatest step against the trend between neighbours along `key`, over all points that meet the conditions.
fn worst_step(points: &[Point], e: &Expect, key: &str, trend: Trend) -> Option<Estimate> {
    let place = |p: &Point| {
        let text = p.params.text(key);
        text.parse::<f64>().ok().or_else(|| types::parse_size(text).ok().map(|n| n as f64))
    };
    let is_meant = |p: &&Point| matches(p, &e.when) && p.at.iter().any(|(k, _)| k == key);
    let mut course: Vec<(f64, Vec<f64>)> =
        points.iter().filter(is_meant).map(|p| Some((place(p)?, values(points, p, e)?))).collect::<Option<_>>()?;
    course.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sign = match trend {
        Trend::Rises => -1.0,
        Trend::Falls => 1.0,
    };
    let steps = course.windows(2).filter_map(|w| {
        let by_seed: Vec<f64> = w[0].1.iter().zip(&w[1].1).map(|(a, b)| (b - a) * sign).collect();
        Estimate::of(&by_seed)
    });
    steps.max_by(|a, b| a.mean.total_cmp(&b.mean))
}

/// The change in percent of a metric at a point against the point that differs by `relative_to`; without one the metric.
pub(crate) fn change(points: &[Point], p: &Point, metric: &str, relative_to: &[(String, String)]) -> Option<Estimate> {
    let asked = Expect { metric: metric.into(), relative_to: relative_to.to_vec(), ..Expect::default() };
    Estimate::of(&values(points, p, &asked)?)
}

/// What an expectation measures at a point, by seed.
fn values(points: &[Point], p: &Point, e: &Expect) -> Option<Vec<f64>> {
    let here = by_seed(p, e)?;
    if e.relative_to.is_empty() {
        return Some(here);
    }
    let given = |k: &String| e.relative_to.iter().any(|(r, _)| r == k);
    let is_base = |q: &&Point| {
        matches(q, &e.relative_to) && p.at.iter().all(|(k, v)| given(k) || same_value(q.params.text(k), v))
    };
    let base = by_seed(points.iter().find(is_base)?, e)?;
    here.iter().zip(&base).map(|(v, b)| (*b != 0.0).then(|| (v / b - 1.0) * 100.0)).collect()
}

fn by_seed(point: &Point, e: &Expect) -> Option<Vec<f64>> {
    let one = |m: &crate::metrics::Metrics| match e.at {
        None => m.get(&e.metric),
        Some(x) => interpolated(m.curve(&e.metric)?, x),
    };
    point.samples.iter().map(|s| one(&s.metrics)).collect()
}

/// The value of a curve at `x`; that of its first point before it, none behind its last one.
fn interpolated(curve: &[(f64, f64)], x: f64) -> Option<f64> {
    let after = curve.iter().position(|p| p.0 >= x)?;
    let (b, a) = (curve[after], curve[after.saturating_sub(1)]);
    let t = if b.0 > a.0 { (x - a.0) / (b.0 - a.0) } else { 0.0 };
    Some(a.1 + (b.1 - a.1) * t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::KnownMiss;

    fn measured(mean: f64) -> Option<Estimate> {
        Estimate::of(&[mean])
    }

    #[test]
    fn values_are_compared_as_what_they_are() {
        assert!(same_value("1M", "1048576") && same_value("0.50", "0.5") && same_value("fifo", "fifo"));
        assert!(!same_value("0.9", "0.1") && !same_value("1M", "1K") && !same_value("fifo", "obrr"));
    }

    #[test]
    fn a_known_miss_is_known_at_its_value_only() {
        let known = KnownMiss { value: 14.8, tolerance_percent: 3.0, why: "a reason".into() };
        let e = Expect { min: Some(11.0), max: Some(14.0), known_miss: Some(known), ..Expect::default() };
        for (value, outcome_of_it) in
            [(14.8, Outcome::Known), (14.5, Outcome::Known), (15.5, Outcome::Moved), (13.0, Outcome::Moved)]
        {
            assert_eq!(outcome(&e, measured(value)), outcome_of_it, "{value}");
        }
        assert_eq!(outcome(&e, None), Outcome::NotMeasured);
        let unmarked = Expect { known_miss: None, ..e };
        assert_eq!(outcome(&unmarked, measured(14.8)), Outcome::Misses);
        assert_eq!(outcome(&unmarked, measured(13.0)), Outcome::Holds);
    }

    #[test]
    fn a_curve_has_values_between_its_points_and_none_behind_them() {
        let curve = [(0.5, 10.0), (1.5, 20.0)];
        assert_eq!(interpolated(&curve, 1.0), Some(15.0));
        assert_eq!(interpolated(&curve, 0.0), Some(10.0));
        assert_eq!(interpolated(&curve, 1.6), None);
    }
}
