//! How long things took, by kind: logarithmic histograms of fixed size that cost one increment per request, the text page of
//! them with quantiles, and the same as histograms for metrics.
//!
//! Idea: high dynamic range histograms (Gil Tene): a bucket's width is a part of its values, so that one array serves
//! microseconds and minutes. Times are counted in microseconds, rounded up, so that bounds of buckets hold exactly.
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::metric::{Metric, Snapshot, Value};
use crate::{Duration, WallTime, stats};

/// Buckets of one doubling: a bucket's upper end is at most a quarter above its lower end.
const PARTS: usize = 4;
/// The last doubling that has buckets of its own ends at 2^28 microseconds: 268 seconds.
const DOUBLINGS_MAX: u32 = 28;
/// The last bucket holds all longer times.
const BUCKETS: usize = PARTS * (DOUBLINGS_MAX as usize - 1) + 1;
/// Powers of two of microseconds that are bounds in metrics: 8 microseconds to 34 seconds.
const BOUNDS: core::ops::RangeInclusive<u32> = 3..=25;

/// How often something took how long.
#[derive(Clone, PartialEq, Eq)]
pub struct Latency {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl core::fmt::Debug for Latency {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} in {} ns", self.count(), self.sum_ns)
    }
}

/// The bucket of a time above 0; 0 counts as one microsecond.
fn bucket_of(us: u64) -> usize {
    let below = us.saturating_sub(1);
    if below < PARTS as u64 {
        return below as usize;
    }
    let doubling = below.ilog2();
    let part = (below >> (doubling - 2)) as usize & (PARTS - 1);
    (PARTS * (doubling as usize - 1) + part).min(BUCKETS - 1)
}

/// The greatest time of a bucket in microseconds; of the last one, where it begins.
fn end_of(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64 + 1;
    }
    let (doubling, part) = (bucket / PARTS + 1, bucket % PARTS);
    ((PARTS + part + 1) as u64) << (doubling - 2)
}

impl Latency {
    /// Takes a time in.
    pub fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns.div_ceil(1000))] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }
    /// Times taken in.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }
    /// The time that so many of a thousand did not exceed, as the end of its bucket: at most a quarter too long. `None` of
    /// nothing; above 268 s the answer is 268 s.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<Duration> {
        let count = self.count();
        // The smallest number of times that are at least this share.
        let rank = (u128::from(count) * u128::from(per_mille.min(1000))).div_ceil(1000).max(1) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|n| {
            seen += n;
            seen >= rank
        })?;
        Some(Duration::from_micros(end_of(bucket.min(BUCKETS - 2))))
    }
    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Latency) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(to, n)| *to += n);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
    /// What was counted since `earlier`, a look at the same histogram; all of it when counting started anew between.
    #[must_use]
    pub fn since(&self, earlier: &Latency) -> Latency {
        let counts = self.counts.iter().zip(&earlier.counts);
        if counts.clone().any(|(now, then)| now < then) {
            return self.clone();
        }
        let mut out = Latency { sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns), ..Latency::default() };
        out.counts.iter_mut().zip(counts).for_each(|(to, (now, then))| *to = now - then);
        out
    }
    /// As a histogram of seconds, with a bound at every doubling.
    #[must_use]
    pub fn value(&self) -> Value {
        let below = |power: u32| self.counts[..PARTS * (power as usize - 1)].iter().sum();
        let buckets = BOUNDS.map(|power| ((1u64 << power) as f64 / 1e6, below(power))).collect();
        Value::Histogram { buckets, sum: self.sum_ns as f64 / 1e9, count: self.count() }
    }
    /// `NAME COUNT samples [usecs] p50 N p90 N p99 N sum N buckets END:COUNT ...`, if there are any.
    pub fn line(&self, out: &mut String, name: &str) {
        let us = |per_mille| self.quantile(per_mille).unwrap_or_default().as_micros();
        if self.count() == 0 {
            return;
        }
        let (count, sum) = (self.count(), self.sum_ns / 1000);
        let _ = write!(out, "{name:<25} {count} samples [usecs] p50 {} p90 {} p99 {}", us(500), us(900), us(990));
        let _ = write!(out, " sum {sum} buckets");
        for (bucket, n) in self.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let _ = write!(out, " {}:{n}", end_of(bucket));
        }
        out.push('\n');
    }
    /// Reads a line of [`Latency::line`]: its name and its histogram. `None` for any other line.
    #[must_use]
    pub fn parse(line: &str) -> Option<(&str, Latency)> {
        let (head, buckets) = line.split_once(" buckets")?;
        let mut words = head.split_ascii_whitespace();
        let name = words.next()?;
        let sum_us: u64 = words.skip_while(|w| *w != "sum").nth(1)?.parse().ok()?;
        let mut out = Latency { sum_ns: sum_us.saturating_mul(1000), ..Latency::default() };
        for pair in buckets.split_ascii_whitespace() {
            let (end, count) = pair.split_once(':')?;
            let place = &mut out.counts[bucket_of(end.parse().ok()?)];
            *place = place.checked_add(count.parse().ok()?)?;
        }
        out.counts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n)).map(|_| (name, out))
    }
}

/// Histograms of things of several kinds, each made when the first of its kind is counted.
#[derive(Clone, Debug)]
pub struct Latencies<K>(BTreeMap<K, Latency>);

