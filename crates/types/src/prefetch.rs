//! Asks the CPU to fetch a value that will be needed soon. In large tables nearly every value that is looked at lies in main
//! memory; fetched line after line it costs several misses, fetched at once it costs one.

/// Bytes in a cache line, where it matters; a wrong value costs time only.
const LINE_BYTES: usize = 64;

/// Cache lines of a large value that hold what is looked at first.
const HEAD_LINES: usize = 2;

/// Fetches all cache lines of `value`, without waiting for them.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_lines::<T, { usize::MAX }>(value);
}

/// Fetches the first cache lines of `value`, without waiting for them; more would keep the memory busy for nothing.
#[inline]
pub fn prefetch_head<T>(value: &T) {
    prefetch_lines::<T, HEAD_LINES>(value);
}

#[inline]
fn prefetch_lines<T, const MAX: usize>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = core::ptr::from_ref(value).cast::<i8>();
        for offset in (0..size_of::<T>()).step_by(LINE_BYTES).take(MAX) {
            // SAFETY: a prefetch neither reads nor faults, whatever the address; this one lies inside `value`, and the
            // instruction (SSE) is part of every x86-64 CPU.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, LINE_BYTES, MAX);
}
