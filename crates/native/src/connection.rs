//! The program's end of the rings: any thread asks, and any thread that waits reads answers for all.
//!
//! Who waits looks at the rings for a moment, which is long as long as that pays. Then one thread at a time sleeps for all of
//! them, in poll(2) of the socket, over which the daemon wakes it, and whose end is the daemon's: every request under way is an error
//! then. The lock is held for counters and short copies of them only; bytes are copied outside.
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::area::Area;
use crate::bells::Bells;
use crate::generation::generation;
use crate::lock::{Event, Lock, Locked};
use crate::offer::Offer;
use crate::pass;
use crate::ring::{self, AREA_BYTES, ENTRIES, ProgramEnd, REQUEST_BYTES_MAX, Submission};

/// Room for data is given out in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: u32 = (ring::DATA_BYTES / PIECE_BYTES) as u32;
const _: () = assert!(PIECES == u64::BITS);
/// Looks at the rings before a thread sleeps: at most (some 50 us), and at least.
const LOOKS_MAX: u32 = 2048;
const LOOKS_MIN: u32 = 32;
/// How long a thread is believed to sleep for all: a signal's handler may have made it jump out of that sleep.
const WATCHED_AT_MOST: Duration = Duration::from_secs(1);
/// How long the daemon may take to greet.
const GREETED_WITHIN: Duration = Duration::from_secs(10);

/// What happened to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Free,
    UnderWay,
    /// Nobody wants the answer.
    Abandoned,
    Done(i64),
}

#[derive(Clone, Copy)]
struct Slot {
    fate: Fate,
    /// Pieces of the room for data that it has.
    pieces: u64,
    /// Nobody waits for it yet.
    begun: bool,
}

const FREE: Slot = Slot { fate: Fate::Free, pieces: 0, begun: false };
/// Slots, and pieces of room, that requests may have that nobody waits for: whoever waits always finds some.
const BEGUN_MAX: u32 = ENTRIES / 2;

struct State {
    end: ProgramEnd,
    slots: [Slot; ENTRIES as usize],
    /// Pieces that are given out.
    used: u64,
    /// A thread sleeps for all.
    watched: bool,
    /// Threads that listen for the daemon's knock: more than one where one was not believed any more.
    watchers: u32,
    /// The daemon broke the rules.
    broken: bool,
}

/// A connection of this process to the daemon of a mount.
pub struct Connection {
    state: Lock<State>,
    changed: Event,
    /// The daemon is gone, or what it says cannot be believed, or nobody listens to it any more.
    dead: AtomicBool,
    area: Arc<Area>,
    bells: Bells,
    generation: u32,
    looks: AtomicU32,
}

/// What a request does that finds no room: 64 are under way, or the room for data is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// It waits. Its caller waits for the answer before it asks more.
    Waited,
    /// Nobody waits for the answer before more is asked. Of such requests there are at most 32, with 2 MiB; EAGAIN for more.
    Begun,
    /// EAGAIN at once: the caller has another way.
    Free,
    /// As [`Room::Free`], and so that room for a request of 1 MiB is left: for what the same caller will wait for next, while it waits for another
    /// answer.
    Ahead,
}

/// A request under way. Dropped, it goes on, and its answer is thrown away.
pub struct Ticket {
    of: Arc<Connection>,
    slot: usize,
    data: usize,
    len: usize,
    /// It changes something.
    changes: bool,
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// The first run of free pieces that holds `len` bytes, as bits.
fn find_room(used: u64, len: usize) -> Option<u64> {
    let n = len.div_ceil(PIECE_BYTES) as u32;
    if n == 0 {
        return Some(0);
    }
    let run = (1u64 << n) - 1;
    (0..=PIECES - n).map(|at| run << at).find(|bits| used & bits == 0)
}

/// Whether a request of any length finds room beside the pieces that are used.
fn leaves_room(used: u64) -> bool {
    find_room(used, REQUEST_BYTES_MAX).is_some()
}

impl State {
    /// Reads what answers there are. Whether there were any.
    fn reap(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.end.reap() {
                Ok(None) => return any,
                Ok(Some(answer)) => {
                    any = true;
                    let Some(slot) = usize::try_from(answer.user).ok().and_then(|i| self.slots.get_mut(i)) else {
                        self.broken = true;
                        return any;
                    };
                    match slot.fate {
                        Fate::UnderWay => slot.fate = Fate::Done(answer.result),
                        _ => {
                            self.used &= !slot.pieces;
                            *slot = FREE;
                        }
                    }
                }
                Err(_) => {
                    self.broken = true;
                    return any;
                }
            }
        }
    }

