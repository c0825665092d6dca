//! Appends that a kernel cuts into pieces.
//!
//! A kernel sends a write of more than `max_write` in pieces and does not say that more will come. How long a call is
//! stands in `/proc/TID/syscall` while its thread waits for us; so for write(2) and pwrite(2) it is known how much
//! follows. For other calls (writev(2), io_uring) a piece that is as long as a piece can be says that more may follow.
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use rt::Rt;
use types::Duration;

const PAGE: u64 = 4096;
/// How long the next piece of a call is waited for whose length is known. Its thread was answered, and is on its way.
const KEEP_KNOWN: Duration = Duration::from_secs(1);
/// The same where a call may have ended.
const KEEP_UNKNOWN: Duration = Duration::from_millis(50);
/// Looks at a thread that is not asleep yet, and the pause between them.
const LOOKS_MAX: usize = 3;
const LOOK_PAUSE: Duration = Duration::from_micros(100);

/// How many bytes the call of a thread writes.
pub(crate) type CountOf = fn(u32) -> Count;

/// What can be told of a thread's call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// It writes so many bytes.
    Bytes(u64),
    /// The thread does not wait yet.
    Running,
    /// It is another call, or cannot be seen.
    Unknown,
}

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
    count_of: Cell<CountOf>,
    /// By open file.
    calls: RefCell<HashMap<u64, Call>>,
}

impl Pieces {
    pub(crate) fn new(max_write_bytes: u32) -> Pieces {
        Pieces { max_write_bytes: max_write_bytes.into(), count_of: Cell::new(count_of), calls: RefCell::default() }
    }
    pub(crate) fn set_count_of(&self, count_of: CountOf) {
        self.count_of.set(count_of);
    }
    /// The open file ends.
    pub(crate) fn forget(&self, file: u64) {
        self.calls.borrow_mut().remove(&file);
    }
    /// An append's piece came: how long to wait for the next piece of its call, `None` when there is none.
    pub(crate) async fn keep(&self, rt: &Rt, file: u64, thread: u32, offset: u64, len: u64) -> Option<Duration> {
        let known = self.calls.borrow_mut().remove(&file).filter(|c| c.thread == thread && c.next == offset);
        // Pieces hold whole pages; the first one may begin within a page of the caller's.
        let full = len + PAGE > self.max_write_bytes;
        let left = match known {
            Some(call) => call.left.map(|left| left.saturating_sub(len)),
            None if full => self.count(rt, thread).await.map(|count| count.saturating_sub(len)),
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
    async fn count(&self, rt: &Rt, thread: u32) -> Option<u64> {
        for _ in 0..LOOKS_MAX {
            match self.count_of.get()(thread) {
                Count::Bytes(n) => return Some(n),
                Count::Unknown => return None,
                Count::Running => rt.sleep(LOOK_PAUSE).await,
            }
        }
        None
    }
}

fn count_of(thread: u32) -> Count {
    std::fs::read_to_string(format!("/proc/{thread}/syscall")).map_or(Count::Unknown, |text| parse(&text))
}

/// Reads what the kernel says of a call: its number, then its arguments; or "running".
fn parse(text: &str) -> Count {
    let mut words = text.split_ascii_whitespace();
    let number = words.next().unwrap_or_default();
    if number == "running" {
        return Count::Running;
    }
    let writes = number.parse::<i64>().is_ok_and(|n| n == libc::SYS_write || n == libc::SYS_pwrite64);
    let count = words.nth(2).and_then(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
    count.filter(|_| writes).map_or(Count::Unknown, Count::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_the_kernel_tells_it() {
        let call = |n: i64| format!("{n} 0x3 0x7f2c5a000010 0x300000 0x0 0x0 0x0 0x7ffd9d0 0x7f2c5b1\n");
        assert_eq!(parse(&call(libc::SYS_write)), Count::Bytes(3 << 20));
        assert_eq!(parse(&call(libc::SYS_pwrite64)), Count::Bytes(3 << 20));
        assert_eq!(parse(&call(libc::SYS_writev)), Count::Unknown, "its third argument counts buffers");
        assert_eq!(parse("running\n"), Count::Running);
        for text in ["", "-1 0x7ffd9d0 0x7f2c5b1", "1", "1 0x3 0x4", "1 0x3 0x4 zzz"] {
            assert_eq!(parse(text), Count::Unknown, "{text:?}");
        }
    }

    #[test]
    fn pieces_of_one_call_are_told_from_calls_of_their_own() {
        const MIB: u64 = 1 << 20;
        let sim = simworld::Sim::new(simworld::SimConfig::new(1), frames::FramePool::new(1 << 20));
        let host = sim.host("h");
        let rt = host.boot();
        sim.run(async {
            let pieces = Pieces::new(1 << 20);
            pieces.set_count_of(|thread| match thread {
                1 => Count::Bytes(5 << 19),
                2 => Count::Bytes(1 << 20),
                _ => Count::Unknown,
            });
            // 2.5 MiB from a buffer that begins within a page.
            assert_eq!(pieces.keep(&rt, 7, 1, 100, MIB - 8).await, Some(KEEP_KNOWN));
            assert_eq!(pieces.keep(&rt, 7, 1, 100 + MIB - 8, MIB).await, Some(KEEP_KNOWN));
            assert_eq!(pieces.keep(&rt, 7, 1, 100 + 2 * MIB - 8, MIB / 2 + 8).await, None, "that was all");
            assert_eq!(pieces.keep(&rt, 7, 2, 0, MIB).await, None, "one piece is the call");
            assert_eq!(pieces.keep(&rt, 7, 3, 0, MIB).await, Some(KEEP_UNKNOWN));
            assert_eq!(pieces.keep(&rt, 7, 3, MIB, 10).await, None, "the last piece of whatever call");
            assert_eq!(pieces.keep(&rt, 7, 1, 0, 1000).await, None, "not as long as a piece can be");
            // The call before did not come to its end, and another one begins elsewhere.
            assert_eq!(pieces.keep(&rt, 7, 1, 0, MIB).await, Some(KEEP_KNOWN));
            assert_eq!(pieces.keep(&rt, 7, 2, MIB, MIB).await, None, "another thread's");
            pieces.forget(7);
        });
    }
}
