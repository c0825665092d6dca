//! The network between two hosts, without a file system: the far end answers connections that know its token.
//!
//! The far end is an agent ([`crate::crew`]); it listens on a port of its own for as long as it lives, and the token that a
//! connection has to begin with goes over the agent's own channel.
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::json;

use super::Findings;
use crate::crew::Crew;
use crate::failure::{Failed, Outcome};
use crate::message::{Ask, Tell};
use crate::os;
use crate::stats::mb_per_s;

/// Bytes of a token.
const TOKEN_BYTES: usize = 16;
/// How long a connection may take to show its token, or stand still.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most round trips of a combination.
const TRIPS_MAX: usize = 10_000;
/// Most connections at a time.
pub const THREADS_MAX: u64 = 1024;
/// Largest record in bytes.
pub const RECORD_BYTES_MAX: u64 = 16 << 20;

/// What the far end does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Takes what comes, and says at the end how much that was.
    Take = 1,
    /// Sends records until the connection is closed.
    Give = 2,
    /// Sends each record back.
    Echo = 3,
}

/// The far end; its listener lives as long as the process.
pub struct FarEnd;

impl FarEnd {
    /// Listens at an address, on a port that is free; port and token.
    ///
    /// # Errors
    /// The address is not this host's.
    pub fn listen(address: &str) -> Outcome<(FarEnd, u16, String)> {
        let failed = |e: io::Error| {
            Failed::new(format!("listening at {address}: {e}"), e.raw_os_error().unwrap_or(libc::EINVAL))
        };
        let listener = TcpListener::bind((address, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let mut token = [0; TOKEN_BYTES];
        std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut token)).map_err(failed)?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection that breaks is its other end's to notice.
                std::thread::spawn(move || drop(answer(stream, &token)));
            }
        });
        let shown = token.iter().fold(String::new(), |mut s, b| {
            let _ = write!(s, "{b:02x}");
            s
        });
        Ok((FarEnd, port, shown))
    }
}

/// How a connection begins: token, way, length of records.
fn head(token: &[u8; TOKEN_BYTES], way: Way, record_bytes: u32) -> Vec<u8> {
    [token.as_slice(), &[way as u8], &record_bytes.to_le_bytes()].concat()
}

fn answer(mut stream: TcpStream, token: &[u8; TOKEN_BYTES]) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut said = [0; TOKEN_BYTES + 5];
    stream.read_exact(&mut said)?;
    let record = u32::from_le_bytes([said[17], said[18], said[19], said[20]]);
    if said[..TOKEN_BYTES] != *token || !(1..=RECORD_BYTES_MAX).contains(&u64::from(record)) {
        return Ok(());
    }
    let mut buffer = vec![0; record as usize];
    match said[TOKEN_BYTES] {
        1 => {
            let mut bytes = 0u64;
            loop {
                match stream.read(&mut buffer)? {
                    0 => return stream.write_all(&bytes.to_le_bytes()),
                    n => bytes += n as u64,
                }
            }
        }
        2 => loop {
            stream.write_all(&buffer)?;
        },
        3 => loop {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        },
        _ => Ok(()),
    }
}

/// Connects to a far end.
///
/// # Errors
/// Nobody answers there.
pub fn connect(
    address: &str,
    port: u16,
    token: &[u8; TOKEN_BYTES],
    way: Way,
    record_bytes: u32,
) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((address, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(&head(token, way, record_bytes))?;
    Ok(stream)
}

/// What is combined.
#[derive(Clone, Debug)]
pub struct Ranges {
    /// Connections at a time, a thread each.
    pub threads: Vec<u64>,
    /// Bytes of a record.
    pub records: Vec<u64>,
    /// How long each combination takes.
    pub time: Duration,
}

/// The way to a far end.
struct Line<'a> {
    address: &'a str,
    port: u16,
    token: [u8; TOKEN_BYTES],
}

/// Surveys the network between this host and an agent that the crew has as its first.
///
/// # Errors
/// The agent or a connection fails.
pub fn survey(crew: &mut Crew, address: &str, ranges: &Ranges) -> Outcome<Findings> {
    crew.ask(0, &Ask::Listen { address: address.into() });
    let (port, token) = crew.wait_for(0, |tell| match tell {
        Tell::Listening { port, token } => Some((port, token)),
        _ => None,
    })?;
    let token = read_token(&token).ok_or_else(|| Failed::new("the far end told no token", libc::EPROTO))?;
    let line = Line { address, port, token };
    let columns = &["threads", "record_bytes", "send_mb_per_s", "receive_mb_per_s", "round_trip_us"];
    let mut found = Findings::new("network", columns);
    for &record in &ranges.records {
        for &threads in &ranges.threads {
            let mut row = vec![json!(threads), json!(record)];
            for way in [Way::Take, Way::Give] {
                row.push(json!(bandwidth(&line, way, threads, record, ranges.time)?));
                // An agent that died meanwhile ends the survey.
                crew.next(&[])?;
            }
            row.push(json!(round_trip_ns(&line, record, ranges.time)? as f64 / 1e3));
            found.push(row);
        }
    }
    Ok(found)
}

