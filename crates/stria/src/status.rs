//! `status`: mounts of this host, the state of their clusters, the processes of a cluster's directory.
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fuse::mount::MountEntry;
use serde_json::{Value, json};
use types::format_size;

use crate::cli;
use crate::control;
use crate::daemon::{ClusterDir, Lives};
use crate::failure::{Failure, Outcome};
use crate::out::{self, word};
use crate::trouble::{self, Trouble};

/// How long a daemon has for its answer; it gives servers less.
const MOMENT: Duration = Duration::from_millis(950);
/// How long a daemon waits for servers.
const SERVERS_MS: u64 = 750;

/// The verb `status`. Takes a second at most, whoever stands still.
///
/// # Errors
/// The path is on no mount, the directory is no cluster's. A mount that does not answer is shown, not an error.
pub fn status(arguments: &cli::Status) -> Outcome {
    if let Some(dir) = &arguments.dir {
        return of_directory(ClusterDir::open(dir)?);
    }
    let only = arguments.path.as_deref().map(mount_above).transpose()?.map(|(connection, _)| connection);
    let mounts: Vec<_> = fuse::mount::mounts()
        .into_iter()
        .filter(|m| m.kind == "fuse.stria" && only.is_none_or(|c| c == m.minor))
        .collect();
    if mounts.is_empty() && !arguments.json {
        say!("no Stria file system is mounted here\n{}", fuse::probe::probe());
    }
    let until = Instant::now() + MOMENT;
    let ask = |m: &MountEntry| control::begin(m.minor, m.user, json!({"do": "status", "within_ms": SERVERS_MS}));
    let asked: Vec<_> = mounts.iter().map(ask).collect();
    for (m, asked) in mounts.iter().zip(asked) {
        match asked.answer(until) {
            Ok(mut answer) => {
                out::no_control(&mut answer);
                let troubles = troubles_of(&answer);
                answer["trouble"] = troubles.iter().map(Trouble::json).collect();
                if arguments.json {
                    say!("{answer}");
                } else {
                    out::print(format_args!("{}", show(&answer, &troubles)));
                }
            }
            Err(e) => {
                let error = out::printable(&e.failure.to_string());
                let trouble = trouble::of_daemon(&m.at, e.daemon, &error);
                if arguments.json {
                    say!("{}", json!({"mount_point": m.at, "error": error, "trouble": [trouble.json()]}));
                } else {
                    say!("{}: {trouble}", m.at.display());
                }
            }
        }
    }
    Ok(())
}

/// The FUSE connection of the mount that a path is on, and its mount point. Where the mount table says so the file system is not asked:
/// its daemon may stand still.
///
/// # Errors
/// It is on none; or looking at it took longer than a moment.
pub fn mount_above(path: &Path) -> Result<(u32, PathBuf), Failure> {
    let full = std::path::absolute(path).map_err(|e| Failure::io("looking at", path, &e))?;
    let goes_up = full.components().any(|c| c == Component::ParentDir);
    let above = fuse::mount::mounts().into_iter().filter(|m| full.starts_with(&m.at));
    // Of several at one place the last one is on top.
    let on_top = above.max_by_key(|m| m.at.components().count()).filter(|m| m.kind == "fuse.stria" && !goes_up);
    if let Some(m) = on_top {
        return Ok((m.minor, m.at));
    }
    mount_of(path)
}

/// The FUSE connection of the mount that a path is on, which is there, and its mount point. A mount point is known without asking its
/// file system.
///
/// # Errors
/// There is no such file, or it is on no mount; or looking at it took longer than a moment.
pub fn mount_of(path: &Path) -> Result<(u32, PathBuf), Failure> {
    let (tell, told) = channel();
    let looked_at = path.to_path_buf();
    std::thread::spawn(move || {
        // Who asked may have lost patience.
        let _ = tell.send(crate::lfs::connection_at(&looked_at));
    });
    told.recv_timeout(MOMENT).unwrap_or_else(|_| {
        let why = format!(
            "{} does not answer within a second: 'stria status' without a path shows all mounts",
            path.display()
        );
        Err(Failure::with_errno(why, libc::ETIMEDOUT))
    })
}