    /// Slots and pieces of requests that nobody waits for.
    fn begun(&self) -> (u32, u64) {
        self.slots.iter().filter(|s| s.begun).fold((0, 0), |(n, p), s| (n + 1, p | s.pieces))
    }

    /// Whether one more request that nobody waits for may begin, now or when those that are waited for have ended.
    fn may_begin(&self, len: usize) -> bool {
        let (slots, pieces) = self.begun();
        let fits = pieces.count_ones() + len.div_ceil(PIECE_BYTES) as u32 <= BEGUN_MAX;
        slots < BEGUN_MAX && fits && find_room(pieces, len).is_some_and(|new| leaves_room(pieces | new))
    }

    /// A slot and room for a request, taken.
    fn admit(&mut self, len: usize, room: Room) -> Option<(usize, u64)> {
        let spare = u32::from(room == Room::Ahead);
        if self.end.under_way() + spare >= ENTRIES {
            return None;
        }
        let slot = self.slots.iter().position(|s| s.fate == Fate::Free)?;
        let pieces = find_room(self.used, len)?;
        if room == Room::Ahead && !leaves_room(self.used | pieces) {
            return None;
        }
        // Scattered, they would take the room of who waits, and may be the same thread's.
        if room == Room::Begun && !leaves_room(self.begun().1 | pieces) {
            return None;
        }
        self.used |= pieces;
        self.slots[slot] = Slot { fate: Fate::UnderWay, pieces, begun: room == Room::Begun };
        Some((slot, pieces))
    }
}

/// The connections of a process, by socket.
struct Registry {
    generation: u32,
    connections: Lock<HashMap<PathBuf, Weak<Connection>>>,
}

/// This process's. A child makes its own: its parent's may have been locked by a thread that the child does not have.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(std::ptr::null_mut());

