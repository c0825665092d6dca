//! `LayoutSpec`: what a user asks for a new file, or what a directory gives its new files.
//!
//! It holds legal values only; a value that is out of range is refused where it enters, with the value and the remedy.
//! Whether an OST or a pool exists is the allocator's and the MDS's business.
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use types::{FsError, OstIndex, parse_size};

use crate::STRIPE_COUNT_MAX;
use crate::layout_type::{Layout, LayoutError, Pattern, StripeObject, StripeSize};
use crate::pool::{PoolError, PoolName};

/// How many stripes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum StripeCount {
    /// What the directory or the file system says (`-c 0`).
    #[default]
    Default,
    /// One on every OST that can take one (`-c -1`).
    All,
    /// Exactly so many, 1..=2000; fewer when there are fewer OSTs.
    Exactly(u16),
}

/// Which pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PoolChoice {
    /// The directory's pool, if it has one (`-p inherit`, or nothing said).
    #[default]
    Inherit,
    /// No pool, whatever the directory says (`-p ignore`, `-p none`).
    Ignore,
    /// This pool.
    Named(PoolName),
}

/// What is asked for a new file, or a directory's default. `Default` asks for nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct LayoutSpec {
    /// Bytes in a stripe; `None` = default.
    pub stripe_size: Option<StripeSize>,
    /// How many stripes.
    pub stripe_count: StripeCount,
    /// OST of the first stripe; `None` = any. Ignored when `osts` is not empty.
    pub index: Option<OstIndex>,
    /// Explicit OSTs in stripe order (`-o`); empty = let the allocator choose.
    osts: Vec<OstIndex>,
    /// Which pool.
    pub pool: PoolChoice,
    /// Several stripes may share an OST (`-C`).
    pub overstripe: bool,
}

/// A spec with every default filled in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resolved {
    /// Bytes in a stripe.
    pub stripe_size: StripeSize,
    /// `None` = all OSTs, else 1..=2000.
    pub stripe_count: Option<u16>,
    /// OST of the first stripe; `None` = any.
    pub index: Option<OstIndex>,
    /// Explicit OSTs in stripe order; empty = let the allocator choose.
    pub osts: Vec<OstIndex>,
    /// The pool to choose from.
    pub pool: Option<PoolName>,
    /// Several stripes may share an OST.
    pub overstripe: bool,
}

/// Why a request is refused. `Display` names the value and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpecError {
    /// The stripe size is not legal; 0 would mean "default".
    StripeSize(LayoutError),
    /// A text is not a size.
    SizeText(String),
    /// Neither -1 (all), 0 (default) nor 1..=2000.
    StripeCount(i64),
    /// Neither -1 (any) nor an OST index 0..=65534.
    Index(i64),
    /// The text of an OST list could not be read.
    OstList(String),
    /// More than 2000 OSTs listed.
    TooManyOsts(usize),
    /// An OST is listed twice without overstriping.
    RepeatedOst(OstIndex),
    /// A stripe count beside an OST list of another length.
    CountAgainstList {
        /// The count asked for.
        count: u16,
        /// OSTs listed.
        listed: usize,
    },
    /// A start index that is not the first of the OST list.
    IndexAgainstList {
        /// The index asked for.
        index: OstIndex,
        /// First OST listed.
        first: OstIndex,
    },
    /// The pool's name is not legal.
    Pool(PoolError),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::StripeSize(e) => write!(f, "{e}"),
            SpecError::SizeText(why) => f.write_str(why),
            SpecError::StripeCount(n) => {
                write!(
                    f,
                    "stripe count {n} is out of range: use 1 to {STRIPE_COUNT_MAX}, -1 for all OSTs or 0 for the default"
                )
            }
            SpecError::Index(n) => {
                write!(f, "stripe index {n} is out of range: use an OST index from 0 to 65534, or -1 for any OST")
            }
            SpecError::OstList(text) => {
                write!(f, "'{text}' is not an OST list: write indices and ranges separated by commas, like 0-2,5")
            }
            SpecError::TooManyOsts(n) => {
                write!(f, "{n} OSTs are listed: a file has at most {STRIPE_COUNT_MAX} stripes")
            }
            SpecError::RepeatedOst(ost) => {
                write!(f, "{ost} is listed twice: list each OST once, or ask for overstriping (-C)")
            }
            SpecError::CountAgainstList { count, listed } => {
                write!(f, "stripe count {count} does not fit the {listed} OSTs listed: leave one of them out")
            }
            SpecError::IndexAgainstList { index, first } => {
                write!(f, "stripe index {index} is not the first OST listed ({first}): leave one of them out")
            }
            SpecError::Pool(e) => write!(f, "{e}"),
        }
    }
}
impl core::error::Error for SpecError {}
impl From<SpecError> for FsError {
    fn from(_: SpecError) -> FsError {
        FsError::Invalid
    }
}

