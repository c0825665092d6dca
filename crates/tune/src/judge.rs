//! Whether one side is better than another: gains with their intervals, and what is sure enough to be recommended.
//!
//! Pure. Two sides are compared pair by pair, by the logarithm of their ratio, so that a factor two up and a factor two down
//! are equally far from nothing. Decides nothing about what is measured, or how often.
use serde::Serialize;
use sim::experiment::Estimate;

/// A gain counts when the whole interval lies above this share.
pub const THRESHOLD: f64 = 0.03;
/// Pairs below which nothing is recommended.
pub const PAIRS_MIN: usize = 3;

/// How much better one side is than the other, as a share: 0.25 is 25 % more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The mean.
    pub mean: f64,
    /// Lower end of its 95 % interval (Student's t over the pairs).
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Pairs behind it.
    pub pairs: usize,
}

impl Gain {
    /// Of pairs of scores, the base's first; `None` with fewer than two, which have no interval.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Gain> {
        let are_rates = pairs.iter().all(|(a, b)| [a, b].iter().all(|x| x.is_finite() && **x > 0.0));
        if pairs.len() < 2 || !are_rates {
            return None;
        }
        let logs: Vec<f64> = pairs.iter().map(|(base, other)| (other / base).ln()).collect();
        let e = Estimate::of(&logs)?;
        let share = |log: f64| log.exp() - 1.0;
        let (low, high) = (share(e.mean - e.half_width), share(e.mean + e.half_width));
        Some(Gain { mean: share(e.mean), low, high, pairs: pairs.len() })
    }

    /// Several gains one on top of the other; intervals as of independent measurements. `None` without any.
    #[must_use]
    pub fn product(gains: &[Gain]) -> Option<Gain> {
        let pairs = gains.iter().map(|g| g.pairs).min()?;
        let log: f64 = gains.iter().map(|g| g.mean.ln_1p()).sum();
        let side = |half: fn(&Gain) -> f64| gains.iter().map(|g| half(g).powi(2)).sum::<f64>().sqrt();
        let (below, above) = (side(|g| g.mean.ln_1p() - g.low.ln_1p()), side(|g| g.high.ln_1p() - g.mean.ln_1p()));
        let share = |log: f64| log.exp() - 1.0;
        Some(Gain { mean: share(log), low: share(log - below), high: share(log + above), pairs })
    }

    /// Whether it is worth recommending: the whole interval lies above [`THRESHOLD`].
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.pairs >= PAIRS_MIN && self.low > THRESHOLD
    }
    /// Whether it is worth being measured anew: large enough, and more than 1.4 standard errors (of three pairs) from
    /// nothing.
    #[must_use]
    pub fn is_promising(&self) -> bool {
        let log = self.mean.ln_1p();
        self.mean > THRESHOLD && log > (log - self.low.ln_1p()) / 3.0
    }
    /// Whether it is sure that this side is worse.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.pairs >= PAIRS_MIN && self.high < 0.0
    }
    /// In percent, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let percent = |share: f64| format!("{:+.1}", share * 100.0);
        format!("{} % ({} to {})", percent(self.mean), percent(self.low), percent(self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_that_of_the_ratios_with_students_interval() {
        // Ratios 1.2, 1.25, 1.3: logs 0.18232, 0.22314, 0.26236; mean 0.22261, deviation 0.04002, t(2) = 4.303.
        let g = Gain::of(&[(100.0, 120.0), (80.0, 100.0), (50.0, 65.0)]).unwrap();
        let half: f64 = 4.303 * 0.040_024 / 3f64.sqrt();
        assert!((g.mean - (0.222_61f64.exp() - 1.0)).abs() < 1e-4, "{g:?}");
        assert!((g.low - ((0.222_61 - half).exp() - 1.0)).abs() < 1e-3, "{g:?}");
        assert!(g.is_sure() && g.is_promising() && !g.is_loss());
        assert_eq!(g.text(), "+24.9 % (+13.1 to +38.0)");
    }

    #[test]
    fn what_is_not_sure_is_not_recommended() {
        let gain = |ratios: &[f64]| Gain::of(&ratios.iter().map(|r| (1.0, *r)).collect::<Vec<_>>()).unwrap();
        assert!(!gain(&[1.5, 0.9, 1.4]).is_sure(), "the interval reaches below nothing");
        assert!(!gain(&[1.02, 1.02, 1.02]).is_sure(), "sure, but too small");
        assert!(!gain(&[1.5, 1.5]).is_sure(), "too few pairs");
        assert!(gain(&[0.8, 0.81, 0.79]).is_loss() && !gain(&[0.8, 1.1, 0.9]).is_loss());
        assert_eq!(Gain::of(&[(1.0, 1.0)]), None);
        assert_eq!(Gain::of(&[(1.0, 1.0), (0.0, 1.0), (1.0, f64::NAN)]), None);
    }

    #[test]
    fn gains_multiply_and_their_errors_add_in_quadrature() {
        let g = |mean: f64, low: f64, high: f64| Gain { mean, low, high, pairs: 5 };
        let p = Gain::product(&[g(0.5, 0.4, 0.6), g(0.2, 0.2, 0.2)]).unwrap();
        assert!((p.mean - 0.8).abs() < 1e-12 && (p.low - 0.68).abs() < 1e-9 && (p.high - 0.92).abs() < 1e-9, "{p:?}");
        let twice = Gain::product(&[g(0.5, 0.4, 0.6), g(0.5, 0.4, 0.6)]).unwrap();
        assert!(twice.low > 1.4 * 1.4 - 1.0 && twice.low < 1.5 * 1.4 - 1.0, "{twice:?}");
        assert_eq!(Gain::product(&[]), None);
    }
}
