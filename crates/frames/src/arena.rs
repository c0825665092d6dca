//! The arena and the references to its frames: which frames are free, and who holds the others.
//!
//! All `unsafe` of the crate is here. Free frames are bits of words of 64, so that one exchange takes a whole run.
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use core::sync::atomic::{Ordering, fence};

/// Bytes of one frame.
pub const FRAME_BYTES: usize = types::PAGE_BYTES;
/// Longest contiguous run that one allocation returns, in frames (256 KiB).
pub const RUN_FRAMES_MAX: usize = 64;

/// Wholly free words that are remembered.
const WHOLE_KEPT: usize = 16;
const NO_WORD: usize = usize::MAX;

/// Alignment of an arena: a huge page.
const ARENA_ALIGN: usize = 2 << 20;

struct Arena {
    base: *mut u8,
    frames: u32,
    refs: Box<[AtomicU32]>,
    /// One bit per frame, set = free.
    free: Box<[AtomicU64]>,
    free_count: AtomicUsize,
    /// Times that somebody found none free.
    refusals: AtomicU64,
    /// Free frames that somebody waits for: the most since caches looked last.
    wanted: AtomicUsize,
    hint_run: AtomicUsize,
    hint_single: AtomicUsize,
    /// Words of `free` all of whose frames became free lately, or [`NO_WORD`].
    whole: [AtomicUsize; WHOLE_KEPT],
}

