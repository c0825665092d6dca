//! Real processes killed at random under work that is checked: what was fsynced is there, programs see no error, nobody is
//! evicted, and the stores are clean afterwards. Needs root and `/dev/fuse`.
//!
//! Longer, or again: `STRIA_SOAK_SECONDS=600 STRIA_SOAK_SEED=7 cargo test -p stria --test soak -- --nocapture`.
#![allow(clippy::unwrap_used)]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use support::{Cluster, can_mount, good};
use types::Rng;

const OSTS: usize = 2;
/// Operations between two kills, at least.
const WORK_BETWEEN: u64 = 20;
/// Longest time that an operation may take; servers are back within seconds.
const LIMIT: Duration = Duration::from_secs(180);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |t| t.parse().unwrap_or_else(|_| panic!("{variable}={t} is not a number")))
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// What a worker knows to be on stable storage: name, seed and length of the content.
type Known = BTreeMap<String, (u64, usize)>;

struct Worker {
    own: PathBuf,
    other: PathBuf,
    rng: Rng,
    known: Known,
    next: u64,
}

impl Worker {
    fn new(own: &Path, other: &Path, id: usize, seed: u64) -> Worker {
        let rng = Rng::named(seed, &format!("worker {id}"));
        let dir = format!("w{id}");
        fs::create_dir(own.join(&dir)).unwrap();
        Worker { own: own.join(&dir), other: other.join(&dir), rng, known: Known::new(), next: 0 }
    }

    fn some_name(&mut self) -> Option<String> {
        let at = self.rng.below(self.known.len() as u64) as usize;
        self.known.keys().nth(at).cloned()
    }

    /// One operation; the error says which and where.
    fn step(&mut self) -> Result<(), String> {
        let what = self.rng.below(10);
        let name = self.some_name();
        let told = |op: &str, name: &str, e: std::io::Error| format!("{op} {name}: {e}");
        match (what, name) {
            (0..4, _) | (_, None) => {
                self.next += 1;
                let name = format!("f{}", self.next);
                self.write(&name).map_err(|e| told("write", &name, e))
            }
            (4, Some(name)) => self.write(&name).map_err(|e| told("rewrite", &name, e)),
            (5, Some(name)) => {
                self.next += 1;
                let to = format!("r{}", self.next);
                fs::rename(self.own.join(&name), self.own.join(&to)).map_err(|e| told("rename", &name, e))?;
                let known = self.known.remove(&name).unwrap();
                self.known.insert(to, known);
                Ok(())
            }
            (6, Some(name)) => {
                self.known.remove(&name);
                fs::remove_file(self.own.join(&name)).map_err(|e| told("unlink", &name, e))
            }
            (7, Some(name)) => self.check(&self.own, &name),
            (_, Some(name)) => self.check(&self.other, &name),
        }
    }

    fn write(&mut self, name: &str) -> std::io::Result<()> {
        let (seed, len) = (self.rng.next_u64(), self.rng.below(600_000) as usize);
        let mut file = fs::File::create(self.own.join(name))?;
        for part in content(seed, len).chunks(70_001) {
            file.write_all(part)?;
        }
        file.sync_all()?;
        self.known.insert(name.into(), (seed, len));
        Ok(())
    }

    fn check(&self, at: &Path, name: &str) -> Result<(), String> {
        let (seed, len) = self.known[name];
        let path = at.join(name);
        let mut found = Vec::new();
        fs::File::open(&path)
            .and_then(|mut f| f.read_to_end(&mut found))
            .map_err(|e| format!("reading {}: {e}", path.display()))?;
        let wanted = content(seed, len);
        if found == wanted {
            return Ok(());
        }
        let at = found.iter().zip(&wanted).position(|(a, b)| a != b);
        Err(format!("{}: {} bytes, {len} were fsynced; first difference at {at:?}", path.display(), found.len()))
    }
}

