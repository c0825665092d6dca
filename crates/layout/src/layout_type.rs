//! `Layout`: a RAID-0 layout that is legal because it exists.
use alloc::vec::Vec;
use core::fmt;
use types::{FsError, ObjectId, OstIndex};

use crate::geometry::{Geometry, StripeIndex};
use crate::pool::PoolName;
use crate::{STRIPE_COUNT_MAX, STRIPE_SIZE_BYTES_MAX, STRIPE_SIZE_BYTES_MIN};

/// Bytes in a stripe: a multiple of 64 KiB from 64 KiB to 4 GiB - 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StripeSize(u32);

impl StripeSize {
    /// 4 MiB: one RPC.
    pub const DEFAULT: StripeSize = StripeSize(crate::STRIPE_SIZE_BYTES_DEFAULT);

    /// Checks a size in bytes.
    ///
    /// # Errors
    /// [`LayoutError::StripeSize`] with the size. 0 is refused here; only a [`crate::LayoutSpec`] reads it as "default".
    pub const fn new(bytes: u64) -> Result<StripeSize, LayoutError> {
        let legal = bytes >= STRIPE_SIZE_BYTES_MIN as u64
            && bytes <= STRIPE_SIZE_BYTES_MAX as u64
            && bytes.is_multiple_of(STRIPE_SIZE_BYTES_MIN as u64);
        if legal { Ok(StripeSize(bytes as u32)) } else { Err(LayoutError::StripeSize { bytes }) }
    }
    /// The size.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

/// How stripes are placed. RAID-0 is the only placement; overstriping allows an OST to hold several stripes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pattern {
    /// Each OST holds at most one object of the file.
    #[default]
    Raid0,
    /// An OST may hold several objects of the file.
    Raid0Overstriped,
}

/// One object of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StripeObject {
    /// Where it lives.
    pub ost: OstIndex,
    /// Which object there.
    pub object: ObjectId,
}

/// Why parts do not make a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayoutError {
    /// Not a multiple of 64 KiB in 64 KiB..4 GiB.
    StripeSize {
        /// The size given.
        bytes: u64,
    },
    /// Not 1..=2000 objects.
    StripeCount {
        /// The number of objects given.
        count: u64,
    },
    /// Plain RAID-0 with two objects on one OST.
    RepeatedOst {
        /// The OST that appears twice.
        ost: OstIndex,
    },
    /// The same object twice.
    RepeatedObject {
        /// The object.
        object: ObjectId,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::StripeSize { bytes } => write_stripe_size_error(f, *bytes),
            LayoutError::StripeCount { count } => {
                write!(f, "stripe count {count} is out of range: use 1 to {STRIPE_COUNT_MAX}, or -1 for all OSTs")
            }
            LayoutError::RepeatedOst { ost } => {
                write!(f, "{ost} is listed twice: list each OST once, or ask for overstriping (-C)")
            }
            LayoutError::RepeatedObject { object } => write!(f, "object {object} is listed twice in one layout"),
        }
    }
}

/// The sentence for a stripe size that is not legal: value, rule, nearest legal value.
fn write_stripe_size_error(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    let unit = u64::from(STRIPE_SIZE_BYTES_MIN);
    if bytes < unit {
        return write!(f, "stripe size {bytes} is too small: the smallest is 64K ({unit} bytes)");
    }
    if bytes > u64::from(STRIPE_SIZE_BYTES_MAX) {
        return write!(
            f,
            "stripe size {bytes} is too large: it must be below 4G, at most {STRIPE_SIZE_BYTES_MAX} bytes"
        );
    }
    let (below, above) = (bytes / unit * unit, (bytes / unit + 1) * unit);
    write!(f, "stripe size {bytes} is not a multiple of 64K: use {below}")?;
    if above <= u64::from(STRIPE_SIZE_BYTES_MAX) { write!(f, " or {above}") } else { Ok(()) }
}

impl core::error::Error for LayoutError {}
impl From<LayoutError> for FsError {
    fn from(_: LayoutError) -> FsError {
        FsError::Invalid
    }
}

/// Where a file's bytes live. Fields are private because every value of this type is legal: 1..=2000 objects, a legal
/// stripe size, no object twice, and no OST twice unless overstriped.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    geometry: Geometry,
    pattern: Pattern,
    generation: u16,
    pool: Option<PoolName>,
    objects: Vec<StripeObject>,
}

