//! A runtime tuned for serving: one ring for FUSE commands, network and disk, on one pinned thread.
use compio::driver::ProactorBuilder;
use compio::runtime::{Runtime, RuntimeBuilder};
use std::collections::HashSet;
use std::io;

/// How a serving thread's runtime is made.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// CPU to pin the thread to. `None` (default) lets it wander, which costs most of the ring's speed.
    pub cpu: Option<usize>,
    /// Submission entries of the ring, default 1024, rounded to a power of two.
    pub ring_entries: u32,
    /// Completions run only when the thread asks for them (DEFER_TASKRUN). Default true.
    pub defer_taskrun: bool,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        RuntimeConfig { cpu: None, ring_entries: 1024, defer_taskrun: true }
    }
}

/// Makes a runtime for the current thread (and pins the thread).
///
/// # Errors
/// The system's refusal.
pub fn runtime(config: &RuntimeConfig) -> io::Result<Runtime> {
    let mut proactor = ProactorBuilder::new();
    proactor.capacity(config.ring_entries.max(8));
    proactor.coop_taskrun(true).taskrun_flag(true).single_issuer(true).defer_taskrun(config.defer_taskrun);
    let mut builder = RuntimeBuilder::new();
    builder.with_proactor(proactor);
    if let Some(cpu) = config.cpu {
        builder.thread_affinity(HashSet::from([cpu]));
    }
    builder.build()
}
