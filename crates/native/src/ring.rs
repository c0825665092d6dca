//! What stands in the shared area: a page of counters, the submission ring, the completion ring, and room for data.
//!
//! Counters only grow (they wrap); an entry's place is its number modulo [`ENTRIES`]. The program writes [`SUBMITTED`] and
//! [`REAPED`], the daemon [`TAKEN`] and [`COMPLETED`]. Each side keeps its own counters to itself and only shows
//! them here; of the other side's it believes no more than that they are at most [`ENTRIES`] ahead. An entry is copied once,
//! then judged, and what was judged is the copy.
//!
//! Who finds nothing to do looks a moment longer, then says in its word of sleep that it sleeps, looks once more, and waits for
//! the other side: the daemon for its eventfd, the program for the socket. Who adds something looks at the other's word, and wakes it
//! when that says so.
//!
//! When nothing is under way any more for a program that has hung up, the daemon takes the memory back, whoever still has it mapped:
//! its word that the connection lives goes first. What a program copied out counts only where that word is there after it.
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::area::Area;

/// Entries of each ring, and requests that a connection may have under way or unread.
pub const ENTRIES: u32 = 64;
/// Room for data.
pub const DATA_BYTES: usize = 4 << 20;
/// Bytes that one request reads or writes at most.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

const SUBMITTED: usize = 0;
const TAKEN: usize = 64;
const COMPLETED: usize = 128;
const REAPED: usize = 192;
/// The daemon's word of sleep.
const DAEMON_SLEEPS: usize = 256;
/// The program's.
const PROGRAM_SLEEPS: usize = 320;
/// The daemon's word that what stands here is its own; 0 when it has taken the memory back.
const LIVES: usize = 384;
const SUBMISSIONS: usize = 4096;
const SUBMISSION_BYTES: usize = 64;
const COMPLETIONS: usize = SUBMISSIONS + ENTRIES as usize * SUBMISSION_BYTES;
const COMPLETION_BYTES: usize = 16;
/// Where the room for data begins.
pub const DATA: usize = 3 * 4096;
/// The whole area.
pub const AREA_BYTES: usize = DATA + DATA_BYTES;

const _: () = assert!(COMPLETIONS + ENTRIES as usize * COMPLETION_BYTES <= DATA);

/// Of a write's `spare`: the status flags are there, in the lower half.
pub const FLAGS_KNOWN: u64 = 1 << 32;

