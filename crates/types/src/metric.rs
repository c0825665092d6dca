//! Metrics: what each is called, what it counts and which parameter tells the same; and a moment's values of them. Nodes
//! declare what they count once, and both the parameter page and the metric are read from there.
//!
//! Names follow Prometheus: base units (seconds, bytes), counters end in `_total`. How values travel is not decided here.
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::stats::Histogram;

/// How a metric's values are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It never goes down but when counting starts anew.
    Counter,
    /// It goes up and down.
    Gauge,
    /// A sum and how many values it is of.
    Summary,
    /// How many values were at most so large, for several sizes.
    Histogram,
}

impl Kind {
    /// Its name in the exposition format.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Summary => "summary",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric's declaration.
#[derive(Debug)]
pub struct Metric {
    /// Name, with the unit at its end.
    pub name: &'static str,
    /// How to read it.
    pub kind: Kind,
    /// Names of its labels, in the order in which values are given.
    pub labels: &'static [&'static str],
    /// A sentence.
    pub help: &'static str,
    /// The pattern of the parameters that tell the same; empty: none does.
    pub param: &'static str,
    /// What exporters for Lustre call it; empty: they have no such thing.
    pub lustre: &'static str,
}

/// Declares metrics, and a list of them: `NAME = Kind("name", ["label", ..], "parameter", "name of Lustre's exporters");`
/// with the help as its doc comment.
#[macro_export]
macro_rules! metrics {
    ($(#[doc = $doc:literal])* $vis:vis $list:ident: $(
        $(#[doc = $help:literal])+
        $name:ident = $kind:ident($metric:literal, [$($label:literal),*], $param:literal, $lustre:literal);
    )*) => {
        $(
            $(#[doc = $help])+
            $vis static $name: $crate::metric::Metric = $crate::metric::Metric {
                name: $metric,
                kind: $crate::metric::Kind::$kind,
                labels: &[$($label),*],
                help: concat!($($help),+),
                param: $param,
                lustre: $lustre,
            };
        )*
        $(#[doc = $doc])*
        pub static $list: &[&$crate::metric::Metric] = &[$(&$name),*];
    };
}

/// A number that a node tells as a parameter and as a metric.
pub struct Stat<N> {
    /// The metric.
    pub metric: &'static Metric,
    /// The parameter's name, with `*` in the target's place.
    pub param: &'static str,
    /// How many of the metric's units are one of the parameter's: 1024 where that counts KiB.
    pub per: u64,
    /// Reads it, in the metric's unit.
    pub read: fn(&N) -> u64,
}

impl<N> Stat<N> {
    /// Its parameter's name for one target.
    #[must_use]
    pub fn path(&self, target: &str) -> String {
        self.param.replacen('*', target, 1)
    }
    /// Its parameter's value.
    #[must_use]
    pub fn text(&self, node: &N) -> String {
        ((self.read)(node) / self.per).to_string()
    }
}

/// What one series of a metric shows.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a summary: the sum of so many values.
    Summary(f64, u64),
    /// Of a histogram.
    Histogram {
        /// Upper bounds, each with how many values were at most so large.
        buckets: Vec<(f64, u64)>,
        /// The sum of the values.
        sum: f64,
        /// How many there were.
        count: u64,
    },
}

impl Value {
    /// Adds another value of the same metric, that is, of the same kind and with the same bounds.
    fn add(&mut self, other: Value) {
        match (self, other) {
            (Value::Number(n), Value::Number(more)) => *n += more,
            (Value::Summary(sum, count), Value::Summary(more, of)) => {
                *sum += more;
                *count += of;
            }
            (Value::Histogram { buckets, sum, count }, Value::Histogram { buckets: more, sum: of, count: values }) => {
                buckets.iter_mut().zip(more).for_each(|((_, n), (_, m))| *n += m);
                *sum += of;
                *count += values;
            }
            (own, other) => panic!("a metric has one kind of value: {own:?} and {other:?}"),
        }
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n as f64)
    }
}
impl From<usize> for Value {
    fn from(n: usize) -> Value {
        Value::Number(n as f64)
    }
}
impl From<bool> for Value {
    fn from(is: bool) -> Value {
        Value::Number(f64::from(u8::from(is)))
    }
}
impl From<f64> for Value {
    fn from(n: f64) -> Value {
        Value::Number(n)
    }
}

impl Histogram {
    /// Its values up to each of `bounds`, which are ends of its buckets; one of its units is so many of the metric's.
    #[must_use]
    pub fn value(&self, bounds: &[u64], unit: f64) -> Value {
        let buckets = bounds.iter().map(|b| (*b as f64 * unit, self.at_most(*b))).collect();
        Value::Histogram { buckets, sum: self.sum() as f64 * unit, count: self.count() }
    }
}

/// One series: the values of its metric's labels, and what it shows.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Values of the labels.
    pub labels: Vec<String>,
    /// The value.
    pub value: Value,
}

