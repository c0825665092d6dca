//! As much of HTTP/1.1 as scrapes need: one request without a body, one answer, and the connection ends. Heads are parsed by
//! the crate httparse.
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most fields in it.
const FIELDS_MAX: usize = 64;
/// How long a peer may take to ask.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to read the answer.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// How long, and for how much, a peer is heard that still sends when it has its answer.
const HEAR_OUT: (Duration, usize) = (Duration::from_millis(500), 64 << 10);

/// What is asked for.
pub struct Request {
    /// Method.
    pub method: String,
    /// Path without query.
    pub path: String,
}

/// An answer.
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Media type.
    pub kind: &'static str,
    /// Body.
    pub body: String,
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

impl Response {
    /// A sentence.
    pub fn plain(status: u16, body: String) -> Response {
        Response { status, kind: "text/plain; charset=utf-8", body }
    }
    /// As it is sent.
    pub fn bytes(&self, with_body: bool) -> Vec<u8> {
        let allow = if self.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.status,
            reason(self.status),
            self.kind,
            self.body.len()
        );
        let body = if with_body { self.body.as_str() } else { "" };
        (head + body).into_bytes()
    }
}

/// What is left until a deadline; an error when nothing is.
fn left(deadline: Instant) -> std::io::Result<Option<Duration>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}

/// Reads a request's head, all of it within the time that asking may take; or the answer to what is none.
///
/// # Errors
/// The connection ended.
pub fn read(mut stream: &TcpStream) -> std::io::Result<Result<Request, Response>> {
    let deadline = Instant::now() + ASK_WITHIN;
    let (mut head, mut piece) = (Vec::new(), [0; 2048]);
    loop {
        let got = left(deadline).and_then(|left| stream.set_read_timeout(left)).and_then(|()| stream.read(&mut piece));
        match got {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => head.extend_from_slice(&piece[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                let why = format!("the request was not there within {} s\n", ASK_WITHIN.as_secs());
                return Ok(Err(Response::plain(408, why)));
            }
            Err(e) => return Err(e),
        }
        if let Some(parsed) = parse(&head) {
            return Ok(parsed);
        }
    }
}

/// A head as far as it came; `None`: the rest is to come.
fn parse(head: &[u8]) -> Option<Result<Request, Response>> {
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
        Ok(httparse::Status::Complete(_)) => {
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
            let path = target.split(['?', '#']).next().unwrap_or_default();
            Some(Ok(Request { method: method.into(), path: path.into() }))
        }
    }
}

/// Sends an answer and ends the connection.
///
/// # Errors
/// The peer is gone, or does not read.
pub fn write(mut stream: &TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let (deadline, mut rest) = (Instant::now() + READ_WITHIN, answer);
    while !rest.is_empty() {
        stream.set_write_timeout(left(deadline)?)?;
        match stream.write(rest)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => rest = &rest[n..],
        }
    }
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
            ],
            words: &[b"\r\n", b"\r\n\r\n", b"HTTP/1.1", b"://", b"?", b"Host: ", b" ", b"\0", b"GET ", b"/"],
            mend: None,
            memory: (1 << 20, 1 << 10),
        };
        target.run(|input| match parse(input) {
            None => 1,
            Some(Ok(request)) => {
                assert!(!request.method.is_empty() && !request.path.contains('?'));
                2
            }
            Some(Err(response)) => {
                assert!([400, 431, 505].contains(&response.status));
                outcome_of(&response.body)
            }
        });
    }
}
