//! Bandwidth of a directory, and of the OSTs behind a mount: threads times objects times record sizes.
//!
//! Each combination writes new files, syncs them, drops them from this host's caches, and reads them; a thread has its own
//! part of one object.
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use serde_json::{Value, json};

use super::place::Place;
use super::{Findings, Stop};
use crate::failure::{Failed, Outcome};
use crate::message::RankDone;
use crate::os;
use crate::plan::{Draft, Phase, Workload};
use crate::rank;
use crate::stats::{Summary, mb_per_s};

/// Upper ends of the record sizes for which the scheduler's drain estimate has a bandwidth (`nrs_bw_mb_per_s`); what is
/// larger has the last one's place behind them.
const NRS_WINDOWS: [u64; 8] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];

/// What is combined.
#[derive(Clone, Debug)]
pub struct Ranges {
    /// Objects (files) at a time; for OSTs on each of them.
    pub objects: Vec<u64>,
    /// Threads at a time; for OSTs on each of them.
    pub threads: Vec<u64>,
    /// Bytes of a read or write.
    pub records: Vec<u64>,
    /// Bytes that each combination writes; for OSTs to each of them.
    pub bytes: u64,
    /// Random order.
    pub random: bool,
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Objects.
    pub objects: u64,
    /// Threads.
    pub threads: u64,
    /// Bytes of a record.
    pub record: u64,
}

impl Ranges {
    /// The combinations: at least as many threads as objects, and as many for each.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &record in &self.records {
            for &objects in &self.objects {
                let fits = self.threads.iter().filter(|t| **t >= objects && t.is_multiple_of(objects));
                cells.extend(fits.map(|&threads| Cell { objects, threads, record }));
            }
        }
        cells
    }

    /// The workload of a combination on `times` OSTs at a time.
    ///
    /// # Errors
    /// It would have nothing to do.
    pub fn workload(&self, cell: Cell, times: u64) -> Outcome<Workload> {
        let block = self.bytes / cell.threads / cell.record * cell.record;
        if block == 0 {
            let size = types::format_size(self.bytes);
            let record = types::format_size(cell.record);
            return Err(Failed::usage(format!(
                "{size} are not a record of {record} for each of {} threads",
                cell.threads
            )));
        }
        let narrow = |n: u64| u32::try_from(n).map_err(|_| Failed::usage(format!("{n} are too many")));
        let draft = Draft {
            transfer_bytes: cell.record,
            block_bytes: block,
            segments: 1,
            agents: 1,
            tasks: narrow(cell.threads * times)?,
            files: narrow(cell.objects * times)?,
            random: self.random,
            reorder: false,
            fsync: true,
            seed: 0,
        };
        draft.checked().map_err(Failed::usage)
    }
}

/// What is asked of a mount whose OSTs are surveyed.
pub trait Osts {
    /// The OSTs of the file system on which a directory lies.
    ///
    /// # Errors
    /// It lies on no such file system.
    fn all(&self, dir: &Path) -> Outcome<Vec<u16>>;
    /// Makes a file with one stripe on an OST.
    ///
    /// # Errors
    /// There is no such OST, or the file exists.
    fn make(&self, path: &Path, ost: u16) -> Outcome;
}

/// Surveys a directory.
///
/// # Errors
/// There is no room, or it fails.
pub fn disk(dir: &Path, ranges: &Ranges, stop: &Stop, warn: &dyn Fn(&str)) -> Outcome<Findings> {
    let cells = ranges.cells();
    cells.iter().try_for_each(|c| ranges.workload(*c, 1).map(drop))?;
    let place = Place::make(dir, ranges.bytes, warn)?;
    let columns =
        &["objects", "threads", "record_bytes", "write_mb_per_s", "read_mb_per_s", "thread_min", "thread_max"];
    let mut found = Findings::new("disk", columns);
    let mut written = Vec::new();
    for cell in cells {
        let workload = ranges.workload(cell, 1)?;
        let make = |path: &Path, _: u32| {
            let made = OpenOptions::new().write(true).create_new(true).open(path);
            made.map(drop).map_err(|e| Failed::io("making", path, &e))
        };
        let figures = measure(&workload, place.path(), &make, stop)?;
        written.push((cell.record, figures.write));
        let mut row = vec![json!(cell.objects), json!(cell.threads), json!(cell.record)];
        row.extend(figures.row());
        found.push(row);
    }
    found.notes.extend(nrs_table(&written));
    Ok(found)
}

