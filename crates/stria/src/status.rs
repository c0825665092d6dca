//! `status`: mounts of this host, the state of their clusters, the processes of a cluster's directory.
use std::os::fd::AsRawFd;

use serde_json::{Value, json};
use types::format_size;

use crate::cli;
use crate::control;
use crate::daemon::ClusterDir;
use crate::failure::{Failure, Outcome};

/// The verb `status`.
///
/// # Errors
/// The path is on no mount, the directory is no cluster's. A mount that does not answer is shown, not an error.
pub fn status(arguments: &cli::Status) -> Outcome {
    if let Some(dir) = &arguments.dir {
        return of_directory(&ClusterDir::open(dir)?);
    }
    let only = arguments.path.as_deref().map(crate::lfs::connection_at).transpose()?.map(|c| c.0);
    let mounts: Vec<_> = fuse::mount::mounts()
        .into_iter()
        .filter(|m| m.kind == "fuse.stria" && only.is_none_or(|c| c == m.minor))
        .collect();
    if mounts.is_empty() && !arguments.json {
        say!("no Stria file system is mounted here\n{}", fuse::probe::probe());
    }
    for m in mounts {
        match control::ask(m.minor, &json!({"do": "status"})) {
            Ok(answer) if arguments.json => say!("{answer}"),
            Ok(answer) => crate::out::print(format_args!("{}", show(&answer))),
            Err(e) if arguments.json => say!("{}", json!({"mount_point": m.at, "error": e.to_string()})),
            Err(e) => say!("{}: {e}", m.at.display()),
        }
    }
    Ok(())
}

fn of_directory(dir: &ClusterDir) -> Outcome {
    say!("{}: file system '{}', cluster {:016x}, {} OSTs", dir.path().display(), dir.fsname, dir.cluster, dir.osts());
    let config = crate::daemon::load_in(Some(dir), &cli::Settings::default())?;
    let osts =
        crate::daemon::on_shard(frames::FramePool::new(1 << 20), async |rt| dir.examine(&rt, &config, &[]).await);
    match osts {
        Ok(osts) => osts.away.iter().for_each(|(_, why)| say!("  {why}")),
        Err(e) => say!("  {e}"),
    }
    for (name, pid, alive) in dir.processes() {
        let nid = dir.last_nid(&name).map(|n| format!(" at {n}")).unwrap_or_default();
        let metrics = dir.metrics_of(&name).filter(|_| alive);
        let metrics = metrics.map(|a| format!(", metrics at http://{a}/metrics")).unwrap_or_default();
        say!("  {name:<8} process {pid} {}{nid}{metrics}", if alive { "runs" } else { "is gone" });
    }
    Ok(())
}

fn show(a: &Value) -> String {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_string();
    let mut out = format!(
        "{}: '{}' of cluster {}, client {}, process {}, {}\n",
        text(&a["mount_point"]),
        text(&a["fsname"]),
        text(&a["cluster"]),
        text(&a["client"]),
        a["pid"],
        text(&a["transport"])
    );
    let cache = &a["cache"];
    let figure = |key: &str| cache[key].as_u64().unwrap_or(0);
    out += &format!(
        "  cache {} of {} ({}), {} hits, {} misses\n",
        format_size(figure("used_pages") * 4096),
        format_size(figure("max_pages") * 4096),
        text(&cache["policy"]),
        figure("hits"),
        figure("misses")
    );
    if let Some(address) = a["metrics"].as_str() {
        out += &format!("  metrics at http://{address}/metrics\n");
    }
    for why in a["away"].as_array().into_iter().flatten() {
        out += &format!("  degraded since it started: {}\n", text(why));
    }
    for why in a["down"].as_array().into_iter().flatten() {
        out += &format!("  {}\n", text(why));
    }
    for r in a["recovery"].as_array().into_iter().flatten() {
        out += &format!("  {}\n", recovery_line(r));
    }
    for s in a["scrub"].as_array().into_iter().flatten() {
        out += &format!("  {}\n", scrub_line(s));
    }
    let osts = a["osts"].as_array().cloned().unwrap_or_default();
    for t in std::iter::once(&a["mdt"]).chain(&osts) {
        let traffic = match t["read_rpcs"].as_u64() {
            Some(reads) => format!(
                ", read {} in {reads}, wrote {} in {} RPCs",
                format_size(t["read_bytes"].as_u64().unwrap_or(0)),
                format_size(t["write_bytes"].as_u64().unwrap_or(0)),
                t["write_rpcs"]
            ),
            None => String::new(),
        };
        let why = t["failure"].as_str().map(|f| format!(" ({f})")).unwrap_or_default();
        let store = match t["store"].as_str() {
            Some("failed") => ", its store failed: nothing is written until the server starts again (its log says why)",
            Some("full") => ", its store has no space",
            _ => "",
        };
        let off = if t["active"] == false { ", deactivated" } else { "" };
        out += &format!(
            "  {} at {}: {}{off}{traffic}{why}{store}\n",
            text(&t["target"]),
            text(&t["nid"]),
            text(&t["state"]).to_lowercase()
        );
    }
    out
}

