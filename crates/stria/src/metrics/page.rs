//! The table of metrics in words: for terminals and as the reference page.
use types::metric::{Metric, NAMED_MAX};

use super::table;

/// Every metric: name, type, labels, help.
#[must_use]
pub fn list() -> String {
    let mut out = String::new();
    for m in table().into_iter().flat_map(|(_, list)| list.iter()) {
        out += &format!("{}{} {}\n    {}\n", m.name, labels(m), m.kind.name(), m.help.trim());
    }
    out
}

fn labels(m: &Metric) -> String {
    if m.labels.is_empty() { String::new() } else { format!("{{{}}}", m.labels.join(",")) }
}

const HEAD: &str = "# Metrics

Written by `stria metrics --markdown`.

With `metrics.listen = \"127.0.0.1:PORT\"` (or `--set metrics.listen=...`) a process serves its metrics to Prometheus: metadata servers, object storage servers,
mounts and `up`. It is off without that. Port 0 takes a free one; `stria status` shows it. Each process of a host needs a port of its own; the
servers that `up --processes` starts count on from the port of `up`: the metadata server has the next, then come the OSTs in their order.

| path | answer |
|---|---|
| `/metrics` | the values, in the text format of Prometheus (version 0.0.4) |
| `/healthz` | 200 while the process's shard answers, 503 when it has not for five seconds |
| `/readyz` | 200 when the process can serve, else 503 with a line for each reason: a store failed, a restarted server waits for its clients, a mount has no session with the metadata server |

The endpoint has no authentication: it tells names of jobs and ids of clients to whoever reaches it. Any local user reaches loopback; an address
that other hosts reach is refused unless `metrics.allow_remote = true` says that this is meant, behind a firewall or a proxy that knows its users.
A request is a GET or HEAD of at most 8 KiB and 64 fields (405 and 431 otherwise), has to be there within five seconds, and ends its connection. Of 16
connections the first that has not asked yet gives its place to the next one, so that peers that do not ask keep nobody out.

Values come from the counters that the parameter pages show (`stria get_param`), at the moment of the scrape. A page that is set back (`stats=clear`) sets its
metrics back, which `rate()` takes for a restart. Labels: `fs` and `target` (`OST0000`, `MDT0000`) of servers, `client` of mounts, in 16 hexadecimal digits as `stria status` shows it. A target
shows ";

const AFTER: &str = " clients or jobs at most, those with the largest grants and those that asked last; `stria_metrics_series_left_out` counts the others.

What a scrape costs: the shard, which also serves requests, adds numbers up; text is made on another thread. `stria_metrics_collect_seconds` is the time of it, and
[performance](../internals/performance.md) has a figure. However often it is asked, the shard answers at most fifty times a second.

[contrib/grafana/stria.json](../../contrib/grafana/stria.json) is a dashboard of these metrics for Grafana. In the last column stands what exporters for Lustre call the same, where they
have it; they count in other units there, and say `OST` and `MDT` with the file system's name before it.
";

/// The reference page.
#[must_use]
pub fn reference_markdown() -> String {
    let mut out = format!("{HEAD}{NAMED_MAX}{AFTER}");
    let mut before = "";
    for (whose, list) in table() {
        if whose != before {
            out += &format!(
                "\n## Of {whose}\n\n| metric | type | labels | meaning | parameter | Lustre's exporters |\n|---|---|---|---|---|---|\n"
            );
            before = whose;
        }
        for m in list {
            let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
            let labels: Vec<String> = m.labels.iter().map(|l| code(l)).collect();
            out += &format!(
                "| `{}` | {} | {} | {} | {} | {} |\n",
                m.name,
                m.kind.name(),
                labels.join(" "),
                m.help.trim(),
                code(m.param),
                code(m.lustre)
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == reference_markdown(),
            "write it anew: cargo run -- metrics --markdown > docs/reference/metrics.md"
        );
    }
}
