//! `stria why` on real clusters: the stage that it names is the one where the time went, and whose doing that was; what is not known
//! is said. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
use support::{Daemon, can_mount, good, refused, text};

const MIB: usize = 1 << 20;

/// One process with a metadata target, one OST on an emulated disk and two mounts.
struct Pair {
    dir: tempfile::TempDir,
    _up: Daemon,
}

impl Pair {
    fn start(sets: &[&str]) -> Pair {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        ["a", "b"].iter().for_each(|m| fs::create_dir(at(m)).unwrap());
        let (cluster, a, b) = (at("c"), at("a"), at("b"));
        let mut line = vec!["up", "--dir", text(&cluster), "--mount", text(&a), "--mount", text(&b), "--osts", "1"];
        let disk = ["store.kind=emulated", "store.profile=hdd", "nrs.policy=fifo", "oss.dispatch_window=1"];
        disk.iter().chain(sets).for_each(|s| line.extend(["--set", s]));
        let up = Daemon::start(&line, &at("log"));
        good(&["set_param", "--at", text(&a), "obdfilter.*.cache_bytes=0"]);
        Pair { _up: up, dir }
    }
    fn a(&self) -> PathBuf {
        self.dir.path().join("a")
    }
    fn b(&self) -> PathBuf {
        self.dir.path().join("b")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for mount in [self.b(), self.a()] {
            let _ = support::stria(&["umount", text(&mount)]);
        }
    }
}

fn client_of(at: &Path) -> String {
    let status: Value = serde_json::from_str(&good(&["status", "--json", text(at)])).unwrap();
    status["client"].as_str().unwrap().to_string()
}

/// What `why` says of something.
fn why(line: &[&str]) -> Value {
    serde_json::from_str(&good(&[&["why", "--json", "--top", "1000"], line].concat())).unwrap()
}

fn slowest(said: &Value) -> &Vec<Value> {
    said["slowest"].as_array().unwrap()
}

/// Reads past every cache.
fn direct(path: &Path, bs: &str, count: usize) {
    let (from, bs, count) = (format!("if={}", text(path)), format!("bs={bs}"), format!("count={count}"));
    let dd = Command::new("dd").args([&from, "of=/dev/null", &bs, &count, "iflag=direct"]).output().unwrap();
    assert!(dd.status.success(), "{}", String::from_utf8_lossy(&dd.stderr));
}

