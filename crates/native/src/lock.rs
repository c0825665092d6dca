//! A lock, and an event, of threads of one process that handlers of signals may make jump away (siglongjmp(3)): what a thread
//! has locked can be let go from outside, which the standard library's cannot.
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{
    AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, compiler_fence,
};
use std::time::Duration;

const FREE: u32 = 0;
/// Of a word that is not free: somebody may wait. The rest of it is the number of the thread that has the lock.
const AWAITED: u32 = 1 << 31;
/// Locks that a thread has, or wants, at a time.
const HELD_MAX: usize = 4;

/// Numbers of threads that were given.
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The calling thread's number; 0: it has none yet.
    static ME: Cell<u32> = const { Cell::new(0) };
    /// Words of the locks that the thread has, is about to have, or is letting go.
    static HELD: [Cell<*const AtomicU32>; HELD_MAX] = const { [const { Cell::new(std::ptr::null()) }; HELD_MAX] };
}

/// The number of the calling thread, which no other of the process has.
fn me() -> u32 {
    ME.with(|me| {
        while me.get() & !AWAITED == 0 {
            me.set(THREADS.fetch_add(1, Relaxed).wrapping_add(1) & !AWAITED);
        }
        me.get()
    })
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
pub struct Locked<'a, T> {
    lock: &'a Lock<T>,
    _claim: Claim,
}

impl<T> Lock<T> {
    /// Nobody's.
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }
    /// Has it, if it is free.
    pub fn try_lock(&self) -> Option<Locked<'_, T>> {
        let claim = Claim::on(&self.word);
        self.word.compare_exchange(FREE, me(), Acquire, Relaxed).ok()?;
        Some(claim.had(self))
    }
    /// Waits for it.
    pub fn lock(&self) -> Locked<'_, T> {
        let claim = Claim::on(&self.word);
        let mut mine = me();
        while let Err(is) = self.word.compare_exchange(FREE, mine, Acquire, Relaxed) {
            if is & AWAITED != 0 || self.word.compare_exchange(is, is | AWAITED, Relaxed, Relaxed).is_ok() {
                wait(&self.word, is | AWAITED, None);
            }
            // Others may have begun to wait.
            mine = me() | AWAITED;
        }
        claim.had(self)
    }
    /// Nobody has it: for a forked child, whose parent's threads are not there.
    pub fn reset(&self) {
        self.word.store(FREE, Relaxed);
    }
}

/// The calling thread is about to have a lock, has it, or is letting it go: a mark that is there before the lock is taken, and goes after
/// who waits was woken. A thread that jumps away in between leaves nothing locked, and takes no wake-up with it.
struct Claim(*const AtomicU32);

impl Claim {
    fn on(word: &AtomicU32) -> Claim {
        HELD.with(|held| {
            if let Some(free) = held.iter().find(|h| h.get().is_null()) {
                free.set(word);
            }
        });
        // A handler of a signal finds the mark wherever it finds the word changed.
        compiler_fence(SeqCst);
        Claim(word)
    }
    fn had<T>(self, lock: &Lock<T>) -> Locked<'_, T> {
        Locked { lock, _claim: self }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        HELD.with(|held| {
            if let Some(mine) = held.iter().find(|h| h.get() == self.0) {
                mine.set(std::ptr::null());
            }
        });
    }
}

/// The calling thread jumped away from what it did: what it has locked is free, whatever state it is in.
pub fn let_go_all() {
    let me = me();
    HELD.with(|held| {
        for word in held.iter().map(|h| h.replace(std::ptr::null())).filter(|w| !w.is_null()) {
            // SAFETY: the word of a lock that a frame of this thread borrows, and that therefore lives.
            let is = unsafe { &*word };
            let mine = |is: u32| (is & !AWAITED == me).then_some(FREE);
            let _ = is.fetch_update(Release, Relaxed, mine);
            // Also where it was free already: the thread may have been woken, or have been about to wake others.
            wake(word, 1);
        }
    });
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // Where the thread jumped within a handler, and came back, it has been let go, and may be another's by now.
        if self.lock.word.load(Relaxed) & !AWAITED == me() && self.lock.word.swap(FREE, Release) & AWAITED != 0 {
            wake(&raw const self.lock.word, 1);
        }
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
        let (lock, before) = (locked.lock, self.times.load(SeqCst));
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
    fn who_jumps_away_while_a_lock_is_taken_or_let_go_leaves_it_to_others() {
        let lock = Lock::new(1);
        // Taken, and nothing done since: the mark is there before.
        std::mem::forget(Claim::on(&lock.word));
        lock.word.store(me(), Relaxed);
        let_go_all();
        assert!(lock.try_lock().is_some());
        // Wanted by this thread, and another's: it stays that one's.
        std::mem::forget(Claim::on(&lock.word));
        let others = std::thread::scope(|scope| scope.spawn(me).join().unwrap());
        lock.word.store(others, Relaxed);
        let_go_all();
        assert!(lock.try_lock().is_none() && lock.word.load(Relaxed) == others);
        // Free, and who waits not woken yet, or this thread was woken in the other's place.
        std::thread::scope(|scope| {
            lock.word.store(others | AWAITED, Relaxed);
            let waits = scope.spawn(|| *lock.lock());
            std::mem::forget(Claim::on(&lock.word));
            lock.word.store(FREE, Relaxed);
            while !waits.is_finished() {
                let_go_all();
                std::mem::forget(Claim::on(&lock.word));
                std::thread::yield_now();
            }
            assert_eq!(waits.join().unwrap(), 1);
        });
        let_go_all();
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