/// Kills one or two roles at once and starts them again.
fn strike(c: &mut Cluster, rng: &mut Rng) {
    let all = OSTS as u64 + 1;
    let mut roles = vec![rng.below(all)];
    if rng.chance(0.3) {
        roles.push(rng.below(all));
    }
    roles.dedup();
    for role in &roles {
        match *role {
            0 => c.mds.as_mut().unwrap().kill(),
            i => c.oss[i as usize - 1].as_mut().unwrap().kill(),
        }
    }
    for role in roles {
        match role {
            0 => c.start_mds(),
            i => c.start_oss(i as usize - 1),
        }
    }
}

#[test]
fn random_kills_of_servers_lose_nothing_that_was_fsynced_and_no_program_sees_an_error() {
    if !can_mount() {
        return;
    }
    let (seconds, seed) = (number("STRIA_SOAK_SECONDS", 25), number("STRIA_SOAK_SEED", 1));
    let mut c = Cluster::new(OSTS);
    let mounts = [c.mount("a", &[]), c.mount("b", &[])];
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (tell, told) = channel();
    for i in 0..2 {
        let mut worker = Worker::new(&mounts[i], &mounts[1 - i], i, seed);
        let (over, done, tell) = (over.clone(), done.clone(), tell.clone());
        std::thread::spawn(move || {
            let mut failed = None;
            while failed.is_none() && !over.load(Ordering::Relaxed) {
                failed = worker.step().err();
                done.fetch_add(1, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
            // The test may have given up on us.
            let _ = tell.send((worker, failed));
        });
    }
    let mut rng = Rng::named(seed, "strikes");
    let (begun, mut strikes) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(seconds) && !over.load(Ordering::Relaxed) {
        let (before, since) = (done.load(Ordering::Relaxed), Instant::now());
        while done.load(Ordering::Relaxed) < before + WORK_BETWEEN && !over.load(Ordering::Relaxed) {
            assert!(
                since.elapsed() < LIMIT,
                "seed {seed}: the work stands still after {strikes} strikes: {}",
                logs(&c)
            );
            std::thread::park_timeout(Duration::from_millis(5));
        }
        strike(&mut c, &mut rng);
        strikes += 1;
    }
    over.store(true, Ordering::Relaxed);
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (worker, failed) =
            told.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("seed {seed}: a worker hangs: {}", logs(&c)));
        assert_eq!(failed, None, "seed {seed}, {strikes} strikes: {}", logs(&c));
        workers.push(worker);
    }
    let files: usize = workers.iter().map(|w| w.known.len()).sum();
    println!("seed {seed}: {} operations, {strikes} strikes, {files} files", done.load(Ordering::Relaxed));
    assert!(strikes >= 2 && files > 0);
    // From everywhere, a mount that saw nothing of it included.
    let fresh = c.mount("fresh", &[]);
    for w in &workers {
        let below = w.own.file_name().unwrap();
        for name in w.known.keys() {
            for at in [&w.own, &w.other, &fresh.join(below)] {
                w.check(at, name).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            }
        }
        let mut there: Vec<String> =
            fs::read_dir(fresh.join(below)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        let mut known: Vec<String> = w.known.keys().cloned().collect();
        known.sort();
        assert_eq!(there, known, "seed {seed}");
    }
    let said = logs(&c);
    assert!(!said.contains("evicted"), "seed {seed}: somebody was evicted: {said}");
    let dir = c.path("c");
    c.stop();
    let checked = good(&["fsck", "--data", "--dir", &dir]);
    assert!(checked.ends_with("0 fault(s)\n"), "seed {seed}: {checked}");
}

/// The last lines of every log.
fn logs(c: &Cluster) -> String {
    let mut out = String::new();
    for name in ["log", "a.log", "b.log"] {
        let said = fs::read_to_string(c.dir.path().join(name)).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        out += &format!("\n== {name}\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
    }
    out
}