impl StripeCount {
    /// Reads a count as users type it: -1 = all, 0 = default. 0xFFFF, the xattr's "all", is also accepted as such.
    ///
    /// # Errors
    /// [`SpecError::StripeCount`].
    pub fn from_raw(count: i64) -> Result<StripeCount, SpecError> {
        match count {
            -1 | 0xFFFF => Ok(StripeCount::All),
            0 => Ok(StripeCount::Default),
            n if (1..=i64::from(STRIPE_COUNT_MAX)).contains(&n) => Ok(StripeCount::Exactly(n as u16)),
            n => Err(SpecError::StripeCount(n)),
        }
    }
    /// The count as `getstripe` prints it: -1 = all, 0 = default.
    #[must_use]
    pub const fn to_raw(self) -> i64 {
        match self {
            StripeCount::Default => 0,
            StripeCount::All => -1,
            StripeCount::Exactly(n) => n as i64,
        }
    }
}

impl PoolChoice {
    /// Reads a pool option as users type it; the empty text asks for nothing.
    ///
    /// # Errors
    /// [`SpecError::Pool`].
    pub fn parse(text: &str) -> Result<PoolChoice, SpecError> {
        match text {
            "" | "inherit" => Ok(PoolChoice::Inherit),
            "ignore" | "none" => Ok(PoolChoice::Ignore),
            name => PoolName::parse(name).map(PoolChoice::Named).map_err(SpecError::Pool),
        }
    }
}

impl LayoutSpec {
    /// Reads the numbers users type: size 0 = default, count -1 = all and 0 = default, index -1 = any.
    ///
    /// # Errors
    /// [`SpecError`], by the first value that is not legal.
    pub fn from_raw(stripe_size: u64, stripe_count: i64, index: i64) -> Result<LayoutSpec, SpecError> {
        let stripe_size = match stripe_size {
            0 => None,
            bytes => Some(StripeSize::new(bytes).map_err(SpecError::StripeSize)?),
        };
        let index = match index {
            -1 => None,
            n => Some(OstIndex(u16::try_from(n).ok().filter(|i| *i != u16::MAX).ok_or(SpecError::Index(n))?)),
        };
        Ok(LayoutSpec {
            stripe_size,
            stripe_count: StripeCount::from_raw(stripe_count)?,
            index,
            ..LayoutSpec::default()
        })
    }

    /// Asks for these OSTs, in this order. Call it last: the list is checked against count, index and overstriping.
    ///
    /// # Errors
    /// [`SpecError::TooManyOsts`], [`SpecError::RepeatedOst`], [`SpecError::CountAgainstList`],
    /// [`SpecError::IndexAgainstList`].
    pub fn with_osts(mut self, osts: Vec<OstIndex>) -> Result<LayoutSpec, SpecError> {
        if osts.len() > usize::from(STRIPE_COUNT_MAX) {
            return Err(SpecError::TooManyOsts(osts.len()));
        }
        if let (StripeCount::Exactly(count), false) = (self.stripe_count, osts.is_empty())
            && usize::from(count) != osts.len()
        {
            return Err(SpecError::CountAgainstList { count, listed: osts.len() });
        }
        if let (Some(index), Some(&first)) = (self.index, osts.first())
            && index != first
        {
            return Err(SpecError::IndexAgainstList { index, first });
        }
        let mut sorted = osts.clone();
        sorted.sort_unstable();
        if let (Some(w), false) = (sorted.windows(2).find(|w| w[0] == w[1]), self.overstripe) {
            return Err(SpecError::RepeatedOst(w[0]));
        }
        self.osts = osts;
        Ok(self)
    }

    /// The explicit OSTs; empty = let the allocator choose.
    #[must_use]
    pub fn osts(&self) -> &[OstIndex] {
        &self.osts
    }

