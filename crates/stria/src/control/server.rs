//! The daemon's side: takes questions on a thread and hands them to the shard.
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Ask, Event, address, peer_uid};

/// Tools served at a time; more are turned away.
const ASKERS_MAX: usize = 64;
/// Longest question in bytes.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// A served control socket. Dropping it gives its name free: the kernel hands the connection's number to the next mount.
pub struct Served {
    listener: Arc<UnixListener>,
    over: Arc<AtomicBool>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then closes the socket.
        // SAFETY: plain system call on a descriptor that lives.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// Serves the control socket of this process's mount number `place`.
///
/// # Errors
/// `AddrInUse`: the daemon of an earlier mount with this connection's number has not ended yet.
pub fn serve(connection: u32, place: usize, events: Sender<Event>) -> std::io::Result<Served> {
    let listener = Arc::new(UnixListener::bind_addr(&address(connection)?)?);
    let over = Arc::new(AtomicBool::new(false));
    let served = Served { listener: listener.clone(), over: over.clone() };
    let askers = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new().name("control".into()).spawn(move || {
        while !over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => take(stream, place, &events, &askers),
                Err(e) if !over.load(Ordering::Relaxed) => {
                    tracing::warn!("control: {e}");
                    std::thread::park_timeout(Duration::from_millis(100));
                }
                Err(_) => {}
            }
        }
    })?;
    Ok(served)
}

fn take(stream: UnixStream, place: usize, events: &Sender<Event>, askers: &Arc<AtomicUsize>) {
    if askers.fetch_add(1, Ordering::Relaxed) >= ASKERS_MAX {
        askers.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("control: {ASKERS_MAX} tools ask at the same time; one is turned away");
        return;
    }
    let (events, askers) = (events.clone(), askers.clone());
    std::thread::spawn(move || {
        if let Err(e) = converse(&stream, place, &events) {
            tracing::debug!("control: {e}");
        }
        askers.fetch_sub(1, Ordering::Relaxed);
    });
}

fn converse(stream: &UnixStream, place: usize, events: &Sender<Event>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    // SAFETY: plain system call without arguments.
    let me = unsafe { libc::geteuid() };
    let privileged = peer_uid(stream).is_some_and(|uid| uid == 0 || uid == me);
    let mut line = Vec::new();
    BufReader::new(stream).take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
    let answer = match serde_json::from_slice::<Value>(&line) {
        Err(e) => json!({"error": format!("not a request: {e}"), "errno": libc::EINVAL}),
        Ok(request) => {
            let (answer, answered) = channel();
            let asked = events.send(Event::Ask(Ask { place, request, privileged, answer }));
            let stopping = || json!({"error": "the daemon is stopping", "errno": libc::ESHUTDOWN});
            if asked.is_err() { stopping() } else { answered.recv().unwrap_or_else(|_| stopping()) }
        }
    };
    let mut stream = stream;
    stream.write_all(format!("{answer}\n").as_bytes())
}