/// All series of one metric.
#[derive(Clone, Debug)]
pub struct Family {
    /// The metric.
    pub metric: &'static Metric,
    /// Its series.
    pub series: Vec<Series>,
}

/// Clients or jobs that one target shows a series of at most; the others are counted.
pub const NAMED_MAX: usize = 256;

crate::metrics! {
    /// About the metrics themselves.
    pub OF_METRICS:
    /// Series of a metric that are not shown, because a target shows 256 clients or jobs at most: those with the most, or that asked last.
    LEFT_OUT = Gauge("stria_metrics_series_left_out", ["metric"], "", "");
}

/// The values of a moment.
#[derive(Default, Debug)]
pub struct Snapshot {
    families: BTreeMap<&'static str, Family>,
}

impl Snapshot {
    /// Adds a series.
    ///
    /// # Panics
    /// When these are not as many values as the metric has labels.
    pub fn add(&mut self, metric: &'static Metric, labels: &[&str], value: impl Into<Value>) {
        assert_eq!(labels.len(), metric.labels.len(), "{} has the labels {:?}", metric.name, metric.labels);
        let family = self.families.entry(metric.name).or_insert_with(|| Family { metric, series: Vec::new() });
        let labels = labels.iter().map(ToString::to_string).collect();
        family.series.push(Series { labels, value: value.into() });
    }
    /// So many series of a metric were left out.
    pub fn leave_out(&mut self, metric: &'static Metric, count: usize) {
        let family = self.families.entry(LEFT_OUT.name);
        let family = family.or_insert_with(|| Family { metric: &LEFT_OUT, series: Vec::new() });
        match family.series.iter_mut().find(|s| s.labels[0] == metric.name) {
            Some(Series { value: Value::Number(n), .. }) => *n += count as f64,
            _ => family.series.push(Series { labels: [metric.name.to_string()].into(), value: count.into() }),
        }
    }
    /// Adds what another shard of the process measured. Series that both have are added up: what a shard has a part of is told
    /// without the part's name.
    pub fn join(&mut self, other: Snapshot) {
        for (name, theirs) in other.families {
            let ours =
                self.families.entry(name).or_insert_with(|| Family { metric: theirs.metric, series: Vec::new() });
            for series in theirs.series {
                match ours.series.iter_mut().find(|s| s.labels == series.labels) {
                    Some(same) => same.value.add(series.value),
                    None => ours.series.push(series),
                }
            }
        }
    }
    /// The metrics in the order of their names.
    pub fn families(&self) -> impl Iterator<Item = &Family> {
        self.families.values()
    }
}