/// How far the reading of a target is, and what it found: `s` has the target and its `scrub`.
fn scrub_line(s: &Value) -> String {
    let text = s["text"].as_str().unwrap_or_default();
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")).unwrap_or("?");
    let what = if text.contains("\nobjects: ") { "objects" } else { "records" };
    let bytes = field("bytes").parse().map_or_else(|_| "?".into(), format_size);
    let named: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("fault: ")).collect();
    format!(
        "{}: scrub {}, {} {what}, {bytes}, {} fault(s){}{}",
        s["target"].as_str().unwrap_or("?"),
        field("status"),
        field(what),
        field("faults"),
        if named.is_empty() { "" } else { ": " },
        named.join(", ")
    )
}

/// Whom a restarted server waits for, how long, and what can be done: `r` has the target and its `recovery_status`.
#[must_use]
pub fn recovery_line(r: &Value) -> String {
    let text = r["text"].as_str().unwrap_or_default();
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
    let clients: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("waiting_for: ")).collect();
    format!(
        "{} was restarted and waits for {} client(s) of before, {} s at most ({}): 'stria abort-recovery' goes on without them",
        r["target"].as_str().unwrap_or("?"),
        clients.len(),
        field("time_remaining").unwrap_or("?"),
        clients.join(", ")
    )
}

/// FUSE connections of the mount that `path` is on, or of all mounts of this host.
fn connections(path: Option<&std::path::Path>) -> Result<Vec<u32>, Failure> {
    Ok(match path {
        Some(at) => vec![crate::lfs::connection_at(at)?.0],
        None => crate::lfs::mounts()?.iter().map(|m| m.minor).collect(),
    })
}

