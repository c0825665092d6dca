//! Asks the CPU to fetch a value that will be needed soon. At 100,000 objects nearly every one that is looked at lies
//! in main memory; fetched line after line it costs several misses, fetched at once it costs one.

/// Bytes in a cache line, where it matters; a wrong value costs time only.
const LINE_BYTES: usize = 64;

/// Fetches all cache lines of `value`, without waiting for them.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = core::ptr::from_ref(value).cast::<i8>();
        for offset in (0..size_of::<T>()).step_by(LINE_BYTES) {
            // SAFETY: a prefetch neither reads nor faults, whatever the address; this one lies inside `value`, and the
            // instruction (SSE) is part of every x86-64 CPU.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, LINE_BYTES);
}
