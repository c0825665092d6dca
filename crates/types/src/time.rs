//! Time as plain numbers; only `rt` reads a clock.
use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds on the world's monotone clock. Starts near 0; comparable only within one world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Instant(pub u64);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Instant = Instant(0);
    /// Later than everything.
    pub const MAX: Instant = Instant(u64::MAX);
    /// Time passed since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}
impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Nanoseconds since 1970-01-01 UTC, signed as POSIX times are: what inodes carry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct WallTime(pub i64);

impl WallTime {
    /// From seconds and nanoseconds (0..1e9), saturating at the ends of the range (years 1677..2262).
    #[must_use]
    pub fn from_parts(secs: i64, nanos: u32) -> WallTime {
        WallTime(secs.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos)))
    }
    /// Whole seconds, rounded down.
    #[must_use]
    pub fn secs(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }
    /// Nanoseconds within the second, 0..1e9.
    #[must_use]
    pub fn nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}
