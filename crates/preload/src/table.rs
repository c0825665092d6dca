//! Which open file each descriptor of the program is of, as far as this process opened it itself.
//!
//! Descriptors that came otherwise (inherited over execve(2), received over a socket, opened inside the C library) are not here, and the kernel's.
//! The table allocates nothing and waits for nobody: open(2) and close(2) are called inside allocators and handlers of signals.
//! Open files lie in a pool that is never freed, so that who finds one may look at it before it counts itself in.
use std::cell::UnsafeCell;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

use libc::c_int;
use native::lock::Lock;

use crate::bind::File;
use crate::own::Inside;

/// Descriptors that are looked at; larger numbers are the kernel's.
const SLOTS: usize = 16_384;
/// Open files.
const OPENS: usize = 4096;
/// Of [`Open::users`]: it is being cleaned up.
const CLEANED: u32 = u32::MAX;

/// How an open file is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Not decided yet: the kernel meanwhile.
    Open = 0,
    /// A thread finds out.
    Asking = 1,
    /// Through the rings.
    Rings = 2,
    /// The kernel, for good.
    Kernel = 3,
    /// The kernel after the rings: calls through them may still be under way.
    Left = 4,
}

/// An open file of this process.
pub struct Open {
    /// Descriptors that are of it, and calls under way; 0: nobody's.
    users: AtomicU32,
    way: AtomicU8,
    /// Calls that the kernel carried out before the way was decided.
    pub calls: AtomicU32,
    /// Another process may have it, too: who moves its position is the kernel.
    shared: AtomicBool,
    /// It was written to through the rings, and the kernel has not asked for its size since.
    pub wrote: AtomicBool,
    /// Calls that use its position and are the kernel's; they begin under the lock, and do not keep it.
    pub kernels: AtomicU32,
    /// Held by calls that use its position.
    pub position: Lock<()>,
    /// Where its position is likely to be.
    pub expected: AtomicU64,
    file: UnsafeCell<Option<File>>,
}

// SAFETY: `file` is written while `way` is Asking, by the thread that made it so, and read while it is Rings, by threads
// that count themselves in.
unsafe impl Sync for Open {}

impl Open {
    const fn nobodys() -> Open {
        Open {
            users: AtomicU32::new(0),
            way: AtomicU8::new(0),
            calls: AtomicU32::new(0),
            shared: AtomicBool::new(false),
            wrote: AtomicBool::new(false),
            kernels: AtomicU32::new(0),
            position: Lock::new(()),
            expected: AtomicU64::new(0),
            file: UnsafeCell::new(None),
        }
    }
}

static POOL: [Open; OPENS] = [const { Open::nobodys() }; OPENS];
static TABLE: [AtomicPtr<Open>; SLOTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS];
/// Where a free place is looked for first.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// One more than the largest place, and slot, that was used.
static OPENS_USED: AtomicUsize = AtomicUsize::new(0);
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);
/// Moments at which descriptors may have become another process's, too.
static SHARINGS: AtomicU32 = AtomicU32::new(0);
/// The process that the table is of, as [`native::generation`] has it.
static GENERATION: AtomicI32 = AtomicI32::new(0);

/// An open file that somebody counted himself in to. Its thread is inside the library meanwhile ([`Inside`]): a child that a handler of
/// a signal makes then leaves the counts alone, for it returns to here.
pub struct Held(&'static Open);

impl std::ops::Deref for Held {
    type Target = Open;
    fn deref(&self) -> &Open {
        self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut users = self.0.users.load(Relaxed);
        loop {
            let left = if users == 1 { CLEANED } else { users - 1 };
            match self.0.users.compare_exchange_weak(users, left, AcqRel, Relaxed) {
                Ok(_) if left == CLEANED => break,
                Ok(_) => return,
                Err(other) => users = other,
            }
        }
        // What is said to the daemon now must not be interrupted by a handler that says something, too.
        let _inside = Inside::enter();
        // SAFETY: nobody else has it, and nobody gets it before it is nobody's again.
        drop(unsafe { (*self.0.file.get()).take() });
        self.0.users.store(0, Release);
    }
}

impl Open {
    /// How it is served.
    pub fn way(&self) -> Way {
        match self.way.load(Acquire) {
            0 => Way::Open,
            1 => Way::Asking,
            2 => Way::Rings,
            3 => Way::Kernel,
            _ => Way::Left,
        }
    }
    /// The calling thread finds out; one at a time.
    pub fn ask(&self) -> bool {
        self.way.compare_exchange(Way::Open as u8, Way::Asking as u8, Acquire, Relaxed).is_ok()
    }
    /// What was found out by the thread that asked.
    pub fn decide(&self, file: Option<File>) {
        let way = if file.is_some() { Way::Rings } else { Way::Kernel };
        // SAFETY: the way is Asking, and this thread made it so.
        unsafe { *self.file.get() = file };
        self.way.store(way as u8, Release);
    }
    /// It is asked again later.
    pub fn put_off(&self) {
        self.calls.store(0, Relaxed);
        self.way.store(Way::Open as u8, Release);
    }
    /// The kernel has it from now on.
    pub fn leave_to_kernel(&self) {
        self.way.store(Way::Left as u8, Release);
    }
    /// The file behind the rings.
    pub fn file(&self) -> Option<&File> {
        if self.way() != Way::Rings {
            return None;
        }
        // SAFETY: it was written before the way was Rings, and goes when nobody is counted in any more; `self` is one.
        unsafe { (*self.file.get()).as_ref() }
    }
    /// Whether only this process has its position.
    pub fn is_alone(&self) -> bool {
        !self.shared.load(Acquire)
    }
    /// Other processes may have it from now on.
    pub fn share(&self) {
        self.shared.store(true, Release);
    }
    fn hold(&'static self) -> Option<Held> {
        let mut users = self.users.load(Relaxed);
        while users != 0 && users != CLEANED {
            match self.users.compare_exchange_weak(users, users + 1, Acquire, Relaxed) {
                Ok(_) => return Some(Held(self)),
                Err(other) => users = other,
            }
        }
        None
    }
}

fn slot(fd: c_int) -> Option<&'static AtomicPtr<Open>> {
    TABLE.get(usize::try_from(fd).ok()?)
}

