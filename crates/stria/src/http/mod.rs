//! As much of HTTP/1.1 as this program's endpoints need: one request, one answer, and the connection ends. Heads are parsed by
//! the crate httparse; [`server`] takes connections and gives them few places.
mod server;

pub use server::{Answer, Server, Site, address, is_loopback};

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most fields in it.
const FIELDS_MAX: usize = 64;
/// How long a peer may take to ask.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to read the answer, or one piece of a stream.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// How long, and for how much, a peer is heard that still sends when it has its answer.
const HEAR_OUT: (Duration, usize) = (Duration::from_millis(500), 64 << 10);

/// What is asked for.
#[derive(Debug)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Path without query.
    pub path: String,
    /// What stands behind the path's `?`; empty: nothing.
    pub query: String,
    /// Fields of the head, in their order; what is no text in them is replaced.
    fields: Vec<(String, String)>,
    /// Body; empty where the site takes none.
    pub body: Vec<u8>,
}

impl Request {
    /// A field of the head; `None`: it is not there, or comes several times.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut found =
            self.fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str());
        found.next().filter(|_| found.next().is_none())
    }

    fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))
    }

    /// Bytes of the body, of at most so many; or the refusal.
    fn body_bytes(&self, max: usize) -> Result<usize, Response> {
        let refuse = |status, why: String| Err(Response::plain(status, why));
        // Whoever takes no bodies answers without reading them.
        if max == 0 {
            return Ok(0);
        }
        if self.has("transfer-encoding") {
            return refuse(501, "a body has to say its Content-Length\n".into());
        }
        if !self.has("content-length") {
            return Ok(0);
        }
        let digits = self.field("content-length").filter(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit()));
        match digits.map(|t| t.parse().unwrap_or(usize::MAX)) {
            None => refuse(400, "Content-Length is one number\n".into()),
            Some(n) if n > max => refuse(413, format!("a body has {max} bytes at most\n")),
            Some(n) => Ok(n),
        }
    }

    /// A request as it would have come, for tests of sites.
    #[cfg(test)]
    pub fn of(head: &str, body: &str) -> Request {
        let (mut request, _) = parse(head.as_bytes()).expect("a whole head").expect("a request");
        request.body = body.into();
        request
    }
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Media type.
    pub kind: &'static str,
    /// Body.
    pub body: String,
    /// Further fields of the head.
    pub fields: Vec<(&'static str, String)>,
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

impl Response {
    /// With a body of a media type.
    pub fn new(status: u16, kind: &'static str, body: String) -> Response {
        Response { status, kind, body, fields: Vec::new() }
    }
    /// A sentence.
    pub fn plain(status: u16, body: String) -> Response {
        Response::new(status, "text/plain; charset=utf-8", body)
    }
    /// With one more field in its head. The value is this program's own.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Response {
        self.fields.push((name, value.into()));
        self
    }
    /// As it is sent.
    pub fn bytes(&self, with_body: bool) -> Vec<u8> {
        let body = if with_body { self.body.as_str() } else { "" };
        (self.head(Some(self.body.len())) + body).into_bytes()
    }
    /// The head, with the body's length if that is known; else the body ends with the connection.
    fn head(&self, length: Option<usize>) -> String {
        let (status, kind) = (self.status, self.kind);
        let mut head = format!("HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\n", reason(status));
        if let Some(length) = length {
            head += &format!("Content-Length: {length}\r\n");
        }
        for (name, value) in &self.fields {
            head += &format!("{name}: {value}\r\n");
        }
        head + "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    }
}

/// What is left until a deadline; an error when nothing is.
fn left(deadline: Instant) -> std::io::Result<Option<Duration>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}

/// Reads a request with a body of at most so many bytes, all of it within the time that asking may take; or the answer to what
/// is none.
///
/// # Errors
/// The connection ended.
pub fn read(stream: &TcpStream, body_bytes_max: usize) -> std::io::Result<Result<Request, Response>> {
    let (deadline, mut bytes) = (Instant::now() + ASK_WITHIN, Vec::new());
    let (mut request, head_bytes) = loop {
        if let Some(late) = more(stream, deadline, &mut bytes)? {
            return Ok(Err(late));
        }
        match parse(&bytes) {
            None => {}
            Some(Ok(whole)) => break whole,
            Some(Err(refusal)) => return Ok(Err(refusal)),
        }
    };
    let end = match request.body_bytes(body_bytes_max) {
        Ok(n) => head_bytes + n,
        Err(refusal) => return Ok(Err(refusal)),
    };
    while bytes.len() < end {
        if let Some(late) = more(stream, deadline, &mut bytes)? {
            return Ok(Err(late));
        }
    }
    request.body = bytes[head_bytes..end].to_vec();
    Ok(Ok(request))
}

/// Takes in what has come next; or the answer to a peer that takes too long.
fn more(mut stream: &TcpStream, deadline: Instant, bytes: &mut Vec<u8>) -> std::io::Result<Option<Response>> {
    let mut piece = [0; 2048];
    let got = left(deadline).and_then(|left| stream.set_read_timeout(left)).and_then(|()| stream.read(&mut piece));
    match got {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(n) => {
            bytes.extend_from_slice(&piece[..n]);
            Ok(None)
        }
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            let why = format!("the request was not there within {} s\n", ASK_WITHIN.as_secs());
            Ok(Some(Response::plain(408, why)))
        }
        Err(e) => Err(e),
    }
}