/// What is wrong with a mount's servers, and with what its programs wrote.
pub fn troubles_of(answer: &Value) -> Vec<Trouble> {
    let osts = answer["osts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let targets = std::iter::once((&answer["mdt"], None)).chain(osts.iter().map(|o| (o, o["index"].as_u64())));
    let of = |(target, ost): (&Value, Option<u64>)| {
        let nid = target["nid"].as_str().unwrap_or("?");
        let name = ost.map_or_else(|| "mdt0".into(), |i| format!("ost{i}"));
        let is_tried = answer["down"].as_array().into_iter().flatten().any(|why| {
            why.as_str().and_then(|why| why.strip_prefix(&name)).is_some_and(|why| why.starts_with(" does not start"))
        });
        trouble::of_server(target, &trouble::Place { dir: answer["dir"].as_str(), nid, ost, is_tried })
    };
    let mut all: Vec<Trouble> = targets.filter_map(of).collect();
    let lost = answer["lost_bytes"].as_u64().unwrap_or(0);
    if lost > 0 {
        let remedy =
            "'stria get_param llite.*.lost_files' lists the files, 'set_param llite.*.lost_files=clear' ends this";
        all.push(Trouble {
            what: format!("{} that programs wrote are lost", format_size(lost)),
            remedy: remedy.into(),
        });
    }
    all
}

fn of_directory(dir: ClusterDir) -> Outcome {
    say!("{}: file system '{}', cluster {:016x}, {} OSTs", dir.path().display(), dir.fsname, dir.cluster, dir.osts());
    let dir = Arc::new(dir);
    let (tell, told) = channel();
    let looked_at = dir.clone();
    // A medium that stands still keeps its own thread waiting.
    std::thread::spawn(move || {
        let config = crate::daemon::load_in(Some(&looked_at), &cli::Settings::default());
        let osts = config.and_then(|config| {
            crate::daemon::on_shard(frames::FramePool::new(1 << 20), async |rt| {
                looked_at.examine(&rt, &config, &[]).await
            })
        });
        let _ = tell.send(osts);
    });
    match told.recv_timeout(MOMENT) {
        Ok(Ok(osts)) => osts.away.iter().for_each(|(_, why)| say!("  {why}")),
        Ok(Err(e)) => say!("  {e}"),
        Err(_) => {
            say!("  the stores do not answer within a second: their disks are slow or stand still ('dmesg' says more)")
        }
    }
    for p in dir.processes() {
        let (name, pid) = (p.name, p.pid);
        let nid = dir.last_nid(&name).map(|n| format!(" at {n}")).unwrap_or_default();
        let metrics = dir.metrics_of(&name).filter(|_| p.lives != Lives::No);
        let metrics = metrics.map(|a| format!(", metrics at http://{a}/metrics")).unwrap_or_default();
        let fares = match (p.lives, i32::try_from(pid).map(trouble::fares)) {
            (Lives::No, _) => format!("is gone{nid}: {}", start_of(&dir, &name)),
            (Lives::Elsewhere, _) => {
                format!("of another machine, container or user runs{nid}{metrics}: it is not seen from here")
            }
            (Lives::Here, Ok(trouble::Fares::Stopped)) => {
                format!("is stopped{nid}: 'kill -CONT {pid}' lets it go on")
            }
            (Lives::Here, Ok(trouble::Fares::Device)) => {
                format!("waits for a device{nid} ('dmesg' says more){metrics}")
            }
            (Lives::Here, _) => format!("runs{nid}{metrics}"),
        };
        say!("  {name:<8} process {pid} {fares}");
    }
    dir.used_by_nobody().iter().for_each(|(store, pid)| say!("  wrong: {}", crate::daemon::in_use(store, *pid)));
    Ok(())
}

/// The command that starts a process of a directory again, by the name that it has there.
fn start_of(dir: &ClusterDir, name: &str) -> String {
    let at = word(dir.path());
    match name.strip_prefix("ost").and_then(|n| n.parse::<u16>().ok()) {
        Some(ost) => format!("'stria oss --dir {at} --ost {ost}' starts it"),
        None if name.starts_with("mdt") => format!("'stria mds --dir {at}' starts it"),
        None => format!("'stria up --dir {at} --mount MNT' starts the cluster"),
    }
}

fn show(a: &Value, troubles: &[Trouble]) -> String {
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
    notes(a).iter().for_each(|note| out += &format!("  {note}\n"));
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
            Some("failed") => failure_of(a, &text(&t["target"])),
            Some("full") => ", its store has no space".into(),
            _ => String::new(),
        };
        let off = match (t["active"] == false, t["silent"] == true) {
            (true, _) => ", deactivated",
            (_, true) => ", does not answer",
            _ if t["closed"] == true => ", takes no new files ('stria ost drain')",
            _ => "",
        };
        out += &format!(
            "  {} at {}: {}{off}{traffic}{why}{store}\n",
            text(&t["target"]),
            text(&t["nid"]),
            text(&t["state"]).to_lowercase()
        );
    }
    troubles.iter().for_each(|t| out += &format!("  wrong: {t}\n"));
    out
}

