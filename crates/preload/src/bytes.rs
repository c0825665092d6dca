//! Bytes between a program's memory and its file, through the rings. `None` from here is the kernel's turn: nothing was done, or
//! what was done may be done again.
use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};

use libc::{c_int, c_long, iovec, off_t, ssize_t};
use native::file::{Moved, pieces, read_pieces};
use native::lock::Locked;
use native::{Room, Ticket};

use crate::bind::{self, File};
use crate::count;
use crate::errno::quietly;
use crate::own::Inside;
use crate::sizes;
use crate::table::{self, Kept, Open, Way};

/// Where in the file.
#[derive(Clone, Copy)]
pub enum At {
    /// At its position, which moves.
    Position,
    /// There.
    Offset(off_t),
}

/// How often a read is begun anew because its position moved.
const MOVES_MAX: u32 = 8;
/// How often others have the CPU while a call through the rings waits for calls of the kernel's.
const YIELDS_MAX: u32 = 200;
/// What one read(2) moves at most.
const BYTES_MAX: usize = 0x7fff_f000;

unsafe extern "C-unwind" {
    /// pthread_testcancel(3), which unwinds through its callers when the thread is cancelled.
    fn pthread_testcancel();
}

/// The process has a limit for the length of files, which the kernel watches.
static LIMITED: AtomicBool = AtomicBool::new(false);

/// Looks whether there is a limit for the length of files.
pub fn look_at_limit() {
    let mut of = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: 0 };
    // SAFETY: room for the answer, and nothing is set.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, std::ptr::null::<u8>(), &raw mut of) };
    LIMITED.store(of.rlim_cur != libc::RLIM64_INFINITY, Relaxed);
}

/// Bytes of a call, if its parts are such as the kernel would take.
fn wanted(parts: &[iovec]) -> Option<usize> {
    let mut sum = 0usize;
    for part in parts {
        if part.iov_base.is_null() {
            return None;
        }
        sum = sum.checked_add(part.iov_len)?;
    }
    (sum > 0 && sum <= BYTES_MAX).then_some(sum)
}

/// An open file whose turn the rings' is, and what is done with it.
fn through_rings(fd: c_int, work: impl FnOnce(&Open, &File) -> Option<usize>) -> Option<ssize_t> {
    if !table::is_known(fd) {
        return None;
    }
    if !Inside::is_so() {
        // SAFETY: the thread may end here, as in the kernel's call: nothing is held, and no value of these functions wants to be dropped.
        unsafe { pthread_testcancel() };
    }
    let _inside = Inside::enter()?;
    let open = table::of(fd)?;
    let done = quietly(|| {
        match open.way() {
            Way::Open => bind::settle(&open, fd),
            Way::Kernel => drop(table::forget(fd, &open)),
            _ => {}
        }
        let file = open.file()?;
        if !file.bound.connection().is_usable() {
            open.leave_to_kernel();
            return None;
        }
        work(&open, file)
    });
    let done = ssize_t::try_from(done?).ok()?;
    count::add();
    Some(done)
}

fn position(fd: c_int) -> Option<u64> {
    seek(fd, 0, libc::SEEK_CUR)
}

fn seek(fd: c_int, to: i64, whence: c_int) -> Option<u64> {
    // SAFETY: plain system call.
    let at = unsafe { libc::syscall(libc::SYS_lseek, fd, to, whence) };
    u64::try_from(at).ok()
}

/// Whether a descriptor still is of the open file, with the flags that it had. Where it is not, the kernel has it from now on, and
/// the open file, too: it may be the same with other flags.
fn is_of(open: &Open, file: &File, fd: c_int) -> bool {
    let same = file.is_of(fd);
    // Where it has become another's meanwhile, nothing is found out about this one.
    if !same && table::forget(fd, open) {
        open.leave_to_kernel();
    }
    same
}

/// A read that was begun, of a descriptor that is found out meanwhile to be the right one.
fn first_read(open: &Open, file: &File, fd: c_int, at: u64, len: usize) -> io::Result<Ticket> {
    let ticket = file.bound.read(at, len, Room::Free)?;
    if !is_of(open, file, fd) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(ticket)
}

/// A transfer of a call: an open file, its descriptor, the program's memory, how many bytes.
struct Transfer<'a> {
    of: (&'a Open, &'a File),
    fd: c_int,
    parts: &'a [iovec],
    wanted: usize,
    write: Write,
}

