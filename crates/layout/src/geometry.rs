//! RAID-0 arithmetic: file bytes to object bytes and back, checked up to 8 EiB.
//!
//! Stripe `k` of the file (bytes `k*S .. (k+1)*S`) lies in object `k mod N` as that object's stripe `k / N`.
//! Two facts everything here rests on: within one object, a contiguous file extent is contiguous; and an object offset
//! is never larger than the file offset it holds.
use core::fmt;
use types::{Extent, FsError};

use crate::layout_type::StripeSize;

/// Largest size of a file, and of an object: 8 EiB - 1, the largest offset a program can name.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Which object of a layout: 0..stripe count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct StripeIndex(pub u16);

impl fmt::Display for StripeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stripe{}", self.0)
    }
}

/// Stripe size and count: all that the arithmetic needs. Copy, 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Geometry {
    size: StripeSize,
    count: u16,
}

/// A piece of a file that lies in one stripe: the same bytes seen from the file and from the object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Which object.
    pub stripe: StripeIndex,
    /// The bytes inside the object; as long as `file`.
    pub object: Extent,
    /// The bytes inside the file.
    pub file: Extent,
}

/// The bytes of one object that a file extent covers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StripeExtent {
    /// Which object.
    pub stripe: StripeIndex,
    /// The bytes inside the object; `end` is `u64::MAX` when the file extent was open-ended.
    pub object: Extent,
}

/// Why a position has no place in a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The byte at or before this offset lies beyond 8 EiB - 1.
    BeyondLayout {
        /// The offset or extent end asked for.
        offset: u64,
    },
    /// The layout has fewer stripes.
    NoStripe {
        /// The stripe asked for.
        stripe: StripeIndex,
        /// Stripes in the layout.
        count: u16,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::BeyondLayout { offset } => {
                write!(f, "offset {offset} is beyond the file limit of {FILE_SIZE_MAX} bytes")
            }
            MapError::NoStripe { stripe, count } => {
                write!(f, "{stripe} does not exist: the layout has {count} stripes")
            }
        }
    }
}
impl core::error::Error for MapError {}

impl From<MapError> for FsError {
    fn from(e: MapError) -> FsError {
        match e {
            MapError::BeyondLayout { .. } => FsError::FileTooBig,
            MapError::NoStripe { .. } => FsError::Invalid,
        }
    }
}

impl Geometry {
    /// `count` stripes of `size`; `None` unless `count` is 1..=2000.
    #[must_use]
    pub const fn new(size: StripeSize, count: u16) -> Option<Geometry> {
        if count == 0 || count > crate::STRIPE_COUNT_MAX { None } else { Some(Geometry { size, count }) }
    }
    /// Bytes in a stripe.
    #[must_use]
    pub const fn stripe_size(&self) -> u64 {
        self.size.bytes() as u64
    }
    /// Number of objects, 1..=2000.
    #[must_use]
    pub const fn stripe_count(&self) -> u16 {
        self.count
    }
    /// Bytes in one round over all objects: at most 2000 x 4 GiB, below 2^43.
    #[must_use]
    pub const fn round_bytes(&self) -> u64 {
        self.stripe_size() * self.count as u64
    }
    /// All stripe indices.
    pub fn stripes(&self) -> impl ExactSizeIterator<Item = StripeIndex> + use<> {
        (0..self.count).map(StripeIndex)
    }

    /// Object and object offset of the file byte at `offset`.
    ///
    /// # Errors
    /// [`MapError::BeyondLayout`] from 8 EiB - 1 on.
    pub const fn locate(&self, offset: u64) -> Result<(StripeIndex, u64), MapError> {
        if offset >= FILE_SIZE_MAX {
            return Err(MapError::BeyondLayout { offset });
        }
        Ok(self.locate_unchecked(offset))
    }
    const fn locate_unchecked(&self, offset: u64) -> (StripeIndex, u64) {
        let s = self.stripe_size();
        if self.count == 1 {
            return (StripeIndex(0), offset);
        }
        let (number, within) = (offset / s, offset % s);
        let n = self.count as u64;
        (StripeIndex((number % n) as u16), (number / n) * s + within)
    }

