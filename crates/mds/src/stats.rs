//! Operation statistics: counts and service times per kind of request, in the field's text format.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;

use types::{Duration, WallTime};
use wire::Op;

#[derive(Clone, Copy, Default, Debug)]
struct Row {
    count: u64,
    min_us: u64,
    max_us: u64,
    sum_us: u64,
    sum_squares_us: u128,
}

/// See the module's head.
pub struct Stats {
    start: RefCell<WallTime>,
    rows: RefCell<BTreeMap<Op, Row>>,
}

impl Stats {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(now: WallTime) -> Stats {
        Stats { start: RefCell::new(now), rows: RefCell::default() }
    }
    /// Counts one request that took so long.
    pub fn count(&self, op: Op, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mut rows = self.rows.borrow_mut();
        let row = rows.entry(op).or_default();
        row.min_us = if row.count == 0 { us } else { row.min_us.min(us) };
        row.max_us = row.max_us.max(us);
        row.count += 1;
        row.sum_us = row.sum_us.saturating_add(us);
        row.sum_squares_us = row.sum_squares_us.saturating_add(u128::from(us) * u128::from(us));
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
        let start = *self.start.borrow();
        let mut s = String::new();
        let mut line = |name: &str, t: i64| {
            let t = t.max(0);
            let _ = writeln!(s, "{name:<25} {}.{:09} secs.nsecs", t / 1_000_000_000, t % 1_000_000_000);
        };
        line("snapshot_time", now.0);
        line("start_time", start.0);
        line("elapsed_time", now.0 - start.0);
        for (op, r) in &*self.rows.borrow() {
            let _ = writeln!(
                s,
                "{:<25} {} samples [usecs] {} {} {} {}",
                name_of(*op),
                r.count,
                r.min_us,
                r.max_us,
                r.sum_us,
                r.sum_squares_us
            );
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