    /// Whether it asks for nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == LayoutSpec::default()
    }

    /// This spec with what it leaves open taken from `parent` (a directory's or the file system's default). Placement
    /// (index, OST list) is inherited only when the child says nothing about count, pool and placement.
    #[must_use]
    pub fn or(self, parent: &LayoutSpec) -> LayoutSpec {
        let says_nothing = self.stripe_count == StripeCount::Default
            && self.index.is_none()
            && self.osts.is_empty()
            && self.pool == PoolChoice::Inherit;
        let from_parent = self.stripe_count == StripeCount::Default && self.osts.is_empty();
        LayoutSpec {
            stripe_size: self.stripe_size.or(parent.stripe_size),
            stripe_count: if from_parent { parent.stripe_count } else { self.stripe_count },
            index: if says_nothing { parent.index } else { self.index },
            osts: if says_nothing { parent.osts.clone() } else { self.osts },
            pool: if self.pool == PoolChoice::Inherit { parent.pool } else { self.pool },
            overstripe: self.overstripe || (from_parent && parent.overstripe),
        }
    }

    /// Fills what is still open with the house defaults: 4 MiB, one stripe, any OST, no pool.
    #[must_use]
    pub fn resolve(self) -> Resolved {
        let stripe_count = match self.stripe_count {
            _ if !self.osts.is_empty() => Some(self.osts.len() as u16),
            StripeCount::Default => Some(1),
            StripeCount::All => None,
            StripeCount::Exactly(n) => Some(n),
        };
        Resolved {
            stripe_size: self.stripe_size.unwrap_or(StripeSize::DEFAULT),
            stripe_count,
            index: self.index,
            osts: self.osts,
            pool: if let PoolChoice::Named(pool) = self.pool { Some(pool) } else { None },
            overstripe: self.overstripe,
        }
    }
}

impl Resolved {
    /// The layout of a file whose objects were created as asked.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn layout(&self, objects: Vec<StripeObject>) -> Result<Layout, LayoutError> {
        let pattern = if self.overstripe { Pattern::Raid0Overstriped } else { Pattern::Raid0 };
        Layout::new(self.stripe_size, pattern, self.pool, objects)
    }
}

/// Reads a stripe size as `setstripe -S` does: a bare number below 4096 counts KiB; 0 is the default (`None`).
///
/// # Errors
/// [`SpecError::SizeText`] or [`SpecError::StripeSize`].
pub fn parse_stripe_size(text: &str) -> Result<Option<StripeSize>, SpecError> {
    let mut bytes = parse_size(text).map_err(SpecError::SizeText)?;
    if text.trim().bytes().all(|b| b.is_ascii_digit()) && bytes < 4096 {
        bytes *= 1024;
    }
    match bytes {
        0 => Ok(None),
        n => StripeSize::new(n).map(Some).map_err(SpecError::StripeSize),
    }
}