/// Surveys OSTs through a mount, one after the other, or all at a time.
///
/// # Errors
/// There is no room, or it fails.
pub fn ost(
    dir: &Path,
    (osts, chosen, together): (&dyn Osts, &[u16], bool),
    ranges: &Ranges,
    stop: &Stop,
    warn: &dyn Fn(&str),
) -> Outcome<Findings> {
    let there = osts.all(dir)?;
    if let Some(none) = chosen.iter().find(|o| !there.contains(o)) {
        return Err(Failed::new(format!("there is no OST {none}: there are {there:?}"), libc::ENODEV));
    }
    let chosen = if chosen.is_empty() { &there[..] } else { chosen };
    let groups: Vec<&[u16]> = if together { vec![chosen] } else { chosen.chunks(1).collect() };
    let times = groups.first().map_or(1, |g| g.len()) as u64;
    let cells = ranges.cells();
    cells.iter().try_for_each(|c| ranges.workload(*c, times).map(drop))?;
    let place = Place::make(dir, ranges.bytes.saturating_mul(times), warn)?;
    let columns =
        &["ost", "objects", "threads", "record_bytes", "write_mb_per_s", "read_mb_per_s", "thread_min", "thread_max"];
    let mut found = Findings::new("ost", columns);
    for cell in cells {
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for group in &groups {
            let workload = ranges.workload(cell, times)?;
            let make = |path: &Path, file: u32| osts.make(path, group[file as usize % group.len()]);
            let figures = measure(&workload, place.path(), &make, stop)?;
            writes.push((figures.write, group[0]));
            reads.push((figures.read, group[0]));
            let name = if together { "all".into() } else { format!("OST{:04x}", group[0]) };
            let mut row = vec![json!(name), json!(cell.objects), json!(cell.threads), json!(cell.record)];
            row.extend(figures.row());
            found.push(row);
        }
        if !together && groups.len() > 1 {
            found.notes.push(extremes("write", cell, &writes));
            found.notes.push(extremes("read", cell, &reads));
        }
    }
    Ok(found)
}

/// The worst, the best and the mean, as ost-survey prints them.
fn extremes(what: &str, cell: Cell, figures: &[(f64, u16)]) -> String {
    let least = figures.iter().copied().fold(figures[0], |a, b| if b.0 < a.0 { b } else { a });
    let most = figures.iter().copied().fold(figures[0], |a, b| if b.0 > a.0 { b } else { a });
    let mean = Summary::of(&figures.iter().map(|f| f.0).collect::<Vec<_>>()).mean;
    format!(
        "{what}, {} object(s), {} thread(s), {}: worst OST{:04x} {:.1} MB/s, best OST{:04x} {:.1}, mean {mean:.1}",
        cell.objects,
        cell.threads,
        types::format_size(cell.record),
        least.1,
        least.0,
        most.1,
        most.0
    )
}

/// The scheduler's bandwidth table, when there is a figure for each of its record sizes.
fn nrs_table(written: &[(u64, f64)]) -> Option<String> {
    let best = |window: &u64| {
        let of_it = written.iter().filter(|(record, _)| record == window).map(|w| w.1);
        of_it.reduce(f64::max).filter(|mb| *mb >= 0.001).map(|mb| format!("{mb:.1}"))
    };
    let figures = NRS_WINDOWS.iter().map(best).collect::<Option<Vec<String>>>()?;
    Some(format!("set_param ost.OSS.ost_io.nrs_bw_mb_per_s={}", figures.join(",")))
}

/// Figures of one combination.
struct Figures {
    write: f64,
    read: f64,
    threads: Summary,
}

impl Figures {
    fn row(&self) -> [Value; 4] {
        [json!(self.write), json!(self.read), json!(self.threads.min), json!(self.threads.max)]
    }
}

fn measure(workload: &Workload, dir: &Path, make: &dyn Fn(&Path, u32) -> Outcome, stop: &Stop) -> Outcome<Figures> {
    stop.check()?;
    let base = dir.join("object");
    let files: Vec<_> = (0..workload.files).map(|f| workload.path(&base, f)).collect();
    (0..workload.files).zip(&files).try_for_each(|(f, path)| make(path, f))?;
    let (write, _) = phase(workload, &base, Phase::Write, stop)?;
    for path in &files {
        os::forget(path).map_err(|e| Failed::io("syncing", path, &e))?;
    }
    let (read, ranks) = phase(workload, &base, Phase::Read, stop)?;
    for path in &files {
        std::fs::remove_file(path).map_err(|e| Failed::io("removing", path, &e))?;
    }
    let each: Vec<f64> = ranks.iter().map(|r| mb_per_s(r.bytes, r.end_ns - r.begin_ns)).collect();
    Ok(Figures { write, read, threads: Summary::of(&each) })
}

