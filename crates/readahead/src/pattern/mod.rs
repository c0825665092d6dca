//! Patterns: what a stream of reads looks like, and what it will read next. One file each.
use alloc::boxed::Box;
use types::Extent;

mod backward;
mod interleaved;
mod sequential;
mod stride;

pub use backward::Backward;
pub use interleaved::Interleaved;
pub use sequential::Sequential;
pub use stride::Stride;

/// Watches the reads of one open file. A pattern sees every read, in order, whether it is in use or not; it must be
/// cheap (a few ns in its usual case) and must be sure before it says yes.
pub trait Pattern: Send {
    /// A read happened. True: this pattern explains it and foretells what follows.
    fn observe(&mut self, read: Extent) -> bool;
    /// What follows `after` (the read observed last, or what this method answered before), at most `want` bytes of it.
    /// Contiguous patterns answer all `want` bytes adjoining `after`; patterns of records answer the rest of the current
    /// record or the next one. `None`: nothing follows.
    fn next(&self, after: Extent, want: u64) -> Option<Extent>;
    /// Streams that share the window now. >= 1.
    fn streams(&self) -> u64 {
        1
    }
    /// The program announced (or took back) sequential order: no confirmation is needed.
    fn assume(&mut self, sequential: bool) {
        let _ = sequential;
    }
}

/// A registry line.
#[derive(Clone, Copy, Debug)]
pub struct PatternEntry {
    /// Name in configuration and reference.
    pub name: &'static str,
    /// One sentence for the reference page.
    pub summary: &'static str,
    /// Builds one; called once per open file.
    pub make: fn() -> Box<dyn Pattern>,
}

/// Every pattern of the house, first explanation first. Adding one is one file and one line here.
pub const PATTERNS: &[PatternEntry] = &[
    PatternEntry {
        name: "stride",
        summary: "Records of one size at one distance, forward or backward; sure at the third record.",
        make: || Box::new(Stride::default()),
    },
    PatternEntry {
        name: "sequential",
        summary: "Each read starts where the last ended; sure at offset 0 or at the second read.",
        make: || Box::new(Sequential::default()),
    },
    PatternEntry {
        name: "backward",
        summary: "Each read ends where the last started; sure at the third read.",
        make: || Box::new(Backward::default()),
    },
    PatternEntry {
        name: "interleaved",
        summary: "Up to 8 sequential streams taking turns in one file; sure at the third read of a stream.",
        make: || Box::new(Interleaved::default()),
    },
];
