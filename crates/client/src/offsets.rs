//! `llite.*.offset_stats`: where processes read and write. A row is a run of calls of one process that each began where
//! the one before ended; OFFSET tells how far from the end of the run before it began, 0 in another file.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use types::{Fid, WallTime, stats};

/// Runs that ended and are still shown.
const ENDED_MAX: usize = 100;
/// Processes whose run goes on; with one more the one that was silent longest is forgotten.
const PROCESSES_MAX: usize = 64;

const OFF: &str = "disabled\n write anything to this parameter to activate, then '0' or 'disable' to deactivate\n";

#[derive(Clone, Copy)]
struct Run {
    file: u64,
    start: u64,
    end: u64,
    smallest: u64,
    largest: u64,
    offset: i128,
    /// When it last went on, by calls counted.
    last: u64,
}

type Who = (u32, bool);

#[derive(Default)]
struct Runs {
    calls: u64,
    going: BTreeMap<Who, Run>,
    ended: VecDeque<(Who, Run)>,
}

/// Off until a user turns it on; then a look-up and a few additions for each call.
#[derive(Default)]
pub struct Offsets {
    on: Cell<bool>,
    runs: RefCell<Runs>,
}

impl Runs {
    fn note(&mut self, who: Who, file: u64, at: u64, len: u64) {
        self.calls += 1;
        let end = at.saturating_add(len);
        let new = Run { file, start: at, end, smallest: len, largest: len, offset: 0, last: self.calls };
        match self.going.get_mut(&who) {
            Some(run) if run.file == file && run.end == at => {
                run.end = end;
                run.smallest = run.smallest.min(len);
                run.largest = run.largest.max(len);
                run.last = self.calls;
            }
            Some(run) => {
                let offset = if run.file == file { i128::from(at) - i128::from(run.end) } else { 0 };
                let old = std::mem::replace(run, Run { offset, ..new });
                if self.ended.len() == ENDED_MAX {
                    self.ended.pop_front();
                }
                self.ended.push_back((who, old));
            }
            None => {
                if self.going.len() == PROCESSES_MAX {
                    let silent = self.going.iter().min_by_key(|(_, r)| r.last).map(|(w, _)| *w);
                    if let Some(w) = silent {
                        self.going.remove(&w);
                    }
                }
                self.going.insert(who, new);
            }
        }
    }
}

impl Offsets {
    /// A process reads or writes, where this is on.
    pub fn note_call(&self, pid: u32, file: Fid, writes: bool, at: u64, len: u64) {
        if self.on.get() {
            self.runs.borrow_mut().note((pid, writes), file.to_ino(), at, len);
        }
    }
    /// `llite.*.offset_stats` at that time.
    #[must_use]
    pub fn text(&self, now: WallTime) -> String {
        if !self.on.get() {
            return OFF.into();
        }
        let mut out = String::new();
        stats::time_line(&mut out, "snapshot_time:", now);
        let titles = ["R/W", "PID", "RANGE START", "RANGE END", "SMALLEST EXTENT", "LARGEST EXTENT", "OFFSET"];
        let [rw, pid, start, end, smallest, largest, offset] = titles;
        let _ = writeln!(out, "{rw:<3} {pid:>10} {start:>16} {end:>16} {smallest:>17} {largest:>16} {offset:>16}");
        let runs = self.runs.borrow();
        for ((pid, writes), r) in runs.ended.iter().copied().chain(runs.going.iter().map(|(w, r)| (*w, *r))) {
            let Run { start, end, smallest, largest, offset, .. } = r;
            let rw = if writes { "W" } else { "R" };
            let _ = writeln!(out, "{rw:<3} {pid:>10} {start:>16} {end:>16} {smallest:>17} {largest:>16} {offset:>16}");
        }
        out
    }

    /// `0` or `disable` turns them off, `clear` forgets what was seen, anything else turns them on.
    pub fn set(&self, text: &str) {
        self.on.set(match text {
            "0" | "disable" | "disabled" => false,
            "clear" => self.on.get(),
            _ => true,
        });
        *self.runs.borrow_mut() = Runs::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(o: &Offsets) -> Vec<String> {
        let text = o.text(WallTime(1));
        text.lines().skip(2).map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_row_is_a_run_of_calls_that_follow_each_other() {
        let o = Offsets::default();
        assert!(o.text(WallTime(1)).starts_with("disabled"));
        o.set("1");
        let calls = [
            (8385, true, 1, 0, 50),
            (8385, true, 1, 50, 100),
            (8385, true, 1, 100, 10),
            (8385, false, 1, 0, 128),
            (8384, true, 2, 0, 5233),
            (8385, true, 2, 7, 1),
        ];
        for (pid, writes, file, at, len) in calls {
            o.runs.borrow_mut().note((pid, writes), file, at, len);
        }
        let expected = [
            "W 8385 0 150 50 100 0",
            "W 8385 100 110 10 10 -50",
            "W 8384 0 5233 5233 5233 0",
            "R 8385 0 128 128 128 0",
            "W 8385 7 8 1 1 0",
        ];
        assert_eq!(rows(&o), expected);
        o.set("clear");
        assert!(rows(&o).is_empty() && o.on.get());
        (0..200).for_each(|i| o.runs.borrow_mut().note((1, false), 1, i * 10, 1));
        (2..200).for_each(|pid| o.runs.borrow_mut().note((pid, false), 1, 0, 1));
        assert_eq!(rows(&o).len(), ENDED_MAX + PROCESSES_MAX, "it holds no more than it should");
        o.set("disable");
        assert!(!o.on.get());
    }
}
