//! Baseline: readahead triggered by misses alone, 2 MiB, all of it waited for.
//!
//! Source: paper 003, the readahead before its work.
use types::Extent;

use super::ReadaheadPolicy;
use crate::GAP_BYTES;
use crate::config::Config;
use crate::file::Ask;

/// A sequential miss fetches a fixed window.
#[derive(Clone, Debug)]
pub struct Miss {
    window_bytes: u64,
    next: u64,
    sequential: bool,
}

impl Miss {
    /// With the window of the configuration.
    #[must_use]
    pub fn new(config: &Config) -> Miss {
        Miss { window_bytes: config.miss_window_bytes, next: 0, sequential: false }
    }
}

impl ReadaheadPolicy for Miss {
    fn on_read(&mut self, read: Extent, _: &mut Ask<'_>) {
        self.sequential = read.start >= self.next && read.start - self.next <= GAP_BYTES;
        self.next = read.end;
    }
    fn on_miss(&mut self, miss: Extent, ask: &mut Ask<'_>) {
        if !self.sequential {
            ask.abandon();
            return;
        }
        let end = miss.start.saturating_add(self.window_bytes);
        if miss.end < end {
            ask.sync(Extent::new(miss.end, end));
        }
    }
}
