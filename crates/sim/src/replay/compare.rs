//! Figures of a replay beside those that were measured: how wrong the replay is, and what follows for what was asked.
use super::config::{Overrides, TargetConfig};
use super::follow::Loop;
use super::world::{Outcome, measured, run};
use crate::experiment::Estimate;
use trace::{Figures, Trace};

/// What is compared: name, unit, and what it is of figures.
type Row = (&'static str, &'static str, fn(&Figures) -> f64);
const VALUES: [Row; 5] = [
    ("bandwidth", "MB/s", |f| f.bytes_per_s() / 1e6),
    ("response mean", "ms", |f| f.response.mean / 1e6),
    ("response p50", "ms", |f| f.response.p50 / 1e6),
    ("response p99", "ms", |f| f.response.p99 / 1e6),
    ("queue mean", "ms", |f| f.queue.mean / 1e6),
];

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// What it is.
    pub name: &'static str,
    /// In what.
    pub unit: &'static str,
    /// As it was recorded.
    pub measured: f64,
    /// As the recorded settings give it in the replay.
    pub replayed: Estimate,
    /// As the settings that were asked for give it there.
    pub asked: Option<Estimate>,
}

impl Value {
    /// How far the replay of the recorded settings is off: 0.1 is 10 % too high. Not a number where nothing was measured.
    #[must_use]
    pub fn error(&self) -> f64 {
        if self.replayed.mean == self.measured { 0.0 } else { self.replayed.mean / self.measured - 1.0 }
    }
    /// The change that was asked about: 0.1 is 10 % more.
    #[must_use]
    pub fn change(&self) -> Option<f64> {
        let asked = self.asked?.mean;
        Some(if asked == self.replayed.mean { 0.0 } else { asked / self.replayed.mean - 1.0 })
    }
    /// What would have been measured, and how far either way it may lie: the change applied to what was measured, with the
    /// replay's own error and the spread over the seeds as its range. `None` also where the replay has nothing that could change.
    #[must_use]
    pub fn predicted(&self) -> Option<(f64, f64)> {
        let (asked, value) = (self.asked?, self.measured * (1.0 + self.change().filter(|c| c.is_finite())?));
        let spread = |e: Estimate| if e.mean > 0.0 { e.half_width / e.mean } else { 0.0 };
        Some((value, value * (self.error().abs() + spread(asked) + spread(self.replayed))))
    }
}

/// A replay of the recorded settings beside what was measured, and of other settings beside that.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Requests that were replayed.
    pub requests: usize,
    /// Seeds.
    pub seeds: u64,
    /// How requests arrived.
    pub how: Loop,
    /// The figures.
    pub values: Vec<Value>,
    /// Times that a scheduler was full: recorded settings and asked ones, first seed.
    pub refused: [u64; 2],
}

/// Replays `trace` as it was recorded on the device that `device` describes, and again with what is `asked` for, with `seeds`
/// seeds each.
///
/// # Errors
/// A sentence: settings that are refused, nothing to replay.
pub fn compare(
    trace: &Trace,
    device: &Overrides,
    asked: &Overrides,
    how: Loop,
    seeds: u64,
) -> Result<Comparison, String> {
    let recorded = measured(trace)?;
    let was = Figures::of(|| recorded.iter());
    let replayed = over_seeds(trace, device, how, seeds)?;
    let other = match asked.is_empty() {
        true => None,
        false => Some(over_seeds(trace, &device.and(asked), how, seeds)?),
    };
    let estimate = |runs: &[(Figures, u64)], of: fn(&Figures) -> f64| {
        let values: Vec<f64> = runs.iter().map(|(figures, _)| of(figures)).collect();
        Estimate::of(&values).expect("there is a seed")
    };
    let value = |(name, unit, of): Row| Value {
        name,
        unit,
        measured: of(&was),
        replayed: estimate(&replayed, of),
        asked: other.as_ref().map(|runs| estimate(runs, of)),
    };
    Ok(Comparison {
        requests: recorded.len(),
        seeds,
        how,
        values: VALUES.map(value).into(),
        refused: [replayed[0].1, other.as_ref().map_or(0, |runs| runs[0].1)],
    })
}

fn over_seeds(trace: &Trace, asked: &Overrides, how: Loop, seeds: u64) -> Result<Vec<(Figures, u64)>, String> {
    let run = |seed: u64| {
        let config = |(i, target)| {
            let mut config = TargetConfig::of(target, asked, i)?;
            config.seed = config.seed.wrapping_add(seed);
            Ok(config)
        };
        let configs: Vec<TargetConfig> = (0..).zip(&trace.targets).map(config).collect::<Result<_, String>>()?;
        let Outcome { records, refused, .. } = run(trace, &configs, how)?;
        Ok((Figures::of(|| records.iter()), refused))
    };
    (0..seeds.max(1)).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_the_change_on_what_was_measured_with_the_replays_error_as_its_range() {
        let estimate = |mean| Estimate::of(&[mean]).unwrap();
        let v = Value {
            name: "bandwidth",
            unit: "MB/s",
            measured: 100.0,
            replayed: estimate(90.0),
            asked: Some(estimate(135.0)),
        };
        assert!((v.error() + 0.1).abs() < 1e-12 && (v.change().unwrap() - 0.5).abs() < 1e-12);
        let (value, range) = v.predicted().unwrap();
        assert!((value - 150.0).abs() < 1e-9 && (range - 15.0).abs() < 1e-9, "{value} {range}");
        let none = Value { measured: 0.0, replayed: estimate(0.0), asked: Some(estimate(0.0)), ..v };
        assert_eq!((none.error(), none.change(), none.predicted()), (0.0, Some(0.0), Some((0.0, 0.0))));
        let grown = Value { asked: Some(estimate(3.0)), measured: 1.0, ..none };
        assert_eq!(grown.predicted(), None, "a queue that was empty cannot grow by a share");
    }
}
