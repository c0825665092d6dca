//! siglongjmp(3) and its brothers, by which a handler of a signal leaves what it interrupted for good: a call of this library, too.
//!
//! As with vfork(2), the next function is gone on to, not called: it takes the stack away from under whoever calls it.
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

static AT: [AtomicPtr<c_void>; 4] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];

/// Looks the next functions up.
pub fn find_all() {
    for (at, name) in AT.iter().zip([c"longjmp", c"_longjmp", c"siglongjmp", c"__longjmp_chk"]) {
        // SAFETY: the name ends with a zero.
        at.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }, Relaxed);
    }
}

extern "C" fn jumps(which: usize) -> *mut c_void {
    crate::own::jumped();
    // Others begin before this library does, and may jump then.
    if AT[which].load(Relaxed).is_null() {
        find_all();
    }
    AT[which].load(Relaxed)
}

macro_rules! jumps {
    ($($name:ident $which:literal)*) => {
        $(
            #[doc = concat!(stringify!($name), "(3): what the thread has here is let go first.")]
            ///
            /// # Safety
            /// The C library's.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut c_void, value: libc::c_int) -> ! {
                std::arch::naked_asm!(
                    "push rdi", "push rsi", "sub rsp, 8", concat!("mov edi, ", $which), "call {jumps}", "add rsp, 8", "pop rsi",
                    "pop rdi", "jmp rax", jumps = sym jumps
                )
            }
            #[doc = concat!(stringify!($name), "(3): as on x86.")]
            ///
            /// # Safety
            /// The C library's.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: *mut c_void, value: libc::c_int) -> ! {
                std::arch::naked_asm!(
                    "stp x29, x30, [sp, #-32]!", "stp x0, x1, [sp, #16]", concat!("mov x0, #", $which), "bl {jumps}", "mov x9, x0",
                    "ldp x0, x1, [sp, #16]", "ldp x29, x30, [sp], #32", "br x9", jumps = sym jumps
                )
            }
        )*
    };
}

jumps! {
    longjmp "0"
    _longjmp "1"
    siglongjmp "2"
    __longjmp_chk "3"
}
