//! Parallel readahead: several patterns watch; what the first that explains the stream foretells is fetched by a pool.
//!
//! * **Synchronous part**: a miss in a stream takes up to `sync_bytes_max` beyond it along, in the same RPC.
//! * **Asynchronous part**: at the start of every read (and after large progress in one), as soon as at least one RPC's
//!   worth of the window is free.
//! * The window starts at 4 reads and grows 4-fold, then 2-fold, with every piece asked for; beyond its unforced maximum
//!   only when readers had to wait; so does the number of records ahead. It halves when pages are reclaimed unused.
//! * A stream whose pages are cached (no miss so far) asks for nothing.
//!
//! Source: paper 003 section 4.
use alloc::boxed::Box;
use smallvec::SmallVec;
use types::{Extent, KIB, MIB, PAGE_BYTES};

use super::ReadaheadPolicy;
use crate::config::Config;
use crate::file::{Ask, Hint};
use crate::pattern::{PATTERNS, Pattern};

const PAGE: u64 = PAGE_BYTES as u64;
/// Below this the window grows 4-fold, above it 2-fold.
const FAST_GROWTH_BYTES_MAX: u64 = 4 * MIB;

/// See the module.
pub struct Parallel {
    patterns: SmallVec<[Box<dyn Pattern>; 4]>,
    /// The pattern that explains the stream.
    active: Option<usize>,
    /// The stream had a miss: its pages are not all cached.
    warm: bool,
    reads: u64,
    last_read: Extent,
    window: u64,
    /// Halved by waste, recovers with progress; the window stays below.
    ceiling: u64,
    /// Readers had to wait: the window may go to its maximum.
    forced: bool,
    /// Records asked for ahead at most: doubles when readers had to wait although that many reads went by since it last did.
    records: u64,
    /// Value of `reads` then.
    records_grew_at: u64,
    /// Bytes read since the last look ahead over records.
    progress: u64,
    look_again_at: u64,
    /// Bytes read since waste last halved the ceiling: one burst of reclaim counts once.
    since_waste: u64,
    whole_file_done: bool,
    limits: Limits,
    /// What the configuration says; a hint changes `limits`.
    configured: Limits,
}

/// What it needs of the configuration.
#[derive(Clone, Copy)]
struct Limits {
    window_max: u64,
    unforced_max: u64,
    initial_min: u64,
    initial_max: u64,
    sync_max: u64,
    whole_file_max: u64,
    records_max: u64,
    records_unforced_max: u64,
}

impl Parallel {
    /// With every pattern of the house, in registry order.
    #[must_use]
    pub fn new(config: &Config) -> Parallel {
        Parallel::with(config, PATTERNS.iter().map(|p| (p.make)()))
    }
    /// With the patterns of these names, in registry order; unknown names are left out.
    #[must_use]
    pub fn with_patterns(config: &Config, names: &[&str]) -> Parallel {
        Parallel::with(config, PATTERNS.iter().filter(|p| names.contains(&p.name)).map(|p| (p.make)()))
    }
    /// With any patterns; an earlier one that explains a read hides the later.
    #[must_use]
    pub fn with(config: &Config, patterns: impl IntoIterator<Item = Box<dyn Pattern>>) -> Parallel {
        let limits = Limits {
            window_max: config.window_bytes_max,
            unforced_max: config.window_bytes_unforced_max.min(config.window_bytes_max),
            initial_min: config.window_bytes_initial_min,
            initial_max: config.window_bytes_initial_max.max(config.window_bytes_initial_min),
            sync_max: config.sync_bytes_max,
            whole_file_max: config.whole_file_bytes_max,
            records_max: config.records_ahead_max,
            records_unforced_max: config.records_ahead_unforced_max.min(config.records_ahead_max),
        };
        Parallel {
            patterns: patterns.into_iter().collect(),
            active: None,
            warm: false,
            reads: 0,
            last_read: Extent::EMPTY,
            window: 0,
            ceiling: limits.window_max,
            forced: false,
            records: limits.records_unforced_max,
            records_grew_at: 0,
            progress: 0,
            look_again_at: 0,
            since_waste: u64::MAX,
            whole_file_done: false,
            limits,
            configured: limits,
        }
    }

