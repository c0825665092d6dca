//! Appends that a kernel cuts into pieces.
//!
//! A kernel sends a write of more than `max_write` in pieces and does not say that more will come. How long a call is
//! stands in `/proc/TID/syscall` while its thread waits for us; so for write(2) and pwrite(2) it is known how much
//! follows. For other calls (writev(2), io_uring) a piece that is as long as a piece can be says that more may follow.
use std::cell::RefCell;
use std::collections::HashMap;

use rt::Rt;
use types::Duration;

use crate::syscall::{Syscall, Syscalls};

const PAGE: u64 = 4096;
/// How long the next piece of a call is waited for whose length is known. Its thread was answered, and is on its way.
const KEEP_KNOWN: Duration = Duration::from_secs(1);
/// The same where a call may have ended.
const KEEP_UNKNOWN: Duration = Duration::from_millis(50);
/// A call that goes on.
struct Call {
    thread: u32,
    /// Where its kernel believes the next piece to begin.
    next: u64,
    /// Bytes to come; `None`: not known.
    left: Option<u64>,
}

/// See the module's head.
pub(crate) struct Pieces {
    max_write_bytes: u64,
    /// By open file.
    calls: RefCell<HashMap<u64, Call>>,
}

impl Pieces {
    pub(crate) fn new(max_write_bytes: u32) -> Pieces {
        Pieces { max_write_bytes: max_write_bytes.into(), calls: RefCell::default() }
    }
    /// The open file ends.
    pub(crate) fn forget(&self, file: u64) {
        self.calls.borrow_mut().remove(&file);
    }
    /// An append's piece came: how long to wait for the next piece of its call, `None` when there is none.
    pub(crate) async fn keep(
        &self,
        (rt, syscalls): (&Rt, &Syscalls),
        file: u64,
        thread: u32,
        offset: u64,
        len: u64,
    ) -> Option<Duration> {
        let known = self.calls.borrow_mut().remove(&file).filter(|c| c.thread == thread && c.next == offset);
        // Pieces hold whole pages; the first one may begin within a page of the caller's.
        let full = len + PAGE > self.max_write_bytes;
        let left = match known {
            Some(call) => call.left.map(|left| left.saturating_sub(len)),
            None if full => count(syscalls.of(rt, thread).await).map(|count| count.saturating_sub(len)),
            None => return None,
        };
        let keep = match left {
            Some(0) => None,
            Some(_) => Some(KEEP_KNOWN),
            None => full.then_some(KEEP_UNKNOWN),
        };
        if keep.is_some() {
            self.calls.borrow_mut().insert(file, Call { thread, next: offset.saturating_add(len), left });
        }
        keep
    }
}

/// Bytes that a call writes, where it says so.
fn count(call: Syscall) -> Option<u64> {
    match call {
        Syscall::Is(libc::SYS_write | libc::SYS_pwrite64, count) => Some(count),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_one_call_are_told_from_calls_of_their_own() {
        const MIB: u64 = 1 << 20;
        let sim = simworld::Sim::new(simworld::SimConfig::new(1), frames::FramePool::new(1 << 20));
        let host = sim.host("h");
        let rt = host.boot();
        sim.run(async {
            let pieces = Pieces::new(1 << 20);
            let syscalls = Syscalls::default();
            syscalls.set(|thread| match thread {
                1 => Syscall::Is(libc::SYS_write, 5 << 19),
                2 => Syscall::Is(libc::SYS_pwrite64, 1 << 20),
                // Its third argument counts buffers.
                4 => Syscall::Is(libc::SYS_writev, 5 << 19),
                _ => Syscall::Unknown,
            });
            let by = (&rt, &syscalls);
            // 2.5 MiB from a buffer that begins within a page.
            assert_eq!(pieces.keep(by, 7, 1, 100, MIB - 8).await, Some(KEEP_KNOWN));
            assert_eq!(pieces.keep(by, 7, 1, 100 + MIB - 8, MIB).await, Some(KEEP_KNOWN));
            assert_eq!(pieces.keep(by, 7, 1, 100 + 2 * MIB - 8, MIB / 2 + 8).await, None, "that was all");
            assert_eq!(pieces.keep(by, 7, 2, 0, MIB).await, None, "one piece is the call");
            assert_eq!(pieces.keep(by, 7, 3, 0, MIB).await, Some(KEEP_UNKNOWN));
            assert_eq!(pieces.keep(by, 8, 4, 0, MIB).await, Some(KEEP_UNKNOWN));
            assert_eq!(pieces.keep(by, 7, 3, MIB, 10).await, None, "the last piece of whatever call");
            assert_eq!(pieces.keep(by, 7, 1, 0, 1000).await, None, "not as long as a piece can be");
            // The call before did not come to its end, and another one begins elsewhere.
            assert_eq!(pieces.keep(by, 7, 1, 0, MIB).await, Some(KEEP_KNOWN));
            assert_eq!(pieces.keep(by, 7, 2, MIB, MIB).await, None, "another thread's");
            pieces.forget(7);
        });
    }
}