/// The registry of this process, whose generation is this.
fn registry(generation: u32) -> &'static Registry {
    loop {
        let known = REGISTRY.load(Acquire);
        // SAFETY: registries are never freed.
        if let Some(r) = unsafe { known.as_ref() }
            && r.generation == generation
        {
            return r;
        }
        let new = Box::into_raw(Box::new(Registry { generation, connections: Lock::new(HashMap::new()) }));
        if REGISTRY.compare_exchange(known, new, Release, Relaxed).is_err() {
            // SAFETY: made above, and nobody else saw it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

impl Connection {
    /// The connection to the daemon that made an offer: the one there is, or a new one.
    ///
    /// # Errors
    /// ECONNREFUSED: the daemon is gone or serves too many; EPERM: somebody else than the mount's owner answers; EPROTO: in
    /// another way than this version's.
    pub fn to(offer: &Offer) -> io::Result<Arc<Connection>> {
        let generation = generation().ok_or_else(|| errno(libc::ENOTSUP))?;
        let mut all = registry(generation).connections.lock();
        let known = all.get(&offer.socket).and_then(Weak::upgrade);
        if let Some(c) = known.filter(|c| c.is_usable()) {
            return Ok(c);
        }
        all.retain(|_, c| c.strong_count() > 0);
        let new = Arc::new(Connection::begin(UnixStream::connect(&offer.socket)?, offer.uid)?);
        all.insert(offer.socket.clone(), Arc::downgrade(&new));
        Ok(new)
    }

    /// Begins one over a socket whose other end must be `uid`'s.
    ///
    /// # Errors
    /// As [`Connection::to`].
    pub fn begin(stream: UnixStream, uid: u32) -> io::Result<Connection> {
        if pass::peer(&stream)?.uid != uid {
            return Err(errno(libc::EPERM));
        }
        stream.set_read_timeout(Some(GREETED_WITHIN))?;
        let [area, daemons_bell] = pass::be_greeted(&stream)?;
        let end = ProgramEnd::new(Area::map(&area, AREA_BYTES)?);
        let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        Ok(Connection {
            area: end.area().clone(),
            state: Lock::new(State {
                end,
                slots: [FREE; ENTRIES as usize],
                used: 0,
                watched: false,
                watchers: 0,
                broken: false,
            }),
            dead: AtomicBool::new(false),
            changed: Event::new(),
            bells: Bells::new(daemons_bell, stream)?,
            generation: generation().ok_or_else(|| errno(libc::ENOTSUP))?,
            looks: AtomicU32::new(if alone { 0 } else { LOOKS_MAX }),
        })
    }

    fn state(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    /// Whether it was begun by this process, rather than by one that this was forked from.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        generation() == Some(self.generation)
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Ends it: who waits for an answer has none, and nobody asks anything more. For a program one of whose threads
    /// jumped away in the middle of something.
    pub fn abandon(&self) {
        self.dead.store(true, Relaxed);
        // The socket of a process that this was forked from is that one's.
        if self.is_ours() {
            self.bells.hang_up();
        }
        self.changed.happen();
    }

    /// Abandons it, and waits until what it was asked to change is changed, or never will be: before somebody else does so again.
    /// For handlers of signals, too: it locks nothing.
    pub fn finish(&self) {
        self.abandon();
        // Looked at again and again: a number that became another file's in the meantime is not waited for.
        while self.is_ours() && !self.bells.has_hung_up(WATCHED_AT_MOST) {}
    }

    /// Closes the descriptors of one that is not usable any more, if nothing is under way at the daemon. Whether that is so.
    pub fn close(&self) -> bool {
        let ended = self.bells.has_hung_up(Duration::ZERO);
        if ended {
            self.bells.close();
        }
        ended
    }

    /// In a child that was forked in the middle of a call: the call finds that there is no daemon, and nothing locked.
    pub fn stand_in(&self) {
        self.dead.store(true, Relaxed);
        self.state.reset();
        self.area.stand_in();
    }

    /// The numbers of its descriptors in the program's table.
    #[must_use]
    pub fn descriptors(&self) -> [RawFd; 2] {
        self.bells.numbers()
    }

    /// Whether it is this process's, and the daemon was there when it was last looked at.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_ours() && !self.is_dead()
    }

    /// Asks: `s` without its place for data and its number, which come from here. For writes, `data` are the bytes; for
    /// reads `len` says how many are wanted.
    ///
    /// # Errors
    /// ENOTCONN: the daemon is gone; EINVAL: more than [`REQUEST_BYTES_MAX`]; EAGAIN: as [`Room`] says.
    pub fn submit(self: &Arc<Self>, s: Submission, data: &[u8], len: usize, room: Room) -> io::Result<Ticket> {
        self.submit_parts(s, &[IoSlice::new(data)], 0, len.max(data.len()), room)
    }

    /// As [`Connection::submit`], with bytes in parts: `len` of them, after the first `skip`.
    ///
    /// # Errors
    /// As [`Connection::submit`].
    pub fn submit_parts(
        self: &Arc<Self>,
        s: Submission,
        data: &[IoSlice<'_>],
        skip: usize,
        len: usize,
        room: Room,
    ) -> io::Result<Ticket> {
        if len > REQUEST_BYTES_MAX {
            return Err(errno(libc::EINVAL));
        }
        if !self.is_ours() {
            return Err(errno(libc::ENOTCONN));
        }
        let mut state = self.state();
        let (slot, pieces) = loop {
            if state.broken || self.is_dead() {
                return Err(errno(libc::ENOTCONN));
            }
            if room == Room::Begun && !state.may_begin(len) {
                return Err(errno(libc::EAGAIN));
            }
            if let Some(admitted) = state.admit(len, room) {
                break admitted;
            }
            state.reap();
            if let Some(admitted) = state.admit(len, room) {
                self.changed.happen();
                break admitted;
            }
            if matches!(room, Room::Free | Room::Ahead) {
                return Err(errno(libc::EAGAIN));
            }
            state = self.sleep(state);
        };
        let at = if pieces == 0 { 0 } else { pieces.trailing_zeros() as usize * PIECE_BYTES };
        if data.iter().any(|part| !part.is_empty()) {
            drop(state);
            self.gather(at, data, skip, len);
            state = self.state();
        }
        let changes = s.op == ring::op::WRITE;
        let s = Submission { data: at as u64, len: len as u64, user: slot as u64, ..s };
        let wakes = state.end.submit(&s);
        drop(state);
        let ticket = Ticket { of: self.clone(), slot, data: at, len, changes };
        if wakes && !self.bells.ring() {
            return Err(ticket.lost());
        }
        Ok(ticket)
    }

    /// Says something without bytes for which nobody waits. Nothing is said where there is no room, or when another call is at the
    /// connection, perhaps the one that a handler of a signal interrupted.
    pub fn tell(self: &Arc<Self>, s: Submission) {
        if !self.is_ours() {
            return;
        }
        let Some(mut state) = self.state.try_lock() else { return };
        if state.broken || self.is_dead() {
            return;
        }
        let Some((slot, _)) = state.admit(0, Room::Free) else { return };
        state.slots[slot].fate = Fate::Abandoned;
        let wakes = state.end.submit(&Submission { data: 0, len: 0, user: slot as u64, ..s });
        drop(state);
        if wakes && !self.bells.ring() {
            self.abandon();
        }
    }

    /// Puts `len` bytes of the parts, after the first `skip`, where a request has its data.
    fn gather(&self, at: usize, data: &[IoSlice<'_>], skip: usize, len: usize) {
        let (mut skip, mut done) = (skip, 0);
        for part in data {
            let begin = skip.min(part.len());
            skip -= begin;
            let n = (part.len() - begin).min(len - done);
            self.area.put(ring::DATA + at + done, &part[begin..begin + n]);
            done += n;
        }
    }

    /// Sleeps until something changed: this thread for all, or while another does.
    fn sleep<'a>(&'a self, mut state: Locked<'a, State>) -> Locked<'a, State> {
        // With nothing under way no bell rings: other threads are about to take their answers.
        if state.watched || state.end.under_way() == 0 {
            let (mut state, missed) = self.changed.wait(state, WATCHED_AT_MOST);
            state.watched &= !missed;
            return state;
        }
        if state.end.sleep() {
            state.watched = true;
            state.watchers += 1;
            drop(state);
            // One knock wakes all who listen, and one of them hears it: the others look for themselves before long.
            let gone = self.bells.wait(WATCHED_AT_MOST);
            state = self.state();
            state.watchers -= 1;
            state.watched = false;
            // What it answered before it went is there.
            state.reap();
            // Who still listens is knocked at.
            while state.watchers > 0 && !state.broken && !state.end.sleep() {
                state.reap();
            }
            if state.watchers == 0 {
                state.end.awake();
            }
            if gone {
                self.dead.store(true, Relaxed);
            }
        } else {
            state.reap();
        }
        self.changed.happen();
        state
    }

    /// Waits for the answer to a slot.
    fn answer(&self, slot: usize) -> io::Result<i64> {
        self.wait_until(|state| match state.slots[slot].fate {
            Fate::Done(result) => Some(result),
            _ => None,
        })
    }

    /// Waits until the state answers a question.
    fn wait_until<R>(&self, done: impl Fn(&State) -> Option<R>) -> io::Result<R> {
        let looks = self.looks.load(Relaxed);
        for _ in 0..looks {
            if let Some(mut state) = self.state.try_lock() {
                if state.end.has_answer() && state.reap() && state.watched {
                    self.changed.happen();
                }
                if let Some(result) = done(&state) {
                    if looks < LOOKS_MAX {
                        self.looks.store((looks * 2).min(LOOKS_MAX), Relaxed);
                    }
                    return Ok(result);
                }
                if state.broken || self.is_dead() {
                    break;
                }
            }
            std::hint::spin_loop();
        }
        if looks > LOOKS_MIN {
            self.looks.store(looks / 2, Relaxed);
        }
        let mut state = self.state();
        loop {
            state.reap();
            if let Some(result) = done(&state) {
                self.changed.happen();
                return Ok(result);
            }
            if state.broken || self.is_dead() {
                self.dead.store(true, Relaxed);
                return Err(errno(libc::ENOTCONN));
            }
            state = self.sleep(state);
        }
    }
}

impl Ticket {
    /// It can have no answer any more. What it was to change is changed by now, or never will be.
    fn lost(&self) -> io::Error {
        self.of.abandon();
        if self.changes {
            self.of.finish();
        }
        errno(libc::ENOTCONN)
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.of
    }

    /// Waits until one of some requests of one connection is done, or can have no answer any more.
    pub(crate) fn wait_for_one<'a>(tickets: impl Iterator<Item = &'a Ticket> + Clone) {
        let Some(of) = tickets.clone().next().map(|t| &t.of).filter(|c| c.is_ours()) else { return };
        let one = |state: &State| {
            let mut slots = tickets.clone().map(|t| state.slots[t.slot].fate);
            slots.any(|f| matches!(f, Fate::Done(_))).then_some(())
        };
        // That the daemon is gone is what each of them says.
        drop(of.wait_until(one));
    }

    /// Whether the answer is there, so that [`Ticket::wait`] does not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        if !self.of.is_ours() {
            return true;
        }
        let mut state = self.of.state();
        if state.end.has_answer() && state.reap() {
            self.of.changed.happen();
        }
        state.broken || self.of.is_dead() || matches!(state.slots[self.slot].fate, Fate::Done(_))
    }

    /// Waits for the answer; bytes that were read go to `into`.
    ///
    /// # Errors
    /// The daemon's, by errno; ENOTCONN: it is gone, and whether the request was carried out is not known. It is not carried out later.
    pub fn wait(self, into: &mut [u8]) -> io::Result<usize> {
        self.wait_with(|n, lent| {
            let came = n.min(into.len());
            lent.copy_to(0, &mut into[..came.min(lent.len())]);
            n
        })
    }

    /// Waits for the answer, and shows the bytes that were read where they came, before their place is another request's.
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    pub fn wait_with<R>(self, look: impl FnOnce(usize, Lent<'_>) -> R) -> io::Result<R> {
        if !self.of.is_ours() {
            return Err(errno(libc::ENOTCONN));
        }
        let Ok(result) = self.of.answer(self.slot) else { return Err(self.lost()) };
        let n = usize::try_from(result).map_err(|_| errno(i32::try_from(-result).unwrap_or(libc::EIO)))?;
        let looked = look(n, Lent { area: &self.of.area, at: ring::DATA + self.data, len: n.min(self.len) });
        // Where the program has closed the connection beside this, the daemon may have taken the memory back.
        if ring::lives(&self.of.area) { Ok(looked) } else { Err(self.lost()) }
    }
}

/// Bytes that were read, in the memory that is shared with the daemon. No reference to them is given out: a daemon that breaks
/// the rules could change them.
pub struct Lent<'a> {
    area: &'a Area,
    at: usize,
    len: usize,
}

impl Lent<'_> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Copies those from `from` on.
    ///
    /// # Panics
    /// There are not as many.
    pub fn copy_to(&self, from: usize, into: &mut [u8]) {
        assert!(from <= self.len && into.len() <= self.len - from, "no more than came");
        self.area.get(self.at + from, into);
    }
    /// Where they are, until this ends; for reading.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.area.place(self.at, self.len)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.of.is_ours() {
            return;
        }
        let mut state = self.of.state();
        let slot = &mut state.slots[self.slot];
        if let Fate::Done(_) = slot.fate {
            let pieces = slot.pieces;
            *slot = FREE;
            state.used &= !pieces;
            self.of.changed.happen();
        } else {
            slot.fate = Fate::Abandoned;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Completion, DaemonEnd, op};
    use std::os::fd::{AsFd, OwnedFd};

    /// Both ends, the daemon's end of the socket, and its bell.
    fn pair() -> (DaemonEnd, Arc<Connection>, UnixStream, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (area, fd) = Area::make(AREA_BYTES).unwrap();
        let bell = pass::eventfd().unwrap();
        pass::greet(&ours, [fd.as_fd(), bell.as_fd()]).unwrap();
        // SAFETY: plain system call without arguments.
        let uid = unsafe { libc::geteuid() };
        (DaemonEnd::new(area), Arc::new(Connection::begin(theirs, uid).unwrap()), ours, bell)
    }

    #[test]
    fn room_for_data_is_given_out_once() {
        assert_eq!(find_room(0, 0), Some(0));
        assert_eq!(find_room(0b1011, 1), Some(0b100));
        assert_eq!(find_room(0b1011, PIECE_BYTES + 1), Some(0b11_0000));
        assert_eq!(find_room(u64::MAX >> 1, PIECE_BYTES), Some(1 << 63));
        assert_eq!(find_room(u64::MAX >> 1, PIECE_BYTES + 1), None);
    }

    /// After a second without any answer all of them listen, and a knock is heard by one.
    #[test]
    fn every_thread_gets_its_answer_after_a_long_silence_of_the_daemon() {
        const THREADS: u64 = 8;
        let (mut daemon, program, stream, _bell) = pair();
        program.looks.store(0, Relaxed);
        let (say, hear) = std::sync::mpsc::channel();
        for _ in 0..THREADS {
            let (program, say) = (program.clone(), say.clone());
            std::thread::spawn(move || {
                let ask = Submission { op: op::READ, ..Submission::default() };
                let ticket = program.submit(ask, &[], 5, Room::Waited).unwrap();
                say.send(ticket.wait(&mut [0; 5]).is_ok()).unwrap();
            });
        }
        let mut asked: Vec<Submission> = Vec::new();
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while asked.len() < THREADS as usize || program.state().watchers < 2 {
            asked.extend(daemon.take().unwrap());
            assert!(std::time::Instant::now() < end, "{} have asked, {} listen", asked.len(), program.state().watchers);
            std::thread::park_timeout(Duration::from_millis(1));
        }
        for s in &asked {
            if daemon.complete(Completion { user: s.user, result: 5 }) {
                pass::knock(stream.as_fd());
            }
        }
        for n in 0..THREADS {
            assert_eq!(hear.recv_timeout(Duration::from_secs(30)), Ok(true), "{n} of {THREADS} have their answers");
        }
    }

    #[test]
    fn an_answer_comes_to_a_thread_that_sleeps_and_to_one_that_looks() {
        let (mut daemon, program, stream, _bell) = pair();
        for looks in [0, LOOKS_MAX] {
            program.looks.store(looks, Relaxed);
            let ticket =
                program.submit(Submission { op: op::READ, ..Submission::default() }, &[], 5, Room::Waited).unwrap();
            let waits = std::thread::spawn(move || {
                let mut into = [0; 5];
                (ticket.wait(&mut into).unwrap(), into)
            });
            let asked = daemon.take().unwrap().unwrap();
            daemon.area().put(ring::DATA + asked.data as usize, b"bytes");
            if daemon.complete(Completion { user: asked.user, result: 5 }) {
                pass::knock(stream.as_fd());
            }
            assert_eq!(waits.join().unwrap(), (5, *b"bytes"));
        }
    }

    #[test]
    fn parts_are_gathered_from_where_the_request_begins() {
        let (mut daemon, program, _stream, _bell) = pair();
        let parts = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defg"), IoSlice::new(b"hi")];
        for (skip, len, want) in [(0, 9, &b"abcdefghi"[..]), (2, 2, b"cd"), (3, 4, b"defg"), (6, 3, b"ghi")] {
            let asked = Submission { op: op::WRITE, ..Submission::default() };
            drop(program.submit_parts(asked, &parts, skip, len, Room::Waited).unwrap());
            let taken = daemon.take().unwrap().unwrap();
            let mut got = vec![0; taken.len as usize];
            daemon.area().get(ring::DATA + taken.data as usize, &mut got);
            assert_eq!(got, want);
            let _ = daemon.complete(Completion { user: taken.user, result: 0 });
        }
    }

    #[test]
    fn who_has_another_way_does_not_wait_for_room() {
        let (_daemon, program, _stream, _bell) = pair();
        let ask = || program.submit(Submission::default(), &[], REQUEST_BYTES_MAX, Room::Free);
        let four: Vec<_> = std::iter::from_fn(|| ask().ok()).collect();
        assert_eq!((four.len(), ask().err().and_then(|e| e.raw_os_error())), (4, Some(libc::EAGAIN)));
    }

    #[test]
    fn who_says_something_in_the_middle_of_a_call_does_not_wait_for_that_call() {
        let (mut daemon, program, _stream, _bell) = pair();
        let says = Submission { op: op::UNBIND, file: 7, ..Submission::default() };
        let call = program.state();
        program.tell(says);
        drop(call);
        assert_eq!(daemon.take().unwrap(), None, "its daemon finds out otherwise");
        program.tell(says);
        let heard = daemon.take().unwrap().unwrap();
        assert_eq!((heard.op, heard.file), (op::UNBIND, 7));
        let _ = daemon.complete(Completion { user: heard.user, result: 0 });
        let mut state = program.state();
        assert!(state.reap() && state.slots.iter().all(|s| s.fate == Fate::Free), "nobody waits for the answer");
    }

    #[test]
    fn what_is_asked_ahead_leaves_room_for_who_waits() {
        let (_daemon, program, _stream, _bell) = pair();
        let ask = |room| program.submit(Submission::default(), &[], REQUEST_BYTES_MAX, room);
        let three: Vec<_> = std::iter::from_fn(|| ask(Room::Ahead).ok()).collect();
        assert_eq!(three.len(), 3);
        assert!(ask(Room::Free).is_ok());
    }

    /// A file of `size` bytes, each of which is the number of its MiB, read from the daemon's end; what lies at `bad` cannot be read. The
    /// most requests that were under way, once `program` has ended.
    fn serve(mut daemon: DaemonEnd, stream: &UnixStream, size: usize, bad: Option<usize>, over: &AtomicBool) -> usize {
        let mut most = 0;
        while !over.load(Acquire) {
            let asked: Vec<_> = std::iter::from_fn(|| daemon.take().unwrap()).collect();
            most = most.max(asked.len());
            if asked.is_empty() {
                std::thread::yield_now();
            }
            // The last one first: answers come in any order.
            for s in asked.into_iter().rev() {
                let (at, data) = (s.offset as usize, ring::DATA + s.data as usize);
                let len = (s.len as usize).min(size.saturating_sub(at));
                let bytes: Vec<u8> = (at..at + len).map(|i| (i >> 20) as u8).collect();
                daemon.area().put(data, &bytes);
                let result = if bad == Some(at) { -i64::from(libc::EIO) } else { len as i64 };
                if daemon.complete(Completion { user: s.user, result }) {
                    pass::knock(stream.as_fd());
                }
            }
        }
        most
    }

    #[test]
    fn a_long_read_has_three_pieces_under_way_and_ends_where_the_file_does_or_cannot_be_read() {
        const MIB: usize = REQUEST_BYTES_MAX;
        let cases = [
            (5 * MIB + 9, None, 8 * MIB, Ok(5 * MIB + 9)),
            (8 * MIB, None, 7 * MIB + 1, Ok(7 * MIB + 1)),
            (8 * MIB, Some(3 * MIB), 8 * MIB, Ok(3 * MIB)),
            (8 * MIB, Some(0), 8 * MIB, Err(Some(libc::EIO))),
            (3, None, 3, Ok(3)),
            (0, None, 9, Ok(0)),
        ];
        for (size, bad, wanted, expected) in cases {
            let (daemon, program, stream, _bell) = pair();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let served = scope.spawn(|| serve(daemon, &stream, size, bad, &over));
                let mut bytes = vec![0xff; wanted];
                let (one, two) = bytes.split_at_mut(wanted / 3);
                let ask = |done: usize, len, room| {
                    program.submit(
                        Submission { op: op::READ, offset: done as u64, ..Submission::default() },
                        &[],
                        len,
                        room,
                    )
                };
                let parts = &mut [io::IoSliceMut::new(one), io::IoSliceMut::new(two)];
                let read = crate::file::read_pieces(wanted, None, parts, ask);
                assert_eq!(read.as_ref().map(|m| m.bytes).map_err(|e| e.raw_os_error()), expected);
                let failed = read.as_ref().ok().and_then(|m| m.failed.as_ref()?.raw_os_error());
                assert_eq!(failed, bad.filter(|at| *at > 0).map(|_| libc::EIO), "told from the end");
                let n = read.map_or(0, |m| m.bytes);
                assert!(bytes[..n].iter().enumerate().all(|(i, b)| *b == (i >> 20) as u8), "{size} {wanted}");
                assert!(n == wanted || bad.is_some() || bytes[n..].iter().all(|b| *b == 0xff));
                over.store(true, Release);
                assert!(served.join().unwrap() <= 3);
            });
        }
    }

    #[test]
    fn bytes_are_shown_where_they_came() {
        let (mut daemon, program, _stream, _bell) = pair();
        let ticket = program.submit(Submission::default(), &[], 9, Room::Waited).unwrap();
        let asked = daemon.take().unwrap().unwrap();
        daemon.area().put(ring::DATA + asked.data as usize, b"shown");
        let _ = daemon.complete(Completion { user: asked.user, result: 5 });
        let shown = ticket.wait_with(|n, lent| {
            let mut end = [0; 2];
            lent.copy_to(3, &mut end);
            // SAFETY: inside the area, and as long as `lent`.
            let first = unsafe { lent.as_ptr().read_volatile() };
            (n, lent.len(), end, first)
        });
        assert_eq!(shown.unwrap(), (5, 5, *b"wn", b's'));
    }

    #[test]
    fn the_end_of_the_daemon_is_an_error_for_who_waits_and_who_comes() {
        let (_daemon, program, stream, _bell) = pair();
        let tickets: Vec<_> =
            (0..3).map(|_| program.submit(Submission::default(), &[], 0, Room::Waited).unwrap()).collect();
        let waits: Vec<_> = tickets.into_iter().map(|t| std::thread::spawn(move || t.wait(&mut []))).collect();
        drop(stream);
        for w in waits {
            assert_eq!(w.join().unwrap().unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        }
        assert!(!program.is_usable());
        assert!(program.submit(Submission::default(), &[], 0, Room::Waited).is_err());
    }

    #[test]
    fn answers_that_nobody_wants_give_their_room_back() {
        let (mut daemon, program, _stream, _bell) = pair();
        for _ in 0..500 {
            drop(program.submit(Submission::default(), &[], REQUEST_BYTES_MAX, Room::Waited).unwrap());
            let asked = daemon.take().unwrap().unwrap();
            let _ = daemon.complete(Completion { user: asked.user, result: 0 });
        }
    }

    #[test]
    fn requests_that_are_begun_leave_room_for_those_that_wait() {
        let (mut daemon, program, _stream, _bell) = pair();
        let begin = |len| program.submit(Submission::default(), &[], len, Room::Begun);
        let large: Vec<_> = std::iter::from_fn(|| begin(REQUEST_BYTES_MAX).ok()).collect();
        assert_eq!((large.len(), begin(1).err().and_then(|e| e.raw_os_error())), (2, Some(libc::EAGAIN)));
        let small: Vec<_> = std::iter::from_fn(|| begin(0).ok()).collect();
        assert_eq!(large.len() + small.len(), BEGUN_MAX as usize);
        while let Ok(Some(asked)) = daemon.take() {
            let _ = daemon.complete(Completion { user: asked.user, result: 1 });
        }
        assert!(begin(0).is_err(), "answered, and not taken");
        drop(program.submit(Submission::default(), &[], REQUEST_BYTES_MAX, Room::Waited).unwrap());
        assert!(small.into_iter().all(|t| t.is_done() && t.wait(&mut []).is_ok_and(|n| n == 1)));
        drop(large);
        assert!(begin(REQUEST_BYTES_MAX).is_ok());
    }

    #[test]
    fn requests_that_are_begun_are_not_scattered_over_the_room_of_those_that_wait() {
        let (_daemon, program, _stream, _bell) = pair();
        let mut state = program.state();
        for _ in 0..3 {
            assert!(state.admit(1, Room::Begun).is_some());
            assert!(state.admit(15 * PIECE_BYTES, Room::Waited).is_some());
        }
        assert!(state.admit(1, Room::Begun).is_none(), "15 pieces between each two");
        assert!(state.may_begin(1), "it waits for those that are waited for");
        assert!(leaves_room(state.begun().1));
    }

    #[test]
    fn somebody_elses_daemon_is_not_believed() {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(Connection::begin(theirs, 12_345).err().unwrap().raw_os_error(), Some(libc::EPERM));
    }
}