/// `sync`: what programs wrote through the mounts is on stable storage when this has returned, and so is every change of
/// names and attributes. The kernel passes sync(2) and syncfs(2) on to no FUSE daemon of this kind; it writes what was
/// stored to mappings, and that is asked of it first.
///
/// # Errors
/// Nothing is mounted, nobody answers, or something could not be written.
pub fn sync(path: Option<&std::path::Path>) -> Outcome {
    for c in connections(path)? {
        let status = control::ask(c, &json!({"do": "status"}))?;
        let at = status["mount_point"].as_str().unwrap_or("?").to_string();
        let failed =
            |e: std::io::Error| Failure::with_errno(format!("{at}: {e}"), e.raw_os_error().unwrap_or(libc::EIO));
        let root = std::fs::File::open(&at).map_err(failed)?;
        // SAFETY: the descriptor is open until the call has returned.
        if unsafe { libc::syncfs(root.as_raw_fd()) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        control::ask(c, &json!({"do": "sync"}))?;
    }
    Ok(())
}

/// `abort-recovery`: servers that were restarted go on without the clients that they wait for.
///
/// # Errors
/// Nothing is mounted, nobody answers, or the asker may not do that.
pub fn abort_recovery(path: Option<&std::path::Path>) -> Outcome {
    for c in connections(path)? {
        let status = control::ask(c, &json!({"do": "status"}))?;
        let waiting = status["recovery"].as_array().cloned().unwrap_or_default();
        let at = status["mount_point"].as_str().unwrap_or("?").to_string();
        if waiting.is_empty() {
            say!("{at}: no server waits for clients");
            continue;
        }
        control::ask(c, &json!({"do": "set_param", "pattern": "*.*.abort_recovery", "value": "1"}))?;
        for r in &waiting {
            say!("{at}: {} goes on without the clients that it waited for", r["target"].as_str().unwrap_or("?"));
        }
    }
    Ok(())
}

/// `lctl dl`: devices, one a line.
///
/// # Errors
/// Nothing is mounted, or nobody answers.
pub fn device_list() -> Outcome {
    let mounts: Vec<_> = fuse::mount::mounts().into_iter().filter(|m| m.kind == "fuse.stria").collect();
    if mounts.is_empty() {
        return Err(Failure::with_errno("no Stria file system is mounted here", libc::ENODEV));
    }
    let mut number = 0;
    for m in mounts {
        let a = control::ask(m.minor, &json!({"do": "status"}))?;
        let client = a["client"].as_str().unwrap_or("?").to_string();
        let osts = a["osts"].as_array().cloned().unwrap_or_default();
        for (kind, t) in std::iter::once(("mdc", &a["mdt"])).chain(osts.iter().map(|o| ("osc", o))) {
            let state = if t["state"] == "Full" { "UP" } else { "IN" };
            say!("{number:>3} {state} {kind} {}-{kind}-{client} {client} 1", t["target"].as_str().unwrap_or("?"));
            number += 1;
        }
    }
    Ok(())
}

/// `lctl ping`: whether servers answer, asked by the mounts of this host.
///
/// # Errors
/// No address is given, no mount knows it, or nobody answers there.
pub fn ping(arguments: &[std::ffi::OsString]) -> Outcome {
    const USAGE: &str =
        "usage: ping [--at PATH] ADDRESS...   an address as 'stria status' shows it, like 10.0.0.1:7988";
    let long = &[("at", 'A'), ("help", 'h')];
    let parsed = crate::lfs::getopt::Grammar { verb: "ping", short: "A:h", long, absent: &[] }.read(arguments)?;
    if parsed.has('h') || parsed.operands.is_empty() {
        return Err(Failure::usage(USAGE));
    }
    let connections: Vec<u32> = match parsed.value('A') {
        Some(at) => vec![crate::lfs::connection_of(std::path::Path::new(at))?.0],
        None => crate::lfs::mounts()?.iter().map(|m| m.minor).collect(),
    };
    for nid in parsed.operands.iter().map(|o| o.to_string_lossy()) {
        let mut refused: Option<Failure> = None;
        let answered = connections.iter().any(|c| match control::ask(*c, &json!({"do": "ping", "nid": nid})) {
            Ok(_) => true,
            Err(e) => {
                // A mount that knows the server says more than those that do not.
                let knows = i32::from(e.code()) != libc::EHOSTUNREACH;
                refused = Some(refused.take().filter(|_| !knows).unwrap_or(e));
                false
            }
        });
        match refused {
            _ if answered => say!("12345-{nid}"),
            Some(e) => return Err(e),
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_shown_with_its_servers() {
        let a = json!({
            "mount_point": "/mnt", "fsname": "stria", "cluster": "00000000000000ab", "client": "01", "pid": 7, "transport": "uring", "metrics": "127.0.0.1:9100", "away": ["OST 0 is left out"], "down": ["ost1 does not start: why"],
            "recovery": [{"target": "stria-MDT0000", "text": "status: RECOVERING\nrecovery_duration: 30\ntime_remaining: 23\nwaiting_for: 0a has not come back\n"}],
            "scrub": [{"target": "stria-OST0000", "text": "status: running\nrate_mib_per_s: 50\nobjects: 3 of 9\nbytes: 4096\nfaults: 1\nfault: object 7: block 2\n"}],
            "cache": {"hits": 3, "misses": 1, "used_pages": 256, "max_pages": 65536, "policy": "lru"},
            "mdt": {"target": "stria-MDT0000", "nid": "local:mds", "state": "Full", "store": "failed"},
            "osts": [{"target": "stria-OST0000", "nid": "local:oss", "state": "Connecting", "failure": "refused", "active": false,
                      "read_rpcs": 2, "read_bytes": 4096, "write_rpcs": 1, "write_bytes": 1048576}],
        });
        let expected = "/mnt: 'stria' of cluster 00000000000000ab, client 01, process 7, uring
  cache 1.0M of 256M (lru), 3 hits, 1 misses
  metrics at http://127.0.0.1:9100/metrics
  degraded since it started: OST 0 is left out
  ost1 does not start: why
  stria-MDT0000 was restarted and waits for 1 client(s) of before, 23 s at most (0a has not come back): 'stria abort-recovery' goes on without them
  stria-OST0000: scrub running, 3 of 9 objects, 4.0K, 1 fault(s): object 7: block 2
  stria-MDT0000 at local:mds: full, its store failed: nothing is written until the server starts again (its log says why)
  stria-OST0000 at local:oss: connecting, deactivated, read 4.0K in 2, wrote 1.0M in 1 RPCs (refused)
";
        assert_eq!(show(&a), expected);
    }
}
