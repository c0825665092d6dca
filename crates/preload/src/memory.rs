//! Memory of this library: pages from the kernel. The program's own allocator is not asked, whose call may be what a handler of a
//! signal interrupted, or what this library was called by. Little is allocated, and rarely: when a file gets its number.
use std::alloc::{GlobalAlloc, Layout};

const PAGE_BYTES: usize = 4096;

struct Pages;

#[cfg(not(test))]
#[global_allocator]
static MEMORY: Pages = Pages;

// SAFETY: each allocation is a mapping of its own, page by page, and gone when it is given back.
unsafe impl GlobalAlloc for Pages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_BYTES {
            return std::ptr::null_mut();
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // By its number: mmap(2) is one of the functions that this library stands before.
        // SAFETY: a new mapping; the result is checked.
        let at = unsafe { libc::syscall(libc::SYS_mmap, std::ptr::null::<u8>(), layout.size(), prot, flags, -1, 0) };
        if at < 0 { std::ptr::null_mut() } else { at as *mut u8 }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: what `alloc` mapped.
        unsafe { libc::syscall(libc::SYS_munmap, at, layout.size()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_there_as_long_as_it_is_not_given_back() {
        let layout = Layout::from_size_align(5000, 64).unwrap();
        // SAFETY: within the layout, between the two calls.
        unsafe {
            let at = Pages.alloc(layout);
            assert!(!at.is_null() && (at as usize).is_multiple_of(64));
            at.write_bytes(7, 5000);
            assert_eq!(at.add(4999).read(), 7);
            Pages.dealloc(at, layout);
        }
    }
}