    /// File offset of byte `object_offset` of object `stripe`.
    ///
    /// # Errors
    /// [`MapError::NoStripe`]; [`MapError::BeyondLayout`] when the file byte would lie at 8 EiB - 1 or later.
    pub fn file_offset(&self, stripe: StripeIndex, object_offset: u64) -> Result<u64, MapError> {
        self.check(stripe)?;
        let s = self.stripe_size();
        let beyond = MapError::BeyondLayout { offset: object_offset };
        let before = (object_offset / s).checked_mul(self.round_bytes()).ok_or(beyond)?;
        let within = u64::from(stripe.0) * s + object_offset % s;
        let offset = before.checked_add(within).ok_or(beyond)?;
        if offset >= FILE_SIZE_MAX { Err(beyond) } else { Ok(offset) }
    }

    /// The file extent cut at stripe borders, in file order. O(1) per piece, no allocation.
    ///
    /// # Errors
    /// [`MapError::BeyondLayout`] when it ends beyond 8 EiB - 1; clip open-ended extents to the file's size first, or use
    /// [`Geometry::objects`].
    pub fn pieces(&self, file: Extent) -> Result<Pieces, MapError> {
        if file.end > FILE_SIZE_MAX {
            return Err(MapError::BeyondLayout { offset: file.end });
        }
        let (stripe, object) = self.locate_unchecked(file.start);
        Ok(Pieces { geometry: *self, rest: file, stripe, object })
    }

    /// For each object the extent covers, the (contiguous) bytes inside it; starting with the object of the first byte,
    /// each object once. An open-ended extent (`end == u64::MAX`) stays open-ended in every object.
    ///
    /// # Errors
    /// [`MapError::BeyondLayout`] when it ends beyond 8 EiB - 1 and is not open-ended, or starts there.
    pub fn objects(&self, file: Extent) -> Result<StripeExtents, MapError> {
        let open = file.end == u64::MAX;
        if file.end > FILE_SIZE_MAX && !open {
            return Err(MapError::BeyondLayout { offset: file.end });
        }
        if file.start > FILE_SIZE_MAX {
            return Err(MapError::BeyondLayout { offset: file.start });
        }
        let s = self.stripe_size();
        let touched = if file.is_empty() {
            0
        } else if open {
            u64::from(self.count)
        } else {
            ((file.end - 1) / s - file.start / s + 1).min(u64::from(self.count))
        };
        let first = self.locate_unchecked(file.start).0;
        Ok(StripeExtents { geometry: *self, file, next: first, left: touched as u16 })
    }

    /// The bytes of object `stripe` that the file extent covers, `None` when it covers none. Open-ended stays open-ended.
    #[must_use]
    pub fn object_extent(&self, stripe: StripeIndex, file: Extent) -> Option<Extent> {
        let start = self.object_size(stripe, file.start);
        let end = if file.end == u64::MAX { u64::MAX } else { self.object_size(stripe, file.end) };
        (start < end && stripe.0 < self.count).then(|| Extent::new(start, end))
    }

    /// Size of object `stripe` in a file of `file_size` bytes without holes: the number of its bytes below `file_size`.
    /// 0 for a stripe that does not exist. This is also where a truncate cuts the object.
    #[must_use]
    pub const fn object_size(&self, stripe: StripeIndex, file_size: u64) -> u64 {
        if stripe.0 >= self.count {
            return 0;
        }
        let s = self.stripe_size();
        let rounds = file_size / self.round_bytes();
        let rest = file_size % self.round_bytes();
        let before = stripe.0 as u64 * s;
        let part = if rest <= before {
            0
        } else if rest - before < s {
            rest - before
        } else {
            s
        };
        rounds * s + part
    }

    /// Size of the file that an object of `object_size` bytes at `stripe` implies: its last byte's offset + 1, or 0.
    ///
    /// # Errors
    /// As [`Geometry::file_offset`].
    pub fn file_size(&self, stripe: StripeIndex, object_size: u64) -> Result<u64, MapError> {
        match object_size.checked_sub(1) {
            None => self.check(stripe).map(|()| 0),
            Some(last) => Ok(self.file_offset(stripe, last)? + 1),
        }
    }

    /// Size of the file from the sizes of its objects, in stripe order: the largest that any of them implies.
    ///
    /// # Errors
    /// As [`Geometry::file_size`]; more sizes than stripes is [`MapError::NoStripe`].
    pub fn file_size_of(&self, object_sizes: impl IntoIterator<Item = u64>) -> Result<u64, MapError> {
        let mut size = 0;
        for (i, object_size) in object_sizes.into_iter().enumerate() {
            let stripe = StripeIndex(u16::try_from(i).unwrap_or(u16::MAX));
            size = size.max(self.file_size(stripe, object_size)?);
        }
        Ok(size)
    }

