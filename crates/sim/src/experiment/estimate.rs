//! A mean over seeds, and how sure it is.

/// What the seeds of a point gave for one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean over the seeds.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t); 0 with one seed.
    pub half_width: f64,
    /// Least value of a seed.
    pub least: f64,
    /// Greatest value of a seed.
    pub greatest: f64,
    /// Seeds.
    pub seeds: usize,
}

/// 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The quantile for `n` values. Above 31 values a series in 1/n, within 0.001.
fn t(n: usize) -> f64 {
    let freedom = n - 1;
    T.get(freedom.wrapping_sub(1))
        .copied()
        .unwrap_or_else(|| 1.960 + 2.372 / freedom as f64 + 2.8 / (freedom * freedom) as f64)
}

impl Estimate {
    /// Of one value per seed; `None` without any.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let half_width = if n > 1 { t(n) * (squares / (n - 1) as f64 / n as f64).sqrt() } else { 0.0 };
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Estimate { mean, half_width, least, greatest, seeds: n })
    }
    /// Whether the interval has values on both sides of a bound: another set of seeds may be judged otherwise.
    #[must_use]
    pub fn straddles(&self, bound: f64) -> bool {
        (self.mean - bound).abs() < self.half_width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let e = Estimate::of(&[9.0, 10.0, 11.0, 12.0, 8.0]).unwrap();
        // Standard deviation 1.5811, t(4) = 2.776.
        assert!((e.mean - 10.0).abs() < 1e-12 && (e.half_width - 1.963).abs() < 1e-3, "{e:?}");
        assert_eq!((e.least, e.greatest, e.seeds), (8.0, 12.0, 5));
        assert!(e.straddles(11.5) && !e.straddles(12.0));
        let one = Estimate::of(&[3.0]).unwrap();
        assert_eq!((one.half_width, one.straddles(3.0)), (0.0, false));
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn quantiles_of_many_seeds_follow_those_of_few() {
        // Student's t at 97.5 %: 40 degrees 2.0211, 100 degrees 1.9840.
        assert!((t(41) - 2.0211).abs() < 1e-3 && (t(101) - 1.9840).abs() < 1e-3, "{} {}", t(41), t(101));
        assert!(t(31) > t(32) && t(32) > t(60));
    }
}
