//! Operation statistics: counts and service times per kind of request, in the field's text format.
use std::cell::RefCell;
use std::collections::BTreeMap;

use types::stats::{self, Samples};
use types::{Duration, WallTime};
use wire::Op;

/// See the module's head.
pub struct Stats {
    start: RefCell<WallTime>,
    rows: RefCell<BTreeMap<Op, Samples>>,
}

impl Stats {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(now: WallTime) -> Stats {
        Stats { start: RefCell::new(now), rows: RefCell::default() }
    }
    /// Counts one request that took so long.
    pub fn count(&self, op: Op, took: Duration) {
        self.rows.borrow_mut().entry(op).or_default().add_time(took);
    }
    /// More operations of a kind, carried out in one request with another that [`Stats::count`] counts.
    pub fn further(&self, op: Op, count: usize) {
        if count > 0 {
            self.rows.borrow_mut().entry(op).or_default().count += count as u64;
        }
    }
    /// Operations of one kind.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.rows.borrow().get(&op).map_or(0, |r| r.count)
    }
    /// Starts counting anew.
    pub fn clear(&self, now: WallTime) {
        *self.start.borrow_mut() = now;
        self.rows.borrow_mut().clear();
    }
    /// `md_stats`: `NAME COUNT samples [usecs] MIN MAX SUM SUMSQ`, after the three lines of times.
    #[must_use]
    pub fn text(&self, now: WallTime) -> String {
        let mut s = stats::times(*self.start.borrow(), now);
        for (op, samples) in &*self.rows.borrow() {
            samples.line(&mut s, name_of(*op), "usecs");
        }
        s
    }
}

/// The field's name of a metadata operation.
fn name_of(op: Op) -> &'static str {
    match op {
        Op::MdtLookup => "lookup",
        Op::MdtGetattr => "getattr",
        Op::MdtOpen => "open",
        Op::MdtClose => "close",
        Op::MdtCreate => "mknod",
        Op::MdtUnlink => "unlink",
        Op::MdtRename => "rename",
        Op::MdtLink => "link",
        Op::MdtSetattr => "setattr",
        Op::MdtReaddir => "readdir",
        Op::MdtReadlink => "readlink",
        Op::MdtGetxattr => "getxattr",
        Op::MdtSetxattr => "setxattr",
        Op::MdtListxattr => "listxattr",
        Op::MdtStatfs => "statfs",
        Op::MdtSync => "sync",
        Op::MdtFid2path => "fid2path",
        Op::MdtSwapLayouts => "swap_layouts",
        Op::LockEnqueue => "ldlm_enqueue",
        Op::LockCancel => "ldlm_cancel",
        Op::LockConvert => "ldlm_convert",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_exporters_parse() {
        let s = Stats::new(WallTime(1_000_000_000));
        s.count(Op::MdtGetattr, Duration::from_micros(3));
        s.count(Op::MdtGetattr, Duration::from_micros(5));
        let text = s.text(WallTime(3_500_000_000));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "snapshot_time             3.500000000 secs.nsecs");
        assert_eq!(lines[2], "elapsed_time              2.500000000 secs.nsecs");
        assert_eq!(lines[3], "getattr                   2 samples [usecs] 3 5 8 34");
        s.clear(WallTime(4));
        assert_eq!(s.requests(Op::MdtGetattr), 0);
    }
}
