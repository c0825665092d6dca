//! Metrics of real processes: the format, the values, who is refused. Needs root and `/dev/fuse` where it mounts.
#![allow(clippy::unwrap_used)]
#[path = "support/scrape.rs"]
mod scraping;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use scraping::{Scrape, get, scrape};
use support::{Cluster, Daemon, can_mount, good, refused, text};

#[test]
fn the_reader_of_these_tests_takes_nothing_that_prometheus_refuses() {
    let head = "# HELP a_total x\n# TYPE a_total counter\n";
    let good = format!("{head}a_total{{b=\"c\\\"\\\\\\n\"}} 1\na_total{{b=\"d\"}} 2e3\n");
    assert_eq!(Scrape::read(&good).unwrap().sum("a_total", &[]), 2001.0);
    for wrong in [
        "a_total 1\n",
        "# TYPE a_total counter\n",
        &format!("{head}a_total 1"),
        &format!("{head}a_total 1\na_total 2\n"),
        &format!("{head}a_total -1\n"),
        &format!("{head}a_total{{b=\"c\\t\"}} 1\n"),
        &format!("{head}a_total{{b=\"c\"d\"}} 1\n"),
        &format!("{head}a_total{{b=\"c\",b=\"d\"}} 1\n"),
        &format!("{head}b_total 1\n"),
        &format!("{head}a_total  1\n"),
        &format!("{head}a_total one\n"),
        &format!("{head}{head}"),
        "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
    ] {
        assert!(Scrape::read(wrong).is_err(), "{wrong}");
    }
}

/// Names of all metrics that there are, with their types, and the parameters that tell the same.
fn declared() -> BTreeMap<String, (String, String)> {
    let page = good(&["metrics", "--markdown"]);
    let rows = page.lines().filter_map(|l| l.strip_prefix("| `")).filter(|l| !l.starts_with('/'));
    let cells = |l: &str| l.split(" | ").map(|c| c.trim_matches(['`', ' ', '|']).to_string()).collect::<Vec<_>>();
    rows.map(cells).map(|c| (c[0].clone(), (c[1].clone(), c[4].clone()))).collect()
}

/// Names of metrics in an expression of a dashboard.
fn names_in(expression: &str) -> Vec<String> {
    // What stands in braces are labels, in quotes values.
    let mut out = String::new();
    let (mut braces, mut quoted) = (0, false);
    for c in expression.chars() {
        match c {
            '"' => quoted = !quoted,
            '{' if !quoted => braces += 1,
            '}' if !quoted => braces -= 1,
            c if braces == 0 && !quoted => out.push(c),
            _ => {}
        }
    }
    let words = out.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|w| w.starts_with("stria_") || w.starts_with("process_")).map(String::from).collect()
}

fn expressions(value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if ["expr", "query", "definition"].contains(&key.as_str()) => into.push(text.into()),
                    _ => expressions(value, into),
                }
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|v| expressions(v, into)),
        _ => {}
    }
}

/// What a dashboard shows exists.
fn check_dashboard(shown: &Scrape) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/grafana/stria.json");
    let board: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let (mut found, mut all) = (BTreeSet::new(), Vec::new());
    expressions(&board, &mut all);
    // The kind of a data source is asked for by the same word.
    for expression in all.iter().filter(|e| *e != "prometheus") {
        let names = names_in(expression);
        assert!(!names.is_empty() || expression.starts_with("label_values"), "no metric in {expression}");
        found.extend(names);
    }
    let known = shown.names();
    let unknown: Vec<_> = found.difference(&known).collect();
    assert!(found.len() >= 25 && unknown.is_empty(), "{unknown:?} of {} are no metrics", found.len());
}

fn address_of(at: &Path) -> String {
    let status: serde_json::Value = serde_json::from_str(&good(&["status", "--json", text(at)])).unwrap();
    status["metrics"].as_str().unwrap_or_else(|| panic!("no metrics: {status}")).into()
}

