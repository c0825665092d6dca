//! A library to preload (`LD_PRELOAD=libstria_posix.so program`): reads and writes of an unmodified program's files on a mount
//! go through the rings of the native path, and its advice about files and mappings reaches the mount. Everything else, and
//! everything in doubt, is the kernel's. `docs/reference/native.md` says what users may expect.
//!
//! What makes it right:
//! - **The kernel's file position is the only one.** A call that uses it asks the kernel for it before, and sets it
//!   after the bytes moved. So stdio, raw system calls, children, programs that are executed and those that were
//!   sent a descriptor see what they would have seen. Calls of this process that use one position are told apart by a lock;
//!   where a position may be another process's, too, the kernel carries out the call ([`table`]).
//! - **A descriptor is what the kernel says it is.** Programs close and open numbers in ways that no library sees. So each call
//!   compares the descriptor's file and flags with those of the open file that it takes it for ([`bind`]), while the daemon reads;
//!   before anything is written.
//! - **Whatever fails is done again by the kernel**, so every errno is the kernel's. What appends is the kernel's from the
//!   beginning.
//! - **A handler of a signal that comes while a call is inside goes through the kernel**, and waits for nothing here. One that
//!   does not come back ends the connections that the call may have left in any state.
//!
//! Code map: [`calls`] the calls that move bytes · [`names`] those that make and end descriptors · [`processes`] those that make
//! processes · [`bytes`] transfers through the rings · [`bind`] which file has a number there · [`table`] descriptors and open
//! files · [`sizes`] what the kernel believes of sizes · [`own`] descriptors of this library · [`jumps`] handlers that do not come back · `memory` · [`real`] the C library's functions of the same names · [`advice`], [`mappings`],
//! [`descriptors`] hints · [`count`] · [`errno`].
#![warn(missing_docs)]
pub mod advice;
pub mod bind;
pub mod bytes;
pub mod calls;
pub mod count;
pub mod descriptors;
pub mod errno;
pub mod jumps;
pub mod mappings;
mod memory;
pub mod names;
pub mod own;
pub mod processes;
pub mod real;
pub mod sizes;
pub mod table;

/// What happens when the library is loaded, before the program begins.
extern "C" fn begin() {
    count::begin();
    real::find_all();
    jumps::find_all();
    processes::count_forks();
    bind::configure();
    bytes::look_at_limit();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// The program ends by itself.
extern "C" fn end() {
    count::report();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
