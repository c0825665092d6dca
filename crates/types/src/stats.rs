//! Statistics, and the text forms of them that existing exporters parse.
use alloc::string::String;
use core::fmt::Write as _;

use crate::{Duration, WallTime};

/// Count, least, greatest, sum and sum of squares of a value.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Values seen.
    pub count: u64,
    /// The least; 0 before the first.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// Their sum.
    pub sum: u64,
    /// The sum of their squares.
    pub sumsq: u128,
}

impl Samples {
    /// Takes a value in.
    pub fn add(&mut self, value: u64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.sumsq = self.sumsq.saturating_add(u128::from(value) * u128::from(value));
    }
    /// Takes a time in, in microseconds.
    pub fn add_time(&mut self, took: Duration) {
        self.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
    /// `NAME COUNT samples [UNIT] MIN MAX SUM SUMSQ`, if there are any.
    pub fn line(&self, out: &mut String, name: &str, unit: &str) {
        if self.count > 0 {
            let Samples { count, min, max, sum, sumsq } = self;
            let _ = writeln!(out, "{name:<25} {count} samples [{unit}] {min} {max} {sum} {sumsq}");
        }
    }
    /// The same as a line of a job's YAML.
    pub fn yaml(&self, out: &mut String, name: &str, unit: &str) {
        let Samples { count, min, max, sum, sumsq } = self;
        let _ = write!(out, "  {name}:{:<1$} {{ samples: {count:>11}, ", "", 15usize.saturating_sub(name.len()));
        let _ = writeln!(out, "unit: {unit:>5}, min: {min:>8}, max: {max:>8}, sum: {sum:>16}, sumsq: {sumsq:>18} }}");
    }
}

/// The first lines of a job's YAML: its name and when it last did something.
pub fn job_head(out: &mut String, name: &str, last: WallTime) {
    let _ = writeln!(out, "- job_id:          {name}\n  snapshot_time:   {}", last.secs());
}

const BUCKETS: usize = 32;

/// What the buckets of a [`Histogram`] hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Bucket i: values above 2^(i-1) up to 2^i; 0 and 1 in the first.
    Doubling,
    /// Bucket i: the value i; the last one all greater values, too.
    Each,
}

/// How often values were seen, in 32 buckets.
#[derive(Clone, Copy, Debug)]
pub struct Histogram {
    scale: Scale,
    counts: [u64; BUCKETS],
    sum: u64,
}

impl Histogram {
    /// Nothing seen yet.
    #[must_use]
    pub const fn new(scale: Scale) -> Histogram {
        Histogram { scale, counts: [0; BUCKETS], sum: 0 }
    }
    /// Takes a value in.
    pub fn add(&mut self, value: u64) {
        let bucket = match self.scale {
            Scale::Doubling => u64::from(u64::BITS - (value.max(1) - 1).leading_zeros()),
            Scale::Each => value,
        };
        self.counts[bucket.min(BUCKETS as u64 - 1) as usize] += 1;
        self.sum = self.sum.saturating_add(value);
    }
    /// Values seen.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }
    /// Values of at most `bound`, which is the upper end of a bucket.
    #[must_use]
    pub fn at_most(&self, bound: u64) -> u64 {
        // The last bucket holds all greater values, too.
        (0..BUCKETS - 1).take_while(|b| self.name(*b) <= bound).map(|b| self.counts[b]).sum()
    }
    fn name(&self, bucket: usize) -> u64 {
        match self.scale {
            Scale::Doubling => 1 << bucket,
            Scale::Each => bucket as u64,
        }
    }
}

/// A table of reads and writes beside each other, a row for each bucket up to the last that is in use.
pub fn table(out: &mut String, title: &str, unit: &str, read: &Histogram, write: &Histogram) {
    rows(out, title, unit, (read, write), |bucket| alloc::format!("{}:", read.name(bucket)));
}

/// The same of byte counts taken in as 4 KiB pages, rounded up: rows are ranges of KiB.
pub fn size_table(out: &mut String, title: &str, unit: &str, read: &Histogram, write: &Histogram) {
    rows(out, title, unit, (read, write), |bucket| {
        let from = if bucket == 0 { 0 } else { 4u64 << (bucket - 1) };
        alloc::format!("{from}K - {}K :", 4u64 << bucket)
    });
}

