//! A lock, and an event, of threads of one process that handlers of signals may make jump away (siglongjmp(3)): what a thread
//! has locked can be let go from outside, which the standard library's cannot.
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
use std::time::Duration;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody may wait.
const AWAITED: u32 = 2;
/// Locks that a thread has at a time.
const HELD_MAX: usize = 4;

thread_local! {
    static HELD: [Cell<*const AtomicU32>; HELD_MAX] = const { [const { Cell::new(std::ptr::null()) }; HELD_MAX] };
}

fn wait(word: &AtomicU32, is: u32, at_most: Option<Duration>) {
    let limit = at_most.map(|d| libc::timespec { tv_sec: d.as_secs() as _, tv_nsec: d.subsec_nanos().into() });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the limit live through the call. That the word changed, or a signal came, is no harm.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, is, limit) };
}

fn wake(word: *const AtomicU32, threads: i32) {
    // SAFETY: the kernel only looks at the address.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, threads) };
}

/// A lock.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time gets at the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// It is had.
pub struct Locked<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// Nobody's.
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }
    fn had(&self) -> Locked<'_, T> {
        HELD.with(|held| {
            if let Some(free) = held.iter().find(|h| h.get().is_null()) {
                free.set(&raw const self.word);
            }
        });
        Locked(self)
    }
    /// Has it, if it is free.
    pub fn try_lock(&self) -> Option<Locked<'_, T>> {
        self.word.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok().then(|| self.had())
    }
    /// Waits for it.
    pub fn lock(&self) -> Locked<'_, T> {
        if self.word.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_err() {
            while self.word.swap(AWAITED, Acquire) != FREE {
                wait(&self.word, AWAITED, None);
            }
        }
        self.had()
    }
    /// Nobody has it: for a forked child, whose parent's threads are not there.
    pub fn reset(&self) {
        self.word.store(FREE, Relaxed);
    }
}

fn let_go(word: *const AtomicU32) {
    // SAFETY: the word of a lock that this thread has, and that therefore lives.
    if unsafe { (*word).swap(FREE, Release) } == AWAITED {
        wake(word, 1);
    }
}

/// The calling thread jumped away from what it did: what it has locked is free, whatever state it is in.
pub fn let_go_all() {
    HELD.with(|held| {
        for word in held.iter().map(|h| h.replace(std::ptr::null())).filter(|w| !w.is_null()) {
            let_go(word);
        }
    });
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        let word = &raw const self.0.word;
        HELD.with(|held| {
            if let Some(mine) = held.iter().find(|h| h.get() == word) {
                mine.set(std::ptr::null());
            }
        });
        let_go(word);
    }
}

/// Something that threads wait for.
pub struct Event {
    times: AtomicU32,
    waiters: AtomicU32,
}

impl Event {
    /// It did not happen.
    #[must_use]
    pub const fn new() -> Event {
        Event { times: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }
    /// It happens: who waits wakes.
    pub fn happen(&self) {
        self.times.fetch_add(1, SeqCst);
        if self.waiters.load(SeqCst) > 0 {
            wake(&raw const self.times, i32::MAX);
        }
    }
    /// Lets go of a lock until it happens, or that much time has passed. Whether it did not happen.
    pub fn wait<'a, T>(&self, locked: Locked<'a, T>, at_most: Duration) -> (Locked<'a, T>, bool) {
        let (lock, before) = (locked.0, self.times.load(SeqCst));
        // A thread that jumps away while it waits stays counted: what happens then wakes for nothing.
        self.waiters.fetch_add(1, SeqCst);
        drop(locked);
        wait(&self.times, before, Some(at_most));
        self.waiters.fetch_sub(1, SeqCst);
        let missed = self.times.load(SeqCst) == before;
        (lock.lock(), missed)
    }
}

impl Default for Event {
    fn default() -> Event {
        Event::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_lock() {
        let lock = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn what_a_thread_left_locked_can_be_let_go_for_others() {
        let (one, two) = (Lock::new(1), Lock::new(2));
        std::mem::forget(one.lock());
        std::mem::forget(two.lock());
        assert!(one.try_lock().is_none() && two.try_lock().is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *one.lock());
            let_go_all();
            assert_eq!(waits.join().unwrap(), 1);
        });
        assert!(one.try_lock().is_some() && two.try_lock().is_some());
        let_go_all();
        assert!(one.try_lock().is_some(), "nothing is let go twice");
    }

    #[test]
    fn what_happens_wakes_who_waits_and_time_does_too() {
        let (lock, event) = (Lock::new(false), Event::new());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut locked = lock.lock();
                while !*locked {
                    (locked, _) = event.wait(locked, Duration::from_secs(3600));
                }
            });
            *lock.lock() = true;
            event.happen();
            waits.join().unwrap();
        });
        let (_locked, missed) = event.wait(lock.lock(), Duration::from_millis(1));
        assert!(missed);
    }
}
