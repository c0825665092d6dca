//! Metrics for Prometheus: what this process's nodes count, over HTTP.
//!
//! Nodes declare what they count once, in their own crates, and parameter pages and metrics are read from the same counters;
//! here is the table of all, the question to the shard, and how answers become text (`text`) and travel ([`crate::http`]). The shard
//! only adds numbers up; text is made, and sockets are waited for, on threads of their own.
mod ask;
mod endpoint;
mod page;
mod process;
mod text;

pub use ask::{Measure, Servers};
pub use endpoint::{Endpoint, address_of};
pub use page::{list, reference_markdown};

use types::metric::Metric;

types::metrics! {
    /// Metrics of the process.
    OWN:
    /// Version of the program; the value is 1.
    BUILD_INFO = Gauge("stria_build_info", ["version"], "", "");
    /// Whether the process is ready to serve (1), as /readyz says it.
    READY = Gauge("stria_ready", [], "", "lustre_health_check");
    /// Time that the shard took to collect this scrape's values; requests waited meanwhile.
    COLLECT_SECONDS = Gauge("stria_metrics_collect_seconds", [], "", "");
    /// Processor time of the process.
    CPU_SECONDS = Counter("process_cpu_seconds_total", [], "", "");
    /// Memory of the process that is in RAM.
    RESIDENT_BYTES = Gauge("process_resident_memory_bytes", [], "", "");
    /// Address space of the process.
    VIRTUAL_BYTES = Gauge("process_virtual_memory_bytes", [], "", "");
    /// Open file descriptors.
    OPEN_FDS = Gauge("process_open_fds", [], "", "");
    /// File descriptors that may be open.
    MAX_FDS = Gauge("process_max_fds", [], "", "");
    /// Threads.
    THREADS = Gauge("process_threads", [], "", "");
    /// When the process started, in seconds since 1970.
    START_SECONDS = Gauge("process_start_time_seconds", [], "", "");
}

/// Every metric that there is, with the processes that have it.
#[must_use]
pub fn table() -> Vec<(&'static str, &'static [&'static Metric])> {
    vec![
        ("every process", OWN),
        ("every process", types::metric::OF_METRICS),
        ("metadata and object storage servers", types::metric::target::METRICS),
        ("metadata servers", mds::METRICS),
        ("object storage servers", oss::METRICS),
        ("mounts", client::METRICS),
    ]
}

/// A name that two metrics have, or that Prometheus would not take for what it is.
///
/// # Errors
/// Which one.
pub fn check<'a>(metrics: impl Iterator<Item = &'a Metric>) -> Result<(), String> {
    use types::metric::Kind;
    let mut names = std::collections::BTreeSet::new();
    for m in metrics {
        let name = m.name;
        let derived: &[&str] = match m.kind {
            Kind::Counter | Kind::Gauge => &[""],
            Kind::Summary => &["", "_sum", "_count"],
            Kind::Histogram => &["", "_sum", "_count", "_bucket"],
        };
        if let Some(twice) = derived.iter().map(|d| format!("{name}{d}")).find(|n| !names.insert(n.clone())) {
            return Err(format!("two metrics have the name {twice}"));
        }
        let legal = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_lowercase())
                && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        if !legal(name) || !m.labels.iter().all(|l| legal(l) && !["le", "quantile"].contains(l)) {
            return Err(format!("metric {name}{:?}: names have letters, digits and '_' only", m.labels));
        }
        if name.ends_with("_total") != (m.kind == Kind::Counter) {
            return Err(format!("metric {name}: counters, and only they, end in _total"));
        }
        if m.help.trim().is_empty() {
            return Err(format!("metric {name}: it has no help"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::metric::Kind;

    fn all() -> impl Iterator<Item = &'static Metric> {
        table().into_iter().flat_map(|(_, list)| list.iter().copied())
    }

    #[test]
    fn every_metric_has_a_name_of_its_own_that_says_its_unit() {
        check(all()).unwrap();
        for m in all() {
            for foreign in ["kilobytes", "_kb", "_ms", "usec", "millisec", "_mb"] {
                assert!(!m.name.contains(foreign), "{}: seconds and bytes are the units", m.name);
            }
            assert!(m.help.trim().ends_with(['.', ':']) && !m.help.contains('|'), "{}: {}", m.name, m.help);
        }
    }

    #[test]
    fn a_name_that_comes_twice_is_refused() {
        let metric = |name, kind| Metric { name, kind, labels: &[], help: "x.", param: "", lustre: "" };
        let why = |list: &[Metric]| check(list.iter()).unwrap_err();
        let twice = [metric("a_bytes", Kind::Gauge), metric("a_bytes", Kind::Gauge)];
        assert_eq!(why(&twice), "two metrics have the name a_bytes");
        let derived = [metric("a_bytes", Kind::Histogram), metric("a_bytes_count", Kind::Gauge)];
        assert_eq!(why(&derived), "two metrics have the name a_bytes_count");
        assert!(why(&[metric("a", Kind::Counter)]).contains("_total"));
        assert!(why(&[metric("a_total", Kind::Gauge)]).contains("_total"));
        assert!(why(&[metric("a-b", Kind::Gauge)]).contains("letters"));
    }
}