    /// All patterns watch; the first that explains the read is used.
    #[inline]
    fn observe(&mut self, read: Extent) -> Option<usize> {
        let mut first = None;
        for (i, p) in self.patterns.iter_mut().enumerate() {
            if p.observe(read) && first.is_none() {
                first = Some(i);
            }
        }
        first
    }

    fn start_stream(&mut self) {
        self.warm = false;
        self.window = 0;
        self.forced = false;
        self.records = self.limits.records_unforced_max;
    }

    fn initial_window(&self, read_bytes: u64) -> u64 {
        let w = read_bytes.saturating_mul(4).min(self.limits.initial_max).next_power_of_two();
        w.clamp(self.limits.initial_min, self.limits.initial_max).min(self.window_max())
    }

    /// Largest window now: shared by the streams of the pattern in use.
    fn window_max(&self) -> u64 {
        let top = if self.forced { self.limits.window_max } else { self.limits.unforced_max };
        let streams = self.active.map_or(1, |i| self.patterns[i].streams().max(1));
        top.min(self.ceiling) / streams
    }

    fn grow(&mut self) {
        let factor = if self.window < FAST_GROWTH_BYTES_MAX { 4 } else { 2 };
        self.window = self.window.saturating_mul(factor).min(self.window_max());
    }

    /// Readers had to wait: small records are asked for further ahead, for it is not bytes but their latency that is short.
    fn grow_records(&mut self) {
        if self.reads - self.records_grew_at >= self.records {
            self.records = (self.records * 2).min(self.limits.records_max);
            self.records_grew_at = self.reads;
        }
    }

    /// Bytes of window that must be free before asking for more: an RPC, or a quarter of a small window.
    fn grain(&self, rpc_bytes: u64) -> u64 {
        (self.window / 4).min(rpc_bytes).max(PAGE)
    }

    /// The asynchronous part after `read`.
    #[inline]
    fn look_ahead(&mut self, read: Extent, ask: &mut Ask<'_>) {
        let Some(pattern) = self.active.map(|i| &self.patterns[i]) else { return };
        let window = self.window;
        let Some(next) = pattern.next(read, window) else { return };
        let contiguous = next.len() >= window;
        if contiguous && next.start >= read.end {
            let lead = ask.covered_until(next.start).saturating_sub(next.start);
            let lock_end = ask.facts().lock.end;
            if next.start.saturating_add(lead) >= lock_end {
                ask.want_lock(Extent::new(lock_end.min(next.end), next.end));
                return;
            }
            let at_end = next.start.saturating_add(lead) >= ask.facts().file_size;
            if at_end || lead + self.grain(ask.facts().rpc_bytes) > window {
                return;
            }
        } else if contiguous {
            let lead = next.end - ask.covered_from(next.end);
            if lead + self.grain(ask.facts().rpc_bytes) > window || lead >= next.end {
                return;
            }
        } else if self.progress < self.look_again_at {
            return;
        }
        self.walk(read, ask);
    }

    /// Asks for what the pattern foretells after `read`, up to the window, then lets the window grow.
    fn walk(&mut self, read: Extent, ask: &mut Ask<'_>) {
        let Some(active) = self.active else { return };
        let pattern = &self.patterns[active];
        let grain = self.grain(ask.facts().rpc_bytes);
        let (mut cursor, mut ahead) = (read, 0);
        for _ in 0..self.records {
            let left = self.window - ahead;
            let Some(next) = pattern.next(cursor, left).filter(|n| !n.is_empty()) else { break };
            let whole = if next.len() >= left { round_to_grain(next, cursor, grain) } else { next };
            if whole.is_empty() || !ask.asynchronous(whole) {
                break;
            }
            ahead += whole.len();
            cursor = whole;
            if ahead >= self.window || whole.start >= ask.facts().file_size {
                break;
            }
        }
        self.progress = 0;
        self.look_again_at = (ahead / 4).min(grain);
        self.ceiling = self.ceiling.saturating_add(ahead / 16).min(self.limits.window_max);
        if ahead > 0 {
            self.grow();
        }
    }