/// Metrics that metadata targets and object storage targets have both.
pub mod target {
    crate::metrics! {
        /// See the module.
        pub METRICS:
        /// Size of the target's store in bytes.
        CAPACITY = Gauge("stria_capacity_bytes", ["fs", "target"], "*.*.kbytestotal", "lustre_capacity_kilobytes");
        /// Free bytes in the target's store.
        FREE = Gauge("stria_free_bytes", ["fs", "target"], "*.*.kbytesfree", "lustre_free_kilobytes");
        /// Inodes or objects that the target can hold.
        INODES_MAXIMUM = Gauge("stria_inodes_maximum", ["fs", "target"], "*.*.filestotal", "lustre_inodes_maximum");
        /// Inodes or objects that the target has room for.
        INODES_FREE = Gauge("stria_inodes_free", ["fs", "target"], "*.*.filesfree", "lustre_inodes_free");
        /// Sessions of clients with the target.
        EXPORTS = Gauge("stria_exports", ["fs", "target"], "*.*.num_exports", "lustre_exports_total");
        /// Locks in the target's table.
        LOCKS = Gauge("stria_locks", ["fs", "target"], "ldlm.namespaces.*.lock_count", "lustre_lock_count_total");
        /// Locks that were granted at once.
        LOCKS_GRANTED = Counter("stria_locks_granted_total", ["fs", "target"], "ldlm.namespaces.*.*", "");
        /// Locks that had to wait for others.
        LOCKS_WAITED = Counter("stria_locks_waited_total", ["fs", "target"], "ldlm.namespaces.*.*", "lustre_lock_contended_total");
        /// Blocking callbacks sent: locks that were asked back.
        LOCK_CALLBACKS = Counter("stria_lock_callbacks_total", ["fs", "target"], "ldlm.namespaces.*.*", "");
        /// Clients evicted because they did not give a lock back, or did not answer.
        EVICTIONS = Counter("stria_evictions_total", ["fs", "target"], "ldlm.namespaces.*.*", "");
        /// Whether the restarted target still waits for clients of before (1) or serves (0).
        RECOVERING = Gauge("stria_recovering", ["fs", "target"], "*.*.recovery_status", "recovery_status");
        /// Seconds for which the restarted target still waits for clients of before at most.
        RECOVERY_LEFT = Gauge("stria_recovery_left_seconds", ["fs", "target"], "*.*.recovery_status", "");
        /// Clients of before its restart that the target still waits for.
        RECOVERY_CLIENTS = Gauge("stria_recovery_clients_left", ["fs", "target"], "*.*.recovery_status", "");
        /// Whether the target's store failed (1): nothing is written any more until it is opened again.
        STORE_FAILED = Gauge("stria_store_failed", ["fs", "target"], "*.*.degraded", "");
        /// Times that the target's store failed and was opened again since its process started.
        STORE_REOPENED = Counter("stria_store_reopened_total", ["fs", "target"], "*.*.store_reopened", "");
        /// Places of the store that the last scrub found damaged.
        SCRUB_FAULTS = Gauge("stria_scrub_faults", ["fs", "target"], "*.*.scrub", "");
        /// Names of jobs for which there was no room.
        JOB_NAMES_LIMIT = Counter("stria_job_names_limit_hits_total", ["fs", "target"], "*.*.job_names_limit_hits", "");
        /// Requests that came to the target, by type.
        REQUESTS = Counter("stria_requests_total", ["fs", "target", "operation"], "*.*.{ops,md_stats}", "lustre_stats_total");
        /// Time that requests took at the target until they were answered, by type; what they waited for locks and in the scheduler's queue is part of it.
        REQUEST_SECONDS = Histogram("stria_request_seconds", ["fs", "target", "operation"], "*.*.latency_stats", "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Scale;
    use alloc::vec;

    metrics! {
        TESTED:
        /// Apples.
        APPLES = Counter("apples_total", ["tree"], "", "");
        /// Sizes.
        SIZES = Histogram("size_bytes", [], "", "");
    }

    #[test]
    fn what_shards_have_parts_of_is_added_up_and_the_rest_is_joined() {
        let measured = |own: &str, n: u64| {
            let mut s = Snapshot::default();
            s.add(&APPLES, &["all"], n);
            s.add(&APPLES, &[own], n);
            let mut sizes = Histogram::new(Scale::Doubling);
            sizes.add(n);
            s.add(&SIZES, &[], sizes.value(&[4, 64], 1.0));
            s
        };
        let mut all = measured("oak", 3);
        all.join(measured("elm", 50));
        let values: Vec<_> = all.families().flat_map(|f| f.series.iter().map(|s| s.value.clone())).collect();
        let sizes = Value::Histogram { buckets: vec![(4.0, 1), (64.0, 2)], sum: 53.0, count: 2 };
        assert_eq!(values, [Value::Number(53.0), Value::Number(3.0), Value::Number(50.0), sizes]);
    }

    #[test]
    fn series_are_kept_by_metric_in_the_order_of_names() {
        let mut s = Snapshot::default();
        let mut sizes = Histogram::new(Scale::Doubling);
        [1, 3, 4, 5000].into_iter().for_each(|v| sizes.add(v));
        s.add(&SIZES, &[], sizes.value(&[1, 4, 1024], 4096.0));
        s.add(&APPLES, &["a"], 3u64);
        s.add(&APPLES, &["b"], true);
        let found: Vec<_> = s.families().map(|f| (f.metric.name, f.series.len())).collect();
        assert_eq!(found, [("apples_total", 2), ("size_bytes", 1)]);
        let sizes = s.families().last().unwrap().series[0].value.clone();
        let buckets = alloc::vec![(4096.0, 1), (16384.0, 3), (4194304.0, 3)];
        assert_eq!(sizes, Value::Histogram { buckets, sum: 5008.0 * 4096.0, count: 4 });
        assert_eq!((TESTED.len(), APPLES.help), (2, " Apples."));
    }

    #[test]
    fn what_is_left_out_is_counted_by_metric() {
        let mut s = Snapshot::default();
        s.leave_out(&APPLES, 2);
        s.leave_out(&APPLES, 3);
        s.leave_out(&SIZES, 1);
        let left = s.families().next().unwrap();
        assert_eq!(left.metric.name, LEFT_OUT.name);
        assert_eq!((left.series[0].value.clone(), left.series.len()), (Value::Number(5.0), 2));
    }

    #[test]
    fn a_number_is_a_parameter_in_its_own_unit() {
        let stat = Stat { metric: &SIZES, param: "x.*.kbytes", per: 1024, read: |n: &u64| *n };
        assert_eq!((stat.path("fs-OST0000"), stat.text(&5000)), ("x.fs-OST0000.kbytes".into(), "4".into()));
    }
}
