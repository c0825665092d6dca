//! What a store asks of its medium, as it is asked: transfers, their sizes, how many go on at a time, and whether they lie
//! beside each other there. Stores without a medium count nothing.
use std::cell::{Cell, RefCell};

use types::stats::{self, Histogram, Scale};
use types::{Duration, Instant};

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// From the medium.
    Read = 0,
    /// To it.
    Write = 1,
}

/// Blocks that lie beside each other on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskRun {
    /// First block there.
    pub start: u64,
    /// How many.
    pub blocks: u64,
}

pub(crate) struct Side {
    /// Places in one call where the blocks do not follow each other on the medium.
    pub breaks: Histogram,
    /// Transfers that one call becomes.
    pub transfers: Histogram,
    /// Transfers under way, the new one too, when each began.
    pub in_flight: Histogram,
    /// Milliseconds of each, rounded down.
    pub time_ms: Histogram,
    /// Blocks of each.
    pub blocks: Histogram,
}
impl Default for Side {
    fn default() -> Side {
        let (doubling, each) = (Histogram::new(Scale::Doubling), Histogram::new(Scale::Each));
        Side { breaks: each, transfers: each, in_flight: each, time_ms: doubling, blocks: doubling }
    }
}

/// Counters of a store's medium.
#[derive(Default)]
pub struct DiskStats {
    sides: RefCell<[Side; 2]>,
    flying: [Cell<u64>; 2],
}

/// A transfer under way.
pub struct DiskIo<'a> {
    stats: &'a DiskStats,
    op: DiskOp,
    began: Instant,
}

impl DiskIo<'_> {
    /// It ended.
    pub fn done(self, now: Instant) {
        let took: Duration = now.since(self.began);
        self.stats.sides.borrow_mut()[self.op as usize].time_ms.add(took.as_millis() as u64);
    }
}
impl Drop for DiskIo<'_> {
    fn drop(&mut self) {
        let flying = &self.stats.flying[self.op as usize];
        flying.set(flying.get() - 1);
    }
}

impl DiskStats {
    /// One call becomes these transfers, in the object's order.
    pub fn call(&self, op: DiskOp, runs: impl Iterator<Item = DiskRun>) {
        let (mut transfers, mut breaks, mut end) = (0, 0, None);
        for run in runs {
            transfers += 1;
            breaks += u64::from(end.is_some_and(|e| e != run.start));
            end = Some(run.start + run.blocks);
        }
        if transfers > 0 {
            let side = &mut self.sides.borrow_mut()[op as usize];
            side.transfers.add(transfers);
            side.breaks.add(breaks);
        }
    }
    /// A transfer of so many blocks is handed to the medium.
    pub fn begin(&self, op: DiskOp, blocks: u64, now: Instant) -> DiskIo<'_> {
        let flying = &self.flying[op as usize];
        flying.set(flying.get() + 1);
        let side = &mut self.sides.borrow_mut()[op as usize];
        side.in_flight.add(flying.get());
        side.blocks.add(blocks);
        DiskIo { stats: self, op, began: now }
    }
    /// Shows what was counted: reads, then writes.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&[Side; 2]) -> T) -> T {
        look(&self.sides.borrow())
    }
    /// Counts from now on.
    pub fn reset(&self) {
        *self.sides.borrow_mut() = <[Side; 2]>::default();
    }
    /// The tables of `brw_stats` that are the medium's.
    pub fn text(&self, out: &mut String) {
        let [read, write] = &*self.sides.borrow();
        stats::table(out, "discontiguous blocks", "rpcs", &read.breaks, &write.breaks);
        stats::table(out, "disk fragmented I/Os", "ios", &read.transfers, &write.transfers);
        stats::table(out, "disk I/Os in flight", "ios", &read.in_flight, &write.in_flight);
        stats::table(out, "I/O time (1/1000s)", "ios", &read.time_ms, &write.time_ms);
        stats::size_table(out, "disk I/O size", "ios", &read.blocks, &write.blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_counted_with_their_company_and_their_place() {
        let s = DiskStats::default();
        let run = |start, blocks| DiskRun { start, blocks };
        s.call(DiskOp::Write, [run(10, 5), run(15, 1), run(40, 2)].into_iter());
        s.call(DiskOp::Read, std::iter::empty());
        let one = s.begin(DiskOp::Write, 5, Instant(0));
        let two = s.begin(DiskOp::Write, 300, Instant(0));
        one.done(Instant(3_000_000));
        drop(two);
        s.begin(DiskOp::Write, 1, Instant(0)).done(Instant(0));
        let mut text = String::new();
        s.text(&mut text);
        let rows = |title: &str| {
            let part = text.split(title).nth(1).unwrap().lines().skip(1).take_while(|l| !l.is_empty());
            let row = |l: &str| {
                let words: Vec<&str> = l.split('|').flat_map(str::split_whitespace).collect();
                format!("{} {}", words[0], words[words.len() - 3])
            };
            part.map(row).collect::<Vec<_>>()
        };
        assert_eq!(rows("discontiguous blocks"), ["1: 1"], "one of two neighbours is elsewhere");
        assert_eq!(rows("disk fragmented I/Os"), ["3: 1"]);
        assert_eq!(rows("disk I/Os in flight"), ["1: 2", "2: 1"]);
        assert_eq!(rows("I/O time (1/1000s)").last().unwrap(), "4: 1");
        s.reset();
        text.clear();
        s.text(&mut text);
        assert!(!text.contains("1:"), "{text}");
    }
}
