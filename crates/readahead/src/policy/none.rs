//! No readahead: the fallback.
use types::Extent;

use super::ReadaheadPolicy;
use crate::file::Ask;

/// Asks for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReadahead;

impl ReadaheadPolicy for NoReadahead {
    fn on_read(&mut self, _: Extent, _: &mut Ask<'_>) {}
    fn on_miss(&mut self, _: Extent, _: &mut Ask<'_>) {}
}