/// A head as far as it came, and its bytes; `None`: the rest is to come.
fn parse(head: &[u8]) -> Option<Result<(Request, usize), Response>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut fields);
    let refuse = |status, why: &str| Some(Err(Response::plain(status, format!("{why}\n"))));
    let too_long = "a request's head has 8 KiB and 64 fields at most";
    match parsed.parse(head) {
        Ok(httparse::Status::Partial) if head.len() > HEAD_BYTES_MAX => refuse(431, too_long),
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(n)) if n > HEAD_BYTES_MAX => refuse(431, too_long),
        Err(httparse::Error::TooManyHeaders) => refuse(431, too_long),
        Err(httparse::Error::Version) => refuse(505, "HTTP/1.1 is spoken here"),
        Err(e) => refuse(400, &format!("not a request: {e}")),
        Ok(httparse::Status::Complete(head_bytes)) => {
            let hosts = parsed.headers.iter().filter(|f| f.name.eq_ignore_ascii_case("host")).count();
            if parsed.version == Some(1) && hosts != 1 {
                return refuse(400, "a request of HTTP/1.1 has one Host field");
            }
            let (method, target) = (parsed.method.unwrap_or_default(), parsed.path.unwrap_or_default());
            // The absolute form, as proxies write it.
            let target = match target.split_once("://") {
                Some(("http", rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
                _ => target,
            };
            let target = target.split('#').next().unwrap_or_default();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let text = |f: &httparse::Header<'_>| (f.name.into(), String::from_utf8_lossy(f.value).into_owned());
            let fields = parsed.headers.iter().map(text).collect();
            let request =
                Request { method: method.into(), path: path.into(), query: query.into(), fields, body: vec![] };
            Some(Ok((request, head_bytes)))
        }
    }
}

/// Sends bytes within the time that a peer may take to read.
///
/// # Errors
/// The peer is gone, or does not read.
fn send(mut stream: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    let deadline = Instant::now() + READ_WITHIN;
    while !bytes.is_empty() {
        stream.set_write_timeout(left(deadline)?)?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

/// Sends an answer and ends the connection.
///
/// # Errors
/// The peer is gone, or does not read.
pub fn write(mut stream: &TcpStream, answer: &[u8]) -> std::io::Result<()> {
    send(stream, answer)?;
    // What was sent and not read would make the kernel take the answer back.
    stream.shutdown(Shutdown::Write)?;
    let (deadline, mut heard, mut piece) = (Instant::now() + HEAR_OUT.0, 0, [0; 4096]);
    while heard < HEAR_OUT.1 {
        stream.set_read_timeout(left(deadline)?)?;
        match stream.read(&mut piece)? {
            0 => break,
            n => heard += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_head_panics_and_every_whole_one_has_an_answer() {
        use formats::fuzz::{Target, outcome_of};
        let target = Target {
            name: "scrape",
            root: env!("CARGO_MANIFEST_DIR"),
            seeds: vec![
                b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".to_vec(),
                b"HEAD http://h/readyz?a=b HTTP/1.0\r\n\r\n".to_vec(),
                b"POST /set HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".to_vec(),
            ],
            words: &[
                b"\r\n",
                b"\r\n\r\n",
                b"HTTP/1.1",
                b"://",
                b"?",
                b"Host: ",
                b"Content-Length: ",
                b"Transfer-Encoding: chunked",
                b" ",
                b"\0",
                b"GET ",
                b"/",
            ],
            mend: None,
            memory: (1 << 20, 1 << 10),
        };
        target.run(|input| match parse(input) {
            None => 1,
            Some(Ok((request, head_bytes))) => {
                assert!(!request.method.is_empty() && !request.path.contains('?') && head_bytes <= input.len());
                2 + request.body_bytes(100).map_or_else(|r| u64::from(r.status), |n| u64::from(n > 0))
            }
            Some(Err(response)) => {
                assert!([400, 431, 505].contains(&response.status));
                outcome_of(&response.body)
            }
        });
    }

    #[test]
    fn a_body_has_a_length_that_is_one_number_and_not_too_large() {
        let of = |fields: &str| {
            let request = Request::of(&format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n"), "");
            request.body_bytes(100).map_err(|r| r.status)
        };
        assert_eq!((of(""), of("Content-Length: 100\r\n"), of("content-length: 0\r\n")), (Ok(0), Ok(100), Ok(0)));
        assert_eq!(of("Content-Length: 101\r\n"), Err(413));
        assert_eq!(of("Content-Length: 99999999999999999999999\r\n"), Err(413));
        for fields in ["Content-Length: -1\r\n", "Content-Length: \r\n", "Content-Length: 1\r\nContent-Length: 1\r\n"] {
            assert_eq!(of(fields), Err(400), "{fields}");
        }
        assert_eq!(of("Transfer-Encoding: chunked\r\n"), Err(501));
    }

    #[test]
    fn fields_are_found_whatever_their_case_and_not_when_they_come_twice() {
        let r = Request::of("GET /a?b=c&d HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nx-b: 2\r\nX-B: 3\r\n\r\n", "");
        assert_eq!((r.path.as_str(), r.query.as_str()), ("/a", "b=c&d"));
        assert_eq!((r.field("x-a"), r.field("X-B"), r.field("x-c")), (Some("1"), None, None));
    }
}
