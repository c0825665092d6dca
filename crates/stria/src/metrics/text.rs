//! The text exposition format of Prometheus, version 0.0.4.
//!
//! Source: prometheus.io/docs/instrumenting/exposition_formats. Written here because the values live on another thread and
//! exist as numbers for a moment only: a registry of a library would be a second place for each of them.
use std::fmt::Write as _;

use types::metric::{Metric, Series, Snapshot, Value};

/// The format's media type.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Adds every metric of a snapshot to `out`.
pub fn write(out: &mut String, snapshot: &Snapshot) {
    for family in snapshot.families() {
        let m = family.metric;
        let help = m.help.trim().replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(out, "# HELP {} {help}\n# TYPE {0} {}", m.name, m.kind.name());
        family.series.iter().for_each(|s| series(out, m, s));
    }
}

fn series(out: &mut String, metric: &Metric, s: &Series) {
    let mut line = |suffix: &str, le: Option<&str>, value: f64| {
        let _ = write!(out, "{}{suffix}", metric.name);
        let labels = metric.labels.iter().copied().zip(s.labels.iter().map(String::as_str));
        let mut open = '{';
        for (name, value) in labels.chain(le.map(|le| ("le", le))) {
            let _ = write!(out, "{open}{name}=\"");
            escape(out, value);
            out.push('"');
            open = ',';
        }
        if open == ',' {
            out.push('}');
        }
        let _ = writeln!(out, " {}", number(value));
    };
    match &s.value {
        Value::Number(n) => line("", None, *n),
        Value::Summary(sum, count) => {
            line("_sum", None, *sum);
            line("_count", None, *count as f64);
        }
        Value::Histogram { buckets, sum, count } => {
            for (bound, values) in buckets {
                line("_bucket", Some(&number(*bound)), *values as f64);
            }
            line("_bucket", Some("+Inf"), *count as f64);
            line("_sum", None, *sum);
            line("_count", None, *count as f64);
        }
    }
}

/// A label's value: backslash, quote and line feed are escaped.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

fn number(n: f64) -> String {
    match n {
        n if n.is_nan() => "NaN".into(),
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::stats::{Histogram, Scale};

    types::metrics! {
        TESTED:
        /// What a \ and
        /// a second line become.
        NAMED = Counter("named_total", ["who", "what"], "", "");
        /// Sizes.
        SIZES = Histogram("size_bytes", ["who"], "", "");
        /// Times.
        TIMES = Summary("time_seconds", [], "", "");
    }

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut s = Snapshot::default();
        s.add(&NAMED, &["a\"b\\c\nd", "é"], 3u64);
        let mut sizes = Histogram::new(Scale::Doubling);
        [1, 2, 2, 1 << 40].into_iter().for_each(|v| sizes.add(v));
        s.add(&SIZES, &["x"], sizes.value(&[1, 2], 4096.0));
        s.add(&TIMES, &[], Value::Summary(0.25, 7));
        let mut out = String::new();
        write(&mut out, &s);
        let expected = "# HELP named_total What a \\\\ and a second line become.
# TYPE named_total counter
named_total{who=\"a\\\"b\\\\c\\nd\",what=\"é\"} 3
# HELP size_bytes Sizes.
# TYPE size_bytes histogram
size_bytes_bucket{who=\"x\",le=\"4096\"} 1
size_bytes_bucket{who=\"x\",le=\"8192\"} 3
size_bytes_bucket{who=\"x\",le=\"+Inf\"} 4
size_bytes_sum{who=\"x\"} 4503599627390976
size_bytes_count{who=\"x\"} 4
# HELP time_seconds Times.
# TYPE time_seconds summary
time_seconds_sum 0.25
time_seconds_count 7
";
        // 5 pages and 2^40 more.
        let expected = expected.replace("4503599627390976", &((5.0 + (1u64 << 40) as f64) * 4096.0).to_string());
        assert_eq!((out.as_str(), TESTED.len()), (expected.as_str(), 3));
    }

    #[test]
    fn numbers_that_are_none_have_their_names() {
        assert_eq!(
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e9, 0.5].map(number),
            ["NaN", "+Inf", "-Inf", "1000000000", "0.5"]
        );
    }
}