fn opened_at(at: *mut Open) -> Option<&'static Open> {
    // SAFETY: null, or a place in the pool, which lives for ever.
    unsafe { at.cast_const().as_ref() }
}

/// Whether a descriptor is of an open file that is known.
#[inline]
pub fn is_known(fd: c_int) -> bool {
    slot(fd).is_some_and(|s| !s.load(Relaxed).is_null())
}

/// The open file of a descriptor.
pub fn of(fd: c_int) -> Option<Held> {
    begin();
    let slot = slot(fd)?;
    loop {
        let at = slot.load(Acquire);
        let held = opened_at(at)?.hold();
        // Between the two looks its place may have become another open file's, of another descriptor.
        if slot.load(Acquire) == at {
            return held;
        }
    }
}

impl Held {
    /// Kept across a call that may not come back, or come back in a child.
    pub fn keep(self) -> Kept {
        let open = self.0;
        std::mem::forget(self);
        Kept(open, GENERATION.load(Relaxed))
    }
}

/// An open file that is counted in across a call of the kernel's. Nothing happens when this is dropped.
pub struct Kept(&'static Open, i32);

impl Kept {
    /// It.
    pub fn open(&self) -> &'static Open {
        self.0
    }
    /// The call came back. In a child that a handler made meanwhile there is nothing to count: its table is another one.
    pub fn again(self) -> Option<Held> {
        begin();
        (GENERATION.load(Relaxed) == self.1).then(|| Held(self.0))
    }
}

/// A descriptor is of an open file now, or of none that is known.
pub fn set(fd: c_int, open: Option<Held>) {
    let Some(slot) = slot(fd) else { return };
    let _inside = Inside::enter();
    let at = match open {
        Some(held) => {
            SLOTS_USED.fetch_max(fd as usize + 1, Relaxed);
            let at = held.0;
            // The descriptor is the one that is counted in.
            std::mem::forget(held);
            std::ptr::from_ref(at).cast_mut()
        }
        None => std::ptr::null_mut(),
    };
    drop(opened_at(slot.swap(at, AcqRel)).map(Held));
}

/// Whether a descriptor is taken for one of `open` still.
pub fn is_of(fd: c_int, open: &Open) -> bool {
    slot(fd).is_some_and(|s| std::ptr::eq(s.load(SeqCst), open))
}

/// A descriptor turned out to be of something else than `open`; whether it was taken for that still.
pub fn forget(fd: c_int, open: &Open) -> bool {
    let Some(slot) = slot(fd) else { return false };
    let _inside = Inside::enter();
    let at = std::ptr::from_ref(open).cast_mut();
    let was = slot.compare_exchange(at, std::ptr::null_mut(), AcqRel, Relaxed).is_ok();
    if was {
        drop(opened_at(at).map(Held));
    }
    was
}

/// Descriptors from `first` on, up to `last`, that are known.
pub fn known_within(first: usize, last: usize) -> impl Iterator<Item = c_int> {
    let end = SLOTS_USED.load(Relaxed).min(last.saturating_add(1));
    (first..end).map(|fd| fd as c_int).filter(|fd| is_known(*fd))
}

/// How often descriptors may have become others', for [`opened`].
#[must_use]
pub fn sharings() -> u32 {
    begin();
    SHARINGS.load(SeqCst)
}

