//! Baseline: on-demand readahead as Linux does it, with paper 003's 40 MiB window.
//!
//! A window lies ahead of the reader; crossing the marker inside it makes the reader submit the next window itself. The
//! window starts at 2-4 times the read and grows by 4, then by 2. A miss in sequence starts over at the miss.
//! Source: paper 003's second baseline; Fengguang Wu et al., "On the design of a new Linux readahead framework", 2008.
use types::Extent;

use super::ReadaheadPolicy;
use crate::GAP_BYTES;
use crate::config::Config;
use crate::file::Ask;

/// One sequential window with a marker.
#[derive(Clone, Debug)]
pub struct Ondemand {
    window_max: u64,
    /// Where a sequential read would start.
    next: u64,
    sequential: bool,
    window: Extent,
    /// Reading this byte renews the window; `u64::MAX` = no window.
    marker: u64,
}

impl Ondemand {
    /// With the window of the configuration.
    #[must_use]
    pub fn new(config: &Config) -> Ondemand {
        let window_max = config.ondemand_window_bytes;
        Ondemand { window_max, next: 0, sequential: false, window: Extent::EMPTY, marker: u64::MAX }
    }
    fn first_size(&self, read_bytes: u64) -> u64 {
        let read_bytes = read_bytes.min(self.window_max).next_power_of_two();
        let factor = if read_bytes <= self.window_max / 32 { 4 } else { 2 };
        (read_bytes * factor).min(self.window_max)
    }
    fn next_size(&self) -> u64 {
        let size = self.window.len();
        let factor = if size < self.window_max / 16 { 4 } else { 2 };
        size.saturating_mul(factor).min(self.window_max)
    }
}

impl ReadaheadPolicy for Ondemand {
    fn on_read(&mut self, read: Extent, ask: &mut Ask<'_>) {
        self.sequential = read.start >= self.next && read.start - self.next <= GAP_BYTES;
        self.next = read.end;
        if !self.sequential || read.end <= self.marker {
            return;
        }
        let want = Extent::at(self.window.end, self.next_size());
        ask.by_reader();
        ask.asynchronous(want);
        let reached = ask.covered_until(want.start).min(want.end);
        if reached > want.start {
            self.window = Extent::new(want.start, reached);
            self.marker = want.start;
        }
    }
    fn on_miss(&mut self, miss: Extent, ask: &mut Ask<'_>) {
        if !self.sequential {
            self.marker = u64::MAX;
            ask.abandon();
            return;
        }
        let size = if self.marker == u64::MAX { self.first_size(miss.len()) } else { self.next_size() };
        self.window = Extent::at(miss.start, size.max(miss.len()));
        self.marker = miss.end;
        if self.window.end > miss.end {
            ask.by_reader();
            ask.asynchronous(Extent::new(miss.end, self.window.end));
            self.window.end = ask.covered_until(miss.end).clamp(miss.end, self.window.end);
        }
    }
}
