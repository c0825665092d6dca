//! Measured values: a histogram of nanoseconds, a running state hash, and named metrics with units.
//!
//! Declares no metric by itself: each world pushes its own under the names that scenarios expect.

pub use simworld::StateHash;

/// Sub-buckets per power of two: values are kept within 1/128, 0.8 %.
const SUB_BITS: u32 = 7;
const SUB: usize = 1 << SUB_BITS;

/// A log-linear histogram of nanoseconds with exact minimum, maximum and sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u32>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        let i = Self::bucket(ns);
        if i >= self.counts.len() {
            self.counts.resize(i + 1, 0);
        }
        self.counts[i] += 1;
        self.count += 1;
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }
    /// Values counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
    /// Greatest value, exact.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }
    /// Mean, exact; 0 when empty.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }
    /// The value below which a share `q` (0..=1) of all lie, within 0.8 %; 0 when empty.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = ((self.count as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += u64::from(*n);
            if seen >= rank {
                return Self::upper(i).min(self.max);
            }
        }
        self.max
    }
    /// Adds another histogram's values.
    pub fn add(&mut self, other: &Histogram) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    #[inline]
    fn bucket(ns: u64) -> usize {
        if ns < SUB as u64 {
            return ns as usize;
        }
        let shift = 63 - ns.leading_zeros() - SUB_BITS;
        ((shift as usize + 1) << SUB_BITS) + ((ns >> shift) as usize & (SUB - 1))
    }
    fn upper(bucket: usize) -> u64 {
        if bucket < SUB {
            return bucket as u64;
        }
        let shift = (bucket >> SUB_BITS) - 1;
        (((SUB + (bucket & (SUB - 1))) as u64 + 1) << shift) - 1
    }
}

/// A named value.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name, as scenarios expect it.
    pub name: String,
    /// Unit, in words.
    pub unit: &'static str,
    /// Value.
    pub value: f64,
}

/// Metrics in the order in which they were pushed, and curves for plots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Single values.
    pub values: Vec<Metric>,
    /// Curves over virtual time or another axis: name, points.
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}

impl Metrics {
    /// Adds a value.
    pub fn push(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.values.push(Metric { name: name.into(), unit, value });
    }
    /// Adds median, 99th percentile, maximum and mean of response times in seconds, for requests of `kind`.
    pub fn push_times(&mut self, kind: &str, h: &Histogram) {
        let s = |ns: u64| ns as f64 / 1e9;
        self.push(format!("response_time_p50_s.{kind}"), "s", s(h.quantile(0.5)));
        self.push(format!("response_time_p99_s.{kind}"), "s", s(h.quantile(0.99)));
        self.push(format!("response_time_max_s.{kind}"), "s", s(h.max()));
        self.push(format!("response_time_mean_s.{kind}"), "s", h.mean() / 1e9);
        self.push(format!("requests.{kind}"), "requests", h.count() as f64);
    }
    /// The value called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|m| m.name == name).map(|m| m.value)
    }
    /// The curve called `name`.
    #[must_use]
    pub fn curve(&self, name: &str) -> Option<&[(f64, f64)]> {
        self.curves.iter().find(|c| c.0 == name).map(|c| &c.1[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_within_one_percent() {
        let mut h = Histogram::default();
        for i in 1..=100_000u64 {
            h.record(i * 1000);
        }
        for (q, want) in [(0.5, 50_000_000.0), (0.99, 99_000_000.0), (1.0, 100_000_000.0)] {
            let got = h.quantile(q) as f64;
            assert!((got / want - 1.0).abs() < 0.01, "{q}: {got}");
        }
        assert_eq!(h.max(), 100_000_000);
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }

    #[test]
    fn adding_histograms_is_recording_both() {
        let (mut a, mut b, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for i in 0..1000u64 {
            let v = i * i * 37;
            if i % 3 == 0 {
                a.record(v)
            } else {
                b.record(v)
            }
            both.record(v);
        }
        a.add(&b);
        assert_eq!(a, both);
    }

    #[test]
    fn the_order_of_events_changes_the_hash() {
        let (mut a, mut b) = (StateHash::default(), StateHash::default());
        a.event(1, 2, 3, 4);
        a.event(5, 6, 7, 8);
        b.event(5, 6, 7, 8);
        b.event(1, 2, 3, 4);
        assert_ne!(a, b);
    }
}