impl Layout {
    /// Builds a layout with generation 0.
    ///
    /// # Errors
    /// [`LayoutError::StripeCount`], [`LayoutError::RepeatedOst`], [`LayoutError::RepeatedObject`].
    pub fn new(
        stripe_size: StripeSize,
        pattern: Pattern,
        pool: Option<PoolName>,
        objects: Vec<StripeObject>,
    ) -> Result<Layout, LayoutError> {
        let count = objects.len() as u64;
        let geometry = u16::try_from(count)
            .ok()
            .and_then(|n| Geometry::new(stripe_size, n))
            .ok_or(LayoutError::StripeCount { count })?;
        refuse_repeats(pattern, &objects)?;
        Ok(Layout { geometry, pattern, generation: 0, pool, objects })
    }
    /// The same layout with another generation.
    #[must_use]
    pub fn with_generation(mut self, generation: u16) -> Layout {
        self.generation = generation;
        self
    }
    /// Stripe size and count: the arithmetic.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }
    /// Bytes in a stripe.
    #[must_use]
    pub fn stripe_size(&self) -> StripeSize {
        StripeSize(self.geometry.stripe_size() as u32)
    }
    /// Number of objects, 1..=2000.
    #[must_use]
    pub fn stripe_count(&self) -> u16 {
        self.geometry.stripe_count()
    }
    /// Placement.
    #[must_use]
    pub fn pattern(&self) -> Pattern {
        self.pattern
    }
    /// Grows with every change of this file's layout.
    #[must_use]
    pub fn generation(&self) -> u16 {
        self.generation
    }
    /// The pool its OSTs were chosen from.
    #[must_use]
    pub fn pool(&self) -> Option<PoolName> {
        self.pool
    }
    /// The objects, in stripe order.
    #[must_use]
    pub fn objects(&self) -> &[StripeObject] {
        &self.objects
    }
    /// The object of a stripe, `None` beyond the stripe count.
    #[must_use]
    pub fn object(&self, stripe: StripeIndex) -> Option<StripeObject> {
        self.objects.get(usize::from(stripe.0)).copied()
    }
    /// OST of the first stripe: what `getstripe` calls the stripe offset.
    #[must_use]
    pub fn first_ost(&self) -> OstIndex {
        self.objects[0].ost
    }
}

/// Refuses an object twice, and an OST twice under plain RAID-0. Sorts copies: O(n log n), at most 2000 entries.
fn refuse_repeats(pattern: Pattern, objects: &[StripeObject]) -> Result<(), LayoutError> {
    let mut ids: Vec<ObjectId> = objects.iter().map(|o| o.object).collect();
    ids.sort_unstable();
    if let Some(w) = ids.windows(2).find(|w| w[0] == w[1]) {
        return Err(LayoutError::RepeatedObject { object: w[0] });
    }
    if pattern == Pattern::Raid0 {
        let mut osts: Vec<OstIndex> = objects.iter().map(|o| o.ost).collect();
        osts.sort_unstable();
        if let Some(w) = osts.windows(2).find(|w| w[0] == w[1]) {
            return Err(LayoutError::RepeatedOst { ost: w[0] });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec;

    fn obj(ost: u16, oid: u32) -> StripeObject {
        StripeObject { ost: OstIndex(ost), object: ObjectId::new(OstIndex(ost), oid) }
    }

    #[test]
    fn every_illegal_stripe_size_is_refused_with_value_and_remedy() {
        for (bytes, text) in [
            (0, "stripe size 0 is too small: the smallest is 64K (65536 bytes)"),
            (64512, "stripe size 64512 is too small: the smallest is 64K (65536 bytes)"),
            (100_000, "stripe size 100000 is not a multiple of 64K: use 65536 or 131072"),
            (1 << 32, "stripe size 4294967296 is too large: it must be below 4G, at most 4294901760 bytes"),
            ((1 << 32) - 1, "stripe size 4294967295 is too large: it must be below 4G, at most 4294901760 bytes"),
            (4_294_901_760 - 1, "stripe size 4294901759 is not a multiple of 64K: use 4294836224 or 4294901760"),
        ] {
            assert_eq!(StripeSize::new(bytes).unwrap_err().to_string(), text);
        }
        for bytes in [65536, 1 << 20, 3 * 65536, 4_294_901_760] {
            assert_eq!(u64::from(StripeSize::new(bytes).unwrap().bytes()), bytes);
        }
    }

    #[test]
    fn a_layout_has_1_to_2000_distinct_objects() {
        let make = |objects| Layout::new(StripeSize::DEFAULT, Pattern::Raid0, None, objects);
        assert_eq!(make(vec![]), Err(LayoutError::StripeCount { count: 0 }));
        let many = |n: u16| (0..n).map(|i| obj(i, 2)).collect::<Vec<_>>();
        assert_eq!(make(many(2000)).unwrap().stripe_count(), 2000);
        assert_eq!(make(many(2001)), Err(LayoutError::StripeCount { count: 2001 }));
        assert_eq!(make(vec![obj(0, 2), obj(0, 2)]), Err(LayoutError::RepeatedObject { object: obj(0, 2).object }));
        assert_eq!(make(vec![obj(0, 2), obj(0, 3)]), Err(LayoutError::RepeatedOst { ost: OstIndex(0) }));
        let over = Layout::new(StripeSize::DEFAULT, Pattern::Raid0Overstriped, None, vec![obj(0, 2), obj(0, 3)]);
        assert_eq!(over.unwrap().stripe_count(), 2);
    }
}