/// What is asked, as numbers of the ring.
pub mod op {
    /// Nothing: an answer of 0.
    pub const NOP: u64 = 0;
    /// The open file that the daemon calls `file` gets, for its token (`offset`, `spare`), a number on this connection: the answer.
    pub const BIND: u64 = 1;
    /// The number `file` is not used any more.
    pub const UNBIND: u64 = 2;
    /// pread(2) of `len` bytes at `offset` into the data at `data`.
    pub const READ: u64 = 3;
    /// pwrite(2) of `len` bytes from the data at `data`; an open with O_APPEND appends.
    pub const WRITE: u64 = 4;
    /// fsync(2).
    pub const SYNC: u64 = 5;
    /// fdatasync(2).
    pub const DATASYNC: u64 = 6;
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submission {
    /// One of [`op`].
    pub op: u64,
    /// The number of the open file on this connection.
    pub file: u64,
    /// Where in the file.
    pub offset: u64,
    /// Where in the room for data.
    pub data: u64,
    /// Bytes.
    pub len: u64,
    /// Comes back with the answer.
    pub user: u64,
    /// Second half of a token; of writes the status flags of the descriptor with [`FLAGS_KNOWN`]; else 0.
    pub spare: u64,
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// As the request had it.
    pub user: u64,
    /// Bytes, a number, 0; or an errno, negative.
    pub result: i64,
}

/// The other side wrote what it may not write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation;

/// The daemon's end.
pub struct DaemonEnd {
    area: Arc<Area>,
    taken: u32,
    completed: u32,
}

/// The program's end.
pub struct ProgramEnd {
    area: Arc<Area>,
    submitted: u32,
    reaped: u32,
}

fn slot(ring: usize, number: u32, bytes: usize) -> usize {
    ring + (number % ENTRIES) as usize * bytes
}

/// The entries from `own` to what the other side shows.
fn ahead(area: &Area, counter: usize, own: u32) -> Result<u32, Violation> {
    let n = area.half(counter).load(Acquire).wrapping_sub(own);
    if n > ENTRIES { Err(Violation) } else { Ok(n) }
}

impl DaemonEnd {
    /// Over a fresh area.
    #[must_use]
    pub fn new(area: Area) -> DaemonEnd {
        area.half(LIVES).store(1, Release);
        DaemonEnd { area: Arc::new(area), taken: 0, completed: 0 }
    }
    /// Nothing is under way any more: what stands in the memory counts no longer, which who has it mapped can see ([`lives`]). The memory is
    /// to be given back then ([`Area::give_back`]).
    #[must_use]
    pub fn end(&self) -> Arc<Area> {
        self.area.half(LIVES).store(0, SeqCst);
        self.area.clone()
    }
    /// The memory.
    #[must_use]
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }
    /// The next request.
    ///
    /// # Errors
    /// The program's counters cannot be, or it has more under way and unread than the rings hold.
    pub fn take(&mut self) -> Result<Option<Submission>, Violation> {
        if ahead(&self.area, SUBMITTED, self.taken)? == 0 {
            return Ok(None);
        }
        let reaped = self.area.half(REAPED).load(Acquire);
        if self.completed.wrapping_sub(reaped) > ENTRIES || self.taken.wrapping_sub(reaped) >= ENTRIES {
            return Err(Violation);
        }
        let at = slot(SUBMISSIONS, self.taken, SUBMISSION_BYTES);
        let word = |i: usize| self.area.word(at + 8 * i).load(Relaxed);
        let submission = Submission {
            op: word(0),
            file: word(1),
            offset: word(2),
            data: word(3),
            len: word(4),
            user: word(5),
            spare: word(6),
        };
        self.taken = self.taken.wrapping_add(1);
        self.area.half(TAKEN).store(self.taken, Release);
        Ok(Some(submission))
    }
    /// Whether there is something to take.
    #[must_use]
    pub fn has_request(&self) -> bool {
        self.area.half(SUBMITTED).load(Acquire) != self.taken
    }
    /// Answers. Whether the program has to be woken.
    #[must_use]
    pub fn complete(&mut self, c: Completion) -> bool {
        let at = slot(COMPLETIONS, self.completed, COMPLETION_BYTES);
        self.area.word(at).store(c.user, Relaxed);
        self.area.word(at + 8).store(c.result as u64, Relaxed);
        self.completed = self.completed.wrapping_add(1);
        self.area.half(COMPLETED).store(self.completed, Release);
        fence(SeqCst);
        self.area.half(PROGRAM_SLEEPS).load(Relaxed) != 0 && self.area.half(PROGRAM_SLEEPS).swap(0, Relaxed) != 0
    }
    /// Says that the daemon sleeps. `false`: there is something to take after all.
    #[must_use]
    pub fn sleep(&self) -> bool {
        self.area.half(DAEMON_SLEEPS).store(1, Relaxed);
        fence(SeqCst);
        let nothing = self.area.half(SUBMITTED).load(Relaxed) == self.taken;
        if !nothing {
            self.awake();
        }
        nothing
    }
    /// Says that it is awake.
    pub fn awake(&self) {
        self.area.half(DAEMON_SLEEPS).store(0, Relaxed);
    }
}

/// Whether what was copied out of the memory until now is what the daemon put there.
#[must_use]
pub fn lives(area: &Area) -> bool {
    fence(Acquire);
    area.half(LIVES).load(Relaxed) != 0
}