impl<K> Default for Latencies<K> {
    fn default() -> Latencies<K> {
        Latencies(BTreeMap::new())
    }
}

impl<K: Ord + Copy> Latencies<K> {
    /// Something of this kind took so long.
    pub fn add(&mut self, kind: K, took: Duration) {
        self.0.entry(kind).or_default().add(took);
    }
    /// Starts counting anew.
    pub fn clear(&mut self) {
        self.0.clear();
    }
    /// Every kind that there was, in the order of kinds.
    pub fn each(&self) -> impl Iterator<Item = (K, &Latency)> {
        self.0.iter().map(|(kind, latency)| (*kind, latency))
    }
    /// The page `latency_stats`: the three lines of times, then a line for each kind, by the names that `name` gives.
    #[must_use]
    pub fn text(&self, (started, now): (WallTime, WallTime), name: impl Fn(K) -> &'static str) -> String {
        let mut out = stats::times(started, now);
        self.each().for_each(|(kind, latency)| latency.line(&mut out, name(kind)));
        out
    }
    /// Adds them to a metric whose last label is the kind.
    pub fn measure(&self, metric: &'static Metric, at: &[&str], name: impl Fn(K) -> &'static str, into: &mut Snapshot) {
        for (kind, latency) in self.each() {
            let labels: Vec<&str> = at.iter().copied().chain([name(kind)]).collect();
            into.add(metric, &labels, latency.value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(us: &[u64]) -> Latency {
        let mut l = Latency::default();
        us.iter().for_each(|us| l.add(Duration::from_micros(*us)));
        l
    }

    #[test]
    fn buckets_follow_each_other_without_gap_and_hold_their_upper_end() {
        let mut before = 0;
        for bucket in 0..BUCKETS - 1 {
            let end = end_of(bucket);
            assert!(end > before && (bucket < PARTS || end * 4 <= (before + 1) * 5), "{bucket}: {before}..{end}");
            assert_eq!((bucket_of(before + 1), bucket_of(end)), (bucket, bucket));
            before = end;
        }
        assert_eq!(
            (before, bucket_of(before + 1), bucket_of(u64::MAX), bucket_of(0)),
            (1 << 28, BUCKETS - 1, BUCKETS - 1, 0)
        );
    }

    #[test]
    fn quantiles_are_those_of_the_values_up_to_a_quarter() {
        let l = of(&(1..=1000).collect::<Vec<_>>());
        for (per_mille, us) in [(500, 500), (900, 900), (990, 990), (1000, 1000), (0, 1)] {
            let found = l.quantile(per_mille).unwrap().as_micros() as u64;
            assert!((us..=us * 5 / 4).contains(&found), "{per_mille}: {found}");
        }
        assert_eq!(Latency::default().quantile(500), None);
        assert_eq!(of(&[1 << 40]).quantile(500), Some(Duration::from_micros(1 << 28)));
    }

    #[test]
    fn bounds_of_metrics_hold_exactly() {
        let mut l = of(&[8, 16, 17]);
        l.add(Duration::from_nanos(8001));
        let Value::Histogram { buckets, sum, count } = l.value() else { panic!() };
        assert_eq!(buckets[..3], [(8e-6, 1), (16e-6, 3), (32e-6, 4)]);
        assert_eq!((buckets.len(), buckets[22], sum, count), (23, (33.554432, 4), 49.001e-6, 4));
    }

    #[test]
    fn a_line_is_read_back_as_it_was_and_nonsense_is_not() {
        let mut l = of(&[0, 3, 3, 900, 1 << 30]);
        let mut out = String::new();
        l.line(&mut out, "read");
        let head = "read                      5 samples [usecs] p50 3 p90 268435456 p99 268435456 sum 1073742730 buckets 1:1 3:2 1024:1 ";
        assert!(out.starts_with(head), "{out}");
        assert_eq!(Latency::parse(out.trim()), Some(("read", l.clone())));
        let earlier = l.clone();
        l.add(Duration::from_micros(7));
        assert_eq!(l.since(&earlier), of(&[7]));
        assert_eq!(of(&[7]).since(&l), of(&[7]), "counting started anew");
        let mut both = earlier.clone();
        both.merge(&of(&[7]));
        assert_eq!(both, l);
        for line in [
            "",
            "read",
            "read 1 samples [usecs] 1 1 1 1",
            "r sum x buckets 1:1",
            "r sum 1 buckets 1",
            "r sum 1 buckets 1:-1",
            "r sum 1 buckets 1:18446744073709551615 1:1",
            "r sum 1 buckets 1:18446744073709551615 9:1",
        ] {
            assert_eq!(Latency::parse(line), None, "{line}");
        }
    }

    #[test]
    fn kinds_are_counted_apart_and_shown_by_name() {
        let mut l = Latencies::default();
        l.add(2u8, Duration::from_micros(9));
        l.add(1, Duration::from_micros(5));
        let text = l.text((WallTime(0), WallTime(1)), |k| if k == 1 { "one" } else { "two" });
        let lines: Vec<_> = text.lines().skip(3).filter_map(|l| l.split(' ').next()).collect();
        assert_eq!(lines, ["one", "two"]);
        l.clear();
        assert_eq!(l.each().count(), 0);
    }
}
