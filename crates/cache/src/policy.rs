//! What a reclaim policy is told and what it answers.
//!
//! Decides nothing itself. The mechanism (client page cache, OST cache) owns bytes, dirty state, pins and locks and
//! speaks to a policy only in frame numbers; a policy says which clean frame leaves first. A wrong policy can make a
//! cache slow, never wrong: every victim passes the mechanism's `can_evict`.
//! Source: the trait's shape is the house plan's; grain and flag are paper 000's.
use alloc::vec::Vec;
use core::time::Duration;

/// A page frame's number: dense, `0..capacity_pages`. Reused after the frame has left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct FrameId(pub u32);

/// The granularity of the request that a page belongs to (paper 000): see [`grain_of`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(u8)]
pub enum Grain {
    /// The request is smaller than one stripe.
    #[default]
    Fine = 0,
    /// The request is one stripe or larger.
    Coarse = 1,
}

/// The granularity of a request: fewer bytes than one stripe is fine, equal or more is coarse.
#[must_use]
pub const fn grain_of(request_bytes: u64, stripe_bytes: u64) -> Grain {
    if request_bytes < stripe_bytes { Grain::Fine } else { Grain::Coarse }
}

/// How much a user asked to keep a page (paper 004). Frames leave in this order: all [`Advice::None`] frames that may
/// leave go before the first [`Advice::Cache`] frame, and so on; [`Advice::High`] last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(u8)]
pub enum Advice {
    /// No advice: the policy decides alone.
    #[default]
    None = 0,
    /// Keep if it costs nothing.
    Cache = 1,
    /// Keep, low priority.
    Low = 2,
    /// Keep, medium priority.
    Med = 3,
    /// Keep until nothing else is left.
    High = 4,
}

impl Advice {
    /// All levels, first to leave first.
    pub const ALL: [Advice; 5] = [Advice::None, Advice::Cache, Advice::Low, Advice::Med, Advice::High];
}

/// One access to one page, as a policy sees it. 24 bytes, `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PageAccess {
    /// Stable identity of (object, page): the same page has the same value whenever it comes back. Use [`block_id`].
    /// Ghost lists and sampled shadow caches know pages by it.
    pub block: u64,
    /// Bytes of the whole request that this page is part of, saturated to `u32::MAX`. For readahead: of the request
    /// that triggered it. Size thresholds look at it.
    pub request_bytes: u32,
    /// Granularity of that request; the mechanism computes it with [`grain_of`] on client and OST alike.
    pub grain: Grain,
    /// The user's advice for the page.
    pub advice: Advice,
    /// The page was fetched ahead of any reader: nobody has used it yet. On `touch`: a readahead pass met it in cache,
    /// which is not a use.
    pub readahead: bool,
    /// The access writes.
    pub write: bool,
}

impl PageAccess {
    /// A fine read of one page.
    #[must_use]
    pub const fn fine(block: u64) -> PageAccess {
        PageAccess {
            block,
            request_bytes: types::PAGE_BYTES as u32,
            grain: Grain::Fine,
            advice: Advice::None,
            readahead: false,
            write: false,
        }
    }
    /// A page of a coarse read of `request_bytes` (at least one stripe).
    #[must_use]
    pub const fn coarse(block: u64, request_bytes: u32) -> PageAccess {
        PageAccess { request_bytes, grain: Grain::Coarse, ..PageAccess::fine(block) }
    }
    /// A page of which only the grain is known: of a request of one page, or of one stripe.
    #[must_use]
    pub fn of_grain(block: u64, grain: Grain, stripe_bytes: u64) -> PageAccess {
        let request_bytes = if grain == Grain::Fine { types::PAGE_BYTES as u64 } else { stripe_bytes };
        PageAccess { grain, ..PageAccess::of_request(block, request_bytes, stripe_bytes) }
    }
    /// The page of a request of `request_bytes` on a file striped by `stripe_bytes`.
    #[must_use]
    pub fn of_request(block: u64, request_bytes: u64, stripe_bytes: u64) -> PageAccess {
        PageAccess {
            request_bytes: u32::try_from(request_bytes).unwrap_or(u32::MAX),
            grain: grain_of(request_bytes, stripe_bytes),
            ..PageAccess::fine(block)
        }
    }
    /// The same page, fetched ahead.
    #[must_use]
    pub const fn ahead(mut self) -> PageAccess {
        self.readahead = true;
        self
    }
    /// The same page, with advice.
    #[must_use]
    pub const fn advised(mut self, advice: Advice) -> PageAccess {
        self.advice = advice;
        self
    }
    /// The same page, written.
    #[must_use]
    pub const fn written(mut self) -> PageAccess {
        self.write = true;
        self
    }
}