/// Writes 8 MiB that reach the servers, and reads them from there.
fn work(at: &Path) {
    let mut file = fs::File::options().create(true).truncate(true).read(true).write(true).open(at.join("f")).unwrap();
    file.write_all(&vec![7; 8 << 20]).unwrap();
    file.sync_all().unwrap();
    good(&["setstripe", "-c", "-1", text(&at.join("wide"))]);
    fs::write(at.join("wide"), vec![3; 9 << 20]).unwrap();
    fs::File::open(at.join("wide")).unwrap().sync_all().unwrap();
    // The client's and the kernel's caches forget it.
    good(&["set_param", "--at", text(at), "llite.*.max_cached_mb=4"]);
    // SAFETY: a descriptor that is open.
    unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, libc::POSIX_FADV_DONTNEED) };
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_cluster_in_one_process_shows_everything_and_counters_move_with_the_work() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    fs::create_dir(dir.path().join("mnt")).unwrap();
    let fast = format!("store.fast.dir={}", path("fast"));
    fs::create_dir(dir.path().join("fast")).unwrap();
    let line =
        ["up", "--dir", &path("c"), "--osts", "2", "--mount", &path("mnt"), "--set", "metrics.listen=127.0.0.1:0"];
    let more = ["--set", &fast, "--set", "store.fast.size=16M", "--set", "mount.kernel_cache=never"];
    let mut daemon = Daemon::start(&[&line[..], &more[..]].concat(), &dir.path().join("log"));
    let at = dir.path().join("mnt");
    let address = address_of(&at);
    assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"), "{address}");
    assert_eq!(get(&address, "/healthz"), (200, "ok\n".into()));
    assert_eq!(get(&address, "/readyz"), (200, "ready\n".into()));
    let before = scrape(&address);
    work(&at);
    let after = scrape(&address);
    let grew = |name: &str, labels: &[(&str, &str)]| {
        let was = before.samples.iter().any(|((n, _), _)| n == name);
        after.sum(name, labels) - if was { before.sum(name, labels) } else { 0.0 }
    };
    let mib = f64::from(1 << 20);
    assert!(grew("stria_client_write_bytes_total", &[]) >= 17.0 * mib);
    assert!(grew("stria_client_read_bytes_total", &[]) >= 8.0 * mib);
    assert!(grew("stria_write_bytes_total", &[("fs", "stria")]) >= 17.0 * mib);
    assert!(grew("stria_read_bytes_total", &[("fs", "stria")]) >= 4.0 * mib);
    assert!(grew("stria_osc_rpc_bytes_total", &[("operation", "write")]) >= 17.0 * mib);
    assert!(grew("stria_request_seconds_count", &[("target", "OST0001"), ("operation", "write")]) >= 1.0);
    assert!(grew("stria_request_seconds_sum", &[("target", "MDT0000")]) > 0.0);
    assert!(after.sum("stria_requests_total", &[("target", "MDT0000"), ("operation", "open")]) >= 2.0);
    assert!(grew("stria_nrs_served_total", &[("target", "OST0000")]) >= 1.0);
    assert!(grew("stria_bulk_pages_count", &[("operation", "write")]) >= 2.0);
    assert!(after.sum("stria_free_bytes", &[("target", "OST0000")]) > 0.0);
    assert_eq!(after.sum("stria_exports", &[("target", "OST0000")]), 2.0, "the client and the metadata server");
    assert_eq!(after.sum("stria_import_connected", &[]), 3.0);
    // No counter goes back.
    for ((name, labels), value) in &before.samples {
        if before.types.get(name).is_some_and(|t| t == "counter") {
            assert!(after.samples[&(name.clone(), labels.clone())] >= *value, "{name}{labels:?}");
        }
    }
    check_table(&after, &at);
    check_dashboard(&after);
    // What a number's parameter shows is what its metric shows.
    let shown = good(&["get_param", "-n", "--at", text(&at), "obdfilter.*OST0000.kbytestotal"]);
    assert_eq!(
        shown.trim().parse::<f64>().unwrap() * 1024.0,
        after.sum("stria_capacity_bytes", &[("target", "OST0000")])
    );
    good(&["umount", text(&at)]);
    daemon.child.wait().unwrap();
    assert!(std::net::TcpStream::connect(&address).is_err(), "nobody listens any more");
}

/// Everything declared is there with its type, and its parameters, too; and nothing else.
fn check_table(shown: &Scrape, at: &Path) {
    let declared = declared();
    for (name, (kind, param)) in &declared {
        // Series of what was left out exist when something was.
        if name != "stria_metrics_series_left_out" {
            assert_eq!(shown.types.get(name), Some(kind), "{name}");
        }
        if !param.is_empty() {
            assert!(!good(&["get_param", "-N", "--at", text(at), param]).is_empty(), "{name}: {param}");
        }
    }
    let foreign: Vec<_> = shown.types.keys().filter(|n| !declared.contains_key(*n)).collect();
    assert!(foreign.is_empty() && declared.len() > 100, "{foreign:?} of {}", declared.len());
}