// SAFETY: `base` is a private allocation that lives for the program; access to its bytes is guarded by the
// reference counts (shared reads, exclusive writes), which are atomic.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// A process-wide pool of page frames; a copyable handle. Memory is reserved at creation and touched on first use.
/// It lives until the program ends.
#[derive(Clone, Copy)]
pub struct FramePool(&'static Arena);

impl FramePool {
    /// Reserves an arena of `bytes` (rounded up to 256 KiB).
    ///
    /// # Panics
    /// When the address space cannot be reserved, or above 16 TiB.
    #[must_use]
    pub fn new(bytes: u64) -> FramePool {
        FramePool::reserved(bytes).unwrap_or_else(|| panic!("cannot reserve {bytes} bytes for page frames"))
    }

    /// The same; `None` when the address space cannot be reserved.
    ///
    /// # Panics
    /// Above 16 TiB.
    #[must_use]
    pub fn reserved(bytes: u64) -> Option<FramePool> {
        let words = bytes.div_ceil((RUN_FRAMES_MAX * FRAME_BYTES) as u64).max(1);
        let words = usize::try_from(words).expect("arena size fits the address space");
        let frames = u32::try_from(words * 64).expect("an arena is at most 16 TiB");
        // Asked for with a small alignment and aligned here: only so do allocators hand out fresh zero pages that cost
        // nothing until they are touched.
        let layout = core::alloc::Layout::from_size_align(words * 64 * FRAME_BYTES + ARENA_ALIGN, 16)
            .expect("arena size is far below isize::MAX");
        // SAFETY: the layout has a non-zero size.
        let raw = unsafe { alloc::alloc::alloc_zeroed(layout) };
        if raw.is_null() {
            return None;
        }
        // SAFETY: the allocation has ARENA_ALIGN spare bytes at its end.
        let base = unsafe { raw.add(raw.align_offset(ARENA_ALIGN)) };
        let refs: Vec<AtomicU32> = (0..frames).map(|_| AtomicU32::new(0)).collect();
        let free: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(u64::MAX)).collect();
        Some(FramePool(Box::leak(Box::new(Arena {
            base,
            frames,
            refs: refs.into_boxed_slice(),
            free: free.into_boxed_slice(),
            free_count: AtomicUsize::new(frames as usize),
            refusals: AtomicU64::new(0),
            wanted: AtomicUsize::new(0),
            hint_run: AtomicUsize::new(0),
            hint_single: AtomicUsize::new(0),
            whole: [const { AtomicUsize::new(NO_WORD) }; WHOLE_KEPT],
        }))))
    }

    /// Frames in the arena.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.frames as usize
    }

    /// Frames nobody holds.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.free_count.load(Relaxed)
    }

    /// A contiguous run of 1..=`want` frames (at most [`RUN_FRAMES_MAX`]), as long as can be found quickly; `None`
    /// when the arena is empty. The bytes are what the last user left: fill or zero them before showing them.
    #[must_use]
    pub fn alloc_run(&self, want: usize) -> Option<FrameRun> {
        let want = want.clamp(1, RUN_FRAMES_MAX) as u32;
        if want > 1
            && let Some(run) = self.alloc_whole(want)
        {
            return Some(run);
        }
        let hint = if want == 1 { &self.0.hint_single } else { &self.0.hint_run };
        let words = self.0.free.len();
        let start = hint.load(Relaxed) % words;
        let mut best: Option<(usize, u32, u32)> = None;
        for step in 0..words {
            let word = (start + step) % words;
            let bits = self.0.free[word].load(Relaxed);
            if bits == 0 {
                continue;
            }
            let (at, len) = longest_run(bits, want);
            if len == want {
                if let Some(run) = self.take(word, at, len) {
                    hint.store(word, Relaxed);
                    return Some(run);
                }
            } else if best.is_none_or(|(_, _, l)| len > l) {
                best = Some((word, at, len));
                if step > 256 {
                    break;
                }
            }
        }
        let found = best.and_then(|(word, at, len)| self.take(word, at, len).or_else(|| self.alloc_any()));
        if found.is_none() {
            self.count_refusal(want as usize);
        }
        found
    }

    /// Somebody found none, or left what there is to others, and comes again when so many are free.
    pub fn count_refusal(&self, wanted: usize) {
        self.0.refusals.fetch_add(1, Relaxed);
        self.note_wanted(wanted);
    }
    /// Caches cannot help whoever wants more than there are.
    fn note_wanted(&self, frames: usize) {
        if frames <= self.capacity() {
            self.0.wanted.fetch_max(frames, Relaxed);
        }
    }
    /// How many free frames somebody waits for, at most, since this was asked last: caches give some back until so many are free. Who still
    /// waits says so again.
    #[must_use]
    pub fn take_wanted(&self) -> usize {
        self.0.wanted.swap(0, Relaxed)
    }
    /// Times so far that an allocation found no free frame, or left it to others.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.0.refusals.load(Relaxed)
    }

    /// Makes an arena of which nobody holds a frame as one that is new, but for the bytes in it: where free frames are looked for does
    /// not depend on who had it before. False, and nothing is changed: somebody holds some.
    #[must_use]
    pub fn renew(&self) -> bool {
        if self.free() != self.capacity() {
            return false;
        }
        self.0.whole.iter().for_each(|word| word.store(NO_WORD, Relaxed));
        self.0.hint_run.store(0, Relaxed);
        self.0.hint_single.store(0, Relaxed);
        self.0.refusals.store(0, Relaxed);
        self.0.wanted.store(0, Relaxed);
        true
    }

    /// From a word whose frames became free lately: found at once, and near in the CPU's caches.
    fn alloc_whole(&self, want: u32) -> Option<FrameRun> {
        self.0.whole.iter().find_map(|kept| {
            // Read first: words are rarely there, and a swap takes the line from other CPUs.
            let word = kept.load(Relaxed);
            if word == NO_WORD || kept.swap(NO_WORD, Relaxed) != word {
                return None;
            }
            let bits = self.0.free[word].load(Relaxed);
            let (at, len) = longest_run(bits, want);
            if len < want {
                return None;
            }
            if bits.count_ones() > want {
                kept.store(word, Relaxed);
            }
            self.take(word, at, len)
        })
    }

    /// Any one free frame, searched through the whole arena.
    fn alloc_any(&self) -> Option<FrameRun> {
        (0..self.0.free.len()).find_map(|word| {
            let bits = self.0.free[word].load(Relaxed);
            if bits == 0 { None } else { self.take(word, bits.trailing_zeros(), 1) }
        })
    }

    fn take(&self, word: usize, at: u32, len: u32) -> Option<FrameRun> {
        let mask = run_mask(at, len);
        let before = self.0.free[word].fetch_and(!mask, Ordering::Acquire);
        if before & mask != mask {
            // Somebody else took part of it: give back what was ours.
            self.0.free[word].fetch_or(before & mask, Relaxed);
            return None;
        }
        self.0.free_count.fetch_sub(len as usize, Relaxed);
        let first = (word as u32) * 64 + at;
        for f in first..first + len {
            self.0.refs[f as usize].store(1, Relaxed);
        }
        Some(FrameRun { pool: *self, first, frames: len })
    }

    /// Runs that together hold `frames` frames, or `None` (nothing taken) when the arena has too few.
    #[must_use]
    pub fn alloc(&self, frames: usize) -> Option<Vec<FrameRun>> {
        let mut runs = Vec::with_capacity(frames.div_ceil(RUN_FRAMES_MAX));
        let mut left = frames;
        while left > 0 {
            let Some(run) = self.alloc_run(left) else {
                self.note_wanted(frames);
                return None;
            };
            left -= run.frames();
            runs.push(run);
        }
        Some(runs)
    }

    fn release(&self, frame: u32) {
        if self.0.refs[frame as usize].fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            let word = frame as usize / 64;
            let bit = 1 << (frame % 64);
            if self.0.free[word].fetch_or(bit, Ordering::Release) | bit == u64::MAX {
                self.0.whole[word % WHOLE_KEPT].store(word, Relaxed);
            }
            // Low frames first: what was touched once is used again, and the rest of the arena stays untouched.
            self.0.hint_single.fetch_min(word, Relaxed);
            self.0.hint_run.fetch_min(word, Relaxed);
            self.0.free_count.fetch_add(1, Relaxed);
        }
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FramePool({} of {} frames free)", self.free(), self.capacity())
    }
}

