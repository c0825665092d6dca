//! A server of few connections: where it listens, whom it turns away, and that nobody keeps others out.
//!
//! A peer holds one of few places, for a bounded time; when all are taken, whoever has been slowest to ask loses its place to
//! the next. What is answered is the [`Site`]'s affair.
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Request, Response};
use crate::failure::Failure;

/// Stack of a connection's thread.
const STACK_BYTES: usize = 256 << 10;
/// Milliseconds for which a peer's host may acknowledge nothing of a stream.
const HOST_GONE_MS: libc::c_uint = 30_000;

/// What a server answers.
pub trait Site: Send + Sync + 'static {
    /// What its threads are called, and what its messages begin with.
    const NAME: &'static str;
    /// Connections served at a time.
    const CONNECTIONS_MAX: usize;
    /// Longest body of a request in bytes; 0: bodies are not read.
    const BODY_BYTES_MAX: usize;
    /// The answer to a request.
    fn answer(&self, request: &Request) -> Answer;
}

/// An answer.
pub enum Answer {
    /// One that is there whole.
    Whole(Response),
    /// One whose body comes piece by piece, for as long as the peer reads: its head, and what waits for the next piece (`None`:
    /// that was all).
    Stream(Response, Box<dyn FnMut() -> Option<Vec<u8>>>),
}

/// Reads an address with its port; `what` names where it was written.
///
/// # Errors
/// What it should be.
pub fn address(what: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "{what}: not an address with its port: write IP:PORT, like 127.0.0.1:9100 or [::1]:9100; port 0 takes a free one"
        )
    })
}

/// Whether only this host reaches an address.
#[must_use]
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// A server that listens; it ends when this is dropped.
pub struct Server {
    listener: Arc<TcpListener>,
    over: Arc<AtomicBool>,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then closes the socket.
        // SAFETY: plain system call on a descriptor that lives.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Server {
    /// Listens at an address and answers there from now on; `what` names where the address was written.
    ///
    /// # Errors
    /// The address is taken or not this host's.
    pub fn start<S: Site>(what: &str, wanted: SocketAddr, site: S) -> Result<Server, Failure> {
        let refused = |e: io::Error| {
            let why = match e.kind() {
                io::ErrorKind::AddrInUse => format!(
                    "{what}: port {} is in use by another process (each that listens on a host needs its own): choose another, or port 0 for a free one",
                    wanted.port()
                ),
                io::ErrorKind::AddrNotAvailable => {
                    format!("{what}: this host does not have the address {}", wanted.ip())
                }
                _ => format!("{what}: {e}"),
            };
            Failure::with_errno(why, e.raw_os_error().unwrap_or(libc::EIO))
        };
        let listener = Arc::new(TcpListener::bind(wanted).map_err(refused)?);
        let address = listener.local_addr().map_err(refused)?;
        let over = Arc::new(AtomicBool::new(false));
        let server = Server { listener: listener.clone(), over: over.clone(), address };
        let peers = Arc::new(Peers { places: Mutex::default(), site });
        let accepting = std::thread::Builder::new().name(S::NAME.into()).stack_size(STACK_BYTES).spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => peers.take(stream),
                    Err(e) if !over.load(Ordering::Relaxed) => {
                        tracing::warn!("{}: {e}", S::NAME);
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                    Err(_) => {}
                }
            }
        });
        accepting.map_err(|e| Failure::from(format!("{}: no thread: {e}", S::NAME)))?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A connection that has a place.
struct Place {
    stream: Arc<TcpStream>,
    /// Its request is there whole: it is being answered.
    asked: bool,
}

/// Connections that are served, in the order in which they came.
struct Peers<S> {
    places: Mutex<Vec<Place>>,
    site: S,
}

impl<S: Site> Peers<S> {
    fn places(&self) -> std::sync::MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, stream: TcpStream) {
        let stream = Arc::new(stream);
        if !self.admit(&stream) {
            // The empty buffer of a new connection holds the answer; it is not waited for.
            let _ = stream.set_nonblocking(true);
            let busy =
                Response::plain(503, format!("{} requests are being answered: come again\n", S::CONNECTIONS_MAX));
            let _ = io::Write::write(&mut &*stream, &busy.bytes(true));
            return;
        }
        let me = self.clone();
        let thread = std::thread::Builder::new().name(format!("{}-peer", S::NAME)).stack_size(STACK_BYTES);
        let leave = stream.clone();
        let started = thread.spawn(move || {
            if let Err(e) = me.converse(&stream) {
                tracing::debug!("{}: {e}", S::NAME);
            }
            me.release(&stream);
        });
        if let Err(e) = started {
            tracing::warn!("{}: no thread for a peer: {e}", S::NAME);
            self.release(&leave);
        }
    }

    /// A place for a new connection; the first that has not asked yet gives its own up. Whether there is one.
    fn admit(&self, stream: &Arc<TcpStream>) -> bool {
        let mut places = self.places();
        if places.len() >= S::CONNECTIONS_MAX {
            let Some(slow) = places.iter().position(|p| !p.asked) else { return false };
            // Its thread finds the connection at its end.
            let _ = places.remove(slow).stream.shutdown(std::net::Shutdown::Both);
        }
        places.push(Place { stream: stream.clone(), asked: false });
        true
    }

    fn release(&self, stream: &Arc<TcpStream>) {
        self.places().retain(|p| !Arc::ptr_eq(&p.stream, stream));
    }

    fn converse(&self, stream: &Arc<TcpStream>) -> io::Result<()> {
        let (answer, with_body) = match super::read(stream, S::BODY_BYTES_MAX)? {
            Ok(request) => {
                if let Some(place) = self.places().iter_mut().find(|p| Arc::ptr_eq(&p.stream, stream)) {
                    place.asked = true;
                }
                (self.site.answer(&request), request.method != "HEAD")
            }
            Err(refusal) => (Answer::Whole(refusal), true),
        };
        match answer {
            Answer::Whole(response) => super::write(stream, &response.bytes(with_body)),
            Answer::Stream(response, _) if !with_body => super::write(stream, response.head(None).as_bytes()),
            Answer::Stream(response, mut next) => {
                give_up_on_hosts(stream);
                super::send(stream, response.head(None).as_bytes())?;
                while let Some(piece) = next() {
                    super::send(stream, &piece)?;
                }
                super::write(stream, &[])
            }
        }
    }
}

/// Has the kernel end a stream whose host is gone without a word; else buffers would take pieces for minutes.
fn give_up_on_hosts(stream: &TcpStream) {
    let (ms, len) = (HOST_GONE_MS, size_of::<libc::c_uint>() as libc::socklen_t);
    // SAFETY: an integer of the said length that outlives the call. Without it the stream ends later.
    unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, (&raw const ms).cast(), len)
    };
}