/// What a mount's answer tells beside its servers, a sentence each: who is left out, who waits for whom, scrubs.
#[must_use]
pub fn notes(a: &Value) -> Vec<String> {
    let all = |key: &str| a[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |v: &Value| v.as_str().unwrap_or("?").to_string();
    let away = all("away").iter().map(|why| format!("degraded since it started: {}", text(why)));
    let down = all("down").iter().map(text);
    away.chain(all("refused").iter().map(text))
        .chain(down)
        .chain(all("recovery").iter().map(recovery_line))
        .chain(all("scrub").iter().map(scrub_line))
        .collect()
}

/// What is said of a target's store that failed: `a` has what targets say of it as `failures`.
fn failure_of(a: &Value, target: &str) -> String {
    let said = a["failures"].as_array().into_iter().flatten().find(|f| f["target"] == target);
    let mut lines = said.and_then(|f| f["text"].as_str()).unwrap_or_default().lines();
    match (lines.next(), lines.next()) {
        (Some(failure), Some(mending)) => format!(", its store failed, {mending} ({failure})"),
        (Some(failure), None) => {
            format!(", its store failed: nothing is written until it is opened again ({failure})")
        }
        _ => ", its store failed: nothing is written until it is opened again (its log says why)".into(),
    }
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

/// `sync`: what programs wrote through the mounts is on stable storage when this has returned, and so is every change of
/// names and attributes. The kernel passes sync(2) and syncfs(2) on to no FUSE daemon of this kind; it writes what was
/// stored to mappings, and that is asked of it first.
///
/// # Errors
/// Nothing is mounted, nobody answers, or something could not be written.
pub fn sync(path: Option<&Path>) -> Outcome {
    crate::lfs::each_mount(path.as_slice(), |c, at| {
        // Whoever does not answer would keep an open waiting.
        control::ask(c, &json!({"do": "status"}))?;
        let failed = |e: std::io::Error| Failure::io("syncing", at, &e);
        let root = std::fs::File::open(at).map_err(failed)?;
        // SAFETY: the descriptor is open until the call has returned.
        if unsafe { libc::syncfs(root.as_raw_fd()) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        control::ask(c, &json!({"do": "sync"}))?;
        Ok(())
    })
}

/// `abort-recovery`: servers that were restarted go on without the clients that they wait for.
///
/// # Errors
/// Nothing is mounted, nobody answers, or the asker may not do that.
pub fn abort_recovery(path: Option<&Path>) -> Outcome {
    crate::lfs::each_mount(path.as_slice(), |c, at| {
        let (status, at) = (control::ask(c, &json!({"do": "status"}))?, at.display());
        let waiting = status["recovery"].as_array().cloned().unwrap_or_default();
        if waiting.is_empty() {
            say!("{at}: no server waits for clients");
            return Ok(());
        }
        control::ask(c, &json!({"do": "set_param", "pattern": "*.*.abort_recovery", "value": "1"}))?;
        for r in &waiting {
            say!("{at}: {} goes on without the clients that it waited for", r["target"].as_str().unwrap_or("?"));
        }
        Ok(())
    })
}

/// `lctl dl`: devices, one a line.
///
/// # Errors
/// Nothing is mounted, or nobody answers.
pub fn device_list() -> Outcome {
    let mut number = 0;
    crate::lfs::each_mount(&[] as &[&Path], |connection, _| {
        let a = control::ask(connection, &json!({"do": "status"}))?;
        let client = a["client"].as_str().unwrap_or("?").to_string();
        let osts = a["osts"].as_array().cloned().unwrap_or_default();
        for (kind, t) in std::iter::once(("mdc", &a["mdt"])).chain(osts.iter().map(|o| ("osc", o))) {
            let state = if t["state"] == "Full" { "UP" } else { "IN" };
            say!("{number:>3} {state} {kind} {}-{kind}-{client} {client} 1", t["target"].as_str().unwrap_or("?"));
            number += 1;
        }
        Ok(())
    })
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
            "failures": [{"target": "stria-MDT0000", "text": "metadata store: no\ntried again every 8 s: /x/mdt0: Input/output error"}],
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
  stria-MDT0000 at local:mds: full, its store failed, tried again every 8 s: /x/mdt0: Input/output error (metadata store: no)
  stria-OST0000 at local:oss: connecting, deactivated, read 4.0K in 2, wrote 1.0M in 1 RPCs (refused)
";
        let troubles = [Trouble { what: "s-OST0000 is ill".into(), remedy: "'cure' helps".into() }];
        assert_eq!(show(&a, &troubles), expected.to_string() + "  wrong: s-OST0000 is ill: 'cure' helps\n");
    }

    #[test]
    fn a_server_of_which_its_supervisor_says_why_it_does_not_start_is_not_started_by_hand() {
        // A port that was just free.
        let nid = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let of = |down: &str| {
            let away =
                json!({"target": "s-OST0001", "index": 1, "nid": nid, "state": "Connecting", "failure": "refused"});
            let mdt = json!({"target": "s-MDT0000", "nid": "local:mds", "state": "Full"});
            let all = troubles_of(&json!({"dir": "/c", "down": [down], "mdt": mdt, "osts": [away]}));
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let tried = of("ost1 does not start: no such directory");
        assert!(
            tried.contains("is away (refused): its supervisor says above why") && !tried.contains("--ost 1"),
            "{tried}"
        );
        let other = of("ost10 does not start: no such directory");
        assert!(other.ends_with("'stria oss --dir /c --ost 1' starts it"), "{other}");
    }
}
