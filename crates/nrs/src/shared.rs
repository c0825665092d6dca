//! What the heads of one server tell each other, so that a rule's rate holds over all OSTs of the server.
//!
//! Each head keeps a replica of the server's buckets. Its policy stays a value: what others took is one more thing that it
//! is told. When a head serves a request, the policy says what that took ([`Taken`]); the driver, an OSS or the simulator,
//! tells it at once to the server's other heads, which charge their replicas and answer whether requests of the same class
//! wait with them ([`Share`]); the sum of the answers goes back to the head that served. Both calls stand in the head's
//! record, so each head is replayed alone. Replicas that differ (a policy that was just built knows of no debts) agree
//! after one request: the later times count. Heads whose rules differ, while a change is under way, share nothing.
//!
//! Turns: a head that took while others wait lets them go first. As many turns as others wait it holds back, one request's
//! worth of the bucket per turn, at most what an idle bucket saves up: so it leaves for them what they may take whenever
//! their windows let them, and loses nothing if they do not. If the bucket cannot hold that much (`depth=1`, or requests
//! larger than the burst) and it took out of turn what the others waited for, it waits twice as long from time to time,
//! until they have had theirs: a busy head is not starved by an idle one.
//!
//! When the time of a head's [`crate::NrsPolicy::wakeup_at`] changes by what it is told, the driver asks again for it; it may
//! have come nearer or become none, so a head that was told anything is polled.
use crate::bucket::ClassKey;

/// Most times that a head's wait for others is doubled.
pub(crate) const DOUBLED_MAX: u8 = 16;

/// What a served request took from the buckets of its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The rules that it fell under, as a hash.
    pub(crate) rules: u64,
    pub(crate) key: ClassKey,
    pub(crate) bytes: u32,
    /// The head was letting others go first.
    pub(crate) out_of_turn: bool,
    /// The bucket's times afterwards.
    pub(crate) times: Times,
}

/// A bucket's times in requests and in bytes: it is full when both have passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    pub(crate) requests_ns: u64,
    pub(crate) bytes_ns: u64,
}

impl Times {
    /// The later of both, each.
    pub(crate) fn max(self, other: Times) -> Times {
        Times { requests_ns: self.requests_ns.max(other.requests_ns), bytes_ns: self.bytes_ns.max(other.bytes_ns) }
    }
}

/// What heads answer when they are told what another one took; of several heads: [`Share::add`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Heads in which requests of the class wait.
    pub(crate) waiting: u32,
    /// One of them may serve none of these now.
    pub(crate) out: bool,
    /// The bucket's times, as known there.
    pub(crate) times: Times,
}

impl Share {
    /// Takes another head's answer in.
    pub fn add(&mut self, other: &Share) {
        self.waiting += other.waiting;
        self.out |= other.out;
        self.times = self.times.max(other.times);
    }
    /// Whether the head that took need not be told, since it knows.
    #[must_use]
    pub fn is_news_to(&self, taken: &Taken) -> bool {
        self.waiting > 0 || taken.out_of_turn || self.times.max(taken.times) != taken.times
    }
}