/// One phase; MB/s of all threads together, and what each of them did.
///
/// # Errors
/// A thread failed, or the user wants an end.
pub fn phase(workload: &Workload, base: &Path, phase: Phase, stop: &Stop) -> Outcome<(f64, Vec<RankDone>)> {
    let moved = AtomicU64::new(0);
    let shared = rank::Shared {
        workload,
        base,
        phase,
        // Threads have to be there.
        at_ns: os::now_ns() + 2_000_000 + 100_000 * u64::from(workload.ranks()),
        interval_ns: u64::MAX,
        check: false,
        stop: &stop.0,
        moved: &moved,
    };
    let (ranks, _) = rank::run(&shared, 0..workload.ranks());
    if let Some(failed) = ranks.iter().find_map(|r| r.failed.clone()) {
        return Err(failed);
    }
    stop.check()?;
    let (begin, end) = (ranks.iter().map(|r| r.begin_ns).min(), ranks.iter().map(|r| r.end_ns).max());
    let took = end.unwrap_or(0).saturating_sub(begin.unwrap_or(0));
    Ok((mb_per_s(ranks.iter().map(|r| r.bytes).sum(), took), ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges() -> Ranges {
        Ranges { objects: vec![1, 2, 4], threads: vec![1, 2, 6], records: vec![4096], bytes: 1 << 20, random: false }
    }

    #[test]
    fn combinations_have_as_many_threads_for_each_object() {
        let cell = |objects, threads| Cell { objects, threads, record: 4096 };
        assert_eq!(ranges().cells(), [cell(1, 1), cell(1, 2), cell(1, 6), cell(2, 2), cell(2, 6)]);
        let w = ranges().workload(cell(2, 6), 3).unwrap();
        assert_eq!((w.files, w.tasks, w.block_bytes), (6, 18, 172_032));
        let tiny = Ranges { bytes: 4096, ..ranges() };
        assert_eq!(tiny.workload(cell(1, 2), 1).unwrap_err().errno, libc::EINVAL);
    }

    #[test]
    fn the_schedulers_table_needs_a_figure_for_each_of_its_sizes() {
        let all: Vec<(u64, f64)> = NRS_WINDOWS.iter().map(|w| (*w, *w as f64 / 65536.0)).collect();
        assert_eq!(
            nrs_table(&all).unwrap(),
            "set_param ost.OSS.ost_io.nrs_bw_mb_per_s=1.0,2.0,4.0,8.0,16.0,32.0,64.0,128.0"
        );
        assert_eq!(nrs_table(&all[1..]), None);
        let more = [&all[..], &[(65536, 1.5)]].concat();
        assert!(nrs_table(&more).unwrap().contains("=1.5,"), "the best of several combinations");
    }

    #[test]
    fn a_directory_is_surveyed_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let found = disk(dir.path(), &ranges(), &Stop::default(), &|_| ()).unwrap();
        assert_eq!(found.rows.len(), 5);
        assert!(found.rows.iter().flatten().all(|v| v.as_f64().unwrap() > 0.0), "{found:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let stop = Stop::default();
        stop.0.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(disk(dir.path(), &ranges(), &stop, &|_| ()).unwrap_err().errno, libc::EINTR);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Files of a directory, said to lie on OSTs.
    struct Pretended(std::cell::RefCell<Vec<u16>>);
    impl Osts for Pretended {
        fn all(&self, _: &Path) -> Outcome<Vec<u16>> {
            Ok(vec![0, 1, 5])
        }
        fn make(&self, path: &Path, ost: u16) -> Outcome {
            self.0.borrow_mut().push(ost);
            std::fs::write(path, b"").map_err(|e| Failed::io("making", path, &e))
        }
    }

    #[test]
    fn osts_are_surveyed_one_by_one_or_together() {
        let dir = tempfile::tempdir().unwrap();
        let osts = Pretended(std::cell::RefCell::default());
        let small = Ranges { objects: vec![2], threads: vec![2], ..ranges() };
        let run =
            |chosen: &[u16], together| ost(dir.path(), (&osts, chosen, together), &small, &Stop::default(), &|_| ());
        let found = run(&[], false).unwrap();
        assert_eq!(osts.0.take(), [0, 0, 1, 1, 5, 5]);
        assert_eq!(
            found.rows.iter().map(|r| r[0].as_str().unwrap()).collect::<Vec<_>>(),
            ["OST0000", "OST0001", "OST0005"]
        );
        assert!(found.notes[0].starts_with("write, 2 object(s), 2 thread(s), 4.0K: worst OST"), "{:?}", found.notes);
        assert_eq!(run(&[5, 1], true).unwrap().rows.len(), 1);
        assert_eq!(osts.0.take(), [5, 1, 5, 1]);
        assert_eq!(run(&[7], false).unwrap_err().errno, libc::ENODEV);
    }
}