fn run_mask(at: u32, len: u32) -> u64 {
    let ones = if len == 64 { u64::MAX } else { (1u64 << len) - 1 };
    ones << at
}

/// First run of `want` set bits, or the longest shorter one: (position, length).
fn longest_run(bits: u64, want: u32) -> (u32, u32) {
    if want == 1 {
        return (bits.trailing_zeros(), 1);
    }
    let (mut best_at, mut best_len) = (0, 0);
    let mut at = 0;
    while at < 64 {
        let rest = bits >> at;
        if rest == 0 {
            break;
        }
        at += rest.trailing_zeros();
        let len = (!(bits >> at)).trailing_zeros().min(64 - at);
        if len >= want {
            return (at, want);
        }
        if len > best_len {
            (best_at, best_len) = (at, len);
        }
        at += len;
    }
    (best_at, best_len)
}

/// One reference to each frame of a contiguous run. Cloning adds references; dropping gives them back, and the last
/// reference frees the frame.
pub struct FrameRun {
    pool: FramePool,
    first: u32,
    frames: u32,
}

impl FrameRun {
    /// Frames in the run, >= 1.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames as usize
    }
    /// Number of the first frame in the arena.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }
    /// The pool it came from.
    #[must_use]
    pub fn pool(&self) -> FramePool {
        self.pool
    }
    /// Bytes in the run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames() * FRAME_BYTES
    }
    /// Never: a run has at least one frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Address of the first byte: page-aligned, valid while any clone lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `first` lies inside the arena.
        unsafe { self.pool.0.base.add(self.first as usize * FRAME_BYTES) }
    }
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the arena is initialised memory; nobody writes while a shared reference exists (module rule).
        unsafe { core::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
    /// Whether this is the only reference to every frame of the run.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        let range = self.first as usize..(self.first + self.frames) as usize;
        self.pool.0.refs[range].iter().all(|r| r.load(Ordering::Acquire) == 1)
    }
    /// The bytes for writing, or `None` when somebody else holds one of the frames.
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        // SAFETY: `&mut self` is the only reference to each of the frames.
        Some(unsafe { core::slice::from_raw_parts_mut(self.as_ptr(), self.len()) })
    }
    /// A reference to frames `at..at + frames` of the run.
    ///
    /// # Panics
    /// When the range is empty or leaves the run.
    #[must_use]
    pub fn slice(&self, at: usize, frames: usize) -> FrameRun {
        assert!(frames > 0 && at + frames <= self.frames(), "slice outside the run");
        let part = FrameRun { pool: self.pool, first: self.first + at as u32, frames: frames as u32 };
        part.retain();
        part
    }
    /// Cuts the run in two without touching reference counts: `self` keeps `at` frames, the rest is returned.
    ///
    /// # Panics
    /// When either part would be empty.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> FrameRun {
        assert!(at > 0 && at < self.frames(), "split outside the run");
        let rest = FrameRun { pool: self.pool, first: self.first + at as u32, frames: self.frames - at as u32 };
        self.frames = at as u32;
        rest
    }
    /// Joins `next` to the end when it directly follows; gives it back otherwise.
    ///
    /// # Errors
    /// `next`, unchanged, when it does not start where `self` ends in the same arena.
    pub fn join(&mut self, next: FrameRun) -> Result<(), FrameRun> {
        if !core::ptr::eq(self.pool.0, next.pool.0) || next.first != self.first + self.frames {
            return Err(next);
        }
        self.frames += next.frames;
        core::mem::forget(next);
        Ok(())
    }
    fn retain(&self) {
        for f in self.first..self.first + self.frames {
            self.pool.0.refs[f as usize].fetch_add(1, Relaxed);
        }
    }
}

