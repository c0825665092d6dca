//! The endpoint: where it listens, whom it refuses, and what it answers.
//!
//! It has no authentication, so that it listens on loopback unless told otherwise by name. A peer holds one of few places,
//! for a bounded time; when all are taken, whoever has been slowest to ask loses its place to the next.
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ask::Asker;
use super::http::{self, Request, Response};
use super::{check, process, table, text};
use crate::config::Config;
use crate::control::Event;
use crate::failure::Failure;

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 16;
/// Stack of a connection's thread.
const STACK_BYTES: usize = 256 << 10;

/// Reads `metrics.listen`; empty: there is no endpoint.
///
/// # Errors
/// What the address should be.
pub fn address_of(listen: &str, allow_remote: bool) -> Result<Option<SocketAddr>, String> {
    if listen.is_empty() {
        return Ok(None);
    }
    let address: SocketAddr = listen.parse().map_err(|_| {
        format!("metrics.listen = \"{listen}\": not an address with its port: write IP:PORT, like 127.0.0.1:9100 or [::1]:9100; port 0 takes a free one")
    })?;
    let local = match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    };
    if !local && !allow_remote {
        return Err(format!(
            "metrics.listen = \"{listen}\": other hosts reach this address, and the endpoint asks nobody who they are: listen on 127.0.0.1, or say metrics.allow_remote = true"
        ));
    }
    Ok(Some(address))
}

/// A served endpoint; it ends when this is dropped.
pub struct Endpoint {
    listener: Arc<TcpListener>,
    over: Arc<AtomicBool>,
    address: SocketAddr,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then closes the socket.
        // SAFETY: plain system call on a descriptor that lives.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Endpoint {
    /// Listens as the configuration says, and asks whoever empties `events`.
    ///
    /// # Errors
    /// The address is taken or not this host's; two metrics have one name.
    pub fn start(config: &Config, events: Sender<Event>) -> Result<Option<Endpoint>, Failure> {
        let Some(wanted) = address_of(&config.metrics_listen, config.metrics_allow_remote).map_err(Failure::usage)?
        else {
            return Ok(None);
        };
        check(table().into_iter().flat_map(|(_, list)| list.iter().copied())).map_err(Failure::from)?;
        let refused = |e: std::io::Error| {
            let why = match e.kind() {
                std::io::ErrorKind::AddrInUse => format!(
                    "metrics.listen = \"{wanted}\": port {} is in use by another process (each server and mount of a host needs its own): choose another, or port 0 for a free one",
                    wanted.port()
                ),
                std::io::ErrorKind::AddrNotAvailable => {
                    format!("metrics.listen = \"{wanted}\": this host does not have the address {}", wanted.ip())
                }
                _ => format!("metrics.listen = \"{wanted}\": {e}"),
            };
            Failure::with_errno(why, e.raw_os_error().unwrap_or(libc::EIO))
        };
        let listener = Arc::new(TcpListener::bind(wanted).map_err(refused)?);
        let address = listener.local_addr().map_err(refused)?;
        let over = Arc::new(AtomicBool::new(false));
        let endpoint = Endpoint { listener: listener.clone(), over: over.clone(), address };
        let peers = Arc::new(Peers { places: Mutex::default(), asker: Asker::new(events) });
        let accepting = std::thread::Builder::new().name("metrics".into()).stack_size(STACK_BYTES).spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => peers.take(stream),
                    Err(e) if !over.load(Ordering::Relaxed) => {
                        tracing::warn!("metrics: {e}");
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                    Err(_) => {}
                }
            }
        });
        accepting.map_err(|e| Failure::from(format!("metrics: no thread: {e}")))?;
        Ok(Some(endpoint))
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
struct Peers {
    places: Mutex<Vec<Place>>,
    asker: Asker,
}

