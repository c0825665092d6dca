//! Calls by a ring (io_uring), as far as cases need them.
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{MAP_SHARED, PROT_READ, PROT_WRITE};

use crate::cases::Map;
use crate::sys::Failed;

/// Words of `io_uring_params`, and where the fields stand in it: those of the queue of calls, those of the queue of results.
const PARAMS_WORDS: usize = 30;
const CALLS_TAIL: usize = 11;
const CALLS_ARRAY: usize = 16;
const RESULTS: usize = 25;
/// Where the ring's parts are mapped.
const AT_CALLS: i64 = 0;
const AT_RESULTS: i64 = 0x800_0000;
const AT_ENTRIES: i64 = 0x1000_0000;
const PAGE: usize = 4096;
const OP_WRITE: u8 = 23;
const WAIT_FOR_RESULTS: u32 = 1;

/// A write from a place where no memory is; what it results in. `None`: there are no rings here.
///
/// # Errors
/// The errno of a call that sets it up, in words.
pub fn write_of_nothing(fd: &OwnedFd, len: u32, off: u64) -> Result<Option<i32>, String> {
    let mut params = [0u32; PARAMS_WORDS];
    // SAFETY: the parameters are as long as the kernel's, and live through the call.
    let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if made < 0 {
        let failed = Failed::now("io_uring_setup", &["1".into()]);
        return if matches!(failed.errno, libc::ENOSYS | libc::EPERM) { Ok(None) } else { Err(failed.into()) };
    }
    // SAFETY: a descriptor that is new and ours.
    let ring = unsafe { OwnedFd::from_raw_fd(made as i32) };
    let part = |at| Map::new(&ring, at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    let (calls, results, entries) = (part(AT_CALLS)?, part(AT_RESULTS)?, part(AT_ENTRIES)?);
    let mut entry = [0u8; 64];
    entry[0] = OP_WRITE;
    entry[4..8].copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
    entry[8..16].copy_from_slice(&off.to_ne_bytes());
    // No memory is at such a low address.
    entry[16..24].copy_from_slice(&(PAGE as u64).to_ne_bytes());
    entry[24..28].copy_from_slice(&len.to_ne_bytes());
    entries.set(0, &entry);
    calls.set(params[CALLS_ARRAY] as usize, &0u32.to_ne_bytes());
    calls.set(params[CALLS_TAIL] as usize, &1u32.to_ne_bytes());
    let nothing = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the ring is ours; nothing is written to the buffer of its call.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_enter, ring.as_raw_fd(), 1, 1, WAIT_FOR_RESULTS, nothing, 0) };
    if done != 1 {
        return Err(Failed::now("io_uring_enter", &[format!("{len} bytes at {off}")]).into());
    }
    let result = results.get(params[RESULTS] as usize + 8, 4);
    Ok(Some(i32::from_ne_bytes(result.try_into().map_err(|_| "four bytes")?)))
}
