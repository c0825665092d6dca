//! Figures of several measurements.
use serde::Serialize;

/// Sum, extremes, mean and spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// All together.
    pub sum: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    /// Standard deviation of the sample; 0 for fewer than two.
    pub deviation: f64,
}

impl Summary {
    /// Of some figures; all zero without any.
    #[must_use]
    pub fn of(figures: &[f64]) -> Summary {
        let Some(first) = figures.first() else { return Summary::default() };
        let (count, sum) = (figures.len(), figures.iter().sum::<f64>());
        let mean = sum / count as f64;
        let squares: f64 = figures.iter().map(|f| (f - mean).powi(2)).sum();
        Summary {
            count,
            sum,
            min: figures.iter().copied().fold(*first, f64::min),
            max: figures.iter().copied().fold(*first, f64::max),
            mean,
            deviation: if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 },
        }
    }
}

/// MB/s (10^6) of bytes in ns; 0 when no time passed.
#[must_use]
pub fn mb_per_s(bytes: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { bytes as f64 * 1e3 / ns as f64 }
}

/// The numbers of a range `FROM-TO` in powers of two, or of a list `A,B,C`.
///
/// # Errors
/// What cannot be read, or is outside `1..=most`.
pub fn numbers(text: &str, most: u64, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Vec<u64>, String> {
    let one = |t: &str| match parse(t.trim()) {
        Ok(n) if (1..=most).contains(&n) => Ok(n),
        Ok(n) => Err(format!("'{text}': {n} is outside 1..={most}")),
        Err(e) => Err(format!("'{text}': {e}")),
    };
    let Some((from, to)) = text.split_once('-') else { return text.split(',').map(one).collect() };
    let (from, to) = (one(from)?, one(to)?);
    if from > to {
        return Err(format!("'{text}' goes downwards"));
    }
    let doubled = std::iter::successors(Some(from), |n| n.checked_mul(2));
    let mut numbers: Vec<u64> = doubled.take_while(|n| *n <= to).collect();
    if numbers.last() != Some(&to) {
        numbers.push(to);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_what_it_says() {
        let s = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((s.count, s.sum, s.min, s.max, s.mean), (8, 40.0, 2.0, 9.0, 5.0));
        assert!((s.deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[3.0]).deviation, 0.0);
    }

    #[test]
    fn rates_are_decimal() {
        assert_eq!(mb_per_s(5_000_000, 1_000_000_000), 5.0);
        assert_eq!(mb_per_s(1, 0), 0.0);
    }

    #[test]
    fn ranges_double_and_lists_are_as_written() {
        let read = |t: &str| numbers(t, 1 << 30, types::parse_size);
        assert_eq!(read("1-8").unwrap(), [1, 2, 4, 8]);
        assert_eq!(read("1-6").unwrap(), [1, 2, 4, 6]);
        assert_eq!(read("64K-256K").unwrap(), [65536, 131072, 262144]);
        assert_eq!(read("3, 1,2").unwrap(), [3, 1, 2]);
        for wrong in ["", "0", "8-1", "1-", "x", "1,,2", "2G", "1-2G"] {
            assert!(read(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
