//! The system call that a thread is in while it waits for an answer, as `/proc/TID/syscall` tells: what a request does not say. Who reads it
//! waits for an execve(2) of that process at most, in which no thread writes or cuts.
use std::cell::Cell;

use rt::Rt;
use types::Duration;

/// Looks at a thread that is not asleep yet, and the pause between them.
const LOOKS_MAX: usize = 3;
const LOOK_PAUSE: Duration = Duration::from_micros(100);

/// What can be told of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syscall {
    /// It is in this call; the third argument.
    Is(i64, u64),
    /// It does not wait yet.
    Running,
    /// It cannot be seen.
    Unknown,
}

/// What a thread is in.
pub(crate) type SyscallOf = fn(u32) -> Syscall;

/// Looks at threads.
pub(crate) struct Syscalls(Cell<SyscallOf>);

impl Default for Syscalls {
    fn default() -> Syscalls {
        Syscalls(Cell::new(of_thread))
    }
}

impl Syscalls {
    pub(crate) fn set(&self, of: SyscallOf) {
        self.0.set(of);
    }
    /// The call of a thread that waits for an answer of ours, or is about to; never [`Syscall::Running`].
    pub(crate) async fn of(&self, rt: &Rt, thread: u32) -> Syscall {
        for _ in 0..LOOKS_MAX {
            match self.0.get()(thread) {
                Syscall::Running => rt.sleep(LOOK_PAUSE).await,
                told => return told,
            }
        }
        Syscall::Unknown
    }
    /// Whether what this thread sends is asynchronous, of io_submit(2) or a ring (io_uring). `None`: that cannot be told.
    pub(crate) async fn is_asynchronous(&self, rt: &Rt, thread: u32) -> Option<bool> {
        match self.of(rt, thread).await {
            // A worker of a ring is in the call that made it, or in none.
            Syscall::Is(-1 | libc::SYS_io_submit | libc::SYS_io_uring_setup..=libc::SYS_io_uring_register, _) => {
                Some(true)
            }
            Syscall::Is(..) => Some(false),
            Syscall::Running | Syscall::Unknown => None,
        }
    }
    /// Whether a cut that this thread sends by descriptor is its kernel's own wish: what follows an asynchronous write past the page
    /// cache that fails, to the size that this kernel believes the file to have (Linux: `fuse_direct_IO`, `fuse_do_truncate`). Other
    /// clients may have made the file longer since. It looks like ftruncate(2); rings have such a request too, which cannot be told
    /// from it.
    pub(crate) async fn cuts_by_itself(&self, rt: &Rt, thread: u32) -> bool {
        self.is_asynchronous(rt, thread).await == Some(true)
    }
}

fn of_thread(thread: u32) -> Syscall {
    std::fs::read_to_string(format!("/proc/{thread}/syscall")).map_or(Syscall::Unknown, |text| parse(&text))
}

/// Reads what the kernel says of a call: its number, then its arguments; or "running".
fn parse(text: &str) -> Syscall {
    let mut words = text.split_ascii_whitespace();
    let number = words.next().unwrap_or_default();
    if number == "running" {
        return Syscall::Running;
    }
    let Ok(number) = number.parse() else { return Syscall::Unknown };
    let third = words.nth(2).and_then(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
    match third {
        Some(third) => Syscall::Is(number, third),
        // Outside of a call the kernel tells no arguments.
        None if number == -1 => Syscall::Is(-1, 0),
        None => Syscall::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_the_kernel_tells_it() {
        let call = |n: i64| format!("{n} 0x3 0x7f2c5a000010 0x300000 0x0 0x0 0x0 0x7ffd9d0 0x7f2c5b1\n");
        assert_eq!(parse(&call(libc::SYS_write)), Syscall::Is(libc::SYS_write, 3 << 20));
        assert_eq!(parse("running\n"), Syscall::Running);
        assert_eq!(parse("-1 0x7ffd9d0 0x7f2c5b1"), Syscall::Is(-1, 0));
        for text in ["", "1", "1 0x3 0x4", "1 0x3 0x4 zzz", "x 0x3 0x4 0x5"] {
            assert_eq!(parse(text), Syscall::Unknown, "{text:?}");
        }
    }

    #[test]
    fn cuts_of_kernels_are_told_from_those_of_programs() {
        let sim = simworld::Sim::new(simworld::SimConfig::new(1), frames::FramePool::new(1 << 20));
        let rt = sim.host("h").boot();
        sim.run(async {
            let calls = Syscalls::default();
            for (of, asynchronous) in [
                ((|_| Syscall::Is(libc::SYS_ftruncate, 0)) as SyscallOf, Some(false)),
                (|_| Syscall::Is(libc::SYS_io_submit, 0), Some(true)),
                (|_| Syscall::Is(libc::SYS_io_uring_enter, 0), Some(true)),
                (|_| Syscall::Is(-1, 0), Some(true)),
                (|_| Syscall::Unknown, None),
                (|_| Syscall::Running, None),
            ] {
                calls.set(of);
                assert_eq!(calls.is_asynchronous(&rt, 7).await, asynchronous, "{:?}", of(7));
                assert_eq!(calls.cuts_by_itself(&rt, 7).await, asynchronous == Some(true), "{:?}", of(7));
            }
        });
    }
}