    /// The file extents that bytes `object` of object `stripe` hold, one piece per stripe, in order.
    ///
    /// # Errors
    /// [`MapError::NoStripe`]; [`MapError::BeyondLayout`] when its last byte would lie beyond the file limit.
    pub fn file_pieces(&self, stripe: StripeIndex, object: Extent) -> Result<FilePieces, MapError> {
        self.check(stripe)?;
        if let Some(last) = object.end.checked_sub(1).filter(|_| !object.is_empty()) {
            self.file_offset(stripe, last)?;
        }
        Ok(FilePieces { geometry: *self, stripe, rest: object })
    }

    /// End of the stripe that holds `offset`, at most `u64::MAX`.
    #[must_use]
    pub const fn stripe_end(&self, offset: u64) -> u64 {
        let s = self.stripe_size();
        (offset - offset % s).saturating_add(s)
    }

    /// Largest file when no object may exceed `object_size_max` bytes; at most [`FILE_SIZE_MAX`].
    #[must_use]
    pub const fn file_size_max(&self, object_size_max: u64) -> u64 {
        let s = self.stripe_size();
        let full = (object_size_max / s).saturating_mul(self.round_bytes());
        let size = full.saturating_add(object_size_max % s);
        if size > FILE_SIZE_MAX { FILE_SIZE_MAX } else { size }
    }

    fn check(&self, stripe: StripeIndex) -> Result<(), MapError> {
        if stripe.0 < self.count { Ok(()) } else { Err(MapError::NoStripe { stripe, count: self.count }) }
    }
}

/// Iterator over the pieces of a file extent; see [`Geometry::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    geometry: Geometry,
    rest: Extent,
    stripe: StripeIndex,
    object: u64,
}

impl Iterator for Pieces {
    type Item = Piece;
    fn next(&mut self) -> Option<Piece> {
        if self.rest.is_empty() {
            return None;
        }
        let s = self.geometry.stripe_size();
        let cut = self.geometry.stripe_end(self.rest.start).min(self.rest.end);
        let file = Extent::new(self.rest.start, cut);
        let piece = Piece { stripe: self.stripe, object: Extent::at(self.object, file.len()), file };
        self.rest.start = cut;
        // The next stripe starts where the object's stripe starts; the round's last stripe leads to the next round.
        let stripe_start = self.object - self.object % s;
        if self.stripe.0 + 1 == self.geometry.count {
            self.stripe = StripeIndex(0);
            self.object = stripe_start + s;
        } else {
            self.stripe.0 += 1;
            self.object = stripe_start;
        }
        Some(piece)
    }
}

/// Iterator over the objects that a file extent covers; see [`Geometry::objects`].
#[derive(Clone, Debug)]
pub struct StripeExtents {
    geometry: Geometry,
    file: Extent,
    next: StripeIndex,
    left: u16,
}

impl Iterator for StripeExtents {
    type Item = StripeExtent;
    fn next(&mut self) -> Option<StripeExtent> {
        if self.left == 0 {
            return None;
        }
        let stripe = self.next;
        self.left -= 1;
        self.next = StripeIndex(if stripe.0 + 1 == self.geometry.count { 0 } else { stripe.0 + 1 });
        let object = self.geometry.object_extent(stripe, self.file).expect("only touched stripes are visited");
        Some(StripeExtent { stripe, object })
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}
impl ExactSizeIterator for StripeExtents {}

/// Iterator over the file pieces of an object extent; see [`Geometry::file_pieces`].
#[derive(Clone, Debug)]
pub struct FilePieces {
    geometry: Geometry,
    stripe: StripeIndex,
    rest: Extent,
}

impl Iterator for FilePieces {
    type Item = Piece;
    fn next(&mut self) -> Option<Piece> {
        if self.rest.is_empty() {
            return None;
        }
        let cut = self.geometry.stripe_end(self.rest.start).min(self.rest.end);
        let object = Extent::new(self.rest.start, cut);
        let start = self.geometry.file_offset(self.stripe, object.start).expect("the last byte was checked");
        self.rest.start = cut;
        Some(Piece { stripe: self.stripe, object, file: Extent::at(start, object.len()) })
    }
}

#[cfg(test)]
#[path = "geometry_tests.rs"]
mod tests;