fn rows(
    out: &mut String,
    title: &str,
    unit: &str,
    (read, write): (&Histogram, &Histogram),
    name: impl Fn(usize) -> String,
) {
    let _ = writeln!(out, "\n{:<25} {:^25} | {:^25}", "", "read", "write");
    let _ = writeln!(out, "{title:<25} {unit:>10}  % cum % | {unit:>10}  % cum %");
    let sum = |h: &Histogram| h.counts.iter().sum::<u64>();
    let (reads, writes, mut r, mut w) = (sum(read), sum(write), 0, 0);
    let percent = |part: u64, of: u64| (part * 100).checked_div(of).unwrap_or(0);
    for i in 0..BUCKETS {
        let (of_reads, of_writes) = (read.counts[i], write.counts[i]);
        (r, w) = (r + of_reads, w + of_writes);
        if r + w > 0 {
            let _ = write!(
                out,
                "{:<25} {of_reads:>10} {:>3} {:>3}   | ",
                name(i),
                percent(of_reads, reads),
                percent(r, reads)
            );
            let _ = writeln!(out, "{of_writes:>10} {:>3} {:>3}", percent(of_writes, writes), percent(w, writes));
        }
        if r == reads && w == writes {
            break;
        }
    }
}

/// `NAME SECONDS.NANOSECONDS secs.nsecs`.
pub fn time_line(out: &mut String, name: &str, time: WallTime) {
    let time = WallTime(time.0.max(0));
    let _ = writeln!(out, "{name:<25} {}.{:09} secs.nsecs", time.secs(), time.nanos());
}

/// The three lines of times that statistics begin with.
#[must_use]
pub fn times(started: WallTime, now: WallTime) -> String {
    let mut out = String::new();
    time_line(&mut out, "snapshot_time", now);
    time_line(&mut out, "start_time", started);
    time_line(&mut out, "elapsed_time", WallTime(now.0 - started.0));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_exporters_parse() {
        let mut s = Samples::default();
        let mut out = times(WallTime(1_000_000_000), WallTime(3_500_000_000));
        s.line(&mut out, "read", "usecs");
        s.add(3);
        s.add_time(Duration::from_micros(5));
        s.line(&mut out, "read", "usecs");
        let lines: alloc::vec::Vec<_> = out.lines().collect();
        assert_eq!(lines[0], "snapshot_time             3.500000000 secs.nsecs");
        assert_eq!(lines[2], "elapsed_time              2.500000000 secs.nsecs");
        assert_eq!(lines[3..], ["read                      2 samples [usecs] 3 5 8 34"]);
        let mut yaml = String::new();
        s.yaml(&mut yaml, "read_bytes", "bytes");
        let want = "  read_bytes:      { samples:           2, unit: bytes, min:        3, max:        5, sum:                8, sumsq:                 34 }\n";
        assert_eq!(yaml, want);
    }

    #[test]
    fn buckets_double_and_are_closed_at_their_upper_end_or_hold_one_value_each() {
        let mut doubling = Histogram::new(Scale::Doubling);
        [0, 1, 2, 3, 4, 5, 256, 257, u64::MAX].into_iter().for_each(|v| doubling.add(v));
        assert_eq!(doubling.counts[..10], [2, 1, 2, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!(doubling.counts[31], 1);
        let mut each = Histogram::new(Scale::Each);
        [0, 3, 3, 31, 99].into_iter().for_each(|v| each.add(v));
        assert_eq!((each.counts[0], each.counts[3], each.counts[31]), (1, 2, 2));
    }

    #[test]
    fn tables_show_reads_and_writes_with_their_shares_up_to_the_last_row() {
        let (mut read, mut write) = (Histogram::new(Scale::Doubling), Histogram::new(Scale::Doubling));
        [1, 2, 2, 2].into_iter().for_each(|v| read.add(v));
        write.add(4);
        let mut out = String::new();
        table(&mut out, "pages per rpc", "rpcs", &read, &write);
        let lines: alloc::vec::Vec<_> =
            out.lines().skip(3).map(|l| l.split_whitespace().collect::<alloc::vec::Vec<_>>()).collect();
        assert_eq!(lines[0], ["1:", "1", "25", "25", "|", "0", "0", "0"]);
        assert_eq!(lines[1], ["2:", "3", "75", "100", "|", "0", "0", "0"]);
        assert_eq!(lines[2], ["4:", "0", "0", "100", "|", "1", "100", "100"]);
        assert_eq!(lines.len(), 3);
        out.clear();
        size_table(&mut out, "extents", "calls", &read, &write);
        assert!(out.contains("0K - 4K :") && out.contains("\n8K - 16K :"), "{out}");
    }
}