fn read_token(text: &str) -> Option<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    if text.len() != 2 * TOKEN_BYTES || !text.is_ascii() {
        return None;
    }
    for (i, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(token)
}

impl Line<'_> {
    fn connect(&self, way: Way, record: u64) -> Outcome<TcpStream> {
        connect(self.address, self.port, &self.token, way, record as u32).map_err(|e| self.failed(&e))
    }
    fn failed(&self, e: &io::Error) -> Failed {
        let said = format!("the connection to {}:{}: {e}", self.address, self.port);
        Failed::new(said, e.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// MB/s of some connections together.
fn bandwidth(line: &Line<'_>, way: Way, threads: u64, record: u64, time: Duration) -> Outcome<f64> {
    let streams = (0..threads).map(|_| line.connect(way, record)).collect::<Outcome<Vec<TcpStream>>>()?;
    let begin = os::now_ns();
    let until = begin + time.as_nanos() as u64;
    let done: Vec<io::Result<(u64, u64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            streams.into_iter().map(|s| scope.spawn(move || transfer(s, way, record, until))).collect();
        threads.into_iter().map(|t| t.join().expect("a connection's thread has no panic")).collect()
    });
    let done = done.into_iter().collect::<io::Result<Vec<_>>>().map_err(|e| line.failed(&e))?;
    let end = done.iter().map(|d| d.1).max().unwrap_or(begin);
    Ok(mb_per_s(done.iter().map(|d| d.0).sum(), end - begin))
}

/// Bytes that reached their end, and when the last of them did.
fn transfer(mut stream: TcpStream, way: Way, record: u64, until: u64) -> io::Result<(u64, u64)> {
    let mut buffer = vec![0; record as usize];
    let mut bytes = 0;
    if way == Way::Give {
        // Once at least: this thread may begin when its time is over.
        while bytes == 0 || os::now_ns() < until {
            match stream.read(&mut buffer)? as u64 {
                0 => break,
                read => bytes += read,
            }
        }
        return Ok((bytes, os::now_ns()));
    }
    while bytes == 0 || os::now_ns() < until {
        stream.write_all(&buffer)?;
        bytes += record;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut counted = [0; 8];
    stream.read_exact(&mut counted)?;
    match u64::from_le_bytes(counted) == bytes {
        true => Ok((bytes, os::now_ns())),
        false => Err(io::Error::other("the far end counted other bytes than were sent")),
    }
}

/// Median time of a record there and back, ns.
fn round_trip_ns(line: &Line<'_>, record: u64, time: Duration) -> Outcome<u64> {
    let mut stream = line.connect(Way::Echo, record)?;
    let mut buffer = vec![0; record as usize];
    let until = os::now_ns() + time.as_nanos() as u64;
    let mut trips = Vec::new();
    while trips.len() < TRIPS_MAX && (trips.is_empty() || os::now_ns() < until) {
        let asked = os::now_ns();
        let done = stream.write_all(&buffer).and_then(|()| stream.read_exact(&mut buffer));
        done.map_err(|e| line.failed(&e))?;
        trips.push(os::now_ns() - asked);
    }
    trips.sort_unstable();
    Ok(trips[trips.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_at_their_end_and_strangers_get_nothing() {
        let (_end, port, token) = FarEnd::listen("127.0.0.1").unwrap();
        let token = read_token(&token).unwrap();
        let line = Line { address: "127.0.0.1", port, token };
        let time = Duration::from_millis(20);
        for way in [Way::Take, Way::Give] {
            assert!(bandwidth(&line, way, 2, 4096, time).unwrap() > 0.0, "{way:?}");
        }
        assert!(round_trip_ns(&line, 8, time).unwrap() > 0);
        let wrong = Line { token: [0; TOKEN_BYTES], ..line };
        assert!(round_trip_ns(&wrong, 8, time).is_err());
        assert!(FarEnd::listen("192.0.2.1").is_err());
    }

    #[test]
    fn tokens_are_hexadecimal_digits() {
        assert_eq!(read_token("000102030405060708090a0b0c0d0eff").unwrap()[14..], [14, 255]);
        for wrong in ["", "00", "zz0102030405060708090a0b0c0d0eff", "äää102030405060708090a0b0c0d0eff"] {
            assert_eq!(read_token(wrong), None);
        }
    }
}