/// How far a write through the rings is. Where a handler of a signal jumps out of it, or writes itself, [`write_to_the_end`] does the rest, as
/// a write of the kernel's ends before a handler runs.
#[derive(Default)]
struct Write {
    /// Where in the file it goes; `None`: it has not begun, as far as is known.
    at: Cell<Option<u64>>,
    /// Of one that moves the position, where that was before.
    from: Cell<Option<u64>>,
    done: Cell<usize>,
    /// Bytes of the whole, once a handler had it brought to its end.
    ended: Cell<Option<usize>>,
}

thread_local! {
    /// The write that the thread is in.
    static WRITING: Cell<*const Transfer<'static>> = const { Cell::new(std::ptr::null()) };
}

/// A write is known as long as this is there.
struct Known;

impl Drop for Known {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        WRITING.with(|w| w.set(std::ptr::null()));
    }
}

/// A handler of a signal is about to write, or jumps: a write that it interrupted comes to its end first. The daemon does what it was asked
/// for, and the kernel the rest.
pub fn write_to_the_end() {
    // SAFETY: a frame of this thread, which the handler stands on.
    let Some(interrupted) = (unsafe { WRITING.with(Cell::get).as_ref() }) else { return };
    if interrupted.write.ended.get().is_none() {
        quietly(|| interrupted.end());
    }
}

/// A handler jumps out of the write that it interrupted. That has come to its end.
pub fn write_is_left() {
    WRITING.with(|w| w.set(std::ptr::null()));
}

/// A handler is about to move a position.
fn position_moves() {
    // SAFETY: as above.
    if let Some(interrupted) = unsafe { WRITING.with(Cell::get).as_ref() } {
        interrupted.write.at.set(interrupted.begun());
    }
}

impl Transfer<'_> {
    fn known(&self) -> Known {
        WRITING.with(|w| w.set(std::ptr::from_ref(self).cast()));
        compiler_fence(SeqCst);
        Known
    }
    /// Where a write goes, if it has begun.
    fn begun(&self) -> Option<u64> {
        let moved =
            || position(self.fd)?.checked_sub(self.wanted as u64).filter(|at| self.write.from.get() == Some(*at));
        self.write.at.get().or_else(moved)
    }
    /// Whether a write that has begun is another process's, of which this one is a copy.
    fn is_parents(&self) -> bool {
        self.write.at.get().is_some() && !self.of.1.bound.is_ours()
    }
    /// See [`write_to_the_end`].
    fn end(&self) {
        let Some(at) = self.begun().filter(|_| self.of.1.bound.is_ours()) else { return };
        self.of.1.bound.connection().finish();
        let failed = Some(io::ErrorKind::NotConnected.into());
        let n = self.with_rest(&Moved { bytes: self.write.done.get(), failed }, at, libc::SYS_pwrite64);
        let end = at + self.wanted as u64;
        if n < self.wanted && self.write.from.get().is_some() && position(self.fd) == Some(end) {
            seek(self.fd, n as i64 - self.wanted as i64, libc::SEEK_CUR);
        }
        self.write.ended.set(Some(n));
    }
}

