//! The daemon's side: takes questions on a thread and hands them to the shard.
//!
//! Anybody on the host may ask, so nobody may keep others from it: a user has few connections at a time, each with little
//! time for its question and for taking the answer; root and the daemon's own user have places that nobody else can take.
//!
//! A kernel before Linux 6.16 lets anybody send descriptors along, whose close takes as long as the sender likes (SO_LINGER of a TCP
//! socket). So connections are emptied by who may wait: the thread of a tool, which keeps the tool's place meanwhile, and for
//! those without a place a thread of their own ([`pass::part_in_turn`]).
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mount::pass;
use serde_json::{Value, json};

use super::{Ask, Event, peer_uid, place};

/// Tools of one user served at a time; of root and the daemon's user each so many, too.
const ASKERS_OF_USER_MAX: usize = 16;
/// Tools of all other users served at a time.
const ASKERS_MAX: usize = 64;
/// Longest question in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// How long a tool may take to ask.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to read the answer.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// How long nobody is let in when that fails.
const PAUSE: Duration = Duration::from_millis(100);

/// A served control socket. Dropping it gives its name free: the kernel hands the connection's number to the next mount.
pub struct Served {
    // Goes before the listener: as long as that lives, no other socket is taken for this one.
    _name: place::Name,
    listener: Arc<UnixListener>,
    over: Arc<AtomicBool>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which closes the socket when this one has let it go.
        // SAFETY: plain system call on a descriptor that lives.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// Serves the control socket of this process's mount number `place`.
///
/// # Errors
/// `AddrInUse`: the daemon of an earlier mount with this connection's number has not ended yet. Else why there is no place
/// for the socket.
pub fn serve(connection: u32, place: usize, events: Sender<Event>) -> std::io::Result<Served> {
    let (listener, name) = place::bind(connection)?;
    let listener = Arc::new(listener);
    let over = Arc::new(AtomicBool::new(false));
    let served = Served { listener: listener.clone(), over: over.clone(), _name: name };
    let askers = Arc::new(Askers::default());
    std::thread::Builder::new().name("control".into()).spawn(move || {
        while !over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => take(stream, place, &events, &askers),
                Err(e) if !over.load(Ordering::Relaxed) => {
                    tracing::warn!("control: {e}");
                    std::thread::park_timeout(PAUSE);
                }
                Err(_) => {}
            }
        }
        // Closed here, for what those who were not let in have sent is closed along with it.
        while Arc::strong_count(&listener) > 1 {
            std::thread::yield_now();
        }
    })?;
    Ok(served)
}

/// Connections that are served, by user.
#[derive(Default)]
struct Askers(Mutex<HashMap<u32, usize>>);

/// A place among the askers, free again when dropped.
struct Place {
    askers: Arc<Askers>,
    uid: u32,
}