impl ProgramEnd {
    /// Over an area that came from the daemon.
    #[must_use]
    pub fn new(area: Area) -> ProgramEnd {
        ProgramEnd { area: Arc::new(area), submitted: 0, reaped: 0 }
    }
    /// The memory.
    #[must_use]
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }
    /// Requests that are not read yet: there is room while it is less than [`ENTRIES`].
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.submitted.wrapping_sub(self.reaped)
    }
    /// Asks. Whether the daemon has to be woken.
    ///
    /// # Panics
    /// There is no room: callers look first.
    #[must_use]
    pub fn submit(&mut self, s: &Submission) -> bool {
        assert!(self.under_way() < ENTRIES, "callers look for room first");
        let at = slot(SUBMISSIONS, self.submitted, SUBMISSION_BYTES);
        for (i, word) in [s.op, s.file, s.offset, s.data, s.len, s.user, s.spare].into_iter().enumerate() {
            self.area.word(at + 8 * i).store(word, Relaxed);
        }
        self.submitted = self.submitted.wrapping_add(1);
        self.area.half(SUBMITTED).store(self.submitted, Release);
        fence(SeqCst);
        self.area.half(DAEMON_SLEEPS).load(Relaxed) != 0 && self.area.half(DAEMON_SLEEPS).swap(0, Relaxed) != 0
    }
    /// The next answer.
    ///
    /// # Errors
    /// The daemon's counters cannot be.
    pub fn reap(&mut self) -> Result<Option<Completion>, Violation> {
        if ahead(&self.area, COMPLETED, self.reaped)? == 0 {
            return Ok(None);
        }
        if self.under_way() == 0 {
            return Err(Violation);
        }
        let at = slot(COMPLETIONS, self.reaped, COMPLETION_BYTES);
        let (user, result) = (self.area.word(at).load(Relaxed), self.area.word(at + 8).load(Relaxed) as i64);
        self.reaped = self.reaped.wrapping_add(1);
        self.area.half(REAPED).store(self.reaped, Release);
        Ok(Some(Completion { user, result }))
    }
    /// Whether an answer is there.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.area.half(COMPLETED).load(Acquire) != self.reaped
    }
    /// Says that the program sleeps. `false`: there is an answer after all.
    #[must_use]
    pub fn sleep(&self) -> bool {
        self.area.half(PROGRAM_SLEEPS).store(1, Relaxed);
        fence(SeqCst);
        let nothing = self.area.half(COMPLETED).load(Relaxed) == self.reaped;
        if !nothing {
            self.awake();
        }
        nothing
    }
    /// Says that it is awake.
    pub fn awake(&self) {
        self.area.half(PROGRAM_SLEEPS).store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (DaemonEnd, ProgramEnd) {
        let (area, fd) = Area::make(AREA_BYTES).unwrap();
        (DaemonEnd::new(area), ProgramEnd::new(Area::map(&fd, AREA_BYTES).unwrap()))
    }
    fn read(user: u64) -> Submission {
        Submission { op: op::READ, file: 1, offset: 2, data: 3, len: 4, user, spare: 5 }
    }

    #[test]
    fn requests_and_answers_cross_in_order_round_and_round() {
        let (mut daemon, mut program) = pair();
        for user in 0..1000 {
            assert!(!program.submit(&read(user)));
            assert_eq!(daemon.take(), Ok(Some(read(user))));
            assert_eq!(daemon.take(), Ok(None));
            assert!(!daemon.complete(Completion { user, result: -(user as i64) }));
            assert_eq!(program.reap(), Ok(Some(Completion { user, result: -(user as i64) })));
            assert_eq!(program.reap(), Ok(None));
        }
    }

    #[test]
    fn who_sleeps_is_woken_once_and_nobody_sleeps_over_something_to_do() {
        let (mut daemon, mut program) = pair();
        assert!(daemon.sleep() && program.sleep());
        assert!(program.submit(&read(1)), "the daemon said that it sleeps");
        assert!(!program.submit(&read(2)), "it was woken");
        assert!(!daemon.sleep(), "there is something");
        assert!(!program.submit(&read(3)), "so it is awake");
        let _ = daemon.take();
        assert!(daemon.complete(Completion::default()));
        assert!(!program.sleep() && program.has_answer());
    }

    #[test]
    fn memory_that_was_taken_back_is_known_by_who_has_it_mapped() {
        let (daemon, program) = pair();
        daemon.area().put(DATA, b"bytes");
        let mut got = [0; 5];
        program.area().get(DATA, &mut got);
        assert!(lives(program.area()) && got == *b"bytes");
        daemon.end().give_back();
        program.area().get(DATA, &mut got);
        assert!(!lives(program.area()) && got == [0; 5]);
    }

    #[test]
    fn counters_that_cannot_be_are_a_violation() {
        let (mut daemon, mut program) = pair();
        daemon.area().half(SUBMITTED).store(ENTRIES + 1, Relaxed);
        assert_eq!(daemon.take(), Err(Violation));
        daemon.area().half(SUBMITTED).store(u32::MAX, Relaxed);
        assert_eq!(daemon.take(), Err(Violation));
        daemon.area().half(SUBMITTED).store(1, Relaxed);
        daemon.area().half(REAPED).store(7, Relaxed);
        assert_eq!(daemon.take(), Err(Violation), "answers read that never came");
        program.area().half(COMPLETED).store(1, Relaxed);
        assert_eq!(program.reap(), Err(Violation), "an answer to nothing");
    }

    #[test]
    fn more_than_the_rings_hold_is_a_violation_even_when_it_comes_bit_by_bit() {
        let (mut daemon, mut program) = pair();
        for user in 0..u64::from(ENTRIES) {
            let _ = program.submit(&read(user));
            assert!(daemon.take().is_ok_and(|s| s.is_some()));
        }
        daemon.area().half(SUBMITTED).store(ENTRIES + 1, Relaxed);
        assert_eq!(daemon.take(), Err(Violation));
    }
}
