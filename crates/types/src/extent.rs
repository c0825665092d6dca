//! Half-open byte ranges.
use core::fmt;

/// The half-open byte range `start..end`. `end == u64::MAX` reads as "to the end of file, wherever that is".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// One past the last byte; never below `start`.
    pub end: u64,
}

impl Extent {
    /// Everything a file can hold.
    pub const ALL: Extent = Extent { start: 0, end: u64::MAX };
    /// No byte.
    pub const EMPTY: Extent = Extent { start: 0, end: 0 };

    /// `start..end`.
    ///
    /// # Panics
    /// When `end < start`; for input from outside use [`Extent::checked`].
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Extent {
        assert!(start <= end, "extent ends before it starts");
        Extent { start, end }
    }
    /// `start..end`, or `None` when `end < start`.
    #[must_use]
    pub const fn checked(start: u64, end: u64) -> Option<Extent> {
        if start <= end { Some(Extent { start, end }) } else { None }
    }
    /// `len` bytes from `start`, cut at `u64::MAX`.
    #[must_use]
    pub const fn at(start: u64, len: u64) -> Extent {
        Extent { start, end: start.saturating_add(len) }
    }
    /// From `start` to the end of everything.
    #[must_use]
    pub const fn from(start: u64) -> Extent {
        Extent { start, end: u64::MAX }
    }
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end - self.start
    }
    /// Whether it holds no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.start >= self.end
    }
    /// Whether both share a byte.
    #[must_use]
    pub const fn overlaps(&self, other: &Extent) -> bool {
        self.start < other.end && other.start < self.end
    }
    /// Whether every byte of `other` lies in `self`.
    #[must_use]
    pub const fn contains(&self, other: &Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
    /// Whether `offset` lies in `self`.
    #[must_use]
    pub const fn contains_offset(&self, offset: u64) -> bool {
        self.start <= offset && offset < self.end
    }
    /// The shared bytes, or `None`.
    #[must_use]
    pub fn intersect(&self, other: &Extent) -> Option<Extent> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        if start < end { Some(Extent { start, end }) } else { None }
    }
    /// The smallest extent that holds both.
    #[must_use]
    pub fn hull(&self, other: &Extent) -> Extent {
        Extent { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
    /// Grown outwards to multiples of `unit` (a power of two).
    #[must_use]
    pub fn align_out(&self, unit: u64) -> Extent {
        debug_assert!(unit.is_power_of_two());
        let mask = unit - 1;
        let end = if self.end > u64::MAX - mask { u64::MAX } else { (self.end + mask) & !mask };
        Extent { start: self.start & !mask, end }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.end == u64::MAX {
            write!(f, "[{}, EOF)", self.start)
        } else {
            write!(f, "[{}, {})", self.start, self.end)
        }
    }
}
impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
