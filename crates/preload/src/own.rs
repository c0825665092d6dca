//! What this library has in the program's process: connections, their descriptors, and the mark of a thread that is inside.
//!
//! Programs close numbers that they do not know. These stay open for them: a close of one is answered as if it were not there.
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use libc::c_int;
use native::Connection;

/// Mounts that a process has connections to.
const CONNECTIONS_MAX: usize = 16;
const NONE: c_int = -1;
/// Of a connection's numbers: the socket's.
const SOCKET: usize = 1;

/// A connection that is kept for the next file.
struct Kept {
    connection: AtomicPtr<Connection>,
    numbers: [AtomicI32; 2],
    /// What the numbers lead to, as long as they are the library's.
    marks: [AtomicU64; 2],
}

impl Kept {
    fn is_intact(&self, i: usize) -> bool {
        let (number, mark) = (self.numbers[i].load(Acquire), self.marks[i].load(Acquire));
        number != NONE && native::bells::mark(number) == Some(mark)
    }
}

static KEPT: [Kept; CONNECTIONS_MAX] = [const {
    Kept {
        connection: AtomicPtr::new(std::ptr::null_mut()),
        numbers: [const { AtomicI32::new(NONE) }; 2],
        marks: [const { AtomicU64::new(0) }; 2],
    }
}; CONNECTIONS_MAX];
/// No own descriptor is below this.
static LOWEST: AtomicI32 = AtomicI32::new(c_int::MAX);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is inside the library: what it calls itself, and what handlers of signals call that come meanwhile, is
/// the kernel's.
pub struct Inside(());

impl Inside {
    /// Goes in; `None`: it is.
    #[inline]
    #[must_use]
    pub fn enter() -> Option<Inside> {
        INSIDE.with(|i| if i.replace(true) { None } else { Some(Inside(())) })
    }
    /// Whether it is.
    #[inline]
    #[must_use]
    pub fn is_so() -> bool {
        INSIDE.with(Cell::get)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.with(|i| i.set(false));
    }
}

/// Keeps a connection as long as it is usable. Whether there is a place for it.
pub fn keep(connection: &Arc<Connection>) -> bool {
    let at = Arc::as_ptr(connection).cast_mut();
    if KEPT.iter().any(|k| k.connection.load(Acquire) == at) {
        return true;
    }
    for kept in &KEPT {
        let old = kept.connection.load(Acquire);
        // Its count stays: another thread may be looking at it (`jumped`), or wait for its end, after which its numbers may be others'.
        // SAFETY: what is kept has a count of its own for good.
        if unsafe { old.as_ref() }.is_some_and(|old| old.is_usable() || !old.close()) {
            continue;
        }
        let new = Arc::into_raw(connection.clone()).cast_mut();
        if kept.connection.compare_exchange(old, new, AcqRel, Relaxed).is_err() {
            // SAFETY: made above.
            drop(unsafe { Arc::from_raw(new.cast_const()) });
            continue;
        }
        for ((number, mark), is) in kept.numbers.iter().zip(&kept.marks).zip(connection.descriptors()) {
            mark.store(native::bells::mark(is).unwrap_or(0), Release);
            number.store(is, Release);
            LOWEST.fetch_min(is, AcqRel);
        }
        return true;
    }
    false
}

/// The calling thread jumps away from whatever it does. If it is inside, what it held is free, and the connections, of whose
/// state nobody knows, are not used any more.
pub fn jumped() {
    if !Inside::is_so() {
        return;
    }
    for kept in &KEPT {
        // SAFETY: as in `keep`.
        if let Some(connection) = unsafe { kept.connection.load(Acquire).as_ref() } {
            connection.abandon();
        }
    }
    // Until it has come to its end, the position is still its own.
    crate::bytes::write_to_the_end();
    crate::bytes::write_is_left();
    native::lock::let_go_all();
    INSIDE.with(|i| i.set(false));
}

/// Whether a descriptor is one of the library's, and the program is the one that names it.
#[must_use]
pub fn is_own(fd: c_int) -> bool {
    fd >= LOWEST.load(Relaxed) && !Inside::is_so() && marked().any(|n| n == fd)
}

/// The numbers that still lead to what the library has there: programs close numbers, and get others' files by them, in ways that nobody sees.
fn marked() -> impl Iterator<Item = c_int> {
    // The bell is like any other eventfd or epoll: it is taken for the library's as long as the socket is.
    let of = |kept: &'static Kept| {
        let there = kept.is_intact(SOCKET);
        (0..2).filter(move |i| there && kept.is_intact(*i)).map(|i| kept.numbers[i].load(Acquire))
    };
    KEPT.iter().flat_map(of)
}

/// The library's descriptors.
pub fn numbers() -> impl Iterator<Item = c_int> {
    KEPT.iter().flat_map(|k| &k.numbers).map(|n| n.load(Acquire)).filter(|n| *n != NONE)
}

/// The program takes a number: its connection notices by itself, and is replaced when the next file needs one.
pub fn give_up(fd: c_int) {
    for number in KEPT.iter().flat_map(|k| &k.numbers) {
        let _ = number.compare_exchange(fd, NONE, AcqRel, Relaxed);
    }
}

/// A forked child has none. Its copies of its parent's are closed: its parent's end must be seen by the daemon. `amid`: it may return into a
/// call that uses one.
pub fn begin_anew(amid: bool) {
    for fd in marked() {
        // SAFETY: a copy of a descriptor of the library's own.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
    for kept in &KEPT {
        // SAFETY: as in `keep`.
        let parents = unsafe { kept.connection.swap(std::ptr::null_mut(), AcqRel).as_ref() };
        if let Some(parents) = parents.filter(|_| amid) {
            parents.stand_in();
        }
        for number in &kept.numbers {
            number.store(NONE, Release);
        }
    }
    LOWEST.store(c_int::MAX, Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_inside_once() {
        let first = Inside::enter().unwrap();
        assert!(Inside::is_so() && Inside::enter().is_none() && Inside::is_so());
        assert!(std::thread::spawn(|| Inside::enter().is_some()).join().unwrap());
        drop(first);
        assert!(!Inside::is_so() && Inside::enter().is_some());
    }
}
