//! How much memory a call takes at its worst moment.
//!
//! A test binary declares [`Counting`] as its global allocator; [`peak_of`] then tells what the calling thread had
//! allocated at most during a call, and [`kept_of`] what it still has behind it.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with an account per thread.
#[derive(Debug)]
pub struct Counting;

fn account(bytes: isize) {
    // While a thread ends its account is gone, and nobody asks for it.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came; the accounts are plain cells that allocate
// nothing (const-initialised, without destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        account(layout.size() as isize);
        // SAFETY: the caller's promise is ours to the system.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        account(layout.size() as isize);
        // SAFETY: the caller's promise is ours to the system.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        account(-(layout.size() as isize));
        // SAFETY: the caller's promise is ours to the system.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        account(new_size as isize - layout.size() as isize);
        // SAFETY: the caller's promise is ours to the system.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// What `call` gives, and the bytes that this thread held at most during it beyond what it held before.
pub fn peak_of<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let value = call();
    let peak = PEAK.get() - before;
    (value, usize::try_from(peak).unwrap_or(0))
}

/// What `call` gives, and the bytes that this thread holds after it beyond what it held before.
pub fn kept_of<T>(call: impl FnOnce() -> T) -> (T, isize) {
    let before = NOW.get();
    let value = call();
    (value, NOW.get() - before)
}

/// Whether [`Counting`] is this binary's allocator: without it every peak is 0 and proves nothing.
#[must_use]
pub fn is_counted() -> bool {
    peak_of(|| std::hint::black_box(vec![1u8; 4096]).len()).1 >= 4096
}
