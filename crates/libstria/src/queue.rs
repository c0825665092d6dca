//! The completion ring for programs in C: many requests under way, whose answers are taken as they come.
use libc::{c_int, c_uint, c_void, off_t, size_t, ssize_t};
use native::queue::Queue;
use native::{File, Pending};

use crate::{bytes, fail, invalid, offset};

/// What became of a request.
#[repr(C)]
pub struct Done {
    /// What the program gave along.
    pub user: *mut c_void,
    /// Bytes, or an errno, negative.
    pub result: ssize_t,
}

/// A request of a program.
pub struct Asked {
    user: *mut c_void,
    into: *mut u8,
    len: usize,
}

/// `stria_queue_new`.
#[unsafe(no_mangle)]
pub extern "C" fn stria_queue_new() -> *mut Queue<Asked> {
    Box::into_raw(Box::default())
}

/// `stria_queue_free`.
///
/// # Safety
/// `queue` came from [`stria_queue_new`], and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_queue_free(queue: *mut Queue<Asked>) {
    if !queue.is_null() {
        // SAFETY: the caller's.
        drop(unsafe { Box::from_raw(queue) });
    }
}

fn pushed(queue: &mut Queue<Asked>, begun: std::io::Result<Pending>, asked: Asked) -> c_int {
    match begun.and_then(|pending| queue.push(pending, asked)) {
        Ok(()) => 0,
        Err(e) => fail(-1, &e),
    }
}

/// `stria_queue_pread`.
///
/// # Safety
/// `queue` is the calling thread's; `file` came from `stria_open`; `into` has room for `len` bytes until the request was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_queue_pread(
    queue: *mut Queue<Asked>,
    file: *const File,
    into: *mut c_void,
    len: size_t,
    at: off_t,
    user: *mut c_void,
) -> c_int {
    if into.is_null() && len > 0 {
        return fail(-1, &invalid());
    }
    // SAFETY: the caller's.
    let (queue, file) = unsafe { (&mut *queue, &*file) };
    let begun = queue.takes(file).and_then(|()| file.begin_pread(len, offset(at)?));
    pushed(queue, begun, Asked { user, into: into.cast(), len })
}

/// `stria_queue_pwrite`.
///
/// # Safety
/// `queue` is the calling thread's; `file` came from `stria_open`; `len` bytes can be read at `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_queue_pwrite(
    queue: *mut Queue<Asked>,
    file: *const File,
    from: *const c_void,
    len: size_t,
    at: off_t,
    user: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let (queue, file, from) = unsafe { (&mut *queue, &*file, bytes(from, len)) };
    // What is begun is done, whether the queue has it or not.
    let begun = queue.takes(file).and_then(|()| file.begin_pwrite(from?, offset(at)?));
    pushed(queue, begun, Asked { user, into: std::ptr::null_mut(), len: 0 })
}

/// `stria_queue_reap`.
///
/// # Safety
/// `queue` is the calling thread's; `done` has room for `max`; the buffers of reads are as they were given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stria_queue_reap(
    queue: *mut Queue<Asked>,
    done: *mut Done,
    min: c_uint,
    max: c_uint,
) -> c_int {
    if done.is_null() || c_int::try_from(max).is_err() {
        return fail(-1, &invalid());
    }
    // SAFETY: the caller's.
    let queue = unsafe { &mut *queue };
    let mut at = done;
    let taken = queue.reap(min as usize, max as usize, |pending, asked| {
        // SAFETY: the caller gave the buffer, and there is room for one more.
        unsafe {
            let into = if asked.len == 0 { &mut [] } else { std::slice::from_raw_parts_mut(asked.into, asked.len) };
            let result = match pending.wait(into) {
                Ok(n) => n as ssize_t,
                Err(e) => -(e.raw_os_error().unwrap_or(libc::EIO) as ssize_t),
            };
            at.write(Done { user: asked.user, result });
            at = at.add(1);
        }
    });
    taken as c_int
}