impl Transfer<'_> {
    /// Reads at `at`; `begun`: the first piece of it.
    fn read_at(&self, begun: Ticket, at: u64) -> io::Result<usize> {
        let (parts, bound) = (self.parts, &self.of.1.bound);
        // SAFETY: the same layout, and the memory is the caller's to be written to.
        let into =
            unsafe { std::slice::from_raw_parts_mut(parts.as_ptr().cast_mut().cast::<IoSliceMut<'_>>(), parts.len()) };
        let moved = read_pieces(self.wanted, Some(begun), into, |done, len, room| {
            bound.read(at + done as u64, len, if room == Room::Waited { Room::Free } else { room })
        });
        Ok(self.with_rest(&moved?, at, libc::SYS_pread64))
    }

    /// Writes at `at`; what finds no room, or fails, the kernel writes there.
    fn write_or_leave_at(&self, at: u64) -> usize {
        self.write_at(at)
            .unwrap_or_else(|e| self.with_rest(&Moved { bytes: 0, failed: Some(e) }, at, libc::SYS_pwrite64))
    }

    /// Writes at `at`.
    fn write_at(&self, at: u64) -> io::Result<usize> {
        let (parts, file) = (self.parts, self.of.1);
        // SAFETY: the same layout, and the memory is the caller's to be read.
        let from = unsafe { std::slice::from_raw_parts(parts.as_ptr().cast::<IoSlice<'_>>(), parts.len()) };
        let moved = pieces(self.wanted, |done, len| {
            self.write.done.set(done);
            file.bound.write(at + done as u64, (from, done, len), Some(file.flags), Room::Free)?.wait(&mut [])
        });
        let moved = if self.is_settled() { moved.unwrap_or(Moved { bytes: 0, failed: None }) } else { moved? };
        Ok(self.with_rest(&moved, at, libc::SYS_pwrite64))
    }

    /// Whether nothing is left to be written: a handler had the write brought to its end, or made this child of who writes.
    fn is_settled(&self) -> bool {
        self.write.ended.get().is_some() || self.is_parents()
    }

    /// Bytes of the whole. Where a piece found no room, or failed, the kernel does the rest: programs take less than they asked for, of a
    /// file, for its end or a full disk.
    fn with_rest(&self, moved: &Moved, at: u64, call: c_long) -> usize {
        let (open, file) = self.of;
        if self.is_settled() {
            return self.write.ended.get().unwrap_or(self.wanted);
        }
        if moved.failed.is_none() || !is_of(open, file, self.fd) {
            return moved.bytes;
        }
        let mut done = moved.bytes;
        for (base, len) in after(self.parts, moved.bytes) {
            if let Some(n) = self.write.ended.get() {
                return n;
            }
            // SAFETY: the memory of the caller's part. What is done of another call is never counted twice.
            let n = unsafe { libc::syscall(call, self.fd, base, len, at + done as u64) };
            done += usize::try_from(n).unwrap_or(0);
            if usize::try_from(n) != Ok(len) {
                break;
            }
        }
        done
    }
}

/// What is left of parts after so many bytes of them.
fn after(parts: &[iovec], bytes: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    let mut skip = bytes;
    parts.iter().filter_map(move |part| {
        let begin = skip.min(part.iov_len);
        skip -= begin;
        let len = part.iov_len - begin;
        (len > 0).then(|| (part.iov_base.cast::<u8>().wrapping_add(begin), len))
    })
}

/// read(2), readv(2), pread(2), preadv(2).
///
/// # Safety
/// The parts are the caller's to be written to.
pub unsafe fn read(fd: c_int, parts: &[iovec], at: At) -> Option<ssize_t> {
    through_rings(fd, |open, file| {
        let wanted = wanted(parts)?;
        let first = wanted.min(native::ring::REQUEST_BYTES_MAX);
        let transfer = Transfer { of: (open, file), fd, parts, wanted, write: Write::default() };
        if let At::Offset(at) = at {
            let at = u64::try_from(at).ok().filter(|at| off_t::try_from(at + wanted as u64).is_ok())?;
            let begun = first_read(open, file, fd, at, first).ok()?;
            return transfer.read_at(begun, at).ok();
        }
        if !open.is_alone() {
            return None;
        }
        let _position = alone(open)?;
        let guess = open.expected.load(Relaxed);
        let mut begun = first_read(open, file, fd, guess, first).ok()?;
        let mut at = position(fd)?;
        if at != guess {
            begun = file.bound.read(at, first, Room::Free).ok()?;
        }
        for _ in 0..MOVES_MAX {
            let n = transfer.read_at(begun, at).ok()?;
            let end = seek(fd, n as i64, libc::SEEK_CUR)?;
            if end == at + n as u64 {
                open.expected.store(end, Relaxed);
                return Some(n);
            }
            // A handler of a signal moved it meanwhile: these bytes were its.
            at = seek(fd, -(n as i64), libc::SEEK_CUR)?;
            begun = file.bound.read(at, first, Room::Free).ok()?;
        }
        None
    })
}

/// write(2), writev(2), pwrite(2), pwritev(2).
///
/// # Safety
/// The parts are the caller's to be read.
pub unsafe fn write(fd: c_int, parts: &[iovec], at: At) -> Option<ssize_t> {
    if Inside::is_so() && table::is_known(fd) {
        write_to_the_end();
    }
    through_rings(fd, |open, file| {
        let wanted = wanted(parts)?;
        if file.appends() {
            sizes::ask(fd);
            return None;
        }
        if LIMITED.load(Relaxed) {
            return None;
        }
        let transfer = Transfer { of: (open, file), fd, parts, wanted, write: Write::default() };
        let written = |n: usize| {
            open.wrote.store(true, Relaxed);
            sizes::on_written();
            n
        };
        if let At::Offset(at) = at {
            let at = u64::try_from(at).ok().filter(|at| off_t::try_from(at + wanted as u64).is_ok())?;
            if !is_of(open, file, fd) {
                return None;
            }
            transfer.write.at.set(Some(at));
            let _known = transfer.known();
            return transfer.write_at(at).ok().map(written);
        }
        if !open.is_alone() {
            return None;
        }
        let _position = alone(open)?;
        // From here on the descriptor leads to no other file: who has it duplicated waits.
        if !is_of(open, file, fd) {
            return None;
        }
        // Moved before: who writes meanwhile, as a handler of a signal may, writes behind it. So it is not moved back for want of room:
        // a call that began when the descriptor was another file's may be the kernel's, and among those that write behind it.
        transfer.write.from.set(Some(position(fd)?));
        let _known = transfer.known();
        let end = seek(fd, wanted as i64, libc::SEEK_CUR)?;
        transfer.write.at.set(Some(end - wanted as u64));
        let n = written(transfer.write_or_leave_at(end - wanted as u64));
        // What a handler had brought to its end has its position.
        if n < wanted && !transfer.is_settled() {
            seek(fd, n as i64 - wanted as i64, libc::SEEK_CUR)?;
        }
        open.expected.store(end, Relaxed);
        (n > 0).then_some(n)
    })
}

/// The position of an open file, for a call through the rings: of this process alone, and with no call of the kernel's under way
/// that began before.
fn alone(open: &Open) -> Option<Locked<'_, ()>> {
    if !open.is_alone() {
        return None;
    }
    let position = open.position.lock();
    for _ in 0..YIELDS_MAX {
        if open.kernels.load(SeqCst) == 0 {
            // Shared meanwhile, by who waited for calls like this one to end?
            return open.is_alone().then_some(position);
        }
        std::thread::yield_now();
    }
    None
}

/// A call that uses a position is the kernel's: none through the rings is under way when it begins, and none begins before it ends.
pub fn kernel_begins(fd: c_int) -> Option<Kept> {
    if !table::is_known(fd) {
        return None;
    }
    // The call that a handler of a signal interrupted is not waited for.
    let Some(_inside) = Inside::enter() else {
        position_moves();
        return None;
    };
    let kept = table::of(fd)?.keep();
    let _position = kept.open().position.lock();
    kept.open().kernels.fetch_add(1, SeqCst);
    Some(kept)
}

/// It ended. Where its thread was cancelled in it this is not said, and the position is the kernel's for good.
pub fn kernel_ended(kept: Option<Kept>) {
    let Some(kept) = kept else { return };
    let _inside = Inside::enter();
    if let Some(open) = kept.again() {
        open.kernels.fetch_sub(1, SeqCst);
    }
}

/// Does something about a descriptor, or the position of its file, that calls under way must not be in the middle of. A handler of a
/// signal that comes meanwhile finds the thread inside, and waits for no position. Whatever way the file is served: it may be the rings' at
/// the next moment.
pub fn beside<T>(fd: c_int, work: impl FnOnce() -> T) -> T {
    let inside = if table::is_known(fd) { Inside::enter() } else { None };
    if inside.is_none() {
        position_moves();
    }
    let open = inside.as_ref().and_then(|_| table::of(fd));
    let _position = open.as_ref().map(|o| o.position.lock());
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_parts_begins_in_the_middle_of_one() {
        let bytes = [0u8; 9];
        let at = |n: usize| bytes.as_ptr().wrapping_add(n).cast_mut();
        let part = |n: usize, len| iovec { iov_base: at(n).cast(), iov_len: len };
        let parts = [part(0, 3), part(3, 0), part(3, 4), part(7, 2)];
        let left = |n| after(&parts, n).collect::<Vec<_>>();
        assert_eq!(left(0), [(at(0), 3), (at(3), 4), (at(7), 2)]);
        assert_eq!((left(3), left(5)), (vec![(at(3), 4), (at(7), 2)], vec![(at(5), 2), (at(7), 2)]));
        assert_eq!((left(8), left(9)), (vec![(at(8), 1)], vec![]));
    }
}
