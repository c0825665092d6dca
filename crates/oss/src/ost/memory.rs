//! Memory of the requests that a target works on. Each says before it begins how many pages it may hold at a time, and begins
//! when they are there for it: requests that hold some and wait for more could wait for each other without end. Who waits
//! too long is refused, and its client comes again: what it held meanwhile may be what the others wait for.
use std::cell::Cell;

use frames::{FRAME_BYTES, FramePool};
use rt::Rt;
use rt::sync::Semaphore;
use types::{Duration, FsError};

use crate::store::StoreResult;

/// How long a request waits for memory.
pub(super) const MEMORY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Half of the pool's pages, for requests in service.
pub(super) struct Memory {
    free: Semaphore,
    pages_max: usize,
    /// How often a request had to wait, and how often it was refused.
    waits: Cell<u64>,
    refusals: Cell<u64>,
}

/// Pages of one request until it goes.
pub(super) struct Share<'a> {
    memory: &'a Memory,
    pages: usize,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.memory.free.add(self.pages as isize);
    }
}

impl Memory {
    pub fn new(pool: FramePool) -> Memory {
        let pages_max = (pool.capacity() / 2).max(1);
        Memory { free: Semaphore::new(pages_max), pages_max, waits: Cell::new(0), refusals: Cell::new(0) }
    }

    /// Waits for so many pages; a request that needs more than there are works alone.
    pub async fn share(&self, rt: &Rt, pages: u64) -> StoreResult<Share<'_>> {
        let pages = usize::try_from(pages).unwrap_or(usize::MAX).min(self.pages_max);
        if !self.free.try_acquire(pages) {
            self.waits.set(self.waits.get() + 1);
            if rt.timeout(MEMORY_WAIT_MAX, self.free.acquire(pages)).await.is_none() {
                self.refuse();
                return Err(FsError::NoMemory);
            }
        }
        Ok(Share { memory: self, pages })
    }

    /// A request found no memory in time.
    pub fn refuse(&self) {
        self.refusals.set(self.refusals.get() + 1);
    }

    /// The value of the parameter.
    pub fn text(&self) -> String {
        let held = self.pages_max as isize - self.free.available();
        let bytes = |pages: usize| pages * FRAME_BYTES;
        format!(
            "bytes_max: {}\nheld_bytes: {}\nwaits: {}\nrefusals: {}\n",
            bytes(self.pages_max),
            bytes(held.max(0) as usize),
            self.waits.get(),
            self.refusals.get()
        )
    }
}