/// A descriptor was opened by this process; `before`: [`sharings`] before that.
pub fn opened(fd: c_int, before: u32) {
    let _inside = Inside::enter();
    let first = NEXT.load(Relaxed);
    let place = (0..OPENS)
        .map(|i| (first + i) % OPENS)
        .find(|i| POOL[*i].users.load(Relaxed) == 0 && POOL[*i].users.compare_exchange(0, 1, Acquire, Relaxed).is_ok());
    let Some(place) = place else { return set(fd, None) };
    NEXT.store((place + 1) % OPENS, Relaxed);
    OPENS_USED.fetch_max(place + 1, Relaxed);
    let open = &POOL[place];
    open.way.store(Way::Open as u8, Relaxed);
    open.calls.store(0, Relaxed);
    open.shared.store(false, Relaxed);
    open.wrote.store(false, Relaxed);
    open.kernels.store(0, Relaxed);
    open.expected.store(0, Relaxed);
    set(fd, Some(Held(open)));
    if SHARINGS.load(SeqCst) != before {
        open.share();
    }
}

/// Every descriptor may be another process's, too. Called before that and after it. `waits`: for calls that use a position
/// meanwhile, so that the other process does not begin in the middle of one.
pub fn share_all(waits: bool) {
    SHARINGS.fetch_add(1, SeqCst);
    // A handler that uses a file meanwhile must not wait for what this thread has.
    let _inside = Inside::enter();
    for open in &POOL[..OPENS_USED.load(Relaxed)] {
        if open.users.load(Relaxed) == 0 {
            continue;
        }
        open.share();
        if waits {
            drop(open.position.lock());
        }
    }
}

/// The table is this process's: a child that was forked begins with an empty one. What its parent had is left alone.
#[inline]
pub fn begin() {
    let now = native::generation::generation().map_or(-1, |g| g as i32);
    let known = GENERATION.load(Relaxed);
    if known != now && GENERATION.compare_exchange(known, now, AcqRel, Relaxed).is_ok() && known != 0 {
        begin_anew();
    }
}

fn begin_anew() {
    for slot in &TABLE[..SLOTS_USED.swap(0, Relaxed)] {
        slot.store(std::ptr::null_mut(), Release);
    }
    // A handler made the child, and may return into the call that it interrupted: what that has counted itself in to stays as it is.
    let amid = Inside::is_so();
    for open in &POOL[..OPENS_USED.load(Relaxed)] {
        open.position.reset();
        if !amid {
            // SAFETY: the child has one thread, which looks at none, and what its parent's file leads to is not dropped.
            unsafe { open.file.get().write(None) };
            open.users.store(0, Release);
        }
    }
    crate::own::begin_anew(amid);
}

#[cfg(test)]
mod tests {
    use super::*;

    // Numbers that this process has not open; each test has its own. The pool is one for all of them: one test at a time.
    static POOL_IN_USE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        POOL_IN_USE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn calls(fd: c_int) -> Option<u32> {
        of(fd).map(|o| o.calls.load(Relaxed))
    }

    #[test]
    fn descriptors_that_were_duplicated_are_of_one_open_file_until_the_last_is_closed() {
        let _alone = alone();
        opened(9000, sharings());
        of(9000).unwrap().calls.store(7, Relaxed);
        set(9001, of(9000));
        assert_eq!((calls(9000), calls(9001)), (Some(7), Some(7)));
        set(9000, None);
        assert_eq!((calls(9000), calls(9001)), (None, Some(7)));
        let held = of(9001).unwrap();
        set(9001, None);
        assert!(calls(9001).is_none() && held.users.load(Relaxed) == 1);
        let place = held.0;
        drop(held);
        assert_eq!(place.users.load(Relaxed), 0);
    }

    #[test]
    fn what_is_opened_while_a_process_is_made_is_taken_for_shared() {
        let _alone = alone();
        let before = sharings();
        share_all(true);
        opened(9010, before);
        opened(9011, sharings());
        assert!(!of(9010).unwrap().is_alone() && of(9011).unwrap().is_alone());
        share_all(true);
        assert!(!of(9011).unwrap().is_alone());
    }

    #[test]
    fn a_full_pool_leaves_descriptors_to_the_kernel() {
        let _alone = alone();
        let numbers = 10_000..10_000 + OPENS as c_int + 10;
        numbers.clone().for_each(|fd| opened(fd, sharings()));
        assert!(numbers.clone().filter(|fd| is_known(*fd)).count() <= OPENS);
        assert!(!is_known(numbers.end - 1));
        numbers.clone().for_each(|fd| set(fd, None));
        opened(numbers.start, sharings());
        assert!(is_known(numbers.start));
        set(numbers.start, None);
        assert!(!is_known(-1) && !is_known(c_int::MAX));
    }

    #[test]
    fn threads_that_open_close_and_look_never_see_another_descriptors_file() {
        let _alone = alone();
        /// The others end with the thread that opens, also if an assertion ends it.
        struct Ends<'a>(&'a AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = Ends(&ended);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Relaxed) {
                        [9100, 9101]
                            .into_iter()
                            .filter_map(of)
                            .for_each(|o| assert!([0, 9100, 9101].contains(&o.calls.load(Relaxed))));
                    }
                });
            }
            for round in 0..20_000 {
                let fd = 9100 + round % 2;
                opened(fd, sharings());
                of(fd).unwrap().calls.store(fd as u32, Relaxed);
                assert_eq!(calls(fd), Some(fd as u32));
                set(fd, None);
            }
        });
    }
}
