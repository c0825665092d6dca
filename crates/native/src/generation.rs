//! Which process this is: memory that is shared with a daemon is one process's own, and a forked child must not take its
//! parent's answers.
//!
//! A page that the kernel wipes in every child, however it was made (fork(3), clone(2)), tells: handlers of
//! pthread_atfork(3) hear of the first only. A child of vfork(2) has its parent's memory, and is its parent here.
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Made so far by this process and those that it was forked from.
static LAST: AtomicU32 = AtomicU32::new(0);
/// The page; null before the first question.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

const PAGE_BYTES: usize = 4096;

fn page() -> Option<&'static AtomicU32> {
    let known = PAGE.load(Acquire);
    if !known.is_null() {
        // SAFETY: a page that was mapped for this and is never unmapped.
        return Some(unsafe { &*known });
    }
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; the results are checked, and what cannot be wiped is given back.
    let at = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, prot, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(at, PAGE_BYTES, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(at, PAGE_BYTES);
            return None;
        }
        at.cast::<AtomicU32>()
    };
    let kept = match PAGE.compare_exchange(std::ptr::null_mut(), at, Release, Acquire) {
        Ok(_) => at,
        Err(other) => {
            // SAFETY: mapped above, and nobody else saw it.
            unsafe { libc::munmap(at.cast(), PAGE_BYTES) };
            other
        }
    };
    // SAFETY: as above.
    Some(unsafe { &*kept })
}

/// The generation of this process: another number than its parent's. `None`: it cannot be told, and nothing may be shared.
#[must_use]
pub fn generation() -> Option<u32> {
    let cell = page()?;
    let known = cell.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    let new = LAST.fetch_add(1, Relaxed) + 1;
    match cell.compare_exchange(0, new, Relaxed, Relaxed) {
        Ok(_) => Some(new),
        Err(other) => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exit status of a child that `make` makes; it ends with 0 where its generation is a new one, and stays it.
    fn child(make: impl FnOnce() -> i64) -> i32 {
        let before = generation();
        let pid = make();
        if pid == 0 {
            let new = generation().is_some() && generation() != before && generation() == generation();
            // SAFETY: ends the child, and runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!new)) };
        }
        assert!(pid > 0, "a child");
        let mut status = -1;
        // SAFETY: our own child.
        unsafe { libc::waitpid(pid as i32, &raw mut status, 0) };
        assert_eq!(generation(), before, "this process is who it was");
        status
    }

    #[test]
    fn a_child_is_another_one_however_it_was_forked() {
        // SAFETY: the child only looks at atomics.
        assert_eq!(child(|| i64::from(unsafe { libc::fork() })), 0);
        // SAFETY: as above: no stack is named, so that the child has a copy of this one.
        assert_eq!(child(|| unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }), 0);
    }
}