/// Reads an OST list as `setstripe -o` does: `0-2,5`. Indices are decimal, or hexadecimal with `0x`.
///
/// # Errors
/// [`SpecError::OstList`], or [`SpecError::TooManyOsts`] before anything large is built.
pub fn parse_ost_list(text: &str) -> Result<Vec<OstIndex>, SpecError> {
    let bad = || SpecError::OstList(text.to_string());
    let number = |t: &str| -> Option<u16> {
        let t = t.trim();
        let n = match t.strip_prefix("0x") {
            Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => u16::from_str_radix(hex, 16).ok()?,
            None if t.bytes().all(|b| b.is_ascii_digit()) => t.parse().ok()?,
            _ => return None,
        };
        (n != u16::MAX).then_some(n)
    };
    let mut osts = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first).ok_or_else(bad)?, number(last).ok_or_else(bad)?);
        if last < first {
            return Err(bad());
        }
        let listed = osts.len() + usize::from(last - first) + 1;
        if listed > usize::from(STRIPE_COUNT_MAX) {
            return Err(SpecError::TooManyOsts(listed));
        }
        osts.extend((first..=last).map(OstIndex));
    }
    Ok(osts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn bad_values_are_refused_with_value_and_remedy() {
        for (result, text) in [
            (
                LayoutSpec::from_raw(63 << 10, 1, -1),
                "stripe size 64512 is too small: the smallest is 64K (65536 bytes)",
            ),
            (
                LayoutSpec::from_raw(1 << 32, 1, -1),
                "stripe size 4294967296 is too large: it must be below 4G, at most 4294901760 bytes",
            ),
            (LayoutSpec::from_raw(65537, 1, -1), "stripe size 65537 is not a multiple of 64K: use 65536 or 131072"),
            (
                LayoutSpec::from_raw(0, 2001, -1),
                "stripe count 2001 is out of range: use 1 to 2000, -1 for all OSTs or 0 for the default",
            ),
            (
                LayoutSpec::from_raw(0, -2, -1),
                "stripe count -2 is out of range: use 1 to 2000, -1 for all OSTs or 0 for the default",
            ),
            (
                LayoutSpec::from_raw(0, 1, 65535),
                "stripe index 65535 is out of range: use an OST index from 0 to 65534, or -1 for any OST",
            ),
            (
                LayoutSpec::from_raw(0, 1, -2),
                "stripe index -2 is out of range: use an OST index from 0 to 65534, or -1 for any OST",
            ),
        ] {
            assert_eq!(result.unwrap_err().to_string(), text);
        }
        assert!(LayoutSpec::from_raw(0, 0, -1).unwrap().is_empty());
    }

    #[test]
    fn bare_stripe_sizes_below_4096_are_kib() {
        let bytes = |t| parse_stripe_size(t).map(|s| s.map(StripeSize::bytes));
        assert_eq!(bytes("64"), Ok(Some(65536)));
        assert_eq!(bytes("4M"), Ok(Some(4 << 20)));
        assert_eq!(bytes("65536"), Ok(Some(65536)));
        assert_eq!(bytes("0"), Ok(None));
        assert!(bytes("63").is_err() && bytes("63K").is_err() && bytes("4G").is_err() && bytes("4096").is_err());
        assert!(matches!(bytes("two"), Err(SpecError::SizeText(_))));
    }

    #[test]
    fn ost_lists_have_ranges_and_limits() {
        let list = |t| parse_ost_list(t).map(|v| v.iter().map(|o| o.0).collect::<Vec<_>>());
        assert_eq!(list("0-2,5"), Ok(vec![0, 1, 2, 5]));
        assert_eq!(list("0x10"), Ok(vec![16]));
        for bad in ["", "1,,2", "3-1", "a", "65535", "-1", "1-", "+1", "99999999999"] {
            assert!(matches!(list(bad), Err(SpecError::OstList(_))), "{bad}");
        }
        assert_eq!(list("0-65534"), Err(SpecError::TooManyOsts(65535)));
        let spec = LayoutSpec::default();
        assert_eq!(spec.clone().with_osts(vec![OstIndex(1), OstIndex(1)]), Err(SpecError::RepeatedOst(OstIndex(1))));
        let two = LayoutSpec { stripe_count: StripeCount::Exactly(2), ..spec.clone() };
        assert_eq!(two.with_osts(vec![OstIndex(1)]), Err(SpecError::CountAgainstList { count: 2, listed: 1 }));
        let start = LayoutSpec { index: Some(OstIndex(3)), ..spec };
        assert!(matches!(start.with_osts(vec![OstIndex(1)]), Err(SpecError::IndexAgainstList { .. })));
    }

    #[test]
    fn what_a_child_leaves_open_comes_from_its_directory() {
        let pool = PoolName::parse("flash").unwrap();
        let mut dir = LayoutSpec::from_raw(1 << 20, 4, 2).unwrap();
        dir.pool = PoolChoice::Named(pool);
        let r = LayoutSpec::default().or(&dir).resolve();
        assert_eq!(
            (r.stripe_size.bytes(), r.stripe_count, r.index, r.pool),
            (1 << 20, Some(4), Some(OstIndex(2)), Some(pool))
        );
        let r = LayoutSpec::from_raw(0, -1, -1).unwrap().or(&dir).resolve();
        assert_eq!((r.stripe_size.bytes(), r.stripe_count, r.index), (1 << 20, None, None));
        let child = LayoutSpec { pool: PoolChoice::parse("ignore").unwrap(), ..LayoutSpec::default() };
        assert_eq!(child.or(&dir).resolve().pool, None);
        let r = LayoutSpec::default().resolve();
        assert_eq!((r.stripe_size.bytes(), r.stripe_count, r.index), (4 << 20, Some(1), None));
    }
}