fn written(path: &Path, mib: usize) {
    fs::write(path, vec![7u8; mib * MIB]).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn a_victim_behind_a_hog_is_told_that_it_waited_in_the_queue_and_for_whom() {
    if !can_mount() {
        return;
    }
    let pair = Pair::start(&[]);
    let (hog, victim) = (pair.a().join("hog"), pair.b().join("victim"));
    written(&hog, 64);
    written(&victim, 1);
    // Alone, the disk is all that it waits for.
    direct(&victim, "64K", 4);
    let reads = |said: &Value| -> Vec<Value> {
        slowest(said).iter().filter(|r| r["op"] == "ost_read" && r["client"] == client_of(&pair.b())).cloned().collect()
    };
    let alone = why(&[text(&victim)]);
    let alone_reads = reads(&alone);
    // A busy machine may keep a thread waiting for longer than the disk does, now and then.
    assert!(alone_reads.len() >= 4 && alone_reads.iter().any(|r| r["longest"] == "store"), "{alone}");

    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    const HOGS: usize = 8;
    std::thread::scope(|scope| {
        for _ in 0..HOGS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    direct(&hog, "1M", 8);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Every one of them has begun, and goes on.
        while done.load(Ordering::Relaxed) < 2 * HOGS {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        direct(&victim, "4K", 4);
        stop.store(true, Ordering::Relaxed);
    });
    let said = why(&[text(&victim)]);
    let victims: Vec<Value> =
        reads(&said).into_iter().filter(|r| alone_reads.iter().all(|a| a["id"] != r["id"])).collect();
    let worst = &victims[0];
    let hogs = client_of(&pair.a());
    assert_eq!(worst["longest"].as_str(), Some("queue"), "{worst}");
    assert_eq!(worst["file"].as_str(), Some(text(&victim)));
    let queue = &worst["queue"];
    assert_eq!((queue["policy"].as_str(), queue["clients"][0]["client"].as_str()), (Some("fifo"), Some(hogs.as_str())));
    assert!(queue["requests"].as_u64() >= Some(1) && queue["arrived_later"] == 0, "{worst}");
    assert!(queue["why"].as_str().unwrap().starts_with("what went before it had arrived before it"), "{worst}");
    assert!(worst["stages"]["network_ns"].is_u64() && worst["total_ns"].as_u64() > Some(0), "{worst}");

    // The same request by its name, on a page; and its job by its own.
    let id = worst["id"].as_str().unwrap();
    let one = why(&[id, text(&pair.b())]);
    assert_eq!((one["requests"].as_u64(), &one["stages"]), (Some(1), &worst["stages"]), "{one}");
    assert_eq!(
        slowest(&one)[0]["file"].as_str(),
        Some(text(&victim)),
        "an object's file is found by its number: {one}"
    );
    let page = good(&["why", id, text(&pair.b())]);
    for part in [id, "NRS queue", "policy fifo: what went before", &format!("of client {hogs}"), text(&victim)] {
        assert!(page.contains(part), "'{part}': {page}");
    }
    assert!(page.lines().count() < 25, "one page: {page}");
    let job = why(&["dd.0", text(&pair.a())]);
    assert!(job["requests"].as_u64() > Some(64) && job["stages"]["queue_ns"].as_u64() > Some(0), "{job}");
    // A trace knows the same without the cluster.
    let file = text(&pair.dir.path().join("t")).to_string();
    let recorded = good(&["trace", "record", text(&pair.b()), "-o", &file]);
    assert!(recorded.contains(" requests of 1 OSTs, the metadata target, this client"), "{recorded}");
    assert_eq!(why(&[id, "--trace", &file])["stages"], worst["stages"]);
    assert!(good(&["trace", "show", &file]).contains("mdt_open"));
}

#[test]
fn who_waits_for_anothers_lock_is_told_whose_it_is() {
    if !can_mount() {
        return;
    }
    let pair = Pair::start(&["client.dirty_age_s=600"]);
    let (holder, waiter) = (client_of(&pair.a()), client_of(&pair.b()));
    // What one mount has written and not written out, another one reads: the first gives its lock back.
    let mut file = fs::File::create(pair.a().join("f")).unwrap();
    std::io::Write::write_all(&mut file, &vec![7u8; 8 * MIB]).unwrap();
    let path = pair.b().join("f");
    assert_eq!(fs::read(&path).unwrap().len(), 8 * MIB);
    let said = why(&[text(&path)]);
    let waited = |r: &&Value| r["client"] == waiter.as_str() && r["longest"] == "lock";
    let lock = slowest(&said).iter().find(waited).unwrap_or_else(|| panic!("nothing waited for a lock: {said}"));
    assert_eq!(
        (lock["lock_holder"].as_str(), lock["op"].as_str()),
        (Some(holder.as_str()), Some("lock_enqueue")),
        "{lock}"
    );
    let page = good(&["why", lock["id"].as_str().unwrap(), text(&pair.b())]);
    assert!(page.contains(&format!("lock: held by client {holder}")), "{page}");

    // At the metadata target: who changes an inode waits for those that know it.
    fs::metadata(&path).unwrap();
    fs::set_permissions(pair.a().join("f"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    let said = why(&[text(&path)]);
    let change = slowest(&said).iter().find(|r| r["op"] == "mdt_setattr").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(
        (change["client"].as_str(), change["lock_holder"].as_str()),
        (Some(holder.as_str()), Some(waiter.as_str()))
    );
    assert!(change["stages"]["lock_ns"].as_u64() > Some(0), "{change}");

    flocks_are_told(&pair, &holder, &waiter);
}

/// Locks of programs: who waits for one is told whose it is.
fn flocks_are_told(pair: &Pair, holder: &str, waiter: &str) {
    let (ready, go) = (pair.dir.path().join("ready"), pair.dir.path().join("go"));
    for pipe in [&ready, &go] {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    let lock =
        |at: &Path, then: &str| Command::new("flock").args([text(&at.join("f")), "sh", "-c", then]).spawn().unwrap();
    let enqueues = || {
        let stats = good(&["get_param", "-n", "--at", text(&pair.a()), "mdt.*.md_stats"]);
        let line = stats.lines().find(|l| l.starts_with("ldlm_enqueue"));
        line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let waited = || -> Option<Value> {
        let said = why(&[text(&pair.b().join("f"))]);
        let is_it = |r: &&Value| {
            let of_mdt = r["target"].as_str().unwrap().ends_with("MDT0000");
            r["op"] == "lock_enqueue" && of_mdt && r["longest"] == "lock"
        };
        slowest(&said).iter().find(is_it).cloned()
    };
    // That the second one waits already shows in nothing that can be asked: a question of another kind may have been counted.
    let told = (0..20).find_map(|_| {
        let mut first = lock(&pair.a(), &format!("echo > {}; cat {}", text(&ready), text(&go)));
        fs::read(&ready).unwrap();
        let before = enqueues();
        let mut second = lock(&pair.b(), "true");
        while enqueues() == before {
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        fs::write(&go, "").unwrap();
        assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
        waited()
    });
    let told = told.expect("a flock that was waited for");
    assert_eq!((told["client"].as_str(), told["lock_holder"].as_str()), (Some(waiter), Some(holder)), "{told}");
}

#[test]
fn what_nothing_is_known_of_and_who_may_not_ask_is_said() {
    if !can_mount() {
        return;
    }
    let pair = Pair::start(&[]);
    let (a, f) = (pair.a(), pair.a().join("f"));
    written(&f, 4);
    let (code, said) = refused(&["why", text(&a.join("none"))]);
    assert!(code == libc::ENOENT && said.contains("none"), "{code} {said}");
    let (code, said) = refused(&["why", text(pair.dir.path())]);
    assert!(code == libc::ENOTTY && said.contains("is not on a Stria mount"), "{code} {said}");
    let (code, said) = refused(&["why", "no.such.job", text(&a)]);
    assert!(code == libc::ENODATA && said.contains("job no.such.job has no requests in the rings"), "{code} {said}");
    assert!(said.contains("hold everything since"), "{said}");
    let (code, said) = refused(&["why", "OST0000:77:5", text(&a)]);
    assert!(code == libc::ENOENT && said.contains("is in no ring"), "{code} {said}");
    let (_, said) = refused(&["why", text(&f), "--trace", "t"]);
    assert!(said.contains("a trace knows objects and no files"), "{said}");
    let (_, said) = refused(&["why", "dd.0", "--trace", text(&f)]);
    assert!(said.contains("this is no trace of Stria"), "{said}");

    // A ring that is too small for what came since.
    good(&["set_param", "--at", text(&a), "obdfilter.*.trace_bytes=64K"]);
    direct(&f, "4K", 1);
    let first = why(&[text(&f)]);
    let oldest = slowest(&first).iter().find(|r| r["op"] == "ost_read").unwrap()["id"].as_str().unwrap().to_string();
    let other = a.join("other");
    written(&other, 4);
    direct(&other, "4K", 600);
    let (code, said) = refused(&["why", &oldest, text(&a)]);
    assert!(code == libc::ENOENT && said.contains("is in no ring: the ring of "), "{code} {said}");
    assert!(said.contains("OST0000 reaches back to ") && said.contains(" older ones were overwritten"), "{said}");
    assert!(good(&["why", text(&other)]).contains("older ones were overwritten"));

    // Neither requests nor files are anybody's to know.
    let own = pair.dir.path().join("stria");
    // By another process: a program that a child of this one still has open for writing cannot be run (ETXTBSY).
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_stria")).arg(&own).status().unwrap().success());
    for path in [pair.dir.path(), &own] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let stranger = Command::new(&own).args(["why", "dd.0", text(&a)]).uid(65_534).gid(65_534).output().unwrap();
    let said = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert_eq!(stranger.status.code(), Some(libc::EPERM), "{said}");
    assert!(said.contains("only root and the user who runs the daemon may do this"), "{said}");
}