impl Askers {
    /// A place for a user, if one is free.
    fn admit(self: &Arc<Self>, uid: u32) -> Option<Place> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_others: usize = all.iter().filter(|(u, _)| !is_privileged(**u)).map(|(_, n)| n).sum();
        let mine = all.get(&uid).copied().unwrap_or(0);
        if mine >= ASKERS_OF_USER_MAX || (!is_privileged(uid) && of_others >= ASKERS_MAX) {
            return None;
        }
        all.insert(uid, mine + 1);
        Some(Place { askers: self.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.askers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = all.get_mut(&self.uid) {
            *n -= 1;
            if *n == 0 {
                all.remove(&self.uid);
            }
        }
    }
}

/// Root and the user who runs the daemon.
fn is_privileged(uid: u32) -> bool {
    // SAFETY: plain system call without arguments.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

fn take(stream: UnixStream, place: usize, events: &Sender<Event>, askers: &Arc<Askers>) {
    let uid = peer_uid(&stream).unwrap_or(u32::MAX);
    let Some(seat) = askers.admit(uid) else {
        tracing::debug!(uid, "control: too many tools ask at the same time; one is turned away");
        let why = format!(
            "too many tools of user {uid} ask this mount at the same time (a user may have {ASKERS_OF_USER_MAX}): try again when they are done"
        );
        // The empty buffer of a new connection holds the line; it is not waited for.
        let _ = stream.set_nonblocking(true);
        let _ = (&stream).write(format!("{}\n", json!({"error": why, "errno": libc::EAGAIN})).as_bytes());
        pass::part_in_turn(&stream);
        return;
    };
    let events = events.clone();
    // Shared, so that a thread that cannot be started does not close it here.
    let stream = Arc::new(stream);
    let asks = stream.clone();
    let thread = std::thread::Builder::new().name("control-ask".into()).spawn(move || {
        if let Err(e) = converse(&asks, place, seat.uid, &events) {
            tracing::debug!("control: {e}");
        }
        pass::throw_away(&asks);
        // Whoever sees the end of the connection finds its place free.
        drop(seat);
        drop(asks);
    });
    if let Err(e) = thread {
        tracing::warn!("control: no thread for a tool: {e}");
        pass::part_in_turn(&stream);
    }
}

/// What is left until a deadline; an error when nothing is.
fn left(deadline: Instant) -> std::io::Result<Option<Duration>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}

/// The question: a line, all of it within the time that asking may take.
fn question(mut stream: &UnixStream) -> std::io::Result<Vec<u8>> {
    let deadline = Instant::now() + ASK_WITHIN;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    while !line.contains(&b'\n') && line.len() < REQUEST_BYTES_MAX {
        stream.set_read_timeout(left(deadline)?)?;
        match stream.read(&mut piece)? {
            0 => break,
            n => line.extend_from_slice(&piece[..n]),
        }
    }
    Ok(line)
}

fn converse(mut stream: &UnixStream, place: usize, uid: u32, events: &Sender<Event>) -> std::io::Result<()> {
    let line = question(stream)?;
    // It goes when the answer is written: see [`Ask::is_answered`].
    let (answer, answered) = channel();
    let answer = match serde_json::from_slice::<Value>(&line) {
        Err(e) => json!({"error": format!("not a request: {e}"), "errno": libc::EINVAL}),
        Ok(request) => {
            let privileged = is_privileged(uid);
            let asked = events.send(Event::Ask(Ask { place, request, privileged, uid, answer }));
            let stopping = || json!({"error": "the daemon is stopping", "errno": libc::ESHUTDOWN});
            if asked.is_err() { stopping() } else { answered.recv().unwrap_or_else(|_| stopping()) }
        }
    };
    let (answer, deadline) = (format!("{answer}\n"), Instant::now() + READ_WITHIN);
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(left(deadline)?)?;
        match stream.write(rest)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => rest = &rest[n..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_user_has_few_places_and_root_keeps_its_own() {
        let askers = Arc::new(Askers::default());
        let of = |uid: u32, n: usize| (0..n).map_while(|_| askers.admit(uid)).collect::<Vec<_>>();
        let one = of(70_001, 1000);
        assert_eq!(one.len(), ASKERS_OF_USER_MAX);
        assert!(askers.admit(70_002).is_some(), "another user is served");
        let others: Vec<_> = (70_010..70_100).flat_map(|uid| of(uid, 1000)).collect();
        assert_eq!(one.len() + others.len(), ASKERS_MAX);
        assert!(askers.admit(70_002).is_none(), "all that others may have is taken");
        let root = of(0, 1000);
        assert_eq!(root.len(), ASKERS_OF_USER_MAX, "but not root's places");
        drop(one);
        assert!(askers.admit(70_002).is_some(), "places become free");
        drop((others, root));
        assert!(askers.0.lock().unwrap().is_empty());
    }

    /// A TCP socket with bytes that its other end does not take, and whose last close waits for that.
    fn lingers() -> (std::net::TcpStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        one.set_nonblocking(true).unwrap();
        while (&one).write(&[0; 65536]).is_ok() {}
        let hours = libc::linger { l_onoff: 1, l_linger: 3600 };
        let len = size_of_val(&hours) as libc::socklen_t;
        // SAFETY: a structure of the said length that outlives the call.
        let set = unsafe {
            libc::setsockopt(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const hours).cast(), len)
        };
        assert_eq!(set, 0);
        one.set_nonblocking(false).unwrap();
        (one, other)
    }

    fn own_uid() -> u32 {
        // SAFETY: plain system call without arguments.
        unsafe { libc::geteuid() }
    }

    #[test]
    fn who_is_turned_away_makes_nobody_wait_for_descriptors_that_it_sent() {
        let askers = Arc::new(Askers::default());
        let seats: Vec<_> = (0..ASKERS_OF_USER_MAX).map(|_| askers.admit(own_uid()).unwrap()).collect();
        let ((ours, theirs), (one, other)) = (UnixStream::pair().unwrap(), lingers());
        pass::greet(&theirs, [one.as_fd(), one.as_fd()]).unwrap();
        drop(one);
        let (events, asked) = channel();
        take(ours, 0, &events, &askers);
        // Whoever waits for it waits until here.
        drop(other);
        let mut said = String::new();
        (&theirs).read_to_string(&mut said).unwrap();
        assert!(said.contains("too many tools"), "{said}");
        assert!(asked.try_recv().is_err());
        drop(seats);
    }

    #[test]
    fn a_tool_that_sends_descriptors_keeps_its_place_until_they_are_closed() {
        let askers = Arc::new(Askers::default());
        let ((ours, theirs), (one, other)) = (UnixStream::pair().unwrap(), lingers());
        let (events, asked) = channel();
        (&theirs).write_all(b"{}\n").unwrap();
        take(ours, 0, &events, &askers);
        let Ok(Event::Ask(ask)) = asked.recv() else { panic!("a question") };
        pass::greet(&theirs, [one.as_fd(), one.as_fd()]).unwrap();
        drop(one);
        ask.answer.send(json!({})).unwrap();
        let mut answer = [0; 3];
        (&theirs).read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"{}\n");
        theirs.set_read_timeout(Some(PAUSE)).unwrap();
        assert!((&theirs).read(&mut answer).is_err(), "the connection lasts, and so does its place");
        assert_eq!(askers.0.lock().unwrap().values().sum::<usize>(), 1);
        drop(other);
        theirs.set_read_timeout(None).unwrap();
        assert_eq!((&theirs).read(&mut answer).unwrap(), 0);
        assert!(askers.0.lock().unwrap().is_empty());
    }
}