impl Peers {
    fn places(&self) -> std::sync::MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, stream: TcpStream) {
        let stream = Arc::new(stream);
        if !self.admit(&stream) {
            // The empty buffer of a new connection holds the answer; it is not waited for.
            let _ = stream.set_nonblocking(true);
            let busy = Response::plain(503, format!("{CONNECTIONS_MAX} requests are being answered: come again\n"));
            let _ = std::io::Write::write(&mut &*stream, &busy.bytes(false));
            return;
        }
        let me = self.clone();
        let thread = std::thread::Builder::new().name("metrics-peer".into()).stack_size(STACK_BYTES);
        let leave = stream.clone();
        let started = thread.spawn(move || {
            if let Err(e) = me.converse(&stream) {
                tracing::debug!("metrics: {e}");
            }
            me.release(&stream);
        });
        if let Err(e) = started {
            tracing::warn!("metrics: no thread for a scrape: {e}");
            self.release(&leave);
        }
    }

    /// A place for a new connection; the first that has not asked yet gives its own up. Whether there is one.
    fn admit(&self, stream: &Arc<TcpStream>) -> bool {
        let mut places = self.places();
        if places.len() >= CONNECTIONS_MAX {
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

    fn converse(&self, stream: &Arc<TcpStream>) -> std::io::Result<()> {
        let (response, with_body) = match http::read(stream)? {
            Ok(request) => {
                if let Some(place) = self.places().iter_mut().find(|p| Arc::ptr_eq(&p.stream, stream)) {
                    place.asked = true;
                }
                (self.answer(&request), request.method != "HEAD")
            }
            Err(refusal) => (refusal, true),
        };
        http::write(stream, &response.bytes(with_body))
    }

    fn answer(&self, request: &Request) -> Response {
        let known = ["/metrics", "/healthz", "/readyz"].contains(&request.path.as_str());
        if !known {
            return Response::plain(404, "there are /metrics, /healthz and /readyz\n".into());
        }
        if !["GET", "HEAD"].contains(&request.method.as_str()) {
            return Response::plain(405, "GET and HEAD only\n".into());
        }
        let Some(measured) = self.asker.ask() else {
            return Response::plain(503, "the process's shard does not answer\n".into());
        };
        match request.path.as_str() {
            "/healthz" => Response::plain(200, "ok\n".into()),
            "/readyz" if measured.not_ready.is_empty() => Response::plain(200, "ready\n".into()),
            "/readyz" => Response::plain(503, measured.not_ready.join("\n") + "\n"),
            _ => {
                let mut body = String::new();
                text::write(&mut body, &process::snapshot());
                text::write(&mut body, &measured.snapshot);
                Response { status: 200, kind: text::CONTENT_TYPE, body }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Own;
    use crate::metrics::{Measure, Servers};
    use std::io::{Read, Write};
    use std::sync::mpsc::channel;

    #[test]
    fn addresses_have_a_port_and_are_this_hosts_own_unless_told_otherwise() {
        let of = |text: &str, remote| address_of(text, remote).map(|a| a.map(|a| a.to_string()));
        assert_eq!(of("", false), Ok(None));
        assert_eq!(of("127.0.0.1:0", false), Ok(Some("127.0.0.1:0".into())));
        assert_eq!(of("[::1]:9100", false), Ok(Some("[::1]:9100".into())));
        assert_eq!(of("0.0.0.0:9100", true), Ok(Some("0.0.0.0:9100".into())));
        for text in ["127.0.0.1", "localhost:9100", "9100", ":9100", "127.0.0.1:70000", "http://127.0.0.1:1", "::1:1:"]
        {
            let why = of(text, true).unwrap_err();
            assert!(why.contains(text) && why.contains("write IP:PORT"), "{why}");
        }
        for text in ["0.0.0.0:9100", "192.0.2.1:9100", "[::]:9100", "[::ffff:192.0.2.1]:1"] {
            let why = of(text, false).unwrap_err();
            assert!(why.contains(text) && why.contains("metrics.allow_remote = true"), "{why}");
        }
        assert!(of("[::ffff:127.0.0.1]:1", false).is_ok());
    }

    /// An endpoint whose shard answers at once.
    fn endpoint() -> Endpoint {
        let (sender, events) = channel();
        std::thread::spawn(move || {
            while let Ok(event) = events.recv() {
                if let Event::Measure(m) = event {
                    let m: Measure = m;
                    Servers::default().answer_at_once(m);
                }
            }
        });
        let config = Config::from(Own { metrics_listen: "127.0.0.1:0".into(), ..Own::default() });
        Endpoint::start(&config, sender).unwrap().unwrap()
    }

    fn exchange(to: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        // A connection that is cut answers nothing.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn what_is_asked_is_answered_and_what_cannot_be_is_refused() {
        let e = endpoint();
        let ask = |text: &str| exchange(e.address(), text.as_bytes());
        let full = ask("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(full.starts_with("HTTP/1.1 200 OK\r\n"), "{full}");
        assert!(full.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{full}");
        assert!(full.contains("\r\nConnection: close\r\n") && full.contains("\nstria_ready 1\n"), "{full}");
        let (head, body) = full.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let head = ask("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask("GET http://x:1/healthz HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\r\n\r\nok\n"));
        assert!(ask("GET /readyz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nready\n"));
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found"),
            ("GET /metrics/ HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
            ("GET /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
            ("GET /metrics\r\n\r\n", "400 Bad Request"),
            ("GET /metrics HTTP/2.0\r\nHost: x\r\n\r\n", "505 HTTP Version Not Supported"),
            ("\u{1}\u{2}\u{3}\r\n\r\n", "400 Bad Request"),
        ] {
            assert!(ask(request).starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {}", ask(request));
        }
        assert!(ask("DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n").contains("\r\nAllow: GET, HEAD\r\n"));
        let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(20_000));
        assert!(ask(&long).starts_with("HTTP/1.1 431 "), "{}", ask(&long));
        let many = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(500));
        assert!(ask(&many).starts_with("HTTP/1.1 431 "));
    }

    #[test]
    fn who_does_not_ask_holds_nothing() {
        let e = endpoint();
        let mut slow: Vec<TcpStream> = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(e.address()).unwrap();
            stream.write_all(b"GET /metr").unwrap();
            slow.push(stream);
        }
        for _ in 0..3 {
            let answer = exchange(e.address(), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(answer.ends_with("ok\n"), "{answer}");
        }
        // The first of them was cut, and all of their threads end with their connections.
        let mut rest = Vec::new();
        let _ = slow[0].read_to_end(&mut rest);
        assert!(rest.is_empty());
    }

    #[test]
    fn a_port_in_use_is_named() {
        let e = endpoint();
        let config = Config::from(Own { metrics_listen: e.address().to_string(), ..Own::default() });
        let (sender, _events) = channel();
        let why = Endpoint::start(&config, sender).err().unwrap().to_string();
        assert!(why.contains(&format!("port {} is in use", e.address().port())), "{why}");
        // The documentation's network is nobody's.
        let config =
            Config::from(Own { metrics_listen: "192.0.2.77:0".into(), metrics_allow_remote: true, ..Own::default() });
        let (sender, _events) = channel();
        let why = Endpoint::start(&config, sender).err().unwrap().to_string();
        assert!(why.contains("does not have the address 192.0.2.77"), "{why}");
    }
}
