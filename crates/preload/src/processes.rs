//! The calls after which a position may be another process's, too: it is the kernel's who moves it from then on, in both.
//!
//! Before such a call and after it every open file is taken for shared: another thread may have opened one in between.
use libc::{c_char, c_int, c_uint, c_void, pid_t, ssize_t};

use crate::own::Inside;
use crate::real::{self, Opaque};
use crate::{sizes, table};

fn share() {
    // A handler that makes a process cannot wait for the call that it interrupted.
    table::share_all(!Inside::is_so());
    sizes::sharing();
}

extern "C" fn before_fork() {
    share();
}

extern "C" fn after_fork() {
    table::share_all(false);
}

extern "C" fn in_child() {
    table::begin();
}

/// fork(3) is told of by the C library.
pub fn count_forks() {
    // The child is known by its generation only if there was one before.
    table::begin();
    // SAFETY: the handlers look at atomics and make system calls.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
}

/// _Fork(3), of which nobody is told.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the C library's")]
pub unsafe extern "C" fn _Fork() -> pid_t {
    share();
    // SAFETY: the caller's.
    let child = unsafe { real::_Fork() };
    match child {
        0 => in_child(),
        _ => after_fork(),
    }
    child
}

/// What vfork(2) begins with. The child has this process's memory: what it does with descriptors confuses the table, which
/// is no harm, since calls compare.
extern "C" fn before_vfork() -> *mut c_void {
    share();
    real::vfork_at()
}

/// vfork(2): gone on to rather than called, for a function that returned in the child cannot be returned from by the parent.
///
/// # Safety
/// The C library's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!("sub rsp, 8", "call {before}", "add rsp, 8", "jmp rax", before = sym before_vfork)
}

/// vfork(2): as on x86.
///
/// # Safety
/// The C library's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {before}",
        "ldp x29, x30, [sp], #16",
        "br x0",
        before = sym before_vfork
    )
}

/// posix_spawn(3).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: Opaque,
    attributes: Opaque,
    words: Opaque,
    environment: Opaque,
) -> c_int {
    share();
    // SAFETY: the caller's.
    let done = unsafe { real::posix_spawn(pid, path, actions, attributes, words, environment) };
    after_fork();
    done
}

/// posix_spawnp(3).
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: Opaque,
    attributes: Opaque,
    words: Opaque,
    environment: Opaque,
) -> c_int {
    share();
    // SAFETY: the caller's.
    let done = unsafe { real::posix_spawnp(pid, file, actions, attributes, words, environment) };
    after_fork();
    done
}

/// system(3), which makes its process inside the C library.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    share();
    // SAFETY: the caller's.
    unsafe { real::system(command) }
}

/// popen(3), likewise.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
    share();
    // SAFETY: the caller's.
    let pipe = unsafe { real::popen(command, kind) };
    after_fork();
    pipe
}

/// sendmsg(2): descriptors that go over a socket are another process's, too.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's; the kernel reads as much of it.
    if unsafe { message.as_ref() }.is_some_and(carries) {
        share();
    }
    // SAFETY: the caller's.
    unsafe { real::sendmsg(fd, message, flags) }
}

/// sendmmsg(2), likewise.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, n: c_uint, flags: c_int) -> c_int {
    // The kernel takes no more than that of them.
    let n_taken = (n as usize).min(libc::UIO_MAXIOV as usize);
    // SAFETY: the caller's; the kernel reads as much of them.
    let all = if messages.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(messages, n_taken) } };
    if all.iter().any(|m| carries(&m.msg_hdr)) {
        share();
    }
    // SAFETY: the caller's.
    unsafe { real::sendmmsg(fd, messages, n, flags) }
}

/// Whether descriptors may come with a message.
fn carries(message: &libc::msghdr) -> bool {
    message.msg_controllen > 0 && !message.msg_control.is_null()
}
