//! How much a world has done: what its time in the real world goes to. The same seed gives the same numbers.
use std::ops::{AddAssign, Sub};

/// Numbers since a world's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Moments of the clock at which a task was woken or an event happened.
    pub timers: u64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes of their bulk.
    pub bulk_bytes: u64,
    /// Reads, writes and syncs of disks.
    pub disk_calls: u64,
    /// Bytes that disks read and wrote.
    pub disk_bytes: u64,
    /// Syncs of disks.
    pub syncs: u64,
    /// Processes that were started.
    pub starts: u64,
}

impl Work {
    fn with(self, other: Work, f: impl Fn(u64, u64) -> u64) -> Work {
        Work {
            virtual_ns: f(self.virtual_ns, other.virtual_ns),
            polls: f(self.polls, other.polls),
            timers: f(self.timers, other.timers),
            messages: f(self.messages, other.messages),
            bulk_bytes: f(self.bulk_bytes, other.bulk_bytes),
            disk_calls: f(self.disk_calls, other.disk_calls),
            disk_bytes: f(self.disk_bytes, other.disk_bytes),
            syncs: f(self.syncs, other.syncs),
            starts: f(self.starts, other.starts),
        }
    }
}

impl Sub for Work {
    type Output = Work;
    fn sub(self, before: Work) -> Work {
        self.with(before, u64::saturating_sub)
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, more: Work) {
        *self = self.with(more, u64::saturating_add);
    }
}
