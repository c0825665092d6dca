//! The endpoint of metrics: where it listens, and what it answers.
//!
//! It has no authentication, so that it listens on loopback unless told otherwise by name. [`crate::http`] takes the connections.
use std::net::SocketAddr;
use std::sync::mpsc::Sender;

use super::ask::Asker;
use super::{check, process, table, text};
use crate::config::Config;
use crate::control::Event;
use crate::failure::Failure;
use crate::http::{self, Answer, Request, Response, Server, Site};

/// Reads `metrics.listen`; empty: there is no endpoint.
///
/// # Errors
/// What the address should be.
pub fn address_of(listen: &str, allow_remote: bool) -> Result<Option<SocketAddr>, String> {
    if listen.is_empty() {
        return Ok(None);
    }
    let what = setting(listen);
    let address = http::address(&what, listen)?;
    if !http::is_loopback(address.ip()) && !allow_remote {
        return Err(format!(
            "{what}: other hosts reach this address, and the endpoint asks nobody who they are: listen on 127.0.0.1, or say metrics.allow_remote = true"
        ));
    }
    Ok(Some(address))
}

/// The setting as it is written.
fn setting(listen: &str) -> String {
    format!("metrics.listen = \"{listen}\"")
}

/// A served endpoint; it ends when this is dropped.
pub struct Endpoint(Server);

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
        let site = Metrics { asker: Asker::new(events) };
        Server::start(&setting(&config.metrics_listen), wanted, site).map(|server| Some(Endpoint(server)))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

/// What the endpoint answers.
struct Metrics {
    asker: Asker,
}

impl Site for Metrics {
    const NAME: &'static str = "metrics";
    const CONNECTIONS_MAX: usize = 16;
    const BODY_BYTES_MAX: usize = 0;

    fn answer(&self, request: &Request) -> Answer {
        Answer::Whole(self.response(request))
    }
}

impl Metrics {
    fn response(&self, request: &Request) -> Response {
        let known = ["/metrics", "/healthz", "/readyz"].contains(&request.path.as_str());
        if !known {
            return Response::plain(404, "there are /metrics, /healthz and /readyz\n".into());
        }
        if !["GET", "HEAD"].contains(&request.method.as_str()) {
            return Response::plain(405, "GET and HEAD only\n".into()).with("Allow", "GET, HEAD");
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
                Response::new(200, text::CONTENT_TYPE, body)
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
    use std::net::TcpStream;
    use std::sync::mpsc::channel;

    const CONNECTIONS_MAX: usize = Metrics::CONNECTIONS_MAX;

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
