//! Random operations against a model: reads, writes, truncation, mappings, allocation, copies and the namespace, on
//! one directory or on two paths of the same file system in turn. Every result must be the model's. A failed run is
//! made shorter, as far as it still fails, and printed.
mod exec;
mod model;
mod op;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use types::Rng;

use exec::Run;
use op::Step;

/// Time spent on making a failed run shorter.
const SHORTEN_MAX: Duration = Duration::from_secs(30);

/// Runs `ops` operations drawn from `seed` in a fresh directory that all `dirs` show.
///
/// # Errors
/// The first result that was not the model's, and the shortest operations found that lead to a failure.
pub fn run(seed: u64, ops: u64, dirs: &[&Path]) -> Result<(), String> {
    assert!(!dirs.is_empty(), "a directory is needed");
    let mut rng = Rng::named(seed, "random operations");
    let steps: Vec<Step> = (0..ops).map(|_| op::draw(&mut rng, dirs.len())).collect();
    let mut fresh = 0;
    let Err((at, why)) = attempt(&steps, dirs, &mut fresh) else { return Ok(()) };
    let mut short = steps[..=at].to_vec();
    let mut last = why.clone();
    shorten(&mut short, &mut last, dirs, &mut fresh);
    let log: Vec<String> = short.iter().map(|s| format!("  [{}] {:?}", s.side, s.op)).collect();
    Err(format!(
        "seed {seed}, operation {at} of {ops}: {why}\nthe shortest run found has {} operations and ends with: {last}\n{}",
        short.len(),
        log.join("\n")
    ))
}

fn attempt(steps: &[Step], dirs: &[&Path], fresh: &mut u32) -> Result<(), (usize, String)> {
    let name = format!("random.{}.{fresh}", std::process::id());
    *fresh += 1;
    let below: Vec<PathBuf> = dirs.iter().map(|d| d.join(&name)).collect();
    std::fs::create_dir(&below[0]).map_err(|e| (0, format!("mkdir {}: {e}", below[0].display())))?;
    let at = Progress::new()?;
    // In a process of its own: a bus error of a mapping is a result, too.
    let result = crate::run::in_child(|| {
        let mut run = Run::new(&below);
        for (i, step) in steps.iter().enumerate() {
            at.set(i);
            run.step(step)?;
        }
        run.finish()
    })
    .map_err(|e| (at.get(), e));
    match std::fs::remove_dir_all(&below[0]) {
        Err(e) if result.is_ok() => Err((steps.len().saturating_sub(1), format!("removing what the run left: {e}"))),
        _ => result,
    }
}

/// How far the child is, seen from the parent.
struct Progress(*mut usize);

impl Progress {
    fn new() -> Result<Progress, (usize, String)> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of a page, at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err((0, format!("mmap: {}", std::io::Error::last_os_error())));
        }
        Ok(Progress(at.cast()))
    }
    fn set(&self, i: usize) {
        // SAFETY: mapped until the drop; the parent only reads after the child's end.
        unsafe { self.0.write_volatile(i) }
    }
    fn get(&self) -> usize {
        // SAFETY: as in `set`.
        unsafe { self.0.read_volatile() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// Leaves out ever smaller parts while the run still fails.
fn shorten(steps: &mut Vec<Step>, why: &mut String, dirs: &[&Path], fresh: &mut u32) {
    let end = Instant::now() + SHORTEN_MAX;
    let mut part = steps.len() / 2;
    while part > 0 && Instant::now() < end {
        let mut at = 0;
        while at < steps.len() && Instant::now() < end {
            let mut without = steps.clone();
            without.drain(at..(at + part).min(steps.len()));
            match attempt(&without, dirs, fresh) {
                Err((i, e)) if !without.is_empty() => {
                    without.truncate(i + 1);
                    (*steps, *why) = (without, e);
                }
                _ => at += part,
            }
        }
        part /= 2;
    }
}
