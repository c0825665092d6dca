//! Page frames of processes that have an arena of their own.
use std::cell::RefCell;

use frames::{FramePool, FrameRun};

/// The arena of a process that is no more.
struct Left {
    pool: FramePool,
    /// Somebody had it since its memory was given back to the system.
    is_used: bool,
}

thread_local! {
    /// Arenas of processes that are no more: an arena lives until the program ends, and a world starts many processes.
    static LEFT: RefCell<Vec<Left>> = const { RefCell::new(Vec::new()) };
}

/// The arena of one process; others get it when that process is gone and the last of its frames is back.
pub(crate) struct Memory(FramePool);

impl Memory {
    /// An arena of `bytes`, as a new one is but for the bytes in it.
    pub(crate) fn new(bytes: u64) -> Memory {
        let frames =
            bytes.div_ceil(frames::FRAME_BYTES as u64).next_multiple_of(frames::RUN_FRAMES_MAX as u64) as usize;
        let left = LEFT.with_borrow_mut(|left| {
            let place = left.iter().position(|l| l.pool.capacity() == frames && l.pool.renew())?;
            Some(left.swap_remove(place).pool)
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
        let _ = LEFT.try_with(|left| left.borrow_mut().push(Left { pool: self.0, is_used: true }));
    }
}

/// A world is over: the system gets the memory of arenas that nobody has, and their addresses are kept. There are about as many sizes
/// of arenas as there are settings of clusters, so that thousands of worlds would fill the machine with frames of other sizes.
pub(crate) fn give_back() {
    // Without a stash the thread is ending.
    let _ = LEFT.try_with(|left| left.borrow_mut().iter_mut().for_each(Left::give_back));
}

impl Left {
    fn give_back(&mut self) {
        if self.is_used && self.pool.renew() {
            self.is_used = false;
            self.pool.alloc(self.pool.capacity()).into_iter().flatten().for_each(|mut run| wipe(&mut run));
        }
    }
}

/// The frames are zeros that take no memory until they are touched.
fn wipe(run: &mut FrameRun) {
    let bytes = run.bytes_mut().expect("nobody else has frames of an arena that was free");
    // SAFETY: the frames are whole pages, aligned to their size, of private anonymous memory that an arena allocated for itself, and
    // `bytes` is the only reference to them. The call changes their bytes to zeros and nothing else.
    let failed = unsafe { libc::madvise(bytes.as_mut_ptr().cast(), bytes.len(), libc::MADV_DONTNEED) } != 0;
    if failed {
        tracing::debug!("the system does not take back {} bytes of page frames", bytes.len());
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

    #[test]
    fn what_a_world_s_processes_touched_takes_no_memory_when_it_is_over() {
        let memory = Memory::new(3 << 20);
        let mut all = memory.pool().alloc(memory.pool().capacity()).expect("it is free");
        all.iter_mut().for_each(|run| run.bytes_mut().expect("it is ours").fill(7));
        let (place, held) = (all[0].as_ptr(), all[0].slice(0, 1));
        drop((all, memory));
        give_back();
        assert_eq!(held.bytes()[0], 7, "somebody has a frame yet");
        drop(held);
        give_back();
        let again = Memory::new(3 << 20).pool().alloc_run(1).expect("it is free");
        assert_eq!((again.as_ptr(), again.bytes()[0]), (place, 0));
    }
}
