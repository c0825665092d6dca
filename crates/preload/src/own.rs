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

/// A connection that is kept for the next file.
struct Kept {
    connection: AtomicPtr<Connection>,
    numbers: [AtomicI32; 2],
    /// What the numbers lead to, as long as they are the library's.
    marks: [AtomicU64; 2],
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
        // SAFETY: what is kept has a count of its own for good.
        if unsafe { old.as_ref() }.is_some_and(Connection::is_usable) {
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
        // SAFETY: it was kept. Its count stays: another thread may be looking at it (`jumped`). The daemon has taken its memory back.
        if let Some(old) = unsafe { old.as_ref() } {
            old.close();
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
    native::lock::let_go_all();
    crate::bytes::write_to_the_end();
    INSIDE.with(|i| i.set(false));
}

/// Whether a descriptor is one of the library's, and the program is the one that names it.
#[must_use]
pub fn is_own(fd: c_int) -> bool {
    fd >= LOWEST.load(Relaxed) && !Inside::is_so() && marked().any(|n| n == fd)
}

/// The numbers that still lead to what the library has there: programs close numbers, and get others' files by them, in ways that nobody sees.
fn marked() -> impl Iterator<Item = c_int> {
    let all = KEPT.iter().flat_map(|k| k.numbers.iter().zip(&k.marks));
    all.map(|(n, mark)| (n.load(Acquire), mark.load(Acquire)))
        .filter(|(n, mark)| *n != NONE && native::bells::mark(*n) == Some(*mark))
        .map(|(n, _)| n)
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

/// A forked child has none. Its copies of its parent's are closed: its parent's end must be seen by the daemon.
pub fn begin_anew() {
    for fd in marked() {
        // SAFETY: a copy of a descriptor of the library's own.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
    for kept in &KEPT {
        // SAFETY: as in `keep`.
        if let Some(parents) = unsafe { kept.connection.swap(std::ptr::null_mut(), AcqRel).as_ref() } {
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
