//! Asks the CPU to fetch what will be needed soon; at 100,000 objects nearly all that is looked at lies in main memory.
pub(crate) use types::prefetch::{prefetch, prefetch_head};