    /// A small file is fetched whole. True when it was asked for.
    fn whole_file(&mut self, miss: Extent, ask: &mut Ask<'_>) -> bool {
        let size = ask.facts().file_size;
        if self.whole_file_done || size > self.limits.whole_file_max || (miss.start > 0 && self.reads < 2) {
            return false;
        }
        self.whole_file_done = true;
        let whole = Extent::new(0, size);
        if size <= self.limits.sync_max { ask.sync(whole) } else { ask.asynchronous(whole) }
    }
}

/// The window's edge cuts a contiguous request at a multiple of `grain`, so that the next one starts on an RPC border.
fn round_to_grain(next: Extent, cursor: Extent, grain: u64) -> Extent {
    if next.start >= cursor.end {
        let end = next.end - next.end % grain;
        Extent::new(next.start, end.max(next.start))
    } else {
        let start = next.start.checked_next_multiple_of(grain).unwrap_or(next.end);
        Extent::new(start.min(next.end), next.end)
    }
}

impl ReadaheadPolicy for Parallel {
    fn on_read(&mut self, read: Extent, ask: &mut Ask<'_>) {
        self.reads += 1;
        self.last_read = read;
        let explained = self.observe(read);
        if explained != self.active {
            if explained.is_none() {
                ask.abandon();
                self.start_stream();
            }
            self.active = explained;
            self.look_again_at = 0;
        }
        self.progress = self.progress.saturating_add(read.len());
        self.since_waste = self.since_waste.saturating_add(read.len());
        if !self.warm && ask.read_used_prefetched() {
            // Served by what an earlier stream of this file fetched: not a cached file.
            self.warm = true;
            self.window = self.initial_window(read.len());
        }
        if self.warm && explained.is_some() {
            self.look_ahead(read, ask);
        }
    }

    fn on_progress(&mut self, done: Extent, ask: &mut Ask<'_>) {
        if self.warm {
            self.look_ahead(done, ask);
        }
    }

    fn on_miss(&mut self, miss: Extent, ask: &mut Ask<'_>) {
        if self.whole_file(miss, ask) {
            return;
        }
        let Some(active) = self.active else { return };
        if self.warm {
            // The reader overtook the background part.
            self.forced = true;
            self.grow_records();
        }
        self.warm = true;
        let floor = self.initial_window(self.last_read.len());
        self.window = self.window.clamp(floor, self.window_max().max(floor));
        let want = self.window.min(self.limits.sync_max);
        let pattern = &self.patterns[active];
        let read = self.last_read;
        // Only what adjoins both the miss and the read: the rest of the read is not ahead of it.
        let adjoins = |n: &Extent| {
            (n.start == miss.end && miss.end >= read.end) || (n.end == miss.start && miss.start <= read.start)
        };
        if let Some(next) = pattern.next(miss, want).filter(adjoins) {
            let grain = self.grain(ask.facts().rpc_bytes).min(64 * KIB);
            let next = if next.len() >= want { round_to_grain(next, miss, grain) } else { next };
            ask.sync(next);
        }
        self.walk(self.last_read, ask);
    }

    fn on_wasted(&mut self, _: u64) {
        if self.since_waste < self.ceiling / 2 {
            return;
        }
        self.since_waste = 0;
        let base = if self.window > 0 { self.window.min(self.ceiling) } else { self.ceiling };
        self.ceiling = (base / 2).max(self.limits.initial_min).min(self.limits.window_max);
        self.window = self.window.min(self.ceiling);
        self.forced = false;
        self.records = self.limits.records_unforced_max;
    }

    fn on_blocked(&mut self) {
        self.forced = true;
        if self.warm {
            self.grow();
            self.grow_records();
        }
    }

    fn on_hint(&mut self, hint: Hint) {
        self.limits = self.configured;
        if hint == Hint::Sequential {
            self.limits.initial_min = self.limits.unforced_max.max(PAGE);
            self.limits.initial_max = self.limits.initial_min;
        }
        self.patterns.iter_mut().for_each(|p| p.assume(hint == Hint::Sequential));
    }
}