impl Clone for FrameRun {
    fn clone(&self) -> FrameRun {
        self.retain();
        FrameRun { pool: self.pool, first: self.first, frames: self.frames }
    }
}
impl Drop for FrameRun {
    fn drop(&mut self) {
        for f in self.first..self.first + self.frames {
            self.pool.release(f);
        }
    }
}
impl fmt::Debug for FrameRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frames {}+{}", self.first, self.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_frame_cannot_be_written_and_a_dropped_one_returns() {
        let pool = FramePool::new(1 << 20);
        let all = pool.free();
        let mut run = pool.alloc_run(8).unwrap();
        assert_eq!(run.frames(), 8);
        run.bytes_mut().unwrap().fill(7);
        let other = run.slice(3, 1);
        assert!(run.bytes_mut().is_none());
        assert_eq!(other.bytes(), &[7; FRAME_BYTES]);
        drop(other);
        assert!(run.bytes_mut().is_some());
        drop(run);
        assert_eq!(pool.free(), all);
    }

    #[test]
    fn what_became_free_as_a_whole_is_used_next_and_never_twice() {
        let pool = FramePool::new(16 << 20);
        let mut held: Vec<_> = (0..32).map(|_| pool.alloc_run(64).unwrap()).collect();
        let mut freed = held.swap_remove(20);
        let first = freed.first;
        // Frame by frame, as caches let go.
        while freed.frames() > 1 {
            drop(freed.split_off(freed.frames() - 1));
        }
        drop(freed);
        let half = pool.alloc_run(32).unwrap();
        let rest = pool.alloc_run(32).unwrap();
        assert_eq!((half.first, rest.first), (first, first + 32));
        let other = pool.alloc_run(32).unwrap();
        assert!(!(first..first + 64).contains(&other.first));
        drop((half, rest));
        assert_eq!(pool.alloc_run(64).unwrap().first, first);
    }

    #[test]
    fn an_empty_arena_says_so_and_recovers() {
        let pool = FramePool::new(1 << 20);
        let all = pool.alloc(pool.capacity()).unwrap();
        assert!(pool.alloc_run(1).is_none());
        assert!(crate::Bulk::alloc(pool, 1).is_none());
        assert_eq!(pool.refusals(), 2);
        assert!(!pool.renew());
        drop(all);
        assert_eq!(pool.free(), pool.capacity());
        assert_eq!((pool.take_wanted(), pool.take_wanted()), (1, 0), "who still waits says so again");
        let held = pool.alloc_run(1).unwrap();
        assert!(pool.alloc(pool.capacity()).is_none());
        assert_eq!(pool.take_wanted(), pool.capacity(), "all of it, not only what was missing");
        drop(held);
        assert!(pool.alloc(pool.capacity() + 1).is_none());
        assert!(pool.free() == pool.capacity() && pool.take_wanted() <= pool.capacity());
        drop(pool.alloc_run(1).unwrap());
        assert!(pool.renew());
        assert_eq!((pool.refusals(), pool.alloc_run(3).unwrap().first()), (0, 0));
    }
}
