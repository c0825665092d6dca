//! Workers run wherever the process may, also when the shard that started them is kept on one CPU.
use std::cell::Cell;
use std::sync::OnceLock;

static ALLOWED: OnceLock<Option<libc::cpu_set_t>> = OnceLock::new();

/// Remembers where the calling thread may run, once per process.
pub(super) fn note() {
    ALLOWED.get_or_init(|| {
        // SAFETY: a plain structure on the stack, of the size that is said.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) == 0).then_some(set)
        }
    });
}

/// Lets the calling worker run there, whatever it inherited. Once per thread.
pub(super) fn release() {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    if !DONE.replace(true)
        && let Some(Some(set)) = ALLOWED.get()
    {
        // SAFETY: a plain structure of the size that is said. A refusal leaves the thread where it is.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
    }
}
