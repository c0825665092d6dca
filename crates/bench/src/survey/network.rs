//! The network between two hosts, without a file system: the far end answers connections that know its token.
//!
//! The far end is an agent ([`crate::crew`]); it listens on a port of its own for as long as it lives, and the token that a
//! connection has to begin with goes over the agent's own channel.
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::failure::{Failed, Outcome};

/// Bytes of a token.
const TOKEN_BYTES: usize = 16;
/// How long a connection may take to show its token, or stand still.
const PATIENCE: Duration = Duration::from_secs(10);
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
