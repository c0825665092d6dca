//! Page frames of processes that have an arena of their own.
use std::cell::RefCell;

use frames::FramePool;

thread_local! {
    /// Arenas of processes that are no more: an arena lives until the program ends, and a world starts many processes.
    static LEFT: RefCell<Vec<FramePool>> = const { RefCell::new(Vec::new()) };
}

/// The arena of one process; others get it when that process is gone and the last of its frames is back.
pub(crate) struct Memory(FramePool);

impl Memory {
    /// An arena of `bytes`, as a new one is but for the bytes in it.
    pub(crate) fn new(bytes: u64) -> Memory {
        let frames =
            bytes.div_ceil(frames::FRAME_BYTES as u64).next_multiple_of(frames::RUN_FRAMES_MAX as u64) as usize;
        let left = LEFT.with_borrow_mut(|left| {
            let place = left.iter().position(|pool| pool.capacity() == frames && pool.renew())?;
            Some(left.swap_remove(place))
        });
        Memory(left.unwrap_or_else(|| FramePool::new(bytes)))
    }
    pub(crate) const fn pool(&self) -> FramePool {
        self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Without a stash (the thread is ending) nobody asks for it again.
        let _ = LEFT.try_with(|left| left.borrow_mut().push(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_used_again_once_the_last_of_its_frames_is_back() {
        let first = Memory::new(1 << 20);
        let base = |memory: &Memory| memory.pool().alloc_run(1).expect("it is empty").as_ptr() as usize;
        let (place, held) = (base(&first), first.pool().alloc_run(1).expect("there are 256"));
        drop(first);
        let second = Memory::new(1 << 20);
        assert_ne!(base(&second), place);
        drop(held);
        assert_eq!(base(&Memory::new(1 << 20)), place);
        assert_ne!(base(&Memory::new(2 << 20)), place);
    }
}