#[test]
fn servers_that_processes_start_take_the_ports_that_follow() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    fs::create_dir(dir.path().join("mnt")).unwrap();
    let line = ["up", "--processes", "--dir", &path("c"), "--osts", "1", "--mount", &path("mnt")];
    let more = ["--set", "metrics.listen=127.0.0.1:0"];
    let mut daemon = Daemon::start(&[&line[..], &more[..]].concat(), &dir.path().join("log"));
    let status = good(&["status", "--dir", &path("c")]);
    let of = |name: &str| {
        let line = status.lines().find(|l| l.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{status}"));
        let url = line.split("metrics at http://").nth(1).unwrap_or_else(|| panic!("{status}"));
        url.trim_end_matches("/metrics").to_string()
    };
    let (mdt, ost, up) = (scrape(&of("mdt0")), scrape(&of("ost0")), scrape(&of("up")));
    assert_eq!(mdt.sum("stria_recovering", &[("target", "MDT0000")]), 0.0);
    assert!(mdt.sum("stria_exports", &[]) >= 1.0 && ost.sum("stria_exports", &[("target", "OST0000")]) >= 1.0);
    assert!(up.sum("stria_import_connected", &[]) >= 1.0 && !up.names().contains("stria_exports"));
    assert_eq!(of("up"), address_of(&dir.path().join("mnt")));
    good(&["umount", &path("mnt")]);
    daemon.child.wait().unwrap();
}

#[test]
fn a_restarted_server_is_not_ready_while_it_waits_for_its_clients() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.dir.path().join("m");
    fs::create_dir(&at).unwrap();
    let (cluster, log) = (c.path("c"), c.dir.path().join("m.log"));
    // A client that the server cannot look after: it may come back.
    let mut client = Daemon::start_elsewhere(&["mount", "--dir", &cluster, text(&at)], &log);
    fs::write(at.join("f"), "x").unwrap();
    good(&["sync", text(&at)]);
    let held = fs::File::open(at.join("f")).unwrap();
    client.kill();
    drop(held);
    c.oss[0].take();
    let line = [
        "oss",
        "--dir",
        &cluster,
        "--ost",
        "0",
        "--set",
        "recovery.window_s=600",
        "--set",
        "metrics.listen=127.0.0.1:0",
    ];
    let oss = Daemon::start(&line, &c.dir.path().join("oss.log"));
    let status = good(&["status", "--dir", &cluster]);
    let address = status.split("metrics at http://").nth(1).unwrap_or_else(|| panic!("{status}"));
    let address = address.split("/metrics").next().unwrap();
    let (status, why) = get(address, "/readyz");
    assert_eq!(status, 503, "{why}");
    assert!(why.starts_with("stria-OST0000: waits for ") && why.contains("of before its restart"), "{why}");
    assert_eq!(get(address, "/healthz").0, 200);
    let shown = scrape(address);
    assert_eq!(shown.sum("stria_recovering", &[("target", "OST0000")]), 1.0);
    let left = shown.sum("stria_recovery_left_seconds", &[]);
    assert!((1.0..=600.0).contains(&left) && shown.sum("stria_recovery_clients_left", &[]) >= 1.0, "{left}");
    assert_eq!(shown.sum("stria_ready", &[]), 0.0);
    drop(std::process::Command::new("umount").arg("-l").arg(&at).output());
    drop(oss);
}

#[test]
fn addresses_that_cannot_be_meant_are_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = text(&dir.path().join("c")).to_string();
    good(&["mkfs", "--dir", &cluster, "--osts", "1"]);
    let start = |listen: &str| refused(&["mds", "--dir", &cluster, "--set", &format!("metrics.listen={listen}")]);
    for (listen, why) in [
        ("localhost:9100", "metrics.listen = \"localhost:9100\": not an address with its port: write IP:PORT"),
        ("127.0.0.1", "not an address with its port"),
        ("0.0.0.0:9100", "say metrics.allow_remote = true"),
        ("192.0.2.1:9100", "say metrics.allow_remote = true"),
    ] {
        let (code, said) = start(listen);
        assert!(code == libc::EINVAL && said.contains(why), "{listen}: {code} {said}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (code, said) = start(&format!("127.0.0.1:{port}"));
    assert!(code == libc::EADDRINUSE && said.contains(&format!("port {port} is in use by another process")), "{said}");
    let remote =
        ["mds", "--dir", &cluster, "--set", "metrics.allow_remote=true", "--set", "metrics.listen=192.0.2.1:0"];
    let (code, said) = refused(&remote);
    assert!(code == libc::EADDRNOTAVAIL && said.contains("does not have the address 192.0.2.1"), "{said}");
}
