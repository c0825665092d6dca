//! Figures of records: how long requests waited and were served, how fast bytes moved, how sequential it was.
use crate::Record;
use std::collections::HashMap;
use types::{Duration, ObjectId};

/// Mean, median, 99th percentile and greatest of some times, nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Half of them are at most this.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of some times; zeros of none. A percentile is a time that there was (nearest rank).
    #[must_use]
    pub fn of(times: impl Iterator<Item = Duration>) -> Spread {
        let mut ns: Vec<u64> = times.map(|d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)).collect();
        if ns.is_empty() {
            return Spread::default();
        }
        ns.sort_unstable();
        let rank = |percent: usize| ns[(ns.len() * percent).div_ceil(100).max(1) - 1] as f64;
        let sum: u128 = ns.iter().map(|n| u128::from(*n)).sum();
        Spread { mean: sum as f64 / ns.len() as f64, p50: rank(50), p99: rank(99), max: ns[ns.len() - 1] as f64 }
    }
}

/// What some requests came to.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Requests.
    pub requests: u64,
    /// Bytes that were to be moved.
    pub bytes: u64,
    /// Requests that failed.
    pub failed: u64,
    /// From the first arrival to the last end, nanoseconds.
    pub span_ns: u64,
    /// Times in the queue.
    pub queue: Spread,
    /// Times with the store.
    pub service: Spread,
    /// Both together.
    pub response: Spread,
}

impl Figures {
    /// Of the records that `of` gives, each time it is called; those that were cancelled do not count.
    #[must_use]
    pub fn of<'a, I: Iterator<Item = &'a Record>>(of: impl Fn() -> I) -> Figures {
        let served = || of().filter(|r| r.is_served());
        let first = served().map(|r| r.arrived.0).min().unwrap_or(0);
        let last = served().map(|r| r.finished.0).max().unwrap_or(0);
        Figures {
            requests: served().count() as u64,
            bytes: served().map(|r| u64::from(r.bytes)).sum(),
            failed: served().filter(|r| r.errno != 0).count() as u64,
            span_ns: last - first,
            queue: Spread::of(served().map(Record::queued)),
            service: Spread::of(served().map(Record::service)),
            response: Spread::of(served().map(Record::response)),
        }
    }
    /// Bytes per second over the span; 0 when there is none.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        if self.span_ns == 0 { 0.0 } else { self.bytes as f64 * 1e9 / self.span_ns as f64 }
    }
}

/// Classes of request sizes: up to 4 KiB, 8 KiB, .. 16 MiB, larger.
pub const SIZE_CLASSES: usize = 14;

/// The class of a request of `bytes` bytes; its upper end is `4096 << class`.
#[must_use]
pub fn size_class(bytes: u32) -> usize {
    let pages = u64::from(bytes).div_ceil(4096).max(1);
    (pages.next_power_of_two().trailing_zeros() as usize).min(SIZE_CLASSES - 1)
}

/// How often a request begins where another one ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sequentiality {
    /// Requests with one of the same object before them.
    pub of_object: u64,
    /// Of these, as they arrived: those that begin where the object's one before ended.
    pub arrived: u64,
    /// Requests with any one before them.
    pub of_target: u64,
    /// Of these, as they were dispatched: those that continue the very one before, in the same object. What a disk sees.
    pub dispatched: u64,
}

impl Sequentiality {
    /// Of the requests of one target.
    #[must_use]
    pub fn of(records: &[Record]) -> Sequentiality {
        let mut order: Vec<&Record> = records.iter().filter(|r| r.is_served()).collect();
        let mut found = Sequentiality::default();
        order.sort_by_key(|r| r.number);
        let mut ends: HashMap<ObjectId, u64> = HashMap::new();
        for r in &order {
            if let Some(end) = ends.insert(r.object, r.end()) {
                found.of_object += 1;
                found.arrived += u64::from(end == r.offset);
            }
        }
        order.sort_by_key(|r| (r.dispatched, r.number));
        found.of_target = order.len().saturating_sub(1) as u64;
        found.dispatched =
            order.windows(2).filter(|w| w[0].object == w[1].object && w[0].end() == w[1].offset).count() as u64;
        found
    }
    /// These and those of another target.
    #[must_use]
    pub fn and(self, other: Sequentiality) -> Sequentiality {
        Sequentiality {
            of_object: self.of_object + other.of_object,
            arrived: self.arrived + other.arrived,
            of_target: self.of_target + other.of_target,
            dispatched: self.dispatched + other.dispatched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flags;
    use types::{Fid, Instant};

    fn record(number: u64, object: u32, offset: u64, times: [u64; 3]) -> Record {
        Record {
            number,
            object: ObjectId(Fid::new(1, object)),
            offset,
            span: 10,
            bytes: 10,
            arrived: Instant(times[0]),
            dispatched: Instant(times[1]),
            finished: Instant(times[2]),
            ..Record::default()
        }
    }

    #[test]
    fn percentiles_are_times_that_there_were() {
        let spread = Spread::of((1..=200).map(Duration::from_nanos));
        assert_eq!(spread, Spread { mean: 100.5, p50: 100.0, p99: 198.0, max: 200.0 });
        assert_eq!(Spread::of(std::iter::once(Duration::from_nanos(7))).p99, 7.0);
        assert_eq!(Spread::of(std::iter::empty()), Spread::default());
    }

    #[test]
    fn figures_leave_out_what_was_cancelled() {
        let gone = Record { flags: Flags::CANCELLED, ..record(2, 1, 0, [0, 900, 900]) };
        let all = [record(0, 1, 0, [100, 110, 150]), record(1, 1, 10, [120, 150, 200]), gone];
        let f = Figures::of(|| all.iter());
        assert_eq!((f.requests, f.bytes, f.span_ns), (2, 20, 100));
        assert_eq!((f.queue.mean, f.service.max, f.response.p50), (20.0, 50.0, 50.0));
        assert_eq!(f.bytes_per_s(), 2e8);
        assert_eq!(Figures::of(|| [].iter()), Figures::default());
    }

    #[test]
    fn what_follows_is_counted_as_it_arrived_and_as_it_was_served() {
        // Two objects that arrive in turns and are served one after the other.
        let arrive = |n: u64| (n, (n % 2) as u32, n / 2 * 10);
        let mut all: Vec<Record> =
            (0..8).map(arrive).map(|(n, object, at)| record(n, object, at, [n, 100 + at, 200])).collect();
        assert_eq!(Sequentiality::of(&all), Sequentiality { of_object: 6, arrived: 6, of_target: 7, dispatched: 0 });
        for r in &mut all {
            r.dispatched = Instant(100 + r.offset + 1000 * u64::from(r.object.0.oid));
        }
        assert_eq!(Sequentiality::of(&all).dispatched, 6);
    }

    #[test]
    fn sizes_fall_into_the_class_whose_end_they_do_not_pass() {
        assert_eq!([0, 1, 4096, 4097, 1 << 20, u32::MAX].map(size_class), [0, 0, 0, 1, 8, 13]);
    }
}