/// A block identity from two words that name the object and the page's index in it. Mixed, so that taking every
/// 32nd value is a fair sample. Two pages collide with probability 2^-64 per pair, which costs a misjudged page.
#[must_use]
pub const fn block_id(object: u64, page: u64) -> u64 {
    let mut z = object.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ page.wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(32);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Which clean frame leaves first.
///
/// Same calls, same answers: no clock, no randomness, no hidden state. A frame is *resident* from `insert` until
/// `remove` or until `reclaim` names it.
pub trait ReclaimPolicy: Send {
    /// The registry name, which is also the config value and the metric label.
    fn name(&self) -> &'static str;

    /// Whether a page of this access should stay in the cache at all. `false`: the mechanism uses a transient frame
    /// and frees it after the transfer; it may insert the page nevertheless, and then the policy lets it go first.
    fn admits(&self, access: &PageAccess) -> bool {
        let _ = access;
        true
    }

    /// `frame` now holds the page of `access`, which was not in the cache.
    ///
    /// # Panics
    /// When the frame is resident or not below the capacity.
    fn insert(&mut self, frame: FrameId, access: PageAccess);

    /// The page in `frame` was accessed and found.
    ///
    /// # Panics
    /// When the frame is not resident.
    fn touch(&mut self, frame: FrameId, access: PageAccess);

    /// [`ReclaimPolicy::insert`] of each, in order. Cheaper for pages that are scattered over a large cache: the memory of
    /// the next ones is fetched meanwhile.
    ///
    /// # Panics
    /// As [`ReclaimPolicy::insert`].
    fn insert_batch(&mut self, pages: &[(FrameId, PageAccess)]) {
        pages.iter().for_each(|&(frame, access)| self.insert(frame, access));
    }

    /// [`ReclaimPolicy::touch`] of each, in order; cheaper as [`ReclaimPolicy::insert_batch`] is.
    ///
    /// # Panics
    /// As [`ReclaimPolicy::touch`].
    fn touch_batch(&mut self, pages: &[(FrameId, PageAccess)]) {
        pages.iter().for_each(|&(frame, access)| self.touch(frame, access));
    }

    /// The page in `frame` left by the mechanism's will: truncated, its lock was lost, its file is gone.
    ///
    /// # Panics
    /// When the frame is not resident.
    fn remove(&mut self, frame: FrameId);

    /// Appends up to `want` victims in the order in which they should leave; each stops being resident.
    /// `can_evict` says whether a frame may leave now (clean, not pinned); it is asked at most once per resident
    /// frame in one call, and a frame it refused stays resident. Fewer than `want` victims come back only when no
    /// other resident frame may leave.
    fn reclaim(&mut self, want: u32, can_evict: &mut dyn FnMut(FrameId) -> bool, victims: &mut Vec<FrameId>);

    /// A fetch of `pages` pages like `access` took this long from request to bytes. Policies that weigh misses learn
    /// from it; others ignore it.
    fn on_fetched(&mut self, access: &PageAccess, pages: u32, took: Duration) {
        let _ = (access, pages, took);
    }

    /// What the policy knows of the page in a resident `frame` and the mechanism may not: its grain, its advice, and
    /// whether it waits for its first reader. The rest says nothing. A policy that takes the place of this one is told.
    fn remembered(&self, frame: FrameId) -> PageAccess {
        let _ = frame;
        PageAccess::default()
    }

    /// Resident frames.
    fn resident(&self) -> u32;

    /// Policy metadata in bytes per frame of capacity, ghosts and shadows included; at most 32.
    fn metadata_bytes_per_page(&self) -> u32;

    /// Counters of the policy's own decisions, by name, for `get_param` and reports. May be empty.
    fn counters(&self, into: &mut Vec<(&'static str, u64)>) {
        let _ = into;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_below_one_stripe_is_fine_and_one_stripe_or_more_is_coarse() {
        assert_eq!(grain_of(0, 65_536), Grain::Fine);
        assert_eq!(grain_of(65_535, 65_536), Grain::Fine);
        assert_eq!(grain_of(65_536, 65_536), Grain::Coarse);
        assert_eq!(grain_of(u64::MAX, 65_536), Grain::Coarse);
        assert_eq!(PageAccess::of_request(1, 1 << 20, 1 << 20).grain, Grain::Coarse);
        assert_eq!(PageAccess::of_request(1, u64::MAX, 1 << 20).request_bytes, u32::MAX);
    }

    #[test]
    fn every_32nd_block_id_is_a_fair_sample_of_sequential_pages() {
        let sampled = (0..320_000u64).filter(|&p| block_id(7, p).is_multiple_of(32)).count();
        assert!((9_500..10_500).contains(&sampled), "{sampled}");
    }

    #[test]
    fn an_access_stays_small() {
        assert!(core::mem::size_of::<PageAccess>() <= 24);
    }
}
