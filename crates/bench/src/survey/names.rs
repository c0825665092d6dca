//! Metadata of a mount: creates, stats and unlinks per second, by threads in directories.
//!
//! Shape of mds-survey: every combination makes its directories, creates the files, stats them and unlinks them, each step
//! by all threads at a time. Threads share a directory when there are more of them than directories.
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::place::Place;
use super::{Findings, Stop};
use crate::failure::{Failed, Outcome};
use crate::os;

/// Most threads and directories.
pub const THREADS_MAX: u64 = 4096;

/// What is combined.
#[derive(Clone, Debug)]
pub struct Ranges {
    /// Threads at a time.
    pub threads: Vec<u64>,
    /// Directories.
    pub directories: Vec<u64>,
    /// Files of each thread.
    pub files: u64,
}

#[derive(Clone, Copy)]
enum Step {
    Create,
    Stat,
    Unlink,
}

/// Surveys the metadata server behind a directory.
///
/// # Errors
/// It fails.
pub fn mdt(dir: &Path, ranges: &Ranges, stop: &Stop, warn: &dyn Fn(&str)) -> Outcome<Findings> {
    let place = Place::make(dir, 0, warn)?;
    let columns = &["directories", "threads", "files", "creates_per_s", "stats_per_s", "unlinks_per_s", "slowest_ms"];
    let mut found = Findings::new("mdt", columns);
    for &directories in &ranges.directories {
        for &threads in ranges.threads.iter().filter(|t| **t >= directories) {
            let places = make_directories(place.path(), directories)?;
            let files = ranges.files * threads;
            let mut row: Vec<Value> = vec![json!(directories), json!(threads), json!(files)];
            let mut slowest = 0;
            for step in [Step::Create, Step::Stat, Step::Unlink] {
                let (ns, worst) = run(step, &places, threads, ranges.files, stop)?;
                slowest = slowest.max(worst);
                row.push(json!(files as f64 * 1e9 / ns.max(1) as f64));
            }
            row.push(json!(slowest as f64 / 1e6));
            found.push(row);
            for path in places {
                fs::remove_dir(&path).map_err(|e| Failed::io("removing", &path, &e))?;
            }
        }
    }
    Ok(found)
}

fn make_directories(parent: &Path, count: u64) -> Outcome<Vec<PathBuf>> {
    let make = |i| {
        let path = parent.join(format!("d{i}"));
        fs::create_dir(&path).map_err(|e| Failed::io("making", &path, &e)).map(|()| path)
    };
    (0..count).map(make).collect()
}

/// One step by all threads: what it took, and the operation that took longest, ns.
fn run(step: Step, places: &[PathBuf], threads: u64, files: u64, stop: &Stop) -> Outcome<(u64, u64)> {
    let at = os::now_ns() + 2_000_000 + 100_000 * threads;
    let work = |thread: u64| -> Outcome<(u64, u64, u64)> {
        let dir = &places[thread as usize % places.len()];
        os::sleep_until(at);
        let begin = os::now_ns();
        let (mut before, mut slowest) = (begin, 0);
        for file in 0..files {
            if stop.0.load(Ordering::Relaxed) {
                break;
            }
            let path = dir.join(format!("t{thread}.{file}"));
            if let Err(e) = carry_out(step, &path) {
                stop.0.store(true, Ordering::Relaxed);
                return Err(Failed::io(name(step), &path, &e));
            }
            let now = os::now_ns();
            slowest = slowest.max(now - before);
            before = now;
        }
        Ok((begin, before, slowest))
    };
    let done: Vec<Outcome<(u64, u64, u64)>> = std::thread::scope(|scope| {
        let spawn = |t| std::thread::Builder::new().spawn_scoped(scope, move || work(t));
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        let join = |t: io::Result<std::thread::ScopedJoinHandle<'_, _>>| match t.map(|t| t.join()) {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(Failed::new("a thread panicked", libc::EIO)),
            Err(e) => Err(Failed::new(format!("starting a thread: {e}"), libc::EAGAIN)),
        };
        threads.into_iter().map(join).collect()
    });
    let done = done.into_iter().collect::<Outcome<Vec<_>>>()?;
    stop.check()?;
    let begin = done.iter().map(|d| d.0).min().unwrap_or(0);
    let end = done.iter().map(|d| d.1).max().unwrap_or(0);
    Ok((end - begin, done.iter().map(|d| d.2).max().unwrap_or(0)))
}

fn name(step: Step) -> &'static str {
    match step {
        Step::Create => "making",
        Step::Stat => "looking at",
        Step::Unlink => "removing",
    }
}

fn carry_out(step: Step, path: &Path) -> io::Result<()> {
    match step {
        Step::Create => OpenOptions::new().write(true).create_new(true).open(path).map(drop),
        Step::Stat => fs::metadata(path).map(drop),
        Step::Unlink => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_surveyed_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = Ranges { threads: vec![1, 3], directories: vec![1, 2], files: 20 };
        let found = mdt(dir.path(), &ranges, &Stop::default(), &|_| ()).unwrap();
        let shape: Vec<Vec<u64>> =
            found.rows.iter().map(|r| r[..3].iter().map(|v| v.as_u64().unwrap()).collect()).collect();
        assert_eq!(shape, [[1, 1, 20], [1, 3, 60], [2, 3, 60]]);
        assert!(found.rows.iter().flatten().all(|v| v.as_f64().unwrap() > 0.0));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_error_names_the_file_and_ends_all_threads() {
        let dir = tempfile::tempdir().unwrap();
        let places = [dir.path().join("gone")];
        let failed = run(Step::Create, &places, 3, 10, &Stop::default()).unwrap_err();
        assert!(failed.errno == libc::ENOENT && failed.text.contains("gone/t"), "{failed}");
    }
}
